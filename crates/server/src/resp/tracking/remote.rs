//! Copies that clients of other shards keep of this shard's keys, and those that clients of this shard keep of others'.
//!
//! A client's requests that other shards execute say whether it keeps copies of what they read ([`Copies`]). The home remembers
//! each key for the client's shard, and tells that shard which client has read it; when the key changes it tells the
//! shard so, once. Both go in one order, so that the shard never takes a copy for an old one's news.

use super::reach::{Message, Reach, hears};
use super::{Copy, Note, ShardService, Tracking};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::resp::parts::OtherShards;
use crate::resp::parts::Pushes;
use crate::resp::session::{Origin, Session, Waiting};
use crate::resp::{Flow, Turn};
use crate::service::Service as _;
use crate::shards::ShardMessage;
use headwater_base::Shard;
use headwater_base::wire::WireReader;
use headwater_command::{Args, OwnedArgs, Spec, Tracking as Asked};
use headwater_router::Copies;

impl Tracking {
    pub(super) fn out(&mut self, to: Shard) -> &mut Vec<u8> {
        let at = match self.outbox.iter().position(|(shard, _)| *shard == to) {
            Some(at) => at,
            None => {
                self.outbox.push((to, Vec::new()));
                self.outbox.len() - 1
            }
        };
        &mut self.outbox[at].1
    }

    /// Tells the shards that have copies of a key, or prefixes of it, that it has changed.
    pub(super) fn tell_shards(
        &mut self,
        key: &[u8],
        copies: Option<Vec<Shard>>,
        writer: Option<Origin>,
    ) {
        if self.shards.is_empty() {
            return;
        }
        let mut told = core::mem::take(&mut self.told);
        told.extend(copies.into_iter().flatten());
        self.prefixes.shards_of(key, &mut told);
        told.sort_unstable();
        told.dedup();
        for &to in &told {
            let writer = writer.filter(|writer| writer.shard == to).map(|writer| writer.session);
            Copy::Changed(writer, key).write(self.out(to));
            self.has_news = true;
        }
        told.clear();
        self.told = told;
    }

    /// Tells the shards that have copies or prefixes that any key may have changed.
    pub(super) fn tell_all_shards(&mut self) {
        let mut told: Vec<Shard> =
            self.homed.iter().flat_map(|entry| entry.clients.iter().copied()).collect();
        self.prefixes.shards(&mut told);
        told.sort_unstable();
        told.dedup();
        for to in told {
            Copy::All.write(self.out(to));
            self.has_news = true;
        }
    }
}

impl ShardService {
    /// A request of a client of another shard has read keys.
    pub(super) fn remember_remote(
        &mut self,
        origin: Origin,
        spec: &'static Spec,
        args: Args<'_>,
        work: &Turn<'_>,
    ) {
        let copies = work.connection.session.copies;
        if copies == Copies::None {
            return;
        }
        let is_own = origin.shard == self.others.me();
        let engine = self.node.engine_mut();
        for key in spec.keys.positions(args.len()).filter_map(|at| args.get(at)) {
            if copies == Copies::Broadcast {
                self.pushes.tracking.remember(key, None, work.peers, engine);
                continue;
            }
            if is_own {
                // A part of what several shards do for a client of this one. By message it would come behind what that client reads
                // and writes here meanwhile.
                self.pushes.tracking.remember(key, Some(origin.session), work.peers, engine);
                continue;
            }
            self.pushes.tracking.homed.add(key, Some(origin.shard), |_| false);
            Copy::Read(origin.session, key).write(self.pushes.tracking.out(origin.shard));
            let is_given = engine.is_given(key);
            self.pushes.tracking.follow(key, is_given, engine);
        }
        if copies == Copies::Broadcast {
            self.remember_range(spec, args);
        }
    }

    /// Clients of another shard keep copies from now on.
    #[cold]
    pub(in crate::resp) fn track_for(&mut self, shard: Shard) {
        if self.pushes.tracking.shards.insert(shard) {
            self.node.engine_mut().list_changes(true);
            self.note_others();
        }
    }

    /// Whether something has changed that is told behind the answers so far.
    pub(in crate::resp) fn has_changed_remotely(&mut self, work: &mut Turn<'_>) -> bool {
        if self.pushes.tracking.is_on() {
            self.tell_changes(None, work);
        }
        self.pushes.tracking.has_news
    }

    /// Posts what other shards are told of keys.
    pub(in crate::resp) fn post_copies(&mut self) {
        self.pushes.tracking.has_news = false;
        let write = self.durable_writes().last;
        let Some(shards) = &mut self.others.shards else { return };
        for (to, texts) in &mut self.pushes.tracking.outbox {
            if texts.is_empty() {
                continue;
            }
            let batch = shards.outbox.tell(*to, write).batch;
            batch.bytes.append(texts);
            texts.shrink_to(64 << 10);
            batch.messages.push(ShardMessage::Copies { end: batch.bytes.len() });
        }
    }

    /// Tells all other shards which prefixes clients here have no more, and whether none of them tracks.
    pub(super) fn tell_unused(&mut self, prefixes: &[&[u8]]) {
        let is_off = self.pushes.tracking.clients.is_empty();
        let mut notes = Vec::new();
        for to in self.others.all() {
            let off = |prefix: &&[u8]| (to, Note::Prefix { prefix: prefix.to_vec(), on: false });
            notes.extend(prefixes.iter().map(off));
            notes.extend(is_off.then_some((to, Note::Off)));
        }
        self.others.post_tracking(notes);
    }

    /// Takes what another shard tells of keys.
    pub(in crate::resp) fn take_copies(
        &mut self,
        from: Shard,
        bytes: &[u8],
        connections: &mut Connections<Session>,
    ) {
        let mut bytes = WireReader::of(bytes);
        let most = self.push_bytes_max();
        let home = Some(from);
        let notes = Vec::new();
        let mut reach = Reach { peers: connections, current: None, most, home, notes };
        while let Some(copy) = Copy::read(&mut bytes) {
            match copy {
                Copy::Read(id, key) => {
                    let tracks = reach.session(id).and_then(|session| session.tracking.as_deref());
                    if tracks.is_some_and(|tracks| !tracks.broadcast) {
                        let peers = &*reach.peers;
                        self.pushes.tracking.table.add(key, Some(id), |id| peers.get(id).is_none());
                    }
                }
                Copy::Changed(writer, key) => {
                    self.pushes.tracking.copy_changed(key, writer, &mut reach)
                }
                Copy::All => {
                    self.pushes.tracking.table.clear();
                    self.pushes.tracking.tell_all(&mut reach);
                }
            }
        }
        let notes = reach.notes;
        self.others.post_tracking(notes);
    }

    /// Takes what another shard writes about tracking.
    pub(in crate::resp) fn take_tracking_note(
        &mut self,
        from: Shard,
        note: Note,
        connections: &mut Connections<Session>,
    ) {
        match note {
            Note::Prefix { prefix, on: true } => {
                self.track_for(from);
                self.pushes.tracking.prefixes.add_shard(&prefix, from);
            }
            Note::Prefix { prefix, on: false } => {
                self.pushes.tracking.prefixes.remove_shard(&prefix, from);
                self.unfollow_ranges(&[&prefix]);
            }
            Note::Off => {
                self.pushes.tracking.shards.remove(&from);
                self.pushes.tracking.stop_if_off();
                self.stop_tracking();
                self.note_others();
            }
            Note::Find { session, number } => {
                let found = connections
                    .iter()
                    .find(|it| it.id.number == number && !it.is_remote())
                    .map(|it| it.id);
                self.others.post_tracking(vec![(from, Note::Found { session, number, id: found })]);
            }
            Note::Found { session, number, id } => {
                if connections.get(session).is_some() {
                    self.pushes.tracking.found.insert(session, (number, id));
                    connections.wake(session);
                }
            }
            Note::Tell { session, to, keys } => match connections.get(to) {
                Some(target) => {
                    if hears(&target.session) {
                        let message = match &keys {
                            Some(keys) => Message::of(keys.iter().map(Vec::as_slice).collect()),
                            None => Message::all(),
                        };
                        let bytes = message.bytes(target.session.version);
                        connections.tell(to, None, bytes, self.push_bytes_max());
                    }
                }
                None => {
                    let note = Note::Untold { session, number: to.number };
                    self.others.post_tracking(vec![(from, note)]);
                }
            },
            Note::Untold { session, number } => {
                let most = self.push_bytes_max();
                let notes = Vec::new();
                let mut reach =
                    Reach { peers: connections, current: None, most, home: None, notes };
                self.pushes.tracking.tell_broken(session, number, &mut reach);
            }
        }
    }

    /// There is no connection to another shard any more: its clients have no copies of keys of this one, and of copies that clients here
    /// keep nobody knows whether they are still right.
    pub(in crate::resp) fn lose_copies(
        &mut self,
        with: Shard,
        connections: &mut Connections<Session>,
    ) {
        let tracking = &mut self.pushes.tracking;
        if tracking.shards.contains(&with) {
            for key in tracking.homed.forget(with) {
                tracking.forget(&key);
            }
            tracking.outbox.retain(|(to, _)| *to != with);
            for prefix in tracking.prefixes.of_shard(with) {
                self.take_tracking_note(with, Note::Prefix { prefix, on: false }, connections);
            }
            self.take_tracking_note(with, Note::Off, connections);
        }
        if !self.pushes.tracking.clients.is_empty() {
            let mut all = Vec::new();
            Copy::All.write(&mut all);
            self.take_copies(with, &all, connections);
        }
    }

    /// There is a connection to another shard again: it is told of the prefixes that clients here have.
    pub(in crate::resp) fn find_copies(&mut self, with: Shard) {
        let prefixes = self.pushes.tracking.prefixes.own().into_iter();
        let notes = prefixes.map(|prefix| (with, Note::Prefix { prefix, on: true })).collect();
        self.others.post_tracking(notes);
    }

    /// Looks for the client that is to be told instead of one, where it is another shard's. `None`: it was looked for, or is
    /// none of theirs.
    pub(in crate::resp) fn find_redirect(
        &mut self,
        asked: &Asked<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let number = u64::try_from(asked.redirect?).ok()?;
        let at = self.others.shard_of_client(number).filter(|&at| at != self.others.me())?;
        if self.others.shards.as_ref()?.outbox.is_lost(at) {
            return None;
        }
        let id = work.connection.id;
        if self.pushes.tracking.found.get(&id).is_some_and(|(found, _)| *found == number) {
            return None;
        }
        self.others.post_tracking(vec![(at, Note::Find { session: id, number })]);
        let request = Waiting::Request(OwnedArgs::of(args));
        work.connection.session.waiting = Some(Box::new(request));
        Some(Flow::Parked)
    }

    /// Who has the client of this number, if there is one: see [`ShardService::find_redirect`].
    pub(super) fn redirect_to(
        &mut self,
        number: i64,
        work: &Turn<'_>,
    ) -> Option<(Shard, ConnectionId)> {
        let (me, own) = (self.others.me(), work.connection.id);
        let number = u64::try_from(number).ok()?;
        if let Some(at) = self.others.shard_of_client(number).filter(|&at| at != me) {
            let (found, id) = self.pushes.tracking.found.remove(&own)?;
            return Some((at, id.filter(|_| found == number)?));
        }
        let of_clients = work.peers.iter().filter(|connection| !connection.is_remote());
        let mut ids = of_clients.map(|connection| connection.id).chain([own]);
        ids.find(|id| id.number == number).map(|id| (me, id))
    }
}

impl Pushes {
    /// Whether clients of other shards track.
    pub(in crate::resp) fn tracks_for_others(&self) -> bool {
        !self.tracking.shards.is_empty()
    }
}

impl OtherShards {
    /// Posts notes about tracking.
    pub(super) fn post_tracking(&mut self, notes: Vec<(Shard, Note)>) {
        let Some(shards) = &mut self.shards else { return };
        for (to, note) in notes {
            shards.outbox.to(to).messages.push(ShardMessage::Tracking(Box::new(note)));
        }
    }

    /// Tells all other shards of a prefix that clients here have from now on.
    pub(super) fn tell_prefix(&mut self, prefix: &[u8]) {
        let note = |to| (to, Note::Prefix { prefix: prefix.to_vec(), on: true });
        let notes = self.all().map(note).collect();
        self.post_tracking(notes);
    }

    /// The shard of the client of this number.
    fn shard_of_client(&self, number: u64) -> Option<Shard> {
        let shards = u64::from(self.shards.as_ref()?.outbox.shards());
        Some(Shard((number.checked_sub(1)? % shards) as u16))
    }
}
