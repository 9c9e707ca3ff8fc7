//! Conditions on a source's value and slots, in SQL's logic of three values.
//!
//! A comparison with something that is missing, or of a text with a number, is neither true nor false but unknown, and
//! only what is true counts. Texts compare by bytes, numbers exactly. A value that is not looked into as JSON is a text, and a
//! number where it reads as one; what it is compared with says which is meant.

use super::json::{Document, Found, Path};
use super::{Field, SlotId};
use crate::Bindings;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_base::Decimal;

/// A condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    /// All of them hold.
    All(Vec<Self>),
    /// One of them holds.
    Any(Vec<Self>),
    /// It is false.
    Not(Box<Self>),
    /// Two things compare so.
    Compare(Operand, Comparison, Literal),
    /// It equals one of these.
    In(Operand, Vec<Literal>),
    /// It is a text that begins so.
    Prefix(Operand, Vec<u8>),
    /// It is there, and not null. Never unknown.
    Exists(Operand),
}

/// What a condition is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operand {
    /// The value, or a part of it.
    Field(Field),
    /// A slot of the source's pattern.
    Slot(SlotId),
}

/// How two things compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "comparisons by their names")]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// All of them, those first whose sign begins with another one's.
    pub const ALL: [Self; 6] = [
        Self::NotEqual,
        Self::LessOrEqual,
        Self::GreaterOrEqual,
        Self::Equal,
        Self::Less,
        Self::Greater,
    ];

    /// The sign for it.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }

    fn admits(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

/// What something is compared with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Literal {
    /// A text, in quotes.
    Text(Vec<u8>),
    /// A number.
    Number(Decimal),
    /// `true` or `false`.
    Bool(bool),
}

impl Filter {
    /// Whether it looks at slots.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        match self {
            Self::All(all) | Self::Any(all) => all.iter().any(Self::has_slots),
            Self::Not(inner) => inner.has_slots(),
            Self::Compare(operand, ..)
            | Self::In(operand, _)
            | Self::Prefix(operand, _)
            | Self::Exists(operand) => matches!(operand, Operand::Slot(_)),
        }
    }

    /// Takes the paths of the fields that it looks at.
    pub(super) fn paths<'f>(&'f self, into: &mut Vec<&'f Path>) {
        match self {
            Self::All(all) | Self::Any(all) => all.iter().for_each(|each| each.paths(into)),
            Self::Not(inner) => inner.paths(into),
            Self::Compare(operand, ..)
            | Self::In(operand, _)
            | Self::Prefix(operand, _)
            | Self::Exists(operand) => {
                if let Operand::Field(Field::Json(path)) = operand {
                    into.push(path);
                }
            }
        }
    }

    /// Whether it holds for a value, under the bindings of its key; `None`: unknown.
    pub(super) fn holds<'v>(&self, value: &Document<'v>, bindings: &Bindings<'v>) -> Option<bool> {
        match self {
            Self::All(all) => {
                let mut known = Some(true);
                for each in all {
                    match each.holds(value, bindings) {
                        Some(false) => return Some(false),
                        Some(true) => {}
                        None => known = None,
                    }
                }
                known
            }
            Self::Any(all) => {
                let mut known = Some(false);
                for each in all {
                    match each.holds(value, bindings) {
                        Some(true) => return Some(true),
                        Some(false) => {}
                        None => known = None,
                    }
                }
                known
            }
            Self::Not(inner) => inner.holds(value, bindings).map(|held| !held),
            Self::Compare(operand, ..)
            | Self::In(operand, _)
            | Self::Prefix(operand, _)
            | Self::Exists(operand) => self.test(operand.look(value, bindings)),
        }
    }

    /// Whether a condition on one operand holds for what this is; `None`: unknown.
    pub(super) fn test(&self, seen: Option<Seen<'_>>) -> Option<bool> {
        match self {
            Self::All(_) | Self::Any(_) | Self::Not(_) => None,
            Self::Compare(_, comparison, literal) => {
                let order = seen?.compare(literal)?;
                let ordered = !matches!(literal, Literal::Bool(_))
                    || matches!(comparison, Comparison::Equal | Comparison::NotEqual);
                ordered.then(|| comparison.admits(order))
            }
            Self::In(_, literals) => {
                let seen = seen?;
                let mut known = Some(false);
                for literal in literals {
                    match seen.compare(literal) {
                        Some(Ordering::Equal) => return Some(true),
                        Some(_) => {}
                        None => known = None,
                    }
                }
                known
            }
            Self::Prefix(_, prefix) => match seen? {
                Seen::Plain(text) => Some(text.starts_with(prefix)),
                Seen::Json(Found::Text(text)) => Some(text.starts_with(prefix)),
                Seen::Json(_) => None,
            },
            Self::Exists(_) => Some(seen.is_some()),
        }
    }
}

/// What an operand stands for.
pub(super) enum Seen<'v> {
    /// Bytes, which may read as a number.
    Plain(&'v [u8]),
    Json(Found),
}

impl Operand {
    fn look<'v>(&self, value: &Document<'v>, bindings: &Bindings<'v>) -> Option<Seen<'v>> {
        match self {
            Self::Field(Field::Value) => Some(Seen::Plain(value.value)),
            Self::Field(Field::Json(path)) => value.find(path).map(Seen::Json),
            Self::Slot(slot) => bindings.get(*slot).map(Seen::Plain),
        }
    }
}

impl Seen<'_> {
    /// How it compares with a literal; `None` where the two do not compare.
    fn compare(&self, literal: &Literal) -> Option<Ordering> {
        match (self, literal) {
            (Self::Plain(text), Literal::Text(other)) => Some((*text).cmp(other)),
            (Self::Plain(text), Literal::Number(other)) => Some(Decimal::parse(text)?.cmp(other)),
            (Self::Plain(text), Literal::Bool(other)) => match *text {
                b"true" => Some(true.cmp(other)),
                b"false" => Some(false.cmp(other)),
                _ => None,
            },
            (Self::Json(Found::Text(text)), Literal::Text(other)) => Some(text.cmp(other)),
            (Self::Json(Found::Number(number)), Literal::Number(other)) => Some(number.cmp(other)),
            (Self::Json(Found::Bool(truth)), Literal::Bool(other)) => Some(truth.cmp(other)),
            (Self::Json(_), _) => None,
        }
    }
}
