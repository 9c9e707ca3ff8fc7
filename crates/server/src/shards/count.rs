//! How many shards there are, where that was left to the server.

use crate::keeping::divided_among;
use headwater_config::{Config, ConfigError, ShardCount};
use std::path::Path;

/// Settles the number: that of the data folder, whose keys stay divided as they are, or one. (One shard does most for its CPU:
/// `docs/shards.md` says when several pay.)
///
/// # Errors
/// The data folder does not tell.
pub(crate) fn settle(config: &mut Config) -> Result<(), ConfigError> {
    if config.listen.shards != ShardCount::Auto {
        return Ok(());
    }
    let path = &config.data.data_dir;
    let kept = if path.is_empty() {
        None
    } else {
        divided_among(Path::new(path))
            .map_err(|why| ConfigError(format!("data-dir '{path}': {why}")))?
    };
    config.listen.shards = ShardCount::Number(kept.unwrap_or(1));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_as_many_as_the_folder_has_or_one() {
        let settled = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            settle(&mut config).map(|()| config.listen.shards)
        };
        assert_eq!(settled(&|_| {}), Ok(ShardCount::Number(1)));
        let given = settled(&|config| config.listen.shards = ShardCount::Number(7));
        assert_eq!(given, Ok(ShardCount::Number(7)));
        let place = tempfile::tempdir().unwrap();
        let path = place.path().to_str().unwrap();
        let of_folder = |config: &mut Config| config.data.data_dir = path.to_owned();
        assert_eq!(settled(&of_folder), Ok(ShardCount::Number(1)));
        std::fs::write(place.path().join("headwater-shards"), "5\n").unwrap();
        assert_eq!(settled(&of_folder), Ok(ShardCount::Number(5)));
        std::fs::write(place.path().join("headwater-shards"), "many").unwrap();
        assert!(settled(&of_folder).unwrap_err().to_string().contains("is damaged"));
    }
}
