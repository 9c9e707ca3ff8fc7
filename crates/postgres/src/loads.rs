//! Loads: from being asked for to their answers. [`crate::state`] says how they are put together with the log.

use crate::page::page_rows;
use crate::pool::before_head;
use crate::range;
use crate::snapshot::Snapshot;
use crate::state::{Ready, State, TableReadiness};
use crate::work::{Job, Work};
use headwater_base::source::{
    Attributes, Change, FetchId, Health, Loaded, LoadedPart, News, Pair, Portion,
};
use headwater_base::{KeyRange, PackedPairs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A transaction that the log told of.
pub(crate) struct Recent {
    pub(crate) turn: u64,
    pub(crate) xid: u64,
    pub(crate) changes: Arc<[Change]>,
    pub(crate) resets: Arc<[KeyRange]>,
}

/// A load under way.
pub(crate) struct Load {
    prefix: Vec<u8>,
    range: KeyRange,
    portion: Portion,
    deadline: Instant,
    pub(crate) following: bool,
    /// The next turn, and the epoch, when its query began.
    since: u64,
    epoch: u64,
    /// Which declaration its query is of.
    generation: u64,
    begun: Instant,
    /// How often its query was begun or given up.
    attempt: u64,
    /// What its query has given that was not told yet.
    found: Option<Found>,
    /// Whether its query has come to its end.
    is_all: bool,
    /// Whether it was too much for one answer.
    in_pages: bool,
    /// Rows that were told, and their bytes.
    told: (u64, u64),
    /// Why it has been begun again, if it was.
    trouble: Option<String>,
}

/// What a load's query gave, or a part of it.
pub(crate) struct Found {
    pub(crate) snapshot: Snapshot,
    /// Where the log ended after the snapshot was taken.
    pub(crate) horizon: u64,
    pub(crate) pairs: PackedPairs,
    /// The part of the range that they are all of; `None`: all of it.
    pub(crate) known: Option<KeyRange>,
}

/// What a load's query needs.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) ready: Arc<Ready>,
    pub(crate) range: KeyRange,
    pub(crate) portion: Portion,
    /// Which query of its load it is.
    pub(crate) attempt: u64,
    /// How many rows are asked for at once, where they can be asked for in the order of the keys.
    pub(crate) rows_max: u64,
    /// Whether it was too much for one answer.
    pub(crate) in_pages: bool,
}

impl Ready {
    /// Whether an index gives the rows in the order of the keys that are equal in so many columns, texts by their bytes.
    pub(crate) fn is_in_order(&self, fixed: usize) -> bool {
        self.in_order.get(fixed) == Some(&true)
    }

    /// Whether an index serves the condition for a range in full.
    fn is_by_index(&self, range: &KeyRange) -> bool {
        let fixed = || range::fixed_columns(&self.mapping, range);
        range::by_index(&self.mapping, range)
            || fixed().is_some_and(|fixed| self.is_in_order(fixed))
    }
}

/// Loads that begin, with what each asks for.
pub(crate) type Queries = Vec<(FetchId, Query)>;

/// An answer of so many pairs or more goes packed.
const PACKED_PAIRS: usize = 64;
/// So many loads are answered by one query beside the first.
const TOGETHER_MAX: usize = 64;

impl State {
    /// Takes a new load.
    pub(crate) fn load(
        &mut self,
        fetch: FetchId,
        range: &KeyRange,
        portion: Portion,
        deadline: Instant,
    ) {
        let Some((prefix, _)) = self.table_of(&range.first) else {
            let answer = Err("no table is declared for these keys".to_owned());
            return self.tell(News::Loaded { fetch, answer });
        };
        let now = Instant::now();
        let load = Load {
            prefix: prefix.clone(),
            range: range.clone(),
            portion,
            deadline,
            following: false,
            since: 0,
            epoch: 0,
            generation: 0,
            begun: now,
            attempt: 0,
            found: None,
            is_all: false,
            in_pages: false,
            told: (0, 0),
            trouble: None,
        };
        self.watch.loads += 1;
        self.loads.insert(fetch, load);
        self.jobs.push_back(Job {
            work: Work::Load(fetch),
            not_before: now,
            deadline,
            trouble: None,
            alone: false,
        });
    }

    /// Whether a load's query can begin: `Err` says what it waits for.
    pub(crate) fn can_load(&self, fetch: FetchId) -> Result<(), String> {
        let Some(load) = self.loads.get(&fetch) else { return Ok(()) };
        if let Health::Down(reason) = &self.health {
            return Err(reason.clone());
        }
        match self.tables.get(&load.prefix).map(|table| &table.standing) {
            Some(standing @ (TableReadiness::Asked | TableReadiness::Unchecked(_))) => {
                Err(standing.reason())
            }
            _ => Ok(()),
        }
    }

    /// Takes the loads that can begin now out of the queue.
    pub(crate) fn take_loads(&mut self) -> Vec<Job> {
        let now = Instant::now();
        let (mut taken, mut left) = (Vec::new(), std::collections::VecDeque::new());
        for job in std::mem::take(&mut self.jobs) {
            let begins = match job.work {
                Work::Load(fetch) => job.not_before <= now && self.can_load(fetch).is_ok(),
                _ => false,
            };
            if begins {
                taken.push(job);
            } else {
                left.push_back(job);
            }
        }
        self.jobs = left;
        taken
    }

    /// A load's query begins now (J3): what it is to ask, if it is still wanted and possible.
    pub(crate) fn begin_load(&mut self, fetch: FetchId) -> Option<Query> {
        let load = self.loads.get_mut(&fetch)?;
        let Some(table) = self.tables.get_mut(&load.prefix) else {
            self.fail_load(fetch, "the table was withdrawn".to_owned());
            return None;
        };
        let ready = match &table.standing {
            TableReadiness::Ready(ready) => Arc::clone(ready),
            standing => {
                let reason = standing.reason();
                self.fail_load(fetch, reason);
                return None;
            }
        };
        if !load.following {
            load.following = true;
            table.followed.add(&load.range);
        }
        load.since = self.turn;
        load.epoch = self.epoch;
        load.generation = table.generation;
        load.begun = Instant::now();
        load.attempt += 1;
        // What a query gave that has broken off is not of the moment that this one sees.
        (load.found, load.is_all) = (None, false);
        Some(Query {
            ready,
            range: load.range.clone(),
            portion: load.portion,
            attempt: load.attempt,
            rows_max: page_rows(table.row_bytes),
            in_pages: load.in_pages,
        })
    }

    /// A job's load begins, and with it those that wait and are as little served by an index: they read the same rows, and
    /// are best answered by one query. Gives the jobs of the others, and what is to be asked; all of one table.
    pub(crate) fn begin_together(&mut self, fetch: FetchId, alone: bool) -> (Vec<Job>, Queries) {
        let mut beside = Vec::new();
        let by_index = |state: &Self, fetch: FetchId, prefix: &[u8]| {
            let load = state.loads.get(&fetch).filter(|load| load.prefix == prefix)?;
            // One that comes in parts may be too much even for itself.
            if load.portion.rows.is_some() || load.portion.bytes_before > 0 || load.in_pages {
                return None;
            }
            match &state.tables.get(prefix)?.standing {
                TableReadiness::Ready(ready) => Some(ready.is_by_index(&load.range)),
                _ => None,
            }
        };
        let prefix = self.loads.get(&fetch).map(|load| load.prefix.clone()).unwrap_or_default();
        if !alone && by_index(self, fetch, &prefix) == Some(false) {
            let now = Instant::now();
            for job in std::mem::take(&mut self.jobs) {
                let together = match job.work {
                    Work::Load(other) if beside.len() < TOGETHER_MAX && !job.alone => {
                        job.not_before <= now && by_index(self, other, &prefix) == Some(false)
                    }
                    _ => false,
                };
                if together {
                    beside.push(job);
                } else {
                    self.jobs.push_back(job);
                }
            }
        }
        let others = beside.iter().filter_map(|job| match job.work {
            Work::Load(other) => Some(other),
            _ => None,
        });
        let all: Vec<_> = std::iter::once(fetch).chain(others).collect();
        let begun = all.into_iter().filter_map(|fetch| Some((fetch, self.begin_load(fetch)?)));
        let queries: Vec<_> = begun.collect();
        self.watch.loads_together += beside.len() as u64;
        (beside, queries)
    }

    /// What a load's query gave, or the rest of it where parts were told. Tells the answer if the log has been read far enough.
    pub(crate) fn found(&mut self, fetch: FetchId, attempt: u64, found: Found) {
        if self.gather(fetch, attempt, found, true) {
            self.answer(fetch);
        }
    }

    /// Rows that a load's query has given, up to where they are all there are, while it goes on (J6). Tells of them if the log has been read far enough;
    /// whether the rest of the query is wanted.
    pub(crate) fn found_part(&mut self, fetch: FetchId, attempt: u64, found: Found) -> bool {
        if !self.gather(fetch, attempt, found, false) {
            return false;
        }
        self.answer(fetch);
        self.loads.get(&fetch).is_some_and(|load| load.attempt == attempt)
    }

    /// Whether a load that is under way has begun another query since this one.
    pub(crate) fn is_outdated(&self, fetch: FetchId, attempt: u64) -> bool {
        self.loads.get(&fetch).is_some_and(|load| load.attempt != attempt)
    }

    /// Puts what a query gave to what it gave before; whether it is the load's query still.
    fn gather(&mut self, fetch: FetchId, attempt: u64, found: Found, is_all: bool) -> bool {
        let load = self.loads.get_mut(&fetch).filter(|load| load.attempt == attempt);
        let Some(load) = load else { return false };
        self.near = self.near.max(found.snapshot.next);
        // The log may end within the head of a block, which is never told.
        let horizon = before_head(found.horizon, self.watch.log_block_bytes);
        let mut pairs = load.found.take().map(|before| before.pairs).unwrap_or_default();
        let pairs = match pairs.is_empty() {
            true => found.pairs,
            false => {
                pairs.append(&found.pairs);
                pairs
            }
        };
        load.found = Some(Found { horizon, pairs, ..found });
        load.is_all = is_all;
        true
    }

    /// Loads that wait for the log.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = FetchId> {
        self.loads.iter().filter(|(_, load)| load.found.is_some()).map(|(&fetch, _)| fetch)
    }

    /// Whether some load has waited for the log for so long.
    pub(crate) fn waits_for_log(&self, length: Duration) -> bool {
        self.loads.values().any(|load| load.found.is_some() && load.begun.elapsed() >= length)
    }

    /// When the oldest query under way began.
    pub(crate) fn oldest_load(&self) -> Option<Instant> {
        self.loads.values().filter(|load| load.following).map(|load| load.begun).min()
    }

    /// Has a load begin again that is too much for one answer; `false`: it has already.
    pub(crate) fn begin_in_pages(
        &mut self,
        fetch: FetchId,
        deadline: Instant,
        trouble: &str,
    ) -> bool {
        let load = self.loads.get_mut(&fetch).filter(|load| !load.in_pages);
        let Some(load) = load else { return false };
        (load.in_pages, load.deadline) = (true, deadline);
        self.again(fetch, Duration::ZERO, trouble);
        true
    }

    /// Has a load begin again after a pause.
    pub(crate) fn again(&mut self, fetch: FetchId, pause: Duration, trouble: &str) {
        let Some(load) = self.loads.get_mut(&fetch) else { return };
        load.found = None;
        // Whatever its query still gives is not wanted.
        load.attempt += 1;
        load.trouble = Some(trouble.to_owned());
        let (deadline, trouble) = (load.deadline, load.trouble.clone());
        self.watch.loads_again += 1;
        self.put_back = true;
        let not_before = Instant::now() + pause;
        self.jobs.push_back(Job {
            work: Work::Load(fetch),
            not_before,
            deadline,
            trouble,
            alone: false,
        });
    }

    /// Answers a load with what was read at the position up to which changes were told.
    pub(crate) fn answer_now(&mut self, fetch: FetchId, pairs: PackedPairs) {
        let Some(load) = self.loads.get(&fetch) else { return };
        let generation = self.tables.get(&load.prefix).map(|table| table.generation);
        if generation != Some(load.generation) {
            return self.again(fetch, Duration::ZERO, "the table was altered");
        }
        let Some(load) = self.loads.remove(&fetch) else { return };
        self.watch.rows += pairs.len() as u64;
        self.tell_last(fetch, &load.range, pairs, None);
    }

    /// Answers a load with what went wrong.
    pub(crate) fn fail_load(&mut self, fetch: FetchId, message: String) {
        let Some(load) = self.loads.remove(&fetch) else { return };
        if let Some(table) = self.tables.get_mut(&load.prefix).filter(|_| load.following) {
            table.followed.remove(&load.range);
        }
        self.watch.loads_failed += 1;
        self.forget_recent();
        self.tell(News::Loaded { fetch, answer: Err(message) });
    }

    /// Fails loads that have waited for the log too long.
    pub(crate) fn fail_overdue(&mut self) {
        let now = Instant::now();
        let overdue: Vec<_> =
            self.waiting().filter(|fetch| self.loads[fetch].deadline <= now).collect();
        for fetch in overdue {
            let reason = match &self.health {
                Health::Down(reason) => reason.clone(),
                Health::Up => "its changes did not arrive in time".to_owned(),
            };
            self.fail_load(fetch, reason);
        }
    }

    /// Tells the answer of a load whose query is done, if the log has been read far enough.
    fn answer(&mut self, fetch: FetchId) {
        let Some(load) = self.loads.get_mut(&fetch) else { return };
        let Some(table) = self.tables.get(&load.prefix) else {
            return self.fail_load(fetch, "the table was withdrawn".to_owned());
        };
        let TableReadiness::Ready(ready) = &table.standing else {
            // It waits, or fails, where it begins.
            return self.again(fetch, Duration::ZERO, "the table was altered");
        };
        let Some(found) = load.found.as_ref() else { return };
        if load.epoch != self.epoch || load.generation != table.generation {
            return self.again(fetch, Duration::ZERO, "the table was altered");
        }
        if found.snapshot.oldest < ready.since {
            let trouble = "transactions are under way that began before the table was published";
            return self.again(fetch, Duration::from_millis(20), trouble);
        }
        if found.horizon > self.position {
            return;
        }
        let unseen =
            |recent: &&Recent| recent.turn >= load.since && !found.snapshot.sees(recent.xid);
        let told_before = self.told.has_unseen_before(load.since, &found.snapshot)
            || found.snapshot.lacks_some_of(&self.base);
        let doubtful = self
            .recent
            .iter()
            .filter(unseen)
            .any(|recent| recent.resets.iter().any(|range| range.overlaps(&load.range)));
        if told_before || doubtful {
            let trouble = "transactions ended that cannot be seen yet";
            return self.again(fetch, Duration::from_millis(2), trouble);
        }
        let late: Vec<_> =
            self.recent.iter().filter(unseen).map(|recent| Arc::clone(&recent.changes)).collect();
        if load.is_all { self.tell_all(fetch, &late) } else { self.tell_part(fetch, &late) }
    }

    /// Tells of the rows of a load that have come, while others are on their way (J6).
    fn tell_part(&mut self, fetch: FetchId, late: &[Arc<[Change]>]) {
        let position = self.position_at(self.position);
        let Some(load) = self.loads.get_mut(&fetch) else { return };
        let known = load.found.as_ref().and_then(|found| found.known.as_ref());
        let Some(known) = known.map(|known| known.intersection(&load.range)) else { return };
        let rest = load.range.without(&known);
        let ([rest], false) = (&rest[..], known.is_empty()) else { return };
        let Some(found) = load.found.take() else { return };
        load.range = rest.clone();
        let bytes = found.pairs.bytes() as u64;
        load.portion.bytes_before += bytes;
        load.told = (load.told.0 + found.pairs.len() as u64, load.told.1 + bytes);
        self.watch.rows += found.pairs.len() as u64;
        let pairs = with_changes(found.pairs, &known, late);
        self.tell(News::LoadedPart { fetch, part: LoadedPart { position, pairs, known } });
    }

    /// Tells the answer of a load, or what is left of it.
    fn tell_all(&mut self, fetch: FetchId, late: &[Arc<[Change]>]) {
        let Some(Load { prefix, range, found: Some(found), told, .. }) = self.loads.remove(&fetch)
        else {
            return;
        };
        let rows = found.pairs.len() as u64;
        self.watch.rows += rows;
        if let Some(table) = self.tables.get_mut(&prefix) {
            let bytes = told.1 + found.pairs.bytes() as u64;
            if let Some(mean) = bytes.checked_div(told.0 + rows) {
                table.row_bytes = mean.max(1);
            }
            // Nobody is told of what the answer is not of.
            for rest in found.known.iter().flat_map(|known| range.without(known)) {
                table.followed.remove(&rest);
            }
        }
        let known = found.known.map(|known| known.intersection(&range));
        let pairs = with_changes(found.pairs, known.as_ref().unwrap_or(&range), late);
        self.forget_recent();
        self.tell_last(fetch, &range, pairs, known);
    }

    /// Tells all that is left of an answer to a load of `range`. Many pairs go as a part, since each of their own allocations would take more than they do, and
    /// the last pair behind it.
    fn tell_last(
        &mut self,
        fetch: FetchId,
        range: &KeyRange,
        mut pairs: PackedPairs,
        mut known: Option<KeyRange>,
    ) {
        let position = self.position_at(self.position);
        let begins = known.as_ref().is_none_or(|known| known.first == range.first);
        let mut singles = Vec::new();
        if pairs.len() >= PACKED_PAIRS
            && begins
            && let Some((key, value)) = pairs.last()
            && pairs.get(0).is_some_and(|(first, _)| first < key)
        {
            let behind = KeyRange { first: key.to_vec(), last: range.last.clone() };
            singles.push(single(key, value));
            pairs.retain(|key| !behind.contains(key));
            let part = KeyRange::new(&range.first, &behind.first);
            known = known.map(|known| known.intersection(&behind));
            self.tell(News::LoadedPart {
                fetch,
                part: LoadedPart { position, pairs, known: part },
            });
        } else {
            singles.extend(pairs.iter().map(|(key, value)| single(key, value)));
        }
        self.tell(News::Loaded { fetch, answer: Ok(Loaded { position, pairs: singles, known }) });
    }

    /// Answers the loads for which the log has been read far enough.
    pub(crate) fn answer_waiting(&mut self) {
        let position = self.position;
        let arrived = |load: &Load| load.found.as_ref().is_some_and(|at| at.horizon <= position);
        let arrived: Vec<_> =
            self.loads.iter().filter(|(_, load)| arrived(load)).map(|(&fetch, _)| fetch).collect();
        for fetch in arrived {
            self.answer(fetch);
        }
    }

    /// Forgets the transactions that no load under way began before (J2).
    fn forget_recent(&mut self) {
        let following = self.loads.values().filter(|load| load.following);
        let oldest = following.map(|load| load.since).min().unwrap_or(u64::MAX);
        while self.recent.front().is_some_and(|recent| recent.turn < oldest) {
            self.recent.pop_front();
        }
    }
}

/// The last of the changes of each key of a range.
fn changes_within<'a>(
    range: &KeyRange,
    late: &'a [Arc<[Change]>],
) -> BTreeMap<&'a [u8], Option<&'a Vec<u8>>> {
    let all = late.iter().flat_map(|changes| changes.iter());
    let within = all.filter(|change| range.contains(&change.key));
    within.map(|change| (&*change.key, change.value.as_ref())).collect()
}

fn single(key: &[u8], value: &[u8]) -> Pair {
    Pair { key: key.to_vec(), value: value.to_vec(), attributes: Attributes::default() }
}

/// The pairs of a query in the order of their keys, with the changes of a range that it did not see in their places.
fn with_changes(mut pairs: PackedPairs, range: &KeyRange, late: &[Arc<[Change]>]) -> PackedPairs {
    let changed = changes_within(range, late);
    if !changed.is_empty() {
        pairs.retain(|key| !changed.contains_key(key));
        let now = changed.iter().filter_map(|(key, value)| Some((*key, &***value.as_ref()?)));
        now.for_each(|(key, value)| pairs.push(key, value));
    }
    pairs.sort();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_take_the_place_of_what_a_query_saw() {
        let change = |key: &str, value: Option<&str>| Change {
            key: key.into(),
            value: value.map(|value| value.into()),
        };
        let late: [Arc<[Change]>; 2] = [
            [change("a", Some("1")), change("c", None), change("x", Some("beside"))].into(),
            [change("a", Some("2")), change("d", Some("new")), change("e", None)].into(),
        ];
        let seen = [("b", "seen"), ("c", "seen"), ("e", "seen"), ("f", "seen")];
        let pairs: PackedPairs =
            seen.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect();
        let range = KeyRange::new(b"a", b"g");
        let expected = [("a", "2"), ("b", "seen"), ("d", "new"), ("f", "seen")];
        let expected = expected.map(|(key, value)| (key.as_bytes(), value.as_bytes()));
        assert!(with_changes(pairs.clone(), &range, &late).iter().eq(expected));
        assert_eq!(with_changes(pairs.clone(), &range, &[]), pairs);
    }
}
