//! Which messages of a log are data: what everybody who reads it agrees on.

use crate::formats::FormatRange;
use crate::record::{
    BadRecord, Epoch, LogId, LogMessage, RECORD_FORMATS, RecordHeader, RecordKind, TURN_BYTES_MAX,
};
use crate::seam::Sequence;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::mem::take;

/// A record that something ends with: a folder, a snapshot, or what an owner has acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogPosition {
    /// Its place; 0: before all records.
    pub sequence: Sequence,
    /// Its checksum.
    pub checksum: u64,
}

/// What a reader gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogEntry {
    /// Somebody has claimed the log.
    Claim {
        /// Where that is.
        position: LogPosition,
        /// The epoch that begins with it.
        epoch: Epoch,
        /// What the claimant says of itself.
        payload: Vec<u8>,
    },
    /// Data, put together from its parts. It and everything before it are acknowledged.
    Data {
        /// Where its last part is.
        position: LogPosition,
        /// The epoch in which it was written.
        epoch: Epoch,
        /// The version of the schema that it was written under.
        schema: u64,
        /// The data.
        payload: Vec<u8>,
    },
}

/// Why a shard stops: what is in its log must not be taken for data, or is not all there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// A message cannot be read.
    Bad {
        /// The stream.
        stream: String,
        /// Its place.
        sequence: Sequence,
        /// What is wrong with it.
        bad: BadRecord,
    },
    /// A record that should follow the one before it was written behind another one.
    Chain {
        /// The stream.
        stream: String,
        /// Its place.
        sequence: Sequence,
    },
    /// A record has an epoch that nobody has claimed.
    Unclaimed {
        /// The stream.
        stream: String,
        /// Its place.
        sequence: Sequence,
        /// The epoch.
        epoch: Epoch,
    },
    /// Messages are missing within the log.
    Hole {
        /// The stream.
        stream: String,
        /// The first that is missing.
        sequence: Sequence,
        /// The next one that is there.
        found: Sequence,
    },
    /// The log begins behind what is needed.
    Purged {
        /// The stream.
        stream: String,
        /// The first that is needed.
        sequence: Sequence,
        /// The first that is there.
        found: Sequence,
    },
    /// Another record is in the place of the one that the reader was to begin with.
    Other {
        /// The stream.
        stream: String,
        /// Its place.
        sequence: Sequence,
    },
    /// The log ends before a record that was acknowledged.
    Missing {
        /// The stream.
        stream: String,
        /// The place of the record.
        sequence: Sequence,
        /// Where the log went on instead.
        found: Sequence,
    },
    /// What the reader was to begin with is of an earlier stream of this name, and is not in this one.
    MadeAnew {
        /// The stream.
        stream: String,
        /// The place of the record in the earlier one.
        sequence: Sequence,
        /// The first and the last place of this one.
        has: (Sequence, Sequence),
    },
    /// The parts of a turn come to more than a turn may have.
    Long {
        /// The stream.
        stream: String,
        /// The place of the part that is too much.
        sequence: Sequence,
    },
}

/// What becomes of the folder of a node that has stopped: it follows the log, or has not begun to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FolderFate {
    /// The folder stays as it is: somebody has to look at it, or at the log.
    Stays,
    /// The folder is made anew of a snapshot, since the log is purged of what the folder lacks.
    Reloads,
    /// The folder is discarded: the log, which can be read there, has another record where the folder ends, or is another one that begins behind that; so it
    /// is no copy of this log.
    Discarded {
        /// The place of that record.
        sequence: Sequence,
    },
}

impl StopReason {
    /// What becomes of the folder. Nothing but another record that was read in its place, or a log that was made anew and has gone on behind that, says that a folder is no copy: where the log ends before it, or a
    /// message is not to be believed, the folder may have the only copy of what was acknowledged.
    #[must_use]
    pub fn folder(&self) -> FolderFate {
        match self {
            Self::Other { sequence, .. } => FolderFate::Discarded { sequence: *sequence },
            // It has gone on further than the folder: it is what the cluster has used since.
            Self::MadeAnew { sequence, has, .. } if has.0 > *sequence => {
                FolderFate::Discarded { sequence: *sequence }
            }
            Self::Purged { .. } => FolderFate::Reloads,
            Self::Bad { .. }
            | Self::Chain { .. }
            | Self::Unclaimed { .. }
            | Self::Hole { .. }
            | Self::Missing { .. }
            | Self::MadeAnew { .. }
            | Self::Long { .. } => FolderFate::Stays,
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad { stream, sequence, bad } => {
                write!(f, "message {} of stream {stream} cannot be read: {bad}", sequence.0)
            }
            Self::Chain { stream, sequence } => write!(
                f,
                "message {} of stream {stream} does not follow the record before it",
                sequence.0
            ),
            Self::Unclaimed { stream, sequence, epoch } => write!(
                f,
                "message {} of stream {stream} has epoch {}, which nobody has claimed before it",
                sequence.0, epoch.0
            ),
            Self::Hole { stream, sequence, found } => write!(
                f,
                "message {} of stream {stream} is missing: the next one is {}",
                sequence.0, found.0
            ),
            Self::Purged { stream, sequence, found } => write!(
                f,
                "message {} of stream {stream} is needed, and it begins with {}: a snapshot must be loaded",
                sequence.0, found.0
            ),
            Self::Other { stream, sequence } => write!(
                f,
                "message {} of stream {stream} is another one than the record that the data folder ends with",
                sequence.0
            ),
            Self::Missing { stream, sequence, found } => write!(
                f,
                "message {} of stream {stream} was acknowledged and is lost: the stream went on with {}",
                sequence.0, found.0
            ),
            Self::MadeAnew { stream, sequence, has: (first, last) } => write!(
                f,
                "the data folder is a copy of an earlier stream {stream}, up to message {}, and the one that is there now was made anew and has messages {} to {}: what was acknowledged may be in the folder alone (to go on with the new stream, keep the folder elsewhere, and start the node with an empty one)",
                sequence.0, first.0, last.0
            ),
            Self::Long { stream, sequence } => write!(
                f,
                "the parts that end with message {} of stream {stream} come to more than {TURN_BYTES_MAX} bytes",
                sequence.0
            ),
        }
    }
}

/// Reads a log from a position on.
#[derive(Clone, Debug)]
pub struct LogReader {
    stream: String,
    log: LogId,
    /// The formats that are read, and the newest that was; 0: none.
    reads: FormatRange,
    newest: u16,
    /// The record that reading begins with, until it was read again.
    begins_with: Option<LogPosition>,
    /// The last message that was read.
    at: Sequence,
    /// The last record that was whole, and all before it.
    whole: LogPosition,
    epoch: Epoch,
    /// The checksum of the last message that was taken.
    last: u64,
    /// The number that the next one of the epoch has; none: a number is missing, and the rest of the epoch is void (A2).
    next: Option<u64>,
    parts: Vec<u8>,
    /// A2 is left out, on purpose: a record of an older epoch than the last claim's is data.
    believes_all: bool,
}

impl LogReader {
    /// A reader that begins behind a record, which it reads once more, to see that it is still there.
    #[must_use]
    pub fn new(stream: &str, from: LogPosition) -> Self {
        let begins_with = (from.sequence.0 > 0).then_some(from);
        Self {
            stream: stream.into(),
            log: LogId::of(stream),
            reads: RECORD_FORMATS,
            newest: 0,
            begins_with,
            at: begins_with.map_or(Sequence(0), |from| Sequence(from.sequence.0 - 1)),
            whole: from,
            epoch: Epoch(0),
            last: 0,
            next: None,
            parts: Vec::new(),
            believes_all: false,
        }
    }

    /// The same without a look at epochs: what a simulation has to notice.
    #[doc(hidden)]
    #[must_use]
    pub fn believing_all(self, believes_all: bool) -> Self {
        Self { believes_all, ..self }
    }

    /// The same, where a program reads these formats.
    #[must_use]
    pub fn with_formats(self, reads: FormatRange) -> Self {
        Self { reads, ..self }
    }

    /// The newest format that a message had; 0: none was read.
    #[must_use]
    pub fn newest_format(&self) -> u16 {
        self.newest
    }

    /// The next message to read.
    #[must_use]
    pub fn wants(&self) -> Sequence {
        self.at.next()
    }

    /// The last message that was read.
    #[must_use]
    pub fn at(&self) -> Sequence {
        self.at
    }

    /// The last record that was whole: it and all before it are acknowledged.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        self.whole
    }

    /// The epoch of the last claim that was read; 0: of none.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The record that the log must still have, and that was not read yet.
    #[must_use]
    pub fn unconfirmed(&self) -> Option<LogPosition> {
        self.begins_with
    }

    /// The checksum that the next record, a claim, has to name.
    #[must_use]
    pub fn last_checksum(&self) -> u64 {
        self.begins_with.map_or(self.last, |from| from.checksum)
    }

    /// The name of the stream.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// A whole record was read.
    fn follow(&mut self, position: LogPosition, number: u64, epoch: Epoch) {
        self.at = position.sequence;
        self.last = position.checksum;
        self.epoch = epoch;
        self.next = Some(number + 1);
        self.parts.clear();
        self.whole = position;
    }

    /// Told the first sequence that the log has.
    ///
    /// # Errors
    /// It is too late for this reader.
    pub fn begins_at(&self, first: Sequence) -> Result<(), StopReason> {
        let sequence = self.wants();
        if first <= sequence {
            return Ok(());
        }
        Err(StopReason::Purged { stream: self.stream.clone(), sequence, found: first })
    }

    /// Reads the next message; one that was read before is passed over.
    ///
    /// # Errors
    /// The shard must stop.
    pub fn read(
        &mut self,
        sequence: Sequence,
        bytes: &[u8],
    ) -> Result<Option<LogEntry>, StopReason> {
        if sequence <= self.at {
            return Ok(None);
        }
        let stream = || self.stream.clone();
        if sequence != self.at.next() {
            let (stream, sequence, found) = (stream(), self.at.next(), sequence);
            return Err(StopReason::Hole { stream, sequence, found });
        }
        let message = LogMessage::decode(self.log, self.reads, bytes);
        let message = message.map_err(|bad| StopReason::Bad { stream: stream(), sequence, bad })?;
        self.newest = self.newest.max(message.header.format);
        if let Some(from) = self.begins_with {
            return self.confirm(from, &message).map(|()| None);
        }
        let entry = self.take(sequence, &message)?;
        self.at = sequence;
        Ok(entry)
    }

    /// Reads the record that reading begins with.
    fn confirm(&mut self, from: LogPosition, message: &LogMessage<'_>) -> Result<(), StopReason> {
        self.check_nothing_is_missing(from.sequence, message)?;
        if message.checksum != from.checksum || message.header.kind == RecordKind::Part {
            return Err(StopReason::Other { stream: self.stream.clone(), sequence: from.sequence });
        }
        self.begins_with = None;
        self.follow(from, message.header.number, message.header.epoch);
        Ok(())
    }

    /// A claim whose number is not 0 was accepted where the log ended, before an acknowledged record that its claimant knows of: the one at that number. It
    /// tells everybody, also those who would otherwise take it for another record in the place of theirs.
    fn check_nothing_is_missing(
        &self,
        found: Sequence,
        message: &LogMessage<'_>,
    ) -> Result<(), StopReason> {
        let RecordHeader { kind, number, .. } = message.header;
        if kind != RecordKind::Claim || number == 0 {
            return Ok(());
        }
        Err(StopReason::Missing { stream: self.stream.clone(), sequence: Sequence(number), found })
    }

    /// What a message is, as A2 says.
    fn take(
        &mut self,
        sequence: Sequence,
        message: &LogMessage<'_>,
    ) -> Result<Option<LogEntry>, StopReason> {
        let header = &message.header;
        if header.kind == RecordKind::Claim {
            return self.claim(sequence, message);
        }
        if header.epoch > self.epoch {
            let (stream, epoch) = (self.stream.clone(), header.epoch);
            return Err(StopReason::Unclaimed { stream, sequence, epoch });
        }
        if self.believes_all && header.epoch < self.epoch {
            let position = LogPosition { sequence, checksum: message.checksum };
            let (epoch, schema, payload) = (header.epoch, header.schema, message.payload.to_vec());
            self.whole = position;
            return Ok(Some(LogEntry::Data { position, epoch, schema, payload }));
        }
        let Some(next) = self.next.filter(|_| header.epoch == self.epoch) else { return Ok(None) };
        if header.number < next {
            return Ok(None);
        }
        if header.number > next {
            self.next = None;
            return Ok(None);
        }
        if header.before != self.last {
            return Err(StopReason::Chain { stream: self.stream.clone(), sequence });
        }
        if self.parts.len() + message.payload.len() > TURN_BYTES_MAX {
            return Err(StopReason::Long { stream: self.stream.clone(), sequence });
        }
        self.last = message.checksum;
        self.next = Some(next + 1);
        self.parts.extend_from_slice(&message.payload);
        if header.kind == RecordKind::Part {
            return Ok(None);
        }
        let position = LogPosition { sequence, checksum: message.checksum };
        self.whole = position;
        let payload = take(&mut self.parts);
        Ok(Some(LogEntry::Data { position, epoch: header.epoch, schema: header.schema, payload }))
    }

    fn claim(
        &mut self,
        sequence: Sequence,
        message: &LogMessage<'_>,
    ) -> Result<Option<LogEntry>, StopReason> {
        self.check_nothing_is_missing(sequence, message)?;
        let header = &message.header;
        if header.epoch <= self.epoch {
            return Ok(None);
        }
        if header.before != self.last {
            return Err(StopReason::Chain { stream: self.stream.clone(), sequence });
        }
        let position = LogPosition { sequence, checksum: message.checksum };
        self.follow(position, 0, header.epoch);
        let payload = message.payload.to_vec();
        Ok(Some(LogEntry::Claim { position, epoch: header.epoch, payload }))
    }
}
