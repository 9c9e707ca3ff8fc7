//! What of streams is on disk, and how it gets there and back.
//!
//! The port ([`Spill`]) is given by whoever owns files. A chunk that goes there keeps its place in its
//! stream; a read gives its bytes from a buffer of one chunk, so that reading a chunk little by little
//! asks the port once, and that old bytes which are read do not push out newer ones.

use super::stream::Body;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_base::spill::Spill;
use headwater_pool::{Pool, ValueRef};

/// A chunk on disk.
#[derive(Debug)]
pub(crate) struct Spilled {
    /// What the port knows it by.
    pub(crate) id: u64,
    pub(crate) len: usize,
}

/// The port, and what is known of its use.
#[derive(Debug, Default)]
pub(crate) struct Spilling {
    port: Option<Box<dyn Spill>>,
    next: u64,
    /// The chunk that was read last.
    read: Option<u64>,
    room: Vec<u8>,
    pub(crate) counters: SpillCounters,
}

/// What has been done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SpillCounters {
    /// Chunks that went to disk.
    pub(crate) puts: u64,
    /// Chunks that the disk did not take.
    pub(crate) refusals: u64,
    /// Chunks that came back for a read.
    pub(crate) gets: u64,
    /// Chunks that were wanted and had been lost.
    pub(crate) losses: u64,
}

impl Spilling {
    pub(crate) fn set_port(&mut self, port: Box<dyn Spill>) {
        self.port = Some(port);
    }

    /// Whether there is anywhere to put bytes.
    pub(crate) fn is_there(&self) -> bool {
        self.port.is_some()
    }

    /// Bytes on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.port.as_ref().map_or(0, |port| port.bytes())
    }

    /// Bytes of memory that this takes.
    pub(crate) fn bytes(&self) -> usize {
        self.room.capacity()
    }

    /// Puts the value aside; `None` where that cannot be.
    pub(crate) fn put(&mut self, pool: &Pool, value: ValueRef) -> Option<Rc<Spilled>> {
        let port = self.port.as_mut()?;
        let id = self.next;
        self.next += 1;
        if !port.put(id, &mut pool.view(value).parts()) {
            self.counters.refusals += 1;
            return None;
        }
        self.counters.puts += 1;
        Some(Rc::new(Spilled { id, len: value.len() }))
    }

    /// Whether the chunk was let go of to make room for later ones.
    pub(crate) fn is_gone(&self, spilled: &Spilled) -> bool {
        self.port.as_ref().is_none_or(|port| spilled.id < port.first())
    }

    /// Brings a chunk back into the buffer; `false` where it is lost.
    pub(crate) fn fetch(&mut self, spilled: &Spilled) -> bool {
        if self.read == Some(spilled.id) {
            return true;
        }
        self.read = None;
        self.room.clear();
        let Some(port) = self.port.as_mut() else { return false };
        if port.get(spilled.id, &mut self.room) && self.room.len() == spilled.len {
            self.counters.gets += 1;
            self.read = Some(spilled.id);
            return true;
        }
        self.counters.losses += 1;
        self.room.clear();
        false
    }

    /// The chunk that was fetched last.
    pub(crate) fn fetched(&self) -> &[u8] {
        &self.room
    }

    /// Gives back what a chunk holds, in memory or on disk.
    pub(crate) fn release(&mut self, pool: &mut Pool, body: Body) {
        match body {
            Body::Memory(value) => pool.release(value),
            Body::Disk(spilled) => {
                // A copied stream may have the chunk as well.
                if let (Ok(last), Some(port)) = (Rc::try_unwrap(spilled), &mut self.port) {
                    port.remove(last.id);
                }
            }
        }
    }

    /// Forgets everything that is on disk.
    pub(crate) fn clear(&mut self) {
        self.read = None;
        self.room = Vec::new();
        if let Some(port) = &mut self.port {
            port.clear();
        }
    }
}
