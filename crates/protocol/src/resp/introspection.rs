//! Commands about the server as a whole.

use super::acl;
use super::keys;
use super::options::is;
use super::refusal::Refusal;
use headwater_command::table::lookup;
use headwater_command::{
    Args, Command, Data, Id, Keys, ListFilter, Server, ShutdownOptions, Spec, number,
};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    let rest = args.from(2);
    if spec.full_name.starts_with("acl|") {
        return acl::decode(spec, args);
    }
    Ok(Command::Server(match spec.id {
        Id::Command => Server::Commands,
        Id::CommandCount => Server::CommandCount,
        Id::CommandInfo => Server::CommandInfo { names: rest },
        Id::CommandDocs => Server::CommandDocs { names: rest },
        Id::CommandList => Server::CommandList(list_filter(rest)?),
        Id::CommandGetKeys => Server::CommandGetKeys { request: rest },
        Id::CommandGetKeysAndFlags => Server::CommandGetKeysAndFlags { request: rest },
        Id::Info => Server::Info { sections: args.from(1) },
        Id::ConfigGet => Server::ConfigGet { patterns: rest },
        Id::ConfigSet if rest.len().is_multiple_of(2) => Server::ConfigSet { pairs: rest },
        Id::ConfigSet => return Err(Refusal::Syntax),
        Id::ConfigResetStat => Server::ConfigResetStat,
        Id::ConfigRewrite => Server::ConfigRewrite,
        Id::Time => Server::Time,
        Id::Role => Server::Role,
        Id::MemoryUsage => return Ok(Command::Data(Data::Keys(keys::memory_usage(args)?))),
        Id::MemoryStats => return Ok(Command::Data(Data::Keys(Keys::MemoryStats))),
        Id::MemoryPurge => Server::MemoryPurge,
        Id::MemoryDoctor => Server::MemoryDoctor,
        Id::SlowlogGet if args.len() <= 3 => Server::SlowlogGet { count: slowlog_count(args)? },
        Id::SlowlogGet => {
            return Err(Refusal::SubcommandArity { container: "SLOWLOG", name: args.at(1) });
        }
        Id::SlowlogLen => Server::SlowlogLen,
        Id::SlowlogReset => Server::SlowlogReset,
        Id::LatencyLatest => Server::LatencyLatest,
        Id::LatencyHistory => Server::LatencyHistory { event: args.at(2) },
        Id::LatencyHistogram => Server::LatencyHistogram { names: rest },
        Id::LatencyDoctor => Server::LatencyDoctor,
        Id::LatencyReset => Server::LatencyReset { events: rest },
        Id::DebugSleep => Server::DebugSleep { seconds: seconds(args.at(2))? },
        Id::DebugSetActiveExpire => Server::DebugSetActiveExpire {
            on: match args.at(2) {
                b"0" => false,
                b"1" => true,
                _ => return Err(Refusal::Text("DEBUG SET-ACTIVE-EXPIRE takes 0 or 1")),
            },
        },
        Id::DebugProtocol => Server::DebugProtocol { kind: args.at(2) },
        Id::Monitor => Server::Monitor,
        Id::BackupBegin => Server::BackupBegin,
        Id::BackupRead => Server::BackupRead {
            backup: backup(args)?,
            shard: number::parse_u64(args.at(2)).ok_or(Refusal::Text(
                "a shard is a whole number, below those that BACKUP.BEGIN gives",
            ))?,
        },
        Id::BackupEnd => Server::BackupEnd { backup: backup(args)? },
        Id::Shutdown => Server::Shutdown(shutdown(args.from(1))?),
        Id::CommandHelp => return Ok(help("command")),
        Id::ConfigHelp => return Ok(help("config")),
        Id::MemoryHelp => return Ok(help("memory")),
        Id::SlowlogHelp => return Ok(help("slowlog")),
        Id::LatencyHelp => return Ok(help("latency")),
        Id::DebugHelp => return Ok(help("debug")),
        _ => return Err(Refusal::Arity(spec)),
    }))
}

/// `CONTAINER HELP`.
pub(super) fn help(container: &str) -> Command<'static> {
    match lookup(container.as_bytes()) {
        Some(spec) => Command::Help(spec),
        None => unreachable!("'{container}' is in the command table"),
    }
}

/// The number of a backup.
fn backup<'a>(args: Args<'a>) -> Result<u64, Refusal<'a>> {
    number::parse_u64(args.at(1))
        .ok_or(Refusal::Text("a backup is a whole number, as BACKUP.BEGIN gives it"))
}

fn list_filter(options: Args<'_>) -> Result<ListFilter<'_>, Refusal<'_>> {
    match (options.get(0), options.get(1), options.get(2), options.len()) {
        (None, ..) => Ok(ListFilter::All),
        (Some(word), Some(by), Some(value), 3) if is(word, "filterby") => {
            if is(by, "module") {
                Ok(ListFilter::Module(value))
            } else if is(by, "aclcat") {
                Ok(ListFilter::Category(value))
            } else if is(by, "pattern") {
                Ok(ListFilter::Pattern(value))
            } else {
                Err(Refusal::Syntax)
            }
        }
        _ => Err(Refusal::Syntax),
    }
}

fn slowlog_count(args: Args<'_>) -> Result<Option<u64>, Refusal<'_>> {
    let Some(arg) = args.get(2) else { return Ok(Some(10)) };
    match number::parse_i64(arg) {
        Some(-1) => Ok(None),
        Some(count) if count >= 0 => Ok(Some(count.unsigned_abs())),
        _ => Err(Refusal::Text("count should be greater than or equal to -1")),
    }
}

fn seconds(arg: &[u8]) -> Result<f64, Refusal<'_>> {
    core::str::from_utf8(arg)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
        .ok_or(Refusal::Text("value is not a valid float"))
}

fn shutdown(options: Args<'_>) -> Result<ShutdownOptions, Refusal<'_>> {
    let mut chosen = ShutdownOptions::default();
    for option in options.iter() {
        if is(option, "nosave") && chosen.save != Some(true) {
            chosen.save = Some(false);
        } else if is(option, "save") && chosen.save != Some(false) {
            chosen.save = Some(true);
        } else if is(option, "now") {
            chosen.now = true;
        } else if is(option, "force") {
            chosen.force = true;
        } else if is(option, "abort") {
            chosen.abort = true;
        } else {
            return Err(Refusal::Syntax);
        }
    }
    if chosen.abort && options.len() > 1 {
        return Err(Refusal::Syntax);
    }
    Ok(chosen)
}
