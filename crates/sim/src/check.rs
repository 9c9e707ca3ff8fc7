//! Answers, held against the oracle.

use crate::clients::{Ask, Parked};
use crate::world::World;
use headwater_base::{KeyRange, Shard};
use headwater_engine::RemoteReport;
use headwater_model::oracle::Pairs;

impl Ask {
    /// The keys that it is about.
    pub(crate) fn range(&self) -> KeyRange {
        match self {
            Self::Range(range) | Self::Verify(range) => range.clone(),
            Self::Get(key) => KeyRange::point(key),
        }
    }
}

impl World {
    /// Checks an answer that a shard gives now.
    pub(crate) fn check(
        &mut self,
        parked: &Parked,
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<(), String> {
        let shard = parked.shard;
        self.check_replicas(parked)?;
        if matches!(parked.ask, Ask::Verify(_)) {
            return Ok(());
        }
        let range = parked.ask.range();
        let given: Pairs = pairs.into_iter().collect();
        let own = self.explained(shard, &range);
        differ(&given, &own).map_err(|text| format!("of what is held: {text}"))?;
        let alone = self.sessions.len() == 1 && !self.lost && parked.writes == self.writes();
        if alone || self.quiet {
            let placement = &self.placement;
            let mut all = self.oracle.view().seen;
            all.retain(|key, _| range.contains(key) && placement.home(key) == shard);
            differ(&given, &all).map_err(|text| format!("of all that is written: {text}"))?;
        }
        Ok(())
    }

    /// What the oracle gives for a shard's keys of a range, from its own base keys and the replicas that it holds.
    fn explained(&self, shard: Shard, range: &KeyRange) -> Pairs {
        let placement = &self.placement;
        let is_own = |key: &[u8]| placement.home(key) == shard;
        let mut oracle = self.oracle.clone();
        oracle.base.retain(|key, _| is_own(key));
        self.shards[usize::from(shard.0)].engine.replicas(&mut |key, value| {
            oracle.base.insert(key.to_vec(), (value, None));
        });
        let view = oracle.view_with(&mut |_, mut made| {
            made.retain(|key, _| is_own(key));
            made
        });
        let mut seen = view.seen;
        seen.retain(|key, _| range.contains(key) && is_own(key));
        seen
    }

    /// Checks that replicas of base keys have values that the keys had, none older than the session knows of.
    fn check_replicas(&mut self, parked: &Parked) -> Result<(), String> {
        let mut wrong = Ok(());
        let mut found = Vec::new();
        let (history, lost) = (&self.history, self.lost);
        self.shards[usize::from(parked.shard.0)].engine.replicas(&mut |key, value| {
            let Some(values) = history.get(key) else { return };
            let shown = || format!("{} = {}", key.escape_ascii(), value.escape_ascii());
            match values.iter().position(|other| *other == value) {
                None => wrong = Err(format!("{}: it never was", shown())),
                Some(at) if !lost && parked.seen.get(key).is_some_and(|&seen| at < seen) => {
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

    /// Checks that without joins nothing of others is here.
    pub(crate) fn check_left(&self) -> Result<(), String> {
        for (at, one) in self.shards.iter().enumerate() {
            let (stats, remote) = (one.engine.stats(), one.engine.remote());
            let left = stats.updaters + stats.updater_targets + stats.status_ranges;
            if left > 0 || remote != RemoteReport::default() {
                return Err(format!("shard {at} keeps {remote:?}, {stats:?}"));
            }
            if one.engine.is_anything_followed() {
                return Err(format!("shard {at} still tells of changes"));
            }
        }
        Ok(())
    }
}

/// The first difference.
fn differ(given: &Pairs, expected: &Pairs) -> Result<(), String> {
    let shown = |pairs: &Pairs| -> Vec<String> {
        let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            format!("{}={}", key.escape_ascii(), value.escape_ascii())
        };
        pairs.iter().map(pair).collect()
    };
    if given == expected {
        return Ok(());
    }
    Err(format!("gives {:?}, expected {:?}", shown(given), shown(expected)))
}
