//! A client's requests that other shards execute: what is still to be answered, in order.
//!
//! Each shard answers the requests that it was sent. Here the answers get into the order in which the client asked, with what
//! the client's own shard answered between them.
//!
//! # Invariants
//! - S4. `entries` is in the order of the client's requests.
//! - S5. While something is to be answered, no answer of this shard's own goes around it.
//! - S6. Answers that are ready wait for those behind them, so that they go out together, but not
//!   beyond [`DEFERRED_MAX`] bytes, and only as long as whoever drives this lets them.
//! - S7. A message that another shard's key is the cause of goes behind each answer of that shard that came before it: what
//!   it tells is newer. Messages keep their order.
//! - S8. While several shards do one thing, messages wait, and go behind its answer: that is whole.

mod lost;
mod messages;
mod scattered;
#[cfg(test)]
mod tests;

pub use scattered::Scattered;

use crate::answer::{Answer, answer_of};
use crate::merge::Merge;
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_command::OwnedArgs;

/// Requests that may be under way for one client.
const UNDER_WAY_MAX: usize = 512;
/// Bytes of ready answers beyond which they wait for nothing.
const DEFERRED_MAX: usize = 16 << 10;
/// A watched key is kept here, by the session at its home, and in the table of all there; what each takes besides its bytes.
const WATCHED_COPIES: usize = 3;
const WATCHED_BYTES: usize = 64;

/// What a request does, as far as the order of requests to different shards goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It reads what no other key's change can change.
    Plain,
    /// It reads at the end of a stream, and may wait there for others to write.
    Stream,
    /// It reads what joins give.
    Derived,
    /// It writes.
    Write,
    /// It may read what joins give, and write.
    Both,
}

impl Kind {
    /// Whether it writes.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }

    /// Whether it reads what joins give.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Derived | Self::Both)
    }
}

/// Who wants an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// The client.
    Out,
    /// Nobody.
    Nowhere,
    /// What the session does step by step.
    Inner,
}

/// An answer that is not the client's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inner {
    /// Whose it is.
    pub from: Shard,
    /// The answer.
    pub answer: Vec<u8>,
    /// The digests of that shard's transactions with each other one, at that moment.
    pub digests: Vec<u64>,
}

/// What comes next in a client's answers.
#[derive(Debug)]
enum Entry {
    /// An answer of another shard.
    Answer {
        id: u64,
        from: Shard,
        kind: Kind,
        wanted: Wanted,
        question: Option<Question>,
        answer: Option<Inner>,
    },
    /// Answers of this shard's own, as the client reads them.
    Own(Vec<u8>),
    /// One answer, put together from several shards'.
    Scattered(Box<Scattered>),
}

/// What a shard has been asked for a client.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    used: bool,
    /// Writes that it has not answered.
    writes: u32,
    /// Reads of what joins give that it has not answered.
    reads: u32,
}

impl Asked {
    fn sent(&mut self, kind: Kind) {
        self.used = true;
        self.writes += u32::from(kind.writes());
        self.reads += u32::from(kind.reads());
    }

    fn answered(&mut self, kind: Kind) {
        self.writes -= u32::from(kind.writes());
        self.reads -= u32::from(kind.reads());
    }
}

/// What a client has asked, as far as how it reads the answer depends on that; only its session can read it.
pub type Question = Box<[u8]>;

/// Puts answers into the form in which the client reads them.
pub trait Encode {
    /// Writes one answer to what was asked.
    fn answer(&mut self, question: Option<&[u8]>, answer: Answer<'_>, out: &mut Vec<u8>);

    /// Writes the answer that several shards' make up ([`Merge::write`]).
    fn merged(
        &mut self,
        question: Option<&[u8]>,
        merge: &Merge,
        parts: &[(Shard, Answer<'_>)],
        out: &mut Vec<u8>,
    ) {
        let merged = answer_of(|typed| merge.write(parts, typed));
        if let Some(merged) = Answer::whole(&merged) {
            self.answer(question, merged, out);
        }
    }
}

/// What other shards do for one client.
#[derive(Debug)]
pub struct Pending {
    me: Shard,
    entries: VecDeque<Entry>,
    /// How many of `entries` are before the end of the last message in it.
    messages: usize,
    /// Bytes of own answers and messages in `entries`.
    own_bytes: usize,
    /// Bytes of answers in `entries`.
    answer_bytes: usize,
    asked: Vec<Asked>,
    ready: Vec<u8>,
    last_id: u64,
    /// It is noted that answers wait here.
    pub noted: bool,
    /// What is ready has waited for long enough.
    pub overdue: bool,
    /// Nothing more is executed until everything is answered.
    pub blocks: bool,
    /// Who was asked answers itself, and hands nothing on: what another shard answers is none.
    pub strict: bool,
    /// A shard has refused its part of what was asked of all last.
    pub refused: bool,
    /// The shards that watch keys for it; this one, too, where what it watches had to be loaded first.
    watches_at: BTreeSet<Shard>,
    /// The keys that they watch for it: what they take counts here.
    watched: BTreeSet<Box<[u8]>>,
    watched_bytes: usize,
    /// One of them has forgotten that it watches.
    watches_lost: bool,
    /// An answer of several parts is being put together (S8).
    in_answer: bool,
    /// Messages that go behind it.
    messages_after: Vec<u8>,
    /// Answers that are not the client's, in the order of what was asked.
    inner: Vec<Inner>,
    /// What must be taken back where it was done, since it was refused elsewhere.
    undo: Vec<(Shard, OwnedArgs)>,
}

impl Pending {
    /// That of a client of `me`, of which nothing has been asked.
    #[must_use]
    pub fn new(me: Shard, shards: u16) -> Self {
        Self {
            me,
            entries: VecDeque::new(),
            messages: 0,
            own_bytes: 0,
            answer_bytes: 0,
            asked: (0..shards).map(|_| Asked::default()).collect(),
            ready: Vec::new(),
            last_id: 0,
            noted: false,
            overdue: false,
            blocks: false,
            strict: false,
            refused: false,
            watches_at: BTreeSet::new(),
            watched: BTreeSet::new(),
            watched_bytes: 0,
            watches_lost: false,
            in_answer: false,
            messages_after: Vec::new(),
            inner: Vec::new(),
            undo: Vec::new(),
        }
    }

    /// Whether everything is answered.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether no further request should be sent for now.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.entries.len() >= UNDER_WAY_MAX
    }

    /// Whether a request to `at` (to several shards: `None`) must wait until others are answered: what is derived
    /// may only be read when writes elsewhere are done, and written only when what was derived before
    /// has been read.
    #[must_use]
    pub fn must_wait(&self, kind: Kind, at: Option<Shard>) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let is_other = |place: usize| at.is_none_or(|at| usize::from(at.0) != place);
        let against = |asked: &Asked| {
            (kind.reads() && asked.writes > 0) || (kind.writes() && asked.reads > 0)
        };
        self.asked.iter().enumerate().any(|(place, asked)| against(asked) && is_other(place))
    }

    /// Whether nothing that was asked can still be executed, but for one read in a row at the end of a stream.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        (0..self.asked.len()).all(|at| {
            let at = Shard(at as u16);
            let mut unanswered = self.entries.iter().filter_map(|entry| match entry {
                Entry::Answer { from, kind, answer: None, .. } if *from == at => Some(*kind),
                Entry::Scattered(scattered) => {
                    let missing = |(shard, _, answer): &(Shard, u64, Option<Vec<u8>>)| {
                        *shard == at && answer.is_none()
                    };
                    scattered.parts.iter().any(missing).then_some(scattered.kind)
                }
                _ => None,
            });
            matches!((unanswered.next(), unanswered.next()), (None | Some(Kind::Stream), None))
        })
    }

    /// The shards that have executed something for the client.
    pub fn used(&self) -> impl Iterator<Item = Shard> {
        let used = self.asked.iter().enumerate().filter(|(_, asked)| asked.used);
        used.map(|(at, _)| Shard(at as u16))
    }

    fn sent(&mut self, from: Shard, kind: Kind) -> u64 {
        self.asked[usize::from(from.0)].sent(kind);
        self.last_id += 1;
        self.last_id
    }

    /// A request is sent to `from`; its id.
    #[inline]
    pub fn expect(&mut self, from: Shard, kind: Kind, silent: bool) -> u64 {
        let wanted = if silent { Wanted::Nowhere } else { Wanted::Out };
        self.expect_wanted(from, kind, wanted, None)
    }

    /// A request is sent to `from` whose answer is written by what was asked; its id.
    pub fn expect_for(&mut self, from: Shard, kind: Kind, question: Question) -> u64 {
        self.answer_bytes += question.len();
        self.expect_wanted(from, kind, Wanted::Out, Some(question))
    }

    #[inline]
    fn expect_wanted(
        &mut self,
        from: Shard,
        kind: Kind,
        wanted: Wanted,
        question: Option<Question>,
    ) -> u64 {
        let id = self.sent(from, kind);
        self.entries.push_back(Entry::Answer { id, from, kind, wanted, question, answer: None });
        id
    }

    /// A request is sent to `from` whose answer [`Pending::take_inner`] gives; its id.
    pub fn expect_inner(&mut self, from: Shard, kind: Kind) -> u64 {
        self.expect_wanted(from, kind, Wanted::Inner, None)
    }

    /// Begins an answer of several parts, which [`Pending::expect_part`] adds.
    pub fn expect_scattered(&mut self, scattered: Scattered) {
        self.entries.push_back(Entry::Scattered(Box::new(scattered)));
    }

    /// A part of the last answer of several parts is asked of `from`; its id.
    pub fn expect_part(&mut self, from: Shard) -> u64 {
        let Some(Entry::Scattered(scattered)) = self.entries.back() else { return 0 };
        let id = self.sent(from, scattered.kind);
        if let Some(Entry::Scattered(scattered)) = self.entries.back_mut() {
            scattered.parts.push((from, id, None));
        }
        id
    }

    /// This shard's own part of the last answer of several parts.
    pub fn own_part(&mut self, answer: Vec<u8>) {
        if let Some(Entry::Scattered(scattered)) = self.entries.back_mut() {
            self.answer_bytes += answer.len();
            scattered.parts.push((self.me, 0, Some(answer)));
        }
    }

    /// Shards watch keys for the client.
    pub fn watch<'k>(
        &mut self,
        at: impl Iterator<Item = Shard>,
        keys: impl Iterator<Item = &'k [u8]>,
    ) {
        self.watches_at.extend(at);
        for key in keys {
            if self.watched.insert(key.into()) {
                self.watched_bytes += WATCHED_COPIES * (key.len() + WATCHED_BYTES);
            }
        }
    }

    /// The keys that other shards watch for the client.
    #[must_use]
    pub fn watched(&self) -> &BTreeSet<Box<[u8]>> {
        &self.watched
    }

    /// The shards that watch keys for it.
    #[must_use]
    pub fn watches_at(&self) -> &BTreeSet<Shard> {
        &self.watches_at
    }

    /// The watches end: which shards are to be told.
    pub fn end_watches(&mut self) -> BTreeSet<Shard> {
        (self.watched, self.watched_bytes) = (BTreeSet::new(), 0);
        self.watches_lost = false;
        core::mem::take(&mut self.watches_at)
    }

    /// Takes the answers that are not the client's.
    pub fn take_inner(&mut self) -> Vec<Inner> {
        core::mem::take(&mut self.inner)
    }

    /// This shard answered so.
    pub fn expect_own(&mut self, answer: &[u8]) {
        self.own_bytes += answer.len();
        match self.entries.back_mut() {
            Some(Entry::Own(bytes)) => bytes.extend_from_slice(answer),
            _ => self.entries.push_back(Entry::Own(answer.to_vec())),
        }
    }

    /// An answer has come from `from` to the request of this id; `false`: none is missing from there, or it is none.
    pub fn came(
        &mut self,
        (from, id): (Shard, u64),
        answer: &[u8],
        digests: Vec<u64>,
        encode: &mut impl Encode,
    ) -> bool {
        let Some(whole) = Answer::whole(answer) else { return false };
        // The usual case: it is the next one, and nobody has to keep it. The shard that was asked may have handed it on.
        if let Some(Entry::Answer { id: next, from: of, kind, wanted, question, answer: None }) =
            self.entries.front()
            && *next == id
            && *wanted != Wanted::Inner
            && (!self.strict || *of == from)
        {
            let (kind, wanted, from) = (*kind, *wanted, *of);
            if wanted == Wanted::Out {
                encode.answer(question.as_deref(), whole, &mut self.ready);
            }
            self.answer_bytes -= question.as_ref().map_or(0, |it| it.len());
            self.asked[usize::from(from.0)].answered(kind);
            self.entries.pop_front();
            self.messages = self.messages.saturating_sub(1);
            self.advance(encode);
            return true;
        }
        let Some((kind, from)) = self.keep((from, id), answer, digests) else { return false };
        self.asked[usize::from(from.0)].answered(kind);
        self.answer_bytes += answer.len();
        self.advance(encode);
        true
    }

    /// Keeps an answer where it belongs; what was asked, and of which shard.
    fn keep(
        &mut self,
        (from, id): (Shard, u64),
        answer: &[u8],
        digests: Vec<u64>,
    ) -> Option<(Kind, Shard)> {
        let is_of = |asked: Shard| !self.strict || asked == from;
        self.entries.iter_mut().find_map(|entry| match entry {
            Entry::Answer { id: of, from: shard, kind, answer: place @ None, .. }
                if *of == id && is_of(*shard) =>
            {
                let digests = digests.clone();
                *place = Some(Inner { from, answer: answer.to_vec(), digests });
                Some((*kind, *shard))
            }
            Entry::Scattered(scattered) => {
                let kind = scattered.kind;
                let mut parts = scattered.parts.iter_mut();
                let part = parts.find(|(at, of, it)| *of == id && is_of(*at) && it.is_none())?;
                part.2 = Some(answer.to_vec());
                Some((kind, part.0))
            }
            _ => None,
        })
    }

    /// Bytes of answers and messages that are not in the client's output yet.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.ready.len() + self.own_bytes + self.messages_after.len()
    }

    /// Puts what is complete behind the answers that are ready.
    pub fn advance(&mut self, encode: &mut impl Encode) {
        while let Some(next) = self.entries.front_mut() {
            match next {
                Entry::Own(bytes) => {
                    self.own_bytes -= bytes.len();
                    self.ready.append(bytes);
                }
                Entry::Answer { wanted, question, answer, .. } => {
                    let Some(inner) = answer.take() else { break };
                    let asked = question.as_deref();
                    self.answer_bytes -= inner.answer.len() + asked.map_or(0, <[u8]>::len);
                    match wanted {
                        Wanted::Out => Answer::whole(&inner.answer)
                            .into_iter()
                            .for_each(|it| encode.answer(asked, it, &mut self.ready)),
                        Wanted::Inner => self.inner.push(inner),
                        Wanted::Nowhere => {}
                    }
                }
                Entry::Scattered(scattered) => {
                    if !scattered.is_complete() {
                        break;
                    }
                    let answers = scattered.answers();
                    let bytes = scattered.parts.iter().filter_map(|(.., it)| it.as_ref());
                    self.answer_bytes -= bytes.map(Vec::len).sum::<usize>();
                    self.refused |= answers.iter().any(|(_, answer)| answer.is_error());
                    self.undo.extend(scattered.to_undo());
                    if !scattered.silent {
                        let question = scattered.question.as_deref();
                        encode.merged(question, &scattered.merge, &answers, &mut self.ready);
                    }
                }
            }
            self.entries.pop_front();
            self.messages = self.messages.saturating_sub(1);
        }
    }

    /// Takes answers that come before all that is expected.
    #[inline]
    pub fn defer(&mut self, out: &mut Vec<u8>) {
        if out.len() <= DEFERRED_MAX {
            self.ready.append(out);
        }
    }

    /// Whether answers are there that are not to be sent yet (S6).
    #[inline]
    #[must_use]
    pub fn defers(&self) -> bool {
        !self.ready.is_empty() && !self.may_send()
    }

    /// Whether answers are there, and to be sent.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty() && self.may_send()
    }

    #[inline]
    fn may_send(&self) -> bool {
        self.overdue || self.is_done() || self.ready.len() > DEFERRED_MAX
    }

    /// Moves the answers that are to be sent into `out`.
    #[inline]
    pub fn collect(&mut self, out: &mut Vec<u8>) {
        if self.may_send() {
            self.overdue = false;
            out.append(&mut self.ready);
            self.ready.shrink_to(64 << 10);
        }
    }

    /// Takes what is to be taken back, and where.
    pub fn take_undo(&mut self) -> Vec<(Shard, OwnedArgs)> {
        core::mem::take(&mut self.undo)
    }

    /// Memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let scattered = |entry: &Entry| match entry {
            Entry::Scattered(scattered) => {
                size_of::<Scattered>()
                    + scattered.parts.capacity() * size_of::<(Shard, u64, Vec<u8>)>()
                    + scattered.question.as_ref().map_or(0, |question| question.len())
            }
            Entry::Answer { .. } | Entry::Own(_) => 0,
        };
        size_of::<Self>()
            + self.asked.len() * size_of::<Asked>()
            + self.answer_bytes
            + self.own_bytes
            + self.ready.capacity()
            + self.messages_after.capacity()
            + self.watched_bytes
            + self.inner.iter().map(|inner| inner.answer.capacity()).sum::<usize>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.entries.iter().map(scattered).sum::<usize>()
    }
}
