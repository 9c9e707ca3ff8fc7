//! The operations of one turn, as bytes one behind the other, on their way from the shard to the writer.

use crate::loader::View;
use crate::outside::LogMark;
use crate::record;
use headwater_base::KeyRange;
use headwater_base::source::Attributes;
use std::sync::mpsc::Sender;

/// What an operation does. The numbers are those of the files that turns are written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Put = 0,
    Remove = 1,
    RemoveRange = 2,
    Clear = 3,
    Define = 4,
    Undefine = 5,
    Note = 6,
    Unnote = 7,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        use Kind::{Clear, Define, Note, Put, Remove, RemoveRange, Undefine, Unnote};
        let kinds = [Put, Remove, RemoveRange, Clear, Define, Undefine, Note, Unnote];
        kinds.get(usize::from(number)).copied()
    }
}

/// Bytes of an operation among those of a turn that is written.
pub(crate) const ENTRY_BYTES: usize = 9;

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    /// Bytes of the key, or of the first key of a range.
    key: u32,
    /// Bytes of the record behind it, or of the end of a range.
    record: u32,
}

/// One operation, as the writer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op<'t> {
    /// A key has this record.
    Put(&'t [u8], &'t [u8]),
    /// A key is gone.
    Remove(&'t [u8]),
    /// The keys of a range are gone.
    RemoveRange(&'t [u8], &'t [u8]),
    /// All keys are gone.
    Clear,
    /// A definition has this record.
    Define(&'t [u8], &'t [u8]),
    /// A definition is gone.
    Undefine(&'t [u8]),
    /// A note has this record.
    Note(&'t [u8], &'t [u8]),
    /// A note is gone.
    Unnote(&'t [u8]),
}

/// What an operation of a turn takes of memory beside its bytes.
pub(crate) const ENTRY_MEMORY: usize = size_of::<Entry>();

/// Operations in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// The position of the last one.
    last: u64,
    /// Where it ends in the log that it went to or came from.
    mark: Option<LogMark>,
    /// Who wants to see the store as it is behind it.
    viewer: Option<Sender<Result<View, String>>>,
}

/// An emptied turn keeps its memory up to this size.
const BYTES_KEPT: usize = 256 << 10;

impl Turn {
    /// An empty turn whose operations follow `position`.
    pub(crate) fn after(position: u64) -> Self {
        Self { last: position, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + self.entries.len() * ENTRY_MEMORY
    }

    /// The position of the last operation, or of the one before the first.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Empties it, to hold what follows `position`.
    pub(crate) fn reset(&mut self, position: u64) {
        self.entries.clear();
        self.bytes.clear();
        self.entries.shrink_to(BYTES_KEPT / ENTRY_MEMORY);
        self.bytes.shrink_to(BYTES_KEPT);
        self.last = position;
        self.mark = None;
        self.viewer = None;
    }

    /// One without operations behind `position`, for whose sake a view of the store is taken.
    pub(crate) fn viewed_by(position: u64, viewer: Sender<Result<View, String>>) -> Self {
        Self { viewer: Some(viewer), ..Self::after(position) }
    }

    /// Who wants to see the store as it is behind it.
    pub(crate) fn viewer(&self) -> Option<&Sender<Result<View, String>>> {
        self.viewer.as_ref()
    }

    /// Where it ends in a log.
    pub(crate) fn mark(&self) -> Option<LogMark> {
        self.mark
    }

    pub(crate) fn set_mark(&mut self, mark: LogMark) {
        self.mark = Some(mark);
    }

    fn push(&mut self, kind: Kind, key: usize, at: usize) -> u64 {
        let record = self.bytes.len() - at - key;
        self.entries.push(Entry { kind, key: key as u32, record: record as u32 });
        self.last += 1;
        self.last
    }

    pub(crate) fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        record::write_value(key, parts, attributes, &mut self.bytes);
        self.push(Kind::Put, key.len(), at)
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.push(Kind::Remove, key.len(), at)
    }

    pub(crate) fn remove_range(&mut self, range: &KeyRange) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&range.first);
        self.bytes.extend_from_slice(&range.last);
        self.push(Kind::RemoveRange, range.first.len(), at)
    }

    pub(crate) fn clear(&mut self) -> u64 {
        self.push(Kind::Clear, 0, self.bytes.len())
    }

    pub(crate) fn define(&mut self, key: &[u8], order: u64, text: &[u8]) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        record::write_definition(key, order, text, &mut self.bytes);
        self.push(Kind::Define, key.len(), at)
    }

    pub(crate) fn undefine(&mut self, key: &[u8]) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.push(Kind::Undefine, key.len(), at)
    }

    pub(crate) fn note(&mut self, name: &[u8], text: &[u8]) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let none = Attributes::default();
        record::write_value(name, &mut core::iter::once(text), none, &mut self.bytes);
        self.push(Kind::Note, name.len(), at)
    }

    pub(crate) fn unnote(&mut self, name: &[u8]) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.push(Kind::Unnote, name.len(), at)
    }

    /// Takes out the operations behind `position`.
    pub(crate) fn split_behind(&mut self, position: u64) -> Self {
        let before = self.last - self.entries.len() as u64;
        let at = self.entries.len().min(position.saturating_sub(before) as usize);
        let bytes = |entry: &Entry| entry.key as usize + entry.record as usize;
        let kept = self.entries[..at].iter().map(bytes).sum();
        let behind = Self {
            entries: self.entries.split_off(at),
            bytes: self.bytes.split_off(kept),
            last: self.last,
            mark: None,
            viewer: None,
        };
        self.last = before + at as u64;
        behind
    }

    /// The position before that of the first one.
    pub(crate) fn before(&self) -> u64 {
        self.last - self.entries.len() as u64
    }

    /// Writes what a file has of it behind `out`, but for the bytes that it gives, which come last.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> &[u8] {
        out.reserve(24 + self.entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&self.last.to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        for &Entry { kind, key, record } in &self.entries {
            let mut entry = [kind as u8; ENTRY_BYTES];
            entry[1..5].copy_from_slice(&key.to_le_bytes());
            entry[5..].copy_from_slice(&record.to_le_bytes());
            out.extend_from_slice(&entry);
        }
        &self.bytes
    }

    /// A turn that ends with the operation `last`, from its entries and its bytes; `None` where they do not belong together.
    pub(crate) fn decode(last: u64, entries: &[u8], bytes: &[u8]) -> Option<Self> {
        let (encoded, rest) = entries.as_chunks::<ENTRY_BYTES>();
        let (mut entries, mut left) = (Vec::with_capacity(encoded.len()), bytes.len());
        for &[kind, k0, k1, k2, k3, r0, r1, r2, r3] in encoded {
            let key = u32::from_le_bytes([k0, k1, k2, k3]);
            let record = u32::from_le_bytes([r0, r1, r2, r3]);
            left = left.checked_sub(key as usize)?.checked_sub(record as usize)?;
            entries.push(Entry { kind: Kind::of(kind)?, key, record });
        }
        let fits = rest.is_empty() && left == 0 && last >= entries.len() as u64;
        fits.then(|| Self { entries, bytes: bytes.to_vec(), last, mark: None, viewer: None })
    }

    /// The turn of which [`Self::encode`] has written the first part of `written`, and given the rest.
    pub(crate) fn decode_whole(written: &[u8]) -> Option<Self> {
        let (head, rest) = written.split_first_chunk::<24>()?;
        let number = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
        let (last, entries, bytes) = (number(0)?, number(8)?, number(16)?);
        let entries = usize::try_from(entries).ok()?.checked_mul(ENTRY_BYTES)?;
        let (entries, rest) = rest.split_at_checked(entries)?;
        (rest.len() as u64 == bytes).then(|| Self::decode(last, entries, rest))?
    }

    /// The operations with their positions.
    pub(crate) fn ops(&self) -> impl Iterator<Item = (u64, Op<'_>)> {
        let before = self.before();
        let mut rest = &self.bytes[..];
        self.entries.iter().zip(before + 1..).map(move |(entry, position)| {
            let (key, behind) = rest.split_at(entry.key as usize);
            let (record, behind) = behind.split_at(entry.record as usize);
            rest = behind;
            let op = match entry.kind {
                Kind::Put => Op::Put(key, record),
                Kind::Remove => Op::Remove(key),
                Kind::RemoveRange => Op::RemoveRange(key, record),
                Kind::Clear => Op::Clear,
                Kind::Define => Op::Define(key, record),
                Kind::Undefine => Op::Undefine(key),
                Kind::Note => Op::Note(key, record),
                Kind::Unnote => Op::Unnote(key),
            };
            (position, op)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_out_as_they_went_in() {
        let mut turn = Turn::after(7);
        let none = Attributes::default();
        assert_eq!(turn.put(b"a", &mut [&b"x"[..], b"y"].into_iter(), none), 8);
        assert_eq!(turn.remove(b"bc"), 9);
        assert_eq!(turn.clear(), 10);
        assert_eq!(turn.remove_range(&KeyRange::new(b"k", b"")), 11);
        assert_eq!(turn.define(b"join\0t", 3, b"text"), 12);
        assert_eq!(turn.undefine(b"join\0u"), 13);
        let ops: Vec<(u64, Op<'_>)> = turn.ops().collect();
        let (Op::Put(key, value), Op::Define(name, text)) = (ops[0].1, ops[4].1) else {
            panic!("{ops:?}")
        };
        assert_eq!(record::read_value(key, value), Some((&b"xy"[..], none)));
        assert_eq!(record::read_definition(name, text), Some((3, &b"text"[..])));
        let rest = [Op::Remove(b"bc"), Op::Clear, Op::RemoveRange(b"k", b"")];
        assert_eq!([ops[1].1, ops[2].1, ops[3].1], rest);
        assert_eq!(ops[5], (13, Op::Undefine(b"join\0u")));
        for at in [0, 7, 8, 10, 12, 13, 20] {
            let mut before = turn.clone();
            let behind = before.split_behind(at);
            assert_eq!(before.last(), at.clamp(7, 13));
            assert_eq!((before.ops().count() as u64, behind.last()), (at.clamp(7, 13) - 7, 13));
            let all: Vec<(u64, Op<'_>)> = before.ops().chain(behind.ops()).collect();
            assert_eq!(all, ops);
        }
        let mut written = Vec::new();
        let bytes = turn.encode(&mut written);
        let entries = &written[24..];
        let read = Turn::decode(13, entries, bytes).unwrap();
        assert!(read.ops().eq(turn.ops()));
        for cut in 0..bytes.len() {
            assert!(Turn::decode(13, entries, &bytes[..cut]).is_none());
        }
        assert!(Turn::decode(13, &entries[1..], bytes).is_none());
        turn.reset(13);
        assert_eq!((turn.is_empty(), turn.bytes(), turn.last()), (true, 0, 13));
    }
}
