//! RANGE.WATCH: clients that are told of each change of a range, base or derived.
//!
//! A watched range is a follower in the engine (`headwater_engine::Follower`) of each *home* that has keys of it: with one shard
//! of this one. What the engine tells is numbered there, and goes once to each shard whose clients watch
//! it (`home`), and from there to the pending output of each watching client (`clients`), with a position that
//! names this run of the server and the numbers of the homes. A client that comes back with a position is told again what it has missed, out
//! of the homes' histories; where that is not known it is told to read the range again, with one `range-resync`.
//!
//! # Invariants
//! - A1. Whoever watches knows all changes up to the last message, or will be sent a resync: what could
//!   not be sent to a client, or could not be known, is followed by one that is queued after all that it
//!   may have missed.
//! - A2. `session.watches` lists the watches of a session, which `clients` has under the same numbers.
//! - A3. Changes are sent to a watching client before what answers its next request: those of each home before what is
//!   executed there behind them, and never before an answer that is older than they are. For that, messages of a home
//!   say what happened there in its order, and `Front` keeps it.
//!
//! # Cost
//! A change is written once, as its key and its value, and crosses so; each watch costs a lookup, and a copy of the bytes between the few that its
//! client's protocol has around them. Where nobody watches, a turn looks at three flags.

mod clients;
mod history;
mod home;
mod note;
mod outputs;
mod position;

#[cfg(test)]
pub(crate) use note::changes_example;
pub(crate) use note::{Note, are_changes};

use super::remote::wait_for_answers;
use super::session::{Session, Waiting};
use super::tracking::RANGES;
use super::{Flow, ShardService, Turn, encoder};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::resp::parts::OtherShards;
use crate::resp::parts::Pushes;
use crate::service::Service as _;
use crate::shards::Shards;
use clients::Clients;
use headwater_base::hash::Secret;
use headwater_base::{KeyRange, Shard, ShardRefusal};
use headwater_command::{Args, RangeWatch, Reply};
use headwater_engine::{EngineError, Notification, NotifiedChange, Ticket};
use home::{HISTORY, Home};
use note::{Asked, Begun, read_change};
use outputs::{Outputs, Own};

/// How soon a range is tried again that could not be followed: one that waits for data, and one that
/// was refused, in milliseconds.
const AGAIN: (u64, u64) = (50, 1000);
/// How often what is told may lead to more within one turn.
const ROUNDS: usize = 16;

/// All watches, and what they were told.
pub(super) struct Watching {
    home: Home,
    clients: Clients,
}

impl Watching {
    /// Nobody watches yet.
    pub(super) fn new(secret: Secret, run: u64, shards: Option<&Shards>) -> Self {
        let count = shards.map_or(1, |shards| shards.outbox.shards());
        let lives_before = shards.map_or(0, |shards| shards.lives_before);
        Self { home: Home::new(secret, lives_before), clients: Clients::new(secret, run, count) }
    }

    /// Watches, changes sent, resyncs sent, bytes of history.
    pub(super) fn counts(&self) -> [(&'static str, u64); 4] {
        [
            ("range_watches", self.clients.watches.len() as u64),
            ("range_changes_sent", self.clients.sent),
            ("range_resyncs_sent", self.clients.resyncs),
            ("range_history_bytes", self.home.history.bytes() as u64),
        ]
    }
}

impl ShardService {
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
                let session = &mut work.connection.session;
                if session.watches.contains(&id) {
                    session.watches.retain(|&other| other != id);
                    let bytes = self.end_watch(id);
                    work.connection.session.watch_bytes -= bytes;
                    encoder(work).ok();
                } else {
                    self.refuse_watch(format_args!("this connection has no watch {id}"), work);
                }
                Flow::Next
            }
        }
    }

    fn refuse_watch(&mut self, text: core::fmt::Arguments<'_>, work: &mut Turn<'_>) {
        encoder(work).error("ERR", text);
    }

    fn begin_watch(
        &mut self,
        range: &KeyRange,
        from: Option<&[u8]>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let most = self.settings.lowered.clients.subscriptions_max;
        if range.is_empty() {
            self.refuse_watch(format_args!("the range is empty: first is not before last"), work);
            return Flow::Next;
        }
        if work.connection.session.watches.len() >= most {
            let text = format_args!("more than {most} watches (subscriptions-max)");
            self.refuse_watch(text, work);
            return Flow::Next;
        }
        if work.connection.session.expects() {
            // What it is told goes behind the answer, and that behind those before it.
            return wait_for_answers(Some(args), work);
        }
        // What was told before does not concern it.
        self.tell_watchers(work);
        let home = self.home_of(range);
        let connection = work.connection.id;
        let (id, feed, homes) = self.pushes.watching.clients.begin(connection, range, home, from);
        work.connection.session.watches.push(id);
        work.connection.session.watch_bytes += range.first.len() + range.last.len();
        for (home, from) in homes {
            self.note_to(home, Note::Begin(Asked { watch: id, feed, range: range.clone(), from }));
        }
        if self.pushes.watching.clients.is_ready(id) {
            self.pushes.watching.clients.take_ready();
            self.answer_watch(id, work);
            return Flow::Next;
        }
        work.connection.session.waiting = Some(Box::new(Waiting::Watch(id)));
        Flow::Parked
    }

    /// The home of all keys of a range.
    fn home_of(&self, range: &KeyRange) -> Option<Shard> {
        self.node.engine().placement().map_or(Some(Shard(0)), |it| it.home_of_range(range))
    }

    /// Answers the beginning of a watch: all homes have.
    pub(super) fn answer_watch(&mut self, id: u32, work: &mut Turn<'_>) {
        let most = self.settings.lowered.clients.watch_output_bytes_max;
        let version = work.connection.session.version;
        if let Err(refusal) = self.pushes.watching.clients.answer(id, version, most, work.out) {
            work.connection.session.watches.retain(|&other| other != id);
            let bytes = self.end_watch(id);
            work.connection.session.watch_bytes -= bytes;
            let before = work.out.len();
            encoder(work).error(&refusal.code, format_args!("{}", refusal.text));
            self.figures.note_error(before, work);
        }
    }

    /// Ends a watch; the bytes of its range's ends.
    fn end_watch(&mut self, id: u32) -> usize {
        let Some((feed, range, homes)) = self.pushes.watching.clients.end(id) else { return 0 };
        for home in homes {
            self.note_to(home, Note::End { watch: id, feed });
        }
        range.first.len() + range.last.len()
    }

    /// Ends a watch of another client than the one being served, and tells it why.
    pub(super) fn end_watch_of(
        &mut self,
        (id, watch): (ConnectionId, u32),
        why: &str,
        peers: &mut Connections<Session>,
    ) {
        let bytes = self.end_watch(watch);
        let Some(peer) = peers.get_mut(id) else { return };
        forget_watch(&mut peer.session, watch, bytes);
        let message = clients::ended(watch, why, peer.session.version);
        peers.append(id, None, &[&message]);
    }

    /// Ends a watch of the client being served, and tells it why.
    pub(super) fn end_own_watch(&mut self, watch: u32, why: &str, work: &mut Turn<'_>) {
        let bytes = self.end_watch(watch);
        let session = &mut work.connection.session;
        forget_watch(session, watch, bytes);
        let message = clients::ended(watch, why, session.version);
        if !session.put_behind(None, &[&message]) {
            work.out.extend_from_slice(&message);
        }
    }

    /// Ends all watches of a session.
    pub(super) fn forget_range_watches(&mut self, session: &mut Session) {
        session.watch_bytes = 0;
        for id in core::mem::take(&mut session.watches) {
            self.end_watch(id);
        }
    }

    /// Where keys live has changed: what had one home may have several now.
    pub(in crate::resp) fn place_watches(&mut self) {
        let mut moved = Vec::new();
        for (&id, feed) in &self.pushes.watching.clients.feeds {
            if feed.home.is_some_and(|home| self.home_of(&feed.range) != Some(home)) {
                moved.push(id);
            }
        }
        for id in moved {
            let all = self.pushes.watching.clients.homes(None);
            let Some(feed) = self.pushes.watching.clients.feeds.get_mut(&id) else { continue };
            let Some(before) = feed.home.take() else { continue };
            let (range, watches) = (feed.range.clone(), feed.watches.clone());
            for home in all.into_iter().filter(|&home| home != before) {
                for &watch in &watches {
                    let asked = Asked { watch, feed: id, range: range.clone(), from: None };
                    self.note_to(home, Note::Begin(asked));
                }
            }
        }
    }

    /// Takes what another shard writes about watches.
    pub(super) fn take_note(
        &mut self,
        from: Shard,
        note: Note,
        connections: &mut Connections<Session>,
    ) {
        match note {
            Note::Begin(asked) => {
                // What was told before does not concern it.
                self.tell_all_watchers(connections);
                let watch = asked.watch;
                if let Some(answer) = self.begin_at_home(from, asked) {
                    self.answer_to(from, watch, answer, connections);
                }
            }
            Note::End { watch, feed } => self.end_at_home(from, watch, feed),
            Note::Answer(watch, answer) => {
                self.watch_answered(from, watch, answer);
                self.pushes.wake_watchers(connections);
            }
            Note::Resync { feed } => self.pushes.watching.clients.resync(from, feed),
        }
    }

    /// A home has answered a client of this shard.
    fn watch_answered(&mut self, home: Shard, watch: u32, answer: Result<Begun, ShardRefusal>) {
        let again_at = self.time.uptime + AGAIN.1;
        self.pushes.watching.clients.answered(home, watch, answer, again_at);
    }

    fn answer_to(
        &mut self,
        to: Shard,
        watch: u32,
        answer: Result<Begun, ShardRefusal>,
        connections: &mut Connections<Session>,
    ) {
        self.note_to(to, Note::Answer(watch, answer));
        self.pushes.wake_watchers(connections);
    }

    /// Data has come for which a watch waits perhaps, or does not come.
    pub(super) fn go_on_watching(
        &mut self,
        ticket: Ticket,
        failure: Option<&EngineError>,
        connections: &mut Connections<Session>,
    ) {
        self.pushes.retry_lost(ticket);
        self.tell_all_watchers(connections);
        if let Some((to, watch, answer)) = self.watch_ready(ticket, failure) {
            self.answer_to(to, watch, answer, connections);
        }
    }

    /// Takes changes that another shard has told.
    pub(super) fn take_changes(
        &mut self,
        from: Shard,
        mut bytes: &[u8],
        connections: &mut Connections<Session>,
    ) {
        let most = self.watch_bounds();
        let mut outputs = Outputs { peers: connections, own: None, most };
        while let Some(change) = read_change(&mut bytes) {
            let feeds = change.feeds.iter().map(|feed| u32::from_le_bytes(*feed));
            let clients = &mut self.pushes.watching.clients;
            clients.deliver(from, change.number, feeds, change.change, &mut outputs);
        }
    }

    /// Sends watching clients what has happened, that of `work` included.
    #[inline]
    pub(super) fn tell_watchers(&mut self, work: &mut Turn<'_>) {
        if self.has_to_tell() {
            let most = self.watch_bounds();
            let own = Own { connection: &mut *work.connection, out: &mut *work.out };
            self.tell(&mut Outputs { peers: &mut *work.peers, own: Some(own), most });
        }
    }

    /// Sends watching clients what has happened; none is being served.
    #[inline]
    pub(super) fn tell_all_watchers(&mut self, peers: &mut Connections<Session>) {
        for range in self.pushes.watching.home.history.forget_old(self.time.uptime) {
            self.node.engine_mut().unfollow(&range, HISTORY);
        }
        if self.has_to_tell() {
            let most = self.watch_bounds();
            self.tell(&mut Outputs { peers, own: None, most });
        }
    }

    fn watch_bounds(&self) -> (usize, usize) {
        (self.settings.lowered.clients.watch_output_bytes_max, self.bound.clients_bytes_max)
    }

    /// What this shard's history may take.
    fn history_bytes_max(&self) -> usize {
        let shards = self.others.shards.as_ref().map_or(1, |shards| shards.outbox.shards());
        self.settings.lowered.clients.watch_history_bytes_max / usize::from(shards)
    }

    #[inline]
    fn has_to_tell(&mut self) -> bool {
        self.hear();
        let Watching { home, clients } = &self.pushes.watching;
        !home.inbox.is_empty()
            || !home.behind.is_empty()
            || !clients.behind.is_empty()
            || !clients.retries.is_empty()
    }

    /// Notes whether clients of other shards watch or track something here.
    pub(super) fn note_others(&mut self) {
        self.pushes.serves_others = self.pushes.watching.home.serves_others(self.others.me())
            || self.pushes.tracks_for_others();
    }

    /// Posts what a client of another shard is answered, and behind it what has happened meanwhile (A3).
    #[inline]
    pub(super) fn post_news(&mut self, work: &mut Turn<'_>) {
        if self.pushes.serves_others && work.connection.is_remote() {
            let write = self.durable_writes().last;
            self.others.post_replies(work.connection, write);
            self.tell_watchers(work);
            self.post_copies();
        }
    }

    /// Whether something has happened that is to be told behind what a client of another shard was answered so far, and
    /// before it is answered more.
    pub(super) fn has_news_behind_answers(&mut self, work: &mut Turn<'_>) -> bool {
        if !work.connection.is_remote() {
            return false;
        }
        self.hear();
        if !self.has_changed_remotely(work) && self.pushes.watching.home.inbox.is_empty() {
            return false;
        }
        if work.out.is_empty() && work.held.is_empty() {
            self.tell_watchers(work);
            self.post_copies();
            return false;
        }
        true
    }

    /// Takes what the engine has to tell, for those whom it concerns: watches, and clients that track keys.
    #[inline]
    pub(super) fn hear(&mut self) {
        let engine = self.node.engine_mut();
        engine.keep_followed();
        if engine.has_notifications() {
            self.take_notifications();
        }
    }

    #[cold]
    fn take_notifications(&mut self) {
        let engine = self.node.engine_mut();
        let told = match &mut self.others.shards {
            None => engine.take_notifications(),
            Some(shards) => {
                let mut told = Vec::new();
                shards.peers.hear(engine, &mut told);
                told
            }
        };
        self.sort_told(told);
    }

    /// Gives what the engine has told to those whom it concerns.
    pub(super) fn sort_told(&mut self, all: Vec<Notification>) {
        for told in all {
            // Followers are in order, and tracking's are the last ones; other shards have been told.
            let others = told.followers.partition_point(|follower| *follower < RANGES);
            let (others, tracking) = told.followers.split_at(others);
            if !tracking.is_empty() {
                self.pushes.tracking.hear(&told.what);
            }
            if tracking.contains(&RANGES)
                && let NotifiedChange::Reset { range } = &told.what
            {
                self.pushes.tracking.lose_range(range);
            }
            if others.last().is_some_and(|last| *last >= HISTORY) {
                self.pushes.watching.home.inbox.push(told);
            } else if let NotifiedChange::Set { value, .. } = told.what {
                self.node.engine_mut().release(value);
            }
        }
    }

    #[cold]
    fn tell(&mut self, outputs: &mut Outputs<'_>) {
        for _ in 0..ROUNDS {
            for told in core::mem::take(&mut self.pushes.watching.home.inbox) {
                let home = &mut self.pushes.watching.home;
                home.number += 1;
                match told.what {
                    NotifiedChange::Set { key, value } => {
                        let place = home.begin_change(&key, true);
                        let held = self.node.engine().held(value);
                        held.parts().for_each(|part| home.change.extend_from_slice(part));
                        self.node.engine_mut().release(value);
                        self.pass_on(&told.followers, place, outputs);
                    }
                    NotifiedChange::Gone { key } => {
                        let place = home.begin_change(&key, false);
                        self.pass_on(&told.followers, place, outputs);
                    }
                    NotifiedChange::Reset { range } => self.lose(&told.followers, &range),
                }
            }
            self.follow_again();
            for (home, asked) in self.pushes.watching.clients.due(self.time.uptime) {
                self.note_to(home, Note::Begin(asked));
            }
            self.pushes.watching.clients.catch_up(outputs);
            self.hear();
            if self.pushes.watching.home.inbox.is_empty() {
                return;
            }
        }
    }
}

impl Pushes {
    /// What a watch is of.
    pub(super) fn watched_range(&self, id: u32) -> Option<&KeyRange> {
        let clients = &self.watching.clients;
        Some(&clients.feeds.get(&clients.watches.get(&id)?.feed)?.range)
    }

    /// Has the clients answered whose watches have begun.
    pub(in crate::resp) fn wake_watchers(&mut self, connections: &mut Connections<Session>) {
        for id in self.watching.clients.take_ready() {
            connections.wake(id);
        }
    }
}

impl OtherShards {
    /// Which shard this is.
    pub(crate) fn me(&self) -> Shard {
        self.shards.as_ref().map_or(Shard(0), |shards| shards.me)
    }
}

fn forget_watch(session: &mut Session, watch: u32, bytes: usize) {
    session.watches.retain(|&other| other != watch);
    session.watch_bytes = session.watch_bytes.saturating_sub(bytes);
}
