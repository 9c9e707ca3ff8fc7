//! The policies that others use, with all the memory and lists they want: what a policy of a few
//! bits is measured against.

use crate::cache::{Access, Cache, Entry, Random};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where an object is, if it is resident.
#[derive(Clone, Copy, Default)]
struct Place {
    bytes: u32,
    /// Its key in the order of its queue.
    order: u64,
    hits: u8,
    queue: u8,
}

/// Exact orders by a number: least recently used, greedy dual by size and frequency.
pub(crate) struct Ordered {
    capacity: u64,
    used: u64,
    places: Vec<Place>,
    counts: Vec<u32>,
    queue: BTreeSet<(u64, u32)>,
    tick: u64,
    floor: f64,
    by: Order,
}

/// What an [`Ordered`] cache keeps.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Order {
    /// The last used.
    Recency,
    /// The most often used since it came.
    Frequency,
    /// Frequency per byte, above that of the last victim (GDSF).
    Gdsf,
}

impl Ordered {
    pub(crate) fn new(capacity: u64, objects: usize, by: Order) -> Self {
        Self {
            capacity,
            used: 0,
            places: vec![Place::default(); objects],
            counts: vec![0; objects],
            queue: BTreeSet::new(),
            tick: 0,
            floor: 0.0,
            by,
        }
    }

    fn order(&self, object: u32, bytes: u32) -> u64 {
        let count = self.counts[object as usize];
        match self.by {
            Order::Recency => self.tick,
            // Recency decides among equals.
            Order::Frequency => (u64::from(count) << 40) | self.tick,
            // Positive floats are ordered as their bits are.
            Order::Gdsf => (self.floor + f64::from(count) / f64::from(bytes)).to_bits(),
        }
    }
}

impl Cache for Ordered {
    fn access(&mut self, access: Access) -> bool {
        self.tick += 1;
        let object = access.object;
        let place = self.places[object as usize];
        let hit = place.queue != 0;
        if hit {
            self.queue.remove(&(place.order, object));
            self.used -= u64::from(place.bytes);
        } else {
            self.counts[object as usize] = 0;
        }
        self.counts[object as usize] += 1;
        self.used += u64::from(access.bytes);
        let order = self.order(object, access.bytes);
        self.places[object as usize] = Place { bytes: access.bytes, order, hits: 0, queue: 1 };
        while self.used > self.capacity {
            let Some((order, victim)) = self.queue.pop_first() else { break };
            if self.by == Order::Gdsf {
                self.floor = f64::from_bits(order);
            }
            let place = &mut self.places[victim as usize];
            self.used -= u64::from(place.bytes);
            place.queue = 0;
        }
        self.queue.insert((order, object));
        hit
    }
}

/// First in, first out, with second chances: FIFO, CLOCK, S3-FIFO.
pub(crate) struct Fifo {
    capacity: u64,
    used: [u64; 2],
    places: Vec<Place>,
    /// The small queue of those that are new, and the main one.
    queues: [VecDeque<u32>; 2],
    small: u64,
    chances: u8,
    ghosts: Ghosts,
}

/// Objects that were evicted lately.
#[derive(Default)]
struct Ghosts {
    bytes: u64,
    queue: VecDeque<(u32, u32, u64)>,
    known: BTreeMap<u32, u64>,
    tick: u64,
}

impl Ghosts {
    fn add(&mut self, object: u32, bytes: u32, most: u64) {
        self.tick += 1;
        self.queue.push_back((object, bytes, self.tick));
        self.known.insert(object, self.tick);
        self.bytes += u64::from(bytes);
        while self.bytes > most {
            let Some((object, bytes, tick)) = self.queue.pop_front() else { break };
            self.bytes -= u64::from(bytes);
            if self.known.get(&object) == Some(&tick) {
                self.known.remove(&object);
            }
        }
    }
}

impl Fifo {
    /// A queue whose entries have so many chances.
    pub(crate) fn clock(capacity: u64, objects: usize, chances: u8) -> Self {
        Self {
            capacity,
            used: [0; 2],
            places: vec![Place::default(); objects],
            queues: [VecDeque::new(), VecDeque::new()],
            small: 0,
            chances,
            ghosts: Ghosts::default(),
        }
    }

    /// S3-FIFO: a tenth for those that are new, three chances, as many ghosts as fit the rest.
    pub(crate) fn s3(capacity: u64, objects: usize) -> Self {
        Self { small: capacity / 10, ..Self::clock(capacity, objects, 3) }
    }

    fn evict(&mut self) {
        let from_small = self.small > 0 && self.used[0] > self.small || self.queues[1].is_empty();
        let from = usize::from(!from_small);
        let Some(object) = self.queues[from].pop_front() else { return };
        let place = &mut self.places[object as usize];
        if from_small && place.hits > 1 || !from_small && place.hits > 0 {
            place.hits = if from_small { 0 } else { place.hits - 1 };
            self.used[from] -= u64::from(place.bytes);
            self.used[1] += u64::from(place.bytes);
            place.queue = 2;
            self.queues[1].push_back(object);
            return;
        }
        place.queue = 0;
        self.used[from] -= u64::from(place.bytes);
        if from_small && self.small > 0 {
            self.ghosts.add(object, place.bytes, self.capacity - self.small);
        }
    }
}

impl Cache for Fifo {
    fn access(&mut self, access: Access) -> bool {
        let place = &mut self.places[access.object as usize];
        let hit = place.queue != 0;
        if hit {
            place.hits = (place.hits + 1).min(self.chances);
            let used = &mut self.used[usize::from(place.queue - 1)];
            *used = *used + u64::from(access.bytes) - u64::from(place.bytes);
            place.bytes = access.bytes;
        } else {
            let main = self.small == 0 || self.ghosts.known.remove(&access.object).is_some();
            let queue = usize::from(main);
            *place = Place { bytes: access.bytes, order: 0, hits: 0, queue: queue as u8 + 1 };
            self.used[queue] += u64::from(access.bytes);
            self.queues[queue].push_back(access.object);
        }
        while self.used.iter().sum::<u64>() > self.capacity {
            self.evict();
        }
        hit
    }
}

/// SIEVE: one queue, one bit, and a hand that stays where it was.
pub(crate) struct Sieve {
    capacity: u64,
    used: u64,
    places: Vec<Place>,
    /// By the time they came.
    queue: BTreeMap<u64, u32>,
    hand: u64,
    tick: u64,
}

impl Sieve {
    pub(crate) fn new(capacity: u64, objects: usize) -> Self {
        let places = vec![Place::default(); objects];
        Self { capacity, used: 0, places, queue: BTreeMap::new(), hand: 0, tick: 0 }
    }
}

impl Cache for Sieve {
    fn access(&mut self, access: Access) -> bool {
        self.tick += 1;
        let place = &mut self.places[access.object as usize];
        let hit = place.queue != 0;
        let mut room = self.capacity;
        if hit {
            place.hits = 1;
            self.used = self.used + u64::from(access.bytes) - u64::from(place.bytes);
            place.bytes = access.bytes;
        } else {
            room = room.saturating_sub(u64::from(access.bytes));
        }
        while self.used > room {
            // The hand starts again at the oldest when it has passed the youngest of now.
            let found = self.queue.range(self.hand..).next().or_else(|| self.queue.iter().next());
            let Some((&order, &object)) = found else { break };
            let youngest = self.queue.last_key_value().is_some_and(|(&last, _)| last == order);
            self.hand = if youngest { 0 } else { order + 1 };
            let place = &mut self.places[object as usize];
            if place.hits > 0 {
                place.hits = 0;
            } else {
                place.queue = 0;
                self.used -= u64::from(place.bytes);
                self.queue.remove(&order);
            }
        }
        if !hit {
            let Access { object, bytes, .. } = access;
            self.places[object as usize] = Place { bytes, order: self.tick, hits: 0, queue: 1 };
            self.used += u64::from(bytes);
            self.queue.insert(self.tick, object);
        }
        hit
    }
}

/// W-TinyLFU: a window of 1 %, a main part of which four fifths are protected, and a count-min
/// sketch that decides who may enter.
pub(crate) struct TinyLfu {
    capacity: u64,
    used: [u64; 3],
    places: Vec<Place>,
    queues: [BTreeMap<u64, u32>; 3],
    sketch: Sketch,
    tick: u64,
}

/// Counters of four bits, four for each object, halved when as many as ten times their number
/// were counted.
pub(crate) struct Sketch {
    counters: Vec<u8>,
    counted: usize,
}

impl Sketch {
    pub(crate) fn new(entries: usize) -> Self {
        Self { counters: vec![0; (entries.max(16) * 4).next_power_of_two()], counted: 0 }
    }

    fn at(&self, object: u32, row: u64) -> usize {
        let hash = (u64::from(object) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9 + 2 * row * row * row);
        (hash >> 32) as usize & (self.counters.len() - 1)
    }

    pub(crate) fn count(&mut self, object: u32) {
        for row in 0..4 {
            let at = self.at(object, row);
            self.counters[at] = (self.counters[at] + 1).min(15);
        }
        self.counted += 1;
        if self.counted >= self.counters.len() / 4 * 10 {
            self.counted /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
    }

    pub(crate) fn estimate(&self, object: u32) -> u8 {
        (0..4).map(|row| self.counters[self.at(object, row)]).min().unwrap_or(0)
    }
}

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

impl TinyLfu {
    pub(crate) fn new(capacity: u64, objects: usize, mean_bytes: u64) -> Self {
        Self {
            capacity,
            used: [0; 3],
            places: vec![Place::default(); objects],
            queues: [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()],
            sketch: Sketch::new((capacity / mean_bytes.max(1)) as usize),
            tick: 0,
        }
    }

    fn put(&mut self, object: u32, bytes: u32, queue: usize) {
        self.tick += 1;
        self.places[object as usize] =
            Place { bytes, order: self.tick, hits: 0, queue: queue as u8 + 1 };
        self.queues[queue].insert(self.tick, object);
        self.used[queue] += u64::from(bytes);
    }

    fn take(&mut self, object: u32) -> u32 {
        let place = &mut self.places[object as usize];
        let queue = usize::from(place.queue - 1);
        place.queue = 0;
        self.queues[queue].remove(&place.order);
        self.used[queue] -= u64::from(place.bytes);
        place.bytes
    }

    fn oldest(&self, queue: usize) -> Option<u32> {
        self.queues[queue].first_key_value().map(|(_, &object)| object)
    }

    fn settle(&mut self) {
        let window = self.capacity / 100;
        while self.used[PROTECTED] > (self.capacity - window) / 5 * 4 {
            let Some(object) = self.oldest(PROTECTED) else { break };
            let bytes = self.take(object);
            self.put(object, bytes, PROBATION);
        }
        while self.used[WINDOW] > window {
            let Some(object) = self.oldest(WINDOW) else { break };
            let bytes = self.take(object);
            let mut admitted = true;
            let room = self.capacity - window;
            while admitted && self.used[PROBATION] + self.used[PROTECTED] + u64::from(bytes) > room
            {
                let victim = self.oldest(PROBATION).or_else(|| self.oldest(PROTECTED));
                let Some(victim) = victim else { break };
                admitted = self.sketch.estimate(object) > self.sketch.estimate(victim);
                if admitted {
                    self.take(victim);
                }
            }
            if admitted {
                self.put(object, bytes, PROBATION);
            }
        }
    }
}

impl Cache for TinyLfu {
    fn access(&mut self, access: Access) -> bool {
        self.sketch.count(access.object);
        let place = self.places[access.object as usize];
        let hit = place.queue != 0;
        let queue = if hit {
            self.take(access.object);
            if place.queue as usize == WINDOW + 1 { WINDOW } else { PROTECTED }
        } else {
            WINDOW
        };
        self.put(access.object, access.bytes, queue);
        self.settle();
        hit
    }
}

/// Redis' approximations: five samples, a pool of the sixteen best victims so far.
pub(crate) struct Redis {
    capacity: u64,
    used: u64,
    entries: Vec<Entry<RedisNote>>,
    at: Vec<u32>,
    /// Victims by their idle time (or how seldom they are used), the best last.
    pool: Vec<(u32, u32)>,
    by: RedisBy,
    random: Random,
}

/// What Redis keeps of an entry.
#[derive(Clone, Copy, Default)]
pub(crate) struct RedisNote {
    /// Seconds (`lru`) or minutes (`lfu`).
    time: u32,
    /// Logarithmic.
    count: u8,
}

/// Redis' policies.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RedisBy {
    Lru,
    Lfu,
    Random,
}

impl Redis {
    pub(crate) fn new(capacity: u64, objects: usize, by: RedisBy) -> Self {
        Self {
            capacity,
            used: 0,
            entries: Vec::new(),
            at: vec![u32::MAX; objects],
            pool: Vec::new(),
            by,
            random: Random(1),
        }
    }

    fn decayed(note: RedisNote, now: u32) -> u8 {
        note.count.saturating_sub((now / 60 - note.time).min(255) as u8)
    }

    fn idle(&self, note: RedisNote, now: u32) -> u32 {
        match self.by {
            RedisBy::Lru => now - note.time,
            RedisBy::Lfu => 255 - u32::from(Self::decayed(note, now)),
            RedisBy::Random => 0,
        }
    }

    fn touch(&mut self, at: usize, now: u32) {
        let note = self.entries[at].note;
        let count = Self::decayed(note, now);
        let base = f64::from(count.saturating_sub(5));
        let grows = self.random.unit() < 1.0 / (base * 10.0 + 1.0);
        let time = if self.by == RedisBy::Lru { now } else { now / 60 };
        let count = count.saturating_add(u8::from(grows));
        self.entries[at].note = RedisNote { time, count };
    }

    fn victim(&mut self, now: u32) -> usize {
        if self.by == RedisBy::Random {
            return self.random.below(self.entries.len());
        }
        loop {
            for _ in 0..5 {
                let entry = self.entries[self.random.below(self.entries.len())];
                let idle = self.idle(entry.note, now);
                if self.pool.iter().any(|&(_, object)| object == entry.object) {
                    continue;
                }
                let place = self.pool.partition_point(|&(other, _)| other < idle);
                if self.pool.len() < 16 {
                    self.pool.insert(place, (idle, entry.object));
                } else if place > 0 {
                    self.pool.insert(place, (idle, entry.object));
                    self.pool.remove(0);
                }
            }
            while let Some((_, object)) = self.pool.pop() {
                if self.at[object as usize] != u32::MAX {
                    return self.at[object as usize] as usize;
                }
            }
        }
    }
}

impl Cache for Redis {
    fn access(&mut self, access: Access) -> bool {
        let at = self.at[access.object as usize];
        let hit = at != u32::MAX;
        if hit {
            let entry = &mut self.entries[at as usize];
            self.used = self.used + u64::from(access.bytes) - u64::from(entry.bytes);
            entry.bytes = access.bytes;
            self.touch(at as usize, access.time_s);
        }
        // Redis makes room before it takes in something new.
        let new = if hit { 0 } else { u64::from(access.bytes) };
        while self.used + new > self.capacity && !self.entries.is_empty() {
            let victim = self.victim(access.time_s);
            let entry = self.entries.swap_remove(victim);
            self.at[entry.object as usize] = u32::MAX;
            self.used -= u64::from(entry.bytes);
            if let Some(moved) = self.entries.get(victim) {
                self.at[moved.object as usize] = victim as u32;
            }
        }
        if !hit {
            let time = if self.by == RedisBy::Lru { access.time_s } else { access.time_s / 60 };
            self.at[access.object as usize] = self.entries.len() as u32;
            let note = RedisNote { time, count: 5 };
            self.entries.push(Entry { object: access.object, bytes: access.bytes, note });
            self.used += new;
        }
        hit
    }
}
