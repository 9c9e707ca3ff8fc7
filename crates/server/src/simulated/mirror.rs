//! A client that keeps a copy of a range by what it is told of changes, as `docs/watch.md` says.

use super::busy::{Come, request};
use super::pipe::Pipe;
use super::world::World;
use headwater_model::server::wire::{Frame, Wire};
use headwater_protocol::resp::ReplyCutter;
use std::collections::{BTreeMap, VecDeque};

/// Keys and values.
pub(super) type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a reply is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Hello,
    Watch,
    /// The whole range is read.
    Read,
}

/// The client, and its copy.
pub(super) struct Mirror {
    pipe: Pipe,
    bytes: Vec<u8>,
    range: [&'static str; 2],
    /// What is to be answered.
    asked: VecDeque<Asked>,
    pub(super) copy: Pairs,
    /// How far the copy is known to have come.
    position: Option<Vec<u8>>,
    /// Changes that were told.
    pub(super) changes: u64,
}

/// Whether an error says that a shard cannot be reached.
pub(super) fn is_of_lost_shard(error: &str) -> bool {
    error.starts_with("CLUSTERDOWN")
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
        let (bytes, copy, asked) = (Vec::new(), Pairs::new(), VecDeque::new());
        let mut mirror = Self { pipe, bytes, range, asked, copy, position: None, changes: 0 };
        mirror.greet();
        mirror
    }

    fn greet(&mut self) {
        self.pipe.ask(&request(&["HELLO", "3"]));
        self.asked.push_back(Asked::Hello);
        self.watch();
    }

    /// Watches the range, from where it was watched before if there is a copy; else all of it is read.
    fn watch(&mut self) {
        self.asked.push_back(Asked::Watch);
        let mut words = vec!["RANGE.WATCH", self.range[0], self.range[1]];
        let position = self.position.clone().and_then(|text| String::from_utf8(text).ok());
        match &position {
            Some(position) => {
                words.extend(["FROM", position]);
                self.pipe.ask(&request(&words));
            }
            None => {
                self.pipe.ask(&request(&words));
                self.read();
            }
        }
    }

    fn read(&mut self) {
        self.pipe.ask(&request(&["RANGE", self.range[0], self.range[1]]));
        self.asked.push_back(Asked::Read);
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

    /// The same; where its server has ended, it goes on at another one.
    pub(super) fn look_at(&mut self, world: &mut World) -> Result<(), String> {
        let has_ended = {
            let state = self.pipe.state();
            state.server_ended && state.told.is_empty()
        };
        if has_ended {
            // What was to be read was not.
            if !self.is_whole() {
                self.position = None;
            }
            self.asked.clear();
            self.bytes.clear();
            self.pipe = world.connect().0;
            self.greet();
        }
        self.look()
    }

    /// Whether it waits for nothing.
    pub(super) fn is_whole(&self) -> bool {
        self.asked.is_empty() && self.bytes.is_empty() && self.pipe.state().told.is_empty()
    }

    fn replied(&mut self, reply: &Frame) -> Result<(), String> {
        match (self.asked.pop_front(), reply) {
            (Some(Asked::Hello), Frame::Map(_)) => Ok(()),
            (Some(Asked::Watch), Frame::Array(answer)) => {
                self.position = answer.get(1).and_then(Frame::text);
                Ok(())
            }
            // What it needs cannot be reached: it is asked again.
            (Some(Asked::Watch), Frame::Error(text)) if is_of_lost_shard(text) => {
                self.watch();
                Ok(())
            }
            (Some(Asked::Read), Frame::Error(text)) if is_of_lost_shard(text) => {
                self.read();
                Ok(())
            }
            (Some(Asked::Read), _) => {
                self.copy = pairs(reply)?;
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
                self.position = Some(text(2));
                self.copy.insert(text(4), text(5));
            }
            (b"range-change", b"del") => {
                self.changes += 1;
                self.position = Some(text(2));
                self.copy.remove(&text(4));
            }
            (b"range-resync", _) => {
                self.read();
            }
            _ => return Err(format!("a mirror is told {push:?}")),
        }
        Ok(())
    }
}
