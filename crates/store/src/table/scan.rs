//! Scans of a table: within one group, or across groups and the short keys between them (B1).

use super::{GroupId, Note, Table, ends_within, group_prefix};
use crate::tree::Tree;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::prefix_end;
use headwater_pool::ValueRef;

struct Walk<'a> {
    first: &'a [u8],
    last: &'a [u8],
    reverse: bool,
}

impl<N: Note> Table<N> {
    /// Calls `each` with the keys of `[first, last)` (an empty `last`: to the table's end) in
    /// order, or greatest first, until it breaks. `key` is room to build keys in.
    #[inline]
    pub fn scan(
        &self,
        first: &[u8],
        last: &[u8],
        reverse: bool,
        key: &mut Vec<u8>,
        each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if let Some(prefix) = group_prefix(first, self.prefix.len(), self.boundary)
            && ends_within(last, prefix)
        {
            return match self.find(prefix) {
                Some(id) => self.scan_group(id, first, last, reverse, key, each),
                None => ControlFlow::Continue(()),
            };
        }
        let walk = Walk { first, last, reverse };
        self.scan_across(&walk, key, each)
    }

    /// As [`Table::scan`], for a range all of which lies in `group`.
    #[inline]
    pub fn scan_in(
        &self,
        group: GroupId,
        first: &[u8],
        last: &[u8],
        reverse: bool,
        key: &mut Vec<u8>,
        each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.scan_group(group.0, first, last, reverse, key, each)
    }

    #[inline]
    fn scan_group(
        &self,
        id: u32,
        first: &[u8],
        last: &[u8],
        reverse: bool,
        key: &mut Vec<u8>,
        each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let group = self.group(id);
        scan_tree(&group.tree, &group.prefix, first, last, reverse, key, each)
    }

    /// Groups in order, and the short keys that lie between them (B1).
    fn scan_across(
        &self,
        walk: &Walk<'_>,
        key: &mut Vec<u8>,
        each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let &Walk { first, last, reverse } = walk;
        let short = |from: &[u8], to: &[u8], key: &mut Vec<u8>, each: &mut _| {
            scan_tree(&self.short, &self.prefix, from, to, reverse, key, each)
        };
        if self.order.is_empty() {
            return short(first, last, key, each);
        }
        // Where the walk stands: everything before it (behind it, if reversed) is done.
        let mut at = if reverse { last.to_vec() } else { first.to_vec() };
        let begin = self.order.at_or_before(first).map_or(Vec::new(), |(prefix, _)| prefix);
        let mut visit = |head: &[u8], tail: &[u8], id: u64| {
            let prefix = [head, tail].concat();
            let end = prefix_end(&prefix);
            if reverse {
                if headwater_base::key::end_at_most(&at, &prefix) && !at.is_empty() {
                    return ControlFlow::Continue(());
                }
                short(end.as_slice().max(first), &at, key, each)?;
            } else {
                if at >= end {
                    return ControlFlow::Continue(());
                }
                let until = if prefix.as_slice() > at.as_slice() { &prefix } else { &at };
                short(&at, until, key, each)?;
            }
            self.scan_group(id as u32, first, last, reverse, key, each)?;
            at = if reverse { prefix } else { end };
            ControlFlow::Continue(())
        };
        let end = (!last.is_empty()).then_some(last);
        if reverse {
            self.order.descend(&begin, end, &mut visit)?;
        } else {
            self.order.ascend(&begin, end, &mut visit)?;
        }
        if reverse {
            if at.as_slice() > first || at.is_empty() {
                return short(first, &at, key, each);
            }
            return ControlFlow::Continue(());
        }
        if headwater_base::key::before_end(&at, last) {
            short(&at, last, key, each)
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Scans the keys of `tree`, which all have `prefix` before them, within `[first, last)`.
#[inline]
fn scan_tree(
    tree: &Tree,
    prefix: &[u8],
    first: &[u8],
    last: &[u8],
    reverse: bool,
    key: &mut Vec<u8>,
    each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
) -> ControlFlow<()> {
    // `first` and `last` are compared with prefix and suffix apart, so that keys need not be built.
    let from: &[u8] = match first.strip_prefix(prefix) {
        Some(rest) => rest,
        None if first < prefix => b"",
        None => return ControlFlow::Continue(()),
    };
    let to = if last.is_empty() {
        None
    } else {
        match last.strip_prefix(prefix) {
            Some(rest) => Some(rest),
            None if last < prefix => return ControlFlow::Continue(()),
            None => None,
        }
    };
    key.clear();
    key.extend_from_slice(prefix);
    let mut visit = |head: &[u8], tail: &[u8], word: u64| {
        key.truncate(prefix.len());
        key.extend_from_slice(head);
        key.extend_from_slice(tail);
        each(key, ValueRef::from_word(word))
    };
    if reverse { tree.descend(from, to, &mut visit) } else { tree.ascend(from, to, &mut visit) }
}
