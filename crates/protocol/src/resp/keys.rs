//! Commands about keys as such.

use super::expiry;
use super::options::{integer, is};
use super::refusal::Refusal;
use headwater_command::{
    Args, Command, Data, Deadline, Id, Keys, ObjectFact, RestoredExpiry, Spec,
};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let keys = args.from(1);
    Ok(Command::Data(Data::Keys(match spec.id {
        Id::Del | Id::Unlink => Keys::Del { keys },
        Id::Exists => Keys::Exists { keys },
        Id::Touch => Keys::Touch { keys },
        Id::Type => Keys::Type { key: args.at(1) },
        Id::Rename => Keys::Rename { from: args.at(1), to: args.at(2), if_absent: false },
        Id::RenameNx => Keys::Rename { from: args.at(1), to: args.at(2), if_absent: true },
        Id::Copy => copy(args)?,
        Id::Dump => Keys::Dump { key: args.at(1) },
        Id::Restore => restore(args)?,
        Id::Keys => Keys::Matching { pattern: args.at(1) },
        Id::Scan => scan(args)?,
        Id::RandomKey => Keys::RandomKey,
        Id::DbSize => Keys::DbSize,
        Id::FlushAll | Id::FlushDb => flush(args)?,
        Id::ObjectEncoding => object(ObjectFact::Encoding, args),
        Id::ObjectIdleTime => object(ObjectFact::IdleTime, args),
        Id::ObjectFreq => object(ObjectFact::Frequency, args),
        Id::ObjectRefCount => object(ObjectFact::References, args),
        Id::ObjectHelp => return Ok(super::introspection::help("object")),
        Id::Object => return Err(Refusal::Arity(spec)),
        _ => return expiry::decode(spec, args),
    })))
}

fn object(fact: ObjectFact, args: Args<'_>) -> Keys<'_> {
    Keys::Object { fact, key: args.at(2) }
}

fn copy(args: Args<'_>) -> Result<Keys<'_>, Refusal<'_>> {
    let mut replace = false;
    let mut options = args.from(3).iter();
    while let Some(option) = options.next() {
        if is(option, "replace") {
            replace = true;
        } else if is(option, "db") {
            if integer(options.next().ok_or(Refusal::Syntax)?)? != 0 {
                return Err(Refusal::Text("DB index is out of range"));
            }
        } else {
            return Err(Refusal::Syntax);
        }
    }
    let (from, to) = (args.at(1), args.at(2));
    if from == to {
        return Err(Refusal::Text("source and destination objects are the same"));
    }
    Ok(Keys::Copy { from, to, replace })
}

fn restore(args: Args<'_>) -> Result<Keys<'_>, Refusal<'_>> {
    let (mut replace, mut absolute, mut idle, mut frequency) = (false, false, false, false);
    let mut options = args.from(4).iter();
    while let Some(option) = options.next() {
        if is(option, "replace") {
            replace = true;
        } else if is(option, "absttl") {
            absolute = true;
        } else if is(option, "idletime") && options.len() > 0 && !frequency {
            idle = true;
            if integer(options.next().unwrap_or_default())? < 0 {
                return Err(Refusal::Text("Invalid IDLETIME value, must be >= 0"));
            }
        } else if is(option, "freq") && options.len() > 0 && !idle {
            frequency = true;
            if !(0..=255).contains(&integer(options.next().unwrap_or_default())?) {
                return Err(Refusal::Text("Invalid FREQ value, must be >= 0 and <= 255"));
            }
        } else {
            return Err(Refusal::Syntax);
        }
    }
    let expiry = match integer(args.at(2)) {
        Err(_) => RestoredExpiry::NotInteger,
        Ok(..0) => RestoredExpiry::Negative,
        Ok(0) => RestoredExpiry::Never,
        Ok(millis) if absolute => RestoredExpiry::Deadline(Deadline::At(millis)),
        Ok(millis) => RestoredExpiry::Deadline(Deadline::After(millis)),
    };
    Ok(Keys::Restore { key: args.at(1), expiry, payload: args.at(3), replace })
}

fn scan(args: Args<'_>) -> Result<Keys<'_>, Refusal<'_>> {
    let cursor = core::str::from_utf8(args.at(1))
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(Refusal::Text("invalid cursor"))?;
    let (mut pattern, mut count, mut type_name) = (None, 10, None);
    let mut options = args.from(2).iter();
    while let Some(option) = options.next() {
        let argument = options.next().ok_or(Refusal::Syntax)?;
        if is(option, "match") {
            pattern = Some(argument);
        } else if is(option, "count") {
            count = integer(argument)?;
            if count < 1 {
                return Err(Refusal::Syntax);
            }
        } else if is(option, "type") {
            type_name = Some(argument);
        } else {
            return Err(Refusal::Syntax);
        }
    }
    Ok(Keys::Scan { cursor, pattern, count: count.unsigned_abs(), type_name })
}

fn flush(args: Args<'_>) -> Result<Keys<'_>, Refusal<'_>> {
    match args.get(1) {
        None => Ok(Keys::Flush),
        Some(how) if args.len() == 2 && (is(how, "sync") || is(how, "async")) => Ok(Keys::Flush),
        Some(_) => Err(Refusal::Syntax),
    }
}

/// `MEMORY USAGE key [SAMPLES n]`.
pub(super) fn memory_usage(args: Args<'_>) -> Result<Keys<'_>, Refusal<'_>> {
    let mut options = args.from(3).iter();
    while let Some(option) = options.next() {
        let argument = options.next().filter(|_| is(option, "samples")).ok_or(Refusal::Syntax)?;
        if integer(argument)? < 0 {
            return Err(Refusal::Syntax);
        }
    }
    Ok(Keys::MemoryUsage { key: args.at(2) })
}
