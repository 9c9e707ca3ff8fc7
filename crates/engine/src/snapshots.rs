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
        if let Some(at) = status.expires_at {
            let earlier = Millis(at.0 - now.since(oldest).min(at.0));
            (status.since, status.expires_at) = (oldest, Some(earlier));
            self.views.snapshots.remove(&(at, id));
            self.views.snapshots.insert((earlier, id));
        }
    }

    /// Whether the time of a snapshot is over, for its readers or for the snapshot that is being computed.
    pub(crate) fn is_snapshot_over(&self, id: StatusId) -> bool {
        let status = self.views.statuses.get(id);
        let is_late = |window: Window| status.since.plus(window.within) <= self.now;
        status.expires_at.is_some_and(|at| at <= self.now || self.views.window.is_some_and(is_late))
    }
}

impl Views {
    /// A range is read.
    pub(crate) fn note_snapshot(&mut self, id: StatusId) {
        if let Some(window) = &mut self.window {
            let status = self.statuses.get(id);
            if status.expires_at.is_some() {
                window.oldest = window.oldest.min(status.since);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Engine, Expiry, Settings};
    use alloc::string::{String, ToString};
    use headwater_base::Millis;

    fn read(engine: &mut Engine, key: &str) -> String {
        let value = engine.get(key.as_bytes()).unwrap().map(|value| value.to_vec());
        String::from_utf8(value.unwrap_or_default()).unwrap()
    }

    /// How old what is read of `top|x` is, at most, where base data changes every 10 ms and `below|x` is read as often.
    fn oldest(joins: &[&str]) -> u64 {
        let mut engine = Engine::new(Settings::default());
        for (at, spec) in joins.iter().enumerate() {
            engine.join_add(&at.to_string(), spec, false).unwrap();
        }
        let mut oldest = 0;
        for now in (1000_u64..9000).step_by(10) {
            engine.advance(Millis(now));
            engine.set(b"base|x", now.to_string().as_bytes(), Expiry::Never).unwrap();
            read(&mut engine, "below|x");
            // Neither every moment, nor always the same one of a window.
            if now % 70 < 30 || now % 1300 < 300 {
                let seen: u64 = read(&mut engine, "top|x").parse().unwrap();
                oldest = oldest.max(now - seen);
            }
        }
        engine.check_invariants();
        oldest
    }

    #[test]
    fn a_snapshot_of_a_snapshot_is_no_older_than_its_own_time() {
        for (top, below, least) in [(300, 300, 200), (300, 1000, 200), (1000, 300, 800)] {
            let [above, under] = [top, below].map(|millis| millis as f64 / 1000.0);
            let lower = alloc::format!("below|<k> = snapshot {under} copy base|<k>");
            let upper = alloc::format!("top|<k> = snapshot {above} copy below|<k>");
            let found = oldest(&[&lower, &upper]);
            assert!((least..=top).contains(&found), "{top} over {below}: {found}");
            // With a pull join between.
            let between = "between|<k> = pull copy below|<k>";
            let upper = alloc::format!("top|<k> = snapshot {above} copy between|<k>");
            let found = oldest(&[&lower, between, &upper]);
            assert!((least..=top).contains(&found), "{top} over {below} by pull: {found}");
        }
        let joins =
            ["below|<k> = snapshot 0.9 copy base|<k>", "middle|<k> = snapshot 0.5 copy below|<k>"];
        let found = oldest(&[joins[0], joins[1], "top|<k> = snapshot 0.2 copy middle|<k>"]);
        assert!((100..=200).contains(&found), "{found}");
    }
}
