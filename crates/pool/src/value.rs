//! Views of values: their bytes where they are, without copying.

use crate::blocks::{Blocks, NONE};
use crate::reference::ValueRef;
use alloc::vec::Vec;
use core::fmt;

/// Set in the `end` of a block's metadata where a block follows or followed.
pub(crate) const FOLLOWED: u32 = 1 << 31;

/// A view of one value's bytes.
#[derive(Clone, Copy)]
pub struct Value<'a>(Body<'a>);

/// The bytes of a reference. Where they lie as the word did, copying them is one load, which need not wait for stores of their parts.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Word([u8; 8]);

#[derive(Clone, Copy)]
enum Body<'a> {
    /// A reference that holds its bytes.
    Inline(Word),
    One(&'a [u8]),
    Chain(&'a Blocks, ValueRef),
}

impl<'a> Value<'a> {
    /// A view of bytes that are not in a pool.
    #[inline]
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(Body::One(bytes))
    }

    #[inline]
    pub(crate) fn inline(value: ValueRef) -> Self {
        Self(Body::Inline(Word(value.inline_bytes())))
    }

    pub(crate) fn chain(blocks: &'a Blocks, value: ValueRef) -> Self {
        Self(Body::Chain(blocks, value))
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Body::Inline(Word(bytes)) => usize::from(bytes[0] >> 1 & 7),
            Body::One(bytes) => bytes.len(),
            Body::Chain(_, value) => value.len(),
        }
    }

    /// Whether the value has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value's bytes, if they lie one behind the other: those of every value that was stored
    /// at once and has at most 4 KiB, unless the pool was at its limit.
    #[inline]
    #[must_use]
    pub fn as_contiguous(&self) -> Option<&[u8]> {
        match &self.0 {
            Body::Inline(Word(bytes)) => Some(&bytes[1..=usize::from(bytes[0] >> 1 & 7)]),
            Body::One(bytes) => Some(bytes),
            Body::Chain(..) => None,
        }
    }

    /// The value's bytes, part by part, in order; no part is empty.
    #[inline]
    pub fn parts(&self) -> Parts<'_> {
        match &self.0 {
            Body::Chain(blocks, value) => Parts::chain(blocks, *value, 0, value.len()),
            _ => Parts { one: self.as_contiguous().unwrap_or(&[]), chain: None },
        }
    }

    /// As [`Value::parts`], of up to `len` bytes from `offset` on, as far as the value has them.
    /// Costs the blocks from there to the value's end.
    #[must_use]
    pub fn read_at(&self, offset: usize, len: usize) -> Parts<'_> {
        let from = offset.min(self.len());
        let until = from + len.min(self.len() - from);
        match &self.0 {
            Body::Chain(blocks, value) => Parts::chain(blocks, *value, from, until),
            _ => Parts { one: &self.as_contiguous().unwrap_or(&[])[from..until], chain: None },
        }
    }

    /// Another reference to the value, counted as by [`Pool::retain`](crate::Pool::retain), if it
    /// is in several blocks. Shorter ones are as well copied.
    #[must_use]
    pub fn hold(&self) -> Option<ValueRef> {
        let Body::Chain(blocks, value) = self.0 else { return None };
        blocks.count(value.address());
        Some(value)
    }

    /// Appends the value's bytes to `out`.
    #[inline]
    pub fn write_to(&self, out: &mut Vec<u8>) {
        match self.as_contiguous() {
            Some(bytes) => out.extend_from_slice(bytes),
            None => {
                out.reserve(self.len());
                self.parts().for_each(|part| out.extend_from_slice(part));
            }
        }
    }

    /// The value's bytes in one vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.write_to(&mut bytes);
        bytes
    }

    /// Whether the value's bytes are `bytes`.
    #[must_use]
    pub fn equals(&self, bytes: &[u8]) -> bool {
        if self.len() != bytes.len() {
            return false;
        }
        let mut rest = bytes;
        self.parts().all(|part| {
            let (same, behind) = rest.split_at(part.len());
            rest = behind;
            same == part
        })
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value(\"")?;
        self.parts().try_for_each(|part| write!(f, "{}", part.escape_ascii()))?;
        write!(f, "\")")
    }
}

/// The parts of a value, in order.
#[derive(Debug)]
pub struct Parts<'v> {
    /// The only part; empty when it was given.
    one: &'v [u8],
    chain: Option<Walk<'v>>,
}

/// Chains of up to so many blocks are read without a list on the heap.
const FEW: usize = 32;

/// The blocks of a chain that are still to be read. The chain leads from the last to the first,
/// so that their addresses are noted before the first is read.
struct Walk<'v> {
    blocks: &'v Blocks,
    /// From the last to the first.
    few: [u32; FEW],
    /// Those before the few.
    many: Vec<u32>,
    left: usize,
    /// Offset in the value at which the next block starts.
    at: usize,
    /// Offset of the next byte that is wanted.
    from: usize,
    until: usize,
}

impl fmt::Debug for Walk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("from", &self.from).field("until", &self.until).finish()
    }
}

impl<'v> Parts<'v> {
    fn chain(blocks: &'v Blocks, value: ValueRef, from: usize, until: usize) -> Self {
        let (few, many) = ([NONE; FEW], Vec::new());
        let mut walk = Walk { blocks, few, many, left: 0, at: 0, from, until };
        if from < until {
            walk.note(value.address());
        }
        Self { one: &[], chain: Some(walk) }
    }
}

impl Walk<'_> {
    /// Notes the blocks that hold what is wanted, from the one at `address` back.
    fn note(&mut self, mut address: u32) {
        loop {
            let previous = self.blocks.metadata(address).previous;
            self.at = if previous == NONE { 0 } else { self.blocks.end(previous) };
            if self.at < self.until {
                match self.few.get_mut(self.left) {
                    Some(place) => *place = address,
                    None => self.many.push(address),
                }
                self.left += 1;
            }
            if self.at <= self.from {
                return;
            }
            address = previous;
        }
    }
}

impl<'v> Walk<'v> {
    fn next(&mut self) -> Option<&'v [u8]> {
        self.left = self.left.checked_sub(1)?;
        let address = match self.left.checked_sub(FEW) {
            Some(at) => self.many[at],
            None => self.few[self.left],
        };
        let end = self.blocks.end(address);
        let (skip, len) = (self.from - self.at, end.min(self.until) - self.from);
        self.at = end;
        self.from += len;
        Some(self.blocks.bytes(address, skip, len))
    }
}

impl<'v> Iterator for Parts<'v> {
    type Item = &'v [u8];

    #[inline]
    fn next(&mut self) -> Option<&'v [u8]> {
        match &mut self.chain {
            None if self.one.is_empty() => None,
            None => Some(core::mem::take(&mut self.one)),
            Some(walk) => walk.next(),
        }
    }
}
