//! What no single setting can tell: bounds, and settings that contradict each other.

use super::http::HTTP_HEADER_BYTES_MIN;
use super::{Config, ConfigError, EventChannels, LogFormat, LogLevels, Percentiles};

use headwater_base::{Durability, Limits};
use headwater_policy::Policy;

/// Bytes of memory that must fit beside the empty server.
pub const LEAST_FOR_DATA: usize = 8 << 20;
/// Most shards.
pub(crate) const SHARDS_MAX: usize = 256;
/// Most threads for clients' sockets.
const IO_THREADS_MAX: usize = 64;

impl Config {
    /// Checks what no single setting can tell.
    ///
    /// # Errors
    /// A setting is out of its bounds, or settings contradict each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError(text));
        if self.listen.bind.is_empty() {
            return refuse(String::from("bind names no address (allowed: at least one)"));
        }
        self.check_tls()?;
        self.check_cluster()?;
        self.check_io_threads()?;
        self.check_doors()?;
        self.http.check_origins()?;
        self.check_users()?;
        let slow = self.observe.slowlog_microseconds_min;
        if slow < -1 {
            let name = "slowlog-microseconds-min";
            return refuse(format!("{name} is {slow} (allowed: -1 for none, or 0 and more)"));
        }
        let ceiling = Limits::KEY_BYTES_CEILING;
        let (http, clients) = (&self.http, &self.clients);
        let limits = &self.limits;
        let functions = &self.functions;
        let bounds = [
            ("key-bytes-max", limits.key_bytes_max, 1, ceiling),
            ("value-bytes-max", limits.value_bytes_max, 1, 512 << 20),
            ("join-depth-max", limits.join_depth_max as usize, 1, Limits::JOIN_DEPTH_CEILING),
            ("sources-max", limits.sources_max, 1, 64),
            ("slots-max", limits.slots_max, 1, 64),
            ("shards", usize::from(self.listen.shards.number()), 1, SHARDS_MAX),
            ("http-clients-max", http.http_clients_max, 1, 10_000),
            ("http-header-bytes-max", http.http_header_bytes_max, HTTP_HEADER_BYTES_MIN, 1 << 20),
            ("http-milliseconds-max", http.http_milliseconds_max as usize, 1, 3_600_000),
            ("http-watches-max", http.http_watches_max, 0, 10_000),
            (
                "http-heartbeat-milliseconds",
                http.http_heartbeat_milliseconds as usize,
                10,
                3_600_000,
            ),
            (
                "tls-handshake-milliseconds-max",
                self.tls.tls_handshake_milliseconds_max as usize,
                1,
                3_600_000,
            ),
            ("clients-unauthenticated-max", self.doors.clients_unauthenticated_max, 1, 1_000_000),
            ("clients-max", clients.clients_max, 1, 1_000_000),
            ("request-bytes-max", clients.request_bytes_max, 1 << 10, 2 << 30),
            ("arguments-max", clients.arguments_max, 16, 1 << 24),
            ("inline-bytes-max", clients.inline_bytes_max, 64, 1 << 20),
            ("output-bytes-soft", clients.output_bytes_soft, 1 << 10, 1 << 40),
            ("output-bytes-max", clients.output_bytes_max, 1 << 10, 1 << 40),
            ("pubsub-output-bytes-max", clients.pubsub_output_bytes_max, 1 << 10, 1 << 40),
            ("watch-output-bytes-max", clients.watch_output_bytes_max, 1 << 10, 1 << 40),
            ("watch-history-bytes-max", clients.watch_history_bytes_max, 0, 1 << 40),
            ("turn-requests-max", clients.turn_requests_max, 1, 1 << 20),
            ("slice-rows", clients.slice_rows, 0, 1 << 30),
            ("functions-max", functions.functions_max, 0, 4096),
            ("function-module-bytes-max", functions.function_module_bytes_max, 8, 16 << 20),
            ("function-milliseconds-max", functions.function_milliseconds_max as usize, 1, 60_000),
            ("function-memory-bytes-max", functions.function_memory_bytes_max, 0, 1 << 30),
            ("function-reply-bytes-max", functions.function_reply_bytes_max, 0, 256 << 20),
            ("function-write-bytes-max", functions.function_write_bytes_max, 0, 512 << 20),
            ("acllog-entries-max", self.observe.acllog_entries_max, 0, 1 << 20),
            ("slowlog-entries-max", self.observe.slowlog_entries_max, 0, 1 << 20),
            ("log-repeats-max", self.log.log_repeats_max as usize, 1, 1 << 20),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return refuse(format!("{name} is {value} (allowed: {least} to {most})"));
            }
        }
        if Policy::named(&self.memory.policy).is_none() {
            let names: Vec<&str> = Policy::ALL.iter().map(|(name, _)| *name).collect();
            return refuse(format!(
                "argument(s) must be one of the following: {} (policy)",
                names.join(", ")
            ));
        }
        let percentiles = &self.observe.latency_tracking_info_percentiles;
        if let Err(why) = percentiles.parse::<Percentiles>() {
            return refuse(format!("latency-tracking-info-percentiles is '{percentiles}' ({why})"));
        }
        let events = &self.observe.notify_keyspace_events;
        if let Err(why) = events.parse::<EventChannels>() {
            return refuse(format!("notify-keyspace-events is '{events}' ({why})"));
        }
        if let Err(why) = self.log.log_level.parse::<LogLevels>() {
            return refuse(format!("log-level is '{}' ({why})", self.log.log_level));
        }
        if let Err(why) = self.log.log_format.parse::<LogFormat>() {
            return refuse(format!("log-format is '{}' ({why})", self.log.log_format));
        }
        if let Err(allowed) = self.data.durability.parse::<Durability>() {
            return refuse(format!("durability is '{}' ({allowed})", self.data.durability));
        }
        if clients.output_bytes_soft > clients.output_bytes_max {
            return refuse(format!(
                "output-bytes-soft is {} (allowed: at most output-bytes-max, which is {})",
                clients.output_bytes_soft, clients.output_bytes_max
            ));
        }
        Ok(())
    }

    fn check_io_threads(&self) -> Result<(), ConfigError> {
        let (threads, shards) = (self.listen.io_threads, self.listen.shards.number());
        if !(1..=IO_THREADS_MAX).contains(&threads) {
            let text = format!("io-threads is {threads} (allowed: 1 to {IO_THREADS_MAX})");
            return Err(ConfigError(text));
        }
        // The shards of a cluster are in processes of their own.
        if threads > 1 && shards > 1 && !self.is_clustered() {
            return Err(ConfigError(format!(
                "io-threads is {threads}, and there are {shards} shards, each with a thread that serves clients (allowed: 1, or one shard)"
            )));
        }
        Ok(())
    }
}
