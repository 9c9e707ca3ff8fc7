//! Sizes as people write them: `64mb`, `1gb`, `512k`, `5%`.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Units, as Redis reads them: `k` is 1000, `kb` is 1024.
const UNITS: [(&str, u64); 8] = [
    ("kb", 1 << 10),
    ("mb", 1 << 20),
    ("gb", 1 << 30),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("b", 1),
    ("", 1),
];

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.trim_end_matches(|message: char| message.is_ascii_alphabetic());
        let unit = UNITS.iter().find(|(unit, _)| *unit == &lower[digits.len()..]);
        let bytes =
            digits.parse::<u64>().ok().zip(unit).and_then(|(n, (_, by))| n.checked_mul(*by));
        bytes.map(Self).ok_or_else(|| String::from("argument must be a memory value"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of bytes, or a share of the memory bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// So many bytes.
    Bytes(Size),
    /// So many percent of the bound, 0 to 100.
    Percent(u8),
}

impl Default for Share {
    fn default() -> Self {
        Self::Bytes(Size(0))
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().strip_suffix('%') {
            None => text.parse().map(Self::Bytes),
            Some(number) => match number.parse() {
                Ok(percent @ 0..=100) => Ok(Self::Percent(percent)),
                _ => Err(String::from("argument must be a memory or percent value")),
            },
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(size) => size.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// What a configuration file may say: a number, or a text with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

impl Written {
    fn read<T: FromStr<Err = String>>(self) -> Result<T, String> {
        let text = match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        };
        text.parse().map_err(|error| format!("'{text}': {error} (such as 64mb, 1gb or 1048576)"))
    }
}

macro_rules! as_text {
    ($($type:ty)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Written::deserialize(from)?.read().map_err(serde::de::Error::custom)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    )*};
}

as_text!(Size Share);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_redis_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("100b", 100),
            ("2k", 2000),
            ("2KB", 2048),
            ("64mb", 64 << 20),
            ("3m", 3_000_000),
            ("1Gb", 1 << 30),
            ("1g", 1_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "mb", "-1", "1.5gb", "1tb", "64 mb", "99999999999gb"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!("5%".parse(), Ok(Share::Percent(5)));
        assert_eq!("5mb".parse(), Ok(Share::Bytes(Size(5 << 20))));
        assert!("101%".parse::<Share>().is_err() && "%".parse::<Share>().is_err());
    }
}
