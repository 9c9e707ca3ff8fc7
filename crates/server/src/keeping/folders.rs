//! Where the stores of a server's shards are.

use crate::backup::check_restored;
use headwater_base::Shard;
use headwater_keep::FORMAT_FILE;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Says among how many shards the keys are divided, where there are several.
const SHARDS_FILE: &str = "headwater-shards";

/// The folder of a shard within `path`: all of it, where there is one shard. Keys lie where their homes are, so the number
/// of shards stays.
pub(super) fn folder_of(path: &Path, me: Shard, shards: u16) -> Result<PathBuf, String> {
    check_restored(path)?;
    match divided_among(path)? {
        Some(other) if other != shards => Err(format!(
            "its keys are divided among {other} shards, and shards is {shards} (allowed: {other})"
        )),
        _ if shards == 1 => Ok(path.to_owned()),
        known => {
            if known.is_none() {
                note_shards(path, shards).map_err(|error| format!("{SHARDS_FILE}: {error}"))?;
            }
            Ok(path.join(format!("shard-{}", me.0)))
        }
    }
}

/// Among how many shards the keys in `path` are divided, if there are any.
///
/// # Errors
/// The folder does not tell.
pub(crate) fn divided_among(path: &Path) -> Result<Option<u16>, String> {
    match fs::read_to_string(path.join(SHARDS_FILE)) {
        Ok(text) => {
            let number = text.trim().parse::<u16>();
            number.map(Some).map_err(|_| format!("{SHARDS_FILE} is damaged: it is no number"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok(path.join(FORMAT_FILE).exists().then_some(1))
        }
        Err(error) => Err(format!("{SHARDS_FILE}: {error}")),
    }
}

/// Notes for good among how many shards the keys in `path` will be divided.
fn note_shards(path: &Path, shards: u16) -> io::Result<()> {
    // Values are nobody else's.
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // Processes of several shards may do so at once: each writes the same.
    let partial = path.join(format!("{SHARDS_FILE}.{}.new", std::process::id()));
    fs::write(&partial, format!("{shards}\n"))?;
    File::open(&partial)?.sync_all()?;
    fs::rename(&partial, path.join(SHARDS_FILE))?;
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_shards_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("data");
        assert_eq!(folder_of(&path, Shard(0), 1), Ok(path.clone()));
        assert_eq!(folder_of(&path, Shard(0), 3), Ok(path.join("shard-0")));
        assert_eq!(folder_of(&path, Shard(2), 3), Ok(path.join("shard-2")));
        for other in [1, 2] {
            let error = folder_of(&path, Shard(0), other).unwrap_err();
            assert!(error.contains("divided among 3 shards") && error.contains("allowed: 3"));
        }
        let whole = place.path().join("whole");
        fs::create_dir(&whole).unwrap();
        fs::write(whole.join(FORMAT_FILE), "").unwrap();
        assert!(folder_of(&whole, Shard(0), 2).unwrap_err().contains("allowed: 1"));
    }
}
