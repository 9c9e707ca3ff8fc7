//! DUMP and RESTORE: values in the form that Redis and Valkey exchange, for strings.
//!
//! # Format
//! A byte for the type (0: a string), the string, the version of the format (two bytes, the lowest first), and a CRC-64 of all
//! that (eight bytes, the lowest first). A string is its length and its bytes, or a small whole number, or, where others have
//! written it, compressed by LZF. What is written here has a version that all of them read.

use alloc::vec::Vec;

const STRING: u8 = 0;
/// Written; the first one that has the CRC is 5.
const VERSION: u16 = 6;
/// Read: Redis counts up to here from 1, and Valkey has gone on with 80. None has changed strings, and what one that is not
/// known yet changed would have another type, which is refused.
const VERSION_MAX: u16 = 80;
const TAIL_BYTES: usize = 2 + 8;

/// Why a payload is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PayloadFault {
    /// Its version is unknown, or its checksum is another one.
    Tail,
    /// It is no string, or none that is well formed.
    Body,
}

/// CRC-64 of Jones, from the lowest bit on.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// So many bytes are taken in at a time.
const STRIDE: usize = 16;

/// What a byte comes to in the sum, with so many bytes behind it ("slicing": the lookups for a stride depend on no other one).
static TABLES: [[u64; 256]; STRIDE] = {
    let mut tables = [[0; 256]; STRIDE];
    let mut at = 0;
    while at < 256 {
        let (mut rest, mut bit) = (at as u64, 0);
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        tables[0][at] = rest;
        at += 1;
    }
    let mut behind = 1;
    while behind < STRIDE {
        let mut at = 0;
        while at < 256 {
            let before = tables[behind - 1][at];
            tables[behind][at] = tables[0][(before & 0xff) as usize] ^ before >> 8;
            at += 1;
        }
        behind += 1;
    }
    tables
};

fn crc(bytes: &[u8]) -> u64 {
    let (strides, rest) = bytes.as_chunks::<STRIDE>();
    let crc = strides.iter().fold(0, |crc: u64, stride| {
        let mut stride = *stride;
        stride.iter_mut().zip(crc.to_le_bytes()).for_each(|(byte, crc)| *byte ^= crc);
        let sums = stride.iter().zip(TABLES.iter().rev());
        sums.fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)])
    });
    rest.iter().fold(crc, |crc, byte| TABLES[0][usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

/// The payload of a value; `number`: what it is as a whole number.
pub(crate) fn payload(value: &[u8], number: Option<i64>) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 6 + TAIL_BYTES);
    out.push(STRING);
    let small = number.and_then(|number| i32::try_from(number).ok());
    match (small, value.len()) {
        (Some(number), _) => match (i8::try_from(number), i16::try_from(number)) {
            (Ok(number), _) => out.extend([0xc0, number as u8]),
            (_, Ok(number)) => {
                out.push(0xc1);
                out.extend(number.to_le_bytes());
            }
            _ => {
                out.push(0xc2);
                out.extend(number.to_le_bytes());
            }
        },
        (None, len) => {
            match len {
                0..0x40 => out.push(len as u8),
                0x40..0x4000 => out.extend((0x4000 | len as u16).to_be_bytes()),
                _ => {
                    out.push(0x80);
                    out.extend((len as u32).to_be_bytes());
                }
            }
            out.extend_from_slice(value);
        }
    }
    out.extend(VERSION.to_le_bytes());
    let sum = crc(&out);
    out.extend(sum.to_le_bytes());
    out
}

/// The value of a payload, of at most `bytes_max` bytes.
pub(crate) fn value(payload: &[u8], bytes_max: usize) -> Result<Vec<u8>, PayloadFault> {
    let (covered, sum) = payload.split_last_chunk::<8>().ok_or(PayloadFault::Tail)?;
    let (body, version) = covered.split_last_chunk::<2>().ok_or(PayloadFault::Tail)?;
    let (version, sum) = (u16::from_le_bytes(*version), u64::from_le_bytes(*sum));
    // Redis leaves the checksum out where it is told to.
    if version > VERSION_MAX || sum != 0 && sum != crc(covered) {
        return Err(PayloadFault::Tail);
    }
    let mut rest = match body {
        [STRING, rest @ ..] => rest,
        _ => return Err(PayloadFault::Body),
    };
    let read = read_string(&mut rest, bytes_max);
    read.filter(|_| rest.is_empty()).ok_or(PayloadFault::Body)
}

fn take<'b>(rest: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(taken)
}

fn take_all<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    take(rest, N)?.try_into().ok()
}

/// A length, where the two highest bits of the first byte are not set both.
fn read_len(rest: &mut &[u8], first: u8) -> Option<usize> {
    match (first >> 6, first) {
        (0, _) => Some(usize::from(first)),
        (1, _) => Some(usize::from(first & 0x3f) << 8 | usize::from(take_all::<1>(rest)?[0])),
        (_, 0x80) => usize::try_from(u32::from_be_bytes(take_all(rest)?)).ok(),
        (_, 0x81) => usize::try_from(u64::from_be_bytes(take_all(rest)?)).ok(),
        _ => None,
    }
}

fn read_string(rest: &mut &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let [first] = take_all(rest)?;
    let number = |number: i64| Some(headwater_command::number::signed(number).as_bytes().to_vec());
    match first {
        0xc0 => number(i64::from(i8::from_le_bytes(take_all(rest)?))),
        0xc1 => number(i64::from(i16::from_le_bytes(take_all(rest)?))),
        0xc2 => number(i64::from(i32::from_le_bytes(take_all(rest)?))),
        0xc3 => {
            let mut next = || {
                let [first] = take_all(rest)?;
                read_len(rest, first)
            };
            let (packed, len) = (next()?, next()?);
            let packed = take(rest, packed)?;
            if len > bytes_max { None } else { unpack(packed, len) }
        }
        first => {
            let len = read_len(rest, first)?;
            take(rest, len).map(<[u8]>::to_vec)
        }
    }
}

/// What LZF has made smaller, which has `len` bytes.
fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    // Whatever is declared, a packed byte stands for some 88 at most.
    let mut out = Vec::with_capacity(len.min(packed.len().saturating_mul(96)));
    let rest = &mut { packed };
    while let Some([control]) = take_all(rest) {
        if control < 0x20 {
            out.extend_from_slice(take(rest, usize::from(control) + 1)?);
        } else {
            let mut run = usize::from(control >> 5);
            if run == 7 {
                run += usize::from(take_all::<1>(rest)?[0]);
            }
            let back =
                (usize::from(control & 0x1f) << 8 | usize::from(take_all::<1>(rest)?[0])) + 1;
            let from = out.len().checked_sub(back)?;
            // What is repeated may overlap what it becomes.
            for at in from..from + run + 2 {
                out.push(out[at]);
            }
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        // Bit by bit, of all lengths around several strides.
        let bytes: Vec<u8> = (0..100u32).map(|at| (at * at * 37 + 11) as u8).collect();
        for len in 0..bytes.len() {
            let sum = bytes[..len].iter().fold(0, |sum: u64, &byte| {
                (0..8).fold(sum ^ u64::from(byte), |sum, _| {
                    if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 }
                })
            });
            assert_eq!(crc(&bytes[..len]), sum, "{len} bytes");
        }
    }

    #[test]
    fn payloads_give_their_values_and_no_others() {
        let long = |len: usize| (0..len).map(|at| (at * 7 % 251) as u8).collect::<Vec<u8>>();
        for len in [0, 1, 63, 64, 65, 0x3fff, 0x4000, 70_000] {
            let given = long(len);
            assert_eq!(value(&payload(&given, None), 1 << 20), Ok(given));
        }
        for number in [0, -128, 127, 128, -32768, 32767, 32768, i64::from(i32::MIN), 1 << 40] {
            let given = headwater_command::number::signed(number).as_bytes().to_vec();
            assert_eq!(value(&payload(&given, Some(number)), 100), Ok(given));
        }
        let whole = payload(b"headwater", None);
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            assert!(value(&broken, 100).is_err(), "byte {at}");
            assert!(value(&whole[..at], 100).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn versions_of_redis_and_valkey_are_read() {
        let of_version = |version: u16| {
            let mut bytes = payload(b"headwater", None);
            let len = bytes.len() - TAIL_BYTES;
            bytes.truncate(len);
            bytes.extend(version.to_le_bytes());
            let sum = crc(&bytes);
            bytes.extend(sum.to_le_bytes());
            bytes
        };
        for version in [5, 11, 12, 13, 79, 80] {
            let read = value(&of_version(version), 100);
            assert_eq!(read.as_deref(), Ok(&b"headwater"[..]), "{version}");
        }
        assert_eq!(value(&of_version(81), 100), Err(PayloadFault::Tail));
    }

    #[test]
    fn what_lzf_has_made_smaller_is_read() {
        // "aaa…" of 40: one literal, then a run of 39 that overlaps itself.
        let packed = [0, b'a', 0xe0, 39 - 9, 0];
        assert_eq!(unpack(&packed, 40), Some([b'a'; 40].to_vec()));
        for bad in [&packed[..4], &[0x20, 0], &[0x1f, 1], &[0, b'a', 0x20, 1]] {
            assert_eq!(unpack(bad, 40), None, "{bad:?}");
        }
        assert_eq!(unpack(&packed, 39), None);
    }
}
