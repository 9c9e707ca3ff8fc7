//! What clients speak at an address, and the sockets that listen at them.

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

/// Takes the socket that listens at this address, if one of these does.
pub(crate) fn take_listener(
    address: SocketAddr,
    open: &mut Vec<TcpListener>,
) -> Option<TcpListener> {
    let is_here = |it: &TcpListener| it.local_addr().is_ok_and(|at| at == address);
    open.iter().position(is_here).map(|at| open.swap_remove(at))
}
