//! Counters of the server's own work: plain numbers of each shard's thread.

use super::times::{CommandTimes, Spreads};
use headwater_command::table::{NUMBERS, SPECS};
use headwater_command::{Id, Spec};
use std::collections::BTreeMap;

/// How often rates are taken, in milliseconds.
const SAMPLE_EVERY: u64 = 1000;
/// Kinds of errors that are counted apart; what functions make up may be anything.
const ERROR_KINDS_MAX: usize = 128;
/// What further ones are counted as.
const OTHER_ERRORS: &str = "OTHER";

/// What is counted of one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Calls {
    /// Executions. Where a shard rejects what another one has counted, it takes it back: the sum of all shards is right.
    pub(super) executed: i64,
    /// Requests that were refused before they were executed.
    pub(super) rejected: u64,
    /// Executions that were answered with an error.
    pub(super) failed: u64,
}

/// What has grown since the start, of which rates are taken.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    commands: u64,
    received: u64,
    sent: u64,
}

/// What is counted since the start, or since CONFIG RESETSTAT.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Names this run of the server; drawn at start.
    pub(super) run_id: String,
    /// Of each command, by its id.
    calls: Vec<Calls>,
    /// How long commands take.
    pub(super) times: CommandTimes,
    /// Error replies in memcached's protocol.
    pub(crate) errors: u64,
    /// Error replies in RESP, by the word that they begin with.
    errors_by_code: BTreeMap<String, u64>,
    /// The request under way was refused before it was executed.
    pub(super) is_rejected: bool,
    /// What was refused for want of a right: logins, commands, keys, channels.
    pub(crate) denied: [u64; 4],
    /// Connections accepted.
    pub(crate) connections: u64,
    /// Connections refused because there were too many.
    pub(crate) connections_refused: u64,
    /// Writes refused for want of memory.
    pub(super) no_room: u64,
    /// Connections ended because clients took too much memory.
    pub(super) clients_evicted: u64,
    /// Bytes that clients have sent, and those that they were sent.
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// How often clients were read from, and written to.
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// Commands per second, lately.
    pub(super) rate: u64,
    /// Bytes per second from clients, and to them, lately.
    pub(super) byte_rates: [u64; 2],
    sampled: Amounts,
    sampled_at: u64,
}

/// Every command and subcommand.
pub(super) fn all_specs() -> impl Iterator<Item = &'static Spec> {
    SPECS.iter().flat_map(|spec| core::iter::once(spec).chain(spec.subcommands))
}

impl Stats {
    /// Nothing counted yet.
    pub(super) fn new(seed: u64, spreads: Spreads) -> Self {
        let mut mixed = seed;
        let words = (0..3).map(|_| {
            mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            format!("{mixed:016x}")
        });
        let mut run_id: String = words.collect();
        run_id.truncate(40);
        Self {
            run_id,
            calls: vec![Calls::default(); NUMBERS],
            times: CommandTimes::new(spreads),
            errors: 0,
            errors_by_code: BTreeMap::new(),
            is_rejected: false,
            denied: [0; 4],
            connections: 0,
            connections_refused: 0,
            no_room: 0,
            clients_evicted: 0,
            received_bytes: 0,
            sent_bytes: 0,
            reads: 0,
            writes: 0,
            rate: 0,
            byte_rates: [0; 2],
            sampled: Amounts::default(),
            sampled_at: 0,
        }
    }

    /// A command is executed.
    #[inline]
    pub(super) fn count(&mut self, id: Id) {
        self.calls[id as usize].executed += 1;
    }

    /// A request is refused before it is executed; `counted`: it was taken for one that is.
    pub(super) fn reject(&mut self, id: Id, counted: bool) {
        let calls = &mut self.calls[id as usize];
        calls.rejected += 1;
        calls.executed -= i64::from(counted);
    }

    /// An execution is answered with an error.
    pub(super) fn fail(&mut self, id: Id) {
        self.calls[id as usize].failed += 1;
    }

    /// An error begins with this word.
    pub(super) fn count_error(&mut self, code: &str) {
        let is_new = !self.errors_by_code.contains_key(code);
        let many = is_new && self.errors_by_code.len() >= ERROR_KINDS_MAX;
        let code = if many { OTHER_ERRORS } else { code };
        *self.errors_by_code.entry(code.to_owned()).or_default() += 1;
    }

    /// Error replies in RESP, by the word that they begin with.
    pub(super) fn errors_by_code(&self) -> impl Iterator<Item = (&str, u64)> {
        self.errors_by_code.iter().map(|(code, count)| (code.as_str(), *count))
    }

    /// All error replies.
    pub(super) fn errors_all(&self) -> u64 {
        self.errors + self.errors_by_code.values().sum::<u64>()
    }

    /// What is counted of one command.
    pub(super) fn calls(&self, spec: &Spec) -> Calls {
        self.calls[spec.id as usize]
    }

    /// Executions of all commands.
    pub(super) fn commands(&self) -> u64 {
        u64::try_from(self.calls.iter().map(|calls| calls.executed).sum::<i64>()).unwrap_or(0)
    }

    /// Takes rates now and then.
    #[inline]
    pub(super) fn sample(&mut self, uptime: u64) {
        if uptime >= self.sampled_at + SAMPLE_EVERY {
            let commands = self.commands();
            let amounts =
                Amounts { commands, received: self.received_bytes, sent: self.sent_bytes };
            let before = core::mem::replace(&mut self.sampled, amounts);
            let millis = uptime - self.sampled_at;
            let rate = |now: u64, before: u64| now.saturating_sub(before) * 1000 / millis;
            self.rate = rate(amounts.commands, before.commands);
            self.byte_rates =
                [rate(amounts.received, before.received), rate(amounts.sent, before.sent)];
            self.sampled_at = uptime;
        }
    }

    /// CONFIG RESETSTAT.
    pub(crate) fn reset(&mut self) {
        self.calls.fill(Calls::default());
        self.times.reset();
        self.errors = 0;
        self.errors_by_code.clear();
        self.denied = [0; 4];
        self.connections = 0;
        self.connections_refused = 0;
        self.no_room = 0;
        self.clients_evicted = 0;
        self.received_bytes = 0;
        self.sent_bytes = 0;
        self.reads = 0;
        self.writes = 0;
        self.sampled = Amounts::default();
    }
}
