//! Settings that are to be the same at all nodes, as each node tells them when it starts.
//!
//! Any node of a shard may own its data next: what one takes, and joins and functions may do, is to be no more at one than at the other. A node writes its values to the bucket, and
//! `headwater cluster status` warns where they differ.

use super::formats;
use headwater_config::Config;
use headwater_config::settings;
use headwater_log::Bucket;
use std::collections::BTreeMap;

/// What the key of a node's settings begins with.
pub(crate) const SETTINGS_KEY: &str = "settings.";

/// The settings that are compared.
const COMPARED: [&str; 17] = [
    "cluster-balance",
    "cluster-link-tls",
    "cluster-replicas",
    "cluster-snapshot-bytes",
    "function-memory-bytes-max",
    "function-milliseconds-max",
    "function-module-bytes-max",
    "function-reply-bytes-max",
    "function-write-bytes-max",
    "functions-max",
    "join-depth-max",
    "joins-max",
    "key-bytes-max",
    "slots-max",
    "sources-max",
    "transaction-commands-max",
    "value-bytes-max",
];

/// A line for each setting: its name and its value.
fn text(config: &Config) -> String {
    let found = COMPARED.iter().filter_map(|name| settings::find(name));
    found.map(|setting| format!("{} {}\n", setting.name, (setting.get)(config))).collect()
}

/// What a node has told.
pub(crate) fn read(bytes: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(bytes);
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Writes this node's settings, where they are not there. Who compares them does without those that could not be written.
pub(super) fn tell(bucket: &mut dyn Bucket, tags: u64, config: &Config) {
    let key = format!("{SETTINGS_KEY}{}", config.cluster.cluster_node);
    formats::write(bucket, tags, key, text(config).into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_compared_is_a_setting_and_is_told() {
        let config = Config::default();
        let told = read(text(&config).as_bytes());
        assert_eq!(told.len(), COMPARED.len());
        assert_eq!(told["value-bytes-max"], config.limits.value_bytes_max.to_string());
    }
}
