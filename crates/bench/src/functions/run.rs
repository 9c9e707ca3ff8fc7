//! Runs of functions, over sizes of objects.

use super::work::{self, Way, Work};
use super::{MODULE, Operation};
use crate::args::{Common, within};
use crate::drive::drive;
use crate::experiment::{Cost, Progress, take_turns};
use crate::measure::Run;
use crate::peer::{Launch, Server, System, stop};
use crate::report::{Case, Report};
use crate::wire::Connection;
use anyhow::{Context, Result};
use core::time::Duration;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Objects take so many bytes in all at most: of large ones there are fewer.
const STORE_BYTES_MAX: u64 = 256 << 20;
/// How long the burst lasts, and the quiet time behind it.
const PHASE: Duration = Duration::from_secs(30);
/// Changes among a hundred accesses, in the burst and outside.
const BURST_PERCENT: u64 = 56;
const QUIET_PERCENT: u64 = 38;
/// Accesses that the burst draws before it begins; they are repeated.
const BURST_DRAWN: u64 = 200_000;
/// The quiet time is cut into slices, of which each has its share of the accesses at its start.
const SLICE: Duration = Duration::from_millis(50);

/// Changing, filtering and counting next to the data, against the client doing it.
#[derive(Clone, Debug, clap::Args)]
pub struct Functions {
    #[command(flatten)]
    common: Common,
    /// What to measure, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "change,change-noreply,filter,count,burst"
    )]
    op: Vec<Operation>,
    /// Bytes of an object.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "256,1024,4096,10240,65536",
        value_name = "BYTES,…"
    )]
    value: Vec<usize>,
    /// Bytes of an object in the burst.
    #[arg(long, default_value_t = 10_240, value_name = "BYTES")]
    burst_value: usize,
    /// Accesses a second in the quiet time after the burst.
    #[arg(long, default_value_t = 4000, value_name = "N")]
    quiet_rate: u64,
    /// Requests in flight per connection.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pipeline: usize,
    /// Objects; fewer if they would take more than 256 MiB.
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    keys: u32,
}

/// One size of objects, and what is done with them.
#[derive(Clone, Debug)]
struct Store {
    value_bytes: usize,
    keys: u32,
    cases: Vec<Spec>,
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    /// Its place in the report; that of the quiet time is the next.
    index: usize,
    operation: Operation,
    operations: u64,
}

fn way(system: System) -> Way {
    match system {
        System::Valkey | System::Redis => Way::Lua,
        System::Memcached => Way::PlainItems,
        System::Items => Way::Invoke,
        System::Client => Way::Plain,
        _ => Way::Call,
    }
}

impl Functions {
    /// Runs all pairs and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a peer is missing, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        for &bytes in self.value.iter().chain([&self.burst_value]) {
            within("--value, --burst-value", bytes as f64, 64.0, 16.0 * 1024.0 * 1024.0)?;
        }
        within("--pipeline", self.pipeline as f64, 1.0, 4096.0)?;
        within("--keys", f64::from(self.keys), 1000.0, 1e8)?;
        within("--quiet-rate", self.quiet_rate as f64, 100.0, 1e6)?;
        let known =
            [System::Client, System::Items, System::Memcached, System::Valkey, System::Redis];
        let systems = self.common.systems("functions", &known)?;
        let mut params = self.common.params();
        params.insert(String::from("keys"), json!(self.keys));
        params.insert(String::from("pipeline"), json!(self.pipeline));
        let mut report = Report::new("functions", params, Vec::new());
        let stores = self.stores(&mut report);
        let launch = self.common.launch(0)?;
        launch.check(&systems)?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        for store in &stores {
            let runs = take_turns(&systems, self.common.pairs, |system, pair, progress| {
                self.one(store, &launch, system, pair, progress)
            })?;
            for (index, run) in runs.into_iter().flatten() {
                report.cases[index].runs.push(run);
            }
        }
        self.common.tell(&report)
    }

    /// Which servers are needed, and what runs on each.
    fn stores(&self, report: &mut Report) -> Vec<Store> {
        let mut stores: Vec<Store> = Vec::new();
        for &operation in &self.op {
            let sizes = match operation {
                // The size of objects has no part in it.
                Operation::Count => &self.value[..1],
                Operation::Burst => core::slice::from_ref(&self.burst_value),
                _ => &self.value,
            };
            for &value_bytes in sizes {
                let usual = match value_bytes {
                    ..=4096 => 400_000.0,
                    4097..=16_384 => 160_000.0,
                    _ => 30_000.0,
                };
                let operations = ((usual * self.common.scale) as u64).max(100);
                let spec = Spec { index: report.cases.len(), operation, operations };
                let of = if operation == Operation::Count { "" } else { " of " };
                let size = match value_bytes {
                    _ if operation == Operation::Count => String::new(),
                    ..1024 => format!("{value_bytes} B"),
                    _ => format!("{} KiB", value_bytes / 1024),
                };
                let names = match operation {
                    Operation::Burst => vec![
                        format!("burst, 44 reads to 56 changes{of}{size}"),
                        format!("after it, 62 to 38, {} a second", self.quiet_rate),
                    ],
                    _ => vec![format!("{operation}{of}{size}")],
                };
                let most = (STORE_BYTES_MAX / value_bytes as u64).max(1000);
                let keys = self.keys.min(u32::try_from(most).unwrap_or(u32::MAX));
                for name in names {
                    let params = json!({
                        "op": operation.to_string(),
                        "value_bytes": value_bytes,
                        "keys": keys,
                    });
                    let params: Map<String, Value> =
                        params.as_object().cloned().unwrap_or_default();
                    report.cases.push(Case { name, params, runs: Vec::new() });
                }
                match stores.iter_mut().find(|store| store.value_bytes == value_bytes) {
                    Some(store) => store.cases.push(spec),
                    None => stores.push(Store { value_bytes, keys, cases: vec![spec] }),
                }
            }
        }
        stores
    }

    fn one(
        &self,
        store: &Store,
        launch: &Launch,
        system: System,
        pair: usize,
        progress: &Progress,
    ) -> Result<Vec<(usize, Run)>> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let mut launch = launch.clone();
        if system == System::Items {
            std::fs::write(folder.path().join("f.wasm"), MODULE)?;
            let folder = folder.path().display().to_string();
            launch.arguments.extend([String::from("--functions"), folder]);
        }
        let server = Server::start(system, &launch)?;
        let mut connections =
            (0..self.common.connections).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
        let mut control = server.connect()?;
        let mut work = Work::new(way(system), store.keys, store.value_bytes, connections.len());
        progress.phase("loading", u64::from(store.keys));
        work.load(&mut control).with_context(|| server.log())?;
        let mut runs = Vec::new();
        for spec in &store.cases {
            work.set_operation(spec.operation);
            let costs = if spec.operation == Operation::Burst {
                self.burst(store, &mut work, &server, &mut connections, progress)?
            } else {
                vec![self.plain(store, spec, &mut work, &server, &mut connections, progress)?]
            };
            let verified = work.verify(&mut control, self.common.sample, self.common.seed)?;
            for (at, cost) in costs.into_iter().enumerate() {
                runs.push((spec.index + at, cost.run(system, pair, verified)));
            }
        }
        Ok(runs)
    }

    fn plain(
        &self,
        store: &Store,
        spec: &Spec,
        work: &mut Work,
        server: &Server,
        connections: &mut [Connection],
        progress: &Progress,
    ) -> Result<Cost> {
        let percent = if spec.operation == Operation::Filter { 0 } else { 100 };
        let shape = (connections.len(), self.pipeline);
        let seed = self.common.seed;
        let schedule = work::draw(percent, store.keys, spec.operations, shape, seed);
        progress.phase(&spec.operation.to_string(), spec.operations);
        Cost::of(server, || drive(work, connections, &schedule, self.common.limit(), &progress.bar))
    }

    /// The burst, and the quiet time behind it.
    fn burst(
        &self,
        store: &Store,
        work: &mut Work,
        server: &Server,
        connections: &mut [Connection],
        progress: &Progress,
    ) -> Result<Vec<Cost>> {
        let time = PHASE.mul_f64(self.common.scale);
        let shape = (connections.len(), self.pipeline);
        let seed = self.common.seed;
        let schedule = work::draw(BURST_PERCENT, store.keys, BURST_DRAWN, shape, seed);
        progress.phase("burst", BURST_DRAWN);
        let burst = Cost::of(server, || {
            let (begun, mut done) = (Instant::now(), 0);
            while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
            {
                done += drive(work, connections, &schedule, Some(left), &progress.bar)?;
            }
            Ok(done)
        })?;
        let each = (self.quiet_rate as f64 * SLICE.as_secs_f64()) as u64;
        let slices: Vec<_> = (0..16)
            .map(|at| work::draw(QUIET_PERCENT, store.keys, each, shape, seed ^ (at + 1)))
            .collect();
        progress.phase("quiet", 0);
        let quiet = Cost::of(server, || {
            let (begun, mut done) = (Instant::now(), 0);
            for (at, schedule) in (0_u32..).zip(slices.iter().cycle()) {
                let next = SLICE * at;
                if next >= time {
                    break;
                }
                std::thread::sleep(next.saturating_sub(begun.elapsed()));
                done += drive(work, connections, schedule, None, &progress.bar)?;
            }
            Ok(done)
        })?;
        Ok(vec![burst, quiet])
    }
}
