//! Tasks that failed too often, and whether a newer write of their key has had its effects since.

use crate::record::Record;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::Millis;

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
