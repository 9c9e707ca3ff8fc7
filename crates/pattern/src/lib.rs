//! Slots, patterns, bindings, containing ranges and the join grammar.
//!
//! A [`Join`] says which keys are computed from which: an output [`Pattern`] and sources. A
//! pattern is a table name and components, each a literal or a *slot*; [`Bindings`] are the
//! slot values found so far. Three questions are answered here for the engine: which slot values
//! does a key give ([`Pattern::bind`]), which key do slot values give ([`Pattern::fill`]), and
//! which source keys can matter to a range of output keys ([`containing_range`]). What a source sees of its
//! values, its conditions and the slots that values bind, is its [`lens`].
//!
//! # Invariants
//! - I1. A slot value is one or more bytes, none of them `|`; exactly `width` bytes where a width
//!   is given. Nothing else ever matches a slot.
//! - I2. In a parsed join every occurrence of a slot has the same width, and slot ids number
//!   `Join::slots` in the order in which the text first names them.
//!
//! # Cost
//! Matching, binding and filling are one pass over the key, without allocation. A containing
//! range allocates its two ends and nothing else. Parsing is linear in the text.

#![no_std]
extern crate alloc;

mod bindings;
mod cells;
mod error;
mod filed;
mod grammar;
mod join;
pub mod lens;
mod pattern;
mod range;

pub use bindings::Bindings;
pub use error::JoinError;
pub use filed::Filed;
pub use join::{Join, Keep, Mode, Operator, Source};
pub use pattern::{Component, Pattern};
pub use range::{Passing, containing_range, fixed_slots, put_containing_range};

/// Most slots that any join may have; `Limits::slots_max` may only lower it.
pub const SLOTS_MAX: usize = 32;

/// Names a slot: an index into [`Join::slots`], below [`SLOTS_MAX`].
pub type SlotId = usize;
