//! What a client that tracks keeps copies of, and what it is told of them.

use super::wire::Frame;
use crate::oracle::{Pairs, within};
use headwater_script::bytes::escape;
use std::collections::BTreeMap;

/// What a request did that concerns copies.
#[derive(Clone, Debug)]
pub enum Event {
    /// Read this key, which had this value.
    Read(Vec<u8>, Option<Vec<u8>>),
    /// Read a range; with all of its pairs, where nothing limited them.
    Range {
        /// Its bounds.
        bounds: (Vec<u8>, Vec<u8>),
        /// What was there.
        pairs: Pairs,
    },
    /// Wrote this key.
    Wrote(Vec<u8>),
}

/// What a client has asked to be told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mode {
    /// Of all keys with one of these prefixes, whoever reads them; `None`: of keys that it has read.
    pub prefixes: Option<Vec<Vec<u8>>>,
    /// Only what is read behind CLIENT CACHING YES.
    pub opt_in: bool,
    /// All but what is read behind CLIENT CACHING NO.
    pub opt_out: bool,
    /// Not of its own writes.
    pub no_loop: bool,
}

/// The copies that a client keeps.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    mode: Mode,
    /// What CLIENT CACHING has said of the next command.
    caching: Option<bool>,
    keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ranges: BTreeMap<(Vec<u8>, Vec<u8>), Pairs>,
}

impl Copies {
    /// No copies yet.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// What CLIENT CACHING is answered.
    pub fn caching(&mut self, yes: bool) -> bool {
        let fits = if yes { self.mode.opt_in } else { self.mode.opt_out };
        if fits {
            self.caching = Some(yes);
        }
        fits
    }

    /// The next command, or transaction, has been answered.
    pub fn done(&mut self) {
        self.caching = None;
    }

    fn keeps(&self, key: &[u8]) -> bool {
        match &self.mode.prefixes {
            Some(prefixes) => prefixes.iter().any(|prefix| key.starts_with(prefix)),
            None => self.caching.unwrap_or(!self.mode.opt_in),
        }
    }

    /// Keeps what was read, and forgets what the client is not told of.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Read(key, value) => {
                if self.keeps(key) {
                    self.keys.insert(key.clone(), value.clone());
                }
            }
            // Only who tracks by prefixes is told of keys that no command has named.
            Event::Range { bounds, pairs } => {
                let Some(prefixes) = &self.mode.prefixes else { return };
                let kept = pairs.iter().filter(|(key, _)| self.keeps(key));
                let kept: Vec<_> =
                    kept.map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
                let inside = |prefix: &Vec<u8>| {
                    let end = headwater_base::prefix_end(prefix);
                    bounds.0 >= *prefix
                        && (end.is_empty() || (!bounds.1.is_empty() && bounds.1 <= end))
                };
                if prefixes.iter().any(inside) {
                    self.ranges.insert(bounds.clone(), pairs.clone());
                }
                self.keys.extend(kept);
            }
            Event::Wrote(key) => {
                if self.mode.no_loop {
                    self.forget(key);
                }
            }
        }
    }

    fn forget(&mut self, key: &[u8]) {
        self.keys.remove(key);
        self.ranges.retain(|(first, last), _| !within(key, first, last));
    }

    /// Takes a push of the kind `invalidate`.
    ///
    /// # Errors
    /// It is not what such a push is.
    pub fn told(&mut self, push: &[Frame]) -> Result<(), String> {
        match push {
            [_, Frame::Null] => {
                self.keys.clear();
                self.ranges.clear();
            }
            [_, Frame::Array(keys)] => {
                for key in keys {
                    let Frame::Bulk(key) = key else { return Err(format!("{key:?} is no key")) };
                    self.forget(key);
                }
            }
            _ => return Err(format!("{push:?} is no message about copies")),
        }
        Ok(())
    }

    /// A copy that is not what a read would give now.
    #[must_use]
    pub fn stale(&self, seen: &Pairs) -> Option<String> {
        let text = |value: Option<&Vec<u8>>| value.map_or("absent".into(), |value| escape(value));
        for (key, copy) in &self.keys {
            let now = seen.get(key);
            if now != copy.as_ref() {
                let (copy, now) = (text(copy.as_ref()), text(now));
                return Some(format!("the copy of {} stays {copy}, it is {now}", escape(key)));
            }
        }
        for ((first, last), copy) in &self.ranges {
            let inside = seen.iter().filter(|(key, _)| within(key, first, last));
            let now: Pairs = inside.map(|(key, value)| (key.clone(), value.clone())).collect();
            if now != *copy {
                let keys = |pairs: &Pairs| {
                    let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| {
                        format!("{}={}", escape(key), escape(value))
                    };
                    pairs.iter().map(pair).collect::<Vec<_>>().join(" ")
                };
                let (first, last) = (escape(first), escape(last));
                return Some(format!(
                    "the copy of [{first}, {last}) stays {}, it is {}",
                    keys(copy),
                    keys(&now)
                ));
            }
        }
        None
    }
}
