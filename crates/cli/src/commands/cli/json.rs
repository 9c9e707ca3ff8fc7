//! Replies as lines of JSON.

use crate::client::Reply;
use std::fmt::Write;

/// A reply as a line.
pub(super) fn line(reply: &Reply) -> String {
    let mut out = String::new();
    write(reply, &mut out);
    out.push('\n');
    out
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Bytes as text, or, where they are none, in hexadecimal.
fn bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => quote(text),
        Err(_) => {
            let mut hex = String::with_capacity(2 * bytes.len());
            for byte in bytes {
                // Writing to a String cannot fail.
                let _ = write!(hex, "{byte:02x}");
            }
            format!("{{\"hex\":\"{hex}\"}}")
        }
    }
}

fn list(items: &[Reply], out: &mut String) {
    out.push('[');
    for (at, item) in items.iter().enumerate() {
        out.push_str(if at > 0 { "," } else { "" });
        write(item, out);
    }
    out.push(']');
}

fn write(reply: &Reply, out: &mut String) {
    match reply {
        Reply::Status(text) => out.push_str(&quote(text)),
        Reply::Error(text) => *out += &format!("{{\"error\":{}}}", quote(text)),
        Reply::Integer(number) => *out += &number.to_string(),
        Reply::Bulk(text) | Reply::Verbatim(text) => out.push_str(&bytes(text)),
        Reply::Null => out.push_str("null"),
        // JSON has no infinite numbers.
        Reply::Double(text) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => *out += &number.to_string(),
            _ => out.push_str(&quote(text)),
        },
        Reply::Boolean(truth) => *out += &truth.to_string(),
        Reply::Array(items) => list(items, out),
        Reply::Push(items) => {
            out.push_str("{\"push\":");
            list(items, out);
            out.push('}');
        }
        Reply::Map(pairs) => {
            let text = |key: &Reply| match key {
                Reply::Status(text) => Some(quote(text)),
                Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok().map(quote),
                _ => None,
            };
            let keys: Option<Vec<String>> = pairs.iter().map(|(key, _)| text(key)).collect();
            match keys {
                Some(keys) => {
                    out.push('{');
                    for (at, (key, (_, value))) in keys.iter().zip(pairs).enumerate() {
                        *out += &format!("{}{key}:", if at > 0 { "," } else { "" });
                        write(value, out);
                    }
                    out.push('}');
                }
                // An object's keys are text.
                None => {
                    let pair = |(key, value): &(Reply, Reply)| {
                        Reply::Array([key.clone(), value.clone()].into())
                    };
                    list(&pairs.iter().map(pair).collect::<Vec<_>>(), out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reply_is_a_line_of_json() {
        let bulk = |bytes: &[u8]| Reply::Bulk(bytes.to_vec());
        let map = |key: &[u8]| Reply::Map(vec![(bulk(b"b"), Reply::Null), (bulk(key), bulk(b"v"))]);
        for (reply, expected) in [
            (bulk(b"a\"\n"), r#""a\"\n""#),
            (bulk(b"\xff\x00"), r#"{"hex":"ff00"}"#),
            (Reply::Error(String::from("ERR no")), r#"{"error":"ERR no"}"#),
            (Reply::Array(vec![Reply::Integer(1), Reply::Boolean(true)]), "[1,true]"),
            (Reply::Push(vec![Reply::Double(String::from("inf"))]), r#"{"push":["inf"]}"#),
            (map(b"a"), r#"{"b":null,"a":"v"}"#),
            (map(b"\xff"), r#"[["b",null],[{"hex":"ff"},"v"]]"#),
        ] {
            assert_eq!(line(&reply), format!("{expected}\n"));
            let _read: serde_json::Value = serde_json::from_str(expected).unwrap();
        }
    }
}
