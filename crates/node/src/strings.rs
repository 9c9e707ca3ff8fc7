//! Execution of the commands about values.

use crate::expiry::set_until;
use crate::keys::know_all;
use crate::node::{Lookups, check_lengths, check_writable, is_there};
use alloc::vec::Vec;
use headwater_command::{Args, GetExpiry, Reply, SetCondition, SetExpiry};
use headwater_engine::{Engine, EngineError, Expiry, Stop};

#[inline]
pub(crate) fn get(
    engine: &mut Engine,
    key: &[u8],
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let found = engine.get(key)?;
    lookups.note(found.is_some());
    match found {
        Some(value) => reply.value(&value),
        None => reply.null(),
    }
    Ok(())
}

/// The options of SET.
pub(crate) struct SetOptions {
    pub(crate) condition: SetCondition,
    pub(crate) expiry: SetExpiry,
    pub(crate) get: bool,
}

#[inline]
pub(crate) fn set(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    how: &SetOptions,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    if how.condition == SetCondition::Always && !how.get && how.expiry == SetExpiry::Never {
        engine.set(key, value, Expiry::Never)?;
        reply.ok();
        return Ok(());
    }
    set_with_options(engine, key, value, how, lookups, reply)
}

fn set_with_options(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    how: &SetOptions,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    if how.get {
        get(engine, key, lookups, reply)?;
    }
    let acts = match how.condition {
        SetCondition::Always => true,
        SetCondition::Absent => !is_there(engine, key)?,
        SetCondition::Present => is_there(engine, key)?,
    };
    if acts {
        match how.expiry {
            SetExpiry::Never => engine.set(key, value, Expiry::Never)?,
            SetExpiry::Keep => {
                engine.know(key)?;
                engine.set(key, value, Expiry::Keep)?;
            }
            SetExpiry::Deadline(deadline) => {
                set_until(engine, key, value, deadline.moment(engine.now()))?;
            }
        }
    }
    match (how.get, acts) {
        (true, _) => {}
        (false, true) => reply.ok(),
        (false, false) => reply.null(),
    }
    Ok(())
}

pub(crate) fn set_nx(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let acts = !is_there(engine, key)?;
    if acts {
        engine.set(key, value, Expiry::Never)?;
    }
    reply.integer(i64::from(acts));
    Ok(())
}

pub(crate) fn get_set(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    get(engine, key, lookups, reply)?;
    Ok(engine.set(key, value, Expiry::Never)?)
}

pub(crate) fn get_del(
    engine: &mut Engine,
    key: &[u8],
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    get(engine, key, lookups, reply)?;
    engine.remove(key).map(|_was_there| ())
}

pub(crate) fn get_ex(
    engine: &mut Engine,
    key: &[u8],
    expiry: GetExpiry,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    get(engine, key, lookups, reply)?;
    let now = engine.now();
    match expiry {
        GetExpiry::Keep => Ok(()),
        GetExpiry::Persist => engine.set_expiry(key, None).map(|_| ()),
        GetExpiry::Deadline(deadline) => {
            engine.set_expiry(key, Some(deadline.moment(now))).map(|_| ())
        }
    }
}

/// All keys are asked for even if the first must wait, so that their loads run side by side.
pub(crate) fn mget(
    engine: &mut Engine,
    keys: Args<'_>,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    reply.array(keys.len());
    let mut waits = None;
    for key in keys.iter() {
        match get(engine, key, lookups, reply) {
            Ok(()) => {}
            // As in Redis, MGET has nothing to say of keys that hold something else.
            Err(Stop::Failed(EngineError::WrongType)) => reply.null(),
            Err(Stop::Wait(ticket)) => waits = waits.or(Some(ticket)),
            Err(failed) => return Err(failed),
        }
    }
    waits.map_or(Ok(()), |ticket| Err(Stop::Wait(ticket)))
}

pub(crate) fn mset(
    engine: &mut Engine,
    pairs: Args<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    set_all(engine, pairs)?;
    reply.ok();
    Ok(())
}

pub(crate) fn mset_nx(
    engine: &mut Engine,
    pairs: Args<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    know_all(engine, pairs.pairs().map(|(key, _)| key))?;
    for (key, _) in pairs.pairs() {
        if is_there(engine, key)? {
            reply.integer(0);
            return Ok(());
        }
    }
    set_all(engine, pairs)?;
    reply.integer(1);
    Ok(())
}

/// Sets every pair, or none where one is refused.
fn set_all(engine: &mut Engine, pairs: Args<'_>) -> Result<(), Stop> {
    if pairs.len() > 2 {
        for (key, value) in pairs.pairs() {
            check_lengths(engine, key, value.len())?;
            check_writable(engine, key)?;
        }
    }
    for (key, value) in pairs.pairs() {
        engine.set(key, value, Expiry::Never)?;
    }
    Ok(())
}

pub(crate) fn append(
    engine: &mut Engine,
    key: &[u8],
    tail: &[u8],
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let len = engine.append(key, tail)?;
    reply.integer(len as i64);
    Ok(())
}

pub(crate) fn len(engine: &mut Engine, key: &[u8], reply: &mut impl Reply) -> Result<(), Stop> {
    let len = engine.get(key)?.map_or(0, |value| value.len());
    reply.integer(len as i64);
    Ok(())
}

/// STRLEN.
pub(crate) fn str_len(
    engine: &mut Engine,
    key: &[u8],
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let found = engine.get(key)?;
    lookups.note(found.is_some());
    let len = found.map_or(0, |value| value.len());
    reply.integer(len as i64);
    Ok(())
}

pub(crate) fn get_range(
    engine: &mut Engine,
    key: &[u8],
    (start, end): (i64, i64),
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let found = engine.get(key)?;
    lookups.note(found.is_some());
    let Some(value) = found else {
        reply.bulk(b"");
        return Ok(());
    };
    let Some((skip, want)) = window(start, end, value.len()) else {
        reply.bulk(b"");
        return Ok(());
    };
    reply.bulk_begin(want);
    value.read_at(skip, want).for_each(|part| reply.bulk_part(part));
    reply.bulk_end();
    Ok(())
}

/// The first byte and the number of bytes of the inclusive window `[start, end]` over `len`
/// bytes, where negative offsets count from the end; `None` where it is empty.
fn window(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    let len = len as i64;
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let absolute = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (absolute(start), absolute(end).min(len - 1));
    (len > 0 && start <= end).then(|| (start as usize, (end - start + 1) as usize))
}

pub(crate) fn set_range(
    engine: &mut Engine,
    key: &[u8],
    offset: u64,
    bytes: &[u8],
    scratch: &mut Vec<u8>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    if bytes.is_empty() {
        return len(engine, key, reply);
    }
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = offset.saturating_add(bytes.len());
    if let Err(error) = check_lengths(engine, key, end) {
        if !matches!(error, EngineError::ValueTooLong { .. }) {
            return Err(error.into());
        }
        // Redis's own words; the bound is value-bytes-max.
        let text = "string exceeds maximum allowed size (proto-max-bulk-len)";
        reply.error("ERR", format_args!("{text}"));
        return Ok(());
    }
    scratch.clear();
    if let Some(value) = engine.get(key)? {
        value.write_to(scratch);
    }
    if scratch.len() < end {
        // The key must be writable before memory is spent on it.
        check_writable(engine, key)?;
        scratch.resize(end, 0);
    }
    scratch[offset..end].copy_from_slice(bytes);
    engine.set(key, scratch, Expiry::Keep)?;
    reply.integer(scratch.len() as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::window;

    #[test]
    fn windows_over_a_value() {
        assert_eq!(window(0, -1, 5), Some((0, 5)));
        assert_eq!(window(-3, -1, 5), Some((2, 3)));
        assert_eq!(window(-100, 1, 5), Some((0, 2)));
        assert_eq!(window(1, 100, 5), Some((1, 4)));
        assert_eq!(window(-100, -90, 5), Some((0, 1)));
        for (start, end, len) in
            [(3, 2, 5), (5, 9, 5), (-1, -2, 5), (0, -1, 0), (i64::MAX, i64::MIN, 5)]
        {
            assert_eq!(window(start, end, len), None, "{start} {end} {len}");
        }
    }
}
