//! Splitting an inline command into arguments, with the quotes and escapes that Redis knows.
//!
//! `"…"` knows `\n \r \t \b \a \xHH` and takes the byte after any other backslash as it is; `'…'` knows
//! `\'` alone. A closing quote must be followed by a space or the end.

use alloc::vec::Vec;
use headwater_command::{ArgVec, Span};

/// Appends the arguments in `line` to `text` and their places to `args`; whether every quote was closed.
pub(super) fn split(line: &[u8], text: &mut Vec<u8>, args: &mut ArgVec) -> bool {
    let mut rest = line;
    loop {
        while let [byte, tail @ ..] = rest {
            if !is_space(*byte) {
                break;
            }
            rest = tail;
        }
        if rest.is_empty() {
            return true;
        }
        let start = text.len();
        match argument(rest, text) {
            Some(tail) => rest = tail,
            None => return false,
        }
        args.push(Span::new(start, text.len() - start));
    }
}

/// Appends one argument to `text`; what follows it, or `None` where a quote is not closed.
fn argument<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Option<&'l [u8]> {
    loop {
        match rest {
            [] => return Some(rest),
            [b'"', tail @ ..] => return after_quote(double_quoted(tail, text)?),
            [b'\'', tail @ ..] => return after_quote(single_quoted(tail, text)?),
            // Redis ends an argument at these, but not at the rarer kinds of space.
            [b' ' | b'\n' | b'\r' | b'\t' | 0, tail @ ..] => return Some(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                rest = tail;
            }
        }
    }
}

fn after_quote(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(|&byte| is_space(byte)).then_some(rest)
}

fn double_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Option<&'l [u8]> {
    loop {
        let (byte, tail) = match rest {
            [] => return None,
            [b'"', tail @ ..] => return Some(tail),
            [b'\\', b'x', high, low, tail @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (nibble(*high) << 4 | nibble(*low), tail)
            }
            [b'\\', escaped, tail @ ..] => (unescape(*escaped), tail),
            [byte, tail @ ..] => (*byte, tail),
        };
        text.push(byte);
        rest = tail;
    }
}

fn single_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Option<&'l [u8]> {
    loop {
        let (byte, tail) = match rest {
            [] => return None,
            [b'\'', tail @ ..] => return Some(tail),
            [b'\\', b'\'', tail @ ..] => (b'\'', tail),
            [byte, tail @ ..] => (*byte, tail),
        };
        text.push(byte);
        rest = tail;
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_all(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (mut text, mut args) = (Vec::new(), ArgVec::new());
        split(line, &mut text, &mut args)
            .then(|| args.args(&text).iter().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn quotes_and_escapes() {
        let split = split_all(br#"  set  "a\x41\n\"\q" 'it\'s \n' x"y" "" "#).unwrap();
        assert_eq!(split, [&b"set"[..], b"aA\n\"q", b"it's \\n", b"xy", b""]);
        assert_eq!(split_all(b"   \t").unwrap(), Vec::<Vec<u8>>::new());
        for line in [&br#"a "b"#[..], b"a 'b", br#""a"b"#, br#""a\"#, br#"x"y"z"#] {
            assert_eq!(split_all(line), None, "{}", line.escape_ascii());
        }
    }
}
