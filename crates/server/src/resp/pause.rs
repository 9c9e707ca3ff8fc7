//! CLIENT PAUSE: requests of clients wait for a while, all of them or those that write.
//!
//! Every shard is told, and each has its own clients wait, when their requests come to be executed. What other shards ask was let
//! through where its client is. A transaction waits as a whole, at EXEC. Flows rest whatever waits, since what they do is to write.
//! Keys expire meanwhile: views over several shards would otherwise show what is over.

use super::{Flow, ShardService, Turn, Waiting};
use crate::connection::ConnectionId;
use crate::resp::parts::Waits;
use headwater_command::{Args, Flags, Id, OwnedArgs, Spec};
use headwater_protocol::resp::find;

/// What waits, and until when.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// The moment of the server's life at which it ends, in milliseconds; 0: there was none.
    until: u64,
    writes_alone: bool,
    /// Sessions that wait.
    waiting: Vec<ConnectionId>,
}

impl Pause {
    /// Whether requests wait now.
    #[inline]
    pub(super) fn is_on(&self, now: u64) -> bool {
        self.until > now
    }

    /// When requests go on that wait now.
    pub(super) fn end(&self, now: u64) -> Option<u64> {
        self.is_on(now).then_some(self.until)
    }
}

/// Whether a request waits where those do that write: it writes, or speaks to others.
fn writes(spec: &Spec) -> bool {
    spec.flags.has(Flags::WRITE) || matches!(spec.id, Id::Publish | Id::SPublish)
}

impl ShardService {
    /// Has requests wait from now on. What is under way already ends no sooner for that, and stays as strict as it is.
    pub(super) fn pause(&mut self, millis: u64, writes_alone: bool) {
        let now = self.time.uptime;
        let was_on = self.waits.pause.is_on(now);
        // The clock of a turn is up to a millisecond behind: nothing goes on before the time.
        let until = now.saturating_add(millis).saturating_add(1);
        self.waits.pause.writes_alone = writes_alone && (!was_on || self.waits.pause.writes_alone);
        self.waits.pause.until = if was_on { self.waits.pause.until.max(until) } else { until };
    }

    /// Lets the session wait, if requests of this kind do.
    #[cold]
    pub(super) fn wait_for_pause(
        &mut self,
        (spec, is_first): (&Spec, bool),
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let session = &work.connection.session;
        if spec.id == Id::ClientUnpause || session.is_remote() || self.waits.executing_queue {
            return None;
        }
        let queued = session.queue.iter().flat_map(|queue| &queue.requests);
        let waits = match spec.id {
            _ if !self.waits.pause.writes_alone => true,
            Id::Exec => queued.filter_map(|it| find(it.args()).ok()).any(writes),
            _ => writes(spec),
        };
        if !waits {
            return None;
        }
        // With several shards, whoever executes it counts it.
        if is_first && self.others.shards.is_none() {
            self.figures.stats.times.count();
        }
        let session = &mut work.connection.session;
        session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
        self.waits.park_until_unpaused(work.connection.id);
        Some(Flow::Parked)
    }

    /// Whether a request of memcached's protocol is to wait; the session is woken then.
    pub(crate) fn item_waits_for_pause(&mut self, writes: bool, work: &Turn<'_>) -> bool {
        let waits = self.waits.pause.is_on(self.time.uptime)
            && (writes || !self.waits.pause.writes_alone)
            && !work.connection.is_remote();
        if waits {
            self.waits.park_until_unpaused(work.connection.id);
        }
        waits
    }
}

impl Waits {
    /// Has nothing wait any more.
    pub(super) fn unpause(&mut self, work: &mut Turn<'_>) {
        self.pause.until = 0;
        for id in self.pause.waiting.drain(..) {
            work.peers.wake(id);
        }
    }

    fn park_until_unpaused(&mut self, id: ConnectionId) {
        self.blocking.add_deadline(Some(self.pause.until), id);
        self.pause.waiting.retain(|other| *other != id);
        self.pause.waiting.push(id);
    }
}
