//! Values ten times the memory bound, with a spill directory: they are read back or missed, and never
//! wrong, whatever happens to the files meanwhile.

use crate::support::{Server, request};
use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

const BOUND: u64 = 48 << 20;
/// More than that for each further shard.
const BESIDES: u64 = 24 << 20;
const KEYS: u64 = 16_500;
const BYTES: usize = 30_000;

/// The value of a key in a round: any process can tell whether it is right.
fn value(key: u64, round: u64) -> Vec<u8> {
    let mut bytes = format!("{key} {round} ").into_bytes().repeat(BYTES / 8);
    bytes.truncate(BYTES - (key % 1000) as usize);
    bytes
}

struct Filled {
    server: Server,
    /// The round in which each key was written last.
    rounds: HashMap<u64, u64>,
}

impl Filled {
    fn start(place: &Path, shards: u64) -> Self {
        // Each shard's disk takes some of the memory.
        let bound = (BOUND + (shards - 1) * BESIDES).to_string();
        let place = place.to_str().unwrap();
        let flags = ["--memory", &bound, "--memory-policy", "allkeys-lru"];
        let shards = shards.to_string();
        let spill = ["--spill", place, "--spill-size", "1gb", "--shards", &shards];
        Self { server: Server::start(&[&flags[..], &spill[..]].concat()), rounds: HashMap::new() }
    }

    fn write(&mut self, keys: impl Iterator<Item = u64>, round: u64) {
        let keys: Vec<u64> = keys.collect();
        let mut socket = self.server.socket();
        for some in keys.chunks(20) {
            let set =
                |&key: &u64| request(&[b"SET", format!("k{key}").as_bytes(), &value(key, round)]);
            let requests = some.iter().map(set).collect::<Vec<_>>().concat();
            socket.send(&requests);
            let mut answers = vec![0; 5 * some.len()];
            socket.stream().read_exact(&mut answers).unwrap();
            assert_eq!(answers, b"+OK\r\n".repeat(some.len()));
            self.rounds.extend(some.iter().map(|&key| (key, round)));
        }
    }

    /// Reads keys, whose values must be right where they are there; how many are.
    fn read(&self, keys: impl Iterator<Item = u64>) -> u64 {
        let mut client = self.server.client(2);
        let mut found = 0;
        for key in keys {
            let got: Option<Vec<u8>> =
                redis::cmd("GET").arg(format!("k{key}")).query(&mut client).unwrap();
            let Some(got) = got else { continue };
            assert!(got == value(key, self.rounds[&key]), "the value of k{key} is wrong");
            found += 1;
        }
        found
    }

    /// Reads all keys. The policy may have chosen some while the disk was behind, which depends on how busy the machine is: those are
    /// counted as evicted, and no others are missing than those. Most are there.
    fn read_most(&self, keys: Range<u64>) {
        let all = keys.end - keys.start;
        let kept = self.read(keys);
        let evicted = self.counter("evicted_keys");
        assert!(all - kept <= evicted, "{kept} of {all} are there, {evicted} were evicted");
        assert!(kept > all / 2, "{kept} of {all} are there");
    }

    fn check_memory(&self, shards: u64) {
        let (most, bound) = (self.server.memory_bytes("VmHWM"), BOUND + (shards - 1) * BESIDES);
        assert!(most as f64 <= bound as f64 * 1.05, "{most} bytes of {bound}");
    }

    fn counter(&self, name: &str) -> u64 {
        let text: String =
            redis::cmd("INFO").arg("everything").query(&mut self.server.client(2)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect(name).trim().parse().unwrap()
    }
}

/// All files below a directory, but for the lock.
fn files(place: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let own = |folder: PathBuf| folder.join("headwater-spill");
    let shards = (0..).map(|at| own(place.join(format!("shard-{at}"))));
    let mut folders: Vec<_> = shards.take_while(|folder| folder.exists()).collect();
    if folders.is_empty() {
        folders.push(own(place.to_owned()));
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Flips a byte in every 512 of a file.
fn spoil(path: &Path) {
    if let Ok(mut bytes) = fs::read(path) {
        bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 0x55);
        // The server may have removed it meanwhile; then there is nothing to spoil.
        let _gone = fs::write(path, bytes);
    }
}

#[test]
fn values_of_ten_times_the_bound_come_back_or_are_missed() {
    come_back_or_are_missed(1);
}

#[test]
fn every_shard_has_a_part_of_the_disk() {
    come_back_or_are_missed(3);
}

fn come_back_or_are_missed(shards: u64) {
    let place = tempfile::tempdir().unwrap();
    let mut filled = Filled::start(place.path(), shards);
    filled.write(0..KEYS, 1);
    assert!(KEYS * BYTES as u64 > 4 * (BOUND + (shards - 1) * BESIDES));
    filled.read_most(0..KEYS);
    assert!(filled.counter("values_spilled") > KEYS / 2);
    assert!(filled.counter("values_spill_read") > KEYS / 2);
    assert_eq!(filled.counter("values_spill_lost"), 0);

    // Read again and again, some come back to memory; written again, the old ones are not seen.
    for _ in 0..3 {
        filled.read_most(KEYS - 300..KEYS - 100);
    }
    filled.write((0..KEYS).step_by(7), 2);
    filled.read_most(0..KEYS);
    // Some may have been evicted: these are there.
    filled.write(1..4, 2);
    let removed: u64 =
        redis::cmd("DEL").arg(&["k1", "k2", "k3"]).query(&mut filled.server.client(2)).unwrap();
    assert_eq!((removed, filled.read(1..4)), (3, 0));
    filled.check_memory(shards);

    // A third of the files is spoilt, while the server runs.
    let all = files(place.path());
    assert!(all.len() > 3, "{all:?}");
    let blobs = |path: &&PathBuf| fs::metadata(path).is_ok_and(|file| file.len() > 1 << 18);
    let mut large: Vec<_> = all.iter().filter(blobs).collect();
    large.sort();
    large.iter().step_by(3).for_each(|path| spoil(path));
    let kept = filled.read(0..KEYS);
    assert!(kept > KEYS / 10, "{kept} of {KEYS} are there");
    assert!(filled.counter("values_spill_lost") > 0);
    filled.write((0..KEYS).step_by(5), 3);
    assert!(filled.read((0..KEYS).step_by(5)) > 0);
    // All of them: it still answers, and takes what is new.
    files(place.path()).iter().for_each(|path| spoil(path));
    filled.read(0..KEYS);
    filled.write(0..KEYS / 10, 4);
    assert!(filled.read(0..KEYS / 10) > 0);
    filled.check_memory(shards);

    // Killed, not asked to end: the next one begins empty, whatever lies about.
    drop(filled);
    let mut filled = Filled::start(place.path(), shards);
    filled.rounds = (0..KEYS).map(|key| (key, 0)).collect();
    assert_eq!(filled.read(0..1000), 0);
    filled.write(0..KEYS / 5, 5);
    filled.read_most(0..KEYS / 5);
}
