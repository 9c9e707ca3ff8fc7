//! Commands that read and write, or write several keys: they do all of what they are for, or nothing.

use super::{KEY_BYTES_MAX, Run, same};
use crate::equipped::STREAMS;
use headwater_base::table_of;
use headwater_engine::{EngineError, Stop};

/// Why a command was refused, if it was.
fn refusal<T>(given: &Result<T, Stop>) -> Option<EngineError> {
    match given {
        Err(Stop::Failed(error)) => Some(error.clone()),
        _ => None,
    }
}

fn ran_out<T>(given: &Result<T, Stop>) -> bool {
    match given {
        Err(Stop::Failed(EngineError::OutOfMemory)) => true,
        // All of a stream that is copied must be in memory at once.
        Err(Stop::Failed(EngineError::Refused(why))) => why.contains("are on disk alone"),
        _ => false,
    }
}

/// The number that a value is the text of.
fn number(value: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(value).ok()?.parse().ok()?;
    // There is one way to write a number.
    (number.to_string().as_bytes() == value).then_some(number)
}

impl Run<'_> {
    fn is_key(&self, key: &[u8]) -> bool {
        !key.is_empty() && key.len() <= KEY_BYTES_MAX
    }

    fn is_base(&self, key: &[u8]) -> bool {
        self.is_key(key) && self.oracle.owners(key).is_empty()
    }

    pub(super) fn incr(&mut self, key: &[u8], by: i64) -> Result<(), String> {
        if !self.is_base(key) {
            return Ok(());
        }
        let given = self.subject.incr(key, by);
        if !(ran_out(&given) && self.subject.may_run_out()) {
            if self.is_stream(key) && refusal(&given) == Some(EngineError::WrongType) {
                return Ok(());
            }
            if given == Ok(Some(by)) && self.may_lose(key) {
                self.lose(key);
            }
            let old = self.oracle.base.get(key).map_or(Some(0), |(value, _)| number(value));
            let new = old.and_then(|old| old.checked_add(by));
            same(&given, &Ok(new))?;
            if let Some(new) = new {
                let (value, _) = self.oracle.base.entry(key.to_vec()).or_default();
                *value = new.to_string().into_bytes();
            }
        }
        self.changed();
        Ok(())
    }

    /// Copies a key's value, or renames the key.
    pub(super) fn copy(
        &mut self,
        from: &[u8],
        to: &[u8],
        replace: bool,
        renames: bool,
    ) -> Result<(), String> {
        let derived = !self.is_base(from) || !self.is_base(to);
        if !self.is_key(from) || !self.is_key(to) || derived && self.tells_moments() {
            // Whether a derived key is there, or with what value, cannot be told.
            return Ok(());
        }
        if self.is_stream(from) && (from == to && !renames || table_of(to) != Some(STREAMS)) {
            // No client can ask for the one; what else may hold a stream is not for the oracle to tell.
            return Ok(());
        }
        let seen = self.view();
        let mut value = seen.seen.get(from).cloned();
        let given = if renames {
            self.subject.rename(from, to)
        } else {
            self.subject.copy(from, to, replace)
        };
        if ran_out(&given) && self.subject.may_run_out() {
            self.changed();
            return Ok(());
        }
        let mut is_in_the_way = !renames && !replace && seen.seen.contains_key(to);
        if given == Ok(true) && is_in_the_way && self.may_lose(to) {
            self.lose(to);
            is_in_the_way = false;
        }
        if given == Ok(false) && !is_in_the_way && self.is_lost(from)? {
            value = None;
        }
        match value {
            None => same(&given, &Ok(false))?,
            Some(_) if is_in_the_way => same(&given, &Ok(false))?,
            Some(_) if renames && !self.oracle.owners(from).is_empty() => {
                self.refused(from, refusal(&given))?;
            }
            Some(_) if renames && from == to => same(&given, &Ok(true))?,
            Some(value) => {
                if !self.refused(to, refusal(&given))? {
                    same(&given, &Ok(true))?;
                    let at = self.oracle.base.get(from).and_then(|(_, at)| *at);
                    let is_stream = self.is_stream(from);
                    self.oracle.base.insert(to.to_vec(), (value, at));
                    if is_stream {
                        self.stream_copied(from, to)?;
                    }
                    if renames {
                        self.oracle.base.remove(from);
                    }
                }
            }
        }
        self.changed();
        Ok(())
    }

    pub(super) fn set_all(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), String> {
        let given = self.subject.set_all(pairs);
        if !(ran_out(&given) && self.subject.may_run_out()) {
            let bad = pairs.iter().find(|(key, _)| !self.is_base(key));
            match bad {
                Some((key, _)) => _ = self.refused(key, refusal(&given))?,
                None => same(&given, &Ok(()))?,
            }
            for (key, value) in pairs.iter().filter(|_| bad.is_none()) {
                self.oracle.base.insert(key.clone(), (value.clone(), None));
            }
        }
        self.changed();
        Ok(())
    }

    pub(super) fn remove_all(&mut self, keys: &[Vec<u8>]) -> Result<(), String> {
        if !keys.iter().all(|key| self.is_key(key)) {
            return Ok(());
        }
        let given = self.subject.remove_all(keys);
        match keys.iter().find(|key| !self.is_base(key)) {
            Some(key) => _ = self.refused(key, refusal(&given))?,
            None => {
                let gone = keys.iter().filter(|key| self.oracle.base.remove(*key).is_some());
                let removed = gone.count() as u64;
                match given {
                    Ok(fewer) if fewer < removed && self.subject.may_lose_bytes() => {}
                    given => same(&given, &Ok(removed))?,
                }
            }
        }
        self.changed();
        Ok(())
    }
}
