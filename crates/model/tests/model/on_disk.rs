//! Histories with what a server really has on disk: the embedded store in a folder, killed between any two
//! operations and opened again, and the directory to spill to.

use headwater_base::source::{Attributes, BaseStore, FetchId, News, Pair, Position, Sink};
use headwater_base::{KeyRange, Millis};
use headwater_keep::{Durability, Options, Store, StoreHandle};
use headwater_model::check::Kind;
use headwater_model::drive;
use headwater_model::equipped::{Equipped, SPILLED_MIN};
use headwater_model::history::Op;
use headwater_model::store::{Answer, Definition, Stored};
use headwater_model::subject::Subject;
use headwater_spill::{Directory, SIZE_MIN};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use std::{fs, io, thread};
use tempfile::TempDir;

/// How long an answer of the store may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many histories are run: more where `HEADWATER_DISK_HISTORIES` says so.
fn histories(usual: u64) -> u64 {
    let wanted = std::env::var("HEADWATER_DISK_HISTORIES").ok();
    wanted.map_or(usual, |number| number.parse().expect("a number"))
}

struct Inbox(Mutex<Sender<News>>);

impl Sink for Inbox {
    fn tell(&self, news: News) -> bool {
        self.0.lock().expect("nobody panics here").send(news).is_ok()
    }
}

/// The engine's end, which notes what was asked.
#[derive(Debug)]
struct End {
    keeper: StoreHandle,
    asked: Rc<RefCell<usize>>,
}

impl BaseStore for End {
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position {
        self.keeper.put(key, parts, attributes)
    }
    fn remove(&mut self, key: &[u8]) -> Position {
        self.keeper.remove(key)
    }
    fn remove_range(&mut self, range: &KeyRange) -> Position {
        self.keeper.remove_range(range)
    }
    fn clear(&mut self) -> Position {
        self.keeper.clear()
    }
    fn note_time(&mut self, _now: Millis) {}

    fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        self.keeper.holds_nothing(range)
    }
    fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        *self.asked.borrow_mut() += 1;
        self.keeper.load(fetch, range);
    }
    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        bytes_max: u64,
    ) -> Result<Vec<Pair>, String> {
        self.keeper.gather(wanted, bytes_max)
    }
    fn settle(&mut self) -> Result<(), String> {
        self.keeper.settle()
    }
}

/// A store in a folder.
struct Folder {
    store: Store,
    news: Receiver<News>,
    asked: Rc<RefCell<usize>>,
    options: Options,
    folder: TempDir,
}

fn open(folder: TempDir, options: Options) -> (Folder, Vec<Definition>) {
    let (sender, news) = channel();
    let sink = Arc::new(Inbox(Mutex::new(sender)));
    let (store, definitions) =
        Store::open(folder.path(), options, sink, Box::new(|| {})).expect("the store opens");
    let definitions = definitions.into_iter().map(|definition| {
        let kind = if definition.kind == "join" { "join" } else { "table" };
        (kind, definition.name, definition.text)
    });
    let definitions = definitions.collect();
    (Folder { store, news, asked: Rc::default(), options, folder }, definitions)
}

/// All files below a folder, with their sizes and when they were written last.
fn files(path: &Path) -> io::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_dir() {
            found.extend(files(&entry.path())?);
        } else {
            found.push((entry.path(), about.len(), about.modified()?));
        }
    }
    found.sort();
    Ok(found)
}

/// A copy of a folder, unless something is written to it meanwhile.
fn copy(from: &Path) -> io::Result<Option<TempDir>> {
    let (to, before) = (tempfile::tempdir()?, files(from)?);
    for (file, ..) in &before {
        let target = to.path().join(file.strip_prefix(from).expect("it lies below"));
        fs::create_dir_all(target.parent().expect("it lies in a folder"))?;
        fs::copy(file, target)?;
    }
    Ok((files(from)? == before).then_some(to))
}

impl Stored for Folder {
    fn keep(&self) -> Box<dyn BaseStore> {
        Box::new(End { keeper: self.store.keeper(), asked: self.asked.clone() })
    }
    fn tables(&self) -> Vec<Vec<u8>> {
        let prefixes = self.store.tables();
        prefixes.iter().filter_map(|prefix| Some(prefix.strip_suffix(b"|")?.to_vec())).collect()
    }
    fn told(&self) -> u64 {
        self.store.told().0
    }
    fn is_asked(&self) -> bool {
        *self.asked.borrow() > 0
    }
    fn answers(&mut self) -> Vec<Answer> {
        self.store.commit();
        let asked = std::mem::take(&mut *self.asked.borrow_mut());
        let next = |_| match self.news.recv_timeout(PATIENCE) {
            Ok(News::Loaded { fetch, answer }) => (fetch, answer),
            other => panic!("{other:?} is no answer"),
        };
        (0..asked).map(next).collect()
    }
    fn begin_transaction(&mut self) {
        self.store.begin_transaction();
    }
    fn end_transaction(&mut self) {
        self.store.end_transaction();
    }
    fn commit(&mut self) {
        self.store.commit();
    }
    fn define(&mut self, (kind, name, text): &Definition) {
        self.store.keeper().define(kind, name, text);
    }
    fn undefine(&mut self, kind: &'static str, name: &[u8]) {
        self.store.keeper().undefine(kind, name);
    }
    fn crash(&mut self) -> Vec<Definition> {
        // What the system has been given is what a kill leaves.
        let left = loop {
            if let Ok(Some(left)) = copy(self.folder.path()) {
                break left;
            }
            thread::sleep(Duration::from_millis(1));
        };
        let (folder, definitions) = open(left, self.options);
        *self = folder;
        definitions
    }
}

fn kept(durability: Durability) -> Equipped {
    let options = Options { durability, table_bytes: 64 << 10, ..Options::default() };
    Equipped::kept(Box::new(open(tempfile::tempdir().expect("a folder"), options).0))
}

/// Some of the crashes of a history: each opens the store anew.
fn with_few_crashes(ops: Vec<Op>, most: usize) -> Vec<Op> {
    let all = ops.iter().filter(|op| **op == Op::Crash).count();
    let every = all.div_ceil(most).max(1);
    let mut seen = 0;
    let mut stays = |op: &Op| {
        seen += usize::from(*op == Op::Crash);
        *op != Op::Crash || seen % every == 0
    };
    ops.into_iter().filter(|op| stays(op)).collect()
}

#[test]
fn what_is_acknowledged_survives_kills_of_a_real_store() {
    let mut crashes = 0;
    for seed in 0..histories(12) {
        let ops = with_few_crashes(Kind::Crashes.history(9_000_000 + seed), 3);
        let durability = [Durability::Interval, Durability::None][seed as usize % 2];
        let mut subject = kept(durability);
        if let Err(failure) = drive::run(&mut subject, &ops) {
            panic!("seed {seed}, {durability}: {}", failure.message);
        }
        crashes += subject.short().crashes;
    }
    assert!(crashes >= histories(12), "{crashes} crashes");
}

#[test]
fn a_bound_and_kills_lose_nothing_of_a_real_store() {
    for seed in 0..histories(3) {
        let mut ops = Kind::Long.history(9_100_000 + seed);
        let at = ops.len() / 2;
        ops.insert(at, Op::Crash);
        if let Err(failure) = drive::run(&mut kept(Durability::Interval), &with_few_crashes(ops, 3))
        {
            panic!("seed {seed}: {}", failure.message);
        }
    }
}

#[test]
fn what_is_spilled_to_a_real_directory_comes_back_or_is_missed() {
    let (mut puts, mut gets) = (0, 0);
    for seed in 0..histories(4) {
        let mut ops = Kind::Long.history(9_200_000 + seed);
        ops.retain(|op| !matches!(op, Op::Spill { .. }));
        let folder = tempfile::tempdir().expect("a folder");
        let directory = Directory::open(folder.path(), SIZE_MIN).expect("a directory");
        let mut subject = Equipped::default();
        subject.spill_to(directory, SPILLED_MIN);
        if let Err(failure) = drive::run(&mut subject, &ops) {
            panic!("seed {seed}: {}", failure.message.chars().take(500).collect::<String>());
        }
        let counters = subject.stats().counters;
        let of = |name| counters.iter().find(|(known, _)| *known == name).expect("a counter").1;
        puts += of("values_spilled") + of("chunks_spilled");
        gets += of("values_spill_read") + of("chunks_spill_read");
    }
    // How many depends on what the build's structures take.
    assert!(puts > 20 && gets > 5, "{puts} were put aside, {gets} read");
}
