//! The engine, used as a node uses it. One program, so that the engine is linked once.

mod bad_disk;
mod changed;
mod choices;
mod documents_in_slices;
mod endings;
mod explain;
mod fan_outs;
mod functions;
mod gatherings;
mod keyspace_events;
mod limited;
mod limits;
mod loads;
mod maintenance_time;
mod mapped;
mod marks;
mod memory;
mod regroupings;
mod shards;
mod snapshots;
mod spill;
mod streams;
mod suspended;
mod tallies;
mod windows;
mod work;
