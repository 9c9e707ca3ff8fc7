//! `/v1/range`: the keys of a range in pages.
//!
//! A page ends after so many entries as were asked for, or when its keys and values take [`PAGE_BYTES`]. What `next` names begins behind its last key, so
//! keys that come or go between two pages make none be told twice.

use super::api::{Api, caller};
use super::inner::{InnerReply, InnerSession};
use super::json::{self, JsonAnswer};
use super::problem::Problem;
use super::query::{Query, encode};
use axum::extract::{Request, State};
use headwater_command::STALE_MAX;
use serde_json::{Value, json};
use std::io;

/// Most entries of a page.
const LIMIT_MAX: u64 = 10_000;
/// Entries of a page where the request does not say.
const LIMIT: u64 = 100;
/// Bytes of keys and values after which a page ends.
const PAGE_BYTES: usize = 1 << 20;
/// Longer values are told by their length alone.
pub(super) const VALUE_BYTES_MAX: usize = 256 << 10;

/// Reads up to the list that answers RANGE, past messages, and says how many entries it has.
pub(super) async fn begin_list(session: &mut InnerSession) -> Result<usize, Problem> {
    loop {
        let head = session.head().await.map_err(|_| Problem::lost())?;
        if let Some(count) = head.entries() {
            return Ok(count);
        }
        let value = session.value(head, VALUE_BYTES_MAX).await.map_err(|_| Problem::lost())?;
        match value {
            InnerReply::Push(message) => session.keep_message(message),
            other => {
                other.accept()?;
                return Err(Problem::lost());
            }
        }
    }
}

/// An entry: its key, and its value or, where it is too long, its length.
pub(super) fn entry(key: &[u8], value: &InnerReply) -> Value {
    match value {
        InnerReply::Long(length) => json!({ "key": json::of_bytes(key), "omitted": length }),
        value => json!({ "key": json::of_bytes(key), "value": json::of_reply(value) }),
    }
}

/// What of each key is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Entries,
    Keys,
    Values,
    Count,
}

/// GET.
pub(super) async fn read(State(api): State<Api>, request: Request) -> Result<JsonAnswer, Problem> {
    let allowed = ["first", "last", "prefix", "rev", "limit", "keys", "values", "count", "stale"];
    let query = Query::parse(request.uri().query(), &allowed)?;
    let (first, last) = query.range()?;
    let rev = query.flag("rev")?;
    let limit = query.number("limit", LIMIT_MAX)?.unwrap_or(LIMIT);
    let stale = query.number_within("stale", (0, STALE_MAX))?.map(|millis| millis.to_string());
    let accepts = || stale.iter().flat_map(|millis| [&b"STALE"[..], millis.as_bytes()]);
    let shapes = [("keys", Shape::Keys), ("values", Shape::Values), ("count", Shape::Count)];
    let mut shape = Shape::Entries;
    for (name, other) in shapes {
        if query.flag(name)? && std::mem::replace(&mut shape, other) != Shape::Entries {
            return Err(Problem::bad("two of keys, values and count", "one of them, or none"));
        }
    }
    let mut session = api.connector.open(&caller(&request)?).await?;
    if shape == Shape::Count {
        let mut words: Vec<&[u8]> = vec![b"RANGE", &first, &last, b"COUNT"];
        words.extend(accepts());
        let count = session.call(&words, 0).await?;
        return Ok(JsonAnswer(json!({ "count": json::of_reply(&count) })));
    }
    // One more than is told says whether there are more.
    let asked = (limit + 1).to_string();
    let mut words: Vec<&[u8]> = vec![b"RANGE", &first, &last];
    words.extend(rev.then_some(&b"REV"[..]));
    words.extend([&b"LIMIT"[..], asked.as_bytes()]);
    words.extend((shape == Shape::Keys).then_some(&b"KEYS"[..]));
    words.extend(accepts());
    let lost = |_: io::Error| Problem::lost();
    session.send(&words).await.map_err(lost)?;
    let count = begin_list(&mut session).await?;
    let mut told = Vec::new();
    let (mut bytes, mut last_key) = (0, Vec::new());
    while told.len() < count.min(limit as usize) && bytes < PAGE_BYTES {
        let InnerReply::Bytes(key) = session.next(usize::MAX).await.map_err(lost)? else {
            return Err(Problem::lost());
        };
        bytes += key.len();
        told.push(if shape == Shape::Keys {
            json::of_bytes(&key)
        } else {
            let value = session.next(VALUE_BYTES_MAX).await.map_err(lost)?;
            bytes += value.bytes().map_or(0, <[u8]>::len);
            if shape == Shape::Values { json::of_reply(&value) } else { entry(&key, &value) }
        });
        last_key = key;
    }
    let next = (told.len() < count).then(|| {
        let (first, last) = if rev {
            (first.clone(), last_key)
        } else {
            last_key.push(0);
            (last_key, last.clone())
        };
        let mut link = format!("/v1/range?first={}&last={}", encode(&first), encode(&last));
        link += &format!("&limit={limit}{}", if rev { "&rev=1" } else { "" });
        if let Some(millis) = &stale {
            link += &format!("&stale={millis}");
        }
        link += match shape {
            Shape::Keys => "&keys=1",
            Shape::Values => "&values=1",
            _ => "",
        };
        link
    });
    let name = match shape {
        Shape::Keys => "keys",
        Shape::Values => "values",
        _ => "entries",
    };
    Ok(JsonAnswer(json!({ name: told, "next": next })))
}
