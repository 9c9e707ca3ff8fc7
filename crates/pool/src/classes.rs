//! Sizes of blocks, and which blocks a value takes.
//!
//! Steps of 8 bytes up to 128, then eight classes per doubling up to 4 KiB: a value in one block
//! wastes at most 1/9 of it, on average 1/18. Real values are short: 98 % of the tweets in
//! `data/tweet_lengths.csv` have 30 to 200 bytes, where the step is 8 or 16. What lengths like
//! theirs take is shown by `cargo run --release -p headwater-pool --example overhead`.
//!
//! A value longer than the largest block is a chain of those and a tail. Where the next class
//! would waste much of the tail's block, the tail takes two blocks.

/// Classes of blocks.
pub(crate) const CLASSES: usize = 55;
/// Bytes of the largest block.
pub(crate) const BLOCK_BYTES_MAX: usize = 4096;
/// Bytes of metadata per block.
pub(crate) const METADATA_BYTES: usize = 12;
/// The class of the largest block.
pub(crate) const LARGEST: usize = CLASSES - 1;
/// What a second block for a tail must save.
const SPLIT_SAVES_MIN: usize = 24;

/// Bytes of each class's blocks, ascending.
pub(crate) const BLOCK_BYTES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let (mut at, mut size, mut step) = (0, 16u32, 8);
    while at < CLASSES {
        sizes[at] = size;
        if size >= 128 && size.is_power_of_two() {
            step = size / 8;
        }
        size += step;
        at += 1;
    }
    sizes
};

const CLASS_OF: [u8; BLOCK_BYTES_MAX / 8 + 1] = {
    let mut classes = [0; BLOCK_BYTES_MAX / 8 + 1];
    let (mut at, mut class) = (0, 0);
    while at < classes.len() {
        if at as u32 * 8 > BLOCK_BYTES[class] {
            class += 1;
        }
        classes[at] = class as u8;
        at += 1;
    }
    classes
};

/// The smallest class whose blocks hold `len` bytes, which a block can hold.
#[inline]
pub(crate) fn class_of(len: usize) -> usize {
    usize::from(CLASS_OF[len.div_ceil(8)])
}

/// The class of the next block of a value, of which `left` bytes are to be stored. `whole`: the
/// block is to hold all of them if it can, so that the value is contiguous.
#[inline]
pub(crate) fn next_class(left: usize, whole: bool) -> usize {
    if left >= BLOCK_BYTES_MAX {
        return LARGEST;
    }
    let above = class_of(left);
    if whole || above == 0 {
        return above;
    }
    let below = above - 1;
    let rest = left - (BLOCK_BYTES[below] as usize).min(left);
    let split = BLOCK_BYTES[below] as usize + BLOCK_BYTES[class_of(rest)] as usize + METADATA_BYTES;
    if split + SPLIT_SAVES_MIN <= BLOCK_BYTES[above] as usize { below } else { above }
}

/// Bytes of the blocks, with their metadata, that a value of `len` bytes takes if it is stored
/// at once and blocks of every class are to be had.
#[inline]
pub(crate) fn footprint(len: usize) -> usize {
    if len <= BLOCK_BYTES_MAX {
        return BLOCK_BYTES[class_of(len)] as usize + METADATA_BYTES;
    }
    let mut bytes = len / BLOCK_BYTES_MAX * (BLOCK_BYTES_MAX + METADATA_BYTES);
    let mut left = len % BLOCK_BYTES_MAX;
    while left > 0 {
        let block = BLOCK_BYTES[next_class(left, false)] as usize;
        bytes += block + METADATA_BYTES;
        left -= block.min(left);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_the_smallest_that_fits_is_found() {
        assert_eq!(BLOCK_BYTES[LARGEST] as usize, BLOCK_BYTES_MAX);
        assert!(BLOCK_BYTES.is_sorted() && BLOCK_BYTES.iter().all(|bytes| bytes % 8 == 0));
        for len in 0..=BLOCK_BYTES_MAX {
            let class = class_of(len);
            assert!(BLOCK_BYTES[class] as usize >= len);
            assert!(class == 0 || (BLOCK_BYTES[class - 1] as usize) < len);
        }
    }

    #[test]
    fn large_values_waste_little() {
        for len in 10 << 10..200 << 10 {
            let waste = footprint(len) - len;
            assert!(waste * 100 < len, "{len} bytes waste {waste}");
        }
        assert_eq!(footprint(10 << 10), (10 << 10) + 3 * METADATA_BYTES);
        assert_eq!(footprint(1 << 20), (1 << 20) + 256 * METADATA_BYTES);
    }
}
