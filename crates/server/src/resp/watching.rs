//! RANGE.WATCH: clients that are told of each change of a range, base or derived.
//!
//! A watch is a follower in the engine (`headwater_engine::Follower`). What the engine tells is numbered, and
//! goes to the pending output of each watching client, with a position that names this run of the server
//! and the number. A client that comes back with a position is told again what it has missed, out of the
//! history; where that is not known it is told to read the range again, with one `range-resync`.
//!
//! # Invariants
//! - A1. Whoever watches knows all changes up to the last message, or will be sent a resync: what could
//!   not be sent to a client, or could not be known, is followed by one that is queued after all that it
//!   may have missed.
//! - A2. `session.watches` lists the watches of a session, which `watches` has under the same numbers.
//! - A3. Changes are sent to a watching client before what answers its next request.
//!
//! # Cost
//! A change is encoded once, but for the head of its message with the watch's id; each watch costs a
//! lookup and a copy of the bytes. Where nobody watches, a turn looks at two flags.

mod history;

use super::session::Session;
use super::tracking::FOLLOWER;
use super::{Flow, Resp, Turn, encoder};
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use hashbrown::HashMap;
use headwater_base::KeyRange;
use headwater_base::hash::KeyHashBuilder;
use headwater_command::{Args, RangeWatch, Reply, number};
use headwater_engine::{EngineError, Follower, Stop, Told, ToldWhat};
use headwater_protocol::resp::{Encoder, Version};
use history::History;
use std::collections::BTreeSet;

/// The history's own follower; those of watches come behind it.
const HISTORY: Follower = Follower(1 << 16);
/// How soon a range is tried again that could not be followed: one that waits for data, and one that
/// was refused, in milliseconds.
const AGAIN: (u64, u64) = (50, 1000);
/// How often what is told may lead to more within one turn.
const ROUNDS: usize = 16;
/// Characters of the run's name in a position.
const RUN_CHARS: usize = 16;

/// One watch of a client.
struct Watch {
    connection: ConnectionId,
    range: KeyRange,
    /// Parts that are to be followed anew.
    lost: Vec<KeyRange>,
    /// When that is tried next.
    again_at: u64,
    /// The client does not take what it is sent: it is sent nothing until it has.
    stalled: bool,
}

/// All watches, and what they were told.
pub(super) struct Watching {
    /// Names this run of the server.
    run: String,
    /// The number of the last change.
    number: u64,
    last_id: u32,
    watches: HashMap<Follower, Watch, KeyHashBuilder>,
    /// Watches that owe their client a resync.
    behind: BTreeSet<Follower>,
    /// What the engine has told, and was not sent yet.
    inbox: Vec<Told>,
    history: History,
    sent: u64,
    resyncs: u64,
    /// The text under construction.
    text: Vec<u8>,
}

/// The client that is being served, whose messages go into the shared output.
struct Own<'a> {
    connection: &'a Connection<Session>,
    out: &'a mut Vec<u8>,
}

/// Where messages go.
struct Outputs<'a> {
    peers: &'a mut Connections<Session>,
    own: Option<Own<'a>>,
    /// Most that one client may have unsent, and all clients together.
    most: (usize, usize),
}

impl Outputs<'_> {
    /// The version that a client speaks, if it is there.
    fn version(&mut self, id: ConnectionId) -> Option<Version> {
        match &self.own {
            Some(own) if own.connection.id == id => Some(own.connection.session.version),
            _ => self.peers.get_mut(id).map(|peer| peer.session.version),
        }
    }

    /// Bytes that a client has yet to take.
    fn unsent(&mut self, id: ConnectionId) -> usize {
        match &self.own {
            Some(own) if own.connection.id == id => own.connection.unsent() + own.out.len(),
            _ => self.peers.get_mut(id).map_or(0, |peer| peer.unsent()),
        }
    }

    /// Whether so many bytes more may be written to a client.
    fn has_room(&mut self, id: ConnectionId, bytes: usize) -> bool {
        self.unsent(id) + bytes <= self.most.0 && self.peers.bytes() + bytes <= self.most.1
    }

    fn write(&mut self, id: ConnectionId, parts: [&[u8]; 2]) {
        if let Some(own) = &mut self.own
            && own.connection.id == id
        {
            parts.iter().for_each(|part| own.out.extend_from_slice(part));
        } else if let Some(peer) = self.peers.get_mut(id) {
            parts.iter().for_each(|part| peer.pending().extend_from_slice(part));
            self.peers.count_written(id, parts[0].len() + parts[1].len());
            self.peers.touch(id);
        }
    }
}

impl Watching {
    /// Nobody watches yet.
    pub(super) fn new(hash_seed: u64, run: &str) -> Self {
        Self {
            run: run.chars().take(RUN_CHARS).collect(),
            number: 0,
            last_id: HISTORY.0,
            watches: HashMap::with_hasher(KeyHashBuilder::new(hash_seed)),
            behind: BTreeSet::new(),
            inbox: Vec::new(),
            history: History::default(),
            sent: 0,
            resyncs: 0,
            text: Vec::new(),
        }
    }

    /// Watches, changes sent, resyncs sent, bytes of history.
    pub(super) fn counts(&self) -> [(&'static str, u64); 4] {
        [
            ("range_watches", self.watches.len() as u64),
            ("range_changes_sent", self.sent),
            ("range_resyncs_sent", self.resyncs),
            ("range_history_bytes", self.history.bytes() as u64),
        ]
    }

    fn position(&self) -> String {
        format!("{}-{}", self.run, self.number)
    }

    /// The number of a position of this run; `None`: of another one.
    fn number_of(&self, position: &[u8]) -> Option<u64> {
        let rest = position.strip_prefix(self.run.as_bytes())?.strip_prefix(b"-")?;
        number::parse_u64(rest).filter(|&number| number <= self.number)
    }

    /// Writes a change of a key as it follows a watch's id; gives where the key is.
    fn write_change(&mut self, key: &[u8], set: bool) -> core::ops::Range<usize> {
        let position = self.position();
        self.text.clear();
        let mut out = Encoder::new(&mut self.text, Version::Resp3);
        out.bulk(position.as_bytes());
        out.bulk(if set { b"set" } else { b"del" });
        out.bulk(key);
        let end = self.text.len() - 2;
        end - key.len()..end
    }
}

/// The head of a message about a watch.
fn head(what: &str, len: usize, id: Follower, version: Version) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    let mut out = Encoder::new(&mut bytes, version);
    out.push(len);
    out.bulk(what.as_bytes());
    out.integer(i64::from(id.0));
    bytes
}

/// What ends the text of a key that is gone.
fn no_value(version: Version) -> &'static [u8] {
    if version == Version::Resp3 { b"_\r\n" } else { b"$-1\r\n" }
}

impl Resp {
    /// Executes RANGE.WATCH and RANGE.UNWATCH.
    pub(super) fn range_watch(
        &mut self,
        command: &RangeWatch<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        match *command {
            RangeWatch::Begin { first, last, from } => {
                self.begin_watch(&KeyRange::new(first, last), from, args, work)
            }
            RangeWatch::End { id } => {
                let id = Follower(id);
                let is_its = work.connection.session.watches.contains(&id);
                if is_its {
                    let session = &mut work.connection.session;
                    session.watches.retain(|&other| other != id);
                    session.watch_bytes -= self.end_watch(id);
                    encoder(work).ok();
                } else {
                    self.refuse_watch(format_args!("this connection has no watch {}", id.0), work);
                }
                Flow::Next
            }
        }
    }

    fn refuse_watch(&mut self, text: core::fmt::Arguments<'_>, work: &mut Turn<'_>) {
        self.stats.errors += 1;
        encoder(work).error("ERR", text);
    }

    fn begin_watch(
        &mut self,
        range: &KeyRange,
        from: Option<&[u8]>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let most = self.lowered.clients.subscriptions_max;
        if range.is_empty() {
            self.refuse_watch(format_args!("the range is empty: first is not before last"), work);
            return Flow::Next;
        }
        if work.connection.session.watches.len() >= most {
            let text = format_args!("more than {most} watches (subscriptions-max)");
            self.refuse_watch(text, work);
            return Flow::Next;
        }
        // What was told before does not concern it.
        self.tell_watchers(work);
        let id = Follower(self.watching.last_id + 1);
        let engine = self.node.engine_mut();
        loop {
            match engine.follow(range, id) {
                Ok(()) => break,
                Err(Stop::Wait(ticket)) => return self.park(ticket, args, work),
                Err(Stop::Failed(EngineError::OutOfMemory)) if engine.make_room_again() => {}
                Err(Stop::Failed(error)) => {
                    self.stats.errors += 1;
                    encoder(work).error(error.code(), format_args!("{error}"));
                    return Flow::Next;
                }
            }
        }
        let missed = from.map(|position| self.missed(range, position, id, work));
        let watching = &mut self.watching;
        watching.last_id = id.0;
        if self.lowered.clients.watch_history_bytes_max > 0
            && self.node.engine_mut().follow(range, HISTORY).is_ok()
        {
            watching.history.begin(range, watching.number);
        }
        let connection = work.connection.id;
        let watch = Watch {
            connection,
            range: range.clone(),
            lost: Vec::new(),
            again_at: 0,
            stalled: false,
        };
        watching.watches.insert(id, watch);
        work.connection.session.watches.push(id);
        work.connection.session.watch_bytes += range.first.len() + range.last.len();
        let position = watching.position();
        let mut out = encoder(work);
        out.array(2);
        out.integer(i64::from(id.0));
        out.bulk(position.as_bytes());
        if let Some((changes, texts)) = missed {
            self.watching.sent += changes;
            self.watching.resyncs += u64::from(changes == 0 && !texts.is_empty());
            work.out.extend_from_slice(&texts);
        }
        Flow::Next
    }

    /// What a client that knows all up to a position has missed: how many changes, and their messages; or the
    /// message that it is not known.
    fn missed(
        &self,
        range: &KeyRange,
        position: &[u8],
        id: Follower,
        work: &Turn<'_>,
    ) -> (u64, Vec<u8>) {
        let version = work.connection.session.version;
        let most = self.lowered.clients.watch_output_bytes_max;
        let head_of_change = head("range-change", 6, id, version);
        let (mut changes, mut texts) = (0, Vec::new());
        let known = self.watching.number_of(position).is_some_and(|from| {
            self.watching.history.replay(range, from, &mut |text| {
                changes += 1;
                if texts.len() <= most {
                    texts.extend_from_slice(&head_of_change);
                    // A text without a value is one of a key that is gone.
                    let (text, gone) = match text.split_last() {
                        Some((b'-', text)) => (text, no_value(version)),
                        _ => (text, &b""[..]),
                    };
                    texts.extend_from_slice(text);
                    texts.extend_from_slice(gone);
                }
            })
        });
        if known && texts.len() <= most {
            (changes, texts)
        } else {
            (0, head("range-resync", 2, id, version))
        }
    }

    /// Ends a watch; the bytes of its range's ends.
    fn end_watch(&mut self, id: Follower) -> usize {
        self.watching.behind.remove(&id);
        let Some(Watch { range, .. }) = self.watching.watches.remove(&id) else { return 0 };
        self.node.engine_mut().unfollow(&range, id);
        self.watching.history.end(&range, self.time.uptime);
        range.first.len() + range.last.len()
    }

    /// Ends all watches of a session.
    pub(super) fn forget_range_watches(&mut self, session: &mut Session) {
        session.watch_bytes = 0;
        for id in core::mem::take(&mut session.watches) {
            self.end_watch(id);
        }
    }

    /// Sends watching clients what has happened, that of `work` included.
    #[inline]
    pub(super) fn tell_watchers(&mut self, work: &mut Turn<'_>) {
        if self.has_to_tell() {
            let most = self.watch_bounds();
            let own = Own { connection: &*work.connection, out: &mut *work.out };
            self.tell(&mut Outputs { peers: &mut *work.peers, own: Some(own), most });
        }
    }

    /// Sends watching clients what has happened; none is being served.
    #[inline]
    pub(super) fn tell_all_watchers(&mut self, peers: &mut Connections<Session>) {
        for range in self.watching.history.forget_old(self.time.uptime) {
            self.node.engine_mut().unfollow(&range, HISTORY);
        }
        if self.has_to_tell() {
            let most = self.watch_bounds();
            self.tell(&mut Outputs { peers, own: None, most });
        }
    }

    fn watch_bounds(&self) -> (usize, usize) {
        (self.lowered.clients.watch_output_bytes_max, self.clients_bytes_max)
    }

    #[inline]
    fn has_to_tell(&mut self) -> bool {
        self.hear();
        !self.watching.inbox.is_empty() || !self.watching.behind.is_empty()
    }

    /// Takes what the engine has to tell, for those whom it concerns: watches, and clients that track keys.
    #[inline]
    pub(super) fn hear(&mut self) {
        if self.shards.is_some() {
            // Nobody watches there, and what is told is for the other shards.
            return;
        }
        let engine = self.node.engine_mut();
        engine.keep_followed();
        if engine.has_told() {
            self.take_told();
        }
    }

    #[cold]
    fn take_told(&mut self) {
        for told in self.node.engine_mut().take_told() {
            // Followers are in order, and tracking is the last one.
            let is_tracked = told.followers.last() == Some(&FOLLOWER);
            if is_tracked {
                self.tracking.hear(&told.what);
            }
            if told.followers.len() > usize::from(is_tracked) {
                self.watching.inbox.push(told);
            } else if let ToldWhat::Set { value, .. } = told.what {
                self.node.engine_mut().release(value);
            }
        }
    }

    #[cold]
    fn tell(&mut self, outputs: &mut Outputs<'_>) {
        for _ in 0..ROUNDS {
            for told in core::mem::take(&mut self.watching.inbox) {
                self.watching.number += 1;
                match told.what {
                    ToldWhat::Set { key, value } => {
                        let place = self.watching.write_change(&key, true);
                        let mut out = Encoder::new(&mut self.watching.text, Version::Resp3);
                        out.bulk_begin(value.len());
                        let held = self.node.engine().held(value);
                        held.parts().for_each(|part| out.bulk_part(part));
                        out.bulk_end();
                        self.node.engine_mut().release(value);
                        self.send_change(&told.followers, place, true, outputs);
                    }
                    ToldWhat::Gone { key } => {
                        let place = self.watching.write_change(&key, false);
                        self.send_change(&told.followers, place, false, outputs);
                    }
                    ToldWhat::Reset { range } => self.lose(&told.followers, &range),
                }
            }
            self.catch_up(outputs);
            self.hear();
            if self.watching.inbox.is_empty() {
                return;
            }
        }
    }

    /// Sends the change whose text is written to its watches, and records it.
    fn send_change(
        &mut self,
        followers: &[Follower],
        key: core::ops::Range<usize>,
        set: bool,
        outputs: &mut Outputs<'_>,
    ) {
        let most = self.lowered.clients.watch_history_bytes_max;
        let watching = &mut self.watching;
        for &id in followers {
            let Some(watch) = watching.watches.get_mut(&id) else { continue };
            let Some(version) = outputs.version(watch.connection) else { continue };
            if watch.stalled {
                continue;
            }
            let head = head("range-change", 6, id, version);
            let end = if set { &b""[..] } else { no_value(version) };
            let bytes = head.len() + watching.text.len() + end.len();
            if outputs.has_room(watch.connection, bytes) {
                outputs.write(watch.connection, [&head, &watching.text]);
                outputs.write(watch.connection, [end, b""]);
                watching.sent += 1;
            } else {
                watch.stalled = true;
                watching.behind.insert(id);
            }
        }
        if followers.contains(&HISTORY) {
            if !set {
                watching.text.push(b'-');
            }
            watching.history.add(watching.number, &watching.text, key, most);
        }
    }

    /// What a range holds is not known any more: whoever watches it has to follow it anew.
    fn lose(&mut self, followers: &[Follower], range: &KeyRange) {
        let most = self.lowered.clients.watch_history_bytes_max;
        for &id in followers {
            if id == HISTORY {
                let number = self.watching.number;
                self.watching.history.add_reset(number, range, most);
                for part in self.watching.history.lose(range) {
                    self.node.engine_mut().unfollow(&part, HISTORY);
                }
            }
            let Some(watch) = self.watching.watches.get_mut(&id) else { continue };
            watch.lost.push(range.clone());
            self.watching.behind.insert(id);
        }
    }

    /// Follows anew what was lost, and sends the resyncs that are due (A1).
    fn catch_up(&mut self, outputs: &mut Outputs<'_>) {
        let (uptime, history) = (self.time.uptime, self.lowered.clients.watch_history_bytes_max);
        for id in self.watching.behind.clone() {
            let Some(watch) = self.watching.watches.get_mut(&id) else { continue };
            if !watch.lost.is_empty() && watch.again_at > uptime {
                continue;
            }
            let was_tried = watch.again_at > 0;
            while let Some(part) = watch.lost.last() {
                match self.node.engine_mut().follow(part, id) {
                    Ok(()) => _ = watch.lost.pop(),
                    Err(stop) => {
                        let (soon, late) = AGAIN;
                        let wait = if matches!(stop, Stop::Wait(_)) { soon } else { late };
                        watch.again_at = uptime + wait;
                        break;
                    }
                }
            }
            let connection = watch.connection;
            // The client reads it after all that it has not been sent.
            if watch.stalled && outputs.unsent(connection) > outputs.most.0 / 4 {
                continue;
            }
            if !watch.lost.is_empty() {
                // It is told at once that it is not told of changes, and again when it is.
                if was_tried {
                    continue;
                }
            } else {
                self.watching.behind.remove(&id);
                watch.stalled = false;
                watch.again_at = 0;
                let range = watch.range.clone();
                if history > 0 && self.node.engine_mut().follow(&range, HISTORY).is_ok() {
                    let its = |watch: &&Watch| watch.range == range;
                    let count = self.watching.watches.values().filter(its).count();
                    self.watching.history.resume(&range, self.watching.number, count);
                }
            }
            if let Some(version) = outputs.version(connection) {
                outputs.write(connection, [&head("range-resync", 2, id, version), b""]);
                self.watching.resyncs += 1;
            }
        }
    }
}
