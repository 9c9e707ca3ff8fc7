//! What the loop and an I/O thread tell each other.
//!
//! Bytes of clients lie one behind the other in their batch; each message says where its own end.

use crate::connection_id::ConnectionId;
use crate::tls::ClientStream;

/// What the loop tells an I/O thread.
#[derive(Debug)]
pub(super) enum IoOrder {
    /// To serve the socket of a client.
    Serve(ConnectionId, ClientStream),
    /// To send the client the bytes up to `end`, and to read so many more from it.
    Send {
        /// The client.
        client: ConnectionId,
        /// Bytes that were read from it and are taken.
        taken: usize,
        /// Where the bytes for it end.
        end: usize,
    },
    /// To give the socket back, when the client was sent what it was to be sent.
    GiveBack(ConnectionId),
    /// To end the connection: at once, or when its client was sent what it was to be sent.
    Close {
        /// The client.
        client: ConnectionId,
        /// Whether that is at once.
        at_once: bool,
    },
    /// To end, when all clients were sent what they were to be sent.
    Stop,
}

/// What the loop tells an I/O thread in one go.
#[derive(Debug, Default)]
pub(super) struct IoOrders {
    pub(super) bytes: Vec<u8>,
    pub(super) all: Vec<IoOrder>,
}

/// What an I/O thread tells of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IoReport {
    /// The client.
    pub(crate) client: ConnectionId,
    /// Bytes that it was sent since it was reported last.
    pub(crate) sent: usize,
    /// Where the bytes end that it has sent.
    pub(crate) end: usize,
    /// It has sent its last byte, which may still be unread.
    pub(super) hung_up: bool,
    /// Whether more is to be expected.
    pub(super) state: ClientState,
}

impl IoReport {
    /// Whether the client sends no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.hung_up || matches!(self.state, ClientState::Ended | ClientState::Broken)
    }

    /// Whether the client's socket comes with it.
    pub(crate) fn gives_back(&self) -> bool {
        self.state == ClientState::GivenBack
    }
}

/// What is to be expected of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClientState {
    /// That it sends more, and takes what it is sent.
    Open,
    /// That it takes what it is sent.
    Ended,
    /// Nothing.
    Broken,
    /// That the loop serves it: its socket is the next one in the batch.
    GivenBack,
}

/// What an I/O thread tells in one go.
#[derive(Debug, Default)]
pub(crate) struct IoReports {
    /// Which one.
    pub(super) thread: usize,
    /// What clients have sent.
    pub(crate) bytes: Vec<u8>,
    /// The reports, in order.
    pub(crate) all: Vec<IoReport>,
    /// The sockets that are given back, in the order of their reports.
    pub(crate) streams: Vec<ClientStream>,
}

/// Bytes, or messages, for which there is room in a batch before they come.
const EXPECTED_MAX: usize = 4 << 10;

impl IoOrders {
    /// Takes what is there. The next batch will be about as long.
    pub(super) fn take(&mut self) -> Self {
        let next = Self {
            bytes: Vec::with_capacity(self.bytes.len().min(EXPECTED_MAX)),
            all: Vec::with_capacity(self.all.len().min(EXPECTED_MAX / size_of::<IoOrder>())),
        };
        core::mem::replace(self, next)
    }
}

impl IoReports {
    /// As [`IoOrders::take`].
    pub(super) fn take(&mut self) -> Self {
        let next = Self {
            thread: self.thread,
            bytes: Vec::with_capacity(self.bytes.len().min(EXPECTED_MAX)),
            all: Vec::with_capacity(self.all.len().min(EXPECTED_MAX / size_of::<IoReport>())),
            streams: Vec::new(),
        };
        core::mem::replace(self, next)
    }

    /// Memory that they take, which was allocated by the I/O thread.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity() + self.all.capacity() * size_of::<IoReport>()
    }
}
