//! The clients' side of watches: whose they are, and what each is sent.
//!
//! # Invariants
//! - W3. A watch is in the list of its feed, and a feed is there while it has a watch. Each of its homes knows of each of
//!   its watches, or has a message on the way that says so, or cannot be reached, or has refused it and is in `retries`.
//! - W4. `heard` is what was told of each home: a position with these numbers misses nothing that its client was
//!   not sent, for messages keep their order.
//!
//! # Cost
//! A change's words are written once, and its position for each kind of feed; each watch costs a lookup and a copy of the bytes.

use super::note::{Asked, Begun, KeyChange, Missed, Since};
use super::outputs::Outputs;
use super::position::{Marks, Positions};
use crate::connection::ConnectionId;
use hashbrown::HashMap;
use headwater_base::hash::{KeyHashBuilder, Secret};
use headwater_base::{KeyRange, Shard, ShardRefusal};
use headwater_command::Reply;
use headwater_protocol::resp::{Encoder, Version};
use std::collections::{BTreeMap, BTreeSet, HashMap as Seeded};

/// Watches have numbers behind this one.
const FIRST: u32 = 1 << 16;
/// What a message that is put aside takes besides its text.
const EARLY_BYTES: usize = size_of::<Early>();

/// One watch of a client.
pub(super) struct Watch {
    pub(super) connection: ConnectionId,
    pub(super) feed: u32,
    /// The head of its messages, in this version.
    head: (Version, Vec<u8>),
    /// The client does not take what it is sent: it is sent nothing until it has.
    pub(super) stalled: bool,
    /// It has not been answered yet.
    begin: Option<Box<Begin>>,
}

/// How far the beginning of a watch has come.
#[derive(Default)]
struct Begin {
    /// The homes that have not answered.
    missing: Vec<Shard>,
    /// The position of a client that comes back.
    from: Option<Option<Marks>>,
    answers: Vec<(Shard, Begun)>,
    refusal: Option<ShardRefusal>,
    /// What homes have told that have answered.
    early: Vec<Early>,
    early_bytes: usize,
}

/// A message that goes behind the answer.
enum Early {
    Change(Shard, u64, Box<[u8]>),
    Resync,
}

/// A range that clients watch.
pub(super) struct Feed {
    pub(super) range: KeyRange,
    /// The home of all of its keys; `None`: they have several.
    pub(super) home: Option<Shard>,
    pub(super) watches: Vec<u32>,
}

/// All watches of this shard's clients.
pub(super) struct Clients {
    last: u32,
    last_feed: u32,
    pub(super) watches: HashMap<u32, Watch, KeyHashBuilder>,
    pub(super) feeds: HashMap<u32, Feed, KeyHashBuilder>,
    by_range: Seeded<KeyRange, u32>,
    /// The number of the last change of each shard.
    heard: Vec<u64>,
    pub(super) positions: Positions,
    /// Watches that owe their client a resync.
    pub(super) behind: BTreeSet<u32>,
    /// Homes that could not begin anew with a watch, and when they are asked once more; clients have been told to resync, and are again when it has begun.
    pub(super) retries: BTreeMap<(Shard, u32), u64>,
    /// Those whose beginning can be answered.
    ready: Vec<ConnectionId>,
    pub(super) sent: u64,
    pub(super) resyncs: u64,
}

/// The head of a message about a watch.
fn head(what: &str, len: usize, id: u32, version: Version) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    let mut out = Encoder::new(&mut bytes, version);
    out.push(len);
    out.bulk(what.as_bytes());
    out.integer(i64::from(id));
    bytes
}

/// Tells a client that a watch has ended without its asking, and why.
pub(super) fn ended(id: u32, why: &str, version: Version) -> Vec<u8> {
    let mut bytes = head("range-end", 3, id, version);
    bulk(why, &mut bytes);
    bytes
}

/// A change in the words of a client's protocol, as it follows a position; what it has of key and value stays where it is.
struct ChangeWords<'a> {
    change: KeyChange<'a>,
    /// What goes before the key.
    lead: String,
    /// What goes between it and the value.
    middle: String,
}

impl<'a> ChangeWords<'a> {
    /// Those of a change as it crosses; `None`: it is none.
    fn of(change: &'a [u8]) -> Option<Self> {
        let change = KeyChange::read(change)?;
        let what = if change.value.is_some() { "set" } else { "del" };
        let lead = format!("$3\r\n{what}\r\n${}\r\n", change.key.len());
        let middle = match change.value {
            Some(value) => format!("\r\n${}\r\n", value.len()),
            None => String::from("\r\n"),
        };
        Some(Self { change, lead, middle })
    }

    /// All of it for a client of this version.
    fn parts(&self, version: Version) -> [&[u8]; 5] {
        let (value, end): (_, &[u8]) = match (self.change.value, version) {
            (Some(value), _) => (value, b"\r\n"),
            (None, Version::Resp3) => (&[][..], b"_\r\n"),
            (None, Version::Resp2) => (&[][..], b"$-1\r\n"),
        };
        [self.lead.as_bytes(), self.change.key, self.middle.as_bytes(), value, end]
    }
}

fn bulk(text: &str, out: &mut Vec<u8>) {
    Encoder::new(out, Version::Resp3).bulk(text.as_bytes());
}

impl Clients {
    pub(super) fn new(secret: Secret, run: u64, shards: u16) -> Self {
        Self {
            last: FIRST,
            last_feed: 0,
            watches: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            feeds: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            by_range: Seeded::new(),
            heard: vec![0; usize::from(shards)],
            positions: Positions::new(run, shards > 1),
            behind: BTreeSet::new(),
            retries: BTreeMap::new(),
            ready: Vec::new(),
            sent: 0,
            resyncs: 0,
        }
    }

    fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.heard.len() as u16).map(Shard)
    }

    /// The shards that have keys of a feed.
    pub(super) fn homes(&self, home: Option<Shard>) -> Vec<Shard> {
        home.map_or_else(|| self.shards().collect(), |home| vec![home])
    }

    /// Makes a watch: its number, its feed, the homes that must be asked, and since when for each.
    pub(super) fn begin(
        &mut self,
        connection: ConnectionId,
        range: &KeyRange,
        home: Option<Shard>,
        from: Option<&[u8]>,
    ) -> (u32, u32, Vec<(Shard, Option<Since>)>) {
        self.last += 1;
        let id = self.last;
        let feed = match self.by_range.get(range) {
            Some(&feed) => feed,
            None => {
                self.last_feed += 1;
                let feed = Feed { range: range.clone(), home, watches: Vec::new() };
                self.feeds.insert(self.last_feed, feed);
                self.by_range.insert(range.clone(), self.last_feed);
                self.last_feed
            }
        };
        let mut home = home;
        if let Some(feed) = self.feeds.get_mut(&feed) {
            feed.watches.push(id);
            home = feed.home;
        }
        let homes = self.homes(home);
        let from = from.map(|position| self.positions.marks(position));
        let since = |home: Shard| {
            let marks = from.as_ref()?.as_ref();
            let mark = marks.and_then(|marks| marks.iter().find(|(shard, _)| *shard == home));
            Some(mark.map_or(Since::Unknown, |(_, number)| Since::Number(*number)))
        };
        let asked = homes.iter().map(|&home| (home, since(home))).collect();
        let begin = Begin { missing: homes, from, ..Begin::default() };
        let watch = Watch {
            connection,
            feed,
            head: (Version::Resp2, Vec::new()),
            stalled: false,
            begin: Some(Box::new(begin)),
        };
        self.watches.insert(id, watch);
        (id, feed, asked)
    }

    /// Ends a watch: its feed and range, and the homes to tell.
    pub(super) fn end(&mut self, id: u32) -> Option<(u32, KeyRange, Vec<Shard>)> {
        self.behind.remove(&id);
        self.retries.retain(|(_, watch), _| *watch != id);
        let watch = self.watches.remove(&id)?;
        let feed = self.feeds.get_mut(&watch.feed)?;
        feed.watches.retain(|&other| other != id);
        let (range, home) = (feed.range.clone(), feed.home);
        if feed.watches.is_empty() {
            self.feeds.remove(&watch.feed);
            self.by_range.remove(&range);
        }
        Some((watch.feed, range, self.homes(home)))
    }

    /// A home has answered that a watch has begun, or why not. One that has begun elsewhere is asked for again then.
    pub(super) fn answered(
        &mut self,
        home: Shard,
        id: u32,
        answer: Result<Begun, ShardRefusal>,
        again_at: u64,
    ) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        if let Ok(begun) = &answer {
            let heard = &mut self.heard[usize::from(home.0)];
            *heard = begun.number.max(*heard);
        }
        let Some(begin) = &mut watch.begin else {
            // It has got this home when it was there already, or has it again.
            let is_told = match answer {
                Ok(_) => {
                    self.retries.remove(&(home, id));
                    false
                }
                Err(_) => self.retries.insert((home, id), again_at).is_some(),
            };
            if !is_told {
                self.behind.insert(id);
            }
            return;
        };
        begin.missing.retain(|&missing| missing != home);
        match answer {
            Ok(begun) => begin.answers.push((home, begun)),
            Err(refusal) => begin.refusal = Some(refusal),
        }
        if begin.missing.is_empty() {
            self.ready.push(watch.connection);
        }
    }

    /// What homes are to be asked for once more by now.
    pub(super) fn due(&mut self, now: u64) -> Vec<(Shard, Asked)> {
        let mut due = Vec::new();
        for ((home, watch), at) in self.retries.iter_mut().filter(|(_, at)| **at <= now) {
            // The answer says when that is again.
            *at = u64::MAX;
            let feed = self.watches.get(watch).map(|watch| watch.feed);
            let Some((feed, range)) =
                feed.and_then(|feed| Some((feed, self.feeds.get(&feed)?.range.clone())))
            else {
                continue;
            };
            due.push((*home, Asked { watch: *watch, feed, range, from: None }));
        }
        due
    }

    /// A home cannot be reached: there is nothing to ask it for until it can.
    pub(super) fn forget_retries(&mut self, home: Shard) {
        self.retries.retain(|(of, _), _| *of != home);
    }

    /// The watches that a home has yet to begin.
    pub(super) fn missing_at(&self, home: Shard) -> Vec<u32> {
        let misses =
            |watch: &Watch| watch.begin.as_ref().is_some_and(|begin| begin.missing.contains(&home));
        let missing = self.watches.iter().filter(|(_, watch)| misses(watch));
        missing.map(|(id, _)| *id).collect()
    }

    /// What is watched of a home's keys, as it is asked for.
    pub(super) fn watched_at(&self, home: Shard) -> Vec<Asked> {
        let here = |feed: &&Feed| feed.home.is_none_or(|other| other == home);
        let feeds = self.feeds.iter().filter(|(_, feed)| here(feed));
        let asked = feeds.flat_map(|(&id, feed)| {
            let of = move |&watch: &u32| Asked {
                watch,
                feed: id,
                range: feed.range.clone(),
                from: None,
            };
            feed.watches.iter().map(of)
        });
        asked.collect()
    }

    /// Takes the clients whose watches can be answered.
    pub(super) fn take_ready(&mut self) -> Vec<ConnectionId> {
        core::mem::take(&mut self.ready)
    }

    /// Whether all homes have answered.
    pub(super) fn is_ready(&self, id: u32) -> bool {
        let begin = self.watches.get(&id).and_then(|watch| watch.begin.as_ref());
        begin.is_none_or(|begin| begin.missing.is_empty())
    }

    /// Writes the answer of a watch that has begun, what its client has missed, and what was told since; or gives why it
    /// has not begun.
    pub(super) fn answer(
        &mut self,
        id: u32,
        version: Version,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ShardRefusal> {
        let Some(watch) = self.watches.get_mut(&id) else { return Ok(()) };
        let Some(begin) = watch.begin.take() else { return Ok(()) };
        let Begin { from, mut answers, refusal, early, .. } = *begin;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        watch.head = (version, head("range-change", 6, id, version));
        let head = &watch.head.1;
        answers.sort_unstable_by_key(|(home, _)| *home);
        let mut marks: Marks = answers.iter().map(|(home, begun)| (*home, begun.number)).collect();
        let missed: Option<Vec<(Shard, u64, Missed)>> = answers
            .into_iter()
            .map(|(home, begun)| Some((home, begun.number, begun.missed?)))
            .collect();
        let bytes = |missed: &Vec<(Shard, u64, Missed)>| -> usize {
            missed.iter().map(|(_, _, missed)| missed.bytes()).sum()
        };
        let missed = missed.filter(|missed| bytes(missed) <= most);
        // Before it has taken what it has missed, the client has come no further than it said.
        if let (Some(Some(from)), Some(_)) = (&from, &missed) {
            for mark in &mut marks {
                *mark = from.iter().copied().find(|it| it.0 == mark.0).unwrap_or(*mark);
            }
        }
        let mut answer = Encoder::new(out, version);
        answer.array(2);
        answer.integer(i64::from(id));
        bulk(self.positions.text(marks.iter().copied()), out);
        let positions = &mut self.positions;
        let sent = &mut self.sent;
        let mut change = |marks: &Marks, change: &[u8], out: &mut Vec<u8>| {
            let Some(words) = ChangeWords::of(change) else { return };
            out.extend_from_slice(head);
            bulk(positions.text(marks.iter().copied()), out);
            words.parts(version).iter().for_each(|part| out.extend_from_slice(part));
            *sent += 1;
        };
        let at = |marks: &mut Marks, home: Shard, number: u64| {
            if let Some(mark) = marks.iter_mut().find(|mark| mark.0 == home) {
                mark.1 = number;
            }
        };
        let resync = self::head("range-resync", 2, id, version);
        match missed {
            _ if from.is_none() => {}
            None => {
                out.extend_from_slice(&resync);
                self.resyncs += 1;
            }
            Some(missed) => {
                for (home, last, missed) in missed {
                    for (number, missed) in missed.iter() {
                        at(&mut marks, home, number);
                        change(&marks, missed, out);
                    }
                    at(&mut marks, home, last);
                }
            }
        }
        for early in early {
            match early {
                Early::Change(home, number, told) => {
                    at(&mut marks, home, number);
                    change(&marks, &told, out);
                }
                Early::Resync => {
                    out.extend_from_slice(&resync);
                    self.resyncs += 1;
                }
            }
        }
        Ok(())
    }

    /// Sends a change of a home, as it crosses, to the watches of these feeds.
    pub(super) fn deliver(
        &mut self,
        home: Shard,
        number: u64,
        feeds: impl Iterator<Item = u32>,
        change: &[u8],
        outputs: &mut Outputs<'_>,
    ) {
        self.heard[usize::from(home.0)] = number;
        let Some(words) = ChangeWords::of(change) else { return };
        // The position of feeds at this home, and that of feeds at all.
        let mut position: [Option<Vec<u8>>; 2] = [None, None];
        for feed in feeds {
            let Some(feed) = self.feeds.get(&feed) else { continue };
            let position = position[usize::from(feed.home.is_some())].get_or_insert_with(|| {
                let mut bytes = Vec::with_capacity(64);
                let all = || self.heard.iter().enumerate();
                let marks = all().map(|(at, &number)| (Shard(at as u16), number));
                let marks = marks.filter(|mark| feed.home.is_none_or(|home| home == mark.0));
                bulk(self.positions.text(marks), &mut bytes);
                bytes
            });
            for &id in &feed.watches {
                let Some(watch) = self.watches.get_mut(&id) else { continue };
                if let Some(begin) = &mut watch.begin {
                    begin.tell(home, number, change, outputs.most.0);
                    continue;
                }
                if watch.stalled {
                    continue;
                }
                let Some(version) = outputs.version(watch.connection) else { continue };
                if watch.head.0 != version {
                    watch.head = (version, head("range-change", 6, id, version));
                }
                let [lead, key, middle, value, end] = words.parts(version);
                let parts = [&watch.head.1, position, lead, key, middle, value, end];
                if outputs.write(watch.connection, Some(home), &parts) {
                    self.sent += 1;
                } else {
                    watch.stalled = true;
                    self.behind.insert(id);
                }
            }
        }
    }

    /// What a home has told of a feed is not enough any more.
    pub(super) fn resync(&mut self, home: Shard, feed: u32) {
        let Some(feed) = self.feeds.get(&feed) else { return };
        for &id in &feed.watches {
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            match &mut watch.begin {
                Some(begin) if begin.missing.contains(&home) => {}
                Some(begin) => begin.early.push(Early::Resync),
                None => _ = self.behind.insert(id),
            }
        }
    }

    /// Sends the resyncs that are due (A1).
    pub(super) fn catch_up(&mut self, outputs: &mut Outputs<'_>) {
        for id in core::mem::take(&mut self.behind) {
            let Some(watch) = self.watches.get_mut(&id) else { continue };
            let to = watch.connection;
            // The client reads it after all that it has not been sent.
            if watch.stalled && outputs.unsent(to) > outputs.most.0 / 4 {
                self.behind.insert(id);
                continue;
            }
            let Some(version) = outputs.version(to) else { continue };
            // What is read behind it is newer than what it is about, whoever answers.
            if outputs.write(to, None, &[&head("range-resync", 2, id, version)]) {
                watch.stalled = false;
                self.resyncs += 1;
            } else {
                watch.stalled = true;
                self.behind.insert(id);
            }
        }
    }
}

impl Begin {
    /// A home has told of a change.
    fn tell(&mut self, home: Shard, number: u64, change: &[u8], most: usize) {
        // What happened before the watch begins there is none of its.
        if self.missing.contains(&home) {
            return;
        }
        self.early_bytes += change.len() + EARLY_BYTES;
        if self.early_bytes > most {
            if !matches!(self.early[..], [Early::Resync]) {
                self.early = vec![Early::Resync];
            }
            return;
        }
        self.early.push(Early::Change(home, number, change.into()));
    }
}
