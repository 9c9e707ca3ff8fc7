//! Change counts of single keys, for optimistic transactions.
//!
//! Every write of a base key counts. A derived key is not written by anybody: it counts as
//! changed if its value differs from the one seen last when it is looked at.

use alloc::boxed::Box;
use alloc::vec::Vec;
use hashbrown::HashMap;
use headwater_base::hash::KeyHashBuilder;

use crate::engine::Engine;
use crate::report::Stop;

#[derive(Debug)]
struct Watch {
    users: usize,
    changes: u64,
    /// What the key was when last looked at: a derived key changes without being written.
    last: Option<Vec<u8>>,
}

/// The keys that transactions watch.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    keys: HashMap<Box<[u8]>, Watch, KeyHashBuilder>,
}

impl Watches {
    /// Counts a write of `key`.
    #[inline]
    pub(crate) fn note(&mut self, key: &[u8]) {
        if !self.keys.is_empty()
            && let Some(watch) = self.keys.get_mut(key)
        {
            watch.changes += 1;
        }
    }

    /// Counts a write of every key that was there.
    pub(crate) fn note_all(&mut self) {
        self.keys.values_mut().for_each(|watch| watch.changes += u64::from(watch.last.is_some()));
    }
}

impl Engine {
    /// Starts counting the changes of `key` for an optimistic transaction. Each call is
    /// undone by one [`Engine::unwatch`].
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        let last = self.get(key)?.map(|value| value.to_vec());
        let watch = self.watches.keys.entry(key.into()).or_insert(Watch {
            users: 0,
            changes: 0,
            last: last.clone(),
        });
        watch.users += 1;
        if watch.last != last {
            watch.changes += 1;
            watch.last = last;
        }
        Ok(watch.changes)
    }

    /// The change count of a watched `key`: any change since [`Engine::watch`] makes it differ.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        let last = self.get(key)?.map(|value| value.to_vec());
        let Some(watch) = self.watches.keys.get_mut(key) else { return Ok(0) };
        if watch.last != last {
            watch.changes += 1;
            watch.last = last;
        }
        Ok(watch.changes)
    }

    /// Ends what one [`Engine::watch`] began.
    pub fn unwatch(&mut self, key: &[u8]) {
        if let Some(watch) = self.watches.keys.get_mut(key) {
            watch.users -= 1;
            if watch.users == 0 {
                self.watches.keys.remove(key);
            }
        }
    }
}
