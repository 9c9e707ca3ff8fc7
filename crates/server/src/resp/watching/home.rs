//! A home's side of watches: what it follows for the shards whose clients watch, itself included.
//!
//! # Invariants
//! - W1. `feeds` has each shard's feeds that `followed` lists as takers, and `by_range` has the range of each of `followed`.
//! - W2. What is followed is followed in the engine under its own name, but for `lost` parts, which
//!   are followed anew as soon as that can be done; the takers are told to resync then.
//!
//! # Cost
//! A change is written once, and goes once to each shard that takes it. A taker costs a lookup and a word.

use super::history::History;
use super::note::{Asked, Begun, Missed, Note, Since, begin_key_change, write_change};
use super::outputs::Outputs;
use super::{AGAIN, ShardService};
use crate::resp::parts::Pushes;
use crate::service::Service as _;
use crate::shards::{ShardMessage, ToldBatch};
use core::ops::Range;
use hashbrown::HashMap;
use headwater_base::hash::{KeyHashBuilder, Secret};
use headwater_base::{KeyRange, Shard, ShardRefusal};
use headwater_engine::{EngineError, Follower, Notification, Stop, Ticket};
use std::collections::{BTreeSet, HashMap as Seeded};

/// The history's own follower; those of ranges come behind it.
pub(super) const HISTORY: Follower = Follower(1 << 16);

/// Changes in one life of a shard, for each unit of its epoch.
const NUMBERS_BITS: u32 = 40;

/// A shard whose clients watch a range.
struct Taker {
    shard: Shard,
    feed: u32,
    /// Those that have begun here: one that was refused is not to end another.
    watches: BTreeSet<u32>,
}

/// A range that is followed.
struct Followed {
    range: KeyRange,
    takers: Vec<Taker>,
    /// Parts that are to be followed anew.
    lost: Vec<KeyRange>,
    /// When that is tried next, and the data that it waits for.
    again_at: u64,
    ticket: Option<Ticket>,
    /// Since when that is tried.
    lost_at: Option<u64>,
    /// The takers were told of it, and wait to be told again.
    is_told: bool,
}

impl Followed {
    fn new(range: KeyRange) -> Self {
        Self {
            range,
            takers: Vec::new(),
            lost: Vec::new(),
            again_at: 0,
            ticket: None,
            lost_at: None,
            is_told: false,
        }
    }
}

/// What is followed.
pub(super) struct Home {
    /// The number of the last change.
    pub(super) number: u64,
    last: Follower,
    followed: HashMap<Follower, Followed, KeyHashBuilder>,
    by_range: Seeded<KeyRange, Follower>,
    feeds: Seeded<(Shard, u32), Follower>,
    /// Ranges with lost parts.
    pub(super) behind: BTreeSet<Follower>,
    /// Watches that begin once data is there.
    waiting: Vec<(Ticket, Shard, Asked)>,
    /// What the engine has told, and was not passed on yet.
    pub(super) inbox: Vec<Notification>,
    pub(super) history: History,
    /// The change under construction.
    pub(super) change: Vec<u8>,
    /// Who takes the change that is being passed on.
    takers: Vec<(Shard, u32)>,
}

impl Home {
    /// That of a shard with so many lives before this one, of which clients may have positions.
    pub(super) fn new(secret: Secret, lives_before: u64) -> Self {
        Self {
            number: lives_before << NUMBERS_BITS,
            last: HISTORY,
            followed: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            by_range: Seeded::new(),
            feeds: Seeded::new(),
            behind: BTreeSet::new(),
            waiting: Vec::new(),
            inbox: Vec::new(),
            history: History::default(),
            change: Vec::new(),
            takers: Vec::new(),
        }
    }

    /// Begins the next change; gives where the key is.
    pub(super) fn begin_change(&mut self, key: &[u8], set: bool) -> Range<usize> {
        self.change.clear();
        begin_key_change(key, set, &mut self.change)
    }

    /// Whether other shards than this one take something.
    pub(super) fn serves_others(&self, me: Shard) -> bool {
        self.feeds.keys().any(|(shard, _)| *shard != me)
    }
}

impl ShardService {
    /// Follows a range for a watch of a client of the shard `by`. What was told before must have been passed on.
    /// `None`: it waits for data, and [`ShardService::watch_ready`] goes on.
    pub(super) fn begin_at_home(
        &mut self,
        by: Shard,
        asked: Asked,
    ) -> Option<Result<Begun, ShardRefusal>> {
        let me = self.others.me();
        let most = self.history_bytes_max();
        let home = &mut self.pushes.watching.home;
        let engine = self.node.engine_mut();
        let range = &asked.range;
        let known = home.by_range.get(range).copied();
        let follower = known.unwrap_or(Follower(home.last.0 + 1));
        loop {
            engine.begin_slice();
            let followed = engine.follow(range, follower);
            engine.end_slice();
            match followed {
                Ok(()) => break,
                Err(Stop::Wait(ticket)) => {
                    home.waiting.push((ticket, by, asked));
                    return None;
                }
                Err(Stop::Failed(EngineError::OutOfMemory)) if engine.make_room_again() => {}
                Err(Stop::Failed(error)) => return Some(Err(error.refusal())),
            }
        }
        let number = home.number;
        let missed = match asked.from {
            Some(Since::Number(from)) if from <= number => {
                let mut missed = Missed::default();
                let known = home.history.replay(range, from, &mut |number, change| {
                    missed.add(number, change);
                });
                known.then_some(missed)
            }
            _ => None,
        };
        home.last = home.last.max(follower);
        let followed = home.followed.entry(follower).or_insert_with(|| {
            home.by_range.insert(range.clone(), follower);
            Followed::new(range.clone())
        });
        let same = |taker: &&mut Taker| (taker.shard, taker.feed) == (by, asked.feed);
        let is_new = match followed.takers.iter_mut().find(same) {
            Some(taker) => taker.watches.insert(asked.watch),
            None => {
                let watches = BTreeSet::from([asked.watch]);
                followed.takers.push(Taker { shard: by, feed: asked.feed, watches });
                home.feeds.insert((by, asked.feed), follower);
                true
            }
        };
        // One that begins anew may have begun already.
        if is_new && most > 0 && engine.follow(range, HISTORY).is_ok() {
            home.history.begin(range, number);
        }
        self.pushes.serves_others |= by != me;
        Some(Ok(Begun { number, missed }))
    }

    /// A watch of a client of the shard `by` has ended.
    pub(super) fn end_at_home(&mut self, by: Shard, watch: u32, feed: u32) {
        let home = &mut self.pushes.watching.home;
        let waits = |(_, shard, asked): &(Ticket, Shard, Asked)| {
            (*shard, asked.watch, asked.feed) == (by, watch, feed)
        };
        if let Some(at) = home.waiting.iter().position(waits) {
            home.waiting.swap_remove(at);
            return;
        }
        let Some(&follower) = home.feeds.get(&(by, feed)) else { return };
        let Some(followed) = home.followed.get_mut(&follower) else { return };
        let Some(at) = followed.takers.iter().position(|it| (it.shard, it.feed) == (by, feed))
        else {
            return;
        };
        let watches = &mut followed.takers[at].watches;
        if !watches.remove(&watch) {
            return;
        }
        home.history.end(&followed.range, self.time.uptime);
        if !watches.is_empty() {
            return;
        }
        followed.takers.swap_remove(at);
        home.feeds.remove(&(by, feed));
        if followed.takers.is_empty()
            && let Some(Followed { range, .. }) = home.followed.remove(&follower)
        {
            home.by_range.remove(&range);
            home.behind.remove(&follower);
            self.node.engine_mut().unfollow(&range, follower);
        }
        self.note_others();
    }

    /// Goes on with a watch whose data is there, or fails: whose it is, its number, and the answer. `None`: the ticket is no watch's,
    /// or it waits again.
    pub(super) fn watch_ready(
        &mut self,
        ticket: Ticket,
        failure: Option<&EngineError>,
    ) -> Option<(Shard, u32, Result<Begun, ShardRefusal>)> {
        let waiting = &mut self.pushes.watching.home.waiting;
        let at = waiting.iter().position(|(waits, ..)| *waits == ticket)?;
        let (_, by, asked) = waiting.swap_remove(at);
        let watch = asked.watch;
        let answer = match failure {
            Some(error) => Err(error.refusal()),
            None => self.begin_at_home(by, asked)?,
        };
        Some((by, watch, answer))
    }

    /// Passes the change that is written on to those who take it, and records it.
    pub(super) fn pass_on(
        &mut self,
        followers: &[Follower],
        key: Range<usize>,
        outputs: &mut Outputs<'_>,
    ) {
        let (me, most) = (self.others.me(), self.history_bytes_max());
        let write = self.durable_writes().last;
        let home = &mut self.pushes.watching.home;
        let mut takers = core::mem::take(&mut home.takers);
        for follower in followers {
            if let Some(followed) = home.followed.get(follower) {
                takers.extend(followed.takers.iter().map(|taker| (taker.shard, taker.feed)));
            }
        }
        takers.sort_unstable();
        let (number, change) = (home.number, core::mem::take(&mut home.change));
        for one in takers.chunk_by(|one, other| one.0 == other.0) {
            let feeds = one.iter().map(|(_, feed)| *feed);
            if one[0].0 == me {
                self.pushes.watching.clients.deliver(me, number, feeds, &change, outputs);
            } else if let Some(shards) = &mut self.others.shards {
                let ToldBatch { batch, joins } = shards.outbox.tell(one[0].0, write);
                write_change(number, feeds, &change, &mut batch.bytes);
                let upto = batch.bytes.len();
                match batch.messages.last_mut() {
                    Some(ShardMessage::Changes { end }) if joins => *end = upto,
                    _ => batch.messages.push(ShardMessage::Changes { end: upto }),
                }
            }
        }
        let home = &mut self.pushes.watching.home;
        if followers.contains(&HISTORY) {
            home.history.add(number, &change, key, most);
        }
        takers.clear();
        (home.takers, home.change) = (takers, change);
    }

    /// What a range holds is not known any more: it has to be followed anew.
    pub(super) fn lose(&mut self, followers: &[Follower], range: &KeyRange) {
        let most = self.history_bytes_max();
        let home = &mut self.pushes.watching.home;
        for &id in followers {
            if id == HISTORY {
                home.history.add_reset(home.number, range, most);
                for part in home.history.lose(range) {
                    self.node.engine_mut().unfollow(&part, HISTORY);
                }
            }
            let Some(followed) = home.followed.get_mut(&id) else { continue };
            followed.lost.push(range.clone());
            home.behind.insert(id);
        }
    }

    /// Follows anew what was lost, and has its takers resync.
    pub(super) fn follow_again(&mut self) {
        let (uptime, history) = (self.time.uptime, self.history_bytes_max());
        let (soon, late) = AGAIN;
        for id in self.pushes.watching.home.behind.clone() {
            let home = &mut self.pushes.watching.home;
            let Some(followed) = home.followed.get_mut(&id) else { continue };
            if followed.again_at > uptime {
                continue;
            }
            let lost_at = *followed.lost_at.get_or_insert(uptime);
            // Data that comes soon is waited for, so that takers need read only once.
            let mut is_soon = uptime < lost_at + soon;
            followed.ticket = None;
            while let Some(part) = followed.lost.last() {
                let engine = self.node.engine_mut();
                engine.begin_slice();
                let again = engine.follow(part, id);
                engine.end_slice();
                match again {
                    Ok(()) => _ = followed.lost.pop(),
                    Err(Stop::Wait(ticket)) => {
                        followed.ticket = Some(ticket);
                        followed.again_at = uptime + soon;
                        break;
                    }
                    Err(Stop::Failed(_)) => {
                        is_soon = false;
                        followed.again_at = uptime + late;
                        break;
                    }
                }
            }
            if followed.lost.is_empty() {
                home.behind.remove(&id);
                (followed.again_at, followed.lost_at, followed.is_told) = (0, None, false);
                let range = &followed.range;
                if history > 0 && self.node.engine_mut().follow(range, HISTORY).is_ok() {
                    let watches = followed.takers.iter().map(|taker| taker.watches.len()).sum();
                    home.history.resume(range, home.number, watches);
                }
            } else if is_soon || followed.is_told {
                continue;
            } else {
                // They are told now that they are not told of changes, and again when they are.
                followed.is_told = true;
            }
            let takers: Vec<_> = followed.takers.iter().map(|it| (it.shard, it.feed)).collect();
            for (shard, feed) in takers {
                self.note_to(shard, Note::Resync { feed });
            }
        }
    }

    /// Gives a note to a shard: by message, or at once where it is this one.
    pub(super) fn note_to(&mut self, to: Shard, note: Note) {
        let (me, write) = (self.others.me(), self.durable_writes().last);
        match &mut self.others.shards {
            Some(shards) if shards.outbox.is_lost(to) => {
                if let Note::Begin(asked) = note {
                    self.watch_answered(to, asked.watch, Err(lost(to)));
                }
            }
            Some(shards) if to != me => {
                let batch = match &note {
                    Note::Begin(_) | Note::End { .. } => shards.outbox.to(to),
                    // What has changed goes behind an answer, and before a resync.
                    Note::Answer(..) | Note::Resync { .. } => shards.outbox.tell(to, write).batch,
                };
                batch.messages.push(ShardMessage::Watching(Box::new(note)));
            }
            _ => match note {
                Note::Begin(asked) => {
                    let watch = asked.watch;
                    if let Some(answer) = self.begin_at_home(me, asked) {
                        self.watch_answered(me, watch, answer);
                    }
                }
                Note::Answer(watch, answer) => self.watch_answered(me, watch, answer),
                Note::End { watch, feed } => self.end_at_home(me, watch, feed),
                Note::Resync { feed } => self.pushes.watching.clients.resync(me, feed),
            },
        }
    }
}

/// Why a watch cannot begin at a shard to which there is no connection.
fn lost(home: Shard) -> ShardRefusal {
    let text = format!("shard {} has no owner that can be reached", home.0);
    ShardRefusal { code: String::from("CLUSTERDOWN"), text }
}

impl ShardService {
    /// There is no connection to another shard any more: nobody there watches, and what was to begin there does not.
    pub(in crate::resp) fn lose_watches(&mut self, with: Shard) {
        let home = &mut self.pushes.watching.home;
        home.waiting.retain(|(_, by, _)| *by != with);
        let takers = home.followed.values().flat_map(|followed| &followed.takers);
        let of_shard = takers.filter(|taker| taker.shard == with);
        let watches = of_shard.flat_map(|taker| taker.watches.iter().map(|id| (taker.feed, *id)));
        for (feed, watch) in watches.collect::<Vec<_>>() {
            self.end_at_home(with, watch, feed);
        }
        // What is watched there begins anew with the next connection.
        self.pushes.watching.clients.forget_retries(with);
        self.refuse_watches(with, &lost(with));
    }

    /// What was to begin at another shard does not, and why.
    pub(in crate::resp) fn refuse_watches(&mut self, at: Shard, why: &ShardRefusal) {
        for watch in self.pushes.watching.clients.missing_at(at) {
            self.watch_answered(at, watch, Err(why.clone()));
        }
    }

    /// There is a connection to another shard again: what is watched of its keys begins anew there, and is read again.
    pub(in crate::resp) fn find_watches(&mut self, with: Shard) {
        for asked in self.pushes.watching.clients.watched_at(with) {
            self.note_to(with, Note::Begin(asked));
        }
    }
}

impl Pushes {
    /// Data has come, or will not, that a lost range waits for perhaps.
    pub(super) fn retry_lost(&mut self, ticket: Ticket) {
        let home = &mut self.watching.home;
        for id in &home.behind {
            if let Some(followed) = home.followed.get_mut(id)
                && followed.ticket == Some(ticket)
            {
                followed.again_at = 0;
            }
        }
    }
}
