//! Sources of base data: which there are, what was asked of them, and how long they may take.
//!
//! The hub stands between the engine, which asks and never waits, and sources, which answer from
//! threads of their own through the inbox. What is not answered in time fails with an error that
//! names the source; an answer that comes later is ignored by whoever it was for.

mod inbox;
mod kinds;

pub(crate) use inbox::Inbox;

use crate::connection::ConnectionId;
use headwater_base::KeyRange;
use headwater_base::source::{Change, FetchId, Health, News, Position, Source};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a session asked a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// A table was declared, with these warnings; or why not.
    Declared(Result<Vec<String>, String>),
    /// Where the source stands.
    Position(Result<Position, String>),
    /// Where the source stands after the writes.
    Written(Result<Position, String>),
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

/// A source, with what it was made from.
struct Entry {
    kind: String,
    /// Where it is, without its password.
    shown: String,
    health: Health,
    source: Box<dyn Source>,
}

/// A source, as SOURCE.LIST and SOURCE.INFO show it.
pub(crate) struct Shown<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) url: &'a str,
    pub(crate) health: &'a Health,
    pub(crate) source: &'a dyn Source,
}

/// What is late.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Late {
    /// The source that did not answer.
    pub(crate) source: Arc<str>,
    /// What it was asked.
    pub(crate) asked: Asked,
}

/// All sources.
pub(crate) struct Hub {
    pub(crate) inbox: Inbox,
    sources: BTreeMap<String, Entry>,
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

impl Hub {
    pub(crate) fn new() -> Self {
        Self {
            inbox: Inbox::new(),
            sources: BTreeMap::new(),
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
    pub(crate) fn add(&mut self, name: &str, kind: &str, url: &str) -> Result<(), String> {
        self.check_name(name)?;
        let (source, shown) = kinds::open(kind, name, url, self.inbox.sink(name))?;
        self.insert(name, kind, shown, source);
        Ok(())
    }

    fn check_name(&self, name: &str) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 40 || !name.chars().all(plain) || name == "data" {
            return Err(format!(
                "'{name}' cannot be a source's name: it has 1 to 40 letters, digits, '_' or '-', and \
                 is not 'data'"
            ));
        }
        if self.sources.contains_key(name) {
            return Err(format!("a source is named '{name}' already: SOURCE.DROP it first"));
        }
        Ok(())
    }

    /// Adds a source that is made already.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        kind: &str,
        shown: String,
        source: Box<dyn Source>,
    ) {
        let entry = Entry { kind: kind.to_owned(), shown, health: Health::Up, source };
        self.sources.insert(name.to_owned(), entry);
    }

    /// Drops a source; whether there was one.
    pub(crate) fn drop_source(&mut self, name: &str) -> bool {
        self.through.retain(|_, source| source != name);
        self.loads.retain(|_, (source, _)| **source != *name);
        self.sources.remove(name).is_some()
    }

    /// The sources, in order of their names.
    pub(crate) fn list(&self) -> impl ExactSizeIterator<Item = Shown<'_>> {
        self.sources.iter().map(|(name, entry)| Shown {
            name,
            kind: &entry.kind,
            url: &entry.shown,
            health: &entry.health,
            source: &*entry.source,
        })
    }

    fn source(&mut self, name: &str) -> Result<&mut Box<dyn Source>, String> {
        let entry = self.sources.get_mut(name);
        entry.map(|entry| &mut entry.source).ok_or_else(|| format!("no source is named '{name}'"))
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
        range: &KeyRange,
        until: u64,
    ) -> Result<(), String> {
        self.source(source)?.load(fetch, range);
        self.loads.insert(fetch, (source.into(), range.clone()));
        self.expect(source, Asked::Load(fetch), until);
        Ok(())
    }

    pub(crate) fn unfollow(&mut self, source: &str, range: &KeyRange) {
        if let Ok(source) = self.source(source) {
            source.unfollow(range);
        }
    }

    /// Asks something for a session.
    fn ask(
        &mut self,
        source: &str,
        session: ConnectionId,
        until: u64,
        ask: impl FnOnce(&mut dyn Source, u64),
    ) -> Result<(), String> {
        let request = self.next_request;
        self.next_request += 1;
        ask(&mut **self.source(source)?, request);
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
            Some(session) => self.ask(source, session, until, |source, request| {
                source.declare(request, prefix, mapping);
            }),
            None => {
                let request = self.next_request;
                self.next_request += 1;
                self.source(source)?.declare(request, prefix, mapping);
                Ok(())
            }
        }
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
        self.ask(source, session, until, |source, request| source.position(request))
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
        self.ask(source, session, until, |source, request| source.write(request, changes))
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
        self.source(source)?.write(request, changes);
        self.expect(source, Asked::Request(request), until);
        Ok(request)
    }

    /// Notes that a session waits for a source to reach a position.
    pub(crate) fn expect_reach(&mut self, source: &str, session: ConnectionId, until: u64) {
        self.settled(Asked::Reach(session));
        self.expect(source, Asked::Reach(session), until);
    }

    /// Which writes go to which source.
    pub(crate) fn set_through(&mut self, prefix: Vec<u8>, source: &str) {
        self.through.insert(prefix, source.to_owned());
    }

    /// The source that the writes of a key go to.
    pub(crate) fn through(&self, key: &[u8]) -> Option<&str> {
        if self.through.is_empty() {
            return None;
        }
        let at = key.iter().position(|&byte| byte == b'|')?;
        self.through.get(&key[..=at]).map(String::as_str)
    }

    /// The source and the position that a text names: `source:position`, or the position alone where there
    /// is one source.
    ///
    /// # Errors
    /// There is no such source, or the text is no position of it.
    fn resolve(&self, text: &[u8]) -> Result<(&str, Position), String> {
        let shown = text.escape_ascii();
        let (name, position) = match text.iter().position(|&byte| byte == b':') {
            Some(at) => (Some(&text[..at]), &text[at + 1..]),
            None => (None, text),
        };
        let found = match name {
            Some(name) => self.sources.iter().find(|(other, _)| other.as_bytes() == name),
            None if self.sources.len() > 1 => {
                return Err(format!(
                    "'{shown}' may be a position of several sources: write source:{shown}"
                ));
            }
            None => self.sources.iter().next(),
        };
        let Some((name, entry)) = found else {
            return Err(format!("'{shown}' is no position: there is no such source"));
        };
        Ok((name, entry.source.parse_position(position)?))
    }

    /// As [`Hub::resolve`], once for each command: the session's command is said to be done by [`Hub::forget_named`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn name_position(
        &mut self,
        session: ConnectionId,
        text: &[u8],
    ) -> Result<(String, Position), String> {
        if let Some(named) = self.named.get(&session) {
            return Ok(named.clone());
        }
        let (source, position) = self.resolve(text)?;
        let named = (source.to_owned(), position);
        self.named.insert(session, named.clone());
        Ok(named)
    }

    /// A session's command that may have named a position is done.
    pub(crate) fn forget_named(&mut self, session: ConnectionId) {
        self.named.remove(&session);
    }

    /// A position as text, which [`Hub::resolve`] reads.
    pub(crate) fn show(&self, name: &str, position: Position) -> String {
        match self.sources.get(name) {
            Some(entry) => format!("{name}:{}", entry.source.show_position(position)),
            None => format!("{name}:{}", position.0),
        }
    }

    /// Notes what news settle, and whom they are for.
    pub(crate) fn settle(&mut self, source: &str, news: &News) -> Option<ConnectionId> {
        let (request, answer) = match news {
            News::Loaded { .. } => return None,
            News::Health(health) => {
                if let Some(entry) = self.sources.get_mut(source) {
                    entry.health = health.clone();
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
