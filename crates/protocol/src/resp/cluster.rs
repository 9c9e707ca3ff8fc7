//! Commands about the cluster.

use super::introspection::help;
use headwater_command::{Args, Cluster, Command, Id, Spec};

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Command<'a> {
    Command::Cluster(match spec.id {
        Id::ClusterSlots => Cluster::Slots,
        Id::ClusterShards => Cluster::Shards,
        Id::ClusterNodes => Cluster::Nodes,
        Id::ClusterInfo => Cluster::Info,
        Id::ClusterMyId => Cluster::MyId,
        Id::ClusterKeySlot => Cluster::KeySlot { key: args.at(2) },
        Id::ReadOnly | Id::ReadWrite => Cluster::Mode,
        _ => return help("cluster"),
    })
}
