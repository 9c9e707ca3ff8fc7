//! Records of transactions over several shards ([`headwater_router::Redo`]), as one shard keeps them: notes, in one batch with what its part has
//! written.
//!
//! Where a transaction is safe everywhere ([`Recorded`]), its record's place is another one's: the new record says up to which number nobody needs
//! any ([`FoundRecords::floor`]). None of that costs a sync: but under [`Durability::None`], where nothing else is ever
//! synced, much that waits for it is.
//!
//! ```text
//! x place:4    number:8 floor:8 record
//! w            floor:8, of records that were removed
//! ```
//!
//! [`Durability::None`]: headwater_keep::Durability::None

use super::{EmbeddedStore, SETTLE};
use crate::shards::{FoundRecords, Recorded};
use headwater_base::Shard;
use headwater_config::ConfigError;
use headwater_keep::{Notes, Store};
use headwater_router::Place;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// What a record's name begins with.
const RECORD: u8 = b'x';
const RECORDS_END: &[u8] = b"y";
const FLOOR: &[u8] = b"w";
/// Bytes before what the record says.
const HEAD: usize = 16;
/// How many new records come before needless ones are looked for; as many needless ones stay, so that their places are used again.
const LOOK_RECORDS: usize = 64;
/// One with more bytes does not stay, and it is looked behind so many.
const STAYS_BYTES: usize = 4 << 10;
const LOOK_BYTES: usize = 256 << 10;
/// So many that are not synced, or bytes of them, are enough for a sync.
const UNSYNCED_RECORDS: usize = 16 << 10;
const UNSYNCED_BYTES: usize = 4 << 20;

fn name_of(place: u32) -> Vec<u8> {
    [&[RECORD], &place.to_be_bytes()[..]].concat()
}

fn number_of(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

/// A record that is kept.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The number of its transaction.
    number: u64,
    place: u32,
    bytes: usize,
}

/// The records of one shard.
#[derive(Debug)]
pub(crate) struct KeptRecords {
    notes: Notes,
    /// All, in the order in which they came.
    kept: VecDeque<Kept>,
    /// Places without a record; behind the last one there are more.
    free: Vec<u32>,
    places: u32,
    /// Those that are not synced: the number of the transaction, the operation, bytes.
    unsynced: VecDeque<(u64, u64, usize)>,
    unsynced_bytes: usize,
    /// Records, and bytes of them, since it was looked which can be removed.
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
        let (mut floor, mut records, mut kept) = (0, BTreeMap::<u64, Vec<u8>>::new(), Vec::new());
        let mut damaged = None;
        notes.read(FLOOR, &[RECORD], false, &mut |_, text| {
            floor = number_of(text).unwrap_or(0);
            true
        })?;
        notes.read(&[RECORD], RECORDS_END, false, &mut |name, text| {
            let place = name[1..].try_into().ok().map(u32::from_be_bytes);
            let head = (place, number_of(text), text.get(8..).and_then(number_of));
            let (Some(place), Some(number), Some(told)) = head else {
                damaged = Some(name.escape_ascii().to_string());
                return true;
            };
            floor = told.max(floor);
            kept.push(Kept { number, place, bytes: text.len() });
            let (record, known) = (&text[HEAD..], records.get(&number));
            if known.is_none_or(|known| Place::of_record(known) < Place::of_record(record)) {
                records.insert(number, record.to_vec());
            }
            true
        })?;
        if let Some(name) = damaged {
            return Err(format!("the record '{name}' of a transaction is damaged"));
        }
        let places = kept.iter().map(|record| record.place + 1).max().unwrap_or(0);
        let mut free = vec![true; places as usize];
        kept.iter().for_each(|record| free[record.place as usize] = false);
        let free = (0..places).filter(|&place| free[place as usize]).collect();
        kept.sort_unstable_by_key(|record| record.number);
        let (unsynced, new) = (VecDeque::new(), (LOOK_RECORDS, LOOK_BYTES));
        let found = FoundRecords { floor, records };
        let kept = kept.into();
        Ok((Self { notes, kept, free, places, unsynced, unsynced_bytes: 0, new, asked: 0 }, found))
    }

    /// Keeps a record, in one batch with what was written in this turn.
    pub(crate) fn keep(&mut self, number: u64, record: &[u8], recorded: &Recorded) {
        let floor = recorded.hold(number);
        let place = match self.kept.front() {
            Some(first) if first.number < floor => {
                let place = first.place;
                self.kept.pop_front();
                place
            }
            _ => self.free.pop().unwrap_or_else(|| {
                self.places += 1;
                self.places - 1
            }),
        };
        let text = [&number.to_be_bytes()[..], &floor.to_be_bytes(), record].concat();
        let operation = self.notes.put(&name_of(place), &text);
        let bytes = text.len();
        self.kept.push_back(Kept { number, place, bytes });
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
            self.remove_needless(recorded);
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

    fn remove_needless(&mut self, recorded: &Recorded) {
        let looks_at_all = self.new.1 >= LOOK_BYTES;
        self.new = (0, 0);
        let (floor, before) = (recorded.floor(), self.kept.len());
        let Self { notes, kept, free, .. } = self;
        let mut remove = |record: &Kept| {
            notes.remove(&name_of(record.place));
            free.push(record.place);
        };
        while let Some(first) = kept.front()
            && first.number < floor
            && kept.len() > LOOK_RECORDS
        {
            remove(first);
            kept.pop_front();
        }
        if looks_at_all {
            kept.retain(|record| {
                let stays = record.number >= floor || record.bytes <= STAYS_BYTES;
                if !stays {
                    remove(record);
                }
                stays
            });
        }
        if kept.len() < before {
            notes.put(FLOOR, &floor.to_be_bytes());
        }
    }

    /// Whether all are synced.
    pub(crate) fn are_synced(&self) -> bool {
        self.unsynced.is_empty()
    }
}

impl EmbeddedStore {
    /// Finds the records of transactions over several shards, and tells them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn find_records(&mut self, me: Shard, told: &Recorded) -> Result<(), ConfigError> {
        let (records, found) = KeptRecords::open(self.store.notes())
            .map_err(|why| ConfigError(format!("data-dir '{}': {why}", self.path)))?;
        told.found(me, found);
        self.records = Some(records);
        Ok(())
    }

    /// Keeps the record of a transaction, in one batch with what it has written in this turn.
    pub(crate) fn keep_record(&mut self, number: u64, record: &[u8], recorded: &Recorded) {
        if let Some(records) = &mut self.records {
            records.keep(number, record, recorded);
        }
    }

    /// Lets records go that nobody needs any more.
    #[inline]
    pub(crate) fn look_at_records(&mut self, recorded: &Recorded) {
        if let Some(records) = &mut self.records {
            records.end_turn(&self.store, recorded);
        }
    }

    /// Waits until all records are safe from a failure of the machine.
    ///
    /// # Errors
    /// They will not be.
    pub(crate) fn sync_records(&mut self, recorded: &Recorded) -> Result<(), String> {
        let is_synced =
            |keeping: &Self| keeping.records.as_ref().is_none_or(KeptRecords::are_synced);
        self.look_at_records(recorded);
        if is_synced(self) {
            return Ok(());
        }
        let (begun, all) = (Instant::now(), self.store.ask_sync());
        while !self.store.failed() && self.store.durable() < all && begun.elapsed() < SETTLE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.look_at_records(recorded);
        is_synced(self).then_some(()).ok_or_else(|| String::from("data cannot be synced"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_base::source::{News, Sink};
    use headwater_keep::{Durability, Options};
    use std::path::Path;
    use std::sync::Arc;

    #[derive(Debug)]
    struct Nobody;

    impl Sink for Nobody {
        fn tell(&self, _news: News) -> bool {
            true
        }
    }

    fn open(folder: &Path) -> (Store, KeptRecords, FoundRecords) {
        let options = Options { durability: Durability::None, ..Options::default() };
        let (store, _) = Store::open(folder, options, Arc::new(Nobody), Box::new(|| {})).unwrap();
        let (records, found) = KeptRecords::open(store.notes()).unwrap();
        (store, records, found)
    }

    /// What begins with how far its transaction has come.
    fn record(item: u32, len: usize) -> Vec<u8> {
        [&item.to_be_bytes()[..], &[0], &vec![7; len]].concat()
    }

    #[test]
    fn records_are_found_until_their_transactions_are_safe_everywhere() {
        let place = tempfile::tempdir().unwrap();
        let recorded = Recorded::default();
        let (store, mut records, found) = open(place.path());
        assert_eq!((found.floor, found.records.len()), (0, 0));
        recorded.found(Shard(0), found);
        let end_turn = |records: &mut KeptRecords, synced: bool| {
            let last = if synced { store.ask_sync() } else { store.commit() };
            while synced && store.durable() < last {
                std::thread::yield_now();
            }
            records.end_turn(&store, &recorded);
            store.commit();
        };
        let mut held = Vec::new();
        for round in 0..500 {
            let number = recorded.begin();
            records.keep(number, &record(0, 10), &recorded);
            records.keep(
                number,
                &record(1, if round % 9 == 0 { 2 * STAYS_BYTES } else { 9 }),
                &recorded,
            );
            // Its coordinator has not heard of all yet.
            held.push(number);
            end_turn(&mut records, round % 50 == 49);
            if round % 100 == 99 {
                held.drain(..).for_each(|number| recorded.close(number));
                assert_eq!(recorded.floor(), number + 1);
            }
        }
        assert!(records.places < 500, "places are used again: {}", records.places);
        let number = recorded.begin();
        records.keep(number, &record(3, 1), &recorded);
        records.keep(number, &record(2, 1), &recorded);
        assert!(!records.are_synced());
        end_turn(&mut records, true);
        assert!(records.are_synced() && recorded.floor() == number);
        drop((records, store));
        let (store, mut records, found) = open(place.path());
        assert_eq!(found.records[&number], record(3, 1), "the furthest one");
        assert_eq!(found.floor, number);
        let recorded = Recorded::default();
        recorded.found(Shard(0), found);
        records.end_turn(&store, &recorded);
        let kept = records.kept.len();
        assert!((1..=LOOK_RECORDS).contains(&kept), "{kept}");
        assert!(records.kept.iter().all(|kept| kept.bytes <= STAYS_BYTES), "long ones are gone");
        drop((records, store));
        let (_store, records, found) = open(place.path());
        assert_eq!((records.kept.len(), found.floor), (kept, number + 1));
    }
}
