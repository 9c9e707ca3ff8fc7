//! Values that go to a key of another shard: what RENAME, COPY, MSETNX and LCS do at each of two homes.
//!
//! A shard that coordinates asks for these steps one after the other, while the keys are locked. Each step leaves
//! everything as it was where it fails, so that the whole does.

use crate::node::{Node, check_lengths, check_writable, is_there};
use crate::{keys, lcs};
use alloc::format;
use alloc::vec::Vec;
use headwater_base::Millis;
use headwater_command::{LcsAnswer, Reply};
use headwater_engine::{EngineError, Stop, WriteKind};

/// A value with what belongs to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    /// Its bytes.
    pub value: Vec<u8>,
    /// When it expires, if it does.
    pub expires: Option<Millis>,
    /// The flags that clients keep beside it.
    pub flags: u32,
}

impl Node {
    /// What `key` holds, to be put elsewhere; `leaves`: it is to be removed here then.
    ///
    /// # Errors
    /// Data must be loaded first, or cannot be; the key holds a stream; or it leaves, and clients may not write it.
    pub fn carried(&mut self, key: &[u8], leaves: bool) -> Result<Option<Carried>, Stop> {
        self.with_room(|node| {
            if node.engine.is_stream(key) {
                let shown = key.escape_ascii();
                let text = format!(
                    "'{shown}' holds a stream, which cannot go to a key of another shard (plain keys with one {{tag}} \
                     live together)"
                );
                return Err(EngineError::Refused(text).into());
            }
            let mut value = Vec::new();
            let Some(expires) = keys::fetch(&mut node.engine, key, &mut value)? else {
                return Ok(None);
            };
            if leaves {
                check_writable(&node.engine, key)?;
            }
            let flags = node.engine.mark(key).flags;
            Ok(Some(Carried { value, expires, flags }))
        })
    }

    /// Gives `key` what another key had, in place of what it holds; whether it did: not `if_absent`, where it
    /// holds something. `kind` names its keyspace events.
    ///
    /// # Errors
    /// Data must be loaded first, or cannot be; clients may not write the key; there is no room. Nothing has changed.
    pub fn put_carried(
        &mut self,
        key: &[u8],
        carried: &Carried,
        (if_absent, kind): (bool, WriteKind),
    ) -> Result<bool, Stop> {
        let done = self.with_room(|node| {
            if if_absent && is_there(&mut node.engine, key)? {
                return Ok(false);
            }
            let Carried { value, expires, flags } = carried;
            node.engine.begin_writing(kind);
            let done = keys::store(&mut node.engine, key, (value, *flags), *expires);
            node.engine.begin_writing(WriteKind::Set);
            done.map(|()| true)
        });
        self.record_writes();
        done
    }

    /// Whether `key` holds something; where it does not, a value of `bytes` could be written.
    ///
    /// # Errors
    /// Data must be loaded first, or cannot be; or the key could not be written.
    pub fn is_taken(&mut self, key: &[u8], bytes: usize) -> Result<bool, Stop> {
        self.with_room(|node| {
            if is_there(&mut node.engine, key)? {
                return Ok(true);
            }
            check_lengths(&node.engine, key, bytes)?;
            check_writable(&node.engine, key)?;
            Ok(false)
        })
    }

    /// Whether a value of `bytes` may be written to `key`, as far as its lengths and its table tell; `None`: it is only removed.
    ///
    /// # Errors
    /// It may not.
    pub fn check_write(&self, key: &[u8], bytes: Option<usize>) -> Result<(), Stop> {
        if let Some(bytes) = bytes {
            check_lengths(&self.engine, key, bytes)?;
        }
        check_writable(&self.engine, key)
    }

    /// The longest common subsequence of two values that lie elsewhere.
    pub fn lcs_of(&self, left: &[u8], right: &[u8], answer: LcsAnswer, reply: &mut impl Reply) {
        lcs::of(&self.engine, left, right, answer, reply);
    }
}
