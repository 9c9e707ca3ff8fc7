//! What a connection is called.

use headwater_base::wire::{WireReader, put_u64};

/// Names a connection: its place and its number, which is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ConnectionId {
    /// Its place among the connections.
    pub(crate) slot: usize,
    /// Its number, as CLIENT ID gives it.
    pub(crate) number: u64,
}

impl ConnectionId {
    /// Writes it for another shard.
    #[inline]
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        put_u64(out, self.slot as u64);
        put_u64(out, self.number);
    }

    /// Reads what another shard has written.
    #[inline]
    pub(crate) fn read(bytes: &mut WireReader<'_>) -> Option<Self> {
        Some(Self { slot: bytes.u64()? as usize, number: bytes.u64()? })
    }
}
