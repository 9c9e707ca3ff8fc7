//! Nodes of a cluster whose servers, network, clocks and clients are drawn from a seed: what a process runs is what is shipped, from the bytes that a
//! client sends to the records that go to the log, and back.
//!
//! Each process has its `Driver` (with the replica, the heartbeat, snapshots and what else its thread does), its folder with the embedded store and, where it owns its
//! shard, the server: the loop without sockets, sessions, the router, the engine, and the gate that holds answers back. The servers that keep logs and bucket are
//! those of the room `sim`: requests and answers are late, lost, held back or come twice, appends arrive behind the next owner's claim, leaders are lost. Clocks run at
//! different speeds, processes pause, are cut off, are drained, and begin anew with their folders, older ones, or none.
//!
//! Left out are what threads and sockets do: connections to NATS, clients that a node forwards, the start of a process (it is answered at once) and the connections
//! between owners, for which frames stand as in `crate::simulated`.
//!
//! `history` says what is checked. A test takes the look at epochs out, and another the gate: both are noticed.
//!
//! `HEADWATER_NODES_SEEDS=100000` runs more seeds, `HEADWATER_NODES_FIRST=3000` others, `HEADWATER_NODES_SEED=12` that one alone, with all that clients were told where it
//! fails, and `HEADWATER_NODES_SHOW=1` shows how often what happened.
//!
//! Threads of stores are real: a simulation waits for what they do without anybody's doing, and has their answers come in turns of their own, so a seed is the same each
//! time.

mod clients;
mod history;
mod links;
mod process;
mod servers;
mod tests;
mod world;

use crate::service::DurableWrites;
use std::cell::Cell;

thread_local! {
    /// What tests take out to see that it is noticed: that records of older epochs than the last claim's are no data.
    static BELIEVES_ALL: Cell<bool> = const { Cell::new(false) };
    /// The same: that answers wait for the log.
    static ANSWERS_AT_ONCE: Cell<bool> = const { Cell::new(false) };
}

/// What the gate goes by, where it is not taken out.
pub(crate) fn gate(writes: DurableWrites) -> DurableWrites {
    match ANSWERS_AT_ONCE.get() {
        true => DurableWrites { durable: writes.last, ..writes },
        false => writes,
    }
}
