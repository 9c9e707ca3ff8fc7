//! Joins: an output pattern, a mode, and the sources in nested-loop order.
//!
//! `Display` prints the canonical text, in which every slot is written `<slot>`: a name that was
//! meant as a slot and read as a literal shows. Reading that text gives an equal join.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::Limits;

use crate::{Component, JoinError, Pattern, grammar};

/// What a source does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operator {
    /// A key must exist; its value does not matter.
    Check,
    /// The output takes the source's value.
    Copy,
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
}

impl Operator {
    /// Every operator without a name of its own behind it, in the order in which messages list them.
    pub const ALL: [Self; 9] = [
        Self::Check,
        Self::Copy,
        Self::Count,
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::Avg,
        Self::First,
        Self::Last,
    ];

    /// The operator's word in the text of a join.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Copy => "copy",
            Self::Map => "map",
            Self::Count => "count",
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::First => "first",
            Self::Last => "last",
        }
    }
}

/// How fresh a join's output is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Materialized where it was read, then kept up to date.
    Push,
    /// Computed on every read; nothing is stored.
    Pull,
    /// Computed, then kept unchanged for a time.
    Snapshot {
        /// For how long; at least 1.
        millis: u64,
    },
}

/// One source of a join.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// What it does.
    pub operator: Operator,
    /// The keys it reads.
    pub pattern: Pattern,
}

/// A cache join.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Join {
    /// The keys that the join gives.
    pub output: Pattern,
    /// How fresh they are kept.
    pub mode: Mode,
    /// Where they come from, in nested-loop order; exactly one source is not `check`.
    pub sources: Vec<Source>,
    /// The function that makes the value, where the value source is `map`.
    pub function: Option<String>,
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

    /// Whether two tuples can give one output key under `copy`: the output lacks a slot that its
    /// sources bind.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        matches!(self.operator(), Operator::Copy | Operator::Map)
            && self
                .sources
                .iter()
                .flat_map(|source| source.pattern.slots())
                .any(|slot| !self.output.has_slot(slot))
    }

    /// Shows a pattern of this join with its slots' names, as in the text of the join.
    #[must_use]
    pub fn show<'a>(&'a self, pattern: &'a Pattern) -> impl fmt::Display + 'a {
        ShownJoin { pattern, slots: &self.slots }
    }
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} =", self.show(&self.output))?;
        match self.mode {
            Mode::Push => {}
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
            write!(f, " {}", source.operator.name())?;
            if let (Operator::Map, Some(function)) = (source.operator, &self.function) {
                write!(f, ":{function}")?;
            }
            write!(f, " {}", self.show(&source.pattern))?;
        }
        Ok(())
    }
}

struct ShownJoin<'a> {
    pattern: &'a Pattern,
    slots: &'a [String],
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
                Component::Slot { slot, width: None } => write!(f, "<{}>", self.slots[*slot])?,
                Component::Slot { slot, width: Some(width) } => {
                    write!(f, "<{}:{width}>", self.slots[*slot])?;
                }
            }
        }
        Ok(())
    }
}
