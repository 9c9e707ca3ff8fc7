//! Runs a history in which sources keep some of the tables: loads are answered late, out of
//! order or not at all, while the data changes.
//!
//! A source tells its changes in order; an answer shows it at some moment since the load was
//! asked. Where that moment is not after the last change told, the engine knows of every
//! followed range what the source held after the last change told: the answers to reads must
//! then be those of the oracle over that state. Where an answer is ahead of what was told, ranges
//! may differ by a few changes until the source has told them; reads are compared from then on.
//!
//! What else must hold: a load is asked for keys of the source's tables alone, and never for keys
//! that are open or followed already (concurrent reads of one range cause one load). A read
//! that waits is woken, and once the sources answer everything, it is answered.

use crate::copies::Copies;
use crate::drive::Failure;
use crate::history::{Op, Until, line};
use crate::join::Join;
use crate::oracle::{Oracle, Pairs, Verdict, within};
use crate::subject::{Pair, Subject};
use headwater_base::{KeyRange, Limits, Millis, table_of};
use headwater_engine::{
    Difference, Effect, EngineError, Expiry, RangeOptions, Stop, TableOptions, Ticket,
};
use headwater_script::bytes::escape;
use headwater_script::source::{OpenLoad, ScriptedSource};
use std::collections::BTreeMap;

const BROKEN: &str = "broken";
/// How often followers may begin anew within one operation.
const PATIENCE: usize = 100;

/// A read that was asked for and is not answered.
#[derive(Clone, Debug)]
enum Read {
    Pairs { first: Vec<u8>, last: Vec<u8>, options: RangeOptions },
    Value { key: Vec<u8> },
    Expiry { key: Vec<u8> },
    Verify { range: KeyRange },
    Watch { key: Vec<u8> },
    Watched { key: Vec<u8>, count: u64, value: Option<Vec<u8>> },
    Follow { by: u32, range: KeyRange },
}

/// What it gave.
enum Given {
    Pairs(Vec<Pair>),
    Value(Option<Vec<u8>>),
    /// Whether there is such a key.
    Expiry(bool),
    Verify(Vec<Difference>),
    Count(u64),
}

struct Run<'a> {
    subject: &'a mut dyn Subject,
    /// Joins, and the base keys of tables without a source.
    oracle: Oracle,
    /// The tables that have a source.
    tables: BTreeMap<Vec<u8>, String>,
    sources: BTreeMap<String, ScriptedSource>,
    /// The latest moment that an answer of a source showed.
    shown: BTreeMap<String, u64>,
    waiting: Vec<(Ticket, Read)>,
    /// Watched keys, with what they were.
    watches: Vec<Read>,
    copies: Copies,
    failed_loads: usize,
    effects: usize,
}

/// Runs `ops` on a fresh `subject`; operations that do not go with sources are left out.
///
/// # Errors
/// Where and how the subject differs from the oracle.
pub fn run(subject: &mut dyn Subject, ops: &[Op]) -> Result<(), Failure> {
    let mut run = Run {
        subject,
        oracle: Oracle::default(),
        tables: BTreeMap::new(),
        sources: BTreeMap::new(),
        shown: BTreeMap::new(),
        waiting: Vec::new(),
        watches: Vec::new(),
        copies: Copies::default(),
        failed_loads: 0,
        effects: 0,
    };
    run.subject.engine().choose_eagerly();
    run.subject.advance(Millis(1_000_000));
    for (at, op) in ops.iter().enumerate() {
        run.subject.engine().go_on();
        let step = run.step(op).and_then(|()| run.settle());
        step.map_err(|text| Failure { ops: at + 1, message: format!("{}: {text}", line(op)) })?;
        run.subject.engine().check_invariants();
    }
    run.finish().map_err(|text| Failure { ops: ops.len(), message: format!("at the end: {text}") })
}

/// Some loads are answered by a part at a time.
fn rows_of(load: &OpenLoad) -> usize {
    match load.fetch.0 % 5 {
        0 => 1,
        1 => 3,
        _ => usize::MAX,
    }
}

/// Some loads bring so many rows after the other before they are answered.
fn rows_before(load: &OpenLoad) -> Option<usize> {
    match load.fetch.0 % 5 {
        2 => Some(1),
        3 => Some(2),
        _ => None,
    }
}

/// Answers a load, or brings the first rows of its answer.
fn answer(subject: &mut dyn Subject, state: &mut ScriptedSource, mut load: OpenLoad, moment: u64) {
    let rows = rows_before(&load);
    if let Some(part) = rows.and_then(|rows| state.answer_before(&mut load, moment, rows)) {
        let fetch = load.fetch;
        state.open.push(load);
        return subject.loaded_part(fetch, part);
    }
    let loaded = state.answer_part(&load, moment, rows_of(&load));
    subject.loaded(load.fetch, Ok(loaded));
}

impl Run<'_> {
    fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Source { table, source } => {
                let known = self.tables.contains_key(table);
                let used =
                    self.oracle.base.keys().any(|key| table_of(key) == Some(table.as_slice()));
                if known || used {
                    return Ok(());
                }
                self.tables.insert(table.clone(), source.clone());
                self.sources.entry(source.clone()).or_default();
                let options =
                    TableOptions { source: Some(source.clone()), ..TableOptions::default() };
                expect(&self.subject.table_set(table, &options), &Ok(()))
            }
            Op::TableSet { name, boundary } => {
                let options = TableOptions { boundary: Some(*boundary), ..TableOptions::default() };
                expect(&self.subject.table_set(name, &options), &Ok(()))
            }
            Op::JoinAdd { name, join, replace } => self.join_add(name, join, *replace),
            Op::JoinDrop { name } => {
                let known = self.oracle.uninstall(name);
                let none = Err(EngineError::NoSuchJoin(name.clone()));
                expect(&self.subject.join_drop(name), &if known { Ok(()) } else { none })
            }
            Op::Set { key, value, until: Until::Ever } => self.set(key, value),
            Op::Remove { key } if !key.is_empty() => self.remove(key),
            Op::AtSource { source, key, value } => {
                let kept = table_of(key).and_then(|table| self.tables.get(table));
                if kept == Some(source) {
                    self.source(source)?.change(key, value.clone());
                }
                Ok(())
            }
            Op::Compact { keys } => {
                self.subject.engine().compact_any(*keys);
                Ok(())
            }
            Op::Evict { draw, count } => {
                let gone = self.subject.evict(*draw, *count);
                if gone.is_empty() { Ok(()) } else { Err(format!("loses {gone:?}")) }
            }
            Op::Tell { source, most } => self.tell(source, *most),
            Op::Lose { source } => {
                if let Some(state) = self.sources.get_mut(source) {
                    state.lose();
                    self.subject.source_reset(source);
                }
                Ok(())
            }
            Op::Answer { source, load, as_of } => {
                let Some(state) = self.sources.get_mut(source) else { return Ok(()) };
                let Some(load) = state.take(*load) else { return Ok(()) };
                let moment = state.moment(&load, *as_of);
                let shown = self.shown.entry(source.clone()).or_default();
                *shown = moment.max(*shown);
                answer(self.subject, state, load, moment);
                Ok(())
            }
            Op::Fail { source, load } => {
                let Some(state) = self.sources.get_mut(source) else { return Ok(()) };
                let Some(load) = state.take(*load) else { return Ok(()) };
                self.failed_loads += 1;
                self.subject.loaded(load.fetch, Err(BROKEN.to_string()));
                Ok(())
            }
            Op::Get { key } => self.ask(Read::Value { key: key.clone() }),
            Op::Expiry { key } => self.ask(Read::Expiry { key: key.clone() }),
            Op::Verify { first, last } => {
                self.ask(Read::Verify { range: KeyRange::new(first, last) })
            }
            Op::Watch { key } => self.ask(Read::Watch { key: key.clone() }),
            Op::Watched => self.watches.clone().into_iter().try_for_each(|watch| self.ask(watch)),
            Op::Follow { by, first, last } => {
                let range = KeyRange::new(first, last);
                if range.is_empty() { Ok(()) } else { self.ask(Read::Follow { by: *by, range }) }
            }
            Op::Unfollow { by, first, last } => {
                let range = KeyRange::new(first, last);
                // What has happened until now is told still.
                self.hear()?;
                self.copies.cut(*by, &range);
                self.subject.unfollow(*by, &range);
                Ok(())
            }
            Op::Range { first, last, reverse, limit } => {
                let options = RangeOptions { reverse: *reverse, limit: *limit };
                self.ask(Read::Pairs { first: first.clone(), last: last.clone(), options })
            }
            _ => Ok(()),
        }
    }

    fn source(&mut self, name: &str) -> Result<&mut ScriptedSource, String> {
        self.sources.get_mut(name).ok_or_else(|| format!("`{name}` is no source"))
    }

    fn tell(&mut self, source: &str, most: usize) -> Result<(), String> {
        if let Some(state) = self.sources.get_mut(source) {
            for (position, change) in state.tell(most) {
                self.subject.changed(source, position, &[change]);
            }
        }
        Ok(())
    }

    fn join_add(&mut self, name: &str, join: &Join, replace: bool) -> Result<(), String> {
        // Keys that a source has, or had, must not match a new output pattern: whether the
        // engine refuses the join depends on what of them is loaded.
        if self.sources.values().any(|source| ever_held(source, join)) {
            return Ok(());
        }
        match self.oracle.verdict(name, join, replace) {
            Verdict::Accept => {
                let given = self.subject.join_add(name, &join.to_string(), replace);
                self.oracle.install(name, join.clone());
                given.map(|_| ()).map_err(|error| format!("gives {error:?}"))
            }
            Verdict::Refuse(_) => match self.subject.join_add(name, &join.to_string(), replace) {
                Err(EngineError::Refused(_) | EngineError::KeysInTheWay(_)) => Ok(()),
                other => Err(format!("gives {other:?}, expected a refusal")),
            },
            Verdict::Unsure => Ok(()),
        }
    }

    /// Whether clients may write the key, and that they cannot where they may not.
    fn refused(&self, key: &[u8], error: Option<&EngineError>) -> Result<bool, String> {
        let owned = !self.oracle.owners(key).is_empty();
        let sourced = table_of(key).is_some_and(|table| self.tables.contains_key(table));
        match error {
            Some(EngineError::Joined { .. }) if owned => Ok(true),
            Some(EngineError::Refused(_)) if sourced => Ok(true),
            Some(EngineError::KeyTooLong { length, max })
                if *length == key.len()
                    && length > max
                    && *max == Limits::default().key_bytes_max =>
            {
                Ok(true)
            }
            None if !owned && !sourced => Ok(false),
            error => Err(format!("gives {error:?} (a join's: {owned}, a source's: {sourced})")),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let given = self.subject.set(key, value, Expiry::Never);
        if !self.refused(key, given.as_ref().err())? {
            self.oracle.base.insert(key.to_vec(), (value.to_vec(), None));
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), String> {
        let given = self.subject.remove(key);
        let error = match &given {
            Err(Stop::Failed(error)) => Some(error),
            _ => None,
        };
        if !self.refused(key, error)? {
            expect(&given, &Ok(self.oracle.base.remove(key).is_some()))?;
        }
        Ok(())
    }

    fn attempt(&mut self, read: &Read) -> Result<Given, Stop> {
        Ok(match read {
            Read::Pairs { first, last, options } => {
                Given::Pairs(self.subject.range(first, last, *options)?)
            }
            Read::Value { key } => Given::Value(self.subject.get(key)?),
            Read::Expiry { key } => Given::Expiry(self.subject.expiry(key)?.is_some()),
            Read::Verify { range } => Given::Verify(self.subject.verify(range, 10)?),
            Read::Watch { key } => Given::Count(self.subject.watch(key)?),
            Read::Watched { key, .. } => Given::Count(self.subject.watched(key)?),
            Read::Follow { by, range } => {
                let pairs = self.subject.follow(*by, range)?;
                self.copies.add(*by, range, pairs.clone());
                Given::Pairs(pairs)
            }
        })
    }

    fn ask(&mut self, read: Read) -> Result<(), String> {
        match self.attempt(&read) {
            Ok(given) => self.compare(&read, given),
            Err(Stop::Wait(ticket)) => {
                self.waiting.push((ticket, read));
                Ok(())
            }
            Err(Stop::Failed(EngineError::Refused(_)))
                if matches!(read, Read::Follow { .. }) && self.has_other_modes() =>
            {
                Ok(())
            }
            Err(Stop::Failed(error)) => self.may_fail(error),
        }
    }

    fn has_other_modes(&self) -> bool {
        let mut joins = self.oracle.joins.iter();
        joins.any(|installed| !installed.join.mode.is_maintained())
    }

    /// Applies what followers are told, to the last; what they lose they follow anew.
    fn hear(&mut self) -> Result<(), String> {
        for _ in 0..PATIENCE {
            let told = self.subject.told();
            if told.is_empty() {
                return Ok(());
            }
            // In the slices of this more may happen that is told.
            for (by, range) in self.copies.hear(told)? {
                self.ask(Read::Follow { by, range })?;
            }
        }
        Err(String::from("what is told does not end"))
    }

    fn compare_copies(&mut self) -> Result<(), String> {
        // Large fan-outs come to followers slice by slice.
        if !self.copies.is_empty() && !self.subject.engine().is_followed_current() {
            return Ok(());
        }
        // While something is loaded, reads of what is followed may have to wait.
        let mut sources = self.sources.iter();
        let settled = sources.all(|(name, state)| {
            state.open.is_empty() && self.shown.get(name) <= Some(&state.told())
        });
        // While an answer is taken in, reads of what is followed may have to wait, too.
        let reports = self.subject.engine().sources();
        let settled = settled && reports.iter().all(|report| report.loading == 0);
        if settled && !self.copies.is_empty() { self.copies.compare(&self.seen()) } else { Ok(()) }
    }

    /// What a reader sees who knows of all that the sources have told.
    fn seen(&self) -> Pairs {
        let mut oracle = self.oracle.clone();
        for state in self.sources.values() {
            // A source may hold keys that a join makes: they are not seen.
            let mut pairs = state.pairs_at(state.told());
            pairs.retain(|key, _| self.oracle.owners(key).is_empty());
            oracle.base.extend(pairs.into_iter().map(|(key, value)| (key, (value, None))));
        }
        oracle.view().seen
    }

    /// Whether a read may fail so: a source said that a load is broken.
    fn may_fail(&self, error: EngineError) -> Result<(), String> {
        match error {
            EngineError::SourceFailed { source, message }
                if message == BROKEN
                    && self.failed_loads > 0
                    && self.sources.contains_key(&source) =>
            {
                Ok(())
            }
            error => Err(format!("gives {error:?}")),
        }
    }

    fn compare(&mut self, read: &Read, given: Given) -> Result<(), String> {
        if self.sources.iter().any(|(name, state)| self.shown.get(name) > Some(&state.told())) {
            return Ok(());
        }
        let mut seen = self.seen();
        let right = match (read, given) {
            (Read::Pairs { first, last, options }, Given::Pairs(pairs)) => {
                seen.retain(|key, _| within(key, first, last));
                let mut right: Vec<Pair> = seen.into_iter().collect();
                if options.reverse {
                    right.reverse();
                }
                right.truncate(options.limit.unwrap_or(u64::MAX) as usize);
                compare_pairs(&pairs, &right)
            }
            (Read::Follow { range, .. }, Given::Pairs(pairs)) => {
                seen.retain(|key, _| range.contains(key));
                compare_pairs(&pairs, &seen.into_iter().collect::<Vec<_>>())
            }
            (Read::Value { key }, Given::Value(value)) => expect(&value.as_ref(), &seen.get(key)),
            (Read::Expiry { key }, Given::Expiry(there)) => expect(&there, &seen.contains_key(key)),
            (Read::Verify { .. }, Given::Verify(found)) => expect(&found, &Vec::new()),
            (Read::Watch { key }, Given::Count(count)) => {
                let (key, value) = (key.clone(), seen.get(key).cloned());
                self.watches.push(Read::Watched { key, count, value });
                Ok(())
            }
            (Read::Watched { key, count, value }, Given::Count(now)) => {
                let missed = seen.get(key) != value.as_ref() && now == *count;
                if missed { Err(String::from("misses a change")) } else { Ok(()) }
            }
            _ => unreachable!("an answer fits its read"),
        };
        right.map_err(|text| format!("{read:?}: {text}"))
    }

    /// Takes effects until there are none.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            let mut effects = self.subject.take_effects();
            if effects.is_empty() {
                self.hear()?;
                effects = self.subject.take_effects();
            }
            if effects.is_empty() {
                return self.compare_copies();
            }
            self.effects += effects.len();
            if self.effects > 100_000 {
                return Err(String::from("the effects do not end"));
            }
            for effect in effects {
                match effect {
                    Effect::Load { fetch, source, range, portion } => {
                        self.may_load(&source, &range)?;
                        self.source(&source)?.ask(fetch, range, portion);
                    }
                    Effect::Unfollow { source, range } => self.source(&source)?.unfollow(&range),
                    Effect::LoadFrom { .. }
                    | Effect::ResumeFrom { .. }
                    | Effect::UnfollowAt { .. } => {} // There is one shard.
                    Effect::Wake(ticket) => {
                        let at = self.waiting.iter().position(|(waits, _)| *waits == ticket);
                        let at = at.ok_or_else(|| format!("nobody waits for {ticket:?}"))?;
                        let (_, read) = self.waiting.remove(at);
                        self.subject.engine().resume(ticket);
                        self.ask(read)?;
                    }
                    Effect::Fail { ticket, error } => {
                        let at = self.waiting.iter().position(|(waits, _)| *waits == ticket);
                        let at = at.ok_or_else(|| format!("nobody waits for {ticket:?}"))?;
                        self.waiting.remove(at);
                        self.may_fail(error)?;
                    }
                }
            }
        }
    }

    fn may_load(&self, source: &str, range: &KeyRange) -> Result<(), String> {
        let shown = format!("[{}, {})", escape(&range.first), escape(&range.last));
        let of_table = |(table, keeper): (&Vec<u8>, &String)| {
            keeper == source && KeyRange::prefix(&[&table[..], b"|"].concat()).covers(range)
        };
        if range.is_empty() || !self.tables.iter().any(of_table) {
            return Err(format!("{source} is asked for {shown}, which is none of its tables"));
        }
        let state = &self.sources[source];
        let open = state.open.iter().map(|load| &load.range);
        if let Some(twice) = open.chain(&state.followed).find(|known| known.overlaps(range)) {
            let twice = format!("[{}, {})", escape(&twice.first), escape(&twice.last));
            return Err(format!("{source} is asked for {shown}, though {twice} is open or there"));
        }
        Ok(())
    }

    /// Answers everything that is open, until nothing waits.
    fn drain(&mut self) -> Result<(), String> {
        for _ in 0..1000 {
            self.settle()?;
            let names: Vec<String> = self.sources.keys().cloned().collect();
            let mut idle = true;
            for name in names {
                self.tell(&name, usize::MAX)?;
                let state = self.sources.get_mut(&name).ok_or("no such source")?;
                if let Some(load) = state.take(1) {
                    idle = false;
                    let position = state.position();
                    answer(self.subject, state, load, position);
                }
            }
            self.settle()?;
            for _ in 0..10_000 {
                if !self.subject.engine().goes_on() {
                    break;
                }
                self.subject.engine().go_on();
                self.settle()?;
            }
            if idle && self.sources.values().all(|state| state.open.is_empty()) {
                let waiting = self.waiting.len();
                return expect(&waiting, &0)
                    .map_err(|_| format!("{waiting} reads wait, though everything was answered"));
            }
        }
        Err(String::from("the loads do not end"))
    }

    /// Everything is told and answered; then every table and the whole store is read.
    fn finish(&mut self) -> Result<(), String> {
        self.drain()?;
        self.failed_loads = 0;
        let outputs = self.oracle.joins.iter().map(|join| join.join.output.table.clone());
        let tables: Vec<Vec<u8>> =
            self.tables.keys().cloned().chain(outputs.map(String::into_bytes)).collect();
        for table in tables {
            let KeyRange { first, last } = KeyRange::prefix(&[&table[..], b"|"].concat());
            self.ask(Read::Pairs { first, last, options: RangeOptions::default() })?;
            self.drain()?;
        }
        let options = RangeOptions::default();
        self.ask(Read::Pairs { first: Vec::new(), last: Vec::new(), options })?;
        self.drain()?;
        self.step(&Op::Watched)?;
        self.ask(Read::Verify { range: KeyRange::all() })?;
        self.drain()
    }
}

fn ever_held(source: &ScriptedSource, join: &Join) -> bool {
    (0..=source.position()).any(|at| source.pairs_at(at).keys().any(|key| join.output.matches(key)))
}

fn compare_pairs(given: &[Pair], right: &[Pair]) -> Result<(), String> {
    if given == right {
        return Ok(());
    }
    let show = |pairs: &[Pair]| {
        let lines = pairs.iter().map(|(k, v)| format!("\n    {} = {}", escape(k), escape(v)));
        lines.collect::<String>()
    };
    Err(format!("gives{}\n  expected{}", show(given), show(right)))
}

fn expect<T: PartialEq + std::fmt::Debug>(given: &T, right: &T) -> Result<(), String> {
    if given == right { Ok(()) } else { Err(format!("gives {given:?}, expected {right:?}")) }
}
