//! Traces of a given shape: seeded, so that a run can be repeated.
//!
//! **Meta's distributions** tell how often the keys of a day were asked for. They are scaled down:
//! of every popularity there are fewer keys, so that each is asked for as often as in the
//! original; keys that would be fractions are drawn together. Requests are independent of
//! one another, but for those to keys that are asked for once.
//!
//! **Zipf's law** over ranks; the object at a rank is replaced by a new one from time to time, as
//! often as the number of objects asks for, so popularity ages. Objects that are asked for once
//! come on top. A share of the requests writes.

use super::shapes::{Kind, Shape, Sweep, Zipf};
use super::{KEY_BYTES, Operation, Request, Trace};
use crate::rng::{Alias, Rng};
use serde_json::Value;
use std::io::Read;

/// Requests in a second of a generated trace.
const REQUESTS_PER_SECOND: usize = 2000;
/// Of the objects that are asked for more than once, so many have a rank at the same time.
const RANKED: f64 = 0.5;
/// Objects in one walk of a scan.
const SCAN_LENGTH: usize = 5_000;

/// Hands out numbers to objects as they are first asked for, and remembers their sizes.
struct Writer {
    trace: Trace,
    /// By the number that the generator uses.
    numbers: Vec<u32>,
    sizes: Vec<u32>,
}

impl Writer {
    fn new(name: &str, key_bytes: usize) -> Self {
        let trace = Trace { name: String::from(name), requests: Vec::new(), objects: 0, key_bytes };
        Self { trace, numbers: Vec::new(), sizes: Vec::new() }
    }

    /// A new object, as yet not asked for.
    fn object(&mut self, value_bytes: u32) -> u32 {
        self.numbers.push(u32::MAX);
        self.sizes.push(value_bytes);
        self.numbers.len() as u32 - 1
    }

    fn request(&mut self, object: u32, operation: Operation) {
        let number = &mut self.numbers[object as usize];
        if *number == u32::MAX {
            *number = self.trace.objects;
            self.trace.objects += 1;
        }
        self.trace.requests.push(Request {
            time_s: (self.trace.requests.len() / REQUESTS_PER_SECOND) as u32,
            object: *number,
            value_bytes: self.sizes[object as usize],
            operation,
        });
    }
}

impl Shape {
    /// So many requests of this shape; the same for the same seed.
    #[must_use]
    pub fn generate(&self, requests: usize, seed: u64) -> Trace {
        match &self.kind {
            Kind::Distribution(file) => distribution(self.name, file, requests, seed),
            Kind::Zipf(zipf) => by_zipf(self.name, zipf, requests, seed),
        }
    }
}

/// The numbers of one array of a shipped distribution.
fn numbers(file: &Value, name: &str) -> Vec<f64> {
    let array = file[name].as_array().expect("the shipped distributions have this array");
    array.iter().filter_map(Value::as_f64).collect()
}

fn distribution(name: &str, file: &[u8], requests: usize, seed: u64) -> Trace {
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("shipped, and tested");
    let file: Value = serde_json::from_str(&text).expect("shipped, and tested");
    let keys = numbers(&file, "popularityBuckets");
    let weights = numbers(&file, "popularityWeights");
    let once = file["oneHits"].as_f64().expect("shipped, and tested");
    let size_ends = numbers(&file, "valSizeRange");
    let sizes = Alias::new(&numbers(&file, "valSizeRangeProbability"));

    let mut rng = Rng::new(seed);
    let size = |rng: &mut Rng| {
        let at = sizes.draw(rng);
        let least = at.checked_sub(1).map_or(1.0, |before| size_ends[before] + 1.0);
        let most = size_ends[at].max(least);
        (least + rng.unit() * (most - least + 1.0)) as u32
    };
    // So many keys that each is asked for as often as in the original.
    let scale = requests as f64 * (1.0 - once) / weights.iter().sum::<f64>();
    let mut writer = Writer::new(name, KEY_BYTES);
    let mut shares = Vec::new();
    let (mut count, mut weight) = (0.0, 0.0);
    for (keys, weights) in keys.iter().zip(&weights) {
        count += keys * scale;
        weight += weights * scale;
        let whole = count as usize;
        for _ in 0..whole {
            let bytes = size(&mut rng);
            writer.object(bytes);
            shares.push(weight / count);
        }
        weight -= weight / count * whole as f64;
        count -= whole as f64;
    }
    if shares.is_empty() {
        writer.object(size(&mut rng));
        shares.push(1.0);
    }
    let popularity = Alias::new(&shares);
    for _ in 0..requests {
        let object = if rng.unit() < once {
            let bytes = size(&mut rng);
            writer.object(bytes)
        } else {
            popularity.draw(&mut rng) as u32
        };
        writer.request(object, Operation::Get);
    }
    writer.trace
}

/// A number that is normally distributed (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (core::f64::consts::TAU * rng.unit()).cos()
}

fn by_zipf(name: &str, zipf: &Zipf, requests: usize, seed: u64) -> Trace {
    let mut rng = Rng::new(seed);
    // The mean of e^(m + x) is e^(m + 1/2) for a normal x.
    let middle = zipf.value_bytes.ln() - 0.5;
    let size = |rng: &mut Rng| (middle + normal(rng)).exp().clamp(1.0, 1024.0 * 1024.0) as u32;
    let mut writer = Writer::new(name, zipf.key_bytes);
    let objects = requests as f64 / zipf.frequency;
    let ranks = (objects * (1.0 - zipf.once) * RANKED).max(1.0) as usize;
    let shares: Vec<f64> = (0..ranks).map(|rank| (rank as f64 + 1.0).powf(-zipf.alpha)).collect();
    let popularity = Alias::new(&shares);
    let mut ranked: Vec<u32> = Vec::with_capacity(ranks);
    for _ in 0..ranks {
        let bytes = size(&mut rng);
        ranked.push(writer.object(bytes));
    }
    let once = objects * zipf.once / requests as f64;
    let replaced = objects * (1.0 - zipf.once) * (1.0 - RANKED) / requests as f64;
    let (share, walk, same) = match zipf.sweep {
        Sweep::None => (0.0, 0, false),
        Sweep::Scan(share) => (share, SCAN_LENGTH, false),
        Sweep::Loop(share) => (share, ranks, true),
    };
    let walked: Vec<u32> = if same {
        (0..walk).map(|_| size(&mut rng)).map(|bytes| writer.object(bytes)).collect()
    } else {
        Vec::new()
    };
    let mut at = 0;
    let mut burst = 0usize;
    while writer.trace.requests.len() < requests {
        if burst > 0 || rng.unit() < share / SCAN_LENGTH as f64 / (1.0 - share) {
            burst = if burst == 0 { SCAN_LENGTH } else { burst } - 1;
            let object = if same {
                at = (at + 1) % walked.len();
                walked[at]
            } else {
                let bytes = size(&mut rng);
                writer.object(bytes)
            };
            writer.request(object, Operation::Get);
            continue;
        }
        if rng.unit() < replaced {
            let bytes = size(&mut rng);
            ranked[rng.index(ranks)] = writer.object(bytes);
        }
        let object = if rng.unit() < once {
            let bytes = size(&mut rng);
            writer.object(bytes)
        } else {
            ranked[popularity.draw(&mut rng)]
        };
        let write = rng.unit() < zipf.writes;
        writer.request(object, if write { Operation::Set } else { Operation::Get });
    }
    writer.trace
}

#[cfg(test)]
mod tests {
    use super::super::SHAPES;
    use super::*;

    fn shape(name: &str) -> &'static Shape {
        SHAPES.iter().find(|shape| shape.name == name).unwrap()
    }

    #[test]
    fn every_shape_has_its_requests_and_numbers_objects_as_they_come() {
        for shape in SHAPES {
            let trace = shape.generate(20_000, 3);
            assert_eq!(trace, shape.generate(20_000, 3), "{}", shape.name);
            assert_ne!(trace, shape.generate(20_000, 4), "{}", shape.name);
            assert_eq!(trace.requests.len(), 20_000);
            let mut next = 0;
            for request in &trace.requests {
                assert!(request.object <= next && request.value_bytes > 0);
                next = next.max(request.object + 1);
            }
            assert_eq!(next, trace.objects);
        }
    }

    #[test]
    fn a_distribution_keeps_frequency_and_share_of_the_hottest() {
        let trace = shape("graph-follower-assocs").generate(400_000, 1);
        let frequency = 400_000.0 / f64::from(trace.objects);
        // 400 M requests to 10.1 M keys, and 2.5 % to keys that are asked for once.
        assert!((18.0..26.0).contains(&frequency), "{frequency}");
        let mean = trace.footprint_bytes() as f64 / f64::from(trace.objects) - 20.0;
        assert!((450.0..700.0).contains(&mean), "values of {mean} B");
    }

    #[test]
    fn zipf_keeps_frequency_writes_and_sizes() {
        let trace = shape("twitter19").generate(400_000, 1);
        let frequency = 400_000.0 / f64::from(trace.objects);
        assert!((4.2..6.5).contains(&frequency), "{frequency}");
        let writes = trace.requests.iter().filter(|r| r.operation == Operation::Set).count();
        assert!((0.24..0.26).contains(&(writes as f64 / 400_000.0)));
        let mean = trace.footprint_bytes() as f64 / f64::from(trace.objects) - 42.0;
        assert!((95.0..107.0).contains(&mean), "values of {mean} B");
    }
}
