//! The tree against the ordered map of the standard library.
//!
//! `HEADWATER_TREE_HISTORIES=100000` runs more histories than usual.

extern crate std;

use super::*;
use alloc::collections::BTreeMap;

struct Draws(u64);
impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn key(draws: &mut Draws, spread: u64) -> Vec<u8> {
    let number = draws.below(spread);
    match draws.below(8) {
        0 => number.to_be_bytes().to_vec(),
        1 => alloc::vec![b'k'; (number % 1000) as usize],
        _ => alloc::format!("user:{number:08}").into_bytes(),
    }
}

#[test]
fn a_tree_is_an_ordered_map() {
    for round in 0..12u64 {
        let mut draws = Draws(round);
        let spread = [30, 3000, 100_000][round as usize % 3];
        let mut tree = Tree::new();
        let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for step in 0..12_000u64 {
            let key = key(&mut draws, spread);
            // Alternate between growing and shrinking.
            if draws.below(10) < if step / 3000 % 2 == 0 { 8 } else { 2 } {
                let expected = model.insert(key.clone(), step);
                let got = tree.insert(&key, step, Some(&Secret::fixed(9)));
                assert_eq!(got, expected.map_or(Inserted::New, Inserted::Replaced));
            } else {
                let victim =
                    model.range(key..).next().map(|(key, _)| key.clone()).unwrap_or_default();
                assert_eq!(tree.remove(&victim), model.remove(&victim));
            }
            if step % 1000 == 0 {
                tree.check_invariants();
            }
        }
        tree.check_invariants();
        for _ in 0..300 {
            let (a, b) = (key(&mut draws, spread), key(&mut draws, spread));
            assert_eq!(tree.get(&a), model.get(&a).copied());
            assert_eq!(
                tree.at_or_before(&a),
                model.range(..=a.clone()).next_back().map(|(k, v)| (k.clone(), *v))
            );
            let expected: Vec<_> = model
                .iter()
                .filter(|(key, _)| **key >= a && **key < b)
                .map(|(k, v)| (k.clone(), *v))
                .collect();
            let mut got = Vec::new();
            let _ = tree.ascend::<()>(&a, Some(&b), &|_| (), &mut |prefix, suffix, word| {
                got.push(([prefix, suffix].concat(), word));
                ControlFlow::Continue(())
            });
            assert_eq!(got, expected);
            got.clear();
            let _ = tree.descend::<()>(&a, Some(&b), &|_| (), &mut |prefix, suffix, word| {
                got.push(([prefix, suffix].concat(), word));
                ControlFlow::Continue(())
            });
            got.reverse();
            assert_eq!(got, expected);
        }
        while let Some(key) = model.keys().next().cloned() {
            assert_eq!(tree.remove(&key), model.remove(&key));
        }
        assert_eq!((tree.len(), tree.allocated_bytes()), (0, 0));
    }
}

/// Keys as a history has them.
#[derive(Debug)]
struct Keys {
    /// What they begin with; nothing, so that they share what their numbers do.
    prefix: &'static str,
    /// Digits of the numbers that follow each other.
    digits: usize,
    /// Some are longer, by up to so many bytes.
    tail_max: u64,
    /// Of a hundred of them, so many.
    tails: u64,
}

impl Keys {
    fn new(draws: &mut Draws) -> Self {
        let prefixes =
            ["", "v", "timeline|ann|", "a rather long beginning, which most pages keep once|"];
        Self {
            prefix: prefixes[draws.below(4) as usize],
            digits: [6, 20, 60][draws.below(3) as usize],
            tail_max: [0, 10, 100, 1000][draws.below(4) as usize],
            tails: [2, 50, 100][draws.below(3) as usize],
        }
    }

    fn key(&self, number: u64, draws: &mut Draws) -> Vec<u8> {
        let mut key = alloc::format!("{}{number:0digits$}", self.prefix, digits = self.digits);
        if self.tail_max > 0 && draws.below(100) < self.tails {
            key.extend((0..draws.below(self.tail_max)).map(|_| 'x'));
        }
        key.into_bytes()
    }
}

/// A tree, and what it must hold.
struct Pair {
    tree: Tree,
    model: BTreeMap<Vec<u8>, u64>,
    secret: Option<Secret>,
    step: u64,
}

impl Pair {
    fn insert(&mut self, key: Vec<u8>) {
        self.step += 1;
        let got = self.tree.insert(&key, self.step, self.secret.as_ref());
        let expected = self.model.insert(key, self.step);
        assert_eq!(got, expected.map_or(Inserted::New, Inserted::Replaced));
    }

    fn remove(&mut self, key: Option<Vec<u8>>) {
        let Some(key) = key else { return };
        assert_eq!(self.tree.remove(&key), self.model.remove(&key));
    }

    fn last(&self) -> Option<Vec<u8>> {
        self.model.keys().next_back().cloned()
    }

    fn at_least(&self, key: Vec<u8>) -> Option<Vec<u8>> {
        self.model.range(key..).next().map(|(key, _)| key.clone())
    }

    fn check(&self) {
        self.tree.check_invariants();
        assert_eq!(self.tree.len(), self.model.len());
        let mut expected = self.model.iter();
        let _ = self.tree.ascend::<()>(b"", None, &|_| (), &mut |prefix, suffix, word| {
            let (key, known) = expected.next().expect("the tree has as many");
            assert!(key.starts_with(prefix) && key[prefix.len()..] == *suffix && word == *known);
            ControlFlow::Continue(())
        });
        assert_eq!(expected.next(), None);
    }
}

/// One history: keys come behind the last, the last ones go, up to here and down to there; and keys come and go anywhere.
fn history(seed: u64) {
    let draws = &mut Draws(seed);
    let keys = Keys::new(draws);
    let secret = (draws.below(2) == 0).then(|| Secret::fixed(7));
    let mut pair = Pair { tree: Tree::new(), model: BTreeMap::new(), secret, step: 0 };
    // Sometimes there is a key with which the others share nothing.
    if draws.below(2) == 0 {
        pair.insert(alloc::vec![0]);
    }
    let (level, spread) = (draws.below(1500), [3, 30, 300][draws.below(3) as usize]);
    let (rising, anywhere) = (3 + draws.below(6), 1 + draws.below(40));
    let mut next = 0u64;
    for _ in 0..60 {
        if draws.below(10) < rising {
            let wanted = (level + draws.below(spread)) as usize;
            while pair.model.len() < wanted {
                pair.insert(keys.key(next, draws));
                next += 1;
            }
            while pair.model.len() > wanted {
                pair.remove(pair.last());
            }
        } else if draws.below(2) == 0 {
            for _ in 0..anywhere {
                let number = draws.below(next + 1);
                pair.insert(keys.key(number, draws));
            }
        } else {
            for _ in 0..anywhere {
                let number = draws.below(next + 1);
                pair.remove(pair.at_least(keys.key(number, draws)));
            }
        }
        pair.check();
    }
    while let Some(last) = pair.last() {
        pair.remove(Some(last));
    }
    assert_eq!((pair.tree.len(), pair.tree.allocated_bytes()), (0, 0));
}

#[test]
fn a_tree_is_an_ordered_map_after_any_history_of_its_end() {
    let most = std::env::var("HEADWATER_TREE_HISTORIES").ok();
    let most = most.and_then(|most| most.parse().ok()).unwrap_or(200);
    for seed in 0..most {
        let run = std::panic::catch_unwind(|| history(seed));
        assert!(run.is_ok(), "history {seed} of a tree");
    }
}

#[test]
fn a_page_that_is_the_last_again_and_again_does_not_grow() {
    // The last page gives its last key to a new page where it is full; that goes, and the
    // page is the last again.
    let mut tree = Tree::new();
    let last = |tree: &Tree| match &tree.0 {
        Body::Page(_) => NONE,
        Body::Pages(pages) => pages.last,
    };
    // Nothing is shared with this key, so that the page's prefix stays as it is.
    tree.insert(b"a", 0, Some(&Secret::fixed(5)));
    let mut splits = 0;
    for next in 0..3_000u32 {
        let (key, before) = (alloc::format!("v{next:06}"), last(&tree));
        tree.insert(key.as_bytes(), 0, Some(&Secret::fixed(5)));
        if last(&tree) != before {
            splits += 1;
            tree.remove(alloc::format!("v{:06}", next - 1).as_bytes());
            tree.remove(key.as_bytes());
        }
        tree.check_invariants();
    }
    assert!(splits > 1_000, "{splits} splits");
}

#[test]
fn a_tree_of_rising_keys_from_which_any_go_stays_whole() {
    let mut tree = Tree::new();
    let mut keys: Vec<u32> = Vec::new();
    let mut state = 3u64;
    for step in 0..120_000u32 {
        let key = alloc::format!("m0|{}", step);
        tree.insert(key.as_bytes(), u64::from(step), Some(&Secret::fixed(5)));
        keys.push(step);
        if keys.len() > 24_000 {
            let mut draw = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as usize % keys.len()
            };
            // What came first among a few goes: whole inner pages become empty.
            let at = (0..16).map(|_| draw()).min_by_key(|at| keys[*at]).unwrap();
            let key = alloc::format!("m0|{}", keys.swap_remove(at));
            tree.remove(key.as_bytes());
        }
        if step % 500 == 0 {
            tree.check_invariants();
        }
    }
}
