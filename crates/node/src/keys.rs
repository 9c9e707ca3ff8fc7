//! Execution of the commands about keys as such.

use crate::dump::{self, PayloadFault};
use crate::expiry::set_until;
use crate::node::{Lookups, check_writable, is_there};
use crate::numbers::integer_of;
use crate::streams;
use alloc::vec::Vec;
use headwater_base::Millis;
use headwater_command::{Args, ObjectFact, Reply, RestoredExpiry};
use headwater_engine::{Engine, Expiry, Stop};

/// What TYPE says of values and of streams.
pub(crate) const STRING: &str = "string";
pub(crate) const STREAM: &str = "stream";

pub(crate) fn del(engine: &mut Engine, keys: Args<'_>, reply: &mut impl Reply) -> Result<(), Stop> {
    if keys.len() > 1 {
        for key in keys.iter() {
            check_writable(engine, key)?;
        }
    }
    know_all(engine, keys.iter())?;
    let mut removed = 0;
    for key in keys.iter() {
        removed += i64::from(engine.remove_known(key)?);
    }
    reply.integer(removed);
    Ok(())
}

/// Waits until memory knows of all keys that are to be written whether they are there. All are asked for even if the first
/// must wait, so that their loads run side by side.
pub(crate) fn know_all<'k>(
    engine: &mut Engine,
    keys: impl Iterator<Item = &'k [u8]>,
) -> Result<(), Stop> {
    let mut known = Ok(());
    for key in keys {
        match engine.know(key) {
            Err(Stop::Wait(ticket)) => known = known.and(Err(Stop::Wait(ticket))),
            done => done?,
        }
    }
    known
}

pub(crate) fn exists(
    engine: &mut Engine,
    keys: Args<'_>,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let mut there = 0;
    for key in keys.iter() {
        let found = is_there(engine, key)?;
        lookups.note(found);
        there += i64::from(found);
    }
    reply.integer(there);
    Ok(())
}

pub(crate) fn type_of(
    engine: &mut Engine,
    key: &[u8],
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let found = is_there(engine, key)?;
    lookups.note(found);
    reply.simple(match found {
        true if engine.is_stream(key) => STREAM,
        true => STRING,
        false => "none",
    });
    Ok(())
}

/// Reads the value of `key` into `bytes`; its expiry, or `None` if there is no such key.
pub(crate) fn fetch(
    engine: &mut Engine,
    key: &[u8],
    bytes: &mut Vec<u8>,
) -> Result<Option<Option<Millis>>, Stop> {
    bytes.clear();
    match engine.get(key)? {
        Some(value) => value.write_to(bytes),
        None => return Ok(None),
    }
    engine.expiry(key)
}

pub(crate) fn store(
    engine: &mut Engine,
    key: &[u8],
    (bytes, flags): (&[u8], u32),
    expiry: Option<Millis>,
) -> Result<(), Stop> {
    let expiry = expiry.map_or(Expiry::Never, Expiry::At);
    Ok(engine.set_flagged(key, bytes, expiry, flags)?)
}

pub(crate) fn rename(
    engine: &mut Engine,
    from: &[u8],
    to: &[u8],
    if_absent: bool,
    scratch: &mut Vec<u8>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let acts = if engine.is_stream(from) {
        streams::rename(engine, from, to, if_absent)?
    } else {
        let Some(expiry) = fetch(engine, from, scratch)? else {
            reply.error("ERR", format_args!("no such key"));
            return Ok(());
        };
        check_writable(engine, from)?;
        let acts = from != to && !(if_absent && is_there(engine, to)?);
        if acts {
            let flags = engine.mark(from).flags;
            store(engine, to, (scratch, flags), expiry)?;
            engine.remove(from)?;
        }
        acts
    };
    if if_absent {
        reply.integer(i64::from(acts))
    } else {
        reply.ok()
    }
    Ok(())
}

pub(crate) fn copy(
    engine: &mut Engine,
    (from, to): (&[u8], &[u8]),
    replace: bool,
    scratch: &mut Vec<u8>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    if engine.is_stream(from) {
        reply.integer(i64::from(streams::copy(engine, from, to, replace)?));
        return Ok(());
    }
    let Some(expiry) = fetch(engine, from, scratch)? else {
        reply.integer(0);
        return Ok(());
    };
    let acts = replace || !is_there(engine, to)?;
    if acts {
        let flags = engine.mark(from).flags;
        store(engine, to, (scratch, flags), expiry)?;
    }
    reply.integer(i64::from(acts));
    Ok(())
}

pub(crate) fn dump(
    engine: &mut Engine,
    key: &[u8],
    scratch: &mut Vec<u8>,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    scratch.clear();
    let found = engine.get(key)?;
    lookups.note(found.is_some());
    let Some(value) = found else {
        reply.null();
        return Ok(());
    };
    value.write_to(scratch);
    let number = integer_of(&value);
    reply.bulk(&dump::payload(scratch, number));
    Ok(())
}

pub(crate) fn restore(
    engine: &mut Engine,
    key: &[u8],
    (expiry, payload): (RestoredExpiry, &[u8]),
    replace: bool,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    check_writable(engine, key)?;
    if is_there(engine, key)? && !replace {
        reply.error("BUSYKEY", format_args!("Target key name already exists."));
        return Ok(());
    }
    let refusal = match expiry {
        RestoredExpiry::NotInteger => Some("value is not an integer or out of range"),
        RestoredExpiry::Negative => Some("Invalid TTL value, must be >= 0"),
        RestoredExpiry::Never | RestoredExpiry::Deadline(_) => None,
    };
    let value = match dump::value(payload, engine.limits().value_bytes_max) {
        _ if refusal.is_some() => Err(refusal.unwrap_or_default()),
        Ok(value) => Ok(value),
        Err(PayloadFault::Tail) => Err("DUMP payload version or checksum are wrong"),
        Err(PayloadFault::Body) => Err("Bad data format: only strings can be restored"),
    };
    match (value, expiry) {
        (Err(text), _) => {
            reply.error("ERR", format_args!("{text}"));
            return Ok(());
        }
        (Ok(value), RestoredExpiry::Deadline(deadline)) => {
            set_until(engine, key, &value, deadline.moment(engine.now()))?;
        }
        (Ok(value), _) => engine.set(key, &value, Expiry::Never)?,
    }
    reply.ok();
    Ok(())
}

pub(crate) fn random(engine: &Engine, draw: u64, reply: &mut impl Reply) {
    match engine.random_key(draw) {
        Some(key) => reply.bulk(&key),
        None => reply.null(),
    }
}

/// Longest value that Redis keeps in its object's own allocation.
const EMBEDDED_BYTES_MAX: usize = 44;

pub(crate) fn object(
    engine: &mut Engine,
    fact: ObjectFact,
    key: &[u8],
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    // Before the look at the value counts as a use.
    let uses = engine.uses(key);
    let encoding: &[u8] = if engine.is_stream(key) {
        b"chunks"
    } else {
        let found = engine.get(key)?;
        lookups.note(found.is_some());
        let Some(value) = found else {
            reply.null();
            return Ok(());
        };
        if integer_of(&value).is_some() {
            b"int"
        } else if value.len() <= EMBEDDED_BYTES_MAX {
            b"embstr"
        } else {
            b"raw"
        }
    };
    match (fact, uses) {
        (ObjectFact::Encoding, _) => reply.bulk(encoding),
        (ObjectFact::References, _) => reply.integer(1),
        (ObjectFact::IdleTime, _) => {
            let text = "the time of a key's last use is not kept, whatever the maxmemory policy";
            reply.error("ERR", format_args!("{text}"));
        }
        (ObjectFact::Frequency, Some(uses)) => reply.integer(i64::from(uses)),
        (ObjectFact::Frequency, None) => reply.error(
            "ERR",
            format_args!(
                "An LFU maxmemory policy is not selected, access frequency not tracked. \
                 Please note that when switching between policies at runtime LRU and LFU data \
                 will take some time to adjust."
            ),
        ),
    }
    Ok(())
}

/// Bytes of a reference to a value, and of a key's entry in its page.
const ENTRY_BYTES: usize = 16;

pub(crate) fn memory_usage(
    engine: &mut Engine,
    key: &[u8],
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    if engine.is_stream(key)
        && let Some(report) = engine.stream_report(key)?
    {
        reply.integer((key.len() + ENTRY_BYTES) as i64 + report.resident_bytes as i64);
        return Ok(());
    }
    match engine.get(key)? {
        None => reply.null(),
        Some(value) => reply.integer((key.len() + value.len() + ENTRY_BYTES) as i64),
    }
    Ok(())
}
