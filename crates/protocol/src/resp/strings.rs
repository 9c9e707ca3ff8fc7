//! Commands about values.

use super::options::{Unit, deadline, integer, is};
use super::refusal::Refusal;
use headwater_command::{
    Args, Command, Data, GetExpiry, Id, LcsAnswer, RateLimit, SetCondition, SetExpiry, Spec,
    Strings,
};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let key = args.at(1);
    Ok(Command::Data(Data::Strings(match spec.id {
        Id::Set => set(spec, args)?,
        Id::SetNx => Strings::SetNx { key, value: args.at(2) },
        Id::SetEx => set_ex(spec, args, true)?,
        Id::PSetEx => set_ex(spec, args, false)?,
        Id::GetSet => Strings::GetSet { key, value: args.at(2) },
        Id::GetDel => Strings::GetDel { key },
        Id::GetEx => get_ex(spec, args)?,
        Id::MGet => Strings::MGet { keys: args.from(1) },
        Id::MSet => Strings::MSet { pairs: pairs(spec, args)? },
        Id::MSetNx => Strings::MSetNx { pairs: pairs(spec, args)? },
        Id::Append => Strings::Append { key, tail: args.at(2) },
        Id::StrLen => Strings::StrLen { key },
        Id::GetRange | Id::SubStr => {
            Strings::GetRange { key, start: integer(args.at(2))?, end: integer(args.at(3))? }
        }
        Id::SetRange => {
            let offset = u64::try_from(integer(args.at(2))?)
                .map_err(|_| Refusal::Text("offset is out of range"))?;
            Strings::SetRange { key, offset, bytes: args.at(3) }
        }
        Id::Incr => Strings::IncrBy { key, by: 1 },
        Id::Decr => Strings::IncrBy { key, by: -1 },
        Id::IncrBy => Strings::IncrBy { key, by: integer(args.at(2))? },
        Id::DecrBy => {
            let by = integer(args.at(2))?
                .checked_neg()
                .ok_or(Refusal::Text("decrement would overflow"))?;
            Strings::IncrBy { key, by }
        }
        Id::IncrByFloat => Strings::IncrByFloat { key, by: args.at(2) },
        Id::Lcs => lcs(args)?,
        Id::DelIfEq => Strings::DelIfEqual { key, value: args.at(2) },
        Id::PExpireIfEq => expire_if_equal(args)?,
        Id::ClThrottle => throttle(spec, args)?,
        _ => Strings::Get { key },
    })))
}

fn expire_if_equal(args: Args<'_>) -> Result<Strings<'_>, Refusal<'_>> {
    let (add, expires) = match args.get(4) {
        None => (false, false),
        Some(word) if args.len() == 5 && is(word, "add") => (true, true),
        Some(word) if args.len() == 5 && is(word, "xx") => (false, true),
        Some(_) => return Err(Refusal::Syntax),
    };
    let millis = integer(args.at(3))?;
    Ok(Strings::ExpireIfEqual { key: args.at(1), value: args.at(2), millis, add, expires })
}

fn throttle<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Strings<'a>, Refusal<'a>> {
    if args.len() > 6 {
        return Err(Refusal::Arity(spec));
    }
    let number = |at: usize, least: u32| {
        let number = u32::try_from(integer(args.at(at))?).ok().filter(|number| *number >= least);
        number.ok_or(Refusal::Text(
            "max_burst and quantity are 0 or more, count and seconds 1 or more, each below 2^32",
        ))
    };
    let limit = RateLimit {
        burst: number(2, 0)?,
        count: number(3, 1)?,
        seconds: number(4, 1)?,
        quantity: if args.len() > 5 { number(5, 0)? } else { 1 },
    };
    Ok(Strings::Throttle { key: args.at(1), limit })
}

fn pairs<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Args<'a>, Refusal<'a>> {
    if args.len().is_multiple_of(2) {
        return Err(Refusal::Arity(spec));
    }
    Ok(args.from(1))
}

fn set<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Strings<'a>, Refusal<'a>> {
    let (key, value) = (args.at(1), args.at(2));
    let mut condition = SetCondition::Always;
    let mut expiry = SetExpiry::Never;
    let mut get = false;
    let mut term: Option<(Unit, &[u8])> = None;
    let mut options = args.from(3).iter();
    while let Some(option) = options.next() {
        if is(option, "nx") && condition != SetCondition::Present {
            condition = SetCondition::Absent;
        } else if is(option, "xx") && condition != SetCondition::Absent {
            condition = SetCondition::Present;
        } else if is(option, "get") {
            get = true;
        } else if is(option, "keepttl") && term.is_none() {
            expiry = SetExpiry::Keep;
        } else {
            let unit = Unit::of_option(option).ok_or(Refusal::Syntax)?;
            let fits = term.is_none_or(|(before, _)| before == unit) && expiry != SetExpiry::Keep;
            term = Some((unit, options.next().filter(|_| fits).ok_or(Refusal::Syntax)?));
        }
    }
    if let Some((unit, arg)) = term {
        expiry = SetExpiry::Deadline(deadline(arg, unit, true, spec)?);
    }
    Ok(Strings::Set { key, value, condition, expiry, get })
}

fn set_ex<'a>(
    spec: &'static Spec,
    args: Args<'a>,
    seconds: bool,
) -> Result<Strings<'a>, Refusal<'a>> {
    let unit = Unit { seconds, relative: true };
    Ok(Strings::Set {
        key: args.at(1),
        value: args.at(3),
        condition: SetCondition::Always,
        expiry: SetExpiry::Deadline(deadline(args.at(2), unit, true, spec)?),
        get: false,
    })
}

fn get_ex<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Strings<'a>, Refusal<'a>> {
    let mut persist = false;
    let mut term: Option<(Unit, &[u8])> = None;
    let mut options = args.from(2).iter();
    while let Some(option) = options.next() {
        if is(option, "persist") && term.is_none() {
            persist = true;
        } else {
            let unit = Unit::of_option(option).ok_or(Refusal::Syntax)?;
            let fits = term.is_none_or(|(before, _)| before == unit) && !persist;
            term = Some((unit, options.next().filter(|_| fits).ok_or(Refusal::Syntax)?));
        }
    }
    let expiry = match term {
        Some((unit, arg)) => GetExpiry::Deadline(deadline(arg, unit, true, spec)?),
        None if persist => GetExpiry::Persist,
        None => GetExpiry::Keep,
    };
    Ok(Strings::GetEx { key: args.at(1), expiry })
}

fn lcs(args: Args<'_>) -> Result<Strings<'_>, Refusal<'_>> {
    let (mut length, mut matches, mut with_lengths, mut length_min) = (false, false, false, 0);
    let mut options = args.from(3).iter();
    while let Some(option) = options.next() {
        if is(option, "idx") {
            matches = true;
        } else if is(option, "len") {
            length = true;
        } else if is(option, "withmatchlen") {
            with_lengths = true;
        } else if is(option, "minmatchlen") {
            let given = integer(options.next().ok_or(Refusal::Syntax)?)?;
            length_min = u64::try_from(given).unwrap_or(0);
        } else {
            return Err(Refusal::Syntax);
        }
    }
    let answer = match (length, matches) {
        (true, true) => {
            let text = "If you want both the length and indexes, please just use IDX.";
            return Err(Refusal::Text(text));
        }
        (true, false) => LcsAnswer::Length,
        (false, true) => LcsAnswer::Matches { length_min, with_lengths },
        (false, false) => LcsAnswer::Text,
    };
    Ok(Strings::Lcs { left: args.at(1), right: args.at(2), answer })
}
