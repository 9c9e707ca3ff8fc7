//! One server while a script runs: its clients' connections, and what it must know.

use super::commands::{LONG_KEY, LONG_KEY_BYTES, Words};
use super::place::Place;
use super::script::Script;
use super::state::{Message, Session, State};
use super::wire::{Frame, Wire, encoded};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// What names of the clients begin with.
const NAME: &str = "checking";

/// One client's connection.
struct Line {
    wire: Wire,
    protocol: u8,
    /// Messages that have come.
    heard: Vec<Message>,
}

/// A server.
pub(super) struct Site<'p> {
    pub(super) place: &'p dyn Place,
    lines: Vec<Line>,
    /// What it must know.
    pub(super) state: State,
    /// Clients that have written what others may not see yet in what joins give.
    written: BTreeSet<usize>,
    fences: u64,
}

fn words(all: &[&str]) -> Words {
    all.iter().map(|word| word.as_bytes().to_vec()).collect()
}

impl Line {
    /// Connects a client; the number that the server gives it.
    fn begin(place: &dyn Place, at: usize, protocol: u8) -> Result<(Self, i64), String> {
        let mut wire = Wire::to(place)?;
        if protocol == 3 {
            wire.protocol = 3;
            wire.ask(&["HELLO", "3"])?;
        }
        wire.ask(&["CLIENT", "SETNAME", &format!("{NAME}{at}")])?;
        match wire.ask(&["CLIENT", "ID"])?.1 {
            Frame::Integer(id) => Ok((Self { wire, protocol, heard: Vec::new() }, id)),
            other => Err(format!("{other:?} is no number of a client")),
        }
    }
}

impl<'p> Site<'p> {
    /// Connects the clients of a script to a server, which must be empty.
    pub(super) fn begin(place: &'p dyn Place, script: &Script) -> Result<Self, String> {
        // Those of the script before may have hung up a moment ago.
        are_gone(place, &|line| field(line, "name").starts_with(NAME))?;
        let mut state = State::default();
        let mut wire = Wire::to(place)?;
        state.shards = match wire.ask(&["SHARD.LIST"])?.1 {
            Frame::Array(shards) => shards.len() as i64,
            other => return Err(format!("SHARD.LIST: {other:?}")),
        };
        let (written, lines) = (BTreeSet::new(), Vec::new());
        let mut site = Self { place, lines, state, written, fences: 0 };
        for (at, protocol) in script.protocols.iter().enumerate() {
            let (line, id) = Line::begin(place, at, *protocol)?;
            site.lines.push(line);
            site.state.sessions.push(Session::new(id));
        }
        if script.busy {
            let all = super::busy::accounts();
            site.ask(0, &all).map_err(|wrong| format!("at the start: {wrong}"))?;
        }
        Ok(site)
    }

    /// How it is named in what is told of it.
    pub(super) fn label(&self) -> String {
        format!("{} with {} shard(s)", self.place.name(), self.state.shards)
    }

    /// Empties the server.
    pub(super) fn clear(&mut self) -> Result<(), String> {
        clear(self.place)
    }

    /// Whether a client's requests are queued for EXEC.
    pub(super) fn queues(&self, client: usize) -> bool {
        self.state.sessions[client].queues()
    }

    /// Sends a pipeline.
    pub(super) fn send(
        &mut self,
        client: usize,
        requests: &[Words],
        cuts: &[usize],
    ) -> Result<(), String> {
        let mut bytes = Vec::new();
        for words in requests {
            let words: Words = words.iter().map(|word| self.meant(word)).collect();
            bytes.extend(encoded(&words));
        }
        self.lines[client].wire.send(&bytes, cuts)
    }

    /// A word that stands for what is known of a client or the server.
    fn meant(&self, word: &[u8]) -> Vec<u8> {
        if word == b"SHARDS" {
            return self.state.shards.to_string().into_bytes();
        }
        if word == LONG_KEY.as_bytes() {
            return vec![b'x'; LONG_KEY_BYTES];
        }
        let of = |rest: &[u8]| {
            let at: usize = std::str::from_utf8(rest).ok()?.parse().ok()?;
            (at < self.lines.len()).then_some(at)
        };
        match word {
            [b'@', rest @ ..] => of(rest).map(|at| self.lines[at].wire.own_address()),
            [b'#', rest @ ..] => of(rest).map(|at| self.state.sessions[at].id.to_string()),
            _ => None,
        }
        .map_or_else(|| word.to_vec(), String::into_bytes)
    }

    /// The next reply to a client; what it is told before is taken in.
    pub(super) fn reply(&mut self, client: usize) -> Result<Frame, String> {
        loop {
            match self.lines[client].wire.frame()? {
                Frame::Push(push) => self.told(client, &push)?,
                reply => return Ok(reply),
            }
        }
    }

    /// So many pushes that confirm a subscription.
    pub(super) fn confirmations(
        &mut self,
        client: usize,
        kind: &str,
        count: usize,
    ) -> Result<Frame, String> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.lines[client].wire.frame()? {
                Frame::Push(push) => {
                    let is_one = push.first().and_then(Frame::text);
                    if is_one.as_deref() == Some(kind.as_bytes()) {
                        all.push(Frame::Array(push));
                    } else {
                        self.told(client, &push)?;
                    }
                }
                other => return Err(format!("{other:?}, where a client was to be subscribed")),
            }
        }
        Ok(Frame::Array(all))
    }

    /// Takes in what a client is told besides replies.
    fn told(&mut self, client: usize, push: &[Frame]) -> Result<(), String> {
        let texts: Vec<_> = push.iter().map(|it| it.text().unwrap_or_default()).collect();
        match &texts[..] {
            [kind, _] if kind == b"invalidate" => {
                // Where there are none, it was on its way when the client stopped to track.
                if let Some(copies) = &mut self.state.sessions[client].copies {
                    copies.told(push)?;
                }
            }
            [kind, channel, text] if kind == b"message" => {
                let (channel, text) = (channel.clone(), text.clone());
                self.lines[client].heard.push(Message { pattern: None, channel, text });
            }
            [kind, pattern, channel, text] if kind == b"pmessage" => {
                let (channel, text) = (channel.clone(), text.clone());
                let pattern = Some(pattern.clone());
                self.lines[client].heard.push(Message { pattern, channel, text });
            }
            _ => return Err(format!("{push:?} was told, and nobody asked for it")),
        }
        Ok(())
    }

    /// Asks something and checks the reply.
    fn ask(&mut self, client: usize, words: &Words) -> Result<(), String> {
        self.send(client, core::slice::from_ref(words), &[])?;
        let reply = self.reply(client)?;
        let expected = self.state.execute(client, words, &reply);
        expected.check(&reply)
    }

    /// Has all clients but this one wait until every shard shows what they have written.
    pub(super) fn see_all_writes(&mut self, client: usize) -> Result<(), String> {
        let all: Vec<_> = self.written.iter().copied().filter(|it| *it != client).collect();
        for other in all {
            self.written.remove(&other);
            let joins = !self.state.oracle.joins.is_empty();
            if joins && !self.queues(other) {
                let wait = words(&["WAIT", "SHARDS", "0"]);
                self.ask(other, &wait).map_err(|wrong| format!("WAIT by {other}: {wrong}"))?;
            }
        }
        Ok(())
    }

    /// A client has written, and perhaps waited before a transaction that is still open.
    pub(super) fn wrote(&mut self, client: usize, waited: bool) {
        if !waited {
            self.written.insert(client);
        }
    }

    /// Holds a list of clients against those that there are.
    pub(super) fn check_clients(&self, text: &str) -> Result<(), String> {
        let field = |line: &str, name: &str| field(line, name).to_owned();
        let line = |at: usize| {
            let address = self.lines[at].wire.own_address();
            (format!("{NAME}{at}"), address, self.state.sessions[at].id.to_string())
        };
        let killed = &self.state.killed;
        let lines = text.lines().map(|it| (field(it, "name"), field(it, "addr"), field(it, "id")));
        let mut given: Vec<_> = lines.filter(|(name, ..)| name.starts_with(NAME)).collect();
        let all = (0..self.lines.len()).filter(|at| !killed.contains(at));
        let mut expected: Vec<_> = all.map(line).collect();
        given.sort();
        expected.sort();
        if given == expected {
            return Ok(());
        }
        Err(format!("clients {given:?}, but expected {expected:?}"))
    }

    /// Checks what must be so between two pipelines: nothing but what was asked has come, every message has, no copy stays
    /// stale, and who was killed is gone. Of this client, or of all: who is asked at once has nothing on its way to it any more.
    pub(super) fn settle(&mut self, client: usize, all: bool) -> Result<(), String> {
        let killed = core::mem::take(&mut self.state.killed);
        let ids = killed.iter().filter_map(|at| self.state.sessions.get(*at));
        let ids: Vec<String> = ids.map(|session| session.id.to_string()).collect();
        for &victim in &killed {
            self.bury(victim).map_err(|wrong| format!("killed client {victim}: {wrong}"))?;
        }
        if !killed.is_empty() {
            let is_one = |line: &str| ids.iter().any(|id| field(line, "id") == *id);
            are_gone(self.place, &is_one)?;
        }
        for at in 0..self.lines.len() {
            let session = &self.state.sessions[at];
            let told = session.copies.is_some() || !session.channels.is_empty();
            let told = told || !session.patterns.is_empty() || !session.messages.is_empty();
            if (at == client || (told && all)) && !self.queues(at) {
                self.settle_one(at).map_err(|wrong| format!("afterwards, client {at}: {wrong}"))?;
            }
        }
        Ok(())
    }

    fn settle_one(&mut self, client: usize) -> Result<(), String> {
        let began = self.place.now();
        loop {
            self.fences += 1;
            let text = format!("fence{}", self.fences);
            self.ask(client, &words(&["ECHO", &text]))?;
            let Err(wrong) = self.is_settled(client) else { break };
            if !self.place.wait(began) {
                return Err(wrong);
            }
        }
        self.lines[client].heard.clear();
        let session = &mut self.state.sessions[client];
        session.messages.clear();
        session.any_order = false;
        Ok(())
    }

    fn is_settled(&mut self, client: usize) -> Result<(), String> {
        let session = &self.state.sessions[client];
        let mut heard = self.lines[client].heard.clone();
        let mut due: Vec<_> = session.messages.iter().cloned().collect();
        if session.any_order || due.iter().any(|message| message.pattern.is_some()) {
            heard.sort();
            due.sort();
        }
        if heard != due {
            return Err(format!("messages {heard:?}, but expected {due:?}"));
        }
        let Some(copies) = session.copies.clone() else { return Ok(()) };
        copies.stale(self.state.seen()).map_or(Ok(()), Err)
    }

    /// A client that was killed sees the end of its connection, and comes back.
    fn bury(&mut self, client: usize) -> Result<(), String> {
        if client >= self.lines.len() {
            return Ok(());
        }
        self.lines[client].wire.end()?;
        let protocol = self.lines[client].protocol;
        let (line, id) = Line::begin(self.place, client, protocol)?;
        self.lines[client] = line;
        self.state.begin_again(client, id);
        self.written.remove(&client);
        Ok(())
    }
}

/// What a line about a client says under a name.
fn field<'l>(line: &'l str, name: &str) -> &'l str {
    let found = line.split(' ').find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_default()
}

/// Waits until the server has let go of all clients of which lines of `CLIENT LIST` say this.
fn are_gone(place: &dyn Place, is_one: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let mut wire = Wire::to(place)?;
    let began = place.now();
    loop {
        let (_, reply) = wire.ask(&["CLIENT", "LIST"])?;
        let text = reply.text().ok_or_else(|| format!("CLIENT LIST: {reply:?}"))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        match text.lines().find(|line| is_one(line)) {
            None => return Ok(()),
            Some(line) if !place.wait(began) => return Err(format!("it stays: {line}")),
            Some(_) => {}
        }
    }
}

/// Removes all keys and joins of a server.
pub(super) fn clear(place: &dyn Place) -> Result<(), String> {
    let mut wire = Wire::to(place)?;
    wire.protocol = 3;
    wire.ask(&["HELLO", "3"])?;
    wire.ask(&["FLUSHALL"])?;
    for name in joins(&mut wire)?.iter().rev() {
        wire.ask(&["JOIN.DROP", name])?;
    }
    match holds_something(&mut wire)? {
        false => Ok(()),
        true => Err(String::from("the server cannot be emptied")),
    }
}

fn joins(wire: &mut Wire) -> Result<Vec<String>, String> {
    let Frame::Array(joins) = wire.ask(&["JOIN.LIST"])?.1 else {
        return Err(String::from("JOIN.LIST gives no list"));
    };
    let names = joins.iter().filter_map(|join| match join {
        Frame::Map(pairs) => pairs.first()?.1.text(),
        _ => None,
    });
    Ok(names.map(|name| String::from_utf8_lossy(&name).into_owned()).collect())
}

fn holds_something(wire: &mut Wire) -> Result<bool, String> {
    Ok(wire.ask(&["DBSIZE"])?.1 != Frame::Integer(0) || !joins(wire)?.is_empty())
}

/// Whether a server has keys or joins.
///
/// # Errors
/// It cannot be asked.
pub fn is_in_use(address: SocketAddr, patience: Duration) -> Result<bool, String> {
    let mut wire = Wire::connect(address, patience)?;
    wire.protocol = 3;
    match wire.ask(&["HELLO", "3"])?.1 {
        Frame::Error(text) => Err(text),
        _ => holds_something(&mut wire),
    }
}
