//! How an embedded store keeps streams: which keys of it hold their bytes.
//!
//! A stream's own key holds its *head*: where it starts and ends, and how many records its last block has. Its bytes are values of further keys, *records*, which only
//! the store has: no client can write or read a key that begins as theirs do. A record's key names the stream's and the offset of its first byte:
//!
//! ```text
//! \0stream|  length of the key:4  key  offset:8      numbers are big-endian, so that records lie in the order of their offsets
//! ```
//!
//! No record goes over an offset that is a multiple of [`STREAM_BLOCK`]. So whoever wants the bytes from some offset on finds the first one behind the
//! last such multiple before it.

use crate::KeyRange;
use alloc::vec::Vec;

/// What the keys of records begin with.
pub const STREAM_RECORDS: &[u8] = b"\0stream|";

/// Where records end, in bytes: at the multiples of it.
pub const STREAM_BLOCK: u64 = 256 << 10;

/// What a stream's own key holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamHead {
    /// The first offset that there is.
    pub start: u64,
    /// The offset behind the last byte.
    pub end: u64,
    /// How many records there may be from the last multiple of [`STREAM_BLOCK`] before the end on.
    pub records: u32,
}

/// Whether a key is that of a record of some stream's bytes.
#[must_use]
pub fn is_stream_record(key: &[u8]) -> bool {
    key.starts_with(STREAM_RECORDS)
}

/// What the keys of all records of the stream under `key` begin with.
fn prefix(key: &[u8]) -> Vec<u8> {
    [STREAM_RECORDS, &(key.len() as u32).to_be_bytes(), key].concat()
}

/// The key of the record of the stream under `key` that begins at `offset`.
#[must_use]
pub fn stream_record(key: &[u8], offset: u64) -> Vec<u8> {
    let mut name = prefix(key);
    name.extend_from_slice(&offset.to_be_bytes());
    name
}

/// The records of the stream under `key` that begin in `[from, to)`; without `to`, at `from` or behind it.
#[must_use]
pub fn stream_records(key: &[u8], from: u64, to: Option<u64>) -> KeyRange {
    let first = stream_record(key, from);
    match to {
        Some(to) => KeyRange { first, last: stream_record(key, to) },
        None => KeyRange { first, last: crate::prefix_end(&prefix(key)) },
    }
}

/// The offset at which the bytes of a record begin, by its key.
#[must_use]
pub fn stream_record_offset(record: &[u8]) -> Option<u64> {
    record.last_chunk().map(|offset| u64::from_be_bytes(*offset))
}

/// Where the block begins in which an offset lies.
#[must_use]
pub fn stream_block(offset: u64) -> u64 {
    offset - offset % STREAM_BLOCK
}

impl StreamHead {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; 20] {
        let mut head = [0; 20];
        head[..8].copy_from_slice(&self.start.to_be_bytes());
        head[8..16].copy_from_slice(&self.end.to_be_bytes());
        head[16..].copy_from_slice(&self.records.to_be_bytes());
        head
    }

    /// The head of these bytes; `None`: they are none.
    #[must_use]
    pub fn decode(head: &[u8]) -> Option<Self> {
        let (start, rest) = head.split_first_chunk()?;
        let (end, records) = rest.split_first_chunk()?;
        let (start, end) = (u64::from_be_bytes(*start), u64::from_be_bytes(*end));
        let records = u32::from_be_bytes(records.try_into().ok()?);
        (start <= end).then_some(Self { start, end, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_lie_in_the_order_of_their_offsets_and_apart_from_other_streams() {
        let keys: [&[u8]; 5] = [b"", b"a", b"a\0", b"aa", b"\xff\xff"];
        for key in keys {
            let all = stream_records(key, 0, None);
            let some = stream_records(key, STREAM_BLOCK, Some(2 * STREAM_BLOCK));
            for offset in [0, 1, 255, 256, STREAM_BLOCK, 2 * STREAM_BLOCK, u64::MAX] {
                let record = stream_record(key, offset);
                assert!(is_stream_record(&record) && all.contains(&record));
                assert_eq!(stream_record_offset(&record), Some(offset));
                assert_eq!(some.contains(&record), offset == STREAM_BLOCK);
                for other in keys.into_iter().filter(|&other| other != key) {
                    assert!(!stream_records(other, 0, None).contains(&record));
                }
            }
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written_or_not_at_all() {
        let head = StreamHead { start: 3, end: 1 << 40, records: 5 };
        assert_eq!(StreamHead::decode(&head.encode()), Some(head));
        assert_eq!(StreamHead::decode(&StreamHead { start: 4, end: 3, records: 0 }.encode()), None);
        for bad in [&b""[..], b"12345678", &[0; 19], &[0; 21]] {
            assert_eq!(StreamHead::decode(bad), None);
        }
    }
}
