//! Fan-outs: from a changed key, along the keys of the `check` sources, to the outputs.
//!
//! With one shard an output is put as it is found, unless data may have to be loaded: then it is put when the whole slice is known, so that a slice that waits
//! has changed nothing. With several, the outputs of a slice are gathered, since
//! they live on many; and check keys of other homes are asked of these homes, so that a slice may begin anew
//! until all of them are here ([`FoundKeys`]).

use crate::keys::know_all;
use alloc::vec::Vec;
use headwater_base::{KeyRange, Shard};
use headwater_engine::{Engine, EngineError, RangeOptions, Stop, ValueRef};
use headwater_flows::{FoundKeys, Output, RemoteRead};
use headwater_pattern::{Bindings, Pattern, containing_range};

/// Keys that one slice of a task looks at.
pub(crate) const SLICE_KEYS: u64 = 256;
/// What an output takes besides its key and its value, roughly.
const OUTPUT_BYTES: usize = 128;

/// A value as outputs get it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Put {
    /// They are removed.
    Nothing,
    /// It is stored once for all of them.
    Shared(ValueRef),
}

impl Put {
    pub(crate) fn of(engine: &mut Engine, value: Option<&[u8]>) -> Self {
        value.map_or(Self::Nothing, |value| Self::Shared(engine.share(value)))
    }

    /// Puts an output, or removes one that memory knows.
    pub(crate) fn put(self, engine: &mut Engine, key: &[u8]) -> Result<(), Stop> {
        match self {
            Self::Nothing => Ok(engine.remove_known(key).map(drop)?),
            Self::Shared(value) => {
                if !engine.make_room_for(key.len() + OUTPUT_BYTES, 0) {
                    return Err(EngineError::OutOfMemory.into());
                }
                Ok(engine.set_shared(key, value)?)
            }
        }
    }

    /// To be called at the end.
    pub(crate) fn release(self, engine: &mut Engine) {
        if let Self::Shared(value) = self {
            engine.release(value);
        }
    }
}

/// Waits until outputs that are to be removed are known, so that no removal waits behind another one.
pub(crate) fn know_outputs<'o>(
    engine: &mut Engine,
    outputs: impl Iterator<Item = &'o Output>,
    value: Option<&[u8]>,
) -> Result<(), Stop> {
    match value {
        Some(_) => Ok(()),
        None => know_all(engine, outputs.map(|output| output.key.as_slice())),
    }
}

/// Puts or removes all outputs, or waits before the first one.
pub(crate) fn put_all<'o>(
    engine: &mut Engine,
    outputs: impl Iterator<Item = &'o Output> + Clone,
    value: Option<&[u8]>,
) -> Result<(), Stop> {
    know_outputs(engine, outputs.clone(), value)?;
    let put = Put::of(engine, value);
    let mut keys = outputs.map(|output| output.key.as_slice());
    let done = keys.try_for_each(|key| put.put(engine, key));
    put.release(engine);
    done
}

/// A fan-out under way.
pub(crate) struct Fan<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) output: &'a Pattern,
    pub(crate) put: Put,
    /// The outputs that were found, where they are not put at once.
    pub(crate) gathered: Option<Vec<Output>>,
    /// What other shards have answered.
    pub(crate) found: &'a FoundKeys,
    /// What they are to be asked: what is gathered is not all then.
    pub(crate) missing: Vec<RemoteRead>,
}

impl Fan<'_> {
    /// Does the outputs of the next keys of the first of `checks`; gives the mark to go on from.
    pub(crate) fn slice(
        &mut self,
        checks: &[&Pattern],
        bindings: &Bindings<'_>,
        mark: &[u8],
    ) -> Result<Option<Vec<u8>>, Stop> {
        let Some((check, rest)) = checks.split_first() else {
            self.put(&[], bindings)?;
            return Ok(None);
        };
        let range = containing_range(self.output, &KeyRange::all(), check, bindings);
        let Some(mut range) = range else { return Ok(None) };
        if !mark.is_empty() {
            range.first = [mark, &[0]].concat();
        }
        let keys = self.keys(&range, Some(SLICE_KEYS))?;
        for key in &keys {
            let mut bindings = *bindings;
            if check.bind(key, &mut bindings) {
                self.all(key, rest, &bindings)?;
            }
        }
        let more = keys.len() as u64 == SLICE_KEYS;
        Ok(keys.into_iter().next_back().filter(|_| more))
    }

    /// Does all outputs of `checks`, for a key of the first of all.
    fn all(
        &mut self,
        first: &[u8],
        checks: &[&Pattern],
        bindings: &Bindings<'_>,
    ) -> Result<(), Stop> {
        let Some((check, rest)) = checks.split_first() else { return self.put(first, bindings) };
        let range = containing_range(self.output, &KeyRange::all(), check, bindings);
        let Some(range) = range else { return Ok(()) };
        for key in self.keys(&range, None)? {
            let mut bindings = *bindings;
            if check.bind(&key, &mut bindings) {
                self.all(first, rest, &bindings)?;
            }
        }
        Ok(())
    }

    /// The first keys of a range, of all shards.
    fn keys(&mut self, range: &KeyRange, limit: Option<u64>) -> Result<Vec<Vec<u8>>, Stop> {
        let (me, mut keys) = (self.engine.shard(), Vec::new());
        let (homes, version) = match self.engine.placement() {
            None => (alloc::vec![me], 0),
            Some(placement) => {
                let all = || (0..placement.shards()).map(Shard).collect();
                let home = placement.home_of_range(range);
                (home.map_or_else(all, |home| alloc::vec![home]), placement.version())
            }
        };
        for &home in &homes {
            if home == me {
                keys.append(&mut own_keys(self.engine, (&range.first, &range.last), limit)?);
                continue;
            }
            let range = (range.first.clone(), range.last.clone());
            let read = RemoteRead { home, version, range, limit };
            match self.found.get(&read) {
                Some(found) => keys.extend_from_slice(found),
                None => self.missing.push(read),
            }
        }
        if homes.len() > 1 {
            keys.sort_unstable();
            if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) {
                keys.truncate(limit);
            }
        }
        Ok(keys)
    }

    fn put(&mut self, check: &[u8], bindings: &Bindings<'_>) -> Result<(), Stop> {
        let mut key = Vec::new();
        if !self.output.fill(bindings, &mut key) {
            return Ok(());
        }
        match &mut self.gathered {
            Some(gathered) => gathered.push(Output { check: check.to_vec(), key }),
            None => self.put.put(self.engine, &key)?,
        }
        Ok(())
    }
}

/// The first keys of a range that this shard is home of.
pub(crate) fn own_keys(
    engine: &mut Engine,
    (first, last): (&[u8], &[u8]),
    limit: Option<u64>,
) -> Result<Vec<Vec<u8>>, Stop> {
    let mut keys = Vec::new();
    let options = RangeOptions { reverse: false, limit };
    engine.range(first, last, options, &mut |key, _| keys.push(key.to_vec()))?;
    Ok(keys)
}
