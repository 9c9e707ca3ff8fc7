//! A directory of spilled bytes against a plain map, and with its files lost and broken.

use headwater_base::spill::Spill;
use headwater_spill::{Directory, SIZE_MIN};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Bytes that can be told from those of any other entry.
fn bytes_of(id: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let words = core::iter::repeat_with(|| rng.below(1 << 31) as u32);
    words.flat_map(u32::to_le_bytes).take(len).collect()
}

fn put(directory: &mut Directory, id: u64, len: usize) -> bool {
    directory.put(id, &mut bytes_of(id, len).chunks(4096))
}

fn get(directory: &mut Directory, id: u64) -> Option<Vec<u8>> {
    let mut out = b"before".to_vec();
    let found = directory.get(id, &mut out);
    assert!(out.starts_with(b"before") && (found || out.len() == 6));
    found.then(|| out.split_off(6))
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

/// What the files take on disk, which is less than their length where nothing was written.
fn bytes_in(path: &Path) -> u64 {
    let known = files(path).into_iter().filter_map(|file| fs::metadata(file).ok());
    known.map(|file| file.blocks() * 512).sum()
}

const CHUNK: usize = 256 << 10;

#[test]
fn what_was_put_comes_back_until_it_is_removed_or_the_oldest() {
    let place = tempfile::tempdir().unwrap();
    let mut directory = Directory::open(place.path(), SIZE_MIN).unwrap();
    let (mut kept, mut rng) = (BTreeMap::new(), Rng(1));
    for id in 0..1200 {
        let len = if rng.below(3) == 0 { CHUNK } else { rng.below(100_000) as usize };
        assert!(put(&mut directory, id, len));
        kept.insert(id, len);
        if rng.below(4) == 0 {
            let victim = *kept.keys().nth(rng.below(kept.len() as u64) as usize).unwrap();
            directory.remove(victim);
            kept.remove(&victim);
        }
        kept.retain(|&id, _| id >= directory.first());
        let asked = rng.below(id + 1);
        if let Some(&len) = kept.get(&asked) {
            assert_eq!(get(&mut directory, asked), Some(bytes_of(asked, len)), "{asked}");
        } else if asked < directory.first() {
            assert_eq!(get(&mut directory, asked), None);
        }
        assert!(directory.bytes() <= SIZE_MIN);
    }
    assert!(directory.first() > 0, "more was put than there is room for");
    for (id, len) in kept {
        assert_eq!(get(&mut directory, id), Some(bytes_of(id, len)), "{id}");
    }
    directory.clear();
    assert_eq!((directory.bytes(), directory.first()), (0, 1200));
    assert_eq!(get(&mut directory, 1199), None);
    assert!(put(&mut directory, 1200, 100));
    assert_eq!(get(&mut directory, 1200), Some(bytes_of(1200, 100)));
}

#[test]
fn the_disk_holds_no_more_than_allowed() {
    let place = tempfile::tempdir().unwrap();
    let mut directory = Directory::open(place.path(), SIZE_MIN).unwrap();
    let mut most = 0;
    for id in 0..4 * SIZE_MIN / CHUNK as u64 {
        assert!(put(&mut directory, id, CHUNK));
        most = most.max(bytes_in(place.path()));
    }
    assert!(most <= SIZE_MIN, "{most} bytes on disk of {SIZE_MIN}");
}

/// Does something to every file, and asks for everything afterwards.
fn with_faults(fault: impl Fn(&Path, &mut Rng)) -> (usize, usize) {
    let place = tempfile::tempdir().unwrap();
    let mut directory = Directory::open(place.path(), SIZE_MIN).unwrap();
    let mut rng = Rng(7);
    let (mut right, mut lost, mut next) = (0, 0, 0);
    for _ in 0..6 {
        for _ in 0..40 {
            let _refused = put(&mut directory, next, CHUNK);
            next += 1;
        }
        files(place.path()).iter().for_each(|file| fault(file, &mut rng));
        for id in 0..next {
            match get(&mut directory, id) {
                None => lost += 1,
                Some(bytes) => {
                    assert!(bytes == bytes_of(id, CHUNK), "entry {id} is not what was put");
                    right += 1;
                }
            }
        }
    }
    (right, lost)
}

#[test]
fn broken_files_cost_entries_and_never_give_wrong_bytes() {
    let flipped = with_faults(|file, rng| {
        let Ok(mut bytes) = fs::read(file) else { return };
        for _ in 0..bytes.len() / 100_000 + 1 {
            if !bytes.is_empty() {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
        }
        // In place, as a failing disk would.
        if let Ok(mut open) = fs::File::options().write(true).open(file) {
            let _best_effort = std::io::Write::write_all(&mut open, &bytes);
        }
    });
    let cut = with_faults(|file, rng| {
        if let Ok(open) = fs::File::options().write(true).open(file) {
            let len = open.metadata().map_or(0, |known| known.len());
            let _best_effort = open.set_len(rng.below(len + 1));
        }
    });
    let gone = with_faults(|file, _| {
        let _best_effort = fs::remove_file(file);
    });
    for (right, lost) in [flipped, cut, gone] {
        assert!(right + lost > 0);
    }
    assert!(flipped.1 > 0 && cut.1 > 0, "the faults did nothing: {flipped:?}, {cut:?}, {gone:?}");
}

#[test]
fn nothing_of_an_earlier_run_is_believed() {
    let place = tempfile::tempdir().unwrap();
    let saved = tempfile::tempdir().unwrap();
    let copy = |from: &Path, to: &Path| {
        for file in files(from) {
            let target = to.join(file.strip_prefix(from).unwrap());
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            // Files come and go while their owner works.
            let _gone = fs::copy(file, target);
        }
    };
    {
        let mut directory = Directory::open(place.path(), SIZE_MIN).unwrap();
        for id in 0..40 {
            assert!(put(&mut directory, id, CHUNK));
        }
        copy(place.path(), saved.path());
    }
    let mut directory = Directory::open(place.path(), SIZE_MIN).unwrap();
    assert_eq!((directory.first(), directory.bytes()), (0, 0));
    for id in 0..40 {
        assert_eq!(get(&mut directory, id), None, "{id} survived");
    }
    // The same numbers, other bytes; and then the files of before in the place of the new ones.
    for id in 0..40 {
        assert!(directory.put(id, &mut [&[id as u8; CHUNK][..]].into_iter()));
    }
    copy(saved.path(), place.path());
    for id in 0..40 {
        let found = get(&mut directory, id);
        assert!(found.is_none_or(|bytes| bytes == [id as u8; CHUNK]), "{id} is of another run");
    }
}

#[test]
fn a_directory_has_one_user_and_a_sensible_size() {
    let place = tempfile::tempdir().unwrap();
    let first = Directory::open(place.path(), SIZE_MIN).unwrap();
    let error = Directory::open(place.path(), SIZE_MIN).unwrap_err().to_string();
    assert!(error.contains("another process"), "{error}");
    drop(first);
    let error = Directory::open(place.path(), 1000).unwrap_err().to_string();
    assert!(error.contains(&SIZE_MIN.to_string()), "{error}");
    fs::write(place.path().join("file"), "x").unwrap();
    assert!(Directory::open(&place.path().join("file"), SIZE_MIN).is_err());
    // What is not ours stays.
    let _directory = Directory::open(place.path(), SIZE_MIN).unwrap();
    assert!(place.path().join("file").exists());
}
