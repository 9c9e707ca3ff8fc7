//! Shapes of traces that are generated, each with the real figures behind it.
//!
//! Meta's are the distributions of its graph cache and KV cache, as shipped with CacheLib: how
//! often keys are asked for, how many keys are asked for once, how large values are. Twitter's
//! are rows of the statistics of its clusters, chosen so that every kind of load occurs: large
//! and small values, many and few objects that are never asked for again, steep and flat
//! popularity. `scan` and `loop` are what a policy that keeps the last used is worst at.

/// A trace that can be generated.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its name on the command line.
    pub name: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Real distributions (`data/traces`).
    Distribution(&'static [u8]),
    Zipf(Zipf),
}

/// Popularity by Zipf's law, over a population that changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    /// The object of rank r is asked for in proportion to r^-alpha.
    pub(crate) alpha: f64,
    /// Requests per object.
    pub(crate) frequency: f64,
    /// Share of the objects that are asked for once.
    pub(crate) once: f64,
    /// Share of the requests that write.
    pub(crate) writes: f64,
    pub(crate) key_bytes: usize,
    /// The mean; sizes are log-normal, with a deviation of e.
    pub(crate) value_bytes: f64,
    pub(crate) sweep: Sweep,
}

/// Requests besides, which walk over objects of their own in order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Sweep {
    None,
    /// This share of requests, each walk to new objects, in bursts.
    Scan(f64),
    /// This share of requests, over and over the same objects.
    Loop(f64),
}

const fn twitter(
    name: &'static str,
    (alpha, frequency, once): (f64, f64, f64),
    writes: f64,
    (key_bytes, value_bytes): (usize, f64),
) -> Shape {
    let zipf = Zipf { alpha, frequency, once, writes, key_bytes, value_bytes, sweep: Sweep::None };
    Shape { name, kind: Kind::Zipf(zipf) }
}

const fn sweep(name: &'static str, sweep: Sweep) -> Shape {
    let zipf = Zipf {
        alpha: 1.0,
        frequency: 10.0,
        once: 0.1,
        writes: 0.0,
        key_bytes: 20,
        value_bytes: 200.0,
        sweep,
    };
    Shape { name, kind: Kind::Zipf(zipf) }
}

macro_rules! distribution {
    ($name:literal) => {
        Shape {
            name: $name,
            kind: Kind::Distribution(include_bytes!(concat!(
                "../../../../data/traces/",
                $name,
                ".json.gz"
            ))),
        }
    };
}

/// Every shape.
pub const SHAPES: &[Shape] = &[
    distribution!("graph-follower-assocs"),
    distribution!("graph-follower-objects"),
    distribution!("graph-leader-assocs"),
    distribution!("kvcache"),
    // Alpha, mean frequency, share of objects asked for once; writes; key and value bytes.
    twitter("twitter4", (1.1004, 26.5, 0.2933), 0.07, (67, 2439.0)),
    twitter("twitter19", (0.735, 4.7, 0.0746), 0.25, (42, 101.0)),
    twitter("twitter45", (0.6372, 2.9, 0.4874), 0.15, (10, 120.0)),
    twitter("twitter53", (1.2061, 27.6, 0.1319), 0.12, (36, 9213.0)),
    twitter("twitter54", (1.611, 9.8, 0.5483), 0.03, (19, 246.0)),
    sweep("scan", Sweep::Scan(0.3)),
    sweep("loop", Sweep::Loop(0.3)),
];
