//! As much of NATS' text protocol, and of JetStream over it, as a queue of posts needs.

use crate::wire::{Connection, bad};
use anyhow::{Result, bail};
use std::io;

fn stream(replicas: usize) -> String {
    format!(
        r#"{{"name":"POSTS","subjects":["posts"],"retention":"workqueue","storage":"file","num_replicas":{replicas}}}"#
    )
}

const CONSUMER: &str = r#"{"stream_name":"POSTS","config":{"durable_name":"W","ack_policy":"explicit","deliver_policy":"all","max_ack_pending":65536}}"#;
/// Asks for up to 16 messages within 50 ms.
const NEXT: &str = r#"{"batch":16,"expires":50000000}"#;
/// Messages asked for at once.
pub const BATCH: usize = 16;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Where the receipt goes.
    pub reply: Option<String>,
    /// Its bytes; `None` where the server tells something about itself.
    pub payload: Option<Vec<u8>>,
}

/// Begins to speak: replies come to `inbox`.
pub fn begin(connection: &mut Connection, inbox: &str) -> io::Result<()> {
    connection.out.extend_from_slice(
        format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}}\r\nSUB {inbox} 1\r\n"
        )
        .as_bytes(),
    );
    connection.flush()
}

/// Writes a message to be sent.
pub fn publish(out: &mut Vec<u8>, subject: &str, reply: &str, payload: &[u8]) {
    out.extend_from_slice(format!("PUB {subject} {reply} {}\r\n", payload.len()).as_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// Reads the next message.
pub fn message(connection: &mut Connection) -> io::Result<Message> {
    loop {
        let line = String::from_utf8_lossy(connection.input.line()?).into_owned();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (fixed, headed) = match words.first() {
            Some(&"MSG") => (4, false),
            Some(&"HMSG") => (5, true),
            Some(&"PING") => {
                connection.out.extend_from_slice(b"PONG\r\n");
                connection.flush()?;
                continue;
            }
            Some(&"-ERR") => return Err(bad(format!("the server answers: {line}"))),
            _ => continue,
        };
        let length = words.last().and_then(|word| word.parse().ok());
        let length = length.ok_or_else(|| bad(format!("not a message: {line}")))?;
        let reply = (words.len() > fixed).then(|| words[3].to_owned());
        let bytes = connection.input.data(length)?.to_vec();
        let payload = (!headed).then_some(bytes);
        return Ok(Message { reply, payload });
    }
}

/// Makes the stream, of so many replicas, and its consumer.
///
/// # Errors
/// The server refuses.
pub fn prepare(connection: &mut Connection, replicas: usize) -> Result<()> {
    begin(connection, "_INBOX.setup")?;
    for (subject, text) in [
        ("$JS.API.STREAM.CREATE.POSTS", &*stream(replicas)),
        ("$JS.API.CONSUMER.DURABLE.CREATE.POSTS.W", CONSUMER),
    ] {
        publish(&mut connection.out, subject, "_INBOX.setup", text.as_bytes());
        connection.flush()?;
        let answer = message(connection)?.payload.unwrap_or_default();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if answer.contains("\"error\"") || answer.is_empty() {
            bail!("JetStream refuses: {answer}");
        }
    }
    Ok(())
}

/// Puts a post into the queue and waits until it is there.
pub fn put(connection: &mut Connection, inbox: &str, payload: &[u8]) -> io::Result<()> {
    publish(&mut connection.out, "posts", inbox, payload);
    connection.flush()?;
    match message(connection)?.payload {
        Some(answer) if answer.windows(5).any(|word| word == b"\"seq\"") => Ok(()),
        other => Err(bad(format!("no receipt: {other:?}"))),
    }
}

/// Asks for messages; they come to `inbox`, and fewer where none are left.
pub fn ask(connection: &mut Connection, inbox: &str) -> io::Result<()> {
    publish(&mut connection.out, "$JS.API.CONSUMER.MSG.NEXT.POSTS.W", inbox, NEXT.as_bytes());
    connection.flush()
}

/// Writes the receipt of a message that was worked off.
pub fn receipt(out: &mut Vec<u8>, reply: &str) {
    out.extend_from_slice(format!("PUB {reply} 4\r\n+ACK\r\n").as_bytes());
}
