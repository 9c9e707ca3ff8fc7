//! What a source sees of its values: which of them count, and which of their fields become slots.
//!
//! `score|<board>|<id> as <score> where json(.open) = true`: a *lens* on a source. It looks at one key and its value
//! and says whether the pair counts as a source key at all, and what the value binds. To the rest of a join that is the
//! source key's business: the key with what its value binds is a *row*, and a value that binds something else is
//! another row in the place of the first.
//!
//! # Invariants
//! - V1. A row is the key, the components that its value binds, and the length of each in two bytes; where nothing is
//!   bound it is the key. Equal rows are equal source keys with equal bindings.
//! - V2. What a value binds is a slot value (I1), 1 to [`COMPONENT_BYTES_MAX`] bytes. A value that gives no such
//!   component is no source key.
//!
//! # Cost
//! A look at the fields of a JSON document reads the document once, as far as its end, whatever their number; what a path with several steps
//! leads into is read once more for each of them.

use crate::pattern::fits;
use crate::{Bindings, Pattern, SlotId};
use alloc::vec::Vec;
use headwater_base::Ordered;
use headwater_base::key::SEPARATOR;
use json::Document;

pub use filter::{Comparison, Filter, Literal, Operand};
pub use json::{Path, Step};

mod contradiction;
mod filter;
mod json;
mod show;

pub(crate) use json::STEPS_MAX;
pub(crate) use show::{ShownLens, is_plain};

/// Longest component that a value may give.
pub const COMPONENT_BYTES_MAX: usize = 1024;

/// Where in a value something is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Field {
    /// All of it.
    Value,
    /// What a path leads to in it, which is a JSON document.
    Json(Path),
}

/// A slot that a value binds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bind {
    /// What binds it.
    pub field: Field,
    /// The slot.
    pub slot: SlotId,
    /// How many bytes the slot has, where that is fixed.
    pub width: Option<usize>,
    /// How it stands in the output's keys; `None`: as it is.
    pub form: Option<Ordered>,
}

/// What a source makes of a key and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// A row.
    Row,
    /// Nothing: a condition does not hold.
    Excluded,
    /// Nothing: the value does not give a component that a slot can stand for, in the form that the output says.
    Unreadable,
}

/// What a source sees of its values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lens {
    /// The slots that values bind.
    pub binds: Vec<Bind>,
    /// Which keys count.
    pub filter: Option<Filter>,
}

impl Lens {
    /// Looks at a key and its value, and appends the row that they give to `row`. The key matches the pattern.
    pub fn look(&self, pattern: &Pattern, key: &[u8], value: &[u8], row: &mut Vec<u8>) -> Look {
        let document = Document::new(value, self);
        if let Some(filter) = &self.filter {
            let mut bindings = Bindings::new();
            if filter.has_slots() {
                pattern.bind(key, &mut bindings);
            }
            if filter.holds(&document, &bindings) != Some(true) {
                return Look::Excluded;
            }
        }
        let start = row.len();
        row.extend_from_slice(key);
        let mut lengths = Vec::new();
        for bind in &self.binds {
            let from = row.len();
            if !bind.component(&document, row) {
                row.truncate(start);
                return Look::Unreadable;
            }
            lengths.extend(((row.len() - from) as u16).to_be_bytes());
        }
        row.extend_from_slice(&lengths);
        Look::Row
    }

    /// The paths of all fields that it looks at, each once.
    fn paths(&self) -> Vec<&Path> {
        let mut paths = Vec::new();
        if let Some(filter) = &self.filter {
            filter.paths(&mut paths);
        }
        paths.extend(self.binds.iter().filter_map(|bind| match &bind.field {
            Field::Json(path) => Some(path),
            Field::Value => None,
        }));
        let mut each_once = Vec::new();
        for path in paths {
            if !each_once.contains(&path) {
                each_once.push(path);
            }
        }
        each_once
    }

    /// The key of a row.
    #[must_use]
    pub fn key_of<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        let lengths = row.len() - 2 * self.binds.len();
        let taken: usize = row[lengths..].chunks_exact(2).map(length).sum();
        &row[..lengths - taken]
    }

    /// As [`Pattern::bind`], of a row: its key and what its value binds.
    pub fn bind<'r>(&self, pattern: &Pattern, row: &'r [u8], bindings: &mut Bindings<'r>) -> bool {
        if self.binds.is_empty() {
            return pattern.bind(row, bindings);
        }
        let mark = bindings.mark();
        let key = self.key_of(row);
        if !pattern.bind(key, bindings) {
            return false;
        }
        let (mut at, lengths) = (key.len(), &row[row.len() - 2 * self.binds.len()..]);
        for (bind, bytes) in self.binds.iter().zip(lengths.chunks_exact(2)) {
            let component = &row[at..at + length(bytes)];
            at += component.len();
            match bindings.get(bind.slot) {
                Some(bound) if bound == component => {}
                Some(_) => {
                    bindings.restore(mark);
                    return false;
                }
                None => bindings.set(bind.slot, component),
            }
        }
        true
    }
}

fn length(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 8 | usize::from(bytes[1])
}

impl Bind {
    /// Appends the component that a value gives; `false`, with `out` as it was, where it gives none.
    fn component(&self, document: &Document<'_>, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let found = match &self.field {
            Field::Value => None,
            Field::Json(path) => match document.find(path).and_then(json::Found::into_text) {
                Some(text) => Some(text),
                None => return false,
            },
        };
        let text = found.as_deref().unwrap_or(document.value);
        let given = match self.form {
            Some(form) => form.encode(text, out),
            None => {
                out.extend_from_slice(text);
                !text.contains(&SEPARATOR)
            }
        };
        let len = out.len() - start;
        let given = given && len <= COMPONENT_BYTES_MAX && fits(self.width, &out[start..]);
        if !given {
            out.truncate(start);
        }
        given
    }
}

#[cfg(test)]
mod tests;
