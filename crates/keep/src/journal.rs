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
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];

/// Bytes before the items of a batch.
const HEAD: usize = 13;

/// One batch, as far as it matters here.
struct Batch {
    number: u64,
    state: Option<State>,
}

/// Bytes of a journal that are read at once, if a batch has no more.
const CHUNK: usize = 256 << 10;

/// A file that is read from its start.
struct Journal {
    file: File,
    /// What was read, of which the batches before `at` are done.
    bytes: Vec<u8>,
    at: usize,
    /// Bytes of the file before those in `bytes`.
    before: u64,
    /// Bytes of the file that were not read yet.
    left: u64,
}

impl Journal {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let left = file.metadata()?.len();
        Ok(Self { file, bytes: Vec::new(), at: 0, before: 0, left })
    }

    /// The bytes from the place where the next batch begins on, at least so many; `None` where the file ends before.
    fn peek(&mut self, count: usize) -> io::Result<Option<&[u8]>> {
        let there = self.bytes.len() - self.at;
        if there < count {
            if (count - there) as u64 > self.left {
                return Ok(None);
            }
            self.bytes.drain(..self.at);
            self.before += core::mem::take(&mut self.at) as u64;
            let more = ((count - there).max(CHUNK) as u64).min(self.left);
            let read = (&mut self.file).take(more).read_to_end(&mut self.bytes)? as u64;
            // It may be shorter than it was.
            self.left = if read == more { self.left - read } else { 0 };
        }
        let rest = &self.bytes[self.at..];
        Ok((rest.len() >= count).then_some(rest))
    }

    /// The next batch; `None` where what comes is none.
    fn next(&mut self) -> io::Result<Option<Batch>> {
        let Some(head) = self.peek(HEAD)?.filter(|head| head[0] == 1) else { return Ok(None) };
        let (items, number) = (little(&head[1..5]), little(&head[5..13]));
        let (mut end, mut state) = (HEAD, None);
        for _ in 0..items {
            let Some(batch) = self.peek(end + 9)? else { return Ok(None) };
            match batch[end] {
                2 => {
                    let Some(batch) = self.peek(end + 21)? else { return Ok(None) };
                    let key = little(&batch[end + 11..end + 13]) as usize;
                    let stored = little(&batch[end + 17..end + 21]) as usize;
                    let (key_at, value_at) = (end + 21, end + 21 + key);
                    end = value_at + stored;
                    let Some(batch) = self.peek(end)? else { return Ok(None) };
                    if batch[key_at..value_at] == *STATE {
                        state = State::read(&batch[value_at..end]).or(state);
                    }
                }
                4 => end += 9,
                _ => return Ok(None),
            }
        }
        let Some(batch) = self.peek(end + 13)? else { return Ok(None) };
        let tail = &batch[end..end + 13];
        let ends = tail[0] == 3 && tail[9..] == TRAILER;
        let is_whole = ends && little(&tail[1..9]) == xxh3_64(&batch[HEAD..end]);
        if is_whole {
            self.at += end + 13;
        }
        Ok(is_whole.then_some(Batch { number, state }))
    }

    /// Bytes of the batches that were read.
    fn whole(&self) -> u64 {
        self.before + self.at as u64
    }
}

/// A number from its bytes, the last ones first.
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Whether anything was written behind the whole batches of a file, which is made longer in advance.
fn has_rest(path: &Path, whole: u64) -> io::Result<bool> {
    let mut file = File::open(path)?;
    // There are file systems that take for a hole what was written and is not on the disk yet.
    file.sync_data()?;
    let (mut at, mut part) = (whole, vec![0; 64 << 10]);
    loop {
        // What was never written is passed over, where the file system knows it: most of a file is that.
        match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(next) => at = next,
            Err(Errno::NXIO) => return Ok(false),
            Err(_) => _ = file.seek(SeekFrom::Start(at))?,
        }
        let count = file.read(&mut part)?;
        // All of a part at once: most are long, and hold nothing.
        if count == 0 || part[..count].iter().fold(0, |all, &byte| all | byte) != 0 {
            return Ok(count > 0);
        }
        at += count as u64;
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
    for (at, path) in journals.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().display();
        let io = |error: io::Error| format!("the journal {name}: {error}");
        let mut journal = Journal::open(path).map_err(io)?;
        while let Some(batch) = journal.next().map_err(io)? {
            let least = batch.state.map_or(0, |state| state.number);
            if batch.number < least || last.is_some_and(|last| last >= least.max(1)) {
                return Err(format!("the journal {name} is damaged: its batches are out of order"));
            }
            last = Some(batch.number);
            end.position = batch.state.map(|state| state.position).or(end.position);
        }
        let whole = journal.whole();
        if has_rest(path, whole).map_err(io)? {
            if at + 1 < journals.len() {
                return Err(format!("the journal {name} is damaged behind its byte {whole}"));
            }
            end.torn = Some((path.clone(), whole));
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_behind_a_hole_is_a_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.jnl");
        std::fs::write(&path, [7; 10]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let rests = |whole| has_rest(&path, whole).unwrap();
        assert!(rests(9) && !rests(10) && !rests(500_000) && !rests(1 << 20) && !rests(2 << 20));
        std::os::unix::fs::FileExt::write_all_at(&file, &[1], 700_001).unwrap();
        assert!(rests(10) && rests(700_001) && !rests(700_002));
    }
}
