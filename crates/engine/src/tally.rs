//! Tallies: which values an output has and how often each, where it says how many different ones there are (`distinct`), which are the most
//! frequent (`topk`), or which number a share of them does not exceed (`percentile`).
//!
//! All of them know each value with its number, so that a value that goes is taken out as exactly as it was put in. `distinct~`
//! does so up to a size; beyond it a HyperLogLog is in the place of the values, out of which nothing can be taken: where a value
//! goes, the output is noted stale and counted anew by the next read that it concerns. What it says is a function of the values
//! that there are and of nothing else, whichever way they came and in which order.
//!
//! # Invariants
//! - TA1. The values of a tally are those of the tuples of its output, but for those that cannot be counted: longer than
//!   [`COMPONENT_BYTES_MAX`], no text in UTF-8 (`topk`), no number (`percentile`).
//! - TA2. The output's value is what its tally says, unless it is noted stale.
//! - TA3. A [`Percentile`] has `below` numbers less than `at`, and `at` is the one that is said.
//!
//! # Cost
//! A value: O(log n) comparisons, about 60 bytes where it is new, and what is said is made anew where it changes. A percentile moves by one
//! number at most. A HyperLogLog: 16 KiB; an estimate looks at all of it, where a register has changed.

use crate::catalog::{Fold, Plan};
use crate::engine::Engine;
use crate::fold::number;
use crate::status::StatusId;
use crate::tuples::Tuples;
use crate::views::Views;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Bound;
use headwater_base::hash::Secret;
use headwater_base::{Decimal, KeyRange};
use headwater_pattern::lens::{COMPONENT_BYTES_MAX, Look};
use headwater_pattern::{Bindings, Operator};
use headwater_pool::{Pool, ValueRef};

/// A hundred percent, in millionths of one.
const WHOLE: u128 = 100_000_000;
/// How values are hashed; a part of what `distinct~` means, so that it says the same everywhere.
const HASHED: Secret = Secret::fixed(0x6469_7374_696e_6374);
/// Bits of a hash that choose a register.
const REGISTER_BITS: u32 = 14;
/// Bits of a hash that are left.
const RANK_BITS: u32 = u64::BITS - REGISTER_BITS;

/// A value that is counted.
#[derive(Debug)]
pub(crate) enum Item {
    /// As it is.
    Bytes(Vec<u8>),
    /// A number.
    Number(Decimal),
}

/// The values of an output.
#[derive(Clone, Debug)]
pub(crate) enum Tally {
    /// `distinct`, and `distinct~` up to its size.
    Distinct(BTreeMap<Box<[u8]>, u64>),
    /// `distinct~` beyond its size.
    Sketch(Sketch),
    /// `topk`.
    Top(Top),
    /// `percentile`.
    Percentile(Percentile),
}

/// A HyperLogLog.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    registers: Box<[u8]>,
}

/// Values by how often they are there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Top {
    counts: BTreeMap<Rc<[u8]>, u64>,
    /// The most frequent ones first.
    order: BTreeSet<(Reverse<u64>, Rc<[u8]>)>,
}

/// Numbers, and where among them the percentile is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Percentile {
    counts: BTreeMap<Decimal, u64>,
    total: u64,
    at: Option<Decimal>,
    below: u64,
}

impl Tally {
    /// One without values.
    fn new(operator: Operator) -> Self {
        match operator {
            Operator::Top(_) => Self::Top(Top::default()),
            Operator::Percentile(_) => Self::Percentile(Percentile::default()),
            _ => Self::Distinct(BTreeMap::new()),
        }
    }

    /// Puts a value in; whether it may say something else now.
    fn add(&mut self, operator: Operator, item: Item) -> bool {
        match (self, item) {
            (Self::Percentile(numbers), Item::Number(number)) => numbers.add(operator, number),
            (Self::Top(top), Item::Bytes(item)) => top.add(&item),
            (Self::Sketch(sketch), Item::Bytes(item)) => return sketch.add(&item),
            (own @ Self::Distinct(_), Item::Bytes(item)) => {
                return own.add_distinct(operator, item);
            }
            (_, _) => debug_assert!(false, "a value of another kind"),
        }
        true
    }

    fn add_distinct(&mut self, operator: Operator, item: Vec<u8>) -> bool {
        let Self::Distinct(items) = self else { return false };
        if let Some(count) = items.get_mut(&*item) {
            *count += 1;
            return false;
        }
        items.insert(item.into_boxed_slice(), 1);
        if let Operator::DistinctAbout(most) = operator
            && items.len() > most as usize
        {
            let mut sketch = Sketch::new();
            for item in items.keys() {
                sketch.add(item);
            }
            *self = Self::Sketch(sketch);
        }
        true
    }

    /// Takes a value out; `false`, with nothing changed, where that cannot be done.
    fn remove(&mut self, operator: Operator, item: &Item) -> bool {
        match (self, item) {
            (Self::Percentile(numbers), Item::Number(number)) => numbers.remove(operator, number),
            (Self::Top(top), Item::Bytes(item)) => top.remove(item),
            (Self::Distinct(items), Item::Bytes(item)) => match items.get_mut(&**item) {
                None => false,
                Some(1) => items.remove(&**item).is_some(),
                Some(count) => {
                    *count -= 1;
                    true
                }
            },
            _ => false,
        }
    }

    /// What the output says; nothing where there is no value.
    fn text(&self, operator: Operator) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        match self {
            Self::Distinct(items) if items.is_empty() => return None,
            Self::Distinct(items) => text.extend(format!("{}", items.len()).into_bytes()),
            Self::Sketch(sketch) => {
                let least = match operator {
                    Operator::DistinctAbout(most) => u64::from(most) + 1,
                    _ => 0,
                };
                text.extend(format!("{}", sketch.estimate().max(least)).into_bytes());
            }
            Self::Top(top) => {
                let Operator::Top(most) = operator else { return None };
                if top.order.is_empty() {
                    return None;
                }
                text.push(b'[');
                for (at, (Reverse(count), item)) in top.order.iter().take(most as usize).enumerate()
                {
                    text.extend_from_slice(if at == 0 { b"[\"" } else { b",[\"" });
                    quote(item, &mut text);
                    text.extend(format!("\",{count}]").into_bytes());
                }
                text.push(b']');
            }
            Self::Percentile(numbers) => numbers.at.as_ref()?.write_to(&mut text),
        }
        Some(text)
    }

    /// Forgets about `most` values; whether some are left.
    pub(crate) fn dissolve(&mut self, most: usize) -> bool {
        match self {
            Self::Sketch(_) => false,
            Self::Distinct(items) => (0..most).all(|_| items.pop_first().is_some()),
            Self::Top(Top { counts, order }) => {
                (0..most).all(|_| order.pop_first().is_some() | counts.pop_first().is_some())
            }
            Self::Percentile(numbers) => (0..most).all(|_| numbers.counts.pop_first().is_some()),
        }
    }

    /// How many different values it knows, if it knows them.
    pub(crate) fn known(&self) -> Option<usize> {
        match self {
            Self::Distinct(items) => Some(items.len()),
            Self::Sketch(_) => None,
            Self::Top(top) => Some(top.counts.len()),
            Self::Percentile(numbers) => Some(numbers.counts.len()),
        }
    }
}

/// Appends what stands for a text in UTF-8 between the quotes of a string of JSON.
fn quote(item: &[u8], out: &mut Vec<u8>) {
    for &byte in item {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            0..0x20 => out.extend(format!("\\u{byte:04x}").into_bytes()),
            _ => out.push(byte),
        }
    }
}

impl Sketch {
    fn new() -> Self {
        Self { registers: alloc::vec![0; 1 << REGISTER_BITS].into_boxed_slice() }
    }

    /// Enters a value; whether that changed anything.
    fn add(&mut self, item: &[u8]) -> bool {
        let hash = HASHED.hash(item);
        let rank = ((hash << REGISTER_BITS).leading_zeros() + 1).min(RANK_BITS) as u8;
        let register = &mut self.registers[(hash >> RANK_BITS) as usize];
        let is_greater = rank > *register;
        *register = rank.max(*register);
        is_greater
    }

    /// About how many values were entered (O. Ertl, *New cardinality estimation algorithms for HyperLogLog sketches*, 2017).
    fn estimate(&self) -> u64 {
        let mut with = [0u32; RANK_BITS as usize + 1];
        for &rank in &self.registers {
            with[usize::from(rank)] += 1;
        }
        let all = f64::from(1u32 << REGISTER_BITS);
        let ranks = with[1..].iter().rev();
        let mut sum = ranks.fold(0.0, |sum, &count| (sum + f64::from(count)) * 0.5);
        let (mut power, mut weight) = (f64::from(with[0]) / all, 1.0);
        let mut sigma = power;
        loop {
            power *= power;
            let before = sigma;
            sigma += power * weight;
            weight += weight;
            if sigma == before {
                break;
            }
        }
        sum += all * sigma;
        // One half divided by the logarithm of 2.
        (0.721_347_520_444_481_7 * all * all / sum + 0.5) as u64
    }
}

impl Top {
    fn add(&mut self, item: &[u8]) {
        match self.counts.get_key_value(item) {
            Some((item, &count)) => {
                let item = item.clone();
                self.order.remove(&(Reverse(count), item.clone()));
                self.order.insert((Reverse(count + 1), item));
            }
            None => {
                self.order.insert((Reverse(1), item.into()));
            }
        }
        match self.counts.get_mut(item) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(item.into(), 1)),
        }
    }

    fn remove(&mut self, item: &[u8]) -> bool {
        let Some((shared, &count)) = self.counts.get_key_value(item) else { return false };
        let shared = shared.clone();
        self.order.remove(&(Reverse(count), shared.clone()));
        if count == 1 {
            self.counts.remove(item);
            return true;
        }
        self.order.insert((Reverse(count - 1), shared));
        if let Some(count) = self.counts.get_mut(item) {
            *count -= 1;
        }
        true
    }
}

impl Percentile {
    fn add(&mut self, operator: Operator, number: Decimal) {
        self.total += 1;
        match &self.at {
            Some(at) if number < *at => self.below += 1,
            Some(_) => {}
            None => self.at = Some(number.clone()),
        }
        *self.counts.entry(number).or_default() += 1;
        self.settle(operator);
    }

    fn remove(&mut self, operator: Operator, number: &Decimal) -> bool {
        let Some(count) = self.counts.get_mut(number) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        self.total -= 1;
        if self.at.as_ref().is_some_and(|at| number < at) {
            self.below -= 1;
        }
        if is_last {
            self.counts.remove(number);
            if self.at.as_ref() == Some(number) {
                let next = self.neighbour(number, true);
                if next.is_none()
                    && let Some((at, count)) = self.neighbour(number, false)
                {
                    self.below -= count;
                    self.at = Some(at);
                } else {
                    self.at = next.map(|(at, _)| at);
                }
            }
        }
        self.settle(operator);
        true
    }

    /// The number behind another one, or before it, and how often it is there.
    fn neighbour(&self, number: &Decimal, behind: bool) -> Option<(Decimal, u64)> {
        let (after, until) = (Bound::Excluded(number), Bound::Unbounded);
        let found = if behind {
            self.counts.range((after, until)).next()
        } else {
            self.counts.range((until, after)).next_back()
        };
        found.map(|(number, count)| (number.clone(), *count))
    }

    /// Goes to where the percentile is (TA3).
    fn settle(&mut self, operator: Operator) {
        let Operator::Percentile(millionths) = operator else { return };
        let product = u128::from(self.total) * u128::from(millionths);
        let rank = u64::try_from(product.div_ceil(WHOLE).max(1)).unwrap_or(u64::MAX);
        while let Some(at) = self.at.clone() {
            let here = self.counts.get(&at).copied().unwrap_or(0);
            let behind = rank > self.below + here;
            if !behind && rank > self.below {
                return;
            }
            let Some((next, count)) = self.neighbour(&at, behind) else { return };
            if behind {
                self.below += here;
            } else {
                self.below -= count;
            }
            self.at = Some(next);
        }
    }
}

impl Plan {
    /// Whether its outputs have tallies.
    pub(crate) fn tallies(&self) -> bool {
        self.operator.tallies()
    }

    /// Whether not every value of the value source can be counted.
    pub(crate) fn needs_values(&self) -> bool {
        let is_number =
            matches!(self.operator, Operator::Sum | Operator::Min | Operator::Max | Operator::Avg);
        is_number || self.tallies()
    }

    /// Whether a tuple of a key and its value is counted, where [`Plan::needs_values`].
    pub(crate) fn takes(&self, pool: &Pool, key: &[u8], value: ValueRef) -> bool {
        match self.tallies() {
            true => self.item(pool, key, value).is_some(),
            false => number(pool, value).is_some(),
        }
    }

    /// What of a tuple of a key and its value is counted; nothing where it cannot be.
    fn item(&self, pool: &Pool, key: &[u8], value: ValueRef) -> Option<Item> {
        let is_number = matches!(self.operator, Operator::Percentile(_));
        let Some(slot) = self.join.on else {
            if is_number {
                return number(pool, value).map(Item::Number);
            }
            let view = pool.view(pool.content(value));
            let bytes = (view.len() <= COMPONENT_BYTES_MAX).then(|| view.to_vec())?;
            return self.counted(bytes);
        };
        let source = self.source(self.value_source());
        let mut row = Cow::Borrowed(key);
        // A slot of the key needs no look at the value.
        if !source.pattern.has_slot(slot) {
            let seen = crate::rows::look(source, pool, key, value, row.to_mut());
            if seen != Look::Row {
                return None;
            }
        }
        let mut bindings = Bindings::new();
        let is_bound = if source.pattern.has_slot(slot) {
            source.pattern.bind(key, &mut bindings)
        } else {
            source.bind(&row, &mut bindings)
        };
        let bytes = bindings.get(slot).filter(|_| is_bound)?;
        if is_number {
            return Decimal::parse(bytes).map(Item::Number);
        }
        self.counted(bytes.to_vec())
    }

    fn counted(&self, bytes: Vec<u8>) -> Option<Item> {
        let is_text =
            !matches!(self.operator, Operator::Top(_)) || core::str::from_utf8(&bytes).is_ok();
        is_text.then_some(Item::Bytes(bytes))
    }
}

impl Engine {
    /// What of a tuple is counted; what cannot be is noted.
    fn item_of(&mut self, plan: &Plan, key: &[u8], value: ValueRef) -> Option<Item> {
        let item = plan.item(&self.store.pool, key, value);
        if item.is_none() {
            match plan.operator {
                Operator::Percentile(_) => self.counters.not_numbers += 1,
                _ => self.counters.unreadable += 1,
            }
        }
        item
    }

    /// Counts the tuples `start..end`, which share their output key.
    pub(crate) fn tally(
        &mut self,
        plan: &Plan,
        tuples: &Tuples,
        start: usize,
        end: usize,
    ) -> Option<(ValueRef, Option<Fold>)> {
        let mut tally = Tally::new(plan.operator);
        for at in start..end {
            let value = tuples.tuples[at].value;
            if let Some(item) = self.item_of(plan, tuples.source_key(at), value) {
                tally.add(plan.operator, item);
            }
        }
        let text = tally.text(plan.operator)?;
        Some((self.store.pool.insert(&text), Some(Fold::Tally(Box::new(tally)))))
    }

    /// Takes a value out of an output's tally and puts one in, where a tuple had the one and has the other.
    pub(crate) fn change_tally(
        &mut self,
        status: StatusId,
        plan: &Plan,
        key: &[u8],
        source_key: &[u8],
        (old, new): (Option<ValueRef>, Option<ValueRef>),
    ) {
        let join = self.views.statuses.get(status).join;
        let (pool, operator) = (&self.store.pool, plan.operator);
        let old = old.and_then(|old| plan.item(pool, source_key, old));
        let new = new.and_then(|new| self.item_of(plan, source_key, new));
        if let (Some(Item::Bytes(old)), Some(Item::Bytes(new))) = (&old, &new)
            && old == new
        {
            return;
        }
        let Some(Fold::Tally(tally)) = self.views.catalog.join_mut(join).folds.get_mut(key) else {
            let mut tally = Tally::new(operator);
            let Some(new) = new else { return };
            tally.add(operator, new);
            if let Some(text) = tally.text(operator) {
                let value = self.store.pool.insert(&text);
                self.put_output(join, key, value, Some(Fold::Tally(Box::new(tally))));
            }
            return;
        };
        if let Some(old) = &old
            && !tally.remove(operator, old)
        {
            self.mark_stale(status, key);
            return;
        }
        let says_more = new.is_some_and(|new| tally.add(operator, new));
        if !says_more && old.is_none() {
            return;
        }
        match tally.text(operator) {
            Some(text) if self.says(join, key, &text) => {}
            Some(text) => {
                let value = self.store.pool.insert(&text);
                self.put_output(join, key, value, None);
            }
            None => self.remove_output(join, key),
        }
    }

    /// Whether an output has this value.
    fn says(&self, join: u32, key: &[u8], text: &[u8]) -> bool {
        let value = self.output(join, key);
        value.is_some_and(|value| {
            let view = self.store.pool.view(value);
            view.len() == text.len() && view.parts().flatten().eq(text)
        })
    }

    /// Asserts TA2 and TA3, for tests.
    pub(crate) fn check_tallies(&self, join: u32) {
        let installed = self.views.catalog.join(join);
        let plan = &installed.plan;
        if !plan.tallies() {
            return;
        }
        for (key, fold) in &installed.folds {
            let Fold::Tally(tally) = fold else { panic!("TA2: {key:?}") };
            let is_stale =
                self.views.status_at(join, key).is_some_and(|id| self.views.is_stale(id, key));
            let text = tally.text(plan.operator);
            let is_said = text.as_ref().is_some_and(|text| self.says(join, key, text));
            assert!(is_stale || is_said, "TA2: {key:?} {tally:?}");
            if let Tally::Percentile(numbers) = &**tally {
                let at = numbers.at.as_ref().expect("TA3");
                let below: u64 = numbers.counts.range(..at).map(|(_, count)| count).sum();
                assert_eq!(below, numbers.below, "TA3: {key:?}");
                assert_eq!(numbers.counts.values().sum::<u64>(), numbers.total, "TA3: {key:?}");
            }
        }
    }
}

impl Views {
    /// How many values are known of the output that is alone in a range; nothing where it has no tally.
    pub(crate) fn explain_tally(&self, join: u32, range: &KeyRange) -> Option<String> {
        let installed = self.catalog.join(join);
        if !crate::relate::is_point(range) {
            return None;
        }
        let Some(Fold::Tally(tally)) = installed.folds.get(&*range.first) else { return None };
        Some(match tally.known() {
            Some(known) => {
                format!("{known} different values are known, and how often each is there")
            }
            None => String::from(
                "more values than it holds: an estimate, with a standard error of 0.8 %; where one goes, the next \
                 read counts all anew",
            ),
        })
    }
}
