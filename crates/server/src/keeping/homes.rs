//! Where each partition lives, over restarts: a file in the folder of the data, which has to be right whenever a crash comes.
//!
//! ```text
//! Headwater placement, format 1
//! shards 3
//! boundary 74 2               tables whose keys more than one component places: name in hex, components
//! moving 2417 1 0             a partition on its way: from, to
//! homes 0 1 2 0 1 2 …         of each partition, in order
//! check 5cd1b4ba6a1e8ec6      of all lines before this one
//! ```
//!
//! Without a file, partitions are dealt out evenly. The first move writes one. It goes whole: a new file is written and synced,
//! and takes the place of the old one.
//!
//! A move changes two stores and this file. In order:
//!
//! 1. the file says that the partition is moving, its home as before;
//! 2. the new home's store has its keys safe;
//! 3. the file says that it lives at the new home, still moving;
//! 4. the old home's store has erased its keys;
//! 5. the file says no more that it is moving.
//!
//! # Invariants
//! - M1. The home that the file names has all keys of the partition, and each is nowhere else, but for a partition that is moving: of
//!   that, the other one of the two may have keys, which it erases at the next start, before anything is served.
//! - M2. No move begins while the file names another one.

use headwater_base::hash::stable_hash;
use headwater_base::placement::{PARTITIONS, Partition};
use headwater_base::{Placement, Shard};
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

/// The name of the file.
const FILE: &str = "headwater-placement";
const FORMAT: &str = "Headwater placement, format 1";
/// The seed of the checksum: part of the format.
const SEED: u64 = 0x706c_6163_656d_656e;

/// A partition on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(crate) partition: Partition,
    pub(crate) from: Shard,
    pub(crate) to: Shard,
}

/// What the file says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Homes {
    /// The homes; the boundaries are those of the moment at which it was written.
    pub(super) placement: Placement,
    pub(super) moving: Option<Way>,
}

impl Homes {
    /// The partition that shard `me` may have keys of though another one is its home.
    pub(super) fn stray(&self, me: Shard) -> Option<Partition> {
        let Way { partition, from, to } = self.moving?;
        let is_one = me == from || me == to;
        (is_one && self.placement.home_of(partition) != me).then_some(partition)
    }

    fn text(&self) -> String {
        let mut text = format!("{FORMAT}\nshards {}\n", self.placement.shards());
        for (table, boundary) in self.placement.boundaries() {
            text.push_str("boundary ");
            // What is written into a string is written.
            table.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
            _ = writeln!(text, " {boundary}");
        }
        if let Some(Way { partition, from, to }) = self.moving {
            _ = writeln!(text, "moving {} {} {}", partition.0, from.0, to.0);
        }
        text.push_str("homes");
        self.placement.homes().iter().for_each(|home| _ = write!(text, " {}", home.0));
        text.push('\n');
        let check = stable_hash(SEED, text.as_bytes());
        _ = writeln!(text, "check {check:016x}");
        text
    }

    /// What a text says; `None`: it is not what was written.
    fn of_text(text: &str) -> Option<Self> {
        let (all, check) = text.split_at(text.rfind("check ")?);
        let told = check.strip_prefix("check ")?.strip_suffix('\n')?;
        let mut lines = all.strip_suffix('\n')?.split('\n');
        if u64::from_str_radix(told, 16).ok()? != stable_hash(SEED, all.as_bytes()) {
            return None;
        }
        let (format, shards) = (lines.next()?, lines.next()?);
        if format != FORMAT {
            return None;
        }
        let shards = shards.strip_prefix("shards ")?.parse().ok()?;
        let (mut boundaries, mut moving, mut placement) = (Vec::new(), None, None);
        for line in lines {
            let (name, rest) = line.split_once(' ')?;
            let numbers = || rest.split(' ').map(|number| number.parse::<u16>().ok());
            match name {
                "boundary" => {
                    let (table, boundary) = rest.split_once(' ')?;
                    boundaries.push((of_hex(table)?, boundary.parse().ok()?));
                }
                "moving" => {
                    let [partition, from, to] =
                        numbers().collect::<Option<Vec<_>>>()?.try_into().ok()?;
                    moving = Some(Way {
                        partition: Partition(partition),
                        from: Shard(from),
                        to: Shard(to),
                    });
                }
                "homes" => {
                    let homes = numbers().map(|home| home.map(Shard)).collect::<Option<_>>()?;
                    placement = Placement::of(shards, homes);
                }
                _ => return None,
            }
        }
        let mut placement = placement?;
        boundaries.iter().for_each(|(table, boundary)| placement.set_boundary(table, *boundary));
        if let Some(Way { partition, from, to }) = moving {
            let known = usize::from(partition.0) < PARTITIONS && from != to;
            let home = known.then(|| placement.home_of(partition))?;
            if (home != from && home != to) || from.0.max(to.0) >= shards {
                return None;
            }
        }
        Some(Self { placement, moving })
    }
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits?;
    let bytes = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    digits.len().is_multiple_of(2).then_some(bytes)
}

/// The file in `folder`; `None`: there is none.
///
/// # Errors
/// It cannot be read.
pub(super) fn bytes(folder: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(folder.join(FILE)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{FILE}: {error}")),
    }
}

/// What the file in `folder` says; `None`: there is none.
///
/// # Errors
/// It cannot be read, is damaged, or speaks of another number of shards; the sentence says what to do.
pub(super) fn read(folder: &Path, shards: u16) -> Result<Option<Homes>, String> {
    let Some(bytes) = bytes(folder)? else { return Ok(None) };
    let homes = str::from_utf8(&bytes).ok().and_then(Homes::of_text).ok_or_else(|| {
        format!(
            "{FILE} is damaged: it says which shard has which keys. Put back the one of a copy of the folder that was made \
             after the last SHARD.MOVE; without it, keys that have moved are not found"
        )
    })?;
    match homes.placement.shards() {
        known if known == shards => Ok(Some(homes)),
        known => {
            Err(format!("{FILE} is of {known} shards, and shards is {shards} (allowed: {known})"))
        }
    }
}

/// Why a file was not written.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// The one before is there as it was.
    Before(io::Error),
    /// Nobody knows which one will be there after a failure of the machine.
    Unsure(io::Error),
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Before(error) | Self::Unsure(error)) = self;
        write!(f, "{FILE}: {error}")
    }
}

/// Puts a file with these bytes into a folder that nobody uses.
///
/// # Errors
/// It is not there, or may not be.
pub(super) fn put(folder: &Path, bytes: &[u8]) -> Result<(), String> {
    let put = File::create(folder.join(FILE)).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    put.map_err(|error| format!("{FILE}: {error}"))
}

/// Puts a file that says so into `folder`.
///
/// # Errors
/// It is not there, or may not be.
pub(super) fn write(folder: &Path, homes: &Homes) -> Result<(), Unwritten> {
    let before = Unwritten::Before;
    let partial = folder.join(format!("{FILE}.new"));
    let mut file = File::create(&partial).map_err(before)?;
    file.write_all(homes.text().as_bytes()).map_err(before)?;
    file.sync_all().map_err(before)?;
    fs::rename(&partial, folder.join(FILE)).map_err(before)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Unwritten::Unsure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Homes {
        let mut placement = Placement::even(3);
        placement.assign(Partition(5), Shard(0));
        placement.set_boundary(b"t\n\xff", 2);
        let way = Way { partition: Partition(5), from: Shard(2), to: Shard(0) };
        Homes { placement, moving: Some(way) }
    }

    #[test]
    fn what_was_written_is_read_or_an_error() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        assert_eq!(read(folder, 3).unwrap(), None);
        for homes in [some(), Homes { moving: None, ..some() }] {
            write(folder, &homes).unwrap();
            let found = read(folder, 3).unwrap().unwrap();
            assert_eq!(found.text(), homes.text());
            assert_eq!(found.placement.homes(), homes.placement.homes());
            assert_eq!(found.moving, homes.moving);
            assert!(found.placement.boundaries().eq([(&b"t\n\xff"[..], 2)]));
        }
        assert!(read(folder, 4).unwrap_err().contains("allowed: 3"));
        let good = fs::read(folder.join(FILE)).unwrap();
        for at in (0..good.len()).step_by(7).chain(good.len() - 24..good.len()) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(folder.join(FILE), &bad).unwrap();
            assert!(read(folder, 3).unwrap_err().contains("damaged"), "byte {at}");
            fs::write(folder.join(FILE), &good[..at]).unwrap();
            assert!(read(folder, 3).unwrap_err().contains("damaged"), "{at} bytes are left");
        }
    }

    #[test]
    fn a_map_that_contradicts_itself_is_none() {
        let sealed = |text: &str| {
            let all = text.split_inclusive('\n').take_while(|line| !line.starts_with("check"));
            let all: String = all.collect();
            format!("{all}check {:016x}\n", stable_hash(SEED, all.as_bytes()))
        };
        let good = some().text();
        assert_eq!(sealed(&good), good);
        for (part, other) in [
            ("format 1", "format 2"),
            ("moving 5 2 0", "moving 5 2 1"),
            ("moving 5 2 0", "moving 5 0 0"),
            ("moving 5 2 0", "moving 4096 2 0"),
            ("moving 5 2 0", "moving 5 3 0"),
            ("shards 3", "shards 2"),
            ("homes 0 ", "homes "),
            ("homes", "houses"),
        ] {
            let text = sealed(&good.replacen(part, other, 1));
            assert_ne!(text, good);
            assert_eq!(Homes::of_text(&text), None, "{other}");
        }
    }

    #[test]
    fn of_the_two_ends_of_a_move_the_one_that_is_no_home_may_have_strays() {
        let homes = some();
        let stray = |homes: &Homes| [0, 1, 2].map(|me| homes.stray(Shard(me)));
        assert_eq!(stray(&homes), [None, None, Some(Partition(5))]);
        let mut before = homes.clone();
        before.placement.assign(Partition(5), Shard(2));
        assert_eq!(stray(&before), [Some(Partition(5)), None, None]);
        assert_eq!(stray(&Homes { moving: None, ..homes }), [None; 3]);
    }
}
