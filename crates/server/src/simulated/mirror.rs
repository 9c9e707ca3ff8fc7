//! A client that keeps a copy of a range by what it is told of changes, as `docs/watch.md` says.

use super::busy::{Come, request};
use super::pipe::Pipe;
use super::world::World;
use headwater_model::server::wire::{Frame, Wire};
use headwater_protocol::resp::ReplyCutter;
use std::collections::BTreeMap;

/// Keys and values.
pub(super) type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The client, and its copy.
pub(super) struct Mirror {
    pipe: Pipe,
    bytes: Vec<u8>,
    range: [&'static str; 2],
    /// Replies that have come.
    replies: usize,
    pub(super) copy: Pairs,
    /// Reads of the whole range that are not answered.
    reads: usize,
    /// Changes that were told.
    pub(super) changes: u64,
}

/// What a reply to `RANGE` has.
fn pairs(frame: &Frame) -> Result<Pairs, String> {
    let text = |frame: &Frame| frame.text().ok_or_else(|| format!("{frame:?} is no text"));
    match frame {
        Frame::Map(all) => all.iter().map(|(key, value)| Ok((text(key)?, text(value)?))).collect(),
        Frame::Array(all) => all
            .chunks(2)
            .map(|pair| match pair {
                [key, value] => Ok((text(key)?, text(value)?)),
                _ => Err(String::from("a key without a value")),
            })
            .collect(),
        other => Err(format!("RANGE: {other:?}")),
    }
}

impl Mirror {
    /// Begins to keep a copy.
    pub(super) fn begin(world: &mut World, range: [&'static str; 2]) -> Self {
        let (pipe, _) = world.connect();
        pipe.ask(&request(&["HELLO", "3"]));
        pipe.ask(&request(&["RANGE.WATCH", range[0], range[1]]));
        pipe.ask(&request(&["RANGE", range[0], range[1]]));
        let (bytes, copy) = (Vec::new(), Pairs::new());
        Self { pipe, bytes, range, replies: 0, copy, reads: 1, changes: 0 }
    }

    /// Takes what has come.
    pub(super) fn look(&mut self) -> Result<(), String> {
        self.bytes.extend(self.pipe.state().told.drain(..));
        while let Some(length) = ReplyCutter::default().cut(&self.bytes) {
            let rest = self.bytes.split_off(length);
            let bytes = core::mem::replace(&mut self.bytes, rest);
            let mut wire = Wire::over(Box::new(Come(bytes.into())));
            wire.protocol = 3;
            match wire.frame()? {
                Frame::Push(push) => self.told(&push)?,
                reply => self.replied(&reply)?,
            }
        }
        Ok(())
    }

    /// Whether it waits for nothing.
    pub(super) fn is_whole(&self) -> bool {
        self.reads == 0 && self.bytes.is_empty() && self.pipe.state().told.is_empty()
    }

    fn replied(&mut self, reply: &Frame) -> Result<(), String> {
        self.replies += 1;
        match (self.replies, reply) {
            (1, Frame::Map(_)) | (2, Frame::Array(_)) => Ok(()),
            (3.., _) => {
                self.copy = pairs(reply)?;
                self.reads -= 1;
                Ok(())
            }
            (_, other) => Err(format!("a mirror is answered {other:?}")),
        }
    }

    fn told(&mut self, push: &[Frame]) -> Result<(), String> {
        let text = |at: usize| push.get(at).and_then(Frame::text).unwrap_or_default();
        match (&*text(0), &*text(3)) {
            (b"range-change", b"set") => {
                self.changes += 1;
                self.copy.insert(text(4), text(5));
            }
            (b"range-change", b"del") => {
                self.changes += 1;
                self.copy.remove(&text(4));
            }
            (b"range-resync", _) => {
                self.reads += 1;
                self.pipe.ask(&request(&["RANGE", self.range[0], self.range[1]]));
            }
            _ => return Err(format!("a mirror is told {push:?}")),
        }
        Ok(())
    }
}
