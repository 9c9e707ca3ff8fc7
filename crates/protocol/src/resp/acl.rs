//! Commands about users and their rights.

use super::introspection::help;
use super::options::is;
use super::refusal::Refusal;
use headwater_command::{Acl, Args, Command, Id, Spec, number};

/// Entries of the log that are answered where the client names no number.
const LOG_ENTRIES: u64 = 10;

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let rest = args.from(2);
    let at_most = |most: usize| {
        let name = args.at(1);
        let wrong = Refusal::SubcommandArity { container: "ACL", name };
        if args.len() > most { Err(wrong) } else { Ok(()) }
    };
    Ok(Command::Acl(match spec.id {
        Id::AclCat => {
            at_most(3)?;
            Acl::Cat { category: args.get(2) }
        }
        Id::AclDelUser => Acl::DelUser { names: rest },
        Id::AclDryRun => Acl::DryRun { user: args.at(2), request: args.from(3) },
        Id::AclGenPass => {
            at_most(3)?;
            Acl::GenPass { bits: args.get(2) }
        }
        Id::AclGetUser => Acl::GetUser { name: args.at(2) },
        Id::AclList => Acl::List,
        Id::AclLoad => Acl::Load,
        Id::AclLog => {
            at_most(3)?;
            match args.get(2) {
                None => Acl::Log { count: LOG_ENTRIES },
                Some(word) if is(word, "reset") => Acl::LogReset,
                Some(word) => match number::parse_i64(word) {
                    Some(count) => Acl::Log { count: count.max(0).unsigned_abs() },
                    None => return Err(Refusal::NotInteger),
                },
            }
        }
        Id::AclOwners => Acl::Owners,
        Id::AclSave => Acl::Save,
        Id::AclSetUser => Acl::SetUser { name: args.at(2), rules: args.from(3) },
        Id::AclUsers => Acl::Users,
        Id::AclWhoAmI => Acl::WhoAmI,
        Id::AclHelp => return Ok(help("acl")),
        _ => return Err(Refusal::Arity(spec)),
    }))
}
