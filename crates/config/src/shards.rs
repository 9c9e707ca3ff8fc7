//! The number of shards: given, or left to the server.

use super::check::SHARDS_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How many threads serve, each with a part of the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ShardCount {
    /// As many as the data folder's keys are divided among, or one: the start says how many.
    #[default]
    Auto,
    /// So many.
    Number(u16),
}

impl ShardCount {
    /// The number; one, as long as that is open.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Auto => 1,
            Self::Number(number) => number,
        }
    }
}

impl FromStr for ShardCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let wrong = || format!("'{text}' (allowed: 1 to {SHARDS_MAX}, or auto)");
        text.parse().map(Self::Number).map_err(|_| wrong())
    }
}

impl fmt::Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl Serialize for ShardCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Number(number) => serializer.serialize_u16(*number),
        }
    }
}

impl<'de> Deserialize<'de> for ShardCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u16),
            Word(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Ok(Self::Number(number)),
            Either::Word(word) => word.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn shards_are_a_number_or_left_to_the_server() {
        assert_eq!("auto".parse(), Ok(ShardCount::Auto));
        assert_eq!("3".parse(), Ok(ShardCount::Number(3)));
        let error = "many".parse::<ShardCount>().unwrap_err();
        assert_eq!(error, "'many' (allowed: 1 to 256, or auto)");
        let of = |line: &str| {
            let text = format!("[listen]\n{line}");
            toml::from_str::<Config>(&text).map(|config| config.listen.shards)
        };
        assert_eq!(of("shards = 5").unwrap(), ShardCount::Number(5));
        assert_eq!(of("shards = \"auto\"").unwrap(), ShardCount::Auto);
        assert_eq!(of("").unwrap(), ShardCount::Auto);
        assert!(of("shards = \"many\"").unwrap_err().to_string().contains("or auto"));
    }
}
