//! The two commands about functions that memcached itself does not have.
//!
//! ```text
//! register <function> <module file> <export>
//! invoke <key> <function> <flags> <bytes>
//! <parameter>
//! ```
//!
//! Flags are letters: `U`, the function may change the value; `R`, a reply is wanted; `A`, nobody else
//! changes the value meanwhile; `-` alone, none of them. A line whose length can be read takes its
//! data with it, whatever else is wrong with it.

use super::meta::KEY_BYTES_MAX;
use super::parser::{BAD_FORMAT, Limits, Parsed, Request, data_length, refuse, refused};
use super::words::Words;

const BAD_FLAGS: &str = "CLIENT_ERROR flags of invoke are letters of AUR, or -";

/// What the letters of an invocation say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct InvokeFlags {
    update: bool,
    reply: bool,
}

fn letters(word: &[u8]) -> Option<InvokeFlags> {
    let mut letters = InvokeFlags::default();
    if word == b"-" {
        return Some(letters);
    }
    for letter in word {
        match letter {
            // One command is executed at a time: this is always so.
            b'A' => {}
            b'U' => letters.update = true,
            b'R' => letters.reply = true,
            _ => return None,
        }
    }
    Some(letters)
}

/// `invoke`: its line, and the parameter behind it.
pub(super) fn invoke<'a>(
    input: &'a [u8],
    after: usize,
    mut words: Words<'a>,
    limits: &Limits,
) -> Parsed<'a> {
    let (Some(key), Some(function), Some(flags), Some(length), None) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return refused("ERROR", after);
    };
    let Some(length) = data_length(length) else { return refused(BAD_FORMAT, after) };
    let skipped = |request| Parsed::Request { request, consumed: after, skip: length + 2 };
    let Some(InvokeFlags { update, reply }) = letters(flags) else {
        return skipped(refuse(BAD_FLAGS));
    };
    if key.len() > KEY_BYTES_MAX {
        return skipped(if reply { refuse(BAD_FORMAT) } else { Request::Silent });
    }
    if length > limits.value_bytes_max {
        return skipped(Request::TooLarge { key, replaces: false, noreply: !reply });
    }
    let Some(data) = input.get(after..after + length + 2) else {
        return Parsed::Incomplete { searched: 0 };
    };
    let param = data.strip_suffix(b"\r\n");
    let request = Request::Invoke { key, function, param, update, reply };
    Parsed::Request { request, consumed: after + length + 2, skip: 0 }
}

/// `register`.
pub(super) fn register(mut words: Words<'_>) -> Request<'_> {
    let (Some(name), Some(file), Some(export), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return refuse("ERROR");
    };
    let texts = (str::from_utf8(name), str::from_utf8(file), str::from_utf8(export));
    match texts {
        (Ok(name), Ok(file), Ok(export)) => Request::Register { name, file, export },
        _ => refuse(BAD_FORMAT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::parse;
    use alloc::format;

    const LIMITS: Limits = Limits { line_bytes_max: 10_000, value_bytes_max: 1000 };

    fn parsed(input: &[u8]) -> Parsed<'_> {
        parse(input, 0, &LIMITS)
    }

    #[test]
    fn a_parameter_is_given_when_its_last_byte_is_there() {
        let all = b"invoke k f.g AUR 5\r\na\r\nbc\r\n";
        for len in 0..all.len() {
            assert!(matches!(parsed(&all[..len]), Parsed::Incomplete { .. }), "{len}");
        }
        let param = Some(&b"a\r\nbc"[..]);
        let request =
            Request::Invoke { key: b"k", function: b"f.g", param, update: true, reply: true };
        let consumed = all.len();
        assert_eq!(parsed(all), Parsed::Request { request, consumed, skip: 0 });
    }

    #[test]
    fn flags_are_letters() {
        let flags = |flags: &str| match parsed(format!("invoke k f {flags} 0\r\n\r\n").as_bytes()) {
            Parsed::Request { request: Request::Invoke { update, reply, .. }, .. } => {
                Some((update, reply))
            }
            _ => None,
        };
        assert_eq!(flags("-"), Some((false, false)));
        assert_eq!(flags("A"), Some((false, false)));
        assert_eq!(flags("U"), Some((true, false)));
        assert_eq!(flags("RAU"), Some((true, true)));
        assert_eq!(flags("AUX"), None);
        assert_eq!(flags("u"), None);
    }

    #[test]
    fn what_is_wrong_takes_its_data_along() {
        let skipped = |request| Parsed::Request { request, consumed: 17, skip: 5 };
        assert_eq!(parsed(b"invoke k f XX 3\r\nget"), skipped(refuse(BAD_FLAGS)));
        let parsed_long = |flags: &str| {
            let line = format!("invoke {} f {flags} 3\r\n", "k".repeat(251));
            let consumed = line.len();
            match parsed(line.as_bytes()) {
                Parsed::Request { request, consumed: bytes, skip: 5 } if bytes == consumed => {
                    request == refuse(BAD_FORMAT) || request == Request::Silent && flags == "U"
                }
                _ => false,
            }
        };
        assert!(parsed_long("UR") && parsed_long("U"));
        let request = Request::TooLarge { key: b"k", replaces: false, noreply: true };
        let parsed_large = parsed(b"invoke k f U 1001\r\n");
        assert_eq!(parsed_large, Parsed::Request { request, consumed: 19, skip: 1003 });
        // Without a length there is nothing to skip.
        let request = refuse(BAD_FORMAT);
        assert_eq!(
            parsed(b"invoke k f U -1\r\n"),
            Parsed::Request { request, consumed: 17, skip: 0 }
        );
        assert_eq!(
            parsed(b"invoke k f U\r\n"),
            Parsed::Request { request: refuse("ERROR"), consumed: 14, skip: 0 }
        );
    }

    #[test]
    fn data_without_line_end_is_told_from_a_parameter() {
        let Parsed::Request { request: Request::Invoke { param, .. }, .. } =
            parsed(b"invoke k f R 2\r\nabcdef\r\n")
        else {
            panic!()
        };
        assert_eq!(param, None);
    }

    #[test]
    fn a_function_is_registered_by_three_words() {
        let request = Request::Register { name: "f", file: "a/b.wasm", export: "call" };
        let line = b"register f a/b.wasm call\r\n";
        assert_eq!(parsed(line), Parsed::Request { request, consumed: line.len(), skip: 0 });
        for line in ["register f a.wasm\r\n", "register f a.wasm call x\r\n"] {
            let request = refuse("ERROR");
            let consumed = line.len();
            assert_eq!(parsed(line.as_bytes()), Parsed::Request { request, consumed, skip: 0 });
        }
    }
}
