//! Lists of keys, put together and given in slices.
//!
//! A list is put together from one key on to the next, as a scan by a client is: what is kept between two slices is where
//! to go on, and the keys that are wanted. A key that is there all the time is in it once; one that comes or goes meanwhile
//! may be in it or not. When all keys were looked at, their number is known, with which an answer begins, and they
//! are given in slices too.
//!
//! The keys of a list take no more bytes than an answer may, or than memory has room for.

use crate::engine::Engine;
use crate::report::{EngineError, Stop, Ticket};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

/// As many keys are looked at in the time in which one source row is visited, or more.
const LOOKED_AT_A_ROW: usize = 4;
/// So many keys are looked at on end at most.
const PIECE: usize = 16_384;
/// A slice of what is given ends when its keys have so many bytes.
const GIVEN_BYTES: usize = 256 << 10;

/// A list of keys.
#[derive(Debug, Default)]
struct Listing {
    /// All keys before it were looked at. `None`: none were.
    next: Option<Vec<u8>>,
    /// All keys were looked at.
    complete: bool,
    text: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
    /// How many keys were given.
    given: usize,
}

impl Listing {
    fn bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[at]]
    }
}

/// The lists of operations that go on later.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    kept: BTreeMap<Ticket, Listing>,
    /// That of the operation under way.
    resumed: Option<Listing>,
}

impl Listings {
    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.values().map(Listing::bytes).sum()
    }

    /// The operation of this ticket is run again next.
    #[inline]
    pub(crate) fn resume(&mut self, ticket: Ticket) {
        if !self.kept.is_empty() {
            self.resumed = self.kept.remove(&ticket);
        }
    }

    /// The operation under way has ended, for now or for good.
    #[inline]
    pub(crate) fn end_operation(&mut self) {
        if self.resumed.is_some() {
            self.resumed = None;
        }
    }

    /// Nobody waits for this ticket any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.kept.remove(&ticket);
    }
}

/// A list of keys may take this share of the memory limit, however full memory is: the reserve has room for it.
const LISTED_SHARE: usize = 64;

impl Engine {
    /// How many keys the operation under way may look at before others go first.
    #[must_use]
    pub fn keys_at_once(&self) -> usize {
        self.reads.slices.rows_max().saturating_mul(LOOKED_AT_A_ROW)
    }

    /// Lists the stored or materialized keys that are `wanted`, `most` of them at most: how many there are. [`Engine::give_listed`] gives them then. Where
    /// that was called for the list before, there is nothing: it goes on with the list.
    ///
    /// # Errors
    /// [`Stop::Wait`] where it is done in slices and others go first: it is to be run again under its ticket
    /// ([`Engine::resume`]). The keys take more bytes than they may.
    pub fn list_keys(
        &mut self,
        most: usize,
        wanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Option<usize>, Stop> {
        let mut listing = self.reads.listings.resumed.take().unwrap_or_default();
        if listing.complete {
            self.reads.listings.resumed = Some(listing);
            return Ok(None);
        }
        if listing.next.is_none() {
            self.settle_dead()?;
        }
        let mut next = listing.next.take().unwrap_or_default();
        // As a whole it is listed piece by piece as well, to end in time.
        loop {
            let Listing { text, ends, .. } = &mut listing;
            next = self.scan(&next, self.keys_at_once().min(PIECE), &mut |key| {
                if ends.len() < most && wanted(key) {
                    text.extend_from_slice(key);
                    ends.push(text.len());
                }
            });
            self.check_listed(listing.bytes())?;
            if next.is_empty() || listing.ends.len() >= most {
                listing.complete = true;
                let count = listing.ends.len();
                self.reads.listings.resumed = Some(listing);
                return Ok(Some(count));
            }
            if self.has_to_end_now() {
                return Err(self.stop());
            }
            if self.reads.slices.is_active() {
                break;
            }
        }
        listing.next = Some(next);
        self.reads.slices.end_for_now();
        let stop = self.stop();
        if let Stop::Wait(ticket) = stop {
            self.reads.listings.kept.insert(ticket, listing);
        }
        Err(stop)
    }

    fn check_listed(&mut self, bytes: usize) -> Result<(), Stop> {
        let most = self.reads.long_reads.bytes_max();
        if most > 0 && bytes > most {
            let text = format!(
                "the keys take more than {most} bytes (output-bytes-max): ask for them in parts, by SCAN"
            );
            return Err(EngineError::Refused(text).into());
        }
        if bytes > self.allowance().max(self.memory.part_of_limit(LISTED_SHARE)) {
            self.memory.gave_up(bytes);
            return Err(self.stop());
        }
        Ok(())
    }

    /// Gives the next slice of the keys that were listed. If there are more: the ticket under which to list them again in the
    /// next turn, when they were taken ([`Engine::resume`]).
    pub fn give_listed(&mut self, each: &mut dyn FnMut(&[u8])) -> Option<Ticket> {
        let mut listing = self.reads.listings.resumed.take()?;
        // What another shard puts together with others' keys it takes as a whole.
        let most =
            if self.base.placed.is_some() { usize::MAX } else { self.reads.slices.rows_max() };
        let start = listing.given;
        let mut bytes = 0;
        while listing.given < listing.ends.len() {
            if listing.given - start == most || (most < usize::MAX && bytes >= GIVEN_BYTES) {
                let ticket = self.next_ticket();
                self.reads.listings.kept.insert(ticket, listing);
                return Some(ticket);
            }
            let key = listing.key(listing.given);
            bytes += key.len();
            each(key);
            listing.given += 1;
        }
        None
    }
}
