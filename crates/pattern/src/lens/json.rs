//! One field of a JSON document, by its path.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::Decimal;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
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

impl Path {
    /// What the path leads to in a document; `None` where it leads to nothing or to null, or the value is no JSON.
    pub(super) fn find(&self, document: &[u8]) -> Option<Found> {
        let mut reader = serde_json::Deserializer::from_slice(document);
        let found = Way(&self.steps).deserialize(&mut reader).ok()?;
        reader.end().ok()?;
        let raw = found?.get();
        match raw.as_bytes().first()? {
            b'"' => serde_json::from_str::<Cow<'_, str>>(raw)
                .ok()
                .map(|text| Found::Text(text.into_owned().into_bytes())),
            b't' => Some(Found::Bool(true)),
            b'f' => Some(Found::Bool(false)),
            b'n' => None,
            b'{' | b'[' => Some(Found::Parts),
            _ => number(raw.as_bytes()).map(Found::Number),
        }
    }
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

/// The steps that are left.
struct Way<'p>(&'p [Step]);

impl<'de> DeserializeSeed<'de> for Way<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return serde::Deserialize::deserialize(document).map(Some);
        }
        document.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Way<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match self.0.split_first() {
                Some((Step::Member(wanted), rest)) if *name == **wanted => {
                    found = map.next_value_seed(Way(rest))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        if let Some((&Step::Element(wanted), rest)) = self.0.split_first() {
            for _ in 0..wanted {
                if list.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(None);
                }
            }
            found = list.next_element_seed(Way(rest))?.flatten();
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}
