//! Who is told of changes: transactions that watch, near caches, flows, events of keys, followers of ranges.

use crate::follow::Follows;
use crate::keyspace::KeyspaceEvents;
use crate::marks::Marks;
use crate::noted::Notes;
use crate::watches::Watches;
use headwater_base::hash::Secret;

/// What is to be told, and to whom.
#[derive(Debug)]
pub(crate) struct Notifications {
    pub(crate) marks: Marks,
    pub(crate) watches: Watches,
    pub(crate) notes: Notes,
    pub(crate) events: KeyspaceEvents,
    pub(crate) follows: Follows,
}

impl Notifications {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            marks: Marks::new(secret),
            watches: Watches::default(),
            notes: Notes::default(),
            events: KeyspaceEvents::default(),
            follows: Follows::default(),
        }
    }
}
