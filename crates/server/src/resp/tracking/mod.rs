//! CLIENT TRACKING: clients that keep copies of what they have read are told when it changes.
//!
//! Base keys are told as they are written, by whomever: the engine lists them. Keys that nobody writes (a join
//! maintains them, or a source) are followed from the read on, until they are told. What cannot be followed (a pull or snapshot
//! join gives it) is told at once: nobody keeps a copy of it. Where a client that is told by prefixes reads a range, what joins
//! and sources give of it under any client's prefix is followed as a whole, until the server lets go of it (`ranges`).
//!
//! With several shards the home of a key remembers which shards have clients that have read it, and tells each of them once;
//! which clients those are, their shard knows (`remote`).
//!
//! # Invariants
//! - K1. A key of which a tracking client may keep a copy is in `table` of its shard and in `table` or `homed` of its home,
//!   or under one of the client's prefixes.
//! - K2. `clients` are those whose session tracks, and `shards` others that have such clients; while there are neither, nothing
//!   is listed and nothing kept.
//! - K3. Between requests `own` and `unfollowed` are empty.
//! - K4. `followed` are keys of `table` or `homed` that are followed in the engine, by [`FOLLOWER`].
//! - K5. What a shard is told of a key is in the order in which the key was read for it and has changed, and behind the
//!   answers that were given before.
//!
//! # Cost
//! Where nobody tracks, a request looks at one flag. Else a written key costs a copy of its bytes and one look into
//! `table`; a key that is read costs one look, and a place of its own.

mod broadcast;
mod message;
mod note;
mod options;
mod ranges;
mod reach;
mod remote;
mod table;

use super::session::{Across, Origin};
use super::{Session, ShardService, Turn};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::resp::parts::Pushes;
use crate::resp::parts::Waits;
use broadcast::Prefixes;
use headwater_base::hash::Secret;
use headwater_base::key::before_end;
use headwater_base::{KeyRange, Shard};
use headwater_command::{Args, Flags, Spec};
use headwater_engine::{ChangedKeys, Engine, Follower, NotifiedChange};
use headwater_protocol::resp::Version;
pub(super) use message::all as all_changed;
use note::Copy;
#[cfg(test)]
pub(crate) use note::copies_example;
pub(crate) use note::{Note, are_copies};
pub(crate) use options::Tracks;
pub(super) use options::redirect_of;
use reach::{Message, Reach, Writer, hears};
use std::collections::{BTreeSet, HashMap, HashSet};
use table::{Entry, Table};

/// What the table may take of clients' share of the memory bound.
const TABLE_SHARE: usize = 4;
/// All that is followed here is followed under this name.
pub(super) const FOLLOWER: Follower = Follower(u32::MAX);
/// Ranges that were read by clients who are told by prefixes are followed under this name.
pub(super) const RANGES: Follower = Follower::COPIES;

/// Who keeps copies of what.
#[derive(Debug)]
pub(super) struct Tracking {
    me: Shard,
    /// The clients that track.
    clients: BTreeSet<ConnectionId>,
    /// Other shards that have such clients.
    shards: BTreeSet<Shard>,
    /// Keys that clients of this shard have read.
    table: Table<ConnectionId>,
    /// Keys of this shard that clients of others have read, or clients who are told by prefixes.
    homed: Table<Shard>,
    prefixes: Prefixes,
    followed: BTreeSet<Box<[u8]>>,
    /// Followed keys that have changed.
    heard: Vec<Heard>,
    /// Keys that were followed, and are in the table no more.
    unfollowed: Vec<Box<[u8]>>,
    /// Read just now, and not followed: the copies count no longer.
    at_once: Vec<Box<[u8]>>,
    /// Of these ranges any key may have changed, for those who are told by prefixes.
    lost: Vec<KeyRange>,
    /// Any key may have changed.
    all: bool,
    /// What the client being served is told, behind the answer under way.
    own: Vec<u8>,
    /// Room for the engine's list.
    changed: ChangedKeys,
    /// What other shards are told: for each, texts of [`Copy`].
    outbox: Vec<(Shard, Vec<u8>)>,
    /// Something is in there that goes behind the answers so far.
    has_news: bool,
    /// Room for a list of shards.
    told: Vec<Shard>,
    /// Clients of other shards that were found, or not, for those of this one that want to have them told.
    found: HashMap<ConnectionId, (u64, Option<ConnectionId>)>,
}

/// What has become of what is followed.
#[derive(Debug)]
pub(super) enum Heard {
    /// A key has changed.
    Key(Box<[u8]>),
    /// The keys of a range are followed no more.
    Reset(KeyRange),
}

impl Tracking {
    pub(super) fn new(secret: Secret, me: Shard) -> Self {
        Self {
            me,
            clients: BTreeSet::new(),
            shards: BTreeSet::new(),
            table: Table::new(secret),
            homed: Table::new(secret),
            prefixes: Prefixes::default(),
            followed: BTreeSet::new(),
            heard: Vec::new(),
            unfollowed: Vec::new(),
            at_once: Vec::new(),
            lost: Vec::new(),
            all: false,
            own: Vec::new(),
            changed: ChangedKeys::default(),
            outbox: Vec::new(),
            has_news: false,
            told: Vec::new(),
            found: HashMap::new(),
        }
    }

    /// Whether some client tracks.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.clients.is_empty() || !self.shards.is_empty()
    }

    /// Bytes that are taken.
    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.homed.bytes()
    }

    /// Clients; keys, copies of them, and prefixes.
    pub(super) fn counts(&self) -> [usize; 4] {
        [self.clients.len(), self.table.len(), self.table.copies(), self.prefixes.len()]
    }

    /// A key was read. `client` is told; without one, those are whom its prefixes concern.
    fn remember(
        &mut self,
        key: &[u8],
        client: Option<ConnectionId>,
        peers: &Connections<Session>,
        engine: &mut Engine,
    ) {
        let is_given = engine.is_given(key);
        match client {
            Some(_) => self.table.add(key, client, |id| peers.get(id).is_none()),
            // Written keys are told to those without being remembered.
            None if is_given => self.homed.add(key, None, |_| false),
            None => return,
        }
        self.follow(key, is_given, engine);
    }

    /// Has what nobody writes followed, from the first read on.
    fn follow(&mut self, key: &[u8], is_given: bool, engine: &mut Engine) {
        if is_given && !self.followed.contains(key) {
            if engine.follow(&KeyRange::point(key), FOLLOWER).is_ok() {
                self.followed.insert(key.into());
            } else {
                self.at_once.push(key.into());
            }
        }
    }

    /// A key was taken out of one of the tables.
    fn forget(&mut self, key: &[u8]) {
        if !self.followed.is_empty()
            && !self.table.has(key)
            && !self.homed.has(key)
            && let Some(key) = self.followed.take(key)
        {
            self.unfollowed.push(key);
        }
    }

    fn forget_all(&mut self) {
        self.table.clear();
        self.homed.clear();
        self.unfollowed.extend(core::mem::take(&mut self.followed));
    }

    /// Tells of all that has changed. `writer` is the request under way.
    fn tell(&mut self, engine: &mut Engine, writer: Option<Writer<'_>>, reach: &mut Reach<'_>) {
        let mut changed = core::mem::take(&mut self.changed);
        if engine.has_changed() {
            engine.take_changed(&mut changed);
            self.all |= changed.all();
        }
        // Who is told that nothing counts need not be told of each key.
        if core::mem::take(&mut self.all) {
            self.tell_all_shards();
            self.forget_all();
            self.heard.clear();
            self.lost.clear();
            engine.unfollow_all(RANGES);
            self.tell_all(reach);
        }
        self.tell_followed(&changed, reach);
        for key in changed.iter() {
            // What is applied here of others' keys is told by their homes.
            if !engine.owns(key) {
                continue;
            }
            let writer = writer.filter(|writer| writer.wrote(key)).map(|writer| writer.origin);
            self.key_changed(key, writer, reach);
        }
        changed.clear();
        self.changed = changed;
        for key in core::mem::take(&mut self.at_once) {
            self.key_changed(&key, None, reach);
        }
        for key in core::mem::take(&mut self.unfollowed) {
            engine.unfollow(&KeyRange::point(&key), FOLLOWER);
        }
    }

    /// Tells of followed keys. A client's own doing they are not, even where they come of what it wrote.
    fn tell_followed(&mut self, written: &ChangedKeys, reach: &mut Reach<'_>) {
        if self.heard.is_empty() && self.lost.is_empty() {
            return;
        }
        // Keys between a join's outputs are written; whose doing that was is known.
        let written: HashSet<&[u8]> = written.iter().collect();
        self.tell_lost();
        for heard in core::mem::take(&mut self.heard) {
            match heard {
                Heard::Key(key) if written.contains(&*key) => {}
                Heard::Key(key) => self.key_changed(&key, None, reach),
                Heard::Reset(range) => {
                    let from = self.followed.range(range.first.into_boxed_slice()..);
                    let within = from.take_while(|key| before_end(key, &range.last));
                    for key in within.cloned().collect::<Vec<_>>() {
                        self.key_changed(&key, None, reach);
                    }
                }
            }
        }
    }

    /// What the engine has told of a followed key.
    pub(super) fn hear(&mut self, what: &NotifiedChange) {
        self.heard.push(match what {
            NotifiedChange::Set { key, .. } | NotifiedChange::Gone { key } => {
                Heard::Key(key.clone())
            }
            NotifiedChange::Reset { range } => Heard::Reset(range.clone()),
        });
    }

    /// A key of this shard has changed, by a client's own doing or not.
    fn key_changed(&mut self, key: &[u8], writer: Option<Origin>, reach: &mut Reach<'_>) {
        let homed = if self.homed.len() > 0 { self.homed.take(key) } else { None };
        self.tell_shards(key, homed.map(|entry| entry.clients), writer);
        let me = self.me;
        let own = writer.filter(|writer| writer.shard == me).map(|writer| writer.session);
        self.copy_changed(key, own, reach);
        self.forget(key);
    }

    /// Copies of a key that clients of this shard keep count no longer.
    fn copy_changed(&mut self, key: &[u8], writer: Option<ConnectionId>, reach: &mut Reach<'_>) {
        if let Some(entry) = self.table.take(key) {
            self.tell_entry(&entry, writer, reach);
        }
        self.prefixes.note(key, writer);
    }

    fn tell_entry(
        &mut self,
        entry: &Entry<ConnectionId>,
        writer: Option<ConnectionId>,
        reach: &mut Reach<'_>,
    ) {
        let message = Message::of(vec![&entry.key]);
        for &id in &entry.clients {
            // It may have begun anew, with prefixes.
            let tracks = reach.session(id).and_then(|session| session.tracking.as_deref());
            let own = writer == Some(id);
            if tracks.is_some_and(|tracks| !(tracks.broadcast || (tracks.no_loop && own))) {
                self.tell_client(id, &message, reach);
            }
        }
    }

    /// Has all clients of this shard forget all copies.
    fn tell_all(&mut self, reach: &mut Reach<'_>) {
        self.prefixes.forget_gathered();
        let message = Message::all();
        // Nothing is remembered of what any shard has answered so far: it goes behind all of that.
        let home = reach.home.take();
        for id in self.clients.clone() {
            self.tell_client(id, &message, reach);
        }
        reach.home = home;
    }

    fn tell_client(&mut self, id: ConnectionId, message: &Message<'_>, reach: &mut Reach<'_>) {
        let Some(session) = reach.session(id) else { return };
        let version = session.version;
        let Some(tracks) = session.tracking.as_deref_mut() else { return };
        let Some(target) = tracks.redirect else {
            if version == Version::Resp3 {
                reach.write(id, message.bytes(version), &mut self.own);
            }
            return;
        };
        let (shard, target) = target;
        if shard != self.me {
            let keys = message.keys.as_ref();
            let keys = keys.map(|keys| keys.iter().map(|key| key.to_vec()).collect());
            reach.notes.push((shard, Note::Tell { session: id, to: target, keys }));
            return;
        }
        let Some(session) = reach.session(target) else {
            self.tell_broken(id, target.number, reach);
            return;
        };
        let version = session.version;
        if hears(session) {
            reach.write(target, message.bytes(version), &mut self.own);
        }
    }

    /// Who should be told instead of a client is gone.
    fn tell_broken(&mut self, id: ConnectionId, number: u64, reach: &mut Reach<'_>) {
        let Some(session) = reach.session(id) else { return };
        let version = session.version;
        let Some(tracks) = session.tracking.as_deref_mut() else { return };
        tracks.broken = true;
        if version == Version::Resp3 {
            reach.write(id, &message::broken(number), &mut self.own);
        }
    }

    /// Tells what was gathered under prefixes.
    fn tell_prefixes(&mut self, reach: &mut Reach<'_>) {
        let mut prefixes = core::mem::take(&mut self.prefixes);
        prefixes.take(|gathered| {
            let all = if gathered.all {
                Message::all()
            } else {
                Message::of(gathered.changed.keys().map(|key| &**key).collect())
            };
            for &id in &gathered.clients {
                let tracks = reach.session(id).and_then(|session| session.tracking.as_deref());
                if gathered.all || !tracks.is_some_and(|tracks| tracks.no_loop) {
                    self.tell_client(id, &all, reach);
                    continue;
                }
                let others = gathered.changed.iter().filter(|(_, writer)| **writer != Some(id));
                let keys: Vec<&[u8]> = others.map(|(key, _)| &**key).collect();
                if !keys.is_empty() {
                    self.tell_client(id, &Message::of(keys), reach);
                }
            }
        });
        self.prefixes = prefixes;
    }

    /// Makes room: the copies of some keys count no longer.
    fn shrink(&mut self, keys_max: usize, bytes_max: usize, reach: &mut Reach<'_>) {
        while (keys_max > 0 && self.table.len() + self.homed.len() > keys_max)
            || self.bytes() > bytes_max
        {
            if self.homed.len() > self.table.len() {
                let Some(entry) = self.homed.take_any() else { return };
                // Those whom its prefixes concern would not hear of it any more.
                self.tell_shards(&entry.key, Some(entry.clients), None);
                self.prefixes.note(&entry.key, None);
                self.forget(&entry.key);
            } else {
                let Some(entry) = self.table.take_any() else { return };
                self.forget(&entry.key);
                self.tell_entry(&entry, None, reach);
            }
        }
    }

    /// A client tracks no more; the prefixes that none here has any more.
    fn leave<'t>(&mut self, id: ConnectionId, tracks: &'t Tracks) -> Vec<&'t [u8]> {
        let its = tracks.prefixes.iter().map(Vec::as_slice);
        let unused = its.filter(|prefix| self.prefixes.remove(prefix, id)).collect();
        self.clients.remove(&id);
        self.stop_if_off();
        unused
    }

    /// Nothing is kept where nobody tracks.
    fn stop_if_off(&mut self) {
        if self.clients.is_empty() {
            self.table.clear();
            self.at_once.retain(|key| self.homed.has(key));
        }
        if !self.is_on() {
            self.forget_all();
            self.unfollowed.clear();
            self.at_once.clear();
            self.heard.clear();
            self.lost.clear();
            self.all = false;
        }
    }
}

impl ShardService {
    /// A request was executed in whose time some client tracks.
    #[cold]
    pub(super) fn track(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        done: bool,
        work: &mut Turn<'_>,
    ) {
        let origin = match work.connection.session.across {
            Across::Remote(ref remote) => remote.origin,
            Across::Nothing | Across::Client(_) => {
                Origin { shard: self.others.me(), session: work.connection.id }
            }
        };
        self.tell_changes(Some(Writer { origin, spec, args }), work);
        if !done {
            return;
        }
        let reads = spec.flags.has(Flags::READONLY);
        if work.connection.is_remote() {
            if reads {
                self.remember_remote(origin, spec, args, work);
                self.tell_changes(None, work);
            }
            return;
        }
        let (id, executing) = (work.connection.id, self.waits.executing_queue);
        let session = &mut work.connection.session;
        let in_transaction = executing || session.queue.is_some();
        let Some(tracks) = session.tracking.as_deref_mut() else { return };
        if reads && tracks.wants() {
            let client = (!tracks.broadcast).then_some(id);
            for at in spec.keys.positions(args.len()) {
                if let Some(key) = args.get(at) {
                    let engine = self.node.engine_mut();
                    self.pushes.tracking.remember(key, client, work.peers, engine);
                }
            }
            if client.is_none() {
                self.remember_range(spec, args);
            }
        }
        // CLIENT CACHING is about the next command, or the next transaction as a whole.
        if !in_transaction && !spec.full_name.starts_with("client|") {
            tracks.caching = false;
        }
        self.tell_changes(None, work);
    }

    /// Before a request: what has changed is nobody's doing who is connected.
    #[inline]
    pub(super) fn before_request(&mut self, work: &mut Turn<'_>) {
        if self.pushes.tracking.is_on() {
            self.tell_changes(None, work);
            self.pushes.tell_own(work);
        }
    }

    fn tell_changes(&mut self, writer: Option<Writer<'_>>, work: &mut Turn<'_>) {
        let current = Some(&mut *work.connection);
        let most = self.push_bytes_max();
        let home = Some(self.pushes.tracking.me);
        let mut reach = Reach { peers: work.peers, current, most, home, notes: Vec::new() };
        self.tell_reach(writer, &mut reach);
        let notes = reach.notes;
        self.others.post_tracking(notes);
    }

    /// Between turns: tells of everything.
    pub(super) fn tell_trackers(&mut self, connections: &mut Connections<Session>) {
        if !self.pushes.tracking.is_on() {
            return;
        }
        let most = self.push_bytes_max();
        let home = Some(self.pushes.tracking.me);
        let mut reach = Reach { peers: connections, current: None, most, home, notes: Vec::new() };
        self.tell_reach(None, &mut reach);
        reach.home = None;
        self.pushes.tracking.tell_prefixes(&mut reach);
        let notes = reach.notes;
        self.others.post_tracking(notes);
        self.post_copies();
    }

    fn tell_reach(&mut self, writer: Option<Writer<'_>>, reach: &mut Reach<'_>) {
        let keys_max = self.settings.config.clients.tracking_table_keys_max;
        self.pushes.tracking.shrink(keys_max, self.bound.clients_share / TABLE_SHARE, reach);
        self.hear();
        self.pushes.tracking.tell(self.node.engine_mut(), writer, reach);
    }

    fn push_bytes_max(&self) -> (usize, usize) {
        (self.settings.lowered.clients.pubsub_output_bytes_max, self.bound.clients_bytes_max)
    }

    /// A client has gone, or begins anew.
    pub(super) fn forget_tracking(&mut self, id: ConnectionId, session: &mut Session) {
        self.pushes.tracking.found.remove(&id);
        if let Some(tracks) = session.tracking.take() {
            let unused = self.pushes.tracking.leave(id, &tracks);
            self.tell_unused(&unused);
            self.unfollow_ranges(&unused);
            self.stop_tracking();
        }
    }

    /// Ends what is done for tracking while nobody tracks.
    fn stop_tracking(&mut self) {
        if !self.pushes.tracking.is_on() {
            self.node.engine_mut().list_changes(false);
            self.node.engine_mut().unfollow_all(FOLLOWER);
            self.node.engine_mut().unfollow_all(RANGES);
        }
    }
}

impl Waits {
    /// A request was sent to other shards, or refused before it was executed: CLIENT CACHING was about it. `spec`: of what command it
    /// is, if of any.
    pub(super) fn end_caching(&mut self, spec: Option<&Spec>, session: &mut Session) {
        let waits = session.waiting.is_some() || session.queue.is_some() || self.executing_queue;
        if let Some(tracks) = session.tracking.as_deref_mut()
            && !waits
            && !spec.is_some_and(|spec| spec.full_name.starts_with("client|"))
        {
            tracks.caching = false;
        }
    }
}

impl Pushes {
    /// After a request: its client reads what has changed meanwhile behind the answer.
    #[inline]
    pub(super) fn tell_own(&mut self, work: &mut Turn<'_>) {
        if !self.tracking.own.is_empty() {
            if work.connection.session.put_behind(None, &[&self.tracking.own]) {
                self.tracking.own.clear();
            } else {
                work.out.append(&mut self.tracking.own);
            }
        }
    }

    /// What keys are is defined anew.
    pub(in crate::resp) fn keys_redefined(&mut self) {
        self.tracking.all |= self.tracking.is_on();
    }
}
