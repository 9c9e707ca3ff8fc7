//! What a command will need is loaded before it is executed: so that a transaction waits before its first write, and
//! not in the middle of it.
//!
//! Most of what a command needs can be told from its words. What depends on what the transaction itself writes
//! cannot (a join whose sources it changes), nor what a function looks at: such a command waits when it is executed.

use crate::keys::know_all;
use crate::node::Node;
use alloc::vec::Vec;
use headwater_base::prefix_end;
use headwater_command::{
    Bits, Data, Expiry, Functions, Joins, Keys, Ranges, SetCondition, SetExpiry, Streams, Strings,
};
use headwater_engine::{Engine, RangeOptions, Stop, Ticket};

impl Node {
    /// Asks for what `command` needs and does not have here; the ticket of what it would wait for. Refusals are left to its
    /// execution.
    pub fn preload(&mut self, command: &Data<'_>) -> Option<Ticket> {
        let accepted = match command {
            Data::Ranges(Ranges::Range { read, .. } | Ranges::Prefix { read, .. }) => read.stale,
            _ => 0,
        };
        self.engine.accept_age(accepted);
        let loaded = preload(&mut self.engine, command);
        self.engine.accept_age(0);
        match loaded {
            Err(Stop::Wait(ticket)) => Some(ticket),
            Ok(()) | Err(Stop::Failed(_)) => None,
        }
    }
}

fn preload(engine: &mut Engine, command: &Data<'_>) -> Result<(), Stop> {
    match command {
        Data::Strings(command) => strings(engine, command),
        Data::Bits(command) => match *command {
            Bits::Get { key, .. }
            | Bits::Count { key, .. }
            | Bits::Position { key, .. }
            | Bits::Fields { key, read_only: true, .. } => read(engine, [key]),
            Bits::Set { key, .. } | Bits::Fields { key, .. } => know(engine, [key]),
            Bits::Combine { to, from, .. } => {
                let known = know(engine, [to]);
                read(engine, from.iter()).and(known)
            }
        },
        Data::Keys(command) => keys(engine, command),
        Data::Expiry(command) => match *command {
            Expiry::Expire { key, .. } | Expiry::Persist { key } => know(engine, [key]),
            Expiry::Remaining { key, .. } | Expiry::Moment { key, .. } => read(engine, [key]),
        },
        Data::Ranges(command) => match *command {
            Ranges::Range { first, last, .. } | Ranges::Verify { first, last } => {
                range(engine, first, last)
            }
            Ranges::Prefix { prefix, .. } => range(engine, prefix, &prefix_end(prefix)),
            Ranges::Remove { first, last } => engine.know_range(first, last),
            Ranges::ExplainKey { .. } | Ranges::Explain { .. } => Ok(()),
        },
        Data::Functions(command) => match *command {
            Functions::Call { key, flags, .. } if flags.update => know(engine, [key]),
            Functions::Call { key, .. } => read(engine, [key]),
            Functions::Range { first, last, .. } => range(engine, first, last),
            Functions::Load { .. }
            | Functions::Drop { .. }
            | Functions::List
            | Functions::Info { .. } => Ok(()),
        },
        Data::Joins(Joins::Add { spec, .. }) => engine.know_outputs(spec),
        Data::Streams(command) => streams(engine, command),
        Data::Joins(_) | Data::Tables(_) | Data::Flows(_) => Ok(()),
    }
}

fn strings(engine: &mut Engine, command: &Strings<'_>) -> Result<(), Stop> {
    match *command {
        Strings::Get { key } | Strings::StrLen { key } | Strings::GetRange { key, .. } => {
            read(engine, [key])
        }
        Strings::MGet { keys } => read(engine, keys.iter()),
        Strings::Lcs { left, right, .. } => read(engine, [left, right]),
        Strings::Set { key, condition, expiry, get, .. } => {
            let looks = get || condition != SetCondition::Always || expiry == SetExpiry::Keep;
            if looks { know(engine, [key]) } else { Ok(()) }
        }
        Strings::MSet { .. } => Ok(()),
        Strings::MSetNx { pairs } => know(engine, pairs.pairs().map(|(key, _)| key)),
        Strings::SetNx { key, .. }
        | Strings::GetSet { key, .. }
        | Strings::GetDel { key }
        | Strings::GetEx { key, .. }
        | Strings::Append { key, .. }
        | Strings::SetRange { key, .. }
        | Strings::IncrBy { key, .. }
        | Strings::IncrByFloat { key, .. }
        | Strings::DelIfEqual { key, .. }
        | Strings::ExpireIfEqual { key, .. }
        | Strings::Throttle { key, .. } => know(engine, [key]),
    }
}

fn streams(engine: &mut Engine, command: &Streams<'_>) -> Result<(), Stop> {
    match *command {
        Streams::Read { key, offset, count, .. } if engine.owns(key) => {
            engine.stream_read(key, offset, count).map(drop)
        }
        Streams::Append { key, .. }
        | Streams::Read { key, .. }
        | Streams::Trim { key, .. }
        | Streams::Len { key }
        | Streams::Info { key } => know(engine, [key]),
    }
}

fn keys(engine: &mut Engine, command: &Keys<'_>) -> Result<(), Stop> {
    match *command {
        Keys::Del { keys } => know(engine, keys.iter()),
        Keys::Exists { keys } | Keys::Touch { keys } => read(engine, keys.iter()),
        Keys::Type { key }
        | Keys::Object { key, .. }
        | Keys::MemoryUsage { key }
        | Keys::Dump { key } => read(engine, [key]),
        Keys::Restore { key, .. } => know(engine, [key]),
        Keys::Rename { from, to, if_absent } => copied(engine, from, to, if_absent),
        Keys::Copy { from, to, replace } => copied(engine, from, to, !replace),
        Keys::Matching { .. }
        | Keys::InSlot { .. }
        | Keys::Scan { .. }
        | Keys::RandomKey
        | Keys::DbSize
        | Keys::Flush
        | Keys::MemoryStats => Ok(()),
    }
}

/// A key that is copied to another one, which is looked at before, or not.
fn copied(engine: &mut Engine, from: &[u8], to: &[u8], looks: bool) -> Result<(), Stop> {
    if looks {
        read(engine, [from, to])?;
    } else {
        read(engine, [from])?;
    }
    if engine.is_stream(from) && engine.owns(to) {
        engine.know_stream_copied(from, to)?;
    }
    Ok(())
}

/// Keys that are written as they stand.
fn know<'k>(engine: &mut Engine, keys: impl IntoIterator<Item = &'k [u8]>) -> Result<(), Stop> {
    let own: Vec<&[u8]> = keys.into_iter().filter(|key| engine.owns(key)).collect();
    know_all(engine, own.into_iter())
}

/// Keys that are read, derived ones among them.
fn read<'k>(engine: &mut Engine, keys: impl IntoIterator<Item = &'k [u8]>) -> Result<(), Stop> {
    let mut ready = Ok(());
    for key in keys {
        if !engine.owns(key) {
            continue;
        }
        if let Err(Stop::Wait(ticket)) = engine.expiry(key) {
            ready = ready.and(Err(Stop::Wait(ticket)));
        }
    }
    ready
}

/// A range that is read: all of it is made current, however little of it is looked at here.
fn range(engine: &mut Engine, first: &[u8], last: &[u8]) -> Result<(), Stop> {
    let options = RangeOptions { reverse: false, limit: Some(1) };
    engine.range(first, last, options, &mut |_, _| {}).map(drop)
}
