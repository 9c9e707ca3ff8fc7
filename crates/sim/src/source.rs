//! A source that keeps some of the tables, for all shards: it tells each what has changed, in one order but each in its own time,
//! and answers loads late, as of a moment since they were asked for, or with an error.
//!
//! What it tells goes into an inbox of each shard, from where the shard takes it bit by bit: so shards have come to different
//! positions. It tells of keys that somebody follows, and of others when it likes. What is asked of it is checked, too: a
//! shard loads nothing that it has, and nothing of a group whose home is another shard.

use headwater_base::source::{Attributes, LoadedPart};
use headwater_base::{KeyRange, Placement, Shard};
use headwater_engine::{Change, Engine, FetchId, Loaded, Pair, Portion, Position};
use headwater_model::rng::Rng;
use std::collections::{BTreeMap, VecDeque};

/// What it is called.
pub(crate) const NAME: &str = "db";

pub(crate) type Values = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a shard is told.
#[derive(Clone, Debug)]
enum News {
    Changed(u64, Vec<Change>),
    Loaded(FetchId, Result<Loaded, String>),
    LoadedPart(FetchId, LoadedPart),
    Reset(KeyRange),
}

#[derive(Debug)]
struct Load {
    fetch: FetchId,
    range: KeyRange,
    portion: Portion,
    /// What had been told when it was asked for.
    since: u64,
}

/// What it has to do with one shard.
#[derive(Debug, Default)]
struct Side {
    inbox: VecDeque<News>,
    open: Vec<Load>,
    /// The ranges whose loads were answered.
    followed: Vec<KeyRange>,
    /// Up to where the shard has applied what was told, and what the source held there.
    applied: u64,
    held: Values,
}

#[derive(Debug)]
pub(crate) struct Source {
    /// The tables that it keeps, by their prefix.
    tables: Vec<Vec<u8>>,
    /// Its transactions; the first one is at position 1.
    log: Vec<Vec<Change>>,
    told: u64,
    sides: Vec<Side>,
}

fn apply(values: &mut Values, changes: &[Change]) {
    for Change { key, value } in changes {
        match value {
            Some(value) => drop(values.insert(key.clone(), value.clone())),
            None => drop(values.remove(key)),
        }
    }
}

/// A number that a load has: not drawn, so that what happens does not depend on it otherwise.
fn fate(load: &Load) -> u64 {
    load.fetch.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61
}

/// How many rows an answer has.
fn rows_of(load: &Load, parts: bool) -> usize {
    let wanted = load.portion.rows.map_or(usize::MAX, |rows| rows as usize);
    match fate(load) {
        _ if !parts => usize::MAX,
        0 => 1,
        1 => wanted.min(3),
        _ => wanted,
    }
}

impl Source {
    /// Keeps these tables, named without `|`, for so many shards.
    pub(crate) fn new(tables: &[String], shards: usize) -> Self {
        let tables = tables.iter().map(|name| format!("{name}|").into_bytes()).collect();
        let sides = (0..shards).map(|_| Side::default()).collect();
        Self { tables, log: Vec::new(), told: 0, sides }
    }

    pub(crate) fn keeps(&self, key: &[u8]) -> bool {
        self.tables.iter().any(|prefix| key.starts_with(prefix))
    }

    pub(crate) fn keeps_any_of(&self, range: &KeyRange) -> bool {
        self.tables.iter().any(|prefix| KeyRange::prefix(prefix).overlaps(range))
    }

    pub(crate) fn keeps_anything(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Where it stands.
    pub(crate) fn position(&self) -> u64 {
        self.log.len() as u64
    }

    fn values_at(&self, position: u64) -> Values {
        let mut values = Values::new();
        self.log[..position as usize].iter().for_each(|changes| apply(&mut values, changes));
        values
    }

    /// What it holds.
    pub(crate) fn values(&self) -> Values {
        self.values_at(self.position())
    }

    /// What it held as of what a shard has applied.
    pub(crate) fn held_at(&self, at: usize) -> &Values {
        &self.sides[at].held
    }

    /// A transaction.
    pub(crate) fn commit(&mut self, changes: Vec<Change>) {
        self.log.push(changes);
    }

    /// A shard asks for a range.
    pub(crate) fn load(
        &mut self,
        at: usize,
        (fetch, portion): (FetchId, Portion),
        range: KeyRange,
        placement: &Placement,
    ) -> Result<(), String> {
        let home = placement.home_of_range(&range);
        let inside = self.tables.iter().any(|prefix| KeyRange::prefix(prefix).covers(&range));
        let since = self.told;
        let side = &mut self.sides[at];
        let known = side.open.iter().map(|load| &load.range).chain(&side.followed);
        if !inside || range.is_empty() || home.is_some_and(|home| home != Shard(at as u16)) {
            return Err(format!("shard {at} asks the source for {range:?}, home {home:?}"));
        }
        if let Some(known) = known.clone().find(|known| known.overlaps(&range)) {
            return Err(format!("shard {at} asks for {range:?}, though it has {known:?}"));
        }
        side.open.push(Load { fetch, range, portion, since });
        Ok(())
    }

    /// A shard follows a range no more.
    pub(crate) fn unfollow(&mut self, at: usize, range: &KeyRange) {
        let side = &mut self.sides[at];
        side.followed = side.followed.iter().flat_map(|known| known.without(range)).collect();
    }

    fn is_followed(&self, key: &[u8]) -> bool {
        let open = |side: &Side| side.open.iter().any(|load| load.range.contains(key));
        let followed = |side: &Side| side.followed.iter().any(|range| range.contains(key));
        self.sides.iter().any(|side| open(side) || followed(side))
    }

    fn tell_all(&mut self, news: &News) {
        self.sides.iter_mut().for_each(|side| side.inbox.push_back(news.clone()));
    }

    /// Tells some of what has changed, or all of it.
    pub(crate) fn tell(&mut self, rng: &mut Rng, all: bool) {
        while self.told < self.position() && (all || rng.chance(60)) {
            let mut changes = self.log[self.told as usize].clone();
            self.told += 1;
            if rng.chance(70) {
                changes.retain(|change| self.is_followed(&change.key));
            }
            self.tell_all(&News::Changed(self.told, changes));
        }
    }

    /// Loses track of what has changed: everything is to be loaded again.
    pub(crate) fn lose(&mut self) {
        self.told = self.position();
        for prefix in self.tables.clone() {
            self.tell_all(&News::Reset(KeyRange::prefix(&prefix)));
        }
        self.tell_all(&News::Changed(self.told, Vec::new()));
        for load in self.sides.iter_mut().flat_map(|side| &mut side.open) {
            load.since = self.told;
        }
    }

    /// Answers some loads, or all of them, of which so many in a thousand fail; how many were answered, and how many failed.
    pub(crate) fn answer(
        &mut self,
        rng: &mut Rng,
        all: bool,
        (fails, parts): (usize, bool),
    ) -> (u64, u64) {
        let (mut answered, mut failed) = (0, 0);
        for at in 0..self.sides.len() {
            let mut open = std::mem::take(&mut self.sides[at].open);
            rng.shuffle(&mut open);
            for mut load in open {
                if !all && rng.chance(60) {
                    self.sides[at].open.push(load);
                    continue;
                }
                if !all
                    && parts
                    && let Some(part) = self.show_before(&load)
                {
                    load.range.first.clone_from(&part.known.last);
                    self.sides[at].followed.push(part.known.clone());
                    self.sides[at].inbox.push_back(News::LoadedPart(load.fetch, part));
                    self.sides[at].open.push(load);
                    continue;
                }
                let answer = if rng.below(1000) < fails {
                    failed += 1;
                    Err(String::from("broken"))
                } else {
                    answered += 1;
                    let late = rng.below((self.told - load.since + 1) as usize) as u64;
                    let position = if rng.chance(50) { self.told } else { load.since + late };
                    let loaded = self.show(&load, position, rows_of(&load, parts));
                    let known = loaded.known.as_ref().unwrap_or(&load.range);
                    self.sides[at].followed.push(known.clone());
                    Ok(loaded)
                };
                self.sides[at].inbox.push_back(News::Loaded(load.fetch, answer));
            }
        }
        (answered, failed)
    }

    /// The first rows of a load that brings some before its answer, if it has more.
    fn show_before(&self, load: &Load) -> Option<LoadedPart> {
        let rows = match fate(load) {
            2 => 1,
            3 => 2,
            _ => return None,
        };
        let whole = load.portion.rows.is_none() && !load.portion.reverse;
        let Loaded { position, pairs, known } = self.show(load, self.told, rows);
        let known = known.filter(|_| whole)?;
        let pairs = pairs.iter().map(|pair| (&*pair.key, &*pair.value)).collect();
        Some(LoadedPart { position, pairs, known })
    }

    /// What it answers, of so many rows at most.
    fn show(&self, load: &Load, position: u64, rows_max: usize) -> Loaded {
        let Load { range, portion, .. } = load;
        let values = self.values_at(position).into_iter().filter(|(key, _)| range.contains(key));
        let pair = |(key, value)| Pair { key, value, attributes: Attributes::default() };
        let mut pairs: Vec<_> = values.map(pair).collect();
        let rows = rows_max.max(1);
        if rows >= pairs.len() {
            return Loaded { position: Position(position), pairs, known: None };
        }
        let mut known = range.clone();
        if portion.reverse {
            pairs.drain(..pairs.len() - rows);
            known.first.clone_from(&pairs[0].key);
        } else {
            known.last.clone_from(&pairs[rows].key);
            pairs.truncate(rows);
        }
        Loaded { position: Position(position), pairs, known: Some(known) }
    }

    /// Lets a shard take some of its news, or all of them; whether there were any. Of the changes it may be that one is left
    /// out, on purpose.
    pub(crate) fn deliver(
        &mut self,
        at: usize,
        engine: &mut Engine,
        rng: &mut Rng,
        (all, cut): (bool, bool),
    ) -> bool {
        let mut any = false;
        while (all || rng.chance(70))
            && let Some(news) = self.sides[at].inbox.pop_front()
        {
            any = true;
            match news {
                News::Changed(position, mut changes) => {
                    let side = &mut self.sides[at];
                    for changes in &self.log[side.applied as usize..position as usize] {
                        apply(&mut side.held, changes);
                    }
                    side.applied = position;
                    if cut && rng.chance(20) {
                        changes.pop();
                    }
                    engine.changed(NAME, Position(position), &changes);
                }
                News::Loaded(fetch, answer) => engine.loaded(fetch, answer),
                News::LoadedPart(fetch, part) => engine.loaded_part(fetch, part),
                News::Reset(range) => engine.source_reset(NAME, &range),
            }
        }
        any
    }

    /// A shard has begun anew: nothing is here for it.
    pub(crate) fn restarted(&mut self, at: usize) {
        let held = self.values_at(self.told);
        let inbox = VecDeque::from([News::Changed(self.told, Vec::new())]);
        self.sides[at] = Side { applied: self.told, held, inbox, ..Side::default() };
    }

    /// Whether all has been told, taken and answered.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = |side: &Side| side.inbox.is_empty() && side.open.is_empty();
        self.told == self.position() && self.sides.iter().all(idle)
    }

    /// What it tells shards of, though nobody asks.
    pub(crate) fn left(&self) -> Vec<&KeyRange> {
        self.sides.iter().flat_map(|side| &side.followed).collect()
    }
}
