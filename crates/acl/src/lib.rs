//! Users, and what each of them may do: which commands, on which keys, with which channels.
//!
//! The rules are Redis's (`ACL SETUSER`), with two additions. A pattern may name its user: `~t|<user>|*` of the user `ann` is
//! `~t|ann|*`. And a *range* of keys is allowed where one granted literal prefix contains all of it: nothing is ever left out of an
//! answer because of rights; what is not allowed as a whole is refused.
//!
//! A [`User`] is a value that is changed as a whole: [`User::apply`] works on a copy, which takes the place of the user when all rules
//! were understood. [`demands`] says what a request needs, for every command there is; a [`User`] says whether it has that.
//! [`Definitions`] remember who defined joins, flows and modules of functions, and which of them are refused because
//! their owner may no longer read or write what they read and write.
//!
//! # Invariants
//! - A1. A right that is checked is one that was granted: whatever is not understood, or cannot be decided (a range against a glob
//!   pattern), is refused.
//! - A2. [`User::is_unrestricted`] only where no request of any kind would be refused.
//! - A3. Passwords are kept as their SHA-256 alone, and shown in no error.
//!
//! # Cost
//! A command is a bit; a key is compared with each pattern of the user until one fits. An unrestricted user is asked nothing.

#![no_std]
extern crate alloc;

mod definitions;
mod demand;
mod error;
mod journal;
mod keys;
mod places;
mod selector;
mod suspensions;
mod text;
mod user;
mod users;

pub use definitions::{Definition, DefinitionKind, Definitions, Reach, Suspended};
pub use demand::{Access, Demand, Denied, demands, key_demands};
pub use error::{RuleError, SetUserError};
pub use journal::{AclEvent, AclJournal, AclReason};
pub use keys::{KeyPattern, glob_prefix};
pub use selector::{Selector, command_of};
pub use suspensions::Suspensions;
pub use user::{User, hash_of};
pub use users::Users;
