//! What shards write to one another about copies that clients keep.
//!
//! # Cost
//! A key that was read or has changed is its bytes and some words, in the batch's buffer.

mod codec;

use crate::connection::ConnectionId;
use headwater_base::wire::{WireReader, put_bytes};

/// What is rare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Note {
    /// Clients of the sender are told of all keys with this prefix, or are no more.
    Prefix {
        /// The prefix.
        prefix: Vec<u8>,
        /// They are.
        on: bool,
    },
    /// No client of the sender tracks any more.
    Off,
    /// A client of the sender wants to have another one told, who is at the receiver.
    Find {
        /// The client.
        session: ConnectionId,
        /// The other one's number.
        number: u64,
    },
    /// The answer.
    Found {
        /// The client.
        session: ConnectionId,
        /// The other one's number.
        number: u64,
        /// The other one, if it is there.
        id: Option<ConnectionId>,
    },
    /// A client of the receiver is told of keys, for the sake of one of the sender.
    Tell {
        /// Whom it concerns.
        session: ConnectionId,
        /// Who is told.
        to: ConnectionId,
        /// The keys whose copies count no longer; `None`: all.
        keys: Option<Vec<Vec<u8>>>,
    },
    /// Who should be told is gone.
    Untold {
        /// Whom it concerns.
        session: ConnectionId,
        /// The number of who is gone.
        number: u64,
    },
}

/// What has become of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copy<'k> {
    /// This client of the receiver has read it.
    Read(ConnectionId, &'k [u8]),
    /// It has changed, perhaps by this client of the receiver's own doing.
    Changed(Option<ConnectionId>, &'k [u8]),
    /// Any key may have.
    All,
}

const READ: u8 = 0;
const CHANGED: u8 = 1;
const ALL: u8 = 2;
/// What stands for no client: none has this number.
const NOBODY: ConnectionId = ConnectionId { slot: 0, number: 0 };

impl<'k> Copy<'k> {
    /// Writes it into a message.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        let (kind, client, key) = match self {
            Self::Read(client, key) => (READ, client, key),
            Self::Changed(writer, key) => (CHANGED, writer.unwrap_or(NOBODY), key),
            Self::All => (ALL, NOBODY, &b""[..]),
        };
        out.push(kind);
        client.write(out);
        put_bytes(out, key);
    }

    /// Reads what was written, and leaves what is behind it.
    pub(super) fn read(bytes: &mut WireReader<'k>) -> Option<Self> {
        let (kind, client, key) = (bytes.u8()?, ConnectionId::read(bytes)?, bytes.bytes()?);
        Some(match kind {
            READ => Self::Read(client, key),
            CHANGED => Self::Changed((client != NOBODY).then_some(client), key),
            ALL => Self::All,
            _ => return None,
        })
    }
}

/// Whether bytes are whole notes of copies, one behind the other.
pub(crate) fn are_copies(bytes: &[u8]) -> bool {
    let mut bytes = WireReader::of(bytes);
    while !bytes.rest().is_empty() {
        if Copy::read(&mut bytes).is_none() {
            return false;
        }
    }
    true
}

/// Notes of copies as they cross.
#[cfg(test)]
pub(crate) fn copies_example() -> Vec<u8> {
    let (mut bytes, client) = (Vec::new(), ConnectionId { slot: 3, number: 17 });
    for copy in [Copy::Read(client, b"a"), Copy::Changed(None, b"b"), Copy::All] {
        copy.write(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let client = ConnectionId { slot: 3, number: 17 };
        let all = [
            Copy::Read(client, b"a"),
            Copy::Changed(None, b""),
            Copy::All,
            Copy::Changed(Some(client), b"key"),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|copy| copy.write(&mut bytes));
        let mut reader = WireReader::of(&bytes);
        let read: Vec<_> = core::iter::from_fn(|| Copy::read(&mut reader)).collect();
        assert_eq!(read, all);
    }
}
