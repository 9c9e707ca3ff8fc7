//! One write, as the journal keeps it.

use alloc::vec::Vec;
use headwater_base::Millis;

/// What was done to a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// It was given a value.
    Set,
    /// It was removed.
    Delete,
    /// Its time was over.
    Expire,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Set, Self::Delete, Self::Expire];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Delete => "delete",
            Self::Expire => "expire",
        }
    }
}

/// Marks, in the first byte, records that have their sequence number in them: those of early versions have not.
const HAS_SEQUENCE: u8 = 0x80;
/// Sequence numbers for each millisecond.
const PER_MILLI: u64 = 1 << 10;

/// The least sequence number of a moment.
pub(crate) fn sequence_at(at: Millis) -> u64 {
    at.0.saturating_mul(PER_MILLI)
}

/// One write of a base key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its place in the journal.
    pub position: u64,
    /// Greater than that of every earlier record, also of those that a crash has lost; a task that is tried once more has
    /// the one that it had.
    pub sequence: u64,
    /// When it was done.
    pub at: Millis,
    /// What was done.
    pub operation: Operation,
    /// The key.
    pub key: Vec<u8>,
    /// The value that it was given; empty if none.
    pub value: Vec<u8>,
    /// The one flow that it is for: a task that is tried once more, or a key that was there before the
    /// flow. `None`: it is a write, and for all.
    pub only: Option<Vec<u8>>,
}

impl Record {
    /// Whether the key was given a value, be it of no bytes.
    #[must_use]
    pub fn has_value(&self) -> bool {
        self.operation == Operation::Set
    }

    /// Memory that it takes.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        size_of::<Self>() + self.key.capacity() + self.value.capacity()
    }

    /// The record as bytes, without its position.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let only = self.only.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(22 + only.len() + self.key.len() + self.value.len());
        let operation = match self.operation {
            Operation::Set => 0,
            Operation::Delete => 1,
            Operation::Expire => 2,
        };
        bytes.push(HAS_SEQUENCE | operation);
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(&self.at.0.to_be_bytes());
        // The names of flows are short.
        bytes.push(only.len() as u8);
        bytes.extend_from_slice(only);
        bytes.extend_from_slice(&(self.key.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.value);
        bytes
    }

    /// The record that [`Record::to_bytes`] made these bytes of; `None` where they are of none.
    #[must_use]
    pub fn from_bytes(position: u64, bytes: &[u8]) -> Option<Self> {
        let (&operation, rest) = bytes.split_first()?;
        let (sequence, rest) = if operation & HAS_SEQUENCE == 0 {
            (None, rest)
        } else {
            let (sequence, rest) = rest.split_first_chunk::<8>()?;
            (Some(u64::from_be_bytes(*sequence)), rest)
        };
        let operation = *Operation::ALL.get(usize::from(operation & !HAS_SEQUENCE))?;
        let (at, rest) = rest.split_first_chunk::<8>()?;
        let (&named, rest) = rest.split_first()?;
        let (only, rest) = rest.split_at_checked(usize::from(named))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let (key, value) = rest.split_at_checked(length)?;
        let at = Millis(u64::from_be_bytes(*at));
        let only = (!only.is_empty()).then(|| only.to_vec());
        let sequence = sequence.unwrap_or_else(|| sequence_at(at));
        Some(Self {
            position,
            sequence,
            at,
            operation,
            key: key.to_vec(),
            value: value.to_vec(),
            only,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation, Record};
    use headwater_base::Millis;

    #[test]
    fn a_record_survives_its_bytes_and_damage_is_none() {
        for (operation, only) in Operation::ALL.into_iter().zip([None, Some(&b"fan"[..]), None]) {
            let record = Record {
                position: 7,
                sequence: 1 << 40,
                at: Millis(123_456_789),
                operation,
                key: b"p|\xff|1".to_vec(),
                value: b"text".to_vec(),
                only: only.map(<[u8]>::to_vec),
            };
            let fixed = 22 + only.map_or(0, <[u8]>::len) + record.key.len();
            let bytes = record.to_bytes();
            assert_eq!(Record::from_bytes(7, &bytes), Some(record));
            for cut in 0..fixed {
                assert_eq!(Record::from_bytes(7, &bytes[..cut]), None, "{cut}");
            }
        }
        assert_eq!(Record::from_bytes(1, &[9; 40]), None);
        assert_eq!(Record::from_bytes(1, &[0x89; 40]), None);
    }

    #[test]
    fn records_of_early_versions_have_the_numbers_of_their_moments() {
        let bytes = [&[0][..], &1000_u64.to_be_bytes(), &[0], &1_u32.to_be_bytes(), b"kv"].concat();
        let record = Record::from_bytes(7, &bytes).unwrap();
        assert_eq!(
            (record.sequence, record.key, record.value),
            (1000 << 10, b"k".into(), b"v".into())
        );
    }
}
