//! Black-box tests: the built program, through a client library and through bare sockets.

mod bound;
mod bound_shards;
#[path = "../../../../tests/certificates.rs"]
mod certificates;
mod data;
mod faults;
mod flow_actions;
mod flow_crashes;
mod flows;
mod flows_shards;
mod function_projects;
mod functions;
mod hostile;
mod http;
mod invoke;
mod items;
mod items_shards;
mod joins;
mod library;
mod long_values;
mod memcached;
mod partitions;
mod partitions_kept;
mod process;
mod receiver;
mod shards;
mod shards_told;
mod shards_transactions;
mod spill;
mod streams;
mod support;
mod tracking;
mod transactions_kept;
mod watching;
mod webhooks;
