//! Commands about ranges of keys and about joins.

use super::options::{is, text};
use super::refusal::Refusal;
use headwater_command::{
    Args, Command, Data, Id, Joins, RangeAnswer, RangeRead, RangeWatch, Ranges, STALE_MAX, Spec,
    number,
};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let (one, two) = (args.get(1).unwrap_or_default(), args.get(2).unwrap_or_default());
    match spec.id {
        Id::RangeWatch => return watch(args).map(Command::RangeWatch),
        Id::RangeUnwatch => {
            let id = number::parse_u64(one).and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or(Refusal::Text("a watch is named by the number RANGE.WATCH gave"))?;
            return Ok(Command::RangeWatch(RangeWatch::End { id }));
        }
        _ => {}
    }
    Ok(Command::Data(match spec.id {
        Id::Range => {
            Data::Ranges(Ranges::Range { first: one, last: two, read: read(args.from(3))? })
        }
        Id::Prefix => Data::Ranges(Ranges::Prefix { prefix: one, read: read(args.from(2))? }),
        Id::RangeDel => Data::Ranges(Ranges::Remove { first: one, last: two }),
        Id::Explain => Data::Ranges(Ranges::ExplainKey { key: one }),
        Id::ExplainRange => Data::Ranges(Ranges::Explain { first: one, last: two }),
        Id::Verify => Data::Ranges(Ranges::Verify { first: one, last: two }),
        Id::JoinAdd => Data::Joins(join_add(args)?),
        Id::JoinDrop => Data::Joins(Joins::Drop { name: join_name(one)? }),
        Id::JoinInfo => Data::Joins(Joins::Info { name: join_name(one)? }),
        Id::JoinKey if args.len() % 2 == 1 => {
            return Err(Refusal::Text("each slot needs a value: JOIN.KEY name slot value ..."));
        }
        Id::JoinKey => Data::Joins(Joins::Key { name: join_name(one)?, slots: args.from(2) }),
        Id::JoinDecode => Data::Joins(Joins::Decode { key: one }),
        _ => Data::Joins(Joins::List),
    }))
}

fn watch(args: Args<'_>) -> Result<RangeWatch<'_>, Refusal<'_>> {
    let from = match (args.get(3), args.get(4)) {
        (None, _) => None,
        (Some(option), Some(position)) if is(option, "from") && args.len() == 5 => Some(position),
        (Some(option), _) => {
            return Err(Refusal::Quoting {
                before: "syntax error near '",
                bytes: option,
                after: "'; allowed is FROM position",
            });
        }
    };
    Ok(RangeWatch::Begin { first: args.at(1), last: args.at(2), from })
}

fn read(options: Args<'_>) -> Result<RangeRead<'_>, Refusal<'_>> {
    let mut read = RangeRead::default();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        if is(option, "rev") {
            read.reverse = true;
        } else if is(option, "limit") {
            let given = options.next().and_then(number::parse_u64);
            let missing = Refusal::Text("LIMIT needs a whole number that is not negative");
            read.limit = Some(given.ok_or(missing)?);
        } else if is(option, "at") {
            let missing = Refusal::Text("AT needs a position, as SOURCE.POSITION gives it");
            read.at = Some(options.next().ok_or(missing)?);
        } else if is(option, "stale") {
            let given = options.next().and_then(number::parse_u64);
            let wrong = Refusal::Text(
                "STALE needs a whole number of milliseconds from 0 to 86400000, a day",
            );
            read.stale = given.filter(|millis| *millis <= STALE_MAX).ok_or(wrong)?;
        } else {
            let answer = answer(option)?;
            if read.answer != RangeAnswer::Pairs && read.answer != answer {
                let text = "syntax error: only one of KEYS, VALUES and COUNT is allowed";
                return Err(Refusal::Text(text));
            }
            read.answer = answer;
        }
    }
    if read.at.is_some() && read.stale > 0 {
        let text = "syntax error: AT waits for what is new and STALE accepts what is old: one of them is allowed";
        return Err(Refusal::Text(text));
    }
    Ok(read)
}

fn answer(option: &[u8]) -> Result<RangeAnswer, Refusal<'_>> {
    if is(option, "keys") {
        Ok(RangeAnswer::Keys)
    } else if is(option, "values") {
        Ok(RangeAnswer::Values)
    } else if is(option, "count") {
        Ok(RangeAnswer::Count)
    } else {
        Err(Refusal::Quoting {
            before: "syntax error: unknown option '",
            bytes: option,
            after: "'; allowed are REV, LIMIT n, one of KEYS, VALUES, COUNT, and one of AT position, STALE ms",
        })
    }
}

fn join_name(arg: &[u8]) -> Result<&str, Refusal<'_>> {
    text(arg, "the name of a join must be UTF-8 text")
}

fn join_add(args: Args<'_>) -> Result<Joins<'_>, Refusal<'_>> {
    let name = join_name(args.at(1))?;
    let spec = text(args.at(2), "a join must be UTF-8 text")?;
    let mut replace = false;
    for option in args.from(3).iter() {
        if !is(option, "replace") {
            return Err(Refusal::Quoting {
                before: "syntax error: unknown option '",
                bytes: option,
                after: "'; allowed is REPLACE (and the join must be one argument: quote it)",
            });
        }
        replace = true;
    }
    Ok(Joins::Add { name, spec, replace })
}
