//! The protocol between shards: loads, the changes that follow them, and how far everybody has come.
//!
//! A shard that needs keys of another home asks it for a range and follows it from then on. Both sides of that are here, one
//! [`Hub`] for each shard with a link to each other. A hub knows keys, ranges and positions, and no engine: what is
//! to be done comes out as [`Event`]s, and what is to be said as [`Packet`]s.
//!
//! # Invariants
//! - H1. What a follower applies of a home is a prefix of what the home said to it since the last reset, in its order (K1):
//!   where anything was lost, or a side has restarted, everything that was loaded is reset and loads under way are asked for again.
//! - H2. A change crosses to each follower once, however many ranges of its hold the key.
//! - H3. Positions of a home grow, over restarts too. Once a shard has applied a position, it shows everything that was
//!   done at the home up to there, of what it has from it.
//! - H4. What a hub says of how far its shard has come ([`Hub::wait`], [`Hub::positions`]), the shard's engine shows, whenever
//!   it is asked. So a packet that has arrived is left as it is until its events are taken: what it says becomes known here
//!   and in the engine in one step, even where a request that must show it comes before.
//! - H5. What a follower has of a home that has told it a place among its writes ([`Message::Reached`]) shows everything up to there, wherever it was lost
//!   afterwards. So a later life of the home that knows which keys were written behind the place can bring the follower up to date ([`Message::Resume`]);
//!   the place that the follower names does not move until all of its ranges were.
//!
//! # Cost
//! A change costs a follower one entry of a batch. A turn sends one packet to each shard that is told anything.

#![no_std]
extern crate alloc;

mod codec;
mod hub;
mod link;
mod message;
mod positions;
mod resumption;
mod sent;

pub use hub::{Asked, Event, Hub, Open, WaitId, refusal_of_lost};
pub use message::{Item, Message, Packet};
pub use positions::Positions;
pub use sent::Sent;
