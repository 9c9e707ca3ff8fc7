//! The end of a simulation: once nothing is under way, everything is right; once everything is dropped, nothing is left.

use crate::clients::Ask;
use crate::disk::Disk;
use crate::faults::Faults;
use crate::requests::LIFE;
use crate::shard::One;
use crate::world::World;
use headwater_base::{KeyRange, Shard};
use headwater_engine::{Follower, RemoteReport, Stats};
use headwater_model::join::Mode;
use headwater_node::Open;
use std::collections::BTreeSet;

/// Room that tables and lists have been given for more entries, and keep without any, in bytes.
const ROOM: u64 = 16 << 10;

impl World {
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        self.faults = Faults::default();
        self.shards.iter_mut().for_each(|one| one.stopped_until = 0);
        self.end_change()?;
        self.patiently()?;
        // What was lost is found out by then, keys have expired, and snapshots show nothing of before.
        self.pass(5_000 + LIFE as u64 + self.oldest_snapshot())?;
        self.patiently()?;
        // Before reads have everything loaded again.
        while !self.source.is_idle() {
            self.pass(100)?;
        }
        self.patiently()?;
        self.check_open()?;
        self.check_follows()?;
        self.quiet = true;
        for _ in 0..2 {
            for prefix in self.domain.prefixes.clone() {
                self.ask_all(0, &Ask::Range(KeyRange::prefix(prefix.as_bytes())))?;
                self.ask_all(0, &Ask::Verify(KeyRange::prefix(prefix.as_bytes())))?;
            }
            self.patiently()?;
        }
        self.pass(300)?;
        // The parts of a snapshot end at different moments.
        self.patiently()?;
        self.check_watches()?;
        self.check_scans()?;
        self.check_follows()?;
        self.check_open()?;
        self.note_pieces();
        self.clear()
    }

    /// For how long an answer may be old.
    fn oldest_snapshot(&self) -> u64 {
        let ages = self.joins.joins.iter().map(|join| match join.join.mode {
            Mode::Snapshot(millis) => millis,
            _ => 0,
        });
        ages.sum()
    }

    /// Notes what shards have done piece by piece.
    fn note_pieces(&mut self) {
        for one in &self.shards {
            for (name, what) in
                [("ranges_gathered", "ranges gathered"), ("folds_gathered", "folds gathered")]
            {
                let stats = one.engine.stats();
                let found = stats.counters.iter().find(|(counter, _)| *counter == name);
                *self.seen.entry(what).or_default() += found.expect("a counter").1;
            }
        }
    }

    /// Checks that watching clients have what they watch, as it is.
    fn check_watches(&mut self) -> Result<(), String> {
        self.check_shards()?;
        let (_, whole) = self.whole();
        for (at, one) in self.shards.iter().enumerate() {
            let mut own = whole.seen.clone();
            own.retain(|key, _| self.placement.home(key) == one.me);
            one.copies.compare(&own).map_err(|text| format!("shard {at}: {text}"))?;
            for (by, range) in &self.watches {
                let home = self.placement.home_of_range(range);
                let expected = if home.is_none_or(|home| home == one.me) {
                    vec![range.clone()]
                } else {
                    Vec::new()
                };
                let followed = one.engine.followed_by(Follower(*by));
                let (more, less) = (without(&followed, &expected), without(&expected, &followed));
                if !more.is_empty() || !less.is_empty() {
                    return Err(format!(
                        "shard {at} tells client {by} of {more:?}, not of {less:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that scans give each shard's own keys, each once, and none of others.
    fn check_scans(&self) -> Result<(), String> {
        for one in &self.shards {
            let mut keys = Vec::new();
            one.engine.scan(b"", usize::MAX, &mut |key| keys.push(key.to_vec()));
            let count = keys.len();
            let keys: BTreeSet<_> = keys.into_iter().collect();
            if count != keys.len() || count as u64 != one.engine.key_count() {
                let counted = one.engine.key_count();
                return Err(format!("{:?} scans {count} keys, counts {counted}", one.me));
            }
            if let Some(key) = keys.iter().find(|key| self.placement.home(key) != one.me) {
                return Err(format!("{:?} scans {}", one.me, key.escape_ascii()));
            }
            let missing = one.oracle.base.keys().find(|key| !keys.contains(*key));
            if let Some(key) = missing.filter(|_| one.disk.is_none()) {
                return Err(format!("{:?} does not scan {}", one.me, key.escape_ascii()));
            }
        }
        Ok(())
    }

    /// Checks that each home tells others of what they hold, and of nothing else.
    fn check_follows(&self) -> Result<(), String> {
        for home in &self.shards {
            for other in self.shards.iter().filter(|other| other.me != home.me) {
                let followed = home.engine.followed_by(Follower(u32::from(other.me.0)));
                let loaded = other.engine.loaded_of(home.me);
                let (more, less) = (without(&followed, &loaded), without(&loaded, &followed));
                if !more.is_empty() || !less.is_empty() {
                    return Err(format!(
                        "{:?} tells {:?} of {more:?} in vain, and not of {less:?}",
                        home.me, other.me
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that nothing is waited for.
    fn check_open(&self) -> Result<(), String> {
        for (at, one) in self.shards.iter().enumerate() {
            let (open, waiting) = (one.peers.open(), one.engine.waiting());
            let remote = one.engine.remote();
            let idle = open == (Open::default(), 0)
                && waiting + (remote.loading + remote.withdrawn) as usize == 0
                && one.engine.is_followed_current()
                && !one.engine.goes_on()
                && !one.disk.as_ref().is_some_and(Disk::is_asked);
            if !idle {
                return Err(format!(
                    "shard {at} waits: {open:?}, {waiting} operations, {remote:?}"
                ));
            }
        }
        Ok(())
    }

    /// Drops everything: nothing may be left.
    fn clear(&mut self) -> Result<(), String> {
        for by in self.watches.keys().copied().collect::<Vec<_>>() {
            self.unwatch(by)?;
        }
        for name in self.joins.joins.iter().map(|join| join.name.clone()).collect::<Vec<_>>() {
            self.joins.uninstall(&name);
            for at in 0..self.shards.len() {
                let one = &mut self.shards[at];
                one.engine.join_drop(&name).map_err(|error| error.to_string())?;
                one.oracle.uninstall(&name);
                one.engine.check_invariants();
            }
            self.settle_all()?;
        }
        self.pass(1000)?;
        self.patiently()?;
        self.check_open()?;
        for one in &self.shards {
            check_without_joins(one)?;
        }
        let flush = self.source.keeps_anything() || self.rng.chance(30);
        for at in 0..self.shards.len() {
            let one = &mut self.shards[at];
            let keys = std::mem::take(&mut one.oracle.base);
            if flush {
                one.engine.flush();
                continue;
            }
            for key in keys.into_keys() {
                let there = one.patient(&mut self.rng, |engine| engine.remove(&key));
                if there != Ok(true) {
                    return Err(format!("removing {} gives {there:?}", key.escape_ascii()));
                }
            }
        }
        self.settle_all()?;
        self.patiently()?;
        if let [range, ..] = self.source.left()[..] {
            return Err(format!("the source tells of {range:?} in vain"));
        }
        for at in 0..self.shards.len() {
            let shard = Shard(at as u16);
            let tables = (&*self.boundaries, &*self.sourced);
            let disk = self.shards[at].disk.clone();
            let new = One::new(shard, &self.placement, tables, disk, 99, self.now);
            check_empty(&self.shards[at], &new)?;
        }
        Ok(())
    }
}

/// What is left of some ranges without others.
fn without(ranges: &[KeyRange], others: &[KeyRange]) -> Vec<KeyRange> {
    let mut left = ranges.to_vec();
    for other in others {
        left = left.iter().flat_map(|range| range.without(other)).collect();
    }
    left
}

/// Checks that without joins nothing of others is here.
fn check_without_joins(one: &One) -> Result<(), String> {
    let (me, stats, remote) = (one.me, one.engine.stats(), one.engine.remote());
    let left = stats.updaters + stats.updater_targets + stats.status_ranges;
    if left > 0 || remote != RemoteReport::default() {
        return Err(format!("{me:?} keeps {remote:?}, {stats:?}"));
    }
    if one.engine.is_anything_followed() {
        return Err(format!("{me:?} still tells of changes"));
    }
    Ok(())
}

/// Checks that without keys and joins a shard keeps no more than one that has just started.
fn check_empty(one: &One, new: &One) -> Result<(), String> {
    let (left, fresh) = (one.engine.stats(), new.engine.stats());
    let figures = |stats: &Stats| {
        [
            ("keys", stats.keys, 0),
            ("keys with expiry", stats.keys_with_expiry, 0),
            ("groups", stats.groups, 0),
            ("bytes of keys", stats.key_bytes, 0),
            ("bytes of values", stats.value_bytes, 0),
            ("bytes of streams", stats.stream_bytes, 0),
            ("bytes of indexes", stats.index_bytes, ROOM),
            ("bytes of updaters", stats.updater_bytes, ROOM),
            ("bytes of status ranges", stats.status_range_bytes, ROOM),
        ]
    };
    one.engine.check_invariants();
    for ((name, left, room), (_, fresh, _)) in figures(&left).into_iter().zip(figures(&fresh)) {
        if left > fresh + room {
            return Err(format!("{:?} keeps {left} {name}; a new one has {fresh}", one.me));
        }
    }
    Ok(())
}
