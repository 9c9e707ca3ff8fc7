//! What clients speak at an address, and the sockets that listen at them.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// Which protocol is spoken on an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WireProtocol {
    /// That of Redis.
    Resp,
    /// That of memcached.
    Memcached,
}

impl WireProtocol {
    /// What a client reads that is one too many.
    pub(crate) fn too_many_clients(self) -> &'static [u8] {
        match self {
            Self::Resp => b"-ERR max number of clients reached\r\n",
            Self::Memcached => b"ERROR Too many open connections\r\n",
        }
    }
}

/// The socket that listens at this address: one of the `open` ones, or a new one.
pub(crate) fn listen_at(
    address: SocketAddr,
    open: &mut Vec<TcpListener>,
) -> io::Result<TcpListener> {
    take_listener(address, open).map_or_else(|| TcpListener::bind(address), Ok)
}

/// Takes the socket that listens at this address, if one of these does.
pub(crate) fn take_listener(
    address: SocketAddr,
    open: &mut Vec<TcpListener>,
) -> Option<TcpListener> {
    let is_here = |it: &TcpListener| it.local_addr().is_ok_and(|at| at == address);
    open.iter().position(is_here).map(|at| open.swap_remove(at))
}
