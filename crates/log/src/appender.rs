//! An owner's appends: cut into messages, so many bytes under way, and acknowledged as a prefix (A1).

use crate::reader::LogPosition;
use crate::record::{Epoch, HEADER_BYTES, LogId, RECORD_FORMATS, RecordHeader, RecordKind};
use crate::seam::{AppendOutcome, LogRequest, MessageId, Monotonic, Sequence};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A turn's data in an epoch: the number of its last message. Later turns have greater ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Turn(pub u64);

/// How much is under way at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendWindow {
    /// Most bytes of messages that are sent and not acknowledged; one message may always be.
    pub in_flight_bytes_max: usize,
    /// Most bytes that wait for room in flight; behind that nothing more should be executed.
    pub queued_bytes_max: usize,
    /// Longest message.
    pub message_bytes_max: usize,
    /// How long an append may take before its outcome counts as unknown.
    pub timeout_millis: u64,
}

impl Default for AppendWindow {
    fn default() -> Self {
        Self {
            in_flight_bytes_max: 160 << 10,
            queued_bytes_max: 4 << 20,
            message_bytes_max: 512 << 10,
            timeout_millis: 5000,
        }
    }
}

/// What an answer has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing yet.
    Nothing,
    /// All turns up to this one are acknowledged.
    Acknowledged {
        /// The last turn.
        turn: Turn,
        /// Where it ends.
        position: LogPosition,
    },
    /// Everything that is not acknowledged is void: it may be in the log, or not.
    Void,
}

/// A message that was sent, or is to be.
#[derive(Debug)]
struct Pending {
    number: u64,
    ends: bool,
    checksum: u64,
    length: usize,
    /// Empty once it was sent.
    bytes: Vec<u8>,
    sent: Monotonic,
    stored: bool,
}

/// Appends of one epoch.
#[derive(Debug)]
pub struct Appender {
    log: LogId,
    epoch: Epoch,
    window: AppendWindow,
    /// The format of what is appended.
    format: u16,
    /// The next message's number, and the checksum that it follows.
    number: u64,
    before: u64,
    /// The last message that is acknowledged.
    acknowledged: LogPosition,
    sent: VecDeque<Pending>,
    sent_bytes: usize,
    queued: VecDeque<Pending>,
    queued_bytes: usize,
    void: bool,
}

impl Appender {
    /// Appends behind a claim, which is at `claim`, in the oldest format until another one is set.
    #[must_use]
    pub fn new(log: LogId, epoch: Epoch, claim: LogPosition, window: AppendWindow) -> Self {
        Self {
            log,
            epoch,
            window,
            format: RECORD_FORMATS.oldest,
            number: 1,
            before: claim.checksum,
            acknowledged: claim,
            sent: VecDeque::new(),
            sent_bytes: 0,
            queued: VecDeque::new(),
            queued_bytes: 0,
            void: false,
        }
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last turn that was given to it.
    #[must_use]
    pub fn last_turn(&self) -> Turn {
        Turn(self.number - 1)
    }

    /// Whether nothing more should be executed until something is acknowledged.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.queued_bytes >= self.window.queued_bytes_max
    }

    /// Bytes that are not acknowledged.
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.sent_bytes + self.queued_bytes
    }

    /// What is appended from now on has this format.
    pub fn set_format(&mut self, format: u16) {
        self.format = format;
    }

    /// Appends a turn's data.
    pub fn append(&mut self, schema: u64, payload: &[u8]) -> Turn {
        let most = self.window.message_bytes_max.saturating_sub(HEADER_BYTES).max(1);
        let mut rest = payload;
        loop {
            let (part, behind) = rest.split_at(rest.len().min(most));
            rest = behind;
            let ends = rest.is_empty();
            let header = RecordHeader {
                format: self.format,
                kind: if ends { RecordKind::Last } else { RecordKind::Part },
                epoch: self.epoch,
                number: self.number,
                before: self.before,
                schema,
            };
            let (bytes, checksum) = header.encode(self.log, part);
            let length = bytes.len();
            self.queued_bytes += length;
            self.queued.push_back(Pending {
                number: self.number,
                ends,
                checksum,
                length,
                bytes,
                sent: Monotonic(0),
                stored: false,
            });
            self.number += 1;
            self.before = checksum;
            if ends {
                return self.last_turn();
            }
        }
    }

    /// The next message to send, if there is room in flight.
    pub fn next(&mut self, now: Monotonic) -> Option<LogRequest> {
        let length = self.queued.front()?.length;
        let room = self.sent_bytes + length <= self.window.in_flight_bytes_max;
        if self.void || !room && !self.sent.is_empty() {
            return None;
        }
        let mut pending = self.queued.pop_front()?;
        self.queued_bytes -= length;
        self.sent_bytes += length;
        pending.sent = now;
        let request = LogRequest::Append {
            id: MessageId { epoch: self.epoch, number: pending.number },
            expected: Sequence(self.acknowledged.sequence.0 + self.sent.len() as u64),
            bytes: core::mem::take(&mut pending.bytes),
        };
        self.sent.push_back(pending);
        Some(request)
    }

    /// What has become of a message. Answers to other epochs, and second ones, say nothing.
    pub fn answered(&mut self, id: MessageId, outcome: AppendOutcome) -> Progress {
        if self.void || id.epoch != self.epoch {
            return Progress::Nothing;
        }
        let Some(at) = self.sent.iter().position(|pending| pending.number == id.number) else {
            return Progress::Nothing;
        };
        let expected = Sequence(self.acknowledged.sequence.0 + 1 + at as u64);
        // A log that says to have it elsewhere has another message of that name.
        if outcome != AppendOutcome::Stored(expected) {
            self.void = true;
            return Progress::Void;
        }
        self.sent[at].stored = true;
        let mut progress = Progress::Nothing;
        while self.sent.front().is_some_and(|first| first.stored)
            && let Some(first) = self.sent.pop_front()
        {
            self.sent_bytes -= first.length;
            let sequence = self.acknowledged.sequence.next();
            self.acknowledged = LogPosition { sequence, checksum: first.checksum };
            if first.ends {
                let (turn, position) = (Turn(first.number), self.acknowledged);
                progress = Progress::Acknowledged { turn, position };
            }
        }
        progress
    }

    /// Whether something was sent so long ago that its outcome counts as unknown; then everything behind it is void.
    pub fn is_overdue(&mut self, now: Monotonic) -> bool {
        let overdue =
            |first: &Pending| now.since(first.sent) >= self.window.timeout_millis && !first.stored;
        let overdue = self.sent.front().is_some_and(overdue);
        self.void |= overdue;
        overdue
    }
}
