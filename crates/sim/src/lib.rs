//! Many shards in one thread, under simulated time and a simulated network, from one seed.
//!
//! Clients write keys at their homes and read ranges of all shards, while packets are late, twice, out of order or lost,
//! shards are slow, restart without their memory, evict and hand partitions over, and joins come and go. Every answer is
//! held against the oracle (`headwater_model`):
//!
//! - An answer of a shard is what the oracle gives for that shard's own keys and the replicas that it holds at that moment:
//!   one state explains it.
//! - A replica of a base key has a value that the key had, and a session that carries positions sees none that is older
//!   than what it has written or seen.
//! - Where one session alone writes, each of its answers is the oracle's over all base data: it has read its own writes.
//! - Once nothing is under way, every range of all shards is the oracle's; and once joins and keys are dropped, nothing is
//!   left.
//!
//! A failure names its seed; `HEADWATER_SIM_SEED` runs that one alone, `HEADWATER_SIM_SEEDS` says how many.

mod check;
mod clients;
mod domain;
mod faults;
mod network;
mod world;

pub use faults::Faults;
pub use world::{run, run_with};
