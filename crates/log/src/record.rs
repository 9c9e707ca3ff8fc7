//! One message of a log, as bytes.
//!
//! ```text
//! message      magic:4 format:2 kind:1 compressed:1 checksum:8 | log:8 epoch:8 number:8 before:8 schema:8 length:4 stored
//! kind         0 claim   1 data, or the last part of it   2 part of what the next messages go on with
//! compressed   0 the payload is what is stored   1 it is compressed, from format 2 on: stored is its length:4 and an LZ4 block
//! ```
//!
//! Numbers are little-endian; `length` is that of what is stored. The checksum covers all other bytes. `log` says for which log the message was written, and `before`
//! is the checksum of the message that it follows, 0 in the first of a log. What begins with another format is not looked at
//! further: a later one may have everything elsewhere but magic and format.

use crate::compression::{compress, decompress};
use crate::formats::FormatRange;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::hash::stable_hash;

/// Bytes of a message before its payload.
pub const HEADER_BYTES: usize = 16 + 5 * 8 + 4;
/// What each message begins with.
const MAGIC: [u8; 4] = *b"HWLR";
/// The formats that this program reads; the newest is written where all others read it ([`format_to_write`](crate::format_to_write)). What a record's payload is made of belongs to
/// its format: payloads that programs before could not read need a newer one.
pub const RECORD_FORMATS: FormatRange = FormatRange { oldest: 1, newest: COMPRESSED_SINCE };
/// Most bytes that the parts of one turn come to. Who appends more has everybody who reads it stop.
pub const TURN_BYTES_MAX: usize = 1 << 30;
/// The first format in which payloads may be compressed.
const COMPRESSED_SINCE: u16 = 2;
/// The seeds of checksums and of names: part of the format.
const CHECKSUM_SEED: u64 = 0x6c6f_6720_7265_6331;
const NAME_SEED: u64 = 0x6c6f_6720_6e61_6d65;

/// A time of ownership: greater than all before it, in the bucket and in the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Epoch(pub u64);

/// What messages say to be of one log: a number that stands for its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogId(pub u64);

impl LogId {
    /// That of the stream of this name.
    #[must_use]
    pub fn of(stream: &str) -> Self {
        Self(stable_hash(NAME_SEED, stream.as_bytes()))
    }
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// The beginning of an epoch; its payload says who claims.
    Claim,
    /// The data of a turn, or the last part of it, which makes the parts before it true.
    Last,
    /// A part of a turn's data that the next message goes on with.
    Part,
}

/// What a message says besides its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Its format.
    pub format: u16,
    /// What it is.
    pub kind: RecordKind,
    /// Its owner's epoch.
    pub epoch: Epoch,
    /// Its number in the epoch; the claim has 0, or the place of an acknowledged record before which the log was found to end.
    pub number: u64,
    /// The checksum of the message that it follows.
    pub before: u64,
    /// The version of the schema that its writes were made under.
    pub schema: u64,
}

/// A message that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogMessage<'a> {
    /// What it says besides its payload.
    pub header: RecordHeader,
    /// Its own checksum, which the next one names.
    pub checksum: u64,
    /// What it carries.
    pub payload: Cow<'a, [u8]>,
}

/// Why bytes are no message of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadRecord {
    /// They do not begin as a message does.
    Unknown,
    /// Their format is not one that is read.
    Format {
        /// Their format.
        format: u16,
        /// Those that are read.
        reads: FormatRange,
    },
    /// They have another length than they say.
    Length,
    /// Their checksum is wrong.
    Checksum,
    /// What they carry is compressed, and cannot be had again.
    Compressed,
    /// They were written for another log.
    Foreign,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("it is no record of Headwater"),
            Self::Format { format, reads } => {
                write!(f, "it has format {format}, and this version of Headwater reads {reads}")
            }
            Self::Length => f.write_str("it is cut off, or too long"),
            Self::Checksum => f.write_str("its checksum is wrong"),
            Self::Compressed => f.write_str("it is compressed, and cannot be decompressed"),
            Self::Foreign => f.write_str("it was written for another stream"),
        }
    }
}

impl RecordHeader {
    /// The message with this payload, and its checksum. The payload is compressed where the format has that and the message becomes shorter for it by an eighth.
    ///
    /// # Panics
    /// The payload has 4 GiB or more.
    #[must_use]
    pub fn encode(&self, log: LogId, payload: &[u8]) -> (Vec<u8>, u64) {
        let compressed = (self.format >= COMPRESSED_SINCE).then(|| compress(payload)).flatten();
        let stored = compressed.as_deref().unwrap_or(payload);
        let length = u32::try_from(stored.len()).expect("payloads are cut into parts before");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + stored.len());
        let kind = match self.kind {
            RecordKind::Claim => 0,
            RecordKind::Last => 1,
            RecordKind::Part => 2,
        };
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.format.to_le_bytes());
        bytes.extend_from_slice(&[kind, u8::from(compressed.is_some())]);
        bytes.extend_from_slice(&[0; 8]);
        for number in [log.0, self.epoch.0, self.number, self.before, self.schema] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(stored);
        let checksum = checksum_of(&bytes);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }
}

/// The number at a place, which must be there.
fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The checksum of a message's bytes but the eight in which it is.
fn checksum_of(bytes: &[u8]) -> u64 {
    stable_hash(CHECKSUM_SEED ^ stable_hash(CHECKSUM_SEED, &bytes[..8]), &bytes[16..])
}

impl<'a> LogMessage<'a> {
    /// Reads a message of `log` in one of these formats.
    ///
    /// # Errors
    /// The bytes are no such message.
    pub fn decode(log: LogId, reads: FormatRange, bytes: &'a [u8]) -> Result<Self, BadRecord> {
        if bytes.len() < 6 || bytes[..4] != MAGIC {
            return Err(BadRecord::Unknown);
        }
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        if !reads.contains(format) {
            return Err(BadRecord::Format { format, reads });
        }
        if bytes.len() < HEADER_BYTES {
            return Err(BadRecord::Length);
        }
        let (header, stored) = bytes.split_at(HEADER_BYTES);
        let length = &header[HEADER_BYTES - 4..];
        if stored.len() as u64 != u64::from(u32::from_le_bytes(length.try_into().expect("4"))) {
            return Err(BadRecord::Length);
        }
        let checksum = number(header, 8);
        if checksum != checksum_of(bytes) {
            return Err(BadRecord::Checksum);
        }
        let kind = match header[6] {
            0 => RecordKind::Claim,
            1 => RecordKind::Last,
            2 => RecordKind::Part,
            _ => return Err(BadRecord::Unknown),
        };
        if number(header, 16) != log.0 {
            return Err(BadRecord::Foreign);
        }
        let payload = match header[7] {
            0 => Cow::Borrowed(stored),
            1 if format >= COMPRESSED_SINCE => {
                Cow::Owned(decompress(stored, TURN_BYTES_MAX).ok_or(BadRecord::Compressed)?)
            }
            _ => return Err(BadRecord::Unknown),
        };
        let header = RecordHeader {
            format,
            kind,
            epoch: Epoch(number(header, 24)),
            number: number(header, 32),
            before: number(header, 40),
            schema: number(header, 48),
        };
        Ok(Self { header, checksum, payload })
    }
}
