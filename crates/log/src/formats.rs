//! Formats: what of the data that processes exchange they read, and what they may write because of that.
//!
//! Records of logs, messages between owners and snapshots have a format each: a small number of its own, apart from the program's version, which grows
//! when what is written could not be read by programs before. A program reads a range of each. So that the nodes of a cluster can be
//! upgraded one after the other, each process *announces* its ranges in a key of the bucket, and:
//!
//! - F1. A newer format than the oldest one is written only if all processes that are known read it ([`newest_for_all`]), or the log has it already
//!   ([`format_to_write`]): whoever does not read it has stopped there.
//! - F2. A process is known from when its name is in the bucket until it is removed, whether it is heard or not. An announcement counts only
//!   together with the life that has made it: a program that announces nothing would be taken for the one before it. It counts for the
//!   formats that there were before announcements ([`Formats::UNANNOUNCED`]).
//! - F3. A process that shares no format with one that is heard does not start ([`why_apart`]).
//!
//! ```text
//! formats.NODE   program VERSION\nlife INCARNATION\nrecords OLDEST NEWEST\nlinks OLDEST NEWEST\nsnapshots OLDEST NEWEST\n
//! ```
//!
//! Lines of other names are passed over: later programs may have more.

use crate::owner::Owner;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The formats of something that a program reads: all from the oldest to the newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatRange {
    /// The oldest.
    pub oldest: u16,
    /// The newest. It can be written as well.
    pub newest: u16,
}

impl FormatRange {
    /// One format alone.
    #[must_use]
    pub const fn one(format: u16) -> Self {
        Self { oldest: format, newest: format }
    }

    /// Whether a format is read.
    #[must_use]
    pub fn contains(self, format: u16) -> bool {
        (self.oldest..=self.newest).contains(&format)
    }

    /// The newest format that both read; `None`: there is none.
    #[must_use]
    pub fn agree(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (self.contains(newest) && other.contains(newest)).then_some(newest)
    }
}

impl fmt::Display for FormatRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { oldest, newest } if oldest == newest => write!(f, "format {oldest} alone"),
            Self { oldest, newest } => write!(f, "formats {oldest} to {newest}"),
        }
    }
}

/// The formats that a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Formats {
    /// Of records of logs, and of the turns that they have.
    pub records: FormatRange,
    /// Of messages between owners.
    pub links: FormatRange,
    /// Of snapshots.
    pub snapshots: FormatRange,
}

impl Formats {
    /// Those of programs that announce none.
    pub const UNANNOUNCED: Self = Self {
        records: FormatRange::one(1),
        links: FormatRange::one(3),
        snapshots: FormatRange::one(1),
    };

    /// Each, with the name that it has in announcements.
    #[must_use]
    pub fn named(&self) -> [(&'static str, FormatRange); 3] {
        [("records", self.records), ("links", self.links), ("snapshots", self.snapshots)]
    }
}

/// What a process announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The version of its program: for those who operate the cluster, and decides nothing.
    pub program: String,
    /// [`Owner::incarnation`] of the life that announces it.
    pub incarnation: u64,
    /// What it reads.
    pub formats: Formats,
}

impl Announcement {
    /// What the keys of the bucket begin with that have announcements; the name of the process is behind it.
    pub const KEYS: &'static str = "formats.";

    /// The key's value.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = format!("program {}\nlife {}\n", self.program, self.incarnation);
        for (name, FormatRange { oldest, newest }) in self.formats.named() {
            text += &format!("{name} {oldest} {newest}\n");
        }
        text
    }

    /// Reads the key's value; `None`: it is no announcement, which is as if there were none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut program, mut incarnation) = (None, None);
        let mut ranges = [None; 3];
        for line in core::str::from_utf8(bytes).ok()?.lines() {
            let Some((name, value)) = line.split_once(' ') else { continue };
            match name {
                "program" => program = Some(value),
                "life" => incarnation = value.parse().ok(),
                _ => {
                    let at = Formats::UNANNOUNCED.named().iter().position(|it| it.0 == name);
                    let (Some(at), Some((oldest, newest))) = (at, value.split_once(' ')) else {
                        continue;
                    };
                    let range =
                        FormatRange { oldest: oldest.parse().ok()?, newest: newest.parse().ok()? };
                    ranges[at] = (range.oldest <= range.newest).then_some(range);
                }
            }
        }
        let [Some(records), Some(links), Some(snapshots)] = ranges else { return None };
        let formats = Formats { records, links, snapshots };
        Some(Self { program: program?.to_owned(), incarnation: incarnation?, formats })
    }
}

/// A process whose name is in the bucket, and was not removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownProcess {
    /// What it has written of itself.
    pub owner: Owner,
    /// What the key of its announcement has.
    pub announced: Option<Announcement>,
    /// Whether it was seen to write its name.
    pub is_heard: bool,
}

impl KnownProcess {
    /// F2: what its life has announced.
    #[must_use]
    pub fn announcement(&self) -> Option<&Announcement> {
        self.announced.as_ref().filter(|it| it.incarnation == self.owner.incarnation)
    }

    /// What it reads.
    #[must_use]
    pub fn formats(&self) -> Formats {
        self.announcement().map_or(Formats::UNANNOUNCED, |it| it.formats)
    }
}

/// F1: the newest format that all known processes read, of what `of` gives; `None`: nobody is known yet.
#[must_use]
pub fn newest_for_all(known: &[KnownProcess], of: impl Fn(&Formats) -> FormatRange) -> Option<u16> {
    known.iter().map(|process| of(&process.formats()).newest).min()
}

/// F1: the format that is written by a program with this range, where the log has records up to `in_log` (0: that is not known).
#[must_use]
pub fn format_to_write(mine: FormatRange, for_all: Option<u16>, in_log: u16) -> u16 {
    for_all.unwrap_or(0).max(in_log).clamp(mine.oldest, mine.newest)
}

/// F3: why a process of this name that reads these formats cannot be in a cluster with those that are heard. One that has some format in common with
/// them may still find in the log, or in a snapshot, what it does not read, and stops there.
#[must_use]
pub fn why_apart(node: &str, mine: &Formats, known: &[KnownProcess]) -> Option<String> {
    // Of a process that is about to begin anew it is not known what it reads.
    let is_told = |process: &&KnownProcess| {
        process.is_heard && (process.announced.is_none() || process.announcement().is_some())
    };
    let mut others = known.iter().filter(is_told).filter(|process| process.owner.node != node);
    others.find_map(|process| {
        let theirs = process.formats();
        let mut pairs = mine.named().into_iter().zip(theirs.named());
        let ((what, mine), (_, theirs)) =
            pairs.find(|((_, mine), (_, theirs))| mine.agree(*theirs).is_none())?;
        let other = &process.owner.node;
        let program = process.announcement().map_or("an earlier version", |it| &it.program);
        Some(format!(
            "this program reads {mine} of the cluster's {what}, and node '{other}' ({program}) reads {theirs}: upgrade by way of a version that reads both"
        ))
    })
}
