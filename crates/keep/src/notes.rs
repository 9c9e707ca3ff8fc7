//! What the shard keeps for itself beside the keys: names with texts, in batches with the writes of keys.
//!
//! They are written as keys are, and read on the spot: so they should be few at a time, and what was
//! told is visible only when it was committed ([`Notes::committed`]).

use crate::record;
use crate::shared::lock;
use crate::{KeeperQueue, describe};
use fjall::Readable;
use headwater_base::Millis;
use headwater_base::source::Position;
use std::sync::Arc;

/// The name of the note that says when keys were last gone because their time was over. No other note's name begins as it does.
pub(crate) const TIME: &[u8] = b"n";

/// The shard's end of its notes.
#[derive(Clone, Debug)]
pub struct Notes {
    pub(crate) front: Arc<KeeperQueue>,
}

impl Notes {
    /// Keeps a text under a name that is not empty.
    pub fn put(&mut self, name: &[u8], text: &[u8]) -> Position {
        Position(lock(&self.front.gathered).turn.note(name, text))
    }

    /// Forgets a name.
    pub fn remove(&mut self, name: &[u8]) -> Position {
        Position(lock(&self.front.gathered).turn.unnote(name))
    }

    /// The last operation that reads can see.
    #[must_use]
    pub fn committed(&self) -> Position {
        Position(lock(&self.front.shared.progress).committed)
    }

    /// The last moment at which keys were gone because their time was over ([`note_time`](headwater_base::source::BaseStore::note_time)).
    ///
    /// # Errors
    /// As for [`Notes::read`].
    pub fn time(&self) -> Result<Option<Millis>, String> {
        let mut time = None;
        self.read(TIME, &[TIME, &[0]].concat(), false, &mut |_, text| {
            time = text.first_chunk().map(|bytes| Millis(u64::from_be_bytes(*bytes)));
            true
        })?;
        Ok(time)
    }

    /// Gives the committed notes whose names are in `[first, last)`, in order, or from the last one on, until `each`
    /// has enough and says `false`.
    ///
    /// # Errors
    /// The store cannot be read, or a note is not what was written.
    pub fn read(
        &self,
        first: &[u8],
        last: &[u8],
        reverse: bool,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), String> {
        let shared = &self.front.shared;
        let snapshot = shared.database.snapshot();
        let mut found =
            snapshot.range::<&[u8], _>(&shared.notes, headwater_base::key::bounds(first, last));
        while let Some(guard) = if reverse { found.next_back() } else { found.next() } {
            let (name, sealed) = guard.into_inner().map_err(|error| describe(&error))?;
            let Some((text, _)) = record::read_value(&name, &sealed) else {
                return Err(format!("the note '{}' is damaged", name.escape_ascii()));
            };
            if !each(&name, text) {
                break;
            }
        }
        Ok(())
    }
}
