//! Letters of other shards: requests to execute, replies, and what the engines have to say to one another.

use super::form::ClientForm;
use super::redoing::REDO;
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::resp::session::{Across, Origin, RemoteSession, Session};
use crate::resp::{Form, Resp, Turn};
use crate::shards::{HELD_BACK_FOR, Letter, Mail};
use headwater_base::Shard;
use headwater_base::source::Position;
use headwater_protocol::resp::find;
use headwater_router::{Ask, AskHeader, Frames, Kind};
use mio::net::TcpStream;

impl Resp {
    /// A message for the channels of all other shards, from within a transaction.
    pub(in crate::resp) fn publish_elsewhere(&mut self, channel: &[u8], message: &[u8]) {
        let Some(shards) = &mut self.shards else { return };
        let me = shards.me;
        for to in (0..shards.post.shards()).map(Shard).filter(|to| *to != me) {
            let mail = shards.post.to(to);
            mail.bytes.extend_from_slice(channel);
            mail.bytes.extend_from_slice(message);
            let end = mail.bytes.len();
            mail.letters.push(Letter::Publish { name: channel.len(), end });
        }
    }

    /// Takes the letters that have come.
    pub(crate) fn take_mail_of_shards(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &self.shards else { return };
        let mails = shards.post.take();
        shards.post.set_clients(connections.open());
        for mail in mails {
            self.gauge.take_over(|| mail.memory());
            self.take_letters(mail, connections);
        }
    }

    fn take_letters(&mut self, mail: Mail, connections: &mut Connections<Session>) {
        let Mail { from, bytes, letters } = mail;
        let mut begin = 0;
        for letter in letters {
            match letter {
                Letter::Asks { session, end } => {
                    let origin = Origin { shard: from, session };
                    self.take_asks(origin, &bytes[begin..end], connections);
                    begin = end;
                }
                Letter::HandedOn { origin, end } => {
                    self.take_asks(origin, &bytes[begin..end], connections);
                    begin = end;
                }
                Letter::Answers { session, end } => {
                    self.take_answers(from, session, &bytes[begin..end], connections);
                    begin = end;
                }
                Letter::Watching(note) => self.take_note(from, *note, connections),
                Letter::Changes { end } => {
                    self.take_changes(from, &bytes[begin..end], connections);
                    begin = end;
                }
                Letter::Tracking(note) => self.take_tracking_note(from, *note, connections),
                Letter::Copies { end } => {
                    self.take_copies(from, &bytes[begin..end], connections);
                    begin = end;
                }
                Letter::Packet(packet) => {
                    if let Some(shards) = &mut self.shards {
                        shards.peers.receive(from, *packet);
                    }
                }
                Letter::Gone { session } => {
                    let origin = Origin { shard: from, session };
                    let back = self.shards.as_mut().and_then(|shards| shards.backs.remove(&origin));
                    if let Some(back) = back {
                        connections.kill(back);
                    }
                }
                Letter::HungUp { session } => {
                    let origin = Origin { shard: from, session };
                    let shards = self.shards.as_ref();
                    if let Some(back) = shards.and_then(|it| it.backs.get(&origin)).copied()
                        && let Some(connection) = connections.get_mut(back)
                    {
                        connection.ended = true;
                        connections.touch(back);
                    }
                }
                Letter::Broken { session } => connections.kill(session),
                Letter::Client { socket, peer, door } => {
                    self.new_clients.push((TcpStream::from_std(socket), peer, door));
                }
                Letter::Publish { name, end } => {
                    let (channel, message) = bytes[begin..end].split_at(name);
                    self.publish_from_flow(channel, message, connections);
                    begin = end;
                }
                Letter::Flow(message) => self.node.receive_remote(from, *message),
                Letter::Survey { partition } => self.begin_survey(partition, from),
                Letter::Surveyed => self.surveyed(),
                Letter::Hold { number } => self.begin_to_hold(from, number),
                Letter::Held { number } => self.holds(from, number, connections),
                Letter::Release => self.release(from),
                Letter::Turn => self.have_all_hold(),
                Letter::Meet { partition, to } => self.meet(from, partition, to, connections),
                Letter::AskFigures => self.tell_figures(from, connections.open()),
                Letter::Figures(figures) => self.add_figures(figures),
                Letter::Stop => self.stopping = true,
            }
        }
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
            positions.reach(from, Position(frame.position));
            // One that nobody waits for is dropped.
            pending.came((from, frame.id), frame.answer, frame.digests, &mut form);
        }
        for (at, undo) in pending.take_undo() {
            let id = pending.expect(at, Kind::Write, true);
            if let Some(shards) = &mut self.shards
                && let Ok(spec) = find(undo.args())
            {
                let header = AskHeader { id, ..AskHeader::default() };
                shards.ask(at, session, &header, &Ask::Command(spec, undo.args()));
            }
        }
        let (is_ready, holds_back) = (pending.is_ready(), pending.holds_back() && !pending.noted);
        pending.noted |= holds_back;
        if pending.holds && pending.is_done() {
            pending.holds = false;
            connections.wake(session);
        }
        if is_ready {
            connections.touch(session);
        } else if holds_back && let Some(shards) = &mut self.shards {
            shards.held_back.push_back((session, self.time.uptime));
        }
    }

    /// Keeps answers that are ready until those that others have yet to give are there, for a while.
    #[inline]
    pub(in crate::resp) fn hold_back(&mut self, work: &mut Turn<'_>) {
        let Some(shards) = &mut self.shards else { return };
        let Some(pending) = work.connection.session.pending() else { return };
        if pending.is_done() || work.out.is_empty() || !work.held.is_empty() {
            return;
        }
        pending.hold_back(work.out);
        if pending.holds_back() && !pending.noted {
            pending.noted = true;
            shards.held_back.push_back((work.connection.id, self.time.uptime));
        }
    }

    /// Sends the answers that have waited for others for long enough.
    pub(in crate::resp) fn send_held_back(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.shards else { return };
        while let Some(&(id, since)) = shards.held_back.front()
            && since + HELD_BACK_FOR <= self.time.uptime
        {
            shards.held_back.pop_front();
            let Some(connection) = connections.get_mut(id) else { continue };
            let Some(pending) = connection.session.pending() else { continue };
            pending.noted = false;
            if pending.holds_back() {
                pending.overdue = true;
                connections.touch(id);
            }
        }
    }

    /// Gives requests to the session that their client has here.
    fn take_asks(&mut self, origin: Origin, bytes: &[u8], connections: &mut Connections<Session>) {
        self.make_room_to_pass(bytes.len());
        let Some(shards) = &mut self.shards else { return };
        let known = shards.backs.get(&origin).copied();
        let id = known.filter(|&id| connections.get_mut(id).is_some()).unwrap_or_else(|| {
            let id = connections.next_id_by_mail();
            let remote = RemoteSession {
                origin,
                id: 0,
                wants_digests: false,
                partial: Vec::new(),
                record: None,
                part: None,
                lock_deadline: None,
                is_in_transaction: false,
            };
            let session = Session {
                authenticated: true,
                across: Across::Remote(Box::new(remote)),
                form: Form::Typed,
                ..Session::default()
            };
            let mut connection = Box::new(Connection::by_mail(id, session, self.time.uptime));
            connections.count(&mut connection, 0);
            connections.put(connection);
            shards.backs.insert(origin, id);
            id
        });
        if let Some(connection) = connections.get_mut(id) {
            connection.take_requests(bytes);
            connections.touch(id);
        }
    }

    /// Posts the answers that a connection by mail has for its client.
    pub(in crate::resp) fn post_replies(&mut self, connection: &mut Connection<Session>) {
        let Some(origin) = connection.session.remote().map(|remote| remote.origin) else { return };
        let Some(shards) = &mut self.shards else { return };
        let Some(answers) = connection.mail() else { return };
        if answers.is_empty() {
            return;
        }
        let mail = shards.post.to(origin.shard);
        mail.bytes.append(answers);
        answers.shrink_to(64 << 10);
        let end = mail.bytes.len();
        mail.letters.push(Letter::Answers { session: origin.session, end });
    }

    /// A session has ended: what stands for it elsewhere is to end, or who has its client is told.
    pub(in crate::resp) fn part(&mut self, id: ConnectionId, session: &mut Session) {
        let Some(shards) = &mut self.shards else { return };
        match core::mem::take(&mut session.across) {
            Across::Nothing => {}
            Across::Client(pending) => {
                for at in pending.used() {
                    shards.post.to(at).letters.push(Letter::Gone { session: id });
                }
            }
            Across::Remote(remote) => {
                let origin = remote.origin;
                if shards.backs.get(&origin) == Some(&id) {
                    shards.backs.remove(&origin);
                    let letter = Letter::Broken { session: origin.session };
                    shards.post.to(origin.shard).letters.push(letter);
                }
            }
        }
    }

    /// Tells all shards that the process ends.
    pub(in crate::resp) fn stop_all(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        shards.post.meeting().end();
        for to in (0..shards.post.shards()).map(Shard) {
            shards.post.to(to).letters.push(Letter::Stop);
        }
        shards.post.send();
    }
}
