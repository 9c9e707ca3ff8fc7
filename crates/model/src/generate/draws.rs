//! Random keys, values and ranges of a world: mostly ones that its joins care about.

use super::World;
use crate::join::{Bindings, Join, Part, Pattern};
use crate::rng::Rng;

impl World {
    fn component(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.chance(2) { Vec::new() } else { rng.pick(&self.components).clone() }
    }

    /// A pattern of some join, each source as likely as the output is.
    pub(super) fn pattern<'a>(&'a self, rng: &mut Rng, output_percent: usize) -> &'a Pattern {
        let join = &rng.pick(&self.joins).1;
        if rng.chance(output_percent) { &join.output } else { &rng.pick(&join.sources).1 }
    }

    /// A key that a pattern might match: equal slots are not made equal, widths mostly kept.
    fn filled(&self, rng: &mut Rng, pattern: &Pattern) -> Vec<u8> {
        self.filled_with(rng, pattern, &Vec::new())
    }

    /// The same, where some slots stand for what `bound` says.
    fn filled_with(&self, rng: &mut Rng, pattern: &Pattern, bound: &Bindings<'_>) -> Vec<u8> {
        let mut key = pattern.table.clone().into_bytes();
        for part in &pattern.parts {
            key.push(b'|');
            match part {
                Part::Literal(text) => key.extend_from_slice(text.as_bytes()),
                Part::Slot { form: Some(form), .. } => {
                    let value = self.value(rng);
                    if !form.encode(&value, &mut key) {
                        key.extend(self.component(rng));
                    }
                }
                Part::Slot { name, width, .. } => {
                    if let Some((_, value)) = bound.iter().find(|(slot, _)| slot == name) {
                        key.extend_from_slice(value);
                        continue;
                    }
                    let mut component = self.component(rng);
                    for _ in 0..6 {
                        if width.is_some_and(|width| width != component.len()) {
                            component = self.component(rng);
                        }
                    }
                    key.extend_from_slice(&component);
                }
            }
        }
        key
    }

    /// A source key for outputs in a range that was used already.
    fn feeding(&self, rng: &mut Rng) -> Vec<u8> {
        let ranges = self.used_ranges.borrow();
        let at = rng.below(ranges.len().max(1));
        let first = ranges.get(at).map_or(&[][..], |(first, _)| first);
        let table = first.split(|&byte| byte == b'|').next();
        let fits = |join: &&(String, Join)| Some(join.1.output.table.as_bytes()) == table;
        let joins: Vec<&(String, Join)> = self.joins.iter().filter(fits).collect();
        let join = if joins.is_empty() { &rng.pick(&self.joins).1 } else { &rng.pick(&joins).1 };
        let mut bound = Bindings::new();
        for (part, value) in join.output.parts.iter().zip(first.split(|&b| b == b'|').skip(1)) {
            if let Part::Slot { name, .. } = part
                && !value.is_empty()
            {
                bound.push((name, value));
            }
        }
        let source = &rng.pick(&join.sources).1;
        self.filled_with(rng, source, &bound)
    }

    fn like_a_join(&self, rng: &mut Rng, output_percent: usize) -> Vec<u8> {
        let pattern = self.pattern(rng, output_percent);
        self.filled(rng, pattern)
    }

    /// A key to write: mostly one that a join reads.
    pub fn key(&self, rng: &mut Rng) -> Vec<u8> {
        if !self.used_keys.borrow().is_empty() && rng.chance(40) {
            return rng.pick(&self.used_keys.borrow()).clone();
        }
        let key = self.new_key(rng);
        self.used_keys.borrow_mut().push(key.clone());
        key
    }

    fn new_key(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.weighted(&[84, 5, 8, 3]) {
            0 if rng.chance(if self.focus { 75 } else { 40 }) => self.feeding(rng),
            0 => self.like_a_join(rng, 0),
            1 => self.like_a_join(rng, 100),
            2 => {
                let mut key = rng.pick(&self.tables).clone().into_bytes();
                for _ in 0..rng.below(5) {
                    key.push(b'|');
                    key.extend(self.component(rng));
                }
                key
            }
            _ => {
                let plain: [&[u8]; 4] = [b"session:42", b"t", b"|x", b"\xff\xff"];
                rng.pick(&plain).to_vec()
            }
        }
    }

    /// A key to read, or a bound: mostly near a join's outputs.
    pub(crate) fn near(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.chance(85) { self.like_a_join(rng, 70) } else { self.key(rng) }
    }

    pub(crate) fn value(&self, rng: &mut Rng) -> Vec<u8> {
        if rng.chance(70) {
            return rng.pick(&self.values).clone();
        }
        rng.below(20).to_string().into_bytes()
    }

    fn bound(&self, rng: &mut Rng) -> Vec<u8> {
        let key = self.near(rng);
        let mut bound = key.clone();
        let separators: Vec<usize> = (0..key.len()).filter(|&at| key[at] == b'|').collect();
        match rng.below(9) {
            0 => {}
            1..=4 if !separators.is_empty() => bound.truncate(rng.pick(&separators) + 1),
            5 => bound.truncate(rng.below(key.len() + 1)),
            6 => bound.push(if rng.chance(50) { 0 } else { 0xff }),
            7 => {
                bound.truncate(rng.below(key.len() + 1));
                bound = headwater_base::prefix_end(&bound);
            }
            _ => {
                if let Some(last) = bound.last_mut() {
                    *last = last.wrapping_add(if rng.chance(50) { 1 } else { 255 });
                }
            }
        }
        bound
    }

    /// Bounds of a range: prefixes, tables, points and anything else.
    pub fn range(&self, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
        let used = self.used_ranges.borrow().len();
        let again = if self.focus && used > 2 { 85 } else { 35 };
        if used > 0 && rng.chance(again) {
            return rng.pick(&self.used_ranges.borrow()).clone();
        }
        let range = self.new_range(rng);
        self.used_ranges.borrow_mut().push(range.clone());
        range
    }

    fn new_range(&self, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
        if rng.chance(25) {
            return self.window(rng);
        }
        let first = self.bound(rng);
        match rng.below(12) {
            0..=4 => {
                let last = headwater_base::prefix_end(&first);
                (first, last)
            }
            5 => (first, Vec::new()),
            6 => {
                let table = self.pattern(rng, 70).table.clone().into_bytes();
                let first = [&table[..], b"|"].concat();
                let last = headwater_base::prefix_end(&first);
                (first, last)
            }
            7 if rng.chance(30) => (Vec::new(), Vec::new()),
            _ => {
                let last = self.bound(rng);
                let swap = first > last && rng.chance(95);
                if swap { (last, first) } else { (first, last) }
            }
        }
    }

    /// A part of what outputs have in common some components of: mostly one that goes on where an earlier one ended, or
    /// overlaps it, goes back behind it, or leaves a gap.
    fn window(&self, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
        let earlier = {
            let used = self.used_ranges.borrow();
            let range = (!used.is_empty() && rng.chance(80)).then(|| rng.pick(&used).clone());
            range.filter(|(first, last)| stem_of(first).is_some_and(|stem| last.starts_with(stem)))
        };
        let key = self.like_a_join(rng, 100);
        let from = earlier.as_ref().map_or(&key, |(first, _)| first);
        let stem = stem_of(from).map_or_else(|| key.clone(), <[u8]>::to_vec);
        let inside = |rng: &mut Rng| {
            let mut bound = [&stem[..], &self.component(rng)].concat();
            if rng.chance(25) {
                bound.push(b'|');
                bound.extend(self.component(rng));
            }
            bound
        };
        let (one, other) = (inside(rng), inside(rng));
        let (first, last) = match (earlier, rng.below(4)) {
            (Some((_, last)), 0 | 1) => (last, one.max(other)),
            (Some((first, _)), 2) => (one.min(other), first),
            _ => (one.clone().min(other.clone()), one.max(other)),
        };
        if first > last { (last, first) } else { (first, last) }
    }
}

/// What a bound has of a table and some components behind it.
fn stem_of(bound: &[u8]) -> Option<&[u8]> {
    let end = bound.iter().rposition(|&byte| byte == b'|')? + 1;
    let components = bound[..end].iter().filter(|&&byte| byte == b'|').count();
    (components > 1).then(|| &bound[..end])
}
