//! One simulation: its shards, its time, and what happens to it.

use crate::changes::Change;
use crate::clients::{Ask, Parked, Session, Until};
use crate::disk::Disk;
use crate::domain::Domain;
use crate::faults::Faults;
use crate::network::Network;
use crate::shard::{One, Turn};
use headwater_base::{KeyRange, Millis, Placement, Shard};
use headwater_engine::{Effect, EngineError, Expiry, RangeOptions, Stop, Ticket};
use headwater_model::join::Pattern;
use headwater_model::oracle::{Oracle, View};
use headwater_model::rng::Rng;
use headwater_node::{CLIENTS_FROM, Positions};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long the longest wait may be once nothing goes wrong, in milliseconds.
const PATIENCE: u64 = 60_000;
/// The longest that a key lives that is to expire, in milliseconds.
pub(crate) const LIFE: usize = 3000;

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    pub(crate) faults: Faults,
    pub(crate) placement: Placement,
    pub(crate) boundaries: Vec<(String, usize)>,
    pub(crate) shards: Vec<One>,
    pub(crate) network: Network,
    /// The joins that are installed on all shards; its base keys are with the shards.
    pub(crate) joins: Oracle,
    /// What joins have ever given.
    pub(crate) outputs: Vec<Pattern>,
    /// What is being done shard by shard.
    pub(crate) change: Option<Change>,
    /// Every value that a base key has had, in order.
    pub(crate) history: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) parked: Vec<Parked>,
    /// What clients watch, by their followers' numbers.
    pub(crate) watches: BTreeMap<u32, KeyRange>,
    next_client: u32,
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

/// Runs the simulation of a seed; how often what happened in it.
///
/// # Errors
/// What was not as it has to be.
pub fn run(seed: u64) -> Result<Seen, String> {
    run_with(seed, |_| {})
}

/// As [`run`], with other faults than the seed's.
///
/// # Errors
/// As for [`run`].
pub fn run_with(seed: u64, change: impl Fn(&mut Faults)) -> Result<Seen, String> {
    let mut rng = Rng::new(seed);
    let mut faults = Faults::of(&mut rng);
    change(&mut faults);
    let mut world = World::new(rng, faults.clone());
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
    fn new(mut rng: Rng, faults: Faults) -> Self {
        let domain = Domain::new(&mut rng);
        let count = 2 + rng.below(4) as u16;
        let now = 1_000_000;
        let mut placement = Placement::even(count);
        let mut boundaries = Vec::new();
        if rng.chance(25) {
            let table = domain.table(&mut rng);
            placement.set_boundary(table.as_bytes(), 2);
            boundaries.push((table, 2));
        }
        let disk = |_| faults.disks.then(Disk::default);
        let one = |me: u16| One::new(Shard(me), &placement, &boundaries, disk(me), 1, now);
        let mut shards: Vec<_> = (0..count).map(one).collect();
        shards.iter_mut().for_each(|one: &mut One| one.cut = faults.cut);
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
            joins: Oracle::default(),
            outputs: Vec::new(),
            change: None,
            history: BTreeMap::new(),
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
                && !self.shards.iter().any(|one| one.disk.as_ref().is_some_and(Disk::is_asked));
            self.now = (self.now + if is_calm { 100 } else { 25 }).min(end);
            let (now, shards) = (self.now, &self.shards);
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
            for at in 0..self.shards.len() {
                if self.shards[at].stopped_until <= now {
                    if self.shards[at].advance(now) {
                        self.note("keys expired");
                        self.done_at(at);
                    }
                    if self.shards[at].read_disk(&mut self.rng, false) {
                        self.note("loads from disk");
                    }
                    self.settle(at)?;
                }
            }
            if self.now == end {
                return Ok(());
            }
        }
    }

    /// Lets a shard do all it has to do.
    pub(crate) fn settle(&mut self, at: usize) -> Result<(), String> {
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
        let found = self.parked.iter().position(|it| it.shard == shard && it.until == until);
        let Some(found) = found else { return Ok(()) };
        let parked = self.parked.swap_remove(found);
        self.attempt(parked)
    }

    pub(crate) fn key(&mut self) -> Vec<u8> {
        self.domain.key(&mut self.rng, &self.joins.joins)
    }

    pub(crate) fn home(&self, key: &[u8]) -> usize {
        usize::from(self.placement.home(key).0)
    }

    fn write(&mut self, session: usize) -> Result<(), String> {
        let key = self.key();
        let at = self.home(&key);
        if self.shards[at].stopped_until > self.now || self.sessions[session].open > 12 {
            return Ok(());
        }
        let at_last = (self.rng.chance(20) && self.faults.lives)
            .then(|| self.now + 1 + self.rng.below(LIFE) as u64);
        match self.rng.below(100) {
            0..22 => return self.ask(session, &Ask::Remove(key), at),
            22..27 if self.faults.lives => {
                return self.ask(session, &Ask::Expire(key, at_last), at);
            }
            _ => {}
        }
        let value = (self.events + 1).to_string().into_bytes();
        let expiry = at_last.map_or(Expiry::Never, |at| Expiry::At(Millis(at)));
        let given = self.shards[at].engine.set(&key, &value, expiry);
        if self.refuses(at, &key, given.as_ref().err())? {
            return Ok(());
        }
        let values = self.history.entry(key.clone()).or_default();
        values.push(value.clone());
        self.sessions[session].seen.insert(key.clone(), values.len() - 1);
        self.shards[at].oracle.base.insert(key, (value, at_last));
        self.written(session, at);
        // The turn goes on, or ends.
        if self.rng.chance(30) { Ok(()) } else { self.settle(at) }
    }

    /// Whether a key is rightly refused, where it is.
    fn refuses(
        &mut self,
        at: usize,
        key: &[u8],
        error: Option<&EngineError>,
    ) -> Result<bool, String> {
        let shown = key.escape_ascii();
        let is_output = !self.shards[at].oracle.owners(key).is_empty() || self.is_prepared(at, key);
        match error {
            None if !is_output => Ok(false),
            Some(EngineError::Joined { .. }) if is_output => {
                if self.is_prepared(at, key) {
                    self.note("writes refused for a join to come");
                }
                Ok(true)
            }
            error => Err(format!("shard {at}: a write of {shown}, output {is_output}: {error:?}")),
        }
    }

    /// Notes that a session has written at a shard.
    fn written(&mut self, session: usize, at: usize) {
        self.shards[at].version += 1;
        self.events += 1;
        let stamp = self.shards[at].peers.stamp();
        self.sessions[session].positions.reach(Shard(at as u16), stamp);
    }

    /// Notes for all sessions that something was done at a shard.
    pub(crate) fn done_at(&mut self, at: usize) {
        self.shards[at].version += 1;
        self.events += 1;
        let mut positions = Positions::default();
        positions.reach(Shard(at as u16), self.shards[at].peers.stamp());
        self.sessions.iter_mut().for_each(|session| session.positions.merge(&positions));
    }

    fn read(&mut self, session: usize) -> Result<(), String> {
        if self.sessions[session].open > 12 {
            return Ok(());
        }
        let range = self.domain.range(&mut self.rng, &self.joins.joins);
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
        let (_, view) = self.whole();
        if view.seen.is_empty() || self.rng.chance(20) {
            return self.key();
        }
        let at = self.rng.below(view.seen.len());
        view.seen.keys().nth(at).expect("there are so many").clone()
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
        let (view, oracle) = (Rc::new(oracle.view()), Rc::new(oracle));
        self.whole = Some((self.events, oracle.clone(), view.clone()));
        (oracle, view)
    }

    /// Asks all shards that have a part of it.
    pub(crate) fn ask_all(&mut self, session: usize, ask: &Ask) -> Result<(), String> {
        match self.placement.home_of_range(&ask.range()) {
            Some(home) => self.ask(session, ask, usize::from(home.0)),
            None => (0..self.shards.len()).try_for_each(|at| self.ask(session, ask, at)),
        }
    }

    pub(crate) fn ask(&mut self, session: usize, ask: &Ask, at: usize) -> Result<(), String> {
        let asking = &mut self.sessions[session];
        asking.open += 1;
        let (after, seen) = (asking.positions.clone(), asking.seen.clone());
        // Nobody wakes this one.
        let until = Until::Data(Ticket(u64::MAX));
        let (ask, shard, events) = (ask.clone(), Shard(at as u16), self.events);
        self.attempt(Parked { session, shard, ask, after, seen, until, events })?;
        self.settle(at)
    }

    fn attempt(&mut self, mut parked: Parked) -> Result<(), String> {
        // A part of what is watched is watched where the rest is.
        let whole = match &parked.ask {
            Ask::Watch(by, _) => self.watches.get(by).cloned(),
            ask => Some(ask.range()),
        };
        let Some(whole) = whole else {
            // Another shard has refused it.
            self.sessions[parked.session].open -= 1;
            return Ok(());
        };
        if let Some(home) = self.placement.home_of_range(&whole) {
            parked.shard = home;
        }
        let at = usize::from(parked.shard.0);
        if matches!(parked.ask, Ask::Watch(..)) {
            // What was told before belongs to what the client had before.
            self.shards[at].hear()?;
        }
        let one = &mut self.shards[at];
        if let Some(wait) = one.peers.wait(&one.engine, &parked.after) {
            parked.until = Until::Settled(wait);
            self.parked.push(parked);
            self.note("waits for positions");
            return Ok(());
        }
        if one.has_snapshots() {
            let (_, view) = one.explained(&self.placement);
            one.moments.note(one.oracle.now, &view);
        }
        let mut pairs = Vec::new();
        let mut there = false;
        let done = match &parked.ask {
            Ask::Range(range) => one
                .engine
                .range(&range.first, &range.last, RangeOptions::default(), &mut |key, value| {
                    pairs.push((key.to_vec(), value.to_vec()));
                })
                .map(|_| ()),
            Ask::Get(key) => one.engine.get(key).map(|value| {
                pairs.extend(value.map(|value| (key.clone(), value.to_vec())));
            }),
            Ask::Verify(range) => match one.engine.verify(range, 10) {
                Ok(found) if found.is_empty() => Ok(()),
                Ok(found) => return Err(format!("shard {at}: VERIFY gives {found:?}")),
                Err(stop) => Err(stop),
            },
            Ask::Watch(by, range) => one.watch(*by, range).map(|found| pairs = found),
            Ask::Remove(key) => one.engine.remove(key).map(|found| there = found),
            Ask::Expire(key, moment) => {
                one.engine.set_expiry(key, moment.map(Millis)).map(|found| there = found)
            }
        };
        match done {
            Err(Stop::Wait(ticket)) => {
                parked.until = Until::Data(ticket);
                self.parked.push(parked);
                self.note("waits for data");
                return Ok(());
            }
            Err(Stop::Failed(error)) => self.refused(&parked, &error)?,
            Ok(()) if matches!(parked.ask, Ask::Remove(_) | Ask::Expire(..)) => {
                self.changed(&parked, there)?;
            }
            Ok(()) => {
                self.note("answers checked");
                let text = format!("shard {at}, {:?}", parked.ask);
                self.check(&parked, &pairs).map_err(|error| format!("{text}: {error}"))?;
                if let Ask::Watch(by, range) = &parked.ask {
                    self.shards[at].copies.add(*by, range, pairs);
                }
            }
        }
        let session = &mut self.sessions[parked.session];
        session.open -= 1;
        if session.causal {
            session.positions.merge(&self.shards[at].peers.positions());
        }
        Ok(())
    }

    /// A request that is refused.
    fn refused(&mut self, parked: &Parked, error: &EngineError) -> Result<(), String> {
        match (&parked.ask, error) {
            (Ask::Remove(key) | Ask::Expire(key, _), EngineError::Joined { .. }) => {
                self.refuses(usize::from(parked.shard.0), key, Some(error)).map(drop)
            }
            (Ask::Watch(by, _), EngineError::Refused(_)) if self.has_lazy_joins() => {
                self.unwatch(*by);
                Ok(())
            }
            _ => Err(format!("{parked:?}: {error:?}")),
        }
    }

    /// A base key was removed, or has another moment of its end.
    fn changed(&mut self, parked: &Parked, there: bool) -> Result<(), String> {
        let at = usize::from(parked.shard.0);
        let one = &mut self.shards[at];
        let (key, known) = match &parked.ask {
            Ask::Remove(key) => (key, one.oracle.base.remove(key).is_some()),
            Ask::Expire(key, moment) => {
                let known = one.oracle.base.get_mut(key).map(|(_, at)| *at = *moment);
                let now = one.oracle.now;
                one.oracle.advance(now);
                (key, known.is_some())
            }
            _ => return Ok(()),
        };
        if there != known {
            return Err(format!("shard {at}: {:?} says {there}", parked.ask));
        }
        let key = key.clone();
        self.refuses(at, &key, None)?;
        self.written(parked.session, at);
        Ok(())
    }

    /// Somebody begins to watch, or ends it.
    fn watch(&mut self) -> Result<(), String> {
        let range = self.domain.range(&mut self.rng, &self.joins.joins);
        if let Some(&by) = self.watches.keys().next()
            && (range.is_empty() || self.watches.len() > 3 || self.rng.chance(30))
        {
            self.unwatch(by);
            return Ok(());
        }
        if range.is_empty() {
            return Ok(());
        }
        let by = self.next_client;
        self.next_client += 1;
        self.watches.insert(by, range.clone());
        self.ask_all(0, &Ask::Watch(by, range))
    }

    /// What watching clients have lost they watch anew.
    pub(crate) fn watch_anew(&mut self) -> Result<(), String> {
        for at in 0..self.shards.len() {
            for (by, part) in std::mem::take(&mut self.shards[at].lost) {
                if let Some(whole) = self.watches.get(&by) {
                    let home = self.placement.home_of_range(whole);
                    let has_moved = home.is_some_and(|home| usize::from(home.0) != at);
                    let range = if has_moved { whole.clone() } else { part };
                    self.note("watches begun anew");
                    self.ask(0, &Ask::Watch(by, range), at)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, by: u32) {
        self.watches.remove(&by);
        for one in &mut self.shards {
            one.copies.cut(by, &KeyRange::all());
            one.engine.unfollow_all(headwater_engine::Follower(by));
        }
        self.unpark(|parked| matches!(parked.ask, Ask::Watch(other, _) if other == by));
    }

    /// Forgets requests.
    pub(crate) fn unpark(&mut self, which: impl Fn(&Parked) -> bool) {
        let sessions = &mut self.sessions;
        self.parked.retain(|parked| {
            let goes = which(parked);
            sessions[parked.session].open -= usize::from(goes);
            !goes
        });
    }

    pub(crate) fn settle_all(&mut self) -> Result<(), String> {
        (0..self.shards.len()).try_for_each(|at| self.settle(at))
    }

    /// Lets time pass until nobody waits.
    pub(crate) fn patiently(&mut self) -> Result<(), String> {
        let end = self.now + PATIENCE;
        self.watch_anew()?;
        while !self.parked.is_empty() {
            self.pass(100)?;
            self.watch_anew()?;
            if self.now > end {
                let under_way = self.network.len();
                return Err(format!("{under_way} packets, and for ever wait {:?}", self.parked));
            }
        }
        Ok(())
    }
}
