//! Bytes as scripts write them: one word of printable ASCII.

use std::fmt::Write;

/// The word for these bytes; [`unescape`] gives them back.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return String::from("\"\"");
    }
    let mut word = String::new();
    for &byte in bytes {
        match byte {
            b'\\' => word.push_str("\\\\"),
            b' ' => word.push_str("\\s"),
            b'"' | b'#' => write!(word, "\\x{byte:02x}").expect("strings take everything"),
            b'!'..=b'~' => word.push(char::from(byte)),
            _ => write!(word, "\\x{byte:02x}").expect("strings take everything"),
        }
    }
    word
}

/// The bytes that a word stands for.
///
/// # Errors
/// The escape that is none.
pub fn unescape(word: &str) -> Result<Vec<u8>, String> {
    if word == "\"\"" {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'\\') => bytes.push(b'\\'),
            Some(b's') => bytes.push(b' '),
            Some(b'x') => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.unwrap_or(b'?'));
                let text = std::str::from_utf8(&digits).unwrap_or("?");
                let value = u8::from_str_radix(text, 16);
                bytes.push(value.map_err(|_| format!("`\\x{text}` in `{word}` is no byte"))?);
            }
            _ => return Err(format!("`{word}`: after `\\` comes `\\`, `s` or `x`")),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)), Ok(all));
        assert_eq!(unescape(&escape(b"")), Ok(Vec::new()));
        for word in ["\\", "\\n", "\\x", "\\x1", "\\xzz"] {
            assert!(unescape(word).is_err(), "{word}");
        }
    }
}
