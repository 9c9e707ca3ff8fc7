//! Random histories in which sources keep some of the tables.
//!
//! The joins and keys are those of [`crate::generate`], without snapshots. Data changes at the
//! sources, which tell of it and answer loads at moments that the history chooses.

use crate::generate::{World, followed, under_pressure};
use crate::history::{Op, Until};
use crate::join::Mode;
use crate::rng::Rng;
use headwater_base::table_of;
use headwater_script::command::AsOf;
use std::collections::BTreeMap;

struct Sources {
    world: World,
    /// Which source keeps a table.
    kept: BTreeMap<Vec<u8>, String>,
    /// The read that was asked last: it is often asked again before it is answered.
    last_read: Option<Op>,
}

impl Sources {
    fn new(seed: u64, rng: &mut Rng) -> Self {
        let mut world = World::of(seed, rng);
        for (_, join) in &mut world.joins {
            if matches!(join.mode, Mode::Snapshot(_)) {
                join.mode = Mode::Push;
            }
        }
        let mut kept = BTreeMap::new();
        let read = world.joins.iter().flat_map(|(_, join)| &join.sources);
        let tables: Vec<String> =
            read.map(|(_, source)| source.table.clone()).chain(world.tables.clone()).collect();
        for table in tables {
            let made = world.joins.iter().any(|(_, join)| join.output.table == table);
            if rng.chance(if made { 15 } else { 65 }) {
                let source = if rng.chance(70) { "db" } else { "kv" };
                kept.entry(table.into_bytes()).or_insert_with(|| source.to_string());
            }
        }
        Self { world, kept, last_read: None }
    }

    fn write(&self, rng: &mut Rng, removes: usize) -> Op {
        let key = self.world.key(rng);
        let value = (!rng.chance(removes)).then(|| self.world.value(rng));
        match (table_of(&key).and_then(|table| self.kept.get(table)), value) {
            (Some(source), value) if rng.chance(97) => {
                Op::AtSource { source: source.clone(), key, value }
            }
            (_, Some(value)) => Op::Set { key, value, until: Until::Ever },
            (_, None) => Op::Remove { key },
        }
    }

    fn source(&self, rng: &mut Rng) -> String {
        let names: Vec<&String> = self.kept.values().collect();
        if names.is_empty() { String::from("db") } else { (*rng.pick(&names)).clone() }
    }

    fn read(&mut self, rng: &mut Rng) -> Op {
        if let Some(read) = self.last_read.clone().filter(|_| rng.chance(25)) {
            return read;
        }
        let (first, last) = self.world.range(rng);
        let key = self.world.near(rng);
        let read = match rng.weighted(&[70, 20, 2, 4, 4, 4]) {
            0 => {
                let limit =
                    rng.chance(if self.world.pages { 70 } else { 20 }).then(|| rng.below(5) as u64);
                Op::Range { first, last, reverse: rng.chance(25), limit }
            }
            1 => Op::Get { key },
            2 => Op::Expiry { key },
            3 => Op::Verify { first, last },
            4 => Op::Watch { key },
            _ => Op::Watched,
        };
        self.last_read = Some(read.clone());
        read
    }

    fn op(&mut self, rng: &mut Rng) -> Op {
        match rng.weighted(&[30, 30, 26, 3, 12, 2, 1, 1, 1]) {
            0 => self.write(rng, 25),
            1 => self.read(rng),
            2 => {
                let as_of = match rng.below(10) {
                    0 => AsOf::Ahead(1 + rng.below(3) as u64),
                    1..=5 => AsOf::Late(0),
                    _ => AsOf::Late(1 + rng.below(4) as u64),
                };
                Op::Answer { source: self.source(rng), load: 1 + rng.below(3), as_of }
            }
            3 => Op::Fail { source: self.source(rng), load: 1 + rng.below(2) },
            4 => {
                let most = if rng.chance(50) { usize::MAX } else { 1 + rng.below(3) };
                Op::Tell { source: self.source(rng), most }
            }
            5 => self.world.install(rng),
            8 => Op::Lose { source: self.source(rng) },
            6 => Op::JoinDrop { name: rng.pick(&self.world.joins).0.clone() },
            _ => self.world.boundary(rng),
        }
    }
}

/// The history that belongs to `seed`: about 90 operations.
#[must_use]
pub fn history(seed: u64) -> Vec<Op> {
    let rng = &mut Rng::new(seed ^ 0x0073_6f75_7263_6573);
    let mut sources = Sources::new(seed, rng);
    let mut ops = Vec::new();
    for _ in 0..rng.below(5) {
        ops.push(sources.world.boundary(rng));
    }
    let kept = sources.kept.iter();
    ops.extend(
        kept.map(|(table, source)| Op::Source { table: table.clone(), source: source.clone() }),
    );
    let load: Vec<Op> = (0..8 + rng.below(18)).map(|_| sources.write(rng, 5)).collect();
    let joins = sources.world.joins.iter().cloned();
    let installs = joins.map(|(name, join)| Op::JoinAdd { name, join, replace: false });
    if rng.chance(50) {
        ops.extend(load);
        ops.extend(installs);
    } else {
        ops.extend(installs);
        ops.extend(load);
    }
    for source in ["db", "kv"] {
        if rng.chance(75) {
            ops.push(Op::Tell { source: source.to_string(), most: usize::MAX });
        }
    }
    let more = 30 + rng.below(60);
    ops.extend((0..more).map(|_| sources.op(rng)));
    under_pressure(seed, followed(seed, ops))
}
