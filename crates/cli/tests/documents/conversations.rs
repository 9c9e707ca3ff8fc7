//! Conversations with a server: blocks whose lines begin with `> `.

use crate::PATIENCE;
use crate::pages::pages;
use crate::server::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Words as a shell would cut them: single quotes keep what is between them together.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn send(stream: &mut BufReader<TcpStream>, words: &[String]) {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.get_mut().write_all(request.as_bytes()).expect("a request is sent");
}

/// Reads a RESP2 answer and adds the lines that `redis-cli --raw` prints for it.
fn receive(stream: &mut BufReader<TcpStream>, shown: &mut String) {
    let mut line = String::new();
    stream.read_line(&mut line).expect("an answer");
    let (kind, rest) = line.trim_end().split_at(1);
    let count: i64 = rest.parse().unwrap_or(-1);
    match kind {
        "$" if count >= 0 => {
            let mut bytes = vec![0; count as usize + 2];
            stream.read_exact(&mut bytes).expect("the bytes of an answer");
            bytes.truncate(count as usize);
            shown.push_str(&String::from_utf8(bytes).expect("text"));
            shown.push('\n');
        }
        "*" if count > 0 => (0..count).for_each(|_| receive(stream, shown)),
        "$" | "*" => shown.push('\n'),
        _ => {
            shown.push_str(rest);
            shown.push('\n');
        }
    }
}

/// What can be compared: figures of a `status:` or `eviction:` line are left out, and positions.
fn comparable(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| {
        let title = line.trim_start();
        let varies = title.starts_with("status:") || title.starts_with("eviction:");
        if is_position(line) {
            return "(a position)".to_owned();
        }
        line.chars().filter(|c| !(varies && c.is_ascii_digit())).collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether it is a position of a watch, as `5d1b2c7e9f003a44-17`.
fn is_position(text: &str) -> bool {
    text.split_once('-').is_some_and(|(run, number)| {
        run.len() == 16
            && run.bytes().all(|it| it.is_ascii_hexdigit())
            && !number.is_empty()
            && number.bytes().all(|it| it.is_ascii_digit())
    })
}

/// One request, or one message, of a conversation.
#[derive(Clone, Copy)]
enum Line<'a> {
    Asks(&'a str),
    OtherAsks(&'a str),
    Message,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        if line.trim_end() == "message>" {
            return Some(Self::Message);
        }
        let other = line.strip_prefix("other> ").map(Self::OtherAsks);
        other.or_else(|| line.strip_prefix("> ").map(Self::Asks))
    }
}

/// Whether a block is a conversation, or a page has one.
pub(crate) fn is_conversation(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("> "))
}

/// Runs the conversations of a page; how many requests they had.
fn converse(page: &str, text: &str) -> usize {
    if !text.split("```").skip(1).step_by(2).any(is_conversation) {
        return 0;
    }
    let options =
        text.split_once("is started with: ").and_then(|(_, rest)| rest.split_once(" -->"));
    let options: Vec<&str> = options.map_or("--shards 1", |it| it.0).split(' ').collect();
    let server = Server::start(&options);
    let (mut stream, mut other) = (server.connect(), server.connect());
    let (mut asked, mut fenced) = (0, false);
    let mut position = String::new();
    let mut step: Option<(Line<'_>, String)> = None;
    let mut finish = |step: Option<(Line<'_>, String)>| {
        let Some((line, expected)) = step else { return };
        let mut shown = String::new();
        let request = match line {
            Line::Asks(request) => {
                let words = words(request).into_iter();
                // A position that the page shows stands for the one that was told last.
                let words = words.map(|it| if is_position(&it) { position.clone() } else { it });
                let words = words.collect::<Vec<_>>();
                let end = Instant::now() + PATIENCE;
                loop {
                    shown.clear();
                    send(&mut stream, &words);
                    receive(&mut stream, &mut shown);
                    // What flows do comes a moment after the write.
                    let may_come =
                        page == "docs/flows.md" && ["GET", "PREFIX"].contains(&&*words[0]);
                    if !may_come
                        || comparable(&shown) == comparable(&expected)
                        || Instant::now() > end
                    {
                        break;
                    }
                }
                request
            }
            Line::OtherAsks(request) => {
                send(&mut other, &words(request));
                receive(&mut other, &mut shown);
                request
            }
            Line::Message => {
                receive(&mut stream, &mut shown);
                "a message"
            }
        };
        if let Some(told) = shown.lines().find(|line| is_position(line)) {
            position = told.to_owned();
        }
        assert_eq!(comparable(&shown), comparable(&expected), "{page}: {request}");
        asked += 1;
    };
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            finish(step.take());
        } else if !fenced {
        } else if let Some(next) = Line::parse(line) {
            finish(step.replace((next, String::new())));
        } else if let Some((_, expected)) = &mut step {
            expected.push_str(line);
            expected.push('\n');
        }
    }
    asked
}

#[test]
fn what_every_page_shows_is_answered() {
    let mut asked: Vec<(String, usize)> =
        pages().iter().map(|(page, text)| (page.clone(), converse(page, text))).collect();
    asked.retain(|(_, count)| *count > 0);
    assert!(asked.len() >= 14, "{asked:?}");
    assert!(asked.iter().map(|(_, count)| count).sum::<usize>() > 250, "{asked:?}");
}
