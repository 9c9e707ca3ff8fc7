//! The pages of a large tree: descent, insertion with splits, removal with merges.
//!
//! Keeps T1 to T4 of the tree. A leaf that is full is split, and a separator for the new one goes
//! into the inner pages above; a leaf that gets empty is unlinked, small neighbours are merged.

use super::{Inserted, Leaf, NONE, POINTS_LEAVES_MIN, Pages, Points, hint_of, leaf_of, point};
use crate::index::Index;
use crate::page::{PAGE_BYTES_MAX, Page};
use alloc::vec::Vec;
use headwater_base::hash::Secret;

impl Pages {
    pub(super) fn from_page(page: Page) -> Self {
        let mut root = Page::default();
        let done = root.insert(0, b"", 0);
        assert!(done, "an empty page has room for an empty key");
        let page_bytes = page.capacity() + root.capacity();
        Self {
            len: page.len(),
            leaves: alloc::vec![Leaf { page, before: NONE, behind: NONE }],
            free_leaves: Vec::new(),
            inners: alloc::vec![root],
            free_inners: Vec::new(),
            root: 0,
            height: 1,
            first: 0,
            last: 0,
            page_bytes,
            points: None,
        }
    }

    /// The leaf that holds `key` and the place in it (T4).
    #[inline]
    pub(super) fn find_point(&self, key: &[u8]) -> Option<(u32, usize)> {
        let points = self.points.as_ref()?;
        let mut found = None;
        points.index.find(points.secret.hash(key), |point| {
            let leaf = leaf_of(point);
            let at = self.leaves[leaf as usize].page.find_near(key, hint_of(point));
            found = at.map(|at| (leaf, at));
            found.is_some()
        });
        found
    }

    /// The leaf that holds `key` and the place in it.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<(u32, usize)> {
        if self.points.is_some() {
            return self.find_point(key);
        }
        let leaf = self.leaf_for(key);
        let at = self.leaves[leaf as usize].page.search(key).ok()?;
        Some((leaf, at))
    }

    /// Enters all keys into `points` once the tree is large.
    fn build_points(&mut self, secret: &Secret) {
        let mut points = Points { index: Index::default(), secret: *secret };
        let mut key = Vec::new();
        for (id, leaf) in self.leaves.iter().enumerate() {
            for at in 0..leaf.page.len() {
                key.clear();
                leaf.page.write_key(at, &mut key);
                points.index.insert(secret.hash(&key), point(id as u32, at));
            }
        }
        self.points = Some(points);
    }

    /// Tells `points` that the entries of `to` from `start` on came from the leaf `from`.
    fn move_points(&mut self, from: u32, to: u32, start: usize) {
        let Some(points) = &mut self.points else { return };
        let page = &self.leaves[to as usize].page;
        let mut key = Vec::new();
        for at in start..page.len() {
            key.clear();
            page.write_key(at, &mut key);
            let hash = points.secret.hash(&key);
            points.index.change(hash, |point| leaf_of(point) == from, point(to, at));
        }
    }

    #[inline]
    fn child_at(page: &Page, key: &[u8]) -> usize {
        match page.search(key) {
            Ok(at) => at,
            Err(at) => at.saturating_sub(1),
        }
    }

    #[inline]
    pub(super) fn leaf_for(&self, key: &[u8]) -> u32 {
        let mut at = self.root;
        for _ in 0..self.height {
            let page = &self.inners[at as usize];
            at = page.word(Self::child_at(page, key)) as u32;
        }
        at
    }

    /// The leaf for `key`, and the inner pages passed on the way with the entry taken in each.
    fn path_to(&self, key: &[u8]) -> (u32, Vec<(u32, usize)>) {
        let mut path = Vec::with_capacity(self.height);
        let mut at = self.root;
        for _ in 0..self.height {
            let page = &self.inners[at as usize];
            let entry = Self::child_at(page, key);
            path.push((at, entry));
            at = page.word(entry) as u32;
        }
        (at, path)
    }

    pub(super) fn insert(&mut self, key: &[u8], word: u64, secret: Option<&Secret>) -> Inserted {
        if let Some((leaf, at)) = self.find_point(key) {
            let page = &mut self.leaves[leaf as usize].page;
            let old = page.word(at);
            page.set_word(at, word);
            return Inserted::Replaced(old);
        }
        let last = &self.leaves[self.last as usize].page;
        let (leaf, found) = match last.search(key) {
            Err(at) if at == last.len() => (self.last, Err(at)),
            _ => {
                let leaf = self.leaf_for(key);
                (leaf, self.leaves[leaf as usize].page.search(key))
            }
        };
        let page = &mut self.leaves[leaf as usize].page;
        let at = match found {
            Ok(at) => {
                let old = page.word(at);
                page.set_word(at, word);
                return Inserted::Replaced(old);
            }
            Err(at) => at,
        };
        let capacity = page.capacity();
        if page.insert(at, key, word) {
            self.page_bytes = self.page_bytes + page.capacity() - capacity;
            self.len += 1;
            if let Some(points) = &mut self.points {
                points.index.insert(points.secret.hash(key), point(leaf, at));
            }
            return Inserted::New;
        }
        self.split_leaf(key, at);
        if let Some(secret) = secret
            && self.points.is_none()
            && self.leaves.len() >= POINTS_LEAVES_MIN
        {
            self.build_points(secret);
        }
        self.insert(key, word, secret)
    }

    /// Splits the leaf in which `key` belongs at `at`.
    fn split_leaf(&mut self, key: &[u8], at: usize) {
        let leaf = self.leaf_for(key);
        let is_last = leaf == self.last;
        let page = &mut self.leaves[leaf as usize].page;
        let capacity = page.capacity();
        let right = page.split(at, is_last);
        self.page_bytes = self.page_bytes + page.capacity() + right.capacity() - capacity;
        // The shortest separator between both halves keeps inner pages small.
        let separator = separator(&page.key(page.len() - 1), &right.key(0));
        let behind = self.leaves[leaf as usize].behind;
        let new = self.add_leaf(Leaf { page: right, before: leaf, behind });
        self.leaves[leaf as usize].behind = new;
        if behind == NONE {
            self.last = new;
        } else {
            self.leaves[behind as usize].before = new;
        }
        self.add_child(&separator, new, 0);
        self.move_points(leaf, new, 0);
    }

    fn add_leaf(&mut self, leaf: Leaf) -> u32 {
        if let Some(id) = self.free_leaves.pop() {
            self.leaves[id as usize] = leaf;
            return id;
        }
        self.leaves.push(leaf);
        (self.leaves.len() - 1) as u32
    }

    fn add_inner(&mut self, page: Page) -> u32 {
        self.page_bytes += page.capacity();
        if let Some(id) = self.free_inners.pop() {
            self.inners[id as usize] = page;
            return id;
        }
        self.inners.push(page);
        (self.inners.len() - 1) as u32
    }

    /// Enters `child` at `level` (0: right above the leaves), splitting inner pages upwards as
    /// needed; more than once where a separator undoes the prefix that a page's keys shared.
    fn add_child(&mut self, separator: &[u8], child: u32, level: usize) {
        if level == self.height {
            let mut root = Page::default();
            let done = root.insert(0, b"", u64::from(self.root))
                && root.insert(1, separator, u64::from(child));
            assert!(done, "an empty page has room for two entries");
            self.root = self.add_inner(root);
            self.height += 1;
            return;
        }
        loop {
            let path = self.path_to(separator).1;
            let (inner, entry) = path[self.height - 1 - level];
            let page = &mut self.inners[inner as usize];
            let capacity = page.capacity();
            // An inner page that took over the range of one before it has a first separator that
            // is too great: no key there is compared with it, so any lesser one will do (T1).
            let first = page.key(0);
            let is_lowered = separator > &first[..] || {
                let word = page.remove(0);
                let lowered = page.insert(0, &separator[..separator.len() - 1], word);
                if !lowered {
                    assert!(page.insert(0, &first, word), "what was taken out fits");
                }
                lowered
            };
            if is_lowered && page.insert(entry + 1, separator, u64::from(child)) {
                self.page_bytes = self.page_bytes + page.capacity() - capacity;
                return;
            }
            let right = page.split(entry + 1, false);
            self.page_bytes = self.page_bytes + page.capacity() - capacity;
            let right_separator = right.key(0);
            let right = self.add_inner(right);
            self.add_child(&right_separator, right, level + 1);
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<u64> {
        let leaf = self.leaf_for(key);
        let page = &mut self.leaves[leaf as usize].page;
        let at = page.search(key).ok()?;
        let capacity = page.capacity();
        let word = page.remove(at);
        self.len -= 1;
        if let Some(points) = &mut self.points {
            let hash = points.secret.hash(key);
            points.index.remove_where(hash, |point| leaf_of(point) == leaf);
        }
        let page = &mut self.leaves[leaf as usize].page;
        self.page_bytes = self.page_bytes + page.capacity() - capacity;
        if page.len() == 0 {
            self.unlink(leaf);
            let (_, mut path) = self.path_to(key);
            self.drop_child(&mut path);
        } else if page.live_bytes() < PAGE_BYTES_MAX / 4 {
            self.merge_behind(key);
        }
        Some(word)
    }

    fn unlink(&mut self, leaf: u32) {
        let Leaf { page, before, behind } = &self.leaves[leaf as usize];
        let (before, behind) = (*before, *behind);
        self.page_bytes -= page.capacity();
        self.leaves[leaf as usize].page = Page::default();
        match before {
            NONE => self.first = behind,
            before => self.leaves[before as usize].behind = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => self.leaves[behind as usize].before = before,
        }
        self.free_leaves.push(leaf);
    }

    /// Takes the child at the end of `path` out of its inner page, and inner pages that become
    /// empty out of theirs.
    fn drop_child(&mut self, path: &mut Vec<(u32, usize)>) {
        while let Some((inner, entry)) = path.pop() {
            let page = &mut self.inners[inner as usize];
            let capacity = page.capacity();
            if entry == 0 && page.len() > 1 {
                // The next child takes over the separator (T1).
                let next = page.word(1);
                page.set_word(0, next);
                page.remove(1);
            } else {
                page.remove(entry);
            }
            self.page_bytes = self.page_bytes + page.capacity() - capacity;
            if page.len() > 0 {
                break;
            }
            self.free_inners.push(inner);
        }
        while self.height > 1 && self.inners[self.root as usize].len() == 1 {
            let child = self.inners[self.root as usize].word(0) as u32;
            self.page_bytes -= self.inners[self.root as usize].capacity();
            self.inners[self.root as usize] = Page::default();
            self.free_inners.push(self.root);
            self.root = child;
            self.height -= 1;
        }
    }

    /// Merges the leaf of `key` with the one behind it, where one page holds both.
    fn merge_behind(&mut self, key: &[u8]) {
        let (leaf, mut path) = self.path_to(key);
        let (inner, entry) = path[path.len() - 1];
        let behind = self.leaves[leaf as usize].behind;
        if behind == NONE || entry + 1 >= self.inners[inner as usize].len() {
            return;
        }
        let other = &self.leaves[behind as usize].page;
        let widest = |page: &Page| page.live_bytes() + page.len() * page.prefix().len();
        if widest(other) + widest(&self.leaves[leaf as usize].page) > PAGE_BYTES_MAX * 3 / 4 {
            return;
        }
        let other = other.clone();
        let page = &mut self.leaves[leaf as usize].page;
        let capacity = page.capacity();
        let kept = page.len();
        page.merge(&other);
        self.page_bytes = self.page_bytes + page.capacity() - capacity;
        self.move_points(behind, leaf, kept);
        self.unlink(behind);
        if let Some((_, entry)) = path.last_mut() {
            *entry += 1;
        }
        self.drop_child(&mut path);
    }

    #[cfg(test)]
    pub(super) fn check_invariants(&self, len: usize) {
        let mut count = 0;
        let mut bytes: usize = 0;
        let mut before = NONE;
        let mut leaf = self.first;
        let mut last_key: Option<Vec<u8>> = None;
        while leaf != NONE {
            let here = &self.leaves[leaf as usize];
            assert_eq!(here.before, before);
            assert!(here.page.len() > 0, "T2");
            here.page.check_invariants();
            for at in 0..here.page.len() {
                let key = here.page.key(at);
                assert_eq!(self.leaf_for(&key), leaf, "T1: {key:?}");
                assert!(last_key.as_ref().is_none_or(|last| *last < key));
                last_key = Some(key);
            }
            count += here.page.len();
            bytes += here.page.capacity();
            before = leaf;
            leaf = here.behind;
        }
        assert_eq!(before, self.last);
        assert_eq!(count, len);
        if let Some(points) = &self.points {
            assert_eq!(points.index.len(), len, "T4");
            for leaf in self.leaves.iter() {
                for at in 0..leaf.page.len() {
                    assert!(self.find_point(&leaf.page.key(at)).is_some(), "T4");
                }
            }
        }
        bytes += self.inners.iter().map(Page::capacity).sum::<usize>();
        assert_eq!(bytes, self.page_bytes);
    }
}

/// The shortest byte string greater than `left` and at most `right`.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let shared = crate::page::common_prefix(left, right);
    right[..=shared.min(right.len() - 1)].to_vec()
}
