//! Servers of several shards whose threads, clock and clients are drawn from a seed: everything between the bytes that a client sends
//! and those that it gets is what is shipped.
//!
//! One thread gives the shards their turns in an order that is drawn, has what they write to each other come late (each
//! sender's in its order), and lets time pass. So whatever order of events threads could bring about can come up, each seed is the same
//! each time, and a wait that does not end is found at once, by a clock that costs nothing. Where threads would wait for one another
//! (all shards meet to move a partition), each stops in the middle of its turn until all have come, and they go on in step.
//!
//! In `apart` each shard is as if in a process of its own: what one writes to another goes as bytes, and connections between them are cut at
//! any moment, with all that is on its way.
//!
//! Shards of a cluster, whose writes go to a replicated log first, are in `replicated::simulated`, with the nodes that own them.
//!
//! `HEADWATER_SIMULATED_SEED=7` repeats one seed, `HEADWATER_SIMULATED_SEEDS=100000` runs more of them;
//! `HEADWATER_SIMULATED_SHARDS=2,8` says of how many shards, `HEADWATER_SIMULATED_SCRIPT=FILE` what clients ask, as a failure shows it.

mod apart;
mod busy;
mod counting;
mod damaged;
mod faults;
mod foreign;
mod full;
mod mirror;
mod own_writes;
mod pipe;
mod refusals;
mod stalled;
mod tests;
mod world;

pub(crate) use busy::{Come, integer, request};
pub(crate) use pipe::{Pipe, ServerEnd};
