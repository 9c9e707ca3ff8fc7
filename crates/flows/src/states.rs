//! The names and the bytes of what the journal keeps about flows.
//!
//! Each state is of a kind, which its name begins with: `c` a cursor, `d` a task above it that is done, `t` how far a task has
//! come, `x` a dead one, `p` that a flow is paused, `b` how far a backfill has come, `g` how often a flow was replayed, `h` a
//! task of another shard that was carried out here.

use crate::dead::Dead;
use crate::record::Record;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::Millis;

/// Marks, in its number of attempts, a dead task that was overtaken.
const OVERTAKEN: u32 = 1 << 31;

/// The name of a state: its kind, the flow, and the position it is about.
pub(crate) fn state_name(kind: u8, flow: &str, position: Option<u64>) -> Vec<u8> {
    let mut name = alloc::vec![kind];
    name.extend_from_slice(flow.as_bytes());
    name.push(0);
    if let Some(position) = position {
        name.extend_from_slice(&position.to_be_bytes());
    }
    name
}

/// A cursor, and the sequence number that the next record will at least have, as bytes.
pub(crate) fn cursor_bytes(cursor: u64, sequence: u64) -> Vec<u8> {
    [cursor.to_be_bytes(), sequence.to_be_bytes()].concat()
}

/// The cursor and the number that [`cursor_bytes`] made these bytes of; early versions wrote none of the latter.
pub(crate) fn cursor_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let (cursor, rest) = bytes.split_first_chunk::<8>()?;
    let sequence = rest.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    Some((u64::from_be_bytes(*cursor), sequence))
}

/// The position at the end of such a name.
pub(crate) fn position_of(name: &[u8]) -> Option<u64> {
    name.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

/// A task that failed too often, as bytes.
pub(crate) fn dead_bytes(dead: &Dead) -> Vec<u8> {
    let overtaken = if dead.overtaken { OVERTAKEN } else { 0 };
    let mut bytes = (dead.attempts.min(!OVERTAKEN) | overtaken).to_be_bytes().to_vec();
    bytes.extend_from_slice(&dead.at.0.to_be_bytes());
    bytes.extend_from_slice(&(dead.error.len() as u32).to_be_bytes());
    bytes.extend_from_slice(dead.error.as_bytes());
    bytes.extend_from_slice(&dead.record.to_bytes());
    bytes
}

/// The task that [`dead_bytes`] made these bytes of; `None` where they are of none.
pub(crate) fn dead_of(position: u64, bytes: &[u8]) -> Option<Dead> {
    let (attempts, rest) = bytes.split_first_chunk::<4>()?;
    let (at, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (error, record) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let attempts = u32::from_be_bytes(*attempts);
    Some(Dead {
        record: Record::from_bytes(position, record)?,
        attempts: attempts & !OVERTAKEN,
        overtaken: attempts & OVERTAKEN != 0,
        error: String::from_utf8_lossy(error).into_owned(),
        at: Millis(u64::from_be_bytes(*at)),
    })
}
