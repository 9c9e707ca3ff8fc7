//! Bytes that one shard writes and another reads: numbers in little-endian order, and byte strings behind their lengths.
//!
//! # Invariants
//! - B1. What is read lies within the bytes, whatever they are: a number that promises more than there is reads as nothing, and
//!   nothing is reserved for it.

use alloc::vec::Vec;

/// Writes the low two bytes of a number.
#[inline]
pub fn put_u16(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u16).to_le_bytes());
}

/// Writes the low four bytes of a number.
#[inline]
pub fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_le_bytes());
}

/// Writes a number of eight bytes.
#[inline]
pub fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Writes a byte string behind its length.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Reads what was written, piece by piece. Each piece is `None` where the bytes that are left are too few.
#[derive(Clone, Debug)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    /// Reads `bytes` from their beginning.
    #[inline]
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read yet.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// So many bytes.
    #[inline]
    pub fn cut(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A byte that is a yes or a no.
    #[inline]
    pub fn flag(&mut self) -> Option<bool> {
        self.u8().map(|byte| byte != 0)
    }

    /// A number of two bytes.
    #[inline]
    pub fn u16(&mut self) -> Option<usize> {
        self.array().map(|bytes| u16::from_le_bytes(bytes).into())
    }

    /// A number of four bytes.
    #[inline]
    pub fn u32(&mut self) -> Option<usize> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    /// A number of eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A byte string behind its length.
    #[inline]
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.cut(len)
    }

    /// A byte string behind its length that is text in UTF-8.
    pub fn text(&mut self) -> Option<&'a str> {
        core::str::from_utf8(self.bytes()?).ok()
    }

    /// So many numbers of two bytes.
    pub fn shorts(&mut self, count: usize) -> Option<impl Iterator<Item = u16> + use<'a>> {
        let bytes = self.cut(count.checked_mul(2)?)?;
        Some(bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes)))
    }

    /// So many numbers of eight bytes.
    pub fn numbers(&mut self, count: usize) -> Option<Vec<u64>> {
        let bytes = self.cut(count.checked_mul(8)?)?;
        let numbers = bytes.as_chunks::<8>().0.iter();
        Some(numbers.map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }

    /// A number of pieces, of at least `least` bytes each, and what `piece` reads of each of them.
    pub fn list<T>(
        &mut self,
        least: usize,
        mut piece: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.u32()?;
        if count > self.rest.len() / least.max(1) {
            return None;
        }
        (0..count).map(|_| piece(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_not() {
        let mut bytes = Vec::new();
        put_u16(&mut bytes, 70_000);
        put_u32(&mut bytes, 7);
        put_u64(&mut bytes, u64::MAX);
        put_bytes(&mut bytes, "wörd".as_bytes());
        put_u32(&mut bytes, 2);
        put_bytes(&mut bytes, b"a");
        put_bytes(&mut bytes, b"");
        let read = |bytes| {
            let mut reader = WireReader::of(bytes);
            let head = (reader.u16()?, reader.u32()?, reader.u64()?, reader.text()?);
            let list = reader.list(4, |reader| reader.bytes())?;
            Some((head, list, reader.rest().len()))
        };
        assert_eq!(
            read(&bytes),
            Some(((70_000 % 65_536, 7, u64::MAX, "wörd"), alloc::vec![&b"a"[..], b""], 0))
        );
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), None, "{end}");
        }
    }

    #[test]
    fn a_number_that_promises_too_much_reserves_nothing() {
        let bytes = u32::MAX.to_le_bytes();
        assert!(WireReader::of(&bytes).list(1, |reader| reader.u8()).is_none());
        assert!(WireReader::of(&bytes).numbers(usize::MAX).is_none());
        assert!(WireReader::of(&bytes).bytes().is_none());
    }
}
