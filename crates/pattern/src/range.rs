//! Containing ranges: which source keys can matter to a range of output keys.
//!
//! Slots have no fixed length and `|` sorts after digits and letters: `t|ann|10|bob` lies beyond
//! `t|ann|100`. So the posts that can show in `[t|ann|100, …)` are not those from `p|bob|100` on
//! but those from `p|bob|1` on, since `1` and `10` count as well. Here the output range is cut
//! into cells (see `cells`), each cell gives the least and the greatest source key that it
//! admits, and the containing range reaches from the least of them to the greatest. It is
//! therefore the smallest range there is, as far as the first component that no cell gives in
//! full: behind that, keys are contained without a look at what they have there.
//!
//! # Cost
//! Proportional to the number of cells times the number of source components; each candidate is
//! compared with the best one as it is formed, so only the two ends of the answer are allocated.
//! What follows one value of one slot to the end of a prefix is a single step.

use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_base::KeyRange;
use headwater_base::key::SEPARATOR;

use crate::Bindings;
use crate::cells::{Tail, visit_cells};
use crate::pattern::{Component, Pattern, fits};

/// The slots whose value every key of `range` that matches `output` must have; `None` if no key
/// in `range` can match `output`. Values are borrowed from the range's ends.
#[must_use]
pub fn fixed_slots<'k>(output: &Pattern, range: &'k KeyRange) -> Option<Bindings<'k>> {
    let mut fixed: Option<Bindings<'k>> = None;
    visit_cells(output, range, &Bindings::new(), |bindings, _| match &mut fixed {
        None => fixed = Some(*bindings),
        Some(fixed) => {
            for slot in output.slots() {
                if fixed.get(slot) != bindings.get(slot) {
                    fixed.clear(slot);
                }
            }
        }
    });
    fixed
}

/// A range of `source` keys that contains every key which, in some tuple that extends `bound`, can
/// give an output key inside `range`; `None` if there is no such key. It begins and ends as closely
/// as the first component of `source` that is neither given by `bound` nor by `range` tells.
#[must_use]
pub fn containing_range(
    output: &Pattern,
    range: &KeyRange,
    source: &Pattern,
    bound: &Bindings<'_>,
) -> Option<KeyRange> {
    let capacity = source.table.len() + range.first.len() + range.last.len() + 16;
    let mut found =
        KeyRange { first: Vec::with_capacity(capacity), last: Vec::with_capacity(capacity) };
    put_containing_range(output, range, source, bound, &mut found).then_some(found)
}

/// Writes the range of [`containing_range`] into `found`, whose memory is used again; whether there is one. If not, `found` is
/// unspecified.
#[must_use]
pub fn put_containing_range(
    output: &Pattern,
    range: &KeyRange,
    source: &Pattern,
    bound: &Bindings<'_>,
    found: &mut KeyRange,
) -> bool {
    if !source.admits(bound) {
        return false;
    }
    // Every source key starts with what `bound` gives; cells are compared behind that.
    found.first.clear();
    let given = source.bound_prefix(bound, &mut found.first);
    found.last.clear();
    found.last.extend_from_slice(&found.first);
    if let Some(stem) = rest_of_prefix(output, range, source, given, bound) {
        if let Some(separator) = found.last.last_mut() {
            *separator = SEPARATOR + 1;
        }
        found.first.extend_from_slice(stem);
        return true;
    }
    by_cells(output, range, source, bound, given, found)
}

/// The containing range by a look at every cell. Both ends of `found` are what `bound` gives of the source key, its
/// first `given` components.
fn by_cells(
    output: &Pattern,
    range: &KeyRange,
    source: &Pattern,
    bound: &Bindings<'_>,
    given: usize,
    found: &mut KeyRange,
) -> bool {
    let mut least = Edge::new(Side::Least, core::mem::take(&mut found.first));
    let mut greatest = Edge::new(Side::Greatest, core::mem::take(&mut found.last));
    let may_misfit = source.has_widths();
    visit_cells(output, range, bound, |bindings, tail| {
        if !may_misfit || source.admits(bindings) {
            least.offer(source, given, bindings, tail);
            greatest.offer(source, given, bindings, tail);
        }
    });
    let is_found = !least.vacant;
    found.first = least.bytes;
    found.last = greatest.into_end();
    is_found
}

/// Where the output range is all of a bound prefix from some value of the next slot on, and that
/// slot is the last of the source and the only one that is not given: what the least of its
/// values begins with. The source keys are then those from there to the end of what is given.
#[inline]
fn rest_of_prefix<'k>(
    output: &Pattern,
    range: &'k KeyRange,
    source: &Pattern,
    given: usize,
    bound: &Bindings<'_>,
) -> Option<&'k [u8]> {
    let (stem, width) = stem_of(output, range, source, given, bound)?;
    let (prefix, last) = (&range.first[..range.first.len() - stem.len()], &range.last);
    let before = prefix.len() - 1;
    let to_end = last.len() == prefix.len()
        && last[before] == SEPARATOR + 1
        && last[..before] == prefix[..before];
    if !to_end || stem.first() == Some(&0xFF) {
        return None;
    }
    let len = stem.iter().position(|&byte| byte == SEPARATOR);
    let value = &stem[..len.unwrap_or(stem.len())];
    let is_whole = len.is_none();
    match width {
        Some(width) => (is_whole && value.len() <= width).then_some(value),
        // A value that ends early sorts behind the stem if `|` sorts behind what the stem has
        // there, whatever the components behind it are; the shortest such value is the least source key.
        None => {
            let shorter = (1..value.len()).find(|&at| value[at] < SEPARATOR);
            shorter.map(|at| &value[..at]).or(is_whole.then_some(value))
        }
    }
}

/// Where the last slot of the source alone is not given, and decides where in `range` outputs lie whose other
/// components so far are those of the range's first key: what that key has from that slot on, and the slot's width.
#[inline]
fn stem_of<'k>(
    output: &Pattern,
    range: &'k KeyRange,
    source: &Pattern,
    given: usize,
    bound: &Bindings<'_>,
) -> Option<(&'k [u8], Option<usize>)> {
    let [.., Component::Slot { slot, width }] = &source.components[..] else { return None };
    if given + 1 != source.components.len() {
        return None;
    }
    let mut rest = range.first.strip_prefix(output.table.as_slice())?;
    let mut components = output.components.iter();
    let stem = loop {
        let component = components.next()?;
        let (&SEPARATOR, tail) = rest.split_first()? else { return None };
        let known = match component {
            Component::Literal(literal) => literal.as_slice(),
            Component::Slot { slot: own, width: own_width } => match bound.get(*own) {
                Some(value) if fits(*own_width, value) => value,
                Some(_) => return None,
                None if own == slot && own_width == width => break tail,
                None => return None,
            },
        };
        rest = tail.strip_prefix(known)?;
    };
    // At the end of a key its last component ends differently.
    components.next()?;
    Some((stem, *width))
}

/// Which keys of a containing range can be passed over. Slots have no fixed length: posts of `1`, `10` and `100` may lie in
/// `[t|ann|100, …)`, and so the containing range begins at `1`. Of the keys before `100` there, these two alone are of use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passing {
    /// What all keys begin with, and behind it the value from which all may be of use.
    first: Vec<u8>,
    lead: usize,
}

impl Passing {
    /// What can be passed over of the source keys that can give output keys inside `range`, in tuples that extend `bound`;
    /// nothing where none can, or that is not known.
    #[must_use]
    pub fn of(
        output: &Pattern,
        range: &KeyRange,
        source: &Pattern,
        bound: &Bindings<'_>,
    ) -> Option<Self> {
        let (given, lead) = source.bound_prefix_size(bound);
        let (stem, width) = stem_of(output, range, source, given, bound)?;
        let len = stem.iter().position(|&byte| byte == SEPARATOR).unwrap_or(stem.len());
        // Values of one length sort as their keys do.
        if width.is_some() || len < 2 {
            return None;
        }
        let mut first = Vec::with_capacity(lead + len);
        source.bound_prefix(bound, &mut first);
        first.extend_from_slice(&stem[..len]);
        Some(Self { first, lead })
    }

    /// Where the next key may lie that is of use, behind one that is of none; nothing where `key` may be of use.
    #[must_use]
    pub fn next(&self, key: &[u8]) -> Option<&[u8]> {
        let same = key.iter().zip(&self.first).take_while(|(one, two)| one == two).count();
        // What lies behind the first of all, or is the beginning of it, is of use as far as is known here.
        if same < self.lead || same == key.len() || same == self.first.len() {
            return None;
        }
        if key[same] > self.first[same] {
            return None;
        }
        let shorter = (same + 1..self.first.len()).find(|&at| self.first[at] < SEPARATOR);
        Some(&self.first[..shorter.unwrap_or(self.first.len())])
    }
}

impl Pattern {
    fn has_widths(&self) -> bool {
        self.components
            .iter()
            .any(|component| matches!(component, Component::Slot { width: Some(_), .. }))
    }

    /// Whether every bound slot of the pattern has a value that fits it.
    #[inline]
    fn admits(&self, bindings: &Bindings<'_>) -> bool {
        self.components.iter().all(|component| match component {
            Component::Slot { slot, width } => {
                bindings.get(*slot).is_none_or(|value| fits(*width, value))
            }
            Component::Literal(_) => true,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Least,
    Greatest,
}

/// The least (or greatest) source key offered so far.
struct Edge {
    side: Side,
    bytes: Vec<u8>,
    /// How many of them every source key starts with.
    lead: usize,
    /// Whether every key that starts with `bytes` is meant, or that key alone.
    open: bool,
    /// Nothing was offered yet.
    vacant: bool,
    /// How far the present offer equals `bytes`; meaningless once it replaces them.
    same: usize,
    /// The present offer is better: it is being written to `bytes`.
    replacing: bool,
}

impl Edge {
    fn new(side: Side, lead: Vec<u8>) -> Self {
        let same = lead.len();
        Self { side, bytes: lead, lead: same, open: false, vacant: true, same, replacing: false }
    }

    /// Offers the source keys that agree with `bindings` and `tail`; their first `given` components
    /// are known.
    #[inline]
    fn offer(&mut self, source: &Pattern, given: usize, bindings: &Bindings<'_>, tail: Tail<'_>) {
        self.same = self.lead;
        self.replacing = self.vacant;
        self.vacant = false;
        let mut go_on = true;
        for (at, component) in source.components.iter().enumerate().skip(given) {
            // The lead ends with the `|` before the first component that is not given.
            if !go_on || (at > given && !self.push(&[SEPARATOR])) {
                return;
            }
            go_on = match component {
                Component::Literal(literal) => self.push(literal),
                Component::Slot { slot, width } => match (bindings.get(*slot), tail) {
                    (Some(value), _) => self.push(value),
                    (None, Tail::Partial { slot: partial, stem, least, greatest })
                        if partial == *slot =>
                    {
                        let next = if self.side == Side::Least { least } else { greatest };
                        // A plain `p|bob|` for the least key, not `p|bob|\0`, where no key lies
                        // between that can match.
                        let last = at + 1 == source.components.len();
                        let alone = stem.is_empty() || width.is_some() || !last;
                        let plain = self.side == Side::Least && next == 0 && alone;
                        if self.push(stem) && (plain || self.push(&[next])) {
                            self.finish(true);
                        }
                        return;
                    }
                    (None, _) => {
                        self.finish(true);
                        return;
                    }
                },
            };
        }
        if go_on {
            self.finish(false);
        }
    }

    /// The next bytes of the present offer; whether it may still be better than what is kept.
    #[inline]
    fn push(&mut self, piece: &[u8]) -> bool {
        if self.replacing {
            self.bytes.extend_from_slice(piece);
            return true;
        }
        let kept = &self.bytes[self.same..];
        let shared = piece.len().min(kept.len());
        let at = piece[..shared].iter().zip(kept).take_while(|(one, two)| one == two).count();
        self.same += at;
        if at == piece.len() {
            return true;
        }
        let better = match kept.get(at) {
            Some(byte) => match self.side {
                Side::Least => piece[at].cmp(byte) == Ordering::Less,
                Side::Greatest => piece[at].cmp(byte) == Ordering::Greater,
            },
            // The offer is longer, so greater, unless what is kept includes all that is longer.
            None => self.side == Side::Greatest && !self.open,
        };
        if better {
            self.replacing = true;
            self.bytes.truncate(self.same);
            self.bytes.extend_from_slice(&piece[at..]);
        }
        better
    }

    /// The present offer ends; `open` as for the edge.
    #[inline]
    fn finish(&mut self, open: bool) {
        if self.replacing {
            self.open = open;
        } else if self.side == Side::Least || open {
            // What is kept has the offer as a prefix.
            self.bytes.truncate(self.same);
            self.open |= open;
        }
    }

    /// The end of the range whose greatest keys these are.
    fn into_end(mut self) -> Vec<u8> {
        if !self.open {
            self.bytes.push(0);
            return self.bytes;
        }
        while let Some(byte) = self.bytes.last_mut() {
            if *byte < 0xFF {
                *byte += 1;
                break;
            }
            self.bytes.pop();
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Join;
    use headwater_base::{Limits, prefix_end};

    #[test]
    fn keys_that_are_passed_over_give_nothing_in_the_range() {
        let join = "t|<u>|<x>|<p> = check s|<u>|<p> copy p|<p>|<x>";
        let join = Join::parse(join, &Limits::default()).expect("a join");
        let source = &join.sources[1].pattern;
        let mut bound = Bindings::new();
        bound.set(0, b"ann");
        bound.set(2, b"bob");
        let mut state = 5u64;
        let mut draw = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let (mut passed, mut used) = (0, 0);
        for _ in 0..100_000 {
            let mut bytes = |most: usize| -> Vec<u8> {
                (0..draw(most + 1)).map(|_| b"01a{|}~\x00\xff"[draw(9)]).collect()
            };
            let (first, last) = (bytes(6), bytes(6));
            let range =
                KeyRange::new(&[b"t|ann|", &first[..]].concat(), &[b"t|ann|", &last[..]].concat());
            let Some(passing) = Passing::of(&join.output, &range, source, &bound) else { continue };
            let value: Vec<u8> = bytes(5).into_iter().filter(|&byte| byte != b'|').collect();
            if value.is_empty() {
                continue;
            }
            let key = [b"p|bob|", &value[..]].concat();
            let Some(next) = passing.next(&key) else { continue };
            assert!(*next > key[..]);
            // Nothing between the two is of use, nor is the first.
            let between: Vec<u8> = bytes(5).into_iter().filter(|&byte| byte != b'|').collect();
            for value in [value, between] {
                let key = [b"p|bob|", &value[..]].concat();
                let given = [b"t|ann|", &value[..], b"|bob"].concat();
                if !value.is_empty() && key[..] < *next && key[..] >= b"p|bob|"[..] {
                    let is_passed = passing.next(&key).is_some();
                    assert!(!is_passed || !range.contains(&given), "{range:?} {key:?}");
                    passed += usize::from(is_passed);
                }
                used += usize::from(range.contains(&given));
            }
        }
        assert!(passed > 1000 && used > 100, "{passed} {used}");
    }

    #[test]
    fn the_rest_of_a_prefix_is_what_its_cells_give() {
        let mut state = 9u64;
        let mut draw = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let joins: Vec<Join> = [
            "t|<u>|<x>|<p> = check s|<u>|<p> copy p|<p>|<x>",
            "t|<u>|<x:2>|<p> = check s|<u>|<p> copy p|<p>|<x:2>",
            "t|<u>|new|<x>|<p> = check s|<u>|<p> copy p|<p>|all|<x>",
            "t|<x>|<u>|<p> = check s|<u>|<p> copy <p>|<u>|<x>",
            "t|<u>|<p>|<x> = check s|<u>|<p> copy p|<p>|<x>",
            "t|<u>|<x:1>|<p> = check s|<u>|<p>|<x:1> copy p|<p>|<x:1>",
        ]
        .iter()
        .filter_map(|text| Join::parse(text, &Limits::default()).ok())
        .collect();
        assert!(joins.len() >= 5);
        let mut short = 0;
        for _ in 0..300_000 {
            let join = &joins[draw(joins.len())];
            let output = &join.output;
            let mut bytes = |most: usize, from: &[u8]| -> Vec<u8> {
                (0..draw(most + 1)).map(|_| from[draw(from.len())]).collect()
            };
            let values: Vec<Vec<u8>> = (0..3).map(|_| bytes(1, b"ab")).collect();
            let stem = bytes(5, b"a{|}~\x00\x7e\xfe\xff059");
            let mut bound = Bindings::new();
            let mut used = KeyRange::new(&stem, b"of before");
            for (slot, name) in join.slots.iter().enumerate() {
                let value = &values[slot % 3];
                if name != "x" && !value.is_empty() && draw(8) > 0 {
                    bound.set(slot, value);
                }
            }
            let mut prefix = Vec::new();
            output.bound_prefix(&bound, &mut prefix);
            let mut range = KeyRange::prefix(&prefix);
            range.first.extend_from_slice(&stem);
            match draw(10) {
                0 => range.last = prefix_end(&range.first),
                1 => range.last.push(b'a'),
                2 => range.last = Vec::new(),
                3 => drop(range.first.pop()),
                _ => {}
            }
            for source in &join.sources {
                let source = &source.pattern;
                if !source.admits(&bound) {
                    continue;
                }
                let mut lead = Vec::new();
                let given = source.bound_prefix(&bound, &mut lead);
                let is_put = put_containing_range(output, &range, source, &bound, &mut used);
                let put = is_put.then(|| used.clone());
                assert_eq!(put, containing_range(output, &range, source, &bound));
                let mut by_cells = KeyRange { first: lead.clone(), last: lead };
                let any = super::by_cells(output, &range, source, &bound, given, &mut by_cells);
                short += u32::from(rest_of_prefix(output, &range, source, given, &bound).is_some());
                assert_eq!(
                    containing_range(output, &range, source, &bound),
                    any.then_some(by_cells),
                    "{join} over {range:?} under {bound:?}"
                );
            }
        }
        assert!(short > 20_000, "{short} short cuts");
    }
}
