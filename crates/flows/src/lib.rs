//! Flows: what follows from a write, done afterwards, at least once ("Building Data Flows Using
//! Distributed Key-Value Stores", ETH TR 742).
//!
//! A write of a base key that some flow's pattern matches is a *record* in a [`Journal`], told in the same
//! batch as the write itself: the log of writes is the queue. Each flow has a *cursor* of its own in
//! it, so a slow or failing flow holds up no other, and none waits for what it causes itself.
//! A record is a *task* of each flow that it concerns. Whoever runs tasks takes one with
//! [`Flows::start`] and says what came of it with [`Flows::finish`]; that, too, is told to the journal in one
//! batch with the task's effects, so that effects in the same store happen once.
//!
//! There is no clock here and no execution: time is an input, and what a task does is for
//! others to know.
//!
//! # Invariants
//! - F1. Every record below a flow's cursor is done, dead or dropped for it, or does not concern it.
//! - F2. Tasks of one key run one at a time, in the order of their positions; one that will be tried
//!   again holds up those behind it, unless it is dead.
//! - F3. At most [`WINDOW`] tasks of a flow are in memory; the others are in the journal alone.
//! - F4. The journal keeps every record from the least cursor on.
//! - F5. A record's sequence number is greater than those of all earlier records, over restarts and crashes.
//!
//! # Cost
//! A write looks at the patterns of the flows on its table. A task costs a few searches in trees of at most
//! [`WINDOW`] entries, and one state in the journal.

#![no_std]
extern crate alloc;

mod backoff;
mod dead;
mod definition;
mod flow;
mod flows;
mod journal;
mod record;
mod remote;
mod states;

pub use backoff::Backoff;
pub use dead::{Dead, GivenUp};
pub use definition::{Action, Definition, WhenFull};
pub use flow::{Report, WINDOW};
pub use flows::{Flows, Outcome, Refusal, Task};
pub use journal::{Journal, Memory};
pub use record::{Operation, Record};
pub use remote::{
    FoundKeys, Output, RemoteEffect, RemoteEffects, RemoteMessage, RemoteRead, RemoteRequest,
    RemoteResponse, RemoteTask,
};
