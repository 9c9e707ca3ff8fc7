//! `headwater serve`: the server, with settings from flags, a file, or the defaults.

mod shard_processes;

use super::cluster::ServersArgs;
use anyhow::Context;
use headwater_server::{
    ClusterNode, Config, ConfigError, DebugCommand, Inherited, MemoryShare, NodeShards, NullServer,
    OptionalPort, Server, ShardCount, Size, log,
};
use shard_processes::{NodeProcesses, ShardProcessArgs};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `headwater serve`; a flag goes before the file, the file before the default.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read settings from this file (see headwater.example.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    listen: ListenArgs,
    /// Threads that serve, each with a part of the keys; auto: one, or as many as the data directory's keys are divided
    /// among [default: auto]
    #[arg(long, value_name = "NUMBER|auto", overrides_with = "shards")]
    shards: Option<ShardCount>,
    /// Keep each of those threads to one core
    #[arg(long)]
    pin: bool,
    /// Threads that read and write clients' sockets, the one that executes among them; for one shard [default: 1]
    #[arg(long, value_name = "NUMBER")]
    io_threads: Option<usize>,
    /// Put streams' oldest parts and long values into this directory when memory is short
    #[arg(long, value_name = "DIR")]
    spill: Option<String>,
    /// What may be in that directory, such as 64mb or 10gb [default: 1gb]
    #[arg(long, value_name = "SIZE")]
    spill_size: Option<Size>,
    /// Let FN.LOAD … FILE load modules of functions from below this directory
    #[arg(long, value_name = "DIR")]
    functions: Option<String>,
    /// Keep base data in this directory across restarts
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// When writes are made safe: none, interval, or always (before they are acknowledged)
    /// [default: interval]
    #[arg(long, value_name = "WHEN")]
    durability: Option<String>,
    /// Seconds that a write may be not safe under --durability interval [default: 1]
    #[arg(long, value_name = "SECONDS")]
    durability_interval: Option<f64>,
    /// Keep keys without a table as well
    #[arg(long, value_name = "yes|no")]
    data_plain: Option<Answer>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    process: ShardProcessArgs,
    /// Answer every command with a constant of so many bytes: the ceiling of the input and
    /// output path, for benchmarks
    #[arg(long, value_name = "BYTES", hide = true)]
    null: Option<usize>,
}

/// The cluster that the server is a node of.
#[derive(Clone, clap::Args)]
struct ClusterArgs {
    #[command(flatten)]
    servers: ServersArgs,
    /// Name of this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Where the other nodes reach this one's port
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// The shard that this node stands by for, or owns, of those that --shards says; all: it has a process for each, whose ports are as many
    /// above --port, and so on, as the shard's number says [default: all]
    #[arg(long, value_name = "NUMBER|all")]
    cluster_shard: Option<NodeShards>,
    /// Take a snapshot, and purge the log below it, when it has so many bytes; 0: never [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    cluster_snapshot_bytes: Option<u64>,
    /// How long to wait at the start for NATS servers that do not answer or have no quorum; 0: without end [default: 0]
    #[arg(long, value_name = "SECONDS")]
    cluster_start_seconds: Option<u64>,
}

impl ClusterArgs {
    /// Puts the flags that were given into `config`.
    fn apply(self, config: &mut Config) {
        self.servers.apply(config);
        let cluster = &mut config.cluster;
        for (flag, slot) in [
            (self.node, &mut cluster.cluster_node),
            (self.advertise, &mut cluster.cluster_advertise),
        ] {
            if let Some(text) = flag {
                *slot = text;
            }
        }
        if let Some(shard) = self.cluster_shard {
            cluster.cluster_shard = shard;
        }
        if let Some(bytes) = self.cluster_snapshot_bytes {
            cluster.cluster_snapshot_bytes = bytes;
        }
        if let Some(seconds) = self.cluster_start_seconds {
            cluster.cluster_start_seconds = seconds;
        }
    }
}

/// A word on the command line.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Answer {
    Yes,
    No,
}

/// Where to listen and whom to let in: what `serve` and `demo` have in common.
#[derive(Clone, clap::Args)]
pub(crate) struct ListenArgs {
    /// Port to listen on; 0 lets the system choose, off: only TLS is spoken [default: 7379]
    #[arg(long, short)]
    port: Option<OptionalPort>,
    /// Port for memcached's protocol as well; 0 lets the system choose [default: off]
    #[arg(long, value_name = "PORT")]
    memcached_port: Option<OptionalPort>,
    /// Port for /metrics, /healthz and /readyz over HTTP, on 127.0.0.1; 0 lets the system choose
    /// [default: off]
    #[arg(long, value_name = "PORT")]
    http_port: Option<OptionalPort>,
    /// Port for RESP over TLS, with the certificate, the key and the authorities of clients that the configuration file names; 0 lets
    /// the system choose [default: off]
    #[arg(long, value_name = "PORT")]
    tls_port: Option<OptionalPort>,
    /// Address to listen on; may be repeated [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    bind: Vec<IpAddr>,
    /// Password that clients must give; who lists processes sees it here
    #[arg(long, value_name = "PASSWORD", env = "HEADWATER_REQUIREPASS", hide_env_values = true)]
    requirepass: Option<String>,
    /// File whose first line is that password
    #[arg(long, value_name = "FILE", conflicts_with = "requirepass")]
    requirepass_file: Option<String>,
    /// Refuse clients of other machines where there is no password [default: yes]
    #[arg(long, value_name = "yes|no")]
    protected_mode: Option<Answer>,
    /// Place that clients may name in SOURCE.ADD and FLOW.ADD, as host:port; may be repeated [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    connect_allow: Vec<String>,
    /// Who may use DEBUG: no (nobody), local (clients of this machine), yes [default: no]
    #[arg(long, value_name = "no|local|yes")]
    enable_debug_command: Option<DebugCommand>,
    /// Connections at once [default: 10000]
    #[arg(long, value_name = "NUMBER")]
    maxclients: Option<usize>,
    /// What is logged: error, warn, info, debug, off, Redis's names, and levels of single targets, as in info,clients=debug
    /// [default: info]
    #[arg(long, value_name = "LEVELS", env = "HEADWATER_LOG_LEVEL")]
    log_level: Option<String>,
    /// How it is logged: text, or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Log to this file, which SIGHUP has opened anew, instead of to standard error
    #[arg(long, value_name = "FILE")]
    log_file: Option<String>,
    /// Memory that the process may take, such as 64mb or 2gb, everything included; 0: no bound
    /// [default: 0]
    #[arg(long, value_name = "SIZE", env = "HEADWATER_MEMORY")]
    memory: Option<Size>,
    /// Which plain keys may be evicted to stay within it, as Redis names it
    /// [default: noeviction]
    #[arg(long, value_name = "POLICY")]
    memory_policy: Option<String>,
}

impl ListenArgs {
    /// Puts the flags that were given into `config`.
    pub(crate) fn apply(self, config: &mut Config) {
        if let Some(port) = self.port {
            config.listen.port = port;
        }
        if let Some(port) = self.memcached_port {
            config.listen.memcached_port = port;
        }
        if let Some(port) = self.http_port {
            config.listen.http_port = port;
        }
        if let Some(port) = self.tls_port {
            config.tls.tls_port = port;
        }
        if !self.bind.is_empty() {
            config.listen.bind = self.bind;
        }
        if let Some(password) = self.requirepass {
            config.listen.requirepass = password;
        }
        if let Some(file) = self.requirepass_file {
            config.listen.requirepass_file = file;
        }
        if let Some(answer) = self.protected_mode {
            config.doors.protected_mode = answer == Answer::Yes;
        }
        config.connect.connect_allow.extend(self.connect_allow);
        if let Some(who) = self.enable_debug_command {
            config.doors.enable_debug_command = who;
        }
        if let Some(most) = self.maxclients {
            config.clients.clients_max = most;
        }
        if let Some(levels) = self.log_level {
            config.log.log_level = levels;
        }
        if let Some(format) = self.log_format {
            config.log.log_format = format;
        }
        if let Some(file) = self.log_file {
            config.log.log_file = file;
        }
        if let Some(size) = self.memory {
            config.memory.max = size;
        }
        if let Some(policy) = self.memory_policy {
            config.memory.policy = policy;
        }
    }
}

impl Args {
    /// Serves until SIGTERM, SIGINT or SHUTDOWN.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let inherited = Inherited::take();
        let config = self.settings()?;
        let readable = self.readable_by_others(&config)?;
        if let Some(bytes) = self.null {
            let server = NullServer::bind(&config, bytes)?;
            say_ready(&server.addresses())?;
            server.run().context("serving")?;
        } else {
            log::start(&config.log)?;
            readable.iter().for_each(|text| log::warn_of_file(text));
            if config.has_shard_processes() {
                return NodeProcesses::new(&config)?.run(&|| self.settings());
            }
            self.process.bind_to_node()?;
            let started = config.clone();
            let mut node = config
                .is_clustered()
                .then(|| stand_by(&config, self.process.memory(), inherited))
                .transpose()?;
            let server = match &mut node {
                Some(node) => node.bind(config),
                None => Server::bind(config),
            };
            let server = server.inspect_err(|error| log::cannot_start(error));
            let is_late = node.as_ref().is_some_and(ClusterNode::is_to_reload);
            let ready = server.map_err(anyhow::Error::from).and_then(|mut server| {
                server.reload_from(Box::new(move || self.settings()), started)?;
                if is_late {
                    server.reload();
                }
                say_all(&server)?;
                Ok(server)
            });
            if ready.is_err()
                && let Some(node) = &node
            {
                // Others need not wait for the lease of a node that cannot serve.
                node.release();
            }
            ready?.run().context("serving")?;
            if let Some(node) = node {
                node.leave();
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Args {
    /// The settings: the file's, and what the command line says.
    fn settings(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if let Some(shards) = self.shards {
            config.listen.shards = shards;
        }
        config.listen.pin |= self.pin;
        if let Some(threads) = self.io_threads {
            config.listen.io_threads = threads;
        }
        if let Some(path) = &self.spill {
            config.spill.spill_dir.clone_from(path);
        }
        if let Some(size) = self.spill_size {
            config.spill.spill_bytes_max = size;
        }
        if let Some(path) = &self.functions {
            config.functions.functions_dir.clone_from(path);
        }
        if let Some(path) = &self.data {
            config.data.data_dir.clone_from(path);
        }
        if let Some(when) = &self.durability {
            config.data.durability.clone_from(when);
        }
        if let Some(seconds) = self.durability_interval {
            config.data.durability_milliseconds = (seconds * 1000.0) as u64;
        }
        if let Some(answer) = self.data_plain {
            config.data.data_plain = answer == Answer::Yes;
        }
        self.cluster.clone().apply(&mut config);
        self.listen.clone().apply(&mut config);
        self.process.apply(config)
    }

    /// What to tell of files with secrets that others may read: what the command line says is in no file, but may name one.
    fn readable_by_others(&self, config: &Config) -> Result<Vec<String>, ConfigError> {
        let mut readable = match &self.config {
            Some(path) => Config::read(path)?.readable_by_others(Some(path)),
            None => Vec::new(),
        };
        readable.extend(config.readable_by_others(None));
        readable.sort_unstable();
        readable.dedup();
        Ok(readable)
    }
}

/// Joins the cluster, and waits until this node owns the shard.
fn stand_by(
    config: &Config,
    memory: MemoryShare,
    inherited: Inherited,
) -> anyhow::Result<ClusterNode> {
    let mut node = ClusterNode::join(config, memory, inherited)
        .inspect_err(|error| log::cannot_start(error))?;
    let [plain, memcached, tls, memcached_tls] = node.addresses();
    let texts: Vec<String> = plain.iter().map(ToString::to_string).collect();
    let name = &config.cluster.cluster_node;
    say_doors(&memcached, &tls, &memcached_tls)?;
    say_http(node.http_address(), node.https_addresses())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "node {name} stands by on {}: clients are forwarded", texts.join(", "))?;
    out.flush()?;
    drop(out);
    crate::notify::ready()?;
    node.until_owner()?;
    Ok(node)
}

/// The line that says where memcached's protocol is spoken, if it is; it comes before the one that all
/// is ready.
pub(crate) fn say_memcached(addresses: &[SocketAddr]) -> anyhow::Result<()> {
    if !addresses.is_empty() {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        writeln!(std::io::stdout().lock(), "memcached's protocol on {}", texts.join(", "))?;
    }
    Ok(())
}

/// The lines that say where clients are let in.
fn say_all(server: &Server) -> anyhow::Result<()> {
    say_others(server)?;
    // Where nothing is spoken in the clear, by what is.
    let plain = server.addresses();
    say_ready(&if plain.is_empty() { server.tls_addresses() } else { plain })
}

/// The lines that say where else clients are let in: they come before the one that all is ready.
pub(crate) fn say_others(server: &Server) -> anyhow::Result<()> {
    let (tls, memcached_tls) = (server.tls_addresses(), server.tls_memcached_addresses());
    say_doors(&server.memcached_addresses(), &tls, &memcached_tls)?;
    say_http(server.http_address(), server.https_addresses())
}

/// The lines that say where memcached's protocol is spoken, and where TLS is.
fn say_doors(
    memcached: &[SocketAddr],
    tls: &[SocketAddr],
    memcached_tls: &[SocketAddr],
) -> anyhow::Result<()> {
    say_memcached(memcached)?;
    say_addresses("TLS", tls)?;
    say_addresses("memcached's protocol over TLS", memcached_tls)
}

/// The lines that say where HTTP is spoken.
fn say_http(plain: Option<SocketAddr>, encrypted: &[SocketAddr]) -> anyhow::Result<()> {
    say_addresses("HTTP", plain.as_slice())?;
    say_addresses("HTTPS", encrypted)
}

/// The line that says where something is spoken, if it is.
fn say_addresses(what: &str, addresses: &[SocketAddr]) -> anyhow::Result<()> {
    if !addresses.is_empty() {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        writeln!(std::io::stdout().lock(), "{what} on {}", texts.join(", "))?;
    }
    Ok(())
}

/// The one line that says that connections are accepted now.
pub(crate) fn say_ready(addresses: &[SocketAddr]) -> anyhow::Result<()> {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "headwater {} ready on {}", env!("CARGO_PKG_VERSION"), texts.join(", "))?;
    out.flush()?;
    drop(out);
    crate::notify::ready()
}
