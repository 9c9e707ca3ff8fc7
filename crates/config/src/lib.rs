//! Every setting: its name, its default, and what it may be.
//!
//! A setting's value comes from the command line, else from the configuration file, else it
//! is the default below. `headwater.example.toml` describes them all; a test holds the two
//! together. Names are unique across sections, so that CONFIG GET can list them flat.

mod check;
mod cluster;
mod doors;
mod flows;
mod format;
mod hints;
mod http;
mod keyspace;
mod levels;
mod log;
mod number_or_word;
mod percentiles;
mod port;
mod processes;
mod secrets;
pub mod settings;
mod shards;
mod size;
mod tls;
mod users;

pub use check::LEAST_FOR_DATA;
pub use cluster::Cluster;
pub use cluster::{link_address, link_port};
pub use doors::{Connect, DebugCommand, Doors};
pub use flows::{Flow, Flows};
pub use format::LogFormat;
pub use http::Http;
pub use keyspace::EventChannels;
pub use levels::{LOG_TARGETS, LogLevels};
pub use log::Logging;
pub use percentiles::Percentiles;
pub use port::OptionalPort;
pub use shards::{NodeShards, ShardCount};
pub use size::{Share, Size};
pub use tls::{CertificateUser, ClientCertificates, Tls, TlsVersion, tls_versions};
pub use users::{KeptOwner, User};

use core::net::IpAddr;
use headwater_base::functions::FunctionLimits;
use headwater_base::{Durability, Limits};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Longest line of a memcached client: some hundred thousand keys.
const MULTI_GET_BYTES_MAX: usize = 16 << 20;

/// Everything that can be set.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Where to listen and who may come in.
    pub listen: Listen,
    /// Encryption of clients' connections.
    pub tls: Tls,
    /// Who may come in, and what is kept from those who are.
    pub doors: Doors,
    /// Where the server connects to at clients' word.
    pub connect: Connect,
    /// What clients of the HTTP port may take up, and by which names it may be asked.
    pub http: Http,
    /// What a client may take up.
    pub clients: Clients,
    /// What may be stored.
    pub limits: StoreLimits,
    /// Where bytes go when memory is short.
    pub spill: Spill,
    /// Where base data is kept.
    pub data: Data,
    /// The cluster that this server is a node of.
    pub cluster: Cluster,
    /// What the process may take.
    pub memory: Memory,
    /// How sources of base data are dealt with.
    pub sources: Sources,
    /// What functions may take, and who may call them.
    pub functions: Functions,
    /// How flows reach the world.
    #[serde(rename = "flows")]
    pub flow_settings: Flows,
    /// What is remembered about slow commands.
    pub observe: Observe,
    /// What is logged, and where.
    pub log: Logging,
    /// Sources to add at start, in order.
    #[serde(rename = "source")]
    pub source_list: Vec<Source>,
    /// Modules of functions to load at start, in order.
    #[serde(rename = "function")]
    pub modules: Vec<Module>,
    /// Tables to declare at start, in order.
    #[serde(rename = "table")]
    pub tables: Vec<Table>,
    /// Joins to install at start, in order.
    #[serde(rename = "join")]
    pub joins: Vec<Join>,
    /// Flows to add at start, in order.
    #[serde(rename = "flow")]
    pub flows: Vec<Flow>,
    /// Flows that clients added before the start, each as the words of FLOW.ADD; no setting.
    #[serde(skip)]
    pub kept_flows: Vec<Vec<String>>,
    /// The secrets that are in files were read; no setting.
    #[serde(skip)]
    pub(crate) secrets_read: bool,
    /// Users to add at start.
    #[serde(rename = "user")]
    pub users: Vec<User>,
    /// Users that clients set before the start, each a name and rules; no setting.
    #[serde(skip)]
    pub kept_users: Vec<(Vec<u8>, Vec<u8>)>,
    /// Who defined what is kept; no setting.
    #[serde(skip)]
    pub kept_owners: Vec<KeptOwner>,
}

/// Where to listen and who may come in.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Listen {
    /// Addresses to listen on.
    pub bind: Vec<IpAddr>,
    /// The port; 0 lets the system choose one, which the ready line tells; `off` where only TLS is spoken.
    pub port: OptionalPort,
    /// The port for memcached's protocol, on the same addresses.
    pub memcached_port: OptionalPort,
    /// The port for `/metrics`, `/healthz` and `/readyz` over HTTP, on 127.0.0.1.
    pub http_port: OptionalPort,
    /// The password that clients must give; empty: none.
    pub requirepass: String,
    /// The file whose first line is that password.
    pub requirepass_file: String,
    /// The file with users that ACL LOAD reads and ACL SAVE writes; empty: none.
    pub aclfile: String,
    /// A silent connection is probed after this many seconds; 0: never.
    pub tcp_keepalive_seconds: u32,
    /// Threads, each with a part of the keys.
    pub shards: ShardCount,
    /// Whether each shard's thread keeps to one core.
    pub pin: bool,
    /// Threads that read and write clients' sockets, the one that executes among them.
    pub io_threads: usize,
}

/// What a client may take up.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Clients {
    /// Connections at once; further ones are told so and closed.
    pub clients_max: usize,
    /// A connection that asks nothing for so long is closed; 0: never.
    pub idle_seconds_max: u64,
    /// Longest request, in bytes; also the longest single argument.
    pub request_bytes_max: usize,
    /// Most arguments of one request.
    pub arguments_max: usize,
    /// Longest request in the inline form, in bytes.
    pub inline_bytes_max: usize,
    /// Unsent replies beyond which no more requests of the client are executed.
    pub output_bytes_soft: usize,
    /// Unsent replies beyond which the client is disconnected.
    pub output_bytes_max: usize,
    /// As `output-bytes-max`, for a client that is subscribed to channels.
    pub pubsub_output_bytes_max: usize,
    /// Unsent output beyond which a client that watches ranges is sent no more changes until it has taken
    /// some; then it is told to read again.
    pub watch_output_bytes_max: usize,
    /// Changes of watched ranges that are kept for clients that come back, in bytes; 0: none.
    pub watch_history_bytes_max: usize,
    /// A client that takes none of its pending replies for so long is disconnected.
    pub output_stuck_seconds_max: u64,
    /// Commands that one transaction may queue.
    pub transaction_commands_max: usize,
    /// Keys that one client may watch.
    pub watched_keys_max: usize,
    /// Channels and patterns that one client may subscribe to.
    pub subscriptions_max: usize,
    /// Keys of which clients keep copies and are told when they change; 0: as many as there is room for.
    pub tracking_table_keys_max: usize,
    /// Requests of one client executed before others get their turn.
    pub turn_requests_max: usize,
    /// Source rows that one command visits before others get their turn; 0: as many as it needs.
    pub slice_rows: usize,
    /// Longest time of a command that is executed in several turns, in milliseconds; 0: any.
    pub command_milliseconds_max: u64,
}

/// What may be stored.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StoreLimits {
    /// Longest key, in bytes.
    pub key_bytes_max: usize,
    /// Longest value, in bytes.
    pub value_bytes_max: usize,
    /// Joins that may be installed at once.
    pub joins_max: usize,
    /// Joins that may read one another's outputs in a row.
    pub join_depth_max: u32,
    /// Sources of one join.
    pub sources_max: usize,
    /// Slots of one join.
    pub slots_max: usize,
}

/// Where bytes go when memory is short.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Spill {
    /// The directory; empty: nothing goes to disk.
    pub spill_dir: String,
    /// What may be there.
    pub spill_bytes_max: Size,
    /// The shortest plain value that goes there rather than being evicted, in bytes.
    pub spill_value_bytes_min: usize,
}

/// Where base data is kept.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Data {
    /// The directory; empty: base data is in memory alone.
    pub data_dir: String,
    /// When writes are made safe: `none`, `interval` or `always`.
    pub durability: String,
    /// Under `interval`, how long a write may be not safe, in milliseconds.
    pub durability_milliseconds: u64,
    /// Whether keys without a table are kept as well.
    pub data_plain: bool,
    /// Writes are refused while the disk has fewer bytes left.
    pub data_free_bytes_min: Size,
}

/// What the process may take.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Memory {
    /// Resident memory that the process may take, all included; 0: as much as there is.
    pub max: Size,
    /// Which plain keys go when it is taken, as Redis names it.
    pub policy: String,
    /// What clients may take of it together; 0: an eighth.
    pub clients_bytes_max: Share,
}

impl Memory {
    /// Bytes that the process may take; `None`: as much as there is.
    #[must_use]
    pub fn bound(&self) -> Option<usize> {
        (self.max != Size(0)).then_some(self.max.0 as usize)
    }
}

/// What functions may take, and who may call them.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Functions {
    /// The directory that modules may be loaded from as files; empty: none.
    pub functions_dir: String,
    /// Glob patterns of the functions that clients may call, with spaces between.
    pub functions_callable: String,
    /// Modules that may be loaded at once.
    pub functions_max: usize,
    /// Longest module, in bytes.
    pub function_module_bytes_max: usize,
    /// Longest time of one call, in milliseconds.
    pub function_milliseconds_max: u64,
    /// Memory of one module, in bytes.
    pub function_memory_bytes_max: usize,
    /// Longest reply of one call, in bytes.
    pub function_reply_bytes_max: usize,
    /// Bytes that one call may write.
    pub function_write_bytes_max: usize,
}

/// A module of functions to load at start.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Its file, below `functions-dir`.
    pub file: String,
    /// The export that the name alone stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
}

/// What is remembered about slow commands.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Observe {
    /// SLOWLOG keeps commands that took longer; 0: all, negative: none.
    pub slowlog_microseconds_min: i64,
    /// Commands that SLOWLOG keeps.
    pub slowlog_entries_max: usize,
    /// Refusals that ACL LOG remembers.
    pub acllog_entries_max: usize,
    /// LATENCY keeps commands that took at least so long; 0: none.
    pub latency_milliseconds_min: u64,
    /// INFO latencystats and LATENCY HISTOGRAM tell how times are spread.
    pub latency_tracking: bool,
    /// The percentiles that INFO latencystats tells.
    pub latency_tracking_info_percentiles: String,
    /// Which keyspace events are told, in Redis's letters.
    pub notify_keyspace_events: String,
}

/// How sources of base data are dealt with.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sources {
    /// How long a source may take to answer, in milliseconds.
    pub source_milliseconds_max: u64,
}

/// A source to add at start.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Source {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Where it is.
    pub url: String,
    /// A client has added it before the start: it may do what clients may; no setting.
    #[serde(skip)]
    pub by_client: bool,
}

/// A table to declare at start.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Table {
    /// Its name: the bytes before the first `|` of its keys.
    pub name: String,
    /// How many components after the name group its keys; nothing where joins' patterns are to say it.
    pub boundary: Option<usize>,
    /// The source that keeps its base data.
    pub source: Option<String>,
    /// What holds the rows there: a table of a database.
    pub table: Option<String>,
    /// The columns that make up the key, in order.
    pub key: Vec<String>,
    /// What makes up the value: a column, `JSON (a, b)`, or `EMPTY`.
    pub value: Option<String>,
    /// Which rows are keys: a condition such as `status = 'paid'`.
    #[serde(rename = "where")]
    pub filter: Option<String>,
    /// Whether clients' writes go to the source.
    pub write_through: bool,
    /// Whether its base keys may be evicted.
    pub evict: Option<bool>,
    /// Whether the embedded store keeps it.
    pub keep: Option<bool>,
}

/// A join to install at start.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Join {
    /// Its name.
    pub name: String,
    /// Its text, as JOIN.ADD takes it.
    pub spec: String,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            bind: vec![IpAddr::from([127, 0, 0, 1])],
            port: OptionalPort::On(7379),
            memcached_port: OptionalPort::default(),
            http_port: OptionalPort::default(),
            requirepass: String::new(),
            requirepass_file: String::new(),
            aclfile: String::new(),
            tcp_keepalive_seconds: 300,
            shards: ShardCount::Auto,
            pin: false,
            io_threads: 1,
        }
    }
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            clients_max: 10_000,
            idle_seconds_max: 0,
            request_bytes_max: 128 << 20,
            arguments_max: 1 << 20,
            inline_bytes_max: 64 << 10,
            output_bytes_soft: 64 << 20,
            output_bytes_max: 256 << 20,
            pubsub_output_bytes_max: 32 << 20,
            watch_output_bytes_max: 8 << 20,
            watch_history_bytes_max: 8 << 20,
            output_stuck_seconds_max: 60,
            transaction_commands_max: 100_000,
            watched_keys_max: 10_000,
            subscriptions_max: 100_000,
            tracking_table_keys_max: 1_000_000,
            turn_requests_max: 2048,
            slice_rows: 1000,
            command_milliseconds_max: 0,
        }
    }
}

impl Default for StoreLimits {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            key_bytes_max: limits.key_bytes_max,
            value_bytes_max: limits.value_bytes_max,
            joins_max: limits.joins_max,
            join_depth_max: limits.join_depth_max,
            sources_max: limits.sources_max,
            slots_max: limits.slots_max,
        }
    }
}

impl Default for Spill {
    fn default() -> Self {
        Self {
            spill_dir: String::new(),
            spill_bytes_max: Size(1 << 30),
            spill_value_bytes_min: 4096,
        }
    }
}

impl Default for Data {
    fn default() -> Self {
        Self {
            data_dir: String::new(),
            durability: Durability::default().to_string(),
            durability_milliseconds: 1000,
            data_plain: false,
            data_free_bytes_min: Size(64 << 20),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            max: Size(0),
            policy: String::from("noeviction"),
            clients_bytes_max: Share::default(),
        }
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self { source_milliseconds_max: 5000 }
    }
}

impl Default for Functions {
    fn default() -> Self {
        let limits = FunctionLimits::default();
        Self {
            functions_dir: String::new(),
            functions_callable: String::from("*"),
            functions_max: limits.functions_max,
            function_module_bytes_max: limits.module_bytes_max,
            function_milliseconds_max: limits.milliseconds_max,
            function_memory_bytes_max: limits.memory_bytes_max,
            function_reply_bytes_max: limits.reply_bytes_max,
            function_write_bytes_max: limits.write_bytes_max,
        }
    }
}

impl Functions {
    /// The bounds as the host takes them.
    #[must_use]
    pub fn to_limits(&self) -> FunctionLimits {
        FunctionLimits {
            milliseconds_max: self.function_milliseconds_max,
            memory_bytes_max: self.function_memory_bytes_max,
            reply_bytes_max: self.function_reply_bytes_max,
            write_bytes_max: self.function_write_bytes_max,
            module_bytes_max: self.function_module_bytes_max,
            functions_max: self.functions_max,
        }
    }
}

impl Default for Observe {
    fn default() -> Self {
        Self {
            slowlog_microseconds_min: 10_000,
            slowlog_entries_max: 128,
            acllog_entries_max: 128,
            latency_milliseconds_min: 0,
            latency_tracking: true,
            latency_tracking_info_percentiles: String::from("50 99 99.9"),
            notify_keyspace_events: String::new(),
        }
    }
}

impl StoreLimits {
    /// The bounds as the engine takes them.
    #[must_use]
    pub fn to_limits(&self) -> Limits {
        Limits {
            key_bytes_max: self.key_bytes_max,
            value_bytes_max: self.value_bytes_max,
            joins_max: self.joins_max,
            join_depth_max: self.join_depth_max,
            sources_max: self.sources_max,
            slots_max: self.slots_max,
        }
    }
}

/// Why a configuration cannot be used. The text names the setting and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads a configuration file; settings that it does not name keep their defaults.
    ///
    /// # Errors
    /// The file cannot be read, or names something that is no setting or cannot be its value.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError(format!("configuration file {name}: {error}")))?;
        Self::parse(&text)
            .map_err(|error| ConfigError(format!("configuration file {name}: {error}")))
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// The text is not TOML, or names something that is no setting or cannot be its value.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError(secrets::without_values(text, &error)))
    }

    /// The bounds that the parser of requests enforces.
    #[must_use]
    pub fn protocol_limits(&self) -> headwater_protocol::resp::Limits {
        headwater_protocol::resp::Limits {
            args_max: self.clients.arguments_max,
            bulk_bytes_max: self.clients.request_bytes_max,
            inline_bytes_max: self.clients.inline_bytes_max,
            request_bytes_max: self.clients.request_bytes_max,
            unauthenticated: false,
        }
    }

    /// The bounds that the parser of memcached's requests enforces.
    #[must_use]
    pub fn memcached_limits(&self) -> headwater_protocol::memcached::Limits {
        headwater_protocol::memcached::Limits {
            line_bytes_max: self.clients.request_bytes_max.min(MULTI_GET_BYTES_MAX),
            value_bytes_max: self.limits.value_bytes_max,
        }
    }
}
