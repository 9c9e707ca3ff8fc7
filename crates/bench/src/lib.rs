//! `headwater bench`: Headwater side by side with other systems, on the same work.
//!
//! Every figure is a ratio measured in one run: systems take turns (A B A B …) on servers
//! that this program starts itself, pinned to one core, with the generator on another; all
//! get the same operations from the same loop over the same number of connections. The
//! figure of merit is the server's CPU for the whole work, beside the generator's CPU, wall
//! time and peak memory. Results are compared with a recomputation.
//!
//! - [`drive`]: the generator's loop. [`wire`]: the protocols it speaks.
//! - [`peer`]: the systems, how they are started and stopped. [`measure`]: what they cost.
//! - [`twip`], [`scale`], [`newp`], [`raw`], [`growth`], [`cache`], [`pool`], [`durability`], [`sourced`],
//!   [`functions`], [`stalls`], [`joins`], [`bounds`], [`watch`], [`top`], [`flows`], [`rights`], [`threads`],
//!   [`cluster`],
//!   [`faults`]: the workloads. [`papers`]: those that are in the papers, on one page.
//! - [`honest`]: the client whose times others cost. [`report`]: table, JSON, SVG.

pub mod args;
pub mod bounds;
pub mod cache;
pub mod cluster;
pub mod drive;
pub mod durability;
pub mod experiment;
pub mod faults;
pub mod flows;
pub mod functions;
pub mod growth;
pub mod honest;
pub mod joins;
pub mod measure;
pub mod newp;
pub mod papers;
pub mod peer;
pub mod pool;
pub mod raw;
pub mod report;
pub mod rights;
pub mod scale;
pub mod sourced;
pub mod stalls;
pub mod threads;
pub mod top;
pub mod twip;
pub mod watch;
pub mod wire;

use anyhow::Result;

/// What to measure.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Workload {
    /// Timelines over a follower graph.
    Twip(Box<twip::run::Twip>),
    /// Pages of a news site.
    Newp(Box<newp::run::Newp>),
    /// Timelines over growing numbers of shards: what scaling costs.
    Scale(Box<scale::Scale>),
    /// Single keys and ranges.
    Raw(Box<raw::run::Raw>),
    /// GET against the ceiling of the I/O path.
    Null(Box<raw::run::Null>),
    /// Hit ratios at equal resident memory, on a trace.
    Cache(Box<cache::run::Cache>),
    /// The pool as a library, beside a map of vectors and others.
    Pool(Box<pool::run::Pool>),
    /// Functions next to the data, against the client doing the same.
    Functions(Box<functions::run::Functions>),
    /// What hostile functions cost other clients.
    Hostile(Box<functions::hostile::Hostile>),
    /// What commands that take long cost other clients.
    Stalls(Box<stalls::Stalls>),
    /// What many installed joins cost.
    Joins(Box<joins::Joins>),
    /// The most memory resident, of a bound, in hostile fills.
    Bounds(Box<bounds::Bounds>),
    /// Three nodes behind three NATS servers: what the log costs, and how long clients wait when something ends.
    Cluster(Box<cluster::Cluster>),
    /// Posts to timelines while a node of a cluster is killed and comes back.
    Faults(Box<faults::Faults>),
    /// How cost grows with size.
    Growth(Box<growth::Growth>),
    /// Writes a second by how they are made safe.
    Durability(Box<durability::Durability>),
    /// Base data in PostgreSQL: changes seen and kept up with, cold and cached reads.
    Postgres(Box<sourced::Sourced>),
    /// Changes that watching clients are told of.
    Watch(Box<watch::Watch>),
    /// A leaderboard: reads of its first players, between changes of scores.
    Top(Box<top::Top>),
    /// Posts that go to their followers: by the client, by a queue and workers, by a flow.
    Flows(Box<flows::Flows>),
    /// The figures of the papers that Headwater grew from, measured again, on one page.
    Papers(Box<papers::Papers>),
    /// Instructions of a GET, by what its user may do.
    Rights(Box<rights::Rights>),
    /// What further threads bring: I/O threads and shards.
    Threads(Box<threads::Threads>),
}

/// Measures, prints the table, and writes the files that were asked for.
///
/// # Errors
/// An option is wrong, a peer is not installed, a run fails, or a result is wrong.
pub fn run(workload: &Workload) -> Result<()> {
    match workload {
        Workload::Twip(twip) => twip.run(),
        Workload::Newp(newp) => newp.run(),
        Workload::Scale(scale) => scale.run(),
        Workload::Raw(raw) => raw.run(),
        Workload::Null(null) => null.run(),
        Workload::Cache(cache) => cache.run(),
        Workload::Pool(pool) => pool.run(),
        Workload::Functions(functions) => functions.run(),
        Workload::Hostile(hostile) => hostile.run(),
        Workload::Stalls(stalls) => stalls.run(),
        Workload::Joins(joins) => joins.run(),
        Workload::Bounds(bounds) => bounds.run(),
        Workload::Cluster(cluster) => cluster.run(),
        Workload::Faults(faults) => faults.run(),
        Workload::Growth(growth) => growth.run(),
        Workload::Durability(durability) => durability.run(),
        Workload::Postgres(sourced) => sourced.run(),
        Workload::Watch(watch) => watch.run(),
        Workload::Top(top) => top.run(),
        Workload::Flows(flows) => flows.run(),
        Workload::Papers(papers) => papers.run(),
        Workload::Rights(rights) => rights.run(),
        Workload::Threads(threads) => threads.run(),
    }
}
