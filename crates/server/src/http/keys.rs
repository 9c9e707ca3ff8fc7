//! `/v1/keys/{key}`: one key's value, as bytes.

use super::api::{Api, busy, caller};
use super::body::{Streamed, next_part};
use super::inner::InnerReply;
use super::problem::Problem;
use super::query::{Query, decode};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use std::io;

const PATH: &str = "/v1/keys/";
/// The header that tells how long a key has to live, in milliseconds.
const TTL: HeaderName = HeaderName::from_static("headwater-ttl-ms");
/// Longest time to live, in milliseconds: a thousand years.
const TTL_MAX: u64 = 1000 * 366 * 86_400_000;
/// Longest body that is taken; the server's own bound for values is lower.
const BODY_BYTES_MAX: usize = 512 << 20;
/// Parts of a value that may wait to be sent.
const PARTS_WAITING: usize = 4;

/// The key that a request is about, and the rest of what it asks.
fn key(request: &Request, allowed: &[&str]) -> Result<(Vec<u8>, Query), Problem> {
    let mut allowed = allowed.to_vec();
    let (path, query) = (request.uri().path(), request.uri().query());
    if let Some(key) = path.strip_prefix(PATH) {
        return Ok((decode(key, false)?, Query::parse(query, &allowed)?));
    }
    allowed.insert(0, "key");
    let query = Query::parse(query, &allowed)?;
    let none = || Problem::bad("no key is named", "/v1/keys/KEY or /v1/keys?key=KEY");
    let key = query.get("key").ok_or_else(none)?.to_vec();
    Ok((key, query))
}

fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such key")
}

/// GET: the value.
pub(super) async fn read(
    State(api): State<Api>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let (key, _) = key(&request, &[])?;
    let busy = busy(&request).begin();
    let mut session = api.connector.open(&caller(&request)?).await?;
    let lost = |_: io::Error| Problem::lost();
    session.send(&[b"PTTL", &key]).await.map_err(lost)?;
    session.send(&[b"GET", &key]).await.map_err(lost)?;
    let life = session.reply(0).await?;
    let head = session.head().await.map_err(lost)?;
    let Some(length) = head.byte_count().map_err(lost)? else {
        return match session.value(head, usize::MAX).await.map_err(lost)?.accept()? {
            InnerReply::Null => Err(not_found()),
            _ => Err(Problem::lost()),
        };
    };
    let (parts, body) = Streamed::begin(PARTS_WAITING);
    tokio::spawn(async move {
        let _busy = busy;
        let mut left = length;
        while left > 0 {
            let part = tokio::select! {
                part = session.take_bytes(left) => part,
                () = parts.closed() => return,
            };
            left -= part.as_ref().map_or(left, Vec::len);
            if parts.send(part.map(Bytes::from)).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if let InnerReply::Integer(millis @ 0..) = life {
        headers.insert(TTL, HeaderValue::from(millis));
    }
    Ok(answer)
}

/// PUT: sets the value.
pub(super) async fn write(State(api): State<Api>, request: Request) -> Result<StatusCode, Problem> {
    let (key, query) = key(&request, &["ttl", "ttl-ms", "keepttl", "if"])?;
    let options = options(&query)?;
    let length = length(&request)?;
    let caller = caller(&request)?;
    let mut body = request.into_body();
    let mut session = api.connector.open(&caller).await?;
    let mut head =
        format!("*{}\r\n$3\r\nSET\r\n${}\r\n", 3 + options.len(), key.len()).into_bytes();
    head.extend_from_slice(&key);
    head.extend_from_slice(format!("\r\n${length}\r\n").as_bytes());
    let mut sent = session.send_part(&head).await;
    let mut left = length;
    while left > 0 && sent.is_ok() {
        let part = tokio::select! {
            biased;
            // It is refused before it has come.
            _ = session.ready() => break,
            part = next_part(&mut body, api.patience) => part?,
        };
        // A request of which only a part has come is never executed.
        let Some(part) = part else {
            return Err(Problem::new(StatusCode::BAD_REQUEST, "BODY", "the body is too short"));
        };
        let part = &part[..part.len().min(left)];
        left -= part.len();
        sent = session.send_part(part).await;
    }
    let mut tail = b"\r\n".to_vec();
    for word in &options {
        tail.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    if sent.is_ok() && left == 0 {
        sent = session.send_part(&tail).await;
    }
    // Where it was refused before it was complete, this tells why.
    let reply = session.reply(0).await?.accept().map_err(too_long)?;
    sent.map_err(|_| Problem::lost())?;
    if left > 0 {
        return Err(Problem::lost());
    }
    match reply {
        InnerReply::Null => {
            let text = "the key is there, or is not there, as 'if' says that it must not be";
            Err(Problem::new(StatusCode::PRECONDITION_FAILED, "IF", text))
        }
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// What is too long has a status of its own.
fn too_long(problem: Problem) -> Problem {
    let detail = problem.detail();
    if detail.contains("value-bytes-max") || detail.contains("invalid bulk length") {
        return problem.with_status(StatusCode::PAYLOAD_TOO_LARGE);
    }
    problem
}

fn length(request: &Request) -> Result<usize, Problem> {
    let missing = || {
        Problem::new(
            StatusCode::LENGTH_REQUIRED,
            "BODY",
            "how long the value is must be known before",
        )
        .allowing("Content-Length")
    };
    let named = request.headers().get(header::CONTENT_LENGTH).and_then(|it| it.to_str().ok());
    let length = named.and_then(|it| it.parse::<usize>().ok()).ok_or_else(missing)?;
    if length > BODY_BYTES_MAX {
        let text = format!("{length} bytes are longer than any value may be");
        return Err(
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY", text).allowing("value-bytes-max")
        );
    }
    Ok(length)
}

/// The options of SET.
fn options(query: &Query) -> Result<Vec<String>, Problem> {
    let mut words = Vec::new();
    let lives =
        [("EX", query.number("ttl", TTL_MAX / 1000)?), ("PX", query.number("ttl-ms", TTL_MAX)?)];
    for (word, number) in lives {
        if let Some(number) = number {
            words.extend([word.to_owned(), number.to_string()]);
        }
    }
    if query.flag("keepttl")? {
        words.push(String::from("KEEPTTL"));
    }
    if words.iter().filter(|word| !word.starts_with(|it: char| it.is_ascii_digit())).count() > 1 {
        return Err(Problem::bad("two times to live", "one of ttl, ttl-ms, keepttl"));
    }
    match query.get("if") {
        None => {}
        Some(b"absent") => words.push(String::from("NX")),
        Some(b"present") => words.push(String::from("XX")),
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            return Err(Problem::bad(format!("if is '{other}'"), "absent or present"));
        }
    }
    Ok(words)
}

/// DELETE: removes the key.
pub(super) async fn remove(
    State(api): State<Api>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let (key, _) = key(&request, &[])?;
    let mut session = api.connector.open(&caller(&request)?).await?;
    match session.call(&[b"DEL", &key], 0).await? {
        InnerReply::Integer(0) => Err(not_found()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
