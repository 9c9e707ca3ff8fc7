//! Bounded spans: an interval tree (a treap ordered by span, each node knowing the greatest end
//! below it), so that a change meets only the spans that contain it.
//!
//! # Invariants
//! - Spans are half-open, have an end, and occur once each with the set of their targets.
//! - `greatest` of a node names a node of its subtree whose `last` no other there exceeds.
//!
//! # Cost
//! Insert, remove: O(log n) expected. Stab: O(log n + spans found).

use super::Target;
use super::targets::TargetSet;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_base::KeyRange;
use headwater_base::key::before_end;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    first: Box<[u8]>,
    last: Box<[u8]>,
    targets: TargetSet,
    priority: u32,
    left: u32,
    right: u32,
    greatest: u32,
}

/// Spans with their targets.
#[derive(Debug)]
pub(crate) struct Intervals {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    draws: u32,
    bytes: usize,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE, draws: 0x9e37_79b9, bytes: 0 }
    }
}

impl Intervals {
    pub(crate) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.nodes.capacity() * size_of::<Node>()
    }

    fn compare(&self, node: u32, first: &[u8], last: &[u8]) -> Ordering {
        let node = &self.nodes[node as usize];
        first.cmp(&node.first).then_with(|| last.cmp(&node.last))
    }

    fn find(&self, first: &[u8], last: &[u8]) -> Option<u32> {
        let mut at = self.root;
        while at != NONE {
            at = match self.compare(at, first, last) {
                Ordering::Equal => return Some(at),
                Ordering::Less => self.nodes[at as usize].left,
                Ordering::Greater => self.nodes[at as usize].right,
            };
        }
        None
    }

    /// Adds a target that is not there for this span.
    pub(crate) fn insert(&mut self, first: &[u8], last: &[u8], target: Target) {
        let at = match self.find(first, last) {
            Some(at) => at,
            None => {
                let at = self.make(first, last);
                self.root = self.insert_node(self.root, at);
                at
            }
        };
        let targets = &mut self.nodes[at as usize].targets;
        let before = targets.bytes();
        targets.insert(target);
        self.bytes = self.bytes + targets.bytes() - before;
    }

    /// Whether the target was there for this span.
    pub(crate) fn remove(&mut self, first: &[u8], last: &[u8], target: Target) -> bool {
        let Some(at) = self.find(first, last) else { return false };
        let targets = &mut self.nodes[at as usize].targets;
        let before = targets.bytes();
        let removed = targets.remove(target);
        self.bytes = self.bytes + targets.bytes() - before;
        if targets.is_empty() {
            self.root = self.remove_node(self.root, first, last);
            let node = &mut self.nodes[at as usize];
            self.bytes = self.bytes - node.first.len() - node.last.len() - node.targets.bytes();
            node.targets = TargetSet::default();
            (node.first, node.last) = (Box::default(), Box::default());
            self.free.push(at);
            if self.root == NONE {
                (self.nodes, self.free) = (Vec::new(), Vec::new());
            }
        }
        removed
    }

    /// Calls `each` with the targets of every span that contains `key`.
    pub(crate) fn stab(&self, key: &[u8], each: &mut impl FnMut(&TargetSet)) {
        self.stab_below(self.root, key, each);
    }

    fn stab_below(&self, at: u32, key: &[u8], each: &mut impl FnMut(&TargetSet)) {
        let Some(node) = self.nodes.get(at as usize) else { return };
        if *self.nodes[node.greatest as usize].last <= *key {
            return;
        }
        self.stab_below(node.left, key, each);
        if *node.first <= *key {
            if *key < *node.last {
                each(&node.targets);
            }
            self.stab_below(node.right, key, each);
        }
    }

    /// Calls `each` with the targets of every span that has keys of `range`.
    pub(crate) fn overlapping(&self, range: &KeyRange, each: &mut impl FnMut(&TargetSet)) {
        self.overlapping_below(self.root, range, each);
    }

    fn overlapping_below(&self, at: u32, range: &KeyRange, each: &mut impl FnMut(&TargetSet)) {
        let Some(node) = self.nodes.get(at as usize) else { return };
        if *self.nodes[node.greatest as usize].last <= *range.first {
            return;
        }
        self.overlapping_below(node.left, range, each);
        if before_end(&node.first, &range.last) {
            if *range.first < *node.last {
                each(&node.targets);
            }
            self.overlapping_below(node.right, range, each);
        }
    }

    fn make(&mut self, first: &[u8], last: &[u8]) -> u32 {
        // xorshift: priorities need no secrecy, only spread.
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 17;
        self.draws ^= self.draws << 5;
        self.bytes += first.len() + last.len();
        let node = Node {
            first: first.into(),
            last: last.into(),
            targets: TargetSet::default(),
            priority: self.draws,
            left: NONE,
            right: NONE,
            greatest: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.nodes[at as usize].greatest = at;
        at
    }

    fn settle(&mut self, at: u32) {
        let Node { left, right, .. } = self.nodes[at as usize];
        let mut greatest = at;
        for child in [left, right] {
            if child != NONE {
                let below = self.nodes[child as usize].greatest;
                if self.nodes[below as usize].last > self.nodes[greatest as usize].last {
                    greatest = below;
                }
            }
        }
        self.nodes[at as usize].greatest = greatest;
    }

    fn insert_node(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        let Node { first, last, .. } = &self.nodes[new as usize];
        let below = self.compare(at, first, last) == Ordering::Less;
        let top = if below {
            let left = self.insert_node(self.nodes[at as usize].left, new);
            self.nodes[at as usize].left = left;
            if self.nodes[left as usize].priority > self.nodes[at as usize].priority {
                self.nodes[at as usize].left = self.nodes[left as usize].right;
                self.nodes[left as usize].right = at;
                left
            } else {
                at
            }
        } else {
            let right = self.insert_node(self.nodes[at as usize].right, new);
            self.nodes[at as usize].right = right;
            if self.nodes[right as usize].priority > self.nodes[at as usize].priority {
                self.nodes[at as usize].right = self.nodes[right as usize].left;
                self.nodes[right as usize].left = at;
                right
            } else {
                at
            }
        };
        if top != at {
            self.settle(at);
        }
        self.settle(top);
        top
    }

    fn remove_node(&mut self, at: u32, first: &[u8], last: &[u8]) -> u32 {
        let Node { left, right, .. } = self.nodes[at as usize];
        let top = match self.compare(at, first, last) {
            Ordering::Less => {
                self.nodes[at as usize].left = self.remove_node(left, first, last);
                at
            }
            Ordering::Greater => {
                self.nodes[at as usize].right = self.remove_node(right, first, last);
                at
            }
            Ordering::Equal => return self.join(left, right),
        };
        self.settle(top);
        top
    }

    /// One tree of two, all spans of `left` being before those of `right`.
    fn join(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE {
            return right;
        }
        if right == NONE {
            return left;
        }
        let top = if self.nodes[left as usize].priority > self.nodes[right as usize].priority {
            self.nodes[left as usize].right = self.join(self.nodes[left as usize].right, right);
            left
        } else {
            self.nodes[right as usize].left = self.join(left, self.nodes[right as usize].left);
            right
        };
        self.settle(top);
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::StatusId;
    use crate::updaters::NO_CONTEXT;
    use alloc::collections::BTreeSet;

    #[test]
    fn a_stab_finds_exactly_the_spans_around_a_key() {
        let mut spans = Intervals::default();
        let mut model = BTreeSet::new();
        let mut state = 11u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for step in 0..20_000 {
            let first = draw(60) as u8;
            let last = first + 1 + draw(20) as u8;
            let target = Target::new(StatusId(draw(4) as u32), NO_CONTEXT);
            let span = (first, last, target);
            if draw(10) < if step / 2000 % 2 == 0 { 8 } else { 2 } {
                if model.insert(span) {
                    spans.insert(&[first], &[last], target);
                }
            } else {
                assert_eq!(spans.remove(&[first], &[last], target), model.remove(&span));
            }
            let key = draw(90) as u8;
            let mut found = Vec::new();
            spans.stab(&[key], &mut |targets| targets.extend(&mut found));
            found.sort();
            let mut expected: Vec<_> = model
                .iter()
                .filter(|(first, last, _)| *first <= key && key < *last)
                .map(|(_, _, target)| *target)
                .collect();
            expected.sort();
            assert_eq!(found, expected);
        }
        for (first, last, target) in model {
            assert!(spans.remove(&[first], &[last], target));
        }
        assert_eq!((spans.is_empty(), spans.bytes()), (true, 0));
    }
}
