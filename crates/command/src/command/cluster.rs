//! Commands about the cluster that the server is a node of, as Redis Cluster has them.

/// Commands about the cluster.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cluster<'a> {
    /// Which nodes have which slots.
    Slots,
    /// The same, by shard.
    Shards,
    /// The nodes, as lines of text.
    Nodes,
    /// The state, as text.
    Info,
    /// The identity of this node.
    MyId,
    /// The slot of a key.
    KeySlot {
        /// The key.
        key: &'a [u8],
    },
    /// The keys of this node that are in a slot.
    KeysInSlot {
        /// The slot.
        slot: u16,
        /// How many keys to give at most; `None`: the number of keys is wanted instead.
        most: Option<u64>,
    },
    /// Says whether the connection wants reads of nodes that only follow: all is answered by the owner.
    Mode,
}
