//! Counters of the server's own work.

use headwater_command::table::SPECS;
use headwater_command::{Id, Spec};

/// How often the rate of commands is taken, in milliseconds.
const SAMPLE_EVERY: u64 = 1000;

/// What is counted since the start, or since CONFIG RESETSTAT.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Names this run of the server; drawn at start.
    pub(super) run_id: String,
    /// Executions of each command, by its id.
    calls: Vec<u64>,
    /// Error replies.
    pub(crate) errors: u64,
    /// What was refused for want of a right: logins, commands, keys, channels.
    pub(crate) denied: [u64; 4],
    /// Connections accepted.
    pub(crate) connections: u64,
    /// Connections refused because there were too many.
    pub(crate) connections_refused: u64,
    /// Connections ended because clients took too much memory.
    pub(super) clients_evicted: u64,
    /// Commands per second, lately.
    pub(super) rate: u64,
    sampled: u64,
    sampled_at: u64,
}

/// Every command and subcommand.
pub(super) fn all_specs() -> impl Iterator<Item = &'static Spec> {
    SPECS.iter().flat_map(|spec| core::iter::once(spec).chain(spec.subcommands))
}

impl Stats {
    /// Nothing counted yet.
    pub(super) fn new(seed: u64) -> Self {
        let most = all_specs().map(|spec| spec.id as usize).max().unwrap_or(0);
        let mut mixed = seed;
        let words = (0..3).map(|_| {
            mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            format!("{mixed:016x}")
        });
        let mut run_id: String = words.collect();
        run_id.truncate(40);
        Self {
            run_id,
            calls: vec![0; most + 1],
            errors: 0,
            denied: [0; 4],
            connections: 0,
            connections_refused: 0,
            clients_evicted: 0,
            rate: 0,
            sampled: 0,
            sampled_at: 0,
        }
    }

    /// A command is executed.
    #[inline]
    pub(super) fn count(&mut self, id: Id) {
        self.calls[id as usize] += 1;
    }

    /// Executions of one command.
    pub(super) fn calls(&self, spec: &Spec) -> u64 {
        self.calls[spec.id as usize]
    }

    /// Executions of all commands.
    pub(super) fn commands(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Takes the rate of commands now and then.
    #[inline]
    pub(super) fn sample(&mut self, uptime: u64) {
        if uptime >= self.sampled_at + SAMPLE_EVERY {
            let commands = self.commands();
            self.rate = commands.saturating_sub(self.sampled) * 1000 / (uptime - self.sampled_at);
            self.sampled = commands;
            self.sampled_at = uptime;
        }
    }

    /// CONFIG RESETSTAT.
    pub(crate) fn reset(&mut self) {
        self.calls.fill(0);
        self.errors = 0;
        self.denied = [0; 4];
        self.connections = 0;
        self.connections_refused = 0;
        self.sampled = 0;
    }
}
