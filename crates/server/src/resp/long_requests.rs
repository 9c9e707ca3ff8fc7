//! Requests that are long themselves: what they take beside data while they are executed is of the memory bound, too.

use super::bound::TAKEN_MIN;
use super::{Flow, ShardService, Turn};
use headwater_command::{Args, Flags, Id, Spec};

/// What a request takes while it is executed, in parts of its own bytes, and bytes for each argument.
struct Taken {
    parts: usize,
    each: usize,
}

/// What a request takes at most. It may have to wait, and be kept for that; of one for several shards there are parts for each
/// of them, on the way and where they are executed, in buffers that grow. What is watched or listened to stands in a table of the
/// session and in one of all, and again where the keys are.
fn taken(spec: &Spec, crosses: bool) -> Taken {
    let keeps = matches!(
        spec.id,
        Id::Watch | Id::Subscribe | Id::PSubscribe | Id::SSubscribe | Id::ClientTracking
    );
    match (keeps, crosses) {
        (false, false) => Taken { parts: 1, each: 16 },
        (false, true) => Taken { parts: 4, each: 64 },
        (true, false) => Taken { parts: 4, each: 256 },
        (true, true) => Taken { parts: 6, each: 384 },
    }
}

impl ShardService {
    /// Makes room for what a long request takes beside data while it is executed. `Some`: there is none, and it waits for some, or
    /// was refused.
    #[inline]
    pub(super) fn admit_length(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        self.bound.gauge.limit()?;
        // The command before has taken what it announced.
        self.bound.gauge.end_announced();
        let crosses = self.others.shards.is_some();
        let taken = taken(spec, crosses);
        let bytes = args.bytes() * taken.parts + args.len() * taken.each;
        if bytes > TAKEN_MIN { self.admit_long(bytes, spec, args, work) } else { None }
    }

    #[cold]
    fn admit_long(
        &mut self,
        bytes: usize,
        spec: &'static Spec,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let session = &work.connection.session;
        let is_admitted = session.is_remote() || self.waits.in_transaction(session);
        let is_alone = self.others.shards.is_none();
        if is_admitted || is_alone && spec.flags.has(Flags::DENYOOM) {
            // With what it belongs to, or with what it stores.
            return None;
        }
        let since = self.waits.running_since.unwrap_or(self.time.uptime);
        self.bound.gauge.begin_postponable(self.time.uptime.saturating_sub(since));
        if self.make_room_to_take(bytes) || spec.frees_room() {
            return None;
        }
        let waits = self.bound.gauge.gains_soon();
        // It takes nothing now, and others need not leave it any room.
        self.bound.gauge.end_announced();
        self.bound.gauge.refresh(self.node.engine().value_memory().untouched);
        if waits {
            let ticket = self.node.engine_mut().next_ticket();
            return Some(self.park(ticket, args, work));
        }
        self.notice_no_room();
        self.refuse_for_room(work);
        self.figures.stats.is_rejected = true;
        self.waits.end_caching(Some(spec), &mut work.connection.session);
        Some(Flow::Next)
    }
}
