//! Keys whose values are all different: each must have been there throughout the time between the first operation that has set or seen it and the last
//! one, with no other value and nothing else meanwhile.

use super::{Asked, History, Operation, Told};
use std::collections::BTreeMap;

/// A key that has one value at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SingleValue {
    Register(usize),
    Place(usize),
}

/// What an operation does with such a key.
#[derive(PartialEq, Eq)]
enum ValueUse {
    Sets,
    Removes,
    Reads,
}

impl Operation {
    fn access(self, key: SingleValue) -> Option<ValueUse> {
        let (access, of) = match self {
            Self::Set(at) => (ValueUse::Sets, SingleValue::Register(at)),
            Self::Remove(at) => (ValueUse::Removes, SingleValue::Register(at)),
            Self::ReadRegister(at) => (ValueUse::Reads, SingleValue::Register(at)),
            Self::Lend(at, _) => (ValueUse::Sets, SingleValue::Place(at)),
            Self::ReadPlace(at) => (ValueUse::Reads, SingleValue::Place(at)),
            _ => return None,
        };
        (of == key).then_some(access)
    }
}

/// For how long the value of a register must have been there.
struct Zone {
    /// The first end of an operation that has set or seen it, and the last beginning of one.
    first_end: u64,
    last_began: u64,
    value: usize,
}

impl Zone {
    /// The times between which it was there, without a gap; or within which it was at some time.
    fn span(&self) -> (u64, u64) {
        (self.first_end.min(self.last_began), self.first_end.max(self.last_began))
    }

    fn was_there_throughout(&self) -> bool {
        self.first_end < self.last_began
    }
}

impl History {
    pub(super) fn check_register(&self, key: SingleValue) -> Result<(), String> {
        let mut zones = BTreeMap::new();
        let mut removals: Vec<(u64, u64, usize)> = Vec::new();
        let sets: BTreeMap<usize, &Asked> =
            self.all().filter(|(_, it)| it.operation.access(key) == Some(ValueUse::Sets)).collect();
        for (which, asked) in &sets {
            if let Some(end) = asked.end() {
                let zone = Zone { first_end: end, last_began: asked.began, value: *which };
                zones.insert(*which, zone);
            }
        }
        for (which, asked) in self.all() {
            match (asked.operation.access(key), &asked.answer) {
                (Some(ValueUse::Removes), answer) if !asked.is_refused() => {
                    let end = answer.as_ref().map_or(u64::MAX, |(end, _)| *end);
                    removals.push((asked.began, end, which));
                }
                (Some(ValueUse::Reads), Some((end, Told::Value(Some(value))))) => {
                    let of_nobody = || format!("operation {which} saw {value}, which nobody set");
                    let set = sets.get(value).ok_or_else(of_nobody)?;
                    if set.is_refused() || *end < set.began {
                        return Err(format!("operation {which} saw {value}: {set:?}"));
                    }
                    let zone = zones.entry(*value).or_insert(Zone {
                        first_end: *end,
                        last_began: set.began,
                        value: *value,
                    });
                    zone.first_end = zone.first_end.min(*end);
                    zone.last_began = zone.last_began.max(asked.began);
                }
                _ => {}
            }
        }
        let what = format!("{key:?}");
        let empty = self.reads_of_nothing(key);
        for one in zones.values().filter(|zone| zone.was_there_throughout()) {
            let (begin, end) = one.span();
            let within = |(first, last): (u64, u64)| begin < first && last < end;
            let breaks = |other: &&Zone| {
                let (first, last) = other.span();
                let overlaps = begin.max(first) < end.min(last);
                other.value != one.value
                    && if other.was_there_throughout() { overlaps } else { within((first, last)) }
            };
            if let Some(other) = zones.values().find(breaks) {
                return Err(format!(
                    "{what} had {} from {begin} to {end} without a gap, and {} meanwhile",
                    one.value, other.value
                ));
            }
            if let Some((which, ..)) = empty.iter().find(|it| within((it.1, it.2))) {
                return Err(format!(
                    "operation {which} saw nothing in {what}, and not {}, which it had before and behind",
                    one.value
                ));
            }
            if let Some(removal) = removals.iter().find(|it| within((it.0, it.1))) {
                let value = one.value;
                return Err(format!(
                    "{what} was removed by {removal:?}, and had {value} all the while from {begin} to {end}"
                ));
            }
        }
        match key {
            SingleValue::Register(_) => self.check_empty(key, &removals),
            // Values go by themselves as well.
            SingleValue::Place(_) => Ok(()),
        }
    }

    /// Reads that saw nothing, and their times.
    fn reads_of_nothing(&self, key: SingleValue) -> Vec<(usize, u64, u64)> {
        let of = |(which, asked): (usize, &Asked)| match asked.answer {
            Some((end, Told::Value(None)))
                if asked.operation.access(key) == Some(ValueUse::Reads) =>
            {
                Some((which, asked.began, end))
            }
            _ => None,
        };
        self.all().filter_map(of).collect()
    }

    /// Who saw nothing in a register can have: nobody had set it before, or there was a removal with no value set between the two.
    fn check_empty(&self, key: SingleValue, removals: &[(u64, u64, usize)]) -> Result<(), String> {
        // What nobody has removed was never set, at the beginning.
        let beginning = [(0, 0, usize::MAX)];
        for (which, began, end) in self.reads_of_nothing(key) {
            let was_set_between = |removed: u64| {
                self.asked.iter().any(|asked| {
                    asked.operation.access(key) == Some(ValueUse::Sets)
                        && asked.began > removed
                        && asked.end().is_some_and(|set| set < began)
                })
            };
            let mut before = removals.iter().chain(&beginning).filter(|it| it.0 <= end);
            if before.all(|it| was_set_between(it.1)) {
                return Err(format!(
                    "operation {which} saw nothing in {key:?}, which was set: that is lost"
                ));
            }
        }
        Ok(())
    }
}
