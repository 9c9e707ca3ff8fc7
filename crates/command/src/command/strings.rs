//! Commands about values.

use crate::args::Args;
use headwater_base::Millis;

/// A moment as a client gives it, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deadline {
    /// So long from now.
    After(i64),
    /// Since the Unix epoch.
    At(i64),
}

impl Deadline {
    /// When that is; a moment before the epoch is the epoch, which has passed.
    #[must_use]
    pub fn moment(self, now: Millis) -> Millis {
        match self {
            Self::At(millis) => Millis(u64::try_from(millis).unwrap_or(0)),
            Self::After(millis) => Millis(now.0.saturating_add_signed(millis)),
        }
    }
}

/// When SET acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetCondition {
    /// In any case.
    #[default]
    Always,
    /// Only if the key is not there.
    Absent,
    /// Only if the key is there.
    Present,
}

/// What SET does to the expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetExpiry {
    /// The key never expires.
    #[default]
    Never,
    /// The key keeps the expiry it has.
    Keep,
    /// The key expires then.
    Deadline(Deadline),
}

/// What GETEX does to the expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetExpiry {
    /// Nothing.
    Keep,
    /// The key never expires.
    Persist,
    /// The key expires then.
    Deadline(Deadline),
}

/// What LCS answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LcsAnswer {
    /// The common subsequence itself.
    Text,
    /// Its length.
    Length,
    /// Where its parts lie.
    Matches {
        /// Shorter parts are left out.
        length_min: u64,
        /// Each part's length is told too.
        with_lengths: bool,
    },
}

/// What a rate limit allows, and how much of it is used now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    /// Uses at once beyond one.
    pub burst: u32,
    /// Uses in `seconds`, at least one.
    pub count: u32,
    /// At least one.
    pub seconds: u32,
    /// Uses that count now; 0 asks how it stands.
    pub quantity: u32,
}

/// Commands about values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Strings<'a> {
    /// The value of a key.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Gives a key a value.
    Set {
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
        /// When to act at all.
        condition: SetCondition,
        /// What becomes of the expiry.
        expiry: SetExpiry,
        /// Answer the old value instead of OK.
        get: bool,
    },
    /// Gives a key a value if it is not there; answers 1 or 0.
    SetNx {
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
    },
    /// Gives a key a value and answers the old one.
    GetSet {
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
    },
    /// Answers a value and removes the key.
    GetDel {
        /// The key.
        key: &'a [u8],
    },
    /// Answers a value and changes the expiry.
    GetEx {
        /// The key.
        key: &'a [u8],
        /// What becomes of the expiry.
        expiry: GetExpiry,
    },
    /// The values of several keys.
    MGet {
        /// The keys.
        keys: Args<'a>,
    },
    /// Gives several keys values, all or none.
    MSet {
        /// Keys and values in turn.
        pairs: Args<'a>,
    },
    /// Gives several keys values, if none of them is there; answers 1 or 0.
    MSetNx {
        /// Keys and values in turn.
        pairs: Args<'a>,
    },
    /// Puts bytes behind a value; answers the new length.
    Append {
        /// The key.
        key: &'a [u8],
        /// The bytes.
        tail: &'a [u8],
    },
    /// The length of a value.
    StrLen {
        /// The key.
        key: &'a [u8],
    },
    /// Part of a value; negative offsets count from its end.
    GetRange {
        /// The key.
        key: &'a [u8],
        /// Offset of the first byte.
        start: i64,
        /// Offset of the last byte.
        end: i64,
    },
    /// Overwrites part of a value; answers the new length.
    SetRange {
        /// The key.
        key: &'a [u8],
        /// Offset of the first byte, not negative.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Adds to a value that is a whole number.
    IncrBy {
        /// The key.
        key: &'a [u8],
        /// What is added.
        by: i64,
    },
    /// Adds to a value that is a number.
    IncrByFloat {
        /// The key.
        key: &'a [u8],
        /// What is added, as text.
        by: &'a [u8],
    },
    /// Removes a key if it holds a value; answers 1 or 0.
    DelIfEqual {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Changes the expiry of a key if it holds a value; answers 1 or 0.
    ExpireIfEqual {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// How long from now on.
        millis: i64,
        /// That is added to the expiry that it has.
        add: bool,
        /// Only if it expires at all.
        expires: bool,
    },
    /// Counts a use against a rate limit.
    Throttle {
        /// The key, which stands for whoever is limited.
        key: &'a [u8],
        /// What is allowed.
        limit: RateLimit,
    },
    /// The longest common subsequence of two values.
    Lcs {
        /// The one key.
        left: &'a [u8],
        /// The other key.
        right: &'a [u8],
        /// What to answer.
        answer: LcsAnswer,
    },
}
