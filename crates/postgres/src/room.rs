//! How much the rows of loads may take before they are stored: a share of what the process's memory bound leaves to data.
//!
//! Each thread may load a little at any time. A load that needs more waits until it is the only large one; meanwhile it reads nothing, so that the
//! server holds the rest back. Rows that were told and are not stored yet are counted too: while they are much, no load begins with rows of its own.
//! So all of it together is no more than the large one's share, a little for each thread, and what may be told.
//!
//! # Invariants
//! - R1. A load that has rows and is not large waits for no other load: the threads end what they have begun, and none waits for another in a circle.
//! - R2. For what a load takes beyond a little, room was made before.

use headwater_base::source::Sink;
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The loads of one range together may bring all but this part.
const RANGE_LEAVES: u64 = 3;
/// A large load may hold this part: its rows are stored before it lets them go, so they are here twice for a moment, beside others of their range.
const LARGE: u64 = 4;
/// The small loads that are under way may hold this part together.
const SMALL: u64 = 10;
/// No load begins while those that were told and are not stored have more than this part.
const TOLD: u64 = 64;
/// For this part a load needs no room to be made.
const LITTLE: u64 = 512;
/// The part that a message may have, and a transaction.
const MESSAGE: u64 = 2;
const TRANSACTION: u64 = 8;
/// Whatever the bound is, messages and transactions may have so many bytes.
const FEWEST: usize = 1 << 20;
/// What bounds the bytes of a transaction that are kept ([`Room::transaction_bytes_max`]), for people.
pub(crate) const TRANSACTION_LIMIT: &str =
    "transaction-bytes-max, or an eighth of what the memory bound leaves to data";
/// What a key and its value take beside their bytes.
const PAIR_BYTES: usize = 64;

/// Room is made step by step as rows come: each step is this part of what a large load may take, or a small one.
const LARGE_STEP: u64 = 16;
const SMALL_STEP: u64 = 4;

/// What there is.
#[derive(Default)]
pub(crate) struct Room {
    /// What the process's memory bound leaves to data; 0: there is none.
    bound: AtomicU64,
    /// Who makes room.
    sink: Option<Arc<dyn Sink>>,
    taken: Mutex<HeldByLoads>,
    given_back: Condvar,
}

/// What loads have of it.
#[derive(Default)]
struct HeldByLoads {
    /// One of them is large.
    large: bool,
    /// Bytes of small ones that were told, and are not stored yet.
    told: u64,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Room").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Room {
    /// Without a bound; this is who makes room once there is one.
    pub(crate) fn new(sink: Arc<dyn Sink>) -> Self {
        Self { sink: Some(sink), ..Self::default() }
    }

    fn make(&self, bytes: u64) -> bool {
        self.sink.as_ref().is_none_or(|sink| sink.make_room(of_process(bytes)))
    }

    fn took(&self, bytes: u64) {
        if let Some(sink) = self.sink.as_ref().filter(|_| bytes > 0) {
            sink.took(of_process(bytes));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HeldByLoads> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is so, and does what follows from it then; whether it came to that.
    fn wait(
        &self,
        until: Instant,
        is_so: impl Fn(&HeldByLoads) -> bool,
        then: impl FnOnce(&mut HeldByLoads),
    ) -> bool {
        let mut taken = self.lock();
        while !is_so(&taken) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.given_back.wait_timeout(taken, left);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        then(&mut taken);
        true
    }

    fn change(&self, change: impl FnOnce(&mut HeldByLoads)) {
        change(&mut self.lock());
        self.given_back.notify_all();
    }

    /// Whether there is a bound.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bound.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn set_bound(&self, bytes: Option<u64>) {
        // Nothing at all is a bound as well.
        self.bound.store(bytes.map_or(0, |bytes| bytes.max(1)), Ordering::Relaxed);
    }

    /// This many bytes, or a part of the bound where that is less; never less than a connection needs.
    fn part(&self, part: u64, most: usize) -> usize {
        match self.bound.load(Ordering::Relaxed) {
            0 => most,
            bound => usize::try_from(bound / part).map_or(most, |part| part.clamp(FEWEST, most)),
        }
    }

    /// The longest message that is taken of a server: one is at hand at a time.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.part(MESSAGE, usize::MAX)
    }

    /// What of a transaction is kept until it ends, if it may be this much at most.
    pub(crate) fn transaction_bytes_max(&self, most: usize) -> usize {
        self.part(TRANSACTION, most.max(FEWEST)).min(most)
    }
}

fn of_process(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What one load holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    room: Arc<Room>,
    bytes: u64,
    /// That of the room when it began; 0: none.
    bound: u64,
    small_max: u64,
    is_large: bool,
    is_told: bool,
    /// For so many bytes room was made, and for so many of them lately.
    made: u64,
    promised: u64,
    until: Instant,
}

/// Why a load cannot hold more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// It would be more than any may.
    Alone(u64),
    /// Others hold what there is.
    Beside,
    /// Data that cannot go has it.
    Lacking,
}

impl Held {
    /// Nothing yet. So many threads load at once, and it may wait so long.
    pub(crate) fn new(room: &Arc<Room>, threads: usize, until: Instant) -> Self {
        let bound = room.bound.load(Ordering::Relaxed);
        Self {
            room: Arc::clone(room),
            bytes: 0,
            bound,
            small_max: bound / SMALL / threads.max(1) as u64,
            is_large: false,
            is_told: false,
            made: 0,
            promised: 0,
            until,
        }
    }

    /// Takes room for a pair of so many bytes, waiting for it if need be.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Full> {
        let is_first = self.bytes == 0;
        self.bytes += (bytes + PAIR_BYTES) as u64;
        if self.bound == 0 {
            return Ok(());
        }
        let (large_max, told_max) = (self.bound / LARGE, self.bound / TOLD);
        if is_first && !self.room.wait(self.until, |taken| taken.told <= told_max, |_| ()) {
            return Err(Full::Beside);
        }
        if self.bytes > large_max {
            return Err(Full::Alone(large_max));
        }
        if self.bytes > self.small_max && !self.is_large {
            self.is_large =
                self.room.wait(self.until, |taken| !taken.large, |taken| taken.large = true);
            if !self.is_large {
                return Err(Full::Beside);
            }
        }
        if self.bytes > self.made.max(self.bound / LITTLE) {
            self.make_room()?;
        }
        Ok(())
    }

    /// Has room be made for what it has and its next step (R2).
    fn make_room(&mut self) -> Result<(), Full> {
        let step = match self.is_large {
            true => self.bound / LARGE / LARGE_STEP,
            false => self.small_max / SMALL_STEP,
        };
        // For what there is now room was made before.
        self.end_promise();
        let lacking = self.bytes - self.made + step;
        if !self.room.make(lacking) {
            return Err(Full::Lacking);
        }
        (self.promised, self.made) = (lacking, self.bytes + step);
        Ok(())
    }

    fn end_promise(&mut self) {
        self.room.took(std::mem::take(&mut self.promised));
    }

    /// Whether so many bytes more would make a large one of it.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.bound > 0 && self.bytes + (bytes + PAIR_BYTES) as u64 > self.small_max
    }

    /// Whether a load that goes on for others, which have brought so many bytes, may bring more.
    ///
    /// # Errors
    /// All of them together are more than any may.
    pub(crate) fn allows(&self, bytes_before: u64) -> Result<(), Full> {
        let most = self.bound - self.bound / RANGE_LEAVES;
        match self.bound > 0 && bytes_before > most {
            true => Err(Full::Alone(most)),
            false => Ok(()),
        }
    }

    /// All rows are there, and are about to be told: what is to be dropped when they are stored.
    pub(crate) fn told(mut self) -> Arc<dyn Any + Send + Sync> {
        self.end_promise();
        if self.bound > 0 && !self.is_large {
            self.is_told = true;
            self.room.change(|taken| taken.told += self.bytes);
        }
        Arc::new(self)
    }
}

impl std::fmt::Display for Full {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Alone(most) => write!(
                out,
                "the range holds more than {most} bytes, what a load may take of the memory bound (maxmemory)"
            ),
            Self::Lacking => {
                out.write_str("the memory bound (maxmemory) leaves no room for all of the range")
            }
            Self::Beside => out
                .write_str("other loads hold what loads may take of the memory bound (maxmemory)"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end_promise();
        if self.is_large {
            self.room.change(|taken| taken.large = false);
        }
        if self.is_told {
            self.room.change(|taken| taken.told -= self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    #[test]
    fn one_load_is_large_and_the_others_are_small() {
        let room = Arc::new(Room::default());
        let now = Instant::now();
        assert_eq!(Held::new(&room, 4, now).add(usize::MAX / 2), Ok(()));
        room.set_bound(Some(64_000));
        let held = || Held::new(&room, 4, now);
        let (mut large, mut small, mut other) = (held(), held(), held());
        assert_eq!(small.add(1000), Ok(()));
        assert!(!small.is_full(400) && small.is_full(500));
        assert_eq!(large.add(10_000), Ok(()));
        assert_eq!(small.add(300), Ok(()));
        assert_eq!(other.add(10_000), Err(Full::Beside));
        drop(other);
        assert_eq!(large.add(10_000), Err(Full::Alone(16_000)));
        assert_eq!(large.allows(42_667), Ok(()));
        assert_eq!(large.allows(42_668), Err(Full::Alone(42_667)));
        drop(large);
        assert_eq!(small.add(10_000), Ok(()));
    }

    #[test]
    fn no_load_begins_while_much_is_told_and_those_that_have_begun_go_on() {
        let room = Arc::new(Room::default());
        room.set_bound(Some(64_000));
        let held = |until| Held::new(&room, 4, until);
        let now = Instant::now();
        let (mut begun, mut first, mut other) = (held(now), held(now), held(now));
        for load in [&mut begun, &mut first, &mut other] {
            assert_eq!(load.add(500), Ok(()));
        }
        let told = [first.told(), other.told()];
        assert_eq!(begun.add(500), Ok(()), "R1");
        assert_eq!(held(now).add(1), Err(Full::Beside));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| held(now + Duration::from_secs(600)).add(1));
            drop(told);
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        assert_eq!(held(now).add(1), Ok(()));
    }

    /// Has room for so many bytes.
    struct Limited(AtomicUsize);

    impl Sink for Limited {
        fn tell(&self, _: headwater_base::source::News) -> bool {
            true
        }

        fn make_room(&self, bytes: usize) -> bool {
            let less = |left: usize| left.checked_sub(bytes);
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        }

        fn took(&self, bytes: usize) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn room_is_made_for_all_but_a_little_and_what_is_promised_is_given_back() {
        let sink = Arc::new(Limited(AtomicUsize::new(3000)));
        let room = Arc::new(Room::new(sink.clone()));
        room.set_bound(Some(64_000));
        let left = || sink.0.load(Ordering::Relaxed);
        let held = || Held::new(&room, 4, Instant::now());
        let (mut little, mut small, mut large) = (held(), held(), held());
        assert_eq!((little.add(60), left()), (Ok(()), 3000));
        assert_eq!((small.add(736), left()), (Ok(()), 3000 - 800 - 400));
        assert_eq!((small.add(300), left()), (Ok(()), 3000 - 800 - 400));
        assert_eq!((small.add(100), left()), (Ok(()), 3000 - 128 - 400));
        assert_eq!((large.add(2000), left()), (Err(Full::Lacking), 3000 - 128 - 400));
        drop(large);
        let told = small.told();
        assert_eq!(left(), 3000);
        drop(told);
        let mut large = held();
        assert_eq!(large.add(1600), Ok(()));
        drop(large);
        assert_eq!((left(), Arc::strong_count(&sink)), (3000, 2));
        let weak: Weak<_> = Arc::downgrade(&room);
        drop((room, little));
        assert!(weak.upgrade().is_none(), "what was told is gone");
    }
}
