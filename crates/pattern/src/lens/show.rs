//! The text of a lens, which reads back as the same lens.

use super::{Bind, Field, Filter, Lens, Literal, Operand, Path, Step};
use crate::SlotId;
use alloc::string::String;
use core::fmt::{self, Display, Formatter, Write};

/// Shows a lens, if there is one, with its slots' names, a space before each clause.
pub(crate) struct ShownLens<'a> {
    pub(crate) lens: Option<&'a Lens>,
    /// The slot that the source looks at in the place of the value.
    pub(crate) on: Option<SlotId>,
    pub(crate) slots: &'a [String],
}

impl Display for ShownLens<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for Bind { field, slot, .. } in self.lens.iter().flat_map(|lens| &lens.binds) {
            f.write_str(" as ")?;
            if let Field::Json(path) = field {
                write!(f, "json({path}) ")?;
            }
            write!(f, "<{}>", self.slots[*slot])?;
        }
        if let Some(slot) = self.on {
            write!(f, " on <{}>", self.slots[slot])?;
        }
        if let Some(filter) = self.lens.and_then(|lens| lens.filter.as_ref()) {
            f.write_str(" where ")?;
            self.filter(f, filter, false)?;
        }
        Ok(())
    }
}

impl ShownLens<'_> {
    /// `inner`: in parentheses, where it is more than one condition.
    fn filter(&self, f: &mut Formatter<'_>, filter: &Filter, inner: bool) -> fmt::Result {
        match filter {
            Filter::All(all) | Filter::Any(all) => {
                let word = if matches!(filter, Filter::All(_)) { " and " } else { " or " };
                if inner {
                    f.write_str("(")?;
                }
                for (at, each) in all.iter().enumerate() {
                    if at > 0 {
                        f.write_str(word)?;
                    }
                    self.filter(f, each, true)?;
                }
                if inner {
                    f.write_str(")")?;
                }
                Ok(())
            }
            Filter::Not(not) => {
                f.write_str("not ")?;
                self.filter(f, not, true)
            }
            Filter::Compare(operand, comparison, literal) => {
                self.operand(f, operand)?;
                write!(f, " {} {literal}", comparison.sign())
            }
            Filter::In(operand, literals) => {
                self.operand(f, operand)?;
                f.write_str(" in (")?;
                for (at, literal) in literals.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    write!(f, "{comma}{literal}")?;
                }
                f.write_str(")")
            }
            Filter::Prefix(operand, text) => {
                self.operand(f, operand)?;
                f.write_str(" prefix ")?;
                quoted(f, text)
            }
            Filter::Exists(operand) => {
                self.operand(f, operand)?;
                f.write_str(" exists")
            }
        }
    }

    fn operand(&self, f: &mut Formatter<'_>, operand: &Operand) -> fmt::Result {
        match operand {
            Operand::Field(Field::Value) => f.write_str("value"),
            Operand::Field(Field::Json(path)) => write!(f, "json({path})"),
            Operand::Slot(slot) => write!(f, "<{}>", self.slots[*slot]),
        }
    }
}

/// A text in quotes, of which those within stand twice. Parsed texts are UTF-8.
fn quoted(f: &mut Formatter<'_>, text: &[u8]) -> fmt::Result {
    f.write_char('\'')?;
    for character in String::from_utf8_lossy(text).chars() {
        f.write_char(character)?;
        if character == '\'' {
            f.write_char('\'')?;
        }
    }
    f.write_char('\'')
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => quoted(f, text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(truth) => write!(f, "{truth}"),
        }
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str(".");
        }
        for step in &self.steps {
            match step {
                Step::Element(at) => write!(f, "[{at}]")?,
                Step::Member(name) if is_plain(name) => write!(f, ".{name}")?,
                Step::Member(name) => write!(f, ".\"{}\"", name.replace('"', "\"\""))?,
            }
        }
        Ok(())
    }
}

/// Whether a member's name needs no quotes.
pub(crate) fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '$' | '@');
    !name.is_empty() && name.chars().all(plain)
}
