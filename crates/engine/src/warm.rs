//! Fetching ahead: what a batch of operations will touch is on its way into the processor's cache
//! before the first of them runs. So are the spans that an execution reads for the next rows of a source.
//!
//! # Cost
//! A write finds its updater, that updater's target, the status range of it and the place of
//! the output each at the end of the one before, so each is a cache miss of its own. Here the steps of
//! all operations of the batch are taken side by side, and their misses overlap.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::maintain::leading;
use crate::updaters::{Reader, Trail};
use crate::views::Views;
use alloc::vec::Vec;
use headwater_pattern::Bindings;
use headwater_pool::prefetch;
use headwater_store::WARM_MAX;

/// Readers of a table whose updaters are fetched ahead.
const READERS_WARMED: usize = 2;
/// Steps from a key to the outputs of its only target.
const TRAIL_STEPS: usize = 6;
/// Fewer rows than this are not worth fetching ahead for.
const WARMED_MIN: usize = 4;

impl Engine {
    /// Fetches what operations on these keys will touch into the processor's cache. A hint.
    pub fn warm(&self, keys: &[&[u8]]) {
        let tables = self.store.warm(keys);
        let mut trails = [Trail::End; READERS_WARMED * WARM_MAX];
        let mut count = 0;
        for (table, key) in tables.into_iter().zip(keys) {
            let readers = self.views.catalog.role(table).map_or(&[][..], |role| &role.readers);
            for &reader in readers.iter().take(READERS_WARMED) {
                trails[count] = self.views.warm_updater(reader, key);
                count += usize::from(trails[count] != Trail::End);
            }
        }
        let trails = &mut trails[..count];
        let mut outputs: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
        let mut found = 0;
        for _ in 0..TRAIL_STEPS {
            for trail in &mut *trails {
                let Trail::Range(id) = *trail else {
                    *trail = self.warm_next(*trail);
                    continue;
                };
                *trail = Trail::End;
                let Some(status) = self.views.statuses.find(id) else { continue };
                match status.group {
                    Some(group) => {
                        let layer = self.views.catalog.join(status.join).layer;
                        self.store.table(layer).fetch_record(group);
                        *trail = Trail::Group(layer, group);
                    }
                    // The whole key: the range is that of one output.
                    None if !status.open && found < WARM_MAX => {
                        outputs[found] = status.first();
                        status.first().first().into_iter().for_each(prefetch);
                        found += 1;
                    }
                    None => {}
                }
            }
        }
        if found > 0 {
            self.store.warm(&outputs[..found]);
        }
    }

    /// Fetches what the loops below the next rows of a level will read. `text` holds the rows, of
    /// which the first begins at `start`.
    //
    // A function of its own: its room would be a part of each level's otherwise, of which thousands may be within one another.
    #[inline(never)]
    pub(crate) fn warm_level(
        &self,
        plan: &Plan,
        level: usize,
        bindings: &Bindings<'_>,
        text: &[u8],
        ends: &[usize],
        start: usize,
    ) {
        let ends = &ends[..ends.len().min(WARM_MAX)];
        if ends.len() < WARMED_MIN {
            return;
        }
        let (source, next) = (plan.source(level), plan.pattern(level + 1));
        let mut prefixes = Vec::with_capacity(text.len());
        let mut bounds = [0; WARM_MAX + 1];
        let mut row = 0;
        let mut inner = *bindings;
        let mark = inner.mark();
        for (at, &end) in ends.iter().enumerate() {
            inner.restore(mark);
            if source.bind(&text[row..end - start], &mut inner) {
                next.bound_prefix(&inner, &mut prefixes);
            }
            row = end - start;
            bounds[at + 1] = prefixes.len();
        }
        let mut keys: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
        for (key, bounds) in keys.iter_mut().zip(bounds.windows(2)).take(ends.len()) {
            *key = &prefixes[bounds[0]..bounds[1]];
        }
        self.store.warm(&keys[..ends.len()]);
    }

    /// Fetches what comes next on a trail.
    #[inline]
    fn warm_next(&self, trail: Trail) -> Trail {
        match trail {
            Trail::Only(status) => {
                self.views.statuses.fetch(status);
                Trail::Range(status)
            }
            Trail::Group(layer, group) => {
                self.store.table(layer).fetch_end(group);
                Trail::End
            }
            trail => self.views.updaters.warm_next(trail),
        }
    }
}

impl Views {
    /// Begins to fetch what a reader does where `key` changes.
    #[inline]
    fn warm_updater(&self, reader: Reader, key: &[u8]) -> Trail {
        let installed = self.catalog.join(reader.join);
        let depths = installed.depths[reader.source as usize];
        if depths == 0 {
            return Trail::End;
        }
        let components = installed.plan.pattern(reader.source as usize).components.len();
        let depth = depths.trailing_zeros() as usize;
        self.updaters.warm_first(reader, leading(key, depth, components))
    }
}
