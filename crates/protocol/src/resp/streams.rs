//! Commands about streams.

use super::options::is;
use super::refusal::Refusal;
use headwater_command::{Args, Command, Data, Id, Spec, Streams, number};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let key = args.at(1);
    Ok(Command::Data(Data::Streams(match spec.id {
        Id::StreamAppend => {
            let text = "LEN needs a whole number that is not negative";
            let expected = option(args.from(3), "len", text)?.unwrap_or(0);
            Streams::Append { key, tail: args.at(2), expected }
        }
        Id::StreamRead => {
            let text = "BLOCK needs milliseconds, a whole number that is not negative";
            let block = option(args.from(4), "block", text)?;
            Streams::Read { key, offset: offset(args.at(2))?, count: count(args.at(3))?, block }
        }
        Id::StreamTrim => Streams::Trim { key, offset: offset(args.at(2))? },
        Id::StreamLen => Streams::Len { key },
        _ => Streams::Info { key },
    })))
}

fn offset(arg: &[u8]) -> Result<u64, Refusal<'_>> {
    number::parse_u64(arg)
        .ok_or(Refusal::Text("an offset is a whole number of bytes that is not negative"))
}

fn count(arg: &[u8]) -> Result<u64, Refusal<'_>> {
    number::parse_u64(arg)
        .ok_or(Refusal::Text("a count is a whole number of bytes that is not negative"))
}

/// The number behind the only option there is, if it is there.
fn option<'a>(
    options: Args<'a>,
    word: &str,
    missing: &'static str,
) -> Result<Option<u64>, Refusal<'a>> {
    let mut options = options.iter();
    let Some(name) = options.next() else { return Ok(None) };
    if !is(name, word) {
        return Err(Refusal::Syntax);
    }
    let given = options.next().and_then(number::parse_u64).ok_or(Refusal::Text(missing))?;
    if options.next().is_some() { Err(Refusal::Syntax) } else { Ok(Some(given)) }
}
