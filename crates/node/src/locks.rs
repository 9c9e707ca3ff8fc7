//! Execution of what locks and limits of rates need: a comparison with one write behind it.

use crate::numbers::integer_of;
use headwater_base::Millis;
use headwater_command::{RateLimit, Reply};
use headwater_engine::{Engine, Expiry, Stop};

/// Whether `key` holds `value`.
fn holds(engine: &mut Engine, key: &[u8], value: &[u8]) -> Result<bool, Stop> {
    let Some(held) = engine.get(key)? else { return Ok(false) };
    if held.len() != value.len() {
        return Ok(false);
    }
    let mut rest = value;
    Ok(held.parts().all(|part| {
        let (head, tail) = rest.split_at(part.len());
        rest = tail;
        head == part
    }))
}

/// DELIFEQ.
pub(crate) fn del_if_equal(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let acts = holds(engine, key, value)?;
    if acts {
        engine.remove(key)?;
    }
    reply.integer(i64::from(acts));
    Ok(())
}

/// What becomes of an expiry where the value is the one that was named.
pub(crate) struct NewExpiry {
    pub(crate) millis: i64,
    pub(crate) add: bool,
    pub(crate) expires: bool,
}

/// PEXPIREIFEQ.
pub(crate) fn expire_if_equal(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    new: &NewExpiry,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let now = engine.now();
    let before = if holds(engine, key, value)? { engine.expiry(key)? } else { None };
    let Some(before) = before.filter(|before| before.is_some() || !new.expires) else {
        reply.integer(0);
        return Ok(());
    };
    let from = before.filter(|_| new.add).unwrap_or(now);
    let at = Millis(from.0.saturating_add_signed(new.millis));
    let acts = engine.set_expiry(key, Some(at))?;
    reply.integer(i64::from(acts));
    Ok(())
}

/// A moment and intervals are counted in microseconds, so that a limit may allow more than one use in a millisecond.
const MICROS: u128 = 1_000_000;

/// CL.THROTTLE: the generic cell rate algorithm. The key holds when the limit will be as new, if nobody uses it until then.
pub(crate) fn throttle(
    engine: &mut Engine,
    key: &[u8],
    limit: &RateLimit,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let now_millis = engine.now();
    let now = u128::from(now_millis.0) * 1000;
    let held = match engine.get(key)? {
        None => Some(0),
        Some(value) => integer_of(&value).and_then(|at| u64::try_from(at).ok()),
    };
    let uses = u128::from(limit.burst) + 1;
    // Rounded up: never more than is allowed.
    let interval = (u128::from(limit.seconds) * MICROS).div_ceil(u128::from(limit.count));
    let tolerance = interval * uses;
    let (Some(held), true) = (held, tolerance < (i64::MAX / 4) as u128) else {
        let text = match held {
            None => "the key holds no rate limit",
            Some(_) => "the rate limit is out of range",
        };
        reply.error("ERR", format_args!("{text}"));
        return Ok(());
    };
    let full_at = u128::from(held).max(now);
    let step = interval * u128::from(limit.quantity);
    let next_full_at = full_at + step;
    let allowed = next_full_at <= now + tolerance;
    let until_full = if allowed { next_full_at } else { full_at } - now;
    if allowed && limit.quantity > 0 {
        let expires = Millis(u64::try_from(next_full_at.div_ceil(1000)).unwrap_or(u64::MAX));
        let text = headwater_command::number::signed(next_full_at as i64);
        engine.set(key, text.as_bytes(), Expiry::At(expires))?;
    }
    let retry = match allowed {
        true => -1,
        // More at once than there ever is.
        false if step > tolerance => -1,
        false => (next_full_at - tolerance - now).div_ceil(MICROS) as i64,
    };
    reply.array(5);
    reply.integer(i64::from(!allowed));
    reply.integer(uses as i64);
    reply.integer((tolerance.saturating_sub(until_full) / interval) as i64);
    reply.integer(retry);
    reply.integer(until_full.div_ceil(MICROS) as i64);
    Ok(())
}
