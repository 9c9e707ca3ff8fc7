//! What followers are told, and that their copies are right after every operation.

use super::{Run, same};
use crate::subject::{FeedChange, FollowerNotification};
use headwater_base::KeyRange;
use headwater_engine::{EngineError, Stop};

/// How often followers may begin anew within one operation.
const PATIENCE: usize = 100;
/// After how many operations all of what large fan-outs and removals bring to followers has come.
const FED_EVERY: usize = 4;

impl Run<'_> {
    pub(super) fn follow(&mut self, by: u32, range: &KeyRange) -> Result<(), String> {
        if range.is_empty() {
            return Ok(());
        }
        match self.subject.follow(by, range) {
            Ok(pairs) => {
                self.copies.add(by, range, pairs);
                Ok(())
            }
            Err(Stop::Failed(EngineError::Refused(_))) if self.has_other_modes() => Ok(()),
            Err(error) => Err(format!("gives {error:?}")),
        }
    }

    fn has_other_modes(&self) -> bool {
        let mut joins = self.oracle.joins.iter();
        joins.any(|installed| !installed.join.mode.is_maintained())
    }

    pub(super) fn unfollow(&mut self, by: u32, range: &KeyRange) {
        self.copies.cut(by, range);
        self.subject.unfollow(by, range);
    }

    /// Applies what followers are told; what they lose they follow anew.
    pub(super) fn hear(&mut self) -> Result<(), String> {
        if !self.copies.is_empty() {
            // Followers hear of what expires when it is removed, which may take several slices.
            self.subject.engine().remove_overdue();
            // Large fan-outs and removals come to them slice by slice, in between whatever else happens.
            self.heard += 1;
            let engine = self.subject.engine();
            if self.heard.is_multiple_of(FED_EVERY) {
                engine.remove_all_dead();
                engine.feed_all();
            } else {
                engine.go_on();
            }
        }
        for _ in 0..PATIENCE {
            let told = self.subject.told();
            if told.is_empty() {
                if self.copies.is_empty() || !self.subject.engine().is_followed_current() {
                    return Ok(());
                }
                let view = self.view();
                return self.copies.compare(&view.seen);
            }
            for FollowerNotification { change, .. } in &told {
                if let FeedChange::Gone(key) = change {
                    self.is_lost(key)?;
                }
            }
            for (by, range) in self.copies.hear(told)? {
                self.follow(by, &range)?;
            }
        }
        Err(String::from("what is told does not end"))
    }

    /// Nobody follows anything any more, and nothing is told.
    pub(super) fn unfollow_all(&mut self) -> Result<(), String> {
        let followers: Vec<u32> = self.copies.followers().collect();
        followers.into_iter().for_each(|by| self.unfollow(by, &KeyRange::all()));
        same(&self.subject.told(), &Vec::new())
    }
}
