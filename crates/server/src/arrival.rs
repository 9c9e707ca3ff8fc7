//! Clients that have connected and that no shard serves yet.

use crate::tls::ClientStream;
use crate::wire_protocol::WireProtocol;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Arrivals of this process so far.
static ARRIVALS: AtomicU64 = AtomicU64::new(0);

/// A client that was accepted and is through with its handshake, if it has one.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Its socket.
    pub(crate) stream: ClientStream,
    /// Where it came from.
    pub(crate) peer: SocketAddr,
    /// What it speaks.
    pub(crate) door: WireProtocol,
    /// Its place in the order in which clients of all shards came: the thread that accepts it is often not the one that serves
    /// it, and to which it may come later than younger ones.
    pub(crate) number: u64,
    /// Whether another shard has handed it on, and counts it as coming here.
    pub(crate) is_handed: bool,
}

impl Arrival {
    /// A client that comes now.
    pub(crate) fn new(stream: ClientStream, peer: SocketAddr, door: WireProtocol) -> Self {
        let number = ARRIVALS.fetch_add(1, Ordering::Relaxed);
        Self { stream, peer, door, number, is_handed: false }
    }
}
