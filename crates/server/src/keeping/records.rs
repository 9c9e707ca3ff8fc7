//! Records of transactions over several shards ([`headwater_router::Redo`]), as one shard keeps them: notes, in one batch with what its part has
//! written.
//!
//! They go again when the transaction is safe everywhere ([`Recorded`]), many at a time, and none of it costs a sync: but that
//! under [`Durability::None`], where nothing else is ever synced, much that waits for it is.
//!
//! [`Durability::None`]: headwater_keep::Durability::None

use crate::shards::{FoundRecords, Recorded};
use headwater_keep::{Notes, Store};
use headwater_router::Place;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a record's name begins with; the number of its transaction follows, and how far that has come.
const RECORD: u8 = b'x';
const RECORDS_END: &[u8] = b"y";
/// What is below this number is done.
const FLOOR: &[u8] = b"w";
/// So many records, or bytes of records, come before it is looked which can go.
const LOOK_RECORDS: usize = 64;
const LOOK_BYTES: usize = 256 << 10;
/// So many that are not synced, or bytes of them, are enough for a sync.
const UNSYNCED_RECORDS: usize = 16 << 10;
const UNSYNCED_BYTES: usize = 4 << 20;

fn name_of(number: u64, record: &[u8]) -> Vec<u8> {
    [&[RECORD], &number.to_be_bytes()[..], &record[..Place::BYTES.min(record.len())]].concat()
}

fn number_of(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

/// The records of one shard.
#[derive(Debug)]
pub(crate) struct KeptRecords {
    notes: Notes,
    /// The names of all.
    names: BTreeSet<Vec<u8>>,
    /// Those that are not synced: the number of the transaction, the operation, bytes.
    unsynced: VecDeque<(u64, u64, usize)>,
    unsynced_bytes: usize,
    /// What has come since it was looked which can go.
    new: (usize, usize),
    /// The last operation of which a sync was asked for.
    asked: u64,
}

impl KeptRecords {
    /// What the store has.
    ///
    /// # Errors
    /// It cannot be read, or a record is not what was written.
    pub(crate) fn open(notes: Notes) -> Result<(Self, FoundRecords), String> {
        let (mut floor, mut records, mut names) = (0, BTreeMap::new(), BTreeSet::new());
        let mut damaged = None;
        notes.read(FLOOR, &[RECORD], false, &mut |_, text| {
            floor = number_of(text).unwrap_or(0);
            true
        })?;
        notes.read(&[RECORD], RECORDS_END, false, &mut |name, record| {
            names.insert(name.to_vec());
            match number_of(&name[1..]) {
                // The furthest one comes last.
                Some(number) => drop(records.insert(number, record.to_vec())),
                None => damaged = Some(name.escape_ascii().to_string()),
            }
            true
        })?;
        if let Some(name) = damaged {
            return Err(format!("the record '{name}' of a transaction is damaged"));
        }
        let (unsynced, unsynced_bytes, new, asked) = (VecDeque::new(), 0, (0, 0), 0);
        let records = FoundRecords { floor, records };
        Ok((Self { notes, names, unsynced, unsynced_bytes, new, asked }, records))
    }

    /// Keeps a record, in one batch with what was written in this turn.
    pub(crate) fn keep(&mut self, number: u64, record: &[u8], recorded: &Recorded) {
        let name = name_of(number, record);
        let operation = self.notes.put(&name, record);
        recorded.hold(number);
        let bytes = name.len() + record.len();
        self.names.insert(name);
        self.unsynced.push_back((number, operation.0, bytes));
        self.unsynced_bytes += bytes;
        self.new.0 += 1;
        self.new.1 += bytes;
    }

    /// Looks, at the end of a turn, which records are synced, and which can go.
    #[inline]
    pub(crate) fn end_turn(&mut self, store: &Store, recorded: &Recorded) {
        if !self.unsynced.is_empty() {
            self.look_what_is_synced(store, recorded);
        }
        if self.new.0 >= LOOK_RECORDS || self.new.1 >= LOOK_BYTES {
            self.forget(recorded);
        }
    }

    fn look_what_is_synced(&mut self, store: &Store, recorded: &Recorded) {
        let durable = store.durable().0;
        while let Some((number, operation, bytes)) = self.unsynced.front().copied()
            && operation <= durable
        {
            recorded.close(number);
            self.unsynced_bytes -= bytes;
            self.unsynced.pop_front();
        }
        let is_much =
            self.unsynced.len() >= UNSYNCED_RECORDS || self.unsynced_bytes >= UNSYNCED_BYTES;
        if is_much && durable >= self.asked {
            self.asked = store.ask_sync().0;
        }
    }

    fn forget(&mut self, recorded: &Recorded) {
        self.new = (0, 0);
        let floor = recorded.floor();
        let kept = self.names.split_off(&name_of(floor, &[]));
        let gone = core::mem::replace(&mut self.names, kept);
        if gone.is_empty() {
            return;
        }
        for name in gone {
            self.notes.remove(&name);
        }
        self.notes.put(FLOOR, &floor.to_be_bytes());
    }

    /// Whether all are synced.
    pub(crate) fn are_synced(&self) -> bool {
        self.unsynced.is_empty()
    }
}
