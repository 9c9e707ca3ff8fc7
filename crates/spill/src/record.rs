//! One entry's bytes on disk: a checksum, and what was put.

use headwater_base::hash::stable_hash;

/// Bytes of the checksum.
const CHECK_BYTES: usize = 8;

/// A checksum of everything that must be right: whose process wrote it, which entry it is, its bytes.
fn check(generation: u64, id: u64, bytes: &[u8]) -> u64 {
    let number = stable_hash(generation, &id.to_le_bytes());
    stable_hash(number ^ bytes.len() as u64, bytes)
}

/// The record of an entry with the bytes of `parts`, which takes no byte more than it has.
pub(crate) fn write(generation: u64, id: u64, parts: &[&[u8]]) -> Vec<u8> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut record = Vec::with_capacity(CHECK_BYTES + len);
    record.extend_from_slice(&[0; CHECK_BYTES]);
    parts.iter().for_each(|part| record.extend_from_slice(part));
    let check = check(generation, id, &record[CHECK_BYTES..]);
    record[..CHECK_BYTES].copy_from_slice(&check.to_le_bytes());
    record
}

/// The bytes of a record, if it is the entry's and as it was written.
pub(crate) fn read(record: &[u8], generation: u64, id: u64) -> Option<&[u8]> {
    let (told, bytes) = record.split_first_chunk::<CHECK_BYTES>()?;
    (u64::from_le_bytes(*told) == check(generation, id, bytes)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{read, write};

    fn record(generation: u64, id: u64, bytes: &[u8]) -> Vec<u8> {
        write(generation, id, &bytes.chunks(7).collect::<Vec<_>>())
    }

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        for bytes in [&b""[..], b"x", &[7; 1000]] {
            let good = record(3, 5, bytes);
            assert_eq!(read(&good, 3, 5), Some(bytes));
            assert_eq!(read(&good, 4, 5), None, "another process's");
            assert_eq!(read(&good, 3, 6), None, "another entry's");
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read(&bad, 3, 5), None, "bit {bit}");
            }
            for len in 0..good.len() {
                assert_eq!(read(&good[..len], 3, 5), None, "{len} bytes are left");
            }
            assert_eq!(read(&[&good[..], b"x"].concat(), 3, 5), None);
        }
    }
}
