//! Messages of other shards: requests to execute, replies, and what the engines have to say to one another.

use super::form::ClientForm;
use super::redoing::REDO;
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::log::event;
use crate::resp::parts::OtherShards;
use crate::resp::session::{Across, Origin, RemoteSession, Session};
use crate::resp::{Form, ShardService, Turn};
use crate::service::DurableWrites;
use crate::shards::{DEFERRED_FOR, MessageBatch, ShardMessage};
use headwater_base::Shard;
use headwater_base::source::Position;
use headwater_node::Packet;
use headwater_protocol::resp::find;
use headwater_router::{Ask, AskHeader, Frames, Kind};

impl ShardService {
    /// Takes the messages that have come.
    pub(crate) fn take_messages(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.others.shards else { return };
        shards.outbox.lines.turn(self.time.uptime);
        let batches = shards.outbox.take();
        shards.outbox.set_clients(connections.open());
        // What others tell may be newer than a change of rights, which is known here before it is passed on.
        self.renew_rights_of_all(connections);
        for batch in batches {
            self.bound.gauge.take_over(|| batch.memory());
            self.take_batch(batch, connections);
        }
        self.look_at_lost(connections);
    }

    fn take_batch(&mut self, batch: MessageBatch, connections: &mut Connections<Session>) {
        let MessageBatch { from, bytes, messages, .. } = batch;
        let mut begin = 0;
        for message in messages {
            match message {
                ShardMessage::Asks { session, end } => {
                    let origin = Origin { shard: from, session };
                    self.take_asks(origin, &bytes[begin..end], connections);
                    begin = end;
                }
                ShardMessage::HandedOn { origin, end } => {
                    self.take_asks(origin, &bytes[begin..end], connections);
                    begin = end;
                }
                ShardMessage::HandedTo { session, id, home } => {
                    note_handed_on((session, id), home, connections);
                }
                ShardMessage::Answers { session, end } => {
                    self.take_answers(from, session, &bytes[begin..end], connections);
                    begin = end;
                }
                ShardMessage::Watching(note) => self.take_note(from, *note, connections),
                ShardMessage::Changes { end } => {
                    self.take_changes(from, &bytes[begin..end], connections);
                    begin = end;
                }
                ShardMessage::Tracking(note) => self.take_tracking_note(from, *note, connections),
                ShardMessage::Copies { end } => {
                    self.take_copies(from, &bytes[begin..end], connections);
                    begin = end;
                }
                ShardMessage::Defined { digest } => self.hear_definitions(from, digest),
                ShardMessage::AskDefinitions => self.send_definitions(from),
                ShardMessage::Definitions { end } => {
                    self.take_definitions(from, &bytes[begin..end]);
                    begin = end;
                }
                ShardMessage::Packet(packet) => self.take_packet(from, *packet),
                ShardMessage::Gone { session } => {
                    let origin = Origin { shard: from, session };
                    let back = self
                        .others
                        .shards
                        .as_mut()
                        .and_then(|shards| shards.remote_sessions.remove(&origin));
                    if let Some(back) = back {
                        connections.kill(back);
                    }
                }
                ShardMessage::HungUp { session } => {
                    self.others.hang_up((from, session), connections);
                }
                ShardMessage::Broken { session } => connections.kill(session),
                ShardMessage::Client(arrival) => self.admission.new_clients.push(arrival),
                ShardMessage::Publish { name, end } => {
                    let (channel, message) = bytes[begin..end].split_at(name);
                    self.publish_from_flow(channel, message, connections);
                    begin = end;
                }
                ShardMessage::Monitored { end } => {
                    self.show_noted(&bytes[begin..end], None, connections);
                    begin = end;
                }
                ShardMessage::Flow(message) => self.node.receive_remote(from, *message),
                ShardMessage::FindKeys { partition } => self.begin_survey(partition, from),
                ShardMessage::KeysFound => self.keys_found(),
                ShardMessage::Quiesce { number } => self.begin_quiescing(from, number),
                ShardMessage::Quiescent { number } => self.is_quiescent(from, number, connections),
                ShardMessage::Resume => self.end_quiescing(from),
                ShardMessage::MayQuiesce => self.begin_round(),
                ShardMessage::Move { partition, to } => {
                    self.move_with_all(from, partition, to, connections);
                }
                ShardMessage::BeginBackup => self.back_up_with_all(from, connections),
                ShardMessage::AskFigures => self.tell_figures(from, connections.open()),
                ShardMessage::Figures(figures) => self.figures.add_figures(figures),
                ShardMessage::Settings(pairs) => self.take_settings(&pairs),
                ShardMessage::Leaves => {
                    if let Some(shards) = &mut self.others.shards {
                        shards.let_leave(from, self.time.uptime);
                    }
                }
                ShardMessage::Left => {
                    if let Some(shards) = &mut self.others.shards {
                        shards.departures.hear_left(from);
                    }
                }
                ShardMessage::Stop => self.stopping = true,
                ShardMessage::Lost { heard } => {
                    self.lose_shard((from, heard), connections);
                }
                ShardMessage::Found => self.find_shard(from),
            }
        }
    }

    /// Loads and changes of another shard have come. Where they are not its own to tell they are dropped, and both begin anew.
    fn take_packet(&mut self, from: Shard, packet: Packet) {
        let Some(shards) = &mut self.others.shards else { return };
        if shards.outbox.are_apart() && !shards.peers.is_of_home(self.node.engine(), from, &packet)
        {
            shards.outbox.transport().count_refused();
            shards.peers.refuse(from);
            event!(
                warn,
                "shards",
                "foreign_keys",
                shard = from.0,
                "a shard has told of keys that are not its own: both begin anew"
            );
            return;
        }
        shards.peers.receive(from, packet);
    }

    /// Answers of another shard have come for a client of this one.
    fn take_answers(
        &mut self,
        from: Shard,
        session: ConnectionId,
        bytes: &[u8],
        connections: &mut Connections<Session>,
    ) {
        if session == REDO {
            return self.redo_answered(from, bytes);
        }
        let Some(connection) = connections.get_mut(session) else { return };
        let mut form = ClientForm::of(&connection.session);
        let Session { across: Across::Client(pending), positions, .. } = &mut connection.session
        else {
            return;
        };
        let mut frames = Frames::of(bytes);
        while let Some(frame) = frames.next_answer() {
            if pending.came((from, frame.id), frame.answer, frame.digests, &mut form) {
                positions.reach(from, Position(frame.position));
            } else if let Some(shards) = &self.others.shards {
                // One that nobody waits for is dropped.
                shards.outbox.transport().count_refused();
            }
        }
        self.answers_came(session, connections);
    }

    /// Answers have come for a client: it goes on where it waits for them, and is sent what is ready.
    pub(super) fn answers_came(
        &mut self,
        session: ConnectionId,
        connections: &mut Connections<Session>,
    ) {
        let Some(connection) = connections.get_mut(session) else { return };
        let Some(pending) = connection.session.pending() else { return };
        for (at, undo) in pending.take_undo() {
            let id = pending.expect(at, Kind::Write, true);
            if let Some(shards) = &mut self.others.shards
                && let Ok(spec) = find(undo.args())
            {
                let header = AskHeader { id, ..AskHeader::default() };
                shards.ask(at, session, &header, &Ask::Command(spec, undo.args()));
            }
        }
        let (is_ready, defers) = (pending.is_ready(), pending.defers() && !pending.noted);
        pending.noted |= defers;
        if pending.blocks && pending.is_done() {
            pending.blocks = false;
            connections.wake(session);
        }
        if is_ready {
            connections.touch(session);
        } else if defers && let Some(shards) = &mut self.others.shards {
            shards.deferred.push_back((session, self.time.uptime));
        }
    }

    /// Keeps answers that are ready until those that others have yet to give are there, for a while.
    #[inline]
    pub(in crate::resp) fn defer(&mut self, work: &mut Turn<'_>) {
        let Some(shards) = &mut self.others.shards else { return };
        let Some(pending) = work.connection.session.pending() else { return };
        if pending.is_done() || work.out.is_empty() || !work.held.is_empty() {
            return;
        }
        pending.defer(work.out);
        if pending.defers() && !pending.noted {
            pending.noted = true;
            shards.deferred.push_back((work.connection.id, self.time.uptime));
        }
    }

    /// Sends the answers that have waited for others for long enough.
    pub(in crate::resp) fn send_deferred(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.others.shards else { return };
        while let Some(&(id, since)) = shards.deferred.front()
            && since + DEFERRED_FOR <= self.time.uptime
        {
            shards.deferred.pop_front();
            let Some(connection) = connections.get_mut(id) else { continue };
            let Some(pending) = connection.session.pending() else { continue };
            pending.noted = false;
            if pending.defers() {
                pending.overdue = true;
                connections.touch(id);
            }
        }
    }

    /// Gives requests to the session that their client has here.
    fn take_asks(&mut self, origin: Origin, bytes: &[u8], connections: &mut Connections<Session>) {
        self.make_room_to_pass(bytes.len());
        let Some(shards) = &mut self.others.shards else { return };
        let known = shards.remote_sessions.get(&origin).copied();
        let id = known.filter(|&id| connections.get_mut(id).is_some()).unwrap_or_else(|| {
            let id = connections.next_id_of_remote();
            let remote = RemoteSession {
                origin,
                id: 0,
                wants_digests: false,
                partial: Vec::new(),
                record: None,
                part: None,
                lock_deadline: None,
                is_in_transaction: false,
                leaving: None,
            };
            let session = Session {
                authenticated: true,
                unrestricted: true,
                across: Across::Remote(Box::new(remote)),
                form: Form::Typed,
                ..Session::default()
            };
            let mut connection = Box::new(Connection::remote(id, session, self.time.uptime));
            connections.count(&mut connection, 0);
            connections.put(connection);
            shards.remote_sessions.insert(origin, id);
            id
        });
        if let Some(connection) = connections.get_mut(id) {
            connection.take_requests(bytes);
            connections.touch(id);
        }
    }
}

/// Another shard than the one that was asked answers a request of a session.
fn note_handed_on(
    (session, id): (ConnectionId, u64),
    home: Shard,
    connections: &mut Connections<Session>,
) {
    let connection = connections.get_mut(session);
    if let Some(pending) = connection.and_then(|it| it.session.pending()) {
        pending.handed_on(id, home);
    }
}

impl OtherShards {
    /// A client of another shard sends no more.
    fn hang_up(
        &self,
        (shard, session): (Shard, ConnectionId),
        connections: &mut Connections<Session>,
    ) {
        let shards = self.shards.as_ref();
        let back = shards.and_then(|it| it.remote_sessions.get(&Origin { shard, session }));
        if let Some(&back) = back
            && let Some(connection) = connections.get_mut(back)
        {
            connection.ended = true;
            connections.touch(back);
        }
    }

    /// A message for the channels of all other shards, from within a transaction.
    pub(in crate::resp) fn publish_elsewhere(&mut self, channel: &[u8], message: &[u8]) {
        let all = self.all();
        let Some(shards) = &mut self.shards else { return };
        for to in all {
            let batch = shards.outbox.to(to);
            batch.bytes.extend_from_slice(channel);
            batch.bytes.extend_from_slice(message);
            let end = batch.bytes.len();
            batch.messages.push(ShardMessage::Publish { name: channel.len(), end });
        }
    }

    /// Sends the answers to the requests of a client of another shard.
    /// `write`: the last write so far, which they may show.
    pub(in crate::resp) fn post_replies(
        &mut self,
        connection: &mut Connection<Session>,
        write: u64,
    ) {
        let Some(origin) = connection.session.remote().map(|remote| remote.origin) else { return };
        let Some(shards) = &mut self.shards else { return };
        let Some(answers) = connection.answers() else { return };
        if answers.is_empty() {
            return;
        }
        let batch = shards.outbox.tell(origin.shard, write).batch;
        batch.bytes.append(answers);
        answers.shrink_to(64 << 10);
        let end = batch.bytes.len();
        batch.messages.push(ShardMessage::Answers { session: origin.session, end });
    }

    /// A session has ended: what stands for it elsewhere is to end, or who has its client is told.
    /// `write`: as for [`OtherShards::post_replies`].
    pub(in crate::resp) fn part(&mut self, id: ConnectionId, session: &mut Session, write: u64) {
        let Some(shards) = &mut self.shards else { return };
        match core::mem::take(&mut session.across) {
            Across::Nothing => {}
            Across::Client(pending) => {
                for at in pending.used() {
                    shards.outbox.to(at).messages.push(ShardMessage::Gone { session: id });
                }
            }
            Across::Remote(remote) => {
                let origin = remote.origin;
                if shards.remote_sessions.get(&origin) == Some(&id) {
                    shards.remote_sessions.remove(&origin);
                    let message = ShardMessage::Broken { session: origin.session };
                    shards.outbox.tell(origin.shard, write).batch.messages.push(message);
                }
            }
        }
    }

    /// A client of another shard is not to be told what waits to be told to it: its connection is to end instead.
    #[cold]
    pub(in crate::resp) fn forget_replies(&mut self, connection: &mut Connection<Session>) {
        let Some(Origin { shard, session }) = connection.session.remote().map(|it| it.origin)
        else {
            return;
        };
        let Some(shards) = &mut self.shards else { return };
        shards.outbox.forget_answers((shard, session));
        shards.outbox.to(shard).messages.push(ShardMessage::Broken { session });
    }

    /// Tells all shards that the process ends.
    pub(in crate::resp) fn stop_all(&mut self, writes: &DurableWrites) {
        let Some(shards) = &mut self.shards else { return };
        shards.outbox.barrier().end();
        shards.outbox.transport().end();
        for to in shards.outbox.of_process() {
            shards.outbox.to(to).messages.push(ShardMessage::Stop);
        }
        shards.outbox.send(writes);
    }
}
