//! What a run costs: CPU seconds, memory, wall time; medians and ratios of several runs.

pub mod pin;
pub mod process;
pub mod stats;

use core::time::Duration;
use std::time::Instant;

/// CPU and wall time used so far; the difference of two is a cost.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    server: Duration,
    generator: Duration,
    wall: Instant,
}

impl Clock {
    /// The moment now, at which the server has used `server` of CPU.
    #[must_use]
    pub fn now(server: Duration) -> Self {
        Self { server, generator: process::own_cpu(), wall: Instant::now() }
    }

    /// Server CPU, generator CPU and wall time in seconds since `start`.
    #[must_use]
    pub fn since(&self, start: &Self) -> (f64, f64, f64) {
        (
            self.server.saturating_sub(start.server).as_secs_f64(),
            self.generator.saturating_sub(start.generator).as_secs_f64(),
            self.wall.duration_since(start.wall).as_secs_f64(),
        )
    }
}

/// What one run of one system cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// The system's name.
    pub system: &'static str,
    /// Which pair the run belongs to, from 1.
    pub pair: usize,
    /// User and system CPU seconds of the server's processes.
    pub server_cpu_s: f64,
    /// User and system CPU seconds of the generator.
    pub generator_cpu_s: f64,
    /// Seconds from the first request to the last reply.
    pub wall_s: f64,
    /// The server's peak resident memory.
    pub rss_bytes_max: u64,
    /// Operations done.
    pub operations: u64,
    /// Whether the sampled results are those of a recomputation.
    pub verified: bool,
}
