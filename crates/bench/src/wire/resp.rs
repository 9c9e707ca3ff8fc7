//! RESP: commands written into a buffer, replies walked in place.

use super::bad;
use super::connection::{Input, Loader};
use std::io::{self, Read};

/// Pairs per `MSET` while loading.
const PAIRS: usize = 100;

/// Writes `<prefix><number>\r\n`.
#[inline]
fn header(out: &mut Vec<u8>, prefix: u8, number: usize) {
    out.push(prefix);
    if number < 10 {
        out.push(b'0' + number as u8);
    } else if number < 100 {
        out.extend_from_slice(&[b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]);
    } else {
        out.extend_from_slice(number.to_string().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Begins a command of `count` arguments, its name included.
#[inline]
pub fn begin(out: &mut Vec<u8>, count: usize) {
    header(out, b'*', count);
}

/// Writes one argument.
#[inline]
pub fn argument(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes a whole command.
#[inline]
pub fn command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    begin(out, arguments.len());
    for bytes in arguments {
        argument(out, bytes);
    }
}

/// The head of a reply: its kind and its number (a length, a count or the value).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// A string of so many bytes follows.
    Bulk(usize),
    /// So many replies follow.
    Many(usize),
    /// Nothing: a missing key.
    Null,
    /// A number.
    Integer(i64),
    /// A word such as `OK`, or another scalar that is a line.
    Line,
}

/// Reads the first line of a reply. An error reply is an error.
///
/// # Errors
/// The server answers an error or no RESP, or the connection fails.
#[inline]
pub fn head<R: Read>(input: &mut Input<R>) -> io::Result<Head> {
    let line = input.line()?;
    let Some((&kind, rest)) = line.split_first() else {
        return Err(bad("an empty line where a reply should start"));
    };
    let refused = || bad(format!("not a RESP reply: {}", String::from_utf8_lossy(line)));
    Ok(match kind {
        b'$' | b'*' | b':' | b'%' | b'~' | b'>' | b'=' => {
            let (negative, digits) = match rest.split_first() {
                Some((b'-', digits)) => (true, digits),
                _ => (false, rest),
            };
            let number = super::key::number_of(digits).ok_or_else(refused)?;
            match (kind, negative) {
                (b':', false) => Head::Integer(number as i64),
                (b':', true) => Head::Integer(-(number as i64)),
                (_, true) => Head::Null,
                (b'$' | b'=', false) => Head::Bulk(number as usize),
                (b'%', false) => Head::Many(2 * number as usize),
                (_, false) => Head::Many(number as usize),
            }
        }
        b'_' => Head::Null,
        b'+' | b'#' | b',' | b'(' => Head::Line,
        b'-' => {
            return Err(bad(format!("the server answers: {}", String::from_utf8_lossy(rest))));
        }
        _ => return Err(refused()),
    })
}

/// Reads a string, or `None` for a missing one.
///
/// # Errors
/// As for [`head`]; or the reply is none.
#[inline]
pub fn bulk<R: Read>(input: &mut Input<R>) -> io::Result<Option<&[u8]>> {
    match head(input)? {
        Head::Bulk(length) => input.data(length).map(Some),
        Head::Null => Ok(None),
        other => Err(bad(format!("a string was expected, the server sent {other:?}"))),
    }
}

/// Reads a string that must be there.
///
/// # Errors
/// As for [`bulk`]; or it is missing.
#[inline]
pub fn string<R: Read>(input: &mut Input<R>) -> io::Result<&[u8]> {
    bulk(input)?.ok_or_else(|| bad("a string was expected, the server sent a null"))
}

/// Reads the count of an array (of twice as many strings for a map).
///
/// # Errors
/// As for [`head`]; or the reply is none.
#[inline]
pub fn array<R: Read>(input: &mut Input<R>) -> io::Result<usize> {
    match head(input)? {
        Head::Many(count) => Ok(count),
        Head::Null => Ok(0),
        other => Err(bad(format!("an array was expected, the server sent {other:?}"))),
    }
}

/// Reads an integer.
///
/// # Errors
/// As for [`head`]; or the reply is none.
#[inline]
pub fn integer<R: Read>(input: &mut Input<R>) -> io::Result<i64> {
    match head(input)? {
        Head::Integer(number) => Ok(number),
        other => Err(bad(format!("a number was expected, the server sent {other:?}"))),
    }
}

/// Reads the reply to a write: whether it was done. A cache may refuse what it has no room for.
///
/// # Errors
/// The connection fails.
#[inline]
pub fn done<R: Read>(input: &mut Input<R>) -> io::Result<bool> {
    Ok(!input.line()?.starts_with(b"-"))
}

/// Reads one whole reply, however nested, and drops it.
///
/// # Errors
/// As for [`head`], for any part of it.
#[inline]
pub fn skip<R: Read>(input: &mut Input<R>) -> io::Result<()> {
    let mut left = 1usize;
    while left > 0 {
        left -= 1;
        match head(input)? {
            Head::Bulk(length) => {
                input.data(length)?;
            }
            Head::Many(count) => left += count,
            Head::Null | Head::Integer(_) | Head::Line => {}
        }
    }
    Ok(())
}

/// Sets many keys with few `MSET`s.
///
/// # Errors
/// The connection fails or the server refuses.
pub fn set_all<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    loader: &mut Loader<'_>,
    pairs: impl IntoIterator<Item = (K, V)>,
) -> anyhow::Result<()> {
    let mut chunk = Vec::with_capacity(PAIRS);
    let mut send = |chunk: &mut Vec<(K, V)>| {
        if chunk.is_empty() {
            return Ok(());
        }
        let out = &mut loader.connection.out;
        begin(out, 1 + 2 * chunk.len());
        argument(out, b"MSET");
        for (key, value) in chunk.drain(..) {
            argument(out, key.as_ref());
            argument(out, value.as_ref());
        }
        loader.sent(1)
    };
    for pair in pairs {
        chunk.push(pair);
        if chunk.len() == PAIRS {
            send(&mut chunk)?;
        }
    }
    send(&mut chunk)
}

/// Sets many keys, each by itself: they may be of several nodes.
///
/// # Errors
/// The connection fails or the server refuses.
pub fn set_each<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    loader: &mut Loader<'_>,
    pairs: impl IntoIterator<Item = (K, V)>,
) -> anyhow::Result<()> {
    for (key, value) in pairs {
        command(&mut loader.connection.out, &[b"SET", key.as_ref(), value.as_ref()]);
        loader.sent(1)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_the_protocol_says() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"k", &[b'v'; 120]]);
        let expected = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$120\r\n{}\r\n", "v".repeat(120));
        assert_eq!(out, expected.as_bytes());
    }

    #[test]
    fn any_reply_is_skipped_whole() {
        let replies: [&[u8]; 10] = [
            b"+OK\r\n",
            b":-12\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$7\r\na\r\nb\r\nc\r\n",
            b"*0\r\n",
            b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n$0\r\n\r\n_\r\n",
            b"%1\r\n$1\r\nk\r\n$1\r\nv\r\n",
            b"#t\r\n",
            b",1.5\r\n",
        ];
        for reply in replies {
            let text = [reply, b":77\r\n"].concat();
            let mut input = Input::new(&text[..]);
            skip(&mut input).unwrap();
            assert_eq!(integer(&mut input).unwrap(), 77, "{}", String::from_utf8_lossy(reply));
        }
    }

    #[test]
    fn an_error_reply_is_an_error_wherever_it_stands() {
        let mut input = Input::new(&b"-ERR no\r\n"[..]);
        assert_eq!(skip(&mut input).unwrap_err().to_string(), "the server answers: ERR no");
        let mut input = Input::new(&b"*2\r\n:1\r\n-JOINED x\r\n"[..]);
        assert_eq!(skip(&mut input).unwrap_err().to_string(), "the server answers: JOINED x");
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for text in [&b"hello\r\n"[..], b"\r\n", b"$x\r\n", b"*\r\n", b"$3\r\nabcd\r\n"] {
            let mut input = Input::new(text);
            assert!(skip(&mut input).is_err(), "{}", String::from_utf8_lossy(text));
        }
    }
}
