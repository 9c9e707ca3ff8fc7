//! What values of different lengths take in the pool, with all metadata and the rests of buffers.
#![expect(clippy::print_stdout, reason = "an example prints")]

use headwater_pool::Pool;

fn main() {
    println!("{:>12} {:>12} {:>9}", "value", "takes", "overhead");
    for len in [64, 100, 150, 280, 1000, 1 << 10, 4 << 10, 10 << 10, 10_000, 100_000, 1 << 20] {
        let sizes = vec![len; (600 << 20) / len.max(64)];
        show(&len.to_string(), &sizes);
    }
    let mut state = 1u64;
    let mut draw = |from: usize, to: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (state >> 33) as usize % (to - from)
    };
    let sizes: Vec<usize> = (0..10_000).map(|_| draw(10 << 10, 100 << 10)).collect();
    show("10–100 KiB", &sizes);
    let sizes: Vec<usize> = (0..2_000_000).map(|_| draw(8, 300)).collect();
    show("8–300 B", &sizes);

    // Lengths of real tweets, each as often as in the sample, in no order.
    let tweets = include_str!("../../../data/tweet_lengths.csv");
    let mut lengths = Vec::new();
    for line in tweets.lines().skip(1) {
        let (bytes, count) = line.split_once(',').expect("lines are bytes,count");
        let parse = |text: &str| text.parse::<usize>().expect("a number");
        lengths.extend(core::iter::repeat_n(parse(bytes), parse(count)));
    }
    let sizes: Vec<usize> = (0..2_000_000).map(|_| lengths[draw(0, lengths.len())]).collect();
    show("tweets", &sizes);
}

/// Stores values of these lengths: the buffers that are full by then say what they take.
fn show(name: &str, sizes: &[usize]) {
    let mut pool = Pool::new();
    let bytes = vec![b'x'; sizes.iter().copied().max().unwrap_or(0)];
    // The first buffers of a pool are small; the later ones tell.
    let half = sizes.len() / 2;
    sizes[..half].iter().for_each(|&len| {
        let _kept = pool.insert(&bytes[..len]);
    });
    let before = pool.allocated() - pool.free();
    sizes[half..].iter().for_each(|&len| {
        let _kept = pool.insert(&bytes[..len]);
    });
    let taken = pool.allocated() - pool.free() - before;
    let (stored, values) = (sizes[half..].iter().sum::<usize>(), sizes.len() - half);
    let overhead = (taken as f64 / stored as f64 - 1.0) * 100.0;
    println!("{name:>12} {:>12.1} {overhead:>8.2}%", taken as f64 / values as f64);
}
