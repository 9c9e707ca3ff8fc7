//! What is told to those who run the server when it begins or ends: evictions, refusals for want of memory, a store that takes
//! no writes.
//!
//! Each lasts for many commands, and is one line when it begins.

use super::ShardService;
use crate::log::{self, event};
use std::sync::Arc;

/// How often it is looked whether something has begun or ended, in milliseconds.
const LOOK_EVERY: u64 = 100;
/// What has not happened for so long has ended, in milliseconds.
const CALM: u64 = 10_000;

/// Something that happens again and again for a while.
#[derive(Default)]
struct Spell {
    /// When it happened last, while it lasts.
    last: Option<u64>,
}

impl Spell {
    /// It happens; whether it begins by that.
    fn happens(&mut self, now: u64) -> bool {
        self.last.replace(now).is_none()
    }

    /// Whether it has ended by now.
    fn ends(&mut self, now: u64) -> bool {
        self.last.take_if(|last| now >= *last + CALM).is_some()
    }
}

/// What has begun and not ended.
#[derive(Default)]
pub(super) struct Notices {
    looked: u64,
    evictions: Spell,
    /// What was evicted when it was looked last, and before the evictions began.
    evicted: (u64, u64),
    no_room: Spell,
    refusal: Option<Arc<str>>,
}

impl ShardService {
    /// Tells what has begun or ended. To be called each turn.
    #[inline]
    pub(super) fn notice(&mut self) {
        if self.time.uptime >= self.pushes.notices.looked + LOOK_EVERY {
            self.notice_now();
        }
    }

    fn notice_now(&mut self) {
        let (now, shard) = (self.time.uptime, self.others.me().0);
        self.pushes.notices.looked = now;
        self.notice_evictions(now, shard);
        if self.pushes.notices.no_room.ends(now) {
            event!(
                info,
                "memory",
                "room_again",
                shard,
                "no write was refused for want of memory for a while"
            );
        }
        let refusal = self.stores.write_refusal();
        if refusal != self.pushes.notices.refusal {
            match &refusal {
                Some(why) => event!(
                    error,
                    "store",
                    "store_refuses",
                    shard,
                    why = &**why,
                    "writes are refused"
                ),
                None => event!(info, "store", "store_accepts", shard, "writes are accepted again"),
            }
            self.pushes.notices.refusal = refusal;
        }
        self.notice_states();
        if shard == 0 {
            log::tell_left_out();
        }
    }

    fn notice_evictions(&mut self, now: u64, shard: u16) {
        let evicted = self.node.engine().evicted();
        let all = evicted.keys + evicted.ranges + evicted.loaded;
        let (seen, began) = self.pushes.notices.evicted;
        if all > seen {
            let begins = self.pushes.notices.evictions.happens(now);
            self.pushes.notices.evicted = (all, if begins { seen } else { began });
            if begins {
                let (bound, policy) =
                    (self.bound.gauge.bound(), self.settings.config.memory.policy.as_str());
                event!(
                    warn,
                    "memory",
                    "evictions_begin",
                    shard,
                    bound,
                    policy,
                    "evictions begin: the memory bound is reached"
                );
            }
        } else {
            // CONFIG RESETSTAT counts from 0 again.
            self.pushes.notices.evicted.0 = all;
        }
        if self.pushes.notices.evictions.ends(now) {
            let count = all.saturating_sub(self.pushes.notices.evicted.1);
            event!(
                info,
                "memory",
                "evictions_end",
                shard,
                count,
                "nothing was evicted for a while"
            );
        }
    }

    /// A write is refused for want of memory.
    #[cold]
    pub(super) fn notice_no_room(&mut self) {
        self.figures.stats.no_room += 1;
        if self.pushes.notices.no_room.happens(self.time.uptime) {
            let (shard, bound, policy) = (
                self.others.me().0,
                self.bound.gauge.bound(),
                self.settings.config.memory.policy.as_str(),
            );
            event!(
                warn,
                "memory",
                "no_room",
                shard,
                bound,
                policy,
                "writes are refused: the memory bound is reached, and nothing may be evicted"
            );
        }
    }

    /// Tells of the tasks of flows that were given up.
    pub(super) fn notice_dead_tasks(&mut self) {
        for dead in self.node.take_given_up() {
            let (flow, position, attempts) = (dead.flow.as_str(), dead.position, dead.attempts);
            event!(
                warn,
                "flows",
                "dead_letter",
                flow,
                position,
                attempts,
                "a task has failed too often: FLOW.DEAD shows it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM, Spell};

    #[test]
    fn what_goes_on_begins_once() {
        let mut spell = Spell::default();
        assert!(!spell.ends(5));
        assert!(spell.happens(10));
        assert!(!spell.happens(20));
        assert!(!spell.ends(20 + CALM - 1));
        assert!(spell.ends(20 + CALM));
        assert!(!spell.ends(20 + 2 * CALM));
        assert!(spell.happens(30 + CALM));
    }
}
