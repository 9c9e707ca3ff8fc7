//! Conditions that nothing can fulfil: `json(.n) > 5 and json(.n) < 3`.
//!
//! What is told by one operand's own conditions is found: that it equals something that another one excludes, is beyond two ends,
//! begins in two ways, is a text and a number at once, or is there and is not; that a slot stands for what is no component of a key, or none of its
//! width; and that a path leads on from what is no object. What is not found is no error: such a join gives nothing.

use super::Field;
use super::filter::{Comparison, Filter, Literal, Operand, Seen};
use super::json::{Found, Path, Step};
use crate::{Component, Pattern, SlotId};
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_base::key::SEPARATOR;

/// Kinds of JSON values that a condition can hold for.
const TEXTS: u8 = 1;
const NUMBERS: u8 = 2;
const BOOLS: u8 = 4;

impl Filter {
    /// Whether no value can fulfil it under any key of a pattern. It may be that none can where this says no.
    #[must_use]
    pub fn is_contradiction(&self, pattern: &Pattern) -> bool {
        if let Self::Any(all) = self {
            return all.iter().all(|each| each.is_contradiction(pattern));
        }
        let mut atoms = Vec::new();
        let nested = self.atoms(pattern, &mut atoms);
        nested
            || atoms.iter().any(|(operand, _)| is_in_vain(operand, &atoms, pattern))
            || atoms.iter().any(|one| atoms.iter().any(|other| are_apart(one, other)))
    }

    /// Takes the conditions that must hold together; whether one of the others cannot hold.
    fn atoms<'f>(&'f self, pattern: &Pattern, into: &mut Vec<Atom<'f>>) -> bool {
        match self {
            Self::All(all) => all.iter().any(|each| each.atoms(pattern, into)),
            Self::Any(_) => self.is_contradiction(pattern),
            Self::Not(inner) => {
                let Self::Exists(operand) = &**inner else { return false };
                into.push((operand, self));
                // A key has its slots, and a value.
                json_of(operand).is_none()
            }
            Self::Compare(operand, ..)
            | Self::In(operand, _)
            | Self::Prefix(operand, _)
            | Self::Exists(operand) => {
                into.push((operand, self));
                false
            }
        }
    }
}

/// A condition on one operand, or that it is not there.
type Atom<'f> = (&'f Operand, &'f Filter);

fn json_of(operand: &Operand) -> Option<&Path> {
    match operand {
        Operand::Field(Field::Json(path)) => Some(path),
        _ => None,
    }
}

/// Whether two conditions on parts of a document leave no document.
fn are_apart((one, condition): &Atom<'_>, (other, of_other): &Atom<'_>) -> bool {
    let (Some(one), Some(other)) = (json_of(one), json_of(other)) else { return false };
    if matches!(of_other, Filter::Not(_)) {
        return false;
    }
    // The other part is there, and so is what it is in.
    let is_missing = matches!(condition, Filter::Not(_));
    if other.steps.starts_with(&one.steps) {
        let has_parts = other.steps.len() > one.steps.len();
        return is_missing || has_parts && !matches!(condition, Filter::Exists(_));
    }
    let differ = one.steps.iter().zip(&other.steps).find(|(one, other)| one != other);
    let are_alike = |(one, other): (&Step, &Step)| {
        matches!(one, Step::Member(_)) == matches!(other, Step::Member(_))
    };
    !is_missing && differ.is_some_and(|steps| !are_alike(steps))
}

/// The bytes that a slot of a pattern has, where that is fixed.
fn width_of(pattern: &Pattern, wanted: SlotId) -> Option<usize> {
    pattern.components.iter().find_map(|component| match component {
        Component::Slot { slot, width } if *slot == wanted => *width,
        _ => None,
    })
}

/// Whether nothing fulfils all of an operand's conditions.
fn is_in_vain(operand: &Operand, atoms: &[Atom<'_>], pattern: &Pattern) -> bool {
    let own: Vec<&Filter> =
        atoms.iter().filter(|(of, _)| *of == operand).map(|(_, atom)| *atom).collect();
    let is_json = json_of(operand).is_some();
    if is_json && own.iter().fold(u8::MAX, |kinds, atom| kinds & kinds_of(atom)) == 0 {
        return true;
    }
    let is_slot = matches!(operand, Operand::Slot(_));
    let width = match operand {
        Operand::Slot(slot) => width_of(pattern, *slot),
        Operand::Field(_) => None,
    };
    let mut equal = own.iter().filter_map(|atom| match atom {
        Filter::Compare(_, Comparison::Equal, literal) => Some(core::slice::from_ref(literal)),
        Filter::In(_, literals) => Some(&literals[..]),
        _ => None,
    });
    let is_component = |literal: &Literal| match literal {
        Literal::Text(text) if is_slot => {
            let fits = width.is_none_or(|width| text.len() == width);
            fits && !text.is_empty() && !text.contains(&SEPARATOR)
        }
        _ => true,
    };
    if equal.clone().next().is_some() {
        return equal.any(|literals| {
            !literals.iter().any(|literal| {
                is_component(literal) && own.iter().all(|atom| admits(atom, literal, is_json))
            })
        });
    }
    let prefixes = own.iter().filter_map(|atom| match atom {
        Filter::Prefix(_, prefix) => Some(&prefix[..]),
        _ => None,
    });
    let cannot_begin = |prefix: &[u8]| {
        prefix.contains(&SEPARATOR) || width.is_some_and(|width| prefix.len() > width)
    };
    if is_slot && prefixes.clone().any(cannot_begin) {
        return true;
    }
    let is_apart = |a: &[u8], b: &[u8]| !a.starts_with(b) && !b.starts_with(a);
    prefixes.clone().any(|a| prefixes.clone().any(|b| is_apart(a, b))) || are_ends_crossed(&own)
}

/// The kinds of JSON values that a condition may hold for.
fn kinds_of(atom: &Filter) -> u8 {
    let kind = |literal: &Literal| match literal {
        Literal::Text(_) => TEXTS,
        Literal::Number(_) => NUMBERS,
        Literal::Bool(_) => BOOLS,
    };
    match atom {
        Filter::Compare(_, _, literal) => kind(literal),
        Filter::In(_, literals) => literals.iter().fold(0, |kinds, literal| kinds | kind(literal)),
        Filter::Prefix(..) => TEXTS,
        _ => u8::MAX,
    }
}

/// Whether a condition may hold for what equals `literal`.
fn admits(atom: &Filter, literal: &Literal, is_json: bool) -> bool {
    let seen = match literal {
        Literal::Text(text) if is_json => Seen::Json(Found::Text(text.clone())),
        Literal::Text(text) => Seen::Plain(text),
        Literal::Number(number) if is_json => Seen::Json(Found::Number(number.clone())),
        // Several texts read as this number.
        Literal::Number(number) => {
            let is_number = |other: &Literal| matches!(other, Literal::Number(_));
            return match atom {
                Filter::Compare(_, _, other) if !is_number(other) => true,
                Filter::In(_, others) if !others.iter().all(is_number) => true,
                Filter::Prefix(..) => true,
                _ => atom.test(Some(Seen::Json(Found::Number(number.clone())))) == Some(true),
            };
        }
        Literal::Bool(truth) if is_json => Seen::Json(Found::Bool(*truth)),
        Literal::Bool(truth) => Seen::Plain(if *truth { b"true" } else { b"false" }),
    };
    atom.test(Some(seen)) == Some(true)
}

/// Whether a lower end lies beyond an upper one.
fn are_ends_crossed(own: &[&Filter]) -> bool {
    let ends = own.iter().filter_map(|atom| match atom {
        Filter::Compare(_, comparison, literal) => Some((*comparison, literal)),
        _ => None,
    });
    ends.clone().any(|(lower, from)| {
        matches!(lower, Comparison::Greater | Comparison::GreaterOrEqual)
            && ends.clone().any(|(upper, to)| {
                let is_strict = lower == Comparison::Greater || upper == Comparison::Less;
                matches!(upper, Comparison::Less | Comparison::LessOrEqual)
                    && match order(from, to) {
                        Some(Ordering::Greater) => true,
                        Some(Ordering::Equal) => is_strict,
                        _ => false,
                    }
            })
    })
}

fn order(a: &Literal, b: &Literal) -> Option<Ordering> {
    match (a, b) {
        (Literal::Text(a), Literal::Text(b)) => Some(a.cmp(b)),
        (Literal::Number(a), Literal::Number(b)) => Some(a.cmp(b)),
        _ => None,
    }
}
