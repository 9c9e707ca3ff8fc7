//! The checks of histories with sources are checked, as in `can_fail.rs`: a subject that loads
//! whole tables and is right passes; with one fault it is caught.

use crate::faulty::{assert_caught, assert_passes};
use headwater_base::source::LoadedPart;
use headwater_base::{KeyRange, Millis, table_of};
use headwater_engine::{
    Change, Difference, Effect, Engine, EngineError, Expiry, FetchId, JoinInstalled, Loaded,
    Portion, Position, RangeOptions, Settings, Stop, TableOptions, Ticket,
};
use headwater_model::check::Kind;
use headwater_model::copies::unfollowed;
use headwater_model::join::Join;
use headwater_model::oracle::{Oracle, Pairs, within};
use headwater_model::subject::{FeedChange, FollowerNotification, Pair, Subject};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Changes that come before the answer of a load are lost.
    LosesEarlyChanges,
    /// Changes that the answer of a load shows already are applied once more.
    RepeatsOldChanges,
    /// Every read loads for itself.
    LoadsTwice,
    /// Of several reads that wait, one is woken.
    WakesOne,
    /// A load that failed is never asked again.
    GivesUp,
    /// A read is answered as soon as its first table is there.
    AnswersHalf,
    /// What a source has lost track of is believed.
    IgnoresResets,
    /// Clients may write what a source keeps.
    AcceptsWrites,
}

/// Ranges that have come, and where their source stood.
type Parts = Vec<(KeyRange, Position)>;

enum State {
    Absent,
    /// The load under way, what it asked for, what came before it, and changes since.
    Loading(FetchId, KeyRange, Parts, Vec<(Position, Change)>),
    Failed(String),
    There(Parts),
}

/// The first of a table's keys that no part has.
fn gap(name: &[u8], parts: &Parts) -> Option<KeyRange> {
    let mut rest = KeyRange::prefix(&[name, b"|"].concat());
    let mut parts: Vec<&KeyRange> = parts.iter().map(|(range, _)| range).collect();
    parts.sort_by(|one, other| one.first.cmp(&other.first));
    for part in parts {
        if part.first > rest.first {
            rest.last.clone_from(&part.first);
            return Some(rest);
        }
        rest.first.clone_from(&part.last);
    }
    (!rest.is_empty()).then_some(rest)
}

struct Table {
    source: String,
    state: State,
}

struct Standin {
    fault: Fault,
    oracle: Oracle,
    tables: BTreeMap<Vec<u8>, Table>,
    effects: Vec<Effect>,
    waiting: Vec<Ticket>,
    numbers: u64,
    followed: Vec<(u32, KeyRange)>,
    /// What followers know of their ranges.
    given: BTreeMap<(u32, Vec<u8>, Vec<u8>), Vec<Pair>>,
    engine: Engine,
}

fn standin(fault: Fault) -> Box<dyn Subject> {
    Box::new(Standin {
        fault,
        oracle: Oracle::default(),
        tables: BTreeMap::new(),
        effects: Vec::new(),
        waiting: Vec::new(),
        numbers: 0,
        followed: Vec::new(),
        given: BTreeMap::new(),
        engine: Engine::new(Settings::default()),
    })
}

impl Standin {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Every table is needed for everything.
    fn need(&mut self) -> Result<(), Stop> {
        let names: Vec<Vec<u8>> = self.tables.keys().cloned().collect();
        let (mut missing, mut there) = (false, false);
        for name in names {
            let number = self.number();
            let table = self.tables.get_mut(&name).expect("a known name");
            if let State::Failed(message) = &table.state {
                let (source, message) = (table.source.clone(), message.clone());
                if self.fault != Fault::GivesUp {
                    table.state = State::Absent;
                }
                return Err(EngineError::SourceFailed { source, message }.into());
            }
            let ask = match table.state {
                State::Absent => true,
                State::Loading(..) => self.fault == Fault::LoadsTwice,
                _ => false,
            };
            if ask {
                let (fetch, source) = (FetchId(number), table.source.clone());
                let range = KeyRange::prefix(&[&name[..], b"|"].concat());
                let (asked, portion) = (range.clone(), Portion::default());
                self.effects.push(Effect::Load { fetch, source, range, portion });
                table.state = State::Loading(fetch, asked, Vec::new(), Vec::new());
            }
            match table.state {
                State::There(_) => there = true,
                _ => missing = true,
            }
        }
        if !missing || (there && self.fault == Fault::AnswersHalf) {
            return Ok(());
        }
        let ticket = Ticket(self.number());
        self.waiting.push(ticket);
        Err(Stop::Wait(ticket))
    }

    fn apply(oracle: &mut Oracle, change: &Change) {
        match &change.value {
            Some(value) => drop(oracle.base.insert(change.key.clone(), (value.clone(), None))),
            None => drop(oracle.base.remove(&change.key)),
        }
    }

    /// What a source holds under a join's output is not seen.
    fn seen(&self) -> Pairs {
        let mut oracle = self.oracle.clone();
        oracle.base.retain(|key, _| self.oracle.owners(key).is_empty());
        oracle.view().seen
    }

    fn may_write(&self, key: &[u8]) -> Result<(), EngineError> {
        if let Some(join) = self.oracle.owners(key).first() {
            return Err(EngineError::Joined { join: (*join).to_string() });
        }
        let sourced = table_of(key).is_some_and(|table| self.tables.contains_key(table));
        if sourced && self.fault != Fault::AcceptsWrites {
            return Err(EngineError::Refused(String::from("a source keeps this table")));
        }
        Ok(())
    }
}

impl Subject for Standin {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }
    fn advance(&mut self, _now: Millis) {}
    fn set(&mut self, key: &[u8], value: &[u8], _expiry: Expiry) -> Result<(), EngineError> {
        self.may_write(key)?;
        self.oracle.base.insert(key.to_vec(), (value.to_vec(), None));
        Ok(())
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        self.may_write(key)?;
        Ok(self.oracle.base.remove(key).is_some())
    }
    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
    ) -> Result<Vec<Pair>, Stop> {
        self.need()?;
        let seen = self.seen().into_iter();
        let mut pairs: Vec<Pair> = seen.filter(|(key, _)| within(key, first, last)).collect();
        if options.reverse {
            pairs.reverse();
        }
        pairs.truncate(options.limit.unwrap_or(u64::MAX) as usize);
        Ok(pairs)
    }
    fn follow(&mut self, by: u32, range: &KeyRange) -> Result<Vec<Pair>, Stop> {
        let pairs = self.range(&range.first, &range.last, RangeOptions::default())?;
        self.followed.push((by, range.clone()));
        self.given.insert((by, range.first.clone(), range.last.clone()), pairs.clone());
        Ok(pairs)
    }
    fn unfollow(&mut self, by: u32, range: &KeyRange) {
        self.followed = unfollowed(std::mem::take(&mut self.followed), by, range);
    }
    /// Nothing is known of changes: what is not as it was is to be read again.
    fn told(&mut self) -> Vec<FollowerNotification> {
        let seen = self.seen();
        let is_whole = self.tables.values().all(|table| matches!(table.state, State::There(_)));
        let is_as_given = |(by, range): &(u32, KeyRange)| {
            let given = self.given.get(&(*by, range.first.clone(), range.last.clone()));
            let now = seen.iter().filter(|(key, _)| within(key, &range.first, &range.last));
            is_whole
                && given.is_some_and(|given| given.iter().map(|(key, value)| (key, value)).eq(now))
        };
        let followed = std::mem::take(&mut self.followed).into_iter();
        let (same, other): (Vec<_>, Vec<_>) = followed.partition(is_as_given);
        self.followed = same;
        let resets = other.into_iter().map(|(by, range)| FollowerNotification {
            followers: vec![by],
            change: FeedChange::Reset(range),
        });
        resets.collect()
    }
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.need()?;
        Ok(self.seen().get(key).cloned())
    }
    fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        Ok(self.get(key)?.map(|_| None))
    }
    fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.get(key)?;
        self.watched(key)
    }
    fn watched(&mut self, _key: &[u8]) -> Result<u64, Stop> {
        Ok(self.number())
    }
    fn join_add(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        let join = Join::parse(text).expect("histories write the full form");
        if self.oracle.verdict(name, &join, replace) != headwater_model::oracle::Verdict::Accept {
            return Err(EngineError::Refused(String::from("as the oracle says")));
        }
        self.oracle.install(name, join.clone());
        Ok(JoinInstalled { canonical: join.to_string(), warnings: Vec::new() })
    }
    fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        let gone = self.oracle.uninstall(name);
        if gone { Ok(()) } else { Err(EngineError::NoSuchJoin(name.to_string())) }
    }
    fn table_set(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        if let Some(source) = options.source.clone() {
            self.tables.insert(name.to_vec(), Table { source, state: State::Absent });
        }
        Ok(())
    }
    fn verify(&mut self, _range: &KeyRange, _most: usize) -> Result<Vec<Difference>, Stop> {
        self.need()?;
        Ok(Vec::new())
    }
    fn loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) {
        let fault = self.fault;
        let (mut unfollowed, mut goes_on) = (Vec::new(), None);
        for (name, table) in &mut self.tables {
            let State::Loading(of, asked, parts, early) = &mut table.state else { continue };
            if *of != fetch {
                continue;
            }
            let (mut parts, early) = (std::mem::take(parts), std::mem::take(early));
            let loaded = match &answer {
                Err(message) => {
                    unfollowed.extend(parts.into_iter().map(|part| (table.source.clone(), part.0)));
                    table.state = State::Failed(message.clone());
                    continue;
                }
                Ok(loaded) => loaded,
            };
            let known = loaded.known.clone().unwrap_or_else(|| asked.clone());
            parts.push((known, loaded.position));
            let pairs = loaded.pairs.iter().cloned();
            self.oracle.base.extend(pairs.map(|pair| (pair.key, (pair.value, None))));
            if let Some(rest) = gap(name, &parts) {
                goes_on = Some((name.clone(), rest, parts, early));
                continue;
            }
            for (position, change) in &early {
                let holds = |part: &&(KeyRange, Position)| part.0.contains(&change.key);
                let since = parts.iter().find(holds).expect("all of it is there").1;
                let is_newer = *position > since || fault == Fault::RepeatsOldChanges;
                if is_newer && fault != Fault::LosesEarlyChanges {
                    Self::apply(&mut self.oracle, change);
                }
            }
            table.state = State::There(parts);
        }
        for (source, range) in unfollowed {
            self.oracle.base.retain(|key, _| !range.contains(key));
            self.effects.push(Effect::Unfollow { source, range });
        }
        if let Some((name, rest, parts, early)) = goes_on {
            let fetch = FetchId(self.number());
            let table = self.tables.get_mut(&name).expect("it was just there");
            let (source, range) = (table.source.clone(), rest.clone());
            let portion = Portion::default();
            self.effects.push(Effect::Load { fetch, source, range, portion });
            table.state = State::Loading(fetch, rest, parts, early);
            return;
        }
        if self.fault == Fault::WakesOne {
            self.waiting.truncate(1);
        }
        self.effects.extend(self.waiting.drain(..).map(Effect::Wake));
    }
    fn loaded_part(&mut self, fetch: FetchId, part: LoadedPart) {
        for table in self.tables.values_mut() {
            let State::Loading(of, asked, parts, _) = &mut table.state else { continue };
            if *of != fetch {
                continue;
            }
            asked.first.clone_from(&part.known.last);
            parts.push((part.known.clone(), part.position));
            let pairs = part.pairs.iter();
            let pairs = pairs.map(|(key, value)| (key.to_vec(), (value.to_vec(), None)));
            self.oracle.base.extend(pairs);
        }
    }
    fn changed(&mut self, source: &str, position: Position, changes: &[Change]) {
        for change in changes {
            let table = table_of(&change.key).and_then(|name| self.tables.get_mut(name));
            let Some(table) = table.filter(|table| table.source == source) else { continue };
            match &mut table.state {
                State::Loading(.., early) => early.push((position, change.clone())),
                State::There(parts) => {
                    let part = parts.iter().find(|part| part.0.contains(&change.key));
                    if part.is_some_and(|part| position > part.1) {
                        Self::apply(&mut self.oracle, change);
                    }
                }
                _ => {}
            }
        }
    }
    fn source_reset(&mut self, source: &str) {
        if self.fault == Fault::IgnoresResets {
            return;
        }
        for (name, table) in &mut self.tables {
            if table.source != source {
                continue;
            }
            let parts = match &mut table.state {
                State::There(parts) | State::Loading(_, _, parts, _) => std::mem::take(parts),
                _ => continue,
            };
            if matches!(table.state, State::There(_)) {
                table.state = State::Absent;
                self.oracle.base.retain(|key, _| table_of(key) != Some(name));
            }
            for (range, _) in parts {
                self.oracle.base.retain(|key, _| !range.contains(key));
                self.effects.push(Effect::Unfollow { source: source.to_string(), range });
            }
        }
    }
    fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}

#[test]
fn a_right_subject_passes() {
    assert_passes(Kind::Sources, 1000, || standin(Fault::None));
}

macro_rules! caught {
    ($($name:ident: $fault:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_caught(Kind::Sources, $fault, 20, || standin($fault));
        }
    )*};
}

caught! {
    lost_early_changes_are_caught: Fault::LosesEarlyChanges;
    repeated_changes_are_caught: Fault::RepeatsOldChanges;
    a_second_load_is_caught: Fault::LoadsTwice;
    a_lost_wake_up_is_caught: Fault::WakesOne;
    giving_up_is_caught: Fault::GivesUp;
    half_an_answer_is_caught: Fault::AnswersHalf;
    an_ignored_reset_is_caught: Fault::IgnoresResets;
    an_accepted_write_is_caught: Fault::AcceptsWrites;
}
