//! Scans of a table: within one group, or across groups and the short keys between them (B1).

use super::{GroupId, Note, Table, ends_within, group_prefix};
use crate::tree::Tree;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::{KeyParts, prefix_end};
use headwater_pool::{Pool, ValueRef};

/// What to scan, and how.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// Where the values are: they are fetched ahead.
    pub pool: &'a Pool,
    /// The first key.
    pub first: &'a [u8],
    /// The first key that does not belong; empty: to the end.
    pub last: &'a [u8],
    /// Greatest key first.
    pub reverse: bool,
}

impl<N: Note> Table<N> {
    /// Calls `each` with the keys of the table that `scan` asks for, in order, until it breaks.
    /// `key` is room to build keys in.
    #[inline]
    pub fn scan(
        &self,
        scan: &Scan<'_>,
        key: &mut Vec<u8>,
        each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.walk(scan, key, &mut joined(each))
    }

    /// As [`Table::scan`], of keys in parts; if there is a `group`, all of the range lies in it, or what of it does is meant.
    #[inline]
    pub fn scan_parts(
        &self,
        group: Option<GroupId>,
        scan: &Scan<'_>,
        room: &mut Vec<u8>,
        each: &mut impl FnMut(KeyParts<'_>, ValueRef) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut each =
            |stem: &mut Vec<u8>, rest: &[u8], value| each(KeyParts { stem, rest }, value);
        match group {
            Some(group) => self.walk_in(group, scan, room, &mut each),
            None => self.walk(scan, room, &mut each),
        }
    }

    #[inline]
    fn walk(&self, scan: &Scan<'_>, key: &mut Vec<u8>, each: &mut impl Visit) -> ControlFlow<()> {
        if let Some(ungrouped) = &self.ungrouped {
            return self.scan_both(scan, ungrouped, key, each);
        }
        self.scan_grouped(scan, key, each)
    }

    /// Scans what is grouped, and what is not yet (B4).
    #[cold]
    fn scan_both(
        &self,
        scan: &Scan<'_>,
        ungrouped: &[u8],
        key: &mut Vec<u8>,
        each: &mut impl Visit,
    ) -> ControlFlow<()> {
        let rest = Scan { first: scan.first.max(ungrouped), ..*scan };
        let has_rest = scan.last.is_empty() || *rest.first < *scan.last;
        let last = if has_rest { ungrouped } else { scan.last };
        let grouped = Scan { last, ..*scan };
        let has_grouped = *scan.first < *last;
        if scan.reverse && has_rest {
            walk_tree(&self.short, &self.prefix, &rest, key, each)?;
        }
        if has_grouped {
            self.scan_grouped(&grouped, key, each)?;
        }
        if !scan.reverse && has_rest {
            walk_tree(&self.short, &self.prefix, &rest, key, each)?;
        }
        ControlFlow::Continue(())
    }

    /// Scans keys all of which are grouped.
    #[inline]
    fn scan_grouped(
        &self,
        scan: &Scan<'_>,
        key: &mut Vec<u8>,
        each: &mut impl Visit,
    ) -> ControlFlow<()> {
        if let Some(prefix) = group_prefix(scan.first, self.prefix.len(), self.boundary)
            && ends_within(scan.last, prefix)
        {
            return match self.find(prefix) {
                Some(id) => self.walk_in(GroupId::new(id), scan, key, each),
                None => ControlFlow::Continue(()),
            };
        }
        self.scan_across(scan, key, each)
    }

    #[inline]
    fn walk_in(
        &self,
        group: GroupId,
        scan: &Scan<'_>,
        key: &mut Vec<u8>,
        each: &mut impl Visit,
    ) -> ControlFlow<()> {
        let group = self.group(group.number());
        walk_tree(&group.tree, &group.prefix, scan, key, each)
    }

    /// Groups in order, and the short keys that lie between them (B1).
    fn scan_across(
        &self,
        scan: &Scan<'_>,
        key: &mut Vec<u8>,
        each: &mut impl Visit,
    ) -> ControlFlow<()> {
        let &Scan { first, last, reverse, .. } = scan;
        let short = |from: &[u8], to: &[u8], key: &mut Vec<u8>, each: &mut _| {
            let scan = Scan { first: from, last: to, ..*scan };
            walk_tree(&self.short, &self.prefix, &scan, key, each)
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
            self.walk_in(GroupId::new(id as u32), scan, key, each)?;
            at = if reverse { prefix } else { end };
            ControlFlow::Continue(())
        };
        let end = (!last.is_empty()).then_some(last);
        if reverse {
            self.order.descend(&begin, end, &|_| (), &mut visit)?;
        } else {
            self.order.ascend(&begin, end, &|_| (), &mut visit)?;
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

/// What is done with each key: its beginning, in room for all of it, which is left as it was; what follows; and its value.
trait Visit: FnMut(&mut Vec<u8>, &[u8], ValueRef) -> ControlFlow<()> {}

impl<F: FnMut(&mut Vec<u8>, &[u8], ValueRef) -> ControlFlow<()>> Visit for F {}

/// Calls `each` with whole keys.
#[inline]
fn joined(each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>) -> impl Visit {
    |key: &mut Vec<u8>, rest: &[u8], value| {
        let stem = key.len();
        key.extend_from_slice(rest);
        let flow = each(key, value);
        key.truncate(stem);
        flow
    }
}

/// Scans the keys of `tree`, which all have `prefix` before them.
#[inline]
pub(super) fn scan_tree(
    tree: &Tree,
    prefix: &[u8],
    scan: &Scan<'_>,
    key: &mut Vec<u8>,
    each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
) -> ControlFlow<()> {
    walk_tree(tree, prefix, scan, key, &mut joined(each))
}

#[inline]
fn walk_tree(
    tree: &Tree,
    prefix: &[u8],
    scan: &Scan<'_>,
    key: &mut Vec<u8>,
    each: &mut impl Visit,
) -> ControlFlow<()> {
    let &Scan { pool, first, last, reverse } = scan;
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
    // Keys of a page follow one another, and have its head in common: it is copied once.
    let mut copied: *const [u8] = &[];
    let mut visit = |head: &[u8], tail: &[u8], word: u64| {
        if !core::ptr::eq(copied, head) {
            key.truncate(prefix.len());
            key.extend_from_slice(head);
            copied = head;
        }
        each(key, tail, ValueRef::from_word(word))
    };
    let soon = |word| pool.prefetch(ValueRef::from_word(word));
    if reverse {
        tree.descend(from, to, &soon, &mut visit)
    } else {
        tree.ascend(from, to, &soon, &mut visit)
    }
}
