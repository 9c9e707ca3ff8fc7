//! One simulation: its shards, its time, and what happens to it.

use crate::clients::{Ask, Parked, Session, Until};
use crate::domain::Domain;
use crate::faults::Faults;
use crate::network::Network;
use headwater_base::{KeyRange, Millis, Placement, Shard};
use headwater_engine::{Effect, Engine, EngineError, Expiry, RangeOptions, Settings, Stop, Ticket};
use headwater_model::oracle::{Oracle, Verdict};
use headwater_model::rng::Rng;
use headwater_node::{Peers, Positions};
use std::collections::{BTreeMap, BTreeSet};

/// How long the longest wait may be once nothing goes wrong, in milliseconds.
const PATIENCE: u64 = 60_000;

pub(crate) struct One {
    pub(crate) engine: Engine,
    pub(crate) peers: Peers,
    epoch: u64,
    stopped_until: u64,
}

pub(crate) struct World {
    rng: Rng,
    now: u64,
    pub(crate) faults: Faults,
    pub(crate) placement: Placement,
    pub(crate) shards: Vec<One>,
    network: Network,
    /// All base keys, and the joins.
    pub(crate) oracle: Oracle,
    /// Every value that a base key has had, in order.
    pub(crate) history: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    pub(crate) sessions: Vec<Session>,
    parked: Vec<Parked>,
    domain: Domain,
    values: u64,
    /// Base keys have been lost with a shard's memory, which sessions do not know of.
    pub(crate) lost: bool,
    /// Nothing is under way any more: each answer is the oracle's.
    pub(crate) quiet: bool,
    answers: u64,
}

/// Runs the simulation of a seed; how many answers were checked.
///
/// # Errors
/// What was not as it has to be.
pub fn run(seed: u64) -> Result<u64, String> {
    run_with(seed, |_| {})
}

/// As [`run`], with other faults than the seed's.
///
/// # Errors
/// As for [`run`].
pub fn run_with(seed: u64, change: impl Fn(&mut Faults)) -> Result<u64, String> {
    let mut rng = Rng::new(seed);
    let mut faults = Faults::of(&mut rng);
    change(&mut faults);
    let domain = Domain::new(&mut rng);
    let count = 2 + rng.below(4) as u16;
    let steps = 40 + rng.below(160);
    let placement = Placement::even(count);
    let mut world = World {
        now: 1_000_000,
        shards: (0..count).map(|me| one(Shard(me), &placement, 1, 1_000_000)).collect(),
        placement,
        network: Network::default(),
        oracle: Oracle::default(),
        history: BTreeMap::new(),
        sessions: (0..1 + rng.below(3)).map(|_| Session::default()).collect(),
        parked: Vec::new(),
        domain,
        values: 0,
        lost: false,
        quiet: false,
        answers: 0,
        faults,
        rng,
    };
    for session in &mut world.sessions {
        session.causal = world.rng.chance(50);
    }
    for _ in 0..1 + world.rng.below(4) {
        if !world.domain.joins.is_empty() {
            world.change_joins()?;
        }
    }
    for step in 0..steps {
        world.step().map_err(|text| format!("at step {step}: {text}"))?;
        if step % 8 == 0 {
            world.shards.iter().for_each(|one| one.engine.check_invariants());
        }
    }
    world.finish().map_err(|text| format!("at the end: {text}"))?;
    Ok(world.answers)
}

fn one(me: Shard, placement: &Placement, epoch: u64, now: u64) -> One {
    let mut engine = Engine::new(Settings { hash_seed: 7, ..Settings::default() });
    engine.set_placement(me, placement.clone());
    engine.advance(Millis(now));
    let peers = Peers::new(me, placement.shards(), epoch, Millis(now));
    One { engine, peers, epoch, stopped_until: 0 }
}

impl World {
    fn step(&mut self) -> Result<(), String> {
        self.pass(self.rng.clone().below(6) as u64)?;
        let faults = self.faults.clone();
        let struck = |rng: &mut Rng, of: usize| rng.below(1000) < of;
        if struck(&mut self.rng, faults.slow * 2) {
            let at = self.rng.below(self.shards.len());
            self.shards[at].stopped_until = self.now + self.rng.below(3000) as u64;
        }
        if struck(&mut self.rng, faults.crashes) {
            self.crash()?;
        }
        if struck(&mut self.rng, faults.moves * 2) {
            self.move_partition()?;
        }
        if struck(&mut self.rng, faults.evictions * 4) {
            let at = self.rng.below(self.shards.len());
            let draw = self.rng.bits();
            self.shards[at].engine.evict_any(draw);
            self.settle(at)?;
        }
        if struck(&mut self.rng, faults.joins) && !self.domain.joins.is_empty() {
            self.change_joins()?;
        }
        if self.rng.chance(3) {
            self.pass(400 + self.rng.clone().below(3000) as u64)?;
        }
        let session = self.rng.below(self.sessions.len());
        if self.rng.chance(55) { self.write(session) } else { self.read(session) }
    }

    /// Lets time pass.
    fn pass(&mut self, millis: u64) -> Result<(), String> {
        let end = self.now + millis;
        loop {
            self.now = (self.now + 25).min(end);
            let mut touched = BTreeSet::new();
            let (now, shards) = (self.now, &self.shards);
            let stopped = |shard: Shard| shards[usize::from(shard.0)].stopped_until > now;
            let mut arrived = Vec::new();
            while let Some(packet) = self.network.arrived(now, stopped) {
                arrived.push(packet);
            }
            for (from, to, packet) in arrived {
                let at = usize::from(to.0);
                self.shards[at].peers.receive(from, packet);
                touched.insert(at);
                // A turn for some of the packets, or one for all.
                if self.rng.chance(50) {
                    self.settle(at)?;
                }
            }
            for at in 0..self.shards.len() {
                if self.shards[at].stopped_until <= now {
                    self.shards[at].peers.advance(Millis(now));
                    self.shards[at].engine.advance(Millis(now));
                    self.settle(at)?;
                }
            }
            if self.now == end {
                return Ok(());
            }
        }
    }

    /// Lets a shard do all it has to do.
    fn settle(&mut self, at: usize) -> Result<(), String> {
        for _ in 0..1000 {
            let One { engine, peers, .. } = &mut self.shards[at];
            let rest = peers.turn(engine, &mut |_, _| {});
            let settled = peers.take_settled();
            let from = Shard(at as u16);
            for (to, packet) in peers.take_packets() {
                self.network.send(&mut self.rng, &self.faults, self.now, (from, to), packet);
            }
            if rest.is_empty() && settled.is_empty() {
                return Ok(());
            }
            for effect in rest {
                match effect {
                    Effect::Wake(ticket) => self.wake(at, Until::Data(ticket))?,
                    Effect::Fail { ticket, error } => self.fail(at, ticket, &error)?,
                    effect => return Err(format!("asks for {effect:?}")),
                }
            }
            for wait in settled {
                self.wake(at, Until::Settled(wait))?;
            }
        }
        Err(String::from("a turn does not end"))
    }

    fn wake(&mut self, at: usize, until: Until) -> Result<(), String> {
        let shard = Shard(at as u16);
        let found = self.parked.iter().position(|it| it.shard == shard && it.until == until);
        let Some(found) = found else { return Ok(()) };
        let parked = self.parked.swap_remove(found);
        self.attempt(parked)
    }

    fn fail(&mut self, at: usize, ticket: Ticket, error: &EngineError) -> Result<(), String> {
        Err(format!("shard {at}: {ticket:?} fails: {error}"))
    }

    /// Counts everything that may change an answer.
    pub(crate) fn writes(&self) -> u64 {
        self.values
    }

    fn key(&mut self) -> Vec<u8> {
        self.domain.key(&mut self.rng)
    }

    fn write(&mut self, session: usize) -> Result<(), String> {
        let key = self.key();
        let at = usize::from(self.placement.home(&key).0);
        if self.shards[at].stopped_until > self.now || !self.oracle.owners(&key).is_empty() {
            return Ok(());
        }
        let One { engine, peers, .. } = &mut self.shards[at];
        if self.rng.chance(25) {
            let there = engine.remove(&key).map_err(|stop| format!("removal: {stop:?}"))?;
            if there != self.oracle.base.remove(&key).is_some() {
                return Err(format!("{} is there: {there}", key.escape_ascii()));
            }
        } else {
            self.values += 1;
            let value = self.values.to_string().into_bytes();
            engine.set(&key, &value, Expiry::Never).map_err(|error| format!("set: {error}"))?;
            let values = self.history.entry(key.clone()).or_default();
            values.push(value.clone());
            self.sessions[session].seen.insert(key.clone(), values.len() - 1);
            self.oracle.base.insert(key, (value, None));
        }
        let stamp = peers.stamp();
        self.sessions[session].positions.reach(Shard(at as u16), stamp);
        self.values += 1;
        self.settle(at)
    }

    fn read(&mut self, session: usize) -> Result<(), String> {
        if self.sessions[session].open > 12 {
            return Ok(());
        }
        let range = self.domain.range(&mut self.rng);
        if range.is_empty() {
            return Ok(());
        }
        let ask = match self.rng.below(10) {
            0 => Ask::Get(self.some_key()),
            1 => Ask::Verify(range),
            _ => Ask::Range(range),
        };
        self.ask_all(session, &ask)
    }

    /// A key of the oracle's, or another.
    fn some_key(&mut self) -> Vec<u8> {
        let view = self.oracle.view();
        let keys: Vec<_> = view.seen.into_keys().collect();
        if keys.is_empty() || self.rng.chance(20) {
            self.key()
        } else {
            self.rng.pick(&keys).clone()
        }
    }

    /// Asks all shards that have a part of it.
    fn ask_all(&mut self, session: usize, ask: &Ask) -> Result<(), String> {
        let range = ask.range();
        let after = self.sessions[session].positions.clone();
        let seen = self.sessions[session].seen.clone();
        for at in 0..self.shards.len() {
            let shard = Shard(at as u16);
            if self.placement.home_of_range(&range).is_none_or(|home| home == shard) {
                self.sessions[session].open += 1;
                let (ask, writes) = (ask.clone(), self.values);
                let (after, seen) = (after.clone(), seen.clone());
                // Nobody wakes this one.
                let until = Until::Data(Ticket(u64::MAX));
                self.attempt(Parked { session, shard, ask, after, seen, until, writes })?;
                self.settle(at)?;
            }
        }
        Ok(())
    }

    fn attempt(&mut self, mut parked: Parked) -> Result<(), String> {
        if let Some(home) = self.placement.home_of_range(&parked.ask.range()) {
            parked.shard = home;
        }
        let at = usize::from(parked.shard.0);
        let One { engine, peers, .. } = &mut self.shards[at];
        if let Some(wait) = peers.wait(engine, &parked.after) {
            parked.until = Until::Settled(wait);
            self.parked.push(parked);
            return Ok(());
        }
        let mut pairs = Vec::new();
        let done = match &parked.ask {
            Ask::Range(range) => engine
                .range(&range.first, &range.last, RangeOptions::default(), &mut |key, value| {
                    pairs.push((key.to_vec(), value.to_vec()));
                })
                .map(|_| ()),
            Ask::Get(key) => engine.get(key).map(|value| {
                pairs.extend(value.map(|value| (key.clone(), value.to_vec())));
            }),
            Ask::Verify(range) => match engine.verify(range, 10) {
                Ok(found) if found.is_empty() => Ok(()),
                Ok(found) => return Err(format!("shard {at}: VERIFY gives {found:?}")),
                Err(stop) => Err(stop),
            },
        };
        match done {
            Err(Stop::Wait(ticket)) => {
                parked.until = Until::Data(ticket);
                self.parked.push(parked);
                Ok(())
            }
            Err(stop) => Err(format!("{parked:?}: {stop:?}")),
            Ok(()) => {
                self.answers += 1;
                let text = format!("shard {at}, {:?}", parked.ask);
                self.check(&parked, pairs).map_err(|error| format!("{text}: {error}"))?;
                let session = &mut self.sessions[parked.session];
                session.open -= 1;
                if session.causal {
                    session.positions.merge(&self.shards[at].peers.positions());
                }
                Ok(())
            }
        }
    }

    /// Notes for all sessions that something was done everywhere.
    fn stamp_all(&mut self) {
        let mut positions = Positions::default();
        for (at, one) in self.shards.iter_mut().enumerate() {
            positions.reach(Shard(at as u16), one.peers.stamp());
        }
        self.sessions.iter_mut().for_each(|session| session.positions.merge(&positions));
        self.values += 1;
    }

    fn settle_all(&mut self) -> Result<(), String> {
        (0..self.shards.len()).try_for_each(|at| self.settle(at))
    }

    fn change_joins(&mut self) -> Result<(), String> {
        let (name, join) = self.rng.pick(&self.domain.joins).clone();
        let known = self.oracle.joins.iter().any(|join| join.name == name);
        if known && self.rng.chance(60) {
            self.oracle.uninstall(&name);
            for one in &mut self.shards {
                one.engine.join_drop(&name).map_err(|error| error.to_string())?;
            }
        } else {
            let text = join.to_string();
            if self.oracle.verdict(&name, &join, known) != Verdict::Accept {
                return Ok(());
            }
            let add = |one: &mut One| one.engine.join_add(&name, &text, known);
            let given: Vec<_> = self.shards.iter_mut().map(add).collect();
            if given.iter().all(Result::is_ok) {
                self.oracle.install(&name, join);
            } else if given.iter().any(Result::is_ok) {
                return Err(format!("{name}: {given:?}"));
            }
        }
        self.stamp_all();
        self.settle_all()
    }

    fn move_partition(&mut self) -> Result<(), String> {
        let key = self.key();
        let partition = self.placement.partition(&key);
        let (from, to) = (self.placement.home_of(partition), self.rng.below(self.shards.len()));
        if usize::from(from.0) == to {
            return Ok(());
        }
        let pairs = self.shards[usize::from(from.0)].engine.take_partition(partition);
        let pairs = pairs.map_err(|stop| format!("{partition:?} stays: {stop:?}"))?;
        self.placement.assign(partition, Shard(to as u16));
        for one in &mut self.shards {
            one.engine.set_home(partition, Shard(to as u16));
        }
        self.shards[to].engine.give_partition(partition, pairs);
        self.shards.iter().for_each(|one| one.engine.check_invariants());
        self.stamp_all();
        self.settle_all()
    }

    fn crash(&mut self) -> Result<(), String> {
        let at = self.rng.below(self.shards.len());
        let shard = Shard(at as u16);
        let epoch = self.shards[at].epoch + 1;
        self.shards[at] = one(shard, &self.placement, epoch, self.now);
        for join in &self.oracle.joins {
            let added = self.shards[at].engine.join_add(&join.name, &join.join.to_string(), false);
            added.map_err(|error| error.to_string())?;
        }
        let placement = &self.placement;
        self.oracle.base.retain(|key, _| placement.home(key) != shard);
        self.lost = true;
        let sessions = &mut self.sessions;
        self.parked.retain(|parked| {
            let stays = parked.shard != shard;
            sessions[parked.session].open -= usize::from(!stays);
            stays
        });
        self.values += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.faults = Faults::default();
        self.shards.iter_mut().for_each(|one| one.stopped_until = 0);
        self.patiently()?;
        // What was lost is found out by now.
        self.pass(5_000)?;
        self.patiently()?;
        self.quiet = true;
        for _ in 0..2 {
            for prefix in self.domain.prefixes.clone() {
                self.ask_all(0, &Ask::Range(KeyRange::prefix(prefix.as_bytes())))?;
                self.ask_all(0, &Ask::Verify(KeyRange::prefix(prefix.as_bytes())))?;
            }
            self.patiently()?;
        }
        self.shards.iter().for_each(|one| one.engine.check_invariants());
        self.clear()
    }

    /// Lets time pass until nobody waits.
    fn patiently(&mut self) -> Result<(), String> {
        let end = self.now + PATIENCE;
        while !self.parked.is_empty() {
            self.pass(100)?;
            if self.now > end {
                let under_way = self.network.len();
                return Err(format!("{under_way} packets, and for ever wait {:?}", self.parked));
            }
        }
        Ok(())
    }

    /// Drops everything: nothing may be left.
    fn clear(&mut self) -> Result<(), String> {
        for name in self.oracle.joins.iter().map(|join| join.name.clone()).collect::<Vec<_>>() {
            self.oracle.uninstall(&name);
            for one in &mut self.shards {
                one.engine.join_drop(&name).map_err(|error| error.to_string())?;
                one.engine.check_invariants();
            }
            self.settle_all()?;
        }
        self.pass(1000)?;
        self.check_left()?;
        for key in std::mem::take(&mut self.oracle.base).into_keys() {
            let at = usize::from(self.placement.home(&key).0);
            let there = self.shards[at].engine.remove(&key);
            there.map_err(|stop| format!("removal: {stop:?}"))?;
        }
        self.settle_all()?;
        for (at, one) in self.shards.iter().enumerate() {
            let stats = one.engine.stats();
            if stats.keys + stats.value_bytes > 0 {
                return Err(format!("shard {at} keeps {stats:?}"));
            }
        }
        Ok(())
    }
}
