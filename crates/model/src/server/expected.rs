//! What a reply must be, as far as anything says so.

use super::wire::Frame;
use crate::join::Pattern;
use headwater_script::bytes::escape;
use std::collections::BTreeSet;

/// What a reply must be.
#[derive(Clone, Debug)]
pub enum Expected {
    /// This status.
    Status(&'static str),
    /// This number.
    Integer(i64),
    /// This number or a greater one: keys that joins give may be stored already.
    AtLeast(i64),
    /// This value.
    Bulk(Vec<u8>),
    /// No value.
    Null,
    /// No array: EXEC was not executed.
    NullArray,
    /// An error that begins with one of these words.
    Refused(&'static [&'static str]),
    /// An error that names this number.
    Naming(usize),
    /// An array.
    List(Vec<Expected>),
    /// Pairs, in this order: a map, or an array of twice as many.
    Pairs(Vec<(Expected, Expected)>),
    /// These texts, in any order.
    Set(BTreeSet<Vec<u8>>),
    /// These keys, each once, and any that joins give, in any order.
    Keys(KeySet),
    /// A cursor and some of these keys; at least one of them, where the flag says so.
    Scanned(KeySet, bool),
    /// A line for each client.
    Clients,
    /// Whatever it is: all servers must give the same.
    Same,
    /// Whatever it is.
    Open,
}

/// Keys that are stored.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    /// Base keys.
    pub base: BTreeSet<Vec<u8>>,
    /// What installed joins give, which may be stored or not.
    pub derived: Vec<Pattern>,
}

impl KeySet {
    /// Checks that all of some keys are known, each once.
    fn within(&self, keys: &[Frame]) -> Result<BTreeSet<Vec<u8>>, String> {
        let mut given = BTreeSet::new();
        for key in keys {
            let key = key.text().ok_or_else(|| format!("{key:?} is no key"))?;
            if !self.base.contains(&key) && !self.derived.iter().any(|join| join.matches(&key)) {
                return Err(format!("{} is no key that is there", escape(&key)));
            }
            if !given.insert(key.clone()) {
                return Err(format!("{} is given twice", escape(&key)));
            }
        }
        Ok(given)
    }

    /// Checks that keys are those.
    ///
    /// # Errors
    /// One that is missing, unknown, or given twice.
    pub fn are(&self, keys: &[Frame]) -> Result<(), String> {
        let given = self.within(keys)?;
        match self.base.iter().find(|key| !given.contains(*key)) {
            Some(missing) => Err(format!("{} is missing", escape(missing))),
            None => Ok(()),
        }
    }
}

impl Expected {
    /// Checks a reply.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, frame: &Frame) -> Result<(), String> {
        let wrong = || Err(format!("{}, but expected {}", shown(frame), self.shown()));
        let right = match (self, frame) {
            (Self::Status(text), Frame::Simple(told)) => text == told,
            (Self::Integer(number), Frame::Integer(told)) => number == told,
            (Self::AtLeast(number), Frame::Integer(told)) => number <= told,
            (Self::Bulk(_), _) => return self.is_text(frame),
            (Self::Null, Frame::Null) | (Self::NullArray, Frame::NullArray | Frame::Null) => true,
            (Self::Refused(words), Frame::Error(told)) => {
                let first = told.split(' ').next().unwrap_or_default();
                words.contains(&first)
            }
            (Self::Naming(number), Frame::Error(told)) => {
                let mut numbers = told.split(|letter: char| !letter.is_ascii_digit());
                numbers.any(|text| text == number.to_string())
            }
            (Self::List(all), Frame::Array(told)) if all.len() == told.len() => {
                for (at, (one, told)) in all.iter().zip(told).enumerate() {
                    one.check(told).map_err(|wrong| format!("element {at}: {wrong}"))?;
                }
                true
            }
            (Self::Pairs(pairs), _) => return check_pairs(pairs, frame).or_else(|_| wrong()),
            (Self::Set(texts), Frame::Array(told)) => {
                let given: BTreeSet<_> = told.iter().filter_map(Frame::text).collect();
                given == *texts && told.len() == texts.len()
            }
            (Self::Keys(keys), Frame::Array(told)) => return keys.are(told),
            (Self::Scanned(keys, some), Frame::Array(told)) => match &told[..] {
                [Frame::Bulk(cursor), Frame::Array(given)] => {
                    keys.within(given)?;
                    if *some && given.is_empty() {
                        return Err(format!("no key and cursor {}", escape(cursor)));
                    }
                    true
                }
                _ => false,
            },
            (Self::Clients, Frame::Bulk(_)) | (Self::Same | Self::Open, _) => true,
            _ => false,
        };
        if right { Ok(()) } else { wrong() }
    }

    fn is_text(&self, frame: &Frame) -> Result<(), String> {
        match (self, frame.text()) {
            (Self::Bulk(bytes), Some(told)) if *bytes == told => Ok(()),
            _ => Err(format!("{}, but expected {}", shown(frame), self.shown())),
        }
    }

    /// Whether every server must give the very same reply.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match self {
            Self::AtLeast(_) | Self::Set(_) | Self::Keys(_) | Self::Scanned(..) | Self::Clients => {
                false
            }
            Self::List(all) => all.iter().all(Self::is_whole),
            _ => true,
        }
    }

    /// For people.
    #[must_use]
    pub fn shown(&self) -> String {
        let many = |all: Vec<String>| format!("[{}]", all.join(", "));
        match self {
            Self::Status(text) => (*text).to_owned(),
            Self::Integer(number) => number.to_string(),
            Self::AtLeast(number) => format!("{number} or more"),
            Self::Bulk(bytes) => format!("\"{}\"", escape(bytes)),
            Self::Null => String::from("null"),
            Self::NullArray => String::from("null (EXEC: a watched key has changed)"),
            Self::Refused(words) => format!("an error {}", words.join(" or ")),
            Self::Naming(number) => format!("an error that names {number}"),
            Self::List(all) => many(all.iter().map(Self::shown).collect()),
            Self::Pairs(pairs) => {
                let pair =
                    |(key, value): &(Self, Self)| format!("{} {}", key.shown(), value.shown());
                many(pairs.iter().map(pair).collect())
            }
            Self::Set(texts) => many(texts.iter().map(|text| escape(text)).collect()),
            Self::Keys(keys) | Self::Scanned(keys, _) => {
                format!("keys of {}", many(keys.base.iter().map(|key| escape(key)).collect()))
            }
            Self::Clients => String::from("a line for each client"),
            Self::Same | Self::Open => String::from("anything"),
        }
    }
}

fn check_pairs(pairs: &[(Expected, Expected)], frame: &Frame) -> Result<(), String> {
    let told: Vec<&Frame> = match frame {
        Frame::Map(told) => told.iter().flat_map(|(key, value)| [key, value]).collect(),
        Frame::Array(told) => told.iter().collect(),
        _ => return Err(String::from("no pairs")),
    };
    if told.len() != 2 * pairs.len() {
        return Err(String::from("not as many pairs"));
    }
    let all = pairs.iter().flat_map(|(key, value)| [key, value]);
    all.zip(told).try_for_each(|(one, told)| one.check(told))
}

/// A reply, for people.
#[must_use]
pub fn shown(frame: &Frame) -> String {
    let many = |all: &[Frame]| {
        let all: Vec<String> = all.iter().map(shown).collect();
        format!("[{}]", all.join(", "))
    };
    match frame {
        Frame::Simple(text) | Frame::Error(text) | Frame::Other(text) => text.clone(),
        Frame::Integer(number) => number.to_string(),
        Frame::Bulk(bytes) => format!("\"{}\"", escape(bytes)),
        Frame::Null | Frame::NullArray => String::from("null"),
        Frame::Array(all) => many(all),
        Frame::Push(all) => format!("push {}", many(all)),
        Frame::Map(pairs) => {
            let pair = |(key, value): &(Frame, Frame)| format!("{} {}", shown(key), shown(value));
            format!("[{}]", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}
