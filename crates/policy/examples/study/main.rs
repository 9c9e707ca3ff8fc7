//! `cargo run --release -p headwater-policy --example study -- [--trace NAME|FILE,…]
//! [--requests 1000000] [--seed 1] [--policy NAME,…]`
//!
//! Hit ratios of Headwater's policies beside those of others, on real and generated traces, at
//! caches of 0.1 % to 50 % of what the trace asks for. A cache of so many bytes holds entries of
//! key, value and 32 bytes more; a read that misses brings the object in, as a write does. Each
//! field is the hit ratio of reads in percent, by requests and by bytes of values.
//!
//! Redis' policies are as in Redis 7: five samples and a pool of sixteen, seconds for `lru`, a
//! logarithmic count that loses one a minute for `lfu`, at the trace's own pace.

mod cache;
mod headwater;
mod lists;

use cache::{Access, Cache};
use headwater::Headwater;
use headwater_policy::Order;
use headwater_workload::Trace;
use headwater_workload::trace::{CLUSTER52, Operation, SHAPES};
use lists::{Fifo, Ordered, Redis, RedisBy, Sieve, TinyLfu};
use std::error::Error;
use std::io::{Write as _, stdout};

/// Bytes that an entry takes besides key and value.
const ENTRY_BYTES: u32 = 32;
/// Sizes of caches, as shares of the bytes of all objects.
const SHARES: [f64; 7] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5];

type Make = fn(u64, usize, u64) -> Box<dyn Cache>;

/// Policies by name: `hw-` are Headwater's (with 5 and 32 samples in place of 16, and without
/// ghosts, to see what each is worth), `redis-` those of Redis.
const POLICIES: [(&str, Make); 19] = [
    ("hw-cost", |bytes, objects, _| Box::new(Headwater::new(bytes, objects, Order::Cost))),
    ("hw-lfu", |bytes, objects, _| Box::new(Headwater::new(bytes, objects, Order::Frequency))),
    ("hw-lru", |bytes, objects, _| Box::new(Headwater::new(bytes, objects, Order::Recency))),
    ("hw-random", |bytes, objects, _| Box::new(Headwater::new(bytes, objects, Order::Random))),
    ("hw-cost-5", |bytes, objects, _| {
        Box::new(Headwater::new(bytes, objects, Order::Cost).samples(5))
    }),
    ("hw-cost-32", |bytes, objects, _| {
        Box::new(Headwater::new(bytes, objects, Order::Cost).samples(32))
    }),
    ("hw-cost-no-ghosts", |bytes, objects, _| {
        Box::new(Headwater::new(bytes, objects, Order::Cost).forgetful())
    }),
    ("redis-lfu", |bytes, objects, _| Box::new(Redis::new(bytes, objects, RedisBy::Lfu))),
    ("redis-lru", |bytes, objects, _| Box::new(Redis::new(bytes, objects, RedisBy::Lru))),
    ("redis-random", |bytes, objects, _| Box::new(Redis::new(bytes, objects, RedisBy::Random))),
    ("lru", |bytes, objects, _| Box::new(Ordered::new(bytes, objects, lists::Order::Recency))),
    ("lfu", |bytes, objects, _| Box::new(Ordered::new(bytes, objects, lists::Order::Frequency))),
    ("gdsf", |bytes, objects, _| Box::new(Ordered::new(bytes, objects, lists::Order::Gdsf))),
    ("fifo", |bytes, objects, _| Box::new(Fifo::clock(bytes, objects, 0))),
    ("clock-1", |bytes, objects, _| Box::new(Fifo::clock(bytes, objects, 1))),
    ("clock-3", |bytes, objects, _| Box::new(Fifo::clock(bytes, objects, 3))),
    ("sieve", |bytes, objects, _| Box::new(Sieve::new(bytes, objects))),
    ("s3-fifo", |bytes, objects, _| Box::new(Fifo::s3(bytes, objects))),
    ("w-tinylfu", |bytes, objects, mean| Box::new(TinyLfu::new(bytes, objects, mean))),
];

/// Reads, and those that hit, by requests and by bytes.
#[derive(Default)]
struct Ratio {
    reads: u64,
    hits: u64,
    bytes: u64,
    bytes_hit: u64,
}

fn replay(trace: &Trace, cache: &mut dyn Cache) -> Ratio {
    let mut ratio = Ratio::default();
    let besides = trace.key_bytes as u32 + ENTRY_BYTES;
    // No trace deletes often enough to matter to the order of policies.
    for request in trace.requests.iter().filter(|r| r.operation != Operation::Delete) {
        let bytes = request.value_bytes.saturating_add(besides);
        let access = Access { object: request.object, bytes, time_s: request.time_s };
        let hit = cache.access(access);
        if request.operation == Operation::Get {
            let value = u64::from(request.value_bytes);
            ratio.reads += 1;
            ratio.bytes += value;
            ratio.hits += u64::from(hit);
            ratio.bytes_hit += if hit { value } else { 0 };
        }
    }
    ratio
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)).map(String::as_str)
    };
    let number = |name: &str, otherwise: u64| option(name).map_or(Ok(otherwise), str::parse);
    let (requests, seed) = (number("--requests", 1_000_000)? as usize, number("--seed", 1)?);
    let every: Vec<&str> =
        core::iter::once(CLUSTER52).chain(SHAPES.iter().map(|shape| shape.name)).collect();
    let traces = option("--trace").map_or(every, |names| names.split(',').collect());
    let wanted: Option<Vec<&str>> = option("--policy").map(|names| names.split(',').collect());
    let chosen = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.contains(&name));
    let policies: Vec<_> = POLICIES.iter().filter(|(name, _)| chosen(name)).collect();
    let mut out = stdout().lock();
    let mut means = vec![[0.0; SHARES.len()]; policies.len()];
    // Hit ratios of each policy: every trace at every size.
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); policies.len()];
    for name in &traces {
        let trace = Trace::open(name, requests, seed)?;
        let objects = trace.objects as usize;
        let footprint = trace.footprint_bytes() + u64::from(ENTRY_BYTES) * objects as u64;
        let counted = trace.requests.len();
        writeln!(
            out,
            "\n{}: {counted} requests, {objects} objects, {footprint} bytes",
            trace.name
        )?;
        write!(out, "{:<18}", "policy")?;
        for share in SHARES {
            write!(out, "{:>14}", format!("{} %", share * 100.0))?;
        }
        writeln!(out)?;
        for (((name, make), mean), ratios) in policies.iter().zip(&mut means).zip(&mut ratios) {
            write!(out, "{name:<18}")?;
            for (share, mean) in SHARES.iter().zip(mean) {
                let capacity = (footprint as f64 * share) as u64;
                let mut cache = make(capacity, objects, footprint / objects.max(1) as u64);
                let ratio = replay(&trace, &mut *cache);
                let hits = 100.0 * ratio.hits as f64 / ratio.reads.max(1) as f64;
                let bytes = 100.0 * ratio.bytes_hit as f64 / ratio.bytes.max(1) as f64;
                ratios.push(hits);
                *mean += hits / traces.len() as f64;
                write!(out, "{:>14}", format!("{hits:.2} {bytes:.1}"))?;
            }
            writeln!(out)?;
            out.flush()?;
        }
    }
    writeln!(out, "\nmean over {} traces, by requests", traces.len())?;
    for ((name, _), mean) in policies.iter().zip(&means) {
        write!(out, "{name:<18}")?;
        for mean in mean {
            write!(out, "{mean:>14.2}")?;
        }
        writeln!(out)?;
    }
    let of = |wanted: &str| {
        let at = policies.iter().position(|(name, _)| *name == wanted)?;
        Some(ratios[at].as_slice())
    };
    let (Some(lru), Some(lfu)) = (of("redis-lru"), of("redis-lfu")) else { return Ok(()) };
    writeln!(out, "\nnot below redis-lru, redis-lfu, the better one (of {} cases)", lru.len())?;
    for ((name, _), ratios) in policies.iter().zip(&ratios) {
        let count = |wins: &dyn Fn(usize) -> bool| (0..ratios.len()).filter(|&at| wins(at)).count();
        let lru_below = count(&|at| ratios[at] >= lru[at]);
        let lfu_below = count(&|at| ratios[at] >= lfu[at]);
        let both_below = count(&|at| ratios[at] >= lru[at].max(lfu[at]));
        writeln!(out, "{name:<18}{lru_below:>14}{lfu_below:>14}{both_below:>14}")?;
    }
    Ok(())
}
