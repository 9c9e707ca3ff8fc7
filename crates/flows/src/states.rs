//! The names and the bytes of what the journal keeps about flows.
//!
//! Each state is of a kind, which its name begins with: `c` a cursor, `d` a task above it that is done, `t` how far a task has
//! come, `x` a dead one, `p` that a flow is paused, `b` how far a backfill has come, `g` how often a flow was replayed, `h` a
//! task of another shard that was carried out here.

use crate::flow::Dead;
use crate::record::Record;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::Millis;

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

/// The position at the end of such a name.
pub(crate) fn position_of(name: &[u8]) -> Option<u64> {
    name.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

/// A task that failed too often, as bytes.
pub(crate) fn dead_bytes(dead: &Dead) -> Vec<u8> {
    let mut bytes = dead.attempts.to_be_bytes().to_vec();
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
    Some(Dead {
        record: Record::from_bytes(position, record)?,
        attempts: u32::from_be_bytes(*attempts),
        error: String::from_utf8_lossy(error).into_owned(),
        at: Millis(u64::from_be_bytes(*at)),
    })
}
