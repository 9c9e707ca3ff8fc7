//! Joins as plain data: patterns, operators, modes, and what it means that a key matches.
//!
//! This is a second implementation of the join language, on purpose: it shares no code with
//! the engine, so that a mistake in one shows as a difference between the two. It reads and
//! writes the `<slot>` form alone.

use crate::functions::Function;
use crate::lens::Lens;
use headwater_base::{Kind, Ordered};
use std::fmt::{self, Display, Formatter};

/// One component of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// The component is these bytes.
    Literal(String),
    /// The component is one or more bytes (or exactly `width`), equal wherever the name is.
    Slot {
        /// The slot's name.
        name: String,
        /// How many bytes, where that is fixed.
        width: Option<usize>,
        /// How what a value binds stands in the output; `None`: as it is.
        form: Option<Ordered>,
    },
}

/// A table and the components after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// The table's name.
    pub table: String,
    /// What follows, one per `|`.
    pub parts: Vec<Part>,
    /// What a source sees of the values of these keys, where that is more than the values.
    pub lens: Option<Lens>,
}

/// What a source is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the operators of the join language, by their names")]
pub enum Operator {
    Check,
    Copy,
    Index,
    Count,
    Sum,
    Min,
    Max,
    Avg,
    First,
    Last,
    Map(Function),
    Distinct,
    DistinctAbout(u32),
    Top(u32),
    /// In millionths of a percent.
    Percentile(u32),
}

impl Operator {
    /// Every operator that gives a value.
    pub const VALUED: [Self; 10] = [
        Self::Copy,
        Self::Count,
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::Avg,
        Self::First,
        Self::Last,
        Self::Map(Function::Upper),
        Self::Map(Function::Long),
    ];

    /// Whether it counts values by their kinds, or what a slot stands for.
    #[must_use]
    pub fn tallies(self) -> bool {
        use Operator::{Distinct, DistinctAbout, Percentile, Top};
        matches!(self, Distinct | DistinctAbout(_) | Top(_) | Percentile(_))
    }

    fn word(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Copy => "copy",
            Self::Index => "index",
            Self::Count => "count",
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::First => "first",
            Self::Last => "last",
            Self::Map(function) => function.word(),
            Self::Distinct => "distinct",
            Self::DistinctAbout(_) => "distinct~",
            Self::Top(_) => "topk",
            Self::Percentile(_) => "percentile",
        }
    }

    /// Reads an operator, and the number behind it where it has one; what is behind them comes second.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let (word, behind) = text.split_once(char::is_whitespace)?;
        let behind = behind.trim_start();
        let all = Self::VALUED.iter().chain([&Self::Check, &Self::Index, &Self::Distinct]);
        if let Some(operator) = all.copied().find(|operator| operator.word() == word) {
            return Some((operator, behind));
        }
        let (number, behind) = behind.split_once(char::is_whitespace)?;
        let operator = match word {
            "distinct~" => Self::DistinctAbout(number.parse().ok()?),
            "topk" => Self::Top(number.parse().ok()?),
            "percentile" => Self::Percentile((number.parse::<f64>().ok()? * 1e6).round() as u32),
            _ => return None,
        };
        Some((operator, behind.trim_start()))
    }
}

impl Display for Operator {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match *self {
            Self::DistinctAbout(number) | Self::Top(number) => write!(f, " {number}"),
            Self::Percentile(millionths) => write!(f, " {}", f64::from(millionths) / 1e6),
            _ => Ok(()),
        }
    }
}

/// When outputs are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Kept up to date.
    Push,
    /// Kept up to date, or computed on every read, whichever is chosen.
    Auto,
    /// On every read.
    Pull,
    /// Kept unchanged for this many milliseconds.
    Snapshot(u64),
}

impl Mode {
    /// Whether its outputs are told of, and may be read by joins that are kept up to date.
    #[must_use]
    pub fn is_maintained(self) -> bool {
        matches!(self, Self::Push | Self::Auto)
    }
}

/// How many keys of each group a join makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keep {
    /// How many.
    pub most: usize,
    /// Those with the greatest values behind the group; or with the least.
    pub greatest: bool,
    /// The slot that ends the group; `None`: it ends before the first slot with a form, or with the first of several slots.
    pub per: Option<String>,
}

/// A cache join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// The keys it makes.
    pub output: Pattern,
    /// When it makes them.
    pub mode: Mode,
    /// What it reads, in the written order.
    pub sources: Vec<(Operator, Pattern)>,
    /// How many keys of each group it makes; `None`: all.
    pub keep: Option<Keep>,
}

/// What each slot of a join stands for, by name.
pub type Bindings<'a> = Vec<(&'a str, &'a [u8])>;

impl Pattern {
    /// Whether `key` matches where the slots bound so far stand for what they stand for; adds
    /// the slots that `key` binds. `bound` is meaningless after `false`.
    #[must_use]
    pub fn bind<'a>(&'a self, key: &'a [u8], bound: &mut Bindings<'a>) -> bool {
        let mut components = key.split(|&byte| byte == b'|');
        if components.next() != Some(self.table.as_bytes()) {
            return false;
        }
        for part in &self.parts {
            let Some(component) = components.next() else { return false };
            match part {
                Part::Literal(text) if text.as_bytes() != component => return false,
                Part::Literal(_) => {}
                Part::Slot { name, width, .. } => {
                    if component.is_empty() || width.is_some_and(|width| width != component.len()) {
                        return false;
                    }
                    match bound.iter().find(|(bound_name, _)| bound_name == name) {
                        Some((_, value)) if *value != component => return false,
                        Some(_) => {}
                        None => bound.push((name, component)),
                    }
                }
            }
        }
        components.next().is_none()
    }

    /// Whether `key` matches on its own.
    #[must_use]
    pub fn matches(&self, key: &[u8]) -> bool {
        self.bind(key, &mut Vec::new())
    }

    /// What a key begins with that matches where the slots bound so far stand for what they stand for.
    #[must_use]
    pub fn start(&self, bound: &Bindings<'_>) -> Vec<u8> {
        let mut start = self.table.clone().into_bytes();
        for part in &self.parts {
            start.push(b'|');
            match part {
                Part::Literal(text) => start.extend_from_slice(text.as_bytes()),
                Part::Slot { name, .. } => match bound.iter().find(|(known, _)| known == name) {
                    Some((_, value)) => start.extend_from_slice(value),
                    None => return start,
                },
            }
        }
        start
    }

    /// The key that the pattern becomes.
    ///
    /// # Panics
    /// A slot is not bound.
    #[must_use]
    pub fn fill(&self, bound: &Bindings<'_>) -> Vec<u8> {
        let mut key = self.table.clone().into_bytes();
        for part in &self.parts {
            key.push(b'|');
            match part {
                Part::Literal(text) => key.extend_from_slice(text.as_bytes()),
                Part::Slot { name, .. } => {
                    let slot = bound.iter().find(|(bound_name, _)| bound_name == name);
                    key.extend_from_slice(slot.expect("sources bind every output slot").1);
                }
            }
        }
        key
    }

    /// Whether some key could match both patterns, as far as each component alone tells.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let agree = |a: &Part, b: &Part| match (a, b) {
            (Part::Literal(a), Part::Literal(b)) => a == b,
            (Part::Literal(text), Part::Slot { width, .. })
            | (Part::Slot { width, .. }, Part::Literal(text)) => {
                !text.is_empty() && width.is_none_or(|width| width == text.len())
            }
            (Part::Slot { width: a, .. }, Part::Slot { width: b, .. }) => {
                a.is_none() || b.is_none() || a == b
            }
        };
        self.table == other.table
            && self.parts.len() == other.parts.len()
            && self.parts.iter().zip(&other.parts).all(|(a, b)| agree(a, b))
    }

    /// The slot that is looked at in the place of the value, if there is one.
    #[must_use]
    pub fn on(&self) -> Option<&str> {
        self.lens.as_ref()?.on.as_deref()
    }

    /// The slots that its values bind.
    pub fn value_slots(&self) -> impl Iterator<Item = &str> {
        self.lens.iter().flat_map(|lens| lens.binds.iter().map(|(_, name)| name.as_str()))
    }

    /// Names of its slots, each once, in order; those that its values bind are left out.
    #[must_use]
    pub fn slots(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for part in &self.parts {
            if let Part::Slot { name, .. } = part
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }

    /// Whether a slot appears twice, which makes [`Pattern::overlaps`] say yes too often.
    #[must_use]
    pub fn repeats_a_slot(&self) -> bool {
        let is_slot = |part: &&Part| matches!(part, Part::Slot { .. });
        self.slots().len() < self.parts.iter().filter(is_slot).count()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('|');
        let table = words.next()?.to_string();
        let part = |word: &str| match word.strip_prefix('<') {
            None => Some(Part::Literal(word.to_string())),
            Some(rest) => {
                let inner = rest.strip_suffix('>')?;
                let mut words = inner.split(':');
                let name = words.next()?.to_string();
                let (mut width, mut form) = (None, None);
                for word in words {
                    match (word, &mut form) {
                        ("desc", Some(Ordered { descending, .. })) => *descending = true,
                        ("asc", Some(_)) => {}
                        _ => match Kind::ALL.into_iter().find(|kind| kind.name() == word) {
                            Some(kind) => form = Some(Ordered { kind, descending: false }),
                            None => width = Some(word.parse().ok()?),
                        },
                    }
                }
                Some(Part::Slot { name, width, form })
            }
        };
        Some(Self { table, parts: words.map(part).collect::<Option<_>>()?, lens: None })
    }
}

impl Keep {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().peekable();
        let most = words.next()?.parse().ok()?;
        let greatest = words.next_if(|word| *word == "asc").is_none();
        words.next_if(|word| *word == "desc");
        let per = words.next_if(|word| *word == "per").and_then(|_| words.next());
        let name = |word: &str| Some(word.strip_prefix('<')?.strip_suffix('>')?.to_string());
        Some(Self { most, greatest, per: per.map(name).map_or(Some(None), |name| name.map(Some))? })
    }
}

impl Join {
    /// Reads the `<slot>` form; `None` where the text is not in it. The text is taken to be
    /// valid: what a developer can get wrong is the engine's business.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (output, rest) = text.trim().split_once(char::is_whitespace)?;
        let output = Pattern::parse(output)?;
        let mut rest = rest.trim_start().strip_prefix('=')?.trim_start();
        let word = || {
            let (word, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            (word, behind.trim_start())
        };
        let mut mode = Mode::Push;
        match word() {
            ("push", behind) => rest = behind,
            ("auto", behind) => (mode, rest) = (Mode::Auto, behind),
            ("pull", behind) => (mode, rest) = (Mode::Pull, behind),
            ("snapshot", behind) => {
                let (seconds, behind) = behind.split_once(char::is_whitespace)?;
                mode = Mode::Snapshot((seconds.parse::<f64>().ok()? * 1000.0).round() as u64);
                rest = behind.trim_start();
            }
            _ => {}
        }
        let mut sources = Vec::new();
        let mut keep = None;
        while !rest.is_empty() {
            if let Some(text) = rest.strip_prefix("keep ") {
                keep = Some(Keep::parse(text)?);
                break;
            }
            let (operator, behind) = Operator::parse(rest)?;
            let (pattern, behind) = behind.split_once(char::is_whitespace).unwrap_or((behind, ""));
            let mut pattern = Pattern::parse(pattern)?;
            let (lens, behind) = Lens::parse(behind)?;
            pattern.lens = lens;
            sources.push((operator, pattern));
            rest = behind.trim_start();
        }
        Some(Self { output, mode, sources, keep })
    }

    /// How many of the output's parts make up a group, and whether of each group the last keys are made, not the first.
    ///
    /// # Panics
    /// The slot that ends the group is none of the output's.
    #[must_use]
    pub fn group(&self, keep: &Keep) -> (usize, bool) {
        let parts = &self.output.parts;
        let slots: Vec<usize> =
            (0..parts.len()).filter(|&at| matches!(parts[at], Part::Slot { .. })).collect();
        let form = |at: usize| match &parts[at] {
            Part::Slot { form, .. } => *form,
            Part::Literal(_) => None,
        };
        let named = |name: &str| {
            parts
                .iter()
                .rposition(|part| matches!(part, Part::Slot { name: own, .. } if own == name))
        };
        let end = match &keep.per {
            Some(name) => named(name).expect("a slot of the output") + 1,
            None => match slots.iter().copied().find(|&at| form(at).is_some()) {
                Some(at) => at,
                None if slots.len() > 1 => slots[0] + 1,
                None => 0,
            },
        };
        let ordered = slots.iter().copied().find(|&at| at >= end);
        let turned = ordered.and_then(form).is_some_and(|form| form.descending);
        (end, keep.greatest != turned)
    }

    /// Whether what it keeps can be said: a slot of the output follows the group.
    #[must_use]
    pub fn can_keep(&self, keep: &Keep) -> bool {
        let is_named =
            keep.per.as_ref().is_none_or(|name| self.output.slots().contains(&name.as_str()));
        is_named && {
            let (end, _) = self.group(keep);
            self.output.parts[end..].iter().any(|part| matches!(part, Part::Slot { .. }))
        }
    }

    /// How a slot stands in keys: its form in the output, and its width.
    #[must_use]
    pub fn form_of(&self, slot: &str) -> (Option<Ordered>, Option<usize>) {
        let patterns = self.sources.iter().map(|(_, pattern)| pattern).chain([&self.output]);
        let (mut found, mut fixed) = (None, None);
        for part in patterns.flat_map(|pattern| &pattern.parts) {
            if let Part::Slot { name, width, form } = part
                && name == slot
            {
                found = found.or(*form);
                fixed = fixed.or(*width);
            }
        }
        (found, fixed)
    }

    /// The one source that gives the value.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn value_source(&self) -> &(Operator, Pattern) {
        self.sources.iter().find(|(operator, _)| *operator != Operator::Check).expect("one source")
    }

    /// Whether several tuples can give one output key, for all that the patterns tell, and values that name slots.
    #[must_use]
    pub fn loses_slots(&self) -> bool {
        let mut known = self.output.slots();
        for _ in &self.sources {
            for (_, source) in &self.sources {
                if source.slots().iter().all(|slot| known.contains(slot)) {
                    known.extend(source.value_slots());
                }
            }
        }
        self.sources.iter().any(|(_, source)| source.slots().iter().any(|s| !known.contains(s)))
    }

    /// Whether the join reads keys that `output` can make.
    #[must_use]
    pub fn reads(&self, output: &Pattern) -> bool {
        self.sources.iter().any(|(_, source)| source.overlaps(output))
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table)?;
        for part in &self.parts {
            match part {
                Part::Literal(text) => write!(f, "|{text}")?,
                Part::Slot { name, width, form } => {
                    write!(f, "|<{name}")?;
                    if let Some(width) = width {
                        write!(f, ":{width}")?;
                    }
                    if let Some(form) = form {
                        let order = if form.descending { ":desc" } else { "" };
                        write!(f, ":{}{order}", form.kind.name())?;
                    }
                    f.write_str(">")?;
                }
            }
        }
        match &self.lens {
            Some(lens) => write!(f, "{lens}"),
            None => Ok(()),
        }
    }
}

impl Display for Join {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} =", self.output)?;
        match self.mode {
            Mode::Push => {}
            Mode::Auto => f.write_str(" auto")?,
            Mode::Pull => f.write_str(" pull")?,
            Mode::Snapshot(millis) => {
                write!(f, " snapshot {}", millis / 1000)?;
                if millis % 1000 != 0 {
                    let fraction = format!("{:03}", millis % 1000);
                    write!(f, ".{}", fraction.trim_end_matches('0'))?;
                }
            }
        }
        for (operator, pattern) in &self.sources {
            write!(f, " {operator} {pattern}")?;
        }
        if let Some(Keep { most, greatest, per }) = &self.keep {
            write!(f, " keep {most} {}", if *greatest { "desc" } else { "asc" })?;
            if let Some(slot) = per {
                write!(f, " per <{slot}>")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in [
            "t|<user>|<time:4>|<poster> = check s|<user>|<poster> copy p|<poster>|<time:4>",
            "page|<a>|r = pull sum rank|<a>|<b>",
            "k|<a> = snapshot 2.05 check x|<a>| count y|<a>|<b>",
            "total = count y|<b>",
            "u|<a> = distinct y|<a>|<b> on <b>",
            "u|<a> = distinct~ 3 y|<a>|<b> as json(.k) <c> on <c> where value = 1",
            "u|<a> = pull topk 3 y|<a>|<b> keep 1 asc",
            "u|<a> = percentile 99.9 y|<a>|<b>",
            "t|<a>|<b> = check s|<a>|<c> copy p|<c>|<b> keep 3 desc per <a>",
            "t|<a>|<b> = copy p|<a>|<b> as <c> keep 1 asc",
            "top|<v:number:desc>|<x> = pull index s|<x> as <v> check k|<x> as json(.a[0].b) <c> where not (value <= 5 or <x> in ('a', 7)) and json(.k) exists",
        ] {
            assert_eq!(Join::parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn matching() {
        let pattern = Pattern::parse("t|<a>|x|<b:2>|<a>").unwrap();
        assert!(pattern.matches(b"t|1|x|22|1"));
        for key in [&b"t|1|x|22|2"[..], b"t|1|x|2|1", b"t||x|22|", b"t|1|x|22", b"t|1|x|22|1|"] {
            assert!(!pattern.matches(key), "{key:?}");
        }
    }
}
