//! The server: the loop that moves bytes, the sessions, and every setting.
//!
//! A thread owns everything, from the sockets to the data, and executes one command at a
//! time: there are no locks. With several shards there are as many such threads, which write each other
//! messages. [`Server::bind`] takes a [`Config`], [`Server::run`] serves
//! until SIGTERM, SIGINT or SHUTDOWN.
//!
//! - `reactor`: the loop; `connection`, `connections`, `output`: its sockets and their rests of
//!   bytes.
//! - `shards`, `threads`: several of all this in one process.
//! - `service`: the interface between the loop and what answers requests.
//! - `memory`: the bound on what the process takes, and the allocator that counts it.
//! - `tls`: encrypted connections.
//! - `http`: figures for those who watch the process, and signs of life.
//! - `log`: what those who run the server are told.
//! - `signals`: those that ask for the end.
//! - `reload`: settings that are read again while it runs.
//! - `replicated`: a node of a cluster, which owns the shard or stands by; `cluster`: what those who operate one ask of it.
//! - `keeping`: the embedded store, and definitions that outlive the process; `backup`: folders of its backups.
//! - `users`: who may do what, for all shards.
//! - `resp`: sessions and commands in the protocol of Redis, and what all sessions share;
//!   `memcached`: those in the protocol of memcached; `null`: a constant answer.

mod abort_on_panic;
#[cfg(test)]
mod alone;
mod arrival;
pub mod backup;
pub mod cluster;
mod connection;
mod connection_id;
mod connections;
mod descriptors;
mod doors;
mod handover;
mod http;
mod inbox;
mod io_threads;
mod keeping;
pub mod log;
mod memcached;
mod memory;
mod null;
mod output;
mod reactor;
mod reload;
mod replicated;
mod resp;
mod service;
mod shards;
mod signals;
#[cfg(test)]
mod simulated;
mod sources;
mod threads;
mod tls;

mod users;
mod wire_protocol;

pub use handover::Inherited;
pub use headwater_config::{
    ClientCertificates, Config, ConfigError, DebugCommand, NodeShards, OptionalPort, ShardCount,
    Share, Size,
};
pub use reload::ReadSettings;
pub use replicated::{ClusterNode, MemoryShare};
pub use resp::check_config;
pub use signals::{EndSignals, NodeSignal, NodeSignals};

use crate::log::event;
use headwater_base::Shard;
use headwater_engine::Engine;
use null::Null;
use reactor::Reactor;
use reload::SettingsSource;
use replicated::{LinkedShard, ReplicaEnd};
use resp::ShardService;
use service::{Bounds, Service};
use shards::links::Links;
use shards::{Shards, Transport};
use std::net::{SocketAddr, TcpListener};
use threads::Threads;
use tls::Doorway;
use wire_protocol::WireProtocol;

/// A server that has its ports but serves nobody yet.
pub struct Server {
    reactor: Reactor<ShardService>,
    threads: Threads,
    /// The connections to the owners of other shards.
    links: Option<Links>,
    http: Option<SocketAddr>,
    https: Vec<SocketAddr>,
    doorway: Option<Doorway>,
    warning: Option<String>,
}

impl Server {
    /// Binds the addresses, and declares the tables and installs the joins of `config`.
    ///
    /// # Errors
    /// A setting is out of bounds, a table or join cannot be accepted, or an address cannot be
    /// listened on; the text says which.
    pub fn bind(config: Config) -> Result<Self, ConfigError> {
        if config.is_clustered() {
            let text =
                "a node of a cluster serves when it owns the shard: it joins the cluster first";
            return Err(ConfigError(String::from(text)));
        }
        Self::bind_behind(config, None, Vec::new())
    }

    /// The same, behind a replicated log, with sockets that listen already.
    fn bind_behind(
        mut config: Config,
        replica: Option<ReplicaEnd>,
        mut listeners: Vec<TcpListener>,
    ) -> Result<Self, ConfigError> {
        shards::settle(&mut config)?;
        config.read_secrets()?;
        config.check()?;
        let handshakes = if config.tls.is_on() { tls::HANDSHAKES_MAX } else { 0 };
        let shards = config.listen.shards.number();
        // Who makes a connection to another shard has it as well as who carries it.
        let links = if replica.is_some() { 2 * usize::from(shards - 1) } else { 0 };
        let others = handshakes + links + io_threads::descriptors(config.listen.io_threads - 1);
        let warning = descriptors::provide(&mut config.clients, others);
        // The shards of a cluster are in processes of their own.
        let linked = replica.as_ref().filter(|_| shards > 1);
        let linked = linked.map(|replica| LinkedShard::of(&config, replica));
        let transport = (shards > 1 && linked.is_none()).then(|| Transport::new(shards));
        let shards = match (&linked, &transport) {
            (Some(linked), _) => Some(linked.shards()),
            (None, transport) => transport.as_ref().map(|it| Shards::of(Shard(0), it)),
        };
        let service = ShardService::behind(config.clone(), shards, None, replica)?;
        let mut reactor = Reactor::bind_with(&config, service, &mut listeners)?;
        let threads = match &transport {
            Some(transport) => {
                // With what was declared before the start, and at the addresses that the system chose.
                let mut config = reactor.service.settings.config.clone();
                let port = |door| reactor.addresses(door).first().map(SocketAddr::port);
                if let Some(port) = port(WireProtocol::Resp) {
                    config.listen.port = OptionalPort::On(port);
                }
                if let Some(port) = port(WireProtocol::Memcached) {
                    config.listen.memcached_port = OptionalPort::On(port);
                }
                let sent = reactor.service.stores.take_sent();
                Threads::start(&config, &sent, transport, || reactor.listeners_again())?
            }
            None => Threads::default(),
        };
        if linked.is_none() {
            reactor.service.find_unfinished()?;
        }
        let links = linked.map(|linked| linked.start(&config)).transpose()?;
        if let Some(keeping) = &reactor.service.stores.keeping
            && let Some(replica) = keeping.replica()
        {
            listeners.extend(replica.standby().let_go());
        }
        let http = match config.listen.http_port.number() {
            Some(port) => Some(reactor.service.serve_http(port, &mut listeners)?),
            None => None,
        };
        let https = reactor.service.serve_https(&mut listeners)?;
        let doorway = reactor.service.open_doorway(&mut listeners)?;
        Ok(Self { reactor, threads, links, http, https, doorway, warning })
    }

    /// Has SIGHUP read the settings anew, of which `started` are those that the server was bound with.
    ///
    /// # Errors
    /// A file with a secret cannot be read any more.
    pub fn reload_from(&mut self, read: ReadSettings, started: Config) -> Result<(), ConfigError> {
        let source = SettingsSource::new(read, started)?;
        self.reactor.service.set_settings_source(source);
        Ok(())
    }

    /// Reads the settings anew, as SIGHUP has it do.
    pub fn reload(&mut self) {
        self.reactor.service.reload();
    }

    /// The addresses where RESP is spoken over TLS, if any.
    #[must_use]
    pub fn tls_addresses(&self) -> Vec<SocketAddr> {
        self.doorway.as_ref().map(|it| it.addresses(WireProtocol::Resp)).unwrap_or_default()
    }

    /// The addresses where memcached's protocol is spoken over TLS, if any.
    #[must_use]
    pub fn tls_memcached_addresses(&self) -> Vec<SocketAddr> {
        self.doorway.as_ref().map(|it| it.addresses(WireProtocol::Memcached)).unwrap_or_default()
    }

    /// The addresses where HTTP is spoken over TLS, if any.
    #[must_use]
    pub fn https_addresses(&self) -> &[SocketAddr] {
        &self.https
    }

    /// The addresses where RESP is spoken; clients that connect now are served by
    /// [`Server::run`].
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.reactor.addresses(WireProtocol::Resp)
    }

    /// The addresses where memcached's protocol is spoken, if any.
    #[must_use]
    pub fn memcached_addresses(&self) -> Vec<SocketAddr> {
        self.reactor.addresses(WireProtocol::Memcached)
    }

    /// The address where HTTP is spoken, if any.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The engine, to load data before the start.
    pub fn engine_mut(&mut self) -> &mut Engine {
        self.reactor.service.node_mut().engine_mut()
    }

    /// Has clients' sockets go from one I/O thread to another at random, all the time: for tests.
    #[doc(hidden)]
    pub fn move_sockets_at_random(&mut self, seed: u64) {
        self.reactor.be_restless(seed);
    }

    /// Tells with what settings the server begins, and where it listens.
    fn tell_start(&self) {
        let config = &self.reactor.service.settings.config;
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        let settings = log::differences(&Config::default(), config);
        let (tables, joins) = (config.tables.len(), config.joins.len());
        let (sources, flows) = (config.source_list.len(), config.flows.len());
        event!(
            info,
            "server",
            "started",
            version,
            pid,
            settings,
            tables,
            joins,
            sources,
            flows,
            "the server begins; settings that are no defaults, and how much is declared at start"
        );
        if let Some(warning) = &self.warning {
            event!(warn, "server", "lowered", warning, "a setting was lowered");
        }
        if config.is_open_to_all() {
            let protected = config.doors.protected_mode;
            event!(
                warn,
                "server",
                "no_password",
                protected,
                "there is no password, and other machines can connect: they are refused if `protected`"
            );
        }
        let resp = self.addresses().into_iter().map(|address| ("resp", address));
        let memcached =
            self.memcached_addresses().into_iter().map(|address| ("memcached", address));
        let http = self.http.map(|address| ("http", address));
        let tls = self.tls_addresses().into_iter().map(|address| ("resp-tls", address));
        let memcached_tls =
            self.tls_memcached_addresses().into_iter().map(|address| ("memcached-tls", address));
        let https = self.https.iter().map(|&address| ("https", address));
        let plain = resp.chain(memcached).chain(http);
        for (protocol, address) in plain.chain(tls).chain(memcached_tls).chain(https) {
            event!(info, "server", "listening", protocol, %address, "clients are accepted");
        }
    }

    /// Serves until SIGTERM, SIGINT or SHUTDOWN.
    ///
    /// # Errors
    /// Waiting for the sockets failed.
    pub fn run(mut self) -> std::io::Result<()> {
        self.tell_start();
        // What of the program only the start needs takes no memory from here on.
        self.reactor.service.bound.forget_program();
        self.threads.run();
        let done = self.reactor.run();
        self.threads.join();
        drop(self.links);
        match &done {
            Ok(()) => event!(info, "server", "ended", "the server has ended"),
            Err(error) => {
                event!(error, "server", "ended", %error, "the server has ended by an error")
            }
        }
        log::end();
        done
    }
}

/// A server that answers every command with the same bytes: the ceiling of the loop.
pub struct NullServer {
    reactor: Reactor<Null>,
}

impl NullServer {
    /// Binds the addresses; every command will be answered with `bytes` bytes.
    ///
    /// # Errors
    /// As for [`Server::bind`].
    pub fn bind(config: &Config, bytes: usize) -> Result<Self, ConfigError> {
        config.check()?;
        let service = Null::new(Bounds::of(&config.clients), config.protocol_limits(), bytes);
        Ok(Self { reactor: Reactor::bind(config, service)? })
    }

    /// The addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.reactor.addresses(WireProtocol::Resp)
    }

    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// Waiting for the sockets failed.
    pub fn run(self) -> std::io::Result<()> {
        self.reactor.run()
    }
}
