//! Values that go by themselves: none goes before its time, or without one; and what was seen to be gone does not return (`registers`).

use super::{Asked, History, Operation, Told};

/// How long a value is there behind its time, at most, where the log takes nothing, and how much turns of an owner add to that.
const LATE: u64 = 2000 + 500;

impl Operation {
    /// The time after which it has the value of this place go, if it is about that at all.
    fn limit(self, place: usize) -> Option<Option<u64>> {
        match self {
            Self::Lend(at, limit) | Self::Limit(at, limit) if at == place => Some(limit),
            _ => None,
        }
    }
}

impl Asked {
    /// The last moment at which it may have been done.
    fn last_moment(&self) -> u64 {
        self.end().unwrap_or(u64::MAX)
    }

    /// Whether it may have been done, and has found something to change.
    fn may_count(&self) -> bool {
        !self.is_refused() && !matches!(self.answer, Some((_, Told::Number(0))))
    }
}

impl History {
    pub(super) fn check_lent(&self, place: usize) -> Result<(), String> {
        for (which, asked) in self.all() {
            if asked.operation != Operation::ReadPlace(place) {
                continue;
            }
            match asked.answer {
                Some((end, Told::Value(None))) => {
                    self.check_is_gone(place, which, (asked.began, end))?;
                }
                Some((_, Told::Value(Some(value)))) => {
                    self.check_is_there(place, which, (asked.began, value))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Operations that change a place, or how long it has something.
    fn changes(&self, place: usize) -> impl Iterator<Item = (usize, &Asked)> {
        self.all().filter(move |(_, it)| it.operation.limit(place).is_some() && it.may_count())
    }

    /// Who saw nothing must find a value whose time may have come, and that may have been the last one; or none at all.
    fn check_is_gone(
        &self,
        place: usize,
        which: usize,
        (began, end): (u64, u64),
    ) -> Result<(), String> {
        let sets =
            || self.changes(place).filter(|(_, it)| matches!(it.operation, Operation::Lend(..)));
        let is_over = |from: u64| {
            sets().any(|(_, it)| it.began > from && it.end().is_some_and(|end| end < began))
        };
        let may_have_gone = |(value, set): (usize, &Asked)| {
            let from = set.last_moment();
            self.changes(place).any(|(by, limits)| {
                let is_of_it = by == value
                    || (matches!(limits.operation, Operation::Limit(..))
                        && limits.last_moment() >= set.began);
                let time = limits.operation.limit(place).flatten();
                let has_come =
                    time.is_some_and(|time| end + self.clocks_apart >= limits.began + time);
                // Another one took its place, which found the value there.
                let is_undone = self.changes(place).any(|(_, it)| {
                    matches!(it.operation, Operation::Limit(..))
                        && it.began > limits.last_moment().max(from)
                        && it.end().is_some_and(|end| end < began)
                });
                is_of_it && has_come && !is_undone
            })
        };
        let is_explained = !is_over(0)
            || sets()
                .filter(|(_, set)| set.began <= end && !is_over(set.last_moment()))
                .any(may_have_gone);
        is_explained.then_some(()).ok_or_else(|| {
            format!("operation {which} saw nothing in place {place}, where a value was whose time had not come")
        })
    }

    /// Who saw a value must not be too late for it.
    fn check_is_there(
        &self,
        place: usize,
        which: usize,
        (began, value): (u64, usize),
    ) -> Result<(), String> {
        let set = &self.asked[value];
        let (Some(Some(time)), Some(end)) = (set.operation.limit(place), set.end()) else {
            return Ok(());
        };
        let limits_anew = self.changes(place).any(|(_, it)| {
            matches!(it.operation, Operation::Limit(..)) && it.last_moment() >= set.began
        });
        if limits_anew || began <= end + time + self.clocks_apart + LATE {
            return Ok(());
        }
        Err(format!(
            "operation {which} began at {began} and saw {value} in place {place}, whose time had come: {set:?}"
        ))
    }
}
