//! Messages that answer no request, between a client's answers.

use super::{Entry, Kind, Pending};
use alloc::vec::Vec;
use headwater_base::Shard;

impl Pending {
    /// What follows makes up one answer, which the session writes (S8).
    pub fn begin_answer(&mut self) {
        self.in_answer = true;
    }

    /// Whether such an answer is under way.
    #[must_use]
    pub fn is_in_answer(&self) -> bool {
        self.in_answer
    }

    /// The answer is whole. The messages that go behind it are put into `out`, where it is.
    pub fn end_answer(&mut self, out: &mut Vec<u8>) {
        self.in_answer = false;
        out.append(&mut self.messages_after);
    }

    /// Puts a message that something at `home` is the cause of where it belongs (S7); without one, behind all that is expected.
    /// `false`: nothing is in its way, and it goes out as ever.
    pub fn tell(&mut self, home: Option<Shard>, parts: &[&[u8]]) -> bool {
        if self.in_answer {
            parts.iter().for_each(|part| self.messages_after.extend_from_slice(part));
            return true;
        }
        let place = match home {
            _ if self.entries.is_empty() => 0,
            None => self.entries.len(),
            Some(home) => self.place_of_message(home),
        };
        if place == 0 {
            if self.ready.is_empty() {
                return false;
            }
            parts.iter().for_each(|part| self.ready.extend_from_slice(part));
            self.overdue = true;
            return true;
        }
        self.own_bytes += parts.iter().map(|part| part.len()).sum::<usize>();
        self.messages = place;
        if let Entry::Own(bytes) = &mut self.entries[place - 1] {
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        } else {
            self.entries.insert(place, Entry::Own(parts.concat()));
            self.messages += 1;
        }
        true
    }

    /// Behind how many of `entries` a message from `home` goes now.
    fn place_of_message(&self, home: Shard) -> usize {
        let own = home == self.me;
        let is_older = |entry: &Entry| match entry {
            Entry::Own(_) => own,
            // What this shard asks of itself is executed at a moment that its answer does not tell; and a transaction may have read
            // what has changed before the rest of it is executed.
            Entry::Answer { from, answer, kind, .. } => {
                *from == home && (own || answer.is_some() || *kind == Kind::Both)
            }
            Entry::Scattered(scattered) => {
                let mut parts = scattered.parts.iter();
                parts.any(|(shard, _, answer)| *shard == home && (own || answer.is_some()))
            }
        };
        let last = self.entries.iter().rposition(is_older);
        self.messages.max(last.map_or(0, |at| at + 1))
    }
}
