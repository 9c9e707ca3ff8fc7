//! What the log says when the state changes of which a node's figures tell: once when it becomes so, and once when it is so no more.

use crate::log::event;
use headwater_log::Monotonic;

/// A lease that was not renewed for so long is late, in milliseconds: an owner renews once a second, and stops answering after two.
const LATE_MILLIS: u64 = 1500;
/// What a node that stands by lacks for less is not worth a line, in milliseconds: so it is when a shard is given up to another node.
const LASTING_MILLIS: u64 = 1000;

/// Something that should be so, and was said to be or not.
#[derive(Debug, Default)]
struct Condition {
    /// What was said last; nothing before it first was so.
    said: Option<bool>,
    /// Since when it is not so.
    lacked: Option<Monotonic>,
}

/// What is to be said of a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConditionChange {
    First,
    Again,
    NoMore,
}

impl Condition {
    /// What is to be said now.
    fn look(&mut self, is_so: bool, now: Monotonic) -> Option<ConditionChange> {
        if is_so {
            self.lacked = None;
            return match self.said.replace(true) {
                None => Some(ConditionChange::First),
                Some(false) => Some(ConditionChange::Again),
                Some(true) => None,
            };
        }
        let since = *self.lacked.get_or_insert(now);
        let is_news = self.said == Some(true) && now.since(since) >= LASTING_MILLIS;
        is_news.then(|| {
            self.said = Some(false);
            ConditionChange::NoMore
        })
    }
}

/// What was said last.
#[derive(Debug, Default)]
pub(super) struct ClusterNotices {
    ready: Condition,
    owned: Condition,
    was_late: bool,
}

impl ClusterNotices {
    /// How a node that stands by does: why it is not ready, and whether the shard has an owner that is heard.
    pub(super) fn of_standby(&mut self, unready: Option<&str>, is_owned: bool, now: Monotonic) {
        match self.owned.look(is_owned, now) {
            Some(ConditionChange::NoMore) => event!(
                warn,
                "cluster",
                "no_owner",
                "nobody who owns the shard is heard any more: it has no owner, or this node does not reach the NATS servers"
            ),
            Some(ConditionChange::Again) => {
                event!(info, "cluster", "owner_heard", "the shard has an owner again");
            }
            Some(ConditionChange::First) | None => {}
        }
        match self.ready.look(unready.is_none(), now) {
            Some(ConditionChange::NoMore) => {
                event!(warn, "cluster", "unready", why = unready.unwrap_or_default());
            }
            Some(ConditionChange::First | ConditionChange::Again) => event!(
                info,
                "cluster",
                "ready",
                "the node has followed the log to near its end, and can forward its clients"
            ),
            None => {}
        }
    }

    /// How old the lease of an owner is.
    pub(super) fn of_lease(&mut self, age_millis: u64) {
        let is_late = age_millis >= LATE_MILLIS;
        if core::mem::replace(&mut self.was_late, is_late) != is_late {
            match is_late {
                true => event!(
                    warn,
                    "cluster",
                    "lease_late",
                    age_millis,
                    "the NATS servers have not acknowledged a renewal of the lease for so long: without one the node stops answering 2000 ms after the last"
                ),
                false => event!(info, "cluster", "lease_renewed", "the lease is renewed again"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterNotices, Condition, ConditionChange};
    use headwater_log::Monotonic;

    #[test]
    fn what_is_lacked_for_long_is_said_once_and_only_if_it_was_there() {
        let mut condition = Condition::default();
        for (at, is_so, news) in [
            (0, false, None),
            (5000, false, None),
            (6000, true, Some(ConditionChange::First)),
            (7000, false, None),
            (7900, true, None),
            (8000, false, None),
            (8999, false, None),
            (9000, false, Some(ConditionChange::NoMore)),
            (9500, false, None),
            (9600, true, Some(ConditionChange::Again)),
            (9700, true, None),
        ] {
            assert_eq!(condition.look(is_so, Monotonic(at)), news, "at {at}");
        }
    }

    #[test]
    fn a_lease_is_late_before_it_ends() {
        let mut notices = ClusterNotices::default();
        notices.of_lease(1499);
        assert!(!notices.was_late);
        notices.of_lease(1500);
        assert!(notices.was_late);
    }
}
