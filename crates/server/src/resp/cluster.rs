//! CLUSTER: what clients of Redis Cluster ask to find the node of a key.
//!
//! The owner of a shard is shown as the master of its slots, and the nodes that stand by for it as its replicas: they forward what they are asked, so
//! that a client may go to any of them. So may it to any owner with any key.

use super::{Flow, ShardService, Turn, encoder};
use crate::resp::parts::Stores;
use core::fmt::Write;
use headwater_base::Shard;
use headwater_base::hash::stable_hash;
use headwater_base::slots::{SLOTS, slot_of};
use headwater_command::{Args, Cluster, Data, Keys, Reply, Spec};

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

/// A shard that has an owner, as clients are shown it.
struct ShownShard {
    /// Its slots, first and last.
    slots: (u16, u16),
    /// Whether this node owns the shard.
    own: bool,
    /// The epoch of its owner.
    epoch: u64,
    /// Its nodes, the owner first.
    nodes: Vec<ShownNode>,
}

impl ShardService {
    /// The shards that have owners. This node owns one, or it would not execute.
    fn shown_shards(&self) -> Option<Vec<ShownShard>> {
        let replica = self.stores.keeping.as_ref()?.replica()?;
        let cluster = &self.settings.config.cluster;
        let (name, me, own) = (&*cluster.cluster_name, &*cluster.cluster_node, cluster.shard());
        let shown = |(node, address): &(String, String)| ShownNode::of(name, node, address);
        let shard = |shard: u16| {
            let slots = match self.node.engine().placement() {
                Some(placement) => placement.slots(Shard(shard))?,
                None => (0, SLOTS - 1),
            };
            let all = replica.nodes(shard);
            let nodes = if shard == own {
                let this = ShownNode::of(name, me, &cluster.cluster_advertise);
                let others = all.iter().filter(|(node, _)| node != me);
                this.into_iter().chain(others.filter_map(shown)).collect()
            } else if replica.is_owned(shard) {
                all.iter().filter_map(shown).collect()
            } else {
                Vec::new()
            };
            let epoch = if shard == own { replica.epoch() } else { replica.epoch_of(shard) };
            Some(ShownShard { slots, own: shard == own, epoch, nodes })
        };
        let shards = (0..self.settings.config.listen.shards.number()).filter_map(shard);
        Some(shards.filter(|shard| !shard.nodes.is_empty()).collect())
    }

    /// Whether a slot is one of this node's.
    fn has_slot(&self, slot: u16) -> bool {
        let own = Shard(self.settings.config.cluster.shard());
        let slots = self.node.engine().placement().map(|placement| placement.slots(own));
        self.stores.is_clustered()
            && slots
                .is_none_or(|own| own.is_some_and(|(first, last)| (first..=last).contains(&slot)))
    }

    /// Executes a command about the cluster.
    pub(super) fn cluster(
        &mut self,
        spec: &'static Spec,
        command: &Cluster<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        if let &Cluster::KeysInSlot { slot, most } = command
            && self.has_slot(slot)
        {
            let data = Data::Keys(Keys::InSlot { slot, most });
            let outcome = self.execute_data(spec, &data, work);
            return self.go_on_with(outcome, &data, args, work);
        }
        let Some(shards) = self.shown_shards() else {
            encoder(work).error("ERR", format_args!("{DISABLED}"));
            return Flow::Next;
        };
        let mut out = encoder(work);
        match command {
            Cluster::Slots => {
                out.array(shards.len());
                for ShownShard { slots: (first, last), nodes, .. } in &shards {
                    out.array(2 + nodes.len());
                    out.integer(i64::from(*first));
                    out.integer(i64::from(*last));
                    nodes.iter().for_each(|node| node.write_slots(&mut out));
                }
            }
            Cluster::Shards => {
                out.array(shards.len());
                for ShownShard { slots: (first, last), nodes, .. } in &shards {
                    out.map(2);
                    out.bulk(b"slots");
                    out.array(2);
                    out.integer(i64::from(*first));
                    out.integer(i64::from(*last));
                    out.bulk(b"nodes");
                    out.array(nodes.len());
                    for (at, node) in nodes.iter().enumerate() {
                        node.write_shard(at == 0, &mut out);
                    }
                }
            }
            Cluster::Nodes => out.verbatim(*b"txt", Stores::node_lines(&shards).as_bytes()),
            Cluster::Info => out.verbatim(*b"txt", self.stores.cluster_info(&shards).as_bytes()),
            Cluster::MyId => {
                let own = shards.iter().find(|shard| shard.own);
                let id = own.and_then(|shard| shard.nodes.first()).map_or("", |node| &node.id);
                out.bulk(id.as_bytes());
            }
            Cluster::KeySlot { key } => out.integer(i64::from(slot_of(key))),
            // The slot is another shard's.
            Cluster::KeysInSlot { most: None, .. } => out.integer(0),
            Cluster::KeysInSlot { .. } => out.array(0),
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

    fn node_lines(shards: &[ShownShard]) -> String {
        let mut text = String::new();
        for ShownShard { slots: (first, last), own, epoch, nodes } in shards {
            let owner = nodes.first().map_or("-", |node| &node.id);
            for (at, ShownNode { id, host, port }) in nodes.iter().enumerate() {
                let myself = if *own { "myself," } else { "" };
                // There is no bus: nodes meet at NATS. What is written into a string is written.
                _ = match at {
                    0 => writeln!(
                        text,
                        "{id} {host}:{port}@0 {myself}master - 0 0 {epoch} connected {first}-{last}"
                    ),
                    _ => writeln!(text, "{id} {host}:{port}@0 slave {owner} 0 0 {epoch} connected"),
                };
            }
        }
        text
    }

    fn cluster_info(&self, shards: &[ShownShard]) -> String {
        let (slots, epoch) = (u64::from(SLOTS), self.epoch());
        // Each shard has epochs of its own.
        let greatest = shards.iter().map(|shard| shard.epoch).max().unwrap_or(epoch);
        let of_shard =
            |ShownShard { slots: (first, last), .. }: &ShownShard| u64::from(last - first) + 1;
        let owned: u64 = shards.iter().map(of_shard).sum();
        let state = if owned == slots { "ok" } else { "fail" };
        let mut text = format!("cluster_enabled:1\r\ncluster_state:{state}\r\n");
        for (name, number) in [
            ("cluster_slots_assigned", slots),
            ("cluster_slots_ok", owned),
            ("cluster_slots_pfail", 0),
            ("cluster_slots_fail", slots - owned),
            ("cluster_known_nodes", shards.iter().map(|shard| shard.nodes.len() as u64).sum()),
            ("cluster_size", shards.len() as u64),
            ("cluster_current_epoch", greatest),
            ("cluster_my_epoch", epoch),
        ] {
            _ = write!(text, "{name}:{number}\r\n");
        }
        text
    }
}
