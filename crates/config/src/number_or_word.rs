//! Settings that are a number, or a word that stands for something else: in a file as TOML has them.

use serde::{Deserialize, Deserializer, Serializer};
use std::fmt::Display;
use std::str::FromStr;

/// Writes the number, or the word as `value` shows it where there is none.
pub(crate) fn serialize<S: Serializer>(
    number: Option<u16>,
    value: &impl Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => serializer.serialize_u16(number),
        None => serializer.collect_str(value),
    }
}

/// Reads either as the text that it would be on the command line.
pub(crate) fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u16),
        Word(String),
    }
    let text = match Either::deserialize(deserializer)? {
        Either::Number(number) => number.to_string(),
        Either::Word(word) => word,
    };
    text.parse().map_err(serde::de::Error::custom)
}
