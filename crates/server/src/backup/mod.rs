//! The folder of a backup, and folders of data that are made of it.
//!
//! ```text
//! DIR/headwater-backup      what is there, as text; written last
//! DIR/shard-0 …             what each shard has read out (`headwater_keep`, `backup.rs`), in pieces (`pieces.rs`)
//! DIR/headwater-placement   which shard has which keys, where partitions have moved
//! ```
//!
//! ```text
//! Headwater backup, format 2
//! taken 1795512600          seconds since 1970
//! shards 3
//! bytes 102400 99328 51200  of each shard
//! placement yes             yes: as the file says; no: as in one process where nothing was moved; slots: as in a cluster
//! ```
//!
//! A folder of data that is not there is filled under another name beside it, and then named. One that is there may be a link, a
//! mount or `.`, and what is above it somebody else's: it is filled in a folder within it, whose entries then move up. As long
//! as that is there, no server begins with the rest.

mod pieces;

pub use pieces::BackupBytes;

use crate::keeping::{restore_placement, restore_shard};
use headwater_base::Shard;
use pieces::{OlderPieces, PieceReader};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = "headwater-backup";
const PLACEMENT: &str = "headwater-placement";
const FORMAT: &str = "Headwater backup, format 2";
/// Within a folder of data that was there: what it is to have, until all of it is in its place.
const RESTORING: &str = "headwater-restoring";

/// A folder that is being filled with a backup.
#[derive(Debug)]
pub struct NewBackup {
    path: PathBuf,
    older: OlderPieces,
    bytes: Vec<BackupBytes>,
    placed: KeyPlacing,
}

/// Which shard has which keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyPlacing {
    /// Those that it has in one process, where nothing was moved.
    Evenly,
    /// Those that a file says.
    AsMoved,
    /// Those of its slots, as in a cluster.
    BySlots,
}

impl KeyPlacing {
    const ALL: [Self; 3] = [Self::Evenly, Self::AsMoved, Self::BySlots];

    /// As the note of a backup has it.
    fn word(self) -> &'static str {
        match self {
            Self::Evenly => "no",
            Self::AsMoved => "yes",
            Self::BySlots => "slots",
        }
    }
}

fn describe(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |why| format!("{}: {why}", path.display())
}

/// Makes a folder that nobody else reads, or takes one that is empty.
fn make_empty(path: &Path) -> Result<(), String> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(describe(path))?;
    check_empty(path)
}

fn check_empty(path: &Path) -> Result<(), String> {
    match is_empty(path)? {
        true => Ok(()),
        false => {
            Err(format!("{} is not empty (allowed: a new folder, or an empty one)", path.display()))
        }
    }
}

/// Whether a folder has nothing; a new file system has a folder of its own.
fn is_empty(path: &Path) -> Result<bool, String> {
    const FILE_SYSTEMS_OWN: &str = "lost+found";
    match fs::read_dir(path) {
        Ok(entries) => {
            let mut names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            let other = names.find(|name| name.as_ref().map_or(true, |it| it != FILE_SYSTEMS_OWN));
            other.transpose().map(|other| other.is_none()).map_err(describe(path))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(describe(path)(error)),
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(describe(path))
}

impl NewBackup {
    /// Whether [`NewBackup::begin`] would take these folders; nothing is made.
    ///
    /// # Errors
    /// The new folder is not empty, or cannot be looked into; or there is no whole backup in `older`.
    pub fn check_folders(path: &Path, older: Option<&Path>) -> Result<(), String> {
        check_empty(path)?;
        older.map_or(Ok(()), |older| Contents::read(older).map(drop))
    }

    /// Begins a backup in a new folder, or in an empty one. What is the same in the backup in the folder `older` is not written again.
    ///
    /// # Errors
    /// The folder `path` is not empty or cannot be made, or there is no whole backup in `older`.
    pub fn begin(
        path: &Path,
        older: Option<&Path>,
        placement: Option<&[u8]>,
    ) -> Result<Self, String> {
        let older = match older {
            Some(older) => OlderPieces::of(older, Contents::read(older)?.bytes.len())?,
            None => OlderPieces::default(),
        };
        make_empty(path)?;
        let placed = match placement {
            Some(bytes) => {
                write_synced(&path.join(PLACEMENT), bytes)?;
                KeyPlacing::AsMoved
            }
            None => KeyPlacing::Evenly,
        };
        Ok(Self { path: path.to_owned(), older, bytes: Vec::new(), placed })
    }

    /// Each shard has the keys of its slots, as in a cluster.
    pub(crate) fn placed_by_slots(self) -> Self {
        Self { placed: KeyPlacing::BySlots, ..self }
    }

    /// Adds the next shard's bytes, which `next` gives part by part. Where that fails, it is as if it had not begun.
    ///
    /// # Errors
    /// `next` has none, or they cannot be written.
    pub fn add_shard(
        &mut self,
        next: impl FnMut() -> Result<Option<Vec<u8>>, String>,
    ) -> Result<(), String> {
        let folder = pieces::folder_of(&self.path, self.bytes.len() as u16);
        let written = pieces::write(&folder, &self.older, next);
        if written.is_err() {
            let _best_effort = fs::remove_dir_all(&folder);
        }
        self.bytes.push(written?);
        Ok(())
    }

    /// Notes that all is there; how many bytes.
    ///
    /// # Errors
    /// That cannot be written.
    pub fn finish(self) -> Result<BackupBytes, String> {
        let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut text = format!("{FORMAT}\ntaken {taken}\nshards {}\nbytes", self.bytes.len());
        // What is written into a string is written.
        self.bytes.iter().for_each(|bytes| _ = write!(text, " {}", bytes.all));
        _ = writeln!(text, "\nplacement {}", self.placed.word());
        let partial = self.path.join(format!("{FILE}.new"));
        write_synced(&partial, text.as_bytes())?;
        let named = fs::rename(&partial, self.path.join(FILE));
        named.and_then(|()| File::open(&self.path)?.sync_all()).map_err(describe(&self.path))?;
        Ok(BackupBytes {
            all: self.bytes.iter().map(|bytes| bytes.all).sum(),
            written: self.bytes.iter().map(|bytes| bytes.written).sum(),
        })
    }
}

/// What a folder says of its backup.
#[derive(PartialEq, Eq, Debug)]
struct Contents {
    bytes: Vec<u64>,
    placed: KeyPlacing,
}

impl Contents {
    fn of_text(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let mut line = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let format = FORMAT.split_once(' ')?;
        (line(format.0)? == format.1).then_some(())?;
        line("taken")?.parse::<u64>().ok()?;
        let shards: usize = line("shards")?.parse().ok()?;
        let bytes: Option<Vec<u64>> = line("bytes")?.split(' ').map(|it| it.parse().ok()).collect();
        let bytes =
            bytes.filter(|bytes| bytes.len() == shards && shards <= usize::from(u16::MAX))?;
        let word = line("placement")?;
        let placed = KeyPlacing::ALL.into_iter().find(|placed| placed.word() == word)?;
        lines.next().is_none().then_some(Self { bytes, placed })
    }

    fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        match fs::read(path.join(FILE)) {
            Ok(bytes) => {
                let contents = str::from_utf8(&bytes).ok().and_then(Self::of_text);
                contents.ok_or_else(|| {
                    format!("{shown}: {FILE} is damaged, or of another format than '{FORMAT}'")
                })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Err(format!(
                "{shown} has no whole backup: there is no file {FILE}, which is written last"
            )),
            Err(error) => Err(describe(path)(error)),
        }
    }
}

/// A shard of a backup: it can be read any number of times.
#[derive(Debug)]
pub(crate) struct BackupShard {
    /// Where it is.
    pub(crate) folder: PathBuf,
    /// How many bytes it has.
    pub(crate) bytes: u64,
}

impl BackupShard {
    /// All shards of the backup in a folder, each with the keys that it has in a cluster.
    ///
    /// # Errors
    /// There is no whole backup, or it is one of several shards of one process, which have other keys.
    pub(crate) fn all_of(backup: &Path) -> Result<Vec<Self>, String> {
        let Contents { bytes, placed } = Contents::read(backup)?;
        if bytes.len() > 1 && placed != KeyPlacing::BySlots {
            return Err(format!(
                "{} is of {} shards in one process, which have other keys than those of a cluster (allowed: a backup of one shard, or of a cluster)",
                backup.display(),
                bytes.len()
            ));
        }
        let shard = |(shard, bytes)| Self { folder: pieces::folder_of(backup, shard), bytes };
        Ok((0..).zip(bytes).map(shard).collect())
    }

    /// Reads it from the start.
    ///
    /// # Errors
    /// It is not all there.
    pub(crate) fn open(&self) -> Result<PieceReader, String> {
        PieceReader::open(&self.folder, self.bytes)
    }
}

/// What was restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoredData {
    /// Keys.
    pub keys: u64,
    /// Those of them that are in no table, which a server shows with `data-plain` alone.
    pub plain_keys: u64,
    /// The number of shards that the keys are divided among, with which the server must be started.
    pub shards: u16,
}

/// Makes a folder of data out of the backup in the folder `backup`. Until all of it is there, no server takes it for one.
///
/// # Errors
/// There is no whole backup, it is damaged, or the folder is not empty or cannot be made; the sentence says which.
pub fn restore(backup: &Path, data: &Path) -> Result<RestoredData, String> {
    let contents = Contents::read(backup)?;
    if contents.bytes.len() > 1 && contents.placed == KeyPlacing::BySlots {
        return Err(format!(
            "{} is of a cluster of {} shards, which have other keys than those of one process (allowed: headwater cluster restore)",
            backup.display(),
            contents.bytes.len()
        ));
    }
    match data.canonicalize() {
        Ok(data) => restore_within(backup, &contents, &data),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            restore_beside(backup, &contents, data)
        }
        Err(error) => Err(describe(data)(error)),
    }
}

/// Whether a folder of data is whole, if it was restored.
///
/// # Errors
/// It may be a part of what it is to have.
pub(crate) fn check_restored(data: &Path) -> Result<(), String> {
    if data.join(RESTORING).exists() {
        return Err(format!(
            "a restore into it is under way, or was cut short: there is {RESTORING} (empty the folder, and restore again)"
        ));
    }
    Ok(())
}

/// Fills a folder that is there, and is empty.
fn restore_within(backup: &Path, contents: &Contents, data: &Path) -> Result<RestoredData, String> {
    let partial = data.join(RESTORING);
    if partial.exists() {
        return Err(format!(
            "{} is there: another restore is under way, or was cut short; empty {} then",
            partial.display(),
            data.display()
        ));
    }
    if !is_empty(data)? {
        return Err(format!(
            "{} is not empty (allowed: a folder that is not there, or an empty one)",
            data.display()
        ));
    }
    // Two restores that begin at the same time: only one of them can make this folder.
    DirBuilder::new().mode(0o700).create(&partial).map_err(describe(&partial))?;
    let restored = restore_into(backup, contents, &partial);
    let Ok(restored) = restored else {
        let _best_effort = fs::remove_dir_all(&partial);
        return restored;
    };
    let in_place = || {
        for entry in fs::read_dir(&partial)? {
            let entry = entry?;
            fs::rename(entry.path(), data.join(entry.file_name()))?;
        }
        // What has moved up is there for good before nothing says any more that it may be a part.
        File::open(data)?.sync_all()?;
        fs::remove_dir(&partial)?;
        File::open(data)?.sync_all()
    };
    in_place().map_err(describe(data))?;
    Ok(restored)
}

/// Makes a folder that is not there.
fn restore_beside(backup: &Path, contents: &Contents, data: &Path) -> Result<RestoredData, String> {
    let name = data.file_name().ok_or_else(|| format!("{} has no name", data.display()))?;
    let partial = data.with_file_name({
        let mut name = OsString::from(name);
        name.push(".restoring");
        name
    });
    if partial.exists() {
        return Err(format!(
            "{} is there: another restore is under way, or was cut short; remove it then",
            partial.display()
        ));
    }
    let restored = restore_into(backup, contents, &partial).and_then(|restored| {
        fs::rename(&partial, data).map_err(describe(data))?;
        Ok(restored)
    });
    if restored.is_err() {
        let _best_effort = fs::remove_dir_all(&partial);
    }
    restored
}

fn restore_into(backup: &Path, contents: &Contents, data: &Path) -> Result<RestoredData, String> {
    make_empty(data)?;
    let shards = contents.bytes.len() as u16;
    let (mut keys, mut plain_keys) = (0, 0);
    for (shard, bytes) in (0..shards).zip(&contents.bytes) {
        let folder = pieces::folder_of(backup, shard);
        let mut from = PieceReader::open(&folder, *bytes)?;
        let restored = restore_shard(data, Shard(shard), shards, &mut from)
            .map_err(|why| format!("{}: {why}", folder.display()))?;
        keys += restored.keys;
        plain_keys += restored.plain_keys;
    }
    if contents.placed == KeyPlacing::AsMoved {
        let path = backup.join(PLACEMENT);
        let bytes = fs::read(&path).map_err(describe(&path))?;
        restore_placement(data, shards, &bytes)
            .map_err(|why| format!("{}: {why}", backup.display()))?;
    }
    Ok(RestoredData { keys, plain_keys, shards })
}
