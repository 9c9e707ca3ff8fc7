//! What the shard's thread is told of its lease and of its log.

use super::{Driver, LAPSED_WAKE, monotonic, stop_for_good};
use headwater_log::LeaseTimes;
use std::sync::atomic::Ordering;

impl Driver {
    /// Tells the shard until when it may answer, and whether the log takes what it would append.
    pub(super) fn publish(&mut self) {
        let now = monotonic();
        if let Some(done) = &self.releasing {
            if !self.replica.holds_lease() {
                let _heard = done.send(());
            }
            return;
        }
        let bytes = self.replica.unacknowledged_bytes() as u64;
        self.lease.unacknowledged_bytes.store(bytes, Ordering::Relaxed);
        self.lease.unacknowledged_records.store(self.appended.len() as u64, Ordering::Relaxed);
        self.lease.log_bytes.store(self.servers.extent().bytes, Ordering::Relaxed);
        let until = self.replica.answers_until().map_or(0, |until| until.0);
        if until > 0 {
            let renewed = until - LeaseTimes::default().lease_millis;
            self.lease.renewed.store(renewed, Ordering::Relaxed);
            self.notices.of_lease(now.0.saturating_sub(renewed));
        }
        let before = self.lease.answers_until.swap(until, Ordering::AcqRel);
        let silent = self.replica.is_silent(now);
        let changed = self.lease.silent.swap(silent, Ordering::Relaxed) != silent;
        let Some(store) = &self.store else { return };
        let bytes = self.memory.0.bytes();
        if changed {
            store.wake();
        }
        if self.memory.1 != bytes {
            self.memory.1 = bytes;
            store.wake();
        }
        if (until <= now.0 && now.since(self.woken) >= LAPSED_WAKE)
            || (before <= now.0 && now.0 < until)
        {
            self.woken = now;
            store.wake();
        }
        if store.failed() {
            self.lease.answers_until.store(0, Ordering::Release);
            stop_for_good("the folder cannot be written any more: another node takes over");
        }
    }
}
