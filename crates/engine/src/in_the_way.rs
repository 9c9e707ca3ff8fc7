//! Base keys that are in the way of a join which is to be installed, looked for in slices.
//!
//! A join is refused while clients' keys match its output. To find out takes a look at all keys that begin as its outputs do. Where
//! that is more than a slice, the look goes on from key to key, and every key that comes meanwhile and matches is noted: so
//! when all were looked at, it is known of each whether it is there. Keys that are removed behind the look have counted.
//!
//! # Cost
//! While a look is under way, each key that is written is matched with its join's output.

use crate::engine::Engine;
use crate::report::{JoinInstalled, Stop, Ticket};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_pattern::{Join, Pattern};
use headwater_store::{Scan, TableId};

/// A look for keys that are in the way.
#[derive(Debug)]
struct Look {
    output: Pattern,
    /// All keys before it were looked at.
    at: Vec<u8>,
    /// All keys were.
    complete: bool,
    /// How many were in the way.
    found: u64,
    /// Keys that match, and came since the look began.
    new: BTreeSet<Box<[u8]>>,
}

/// The looks under way.
#[derive(Debug, Default)]
pub(crate) struct InTheWay {
    /// Those of commands that go on later.
    kept: BTreeMap<Ticket, Look>,
    /// That of the command under way.
    current: Option<Look>,
}

impl InTheWay {
    /// The command of this ticket is run again next.
    #[inline]
    pub(crate) fn resume(&mut self, ticket: Ticket) {
        if !self.kept.is_empty() {
            self.current = self.kept.remove(&ticket);
        }
    }

    /// The operation under way has ended, for now or for good.
    #[inline]
    pub(crate) fn end_operation(&mut self) {
        if self.current.is_some() {
            self.current = None;
        }
    }

    /// Nobody waits for this ticket any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.kept.remove(&ticket);
    }
}

impl Engine {
    /// Notes that a key is about to be written, for those who look for keys.
    #[inline]
    pub(crate) fn note_in_the_way(&mut self, table: TableId, key: &[u8]) {
        if !self.views.in_the_way.kept.is_empty() {
            self.note_new(table, key);
        }
    }

    #[cold]
    fn note_new(&mut self, table: TableId, key: &[u8]) {
        if self.store.table(table).get(key).is_some() {
            return;
        }
        for look in self.views.in_the_way.kept.values_mut() {
            if look.output.matches(key) {
                look.new.insert(key.into());
            }
        }
    }

    /// As [`Engine::join_add`], with most of its work done in slices.
    ///
    /// # Errors
    /// [`Stop::Wait`] where keys must be loaded first, or the slice is over: it is to be run again under its ticket
    /// ([`Engine::resume`]). As for [`Engine::join_add`].
    pub fn join_add_sliced(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, Stop> {
        let added = self.add_in_slices(name, text, replace);
        let look = self.views.in_the_way.current.take();
        if let (Err(Stop::Wait(ticket)), Some(look)) = (&added, look) {
            self.views.in_the_way.kept.insert(*ticket, look);
        }
        added
    }

    fn add_in_slices(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, Stop> {
        self.views.check_new_name(name)?;
        self.know_outputs(text)?;
        self.feed_all_or_wait()?;
        self.look_for_base_keys(text)?;
        if replace {
            self.join_replace_ahead(name, text)?;
        }
        Ok(self.join_add(name, text, replace)?)
    }

    /// Looks for keys that are in the way of a join. A text that is no join is left to [`Engine::join_add`], and so is the look
    /// where nothing is divided.
    fn look_for_base_keys(&mut self, text: &str) -> Result<(), Stop> {
        // Shards agree to a join first, each in one step.
        if !self.reads.slices.is_active() || self.base.placed.is_some() {
            return Ok(());
        }
        let Ok(Join { output, .. }) = Join::parse(text, &self.settings.limits) else {
            return Ok(());
        };
        let mut look = self.views.in_the_way.current.take().unwrap_or_else(|| Look {
            at: output.range_of_all().first,
            output,
            complete: false,
            found: 0,
            new: BTreeSet::new(),
        });
        let goes_on = !look.complete && !self.look_on(&mut look);
        self.views.in_the_way.current = Some(look);
        if goes_on {
            self.reads.slices.end_for_now();
            return Err(self.stop());
        }
        Ok(())
    }

    /// The next slice of a look; whether it was the last one.
    fn look_on(&mut self, look: &mut Look) -> bool {
        let mut left = self.keys_at_once();
        let mut next = None;
        if let Some(table) = self.store.table_of(&look.at) {
            let last = look.output.range_of_all().last;
            let scan =
                Scan { pool: &self.store.pool, first: &look.at, last: &last, reverse: false };
            let _ = self.store.table(table).scan(&scan, &mut Vec::new(), &mut |key, _| {
                if left == 0 {
                    next = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                left -= 1;
                look.found += u64::from(
                    !look.new.contains(key) && self.is_in_the_way(&look.output, table, key),
                );
                ControlFlow::Continue(())
            });
        }
        look.complete = next.is_none();
        look.at = next.unwrap_or_default();
        look.complete
    }

    /// Whether a stored key is one of clients that a join with this output may not find.
    fn is_in_the_way(&self, output: &Pattern, table: TableId, key: &[u8]) -> bool {
        output.matches(key) && self.owns(key) && !self.views.catalog.gives(table, key)
    }

    /// How many base keys match an output.
    pub(crate) fn base_keys_in_the_way(&mut self, output: &Pattern) -> u64 {
        let all = output.range_of_all();
        let Some(table) = self.store.table_of(&all.first) else { return 0 };
        if let Some(look) = &self.views.in_the_way.current
            && look.complete
            && look.output == *output
        {
            let keys = self.store.table(table);
            let there = look
                .new
                .iter()
                .filter(|key| keys.get(key).is_some() && self.is_in_the_way(output, table, key));
            return look.found + there.count() as u64;
        }
        let scan =
            Scan { pool: &self.store.pool, first: &all.first, last: &all.last, reverse: false };
        let mut found = 0;
        let _ = self.store.table(table).scan(&scan, &mut Vec::new(), &mut |key, _| {
            found += u64::from(self.is_in_the_way(output, table, key));
            ControlFlow::Continue(())
        });
        found
    }
}
