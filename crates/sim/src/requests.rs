//! What clients ask: writes, reads and watches, what becomes of them, and who waits.

use crate::clients::{Ask, Parked, Until};
use crate::source::NAME;
use crate::world::World;
use headwater_base::{KeyRange, Millis, Shard};
use headwater_engine::{
    Change, Engine, EngineError, Expiry, Follower, Position, RangeOptions, Stop, Ticket, Value,
};

/// The longest that a key lives that is to expire, in milliseconds.
pub(crate) const LIFE: usize = 3000;

impl World {
    pub(crate) fn write(&mut self, session: usize) -> Result<(), String> {
        let key = self.key();
        if self.source.keeps(&key) {
            self.commit(key);
            return Ok(());
        }
        let at = self.home(&key);
        if self.shards[at].stopped_until > self.now || self.sessions[session].open > 12 {
            return Ok(());
        }
        let at_last = (self.rng.chance(20) && self.faults.lives)
            .then(|| self.now + 1 + self.rng.below(LIFE) as u64);
        match self.rng.below(100) {
            0..22 => return self.ask(session, &Ask::Remove(key), at),
            22..27 if self.faults.lives => {
                return self.ask(session, &Ask::Expire(key, at_last), at);
            }
            27..30 if self.faults.removals => return self.remove_range(session),
            _ => {}
        }
        let value = (self.events + 1).to_string().into_bytes();
        let expiry = at_last.map_or(Expiry::Never, |at| Expiry::At(Millis(at)));
        let given = self.shards[at].sliced(|engine| engine.set(&key, &value, expiry));
        if self.refuses(at, &key, given.as_ref().err())? {
            return Ok(());
        }
        let values = self.history.entry(key.clone()).or_default();
        values.push(value.clone());
        self.sessions[session].seen.insert(key.clone(), values.len() - 1);
        self.shards[at].oracle.base.insert(key, (value, at_last));
        self.written(session, at);
        // The turn goes on, or ends.
        if self.rng.chance(30) { Ok(()) } else { self.settle(at) }
    }

    /// The keys of a range go, at each of their homes.
    fn remove_range(&mut self, session: usize) -> Result<(), String> {
        let range = self.domain.range(&mut self.rng, &self.joins.joins);
        if range.is_empty() || self.shards.iter().any(|one| one.stopped_until > self.now) {
            return Ok(());
        }
        self.note("ranges removed");
        self.ask_all(session, &Ask::RemoveRange(range))
    }

    /// A transaction at the source.
    fn commit(&mut self, first: Vec<u8>) {
        let mut changes = Vec::new();
        let mut next = Some(first);
        while let Some(key) = next.take() {
            if self.source.keeps(&key) {
                let number = self.events + 1 + changes.len() as u64;
                let value = (!self.rng.chance(25)).then(|| format!("s{number}").into_bytes());
                let known = value.iter().cloned();
                self.history.entry(key.clone()).or_default().extend(known);
                changes.push(Change { key, value });
            }
            if self.rng.chance(30) {
                next = Some(self.key());
            }
        }
        self.events += changes.len() as u64;
        self.source.commit(changes);
        self.note("transactions at sources");
    }

    /// Whether a key is rightly refused, where it is.
    fn refuses(
        &mut self,
        at: usize,
        key: &[u8],
        error: Option<&EngineError>,
    ) -> Result<bool, String> {
        let shown = key.escape_ascii();
        let is_output = !self.shards[at].oracle.owners(key).is_empty() || self.is_prepared(at, key);
        match error {
            None if !is_output => Ok(false),
            Some(EngineError::Joined { .. }) if is_output => {
                if self.is_prepared(at, key) {
                    self.note("writes refused for a join to come");
                }
                Ok(true)
            }
            error => Err(format!("shard {at}: a write of {shown}, output {is_output}: {error:?}")),
        }
    }

    /// Notes that a session has written at a shard.
    fn written(&mut self, session: usize, at: usize) {
        self.shards[at].version += 1;
        self.note_state(at);
        self.events += 1;
        let stamp = self.shards[at].peers.stamp();
        self.sessions[session].positions.reach(Shard(at as u16), stamp);
    }

    pub(crate) fn read(&mut self, session: usize) -> Result<(), String> {
        if self.sessions[session].open > 12 {
            return Ok(());
        }
        let range = self.domain.range(&mut self.rng, &self.joins.joins);
        if range.is_empty() {
            return Ok(());
        }
        let ask = match self.rng.below(10) {
            0 => Ask::Get(self.some_key()),
            1 => Ask::Verify(range),
            _ => Ask::Range(range),
        };
        self.ask_all(session, &ask)
    }

    /// A key of the oracle's, or another.
    fn some_key(&mut self) -> Vec<u8> {
        let (_, view) = self.whole();
        if view.seen.is_empty() || self.rng.chance(20) {
            return self.key();
        }
        let at = self.rng.below(view.seen.len());
        view.seen.keys().nth(at).expect("there are so many").clone()
    }

    /// Asks all shards that have a part of it.
    pub(crate) fn ask_all(&mut self, session: usize, ask: &Ask) -> Result<(), String> {
        match self.placement.home_of_range(&ask.range()) {
            Some(home) => self.ask(session, ask, usize::from(home.0)),
            None => (0..self.shards.len()).try_for_each(|at| self.ask(session, ask, at)),
        }
    }

    pub(crate) fn ask(&mut self, session: usize, ask: &Ask, at: usize) -> Result<(), String> {
        let asking = &mut self.sessions[session];
        asking.open += 1;
        let (after, seen) = (asking.positions.clone(), asking.seen.clone());
        // Nobody wakes this one.
        let until = Until::Data(Ticket(u64::MAX));
        let (ask, shard, events) = (ask.clone(), Shard(at as u16), self.events);
        let mut reach = (0, Vec::new());
        let is_read = !matches!(ask, Ask::Watch(..));
        if is_read && self.source.position() > 0 && !self.quiet && self.rng.chance(30) {
            // As a read AT the source's position does.
            reach = (self.source.position(), (0..self.shards.len()).collect());
        }
        let (waits_at, accepts) = (shard, self.accepted(&ask));
        let parked =
            Parked { session, shard, waits_at, ask, accepts, reach, after, seen, until, events };
        self.attempt(parked)?;
        self.settle(at)
    }

    pub(crate) fn attempt(&mut self, parked: Parked) -> Result<(), String> {
        // A part of what is watched is watched where the rest is.
        let whole = match &parked.ask {
            Ask::Watch(by, _) => self.watches.get(by).cloned(),
            ask => Some(ask.range()),
        };
        let Some(whole) = whole else {
            // Another shard has refused it.
            self.sessions[parked.session].open -= 1;
            return Ok(());
        };
        let Some(mut parked) = self.await_positions(parked)? else { return Ok(()) };
        if let Some(home) = self.placement.home_of_range(&whole) {
            parked.shard = home;
        }
        parked.waits_at = parked.shard;
        let at = usize::from(parked.shard.0);
        if matches!(parked.ask, Ask::Watch(..)) {
            // What was told before belongs to what the client had before.
            self.shards[at].hear()?;
        }
        let one = &mut self.shards[at];
        // As where the connection is known to be lost: then nobody waits for what it would say.
        if parked.accepts == 0
            && let Some(wait) = one.peers.wait(&one.engine, &parked.after)
        {
            parked.until = Until::Settled(wait);
            self.parked.push(parked);
            self.note("waits for positions");
            return Ok(());
        }
        if one.has_snapshots() {
            let (_, view) = one.explained(&self.placement);
            one.moments.note(one.oracle.now, &view);
        }
        let mut pairs = Vec::new();
        let mut removed = 0;
        // Some ranges are read in part first.
        let limited = self.events.is_multiple_of(3).then(|| RangeOptions {
            reverse: self.events.is_multiple_of(2),
            limit: Some(1 + self.events % 4),
        });
        let mut limited_is_right = true;
        let done = match &parked.ask {
            Ask::Range(range) => one.sliced(|engine| {
                engine.accept_age(parked.accepts);
                let read = read_range(engine, range, limited, &mut pairs);
                engine.accept_age(0);
                limited_is_right = read?;
                Ok(())
            }),
            Ask::Get(key) => one.sliced(|engine| {
                let value = engine.get(key)?;
                pairs.extend(value.map(|value| (key.clone(), value.to_vec())));
                Ok(())
            }),
            Ask::Verify(range) => match one.sliced(|engine| engine.verify(range, 10)) {
                Ok(found) if found.is_empty() => Ok(()),
                Ok(found) => return Err(format!("shard {at}: VERIFY gives {found:?}")),
                Err(stop) => Err(stop),
            },
            Ask::Watch(by, range) => one.watch(*by, range).map(|found| pairs = found),
            Ask::Remove(key) => {
                one.sliced(|engine| engine.remove(key)).map(|there| removed = u64::from(there))
            }
            // As within a transaction: others see none of it or all.
            Ask::RemoveRange(range) => {
                one.engine.remove_range(&range.first, &range.last).map(|count| removed = count)
            }
            Ask::Expire(key, moment) => one
                .sliced(|engine| engine.set_expiry(key, moment.map(Millis)))
                .map(|there| removed = u64::from(there)),
        };
        match done {
            Err(Stop::Wait(ticket)) => {
                parked.until = Until::Data(ticket);
                self.parked.push(parked);
                self.note("waits for data");
                return Ok(());
            }
            Err(Stop::Failed(error)) => self.refused(&parked, &error)?,
            Ok(())
                if matches!(parked.ask, Ask::Remove(_) | Ask::RemoveRange(_) | Ask::Expire(..)) =>
            {
                self.changed(&parked, removed)?;
            }
            Ok(()) => {
                self.note("answers checked");
                let text = format!("shard {at}, {:?}", parked.ask);
                if !limited_is_right {
                    return Err(format!("{text}: with {limited:?} it is no part of {pairs:?}"));
                }
                self.check(&parked, &pairs).map_err(|error| format!("{text}: {error}"))?;
                self.check_older(&parked, &pairs).map_err(|error| format!("{text}: {error}"))?;
                if let Ask::Watch(by, range) = &parked.ask {
                    self.shards[at].copies.add(*by, range, pairs);
                }
            }
        }
        let session = &mut self.sessions[parked.session];
        session.open -= 1;
        if session.causal {
            session.positions.merge(&self.shards[at].peers.positions());
        }
        Ok(())
    }

    /// Gives the request back when its shards have reached what it is to be read at.
    fn await_positions(&mut self, mut parked: Parked) -> Result<Option<Parked>, String> {
        while let Some(&at) = parked.reach.1.last() {
            let one = &mut self.shards[at];
            match one.engine.await_position(NAME, Position(parked.reach.0)) {
                Ok(()) => parked.after.reach(Shard(at as u16), one.peers.stamp()),
                Err(Stop::Wait(ticket)) => {
                    (parked.waits_at, parked.until) = (Shard(at as u16), Until::Data(ticket));
                    self.parked.push(parked);
                    self.note("waits for positions of sources");
                    return Ok(None);
                }
                Err(Stop::Failed(error)) => return Err(error.to_string()),
            }
            parked.reach.1.pop();
        }
        Ok(Some(parked))
    }

    /// A request that is refused.
    fn refused(&mut self, parked: &Parked, error: &EngineError) -> Result<(), String> {
        match (&parked.ask, error) {
            (Ask::Remove(key) | Ask::Expire(key, _), EngineError::Joined { .. }) => {
                self.refuses(usize::from(parked.shard.0), key, Some(error)).map(drop)
            }
            (Ask::RemoveRange(range), _) if self.source.keeps_any_of(range) => Ok(()),
            (Ask::Watch(by, _), EngineError::Refused(_)) if self.has_lazy_joins() => {
                self.unwatch(*by)
            }
            _ => Err(format!("{parked:?}: {error:?}")),
        }
    }

    /// So many base keys were removed, or have another moment of their end.
    fn changed(&mut self, parked: &Parked, count: u64) -> Result<(), String> {
        let at = usize::from(parked.shard.0);
        let one = &mut self.shards[at];
        let base = &mut one.oracle.base;
        let before = base.len();
        let known = match &parked.ask {
            Ask::Remove(key) => u64::from(base.remove(key).is_some()),
            Ask::RemoveRange(range) => {
                base.retain(|key, _| !range.contains(key));
                (before - base.len()) as u64
            }
            Ask::Expire(key, moment) => {
                let known = base.get_mut(key).map(|(_, at)| *at = *moment);
                let now = one.oracle.now;
                one.oracle.advance(now);
                u64::from(known.is_some())
            }
            _ => return Ok(()),
        };
        if count != known {
            return Err(format!("shard {at}: {:?} says {count}, not {known}", parked.ask));
        }
        if let Ask::Remove(key) | Ask::Expire(key, _) = &parked.ask {
            self.refuses(at, &key.clone(), None)?;
        }
        self.written(parked.session, at);
        Ok(())
    }

    /// Somebody begins to watch, or ends it.
    pub(crate) fn watch(&mut self) -> Result<(), String> {
        let range = self.domain.range(&mut self.rng, &self.joins.joins);
        if let Some(&by) = self.watches.keys().next()
            && (range.is_empty() || self.watches.len() > 3 || self.rng.chance(30))
        {
            return self.unwatch(by);
        }
        if range.is_empty() {
            return Ok(());
        }
        let by = self.next_client;
        self.next_client += 1;
        self.watches.insert(by, range.clone());
        self.ask_all(0, &Ask::Watch(by, range))
    }

    /// What watching clients have lost they watch anew.
    pub(crate) fn watch_anew(&mut self) -> Result<(), String> {
        for at in 0..self.shards.len() {
            for (by, part) in std::mem::take(&mut self.shards[at].lost) {
                if let Some(whole) = self.watches.get(&by) {
                    let home = self.placement.home_of_range(whole);
                    let has_moved = home.is_some_and(|home| usize::from(home.0) != at);
                    let range = if has_moved { whole.clone() } else { part };
                    self.note("watches begun anew");
                    self.ask(0, &Ask::Watch(by, range), at)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn unwatch(&mut self, by: u32) -> Result<(), String> {
        self.watches.remove(&by);
        for one in &mut self.shards {
            // What has happened before is told.
            one.hear()?;
            one.copies.cut(by, &KeyRange::all());
            one.engine.unfollow_all(Follower(by));
        }
        self.unpark(|parked| matches!(parked.ask, Ask::Watch(other, _) if other == by));
        Ok(())
    }

    /// Forgets requests.
    pub(crate) fn unpark(&mut self, which: impl Fn(&Parked) -> bool) {
        let (sessions, shards) = (&mut self.sessions, &mut self.shards);
        self.parked.retain(|parked| {
            let goes = which(parked);
            sessions[parked.session].open -= usize::from(goes);
            if goes && let Until::Data(ticket) = parked.until {
                shards[usize::from(parked.waits_at.0)].engine.forget_ticket(ticket);
            }
            !goes
        });
    }
}

/// Reads a range; whether a limited read before, if there was one, has shown a beginning of it.
fn read_range(
    engine: &mut Engine,
    range: &KeyRange,
    limited: Option<RangeOptions>,
    pairs: &mut Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<bool, Stop> {
    let some = read_limited(engine, range, limited)?;
    let each = &mut |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
    engine.range(&range.first, &range.last, RangeOptions::default(), each)?;
    Ok(limited.is_none_or(|options| is_beginning(&some, pairs, options)))
}

/// The keys that a limited read of a range shows, if there is one.
fn read_limited(
    engine: &mut Engine,
    range: &KeyRange,
    limited: Option<RangeOptions>,
) -> Result<Vec<Vec<u8>>, Stop> {
    let mut keys = Vec::new();
    if let Some(options) = limited {
        let each = &mut |key: &[u8], _: Value<'_>| keys.push(key.to_vec());
        engine.range(&range.first, &range.last, options, each)?;
    }
    Ok(keys)
}

/// Whether these are the keys that a limited read shows of a range that holds `pairs`.
fn is_beginning(keys: &[Vec<u8>], pairs: &[(Vec<u8>, Vec<u8>)], options: RangeOptions) -> bool {
    let most = options.limit.map_or(usize::MAX, |limit| limit as usize);
    let all = || pairs.iter().map(|(key, _)| key);
    match options.reverse {
        true => all().rev().take(most).eq(keys),
        false => all().take(most).eq(keys),
    }
}
