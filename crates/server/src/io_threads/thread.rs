//! The loop of an I/O thread: it reads from its clients, sends them what it is told to, and knows nothing of what that means.
//!
//! # Cost
//! A turn has one wait for sockets, one `read` and one `write` for each client that has news, and one lock and at most one wake-up of the
//! loop that executes, for all clients together.

use super::client::Client;
use super::leaving::{FIRST_LEAVING, Leaving};
use super::message::{ClientState, IoOrder, IoOrders, IoReport, IoReports};
use super::{INPUT_WINDOW, SharedInboxes, micros_of_thread};
use crate::connection_id::ConnectionId;
use crate::log::event;
use crate::tls::ClientStream;
use mio::{Events, Interest, Poll, Token, Waker};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Readiness reports taken at once.
const EVENTS: usize = 1024;
/// Bytes that are read from a client at once.
const READ_BYTES: usize = INPUT_WINDOW;
/// How long nobody is told what a client was sent, unless it is asked for or goes with what the client sends.
const REPORT_AFTER: Duration = Duration::from_millis(10);

/// How long clients may take for what they were sent last when the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

const WAKER: Token = Token(0);
const FIRST_CLIENT: usize = 1;

/// An I/O thread.
pub(super) struct IoThread {
    poll: Poll,
    shared: Arc<SharedInboxes>,
    number: usize,
    /// By the slots of their connections.
    clients: Vec<Option<Box<Client>>>,
    leaving: Leaving,
    touched: Vec<ConnectionId>,
    /// Clients of which nothing is read before the loop has taken what was read (I3).
    held_back: Vec<ConnectionId>,
    late: Vec<ConnectionId>,
    late_since: Option<Instant>,
    read: Box<[u8]>,
    reports: IoReports,
    ends: bool,
}

impl IoThread {
    pub(super) fn new(number: usize, shared: Arc<SharedInboxes>) -> io::Result<Self> {
        let poll = Poll::new()?;
        shared.orders[number].set_waker(Arc::new(Waker::new(poll.registry(), WAKER)?));
        Ok(Self {
            poll,
            shared,
            number,
            clients: Vec::new(),
            leaving: Leaving::default(),
            touched: Vec::new(),
            late: Vec::new(),
            late_since: None,
            read: vec![0; READ_BYTES].into_boxed_slice(),
            reports: IoReports { thread: number, ..IoReports::default() },
            held_back: Vec::new(),
            ends: false,
        })
    }

    /// Serves until it is told to end.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        while !self.ends {
            self.wait(&mut events);
            for event in &events {
                if event.token() != WAKER {
                    self.hear_of(event);
                }
            }
            for orders in self.shared.orders[self.number].take() {
                self.follow(orders);
            }
            if !self.held_back.is_empty() && !self.is_behind() {
                for id in core::mem::take(&mut self.held_back) {
                    if let Some(client) = self.client(id) {
                        client.is_held_back = false;
                        self.touch(id);
                    }
                }
            }
            self.attend();
            self.report_late();
            self.hand_over();
            self.leaving.end_late();
            self.tell_work();
        }
        self.farewell();
    }

    /// Tells how long it was at work so far, if the loop wants to know.
    fn tell_work(&mut self) {
        let work = &self.shared.work[self.number];
        if work.is_wanted.swap(false, Ordering::Relaxed) {
            work.micros.store(micros_of_thread(), Ordering::Relaxed);
        }
    }

    fn wait(&mut self, events: &mut Events) {
        let inbox = &self.shared.orders[self.number];
        let rests = self.touched.is_empty();
        let sleeps = rests && inbox.may_sleep();
        let most = match self.late_since {
            _ if !sleeps => Some(Duration::ZERO),
            Some(since) => Some(REPORT_AFTER.saturating_sub(since.elapsed())),
            None if !self.leaving.is_empty() => Some(Duration::from_secs(1)),
            None => None,
        };
        if let Err(error) = self.poll.poll(events, most)
            && error.kind() != ErrorKind::Interrupted
        {
            event!(error, "clients", "io_thread_failed", %error, "waiting for sockets failed");
        }
        if sleeps {
            self.shared.orders[self.number].awoke();
        }
    }

    fn hear_of(&mut self, event: &mio::event::Event) {
        let token = event.token().0;
        if token >= FIRST_LEAVING {
            return self.leaving.writable(token);
        }
        let slot = token - FIRST_CLIENT;
        let Some(client) = self.clients.get_mut(slot).and_then(Option::as_deref_mut) else {
            return;
        };
        client.hung_up |= event.is_read_closed();
        client.readable |= event.is_readable() || event.is_error() || client.hung_up;
        client.blocked &= !event.is_writable();
        let id = client.id;
        self.touch(id);
    }

    fn client(&mut self, id: ConnectionId) -> Option<&mut Client> {
        let client = self.clients.get_mut(id.slot)?.as_deref_mut()?;
        (client.id == id).then_some(client)
    }

    /// Takes a client out of its slot.
    fn take(&mut self, id: ConnectionId) -> Option<Box<Client>> {
        self.clients.get_mut(id.slot)?.take_if(|client| client.id == id)
    }

    /// Has a client looked at in this turn.
    fn touch(&mut self, id: ConnectionId) {
        if let Some(client) = self.client(id)
            && !client.touched
        {
            client.touched = true;
            self.touched.push(id);
        }
    }

    fn follow(&mut self, orders: IoOrders) {
        let mut begin = 0;
        for order in orders.all {
            match order {
                IoOrder::Serve(id, stream) => self.serve(id, stream),
                IoOrder::Send { client, taken, end } => {
                    self.take_order(client, taken, &orders.bytes[begin..end]);
                    begin = end;
                }
                IoOrder::GiveBack(id) => {
                    if let Some(client) = self.client(id) {
                        client.goes_back = true;
                        self.touch(id);
                    }
                }
                IoOrder::Close { client, at_once } => self.close(client, at_once),
                IoOrder::Stop => self.ends = true,
            }
        }
    }

    /// Ends a connection. The descriptor is closed with the socket, which also ends its registration.
    fn close(&mut self, id: ConnectionId, at_once: bool) {
        let Some(mut client) = self.take(id) else { return };
        if at_once || !client.flush() || client.is_sent() {
            return;
        }
        self.leaving.add(client, self.poll.registry());
    }

    /// Gives all clients a moment to take what they were sent last.
    fn farewell(&mut self) {
        let until = Instant::now() + FAREWELL;
        let mut all: Vec<_> = self.clients.drain(..).flatten().chain(self.leaving.take()).collect();
        while !all.is_empty() && Instant::now() < until {
            all.retain_mut(|client| {
                client.blocked = false;
                client.flush() && !client.is_sent()
            });
            if !all.is_empty() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn serve(&mut self, id: ConnectionId, mut stream: ClientStream) {
        let both = Interest::READABLE | Interest::WRITABLE;
        let token = Token(FIRST_CLIENT + id.slot);
        if self.poll.registry().register(stream.source(), token, both).is_err() {
            return self.tell_broken(id);
        }
        if self.clients.len() <= id.slot {
            self.clients.resize_with(id.slot + 1, || None);
        }
        self.clients[id.slot] = Some(Box::new(Client::new(id, stream)));
        self.touch(id);
    }

    /// Sends bytes, and reads on where so many were taken.
    fn take_order(&mut self, id: ConnectionId, taken: usize, bytes: &[u8]) {
        let Some(client) = self.client(id) else { return };
        client.untaken = client.untaken.saturating_sub(taken);
        if !client.send(bytes) {
            self.clients[id.slot] = None;
            return self.tell_broken(id);
        }
        self.touch(id);
    }

    /// Looks at the clients of which there is news.
    fn attend(&mut self) {
        for id in core::mem::take(&mut self.touched) {
            let Some(mut client) = self.take(id) else { continue };
            client.touched = false;
            let may_read = client.readable && client.may_read();
            let is_held_back = may_read && self.is_behind();
            let alive =
                client.flush() && (!may_read || is_held_back || self.read_from(&mut client));
            if !alive {
                self.tell_broken(id);
                continue;
            }
            if client.goes_back && client.is_sent() {
                self.give_back(*client);
                continue;
            }
            if client.must_report() {
                self.report(&mut client);
            } else if client.unreported > 0 && !client.is_late {
                client.is_late = true;
                self.late.push(id);
                self.late_since.get_or_insert_with(Instant::now);
            }
            let goes_on = client.readable && client.may_read();
            self.clients[id.slot] = Some(client);
            if is_held_back {
                self.hold_back(id);
            } else if goes_on {
                self.touch(id);
            }
        }
    }

    /// Whether so much is on its way to the loop that nothing more is read for now (I3).
    fn is_behind(&self) -> bool {
        self.shared.is_behind(self.number, self.reports.bytes.len())
    }

    /// Reads nothing of a client before the loop has taken what was read.
    fn hold_back(&mut self, id: ConnectionId) {
        if let Some(client) = self.client(id)
            && !core::mem::replace(&mut client.is_held_back, true)
        {
            self.held_back.push(id);
        }
    }

    /// Reads once; `false`: the connection broke.
    fn read_from(&mut self, client: &mut Client) -> bool {
        let most = READ_BYTES.min(INPUT_WINDOW - client.untaken);
        match client.read(&mut self.read[..most]) {
            Ok(Some(0)) => client.has_ended = true,
            Ok(Some(count)) => {
                self.reports.bytes.extend_from_slice(&self.read[..count]);
                client.untaken += count;
                self.report(client);
            }
            Ok(None) => {}
            Err(_) => return false,
        }
        true
    }

    /// Tells what a client has sent (which is behind what was told before) and was sent.
    fn report(&mut self, client: &mut Client) {
        let (end, sent) = (self.reports.bytes.len(), core::mem::take(&mut client.unreported));
        let state = if client.has_ended { ClientState::Ended } else { ClientState::Open };
        client.has_told_end = client.has_ended;
        client.has_told_hang_up = client.hung_up;
        let (id, hung_up) = (client.id, client.hung_up);
        self.reports.all.push(IoReport { client: id, sent, end, hung_up, state });
    }

    /// Gives a client's socket back to the loop.
    fn give_back(&mut self, mut client: Client) {
        if self.poll.registry().deregister(client.stream.source()).is_err() {
            return self.tell_broken(client.id);
        }
        let (end, sent) = (self.reports.bytes.len(), client.unreported);
        let (id, hung_up) = (client.id, client.hung_up);
        let report = IoReport { client: id, sent, end, hung_up, state: ClientState::GivenBack };
        self.reports.all.push(report);
        self.reports.streams.push(client.stream);
    }

    /// Tells what clients were sent that have sent nothing since.
    fn report_late(&mut self) {
        if self.late_since.is_none_or(|since| since.elapsed() < REPORT_AFTER) {
            return;
        }
        self.late_since = None;
        for id in core::mem::take(&mut self.late) {
            let Some(mut client) = self.take(id) else { continue };
            client.is_late = false;
            if client.unreported > 0 {
                self.report(&mut client);
            }
            self.clients[id.slot] = Some(client);
        }
    }

    /// Tells that a client's connection broke, which is closed here.
    fn tell_broken(&mut self, id: ConnectionId) {
        let end = self.reports.bytes.len();
        let (sent, hung_up, state) = (0, true, ClientState::Broken);
        self.reports.all.push(IoReport { client: id, sent, end, hung_up, state });
    }

    fn hand_over(&mut self) {
        if !self.reports.all.is_empty() {
            self.shared.report(self.reports.take());
        }
    }
}
