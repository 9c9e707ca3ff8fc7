//! One simulation: its shards, its time, and what happens to it.

use crate::changes::Change;
use crate::clients::{Ask, Parked, Session, Until};
use crate::disk::Disk;
use crate::domain::Domain;
use crate::faults::{Cut, Faults};
use crate::network::Network;
use crate::older::States;
use crate::shard::{One, Turn};
use crate::source::Source;
use headwater_base::{KeyRange, Millis, Placement, Shard};
use headwater_engine::{Effect, EngineError};
use headwater_model::join::Pattern;
use headwater_model::oracle::{Oracle, View};
use headwater_model::rng::Rng;
use headwater_node::{CLIENTS_FROM, Positions, Ticket};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long the longest wait may be once nothing goes wrong, in milliseconds.
const PATIENCE: u64 = 60_000;

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    pub(crate) faults: Faults,
    pub(crate) placement: Placement,
    pub(crate) boundaries: Vec<(String, usize)>,
    pub(crate) shards: Vec<One>,
    pub(crate) network: Network,
    /// Keeps some tables, if any.
    pub(crate) source: Source,
    pub(crate) sourced: Vec<String>,
    /// The joins that are installed on all shards; its base keys are with the shards.
    pub(crate) joins: Oracle,
    /// What joins have ever given.
    pub(crate) outputs: Vec<Pattern>,
    /// What is being done shard by shard.
    pub(crate) change: Option<Change>,
    /// Every value that a base key has had, in order.
    pub(crate) history: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    /// What each shard had, and since when.
    pub(crate) states: Vec<States>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) parked: Vec<Parked>,
    /// What clients watch, by their followers' numbers.
    pub(crate) watches: BTreeMap<u32, KeyRange>,
    pub(crate) next_client: u32,
    pub(crate) domain: Domain,
    /// Counts everything that may change an answer.
    pub(crate) events: u64,
    /// What all shards' keys give, as of so many events.
    whole: Option<(u64, Rc<Oracle>, Rc<View>)>,
    /// Base keys have been lost with a shard's memory, which sessions do not know of.
    pub(crate) lost: bool,
    /// Nothing is under way any more: each answer is the oracle's.
    pub(crate) quiet: bool,
    /// How often what happened.
    pub(crate) seen: Seen,
}

/// How often what happened in simulations.
pub type Seen = BTreeMap<&'static str, u64>;

/// Runs the simulation of a seed, whose faults `change` may change; how often what happened in it.
///
/// # Errors
/// What was not as it has to be.
pub fn run(seed: u64, change: impl Fn(&mut Faults)) -> Result<Seen, String> {
    let mut rng = Rng::new(seed);
    let mut faults = Faults::of(&mut rng);
    change(&mut faults);
    let mut world = World::new(seed, rng, faults.clone());
    match world.go() {
        Ok(()) => Ok(world.seen),
        Err(text) => {
            let joins = world.joins.joins.iter();
            let joins: Vec<_> = joins.map(|it| format!("{}: {}", it.name, it.join)).collect();
            Err(format!("{text}; {faults:?}, {joins:#?}"))
        }
    }
}

impl World {
    fn new(seed: u64, mut rng: Rng, faults: Faults) -> Self {
        let domain = Domain::new(seed, &mut rng);
        let count = 2 + rng.below(4) as u16;
        let now = 1_000_000;
        let mut placement = Placement::even(count);
        let mut boundaries = Vec::new();
        if rng.chance(25) {
            let table = domain.table(&mut rng);
            placement.set_boundary(table.as_bytes(), 2);
            boundaries.push((table, 2));
        }
        let sourced = if faults.sources { domain.tables_of_sources(&mut rng) } else { Vec::new() };
        let source = Source::new(&sourced, usize::from(count));
        let disk = |_| faults.disks.then(Disk::default);
        let tables = (&*boundaries, &*sourced);
        let one = |me: u16| One::new(Shard(me), &placement, tables, disk(me), 1, now);
        let mut shards: Vec<_> = (0..count).map(one).collect();
        shards.iter_mut().for_each(|one: &mut One| {
            one.cut = faults.cut;
            one.engine.set_slice(faults.slice_rows);
        });
        let mut sessions: Vec<Session> = Vec::new();
        let others = if rng.chance(50) { 0 } else { 1 + rng.below(2) };
        sessions.resize_with(1 + others, Session::default);
        sessions.iter_mut().for_each(|session| session.causal = rng.chance(50));
        Self {
            now,
            shards,
            placement,
            boundaries,
            network: Network::default(),
            source,
            sourced,
            joins: Oracle::default(),
            outputs: Vec::new(),
            change: None,
            history: BTreeMap::new(),
            states: (0..count).map(|_| States::new()).collect(),
            sessions,
            parked: Vec::new(),
            watches: BTreeMap::new(),
            next_client: CLIENTS_FROM,
            domain,
            events: 0,
            whole: None,
            lost: false,
            quiet: false,
            seen: Seen::new(),
            faults,
            rng,
        }
    }

    fn go(&mut self) -> Result<(), String> {
        for _ in 0..2 + self.rng.below(5) {
            self.begin_join()?;
            self.end_change()?;
        }
        let steps = 40 + self.rng.below(160);
        for step in 0..steps {
            self.step().map_err(|text| format!("at step {step}: {text}"))?;
            if step % 8 == 0 {
                self.check_shards().map_err(|text| format!("after step {step}: {text}"))?;
            }
        }
        self.finish().map_err(|text| format!("at the end: {text}"))
    }

    pub(crate) fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn step(&mut self) -> Result<(), String> {
        let millis = self.rng.below(6) as u64;
        self.pass(millis)?;
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
            if self.shards[at].engine.evict_any(draw) {
                self.note("evictions");
            }
            if self.rng.chance(70) {
                self.settle(at)?;
            }
        }
        if struck(&mut self.rng, faults.joins) {
            self.begin_join()?;
        }
        if struck(&mut self.rng, faults.flushes) {
            self.begin_flush();
        }
        if self.rng.chance(40) {
            self.go_on()?;
        }
        if struck(&mut self.rng, faults.watches) {
            self.watch()?;
        }
        if self.rng.chance(40) {
            self.watch_anew()?;
        }
        if struck(&mut self.rng, faults.source_losses) && self.source.keeps_anything() {
            self.source.lose();
            self.note("sources that lost track");
        }
        if let Some(disk) = self.rng.pick(&self.shards).disk.clone()
            && self.rng.chance(10)
        {
            disk.sync();
        }
        if self.rng.chance(3) {
            let millis = 400 + self.rng.below(3000) as u64;
            self.pass(millis)?;
        }
        let session = self.rng.below(self.sessions.len());
        if self.rng.chance(55) { self.write(session) } else { self.read(session) }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, millis: u64) -> Result<(), String> {
        let end = self.now + millis;
        loop {
            let is_calm = self.network.len() == 0
                && self.source.is_idle()
                && !self.goes_on()
                && !self.shards.iter().any(|one| one.disk.as_ref().is_some_and(Disk::is_asked));
            self.now = (self.now + if is_calm { 100 } else { 25 }).min(end);
            let now = self.now;
            for one in self.shards.iter_mut().filter(|one| one.stopped_until <= now) {
                // A shard that goes on looks at its clock before it takes anything in.
                one.engine.pass_time(Millis(now));
            }
            let shards = &self.shards;
            let stopped = |shard: Shard| shards[usize::from(shard.0)].stopped_until > now;
            let mut arrived = Vec::new();
            while let Some(packet) = self.network.arrived(now, stopped) {
                arrived.push(packet);
            }
            for (from, to, packet) in arrived {
                let at = usize::from(to.0);
                self.shards[at].peers.receive(from, packet);
                // A turn for some of the packets, or one for all.
                if self.rng.chance(50) {
                    self.settle(at)?;
                }
            }
            self.source.tell(&mut self.rng, self.quiet);
            let (answered, failed) = self.source.answer(
                &mut self.rng,
                self.quiet,
                (self.faults.source_fails, self.faults.parts),
            );
            *self.seen.entry("loads from sources").or_default() += answered;
            *self.seen.entry("loads from sources that failed").or_default() += failed;
            for at in 0..self.shards.len() {
                if self.shards[at].stopped_until <= now {
                    self.hear_source(at);
                    if self.shards[at].advance(now) {
                        self.note("keys expired");
                        self.done_at(at);
                    }
                    if self.shards[at].read_disk(&mut self.rng, false) {
                        self.note("loads from disk");
                    }
                    self.settle(at)?;
                    self.next_slices(at)?;
                }
            }
            if self.now == end {
                return Ok(());
            }
        }
    }

    /// Lets a shard do some of the slices that are left.
    fn next_slices(&mut self, at: usize) -> Result<(), String> {
        while self.shards[at].engine.goes_on() && self.rng.chance(80) {
            self.note("slices gone on with");
            self.shards[at].engine.go_on();
            self.settle(at)?;
        }
        Ok(())
    }

    /// Whether slices are left anywhere.
    pub(crate) fn goes_on(&self) -> bool {
        self.shards.iter().any(|one| one.engine.goes_on())
    }

    /// Lets a shard take what its source has told.
    fn hear_source(&mut self, at: usize) {
        let one = &mut self.shards[at];
        let how = (self.quiet, one.cut == Some(Cut::Source));
        if self.source.deliver(at, &mut one.engine, &mut self.rng, how) {
            one.version += 1;
            one.held.clone_from(self.source.held_at(at));
        }
    }

    /// Lets a shard do all it has to do.
    pub(crate) fn settle(&mut self, at: usize) -> Result<(), String> {
        self.note_state(at);
        for _ in 0..1000 {
            let turn = self.shards[at].turn().map_err(|text| format!("shard {at} {text}"))?;
            let Turn { effects, settled, packets } = turn;
            let from = Shard(at as u16);
            for (to, packet) in packets {
                if let Some(what) = Network::is_about(&packet) {
                    self.note(what);
                }
                self.network.send(&mut self.rng, &self.faults, self.now, (from, to), packet);
            }
            if effects.is_empty() && settled.is_empty() {
                return Ok(());
            }
            for effect in effects {
                match effect {
                    Effect::Wake(ticket) => self.wake(at, Until::Data(ticket))?,
                    Effect::Load { fetch, range, portion, .. } => {
                        self.source.load(at, (fetch, portion), range, &self.placement)?;
                    }
                    Effect::Unfollow { range, .. } => self.source.unfollow(at, &range),
                    Effect::Fail { ticket, error } => self.fail(at, ticket, &error)?,
                    effect => return Err(format!("shard {at} gives {effect:?}")),
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
        let found = self.parked.iter().position(|it| it.waits_at == shard && it.until == until);
        let Some(found) = found else { return Ok(()) };
        let parked = self.parked.swap_remove(found);
        if let Until::Data(ticket) = until {
            self.shards[at].engine.resume(ticket);
        }
        self.attempt(parked)
    }

    /// What a request waits for cannot be had: the source has failed.
    fn fail(&mut self, at: usize, ticket: Ticket, error: &EngineError) -> Result<(), String> {
        let (shard, until) = (Shard(at as u16), Until::Data(ticket));
        let found = self.parked.iter().position(|it| it.waits_at == shard && it.until == until);
        let text = error.to_string();
        // Another shard has a join already, or still, whose outputs cannot be followed.
        let since = found.map(|found| self.parked[found].events);
        let is_crossed = text.contains("only push joins' outputs")
            && (self.change.is_some() || since.is_some_and(|since| since < self.events));
        if self.quiet || !(is_crossed || text.contains("broken")) {
            return Err(format!("shard {at} fails: {text}"));
        }
        let Some(found) = found else { return Ok(()) };
        let parked = self.parked.swap_remove(found);
        self.note(if is_crossed {
            "requests that a change of joins has crossed"
        } else {
            "requests that failed with a source"
        });
        self.sessions[parked.session].open -= 1;
        if let Ask::Watch(by, _) = parked.ask {
            self.unwatch(by)?;
        }
        Ok(())
    }

    pub(crate) fn key(&mut self) -> Vec<u8> {
        self.domain.key(&mut self.rng, &self.joins.joins)
    }

    pub(crate) fn home(&self, key: &[u8]) -> usize {
        usize::from(self.placement.home(key).0)
    }

    /// Notes for all sessions that something was done at a shard.
    pub(crate) fn done_at(&mut self, at: usize) {
        self.shards[at].version += 1;
        self.note_state(at);
        self.events += 1;
        let mut positions = Positions::default();
        positions.reach(Shard(at as u16), self.shards[at].peers.stamp());
        self.sessions.iter_mut().for_each(|session| session.positions.merge(&positions));
    }

    /// What all shards' base keys and the joins give.
    pub(crate) fn whole(&mut self) -> (Rc<Oracle>, Rc<View>) {
        if let Some((events, oracle, view)) = &self.whole
            && *events == self.events
        {
            return (oracle.clone(), view.clone());
        }
        let mut oracle = self.joins.clone();
        for one in &self.shards {
            let pairs = one.oracle.base.iter();
            oracle.base.extend(pairs.map(|(key, value)| (key.clone(), value.clone())));
        }
        let values = self.source.values().into_iter();
        oracle.base.extend(values.map(|(key, value)| (key, (value, None))));
        let (view, oracle) = (Rc::new(oracle.view()), Rc::new(oracle));
        self.whole = Some((self.events, oracle.clone(), view.clone()));
        (oracle, view)
    }

    pub(crate) fn settle_all(&mut self) -> Result<(), String> {
        (0..self.shards.len()).try_for_each(|at| self.settle(at))
    }

    /// Lets time pass until nobody waits, and no slice is left.
    pub(crate) fn patiently(&mut self) -> Result<(), String> {
        let end = self.now + PATIENCE;
        self.watch_anew()?;
        while !self.parked.is_empty() || self.goes_on() {
            self.pass(100)?;
            self.watch_anew()?;
            if self.now > end {
                let under_way = self.network.len();
                let goes_on = self.goes_on();
                return Err(format!(
                    "{under_way} packets, slices left: {goes_on}, and for ever wait {:?}",
                    self.parked
                ));
            }
        }
        Ok(())
    }
}
