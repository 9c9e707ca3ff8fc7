//! The pool beside a map of vectors and beside plain copying: what 10 KiB values cost each.
//!
//! `cargo run --release -p headwater-pool --example compare -- 100000` (values; 10 KiB each).
#![expect(clippy::print_stdout, reason = "an example prints")]

use headwater_pool::{Pool, ValueRef};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

const BYTES: usize = 10 << 10;

/// Nanoseconds per value of each of the `steps`.
fn timed(name: &str, values: usize, step: impl FnOnce()) {
    let began = Instant::now();
    step();
    println!("{name:>28} {:>9.0} ns", began.elapsed().as_nanos() as f64 / values as f64);
}

fn main() {
    let values = std::env::args().nth(1).map_or(50_000, |text| text.parse().expect("a number"));
    let bytes = vec![b'x'; BYTES];
    let mut room = Vec::with_capacity(BYTES);
    for round in 0..2 {
        println!("round {round}");
        let mut source = vec![1u8; BYTES * values];
        timed("memcpy of as much", values, || {
            for at in 0..values {
                let from = at * BYTES;
                room.clear();
                room.extend_from_slice(&source[from..from + BYTES]);
                black_box(&mut room);
            }
        });
        black_box(&mut source);

        let mut pool = Pool::new();
        let mut map: HashMap<u64, ValueRef> = HashMap::new();
        timed("pool: insert", values, || {
            (0..values as u64).for_each(|key| _ = map.insert(key, pool.insert(&bytes)));
        });
        timed("pool: read", values, || {
            for key in 0..values as u64 {
                room.clear();
                pool.view(map[&key]).write_to(&mut room);
                black_box(&mut room);
            }
        });
        timed("pool: replace", values, || {
            map.values_mut().for_each(|value| *value = pool.replace(*value, &bytes));
        });
        timed("pool: append 2 KiB", values, || {
            map.values_mut().for_each(|value| *value = pool.append(*value, &bytes[..2048], 0));
        });
        timed("pool: delete", values, || map.drain().for_each(|(_, value)| pool.release(value)));
        assert_eq!(pool.bytes(), 0);
        drop(pool);

        let mut map: HashMap<u64, Vec<u8>> = HashMap::new();
        timed("map: insert", values, || {
            (0..values as u64).for_each(|key| _ = map.insert(key, bytes.clone()));
        });
        timed("map: read", values, || {
            (0..values as u64).for_each(|key| _ = black_box(map[&key].clone()));
        });
        timed("map: replace", values, || {
            map.values_mut().for_each(|value| *value = bytes.clone());
        });
        timed("map: append 2 KiB", values, || {
            map.values_mut().for_each(|value| value.extend_from_slice(&bytes[..2048]));
        });
        timed("map: delete", values, || map.clear());
    }

    let mut pool = Pool::new();
    let mut long = pool.insert(&vec![b'x'; 10 << 20]);
    timed("append 100 B to 10 MiB", 100_000, || {
        (0..100_000).for_each(|_| long = pool.append(long, &bytes[..100], 0));
    });
    let mut short = pool.insert(&bytes[..100]);
    timed("set 100 B", 100_000, || {
        for _ in 0..100_000 {
            let new = pool.insert(&bytes[..100]);
            pool.release(core::mem::replace(&mut short, new));
        }
    });
}
