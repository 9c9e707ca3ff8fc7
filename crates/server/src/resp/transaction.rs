//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC first has everything loaded that its requests will need, as far as that can be told, while others go on; it is
//! run again from its start until all of it is there. Where a request must wait even so, others are held until the
//! transaction has ended, and the embedded store gets nothing of it before: it is one batch there in any case.

use super::bound::QueueRoom;
use super::kept::removes;
use super::session::{Queue, Session, Waiting};
use super::{Flow, ShardService, Turn, encoder, times};
use headwater_command::{Args, Command, Flags, Id, OwnedArgs, Reply, Spec, Transaction};
use headwater_engine::{EngineError, Stop, Ticket};
use headwater_protocol::resp::{decode, find};

/// EXEC looks so often whether all is there that it needs. Where memory is so short that each load evicts what
/// another one has brought, its requests wait one by one.
const LOOKS_MAX: u32 = 100;

impl ShardService {
    /// Executes a command about transactions.
    pub(super) fn transaction(
        &mut self,
        command: &Transaction<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let in_multi = work.connection.session.queue.is_some();
        match command {
            Transaction::Multi if in_multi => refuse(work, "MULTI calls can not be nested"),
            Transaction::Multi => {
                work.connection.session.queue = Some(Box::default());
                encoder(work).ok();
            }
            Transaction::Discard if !in_multi => refuse(work, "DISCARD without MULTI"),
            Transaction::Discard => {
                work.connection.session.queue = None;
                self.forget_watches(&mut work.connection.session);
                encoder(work).ok();
            }
            Transaction::Watch { .. } if in_multi => {
                refuse(work, "WATCH inside MULTI is not allowed");
            }
            Transaction::Watch { keys } => return self.watch(*keys, args, work),
            Transaction::Unwatch => {
                self.forget_watches(&mut work.connection.session);
                encoder(work).ok();
            }
            Transaction::Exec => return self.exec(args, work),
        }
        Flow::Next
    }

    /// Queues a request for EXEC.
    pub(super) fn enqueue(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let has_room = self.has_room_to_queue(args, work);
        let now = self.node.engine().now();
        let clients = &self.settings.lowered.clients;
        let Some(queue) = &mut work.connection.session.queue else {
            return Flow::Next;
        };
        let no_room = EngineError::OutOfMemory;
        let refusal = if spec.flags.has(Flags::NO_MULTI) {
            Some(("ERR", String::from("Command not allowed inside a transaction")))
        } else if queue.requests.len() >= clients.transaction_commands_max {
            let most = clients.transaction_commands_max;
            let text =
                format!("more than {most} commands in one transaction (transaction-commands-max)");
            Some(("ERR", text))
        } else if queue.bytes > clients.request_bytes_max {
            let most = clients.request_bytes_max;
            Some(("ERR", format!("more than {most} bytes in one transaction (request-bytes-max)")))
        } else if !has_room {
            Some((no_room.code(), no_room.to_string()))
        } else {
            None
        };
        if let Some((code, text)) = refusal {
            queue.broken = true;
            encoder(work).error(code, format_args!("{text}"));
            return Flow::Next;
        }
        let request = OwnedArgs::of(args);
        queue.bytes += request.reserved_bytes() + size_of::<OwnedArgs>();
        queue.denies_oom |= spec.flags.has(Flags::DENYOOM);
        queue.stores |= spec.flags.has(Flags::WRITE) && !removes(spec, args, now);
        queue.requests.push(request);
        encoder(work).simple("QUEUED");
        Flow::Next
    }

    fn watch(&mut self, keys: Args<'_>, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        if self.refuses_to_watch(keys, work) {
            return Flow::Next;
        }
        let session = &mut work.connection.session;
        let mut added = Vec::new();
        for key in keys.iter() {
            if session.watched.contains_key(key) {
                continue;
            }
            match self.node.engine_mut().watch(key) {
                Ok(count) => {
                    session.watched_bytes += key.len();
                    session.watched.insert(key.to_vec(), count);
                    added.push(key);
                }
                Err(stop) => {
                    // All or none: what is watched already is given back.
                    for key in added {
                        session.watched.remove(key);
                        session.watched_bytes -= key.len();
                        self.node.engine_mut().unwatch(key);
                    }
                    return self.stopped(stop, args, work);
                }
            }
        }
        encoder(work).ok();
        Flow::Next
    }

    /// Whether a session may not watch these keys because they would be too many with those that it watches; it was told then.
    pub(super) fn refuses_to_watch(&self, keys: Args<'_>, work: &mut Turn<'_>) -> bool {
        let most = self.settings.config.clients.watched_keys_max;
        let refuses = work.connection.session.watched_keys_with(keys) > most;
        if refuses {
            refuse(work, &format!("more than {most} watched keys (watched-keys-max)"));
        }
        refuses
    }

    /// Ends all watches of a session.
    pub(super) fn forget_watches(&mut self, session: &mut Session) {
        session.watched_bytes = 0;
        for (key, _) in core::mem::take(&mut session.watched) {
            self.node.engine_mut().unwatch(&key);
        }
    }

    fn exec(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        match &work.connection.session.queue {
            None => {
                refuse(work, "EXEC without MULTI");
                return Flow::Next;
            }
            Some(queue) if queue.broken => {
                work.connection.session.queue = None;
                self.forget_watches(&mut work.connection.session);
                let text = format_args!("Transaction discarded because of previous errors.");
                encoder(work).error("EXECABORT", text);
                return Flow::Next;
            }
            Some(_) => {}
        }
        if let Some(queue) = &mut work.connection.session.queue {
            queue.since.get_or_insert_with(times::now);
        }
        let mut changed = false;
        for (key, count) in &work.connection.session.watched {
            match self.node.engine_mut().watched(key) {
                Ok(now) => changed |= now != *count,
                // Nothing has been executed: EXEC as a whole is run again.
                Err(stop) => return self.stopped(stop, args, work),
            }
        }
        let lacks = !changed && self.node.engine().may_wait();
        if lacks && let Some(ticket) = self.preload_queue(&mut work.connection.session) {
            // The same: nothing has been executed.
            return self.park(ticket, args, work);
        }
        let Some(queue) = work.connection.session.queue.take() else {
            return Flow::Next;
        };
        if changed {
            self.forget_watches(&mut work.connection.session);
            self.show_queue(&[], args, work);
            encoder(work).null_array();
            return Flow::Next;
        }
        match self.room_for_queue(&queue, true, work) {
            QueueRoom::IsThere => {}
            QueueRoom::Comes => {
                work.connection.session.queue = Some(queue);
                let ticket = self.node.engine_mut().next_ticket();
                return self.park(ticket, args, work);
            }
            QueueRoom::Lacks => {
                self.forget_watches(&mut work.connection.session);
                return Flow::Next;
            }
        }
        self.forget_watches(&mut work.connection.session);
        self.show_queue(&queue.requests, args, work);
        encoder(work).array(queue.requests.len());
        self.begin_transaction();
        self.run_queue(queue, 0, work)
    }

    /// Has everything loaded that the queued requests need, as far as that can be told; something that EXEC waits for.
    fn preload_queue(&mut self, session: &mut Session) -> Option<Ticket> {
        let queue = session.queue.as_mut()?;
        if queue.looks == LOOKS_MAX {
            return None;
        }
        queue.looks += 1;
        let mut waits = None;
        for (at, request) in queue.requests.iter().enumerate() {
            let args = request.args();
            if !queue.refused.contains_key(&at)
                && let Ok(spec) = find(args)
                && let Ok(Command::Data(data)) = decode(spec, args)
            {
                // All are asked for even if the first must wait.
                waits = waits.or(self.node.preload(&data));
            }
        }
        waits
    }

    /// A request is refused to its user, as is written behind the first `before` bytes: if it is EXEC, its transaction is over.
    #[cold]
    pub(super) fn discard_for_refusal(&mut self, id: Id, before: usize, work: &mut Turn<'_>) {
        if id != Id::Exec || work.connection.session.queue.is_none() {
            return;
        }
        let line = String::from_utf8_lossy(work.out.get(before..).unwrap_or_default()).into_owned();
        work.out.truncate(before);
        self.discard(work);
        let why = line.trim_start_matches('-').trim_end();
        let text = format_args!("Transaction discarded because of: {why}");
        encoder(work).error("EXECABORT", text);
    }

    /// What EXEC needs cannot be had: nothing of the transaction is executed.
    pub(super) fn discard(&mut self, work: &mut Turn<'_>) {
        work.connection.session.queue = None;
        self.forget_watches(&mut work.connection.session);
        self.unwatch_remote(work);
    }

    /// Executes the requests of a transaction from `next` on.
    pub(super) fn run_queue(
        &mut self,
        queue: Box<Queue>,
        next: usize,
        work: &mut Turn<'_>,
    ) -> Flow {
        self.waits.exclusive = None;
        self.waits.transaction_since = queue.since;
        let mut flow = Flow::Next;
        for at in next..queue.requests.len() {
            let args = queue.requests[at].args();
            if let Some(why) = queue.refused.get(&at) {
                self.refuse_queued(why, args, work);
                continue;
            }
            let Ok(spec) = find(args) else {
                // It was found when it was queued, and commands do not go away.
                continue;
            };
            self.waits.executing_queue = true;
            let done = self.execute(spec, args, work);
            self.waits.executing_queue = false;
            match done {
                Flow::Next => {}
                Flow::Parked => {
                    self.waits.exclusive = Some(work.connection.id);
                    self.waits.transaction_since = None;
                    self.part_transaction(spec, args);
                    work.connection.session.waiting =
                        Some(Box::new(Waiting::Exec { queue, next: at }));
                    return Flow::Parked;
                }
                Flow::Close => flow = Flow::Close,
            }
        }
        self.waits.transaction_since = None;
        self.end_transaction();
        flow
    }

    pub(super) fn begin_transaction(&mut self) {
        self.waits.queue_was_late = false;
        if let Some(keeping) = &self.stores.keeping {
            keeping.begin_transaction();
            self.node.engine_mut().begin_transaction();
        }
    }

    /// A transaction waits in a request. Where that is for flows, or may be for what joins need of shards in other processes, these may wait for what it has written: that
    /// becomes safe by itself then, and not with the rest.
    fn part_transaction(&mut self, spec: &'static Spec, args: Args<'_>) {
        if let Some(keeping) = &self.stores.keeping
            && (self.node.has_full_flows()
                || self.others.are_apart() && self.may_derive(spec, args))
        {
            keeping.end_transaction();
        }
    }

    /// The transaction under way has ended, however it did.
    pub(super) fn end_transaction(&mut self) {
        if let Some(keeping) = &self.stores.keeping {
            keeping.end_transaction();
            self.node.engine_mut().end_transaction();
        }
    }

    /// Parks or fails a command that the engine stopped.
    fn stopped(&mut self, stop: Stop, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        match stop {
            Stop::Wait(ticket) => self.park(ticket, args, work),
            Stop::Failed(error) => {
                encoder(work).error(error.code(), format_args!("{error}"));
                Flow::Next
            }
        }
    }
}

fn refuse(work: &mut Turn<'_>, text: &str) {
    encoder(work).error("ERR", format_args!("{text}"));
}
