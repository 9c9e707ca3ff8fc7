//! The systems that are measured, and how each is found, started and stopped.

pub mod program;
pub mod server;
pub mod stop;
pub mod tls;

pub use server::{Launch, Server, free_port};

use crate::wire::Connection;
use anyhow::{Result, bail};
use core::time::Duration;

/// What serves while something is measured.
pub trait Measured {
    /// Opens a connection in the system's protocol; of several nodes, those of consecutive numbers are to one after the other.
    ///
    /// # Errors
    /// The connection is not accepted.
    fn connect_to(&self, number: usize) -> Result<Connection>;

    /// CPU that it has used since its start.
    ///
    /// # Errors
    /// A process of the system is gone.
    fn cpu_used(&self) -> Result<Duration>;

    /// The most memory that it had resident.
    ///
    /// # Errors
    /// A process of the system is gone.
    fn resident_max(&self) -> Result<u64>;

    /// The end of what it printed.
    fn printed(&self) -> String;
}

/// A system, or a way to use one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum System {
    /// Headwater, in the mode under test.
    Headwater,
    /// Headwater whose push join materializes what was asked for.
    Push,
    /// Headwater whose push join materialized every timeline beforehand.
    PushAll,
    /// Headwater whose join is computed on every read.
    Pull,
    /// Headwater whose join is kept or computed, range by range.
    Auto,
    /// Headwater that keeps the most-followed posters in a pull join.
    Celebrities,
    /// Headwater whose tables have a boundary that was set, not inferred.
    Boundary,
    /// Headwater with two shards.
    Shards,
    /// Headwater as a cluster: three nodes that own a shard each, behind three NATS servers.
    Cluster,
    /// Headwater as a plain cache, timelines kept by the clients.
    Client,
    /// Headwater with separate joins, read one by one.
    Separate,
    /// Headwater, over memcached's protocol.
    Items,
    /// Headwater, over TLS.
    Tls,
    /// Headwater's protocol loop, answering with a constant.
    Null,
    /// Valkey.
    Valkey,
    /// Valkey, over TLS.
    ValkeyTls,
    /// Redis.
    Redis,
    /// Redis, over TLS.
    RedisTls,
    /// NATS, with JetStream.
    Nats,
    /// memcached.
    Memcached,
    /// PostgreSQL.
    Postgres,
}

impl System {
    /// Whether it is asked in memcached's protocol.
    #[must_use]
    pub fn speaks_memcached(self) -> bool {
        matches!(self, Self::Items | Self::Memcached)
    }

    /// Whether it is asked over TLS.
    #[must_use]
    pub fn speaks_tls(self) -> bool {
        matches!(self, Self::Tls | Self::ValkeyTls | Self::RedisTls)
    }

    const ALL: [Self; 21] = [
        Self::Headwater,
        Self::Push,
        Self::PushAll,
        Self::Pull,
        Self::Auto,
        Self::Celebrities,
        Self::Boundary,
        Self::Shards,
        Self::Cluster,
        Self::Client,
        Self::Separate,
        Self::Items,
        Self::Tls,
        Self::Null,
        Self::Valkey,
        Self::ValkeyTls,
        Self::Redis,
        Self::RedisTls,
        Self::Nats,
        Self::Memcached,
        Self::Postgres,
    ];

    /// The name, on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Headwater => "headwater",
            Self::Push => "push",
            Self::PushAll => "push-all",
            Self::Pull => "pull",
            Self::Auto => "auto",
            Self::Celebrities => "celebrities",
            Self::Boundary => "boundary",
            Self::Shards => "shards",
            Self::Cluster => "cluster",
            Self::Client => "client",
            Self::Separate => "separate",
            Self::Items => "items",
            Self::Null => "null",
            Self::Tls => "tls",
            Self::Valkey => "valkey",
            Self::ValkeyTls => "valkey-tls",
            Self::Redis => "redis",
            Self::RedisTls => "redis-tls",
            Self::Nats => "nats",
            Self::Memcached => "memcached",
            Self::Postgres => "postgres",
        }
    }

    /// The system of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|system| system.name() == name)
    }

    /// Reads a comma-separated list of those that `workload` knows.
    ///
    /// # Errors
    /// A name is none of them, or stands twice.
    pub fn list(text: &str, workload: &str, known: &[Self]) -> Result<Vec<Self>> {
        let mut found = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match Self::named(name).filter(|system| known.contains(system)) {
                Some(system) if found.contains(&system) => bail!("--against names '{name}' twice"),
                Some(system) => found.push(system),
                None => {
                    let names: Vec<_> = known.iter().map(|system| system.name()).collect();
                    bail!(
                        "--against '{name}': not a peer for {workload} (allowed: {})",
                        names.join(", ")
                    );
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_and_refused_by_name() {
        let known = [System::Valkey, System::Client];
        let list = |text| System::list(text, "twip", &known);
        assert_eq!(list("client,valkey").unwrap(), [System::Client, System::Valkey]);
        assert_eq!(list("").unwrap(), []);
        let error = list("valkey,oracle").unwrap_err().to_string();
        assert_eq!(error, "--against 'oracle': not a peer for twip (allowed: valkey, client)");
        assert!(list("null").is_err());
        assert!(list("valkey,valkey").is_err());
    }
}
