//! The loop: one thread that accepts, reads, has requests executed, and writes.
//!
//! Each turn waits for readiness, tells the service the time once, and gives every ready
//! connection its turn: read what is there, execute all complete requests, send all replies
//! in one write. A connection that used up its turn is served again in the next one, after
//! the others.
//!
//! Sockets are registered once, edge-triggered, for both directions: no system call but
//! `epoll_wait`, `read` and `write` is made for a request.
//!
//! # Invariants
//! - R1. A connection that may go on without news from its socket (`runnable`, or `readable`
//!   with nothing in its way) is in `queue`.
//! - R2. Between turns `out` and `held` are empty.
//! - R3. A connection whose output has gates is in `gated_replies`, and is looked at when writes have become safe.
//!
//! # Cost
//! Per turn one `epoll_wait` and one reading of the clock; per batch one `read` and one
//! `write`. A batch that is larger than the shared buffer takes one of each per 256 KiB.

mod accept;
mod ending;
mod gated;
mod handover;
mod limits;
mod relayed;
#[cfg(test)]
mod simulated;
mod start;

use crate::connection::{Connection, ConnectionId, Phase, Received};
use crate::connections::Connections;
use crate::io_threads::IoThreads;
use crate::log::event;
use crate::service::{Bounds, Service, SocketNews, Stopped, Time, Work};
use crate::wire_protocol::WireProtocol;
use ending::{SIGHUP, hear};
use gated::GatedReplies;
use headwater_base::Millis;
use headwater_protocol::Held;
use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use signal_hook_mio::v1_0::Signals;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of the buffer that all connections read into.
const READ_BYTES: usize = 256 << 10;
/// An incomplete request longer than this is read in place instead of through that buffer.
const COPIED_INPUT_MAX: usize = 32 << 10;
/// Replies are sent at the latest when there are so many bytes of them.
const OUT_BYTES_FULL: usize = 256 << 10;
/// The shared output buffer gives memory back beyond this.
const OUT_BYTES_KEPT: usize = 1 << 20;
/// Readiness reports taken at once.
const EVENTS: usize = 1024;
/// The longest wait: expiry goes on while no client asks anything.
const TICK: Duration = Duration::from_millis(100);
/// How often connections are checked for idleness, in milliseconds.
const CHECK_EVERY: u64 = 1000;

const SIGNALS: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_LISTENER: usize = 2;
/// Sockets that the service has itself: more than there are connections.
const FIRST_OF_SERVICE: usize = usize::MAX / 2;

/// The loop and everything it owns.
pub(crate) struct Reactor<S: Service> {
    /// Answers the requests.
    pub(crate) service: S,
    poll: Poll,
    /// Of one loop in the process.
    signals: Option<Signals>,
    listeners: Vec<(TcpListener, WireProtocol)>,
    /// A listener may have connections that were not accepted yet.
    accepting: bool,
    connections: Connections<S::Session>,
    /// Threads that have sockets.
    io: IoThreads,
    queue: Vec<ConnectionId>,
    /// Something was executed since the last turn ended.
    executed: bool,
    /// The end has begun: what is under way comes to its end, and nothing new begins.
    rests: bool,
    gated_replies: GatedReplies,
    /// Clients that had yet to log in when they came, oldest first, with the numbers of their arrivals.
    strangers: VecDeque<(u64, ConnectionId)>,
    read: Vec<u8>,
    out: Vec<u8>,
    /// The long values that belong into `out`.
    held: Held,
    tcp_keepalive_seconds: u32,
    started: Instant,
    time: Time,
    checked: u64,
}

impl<S: Service> Reactor<S> {
    /// Serves until a signal or a client asks for the end.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let mut signalled = false;
        while self.service.stopping().is_none() && !signalled {
            signalled |= self.run_turn(&mut events)?;
        }
        if let Some(reason) = self.service.stopping()
            && self.signals.is_some()
            && !signalled
        {
            event!(info, "server", "ending", reason, "the end begins");
        }
        if self.service.hands_over() {
            self.await_other_owners(&mut events)?;
            self.come_to_rest(&mut events)?;
        }
        self.service.stopped();
        self.farewell();
        self.io.stop();
        Ok(())
    }

    /// One turn. `true`: a signal asks for the end.
    fn run_turn(&mut self, events: &mut Events) -> io::Result<bool> {
        let mut signalled = false;
        {
            self.end_turn();
            let rests = self.queue.is_empty() && !self.executed;
            let wait = if rests { self.patience() } else { Duration::ZERO };
            if wait.is_zero() || !self.may_sleep() {
                self.wait(events, Duration::ZERO)?;
            } else {
                self.wait(events, wait)?;
                self.awoke();
            }
            self.tell_time();
            self.begin_turn();
            for event in &*events {
                match event.token() {
                    SIGNALS => {
                        let heard = self.signals.as_mut().into_iter().flat_map(Signals::pending);
                        for signal in heard.collect::<Vec<_>>() {
                            signalled |= hear(signal);
                            if signal == SIGHUP {
                                self.service.reload();
                            }
                        }
                    }
                    // What it is about is looked for in every turn.
                    WAKER => {}
                    Token(token) if token >= FIRST_OF_SERVICE => {
                        let news = SocketNews::of(event);
                        self.service.socket_news(token - FIRST_OF_SERVICE, news);
                    }
                    Token(token) if token < self.first_connection() => {
                        self.accepting = true;
                        if self.may_accept() {
                            self.accept();
                        }
                    }
                    Token(token) => {
                        let news = SocketNews::of(event);
                        self.hear_of(token - self.first_connection(), news);
                    }
                }
            }
            self.hear_io_threads();
            self.go_on();
        }
        Ok(signalled)
    }

    /// What a turn begins with: connections that may go on without news.
    fn begin_turn(&mut self) {
        self.send_durable_replies();
        if self.accepting && self.may_accept() {
            self.accept();
        }
        for id in core::mem::take(&mut self.queue) {
            self.give_turn(id.slot, Some(id.number), |connection| connection.queued = false);
        }
    }

    /// There is news of the connection in `slot`.
    #[inline]
    fn hear_of(&mut self, slot: usize, news: SocketNews) {
        self.give_turn(slot, None, |connection| {
            connection.readable |= news.may_be_read();
            connection.ended |= news.ended;
            if news.writable {
                connection.writable();
            }
        });
    }

    /// What follows from requests, and from other threads.
    fn go_on(&mut self) {
        self.service.wake(&mut self.connections);
        for arrival in self.service.take_clients() {
            self.admit(arrival);
        }
        while self.connections.any_dirty() {
            self.attend_dirty();
            self.service.wake(&mut self.connections);
        }
        if self.time.uptime >= self.checked + CHECK_EVERY {
            self.check_all();
        }
        self.balance_io_threads();
        // What they may take depends on others as well, and on settings: who has no news may take too much.
        self.keep_clients_within_share();
    }

    /// The turn's end.
    fn end_turn(&mut self) {
        self.service.end_turn();
        // What has made the turn's writes safe may be its end.
        self.executed = false;
        self.send_durable_replies();
        self.service.send_messages();
        self.io.hand_over();
    }

    /// Whether the loop may wait for sockets; whoever has something for it wakes it then.
    fn may_sleep(&mut self) -> bool {
        if !self.service.may_sleep() {
            return false;
        }
        let may = self.io.may_sleep();
        if !may {
            self.service.awoke();
        }
        may
    }

    fn awoke(&mut self) {
        self.service.awoke();
        self.io.awoke();
    }

    /// How long nothing may happen.
    fn patience(&self) -> Duration {
        match self.service.deadline() {
            None => TICK,
            Some(at) => TICK.min(Duration::from_millis(at.saturating_sub(self.time.uptime))),
        }
    }

    fn wait(&mut self, events: &mut Events, most: Duration) -> io::Result<()> {
        match self.poll.poll(events, Some(most)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }

    fn tell_time(&mut self) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let uptime = self.started.elapsed().as_millis() as u64;
        self.time = Time { wall: Millis(wall as u64), uptime };
        self.service.turn(self.time, self.connections.bytes());
    }

    fn first_connection(&self) -> usize {
        FIRST_LISTENER + self.listeners.len()
    }

    /// Takes the connection in `slot` (only if it has this number, where one is given), gives
    /// it the news, lets it do what it can, and puts it back or ends it.
    #[inline]
    fn give_turn(
        &mut self,
        slot: usize,
        number: Option<u64>,
        news: impl FnOnce(&mut Connection<S::Session>),
    ) {
        let Some(mut connection) = self.connections.take(slot) else {
            return;
        };
        if number.is_some_and(|number| number != connection.id.number) {
            self.connections.put(connection);
            return;
        }
        news(&mut connection);
        let goes_on = self.advance(&mut connection);
        if connection.is_remote() {
            self.service.take_remote_answers(&mut connection);
        }
        if goes_on {
            let session_bytes = S::session_bytes(&connection.session);
            self.connections.count(&mut connection, session_bytes);
            self.connections.put(connection);
        } else {
            self.end(connection);
        }
        self.keep_clients_within_share();
    }

    /// Ends clients where all together take more than they may.
    #[inline]
    fn keep_clients_within_share(&mut self) {
        if self.connections.bytes() > self.service.clients_bytes_max() {
            self.end_largest_beyond(0, 0);
        }
    }

    /// Reads, executes and sends for one connection. `false`: it is to end now.
    fn advance(&mut self, connection: &mut Connection<S::Session>) -> bool {
        let bounds = self.service.bounds();
        let mut requests_left = bounds.turn_requests_max;
        if connection.readable
            && connection.phase == Phase::Open
            && self.service.durable_writes().withheld
        {
            return self.turn_away(connection);
        }
        self.service.collect(connection, &mut self.out);
        let mut alive = self.send(connection);
        while alive
            && connection.phase == Phase::Open
            && self.may_execute(connection)
            && takes_more::<S>(connection, &bounds)
            && !self.service.is_behind(connection)
        {
            if connection.runnable {
                connection.runnable = false;
                self.execute_kept(connection, &mut requests_left);
            } else if connection.readable {
                alive = self.read_and_execute(connection, &mut requests_left);
            } else {
                break;
            }
            alive &= self.send(connection);
            self.service.moved(self.connections.bytes());
            if requests_left == 0 {
                break;
            }
        }
        if connection.phase == Phase::Parked
            && connection.ended
            && self.service.is_over(&connection.session)
        {
            return false;
        }
        self.requeue(connection, &bounds);
        match connection.phase {
            Phase::Killed => false,
            Phase::Closing => {
                alive && (connection.unsent() > 0 || self.service.expects(&connection.session))
            }
            Phase::Open | Phase::Parked => {
                let most = self.service.output_bytes_max(&connection.session);
                if alive && connection.unsent() > most {
                    tell_overflow(connection, most);
                    connection.phase = Phase::Killed;
                }
                alive && connection.unsent() <= most
            }
        }
    }

    /// Keeps R1.
    #[inline]
    fn requeue(&mut self, connection: &mut Connection<S::Session>, bounds: &Bounds) {
        let may_go_on = (connection.runnable || connection.readable)
            && connection.phase == Phase::Open
            && takes_more::<S>(connection, bounds);
        if may_go_on && !connection.queued {
            connection.queued = true;
            self.queue.push(connection.id);
        }
    }

    #[inline]
    fn send(&mut self, connection: &mut Connection<S::Session>) -> bool {
        let Self { out, held, service, io, .. } = self;
        let tells_elsewhere = connection.is_remote() && !(out.is_empty() && held.is_empty());
        let alive = connection.send(out, held, (service, io.outbox()), self.time.uptime);
        if !alive {
            self.out.clear();
        }
        let waits_there = tells_elsewhere && self.service.durable_writes().is_waited_for();
        self.gated_replies.note(connection, waits_there);
        if self.out.capacity() > OUT_BYTES_KEPT || self.out.capacity() == 0 {
            self.out = Vec::with_capacity(OUT_BYTES_FULL);
        }
        alive
    }

    /// Executes what the connection has kept of its input, or its waiting command.
    fn execute_kept(&mut self, connection: &mut Connection<S::Session>, left: &mut usize) {
        let mut input = core::mem::take(&mut connection.input);
        let filled = core::mem::take(&mut connection.input_filled);
        let consumed = self.execute(connection, &input[..filled], left);
        if consumed < filled {
            if consumed > 0 {
                input.copy_within(consumed..filled, 0);
                input.truncate((filled - consumed).max(COPIED_INPUT_MAX));
                input.shrink_to(2 * input.len());
            }
            connection.input = input;
            connection.input_filled = filled - consumed;
        }
    }

    /// Reads once and executes. `false`: the client has ended the connection.
    #[inline]
    fn read_and_execute(
        &mut self,
        connection: &mut Connection<S::Session>,
        left: &mut usize,
    ) -> bool {
        let kept = connection.input_filled;
        if kept > COPIED_INPUT_MAX {
            if let Some(bytes) = connection.grows_to() {
                self.service.make_room_to_read(bytes);
            }
            let received = connection.receive_more();
            self.have_read(connection);
            return match received {
                Received::Bytes(count) => {
                    self.service.received(count);
                    connection.received_bytes += count as u64;
                    connection.heard = self.time.uptime;
                    self.execute_kept(connection, left);
                    true
                }
                Received::Nothing => true,
                Received::End => self.linger(connection),
            };
        }
        let mut read = core::mem::take(&mut self.read);
        read[..kept].copy_from_slice(&connection.input[..kept]);
        let received = connection.receive(&mut read[kept..]);
        self.have_read(connection);
        if let Received::Bytes(count) = received {
            self.service.received(count);
            connection.received_bytes += count as u64;
            connection.heard = self.time.uptime;
            connection.input_filled = 0;
            let filled = kept + count;
            let consumed = self.execute(connection, &read[..filled], left);
            let rest = &read[consumed..filled];
            connection.input_filled = rest.len();
            if rest.is_empty() {
                if connection.input.capacity() > 0 {
                    connection.input = Vec::new();
                }
            } else {
                connection.input.clear();
                connection.input.extend_from_slice(rest);
            }
        }
        self.read = read;
        received != Received::End || self.linger(connection)
    }

    #[inline]
    fn execute(
        &mut self,
        connection: &mut Connection<S::Session>,
        input: &[u8],
        left: &mut usize,
    ) -> usize {
        let mut consumed = 0;
        self.executed = true;
        let told = self.service.durable_writes().last;
        loop {
            let served = self.service.serve(Work {
                peers: &mut self.connections,
                connection,
                input: &input[consumed..],
                out: &mut self.out,
                held: &mut self.held,
                requests_left: left,
                out_bytes_full: OUT_BYTES_FULL,
                published_bytes: 0,
                time: self.time,
            });
            consumed += served.consumed;
            let now_told = self.service.durable_writes().last;
            if now_told > told {
                connection.wrote = now_told;
            }
            for value in self.held.take_dropped() {
                self.service.release(value);
            }
            match served.stopped {
                Stopped::Incomplete => {}
                Stopped::Paused => {
                    // The output is full: as long as the client takes it, go on from here.
                    if *left > 0
                        && self.send(connection)
                        && connection.unsent() == 0
                        && !self.service.is_behind(connection)
                    {
                        continue;
                    }
                    connection.runnable = true;
                }
                Stopped::Parked => connection.phase = Phase::Parked,
                Stopped::Closing => connection.phase = Phase::Closing,
            }
            return consumed;
        }
    }

    /// Sends what was written to others' connections, and ends those that were killed.
    fn attend_dirty(&mut self) {
        for id in self.connections.take_dirty() {
            self.give_turn(id.slot, Some(id.number), |connection| connection.dirty = false);
        }
    }

    fn end(&mut self, mut connection: Box<Connection<S::Session>>) {
        // The descriptor is closed with the socket, which also ends its registration.
        let remote = connection.is_remote();
        if let Some(socket) = connection.source() {
            let _ = self.poll.registry().deregister(socket);
        }
        let at_once = connection.phase == Phase::Killed;
        if let Some(relay) = connection.relay() {
            self.io.close(relay, at_once);
        }
        for value in connection.take_held() {
            self.service.release(value);
        }
        if S::outlives_client(&connection.session) && !connection.is_unplugged() {
            connection.unplug();
            if !remote {
                self.connections.unplugged();
            }
            let id = connection.id;
            self.connections.put(connection);
            self.connections.touch(id);
            return;
        }
        self.connections.uncount(&mut connection);
        self.service.closed(&mut connection);
        self.connections.ended(connection.id, remote);
    }
}

/// Whether a connection's client has taken so much of its replies that more may be executed for it.
#[inline]
fn takes_more<S: Service>(connection: &Connection<S::Session>, bounds: &Bounds) -> bool {
    let most = if S::gives_slices(&connection.session) { 0 } else { bounds.output_bytes_soft };
    connection.unsent() <= most || S::outlives_client(&connection.session)
}

#[cold]
fn tell_overflow<S>(connection: &Connection<S>, most: usize) {
    let (peer, bytes) = (&connection.peer, connection.unsent());
    event!(warn, "clients", "output_overflow", %peer, bytes, most, "a client was ended: its unsent replies take too much");
}
