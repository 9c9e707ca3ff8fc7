//! A shard among others: its engine and its hub, introduced to each other.
//!
//! # What a driver does
//! 1. [`Engine::set_placement`] and [`Peers::new`] before anything else. Each join, each table's settings and each
//!    function is told to every shard; each command about a key to that key's home; one about a range over several
//!    groups to all shards, each of which answers for its own keys.
//! 2. Packets that arrive go to [`Peers::receive`], in the order in which a sender sent them.
//! 3. Commands are executed as ever. One that a session executes with positions goes through [`Peers::wait`] first, and
//!    waits where that gives a number: once [`Peers::take_settled`] gives the number back, it begins again, with `wait` as well.
//!    The same after each [`Effect::Wake`]. A write's session is given [`Peers::stamp`].
//! 4. At the end of each turn (and after packets or writes at least): [`Peers::turn`], which gives back the effects that are
//!    the driver's own; when those have been done and commands were run again, once more, until it gives none.
//! 5. Then [`Peers::take_packets`] are sent. Where packets may be lost or the other side may restart, [`Peers::advance`] is
//!    told the time, every few hundred milliseconds at least.
//!
//! # Invariants
//! - E1. What an engine tells before it gives a part of a range is sent before the part, so that nobody applies a change
//!   to keys that have it already.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use headwater_base::source::{Change, Pair, Position, StorePlace};
use headwater_base::{KeyRange, Millis, Shard};
use headwater_cluster::{
    Asked, Event, Hub, Item, Open, Packet, Positions, Sent, WaitId, refusal_of_lost,
};
use headwater_engine::{
    Effect, Engine, EngineError, Follower, Notification, NotifiedChange, Stop, Ticket, WARM_MAX,
};

/// Followers from this number on are clients; those below are shards.
pub const CLIENTS_FROM: u32 = 1 << 16;

/// One shard's dealings with the others.
#[derive(Debug)]
pub struct Peers {
    hub: Hub,
    /// Loads that others wait for, to be answered; with the ticket of one that has waited for data.
    asked: VecDeque<(Asked, Option<Ticket>)>,
    /// Those that wait for data themselves.
    waiting: BTreeMap<Ticket, Asked>,
    settled: Vec<WaitId>,
    /// The engine's count of installed joins when their depth was looked at.
    installs: u64,
}

fn follower(shard: Shard) -> Follower {
    Follower(u32::from(shard.0))
}

/// Fetches ahead what the changes that have come are about to touch.
fn warm(engine: &Engine, events: &[Event]) {
    let changes = events.iter().filter_map(|event| match event {
        Event::Changed { items, .. } => Some(items),
        _ => None,
    });
    let keys = changes.flatten().filter_map(|item| match item {
        Item::Change(change) => Some(&*change.key),
        Item::Reset(_) => None,
    });
    let mut batch = [&[][..]; WARM_MAX];
    let mut count = 0;
    for key in keys {
        batch[count] = key;
        count += 1;
        if count == WARM_MAX {
            engine.warm(&batch);
            count = 0;
        }
    }
    if count > 1 {
        engine.warm(&batch[..count]);
    }
}

impl Peers {
    /// The dealings of shard `me` of `shards`. `epoch` is greater in each of its lives.
    #[must_use]
    pub fn new(me: Shard, shards: u16, epoch: u64, now: Millis) -> Self {
        let hub = Hub::new(me, shards, epoch, now);
        Self {
            hub,
            asked: VecDeque::new(),
            waiting: BTreeMap::new(),
            settled: Vec::new(),
            installs: 0,
        }
    }

    /// Whether what another shard sent is about its own keys alone: see [`Hub::is_of_home`].
    #[must_use]
    pub fn is_of_home(&self, engine: &Engine, from: Shard, packet: &Packet) -> bool {
        let Some(placement) = engine.placement() else { return true };
        self.hub.is_of_home(from, packet, |key| placement.home(key) == from)
    }

    /// What another shard sent cannot be: both begin anew.
    pub fn refuse(&mut self, from: Shard) {
        self.hub.refuse(from);
    }

    /// Takes in what another shard sent, for the next turn.
    pub fn receive(&mut self, from: Shard, packet: Packet) {
        self.hub.receive(from, packet);
    }

    /// Moves time.
    pub fn advance(&mut self, now: Millis) {
        self.hub.advance(now);
    }

    /// The connection to another shard is lost: see [`Hub::lost`].
    pub fn lost(&mut self, with: Shard, now: Millis, silent: u64) {
        self.hub.lost(with, now, silent);
    }

    /// There is a connection to another shard: see [`Hub::found`].
    pub fn found(&mut self, with: Shard, now: Millis) {
        self.hub.found(with, now);
    }

    /// Has loads fail whose home is lost for long, and what waits for it otherwise: see [`Hub::give_up_loads`].
    pub fn give_up_loads(&mut self, engine: &mut Engine, now: Millis) {
        for home in self.hub.give_up_loads(now) {
            engine.fail_suspended(home, refusal_of_lost(home));
        }
    }

    /// Takes what is to be sent, and to whom.
    pub fn take_packets(&mut self) -> Vec<(Shard, Packet)> {
        self.hub.take_packets()
    }

    /// What was sent so far.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.hub.sent()
    }

    /// The position of what was done in this turn, for the session that did it.
    pub fn stamp(&mut self) -> Position {
        self.hub.stamp()
    }

    /// What an answer that is given now shows of each shard at least, for sessions that are to see nothing older elsewhere.
    #[must_use]
    pub fn positions(&self) -> Positions {
        self.hub.positions()
    }

    /// Waits until answers show everything up to `after`. `None`: they do.
    pub fn wait(&mut self, engine: &Engine, after: &Positions) -> Option<WaitId> {
        self.look_at_joins(engine);
        self.hub.wait(after, &engine.homes_used())
    }

    /// The shards of which it was not heard yet what a wait is for.
    #[must_use]
    pub fn awaited(&self, wait: WaitId) -> Vec<Shard> {
        self.hub.awaited(wait)
    }

    /// Ends a wait of which nothing is to be heard any more.
    pub fn forget(&mut self, wait: WaitId) {
        self.hub.forget(wait);
    }

    /// Takes the waits that are over.
    pub fn take_settled(&mut self) -> Vec<WaitId> {
        core::mem::take(&mut self.settled)
    }

    /// How much is open here, loads that others wait for included: for tests.
    #[must_use]
    pub fn open(&self) -> (Open, usize) {
        (self.hub.open(), self.asked.len() + self.waiting.len())
    }

    fn look_at_joins(&mut self, engine: &Engine) {
        if self.installs != engine.join_installs() {
            self.installs = engine.join_installs();
            self.hub.set_depth(engine.join_depth());
        }
    }

    /// Does what others have asked or told, and has them told what is new here. Gives the effects that concern neither,
    /// and calls `watch` with each change that clients follow.
    pub fn turn(
        &mut self,
        engine: &mut Engine,
        watch: &mut dyn FnMut(&Engine, &Notification),
    ) -> Vec<Effect> {
        let mut clients = Vec::new();
        let effects = self.turn_notifying(engine, &mut clients);
        for told in clients {
            watch(engine, &told);
            if let NotifiedChange::Set { value, .. } = told.what {
                engine.release(value);
            }
        }
        effects
    }

    /// Has others told what is new here before the turn ends, and gives what clients follow of it, as
    /// [`Engine::take_notifications`] does: values are held.
    pub fn hear(&mut self, engine: &mut Engine, clients: &mut Vec<Notification>) {
        engine.keep_followed();
        self.notify(engine, clients);
    }

    /// As [`Peers::turn`], but gives what clients follow as [`Peers::hear`] does.
    pub fn turn_notifying(
        &mut self,
        engine: &mut Engine,
        clients: &mut Vec<Notification>,
    ) -> Vec<Effect> {
        self.look_at_joins(engine);
        let mut rest = Vec::new();
        loop {
            let events = self.hub.take_events();
            let effects = engine.take_effects();
            if events.is_empty() && effects.is_empty() && self.asked.is_empty() {
                break;
            }
            warm(engine, &events);
            for event in events {
                self.handle(engine, event);
            }
            for effect in effects {
                rest.extend(self.effect(effect));
            }
            self.answer(engine, clients);
        }
        self.hear(engine, clients);
        // What keeping them current asks for is sent with this turn.
        for effect in engine.take_effects() {
            rest.extend(self.effect(effect));
        }
        self.hub.flush(engine.is_followed_current());
        if self.hub.is_place_due()
            && let Some(place) = engine.place_told()
        {
            self.hub.tell_place(place);
        }
        rest
    }

    fn handle(&mut self, engine: &mut Engine, event: Event) {
        match event {
            Event::Load(asked) => self.asked.push_back((asked, None)),
            Event::Unfollow { by, range } => engine.unfollow(&range, follower(by)),
            Event::Left(by) => {
                engine.unfollow_all(follower(by));
                self.asked.retain(|(asked, _)| self.hub.is_awaited(asked));
                self.waiting.retain(|_, asked| self.hub.is_awaited(asked));
            }
            Event::Loaded { home, fetch, answer } => engine.loaded_from(home, fetch, answer),
            Event::Changed { home, items } => {
                let mut changes: Vec<Change> = Vec::new();
                for item in items {
                    match item {
                        Item::Change(change) => changes.push(change),
                        Item::Reset(range) => {
                            engine.changed_at(home, &changes);
                            changes.clear();
                            engine.reset_at(home, &range);
                        }
                    }
                }
                engine.changed_at(home, &changes);
            }
            Event::Reset(home) => engine.reset_at(home, &KeyRange::all()),
            Event::Suspended { home, heard } => engine.suspend_at(home, heard),
            Event::Found(home) => {
                engine.resume_from(home);
                self.look_whether_resumed(engine, home);
            }
            Event::Resumed { home, range, changes } => {
                engine.resumed_at(home, &range, changes.as_deref());
                self.look_whether_resumed(engine, home);
            }
            Event::Settled(wait) => self.settled.push(wait),
        }
    }

    fn look_whether_resumed(&mut self, engine: &Engine, home: Shard) {
        if !engine.is_suspended(home) {
            self.hub.end_resumption(home);
        }
    }

    fn effect(&mut self, effect: Effect) -> Option<Effect> {
        match effect {
            Effect::ResumeFrom { home, range } => self.hub.resume(home, range),
            Effect::LoadFrom { fetch, home, range } => self.hub.load(home, fetch, range),
            Effect::UnfollowAt { home, range } => self.hub.unfollow(home, range),
            Effect::Wake(ticket) => match self.waiting.remove(&ticket) {
                Some(asked) => self.asked.push_back((asked, Some(ticket))),
                None => return Some(effect),
            },
            Effect::Fail { ticket, ref error } => match self.waiting.remove(&ticket) {
                Some(asked) => self.refuse_load(&asked, error),
                None => return Some(effect),
            },
            effect => return Some(effect),
        }
        None
    }

    /// Answers what others wait for, as far as the data is here.
    fn answer(&mut self, engine: &mut Engine, clients: &mut Vec<Notification>) {
        while let Some((asked, ticket)) = self.asked.pop_front() {
            if !self.hub.is_awaited(&asked) {
                continue;
            }
            if asked.since.is_some() && !engine.keeps_all_of(&asked.range) {
                self.hub.resumed(&asked, None);
                continue;
            }
            // E1.
            self.hear(engine, clients);
            ticket.into_iter().for_each(|ticket| engine.resume_counting(ticket));
            let part = engine.give_part(&asked.range, follower(asked.by));
            engine.end_counting();
            match part {
                Ok(pairs) => match asked.since {
                    None => self.hub.loaded(&asked, Ok(pairs)),
                    Some(since) => self.resume(engine, &asked, since, &pairs),
                },
                Err(Stop::Wait(ticket)) => _ = self.waiting.insert(ticket, asked),
                Err(Stop::Failed(EngineError::OutOfMemory)) if engine.make_room_again() => {
                    self.asked.push_front((asked, None));
                }
                Err(Stop::Failed(error)) => self.refuse_load(&asked, &error),
            }
        }
    }

    /// Tells who resumes a range which of its keys may have changed since a place, of all that are there now.
    fn resume(&mut self, engine: &mut Engine, asked: &Asked, since: StorePlace, pairs: &[Pair]) {
        let change = |key: Vec<u8>| {
            let found = pairs.binary_search_by(|pair| pair.key.cmp(&key)).ok();
            Change { key, value: found.map(|at| pairs[at].value.clone()) }
        };
        let written = engine.written_since(since, &asked.range);
        if written.is_none() {
            engine.unfollow(&asked.range, follower(asked.by));
        }
        let own = |keys: Vec<Vec<u8>>| keys.into_iter().filter(|key| engine.owns(key));
        let changes = written.map(|keys| own(keys).map(change).collect());
        self.hub.resumed(asked, changes);
    }

    /// A load, or a range that is to be resumed, cannot be had.
    fn refuse_load(&mut self, asked: &Asked, error: &EngineError) {
        match asked.since {
            Some(_) => self.hub.resumed(asked, None),
            None => self.hub.loaded(asked, Err(error.refusal())),
        }
    }

    /// Hands on what has happened in followed ranges: to shards, and to `clients` what these follow.
    fn notify(&mut self, engine: &mut Engine, clients: &mut Vec<Notification>) {
        if !engine.has_notifications() {
            return;
        }
        for told in engine.take_notifications() {
            let shards = told.followers.partition_point(|follower| follower.0 < CLIENTS_FROM);
            if shards > 0 {
                let item = match &told.what {
                    NotifiedChange::Set { key, value } => {
                        let value = Some(engine.held(*value).to_vec());
                        Item::Change(Change { key: key.to_vec(), value })
                    }
                    NotifiedChange::Gone { key } => {
                        Item::Change(Change { key: key.to_vec(), value: None })
                    }
                    NotifiedChange::Reset { range } => Item::Reset(range.clone()),
                };
                for follower in &told.followers[..shards] {
                    self.hub.tell(Shard(follower.0 as u16), item.clone());
                }
            }
            if shards < told.followers.len() {
                clients.push(told);
            } else if let NotifiedChange::Set { value, .. } = told.what {
                engine.release(value);
            }
        }
    }
}
