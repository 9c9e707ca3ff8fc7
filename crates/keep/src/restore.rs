//! A store out of a backup ([`crate::backup`]).

use crate::backup::{BACKUP_FORMAT, HEADER, Part, TITLE, check_end, check_entry, check_of_none};
use crate::files::Folder;
use crate::outside::LogMark;
use crate::record::State;
use crate::writer::write_state;
use crate::{Found, Options, describe, open_database};
use fjall::{Keyspace, PersistMode};
use headwater_base::key::SEPARATOR;
use headwater_base::stream_records::is_stream_record;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Bytes that are written as one batch, about.
const BATCH_BYTES: usize = 1 << 20;
/// Tables that may wait to be written to disk.
const TABLES: usize = 4;
/// The longest key that a store takes.
const KEY_BYTES_MAX: u64 = u16::MAX as u64;
const LOOK: Duration = Duration::from_millis(1);

/// What was restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Keys.
    pub keys: u64,
    /// Those of them that are in no table.
    pub plain_keys: u64,
    /// Bytes of keys and their records.
    pub bytes: u64,
    /// The last operation that the state has.
    pub position: u64,
}

impl Restored {
    /// Counts an entry; gives its bytes.
    fn add(&mut self, part: Part, key: &[u8], record: &[u8]) -> usize {
        let bytes = key.len() + record.len();
        self.bytes += bytes as u64;
        if part == Part::Keys {
            // The bytes of a stream are no keys of anybody's.
            let is_key = !is_stream_record(key);
            self.keys += u64::from(is_key);
            self.plain_keys += u64::from(is_key && !key.contains(&SEPARATOR));
        }
        bytes
    }
}

/// A backup that is read.
struct Input<'r> {
    from: &'r mut dyn Read,
    key: Vec<u8>,
    record: Vec<u8>,
    entries: u64,
    check: u64,
}

impl<'r> Input<'r> {
    fn new(from: &'r mut dyn Read) -> Self {
        Self { from, key: Vec::new(), record: Vec::new(), entries: 0, check: check_of_none() }
    }

    fn exact<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(|why| cut_short(&why))?;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64, String> {
        self.exact().map(u64::from_le_bytes)
    }

    /// The next entry, in `key` and `record`; at the end the position.
    fn next(&mut self) -> Result<Result<Part, u64>, String> {
        let damaged = || String::from("it is damaged");
        let [part] = self.exact()?;
        if part == 0 {
            let (position, entries, check) = (self.number()?, self.number()?, self.number()?);
            if (entries, check) != (self.entries, check_end(self.check, position))
                || self.from.read(&mut [0]).is_ok_and(|more| more > 0)
            {
                return Err(damaged());
            }
            return Ok(Err(position));
        }
        let part = Part::of(part).ok_or_else(damaged)?;
        let key = u64::from(u32::from_le_bytes(self.exact()?));
        let record = u64::from(u32::from_le_bytes(self.exact()?));
        if !(1..=KEY_BYTES_MAX).contains(&key) {
            return Err(damaged());
        }
        for (into, len) in [(&mut self.key, key), (&mut self.record, record)] {
            into.clear();
            // A length that is damaged takes no more memory than there are bytes.
            let read = (&mut *self.from).take(len).read_to_end(into);
            if read.map_err(|why| why.to_string())? as u64 != len {
                return Err(cut_short(&ErrorKind::UnexpectedEof.into()));
            }
        }
        if !part.is_whole(&self.key, &self.record) {
            return Err(format!("the record of '{}' is damaged", self.key.escape_ascii()));
        }
        self.entries += 1;
        self.check = check_entry(self.check, part, &self.key, &self.record);
        Ok(Ok(part))
    }
}

fn cut_short(why: &std::io::Error) -> String {
    match why.kind() {
        ErrorKind::UnexpectedEof => String::from("it is cut short"),
        _ => why.to_string(),
    }
}

/// Makes a store in the folder `path`, which must be new, of a backup.
///
/// # Errors
/// The backup is damaged, or the folder cannot be written, and is not to be used then; the sentence says which and why.
pub fn restore(path: &Path, from: &mut dyn Read) -> Result<Restored, String> {
    read_header(from)?;
    let folder = Folder::open(path)?;
    if !folder.is_new {
        return Err(format!("{} has data already", path.display()));
    }
    fill(&folder, from, None)
}

/// Makes a copy of a log in the folder `path` of a backup whose state ends there at `mark`; what the folder had is gone.
///
/// # Errors
/// As for [`restore`]. A folder whose filling was cut short is the copy of an empty log.
pub fn restore_copy(path: &Path, from: &mut dyn Read, mark: LogMark) -> Result<Restored, String> {
    read_header(from)?;
    let mut folder = Folder::open(path)?;
    folder.empty().map_err(|error| format!("{}: {error}", path.display()))?;
    fill(&folder, from, Some(mark))
}

/// Reads a backup to its end; nothing is made of it.
///
/// # Errors
/// It is damaged; the sentence says how.
pub fn check_backup(from: &mut dyn Read) -> Result<Restored, String> {
    read_header(from)?;
    let mut input = Input::new(from);
    let mut found = Restored::default();
    loop {
        match input.next()? {
            Ok(part) => {
                found.add(part, &input.key, &input.record);
            }
            Err(position) => return Ok(Restored { position, ..found }),
        }
    }
}

fn read_header(from: &mut dyn Read) -> Result<(), String> {
    let mut header = [0; HEADER.len()];
    from.read_exact(&mut header).map_err(|why| cut_short(&why))?;
    if header == HEADER {
        return Ok(());
    }
    let Some(number) = header.strip_prefix(TITLE.as_bytes()) else {
        return Err(String::from("it is no backup of a shard"));
    };
    // A number of more digits is cut, and is another one all the same.
    let digits: String = number
        .iter()
        .map_while(|byte| char::from(*byte).to_digit(10))
        .filter_map(|digit| char::from_digit(digit, 10))
        .collect();
    Err(format!("it has format {digits}, and this version reads format {BACKUP_FORMAT} alone"))
}

fn fill(folder: &Folder, from: &mut dyn Read, mark: Option<LogMark>) -> Result<Restored, String> {
    let text = |error: fjall::Error| describe(&error);
    let Found { database, meta, definitions, notes, tables, keys, .. } =
        open_database(folder, &Options::default())?;
    let keyspace_of = |part: Part| -> &Keyspace {
        match part {
            Part::Definitions => &definitions,
            Part::Notes => &notes,
            Part::Tables => &tables,
            Part::Keys => &keys.keyspace,
        }
    };
    let mut input = Input::new(from);
    let mut restored = Restored::default();
    let (mut batch, mut in_batch, mut in_table) = (database.batch(), 0, 0);
    let position = loop {
        let part = match input.next()? {
            Ok(part) => part,
            Err(position) => break position,
        };
        batch.insert(keyspace_of(part), &*input.key, &*input.record);
        in_batch += restored.add(part, &input.key, &input.record);
        if in_batch >= BATCH_BYTES {
            core::mem::replace(&mut batch, database.batch()).commit().map_err(text)?;
            in_table += core::mem::take(&mut in_batch);
        }
        if in_table as u64 >= Options::default().table_bytes {
            in_table = 0;
            keys.keyspace.rotate_memtable().map_err(text)?;
            while keys.keyspace.sealed_memtable_count() > TABLES {
                thread::sleep(LOOK);
            }
        }
    };
    restored.position = position;
    let state = State { position, generation: keys.generation, mark, ..State::default() };
    write_state(&database, &meta, batch, state).map_err(text)?;
    database.persist(PersistMode::SyncAll).map_err(text)?;
    Ok(restored)
}
