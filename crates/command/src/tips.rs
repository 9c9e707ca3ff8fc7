//! What clients of a cluster are told of commands: where to send them, what to make of several answers, and which answers differ from
//! one call to the next. <https://redis.io/docs/latest/develop/reference/command-tips/>

use crate::table::{Id, Spec};

const DIFFERS: &str = "nondeterministic_output";
const ANY_ORDER: &str = "nondeterministic_output_order";
const ALL_NODES: &str = "request_policy:all_nodes";
const ALL_SHARDS: &str = "request_policy:all_shards";
const BY_KEYS: &str = "request_policy:multi_shard";
const SUM: &str = "response_policy:agg_sum";
const LEAST: &str = "response_policy:agg_min";
const ALL_OF_THEM: &str = "response_policy:all_succeeded";
const AND: &str = "response_policy:agg_logical_and";
const SPECIAL: &str = "response_policy:special";

/// The tips of a command, as Redis 7.0 gives them.
pub(crate) fn of(spec: &Spec) -> &'static [&'static str] {
    match spec.id {
        Id::Del | Id::Exists | Id::Touch | Id::Unlink => &[BY_KEYS, SUM],
        Id::MGet => &[BY_KEYS],
        Id::MSet => &[BY_KEYS, ALL_OF_THEM],
        Id::MSetNx => &[BY_KEYS, LEAST],
        Id::DbSize => &[ALL_SHARDS, SUM],
        Id::Ping | Id::FlushAll | Id::FlushDb | Id::MemoryPurge => &[ALL_SHARDS, ALL_OF_THEM],
        Id::Keys => &[ALL_SHARDS, ANY_ORDER],
        Id::RandomKey => &[ALL_SHARDS, DIFFERS],
        Id::Wait => &[ALL_SHARDS, LEAST],
        Id::Scan => &[DIFFERS, "request_policy:special"],
        Id::ClusterGetKeysInSlot => &[DIFFERS],
        Id::Info | Id::MemoryDoctor | Id::MemoryStats => &[DIFFERS, ALL_SHARDS, SPECIAL],
        Id::LatencyDoctor | Id::LatencyHistogram | Id::LatencyHistory | Id::LatencyLatest => {
            &[DIFFERS, ALL_NODES, SPECIAL]
        }
        Id::ConfigSet | Id::LatencyReset | Id::ScriptFlush | Id::ScriptLoad | Id::SlowlogReset => {
            &[ALL_NODES, ALL_OF_THEM]
        }
        Id::ScriptExists => &[ALL_SHARDS, AND],
        Id::SlowlogGet => &[ALL_NODES, DIFFERS],
        Id::SlowlogLen => &[ALL_NODES, SUM, DIFFERS],
        Id::Command | Id::CommandDocs | Id::CommandInfo | Id::CommandList => &[ANY_ORDER],
        Id::ClientInfo
        | Id::ClientList
        | Id::ClusterInfo
        | Id::ClusterNodes
        | Id::ClusterShards
        | Id::ClusterSlots
        | Id::Dump
        | Id::ObjectEncoding
        | Id::ObjectFreq
        | Id::ObjectIdleTime
        | Id::ObjectRefCount
        | Id::Ttl
        | Id::PTtl
        | Id::Time => &[DIFFERS],
        _ => &[],
    }
}
