//! The table of scaling.

use super::Measured;
use crate::measure::stats::{Spread, spread};
use crate::report::table;

/// One row for each number of shards. `base_bytes`: keys and values of the base data before the run.
#[must_use]
pub fn table(all: &[Measured], shards: &[u16], base_bytes: u64) -> String {
    let head = [
        "shards",
        "CPU µs/op",
        "÷ first",
        "(range)",
        "ops/s",
        "÷ first",
        "forwarded",
        "batches/op",
        "packets/op",
        "changes/op",
        "bytes/op",
        "replicas",
        "verified",
    ];
    let mut grid = vec![head.map(String::from).to_vec()];
    let of = |count: u16| all.iter().filter(move |measured| measured.shards == count);
    let first = shards.first().copied().unwrap_or(1);
    for &count in shards {
        let work = |measured: &Measured| measured.run.server_cpu_s / measured.run.operations as f64;
        let rate = |measured: &Measured| measured.run.operations as f64 / measured.run.wall_s;
        let ratio = |figure: &dyn Fn(&Measured) -> f64| -> Option<Spread> {
            let pairs = of(count).filter_map(|one| {
                let base = of(first).find(|base| base.run.pair == one.run.pair)?;
                Some(figure(one) / figure(base))
            });
            spread(pairs.collect::<Vec<_>>())
        };
        let per_operation = |figure: fn(&Measured) -> u64| {
            let figures = of(count).map(|one| figure(one) as f64 / one.run.operations as f64);
            spread(figures).map_or(0.0, |spread| spread.median)
        };
        let (Some(cpu), Some(speed)) = (spread(of(count).map(work)), spread(of(count).map(rate)))
        else {
            continue;
        };
        let (Some(inflation), Some(gain)) = (ratio(&work), ratio(&rate)) else { continue };
        let replicas = spread(of(count).map(|one| one.crossed.replica_bytes as f64));
        let replicas = replicas.map_or(0.0, |spread| spread.median);
        grid.push(vec![
            count.to_string(),
            format!("{:.3}", cpu.median * 1e6),
            format!("{:.2}", inflation.median),
            format!("{:.2}–{:.2}", inflation.least, inflation.greatest),
            format!("{:.0}", speed.median),
            format!("{:.2}", gain.median),
            format!("{:.0} %", 100.0 * per_operation(|one| one.crossed.requests)),
            format!("{:.3}", per_operation(|one| one.crossed.batches)),
            format!("{:.3}", per_operation(|one| one.crossed.packets)),
            format!("{:.3}", per_operation(|one| one.crossed.changes)),
            format!("{:.0}", per_operation(|one| one.crossed.bytes)),
            format!("{:.2} x base", replicas / base_bytes.max(1) as f64),
            String::from(if of(count).all(|one| one.run.verified) { "yes" } else { "NO" }),
        ]);
    }
    let mut text = String::from("\nscale: work per operation, all shards together\n");
    table::rows(&mut text, &grid);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;
    use crate::scale::Crossed;

    #[test]
    fn work_is_compared_with_the_first_number_of_shards() {
        let one = |shards, cpu, changes| {
            let crossed = Crossed { changes, replica_bytes: 50, ..Crossed::default() };
            Measured { shards, run: run("headwater", 1, cpu), crossed }
        };
        let text = table(&[one(1, 1.0, 0), one(4, 1.5, 250)], &[1, 4], 100);
        let row = text.lines().find(|line| line.starts_with('4')).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        let expected = [
            "4",
            "1500.000",
            "1.50",
            "1.50–1.50",
            "333",
            "0.67",
            "0",
            "%",
            "0.000",
            "0.000",
            "0.250",
            "0",
            "0.50",
            "x",
            "base",
            "yes",
        ];
        assert_eq!(words, expected, "{text}");
    }
}
