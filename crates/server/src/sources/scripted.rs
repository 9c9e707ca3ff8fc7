//! A source for tests, on a thread of its own: it loads late and out of order, as of the moment of the question, tells of each
//! transaction, and fails when it is told to.
//!
//! Two servers with a source each that commit the same are at the same positions.

use headwater_base::KeyRange;
use headwater_base::source::{
    Attributes, Change, FetchId, Health, Loaded, News, Pair, Portion, Position, Sink, Source,
    Written,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

enum Ask {
    Declare(u64, Vec<(String, String)>),
    Load(FetchId, KeyRange),
    Position(u64),
    Write(u64, Vec<Change>),
    Commit(Vec<Change>),
    Fail(bool),
    Reset(KeyRange),
}

/// The sources that there are, by their URLs.
static ALL: LazyLock<Mutex<HashMap<String, Sender<Ask>>>> = LazyLock::new(Mutex::default);

/// What a test has of a source.
pub(crate) struct Handle(Sender<Ask>);

impl Handle {
    /// The source of a URL, which some server has added.
    pub(crate) fn of(url: &str) -> Self {
        Self(ALL.lock().unwrap().get(url).expect("it was added").clone())
    }

    /// A transaction.
    pub(crate) fn commit(&self, changes: Vec<Change>) {
        self.0.send(Ask::Commit(changes)).unwrap();
    }

    /// From now on loads fail, or not.
    pub(crate) fn fail(&self, fails: bool) {
        self.0.send(Ask::Fail(fails)).unwrap();
    }

    /// What was loaded of a range is not to be believed any more.
    pub(crate) fn reset(&self, range: KeyRange) {
        self.0.send(Ask::Reset(range)).unwrap();
    }
}

pub(super) struct Scripted(Sender<Ask>);

/// Begins a source.
pub(super) fn open(url: &str, sink: Arc<dyn Sink>) -> Scripted {
    let (sender, receiver) = channel();
    ALL.lock().unwrap().insert(url.to_owned(), sender.clone());
    let seed = url.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    std::thread::spawn(move || run(&receiver, &*sink, seed));
    Scripted(sender)
}

fn run(asks: &Receiver<Ask>, sink: &dyn Sink, mut seed: u64) {
    let mut values: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let (mut position, mut fails) = (Position(0), false);
    let mut answers: Vec<News> = Vec::new();
    sink.tell(News::Health(Health::Up));
    loop {
        let commit =
            |values: &mut BTreeMap<_, _>, position: &mut Position, changes: Vec<Change>| {
                for Change { key, value } in &changes {
                    match value {
                        Some(value) => drop(values.insert(key.clone(), value.clone())),
                        None => drop(values.remove(key)),
                    }
                }
                position.0 += 1;
                sink.tell(News::Changed { position: *position, changes })
            };
        let listened = match asks.recv_timeout(Duration::from_millis(1)) {
            Ok(Ask::Declare(request, mapping)) => {
                let refuses = mapping.iter().any(|(_, word)| word == "nothing");
                let answer = if refuses { Err("no such table".into()) } else { Ok(vec![]) };
                sink.tell(News::Declared { request, answer })
            }
            Ok(Ask::Load(fetch, range)) => {
                let inside = values.iter().filter(|(key, _)| range.contains(key));
                let pairs = inside.map(|(key, value)| Pair {
                    key: key.clone(),
                    value: value.clone(),
                    attributes: Attributes::default(),
                });
                let loaded = Loaded { position, pairs: pairs.collect(), known: None };
                let answer = if fails { Err(String::from("broken")) } else { Ok(loaded) };
                answers.push(News::Loaded { fetch, answer });
                true
            }
            Ok(Ask::Position(request)) => {
                sink.tell(News::Position { request, answer: Ok(position) })
            }
            Ok(Ask::Write(request, changes)) => {
                let gone = changes.iter().filter(|change| change.value.is_none());
                let removed = gone.filter(|change| values.contains_key(&change.key)).count() as u64;
                let written = Written { position: Position(position.0 + 1), removed };
                sink.tell(News::Written { request, answer: Ok(written) })
                    && commit(&mut values, &mut position, changes)
            }
            Ok(Ask::Commit(changes)) => commit(&mut values, &mut position, changes),
            Ok(Ask::Fail(now)) => {
                fails = now;
                let health = if now { Health::Down("ill".into()) } else { Health::Up };
                sink.tell(News::Health(health))
            }
            Ok(Ask::Reset(range)) => sink.tell(News::Reset { range }),
            Err(RecvTimeoutError::Timeout) => {
                let all = std::mem::take(&mut answers);
                all.into_iter().all(|answer| sink.tell(answer))
            }
            Err(RecvTimeoutError::Disconnected) => false,
        };
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if !listened {
            return;
        }
        if !answers.is_empty() && seed >> 62 == 0 {
            let answer = answers.swap_remove((seed >> 32) as usize % answers.len());
            sink.tell(answer);
        }
    }
}

impl Source for Scripted {
    fn declare(&mut self, request: u64, _prefix: &[u8], mapping: &[(String, String)]) {
        let _ = self.0.send(Ask::Declare(request, mapping.to_vec()));
    }

    fn examine(&mut self, request: u64, mapping: &[(String, String)]) {
        let _ = self.0.send(Ask::Declare(request, mapping.to_vec()));
    }

    fn withdraw(&mut self, _prefix: &[u8]) {}

    fn load(&mut self, fetch: FetchId, range: &KeyRange, _portion: Portion) {
        let _ = self.0.send(Ask::Load(fetch, range.clone()));
    }

    fn unfollow(&mut self, _range: &KeyRange) {}

    fn position(&mut self, request: u64) {
        let _ = self.0.send(Ask::Position(request));
    }

    fn write(&mut self, request: u64, changes: &[Change]) {
        let _ = self.0.send(Ask::Write(request, changes.to_vec()));
    }

    fn parse_position(&self, text: &[u8]) -> Result<Position, String> {
        let number =
            str::from_utf8(text).ok().and_then(|text| text.strip_prefix('#')?.parse().ok());
        number.map(Position).ok_or_else(|| String::from("a position is like #7"))
    }

    fn show_position(&self, position: Position) -> String {
        format!("#{}", position.0)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("mood", String::from("good"))]
    }
}
