//! What is lost with a connection is resumed with the next one: the follower names a place among the home's writes, and the home says what has changed since (H5).

use crate::hub::{Asked, Hub};
use crate::message::Message;
use alloc::vec::Vec;
use headwater_base::source::{Change, Position, StorePlace};
use headwater_base::{KeyRange, Shard};

impl Hub {
    /// As a follower: asks `home` what has changed of a range since the last place that it has told.
    pub fn resume(&mut self, home: Shard, range: KeyRange) {
        let Some(link) = self.links.get_mut(&home) else { return };
        link.follows = true;
        if let Some(since) = link.reached {
            self.send(home, Message::Resume { range, since });
        }
    }

    /// As a follower: all ranges of `home` were resumed, or are not to be any more.
    pub fn end_resumption(&mut self, home: Shard) {
        if let Some(link) = self.links.get_mut(&home).filter(|link| link.lost_at.is_none()) {
            link.resumes = false;
            link.current_until = None;
            link.reached = link.reached_since.take().or(link.reached);
        }
    }

    /// As a home: tells what has changed of a range that a shard resumes. Everything that was to be told before must have been given to
    /// [`Hub::tell`].
    pub fn resumed(&mut self, asked: &Asked, changes: Option<Vec<Change>>) {
        if self.is_awaited(asked) {
            self.close();
            self.send_items(asked.by);
            let (range, position) = (asked.range.clone(), Position(self.position));
            self.send(asked.by, Message::Resumed { range, position, changes });
        }
    }

    /// As a home: whether followers are to hear how far its writes have come.
    #[must_use]
    pub fn is_place_due(&self) -> bool {
        self.links.values().any(|link| link.is_place_due(self.now))
    }

    /// As a home, behind [`Hub::flush`]: followers have been told everything up to `place`, which cannot be lost any more. Later lives of this shard may tell them
    /// what has changed since.
    pub fn tell_place(&mut self, place: StorePlace) {
        let now = self.now;
        let shards: Vec<_> = self.links.keys().copied().collect();
        for to in shards {
            let Some(link) = self.links.get_mut(&to).filter(|link| link.is_place_due(now)) else {
                continue;
            };
            if link.told_place != Some(place) {
                (link.told_place, link.told_place_at) = (Some(place), now);
                self.send(to, Message::Reached(place));
            }
        }
    }
}
