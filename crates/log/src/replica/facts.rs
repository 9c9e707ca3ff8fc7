//! What is known of a replica, for whoever asks.

use super::{FOLLOWED_MILLIS, Replica, Role};
use crate::formats::format_to_write;
use crate::reader::LogPosition;
use crate::record::Epoch;
use crate::seam::Monotonic;

impl Replica {
    /// The epoch in which it executes and appends.
    #[must_use]
    pub fn serves(&self) -> Option<Epoch> {
        match &self.role {
            Role::Serves { appender, .. } => Some(appender.epoch()),
            _ => None,
        }
    }

    /// W1: whether answers may go out. Asked behind each batch that was executed, before its answers go out.
    #[must_use]
    pub fn may_answer(&self, now: Monotonic) -> bool {
        matches!(self.role, Role::Serves { .. }) && self.ownership.may_answer(now)
    }

    /// W1: until when answers may go out unless the lease is renewed; `None`: none may. For threads that ask by a clock of their own.
    #[must_use]
    pub fn answers_until(&self) -> Option<Monotonic> {
        self.serves().and_then(|_| self.ownership.answers_until())
    }

    /// The epoch in which it serves, or that of the log where it has just been at its end; 0: it lacks some of it.
    #[must_use]
    pub fn followed(&self, now: Monotonic) -> Epoch {
        let is_at_end = self.at_end.is_some_and(|at| now.since(at) < FOLLOWED_MILLIS);
        let read = if is_at_end { self.reader.epoch() } else { Epoch(0) };
        self.serves().unwrap_or(read)
    }

    /// When the log has answered a read last.
    #[must_use]
    pub fn read_last(&self) -> Option<Monotonic> {
        self.end.map(|(at, _)| at)
    }

    /// When it was at the end of the log last.
    #[must_use]
    pub fn was_at_end(&self) -> Option<Monotonic> {
        self.at_end
    }

    /// How many records the log had behind those that were read, when it has answered last.
    #[must_use]
    pub fn lag_records(&self) -> u64 {
        self.end.map_or(0, |(_, last)| last.0.saturating_sub(self.reader.at().0))
    }

    /// Whether the bucket says that the shard is this node's, as far as it knows; a lease that was released is no more.
    #[must_use]
    pub fn holds_lease(&self) -> bool {
        self.ownership.epoch().is_some()
    }

    /// Whether nothing more should be executed until something is acknowledged.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(&self.role, Role::Serves { appender, .. } if appender.is_full())
    }

    /// W4: whether the servers answer neither appends nor writes to the bucket, as far as this node knows: nothing more should be executed that would be
    /// appended. What was appended may be in the log.
    #[must_use]
    pub fn is_silent(&self, now: Monotonic) -> bool {
        self.silence.is_long(now) || self.ownership.is_silent(now)
    }

    /// Whether the log has the record that the replica has begun with, if there is one.
    #[must_use]
    pub fn has_confirmed(&self) -> bool {
        self.reader.unconfirmed().is_none()
    }

    /// The connection to the servers is lost.
    pub fn disconnected(&mut self, now: Monotonic) {
        self.ownership.disconnected(now);
    }

    /// Bytes that were appended and are not acknowledged.
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> usize {
        match &self.role {
            Role::Serves { appender, .. } => appender.unacknowledged_bytes(),
            _ => 0,
        }
    }

    /// The last record that is acknowledged and applied.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        match &self.role {
            Role::Serves { acknowledged, .. } => *acknowledged,
            _ => self.reader.position(),
        }
    }

    /// All processes that are known read formats of records up to this one ([`newest_for_all`](crate::newest_for_all)); `None`: that is not known.
    pub fn set_newest_for_all(&mut self, format: Option<u16>) {
        self.for_all = format;
    }

    /// F1: the format of records that are written now.
    #[must_use]
    pub fn writes(&self) -> u16 {
        format_to_write(self.config.records, self.for_all, self.in_log)
    }
}
