//! Tasks that failed too often, and whether a newer write of their key has had its effects since.

use crate::flows::{Flows, Refusal, refused};
use crate::record::Record;
use crate::states::{dead_bytes, state_name};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::Millis;

/// Dead tasks that one flow keeps; beyond, the oldest goes.
const DEAD_MAX: usize = 10_000;

/// A task that failed too often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dead {
    /// What it was about.
    pub record: Record,
    /// How often it was tried.
    pub attempts: u32,
    /// What went wrong the last time.
    pub error: String,
    /// When that was.
    pub at: Millis,
    /// A newer write of its key has had its effects: done now, its own would hide those.
    pub overtaken: bool,
}

/// The dead tasks of a flow.
#[derive(Debug, Default)]
pub(crate) struct DeadTasks {
    by_position: BTreeMap<u64, Dead>,
    /// Their positions, by key.
    keys: BTreeMap<Vec<u8>, BTreeSet<u64>>,
}

impl DeadTasks {
    pub(crate) fn len(&self) -> usize {
        self.by_position.len()
    }

    pub(crate) fn by_position(&self) -> &BTreeMap<u64, Dead> {
        &self.by_position
    }

    pub(crate) fn insert(&mut self, dead: Dead) {
        let position = dead.record.position;
        self.keys.entry(dead.record.key.clone()).or_default().insert(position);
        self.by_position.insert(position, dead);
    }

    pub(crate) fn remove(&mut self, position: u64) -> Option<Dead> {
        let dead = self.by_position.remove(&position)?;
        if let Some(positions) = self.keys.get_mut(&dead.record.key) {
            positions.remove(&position);
            if positions.is_empty() {
                self.keys.remove(&dead.record.key);
            }
        }
        Some(dead)
    }

    /// The position of the oldest one.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.by_position.keys().next().copied()
    }

    /// A task is done: those of its key that are older are overtaken. Gives those that were not before.
    pub(crate) fn overtake(&mut self, done: &Record) -> Vec<&Dead> {
        let Some(positions) = self.keys.get(&done.key) else { return Vec::new() };
        let mut overtaken = Vec::new();
        for position in positions {
            if let Some(dead) = self.by_position.get_mut(position)
                && dead.record.sequence < done.sequence
                && !dead.overtaken
            {
                dead.overtaken = true;
                overtaken.push(*position);
            }
        }
        overtaken.iter().filter_map(|position| self.by_position.get(position)).collect()
    }
}

/// A task that was given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GivenUp {
    /// Its flow.
    pub flow: String,
    /// Its record's position.
    pub position: u64,
    /// How often it was tried.
    pub attempts: u32,
}

/// Tasks that wait to be told of; further ones are not.
const GIVEN_UP_MAX: usize = 64;

impl Flows {
    /// Takes the tasks that were given up since this was asked last.
    #[inline]
    pub fn take_given_up(&mut self) -> Vec<GivenUp> {
        core::mem::take(&mut self.given_up)
    }

    pub(crate) fn bury(&mut self, name: &str, dead: Dead) {
        let Some((_, flow)) = self.flows.get_mut(name) else { return };
        let position = dead.record.position;
        if self.given_up.len() < GIVEN_UP_MAX {
            let (flow, attempts) = (String::from(name), dead.attempts);
            self.given_up.push(GivenUp { flow, position, attempts });
        }
        self.journal.put(&state_name(b'x', name, Some(position)), Some(&dead_bytes(&dead)));
        flow.dead.insert(dead);
        if flow.dead.len() > DEAD_MAX
            && let Some(oldest) = flow.dead.oldest()
        {
            flow.dead.remove(oldest);
            self.journal.put(&state_name(b'x', name, Some(oldest)), None);
        }
    }

    /// The dead tasks of a flow, by position; `None` where there is no such flow.
    #[must_use]
    pub fn dead(&self, name: &str) -> Option<&BTreeMap<u64, Dead>> {
        self.flows.get(name).map(|(_, flow)| flow.dead.by_position())
    }

    /// Has a dead task of a flow, or all, tried once more, behind the tasks that wait; gives how many. One that is older
    /// than a write of its key that has had its effects, or waits, stays where it is, unless this is to be done by `force`:
    /// it would hide the newer one's effects. `None` where there is no such flow.
    ///
    /// # Errors
    /// That is so of the one that was asked for.
    pub fn retry(
        &mut self,
        name: &str,
        position: Option<u64>,
        force: bool,
        now: Millis,
    ) -> Option<Result<usize, Refusal>> {
        let (_, flow) = self.flows.get(name)?;
        let (dead, all) = (flow.dead.by_position(), || flow.dead.by_position().values().collect());
        let of = |position| dead.get(&position).into_iter().collect();
        let wanted: Vec<&Dead> = position.map_or_else(all, of);
        let keys = wanted.iter().map(|dead| &*dead.record.key).collect();
        let newest =
            if force { Some(BTreeMap::new()) } else { flow.newest_of(&keys, &mut *self.journal) };
        let is_old = |dead: &Dead| {
            let newer = |&newest: &u64| newest > dead.record.sequence;
            let waits =
                newest.as_ref().is_none_or(|all| all.get(&dead.record.key).is_some_and(newer));
            !force && (dead.overtaken || waits)
        };
        if let (Some(_), [dead]) = (position, &*wanted)
            && is_old(dead)
        {
            return Some(refused(format!(
                "a newer write of '{}' has been done or waits: FORCE has the older one done behind it, FLOW.DISCARD \
                 forgets it",
                dead.record.key.escape_ascii()
            )));
        }
        let mut again: Vec<_> = wanted.into_iter().filter(|dead| !is_old(dead)).collect();
        // Several of one key keep their order.
        again.sort_by_key(|dead| dead.record.sequence);
        let again: Vec<u64> = again.into_iter().map(|dead| dead.record.position).collect();
        for position in &again {
            let Some(Dead { record, .. }) = self.take_dead(name, *position) else { continue };
            let only = Some(name.as_bytes().to_vec());
            self.record((now, record.sequence), record.operation, &record.key, &record.value, only);
        }
        if let Some((_, flow)) = self.flows.get(name) {
            let cursor = flow.told();
            self.tell_cursor(name, cursor);
        }
        Some(Ok(again.len()))
    }

    /// Forgets a dead task of a flow, or all; gives how many. `None` where there is no such flow.
    pub fn discard(&mut self, name: &str, position: Option<u64>) -> Option<usize> {
        let (_, flow) = self.flows.get(name)?;
        let all = || flow.dead.by_position().keys().copied().collect();
        let wanted: Vec<u64> = position.map_or_else(all, |position| alloc::vec![position]);
        Some(wanted.iter().filter(|&&position| self.take_dead(name, position).is_some()).count())
    }

    fn take_dead(&mut self, name: &str, position: u64) -> Option<Dead> {
        let dead = self.flows.get_mut(name)?.1.dead.remove(position)?;
        self.journal.put(&state_name(b'x', name, Some(position)), None);
        Some(dead)
    }
}
