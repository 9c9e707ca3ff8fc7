//! The pool as a library, beside a map of vectors, plain copying, and RocksDB in memory.
//!
//! Each holder does all steps ([`headwater_workload::entries`]) in a process of its own, so that
//! none finds memory that another has touched; they take turns. RocksDB's program is outside the
//! workspace (`bench-rocksdb`), as it must be linked with RocksDB.

pub mod holders;
pub mod run;
pub mod tell;
