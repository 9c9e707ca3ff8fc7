//! Execution of the commands about streams.

use crate::node::{check_writable, is_there};
use headwater_command::{Reply, Streams};
use headwater_engine::{Engine, Stop};

pub(crate) fn run(
    engine: &mut Engine,
    command: &Streams<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    match *command {
        Streams::Append { key, tail, expected } => {
            let expected = usize::try_from(expected).unwrap_or(usize::MAX);
            reply.integer(engine.stream_append(key, tail, expected)? as i64);
        }
        Streams::Read { key, offset, count, block } => {
            return read(engine, key, offset, count, block.is_some() && count > 0, reply);
        }
        Streams::Trim { key, offset } => {
            reply.integer(engine.stream_trim(key, offset)?.unwrap_or(0) as i64);
        }
        Streams::Len { key } => {
            reply.integer(engine.stream_report(key)?.map_or(0, |report| report.end) as i64);
        }
        Streams::Info { key } => info(engine, key, reply)?,
    }
    Ok(())
}

fn read(
    engine: &mut Engine,
    key: &[u8],
    offset: u64,
    count: u64,
    waits: bool,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    match engine.stream_read(key, offset, count)? {
        Some(bytes) if !(waits && bytes.is_empty()) => {
            reply.bulk_begin(bytes.len());
            bytes.for_each(&mut |part| reply.bulk_part(part));
            reply.bulk_end();
        }
        None if !waits => reply.null(),
        _ => return Err(Stop::Wait(engine.await_tail(key))),
    }
    Ok(())
}

fn info(engine: &mut Engine, key: &[u8], reply: &mut impl Reply) -> Result<(), Stop> {
    let Some(report) = engine.stream_report(key)? else {
        reply.error("ERR", format_args!("no such key"));
        return Ok(());
    };
    let numbers = [
        ("start", report.start),
        ("first", report.first),
        ("end", report.end),
        ("chunks", report.chunks),
        ("resident-bytes", report.resident_bytes),
        ("spilled-bytes", report.spilled_bytes),
    ];
    reply.map(numbers.len());
    for (title, number) in numbers {
        reply.bulk(title.as_bytes());
        reply.integer(number as i64);
    }
    Ok(())
}

/// RENAME and RENAMENX of a stream; whether it acted.
pub(crate) fn rename(
    engine: &mut Engine,
    from: &[u8],
    to: &[u8],
    if_absent: bool,
) -> Result<bool, Stop> {
    check_writable(engine, from)?;
    let acts = from != to && !(if_absent && is_there(engine, to)?);
    if acts {
        let expiry = engine.expiry(from)?.flatten();
        engine.stream_copy(from, to, expiry)?;
        engine.remove(from)?;
    }
    Ok(acts)
}

/// COPY of a stream; whether it acted.
pub(crate) fn copy(
    engine: &mut Engine,
    from: &[u8],
    to: &[u8],
    replace: bool,
) -> Result<bool, Stop> {
    let acts = replace || !is_there(engine, to)?;
    if acts {
        let expiry = engine.expiry(from)?.flatten();
        engine.stream_copy(from, to, expiry)?;
    }
    Ok(acts)
}
