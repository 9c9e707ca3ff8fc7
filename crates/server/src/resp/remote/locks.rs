//! Who may touch which keys here, while several shards do one thing: locks of transactions ([`headwater_router::Locks`]), what
//! their parts would be refused for, and requests that wait for others' locks.

use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::resp::kept::removes;
use crate::resp::parts::OtherShards;
use crate::resp::session::{Queue, Session, TransactionPart, Waiting};
use crate::resp::{Flow, ShardService, Turn, encoder};
use headwater_base::{Millis, Shard};
use headwater_command::{
    Args, Command, Data, Flags, Joins, Keys, OwnedArgs, Reply, Spec, Strings, Tables, Transaction,
};
use headwater_engine::{EngineError, Stop};
use headwater_node::table_options;
use headwater_protocol::resp::{decode, find};
use headwater_router::{Ask, Budget, LockSet, Owner, Requests, TransactionId, lock_set};

/// A session that waits until others are done with the partitions of its request's keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockWait {
    pub(crate) id: ConnectionId,
    /// When its request is refused, in milliseconds of the server's life.
    pub(crate) deadline: u64,
}

/// How long a lock may be waited for, in milliseconds.
pub(super) const LOCK_WAIT_MAX: u64 = 5000;

/// Why a request is refused that has waited so long for locks of this shard.
pub(crate) fn locked_for_long(me: Shard) -> String {
    let Shard(shard) = me;
    format!(
        "others were at keys of this request at shard {shard} for too long: nothing was executed, try again"
    )
}

/// What a shard has against its part of a transaction, or nothing.
enum Objection {
    /// Nothing.
    None,
    /// A key that must not be there is.
    Taken,
    /// So many keys are in the way.
    InTheWay(u64),
}

/// How a session stands that waits for others' locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockTurn {
    /// It waits for none.
    None,
    /// Others come first.
    Waits,
    /// The same, and it has waited for too long.
    Late,
    /// It is its turn.
    Granted,
}

/// Requests as a transaction queues them.
pub(super) fn queue_of(requests: &Requests, now: Millis) -> Box<Queue> {
    let mut queue = Queue::default();
    for request in requests {
        queue.bytes += request.reserved_bytes() + size_of::<OwnedArgs>();
        if let Ok(spec) = find(request.args()) {
            queue.denies_oom |= spec.flags.has(Flags::DENYOOM);
            queue.stores |= spec.flags.has(Flags::WRITE) && !removes(spec, request.args(), now);
        }
        queue.requests.push(request.clone());
    }
    Box::new(queue)
}

impl ShardService {
    /// Locks for a transaction, and says what this shard has against its part.
    pub(super) fn lock(&mut self, ask: &Ask<'_>, frame: &[u8], work: &mut Turn<'_>) -> Flow {
        let Ask::Lock { transaction, set, watches, wait, budget, prepare } = ask else {
            return Flow::Next;
        };
        let (transaction, now) = (*transaction, self.time.uptime);
        if let Some(remote) = work.connection.session.remote() {
            remote.is_in_transaction = true;
        }
        if !self.has_lock(transaction, set, now.saturating_add(*wait), frame, work) {
            return if work.connection.session.waiting.is_some() {
                Flow::Parked
            } else {
                self.others.unlock(Owner::Transaction(transaction), work.peers);
                let why = locked_for_long(self.others.me());
                encoder(work).error("TRYAGAIN", format_args!("{why}"));
                Flow::Next
            };
        }
        if self.must_await_for(*watches, prepare, frame, work) {
            return Flow::Parked;
        }
        if *watches {
            match self.have_watched_changed(work) {
                Ok(true) => {
                    encoder(work).null();
                    return Flow::Next;
                }
                Ok(false) => {}
                Err(stop) => return self.waits.step_done(Err(stop), frame, work),
            }
        }
        let Budget { bytes, denies_oom, stores } = *budget;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let queue = Queue { bytes, denies_oom, stores, ..Queue::default() };
        if !self.has_room_for_part(&queue, work) {
            return Flow::Next;
        }
        if denies_oom && let Some(shards) = &mut self.others.shards {
            // Others of this shard leave it free until the part is executed, which could be refused by half otherwise.
            let before = shards.reserved.insert(transaction, queue.bytes).unwrap_or(0);
            shards.reserved_bytes = (shards.reserved_bytes - before).saturating_add(queue.bytes);
        }
        let mut in_the_way = 0;
        for request in prepare {
            let (before, mut at) = (work.out.len(), 0);
            match self.prepare(request.args(), &mut at, work) {
                Ok(Objection::None) if work.out.len() > before => return Flow::Next,
                Ok(Objection::None) => {}
                Ok(Objection::InTheWay(keys)) => in_the_way += keys,
                Ok(Objection::Taken) => {
                    encoder(work).boolean(true);
                    return Flow::Next;
                }
                Err(Stop::Failed(error)) => {
                    // The key's place is told as well: of errors of several shards, the client is told the one about the first key that it has named.
                    let mut out = encoder(work);
                    out.array(2);
                    out.integer(at);
                    out.error(error.code(), format_args!("{error}"));
                    return Flow::Next;
                }
                Err(stop) => return self.waits.step_done(Err(stop), frame, work),
            }
        }
        if let Some(shards) = &mut self.others.shards
            && shards.outbox.are_apart()
        {
            // Its coordinator may be lost before it says what becomes of it.
            shards.prepared.insert(transaction, prepare.clone());
        }
        match i64::try_from(in_the_way) {
            Ok(0) | Err(_) => encoder(work).ok(),
            Ok(keys) => encoder(work).integer(keys),
        }
        Flow::Next
    }

    /// Whether keys that joins may give are to be looked at, of which not all is here yet that the client has written.
    fn must_await_for(
        &mut self,
        watches: bool,
        prepare: &Requests,
        frame: &[u8],
        work: &mut Turn<'_>,
    ) -> bool {
        let engine = self.node.engine();
        let watched = work.connection.session.watched.keys().map(|key| &**key);
        let mut watched = watched.filter(|_| watches);
        let named = |request: &OwnedArgs| {
            let args = request.args();
            let keys = find(args).map(|spec| spec.keys.positions(args.len()));
            let mut keys = keys.into_iter().flatten().filter_map(|at| args.get(at));
            keys.find(|key| engine.may_derive(key)).map(<[u8]>::to_vec)
        };
        let derived = watched.find(|key| engine.may_derive(key)).map(<[u8]>::to_vec);
        match derived.or_else(|| prepare.iter().find_map(named)) {
            Some(key) => self.must_await_writes(&key, frame, work),
            None => false,
        }
    }

    /// Whether a transaction has locked; where it has not, its session waits, or has waited for too long.
    fn has_lock(
        &mut self,
        transaction: TransactionId,
        set: &LockSet,
        limit: u64,
        frame: &[u8],
        work: &mut Turn<'_>,
    ) -> bool {
        let id = work.connection.id;
        let now = self.time.uptime;
        let Some(shards) = &mut self.others.shards else { return true };
        let Some(remote) = work.connection.session.remote() else { return true };
        let owner = Owner::Transaction(transaction);
        let granted = match shards.locks.is_granted(owner) {
            Some(granted) => granted,
            None => shards.locks.request(owner, set.clone()),
        };
        if granted {
            shards.lock_waits.remove(&transaction);
            self.waits.blocking.drop_deadline(remote.lock_deadline.take(), id);
            return true;
        }
        if remote.lock_deadline.is_some_and(|deadline| deadline <= now) {
            remote.lock_deadline = None;
            shards.lock_waits.remove(&transaction);
            return false;
        }
        let deadline = *remote.lock_deadline.get_or_insert(limit);
        self.waits.blocking.add_deadline(Some(deadline), id);
        shards.lock_waits.insert(transaction, id);
        work.connection.session.waiting = Some(Box::new(Waiting::Asked(frame.to_vec())));
        false
    }

    /// Whether a request of a transaction would be refused; what it is refused with is answered. `place`: for which of its keys.
    fn prepare(
        &mut self,
        args: Args<'_>,
        place: &mut i64,
        work: &mut Turn<'_>,
    ) -> Result<Objection, Stop> {
        // It was found, and read, where the client is.
        let Ok(spec) = find(args) else { return Ok(Objection::None) };
        let Ok(command) = decode(spec, args) else { return Ok(Objection::None) };
        if !self.admits(spec, args, &command, work) || !self.may_write(spec, args, work) {
            return Ok(Objection::None);
        }
        if let Command::Data(Data::Joins(Joins::Add { name, spec, .. })) = command {
            self.node.may_declare_join(spec).map_err(|error| error.of_join(name))?;
        }
        let engine = self.node.engine_mut();
        match command {
            Command::Data(Data::Joins(Joins::Add { name, spec, replace })) => {
                engine.know_outputs(spec)?;
                match engine.join_prepare(name, spec, replace) {
                    Err(EngineError::KeysInTheWay(keys)) => return Ok(Objection::InTheWay(keys)),
                    done => done.map_err(|error| error.of_join(name))?,
                }
            }
            Command::Data(Data::Joins(Joins::Drop { name })) => engine.has_join(name)?,
            Command::Data(Data::Flows(flows)) => self.node.may_declare_flow(&flows)?,
            Command::Data(Data::Tables(set @ Tables::Set { name, .. })) => {
                engine.check_table(name, &table_options(&set))?;
                // Its keys get other homes, which would not know what is still to be done.
                let is_of = |key: &[u8]| {
                    key.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'|'))
                };
                if self.node.flows_pending(&is_of) {
                    let text = "flows have tasks of the table: try again when they are done";
                    let text = String::from(text);
                    return Err(EngineError::Busy { text, may_wait: false }.into());
                }
            }
            Command::Data(Data::Strings(Strings::MSet { pairs })) => {
                for (at, (key, value)) in pairs.pairs().enumerate() {
                    *place = at as i64;
                    self.node.check_write(key, Some(value.len()))?;
                }
            }
            Command::Data(Data::Strings(Strings::MSetNx { pairs })) => {
                // Whether a key is there comes before what else there is against another one.
                let mut refusal = Ok(Objection::None);
                for (at, (key, value)) in pairs.pairs().enumerate() {
                    match self.node.is_taken(key, value.len()) {
                        Ok(true) => return Ok(Objection::Taken),
                        Ok(false) => {}
                        Err(Stop::Wait(ticket)) => return Err(Stop::Wait(ticket)),
                        Err(stop) if refusal.is_ok() => {
                            (refusal, *place) = (Err(stop), at as i64);
                        }
                        Err(_) => {}
                    }
                }
                return refusal;
            }
            Command::Data(Data::Keys(Keys::Del { keys })) => {
                for (at, key) in keys.iter().enumerate() {
                    *place = at as i64;
                    self.node.check_write(key, None)?;
                }
            }
            _ => {}
        }
        Ok(Objection::None)
    }

    /// What was prepared will not be done.
    pub(super) fn unprepare(&mut self, request: &OwnedArgs) {
        let args = request.args();
        if let Ok(Command::Data(Data::Joins(Joins::Add { name, .. }))) =
            find(args).and_then(|spec| decode(spec, args))
        {
            self.node.engine_mut().join_unprepare(name);
        }
    }

    /// Whether a key has changed that is watched here for a client; its watches end.
    fn have_watched_changed(&mut self, work: &mut Turn<'_>) -> Result<bool, Stop> {
        let me = self.others.me();
        let mut changed = false;
        for (key, count) in &work.connection.session.watched {
            changed |= self.node.engine_mut().watched(key)? != *count;
        }
        let origin = work.connection.session.remote().map(|remote| remote.origin);
        if let Some(origin) = origin.filter(|origin| origin.shard == me)
            && let Some(client) = work.peers.get_mut(origin.session)
        {
            // What its own session watches here.
            for (key, count) in &client.session.watched {
                changed |= self.node.engine_mut().watched(key)? != *count;
            }
        }
        self.forget_watches(&mut work.connection.session);
        Ok(changed)
    }

    /// Takes their place from sessions that could have gone on and did not.
    pub(in crate::resp) fn lapse_locks(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.others.shards else { return };
        if !shards.locks.may_lapse() {
            return;
        }
        let (lapsed, granted) = shards.locks.lapse();
        for number in lapsed {
            self.end_block(number);
        }
        self.others.wake_granted(&granted, connections);
    }

    /// A session waits for others' locks no longer, or has gone.
    pub(in crate::resp) fn end_block(&mut self, number: u64) {
        let Some(shards) = &mut self.others.shards else { return };
        if let Some(LockWait { id, deadline }) = shards.blocked.remove(&number) {
            self.waits.blocking.drop_deadline(Some(deadline), id);
        }
    }

    /// Lets a request wait where several shards are doing something with the partitions of its keys. `None`: none is.
    #[inline]
    pub(in crate::resp) fn wait_for_locks(
        &mut self,
        spec: &Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let shards = self.others.shards.as_ref()?;
        if shards.locks.is_empty() {
            return None;
        }
        self.wait_for_others(spec, command, args, work)
    }

    #[cold]
    fn wait_for_others(
        &mut self,
        spec: &Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        if self.waits.passes_locks || self.waits.in_transaction(&work.connection.session) {
            return None;
        }
        let set = self.set_of(spec, command, args, &work.connection.session)?;
        if !self.others.shards.as_ref()?.locks.blocks(&set) {
            return None;
        }
        self.block(work.connection.id, set);
        work.connection.session.waiting = Some(Box::new(Waiting::Locked(OwnedArgs::of(args))));
        Some(Flow::Parked)
    }

    /// Has a session wait behind others' locks.
    pub(crate) fn block(&mut self, id: ConnectionId, set: LockSet) {
        let Some(shards) = &mut self.others.shards else { return };
        let deadline = self.time.uptime + LOCK_WAIT_MAX;
        shards.locks.request(Owner::Session(id.number), set);
        shards.blocked.insert(id.number, LockWait { id, deadline });
        self.waits.blocking.add_deadline(Some(deadline), id);
    }

    /// How a session stands that waits for others' locks, or did.
    pub(crate) fn turn_of(&self, id: ConnectionId) -> LockTurn {
        let Some(shards) = &self.others.shards else { return LockTurn::None };
        let blocked = shards.blocked.get(&id.number);
        match shards.locks.is_granted(Owner::Session(id.number)) {
            None => LockTurn::None,
            Some(true) => LockTurn::Granted,
            Some(false) if blocked.is_some_and(|it| it.deadline <= self.time.uptime) => {
                LockTurn::Late
            }
            Some(false) => LockTurn::Waits,
        }
    }

    /// What a request concerns; `None`: no keys.
    fn set_of(
        &self,
        spec: &Spec,
        command: &Command<'_>,
        args: Args<'_>,
        session: &Session,
    ) -> Option<LockSet> {
        let placement = self.node.engine().placement()?;
        match command {
            Command::Data(_) | Command::Transaction(Transaction::Watch { .. }) => {
                Some(lock_set(placement, spec, args))
            }
            Command::Transaction(Transaction::Exec) => {
                let mut set = LockSet::of(core::iter::empty());
                for request in &session.queue.as_ref()?.requests {
                    let args = request.args();
                    if let Ok(spec) = find(args)
                        && let Ok(Command::Data(_)) = decode(spec, args)
                    {
                        set.add(&lock_set(placement, spec, args));
                    }
                }
                Some(set)
            }
            _ => None,
        }
    }

    /// Goes on with a request that has waited for others.
    pub(in crate::resp) fn resume_locked(
        &mut self,
        request: OwnedArgs,
        work: &mut Turn<'_>,
    ) -> Flow {
        let id = work.connection.id;
        let turn = self.turn_of(id);
        if turn == LockTurn::Waits {
            work.connection.session.waiting = Some(Box::new(Waiting::Locked(request)));
            return Flow::Parked;
        }
        self.forget_locked(id, work.peers);
        match turn {
            LockTurn::Late => {
                if work.connection.session.queue.is_some() {
                    self.discard(work);
                }
                let why = locked_for_long(self.others.me());
                encoder(work).error("TRYAGAIN", format_args!("{why}"));
                Flow::Next
            }
            LockTurn::Granted => {
                self.waits.passes_locks = true;
                let flow = self.run_again(&request, work);
                self.waits.passes_locks = false;
                flow
            }
            // It did not go on when it could have: others may have come first.
            LockTurn::None | LockTurn::Waits => self.run_again(&request, work),
        }
    }

    /// A session waits for others' locks no longer.
    pub(crate) fn forget_locked(
        &mut self,
        id: ConnectionId,
        connections: &mut Connections<Session>,
    ) {
        self.end_block(id.number);
        self.others.unlock(Owner::Session(id.number), connections);
    }
}

impl OtherShards {
    /// A part of a transaction was executed: it is counted, and its lock given back, behind the last one.
    pub(super) fn end_part(&mut self, part: &TransactionPart, work: &mut Turn<'_>) {
        if !part.last {
            return;
        }
        if let Some(remote) = work.connection.session.remote() {
            remote.is_in_transaction = false;
        }
        if let Some(shards) = &mut self.shards {
            shards.count_transaction(part.transaction, &part.shards);
        }
        self.unlock(Owner::Transaction(part.transaction), work.peers);
    }

    /// Bytes of memory that parts may take which have been agreed to.
    #[inline]
    pub(in crate::resp) fn reserved_bytes(&self) -> usize {
        self.shards.as_ref().map_or(0, |shards| shards.reserved_bytes)
    }

    /// Gives a lock back, and wakes those who get theirs by that.
    pub(crate) fn unlock(&mut self, owner: Owner, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.shards else { return };
        if let Owner::Transaction(transaction) = owner {
            shards.prepared.remove(&transaction);
            let reserved = shards.reserved.remove(&transaction).unwrap_or(0);
            // Whoever has said a number that cannot be has reserved less.
            shards.reserved_bytes = shards.reserved_bytes.saturating_sub(reserved);
        }
        let granted = shards.locks.release(owner);
        self.wake_granted(&granted, connections);
    }

    fn wake_granted(&self, granted: &[Owner], connections: &mut Connections<Session>) {
        let Some(shards) = &self.shards else { return };
        for owner in granted {
            let id = match owner {
                Owner::Transaction(transaction) => shards.lock_waits.get(transaction).copied(),
                Owner::Session(number) => shards.blocked.get(number).map(|blocked| blocked.id),
            };
            if let Some(id) = id {
                connections.wake(id);
            }
        }
    }
}
