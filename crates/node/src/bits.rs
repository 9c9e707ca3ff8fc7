//! Execution of the commands about the bits of values.
//!
//! # Cost
//! Reads go over the bytes that they are about; a write copies the whole value once.

use crate::node::{Lookups, check_lengths, check_writable};
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

/// Calls `each` with the bytes that `span` touches, each with its first bit and the bits of it that belong, until it gives something.
fn look<T>(
    value: &Value<'_>,
    span: &Range<u64>,
    each: &mut dyn FnMut(u64, u8, u8) -> Option<T>,
) -> Option<T> {
    let (first, last) = (span.start / 8, (span.end - 1) / 8);
    let bytes = value.read_at(first as usize, (last - first + 1) as usize).flatten();
    for (at, &byte) in (first..).zip(bytes) {
        let mut mask = 0xff_u8;
        if at == first {
            mask &= 0xff >> (span.start % 8);
        }
        if at == last {
            mask &= 0xff << (7 - (span.end - 1) % 8);
        }
        if let Some(found) = each(at * 8, byte, mask) {
            return Some(found);
        }
    }
    None
}

fn count(value: &Value<'_>, span: Range<u64>) -> u64 {
    let mut count = 0;
    look(value, &span, &mut |_, byte, mask| {
        count += u64::from((byte & mask).count_ones());
        None::<()>
    });
    count
}

fn position(value: &Value<'_>, bit: bool, window: &BitWindow) -> i64 {
    let Some(span) = spanned(window, value.len()) else { return -1 };
    let found = look(value, &span, &mut |at, byte, mask| {
        let wanted = if bit { byte & mask } else { !byte & mask };
        (wanted != 0).then(|| at + u64::from(wanted.leading_zeros()))
    });
    match found {
        Some(at) => at as i64,
        // Behind a value whose end was not asked for, there are zeros.
        None if !bit && window.end.is_none() => value.len() as i64 * 8,
        None => -1,
    }
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
    let (mut values, mut waits) = (Vec::new(), None);
    // All are asked for even if the first must wait, so that their loads run side by side.
    for key in from.iter() {
        match engine.get(key) {
            Ok(found) => {
                lookups.note(found.is_some());
                values.push(found.map(|value| value.to_vec()).unwrap_or_default());
            }
            Err(Stop::Wait(ticket)) => waits = waits.or(Some(ticket)),
            Err(failed) => return Err(failed),
        }
    }
    if let Some(ticket) = waits {
        return Err(Stop::Wait(ticket));
    }
    let made = operation.of(&values);
    if made.is_empty() {
        engine.remove(to)?;
    } else {
        engine.set(to, &made, Expiry::Never)?;
    }
    reply.integer(made.len() as i64);
    Ok(())
}
