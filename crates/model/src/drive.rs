//! Runs one history against a subject and the oracle together, and compares every answer.
//!
//! Writes must be accepted and refused alike, reads must give what a recomputation gives, a
//! verification must find nothing, a scan must give each key once, a watched key that changed
//! must say so. [`run`] ends at the first difference.

use crate::copies::Copies;
use crate::expect::{Allowed, Moments, check_range, well_defined};
use crate::history::{Op, Until, line};
use crate::join::{Join, Operator};
use crate::oracle::{Oracle, Verdict, View, within};
use crate::subject::Subject;
use headwater_base::{KeyRange, Millis};
use headwater_engine::{
    EngineError, Expiry, JoinInstalled, RangeOptions, Stop, TableOptions, Ticket,
};
use headwater_script::bytes::escape;
use long_reads::SlowReads;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use streams::{Streams, is_mark};

/// The first difference between the subject and the oracle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// After how many operations (the last one shows it).
    pub ops: usize,
    /// What is different.
    pub message: String,
}

const START: u64 = 1_000_000;
/// The longest key that clients may write, as the engine is made here.
const KEY_BYTES_MAX: usize = 1024;

mod compound;
mod follow;
mod long_reads;
mod short;
mod streams;
mod whole;

/// A history of more operations than this has the engine's invariants checked now and then only.
const SHORT: usize = 400;

struct Watched {
    key: Vec<u8>,
    count: u64,
    value: Option<Vec<u8>>,
    changed: bool,
    /// Some join gave the key, or could have given it, since it is watched.
    derived: bool,
    quiet: bool,
}

struct Run<'a> {
    subject: &'a mut dyn Subject,
    oracle: Oracle,
    view: Option<Rc<View>>,
    allowed: Option<Rc<Allowed>>,
    moments: Moments,
    watches: Vec<Watched>,
    scan: Option<Scan>,
    copies: Copies,
    /// How often followers were told of what had happened.
    heard: usize,
    streams: Streams,
    long_reads: SlowReads,
    /// Removals that have begun and not ended: who waits for each, and how many keys it is to have removed.
    removing: Vec<(Ticket, u64)>,
    /// What was so before the transaction under way.
    before: Option<(Oracle, Streams)>,
    /// How many base keys have gone for want of memory.
    lost: u64,
}

/// A scan that is under way.
struct Scan {
    cursor: Vec<u8>,
    /// Base keys that have been there since its start, and how often each was given.
    stayed: BTreeMap<Vec<u8>, usize>,
}

/// Runs `ops` on a fresh `subject`.
///
/// # Errors
/// Where and how the subject differs from the oracle.
pub fn run(subject: &mut dyn Subject, ops: &[Op]) -> Result<(), Failure> {
    run_and_count(subject, ops).map(drop)
}

/// As [`run`]; gives how many base keys were found to have gone for want of memory.
///
/// # Errors
/// As [`run`].
pub fn run_and_count(subject: &mut dyn Subject, ops: &[Op]) -> Result<u64, Failure> {
    let mut run = Run {
        subject,
        oracle: Oracle::default(),
        view: None,
        allowed: None,
        moments: Moments::default(),
        watches: Vec::new(),
        scan: None,
        copies: Copies::default(),
        heard: 0,
        streams: Streams::default(),
        long_reads: SlowReads::default(),
        removing: Vec::new(),
        before: None,
        lost: 0,
    };
    run.subject.engine().choose_eagerly();
    run.subject.advance(Millis(START));
    run.oracle.advance(START);
    for (at, op) in ops.iter().enumerate() {
        run.step(op)
            .and_then(|()| run.go_on_removing())
            .and_then(|()| run.hear())
            .and_then(|()| run.long_reads.go_on(run.subject.engine()))
            .map_err(|text| Failure { ops: at + 1, message: format!("{}: {text}", line(op)) })?;
        // That is a walk through everything.
        if ops.len() <= SHORT || at % 50 == 0 {
            run.subject.engine().check_invariants();
        }
    }
    let finished = run.finish();
    finished
        .map_err(|text| Failure { ops: ops.len(), message: format!("at the end: {text}") })
        .map(|()| run.lost)
}

fn failed<T, E: std::fmt::Debug>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("gives {error:?}"))
}

fn same<T: PartialEq + std::fmt::Debug>(given: &T, expected: &T) -> Result<(), String> {
    if given == expected {
        return Ok(());
    }
    Err(format!("gives {given:?}, expected {expected:?}"))
}

impl Run<'_> {
    fn step(&mut self, op: &Op) -> Result<(), String> {
        self.may_come_back(op);
        match op {
            Op::Set { key, value, until } => self.set(key, value, *until),
            Op::Append { key, tail } => self.append(key, tail),
            Op::Remove { key } => self.remove(key),
            Op::Expire { key, after } => self.expire(key, *after),
            Op::Advance { millis } => {
                let now = self.oracle.now + millis;
                self.oracle.advance(now);
                self.subject.advance(Millis(now));
                self.changed();
                Ok(())
            }
            Op::RemoveRange { first, last } => self.remove_range(first, last),
            Op::Flush => {
                self.oracle.base.clear();
                self.subject.flush();
                self.changed();
                Ok(())
            }
            Op::Incr { key, by } => self.incr(key, *by),
            Op::Copy { from, to, replace } => self.copy(from, to, *replace, false),
            Op::Rename { from, to } => self.copy(from, to, true, true),
            Op::SetAll { pairs } => self.set_all(pairs),
            Op::RemoveAll { keys } => self.remove_all(keys),
            Op::Multi => {
                self.before = Some((self.oracle.clone(), self.streams.clone()));
                self.subject.begin_transaction();
                Ok(())
            }
            Op::Exec => {
                self.before = None;
                self.subject.end_transaction();
                Ok(())
            }
            Op::Compact { keys } => {
                self.subject.compact(*keys);
                Ok(())
            }
            Op::Evict { draw, count } => {
                let gone = self.subject.evict(*draw, *count);
                if !gone.is_empty() {
                    gone.iter().for_each(|key| _ = self.oracle.base.remove(key));
                    self.changed();
                }
                Ok(())
            }
            Op::JoinAdd { name, join, replace } => self.join_add(name, join, *replace),
            Op::JoinText { text } => self.join_text(text),
            Op::JoinDrop { name } => {
                let expected = self.oracle.uninstall(name);
                let given = self.subject.join_drop(name);
                self.changed();
                let none = Err(EngineError::NoSuchJoin(name.clone()));
                same(&given, &if expected { Ok(()) } else { none })?;
                self.join_names()
            }
            Op::TableSet { name, boundary } => self.table_set(name, *boundary),
            Op::Get { key } => self.get(key),
            Op::Expiry { key } => self.expiry(key),
            Op::Range { first, last, reverse, limit } => self.range(first, last, *reverse, *limit),
            Op::Verify { first, last } => self.verify(first, last),
            Op::Scan { count } => self.scan(*count),
            Op::ScanStep { count } => self.scan_step(*count),
            Op::Watch { key } => self.watch(key),
            Op::Watched => self.watched(),
            Op::Unwatch => {
                for watch in self.watches.drain(..) {
                    self.subject.unwatch(&watch.key);
                }
                Ok(())
            }
            Op::Explain { first, last } => {
                let lines = self.subject.engine().explain(&KeyRange::new(first, last));
                let jump = lines.windows(2).any(|two| two[1].depth > two[0].depth + 1);
                same(&jump, &false)
            }
            Op::Follow { by, first, last } => self.follow(*by, &KeyRange::new(first, last)),
            Op::Unfollow { by, first, last } => {
                self.unfollow(*by, &KeyRange::new(first, last));
                Ok(())
            }
            Op::Bound { .. } | Op::Spill { .. } | Op::Crash => self.step_outside(op),
            Op::StreamAppend { key, .. }
            | Op::StreamRead { key, .. }
            | Op::StreamTrim { key, .. }
            | Op::StreamInfo { key } => self.step_stream(key, op),
            Op::Source { .. }
            | Op::AtSource { .. }
            | Op::Tell { .. }
            | Op::Lose { .. }
            | Op::Answer { .. }
            | Op::Fail { .. } => Ok(()), // These are for `drive_sources`.
        }
    }

    fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<(), String> {
        let before = self.oracle.base.len();
        self.oracle.base.retain(|key, _| !within(key, first, last));
        let removed = (before - self.oracle.base.len()) as u64;
        self.changed();
        let given = self.subject.remove_range(first, last);
        self.has_removed(given, removed)
    }

    fn has_removed(&mut self, given: Result<u64, Stop>, expected: u64) -> Result<(), String> {
        match given {
            Err(Stop::Wait(ticket)) => {
                self.removing.push((ticket, expected));
                Ok(())
            }
            Ok(fewer) if fewer < expected && self.subject.may_lose_bytes() => Ok(()),
            given => same(&given, &Ok(expected)),
        }
    }

    /// Does a slice of the removals that have begun.
    fn go_on_removing(&mut self) -> Result<(), String> {
        for (ticket, expected) in std::mem::take(&mut self.removing) {
            let given = self.subject.go_on_removing(ticket);
            self.has_removed(given, expected).map_err(|text| format!("a removal: {text}"))?;
        }
        Ok(())
    }

    fn view(&mut self) -> Rc<View> {
        Rc::clone(self.view.get_or_insert_with(|| Rc::new(self.oracle.view())))
    }

    /// To be called after anything that may change a view.
    fn changed(&mut self) {
        self.view = None;
        self.allowed = None;
        if let Some(scan) = &mut self.scan {
            scan.stayed.retain(|key, _| self.oracle.base.contains_key(key));
        }
        if self.tells_moments() {
            let view = self.view();
            self.moments.note(self.oracle.now, &view);
        }
        if !self.watches.is_empty() {
            let view = self.view();
            for watch in &mut self.watches {
                watch.quiet = false;
                let differs = view.seen.get(&watch.key) != watch.value.as_ref();
                // A derived key may change and change back unnoticed: what counts is its value
                // when it is looked at.
                watch.derived |= self
                    .oracle
                    .joins
                    .iter()
                    .any(|installed| installed.join.output.matches(&watch.key));
                watch.changed = differs || (watch.changed && !watch.derived);
            }
        }
    }

    fn tells_moments(&self) -> bool {
        let snapshot = |join: &Join| matches!(join.mode, crate::join::Mode::Snapshot(_));
        self.oracle.joins.iter().any(|installed| snapshot(&installed.join))
    }

    fn allowed(&mut self) -> Rc<Allowed> {
        if self.allowed.is_none() {
            let view = self.view();
            let sure =
                |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), vec![Some(value.clone())]);
            self.allowed = Some(Rc::new(if self.tells_moments() {
                self.moments.allowed(&self.oracle, &view)
            } else {
                view.seen.iter().filter(|(_, value)| !is_mark(value)).map(sure).collect()
            }));
        }
        Rc::clone(self.allowed.as_ref().expect("just made"))
    }

    /// Whether a write to `key` must be refused; what was `given` must then say so.
    fn refused(&mut self, key: &[u8], given: Option<EngineError>) -> Result<bool, String> {
        let owners = self.oracle.owners(key);
        match given {
            Some(EngineError::KeyTooLong { length, max: KEY_BYTES_MAX })
                if length == key.len() && length > KEY_BYTES_MAX =>
            {
                Ok(true)
            }
            Some(EngineError::Joined { join }) if owners.contains(&join.as_str()) => Ok(true),
            // Then nothing has changed.
            Some(EngineError::OutOfMemory) if self.subject.may_run_out() => Ok(true),
            None if owners.is_empty() && key.len() <= KEY_BYTES_MAX => Ok(false),
            given => Err(format!("gives {given:?}, but the key belongs to the joins {owners:?}")),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], until: Until) -> Result<(), String> {
        let now = self.oracle.now;
        let kept = self.oracle.base.get(key).and_then(|(_, at)| *at);
        let (expiry, at) = match until {
            Until::Keep => (Expiry::Keep, kept),
            Until::Ever => (Expiry::Never, None),
            Until::In(millis) => (Expiry::At(Millis(now + millis)), Some(now + millis)),
        };
        let (given, lossy) = (self.subject.set(key, value, expiry), self.may_lose(key));
        if !self.refused(key, given.err())? {
            let mut at = at;
            if lossy && until == Until::Keep && failed(self.subject.expiry(key))? == Some(None) {
                // It had gone, and its expiry with it.
                at = None;
            }

            self.oracle.base.insert(key.to_vec(), (value.to_vec(), at));
            // A moment that has come already leaves nothing of the key.
            self.oracle.advance(now);
        }
        self.changed();
        Ok(())
    }

    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<(), String> {
        let given = self.subject.append(key, tail);
        let error = match &given {
            Err(Stop::Failed(error)) => Some(error.clone()),
            _ => None,
        };
        if self.is_stream(key) && error == Some(EngineError::WrongType) {
            return Ok(());
        }
        if !self.refused(key, error)? {
            if given == Ok(tail.len()) && self.may_lose(key) {
                self.lose(key);
            }
            let (value, _) = self.oracle.base.entry(key.to_vec()).or_default();
            value.extend_from_slice(tail);
            same(&given, &Ok(value.len()))?;
        }
        self.changed();
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), String> {
        let given = self.subject.remove(key);
        if key.is_empty() || key.len() > KEY_BYTES_MAX && self.oracle.owners(key).is_empty() {
            return same(&given, &Ok(false));
        }
        let error = match &given {
            Err(Stop::Failed(error)) => Some(error.clone()),
            _ => None,
        };
        if !self.refused(key, error)? {
            let lost = given == Ok(false) && self.may_lose(key);
            let removed = self.oracle.base.remove(key).is_some();
            same(&given, &Ok(removed && !lost))?;
        }
        self.changed();
        Ok(())
    }

    fn expire(&mut self, key: &[u8], after: Option<u64>) -> Result<(), String> {
        let at = after.map(|millis| self.oracle.now + millis);
        let given = self.subject.set_expiry(key, at.map(Millis));
        if key.is_empty() || key.len() > KEY_BYTES_MAX && self.oracle.owners(key).is_empty() {
            return same(&given, &Ok(false));
        }
        let error = match &given {
            Err(Stop::Failed(error)) => Some(error.clone()),
            _ => None,
        };
        if !self.refused(key, error)? {
            if given == Ok(false) && self.may_lose(key) {
                self.lose(key);
            }
            let there = match self.oracle.base.get_mut(key) {
                Some((_, kept)) => {
                    *kept = at;
                    true
                }
                None => false,
            };
            same(&given, &Ok(there))?;
            let now = self.oracle.now;
            self.oracle.advance(now);
        }
        self.changed();
        Ok(())
    }

    fn join_add(&mut self, name: &str, join: &Join, replace: bool) -> Result<(), String> {
        // What joins read stays, if it is there when they are installed.
        self.look_for_losses(b"", b"", &|_| false)?;
        let mut might_go = self.losable();
        let others = self.oracle.joins.iter().filter(|other| other.name != name);
        let all: Vec<&Join> = others.map(|other| &other.join).chain([join]).collect();
        let verdict = self.oracle.verdict(name, join, replace);
        let telling = match verdict {
            Verdict::Refuse(None) => true,
            Verdict::Unsure => false,
            Verdict::Accept | Verdict::Refuse(Some(_)) => well_defined(&all),
        };
        if !telling {
            return Ok(());
        }
        let given = self.subject.join_add(name, &join.to_string(), replace);
        match (&verdict, &given) {
            (Verdict::Accept, Ok(installed)) => {
                installs(join, installed)?;
                self.oracle.install(name, join.clone());
            }
            (
                Verdict::Refuse(None),
                Err(EngineError::Refused(_) | EngineError::KeysInTheWay(_)),
            ) => {}
            (
                Verdict::Refuse(Some(found)),
                Err(error @ (EngineError::Refused(_) | EngineError::KeysInTheWay(_))),
            ) => {
                let text = error.to_string();
                let mut numbers = text.split(|letter: char| !letter.is_ascii_digit());
                let found = found.to_string();
                if !numbers.any(|number| number == found) {
                    return Err(format!("`{text}` does not name the {found} keys in the way"));
                }
            }
            // What is spilled of its tables has no room in memory.
            (_, Err(EngineError::OutOfMemory)) if self.subject.may_run_out() => {}
            _ => return Err(format!("gives {given:?}, expected {verdict:?}")),
        }
        self.changed();
        might_go.retain(|key| !self.may_lose(key));
        self.look_for_missing(&might_go)?;
        self.join_names()
    }

    fn join_text(&mut self, text: &str) -> Result<(), String> {
        let given = self.subject.join_add("damaged", text, false);
        self.changed();
        match given {
            Err(EngineError::Refused(text)) if !text.is_empty() => Ok(()),
            Err(EngineError::KeysInTheWay(_)) => Ok(()),
            Ok(_) => failed(self.subject.join_drop("damaged")),
            other => Err(format!("gives {other:?}")),
        }
    }

    fn join_names(&mut self) -> Result<(), String> {
        let given: Vec<String> = self.subject.joins().into_iter().map(|join| join.name).collect();
        let expected = self.oracle.joins.iter().map(|installed| installed.name.clone());
        same(&given, &expected.collect())
    }

    fn table_set(&mut self, name: &[u8], boundary: usize) -> Result<(), String> {
        let options = TableOptions { boundary: Some(boundary), ..TableOptions::default() };
        failed(self.subject.table_set(name, &options))?;
        let tables = self.subject.tables();
        let table = tables.iter().find(|table| table.named && table.name == name);
        same(&table.map(|table| table.boundary), &Some(boundary))?;
        if self.subject.forgets_while_looking() {
            return Ok(());
        }
        let keys: u64 = tables.iter().map(|table| table.keys).sum();
        same(&keys, &self.subject.key_count())
    }

    fn get(&mut self, key: &[u8]) -> Result<(), String> {
        let given = self.subject.get(key);
        if given == Err(Stop::Failed(EngineError::WrongType)) && self.is_stream(key) {
            return Ok(());
        }
        let given = failed(given)?;
        if given.is_none() && self.may_lose(key) {
            self.lose(key);
        }
        if self.oracle.owners(key).is_empty() {
            return same(&given.as_ref(), &self.oracle.base.get(key).map(|(value, _)| value));
        }
        let allowed = self.allowed();
        let values = allowed.get(key).cloned().unwrap_or_else(|| vec![None]);
        if values.contains(&given) {
            return Ok(());
        }
        Err(format!("gives {given:?}, expected one of {values:?}"))
    }

    fn expiry(&mut self, key: &[u8]) -> Result<(), String> {
        let given = failed(self.subject.expiry(key))?;
        if given.is_none() && self.may_lose(key) {
            self.lose(key);
        }
        if let Some((_, at)) = self.oracle.base.get(key) {
            return same(&given, &Some(at.map(Millis)));
        }
        let allowed = self.allowed();
        let values = allowed.get(key).cloned().unwrap_or_else(|| vec![None]);
        let right = match given {
            None => values.contains(&None),
            Some(at) => at.is_none() && values.iter().any(Option::is_some),
        };
        if right { Ok(()) } else { Err(format!("gives {given:?} for a derived key {values:?}")) }
    }

    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        reverse: bool,
        limit: Option<u64>,
    ) -> Result<(), String> {
        let pairs = failed(self.subject.range(first, last, RangeOptions { reverse, limit }))?;
        let evicted = self.subject.engine().evicted();
        if self.subject.may_lose_bytes() {
            let given: BTreeSet<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
            let full = limit.is_some_and(|limit| pairs.len() as u64 >= limit);
            let end = pairs.last().filter(|_| full).map(|(key, _)| key);
            let beyond =
                |key: &[u8]| end.is_some_and(|end| if reverse { key < end } else { key > end });
            self.look_for_losses(first, last, &|key| given.contains(key) || beyond(key))?;
        }
        let what = (&KeyRange::new(first, last), RangeOptions { reverse, limit });
        self.long_reads.begin(self.subject.engine(), what, (&pairs, evicted))?;
        let allowed = self.allowed();
        check_range(&pairs, &allowed, &|key| within(key, first, last), reverse, limit).map_err(
            |wrong| {
                let shown =
                    pairs.iter().map(|(k, v)| format!("\n    {} = {}", escape(k), escape(v)));
                format!("{wrong}; it gave{}", shown.collect::<String>())
            },
        )
    }

    fn verify(&mut self, first: &[u8], last: &[u8]) -> Result<(), String> {
        let found = failed(self.subject.verify(&KeyRange::new(first, last), 10))?;
        if found.is_empty() {
            return Ok(());
        }
        let show = |value: &Option<Vec<u8>>| value.as_deref().map_or_else(|| "-".into(), escape);
        let lines = found.iter().map(|d| {
            format!("\n    {}: {} / {}", escape(&d.key), show(&d.stored), show(&d.recomputed))
        });
        Err(format!("finds (stored / recomputed){}", lines.collect::<String>()))
    }
}

/// Whether the report of an installation fits the join.
fn installs(join: &Join, installed: &JoinInstalled) -> Result<(), String> {
    if Join::parse(&installed.canonical).as_ref() != Some(join) {
        return Err(format!("is shown as `{}`", installed.canonical));
    }
    if join.value_source().0 == Operator::Copy
        && join.loses_slots()
        && installed.warnings.is_empty()
    {
        return Err(String::from("is ambiguous, but no warning says so"));
    }
    Ok(())
}
