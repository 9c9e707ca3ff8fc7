//! Random histories, each from one seed.
//!
//! The domains are small on purpose (a handful of components, three or four tables), so that
//! keys meet, joins chain and collide, and read ranges overlap. Bytes are awkward on purpose:
//! components that are prefixes of each other, bytes above and below `|`, empty components.

use crate::history::{Op, Until};
use crate::join::{Join, Mode, Operator, Part, Pattern};
use crate::rng::Rng;
use std::cell::RefCell;

mod commands;
mod draws;
mod lenses;
mod pages;

pub use lenses::{BITS_FROM, KEPT_FROM, LENSED_FROM, TALLIED_FROM};
pub use pages::PAGED_FROM;

/// The first seeds of histories with each kind of joins: simple ones, over values, with `keep`, with `distinct`, `topk` and `percentile`, and
/// several that give one table.
pub const FIRST_SEEDS: [u64; 5] = [0, LENSED_FROM, KEPT_FROM, TALLIED_FROM, PAGED_FROM];

/// What the keys and joins of one history are made from.
pub struct World {
    /// The tables that joins mostly read.
    pub tables: Vec<String>,
    components: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
    /// Many keys rather than few: groups then fill pages.
    wide: bool,
    /// Few joins and few ranges, with much happening to them.
    focus: bool,
    /// Several joins give one table, of which pages are read.
    pub(crate) pages: bool,
    /// Keys and ranges that were used already, to be used again.
    used_keys: RefCell<Vec<Vec<u8>>>,
    used_ranges: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Every join that the history may install, with its name.
    pub joins: Vec<(String, Join)>,
}

const TABLES: [&[&str]; 4] =
    [&["s", "p", "v"], &["a", "a}", "ab"], &["x", "xx", "y", "~"], &["p", "t", "s"]];
const OUTPUTS: [&str; 5] = ["t", "u", "t}", "p", "k"];
const COMPONENTS: [&[&[u8]]; 9] = [
    &[b"a", b"b", b"ab"],
    &[b"1", b"10", b"100", b"2"],
    &[b"a", b"a}", b"a~", b"a{"],
    &[b"}", b"{", b"~", b"a"],
    &[b"a", b"a\x00", b"\x00", b"b"],
    &[b"\xff", b"\xff\xff", b"a", b"z"],
    &[b"01", b"02", b"1", b"011"],
    &[b"x", b"y"],
    &[b"a", b"{|"],
];
const VALUES: [&[&str]; 4] = [
    &["1", "2", "3", "-1"],
    &["1.5", "-0.25", "1.50", "0.125", "10", "9"],
    &["", "x", "5", "+7", "007", "-0", "1e3", "five"],
    &["123456789012345678901", "-0.000000000000000000001", "a value beyond seven bytes", "2"],
];

impl World {
    /// The world of a history.
    pub fn new(rng: &mut Rng) -> Self {
        let mut components: Vec<Vec<u8>> = Vec::new();
        for _ in 0..1 + rng.below(2) {
            components.extend(rng.pick(&COMPONENTS).iter().map(|bytes| bytes.to_vec()));
        }
        rng.shuffle(&mut components);
        components.truncate(2 + rng.below(4));
        if rng.chance(2) {
            // Long keys: few of them fill a page, and some are too long to be written.
            for component in &mut components {
                if rng.chance(60) {
                    let end = component.clone();
                    *component = vec![b'a'; 100 + rng.below(140)];
                    component.extend(end);
                }
            }
        }
        let wide = rng.chance(2);
        if wide {
            components.extend((0..30).map(|_| rng.below(300).to_string().into_bytes()));
        }
        let mut values: Vec<Vec<u8>> = Vec::new();
        for _ in 0..1 + rng.below(2) {
            values.extend(rng.pick(&VALUES).iter().map(|text| text.as_bytes().to_vec()));
        }
        let tables = rng.pick(&TABLES).iter().map(|name| (*name).to_string()).collect();
        let focus = rng.chance(25);
        let mut world = Self {
            focus,
            pages: false,
            tables,
            components,
            values,
            joins: Vec::new(),
            wide,
            used_keys: RefCell::default(),
            used_ranges: RefCell::default(),
        };
        let most = if focus {
            2
        } else if rng.chance(10) {
            9
        } else {
            5
        };
        for number in 0..1 + rng.below(most) {
            let join = world.join(rng);
            let name = if rng.chance(12) { rng.below(number + 1) } else { number };
            world.joins.push((format!("j{name}"), join));
        }
        world
    }

    /// A join; mostly one that can be installed beside those there are.
    fn join(&self, rng: &mut Rng) -> Join {
        for _ in 0..8 {
            // Joins of any form make too many keys of a wide world's.
            let known = self.wide || rng.chance(if self.focus { 60 } else { 25 });
            let join = if known { self.known_join(rng) } else { self.random_join(rng) };
            let circle = join.reads(&join.output)
                || self.joins.iter().any(|(_, other)| {
                    (join.reads(&other.output) && other.reads(&join.output))
                        || (join.mode.is_maintained()
                            && !other.mode.is_maintained()
                            && join.reads(&other.output))
                });
            if !circle {
                return join;
            }
        }
        if self.wide { self.known_join(rng) } else { self.random_join(rng) }
    }

    /// One of the joins that the software is for, in this world's tables.
    fn known_join(&self, rng: &mut Rng) -> Join {
        let [a, b] = [rng.pick(&self.tables), rng.pick(&self.tables)];
        let out = rng.pick(&OUTPUTS);
        let text = match rng.below(if self.wide { 7 } else { 9 }) {
            0 => format!("{out}|<a>|<c>|<b> = check {a}|<a>|<b> copy {b}|<b>|<c>"),
            1 => format!("{out}|<a> = count {a}|<a>|<b>|<c>"),
            2 => format!("{out}|<a>|<b>|r = copy {a}|<a>|<b>"),
            3 => format!("{out}|<b> = sum {a}|<b>|<c>"),
            4 => format!("{out}|<a>|<c> = check {a}|<a>|<b> copy {a}|<b>|<c>"),
            5 => format!("{out}|<b> = max {a}|<a>|<b> check {b}|<a>"),
            6 => format!("{out}|<a>|<c>|<b> = check {a}|<a>|<b> map:upper {b}|<b>|<c>"),
            7 => format!("{out}|<a>|<c> = check {a}|<a>|<b> check {a}|<b>|<c> last {b}|<c>|<d>"),
            _ => format!("{out}|<a>|<b>|k|<c> = check {a}|<a>|<b> copy k|<c>"),
        };
        let mut join = Join::parse(&text).expect("known joins are well formed");
        join.mode = mode(rng);
        join
    }

    fn random_join(&self, rng: &mut Rng) -> Join {
        let slots: Vec<(String, Option<usize>)> = (0..1 + rng.below(4))
            .map(|at| {
                let width = rng.chance(15).then(|| rng.pick(&self.components).len());
                (char::from(b'a' + at as u8).to_string(), width)
            })
            .collect();
        let checks = rng.weighted(&[35, 40, 15, 6, 4]);
        let mut sources: Vec<(Operator, Pattern)> =
            (0..checks).map(|_| (Operator::Check, self.source(rng, &slots))).collect();
        let operator = if rng.chance(45) { Operator::Copy } else { *rng.pick(&Operator::VALUED) };
        sources.insert(rng.below(checks + 1), (operator, self.source(rng, &slots)));
        if sources.iter().all(|(_, source)| source.slots().is_empty()) {
            // Without any slot the text would be read in the bare style.
            let (name, width) = slots[0].clone();
            sources[0].1.parts.push(Part::Slot { name, width, form: None });
        }
        let output = self.output(rng, &slots, &sources);
        let mut join = Join { output, mode: mode(rng), sources, keep: None };
        if join.loses_slots()
            && let Some((operator, _)) =
                join.sources.iter_mut().find(|(operator, _)| matches!(operator, Operator::Map(_)))
        {
            // The engine would refuse it.
            *operator = Operator::Last;
        }
        join
    }

    fn source(&self, rng: &mut Rng, slots: &[(String, Option<usize>)]) -> Pattern {
        let slot = |rng: &mut Rng| {
            let (name, width) = rng.pick(slots).clone();
            Part::Slot { name, width, form: None }
        };
        if !self.joins.is_empty() && rng.chance(30) {
            // The output of another join, or what looks like it.
            let mut pattern = rng.pick(&self.joins).1.output.clone();
            for part in &mut pattern.parts {
                if matches!(part, Part::Slot { .. }) || rng.chance(10) {
                    *part = slot(rng);
                }
            }
            return pattern;
        }
        let parts = (0..1 + rng.weighted(&[40, 40, 20]))
            .map(|_| if rng.chance(13) { Part::Literal(self.literal(rng)) } else { slot(rng) });
        let mut parts: Vec<Part> = parts.collect();
        if rng.chance(90) {
            let mut kept: Vec<Part> = Vec::new();
            parts.retain(|part| {
                let fresh = matches!(part, Part::Literal(_)) || !kept.contains(part);
                kept.push(part.clone());
                fresh
            });
        }
        Pattern { table: rng.pick(&self.tables).clone(), parts, lens: None }
    }

    fn output(
        &self,
        rng: &mut Rng,
        slots: &[(String, Option<usize>)],
        sources: &[(Operator, Pattern)],
    ) -> Pattern {
        let mut parts: Vec<Part> = Vec::new();
        for (name, width) in slots {
            let bound = sources.iter().any(|(_, source)| source.slots().contains(&name.as_str()));
            if bound && rng.chance(80) {
                parts.push(Part::Slot { name: name.clone(), width: *width, form: None });
            }
        }
        rng.shuffle(&mut parts);
        if (parts.is_empty() && rng.chance(80)) || rng.chance(25) {
            parts.insert(rng.below(parts.len() + 1), Part::Literal(self.literal(rng)));
        }
        let table = match rng.chance(70) {
            true if rng.chance(50) && !self.joins.is_empty() => {
                rng.pick(&self.joins).1.output.table.clone()
            }
            true => (*rng.pick(&OUTPUTS)).to_string(),
            false => rng.pick(&self.tables).clone(),
        };
        Pattern { table, parts, lens: None }
    }

    fn literal(&self, rng: &mut Rng) -> String {
        let plain = |bytes: &&Vec<u8>| {
            bytes.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"{}~".contains(&byte))
        };
        let plain: Vec<&Vec<u8>> = self.components.iter().filter(plain).collect();
        if plain.is_empty() || rng.chance(30) {
            return String::from("r");
        }
        String::from_utf8((*rng.pick(&plain)).clone()).expect("plain ASCII")
    }

    /// A key that gives some join values, to be changed again and again.
    fn counter(&self, rng: &mut Rng) -> Option<Vec<u8>> {
        let used = self.used_keys.borrow();
        let sources: Vec<&Pattern> =
            self.joins.iter().map(|(_, join)| &join.value_source().1).collect();
        let gives = |key: &&Vec<u8>| sources.iter().any(|source| source.matches(key));
        let keys: Vec<&Vec<u8>> = used.iter().filter(gives).collect();
        (!keys.is_empty()).then(|| (*rng.pick(&keys)).clone())
    }

    pub(crate) fn install(&self, rng: &mut Rng) -> Op {
        let (name, join) = rng.pick(&self.joins).clone();
        Op::JoinAdd { name, join, replace: rng.chance(50) }
    }

    fn damaged(&self, rng: &mut Rng) -> Op {
        let mut text: Vec<char> = rng.pick(&self.joins).1.to_string().chars().collect();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(text.len());
            match rng.below(3) {
                0 if text.len() > 1 => drop(text.remove(at)),
                0 => {}
                1 => text.insert(at, *rng.pick(&['<', '>', '|', ' ', ':', '=', 'é', '0', '\u{0}'])),
                _ => text.truncate(at.max(1)),
            }
        }
        Op::JoinText { text: text.into_iter().collect() }
    }

    /// Something that may happen once the history is under way.
    fn op(&self, rng: &mut Rng) -> Op {
        match rng.weighted(&[30, 3, 9, 3, 5, 2, 1, 5, 2, 2, 1, 7, 1, 22, 2, 4, 3, 1]) {
            0 => {
                let until = match rng.weighted(&[80, 10, 10]) {
                    0 => Until::Ever,
                    1 => Until::Keep,
                    _ => Until::In(*rng.pick(&[0, 1, 300, 500, 1000])),
                };
                Op::Set { key: self.key(rng), value: self.value(rng), until }
            }
            1 => Op::Append { key: self.key(rng), tail: self.value(rng) },
            2 => Op::Remove { key: self.key(rng) },
            3 => {
                let after = rng.chance(75).then(|| *rng.pick(&[0, 1, 300, 500, 1000]));
                Op::Expire { key: self.key(rng), after }
            }
            4 => Op::Advance { millis: *rng.pick(&[1, 200, 300, 499, 500, 501, 1000, 5000]) },
            5 => {
                let (first, last) = self.range(rng);
                Op::RemoveRange { first, last }
            }
            6 if rng.chance(30) => Op::Flush,
            6 => self.damaged(rng),
            7 => self.install(rng),
            8 => Op::JoinDrop { name: rng.pick(&self.joins).0.clone() },
            9 => self.boundary(rng),
            10 => Op::Expiry { key: self.near(rng) },
            11 => Op::Get { key: self.near(rng) },
            12 => {
                let (first, last) = self.range(rng);
                Op::Explain { first, last }
            }
            13 => {
                let (first, last) = self.range(rng);
                let limit = rng.chance(25).then(|| rng.below(5) as u64);
                Op::Range { first, last, reverse: rng.chance(25), limit }
            }
            14 => {
                let (first, last) = self.range(rng);
                Op::Verify { first, last }
            }
            15 if rng.chance(40) => Op::Scan { count: 1 + rng.below(5) },
            15 => Op::ScanStep { count: 1 + rng.below(4) },
            16 if rng.chance(50) => Op::Watched,
            16 => Op::Watch { key: self.near(rng) },
            _ => Op::Unwatch,
        }
    }

    pub(crate) fn boundary(&self, rng: &mut Rng) -> Op {
        let name = match rng.below(10) {
            0 => Vec::new(),
            1 => rng.pick(&self.tables).clone().into_bytes(),
            _ => self.pattern(rng, 70).table.clone().into_bytes(),
        };
        Op::TableSet { name, boundary: rng.weighted(&[15, 45, 30, 10]) }
    }
}

fn mode(rng: &mut Rng) -> Mode {
    match rng.weighted(&[50, 22, 15, 13]) {
        0 => Mode::Push,
        1 => Mode::Auto,
        2 => Mode::Pull,
        _ => Mode::Snapshot(*rng.pick(&[500, 1000, 2250])),
    }
}

/// The history that belongs to `seed`: about 70 operations.
#[must_use]
pub fn history(seed: u64) -> Vec<Op> {
    let rng = &mut Rng::new(seed);
    let world = World::of(seed, rng);
    let mut ops = Vec::new();
    for _ in 0..rng.below(5) {
        ops.push(world.boundary(rng));
    }
    let joins = world.joins.iter().cloned();
    let installs = joins.map(|(name, join)| Op::JoinAdd { name, join, replace: false });
    let mut start: Vec<Op> = installs.collect();
    let keys = if world.wide { 150 } else { 8 + rng.below(18) };
    let load: Vec<Op> = (0..keys)
        .map(|_| Op::Set { key: world.key(rng), value: world.value(rng), until: Until::Ever })
        .collect();
    match rng.below(3) {
        0 => start.extend(load),
        1 => start = load.into_iter().chain(start).collect(),
        _ => {
            start.extend(load);
            rng.shuffle(&mut start);
        }
    }
    ops.extend(start);
    let more = 20 + rng.below(45);
    let counter = rng.chance(30).then(|| world.counter(rng)).flatten();
    ops.extend((0..more).flat_map(|_| match &counter {
        Some(key) if rng.chance(25) => {
            vec![Op::Set { key: key.clone(), value: world.value(rng), until: Until::Ever }]
        }
        Some(_) if rng.chance(10) => {
            vec![Op::Range { first: Vec::new(), last: Vec::new(), reverse: false, limit: None }]
        }
        _ if world.pages => world.with_pages(rng),
        _ => vec![world.op(rng)],
    }));
    under_pressure(seed, followed(seed, commands::commanded(seed, ops)))
}

/// Adds followers to the histories of many seeds: of what is read or written in them.
pub(crate) fn followed(seed: u64, ops: Vec<Op>) -> Vec<Op> {
    let rng = &mut Rng::new(seed ^ 0x666f_6c6c_6f77_6564);
    let percent = [0, 0, 4, 12][rng.below(4)];
    let mut ranges = vec![(Vec::new(), Vec::new())];
    let mut all = Vec::new();
    for op in ops {
        match &op {
            Op::Range { first, last, .. } => ranges.push((first.clone(), last.clone())),
            Op::Set { key, .. } | Op::Get { key } => {
                let end = key.iter().position(|&byte| byte == b'|').map_or(key.len(), |at| at + 1);
                let upto = if rng.chance(40) { end } else { key.len() };
                ranges.push((key[..upto].to_vec(), headwater_base::prefix_end(&key[..upto])));
            }
            _ => {}
        }
        all.push(op);
        if rng.chance(percent) {
            let (first, last) = rng.pick(&ranges).clone();
            let by = rng.below(3) as u32;
            all.push(if rng.chance(75) {
                Op::Follow { by, first, last }
            } else {
                Op::Unfollow { by, first, last }
            });
        }
    }
    all
}

/// Adds evictions to the histories of many seeds: in some a few, in some so many that hardly
/// anything is kept from one operation to the next.
pub(crate) fn under_pressure(seed: u64, ops: Vec<Op>) -> Vec<Op> {
    let rng = &mut Rng::new(seed ^ 0x6576_6963_7465_6400);
    let percent = [0, 0, 5, 25, 100][rng.below(5)];
    let mut pressed = Vec::new();
    for op in ops {
        pressed.push(op);
        if rng.chance(percent) {
            let count = *rng.pick(&[1, 1, 2, 3, 1000]);
            pressed.push(Op::Evict { draw: rng.below(1000) as u64, count });
            if rng.chance(20) {
                pressed.push(Op::Compact { keys: *rng.pick(&[1, 3, 1000]) });
            }
        }
    }
    pressed
}

/// Adds crashes to the histories of many seeds: few, or one after nearly each operation.
#[must_use]
pub fn with_crashes(seed: u64, ops: Vec<Op>) -> Vec<Op> {
    let rng = &mut Rng::new(seed ^ 0x6372_6173_6865_7300);
    let percent = *rng.pick(&[3, 10, 40]);
    let crash = |rng: &mut Rng| rng.chance(percent).then_some(Op::Crash);
    ops.into_iter().flat_map(|op| [Some(op), crash(rng)]).flatten().collect()
}
