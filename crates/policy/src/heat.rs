//! One byte of an entry: how often it was used, and how long ago.
//!
//! For [`Order::Recency`] all eight bits are the moment of the last use, in thirty-seconds of a
//! turnover. For all others the upper four are a count of uses, halved every
//! [`HALF_LIFE`] turnovers, and the lower four the turnover of the last use.
//!
//! # Invariants
//! - H1. An age counts forward from the entry's moment to now, modulo the width of the moment.
//!   An entry that grows too old for that must be renewed when it is looked at
//!   ([`Heat::renewed`]); in the range that is left each entry is looked at many times, for a
//!   turnover draws every entry [`SAMPLES`](crate::SAMPLES) times on average.

use crate::Order;

/// Turnovers in which a count halves.
pub(crate) const HALF_LIFE: u8 = 4;
/// Moments of a turnover where the byte is a moment alone.
pub(crate) const FINE: u32 = 32;
/// The greatest count.
pub(crate) const COUNT_MAX: u8 = 15;

/// How often an entry was used, and how long ago.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Heat(u8);

impl Heat {
    /// The heat in a byte that [`Heat::byte`] gave.
    #[inline]
    #[must_use]
    pub fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// The byte to store.
    #[inline]
    #[must_use]
    pub fn byte(self) -> u8 {
        self.0
    }

    /// That of an entry used so often, the last time now.
    #[inline]
    pub(crate) fn new(order: Order, count: u8, now: u8) -> Self {
        match order {
            Order::Recency => Self(now),
            _ => Self((count.min(COUNT_MAX) << 4) | (now & 15)),
        }
    }

    /// Moments since the last use: turnovers, or for recency thirty-seconds of one.
    #[inline]
    #[must_use]
    pub fn age(self, order: Order, now: u8) -> u8 {
        match order {
            Order::Recency => now.wrapping_sub(self.0),
            _ => now.wrapping_sub(self.0) & 15,
        }
    }

    /// The count, as it was at the last use.
    #[inline]
    #[must_use]
    pub fn count(self, order: Order) -> u8 {
        match order {
            Order::Recency => 0,
            _ => self.0 >> 4,
        }
    }

    /// The count, halved for the time since the last use.
    #[inline]
    #[must_use]
    pub fn decayed(self, order: Order, now: u8) -> u8 {
        match order {
            Order::Recency => 0,
            _ => self.count(order) >> (self.age(order, now) / HALF_LIFE),
        }
    }

    /// The same entry after one more use.
    #[inline]
    pub(crate) fn hit(self, order: Order, now: u8) -> Self {
        Self::new(order, self.decayed(order, now) + 1, now)
    }

    /// The heat to store in its place before its age overflows (H1); `None` while there is time.
    #[inline]
    #[must_use]
    pub fn renewed(self, order: Order, now: u8) -> Option<Self> {
        let age = self.age(order, now);
        match order {
            Order::Recency => (age > 192).then(|| Self(now.wrapping_sub(192))),
            // Two half lives are taken from the age and from the count alike.
            _ => (age >= 3 * HALF_LIFE).then(|| {
                let moment = now.wrapping_sub(age - 2 * HALF_LIFE);
                Self::new(order, self.count(order) >> 2, moment)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_up_to_the_greatest_and_halve_with_time() {
        let order = Order::Cost;
        let mut heat = Heat::new(order, 0, 30);
        for uses in 1..40 {
            heat = heat.hit(order, 30);
            assert_eq!(heat.count(order), uses.min(COUNT_MAX));
        }
        for (now, left) in [(30, 15), (33, 15), (34, 7), (38, 3), (42, 1), (45, 1)] {
            assert_eq!(heat.decayed(order, now), left, "at {now}");
        }
        assert_eq!(heat.hit(order, 34).count(order), 8);
    }

    #[test]
    fn a_hot_entry_is_not_written_again_in_the_same_turnover() {
        let heat = Heat::new(Order::Cost, COUNT_MAX, 7);
        assert_eq!(heat.hit(Order::Cost, 7), heat);
        assert_ne!(heat.hit(Order::Cost, 8), heat);
    }

    #[test]
    fn ages_count_over_the_end_of_the_moment() {
        let heat = Heat::new(Order::Recency, 9, 250);
        assert_eq!((heat.age(Order::Recency, 4), heat.count(Order::Recency)), (10, 0));
        let heat = Heat::new(Order::Frequency, 9, 15);
        assert_eq!((heat.age(Order::Frequency, 18), heat.count(Order::Frequency)), (3, 9));
    }

    #[test]
    fn renewing_keeps_an_old_entry_old() {
        for order in [Order::Recency, Order::Cost] {
            let mut heat = Heat::new(order, 15, 0);
            for now in 0..=255u8 {
                if let Some(renewed) = heat.renewed(order, now) {
                    assert!(renewed.decayed(order, now) <= heat.decayed(order, now));
                    heat = renewed;
                    assert_eq!(heat.renewed(order, now), None);
                }
                let oldest = if order == Order::Recency { 192 } else { HALF_LIFE };
                assert!(now < oldest || heat.age(order, now) >= oldest, "{order:?} at {now}");
            }
            assert_eq!(heat.decayed(order, 255), 0);
        }
    }
}
