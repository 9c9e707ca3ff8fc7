//! A look at the store's journals before the store reads them.
//!
//! The store takes the first broken batch for the end, cuts the file there, and believes the sequence number of a
//! batch, which no checksum covers. So a flipped bit could hide later batches, or put one of them into another
//! order. Each of our batches therefore has the state, and in it the number that the next batch would have: a batch's own
//! number must be between that and the one that the batch behind it tells.
//!
//! ```text
//! batch    0x01 items:4 number:8  { item }  0x03 check:8 "FJL" 0x03
//! item     0x02 kind compression keyspace:8 key-bytes:2 value-bytes:4 stored-bytes:4 key value
//!          0x04 keyspace:8
//! ```

use crate::record::{STATE, State};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];

/// One batch, as far as it matters here.
struct Batch {
    number: u64,
    state: Option<State>,
}

/// A file that is read from its start, and how much of it is left.
struct Journal {
    reader: BufReader<File>,
    left: u64,
}

impl Journal {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let left = file.metadata()?.len();
        Ok(Self { reader: BufReader::with_capacity(64 << 10, file), left })
    }

    /// The next bytes, behind what `into` has; `None` where the file ends before.
    fn take(&mut self, count: u64, into: &mut Vec<u8>) -> io::Result<Option<()>> {
        if count > self.left {
            return Ok(None);
        }
        self.left -= count;
        let taken = (&mut self.reader).take(count).read_to_end(into)? as u64;
        Ok((taken == count).then_some(()))
    }

    /// The next batch; `None` where what comes is none.
    fn next(&mut self, bytes: &mut Vec<u8>) -> io::Result<Option<Batch>> {
        bytes.clear();
        if self.take(13, bytes)?.is_none() || bytes[0] != 1 {
            return Ok(None);
        }
        let (items, number) = (little(&bytes[1..5]), little(&bytes[5..13]));
        let (mut hasher, mut state) = (Xxh3::new(), None);
        for _ in 0..items {
            bytes.clear();
            if self.take(9, bytes)?.is_none() {
                return Ok(None);
            }
            match bytes[0] {
                2 => {
                    if self.take(12, bytes)?.is_none() {
                        return Ok(None);
                    }
                    let key = little(&bytes[11..13]);
                    let stored = little(&bytes[17..21]);
                    if self.take(key + stored, bytes)?.is_none() {
                        return Ok(None);
                    }
                    let (key, value) = bytes[21..].split_at(key as usize);
                    if key == STATE {
                        state = State::read(value).or(state);
                    }
                }
                4 => {}
                _ => return Ok(None),
            }
            hasher.update(bytes);
        }
        bytes.clear();
        let ends = self.take(13, bytes)?.is_some() && bytes[0] == 3 && bytes[9..] == TRAILER;
        let is_whole = ends && little(&bytes[1..9]) == hasher.digest();
        Ok(is_whole.then_some(Batch { number, state }))
    }
}

/// A number from its bytes, the last ones first.
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Whether anything was written behind the whole batches of a file, which is made longer in advance.
fn has_rest(path: &Path, whole: u64) -> io::Result<bool> {
    let mut reader = BufReader::with_capacity(64 << 10, File::open(path)?);
    reader.seek(SeekFrom::Start(whole))?;
    loop {
        let part = reader.fill_buf()?;
        if part.is_empty() || part.iter().any(|&byte| byte != 0) {
            return Ok(!part.is_empty());
        }
        let count = part.len();
        reader.consume(count);
    }
}

/// The journals, in order.
fn journals(store: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(store)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jnl")
            && let Some(number) = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
        {
            found.push((number, path));
        }
    }
    found.sort_by_key(|&(number, _): &(u64, PathBuf)| number);
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Empties the journals: everything in them is in tables.
pub(crate) fn empty(store: &Path) -> io::Result<()> {
    for path in journals(store)? {
        let file = File::options().write(true).open(path)?;
        file.set_len(0)?;
        file.sync_all()?;
    }
    Ok(())
}

/// What the journals end with.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The last position in them, if there is one.
    pub(crate) position: Option<u64>,
    /// A batch that was cut short: in which file, and where it begins.
    torn: Option<(PathBuf, u64)>,
}

impl End {
    /// Removes what was cut short, and what is behind it: where the disk has some blocks of it and not others, the store would not
    /// open. It was never safe.
    pub(crate) fn mend(&self) -> Result<(), String> {
        let Some((path, whole)) = &self.torn else { return Ok(()) };
        let file = File::options().write(true).open(path);
        let done = file.and_then(|file| file.set_len(*whole).and_then(|()| file.sync_all()));
        done.map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Looks where the journals end.
///
/// # Errors
/// A journal cannot be read, or is not as it was written in a place where a crash cannot have cut it.
pub(crate) fn check(store: &Path) -> Result<End, String> {
    let journals = journals(store).map_err(|error| error.to_string())?;
    let (mut end, mut last) = (End::default(), None);
    let mut bytes = Vec::new();
    for (at, path) in journals.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().display();
        let io = |error: io::Error| format!("the journal {name}: {error}");
        let mut journal = Journal::open(path).map_err(io)?;
        let length = journal.left;
        let mut whole = 0;
        while let Some(batch) = journal.next(&mut bytes).map_err(io)? {
            whole = length - journal.left;
            let least = batch.state.map_or(0, |state| state.number);
            if batch.number < least || last.is_some_and(|last| last >= least.max(1)) {
                return Err(format!("the journal {name} is damaged: its batches are out of order"));
            }
            last = Some(batch.number);
            end.position = batch.state.map(|state| state.position).or(end.position);
        }
        if has_rest(path, whole).map_err(io)? {
            if at + 1 < journals.len() {
                return Err(format!("the journal {name} is damaged behind its byte {whole}"));
            }
            end.torn = Some((path.clone(), whole));
        }
    }
    Ok(end)
}
