//! The number of shards: given, or as many as there are cores.

use serde::{Deserialize, Deserializer};

/// Reads a number of shards, or `auto`: the cores that this process may use.
///
/// # Errors
/// It is neither; the text says what is allowed.
pub fn shards(text: &str) -> Result<u16, String> {
    if text == "auto" {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        return Ok(u16::try_from(cores.min(super::check::SHARDS_MAX)).unwrap_or(1));
    }
    let wrong = || format!("'{text}' (allowed: 1 to {}, or auto)", super::check::SHARDS_MAX);
    text.parse().map_err(|_| wrong())
}

/// Reads it from a file.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u16),
        Word(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Word(word) => shards(&word).map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn shards_are_a_number_or_the_cores() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(shards("auto").map(usize::from), Ok(cores));
        assert_eq!(shards("3"), Ok(3));
        let error = shards("many").unwrap_err();
        assert_eq!(error, "'many' (allowed: 1 to 256, or auto)");
        let of = |line: &str| {
            let text = format!("[listen]\n{line}");
            toml::from_str::<Config>(&text).map(|config| config.listen.shards)
        };
        assert_eq!(of("shards = 5").unwrap(), 5);
        assert_eq!(of("shards = \"auto\"").unwrap(), shards("auto").unwrap());
        assert!(of("shards = \"many\"").unwrap_err().to_string().contains("or auto"));
    }
}
