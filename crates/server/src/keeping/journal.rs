//! The journal of flows in the embedded store: a write and its record are one batch, and so are a task's effects
//! and that it is done.
//!
//! Records are notes named by their positions, states by their names; of what changes more than once in a turn the
//! store is told the last. The newest records are in memory
//! as well, at least those that the store has not committed yet; a flow that lags reads the others from disk.

use headwater_keep::Notes;
use headwater_node::{FlowRecord as Record, Journal};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of records that stay in memory.
const TAIL_BYTES: usize = 4 << 20;
/// The end of what was ever appended, for when no record is left that tells.
const END: &[u8] = b"e";
/// Where the records begin, as far as that is known: removed ones lie before it, and looking past them takes as long as
/// there are many.
const START: &[u8] = b"f";

/// The journal of one shard.
#[derive(Debug)]
pub(crate) struct KeptJournal {
    notes: Notes,
    first: u64,
    end: u64,
    /// The newest records, each with the operation that keeps it.
    tail: VecDeque<(u64, Record)>,
    tail_bytes: usize,
    states: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The states that have changed in this turn, and whether the store had them before.
    changed: BTreeMap<Vec<u8>, bool>,
    /// Records below this are removed from the store.
    removed: u64,
}

fn record_name(position: u64) -> Vec<u8> {
    [&b"r"[..], &position.to_be_bytes()].concat()
}

fn state_name(name: &[u8]) -> Vec<u8> {
    [b"s", name].concat()
}

fn position_of(name: &[u8]) -> u64 {
    name.last_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl KeptJournal {
    /// The journal that the store has.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn open(notes: Notes) -> Result<Self, String> {
        let (mut first, mut end, mut told, mut states) = (None, 0, 0, BTreeMap::new());
        let mut start = 0;
        notes.read(END, b"g", false, &mut |name, text| {
            let position = position_of(text);
            if name == END {
                told = position;
            }
            start = position.max(start);
            true
        })?;
        let records = record_name(start);
        notes.read(&records, b"s", false, &mut |name, _| {
            first = Some(position_of(name));
            false
        })?;
        notes.read(&records, b"s", true, &mut |name, _| {
            end = position_of(name) + 1;
            false
        })?;
        notes.read(b"s", b"t", false, &mut |name, text| {
            states.insert(name[1..].to_vec(), text.to_vec());
            true
        })?;
        let end = end.max(told);
        let first = first.unwrap_or(end);
        Ok(Self {
            notes,
            first,
            end,
            tail: VecDeque::new(),
            tail_bytes: 0,
            states,
            changed: BTreeMap::new(),
            removed: first,
        })
    }

    /// Lets go of the oldest records in memory that the store can give.
    fn trim(&mut self) {
        if self.tail_bytes <= TAIL_BYTES {
            return;
        }
        let committed = self.notes.committed().0;
        while self.tail_bytes > TAIL_BYTES
            && let Some((operation, record)) = self.tail.front()
            && *operation <= committed
        {
            self.tail_bytes -= record.reserved_bytes();
            self.tail.pop_front();
        }
    }
}

impl Journal for KeptJournal {
    fn append(&mut self, record: &Record) {
        let operation = self.notes.put(&record_name(record.position), &record.to_bytes());
        self.tail_bytes += record.reserved_bytes();
        self.tail.push_back((operation.0, record.clone()));
        self.end = record.position + 1;
        self.trim();
    }

    fn read(&mut self, from: u64, most: usize, each: &mut dyn FnMut(Record)) {
        let tail = self.tail.front().map_or(self.end, |(_, record)| record.position);
        let (mut at, mut left) = (from.max(self.first), most);
        if at < tail {
            let range = (record_name(at), record_name(tail));
            let read = self.notes.read(&range.0, &range.1, false, &mut |name, text| {
                let position = position_of(name);
                if left > 0
                    && let Some(record) = Record::from_bytes(position, text)
                {
                    each(record);
                    at = position + 1;
                    left -= 1;
                }
                left > 0
            });
            // What cannot be read now is not skipped: it is asked for again.
            if read.is_err() || at < tail {
                return;
            }
        }
        let skip = at.saturating_sub(tail) as usize;
        self.tail.iter().skip(skip).take(left).for_each(|(_, record)| each(record.clone()));
    }

    fn release(&mut self, below: u64) {
        let below = below.min(self.end);
        if below <= self.first {
            return;
        }
        self.first = below;
        while let Some((_, record)) = self.tail.front()
            && record.position < below
        {
            self.tail_bytes -= record.reserved_bytes();
            self.tail.pop_front();
        }
    }

    fn first(&self) -> u64 {
        self.first
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn put(&mut self, name: &[u8], state: Option<&[u8]>) {
        let before = match state {
            Some(state) => self.states.insert(name.to_vec(), state.to_vec()),
            None => self.states.remove(name),
        };
        if !self.changed.contains_key(name) {
            self.changed.insert(name.to_vec(), before.is_some());
        }
    }

    fn flush(&mut self) {
        if self.changed.is_empty() && self.removed == self.first {
            return;
        }
        for (name, was_kept) in core::mem::take(&mut self.changed) {
            match self.states.get(&name) {
                Some(state) => drop(self.notes.put(&state_name(&name), state)),
                None if was_kept => drop(self.notes.remove(&state_name(&name))),
                None => {}
            }
        }
        if self.removed == self.first {
            return;
        }
        for position in self.removed..self.first {
            self.notes.remove(&record_name(position));
        }
        self.removed = self.first;
        let name = if self.first == self.end { END } else { START };
        self.notes.put(name, &self.first.to_be_bytes());
    }

    fn states(&mut self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) {
        let from = self.states.range(prefix.to_vec()..);
        from.take_while(|(name, _)| name.starts_with(prefix)).for_each(|(name, state)| {
            each(name, state);
        });
    }
}
