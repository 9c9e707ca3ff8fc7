//! How much the rows of loads may take before they are told: a share of the process's memory bound.
//!
//! A load may hold a little beside all others. One that needs more waits until it is the only large one; meanwhile it reads nothing, so that
//! the server holds the rest back. So all of them together hold no more than the large one's share and a little for each thread.

use headwater_base::source::Sink;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// The loads of one range together may bring this part of the bound.
const RANGE: u64 = 2;
/// A large load may hold this part: its rows are stored before it lets them go, so they are here twice for a moment.
const LARGE: u64 = 3;
/// All small loads together may hold this part.
const SMALL: u64 = 8;
/// Whatever the bound is, messages and transactions may have so many bytes.
const FEWEST: usize = 1 << 20;
/// What bounds the bytes of a transaction that are kept ([`Room::transaction_bytes_max`]), for people.
pub(crate) const TRANSACTION_LIMIT: &str =
    "transaction-bytes-max, or an eighth of the memory bound";
/// What a key and its value take beside their bytes.
const PAIR_BYTES: usize = 64;

/// Room for a large load is made step by step as its rows come: each step is this part of what such a load may take.
const STEP: u64 = 16;

/// What there is.
#[derive(Default)]
pub(crate) struct Room {
    /// The process's memory bound; 0: none.
    bound: AtomicU64,
    /// Who makes room.
    sink: Option<Arc<dyn Sink>>,
    large: Mutex<bool>,
    free: Condvar,
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
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.sink.as_ref().is_none_or(|sink| sink.make_room(bytes))
    }

    /// Whether there is a bound.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bound.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn set_bound(&self, bytes: Option<u64>) {
        self.bound.store(bytes.unwrap_or(0), Ordering::Relaxed);
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
        self.part(RANGE, usize::MAX)
    }

    /// What of a transaction is kept until it ends, if it may be this much at most.
    pub(crate) fn transaction_bytes_max(&self, most: usize) -> usize {
        self.part(SMALL, most.max(FEWEST)).min(most)
    }
}

/// What one load holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    room: Arc<Room>,
    bytes: u64,
    small_max: u64,
    large_max: u64,
    range_max: u64,
    is_large: bool,
    /// For so many bytes room was made.
    made: u64,
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
        let (small_max, large_max, range_max) = match bound {
            0 => (u64::MAX, u64::MAX, u64::MAX),
            bound => (bound / SMALL / threads.max(1) as u64, bound / LARGE, bound / RANGE),
        };
        let room = Arc::clone(room);
        let (bytes, made, is_large) = (0, 0, false);
        Self { room, bytes, small_max, large_max, range_max, is_large, made, until }
    }

    /// Takes room for a pair of so many bytes, waiting for it if need be.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Full> {
        self.bytes += (bytes + PAIR_BYTES) as u64;
        if self.bytes <= self.small_max {
            return Ok(());
        }
        if self.bytes > self.large_max {
            return Err(Full::Alone(self.large_max));
        }
        if !self.is_large {
            let mut taken = self.room.large.lock().unwrap_or_else(PoisonError::into_inner);
            while *taken {
                let left = self.until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Full::Beside);
                }
                let waited = self.room.free.wait_timeout(taken, left);
                taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            *taken = true;
            self.is_large = true;
        }
        if self.bytes > self.made {
            let step = self.large_max / STEP;
            if !self.room.make(self.bytes - self.made + step) {
                return Err(Full::Lacking);
            }
            self.made = self.bytes + step;
        }
        Ok(())
    }
}

impl Held {
    /// Whether so many bytes more would make a large one of it.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.bytes + (bytes + PAIR_BYTES) as u64 > self.small_max
    }

    /// Whether a load that goes on for others, which have brought so many bytes, may bring more.
    ///
    /// # Errors
    /// All of them together are more than any may.
    pub(crate) fn allows(&self, bytes_before: u64) -> Result<(), Full> {
        match bytes_before > self.range_max {
            true => Err(Full::Alone(self.range_max)),
            false => Ok(()),
        }
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
        if self.is_large {
            *self.room.large.lock().unwrap_or_else(PoisonError::into_inner) = false;
            self.room.free.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_load_is_large_and_the_others_are_small() {
        let room = Arc::new(Room::default());
        let now = Instant::now();
        assert_eq!(Held::new(&room, 4, now).add(usize::MAX / 2), Ok(()));
        room.set_bound(Some(64_000));
        let held = || Held::new(&room, 4, now);
        let (mut large, mut small, mut other) = (held(), held(), held());
        assert_eq!(small.add(1000), Ok(()));
        assert_eq!(large.add(10_000), Ok(()));
        assert_eq!(small.add(500), Ok(()));
        assert_eq!(other.add(10_000), Err(Full::Beside));
        drop(other);
        assert_eq!(large.add(20_000), Err(Full::Alone(21_333)));
        assert_eq!(large.allows(32_000), Ok(()));
        assert_eq!(large.allows(32_001), Err(Full::Alone(32_000)));
        drop(large);
        assert_eq!(small.add(10_000), Ok(()));
    }
}
