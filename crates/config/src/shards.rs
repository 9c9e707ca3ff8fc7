//! The number of shards, given or left to the server, and which of them a node is for.

use super::check::SHARDS_MAX;
use crate::number_or_word::number_or_word;
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

number_or_word!(ShardCount);

/// The shards of its cluster that a node is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NodeShards {
    /// All of them: the node has a process for each.
    #[default]
    All,
    /// This one.
    One(u16),
}

impl FromStr for NodeShards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let wrong = || format!("'{text}' (allowed: 0 to {}, or all)", SHARDS_MAX - 1);
        text.parse().map(Self::One).map_err(|_| wrong())
    }
}

impl fmt::Display for NodeShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::One(shard) => write!(f, "{shard}"),
        }
    }
}

number_or_word!(NodeShards);

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

    #[test]
    fn a_node_is_for_one_shard_or_for_all() {
        let of = |line: &str| Config::parse(line).map(|config| config.cluster.cluster_shard);
        assert_eq!(of("[cluster]\ncluster-shard = 2"), Ok(NodeShards::One(2)));
        assert_eq!(of("[cluster]\ncluster-shard = \"all\""), Ok(NodeShards::All));
        assert_eq!(of(""), Ok(NodeShards::All));
        let error = of("[cluster]\ncluster-shard = \"some\"").unwrap_err().to_string();
        assert!(error.contains("allowed: 0 to 255, or all"), "{error}");
        for shards in [NodeShards::All, NodeShards::One(7)] {
            assert_eq!(shards.to_string().parse(), Ok(shards));
        }
    }
}
