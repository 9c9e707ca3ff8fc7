//! `/v1/watch`: the keys of a range and every change of them, as server-sent events.
//!
//! A client that comes anew is told all entries (`snapshot`), then that it has them all (`live`), then each change (`change`). It
//! is one session with a `RANGE.WATCH` and the `RANGE`s that follow it, so what was told before an answer comes before it: applying events
//! in their order keeps a copy.
//!
//! # Invariants
//! - E1. An event has an `id` only where the client has all entries as of that position; where it has not, because it must read
//!   them again, the id is taken back (`id:` alone). So whoever comes back with `Last-Event-ID` misses nothing.
//!
//! # Cost
//! A client that does not read has some hundred KiB of events wait here, then what its session may hold (`watch-output-bytes-max`), then one
//! `resync`; after `http-milliseconds-max` without taking a byte it is ended.

use super::api::{Api, busy, caller};
use super::body::{Parts, Streamed};
use super::inner::{InnerReply, InnerSession};
use super::json;
use super::listener::ConnectionsEnd;
use super::problem::Problem;
use super::query::Query;
use super::ranges::{VALUE_BYTES_MAX, begin_list, entry};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Entries that are read at once for a snapshot.
const PAGE: usize = 500;
/// Events are sent on at the latest when their text has so many bytes.
const PART_BYTES: usize = 32 << 10;
/// Parts that may wait to be sent.
const PARTS_WAITING: usize = 4;
/// What browsers wait before they come back, in milliseconds.
const RETRY: &str = "retry: 1000\n\n";

/// Why a watch ends where nobody has lost anything.
const MOVES: &str = "the node takes its shard over, or gives it up: watch again";

/// Why no further event comes.
struct Ended;

/// GET.
pub(super) async fn begin(
    State(api): State<Api>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let query = Query::parse(request.uri().query(), &["first", "last", "prefix", "from"])?;
    let (first, last) = query.range()?;
    let header = request.headers().get("last-event-id").map(HeaderValue::as_bytes);
    let from = header.or_else(|| query.get("from")).filter(|from| !from.is_empty());
    if let Some(from) = from
        && !from.iter().all(|byte| byte.is_ascii_alphanumeric() || b".:-".contains(byte))
    {
        let text = format!("'{}' is no position", from.escape_ascii());
        return Err(Problem::bad(text, "the id of an event (Last-Event-ID, or from)"));
    }
    let Ok(permit) = api.watches.clone().try_acquire_owned() else {
        let text = format!("{} clients watch already (http-watches-max)", api.watches_max);
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "WATCHES", text));
    };
    let busy = busy(&request).begin();
    let ending = request.extensions().get::<ConnectionsEnd>().cloned().unwrap_or_default();
    let mut session = api.connector.open(&caller(&request)?).await?;
    let mut words: Vec<&[u8]> = vec![b"RANGE.WATCH", &first, &last];
    words.extend(from.iter().flat_map(|from| [&b"FROM"[..], from]));
    let reply = session.call(&words, usize::MAX).await?;
    let position = reply.items().get(1).and_then(InnerReply::bytes).ok_or_else(Problem::lost)?;
    let watch = Watch {
        position: String::from_utf8_lossy(position).into_owned(),
        session,
        range: (first, last),
        text: String::from(RETRY),
        heartbeat: api.heartbeat,
        has_all: from.is_some(),
        must_resync: false,
        ending,
    };
    let (parts, body) = Streamed::begin(PARTS_WAITING);
    tokio::spawn(async move {
        let (_permit, _busy) = (permit, busy);
        let gone = parts.clone();
        tokio::select! {
            _ = watch.run(parts) => {}
            () = gone.closed() => {}
        }
    });
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies would wait for more before they send anything on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(answer)
}

/// One client's watch.
struct Watch {
    session: InnerSession,
    range: (Vec<u8>, Vec<u8>),
    /// The position of what was told last.
    position: String,
    /// Events that are to be sent.
    text: String,
    heartbeat: Duration,
    /// The client has all entries as of `position`.
    has_all: bool,
    /// What was told does not suffice any more.
    must_resync: bool,
    /// Tells that the watch is to end with its connection.
    ending: ConnectionsEnd,
}

impl Watch {
    async fn run(mut self, parts: Parts) -> Result<(), Ended> {
        if self.has_all {
            // It goes on from where it was; what it has missed comes now.
            self.event("live", None, &json!({}));
        }
        loop {
            if self.must_resync {
                // E1: from here on its id is worth nothing.
                self.event("resync", Some(""), &json!({}));
                (self.must_resync, self.has_all) = (false, false);
            }
            if !self.has_all {
                self.snapshot(&parts).await?;
                if self.must_resync {
                    continue;
                }
                self.has_all = true;
                let position = self.position.clone();
                self.event("live", Some(&position), &json!({ "position": position }));
            }
            if !self.session.has_more() {
                self.send(&parts).await?;
            }
            let ready = tokio::select! {
                biased;
                () = self.ending.begins() => return self.end(MOVES, &parts).await,
                ready = tokio::time::timeout(self.heartbeat, self.session.ready()) => ready,
            };
            match ready {
                Err(_) => self.text.push_str(":\n\n"),
                Ok(Err(_)) => return self.end("the session was ended", &parts).await,
                Ok(Ok(())) => match self.session.next(VALUE_BYTES_MAX).await {
                    Ok(InnerReply::Push(message)) => self.tell(&message, &parts).await?,
                    Ok(_) => {}
                    Err(_) => return self.end("the session was ended", &parts).await,
                },
            }
            self.send_if_full(&parts).await?;
        }
    }

    /// Reads all entries of the range, and tells them.
    async fn snapshot(&mut self, parts: &Parts) -> Result<(), Ended> {
        let (mut first, last) = self.range.clone();
        let limit = PAGE.to_string();
        loop {
            let words = [b"RANGE", first.as_slice(), &last, b"LIMIT", limit.as_bytes()];
            if self.session.send(&words).await.is_err() {
                return self.end("the session was ended", parts).await;
            }
            let count = match begin_list(&mut self.session).await {
                Ok(count) => count,
                Err(problem) => return self.end(problem.detail(), parts).await,
            };
            // What was told before is older than what comes now.
            while let Some(message) = self.session.take_message() {
                self.tell(&message, parts).await?;
            }
            let (mut entries, mut bytes) = (Vec::new(), 0);
            for at in 1..=count {
                let key = self.session.next(usize::MAX).await;
                let value = self.session.next(VALUE_BYTES_MAX).await;
                let (Ok(InnerReply::Bytes(key)), Ok(value)) = (key, value) else {
                    return self.end("the session was ended", parts).await;
                };
                bytes += key.len() + value.bytes().map_or(0, <[u8]>::len);
                entries.push(entry(&key, &value));
                if bytes >= PART_BYTES || at == count {
                    let told: Vec<Value> = std::mem::take(&mut entries);
                    bytes = 0;
                    self.event("snapshot", None, &json!({ "entries": told }));
                    self.send(parts).await?;
                }
                first = key;
            }
            if count < PAGE || self.must_resync {
                return Ok(());
            }
            first.push(0);
        }
    }

    /// Tells what a message says.
    async fn tell(&mut self, message: &[InnerReply], parts: &Parts) -> Result<(), Ended> {
        let text = |at: usize| message.get(at).and_then(InnerReply::bytes).unwrap_or_default();
        match text(0) {
            b"range-change" => {
                self.position = String::from_utf8_lossy(text(2)).into_owned();
                let mut told = match message.get(5) {
                    Some(value) if text(3) == b"set" => entry(text(4), value),
                    _ => json!({ "key": json::of_bytes(text(4)) }),
                };
                told["op"] = json::of_bytes(text(3));
                // E1: until it has all entries, there is no coming back to here.
                let position = self.has_all.then(|| self.position.clone());
                self.event("change", position.as_deref(), &told);
            }
            b"range-resync" => self.must_resync = true,
            b"range-end" => {
                let reason = String::from_utf8_lossy(text(2)).into_owned();
                return self.end(&reason, parts).await;
            }
            _ => {}
        }
        Ok(())
    }

    fn event(&mut self, name: &str, id: Option<&str>, data: &Value) {
        // Writing to a string does not fail; JSON has no line ends, and positions are of letters and digits.
        let _ = writeln!(self.text, "event: {name}");
        if let Some(id) = id {
            let _ = writeln!(self.text, "id: {id}");
        }
        let _ = write!(self.text, "data: {data}\n\n");
    }

    /// Says why nothing more comes.
    async fn end(&mut self, reason: &str, parts: &Parts) -> Result<(), Ended> {
        self.event("end", Some(""), &json!({ "reason": reason }));
        self.send(parts).await?;
        Err(Ended)
    }

    async fn send_if_full(&mut self, parts: &Parts) -> Result<(), Ended> {
        if self.text.len() >= PART_BYTES { self.send(parts).await } else { Ok(()) }
    }

    /// Sends what is there; it waits for a client that is slow.
    async fn send(&mut self, parts: &Parts) -> Result<(), Ended> {
        if self.text.is_empty() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.text);
        parts.send(Ok(Bytes::from(text))).await.map_err(|_| Ended)
    }
}
