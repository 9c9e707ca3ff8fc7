//! Commands about tables and about sources of base data.

use super::options::{is, text};
use super::refusal::Refusal;
use headwater_command::{Args, Command, Data, Id, Mapping, Sources, Spec, Tables, number};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let one = args.get(1).unwrap_or_default();
    Ok(match spec.id {
        Id::TableSet => Command::Data(Data::Tables(table_set(args)?)),
        Id::TableInfo => Command::Data(Data::Tables(Tables::Info { name: one })),
        Id::SourceAdd => Command::Sources(Sources::Add {
            name: source_name(one)?,
            kind: text(args.at(2), "the kind of a source must be UTF-8 text")?,
            url: text(args.at(3), "the URL of a source must be UTF-8 text")?,
        }),
        Id::SourceDrop => Command::Sources(Sources::Drop { name: source_name(one)? }),
        Id::SourceInfo => Command::Sources(Sources::Info { name: source_name(one)? }),
        Id::SourcePosition => Command::Sources(Sources::Position { name: source_name(one)? }),
        Id::SourceCheck => Command::Sources(source_check(args)?),
        Id::SourceList => Command::Sources(Sources::List),
        _ => Command::Data(Data::Tables(Tables::List)),
    })
}

fn source_name(arg: &[u8]) -> Result<&str, Refusal<'_>> {
    text(arg, "the name of a source must be UTF-8 text")
}

fn yes_or_no(word: Option<&[u8]>) -> Option<bool> {
    match word {
        Some(word) if is(word, "yes") => Some(true),
        Some(word) if is(word, "no") => Some(false),
        _ => None,
    }
}

fn table_set(args: Args<'_>) -> Result<Tables<'_>, Refusal<'_>> {
    let (mut boundary, mut source, mut evict, mut keep) = (None, None, None, None);
    let mut mapping = Mapping::default();
    let mut rest = args.from(2);
    while let Some(option) = rest.get(0) {
        let given = rest.get(1);
        let mut taken = 2;
        if is(option, "boundary") {
            let given = given.and_then(number::parse_u64);
            let given = given.and_then(|number| usize::try_from(number).ok());
            let missing = Refusal::Text("BOUNDARY needs a whole number that is not negative");
            boundary = Some(given.ok_or(missing)?);
        } else if is(option, "source") {
            source = Some(source_name(given.ok_or(Refusal::Text("SOURCE needs a name"))?)?);
        } else if let Some(words) = mapping_option(option, rest, &mut mapping)? {
            taken = words;
        } else if is(option, "write") {
            mapping.write_through = match given {
                Some(word) if is(word, "through") => true,
                Some(word) if is(word, "around") => false,
                _ => return Err(Refusal::Text("WRITE needs AROUND or THROUGH")),
            };
        } else if is(option, "evict") {
            evict = Some(yes_or_no(given).ok_or(Refusal::Text("EVICT needs YES or NO"))?);
        } else if is(option, "keep") {
            keep = Some(yes_or_no(given).ok_or(Refusal::Text("KEEP needs YES or NO"))?);
        } else {
            return Err(Refusal::Quoting {
                before: "syntax error: unknown option '",
                bytes: option,
                after: "'; allowed are BOUNDARY n, EVICT YES|NO, KEEP YES|NO, SOURCE name, and \
                    with a source TABLE name, KEY (columns), VALUE column, WHERE condition and WRITE AROUND|THROUGH",
            });
        }
        rest = rest.from(taken);
    }
    if source.is_none_or(str::is_empty) && mapping != Mapping::default() {
        return Err(Refusal::Text("TABLE, KEY, VALUE, WHERE and WRITE need a SOURCE"));
    }
    let source = source.map(|name| (name, mapping));
    Ok(Tables::Set { name: args.at(1), boundary, source, evict, keep })
}

/// SOURCE.CHECK: a mapping as TABLE.SET takes it.
fn source_check(args: Args<'_>) -> Result<Sources<'_>, Refusal<'_>> {
    let name = source_name(args.at(1))?;
    let mut mapping = Mapping::default();
    let mut rest = args.from(2);
    while let Some(option) = rest.get(0) {
        let Some(taken) = mapping_option(option, rest, &mut mapping)? else {
            return Err(Refusal::Quoting {
                before: "syntax error: unknown option '",
                bytes: option,
                after: "'; allowed are TABLE name, KEY (columns), VALUE column and WHERE condition",
            });
        };
        rest = rest.from(taken);
    }
    Ok(Sources::Check { name, mapping })
}

/// Takes an option that says how a table is mapped, with which `rest` begins; of how many words it is, if it is one.
fn mapping_option<'a>(
    option: &[u8],
    rest: Args<'a>,
    mapping: &mut Mapping<'a>,
) -> Result<Option<usize>, Refusal<'a>> {
    let given = rest.get(1);
    Ok(Some(if is(option, "table") {
        let given = given.ok_or(Refusal::Text("TABLE needs a name"))?;
        mapping.table = Some(text(given, "the name of a table must be UTF-8 text")?);
        2
    } else if is(option, "key") {
        let columns = list(rest.from(1)).ok_or(Refusal::Text(
            "KEY needs a column, or several in parentheses: KEY (poster, time)",
        ))?;
        mapping.key = Some(columns);
        1 + columns.len()
    } else if is(option, "value") {
        let words = value(rest.from(1)).ok_or(Refusal::Text(
            "VALUE needs a column, JSON with columns in parentheses, or EMPTY",
        ))?;
        mapping.value = Some(words);
        1 + words.len()
    } else if is(option, "where") {
        let given =
            given.ok_or(Refusal::Text("WHERE needs a condition: WHERE \"status = 'paid'\""))?;
        mapping.filter = Some(text(given, "a condition must be UTF-8 text")?);
        2
    } else {
        return Ok(None);
    }))
}

/// The words of a list: one alone, or those from one that opens a parenthesis to one that closes it.
fn list(args: Args<'_>) -> Option<Args<'_>> {
    if !args.get(0)?.starts_with(b"(") {
        return Some(args.first(1));
    }
    let end = args.iter().position(|word| word.ends_with(b")"))?;
    Some(args.first(end + 1))
}

/// The words behind VALUE.
fn value(args: Args<'_>) -> Option<Args<'_>> {
    if !is(args.get(0)?, "json") {
        return Some(args.first(1));
    }
    let columns = list(args.from(1))?;
    Some(args.first(1 + columns.len()))
}
