//! The ports through which base data comes from where it lives, and goes there.
//!
//! Everything that base data can live in offers the same two verbs: *load this range as of a
//! position*, and *follow its changes from that position*. A [`Source`] is asked without
//! being waited for and answers with [`News`]; a [`BaseStore`] is told of every write as it is done.
//!
//! # What a source promises
//! - Q1. Its news come in its own order: each [`News::Changed`] is one transaction, whole, at a position
//!   greater than those before it.
//! - Q2. A load's answer holds exactly the keys of the range as of its position: all of the
//!   transactions up to it, and nothing of later ones.
//! - Q3. From the position of a load's answer on, until the range is unfollowed, every change
//!   of a key in it is told. Changes of keys that nobody follows may be told or left out.
//! - Q4. Where it cannot keep Q3 (it was cut off for too long, a table was truncated, a transaction was too large),
//!   it says [`News::Reset`]: what was loaded of that range is not to be believed any more.
//! - Q5. An answer may be of a part of the range ([`Loaded::known`]): some keys from its beginning on, or up to its end where it was asked for
//!   from there. Q2 and Q3 hold of that part; the rest is not followed for this load.
//! - Q6. Before its answer a load may have brought parts ([`News::LoadedPart`]), each from where the one before ended. Q2 and Q3 hold of each part
//!   as of its own position. The answer is then of what is left, and so is a failure: parts that were told stay.

use crate::{KeyRange, Millis, PackedPairs};
use alloc::string::String;
use alloc::vec::Vec;

/// Where a source stands in its own order of changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Position(pub u64);

/// One load that was asked of a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FetchId(pub u64);

/// What is kept of a key besides its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// When it expires, if ever.
    pub expires: Option<Millis>,
    /// What a client gave with the value; 0: nothing.
    pub flags: u32,
    /// Whether the value is the head of a stream, whose bytes are elsewhere ([`crate::stream_records`]).
    pub is_stream: bool,
}

/// A key of a load, with what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// What it has besides.
    pub attributes: Attributes,
}

/// How much of a range a load is to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Portion {
    /// How many of the range's first keys are enough, or of its last ones with `reverse`; `None`: all keys are wanted.
    pub rows: Option<u64>,
    /// Whether the range is wanted from its end on.
    pub reverse: bool,
    /// Bytes of keys and values that loads which this one goes on for have brought.
    pub bytes_before: u64,
}

/// What a source delivered for one load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Where the source stood; changes up to here are in `pairs`.
    pub position: Position,
    /// Every key of the range. Of a [`Source`] they are in ascending order when they reach the engine, which takes them in parts: who passes on
    /// the answer sorts them where the source did not.
    pub pairs: Vec<Pair>,
    /// The part of the range that `pairs` are all keys of, where that is less than the range (Q5); `None`: all of it.
    pub known: Option<KeyRange>,
}

/// What a source has delivered of a load before the rest (Q6).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedPart {
    /// Where the source stood; changes up to here are in `pairs`.
    pub position: Position,
    /// Every key of the part with its value, in ascending order.
    pub pairs: PackedPairs,
    /// The part of the range: it begins where what is left of that begins, and ends before it.
    pub known: KeyRange,
}

/// A change of one key at a source: its new value, or `None` where it was removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// The value it now has.
    pub value: Option<Vec<u8>>,
}

/// How a source does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// It answers, and its changes arrive.
    Up,
    /// It does not, for this reason: what was loaded may be out of date until it is up again.
    Down(String),
}

/// What a source says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// The answer to [`Source::load`], or why there is none.
    Loaded {
        /// Which load.
        fetch: FetchId,
        /// Its pairs, or a sentence that says what went wrong.
        answer: Result<Loaded, String>,
    },
    /// The first keys of what is left of a load's range, whose query goes on (Q6).
    LoadedPart {
        /// Which load.
        fetch: FetchId,
        /// Its pairs.
        part: LoadedPart,
    },
    /// One transaction: the source stands at `position` now. With no changes, it has only
    /// come so far: nothing that concerns anybody has happened up to there.
    Changed {
        /// Where the source stands after the transaction.
        position: Position,
        /// What it changed, in order; a key may be there more than once.
        changes: Vec<Change>,
    },
    /// What was loaded of this range is not to be believed any more: forget it, and load it again when
    /// it is wanted.
    Reset {
        /// The keys concerned.
        range: KeyRange,
    },
    /// How the source does has changed.
    Health(Health),
    /// The answer to [`Source::declare`]: warnings for whoever declared the table, or why it
    /// cannot be.
    Declared {
        /// Which declaration.
        request: u64,
        /// Sentences, or one that refuses.
        answer: Result<Vec<String>, String>,
    },
    /// The answer to [`Source::position`]: a position that everything committed before the
    /// question is at or below.
    Position {
        /// Which question.
        request: u64,
        /// The position, or why there is none.
        answer: Result<Position, String>,
    },
    /// The answer to [`Source::write`].
    Written {
        /// Which request.
        request: u64,
        /// What was done, or why they were not done; none of them was, then.
        answer: Result<Written, String>,
    },
}

/// Writes that were done at a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// The position at which they are in the source.
    pub position: Position,
    /// How many keys were removed: those that were there.
    pub removed: u64,
}

/// Where a source puts its news. It may be called from any thread, and never blocks for long.
pub trait Sink: Send + Sync {
    /// Takes `news`; gives `false` where nobody listens any more.
    fn tell(&self, news: News) -> bool;

    /// Takes a note for whoever runs the server: `what` has happened to the source (`lost`, `resynchronised`), and why. It is for
    /// the log alone.
    fn note(&self, _what: &'static str, _why: &str) {}

    /// Has room be made for so many bytes that are about to be taken beside data, and waits for that a moment; whether there is some. It is kept free until
    /// [`Sink::took`]. Those who take news make it, so nothing that they need may be locked meanwhile.
    fn make_room(&self, _bytes: usize) -> bool {
        true
    }

    /// Tells that the source has taken so many bytes for which [`Sink::make_room`] made room, or that it does not need them: they are not kept free any longer.
    fn took(&self, _bytes: usize) {}
}

/// Something that holds base data: a database, another shard. Each call returns at once; what comes
/// of it arrives as [`News`].
pub trait Source: Send {
    /// A table of keys is kept here: those that begin with `prefix`, mapped to what the source holds by `mapping`, whose
    /// words are the source's own. Declaring a prefix again replaces its mapping.
    fn declare(&mut self, request: u64, prefix: &[u8], mapping: &[(String, String)]);

    /// Asks what a mapping would need, before anything is changed: [`News::Declared`] has a sentence for each finding, which begins with
    /// `refused:`, `done:` (by declaring it) or `warning:`.
    fn examine(&mut self, request: u64, mapping: &[(String, String)]);

    /// No table is kept here under `prefix` any more.
    fn withdraw(&mut self, prefix: &[u8]);

    /// Asks for the keys of `range`, within a declared prefix, or for as many as `portion` says, and to be told of their changes from then on.
    fn load(&mut self, fetch: FetchId, range: &KeyRange, portion: Portion);

    /// The changes of `range` are of no interest any more.
    fn unfollow(&mut self, range: &KeyRange);

    /// Asks for the source's position now.
    fn position(&mut self, request: u64);

    /// Asks for these writes to be done, in one transaction.
    fn write(&mut self, request: u64, changes: &[Change]);

    /// A position from the text that the source's own users know it by, such as a WAL location.
    ///
    /// # Errors
    /// The text is none; the sentence says what one looks like.
    fn parse_position(&self, text: &[u8]) -> Result<Position, String>;

    /// The text for a position.
    fn show_position(&self, position: Position) -> String;

    /// The process's memory bound, if it has one, leaves so much to data: what loads hold is to be a part of that.
    fn set_memory_bound(&mut self, _bytes: Option<u64>) {}

    /// Facts for those who operate it, as names and values: lag, slot, reconnections.
    fn facts(&self) -> Vec<(&'static str, String)>;
}

/// A place among the writes of a store that later stores of the same keys know again, whoever has them then: those of a shard whose writes a
/// log keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StorePlace {
    /// The last write before it.
    pub position: Position,
    /// Tells it from places of other histories that end with a write of the same number.
    pub checksum: u64,
}

/// An embedded store that keeps base keys on disk. It is told of every write in the order in which they
/// are done, on the shard's thread; when a write is safe is between it and whoever sends replies.
pub trait BaseStore: core::fmt::Debug {
    /// `key` now has the value that `parts` make up, one behind the other, and these attributes.
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position;

    /// `key` is gone.
    fn remove(&mut self, key: &[u8]) -> Position;

    /// All keys of `range` are gone, whatever the moment of a crash: all of them or none.
    fn remove_range(&mut self, range: &KeyRange) -> Position;

    /// All keys are gone.
    fn clear(&mut self) -> Position;

    /// At this moment keys were gone because their time was over: who has the store next is to show none of them, however its
    /// clock goes.
    fn note_time(&mut self, now: Millis);

    /// Whether it surely holds no key of `range`. It may say no where it would have to look long.
    fn holds_nothing(&mut self, range: &KeyRange) -> bool;

    /// Asks for the keys of `range` as of the writes told so far, or some later ones; the answer is
    /// [`News::Loaded`].
    fn load(&mut self, fetch: FetchId, range: &KeyRange);

    /// The keys that `wanted` names, with what they hold as of the writes told so far, in any order. It waits for them, and
    /// looks at all keys.
    ///
    /// # Errors
    /// They cannot be read, or have more than `bytes_max` bytes.
    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        bytes_max: u64,
    ) -> Result<Vec<Pair>, String>;

    /// Waits until everything told so far is safe, however writes are made so.
    ///
    /// # Errors
    /// It does not become so, for the reason given.
    fn settle(&mut self) -> Result<(), String>;

    /// The last place up to which nothing can be lost any more, where there are such places.
    fn reached(&self) -> Option<StorePlace> {
        None
    }

    /// The keys of `range` that were written behind `place`, told a moment ago or not, or more of them; `None`: that is not known any more.
    fn written_since(&mut self, _place: StorePlace, _range: &KeyRange) -> Option<Vec<Vec<u8>>> {
        None
    }
}
