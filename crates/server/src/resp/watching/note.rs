//! What shards write to one another about their clients' watches.
//!
//! A *feed* is a range that clients of one shard watch, whoever and however many they are. Its number is given out by that
//! shard. A home that is told of a feed sends each change in it once, with the numbers of all of
//! the shard's feeds that it concerns.
//!
//! # Cost
//! A change is its number, those of its feeds, its key and its value: copied twice. What clients read is written where they are.

mod codec;

use core::ops::Range;
use headwater_base::wire::{WireReader, put_bytes, put_u32, put_u64};
use headwater_base::{KeyRange, ShardRefusal};

/// Something about a watch or a feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Note {
    /// A watch begins: follow its range.
    Begin(Asked),
    /// The answer.
    Answer(u32, Result<Begun, ShardRefusal>),
    /// A watch has ended, or has been given up.
    End {
        /// The watch.
        watch: u32,
        /// Its feed.
        feed: u32,
    },
    /// What was told of a feed is not enough any more.
    Resync {
        /// The feed.
        feed: u32,
    },
}

/// A watch that begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    /// Its number at the client's shard.
    pub(super) watch: u32,
    /// Its feed there.
    pub(super) feed: u32,
    /// The keys.
    pub(super) range: KeyRange,
    /// What the client knows already: everything up to this number.
    pub(super) from: Option<Since>,
}

/// What a client that comes back knows of a home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Since {
    /// Everything up to this number.
    Number(u64),
    /// Nothing: its position does not speak of the home.
    Unknown,
}

/// A watch that has begun at a home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Begun {
    /// The number of the last change before it.
    pub(super) number: u64,
    /// The changes that the client has missed; `None`: they are not known.
    pub(super) missed: Option<Missed>,
}

/// What has become of a key that is watched: a typed value, as bytes between shards and in histories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyChange<'a> {
    /// The key.
    pub(super) key: &'a [u8],
    /// What it holds now; `None`: nothing.
    pub(super) value: Option<&'a [u8]>,
}

/// Begins a change of a key; its value goes behind it, if it has one. Gives where the key is.
pub(super) fn begin_key_change(key: &[u8], has_value: bool, out: &mut Vec<u8>) -> Range<usize> {
    put_bytes(out, key);
    let end = out.len();
    out.push(u8::from(has_value));
    end - key.len()..end
}

impl<'a> KeyChange<'a> {
    /// Reads what [`begin_key_change`] has begun, all of it.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut bytes = WireReader::of(bytes);
        let (key, kind) = (bytes.bytes()?, bytes.u8()?);
        let value = match (kind, bytes.rest()) {
            (1, value) => Some(value),
            (0, []) => None,
            _ => return None,
        };
        Some(Self { key, value })
    }
}

/// Changes with their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Missed {
    bytes: Vec<u8>,
}

impl Missed {
    /// The changes that these bytes are, all of them; `None`: they are something else.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = WireReader::of(bytes);
        while !rest.rest().is_empty() {
            rest.u64()?;
            KeyChange::read(rest.bytes()?)?;
        }
        Some(Self { bytes: bytes.to_vec() })
    }

    pub(super) fn add(&mut self, number: u64, change: &[u8]) {
        put_u64(&mut self.bytes, number);
        put_bytes(&mut self.bytes, change);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The changes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut bytes = WireReader::of(&self.bytes);
        core::iter::from_fn(move || Some((bytes.u64()?, bytes.bytes()?)))
    }
}

/// A change as it goes to a shard.
#[derive(Debug)]
pub(super) struct Change<'a> {
    /// The home's number for it.
    pub(super) number: u64,
    /// The receiver's feeds that it concerns.
    pub(super) feeds: &'a [[u8; 4]],
    /// What has changed: a [`KeyChange`].
    pub(super) change: &'a [u8],
}

/// Writes a change into a message.
pub(super) fn write_change(
    number: u64,
    feeds: impl ExactSizeIterator<Item = u32>,
    change: &[u8],
    out: &mut Vec<u8>,
) {
    out.reserve(16 + 4 * feeds.len() + change.len());
    put_u64(out, number);
    put_u32(out, feeds.len());
    feeds.for_each(|feed| put_u32(out, feed as usize));
    put_bytes(out, change);
}

/// Reads what [`write_change`] has written, and leaves what is behind it.
pub(super) fn read_change<'a>(rest: &mut &'a [u8]) -> Option<Change<'a>> {
    let mut bytes = WireReader::of(rest);
    let (number, count) = (bytes.u64()?, bytes.u32()?);
    let (feeds, _) = bytes.cut(4 * count)?.as_chunks::<4>();
    let change = bytes.bytes()?;
    *rest = bytes.rest();
    Some(Change { number, feeds, change })
}

/// Whether bytes are whole changes, one behind the other.
pub(crate) fn are_changes(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let change = read_change(&mut bytes).map(|it| it.change);
        if change.and_then(KeyChange::read).is_none() {
            return false;
        }
    }
    true
}

/// A change of a key to this value.
#[cfg(test)]
pub(super) fn key_change(key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    begin_key_change(key, value.is_some(), &mut bytes);
    bytes.extend_from_slice(value.unwrap_or_default());
    bytes
}

/// A change as it crosses.
#[cfg(test)]
pub(crate) fn changes_example() -> Vec<u8> {
    let mut bytes = Vec::new();
    write_change(7, [1, 300].into_iter(), &key_change(b"a", Some(b"value")), &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        write_change(7, [1, 300].into_iter(), b"one", &mut bytes);
        write_change(8, [u32::MAX].into_iter(), b"", &mut bytes);
        let mut rest = &*bytes;
        let mut read = || {
            let Change { number, feeds, change } = read_change(&mut rest)?;
            let feeds: Vec<u32> = feeds.iter().map(|feed| u32::from_le_bytes(*feed)).collect();
            Some((number, feeds, change))
        };
        assert_eq!(read(), Some((7, vec![1, 300], &b"one"[..])));
        assert_eq!(read(), Some((8, vec![u32::MAX], &b""[..])));
        assert_eq!(read(), None);
        let mut missed = Missed::default();
        missed.add(1, b"a");
        missed.add(5, b"bc");
        let all: Vec<_> = missed.iter().collect();
        assert_eq!(all, [(1, &b"a"[..]), (5, &b"bc"[..])]);
    }

    #[test]
    fn a_change_is_a_key_and_what_it_holds_or_nothing() {
        for value in [None, Some(&b""[..]), Some(b"value")] {
            let bytes = key_change(b"a|b", value);
            assert_eq!(KeyChange::read(&bytes), Some(KeyChange { key: b"a|b", value }));
            let mut missed = Missed::default();
            missed.add(5, &bytes);
            assert_eq!(Missed::read(&missed.bytes).as_ref(), Some(&missed));
            for end in 1..missed.bytes.len() {
                assert_eq!(Missed::read(&missed.bytes[..end]), None, "{end}");
            }
        }
        // Of a client's protocol, without a value that has one, and of neither kind.
        let gone = key_change(b"a", None);
        for bytes in
            [&b"$3\r\nset\r\n$1\r\na\r\n"[..], &[&gone[..], b"v"].concat(), b"\0\0\0\0\x02"]
        {
            assert_eq!(KeyChange::read(bytes), None, "{bytes:?}");
            let mut changes = Vec::new();
            write_change(7, [1].into_iter(), bytes, &mut changes);
            assert!(!are_changes(&changes));
        }
    }
}
