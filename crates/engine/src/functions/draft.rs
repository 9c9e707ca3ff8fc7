//! What a function has changed so far: a draft over the stored value.
//!
//! The stored value is not copied: its first bytes stay where they are, changed in places that are
//! listed, and what is behind them is the draft's own. Reads of the function see its changes; the
//! stored value does not until the draft is applied.
//!
//! # Cost
//! What is written. A read looks at each span that was written, of which there are few.

use super::others::Others;
use alloc::vec::Vec;
use core::cell::Cell;
use headwater_base::Millis;
use headwater_base::functions::{Refused, Subject, World};
use headwater_pool::Value;

/// Most places that one call may write to: each read looks at all of them.
const SPANS_MAX: usize = 1024;
/// More working memory is given back after a call.
const KEPT_MAX: usize = 64 << 10;

/// Bytes that take the place of stored ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Offset in the value.
    pub(crate) at: usize,
    /// Where they are in [`Draft::written`].
    start: usize,
    pub(crate) len: usize,
}

/// The changes and the reply of one call.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Something was changed.
    pub(crate) changed: bool,
    /// The key is there.
    pub(crate) present: bool,
    /// How many of the stored bytes stay, from the first.
    pub(crate) kept: usize,
    /// What was written over them, in that order.
    pub(crate) spans: Vec<Span>,
    written: Vec<u8>,
    /// What is behind them.
    pub(crate) tail: Vec<u8>,
    pub(crate) reply: Vec<u8>,
    /// Something was replied, be it nothing.
    pub(crate) replied: bool,
    /// Bytes that the call has written so far.
    bytes: usize,
}

impl Draft {
    /// A draft that changes nothing of a value.
    pub(crate) fn begin(&mut self, stored: Option<usize>) {
        self.begin_next(stored);
        self.reply.clear();
        self.replied = false;
    }

    /// As [`Draft::begin`], with the reply as it is.
    pub(crate) fn begin_next(&mut self, stored: Option<usize>) {
        self.changed = false;
        self.present = stored.is_some();
        self.kept = stored.unwrap_or(0);
        self.spans.clear();
        self.written.clear();
        self.tail.clear();
        self.bytes = 0;
    }

    /// Gives back memory that a large call has taken.
    pub(crate) fn trim(&mut self) {
        for room in [&mut self.written, &mut self.tail, &mut self.reply] {
            if room.capacity() > KEPT_MAX {
                *room = Vec::new();
            }
        }
    }

    /// The bytes of a span.
    pub(crate) fn bytes_of(&self, span: Span) -> &[u8] {
        &self.written[span.start..span.start + span.len]
    }

    /// Bytes that applying the draft may take, of a value that is copied whole or not.
    pub(crate) fn needs(&self, copied: bool) -> usize {
        self.tail.len() + if copied { self.kept } else { 0 }
    }

    fn len(&self) -> usize {
        self.kept + self.tail.len()
    }

    /// Writes over the stored bytes that stay.
    fn write_over(&mut self, at: usize, bytes: &[u8]) -> Result<(), Refused> {
        let end = at + bytes.len();
        // The last span that has a part of these bytes takes them all, if it can.
        let meets = |span: &&Span| span.at < end && at < span.at + span.len;
        if let Some(span) = self.spans.iter().rfind(meets)
            && span.at <= at
            && end <= span.at + span.len
        {
            let start = span.start + at - span.at;
            self.written[start..start + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        if let Some(last) = self.spans.last_mut()
            && last.at + last.len == at
        {
            last.len += bytes.len();
        } else if self.spans.len() < SPANS_MAX {
            self.spans.push(Span { at, start: self.written.len(), len: bytes.len() });
        } else {
            return Err(Refused::TooManyWrites(SPANS_MAX));
        }
        self.written.extend_from_slice(bytes);
        Ok(())
    }

    fn cut(&mut self, len: usize) {
        if len >= self.kept {
            self.tail.truncate(len - self.kept);
            return;
        }
        self.tail.clear();
        self.kept = len;
        self.spans.retain_mut(|span| {
            span.len = span.len.min(len.saturating_sub(span.at));
            span.len > 0
        });
    }

    /// Copies from `offset` on of what the draft makes of `value`.
    fn read(&self, value: Option<&Value<'_>>, offset: usize, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len().saturating_sub(offset));
        let end = offset + len;
        let from_stored = self.kept.min(end).saturating_sub(offset);
        if let Some(value) = value
            && from_stored > 0
        {
            let mut filled = 0;
            for part in value.read_at(offset, from_stored) {
                into[filled..filled + part.len()].copy_from_slice(part);
                filled += part.len();
            }
            for &span in &self.spans {
                let (from, to) = (span.at.max(offset), (span.at + span.len).min(end));
                if from < to {
                    let bytes = &self.bytes_of(span)[from - span.at..to - span.at];
                    into[from - offset..to - offset].copy_from_slice(bytes);
                }
            }
        }
        if len > 0 && end > self.kept {
            let from = offset.max(self.kept);
            let bytes = &self.tail[from - self.kept..end - self.kept];
            into[from - offset..len].copy_from_slice(bytes);
        }
        len
    }
}

/// What a function sees: a stored value under a draft.
pub(crate) struct Act<'a> {
    pub(crate) key: &'a [u8],
    /// It has looked at the key.
    pub(crate) key_seen: Cell<bool>,
    pub(crate) param: &'a [u8],
    /// `None`: the function must be pure.
    pub(crate) now: Option<Millis>,
    pub(crate) stored: Option<Value<'a>>,
    pub(crate) draft: &'a mut Draft,
    /// The call may change the value.
    pub(crate) writes: bool,
    pub(crate) reply_bytes_max: usize,
    pub(crate) write_bytes_max: usize,
    pub(crate) value_bytes_max: usize,
    /// Other keys, where a flow makes the call.
    pub(crate) world: Option<Others<'a>>,
}

impl Act<'_> {
    /// Allows a change that writes so many bytes.
    fn allow(&mut self, bytes: usize) -> Result<(), Refused> {
        if !self.writes {
            return Err(Refused::ReadOnly);
        }
        self.draft.bytes = self.draft.bytes.saturating_add(bytes);
        if self.draft.bytes > self.write_bytes_max {
            return Err(Refused::WritesTooLong(self.write_bytes_max));
        }
        Ok(())
    }

    fn allow_len(&self, len: usize) -> Result<(), Refused> {
        let max = self.value_bytes_max;
        if len > max { Err(Refused::ValueTooLong(max)) } else { Ok(()) }
    }

    fn allow_reply(&mut self, len: usize) -> Result<(), Refused> {
        let max = self.reply_bytes_max;
        if len > max.saturating_sub(self.draft.reply.len()) {
            return Err(Refused::ReplyTooLong(max));
        }
        self.draft.replied = true;
        Ok(())
    }

    fn changed(&mut self) {
        self.draft.changed = true;
        self.draft.present = true;
    }
}

impl Subject for Act<'_> {
    fn key(&self) -> &[u8] {
        self.key_seen.set(true);
        self.key
    }

    fn param(&self) -> &[u8] {
        self.param
    }

    fn now(&self) -> Result<Millis, Refused> {
        self.now.ok_or(Refused::NotPure)
    }

    fn len(&self) -> Option<usize> {
        self.draft.present.then(|| self.draft.len())
    }

    #[inline]
    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.draft.read(self.stored.as_ref(), offset, into)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Refused> {
        let end = offset.saturating_add(bytes.len());
        let grows = end.saturating_sub(self.draft.len());
        self.allow(bytes.len().max(grows))?;
        self.allow_len(end)?;
        self.changed();
        let draft = &mut *self.draft;
        if grows > 0 {
            draft.tail.resize(draft.tail.len() + grows, 0);
        }
        let over = draft.kept.saturating_sub(offset).min(bytes.len());
        let (over, behind) = bytes.split_at(over);
        if !over.is_empty() {
            draft.write_over(offset, over)?;
        }
        if !behind.is_empty() {
            let from = offset + over.len() - draft.kept;
            draft.tail[from..from + behind.len()].copy_from_slice(behind);
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.allow(bytes.len())?;
        self.allow_len(self.draft.len().saturating_add(bytes.len()))?;
        self.changed();
        self.draft.tail.extend_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> Result<(), Refused> {
        self.allow(0)?;
        if self.draft.present && len < self.draft.len() {
            self.changed();
            self.draft.cut(len);
        }
        Ok(())
    }

    #[inline]
    fn replace(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.allow(bytes.len())?;
        self.allow_len(bytes.len())?;
        self.changed();
        self.draft.cut(0);
        self.draft.tail.clear();
        self.draft.tail.extend_from_slice(bytes);
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Refused> {
        self.allow(0)?;
        self.draft.changed = true;
        self.draft.present = false;
        self.draft.cut(0);
        self.draft.tail.clear();
        Ok(())
    }

    #[inline]
    fn reply(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.allow_reply(bytes.len())?;
        self.draft.reply.extend_from_slice(bytes);
        Ok(())
    }

    fn reply_value(&mut self, offset: usize, len: usize) -> Result<usize, Refused> {
        let len = len.min(self.draft.len().saturating_sub(offset));
        self.allow_reply(len)?;
        let mut reply = core::mem::take(&mut self.draft.reply);
        let before = reply.len();
        reply.resize(before + len, 0);
        self.draft.read(self.stored.as_ref(), offset, &mut reply[before..]);
        self.draft.reply = reply;
        Ok(len)
    }

    fn world(&mut self) -> Result<&mut dyn World, Refused> {
        match &mut self.world {
            Some(world) => Ok(world),
            None => Err(Refused::NotInFlow),
        }
    }
}
