//! What other shards ask for their clients, executed here: one request after the other for each client, as its own shard sent
//! them.
//!
//! Each client of another shard has a session here, which knows what belongs to it: keys that it watches, what it waits for, how
//! far other shards must have come. Requests come as frames, and so do the answers go back: the beginning of one that must wait is
//! kept until it is whole.

use super::after_of;
use super::locks::{LockTurn, queue_of};
use super::redoing::REDO;
use crate::log::event;
use crate::resp::bound::{KEY_BYTES, QueueRoom};
use crate::resp::parts::OtherShards;
use crate::resp::parts::Waits;
use crate::resp::session::{Across, Session, TransactionPart, Waiting};
use crate::resp::{Flow, ShardService, Turn, encoder};
use crate::service::{Served, Stopped};
use crate::shards::ShardMessage;
use headwater_base::Shard;
use headwater_base::source::Position;
use headwater_command::table::KeyArgs;
use headwater_command::{ArgVec, Args, Id, OwnedArgs, Reply, Spec, table};
use headwater_engine::{EngineError, Stop, WARM_MAX, WriteKind};
use headwater_node::Carried;
use headwater_protocol::resp::{decode, find};
use headwater_router::{
    AnswerWriter, Ask, AskHeader, Copies, Frames, OpenFrame, Owner, PutPurpose, PutValue, Route,
    route, write_answer, write_ask,
};

/// The code word of a refusal because keys have got other homes; no client sees it.
pub(super) const MOVED: &str = "MOVED";
const ANEW: &str = "the keys have got other homes meanwhile: nothing was executed, try again";

impl ShardService {
    /// Executes the requests of a client of another shard that are there.
    #[inline]
    pub(in crate::resp) fn serve_remote(&mut self, mut work: Turn<'_>) -> Served {
        self.figures.clock.begin();
        if let Some(waiting) = work.connection.session.waiting.take()
            && let Some(waiting) = self.unless_moved(*waiting, &mut work)
        {
            let frame = self.others.open_frame(&mut work);
            let flow = self.resume(waiting, &mut work);
            if let Some(stopped) = self.end_ask(flow, frame, &mut work) {
                return Served { consumed: 0, stopped };
            }
        }
        let input = work.input;
        let mut frames = Frames::of(input);
        let mut spans = ArgVec::new();
        let mut warm_until = 0;
        loop {
            let consumed = input.len() - frames.left();
            let is_full = work.out.len() + work.held.bytes() >= work.out_bytes_full;
            if *work.requests_left == 0 || is_full {
                return Served { consumed, stopped: Stopped::Paused };
            }
            if self.pushes.serves_others && self.has_news_behind_answers(&mut work) {
                return Served { consumed, stopped: Stopped::Paused };
            }
            if consumed >= warm_until {
                warm_until = consumed + self.warm_asks(frames);
            }
            let Some((header, ask)) = frames.next_ask(&mut spans) else {
                let stopped =
                    if frames.left() == 0 { Stopped::Incomplete } else { Stopped::Closing };
                return Served { consumed, stopped };
            };
            *work.requests_left -= 1;
            let behind = input.len() - frames.left();
            self.begin_ask(&header, &mut work);
            let open = self.others.open_frame(&mut work);
            let frame = &input[consumed..behind];
            // What comes from another process is looked at in any case: keys of others are not to be written here.
            let (is_current, apart) =
                (header.placement == self.placement_digest(), self.others.are_apart());
            if !is_current || apart && names_keys(&ask) {
                let is_lock = matches!(ask, Ask::Lock { .. });
                let home = match is_lock && !is_current {
                    // Its partitions were found by another map.
                    true => Some(None),
                    false => self.new_home_of(&ask),
                };
                match home {
                    None => {}
                    Some(Some(home)) if !apart => {
                        open.take_back(work.out);
                        self.others.hand_on_ask(home, frame, &work);
                        continue;
                    }
                    Some(_) => {
                        if is_current {
                            self.others.note_foreign_request(&mut work);
                        }
                        let code = if is_lock && !is_current { MOVED } else { "TRYAGAIN" };
                        encoder(&mut work).error(code, format_args!("{ANEW}"));
                        if matches!(ask, Ask::Execute { .. }) {
                            // Nobody waits for its locks any longer.
                            begin_part(&ask, &mut work);
                        }
                        self.end_ask(Flow::Next, open, &mut work);
                        continue;
                    }
                }
            }
            let flow = self.execute_ask(&ask, frame, &mut work);
            if let Some(stopped) = self.end_ask(flow, open, &mut work) {
                return Served { consumed: behind, stopped };
            }
        }
    }

    /// Where keys live now that a request names, which was sent by an older map: one shard (`None`: it has to be sent anew, by its
    /// client's shard); `None`: here.
    #[cold]
    fn new_home_of(&self, ask: &Ask<'_>) -> Option<Option<Shard>> {
        let (me, placement) = (self.others.me(), self.node.engine().placement()?);
        let apart = self.others.are_apart();
        let is_elsewhere = |request: &OwnedArgs| {
            let args = request.args();
            let keys = find(args).map(|spec| spec.keys.positions(args.len()));
            let mut keys = keys.into_iter().flatten().filter_map(|at| args.get(at));
            keys.any(|key| placement.home(key) != me)
        };
        match ask {
            Ask::Command(spec, args) => {
                let command = decode(spec, *args).ok()?;
                match route(placement, spec, &command, *args) {
                    Route::At(home) if home != me => Some(Some(home)),
                    // What writes has been divided, and is of one shard's keys.
                    Route::Several | Route::Steps(_) if apart => Some(None),
                    // So has what reads keys. In one process that was by the map of that moment, and what has got another home since had no
                    // keys (`TABLE.SET`).
                    Route::Read { .. } | Route::Parts { .. }
                        if apart && spec.keys != KeyArgs::NONE =>
                    {
                        Some(None)
                    }
                    _ => None,
                }
            }
            // They have their locks: only from another process could they be of keys that are not here.
            Ask::Execute { .. } | Ask::Lock { .. } | Ask::Carry { .. } if !apart => None,
            Ask::Exec(requests)
            | Ask::Execute { requests, .. }
            | Ask::Lock { prepare: requests, .. } => {
                requests.iter().any(is_elsewhere).then_some(None)
            }
            Ask::Item(command) => self.new_home_of_item(placement, command),
            Ask::Put(PutValue { key, .. }) | Ask::Carry { key, .. } => {
                (placement.home(key) != me).then_some(None)
            }
            Ask::Release { .. } => None,
        }
    }

    /// What a session has waited in, unless that was others' locks and the keys of its request have got another home meanwhile: it is
    /// handed on then.
    fn unless_moved(&mut self, waiting: Waiting, work: &mut Turn<'_>) -> Option<Waiting> {
        let Waiting::Locked(request) = &waiting else { return Some(waiting) };
        let id = work.connection.id;
        let turn = self.turn_of(id);
        let args = request.args();
        let Ok(spec) = find(args) else { return Some(waiting) };
        let ask = Ask::Command(spec, args);
        match self.new_home_of(&ask) {
            Some(Some(home)) if matches!(turn, LockTurn::Granted | LockTurn::None) => {
                let session = &work.connection.session;
                let (copies, no_evict) = (session.copies, session.no_evict);
                let after =
                    self.others.shards.as_ref().map(|it| after_of(&work.connection.session, it));
                let (after, placement) = (after.unwrap_or_default(), self.placement_digest());
                let remote = work.connection.session.remote()?;
                let (request, wants_digests) = (remote.id, remote.wants_digests);
                let header = AskHeader {
                    id: request,
                    copies,
                    wants_digests,
                    no_evict,
                    placement,
                    after,
                    record: None,
                    user: None,
                };
                let mut frame = Vec::new();
                write_ask(&header, &ask, &mut frame);
                self.others.hand_on_ask(home, &frame, work);
                self.forget_locked(id, work.peers);
                None
            }
            _ => Some(waiting),
        }
    }

    fn begin_ask(&mut self, header: &AskHeader, work: &mut Turn<'_>) {
        let session = &mut work.connection.session;
        session.copies = header.copies;
        session.no_evict = header.no_evict;
        for (at, &position) in header.after.iter().enumerate() {
            session.positions.reach(Shard(at as u16), Position(position));
        }
        let Some(remote) = session.remote() else { return };
        remote.id = header.id;
        remote.wants_digests = header.wants_digests;
        remote.record.clone_from(&header.record);
        let origin = remote.origin;
        if header.copies != Copies::None {
            self.track_for(origin.shard);
        }
        if let Some(user) = &header.user {
            // In one process the shard of the client has noted it for all.
            self.admission.registry.asks(origin, user);
        }
    }

    /// Fetches what the next requests will touch; how many bytes they have.
    fn warm_asks(&self, mut frames: Frames<'_>) -> usize {
        let (all, mut count) = (frames.left(), 0);
        let mut keys: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
        for _ in 0..WARM_MAX {
            match frames.pass_key() {
                None => break,
                Some(None) => {}
                Some(Some(key)) => {
                    keys[count] = key;
                    count += 1;
                }
            }
        }
        if count > 1 {
            self.node.engine().warm(&keys[..count]);
        }
        (all - frames.left()).max(1)
    }

    /// Ends the answer's frame; why the session goes no further, if it does not.
    #[inline]
    fn end_ask(&mut self, flow: Flow, frame: OpenFrame, work: &mut Turn<'_>) -> Option<Stopped> {
        let (me, is_whole) = (self.others.me(), flow != Flow::Parked);
        let begins = frame.answer_begins();
        let remote = work.connection.session.remote()?;
        if !is_whole || !remote.partial.is_empty() {
            remote.partial.extend_from_slice(&work.out[begins..]);
            frame.take_back(work.out);
        }
        if !is_whole {
            return Some(Self::parked(work));
        }
        let partial = core::mem::take(&mut remote.partial);
        let (part, record) = (remote.part.take(), remote.record.take());
        if let Some((number, record)) = record {
            let answer = if partial.is_empty() { &work.out[begins..] } else { &partial };
            let is_redone = remote.origin.session == REDO;
            self.keep_record(number, &record, answer, is_redone);
        }
        if let Some(part) = part {
            self.others.end_part(&part, work);
        }
        let position = work.connection.session.positions.get(me).0;
        let digests = self.others.digests_for(&work.connection.session);
        if partial.is_empty() && frame.fits(digests) {
            if work.out.len() == begins {
                AnswerWriter::new(work.out).null();
            }
            frame.end(position, digests, work.out);
            let bytes = work.out.len() - begins;
            self.make_room_to_pass(bytes);
        } else {
            let mut answer = partial;
            if answer.is_empty() {
                answer.extend_from_slice(&work.out[begins..]);
                frame.take_back(work.out);
            }
            let id = work.connection.session.remote().map_or(0, |remote| remote.id);
            let digests = self.others.digests_for(&work.connection.session);
            write_answer(id, position, digests, &answer, work.out);
            self.make_room_to_pass(answer.len());
        }
        (flow == Flow::Close).then_some(Stopped::Closing)
    }

    /// Executes what is asked, which came as this frame.
    fn execute_ask(&mut self, ask: &Ask<'_>, frame: &[u8], work: &mut Turn<'_>) -> Flow {
        let remote = work.connection.session.remote();
        self.bound.is_agreed = remote.as_ref().is_some_and(|remote| remote.is_in_transaction);
        let flow = self.execute_agreed(ask, frame, work);
        self.bound.is_agreed = false;
        flow
    }

    fn execute_agreed(&mut self, ask: &Ask<'_>, frame: &[u8], work: &mut Turn<'_>) -> Flow {
        let leaving = work.connection.session.remote().and_then(|remote| remote.leaving.take());
        match ask {
            Ask::Command(spec, args) => {
                let is_rest = is_rest_of_rename(leaving.as_deref(), spec, *args);
                self.node.begin_part_of(is_rest.then_some(WriteKind::Rename));
                self.execute(spec, *args, work)
            }
            Ask::Exec(requests) => {
                work.connection.session.queue = Some(queue_of(requests, self.node.engine().now()));
                let exec: OwnedArgs = [&b"EXEC"[..]].into_iter().collect();
                match table::lookup(b"exec") {
                    Some(spec) => self.execute(spec, exec.args(), work),
                    None => Flow::Next,
                }
            }
            Ask::Lock { .. } => self.lock(ask, frame, work),
            Ask::Execute { requests, .. } => {
                begin_part(ask, work);
                if let [request] = &requests[..]
                    && let Ok(spec) = find(request.args())
                {
                    let is_rest = is_rest_of_rename(leaving.as_deref(), spec, request.args());
                    self.node.begin_part_of(is_rest.then_some(WriteKind::Rename));
                }
                encoder(work).array(requests.len());
                self.begin_transaction();
                self.run_queue(queue_of(requests, self.node.engine().now()), 0, work)
            }
            Ask::Release { transaction, prepared } => {
                if let Some(remote) = work.connection.session.remote() {
                    remote.is_in_transaction = false;
                }
                for request in prepared {
                    self.unprepare(request);
                }
                self.others.unlock(Owner::Transaction(*transaction), work.peers);
                encoder(work).ok();
                Flow::Next
            }
            Ask::Carry { key, leaves } => {
                if self.must_await_writes(key, frame, work) {
                    return Flow::Parked;
                }
                if *leaves && let Some(remote) = work.connection.session.remote() {
                    remote.leaving = Some((*key).into());
                }
                let done = self.carry(key, *leaves, work);
                self.waits.step_done(done, frame, work)
            }
            Ask::Put(put) => {
                let done = self.put_carried(put, work);
                self.waits.step_done(done, frame, work)
            }
            Ask::Item(command) => self.execute_item(command, frame, work),
        }
    }

    /// Goes on with what is no client's request, and has waited; or it has failed, and is answered.
    pub(in crate::resp) fn resume_asked(
        &mut self,
        frame: &[u8],
        failure: Option<&EngineError>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let mut spans = ArgVec::new();
        match Frames::of(frame).next_ask(&mut spans) {
            Some((header, Ask::Lock { transaction, .. }))
                if failure.is_none() && header.placement != self.placement_digest() =>
            {
                // It has waited for what gave keys other homes.
                self.others.unlock(Owner::Transaction(transaction), work.peers);
                encoder(work).error(MOVED, format_args!("{ANEW}"));
                Flow::Next
            }
            Some((_, ask)) if failure.is_none() => self.execute_ask(&ask, frame, work),
            _ => Flow::Next,
        }
    }

    /// Whether a key that joins may give is to be read only when what is here shows the client's writes elsewhere.
    pub(super) fn must_await_writes(
        &mut self,
        key: &[u8],
        frame: &[u8],
        work: &mut Turn<'_>,
    ) -> bool {
        if !self.node.engine().may_derive(key) {
            return false;
        }
        if self.await_positions(None, work).is_none() {
            return false;
        }
        work.connection.session.waiting = Some(Box::new(Waiting::Asked(frame.to_vec())));
        true
    }

    fn carry(&mut self, key: &[u8], leaves: bool, work: &mut Turn<'_>) -> Result<(), Stop> {
        let Some(Carried { value, expires, flags }) = self.node.carried(key, leaves)? else {
            encoder(work).null();
            return Ok(());
        };
        let mut out = encoder(work);
        out.array(3);
        out.bulk(&value);
        out.integer(expires.map_or(-1, |at| i64::try_from(at.0).unwrap_or(i64::MAX)));
        out.integer(i64::from(flags));
        Ok(())
    }

    fn put_carried(&mut self, put: &PutValue<'_>, work: &mut Turn<'_>) -> Result<(), Stop> {
        let &PutValue { key, value, expires, flags, if_absent, purpose } = put;
        let kind = match purpose {
            PutPurpose::Set => WriteKind::Set,
            PutPurpose::Copy => WriteKind::Copy,
            PutPurpose::Rename => WriteKind::Rename,
        };
        let carried = Carried { value: value.to_vec(), expires, flags };
        self.look_if_due(work.peers.bytes());
        self.bound.gauge.begin_command();
        if !self.has_room_to_write(key.len() + KEY_BYTES, value.len()) {
            return Err(EngineError::OutOfMemory.into());
        }
        if !self.node.put_carried(key, &carried, (if_absent, kind))? {
            encoder(work).integer(0);
            return Ok(());
        }
        if let Some(shards) = &mut self.others.shards {
            let position = shards.peers.stamp();
            work.connection.session.positions.reach(shards.me, position);
        }
        // Whoever tracks keys takes it for a SET of the client's.
        let set: OwnedArgs = [b"SET", key, value].into_iter().collect();
        if self.pushes.tracking.is_on()
            && let Ok(spec) = find(set.args())
        {
            self.track(spec, set.args(), true, work);
        }
        encoder(work).ok();
        Ok(())
    }

    /// Whether a queue's requests have the room that they need; where they have not, that is answered.
    pub(super) fn has_room_for_part(
        &mut self,
        queue: &crate::resp::session::Queue,
        work: &mut Turn<'_>,
    ) -> bool {
        self.room_for_queue(queue, false, work) == QueueRoom::IsThere
    }
}

impl OtherShards {
    /// A request of a shard in another process names keys that are not of this one by the map of both: no shard writes such a thing.
    #[cold]
    fn note_foreign_request(&self, work: &mut Turn<'_>) {
        let Some(remote) = work.connection.session.remote() else { return };
        if let Some(shards) = &self.shards {
            shards.outbox.transport().count_refused();
        }
        event!(
            warn,
            "shards",
            "foreign_request",
            shard = remote.origin.shard.0,
            "a shard has asked for keys that are not of this one: its request was refused"
        );
    }

    /// Hands a request on to the shard where its keys live now, which answers it.
    #[cold]
    fn hand_on_ask(&mut self, home: Shard, frame: &[u8], work: &Turn<'_>) {
        let Across::Remote(remote) = &work.connection.session.across else { return };
        let (origin, id) = (remote.origin, remote.id);
        let Some(shards) = &mut self.shards else { return };
        // Who asks from another process is told by the end of the connection where an answer comes no more.
        if !shards.outbox.are_apart() {
            let told = ShardMessage::HandedTo { session: origin.session, id, home };
            shards.outbox.to(origin.shard).messages.push(told);
        }
        let batch = shards.outbox.to(home);
        batch.bytes.extend_from_slice(frame);
        let end = batch.bytes.len();
        batch.messages.push(ShardMessage::HandedOn { origin, end });
    }

    /// The digests of this shard's transactions, where the session's request wants them.
    fn digests_for(&self, session: &Session) -> &[u64] {
        match (&self.shards, &session.across) {
            (Some(shards), Across::Remote(remote)) if remote.wants_digests => &shards.digests,
            _ => &[],
        }
    }

    /// Begins the frame of the answer to the request of a session.
    #[inline]
    fn open_frame(&self, work: &mut Turn<'_>) -> OpenFrame {
        let session = &work.connection.session;
        let id = match &session.across {
            Across::Remote(remote) => remote.id,
            Across::Nothing | Across::Client(_) => 0,
        };
        OpenFrame::begin(id, self.digests_for(session), work.out)
    }
}

impl Waits {
    /// A step is done, waits for data, or has failed.
    pub(crate) fn step_done(
        &mut self,
        done: Result<(), Stop>,
        frame: &[u8],
        work: &mut Turn<'_>,
    ) -> Flow {
        match done {
            Ok(()) => Flow::Next,
            Err(Stop::Wait(ticket)) => {
                self.tickets.insert(ticket, work.connection.id);
                work.connection.session.waiting = Some(Box::new(Waiting::Asked(frame.to_vec())));
                Flow::Parked
            }
            Err(Stop::Failed(error)) => {
                encoder(work).error(error.code(), format_args!("{error}"));
                Flow::Next
            }
        }
    }
}

/// Whether a request is of keys, and nothing that all shards do.
fn names_keys(ask: &Ask<'_>) -> bool {
    match ask {
        Ask::Command(spec, _) => spec.keys != KeyArgs::NONE,
        Ask::Release { .. } => false,
        _ => true,
    }
}

/// A part of a transaction is executed, or refused: behind the last one its locks are given back.
fn begin_part(ask: &Ask<'_>, work: &mut Turn<'_>) {
    let Ask::Execute { transaction, shards, last, .. } = ask else { return };
    if let Some(remote) = work.connection.session.remote() {
        let (transaction, shards, last) = (*transaction, shards.clone(), *last);
        remote.part = Some(TransactionPart { transaction, shards, last });
    }
}

/// Whether a request removes the key whose value a RENAME has just read, and put at another shard.
fn is_rest_of_rename(leaving: Option<&[u8]>, spec: &Spec, args: Args<'_>) -> bool {
    leaving.is_some_and(|key| spec.id == Id::Del && args.len() == 2 && args.get(1) == Some(key))
}
