//! Replies seen from outside: where one ends, and what it is made of.
//!
//! A server that passes on what another one answers, or puts several answers together, needs no
//! more of them than that.
//!
//! # Cost
//! [`ReplyCutter::cut`] looks at each header once, whatever pieces the bytes come in; the
//! bytes of strings are skipped.

use alloc::vec::Vec;

/// Finds the end of a reply whose bytes come piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct ReplyCutter {
    /// What was looked at.
    at: usize,
    /// Parts that are still to come.
    left: u64,
}

impl Default for ReplyCutter {
    fn default() -> Self {
        Self { at: 0, left: 1 }
    }
}

impl ReplyCutter {
    /// The length of the first reply in `bytes`, if all of it is there; the next one is
    /// looked for afterwards. Each call must be given the bytes of the one before, and perhaps more.
    #[inline]
    pub fn cut(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.left > 0 {
            let (header, parts) = header(bytes.get(self.at..)?)?;
            match parts {
                Parts::String(len) => {
                    let end = self.at + header + len;
                    if end > bytes.len() {
                        return None;
                    }
                    self.at = end;
                    self.left -= 1;
                }
                Parts::Elements(count) => {
                    self.at += header;
                    self.left = self.left - 1 + count;
                }
            }
        }
        let end = self.at;
        *self = Self::default();
        Some(end)
    }
}

/// What follows a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Parts {
    /// So many bytes, the end of the line included.
    String(usize),
    /// So many replies.
    Elements(u64),
}

/// The length of the header line that `bytes` begin with, and what follows it.
#[inline]
fn header(bytes: &[u8]) -> Option<(usize, Parts)> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let count = || number(&bytes[1..end]);
    let parts = match bytes[0] {
        b'$' | b'!' | b'=' => match count() {
            Some(len) if len >= 0 => Parts::String(len as usize + 2),
            _ => Parts::Elements(0),
        },
        b'*' | b'~' | b'>' => Parts::Elements(count().unwrap_or(0).max(0) as u64),
        b'%' => Parts::Elements(2 * count().unwrap_or(0).max(0) as u64),
        // Attributes belong to the reply behind them.
        b'|' => Parts::Elements(2 * count().unwrap_or(0).max(0) as u64 + 1),
        _ => Parts::Elements(0),
    };
    Some((end + 1, parts))
}

/// The number in a header, before the end of its line.
fn number(text: &[u8]) -> Option<i64> {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    headwater_command::number::parse_i64(text)
}

/// Whether a reply is an error.
#[must_use]
pub fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

/// The number that a reply is.
#[must_use]
pub fn integer(reply: &[u8]) -> Option<i64> {
    let line = reply.strip_prefix(b":")?;
    number(line.strip_suffix(b"\n")?)
}

/// The text that a reply is; `None` where it is none, or nothing.
#[must_use]
pub fn text(reply: &[u8]) -> Option<&[u8]> {
    match reply.first()? {
        b'$' | b'=' => {
            let (at, Parts::String(len)) = header(reply)? else { return None };
            let text = reply.get(at..at + len - 2)?;
            // A text with its kind: `txt:`.
            Some(if reply[0] == b'=' { text.get(4..)? } else { text })
        }
        b'+' => reply[1..].strip_suffix(b"\r\n"),
        _ => None,
    }
}

/// The replies that a whole reply is made of, if it is an array, a set or a map (whose keys and
/// values take turns).
#[must_use]
pub fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    if !matches!(reply.first()?, b'*' | b'~' | b'%' | b'>') {
        return None;
    }
    let (mut at, Parts::Elements(count)) = header(reply)? else { return None };
    let mut elements = Vec::with_capacity(count.min(1 << 16) as usize);
    for _ in 0..count {
        let len = ReplyCutter::default().cut(&reply[at..])?;
        elements.push(&reply[at..at + len]);
        at += len;
    }
    Some(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-17\r\n",
        b"$5\r\na\r\nbc\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        b"%1\r\n+a\r\n*2\r\n_\r\n,1.5\r\n",
        b"~1\r\n#t\r\n",
        b"=6\r\ntxt:ab\r\n",
        b"!3\r\nno\n\r\n",
        b"|1\r\n+ttl\r\n:1\r\n$1\r\nz\r\n",
        b">2\r\n+a\r\n+b\r\n",
    ];

    #[test]
    fn a_reply_ends_where_it_ends_whatever_pieces_it_comes_in() {
        let all = REPLIES.concat();
        for step in 1..9 {
            let (mut cutter, mut begin, mut seen, mut found) = (ReplyCutter::default(), 0, 0, 0);
            while begin < all.len() {
                seen = (seen + step).min(all.len());
                while let Some(len) = cutter.cut(&all[begin..seen]) {
                    assert_eq!(&all[begin..begin + len], REPLIES[found]);
                    begin += len;
                    found += 1;
                    if begin == seen {
                        break;
                    }
                }
            }
            assert_eq!(found, REPLIES.len());
        }
    }

    #[test]
    fn replies_tell_what_they_are() {
        assert_eq!(integer(b":42\r\n"), Some(42));
        assert_eq!(integer(b"+42\r\n"), None);
        assert_eq!(text(b"$2\r\nab\r\n"), Some(&b"ab"[..]));
        assert_eq!(text(b"=6\r\ntxt:ab\r\n"), Some(&b"ab"[..]));
        assert_eq!(text(b"+OK\r\n"), Some(&b"OK"[..]));
        assert_eq!(text(b"$-1\r\n"), None);
        assert!(is_error(b"-ERR x\r\n") && is_error(b"!1\r\nx\r\n") && !is_error(b":1\r\n"));
        let map = elements(b"%1\r\n+a\r\n*2\r\n_\r\n,1.5\r\n").unwrap();
        assert_eq!(map, [&b"+a\r\n"[..], b"*2\r\n_\r\n,1.5\r\n"]);
        assert!(elements(b"+OK\r\n").is_none());
    }
}
