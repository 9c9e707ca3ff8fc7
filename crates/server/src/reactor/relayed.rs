//! Clients whose sockets I/O threads have.

use super::Reactor;
use crate::connection::{Connection, ConnectionId};
use crate::io_threads::{IoReport, Shift};
use crate::service::SocketNews;
use crate::service::{Service, WARMED_MAX};
use crate::tls::ClientStream;
use mio::{Interest, Token};

impl<S: Service> Reactor<S> {
    /// Takes what the I/O threads tell, and serves their clients.
    #[inline]
    pub(super) fn hear_io_threads(&mut self) {
        for batch in self.io.take() {
            self.service.takes_over(batch.memory());
            let mut begin = 0;
            let mut streams = batch.streams.into_iter();
            for (at, report) in batch.all.iter().enumerate() {
                if at.is_multiple_of(WARMED_MAX) {
                    self.warm(&batch.all[at..], &batch.bytes, begin);
                }
                let bytes = &batch.bytes[begin..report.end];
                begin = report.end;
                let stream = if report.gives_back() { streams.next() } else { None };
                let Some(connection) = self.connections.get_mut(report.client) else { continue };
                let Some(relay) = connection.relay() else { continue };
                if self.io.hear(relay, report, bytes) > 0 {
                    connection.taken = self.time.uptime;
                }
                if let Some(stream) = stream {
                    self.take_back(report.client, stream);
                    continue;
                }
                let ended = report.has_ended();
                let news = SocketNews {
                    readable: !bytes.is_empty(),
                    ended,
                    writable: true,
                    ..SocketNews::default()
                };
                self.hear_of(report.client.slot, news);
                self.io.hand_over_much();
            }
        }
    }

    /// Takes what the I/O threads tell of clients that are sent their last replies: nothing is executed any more.
    pub(super) fn hear_last_reports(&mut self) {
        for batch in self.io.take() {
            let mut streams = batch.streams.into_iter();
            for report in &batch.all {
                let stream = if report.gives_back() { streams.next() } else { None };
                let Some(connection) = self.connections.get_mut(report.client) else { continue };
                if let Some(relay) = connection.relay() {
                    self.io.hear(relay, report, &[]);
                }
                if let Some(stream) = stream {
                    connection.put_stream(stream);
                }
            }
        }
    }

    /// Fetches ahead what the clients of the next reports ask for, whose bytes begin at `begin`: one request of each of many is as much as many
    /// of one.
    #[inline]
    fn warm(&self, reports: &[IoReport], bytes: &[u8], mut begin: usize) {
        let mut inputs: [&[u8]; WARMED_MAX] = [&[]; WARMED_MAX];
        for (report, input) in reports.iter().zip(&mut inputs) {
            *input = &bytes[begin..report.end];
            begin = report.end;
        }
        self.service.warm(&inputs);
    }

    /// Has the loop serve the socket that an I/O thread had.
    #[cold]
    fn take_back(&mut self, client: ConnectionId, mut stream: ClientStream) {
        let token = Token(self.first_connection() + client.slot);
        let both = Interest::READABLE | Interest::WRITABLE;
        let is_registered = self.poll.registry().register(stream.source(), token, both).is_ok();
        let Some(connection) = self.connections.get_mut(client) else { return };
        if let Some(relay) = connection.relay() {
            self.io.has_come_back(relay);
        }
        connection.put_stream(stream);
        if !is_registered {
            // There would be no news of its socket.
            return self.connections.kill(client);
        }
        self.hear_of(
            client.slot,
            SocketNews { readable: true, ended: false, writable: true, ..SocketNews::default() },
        );
    }

    /// Has sockets go from thread to thread at random.
    pub(crate) fn be_restless(&mut self, seed: u64) {
        self.io.be_restless(seed);
    }

    /// Gives sockets to another thread, where one is short of time.
    #[inline]
    pub(super) fn balance_io_threads(&mut self) {
        if let Some(shift) = self.io.balance(self.time.uptime, self.connections.open()) {
            self.shift_sockets(shift);
        }
    }

    #[cold]
    fn shift_sockets(&mut self, shift: Shift) {
        let slots: Vec<usize> = self.connections.slots().collect();
        let (Shift::Away { clients, .. } | Shift::Back { clients, .. }) = shift;
        let mut left = clients;
        // Not always the same ones.
        let first = self.time.uptime as usize % slots.len().max(1);
        for slot in slots[first..].iter().chain(&slots[..first]) {
            if left == 0 {
                break;
            }
            let has_moved = match shift {
                Shift::Away { thread, .. } => self.give_away(*slot, thread),
                Shift::Back { thread, .. } => self.ask_back(*slot, thread),
            };
            left -= usize::from(has_moved);
        }
    }

    fn ask_back(&mut self, slot: usize, thread: usize) -> bool {
        let Some(mut connection) = self.connections.take(slot) else { return false };
        let asked = connection.relay().is_some_and(|relay| self.io.ask_back(relay, thread));
        self.connections.put(connection);
        asked
    }

    /// Has an I/O thread serve a socket that was the loop's; whether it was.
    fn give_away(&mut self, slot: usize, thread: usize) -> bool {
        let Some(mut connection) = self.connections.take(slot) else { return false };
        let stream = connection.take_stream();
        let is_its = stream.is_some();
        if let Some(mut stream) = stream {
            let _ = self.poll.registry().deregister(stream.source());
            let relay = self.io.hand_on(thread, connection.id, stream);
            connection.put_relay(relay);
        }
        self.connections.put(connection);
        is_its
    }

    /// Something was read from a client.
    #[inline]
    pub(super) fn have_read(&mut self, connection: &mut Connection<S::Session>) {
        if let Some(relay) = connection.relay() {
            self.io.have_read(relay);
        }
    }
}
