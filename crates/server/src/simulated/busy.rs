//! Clients that ask all at once, and what must be so whatever the order in which they are served: money is neither made nor lost,
//! what is written as one step is seen as one, counts give each number once, and everybody is answered.

use super::pipe::{Pipe, State};
use super::world::{Draws, PATIENCE, World};
use headwater_base::Placement;
use headwater_model::server::wire::{Frame, Wire, encoded};
use headwater_model::server::{ACCOUNTS, EACH, account};
use headwater_protocol::resp::ReplyCutter;
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read, Write};

/// What a client has asked, and what its answers must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// A transfer between accounts.
    Transfer,
    /// What all accounts hold.
    Total,
    /// Two keys that are written as one step are set, as one step.
    Pair,
    /// They are read.
    SeePair,
    /// A key that is always in one of two places changes its place.
    Throw,
    /// Both places are looked at.
    SeeBall,
    /// A count, which gives each number once.
    Count,
    /// An account is watched and read; then a transaction transfers to the account of this number.
    Change(usize),
    /// That transaction is done, or given up because the watched account has changed.
    Changed,
    /// A partition is to get another home.
    Move,
    /// A join is added, or dropped.
    Define,
    /// What it gives is read.
    SeeJoin,
    /// The client's own key is set, for so many milliseconds.
    Lend(u64),
    /// It gets another name, at another home maybe, and keeps its time.
    PassOn,
    /// It is read.
    SeeLent,
    /// All keys are gone through, from this cursor on.
    Scan,
    /// Three keys are set, by two requests of a transaction.
    Trio,
    /// They are read.
    SeeTrio,
}

/// A key that is there for a while only: under one of two names, from when on at most, and till when at least and at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lent {
    name: usize,
    at_least: u64,
    at_most: u64,
}

/// One client.
struct Client {
    pipe: Pipe,
    bytes: Vec<u8>,
    asked: Option<(Asked, usize, u64)>,
    /// What counted had come to, as far as anybody had been told when it asked.
    floor: i64,
    /// Its key that expires, if it may be there.
    lent: Option<Lent>,
    /// The cursor of its scan, and what that has shown.
    scan: (String, BTreeSet<Vec<u8>>),
    /// What names its own keys.
    number: u64,
}

impl Client {
    fn new(number: u64) -> Self {
        Self {
            pipe: Pipe::default(),
            bytes: Vec::new(),
            asked: None,
            floor: 0,
            lent: None,
            scan: (String::from("0"), BTreeSet::new()),
            number,
        }
    }

    /// Asks about its own keys, goes through all there are, and has several written as one: what, and how many replies that has.
    fn ask_own(
        &self,
        kind: usize,
        (millis, value): (u64, &str),
        say: &mut impl FnMut(&[&str]),
    ) -> (Asked, usize) {
        let names = self.lent_names();
        match (kind, self.lent) {
            (13, None) => {
                say(&["SET", &names[0], "lent", "PX", &millis.to_string()]);
                (Asked::Lend(millis), 1)
            }
            (14, Some(lent)) => {
                say(&["RENAME", &names[lent.name], &names[1 - lent.name]]);
                (Asked::PassOn, 1)
            }
            (15, _) => {
                say(&["SCAN", &self.scan.0, "COUNT", "7"]);
                (Asked::Scan, 1)
            }
            (16, _) => {
                say(&["MULTI"]);
                say(&["MSET", TRIO[0], value, TRIO[1], value]);
                say(&["SET", TRIO[2], value]);
                say(&["EXEC"]);
                (Asked::Trio, 4)
            }
            (17, _) => {
                say(&["MGET", TRIO[0], TRIO[1], TRIO[2]]);
                (Asked::SeeTrio, 1)
            }
            _ => {
                say(&["MGET", &names[0], &names[1]]);
                (Asked::SeeLent, 1)
            }
        }
    }

    /// The names that its key which expires may have.
    fn lent_names(&self) -> [String; 2] {
        [0, 1].map(|name| format!("~lent|{}|{name}", self.number))
    }
}

/// All of them.
pub(super) struct Busy {
    clients: Vec<Client>,
    draws: Draws,
    /// They have accounts alone.
    accounts_alone: bool,
    /// So many shards, among which they move partitions; none: they do not.
    pub(super) moves_among: u16,
    /// They add and drop a join.
    pub(super) defines: bool,
    /// Shards may lack memory, and refuse what needs some.
    pub(super) may_lack_memory: bool,
    /// Requests that were refused for that.
    pub(super) refused: u64,
    /// Clients so far.
    numbered: u64,
    counts: BTreeSet<i64>,
    /// Answers that were looked at.
    pub(super) answers: u64,
    /// What was wrong first.
    pub(super) wrong: Option<String>,
}

/// Bytes that have come, as a stream.
pub(crate) struct Come(pub(crate) VecDeque<u8>);

impl Read for Come {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Come {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl headwater_model::server::place::Stream for Come {
    fn own_address(&self) -> String {
        String::new()
    }

    fn pause(&self) {}
}

/// The keys that are always the same.
pub(super) const PAIR: [&str; 2] = ["~pair|one", "~pair|two"];
/// The same, of two requests.
pub(super) const TRIO: [&str; 3] = ["~trio|one", "~trio|two", "~trio|three"];
/// The places of which one has a key.
pub(super) const PLACES: [&str; 2] = ["~ball|here", "~ball|there"];
/// What counts.
pub(super) const COUNT: &str = "~count|all";

/// For how many milliseconds keys are there that expire, at most.
pub(super) const LENT_MAX: u64 = 2000;

/// Groups that scripts have keys of.
const SCRIPTED: [&str; 7] = ["|a", "|b", "|c", "|d", "|10", "|1", "|~x"];

pub(crate) fn request(words: &[&str]) -> Vec<u8> {
    encoded(&words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
}

/// What must be there before they begin.
pub(super) fn beginning() -> Vec<u8> {
    let mut words = vec![String::from("MSET")];
    words.extend((0..ACCOUNTS).flat_map(|at| [account(at), EACH.to_string()]));
    for key in [PAIR[0], PAIR[1], PLACES[0], COUNT] {
        words.extend([key.to_owned(), String::from("0")]);
    }
    request(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn integer(frame: &Frame) -> Option<i64> {
    match frame {
        Frame::Integer(number) => Some(*number),
        other => String::from_utf8(other.text()?).ok()?.parse().ok(),
    }
}

impl Busy {
    /// So many clients.
    pub(super) fn new(count: usize, seed: u64, accounts_alone: bool) -> Self {
        // Keys of earlier lives may be there.
        let first = seed << 20;
        let clients = (first..first + count as u64).map(Client::new).collect();
        let (counts, draws) = (BTreeSet::new(), Draws::new(seed ^ 0xb5));
        Self {
            clients,
            draws,
            accounts_alone,
            moves_among: 0,
            defines: false,
            may_lack_memory: false,
            refused: 0,
            numbered: first + count as u64,
            counts,
            answers: 0,
            wrong: None,
        }
    }

    /// The count that is acknowledged.
    pub(super) fn counted(&self) -> i64 {
        self.counts.last().copied().unwrap_or(0)
    }

    /// Counts go on from this one.
    pub(super) fn count_on_from(&mut self, count: i64) {
        self.counts.insert(count);
    }

    /// Connects them.
    pub(super) fn begin(&mut self, world: &mut World) {
        for client in &mut self.clients {
            client.pipe = world.connect().0;
        }
    }

    /// Lets one of them do something.
    pub(super) fn step(&mut self, world: &mut World) {
        if self.wrong.is_some() {
            return;
        }
        let at = self.draws.below(self.clients.len());
        if self.clients[at].asked.is_none() {
            self.ask(at, world.uptime);
        } else if self.draws.below(400) == 0 {
            self.hang_up(at, world);
        } else if let Err(wrong) = self.look(at, world.uptime) {
            self.wrong = Some(wrong);
        }
    }

    /// Ends what they do: whether all were answered.
    pub(super) fn end(&mut self, world: &mut World) -> Result<(), String> {
        let began = world.uptime;
        while let Some(at) = self.clients.iter().position(|client| client.asked.is_some()) {
            world.turn();
            self.look(at, world.uptime)?;
            if world.uptime > began + PATIENCE {
                return Err(format!("{:?} is not answered", self.clients[at].asked));
            }
        }
        self.clients.drain(..).for_each(|client| client.pipe.end());
        // What clients have begun that hung up goes on to its end.
        while !world.is_quiet() {
            world.turn();
        }
        self.wrong.take().map_or(Ok(()), Err)
    }

    /// A client goes, whatever it waits for, and comes again.
    fn hang_up(&mut self, at: usize, world: &mut World) {
        self.clients[at].pipe.end();
        // Nobody knows what has become of what it asked: it is another client, with keys of its own.
        self.clients[at] = Client { pipe: world.connect().0, ..Client::new(self.numbered) };
        self.numbered += 1;
    }

    fn ask(&mut self, at: usize, now: u64) {
        let draws = &mut self.draws;
        let (from, to) = (draws.below(ACCOUNTS), draws.below(ACCOUNTS));
        let (from, to, amount) = (account(from), account(to), draws.below(9).to_string());
        let all: Vec<String> = (0..ACCOUNTS).map(account).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let value = draws.below(1000).to_string();
        let mut bytes = Vec::new();
        let mut say = |words: &[&str]| bytes.extend(request(words));
        let kinds = if self.accounts_alone { 6 } else { 19 };
        let moves = self.moves_among > 0 && draws.below(12) == 0;
        let defines = self.defines && draws.below(12) == 0;
        let (asked, replies) = match draws.below(kinds) {
            _ if moves => {
                // Partitions that have something, mostly.
                let keys = [&all[..], &PAIR, &PLACES, &[COUNT], &SCRIPTED].concat();
                let key = keys[draws.below(keys.len())];
                let partition = Placement::even(2).partition(key.as_bytes());
                let to = draws.below(self.moves_among.into());
                say(&["SHARD.MOVE", &partition.0.to_string(), &to.to_string()]);
                (Asked::Move, 1)
            }
            _ if defines => match draws.below(4) {
                0 => {
                    say(&["JOIN.ADD", "now-and-then", "x|<n> = copy ~account|<n>"]);
                    (Asked::Define, 1)
                }
                1 => {
                    say(&["JOIN.DROP", "now-and-then"]);
                    (Asked::Define, 1)
                }
                _ => {
                    say(&["PREFIX", "x|"]);
                    (Asked::SeeJoin, 1)
                }
            },
            0 | 1 => {
                say(&["MULTI"]);
                say(&["DECRBY", &from, &amount]);
                say(&["INCRBY", &to, &amount]);
                say(&["EXEC"]);
                (Asked::Transfer, 4)
            }
            2 => {
                say(&[&["MGET"][..], &all].concat());
                (Asked::Total, 1)
            }
            3 => {
                say(&["RANGE", &account(0), "~account}", "VALUES"]);
                (Asked::Total, 1)
            }
            4 => {
                say(&["MULTI"]);
                all.iter().for_each(|key| say(&["GET", key]));
                say(&["EXEC"]);
                (Asked::Total, ACCOUNTS + 2)
            }
            5 => {
                say(&["WATCH", &from]);
                say(&["GET", &from]);
                (Asked::Change(draws.below(ACCOUNTS)), 2)
            }
            6 => {
                say(&["MSET", PAIR[0], &value, PAIR[1], &value]);
                (Asked::Pair, 1)
            }
            7 => {
                say(&["MGET", PAIR[0], PAIR[1]]);
                (Asked::SeePair, 1)
            }
            8 => {
                say(&["COPY", PAIR[0], PAIR[1], "REPLACE"]);
                (Asked::Pair, 1)
            }
            9 => {
                let way = draws.below(2);
                say(&["RENAME", PLACES[way], PLACES[1 - way]]);
                (Asked::Throw, 1)
            }
            10 => {
                say(&["EXISTS", PLACES[0], PLACES[1]]);
                (Asked::SeeBall, 1)
            }
            11 | 12 => {
                say(&["INCR", COUNT]);
                (Asked::Count, 1)
            }
            kind => {
                let millis = 1 + draws.below(LENT_MAX as usize) as u64;
                self.clients[at].ask_own(kind, (millis, &value), &mut say)
            }
        };
        self.clients[at].floor = self.counted();
        self.clients[at].asked = Some((asked, replies, now));
        self.clients[at].pipe.ask(&bytes);
    }

    /// Takes what has come for a client, and checks it when it is whole.
    fn look(&mut self, at: usize, now: u64) -> Result<(), String> {
        let client = &mut self.clients[at];
        let Some((asked, replies, since)) = client.asked else { return Ok(()) };
        {
            let State { told, server_ended, .. } = &mut *client.pipe.state();
            client.bytes.extend(told.drain(..));
            if *server_ended && client.bytes.is_empty() {
                return Err(format!("{asked:?}: the server has hung up"));
            }
        }
        let (mut cutter, mut whole, mut end) = (ReplyCutter::default(), 0, 0);
        while let Some(length) = cutter.cut(&client.bytes[end..]) {
            (whole, end, cutter) = (whole + 1, end + length, ReplyCutter::default());
        }
        if whole < replies {
            let waited = now - since;
            return if waited > PATIENCE {
                Err(format!("{asked:?} has {whole} of {replies} replies after {waited} ms"))
            } else {
                Ok(())
            };
        }
        let bytes = core::mem::take(&mut client.bytes);
        client.asked = None;
        let mut wire = Wire::over(Box::new(Come(bytes.iter().copied().collect())));
        let all: Result<Vec<Frame>, String> = (0..replies).map(|_| wire.frame()).collect();
        let all = all?;
        self.answers += 1;
        self.check(at, asked, &all, (since, now))
            .map_err(|wrong| format!("{asked:?}: {wrong} ({})", bytes.escape_ascii()))
    }

    /// What was asked at the first moment is answered at the second one.
    fn check(
        &mut self,
        at: usize,
        asked: Asked,
        all: &[Frame],
        (since, now): (u64, u64),
    ) -> Result<(), String> {
        let last = &all[all.len() - 1];
        let list = match last {
            Frame::Array(list) => &list[..],
            _ => &[],
        };
        if self.may_lack_memory && lacks_memory(last) {
            // Nothing of it was done. What was to be read may have been computed.
            self.refused += 1;
            return Ok(());
        }
        match asked {
            Asked::Lend(_) | Asked::PassOn | Asked::SeeLent => {
                self.check_lent(at, asked, last, (since, now))
            }
            Asked::Scan => self.check_scan(at, list),
            Asked::Move => match last {
                Frame::Simple(_) => Ok(()),
                Frame::Error(text) if text.contains("not answered yet") => Ok(()),
                Frame::Error(text) if text.starts_with("BUSY") => Ok(()),
                _ => Err(String::from("it has neither moved nor stayed for a reason")),
            },
            Asked::Define => match last {
                Frame::Error(text) if text.contains("now-and-then") => Ok(()),
                Frame::Error(_) => Err(String::from("it is refused")),
                _ => Ok(()),
            },
            Asked::SeeJoin => match last {
                Frame::Array(pairs) if [0, 2 * ACCOUNTS].contains(&pairs.len()) => Ok(()),
                _ => Err(String::from("a join is there by half")),
            },
            Asked::Transfer => match list {
                [Frame::Integer(_), Frame::Integer(_)] => Ok(()),
                _ => Err(String::from("it is not done")),
            },
            Asked::Total => {
                let sum: i64 = list.iter().filter_map(integer).sum();
                let whole = list.len() == ACCOUNTS && sum == ACCOUNTS as i64 * EACH;
                if whole { Ok(()) } else { Err(format!("all accounts hold {sum}")) }
            }
            Asked::Pair => match last {
                Frame::Simple(_) | Frame::Integer(1) => Ok(()),
                _ => Err(String::from("it is not done")),
            },
            Asked::SeePair => match list {
                [one, other] if one == other && *one != Frame::Null => Ok(()),
                _ => Err(String::from("one step is seen by half")),
            },
            Asked::Trio => match list {
                [Frame::Simple(_), Frame::Simple(_)] => Ok(()),
                _ => Err(String::from("it is not done")),
            },
            Asked::SeeTrio => match list {
                [one, two, three] if one == two && two == three => Ok(()),
                _ => Err(String::from("a transaction is seen by half")),
            },
            Asked::Throw => match last {
                Frame::Simple(_) => Ok(()),
                Frame::Error(text) if text.contains("no such key") => Ok(()),
                _ => Err(String::from("it is neither done nor refused")),
            },
            Asked::SeeBall => match last {
                Frame::Integer(1) => Ok(()),
                _ => Err(String::from("a key is in no place, or in both")),
            },
            Asked::Count => match last {
                // Whoever asks after somebody was told goes on from there.
                Frame::Integer(count) if *count > self.clients[at].floor => {
                    let is_new = self.counts.insert(*count);
                    if is_new { Ok(()) } else { Err(format!("{count} for the second time")) }
                }
                _ => Err(String::from("it does not go on from what it was")),
            },
            Asked::Change(to) => {
                if integer(last).is_none() {
                    return Err(String::from("no number"));
                }
                let mut bytes = request(&["MULTI"]);
                bytes.extend(request(&["INCRBY", &account(to), "1"]));
                bytes.extend(request(&["DECRBY", &account((to + 1) % ACCOUNTS), "1"]));
                bytes.extend(request(&["EXEC"]));
                self.clients[at].asked = Some((Asked::Changed, 4, now));
                self.clients[at].pipe.ask(&bytes);
                Ok(())
            }
            Asked::Changed => match last {
                Frame::Null | Frame::NullArray => Ok(()),
                _ if list.len() == 2 => Ok(()),
                _ => Err(String::from("it is neither done nor given up")),
            },
        }
    }

    /// A key that expires is there until its time, and not after it, whichever home it has been given to meanwhile.
    fn check_lent(
        &mut self,
        at: usize,
        asked: Asked,
        last: &Frame,
        (since, now): (u64, u64),
    ) -> Result<(), String> {
        let lent = &mut self.clients[at].lent;
        let was_there = lent.is_none_or(|lent| since < lent.at_most);
        let must_be_there = lent.is_some_and(|lent| now < lent.at_least);
        match asked {
            Asked::Lend(millis) => {
                let is_done = matches!(last, Frame::Simple(_));
                let (at_least, at_most) = (since + millis, now + millis);
                *lent = is_done.then_some(Lent { name: 0, at_least, at_most });
                if is_done { Ok(()) } else { Err(String::from("it is not set")) }
            }
            Asked::PassOn => match (last, lent.as_mut()) {
                (Frame::Simple(_), Some(lent)) if was_there => {
                    lent.name = 1 - lent.name;
                    Ok(())
                }
                (Frame::Error(text), _) if text.contains("no such key") && !must_be_there => {
                    *lent = None;
                    Ok(())
                }
                _ => Err(format!("{lent:?} is passed on at {since} to {now}")),
            },
            _ => {
                let Frame::Array(list) = last else { return Err(String::from("no list")) };
                let there: Vec<bool> = list.iter().map(|value| *value != Frame::Null).collect();
                let expected = lent.map_or([false; 2], |lent| [lent.name == 0, lent.name == 1]);
                let is_right = match &there[..] {
                    [false, false] => !must_be_there,
                    there => lent.is_some() && was_there && there == expected,
                };
                if there == [false, false] {
                    *lent = None;
                }
                if is_right {
                    Ok(())
                } else {
                    Err(format!("{lent:?} is {there:?} at {since} to {now}"))
                }
            }
        }
    }

    /// What is there all the time is shown.
    fn check_scan(&mut self, at: usize, list: &[Frame]) -> Result<(), String> {
        let [cursor, Frame::Array(keys)] = list else { return Err(String::from("no cursor")) };
        let (next, seen) = &mut self.clients[at].scan;
        seen.extend(keys.iter().filter_map(Frame::text));
        *next = String::from_utf8_lossy(&cursor.text().unwrap_or_default()).into_owned();
        if next != "0" {
            return Ok(());
        }
        let seen = core::mem::take(seen);
        let all = (0..ACCOUNTS).map(account);
        let all = all.chain([PAIR[0], PAIR[1], COUNT].map(str::to_owned));
        let missing: Vec<String> = all.filter(|key| !seen.contains(key.as_bytes())).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("a scan has not shown {missing:?}")) }
    }
}

/// Whether something was refused for want of memory.
fn lacks_memory(frame: &Frame) -> bool {
    matches!(frame, Frame::Error(text) if text.starts_with("OOM") || text.starts_with("EXECABORT"))
}
