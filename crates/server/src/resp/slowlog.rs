//! SLOWLOG and LATENCY: which commands took long.

use super::session::{Across, Origin, Session};
use super::stats::all_specs;
use super::{Flow, ShardService, Turn, encoder};
use crate::connection::Connection;
use crate::log::event;
use crate::resp::parts::Figures;
use headwater_base::Millis;
use headwater_base::text::redact_words;
use headwater_command::{Args, Flags, OwnedArgs, Reply, Spec};
use headwater_protocol::resp::find;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Arguments that an entry keeps, and bytes of each; the rest is counted.
const ARGUMENTS_MAX: usize = 32;
const ARGUMENT_BYTES_MAX: usize = 128;
/// Spikes that LATENCY keeps per event.
const SPIKES_MAX: usize = 160;
/// The events, as Redis names them: commands whose cost depends on no size, and others.
const EVENTS: [&str; 2] = ["command", "fast-command"];

/// What the log tells of a slow command: no keys, and no values.
pub(crate) struct Told<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// How many keys it names.
    pub(crate) keys: usize,
}

/// One slow command.
#[derive(Debug)]
struct Entry {
    id: u64,
    at: Millis,
    micros: u64,
    arguments: Vec<Vec<u8>>,
    client: String,
    name: Vec<u8>,
}

/// The slow commands and latency spikes that are remembered; all shards have them together.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlowCommands(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    /// Newest last.
    entries: VecDeque<Entry>,
    next_id: u64,
    /// Per event: seconds since the epoch, and the worst milliseconds within that second.
    spikes: [VecDeque<(u64, u64)>; 2],
    worst: [u64; 2],
    /// Who the clients are that other shards execute requests of.
    clients: HashMap<Origin, ShownClient>,
}

/// Who a client is, as an entry shows it.
#[derive(Clone, Debug)]
struct ShownClient {
    peer: String,
    name: Vec<u8>,
}

impl ShownClient {
    fn of(connection: &Connection<Session>) -> Self {
        Self { peer: connection.peer.to_string(), name: connection.session.name().to_vec() }
    }
}

impl SlowCommands {
    fn with<T>(&self, look: impl FnOnce(&mut Remembered) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Remembered {
    fn shrink(&mut self, most: usize) {
        let over = self.entries.len().saturating_sub(most);
        self.entries.drain(..over);
    }

    fn spike(&mut self, event: usize, at: Millis, millis: u64) {
        let second = at.0 / 1000;
        self.worst[event] = self.worst[event].max(millis);
        let spikes = &mut self.spikes[event];
        match spikes.back_mut() {
            // Another shard's clock may be a moment ahead.
            Some((last, worst)) if *last >= second => *worst = (*worst).max(millis),
            _ => spikes.push_back((second, millis)),
        }
        if spikes.len() > SPIKES_MAX {
            spikes.pop_front();
        }
    }
}

/// The slow commands and latency spikes that are remembered.
#[derive(Debug, Default)]
pub(super) struct Slowlog {
    slow: SlowCommands,
}

impl Slowlog {
    /// A log of all shards.
    pub(super) fn new(slow: SlowCommands) -> Self {
        Self { slow }
    }

    /// Keeps at most this many slow commands.
    pub(super) fn shrink(&mut self, most: usize) {
        self.slow.with(|slow| slow.shrink(most));
    }
}

fn event_named(name: &[u8]) -> Option<usize> {
    EVENTS.iter().position(|event| event.as_bytes().eq_ignore_ascii_case(name))
}

/// Where the request begins that ACL DRYRUN asks about.
const DRY_RUN: usize = 3;

/// From which word of a command on nothing is shown, because it is a password.
pub(super) fn first_hidden(name: &str, args: &[&[u8]]) -> usize {
    let auth = |at: &usize| args[*at].eq_ignore_ascii_case(b"auth");
    match name {
        "auth" => 1,
        "hello" => (1..args.len()).find(auth).map_or(usize::MAX, |at| at + 1),
        "acl|setuser" | "acl|getuser" | "acl|deluser" => 2,
        // What it asks about is a command with its words.
        "acl|dryrun" => {
            let asked: OwnedArgs = args.iter().skip(DRY_RUN).copied().collect();
            match find(asked.args()).map_or("", |spec| spec.full_name) {
                "acl|dryrun" => DRY_RUN,
                name => first_hidden(name, args.get(DRY_RUN..).unwrap_or_default())
                    .saturating_add(DRY_RUN),
            }
        }
        // A URL is shown without its password; what is none may be anything that a database is asked with.
        "source.add" if args.get(3).is_some_and(|url| !is_url(url)) => 3,
        _ => usize::MAX,
    }
}

fn is_url(word: &[u8]) -> bool {
    word.windows(3).any(|part| part == b"://")
}

/// Whether a setting of this name may be a secret, if there is one: none may be shown that is only thought to be one of this server.
fn is_secret(setting: &[u8]) -> bool {
    let name = String::from_utf8_lossy(setting).to_ascii_lowercase();
    ["pass", "token", "secret", "masterauth"].iter().any(|part| name.contains(part))
}

/// The words of a command as an entry keeps them: without passwords, and without what proves who asks in URLs.
fn remembered(name: &str, args: &[&[u8]]) -> Vec<Vec<u8>> {
    const HIDDEN: &[u8] = b"(redacted)";
    let kept = if args.len() > ARGUMENTS_MAX { ARGUMENTS_MAX - 1 } else { args.len() };
    let hidden = first_hidden(name, args);
    let is_password = |at: usize| {
        at >= hidden || name == "config|set" && at > 2 && at % 2 == 1 && is_secret(args[at - 1])
    };
    let shown = args.iter().take(kept).enumerate();
    let mut arguments: Vec<Vec<u8>> = shown
        .map(|(at, arg)| if is_password(at) { HIDDEN.to_vec() } else { shortened(arg) })
        .collect();
    if kept < args.len() {
        arguments.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    arguments
}

/// A word without what proves who asks in URLs.
pub(super) fn without_secrets(word: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(word);
    let redacted = text.contains("://").then(|| redact_words(&text).into_bytes());
    redacted.map_or(Cow::Borrowed(word), Cow::Owned)
}

/// The beginning of a word.
fn shortened(arg: &[u8]) -> Vec<u8> {
    // A password before the cut is known by what is behind it.
    let head = &arg[..arg.len().min(8 * ARGUMENT_BYTES_MAX)];
    let shown = without_secrets(head);
    let more = arg.len() - head.len() + shown.len().saturating_sub(ARGUMENT_BYTES_MAX);
    let mut short = shown[..shown.len().min(ARGUMENT_BYTES_MAX)].to_vec();
    if more > 0 {
        short.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
    }
    short
}

impl ShardService {
    /// Remembers a command that took `micros`.
    #[cold]
    pub(super) fn note_slow(
        &mut self,
        micros: u64,
        spec: &'static Spec,
        args: Args<'_>,
        work: &Turn<'_>,
    ) {
        let words: Vec<&[u8]> = args.iter().collect();
        let words = (!spec.flags.has(Flags::SKIP_SLOWLOG)).then_some(&*words);
        let keys = spec.keys.positions(args.len()).filter(|at| *at < args.len()).count();
        let told = Told { name: spec.full_name, keys };
        self.note_slow_words(micros, spec.flags.has(Flags::FAST), &told, words, work);
    }

    /// As [`ShardService::note_slow`], of a request with these words, if they are to be remembered.
    #[cold]
    pub(crate) fn note_slow_words(
        &mut self,
        micros: u64,
        is_fast: bool,
        told: &Told<'_>,
        words: Option<&[&[u8]]>,
        work: &Turn<'_>,
    ) {
        let observe = &self.settings.config.observe;
        let at = work.time.wall;
        let millis = micros / 1000;
        if observe.latency_milliseconds_min > 0 && millis >= observe.latency_milliseconds_min {
            self.figures.slowlog.slow.with(|slow| slow.spike(usize::from(is_fast), at, millis));
        }
        let slow = u64::try_from(observe.slowlog_microseconds_min).is_ok_and(|min| micros >= min);
        if !slow {
            return;
        }
        let client = self.client_of(work.connection);
        {
            let (command, keys, peer) = (told.name, told.keys, &client.peer);
            event!(info, "slow", "slow_command", command, keys, micros, %peer, "a command took long");
        }
        let Some(words) = words.filter(|_| observe.slowlog_entries_max > 0) else { return };
        self.figures.slowlog.slow.with(|slow| {
            slow.entries.push_back(Entry {
                id: slow.next_id,
                at,
                micros,
                arguments: remembered(told.name, words),
                client: client.peer,
                name: client.name,
            });
            slow.next_id += 1;
            slow.shrink(observe.slowlog_entries_max);
        });
    }

    /// Who has sent a request that is executed here.
    fn client_of(&self, connection: &Connection<Session>) -> ShownClient {
        let of_others = match &connection.session.across {
            Across::Remote(remote) => {
                self.figures.slowlog.slow.with(|slow| slow.clients.get(&remote.origin).cloned())
            }
            _ => None,
        };
        of_others.unwrap_or_else(|| ShownClient::of(connection))
    }

    /// Has the other shards of the process know who asks them, in case that takes long.
    #[inline]
    pub(super) fn introduce(&self, work: &mut Turn<'_>) {
        if !work.connection.session.is_introduced {
            self.introduce_anew(work);
        }
    }

    #[cold]
    fn introduce_anew(&self, work: &mut Turn<'_>) {
        let session = &mut work.connection.session;
        (session.is_introduced, session.was_introduced) = (true, true);
        let origin = Origin { shard: self.others.me(), session: work.connection.id };
        let client = ShownClient::of(work.connection);
        self.figures.slowlog.slow.with(|slow| slow.clients.insert(origin, client));
    }

    /// A client of this shard has gone.
    pub(super) fn forget_introduced(&self, connection: &Connection<Session>) {
        if connection.session.was_introduced {
            let origin = Origin { shard: self.others.me(), session: connection.id };
            self.figures.slowlog.slow.with(|slow| slow.clients.remove(&origin));
        }
    }

    /// LATENCY DOCTOR.
    pub(super) fn latency_doctor(&self, work: &mut Turn<'_>) {
        let least = self.settings.config.observe.latency_milliseconds_min;
        let spikes = self.figures.slowlog.slow.with(|slow| {
            let told = slow.spikes.iter().enumerate().filter(|(_, spikes)| !spikes.is_empty());
            let told = told.map(|(event, spikes)| {
                let sum: u64 = spikes.iter().map(|(_, millis)| millis).sum();
                let (name, count, worst) = (EVENTS[event], spikes.len(), slow.worst[event]);
                let mean = sum / count as u64;
                format!("{name}: {count} spikes, mean {mean} ms, worst {worst} ms.\n")
            });
            told.collect::<Vec<_>>().concat()
        });
        let text = match (least, spikes.is_empty()) {
            (0, _) => String::from(
                "Spikes are not noted: CONFIG SET latency-monitor-threshold <milliseconds> begins it.\n",
            ),
            (_, true) => {
                format!("No command took {least} ms or more since the last LATENCY RESET.\n")
            }
            (_, false) => format!(
                "{spikes}SLOWLOG GET shows the commands, LATENCY HISTOGRAM how the times of each kind are spread. \
                 EXPLAIN says what a read of a join has to compute; \
                 slice-rows bounds what one command keeps others waiting for.\n"
            ),
        };
        encoder(work).verbatim(*b"txt", text.as_bytes());
    }
}

impl Figures {
    /// SLOWLOG GET.
    pub(super) fn slowlog_get(&self, count: Option<u64>, work: &mut Turn<'_>) -> Flow {
        let count = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
        let mut out = encoder(work);
        self.slowlog.slow.with(|slow| {
            out.array(slow.entries.len().min(count));
            for entry in slow.entries.iter().rev().take(count) {
                out.array(6);
                out.integer(entry.id as i64);
                out.integer((entry.at.0 / 1000) as i64);
                out.integer(entry.micros as i64);
                out.array(entry.arguments.len());
                entry.arguments.iter().for_each(|argument| out.bulk(argument));
                out.bulk(entry.client.as_bytes());
                out.bulk(&entry.name);
            }
        });
        Flow::Next
    }

    /// SLOWLOG LEN.
    pub(super) fn slowlog_len(&self) -> usize {
        self.slowlog.slow.with(|slow| slow.entries.len())
    }

    /// SLOWLOG RESET.
    pub(super) fn slowlog_reset(&mut self) {
        self.slowlog.slow.with(|slow| slow.entries.clear());
    }

    /// LATENCY LATEST.
    pub(super) fn latency_latest(&self, work: &mut Turn<'_>) {
        let mut out = encoder(work);
        self.slowlog.slow.with(|slow| {
            let known = slow.spikes.iter().filter(|spikes| !spikes.is_empty()).count();
            out.array(known);
            for (event, spikes) in slow.spikes.iter().enumerate() {
                if let Some(&(second, millis)) = spikes.back() {
                    out.array(4);
                    out.bulk(EVENTS[event].as_bytes());
                    out.integer(second as i64);
                    out.integer(millis as i64);
                    out.integer(slow.worst[event] as i64);
                }
            }
        });
    }

    /// LATENCY HISTORY.
    pub(super) fn latency_history(&self, event: &[u8], work: &mut Turn<'_>) {
        let mut out = encoder(work);
        let Some(event) = event_named(event) else {
            out.array(0);
            return;
        };
        self.slowlog.slow.with(|slow| {
            let spikes = &slow.spikes[event];
            out.array(spikes.len());
            for &(second, millis) in spikes {
                out.array(2);
                out.integer(second as i64);
                out.integer(millis as i64);
            }
        });
    }

    /// LATENCY HISTOGRAM: the named commands, those within a container with it, or all.
    pub(super) fn latency_histogram(&self, names: Args<'_>, work: &mut Turn<'_>) {
        let wanted: HashSet<Vec<u8>> = names.iter().map(<[u8]>::to_ascii_lowercase).collect();
        let is_named = |spec: &Spec| {
            let container = spec.full_name.split('|').next().unwrap_or_default();
            let either = [spec.full_name, container].map(str::to_ascii_lowercase);
            wanted.is_empty() || either.iter().any(|name| wanted.contains(name.as_bytes()))
        };
        let known = all_specs().filter(|spec| is_named(spec));
        let known = known.filter_map(|spec| Some((spec, self.stats.times.all.of(spec.id)?)));
        let known: Vec<_> = known.collect();
        let mut out = encoder(work);
        out.map(known.len());
        for (spec, spread) in known {
            out.bulk(spec.full_name.as_bytes());
            out.map(2);
            out.bulk(b"calls");
            out.integer(spread.count as i64);
            out.bulk(b"histogram_usec");
            let doublings = spread.doublings();
            out.map(doublings.len());
            for (micros, count) in doublings {
                out.integer(micros);
                out.integer(count as i64);
            }
        }
    }

    /// LATENCY RESET: how many events had something to forget.
    pub(super) fn latency_reset(&mut self, events: Args<'_>) -> usize {
        self.slowlog.slow.with(|slow| {
            let mut count = 0;
            for event in 0..EVENTS.len() {
                let named = events.iter().any(|name| event_named(name) == Some(event));
                if (events.is_empty() || named) && !slow.spikes[event].is_empty() {
                    slow.spikes[event].clear();
                    slow.worst[event] = 0;
                    count += 1;
                }
            }
            count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::remembered;

    #[test]
    fn entries_keep_no_passwords() {
        for (name, line, kept) in [
            ("auth", "AUTH ann hunter2", "AUTH (redacted) (redacted)"),
            ("hello", "HELLO 3 AUTH ann hunter2", "HELLO 3 AUTH (redacted) (redacted)"),
            ("hello", "HELLO 3 SETNAME x", "HELLO 3 SETNAME x"),
            (
                "config|set",
                "CONFIG SET timeout 5 RequirePass hunter2 maxclients 7",
                "CONFIG SET timeout 5 RequirePass (redacted) maxclients 7",
            ),
            ("acl|setuser", "ACL SETUSER ann >hunter2", "ACL SETUSER (redacted) (redacted)"),
            ("acl|dryrun", "ACL DRYRUN ann AUTH hunter2", "ACL DRYRUN ann AUTH (redacted)"),
            ("acl|dryrun", "ACL DRYRUN ann GET k", "ACL DRYRUN ann GET k"),
            (
                "acl|dryrun",
                "ACL DRYRUN ann ACL DRYRUN bob AUTH hunter2",
                "ACL DRYRUN ann (redacted) (redacted) (redacted) (redacted) (redacted)",
            ),
            (
                "config|set",
                "CONFIG SET http-token hunter2 port 1",
                "CONFIG SET http-token (redacted) port 1",
            ),
            (
                "config|set",
                "CONFIG SET tls-key-file-pass hunter2",
                "CONFIG SET tls-key-file-pass (redacted)",
            ),
            (
                "source.add",
                "SOURCE.ADD s postgres password=hunter2",
                "SOURCE.ADD s postgres (redacted)",
            ),
            (
                "source.add",
                "SOURCE.ADD s postgres postgres://ann:hunter2@db/x",
                "SOURCE.ADD s postgres postgres://ann:(redacted)@db/x",
            ),
            ("set", "SET k http://a:hunter2@b", "SET k http://a:(redacted)@b"),
        ] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let shown: Vec<String> = remembered(name, &words)
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            assert_eq!(shown.join(" "), kept);
        }
    }

    #[test]
    fn long_words_and_many_are_cut() {
        let long = vec![b'x'; 1000];
        let words = vec![&long[..]; 40];
        let kept = remembered("set", &words);
        assert_eq!(kept.len(), 32);
        assert!(kept[0].ends_with(b"x... (872 more bytes)"));
        assert_eq!(kept[31], b"... (9 more arguments)");
    }
}
