//! What a server must answer its clients: sessions, transactions, channels, and the data behind them.

use super::caches::{Copies, Event, Mode};
use super::commands::{Words, is_known, upper};
use super::expected::Expected;
use super::wire::Frame;
use crate::oracle::{Oracle, Pairs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const OK: Expected = Expected::Status("OK");
const ERR: Expected = Expected::Refused(&["ERR"]);

/// A message that a client must get.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Message {
    /// The pattern that its channel matches, if that is why it comes.
    pub pattern: Option<Vec<u8>>,
    /// The channel.
    pub channel: Vec<u8>,
    /// The text.
    pub text: Vec<u8>,
}

/// What is known of a watched key.
#[derive(Clone, Debug)]
struct Watched {
    key: Vec<u8>,
    writes: [u64; 2],
    value: Option<Vec<u8>>,
    anything: u64,
}

/// One client, as the server knows it.
#[derive(Clone, Debug, Default)]
pub struct Session {
    queue: Option<Vec<Words>>,
    broken: bool,
    watched: Vec<Watched>,
    /// Channels that it listens to.
    pub channels: BTreeSet<Vec<u8>>,
    /// Patterns of channels that it listens to.
    pub patterns: BTreeSet<Vec<u8>>,
    /// What it keeps copies of, while it tracks.
    pub copies: Option<Copies>,
    /// Messages that it has yet to get.
    pub messages: VecDeque<Message>,
    /// Whether those may come in another order.
    pub any_order: bool,
    /// The number that the server has given it.
    pub id: i64,
}

/// What a server must know.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Keys and joins.
    pub oracle: Oracle,
    view: Option<Pairs>,
    /// What the request under way did.
    pub(super) events: Vec<Event>,
    /// How often each key was written, and how often perhaps.
    writes: BTreeMap<Vec<u8>, [u64; 2]>,
    /// How often anything was written, and how often something that concerns all keys.
    anything: [u64; 2],
    /// The clients.
    pub sessions: Vec<Session>,
    /// Those that were killed in this step.
    pub killed: BTreeSet<usize>,
    /// How many shards the server has.
    pub shards: i64,
}

impl Session {
    /// A client that has just come, with the number that the server has given it.
    #[must_use]
    pub fn new(id: i64) -> Self {
        Self { id, ..Self::default() }
    }

    /// Whether its requests are queued for EXEC.
    #[must_use]
    pub fn queues(&self) -> bool {
        self.queue.is_some()
    }
}

impl State {
    /// Every key that a read sees, with its value.
    pub fn seen(&mut self) -> &Pairs {
        self.view.get_or_insert_with(|| self.oracle.view().seen)
    }

    pub(super) fn wrote(&mut self, key: &[u8]) {
        self.writes.entry(key.to_vec()).or_default()[0] += 1;
        self.events.push(Event::Wrote(key.to_vec()));
        self.anything[0] += 1;
        self.view = None;
    }

    pub(super) fn maybe_wrote(&mut self, key: &[u8]) {
        self.writes.entry(key.to_vec()).or_default()[1] += 1;
    }

    /// Something has happened that may count as a write of any key.
    pub(super) fn wrote_anything(&mut self) {
        self.anything[0] += 1;
        self.anything[1] += 1;
        self.view = None;
    }

    fn writes_of(&self, key: &[u8]) -> [u64; 2] {
        let [surely, perhaps] = self.writes.get(key).copied().unwrap_or_default();
        [surely, perhaps + self.anything[1]]
    }

    /// Executes a request of a client; what it must be answered. Where the server may do one thing or the other, it does what
    /// its reply says.
    pub fn execute(&mut self, client: usize, words: &Words, reply: &Frame) -> Expected {
        self.events.clear();
        let expected = self.executed(client, words, reply);
        let name = upper(&words[0]);
        let session = &mut self.sessions[client];
        if let Some(copies) = &mut session.copies {
            let of_caching = name == "CLIENT" && upper(&words[1]) == "CACHING";
            if session.queue.is_none() && !of_caching {
                copies.done();
            }
        }
        expected
    }

    fn executed(&mut self, client: usize, words: &Words, reply: &Frame) -> Expected {
        let name = upper(&words[0]);
        let queues = self.sessions[client].queue.is_some();
        match name.as_str() {
            "MULTI" if queues => ERR,
            "MULTI" => {
                self.sessions[client].queue = Some(Vec::new());
                OK
            }
            "EXEC" | "DISCARD" if !queues => ERR,
            "DISCARD" => {
                self.end_transaction(client);
                OK
            }
            "WATCH" if queues => ERR,
            "EXEC" => self.exec(client, reply),
            _ if !is_known(words) => {
                self.sessions[client].broken |= queues;
                ERR
            }
            _ if queues => {
                let session = &mut self.sessions[client];
                session.queue.as_mut().expect("it queues").push(words.clone());
                Expected::Status("QUEUED")
            }
            _ => self.at_once(client, words, false),
        }
    }

    fn end_transaction(&mut self, client: usize) -> (Vec<Words>, bool) {
        let session = &mut self.sessions[client];
        session.watched.clear();
        (session.queue.take().unwrap_or_default(), core::mem::take(&mut session.broken))
    }

    fn exec(&mut self, client: usize, reply: &Frame) -> Expected {
        let watched = core::mem::take(&mut self.sessions[client].watched);
        let (mut changed, mut perhaps) = (false, false);
        for it in watched {
            let [surely, maybe] = self.writes_of(&it.key);
            let derived = !self.oracle.owners(&it.key).is_empty();
            changed |= surely != it.writes[0] || self.value(&it.key) != it.value;
            perhaps |= maybe != it.writes[1] || (derived && it.anything != self.anything[0]);
        }
        let (queue, broken) = self.end_transaction(client);
        if broken {
            return Expected::Refused(&["EXECABORT"]);
        }
        if changed || (perhaps && matches!(reply, Frame::Null | Frame::NullArray)) {
            return Expected::NullArray;
        }
        Expected::List(queue.iter().map(|words| self.at_once(client, words, true)).collect())
    }

    /// Executes a request that is not queued, and notes what it means for the client's copies.
    fn at_once(&mut self, client: usize, words: &Words, within_exec: bool) -> Expected {
        let expected = self.carried_out(client, words, within_exec);
        let events = core::mem::take(&mut self.events);
        if let Some(copies) = &mut self.sessions[client].copies {
            events.iter().for_each(|event| copies.apply(event));
        }
        expected
    }

    fn carried_out(&mut self, client: usize, words: &Words, within_exec: bool) -> Expected {
        if let Some(expected) = self.data(words) {
            return expected;
        }
        match upper(&words[0]).as_str() {
            "WATCH" => {
                for key in &words[1..] {
                    let (writes, value) = (self.writes_of(key), self.value(key));
                    let watched = &mut self.sessions[client].watched;
                    if !watched.iter().any(|other| other.key == *key) {
                        let (key, anything) = (key.clone(), self.anything[0]);
                        watched.push(Watched { key, writes, value, anything });
                    }
                }
                OK
            }
            "UNWATCH" => {
                // Within EXEC there are none.
                self.sessions[client].watched.clear();
                OK
            }
            "PING" => Expected::Status("PONG"),
            "ECHO" => Expected::Bulk(words[1].clone()),
            "WAIT" => Expected::AtLeast(self.shards),
            "PUBLISH" => self.publish(&words[1], &words[2], within_exec),
            "SUBSCRIBE" => {
                self.sessions[client].channels.extend(words[1..].iter().cloned());
                Expected::Same
            }
            "PSUBSCRIBE" => {
                self.sessions[client].patterns.extend(words[1..].iter().cloned());
                Expected::Same
            }
            "UNSUBSCRIBE" => {
                words[1..].iter().for_each(|it| _ = self.sessions[client].channels.remove(it));
                Expected::Same
            }
            "PUBSUB" => self.pubsub(words),
            "CLIENT" => self.client(client, words),
            other => unreachable!("{other} is known"),
        }
    }

    fn publish(&mut self, channel: &[u8], text: &[u8], within_exec: bool) -> Expected {
        let mut heard = 0;
        let mut unsure = false;
        for (at, session) in self.sessions.iter_mut().enumerate() {
            let matching = |pattern: &&Vec<u8>| {
                pattern.strip_suffix(b"*").is_some_and(|start| channel.starts_with(start))
            };
            let patterns = session.patterns.iter().filter(matching).map(|it| Some(it.clone()));
            let listens = session.channels.contains(channel).then_some(None);
            let why: Vec<_> = listens.into_iter().chain(patterns).collect();
            if self.killed.contains(&at) {
                unsure |= !why.is_empty();
                continue;
            }
            heard += why.len();
            session.any_order |= within_exec;
            session.messages.extend(why.into_iter().map(|pattern| Message {
                pattern,
                channel: channel.to_vec(),
                text: text.to_vec(),
            }));
        }
        if unsure { Expected::AtLeast(heard as i64) } else { Expected::Integer(heard as i64) }
    }

    fn pubsub(&mut self, words: &Words) -> Expected {
        let alive = || {
            let all = self.sessions.iter().enumerate();
            all.filter(|(at, _)| !self.killed.contains(at)).map(|(_, session)| session)
        };
        if !self.killed.is_empty() {
            // A client that was killed may count until the server has let go of it.
            return Expected::Open;
        }
        match upper(&words[1]).as_str() {
            "NUMSUB" => {
                let count = |channel: &Vec<u8>| {
                    let listening = alive().filter(|it| it.channels.contains(channel)).count();
                    (Expected::Bulk(channel.clone()), Expected::Integer(listening as i64))
                };
                Expected::Pairs(words[2..].iter().map(count).collect())
            }
            "NUMPAT" => {
                let all: BTreeSet<_> = alive().flat_map(|it| &it.patterns).collect();
                Expected::Integer(all.len() as i64)
            }
            _ => Expected::Set(alive().flat_map(|it| it.channels.iter().cloned()).collect()),
        }
    }

    fn client(&mut self, client: usize, words: &Words) -> Expected {
        let word = |at: usize| words.get(at).map(|word| upper(word)).unwrap_or_default();
        let session = &mut self.sessions[client];
        match word(1).as_str() {
            "ID" => Expected::Integer(session.id),
            "LIST" => Expected::Clients,
            "CACHING" => {
                let yes = word(2) == "YES";
                let fits = session.copies.as_mut().is_some_and(|copies| copies.caching(yes));
                if fits { OK } else { ERR }
            }
            "TRACKING" => {
                let mut mode = Mode::default();
                let mut options = words[3..].iter();
                while let Some(option) = options.next() {
                    match upper(option).as_str() {
                        "BCAST" => mode.prefixes = Some(mode.prefixes.take().unwrap_or_default()),
                        "PREFIX" => {
                            let prefix = options.next().cloned().unwrap_or_default();
                            mode.prefixes.get_or_insert_default().push(prefix);
                        }
                        "OPTIN" => mode.opt_in = true,
                        "OPTOUT" => mode.opt_out = true,
                        _ => mode.no_loop = true,
                    }
                }
                if mode.prefixes.as_ref().is_some_and(Vec::is_empty) {
                    mode.prefixes = Some(vec![Vec::new()]);
                }
                session.copies = (word(2) == "ON").then(|| Copies::new(mode));
                OK
            }
            _ => {
                let target = words.last().expect("a request has words");
                let at = String::from_utf8_lossy(&target[1..]).parse().unwrap_or(usize::MAX);
                let first = self.killed.insert(at);
                match (first, word(2).starts_with('@')) {
                    (false, true) => ERR,
                    (false, false) => Expected::Integer(0),
                    (true, true) => OK,
                    (true, false) => Expected::Integer(1),
                }
            }
        }
    }

    /// A client has come back as a new one.
    pub fn begin_again(&mut self, client: usize, id: i64) {
        self.sessions[client] = Session::new(id);
        self.killed.remove(&client);
    }
}
