//! What can be asked and how it is answered, with no wire words.
//!
//! A protocol turns bytes into [`Args`] and those into a [`Command`] that borrows them; whoever
//! executes the command writes the answer into a [`Reply`], which the protocol implements on
//! its output buffer. Nothing is allocated between the store and that buffer.
//!
//! The [`table`] describes every command: it serves arity errors, COMMAND, routing by key and
//! the documentation.

#![no_std]
extern crate alloc;

mod args;
pub mod bits;
mod command;
pub mod describe;
pub mod glob;
pub mod items;
pub mod number;
mod reply;
mod scripts;
pub mod table;
mod tips;

pub use args::{ArgVec, Args, OwnedArgs, Span};
pub use command::*;
pub use reply::{Counted, Mark, Reply};
pub use scripts::{LOCK_SCRIPTS, LockScript, lock_script};
pub use table::{Flags, Id, Spec};
