//! Conditions that nothing can fulfil: `json(.n) > 5 and json(.n) < 3`.
//!
//! Only what is told by one operand's own conditions is found: that it equals something that another one excludes, is beyond two ends,
//! begins in two ways, or is a text and a number at once; or that a slot stands for what is no component of a key. What is not found is no error: such a join gives nothing.

use super::Field;
use super::filter::{Comparison, Filter, Literal, Operand, Seen};
use super::json::Found;
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_base::key::SEPARATOR;

/// Kinds of JSON values that a condition can hold for.
const TEXTS: u8 = 1;
const NUMBERS: u8 = 2;
const BOOLS: u8 = 4;

impl Filter {
    /// Whether no value and key can fulfil it. It may be that none can where this says no.
    #[must_use]
    pub fn is_contradiction(&self) -> bool {
        match self {
            Self::Any(all) => all.iter().all(Self::is_contradiction),
            Self::Not(_) => false,
            _ => {
                let mut atoms = Vec::new();
                let nested = self.atoms(&mut atoms);
                nested || atoms.iter().any(|(operand, _)| is_in_vain(operand, &atoms))
            }
        }
    }

    /// Takes the conditions that must hold together; whether one of the others cannot hold.
    fn atoms<'f>(&'f self, into: &mut Vec<(&'f Operand, &'f Self)>) -> bool {
        match self {
            Self::All(all) => all.iter().any(|each| each.atoms(into)),
            Self::Any(_) | Self::Not(_) => self.is_contradiction(),
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

/// Whether nothing fulfils all of an operand's conditions.
fn is_in_vain(operand: &Operand, atoms: &[(&Operand, &Filter)]) -> bool {
    let own: Vec<&Filter> =
        atoms.iter().filter(|(of, _)| *of == operand).map(|(_, atom)| *atom).collect();
    let is_json = matches!(operand, Operand::Field(Field::Json(_)));
    if is_json && own.iter().fold(u8::MAX, |kinds, atom| kinds & kinds_of(atom)) == 0 {
        return true;
    }
    let is_slot = matches!(operand, Operand::Slot(_));
    let equal = own.iter().find_map(|atom| match atom {
        Filter::Compare(_, Comparison::Equal, literal) => Some(core::slice::from_ref(literal)),
        Filter::In(_, literals) => Some(&literals[..]),
        _ => None,
    });
    if let Some(literals) = equal {
        return !literals.iter().any(|literal| {
            let is_component = match literal {
                Literal::Text(text) if is_slot => !text.is_empty() && !text.contains(&SEPARATOR),
                _ => true,
            };
            is_component && own.iter().all(|atom| admits(atom, literal, is_json))
        });
    }
    let prefixes = own.iter().filter_map(|atom| match atom {
        Filter::Prefix(_, prefix) => Some(&prefix[..]),
        _ => None,
    });
    if is_slot && prefixes.clone().any(|prefix| prefix.contains(&SEPARATOR)) {
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
