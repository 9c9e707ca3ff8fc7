//! Commands about ranges of keys, watches of them, joins, tables and sources.

use crate::args::Args;

/// What a range read answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RangeAnswer {
    /// Keys with their values.
    #[default]
    Pairs,
    /// Keys alone.
    Keys,
    /// Values alone.
    Values,
    /// How many there are.
    Count,
}

/// How a range is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeRead<'a> {
    /// Greatest key first.
    pub reverse: bool,
    /// At most this many.
    pub limit: Option<u64>,
    /// What to answer.
    pub answer: RangeAnswer,
    /// Not before the changes up to this position of a source are applied.
    pub at: Option<&'a [u8]>,
    /// What other shards were last heard to have so many milliseconds ago is good enough; at most [`STALE_MAX`].
    pub stale: u64,
}

/// Most milliseconds that a read may accept: a day. What is more is hardly meant, but a moment or another unit.
pub const STALE_MAX: u64 = 86_400_000;

/// Commands about ranges of keys. An empty `last` means "to the end".
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ranges<'a> {
    /// Reads `[first, last)`.
    Range {
        /// The least key wanted.
        first: &'a [u8],
        /// The least key beyond.
        last: &'a [u8],
        /// How to read.
        read: RangeRead<'a>,
    },
    /// Reads the keys that start with a prefix.
    Prefix {
        /// The prefix.
        prefix: &'a [u8],
        /// How to read.
        read: RangeRead<'a>,
    },
    /// Removes the base keys of `[first, last)`; answers how many.
    Remove {
        /// The least key to remove.
        first: &'a [u8],
        /// The least key beyond.
        last: &'a [u8],
    },
    /// Says how the answer for a key comes about.
    ExplainKey {
        /// The key.
        key: &'a [u8],
    },
    /// Says how the answer for a range comes about.
    Explain {
        /// The least key of the range.
        first: &'a [u8],
        /// The least key beyond.
        last: &'a [u8],
    },
    /// Recomputes a range and compares.
    Verify {
        /// The least key of the range.
        first: &'a [u8],
        /// The least key beyond.
        last: &'a [u8],
    },
}

/// Commands about watches of ranges.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RangeWatch<'a> {
    /// Tells the client of each change in `[first, last)` from now on.
    Begin {
        /// The least key wanted.
        first: &'a [u8],
        /// The least key beyond; empty: to the end.
        last: &'a [u8],
        /// The last position that the client knows of: what came after it is told first.
        from: Option<&'a [u8]>,
    },
    /// Ends a watch.
    End {
        /// The number that the watch was given.
        id: u32,
    },
}

/// How a table's keys are mapped to what a source has.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Mapping<'a> {
    /// What holds the rows: a table of a database.
    pub table: Option<&'a str>,
    /// What makes up the key, in order.
    pub key: Option<Args<'a>>,
    /// What makes up the value.
    pub value: Option<Args<'a>>,
    /// Which rows are keys.
    pub filter: Option<&'a str>,
    /// Clients' writes go to the source.
    pub write_through: bool,
}

/// Commands about sources of base data.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sources<'a> {
    /// Adds a source.
    Add {
        /// Its name.
        name: &'a str,
        /// What it is: `postgres`.
        kind: &'a str,
        /// Where it is.
        url: &'a str,
    },
    /// Drops a source that no table has.
    Drop {
        /// Its name.
        name: &'a str,
    },
    /// The sources.
    List,
    /// One source, with all that is known of it.
    Info {
        /// Its name.
        name: &'a str,
    },
    /// What a mapping would need at a source.
    Check {
        /// Its name.
        name: &'a str,
        /// The mapping.
        mapping: Mapping<'a>,
    },
    /// Where a source stands now.
    Position {
        /// Its name.
        name: &'a str,
    },
}

/// Commands about cache joins.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Joins<'a> {
    /// Installs a join.
    Add {
        /// Its name.
        name: &'a str,
        /// Its text.
        spec: &'a str,
        /// In place of one of that name.
        replace: bool,
    },
    /// Drops a join.
    Drop {
        /// Its name.
        name: &'a str,
    },
    /// The installed joins.
    List,
    /// One join with its counters.
    Info {
        /// Its name.
        name: &'a str,
    },
    /// What the output keys of a join begin with that have these values.
    Key {
        /// Its name.
        name: &'a str,
        /// Slots and their values, in turn.
        slots: Args<'a>,
    },
    /// The components of an output key, with the values that they stand for.
    Decode {
        /// The key.
        key: &'a [u8],
    },
}

/// Commands about tables.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Tables<'a> {
    /// Declares or changes a table.
    Set {
        /// Its name, without `|`.
        name: &'a [u8],
        /// How many components group its keys.
        boundary: Option<usize>,
        /// The source that keeps its base data, and how its keys are mapped to what it has.
        source: Option<(&'a str, Mapping<'a>)>,
        /// Whether its base keys may be evicted.
        evict: Option<bool>,
        /// Whether the embedded store keeps it.
        keep: Option<bool>,
    },
    /// The tables that exist.
    List,
    /// One table with its sizes.
    Info {
        /// Its name; empty for the unnamed table.
        name: &'a [u8],
    },
}
