//! The steps of `headwater bench pool` with RocksDB in memory; prints what each took.
//!
//! RocksDB as it is used for a cache: files in memory, no log, no compression. Appending is a
//! merge, which costs what is appended; who reads pays for joining the parts. All else is default.

use headwater_workload::entries::{self, EntryCache, Plan, Usage};
use rocksdb::{DB, DBCompressionType, Env, MergeOperands, Options, WriteOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

struct Rocks {
    db: DB,
    unlogged: WriteOptions,
}

/// The value with all operands behind it.
fn join(_: &[u8], value: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    let len = value.map_or(0, <[u8]>::len) + operands.iter().map(<[u8]>::len).sum::<usize>();
    let mut joined = Vec::with_capacity(len);
    joined.extend_from_slice(value.unwrap_or_default());
    operands.iter().for_each(|operand| joined.extend_from_slice(operand));
    Some(joined)
}

impl Rocks {
    fn new() -> Result<Self, rocksdb::Error> {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_env(&Env::mem_env()?);
        options.set_compression_type(DBCompressionType::None);
        options.set_merge_operator_associative("join", join);
        let mut unlogged = WriteOptions::default();
        unlogged.disable_wal(true);
        let path = format!("/entries-{}", OPENED.fetch_add(1, Ordering::Relaxed));
        Ok(Self { db: DB::open(&options, path)?, unlogged })
    }
}

/// Writing to memory fails only where memory ends: then there is nothing to measure.
const WRITTEN: &str = "RocksDB writes to memory";

impl EntryCache for Rocks {
    fn insert(&mut self, key: u64, bytes: &[u8]) {
        self.db.put_opt(key.to_be_bytes(), bytes, &self.unlogged).expect(WRITTEN);
    }

    fn append(&mut self, key: u64, bytes: &[u8]) {
        self.db.merge_opt(key.to_be_bytes(), bytes, &self.unlogged).expect(WRITTEN);
    }

    fn replace(&mut self, key: u64, bytes: &[u8]) {
        self.insert(key, bytes);
    }

    fn read(&mut self, key: u64, look: &mut dyn FnMut(&[u8])) {
        look(&self.db.get(key.to_be_bytes()).expect("RocksDB reads memory").unwrap_or_default());
    }

    fn delete(&mut self, key: u64) {
        self.db.delete_opt(key.to_be_bytes(), &self.unlogged).expect(WRITTEN);
    }
}

fn usage() -> Usage {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = most.and_then(|text| text.split_whitespace().next()?.parse().ok());
    Usage {
        cpu: Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        rss_bytes_max: kilobytes.unwrap_or(0) * 1024,
    }
}

/// The number behind `option`.
fn option<T: std::str::FromStr>(option: &str, default: T) -> T {
    let mut arguments = std::env::args().skip_while(|argument| argument != option);
    match arguments.nth(1) {
        None => default,
        Some(text) => text.parse().unwrap_or_else(|_| panic!("{option} {text}: not a number")),
    }
}

fn main() -> Result<(), rocksdb::Error> {
    let (scale, seed) = (option("--scale", 0.01), option("--seed", 1));
    let plan = Plan { scale, seed, sample: option("--sample", 200) };
    let steps = entries::run(&plan, |_, _| Rocks::new(), &usage)?;
    print!("{}", entries::lines(&steps));
    Ok(())
}
