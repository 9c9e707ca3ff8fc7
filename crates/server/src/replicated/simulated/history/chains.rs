//! Values that change by compare-and-set alone, and so follow one another in one order: each takes the place of the one that its client had seen.

use super::{Asked, History, Operation, Told};
use headwater_sim::replicated::check_order;
use std::collections::{BTreeMap, BTreeSet};

impl History {
    pub(super) fn check_chain(&self, chain: usize) -> Result<(), String> {
        // Whose values were seen, and by whom; `None`: nothing was there.
        let mut seen = BTreeMap::<Option<usize>, usize>::new();
        for (which, asked) in self.all() {
            if let Some((value, _)) = asked.chain_seen(chain) {
                seen.entry(value).or_insert(which);
            }
        }
        let mut next = BTreeMap::<Option<usize>, usize>::new();
        for (which, asked) in self.all() {
            let Operation::Swap(at, before, _) = asked.operation else { continue };
            let is_done = match asked.answer {
                Some((_, Told::Done)) => true,
                None => seen.contains_key(&Some(which)),
                Some(_) => false,
            };
            if at == chain
                && is_done
                && let Some(other) = next.insert(before, which)
            {
                return Err(format!(
                    "operations {other} and {which} have both replaced {before:?} in chain {chain}"
                ));
            }
        }
        let (mut versions, mut at) = (BTreeMap::from([(None, 0)]), None);
        while let Some(which) = next.get(&at) {
            at = Some(*which);
            versions.insert(at, versions.len() as u64);
        }
        let lost: BTreeSet<_> =
            next.values().filter(|which| !versions.contains_key(&Some(**which))).collect();
        if !lost.is_empty() {
            return Err(format!("chain {chain} lacks what {lost:?} have replaced"));
        }
        let mut order = Vec::new();
        for (which, asked) in self.all() {
            if let Some((value, end)) = asked.chain_seen(chain) {
                let version = versions.get(&value).ok_or_else(|| {
                    format!("operation {which} saw {value:?} in chain {chain}, which is not in it")
                })?;
                order.push((*version, true, asked.began, end, which));
            }
            if let (Operation::Swap(at, ..), Some(version)) =
                (asked.operation, versions.get(&Some(which)))
                && at == chain
            {
                order.push((*version, false, asked.began, asked.end().unwrap_or(u64::MAX), which));
            }
        }
        check_order(&format!("chain {chain}"), order)
    }
}

impl Asked {
    /// What it saw of a chain, and when it was told so.
    fn chain_seen(&self, chain: usize) -> Option<(Option<usize>, u64)> {
        match (self.operation, &self.answer) {
            (Operation::ReadChain(at), Some((end, Told::Value(value))))
            | (Operation::Hold(at), Some((end, Told::Held(value, _))))
                if at == chain =>
            {
                Some((*value, *end))
            }
            _ => None,
        }
    }
}
