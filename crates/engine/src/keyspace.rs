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

#[cfg(test)]
mod tests {
    use super::WriteKind;
    use crate::{Engine, Expiry, Settings};
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;
    use headwater_base::{EventKinds, Millis};

    const ALL: EventKinds = EventKinds::GENERIC
        .and(EventKinds::STRINGS)
        .and(EventKinds::STREAMS)
        .and(EventKinds::EXPIRED)
        .and(EventKinds::EVICTED);

    fn taken(engine: &mut Engine) -> Vec<String> {
        let shown = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        let events = engine.take_keyspace_events();
        events.iter().map(|it| format!("{} {}", it.word, shown(&it.key))).collect()
    }

    #[test]
    fn what_is_done_to_base_keys_is_listed_once_somebody_asks() {
        let mut engine = Engine::new(Settings::default());
        engine.join_add("j", "n|<u> = count s|<u>|<p>", false).unwrap();
        engine.set(b"s|a|1", b"", Expiry::Never).unwrap();
        assert!(!engine.has_keyspace_events());
        engine.set_keyspace_events(ALL);
        engine.set(b"s|a|1", b"x", Expiry::At(Millis(10))).unwrap();
        assert!(engine.get(b"n|a").unwrap().is_some());
        assert!(engine.remove(b"s|a|1").unwrap());
        assert!(!engine.remove(b"s|a|1").unwrap());
        // What the join gives has changed twice, and nobody has written it.
        assert_eq!(taken(&mut engine), ["set s|a|1", "expire s|a|1", "del s|a|1"]);
        engine.set(b"k", b"x", Expiry::At(Millis(20))).unwrap();
        engine.set_expiry(b"k", None).unwrap();
        engine.set_expiry(b"k", None).unwrap();
        engine.set_expiry(b"k", Some(Millis(30))).unwrap();
        engine.advance(Millis(30));
        let expected = ["set k", "expire k", "persist k", "expire k", "expired k"];
        assert_eq!(taken(&mut engine), expected);
        // What would be over at once is not written; what was there goes.
        engine.set(b"k", b"x", Expiry::At(Millis(1))).unwrap();
        assert_eq!(taken(&mut engine), [""; 0]);
        engine.set(b"k", b"x", Expiry::Never).unwrap();
        engine.set(b"k", b"x", Expiry::At(Millis(1))).unwrap();
        assert_eq!(taken(&mut engine), ["set k", "del k"]);
        engine.flush();
        assert_eq!(taken(&mut engine), [""; 0]);
    }

    #[test]
    fn what_is_written_names_the_event_and_new_keys_are_told_before_it() {
        let mut engine = Engine::new(Settings::default());
        engine.set_keyspace_events(ALL.and(EventKinds::NEW));
        engine.set(b"a", b"1", Expiry::Never).unwrap();
        engine.begin_writing(WriteKind::Rename);
        engine.set(b"b", b"1", Expiry::At(Millis(5))).unwrap();
        assert!(engine.remove(b"a").unwrap());
        engine.begin_writing(WriteKind::Append);
        engine.append(b"b", b"2").unwrap();
        engine.begin_writing(WriteKind::Set);
        engine.stream_append(b"s", b"x", 0).unwrap();
        engine.stream_append(b"s", b"x", 0).unwrap();
        engine.stream_trim(b"s", 1).unwrap();
        let expected = [
            "new a",
            "set a",
            "new b",
            "rename_from a",
            "rename_to b",
            "append b",
            "new s",
            "stream.append s",
            "stream.append s",
            "stream.trim s",
        ];
        assert_eq!(taken(&mut engine), expected);
    }

    #[test]
    fn only_the_kinds_that_are_asked_for_are_listed() {
        let mut engine = Engine::new(Settings::default());
        engine.set_keyspace_events(EventKinds::EXPIRED);
        engine.set(b"a", b"1", Expiry::At(Millis(5))).unwrap();
        engine.set(b"b", b"1", Expiry::Never).unwrap();
        assert!(engine.remove(b"b").unwrap());
        engine.advance(Millis(5));
        assert_eq!(taken(&mut engine), ["expired a"]);
        engine.set_keyspace_events(EventKinds::NONE);
        engine.set(b"a", b"1", Expiry::At(Millis(6))).unwrap();
        engine.advance(Millis(6));
        assert!(!engine.has_keyspace_events());
    }

    #[test]
    fn each_key_of_a_removed_range_is_told() {
        let mut engine = Engine::new(Settings::default());
        engine.set_keyspace_events(EventKinds::GENERIC);
        for number in 0..20 {
            engine.set(format!("a|{number:02}").as_bytes(), b"", Expiry::Never).unwrap();
        }
        engine.set_slice(Some(4));
        engine.begin_slice();
        assert!(engine.remove_range(b"a|", b"a}").is_err(), "it is done in slices");
        engine.end_slice();
        while engine.goes_on() {
            engine.go_on();
        }
        let expected: Vec<String> = (0..20).map(|number| format!("del a|{number:02}")).collect();
        assert_eq!(taken(&mut engine), expected);
    }
}
