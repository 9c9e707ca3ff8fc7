//! Answers of loads: what was asked for is here, and goes into the store.

use super::data::Load;
use super::{Here, LoadedId, Provider};
use crate::base::Put;
use crate::engine::Engine;
use crate::report::EngineError;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::placement::Shard;
use headwater_base::source::{Attributes, FetchId, Loaded, Pair, Position};
use headwater_store::TableId;

impl Engine {
    /// The answer to [`Effect::Load`](crate::Effect::Load): the pairs of its range as of a position, or why not.
    /// An answer that nobody waits for any more is ignored.
    pub fn loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) {
        self.arrived(None, fetch, answer);
    }

    /// The answer to [`Effect::LoadFrom`](crate::Effect::LoadFrom): the keys of its range that `home` is home of, or why not.
    /// An answer that nobody waits for any more is ignored.
    pub fn loaded_from(&mut self, home: Shard, fetch: FetchId, answer: Result<Vec<Pair>, String>) {
        // Answers and changes of another shard come in one order: they need no positions.
        let answer = answer.map(|pairs| Loaded { position: Position(0), pairs });
        self.arrived(Some(home), fetch, answer);
    }

    fn arrived(&mut self, from: Option<Shard>, fetch: FetchId, answer: Result<Loaded, String>) {
        match answer {
            Ok(_) => self.retry_followed(),
            Err(_) => self.give_up_followed(),
        }
        if let Some(useless) = self.loads.waits.take_useless(fetch) {
            if answer.is_ok() {
                Provider::Home(useless.home).unfollow(useless.range, &mut self.loads.waits);
            }
            self.loads.waits.wake(fetch);
            return;
        }
        let Some((part, first)) = self.loads.waits.end_load(fetch) else { return };
        assert_eq!(part.home, from, "loads have numbers of their own");
        let Some((data, waits, persistence)) = self.loads.split(part) else { return };
        let Some((range, load)) = data.under_way.remove(&first) else { return };
        let is_own = part.home.is_some()
            || data.is_kept()
            || self.placed.as_deref().is_none_or(|placed| placed.may_own(&range));
        match answer {
            Err(message) => {
                let error = EngineError::SourceFailed { source: data.provider.name(), message };
                waits.fail(fetch, &error);
            }
            Ok(_) if !is_own => {
                // Its home is another shard by now.
                data.provider.unfollow(range, waits);
                waits.wake(fetch);
            }
            Ok(loaded) if loaded.position < load.asked_at => {
                // Changes between were delivered before they were of interest: ask again.
                data.under_way.insert(&range, Load::new(fetch, data.seen));
                waits.file(fetch, part, &first);
                // A source follows the range for each answer.
                data.provider.unfollow(range.clone(), waits);
                data.provider.load(fetch, range, waits, persistence);
            }
            Ok(loaded) => {
                self.take_in(part, &range, load, loaded);
                self.loads.waits.wake(fetch);
            }
        }
    }

    /// Notes that a range is loaded, and stores its keys.
    fn take_in(&mut self, part: LoadedId, range: &KeyRange, load: Load, loaded: Loaded) {
        let hash = self.memory.range_hash(part.table.0, &range.first);
        let heat = self.memory.ranges.inserted(hash, self.statuses.len());
        let here = Here { position: loaded.position, heat };
        let Some(data) = self.loads.data_mut(part) else { return };
        if data.is_kept() {
            data.ranges.merge(range.clone(), here);
        } else {
            data.ranges.insert(range, here);
        }
        let mut pairs = load.with_changes(loaded);
        pairs.retain(|pair| range.contains(&pair.key));
        match part.home {
            Some(home) => {
                for Pair { key, value, .. } in pairs {
                    self.put_replica(home, part.table, &key, &value);
                }
            }
            None => self.take_in_own(part.table, pairs),
        }
    }

    fn take_in_own(&mut self, table: TableId, pairs: Vec<Pair>) {
        let kept = self.is_kept(table);
        for Pair { key, value, attributes: Attributes { expires, flags } } in pairs {
            if self.catalog.gives(table, &key)
                || !self.owns(&key)
                || (kept && !self.takes_kept(table, &key, expires))
            {
                continue;
            }
            let value = self.store.pool.insert(&value);
            self.put(table, &key, Put::loaded(value, expires, flags));
        }
    }
}
