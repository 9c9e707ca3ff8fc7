//! The classic commands about items.

use super::{ItemUse, answer_unless, encoder, take_back};
use crate::resp::{Flow, Form, ShardService, Turn};
use headwater_base::Millis;
use headwater_command::items::{Count, Counted, Fetch, Remove, Seen, Store, StoreMode, Written};
use headwater_command::{Deadline, GetExpiry, Reply, SetExpiry};
use headwater_engine::{EngineError, Stop, Value, WARM_MAX};
use headwater_protocol::memcached::{Encoder, KEY_BYTES_MAX, Request, Words};
use headwater_router::AnswerWriter;
use headwater_router::items::write_value;
use std::borrow::Cow;

/// Why a multi-get went no further.
enum Unread {
    /// A key is too long.
    BadKey,
    /// The answer has more bytes than it may.
    TooMuch,
    /// It must wait, or has failed.
    Stopped(Stop),
}

impl Unread {
    /// What the client is told.
    fn line(&self) -> &'static str {
        match self {
            Self::BadKey => "CLIENT_ERROR bad command line format",
            Self::TooMuch | Self::Stopped(_) => "SERVER_ERROR out of memory writing get response",
        }
    }
}

/// Why something about an item was not done.
#[derive(Debug)]
pub(super) enum Undone {
    /// The line says why.
    Refused(Cow<'static, str>),
    /// It must wait, or has failed.
    Stopped(Stop),
}

impl From<Stop> for Undone {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

/// Where items go that are read.
trait ItemsReply {
    /// One that is there.
    fn item(&mut self, key: &[u8], flags: u32, version: Option<u64>, value: &Value<'_>);

    /// One that is not.
    fn missing(&mut self);
}

impl ItemsReply for Encoder<'_> {
    #[inline]
    fn item(&mut self, key: &[u8], flags: u32, version: Option<u64>, value: &Value<'_>) {
        self.value(key, flags, version, value);
    }

    #[inline]
    fn missing(&mut self) {}
}

impl ItemsReply for AnswerWriter<'_> {
    fn item(&mut self, _key: &[u8], flags: u32, version: Option<u64>, value: &Value<'_>) {
        write_value(value, flags, version.unwrap_or(0), self);
    }

    fn missing(&mut self) {
        self.null();
    }
}

/// What the classic commands that store ask.
pub(super) fn classic_store<'a>(
    (key, value): (&'a [u8], &'a [u8]),
    flags: u32,
    expiry: SetExpiry,
    (mode, seen): (StoreMode, Option<u64>),
) -> Store<'a> {
    let seen = seen.map(|version| Seen { version, or_newer: false });
    Store { key, value, flags, expiry, mode, seen, vivify: None, give: None, version: false }
}

/// What `incr` and `decr` ask.
pub(super) fn classic_count(key: &[u8], by: u64, down: bool) -> Count<'_> {
    let expiry = GetExpiry::Keep;
    Count { key, by, down, seen: None, expiry, vivify: None, give: None, version: false }
}

/// What `delete` asks.
pub(super) fn plain_remove(key: &[u8]) -> Remove<'_> {
    Remove { key, seen: None, stale: None, value_only: false, give: None }
}

/// How the classic commands tell what came of storing.
pub(super) fn written_line(written: Written) -> &'static str {
    match written {
        Written::Done(_) => "STORED",
        Written::Changed => "EXISTS",
        Written::Missing => "NOT_FOUND",
        Written::Refused => "NOT_STORED",
    }
}

/// How `delete` tells what came of it.
pub(super) fn removed_line(written: Written) -> &'static str {
    if matches!(written, Written::Done(_)) { "DELETED" } else { "NOT_FOUND" }
}

/// How `touch` tells what came of it.
pub(super) fn touched_line(there: bool) -> &'static str {
    if there { "TOUCHED" } else { "NOT_FOUND" }
}

/// How `incr` and `decr` tell what came of it.
pub(super) fn write_counted_line(counted: Counted, out: &mut Encoder<'_>) {
    match counted {
        Counted::Done { number, .. } => out.number(number),
        Counted::NotNumber => out.line(NOT_NUMBER),
        Counted::Missing | Counted::Changed => out.line("NOT_FOUND"),
    }
}

impl ShardService {
    /// `get` and its kin.
    #[inline]
    pub(super) fn memcached_get(
        &mut self,
        keys: Words<'_>,
        versions: bool,
        expiry: GetExpiry,
        work: &mut Turn<'_>,
    ) -> Flow {
        let before = work.out.len();
        match self.get_items(keys, versions, expiry, work) {
            Ok(()) => {
                encoder(work).end();
                Flow::Next
            }
            Err(Undone::Stopped(stop)) => self.memcached_stopped(stop, false, before, work),
            Err(undone) => self.memcached_undone(undone, false, work),
        }
    }

    /// Answers with the items of keys: all of them or none. All keys are asked for even if the first must wait, so
    /// that their loads run side by side.
    #[inline]
    pub(super) fn get_items<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        versions: bool,
        expiry: GetExpiry,
        work: &mut Turn<'_>,
    ) -> Result<(), Undone> {
        let before = work.out.len();
        let most = self.bound.answer_bytes_max(work);
        let mut read = self.read_all(keys.clone(), versions, expiry, most, work);
        if let Err(Unread::TooMuch) = read {
            take_back(work, before);
            if let Some(most) = self.make_room_to_answer(work) {
                read = self.read_all(keys, versions, expiry, most, work);
            }
        }
        let why = match read {
            Ok(()) => return Ok(()),
            Err(Unread::Stopped(stop)) => return Err(stop.into()),
            Err(why) => why,
        };
        take_back(work, before);
        self.figures.stats.errors += 1;
        Err(Undone::Refused(why.line().into()))
    }

    #[inline]
    fn read_all<'k>(
        &mut self,
        mut keys: impl Iterator<Item = &'k [u8]>,
        versions: bool,
        expiry: GetExpiry,
        most: usize,
        work: &mut Turn<'_>,
    ) -> Result<(), Unread> {
        let typed = work.connection.session.form == Form::Typed;
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
                let (read, overflowed) = if typed {
                    let mut out = AnswerWriter::new(work.out).at_most(most);
                    (self.read_into(key, (versions, expiry), &mut out), out.overflowed())
                } else {
                    let mut out = Encoder::new(work.out, work.held, most);
                    (self.read_into(key, (versions, expiry), &mut out), out.overflowed())
                };
                if overflowed {
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
    fn read_into(
        &mut self,
        key: &[u8],
        (versions, expiry): (bool, GetExpiry),
        out: &mut impl ItemsReply,
    ) -> Result<(), Stop> {
        if !versions && expiry == GetExpiry::Keep {
            self.read_one(key, out)
        } else {
            self.fetch_one(key, versions, expiry, out)
        }
    }

    #[inline]
    fn read_one(&mut self, key: &[u8], out: &mut impl ItemsReply) -> Result<(), Stop> {
        let counts = &mut self.memcached.counts;
        let details = &mut self.memcached.details;
        self.node.item(key, |found| {
            details.count(key, ItemUse::Read { hit: found.is_some() });
            match found {
                Some((value, flags)) => {
                    counts.get_hits += 1;
                    out.item(key, flags, None, value);
                }
                None => {
                    counts.get_misses += 1;
                    out.missing();
                }
            }
        })
    }

    fn fetch_one(
        &mut self,
        key: &[u8],
        versions: bool,
        expiry: GetExpiry,
        out: &mut impl ItemsReply,
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
                    out.item(key, item.flags, versions.then_some(item.version), &item.value);
                }
                None => {
                    *misses += 1;
                    out.missing();
                }
            }
        })
    }

    /// `set` and its kin.
    #[inline]
    pub(super) fn memcached_store(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        let Request::Store { key, value, flags, expiry, mode, seen, noreply } = *request else {
            return Flow::Next;
        };
        let Some(value) = value else {
            self.memcached.counts.sets += 1;
            answer_unless(noreply, "CLIENT_ERROR bad data chunk", work);
            return Flow::Next;
        };
        let or_forget = mode == StoreMode::Set && seen.is_none();
        match self.store_item(&classic_store((key, value), flags, expiry, (mode, seen)), or_forget)
        {
            Ok(written) => {
                answer_unless(noreply, written_line(written), work);
                Flow::Next
            }
            Err(undone) => self.memcached_undone(undone, noreply, work),
        }
    }

    /// Gives an item a value.
    #[inline]
    pub(super) fn store_item(
        &mut self,
        store: &Store<'_>,
        or_forget: bool,
    ) -> Result<Written, Undone> {
        self.memcached.counts.sets += 1;
        if !self.has_room_for_item(store.key, store.value.len()) {
            return Err(self.no_room_for(store.key, or_forget));
        }
        let written = self.node.store(store)?;
        self.memcached.counts.stored(store.seen.is_some(), written);
        self.memcached.details.count(store.key, ItemUse::Write);
        Ok(written)
    }

    /// There is no memory for a value; `or_forget`: the one that it was to replace is not wanted any more.
    #[cold]
    pub(super) fn no_room_for(&mut self, key: &[u8], or_forget: bool) -> Undone {
        self.memcached.counts.no_memory += 1;
        self.figures.stats.errors += 1;
        if or_forget {
            self.forget_replaced(key);
        }
        Undone::Refused(NO_ROOM.into())
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
        if replaces {
            self.forget_replaced(key);
        }
        answer_unless(noreply, TOO_LARGE, work);
        Flow::Next
    }

    /// Removes what a value was to replace that cannot be stored, if that is possible at once.
    fn forget_replaced(&mut self, key: &[u8]) {
        let _as_far_as_it_goes = self.node.remove(&plain_remove(key));
    }

    pub(super) fn memcached_count(
        &mut self,
        (key, by, down): (&[u8], u64, bool),
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        match self.count_item(&classic_count(key, by, down)) {
            Ok(counted) => {
                if !noreply {
                    write_counted_line(counted, &mut encoder(work));
                }
                Flow::Next
            }
            Err(undone) => self.memcached_undone(undone, noreply, work),
        }
    }

    /// Adds to an item's number.
    pub(super) fn count_item(&mut self, count: &Count<'_>) -> Result<Counted, Undone> {
        if !self.has_room_for_item(count.key, 0) {
            return Err(self.no_room_for(count.key, false));
        }
        let counted = self.node.count(count)?;
        self.memcached.counts.counted(count.down, &counted);
        Ok(counted)
    }

    pub(super) fn memcached_delete(
        &mut self,
        key: &[u8],
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        match self.remove_item(&plain_remove(key)) {
            Ok(written) => {
                answer_unless(noreply, removed_line(written), work);
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, noreply, work),
        }
    }

    /// Removes an item, or tells that it is out of date.
    pub(super) fn remove_item(&mut self, remove: &Remove<'_>) -> Result<Written, Stop> {
        let written = self.node.remove(remove)?;
        self.memcached.counts.deleted(matches!(written, Written::Done(_)));
        self.memcached.details.count(remove.key, ItemUse::Remove);
        Ok(written)
    }

    pub(super) fn memcached_touch(
        &mut self,
        key: &[u8],
        expiry: GetExpiry,
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        match self.touch_item(key, expiry) {
            Ok(there) => {
                answer_unless(noreply, touched_line(there), work);
                Flow::Next
            }
            Err(stop) => self.memcached_unanswered(stop, noreply, work),
        }
    }

    /// Changes when an item expires; whether it is there.
    pub(super) fn touch_item(&mut self, key: &[u8], expiry: GetExpiry) -> Result<bool, Stop> {
        let there = self.node.touch(key, expiry)?;
        let counts = &mut self.memcached.counts;
        let counter = if there { &mut counts.touch_hits } else { &mut counts.touch_misses };
        *counter += 1;
        Ok(there)
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

/// What is told where there is no memory for a value.
const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";
/// What is told of a value that is too long.
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
/// What is told of a failure that memcached has a line of its own for.
pub(super) fn failure_line(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::ValueTooLong { .. } => Some(TOO_LARGE),
        EngineError::OutOfMemory => Some("SERVER_ERROR out of memory"),
        _ => None,
    }
}

/// What counting in something else answers.
pub(super) const NOT_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
