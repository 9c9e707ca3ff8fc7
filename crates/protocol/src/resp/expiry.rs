//! Commands about when keys expire.

use super::options::{Unit, deadline, is};
use super::refusal::Refusal;
use headwater_command::{Args, Command, Data, ExpireCondition, Expiry, Id, Spec, TimeUnit};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let key = args.at(1);
    let (seconds, millis) = (TimeUnit::Seconds, TimeUnit::Millis);
    Ok(Command::Data(Data::Expiry(match spec.id {
        Id::Expire => expire(spec, args, Unit { seconds: true, relative: true })?,
        Id::PExpire => expire(spec, args, Unit { seconds: false, relative: true })?,
        Id::ExpireAt => expire(spec, args, Unit { seconds: true, relative: false })?,
        Id::PExpireAt => expire(spec, args, Unit { seconds: false, relative: false })?,
        Id::Ttl => Expiry::Remaining { key, unit: seconds },
        Id::PTtl => Expiry::Remaining { key, unit: millis },
        Id::ExpireTime => Expiry::Moment { key, unit: seconds },
        Id::PExpireTime => Expiry::Moment { key, unit: millis },
        _ => Expiry::Persist { key },
    })))
}

fn expire<'a>(spec: &'static Spec, args: Args<'a>, unit: Unit) -> Result<Expiry<'a>, Refusal<'a>> {
    let condition = condition(args.from(3))?;
    let deadline = deadline(args.at(2), unit, false, spec)?;
    Ok(Expiry::Expire { key: args.at(1), deadline, condition })
}

fn condition(options: Args<'_>) -> Result<ExpireCondition, Refusal<'_>> {
    let (mut none, mut some, mut later, mut earlier) = (false, false, false, false);
    for option in options.iter() {
        if is(option, "nx") {
            none = true;
        } else if is(option, "xx") {
            some = true;
        } else if is(option, "gt") {
            later = true;
        } else if is(option, "lt") {
            earlier = true;
        } else {
            return Err(Refusal::Quoting {
                before: "Unsupported option ",
                bytes: option,
                after: "",
            });
        }
    }
    if none && (some || later || earlier) {
        let text = "NX and XX, GT or LT options at the same time are not compatible";
        return Err(Refusal::Text(text));
    }
    if later && earlier {
        return Err(Refusal::Text("GT and LT options at the same time are not compatible"));
    }
    Ok(match (none, some, later, earlier) {
        (true, ..) => ExpireCondition::IfNone,
        // Nothing is later than never: without an expiry, GT never acts, with XX or not.
        (_, _, true, _) => ExpireCondition::IfLater,
        (_, true, _, true) => ExpireCondition::IfSomeAndEarlier,
        (_, false, _, true) => ExpireCondition::IfEarlier,
        (_, true, ..) => ExpireCondition::IfSome,
        _ => ExpireCondition::Always,
    })
}
