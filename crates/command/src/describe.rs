//! The answers of COMMAND and its subcommands, from the command table.

use crate::args::Args;
use crate::reply::Reply;
use crate::table::{Flags, Group, Id, KeyArgs, SPECS, Spec, lookup, lookup_subcommand};
use crate::tips;

/// COMMAND: every command's description.
pub fn commands(reply: &mut impl Reply) {
    reply.array(SPECS.len());
    for spec in SPECS {
        describe(spec, reply);
    }
}

/// COMMAND COUNT.
pub fn command_count(reply: &mut impl Reply) {
    reply.integer(SPECS.len() as i64);
}

/// COMMAND INFO: descriptions of the named commands (all, where none is named).
pub fn command_info(names: Args<'_>, reply: &mut impl Reply) {
    if names.is_empty() {
        return commands(reply);
    }
    reply.array(names.len());
    for name in names.iter() {
        match find(name) {
            Some(spec) => describe(spec, reply),
            None => reply.null_array(),
        }
    }
}

/// COMMAND DOCS: documentation of the named commands (all, where none is named).
pub fn command_docs(names: Args<'_>, reply: &mut impl Reply) {
    if names.is_empty() {
        reply.map(SPECS.len());
        for spec in SPECS {
            document(spec, reply);
        }
        return;
    }
    reply.map(names.iter().filter(|name| find(name).is_some()).count());
    for spec in names.iter().filter_map(find) {
        document(spec, reply);
    }
}

/// COMMAND LIST: names of the commands that `chosen` accepts.
pub fn command_list(chosen: &mut dyn FnMut(&Spec) -> bool, reply: &mut impl Reply) {
    let mut names = alloc::vec::Vec::new();
    for spec in SPECS.iter().flat_map(|spec| core::iter::once(spec).chain(spec.subcommands)) {
        if chosen(spec) {
            names.push(spec.full_name);
        }
    }
    reply.array(names.len());
    for name in names {
        reply.bulk(name.as_bytes());
    }
}

/// Whether a command is in this category (named without `@`).
#[must_use]
pub fn in_category(spec: &Spec, category: &[u8]) -> bool {
    categories(spec).any(|own| own.as_bytes()[1..].eq_ignore_ascii_case(category))
}

/// `CONTAINER HELP`: its subcommands, a line or two each.
pub fn help(container: &Spec, reply: &mut impl Reply) {
    let upper = |spec: &Spec| spec.name.to_ascii_uppercase();
    reply.array(1 + 2 * container.subcommands.len());
    let title = upper(container);
    reply.simple(&alloc::format!("{title} <subcommand> [<arg> ...]. Subcommands are:"));
    for sub in container.subcommands {
        reply.simple(alloc::format!("{} {}", upper(sub), sub.usage).trim_end());
        reply.simple(&alloc::format!("    {}", sub.summary));
    }
}

/// COMMAND GETKEYS and, with `flags`, COMMAND GETKEYSANDFLAGS.
pub fn command_getkeys(request: Args<'_>, flags: bool, reply: &mut impl Reply) {
    let Some(spec) = request.get(0).and_then(lookup) else {
        return reply.error("ERR", format_args!("Invalid command specified"));
    };
    let named = request.get(1).and_then(|name| lookup_subcommand(spec, name));
    let spec = named.unwrap_or(spec);
    if spec.keys.first == 0 {
        return reply.error("ERR", format_args!("The command has no key arguments"));
    }
    if !spec.arity_fits(request.len()) {
        let text = "Invalid number of arguments specified for command";
        return reply.error("ERR", format_args!("{text}"));
    }
    let positions = spec.keys.positions(request.len());
    reply.array(positions.clone().count());
    for at in positions {
        if !flags {
            reply.bulk(request.at(at));
            continue;
        }
        reply.array(2);
        reply.bulk(request.at(at));
        let first = at == spec.keys.first as usize;
        write_texts(&mut access_of(spec, Some(request), first).iter().copied(), reply);
    }
}

fn find(name: &[u8]) -> Option<&'static Spec> {
    match name.iter().position(|&byte| byte == b'|') {
        None => lookup(name),
        Some(at) => lookup_subcommand(lookup(&name[..at])?, &name[at + 1..]),
    }
}

fn access(spec: &Spec) -> &'static [&'static str] {
    if spec.flags.has(Flags::WRITE) { &["RW", "access", "update"] } else { &["RO", "access"] }
}

/// What a request (`None`: any) does to its first key, or to another one, in Redis's words.
fn access_of(spec: &Spec, request: Option<Args<'_>>, first: bool) -> &'static [&'static str] {
    let gets = |request: Args<'_>| request.iter().any(|word| word.eq_ignore_ascii_case(b"get"));
    match spec.id {
        Id::Set if request.is_none_or(gets) => &["RW", "access", "update"],
        Id::Set | Id::SetEx | Id::PSetEx | Id::MSet => &["OW", "update"],
        Id::SetNx | Id::MSetNx => &["OW", "insert"],
        Id::Del | Id::Unlink => &["RM", "delete"],
        Id::GetDel | Id::DelIfEq => &["RW", "access", "delete"],
        Id::Rename | Id::RenameNx if first => &["RW", "access", "delete"],
        Id::RenameNx => &["OW", "insert"],
        Id::Rename => &["OW", "update"],
        Id::Copy if first => &["RO", "access"],
        Id::Copy => &["OW", "update"],
        Id::BitOp if first => &["OW", "update"],
        Id::BitOp => &["RO", "access"],
        Id::Restore => &["OW", "update"],
        Id::Append | Id::StreamAppend => &["RW", "insert"],
        Id::SetRange
        | Id::Expire
        | Id::PExpire
        | Id::ExpireAt
        | Id::PExpireAt
        | Id::Persist
        | Id::PExpireIfEq => &["RW", "update"],
        Id::Exists
        | Id::StrLen
        | Id::Type
        | Id::Touch
        | Id::Watch
        | Id::MemoryUsage
        | Id::StreamLen
        | Id::StreamInfo
        | Id::ObjectEncoding
        | Id::ObjectIdleTime
        | Id::ObjectFreq
        | Id::ObjectRefCount => &["RO"],
        _ => access(spec),
    }
}

fn write_texts(texts: &mut (impl Iterator<Item = &'static str> + Clone), reply: &mut impl Reply) {
    reply.set(texts.clone().count());
    for text in texts {
        reply.simple(text);
    }
}

/// The categories that there are, without `@`: also those of Redis that have no commands here, since rules name them.
pub const CATEGORIES: [&str; 24] = [
    "keyspace",
    "read",
    "write",
    "string",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "define",
    "connect",
    "audit",
    "set",
    "sortedset",
    "list",
    "hash",
    "bitmap",
    "hyperloglog",
    "geo",
    "scripting",
];

/// Whether a command changes what is computed, called or mapped: joins, tables, flows, modules of functions.
fn defines(spec: &Spec) -> bool {
    let is_definition =
        matches!(spec.group, Group::Join | Group::Table | Group::Flow | Group::Function);
    is_definition && spec.flags.has(Flags::ADMIN)
}

/// Commands of other groups that Redis counts among those of connections: clients send them before any other.
fn is_of_connections(spec: &Spec) -> bool {
    matches!(spec.id, Id::ReadOnly | Id::ReadWrite | Id::Wait)
        || spec.full_name.split('|').next() == Some("command")
}

fn categories(spec: &Spec) -> impl Iterator<Item = &'static str> + Clone {
    let is = |flag| spec.flags.has(flag);
    [
        ("@keyspace", spec.group == Group::Generic),
        ("@read", is(Flags::READONLY)),
        ("@write", is(Flags::WRITE)),
        ("@string", spec.group == Group::String),
        ("@bitmap", spec.group == Group::Bitmap),
        ("@stream", spec.group == Group::Stream),
        ("@pubsub", is(Flags::PUBSUB)),
        ("@admin", is(Flags::ADMIN) || spec.id == Id::Role),
        ("@fast", is(Flags::FAST)),
        ("@slow", !is(Flags::FAST)),
        ("@blocking", is(Flags::BLOCKING)),
        ("@dangerous", is(Flags::DANGEROUS)),
        ("@connection", spec.group == Group::Connection || is_of_connections(spec)),
        ("@transaction", spec.group == Group::Transactions),
        ("@scripting", spec.group == Group::Scripting),
        ("@define", defines(spec)),
        ("@connect", spec.group == Group::Source && is(Flags::ADMIN)),
        ("@audit", matches!(spec.id, Id::Explain | Id::ExplainRange | Id::Verify)),
    ]
    .into_iter()
    .filter_map(|(name, holds)| holds.then_some(name))
}

fn describe(spec: &Spec, reply: &mut impl Reply) {
    reply.array(10);
    reply.bulk(spec.full_name.as_bytes());
    reply.integer(i64::from(spec.arity));
    write_texts(&mut spec.flags.words(), reply);
    reply.integer(i64::from(spec.keys.first));
    reply.integer(i64::from(spec.keys.last));
    reply.integer(i64::from(spec.keys.step));
    write_texts(&mut categories(spec), reply);
    let tips = tips::of(spec);
    reply.array(tips.len());
    tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    describe_keys(spec, reply);
    reply.array(spec.subcommands.len());
    for sub in spec.subcommands {
        describe(sub, reply);
    }
}

/// The key specifications of Redis 7, one for what is done to keys in the same way: where the search begins and how it goes on.
fn describe_keys(spec: &Spec, reply: &mut impl Reply) {
    let KeyArgs { first, last, step } = spec.keys;
    if first == 0 {
        return reply.array(0);
    }
    // What is done to the first key may differ from what is done to the others.
    let others = access_of(spec, None, false);
    let differ = last != first && access_of(spec, None, true) != others;
    reply.array(1 + usize::from(differ));
    let first_last = if differ { first } else { last };
    describe_range(access_of(spec, None, true), KeyArgs { first, last: first_last, step }, reply);
    if differ {
        describe_range(others, KeyArgs { first: first + step, last, step }, reply);
    }
}

/// A key specification: keys at these places, and what is done to them.
fn describe_range(access: &[&'static str], keys: KeyArgs, reply: &mut impl Reply) {
    reply.map(3);
    reply.bulk(b"flags");
    write_texts(&mut access.iter().copied(), reply);
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(i64::from(keys.first));
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    let last = if keys.last < 0 { keys.last } else { keys.last - keys.first };
    for (name, number) in [("lastkey", last), ("keystep", keys.step), ("limit", 0)] {
        reply.bulk(name.as_bytes());
        reply.integer(i64::from(number));
    }
}

fn document(spec: &Spec, reply: &mut impl Reply) {
    reply.bulk(spec.full_name.as_bytes());
    let parts = 3 + usize::from(!spec.usage.is_empty()) + usize::from(!spec.subcommands.is_empty());
    reply.map(parts);
    let texts = [("summary", spec.summary), ("since", spec.since), ("group", spec.group.name())];
    for (name, text) in texts {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if !spec.usage.is_empty() {
        reply.bulk(b"arguments");
        reply.array(1);
        reply.map(3);
        for (name, text) in [("name", spec.usage), ("type", "string"), ("display_text", spec.usage)]
        {
            reply.bulk(name.as_bytes());
            reply.bulk(text.as_bytes());
        }
    }
    if !spec.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(spec.subcommands.len());
        for sub in spec.subcommands {
            document(sub, reply);
        }
    }
}
