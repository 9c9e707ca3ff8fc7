//! The clients of a script ask all at once. What they are answered then is open; that each request has one reply of its kind,
//! and every byte its place, is not.

use super::commands::{Words, upper};
use super::place::Listening;
use super::script::{Script, request};
use super::site::clear;
use super::wire::{Frame, Wire, encoded};
use std::net::SocketAddr;
use std::time::Duration;

/// Has the clients of a script ask a server at once, each its own pipelines in order. The server must be empty, and is emptied again.
///
/// # Errors
/// The first thing that is wrong.
pub fn run_at_once(script: &Script, server: SocketAddr, patience: Duration) -> Result<(), String> {
    let done: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..script.protocols.len())
            .map(|client| scope.spawn(move || one(script, client, server, patience)))
            .collect();
        let ended = all.into_iter().map(|thread| thread.join());
        ended.map(|done| done.unwrap_or_else(|_| Err(String::from("it panics")))).collect()
    });
    for (client, done) in done.into_iter().enumerate() {
        done.map_err(|wrong| format!("client {client}: {wrong}"))?;
    }
    clear(&Listening::at(server, patience))
}

fn one(
    script: &Script,
    client: usize,
    server: SocketAddr,
    patience: Duration,
) -> Result<(), String> {
    let mut wire = Wire::connect(server, patience)?;
    if script.protocols[client] == 3 {
        wire.protocol = 3;
        wire.ask(&["HELLO", "3"])?;
    }
    let (mut queued, mut open) = (None, false);
    for step in script.steps.iter().filter(|step| step.client == client) {
        let requests: Vec<&Words> =
            step.requests.iter().filter(|words| is_asked(words, &mut open)).collect();
        let bytes: Vec<u8> = requests.iter().flat_map(|words| encoded(words)).collect();
        wire.send(&bytes, &step.cuts)?;
        for words in requests {
            reply(&mut wire, words, &mut queued)
                .map_err(|wrong| format!("{}: {wrong}", request(words)))?;
        }
    }
    let (_, fence) = wire.ask(&["RESET"])?;
    if fence == Frame::Simple(String::from("RESET")) {
        Ok(())
    } else {
        Err(format!("RESET: {fence:?}"))
    }
}

/// Whether a request is to be sent; `open`: whether it would be queued.
fn is_asked(words: &Words, open: &mut bool) -> bool {
    match upper(&words[0]).as_str() {
        "MULTI" => *open = true,
        "EXEC" | "DISCARD" => *open = false,
        // What confirms it is a push, which has no place in an array.
        "SUBSCRIBE" | "UNSUBSCRIBE" | "PSUBSCRIBE" => return !*open,
        // Whom it names depends on the moment.
        "CLIENT" => return upper(&words[1]) != "KILL",
        "SCAN.ALL" => return false,
        _ => {}
    }
    true
}

/// Reads the reply to a request; `queued`: how many of an open transaction wait for EXEC.
fn reply(wire: &mut Wire, words: &Words, queued: &mut Option<usize>) -> Result<(), String> {
    let name = upper(&words[0]);
    let kind = name.to_lowercase().into_bytes();
    let subscribes = ["SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE"].contains(&name.as_str());
    let reply = loop {
        match wire.frame()? {
            Frame::Push(push) => {
                let confirms = push.first().and_then(Frame::text).is_some_and(|it| it == kind);
                if subscribes && confirms {
                    return Ok(());
                }
            }
            reply => break reply,
        }
    };
    let wrong = |expected: &str| Err(format!("{reply:?}, but expected {expected}"));
    match (name.as_str(), *queued, &reply) {
        ("MULTI", None, Frame::Simple(text)) if text == "OK" => *queued = Some(0),
        ("MULTI", None, _) => return wrong("OK"),
        ("DISCARD" | "EXEC", None, Frame::Error(_)) => {}
        ("EXEC", Some(_), Frame::Null | Frame::NullArray | Frame::Error(_)) => *queued = None,
        ("EXEC", Some(count), Frame::Array(all)) if all.len() == count => *queued = None,
        ("EXEC", ..) => return wrong("as many replies as were queued"),
        ("DISCARD", Some(_), Frame::Simple(text)) if text == "OK" => *queued = None,
        (_, Some(count), Frame::Simple(text)) if text == "QUEUED" => *queued = Some(count + 1),
        (_, Some(_), Frame::Error(_)) => {}
        (_, Some(_), _) => return wrong("QUEUED"),
        ("GET", None, Frame::Bulk(_) | Frame::Null | Frame::Error(_)) => {}
        ("MGET", None, Frame::Array(all)) if all.len() == words.len() - 1 => {}
        ("GET" | "MGET", None, _) => return wrong("values"),
        ("DEL" | "EXISTS" | "STRLEN" | "COPY", None, Frame::Integer(_) | Frame::Error(_)) => {}
        ("DEL" | "EXISTS" | "STRLEN" | "COPY", None, _) => return wrong("a number"),
        ("ECHO", None, Frame::Bulk(text)) if *text == words[1] => {}
        ("ECHO", None, _) => return wrong("its text"),
        _ => {}
    }
    Ok(())
}
