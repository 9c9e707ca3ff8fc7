//! One shard's side of everything that shards say to one another.

use crate::Positions;
use crate::link::{Link, Received};
use crate::message::{Item, Message, Packet};
use crate::sent::Sent;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::source::{Change, FetchId, Pair, Position, StorePlace};
use headwater_base::{KeyRange, Millis, Shard, ShardRefusal};

/// Where something may be lost on the way: after so many milliseconds of silence something is said.
const HEARTBEAT: u64 = 500;
/// After so many milliseconds without a word from a shard that is needed, the connection begins anew.
const TIMEOUT: u64 = 4 * HEARTBEAT;
/// A load from a shard that is lost for so many milliseconds fails.
const LOST_FOR: u64 = 3_000;
/// Positions of one life of a shard, for each unit of its epoch.
const POSITIONS_BITS: u32 = 20;

/// A load that another shard asks of this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Who asks.
    pub by: Shard,
    /// What it calls the load.
    pub fetch: FetchId,
    /// The keys wanted.
    pub range: KeyRange,
    /// It has them as of this place, and asks for what has changed since: answer with [`Hub::resumed`].
    pub since: Option<StorePlace>,
    connection: u64,
}

/// Somebody who waits for positions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaitId(pub u64);

/// What the engine of this shard, or who waits, is to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// As a home: answer this with [`Hub::loaded`], and follow the range for who asks.
    Load(Asked),
    /// As a home: this shard follows the range no more.
    Unfollow {
        /// The follower.
        by: Shard,
        /// The keys.
        range: KeyRange,
    },
    /// As a home: this shard follows nothing any more, and does not wait for loads that it has asked for.
    Left(Shard),
    /// As a follower: a load was answered.
    Loaded {
        /// The home.
        home: Shard,
        /// Which load.
        fetch: FetchId,
        /// The home's part of the range.
        answer: Result<Vec<Pair>, ShardRefusal>,
    },
    /// As a follower: something has changed at a home, all of it at once.
    Changed {
        /// The home.
        home: Shard,
        /// What, in order.
        items: Vec<Item>,
    },
    /// As a follower: nothing that was loaded from this home is to be believed.
    Reset(Shard),
    /// As a follower: what was loaded from this home is as old as the moment when it was last heard. It is not to be shown until it was resumed.
    Suspended {
        /// The home.
        home: Shard,
        /// When it was last heard.
        heard: Millis,
    },
    /// As a follower: the home is there again: [`Hub::resume`] asks for what has changed of each range, and [`Hub::end_resumption`] ends that.
    Found(Shard),
    /// As a follower: a range was resumed.
    Resumed {
        /// The home.
        home: Shard,
        /// Which range.
        range: KeyRange,
        /// The keys that may have changed, as they are now; `None`: nothing of it is to be believed.
        changes: Option<Vec<Change>>,
    },
    /// What somebody waited for is so: see [`Hub::wait`].
    Settled(WaitId),
}

/// What a hub has yet to bring to an end, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Open {
    /// Waits for positions, of this shard's own and of others.
    pub waits: usize,
    /// Questions of others where this shard stands.
    pub asks: usize,
    /// Loads that others were asked for.
    pub loads: usize,
    /// Things that others are to be told with the end of the turn.
    pub items: usize,
}

/// Who waits for homes to say where they stand.
#[derive(Debug)]
struct Wait {
    after: Positions,
    pending: BTreeSet<Shard>,
    /// A shard that asked for it, with its request; otherwise somebody here.
    asker: Option<(Shard, u64, u64)>,
}

/// What is answered to whoever needs what a shard has that is lost for long.
#[must_use]
pub fn refusal_of_lost(home: Shard) -> ShardRefusal {
    let text = format!("shard {} has no owner that can be reached", home.0);
    ShardRefusal { code: String::from("CLUSTERDOWN"), text }
}

/// One shard's links to all others.
#[derive(Debug)]
pub struct Hub {
    me: Shard,
    epoch: u64,
    pub(crate) now: Millis,
    /// Where this shard stands: counts turns in which something was done.
    pub(crate) position: u64,
    /// Something was done since.
    done: bool,
    /// How many joins read one another's outputs in a row at most.
    depth: u32,
    pub(crate) links: BTreeMap<Shard, Link>,
    waits: BTreeMap<WaitId, Wait>,
    next_wait: u64,
    /// What has arrived since events were taken, in order (H4).
    arrived: Vec<(Shard, Packet)>,
    events: Vec<Event>,
    packets: Vec<(Shard, Packet)>,
    sent: Sent,
}

impl Hub {
    /// The hub of shard `me` among `shards`. `epoch` is greater in each of its lives; at most 2^43.
    #[must_use]
    pub fn new(me: Shard, shards: u16, epoch: u64, now: Millis) -> Self {
        let others = (0..shards).map(Shard).filter(|&shard| shard != me);
        Self {
            me,
            epoch,
            now,
            position: epoch << POSITIONS_BITS,
            done: false,
            depth: 1,
            links: others.map(|shard| (shard, Link::new(now))).collect(),
            waits: BTreeMap::new(),
            next_wait: 0,
            arrived: Vec::new(),
            events: Vec::new(),
            packets: Vec::new(),
            sent: Sent::default(),
        }
    }

    /// What was sent so far.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Notes how many joins read one another's outputs in a row at most: what is loaded from a home may have come to it
    /// over so many others.
    pub fn set_depth(&mut self, depth: u32) {
        if depth > self.depth {
            // What was taken to be current looked no further.
            self.links.values_mut().for_each(|link| link.reflects = Positions::default());
        }
        self.depth = depth.max(1);
    }

    /// Takes in what another shard sent; it is looked at when events are taken.
    pub fn receive(&mut self, from: Shard, packet: Packet) {
        self.arrived.push((from, packet));
    }

    fn look_at(&mut self, from: Shard, packet: Packet) {
        let (epoch, now, connection) = (self.epoch, self.now, packet.connection);
        let Some(link) = self.links.get_mut(&from) else { return };
        let before = link.connection;
        match link.receive(packet, epoch, now) {
            Received::Nothing => {}
            Received::Next(message) => self.hear(from, message),
            Received::Anew(message) => {
                self.restarted(from);
                self.hear(from, message);
            }
            Received::Broken => {
                debug_assert!(connection >= before || link.connection >= before);
                self.begin_anew(from);
            }
        }
    }

    /// Something that another shard has said cannot be: the connection begins anew, and nothing that it has said before is believed.
    pub fn refuse(&mut self, from: Shard) {
        if let Some(link) = self.links.get_mut(&from) {
            link.reached = None;
        }
        self.begin_anew(from);
    }

    /// Gives a connection up for another one.
    fn begin_anew(&mut self, with: Shard) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&with) else { return };
        link.begin(link.connection + 1, now);
        self.restarted(with);
    }

    /// After a connection has begun anew: nobody is told of changes any more, so what both have of each other is old, or not to be believed at all.
    fn restarted(&mut self, with: Shard) {
        self.events.push(Event::Left(with));
        let heard = self.links.get(&with).and_then(|link| link.reached.and(link.current_until));
        self.events.push(match heard {
            Some(heard) => Event::Suspended { home: with, heard },
            None => Event::Reset(with),
        });
        self.send(with, Message::Hello);
        let Some(link) = self.links.get_mut(&with) else { return };
        let resumes = heard.is_some();
        link.resumes = resumes;
        if !resumes {
            link.current_until = None;
        }
        if resumes && link.lost_at.is_none() {
            self.events.push(Event::Found(with));
        }
        for (fetch, range) in link.loads.clone() {
            self.send(with, Message::Load { fetch, range });
        }
        // Nothing is here of it that could be too old.
        let mut settled = Vec::new();
        self.waits.retain(|_, wait| wait.asker.is_none_or(|(asker, ..)| asker != with));
        for (&id, wait) in &mut self.waits {
            if wait.pending.remove(&with) && wait.pending.is_empty() {
                settled.push(id);
            }
        }
        settled.into_iter().for_each(|id| self.settle(id));
    }

    pub(crate) fn send(&mut self, to: Shard, message: Message) {
        let (epoch, now) = (self.epoch, self.now);
        if let Some(link) = self.links.get_mut(&to).filter(|link| link.lost_at.is_none()) {
            self.sent.count(&message);
            self.packets.push((to, link.packet(epoch, now, message)));
        }
    }

    /// Whether a packet of another shard tells nothing but of keys that have it as their home, and gives none but those that it
    /// was asked for.
    pub fn is_of_home(
        &self,
        from: Shard,
        packet: &Packet,
        has_home: impl Fn(&[u8]) -> bool,
    ) -> bool {
        match &packet.message {
            Message::Loaded { fetch, answer: Ok(pairs), .. } => {
                let range = self.links.get(&from).and_then(|link| link.loads.get(fetch));
                pairs.iter().all(|pair| {
                    range.is_none_or(|range| range.contains(&pair.key)) && has_home(&pair.key)
                })
            }
            Message::Changes { items, .. } => items.iter().all(|item| match item {
                Item::Change(change) => has_home(&change.key),
                Item::Reset(_) => true,
            }),
            Message::Resumed { changes: Some(changes), .. } => {
                changes.iter().all(|change| has_home(&change.key))
            }
            _ => true,
        }
    }

    fn hear(&mut self, from: Shard, message: Message) {
        let Some(link) = self.links.get_mut(&from) else { return };
        match message {
            Message::Hello | Message::Pong => {}
            Message::Ping => self.send(from, Message::Pong),
            Message::Load { fetch, range } => {
                link.followed = true;
                let connection = link.connection;
                let since = None;
                self.events.push(Event::Load(Asked { by: from, fetch, range, since, connection }));
            }
            Message::Resume { range, since } => {
                link.followed = true;
                let (connection, fetch, since) = (link.connection, FetchId(0), Some(since));
                self.events.push(Event::Load(Asked { by: from, fetch, range, since, connection }));
            }
            Message::Unfollow { range } => self.events.push(Event::Unfollow { by: from, range }),
            Message::Sync { request, after, hops } => self.asked_where(from, request, after, hops),
            Message::Resumed { range, position, changes } => {
                link.took(from, position);
                self.events.push(Event::Resumed { home: from, range, changes });
            }
            Message::Reached(place) if link.resumes => link.reached_since = Some(place),
            Message::Reached(place) => link.reached = Some(place),
            Message::Loaded { fetch, position, answer } => {
                link.took(from, position);
                if link.loads.remove(&fetch).is_some() {
                    link.follows = true;
                    self.events.push(Event::Loaded { home: from, fetch, answer });
                }
            }
            Message::Changes { position, items } => {
                link.applied = link.applied.max(position);
                link.reflects.reach(from, position);
                self.events.push(Event::Changed { home: from, items });
            }
            Message::Synced { request, position } => {
                link.applied = link.applied.max(position);
                link.reflects.reach(from, position);
                let id = WaitId(request);
                let Some(wait) = self.waits.get_mut(&id) else { return };
                if wait.pending.remove(&from) {
                    link.reflects.merge(&wait.after);
                    if wait.pending.is_empty() {
                        self.settle(id);
                    }
                }
            }
        }
    }

    fn settle(&mut self, id: WaitId) {
        let Some(wait) = self.waits.remove(&id) else { return };
        match wait.asker {
            None => self.events.push(Event::Settled(id)),
            Some((asker, request, connection)) => {
                if let Some(link) = self.links.get_mut(&asker)
                    && link.connection == connection
                {
                    link.asks.push(request);
                }
            }
        }
    }

    /// A follower asks where this shard stands after certain positions.
    fn asked_where(&mut self, from: Shard, request: u64, after: Positions, hops: u32) {
        let Some(link) = self.links.get_mut(&from) else { return };
        let asker = Some((from, request, link.connection));
        let waits = hops > 0 && self.ask(&after, None, hops - 1, asker).is_some();
        if !waits && let Some(link) = self.links.get_mut(&from) {
            link.asks.push(request);
        }
    }

    /// As a follower: asks `home` for a range.
    pub fn load(&mut self, home: Shard, fetch: FetchId, range: KeyRange) {
        if let Some(link) = self.links.get_mut(&home) {
            link.loads.insert(fetch, range.clone());
            self.send(home, Message::Load { fetch, range });
        }
    }

    /// As a follower: ends that `home` tells of a range.
    pub fn unfollow(&mut self, home: Shard, range: KeyRange) {
        self.send(home, Message::Unfollow { range });
    }

    /// As a home: whether somebody still waits for the load.
    #[must_use]
    pub fn is_awaited(&self, asked: &Asked) -> bool {
        self.links.get(&asked.by).is_some_and(|link| link.connection == asked.connection)
    }

    /// As a home: answers a load. Everything that was to be told before the engine gave the answer must have been given to
    /// [`Hub::tell`].
    pub fn loaded(&mut self, asked: &Asked, answer: Result<Vec<Pair>, ShardRefusal>) {
        if self.is_awaited(asked) {
            // What it shows is no later than what it says: sessions rely on that elsewhere.
            self.close();
            self.send_items(asked.by);
            let position = Position(self.position);
            self.send(asked.by, Message::Loaded { fetch: asked.fetch, position, answer });
        }
    }

    /// As a home: has a follower told of something, with the end of the turn.
    pub fn tell(&mut self, follower: Shard, item: Item) {
        self.done = true;
        if let Some(link) = self.links.get_mut(&follower) {
            link.items.push(item);
        }
    }

    /// The position of everything that was done here so far, for the session that did it.
    pub fn stamp(&mut self) -> Position {
        self.done = true;
        Position(self.position + 1)
    }

    /// Ends a turn: followers are told what is new. Where what they follow is `current` in all that this shard has applied,
    /// those who have asked are told where it stands.
    pub fn flush(&mut self, current: bool) {
        self.close();
        let shards: Vec<_> = self.links.keys().copied().collect();
        for shard in shards {
            self.send_items(shard);
            let Some(link) = self.links.get_mut(&shard) else { continue };
            if current && !link.asks.is_empty() {
                for request in core::mem::take(&mut link.asks) {
                    let position = Position(self.position);
                    self.send(shard, Message::Synced { request, position });
                }
            }
        }
    }

    /// Gives what was done so far its position.
    pub(crate) fn close(&mut self) {
        self.position += u64::from(core::mem::take(&mut self.done));
    }

    pub(crate) fn send_items(&mut self, to: Shard) {
        let Some(link) = self.links.get_mut(&to) else { return };
        if !link.items.is_empty() {
            let items = core::mem::take(&mut link.items);
            let position = Position(self.position);
            self.send(to, Message::Changes { position, items });
        }
    }

    /// Waits until what is here of the homes that are `used` reflects everything up to `after`. `None`: it does already, and
    /// an answer that is given now shows all of that. Otherwise [`Event::Settled`] says when to look again.
    pub fn wait(&mut self, after: &Positions, used: &[Shard]) -> Option<WaitId> {
        self.ask(after, Some(used), self.depth - 1, None)
    }

    /// The homes of which it was not heard yet what a wait is for.
    #[must_use]
    pub fn awaited(&self, wait: WaitId) -> Vec<Shard> {
        let wait = self.waits.get(&wait);
        wait.map_or_else(Vec::new, |wait| wait.pending.iter().copied().collect())
    }

    /// Ends a wait of which nothing is to be heard any more.
    pub fn forget(&mut self, wait: WaitId) {
        self.waits.remove(&wait);
    }

    fn ask(
        &mut self,
        after: &Positions,
        used: Option<&[Shard]>,
        hops: u32,
        asker: Option<(Shard, u64, u64)>,
    ) -> Option<WaitId> {
        let lacks = |(&shard, link): (&Shard, &Link)| {
            // Nothing is here of a shard that is lost, and it says nothing.
            let uses = link.lost_at.is_none()
                && match used {
                    Some(used) => used.contains(&shard),
                    None => link.follows || !link.loads.is_empty(),
                };
            let reflects = if self.depth > 1 {
                link.reflects.covers(after)
            } else {
                link.applied >= after.get(shard)
            };
            (uses && !reflects).then_some(shard)
        };
        let pending: BTreeSet<_> = self.links.iter().filter_map(lacks).collect();
        if pending.is_empty() {
            return None;
        }
        let id = WaitId(self.next_wait);
        self.next_wait += 1;
        for &home in &pending {
            self.send(home, Message::Sync { request: id.0, after: after.clone(), hops });
        }
        self.waits.insert(id, Wait { after: after.clone(), pending, asker });
        Some(id)
    }

    /// How far this shard has come with each, itself included: what an answer that is given now shows at least
    /// of what it has from them.
    #[must_use]
    pub fn positions(&self) -> Positions {
        let mut positions = Positions::default();
        positions.reach(self.me, Position(self.position + u64::from(self.done)));
        self.links.iter().for_each(|(&shard, link)| positions.reach(shard, link.applied));
        positions
    }

    /// Moves time: where something may have got lost, it is found out. Links that lose nothing need no time.
    pub fn advance(&mut self, now: Millis) {
        self.now = now;
        let shards: Vec<_> = self.links.keys().copied().collect();
        for shard in shards {
            let waited = self.waits.values().any(|wait| wait.pending.contains(&shard));
            let Some(link) = self.links.get_mut(&shard) else { continue };
            if link.lost_at.is_some() {
                // That is told.
                continue;
            }
            link.follows |= waited;
            let is_heard = self.arrived.iter().any(|(from, _)| *from == shard);
            if !is_heard && link.is_silent(now, TIMEOUT) {
                self.begin_anew(shard);
            } else if link.is_idle(now, HEARTBEAT) {
                self.send(shard, Message::Ping);
            }
        }
    }

    /// The connection to a shard is lost, as whoever drives this knows, over which nothing was heard any more for `silent` milliseconds: what has not arrived
    /// of what it said will not. What has is taken in: it was heard, and what is here is taken for as old as that. Nothing that was loaded from it is believed;
    /// loads wait for a new connection, for a while.
    pub fn lost(&mut self, with: Shard, now: Millis, silent: u64) {
        self.now = now;
        if self.links.get(&with).is_some_and(|link| link.lost_at.is_none()) {
            self.look_at_arrived();
        }
        self.arrived.retain(|(from, _)| *from != with);
        let Some(link) = self.links.get_mut(&with) else { return };
        if link.lost_at.is_none() {
            // What was taken in later may have come when this shard was held up.
            link.heard(Millis(now.0.saturating_sub(silent)));
            link.begin(link.connection + 1, now);
            link.lost_at = Some(now);
            self.restarted(with);
        }
    }

    /// There is a connection to a shard again: both begin anew.
    pub fn found(&mut self, with: Shard, now: Millis) {
        self.now = now;
        let Some(link) = self.links.get_mut(&with) else { return };
        link.lost_at = None;
        self.begin_anew(with);
    }

    /// Has loads fail that wait for shards which are lost for long, and gives these shards. To be called in each turn, where connections are lost and found.
    pub fn give_up_loads(&mut self, now: Millis) -> Vec<Shard> {
        self.now = now;
        let mut lost = Vec::new();
        for (&home, link) in &mut self.links {
            let Some(since) = link.lost_at else { continue };
            if now.since(since) < LOST_FOR {
                continue;
            }
            lost.push(home);
            for (fetch, _) in core::mem::take(&mut link.loads) {
                let answer = Err(refusal_of_lost(home));
                self.events.push(Event::Loaded { home, fetch, answer });
            }
        }
        lost
    }

    /// How much is open here.
    #[must_use]
    pub fn open(&self) -> Open {
        let links = || self.links.values();
        Open {
            waits: self.waits.len(),
            asks: links().map(|link| link.asks.len()).sum(),
            loads: links().map(|link| link.loads.len()).sum(),
            items: links().map(|link| link.items.len()).sum(),
        }
    }

    /// Takes what is to be done, in order, all of it before anything is asked here again.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.look_at_arrived();
        core::mem::take(&mut self.events)
    }

    fn look_at_arrived(&mut self) {
        for (from, packet) in core::mem::take(&mut self.arrived) {
            self.look_at(from, packet);
        }
    }

    /// Takes what is to be sent, and to whom, in order.
    pub fn take_packets(&mut self) -> Vec<(Shard, Packet)> {
        core::mem::take(&mut self.packets)
    }
}
