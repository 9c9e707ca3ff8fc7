//! The classic commands about items.

use super::{ItemUse, answer_unless, encoder, take_back};
use crate::resp::{Flow, ShardService, Turn};
use headwater_base::Millis;
use headwater_command::items::{Count, Counted, Fetch, Remove, Seen, Store, StoreMode, Written};
use headwater_command::{Deadline, GetExpiry, SetExpiry};
use headwater_engine::{Stop, WARM_MAX};
use headwater_protocol::memcached::{Encoder, KEY_BYTES_MAX, Request, Words};

/// Why a multi-get went no further.
enum Unread {
    /// A key is too long.
    BadKey,
    /// The answer has more bytes than it may.
    TooMuch,
    /// It must wait, or has failed.
    Stopped(Stop),
}

impl ShardService {
    /// `get` and its kin: all values or none. All keys are asked for even if the first must wait, so
    /// that their loads run side by side.
    #[inline]
    pub(super) fn memcached_get(
        &mut self,
        keys: Words<'_>,
        versions: bool,
        expiry: GetExpiry,
        work: &mut Turn<'_>,
    ) -> Flow {
        let before = work.out.len();
        let most = self.bound.answer_bytes_max(work);
        let mut read = self.read_all(keys, versions, expiry, most, work);
        if let Err(Unread::TooMuch) = read {
            take_back(work, before);
            if let Some(most) = self.make_room_to_answer(work) {
                read = self.read_all(keys, versions, expiry, most, work);
            }
        }
        match read {
            Ok(()) => encoder(work).end(),
            Err(Unread::Stopped(stop)) => return self.memcached_stopped(stop, false, before, work),
            Err(why) => {
                take_back(work, before);
                let bad_key = matches!(why, Unread::BadKey);
                let line = if bad_key {
                    "CLIENT_ERROR bad command line format"
                } else {
                    "SERVER_ERROR out of memory writing get response"
                };
                self.figures.memcached_refused(line, work);
            }
        }
        Flow::Next
    }

    #[inline]
    fn read_all(
        &mut self,
        mut keys: Words<'_>,
        versions: bool,
        expiry: GetExpiry,
        most: usize,
        work: &mut Turn<'_>,
    ) -> Result<(), Unread> {
        let plain = !versions && expiry == GetExpiry::Keep;
        let mut waits = None;
        let mut some: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
        loop {
            let mut count = 0;
            for key in keys.by_ref().take(WARM_MAX) {
                some[count] = key;
                count += 1;
            }
            if count == 0 {
                return waits.map_or(Ok(()), |ticket| Err(Unread::Stopped(Stop::Wait(ticket))));
            }
            if count > 1 {
                self.node.engine().warm(&some[..count]);
            }
            for key in &some[..count] {
                if key.len() > KEY_BYTES_MAX {
                    return Err(Unread::BadKey);
                }
                let mut out = Encoder::new(work.out, work.held, most);
                let read = if plain {
                    self.read_one(key, &mut out)
                } else {
                    self.fetch_one(key, versions, expiry, &mut out)
                };
                if out.overflowed() {
                    return Err(Unread::TooMuch);
                }
                match read {
                    Ok(()) => {}
                    Err(Stop::Wait(ticket)) => waits = waits.or(Some(ticket)),
                    Err(failed) => return Err(Unread::Stopped(failed)),
                }
            }
        }
    }

    #[inline]
    fn read_one(&mut self, key: &[u8], out: &mut Encoder<'_>) -> Result<(), Stop> {
        let counts = &mut self.memcached.counts;
        let details = &mut self.memcached.details;
        self.node.item(key, |found| {
            details.count(key, ItemUse::Read { hit: found.is_some() });
            match found {
                Some((value, flags)) => {
                    counts.get_hits += 1;
                    out.value(key, flags, None, value);
                }
                None => counts.get_misses += 1,
            }
        })
    }

    fn fetch_one(
        &mut self,
        key: &[u8],
        versions: bool,
        expiry: GetExpiry,
        out: &mut Encoder<'_>,
    ) -> Result<(), Stop> {
        let fetch = Fetch { key, expiry, version: versions, ..Fetch::default() };
        let counts = &mut self.memcached.counts;
        let (hits, misses) = match expiry {
            GetExpiry::Keep => (&mut counts.get_hits, &mut counts.get_misses),
            // As in memcached, it is a touch.
            _ => (&mut counts.gat_hits, &mut counts.gat_misses),
        };
        let details = &mut self.memcached.details;
        self.node.fetch(&fetch, |found| {
            details.count(key, ItemUse::Read { hit: found.is_some() });
            match found {
                Some(item) => {
                    *hits += 1;
                    out.value(key, item.flags, versions.then_some(item.version), &item.value);
                }
                None => *misses += 1,
            }
        })
    }

    /// `set` and its kin.
    #[inline]
    pub(super) fn memcached_store(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        let Request::Store { key, value, flags, expiry, mode, seen, noreply } = *request else {
            return Flow::Next;
        };
        self.memcached.counts.sets += 1;
        let Some(value) = value else {
            answer_unless(noreply, "CLIENT_ERROR bad data chunk", work);
            return Flow::Next;
        };
        if !self.has_room_for_item(key, value.len()) {
            let replaces = mode == StoreMode::Set && seen.is_none();
            return self.memcached_no_room(key, replaces, noreply, work);
        }
        let store = Store {
            key,
            value,
            flags,
            expiry,
            mode,
            seen: seen.map(|version| Seen { version, or_newer: false }),
            vivify: None,
            give: None,
            version: false,
        };
        match self.node.store(&store) {
            Ok(written) => {
                self.memcached.counts.stored(seen.is_some(), written);
                self.memcached.details.count(key, ItemUse::Write);
                let line = match written {
                    Written::Done(_) => "STORED",
                    Written::Changed => "EXISTS",
                    Written::Missing => "NOT_FOUND",
                    Written::Refused => "NOT_STORED",
                };
                answer_unless(noreply, line, work);
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, noreply, work),
        }
    }

    /// There is no memory for a value: one that was to be replaced is not what the client wants
    /// any more.
    #[cold]
    pub(super) fn memcached_no_room(
        &mut self,
        key: &[u8],
        replaces: bool,
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        self.memcached.counts.no_memory += 1;
        self.figures.stats.errors += 1;
        self.forget_replaced(key, replaces);
        answer_unless(noreply, "SERVER_ERROR out of memory storing object", work);
        Flow::Next
    }

    /// A value is too long, and its data will be skipped.
    pub(super) fn memcached_too_large(
        &mut self,
        key: &[u8],
        replaces: bool,
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        self.memcached.counts.too_large += 1;
        self.figures.stats.errors += 1;
        self.forget_replaced(key, replaces);
        answer_unless(noreply, "SERVER_ERROR object too large for cache", work);
        Flow::Next
    }

    /// Removes what a value was to replace that cannot be stored, if that is possible at once.
    fn forget_replaced(&mut self, key: &[u8], replaces: bool) {
        if replaces {
            let remove = Remove { key, seen: None, stale: None, value_only: false, give: None };
            let _as_far_as_it_goes = self.node.remove(&remove);
        }
    }

    pub(super) fn memcached_count(
        &mut self,
        key: &[u8],
        by: u64,
        down: bool,
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        if !self.has_room_for_item(key, 0) {
            return self.memcached_no_room(key, false, noreply, work);
        }
        let count = Count {
            key,
            by,
            down,
            seen: None,
            expiry: GetExpiry::Keep,
            vivify: None,
            give: None,
            version: false,
        };
        match self.node.count(&count) {
            Ok(counted) => {
                self.memcached.counts.counted(down, &counted);
                match counted {
                    Counted::Done { number, .. } if !noreply => encoder(work).number(number),
                    Counted::NotNumber => answer_unless(noreply, NOT_NUMBER, work),
                    Counted::Missing | Counted::Changed => {
                        answer_unless(noreply, "NOT_FOUND", work);
                    }
                    Counted::Done { .. } => {}
                }
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, noreply, work),
        }
    }

    pub(super) fn memcached_delete(
        &mut self,
        key: &[u8],
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        let remove = Remove { key, seen: None, stale: None, value_only: false, give: None };
        match self.node.remove(&remove) {
            Ok(written) => {
                let done = matches!(written, Written::Done(_));
                self.memcached.counts.deleted(done);
                self.memcached.details.count(key, ItemUse::Remove);
                answer_unless(noreply, if done { "DELETED" } else { "NOT_FOUND" }, work);
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, noreply, work),
        }
    }

    pub(super) fn memcached_touch(
        &mut self,
        key: &[u8],
        expiry: GetExpiry,
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        match self.node.touch(key, expiry) {
            Ok(there) => {
                let counts = &mut self.memcached.counts;
                let counter = if there { &mut counts.touch_hits } else { &mut counts.touch_misses };
                *counter += 1;
                answer_unless(noreply, if there { "TOUCHED" } else { "NOT_FOUND" }, work);
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, noreply, work),
        }
    }

    /// Removes everything, now or later; what was planned before is forgotten.
    pub(super) fn memcached_flush_all(&mut self, when: SetExpiry) {
        self.memcached.counts.flushes += 1;
        let now = self.time.wall;
        let at = match when {
            SetExpiry::Deadline(Deadline::After(millis)) => {
                Millis(now.0.saturating_add_signed(millis))
            }
            SetExpiry::Deadline(Deadline::At(millis)) => Millis(millis.max(0) as u64),
            SetExpiry::Never | SetExpiry::Keep => now,
        };
        self.memcached.flush_at = Some(at);
        self.flush_in_time();
    }

    /// Removes everything if the moment for it has come.
    #[inline]
    pub(crate) fn flush_in_time(&mut self) {
        if self.memcached.flush_at.is_some_and(|at| at <= self.time.wall) {
            self.memcached.flush_at = None;
            self.node.engine_mut().flush();
        }
    }
}

/// What counting in something else answers.
pub(super) const NOT_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
