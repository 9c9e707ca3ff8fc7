//! A node of a cluster of several shards, which has a process for each: what the settings of the node say for one of them.
//!
//! What would be in each other's way is apart: process K has the ports, and the port in `cluster-advertise`, that are K above the node's, the folder
//! `shard-K` in that of spilled bytes, as it has in that of data, and the name `NODE/K`, which its lines of the log begin with. What may be taken is
//! shared out: memory among those that own their shards, room for spilled bytes among all.

use crate::cluster::LINK_PORT_OFFSET;
use crate::{Config, ConfigError, NodeShards, OptionalPort, Size};
use std::path::Path;

/// The least memory that a process for a shard begins with.
const MEMORY_MIN: u64 = 32 << 20;

/// The ports of a node, by the names of their settings.
type Port = (&'static str, fn(&mut Config) -> &mut OptionalPort);

const PORTS: [Port; 6] = [
    ("port", |config| &mut config.listen.port),
    ("memcached-port", |config| &mut config.listen.memcached_port),
    ("http-port", |config| &mut config.listen.http_port),
    ("tls-port", |config| &mut config.tls.tls_port),
    ("tls-memcached-port", |config| &mut config.tls.tls_memcached_port),
    ("tls-http-port", |config| &mut config.tls.tls_http_port),
];

impl Config {
    /// Whether this node has a process for each shard of its cluster.
    #[must_use]
    pub fn has_shard_processes(&self) -> bool {
        self.is_clustered()
            && self.listen.shards.number() > 1
            && self.cluster.cluster_shard == NodeShards::All
    }

    /// The settings of the node's process for `shard`. It has an equal share of the node's memory, until it is told another one.
    ///
    /// # Errors
    /// A port is none, two of the node's processes would have the same, or there is too little memory for all.
    pub fn of_shard(&self, shard: u16) -> Result<Self, ConfigError> {
        let node = &self.cluster.cluster_node;
        let mut config = self.clone();
        config.check_ports_of_shards()?;
        let cluster = &mut config.cluster;
        cluster.cluster_node = format!("{node}/{shard}");
        config.log.process.clone_from(&cluster.cluster_node);
        cluster.cluster_shard = NodeShards::One(shard);
        if let Some((host, port)) = cluster.cluster_advertise.rsplit_once(':')
            && let Ok(port) = port.parse()
        {
            cluster.cluster_advertise =
                format!("{host}:{}", above("cluster-advertise", port, shard)?);
        }
        for (name, slot) in PORTS {
            if let OptionalPort::On(port @ 1..) = slot(&mut config) {
                *port = above(name, *port, shard)?;
            }
        }
        let folder = &mut config.spill.spill_dir;
        if !folder.is_empty() {
            let own = Path::new(&folder).join(format!("shard-{shard}"));
            *folder = own.display().to_string();
        }
        let shards = u64::from(self.listen.shards.number());
        let spilled = &mut config.spill.spill_bytes_max;
        *spilled = Size((spilled.0 / shards).max(1));
        let max = self.memory.max.0;
        if max > 0 && max / shards < MEMORY_MIN {
            return Err(ConfigError(format!(
                "maxmemory is {max}: a node has a process for each of {shards} shards (allowed: 0, or at least {})",
                MEMORY_MIN * shards
            )));
        }
        config.memory.max = Size(max / shards);
        Ok(config)
    }

    /// Checks the settings of all processes of a node that has one for each shard.
    ///
    /// # Errors
    /// As [`Config::of_shard`] and [`Config::check`].
    pub fn check_shard_processes(&self) -> Result<(), ConfigError> {
        let mut all = 0..self.listen.shards.number();
        all.try_for_each(|shard| self.of_shard(shard)?.check())
    }

    /// Whether the ports of all processes are ports, and none is another's.
    fn check_ports_of_shards(&mut self) -> Result<(), ConfigError> {
        let shards = self.listen.shards.number();
        let mut taken: Vec<(&str, u16)> = Vec::new();
        let ports = PORTS.map(|(name, slot)| (name, slot(self).number().unwrap_or(0)));
        let links = self.listen.port.number().and_then(|port| port.checked_add(LINK_PORT_OFFSET));
        let links = links.map(|port| ("the port for other shards", port));
        for (name, port) in ports.into_iter().filter(|(_, port)| *port > 0).chain(links) {
            above(name, port, shards - 1)?;
            if let Some((other, _)) = taken.iter().find(|(_, at)| at.abs_diff(port) < shards) {
                return Err(ConfigError(format!(
                    "{name} is {port}: with {shards} shards a node has as many ports from it on, and from {other} on (allowed: at least {shards} apart)"
                )));
            }
            taken.push((name, port));
        }
        Ok(())
    }
}

/// The port that is so many above another.
fn above(name: &str, port: u16, shard: u16) -> Result<u16, ConfigError> {
    port.checked_add(shard).ok_or_else(|| {
        ConfigError(format!(
            "{name} is {port}: with {} shards and more a node has ports up to {} (allowed: up to 65535)",
            shard + 1,
            u32::from(port) + u32::from(shard)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "
        [listen]\nport = 7000\nhttp-port = 9000\nmemcached-port = 0\nshards = 3\n
        [cluster]\ncluster-nats = \"nats://a\"\ncluster-node = \"n1\"\ncluster-advertise = \"[::1]:7100\"\n
        [data]\ndata-dir = \"/d\"\n[spill]\nspill-dir = \"/s\"\nspill-bytes-max = \"9mb\"\n[memory]\nmax = \"9gb\"";

    fn node(more: &str) -> Config {
        Config::parse(&format!("{NODE}\n{more}")).unwrap()
    }

    #[test]
    fn each_process_has_ports_folders_and_a_name_of_its_own() {
        let node = node("");
        assert!(node.has_shard_processes());
        let config = node.of_shard(2).unwrap();
        assert!(!config.has_shard_processes());
        assert_eq!(config.shard_apart(), Some(2));
        assert_eq!(config.listen.port, OptionalPort::On(7002));
        assert_eq!(config.listen.http_port, OptionalPort::On(9002));
        // The system chooses, or nothing is spoken.
        assert_eq!(config.listen.memcached_port, OptionalPort::On(0));
        assert_eq!(config.tls.tls_port, OptionalPort::Off);
        assert_eq!(config.cluster.cluster_advertise, "[::1]:7102");
        assert_eq!(config.cluster.cluster_node, "n1/2");
        assert_eq!((&*config.data.data_dir, &*config.spill.spill_dir), ("/d", "/s/shard-2"));
        assert_eq!(config.spill.spill_bytes_max, Size(3 << 20));
        assert_eq!(config.memory.max, Size(3 << 30));
        config.check().unwrap();
        let mut one = node.clone();
        one.listen.shards = crate::ShardCount::Number(1);
        assert!(!one.has_shard_processes());
    }

    #[test]
    fn ports_that_are_none_or_taken_twice_are_named() {
        let refused = |config: Config| config.of_shard(0).unwrap_err().to_string();
        let of = |slot: fn(&mut Config) -> &mut OptionalPort, port| {
            let mut config = node("");
            *slot(&mut config) = OptionalPort::On(port);
            refused(config)
        };
        let error = of(|config| &mut config.listen.http_port, 7002);
        assert!(error.starts_with("http-port is 7002: with 3 shards"), "{error}");
        assert!(error.contains("from port on (allowed: at least 3 apart)"), "{error}");
        let error = of(|config| &mut config.tls.tls_port, 65_534);
        assert!(error.starts_with("tls-port is 65534"), "{error}");
        let error = of(|config| &mut config.listen.http_port, 17_001);
        assert!(error.contains("the port for other shards is 17000"), "{error}");
        let mut little = node("");
        little.memory.max = Size(3 * MEMORY_MIN - 1);
        assert!(refused(little).contains("(allowed: 0, or at least 100663296)"));
        let mut named = node("");
        named.cluster.cluster_node = String::from("a/b");
        assert!(named.check().unwrap_err().to_string().contains("without spaces and slashes"));
    }
}
