//! From the arguments of a request to a command.
//!
//! Two steps, since a transaction takes only the first one when it queues a request: [`find`]
//! checks the name and the number of arguments, [`decode`] reads the options.
//!
//! # Cost
//! One table lookup and two jumps for the commands without options; nothing is allocated.

use super::refusal::Refusal;
use super::{
    bits, cluster, connection, flows, functions, introspection, keys, pubsub, ranges, scripts,
    shards, streams, strings, tables, transactions,
};
use headwater_command::table::{Group, lookup, lookup_subcommand};
use headwater_command::{Args, Command, Data, Id, SetCondition, SetExpiry, Spec, Strings};

/// The command that a request names, if it has the right number of arguments.
///
/// # Errors
/// No such command or subcommand, or a wrong number of arguments.
#[inline]
pub fn find(args: Args<'_>) -> Result<&'static Spec, Refusal<'_>> {
    let name = args.get(0).unwrap_or_default();
    let Some(spec) = lookup(name) else { return Err(Refusal::UnknownCommand(args)) };
    let spec = if spec.subcommands.is_empty() { spec } else { find_subcommand(spec, args)? };
    if !spec.arity_fits(args.len()) {
        return Err(Refusal::Arity(spec));
    }
    Ok(spec)
}

fn find_subcommand<'a>(
    container: &'static Spec,
    args: Args<'a>,
) -> Result<&'static Spec, Refusal<'a>> {
    let Some(name) = args.get(1) else { return Ok(container) };
    lookup_subcommand(container, name).ok_or(Refusal::UnknownSubcommand { container, name })
}

/// The command that `args` ask for, where [`find`] gave `spec` for them.
///
/// # Errors
/// An option that is unknown, misplaced or ill-formed.
#[inline]
pub fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    // The two that make most of the traffic, without the jumps.
    match spec.id {
        Id::Get => Ok(Command::Data(Data::Strings(Strings::Get { key: args.at(1) }))),
        Id::Set if args.len() == 3 => {
            let (key, value) = (args.at(1), args.at(2));
            let (condition, expiry) = (SetCondition::Always, SetExpiry::Never);
            let set = Strings::Set { key, value, condition, expiry, get: false };
            Ok(Command::Data(Data::Strings(set)))
        }
        _ => decode_by_family(spec, args),
    }
}

fn decode_by_family<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    match spec.group {
        Group::String => strings::decode(spec, args),
        Group::Bitmap => bits::decode(spec, args),
        Group::Generic => keys::decode(spec, args),
        Group::Stream => streams::decode(spec, args),
        Group::Range | Group::Join => ranges::decode(spec, args),
        Group::Table | Group::Source => tables::decode(spec, args),
        Group::Shard => shards::decode(spec, args),
        Group::Cluster => cluster::decode(spec, args),
        Group::Flow => flows::decode(spec, args),
        Group::Function => functions::decode(spec, args),
        Group::PubSub => pubsub::decode(spec, args),
        Group::Scripting => scripts::decode(spec, args),
        Group::Transactions => Ok(transactions::decode(spec, args)),
        Group::Connection => connection::decode(spec, args),
        Group::Server => introspection::decode(spec, args),
    }
}
