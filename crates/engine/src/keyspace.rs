//! Keyspace events: what was done to which base key, in the words of Redis, for whoever listens to them.
//!
//! Base keys of this shard have events, whoever writes them: clients, functions or flows. Keys that a join gives have none, since
//! nobody writes them, and neither have keys of a source, nor copies of another shard's keys: their home tells of those. Everything
//! that is removed at once, by FLUSHALL, has none either, as in Redis.
//!
//! # Invariants
//! - E1. Events of one key are listed in the order in which it was changed.
//!
//! # Cost
//! Where nobody asks, a write looks at one flag; else the key's bytes are copied.

use crate::base::Gone;
use crate::engine::Engine;
use crate::report::Expiry;
use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_base::{EventKinds, Millis};

/// What a command does that writes, by which its events are named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteKind {
    /// It gives a key a value.
    #[default]
    Set,
    /// It puts bytes behind a value.
    Append,
    /// It overwrites bytes of a value.
    SetRange,
    /// It adds to a whole number.
    Increment,
    /// It adds to a number.
    IncrementFloat,
    /// It changes bits.
    SetBits,
    /// It gives a key the value of another one.
    Copy,
    /// It gives a key the value of another one, which goes.
    Rename,
    /// It gives a key what was dumped.
    Restore,
    /// It makes a stream.
    Stream,
}

impl WriteKind {
    /// The event of a key that is written so, and its kind.
    fn event(self) -> Option<(EventKinds, &'static str)> {
        Some(match self {
            Self::Set => (EventKinds::STRINGS, "set"),
            Self::Append => (EventKinds::STRINGS, "append"),
            Self::SetRange => (EventKinds::STRINGS, "setrange"),
            Self::Increment => (EventKinds::STRINGS, "incrby"),
            Self::IncrementFloat => (EventKinds::STRINGS, "incrbyfloat"),
            Self::SetBits => (EventKinds::STRINGS, "setbit"),
            Self::Copy => (EventKinds::GENERIC, "copy_to"),
            Self::Rename => (EventKinds::GENERIC, "rename_to"),
            Self::Restore => (EventKinds::GENERIC, "restore"),
            // Who appends tells of it.
            Self::Stream => return None,
        })
    }
}

/// Something that was done to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyspaceEvent {
    /// What, in Redis's word where it has one.
    pub word: &'static str,
    /// The key.
    pub key: Box<[u8]>,
}

/// The events since they were taken last.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceEvents {
    /// Those that somebody asks for.
    kinds: EventKinds,
    /// What the command under way does.
    writing: WriteKind,
    list: Vec<KeyspaceEvent>,
}

impl KeyspaceEvents {
    /// Whether there are events.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.kinds != EventKinds::NONE
    }

    /// How many are listed.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Forgets all but the first `len`.
    pub(crate) fn cut(&mut self, len: usize) {
        self.list.truncate(len);
    }

    pub(crate) fn note(&mut self, kind: EventKinds, word: &'static str, key: &[u8]) {
        if self.kinds.has(kind) {
            self.list.push(KeyspaceEvent { word, key: key.into() });
        }
    }

    /// Notes that a key got a value, which was there before or not.
    pub(crate) fn wrote(&mut self, key: &[u8], is_new: bool, expiry: Expiry) {
        if is_new {
            self.note(EventKinds::NEW, "new", key);
        }
        if let Some((kind, word)) = self.writing.event() {
            self.note(kind, word, key);
        }
        if self.writing == WriteKind::Set && matches!(expiry, Expiry::At(_)) {
            self.note(EventKinds::GENERIC, "expire", key);
        }
    }

    /// Notes that a key is gone.
    pub(crate) fn gone(&mut self, key: &[u8], gone: Gone) {
        let (kind, word) = match gone {
            Gone::Deleted if self.writing == WriteKind::Rename => {
                return self.left(key);
            }
            Gone::Deleted | Gone::WithRange => (EventKinds::GENERIC, "del"),
            Gone::Expired => (EventKinds::EXPIRED, "expired"),
            Gone::Evicted => (EventKinds::EVICTED, "evicted"),
            Gone::ByKeeper => return,
        };
        self.note(kind, word, key);
    }

    /// Notes that a key's value has another name: that is told before the new name is, which has it already.
    fn left(&mut self, key: &[u8]) {
        if !self.kinds.has(EventKinds::GENERIC) {
            return;
        }
        let to = self.list.pop_if(|last| last.word == "rename_to");
        self.note(EventKinds::GENERIC, "rename_from", key);
        self.list.extend(to);
    }

    /// Notes what became of a key's expiry.
    pub(crate) fn expiry_set(&mut self, key: &[u8], before: Option<Millis>, at: Option<Millis>) {
        match (before, at) {
            (_, Some(_)) => self.note(EventKinds::GENERIC, "expire", key),
            (Some(_), None) => self.note(EventKinds::GENERIC, "persist", key),
            (None, None) => {}
        }
    }
}

impl Engine {
    /// Lists events of these kinds from now on.
    pub fn set_keyspace_events(&mut self, kinds: EventKinds) {
        self.notifications.events.kinds = kinds;
        if kinds == EventKinds::NONE {
            self.notifications.events.list = Vec::new();
        }
    }

    /// Whether events are listed.
    #[inline]
    #[must_use]
    pub fn tells_keyspace_events(&self) -> bool {
        self.notifications.events.is_on()
    }

    /// Names the events of what is written next; gives what was said before.
    pub fn begin_writing(&mut self, kind: WriteKind) -> WriteKind {
        core::mem::replace(&mut self.notifications.events.writing, kind)
    }

    /// Whether there are events to be taken.
    #[inline]
    #[must_use]
    pub fn has_keyspace_events(&self) -> bool {
        !self.notifications.events.list.is_empty()
    }

    /// Takes the events since the last time, in their order.
    pub fn take_keyspace_events(&mut self) -> Vec<KeyspaceEvent> {
        core::mem::take(&mut self.notifications.events.list)
    }
}
