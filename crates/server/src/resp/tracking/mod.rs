//! CLIENT TRACKING: clients that keep copies of what they have read are told when it changes.
//!
//! Base keys are told as they are written, by whomever: the engine lists them. Keys that nobody writes (a join
//! maintains them, or a source) are followed from the read on, until they are told. What cannot be followed (a pull or snapshot
//! join gives it) is told at once: nobody keeps a copy of it.
//!
//! # Invariants
//! - K1. A key of which a tracking client may keep a copy is in `table`, or under one of the client's prefixes.
//! - K2. `clients` are those whose session tracks; while there is none, nothing is listed and nothing kept.
//! - K3. Between requests `own` and `unfollowed` are empty.
//! - K4. `followed` are the keys of `table` that are followed in the engine, by [`FOLLOWER`].
//!
//! # Cost
//! Where nobody tracks, a request looks at one flag. Else a written key costs a copy of its bytes and one look into
//! `table`; a key that is read costs one look, and a place of its own.

mod broadcast;
mod message;
mod options;
mod table;

use super::{Resp, Session, Turn};
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use broadcast::Prefixes;
use core::cell::OnceCell;
use headwater_base::KeyRange;
use headwater_base::key::before_end;
use headwater_command::{Args, Flags, Spec};
use headwater_engine::{ChangedKeys, Engine, Follower, ToldWhat};
use headwater_protocol::resp::Version;
pub(crate) use options::Tracks;
pub(super) use options::redirect_of;
use std::collections::BTreeSet;
use table::{Entry, Table};

/// What the table may take of clients' share of the memory bound.
const TABLE_SHARE: usize = 4;
/// All that is followed here is followed under this name.
pub(super) const FOLLOWER: Follower = Follower(u32::MAX);

/// Who keeps copies of what.
#[derive(Debug)]
pub(super) struct Tracking {
    /// The clients that track.
    clients: BTreeSet<ConnectionId>,
    table: Table,
    prefixes: Prefixes,
    followed: BTreeSet<Box<[u8]>>,
    /// Followed keys that have changed.
    heard: Vec<Heard>,
    /// Keys that were followed, and are in the table no more.
    unfollowed: Vec<Box<[u8]>>,
    /// Read just now, and not followed: the copies count no longer.
    at_once: Vec<Box<[u8]>>,
    /// Any key may have changed.
    all: bool,
    /// What the client being served is told, behind the answer under way.
    own: Vec<u8>,
    /// Room for the engine's list.
    changed: ChangedKeys,
}

/// What has become of what is followed.
#[derive(Debug)]
pub(super) enum Heard {
    /// A key has changed.
    Key(Box<[u8]>),
    /// The keys of a range are followed no more.
    Reset(KeyRange),
}

/// A message, encoded when somebody is to read it.
struct Message<'k> {
    /// The keys; `None`: all.
    keys: Option<Vec<&'k [u8]>>,
    encoded: [OnceCell<Vec<u8>>; 2],
}

impl<'k> Message<'k> {
    fn of(keys: Vec<&'k [u8]>) -> Self {
        Self { keys: Some(keys), encoded: Default::default() }
    }

    fn all() -> Self {
        Self { keys: None, encoded: Default::default() }
    }

    fn bytes(&self, version: Version) -> &[u8] {
        self.encoded[usize::from(version == Version::Resp3)].get_or_init(|| match &self.keys {
            Some(keys) => message::changed(version, keys.iter().copied()),
            None => message::all(version),
        })
    }
}

/// All clients, one of which may be under way.
struct Reach<'r> {
    peers: &'r mut Connections<Session>,
    current: Option<&'r mut Connection<Session>>,
    /// What may be unsent for one client, and for all.
    most: (usize, usize),
}

impl Reach<'_> {
    fn session(&mut self, id: ConnectionId) -> Option<&mut Session> {
        match &mut self.current {
            Some(current) if current.id == id => Some(&mut current.session),
            _ => self.peers.get_mut(id).map(|connection| &mut connection.session),
        }
    }

    /// Writes to a client; to the one under way into `own`.
    fn write(&mut self, id: ConnectionId, bytes: &[u8], own: &mut Vec<u8>) {
        if self.current.as_ref().is_some_and(|current| current.id == id) {
            own.extend_from_slice(bytes);
        } else {
            self.peers.deliver(id, bytes, self.most);
        }
    }
}

/// A request that has changed keys: what it says that it writes is its client's own doing.
#[derive(Clone, Copy)]
struct Writer<'a> {
    id: ConnectionId,
    spec: &'static Spec,
    args: Args<'a>,
}

impl Writer<'_> {
    fn wrote(&self, key: &[u8]) -> bool {
        let Self { spec, args, .. } = self;
        let mut positions = spec.keys.positions(args.len());
        spec.flags.has(Flags::WRITE) && positions.any(|at| args.get(at) == Some(key))
    }
}

impl Tracking {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            clients: BTreeSet::new(),
            table: Table::new(seed),
            prefixes: Prefixes::default(),
            followed: BTreeSet::new(),
            heard: Vec::new(),
            unfollowed: Vec::new(),
            at_once: Vec::new(),
            all: false,
            own: Vec::new(),
            changed: ChangedKeys::default(),
        }
    }

    /// Whether some client tracks.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Bytes that are taken.
    pub(super) fn bytes(&self) -> usize {
        self.table.bytes()
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
        // Written keys are told to those without being remembered.
        if client.is_none() && !is_given {
            return;
        }
        self.table.add(key, client, |id| peers.get(id).is_none());
        if is_given && !self.followed.contains(key) {
            if engine.follow(&KeyRange::point(key), FOLLOWER).is_ok() {
                self.followed.insert(key.into());
            } else {
                self.at_once.push(key.into());
            }
        }
    }

    /// Takes a key out of the table.
    fn forget(&mut self, entry: &Entry) {
        if let Some(key) = self.followed.take(&entry.key) {
            self.unfollowed.push(key);
        }
    }

    fn forget_all(&mut self) {
        self.table.clear();
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
            self.tell_all(reach);
        }
        self.tell_followed(reach);
        for key in changed.iter() {
            let writer = writer.filter(|writer| writer.wrote(key)).map(|writer| writer.id);
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
    fn tell_followed(&mut self, reach: &mut Reach<'_>) {
        for heard in core::mem::take(&mut self.heard) {
            match heard {
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
    pub(super) fn hear(&mut self, what: &ToldWhat) {
        self.heard.push(match what {
            ToldWhat::Set { key, .. } | ToldWhat::Gone { key } => Heard::Key(key.clone()),
            ToldWhat::Reset { range } => Heard::Reset(range.clone()),
        });
    }

    /// A key has changed, by a client's own doing or not.
    fn key_changed(&mut self, key: &[u8], writer: Option<ConnectionId>, reach: &mut Reach<'_>) {
        if let Some(entry) = self.table.take(key) {
            self.forget(&entry);
            self.tell_entry(&entry, writer, reach);
        }
        self.prefixes.note(key, writer);
    }

    fn tell_entry(&mut self, entry: &Entry, writer: Option<ConnectionId>, reach: &mut Reach<'_>) {
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

    /// Has all clients forget all copies.
    fn tell_all(&mut self, reach: &mut Reach<'_>) {
        self.forget_all();
        self.prefixes.forget_gathered();
        let message = Message::all();
        for id in self.clients.clone() {
            self.tell_client(id, &message, reach);
        }
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
        let Some(session) = reach.session(target) else {
            if let Some(tracks) = reach.session(id).and_then(|it| it.tracking.as_deref_mut()) {
                tracks.broken = true;
            }
            if version == Version::Resp3 {
                reach.write(id, &message::broken(target.number), &mut self.own);
            }
            return;
        };
        let listens = || {
            let subscriptions = session.subscriptions.as_ref();
            subscriptions.is_some_and(|to| to.channels.contains(message::CHANNEL))
        };
        let version = session.version;
        if version == Version::Resp3 || listens() {
            reach.write(target, message.bytes(version), &mut self.own);
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
        while (keys_max > 0 && self.table.len() > keys_max) || self.table.bytes() > bytes_max {
            let Some(entry) = self.table.take_any() else { return };
            self.forget(&entry);
            self.tell_entry(&entry, None, reach);
            // Those whom its prefixes concern would not hear of it any more.
            if entry.clients.is_empty() {
                self.prefixes.note(&entry.key, None);
            }
        }
    }

    /// A client tracks no more.
    fn leave(&mut self, id: ConnectionId, tracks: &Tracks) {
        tracks.prefixes.iter().for_each(|prefix| self.prefixes.remove(prefix, id));
        self.clients.remove(&id);
        if self.clients.is_empty() {
            self.forget_all();
            self.unfollowed.clear();
            self.at_once.clear();
            self.heard.clear();
            self.all = false;
        }
    }
}

impl Resp {
    /// A request was executed in whose time some client tracks.
    #[cold]
    pub(super) fn track(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        done: bool,
        work: &mut Turn<'_>,
    ) {
        let writer = Writer { id: work.connection.id, spec, args };
        self.tell_changes(Some(writer), work);
        if !done {
            return;
        }
        let reads = spec.flags.has(Flags::READONLY);
        let (id, executing) = (work.connection.id, self.executing_queue);
        let session = &mut work.connection.session;
        let in_transaction = executing || session.queue.is_some();
        let Some(tracks) = session.tracking.as_deref_mut() else { return };
        if reads && tracks.wants() {
            let client = (!tracks.broadcast).then_some(id);
            for at in spec.keys.positions(args.len()) {
                if let Some(key) = args.get(at) {
                    let engine = self.node.engine_mut();
                    self.tracking.remember(key, client, work.peers, engine);
                }
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
        if self.tracking.is_on() {
            self.tell_changes(None, work);
            self.tell_own(work);
        }
    }

    /// After a request: its client reads what has changed meanwhile behind the answer.
    #[inline]
    pub(super) fn tell_own(&mut self, work: &mut Turn<'_>) {
        if !self.tracking.own.is_empty() {
            work.out.append(&mut self.tracking.own);
        }
    }

    fn tell_changes(&mut self, writer: Option<Writer<'_>>, work: &mut Turn<'_>) {
        let current = Some(&mut *work.connection);
        let most = self.push_bytes_max();
        let mut reach = Reach { peers: work.peers, current, most };
        self.tell_reach(writer, &mut reach);
    }

    /// Between turns: tells of everything.
    pub(super) fn tell_trackers(&mut self, connections: &mut Connections<Session>) {
        if !self.tracking.is_on() {
            return;
        }
        let most = self.push_bytes_max();
        let mut reach = Reach { peers: connections, current: None, most };
        self.tell_reach(None, &mut reach);
        self.tracking.tell_prefixes(&mut reach);
    }

    fn tell_reach(&mut self, writer: Option<Writer<'_>>, reach: &mut Reach<'_>) {
        let keys_max = self.config.clients.tracking_table_keys_max;
        self.tracking.shrink(keys_max, self.clients_share / TABLE_SHARE, reach);
        self.hear();
        self.tracking.tell(self.node.engine_mut(), writer, reach);
    }

    fn push_bytes_max(&self) -> (usize, usize) {
        (self.lowered.clients.pubsub_output_bytes_max, self.clients_bytes_max)
    }

    /// What keys are is defined anew.
    pub(super) fn keys_redefined(&mut self) {
        self.tracking.all |= self.tracking.is_on();
    }

    /// A client has gone, or begins anew.
    pub(super) fn forget_tracking(&mut self, id: ConnectionId, session: &mut Session) {
        if let Some(tracks) = session.tracking.take() {
            self.tracking.leave(id, &tracks);
            if !self.tracking.is_on() {
                self.node.engine_mut().list_changes(false);
                self.node.engine_mut().unfollow_all(FOLLOWER);
            }
        }
    }
}
