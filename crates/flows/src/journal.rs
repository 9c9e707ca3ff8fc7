//! Where records and the states of flows are kept.

use crate::record::Record;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt::Debug;

/// Keeps records in order, and states by name. All that is told to it between two of its owner's commits is
/// kept as one, together with the writes of keys that were told to the same store.
pub trait Journal: Debug {
    /// Keeps a record, whose position is [`Journal::end`].
    fn append(&mut self, record: &Record);

    /// Gives up to `most` records from the position `from` on, in order.
    fn read(&mut self, from: u64, most: usize, each: &mut dyn FnMut(Record));

    /// Records below this position are not wanted any more.
    fn release(&mut self, below: u64);

    /// The position of the first record that is there.
    fn first(&self) -> u64;

    /// The position of the next record.
    fn end(&self) -> u64;

    /// Keeps a state under a name, or forgets it.
    fn put(&mut self, name: &[u8], state: Option<&[u8]>);

    /// Tells what has gathered, if anything has: the end of a turn, whose effects are about to be committed.
    fn flush(&mut self) {}

    /// Gives the states whose names begin with `prefix`, in order of their names.
    fn states(&mut self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8]));
}

/// A journal in memory: what is in it ends with the process.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    first: u64,
    records: VecDeque<Record>,
    states: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Memory {
    /// Bytes that records take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Journal for Memory {
    fn append(&mut self, record: &Record) {
        self.bytes += record.reserved_bytes();
        self.records.push_back(record.clone());
    }

    fn read(&mut self, from: u64, most: usize, each: &mut dyn FnMut(Record)) {
        let skip = from.saturating_sub(self.first) as usize;
        self.records.iter().skip(skip).take(most).cloned().for_each(each);
    }

    fn release(&mut self, below: u64) {
        while self.first < below
            && let Some(record) = self.records.pop_front()
        {
            self.first += 1;
            self.bytes -= record.reserved_bytes();
        }
    }

    fn first(&self) -> u64 {
        self.first
    }

    fn end(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn put(&mut self, name: &[u8], state: Option<&[u8]>) {
        match state {
            Some(state) => drop(self.states.insert(name.to_vec(), state.to_vec())),
            None => drop(self.states.remove(name)),
        }
    }

    fn states(&mut self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) {
        let from = self.states.range(prefix.to_vec()..);
        from.take_while(|(name, _)| name.starts_with(prefix)).for_each(|(name, state)| {
            each(name, state);
        });
    }
}
