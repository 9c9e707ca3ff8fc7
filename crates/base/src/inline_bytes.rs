//! Short byte strings beside the data that they name, so that comparing them costs no further cache miss.

use alloc::boxed::Box;
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::ops::Deref;

/// Bytes that never change. Up to `INLINE` of them lie in the value itself, which takes two more, rounded up to 8.
///
/// Values are ordered as their bytes are.
#[derive(Clone, Debug)]
pub struct InlineBytes<const INLINE: usize>(Place<INLINE>);

#[derive(Clone, Debug)]
enum Place<const INLINE: usize> {
    Inline {
        len: u8,
        bytes: [u8; INLINE],
    },
    /// More than fit.
    Elsewhere(Box<Box<[u8]>>),
}

impl<const INLINE: usize> InlineBytes<INLINE> {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        const { assert!(INLINE <= u8::MAX as usize, "the length is a byte") };
        if bytes.len() > INLINE {
            return Self(Place::Elsewhere(Box::new(bytes.into())));
        }
        let mut inline = [0; INLINE];
        inline[..bytes.len()].copy_from_slice(bytes);
        Self(Place::Inline { len: bytes.len() as u8, bytes: inline })
    }

    /// Bytes that it takes beside its own size.
    #[must_use]
    pub fn bytes_elsewhere(&self) -> usize {
        match &self.0 {
            Place::Inline { .. } => 0,
            Place::Elsewhere(bytes) => size_of::<Box<[u8]>>() + bytes.len(),
        }
    }
}

impl<const INLINE: usize> Deref for InlineBytes<INLINE> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Place::Elsewhere(bytes) => bytes,
        }
    }
}

impl<const INLINE: usize> Borrow<[u8]> for InlineBytes<INLINE> {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl<const INLINE: usize> PartialEq for InlineBytes<INLINE> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const INLINE: usize> Eq for InlineBytes<INLINE> {}

impl<const INLINE: usize> PartialOrd for InlineBytes<INLINE> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const INLINE: usize> Ord for InlineBytes<INLINE> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_lengths() {
        let all: alloc::vec::Vec<u8> = (0..100).collect();
        for len in 0..100 {
            let text = InlineBytes::<22>::new(&all[..len]);
            assert_eq!(*text, all[..len]);
            assert_eq!(text.bytes_elsewhere() == 0, len <= 22);
        }
        let sizes = [
            size_of::<InlineBytes<14>>(),
            size_of::<InlineBytes<22>>(),
            size_of::<InlineBytes<30>>(),
        ];
        assert_eq!(sizes, [16, 24, 32]);
    }

    #[test]
    fn values_are_ordered_as_their_bytes_are() {
        let texts: [&[u8]; 7] = [b"", b"\0", b"a", b"a\0", b"ab", b"abcdefgh", b"b"];
        for (at, one) in texts.iter().enumerate() {
            for (other_at, other) in texts.iter().enumerate() {
                let (one, other) = (InlineBytes::<4>::new(one), InlineBytes::<4>::new(other));
                assert_eq!((one.cmp(&other), one == other), (at.cmp(&other_at), at == other_at));
            }
        }
    }
}
