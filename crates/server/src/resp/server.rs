//! Commands about the server as a whole.

use super::owners::tell_definition;
use super::{Flow, ShardService, Turn, encoder};
use crate::log::event;
use crate::replicated::ReplicaEnd;
use headwater_command::glob;
use headwater_command::{Args, ListFilter, Reply, Server, ShutdownOptions, describe, lock_script};
use headwater_protocol::resp::Version;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// DEBUG SLEEP sleeps at most so long: nobody is served meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

impl ShardService {
    /// Executes a command about the server as a whole.
    pub(super) fn server(
        &mut self,
        command: &Server<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        match command {
            Server::Commands => describe::commands(&mut encoder(work)),
            Server::CommandCount => describe::command_count(&mut encoder(work)),
            Server::CommandInfo { names } => describe::command_info(*names, &mut encoder(work)),
            Server::CommandDocs { names } => describe::command_docs(*names, &mut encoder(work)),
            Server::CommandList(filter) => command_list(filter, work),
            Server::CommandGetKeys { request } => {
                describe::command_getkeys(*request, false, &mut encoder(work));
            }
            Server::CommandGetKeysAndFlags { request } => {
                describe::command_getkeys(*request, true, &mut encoder(work));
            }
            Server::Info { sections } => self.info(*sections, work),
            Server::ConfigGet { patterns } => self.settings.config_get(*patterns, work),
            Server::ConfigSet { pairs } => self.config_set(*pairs, work),
            Server::ConfigResetStat => {
                self.reset_counters();
                encoder(work).ok();
            }
            Server::ConfigRewrite => encoder(work).error(
                "ERR",
                format_args!("CONFIG REWRITE is not supported: change the configuration file"),
            ),
            Server::Time => time(work),
            Server::Role => role(work),
            Server::SlowlogGet { count } => return self.figures.slowlog_get(*count, work),
            Server::SlowlogLen => encoder(work).integer(self.figures.slowlog_len() as i64),
            Server::SlowlogReset => {
                self.figures.slowlog_reset();
                encoder(work).ok();
            }
            Server::LatencyLatest => self.figures.latency_latest(work),
            Server::LatencyHistory { event } => self.figures.latency_history(event, work),
            Server::LatencyHistogram { names } => self.figures.latency_histogram(*names, work),
            Server::LatencyDoctor => self.latency_doctor(work),
            Server::LatencyReset { events } => {
                let count = self.figures.latency_reset(*events);
                encoder(work).integer(count as i64);
            }
            Server::DebugSleep { seconds } => {
                let asked = Duration::try_from_secs_f64(*seconds).unwrap_or_default();
                std::thread::sleep(asked.min(SLEEP_MAX));
                encoder(work).ok();
            }
            Server::DebugSetActiveExpire { on } => {
                self.node.engine_mut().set_active_expiry(*on);
                encoder(work).ok();
            }
            Server::DebugProtocol { kind } => example(kind, work),
            Server::MemoryPurge => {
                self.bound.gauge.purge();
                encoder(work).ok();
            }
            Server::MemoryDoctor => encoder(work).verbatim(
                *b"txt",
                b"No memory problem was found: see INFO memory and MEMORY STATS for what is used.",
            ),
            Server::ScriptLoad { sha } => encoder(work).bulk(sha.as_bytes()),
            Server::ScriptExists { shas } => {
                let mut out = encoder(work);
                out.array(shas.len());
                for sha in shas.iter() {
                    out.integer(i64::from(lock_script(sha).is_some()));
                }
            }
            Server::ScriptFlush => encoder(work).ok(),
            Server::BackupBegin => return self.backup_begin(args, work),
            Server::BackupRead { backup, shard } => self.stores.backup_read(*backup, *shard, work),
            Server::BackupEnd { backup } => self.stores.backup_end(*backup, work),
            Server::Monitor => return self.monitor(work),
            Server::Shutdown(options) => return self.shutdown(*options, work),
        }
        Flow::Next
    }

    /// SHUTDOWN: like Redis, it answers nothing, the connection just ends.
    fn shutdown(&mut self, options: ShutdownOptions, work: &mut Turn<'_>) -> Flow {
        if options.abort {
            encoder(work).error("ERR", format_args!("No shutdown in progress."));
            return Flow::Next;
        }
        let peer = &work.connection.peer;
        event!(info, "server", "shutdown_asked", %peer, "a client asks for the end (SHUTDOWN)");
        let user = work.connection.session.user.as_ref();
        tell_definition(user.map(|user| &*user.name), "shutdown", "");
        self.stopping = true;
        self.replica().into_iter().for_each(ReplicaEnd::end);
        Flow::Close
    }
}

fn command_list(filter: &ListFilter<'_>, work: &mut Turn<'_>) {
    let mut out = encoder(work);
    match filter {
        ListFilter::All => describe::command_list(&mut |_| true, &mut out),
        ListFilter::Module(_) => describe::command_list(&mut |_| false, &mut out),
        ListFilter::Category(category) => {
            describe::command_list(&mut |spec| describe::in_category(spec, category), &mut out);
        }
        ListFilter::Pattern(pattern) => describe::command_list(
            &mut |spec| glob::matches(pattern, spec.full_name.as_bytes()),
            &mut out,
        ),
    }
}

/// DEBUG PROTOCOL: one answer of each kind that clients may have to read, the same as Redis's.
fn example(kind: &[u8], work: &mut Turn<'_>) {
    let kind = kind.to_ascii_lowercase();
    let is_three = work.connection.session.version == Version::Resp3;
    match &*kind {
        // What no other command answers has no words of the encoder.
        b"bignum" if is_three => {
            work.out.extend_from_slice(format!("({BIG_NUMBER}\r\n").as_bytes());
        }
        b"bignum" => encoder(work).bulk(BIG_NUMBER.as_bytes()),
        b"attrib" => {
            if is_three {
                let attribute = "|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n";
                work.out.extend_from_slice(attribute.as_bytes());
            }
            encoder(work).bulk(b"Some real reply following the attribute");
        }
        b"push" if is_three => {
            let mut out = encoder(work);
            out.push(2);
            out.bulk(b"server-cpu-usage");
            out.integer(42);
            out.bulk(b"Some real reply following the push reply");
        }
        b"push" => {
            encoder(work).error("ERR", format_args!("RESP2 is not supported by this command"));
        }
        kind => plain_example(kind, &mut encoder(work)),
    }
}

const BIG_NUMBER: &str = "1234567999999999999999999999999999999";

fn plain_example(kind: &[u8], out: &mut impl Reply) {
    match kind {
        b"string" => out.bulk(b"Hello World"),
        b"integer" => out.integer(12345),
        b"double" => out.double(3141.0 / 1000.0),
        b"null" => out.null(),
        b"array" => {
            out.array(3);
            (0..3).for_each(|number| out.integer(number));
        }
        b"set" => {
            out.set(3);
            (0..3).for_each(|number| out.integer(number));
        }
        b"map" => {
            out.map(3);
            for number in 0..3 {
                out.integer(number);
                out.boolean(number == 1);
            }
        }
        b"verbatim" => out.verbatim(*b"txt", b"This is a verbatim\nstring"),
        b"true" => out.boolean(true),
        b"false" => out.boolean(false),
        _ => {
            let text = "Wrong protocol type name. Please use one of the following: \
                        string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false";
            out.error("ERR", format_args!("{text}"));
        }
    }
}

/// What Redis's masters answer: the place in a stream of changes that nobody follows, and no replicas.
fn role(work: &mut Turn<'_>) {
    let mut out = encoder(work);
    out.array(3);
    out.bulk(b"master");
    out.integer(0);
    out.array(0);
}

fn time(work: &mut Turn<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut out = encoder(work);
    out.array(2);
    out.bulk(now.as_secs().to_string().as_bytes());
    out.bulk(now.subsec_micros().to_string().as_bytes());
}
