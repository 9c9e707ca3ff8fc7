//! The folder around the store: whose it is, what format it has, how far it was safe, and whether its manifests
//! are as they were written.
//!
//! ```text
//! DIR/headwater-data   the format, as text; written last when a folder is made
//! DIR/lock             held by the server that uses the folder
//! DIR/safe             the last operation that was made safe: position:8 check:8
//! DIR/turns-0, -1      turns that the store may not have yet: see `log.rs`
//! DIR/store            fjall's files
//! DIR/headwater-log    of which log it is a copy: see `origin.rs`
//! DIR/discarded/…      all of the above, of a copy of a log that turned out to be none
//! ```
//!
//! Where the journals end in a broken batch, a crash may have cut a write short, or what was safe is damaged. `safe`
//! tells the two apart: whatever was synced must be there. It is overwritten in place after
//! each sync, and not synced itself: an old number is too low, which only makes the check weaker, and it can
//! be older only after a failure of the whole machine.

use crate::describe;
use crate::log::Log;
use crate::origin::ORIGIN_FILE;
use crate::writer::Writer;
use headwater_base::hash::stable_hash;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// What a folder with data has; it says how that is written.
pub const FORMAT_FILE: &str = "headwater-data";
const LOCK_FILE: &str = "lock";
const SAFE_FILE: &str = "safe";
const STORE_FOLDER: &str = "store";
const DISCARDED_FOLDER: &str = "discarded";
/// What the format file says.
const FORMAT: &str = "Headwater data, format 1\n";
/// The file that a fjall database is known by.
const STORE_MARKER: &str = "version";
/// The seed of the checksum in `safe`.
const SEED: u64 = 0x7361_6665;

/// A folder that is ours as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Whether keys were kept here before.
    pub(crate) is_new: bool,
    _lock: File,
}

impl Folder {
    /// Takes the folder, and makes it if it is not there.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let io = |error: io::Error| error.to_string();
        // Values, and the URLs of sources, are nobody else's.
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        let lock = File::options().create(true).append(true).open(path.join(LOCK_FILE));
        let lock = lock.map_err(io)?;
        lock.try_lock().map_err(|_| String::from("another process uses this folder"))?;
        let store = path.join(STORE_FOLDER);
        let is_new = match fs::read(path.join(FORMAT_FILE)) {
            Ok(text) if text == FORMAT.as_bytes() => false,
            Ok(text) => {
                let text = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
                return Err(format!(
                    "this server reads the format '{}', but {FORMAT_FILE} says '{}'",
                    FORMAT.trim_end(),
                    text.trim_end()
                ));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(format!("{FORMAT_FILE}: {error}")),
        };
        let has_store = match fs::read(store.join(STORE_MARKER)) {
            // Of a folder whose making a failure of the machine cut short the name may be there, and not the bytes.
            Ok(marker) => !is_new || marker.iter().any(|&byte| byte != 0),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(format!("{STORE_FOLDER}/{STORE_MARKER}: {error}")),
        };
        match (is_new, has_store) {
            (false, false) => {
                return Err(format!(
                    "{STORE_FOLDER}/{STORE_MARKER} is missing: the data is damaged"
                ));
            }
            // A folder whose making was cut short: nothing was ever acknowledged from it.
            (true, false) if store.exists() => fs::remove_dir_all(&store).map_err(io)?,
            _ => {}
        }
        if is_new {
            // Also in a folder that was there already, and that others may look into.
            DirBuilder::new().recursive(true).mode(0o700).create(&store).map_err(io)?;
        }
        Ok(Self { path: path.to_owned(), is_new, _lock: lock })
    }

    /// Removes what is in the folder, which is as new then.
    pub(crate) fn empty(&mut self) -> io::Result<()> {
        // Without it the rest is the beginning of a folder, whose making was cut short.
        absent_or(fs::remove_file(self.path.join(FORMAT_FILE)))?;
        File::open(&self.path)?.sync_all()?;
        absent_or(fs::remove_dir_all(self.store()))?;
        let files = [SAFE_FILE, ORIGIN_FILE].map(|name| self.path.join(name));
        for path in crate::log::paths(&self.path).into_iter().chain(files) {
            absent_or(fs::remove_file(path))?;
        }
        self.is_new = true;
        DirBuilder::new().recursive(true).mode(0o700).create(self.store())
    }

    /// Moves what is in the folder into one within it, whose earlier content is removed; gives that one. The folder is as new then.
    fn discard(&mut self) -> io::Result<PathBuf> {
        let aside = self.path.join(DISCARDED_FOLDER);
        absent_or(fs::remove_dir_all(&aside))?;
        DirBuilder::new().mode(0o700).create(&aside)?;
        // Cut short anywhere, what is left is a folder that opens: without its format it is as new, and `safe` speaks of turns that
        // come behind it.
        let files = [FORMAT_FILE, SAFE_FILE].map(|name| self.path.join(name));
        let turns = crate::log::paths(&self.path);
        for path in
            files.into_iter().chain(turns).chain([self.store(), self.path.join(ORIGIN_FILE)])
        {
            let name = path.file_name().unwrap_or_default();
            absent_or(fs::rename(&path, aside.join(name)))?;
            File::open(&self.path)?.sync_all()?;
        }
        File::open(&aside)?.sync_all()?;
        self.is_new = true;
        DirBuilder::new().recursive(true).mode(0o700).create(self.store())?;
        Ok(aside)
    }

    /// Where the store's files are.
    pub(crate) fn store(&self) -> PathBuf {
        self.path.join(STORE_FOLDER)
    }

    /// Has `writer` write and sync what a crash of the process has left behind; gives the files for what comes now.
    ///
    /// # Errors
    /// The files cannot be used, or the store cannot be written.
    pub(crate) fn recover_turns(&self, writer: &mut Writer) -> Result<Log, String> {
        let (position, writer) = (writer.state.position, core::cell::RefCell::new(writer));
        let each = |turn| writer.borrow_mut().recover(turn);
        let settled = || {
            let mut writer = writer.borrow_mut();
            if writer.state.position == position {
                return Ok(());
            }
            writer.sync().map_err(|error| describe(&error))
        };
        Log::open(&self.path, position, each, settled)
    }

    /// Notes that the folder is complete.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let partial = self.path.join(format!("{FORMAT_FILE}.new"));
        fs::write(&partial, FORMAT)?;
        File::open(&partial)?.sync_all()?;
        fs::rename(&partial, self.path.join(FORMAT_FILE))?;
        File::open(&self.path)?.sync_all()
    }

    /// Bytes that the file system has left.
    pub(crate) fn bytes_free(&self) -> io::Result<u64> {
        let known = rustix::fs::statvfs(&self.path)?;
        Ok(known.f_bavail.saturating_mul(known.f_frsize))
    }

    /// The file that says how far the data was safe, and what it says.
    pub(crate) fn safe(&self) -> io::Result<(DurableMark, Option<u64>)> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let safe = DurableMark { file: file.open(self.path.join(SAFE_FILE))? };
        let told = safe.read();
        Ok((safe, told))
    }

    /// Checks the manifests, which say what files make up each tree: the store itself trusts them.
    ///
    /// # Errors
    /// Names the one that is damaged.
    pub(crate) fn check_manifests(&self) -> Result<(), String> {
        let trees = match fs::read_dir(self.store().join("keyspaces")) {
            Ok(trees) => trees,
            Err(error) if error.kind() == ErrorKind::NotFound && self.is_new => return Ok(()),
            Err(error) => return Err(format!("{STORE_FOLDER}/keyspaces: {error}")),
        };
        for tree in trees {
            let tree = tree.map_err(|error| error.to_string())?.path();
            check_manifest(&tree).map_err(|why| {
                let name = tree.strip_prefix(&self.path).unwrap_or(&tree).display();
                format!("{name}: {why}")
            })?;
        }
        Ok(())
    }
}

/// What was done to a file that may be absent.
pub(crate) fn absent_or(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// Moves the copy of a log in the folder `path` into a folder within it, in place of one that was moved there before; gives where that is. `path` is as a
/// new one then.
///
/// # Errors
/// Another process uses the folder, or it cannot be written.
pub fn discard_copy(path: &Path) -> Result<PathBuf, String> {
    Folder::open(path)?.discard().map_err(|error| format!("{}: {error}", path.display()))
}

/// Checks one tree's: `current` names the manifest, and has its checksum.
fn check_manifest(tree: &Path) -> Result<(), String> {
    let current = match fs::read(tree.join("current")) {
        Ok(current) => current,
        // Without one the tree is being made, or being removed.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let damaged = || String::from("the file 'current' is damaged");
    let (number, rest) = current.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (check, kind) = rest.split_first_chunk::<16>().ok_or_else(damaged)?;
    if kind != [0] {
        return Err(damaged());
    }
    let name = format!("v{}", u64::from_le_bytes(*number));
    let bytes = fs::read(tree.join(&name)).map_err(|error| format!("{name}: {error}"))?;
    if xxh3_128(&bytes) != u128::from_le_bytes(*check) {
        return Err(format!("the manifest {name} is not as it was written"));
    }
    Ok(())
}

/// The file that says how far the data was safe.
#[derive(Debug)]
pub(crate) struct DurableMark {
    file: File,
}

impl DurableMark {
    fn read(&self) -> Option<u64> {
        let mut record = [0; 16];
        self.file.read_exact_at(&mut record, 0).ok()?;
        let (position, check) = record.split_first_chunk::<8>()?;
        (stable_hash(SEED, position).to_le_bytes() == *check).then(|| u64::from_le_bytes(*position))
    }

    /// Notes that everything up to `position` is safe.
    pub(crate) fn write(&self, position: u64) -> io::Result<()> {
        let position = position.to_le_bytes();
        let mut record = [0; 16];
        record[..8].copy_from_slice(&position);
        record[8..].copy_from_slice(&stable_hash(SEED, &position).to_le_bytes());
        self.file.write_all_at(&record, 0)
    }
}
