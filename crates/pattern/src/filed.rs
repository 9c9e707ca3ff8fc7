//! Many patterns of one table, filed so that those which concern a key, a range or another pattern are found
//! without a look at the others.
//!
//! Patterns that have as many components, and literals in the same places, have one *shape*. Within a shape they are in the
//! order of their literals, so ten thousand joins that differ in a literal are as quickly told apart as two. What is found is
//! a candidate: it agrees in the literals that were compared, and the caller looks at the rest.
//!
//! # Cost
//! A search for each shape, of which there are seldom more than two or three, and what it finds.

use crate::{Component, Pattern};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;
use headwater_base::key::SEPARATOR;

/// Patterns of one table, each with what it stands for.
#[derive(Debug)]
pub struct Filed<T> {
    shapes: Vec<Shape<T>>,
}

#[derive(Debug)]
struct Shape<T> {
    components: usize,
    /// The places of literals, in ascending order.
    places: Vec<usize>,
    /// By the literals, each with a `|` behind it.
    items: BTreeMap<Vec<u8>, Vec<T>>,
}

impl<T> Default for Filed<T> {
    fn default() -> Self {
        Self { shapes: Vec::new() }
    }
}

/// The places of a pattern's literals, and these with a `|` behind each.
fn literals(pattern: &Pattern) -> (Vec<usize>, Vec<u8>) {
    let (mut places, mut text) = (Vec::new(), Vec::new());
    for (at, component) in pattern.components.iter().enumerate() {
        if let Component::Literal(literal) = component {
            places.push(at);
            text.extend_from_slice(literal);
            text.push(SEPARATOR);
        }
    }
    (places, text)
}

impl<T: Copy + Ord> Filed<T> {
    /// Files a pattern.
    pub fn insert(&mut self, pattern: &Pattern, item: T) {
        let (places, text) = literals(pattern);
        let components = pattern.components.len();
        let found = self
            .shapes
            .iter_mut()
            .position(|shape| shape.components == components && shape.places == places);
        let at = found.unwrap_or_else(|| {
            self.shapes.push(Shape { components, places, items: BTreeMap::new() });
            self.shapes.len() - 1
        });
        let items = self.shapes[at].items.entry(text).or_default();
        if let Err(at) = items.binary_search(&item) {
            items.insert(at, item);
        }
    }

    /// Takes out what was filed under this pattern.
    pub fn remove(&mut self, pattern: &Pattern, item: T) {
        let (places, text) = literals(pattern);
        self.shapes.retain_mut(|shape| {
            if shape.components == pattern.components.len()
                && shape.places == places
                && let Some(items) = shape.items.get_mut(&text)
            {
                items.retain(|other| *other != item);
                if items.is_empty() {
                    shape.items.remove(&text);
                }
            }
            !shape.items.is_empty()
        });
    }

    /// Calls `each` with those whose literals are in `key`, a key of the table.
    pub fn of_key(&self, key: &[u8], each: &mut impl FnMut(T)) {
        // Where each component begins, and one beyond the end.
        let mut starts = Vec::new();
        let separators = key.iter().enumerate().filter(|(_, byte)| **byte == SEPARATOR);
        starts.extend(separators.map(|(at, _)| at + 1));
        let components = starts.len();
        starts.push(key.len() + 1);
        for shape in self.shapes.iter().filter(|shape| shape.components == components) {
            let text = shape.text(|at| Some(&key[starts[at]..starts[at + 1] - 1])).0;
            shape.items.get(&text).into_iter().flatten().copied().for_each(&mut *each);
        }
    }

    /// Calls `each` with those that may give keys which begin with `prefix`: the table's name, and components with a `|`
    /// behind each.
    pub fn of_prefix(&self, prefix: &[u8], each: &mut impl FnMut(T)) {
        let mut known: Vec<&[u8]> = prefix.split(|&byte| byte == SEPARATOR).skip(1).collect();
        // What is behind the last `|` is not known.
        known.pop();
        for shape in self.shapes.iter().filter(|shape| shape.components >= known.len()) {
            shape.find(|at| known.get(at).copied(), each);
        }
    }

    /// Calls `each` with those whose literals are no others than those of `pattern`, of the same table.
    pub fn of_pattern(&self, pattern: &Pattern, each: &mut impl FnMut(T)) {
        let literal = |at: usize| match &pattern.components[at] {
            Component::Literal(literal) => Some(literal.as_slice()),
            Component::Slot { .. } => None,
        };
        let components = pattern.components.len();
        for shape in self.shapes.iter().filter(|shape| shape.components == components) {
            shape.find(literal, each);
        }
    }
}

impl<T: Copy> Shape<T> {
    /// The first literals as `value` gives them, up to the first that it does not; whether these are all.
    fn text<'v>(&self, value: impl Fn(usize) -> Option<&'v [u8]>) -> (Vec<u8>, bool) {
        let mut text = Vec::new();
        for &at in &self.places {
            let Some(value) = value(at) else { return (text, false) };
            text.extend_from_slice(value);
            text.push(SEPARATOR);
        }
        (text, true)
    }

    fn find<'v>(&self, value: impl Fn(usize) -> Option<&'v [u8]>, each: &mut impl FnMut(T)) {
        let (text, all) = self.text(value);
        if all {
            self.items.get(&text).into_iter().flatten().copied().for_each(&mut *each);
            return;
        }
        // Those that begin with the text lie together, since each literal ends with a `|`.
        let from = (Bound::Included(&*text), Bound::Unbounded);
        let same =
            self.items.range::<[u8], _>(from).take_while(|(other, _)| other.starts_with(&text));
        same.flat_map(|(_, items)| items).copied().for_each(&mut *each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Join;
    use alloc::format;
    use alloc::string::String;
    use headwater_base::Limits;

    /// A pattern of the table `t` by its components, of which `*` stands for a slot.
    fn pattern(text: &str) -> Pattern {
        let mut output = String::from("t");
        let mut slots = String::new();
        for (at, component) in text.split('|').enumerate() {
            if component == "*" {
                output.push_str(&format!("|<s{at}>"));
                slots.push_str(&format!("|<s{at}>"));
            } else {
                output.push_str(&format!("|{component}"));
            }
        }
        let join = format!("{output} = copy source|<key>{slots}");
        Join::parse(&join, &Limits::default()).expect("a join").output
    }

    struct Draws(u64);

    impl Draws {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }

        fn components(&mut self) -> String {
            let names = ["a", "a!", "b", "ab", "*", "*"];
            let count = 1 + self.below(3);
            let parts: Vec<_> = (0..count).map(|_| names[self.below(6) as usize]).collect();
            parts.join("|")
        }
    }

    #[test]
    fn all_that_concern_a_key_a_prefix_or_a_pattern_are_found() {
        let mut draws = Draws(3);
        for _ in 0..200 {
            let mut filed = Filed::default();
            let mut patterns: Vec<Option<Pattern>> = Vec::new();
            for id in 0..30u32 {
                let pattern = pattern(&draws.components());
                filed.insert(&pattern, id);
                patterns.push(Some(pattern));
            }
            for (id, pattern) in patterns.iter_mut().enumerate().take(10) {
                filed.remove(&pattern.take().expect("is there"), id as u32);
            }
            let held = || {
                patterns.iter().enumerate().filter_map(|(id, it)| Some((id as u32, it.as_ref()?)))
            };
            for _ in 0..30 {
                let key = format!("t|{}", draws.components().replace('*', "slot"));
                let mut found = Vec::new();
                filed.of_key(key.as_bytes(), &mut |id| found.push(id));
                let mut wanted = held().filter(|(_, pattern)| pattern.matches(key.as_bytes()));
                assert!(wanted.all(|(id, _)| found.contains(&id)), "{key}");

                let prefix = format!("{key}|");
                found.clear();
                filed.of_prefix(prefix.as_bytes(), &mut |id| found.push(id));
                for (id, pattern) in held() {
                    let longer =
                        ["a", "a|b", "b|b", "slot|a!"].map(|more| format!("{prefix}{more}"));
                    let gives = longer.iter().any(|key| pattern.matches(key.as_bytes()));
                    assert!(!gives || found.contains(&id), "{prefix}");
                }

                let other = pattern(&draws.components());
                found.clear();
                filed.of_pattern(&other, &mut |id| found.push(id));
                let mut wanted = held().filter(|(_, pattern)| pattern.may_collide(&other));
                assert!(wanted.all(|(id, _)| found.contains(&id)), "{other:?}");
            }
        }
    }

    #[test]
    fn patterns_of_other_literals_are_no_candidates() {
        let mut filed = Filed::default();
        for id in 0..10_000u32 {
            filed.insert(&pattern(&format!("lit{id}|*")), id);
        }
        let (mut by_key, mut by_prefix, mut by_pattern) = (Vec::new(), Vec::new(), Vec::new());
        filed.of_key(b"t|lit77|x", &mut |id| by_key.push(id));
        filed.of_prefix(b"t|lit77|", &mut |id| by_prefix.push(id));
        filed.of_pattern(&pattern("lit77|*"), &mut |id| by_pattern.push(id));
        assert_eq!(
            (by_key, by_prefix, by_pattern),
            (alloc::vec![77], alloc::vec![77], alloc::vec![77])
        );
    }
}
