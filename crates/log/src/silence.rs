//! Whether the servers take what they are given, as far as an owner can know it.
//!
//! Where nothing that was asked of a stream has succeeded for a while, or the connection is lost, the servers are taken to have no quorum. What was sent until
//! then may be in the log, or come to be; what is refused from then on is not, since it was never executed. A lease
//! ends later than that, so an owner that takes no writes goes on to answer reads until it does.

use crate::seam::Monotonic;

/// How long nothing may succeed, in milliseconds. Less than what a lease has left when a renewal is due, so that writes end before reads do.
const SILENCE_MILLIS: u64 = 500;

/// What has become of the requests to one stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    /// Since when something was asked, and nothing has succeeded.
    since: Option<Monotonic>,
    /// The connection was lost, and nothing has succeeded since.
    lost: bool,
}

impl Silence {
    /// Something is asked.
    pub fn asks(&mut self, now: Monotonic) {
        self.since = self.since.or(Some(now));
    }

    /// Something has succeeded; `awaits`: more than that was asked.
    pub fn heard(&mut self, awaits: bool, now: Monotonic) {
        *self = Self { since: awaits.then_some(now), lost: false };
    }

    /// Nothing can be asked any more: that is known at once.
    pub fn lost(&mut self) {
        self.lost = true;
    }

    /// Whether it is so long that nothing more is to be given to the stream. Only a success ends that.
    #[must_use]
    pub fn is_long(&self, now: Monotonic) -> bool {
        self.lost || self.since.is_some_and(|since| now.since(since) >= SILENCE_MILLIS)
    }
}
