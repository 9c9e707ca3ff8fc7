//! What the engine notes on a group of outputs: the status ranges that lie in it, and how they are read.

use crate::status::{Status, StatusId, head};
use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_policy::{Evictor, Heat};
use headwater_store::Note;

/// A status range that lies in a group, as the group notes it: enough to answer most reads
/// without a look at the range itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) join: u32,
    pub(crate) status: StatusId,
    /// The first bytes of what follows the group's prefix in the range's first key.
    from: u64,
    /// The range reaches to the end of the group, and may be read while it is clean.
    whole: bool,
    clean: bool,
    /// How it is used.
    pub(crate) heat: Heat,
    /// Reads since its account was looked at, and the outputs that they showed; no more than fit.
    reads: u8,
    shown: u16,
}

impl Noted {
    /// Whether the range holds everything from `suffix` to the end of the group. May say no
    /// though it does, where the first bytes are the same.
    #[inline]
    pub(crate) fn serves(&self, suffix: &[u8]) -> bool {
        self.whole && self.clean && (self.from == 0 || head(suffix) > self.from)
    }
}

/// What the engine notes on an output group: the status ranges that lie in it.
#[derive(Debug, Default)]
pub(crate) enum GroupNote {
    #[default]
    None,
    One(Noted),
    #[expect(clippy::box_collection, reason = "groups are many, and most note one range")]
    Many(Box<Vec<Noted>>),
}

impl GroupNote {
    #[inline]
    pub(crate) fn ranges(&self) -> &[Noted] {
        match self {
            Self::None => &[],
            Self::One(noted) => core::slice::from_ref(noted),
            Self::Many(ranges) => ranges,
        }
    }

    /// Notes how `status` stands now; `suffix` is what follows the group's prefix in its first
    /// key.
    pub(crate) fn set(&mut self, id: StatusId, status: &Status, suffix: &[u8], reaches_end: bool) {
        let from = head(suffix);
        // A number of 0 stands for the group's start alone.
        let told = suffix.is_empty() || from != 0;
        let whole = status.expires_at().is_none() && reaches_end && told;
        let noted = Noted {
            join: status.join,
            status: id,
            from,
            whole,
            clean: status.is_clean(),
            heat: status.heat,
            reads: 0,
            shown: 0,
        };
        let before = self.ranges().iter().find(|old| old.status == id);
        let (reads, shown) = before.map_or((0, 0), |old| (old.reads, old.shown));
        let noted = Noted { reads, shown, ..noted };
        match self {
            Self::None => *self = Self::One(noted),
            Self::One(old) if old.status == id => *old = noted,
            Self::One(old) => *self = Self::Many(Box::new(alloc::vec![*old, noted])),
            Self::Many(ranges) => match ranges.iter_mut().find(|old| old.status == id) {
                Some(old) => *old = noted,
                None => ranges.push(noted),
            },
        }
    }

    /// Notes whether a range that is noted already is clean now.
    #[inline]
    pub(crate) fn set_clean(&mut self, id: StatusId, clean: bool) {
        let ranges = match self {
            Self::None => return,
            Self::One(noted) => core::slice::from_mut(noted),
            Self::Many(ranges) => ranges.as_mut_slice(),
        };
        if let Some(noted) = ranges.iter_mut().find(|noted| noted.status == id) {
            noted.clean = clean;
        }
    }

    /// The range of `join` if it serves everything from `suffix` on; it is noted as read.
    #[inline]
    pub(crate) fn serving(&mut self, join: u32, suffix: &[u8], judge: &Evictor) -> bool {
        let ranges = match self {
            Self::None => return false,
            Self::One(noted) => core::slice::from_mut(noted),
            Self::Many(ranges) => ranges.as_mut_slice(),
        };
        match ranges.iter_mut().find(|noted| noted.join == join && noted.serves(suffix)) {
            Some(noted) => {
                noted.heat = judge.hit(noted.heat);
                true
            }
            None => false,
        }
    }

    fn ranges_mut(&mut self) -> &mut [Noted] {
        match self {
            Self::None => &mut [],
            Self::One(noted) => core::slice::from_mut(noted),
            Self::Many(ranges) => ranges.as_mut_slice(),
        }
    }

    /// Counts a read of the group that showed so many outputs.
    #[inline]
    pub(crate) fn credit(&mut self, shown: u64) {
        let shown = u16::try_from(shown).unwrap_or(u16::MAX);
        for noted in self.ranges_mut() {
            noted.reads = noted.reads.saturating_add(1);
            noted.shown = noted.shown.saturating_add(shown);
        }
    }

    /// How many reads of a range were counted, and the outputs that they showed; from now on others are.
    pub(crate) fn take_reads(&mut self, id: StatusId) -> (u64, u64) {
        let noted = self.ranges_mut().iter_mut().find(|noted| noted.status == id);
        let Some(noted) = noted else { return (0, 0) };
        let (reads, shown) = (core::mem::take(&mut noted.reads), core::mem::take(&mut noted.shown));
        (u64::from(reads), u64::from(shown))
    }

    pub(crate) fn remove(&mut self, id: StatusId) {
        match self {
            Self::One(noted) if noted.status == id => *self = Self::None,
            Self::None | Self::One(_) => {}
            Self::Many(ranges) => {
                ranges.retain(|noted| noted.status != id);
                if let [last] = ranges[..] {
                    *self = Self::One(last);
                }
            }
        }
    }
}

impl Note for GroupNote {
    fn is_idle(&self) -> bool {
        matches!(self, Self::None)
    }
}
