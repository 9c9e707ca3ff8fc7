//! Where messages about watches go: into the output of the client that is being served, or into that of another one, behind
//! the answers that it goes behind.

use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::resp::Session;
use headwater_base::Shard;
use headwater_protocol::resp::Version;

/// The client that is being served, whose messages go into the shared output.
pub(super) struct Own<'a> {
    pub(super) connection: &'a mut Connection<Session>,
    pub(super) out: &'a mut Vec<u8>,
}

/// Where messages go.
pub(super) struct Outputs<'a> {
    pub(super) peers: &'a mut Connections<Session>,
    pub(super) own: Option<Own<'a>>,
    /// Most that one client may have unsent, and all clients together.
    pub(super) most: (usize, usize),
}

impl Outputs<'_> {
    /// The version that a client speaks, if it is there.
    pub(super) fn version(&self, id: ConnectionId) -> Option<Version> {
        match &self.own {
            Some(own) if own.connection.id == id => Some(own.connection.session.version),
            _ => self.peers.get(id).map(|peer| peer.session.version),
        }
    }

    /// Bytes that a client has yet to take.
    pub(super) fn unsent(&self, id: ConnectionId) -> usize {
        match &self.own {
            Some(own) if own.connection.id == id => {
                let held = own.connection.session.held_bytes();
                own.connection.unsent() + held + own.out.len()
            }
            _ => self.peers.get(id).map_or(0, |peer| peer.unsent() + peer.session.held_bytes()),
        }
    }

    /// Writes a message of which something at `home` (or somewhere) is the cause, if there is room for it.
    pub(super) fn write(&mut self, id: ConnectionId, home: Option<Shard>, parts: &[&[u8]]) -> bool {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if self.unsent(id) + bytes > self.most.0 || self.peers.bytes() + bytes > self.most.1 {
            return false;
        }
        if let Some(own) = &mut self.own
            && own.connection.id == id
        {
            if !own.connection.session.put_behind(home, parts) {
                parts.iter().for_each(|part| own.out.extend_from_slice(part));
            }
            return true;
        }
        self.peers.append(id, home, parts);
        true
    }
}
