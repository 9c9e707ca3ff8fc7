//! What shards write to one another about their clients' watches.
//!
//! A *feed* is a range that clients of one shard watch, whoever and however many they are. Its number is given out by that
//! shard. A home that is told of a feed sends each change in it once, with the numbers of all of
//! the shard's feeds that it concerns.
//!
//! # Cost
//! A change is its number, those of its feeds, and the bytes that all watches of it are sent: copied twice, and not looked at.

mod codec;

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

/// Changes with their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Missed {
    bytes: Vec<u8>,
}

impl Missed {
    pub(super) fn add(&mut self, number: u64, text: &[u8]) {
        put_u64(&mut self.bytes, number);
        put_bytes(&mut self.bytes, text);
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
    /// What the watches' messages end with.
    pub(super) text: &'a [u8],
}

/// Writes a change into a message.
pub(super) fn write_change(
    number: u64,
    feeds: impl ExactSizeIterator<Item = u32>,
    text: &[u8],
    out: &mut Vec<u8>,
) {
    out.reserve(16 + 4 * feeds.len() + text.len());
    put_u64(out, number);
    put_u32(out, feeds.len());
    feeds.for_each(|feed| put_u32(out, feed as usize));
    put_bytes(out, text);
}

/// Reads what [`write_change`] has written, and leaves what is behind it.
pub(super) fn read_change<'a>(rest: &mut &'a [u8]) -> Option<Change<'a>> {
    let mut bytes = WireReader::of(rest);
    let (number, count) = (bytes.u64()?, bytes.u32()?);
    let (feeds, _) = bytes.cut(4 * count)?.as_chunks::<4>();
    let text = bytes.bytes()?;
    *rest = bytes.rest();
    Some(Change { number, feeds, text })
}

/// Whether bytes are whole changes, one behind the other.
pub(crate) fn are_changes(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        if read_change(&mut bytes).is_none() {
            return false;
        }
    }
    true
}

/// A change as it crosses.
#[cfg(test)]
pub(crate) fn changes_example() -> Vec<u8> {
    let mut bytes = Vec::new();
    write_change(7, [1, 300].into_iter(), b"text", &mut bytes);
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
            let Change { number, feeds, text } = read_change(&mut rest)?;
            let feeds: Vec<u32> = feeds.iter().map(|feed| u32::from_le_bytes(*feed)).collect();
            Some((number, feeds, text))
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
}
