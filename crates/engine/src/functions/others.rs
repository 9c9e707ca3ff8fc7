//! Calls that flows make: functions that look at other keys, and change those that were declared.
//!
//! What such a call puts and removes is drafted, as its own value is: the call itself sees it, nobody else does until it
//! has ended well. Then all of it is written within the engine's turn, so that a store behind the engine
//! takes it as one.
//!
//! # Cost
//! The function's own value is copied for the call, since others may be read meanwhile; what is found is copied as well, at most
//! [`FOUND_MAX`] pairs or about [`FOUND_BYTES`] at a time.

use super::draft::{Act, Draft};
use super::{failed, no_host};
use crate::engine::Engine;
use crate::report::{EngineError, Expiry, RangeOptions, Stop};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Bound;
use headwater_base::KeyRange;
use headwater_base::functions::{FunctionLimits, Functions, Refused, World};
use headwater_base::key::end_bound;
use headwater_pattern::Pattern;
use headwater_pool::Value;

/// Most pairs that one look finds.
const FOUND_MAX: usize = 1024;
/// Where so many bytes were found, no further pair is taken.
const FOUND_BYTES: usize = 1 << 20;
/// What a key takes besides its bytes and its value's, roughly.
const KEY_BYTES: usize = 128;

/// One call that a flow makes.
#[derive(Clone, Copy, Debug)]
pub struct FlowCall<'a> {
    /// The function.
    pub function: &'a [u8],
    /// The key whose value it may change; `None`: it is called for the changed key itself, which it may not change.
    pub key: Option<&'a [u8]>,
    /// The key that was changed.
    pub changed: &'a [u8],
    /// The value that it was given, if it was.
    pub value: Option<&'a [u8]>,
    /// What the function is given.
    pub param: &'a [u8],
    /// The slots of the changed key.
    pub slots: &'a [&'a [u8]],
    /// The keys that it may put and remove besides.
    pub writes: &'a [Pattern],
}

/// The other keys, as one call sees them.
pub(crate) struct Others<'a> {
    engine: &'a mut Engine,
    call: &'a FlowCall<'a>,
    /// Keys that are to be put, or removed.
    drafts: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Bytes that may still be written.
    bytes_left: usize,
    found: Vec<(Vec<u8>, Vec<u8>)>,
    at: usize,
    /// Why the call was ended, where the engine has a better word for it.
    stop: Option<Stop>,
}

impl Others<'_> {
    fn stopped(&mut self, stop: impl Into<Stop>) -> Refused {
        self.stop = Some(stop.into());
        Refused::Stopped
    }

    /// Refuses keys of other shards: what a call reads and writes is one step at one of them.
    fn check_home(&mut self, range: &KeyRange) -> Result<(), Refused> {
        if !self.engine.base.spans_homes(range) {
            return Ok(());
        }
        let first = range.first.escape_ascii();
        let text = alloc::format!(
            "functions of flows reach the keys of their shard alone, and what begins with '{first}' \
             lives, or may live, on another one"
        );
        Err(self.stopped(EngineError::Refused(text)))
    }

    /// Refuses to read what joins compute by functions, none of which can be called now.
    fn check_readable(&mut self, first: &[u8], last: &[u8]) -> Result<(), Refused> {
        if !self.engine.views.reads_call_functions() {
            return Ok(());
        }
        let parts = self.engine.store.parts(first, last);
        let joined = parts.iter().any(|(table, ..)| {
            self.engine.views.catalog.role(*table).is_some_and(|role| !role.writers.is_empty())
        });
        if joined {
            let text = "functions of flows read no joins while some join calls a function";
            return Err(self.stopped(EngineError::Refused(String::from(text))));
        }
        Ok(())
    }

    /// Drafts a write.
    fn draft(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Refused> {
        let declared = self.call.writes.iter().any(|pattern| pattern.matches(key));
        if !declared || self.call.key == Some(key) {
            return Err(Refused::NotDeclared);
        }
        self.check_home(&KeyRange::point(key))?;
        let bytes = key.len() + value.map_or(0, <[u8]>::len);
        let left = self.bytes_left.checked_sub(bytes);
        let most = self.engine.calls.limits.write_bytes_max;
        self.bytes_left = left.ok_or(Refused::WritesTooLong(most))?;
        let allowed = self.engine.check_write(key, value.map_or(0, <[u8]>::len));
        allowed.map_err(|error| self.stopped(error))?;
        self.drafts.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        Ok(())
    }
}

impl World for Others<'_> {
    fn slot(&self, number: usize) -> Option<&[u8]> {
        self.call.slots.get(number).copied()
    }

    fn find(&mut self, key: &[u8]) -> Result<Option<usize>, Refused> {
        self.found.clear();
        self.at = 0;
        let value = match self.drafts.get(key) {
            Some(drafted) => drafted.clone(),
            None => {
                self.check_home(&KeyRange::point(key))?;
                self.check_readable(key, &[key, &[0]].concat())?;
                match self.engine.get(key) {
                    Ok(value) => value.map(|value| value.to_vec()),
                    Err(stop) => return Err(self.stopped(stop)),
                }
            }
        };
        let len = value.as_ref().map(Vec::len);
        self.found.extend(value.map(|value| (key.to_vec(), value)));
        Ok(len)
    }

    fn find_range(&mut self, first: &[u8], last: &[u8], most: usize) -> Result<usize, Refused> {
        self.found.clear();
        self.at = 0;
        let most = most.min(FOUND_MAX);
        if most == 0 || (!last.is_empty() && first >= last) {
            return Ok(0);
        }
        self.check_home(&KeyRange::new(first, last))?;
        self.check_readable(first, last)?;
        let upper = end_bound(last);
        let drafts = self.drafts.range::<[u8], _>((Bound::Included(first), upper));
        // Pairs that are drafted are counted by the engine and not taken.
        let options = RangeOptions { reverse: false, limit: Some((most + drafts.count()) as u64) };
        let (mut pairs, mut bytes, mut cut) = (BTreeMap::new(), 0, None);
        let drafted = &self.drafts;
        let read = self.engine.range(first, last, options, &mut |key, value| {
            if bytes >= FOUND_BYTES {
                cut.get_or_insert_with(|| key.to_vec());
            } else if !drafted.contains_key(key) {
                bytes += key.len() + value.len();
                pairs.insert(key.to_vec(), value.to_vec());
            }
        });
        read.map_err(|stop| self.stopped(stop))?;
        let known_to = match &cut {
            Some(cut) => Bound::Excluded(cut.as_slice()),
            None => upper,
        };
        for (key, value) in self.drafts.range::<[u8], _>((Bound::Included(first), known_to)) {
            if let Some(value) = value {
                pairs.insert(key.clone(), value.clone());
            }
        }
        self.found.extend(pairs.into_iter().take(most));
        Ok(self.found.len())
    }

    fn next_found(&mut self) -> bool {
        self.at = (self.at + 1).min(self.found.len());
        self.at < self.found.len()
    }

    fn found(&self) -> Option<(&[u8], &[u8])> {
        self.found.get(self.at).map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        self.draft(key, Some(value))
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), Refused> {
        self.check_home(&KeyRange::point(key))?;
        self.engine.know(key).map_err(|stop| self.stopped(stop))?;
        self.draft(key, None)
    }
}

impl Engine {
    /// Calls a function for a flow, and writes what it has drafted.
    ///
    /// # Errors
    /// What the function came to; or a key cannot be read, or not be written. Nothing was changed then.
    pub fn function_call_for_flow(&mut self, call: &FlowCall<'_>) -> Result<(), Stop> {
        let value = match call.key {
            None => call.value.map(<[u8]>::to_vec),
            Some(key) => {
                self.check_write(key, 0)?;
                self.know(key)?;
                self.get(key)?.map(|value| value.to_vec())
            }
        };
        let mut host = self.calls.host.take().ok_or_else(no_host)?;
        let mut draft = core::mem::take(&mut self.calls.draft);
        let called = self.call_with_others(&mut *host, &mut draft, call, value.as_deref());
        self.calls.host = Some(host);
        let written = called.and_then(|drafts| self.apply_for_flow(call, &draft, drafts));
        self.calls.draft = draft;
        self.trim_functions();
        written
    }

    fn call_with_others(
        &mut self,
        host: &mut dyn Functions,
        draft: &mut Draft,
        call: &FlowCall<'_>,
        value: Option<&[u8]>,
    ) -> Result<BTreeMap<Vec<u8>, Option<Vec<u8>>>, Stop> {
        let (now, value_bytes_max) = (self.now, self.settings.limits.value_bytes_max);
        let FunctionLimits { reply_bytes_max, write_bytes_max, .. } = self.calls.limits;
        draft.begin(value.map(<[u8]>::len));
        let others = Others {
            engine: self,
            call,
            drafts: BTreeMap::new(),
            bytes_left: write_bytes_max,
            found: Vec::new(),
            at: 0,
            stop: None,
        };
        let mut act = Act {
            key: call.key.unwrap_or(call.changed),
            key_seen: Cell::new(false),
            param: call.param,
            now: Some(now),
            stored: value.map(Value::of),
            draft,
            writes: call.key.is_some(),
            reply_bytes_max,
            write_bytes_max,
            value_bytes_max,
            world: Some(others),
        };
        let called = host.call(call.function, &mut act);
        let (drafts, stop) =
            act.world.map(|others| (others.drafts, others.stop)).unwrap_or_default();
        match (called, stop) {
            (Ok(()), _) => Ok(drafts),
            (Err(_), Some(stop)) => Err(stop),
            (Err(error), None) => Err(failed(call.function, error).into()),
        }
    }

    /// Makes true what a flow's call has drafted.
    fn apply_for_flow(
        &mut self,
        call: &FlowCall<'_>,
        draft: &Draft,
        drafts: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ) -> Result<(), Stop> {
        let keys = drafts.keys().map(|key| key.len() + KEY_BYTES).sum();
        let values = drafts.values().flatten().map(Vec::len).sum::<usize>() + draft.needs(true);
        if !self.make_room_for(keys, values) {
            return Err(EngineError::OutOfMemory.into());
        }
        let own = call.key.filter(|_| draft.changed);
        let mut here = None;
        if let Some(key) = own {
            self.know(key)?;
            here = self.find_here(key)?;
        }
        // What went to make room is missed before anything is written.
        for key in drafts.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key) {
            self.know(key)?;
        }
        if let Some(key) = own {
            self.apply(key, here, draft)?;
        }
        for (key, value) in drafts {
            match value {
                Some(value) => self.set(&key, &value, Expiry::Never)?,
                None => drop(self.remove(&key)?),
            }
        }
        Ok(())
    }
}
