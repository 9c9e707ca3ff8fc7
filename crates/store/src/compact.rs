//! Moving values out of buffers of the pool that hardly hold any, so that these go back to the system.
//!
//! The store knows all references that keys hold; it offers them to the pool little by little, while other
//! things happen. What is written meanwhile, or held by others too, may keep a buffer from being emptied: it
//! goes on as before then.

use crate::store::Store;
use crate::table::{Note, Place};

/// How far a compaction has come.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    table: usize,
    place: Place,
}

impl<N: Note> Store<N> {
    /// Begins to compact the memory of values; `false` where there is nothing to gain.
    pub fn begin_compaction(&mut self) -> bool {
        self.compaction = Compaction::default();
        self.pool.begin_compaction()
    }

    /// Begins to move all values that can move, for tests: `false` where there are none.
    pub fn begin_moving_all(&mut self) -> bool {
        self.compaction = Compaction::default();
        self.pool.begin_moving_all()
    }

    /// Goes on with it, for about `most` keys. Returns what became empty to the system, but for
    /// `keep` bytes, and gives the bytes returned. It ends when all keys were looked at.
    pub fn compact(&mut self, most: usize, keep: usize) -> usize {
        let (mut left, pool) = (most, &mut self.pool);
        while left > 0 && pool.is_compacting() {
            let Compaction { table, place } = &mut self.compaction;
            let Some(slot) = self.tables.get_mut(*table) else {
                pool.end_compaction();
                break;
            };
            let mut offered = 0;
            let more = slot.as_mut().is_some_and(|slot| {
                slot.table.offer(place, left, &mut |value| {
                    offered += 1;
                    pool.moved(value)
                })
            });
            if !more {
                self.compaction = Compaction { table: *table + 1, place: Place::default() };
            }
            left -= (offered + 1).min(left);
        }
        pool.shrink(keep)
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;
    use alloc::format;
    use alloc::vec::Vec;
    use headwater_base::hash::Secret;

    #[test]
    fn values_move_together_and_stay_what_they_are() {
        let mut store: Store<()> = Store::new(Secret::fixed(3));
        let text = |at: usize| format!("value {at} ").repeat(20 + at % 7).into_bytes();
        let key = |at: usize| match at % 3 {
            0 => format!("{at}"),
            1 => format!("t|{at}"),
            _ => format!("g|{}|{at}", at % 100),
        };
        let g = store.table_for(b"g|");
        store.pin(g);
        store.table_mut(g).0.set_boundary(&headwater_pool::Pool::new(), 1);
        let mut shared = Vec::new();
        for at in 0..30_000 {
            let value = store.pool.insert(&text(at));
            if at % 1000 == 0 {
                store.pool.retain(value);
                shared.push((at, value));
            }
            let table = store.table_for(key(at).as_bytes());
            assert_eq!(store.insert(table, key(at).as_bytes(), value), None);
        }
        let full = store.pool.allocated();
        let stays = |at: usize| at.is_multiple_of(8);
        for at in (0..30_000).filter(|&at| !stays(at)) {
            let table = store.table_of(key(at).as_bytes()).unwrap();
            let value = store.remove(table, key(at).as_bytes()).unwrap();
            store.pool.release(value);
        }
        assert!(store.begin_compaction());
        let mut returned = 0;
        while store.pool.is_compacting() {
            returned += store.compact(500, 0);
        }
        assert!(returned > full / 2, "{returned} of {full} bytes went back");
        for at in (0..30_000).filter(|&at| stays(at)) {
            let table = store.table_of(key(at).as_bytes()).unwrap();
            let value = store.table(table).get(key(at).as_bytes()).unwrap();
            assert!(store.pool.view(value).equals(&text(at)), "{at}");
        }
        for (at, value) in shared {
            assert!(store.pool.view(value).equals(&text(at)));
            store.pool.release(value);
        }
        store.clear();
        store.dissolve(usize::MAX);
        assert_eq!(store.pool.bytes(), 0);
    }
}
