//! What a key of the bucket says, as bytes: what all values begin with, and fields behind it.
//!
//! ```text
//! value     magic:4 format:2 state:2 checksum:8 | fields
//! ```
//!
//! Numbers are little-endian. Bytes behind the fields that a program knows are passed over: a later one may append fields without another format. One
//! that rewrites a value leaves out what it does not know.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::hash::stable_hash;

/// The one format that is written and read, of each kind of value.
const FORMAT: u16 = 1;
/// Bytes before the fields.
const HEAD_BYTES: usize = 16;

/// Why the value of a key of the bucket cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadValue {
    /// The value is damaged, or was written by somebody else.
    Damaged,
    /// The value's format, which is not one that this version reads.
    Format(u16),
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("it is damaged, or was not written by Headwater"),
            Self::Format(format) => write!(
                f,
                "it has format {format}, and this version of Headwater reads format {FORMAT} alone"
            ),
        }
    }
}

/// A kind of value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueKind {
    pub(crate) magic: [u8; 4],
    /// The seed of its checksum.
    pub(crate) seed: u64,
    /// Whether the checksum covers magic, format and state as well; of the other kinds the state is always zero.
    pub(crate) has_state: bool,
}

impl ValueKind {
    /// A value with this state, whose fields `write` appends.
    pub(crate) fn encode(&self, state: [u8; 2], write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.magic);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&state);
        bytes.extend_from_slice(&[0; 8]);
        write(&mut bytes);
        let checksum = self.checksum(&bytes);
        bytes[8..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// What `read` makes of the state and the fields of a value; it gives `None` where they make no sense.
    ///
    /// # Errors
    /// They make none, or the bytes are no value of this kind.
    pub(crate) fn decode<T>(
        &self,
        bytes: &[u8],
        read: impl FnOnce([u8; 2], &mut &[u8]) -> Option<T>,
    ) -> Result<T, BadValue> {
        if bytes.len() < 6 || bytes[..4] != self.magic {
            return Err(BadValue::Damaged);
        }
        // A later format may have everything elsewhere but magic and format.
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        if format != FORMAT {
            return Err(BadValue::Format(format));
        }
        self.read(bytes, read).ok_or(BadValue::Damaged)
    }

    fn read<T>(
        &self,
        bytes: &[u8],
        read: impl FnOnce([u8; 2], &mut &[u8]) -> Option<T>,
    ) -> Option<T> {
        let (head, mut fields) = bytes.split_at_checked(HEAD_BYTES)?;
        let state = [head[6], head[7]];
        if head[8..] != self.checksum(bytes).to_le_bytes() || (!self.has_state && state != [0, 0]) {
            return None;
        }
        read(state, &mut fields)
    }

    fn checksum(&self, bytes: &[u8]) -> u64 {
        let head = if self.has_state { stable_hash(self.seed, &bytes[..8]) } else { 0 };
        stable_hash(self.seed ^ head, &bytes[HEAD_BYTES..])
    }
}

/// Appends a text behind its length.
///
/// # Panics
/// It has 64 KiB or more.
pub(crate) fn write_text(text: &str, out: &mut Vec<u8>) {
    let length = u16::try_from(text.len()).expect("names and addresses are short");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The next bytes.
pub(crate) fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

/// A text, behind its length.
pub(crate) fn text(rest: &mut &[u8]) -> Option<String> {
    let length = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
    String::from_utf8(take(rest, length.into())?.to_vec()).ok()
}

/// A number, little-endian.
pub(crate) fn number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}
