//! Execution of the commands about the bits of values.
//!
//! # Cost
//! Reads go over the bytes that they are about; a write copies the whole value once.

use crate::node::{Lookups, check_lengths, check_writable};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use headwater_command::bits::{BitOperation, FieldAction, FieldStep, field_steps};
use headwater_command::{Args, BitWindow, Bits, Reply};
use headwater_engine::{Engine, EngineError, Expiry, Stop, Value};

pub(crate) fn run(
    engine: &mut Engine,
    command: &Bits<'_>,
    scratch: &mut Vec<u8>,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    match *command {
        Bits::Set { key, offset, bit } => set(engine, key, (offset, bit), scratch, reply),
        Bits::Get { key, offset } => {
            let found = engine.get(key)?;
            lookups.note(found.is_some());
            let bit = found.is_some_and(|value| bit_at(&value, offset));
            reply.integer(i64::from(bit));
            Ok(())
        }
        Bits::Count { key, window } => {
            let found = engine.get(key)?;
            lookups.note(found.is_some());
            let window = window.unwrap_or(BitWindow { start: 0, end: None, bits: false });
            let count = found.map_or(0, |value| {
                spanned(&window, value.len()).map_or(0, |span| count(&value, span))
            });
            reply.integer(count as i64);
            Ok(())
        }
        Bits::Position { key, bit, window } => {
            let found = engine.get(key)?;
            lookups.note(found.is_some());
            // A key that is not there is a value of zeros without end.
            let position =
                found.map_or(if bit { -1 } else { 0 }, |value| position(&value, bit, &window));
            reply.integer(position);
            Ok(())
        }
        Bits::Combine { operation, to, from } => {
            combine(engine, operation, to, from, lookups, reply)
        }
        Bits::Fields { key, steps, read_only } => {
            fields(engine, key, (steps, read_only), scratch, lookups, reply)
        }
    }
}

fn bit_at(value: &Value<'_>, offset: u64) -> bool {
    let at = usize::try_from(offset / 8).unwrap_or(usize::MAX);
    let byte = value.read_at(at, 1).flatten().next().copied().unwrap_or(0);
    byte >> (7 - offset % 8) & 1 == 1
}

/// The bits of a value of `len` bytes that a window shows; `None`: none.
fn spanned(window: &BitWindow, len: usize) -> Option<Range<u64>> {
    let (unit, all) = if window.bits { (1, len as i64 * 8) } else { (8, len as i64) };
    let (start, end) = (window.start, window.end.unwrap_or(-1));
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let absolute = |at: i64| if at < 0 { at.saturating_add(all).max(0) } else { at };
    let (start, end) = (absolute(start), absolute(end).min(all - 1));
    (all > 0 && start <= end).then(|| start as u64 * unit..(end as u64 + 1) * unit)
}

/// The bytes in which a span of bits lies, in pieces, each with the place of its first one.
fn pieces<'v>(
    value: &'v Value<'_>,
    span: &Range<u64>,
) -> impl Iterator<Item = (u64, &'v [u8])> + use<'v> {
    let (first, last) = (span.start / 8, (span.end - 1) / 8);
    let mut next = first;
    value.read_at(first as usize, (last - first + 1) as usize).map(move |piece| {
        let at = next;
        next += piece.len() as u64;
        (at, piece)
    })
}

/// Which bits of the byte at this place lie in a span of bits.
fn mask(at: u64, span: &Range<u64>) -> u8 {
    let mut mask = 0xff_u8;
    if at == span.start / 8 {
        mask &= 0xff >> (span.start % 8);
    }
    if at == (span.end - 1) / 8 {
        mask &= 0xff << (7 - (span.end - 1) % 8);
    }
    mask
}

fn count(value: &Value<'_>, span: Range<u64>) -> u64 {
    let mut count = 0;
    for (at, piece) in pieces(value, &span) {
        let (words, rest) = piece.as_chunks::<8>();
        let of_word = |word: &[u8; 8]| u64::from(u64::from_ne_bytes(*word).count_ones());
        count += words.iter().map(of_word).sum::<u64>();
        count += rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        // The first byte and the last one may lie in the span in part.
        for end in [0, piece.len() - 1].into_iter().take(piece.len().min(2)) {
            let beside = piece[end] & !mask(at + end as u64, &span);
            count -= u64::from(beside.count_ones());
        }
    }
    count
}

fn position(value: &Value<'_>, bit: bool, window: &BitWindow) -> i64 {
    let Some(span) = spanned(window, value.len()) else { return -1 };
    let without = if bit { 0 } else { 0xff };
    for (at, piece) in pieces(value, &span) {
        let mut begin = 0;
        while begin < piece.len() {
            let words = piece[begin..].chunks_exact(8).take_while(|word| **word == [without; 8]);
            begin += 8 * words.count();
            let Some(found) = piece[begin..].iter().position(|byte| *byte != without) else {
                break;
            };
            let (byte, place) = (piece[begin + found] ^ without, at + (begin + found) as u64);
            let wanted = byte & mask(place, &span);
            if wanted != 0 {
                return (place * 8 + u64::from(wanted.leading_zeros())) as i64;
            }
            begin += found + 1;
        }
    }
    // Behind a value whose end was not asked for, there are zeros.
    if !bit && window.end.is_none() { value.len() as i64 * 8 } else { -1 }
}

/// Fills `scratch` with the value of `key`, and zeros up to `len` bytes; `None`: it has been refused.
fn load(
    engine: &mut Engine,
    key: &[u8],
    len: u64,
    scratch: &mut Vec<u8>,
    reply: &mut impl Reply,
) -> Result<Option<bool>, Stop> {
    check_writable(engine, key)?;
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if let Err(error) = check_lengths(engine, key, len) {
        if !matches!(error, EngineError::ValueTooLong { .. }) {
            return Err(error.into());
        }
        // Redis's own words; the bound is value-bytes-max.
        reply.error("ERR", format_args!("bit offset is not an integer or out of range"));
        return Ok(None);
    }
    scratch.clear();
    if let Some(value) = engine.get(key)? {
        value.write_to(scratch);
    }
    let grows = scratch.len() < len;
    if grows {
        scratch.resize(len, 0);
    }
    Ok(Some(grows))
}

fn set(
    engine: &mut Engine,
    key: &[u8],
    (offset, bit): (u64, bool),
    scratch: &mut Vec<u8>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let Some(grows) = load(engine, key, offset / 8 + 1, scratch, reply)? else { return Ok(()) };
    let (byte, mask) = (&mut scratch[offset as usize / 8], 0x80_u8 >> (offset % 8));
    let was = *byte & mask != 0;
    if grows || was != bit {
        *byte = if bit { *byte | mask } else { *byte & !mask };
        engine.set(key, scratch, Expiry::Keep)?;
    }
    reply.integer(i64::from(was));
    Ok(())
}

fn fields(
    engine: &mut Engine,
    key: &[u8],
    (steps, read_only): (Args<'_>, bool),
    scratch: &mut Vec<u8>,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let steps = || field_steps(steps).flatten();
    let count = steps().count();
    if read_only {
        let found = engine.get(key)?;
        lookups.note(found.is_some());
        scratch.clear();
        if let Some(value) = found {
            value.write_to(scratch);
        }
        write_numbers(steps().map(|step| step.apply(scratch)), count, reply);
        return Ok(());
    }
    let is_write = |step: &FieldStep| step.action != FieldAction::Get;
    let end = steps().filter(is_write).map(|step| step.end()).max().unwrap_or(0);
    let Some(grows) = load(engine, key, end, scratch, reply)? else { return Ok(()) };
    let answers: Vec<_> = steps().map(|step| (is_write(&step), step.apply(scratch))).collect();
    if grows || answers.iter().any(|(writes, answer)| *writes && answer.is_some()) {
        engine.set(key, scratch, Expiry::Keep)?;
    }
    write_numbers(answers.into_iter().map(|(_, answer)| answer), count, reply);
    Ok(())
}

fn write_numbers(numbers: impl Iterator<Item = Option<i64>>, count: usize, reply: &mut impl Reply) {
    reply.array(count);
    for number in numbers {
        match number {
            Some(number) => reply.integer(number),
            None => reply.null(),
        }
    }
}

fn combine(
    engine: &mut Engine,
    operation: BitOperation,
    to: &[u8],
    from: Args<'_>,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let mut waits = None;
    // All are asked for even if the first must wait, so that their loads run side by side.
    for key in from.iter() {
        match engine.get(key) {
            Ok(found) => lookups.note(found.is_some()),
            Err(Stop::Wait(ticket)) => waits = waits.or(Some(ticket)),
            Err(failed) => return Err(failed),
        }
    }
    if let Some(ticket) = waits {
        return Err(Stop::Wait(ticket));
    }
    let mut made = None;
    put_together(engine, operation, from.iter(), &mut made)?;
    let made = made.unwrap_or_default();
    if made.is_empty() {
        engine.remove(to)?;
    } else {
        engine.set(to, &made, Expiry::Never)?;
    }
    reply.integer(made.len() as i64);
    Ok(())
}

/// Puts the values of keys together, without a copy of them; a key may be named often.
fn put_together<'k>(
    engine: &mut Engine,
    operation: BitOperation,
    keys: impl Iterator<Item = &'k [u8]>,
    made: &mut Option<Vec<u8>>,
) -> Result<(), Stop> {
    let mut named = BTreeMap::<&[u8], usize>::new();
    keys.for_each(|key| *named.entry(key).or_default() += 1);
    for (key, count) in named {
        // With itself it gives itself, or nothing by XOR, as long as it is.
        let times = if operation == BitOperation::Xor && count % 2 == 0 { 2 } else { 1 };
        for _ in 0..times {
            match engine.get(key)? {
                Some(value) => operation.join(made, value.parts()),
                None => operation.join(made, core::iter::empty()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_engine::Settings;

    /// A bit at each place, as a value of random length has them, among long runs of equal bytes.
    fn drawn(state: &mut u64, most: u64) -> Vec<u8> {
        let mut draw = |below: u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (*state >> 33) % below
        };
        let len = draw(most);
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let byte = [0, 0xff, draw(256) as u8][draw(3) as usize];
            bytes.extend((0..=draw(40)).map(|_| byte));
        }
        bytes
    }

    #[test]
    fn bits_are_those_that_are_looked_at_one_by_one() {
        let mut state = 7;
        for round in 0..300 {
            let bytes = drawn(&mut state, if round % 10 == 0 { 20_000 } else { 60 });
            let mut engine = Engine::new(Settings::default());
            engine.set(b"k", &bytes, Expiry::Never).unwrap();
            let value = engine.get(b"k").unwrap().unwrap();
            let all = bytes.len() as u64 * 8;
            let bits: Vec<bool> = (0..all).map(|at| bit_at(&value, at)).collect();
            for _ in 0..30.min(all) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let start = (state >> 33) % all;
                let end = start + (state >> 13) % (all - start).min(1 + (state >> 50) % 900);
                let spanned = &bits[start as usize..=end as usize];
                let ones = spanned.iter().filter(|bit| **bit).count() as u64;
                assert_eq!(count(&value, start..end + 1), ones, "round {round}: {start}..={end}");
                for bit in [false, true] {
                    let first = spanned.iter().position(|found| *found == bit);
                    let first = first.map_or(-1, |first| first as i64 + start as i64);
                    let window =
                        BitWindow { start: start as i64, end: Some(end as i64), bits: true };
                    assert_eq!(position(&value, bit, &window), first, "round {round}");
                }
            }
        }
    }

    #[test]
    fn values_are_put_together_whatever_their_parts() {
        let mut state = 3;
        for _ in 0..200 {
            let values = [(); 3].map(|()| drawn(&mut state, 50));
            for (_, operation) in BitOperation::NAMES {
                let values = if operation == BitOperation::Not { &values[..1] } else { &values };
                let len = values.iter().map(Vec::len).max().unwrap_or(0);
                let at = |value: &Vec<u8>, at: usize| value.get(at).copied().unwrap_or(0);
                let byte = |place: usize| {
                    let first = at(&values[0], place);
                    let others = values[1..].iter().map(|value| at(value, place));
                    match operation {
                        BitOperation::And => others.fold(first, |all, next| all & next),
                        BitOperation::Or => others.fold(first, |all, next| all | next),
                        BitOperation::Xor => others.fold(first, |all, next| all ^ next),
                        BitOperation::Not => !first,
                    }
                };
                let expected: Vec<u8> = (0..len).map(byte).collect();
                let mut made = None;
                for value in values {
                    operation.join(&mut made, value.chunks(7));
                }
                assert_eq!(made.unwrap_or_default(), expected);
                assert_eq!(operation.of(values), expected);
            }
        }
    }

    #[test]
    fn a_key_that_is_named_often_is_what_it_is() {
        let mut engine = Engine::new(Settings::default());
        engine.set(b"a", &[0b1100], Expiry::Never).unwrap();
        engine.set(b"b", &[0b1010, 0xff], Expiry::Never).unwrap();
        let cases = [
            (BitOperation::Xor, "a b a", &[0b1010, 0xff]),
            (BitOperation::Xor, "b b", &[0, 0]),
            (BitOperation::And, "a b none a", &[0, 0]),
            (BitOperation::Or, "a a b", &[0b1110, 0xff]),
        ];
        for (operation, names, expected) in cases {
            let mut made = None;
            let keys = names.split(' ').map(str::as_bytes);
            put_together(&mut engine, operation, keys, &mut made).unwrap();
            assert_eq!(made.unwrap_or_default(), expected, "{operation:?} of {names}");
        }
    }
}
