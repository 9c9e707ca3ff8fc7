//! What stands between bytes and answers: the interface of the loop to the protocol.
//!
//! There are two services: the real one, and a constant one that measures what the loop
//! itself costs. The loop is compiled for each, so neither pays for the other.

use crate::arrival::Arrival;
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::handover::Inherited;
use crate::handover::greeting::Tag;
use crate::wire_protocol::WireProtocol;
use headwater_base::Millis;
use headwater_config::Clients;
use headwater_engine::{Value, ValueRef};
use headwater_protocol::Held;
use std::net::SocketAddr;
use std::sync::Arc;

/// The time of one turn of the loop, read once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Time {
    /// Time of day.
    pub(crate) wall: Millis,
    /// Milliseconds since the server's start, by a clock that never goes back.
    pub(crate) uptime: u64,
}

/// One connection's turn.
pub(crate) struct Work<'a, S> {
    /// All other connections.
    pub(crate) peers: &'a mut Connections<S>,
    /// The connection being served.
    pub(crate) connection: &'a mut Connection<S>,
    /// Bytes it sent; they begin with a request.
    pub(crate) input: &'a [u8],
    /// Where its replies go.
    pub(crate) out: &'a mut Vec<u8>,
    /// The long values among its replies.
    pub(crate) held: &'a mut Held,
    /// Requests it may still execute in this turn.
    pub(crate) requests_left: &'a mut usize,
    /// Stop when the replies have so many bytes, so that they can be sent.
    pub(crate) out_bytes_full: usize,
    /// Bytes that were written to other connections in this turn.
    pub(crate) published_bytes: usize,
    /// The time of this turn.
    pub(crate) time: Time,
}

/// How far a service came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Served {
    /// Bytes of input that are done with.
    pub(crate) consumed: usize,
    /// Why it went no further.
    pub(crate) stopped: Stopped,
}

/// Why a service went no further in the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stopped {
    /// The rest is no complete request.
    Incomplete,
    /// The turn is used up, or the output is full; more requests may be there.
    Paused,
    /// A command waits for data; it will be run again when the connection is woken.
    Parked,
    /// The connection is to end once its output is sent.
    Closing,
}

/// Which writes are durable, by their numbers: replies that may show others wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DurableWrites {
    /// The last write.
    pub(crate) last: u64,
    /// The last one that is durable.
    pub(crate) durable: u64,
    /// No further one will be, and none is accepted: no reply waits any more.
    pub(crate) failed: bool,
    /// Nothing goes out now, whatever it shows: another node may have become the owner.
    pub(crate) withheld: bool,
}

impl DurableWrites {
    /// Whether what is told now has to wait.
    #[inline]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.last > self.durable || self.withheld
    }
}

/// Bounds that the loop enforces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// Connections at once.
    pub(crate) clients_max: usize,
    /// Requests of one connection in a turn.
    pub(crate) turn_requests_max: usize,
    /// Unsent bytes beyond which nothing more is executed.
    pub(crate) output_bytes_soft: usize,
    /// Milliseconds after which a client that takes nothing is disconnected; 0: never.
    pub(crate) output_stuck_max: u64,
}

/// Clients for which something is fetched ahead at once.
pub(crate) const WARMED_MAX: usize = headwater_engine::WARM_MAX;

/// How a client goes on elsewhere.
#[derive(Debug)]
pub(crate) struct Handover {
    /// What the next owner is told of its session.
    pub(crate) state: Vec<u8>,
    /// What the connection is known by at the node that passes the client on; `None`: it is the client's own.
    pub(crate) tag: Option<Tag>,
}

/// What the system tells of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SocketNews {
    /// Something can be read.
    pub(crate) readable: bool,
    /// The other side has sent its last byte.
    pub(crate) ended: bool,
    /// The socket has failed; reading tells why.
    pub(crate) failed: bool,
    /// There is room to write.
    pub(crate) writable: bool,
}

impl SocketNews {
    /// What an event tells.
    pub(crate) fn of(event: &mio::event::Event) -> Self {
        Self {
            readable: event.is_readable(),
            ended: event.is_read_closed(),
            failed: event.is_error(),
            writable: event.is_writable(),
        }
    }

    /// Whether it is worth reading.
    #[inline]
    pub(crate) fn may_be_read(self) -> bool {
        self.readable || self.ended || self.failed
    }
}

/// Answers requests.
pub(crate) trait Service {
    /// What it knows of each client.
    type Session;

    /// The bounds in force.
    fn bounds(&self) -> Bounds;

    /// A connection was accepted at this door.
    fn opened(&mut self, id: ConnectionId, door: WireProtocol) -> Self::Session;

    /// Whether a client has yet to log in.
    #[inline]
    fn is_stranger(_session: &Self::Session) -> bool {
        false
    }

    /// Most clients here that have yet to log in.
    fn strangers_max(&self) -> usize {
        usize::MAX
    }

    /// Whether a client has had its time to log in.
    fn is_late(&self, _connection: &Connection<Self::Session>, _now: u64) -> bool {
        false
    }

    /// How many clients there may be before this one is one too many.
    fn clients_max_for(&self, _peer: SocketAddr) -> usize {
        self.bounds().clients_max
    }

    /// What a client is told that is not let in, wherever it comes from.
    fn turns_away(&mut self, _peer: SocketAddr, _door: WireProtocol) -> Option<&'static [u8]> {
        None
    }

    /// What the certificate calls it that a client has shown.
    fn identified(&mut self, _session: &mut Self::Session, _name: String, _peer: SocketAddr) {}

    /// The process was asked to read its files anew.
    #[cold]
    fn reload(&mut self) {}

    /// Whether clients go on elsewhere when the loop ends: what is under way comes to its end then.
    fn hands_over(&self) -> bool {
        false
    }

    /// Whether clients wait for somebody who is to take over elsewhere, and is expected soon.
    fn awaits_owners(&self) -> bool {
        false
    }

    /// The end has begun: those who ask from elsewhere are told.
    fn begins_to_rest(&mut self) {}

    /// Whether others may ask still, or are not told yet.
    fn may_be_asked(&self) -> bool {
        false
    }

    /// Whether something is under way for a session that comes to its end by itself.
    fn is_busy(&self, _session: &Self::Session) -> bool {
        false
    }

    /// The first clients are about to go on elsewhere.
    fn begins_to_part(&self) {}

    /// How this client goes on elsewhere; `None`: it does not.
    fn part_with(&self, _connection: &Connection<Self::Session>) -> Option<Handover> {
        None
    }

    /// The next process has these sockets.
    fn leave(&mut self, _left: Inherited) {}

    /// A new turn of the loop begins. All clients together take `clients_bytes`.
    fn turn(&mut self, time: Time, clients_bytes: usize);

    /// A connection read or was sent something, which may have taken memory. All others together take
    /// `clients_bytes`.
    #[inline]
    fn moved(&mut self, _clients_bytes: usize) {}

    /// A client has sent so many bytes.
    #[inline]
    fn received(&mut self, _bytes: usize) {}

    /// What these clients have sent is about to be served: what it will touch can be fetched ahead.
    #[inline]
    fn warm(&self, _inputs: &[&[u8]]) {}

    /// So much that another thread has allocated will be freed by this one.
    #[inline]
    fn takes_over(&mut self, _bytes: usize) {}

    /// A client was sent so many bytes.
    #[inline]
    fn sent(&mut self, _bytes: usize) {}

    /// Executes the requests in `work.input`, as far as they are complete.
    fn serve(&mut self, work: Work<'_, Self::Session>) -> Served;

    /// What wakes the loop from other threads.
    fn set_waker(&mut self, _waker: Arc<mio::Waker>) {}

    /// What the loop waits for, where the service has sockets of its own: their tokens begin with this one.
    ///
    /// # Errors
    /// The process has no descriptor left for it.
    fn set_registry(&mut self, _registry: &mio::Registry, _first: usize) -> std::io::Result<()> {
        Ok(())
    }

    /// There is news of the socket with so much more than the first such token.
    fn socket_news(&mut self, _at: usize, _news: SocketNews) {}

    /// The first number of a connection, and the step to the next.
    fn numbers(&self) -> (u64, u64) {
        (1, 1)
    }

    /// How many clients there are, `own` of them here.
    #[inline]
    fn clients(&self, own: usize) -> usize {
        own
    }

    /// A client that has come is one of the `own` ones here now, or was refused. `has_arrived`: another shard has handed it on, and counts it as coming.
    #[inline]
    fn clients_changed(&mut self, _own: usize, _has_arrived: bool) {}

    /// Who serves a client that was just accepted here: `None`, if this shard does.
    #[inline]
    fn hand_on(&mut self, arrival: Arrival) -> Option<Arrival> {
        Some(arrival)
    }

    /// Takes the clients that were accepted elsewhere, and those that are through with their handshakes.
    fn take_clients(&mut self) -> Vec<Arrival> {
        Vec::new()
    }

    /// Puts the answers that came from elsewhere behind the others.
    #[inline]
    fn collect(&mut self, _connection: &mut Connection<Self::Session>, _out: &mut Vec<u8>) {}

    /// Whether answers are still to come from elsewhere.
    #[inline]
    fn expects(&self, _session: &Self::Session) -> bool {
        false
    }

    /// A client sends no more, and answers are still to come for it from elsewhere.
    #[cold]
    fn hung_up(&mut self, _connection: &mut Connection<Self::Session>) {}

    /// Whether a client's replies wait so much elsewhere that no further requests should be executed for it now.
    #[inline]
    fn is_behind(&self, _connection: &mut Connection<Self::Session>) -> bool {
        false
    }

    /// Takes the replies for a client of another shard.
    #[cold]
    fn take_remote_answers(&mut self, _connection: &mut Connection<Self::Session>) {}

    /// A client of another shard is not to be told what waits for writes that it may show: its connection is to end instead.
    #[cold]
    fn forget_remote_answers(&mut self, _connection: &mut Connection<Self::Session>) {}

    /// Takes what has come from elsewhere, and wakes the connections that waited for it.
    fn wake(&mut self, connections: &mut Connections<Self::Session>);

    /// Which writes are safe; where nothing waits for that, all.
    #[inline]
    fn durable_writes(&self) -> DurableWrites {
        DurableWrites::default()
    }

    /// A turn of the loop is over: what it has written becomes durable, or is on its way to it.
    fn end_turn(&mut self) {}

    /// Sends what goes elsewhere: replies to a turn's requests are with it.
    #[inline]
    fn send_messages(&mut self) {}

    /// Whether clients that come are served now.
    #[inline]
    fn may_accept(&self) -> bool {
        true
    }

    /// Whether the loop may wait for sockets now; others wake it from now on, until [`Service::awoke`].
    #[inline]
    fn may_sleep(&mut self) -> bool {
        true
    }

    /// The loop waits no longer.
    #[inline]
    fn awoke(&mut self) {}

    /// Waits until all writes are safe, or never will be.
    fn settle(&mut self) {}

    /// Whether this connection has been silent for longer than it may.
    fn is_idle(&self, connection: &Connection<Self::Session>, now: u64) -> bool;

    /// Most bytes that may be unsent for this connection.
    fn output_bytes_max(&self, session: &Self::Session) -> usize;

    /// Bytes that a session takes: what it queues, watches and listens to.
    fn session_bytes(session: &Self::Session) -> usize;

    /// Most bytes that all clients together may take now.
    fn clients_bytes_max(&self) -> usize;

    /// A client's input is about to have so many bytes, beside those that are there until they are copied.
    fn make_room_to_read(&mut self, _bytes: usize) {}

    /// Whether a client may be disconnected because clients take too much.
    fn may_end(session: &Self::Session) -> bool;

    /// Whether an answer of a session is given in slices: a further one waits until its client has taken what is there.
    #[inline]
    fn gives_slices(_session: &Self::Session) -> bool {
        false
    }

    /// Whether what a session has begun is to be brought to its end, though its client is gone or takes no replies.
    fn outlives_client(_session: &Self::Session) -> bool {
        false
    }

    /// A client is disconnected because clients take too much.
    fn evicted_client(&mut self);

    /// What a client reads that asks for something while [`DurableWrites::withheld`] holds.
    fn no_owner(&self, _session: &Self::Session) -> Vec<u8> {
        b"-CLUSTERDOWN\r\n".to_vec()
    }

    /// What a client reads that is one too many.
    fn refusal(&mut self, door: WireProtocol) -> &'static [u8];

    /// A long value that is being sent.
    fn value(&self, value: ValueRef) -> Value<'_>;

    /// A long value was sent, or will not be.
    fn release(&mut self, value: ValueRef);

    /// A connection has ended.
    fn closed(&mut self, connection: &mut Connection<Self::Session>);

    /// Whether what a parked session waits for is of no use once its client sends no more.
    fn is_over(&self, session: &Self::Session) -> bool;

    /// The moment of the server's life, in milliseconds, at which it wants the next turn at the latest.
    fn deadline(&self) -> Option<u64>;

    /// Why the loop is to end, if it is: a client has asked for that, or whoever has the service.
    fn stopping(&self) -> Option<&'static str>;

    /// The loop ends.
    fn stopped(&mut self) {}
}

impl Bounds {
    /// Those that the settings say.
    pub(crate) fn of(clients: &Clients) -> Self {
        Self {
            clients_max: clients.clients_max,
            turn_requests_max: clients.turn_requests_max,
            output_bytes_soft: clients.output_bytes_soft,
            output_stuck_max: clients.output_stuck_seconds_max.saturating_mul(1000),
        }
    }
}
