//! Reads that accept what is older: what they are given of a home that is not heard is what was there when it was heard last.

use crate::clients::{Ask, Parked};
use crate::shard::{One, Pair};
use crate::world::World;
use headwater_base::{KeyRange, Millis, Shard};
use headwater_engine::{RangeOptions, Stop, Value};
use headwater_model::oracle::Pairs;
use std::collections::VecDeque;

/// So many states of a shard are known.
const STATES_MAX: usize = 400;
/// What is heard was so a little before: packets are under way, and time goes in steps.
const LATE: u64 = 200;
/// What reads accept, in milliseconds.
const ACCEPTED: [u64; 4] = [100, 1_000, 5_000, 60_000];

/// The base keys of a shard, with the moments since when they were so.
pub(crate) type States = VecDeque<(u64, Pairs)>;

impl World {
    /// How old may be what a read is given.
    pub(crate) fn accepted(&self, ask: &Ask) -> u64 {
        let accepts = self.faults.accepts && matches!(ask, Ask::Range(_)) && self.events % 3 == 1;
        if accepts { ACCEPTED[(self.events / 3 % 4) as usize] } else { 0 }
    }

    /// Notes what a shard has now.
    pub(crate) fn note_state(&mut self, at: usize) {
        if !self.faults.accepts {
            return;
        }
        let base = &self.shards[at].oracle.base;
        let (states, now) = (&mut self.states[at], self.now);
        let held = || base.iter().map(|(key, (value, _))| (key, value));
        if states.back().is_none_or(|(_, last)| !last.iter().eq(held())) {
            states.push_back((
                now,
                held().map(|(key, value)| (key.clone(), value.clone())).collect(),
            ));
            if states.len() > STATES_MAX {
                states.pop_front();
            }
        }
    }

    /// Checks an answer to a read that accepts what is older, beside that it follows from what is here: whoever does not accept it waits, or is given the same.
    pub(crate) fn check_older(&mut self, parked: &Parked, pairs: &[Pair]) -> Result<(), String> {
        let at = usize::from(parked.shard.0);
        let one = &mut self.shards[at];
        if parked.accepts == 0 || one.has_snapshots() {
            return Ok(());
        }
        let range = parked.ask.range();
        let mut same = |millis| match read_again(one, &range, millis) {
            Some(given) if given != pairs => {
                Err(format!("{pairs:?}, and {given:?} where {millis} ms are accepted"))
            }
            given => Ok(given.is_some()),
        };
        // It may wait for something else: the next slice, or what it looks for beyond the range.
        if same(0)? || !same(parked.accepts)? {
            return Ok(());
        }
        if self.faults.accepts && self.faults.slice_rows.is_none() {
            let homes = (0..self.shards.len() as u16).map(Shard);
            let heard = homes.filter_map(|home| self.shards[at].engine.heard_of(home));
            if heard.max().is_none_or(|heard| self.now - heard.0 > parked.accepts + LATE) {
                let accepts = parked.accepts;
                return Err(format!("it accepts {accepts} ms, and no home was heard then"));
            }
            self.note("answers that are older");
        }
        Ok(())
    }

    /// Checks that what a shard has of a home that is not heard is what the home had when it was heard last.
    pub(crate) fn check_heard(&self, at: usize) -> Result<(), String> {
        let is_known = self.faults.moves == 0 && self.faults.slow == 0;
        if !self.faults.accepts || !is_known {
            return Ok(());
        }
        let engine = &self.shards[at].engine;
        for home in (0..self.shards.len()).filter(|home| *home != at) {
            let shard = Shard(home as u16);
            let Some(Millis(heard)) = engine.heard_of(shard) else { continue };
            let loaded = engine.loaded_of(shard);
            let is_of_interest = |key: &[u8]| {
                self.placement.home(key) == shard
                    && loaded.iter().any(|range| range.contains(key))
                    && !self.source.keeps(key)
                    && !self.outputs.iter().any(|output| output.matches(key))
            };
            let mut held = Pairs::new();
            engine.replicas(&mut |key, value| {
                if is_of_interest(key) {
                    held.insert(key.to_vec(), value);
                }
            });
            let states = &self.states[home];
            let is_it =
                |state: &Pairs| state.iter().filter(|(key, _)| is_of_interest(key)).eq(held.iter());
            let ends = states.iter().skip(1).map(|(since, _)| *since).chain([u64::MAX]);
            // It may be of a moment behind that one: then it is younger than it is said to be.
            let mut then =
                states.iter().zip(ends).filter(|(_, end)| end.saturating_add(LATE) >= heard);
            if states.len() < STATES_MAX && !then.any(|((_, state), _)| is_it(state)) {
                return Err(format!(
                    "shard {at} has of shard {home}, last heard at {heard}, {held:?}; {states:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Reads a range as one who accepts so much; `None`: it waits, or fails.
fn read_again(one: &mut One, range: &KeyRange, millis: u64) -> Option<Vec<Pair>> {
    let mut given = Vec::new();
    let each = &mut |key: &[u8], value: Value<'_>| given.push((key.to_vec(), value.to_vec()));
    let read = one.sliced(|engine| {
        engine.accept_age(millis);
        let read = engine.range(&range.first, &range.last, RangeOptions::default(), each);
        engine.accept_age(0);
        read
    });
    match read {
        Ok(_) => return Some(given),
        Err(Stop::Wait(ticket)) => one.engine.forget_ticket(ticket),
        Err(Stop::Failed(_)) => {}
    }
    None
}
