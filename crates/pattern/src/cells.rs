//! Cells: a range of output keys, cut into parts that are simple in terms of slots.
//!
//! A key `k` lies in `[first, last)` exactly if it leaves the two ends' bytes at some place in the
//! right direction. With `c` the length of the common prefix of `first` and `last`, `k` either
//!
//! - has that prefix and then a byte strictly between `first[c]` and `last[c]`; or
//! - follows `first` for `i > c` bytes and then has a greater byte, or follows it to its end; or
//! - follows `last` for `j > c` bytes and then has a smaller byte, or ends there.
//!
//! Each of these is a *cell*: a prefix that `k` has, the bytes that may come next, whether `k` may
//! end there instead, and no condition on what follows. Laid over the output pattern, the prefix
//! gives every slot that ends in it, and at most one slot is known in part: its first bytes and
//! what its next byte may be. That is all there is to know, so what is computed from the cells is
//! exact, with no special case for `|` sorting after digits and letters: that a slot value may end
//! (with a `|`) where `first` goes on with a smaller byte is just one of the bytes to come next.
//!
//! # Cost
//! There are `first.len() + last.len() - 2c + 1` cells at most: in a range within one group only
//! the bytes after the group count. A visit allocates nothing.

use headwater_base::KeyRange;
use headwater_base::key::SEPARATOR;

use crate::pattern::{Component, Pattern, fits};
use crate::{Bindings, SlotId};

/// What a cell says of the slots that are not bound.
#[derive(Clone, Copy)]
pub(crate) enum Tail<'k> {
    /// Nothing.
    Free,
    /// The value of `slot` starts with `stem` and then a byte from `least` to `greatest`.
    Partial { slot: SlotId, stem: &'k [u8], least: u8, greatest: u8 },
}

/// The bytes that may come next, from the first to before the second.
#[derive(Clone, Copy)]
struct Next(u16, u16);

impl Next {
    fn has(self, byte: u8) -> bool {
        (self.0..self.1).contains(&u16::from(byte))
    }

    /// The least and the greatest byte that can continue a slot value, if there are any.
    fn within_slot(self) -> Option<(u8, u8)> {
        let separator = u16::from(SEPARATOR);
        let from = if self.0 == separator { separator + 1 } else { self.0 };
        let to = if self.1 == separator + 1 { separator } else { self.1 };
        (from < to).then(|| (from as u8, (to - 1) as u8))
    }
}

/// What the output key has at one place.
enum Part<'a> {
    Known(&'a [u8]),
    Open {
        slot: SlotId,
        width: Option<usize>,
    },
    /// A bound slot whose value breaks its width: no key.
    Never,
}

/// A place in the output pattern, reached by following the bytes of one end of the range.
struct Scan<'p, 'k> {
    output: &'p Pattern,
    bindings: Bindings<'k>,
    /// Where the scan is: 0 in the table name, `n` in the n-th component.
    component: usize,
    /// Where in the followed bytes that began.
    start: usize,
}

/// Calls `visit` with the slot values and the rest of each cell of `range` that a key of `output`
/// which agrees with `bound` can lie in.
#[inline]
pub(crate) fn visit_cells<'k>(
    output: &Pattern,
    range: &'k KeyRange,
    bound: &Bindings<'k>,
    mut visit: impl FnMut(&Bindings<'k>, Tail<'k>),
) {
    let (first, last) = (range.first.as_slice(), range.last.as_slice());
    if range.is_empty() {
        return;
    }
    let common = first.iter().zip(last).take_while(|(one, two)| one == two).count();
    let mut scan = Scan { output, bindings: *bound, component: 0, start: 0 };
    if !scan.follow(first, 0, common) {
        return;
    }
    // An empty `last` is never reached: every byte lies before it.
    let before = last.get(common).map_or(256, |&byte| u16::from(byte));
    let Some(&byte) = first.get(common) else {
        // `last` goes on where `first` ends: keys follow `first` to its end and then leave `last`.
        scan.cell(first, common, Next(0, before), true, &mut visit);
        scan.descend(last, common, &mut visit);
        return;
    };
    scan.cell(first, common, Next(u16::from(byte) + 1, before), false, &mut visit);
    let (mark, component, start) = (scan.bindings.mark(), scan.component, scan.start);
    scan.descend(last, common, &mut visit);
    scan.bindings.restore(mark);
    (scan.component, scan.start) = (component, start);
    for at in common..first.len() {
        if !scan.follow(first, at, at + 1) {
            return;
        }
        match first.get(at + 1) {
            Some(&byte) => {
                scan.cell(first, at + 1, Next(u16::from(byte) + 1, 256), false, &mut visit);
            }
            None => scan.cell(first, at + 1, Next(0, 256), true, &mut visit),
        }
    }
}

impl<'k> Scan<'_, 'k> {
    /// The cells of the keys that follow `last` beyond its byte at `common`.
    #[inline]
    fn descend(
        &mut self,
        last: &'k [u8],
        common: usize,
        visit: &mut impl FnMut(&Bindings<'k>, Tail<'k>),
    ) {
        for at in common + 1..last.len() {
            if !self.follow(last, at - 1, at) {
                return;
            }
            self.cell(last, at, Next(0, u16::from(last[at])), true, visit);
        }
    }

    #[inline]
    fn part(&self) -> Part<'_> {
        let Some(at) = self.component.checked_sub(1) else {
            return Part::Known(&self.output.table);
        };
        match &self.output.components[at] {
            Component::Literal(literal) => Part::Known(literal),
            Component::Slot { slot, width } => match self.bindings.get(*slot) {
                Some(value) if fits(*width, value) => Part::Known(value),
                Some(_) => Part::Never,
                None => Part::Open { slot: *slot, width: *width },
            },
        }
    }

    fn is_last(&self) -> bool {
        self.component == self.output.components.len()
    }

    /// Whether an output key can have the bytes `text[at..to]` here; goes there if so, and binds
    /// the slots that end on the way.
    #[inline]
    fn follow(&mut self, text: &'k [u8], mut at: usize, to: usize) -> bool {
        while at < to {
            let end = match self.part() {
                Part::Known(known) => {
                    let wanted = &known[at - self.start..];
                    let shared = wanted.len().min(to - at);
                    if text[at..at + shared] != wanted[..shared] {
                        return false;
                    }
                    at + shared
                }
                Part::Open { slot, width } => {
                    let step = text[at..to].iter().position(|&byte| byte == SEPARATOR);
                    let end = step.map_or(to, |step| at + step);
                    let value = &text[self.start..end];
                    if width.is_some_and(|width| value.len() > width) {
                        return false;
                    }
                    if end < to {
                        if !fits(width, value) {
                            return false;
                        }
                        self.bindings.set(slot, value);
                    }
                    end
                }
                Part::Never => return false,
            };
            at = end;
            if at < to {
                if text[at] != SEPARATOR || self.is_last() {
                    return false;
                }
                at += 1;
                self.component += 1;
                self.start = at;
            }
        }
        true
    }

    /// Visits the cell of the keys that have the followed bytes `text[..at]` and then one of
    /// `next`, or end there if they `may_end`.
    #[inline]
    fn cell(
        &mut self,
        text: &'k [u8],
        at: usize,
        next: Next,
        may_end: bool,
        visit: &mut impl FnMut(&Bindings<'k>, Tail<'k>),
    ) {
        let may_close = if self.is_last() { may_end } else { next.has(SEPARATOR) };
        match self.part() {
            Part::Known(known) => {
                let possible = match known.get(at - self.start) {
                    Some(&byte) => next.has(byte),
                    None => may_close,
                };
                if possible {
                    visit(&self.bindings, Tail::Free);
                }
            }
            Part::Open { slot, width } => {
                let stem = &text[self.start..at];
                if width.is_none_or(|width| stem.len() < width)
                    && let Some((least, greatest)) = next.within_slot()
                {
                    visit(&self.bindings, Tail::Partial { slot, stem, least, greatest });
                }
                if may_close && fits(width, stem) {
                    self.bindings.set(slot, stem);
                    visit(&self.bindings, Tail::Free);
                    self.bindings.clear(slot);
                }
            }
            Part::Never => {}
        }
    }
}
