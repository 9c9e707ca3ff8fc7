//! How many shards there are, where that was left to the server.

use crate::config::{Config, ConfigError, SHARDS_MAX, ShardCount};
use crate::keeping::divided_among;
use std::path::Path;

/// A shard needs so much memory at least to be of use, and so much room on disk if any is given.
const BYTES_MIN: u64 = 64 << 20;

/// Settles the number: that of the data folder, whose keys stay divided as they are, or the cores that this process may use, with
/// [`BYTES_MIN`] of the bounds of memory and disk for each at least.
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
    let number = match kept {
        Some(number) => number,
        None => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let cores = u16::try_from(cores.min(SHARDS_MAX)).unwrap_or(1);
            let within = |bound: u64| u16::try_from(bound / BYTES_MIN).unwrap_or(cores);
            let spill = &config.spill;
            let bounds = [
                (config.memory.max.0 > 0, config.memory.max.0),
                (!spill.spill_dir.is_empty(), spill.spill_bytes_max.0),
            ];
            let bounds = bounds.into_iter().filter(|(is_set, _)| *is_set);
            bounds.map(|(_, bound)| within(bound)).fold(cores, u16::min).max(1)
        }
    };
    config.listen.shards = ShardCount::Number(number);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Size;

    #[test]
    fn shards_are_as_many_as_cores_and_memory_and_the_folder_have() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u16;
        let settled = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            settle(&mut config).map(|()| config.listen.shards)
        };
        assert_eq!(settled(&|_| {}), Ok(ShardCount::Number(cores)));
        assert_eq!(
            settled(&|config| config.listen.shards = ShardCount::Number(7)),
            Ok(ShardCount::Number(7))
        );
        assert_eq!(settled(&|config| config.memory.max = Size(2 << 20)), Ok(ShardCount::Number(1)));
        assert_eq!(
            settled(&|config| config.memory.max = Size(1 << 60)),
            Ok(ShardCount::Number(cores))
        );
        let spilling = |config: &mut Config| {
            config.spill.spill_dir = String::from("there");
            config.spill.spill_bytes_max = Size(70 << 20);
        };
        assert_eq!(settled(&spilling), Ok(ShardCount::Number(1)));
        let place = tempfile::tempdir().unwrap();
        let path = place.path().to_str().unwrap();
        let of_folder = |config: &mut Config| config.data.data_dir = path.to_owned();
        assert_eq!(settled(&of_folder), Ok(ShardCount::Number(cores)));
        std::fs::write(place.path().join("headwater-shards"), "5\n").unwrap();
        assert_eq!(settled(&of_folder), Ok(ShardCount::Number(5)));
        std::fs::write(place.path().join("headwater-shards"), "many").unwrap();
        assert!(settled(&of_folder).unwrap_err().to_string().contains("is damaged"));
    }
}
