//! Connections that two loops carry themselves, with somebody between them who passes bytes on by the piece, keeps them back, changes some, and hangs up wherever
//! that comes: within a frame as well. Sockets are real, time is said by the test, and what happens is drawn from a seed.
//!
//! - What is taken in over a connection is what was written for it, in order, each message once, up to some place.
//! - A connection that nobody has disturbed lasts, and all that was written comes.
//! - Who notices an end by itself has taken in by then all frames that had come whole, where nothing was thrown away by the system (D1).
//! - For how long nothing was heard is never said to be less than it was.
//!
//! `HEADWATER_LINES_SEEDS=10000` runs more seeds, `HEADWATER_LINES_SEED=12` that one alone.

use super::{GivenLine, NewLine};
use crate::service::{DurableWrites, SocketNews};
use crate::shards::{MessageBatch, Outbox, Sender, ShardMessage, Transport};
use headwater_base::Shard;
use headwater_model::rng::Rng;
use mio::{Events, Poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// What takes longer, in real time, never comes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Who has not been heard for so long may be given up: what was read last may have come as much before as the turn before was.
const SILENCE: u64 = 3000 - 200;
/// Steps in which things go wrong, and at most until all is well.
const TROUBLE: u64 = 300;
const CALM: u64 = 3000;
/// Bytes of the longest message, and of the longest frame.
const LONG: usize = 100_000;
const FRAME_MAX: usize = 8 * LONG;
/// Room that the system has for what a socket is to send.
const SOCKET_BYTES: usize = 16 << 10;
/// The bytes that have room where they arrive.
const ARRIVES: usize = 16 << 10;
/// What a message begins with: the connection, its number, and how many bytes follow.
const HEAD: usize = 24;

/// A shard.
struct Side {
    transport: Arc<Transport>,
    outbox: Outbox,
    poll: Poll,
    /// Its connection, until that has ended, and how many it was given.
    given: Option<GivenLine>,
    given_count: u64,
    /// Connections that it has heard of, whether it has one now, and what was said and heard over it.
    count: u64,
    connected: bool,
    said: u64,
    heard: u64,
    /// It does nothing until then.
    paused: u64,
}

/// One direction between the two.
#[derive(Default)]
struct Way {
    /// What was taken from the sender, and how much of it was passed on.
    bytes: Vec<u8>,
    passed: usize,
    /// Nothing is passed on until then.
    kept_back: u64,
    /// When something was passed on last.
    passed_at: u64,
    /// Bytes were changed.
    changed: bool,
}

/// Who stands between: a socket to each of the two, and what goes from each of them to the other.
struct Between {
    /// `None`: they were closed, whatever was under way.
    sockets: Option<[TcpStream; 2]>,
    ways: [Way; 2],
    /// Both are told that nothing more comes.
    hung_up: bool,
}

/// How often what has happened.
#[derive(Default, Debug)]
struct Seen {
    changed: u64,
    hung_up: u64,
    reset: u64,
    silent: u64,
    held_up: u64,
    heard: u64,
}

fn sender(of: usize) -> Sender {
    Sender { shard: Shard(of as u16), epoch: 1, shards: 2, format: 4 }
}

/// Two ends of a connection, with little room for what is sent.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    for socket in [&one, &other] {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, SOCKET_BYTES).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
    }
    (one, other)
}

/// The messages of a batch, each with the connection and the number that it says.
fn messages(batch: &MessageBatch) -> Vec<(u64, u64)> {
    let mut begin = 0;
    let mut found = Vec::new();
    for message in &batch.messages {
        let ShardMessage::Publish { end, .. } = message else { panic!("{message:?}") };
        let (head, rest) = batch.bytes[begin..*end].split_at(HEAD);
        let [connection, number, length] =
            [0, 8, 16].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().unwrap()));
        assert!(rest.len() as u64 == length && rest.iter().all(|byte| *byte == number as u8));
        found.push((connection, number));
        begin = *end;
    }
    found
}

impl Side {
    fn new(me: usize) -> Self {
        let transport = Transport::apart(Shard(me as u16), 2, 1);
        let mut outbox = Outbox::new(Shard(me as u16), transport.clone());
        let poll = Poll::new().unwrap();
        outbox.set_registry(poll.registry().try_clone().unwrap(), 0);
        Self {
            transport,
            outbox,
            poll,
            given: None,
            given_count: 0,
            count: 0,
            connected: false,
            said: 0,
            heard: 0,
            paused: 0,
        }
    }

    fn other(&self) -> Shard {
        Shard(1 - self.outbox.me().0)
    }

    fn say(&mut self, bytes: usize) {
        let to = self.other();
        let batch = self.outbox.to(to);
        for number in [self.count, self.said, bytes as u64] {
            batch.bytes.extend_from_slice(&number.to_le_bytes());
        }
        batch.bytes.resize(batch.bytes.len() + bytes, self.said as u8);
        let end = batch.bytes.len();
        batch.messages.push(ShardMessage::Publish { name: 0, end });
        self.said += 1;
    }

    /// A turn of its loop.
    fn turn(&mut self, now: u64) {
        let mut events = Events::with_capacity(8);
        self.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        for event in &events {
            self.outbox.lines.news(event.token().0, SocketNews::of(event));
        }
        self.outbox.lines.turn(now);
        let other = self.other();
        for batch in self.outbox.take() {
            match &batch.messages[..] {
                [ShardMessage::Found] => {
                    self.outbox.set_connected(other, true);
                    self.count += 1;
                    (self.connected, self.said, self.heard) = (true, 0, 0);
                }
                [ShardMessage::Lost { .. }] => {
                    self.outbox.set_connected(other, false);
                    self.connected = false;
                }
                _ => {
                    assert!(self.connected, "{:?} came behind the end", messages(&batch));
                    for message in messages(&batch) {
                        assert_eq!(message, (self.count, self.heard));
                        self.heard += 1;
                    }
                }
            }
        }
        self.outbox.send(&DurableWrites::default());
    }

    /// Why its connection has ended, if it has.
    fn end(&self) -> Option<String> {
        let end = &self.given.as_ref()?.end;
        end.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For how long it says that it has heard nothing over the connection that it has.
    fn silence(&self, now: u64) -> Option<u64> {
        let is_it = self.connected && self.count == self.given_count;
        self.outbox.lines.silence(self.other(), now).filter(|_| is_it)
    }
}

impl Way {
    /// How many messages the frames have that were passed on whole, up to one that is none.
    fn whole(&self, from: usize) -> u64 {
        let (mut rest, mut count) = (&self.bytes[..self.passed], 0);
        while let Some((head, behind)) = rest.split_first_chunk() {
            let len = u32::from_le_bytes(*head) as usize;
            let Some(frame) = behind.get(..len).filter(|_| len <= FRAME_MAX) else { break };
            if len > 0 {
                let Ok((_, batch)) = MessageBatch::read(frame, &sender(from)) else { break };
                count += batch.messages.len() as u64;
            }
            rest = &behind[len..];
        }
        count
    }
}

impl Between {
    /// Connects the two.
    fn connect(sides: &mut [Side; 2], now: u64) -> Self {
        let sockets = [0, 1].map(|at| {
            let ((own, between), side) = (sockets(), &mut sides[at]);
            let from = sender(1 - at);
            side.given_count += 1;
            let (new, given) = NewLine::new((from, side.given_count), own, FRAME_MAX).unwrap();
            side.transport.give_line(from.shard, new);
            side.transport.tell_found(side.outbox.me(), from.shard);
            side.given = Some(given);
            between
        });
        let ways = [0, 1].map(|_| Way { passed_at: now, ..Way::default() });
        Self { sockets: Some(sockets), ways, hung_up: false }
    }

    /// Takes what one of the two has said, and passes some of it on.
    fn carry(&mut self, from: usize, most: usize, rng: &mut Rng, (now, to): (u64, &Side)) {
        let (way, Some(sockets)) = (&mut self.ways[from], &mut self.sockets) else { return };
        if way.kept_back > now {
            return;
        }
        let mut room = vec![0; 1 + rng.below(most)];
        // One that has hung up is noticed by whoever it has said so to.
        if let Ok(count) = sockets[from].read(&mut room) {
            way.bytes.extend_from_slice(&room[..count]);
        }
        let rest = &way.bytes[way.passed..];
        let some = rest.len().min(1 + rng.below(most));
        match sockets[1 - from].write(&rest[..some]) {
            Ok(0) | Err(_) => {}
            Ok(count) => {
                (way.passed, way.passed_at) = (way.passed + count, now);
                to.await_bytes();
            }
        }
    }

    /// Changes a byte of what was not passed on yet.
    fn change(&mut self, from: usize, rng: &mut Rng) -> bool {
        let way = &mut self.ways[from];
        let rest = way.bytes.len() - way.passed;
        if rest > 0 && !self.hung_up {
            let at = way.passed + rng.below(rest);
            way.bytes[at] ^= 1 << rng.below(8);
            way.changed = true;
        }
        rest > 0 && !self.hung_up
    }
}

impl Side {
    /// Waits until the system shows what was sent to it: what it shows later would be silence, by the test's clock.
    fn await_bytes(&self) {
        let (Some(given), began) = (&self.given, Instant::now()) else { return };
        let waits = || matches!(given.socket.peek(&mut [0]), Err(why) if why.kind() == ErrorKind::WouldBlock);
        while waits() {
            assert!(began.elapsed() < PATIENCE, "nothing has come");
            std::thread::yield_now();
        }
    }
}

/// All of it.
struct World {
    rng: Rng,
    now: u64,
    sides: [Side; 2],
    between: Option<Between>,
    seen: Seen,
}

impl World {
    /// What goes wrong in a step.
    fn trouble(&mut self) {
        let (rng, now) = (&mut self.rng, self.now);
        let Some(between) = &mut self.between else { return };
        let one = rng.below(2);
        match rng.below(200) {
            0..=3 => self.sides[one].paused = now + rng.below(1000) as u64,
            4..=7 => between.ways[one].kept_back = now + rng.below(5000) as u64,
            8 => self.seen.changed += u64::from(between.change(one, rng)),
            9 => {
                self.seen.hung_up += u64::from(!between.hung_up);
                between.hung_up = true;
                for socket in between.sockets.iter().flatten() {
                    // The other one may have ended.
                    let _gone = socket.shutdown(Shutdown::Write);
                }
            }
            10 => {
                self.seen.reset += u64::from(between.sockets.is_some());
                between.sockets = None;
            }
            _ => {}
        }
    }

    fn step(&mut self, most: usize) {
        self.now += 1 + self.rng.below(190) as u64;
        let now = self.now;
        match &mut self.between {
            None if self.rng.chance(20) => {
                self.between = Some(Between::connect(&mut self.sides, now));
            }
            None => {}
            Some(between) => {
                for from in 0..2 {
                    between.carry(from, most, &mut self.rng, (now, &self.sides[1 - from]));
                }
            }
        }
        let first = self.rng.below(2);
        for at in [first, 1 - first] {
            let side = &mut self.sides[at];
            if side.paused > now {
                continue;
            }
            side.turn(now);
            self.seen.held_up += u64::from(side.outbox.has_unsent());
            if let (Some(between), Some(silence)) = (&self.between, side.silence(now)) {
                let since = between.ways[1 - at].passed_at;
                assert!(silence >= now - since, "silent for {silence} ms, since {since} at {now}");
            }
            if let Some(why) = side.end() {
                self.end(Some((at, why)));
            }
        }
    }

    /// The connection has ended: one has noticed it, and why, or both are told so.
    fn end(&mut self, noticed: Option<(usize, String)>) {
        let Some(between) = self.between.take() else { return };
        if let Some((at, why)) = noticed {
            let (side, way) = (&self.sides[at], &between.ways[1 - at]);
            let is_silent = self.now - way.passed_at >= SILENCE;
            let is_reset = between.sockets.is_none();
            let may_end = is_silent || way.changed || between.hung_up || is_reset;
            assert!(may_end, "it has ended: {why}");
            assert!(side.connected && side.count == side.given_count);
            // What the system had no room for where it arrives is thrown away with a socket that is closed.
            let (heard, whole) = (side.heard, way.whole(1 - at));
            let has_all =
                if is_reset && way.passed > ARRIVES { heard <= whole } else { heard == whole };
            assert!(has_all, "{heard} of {whole} had come when it ended: {why}");
            self.seen.silent += u64::from(is_silent);
        }
        for side in &mut self.sides {
            side.given = None;
            side.transport.tell_lost(side.outbox.me(), side.other(), 0);
            self.seen.heard += side.heard;
        }
    }
}

fn run(seed: u64) -> Seen {
    let (mut rng, sides) = (Rng::new(seed), [Side::new(0), Side::new(1)]);
    // Some are fast, and others hand frames on by the byte, nearly.
    let most = *rng.pick(&[40, 2000, 60_000]);
    let mut world = World { rng, now: 0, sides, between: None, seen: Seen::default() };
    for _ in 0..TROUBLE {
        world.trouble();
        for side in world.sides.iter_mut().filter(|side| side.connected) {
            for _ in 0..world.rng.below(3) {
                let long = if world.rng.chance(10) { LONG.min(100 * most) } else { 50 };
                side.say(world.rng.below(long));
            }
        }
        world.step(most);
    }
    if let Some(between) = &mut world.between {
        between.ways.iter_mut().for_each(|way| way.kept_back = 0);
        // Where a frame's length was changed, what it says is waited for as long as something comes.
        between.sockets.take_if(|_| between.ways.iter().any(|way| way.changed));
    }
    world.sides.iter_mut().for_each(|side| side.paused = 0);
    let until = |world: &World| {
        let [one, other] = &world.sides;
        let all = one.connected && other.connected && one.count == other.count;
        all && one.heard == other.said && other.heard == one.said
    };
    for _ in 0..CALM {
        if until(&world) {
            break;
        }
        world.step(60_000);
    }
    let [one, other] = &world.sides;
    let what = [one.said, other.heard, other.said, one.heard];
    assert!(until(&world), "said and heard: {what:?}");
    world.end(None);
    world.seen
}

#[test]
fn what_loops_carry_themselves_comes_once_and_in_order_or_the_connection_ends() {
    let number = |name: &str| Some(std::env::var(name).ok()?.parse::<u64>().expect("a number"));
    let seeds = match number("HEADWATER_LINES_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADWATER_LINES_SEEDS").unwrap_or(60),
    };
    let is_one = seeds.end - seeds.start == 1;
    let mut all = [0; 6];
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok(Seen { changed, hung_up, reset, silent, held_up, heard }) = ran else {
            panic!("HEADWATER_LINES_SEED={seed}");
        };
        let seen = [changed, hung_up, reset, silent, held_up, heard];
        all = core::array::from_fn(|at| all[at] + seen[at]);
    }
    assert!(is_one || all.iter().all(|count| *count > 0), "something did not happen: {all:?}");
}
