//! What is not in memory, and how it gets out and back: chunks of streams, and long plain values.
//!
//! The port ([`Spill`]) is given by whoever owns files. What goes there keeps its place: a chunk in its
//! stream, a value under its key. A read gives the bytes from a buffer for one of them, so that
//! reading one little by little asks the port once, and that old bytes which are read do not push out
//! newer ones.

mod values;

pub(crate) use values::SpilledValues;

use crate::engine::Engine;
use crate::handles::Handle;
use crate::streams::Body;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_base::spill::Spill;
use headwater_pool::{Pool, ValueRef};

/// The buffer is given back where it has become larger than this.
const ROOM_BYTES: usize = 256 << 10;

/// Something that is not in memory.
#[derive(Clone, Copy, Debug)]
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
    /// What was read last.
    read: Option<u64>,
    room: Vec<u8>,
    pub(crate) chunks: SpillCounters,
    pub(crate) values: SpillCounters,
}

/// What has been done so far, with chunks or with values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SpillCounters {
    /// What went to disk.
    pub(crate) puts: u64,
    /// What the disk did not take.
    pub(crate) refusals: u64,
    /// What came back for a read.
    pub(crate) gets: u64,
    /// What was wanted and had been lost.
    pub(crate) losses: u64,
}

impl SpillCounters {
    fn note_put(&mut self, done: bool) {
        *(if done { &mut self.puts } else { &mut self.refusals }) += 1;
    }

    fn note_get(&mut self, done: bool) {
        *(if done { &mut self.gets } else { &mut self.losses }) += 1;
    }
}

/// Where a key's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValuePlace {
    /// In memory, under this reference: another one when it is written anew, the same when it is changed in place.
    Memory(ValueRef),
    /// On disk.
    Disk,
}

impl Engine {
    /// Where the value of a key is, if it has one. To look is no use of it: nothing expires, is computed, or comes back from disk.
    #[must_use]
    pub fn value_place(&self, key: &[u8]) -> Option<ValuePlace> {
        let word = self.store.table(self.store.table_of(key)?).get(key)?;
        Some(match Handle::spilled(word) {
            Some(_) => ValuePlace::Disk,
            None => ValuePlace::Memory(word),
        })
    }

    /// Gives the place where streams' oldest chunks and long plain values go when memory is short.
    /// Without one they go for good, and only where the policy lets base keys go.
    ///
    /// Values go there from `value_bytes_min` bytes on, where the policy has chosen their keys: what
    /// is there may be lost, and costs a miss then.
    pub fn set_spill(&mut self, port: Box<dyn Spill>, value_bytes_min: usize) {
        self.base.spilling.port = Some(port);
        self.base.spilled.value_bytes_min = value_bytes_min;
    }
}

impl Spilling {
    /// Whether there is anywhere to put bytes.
    pub(crate) fn is_there(&self) -> bool {
        self.port.is_some()
    }

    /// Whether anything is on disk.
    pub(crate) fn holds_any(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.bytes() > 0)
    }

    /// Bytes on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.port.as_ref().map_or(0, |port| port.bytes())
    }

    /// Bytes of memory that this takes.
    pub(crate) fn bytes(&self) -> usize {
        self.room.capacity()
    }

    /// Puts a value aside; `None` where that cannot be.
    fn put(&mut self, pool: &Pool, value: ValueRef) -> Option<Spilled> {
        let port = self.port.as_mut()?;
        let id = self.next;
        self.next += 1;
        port.put(id, &mut pool.view(value).parts()).then(|| Spilled { id, len: value.len() })
    }

    /// Puts a chunk aside; `None` where that cannot be.
    pub(crate) fn put_chunk(&mut self, pool: &Pool, value: ValueRef) -> Option<Rc<Spilled>> {
        let spilled = self.put(pool, value);
        self.chunks.note_put(spilled.is_some());
        spilled.map(Rc::new)
    }

    /// Whether something was let go of to make room for what came later.
    pub(crate) fn is_gone(&self, spilled: &Spilled) -> bool {
        self.port.as_ref().is_none_or(|port| spilled.id < port.first())
    }

    /// Waits for what is on its way to disk, and memory still; whether there was any.
    pub(crate) fn settle(&mut self) -> bool {
        self.port.as_mut().is_some_and(|port| port.settle())
    }

    /// Brings something back into the buffer; `None` where it is lost, and whether the port was asked.
    fn fetch(&mut self, spilled: &Spilled) -> Option<bool> {
        if self.read == Some(spilled.id) {
            return Some(false);
        }
        self.forget_read();
        let port = self.port.as_mut()?;
        if port.get(spilled.id, &mut self.room) && self.room.len() == spilled.len {
            self.read = Some(spilled.id);
            return Some(true);
        }
        self.room.clear();
        None
    }

    /// Brings a chunk back into the buffer; `false` where it is lost.
    pub(crate) fn fetch_chunk(&mut self, spilled: &Spilled) -> bool {
        let found = self.fetch(spilled);
        if found != Some(false) {
            self.chunks.note_get(found.is_some());
        }
        found.is_some()
    }

    /// What was fetched last.
    pub(crate) fn fetched(&self) -> &[u8] {
        &self.room
    }

    fn forget_read(&mut self) {
        self.read = None;
        if self.room.capacity() > ROOM_BYTES {
            self.room = Vec::new();
        }
        self.room.clear();
    }

    /// Has the port forget something.
    fn remove(&mut self, id: u64) {
        if let Some(port) = &mut self.port {
            port.remove(id);
        }
    }

    /// Gives back what a chunk holds, in memory or on disk.
    pub(crate) fn release(&mut self, pool: &mut Pool, body: Body) {
        match body {
            Body::Memory(value) => pool.release(value),
            Body::Kept(_) => {}
            Body::Disk(spilled) => {
                // A copied stream may have the chunk as well.
                if let Ok(last) = Rc::try_unwrap(spilled) {
                    self.remove(last.id);
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
