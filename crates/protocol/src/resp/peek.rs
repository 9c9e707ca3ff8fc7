//! Which key a request names first, guessed without parsing it: to fetch what it will touch ahead, where a wrong guess costs little.

/// The second argument of the request that `bytes` begin with, where that is an array of byte strings and the argument is whole.
///
/// # Cost
/// A few comparisons; nothing is remembered, and nothing is checked that the parser will check.
#[inline]
#[must_use]
pub fn peek_key(bytes: &[u8]) -> Option<&[u8]> {
    let (count, rest) = number(bytes.strip_prefix(b"*")?)?;
    if count < 2 {
        return None;
    }
    let (len, rest) = number(rest.strip_prefix(b"$")?)?;
    let rest = rest.get(len..)?.strip_prefix(b"\r\n")?;
    let (len, rest) = number(rest.strip_prefix(b"$")?)?;
    rest.get(..len)
}

/// The number at the start of a line, and what is behind the line.
#[inline]
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0usize;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + usize::from(byte - b'0'),
            b'\r' if at > 0 => return bytes.get(at + 2..).map(|rest| (value, rest)),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_found_where_it_is_plain_to_see() {
        let set = b"*3\r\n$3\r\nSET\r\n$5\r\nk|\r\n1\r\n$1\r\nv\r\n*1\r\n";
        assert_eq!(peek_key(set), Some(&b"k|\r\n1"[..]));
        for end in 0..set.len() {
            let found = peek_key(&set[..end]);
            assert!(found.is_none() || end >= 22, "{end}");
        }
        for none in
            [&b"PING\r\n"[..], b"*1\r\n$4\r\nPING\r\n", b"*2\r\n$x\r\n", b"*2\r\n$99\r\nGET", b""]
        {
            assert_eq!(peek_key(none), None);
        }
        let long = b"*2\r\n$99999999999999999999\r\n";
        assert_eq!(peek_key(long), None);
    }
}
