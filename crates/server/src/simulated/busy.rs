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
}

/// One client.
struct Client {
    pipe: Pipe,
    bytes: Vec<u8>,
    asked: Option<(Asked, usize, u64)>,
    last_count: i64,
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
    counts: BTreeSet<i64>,
    /// Answers that were looked at.
    pub(super) answers: u64,
    /// What was wrong first.
    pub(super) wrong: Option<String>,
}

/// Bytes that have come, as a stream.
pub(super) struct Come(pub(super) VecDeque<u8>);

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
/// The places of which one has a key.
pub(super) const PLACES: [&str; 2] = ["~ball|here", "~ball|there"];
/// What counts.
pub(super) const COUNT: &str = "~count|all";

/// Groups that scripts have keys of.
const SCRIPTED: [&str; 7] = ["|a", "|b", "|c", "|d", "|10", "|1", "|~x"];

pub(super) fn request(words: &[&str]) -> Vec<u8> {
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

pub(super) fn integer(frame: &Frame) -> Option<i64> {
    match frame {
        Frame::Integer(number) => Some(*number),
        other => String::from_utf8(other.text()?).ok()?.parse().ok(),
    }
}

impl Busy {
    /// So many clients.
    pub(super) fn new(count: usize, seed: u64, accounts_alone: bool) -> Self {
        let client =
            || Client { pipe: Pipe::default(), bytes: Vec::new(), asked: None, last_count: 0 };
        let clients = (0..count).map(|_| client()).collect();
        let (counts, draws) = (BTreeSet::new(), Draws::new(seed ^ 0xb5));
        Self {
            clients,
            draws,
            accounts_alone,
            moves_among: 0,
            defines: false,
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
        let client = &mut self.clients[at];
        client.pipe.end();
        (client.pipe, client.asked, client.last_count) = (world.connect().0, None, 0);
        client.bytes.clear();
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
        let kinds = if self.accounts_alone { 6 } else { 12 };
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
            _ => {
                say(&["INCR", COUNT]);
                (Asked::Count, 1)
            }
        };
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
        self.check(at, asked, &all, now)
            .map_err(|wrong| format!("{asked:?}: {wrong} ({})", bytes.escape_ascii()))
    }

    fn check(&mut self, at: usize, asked: Asked, all: &[Frame], now: u64) -> Result<(), String> {
        let last = &all[all.len() - 1];
        let list = match last {
            Frame::Array(list) => &list[..],
            _ => &[],
        };
        match asked {
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
                Frame::Integer(count) if *count > self.clients[at].last_count => {
                    self.clients[at].last_count = *count;
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
}
