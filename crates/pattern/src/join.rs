//! Joins: an output pattern, a mode, and the sources in nested-loop order.
//!
//! `Display` prints the canonical text, in which every slot is written `<slot>`: a name that was
//! meant as a slot and read as a literal shows. Reading that text gives an equal join.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::{Limits, Ordered};

use crate::lens::{Lens, Look, ShownLens};
use crate::{Bindings, Component, JoinError, Pattern, SlotId, grammar};

/// What a source does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operator {
    /// A key must exist; its value does not matter.
    Check,
    /// The output takes the source's value.
    Copy,
    /// The output is empty.
    Index,
    /// The output takes what a function makes of the source's value: [`Join::function`].
    Map,
    /// The number of tuples.
    Count,
    /// The sum of the values that are numbers.
    Sum,
    /// The least number.
    Min,
    /// The greatest number.
    Max,
    /// The mean of the numbers.
    Avg,
    /// The value at the least source key.
    First,
    /// The value at the greatest source key.
    Last,
    /// How many different values there are.
    Distinct,
    /// The same, estimated where there are more than so many.
    DistinctAbout(u32),
    /// The values that occur most often, so many of them.
    Top(u32),
    /// The least number that so many millionths of a percent of the numbers do not exceed.
    Percentile(u32),
}

/// Most millionths of a percent: all.
pub(crate) const MILLIONTHS_MAX: u32 = 100_000_000;

impl Operator {
    /// Every operator without a name or a number of its own behind it, in the order in which messages list them.
    pub const ALL: [Self; 11] = [
        Self::Check,
        Self::Copy,
        Self::Index,
        Self::Count,
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::Avg,
        Self::First,
        Self::Last,
        Self::Distinct,
    ];

    /// The operator's word in the text of a join.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Copy => "copy",
            Self::Index => "index",
            Self::Map => "map",
            Self::Count => "count",
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::First => "first",
            Self::Last => "last",
            Self::Distinct => "distinct",
            Self::DistinctAbout(_) => "distinct~",
            Self::Top(_) => "topk",
            Self::Percentile(_) => "percentile",
        }
    }

    /// Whether it looks at which values there are and how often, so that a slot may be named to look at instead.
    #[must_use]
    pub fn tallies(self) -> bool {
        matches!(self, Self::Distinct | Self::DistinctAbout(_) | Self::Top(_) | Self::Percentile(_))
    }
}

impl fmt::Display for Operator {
    /// The word with the number behind it, where it has one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Self::DistinctAbout(most) | Self::Top(most) => write!(f, " {most}"),
            Self::Percentile(millionths) => {
                let (whole, rest) = (millionths / 1_000_000, millionths % 1_000_000);
                write!(f, " {whole}")?;
                if rest == 0 {
                    return Ok(());
                }
                let digits = format!("{rest:06}");
                write!(f, ".{}", digits.trim_end_matches('0'))
            }
            _ => Ok(()),
        }
    }
}

/// How fresh a join's output is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Materialized where it was read, then kept up to date.
    Push,
    /// As [`Mode::Push`] where that pays, range by range, and as [`Mode::Pull`] elsewhere.
    Auto,
    /// Computed on every read; nothing is stored.
    Pull,
    /// Computed, then kept unchanged for a time.
    Snapshot {
        /// For how long; at least 1.
        millis: u64,
    },
}

impl Mode {
    /// Whether every read gives what recomputing the output at that moment would, and what is stored is kept up to date.
    #[must_use]
    pub fn is_maintained(self) -> bool {
        matches!(self, Self::Push | Self::Auto)
    }
}

/// One source of a join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// What it does.
    pub operator: Operator,
    /// The keys it reads.
    pub pattern: Pattern,
    /// Which of them count by their values, and what these bind; `None`: all, and nothing.
    pub lens: Option<Box<Lens>>,
}

impl Source {
    /// Looks at a key of the pattern and its value, and appends the row ([`lens`](crate::lens)) that they give to `row`.
    #[inline]
    pub fn look(&self, key: &[u8], value: &[u8], row: &mut Vec<u8>) -> Look {
        match &self.lens {
            Some(lens) => lens.look(&self.pattern, key, value, row),
            None => {
                row.extend_from_slice(key);
                Look::Row
            }
        }
    }

    /// As [`Pattern::bind`], of a row: its key and what its value binds.
    #[inline]
    pub fn bind<'r>(&self, row: &'r [u8], bindings: &mut Bindings<'r>) -> bool {
        match &self.lens {
            Some(lens) => lens.bind(&self.pattern, row, bindings),
            None => self.pattern.bind(row, bindings),
        }
    }

    /// The key of a row.
    #[inline]
    #[must_use]
    pub fn key_of<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        self.lens.as_ref().map_or(row, |lens| lens.key_of(row))
    }

    /// The slots that its values bind.
    pub fn value_slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.lens.iter().flat_map(|lens| lens.binds.iter().map(|bind| bind.slot))
    }

    /// The slots that it binds: those of its keys, then those of its values.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.pattern.slots().chain(self.value_slots())
    }
}

/// How many outputs of each group a join has: the first ones, or the last, in some order. There are no others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// How many; at least 1.
    pub most: usize,
    /// The greatest values of the component behind the group, not the least.
    pub greatest: bool,
    /// The group's last outputs in the order of keys, not its first: so it is with the greatest values, unless the greatest sort first.
    pub last: bool,
    /// Components of the output that make up the group; it has more.
    pub components: usize,
    /// The slot that ends the group, where the text names it.
    pub per: Option<SlotId>,
}

/// A cache join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// The keys that the join gives.
    pub output: Pattern,
    /// How fresh they are kept.
    pub mode: Mode,
    /// Where they come from, in nested-loop order; exactly one source is not `check`.
    pub sources: Vec<Source>,
    /// How many outputs of each group there are; `None`: all.
    pub keep: Option<Keep>,
    /// The function that makes the value, where the value source is `map`.
    pub function: Option<String>,
    /// The slot of the value source that is looked at in the place of the value, where the operator [tallies](Operator::tallies).
    pub on: Option<SlotId>,
    /// The slots' names, by [`SlotId`](crate::SlotId).
    pub slots: Vec<String>,
}

impl Join {
    /// Reads the text of a join, in either spelling.
    ///
    /// # Errors
    /// The first thing that is wrong with the text, and where.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, JoinError> {
        grammar::parse(text, limits)
    }

    /// Index of the source that gives the value: the one that is not `check`.
    ///
    /// # Panics
    /// If every source is `check`, which no parsed join has.
    #[must_use]
    pub fn value_source(&self) -> usize {
        self.sources
            .iter()
            .position(|source| source.operator != Operator::Check)
            .expect("a join has a value source")
    }

    /// The operator of the value source.
    #[must_use]
    pub fn operator(&self) -> Operator {
        self.sources[self.value_source()].operator
    }

    /// Whether two tuples can give one output key under `copy`: the output lacks a slot of its sources' keys, and what it has
    /// does not say what that slot is, by way of a value that binds it.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        if !matches!(self.operator(), Operator::Copy | Operator::Index | Operator::Map) {
            return false;
        }
        let mut known = self.output.slots().fold(0u32, |known, slot| known | 1 << slot);
        loop {
            let is_known = |slot: SlotId| known & (1 << slot) != 0;
            let named = self.sources.iter().filter(|source| source.pattern.slots().all(is_known));
            let more = named.flat_map(Source::value_slots).fold(known, |all, slot| all | 1 << slot);
            if more == known {
                return !self
                    .sources
                    .iter()
                    .flat_map(|source| source.pattern.slots())
                    .all(is_known);
            }
            known = more;
        }
    }

    /// Slots that occur once in all of the join and resemble another one's name, each with that name: most likely these are
    /// misspelt.
    #[must_use]
    pub fn likely_misspelt(&self) -> Vec<(&str, &str)> {
        let mut counts = alloc::vec![0; self.slots.len()];
        let sources = self.sources.iter();
        let slots = sources.flat_map(Source::slots).chain(self.output.slots());
        slots.for_each(|slot| counts[slot] += 1);
        let once = self.slots.iter().zip(&counts).filter(|(_, count)| **count == 1);
        let near = once.filter_map(|(name, _)| {
            let others = self.slots.iter().map(String::as_str);
            Some((name.as_str(), grammar::nearest(name, others)?))
        });
        near.collect()
    }

    /// Whether a value binds `slot`.
    #[must_use]
    pub fn is_value_slot(&self, slot: SlotId) -> bool {
        self.sources.iter().any(|source| source.value_slots().any(|own| own == slot))
    }

    /// How a slot that values bind stands in the output's keys; `None`: as it is.
    #[must_use]
    pub fn form_of(&self, slot: SlotId) -> Option<Ordered> {
        let lenses = self.sources.iter().filter_map(|source| source.lens.as_ref());
        lenses.flat_map(|lens| &lens.binds).find(|bind| bind.slot == slot)?.form
    }

    /// Shows what follows the pattern of a source of this join in its text.
    #[must_use]
    pub fn show_lens<'a>(&'a self, source: &'a Source) -> impl fmt::Display + 'a {
        let on = self.on.filter(|_| source.operator.tallies());
        ShownLens { lens: source.lens.as_deref(), on, slots: &self.slots }
    }

    /// Shows a pattern of this join with its slots' names, as in the text of the join.
    #[must_use]
    pub fn show<'a>(&'a self, pattern: &'a Pattern) -> impl fmt::Display + 'a {
        ShownJoin { pattern, join: self, forms: false }
    }
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let output = ShownJoin { pattern: &self.output, join: self, forms: true };
        write!(f, "{output} =")?;
        match self.mode {
            Mode::Push => {}
            Mode::Auto => f.write_str(" auto")?,
            Mode::Pull => f.write_str(" pull")?,
            Mode::Snapshot { millis } => {
                write!(f, " snapshot {}", millis / 1000)?;
                match millis % 1000 {
                    0 => {}
                    tenths if tenths % 100 == 0 => write!(f, ".{}", tenths / 100)?,
                    hundredths if hundredths % 10 == 0 => write!(f, ".{:02}", hundredths / 10)?,
                    thousandths => write!(f, ".{thousandths:03}")?,
                }
            }
        }
        for source in &self.sources {
            write!(f, " {}", source.operator)?;
            if let (Operator::Map, Some(function)) = (source.operator, &self.function) {
                write!(f, ":{function}")?;
            }
            write!(f, " {}", self.show(&source.pattern))?;
            write!(f, "{}", self.show_lens(source))?;
        }
        if let Some(Keep { most, greatest, per, .. }) = self.keep {
            write!(f, " keep {most} {}", if greatest { "desc" } else { "asc" })?;
            if let Some(slot) = per {
                write!(f, " per <{}>", self.slots[slot])?;
            }
        }
        Ok(())
    }
}

struct ShownJoin<'a> {
    pattern: &'a Pattern,
    join: &'a Join,
    /// Slots are shown with their kinds, as in the output.
    forms: bool,
}

impl fmt::Display for ShownJoin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Parsed names and literals are UTF-8; only a pattern made by hand shows escapes.
        fn text(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
            match core::str::from_utf8(bytes) {
                Ok(text) => f.write_str(text),
                Err(_) => write!(f, "{}", bytes.escape_ascii()),
            }
        }
        text(f, &self.pattern.table)?;
        for component in &self.pattern.components {
            f.write_str("|")?;
            match component {
                Component::Literal(literal) => text(f, literal)?,
                Component::Slot { slot, width } => {
                    write!(f, "<{}", self.join.slots[*slot])?;
                    if let Some(width) = width {
                        write!(f, ":{width}")?;
                    }
                    if let Some(form) = self.join.form_of(*slot).filter(|_| self.forms) {
                        let order = if form.descending { ":desc" } else { "" };
                        write!(f, ":{}{order}", form.kind.name())?;
                    }
                    f.write_str(">")?;
                }
            }
        }
        Ok(())
    }
}
