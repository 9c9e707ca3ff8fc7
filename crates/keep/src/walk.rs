//! Looks at all keys, on the shard's thread: what belongs together but does not lie together is found so.
//!
//! # Cost
//! All keys are read, but where a survey has found those that count; of values, those in the same blocks. Removing costs a copy of each key that goes.

use crate::loader::View;
use crate::record::read_value;
use crate::shared::lock;
use crate::survey::Survey;
use crate::{StoreHandle, describe};
use fjall::Readable;
use headwater_base::source::{BaseStore, Pair};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How long writes may take until they are safe.
const SETTLE: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_micros(200);
/// Keys that are removed at once.
const KEYS: usize = 4096;

/// Waits until all that was told is safe.
pub(crate) fn settle(keeper: &StoreHandle) -> Result<(), String> {
    let (shared, begun) = (&keeper.front.shared, Instant::now());
    let last = keeper.front.ask_sync();
    while shared.durable.load(Ordering::Acquire) < last.0 {
        if shared.failed.load(Ordering::Acquire) {
            let why = lock(&shared.refusals).why().cloned();
            return Err(why.map_or_else(
                || String::from("data can no longer be written"),
                |it| it.to_string(),
            ));
        }
        if begun.elapsed() > SETTLE {
            return Err(format!(
                "the disk has not made writes safe in {} seconds",
                SETTLE.as_secs()
            ));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// The keys that `wanted` names, with what they hold.
pub(crate) fn gather(
    keeper: &StoreHandle,
    wanted: &dyn Fn(&[u8]) -> bool,
    bytes_max: u64,
) -> Result<Vec<Pair>, String> {
    // Nothing that was told is lost then, and all of it is in the view.
    settle(keeper)?;
    let View { snapshot, keys, .. } = View::of(&keeper.front.shared)?;
    let (mut pairs, mut bytes) = (Vec::new(), 0);
    let mut add = |key: &[u8], record: &[u8]| {
        let damaged = || format!("the record of the key '{}' is damaged", key.escape_ascii());
        let (value, attributes) = read_value(key, record).ok_or_else(damaged)?;
        bytes += (key.len() + value.len() + size_of::<Pair>()) as u64;
        if bytes > bytes_max {
            return Err(format!(
                "they have more than {bytes_max} bytes, which is too much at once"
            ));
        }
        pairs.push(Pair { key: key.to_vec(), value: value.to_vec(), attributes });
        Ok(())
    };
    let surveyed = lock(&keeper.front.gathered).survey.as_ref().and_then(Survey::keys);
    if let Some(surveyed) = surveyed {
        for key in surveyed.iter().filter(|key| wanted(key)) {
            let record = snapshot.get(&keys, key).map_err(|error| describe(&error))?;
            if let Some(record) = record {
                add(key, &record)?;
            }
        }
        return Ok(pairs);
    }
    for guard in snapshot.iter(&keys) {
        let (key, record) =
            guard.into_inner_if(|key| wanted(key)).map_err(|error| describe(&error))?;
        if let Some(record) = record {
            add(&key, &record)?;
        }
    }
    Ok(pairs)
}

impl StoreHandle {
    /// Removes the keys that `unwanted` names, and waits until they are gone for good; gives how many there were.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn remove_where(&mut self, unwanted: &dyn Fn(&[u8]) -> bool) -> Result<u64, String> {
        settle(self)?;
        let View { snapshot, keys, .. } = View::of(&self.front.shared)?;
        let mut count = 0;
        let mut some = Vec::new();
        for guard in snapshot.iter(&keys) {
            let key = guard.key().map_err(|error| describe(&error))?;
            if unwanted(&key) {
                // A copy: what the store gives keeps the block in memory that it was read in.
                some.push(key.to_vec());
                count += 1;
            }
            if some.len() == KEYS {
                some.drain(..).for_each(|key| _ = self.remove(&key));
                self.front.commit();
            }
        }
        some.iter().for_each(|key| _ = self.remove(key));
        settle(self)?;
        Ok(count)
    }
}
