//! Which log a folder is a copy of, as a file beside the store says it.
//!
//! ```text
//! DIR/headwater-log    stream HW_shop_0
//!                      created 1764486000123456789
//! ```
//!
//! It is written when a folder is new, and where the record that the folder ends with was found in a log; nothing else makes a folder the copy of one. A
//! folder without it was made by an earlier version, or out of a snapshot.

use crate::files::absent_or;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// The name of the file.
pub(crate) const ORIGIN_FILE: &str = "headwater-log";

/// A log that a folder may be a copy of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogOrigin {
    /// The name of its stream, which says cluster and shard.
    pub stream: String,
    /// When the stream was made, in nanoseconds since 1970: one that is made anew has another time.
    pub created: u64,
}

impl LogOrigin {
    /// The log that the folder `path` names; `None`: it names none.
    ///
    /// # Errors
    /// What is there cannot be read.
    pub fn of(path: &Path) -> Result<Option<Self>, String> {
        let mut text = String::new();
        absent_or(fs::read_to_string(path.join(ORIGIN_FILE)).map(|read| text = read))
            .map_err(|error| format!("{ORIGIN_FILE}: {error}"))?;
        let mut lines = text.lines();
        let mut next = |word: &str| lines.next()?.strip_prefix(word);
        let found = next("stream ").zip(next("created ").and_then(|text| text.parse().ok()));
        match found {
            Some((stream, created)) => Ok(Some(Self { stream: String::from(stream), created })),
            None if text.is_empty() => Ok(None),
            None => Err(format!(
                "{ORIGIN_FILE} does not say 'stream NAME' and 'created NANOSECONDS' (remove it, and it is written again when the log was found to be this folder's)"
            )),
        }
    }

    /// Has the folder `path` name this log.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let write = || -> io::Result<()> {
            let partial = path.join(format!("{ORIGIN_FILE}.new"));
            fs::write(&partial, format!("stream {}\ncreated {}\n", self.stream, self.created))?;
            File::open(&partial)?.sync_all()?;
            fs::rename(&partial, path.join(ORIGIN_FILE))?;
            File::open(path)?.sync_all()
        };
        write().map_err(|error| format!("{ORIGIN_FILE}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_its_log_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(LogOrigin::of(path), Ok(None));
        for created in [1, u64::MAX] {
            let origin = LogOrigin { stream: String::from("HW_a_0"), created };
            origin.write(path).unwrap();
            assert_eq!(LogOrigin::of(path), Ok(Some(origin)));
        }
        for bad in ["stream HW_a_0\n", "created 1\nstream x\n", "stream x\ncreated y\n", "\n"] {
            fs::write(path.join(ORIGIN_FILE), bad).unwrap();
            assert!(LogOrigin::of(path).unwrap_err().contains(ORIGIN_FILE), "{bad}");
        }
        fs::write(path.join(ORIGIN_FILE), b"\xff").unwrap();
        assert!(LogOrigin::of(path).unwrap_err().contains(ORIGIN_FILE));
    }
}
