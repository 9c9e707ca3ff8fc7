//! What is posted: one change of a key, as JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// One change of a key.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The flow's name.
    pub flow: &'a str,
    /// The change's place in the journal.
    pub position: u64,
    /// Greater than that of every earlier change of the key; the same whenever the change is posted again.
    pub sequence: u64,
    /// When it was done, in milliseconds since 1970.
    pub at: u64,
    /// `set`, `delete` or `expire`.
    pub operation: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// The value that it was given, if it was.
    pub value: Option<&'a [u8]>,
    /// The slots of the key, with their names.
    pub slots: &'a [(String, Vec<u8>)],
}

/// Text as it is; other bytes as `{"base64": …}`.
fn text(bytes: &[u8]) -> Value {
    match str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

impl Message<'_> {
    /// The body.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let slots: Map<String, Value> =
            self.slots.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        json!({
            "flow": self.flow,
            "position": self.position,
            "sequence": self.sequence,
            "at": self.at,
            "operation": self.operation,
            "key": text(self.key),
            "value": self.value.map(text),
            "slots": slots,
        })
        .to_string()
        .into_bytes()
    }

    /// Names the change: the same text whenever it is posted again.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        // Positions begin anew where nothing is kept; the moment tells those apart.
        let flow: String = self.flow.chars().filter(char::is_ascii_graphic).collect();
        format!("{flow}-{}-{}", self.position, self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::Message;

    #[test]
    fn bytes_that_are_no_text_are_told_apart() {
        let slots = [(String::from("id"), b"1".to_vec())];
        let mut message = Message {
            flow: "news",
            position: 7,
            sequence: 1_024_000,
            at: 1000,
            operation: "set",
            key: b"n|1",
            value: Some(b"a \"b\"\n"),
            slots: &slots,
        };
        let body = String::from_utf8(message.body()).unwrap();
        assert_eq!(
            body,
            r#"{"at":1000,"flow":"news","key":"n|1","operation":"set","position":7,"sequence":1024000,"slots":{"id":"1"},"value":"a \"b\"\n"}"#
        );
        message.value = Some(b"\xff\x00");
        assert!(
            String::from_utf8(message.body()).unwrap().contains(r#""value":{"base64":"/wA="}"#)
        );
        message.value = None;
        assert!(String::from_utf8(message.body()).unwrap().contains(r#""value":null"#));
        assert_eq!(message.idempotency_key(), "news-7-1000");
    }
}
