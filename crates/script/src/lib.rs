//! Golden scripts: behaviour as stories that anyone can read.
//!
//! ```text
//! # A new subscription fills the timeline at once.
//! join t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>
//! set p|bob|0100 Hi
//! set s|ann|bob 1
//! prefix t|ann|
//! ----
//! t|ann|0100|bob = Hi
//! ```
//!
//! A story starts with a comment, on an empty store. After its commands comes `----`, then what
//! they print, up to an empty line. Commands that follow without a comment go on with the story.
//! The commands are those of [`command::Command`]; words are printable ASCII, with `\s` for a
//! space, `\\` for a backslash, `\x00` … `\xff` for any byte, and `""` for no bytes.
//!
//! A story runs against a [`Target`]: the engine ([`target::EngineTarget`]), or anything else
//! that answers the same commands. [`story::run`] compares, [`story::rewritten`] fills in.

pub mod bytes;
pub mod command;
mod compound;
pub mod reply;
pub mod source;
pub mod story;
pub mod target;

pub use command::Command;
pub use reply::Reply;
pub use target::Target;
