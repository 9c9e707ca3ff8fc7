//! Patterns: the shape of a family of keys, `table|component|component…`.
//!
//! A key matches if it has exactly as many components as the pattern, its table and literals are
//! equal, every slot has a valid value (invariant I1), and a slot that occurs twice has the same
//! value twice. A pattern without components matches one key, its table name alone.

use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::key::SEPARATOR;

use crate::{Bindings, SlotId};

/// One component of a pattern.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Component {
    /// These bytes and no others.
    Literal(Vec<u8>),
    /// One or more bytes other than `|`.
    Slot {
        /// Which slot.
        slot: SlotId,
        /// Where given, the slot's value has exactly this many bytes.
        width: Option<usize>,
    },
}

impl Component {
    /// The slot that stands here, if one does.
    #[must_use]
    pub fn slot(&self) -> Option<SlotId> {
        match self {
            Self::Slot { slot, .. } => Some(*slot),
            Self::Literal(_) => None,
        }
    }
}

/// A table name and the components after it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    /// The bytes before the first `|`.
    pub table: Vec<u8>,
    /// What follows, each component after a `|`.
    pub components: Vec<Component>,
}

/// Whether `value` can be the value of a slot of this `width`.
#[inline]
pub(crate) fn fits(width: Option<usize>, value: &[u8]) -> bool {
    match width {
        Some(width) => value.len() == width && width > 0,
        None => !value.is_empty(),
    }
}

impl Pattern {
    /// Whether `key` has this shape; nothing is bound.
    #[inline]
    #[must_use]
    pub fn matches(&self, key: &[u8]) -> bool {
        let mut seen: u32 = 0;
        let mut repeats = false;
        let shaped = self.walk(key, |slot, _| {
            repeats |= seen & (1 << slot) != 0;
            seen |= 1 << slot;
            true
        });
        shaped && (!repeats || self.bind(key, &mut Bindings::new()))
    }

    /// Matches `key`, whose slots must agree with those that are already bound, and binds the
    /// rest. Where it does not match, `bindings` stay as they were.
    #[inline]
    pub fn bind<'k>(&self, key: &'k [u8], bindings: &mut Bindings<'k>) -> bool {
        let mark = bindings.mark();
        let matched = self.walk(key, |slot, value| match bindings.get(slot) {
            Some(bound) => bound == value,
            None => {
                bindings.set(slot, value);
                true
            }
        });
        if !matched {
            bindings.restore(mark);
        }
        matched
    }

    /// Shows each slot's value in `key` to `admit`, left to right, until it refuses one; whether
    /// it admitted all and the key has the pattern's shape.
    #[inline]
    fn walk<'k>(&self, key: &'k [u8], mut admit: impl FnMut(SlotId, &'k [u8]) -> bool) -> bool {
        let Some(mut rest) = key.strip_prefix(self.table.as_slice()) else { return false };
        for component in &self.components {
            // A component before this one that was longer than its literal fails here.
            let Some((&SEPARATOR, tail)) = rest.split_first() else { return false };
            match component {
                Component::Literal(literal) => match tail.strip_prefix(literal.as_slice()) {
                    Some(after) => rest = after,
                    None => return false,
                },
                Component::Slot { slot, width } => {
                    let end = tail.iter().position(|&byte| byte == SEPARATOR);
                    let (value, after) = tail.split_at(end.unwrap_or(tail.len()));
                    if !fits(*width, value) || !admit(*slot, value) {
                        return false;
                    }
                    rest = after;
                }
            }
        }
        rest.is_empty()
    }

    /// Appends the key that the bound slots give. `false`, with `out` as it was, if a slot of the
    /// pattern is unbound or its value is empty or breaks its width.
    #[inline]
    pub fn fill(&self, bindings: &Bindings<'_>, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let covered = self.bound_prefix(bindings, out) == self.components.len();
        if !covered {
            out.truncate(start);
        }
        covered
    }

    /// Appends `table|c1|c2|` for the longest leading run of components that are literals or bound
    /// slots, and returns how many components that run has. Where it has all of them, what was
    /// appended is the whole key, without a `|` at the end; otherwise it ends in `|`, and every
    /// key of this pattern that agrees with `bindings` starts with it.
    ///
    /// A bound slot whose value is empty or breaks the width (no key can match then) ends the run,
    /// as an unbound one does.
    pub fn bound_prefix(&self, bindings: &Bindings<'_>, out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(&self.table);
        for (at, component) in self.components.iter().enumerate() {
            out.push(SEPARATOR);
            match component {
                Component::Literal(literal) => out.extend_from_slice(literal),
                Component::Slot { slot, width } => match bindings.get(*slot) {
                    Some(value) if fits(*width, value) => out.extend_from_slice(value),
                    _ => return at,
                },
            }
        }
        self.components.len()
    }

    /// How many components and how many bytes [`Pattern::bound_prefix`] gives.
    #[must_use]
    pub fn bound_prefix_size(&self, bindings: &Bindings<'_>) -> (usize, usize) {
        let mut bytes = self.table.len();
        for (at, component) in self.components.iter().enumerate() {
            bytes += 1;
            bytes += match component {
                Component::Literal(literal) => literal.len(),
                Component::Slot { slot, width } => match bindings.get(*slot) {
                    Some(value) if fits(*width, value) => value.len(),
                    _ => return (at, bytes),
                },
            };
        }
        (self.components.len(), bytes)
    }

    /// A range that contains every key of this pattern: the containing range with nothing bound.
    #[must_use]
    pub fn range_of_all(&self) -> KeyRange {
        let mut prefix = Vec::new();
        if self.bound_prefix(&Bindings::new(), &mut prefix) == self.components.len() {
            KeyRange::point(&prefix)
        } else {
            KeyRange::prefix(&prefix)
        }
    }

    /// Whether one key can match both patterns. The slots of the two are unrelated, also where
    /// their ids are equal.
    #[must_use]
    pub fn may_collide(&self, other: &Self) -> bool {
        if self.table != other.table || self.components.len() != other.components.len() {
            return false;
        }
        // Components that must be equal in the common key form a class, named by its first
        // member; a class is possible if its literals are equal and its widths agree with them.
        let count = self.components.len();
        let mut classes: Vec<usize> = (0..count).collect();
        for pattern in [self, other] {
            for later in 0..count {
                let earlier = (0..later).find(|&earlier| pattern.same_slot(earlier, later));
                if let Some(earlier) = earlier
                    && classes[earlier] != classes[later]
                {
                    let (from, to) = (classes[later], classes[earlier]);
                    for class in &mut classes {
                        if *class == from {
                            *class = to;
                        }
                    }
                }
            }
        }
        let mut demands: Vec<Demand<'_>> = alloc::vec![Demand::default(); count];
        (0..count).all(|at| {
            let demand = &mut demands[classes[at]];
            demand.add(&self.components[at]) && demand.add(&other.components[at])
        })
    }

    /// Whether every key that matches `other` matches this pattern, as far as each component alone tells: where slots occur
    /// twice, or have widths, it is not said to.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let slots: Vec<SlotId> = self.slots().collect();
        let is_plain = slots.iter().enumerate().all(|(at, slot)| !slots[..at].contains(slot));
        let covers = |(own, other): (&Component, &Component)| match (own, other) {
            (Component::Slot { width: None, .. }, _) => true,
            (own, other) => own == other && matches!(own, Component::Literal(_)),
        };
        is_plain
            && self.table == other.table
            && self.components.len() == other.components.len()
            && self.components.iter().zip(&other.components).all(covers)
    }

    fn same_slot(&self, one: usize, two: usize) -> bool {
        match (&self.components[one], &self.components[two]) {
            (Component::Slot { slot: one, .. }, Component::Slot { slot: two, .. }) => one == two,
            _ => false,
        }
    }

    /// The pattern's slots, in the order of its components; one that occurs twice comes twice.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.components.iter().filter_map(|component| match component {
            Component::Slot { slot, .. } => Some(*slot),
            Component::Literal(_) => None,
        })
    }

    /// Whether a component is `slot`.
    #[must_use]
    pub fn has_slot(&self, slot: SlotId) -> bool {
        self.slots().any(|own| own == slot)
    }

    /// Length of the shortest key that matches.
    #[must_use]
    pub fn shortest_key_bytes(&self) -> usize {
        self.shortest_key_bytes_with(&Bindings::new())
    }

    /// Length of the shortest key that matches under these bindings.
    #[must_use]
    pub fn shortest_key_bytes_with(&self, bindings: &Bindings<'_>) -> usize {
        self.components.iter().fold(self.table.len(), |bytes, component| {
            bytes.saturating_add(1).saturating_add(match component {
                Component::Literal(literal) => literal.len(),
                Component::Slot { slot, width } => match bindings.get(*slot) {
                    Some(bound) => bound.len(),
                    None => width.unwrap_or(1),
                },
            })
        })
    }
}

/// What the components of one class, which must be equal, ask of their value.
#[derive(Clone, Default)]
struct Demand<'p> {
    literal: Option<&'p [u8]>,
    width: Option<usize>,
}

impl<'p> Demand<'p> {
    /// Adds what `component` asks for; whether a value can still satisfy everything.
    fn add(&mut self, component: &'p Component) -> bool {
        match component {
            Component::Literal(literal) => {
                if self.literal.is_some_and(|known| known != literal) {
                    return false;
                }
                self.literal = Some(literal);
            }
            Component::Slot { width: Some(width), .. } => {
                if self.width.is_some_and(|known| known != *width) {
                    return false;
                }
                self.width = Some(*width);
            }
            Component::Slot { width: None, .. } => {}
        }
        match (self.literal, self.width) {
            (Some(literal), Some(width)) => literal.len() == width,
            _ => true,
        }
    }
}
