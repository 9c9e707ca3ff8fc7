//! What may be gone for want of memory, and what a crash leaves.
//!
//! Which base keys a policy has chosen is not for the oracle to foresee: it learns of it where one is missed. What is
//! missed once is gone for it too, so that a value that comes back is wrong, and so is a miss of anything that
//! must not go.

use super::{Run, failed, within};
use crate::history::Op;
use headwater_base::table_of;

impl Run<'_> {
    /// Whether a base key may be gone without anybody having removed it.
    pub(super) fn may_lose(&mut self, key: &[u8]) -> bool {
        let Some((_, at)) = self.oracle.base.get(key) else { return false };
        let is_read = || {
            let sources = self.oracle.joins.iter().flat_map(|installed| &installed.join.sources);
            let mut tables = sources.map(|(_, source)| source.table.as_bytes());
            tables.any(|table| Some(table) == table_of(key))
        };
        self.subject.may_lose(key, at.is_some()) && !is_read()
    }

    /// A base key that is missed is gone, if it may be; whether it is.
    pub(super) fn is_lost(&mut self, key: &[u8]) -> Result<bool, String> {
        Ok(self.may_lose(key) && self.is_missing(key)?)
    }

    /// Whether a base key is not there. Then it is gone for the oracle, too.
    fn is_missing(&mut self, key: &[u8]) -> Result<bool, String> {
        let is_there = if self.is_stream(key) {
            failed(self.subject.stream_report(key))?.is_some()
        } else {
            failed(self.subject.get(key))?.is_some()
        };
        if !is_there {
            self.lose(key);
        }
        Ok(!is_there)
    }

    /// The base keys that may be gone.
    pub(super) fn losable(&mut self) -> Vec<Vec<u8>> {
        let keys: Vec<Vec<u8>> = self.oracle.base.keys().cloned().collect();
        keys.into_iter().filter(|key| self.may_lose(key)).collect()
    }

    /// Of keys that might go until now, finds out what is gone. (Looking for it, others may go.)
    pub(super) fn look_for_missing(&mut self, keys: &[Vec<u8>]) -> Result<(), String> {
        keys.iter().try_for_each(|key| {
            let is_base = self.oracle.base.contains_key(key) && self.oracle.owners(key).is_empty();
            if is_base { self.is_missing(key).map(drop) } else { Ok(()) }
        })
    }

    /// A base key has gone for want of memory.
    pub(super) fn lose(&mut self, key: &[u8]) {
        if self.is_stream(key) {
            self.lose_stream(key);
        }
        self.oracle.base.remove(key);
        if let Some(scan) = &mut self.scan {
            scan.stayed.remove(key);
        }
        self.lost += 1;
        self.changed();
    }

    /// What is written may have gone before, and is new then for a scan that is under way.
    pub(super) fn may_come_back(&mut self, op: &Op) {
        if self.scan.is_none() || !self.subject.may_lose_bytes() {
            return;
        }
        let Some(scan) = &mut self.scan else { return };
        match op {
            Op::Set { key, .. }
            | Op::Append { key, .. }
            | Op::Incr { key, .. }
            | Op::StreamAppend { key, .. }
            | Op::Copy { to: key, .. }
            | Op::Rename { to: key, .. } => _ = scan.stayed.remove(key),
            Op::SetAll { pairs } => pairs.iter().for_each(|(key, _)| _ = scan.stayed.remove(key)),
            _ => {}
        }
    }

    /// Finds out what is gone of the base keys of `[first, last)`, but for those `given`.
    pub(super) fn look_for_losses(
        &mut self,
        first: &[u8],
        last: &[u8],
        given: &dyn Fn(&[u8]) -> bool,
    ) -> Result<(), String> {
        let keys = self.oracle.base.keys().filter(|key| within(key, first, last) && !given(key));
        let keys: Vec<Vec<u8>> = keys.cloned().collect();
        keys.iter().try_for_each(|key| self.is_lost(key).map(drop))
    }

    /// What concerns memory and the process rather than data.
    pub(super) fn step_outside(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Bound { bytes, policy } => {
                // What one policy let go another one would keep.
                let might_go = self.losable();
                self.subject.bound(*bytes, policy);
                self.look_for_missing(&might_go)?;
            }
            Op::Spill { bytes } => self.subject.spill(*bytes),
            Op::Crash if self.subject.crash() => {
                if let Some((before, streams)) = self.before.take() {
                    let now = self.oracle.now;
                    (self.oracle, self.streams) = (before, streams);
                    self.oracle.advance(now);
                }
                self.forget_streams();
                self.watches.clear();
                // Nobody waits any more for those that had begun: they are whole all the same.
                self.removing.clear();
                (self.scan, self.copies) = (None, crate::copies::Copies::default());
                self.changed();
                self.join_names()?;
            }
            _ => {}
        }
        Ok(())
    }
}
