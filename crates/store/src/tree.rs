//! An ordered map of byte keys to words: one page while it is small, a B+ tree of pages after.
//!
//! # Invariants
//! - T1. An inner page's entry holds a child and the separator that its keys are not below;
//!   keys below the first separator belong to the first child too.
//! - T2. Leaves are linked in key order; no leaf of a tree is empty.
//! - T3. All leaves are at one depth.
//! - T4. A large tree of keys has `points`: under the hash of each key the leaf that holds it,
//!   and where in the leaf it was when it came there.
//!
//! # Cost
//! A 4 KiB page holds about a hundred entries, so ten million keys are three inner levels,
//! of which two stay in the processor's cache. Keys behind the last go to the remembered last
//! leaf without a descent.

mod pages;

use crate::index::Index;
use crate::page::Page;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::hash::Secret;
use headwater_pool::prefetch;

const NONE: u32 = u32::MAX;

/// How many entries ahead of a scan values are fetched.
const WORDS_AHEAD: usize = 6;

/// An ordered map of byte keys to words.
#[derive(Debug)]
pub struct Tree(Body);

#[derive(Debug)]
enum Body {
    Page(Page),
    Pages(Box<Pages>),
}

#[derive(Debug)]
struct Leaf {
    page: Page,
    before: u32,
    behind: u32,
}

#[derive(Debug)]
struct Pages {
    /// Keys in all leaves.
    len: usize,
    leaves: Vec<Leaf>,
    free_leaves: Vec<u32>,
    inners: Vec<Page>,
    free_inners: Vec<u32>,
    root: u32,
    /// Inner levels above the leaves; at least one.
    height: usize,
    first: u32,
    last: u32,
    page_bytes: usize,
    points: Option<Points>,
}

/// Leads from a key's hash to its leaf (T4), so that a point read in a large tree costs as many
/// cache misses as in a hash table. Two keys of one leaf whose hashes agree share their entries.
#[derive(Debug)]
struct Points {
    index: Index,
    secret: Secret,
}

/// A tree of fewer leaves is searched from its root.
const POINTS_LEAVES_MIN: usize = 64;

/// Bits of a point that tell where in the leaf the key was.
const HINT_BITS: u32 = 8;

/// A leaf and a place in it.
#[inline]
fn point(leaf: u32, at: usize) -> u32 {
    assert!(leaf < 1 << (32 - HINT_BITS), "a tree has at most 16 million leaves");
    leaf << HINT_BITS | (at as u32).min((1 << HINT_BITS) - 1)
}

#[inline]
fn leaf_of(point: u32) -> u32 {
    point >> HINT_BITS
}

#[inline]
fn hint_of(point: u32) -> usize {
    (point & ((1 << HINT_BITS) - 1)) as usize
}

/// What [`Tree::insert`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    /// The key was not there.
    New,
    /// The key was there, with this word.
    Replaced(u64),
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// An empty map; it allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self(Body::Page(Page::default()))
    }

    /// Number of keys.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Body::Page(page) => page.len(),
            Body::Pages(pages) => pages.len,
        }
    }

    /// Whether there are no keys.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the pages have allocated.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        match &self.0 {
            Body::Page(page) => page.capacity(),
            Body::Pages(pages) => {
                pages.page_bytes
                    + pages.points.as_ref().map_or(0, |points| points.index.bytes())
                    + size_of::<Pages>()
                    + pages.leaves.capacity() * size_of::<Leaf>()
                    + pages.inners.capacity() * size_of::<Page>()
            }
        }
    }

    /// The word of `key`.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<u64> {
        let page = match &self.0 {
            Body::Page(page) => page,
            Body::Pages(pages) if pages.points.is_some() => {
                let (leaf, at) = pages.find_point(key)?;
                return Some(pages.leaves[leaf as usize].page.word(at));
            }
            Body::Pages(pages) => &pages.leaves[pages.leaf_for(key) as usize].page,
        };
        page.search(key).ok().map(|at| page.word(at))
    }

    /// As [`Tree::get`]; the byte that is kept with the entry becomes what `heat` makes of it.
    #[inline]
    pub fn touch(&mut self, key: &[u8], heat: impl FnOnce(u8) -> u8) -> Option<u64> {
        let (page, at) = self.find_mut(key)?;
        let old = page.heat(at);
        let new = heat(old);
        if new != old {
            page.set_heat(at, new);
        }
        Some(page.word(at))
    }

    /// Changes the word of `key`, and the byte that is kept with it, unless `change` declines;
    /// whether they were changed.
    #[inline]
    pub fn update(
        &mut self,
        key: &[u8],
        change: impl FnOnce(u64, u8) -> Option<(u64, u8)>,
    ) -> bool {
        let Some((page, at)) = self.find_mut(key) else { return false };
        let Some((word, heat)) = change(page.word(at), page.heat(at)) else { return false };
        page.set_word(at, word);
        page.set_heat(at, heat);
        true
    }

    #[inline]
    fn find_mut(&mut self, key: &[u8]) -> Option<(&mut Page, usize)> {
        match &mut self.0 {
            Body::Page(page) => {
                let at = page.search(key).ok()?;
                Some((page, at))
            }
            Body::Pages(pages) => {
                let (leaf, at) = pages.find(key)?;
                Some((&mut pages.leaves[leaf as usize].page, at))
            }
        }
    }

    /// Gives a few entries that follow each other, at a place that `draw` names: key (in two
    /// halves), word, and the byte kept with it.
    pub fn sample(&self, draw: u64, most: usize, each: &mut impl FnMut(&[u8], &[u8], u64, u8)) {
        let (page, draw) = match &self.0 {
            Body::Page(page) => (page, draw),
            Body::Pages(pages) => {
                let count = pages.leaves.len() as u64;
                let start = (draw % count) as usize;
                let mut leaves = pages.leaves[start..].iter().chain(&pages.leaves[..start]);
                let Some(leaf) = leaves.find(|leaf| leaf.page.len() > 0) else { return };
                (&leaf.page, draw / count)
            }
        };
        if page.len() == 0 {
            return;
        }
        let start = (draw % page.len() as u64) as usize;
        for step in 0..most.min(page.len()) {
            let at = (start + step) % page.len();
            each(page.prefix(), page.suffix(at), page.word(at), page.heat(at));
        }
    }

    /// Offers the words of one leaf to `each`, which may give another for one; how many it has, or
    /// `None` where there is no leaf of this number. Leaves are in no order.
    pub(crate) fn offer_leaf(
        &mut self,
        leaf: usize,
        each: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<usize> {
        let page = match &mut self.0 {
            Body::Page(page) if leaf == 0 => page,
            Body::Page(_) => return None,
            Body::Pages(pages) => &mut pages.leaves.get_mut(leaf)?.page,
        };
        for at in 0..page.len() {
            if let Some(word) = each(page.word(at)) {
                page.set_word(at, word);
            }
        }
        Some(page.len())
    }

    /// Gives `key` this word. `secret` is for the hashes by which single keys of a large tree are
    /// found; without one they are found by descent.
    #[inline]
    pub fn insert(&mut self, key: &[u8], word: u64, secret: Option<&Secret>) -> Inserted {
        match &mut self.0 {
            Body::Page(page) => match page.search(key) {
                Ok(at) => {
                    let old = page.word(at);
                    page.set_word(at, word);
                    Inserted::Replaced(old)
                }
                Err(at) => {
                    if page.insert(at, key, word) {
                        Inserted::New
                    } else {
                        let mut pages = Box::new(Pages::from_page(core::mem::take(page)));
                        let inserted = pages.insert(key, word, secret);
                        self.0 = Body::Pages(pages);
                        inserted
                    }
                }
            },
            Body::Pages(pages) => pages.insert(key, word, secret),
        }
    }

    /// Makes room for `count` keys that are about to come, two at least, `bytes` long together; `ends` are the least and the
    /// greatest of them. A hint: where they are too many for one page, nothing is done.
    pub fn reserve(&mut self, ends: (&[u8], &[u8]), count: usize, bytes: usize) {
        if let Body::Page(page) = &mut self.0 {
            page.reserve(ends, count, bytes);
        }
    }

    /// Removes `key` and gives its word.
    pub fn remove(&mut self, key: &[u8]) -> Option<u64> {
        match &mut self.0 {
            Body::Page(page) => {
                let at = page.search(key).ok()?;
                Some(page.remove(at))
            }
            Body::Pages(pages) => {
                let word = pages.remove(key)?;
                if pages.len == 0 {
                    self.0 = Body::Page(Page::default());
                }
                Some(word)
            }
        }
    }

    /// Calls `each` with the pairs of `[first, last)` in ascending order until it breaks. The
    /// key is given as its two halves: the part shared within its page, and the rest. Without
    /// `last` there is no end. `soon` is called with words whose turn will probably come.
    #[inline]
    pub fn ascend<B>(
        &self,
        first: &[u8],
        last: Option<&[u8]>,
        soon: &impl Fn(u64),
        each: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let pages = match &self.0 {
            Body::Page(page) => {
                return ascend_page(page, page.lower_bound(first), last, soon, each).1;
            }
            Body::Pages(pages) => pages,
        };
        let mut leaf = pages.leaf_for(first);
        let mut from = pages.leaves[leaf as usize].page.lower_bound(first);
        loop {
            let here = &pages.leaves[leaf as usize];
            let (ended, flow) = ascend_page(&here.page, from, last, soon, each);
            flow?;
            if ended || here.behind == NONE {
                return ControlFlow::Continue(());
            }
            leaf = here.behind;
            from = 0;
        }
    }

    /// As [`Tree::ascend`], greatest key first.
    #[inline]
    pub fn descend<B>(
        &self,
        first: &[u8],
        last: Option<&[u8]>,
        soon: &impl Fn(u64),
        each: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let end_in = |page: &Page| last.map_or(page.len(), |last| page.lower_bound(last));
        let pages = match &self.0 {
            Body::Page(page) => return descend_page(page, end_in(page), first, soon, each).1,
            Body::Pages(pages) => pages,
        };
        let mut leaf = last.map_or(pages.last, |last| pages.leaf_for(last));
        let mut until = end_in(&pages.leaves[leaf as usize].page);
        loop {
            let here = &pages.leaves[leaf as usize];
            let (ended, flow) = descend_page(&here.page, until, first, soon, each);
            flow?;
            if ended || here.before == NONE {
                return ControlFlow::Continue(());
            }
            leaf = here.before;
            until = pages.leaves[leaf as usize].page.len();
        }
    }

    /// Fetches what finding a single key reads first, and gives the key's hash; `None` where
    /// no single key is found by its hash.
    #[inline]
    pub(crate) fn fetch_point(&self, key: &[u8]) -> Option<u64> {
        let Body::Pages(pages) = &self.0 else { return None };
        let points = pages.points.as_ref()?;
        let hash = points.secret.hash(key);
        prefetch(points.index.first_slot(hash)?);
        Some(hash)
    }

    /// Fetches the record of the leaf that is probably the key's, and gives its point.
    #[inline]
    pub(crate) fn fetch_leaf(&self, hash: u64) -> Option<u32> {
        let Body::Pages(pages) = &self.0 else { return None };
        let point = pages.points.as_ref()?.index.find(hash, |_| true)?;
        prefetch(pages.leaves.get(leaf_of(point) as usize)?);
        Some(point)
    }

    /// Fetches the slot of a point.
    #[inline]
    pub(crate) fn fetch_slot(&self, point: u32) {
        if let Body::Pages(pages) = &self.0 {
            pages.leaves[leaf_of(point) as usize].page.fetch_slot(hint_of(point));
        }
    }

    /// Fetches the key of a point, and gives its word.
    #[inline]
    pub(crate) fn fetch_entry(&self, point: u32) -> Option<u64> {
        let Body::Pages(pages) = &self.0 else { return None };
        pages.leaves[leaf_of(point) as usize].page.fetch_entry(hint_of(point))
    }

    /// The places that reading or writing the greatest keys touches first.
    #[inline]
    pub(crate) fn near_end(&self) -> [Option<&u8>; 3] {
        match &self.0 {
            Body::Page(page) => page.near_end(),
            Body::Pages(pages) => pages.leaves[pages.last as usize].page.near_end(),
        }
    }

    /// Calls `each` with every key and word, in order.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8], u64)) {
        let _ = self.ascend::<()>(b"", None, &|_| (), &mut |prefix, suffix, word| {
            each(prefix, suffix, word);
            ControlFlow::Continue(())
        });
    }

    /// Takes a page out of a tree that is of no use any more, calls `each` with its words if it is a leaf, and gives the
    /// number of its entries; `None` where no page is left.
    pub(crate) fn drop_page(&mut self, each: &mut impl FnMut(u64)) -> Option<usize> {
        let (leaf, inner) = match &mut self.0 {
            Body::Page(page) => (Some(core::mem::take(page)).filter(|page| page.len() > 0), None),
            Body::Pages(pages) => match pages.leaves.pop() {
                Some(leaf) => (Some(leaf.page), None),
                None => (None, pages.inners.pop()),
            },
        };
        if let Some(page) = &leaf {
            (0..page.len()).for_each(|at| each(page.word(at)));
        }
        leaf.or(inner).map(|page| page.len())
    }

    /// The word of the greatest key that is at most `key`.
    #[inline]
    #[must_use]
    pub fn word_at_or_before(&self, key: &[u8]) -> Option<u64> {
        let (page, before) = match &self.0 {
            Body::Page(page) => (page, None),
            Body::Pages(pages) => {
                let leaf = &pages.leaves[pages.leaf_for(key) as usize];
                (&leaf.page, pages.leaves.get(leaf.before as usize))
            }
        };
        match page.search(key) {
            Ok(at) => Some(page.word(at)),
            Err(0) => before.map(|leaf| leaf.page.word(leaf.page.len() - 1)),
            Err(at) => Some(page.word(at - 1)),
        }
    }

    /// The greatest key that is at most `key`, and its word.
    #[must_use]
    pub fn at_or_before(&self, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        if let Some(word) = self.get(key) {
            return Some((key.to_vec(), word));
        }
        let found = self.descend(b"", Some(key), &|_| (), &mut |prefix, suffix, word| {
            ControlFlow::Break(([prefix, suffix].concat(), word))
        });
        found.break_value()
    }

    #[cfg(test)]
    pub(crate) fn probes(&self) -> Option<(usize, usize)> {
        let Body::Pages(pages) = &self.0 else { return None };
        pages.points.as_ref().map(|points| points.index.probes())
    }

    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        match &self.0 {
            Body::Page(page) => {
                page.check_invariants();
            }
            Body::Pages(pages) => pages.check_invariants(pages.len),
        }
    }
}

/// Whether the walk met `last`, and what `each` said.
#[inline]
fn ascend_page<B>(
    page: &Page,
    from: usize,
    last: Option<&[u8]>,
    soon: &impl Fn(u64),
    each: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<B>,
) -> (bool, ControlFlow<B>) {
    let end = last.map_or(page.len(), |last| page.lower_bound(last));
    let prefix = page.prefix();
    for at in from..end.min(from + WORDS_AHEAD) {
        soon(page.word(at));
    }
    for at in from..end {
        if at + WORDS_AHEAD < end {
            soon(page.word(at + WORDS_AHEAD));
        }
        let flow = each(prefix, page.suffix(at), page.word(at));
        if flow.is_break() {
            return (true, flow);
        }
    }
    (end < page.len(), ControlFlow::Continue(()))
}

/// Whether the walk met `first`, and what `each` said.
#[inline]
fn descend_page<B>(
    page: &Page,
    until: usize,
    first: &[u8],
    soon: &impl Fn(u64),
    each: &mut impl FnMut(&[u8], &[u8], u64) -> ControlFlow<B>,
) -> (bool, ControlFlow<B>) {
    let start = page.lower_bound(first);
    let prefix = page.prefix();
    for at in (start..until).rev() {
        if at >= start + WORDS_AHEAD {
            soon(page.word(at - WORDS_AHEAD));
        }
        let flow = each(prefix, page.suffix(at), page.word(at));
        if flow.is_break() {
            return (true, flow);
        }
    }
    (start > 0, ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;
