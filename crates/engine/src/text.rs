//! Short texts beside the data they name, so that comparing them costs no further cache miss.

use alloc::boxed::Box;
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::ops::Deref;

/// A text that never changes, in `SHORT` bytes and two where it is no longer than that.
///
/// It is ordered as its bytes are.
#[derive(Clone, Debug)]
pub(crate) enum Text<const SHORT: usize> {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Box<Box<[u8]>>),
}

impl<const SHORT: usize> Text<SHORT> {
    pub(crate) fn new(text: &[u8]) -> Self {
        const { assert!(SHORT <= u8::MAX as usize, "the length is a byte") };
        if text.len() > SHORT {
            return Self::Long(Box::new(text.into()));
        }
        let mut bytes = [0; SHORT];
        bytes[..text.len()].copy_from_slice(text);
        Self::Short { len: text.len() as u8, bytes }
    }

    /// Bytes beside its own size.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Short { .. } => 0,
            Self::Long(text) => size_of::<Box<[u8]>>() + text.len(),
        }
    }
}

impl<const SHORT: usize> Deref for Text<SHORT> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(text) => text,
        }
    }
}

impl<const SHORT: usize> Borrow<[u8]> for Text<SHORT> {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl<const SHORT: usize> PartialEq for Text<SHORT> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const SHORT: usize> Eq for Text<SHORT> {}

impl<const SHORT: usize> PartialOrd for Text<SHORT> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const SHORT: usize> Ord for Text<SHORT> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_all_lengths() {
        let all: alloc::vec::Vec<u8> = (0..100).collect();
        for len in 0..100 {
            let text = Text::<22>::new(&all[..len]);
            assert_eq!(*text, all[..len]);
            assert_eq!(text.bytes() == 0, len <= 22);
        }
        assert_eq!((size_of::<Text<22>>(), size_of::<Text<30>>()), (24, 32));
    }

    #[test]
    fn texts_are_ordered_as_their_bytes_are() {
        let texts: [&[u8]; 7] = [b"", b"\0", b"a", b"a\0", b"ab", b"abcdefgh", b"b"];
        for (at, one) in texts.iter().enumerate() {
            for (other_at, other) in texts.iter().enumerate() {
                let (one, other) = (Text::<4>::new(one), Text::<4>::new(other));
                assert_eq!((one.cmp(&other), one == other), (at.cmp(&other_at), at == other_at));
            }
        }
    }
}
