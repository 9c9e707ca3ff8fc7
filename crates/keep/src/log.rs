//! Turns in the system's hands: what a crash of the process cannot take back, long before the writer has come to it.
//!
//! At the end of each turn the shard's thread writes the turn behind those before it, with one system call, and lets replies go that
//! tell of it. The system keeps what it was given when the process ends, however that comes. A turn is of no use here any more once the store
//! has it; so there are two files, and when the one in use is long and the store has all that is in the other, they
//! change places, and the other one is written over from its start. Nothing here is ever synced but at start: a failure of the machine may
//! take it all, and what is safe from that is the store's to say.
//!
//! At start the turns that the store lacks are written to it, in order, as far as they follow it without a gap. A record
//! that was cut short ends them: nobody was told of it.
//!
//! ```text
//! record    check:8 run:8 last:8 entries:8 bytes:8  { kind:1 key:4 record:4 }  bytes…
//! ```
//!
//! `run` is another number at each start, so that records of an earlier run, which are written over, are not
//! taken for what follows. Within a run positions tell the same.
//!
//! # Cost
//! A copy of the turn and one `pwrite`; two where the turn is long.

use crate::turn::{ENTRY_BYTES, Turn};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// The files are called so, with a number behind it.
const NAME: &str = "turns-";
/// A file as long as this gives its place to the other.
const FULL: u64 = 1 << 20;
/// One longer than this is cut when it is used again.
const LONG: u64 = 8 << 20;
/// The operations of a turn are copied behind their head if they have no more bytes than this.
const COPIED_MAX: usize = 64 << 10;
/// Bytes before the entries.
const HEAD: usize = 40;

/// Where the two files of a folder are.
pub(crate) fn paths(folder: &Path) -> [PathBuf; 2] {
    [0, 1].map(|number| folder.join(format!("{NAME}{number}")))
}

/// One of the two.
#[derive(Debug)]
struct Part {
    file: File,
    /// Where the next record goes.
    at: u64,
    /// The last operation in it.
    last: u64,
}

/// The files.
#[derive(Debug)]
pub(crate) struct Log {
    run: u64,
    /// The first one is in use.
    parts: [Part; 2],
    head: Vec<u8>,
}

/// A turn that was found, and where it belongs.
struct Record {
    run: u64,
    turn: Turn,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The next record; `None` where what comes is none.
fn read_record(reader: &mut impl Read, left: &mut u64) -> io::Result<Option<Record>> {
    let mut head = [0; HEAD];
    match reader.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let [run, last, entries, bytes] =
        [(8, 16), (16, 24), (24, 32), (32, 40)].map(|(from, to)| number(&head[from..to]));
    let entries = entries.saturating_mul(ENTRY_BYTES as u64);
    *left = left.saturating_sub(HEAD as u64);
    if entries == 0 || entries.saturating_add(bytes) > *left {
        return Ok(None);
    }
    *left -= entries + bytes;
    let mut rest = vec![0; (entries + bytes) as usize];
    reader.read_exact(&mut rest)?;
    let mut hasher = Xxh3::new();
    hasher.update(&head[8..]);
    hasher.update(&rest);
    if hasher.digest() != number(&head[..8]) {
        return Ok(None);
    }
    let (entries, bytes) = rest.split_at(entries as usize);
    Ok(Turn::decode(last, entries, bytes).map(|turn| Record { run, turn }))
}

/// The records of a file from its start, as far as they belong together.
struct Records {
    reader: BufReader<File>,
    left: u64,
    next: Option<Record>,
}

impl Records {
    fn of(file: File) -> io::Result<Self> {
        let mut left = file.metadata()?.len();
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let next = read_record(&mut reader, &mut left)?;
        Ok(Self { reader, left, next })
    }

    fn take(&mut self) -> io::Result<Option<Turn>> {
        let Some(Record { run, turn }) = self.next.take() else { return Ok(None) };
        let next = read_record(&mut self.reader, &mut self.left)?;
        self.next = next.filter(|next| next.run == run && next.turn.before() == turn.last());
        Ok(Some(turn))
    }
}

impl Log {
    /// Takes the files in the folder, and makes them where there are none. The operations in them that follow `position`, without a
    /// gap, are given to `each`, turn by turn; then `settled` has to make them safe, and the files are empty.
    ///
    /// # Errors
    /// The files cannot be read or written, or what is given turns cannot go on.
    pub(crate) fn open(
        folder: &Path,
        position: u64,
        mut each: impl FnMut(Turn) -> Result<(), String>,
        settled: impl FnOnce() -> Result<(), String>,
    ) -> Result<Self, String> {
        let text = |error: io::Error| format!("{NAME}*: {error}");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let [first, second] = paths(folder).map(|path| options.open(path).map_err(text));
        let files = [first?, second?];
        let mut found = Vec::new();
        for file in &files {
            found.push(Records::of(file.try_clone().map_err(text)?).map_err(text)?);
        }
        found.sort_by_key(|records| records.next.as_ref().map(|next| next.turn.before()));
        let mut position = position;
        for mut records in found {
            while let Some(turn) = records.take().map_err(text)? {
                if turn.last() <= position {
                    continue;
                }
                if turn.before() > position {
                    break;
                }
                position = turn.last();
                each(turn)?;
            }
        }
        settled()?;
        for file in &files {
            if file.metadata().map_err(text)?.len() > 0 {
                // Of another run, and never to be read again, whatever becomes of the machine.
                file.set_len(0).and_then(|()| file.sync_all()).map_err(text)?;
            }
        }
        let parts = files.map(|file| Part { file, at: 0, last: 0 });
        let run = RandomState::new().build_hasher().finish();
        Ok(Self { run, parts, head: Vec::new() })
    }

    /// Gives a turn to the system. The store has everything up to `committed()`.
    ///
    /// # Errors
    /// The system does not take it: nothing may be added after it.
    pub(crate) fn add(&mut self, turn: &Turn, committed: impl FnOnce() -> u64) -> io::Result<()> {
        if self.parts[0].at >= FULL && self.parts[1].last <= committed() {
            self.parts.swap(0, 1);
            let part = &mut self.parts[0];
            if part.at > LONG {
                part.file.set_len(0)?;
            }
            part.at = 0;
        }
        let (head, part) = (&mut self.head, &mut self.parts[0]);
        head.clear();
        head.extend_from_slice(&[0; 8]);
        head.extend_from_slice(&self.run.to_le_bytes());
        let bytes = turn.encode(head);
        let mut hasher = Xxh3::new();
        hasher.update(&head[8..]);
        hasher.update(bytes);
        let check = hasher.digest().to_le_bytes();
        head[..8].copy_from_slice(&check);
        let (taken, length) = (head.len(), (head.len() + bytes.len()) as u64);
        if bytes.len() <= COPIED_MAX {
            head.extend_from_slice(bytes);
            part.file.write_all_at(head, part.at)?;
        } else {
            part.file.write_all_at(head, part.at)?;
            part.file.write_all_at(bytes, part.at + taken as u64)?;
        }
        head.shrink_to(2 * COPIED_MAX);
        part.at += length;
        part.last = turn.last();
        Ok(())
    }

    /// The store has everything: nothing is to be read at the next start.
    pub(crate) fn empty(&mut self) {
        for part in &mut self.parts {
            let _best_effort = part.file.set_len(0);
            part.at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_base::source::Attributes;

    fn turn(before: u64, words: &[&str]) -> Turn {
        let mut turn = Turn::after(before);
        for word in words {
            let value = &mut [word.as_bytes()].into_iter();
            turn.put(word.as_bytes(), value, Attributes::default());
        }
        turn
    }

    /// The last operations of the turns that follow `position`.
    fn lasts(folder: &Path, position: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let each = |turn: Turn| {
            found.push(turn.last());
            Ok(())
        };
        // As a start that fails behind the turns: the files stay.
        let stop = || Err(String::from("enough"));
        assert_eq!(Log::open(folder, position, each, stop).unwrap_err(), "enough");
        found
    }

    fn new_log(folder: &Path) -> Log {
        Log::open(folder, 0, |_| Ok(()), || Ok(())).unwrap()
    }

    #[test]
    fn what_follows_without_a_gap_is_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = new_log(folder.path());
        for before in [0, 2, 4] {
            log.add(&turn(before, &["a", "b"]), || 0).unwrap();
        }
        assert_eq!(lasts(folder.path(), 0), [2, 4, 6]);
        assert_eq!(lasts(folder.path(), 3), [4, 6], "a turn that the store has a part of");
        assert_eq!(lasts(folder.path(), 6), [0; 0]);
        log.add(&turn(7, &["c"]), || 0).unwrap();
        assert_eq!(lasts(folder.path(), 0), [2, 4, 6], "one is missing before the last");
        let path = folder.path().join("turns-0");
        let whole = std::fs::read(&path).unwrap();
        let third = whole.len() * 6 / 7;
        for end in 0..=third {
            std::fs::write(&path, &whole[..end]).unwrap();
            let found = lasts(folder.path(), 0);
            assert!([2, 4, 6].starts_with(&found), "{end} bytes are left: {found:?}");
        }
    }

    #[test]
    fn the_files_change_places_when_the_store_has_what_is_in_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = new_log(folder.path());
        let long = "v".repeat(300 << 10);
        let (mut position, mut committed) = (0, 0);
        for round in 0..200 {
            log.add(&turn(position, &["a", &long]), || committed).unwrap();
            position += 2;
            // The writer is behind for a while, then it is not.
            if round % 50 > 20 {
                committed = position - 6;
            }
            let found = lasts(folder.path(), committed);
            let expected: Vec<u64> = (committed / 2 + 1..=position / 2).map(|n| n * 2).collect();
            assert_eq!(found, expected, "round {round}");
        }
        let bytes: u64 = [0, 1]
            .map(|n| folder.path().join(format!("turns-{n}")).metadata().unwrap().len())
            .iter()
            .sum();
        assert!(bytes < 40 << 20, "{bytes} bytes");
        log.empty();
        assert_eq!(lasts(folder.path(), 0), [0; 0]);
    }

    #[test]
    fn records_of_an_earlier_run_do_not_follow() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = new_log(folder.path());
        for before in [0, 1, 2] {
            log.add(&turn(before, &["a"]), || 0).unwrap();
        }
        let old = std::fs::read(folder.path().join("turns-0")).unwrap();
        let mut log = new_log(folder.path());
        log.add(&turn(0, &["a"]), || 0).unwrap();
        // As if the machine had failed, and with it that the file was emptied.
        let path = folder.path().join("turns-0");
        let new = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&new, &old[new.len()..]].concat()).unwrap();
        assert_eq!(lasts(folder.path(), 0), [1]);
    }
}
