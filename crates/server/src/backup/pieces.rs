//! What a shard has read out, in files: divided where its bytes say so, and shared with an older backup where they are the same.
//!
//! ```text
//! DIR/shard-0/000000-d2a98b26625eee7b   number and hash of each piece, from the first on
//! ```
//!
//! A piece ends where a hash of the last bytes says (FastCDC, Xia et al., USENIX ATC 2016). So a change moves the ends of the pieces that have it, and no
//! others: what is behind it is the same pieces again. A piece that the older backup has is a hard link to that file, after its
//! bytes have been compared; the older backup may be removed at any time.

use super::describe;
use fastcdc::v2020::StreamCDC;
use headwater_base::hash::stable_hash;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Error, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Bytes of a piece: at least, about, and at most.
const PIECE_BYTES: (usize, usize, usize) = (256 << 10, 1 << 20, 4 << 20);
/// The seed of the hashes: part of the format.
const SEED: u64 = 0x7069_6563_6573_0002;

pub(super) fn folder_of(backup: &Path, shard: u16) -> PathBuf {
    backup.join(format!("shard-{shard}"))
}

/// What the name of a piece says: its number and its hash.
fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (number, hash) = name.split_once('-')?;
    (hash.len() == 16).then_some(())?;
    Some((number.parse().ok()?, u64::from_str_radix(hash, 16).ok()?))
}

/// The pieces in a folder: their numbers, hashes and files.
fn list(folder: &Path) -> Result<Vec<(u64, u64, PathBuf)>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(describe(folder))? {
        let entry = entry.map_err(describe(folder))?;
        if let Some((number, hash)) = entry.file_name().to_str().and_then(parse_name) {
            found.push((number, hash, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// The pieces of an older backup, by their hashes.
#[derive(Debug, Default)]
pub(super) struct OlderPieces(HashMap<u64, PathBuf>);

impl OlderPieces {
    /// Those of the backup in the folder `backup`, which has so many shards.
    pub(super) fn of(backup: &Path, shards: usize) -> Result<Self, String> {
        let mut found = HashMap::new();
        for shard in 0..shards {
            let pieces = list(&folder_of(backup, shard as u16))?;
            found.extend(pieces.into_iter().map(|(_, hash, path)| (hash, path)));
        }
        Ok(Self(found))
    }

    /// Makes `path` a name of the file that has these bytes, if there is one. Where that cannot be (another file system, too many links), there is none.
    fn link(&self, hash: u64, bytes: &[u8], path: &Path) -> bool {
        let Some(older) = self.0.get(&hash) else { return false };
        fs::read(older).is_ok_and(|found| found == bytes) && fs::hard_link(older, path).is_ok()
    }
}

/// Bytes of pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackupBytes {
    /// Of all pieces.
    pub all: u64,
    /// Of those that were written, since the older backup does not have them.
    pub written: u64,
}

/// Bytes that come one part at a time.
struct PartsReader<F> {
    next: F,
    part: Vec<u8>,
    at: usize,
    /// Why there are no more.
    failed: Option<String>,
}

impl<F: FnMut() -> Result<Option<Vec<u8>>, String>> Read for PartsReader<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.part.len() {
            self.at = 0;
            self.part = match (self.next)() {
                Ok(part) => part.unwrap_or_default(),
                Err(why) => {
                    self.failed = Some(why);
                    return Err(Error::other("the rest cannot be had"));
                }
            };
        }
        let count = (&self.part[self.at..]).read(into)?;
        self.at += count;
        Ok(count)
    }
}

/// Writes the bytes that `next` gives into pieces in a new folder; how many.
pub(super) fn write(
    folder: &Path,
    older: &OlderPieces,
    next: impl FnMut() -> Result<Option<Vec<u8>>, String>,
) -> Result<BackupBytes, String> {
    DirBuilder::new().mode(0o700).create(folder).map_err(describe(folder))?;
    let mut parts = PartsReader { next, part: Vec::new(), at: 0, failed: None };
    let (least, usual, most) = PIECE_BYTES;
    let mut bytes = BackupBytes::default();
    let mut cut_short = None;
    for (number, piece) in StreamCDC::new(&mut parts, least, usual, most).enumerate() {
        let piece = match piece {
            Ok(piece) => piece.data,
            Err(why) => {
                cut_short = Some(why.to_string());
                break;
            }
        };
        let hash = stable_hash(SEED, &piece);
        let path = folder.join(format!("{number:06}-{hash:016x}"));
        bytes.all += piece.len() as u64;
        if !older.link(hash, &piece, &path) {
            super::write_synced(&path, &piece)?;
            bytes.written += piece.len() as u64;
        }
    }
    if let Some(why) = parts.failed.or(cut_short) {
        return Err(why);
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(describe(folder))?;
    Ok(bytes)
}

/// Reads what a shard has read out, piece by piece.
#[derive(Debug)]
pub(crate) struct PieceReader {
    pieces: std::vec::IntoIter<(u64, u64, PathBuf)>,
    piece: Vec<u8>,
    at: usize,
}

impl PieceReader {
    /// Of the pieces in a folder, which have so many bytes together.
    pub(super) fn open(folder: &Path, bytes: u64) -> Result<Self, String> {
        let pieces = list(folder)?;
        let mut found = 0;
        for (at, (number, _, path)) in (0..).zip(&pieces) {
            if *number != at {
                return Err(format!("{}: there is no piece {at}", folder.display()));
            }
            found += fs::metadata(path).map_err(describe(path))?.len();
        }
        if found != bytes {
            return Err(format!("{}: it has {found} bytes, and had {bytes}", folder.display()));
        }
        Ok(Self { pieces: pieces.into_iter(), piece: Vec::new(), at: 0 })
    }
}

impl Read for PieceReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            let Some((_, hash, path)) = self.pieces.next() else { return Ok(0) };
            let named = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
            self.piece.clear();
            self.at = 0;
            let mut file = File::open(&path).map_err(|why| Error::new(why.kind(), named(&why)))?;
            file.read_to_end(&mut self.piece).map_err(|why| Error::new(why.kind(), named(&why)))?;
            if stable_hash(SEED, &self.piece) != hash {
                return Err(Error::new(ErrorKind::InvalidData, named(&"it is damaged")));
            }
        }
        let count = (&self.piece[self.at..]).read(into)?;
        self.at += count;
        Ok(count)
    }
}
