//! Execution of INCR and its kin.

use crate::extended::Extended;
use headwater_command::{Reply, number};
use headwater_engine::{Engine, Expiry, Stop, Value};

/// Longest text that Redis reads as a floating-point number.
const FLOAT_TEXT_MAX: usize = 5 << 10;

/// The bytes of a short value in one piece, in `room`; `None` where it is longer.
pub(crate) fn gather<'r>(value: &Value<'_>, room: &'r mut [u8]) -> Option<&'r [u8]> {
    let mut len = 0;
    for part in value.parts() {
        room.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    Some(&room[..len])
}

/// The whole number that a value is the text of.
pub(crate) fn integer_of(value: &Value<'_>) -> Option<i64> {
    let mut room = [0; number::I64_TEXT_MAX];
    gather(value, &mut room).and_then(number::parse_i64)
}

pub(crate) fn incr(
    engine: &mut Engine,
    key: &[u8],
    by: i64,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let old = match engine.get(key)? {
        None => Some(0),
        Some(value) => integer_of(&value),
    };
    let Some(old) = old else {
        reply.error("ERR", format_args!("value is not an integer or out of range"));
        return Ok(());
    };
    let Some(new) = old.checked_add(by) else {
        reply.error("ERR", format_args!("increment or decrement would overflow"));
        return Ok(());
    };
    engine.set(key, number::signed(new).as_bytes(), Expiry::Keep)?;
    reply.integer(new);
    Ok(())
}

pub(crate) fn incr_float(
    engine: &mut Engine,
    key: &[u8],
    by: &[u8],
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let old = match engine.get(key)? {
        None => Some(Extended::ZERO),
        Some(value) if value.len() < FLOAT_TEXT_MAX => Extended::parse(&value.to_vec()),
        Some(_) => None,
    };
    let by = Some(by).filter(|by| by.len() < FLOAT_TEXT_MAX).and_then(Extended::parse);
    let (Some(old), Some(by)) = (old, by) else {
        reply.error("ERR", format_args!("value is not a valid float"));
        return Ok(());
    };
    let Some(text) = old.plus(by).to_text() else {
        reply.error("ERR", format_args!("increment would produce NaN or Infinity"));
        return Ok(());
    };
    engine.set(key, &text, Expiry::Keep)?;
    reply.bulk(&text);
    Ok(())
}
