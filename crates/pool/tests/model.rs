//! The pool does what a plain map of vectors does, and everything it promises of itself holds
//! after every step.
//!
//! A failure names its seed. `HEADWATER_POOL_FIRST` and `HEADWATER_POOL_ROUNDS` run other or more
//! histories; `HEADWATER_POOL_SOAK` sets how many steps the churn takes.

use headwater_pool::{Pool, ValueRef};

/// Numbers from a seed.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A length: mostly short, now and then up to `max`, often close to a boundary.
    fn length(&mut self, max: usize) -> usize {
        let edges = [0, 7, 8, 16, 128, 129, 2048, 4095, 4096, 4097, 8192, 3 * 4096 + 1];
        let length = match self.below(10) {
            0..4 => self.below(200),
            4..6 => edges[self.below(edges.len())],
            6..8 => self.below(5000),
            8 => self.below(40_000),
            _ => self.below(max + 1),
        };
        length.min(max)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (first, step) = (self.next() as u8, self.next() as u8 | 1);
        (0..len)
            .map(|at| first.wrapping_add((at as u8).wrapping_mul(step)) ^ (at >> 8) as u8)
            .collect()
    }
}

/// Says which history failed.
struct Named(u64);

impl Drop for Named {
    #[expect(clippy::print_stderr, reason = "a failing test names its seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("run it again: HEADWATER_POOL_FIRST={} HEADWATER_POOL_ROUNDS=1", self.0);
        }
    }
}

/// A pool, and what its values should be.
struct Pair {
    pool: Pool,
    held: Vec<(ValueRef, Vec<u8>)>,
    draws: Draws,
    length_max: usize,
}

impl Pair {
    fn new(seed: u64, limit: Option<usize>, length_max: usize) -> Self {
        let pool = limit.map_or_else(Pool::new, Pool::with_limit);
        Self { pool, held: Vec::new(), draws: Draws(seed), length_max }
    }

    fn step(&mut self) {
        if self.draws.below(12) == 0 {
            self.compact();
            return;
        }
        let draws = &mut self.draws;
        let len = draws.length(self.length_max);
        let expected = if draws.below(4) == 0 { draws.below(10_000) } else { 0 };
        let within = draws.below(2) == 0;
        if self.held.is_empty() || draws.below(10) < 3 {
            let bytes = draws.bytes(len);
            if !within && self.pool.limit() == usize::MAX {
                self.held.push((self.pool.insert(&bytes), bytes));
            } else if let Ok(value) = self.pool.try_insert(&bytes, expected) {
                self.held.push((value, bytes));
            }
            return;
        }
        let at = draws.below(self.held.len());
        let (value, bytes) = self.held[at].clone();
        match draws.below(14) {
            12 => {
                let from = draws.below(bytes.len() + 1);
                let new = draws.bytes(len.min(bytes.len() - from));
                let sole = self.pool.is_sole(value, from);
                let written = self.pool.write_at(value, from, &new);
                assert!(!sole || written == value, "what nobody shares is written in its place");
                self.held[at] = (written, bytes);
                self.held[at].1[from..from + new.len()].copy_from_slice(&new);
            }
            13 => {
                let len = draws.below(bytes.len() + 1);
                self.held[at] = (self.pool.cut(value, len), bytes[..len].to_vec());
            }
            0..2 => {
                self.pool.retain(value);
                self.held.push((value, bytes));
            }
            2..5 => {
                self.pool.release(value);
                self.held.swap_remove(at);
            }
            5..9 => {
                let len = if draws.below(2) == 0 { len.min(30) } else { len };
                let tail = draws.bytes(len);
                let longer = self.pool.try_append(value, &tail, expected);
                if let Ok(longer) = longer {
                    self.held[at] = (longer, [bytes, tail].concat());
                }
            }
            9 => {
                let near = bytes.len().saturating_sub(3) + draws.below(6);
                let new = if draws.below(2) == 0 { draws.bytes(len) } else { draws.bytes(near) };
                if let Ok(value) = self.pool.try_replace(value, &new) {
                    self.held[at] = (value, new);
                }
            }
            10 => {
                let wanted = draws.below(bytes.len() + 2);
                let (rest, dropped) = self.pool.truncate_head(value, wanted);
                assert!(dropped <= wanted && (wanted - dropped < 4096 || dropped == bytes.len()));
                self.held[at] = (rest, bytes[dropped..].to_vec());
            }
            _ => {
                let head = draws.bytes(len);
                let whole = self.pool.prepend(value, &head);
                self.held[at] = (whole, [head, bytes].concat());
            }
        }
    }

    /// Begins a compaction, offers some values, or ends it: other things happen in between.
    fn compact(&mut self) {
        match self.draws.below(4) {
            0 if self.draws.below(3) == 0 => _ = self.pool.begin_moving_all(),
            0 => _ = self.pool.begin_compaction(),
            1 => self.pool.end_compaction(),
            _ => {
                for (value, _) in &mut self.held {
                    let alone = self.pool.references(*value) == 1;
                    if let Some(moved) = self.pool.moved(*value) {
                        assert!(alone && self.pool.is_compacting());
                        *value = moved;
                    }
                }
            }
        }
    }

    fn check(&mut self) {
        self.pool.check_invariants(self.held.iter().map(|(value, _)| *value));
        for (value, bytes) in &self.held {
            let view = self.pool.view(*value);
            assert_eq!((view.len(), value.len()), (bytes.len(), bytes.len()));
            assert!(view.equals(bytes), "a value of {} bytes has changed", bytes.len());
        }
        let Some(at) = self.held.len().checked_sub(1).map(|last| self.draws.below(last + 1)) else {
            return;
        };
        let (value, bytes) = &self.held[at];
        let (from, len) = (self.draws.below(bytes.len() + 2), self.draws.below(bytes.len() + 2));
        let wanted = &bytes[from.min(bytes.len())..(from + len).min(bytes.len())];
        let view = self.pool.view(*value);
        assert_eq!(view.read_at(from, len).collect::<Vec<_>>().concat(), wanted);
        assert_eq!(view.to_vec(), *bytes);
        assert!(view.parts().all(|part| !part.is_empty()));
    }

    fn release_all(&mut self) {
        while !self.held.is_empty() {
            let at = self.draws.below(self.held.len());
            self.pool.release(self.held.swap_remove(at).0);
        }
        self.pool.check_invariants([]);
        assert_eq!((self.pool.bytes(), self.pool.blocks()), (0, 0), "leaked");
        self.pool.shrink(0);
        assert_eq!(self.pool.idle(), 0);
        assert!(self.pool.allocated() < 1 << 20, "only tables are left");
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn the_pool_does_what_a_map_of_vectors_does() {
    let first = setting("HEADWATER_POOL_FIRST", 0);
    for seed in first..first + setting("HEADWATER_POOL_ROUNDS", 200) {
        let limit = match seed % 3 {
            0 => None,
            1 => Some(256 << 10),
            _ => Some(4 << 20),
        };
        let _named = Named(seed);
        let mut pair = Pair::new(seed, limit, if seed % 10 == 9 { 4 << 20 } else { 60_000 });
        for _ in 0..120 {
            pair.step();
            pair.check();
        }
        pair.release_all();
    }
}

/// Values of all sizes come and go in different orders; at the end all memory is free again.
#[test]
fn after_any_churn_nothing_is_leaked() {
    let steps = setting("HEADWATER_POOL_SOAK", 20_000);
    let limit = 64 << 20;
    let mut pair = Pair::new(setting("HEADWATER_POOL_FIRST", 0), Some(limit), 4 << 20);
    for step in 0..steps {
        // Fill with short values, then long ones, and take away every other one: holes of every
        // size, for values of every other size.
        pair.length_max = [50, 4 << 20, 600, 9000][(step / 1000 % 4) as usize];
        pair.step();
        if step % 1000 == 999 {
            pair.check();
            let mut keep = false;
            let Pair { pool, held, .. } = &mut pair;
            held.retain(|(value, _)| {
                keep = !keep;
                if !keep {
                    pool.release(*value);
                }
                keep
            });
            pool.shrink(1 << 20);
        }
    }
    pair.release_all();
}

/// Full means full: what is free can be used for values of any other size.
#[test]
fn free_memory_of_one_size_serves_every_other() {
    let limit = 1 << 20;
    for (before, after) in [(100, 4000), (4000, 100), (16, 10_000), (10_000, 16), (64, 1000)] {
        let mut pool = Pool::with_limit(limit);
        let mut values = Vec::new();
        while let Ok(value) = pool.try_insert(&vec![1; before], 0) {
            values.push(value);
        }
        assert!(pool.allocated() <= limit && pool.available() < before + 4096);
        // Every buffer keeps a value, so that none can change its size.
        let mut kept = Vec::new();
        for (at, value) in values.into_iter().enumerate() {
            if at % 7 == 0 { kept.push(value) } else { pool.release(value) }
        }
        let room = pool.available();
        while let Ok(value) = pool.try_insert(&vec![2; after], 0) {
            assert!(pool.view(value).equals(&vec![2; after]));
            kept.push(value);
        }
        let left = pool.available();
        assert!(room > 400 << 10 && left < after, "{before} then {after}: {left} of {room}");
        assert!(pool.allocated() <= limit);
        pool.check_invariants(kept);
    }
}

#[test]
fn a_compaction_leaves_each_size_hardly_more_than_it_needs() {
    for seed in 0..3 {
        let mut pair = Pair::new(seed, None, 600);
        while pair.held.len() < 20_000 {
            let len = 8 + pair.draws.below(600);
            let bytes = pair.draws.bytes(len);
            pair.held.push((pair.pool.insert(&bytes), bytes));
        }
        let full = pair.pool.allocated();
        while pair.held.len() > 4000 {
            let at = pair.draws.below(pair.held.len());
            pair.pool.release(pair.held.swap_remove(at).0);
        }
        pair.pool.shrink(0);
        assert!(pair.pool.allocated() > full / 2, "random removals empty few buffers");
        assert!(pair.pool.begin_compaction());
        for (value, _) in &mut pair.held {
            *value = pair.pool.moved(*value).unwrap_or(*value);
        }
        pair.check();
        pair.pool.end_compaction();
        pair.pool.shrink(0);
        pair.check();
        // The last buffer of each class may be empty but for a value.
        let (allocated, bytes) = (pair.pool.allocated(), pair.pool.bytes());
        assert!(allocated < bytes * 8 / 5, "{allocated} for {bytes}");
        pair.release_all();
    }
}

#[test]
fn an_append_shares_what_was_there() {
    let mut pool = Pool::new();
    let mut log = ValueRef::EMPTY;
    let mut snapshots = Vec::new();
    let mut model = Vec::new();
    for step in 0..20_000u32 {
        let tail = step.to_le_bytes();
        log = pool.append(log, &tail, 0);
        model.extend_from_slice(&tail);
        if step % 100 == 0 {
            pool.retain(log);
            snapshots.push(log);
        }
    }
    assert!(pool.bytes() < 2 * model.len(), "200 snapshots share what they have in common");
    for snapshot in &snapshots {
        assert!(pool.view(*snapshot).equals(&model[..snapshot.len()]));
    }
    // A branch does not disturb the others.
    let branch = pool.append(snapshots[50], b"another story", 0);
    assert!(pool.view(branch).to_vec().ends_with(b"another story"));
    assert!(pool.view(log).equals(&model));
    snapshots[50] = branch;
    snapshots.into_iter().chain([log]).for_each(|value| pool.release(value));
    pool.check_invariants([]);
    assert_eq!(pool.bytes(), 0);
}

#[test]
fn a_lowered_limit_returns_what_is_idle() {
    let mut pool = Pool::with_limit(16 << 20);
    let values: Vec<_> = (0..10_000).map(|_| pool.insert(&[7; 1000])).collect();
    assert!(pool.allocated() > 9 << 20);
    let kept = values[0];
    values[1..].iter().for_each(|value| pool.release(*value));
    pool.set_limit(1 << 20);
    assert!(pool.allocated() <= 1 << 20);
    assert!(pool.view(kept).equals(&[7; 1000]));
    pool.set_limit(64 << 10);
    assert!(pool.try_insert(&[1; 100_000], 0).is_err());
    // What may not fail still does not.
    let beyond = pool.insert(&[1; 100_000]);
    assert!(pool.view(beyond).equals(&[1; 100_000]));
}

#[test]
fn a_held_view_outlives_the_key() {
    let mut pool = Pool::new();
    let long = pool.insert(&[3; 20_000]);
    let held = pool.view(long).hold().expect("a value in several blocks");
    pool.release(long);
    assert!(pool.view(held).equals(&[3; 20_000]));
    pool.release(held);
    let short = pool.insert(&[3; 2000]);
    assert_eq!(pool.view(short).hold(), None);
    pool.release(short);
    assert_eq!(pool.bytes(), 0);
}

#[test]
fn memory_that_stays_idle_goes_back_and_memory_in_use_does_not() {
    let mut pool = Pool::new();
    let bytes = vec![7; 100_000];
    let fill = |pool: &mut Pool| (0..100).map(|_| pool.insert(&bytes)).collect::<Vec<_>>();
    let empty = |pool: &mut Pool, values: Vec<ValueRef>| {
        values.into_iter().for_each(|value| pool.release(value));
    };
    let values = fill(&mut pool);
    empty(&mut pool, values);
    assert_eq!(pool.trim(usize::MAX), 0, "it was in use since the last call");
    let values = fill(&mut pool);
    let full = pool.allocated();
    empty(&mut pool, values);
    assert!(pool.trim(usize::MAX) < full / 10, "nearly all was in use once more");
    let returned = pool.trim(1);
    assert!(returned > 0 && returned < 10_000_000 && pool.idle() > 0, "no more than was asked");
    assert!(pool.trim(usize::MAX) > 0);
    assert_eq!(pool.idle(), 0);
    assert!(pool.allocated() < full / 100);
    pool.check_invariants([]);
}
