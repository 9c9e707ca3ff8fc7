//! What a shard has not answered, and does not any more, or not yet: something else stands for its answers.

use super::{Encode, Entry, Pending, Wanted};
use alloc::vec::Vec;
use headwater_base::Shard;

impl Pending {
    /// A shard will answer nothing of what it was asked so far, but for what was kept from it: `answer` stands for each of its answers. Of the keys that
    /// it watched nobody knows whether they have changed.
    pub fn lost(
        &mut self,
        at: Shard,
        answer: &[u8],
        is_kept: impl Fn(u64) -> bool,
        encode: &mut impl Encode,
    ) {
        for id in self.missing_of(at, true).into_iter().filter(|id| !is_kept(*id)) {
            self.came((at, id), answer, Vec::new(), encode);
        }
        self.watches_lost |= self.watches_at.contains(&at);
    }

    /// A shard has not answered for so long that `answer` stands for what it would answer, which is dropped when it comes; `inner` for what is asked
    /// step by step, unless that waits on. Whether any of that was missing.
    pub fn give_up(
        &mut self,
        at: Shard,
        answer: &[u8],
        inner: Option<&[u8]>,
        encode: &mut impl Encode,
    ) -> bool {
        for entry in &mut self.entries {
            if let Entry::Scattered(scattered) = entry {
                scattered.give_up(at);
            }
        }
        for id in self.missing_of(at, false) {
            self.came((at, id), answer, Vec::new(), encode);
        }
        let missing = if inner.is_some() { self.missing_of(at, true) } else { Vec::new() };
        for id in &missing {
            self.came((at, *id), inner.unwrap_or_default(), Vec::new(), encode);
        }
        !missing.is_empty()
    }

    /// The shard that was asked has handed a request on: `home` is to answer it.
    pub fn handed_on(&mut self, id: u64, home: Shard) {
        let missing = self.entries.iter_mut().find_map(|entry| match entry {
            Entry::Answer { id: of, from, kind, answer: None, .. } if *of == id => {
                Some((core::mem::replace(from, home), *kind))
            }
            Entry::Scattered(scattered) => {
                let kind = scattered.kind;
                let mut parts = scattered.parts.iter_mut();
                let (from, ..) = parts.find(|(_, of, it)| *of == id && it.is_none())?;
                Some((core::mem::replace(from, home), kind))
            }
            Entry::Answer { .. } | Entry::Own(_) => None,
        });
        if let Some((from, kind)) = missing {
            self.asked[usize::from(from.0)].answered(kind);
            self.asked[usize::from(home.0)].sent(kind);
        }
    }

    /// The requests that a shard has not answered; those that are not the client's own only if `inner`.
    fn missing_of(&self, at: Shard, inner: bool) -> Vec<u64> {
        let mut missing = Vec::new();
        for entry in &self.entries {
            match entry {
                Entry::Answer { id, from, answer: None, wanted, .. }
                    if *from == at && (inner || *wanted != Wanted::Inner) =>
                {
                    missing.push(*id);
                }
                Entry::Answer { .. } | Entry::Own(_) => {}
                Entry::Scattered(scattered) => {
                    let parts = scattered.parts.iter();
                    let parts = parts.filter(|(from, _, answer)| *from == at && answer.is_none());
                    missing.extend(parts.map(|(_, id, _)| *id));
                }
            }
        }
        missing
    }

    /// Whether a shard has forgotten keys that it watched for the client.
    #[must_use]
    pub fn has_lost_watches(&self) -> bool {
        self.watches_lost
    }
}
