//! Clients, each with a connection to a server that believes to own its shard, and some operations under way on it.

mod items;

use super::history::{
    CHAINS, COUNTERS, Effect, History, LISTS, Operation, PAIR_COUNTER, PAIR_LIST, PLACES,
    REGISTERS, STREAM, TEXT, Told, text_of, value_of, whose_value,
};
use super::world::{Breadth, Servers};
use crate::simulated::{Come, Pipe, integer, request};
use crate::wire_protocol::WireProtocol;
use headwater_model::rng::Rng;
use headwater_model::server::wire::{Frame, Wire};
use headwater_protocol::resp::ReplyCutter;
use std::collections::VecDeque;

/// Operations that a client has under way at once, at most.
const UNDER_WAY: usize = 4;
/// How long a client waits until it hangs up, at most and at least, in milliseconds.
const PATIENCE: usize = 12_000;
const PATIENCE_MIN: u64 = 2_000;

/// For how long values are lent, in milliseconds.
const TIMES: [u64; 5] = [1, 100, 500, 2000, 6000];
/// How many of the newest posts may have their effects taken.
const RECENT: usize = 5;

pub(super) fn list(at: usize) -> String {
    match at {
        PAIR_LIST => String::from("{pair}list"),
        STREAM => String::from("s|stream"),
        at => format!("l|{at}"),
    }
}

pub(super) fn counter(at: usize) -> String {
    if at == PAIR_COUNTER { String::from("{pair}count") } else { format!("c|{at}") }
}

fn register(at: usize) -> String {
    format!("r|{at}")
}

fn place(at: usize) -> String {
    format!("x|{at}")
}

fn chain(at: usize) -> String {
    format!("k|{at}")
}

/// The join that copies lists.
pub(super) fn join(at: usize) -> String {
    format!("d|all|{at}")
}

pub(super) fn post(which: usize) -> String {
    format!("{POSTS}{which:05}")
}

/// What keys of posts begin with.
pub(super) const POSTS: &str = "t|";

/// The posts of which keys with this prefix are, or are made; each with its own value.
pub(super) fn posts_of(prefix: &str, pairs: &Frame) -> Option<Vec<usize>> {
    let Frame::Array(pairs) = pairs else { return None };
    let (pairs, []) = pairs.as_chunks::<2>() else { return None };
    let one = |[key, value]: &[Frame; 2]| {
        let key = String::from_utf8(key.text()?).ok()?;
        let which = key.strip_prefix(prefix)?.parse().ok()?;
        (whose_value(&value.text()?)? == which).then_some(which)
    };
    pairs.iter().map(one).collect()
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
struct Client {
    protocol: WireProtocol,
    pipe: Option<Pipe>,
    /// The number of its connection, of all connections.
    session: usize,
    bytes: Vec<u8>,
    asked: VecDeque<UnderWay>,
    /// The operation by which it holds what a chain has.
    holds: Option<usize>,
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
    reads: usize,
    breadth: Breadth,
    pub(super) seen: ClientsSeen,
}

/// What a reply says: `None`: nobody knows whether the operation was done.
fn told(operation: Operation, replies: &[Frame]) -> Result<Option<Told>, String> {
    let last = match (operation, &replies[0]) {
        // What is not watched is not held.
        (Operation::Hold(_), _) => {
            let refused = replies.iter().find(|it| matches!(it, Frame::Error(_)));
            refused.unwrap_or(&replies[replies.len() - 1])
        }
        _ => &replies[replies.len() - 1],
    };
    if let Frame::Error(text) = last {
        return match text.split(' ').next() {
            Some("CLUSTERDOWN") if text.contains("nobody knows") => Ok(None),
            // A transaction is given up where one of its requests was refused when it was queued, or where keys of several shards are watched still.
            Some("CLUSTERDOWN" | "EXECABORT" | "CROSSSLOT") => Ok(Some(Told::Refused)),
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
        Operation::Count(_) | Operation::Remove(_) | Operation::Limit(..) => {
            number(last).map(Told::Number)
        }
        Operation::ReadCounter(_) => match last {
            Frame::Null => Some(Told::Number(0)),
            last => number(last).map(Told::Number),
        },
        Operation::Set(_) | Operation::Lend(..) | Operation::Post => {
            (last.text().as_deref() == Some(b"OK")).then_some(Told::Done)
        }
        Operation::Hold(_) => match last {
            Frame::Null => Some(Told::Held(None, 0)),
            Frame::Array(item) => match &**item {
                [value, version] => {
                    let value = value.text().and_then(|it| whose_value(&it));
                    Option::zip(value, number(version))
                        .map(|(value, version)| Told::Held(Some(value), version))
                }
                _ => None,
            },
            last => last.text().and_then(|it| whose_value(&it)).map(|it| Told::Held(Some(it), 0)),
        },
        Operation::Swap(..) => match last {
            Frame::Null | Frame::NullArray => Some(Told::Number(0)),
            Frame::Array(_) => Some(Told::Done),
            _ => None,
        },
        Operation::ReadRegister(_)
        | Operation::ReadPlace(_)
        | Operation::ReadChain(_)
        | Operation::Take(..) => match last {
            Frame::Null => Some(Told::Value(None)),
            last => last.text().and_then(|it| whose_value(&it)).map(|it| Told::Value(Some(it))),
        },
        Operation::ReadPosts => posts_of(POSTS, last).map(Told::Posts),
        Operation::Both | Operation::ReadBoth => {
            // What was watched still has changed.
            let (Operation::Both, Frame::NullArray) = (operation, last) else {
                return told_of_both(operation, last).map(Some).ok_or_else(wrong);
            };
            Some(Told::Refused)
        }
    };
    told.map(Some).ok_or_else(wrong)
}

/// What the reply to operations on the pair says, which changes in one transaction; `None`: it is no such reply.
fn told_of_both(operation: Operation, last: &Frame) -> Option<Told> {
    let Frame::Array(pair) = last else { return None };
    let [count, list] = &**pair else { return None };
    let number = |frame: &Frame| integer(frame).and_then(|it| u64::try_from(it).ok());
    let count = if *count == Frame::Null { Some(0) } else { number(count) }?;
    match (operation, list) {
        (Operation::Both, length) => Some(Told::Both(count, number(length)? as usize)),
        (_, Frame::Null) => Some(Told::BothRead(count, String::new())),
        (_, text) => Some(Told::BothRead(count, String::from_utf8(text.text()?).ok()?)),
    }
}

/// The requests of an operation, and how many replies they have.
fn requests(operation: Operation, which: usize, breadth: Breadth) -> (Vec<u8>, usize) {
    let text = text_of(which);
    let value = match breadth {
        Breadth::Narrow => which.to_string(),
        Breadth::Wide => value_of(which),
    };
    debug_assert_eq!(text.len(), TEXT);
    let one = |words: &[&str]| (request(words), 1);
    match operation {
        Operation::Append(STREAM) => one(&["STREAM.APPEND", &list(STREAM), &text]),
        Operation::ReadList(STREAM) => one(&["STREAM.READ", &list(STREAM), "0", "100000"]),
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
        Operation::Lend(at, None) => one(&["SET", &place(at), &value]),
        Operation::Lend(at, Some(time)) => {
            one(&["SET", &place(at), &value, "PX", &time.to_string()])
        }
        Operation::Limit(at, None) => one(&["PERSIST", &place(at)]),
        Operation::Limit(at, Some(time)) => one(&["PEXPIRE", &place(at), &time.to_string()]),
        Operation::ReadPlace(at) => one(&["GET", &place(at)]),
        Operation::Hold(at) => {
            let mut all = request(&["UNWATCH"]);
            all.extend(request(&["WATCH", &chain(at)]));
            all.extend(request(&["GET", &chain(at)]));
            (all, 3)
        }
        Operation::Swap(at, ..) => {
            let mut all = request(&["MULTI"]);
            all.extend(request(&["SET", &chain(at), &value]));
            all.extend(request(&["EXEC"]));
            (all, 3)
        }
        Operation::ReadChain(at) => one(&["GET", &chain(at)]),
        Operation::Post => one(&["SET", &post(which), &value]),
        Operation::ReadPosts => one(&["PREFIX", POSTS]),
        Operation::Take(effect, of) => one(&["GETDEL", &format!("{}{of:05}", effect.prefix())]),
    }
}

/// All operations that read.
pub(super) fn reads(breadth: Breadth) -> Vec<Operation> {
    let lists = (0..LISTS).flat_map(|at| [Operation::ReadList(at), Operation::ReadJoin(at)]);
    let counters = (0..COUNTERS).map(Operation::ReadCounter);
    let registers = (0..REGISTERS).map(Operation::ReadRegister);
    let narrow = lists.chain(counters).chain(registers).chain([Operation::ReadBoth]);
    match breadth {
        Breadth::Narrow => narrow.collect(),
        Breadth::Wide => {
            let places = (0..PLACES).map(Operation::ReadPlace);
            let more = [Operation::ReadList(STREAM), Operation::ReadPosts];
            let chains = (0..CHAINS).map(Operation::ReadChain);
            narrow.chain(places).chain(chains).chain(more).collect()
        }
    }
}

/// Some clients speak memcached's protocol; the first one reads everything in the end.
fn protocol_of(client: usize, breadth: Breadth) -> WireProtocol {
    match breadth {
        Breadth::Wide if client == 2 => WireProtocol::Memcached,
        _ => WireProtocol::Resp,
    }
}

fn draw(rng: &mut Rng, (reads, breadth): (usize, Breadth), history: &History) -> Operation {
    if rng.chance(reads) {
        return *rng.pick(&self::reads(breadth));
    }
    if breadth == Breadth::Wide && rng.chance(60) {
        return draw_more(rng, history);
    }
    match rng.below(10) {
        0..=2 => Operation::Append(rng.below(LISTS)),
        3..=5 => Operation::Count(rng.below(COUNTERS)),
        6 => Operation::Set(rng.below(REGISTERS)),
        7 => Operation::Remove(rng.below(REGISTERS)),
        _ => Operation::Both,
    }
}

/// One of the operations that [`Breadth::Wide`] alone has.
fn draw_more(rng: &mut Rng, history: &History) -> Operation {
    let (place, time) = (rng.below(PLACES), TIMES[rng.below(TIMES.len())]);
    match rng.below(20) {
        14.. => Operation::Hold(rng.below(CHAINS)),
        10 | 11 => Operation::Lend(place, rng.chance(70).then_some(time)),
        12 => Operation::Limit(place, Some(time)),
        13 => Operation::Limit(place, None),
        0 => Operation::Append(STREAM),
        1..=7 => match &*history.posts() {
            [] => Operation::Post,
            posts => {
                let recent = &posts[posts.len().saturating_sub(RECENT)..];
                Operation::Take(*rng.pick(&Effect::ALL), *rng.pick(recent))
            }
        },
        _ => Operation::Post,
    }
}

impl Clients {
    /// Clients, as many as `count`; `reads` of a hundred operations only read.
    pub(super) fn new(count: usize, reads: usize, breadth: Breadth) -> Self {
        let all = (0..count).map(|at| Client::new(protocol_of(at, breadth))).collect();
        Self { all, sessions: 0, reads, breadth, seen: ClientsSeen::default() }
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
        let client = &mut self.all[at];
        let operation = match client.protocol {
            WireProtocol::Resp => draw(rng, (self.reads, self.breadth), history),
            WireProtocol::Memcached => items::draw(rng, self.reads),
        };
        let operation = client.swaps(operation, history);
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
            let Some(pipe) = servers.connect(client.protocol, rng) else { return false };
            client.pipe = Some(pipe);
            client.bytes.clear();
            self.sessions += 1;
            client.session = self.sessions;
        }
        let Some(pipe) = &client.pipe else { return false };
        let which = history.begin(operation, client.session, now);
        let (bytes, replies) = match client.protocol {
            WireProtocol::Resp => requests(operation, which, self.breadth),
            WireProtocol::Memcached => (items::request(operation, which), 1),
        };
        let (bytes, replies) = match operation {
            Operation::Both if client.holds.is_some() => {
                ([request(&["UNWATCH"]), bytes].concat(), replies + 1)
            }
            _ => (bytes, replies),
        };
        match operation {
            Operation::Hold(_) => client.holds = Some(which),
            // What was watched is not any more.
            Operation::Both | Operation::Swap(..) => client.holds = None,
            _ => {}
        }
        pipe.ask(&bytes);
        let until = now + PATIENCE_MIN + rng.below(PATIENCE) as u64;
        client.asked.push_back(UnderWay { which, operation, replies, until });
        true
    }
}

impl Client {
    fn new(protocol: WireProtocol) -> Self {
        Self {
            protocol,
            pipe: None,
            session: 0,
            bytes: Vec::new(),
            asked: VecDeque::new(),
            holds: None,
        }
    }

    /// Where it would hold what a chain has, and does so already, it replaces that.
    fn swaps(&self, operation: Operation, history: &History) -> Operation {
        let held = self.holds.map(|which| &history.asked[which]);
        let held = held.and_then(|it| Some((it.operation, it.answer.as_ref()?)));
        match (operation, held) {
            (Operation::Hold(_), Some((Operation::Hold(at), (_, Told::Held(value, version))))) => {
                Operation::Swap(at, *value, *version)
            }
            _ => operation,
        }
    }

    /// Takes the replies to the operation that waits longest; those that are whole.
    fn replies(&self, most: usize) -> Result<(Vec<Frame>, usize), String> {
        let (mut whole, mut end) = (0, 0);
        while whole < most
            && let Some(length) = match self.protocol {
                WireProtocol::Resp => ReplyCutter::default().cut(&self.bytes[end..]),
                WireProtocol::Memcached => items::cut(&self.bytes[end..]),
            }
        {
            (whole, end) = (whole + 1, end + length);
        }
        let bytes = &self.bytes[..end];
        let replies: Result<Vec<Frame>, String> = match self.protocol {
            WireProtocol::Resp => {
                let mut wire = Wire::over(Box::new(Come(bytes.iter().copied().collect())));
                (0..whole).map(|_| wire.frame()).collect()
            }
            WireProtocol::Memcached if whole == 0 => Ok(Vec::new()),
            WireProtocol::Memcached => items::frame(bytes).map(|frame| vec![frame]),
        };
        Ok((replies?, end))
    }

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
            let (replies, end) = self.replies(next.replies)?;
            // Who is turned away is told so once, whatever it has asked, and hears nothing more.
            let is_turned_away = has_ended && matches!(replies.last(), Some(Frame::Error(_)));
            if replies.len() < next.replies && !is_turned_away {
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
            // A version stands for a value at all servers; what is watched is so by a session.
            if self.protocol == WireProtocol::Resp {
                self.holds = None;
            }
        }
        Ok(())
    }
}
