//! The steps by which everything that holds entries is measured: a pool, a map of vectors, RocksDB.
//!
//! After Pravega's benchmark of its block cache: entries are inserted one by one, appended to,
//! replaced, read (copied out), deleted, and inserted once more, in memory that the holder has kept, if it has; then
//! come random operations, each insertion or deletion
//! with a read. Last, short pieces are appended to one long entry, beside a short one that is set.
//! All holders get the same bytes in the same order. Bytes are pieces of one block of random ones, so that
//! making them costs nothing and each entry has others; sampled ones are compared.

use crate::Rng;
use std::time::{Duration, Instant};

/// What can hold entries.
pub trait EntryCache {
    /// A new entry; there is none of this key.
    fn insert(&mut self, key: u64, bytes: &[u8]);
    /// Puts `bytes` behind those of an entry.
    fn append(&mut self, key: u64, bytes: &[u8]);
    /// Puts `bytes` in the place of an entry's.
    fn replace(&mut self, key: u64, bytes: &[u8]);
    /// Copies the entry's bytes out, in the way that its users would, and shows them to `look`.
    fn read(&mut self, key: u64, look: &mut dyn FnMut(&[u8]));
    /// Removes an entry.
    fn delete(&mut self, key: u64);
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Factor of everything.
    pub scale: f64,
    /// Seed of the random operations.
    pub seed: u64,
    /// How many entries are compared after each step.
    pub sample: usize,
}

/// What a step took.
#[derive(Clone, Debug)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// How often.
    pub operations: u64,
    /// How long it took.
    pub wall: Duration,
    /// How much CPU it took, of all threads, in the kernel too.
    pub cpu: Duration,
    /// The most memory that the process had resident up to the step's end, in bytes.
    pub rss_bytes_max: u64,
    /// Whether what was compared was right.
    pub verified: bool,
}

/// What a process has used so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    /// CPU of all threads, in the kernel too.
    pub cpu: Duration,
    /// The most memory resident, in bytes.
    pub rss_bytes_max: u64,
}

/// Entries at `--scale 1`.
const ENTRIES: f64 = 1e6;
const BYTES: usize = 10 << 10;
const MORE: usize = 2 << 10;
const LARGE: usize = 100 << 10;
const LONG: usize = 10 << 20;
const SHORT: usize = 100;
const PIECES: f64 = 1e5;

/// Bytes of all entries at their longest.
#[must_use]
pub fn bytes(scale: f64) -> usize {
    (ENTRIES * scale) as usize * (BYTES + MORE)
}

/// Names of the steps, in order.
pub const STEPS: [&str; 10] = [
    "insert 10 KiB",
    "append 2 KiB",
    "replace by 10 KiB",
    "read 10 KiB",
    "delete",
    "insert 10 KiB again",
    "random, 10 KiB",
    "random, 100 KiB",
    "append 100 B to 10 MiB",
    "set 100 B",
];

/// Bytes that an entry has after a step: others for every key and version.
struct Filler(Vec<u8>);

impl Filler {
    fn new() -> Self {
        let mut rng = Rng::new(7);
        Self((0..(256 << 10) / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect())
    }

    fn get(&self, key: u64, version: u64, len: usize) -> &[u8] {
        let mixed = (key * 8 + version).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let at = mixed as usize % (self.0.len() - len);
        &self.0[at..at + len]
    }
}

struct Measure<'m> {
    usage: &'m dyn Fn() -> Usage,
    steps: Vec<Step>,
}

impl Measure<'_> {
    fn step(&mut self, operations: u64, work: impl FnOnce()) {
        let (before, began) = ((self.usage)(), Instant::now());
        work();
        let (wall, Usage { cpu, rss_bytes_max }) = (began.elapsed(), (self.usage)());
        let (name, cpu) = (STEPS[self.steps.len()], cpu.saturating_sub(before.cpu));
        self.steps.push(Step { name, operations, wall, cpu, rss_bytes_max, verified: true });
    }

    /// Notes whether what was compared after the last step was right.
    fn verified(&mut self, right: bool) {
        if let Some(step) = self.steps.last_mut() {
            step.verified &= right;
        }
    }
}

/// Lets holders do all steps: an empty one for each part, from `new`, which is told how many entries there will be at
/// most, and their longest.
///
/// # Errors
/// `new` gives none.
pub fn run<H: EntryCache, E>(
    plan: &Plan,
    new: impl Fn(usize, usize) -> Result<H, E>,
    usage: &dyn Fn() -> Usage,
) -> Result<Vec<Step>, E> {
    let mut measure = Measure { usage, steps: Vec::new() };
    let filler = Filler::new();
    let entries = (ENTRIES * plan.scale).max(10.0) as u64;
    one_by_one(plan, new(entries as usize, BYTES + MORE)?, &filler, entries, &mut measure);
    for bytes in [BYTES, LARGE] {
        // Three of five operations insert, and the first always does: a fifth stay, and some more.
        let most = entries as usize / 5 + entries as usize / 20 + 1000;
        at_random(plan, new(most, bytes)?, &filler, bytes, &mut measure);
    }
    let pieces = (PIECES * plan.scale).max(10.0) as u64;
    long_and_short(new(2, LONG + SHORT * pieces as usize)?, &filler, pieces, &mut measure);
    Ok(measure.steps)
}

fn one_by_one(
    plan: &Plan,
    mut holder: impl EntryCache,
    filler: &Filler,
    entries: u64,
    measure: &mut Measure<'_>,
) {
    let every = (entries as usize / plan.sample.max(1)).max(1);
    let same = |holder: &mut dyn EntryCache, versions: &[(u64, usize)]| {
        (0..entries).step_by(every).all(|key| {
            let pieces = versions.iter().map(|&(version, len)| filler.get(key, version, len));
            let expected = pieces.collect::<Vec<_>>().concat();
            let mut right = false;
            holder.read(key, &mut |bytes| right = bytes == expected);
            right
        })
    };
    measure.step(entries, || {
        (0..entries).for_each(|key| holder.insert(key, filler.get(key, 0, BYTES)));
    });
    measure.verified(same(&mut holder, &[(0, BYTES)]));
    measure.step(entries, || {
        (0..entries).for_each(|key| holder.append(key, filler.get(key, 1, MORE)));
    });
    measure.verified(same(&mut holder, &[(0, BYTES), (1, MORE)]));
    measure.step(entries, || {
        (0..entries).for_each(|key| holder.replace(key, filler.get(key, 2, BYTES)));
    });
    measure.verified(same(&mut holder, &[(2, BYTES)]));
    let mut sum = 0;
    measure.step(entries, || {
        (0..entries).for_each(|key| holder.read(key, &mut |bytes| sum += bytes.len()));
    });
    measure.verified(sum == entries as usize * BYTES);
    measure.step(entries, || (0..entries).for_each(|key| holder.delete(key)));
    measure.step(entries, || {
        (0..entries).for_each(|key| holder.insert(key, filler.get(key, 3, BYTES)));
    });
    measure.verified(same(&mut holder, &[(3, BYTES)]));
}

fn at_random(
    plan: &Plan,
    mut holder: impl EntryCache,
    filler: &Filler,
    bytes: usize,
    measure: &mut Measure<'_>,
) {
    let operations = (ENTRIES * plan.scale).max(10.0) as u64;
    let mut rng = Rng::new(plan.seed);
    let (mut live, mut next, mut sum, mut reads) = (Vec::new(), 0, 0, 0);
    measure.step(operations, || {
        for _ in 0..operations {
            if live.is_empty() || rng.below(10) < 6 {
                holder.insert(next, filler.get(next, 0, bytes));
                live.push(next);
                next += 1;
            } else {
                holder.delete(live.swap_remove(rng.index(live.len())));
            }
            if !live.is_empty() {
                holder.read(live[rng.index(live.len())], &mut |read| sum += read.len());
                reads += 1;
            }
        }
    });
    let every = (live.len() / plan.sample.max(1)).max(1);
    let right = live.iter().step_by(every).all(|&key| {
        let mut right = false;
        holder.read(key, &mut |read| right = read == filler.get(key, 0, bytes));
        right
    });
    measure.verified(right && sum == reads * bytes);
}

fn long_and_short(
    mut holder: impl EntryCache,
    filler: &Filler,
    pieces: u64,
    measure: &mut Measure<'_>,
) {
    let mut long: Vec<u8> = filler.0.iter().copied().cycle().take(LONG).collect();
    holder.insert(0, &long);
    holder.insert(1, filler.get(1, 0, SHORT));
    measure.step(pieces, || {
        (0..pieces).for_each(|piece| holder.append(0, filler.get(piece, 0, SHORT)));
    });
    (0..pieces).for_each(|piece| long.extend_from_slice(filler.get(piece, 0, SHORT)));
    let mut right = false;
    holder.read(0, &mut |bytes| right = bytes == long);
    measure.verified(right);
    measure.step(pieces, || {
        (0..pieces).for_each(|piece| holder.replace(1, filler.get(piece, 0, SHORT)));
    });
    holder.read(1, &mut |bytes| right = bytes == filler.get(pieces - 1, 0, SHORT));
    measure.verified(right);
}

/// The steps as lines, to be [read](parse) by the process that asked for them.
#[must_use]
pub fn lines(steps: &[Step]) -> String {
    let line = |step: &Step| {
        let Step { name, operations, wall, cpu, rss_bytes_max, verified } = step;
        let (wall, cpu) = (wall.as_nanos(), cpu.as_nanos());
        format!("{name}\t{operations}\t{wall}\t{cpu}\t{rss_bytes_max}\t{verified}\n")
    };
    steps.iter().map(line).collect()
}

/// What [`lines`] wrote; `None` if it is something else.
#[must_use]
pub fn parse(text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for (line, &name) in text.lines().zip(&STEPS) {
        let words: Vec<&str> = line.split('\t').collect();
        let &[told, operations, wall, cpu, rss, verified] = words.as_slice() else { return None };
        if told != name {
            return None;
        }
        steps.push(Step {
            name,
            operations: operations.parse().ok()?,
            wall: Duration::from_nanos(wall.parse().ok()?),
            cpu: Duration::from_nanos(cpu.parse().ok()?),
            rss_bytes_max: rss.parse().ok()?,
            verified: verified.parse().ok()?,
        });
    }
    (steps.len() == STEPS.len()).then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Map {
        entries: HashMap<u64, Vec<u8>>,
        forgets: bool,
    }

    impl EntryCache for Map {
        fn insert(&mut self, key: u64, bytes: &[u8]) {
            assert!(self.entries.insert(key, bytes.to_vec()).is_none());
        }
        fn append(&mut self, key: u64, bytes: &[u8]) {
            if !self.forgets {
                self.entries.get_mut(&key).unwrap().extend_from_slice(bytes);
            }
        }
        fn replace(&mut self, key: u64, bytes: &[u8]) {
            assert!(self.entries.insert(key, bytes.to_vec()).is_some());
        }
        fn read(&mut self, key: u64, look: &mut dyn FnMut(&[u8])) {
            look(&self.entries[&key]);
        }
        fn delete(&mut self, key: u64) {
            assert!(self.entries.remove(&key).is_some());
        }
    }

    #[test]
    fn what_a_holder_forgets_is_found() {
        let plan = Plan { scale: 2e-4, seed: 1, sample: 20 };
        for forgets in [false, true] {
            let new = |_, _| Ok::<_, ()>(Map { entries: HashMap::new(), forgets });
            let steps = run(&plan, new, &Usage::default).unwrap();
            let wrong: Vec<_> = steps.iter().filter(|step| !step.verified).collect();
            let names: Vec<_> = wrong.iter().map(|step| step.name).collect();
            let expected: &[&str] =
                if forgets { &["append 2 KiB", "append 100 B to 10 MiB"] } else { &[] };
            assert_eq!(names, expected);
            let told = parse(&lines(&steps)).unwrap();
            assert_eq!(lines(&told), lines(&steps));
        }
        assert!(parse("something else\n").is_none());
    }
}
