//! The checks themselves are checked: a subject that is right passes, one that has a fault in
//! one place is caught, within a few hundred seeds, and the history that shows it gets short.
//!
//! The subject here is the oracle behind the engine's interface, which is enough to see whether
//! the comparison would notice; whether the engine is right is `histories.rs`.

use crate::faulty::{assert_caught, assert_passes};
use headwater_base::{KeyRange, Millis, prefix_end};
use headwater_engine::{
    Difference, Engine, EngineError, Expiry, JoinInstalled, JoinReport, RangeOptions, Settings,
    Stats, Stop, TableOptions, TableReport,
};
use headwater_model::check::Kind;
use headwater_model::copies::unfollowed;
use headwater_model::history::Op;
use headwater_model::join::{Join, Mode, Operator};
use headwater_model::oracle::{Oracle, Pairs, Verdict, View, within};
use headwater_model::subject::{FeedChange, FollowerNotification, Pair, Subject};
use std::collections::BTreeMap;

/// What is wrong with a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The third overwrite in a history is not seen by joins.
    DropsAnUpdate,
    /// The copies of an overwritten value stay as they were until the next write.
    CopiesStay,
    /// A removal leaves what was derived from the key.
    KeepsAfterRemoval,
    /// A count of zero stays as `0`.
    ZeroCounts,
    /// A range that ends inside a component loses its last pair.
    CutsAtOddEnds,
    /// The earlier-installed join's value is seen.
    EarlierJoinWins,
    /// Snapshots are kept for a millisecond too long.
    StaleSnapshots,
    /// Writes to derived keys are accepted.
    AcceptsWrites,
    /// Reading the other way round forgets the limit.
    ReverseForgetsLimit,
    /// Expiry does not reach derived keys until the next write.
    ExpiryUnnoticed,
    /// Verification invents a difference where a key holds the byte 0xFF.
    VerifyInvents,
    /// A scan gives a key twice.
    ScansTwice,
    /// A scan loses the rest where keys come in between its steps.
    ScanLosesKeys,
    /// A random key is invented.
    RandomKeyOfNothing,
    /// A watch does not see derived changes.
    WatchIsBlind,
    /// Circles of joins are accepted.
    AcceptsCircles,
    /// An overwritten value is never freed.
    Leaks,
    /// Keys that expire are counted wrongly.
    ForgetsExpiries,
    /// Several keys are set up to the one that is refused.
    SetsHalf,
    /// Several keys are removed up to the one that is refused.
    RemovesHalf,
    /// A key that is renamed stays.
    RenameCopies,
    /// A copy lives for ever.
    CopyForgetsExpiry,
    /// A number is added to twice where it is negative.
    AddsTwice,
    /// A write that is refused for want of memory has happened.
    RefusalsWrite,
    /// Followers are not told that a derived key is gone.
    TellsOfNoEnd,
    /// Followers are told of changes only when a base key has been written.
    TellsLate,
}

struct Standin {
    fault: Fault,
    oracle: Oracle,
    writes: u64,
    ghosts: Pairs,
    stayed: Pairs,
    kept: BTreeMap<u64, (u64, Pairs)>,
    boundaries: BTreeMap<Vec<u8>, usize>,
    /// Whatever may have changed a key; a watch is told of all of it.
    events: u64,
    /// How many keys there were at the last step of a scan.
    scanned: usize,
    /// What is followed, and what the followers know.
    followed: Vec<(u32, KeyRange)>,
    known: BTreeMap<u32, Pairs>,
    engine: Engine,
}

fn standin(fault: Fault) -> Box<dyn Subject> {
    Box::new(Standin {
        fault,
        oracle: Oracle::default(),
        writes: 0,
        ghosts: Pairs::new(),
        stayed: Pairs::new(),
        kept: BTreeMap::new(),
        boundaries: BTreeMap::new(),
        events: 0,
        scanned: 0,
        followed: Vec::new(),
        known: BTreeMap::new(),
        engine: Engine::new(Settings::default()),
    })
}

impl Standin {
    fn view(&mut self) -> View {
        let (now, kept) = (self.oracle.now, &mut self.kept);
        let extra = u64::from(self.fault == Fault::StaleSnapshots);
        let (oracle, mut fresh) = (&self.oracle, None::<View>);
        let mut view = oracle.view_with(&mut |installed, made| {
            let Mode::Snapshot(millis) = installed.join.mode else { return made };
            match kept.get(&installed.serial) {
                Some((since, pairs)) if now <= since + millis + extra => pairs.clone(),
                _ => {
                    // It is computed through the snapshots below it.
                    let fresh = fresh.get_or_insert_with(|| oracle.view());
                    let made = fresh.made[&installed.serial].clone();
                    kept.insert(installed.serial, (now, made.clone()));
                    made
                }
            }
        });
        for (key, value) in &self.ghosts {
            view.seen.entry(key.clone()).or_insert_with(|| value.clone());
        }
        for (key, value) in &self.stayed {
            view.seen.entry(key.clone()).and_modify(|seen| seen.clone_from(value));
        }
        if self.fault == Fault::EarlierJoinWins {
            for installed in self.oracle.joins.iter().rev() {
                view.seen.extend(view.made[&installed.serial].clone());
            }
        }
        view
    }

    fn joined(&self, key: &[u8]) -> Result<(), EngineError> {
        match self.oracle.owners(key).first() {
            Some(_) if self.fault == Fault::AcceptsWrites => Ok(()),
            None if key.len() > 1024 => {
                Err(EngineError::KeyTooLong { length: key.len(), max: 1024 })
            }
            Some(join) => Err(EngineError::Joined { join: (*join).to_string() }),
            None => Ok(()),
        }
    }

    fn haunt(&mut self, before: &View) {
        let after = self.view();
        for (key, value) in &before.seen {
            let derived = !self.oracle.owners(key).is_empty();
            if derived && !after.seen.contains_key(key) {
                self.ghosts.insert(key.clone(), value.clone());
            }
        }
    }
}

impl Subject for Standin {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }
    fn advance(&mut self, now: Millis) {
        self.events += 1;
        let before = self.view();
        self.oracle.advance(now.0);
        if self.fault == Fault::ExpiryUnnoticed {
            self.haunt(&before);
        }
    }
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        Ok(self.view().seen.get(key).cloned())
    }
    fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        self.events += 1;
        self.joined(key)?;
        self.ghosts.clear();
        self.stayed.clear();
        let before = (self.fault == Fault::CopiesStay).then(|| self.view());
        let at = match expiry {
            Expiry::Keep => self.oracle.base.get(key).and_then(|(_, at)| *at),
            Expiry::Never => None,
            Expiry::At(at) => Some(at.0),
        };
        let overwrites = self.oracle.base.contains_key(key);
        self.writes += u64::from(overwrites);
        if overwrites && self.fault == Fault::DropsAnUpdate && self.writes == 3 {
            return Ok(());
        }
        self.oracle.base.insert(key.to_vec(), (value.to_vec(), at));
        let now = self.oracle.now;
        self.oracle.advance(now);
        if let Some(before) = before.filter(|_| overwrites) {
            let derived = before.seen.into_iter();
            self.stayed = derived.filter(|(key, _)| !self.oracle.owners(key).is_empty()).collect();
        }
        if self.fault == Fault::RefusalsWrite && self.writes % 4 == 3 {
            return Err(EngineError::OutOfMemory);
        }
        Ok(())
    }
    fn check(&mut self, key: &[u8]) -> Result<(), EngineError> {
        self.joined(key)
    }
    fn may_run_out(&mut self) -> bool {
        self.fault == Fault::RefusalsWrite
    }
    fn incr(&mut self, key: &[u8], by: i64) -> Result<Option<i64>, Stop> {
        let (value, _) = self.oracle.base.get(key).cloned().unwrap_or((b"0".to_vec(), None));
        let old: Option<i64> = str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        let old = old.filter(|old| old.to_string().as_bytes() == value);
        let new = old.and_then(|old| old.checked_add(by));
        let Some(new) = new else { return Ok(None) };
        let twice = self.fault == Fault::AddsTwice && new < 0;
        let stored = new + if twice { by } else { 0 };
        self.set(key, stored.to_string().as_bytes(), Expiry::Keep)?;
        Ok(Some(new))
    }
    fn copy(&mut self, from: &[u8], to: &[u8], replace: bool) -> Result<bool, Stop> {
        let seen = self.view().seen;
        let Some(value) = seen.get(from) else { return Ok(false) };
        if !replace && seen.contains_key(to) {
            return Ok(false);
        }
        let at = self.oracle.base.get(from).and_then(|(_, at)| *at);
        let at = at.filter(|_| self.fault != Fault::CopyForgetsExpiry);
        self.set(to, value, at.map_or(Expiry::Never, |at| Expiry::At(Millis(at))))?;
        Ok(true)
    }
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<bool, Stop> {
        if !self.view().seen.contains_key(from) {
            return Ok(false);
        }
        self.joined(from)?;
        if from != to {
            self.copy(from, to, true)?;
            if self.fault != Fault::RenameCopies {
                self.remove(from)?;
            }
        }
        Ok(true)
    }
    fn set_all(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Stop> {
        for (key, _) in pairs.iter().filter(|_| self.fault != Fault::SetsHalf) {
            self.joined(key)?;
        }
        for (key, value) in pairs {
            self.set(key, value, Expiry::Never)?;
        }
        Ok(())
    }
    fn remove_all(&mut self, keys: &[Vec<u8>]) -> Result<u64, Stop> {
        for key in keys.iter().filter(|_| self.fault != Fault::RemovesHalf) {
            self.joined(key)?;
        }
        let mut removed = 0;
        for key in keys {
            removed += u64::from(self.remove(key)?);
        }
        Ok(removed)
    }
    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<usize, Stop> {
        self.events += 1;
        self.joined(key)?;
        let (value, _) = self.oracle.base.entry(key.to_vec()).or_default();
        value.extend_from_slice(tail);
        Ok(value.len())
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        self.events += 1;
        if key.is_empty() || key.len() > 1024 {
            return Ok(false);
        }
        self.joined(key)?;
        let before = self.view();
        let there = self.oracle.base.remove(key).is_some();
        if self.fault == Fault::KeepsAfterRemoval {
            self.haunt(&before);
        }
        if self.fault == Fault::ZeroCounts {
            for installed in self.oracle.joins.clone() {
                let old = before.made[&installed.serial].clone();
                let new = &self.oracle.view().made[&installed.serial];
                for key in old.into_keys() {
                    if installed.join.value_source().0 == Operator::Count && !new.contains_key(&key)
                    {
                        self.ghosts.insert(key, b"0".to_vec());
                    }
                }
            }
        }
        Ok(there)
    }
    fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        self.events += 1;
        if key.is_empty() || key.len() > 1024 {
            return Ok(false);
        }
        self.joined(key)?;
        let Some((_, kept)) = self.oracle.base.get_mut(key) else { return Ok(false) };
        *kept = at.map(|at| at.0);
        let now = self.oracle.now;
        self.oracle.advance(now);
        Ok(true)
    }
    fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        let base = self.oracle.base.get(key).map(|(_, at)| at.map(Millis));
        Ok(base.or_else(|| self.view().seen.contains_key(key).then_some(None)))
    }
    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
    ) -> Result<Vec<Pair>, Stop> {
        let seen = self.view().seen;
        let mut pairs: Vec<Pair> =
            seen.into_iter().filter(|(key, _)| within(key, first, last)).collect();
        let odd = !last.is_empty() && last.last() != Some(&b'}') && first.contains(&b'|');
        if self.fault == Fault::CutsAtOddEnds && odd {
            pairs.pop();
        }
        let mut limit = options.limit;
        if options.reverse {
            pairs.reverse();
            if self.fault == Fault::ReverseForgetsLimit {
                limit = None;
            }
        }
        pairs.truncate(limit.unwrap_or(u64::MAX) as usize);
        Ok(pairs)
    }
    fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        self.events += 1;
        let before = self.oracle.base.len();
        self.oracle.base.retain(|key, _| !within(key, first, last));
        Ok((before - self.oracle.base.len()) as u64)
    }
    fn key_count(&mut self) -> u64 {
        self.view().seen.len() as u64
    }
    fn scan(&mut self, cursor: &[u8], count: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        let seen = self.view().seen;
        let mut keys: Vec<Vec<u8>> =
            seen.into_keys().filter(|key| key.as_slice() >= cursor).collect();
        let next = if count < keys.len() { keys[count].clone() } else { Vec::new() };
        keys.truncate(count);
        let grown = !cursor.is_empty() && self.scanned < self.oracle.base.len();
        self.scanned = self.oracle.base.len();
        if self.fault == Fault::ScanLosesKeys && grown {
            return (Vec::new(), Vec::new());
        }
        if self.fault == Fault::ScansTwice && next.is_empty() && keys.len() > 1 {
            keys[1] = keys[0].clone();
        }
        (next, keys)
    }
    fn random_key(&mut self, draw: u64) -> Option<Vec<u8>> {
        let keys: Vec<Vec<u8>> = self.view().seen.into_keys().collect();
        if self.fault == Fault::RandomKeyOfNothing && keys.len() == 2 {
            return Some(b"nothing".to_vec());
        }
        keys.get((draw % keys.len().max(1) as u64) as usize).cloned()
    }
    fn flush(&mut self) {
        self.events += 1;
        self.oracle.base.clear();
    }
    fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.watched(key)
    }
    fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        let blind = self.fault == Fault::WatchIsBlind && !self.oracle.owners(key).is_empty();
        Ok(if blind { 0 } else { self.events })
    }
    fn unwatch(&mut self, _key: &[u8]) {}
    fn join_add(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        self.events += 1;
        let refuse = |why: String| Err(EngineError::Refused(why));
        if name == "damaged" {
            return refuse(String::from("damaged"));
        }
        let join = Join::parse(text).expect("histories write the full form");
        match self.oracle.verdict(name, &join, replace) {
            Verdict::Accept => self.oracle.install(name, join.clone()),
            Verdict::Unsure => unreachable!("histories skip these joins"),
            Verdict::Refuse(None) if self.fault == Fault::AcceptsCircles => {}
            Verdict::Refuse(found) => return refuse(format!("{} keys", found.unwrap_or(0))),
        }
        let warnings = vec![String::from("it may be ambiguous")];
        Ok(JoinInstalled { canonical: join.to_string(), warnings })
    }
    fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        self.events += 1;
        self.ghosts.clear();
        let gone = self.oracle.uninstall(name);
        if gone { Ok(()) } else { Err(EngineError::NoSuchJoin(name.to_string())) }
    }
    fn joins(&mut self) -> Vec<JoinReport> {
        let report = |name: &str| JoinReport {
            name: name.to_string(),
            canonical: String::new(),
            warnings: Vec::new(),
            boundaries: Vec::new(),
            counters: Vec::new(),
        };
        self.oracle.joins.iter().map(|installed| report(&installed.name)).collect()
    }
    fn table_set(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        self.boundaries.insert(name.to_vec(), options.boundary.unwrap_or(0));
        Ok(())
    }
    fn tables(&mut self) -> Vec<TableReport> {
        let report = |name: &[u8], boundary, named, keys| TableReport {
            name: name.to_vec(),
            boundary,
            named,
            keys,
            groups: 0,
            key_bytes: 0,
            index_bytes: 0,
            value_bytes: 0,
        };
        // The unnamed table is said to hold everything.
        let all = report(b"", 0, false, self.key_count());
        let named = self.boundaries.iter();
        let reports = named.map(|(name, boundary)| report(name, *boundary, true, 0)).chain([all]);
        reports.collect()
    }
    fn stats(&mut self) -> Stats {
        let expiring = self.oracle.base.values().filter(|(_, at)| at.is_some()).count() as u64;
        let forgotten = self.fault == Fault::ForgetsExpiries;
        let leaks = self.fault == Fault::Leaks && self.writes > 0 && self.oracle.joins.is_empty();
        Stats {
            keys: self.key_count(),
            keys_with_expiry: if forgotten { 0 } else { expiring },
            value_bytes: u64::from(leaks),
            ..Stats::default()
        }
    }
    fn follow(&mut self, by: u32, range: &KeyRange) -> Result<Vec<Pair>, Stop> {
        if self.oracle.joins.iter().any(|installed| !installed.join.mode.is_maintained()) {
            return Err(EngineError::Refused(String::from("not a push join")).into());
        }
        self.followed.push((by, range.clone()));
        let pairs = self.range(&range.first, &range.last, RangeOptions::default())?;
        self.known.entry(by).or_default().extend(pairs.iter().cloned());
        Ok(pairs)
    }
    fn unfollow(&mut self, by: u32, range: &KeyRange) {
        self.followed = unfollowed(std::mem::take(&mut self.followed), by, range);
        self.known.entry(by).or_default().retain(|key, _| !range.contains(key));
    }
    fn told(&mut self) -> Vec<FollowerNotification> {
        let mut told = Vec::new();
        if self.oracle.joins.iter().any(|installed| !installed.join.mode.is_maintained()) {
            self.known.clear();
            for (by, range) in std::mem::take(&mut self.followed) {
                told.push(FollowerNotification {
                    followers: vec![by],
                    change: FeedChange::Reset(range),
                });
            }
            return told;
        }
        if self.fault == Fault::TellsLate && !self.events.is_multiple_of(5) {
            return told;
        }
        let seen = self.view().seen;
        let (followed, oracle) = (&self.followed, &self.oracle);
        for (by, known) in &mut self.known {
            let follows = |key: &Vec<u8>| {
                followed.iter().any(|(other, range)| other == by && range.contains(key))
            };
            let mut tell = |change: FeedChange| {
                told.push(FollowerNotification { followers: vec![*by], change })
            };
            for (key, value) in seen.iter().filter(|(key, _)| follows(key)) {
                if known.get(key) != Some(value) {
                    tell(FeedChange::Set(key.clone(), value.clone()));
                }
            }
            for key in known.keys().filter(|key| !seen.contains_key(*key)) {
                if self.fault != Fault::TellsOfNoEnd || oracle.owners(key).is_empty() {
                    tell(FeedChange::Gone(key.clone()));
                }
            }
            *known = seen.clone();
            known.retain(|key, _| follows(key));
        }
        told
    }
    fn verify(&mut self, range: &KeyRange, _most: usize) -> Result<Vec<Difference>, Stop> {
        let seen = self.view().seen;
        let invented = seen.keys().find(|key| range.contains(key) && key.contains(&0xff));
        let found = invented.filter(|_| self.fault == Fault::VerifyInvents);
        let difference = |key: &Vec<u8>| Difference {
            key: key.clone(),
            stored: None,
            recomputed: Some(Vec::new()),
        };
        Ok(found.into_iter().map(difference).collect())
    }
}

#[test]
fn a_right_subject_passes() {
    assert_passes(Kind::Plain, 600, || standin(Fault::None));
}

macro_rules! caught {
    ($($name:ident: $fault:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_caught(Kind::Plain, $fault, 14, || standin($fault));
        }
    )*};
}

caught! {
    a_dropped_update_is_caught: Fault::DropsAnUpdate;
    copies_that_stay_are_caught: Fault::CopiesStay;
    a_kept_output_is_caught: Fault::KeepsAfterRemoval;
    a_zero_count_is_caught: Fault::ZeroCounts;
    a_short_range_is_caught: Fault::CutsAtOddEnds;
    the_wrong_join_on_top_is_caught: Fault::EarlierJoinWins;
    a_stale_snapshot_is_caught: Fault::StaleSnapshots;
    an_accepted_write_is_caught: Fault::AcceptsWrites;
    a_forgotten_limit_is_caught: Fault::ReverseForgetsLimit;
    an_unnoticed_expiry_is_caught: Fault::ExpiryUnnoticed;
    an_invented_difference_is_caught: Fault::VerifyInvents;
    a_double_scan_is_caught: Fault::ScansTwice;
    a_scan_that_loses_keys_is_caught: Fault::ScanLosesKeys;
    an_invented_random_key_is_caught: Fault::RandomKeyOfNothing;
    a_blind_watch_is_caught: Fault::WatchIsBlind;
    a_leak_is_caught: Fault::Leaks;
    a_wrong_count_of_expiries_is_caught: Fault::ForgetsExpiries;
    an_accepted_circle_is_caught: Fault::AcceptsCircles;
    a_change_that_is_not_told_is_caught: Fault::TellsOfNoEnd;
    a_change_that_is_told_late_is_caught: Fault::TellsLate;
    a_half_set_of_keys_is_caught: Fault::SetsHalf;
    a_half_removal_of_keys_is_caught: Fault::RemovesHalf;
    a_rename_that_copies_is_caught: Fault::RenameCopies;
    a_copy_that_forgets_when_it_expires_is_caught: Fault::CopyForgetsExpiry;
    a_wrong_sum_is_caught: Fault::AddsTwice;
    a_refused_write_that_has_happened_is_caught: Fault::RefusalsWrite;
}

#[test]
fn histories_are_the_same_for_ever_and_of_every_kind() {
    let of = headwater_model::generate::history;
    assert_eq!(of(5), of(5));
    let all: Vec<Op> = (0..300).flat_map(of).collect();
    let count = |what: fn(&Op) -> bool| all.iter().filter(|op| what(op)).count();
    assert!(count(|op| matches!(op, Op::Flush)) > 0);
    assert!(count(|op| matches!(op, Op::Range { .. })) > 2000);
    assert!(count(|op| matches!(op, Op::Multi)) > 200);
    for what in [
        (|op| matches!(op, Op::Incr { .. })) as fn(&Op) -> bool,
        |op| matches!(op, Op::Copy { .. }),
        |op| matches!(op, Op::Rename { .. }),
        |op| matches!(op, Op::SetAll { .. }),
        |op| matches!(op, Op::RemoveAll { .. }),
    ] {
        assert!(count(what) > 200);
    }
    let inner = |op: &Op| match op {
        Op::Range { first, last, .. } => !last.is_empty() && *last != prefix_end(first),
        _ => false,
    };
    assert!(count(inner) > 500);
}
