//! What the log says when the state changes of which a node's figures tell: once when it becomes so, and once when it is so no more.

use crate::log::event;

/// A lease that was not renewed for so long is late, in milliseconds: an owner renews once a second, and stops answering after two.
const LATE_MILLIS: u64 = 1500;

/// What was said last.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Whether the node was ready when it stood by; nothing is said before it first is.
    was_ready: Option<bool>,
    /// Whether the shard had an owner that was heard; nothing is said before it first had.
    was_owned: Option<bool>,
    was_late: bool,
}

impl Notices {
    /// How a node that stands by does: why it is not ready, and whether the shard has an owner that is heard.
    pub(super) fn of_standby(&mut self, unready: Option<&str>, is_owned: bool) {
        match (self.was_owned, is_owned) {
            (Some(true), false) => event!(
                warn,
                "cluster",
                "no_owner",
                "nobody who owns the shard is heard any more: it has no owner, or this node does not reach the NATS servers"
            ),
            (Some(false), true) => {
                event!(info, "cluster", "owner_heard", "the shard has an owner again");
            }
            _ => {}
        }
        if is_owned || self.was_owned.is_some() {
            self.was_owned = Some(is_owned);
        }
        match (self.was_ready, unready) {
            (Some(true), Some(why)) => event!(warn, "cluster", "unready", why),
            (None | Some(false), None) => event!(
                info,
                "cluster",
                "ready",
                "the node has followed the log to its end, and can forward its clients"
            ),
            _ => {}
        }
        if unready.is_none() || self.was_ready.is_some() {
            self.was_ready = Some(unready.is_none());
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
    use super::Notices;

    #[test]
    fn what_has_not_been_is_not_missed() {
        let mut notices = Notices::default();
        notices.of_standby(Some("it begins"), false);
        assert_eq!((notices.was_ready, notices.was_owned), (None, None));
        notices.of_standby(None, true);
        assert_eq!((notices.was_ready, notices.was_owned), (Some(true), Some(true)));
        notices.of_standby(Some("it is cut off"), false);
        assert_eq!((notices.was_ready, notices.was_owned), (Some(false), Some(false)));
        notices.of_lease(1499);
        assert!(!notices.was_late);
        notices.of_lease(1500);
        assert!(notices.was_late);
    }
}
