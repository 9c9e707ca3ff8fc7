//! A transaction that the log told of, as changes of keys.
//!
//! Its messages are kept as they came until it ends, and are then read at once under the lock: no load can begin, and
//! no table be declared, in the middle of one.
//!
//! # What cannot be told as a change
//! - A long value that an update left as it was is not sent. If all of the key's value is so, and the key is the same, nothing
//!   has changed; otherwise that key is reset.
//! - A value that the database computes of a text is not in the log: where it is not known here, see [`crate::case`], that key is reset.
//! - TRUNCATE, and a transaction that is larger than the limit, reset the tables concerned.
//! - Where a table has lost a column of its mapping, or the column has another type, the table is broken.

use crate::mapping::{Cell, Value};
use crate::output::{self, Message, Old, Relation, Tuple, message, relation_of};
use crate::room::TRANSACTION_LIMIT;
use crate::signature::ALTERED;
use crate::state::{Ready, State, TableReadiness};
use crate::wire::Error;
use headwater_base::KeyRange;
use headwater_base::source::Change;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What becomes of a relation's rows, for each table of keys that it is mapped to.
pub(crate) type Plans = HashMap<u32, Arc<[Plan]>>;

/// How the columns of a relation are those of a mapping.
pub(crate) struct Plan {
    ready: Arc<Ready>,
    /// For each column of the mapping its place in the relation.
    places: Vec<usize>,
    /// Whether the database is to compute something that its rows, which are as the log has them, do not have.
    lacks_computed: bool,
}

/// What is taken to be kept for a relation that a transaction changes.
const TOUCHED_BYTES: usize = 16;

/// The messages of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) xid: u32,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// It has become too large: its messages are gone but for what describes relations, and these are those that it changed.
    touched: Option<BTreeSet<u32>>,
    /// It holds a word about what tables look like.
    describes: bool,
}

/// What a transaction comes to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) changes: Vec<Change>,
    pub(crate) resets: Vec<KeyRange>,
    /// Keys whose values the database has to compute, which is nothing to speak of.
    computed: Vec<KeyRange>,
    pub(crate) rows_without_key: u64,
}

impl Transaction {
    pub(crate) fn begin(&mut self, xid: u32) {
        self.xid = xid;
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
        self.ends.clear();
        self.touched = None;
        self.describes = false;
    }

    /// Whether it says what a table looks like, or that something was altered.
    pub(crate) fn describes(&self) -> bool {
        self.describes
    }

    /// Takes a further message; it keeps so many bytes of all of them at most.
    ///
    /// # Errors
    /// What tables look like has more bytes, and nobody knows what else it changes.
    pub(crate) fn push(&mut self, bytes: &[u8], bytes_max: usize) -> Result<(), Error> {
        match bytes.first() {
            Some(b'M') => {
                // Others may write messages of any length.
                self.describes |= output::message_prefix(bytes) == Some(ALTERED.as_bytes());
                return Ok(());
            }
            Some(b'R') => self.describes = true,
            _ => {}
        }
        if let Some(touched) = &mut self.touched {
            note(bytes, touched);
            let touched_bytes = touched.len() * TOUCHED_BYTES;
            if bytes.first() == Some(&b'R') {
                self.keep(bytes);
            }
            if self.kept_bytes() + touched_bytes <= bytes_max {
                return Ok(());
            }
            return Err(Error::broken(format!(
                "what a transaction says of the tables that it changes takes more than {bytes_max} bytes ({TRANSACTION_LIMIT})"
            )));
        }
        self.keep(bytes);
        if self.kept_bytes() > bytes_max {
            let mut touched = BTreeSet::new();
            let mut described = Vec::new();
            for bytes in self.messages() {
                note(bytes, &mut touched);
                if bytes.first() == Some(&b'R') {
                    described.push(bytes.to_vec());
                }
            }
            let describes = self.describes;
            self.begin(self.xid);
            self.bytes.shrink_to(0);
            (self.touched, self.describes) = (Some(touched), describes);
            for bytes in described {
                // The server describes a relation once; later transactions rely on it.
                self.keep(&bytes);
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// Bytes of what is kept.
    fn kept_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.ends)
    }

    fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let firsts = std::iter::once(0).chain(self.ends.iter().copied());
        firsts.zip(&self.ends).map(|(first, &last)| &self.bytes[first..last])
    }

    /// Applies it: it ends at `position`, and `more` is at hand.
    pub(crate) fn commit(&self, state: &mut State, position: u64, more: bool) {
        let mut outcome = Outcome::default();
        for message in self.messages().filter_map(message) {
            outcome.message(message, state);
        }
        for &relation in self.touched.iter().flatten() {
            for plan in state.plans_of(relation).iter() {
                outcome.resets.push(KeyRange::prefix(&plan.ready.mapping.prefix));
            }
        }
        if self.touched.is_some() && !outcome.resets.is_empty() {
            state.note_too_large(outcome.resets.len());
        } else if let Some(first) = outcome.resets.first() {
            let (number, first) = (outcome.resets.len(), first.first.escape_ascii());
            state.note(
                "loaded again",
                &format!("{number} ranges, the first from {first} on: tables were emptied, or values of rows were not sent"),
            );
        }
        outcome.resets.append(&mut outcome.computed);
        let xid = crate::snapshot::widened(self.xid, state.near);
        state.watch.rows_without_key += outcome.rows_without_key;
        state.transaction(xid, position, outcome.changes, outcome.resets, more);
    }
}

fn note(bytes: &[u8], touched: &mut BTreeSet<u32>) {
    match relation_of(bytes) {
        Some(relation) => drop(touched.insert(relation)),
        None => {
            if let Some(Message::Truncate { relations }) = message(bytes) {
                touched.extend(relations);
            }
        }
    }
}

impl Outcome {
    fn message(&mut self, message: Message<'_>, state: &mut State) {
        match message {
            Message::Relation(relation) => state.describe(relation),
            Message::Insert { relation, new } => {
                for plan in state.plans_of(relation).iter() {
                    let cells = plan.cells(&new, None);
                    self.put(plan, None, &cells, state);
                }
            }
            Message::Update { relation, old, new } => {
                for plan in state.plans_of(relation).iter() {
                    let before = match &old {
                        Some(old) => plan.key_cells(&old.tuple),
                        None => plan.key_cells(&new),
                    };
                    let before = plan.ready.mapping.key(&before);
                    let cells = plan.cells(&new, old.as_ref());
                    self.put(plan, Some(before), &cells, state);
                }
            }
            Message::Delete { relation, old } => {
                for plan in state.plans_of(relation).iter() {
                    let key = plan.ready.mapping.key(&plan.key_cells(&old.tuple));
                    self.remove(plan, key, state);
                }
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    for plan in state.plans_of(relation).iter() {
                        self.resets.push(KeyRange::prefix(&plan.ready.mapping.prefix));
                    }
                }
            }
            Message::Begin { .. } | Message::Commit { .. } | Message::Other => {}
        }
    }

    /// A row of a table changed from these key cells to these cells of all columns.
    pub(crate) fn row(
        &mut self,
        plan: &Plan,
        old: Option<&[Cell<'_>]>,
        new: Option<&[Cell<'_>]>,
        state: &State,
    ) {
        let before = old.map(|cells| plan.ready.mapping.key(cells));
        match new {
            Some(cells) => self.put(plan, before, cells, state),
            None => self.remove(plan, before.flatten(), state),
        }
    }

    fn remove(&mut self, plan: &Plan, key: Option<Vec<u8>>, state: &State) {
        if let Some(key) = key.filter(|key| plan.follows(key, state)) {
            self.changes.push(Change { key, value: None });
        }
    }

    /// A row is now made of these cells; `before` is the key that it had, if it was there.
    fn put(
        &mut self,
        plan: &Plan,
        before: Option<Option<Vec<u8>>>,
        cells: &[Cell<'_>],
        state: &State,
    ) {
        let mapping = &plan.ready.mapping;
        let keeps = mapping.keeps(cells);
        if keeps == Ok(false) {
            // It may have been one of the keys until now.
            return self.remove(plan, before.flatten(), state);
        }
        let key = mapping.key(cells);
        self.rows_without_key += u64::from(key.is_none());
        let moved = before.as_ref().is_some_and(|before| *before != key);
        if moved {
            self.remove(plan, before.flatten(), state);
        }
        let Some(key) = key.filter(|key| plan.follows(key, state)) else { return };
        let value = match plan.lacks_computed {
            true => mapping.value_of_raw(cells),
            false => mapping.value(cells),
        };
        match value {
            _ if keeps.is_err() => self.resets.push(KeyRange::point(&key)),
            Value::Known(value) => self.changes.push(Change { key, value: Some(value) }),
            // A row that enters has a value that was not here.
            Value::Unchanged if !moved && mapping.filter.is_none() => {}
            Value::Unknown if plan.lacks_computed => {
                self.computed.push(KeyRange::point(&key));
            }
            Value::Unchanged | Value::Unknown => self.resets.push(KeyRange::point(&key)),
        }
    }
}

impl Plan {
    /// That of rows whose columns are the mapping's, as loads and triggers give them.
    pub(crate) fn plain(ready: Arc<Ready>) -> Self {
        let places = (0..ready.mapping.columns.len()).collect();
        Self { ready, places, lacks_computed: false }
    }

    fn follows(&self, key: &[u8], state: &State) -> bool {
        let table = state.tables.get(&self.ready.mapping.prefix);
        table.is_some_and(|table| table.followed.contains(key))
    }

    fn cell<'a>(&self, column: usize, tuple: &Tuple<'a>) -> Cell<'a> {
        tuple.0.get(self.places[column]).copied().unwrap_or(Cell::Null)
    }

    fn key_cells<'a>(&self, tuple: &Tuple<'a>) -> Vec<Cell<'a>> {
        (0..self.ready.mapping.kinds.len()).map(|column| self.cell(column, tuple)).collect()
    }

    /// The mapping's cells of a row; what was not sent is taken from the whole old row, if there is one.
    fn cells<'a>(&self, new: &Tuple<'a>, old: Option<&Old<'a>>) -> Vec<Cell<'a>> {
        let cell = |column| match (self.cell(column, new), old) {
            (Cell::Unchanged, Some(old)) if old.whole => self.cell(column, &old.tuple),
            (cell, _) => cell,
        };
        (0..self.places.len()).map(cell).collect()
    }
}

impl State {
    /// Notes what a relation looks like from now on.
    fn describe(&mut self, relation: Relation) {
        self.plans.remove(&relation.id);
        self.relations.insert(relation.id, relation);
    }

    /// What becomes of a relation's rows.
    fn plans_of(&mut self, relation: u32) -> Arc<[Plan]> {
        if let Some(plans) = self.plans.get(&relation) {
            return Arc::clone(plans);
        }
        let Some(described) = self.relations.get(&relation) else { return Arc::new([]) };
        let (mut plans, mut broken) = (Vec::new(), Vec::new());
        for (prefix, table) in &self.tables {
            let TableReadiness::Ready(ready) = &table.standing else { continue };
            if ready.relation != relation {
                continue;
            }
            match places(ready, described) {
                Ok(places) => {
                    let lacks_computed = ready.mapping.computes();
                    plans.push(Plan { ready: Arc::clone(ready), places, lacks_computed });
                }
                Err(reason) => broken.push((prefix.clone(), table.generation, reason)),
            }
        }
        for (prefix, generation, reason) in broken {
            self.set_standing(&prefix, generation, TableReadiness::Broken(reason));
        }
        let plans: Arc<[Plan]> = plans.into();
        self.plans.insert(relation, Arc::clone(&plans));
        plans
    }
}

/// Where the columns of a mapping are in a relation.
fn places(ready: &Ready, relation: &Relation) -> Result<Vec<usize>, String> {
    let mapping = &ready.mapping;
    let place = |(at, column): (usize, &crate::mapping::Column)| {
        let found = relation.columns.iter().position(|one| one.name == column.name);
        let place = found.ok_or_else(|| {
            format!("the table {} has no column {} any more", relation.name, column.name)
        })?;
        let there = &relation.columns[place];
        if there.type_id != column.type_id {
            return Err(format!(
                "the column {} of the table {} has another type now",
                column.name, relation.name
            ));
        }
        if at < mapping.kinds.len() && !there.identifies {
            return Err(format!(
                "changes of the table {} do not tell its column {}: ALTER TABLE {} REPLICA IDENTITY FULL",
                relation.name, column.name, mapping.table
            ));
        }
        Ok(place)
    };
    mapping.columns.iter().enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What says what a relation looks like, as long as may be.
    fn describes(relation: u32, bytes: usize) -> Vec<u8> {
        [&b"R"[..], &relation.to_be_bytes(), &vec![b'x'; bytes]].concat()
    }

    fn inserts(relation: u32, bytes: usize) -> Vec<u8> {
        [&b"I"[..], &relation.to_be_bytes(), &vec![b'x'; bytes]].concat()
    }

    #[test]
    fn a_transaction_keeps_no_more_than_it_may_whatever_it_has() {
        let bytes_max = 100_000;
        let mut transaction = Transaction::default();
        transaction.begin(1);
        transaction.push(&describes(1, 100), bytes_max).unwrap();
        for _ in 0..1000 {
            transaction.push(&inserts(1, 1000), bytes_max).unwrap();
        }
        assert!(transaction.kept_bytes() < 1000, "{}", transaction.kept_bytes());
        assert_eq!(transaction.touched, Some(BTreeSet::from([1])));
        // Short messages count with what they take beside their bytes.
        transaction.begin(2);
        let mut most = 0;
        for _ in 0..100_000 {
            transaction.push(b"X", bytes_max).unwrap();
            most = most.max(transaction.kept_bytes());
        }
        assert!(most <= bytes_max + 1000, "{most}");
        // Descriptions, and relations, without end.
        for next in [describes as fn(u32, usize) -> Vec<u8>, inserts] {
            transaction.begin(3);
            let mut all = (0..1_000_000).map(|at| transaction.push(&next(at, 8), bytes_max));
            let error = all.find_map(Result::err).expect("it is refused");
            assert!(error.is_broken() && error.message.contains("100000 bytes"), "{error}");
        }
    }
}
