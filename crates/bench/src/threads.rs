//! What further threads bring: what a request costs the busiest thread of a server, beside what it costs all of them.
//!
//! Where each thread has a core of its own, the busiest one bounds what a server can do. So that can be measured where there are fewer
//! cores, all threads of the server on one of them: `could serve` is what the busiest thread of a server with one thread has to do for a
//! request, divided by what the busiest one of this server has to do. It leaves out what threads on different cores cost each other, and
//! counts that threads on one core interrupt each other; where there are cores for all, `--no-pin` measures throughput itself.

use crate::args::{Common, within};
use crate::drive::drive;
use crate::experiment::Progress;
use crate::measure::process;
use crate::measure::stats::spread;
use crate::peer::{Launch, Server, System, stop};
use crate::raw::Operation;
use crate::raw::points::{self, Points, Protocol};
use crate::report::table;
use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Instant;

/// What threads beside the one that executes bring: I/O threads and shards; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Threads {
    #[command(flatten)]
    common: Common,
    /// What to measure, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get,set")]
    op: Vec<Operation>,
    /// Requests in flight per connection.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128", value_name = "N,…")]
    pipeline: Vec<usize>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    value: usize,
    /// Keys.
    #[arg(long, default_value_t = 200_000, value_name = "N")]
    keys: u32,
    /// Numbers of threads, as --io-threads and as --shards.
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_name = "N,…")]
    threads: Vec<u16>,
    /// Encrypt.
    #[arg(long)]
    tls: bool,
}

/// A server and its threads.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Arrangement {
    name: String,
    system: System,
    arguments: Vec<String>,
}

/// What a run has shown.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// CPU of all threads, of the busiest, and time that passed: microseconds for a request.
    all: f64,
    busiest: f64,
    wall: f64,
}

impl Arrangement {
    fn new(name: String, system: System, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        Self { name, system, arguments }
    }
}

impl Threads {
    /// Runs all pairs and prints a table.
    ///
    /// # Errors
    /// An option is wrong, a peer is missing, or a run fails.
    pub fn run(&self) -> Result<()> {
        self.check()?;
        let launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let arrangements = self.arrangements();
        let cases: Vec<(Operation, usize)> = self
            .op
            .iter()
            .flat_map(|&operation| self.pipeline.iter().map(move |&pipeline| (operation, pipeline)))
            .collect();
        // By case and arrangement, one for each pair.
        let mut found = vec![vec![Vec::new(); arrangements.len()]; cases.len()];
        for pair in 1..=self.common.pairs {
            for (at, arrangement) in arrangements.iter().enumerate() {
                let one = self.one(&launch, arrangement, pair, &cases);
                for (case, figures) in
                    one.with_context(|| arrangement.name.clone())?.into_iter().enumerate()
                {
                    found[case][at].push(figures);
                }
            }
        }
        let mut text = format!("\nthreads: {} connections\n", self.common.connections);
        for (case, (operation, pipeline)) in cases.iter().enumerate() {
            text.push_str(&format!("\n{operation}, {} B, pipeline {pipeline}\n", self.value));
            table::rows(&mut text, &rows(&arrangements, &found[case]));
        }
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.common.check()?;
        within("--value", self.value as f64, crate::raw::MARK_BYTES as f64, 65536.0)?;
        within("--keys", f64::from(self.keys), 1000.0, 1e7)?;
        for &pipeline in &self.pipeline {
            within("--pipeline", pipeline as f64, 1.0, 4096.0)?;
        }
        for &threads in &self.threads {
            within("--threads", f64::from(threads), 2.0, 64.0)?;
        }
        if self.op.iter().any(|op| matches!(op, Operation::Range | Operation::RangeLex)) {
            bail!("--op: threads measures single keys (allowed: get, set, mixed, mget)");
        }
        if !self.common.against.is_empty() {
            bail!(
                "--against: threads measures Headwater alone; others' I/O threads wait at work, and need cores of their own"
            );
        }
        if self.common.json.is_some() || self.common.svg.is_some() || self.common.peers_only {
            bail!("--json, --svg, --peers-only: threads prints a table alone");
        }
        Ok(())
    }

    fn arrangements(&self) -> Vec<Arrangement> {
        let own = if self.tls { System::Tls } else { System::Headwater };
        let mut all = vec![Arrangement::new(String::from("one thread"), own, &[])];
        for threads in self.threads.iter().map(u16::to_string) {
            let name = format!("{threads} I/O threads");
            all.push(Arrangement::new(name, own, &["--io-threads", &threads]));
        }
        for threads in self.threads.iter().map(u16::to_string) {
            all.push(Arrangement::new(format!("{threads} shards"), own, &["--shards", &threads]));
        }
        all
    }

    /// All cases on one server.
    fn one(
        &self,
        launch: &Launch,
        arrangement: &Arrangement,
        pair: usize,
        cases: &[(Operation, usize)],
    ) -> Result<Vec<Figures>> {
        let arguments = arrangement.arguments.clone();
        let server = Server::start(arrangement.system, &Launch { arguments, ..launch.clone() })?;
        let mut control = server.connect()?;
        let mut connections =
            (0..self.common.connections).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
        let progress = Progress::new(arrangement.system, pair, self.common.pairs);
        let mut points = Points::new(Protocol::Resp, self.keys, self.value);
        progress.phase("loading", u64::from(self.keys));
        points.load(&mut control).with_context(|| server.log())?;
        let mut all = Vec::new();
        for &(operation, pipeline) in cases {
            points.set_multi(operation == Operation::Mget);
            let usual = if pipeline == 1 { 400_000.0 } else { 2_000_000.0 };
            let count = ((usual * self.common.scale) as u64).max(100);
            let (lanes, seed) = (connections.len(), self.common.seed);
            let schedule = points::draw(operation, self.keys, count, lanes, pipeline, seed);
            progress.phase(&arrangement.name, count);
            let (before, begun) = (server.threads()?, Instant::now());
            let limit = self.common.limit();
            let done = drive(&mut points, &mut connections, &schedule, limit, &progress.bar)
                .with_context(|| format!("the server printed: {}", server.log()))?;
            let wall = begun.elapsed();
            all.push(figures(&before, &server.threads()?, wall, done));
            if !points.verify(&mut control, self.common.sample, self.common.seed)? {
                bail!("a value is not what was written");
            }
        }
        progress.bar.finish_and_clear();
        Ok(all)
    }
}

fn figures(
    before: &HashMap<u32, Duration>,
    after: &HashMap<u32, Duration>,
    wall: Duration,
    operations: u64,
) -> Figures {
    let each = |time: Duration| time.as_secs_f64() * 1e6 / operations.max(1) as f64;
    let used = after
        .iter()
        .map(|(thread, time)| time.saturating_sub(before.get(thread).copied().unwrap_or_default()));
    let used: Vec<Duration> = used.collect();
    Figures {
        all: each(used.iter().sum()),
        busiest: each(used.iter().max().copied().unwrap_or_default()),
        wall: each(wall),
    }
}

/// A table of what the arrangements cost, beside the first.
fn rows(arrangements: &[Arrangement], found: &[Vec<Figures>]) -> Vec<Vec<String>> {
    let head = [
        "threads",
        "CPU µs/op",
        "÷ one thread",
        "busiest thread µs/op",
        "could serve",
        "(range)",
        "wall µs/op",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (arrangement, runs) in arrangements.iter().zip(found) {
        let median = |of: fn(&Figures) -> f64| spread(runs.iter().map(of)).map(|it| it.median);
        let beside = |of: fn(&Figures, &Figures) -> f64| {
            spread(found[0].iter().zip(runs).map(|(one, this)| of(one, this)))
        };
        let cost = beside(|one, this| this.all / one.all);
        let serves = beside(|one, this| one.busiest / this.busiest);
        let (Some(all), Some(busiest), Some(wall), Some(cost), Some(serves)) =
            (median(|it| it.all), median(|it| it.busiest), median(|it| it.wall), cost, serves)
        else {
            continue;
        };
        rows.push(vec![
            arrangement.name.clone(),
            format!("{all:.3}"),
            format!("{:.2}", cost.median),
            format!("{busiest:.3}"),
            format!("{:.2}", serves.median),
            format!("{:.2}–{:.2}", serves.least, serves.greatest),
            format!("{wall:.3}"),
        ]);
    }
    rows
}

impl Server {
    /// CPU that each of the server's threads has used, by number.
    fn threads(&self) -> Result<HashMap<u32, Duration>> {
        process::cpu_of_threads(self.process())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_thread_bounds_what_could_be_served() {
        let micros = |all: &[(u32, u64)]| -> HashMap<u32, Duration> {
            all.iter().map(|(thread, micros)| (*thread, Duration::from_micros(*micros))).collect()
        };
        let wall = Duration::from_micros(900);
        let one = figures(&micros(&[(1, 100)]), &micros(&[(1, 700)]), wall, 100);
        let two = figures(&micros(&[(1, 50)]), &micros(&[(1, 350), (2, 310)]), wall, 100);
        assert_eq!((one.all, one.busiest, one.wall), (6.0, 6.0, 9.0));
        assert!((two.all - 6.1).abs() < 1e-9 && (two.busiest - 3.1).abs() < 1e-9);
        let names = ["one thread", "2 I/O threads"];
        let arrangements =
            names.map(|name| Arrangement::new(name.to_owned(), System::Headwater, &[]));
        let rows = rows(&arrangements, &[vec![one], vec![two]]);
        assert_eq!(rows[1][1..5], ["6.000", "1.00", "6.000", "1.00"]);
        assert_eq!(rows[2][1..5], ["6.100", "1.02", "3.100", "1.94"]);
    }
}
