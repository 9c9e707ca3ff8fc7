//! One shard of a simulation: its engine and its peers, and what must be so at it.

use crate::disk::Disk;
use crate::faults::Cut;
use crate::source::{NAME, Values};
use headwater_base::hash::Secret;
use headwater_base::{KeyRange, Millis, Placement, Shard};
use headwater_engine::{
    Effect, Engine, EngineError, Follower, Notification, NotifiedChange, RangeOptions, Settings,
    Stop, TableOptions,
};
use headwater_model::copies::Copies;
use headwater_model::expect::Moments;
use headwater_model::join::Mode;
use headwater_model::oracle::{Oracle, Pairs, View};
use headwater_model::rng::Rng;
use headwater_model::subject::{FeedChange, FollowerNotification};
use headwater_node::{CLIENTS_FROM, Packet, Peers, WaitId};
use std::rc::Rc;

/// What a shard's keys must be, from its own base keys and what it holds of others.
struct Explained {
    version: u64,
    replicas: Pairs,
    oracle: Rc<Oracle>,
    view: Rc<View>,
}

pub(crate) struct One {
    pub(crate) me: Shard,
    pub(crate) engine: Engine,
    pub(crate) peers: Peers,
    pub(crate) epoch: u64,
    pub(crate) stopped_until: u64,
    pub(crate) disk: Option<Disk>,
    /// Its own base keys, and the joins that are installed here.
    pub(crate) oracle: Oracle,
    /// What the source held when it told this shard last.
    pub(crate) held: Values,
    /// Counts changes of these, and of the placement.
    pub(crate) version: u64,
    explained: Option<Explained>,
    /// What snapshots may still show.
    pub(crate) moments: Moments,
    /// What watching clients have.
    pub(crate) copies: Copies,
    /// What they have lost, to be watched anew.
    pub(crate) lost: Vec<(u32, KeyRange)>,
    /// What is left out here, on purpose.
    pub(crate) cut: Option<Cut>,
    /// Effects that came with another one's turn.
    rest: Vec<Effect>,
}

/// What a turn leaves to the world.
#[derive(Default)]
pub(crate) struct Turn {
    pub(crate) effects: Vec<Effect>,
    pub(crate) settled: Vec<WaitId>,
    pub(crate) packets: Vec<(Shard, Packet)>,
}

impl One {
    /// A shard that starts, with nothing in memory.
    pub(crate) fn new(
        me: Shard,
        placement: &Placement,
        (boundaries, sourced): (&[(String, usize)], &[String]),
        disk: Option<Disk>,
        epoch: u64,
        now: u64,
    ) -> Self {
        let mut engine =
            Engine::new(Settings { secret: Secret::fixed(7), draws: 7, ..Settings::default() });
        engine.choose_eagerly();
        engine.set_placement(me, placement.clone());
        let mut oracle = Oracle::default();
        if let Some(disk) = &disk {
            oracle.base = disk.pairs();
            let mut tables: Vec<Vec<u8>> = Vec::new();
            for key in oracle.base.keys() {
                tables.extend(headwater_base::table_of(key).map(<[u8]>::to_vec));
            }
            tables.dedup();
            let kept = engine.set_base_store(Box::new(disk.clone()), &tables, true);
            kept.expect("stored keys have tables");
        }
        for (name, boundary) in boundaries {
            let options = TableOptions { boundary: Some(*boundary), ..TableOptions::default() };
            engine.table_set(name.as_bytes(), &options).expect("the table has no keys in memory");
        }
        for name in sourced {
            let options =
                TableOptions { source: Some(String::from(NAME)), ..TableOptions::default() };
            engine.table_set(name.as_bytes(), &options).expect("the table has no keys");
        }
        engine.advance(Millis(now));
        oracle.advance(now);
        let peers = Peers::new(me, placement.shards(), epoch, Millis(now));
        Self {
            me,
            engine,
            peers,
            epoch,
            stopped_until: 0,
            disk,
            oracle,
            held: Values::new(),
            version: 0,
            explained: None,
            moments: Moments::default(),
            copies: Copies::default(),
            lost: Vec::new(),
            cut: None,
            rest: Vec::new(),
        }
    }

    /// Moves time; whether keys have expired.
    pub(crate) fn advance(&mut self, now: u64) -> bool {
        self.peers.advance(Millis(now));
        if self.cut != Some(Cut::Expiry) {
            self.engine.advance(Millis(now));
        }
        let before = self.oracle.base.len();
        self.oracle.advance(now);
        self.version += u64::from(self.oracle.base.len() < before);
        self.oracle.base.len() < before
    }

    /// Does what there is to do.
    pub(crate) fn turn(&mut self) -> Result<Turn, String> {
        self.hear()?;
        let effects = std::mem::take(&mut self.rest);
        let (settled, packets) = (self.peers.take_settled(), self.peers.take_packets());
        Ok(Turn { effects, settled, packets })
    }

    /// Whether nothing is left over from hearing in the middle of a turn.
    pub(crate) fn has_no_rest(&self) -> bool {
        self.rest.is_empty()
    }

    /// Tells others and watching clients what is new.
    pub(crate) fn hear(&mut self) -> Result<(), String> {
        let mut told = Vec::new();
        let rest = self.peers.turn(&mut self.engine, &mut |engine, it| told.push(to(engine, it)));
        self.rest.extend(rest);
        if self.cut == Some(Cut::Notifications) {
            told.pop_if(|told| {
                matches!(told.change, FeedChange::Set(..)) && self.version.is_multiple_of(5)
            });
        }
        let lost = self.copies.hear(told)?;
        self.lost.extend(lost);
        Ok(())
    }

    /// Gives the engine answers of its disk; whether there were any.
    pub(crate) fn read_disk(&mut self, rng: &mut Rng, all: bool) -> bool {
        let Some(disk) = &self.disk else { return false };
        let mut answers = disk.answers(rng, all);
        if self.cut == Some(Cut::Disk) && rng.chance(20) {
            answers.iter_mut().for_each(|(_, loaded)| drop(loaded.pairs.pop()));
        }
        let any = !answers.is_empty();
        answers.into_iter().for_each(|(fetch, loaded)| self.engine.loaded(fetch, Ok(loaded)));
        any
    }

    /// Runs an operation that may wait for the disk alone.
    pub(crate) fn patient<T>(
        &mut self,
        rng: &mut Rng,
        mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
    ) -> Result<T, EngineError> {
        loop {
            match operation(&mut self.engine) {
                Ok(done) => return Ok(done),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Wait(_)) => {
                    assert!(self.read_disk(rng, true), "waits for something else than the disk");
                }
            }
        }
    }

    /// Runs an operation in slices, where there are any: what it waits for may be its next slice.
    pub(crate) fn sliced<T>(&mut self, operation: impl FnOnce(&mut Engine) -> T) -> T {
        self.engine.begin_slice();
        let result = operation(&mut self.engine);
        self.engine.end_slice();
        result
    }

    /// Has a client watch a range: what it holds. Nothing may come between its beginning and the read that belongs to it, so it
    /// is not sliced.
    pub(crate) fn watch(&mut self, by: u32, range: &KeyRange) -> Result<Vec<Pair>, Stop> {
        self.engine.follow(range, Follower(by))?;
        let mut pairs = Vec::new();
        let each = &mut |key: &[u8], value: headwater_engine::Value<'_>| {
            pairs.push((key.to_vec(), value.to_vec()));
        };
        let home = self.engine.placement().and_then(|placement| placement.home_of_range(range));
        // A part that is lost may lie in a group of another home, for which nobody reads here.
        if home.is_none_or(|home| home == self.me) {
            self.engine.range(&range.first, &range.last, RangeOptions::default(), each)?;
        }
        Ok(pairs)
    }

    /// Whether some join here keeps what was so a while ago.
    pub(crate) fn has_snapshots(&self) -> bool {
        self.oracle.joins.iter().any(|join| matches!(join.join.mode, Mode::Snapshot(_)))
    }

    /// What follows for this shard's keys from its own base keys and the replicas that it holds now.
    pub(crate) fn explained(&mut self, placement: &Placement) -> (Rc<Oracle>, Rc<View>) {
        let mut replicas = Pairs::new();
        self.engine.replicas(&mut |key, value| drop(replicas.insert(key.to_vec(), value)));
        if let Some(known) = &self.explained
            && known.version == self.version
            && known.replicas == replicas
        {
            return (known.oracle.clone(), known.view.clone());
        }
        let mut oracle = self.oracle.clone();
        let is_own = |key: &[u8]| placement.home(key) == self.me;
        for (key, value) in self.held.iter().filter(|(key, _)| is_own(key)) {
            oracle.base.insert(key.clone(), (value.clone(), None));
        }
        for (key, value) in &replicas {
            oracle.base.insert(key.clone(), (value.clone(), None));
        }
        let mut view = oracle.view_with(&mut |_, mut made| {
            made.retain(|key, _| is_own(key));
            made
        });
        view.seen.retain(|key, _| is_own(key));
        let (oracle, view) = (Rc::new(oracle), Rc::new(view));
        let version = self.version;
        self.explained = Some(Explained { version, replicas, oracle, view });
        self.explained.as_ref().map(|it| (it.oracle.clone(), it.view.clone())).expect("just set")
    }
}

/// A key with its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// What watching clients are told.
fn to(engine: &Engine, told: &Notification) -> FollowerNotification {
    let change = match &told.what {
        NotifiedChange::Set { key, value } => {
            FeedChange::Set(key.to_vec(), engine.held(*value).to_vec())
        }
        NotifiedChange::Gone { key } => FeedChange::Gone(key.to_vec()),
        NotifiedChange::Reset { range } => FeedChange::Reset(range.clone()),
    };
    let clients = told.followers.iter().map(|by| by.0).filter(|by| *by >= CLIENTS_FROM);
    FollowerNotification { followers: clients.collect(), change }
}
