//! Clients, each with a connection to a server that believes to own its shard, and some operations under way on it.

use super::history::{
    COUNTERS, History, LISTS, Operation, PAIR_COUNTER, PAIR_LIST, REGISTERS, TEXT, Told, text_of,
};
use super::world::Servers;
use crate::simulated::{Come, Pipe, integer, request};
use headwater_model::rng::Rng;
use headwater_model::server::wire::{Frame, Wire};
use headwater_protocol::resp::ReplyCutter;
use std::collections::VecDeque;

/// Operations that a client has under way at once, at most.
const UNDER_WAY: usize = 4;
/// How long a client waits until it hangs up, at most and at least, in milliseconds.
const PATIENCE: usize = 12_000;
const PATIENCE_MIN: u64 = 2_000;

pub(super) fn list(at: usize) -> String {
    if at == PAIR_LIST { String::from("{pair}list") } else { format!("l|{at}") }
}

pub(super) fn counter(at: usize) -> String {
    if at == PAIR_COUNTER { String::from("{pair}count") } else { format!("c|{at}") }
}

fn register(at: usize) -> String {
    format!("r|{at}")
}

/// The join that copies lists.
pub(super) fn join(at: usize) -> String {
    format!("d|all|{at}")
}

/// An operation under way.
struct UnderWay {
    which: usize,
    operation: Operation,
    replies: usize,
    /// When the client gives it up.
    until: u64,
}

/// A client.
#[derive(Default)]
pub(super) struct Client {
    pipe: Option<Pipe>,
    /// The number of its connection, of all connections.
    session: usize,
    bytes: Vec<u8>,
    asked: VecDeque<UnderWay>,
}

/// What has come about.
#[derive(Clone, Copy, Default)]
pub(super) struct ClientsSeen {
    /// Connections that a server has ended, and that a client has.
    pub(super) ended: u64,
    pub(super) hung_up: u64,
    /// Operations of which nobody knows whether they were done, because a server said so.
    pub(super) unknown: u64,
}

/// All clients.
pub(super) struct Clients {
    all: Vec<Client>,
    sessions: usize,
    /// How many of a hundred operations only read.
    pub(super) reads: usize,
    pub(super) seen: ClientsSeen,
}

/// What a reply says: `None`: nobody knows whether the operation was done.
fn told(operation: Operation, replies: &[Frame]) -> Result<Option<Told>, String> {
    let last = &replies[replies.len() - 1];
    if let Frame::Error(text) = last {
        return match text.split(' ').next() {
            Some("CLUSTERDOWN") if text.contains("nobody knows") => Ok(None),
            // A transaction is given up where one of its requests was refused when it was queued.
            Some("CLUSTERDOWN" | "EXECABORT") => Ok(Some(Told::Refused)),
            _ => Err(format!("{operation:?} is answered: {text}")),
        };
    }
    let wrong = || format!("{operation:?} is answered {last:?}");
    let number = |frame: &Frame| integer(frame).and_then(|it| u64::try_from(it).ok());
    let text = |frame: &Frame| match frame {
        Frame::Null => Some(String::new()),
        frame => frame.text().and_then(|text| String::from_utf8(text).ok()),
    };
    let told = match operation {
        Operation::Append(_) => number(last).map(|length| Told::Length(length as usize)),
        Operation::ReadList(_) | Operation::ReadJoin(_) => text(last).map(Told::Text),
        Operation::Count(_) | Operation::Remove(_) => number(last).map(Told::Number),
        Operation::ReadCounter(_) => match last {
            Frame::Null => Some(Told::Number(0)),
            last => number(last).map(Told::Number),
        },
        Operation::Set(_) => (last.text().as_deref() == Some(b"OK")).then_some(Told::Done),
        Operation::ReadRegister(_) => match last {
            Frame::Null => Some(Told::Value(None)),
            last => number(last).map(|which| Told::Value(Some(which as usize))),
        },
        Operation::Both | Operation::ReadBoth => {
            let Frame::Array(pair) = last else { return Err(wrong()) };
            let [count, list] = &**pair else { return Err(wrong()) };
            let count = if *count == Frame::Null { Some(0) } else { number(count) };
            match operation {
                Operation::Both => Option::zip(count, number(list))
                    .map(|(count, length)| Told::Both(count, length as usize)),
                _ => {
                    Option::zip(count, text(list)).map(|(count, text)| Told::BothRead(count, text))
                }
            }
        }
    };
    told.map(Some).ok_or_else(wrong)
}

/// The requests of an operation, and how many replies they have.
fn requests(operation: Operation, which: usize) -> (Vec<u8>, usize) {
    let (text, value) = (text_of(which), which.to_string());
    debug_assert_eq!(text.len(), TEXT);
    let one = |words: &[&str]| (request(words), 1);
    match operation {
        Operation::Append(at) => one(&["APPEND", &list(at), &text]),
        Operation::ReadList(at) => one(&["GET", &list(at)]),
        Operation::ReadJoin(at) => one(&["GET", &join(at)]),
        Operation::Count(at) => one(&["INCR", &counter(at)]),
        Operation::ReadCounter(at) => one(&["GET", &counter(at)]),
        Operation::Set(at) => one(&["SET", &register(at), &value]),
        Operation::Remove(at) => one(&["DEL", &register(at)]),
        Operation::ReadRegister(at) => one(&["GET", &register(at)]),
        Operation::Both => {
            let mut all = request(&["MULTI"]);
            all.extend(request(&["INCR", &counter(PAIR_COUNTER)]));
            all.extend(request(&["APPEND", &list(PAIR_LIST), &text]));
            all.extend(request(&["EXEC"]));
            (all, 4)
        }
        Operation::ReadBoth => one(&["MGET", &counter(PAIR_COUNTER), &list(PAIR_LIST)]),
    }
}

/// All operations that read.
pub(super) fn reads() -> Vec<Operation> {
    let lists = (0..LISTS).flat_map(|at| [Operation::ReadList(at), Operation::ReadJoin(at)]);
    let counters = (0..COUNTERS).map(Operation::ReadCounter);
    let registers = (0..REGISTERS).map(Operation::ReadRegister);
    lists.chain(counters).chain(registers).chain([Operation::ReadBoth]).collect()
}

fn draw(rng: &mut Rng, reads: usize) -> Operation {
    if rng.chance(reads) {
        return *rng.pick(&self::reads());
    }
    match rng.below(10) {
        0..=2 => Operation::Append(rng.below(LISTS)),
        3..=5 => Operation::Count(rng.below(COUNTERS)),
        6 => Operation::Set(rng.below(REGISTERS)),
        7 => Operation::Remove(rng.below(REGISTERS)),
        _ => Operation::Both,
    }
}

impl Clients {
    pub(super) fn new(count: usize, reads: usize) -> Self {
        let all = (0..count).map(|_| Client::default()).collect();
        Self { all, sessions: 0, reads, seen: ClientsSeen::default() }
    }

    /// Whether nobody waits for anything.
    pub(super) fn are_answered(&self) -> bool {
        self.all.iter().all(|client| client.asked.is_empty())
    }

    /// How many wait for answers.
    pub(super) fn waiting(&self) -> usize {
        self.all.iter().filter(|client| !client.asked.is_empty()).count()
    }

    /// All clients take what has come.
    pub(super) fn look(&mut self, history: &mut History, now: u64) -> Result<(), String> {
        for client in &mut self.all {
            client.look(history, now, &mut self.seen)?;
        }
        Ok(())
    }

    /// A client asks something that is drawn, if it has a server.
    pub(super) fn ask(
        &mut self,
        rng: &mut Rng,
        servers: &mut dyn Servers,
        history: &mut History,
        now: u64,
    ) {
        let at = rng.below(self.all.len());
        let operation = draw(rng, self.reads);
        self.ask_this(at, operation, rng, (servers, history, now));
    }

    /// The same, of a client that asks this; whether it could.
    pub(super) fn ask_this(
        &mut self,
        at: usize,
        operation: Operation,
        rng: &mut Rng,
        (servers, history, now): (&mut dyn Servers, &mut History, u64),
    ) -> bool {
        let client = &mut self.all[at];
        if client.asked.len() >= UNDER_WAY {
            return false;
        }
        if client.pipe.is_none() {
            let Some(pipe) = servers.connect(rng) else { return false };
            client.pipe = Some(pipe);
            client.bytes.clear();
            self.sessions += 1;
            client.session = self.sessions;
        }
        let Some(pipe) = &client.pipe else { return false };
        let which = history.begin(operation, client.session, now);
        let (bytes, replies) = requests(operation, which);
        pipe.ask(&bytes);
        let until = now + PATIENCE_MIN + rng.below(PATIENCE) as u64;
        client.asked.push_back(UnderWay { which, operation, replies, until });
        true
    }
}

impl Client {
    fn look(
        &mut self,
        history: &mut History,
        now: u64,
        seen: &mut ClientsSeen,
    ) -> Result<(), String> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        let has_ended = {
            let mut state = pipe.state();
            self.bytes.extend(state.told.drain(..));
            state.server_ended
        };
        while let Some(next) = self.asked.front() {
            let (mut whole, mut end) = (0, 0);
            while whole < next.replies
                && let Some(length) = ReplyCutter::default().cut(&self.bytes[end..])
            {
                (whole, end) = (whole + 1, end + length);
            }
            let bytes: VecDeque<u8> = self.bytes[..end].iter().copied().collect();
            let mut wire = Wire::over(Box::new(Come(bytes)));
            let replies: Result<Vec<Frame>, String> = (0..whole).map(|_| wire.frame()).collect();
            let replies = replies?;
            // Who is turned away is told so once, whatever it has asked, and hears nothing more.
            let is_turned_away = has_ended && matches!(replies.last(), Some(Frame::Error(_)));
            if whole < next.replies && !is_turned_away {
                break;
            }
            self.bytes.drain(..end);
            let UnderWay { which, operation, .. } = self.asked.pop_front().expect("it is there");
            match told(operation, &replies)
                .map_err(|wrong| format!("operation {which}: {wrong}"))?
            {
                Some(told) => history.asked[which].answer = Some((now, told)),
                None => seen.unknown += 1,
            }
        }
        let is_late = self.asked.iter().any(|asked| asked.until <= now);
        if has_ended || is_late {
            *(if has_ended { &mut seen.ended } else { &mut seen.hung_up }) += 1;
            pipe.end();
            self.pipe = None;
            self.bytes.clear();
            self.asked.clear();
        }
        Ok(())
    }
}
