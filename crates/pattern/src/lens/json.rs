//! Fields of a JSON document, by their paths.

use super::Lens;
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::fmt;
use headwater_base::Decimal;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A way into a JSON document, from its top.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// One step after the other.
    pub steps: Vec<Step>,
}

/// One step of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Into the member of an object that has this name; the last of several.
    Member(String),
    /// Into this element of an array, from 0.
    Element(usize),
}

/// What a path leads to: nothing that is null or has parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Bool(bool),
    Number(Decimal),
    Text(Vec<u8>),
    /// An object or an array.
    Parts,
}

impl Found {
    /// As text: a number in its plainest form.
    pub(super) fn into_text(self) -> Option<Vec<u8>> {
        match self {
            Self::Bool(truth) => Some(if truth { b"true".to_vec() } else { b"false".to_vec() }),
            Self::Number(number) => {
                let mut text = Vec::new();
                number.write_to(&mut text);
                Some(text)
            }
            Self::Text(text) => Some(text),
            Self::Parts => None,
        }
    }
}

/// Most steps of a path: documents are read as deep.
pub(crate) const STEPS_MAX: usize = 127;

/// A value that is read when the first of its fields is asked for, for all paths of a lens at once.
pub(super) struct Document<'v> {
    pub(super) value: &'v [u8],
    lens: &'v Lens,
    fields: OnceCell<Vec<(&'v Path, Option<&'v str>)>>,
}

impl<'v> Document<'v> {
    pub(super) fn new(value: &'v [u8], lens: &'v Lens) -> Self {
        Self { value, lens, fields: OnceCell::new() }
    }

    /// What a path of the lens leads to; `None` where it leads to nothing or to null, or the value is no JSON.
    pub(super) fn find(&self, path: &Path) -> Option<Found> {
        let fields = self.fields.get_or_init(|| {
            let paths = self.lens.paths();
            let found = find_all(self.value, &paths);
            paths.into_iter().zip(found).collect()
        });
        let (_, text) = fields.iter().find(|(other, _)| *other == path)?;
        text.and_then(found)
    }
}

/// The texts to which paths lead in a document; nothing where it is no JSON.
///
/// A value is JSON if it is UTF-8 and has JSON's grammar. What its parts mean, a number beyond all bounds for example or half of a
/// surrogate pair, is the business of the paths that lead to them alone. So which paths are asked for changes nothing for the others.
fn find_all<'v>(document: &'v [u8], paths: &[&Path]) -> Vec<Option<&'v str>> {
    let mut found = alloc::vec![None; paths.len()];
    let Ok(text) = core::str::from_utf8(document) else { return found };
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    let ways: Vec<_> = paths.iter().enumerate().map(|(at, path)| (at, &path.steps[..])).collect();
    for (at, steps) in &ways {
        found[*at] = steps.is_empty().then_some(text);
    }
    if read(text, &ways, &mut found).is_none() {
        found.fill(None);
    }
    found
}

/// A path, by its number, and those of its steps that are left.
type Way<'p> = (usize, &'p [Step]);

/// Goes the ways into a text; `None` where it is no JSON.
fn read<'v>(text: &'v str, ways: &[Way<'_>], found: &mut [Option<&'v str>]) -> Option<()> {
    let mut reader = serde_json::Deserializer::from_str(text);
    match text.as_bytes().first()? {
        b'{' => reader.deserialize_map(Walk { ways, found }),
        b'[' => reader.deserialize_seq(Walk { ways, found }),
        _ => reader.deserialize_ignored_any(IgnoredAny).map(drop),
    }
    .ok()?;
    reader.end().ok()
}

/// What a text of JSON says.
fn found(raw: &str) -> Option<Found> {
    match raw.as_bytes().first()? {
        b'"' => text_of(raw).map(|text| Found::Text(text.into_owned().into_bytes())),
        b't' => Some(Found::Bool(true)),
        b'f' => Some(Found::Bool(false)),
        b'n' => None,
        b'{' | b'[' => Some(Found::Parts),
        _ => number(raw.as_bytes()).map(Found::Number),
    }
}

/// What a text in quotes says.
fn text_of(quoted: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str(quoted).ok()
}

/// A JSON number, which may have an exponent, if its plain text is short enough to be a number here.
fn number(text: &[u8]) -> Option<Decimal> {
    let Some(at) = text.iter().position(|byte| matches!(byte, b'e' | b'E')) else {
        return Decimal::parse(text);
    };
    let exponent: i32 = core::str::from_utf8(&text[at + 1..]).ok()?.parse().ok()?;
    let (sign, digits) = match text[..at].split_first()? {
        (b'-', digits) => (&b"-"[..], digits),
        _ => (&b""[..], &text[..at]),
    };
    let point = digits.iter().position(|&byte| byte == b'.').unwrap_or(digits.len());
    let all: Vec<u8> = digits.iter().copied().filter(|&byte| byte != b'.').collect();
    let point = i32::try_from(point).ok()?.checked_add(exponent)?;
    if point.unsigned_abs() as usize > Decimal::TEXT_BYTES_MAX {
        return None;
    }
    let mut plain = sign.to_vec();
    match usize::try_from(point) {
        Ok(point) if point > 0 => {
            plain.extend_from_slice(&all[..point.min(all.len())]);
            plain.resize(plain.len() + point.saturating_sub(all.len()), b'0');
            if point < all.len() {
                plain.push(b'.');
                plain.extend_from_slice(&all[point..]);
            }
        }
        _ => {
            plain.extend_from_slice(b"0.");
            plain.resize(plain.len() + point.unsigned_abs() as usize, b'0');
            plain.extend_from_slice(&all);
        }
    }
    Decimal::parse(&plain)
}

/// Goes into an object or a list.
struct Walk<'w, 'v> {
    ways: &'w [Way<'w>],
    found: &'w mut [Option<&'v str>],
}

impl<'v> Walk<'_, 'v> {
    /// Goes on into a part, with the ways that lead into it. Of several members of one name the last counts.
    fn enter(&mut self, part: &'v RawValue, leads: impl Fn(&Step) -> bool) {
        let ways = self.ways.iter().filter_map(|(at, steps)| {
            let (step, rest) = steps.split_first()?;
            leads(step).then_some((*at, rest))
        });
        let ways: Vec<_> = ways.collect();
        for (at, rest) in &ways {
            self.found[*at] = rest.is_empty().then_some(part.get());
        }
        if ways.iter().any(|(_, rest)| !rest.is_empty()) {
            // It has the grammar, or the reader would not have given it.
            let _ = read(part.get(), &ways, self.found);
        }
    }

    fn is_led(&self, leads: impl Fn(&Step) -> bool) -> bool {
        self.ways.iter().any(|(_, steps)| steps.first().is_some_and(&leads))
    }
}

impl<'v> Visitor<'v> for Walk<'_, 'v> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'v>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<&RawValue>()? {
            let name = name.get();
            let plain = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
            let name = match plain.filter(|name| !name.contains('\\')) {
                Some(plain) => Some(Cow::Borrowed(plain)),
                None => text_of(name),
            };
            let leads = |step: &Step| matches!((step, &name), (Step::Member(wanted), Some(name)) if *wanted == **name);
            if self.is_led(leads) {
                self.enter(map.next_value()?, leads);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'v>>(mut self, mut list: A) -> Result<(), A::Error> {
        for at in 0.. {
            let leads = |step: &Step| *step == Step::Element(at);
            if self.is_led(leads) {
                let Some(part) = list.next_element()? else { break };
                self.enter(part, leads);
            } else if list.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
