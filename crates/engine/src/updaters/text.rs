//! Short texts beside the data they name, so that comparing them costs no further cache miss.

use alloc::boxed::Box;
use core::ops::Deref;

/// A text that never changes, in 24 bytes where it is short.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    Short { len: u8, bytes: [u8; Text::SHORT] },
    Long(Box<Box<[u8]>>),
}

impl Text {
    const SHORT: usize = 22;

    pub(crate) fn new(text: &[u8]) -> Self {
        if text.len() > Self::SHORT {
            return Self::Long(Box::new(text.into()));
        }
        let mut bytes = [0; Self::SHORT];
        bytes[..text.len()].copy_from_slice(text);
        Self::Short { len: text.len() as u8, bytes }
    }

    /// Bytes beside the text's own 24.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Short { .. } => 0,
            Self::Long(text) => size_of::<Box<[u8]>>() + text.len(),
        }
    }
}

impl Deref for Text {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_all_lengths() {
        let all: alloc::vec::Vec<u8> = (0..100).collect();
        for len in 0..100 {
            let text = Text::new(&all[..len]);
            assert_eq!(*text, all[..len]);
            assert_eq!(text.bytes() == 0, len <= Text::SHORT);
        }
        assert_eq!(size_of::<Text>(), 24);
    }
}
