//! A cache that is judged by this crate, its entries in a plain vector.

use crate::cache::{Access, Cache, Entry};
use headwater_policy::{Candidate, Evictor, Heat, Least, Order, SAMPLES};

/// A cache as the engine is to be.
pub(crate) struct Headwater {
    capacity: u64,
    used: u64,
    entries: Vec<Entry<Heat>>,
    at: Vec<u32>,
    evictor: Evictor,
    samples: usize,
    ghosts: bool,
}

impl Headwater {
    pub(crate) fn new(capacity: u64, objects: usize, order: Order) -> Self {
        Self {
            capacity,
            used: 0,
            entries: Vec::new(),
            at: vec![u32::MAX; objects],
            evictor: Evictor::new(order, 1),
            samples: SAMPLES,
            ghosts: true,
        }
    }

    /// The same with another number of candidates.
    pub(crate) fn samples(self, samples: usize) -> Self {
        Self { samples, ..self }
    }

    /// The same without a memory of what was evicted.
    pub(crate) fn forgetful(self) -> Self {
        Self { ghosts: false, ..self }
    }

    fn hash(object: u32) -> u64 {
        let word = (u64::from(object) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    fn evict(&mut self) {
        let mut least = Least::default();
        for _ in 0..self.samples {
            let draw = u128::from(self.evictor.chance()) * self.entries.len() as u128;
            let at = (draw >> 64) as usize;
            let entry = &mut self.entries[at];
            if let Some(heat) = self.evictor.renewed(entry.note) {
                entry.note = heat;
            }
            let candidate = Candidate::plain(entry.note, entry.bytes);
            least.offer(at, self.evictor.score(&candidate));
        }
        let Some((victim, _)) = least.take() else { return };
        let entry = self.entries.swap_remove(victim);
        if self.ghosts {
            self.evictor.evicted(Self::hash(entry.object), entry.note, self.entries.len());
        }
        self.at[entry.object as usize] = u32::MAX;
        self.used -= u64::from(entry.bytes);
        if let Some(moved) = self.entries.get(victim) {
            self.at[moved.object as usize] = victim as u32;
        }
    }
}

impl Cache for Headwater {
    fn access(&mut self, access: Access) -> bool {
        let at = self.at[access.object as usize];
        let hit = at != u32::MAX;
        if hit {
            let entry = &mut self.entries[at as usize];
            entry.note = self.evictor.hit(entry.note);
            self.used = self.used + u64::from(access.bytes) - u64::from(entry.bytes);
            entry.bytes = access.bytes;
        } else {
            let heat = self.evictor.inserted(Self::hash(access.object), self.entries.len());
            self.at[access.object as usize] = self.entries.len() as u32;
            let Access { object, bytes, .. } = access;
            self.entries.push(Entry { object, bytes, note: heat });
            self.used += u64::from(access.bytes);
        }
        // The new entry is a candidate like any other: one that is larger than all else should
        // not drive the others out.
        while self.used > self.capacity && !self.entries.is_empty() {
            self.evict();
        }
        hit
    }
}
