//! Why something was refused, as a client is told it.

use alloc::string::String;

/// Why something was refused: what goes from shard to shard where one needs something of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardRefusal {
    /// The kind of error, which a client's error begins with.
    pub code: String,
    /// What is wrong.
    pub text: String,
}
