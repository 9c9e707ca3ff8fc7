//! Sources of base data: which there are, what was asked of them, and how long they may take.
//!
//! The sources are the process's ([`Common`]). Each shard has a hub, which stands between its engine, which asks and never
//! waits, and the sources, which answer from threads of their own through the shard's inbox. What is not answered in time fails
//! with an error that names the source; an answer that comes later is ignored by whoever it was for.

mod common;
mod inbox;
mod kinds;
#[cfg(test)]
pub(crate) mod scripted;

pub(crate) use common::Common;
pub(crate) use inbox::{Inbox, RoomAnswer, SourceMemory, Tag, Told};

use crate::connection::ConnectionId;
use headwater_base::source::{Change, FetchId, Health, News, Portion, Position, Written};
use headwater_base::{KeyRange, Shard};
use headwater_postgres::terms::Terms;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a session asked a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// A table was declared, with these warnings; or why not.
    Declared(Result<Vec<String>, String>),
    /// Where the source stands.
    Position(Result<Position, String>),
    /// What was written.
    Written(Result<Written, String>),
}

/// Something that was asked and is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Asked {
    /// A load, for the engine.
    Load(FetchId),
    /// A request, for a session.
    Request(u64),
    /// That a position be reached, for a session.
    Reach(ConnectionId),
}

/// What a shard knows of a source by what it has been told.
struct Known {
    /// Which one of that name.
    number: u64,
    health: Health,
}

/// A source, as SOURCE.LIST and SOURCE.INFO show it.
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) url: String,
    pub(crate) health: Health,
}

/// What is late.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Late {
    /// The source that did not answer.
    pub(crate) source: Arc<str>,
    /// What it was asked.
    pub(crate) asked: Asked,
}

/// One shard's dealings with all sources.
pub(crate) struct Hub {
    pub(crate) inbox: Inbox,
    me: Shard,
    common: Arc<Common>,
    known: BTreeMap<String, Known>,
    pending: HashMap<Asked, (Arc<str>, u64)>,
    deadlines: BTreeSet<(u64, Asked)>,
    /// The loads that were asked for and not answered, those that nobody waits for any more among them: their
    /// ranges will be followed at the source all the same.
    loads: HashMap<FetchId, (Arc<str>, KeyRange)>,
    sessions: HashMap<u64, ConnectionId>,
    answers: HashMap<ConnectionId, Answer>,
    /// The positions that commands under way have named. A command that waits is run again from its start, and to some
    /// sources a text names a later position each time that it is read.
    named: HashMap<ConnectionId, (String, Position)>,
    /// The tables whose writes go to a source, by their prefix.
    through: BTreeMap<Vec<u8>, String>,
    next_request: u64,
}

/// How a source does that has said nothing yet.
fn unheard() -> Health {
    Health::Down("it has said nothing yet".to_owned())
}

fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 40 || !name.chars().all(plain) || name == "data" {
        return Err(format!(
            "'{name}' cannot be a source's name: it has 1 to 40 letters, digits, '_' or '-', and \
             is not 'data'"
        ));
    }
    Ok(())
}

/// Whether a source could be added; nothing is made.
///
/// # Errors
/// The name is none, or kind or URL cannot be accepted.
pub(crate) fn check_source(name: &str, kind: &str, url: &str, terms: &Terms) -> Result<(), String> {
    check_name(name)?;
    kinds::check(kind, name, url, terms)
}

impl Hub {
    /// Whether this shard does what is done once for all shards of the process.
    pub(crate) fn is_first(&self) -> bool {
        self.me == self.common.first()
    }

    /// The hub of a shard.
    pub(crate) fn new(me: Shard, common: Arc<Common>) -> Self {
        Self {
            inbox: common.take_inbox(me),
            me,
            common,
            known: BTreeMap::new(),
            pending: HashMap::new(),
            deadlines: BTreeSet::new(),
            loads: HashMap::new(),
            sessions: HashMap::new(),
            answers: HashMap::new(),
            named: HashMap::new(),
            through: BTreeMap::new(),
            next_request: 0,
        }
    }

    /// Adds a source, which begins to connect.
    ///
    /// # Errors
    /// The name is taken, or kind or URL cannot be accepted.
    pub(crate) fn add(
        &mut self,
        name: &str,
        kind: &str,
        url: &str,
        terms: &Terms,
    ) -> Result<(), String> {
        check_name(name)?;
        self.common.add(name, kind, url, terms)
    }

    /// Adds a source that is made already; what it tells its news to.
    #[cfg(test)]
    pub(crate) fn insert(
        &self,
        name: &str,
        source: Box<dyn headwater_base::source::Source>,
    ) -> Arc<dyn headwater_base::source::Sink> {
        self.common.insert(name, source)
    }

    /// Tells the sources what the process may take, if it is bounded.
    pub(crate) fn set_memory_bound(&self, bytes: Option<usize>) {
        self.common.set_memory_bound(bytes.map(|bytes| bytes as u64));
    }

    /// Drops a source.
    ///
    /// # Errors
    /// There is none, or tables have it.
    pub(crate) fn drop_source(&mut self, name: &str) -> Result<(), String> {
        self.common.drop_source(name)
    }

    /// Whether news are of a source that is there. `None`: it has been dropped. `Some(true)`: it is another one than was
    /// known by that name, of which nothing counts any more.
    pub(crate) fn recognize(&mut self, tag: &Tag) -> Option<bool> {
        self.is_new(&tag.name, tag.number)
    }

    /// The same for the source that has the name now.
    pub(crate) fn is_another(&mut self, name: &str) -> bool {
        let number = self.common.number_of(name);
        number.and_then(|number| self.is_new(name, number)) == Some(true)
    }

    fn is_new(&mut self, name: &str, number: u64) -> Option<bool> {
        match self.known.get_mut(name) {
            Some(known) if known.number > number => None,
            Some(known) if known.number == number => Some(false),
            Some(known) => {
                *known = Known { number, health: unheard() };
                self.loads.retain(|_, (source, _)| **source != *name);
                Some(true)
            }
            None => {
                self.known.insert(name.to_owned(), Known { number, health: unheard() });
                Some(true)
            }
        }
    }

    /// The sources, in order of their names.
    pub(crate) fn list(&self) -> Vec<Shown> {
        let health = |name: &str| {
            let known = self.known.get(name).filter(|known| {
                self.common.number_of(name).is_none_or(|number| number == known.number)
            });
            known.map_or_else(unheard, |known| known.health.clone())
        };
        let made = self.common.list().into_iter();
        made.map(|common::Made { name, kind, url }| Shown {
            health: health(&name),
            name,
            kind,
            url,
        })
        .collect()
    }

    /// What is known of a source beside that: its tables, its position, and its own facts.
    pub(crate) fn facts(&self, name: &str) -> Vec<(&'static str, String)> {
        self.common.facts(name)
    }

    /// Notes that this shard has a table of a source; whether it had none before.
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn enter(&mut self, source: &str, prefix: &[u8]) -> Result<bool, String> {
        self.common.enter(source, prefix, self.me)
    }

    /// Notes that this shard does not have a table of a source any more.
    pub(crate) fn leave(&mut self, source: &str, prefix: &[u8]) {
        self.through.remove(prefix);
        self.common.leave(source, prefix, self.me);
    }

    /// Whether a session waits for an answer about this, and until when it may be waited for.
    fn expect(&mut self, source: &str, asked: Asked, until: u64) {
        self.pending.insert(asked, (source.into(), until));
        self.deadlines.insert((until, asked));
    }

    fn settled(&mut self, asked: Asked) {
        if let Some((_, until)) = self.pending.remove(&asked) {
            self.deadlines.remove(&(until, asked));
        }
    }

    /// Asks for a load.
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn load(
        &mut self,
        source: &str,
        fetch: FetchId,
        (range, portion): (&KeyRange, Portion),
        until: u64,
    ) -> Result<(), String> {
        self.common.load(source, (self.me, fetch), range, portion)?;
        self.loads.insert(fetch, (source.into(), range.clone()));
        self.expect(source, Asked::Load(fetch), until);
        Ok(())
    }

    pub(crate) fn unfollow(&mut self, source: &str, range: &KeyRange) {
        self.common.unfollow(source, range);
    }

    /// Asks something for a session.
    fn ask(
        &mut self,
        source: &str,
        session: ConnectionId,
        until: u64,
        ask: impl FnOnce(&Common, (Shard, u64)) -> Result<(), String>,
    ) -> Result<(), String> {
        let request = self.next_request;
        self.next_request += 1;
        ask(&self.common, (self.me, request))?;
        self.sessions.insert(request, session);
        self.expect(source, Asked::Request(request), until);
        Ok(())
    }

    /// Declares a table at a source, for a session that waits for it.
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn declare(
        &mut self,
        source: &str,
        session: Option<ConnectionId>,
        until: u64,
        prefix: &[u8],
        mapping: &[(String, String)],
    ) -> Result<(), String> {
        match session {
            Some(session) => self.ask(source, session, until, |common, request| {
                common.declare(source, request, prefix, mapping)
            }),
            None => {
                let request = self.next_request;
                self.next_request += 1;
                self.common.declare(source, (self.me, request), prefix, mapping)
            }
        }
    }

    /// Asks a source what a mapping would need, for a session.
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn examine(
        &mut self,
        source: &str,
        session: ConnectionId,
        until: u64,
        mapping: &[(String, String)],
    ) -> Result<(), String> {
        self.ask(source, session, until, |common, request| common.examine(source, request, mapping))
    }

    /// Asks where a source stands, for a session.
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn position(
        &mut self,
        source: &str,
        session: ConnectionId,
        until: u64,
    ) -> Result<(), String> {
        self.ask(source, session, until, |common, request| common.position(source, request))
    }

    /// Has a source do writes, for a session.
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn write(
        &mut self,
        source: &str,
        session: ConnectionId,
        until: u64,
        changes: &[Change],
    ) -> Result<(), String> {
        self.ask(source, session, until, |common, request| common.write(source, request, changes))
    }

    /// Has a source do writes, for a flow; names the request.
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn write_for_flow(
        &mut self,
        source: &str,
        until: u64,
        changes: &[Change],
    ) -> Result<u64, String> {
        let request = self.next_request;
        self.next_request += 1;
        self.common.write(source, (self.me, request), changes)?;
        self.expect(source, Asked::Request(request), until);
        Ok(request)
    }

    /// Notes that a session waits for a source to reach a position.
    pub(crate) fn expect_reach(&mut self, source: &str, session: ConnectionId, until: u64) {
        self.settled(Asked::Reach(session));
        self.expect(source, Asked::Reach(session), until);
    }

    /// Which writes go to which source, if to any.
    pub(crate) fn set_through(&mut self, prefix: Vec<u8>, source: Option<&str>) {
        match source {
            Some(source) => drop(self.through.insert(prefix, source.to_owned())),
            None => drop(self.through.remove(&prefix)),
        }
    }

    /// Whether any writes go to sources.
    pub(crate) fn has_through(&self) -> bool {
        !self.through.is_empty()
    }

    /// The source that the writes of a key go to.
    pub(crate) fn through(&self, key: &[u8]) -> Option<&str> {
        if self.through.is_empty() {
            return None;
        }
        let at = key.iter().position(|&byte| byte == b'|')?;
        self.through.get(&key[..=at]).map(String::as_str)
    }

    /// The source and the position that a text names, once for each command: the session's command is said to be done by [`Hub::forget_named`].
    ///
    /// # Errors
    /// There is no such source, or the text is no position of it.
    pub(crate) fn name_position(
        &mut self,
        session: ConnectionId,
        text: &[u8],
    ) -> Result<(String, Position), String> {
        if let Some(named) = self.named.get(&session) {
            return Ok(named.clone());
        }
        let named = self.common.resolve(text)?;
        self.named.insert(session, named.clone());
        Ok(named)
    }

    /// A session's command that may have named a position is done.
    pub(crate) fn forget_named(&mut self, session: ConnectionId) {
        self.named.remove(&session);
    }

    /// A position as text, which [`Hub::name_position`] reads.
    pub(crate) fn show(&self, name: &str, position: Position) -> String {
        self.common.show(name, position)
    }

    /// Notes what news settle, and whom they are for.
    pub(crate) fn settle(&mut self, source: &str, news: &News) -> Option<ConnectionId> {
        let (request, answer) = match news {
            News::Loaded { .. } | News::LoadedPart { .. } => return None,
            News::Health(health) => {
                if let Some(known) = self.known.get_mut(source) {
                    known.health = health.clone();
                }
                return None;
            }
            News::Changed { .. } | News::Reset { .. } => return None,
            News::Declared { request, answer } => (*request, Answer::Declared(answer.clone())),
            News::Position { request, answer } => (*request, Answer::Position(answer.clone())),
            News::Written { request, answer } => (*request, Answer::Written(answer.clone())),
        };
        self.settled(Asked::Request(request));
        let session = self.sessions.remove(&request)?;
        self.answers.insert(session, answer);
        Some(session)
    }

    /// A load is answered. Gives its range if it was asked for here, and whether that is still waited for.
    pub(crate) fn take_load(&mut self, fetch: FetchId) -> Option<(KeyRange, bool)> {
        let (_, range) = self.loads.remove(&fetch)?;
        let asked = Asked::Load(fetch);
        let waited = self.pending.contains_key(&asked);
        self.settled(asked);
        Some((range, waited))
    }

    /// A part of what was asked for has come: the load is of what is left from now on. Gives that, if it was asked for here, and whether it is still
    /// waited for.
    pub(crate) fn take_part(
        &mut self,
        fetch: FetchId,
        part: &KeyRange,
    ) -> Option<(KeyRange, bool)> {
        let (_, range) = self.loads.get_mut(&fetch)?;
        if let [rest] = &range.without(part)[..] {
            *range = rest.clone();
        }
        Some((range.clone(), self.pending.contains_key(&Asked::Load(fetch))))
    }

    /// A load is not waited for any more, whatever it brings.
    pub(crate) fn give_up(&mut self, fetch: FetchId) {
        self.settled(Asked::Load(fetch));
    }

    /// What was not answered by `now`, and is not waited for any more.
    pub(crate) fn take_late(&mut self, now: u64) -> Vec<Late> {
        let mut late = Vec::new();
        while let Some(&(until, asked)) = self.deadlines.first()
            && until <= now
        {
            self.deadlines.pop_first();
            if let Some((source, _)) = self.pending.remove(&asked) {
                late.push(Late { source, asked });
            }
        }
        late
    }

    /// The session that a request was for; it is forgotten.
    pub(crate) fn session_of(&mut self, request: u64) -> Option<ConnectionId> {
        self.sessions.remove(&request)
    }

    /// When something will be late, in milliseconds of the server's life.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|&(until, _)| until)
    }

    /// Takes the answer that a session has waited for.
    pub(crate) fn take_answer(&mut self, session: ConnectionId) -> Option<Answer> {
        self.settled(Asked::Reach(session));
        if self.answers.is_empty() { None } else { self.answers.remove(&session) }
    }

    /// A session has ended.
    pub(crate) fn forget(&mut self, session: ConnectionId) {
        self.take_answer(session);
        self.forget_named(session);
        self.sessions.retain(|_, waiting| *waiting != session);
    }
}
