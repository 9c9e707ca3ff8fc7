//! How old snapshots are that are computed from other snapshots.
//!
//! Every part of a `snapshot T` read equals the recomputation at some moment at most T ago. So a range is as old as the oldest
//! data that it was computed from, its time is over T after that, and while it is computed no snapshot below it is read of
//! which T is over, however long that one may be kept for its own readers: it is computed anew. What a pull join gives
//! between two snapshots counts with what it reads.
//!
//! # Cost
//! A word that is looked at for each snapshot range that a read meets.

use crate::engine::Engine;
use crate::status::StatusId;
use crate::views::Views;
use headwater_base::Millis;
use headwater_pattern::Mode;

/// The snapshot that is being computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// For so many milliseconds data may be read: the least of its own time and those of the snapshots that it is for.
    within: u64,
    /// The moment of the oldest data that was read.
    oldest: Millis,
}

impl Engine {
    /// Begins to compute a range of a join in this mode. Gives what [`Engine::end_snapshot`] takes.
    pub(crate) fn begin_snapshot(&mut self, mode: Mode) -> Option<Window> {
        let outer = self.views.window;
        if let Mode::Snapshot { millis } = mode {
            let within = outer.map_or(millis, |outer| outer.within.min(millis));
            self.views.window = Some(Window { within, oldest: self.now });
        }
        outer
    }

    /// The range is computed, or cannot be. Gives the moment of the oldest data in it.
    pub(crate) fn end_snapshot(&mut self, outer: Option<Window>) -> Millis {
        let ended = core::mem::replace(&mut self.views.window, outer);
        ended.map_or(self.now, |window| window.oldest)
    }

    /// A range was computed from data of this moment and younger.
    pub(crate) fn date_snapshot(&mut self, id: StatusId, oldest: Millis) {
        let now = self.now;
        let status = self.views.statuses.get_mut(id);
        if let Some(at) = status.expires_at() {
            let earlier = Millis(at.0 - now.since(oldest).min(at.0));
            status.since = oldest;
            status.expire_at(earlier);
            self.views.snapshots.remove(&(at, id));
            self.views.snapshots.insert((earlier, id));
        }
    }

    /// Whether the time of a snapshot is over, for its readers or for the snapshot that is being computed.
    pub(crate) fn is_snapshot_over(&self, id: StatusId) -> bool {
        let status = self.views.statuses.get(id);
        let is_late = |window: Window| status.since.plus(window.within) <= self.now;
        status
            .expires_at()
            .is_some_and(|at| at <= self.now || self.views.window.is_some_and(is_late))
    }
}

impl Views {
    /// A range is read.
    pub(crate) fn note_snapshot(&mut self, id: StatusId) {
        if let Some(window) = &mut self.window {
            let status = self.statuses.get(id);
            if status.expires_at().is_some() {
                window.oldest = window.oldest.min(status.since);
            }
        }
    }
}
