//! A stand-in for the engine: holds what was loaded, applies what is told, and checks each promise of a source
//! as it goes.

use headwater_base::source::{
    Attributes, FetchId, Health, Loaded, LoadedPart, News, Pair, Portion, Position, Sink, Source,
};
use headwater_base::{KeyRange, PackedPairs};
use headwater_postgres::Postgres;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Has threads that look at this stop when it goes, also where a test fails: who waits for them would wait for ever.
pub(crate) struct Stops<'s>(pub(crate) &'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What has been told.
#[derive(Default)]
pub(crate) struct Model {
    /// Ranges that are loaded, which never overlap here.
    pub(crate) loaded: Vec<KeyRange>,
    /// What has come of loads under way.
    parts: Vec<KeyRange>,
    pub(crate) parts_told: usize,
    pub(crate) keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The position of the last change.
    pub(crate) position: Position,
    pub(crate) health: Option<Health>,
    pub(crate) resets: Vec<KeyRange>,
    pub(crate) transactions: usize,
    loading: BTreeMap<FetchId, (KeyRange, Position)>,
    pub(crate) failed: BTreeMap<FetchId, String>,
    declared: BTreeMap<u64, Result<Vec<String>, String>>,
    positions: BTreeMap<u64, Result<Position, String>>,
    /// How many keys each write removed.
    removed: BTreeMap<u64, u64>,
    /// The highest version of each key that was seen.
    versions: BTreeMap<Vec<u8>, u64>,
    next: u64,
    /// What broke a promise.
    pub(crate) wrong: Option<String>,
}

/// The sink that feeds it.
#[derive(Default)]
pub(crate) struct Stand {
    model: Mutex<Model>,
    changed: Condvar,
}

impl Sink for Stand {
    fn tell(&self, news: News) -> bool {
        let mut model = self.lock();
        if model.wrong.is_none()
            && let Err(wrong) = model.take(news)
        {
            model.wrong = Some(wrong);
        }
        self.changed.notify_all();
        true
    }
}

impl Model {
    fn take(&mut self, news: News) -> Result<(), String> {
        match news {
            News::Loaded { fetch, answer } => self.loaded(fetch, answer)?,
            News::LoadedPart { fetch, part } => self.loaded_part(fetch, part)?,
            News::Changed { position, changes } => {
                if position <= self.position {
                    return Err(format!("{position:?} is told after {:?}", self.position));
                }
                self.position = position;
                self.transactions += usize::from(!changes.is_empty());
                for change in changes {
                    if !self.is_loaded(&change.key) {
                        continue;
                    }
                    match change.value {
                        Some(value) => {
                            self.see(&change.key, &value)?;
                            self.keys.insert(change.key, value);
                        }
                        None => drop(self.keys.remove(&change.key)),
                    }
                }
            }
            News::Reset { range } => {
                let (gone, kept): (Vec<_>, _) =
                    self.loaded.drain(..).partition(|loaded| loaded.overlaps(&range));
                self.loaded = kept;
                // The rest of what is loaded in parts comes all the same.
                let parts = self.parts.extract_if(.., |part| part.overlaps(&range));
                let gone: Vec<_> = gone.into_iter().chain(parts).collect();
                self.keys.retain(|key, _| !gone.iter().any(|range| range.contains(key)));
                self.resets.push(range);
            }
            News::Health(health) => self.health = Some(health),
            News::Declared { request, answer } => drop(self.declared.insert(request, answer)),
            News::Position { request, answer } => drop(self.positions.insert(request, answer)),
            News::Written { request, answer } => {
                if let Ok(written) = &answer {
                    self.removed.insert(request, written.removed);
                }
                self.positions.insert(request, answer.map(|written| written.position));
            }
        }
        self.check_sums()
    }

    fn is_loaded(&self, key: &[u8]) -> bool {
        self.loaded.iter().chain(&self.parts).any(|range| range.contains(key))
    }

    /// The first keys of a load, which goes on behind them.
    fn loaded_part(&mut self, fetch: FetchId, part: LoadedPart) -> Result<(), String> {
        let Some((range, asked_at)) = self.loading.remove(&fetch) else {
            return Err(format!("a part of {fetch:?} comes without being asked"));
        };
        let LoadedPart { position, pairs, known } = part;
        let rest = range.without(&known);
        let ([rest], true) = (&rest[..], known.first == range.first && range.covers(&known)) else {
            return Err(format!("{known:?} is no beginning of {range:?}"));
        };
        self.loading.insert(fetch, (rest.clone(), asked_at));
        self.parts_told += 1;
        if !pairs.iter().map(|(key, _)| key).is_sorted() {
            return Err(format!("the keys of {known:?} are in no order"));
        }
        let pair = |(key, value): (&[u8], &[u8])| Pair {
            key: key.to_vec(),
            value: value.to_vec(),
            attributes: Attributes::default(),
        };
        let pairs = pairs.iter().map(pair).collect();
        let known = self.behind_parts(known.clone(), (position, asked_at, pairs))?;
        self.parts.push(known);
        Ok(())
    }

    /// Takes in what is known of a range, and joins it with the parts before it.
    fn behind_parts(
        &mut self,
        mut range: KeyRange,
        (position, asked_at, pairs): (Position, Position, Vec<Pair>),
    ) -> Result<KeyRange, String> {
        if position < asked_at || position < self.position {
            return Err(format!("a load came too late to be followed: {position:?}"));
        }
        for pair in pairs {
            if !range.contains(&pair.key) {
                return Err(format!("{:?} is not in {range:?}", pair.key));
            }
            self.see(&pair.key, &pair.value)?;
            if self.keys.insert(pair.key.clone(), pair.value).is_some() {
                return Err(format!("{:?} was loaded twice", pair.key));
            }
        }
        if let Some(at) = self.parts.iter().position(|part| part.last == range.first) {
            range.first = self.parts.swap_remove(at).first;
        }
        Ok(range)
    }

    fn loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) -> Result<(), String> {
        let Some((range, asked_at)) = self.loading.remove(&fetch) else {
            return Err(format!("{fetch:?} was answered without being asked"));
        };
        let loaded = match answer {
            Ok(loaded) => loaded,
            Err(why) => {
                self.failed.insert(fetch, why);
                // What had come stays.
                let parts = self.parts.extract_if(.., |part| part.last == range.first);
                self.loaded.extend(parts);
                return Ok(());
            }
        };
        let range = match loaded.known {
            Some(known) if known.is_empty() || !range.covers(&known) => {
                return Err(format!("{known:?} is no part of {range:?}"));
            }
            known => known.unwrap_or(range),
        };
        let range = self.behind_parts(range, (loaded.position, asked_at, loaded.pairs))?;
        self.loaded.push(range);
        Ok(())
    }

    /// Values that begin with `v` and a number never go back.
    fn see(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(value);
        let Some(version) =
            text.strip_prefix('v').and_then(|rest| rest.split(' ').next()?.parse().ok())
        else {
            return Ok(());
        };
        let seen = self.versions.entry(key.to_vec()).or_default();
        if version < *seen {
            let key = String::from_utf8_lossy(key);
            return Err(format!("{key} went back from {seen} to {version}"));
        }
        *seen = version;
        Ok(())
    }

    /// Amounts `a|group|id` come to zero in each group that is there whole, after every transaction. Where the first part of a group was given up while the rest
    /// came, the rest alone is there.
    fn check_sums(&self) -> Result<(), String> {
        let is_whole =
            |range: &&KeyRange| range.first.starts_with(b"a|") && range.first.ends_with(b"|");
        for range in self.loaded.iter().filter(is_whole) {
            let keys = self.keys.range(range.first.clone()..range.last.clone());
            let amount = |value: &[u8]| String::from_utf8_lossy(value).parse::<i64>().unwrap();
            let sum: i64 = keys.map(|(_, value)| amount(value)).sum();
            if sum != 0 {
                return Err(format!("a transaction is seen in part: {range:?} comes to {sum}"));
            }
        }
        Ok(())
    }

    /// Whether nothing that was asked for is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.loading.is_empty()
    }

    /// The keys of a range.
    pub(crate) fn of(&self, range: &KeyRange) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let within = self.keys.iter().filter(|(key, _)| range.contains(key));
        within.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

impl Stand {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    /// Waits until something holds; panics where a promise is broken first.
    pub(crate) fn wait<T>(&self, what: &str, mut holds: impl FnMut(&mut Model) -> Option<T>) -> T {
        let begun = Instant::now();
        let mut model = self.lock();
        loop {
            if let Some(wrong) = &model.wrong {
                panic!("{wrong}");
            }
            if let Some(found) = holds(&mut model) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "waited for {what}; {:?}", model.health);
            model = self.changed.wait_timeout(model, Duration::from_millis(100)).unwrap().0;
        }
    }

    pub(crate) fn wait_up(&self) {
        self.wait("the source to be up", |model| (model.health == Some(Health::Up)).then_some(()));
    }

    fn number(&self) -> u64 {
        let mut model = self.lock();
        model.next += 1;
        model.next
    }

    pub(crate) fn declare(
        &self,
        source: &mut Postgres,
        prefix: &[u8],
        mapping: &[(&str, &str)],
    ) -> Result<Vec<String>, String> {
        let request = self.number();
        let mapping: Vec<_> =
            mapping.iter().map(|(word, text)| ((*word).to_owned(), (*text).to_owned())).collect();
        source.declare(request, prefix, &mapping);
        self.wait("a declaration", |model| model.declared.remove(&request))
    }

    /// Asks for a range, if no part of it is loaded or being loaded.
    pub(crate) fn ask(&self, source: &mut Postgres, range: &KeyRange) -> Option<FetchId> {
        self.ask_portion(source, range, Portion::default())
    }

    /// Asks for some keys of a range.
    pub(crate) fn ask_portion(
        &self,
        source: &mut Postgres,
        range: &KeyRange,
        portion: Portion,
    ) -> Option<FetchId> {
        let fetch = FetchId(self.number());
        {
            let mut model = self.lock();
            let busy = model.loading.values().map(|(range, _)| range);
            if busy.chain(&model.loaded).chain(&model.parts).any(|other| other.overlaps(range)) {
                return None;
            }
            let asked_at = model.position;
            model.loading.insert(fetch, (range.clone(), asked_at));
        }
        source.load(fetch, range, portion);
        Some(fetch)
    }

    /// Loads a range and gives its keys.
    pub(crate) fn load(
        &self,
        source: &mut Postgres,
        range: &KeyRange,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        self.load_portion(source, range, Portion::default())
    }

    /// Loads some keys of a range, and gives them.
    pub(crate) fn load_portion(
        &self,
        source: &mut Postgres,
        range: &KeyRange,
        portion: Portion,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        let fetch = self.ask_portion(source, range, portion).expect("the range is not loaded");
        self.wait("a load", |model| {
            if let Some(why) = model.failed.remove(&fetch) {
                return Some(Err(why));
            }
            (!model.loading.contains_key(&fetch)).then(|| Ok(model.of(range)))
        })
    }

    /// Forgets what is loaded.
    pub(crate) fn forget(&self) {
        let mut model = self.lock();
        model.loaded.clear();
        model.keys.clear();
    }

    /// The parts of a range that are loaded.
    pub(crate) fn known_of(&self, range: &KeyRange) -> Vec<KeyRange> {
        let mut known = self.lock().loaded.clone();
        known.retain(|known| known.overlaps(range));
        known.sort_by(|one, next| one.first.cmp(&next.first));
        known
    }

    /// Gives a loaded range up.
    pub(crate) fn unfollow(&self, source: &mut Postgres, at: usize) {
        let range = {
            let mut model = self.lock();
            if model.loaded.is_empty() {
                return;
            }
            let at = at % model.loaded.len();
            let range = model.loaded.swap_remove(at);
            model.keys.retain(|key, _| !range.contains(key));
            range
        };
        source.unfollow(&range);
    }

    /// Waits until everything that was committed before has been told.
    pub(crate) fn catch_up(&self, source: &mut Postgres) {
        loop {
            let request = self.number();
            source.position(request);
            let answer = self.wait("a position", |model| model.positions.remove(&request));
            if let Ok(position) = answer {
                self.wait("the changes", |model| (model.position >= position).then_some(()));
                return;
            }
        }
    }

    /// Writes through, and gives the position.
    pub(crate) fn write(
        &self,
        source: &mut Postgres,
        changes: &[(&str, Option<&str>)],
    ) -> Result<Position, String> {
        let request = self.number();
        let change = |(key, value): &(&str, Option<&str>)| headwater_base::source::Change {
            key: key.as_bytes().to_vec(),
            value: value.map(|value| value.as_bytes().to_vec()),
        };
        source.write(request, &changes.iter().map(change).collect::<Vec<_>>());
        self.wait("a write", |model| model.positions.remove(&request))
    }

    /// The same, and gives how many keys that removed.
    pub(crate) fn remove(&self, source: &mut Postgres, keys: &[&str]) -> Result<u64, String> {
        let changes: Vec<_> = keys.iter().map(|key| (*key, None)).collect();
        self.write(source, &changes)?;
        Ok(self.lock().removed.pop_last().map_or(0, |(_, removed)| removed))
    }
}

/// A source of a server with its stand-in.
pub(crate) fn connect(url: &str, options: &[(&str, &str)]) -> (Postgres, Arc<Stand>) {
    let stand = Arc::new(Stand::default());
    let options: Vec<_> =
        options.iter().map(|(word, text)| ((*word).to_owned(), (*text).to_owned())).collect();
    let source = headwater_postgres::connect("test", url, &options, stand.clone()).unwrap();
    (source, stand)
}

/// The group 1 of amounts, from one of them to the one before another.
fn amounts(from: &str, to: &str) -> KeyRange {
    KeyRange::new(format!("a|00001|{from}").as_bytes(), format!("a|00001|{to}").as_bytes())
}

/// A model for which the whole group is loaded, and what comes of it: -5 and 5.
fn loading() -> (Model, FetchId, LoadedPart, Loaded) {
    let (fetch, position, mut model) = (FetchId(1), Position(1), Model::default());
    model.loading.insert(fetch, (amounts("", "}"), Position(0)));
    let mut pairs = PackedPairs::with_capacity(100, 1);
    pairs.push(b"a|00001|1", b"-5");
    let part = LoadedPart { position, pairs, known: amounts("", "2") };
    let pair = Pair {
        key: b"a|00001|2".to_vec(),
        value: b"5".to_vec(),
        attributes: Attributes::default(),
    };
    (model, fetch, part, Loaded { position, pairs: vec![pair], known: None })
}

#[test]
fn the_rest_of_a_group_whose_beginning_was_given_up_need_not_come_to_zero() {
    let (mut model, fetch, part, rest) = loading();
    model.take(News::LoadedPart { fetch, part }).unwrap();
    model.take(News::Reset { range: amounts("1", "2") }).unwrap();
    model.take(News::Loaded { fetch, answer: Ok(rest) }).unwrap();
    assert_eq!(model.loaded, [amounts("2", "}")]);
}

#[test]
fn a_whole_group_comes_to_zero_or_is_seen_in_part() {
    for (value, is_seen) in [("5", false), ("6", true)] {
        let (mut model, fetch, part, mut rest) = loading();
        rest.pairs[0].value = value.as_bytes().to_vec();
        model.take(News::LoadedPart { fetch, part }).unwrap();
        let told = model.take(News::Loaded { fetch, answer: Ok(rest) });
        assert_eq!(told.is_err_and(|why| why.contains("seen in part")), is_seen, "{value}");
    }
}
