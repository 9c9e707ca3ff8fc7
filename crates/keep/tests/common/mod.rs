//! What the tests of the store share.

#![expect(dead_code, reason = "each test file uses its part")]

use headwater_base::KeyRange;
use headwater_base::source::{BaseStore, FetchId, Loaded, News, Sink};
use headwater_keep::{Definition, Feed, Options, Store, StoreHandle};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};
use tempfile::TempDir;

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Bytes that can be told from those of any other step.
pub(crate) fn value_of(step: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let words = core::iter::repeat_with(|| rng.below(1 << 31) as u32);
    words.flat_map(u32::to_le_bytes).take(len).collect()
}

/// How often a test does its work: more where `HEADWATER_KEEP_ROUNDS` says so.
pub(crate) fn rounds(usual: u64) -> u64 {
    std::env::var("HEADWATER_KEEP_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Bytes that this process has read through system calls.
pub(crate) fn bytes_read() -> u64 {
    let text = fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    line.parse().unwrap()
}

struct Inbox(Mutex<Sender<News>>);

impl Sink for Inbox {
    fn tell(&self, news: News) -> bool {
        self.0.lock().unwrap().send(news).is_ok()
    }
}

/// What the store tells.
#[derive(Debug)]
pub(crate) struct Told {
    news: Receiver<News>,
    pub(crate) wakes: Arc<AtomicU64>,
}

impl Told {
    pub(crate) fn try_open(
        path: &Path,
        options: Options,
    ) -> Result<(Store, Self, Vec<Definition>), String> {
        Self::try_open_with(path, options, Feed::Own)
    }

    pub(crate) fn try_open_with(
        path: &Path,
        options: Options,
        feed: Feed,
    ) -> Result<(Store, Self, Vec<Definition>), String> {
        let (sender, news) = channel();
        let wakes = Arc::new(AtomicU64::new(0));
        let count = wakes.clone();
        let waker = Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
        let sink = Arc::new(Inbox(Mutex::new(sender)));
        let (store, definitions) = Store::open_with(path, options, feed, sink, waker)?;
        Ok((store, Self { news, wakes }, definitions))
    }

    /// Waits for something that another thread does.
    pub(crate) fn wait_until(&self, mut there: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !there() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn open(path: &Path, options: Options) -> (Store, Told, Vec<Definition>) {
    Told::try_open(path, options).unwrap()
}

/// Ends a store, and waits until its files are free.
pub(crate) fn close(store: Store) {
    drop(store);
}

/// Commits, and loads a range.
pub(crate) fn load(
    store: &Store,
    keeper: &mut StoreHandle,
    told: &Told,
    range: &KeyRange,
) -> Result<Loaded, String> {
    keeper.load(FetchId(1), range);
    store.commit();
    match told.news.recv_timeout(Duration::from_secs(60)) {
        Ok(News::Loaded { fetch: FetchId(1), answer }) => answer,
        other => panic!("{other:?}"),
    }
}

/// All files below a folder.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Copies a folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(file, target).unwrap();
    }
}

/// A copy of the folder as a crash would leave it, at a moment at which no table is being written.
pub(crate) fn copy_at_rest(path: &Path) -> TempDir {
    let look = || {
        let known =
            files(path).into_iter().map(|file| (fs::metadata(&file).map(|m| m.len()).ok(), file));
        known.collect::<Vec<_>>()
    };
    loop {
        let (left, before) = (tempfile::tempdir().unwrap(), look());
        if catch_unwind(|| copy(path, left.path())).is_ok() && look() == before {
            return left;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
