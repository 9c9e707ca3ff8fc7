//! Many shards in one thread, under simulated time and a simulated network, from one seed.
//!
//! Clients write keys at their homes, and remove ranges, or at a source that keeps some tables for all shards, with a time to live or without, read ranges of all shards and watch some, while
//! packets are late, twice, out of order or lost, after which shards go on with what they have where the home still knows what has changed since, the source tells each shard in its own time, fails loads or loses track, shards are slow, restart (without their memory, with what their disks
//! keep, or with what they kept a while ago), evict, and hand partitions over, and joins and FLUSHALL go
//! from shard to shard. In three of four simulations, requests and what follows from them are done in slices of 2, 3 or 10 rows,
//! between which anything else may happen. Every answer is held against the oracle (`headwater_model`):
//!
//! - An answer of a shard is what the oracle gives for that shard's own keys and the replicas that it holds at that moment:
//!   one state explains it. Where joins are snapshots, one state of the time for which they may be kept.
//! - A replica of a base key has a value that the key had, and a session that carries positions sees none that is older
//!   than what it has written or seen, over restarts of shards that keep their keys, too.
//! - What is here of a shard that is not heard is what that had when it was heard last. A read that accepts so old a state is given an answer that follows from it, and
//!   another one waits, or is given the same.
//! - Where one session alone writes, each of its answers is the oracle's over all base data: it has read its own writes.
//! - What a watching client has, by what it is told, is what a read would give whenever the shard has done its work.
//! - All shards accept a join or none has it, and a join that is not replaced goes on.
//! - Once nothing is under way, nobody waits, each home tells others of what they hold and of nothing else, and every range
//!   of all shards and each watching client's copy is the oracle's; and once joins and keys are dropped, no key, replica,
//!   subscription, updater or status range is left, and no byte of a key or value.
//!
//! A failure names its seed; `HEADWATER_SIM_SEED` runs that one alone, `HEADWATER_SIM_SEEDS` says how many, and
//! `HEADWATER_SIM_FIRST` from which one on. `HEADWATER_SIM_SHOW=1` shows how often what happened. Seeds stand for other
//! histories after each change of this crate: what has failed once is kept as a script or a test where it was mended.
//!
//! # What was broken to see that it is noticed
//! `tests/can_fail.rs` leaves out what shards, disks and clients are told, and stops the engines' clocks ([`Cut`]). In the code
//! itself these were tried, each for 600 seeds, and noticed:
//!
//! - A home ignores that a range is followed no more, or that a shard has left: it tells of changes in vain. So it does where
//!   FLUSHALL, or a load that came too late to be of use, does not unfollow.
//! - What was computed from replicas that are forgotten stays: answers that nothing held explains.
//! - Moves reset no watching clients, keep what was loaded of the partition, or leave its keys on the old home's disk.
//! - Loads that were asked for under another placement are believed; a load asks for less than it says.
//! - Expiry, or FLUSHALL, is told to nobody; a key that is loaded from disk after its time stays.
//! - What a read that accepts old data has computed is shown to others; what is resumed in part is accepted; a packet that comes twice makes a shard one that was heard.
//! - Reads do not wait for positions; a packet that is missing, or another life of a shard, goes unnoticed.
//! - Work for followers that waits for data is forgotten; what joins read no more stays loaded.
//! - Keys of a join that is prepared can be written; the bytes of contexts are never given back.
//! - A slice that ends among rows whose outputs all live at other homes counts as the whole range.
//!
//! Not noticed in 2500 seeds, since something else does the same, or it takes a rare order of things: a part of a range that is
//! sent before what was told before it (values are whole, so that is mended at once); readers of a moved partition's
//! empty groups that stay valid at the old home; an installed join that does not forget what was loaded of its output's
//! table; and a home that does not ask further homes before it says where it stands.

mod changes;
mod check;
mod clients;
mod disk;
mod domain;
mod faults;
mod finish;
mod moves;
mod network;
mod older;
pub mod replicated;
mod requests;
mod shard;
mod source;
mod world;

pub use faults::{Cut, Faults};
pub use world::{Seen, run};
