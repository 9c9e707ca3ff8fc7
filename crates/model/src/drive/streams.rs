//! Streams: an offset under a name means one byte for ever, whatever is trimmed, evicted, put aside, removed and made
//! again.

use super::{Run, failed, same};
use crate::history::Op;
use headwater_engine::EngineError;
use headwater_script::bytes::escape;
use std::collections::BTreeMap;

/// What the oracle has in place of a stream's value. Joins see no streams.
const MARK: &[u8] = b"\xffa stream\xff";

/// A stream, or what is remembered of one that is gone.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// Every byte that the name ever had, by offset. What was never there, because the name got a copy of a stream
    /// that begins later, is zeros.
    bytes: Vec<u8>,
    /// What lies before was trimmed, or was another stream's.
    start: usize,
    /// What lies before is known to be gone for want of memory.
    first: usize,
    /// Something of it may have gone for want of memory.
    lossy: bool,
    is_there: bool,
    /// Nobody has asked for it since the process began: what comes in its place begins at 0, or behind it.
    forgotten: bool,
}

impl Stream {
    /// It is gone, and what comes after it begins behind its end.
    fn end(&mut self) {
        if self.is_there {
            (self.start, self.is_there) = (self.bytes.len(), false);
        }
    }

    /// What comes in its place begins at an offset.
    fn begins_at(&mut self, offset: usize) {
        if self.forgotten && offset < self.bytes.len() {
            self.bytes.clear();
            (self.start, self.first) = (0, 0);
        }
        self.forgotten = false;
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// All streams, by their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams(BTreeMap<Vec<u8>, Stream>);

/// Whether a value is a stream's mark.
pub(super) fn is_mark(value: &[u8]) -> bool {
    value == MARK
}

impl Run<'_> {
    /// Whether a key holds a stream, as far as the oracle knows.
    pub(super) fn is_stream(&self, key: &[u8]) -> bool {
        self.oracle.base.get(key).is_some_and(|(value, _)| is_mark(value))
    }

    /// What is known of the stream of a name, which may be gone.
    fn stream(&mut self, key: &[u8]) -> &mut Stream {
        let (is_there, lossy) = (self.is_stream(key), self.subject.may_lose_bytes());
        let stream = self.streams.0.entry(key.to_vec()).or_default();
        if !is_there {
            stream.end();
        }
        stream.lossy |= lossy;
        stream
    }

    /// A stream has gone for want of memory.
    pub(super) fn lose_stream(&mut self, key: &[u8]) {
        let stream = self.stream(key);
        stream.end();
        stream.lossy = true;
    }

    /// The process has ended: no stream survives that, or all do, but for what is known of those that are gone.
    pub(super) fn forget_streams(&mut self) {
        if self.subject.keeps_streams() {
            let base = &self.oracle.base;
            let is_there = |key: &Vec<u8>| base.get(key).is_some_and(|(value, _)| is_mark(value));
            for (key, stream) in &mut self.streams.0 {
                if !is_there(key) {
                    stream.end();
                }
                stream.forgotten = true;
            }
            return;
        }
        self.streams.0.clear();
        self.oracle.base.retain(|_, (value, _)| !is_mark(value));
    }

    /// Whether the key holds a value that is no stream; then `error` must say so.
    fn holds_value(&mut self, key: &[u8], error: Option<EngineError>) -> Result<bool, String> {
        let is_value = self.oracle.base.contains_key(key) && !self.is_stream(key);
        if !is_value || (error != Some(EngineError::WrongType) && self.is_lost(key)?) {
            return Ok(false);
        }
        same(&error, &Some(EngineError::WrongType)).map(|()| true)
    }

    pub(super) fn step_stream(&mut self, key: &[u8], op: &Op) -> Result<(), String> {
        match op {
            Op::StreamAppend { tail, .. } => self.stream_append(key, tail),
            Op::StreamRead { at, count, .. } => self.stream_read(key, *at, *count),
            Op::StreamTrim { at, .. } => self.stream_trim(key, *at),
            _ => self.stream_info(key),
        }
    }

    fn stream_append(&mut self, key: &[u8], tail: &[u8]) -> Result<(), String> {
        let given = self.subject.stream_append(key, tail);
        if given == Err(EngineError::OutOfMemory) && self.subject.may_run_out() {
            return Ok(());
        }
        if self.holds_value(key, given.clone().err())? {
            return Ok(());
        }
        if given.is_ok() && self.may_lose(key) {
            let at = self.oracle.base.get(key).and_then(|(_, at)| *at);
            if at.is_some() && failed(self.subject.expiry(key))? == Some(None) {
                // Room was made for the tail by the stream itself.
                self.lose(key);
            }
        }
        let stream = self.stream(key);
        if let Ok(end) = &given
            && !stream.is_there
        {
            stream.begins_at((*end as usize).saturating_sub(tail.len()));
        }
        stream.bytes.extend_from_slice(tail);
        (stream.is_there, stream.forgotten) = (true, false);
        let end = stream.len();
        self.oracle.base.entry(key.to_vec()).or_insert_with(|| (MARK.to_vec(), None));
        self.changed();
        same(&given, &Ok(end))
    }

    fn stream_read(&mut self, key: &[u8], at: u64, count: u64) -> Result<(), String> {
        let offset = at % (self.stream(key).len() + 3);
        let given = self.subject.stream_read(key, offset, count);
        if self.holds_value(key, given.clone().err())? {
            return Ok(());
        }
        let missed = matches!(given, Ok(None) | Err(EngineError::Evicted { .. }));
        let is_there = self.is_stream(key) && !(missed && self.is_lost(key)?);
        let may_be_short = self.subject.keeps_streams();
        let stream = self.stream(key);
        let (from, end) = (offset as usize, stream.bytes.len());
        let shown = || format!("of {}..{end} from {offset} on", stream.start);
        match given {
            Ok(None) if !is_there => Ok(()),
            Err(EngineError::Evicted { first }) if !is_there && stream.lossy => {
                if offset < first && first <= end as u64 {
                    return Ok(());
                }
                Err(format!("names {first} {}", shown()))
            }
            Ok(Some(bytes)) if is_there => {
                stream.forgotten = false;
                if from < stream.start || from < stream.first || from > end {
                    return Err(format!("gives {} bytes {}", bytes.len(), shown()));
                }
                let most = count.min((end - from) as u64) as usize;
                let may_be_short = may_be_short || stream.lossy;
                let whole = bytes.len() == most || may_be_short && !bytes.is_empty();
                if !whole || bytes.len() > most || !stream.bytes[from..].starts_with(&bytes) {
                    let (few, right) = (bytes.len().min(20), most.min(20));
                    return Err(format!(
                        "gives {} bytes ({}…) {}, not {most} ({}…)",
                        bytes.len(),
                        escape(&bytes[..few]),
                        shown(),
                        escape(&stream.bytes[from..from + right]),
                    ));
                }
                Ok(())
            }
            Err(EngineError::BeyondEnd { offset: asked, end: told }) if is_there => {
                same(&(asked, told, from > end), &(offset, end as u64, true))
            }
            Err(EngineError::Trimmed { first }) if is_there && from < stream.start => {
                let right = first == stream.start as u64 || stream.lossy && first <= end as u64;
                if right { Ok(()) } else { Err(format!("names {first} {}", shown())) }
            }
            Err(EngineError::Evicted { first }) if is_there && stream.lossy => {
                if offset < first && first <= end as u64 {
                    stream.first = stream.first.max(first as usize);
                    return Ok(());
                }
                Err(format!("names {first} {}", shown()))
            }
            given => {
                let len = given.map(|bytes| bytes.map(|bytes| bytes.len()));
                Err(format!("gives {len:?} {}; there: {is_there}", shown()))
            }
        }
    }

    fn stream_trim(&mut self, key: &[u8], at: u64) -> Result<(), String> {
        let offset = at % (self.stream(key).len() + 3);
        let given = self.subject.stream_trim(key, offset);
        if self.holds_value(key, given.clone().err())? {
            return Ok(());
        }
        let is_there = self.is_stream(key) && !(given == Ok(None) && self.is_lost(key)?);
        let stream = self.stream(key);
        let end = stream.len();
        let right = match given {
            Ok(None) => !is_there,
            Err(EngineError::BeyondEnd { .. }) => is_there && offset > end,
            Ok(Some(start)) if is_there && offset <= end => {
                stream.forgotten = false;
                let least = (stream.start as u64).max(offset);
                // One that was made again since may begin later.
                let right = start == least || stream.lossy && (offset..=end).contains(&start);
                stream.start = start as usize;
                right
            }
            _ => false,
        };
        self.changed();
        if right { Ok(()) } else { Err(format!("gives {given:?} at {offset} of {end}")) }
    }

    fn stream_info(&mut self, key: &[u8]) -> Result<(), String> {
        let given = self.subject.stream_report(key);
        if self.holds_value(key, given.clone().err())? {
            return Ok(());
        }
        let is_there = self.is_stream(key) && !(given == Ok(None) && self.is_lost(key)?);
        let stream = self.stream(key);
        let right = match &given {
            Ok(None) => !is_there,
            Ok(Some(report)) if is_there => {
                stream.forgotten = false;
                let first = report.first as usize;
                let exact = report.start == stream.start as u64 && first == stream.start;
                let behind = report.start <= report.first && first >= stream.first;
                let right = report.end == stream.len()
                    && report.first <= report.end
                    && (exact || stream.lossy && behind);
                stream.first = stream.first.max(first);
                right
            }
            _ => false,
        };
        if right { Ok(()) } else { Err(format!("gives {given:?} of {}..", stream.start)) }
    }

    /// `to` has been given the stream of `from`. The bytes have the offsets that they had, or, where the name had a stream
    /// before, such as lie behind its end.
    pub(super) fn stream_copied(&mut self, from: &[u8], to: &[u8]) -> Result<(), String> {
        if from == to {
            return Ok(());
        }
        let copied = self.stream(from).clone();
        let Ok(Some(report)) = self.subject.stream_report(to) else {
            // It went at once, or is not there.
            let lost = self.is_lost(to)?;
            return if lost { Ok(()) } else { Err(String::from("is not there")) };
        };
        let stream = self.stream(to);
        stream.end();
        stream.begins_at(report.first as usize);
        let (before, first) = (stream.bytes.len(), report.first as usize);
        let by = report.end.checked_sub(copied.len()).map(|by| by as usize);
        let right = by.is_some_and(|by| first >= before && (by == 0 || by <= before));
        let Some(by) = by.filter(|_| right) else {
            let end = copied.bytes.len();
            return Err(format!("gives {report:?}, of {}..{end} behind {before}", copied.start));
        };
        let origin = first - by;
        stream.bytes.resize(first.max(before), 0);
        stream.bytes.extend_from_slice(&copied.bytes[origin..]);
        (stream.start, stream.first) = (copied.start + by, first);
        stream.is_there = true;
        stream.lossy |= copied.lossy || by > 0;
        Ok(())
    }
}
