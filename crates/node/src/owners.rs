//! Whose definitions are, as the commands tell that show one.
//!
//! The node knows nothing of users: whoever does tells it where to ask.

use crate::node::Node;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_command::Reply;

/// Whose a definition is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ownership {
    /// The user who defined it; empty: nobody from whom rights can be taken.
    pub owner: Vec<u8>,
    /// Why it is refused; empty: it is not.
    pub refused: String,
}

/// Tells whose a definition is, by what it is (`join`, `flow`, `module`) and its name.
pub type Owners = dyn Fn(&str, &str) -> Ownership + Send;

impl Ownership {
    /// So many facts [`Ownership::write`] writes.
    pub(crate) const FACTS: usize = 2;

    pub(crate) fn write(&self, reply: &mut impl Reply) {
        reply.bulk(b"owner");
        reply.bulk(&self.owner);
        reply.bulk(b"refused");
        reply.bulk(self.refused.as_bytes());
    }
}

impl Node {
    /// Has commands that show a definition ask here whose it is.
    pub fn set_owners(&mut self, owners: Box<Owners>) {
        self.owners = Some(owners);
    }

    /// Whose a definition is.
    pub(crate) fn ownership(&self, kind: &str, name: &str) -> Ownership {
        self.owners.as_ref().map(|owners| owners(kind, name)).unwrap_or_default()
    }
}
