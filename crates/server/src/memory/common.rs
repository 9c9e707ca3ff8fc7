//! What the shards of one process know of each other's memory.
//!
//! The bound is the process's: every shard compares all that the process takes with it. What the others may take before
//! they look again, they have promised here, and it counts as taken; so together they cannot pass the bound between
//! two samples. So has a command that takes much at once (`promise`).
//!
//! Memory goes to who needs it. A shard that finds little left asks the others to give up their parts of what
//! it is about to take, in proportion to what each holds; its own part goes as it writes. So much is evicted
//! everywhere as if victims were drawn from all keys of the process. A shard that has nothing to evict asks for all it
//! lacks, and waits until the others have answered.
//!
//! # Invariants
//! - C1. Who waits for others answers what it is asked meanwhile: two that wait for each other both go on.
//! - C2. A shard that had nothing to give is not waited for again for [`DRY`].
//!
//! # Cost
//! A few loads and stores a sample, in lines of their own. Nothing is locked but to wait.

use crate::memory::stores::WatchedStores;
use crate::shards::Transport;
use core::fmt;
use headwater_base::Shard;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long a shard that had nothing to give is left alone.
const DRY: Duration = Duration::from_millis(if cfg!(test) { 10_000 } else { 100 });
/// How long others may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often who waits looks whether it is asked something itself.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What one shard tells the others. In lines of its own, so that telling costs no other shard anything.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part {
    /// It may take so much before it looks again.
    promised: AtomicUsize,
    /// A command's part of that is in it: the shard has not looked since.
    announced: AtomicBool,
    /// Pages that something of it was in when it looked.
    held: AtomicUsize,
    /// Free for its values and never written.
    untouched: AtomicUsize,
    /// What its clients take.
    clients: AtomicUsize,
    /// Others ask it to give up so much.
    asked: AtomicUsize,
    /// Until then (in milliseconds of the process's life) it has nothing to give.
    dry_until: AtomicU64,
}

/// What all shards tell.
#[derive(Debug)]
pub(crate) struct Common {
    parts: Vec<Part>,
    /// The other shards are in processes of their own: they have bounds of their own, and nothing to give.
    apart: bool,
    /// The stores on disk, whose threads take memory that no shard holds.
    stores: WatchedStores,
    /// What the server takes with all shards, without data, as far as the first that began can tell.
    empty: AtomicUsize,
    /// What it took when the last that is ready was ([`super::Gauge::at_start`]).
    ready: AtomicUsize,
    /// What pages of the program may take at any time.
    program: AtomicUsize,
    begun: Instant,
    /// Held for a moment by who has answered, so that nobody who waits misses it.
    answering: Mutex<()>,
    answered: Condvar,
}

impl Common {
    pub(crate) fn new(shards: u16) -> Self {
        Self {
            parts: (0..shards).map(|_| Part::default()).collect(),
            apart: false,
            stores: WatchedStores::default(),
            empty: AtomicUsize::new(0),
            ready: AtomicUsize::new(0),
            program: AtomicUsize::new(0),
            begun: Instant::now(),
            answering: Mutex::new(()),
            answered: Condvar::new(),
        }
    }

    /// That of one of so many shards, where the others are in processes of their own.
    pub(crate) fn apart(shards: u16) -> Self {
        Self { apart: true, ..Self::new(shards) }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }
}

/// One shard's side.
#[derive(Clone)]
pub(crate) struct Share {
    me: usize,
    transport: Arc<Transport>,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Share {
    pub(crate) fn new(me: Shard, transport: Arc<Transport>) -> Self {
        Self { me: usize::from(me.0), transport }
    }

    fn common(&self) -> &Common {
        self.transport.memory()
    }

    fn own(&self) -> &Part {
        &self.common().parts[self.me]
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Part)> {
        let (me, apart) = (self.me, self.common().apart);
        self.common().parts.iter().enumerate().filter(move |(at, _)| *at != me && !apart)
    }

    fn sum_of_others(&self, part: impl Fn(&Part) -> &AtomicUsize) -> usize {
        self.others().map(|(_, other)| part(other).load(Ordering::Relaxed)).sum()
    }

    /// How many shards share the bound.
    pub(crate) fn shards(&self) -> usize {
        if self.common().apart { 1 } else { self.common().parts.len() }
    }

    /// Whether this is the one that tells what is of the process and of no shard.
    pub(crate) fn is_first(&self) -> bool {
        self.me == 0 || self.common().apart
    }

    /// Tells what the process takes without data as far as this shard knows; the most that any knows.
    pub(crate) fn tell_empty(&self, bytes: usize) -> usize {
        self.common().empty.fetch_max(bytes, Ordering::Relaxed).max(bytes)
    }

    /// Tells what the process took when this shard was ready ([`super::Gauge::at_start`]); when the last was.
    pub(crate) fn tell_ready(&self, bytes: usize) -> usize {
        self.common().ready.fetch_max(bytes, Ordering::Relaxed).max(bytes)
    }

    /// Tells what pages of the program may take at any time as far as this shard knows; the most that any knows.
    pub(crate) fn tell_program(&self, bytes: usize) -> usize {
        self.common().program.fetch_max(bytes, Ordering::Relaxed).max(bytes)
    }

    /// How many shards begin behind this one.
    pub(crate) fn to_come(&self) -> usize {
        if self.common().apart { 0 } else { self.shards() - 1 - self.me }
    }

    /// Tells what is free for values here and was never written; what is so everywhere.
    pub(crate) fn tell_untouched(&self, bytes: usize) -> usize {
        self.own().untouched.store(bytes, Ordering::Relaxed);
        bytes + self.sum_of_others(|part| &part.untouched)
    }

    /// What others may take before they look.
    pub(crate) fn promised_to_others(&self) -> usize {
        self.sum_of_others(|part| &part.promised)
    }

    /// Tells what this shard holds, and may take before it looks again: so much at any time, and what a command has `announced`.
    pub(crate) fn tell(&self, held: usize, promised: usize, announced: usize) {
        self.own().held.store(held, Ordering::Relaxed);
        self.own().promised.store(promised + announced, Ordering::Relaxed);
        self.own().announced.store(announced > 0, Ordering::Release);
    }

    /// Tells that this shard is about to take so much more.
    pub(crate) fn promise(&self, bytes: usize) {
        self.own().promised.fetch_add(bytes, Ordering::SeqCst);
        self.own().announced.store(true, Ordering::Release);
    }

    /// Whether a command of this shard has announced what it takes, and the shard has not looked since.
    pub(crate) fn has_announced(&self) -> bool {
        self.own().announced.load(Ordering::Relaxed)
    }

    /// Has the shards look whose commands have announced what they take: some have taken it by now, or less. Whether there are
    /// any.
    pub(crate) fn have_others_look(&self) -> bool {
        let announced = |(at, other): (usize, &Part)| {
            let waits = other.announced.load(Ordering::Acquire);
            if waits {
                self.transport.ring(Shard(at as u16));
            }
            waits
        };
        self.others().filter(|&other| announced(other)).count() > 0
    }

    /// The stores of all shards.
    pub(crate) fn stores(&self) -> &WatchedStores {
        &self.common().stores
    }

    /// Tells what the clients of this shard take; what those of the others take.
    pub(crate) fn tell_clients(&self, bytes: usize) -> usize {
        self.own().clients.store(bytes, Ordering::Relaxed);
        self.sum_of_others(|part| &part.clients)
    }

    /// The part of `bytes` that this shard has to give up where all do, in proportion to what they hold.
    pub(crate) fn own_part(&self, bytes: usize) -> usize {
        let own = self.own().held.load(Ordering::Relaxed);
        proportion(bytes, own, own + self.sum_of_others(|part| &part.held))
    }

    /// Asks the others for their parts of `bytes`.
    pub(crate) fn ask(&self, bytes: usize) {
        let own = self.own().held.load(Ordering::Relaxed);
        let all = own + self.sum_of_others(|part| &part.held);
        for (at, other) in self.others() {
            self.ask_one(at, proportion(bytes, other.held.load(Ordering::Relaxed), all));
        }
    }

    fn ask_one(&self, at: usize, bytes: usize) {
        if bytes > 0 {
            // Several that ask at once see the same lack: what the one gets the other has.
            self.common().parts[at].asked.fetch_max(bytes, Ordering::AcqRel);
            self.transport.ring(Shard(at as u16));
        }
    }

    /// Whether another shard may have something to give.
    pub(crate) fn may_gain(&self) -> bool {
        let now = self.common().now();
        self.others().any(|(_, other)| other.dry_until.load(Ordering::Acquire) <= now)
    }

    /// What this shard is asked to give up.
    #[inline]
    pub(crate) fn asked(&self) -> usize {
        self.own().asked.load(Ordering::Acquire)
    }

    /// This shard has given up what it was asked for (`bytes`), or all that can go: then it is `dry`.
    pub(crate) fn answer(&self, bytes: usize, dry: bool) {
        let (common, own) = (self.common(), self.own());
        if dry {
            let until = common.now() + DRY.as_millis() as u64;
            own.dry_until.store(until, Ordering::Release);
        }
        own.asked
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |asked| {
                Some(if dry { 0 } else { asked.saturating_sub(bytes) })
            })
            // It gives a value each time.
            .ok();
        drop(common.answering.lock().unwrap_or_else(PoisonError::into_inner));
        common.answered.notify_all();
    }

    /// This shard may have something to give again: it is about to store what it has got room for.
    pub(crate) fn end_dry(&self) {
        self.own().dry_until.store(0, Ordering::Release);
    }

    /// Asks the others for `bytes` altogether, and waits for their answers. This shard has nothing to give itself.
    /// `false`: neither have they.
    pub(crate) fn wait_for(&self, bytes: usize) -> bool {
        let common = self.common();
        self.answer(0, true);
        let now = common.now();
        let may_give: Vec<(usize, &Part)> = self
            .others()
            .filter(|(_, other)| other.dry_until.load(Ordering::Acquire) <= now)
            .collect();
        let held = |other: &Part| other.held.load(Ordering::Relaxed);
        let all: usize = may_give.iter().map(|(_, other)| held(other)).sum();
        for (at, other) in &may_give {
            self.ask_one(*at, proportion(bytes, held(other), all).max(1));
        }
        let asked = Instant::now();
        let mut guard = common.answering.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |(_, other): &(usize, &Part)| other.asked.load(Ordering::Acquire) > 0;
        while may_give.iter().any(is_open) && asked.elapsed() < PATIENCE {
            let waited = common.answered.wait_timeout(guard, LOOK_EVERY);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
            if self.asked() > 0 {
                drop(guard);
                self.answer(0, true);
                guard = common.answering.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
        !may_give.is_empty()
    }
}

fn proportion(bytes: usize, part: usize, all: usize) -> usize {
    (bytes as u128 * part as u128 / (all as u128).max(1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(count: u16) -> Vec<Share> {
        let transport = Transport::new(count);
        (0..count).map(|at| Share::new(Shard(at), transport.clone())).collect()
    }

    #[test]
    fn who_holds_most_gives_up_most() {
        let shares = shares(3);
        for (share, held) in shares.iter().zip([100, 300, 0]) {
            share.tell(held, 10, 0);
        }
        assert_eq!(shares[2].promised_to_others(), 20);
        shares[2].ask(80);
        assert_eq!(shares.iter().map(Share::asked).collect::<Vec<_>>(), [20, 60, 0]);
        assert_eq!((shares[0].own_part(80), shares[2].own_part(80)), (20, 0));
        // Another that lacks as much does not make it twice.
        shares[0].ask(80);
        assert_eq!(shares[1].asked(), 60);
        shares[1].answer(60, false);
        assert_eq!(shares[1].asked(), 0);
    }

    #[test]
    fn two_that_wait_for_each_other_go_on_and_dry_ones_are_left_alone() {
        let shares = shares(2);
        shares.iter().for_each(|share| share.tell(100, 0, 0));
        std::thread::scope(|scope| {
            for share in &shares {
                scope.spawn(|| share.wait_for(50));
            }
        });
        assert!(!shares[0].wait_for(50), "the other had nothing a moment ago");
        shares[1].end_dry();
        assert!(shares[0].may_gain(), "the other has stored something since");
        shares[1].answer(0, true);
        assert_eq!((shares[0].asked(), shares[1].asked()), (0, 0));
    }

    #[test]
    fn nobody_in_another_process_is_asked_or_waited_for() {
        let transport = Transport::apart(Shard(0), 3, 1);
        let share = Share::new(Shard(1), transport);
        share.tell(100, 10, 0);
        assert!(!share.wait_for(50) && !share.may_gain());
        assert_eq!((share.shards(), share.to_come(), share.is_first()), (1, 0, true));
        assert_eq!((share.promised_to_others(), share.own_part(80)), (0, 80));
    }

    #[test]
    fn an_answer_ends_the_wait() {
        let shares = shares(2);
        shares.iter().for_each(|share| share.tell(100, 0, 0));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| shares[0].wait_for(50));
            while shares[1].asked() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(shares[1].asked(), 50);
            shares[1].answer(50, false);
            assert!(waits.join().unwrap());
        });
    }
}
