//! MONITOR: what all clients ask, line by line, for whoever administers the server.
//!
//! A shard notes each request of its clients as it begins to execute it, and tells the shards that have monitors: what was asked, when, and for whom.
//! The line that a monitor reads is written where that is. What administers the server is not shown, nor are passwords. A request of a transaction is shown when EXEC is. What a
//! monitor asks itself is not shown to it.
//!
//! # Cost
//! While nobody monitors, a look at a number that is never written.

use super::slowlog::{first_hidden, without_secrets};
use super::{Flow, Session, ShardService, Turn, encoder};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::shards::{ShardMessage, Transport};
use core::fmt::Write;
use headwater_base::Shard;
use headwater_base::wire::{WireReader, put_bytes, put_u32, put_u64};
use headwater_command::{Args, Flags, Id, OwnedArgs, Reply, Spec};
use headwater_protocol::resp::find;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A request that hides more words is none.
const HIDDEN_MAX: usize = 1 << 20;

/// Where somebody monitors.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommonMonitors(Arc<MonitorsOfShards>);

#[derive(Debug, Default)]
struct MonitorsOfShards {
    all: AtomicUsize,
    /// How many each shard has that has some.
    by_shard: Mutex<BTreeMap<Shard, usize>>,
}

impl CommonMonitors {
    fn set(&self, shard: Shard, count: usize) {
        let mut by_shard = self.0.by_shard.lock().unwrap_or_else(PoisonError::into_inner);
        match count {
            0 => by_shard.remove(&shard),
            _ => by_shard.insert(shard, count),
        };
        self.0.all.store(by_shard.values().sum(), Ordering::Release);
    }

    fn shards(&self) -> Vec<Shard> {
        let by_shard = self.0.by_shard.lock().unwrap_or_else(PoisonError::into_inner);
        by_shard.keys().copied().collect()
    }
}

/// The clients of this shard that monitor.
#[derive(Debug, Default)]
pub(super) struct Monitors {
    common: CommonMonitors,
    own: BTreeSet<ConnectionId>,
}

impl Monitors {
    pub(super) fn of(transport: Option<&Arc<Transport>>) -> Self {
        let common = transport.map(|transport| transport.monitors().clone()).unwrap_or_default();
        Self { common, own: BTreeSet::new() }
    }

    /// Whether anybody monitors, at whatever shard.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.common.0.all.load(Ordering::Relaxed) > 0
    }
}

impl ShardService {
    /// MONITOR.
    pub(super) fn monitor(&mut self, work: &mut Turn<'_>) -> Flow {
        work.connection.session.monitors = true;
        self.pushes.monitors.own.insert(work.connection.id);
        self.pushes.monitors.common.set(self.others.me(), self.pushes.monitors.own.len());
        encoder(work).ok();
        Flow::Next
    }

    /// A client monitors no more.
    pub(super) fn forget_monitor(&mut self, id: ConnectionId, session: &mut Session) {
        if core::mem::take(&mut session.monitors) {
            self.pushes.monitors.own.remove(&id);
            self.pushes.monitors.common.set(self.others.me(), self.pushes.monitors.own.len());
        }
    }

    /// Shows a request of a client to those who monitor; one within a transaction was shown with EXEC.
    #[cold]
    pub(super) fn show(&mut self, spec: &Spec, args: Args<'_>, work: &mut Turn<'_>) {
        if self.waits.executing_queue || work.connection.is_remote() || spec.flags.has(Flags::ADMIN)
        {
            return;
        }
        let mut shown = Vec::new();
        note_request(spec, args, &work.connection.peer.to_string(), &mut shown);
        for at in self.pushes.monitors.common.shards() {
            match &mut self.others.shards {
                Some(shards) if at != shards.me => {
                    let batch = shards.outbox.to(at);
                    batch.bytes.extend_from_slice(&shown);
                    let end = batch.bytes.len();
                    batch.messages.push(ShardMessage::Monitored { end });
                }
                _ => self.show_noted(&shown, Some(work.connection.id), work.peers),
            }
        }
    }

    /// Shows a request to those who monitor, if it comes for the first time.
    #[inline]
    pub(super) fn show_new(
        &mut self,
        (spec, is_first): (&Spec, bool),
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) {
        if is_first && self.pushes.monitors.any() {
            self.show_first(spec, args, work);
        }
    }

    /// Shows a request that is new: EXEC only where there is nothing to execute, else it is shown with that.
    #[cold]
    fn show_first(&mut self, spec: &Spec, args: Args<'_>, work: &mut Turn<'_>) {
        let queue = work.connection.session.queue.as_ref();
        if spec.id != Id::Exec || queue.is_none_or(|queue| queue.broken) {
            self.show(spec, args, work);
        }
    }

    /// Shows the requests of a transaction, which EXEC is about to execute, and it behind them.
    pub(super) fn show_queue(
        &mut self,
        requests: &[OwnedArgs],
        exec: Args<'_>,
        work: &mut Turn<'_>,
    ) {
        if !self.pushes.monitors.any() {
            return;
        }
        for request in requests {
            if let Ok(spec) = find(request.args()) {
                self.show(spec, request.args(), work);
            }
        }
        if let Ok(spec) = find(exec) {
            self.show(spec, exec, work);
        }
    }

    /// Shows a request, as it crosses between shards, to the monitors of this shard but for the one that is being served.
    pub(super) fn show_noted(
        &self,
        shown: &[u8],
        served: Option<ConnectionId>,
        connections: &mut Connections<Session>,
    ) {
        let Some(line) = line_of(shown) else { return };
        let most =
            (self.settings.lowered.clients.pubsub_output_bytes_max, self.bound.clients_bytes_max);
        for &id in self.pushes.monitors.own.iter().filter(|id| Some(**id) != served) {
            connections.deliver(id, &line, most);
        }
    }
}

/// Writes a request as it crosses to monitors: the microsecond, for whom, how many of its last words are hidden, and its words without secrets.
fn note_request(spec: &Spec, args: Args<'_>, client: &str, out: &mut Vec<u8>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let words: Vec<&[u8]> = args.iter().collect();
    let shown = first_hidden(spec.full_name, &words).min(words.len());
    put_u64(out, now.as_micros() as u64);
    put_bytes(out, client.as_bytes());
    put_u32(out, words.len() - shown);
    words[..shown].iter().for_each(|word| put_bytes(out, &without_secrets(word)));
}

/// The line that shows a request; `None`: the bytes are none.
fn line_of(shown: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = WireReader::of(shown);
    let (micros, client, hidden) = (bytes.u64()?, bytes.text()?, bytes.u32()?);
    if client.contains(char::is_control) || hidden > HIDDEN_MAX {
        return None;
    }
    let (secs, micros) = (micros / 1_000_000, micros % 1_000_000);
    let mut line = format!("+{secs}.{micros:06} [0 {client}]");
    while !bytes.rest().is_empty() {
        push_quoted(bytes.bytes()?, &mut line);
    }
    (0..hidden).for_each(|_| line.push_str(" \"(redacted)\""));
    line.push_str("\r\n");
    Some(line.into_bytes())
}

/// Whether bytes are a request as it crosses to monitors.
pub(crate) fn is_monitored(bytes: &[u8]) -> bool {
    line_of(bytes).is_some()
}

/// A request as it crosses.
#[cfg(test)]
pub(crate) fn monitored_example() -> Vec<u8> {
    let mut bytes = vec![7; 8];
    put_bytes(&mut bytes, b"1.2.3.4:5");
    put_u32(&mut bytes, 1);
    [&b"AUTH"[..], b"ann"].iter().for_each(|word| put_bytes(&mut bytes, word));
    bytes
}

/// A word in quotes, in printable characters.
fn push_quoted(word: &[u8], line: &mut String) {
    line.push_str(" \"");
    for &byte in word {
        match byte {
            b'"' | b'\\' => line.extend(['\\', char::from(byte)]),
            b'\n' => line.push_str("\\n"),
            b'\r' => line.push_str("\\r"),
            b'\t' => line.push_str("\\t"),
            7 => line.push_str("\\a"),
            8 => line.push_str("\\b"),
            b' '..=b'~' => line.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(line, "\\x{byte:02x}")),
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_words_and_no_password() {
        for (words, shown) in [
            (&["SET", "k", "a \"b\"\\\n\u{7f}"][..], r#""SET" "k" "a \"b\"\\\n\x7f""#),
            (&["AUTH", "ann", "hunter2"], r#""AUTH" "(redacted)" "(redacted)""#),
            (&["SET", "k", "http://a:hunter2@b"], r#""SET" "k" "http://a:(redacted)@b""#),
        ] {
            let owned: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
            let spec = find(owned.args()).ok().unwrap();
            let mut noted = Vec::new();
            note_request(spec, owned.args(), "1.2.3.4:5", &mut noted);
            let line = String::from_utf8(line_of(&noted).unwrap()).unwrap();
            let end = format!(" [0 1.2.3.4:5] {shown}\r\n");
            assert!(line.starts_with('+') && line.ends_with(&end), "{line}");
        }
    }

    /// What crosses has no word of a client's protocol, and cannot bring any into a line.
    #[test]
    fn what_is_no_request_is_not_shown() {
        let noted = monitored_example();
        let line = line_of(&noted).unwrap();
        let text = "+506381209866.536711 [0 1.2.3.4:5] \"AUTH\" \"ann\" \"(redacted)\"\r\n";
        assert_eq!(String::from_utf8(line).unwrap(), text);
        for end in 0..noted.len() {
            let is_between = end == noted.len() - 7 || end == noted.len() - 15;
            assert_eq!(is_monitored(&noted[..end]), is_between, "{end}");
        }
        let mut wrong = noted.clone();
        wrong[12] = b'\n';
        assert!(!is_monitored(&wrong) && !is_monitored(b"+1.0 [0 a] \"GET\"\r\n"));
        let mut hides = noted;
        hides[21..25].fill(0xff);
        assert!(!is_monitored(&hides), "so many words no request has");
    }
}
