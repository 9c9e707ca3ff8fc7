//! What a network does to frames between processes.

use super::world::Draws;
use crate::shards::seal;
use std::collections::VecDeque;

/// One in so many frames meets with something; 0: none does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NetworkFaults {
    /// Bytes of it change on its way.
    pub(super) damaged: usize,
    /// Its sender has written other bytes than it should have, and its checksum is theirs.
    pub(super) forged: usize,
    /// It comes twice, at once or behind others.
    pub(super) twice: usize,
    /// It never comes.
    pub(super) lost: usize,
    /// It comes behind the next one.
    pub(super) overtaken: usize,
    /// Nobody looks at the frames' numbers: what a test that takes the look out has to notice.
    pub(super) are_unnoticed: bool,
    /// Frames that met with something so far.
    pub(super) suffered: u64,
    /// Frames that were dropped because they had come before.
    pub(super) dropped: u64,
    /// Frames that were refused, which has cut the connection.
    pub(super) refused: u64,
    /// Frames that were taken, and are not as they were written.
    pub(super) taken: u64,
}

impl NetworkFaults {
    /// Has frames that are sent together, in order, meet with it.
    pub(super) fn suffer(&mut self, frames: &mut VecDeque<Vec<u8>>, draws: &mut Draws) {
        let mut is = |one_in: usize, draws: &mut Draws| {
            let is = one_in > 0 && draws.below(one_in) == 0;
            self.suffered += u64::from(is);
            is
        };
        let mut at = 0;
        while at < frames.len() {
            if is(self.damaged, draws) {
                damage(&mut frames[at], draws);
            }
            if is(self.forged, draws) {
                let frame = &mut frames[at];
                frame.truncate(frame.len() - 8);
                damage(frame, draws);
                seal(0, frame);
            }
            if is(self.twice, draws) {
                let again = frames[at].clone();
                frames.insert(at + 1 + draws.below(frames.len() - at), again);
            }
            if is(self.overtaken, draws) {
                let other = (at + 1).min(frames.len() - 1);
                frames.swap(at, other);
            }
            if is(self.lost, draws) {
                frames.remove(at);
            } else {
                at += 1;
            }
        }
    }
}

fn damage(frame: &mut Vec<u8>, draws: &mut Draws) {
    for _ in 0..1 + draws.below(3) {
        let at = draws.below(frame.len());
        match draws.below(4) {
            0 => frame[at] = draws.below(256) as u8,
            1 => frame.truncate(at.max(1)),
            _ => frame[at] ^= 1 << draws.below(8),
        }
    }
}
