//! The end of a loop whose clients go on elsewhere.

use super::Reactor;
use crate::connection::{Connection, Phase};
use crate::handover::parting::{Parting, part};
use crate::handover::{Inherited, InheritedClient};
use crate::log::event;
use crate::service::{Handover, Service};
use crate::tls::ClientStream;
use mio::Events;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long the next owner of another shard is waited for. Requests are executed meanwhile.
const OTHERS: Duration = Duration::from_secs(3);
/// How long what is under way may take. All clients wait for it.
const REST: Duration = Duration::from_secs(1);
/// How long clients may take to take their answers.
const TAKES: Duration = Duration::from_millis(200);
/// How long those may take who pass clients on.
const PARTING: Duration = Duration::from_secs(2);

impl<S: Service> Reactor<S> {
    /// Whether new clients are let in.
    pub(super) fn may_accept(&self) -> bool {
        !self.rests && self.service.may_accept()
    }

    /// Whether input of this connection may be executed.
    #[inline]
    pub(super) fn may_execute(&self, connection: &Connection<S::Session>) -> bool {
        !self.rests || connection.is_remote() || self.service.is_busy(&connection.session)
    }

    /// Serves on while clients wait for the next owner of another shard, which the same node has often just given up: they would wait for it during the rest,
    /// and all others with them.
    pub(super) fn await_other_owners(&mut self, events: &mut Events) -> io::Result<()> {
        let begun = Instant::now();
        while self.service.awaits_owners() && begun.elapsed() < OTHERS {
            // Who has asked for the end may ask again.
            let _again = self.run_turn(events)?;
        }
        Ok(())
    }

    /// Lets what is under way come to its end; no further requests of clients are executed.
    pub(super) fn come_to_rest(&mut self, events: &mut Events) -> io::Result<()> {
        self.rests = true;
        let begun = Instant::now();
        // When others have said twice that they ask nothing more, they have all answers.
        for _ in 0..2 {
            self.service.begins_to_rest();
            loop {
                let took = begun.elapsed();
                let is_over = !self.is_underway(took < TAKES) && !self.service.may_be_asked();
                if is_over || took >= REST {
                    break;
                }
                self.run_turn(events)?;
            }
        }
        Ok(())
    }

    /// Whether something is under way; `sends`: answers that clients have yet to take count as well.
    pub(super) fn is_underway(&self, sends: bool) -> bool {
        self.connections.iter().any(|connection| {
            connection.is_gated()
                || (sends && connection.unsent() > 0)
                || self.service.is_busy(&connection.session)
        })
    }

    /// Parts with the clients that go on elsewhere. The others end as the loop does.
    pub(super) fn hand_over(&mut self) {
        if !self.service.hands_over() || self.service.durable_writes().withheld {
            return;
        }
        self.service.begins_to_part();
        let mut left = Inherited::default();
        for (listener, _) in self.listeners.drain(..) {
            left.listeners.push(TcpListener::from(OwnedFd::from(listener)));
        }
        let mut partings = Vec::new();
        for slot in self.connections.slots().collect::<Vec<_>>() {
            let Some(mut connection) = self.connections.take(slot) else { continue };
            let goes_on = connection.phase == Phase::Open && !connection.ended;
            let how = if goes_on { self.service.part_with(&connection) } else { None };
            let Some(Handover { state, tag }) = how else {
                self.connections.put(connection);
                continue;
            };
            let Some(ClientStream::Bare(stream)) = connection.take_stream() else {
                self.connections.put(connection);
                continue;
            };
            let (stream, mut input) =
                (TcpStream::from(stream), core::mem::take(&mut connection.input));
            input.truncate(connection.input_filled);
            connection.input_filled = 0;
            match tag {
                Some(tag) => partings.push(Parting { stream, tag, state, input }),
                None => left.clients.push(InheritedClient { stream, state, input, upstream: None }),
            }
        }
        let (forwarded, kept) = (partings.len(), left.clients.len());
        let ended = self.connections.slots().count();
        event!(
            info,
            "cluster",
            "parted",
            forwarded,
            kept,
            ended,
            "clients go on at the next owner: those that other nodes forward, and this node's own; others end"
        );
        part(partings, PARTING);
        self.service.leave(left);
    }
}
