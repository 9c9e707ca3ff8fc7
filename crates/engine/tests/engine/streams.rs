//! Random histories of streams, beside a plain vector that says what is right.

use crate::bad_disk::BadDisk;
use headwater_base::Millis;
use headwater_base::memory::Meter;
use headwater_engine::CHUNK_BYTES;
use headwater_engine::{Engine, EngineError, Expiry, Settings, Stop};
use headwater_policy::Policy;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a stream must be: every byte that its name ever had, by offset, and where what it has starts. What was never
/// there, because the name got a copy of a stream that begins later, is zeros.
#[derive(Clone, Debug, Default)]
struct Plain {
    bytes: Vec<u8>,
    start: usize,
    expires_at: Option<u64>,
    /// It went for want of memory, or had done so before it was written again.
    evicted: bool,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end.max(1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let seed = self.below(251);
        (0..len).map(|at| (seed + at % 253 + at / 997) as u8).collect()
    }
}

fn read(
    engine: &mut Engine,
    key: &[u8],
    offset: u64,
    count: u64,
) -> Result<Option<Vec<u8>>, EngineError> {
    let mut got = Vec::new();
    let read = engine.stream_read(key, offset, count).map_err(|stop| match stop {
        Stop::Failed(error) => error,
        Stop::Wait(_) => panic!("nothing is loaded here"),
    });
    Ok(match read? {
        None => None,
        Some(bytes) => {
            let len = bytes.len();
            bytes.for_each(&mut |part| {
                assert!(!part.is_empty());
                got.extend_from_slice(part);
            });
            assert_eq!(got.len(), len, "as many bytes as announced");
            Some(got)
        }
    })
}

struct History {
    engine: Engine,
    /// Where chunks are put aside, if anywhere; then they may be gone.
    disk: Option<BadDisk>,
    plain: BTreeMap<Vec<u8>, Plain>,
    /// Those that are gone: what comes after them begins behind their ends.
    gone: BTreeMap<Vec<u8>, Plain>,
    rng: Rng,
    now: u64,
}

/// Memory that is always short.
#[derive(Debug)]
struct Short;

impl Meter for Short {
    fn used(&self) -> usize {
        usize::MAX / 2
    }
}

impl History {
    fn new(seed: u64) -> Self {
        let (engine, plain) = (Engine::new(Settings::default()), BTreeMap::new());
        Self { engine, disk: None, plain, gone: BTreeMap::new(), rng: Rng(seed), now: 0 }
    }

    /// With a disk, and faults of it that the seed chooses.
    fn with_disk(seed: u64) -> Self {
        let mut history = Self::new(seed);
        let disk = BadDisk::default();
        {
            let mut kept = disk.0.borrow_mut();
            kept.refuses = [0, 5][seed as usize % 2];
            kept.loses = [0, 9][seed as usize / 2 % 2];
        }
        history.engine.set_spill(Box::new(disk.clone()), 0);
        history.disk = Some(disk);
        history
    }

    /// With a policy that lets keys go, and a limit of which last parts of streams are sometimes much, with or without
    /// a disk.
    fn with_policy(seed: u64) -> Self {
        let mut history =
            if seed.is_multiple_of(2) { Self::new(seed) } else { Self::with_disk(seed) };
        let policy = ["allkeys-lru", "volatile-lru", "allkeys-cost"][seed as usize % 3];
        history.engine.set_eviction_policy(Policy::named(policy).unwrap());
        let limit = [1 << 10, 1 << 18, 1 << 22][seed as usize / 2 % 3];
        history.engine.set_memory(Rc::new(Short), Some(limit));
        history
    }

    /// Notes that a stream is gone.
    fn lose(&mut self, key: &[u8], evicted: bool) -> bool {
        let lost = self.plain.remove(key);
        let is_lost = lost.is_some();
        self.gone.extend(lost.map(|plain| {
            (key.to_vec(), Plain { start: plain.bytes.len(), expires_at: None, evicted, ..plain })
        }));
        is_lost
    }

    fn lose_all(&mut self, goes: impl Fn(&Plain) -> bool) {
        let keys: Vec<_> = self
            .plain
            .iter()
            .filter(|(_, plain)| goes(plain))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.lose(&key, false);
        }
    }

    /// What a name that gets a stream has behind it.
    fn before(&mut self, key: &[u8]) -> Plain {
        let gone = self.gone.remove(key).unwrap_or_default();
        Plain { start: if gone.evicted { 0 } else { gone.bytes.len() }, ..gone }
    }

    fn evict(&mut self) {
        let (before, may_go) = (self.engine.stats().value_bytes, self.engine.ends_may_go());
        if !self.engine.evict_one() {
            return;
        }
        assert!(self.engine.stats().value_bytes <= before);
        let engine = &self.engine;
        let lost: Vec<_> =
            self.plain.keys().filter(|key| !engine.is_stream(key)).cloned().collect();
        for key in &lost {
            assert!(may_go, "the last part of a stream stays");
            self.lose(key, true);
        }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("k{}", self.rng.below(4)).into_bytes()
    }

    fn append(&mut self) {
        let key = self.key();
        // Mostly small, sometimes as long as chunks are, or several of them.
        let len = match self.rng.below(12) {
            0 => 0,
            1..=6 => self.rng.below(300),
            7..=9 => self.rng.below(20_000),
            10 => CHUNK_BYTES - 2 + self.rng.below(4),
            _ => self.rng.below(3 * CHUNK_BYTES),
        };
        let tail = self.rng.bytes(len);
        let expected = if self.rng.below(3) == 0 { self.rng.below(100_000) } else { 0 };
        let end = self.engine.stream_append(&key, &tail, expected).unwrap();
        if !self.plain.contains_key(&key) {
            let before = self.before(&key);
            self.plain.insert(key.clone(), before);
        }
        let plain = self.plain.get_mut(&key).unwrap();
        plain.bytes.extend_from_slice(&tail);
        assert_eq!(end, plain.bytes.len() as u64);
    }

    fn trim(&mut self) {
        let key = self.key();
        let end = self.plain.get(&key).map_or(0, |plain| plain.bytes.len());
        let offset = match self.rng.below(4) {
            0 => end,
            1 => end / CHUNK_BYTES * CHUNK_BYTES,
            _ => self.rng.below(end + 3),
        };
        let got = self.engine.stream_trim(&key, offset as u64);
        match self.plain.get_mut(&key) {
            None => assert_eq!(got, Ok(None)),
            Some(_) if offset > end => {
                let (offset, end) = (offset as u64, end as u64);
                assert_eq!(got, Err(EngineError::BeyondEnd { offset, end }.into()));
            }
            Some(plain) => {
                plain.start = plain.start.max(offset);
                assert_eq!(got, Ok(Some(plain.start as u64)));
            }
        }
    }

    fn keys(&mut self) {
        let (key, other) = (self.key(), self.key());
        match self.rng.below(6) {
            0 => {
                let there = self.engine.remove(&key).unwrap();
                assert_eq!(there, self.lose(&key, false));
            }
            1 if key != other && self.plain.contains_key(&key) => {
                let expiry = self.engine.expiry(&key).unwrap().unwrap();
                let first = self.engine.stream_report(&key).unwrap().unwrap().first as usize;
                self.engine.stream_copy(&key, &other, expiry).unwrap();
                self.lose(&other, false);
                let before = self.before(&other).bytes;
                let mut copied = self.plain[&key].clone();
                // The same offsets, unless they mean other bytes already.
                let by = before.len().saturating_sub(first);
                copied.bytes.splice(..first, std::iter::repeat_n(0, first + by));
                copied.bytes[..before.len()].copy_from_slice(&before);
                copied.start += by;
                copied.evicted = true;
                self.plain.insert(other, copied);
            }
            2 => {
                let at = self.now + 1 + self.rng.below(20) as u64;
                let there = self.engine.set_expiry(&key, Some(Millis(at))).unwrap();
                assert_eq!(there, self.plain.contains_key(&key));
                if let Some(plain) = self.plain.get_mut(&key) {
                    plain.expires_at = Some(at);
                }
            }
            3 => {
                self.now += self.rng.below(20) as u64;
                self.engine.advance(Millis(self.now));
                let now = self.now;
                self.lose_all(|plain| plain.expires_at.is_some_and(|at| at <= now));
            }
            // A value takes a stream's place, and goes.
            4 => {
                self.engine.set(&key, b"a value, not a stream", Expiry::Never).unwrap();
                let refused = Err(EngineError::WrongType.into());
                assert_eq!(self.engine.stream_append(&key, b"x", 0), refused);
                assert!(self.engine.remove(&key).unwrap());
                self.lose(&key, false);
            }
            _ if self.rng.below(20) == 0 => {
                self.engine.flush();
                self.lose_all(|_| true);
            }
            _ => {}
        }
    }

    fn check_reads(&mut self) {
        let key = self.key();
        let Some(plain) = self.plain.get(&key) else {
            let gone = self.gone.get(&key).filter(|gone| gone.evicted && !gone.bytes.is_empty());
            let first = gone.map(|gone| gone.bytes.len() as u64);
            let expected = first.map_or(Ok(None), |first| Err(EngineError::Evicted { first }));
            assert_eq!(read(&mut self.engine, &key, 0, 1), expected);
            return;
        };
        let (start, end) = (plain.start, plain.bytes.len());
        let offset = self.rng.below(end + 3);
        let count =
            if self.rng.below(2) == 0 { self.rng.below(500) } else { self.rng.below(end + 9) };
        let expected = if offset > end {
            Err(EngineError::BeyondEnd { offset: offset as u64, end: end as u64 })
        } else if offset < start {
            Err(EngineError::Trimmed { first: start as u64 })
        } else {
            Ok(Some(plain.bytes[offset..end.min(offset + count)].to_vec()))
        };
        let got = read(&mut self.engine, &key, offset as u64, count as u64);
        if self.disk.is_some() || self.engine.eviction_policy().order.is_some() || plain.evicted {
            self.check_spilled(&key, got, expected, offset as u64);
            return;
        }
        assert!(got == expected, "{count} bytes at {offset} of {start}..{end}");
        let report = self.engine.stream_report(&key).unwrap().unwrap();
        assert_eq!((report.start, report.end), (start as u64, end as u64));
        assert_eq!(report.first, start as u64, "nothing is evicted");
    }

    /// With a disk a read may give fewer bytes, or say that they are gone; never wrong ones.
    fn check_spilled(
        &mut self,
        key: &[u8],
        got: Result<Option<Vec<u8>>, EngineError>,
        expected: Result<Option<Vec<u8>>, EngineError>,
        offset: u64,
    ) {
        let report = self.engine.stream_report(key).unwrap().unwrap();
        match (got, expected) {
            (Ok(Some(got)), Ok(Some(expected))) => {
                assert!(expected.starts_with(&got), "wrong bytes at {offset}");
                assert!(!got.is_empty() || expected.is_empty(), "at least one byte");
            }
            (Err(EngineError::Evicted { first }), Ok(_)) => {
                assert!(first > offset && report.first == first && report.first > report.start);
                assert!(first <= report.end, "the end stays");
                if report.end > first {
                    let there = read(&mut self.engine, key, first, 1);
                    // Unless that is lost in its turn, the offset named is there.
                    assert!(matches!(there, Ok(Some(_)) | Err(EngineError::Evicted { .. })));
                }
            }
            (Err(EngineError::Trimmed { first }), Err(EngineError::Trimmed { first: start })) => {
                assert!(first >= start && first == report.first);
            }
            (got, expected) => assert_eq!(got, expected),
        }
        assert!(report.start <= report.first && report.first <= report.end);
    }

    fn step(&mut self) {
        if self.rng.below(3) == 0 {
            self.evict();
        }
        match self.rng.below(10) {
            0..=4 => self.append(),
            5 | 6 => self.trim(),
            7 | 8 => self.keys(),
            _ => {
                let values = self.rng.below(9);
                self.engine.compact_any(values);
            }
        }
        self.check_reads();
        self.check_reads();
        self.engine.check_invariants();
        assert_eq!(self.engine.key_count(), self.plain.len() as u64);
        assert_eq!(self.engine.stats().streams, self.plain.len() as u64);
    }
}

#[test]
fn streams_are_vectors_that_grow_and_are_trimmed() {
    for seed in 0..60 {
        let mut history = History::new(seed);
        for _ in 0..120 {
            history.step();
        }
        history.engine.flush();
        assert_eq!(history.engine.stats().value_bytes, 0, "seed {seed} leaks");
    }
}

#[test]
fn what_is_on_disk_is_the_same_stream() {
    for seed in 0..80 {
        let mut history = History::with_disk(seed);
        for _ in 0..150 {
            history.step();
        }
        history.engine.flush();
        assert_eq!(history.engine.stats().value_bytes, 0, "seed {seed} leaks");
        assert_eq!(history.engine.stats().spilled_bytes, 0, "seed {seed} leaks");
    }
}

#[test]
fn whatever_is_evicted_an_offset_never_means_other_bytes() {
    let (mut evicted, mut ends) = (0, 0);
    for seed in 0..108 {
        let mut history = History::with_policy(seed);
        for _ in 0..150 {
            history.step();
        }
        evicted += history.engine.evicted().chunks;
        ends += history.gone.values().filter(|gone| gone.evicted).count();
        history.engine.flush();
        assert_eq!(history.engine.stats().value_bytes, 0, "seed {seed} leaks");
        assert_eq!(history.engine.stats().spilled_bytes, 0, "seed {seed} leaks");
    }
    assert!(evicted > 300 && ends > 3, "{evicted} parts, {ends} streams");
}

#[test]
fn names_of_streams_that_are_gone_are_bounded() {
    for (bound, all) in [(16 << 20, false), (1 << 30, true)] {
        let mut engine = Engine::new(Settings::default());
        engine.set_memory_limit(Some(bound));
        for number in 0..100_000u32 {
            engine.stream_append(&number.to_le_bytes(), b"x", 0).unwrap();
            engine.remove(&number.to_le_bytes()).unwrap();
        }
        assert!(engine.stats().stream_bytes < (bound as u64 / 64).max(1 << 20));
        let mut end = |number: u32| engine.stream_append(&number.to_le_bytes(), b"x", 0);
        assert_eq!(end(99_999), Ok(2), "it is remembered");
        assert_eq!(end(0), Ok(if all { 2 } else { 1 }));
    }
}

#[test]
fn chunks_go_to_disk_oldest_first_and_come_back() {
    let mut engine = Engine::new(Settings::default());
    let bytes: Vec<u8> =
        (0..10 * CHUNK_BYTES / 4).flat_map(|at| (at as u32).to_le_bytes()).collect();
    engine.stream_append(b"s", &bytes, 0).unwrap();
    assert!(!engine.evict_one(), "base data without a place to go stays");
    engine.set_spill(Box::new(BadDisk::default()), 0);
    let mut spilled = 0;
    while engine.evict_one() {
        spilled += CHUNK_BYTES as u64;
        let report = engine.stream_report(b"s").unwrap().unwrap();
        assert_eq!((report.first, report.spilled_bytes), (0, spilled));
    }
    assert_eq!(spilled, 9 * CHUNK_BYTES as u64, "all but the last");
    assert!(engine.stats().value_bytes < 2 * CHUNK_BYTES as u64);
    let mut at = 0;
    while at < bytes.len() {
        let got = read(&mut engine, b"s", at as u64, 100_000).unwrap().unwrap();
        assert!(bytes[at..].starts_with(&got) && !got.is_empty());
        at += got.len();
    }
    assert!(engine.stats().counters.contains(&("chunks_spill_read", 9)), "once each");
    // A copy shares them; a trimmed part leaves the disk only with its last owner.
    engine.stream_copy(b"s", b"t", None).unwrap();
    engine.stream_trim(b"s", bytes.len() as u64).unwrap();
    assert_eq!(read(&mut engine, b"t", 5, 4).unwrap().unwrap(), bytes[5..9]);
    engine.remove(b"t").unwrap();
    assert_eq!(engine.stats().spilled_bytes, 0);
}

#[test]
fn without_a_disk_old_parts_go_where_the_policy_says_so() {
    let mut engine = Engine::new(Settings::default());
    engine.stream_append(b"s", &[7; 3 * CHUNK_BYTES], 0).unwrap();
    assert!(!engine.evict_one(), "noeviction");
    engine.set_eviction_policy(Policy::named("allkeys-lru").unwrap());
    assert!(engine.evict_one());
    let first = CHUNK_BYTES as u64;
    assert_eq!(read(&mut engine, b"s", 0, 1), Err(EngineError::Evicted { first }));
    assert_eq!(read(&mut engine, b"s", first, 1), Ok(Some(std::vec![7])));
    assert!(engine.evict_one());
    let (first, end) = (2 * first, 3 * first);
    assert!(!engine.evict_one(), "the last part stays");
    assert_eq!(read(&mut engine, b"s", first, 1), Ok(Some(std::vec![7])));
    // Unless last parts are what fills the memory.
    engine.set_memory(Rc::new(Short), Some(4 * CHUNK_BYTES));
    assert!(engine.evict_one());
    assert_eq!(read(&mut engine, b"s", 0, 1), Err(EngineError::Evicted { first: end }));
    assert_eq!(read(&mut engine, b"s", end, 1), Ok(Some(Vec::new())));
    engine.set_memory(Rc::new(Short), Some(100));
    assert!(engine.evict_one() && engine.key_count() == 0, "in the end the key goes");
    assert_eq!(read(&mut engine, b"s", 0, 1), Err(EngineError::Evicted { first: end }));
    assert_eq!(engine.stream_append(b"s", b"more", 0), Ok(end + 4), "and never begins anew");
    assert_eq!(read(&mut engine, b"s", end, 9), Ok(Some(b"more".to_vec())));
    assert_eq!(read(&mut engine, b"s", 0, 1), Err(EngineError::Evicted { first: end }));
}

#[test]
fn memory_is_what_is_kept() {
    let mut engine = Engine::new(Settings::default());
    let line = [b'x'; 100];
    for _ in 0..20_000 {
        engine.stream_append(b"log", &line, 0).unwrap();
    }
    let full = engine.stats().value_bytes;
    assert!(full < 2_000_000 * 101 / 100, "{full} bytes for 2 MB");
    engine.stream_trim(b"log", 1_900_000).unwrap();
    let trimmed = engine.stats().value_bytes;
    assert!(trimmed < 100_000 + 3 * 4200, "{trimmed} bytes for 100 KB");
    // What reads see is what was appended, to the byte.
    assert_eq!(read(&mut engine, b"log", 1_900_000, 5), Ok(Some(b"xxxxx".to_vec())));
    let report = engine.stream_report(b"log").unwrap().unwrap();
    assert_eq!((report.start, report.first, report.end), (1_900_000, 1_900_000, 2_000_000));
}

#[test]
fn a_copy_is_a_stream_of_its_own() {
    let mut engine = Engine::new(Settings::default());
    engine.stream_append(b"a", &[1; 300_000], 0).unwrap();
    let before = engine.stats().value_bytes;
    engine.stream_copy(b"a", b"b", None).unwrap();
    assert_eq!(engine.stats().value_bytes, before, "a copy shares the bytes");
    engine.stream_append(b"a", &[2; 10], 0).unwrap();
    engine.stream_append(b"b", &[3; 20], 0).unwrap();
    engine.stream_trim(b"a", 299_999).unwrap();
    assert_eq!(
        read(&mut engine, b"a", 299_999, 99).unwrap().unwrap(),
        [&[1][..], &[2; 10]].concat()
    );
    assert_eq!(read(&mut engine, b"b", 300_000, 99).unwrap().unwrap(), [3; 20]);
    assert_eq!(read(&mut engine, b"b", 0, 9).unwrap().unwrap(), [1; 9]);
    engine.check_invariants();
}

#[test]
fn streams_and_joins_stay_apart() {
    let mut engine = Engine::new(Settings::default());
    engine.stream_append(b"p|bob|1", b"x", 0).unwrap();
    let spec = "t|<u>|<p>|<n> = check s|<u>|<p> copy p|<p>|<n>";
    let refused = engine.join_add("t", spec, false).unwrap_err();
    assert!(refused.to_string().contains("holds streams"), "{refused}");
    engine.remove(b"p|bob|1").unwrap();
    engine.join_add("t", spec, false).unwrap();
    for key in [&b"p|bob|1"[..], b"s|ann|bob", b"t|ann|bob|1"] {
        assert!(engine.stream_append(key, b"x", 0).is_err());
        assert!(engine.stream_read(key, 0, 1).is_err());
    }
    engine.stream_append(b"q|bob|1", b"x", 0).unwrap();
    assert!(engine.stream_copy(b"q|bob|1", b"p|bob|1", None).is_err());
}

#[test]
fn what_streams_leave_free_goes_back_to_the_system() {
    let mut engine = Engine::new(Settings::default());
    let mut rng = Rng(5);
    let key = |at: usize| format!("s{at}").into_bytes();
    let all: Vec<Vec<u8>> = (0..3000).map(|_| rng.bytes(5000)).collect();
    for (at, bytes) in all.iter().enumerate() {
        engine.stream_append(&key(at), bytes, 0).unwrap();
    }
    // A few stay in every buffer.
    let stays = |at: usize| at.is_multiple_of(16);
    for at in (0..all.len()).filter(|at| !stays(*at)) {
        assert!(engine.remove(&key(at)).unwrap());
    }
    let before = engine.value_memory();
    assert!(before.spare > before.taken / 2, "{before:?}");
    while engine.compact(0, 0) {}
    let after = engine.value_memory();
    assert!(after.spare < before.spare / 8, "{before:?}, then {after:?}");
    for (at, bytes) in all.iter().enumerate().filter(|(at, _)| stays(*at)) {
        assert_eq!(read(&mut engine, &key(at), 0, 5000), Ok(Some(bytes.clone())));
    }
}
