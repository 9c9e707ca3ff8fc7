//! The node: who executes which command, and what may come of it.
//!
//! # Invariants
//! - N1. A command that must wait, or fails, leaves nothing in the reply but its error.
//! - N2. A command that changes several keys checks all that can refuse it before the first
//!   change; one that reads and writes reads first. So a waiting command has changed nothing,
//!   and running it again is running it once. Only the removal of a range waits for the end of what it has begun: run again under its
//!   ticket, it waits on or answers.

use crate::flows::Working;
use crate::owners::Owners;
use crate::scan::Cursors;
use crate::{
    bits, catalog, expiry, functions, keys, lcs, locks, numbers, ranges, scan, streams, strings,
};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use headwater_base::Millis;
use headwater_command::{Bits, Data, Keys, Ranges, Reply, Strings};
use headwater_engine::{Deadline, Engine, EngineError, MayRead, Settings, Stop, Ticket, WriteKind};
use headwater_flows::Memory;

/// What came of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a waiting command must be run again"]
pub enum Outcome {
    /// The answer is in the reply.
    Done,
    /// Data is being loaded and nothing is in the reply: run the command again when the
    /// engine's effects wake this ticket. (Tickets that nobody waits for may be woken too.)
    Waiting(Ticket),
    /// The answer is that of this moment, and its beginning, or nothing of it yet, is in the reply: run the command again to have
    /// more of it, when others were served and the client has taken what is there; call [`Engine::resume`] before.
    Unfinished(Ticket),
    /// The rest of an answer whose beginning was given before cannot be had: the client is to be told by the
    /// end of its connection.
    Broken,
}

/// Keys that commands looked up to read them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lookups {
    /// Those that were there, or that a join gives.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
}

impl Lookups {
    #[inline]
    pub(crate) fn note(&mut self, is_there: bool) {
        self.hits += u64::from(is_there);
        self.misses += u64::from(!is_there);
    }
}

/// One shard: its engine and what commands keep between them.
pub struct Node {
    pub(crate) engine: Engine,
    /// Bytes under construction, used again and again.
    pub(crate) scratch: Vec<u8>,
    pub(crate) cursors: Cursors,
    /// Which functions clients may call.
    pub(crate) callable: functions::Callable,
    /// State of the generator that RANDOMKEY draws from.
    draws: u64,
    pub(crate) working: Working,
    pub(crate) lookups: Lookups,
    /// Tables whose writes the engine notes.
    pub(crate) noted_tables: BTreeSet<Vec<u8>>,
    /// Commands are executed as a whole, without others in between.
    is_whole: bool,
    /// When the next command ends that is executed as a whole.
    deadline: Option<Deadline>,
    /// Which ranges may be read by whoever has asked for an explanation; `None`: all.
    pub(crate) may_read: Option<Box<MayRead<'static>>>,
    /// Tells whose definitions are.
    pub(crate) owners: Option<Box<Owners>>,
    /// What came of the command under way, if it has no whole answer and has not failed.
    pub(crate) unfinished: Option<Outcome>,
    /// Definitions have the names that they had in an earlier version.
    pub(crate) takes_kept_names: bool,
    /// Flows are taken that nothing may come of: they were accepted before.
    pub(crate) takes_kept_flows: bool,
    /// What the next command is a part of, if that names the events of what it writes.
    part_of: Option<WriteKind>,
}

/// How often a command is run again with more room. What it has computed may go to make that room, so that it could
/// go on so for ever.
const ATTEMPTS_MAX: u32 = 8;

/// Larger working memory is given back after the command.
const SCRATCH_KEPT_BYTES_MAX: usize = 64 << 10;

impl Node {
    /// A node without keys.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            draws: settings.draws,
            working: Working::new(Box::<Memory>::default(), false, settings.draws),
            lookups: Lookups::default(),
            noted_tables: BTreeSet::new(),
            is_whole: false,
            deadline: None,
            may_read: None,
            owners: None,
            unfinished: None,
            takes_kept_names: false,
            takes_kept_flows: false,
            part_of: None,
            engine: Engine::new(settings),
            scratch: Vec::new(),
            cursors: Cursors::default(),
            callable: functions::Callable::default(),
        }
    }

    /// Has explanations tell only of sources within ranges that may be read so, until this is called again; `None`: of all.
    pub fn explain_to(&mut self, may_read: Option<Box<MayRead<'static>>>) {
        self.may_read = may_read;
    }

    /// The engine: watches, effects, limits and statistics are its own.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, to change.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The keys that commands looked up.
    #[must_use]
    pub fn lookups(&self) -> Lookups {
        self.lookups
    }

    /// Counts the keys that are looked up from zero on.
    pub fn reset_lookups(&mut self) {
        self.lookups = Lookups::default();
    }

    /// Lets clients call the functions alone whose names match one of the glob patterns, which spaces
    /// separate.
    pub fn set_callable(&mut self, patterns: &str) {
        self.callable = functions::Callable::matching(patterns);
    }

    /// Says whether what is declared is declared again, by names that an earlier version may have taken and this one refuses.
    pub fn set_takes_kept_names(&mut self, takes: bool) {
        self.takes_kept_names = takes;
    }

    /// Says whether flows are taken that are on what a join gives, or write it: an earlier version took them.
    pub fn set_takes_kept_flows(&mut self, takes: bool) {
        self.takes_kept_flows = takes;
    }

    /// Has the keyspace events of the next command be those of what it is a part of; `None`: its own.
    pub fn begin_part_of(&mut self, kind: Option<WriteKind>) {
        self.part_of = kind;
    }

    /// Sets whether commands are executed as a whole, as those of a transaction are, rather than in slices
    /// ([`Engine::set_slice`]).
    pub fn set_whole(&mut self, whole: bool) {
        self.is_whole = whole;
    }

    /// Sets when the next command ends, if it has changed nothing until then and is executed as a whole
    /// ([`Engine::end_by`]).
    pub fn end_next_by(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    /// Moves time to `now`; call it before the commands that are executed then.
    pub fn advance(&mut self, now: Millis) {
        self.engine.advance(now);
        self.record_writes();
    }

    /// Does the next slice of what is done in slices. To be called once in each turn of the loop.
    pub fn go_on(&mut self) {
        self.engine.go_on();
        self.record_writes();
    }

    pub(crate) fn working_seed(&self) -> u64 {
        self.draws
    }

    /// Executes `command` and writes its answer, refusals included, into `reply`.
    #[inline]
    pub fn execute(&mut self, command: &Data<'_>, reply: &mut impl Reply) -> Outcome {
        // What functions call is not divided, as a transaction is not.
        let deadline = self.deadline.take();
        if self.is_whole || matches!(command, Data::Functions(_)) {
            self.engine.end_by(deadline);
        } else {
            self.engine.begin_slice();
        }
        let outcome = self.attempt(command, reply);
        self.engine.end_slice();
        outcome
    }

    #[inline]
    fn attempt(&mut self, command: &Data<'_>, reply: &mut impl Reply) -> Outcome {
        let mark = reply.mark();
        let mut attempts_left = ATTEMPTS_MAX;
        let told = self.engine.base_store_written();
        let gone = |engine: &Engine| engine.expired_count() + engine.removals_begun();
        let gone_before = gone(&self.engine);
        let lookups = self.lookups;
        loop {
            let alone = self.engine.begin_calls();
            let done = if self.engine.tells_keyspace_events() {
                self.run_told(command, reply)
            } else {
                self.run(command, reply)
            };
            if alone {
                self.engine.end_calls();
            }
            self.record_writes();
            let Err(stop) = done else { return self.unfinished.take().unwrap_or(Outcome::Done) };
            reply.rewind(mark);
            // It may be run again, or has failed.
            self.lookups = lookups;
            // Keys whose time has come go with whoever looks at them, whatever comes of it; and a removal in slices has
            // begun when it waits.
            debug_assert!(
                self.engine.base_store_written() == told || gone(&self.engine) > gone_before,
                "it has changed nothing (N2)"
            );
            match stop {
                Stop::Wait(ticket) => return Outcome::Waiting(ticket),
                // It has changed nothing (N2), so it may run again with more room.
                Stop::Failed(EngineError::OutOfMemory)
                    if attempts_left > 0 && self.engine.make_room_again() =>
                {
                    attempts_left -= 1;
                }
                // It is run again when others were served.
                Stop::Failed(EngineError::OutOfMemory)
                    if !self.is_whole && self.engine.room_comes() =>
                {
                    return Outcome::Waiting(self.engine.next_ticket());
                }
                Stop::Failed(EngineError::Busy { may_wait: true, .. }) => {
                    return Outcome::Waiting(self.block());
                }
                Stop::Failed(error) => {
                    reply.error(error.code(), format_args!("{error}"));
                    return Outcome::Done;
                }
            }
        }
    }

    /// As [`Node::run`], where the events of what is written have names.
    #[cold]
    fn run_told(&mut self, command: &Data<'_>, reply: &mut impl Reply) -> Result<(), Stop> {
        let kind = self.part_of.take().unwrap_or_else(|| write_kind(command));
        self.engine.begin_writing(kind);
        let done = self.run(command, reply);
        self.engine.begin_writing(WriteKind::Set);
        done
    }

    #[inline]
    fn run(&mut self, command: &Data<'_>, reply: &mut impl Reply) -> Result<(), Stop> {
        if may_write(command) {
            self.engine.admit_write(only_key(command))?;
        }
        match command {
            Data::Strings(Strings::Get { key }) => {
                strings::get(&mut self.engine, key, &mut self.lookups, reply)
            }
            Data::Strings(strings) => self.run_strings(strings, reply),
            Data::Bits(command) => {
                let (engine, scratch) = (&mut self.engine, &mut self.scratch);
                let done = bits::run(engine, command, scratch, &mut self.lookups, reply);
                self.trim_scratch();
                done
            }
            Data::Streams(command) => streams::run(&mut self.engine, command, reply),
            Data::Ranges(ranges) => ranges::run(self, ranges, reply),
            Data::Keys(keys) => self.run_keys(keys, reply),
            Data::Expiry(expiry) => expiry::run(&mut self.engine, expiry, &mut self.lookups, reply),
            Data::Joins(joins) => catalog::joins(self, joins, reply),
            Data::Functions(functions) => functions::run(self, functions, reply),
            Data::Tables(tables) => catalog::tables(&mut self.engine, tables, reply),
            Data::Flows(command) => self.run_flow_command(command, reply),
        }
    }

    fn run_strings(&mut self, command: &Strings<'_>, reply: &mut impl Reply) -> Result<(), Stop> {
        let (engine, lookups) = (&mut self.engine, &mut self.lookups);
        match *command {
            Strings::Get { key } => strings::get(engine, key, lookups, reply),
            Strings::Set { key, value, condition, expiry, get } => strings::set(
                engine,
                key,
                value,
                &strings::SetOptions { condition, expiry, get },
                lookups,
                reply,
            ),
            Strings::SetNx { key, value } => strings::set_nx(engine, key, value, reply),
            Strings::GetSet { key, value } => strings::get_set(engine, key, value, lookups, reply),
            Strings::GetDel { key } => strings::get_del(engine, key, lookups, reply),
            Strings::GetEx { key, expiry } => strings::get_ex(engine, key, expiry, lookups, reply),
            Strings::MGet { keys } => strings::mget(engine, keys, lookups, reply),
            Strings::MSet { pairs } => strings::mset(engine, pairs, reply),
            Strings::MSetNx { pairs } => strings::mset_nx(engine, pairs, reply),
            Strings::Append { key, tail } => strings::append(engine, key, tail, reply),
            Strings::StrLen { key } => strings::str_len(engine, key, lookups, reply),
            Strings::GetRange { key, start, end } => {
                strings::get_range(engine, key, (start, end), lookups, reply)
            }
            Strings::SetRange { key, offset, bytes } => {
                let done = strings::set_range(engine, key, offset, bytes, &mut self.scratch, reply);
                self.trim_scratch();
                done
            }
            Strings::IncrBy { key, by } => numbers::incr(engine, key, by, reply),
            Strings::IncrByFloat { key, by } => numbers::incr_float(engine, key, by, reply),
            Strings::DelIfEqual { key, value } => locks::del_if_equal(engine, key, value, reply),
            Strings::ExpireIfEqual { key, value, millis, add, expires } => {
                let new = locks::NewExpiry { millis, add, expires };
                locks::expire_if_equal(engine, key, value, &new, reply)
            }
            Strings::Throttle { key, limit } => locks::throttle(engine, key, &limit, reply),
            Strings::Lcs { left, right, answer } => {
                lcs::run(engine, [left, right], answer, lookups, reply)
            }
        }
    }

    fn run_keys(&mut self, command: &Keys<'_>, reply: &mut impl Reply) -> Result<(), Stop> {
        let (engine, lookups) = (&mut self.engine, &mut self.lookups);
        if let Keys::Scan { .. } | Keys::RandomKey | Keys::DbSize = command {
            // They count what is stored, or walk over it.
            engine.settle_dead()?;
        }
        match *command {
            Keys::Del { keys } => keys::del(engine, keys, reply),
            Keys::Exists { keys } | Keys::Touch { keys } => {
                keys::exists(engine, keys, lookups, reply)
            }
            Keys::Type { key } => keys::type_of(engine, key, lookups, reply),
            Keys::Rename { from, to, if_absent } => {
                let done = keys::rename(engine, from, to, if_absent, &mut self.scratch, reply);
                self.trim_scratch();
                done
            }
            Keys::Copy { from, to, replace } => {
                let done = keys::copy(engine, (from, to), replace, &mut self.scratch, reply);
                self.trim_scratch();
                done
            }
            Keys::Dump { key } => keys::dump(engine, key, &mut self.scratch, lookups, reply),
            Keys::Restore { key, expiry, payload, replace } => {
                keys::restore(engine, key, (expiry, payload), replace, reply)
            }
            Keys::Matching { pattern } => {
                self.unfinished = scan::matching(engine, pattern, reply)?.map(Outcome::Unfinished);
                Ok(())
            }
            Keys::InSlot { slot, most } => {
                let next = scan::in_slot(engine, slot, most, reply)?;
                self.unfinished = next.map(Outcome::Unfinished);
                Ok(())
            }
            Keys::Scan { cursor, pattern, count, type_name } => {
                let wanted = scan::Wanted { pattern, count, type_name };
                scan::scan(engine, &mut self.cursors, cursor, &wanted, reply);
                Ok(())
            }
            Keys::RandomKey => {
                let draw = self.draw();
                keys::random(&self.engine, draw, reply);
                Ok(())
            }
            Keys::DbSize => {
                reply.integer(engine.key_count() as i64);
                Ok(())
            }
            Keys::Flush => {
                engine.flush_ahead()?;
                engine.flush();
                reply.ok();
                Ok(())
            }
            Keys::Object { fact, key } => keys::object(engine, fact, key, lookups, reply),
            Keys::MemoryUsage { key } => keys::memory_usage(engine, key, reply),
            Keys::MemoryStats => {
                crate::info::memory_stats(engine, reply);
                Ok(())
            }
        }
    }

    pub(crate) fn trim_scratch(&mut self) {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_KEPT_BYTES_MAX);
    }

    /// The next number of a SplitMix64 generator.
    fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.draws ^ (self.draws >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Whether clients may write `key`: an error if a join or a source maintains it.
pub(crate) fn check_writable(engine: &Engine, key: &[u8]) -> Result<(), Stop> {
    Ok(engine.check_writable(key)?)
}

/// Whether a key and a value are within the limits.
pub(crate) fn check_lengths(engine: &Engine, key: &[u8], len: usize) -> Result<(), EngineError> {
    let limits = engine.limits();
    if key.len() > limits.key_bytes_max {
        return Err(EngineError::KeyTooLong { length: key.len(), max: limits.key_bytes_max });
    }
    if len > limits.value_bytes_max {
        return Err(EngineError::ValueTooLong { length: len, max: limits.value_bytes_max });
    }
    Ok(())
}

/// Whether `key` is there.
pub(crate) fn is_there(engine: &mut Engine, key: &[u8]) -> Result<bool, Stop> {
    Ok(engine.expiry(key)?.is_some())
}

/// The key that a command writes which writes no other one.
fn only_key<'a>(command: &Data<'a>) -> Option<&'a [u8]> {
    let strings = match *command {
        Data::Strings(strings) => strings,
        Data::Bits(Bits::Set { key, .. } | Bits::Fields { key, read_only: false, .. })
        | Data::Keys(Keys::Restore { key, .. }) => return Some(key),
        _ => return None,
    };
    match strings {
        Strings::Set { key, .. }
        | Strings::SetNx { key, .. }
        | Strings::GetSet { key, .. }
        | Strings::GetDel { key }
        | Strings::GetEx { key, .. }
        | Strings::Append { key, .. }
        | Strings::SetRange { key, .. }
        | Strings::IncrBy { key, .. }
        | Strings::IncrByFloat { key, .. }
        | Strings::DelIfEqual { key, .. }
        | Strings::ExpireIfEqual { key, .. }
        | Strings::Throttle { key, .. } => Some(key),
        _ => None,
    }
}

/// What a command does that writes, for the events of its keys.
fn write_kind(command: &Data<'_>) -> WriteKind {
    match command {
        Data::Strings(Strings::Append { .. }) => WriteKind::Append,
        Data::Strings(Strings::SetRange { .. }) => WriteKind::SetRange,
        Data::Strings(Strings::IncrBy { .. }) => WriteKind::Increment,
        Data::Strings(Strings::IncrByFloat { .. }) => WriteKind::IncrementFloat,
        Data::Bits(Bits::Set { .. } | Bits::Fields { .. }) => WriteKind::SetBits,
        Data::Keys(Keys::Rename { .. }) => WriteKind::Rename,
        Data::Keys(Keys::Copy { .. }) => WriteKind::Copy,
        Data::Keys(Keys::Restore { .. }) => WriteKind::Restore,
        _ => WriteKind::Set,
    }
}

/// Whether a command may change base keys that joins read.
fn may_write(command: &Data<'_>) -> bool {
    match command {
        Data::Strings(strings) => !matches!(
            strings,
            Strings::Get { .. }
                | Strings::MGet { .. }
                | Strings::StrLen { .. }
                | Strings::GetRange { .. }
                | Strings::Lcs { .. }
        ),
        Data::Keys(keys) => {
            matches!(
                keys,
                Keys::Del { .. } | Keys::Rename { .. } | Keys::Copy { .. } | Keys::Restore { .. }
            )
        }
        Data::Bits(bits) => matches!(
            bits,
            Bits::Set { .. } | Bits::Combine { .. } | Bits::Fields { read_only: false, .. }
        ),
        Data::Ranges(ranges) => matches!(ranges, Ranges::Remove { .. }),
        _ => false,
    }
}
