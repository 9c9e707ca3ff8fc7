//! What is behind a key on disk: a checksum, when the key expires, its flags, and its value; and the records
//! that the store keeps about itself.
//!
//! ```text
//! value       check:8  kind:1 [expires:8] [flags:4] value…
//! definition  check:8  order:8 text…
//! state       check:8  position:8 generation:8 number:8 [sequence:8 checksum:8]
//! ```
//!
//! The bits of `kind` say what is there: 1 an expiry, 2 flags that are not 0, and 4 that the value is the head of a stream. Folders of servers that knew no
//! flags have none, nor heads those of servers that did not keep streams.
//! Numbers are little-endian. A checksum covers the key and everything behind the checksum, so that neither
//! a changed byte nor another key's record is taken for the truth.

use crate::outside::LogMark;
use headwater_base::Millis;
use headwater_base::hash::stable_hash;
use headwater_base::source::Attributes;

/// Bytes of a checksum.
const CHECK_BYTES: usize = 8;
/// The bits of a value's kind.
const EXPIRES: u8 = 1;
const FLAGS: u8 = 2;
const STREAM: u8 = 4;
/// The seed of all checksums: part of the format.
const SEED: u64 = 0x6865_6164_7761_7465;

fn check(key: &[u8], rest: &[u8]) -> [u8; CHECK_BYTES] {
    stable_hash(stable_hash(SEED, key), rest).to_le_bytes()
}

/// Writes the checksum of the record that begins at `at`, behind which all is written.
fn seal(key: &[u8], out: &mut [u8]) {
    let check = check(key, &out[CHECK_BYTES..]);
    out[..CHECK_BYTES].copy_from_slice(&check);
}

/// What is behind the checksum, if it holds.
fn open<'r>(key: &[u8], record: &'r [u8]) -> Option<&'r [u8]> {
    let (told, rest) = record.split_first_chunk::<CHECK_BYTES>()?;
    (*told == check(key, rest)).then_some(rest)
}

fn split_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), rest))
}

/// Writes the record of a value behind `out`.
pub(crate) fn write_value(
    key: &[u8],
    parts: &mut dyn Iterator<Item = &[u8]>,
    attributes: Attributes,
    out: &mut Vec<u8>,
) {
    let at = out.len();
    out.extend_from_slice(&[0; CHECK_BYTES]);
    let Attributes { expires, flags, is_stream } = attributes;
    let flagged = if flags == 0 { 0 } else { FLAGS };
    let stream = if is_stream { STREAM } else { 0 };
    out.push(expires.map_or(0, |_| EXPIRES) | flagged | stream);
    if let Some(Millis(expires)) = expires {
        out.extend_from_slice(&expires.to_le_bytes());
    }
    if flags != 0 {
        out.extend_from_slice(&flags.to_le_bytes());
    }
    parts.for_each(|part| out.extend_from_slice(part));
    seal(key, &mut out[at..]);
}

/// The value in a record and what is with it; `None` where the record is not what was written.
pub(crate) fn read_value<'r>(key: &[u8], record: &'r [u8]) -> Option<(&'r [u8], Attributes)> {
    let (&kind, mut rest) = open(key, record)?.split_first()?;
    let mut attributes = Attributes { is_stream: kind & STREAM != 0, ..Attributes::default() };
    if kind & !(EXPIRES | FLAGS | STREAM) != 0 {
        return None;
    }
    if kind & EXPIRES != 0 {
        let (expires, behind) = split_number(rest)?;
        attributes.expires = Some(Millis(expires));
        rest = behind;
    }
    if kind & FLAGS != 0 {
        let (flags, behind) = rest.split_first_chunk::<4>()?;
        attributes.flags = u32::from_le_bytes(*flags);
        rest = behind;
    }
    Some((rest, attributes))
}

/// Writes the record of a definition behind `out`.
pub(crate) fn write_definition(key: &[u8], order: u64, text: &[u8], out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&[0; CHECK_BYTES]);
    out.extend_from_slice(&order.to_le_bytes());
    out.extend_from_slice(text);
    seal(key, &mut out[at..]);
}

/// The order and the text of a definition.
pub(crate) fn read_definition<'r>(key: &[u8], record: &'r [u8]) -> Option<(u64, &'r [u8])> {
    split_number(open(key, record)?)
}

/// What the store knows of itself: written with every batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct State {
    /// The last operation that is in the store.
    pub(crate) position: u64,
    /// Which keyspace the keys are in.
    pub(crate) generation: u64,
    /// The least sequence number that the batch with this record can have.
    pub(crate) number: u64,
    /// Where that ends in the log of which the store is a copy.
    pub(crate) mark: Option<LogMark>,
}

/// The key of the state.
pub(crate) const STATE: &[u8] = b"state";

impl State {
    /// Its record.
    pub(crate) fn write(self) -> Vec<u8> {
        let mut out = vec![0; CHECK_BYTES];
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        if let Some(LogMark { sequence, checksum }) = self.mark {
            out.extend_from_slice(&sequence.to_le_bytes());
            out.extend_from_slice(&checksum.to_le_bytes());
        }
        seal(STATE, &mut out);
        out
    }

    /// The state in a record.
    pub(crate) fn read(record: &[u8]) -> Option<Self> {
        let (position, rest) = split_number(open(STATE, record)?)?;
        let (generation, rest) = split_number(rest)?;
        let (number, rest) = split_number(rest)?;
        let (mark, rest) = match rest {
            [] => (None, rest),
            _ => {
                let (sequence, rest) = split_number(rest)?;
                let (checksum, rest) = split_number(rest)?;
                (Some(LogMark { sequence, checksum }), rest)
            }
        };
        rest.is_empty().then_some(Self { position, generation, number, mark })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        let with = |expires, flags| Attributes { expires, flags, is_stream: false };
        for (value, attributes) in [
            (&b"head"[..], Attributes { is_stream: true, ..with(Some(Millis(7)), 1) }),
            (b"head", Attributes { is_stream: true, ..with(None, 0) }),
            (b"", with(None, 0)),
            (b"x", with(Some(Millis(7)), 0)),
            (b"x", with(Some(Millis(7)), u32::MAX)),
            (&[7; 300], with(None, 1)),
        ] {
            let mut good = b"before".to_vec();
            write_value(b"key", &mut value.chunks(7), attributes, &mut good);
            let good = good.split_off(6);
            assert_eq!(read_value(b"key", &good), Some((value, attributes)));
            assert_eq!(read_value(b"kez", &good), None, "another key's");
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read_value(b"key", &bad), None, "bit {bit}");
            }
            for len in 0..good.len() {
                assert_eq!(read_value(b"key", &good[..len]), None, "{len} bytes are left");
            }
        }
    }

    #[test]
    fn records_without_flags_are_as_they_always_were() {
        let (mut plain, mut timed) = (Vec::new(), Vec::new());
        write_value(b"k", &mut [&b"v"[..]].into_iter(), Attributes::default(), &mut plain);
        assert_eq!(plain[CHECK_BYTES..], *b"\0v");
        let attributes = Attributes { expires: Some(Millis(7)), ..Attributes::default() };
        write_value(b"k", &mut [&b"v"[..]].into_iter(), attributes, &mut timed);
        assert_eq!(timed[CHECK_BYTES..], *b"\x01\x07\0\0\0\0\0\0\0v");
    }

    #[test]
    fn definitions_and_states_come_back() {
        let mut record = Vec::new();
        write_definition(b"join\0t", 5, b"text", &mut record);
        assert_eq!(read_definition(b"join\0t", &record), Some((5, &b"text"[..])));
        assert_eq!(read_definition(b"join\0u", &record), None);
        let marked = LogMark { sequence: 7, checksum: 8 };
        for mark in [None, Some(marked)] {
            let state = State { position: 9, generation: 2, number: 4, mark };
            assert_eq!(State::read(&state.write()), Some(state));
            assert_eq!(State::read(&state.write()[1..]), None);
        }
    }
}
