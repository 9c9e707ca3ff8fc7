//! Payloads of records, compressed: what every server of the log stores, sends to the others and keeps costs it by the byte.
//!
//! ```text
//! compressed   length:4 (of the payload, little-endian)   block (LZ4)
//! ```

use alloc::vec;
use alloc::vec::Vec;
use lz4_flex::block;

/// Shorter payloads are left as they are: so little can be saved with them that it does not pay.
const COMPRESSED_BYTES_MIN: usize = 1 << 10;
/// Most that one byte of a block stands for.
const RATIO_MAX: usize = 255;

/// The payload, compressed; `None`: it would not become shorter by an eighth, which is what compressing and decompressing it must be worth.
pub(crate) fn compress(payload: &[u8]) -> Option<Vec<u8>> {
    if payload.len() < COMPRESSED_BYTES_MIN {
        return None;
    }
    let length = u32::try_from(payload.len()).ok()?;
    let mut compressed = vec![0; 4 + block::get_maximum_output_size(payload.len())];
    compressed[..4].copy_from_slice(&length.to_le_bytes());
    let written = block::compress_into(payload, &mut compressed[4..]).ok()?;
    compressed.truncate(4 + written);
    (compressed.len() <= payload.len() - payload.len() / 8).then_some(compressed)
}

/// The payload of which this was made; `None`: it was made of none, or of one that has more than so many bytes.
pub(crate) fn decompress(compressed: &[u8], most: usize) -> Option<Vec<u8>> {
    let (length, block) = compressed.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    // Nothing is allocated for a length that cannot be.
    if length > most.min(block.len().saturating_mul(RATIO_MAX)) {
        return None;
    }
    let payload = block::decompress(block, length).ok()?;
    (payload.len() == length).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 30;

    /// Numbers that follow from a seed, in no order.
    fn numbers(seed: u64) -> impl FnMut() -> usize {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        }
    }

    /// Words that follow from a seed.
    fn words(seed: u64, length: usize) -> Vec<u8> {
        let mut next = numbers(seed);
        let mut text = Vec::new();
        while text.len() < length {
            text.extend_from_slice([&b"time"[..], b" of ", b"water", b"\0\xff"][next() % 4]);
        }
        text.truncate(length);
        text
    }

    #[test]
    fn what_becomes_shorter_is_had_again() {
        for length in [1024, 1025, 5000, 70_000, 600_000] {
            let text = words(length as u64, length);
            let compressed = compress(&text).expect("words become shorter");
            assert!(compressed.len() < length * 3 / 4, "{} of {length}", compressed.len());
            assert_eq!(decompress(&compressed, MOST).as_deref(), Some(&text[..]));
        }
        let zeroes = vec![0; 600_000];
        let compressed = compress(&zeroes).expect("zeroes become shorter");
        assert!(decompress(&compressed, MOST) == Some(zeroes));
        let text = words(1, COMPRESSED_BYTES_MIN - 1);
        assert_eq!(compress(&text), None, "so little is left as it is");
    }

    #[test]
    fn what_does_not_become_shorter_stays() {
        let mut next = numbers(1);
        let noise: Vec<u8> = (0..20_000).map(|_| next() as u8).collect();
        assert_eq!(compress(&noise), None);
    }

    #[test]
    fn what_was_never_compressed_is_refused() {
        let text = words(7, 3000);
        let whole = compress(&text).expect("words become shorter");
        for cut in 0..whole.len() {
            assert_eq!(decompress(&whole[..cut], MOST), None, "{cut}");
        }
        for length in [0, 2999, 3001, u32::MAX] {
            let mut other = whole.clone();
            other[..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(decompress(&other, MOST), None, "{length}");
        }
        assert_eq!(decompress(&whole, 2999), None, "it is more than was asked for");
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(decompress(&longer, MOST), None);
        for at in 4..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 0x55;
            // Whatever comes of it has the length that it should have.
            assert!(decompress(&other, MOST).is_none_or(|it| it.len() == text.len()), "{at}");
        }
    }
}
