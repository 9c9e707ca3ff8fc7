//! The client's side of requests that other shards execute: what is still to be answered, in order.
//!
//! Each shard that executes something for a client answers as if it were the only one: a stream of replies, in
//! the order of the requests. Here the streams become one, in the order in which the client
//! asked, with what this shard answered itself between them.
//!
//! # Invariants
//! - S4. `expected` is in the order of the client's requests; each shard's replies lie in its stream in
//!   the order of the entries that name it.
//! - S5. While something is expected, no answer of this shard's own goes around it.
//! - S6. Answers that are ready wait for those behind them, so that they go out together, but not
//!   beyond [`HELD_BACK_MAX`] bytes, and not for longer than [`HELD_BACK_FOR`].
//! - S7. A message that another shard's key is the cause of goes behind each answer of that shard that came before it: what
//!   it tells is newer. Messages keep their order.
//! - S8. Within a transaction all of the answer waits for its end, and messages go behind it: an answer is whole.

use super::gather::Gather;
use headwater_base::Shard;
use headwater_command::OwnedArgs;
use headwater_protocol::resp::{ReplyCutter, Version, text};
use std::collections::{BTreeSet, VecDeque};

/// Requests that may be under way for one client.
pub(crate) const UNDER_WAY_MAX: usize = 512;

/// Bytes of ready answers beyond which they wait for nothing.
const HELD_BACK_MAX: usize = 16 << 10;
/// A watched key is kept here, by the session at its home, and in the table of all there; what each takes besides its bytes.
const WATCHED_COPIES: usize = 3;
const WATCHED_BYTES: usize = 64;
/// How long answers that are ready may wait for those behind them, in milliseconds; more than one, since time is counted
/// in whole ones.
pub(crate) const HELD_BACK_FOR: u64 = 2;

/// What a request does, as far as the order of requests to different shards goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
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
    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }

    /// Whether it reads what joins give.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Derived | Self::Both)
    }
}

/// Who wants a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goes {
    /// The client.
    Out,
    /// Nobody.
    Nowhere,
    /// What this shard does for the client, step by step.
    In,
}

/// What comes next in a client's answers.
#[derive(Debug)]
pub(crate) enum Expected {
    /// The next reply of a shard.
    Reply {
        /// Which shard's.
        from: Shard,
        /// What was asked.
        kind: Kind,
        /// Who wants it.
        goes: Goes,
    },
    /// Answers of this shard's own.
    Own(Vec<u8>),
    /// One answer, put together from several shards' replies.
    Gather(Box<Gather>),
}

/// The replies of one shard that are there.
#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    taken: usize,
    /// Up to here they were cut into replies.
    cut: usize,
    cutter: ReplyCutter,
    /// The lengths of the replies from `taken` to `cut`.
    lens: VecDeque<usize>,
    /// This shard has executed requests for the client.
    used: bool,
    /// Writes that it has not answered.
    writes: u32,
    /// Reads of what joins give that it has not answered.
    reads: u32,
}

/// What other shards do for one client.
#[derive(Debug)]
pub(crate) struct Front {
    me: Shard,
    expected: VecDeque<Expected>,
    /// How many of `expected` are before the end of the last message in it.
    messages: usize,
    /// Bytes of own answers and messages in `expected`.
    own_bytes: usize,
    streams: Vec<Stream>,
    ready: Vec<u8>,
    /// It is noted that answers wait here.
    pub(crate) noted: bool,
    /// What is ready has waited for long enough.
    pub(crate) overdue: bool,
    /// Nothing more is executed until everything is answered.
    pub(crate) holds: bool,
    /// A shard has refused its part of what was asked of all last.
    pub(crate) refused: bool,
    /// The shards that watch keys for it; this one, too, where what it watches had to be loaded first.
    watches_at: BTreeSet<Shard>,
    /// The keys that they watch for it: what they take counts here.
    watched: BTreeSet<Box<[u8]>>,
    watched_bytes: usize,
    /// An answer of several parts is being put together (S8).
    in_answer: bool,
    /// Messages that go behind it.
    messages_after: Vec<u8>,
    /// Replies that are not the client's, in the order of what was asked.
    inner: Vec<Vec<u8>>,
    /// What must be taken back where it was done, since it was refused elsewhere.
    undo: Vec<(Shard, OwnedArgs)>,
    /// Replies are the bytes of bulk strings: the client speaks another protocol.
    wrapped: bool,
}

impl Stream {
    /// A request was sent.
    fn sent(&mut self, kind: Kind) {
        self.used = true;
        self.writes += u32::from(kind.writes());
        self.reads += u32::from(kind.reads());
    }

    /// A request was answered.
    fn answered(&mut self, kind: Kind) {
        self.writes -= u32::from(kind.writes());
        self.reads -= u32::from(kind.reads());
    }

    fn came(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        while let Some(len) = self.cutter.cut(&self.bytes[self.cut..]) {
            self.cut += len;
            self.lens.push_back(len);
        }
    }

    /// How many replies are there, one of which only the beginning has come included.
    fn begun(&self) -> usize {
        self.lens.len() + usize::from(self.cut < self.bytes.len())
    }

    /// The next reply, if all of it is there.
    fn next(&mut self) -> Option<&[u8]> {
        let len = self.lens.pop_front()?;
        let reply = &self.bytes[self.taken..self.taken + len];
        self.taken += len;
        Some(reply)
    }

    fn trim(&mut self) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            (self.taken, self.cut) = (0, 0);
            self.bytes.shrink_to(64 << 10);
        } else if self.taken > (64 << 10) && self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.cut -= self.taken;
            self.taken = 0;
        }
    }
}

impl Front {
    pub(crate) fn new(me: Shard, shards: u16, wrapped: bool) -> Self {
        Self {
            me,
            expected: VecDeque::new(),
            messages: 0,
            own_bytes: 0,
            streams: (0..shards).map(|_| Stream::default()).collect(),
            ready: Vec::new(),
            noted: false,
            overdue: false,
            holds: false,
            refused: false,
            watches_at: BTreeSet::new(),
            watched: BTreeSet::new(),
            watched_bytes: 0,
            in_answer: false,
            messages_after: Vec::new(),
            inner: Vec::new(),
            undo: Vec::new(),
            wrapped,
        }
    }

    /// Whether everything is answered.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.expected.is_empty()
    }

    /// Whether no further request should be sent for now.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.expected.len() >= UNDER_WAY_MAX
    }

    /// Whether a request to `at` (to several shards: `None`) must wait until others are answered: what is derived
    /// may only be read when writes elsewhere are done, and written only when what was derived before
    /// has been read.
    pub(crate) fn must_wait(&self, kind: Kind, at: Option<Shard>) -> bool {
        let is_other = |place: usize| at.is_none_or(|at| usize::from(at.0) != place);
        let against = |stream: &Stream| {
            (kind.reads() && stream.writes > 0) || (kind.writes() && stream.reads > 0)
        };
        self.streams.iter().enumerate().any(|(place, stream)| against(stream) && is_other(place))
    }

    /// Whether nothing that was asked can still be executed, but for one read in a row at the end of a stream.
    pub(crate) fn is_drained(&self) -> bool {
        (0..self.streams.len()).all(|at| {
            let from = Shard(at as u16);
            let mut unanswered = self.expected.iter().filter_map(|expected| match expected {
                Expected::Reply { from: of, kind, .. } if *of == from => Some(*kind),
                Expected::Gather(gather) if gather.missing().contains(&from) => Some(gather.kind),
                _ => None,
            });
            // What has come of them and was not cut out yet, since others come before it.
            for _ in 0..self.streams[at].lens.len() {
                unanswered.next();
            }
            matches!((unanswered.next(), unanswered.next()), (None | Some(Kind::Stream), None))
        })
    }

    /// The shards that have executed something for the client.
    pub(crate) fn used(&self) -> impl Iterator<Item = Shard> {
        let used = self.streams.iter().enumerate().filter(|(_, stream)| stream.used);
        used.map(|(at, _)| Shard(at as u16))
    }

    /// A request was sent to `from`.
    #[inline]
    pub(crate) fn expect(&mut self, from: Shard, kind: Kind, silent: bool) {
        let goes = if silent { Goes::Nowhere } else { Goes::Out };
        self.streams[usize::from(from.0)].sent(kind);
        self.expected.push_back(Expected::Reply { from, kind, goes });
    }

    /// Shards watch keys for the client.
    pub(crate) fn watch<'k>(
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

    /// How many keys other shards watch for the client.
    pub(crate) fn watched(&self) -> usize {
        self.watched.len()
    }

    /// The shards that watch keys for it.
    pub(crate) fn watches_at(&self) -> &BTreeSet<Shard> {
        &self.watches_at
    }

    /// The watches end: which shards are to be told.
    pub(crate) fn end_watches(&mut self) -> BTreeSet<Shard> {
        (self.watched, self.watched_bytes) = (BTreeSet::new(), 0);
        core::mem::take(&mut self.watches_at)
    }

    /// A request was sent to `from` whose reply [`Front::take_inner`] gives.
    pub(crate) fn expect_inner(&mut self, from: Shard, kind: Kind) {
        self.streams[usize::from(from.0)].sent(kind);
        self.expected.push_back(Expected::Reply { from, kind, goes: Goes::In });
    }

    /// Takes the replies that are not the client's.
    pub(crate) fn take_inner(&mut self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.inner)
    }

    /// What follows is one answer (S8).
    pub(crate) fn begin_answer(&mut self) {
        self.in_answer = true;
    }

    /// The answer is whole, as soon as everything has come.
    pub(crate) fn end_answer(&mut self) {
        self.in_answer = false;
    }

    /// Puts the messages that go behind a whole answer into `out`, where it is.
    pub(crate) fn take_messages(&mut self, out: &mut Vec<u8>) {
        if !self.in_answer && self.expected.is_empty() {
            out.append(&mut self.messages_after);
        }
    }

    /// This shard answers so, behind what is expected.
    pub(crate) fn answer(&mut self, answer: &[u8]) {
        if self.expected.is_empty() {
            self.ready.extend_from_slice(answer);
        } else if !answer.is_empty() {
            self.expect_own(answer);
        }
    }

    /// Requests were sent whose replies make up one.
    pub(crate) fn expect_gather(&mut self, gather: Gather) {
        for from in gather.missing() {
            self.streams[usize::from(from.0)].sent(gather.kind);
        }
        self.expected.push_back(Expected::Gather(Box::new(gather)));
    }

    /// This shard answered so.
    pub(crate) fn expect_own(&mut self, answer: &[u8]) {
        self.own_bytes += answer.len();
        match self.expected.back_mut() {
            Some(Expected::Own(bytes)) => bytes.extend_from_slice(answer),
            _ => self.expected.push_back(Expected::Own(answer.to_vec())),
        }
    }

    /// Replies of a shard have come.
    pub(crate) fn came(&mut self, from: Shard, bytes: &[u8]) {
        self.streams[usize::from(from.0)].came(bytes);
    }

    /// Puts a message that something at `home` is the cause of where it belongs (S7); without one, behind all that is expected.
    /// `false`: nothing is in its way, and it goes out as ever.
    pub(crate) fn tell(&mut self, home: Option<Shard>, parts: &[&[u8]]) -> bool {
        if self.in_answer {
            parts.iter().for_each(|part| self.messages_after.extend_from_slice(part));
            return true;
        }
        let place = match home {
            _ if self.expected.is_empty() => 0,
            None => self.expected.len(),
            Some(home) => self.place_of_message(home),
        };
        if place == 0 {
            if self.ready.is_empty() {
                return false;
            }
            parts.iter().for_each(|part| self.ready.extend_from_slice(part));
            self.overdue = true;
            return true;
        }
        self.own_bytes += parts.iter().map(|part| part.len()).sum::<usize>();
        self.messages = place;
        if let Expected::Own(bytes) = &mut self.expected[place - 1] {
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        } else {
            self.expected.insert(place, Expected::Own(parts.concat()));
            self.messages += 1;
        }
        true
    }

    /// Behind how many of `expected` a message from `home` goes now.
    fn place_of_message(&self, home: Shard) -> usize {
        let own = home == self.me;
        let mut begun = self.streams[usize::from(home.0)].begun();
        let mut place = self.messages;
        for (at, expected) in self.expected.iter().enumerate() {
            let waits = match expected {
                Expected::Own(_) => own,
                Expected::Reply { from, .. } if *from == home => true,
                Expected::Gather(gather) => match gather.has_from(home) {
                    Some(false) => true,
                    // Its part of the answer was taken out of the stream.
                    Some(true) => {
                        place = place.max(at + 1);
                        continue;
                    }
                    None => continue,
                },
                Expected::Reply { .. } => continue,
            };
            // What this shard asks of itself by mail is executed at a moment that the mail does not tell.
            if waits && (own || begun > 0) {
                begun = begun.saturating_sub(1);
                place = place.max(at + 1);
            }
        }
        place
    }

    /// Bytes of answers and messages that are not in the client's output yet.
    pub(crate) fn held_bytes(&self) -> usize {
        self.ready.len() + self.own_bytes + self.messages_after.len()
    }

    /// Puts what is complete behind the answers that are ready.
    pub(crate) fn advance(&mut self, version: Version) {
        let Self {
            expected,
            streams,
            ready,
            undo,
            messages,
            own_bytes,
            wrapped,
            inner,
            refused,
            ..
        } = self;
        while let Some(next) = expected.front_mut() {
            match next {
                Expected::Own(bytes) => {
                    *own_bytes -= bytes.len();
                    ready.append(bytes);
                }
                Expected::Reply { from, kind, goes } => {
                    let stream = &mut streams[usize::from(from.0)];
                    let Some(reply) = stream.next() else { break };
                    match goes {
                        Goes::Out => {
                            let bytes = if *wrapped { text(reply) } else { None };
                            ready.extend_from_slice(bytes.unwrap_or(reply));
                        }
                        Goes::In => inner.push(reply.to_vec()),
                        Goes::Nowhere => {}
                    }
                    stream.answered(*kind);
                    stream.trim();
                }
                Expected::Gather(gather) => {
                    for from in gather.missing() {
                        let stream = &mut streams[usize::from(from.0)];
                        if let Some(reply) = stream.next() {
                            gather.take(from, reply);
                            stream.answered(gather.kind);
                            stream.trim();
                        }
                    }
                    if !gather.is_complete() {
                        break;
                    }
                    if !gather.silent {
                        gather.write(version, ready);
                    }
                    *refused |= gather.is_refused();
                    undo.extend(gather.to_undo());
                }
            }
            expected.pop_front();
            *messages = messages.saturating_sub(1);
        }
    }

    /// Takes answers that come before all that is expected.
    #[inline]
    pub(crate) fn hold_back(&mut self, out: &mut Vec<u8>) {
        if out.len() <= HELD_BACK_MAX {
            self.ready.append(out);
        }
    }

    /// Whether answers are there that are not to be sent yet (S6).
    #[inline]
    pub(crate) fn holds_back(&self) -> bool {
        !self.ready.is_empty() && !self.in_answer && !self.may_send()
    }

    /// Whether answers are there, and to be sent.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty() && self.may_send()
    }

    #[inline]
    fn may_send(&self) -> bool {
        !self.in_answer && (self.overdue || self.is_done() || self.ready.len() > HELD_BACK_MAX)
    }

    /// Moves the answers that are to be sent into `out`.
    #[inline]
    pub(crate) fn collect(&mut self, out: &mut Vec<u8>) {
        if self.may_send() {
            self.overdue = false;
            out.append(&mut self.ready);
            self.ready.shrink_to(64 << 10);
        }
    }

    /// Takes what is to be taken back, and where.
    pub(crate) fn take_undo(&mut self) -> Vec<(Shard, OwnedArgs)> {
        core::mem::take(&mut self.undo)
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let streams: usize = self.streams.iter().map(|stream| stream.bytes.capacity()).sum();
        let own = |expected: &Expected| match expected {
            Expected::Reply { .. } => 0,
            Expected::Own(bytes) => bytes.capacity(),
            Expected::Gather(gather) => gather.bytes(),
        };
        size_of::<Self>()
            + self.streams.len() * size_of::<Stream>()
            + streams
            + self.ready.capacity()
            + self.messages_after.capacity()
            + self.watched_bytes
            + self.inner.iter().map(Vec::capacity).sum::<usize>()
            + self.expected.capacity() * size_of::<Expected>()
            + self.expected.iter().map(own).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::gather::Merge;

    fn collected(front: &mut Front) -> String {
        front.advance(Version::Resp2);
        let mut out = Vec::new();
        front.collect(&mut out);
        assert!(out.is_empty() || !front.holds_back());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn answers_are_in_the_order_of_the_requests() {
        let mut front = Front::new(Shard(0), 3, false);
        front.expect(Shard(1), Kind::Write, false);
        front.expect_own(b"+own\r\n");
        front.expect(Shard(2), Kind::Derived, true);
        front.expect_gather(Gather::new(Merge::Sum, [Shard(1), Shard(2)].into(), Kind::Plain));
        front.expect_own(b"+last\r\n");
        let waits = |front: &Front, kind, at: u16| front.must_wait(kind, Some(Shard(at)));
        assert!(front.must_wait(Kind::Derived, None) && !front.must_wait(Kind::Plain, None));
        assert!(!waits(&front, Kind::Derived, 1) && waits(&front, Kind::Derived, 2));
        assert!(waits(&front, Kind::Write, 1) && !waits(&front, Kind::Write, 2));
        front.came(Shard(2), b"+silent\r\n:3\r\n");
        assert_eq!(collected(&mut front), "");
        front.came(Shard(1), b"+first\r");
        assert_eq!(collected(&mut front), "");
        front.came(Shard(1), b"\n:4\r");
        assert_eq!(collected(&mut front), "");
        assert!(front.holds_back() && !front.is_done() && !front.must_wait(Kind::Derived, None));
        front.came(Shard(1), b"\n");
        assert_eq!(collected(&mut front), "+first\r\n+own\r\n:7\r\n+last\r\n");
        assert!(front.is_done());
        assert_eq!(front.used().collect::<Vec<_>>(), [Shard(1), Shard(2)]);
    }

    #[test]
    fn what_is_under_way_is_known() {
        let mut front = Front::new(Shard(0), 2, false);
        front.expect(Shard(0), Kind::Plain, false);
        front.expect(Shard(1), Kind::Plain, false);
        front.expect(Shard(1), Kind::Stream, false);
        assert!(!front.is_drained());
        front.came(Shard(0), b"+a\r\n");
        front.came(Shard(1), b"+b\r\n");
        assert!(front.is_drained());
        front.expect_gather(Gather::new(Merge::Sum, [Shard(0), Shard(1)].into(), Kind::Plain));
        front.came(Shard(0), b":1\r\n");
        assert!(!front.is_drained());
        front.came(Shard(1), b"+c\r\n:2\r\n");
        assert!(front.is_drained() && !front.is_done());
        assert_eq!(collected(&mut front), "+a\r\n+b\r\n+c\r\n:3\r\n");
    }

    #[test]
    fn answers_wait_for_those_behind_them_neither_long_nor_in_masses() {
        let mut front = Front::new(Shard(0), 2, false);
        let mut out = b"+own\r\n".to_vec();
        front.expect(Shard(1), Kind::Plain, false);
        front.hold_back(&mut out);
        assert!(out.is_empty() && front.holds_back());
        front.overdue = true;
        assert_eq!(collected(&mut front), "+own\r\n");
        let mut much = vec![b'x'; HELD_BACK_MAX + 1];
        front.hold_back(&mut much);
        assert!(!much.is_empty() && !front.holds_back());
        front.came(Shard(1), b"+late\r\n");
        assert_eq!(collected(&mut front), "+late\r\n");
    }

    #[test]
    fn an_answer_of_several_parts_is_whole() {
        let mut front = Front::new(Shard(0), 2, false);
        front.begin_answer();
        front.answer(b"*3\r\n");
        front.answer(b"+own\r\n");
        front.expect(Shard(1), Kind::Write, false);
        front.expect_inner(Shard(1), Kind::Plain);
        front.answer(b"+last\r\n");
        assert!(front.tell(Some(Shard(1)), &[b"message"]) && !front.holds_back());
        front.came(Shard(1), b"+afar\r\n:7\r\n");
        assert_eq!(collected(&mut front), "");
        assert!(front.is_done() && front.tell(None, &[b"s"]));
        let mut out = Vec::new();
        front.take_messages(&mut out);
        assert!(out.is_empty());
        front.end_answer();
        assert_eq!(collected(&mut front), "*3\r\n+own\r\n+afar\r\n+last\r\n");
        assert_eq!(front.take_inner(), [b":7\r\n"]);
        front.take_messages(&mut out);
        assert_eq!(out, b"messages");
    }

    #[test]
    fn a_message_goes_behind_what_its_home_has_answered_before() {
        let mut front = Front::new(Shard(0), 3, false);
        let tell = |front: &mut Front, home: u16, text: &str| {
            front.tell(Some(Shard(home)), &[text.as_bytes(), b" "])
        };
        assert!(!tell(&mut front, 1, "nothing is in its way"));
        front.expect(Shard(1), Kind::Plain, false);
        front.expect(Shard(2), Kind::Plain, false);
        front.expect_gather(Gather::new(Merge::Sum, [Shard(1), Shard(2)].into(), Kind::Plain));
        front.expect(Shard(2), Kind::Plain, false);
        // The home has answered nothing yet: what it tells is older than its answers.
        assert!(!tell(&mut front, 2, "early"));
        front.came(Shard(2), b"+second\r\n:3\r\n");
        // One answer, and a part of another one, are older than this.
        assert!(tell(&mut front, 2, "two") && tell(&mut front, 2, "three"));
        // It comes behind the other, though nothing of this home is in its way.
        assert!(tell(&mut front, 1, "one"));
        assert_eq!(collected(&mut front), "");
        assert_eq!(front.held_bytes(), 14);
        front.came(Shard(1), b"+first\r\n:4\r\n");
        front.advance(Version::Resp2);
        // They wait for nothing more where something is to be told.
        assert!(front.holds_back() && tell(&mut front, 2, "four") && !front.holds_back());
        assert_eq!(collected(&mut front), "+first\r\n+second\r\n:7\r\ntwo three one four ");
        front.came(Shard(2), b"$2\r\n");
        assert!(tell(&mut front, 2, "five"));
        front.came(Shard(2), b"ab\r\n");
        assert_eq!(collected(&mut front), "$2\r\nab\r\nfive ");
        // This shard's own answers are older than its messages, too.
        front.expect(Shard(1), Kind::Plain, false);
        front.expect_own(b"+own\r\n");
        assert!(tell(&mut front, 0, "mine") && tell(&mut front, 2, "six"));
        front.expect(Shard(1), Kind::Plain, false);
        assert!(front.tell(None, &[b"seven "]));
        front.came(Shard(1), b"+last\r\n:1\r\n");
        assert_eq!(collected(&mut front), "+last\r\n+own\r\nmine six :1\r\nseven ");
        assert_eq!((front.held_bytes(), front.messages, front.is_done()), (0, 0, true));
    }
}
