//! Replies as JSON. A byte string is a string where it is UTF-8 without control characters but tabs and line ends, and an
//! object with its `base64` otherwise; one that is too long to be told is an object with its `length`.

use super::inner::InnerReply;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// An answer in JSON.
pub(super) struct JsonAnswer(pub(super) Value);

impl IntoResponse for JsonAnswer {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0.to_string()).into_response()
    }
}

/// A byte string.
pub(super) fn of_bytes(bytes: &[u8]) -> Value {
    let plain =
        |text: &&str| !text.chars().any(|it| it.is_control() && !matches!(it, '\t' | '\n' | '\r'));
    match std::str::from_utf8(bytes).ok().filter(plain) {
        Some(text) => Value::from(text),
        None => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// A reply. Names in maps that are no text are told as text nearly like them.
pub(super) fn of_reply(reply: &InnerReply) -> Value {
    match reply {
        InnerReply::Status(text) => Value::from(text.as_str()),
        InnerReply::Error(text) => json!({ "error": text }),
        InnerReply::Integer(number) => Value::from(*number),
        InnerReply::Double(number) => json!(number),
        InnerReply::Boolean(truth) => Value::from(*truth),
        InnerReply::Bytes(bytes) => of_bytes(bytes),
        InnerReply::Long(length) => json!({ "length": length }),
        InnerReply::Null => Value::Null,
        InnerReply::List(items) | InnerReply::Push(items) => items.iter().map(of_reply).collect(),
        InnerReply::Map(items) => {
            let pairs = items.chunks_exact(2).map(|pair| {
                let name = match &pair[0] {
                    InnerReply::Integer(number) => number.to_string(),
                    name => String::from_utf8_lossy(name.bytes().unwrap_or_default()).into_owned(),
                };
                (name, of_reply(&pair[1]))
            });
            Value::Object(pairs.collect::<Map<_, _>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{of_bytes, of_reply};
    use crate::http::inner::InnerReply;
    use serde_json::json;

    #[test]
    fn bytes_are_text_where_they_can_be() {
        assert_eq!(of_bytes("grüß\n".as_bytes()), json!("grüß\n"));
        assert_eq!(of_bytes(b"\xff\x00"), json!({ "base64": "/wA=" }));
        assert_eq!(of_bytes(b"a\0"), json!({ "base64": "YQA=" }));
        let map = InnerReply::Map(vec![
            InnerReply::Bytes(b"a".to_vec()),
            InnerReply::List(vec![InnerReply::Integer(1), InnerReply::Null, InnerReply::Long(9)]),
        ]);
        assert_eq!(of_reply(&map), json!({ "a": [1, null, { "length": 9 }] }));
    }
}
