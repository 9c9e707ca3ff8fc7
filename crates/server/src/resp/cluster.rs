//! CLUSTER: what clients of Redis Cluster ask to find the node of a key.
//!
//! One node owns all slots today, and is the master of them; those that stand by are shown as its replicas: they forward what they are asked, so
//! that a client may go to any of them.

use super::{Flow, ShardService, Turn, encoder};
use crate::resp::parts::Stores;
use core::fmt::Write;
use headwater_base::hash::stable_hash;
use headwater_base::slots::{SLOTS, slot_of};
use headwater_command::{Cluster, Reply};

/// What is answered without a cluster, in Redis's words.
const DISABLED: &str = "This instance has cluster support disabled";

/// A node as clients are shown it.
struct ShownNode {
    id: String,
    host: String,
    port: u16,
}

/// The identity of a node: 40 hexadecimal digits that its cluster and name make.
fn id_of(cluster: &str, node: &str) -> String {
    let name = format!("{cluster}\0{node}");
    let mut id = String::new();
    for seed in 0..3 {
        // What is written into a string is written.
        _ = write!(id, "{:016x}", stable_hash(seed, name.as_bytes()));
    }
    id.truncate(40);
    id
}

impl ShownNode {
    fn of(cluster: &str, node: &str, address: &str) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { id: id_of(cluster, node), host, port: port.parse().ok()? })
    }

    fn write_slots(&self, out: &mut dyn Reply) {
        out.array(3);
        out.bulk(self.host.as_bytes());
        out.integer(i64::from(self.port));
        out.bulk(self.id.as_bytes());
    }

    fn write_shard(&self, is_owner: bool, out: &mut dyn Reply) {
        let role = if is_owner { "master" } else { "replica" };
        out.map(7);
        out.bulk(b"id");
        out.bulk(self.id.as_bytes());
        out.bulk(b"port");
        out.integer(i64::from(self.port));
        for (name, text) in
            [("ip", &*self.host), ("endpoint", &*self.host), ("role", role), ("health", "online")]
        {
            out.bulk(name.as_bytes());
            out.bulk(text.as_bytes());
        }
        out.bulk(b"replication-offset");
        out.integer(0);
    }
}

impl ShardService {
    /// The nodes of the cluster, this one first: it owns all slots, or it would not execute.
    fn shown_nodes(&self) -> Option<Vec<ShownNode>> {
        let others = self.stores.keeping.as_ref()?.cluster_nodes()?;
        let cluster = &self.settings.config.cluster;
        let (name, me) = (&*cluster.cluster_name, &*cluster.cluster_node);
        let own = ShownNode::of(name, me, &cluster.cluster_advertise);
        let others = others.iter().filter(|(node, _)| node != me);
        let others = others.filter_map(|(node, address)| ShownNode::of(name, node, address));
        Some(own.into_iter().chain(others).collect())
    }

    /// Executes a command about the cluster.
    pub(super) fn cluster(&self, command: &Cluster<'_>, work: &mut Turn<'_>) -> Flow {
        let Some(nodes) = self.shown_nodes() else {
            encoder(work).error("ERR", format_args!("{DISABLED}"));
            return Flow::Next;
        };
        let mut out = encoder(work);
        let last = i64::from(SLOTS - 1);
        match command {
            Cluster::Slots => {
                out.array(1);
                out.array(2 + nodes.len());
                out.integer(0);
                out.integer(last);
                nodes.iter().for_each(|node| node.write_slots(&mut out));
            }
            Cluster::Shards => {
                out.array(1);
                out.map(2);
                out.bulk(b"slots");
                out.array(2);
                out.integer(0);
                out.integer(last);
                out.bulk(b"nodes");
                out.array(nodes.len());
                for (at, node) in nodes.iter().enumerate() {
                    node.write_shard(at == 0, &mut out);
                }
            }
            Cluster::Nodes => out.verbatim(*b"txt", self.stores.node_lines(&nodes).as_bytes()),
            Cluster::Info => out.verbatim(*b"txt", self.stores.cluster_info(&nodes).as_bytes()),
            Cluster::MyId => out.bulk(nodes.first().map_or("", |node| &node.id).as_bytes()),
            Cluster::KeySlot { key } => out.integer(i64::from(slot_of(key))),
            Cluster::Mode => out.ok(),
        }
        Flow::Next
    }
}

impl Stores {
    /// Whether this is a node of a cluster.
    pub(super) fn is_clustered(&self) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| keeping.lease().is_some())
    }

    /// What Redis calls that.
    pub(super) fn mode(&self) -> &'static str {
        if self.is_clustered() { "cluster" } else { "standalone" }
    }

    fn epoch(&self) -> u64 {
        self.keeping.as_ref().and_then(|it| it.lease()).map_or(0, |lease| lease.epoch)
    }

    fn node_lines(&self, nodes: &[ShownNode]) -> String {
        let (mut text, epoch, last) = (String::new(), self.epoch(), SLOTS - 1);
        let owner = nodes.first().map_or("-", |node| &node.id);
        for (at, ShownNode { id, host, port }) in nodes.iter().enumerate() {
            // There is no bus: nodes meet at NATS.
            _ = match at {
                0 => writeln!(
                    text,
                    "{id} {host}:{port}@0 myself,master - 0 0 {epoch} connected 0-{last}"
                ),
                _ => writeln!(text, "{id} {host}:{port}@0 slave {owner} 0 0 {epoch} connected"),
            };
        }
        text
    }

    fn cluster_info(&self, nodes: &[ShownNode]) -> String {
        let (slots, epoch) = (u64::from(SLOTS), self.epoch());
        let mut text = String::from("cluster_enabled:1\r\ncluster_state:ok\r\n");
        for (name, number) in [
            ("cluster_slots_assigned", slots),
            ("cluster_slots_ok", slots),
            ("cluster_slots_pfail", 0),
            ("cluster_slots_fail", 0),
            ("cluster_known_nodes", nodes.len() as u64),
            ("cluster_size", 1),
            ("cluster_current_epoch", epoch),
            ("cluster_my_epoch", epoch),
        ] {
            _ = write!(text, "{name}:{number}\r\n");
        }
        text
    }
}
