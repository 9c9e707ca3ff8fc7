//! Commands that wait for other clients: reads at the end of a stream.
//!
//! Such a command waits like one whose data is being loaded, except that it has a deadline, that within
//! EXEC it does not wait at all, and that it ends with its client. When its key is written, or
//! when time is up, it is run again; what is still missing then is answered with nothing.

use super::session::{Session, Waiting};
use super::{Flow, ShardService, Turn, encoder};
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use headwater_command::{Args, Data, OwnedArgs, Reply, Streams};
use headwater_engine::Ticket;
use std::collections::BTreeSet;

/// A command that waits for another client.
#[derive(Debug)]
pub(crate) struct Blocked {
    request: OwnedArgs,
    ticket: Ticket,
    /// When it gives up, in milliseconds of the server's life; `None`: never.
    deadline: Option<u64>,
    /// CLIENT UNBLOCK has ended it: with an error, or as if its time were up.
    ended: Option<bool>,
}

/// What is known of all commands that wait for others.
#[derive(Debug, Default)]
pub(super) struct Blocking {
    /// When they give up.
    deadlines: BTreeSet<(u64, ConnectionId)>,
    /// The command under way had waited before: its deadline stays what it was.
    pub(super) resumed: Option<Option<u64>>,
    /// Sessions that wait.
    pub(super) sessions: usize,
}

impl Blocking {
    /// Has a session woken at a moment, if there is one.
    pub(super) fn add_deadline(&mut self, at: Option<u64>, id: ConnectionId) {
        self.deadlines.extend(at.map(|at| (at, id)));
    }

    /// Takes that back.
    pub(super) fn drop_deadline(&mut self, at: Option<u64>, id: ConnectionId) {
        if let Some(at) = at {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Takes back all of a session that has gone.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.deadlines.retain(|(_, other)| *other != id);
    }

    /// The next moment at which a command gives up, or is to be tried again.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|&(at, _)| at)
    }
}

/// What a command that may wait for others says: its key and for how long.
fn blocking<'a>(data: &Data<'a>) -> Option<(&'a [u8], u64)> {
    match *data {
        Data::Streams(Streams::Read { key, block: Some(millis), .. }) => Some((key, millis)),
        _ => None,
    }
}

impl ShardService {
    /// Lets the session wait for `ticket`: for data, or for another client.
    #[cold]
    pub(super) fn wait(
        &mut self,
        data: &Data<'_>,
        ticket: Ticket,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let resumed = self.waits.blocking.resumed.take();
        let of_tail = |&(key, _): &(&[u8], u64)| self.node.engine().awaits_tail(key, ticket);
        // What must be loaded first is waited for as by any command.
        let Some((key, millis)) = blocking(data).filter(of_tail) else {
            return self.park(ticket, args, work);
        };
        let now = work.time.uptime;
        // The clock of a turn is up to a millisecond behind: nobody gives up before the time.
        let limit = (millis > 0).then(|| now.saturating_add(millis).saturating_add(1));
        let deadline = resumed.unwrap_or(limit);
        if self.waits.in_transaction(&work.connection.session)
            || deadline.is_some_and(|at| at <= now)
        {
            self.node.engine_mut().forget_tail(key, ticket);
            encoder(work).null();
            return Flow::Next;
        }
        let id = work.connection.id;
        self.waits.tickets.insert(ticket, id);
        self.waits.blocking.add_deadline(deadline, id);
        self.waits.blocking.sessions += 1;
        let blocked = Blocked { request: OwnedArgs::of(args), ticket, deadline, ended: None };
        work.connection.session.waiting = Some(Box::new(Waiting::Blocked(blocked)));
        Flow::Parked
    }

    /// Runs a command again that waited for another client.
    pub(super) fn resume_blocked(&mut self, blocked: Blocked, work: &mut Turn<'_>) -> Flow {
        self.forget_blocked(work.connection.id, &blocked);
        if let Some(with_error) = blocked.ended {
            return self.answered(work, |service, work| {
                if with_error {
                    let (text, before) = ("client unblocked via CLIENT UNBLOCK", work.out.len());
                    encoder(work).error("UNBLOCKED", format_args!("{text}"));
                    let request = Some(blocked.request.args());
                    service.figures.note_late_failure(request, before, work);
                } else {
                    encoder(work).null();
                }
                Flow::Next
            });
        }
        self.waits.blocking.resumed = Some(blocked.deadline);
        let flow = self.run_again(&blocked.request, work);
        self.waits.blocking.resumed = None;
        flow
    }

    /// Takes back what a waiting command has left behind.
    pub(super) fn forget_blocked(&mut self, id: ConnectionId, blocked: &Blocked) {
        self.waits.blocking.sessions -= 1;
        if self.waits.tickets.remove(&blocked.ticket).is_some()
            && let Some(key) = blocked.request.args().get(1)
        {
            self.node.engine_mut().forget_tail(key, blocked.ticket);
        }
        self.waits.blocking.drop_deadline(blocked.deadline, id);
    }

    /// CLIENT UNBLOCK: ends what a client waits in, whose request is executed here; how many there were.
    pub(super) fn unblock(&mut self, number: u64, with_error: bool, work: &mut Turn<'_>) -> i64 {
        let is_of_client = |connection: &Connection<Session>| {
            connection.session.remote_client().unwrap_or(connection.id).number == number
        };
        let waits = |connection: &Connection<Session>| {
            matches!(connection.session.waiting.as_deref(), Some(Waiting::Blocked(_)))
        };
        let found = work.peers.iter().find(|it| is_of_client(it) && waits(it)).map(|it| it.id);
        let Some(id) = found else { return 0 };
        if let Some(connection) = work.peers.get_mut(id)
            && let Some(Waiting::Blocked(blocked)) = connection.session.waiting.as_deref_mut()
        {
            blocked.ended = Some(with_error);
        }
        work.peers.wake(id);
        1
    }

    /// Wakes the sessions whose time is up.
    pub(super) fn wake_late(&mut self, connections: &mut Connections<Session>) {
        while let Some(&(at, id)) = self.waits.blocking.deadlines.first()
            && at <= self.time.uptime
        {
            self.waits.blocking.deadlines.pop_first();
            connections.wake(id);
        }
    }
}
