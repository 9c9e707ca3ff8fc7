//! Containing ranges and fixed slots, against every tuple of a small universe.
//!
//! The laws, for any patterns, bound slots and range:
//! - every tuple that fills an output key in the range has its source key in the containing range
//!   and the fixed slots' values;
//! - if no tuple does, there is no containing range and nothing is fixed;
//! - the containing range begins and ends at keys that contribute, as far as the first slot that
//!   is not bound says;
//! - a source with the output's own components has exactly the keys in range that contribute.
//!
//! The universe of a case is exhaustive for it: it has the bytes of the range's ends and one byte
//! in each gap between them, in values one byte longer than any component of the ends.

use crate::random::Random;
use headwater_base::KeyRange;
use headwater_pattern::{Bindings, Component, Pattern, containing_range, fixed_slots};

const SLOTS: usize = 3;

struct Case {
    output: Pattern,
    source: Pattern,
    range: KeyRange,
    bound: Vec<Option<Vec<u8>>>,
    /// The values of each slot that is not bound.
    universe: Vec<Vec<Vec<u8>>>,
}

/// The bytes of `ends`, and one from each gap between them and `|`; never `|`.
fn alphabet(ends: &[u8]) -> Vec<u8> {
    let mut marks = [ends, b"|"].concat();
    marks.sort_unstable();
    marks.dedup();
    let mut bytes = Vec::new();
    let mut from = 0;
    for mark in marks.into_iter().map(u16::from).chain([256]) {
        bytes.extend([from, mark].into_iter().filter(|&byte| from <= byte && byte < 256));
        from = mark + 1;
    }
    bytes.dedup();
    bytes.into_iter().map(|byte| byte as u8).filter(|&byte| byte != b'|').collect()
}

/// Every string of one to `most` bytes.
fn strings(bytes: &[u8], most: usize) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = bytes.iter().map(|&byte| vec![byte]).collect();
    let mut from = 0;
    for _ in 1..most {
        let to = all.len();
        for at in from..to {
            for &byte in bytes {
                let mut longer = all[at].clone();
                longer.push(byte);
                all.push(longer);
            }
        }
        from = to;
    }
    all
}

impl Case {
    fn draw(random: &mut Random) -> Self {
        let menu = [0x00, 0x01, b'0', b'1', b'a', b'{', b'}', b'~', 0xFF];
        let ends = [random.byte(&menu), random.byte(&menu)];
        // Many slots with long values make many tuples: few of those.
        let slots = [1, 1, 2, 2, 2, 2, 2, SLOTS][random.below(8)];
        let long = random.one_in([1, 2, 12, 40][slots]);
        let most = if long && slots < SLOTS { 2 } else { 1 };
        let widths: Vec<Option<usize>> =
            (0..slots).map(|_| random.one_in(3).then(|| 1 + random.below(most + 1))).collect();
        let pattern = |random: &mut Random, table: &[u8], count: usize| {
            let component = |random: &mut Random| match random.one_in(4) {
                true => Component::Literal(random.bytes(&ends, most)),
                false => {
                    let slot = random.below(slots);
                    Component::Slot { slot, width: widths[slot] }
                }
            };
            let components = (0..count).map(|_| component(random)).collect();
            Pattern { table: table.to_vec(), components }
        };
        let count = random.below(5);
        let output = pattern(random, b"t", count);
        let source = match random.one_in(4) {
            true => Pattern { table: b"p".to_vec(), ..output.clone() },
            false => {
                let count = random.below(4);
                pattern(random, b"p", count)
            }
        };
        let range = Self::range(random, &output, &ends, most);
        let bytes = alphabet(&[&ends, range.first.as_slice(), range.last.as_slice()].concat());
        let values = strings(&bytes, most + 1);
        let universe = widths.iter().map(|width| match width {
            Some(width) => values.iter().filter(|value| value.len() == *width).cloned().collect(),
            None => values.clone(),
        });
        let universe: Vec<Vec<Vec<u8>>> = universe.collect();
        // What is bound came from keys: from components as the ends may have them, too.
        let bound = universe
            .iter()
            .map(|values| random.one_in(4).then(|| values[random.below(values.len())].clone()))
            .collect();
        Self { output, source, range, bound, universe }
    }

    fn range(random: &mut Random, output: &Pattern, ends: &[u8], most: usize) -> KeyRange {
        let first = Self::end(random, output, ends, most);
        match random.below(8) {
            0 => KeyRange::prefix(&first),
            1 => KeyRange::point(&first),
            2 => KeyRange::new(&first, b""),
            3 => KeyRange::new(b"", &first),
            _ => {
                let last = Self::end(random, output, ends, most);
                if first < last {
                    KeyRange::new(&first, &last)
                } else {
                    KeyRange::new(&last, &first)
                }
            }
        }
    }

    /// An end of a range: often an output key or its beginning, with a byte more, less or other.
    fn end(random: &mut Random, output: &Pattern, ends: &[u8], most: usize) -> Vec<u8> {
        let mut key = output.table.clone();
        for component in &output.components {
            key.push(b'|');
            match component {
                Component::Literal(literal) if !random.one_in(8) => key.extend(literal),
                _ => key.extend(random.bytes(ends, most)),
            }
        }
        if random.one_in(2) {
            key.truncate(random.below(key.len() + 1));
        }
        match random.below(8) {
            0 => key.push(b'|'),
            1 => key.extend([b'|', random.byte(ends)]),
            2 => {
                // The whole group, as `prefix_end` gives it.
                key.pop();
                key.push(b'}');
            }
            _ => {}
        }
        // The universe must have longer values than any component here.
        let mut run = 0;
        key.retain(|&byte| {
            run = if byte == b'|' { 0 } else { run + 1 };
            run <= most
        });
        key
    }

    fn bindings(&self) -> Bindings<'_> {
        let mut bindings = Bindings::new();
        for (slot, value) in self.bound.iter().enumerate() {
            if let Some(value) = value {
                bindings.set(slot, value);
            }
        }
        bindings
    }

    /// Every tuple: all slots bound, those in `bound` to their values.
    fn tuples<'a>(&'a self, mut each: impl FnMut(&Bindings<'a>)) {
        fn go<'a>(
            case: &'a Case,
            slot: usize,
            bindings: &mut Bindings<'a>,
            each: &mut impl FnMut(&Bindings<'a>),
        ) {
            let used = case.output.has_slot(slot) || case.source.has_slot(slot);
            if slot == case.universe.len() {
                each(bindings);
            } else if bindings.is_bound(slot) || !used {
                go(case, slot + 1, bindings, each);
            } else {
                for value in &case.universe[slot] {
                    bindings.set(slot, value);
                    go(case, slot + 1, bindings, each);
                }
                bindings.clear(slot);
            }
        }
        go(self, 0, &mut self.bindings(), &mut each);
    }

    /// The part of a source key that ends with the first slot that is not bound, and its `|`.
    fn leading<'a>(&self, source_key: &'a [u8]) -> &'a [u8] {
        let free = self.source.components.iter().position(|component| match component {
            Component::Slot { slot, .. } => self.bound[*slot].is_none(),
            Component::Literal(_) => false,
        });
        let end = free.and_then(|free| {
            let mut bars = source_key.iter().enumerate().filter(|(_, byte)| **byte == b'|');
            bars.nth(free + 1).map(|(at, _)| at + 1)
        });
        &source_key[..end.unwrap_or(source_key.len())]
    }

    fn check(&self, seed: u64) {
        let bound = self.bindings();
        let containing = containing_range(&self.output, &self.range, &self.source, &bound);
        let fixed = fixed_slots(&self.output, &self.range);
        let shown = || {
            format!(
                "seed {seed}: output {:?} source {:?} bound {bound:?}\nrange {}\ncontaining {}",
                self.output.components,
                self.source.components,
                show(&self.range),
                containing.as_ref().map_or("none".into(), show)
            )
        };
        let parallel = self.source.components == self.output.components;
        let mut contributing: Vec<Vec<u8>> = Vec::new();
        let mut beside: Vec<Vec<u8>> = Vec::new();
        let (mut output_key, mut source_key) = (Vec::new(), Vec::new());
        self.tuples(|tuple| {
            output_key.clear();
            source_key.clear();
            assert!(self.output.fill(tuple, &mut output_key), "{}", shown());
            assert!(self.source.fill(tuple, &mut source_key), "{}", shown());
            let inside = containing.as_ref().is_some_and(|range| range.contains(&source_key));
            if self.range.contains(&output_key) {
                assert!(inside, "{}\nmisses {}", shown(), source_key.escape_ascii());
                let fixed = fixed.unwrap_or_else(|| panic!("{}\nnothing is fixed", shown()));
                for (slot, value) in fixed.iter() {
                    assert_eq!(tuple.get(slot), Some(value), "{}\nfixed {fixed:?}", shown());
                }
                contributing.push(source_key.clone());
            } else if inside {
                assert!(!parallel, "{}\nadmits {}", shown(), source_key.escape_ascii());
                beside.push(source_key.clone());
            }
        });
        assert_eq!(contributing.is_empty(), containing.is_none(), "{}", shown());
        let least = contributing.iter().map(|key| self.leading(key)).min();
        let greatest = contributing.iter().map(|key| self.leading(key)).max();
        for key in &beside {
            let leading = self.leading(key);
            let within = Some(leading) >= least && Some(leading) <= greatest;
            assert!(within, "{}\nadmits {}", shown(), key.escape_ascii());
        }
    }
}

fn show(range: &KeyRange) -> String {
    format!("[{}, {})", range.first.escape_ascii(), range.last.escape_ascii())
}

#[test]
fn containing_ranges_are_right_and_tight() {
    let cases = std::env::var("CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(6_000);
    for seed in 0..cases {
        Case::draw(&mut Random::new(seed)).check(seed);
    }
}

/// Every slot that all keys in the range agree on is fixed, if the range's ends spell its value.
#[test]
fn fixed_slots_are_all_found() {
    let mut found = 0;
    for seed in 0..3_000 {
        let mut case = Case::draw(&mut Random::new(seed));
        case.bound.fill(None);
        case.source = case.output.clone();
        let mut agreed: Option<Vec<Option<&[u8]>>> = None;
        let mut key = Vec::new();
        case.tuples(|tuple| {
            key.clear();
            if !case.output.fill(tuple, &mut key) || !case.range.contains(&key) {
                return;
            }
            let values = (0..SLOTS).map(|slot| tuple.get(slot));
            match &mut agreed {
                None => agreed = Some(values.collect()),
                Some(agreed) => {
                    for (known, value) in agreed.iter_mut().zip(values) {
                        *known = known.filter(|known| Some(*known) == value);
                    }
                }
            }
        });
        let fixed = fixed_slots(&case.output, &case.range);
        assert_eq!(fixed.is_some(), agreed.is_some(), "seed {seed}");
        let (Some(fixed), Some(agreed)) = (fixed, agreed) else { continue };
        for (slot, value) in agreed.iter().enumerate() {
            let Some(value) = value else { continue };
            let spelled = [&case.range.first, &case.range.last]
                .iter()
                .any(|end| end.split(|&byte| byte == b'|').any(|part| part.starts_with(value)));
            if spelled {
                let (range, output) = (show(&case.range), &case.output);
                assert_eq!(fixed.get(slot), Some(*value), "seed {seed}: {range} {output:?}");
                found += 1;
            }
        }
    }
    assert!(found > 200, "too few of the drawn ranges fix a slot: {found}");
}

/// `bind` gives the tuple that `fill` came from; a key of another tuple does not bind over it.
#[test]
fn binding_and_filling_are_inverse() {
    for seed in 0..300 {
        let case = Case::draw(&mut Random::new(seed));
        let mut key = Vec::new();
        case.tuples(|tuple| {
            key.clear();
            assert!(case.output.fill(tuple, &mut key));
            assert!(case.output.matches(&key), "seed {seed}");
            assert!(case.output.range_of_all().contains(&key), "seed {seed}");
            let mut bindings = Bindings::new();
            assert!(case.output.bind(&key, &mut bindings), "seed {seed}");
            for (slot, value) in bindings.iter() {
                assert_eq!(tuple.get(slot), Some(value), "seed {seed}");
            }
            let unchanged = *tuple;
            let mut over = *tuple;
            assert!(case.output.bind(&key, &mut over) && over == unchanged, "seed {seed}");
        });
    }
}
