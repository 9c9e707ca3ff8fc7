//! A disk as it can be after a failure of the machine: what was synced is there, and of everything else any part.
//!
//! As file systems with a journal do it, a sync of a file or a folder also makes the names on the way to it last; what is
//! changed in a folder later than that may be there or not, up to one of the changes.

use crate::common::Rng;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// Bytes of a record before its own.
const HEAD: usize = 25;

/// Which file: its number, and how often that was given before.
type Id = (u64, u64);

enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

/// A file's bytes, without the zeros that it is made longer by.
#[derive(Clone, Default)]
struct Bytes {
    written: Vec<u8>,
    length: usize,
}

impl Bytes {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        if self.written.len() < end {
            self.written.resize(end, 0);
        }
        self.written[at as usize..end].copy_from_slice(bytes);
        self.length = self.length.max(end);
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(at, bytes) => self.write(*at, bytes),
            Change::Length(length) => {
                self.length = *length as usize;
                self.written.truncate(self.length);
            }
        }
    }
}

#[derive(Default)]
struct Known {
    synced: Bytes,
    later: Vec<Change>,
}

impl Known {
    /// With all that was written.
    fn now(&self) -> Bytes {
        let mut bytes = self.synced.clone();
        self.later.iter().for_each(|change| bytes.apply(change));
        bytes
    }

    /// As it could be found.
    fn found(&self, rng: &mut Rng) -> Bytes {
        let mut bytes = self.synced.clone();
        let part = rng.below(5);
        for change in &self.later {
            match change {
                // Nothing; all; any part, by writes or by sectors.
                _ if part == 0 => {}
                _ if part == 1 => bytes.apply(change),
                Change::Write(at, written) if part == 2 => {
                    for (number, sector) in written.chunks(SECTOR).enumerate() {
                        if rng.below(2) == 0 {
                            bytes.write(at + (number * SECTOR) as u64, sector);
                        }
                    }
                }
                _ if rng.below(8) > 0 => bytes.apply(change),
                _ => {}
            }
        }
        if part > 2 && rng.below(2) == 0 {
            // Its length is there, its last bytes are not.
            bytes.length = self.now().length.max(bytes.length);
        }
        bytes
    }
}

#[derive(Clone)]
struct Entry {
    name: String,
    /// `None`: a folder.
    file: Option<Id>,
}

#[derive(Default)]
struct Folder {
    synced: Vec<Entry>,
    later: Vec<Vec<Entry>>,
}

impl Folder {
    /// What was changed in it up to the last time that it had this entry lasts. Whether it has it.
    fn keep(&mut self, is_it: impl Fn(&Entry) -> bool) -> bool {
        let Some(at) = self.later.iter().rposition(|entries| entries.iter().any(&is_it)) else {
            return self.synced.iter().any(is_it);
        };
        self.synced = self.later.drain(..=at).next_back().unwrap_or_default();
        true
    }
}

/// All of it.
#[derive(Default)]
pub(crate) struct Disk {
    files: HashMap<Id, Known>,
    given: HashMap<u64, u64>,
    folders: HashMap<String, Folder>,
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// The records that there are.
pub(crate) fn count(mut rest: &[u8]) -> u64 {
    let mut count = 0;
    while !rest.is_empty() {
        rest = &rest[HEAD + bytes_of(rest)..];
        count += 1;
    }
    count
}

/// Bytes behind the head of a record.
fn bytes_of(record: &[u8]) -> usize {
    number(&record[17..]) as usize
}

impl Disk {
    fn id(&self, file: u64) -> Id {
        (file, self.given.get(&file).copied().unwrap_or(0))
    }

    /// Does what the next record tells; gives the others.
    pub(crate) fn take<'r>(&mut self, record: &'r [u8]) -> &'r [u8] {
        let (file, at) = (number(&record[1..]), number(&record[9..]));
        let (bytes, rest) = record[HEAD..].split_at(bytes_of(record));
        let id = self.id(file);
        match record[0] {
            b'N' => *self.given.entry(file).or_default() += 1,
            b'W' => {
                let known = self.files.entry(id).or_default();
                known.later.push(Change::Write(at, bytes.to_vec()));
            }
            b'T' => self.files.entry(id).or_default().later.push(Change::Length(at)),
            b'S' => {
                let known = self.files.entry(id).or_default();
                known.synced = known.now();
                known.later.clear();
                self.keep_names(|entry| entry.file == Some(id));
            }
            kind => {
                let end = bytes.iter().position(|&byte| byte == 0).unwrap();
                let path = String::from_utf8(bytes[..end].to_vec()).unwrap();
                let (mut entries, mut rest) = (Vec::new(), &bytes[end + 1..]);
                while !rest.is_empty() {
                    let (file, length) = (number(rest), number(&rest[9..]) as usize);
                    let name = String::from_utf8(rest[17..17 + length].to_vec()).unwrap();
                    let file = (rest[8] == 0).then(|| self.id(file));
                    entries.push(Entry { name, file });
                    rest = &rest[17 + length..];
                }
                let folder = self.folders.entry(path.clone()).or_default();
                if kind == b'D' {
                    (folder.synced, folder.later) = (entries, Vec::new());
                    self.keep_name_of(&path);
                } else {
                    folder.later.push(entries);
                }
            }
        }
        rest
    }

    /// The names of this entry last from now on.
    fn keep_names(&mut self, is_it: impl Fn(&Entry) -> bool) {
        let mut kept = Vec::new();
        for (path, folder) in &mut self.folders {
            if folder.keep(&is_it) {
                kept.push(path.clone());
            }
        }
        kept.iter().for_each(|path| self.keep_name_of(path));
    }

    /// The same for a folder, and those that it is in.
    fn keep_name_of(&mut self, path: &str) {
        let mut path = path;
        while let Some((above, name)) = path.rsplit_once('/') {
            if let Some(folder) = self.folders.get_mut(above) {
                folder.keep(|entry| entry.file.is_none() && entry.name == name);
            }
            path = above;
        }
    }

    /// What was written to a file of the topmost folder.
    pub(crate) fn written(&self, name: &str) -> Option<Vec<u8>> {
        let top = self.folders.get("")?;
        let entries = top.later.last().unwrap_or(&top.synced);
        let file = entries.iter().find(|entry| entry.name == name)?.file?;
        Some(self.files.get(&file)?.now().written).filter(|bytes| !bytes.is_empty())
    }

    /// Builds what a failure now could leave.
    pub(crate) fn build(&self, place: &Path, rng: &mut Rng) {
        self.build_folder("", place, rng);
    }

    fn build_folder(&self, path: &str, place: &Path, rng: &mut Rng) {
        fs::create_dir_all(place).unwrap();
        let Some(folder) = self.folders.get(path) else { return };
        let most = folder.later.len() as u64;
        let entries = match rng.below(3) {
            0 => most,
            1 => 0,
            _ => rng.below(most + 1),
        };
        let entries = match entries {
            0 => &folder.synced,
            count => &folder.later[count as usize - 1],
        };
        for entry in entries {
            let to = place.join(&entry.name);
            match entry.file {
                None => self.build_folder(&format!("{path}/{}", entry.name), &to, rng),
                Some(id) => {
                    let bytes = self.files.get(&id).map(|known| known.found(rng));
                    let Bytes { written, length } = bytes.unwrap_or_default();
                    fs::write(&to, written).unwrap();
                    // Journals are long and empty at first.
                    let file = fs::File::options().write(true).open(to).unwrap();
                    file.set_len(length as u64).unwrap();
                }
            }
        }
    }
}
