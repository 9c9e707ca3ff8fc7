//! Answers, held against the oracle.

use crate::clients::{Ask, Parked};
use crate::shard::Pair;
use crate::world::World;
use headwater_base::KeyRange;
use headwater_model::expect::check_range;
use headwater_model::oracle::Pairs;
use std::collections::BTreeMap;

impl World {
    /// Checks an answer that a shard gives now.
    pub(crate) fn check(&mut self, parked: &Parked, pairs: &[Pair]) -> Result<(), String> {
        let shard = parked.shard;
        let at = usize::from(shard.0);
        self.check_replicas(parked)?;
        self.check_heard(at)?;
        if matches!(parked.ask, Ask::Verify(_)) {
            return Ok(());
        }
        let range = parked.ask.range();
        let one = &mut self.shards[at];
        let (oracle, view) = one.explained(&self.placement);
        let has_snapshots = one.has_snapshots();
        if has_snapshots {
            self.note("answers with snapshots");
            let one = &self.shards[at];
            let mut oracle = (*oracle).clone();
            oracle.now = one.oracle.now;
            let allowed = one.moments.allowed(&oracle, &view);
            let placement = &self.placement;
            let inside = |key: &[u8]| range.contains(key) && placement.home(key) == shard;
            check_range(pairs, &allowed, &inside, false, None)
                .map_err(|text| format!("of what was held: {text}"))?;
        } else {
            differ(pairs, &view.seen, &range, &|_| true)
                .map_err(|text| format!("of what is held: {text}"))?;
        }
        let alone = self.sessions.len() == 1
            && !self.lost
            && !has_snapshots
            && self.change.is_none()
            && parked.accepts == 0
            && parked.events == self.events;
        // What a source has told nobody yet is shown where the position was asked for.
        let alone =
            alone && (!self.source.keeps_anything() || parked.reach.0 == self.source.position());
        if alone && self.source.keeps_anything() {
            self.note("answers that show all of a source");
        }
        if alone || self.quiet {
            self.note("answers that show all writes");
            let (_, whole) = self.whole();
            let placement = &self.placement;
            differ(pairs, &whole.seen, &range, &|key| placement.home(key) == shard)
                .map_err(|text| format!("of all that is written: {text}"))?;
        }
        Ok(())
    }

    /// Checks that replicas of base keys have values that the keys had, none older than the session knows of.
    fn check_replicas(&mut self, parked: &Parked) -> Result<(), String> {
        let mut wrong = Ok(());
        let mut found = Vec::new();
        let (history, lost, outputs) = (&self.history, self.lost, &self.outputs);
        let engine = &self.shards[usize::from(parked.shard.0)].engine;
        engine.replicas(&mut |key, value| {
            // What is not shown for now may be old.
            if engine.is_suspended(self.placement.home(key)) {
                return;
            }
            // What a join gives there, or gave, was never written.
            if outputs.iter().any(|output| output.matches(key)) {
                return;
            }
            let Some(values) = history.get(key) else { return };
            let shown = || format!("{} = {}", key.escape_ascii(), value.escape_ascii());
            match values.iter().position(|other| *other == value) {
                None => wrong = Err(format!("{}: it never was", shown())),
                Some(at)
                    if !lost
                        && parked.accepts == 0
                        && parked.seen.get(key).is_some_and(|&seen| at < seen) =>
                {
                    wrong = Err(format!("{}: the session knows of a later value", shown()));
                }
                Some(at) => found.push((key.to_vec(), at)),
            }
        });
        let session = &mut self.sessions[parked.session];
        if session.causal {
            for (key, at) in found {
                let seen = session.seen.entry(key).or_default();
                *seen = at.max(*seen);
            }
        }
        wrong
    }

    /// Checks each shard by itself: its engine's invariants, and that watching clients have what a read would give, as far
    /// as the shard has done its work.
    pub(crate) fn check_shards(&mut self) -> Result<(), String> {
        (0..self.shards.len()).try_for_each(|at| self.check_heard(at))?;
        for one in &mut self.shards {
            one.engine.check_invariants();
            let is_current = one.engine.is_followed_current() && !one.engine.goes_on();
            if is_current && !one.engine.has_notifications() && !one.copies.is_empty() {
                *self.seen.entry("copies checked").or_default() += 1;
                let (_, view) = one.explained(&self.placement);
                one.copies.compare(&view.seen).map_err(|text| format!("{:?}: {text}", one.me))?;
            }
        }
        Ok(())
    }
}

/// The first differences between an answer and the right keys that lie in its range.
fn differ(
    given: &[Pair],
    right: &Pairs,
    range: &KeyRange,
    is_own: &dyn Fn(&[u8]) -> bool,
) -> Result<(), String> {
    let expected = right.iter().filter(|(key, _)| range.contains(key) && is_own(key));
    if given.iter().map(|(key, value)| (key, value)).eq(expected.clone()) {
        return Ok(());
    }
    let shown = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        format!("{}={}", key.escape_ascii(), value.escape_ascii())
    };
    let pairs: BTreeMap<_, _> = given.iter().map(|(key, value)| (key, value)).collect();
    let more: Vec<_> =
        pairs.iter().filter(|(key, value)| right.get(**key) != Some(**value)).collect();
    let more: Vec<_> = more.into_iter().map(|(key, value)| shown((key, value))).collect();
    let less: Vec<_> = expected.filter(|(key, value)| pairs.get(key) != Some(value)).collect();
    let less: Vec<_> = less.into_iter().map(shown).collect();
    Err(format!("gives {} pairs, wrongly {more:?}, not {less:?}", given.len()))
}
