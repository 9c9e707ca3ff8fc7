//! Folds: from the tuples of one output key to its value, at once or tuple by tuple.
//!
//! `count`, `map`, and plain `copy`, need no memory beside the value. `sum` and `avg` keep an exact
//! decimal and how many numbers are in it. `first`, `last` and ambiguous `copy` keep the
//! value-source key that gave the value. `min` and `max` keep nothing. Operators that count values by their kinds keep these (`tally.rs`). Where a removal takes
//! away the tuple that gave the value, the output key is marked stale and recomputed by the
//! next read that it concerns: nothing else can tell the next best.

use crate::catalog::{Fold, Pick, Plan};
use crate::engine::Engine;
use crate::status::StatusId;
use crate::tuples::Tuples;
use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_base::Decimal;
use headwater_pattern::Operator;
use headwater_pool::{Pool, ValueRef};

/// An output key and its value.
#[derive(Debug)]
pub(crate) struct Folded {
    pub(crate) key: Box<[u8]>,
    /// One reference is held.
    pub(crate) value: ValueRef,
    pub(crate) fold: Option<Fold>,
}

/// The number that a value reads as.
pub(crate) fn number(pool: &Pool, value: ValueRef) -> Option<Decimal> {
    let value = pool.view(value);
    let mut parts = value.parts();
    match (parts.next(), parts.next()) {
        (None, _) => None,
        (Some(part), None) => Decimal::parse(part),
        _ => Decimal::parse(&value.to_vec()),
    }
}

fn insert_decimal(pool: &mut Pool, number: &Decimal) -> ValueRef {
    let mut text = Vec::new();
    number.write_to(&mut text);
    pool.insert(&text)
}

fn insert_count(pool: &mut Pool, count: u64) -> ValueRef {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = count;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return pool.insert(&digits[at..]);
        }
    }
}

/// The count that [`insert_count`] wrote.
fn count_of(pool: &Pool, value: ValueRef) -> u64 {
    let view = pool.view(value);
    view.parts().flatten().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'))
}

impl Engine {
    /// Folds tuples to the output keys that exist, in order.
    pub(crate) fn fold(&mut self, plan: &Plan, mut tuples: Tuples) -> Vec<Folded> {
        tuples.sort();
        let mut folded =
            Vec::with_capacity(if plan.is_plain_copy() { tuples.tuples.len() } else { 0 });
        let mut start = 0;
        while start < tuples.tuples.len() {
            let key = tuples.key(start);
            let mut end = start + 1;
            while end < tuples.tuples.len() && tuples.key(end) == key {
                end += 1;
            }
            if let Some((value, fold)) = self.fold_one(plan, &tuples, start, end) {
                folded.push(Folded { key: tuples.key(start).into(), value, fold });
            }
            start = end;
        }
        tuples.release(&mut self.store.pool);
        folded
    }

    /// Folds the tuples `start..end`, which share their output key.
    fn fold_one(
        &mut self,
        plan: &Plan,
        tuples: &Tuples,
        start: usize,
        end: usize,
    ) -> Option<(ValueRef, Option<Fold>)> {
        if plan.operator == Operator::Map {
            let value = self.mapped(plan, tuples.key(start), tuples.tuples[start].value)?;
            return Some((value, None));
        }
        if plan.tallies() {
            return self.tally(plan, tuples, start, end);
        }
        let pool = &mut self.store.pool;
        match (plan.operator, plan.picks) {
            (_, Some(pick)) => {
                let at = if pick == Pick::Least { start } else { end - 1 };
                let value = shown(plan, tuples.tuples[at].value);
                pool.retain(value);
                Some((value, Some(Fold::From(tuples.source_key(at).into()))))
            }
            (Operator::Count, _) => Some((insert_count(pool, (end - start) as u64), None)),
            (Operator::Sum | Operator::Avg, _) => {
                let (mut total, mut count) = (Decimal::default(), 0);
                for tuple in &tuples.tuples[start..end] {
                    match number(pool, tuple.value) {
                        Some(number) => {
                            total.add(&number);
                            count += 1;
                        }
                        None => self.counters.not_numbers += 1,
                    }
                }
                let value = sum_value(pool, plan, &total, count)?;
                Some((value, Some(Fold::Sum { total, count })))
            }
            (Operator::Min | Operator::Max, _) => {
                let mut best: Option<Decimal> = None;
                for tuple in &tuples.tuples[start..end] {
                    match number(pool, tuple.value) {
                        Some(number)
                            if best.as_ref().is_none_or(|best| beats(plan, &number, best)) =>
                        {
                            best = Some(number);
                        }
                        Some(_) => {}
                        None => self.counters.not_numbers += 1,
                    }
                }
                Some((insert_decimal(pool, &best?), None))
            }
            _ => {
                let value = shown(plan, tuples.tuples[start].value);
                pool.retain(value);
                Some((value, None))
            }
        }
    }

    /// Enters one more tuple into a materialized output.
    pub(crate) fn add_tuple(
        &mut self,
        status: StatusId,
        plan: &Plan,
        key: &[u8],
        source_key: &[u8],
        value: ValueRef,
    ) {
        if self.views.is_stale(status, key)
            || self.views.is_left_out(status, plan, key)
            || self.views.is_undone(status, plan, key)
        {
            return;
        }
        let join = self.views.statuses.get(status).join;
        let value = shown(plan, value);
        match (plan.operator, plan.picks) {
            (_, Some(pick)) => {
                let from = self.views.catalog.join(join).folds.get(key);
                let wins = match (from, pick) {
                    (Some(Fold::From(from)), Pick::Least) => source_key <= &**from,
                    (Some(Fold::From(from)), Pick::Greatest) => source_key >= &**from,
                    _ => true,
                };
                if wins {
                    self.store.pool.retain(value);
                    self.put_output(join, key, value, Some(Fold::From(source_key.into())));
                }
            }
            (Operator::Count, _) => {
                let count =
                    self.output(join, key).map_or(0, |value| count_of(&self.store.pool, value));
                let value = insert_count(&mut self.store.pool, count + 1);
                self.put_output(join, key, value, None);
            }
            (Operator::Sum | Operator::Avg, _) => {
                self.change_sum(join, plan, key, None, Some(value))
            }
            (Operator::Min | Operator::Max, _) => {
                let Some(new) = number(&self.store.pool, value) else {
                    self.counters.not_numbers += 1;
                    return;
                };
                let best = self.output(join, key).and_then(|value| number(&self.store.pool, value));
                if best.is_none_or(|best| beats(plan, &new, &best)) {
                    let value = insert_decimal(&mut self.store.pool, &new);
                    self.put_output(join, key, value, None);
                }
            }
            (Operator::Map, _) => self.put_mapped(join, plan, key, value),
            (operator, _) if operator.tallies() => {
                self.change_tally(status, plan, key, source_key, (None, Some(value)));
            }
            _ => {
                self.store.pool.retain(value);
                self.put_output(join, key, value, None);
            }
        }
    }

    /// Gives an output what a function makes of a value; what it makes nothing of gives none.
    fn put_mapped(&mut self, join: u32, plan: &Plan, key: &[u8], value: ValueRef) {
        match self.mapped(plan, key, value) {
            Some(value) => self.put_output(join, key, value, None),
            None => self.remove_output(join, key),
        }
    }

    /// Takes one tuple out of a materialized output.
    pub(crate) fn remove_tuple(
        &mut self,
        status: StatusId,
        plan: &Plan,
        key: &[u8],
        source_key: &[u8],
        value: ValueRef,
    ) {
        if self.views.is_stale(status, key)
            || self.views.is_left_out(status, plan, key)
            || self.views.is_undone(status, plan, key)
        {
            return;
        }
        let join = self.views.statuses.get(status).join;
        match (plan.operator, plan.picks) {
            (_, Some(_)) => {
                if let Some(Fold::From(from)) = self.views.catalog.join(join).folds.get(key)
                    && **from == *source_key
                {
                    self.mark_stale(status, key);
                }
            }
            (Operator::Count, _) => {
                match self.output(join, key).map(|value| count_of(&self.store.pool, value)) {
                    None => {}
                    Some(0 | 1) => self.remove_output(join, key),
                    Some(count) => {
                        let value = insert_count(&mut self.store.pool, count - 1);
                        self.put_output(join, key, value, None);
                    }
                }
            }
            (Operator::Sum | Operator::Avg, _) => {
                self.change_sum(join, plan, key, Some(value), None)
            }
            (Operator::Min | Operator::Max, _) => {
                let gone = number(&self.store.pool, value);
                let best = self.output(join, key).and_then(|value| number(&self.store.pool, value));
                if gone.is_some() && gone == best {
                    self.mark_stale(status, key);
                }
            }
            (operator, _) if operator.tallies() => {
                self.change_tally(status, plan, key, source_key, (Some(value), None));
            }
            _ => self.remove_output(join, key),
        }
    }

    /// Changes the value of one tuple.
    pub(crate) fn update_tuple(
        &mut self,
        status: StatusId,
        plan: &Plan,
        key: &[u8],
        source_key: &[u8],
        (old, new): (ValueRef, ValueRef),
    ) {
        if self.views.is_stale(status, key)
            || self.views.is_left_out(status, plan, key)
            || self.views.is_undone(status, plan, key)
        {
            return;
        }
        let join = self.views.statuses.get(status).join;
        match (plan.operator, plan.picks) {
            (Operator::Count | Operator::Index, _) => {}
            (_, Some(_)) => {
                if let Some(Fold::From(from)) = self.views.catalog.join(join).folds.get(key)
                    && **from == *source_key
                {
                    self.store.pool.retain(new);
                    self.put_output(join, key, new, Some(Fold::From(source_key.into())));
                }
            }
            (Operator::Sum | Operator::Avg, _) => {
                self.change_sum(join, plan, key, Some(old), Some(new));
            }
            (Operator::Min | Operator::Max, _) => {
                self.remove_tuple(status, plan, key, source_key, old);
                self.add_tuple(status, plan, key, source_key, new);
            }
            (Operator::Map, _) => self.put_mapped(join, plan, key, new),
            (operator, _) if operator.tallies() => {
                self.change_tally(status, plan, key, source_key, (Some(old), Some(new)));
            }
            _ => {
                self.store.pool.retain(new);
                self.put_output(join, key, new, None);
            }
        }
    }

    fn change_sum(
        &mut self,
        join: u32,
        plan: &Plan,
        key: &[u8],
        old: Option<ValueRef>,
        new: Option<ValueRef>,
    ) {
        let (mut total, mut count) = match self.views.catalog.join(join).folds.get(key) {
            Some(Fold::Sum { total, count }) => (total.clone(), *count),
            _ => (Decimal::default(), 0),
        };
        let pool = &mut self.store.pool;
        if let Some(number) = old.and_then(|old| number(pool, old)) {
            total.sub(&number);
            count -= 1;
        }
        if let Some(new) = new {
            match number(pool, new) {
                Some(number) => {
                    total.add(&number);
                    count += 1;
                }
                None => self.counters.not_numbers += 1,
            }
        }
        match sum_value(pool, plan, &total, count) {
            Some(value) => self.put_output(join, key, value, Some(Fold::Sum { total, count })),
            None => self.remove_output(join, key),
        }
    }
}

/// What an output shows of its source's value.
fn shown(plan: &Plan, value: ValueRef) -> ValueRef {
    if plan.operator == Operator::Index { ValueRef::EMPTY } else { value }
}

/// The value of a sum or an average; `None` where no number is in it.
fn sum_value(pool: &mut Pool, plan: &Plan, total: &Decimal, count: u64) -> Option<ValueRef> {
    if count == 0 {
        return None;
    }
    Some(if plan.operator == Operator::Avg {
        insert_decimal(pool, &total.average(count))
    } else {
        insert_decimal(pool, total)
    })
}

/// Whether `new` is a better minimum or maximum than `best`.
fn beats(plan: &Plan, new: &Decimal, best: &Decimal) -> bool {
    if plan.operator == Operator::Min { new < best } else { new > best }
}
