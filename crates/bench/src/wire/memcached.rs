//! memcached's text protocol: storage commands, multi-gets, and their replies.

use super::bad;
use super::connection::Input;
use super::key::number_of;
use std::io::{self, Read};

/// Writes a storage command (`set`, `append`) with its data.
#[inline]
pub fn store(out: &mut Vec<u8>, verb: &[u8], key: &[u8], data: &[u8]) {
    for part in [verb, b" ", key, b" 0 0 "] {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&super::Key::new(b"").decimal(data.len() as u64));
    for part in [b"\r\n", data, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Writes a `get` of these keys.
#[inline]
pub fn get(out: &mut Vec<u8>, keys: &[&[u8]]) {
    out.extend_from_slice(b"get");
    for key in keys {
        out.push(b' ');
        out.extend_from_slice(key);
    }
    out.extend_from_slice(b"\r\n");
}

fn refused(line: &[u8]) -> io::Error {
    bad(format!("the server answers: {}", String::from_utf8_lossy(line)))
}

/// Reads the answer to a storage command, which must be `STORED`.
///
/// # Errors
/// The server answers something else, or the connection fails.
#[inline]
pub fn stored<R: Read>(input: &mut Input<R>) -> io::Result<()> {
    match input.line()? {
        b"STORED" => Ok(()),
        line => Err(refused(line)),
    }
}

/// Reads the next value of a `get`'s answer; `None` at its `END`.
///
/// # Errors
/// The server answers something else, or the connection fails.
#[inline]
pub fn value<R: Read>(input: &mut Input<R>) -> io::Result<Option<&[u8]>> {
    let line = input.line()?;
    if line == b"END" {
        return Ok(None);
    }
    let length = line
        .strip_prefix(b"VALUE ")
        .and_then(|rest| rest.rsplit(|&byte| byte == b' ').next())
        .and_then(number_of);
    match length {
        Some(length) => input.data(length as usize).map(Some),
        None => Err(refused(line)),
    }
}

/// Reads the answer to a `get` of one key.
///
/// # Errors
/// As for [`value`].
#[inline]
pub fn one<R: Read, T>(
    input: &mut Input<R>,
    mut look: impl FnMut(Option<&[u8]>) -> io::Result<T>,
) -> io::Result<T> {
    let Some(found) = value(input)? else {
        return look(None);
    };
    let result = look(Some(found))?;
    end(input)?;
    Ok(result)
}

/// Reads the `END` of a `get`'s answer.
///
/// # Errors
/// Another value comes, or the connection fails.
#[inline]
pub fn end<R: Read>(input: &mut Input<R>) -> io::Result<()> {
    match input.line()? {
        b"END" => Ok(()),
        line => Err(refused(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_the_protocol_says() {
        let mut out = Vec::new();
        store(&mut out, b"set", b"k", b"hello");
        get(&mut out, &[b"a", b"b"]);
        assert_eq!(out, b"set k 0 0 5\r\nhello\r\nget a b\r\n");
    }

    #[test]
    fn values_are_read_until_the_end() {
        let mut input = Input::new(&b"VALUE a 0 3\r\nx\r\n\r\nVALUE b 0 0\r\n\r\nEND\r\n"[..]);
        assert_eq!(value(&mut input).unwrap(), Some(&b"x\r\n"[..]));
        assert_eq!(value(&mut input).unwrap(), Some(&b""[..]));
        assert_eq!(value(&mut input).unwrap(), None);
    }

    #[test]
    fn a_refusal_is_an_error() {
        for text in [&b"NOT_STORED\r\n"[..], b"SERVER_ERROR out of memory\r\n"] {
            assert!(stored(&mut Input::new(text)).is_err());
            assert!(value(&mut Input::new(text)).is_err());
        }
    }
}
