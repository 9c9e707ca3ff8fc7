//! What concurrent clients are told while nodes are cut off, paused and killed is what one server would tell that does one
//! request after the other: their histories are linearizable, as a published checker finds.
//!
//! A node that is cut off hears nothing and is not heard, and what it has sent meanwhile arrives when the network is whole again, as TCP has it.
//! `HEADWATER_CLUSTER_ROUNDS` says how often somebody is struck.

use crate::cluster::{Cluster, Links, NODES, ask, ask_all, connect, text};
use crate::nats_servers::SERVERS;
use crate::support::{PATIENCE, Stops};
use rustix::process::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// How often a link looks whether it is cut.
const LOOK: Duration = Duration::from_millis(20);

/// Connections to one port of this machine, which can be cut.
pub(crate) struct Link {
    pub(crate) port: u16,
}

impl Link {
    /// A link to a port, as long as `cut` says nothing else.
    pub(crate) fn to(target: u16, cut: &Arc<AtomicBool>) -> Self {
        Self::from(0, target, cut)
    }

    /// A link from this port, or from any with 0.
    pub(crate) fn from(port: u16, target: u16, cut: &Arc<AtomicBool>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = cut.clone();
        // It ends with the test's process.
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let cut = cut.clone();
                thread::spawn(move || pass_both(&near, target, &cut));
            }
        });
        Self { port }
    }
}

fn pass_both(near: &TcpStream, target: u16, cut: &AtomicBool) {
    while cut.load(Ordering::Acquire) {
        sleep(LOOK);
    }
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { return };
    thread::scope(|scope| {
        scope.spawn(|| pass(near, &far, cut));
        pass(&far, near, cut);
    });
}

/// Passes on what comes from one end until that ends.
fn pass(mut from: &TcpStream, mut to: &TcpStream, cut: &AtomicBool) {
    from.set_read_timeout(Some(LOOK)).unwrap();
    let mut bytes = [0; 16 << 10];
    loop {
        let read = from.read(&mut bytes);
        while cut.load(Ordering::Acquire) {
            sleep(LOOK);
        }
        let sent = match read {
            Ok(0) => break,
            Ok(length) => to.write_all(&bytes[..length]),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
            Err(_) => break,
        };
        if sent.is_err() {
            break;
        }
    }
    // Whoever has gone already needs not be told.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// What a client has asked of a register, and what it was told. 0: the register is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    /// It has this value.
    Is(u64),
    Written(u64),
    /// It was counted up, to this.
    Counted(u64),
    /// It had the first value, and has got the other.
    Exchanged(u64, u64),
    /// It was to be counted up, or exchanged; nobody knows whether it was.
    MayBeCounted,
    MayBeExchanged(u64, u64),
    /// Nothing is known yet.
    Asked,
}

struct Register;

impl Specification for Register {
    type State = u64;
    type Operation = Told;

    fn init() -> u64 {
        0
    }

    fn apply(told: &Told, &state: &u64) -> (bool, u64) {
        match *told {
            Told::Is(value) => (value == state, state),
            Told::Written(value) => (true, value),
            Told::Counted(to) => (state + 1 == to, state + 1),
            Told::Exchanged(from, to) => (state == from, if state == from { to } else { state }),
            Told::MayBeCounted => (true, state + 1),
            Told::MayBeExchanged(from, to) => (true, if state == from { to } else { state }),
            Told::Asked => (false, state),
        }
    }
}

type Actions = Vec<(usize, Action<Told>)>;

/// What all clients have asked and were told of each register, in the order in which that was.
pub(crate) struct Recorded {
    registers: Vec<Mutex<Actions>>,
    /// Requests of which nobody knows whether they were done: each is a process of its own, which never goes on.
    unknown: Mutex<Vec<(usize, usize, Told)>>,
    processes: AtomicU64,
    values: AtomicU64,
}

pub(crate) const REGISTERS: usize = 8;
pub(crate) const CLIENTS: usize = 5;
/// How many answers the clients go on for at least.
const ANSWERS: usize = 1000;
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(2);
/// A client that has waited so long asks elsewhere, and does not learn what has become of its request.
const ANSWER: Duration = Duration::from_secs(4);

impl Recorded {
    pub(crate) fn new() -> Self {
        Self {
            registers: (0..REGISTERS).map(|_| Mutex::default()).collect(),
            unknown: Mutex::default(),
            processes: AtomicU64::new(0),
            values: AtomicU64::new(0),
        }
    }

    fn process(&self) -> usize {
        usize::try_from(self.processes.fetch_add(1, Ordering::Relaxed)).unwrap()
    }

    fn note(&self, register: usize, process: usize, action: Action<Told>) {
        self.registers[register].lock().unwrap().push((process, action));
    }

    /// How many answers there are.
    fn answers(&self) -> usize {
        let told = |(_, action): &&(usize, Action<Told>)| matches!(action, Action::Response(_));
        self.registers.iter().map(|it| it.lock().unwrap().iter().filter(told).count()).sum()
    }

    /// The history of a register. What nobody knows of may have been done at any time since.
    fn history(&self, register: usize) -> Actions {
        let mut actions = self.registers[register].lock().unwrap().clone();
        let unknown = self.unknown.lock().unwrap();
        let of_register = unknown.iter().filter(|(of, ..)| *of == register);
        actions.extend(
            of_register.map(|(_, process, told)| (*process, Action::Response(told.clone()))),
        );
        actions
    }
}

/// Without the requests that were refused, or whose answers nobody knows and nobody needs.
fn whole(actions: &Actions) -> Actions {
    let answered = |process: usize, from: usize| {
        actions[from..].iter().skip(1).find(|(other, _)| *other == process)
    };
    let keeps = |at: usize| match &actions[at] {
        (process, Action::Call(_)) => {
            matches!(answered(*process, at), Some((_, Action::Response(_))))
        }
        _ => true,
    };
    (0..actions.len()).filter(|&at| keeps(at)).map(|at| actions[at].clone()).collect()
}

fn is_linearizable(actions: &Actions) -> bool {
    WGLChecker::<Register>::is_linearizable(History::from_actions(whole(actions)))
}

/// What one request of a client has come to.
enum Outcome {
    Told(Told),
    /// It was not done.
    Refused,
    /// Nobody knows whether it was done, which would have been this.
    Unknown(Told),
    /// Nobody knows the answer, and nothing was to be done.
    Unanswered,
}

fn number(value: &redis::Value) -> u64 {
    match value {
        redis::Value::Nil => 0,
        redis::Value::Int(number) => u64::try_from(*number).unwrap(),
        other => text(other).parse().unwrap(),
    }
}

/// Whether a request was refused, and not done.
fn is_down(why: &redis::RedisError) -> bool {
    let told = why.to_string();
    (why.code() == Some("CLUSTERDOWN") || told.contains("CLUSTERDOWN"))
        && !told.contains("nobody knows")
}

fn outcome(
    answer: redis::RedisResult<redis::Value>,
    done: impl Fn(&redis::Value) -> Told,
    may_be: Option<Told>,
) -> Outcome {
    match (answer, may_be) {
        (Ok(value), _) => Outcome::Told(done(&value)),
        (Err(why), _) if is_down(&why) => Outcome::Refused,
        (Err(_), Some(told)) => Outcome::Unknown(told),
        (Err(_), None) => Outcome::Unanswered,
    }
}

/// Asks one thing of a register.
fn ask_one(client: &mut redis::Connection, kind: usize, register: usize, value: u64) -> Outcome {
    let key = format!("r|{register}");
    match kind {
        0 | 1 => outcome(ask(client, &format!("GET {key}")), |it| Told::Is(number(it)), None),
        // What a join derives of it is as fresh.
        2 => outcome(ask(client, &format!("GET d|{register}")), |it| Told::Is(number(it)), None),
        3 => {
            let written = Told::Written(value);
            let set = ask(client, &format!("SET {key} {value}"));
            outcome(set, |_| written.clone(), Some(written.clone()))
        }
        4 => {
            let counted = ask(client, &format!("INCR {key}"));
            outcome(counted, |it| Told::Counted(number(it)), Some(Told::MayBeCounted))
        }
        _ => {
            let seen = ask(client, &format!("WATCH {key}"))
                .and_then(|_| ask(client, &format!("GET {key}")));
            let from = match seen {
                Ok(seen) => number(&seen),
                Err(why) if is_down(&why) => return Outcome::Refused,
                Err(_) => return Outcome::Unanswered,
            };
            let mut exchange = redis::pipe();
            exchange.cmd("MULTI").set(&key, value).cmd("EXEC").ignore_errors();
            let told = exchange.query::<[redis::RedisResult<redis::Value>; 3]>(client);
            let (begun, set, exchange) = match told {
                Ok([begun, set, exchange]) => (begun.is_ok(), set, exchange),
                Err(why) => (true, Ok(redis::Value::Nil), Err(why)),
            };
            if !begun {
                // What follows a MULTI that was refused is no part of a transaction.
                let written = Told::Written(value);
                return outcome(set, |_| written.clone(), Some(written.clone()));
            }
            // Nothing was done where another client was there before: it has had that value all the same.
            let done = |it: &redis::Value| match it {
                redis::Value::Nil => Told::Is(from),
                _ => Told::Exchanged(from, value),
            };
            outcome(exchange, done, Some(Told::MayBeExchanged(from, value)))
        }
    }
}

/// Asks what a random number says, through any node, until it is told to end.
pub(crate) fn go_on(me: usize, ports: &[u16], ends: &AtomicBool, recorded: &Recorded) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(me as u64 + 1);
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).unwrap()
    };
    let mut at = me;
    let mut client = connect(ports[at % ports.len()]);
    client.set_read_timeout(Some(ANSWER)).unwrap();
    let mut process = recorded.process();
    while !ends.load(Ordering::Relaxed) {
        let (kind, register) = (next(6), next(REGISTERS));
        // Whatever is counted up from one value comes to no other.
        let value = 1000 * recorded.values.fetch_add(1, Ordering::Relaxed) + 1000;
        recorded.note(register, process, Action::Call(Told::Asked));
        let outcome = ask_one(&mut client, kind, register, value);
        if let Outcome::Told(told) = outcome {
            recorded.note(register, process, Action::Response(told));
            sleep(PAUSE);
            continue;
        }
        if let Outcome::Unknown(told) = outcome {
            recorded.unknown.lock().unwrap().push((register, process, told));
        }
        process = recorded.process();
        at += 1;
        sleep(Duration::from_millis(100));
        client = connect(ports[at % ports.len()]);
        client.set_read_timeout(Some(ANSWER)).unwrap();
    }
}

/// A cluster each of whose nodes can be cut off from the NATS servers, and others from it.
fn with_links() -> Option<Cluster> {
    Cluster::start_linked(&[], |nats, node| {
        let cut = Arc::new(AtomicBool::new(false));
        let nats = (0..SERVERS).map(|at| Link::to(nats.port(at), &cut).port).collect();
        Links { nats, node: Link::to(node, &cut).port, cut }
    })
}

/// How often somebody is struck; so often where nothing says so.
pub(crate) fn rounds(usual: usize) -> usize {
    let rounds = std::env::var("HEADWATER_CLUSTER_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

#[test]
fn what_clients_are_told_while_nodes_are_cut_off_is_linearizable() {
    let Some(mut cluster) = with_links() else { return };
    ask_all(&mut cluster.client(0), &["JOIN.ADD", "d", "d|<n> = copy r|<n>"]).unwrap();
    let (ends, recorded) = (AtomicBool::new(false), Recorded::new());
    let ports = cluster.ports.clone();
    let rounds = rounds(3);
    let (ends, recorded) = (&ends, &recorded);
    thread::scope(|scope| {
        for me in 0..CLIENTS {
            let ports = &ports;
            scope.spawn(move || go_on(me, ports, ends, recorded));
        }
        let _stops = Stops(ends);
        for round in 0..rounds {
            sleep(Duration::from_secs(1));
            strike(&mut cluster, round);
        }
        recorded.wait();
    });
    recorded.check();
}

impl Recorded {
    /// Waits until there are as many answers as a check is to have.
    pub(crate) fn wait(&self) {
        sleep(Duration::from_secs(1));
        // On a busy machine that takes longer.
        let began = Instant::now();
        while self.answers() <= ANSWERS && began.elapsed() < PATIENCE {
            sleep(Duration::from_millis(100));
        }
    }

    /// What was told of each register is linearizable; and would not be with a read of what it had long before.
    pub(crate) fn check(&self) {
        let (mut answers, mut found) = (0, 0);
        for register in 0..REGISTERS {
            let actions = self.history(register);
            let told = |action: &Action<Told>| matches!(action, Action::Response(_));
            answers += actions.iter().filter(|(_, action)| told(action)).count();
            assert!(is_linearizable(&actions), "register {register}: {actions:?}");
            let first = actions.iter().find_map(|(_, action)| match action {
                Action::Response(Told::Written(value)) => Some(*value),
                _ => None,
            });
            let mut wrong = actions.clone();
            let last = wrong.iter_mut().rev().find_map(|(_, action)| match action {
                Action::Response(Told::Is(value)) => Some(value),
                _ => None,
            });
            if let (Some(first), Some(last)) = (first, last)
                && first.abs_diff(*last) >= 1000
            {
                *last = first;
                assert!(!is_linearizable(&wrong), "register {register}: {wrong:?}");
                found += 1;
            }
        }
        assert!(
            answers > ANSWERS && found > 0,
            "{answers} answers, and {found} histories made wrong"
        );
    }
}

/// Cuts the owner off until another node has the shard, and lets it be heard again; or stops it, or kills it, as the round says.
fn strike(cluster: &mut Cluster, round: usize) {
    let struck = cluster.owner();
    match round % 3 {
        0 => {
            cluster.links[struck].cut.store(true, Ordering::Release);
            cluster.forget_owner(struck);
            let next = cluster.owner();
            assert_ne!(next, struck);
            sleep(Duration::from_secs(1));
            cluster.links[struck].cut.store(false, Ordering::Release);
        }
        1 => {
            cluster.end(struck, Signal::KILL);
            cluster.owner();
            cluster.begin(struck);
        }
        _ => {
            // A node that stands by is cut off, and the owner pauses.
            let other = (struck + 1) % NODES;
            cluster.links[other].cut.store(true, Ordering::Release);
            cluster.signal(struck, Signal::STOP);
            cluster.forget_owner(struck);
            let next = cluster.owner();
            assert!(next != struck && next != other, "{next}");
            cluster.signal(struck, Signal::CONT);
            cluster.links[other].cut.store(false, Ordering::Release);
        }
    }
}
