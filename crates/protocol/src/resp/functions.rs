//! Commands about functions.

use super::options::{is, text};
use super::refusal::Refusal;
use headwater_command::{Args, CallFlags, Command, Data, Functions, Id, Spec, number};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    Ok(Command::Data(Data::Functions(match spec.id {
        Id::FnLoad => load(args)?,
        Id::FnDrop => Functions::Drop { name: module_name(args.at(1))? },
        Id::FnList => Functions::List,
        Id::FnInfo => Functions::Info { name: module_name(args.at(1))? },
        Id::FnCall => call(args)?,
        _ => range(args)?,
    })))
}

fn module_name(arg: &[u8]) -> Result<&str, Refusal<'_>> {
    text(arg, "the name of a module must be UTF-8 text")
}

fn load(args: Args<'_>) -> Result<Functions<'_>, Refusal<'_>> {
    let (mut file, mut export, mut replace) = (false, None, false);
    let mut options = args.from(3).iter();
    while let Some(option) = options.next() {
        if is(option, "file") {
            file = true;
        } else if is(option, "replace") {
            replace = true;
        } else if is(option, "export") {
            let name = options.next().ok_or(Refusal::Text("EXPORT needs a name"))?;
            export = Some(text(name, "the name of an export must be UTF-8 text")?);
        } else {
            return Err(Refusal::Quoting {
                before: "syntax error: unknown option '",
                bytes: option,
                after: "'; allowed are FILE, EXPORT name and REPLACE",
            });
        }
    }
    let name = module_name(args.at(1))?;
    Ok(Functions::Load { name, module: args.at(2), file, export, replace })
}

/// The options between the key and the parameter, which is always last.
fn call(args: Args<'_>) -> Result<Functions<'_>, Refusal<'_>> {
    let last = args.len() - 1;
    let mut flags = CallFlags::default();
    for at in 3..last {
        let option = args.at(at);
        if is(option, "update") {
            flags.update = true;
        } else if is(option, "atomic") {
            flags.atomic = true;
        } else if is(option, "noreply") {
            flags.no_reply = true;
        } else {
            return Err(Refusal::Quoting {
                before: "syntax error: unknown option '",
                bytes: option,
                after: "'; allowed are UPDATE, ATOMIC and NOREPLY, and then one parameter",
            });
        }
    }
    Ok(Functions::Call { name: args.at(1), key: args.at(2), flags, param: args.at(last) })
}

fn range(args: Args<'_>) -> Result<Functions<'_>, Refusal<'_>> {
    let last = args.len() - 1;
    let (mut reverse, mut limit) = (false, None);
    let mut at = 4;
    while at < last {
        let option = args.at(at);
        if is(option, "rev") {
            reverse = true;
        } else if is(option, "limit") {
            at += 1;
            let given = args.get(at).filter(|_| at < last).and_then(number::parse_u64);
            let missing = Refusal::Text("LIMIT needs a whole number that is not negative");
            limit = Some(given.ok_or(missing)?);
        } else {
            return Err(Refusal::Quoting {
                before: "syntax error: unknown option '",
                bytes: option,
                after: "'; allowed are REV and LIMIT n, and then one parameter",
            });
        }
        at += 1;
    }
    let (name, param) = (args.at(1), args.at(last));
    Ok(Functions::Range { name, first: args.at(2), last: args.at(3), reverse, limit, param })
}
