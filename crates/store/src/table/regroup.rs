//! Another boundary for a table: at once, or, where it had none, bit by bit (B4).

use super::scan::scan_tree;
use super::{Note, Scan, Table, group_prefix};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::prefix_end;
use headwater_pool::{Pool, ValueRef};

impl<N: Note> Table<N> {
    /// Gives a table without a boundary one. Its keys are grouped by [`Table::regroup`] from now on; the result is whether there are any.
    pub(crate) fn begin_regrouping(&mut self, boundary: usize) -> bool {
        debug_assert!(self.boundary == 0, "its keys are all short");
        self.boundary = boundary;
        self.ungrouped = (!self.short.is_empty()).then(|| self.prefix.clone());
        self.ungrouped.is_some()
    }

    /// Regroups all keys by another boundary, at once. Notes are lost.
    pub fn set_boundary(&mut self, pool: &Pool, boundary: usize) {
        let mut other = Self::new(&self.prefix, boundary, &self.secret);
        other.marked = self.marked;
        let all = Scan { pool, first: &self.prefix, last: b"", reverse: false };
        let _ = self.scan(&all, &mut Vec::new(), &mut |key, value| {
            other.insert(pool, key, value);
            ControlFlow::Continue(())
        });
        *self = other;
    }

    /// Whether some keys are still to be grouped.
    #[inline]
    #[must_use]
    pub fn is_regrouping(&self) -> bool {
        self.ungrouped.is_some()
    }

    /// The prefix of the group that `key` is in, or would be; `None` for a short key, and for one that is still to be grouped.
    #[inline]
    pub(super) fn grouped<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        if self.ungrouped.as_ref().is_some_and(|ungrouped| **ungrouped <= *key) {
            return None;
        }
        group_prefix(key, self.prefix.len(), self.boundary)
    }

    /// Whether all keys with this prefix, of some group, are in that group.
    #[inline]
    pub(super) fn is_regrouped(&self, prefix: &[u8]) -> bool {
        match &self.ungrouped {
            None => true,
            Some(ungrouped) => *prefix_end(prefix) <= **ungrouped,
        }
    }

    /// Groups the next keys, `most` of them; how many there were, fewer where all are grouped.
    pub(crate) fn regroup(&mut self, pool: &Pool, most: usize) -> usize {
        let Some(ungrouped) = self.ungrouped.take() else { return 0 };
        let mut next: Vec<(Box<[u8]>, ValueRef)> = Vec::new();
        let rest = Scan { pool, first: &ungrouped, last: b"", reverse: false };
        let _ = scan_tree(&self.short, &self.prefix, &rest, &mut Vec::new(), &mut |key, value| {
            next.push((key.into(), value));
            if next.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        for (key, value) in &next {
            if group_prefix(key, self.prefix.len(), self.boundary).is_none() {
                continue;
            }
            let mut used = 0;
            self.short.touch(&key[self.prefix.len()..], |heat| {
                used = heat;
                heat
            });
            let skip = self.prefix.len();
            super::remove_from(&mut self.short, &mut self.sizes, pool, &key[skip..]);
            self.insert(pool, key, *value);
            self.touch(key, |_| used);
        }
        if next.len() == most
            && let Some((last, _)) = next.last()
        {
            let mut ungrouped = last.to_vec();
            ungrouped.push(0);
            self.ungrouped = Some(ungrouped.into());
        }
        next.len()
    }
}
