//! Which events are logged: a level, and levels of single targets, as `log-level` says them.

use core::str::FromStr;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// What events can be about.
pub const LOG_TARGETS: [&str; 11] = [
    "server", "clients", "memory", "slow", "sources", "store", "cluster", "flows", "http", "log",
    "audit",
];

/// The levels, from the one that lets nothing through; those of Redis last.
const NAMES: [(&str, LevelFilter); 9] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
    ("nothing", LevelFilter::OFF),
    ("warning", LevelFilter::WARN),
    ("notice", LevelFilter::INFO),
];
/// Redis has one between `debug` and `notice`, which is neither of ours.
const VERBOSE: (&str, LevelFilter) = ("verbose", LevelFilter::DEBUG);

/// A level, and levels of single targets.
#[derive(Clone, PartialEq, Debug)]
pub struct LogLevels {
    word: String,
    all: LevelFilter,
    single: Vec<(&'static str, LevelFilter)>,
}

fn level(word: &str) -> Result<LevelFilter, String> {
    let found = NAMES.iter().chain([&VERBOSE]).find(|(name, _)| name.eq_ignore_ascii_case(word));
    found.map(|(_, level)| *level).ok_or_else(|| {
        format!(
            "'{}' is no level; allowed: error, warn, info, debug, trace, off, and Redis's verbose, \
             notice, warning, nothing",
            word.escape_debug()
        )
    })
}

impl FromStr for LogLevels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut levels = Self { word: String::new(), all: LevelFilter::OFF, single: Vec::new() };
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((target, word)) => {
                    let known =
                        LOG_TARGETS.iter().find(|name| **name == target).ok_or_else(|| {
                            let (target, all) = (target.escape_debug(), LOG_TARGETS.join(", "));
                            format!("'{target}' is nothing that events are about; allowed: {all}")
                        })?;
                    levels.single.push((known, level(word)?));
                }
                None if levels.word.is_empty() => {
                    levels.all = level(part)?;
                    levels.word = part.to_ascii_lowercase();
                }
                None => {
                    let second = part.escape_debug();
                    return Err(format!(
                        "'{second}' is a second level for all; allowed: one, and target=level"
                    ));
                }
            }
        }
        if levels.word.is_empty() {
            return Err(String::from(
                "no level for all; allowed: a level such as info, before levels of single targets",
            ));
        }
        Ok(levels)
    }
}

impl LogLevels {
    /// As the library takes them.
    #[must_use]
    pub fn targets(&self) -> Targets {
        let single = self.single.iter().map(|(target, level)| ((*target).to_owned(), *level));
        Targets::new().with_default(self.all).with_targets(single)
    }

    /// The level for all, as Redis names it.
    #[must_use]
    pub fn as_redis_names(&self) -> &'static str {
        match (self.word.as_str(), self.all) {
            ("verbose", _) => "verbose",
            (_, LevelFilter::OFF) => "nothing",
            (_, LevelFilter::ERROR | LevelFilter::WARN) => "warning",
            (_, LevelFilter::INFO) => "notice",
            (_, LevelFilter::DEBUG | LevelFilter::TRACE) => "debug",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LogLevels;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn levels_are_read() {
        let levels: LogLevels = "Info, clients=debug,http=off".parse().unwrap();
        assert_eq!(levels.all, LevelFilter::INFO);
        let single = [("clients", LevelFilter::DEBUG), ("http", LevelFilter::OFF)];
        assert_eq!(levels.single, single);
        assert!(levels.targets().would_enable("clients", &tracing::Level::DEBUG));
        assert!(!levels.targets().would_enable("http", &tracing::Level::ERROR));
        for (word, redis) in [
            ("trace", "debug"),
            ("debug", "debug"),
            ("verbose", "verbose"),
            ("info", "notice"),
            ("NOTICE", "notice"),
            ("warn", "warning"),
            ("warning", "warning"),
            ("error", "warning"),
            ("off", "nothing"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(word.parse::<LogLevels>().unwrap().as_redis_names(), redis, "{word}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        for (text, told) in [
            ("loud", ["'loud'", "error, warn"]),
            ("info,nothing,", ["'nothing'", "target=level"]),
            ("info,sockets=debug", ["'sockets'", "clients"]),
            ("clients=debug", ["no level for all", "info"]),
            ("", ["no level for all", "info"]),
            ("info,clients=", ["''", "error, warn"]),
        ] {
            let why = text.parse::<LogLevels>().unwrap_err();
            assert!(told.iter().all(|part| why.contains(part)), "{text}: {why}");
        }
    }
}
