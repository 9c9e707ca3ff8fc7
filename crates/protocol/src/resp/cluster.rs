//! Commands about the cluster.

use super::introspection::help;
use super::options::integer;
use super::refusal::Refusal;
use headwater_base::slots::SLOTS;
use headwater_command::{Args, Cluster, Command, Id, Spec};

const NO_SLOT: Refusal<'_> = Refusal::Text("no such slot: they are 0 to 16383");

/// The slot that an argument names.
fn slot(arg: &[u8]) -> Result<u16, Refusal<'_>> {
    u16::try_from(integer(arg)?).ok().filter(|slot| *slot < SLOTS).ok_or(NO_SLOT)
}

fn most(arg: &[u8]) -> Result<u64, Refusal<'_>> {
    u64::try_from(integer(arg)?).map_err(|_| Refusal::Text("the number of keys is negative"))
}

pub(super) fn decode<'a>(spec: &'static Spec, args: Args<'a>) -> Result<Command<'a>, Refusal<'a>> {
    Ok(Command::Cluster(match spec.id {
        Id::ClusterSlots => Cluster::Slots,
        Id::ClusterShards => Cluster::Shards,
        Id::ClusterNodes => Cluster::Nodes,
        Id::ClusterInfo => Cluster::Info,
        Id::ClusterMyId => Cluster::MyId,
        Id::ClusterKeySlot => Cluster::KeySlot { key: args.at(2) },
        Id::ClusterCountKeysInSlot => Cluster::KeysInSlot { slot: slot(args.at(2))?, most: None },
        Id::ClusterGetKeysInSlot => {
            Cluster::KeysInSlot { slot: slot(args.at(2))?, most: Some(most(args.at(3))?) }
        }
        Id::ReadOnly | Id::ReadWrite => Cluster::Mode,
        _ => return Ok(help("cluster")),
    }))
}
