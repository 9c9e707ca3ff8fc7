//! One shard: the engine, and the execution of commands about stored data.
//!
//! A session decodes a request, gives its [`Data`] command to [`Node::execute`] with the place for
//! the answer, and either has the answer or a [`Ticket`] to wait for. Time is an input, as for
//! the engine.

#![no_std]
extern crate alloc;

mod bits;
mod carry;
mod catalog;
mod dump;
mod expiry;
mod extended;
mod fan;
mod flow_commands;
mod flows;
mod functions;
mod info;
mod items;
mod keys;
mod lcs;
mod locks;
mod node;
mod numbers;
mod owners;
mod peers;
mod preload;
mod ranges;
mod reach;
mod remote;
mod scan;
mod streams;
mod strings;

pub use carry::Carried;
pub use catalog::table_options;
pub use flow_commands::facts as flow_facts;
pub use flows::{Outside, Step};
pub use headwater_cluster::{Open, Packet, Positions, Sent, WaitId};
pub use headwater_command::{Data, Flows as FlowCommand};
pub use headwater_engine::{Effect, Engine, Settings, Ticket};
pub use headwater_flows::{
    Journal, Outcome as FlowOutcome, Record as FlowRecord, RemoteMessage, Report as FlowReport,
    Task,
};
pub use info::{InfoSection, LineName, memory_kinds};
pub use node::{Lookups, Node, Outcome};
pub use owners::{Owners, Ownership};
pub use peers::{CLIENTS_FROM, Peers};
pub use reach::DefinitionReach;
