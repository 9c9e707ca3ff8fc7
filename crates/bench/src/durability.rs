//! Writes a second by how they are made safe, beside what the disk itself can sync.
//!
//! Each durability has a server of its own with a store in a new folder, and one without a store stands beside them. After
//! the writes the server is killed; another one that opens the folder must have all of them.

use crate::args::{Common, within};
use crate::drive::drive;
use crate::experiment::{Progress, take_turns};
use crate::measure::stats::spread;
use crate::peer::{Launch, Server, System, stop};
use crate::raw::Operation;
use crate::raw::points::{self, Points, Protocol};
use crate::report::table;
use crate::wire::resp;
use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Keys that are written.
const KEYS: u32 = 100_000;
/// Operations that a run has at most, for each second that it may take.
const OPERATIONS: u64 = 1_000_000;
/// How long a run takes if nobody says.
const SECONDS: f64 = 5.0;
/// How long the disk alone is measured.
const SYNCS: Duration = Duration::from_secs(2);
/// What is appended before each sync of the disk alone: a batch, about.
const APPEND_BYTES: usize = 4096;

/// Writes a second by durability, beside the disk's own syncs; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Durability {
    #[command(flatten)]
    common: Common,
    /// Requests in flight on each connection.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128", value_name = "N,…")]
    pipeline: Vec<usize>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    value: usize,
    /// A folder on the disk to measure; a temporary one if not given.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// What is measured: without a store, and with one.
const WAYS: [Option<&str>; 4] = [None, Some("none"), Some("interval"), Some("always")];

struct Measured {
    way: Option<&'static str>,
    pipeline: usize,
    rate: f64,
    /// Microseconds of a sync of the server, on average.
    sync: Option<f64>,
}

impl Durability {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or a write is missing afterwards.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: durability measures Headwater alone");
        }
        if self.common.json.is_some() || self.common.svg.is_some() {
            bail!("--json, --svg: durability prints a table alone");
        }
        within("--value", self.value as f64, 12.0, 1e6)?;
        for &pipeline in &self.pipeline {
            within("--pipeline", pipeline as f64, 1.0, 10_000.0)?;
        }
        let launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let own = tempfile::tempdir().context("cannot make a temporary folder")?;
        let place = self.data.as_deref().unwrap_or(own.path());
        let syncs = syncs_a_second(place)?;
        let runs = take_turns(&[System::Headwater], self.common.pairs, |_, _, progress| {
            let mut measured = Vec::new();
            for way in WAYS {
                for &pipeline in &self.pipeline {
                    measured.push(self.measure(&launch, place, way, pipeline, progress)?);
                }
            }
            Ok(measured)
        })?;
        let measured: Vec<Measured> = runs.into_iter().flatten().collect();
        std::io::stdout().lock().write_all(self.tell(syncs, &measured).as_bytes())?;
        Ok(())
    }

    fn measure(
        &self,
        launch: &Launch,
        place: &Path,
        way: Option<&'static str>,
        pipeline: usize,
        progress: &Progress,
    ) -> Result<Measured> {
        let folder = tempfile::tempdir_in(place).context("cannot make a folder for the data")?;
        let mut launch = launch.clone();
        if let Some(way) = way {
            let path = folder.path().join("data").display().to_string();
            let arguments = ["--data", &path, "--data-plain", "yes", "--durability", way];
            launch.arguments.extend(arguments.map(String::from));
        }
        let server = Server::start(System::Headwater, &launch)?;
        let mut control = server.connect()?;
        let mut connections = Vec::new();
        for _ in 0..self.common.connections {
            connections.push(server.connect()?);
        }
        let mut points = Points::new(Protocol::Resp, KEYS, self.value);
        points.load(&mut control)?;
        let limit = self.common.limit().unwrap_or(Duration::from_secs_f64(SECONDS));
        let count = (OPERATIONS as f64 * limit.as_secs_f64() * self.common.scale) as u64;
        let schedule = points::draw(
            Operation::Set,
            KEYS,
            count,
            connections.len(),
            pipeline,
            self.common.seed,
        );
        let what = way.unwrap_or("no store");
        progress.phase(&format!("{what}, pipeline {pipeline}"), count);
        let begun = Instant::now();
        let done = drive(&mut points, &mut connections, &schedule, Some(limit), &progress.bar)
            .with_context(|| format!("the server printed: {}", server.log()))?;
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        let mut sync = None;
        if way.is_some() {
            resp::command(&mut control.out, &[b"INFO", b"persistence"]);
            control.flush()?;
            let text = String::from_utf8_lossy(resp::string(&mut control.input)?).into_owned();
            let field = text.lines().find_map(|line| line.strip_prefix("data_sync_usec_mean:"));
            sync = field.and_then(|field| field.parse().ok());
        }
        drop(connections);
        drop(server);
        if way.is_some() {
            let server = Server::start(System::Headwater, &launch)?;
            let right =
                points.verify(&mut server.connect()?, self.common.sample, self.common.seed)?;
            if !right {
                bail!("{what}: acknowledged writes are missing after a restart");
            }
        }
        Ok(Measured { way, pipeline, rate, sync })
    }

    fn tell(&self, syncs: f64, measured: &[Measured]) -> String {
        let mut rows = vec![
            ["durability", "pipeline", "writes/s", "range", "mean sync"].map(String::from).to_vec(),
        ];
        for way in WAYS {
            for &pipeline in &self.pipeline {
                let runs = measured.iter().filter(|m| m.way == way && m.pipeline == pipeline);
                let Some(rates) = spread(runs.clone().map(|m| m.rate)) else { continue };
                let sync = spread(runs.filter_map(|m| m.sync).filter(|&sync| sync > 0.0));
                rows.push(vec![
                    way.unwrap_or("(no store)").to_owned(),
                    pipeline.to_string(),
                    format!("{:.0}", rates.median),
                    format!("{:.0}–{:.0}", rates.least, rates.greatest),
                    sync.map_or(String::from("-"), |s| format!("{:.2} ms", s.median / 1000.0)),
                ]);
            }
        }
        let mut text = String::new();
        table::rows(&mut text, &rows);
        text.push_str(&format!(
            "\nthe disk alone: {syncs:.0} syncs/s, each after {APPEND_BYTES} bytes appended ({:.2} ms)\n",
            1000.0 / syncs
        ));
        text
    }
}

/// Syncs a second that the disk of `place` does, one behind the other.
fn syncs_a_second(place: &Path) -> Result<f64> {
    let path = place.join(format!("headwater-bench-sync-{}", std::process::id()));
    let mut file = File::create(&path).with_context(|| path.display().to_string())?;
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < SYNCS {
        file.write_all(&[7; APPEND_BYTES])?;
        file.sync_data()?;
        count += 1;
    }
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(rate)
}
