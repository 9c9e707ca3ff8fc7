//! Runs of the raw matrix and of the null ceiling.

use super::points::{self, Points, Protocol};
use super::ranges::{self, Form, Ranges};
use super::{MARK_BYTES, Operation};
use crate::args::{Common, within};
use crate::drive::drive;
use crate::experiment::{Cost, Progress, take_turns};
use crate::measure::Run;
use crate::peer::{Launch, Server, System, stop};
use crate::report::{Case, Report};
use crate::wire::Connection;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// A store of single keys holds at most so many bytes of values: with large values there are
/// fewer keys.
const STORE_BYTES_MAX: u64 = 2 << 30;

/// GET, SET, their mix, multi-gets and ranges, over value sizes and pipelines.
#[derive(Clone, Debug, clap::Args)]
pub struct Raw {
    #[command(flatten)]
    common: Common,
    /// What to measure, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get,set,mixed,range")]
    op: Vec<Operation>,
    /// Bytes of a value.
    #[arg(long, value_delimiter = ',', default_value = "64,1024,10240", value_name = "BYTES,…")]
    value: Vec<usize>,
    /// Requests in flight per connection.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128", value_name = "N,…")]
    pipeline: Vec<usize>,
    /// Pairs per RANGE; the reads go with a pipeline of 16.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000", value_name = "N,…")]
    range: Vec<u32>,
    /// Keys; fewer if their values would take more than 2 GiB.
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    keys: u32,
}

/// GET against a server that answers everything with a constant: the ceiling of the I/O path.
#[derive(Clone, Debug, clap::Args)]
pub struct Null {
    #[command(flatten)]
    common: Common,
    /// Bytes of a value.
    #[arg(long, value_delimiter = ',', default_value = "64,1024,10240", value_name = "BYTES,…")]
    value: Vec<usize>,
    /// Requests in flight per connection.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128", value_name = "N,…")]
    pipeline: Vec<usize>,
    /// Keys; fewer if their values would take more than 2 GiB.
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    keys: u32,
}

/// The pipeline of range reads.
const RANGE_PIPELINE: usize = 16;

/// What one server is loaded with, and the cases that run on it.
#[derive(Clone, Debug)]
struct Store {
    load: Load,
    cases: Vec<Spec>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    Points { value_bytes: usize, keys: u32 },
    Ranges { by_name: bool, keys: u32 },
}

#[derive(Clone, Debug)]
struct Spec {
    /// Its place in the report.
    index: usize,
    operation: Operation,
    pipeline: usize,
    /// Pairs per range.
    length: u32,
    operations: u64,
}

impl Raw {
    /// Runs all pairs and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a peer is missing, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        let known = [
            System::Items,
            System::Shards,
            System::Tls,
            System::Valkey,
            System::ValkeyTls,
            System::Redis,
            System::RedisTls,
            System::Memcached,
        ];
        check(&self.common, &self.value, &self.pipeline, self.keys)?;
        for &length in &self.range {
            within("--range", f64::from(length), 1.0, f64::from(ranges::GROUP))?;
        }
        let mut matrix = Matrix::new(&self.common, "raw", self.keys);
        for &operation in &self.op {
            match operation {
                Operation::Range | Operation::RangeLex => {
                    let by_name = operation == Operation::RangeLex;
                    let load = Load::Ranges { by_name, keys: self.keys };
                    for &length in &self.range {
                        let reads = 4_000_000 / u64::from(length + 10);
                        let spec = Spec {
                            index: 0,
                            operation,
                            pipeline: RANGE_PIPELINE,
                            length,
                            operations: reads,
                        };
                        matrix.add(load, spec, format!("{operation} of {length}"));
                    }
                }
                _ => matrix.add_points(operation, &self.value, &self.pipeline),
            }
        }
        let systems = self.common.systems("raw", &known)?;
        matrix.run(&systems)
    }
}

impl Null {
    /// Runs all pairs and tells the result.
    ///
    /// # Errors
    /// An option is wrong or a run fails.
    pub fn run(&self) -> Result<()> {
        check(&self.common, &self.value, &self.pipeline, self.keys)?;
        if !self.common.against.is_empty() {
            bail!("--against: null compares Headwater with its own protocol loop alone");
        }
        let mut matrix = Matrix::new(&self.common, "null", self.keys);
        matrix.add_points(Operation::Get, &self.value, &self.pipeline);
        matrix.run(&[System::Headwater, System::Null])
    }
}

fn check(common: &Common, values: &[usize], pipelines: &[usize], keys: u32) -> Result<()> {
    common.check()?;
    for &bytes in values {
        within("--value", bytes as f64, MARK_BYTES as f64, 64.0 * 1024.0 * 1024.0)?;
    }
    for &pipeline in pipelines {
        within("--pipeline", pipeline as f64, 1.0, 4096.0)?;
    }
    within("--keys", f64::from(keys), 1000.0, 1e8)
}

struct Matrix<'a> {
    common: &'a Common,
    keys: u32,
    stores: Vec<Store>,
    report: Report,
}

impl<'a> Matrix<'a> {
    fn new(common: &'a Common, workload: &'static str, keys: u32) -> Self {
        let mut params = common.params();
        params.insert(String::from("keys"), json!(keys));
        Self { common, keys, stores: Vec::new(), report: Report::new(workload, params, Vec::new()) }
    }

    fn add_points(&mut self, operation: Operation, values: &[usize], pipelines: &[usize]) {
        for &value_bytes in values {
            let most = (STORE_BYTES_MAX / value_bytes as u64).min(u64::from(u32::MAX)) as u32;
            let load = Load::Points { value_bytes, keys: self.keys.min(most.max(1)) };
            for &pipeline in pipelines {
                let operations = match pipeline {
                    ..=1 => 400_000,
                    2..=31 => 2_000_000,
                    _ => 4_000_000,
                } / if value_bytes > 4096 { 8 } else { 1 };
                let spec = Spec { index: 0, operation, pipeline, length: 1, operations };
                let name = format!("{operation}, {value_bytes} B, pipeline {pipeline}");
                self.add(load, spec, name);
            }
        }
    }

    fn add(&mut self, load: Load, mut spec: Spec, name: String) {
        spec.index = self.report.cases.len();
        spec.operations = ((spec.operations as f64 * self.common.scale) as u64).max(100);
        let (value_bytes, keys) = match load {
            Load::Points { value_bytes, keys } => (value_bytes, keys),
            Load::Ranges { keys, .. } => {
                (ranges::VALUE_BYTES, keys.div_ceil(ranges::GROUP) * ranges::GROUP)
            }
        };
        let value = json!({
            "op": spec.operation.to_string(),
            "value_bytes": value_bytes,
            "pipeline": spec.pipeline,
            "range_pairs": spec.length,
            "keys": keys,
        });
        let params: Map<String, Value> = value.as_object().cloned().unwrap_or_default();
        self.report.cases.push(Case { name, params, runs: Vec::new() });
        match self.stores.iter_mut().find(|store| store.load == load) {
            Some(store) => store.cases.push(spec),
            None => self.stores.push(Store { load, cases: vec![spec] }),
        }
    }

    fn run(mut self, systems: &[System]) -> Result<()> {
        let launch = self.common.launch(0)?;
        launch.check(systems)?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        for store in &self.stores {
            let runs = take_turns(systems, self.common.pairs, |system, pair, progress| {
                self.one(store, &launch, system, pair, progress)
            })?;
            for (index, run) in runs.into_iter().flatten() {
                self.report.cases[index].runs.push(run);
            }
        }
        self.common.tell(&self.report)
    }

    fn one(
        &self,
        store: &Store,
        launch: &Launch,
        system: System,
        pair: usize,
        progress: &Progress,
    ) -> Result<Vec<(usize, Run)>> {
        let null_bytes = match store.load {
            Load::Points { value_bytes, .. } => value_bytes,
            Load::Ranges { .. } if system.speaks_memcached() => return Ok(Vec::new()),
            Load::Ranges { .. } => 0,
        };
        let server = Server::start(system, &Launch { null_bytes, ..launch.clone() })?;
        let mut connections =
            (0..self.common.connections).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
        let mut control = server.connect()?;
        let mut runs = Vec::new();
        match store.load {
            Load::Points { value_bytes, keys } => {
                let protocol = match system {
                    System::Items | System::Memcached => Protocol::Memcached,
                    System::Null => Protocol::Constant,
                    _ => Protocol::Resp,
                };
                let mut points = Points::new(protocol, keys, value_bytes);
                progress.phase("loading", u64::from(keys));
                if protocol != Protocol::Constant {
                    points.load(&mut control).with_context(|| server.log())?;
                }
                for spec in &store.cases {
                    let run =
                        self.points(spec, keys, &mut points, &server, &mut connections, progress)?;
                    let verified =
                        points.verify(&mut control, self.common.sample, self.common.seed)?;
                    runs.push((spec.index, run.run(system, pair, verified)));
                }
            }
            Load::Ranges { by_name, keys } => {
                let form = match (system, by_name) {
                    (System::Valkey | System::Redis, true) => Form::Names,
                    (System::Valkey | System::Redis, false) => Form::Scores,
                    _ => Form::Keys,
                };
                let mut ranges = Ranges::new(form, keys);
                progress.phase("loading", u64::from(keys));
                ranges.load(&mut control).with_context(|| server.log())?;
                for spec in &store.cases {
                    let run =
                        self.ranges(spec, keys, &mut ranges, &server, &mut connections, progress)?;
                    runs.push((spec.index, run.run(system, pair, ranges.verified())));
                }
            }
        }
        Ok(runs)
    }

    fn points(
        &self,
        spec: &Spec,
        keys: u32,
        points: &mut Points,
        server: &Server,
        connections: &mut [Connection],
        progress: &Progress,
    ) -> Result<Cost> {
        points.set_multi(spec.operation == Operation::Mget);
        let schedule = points::draw(
            spec.operation,
            keys,
            spec.operations,
            connections.len(),
            spec.pipeline,
            self.common.seed,
        );
        progress.phase(&self.report.cases[spec.index].name, spec.operations);
        Cost::of(server, || {
            drive(points, connections, &schedule, self.common.limit(), &progress.bar)
        })
    }

    fn ranges(
        &self,
        spec: &Spec,
        keys: u32,
        ranges: &mut Ranges,
        server: &Server,
        connections: &mut [Connection],
        progress: &Progress,
    ) -> Result<Cost> {
        ranges.length = spec.length;
        let schedule = ranges::draw(
            keys,
            spec.length,
            spec.operations,
            connections.len(),
            spec.pipeline,
            self.common.seed,
        );
        progress.phase(&self.report.cases[spec.index].name, spec.operations);
        Cost::of(server, || {
            drive(ranges, connections, &schedule, self.common.limit(), &progress.bar)
        })
    }
}
