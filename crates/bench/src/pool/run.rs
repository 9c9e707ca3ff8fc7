//! `headwater bench pool`: the holders take turns, each in a process of its own.

use super::holders::{Copies, Pooled, Vectors};
use super::tell;
use crate::args::Common;
use crate::measure::{Run, process};
use crate::peer::stop;
use crate::report::{BASE, Case, Report};
use anyhow::{Context, Result, bail};
use headwater_workload::entries::{self, Plan, Step, Usage};
use serde_json::Map;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program that does the steps with RocksDB, where `bench-rocksdb/build` leaves it.
pub(crate) const ROCKSDB: &str = "bench-rocksdb/target/release/headwater-bench-rocksdb";
/// What the pool is compared with.
const PEERS: [&str; 5] = ["hashmap", "hashmap-reuse", "small-pages", "memcpy", "rocksdb"];

/// The pool as a library, beside a map of vectors, plain copying and RocksDB.
#[derive(Clone, Debug, clap::Args)]
pub struct Pool {
    #[command(flatten)]
    common: Common,
    /// The program that does the steps with RocksDB.
    #[arg(long, default_value = ROCKSDB, value_name = "FILE")]
    rocksdb: PathBuf,
    /// Do not touch free memory before each run.
    #[arg(long)]
    no_touch: bool,
    /// Do the steps with this holder, in this process.
    #[arg(long, hide = true)]
    holder: Option<String>,
}

impl Pool {
    /// Runs all holders and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        if let Some(holder) = &self.holder {
            let steps = self.hold(holder)?;
            return Ok(std::io::stdout().lock().write_all(entries::lines(&steps).as_bytes())?);
        }
        let names = self.names()?;
        stop::handle_signals()?;
        let cases = entries::STEPS.map(|name| Case {
            name: name.to_owned(),
            params: Map::new(),
            runs: Vec::new(),
        });
        let cases = cases.to_vec();
        let mut report = Report::new("pool", self.common.params(), cases);
        for pair in 1..=self.common.pairs {
            for &system in &names {
                stop::check()?;
                let steps =
                    self.start(system).with_context(|| format!("{system} (pair {pair})"))?;
                for (case, step) in report.cases.iter_mut().zip(steps) {
                    case.runs.push(Run {
                        system,
                        pair,
                        server_cpu_s: step.cpu.as_secs_f64(),
                        generator_cpu_s: 0.0,
                        wall_s: step.wall.as_secs_f64(),
                        rss_bytes_max: step.rss_bytes_max,
                        operations: step.operations,
                        verified: step.verified,
                    });
                }
            }
        }
        std::io::stdout().lock().write_all(tell::table(&report).as_bytes())?;
        self.common.write(&report)
    }

    /// The pool and those that `--against` names.
    fn names(&self) -> Result<Vec<&'static str>> {
        let mut names = if self.common.peers_only { Vec::new() } else { vec![BASE] };
        for name in self.common.against.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match PEERS.into_iter().find(|peer| *peer == name) {
                Some(peer) if names.contains(&peer) => bail!("--against names '{name}' twice"),
                Some(peer) => names.push(peer),
                None => {
                    bail!("--against '{name}': not a peer for pool (allowed: {})", PEERS.join(", "))
                }
            }
        }
        if names.is_empty() {
            bail!("--peers-only: --against names no peer");
        }
        if names.contains(&"rocksdb") && !self.rocksdb.is_file() {
            bail!(
                "--against rocksdb: its program is not built (install librocksdb-dev and \
                 libclang-dev, then run bench-rocksdb/build, or name it with --rocksdb FILE)"
            );
        }
        Ok(names)
    }

    /// All steps with one holder, in a new process.
    fn start(&self, holder: &str) -> Result<Vec<Step>> {
        let Common { scale, seed, sample, .. } = &self.common;
        let mut command = if holder == "rocksdb" {
            Command::new(&self.rocksdb)
        } else {
            let mut command = Command::new(self.common.launch(0)?.headwater);
            command.args(["bench", "pool", "--holder", holder]);
            command
        };
        for (option, value) in [
            ("--scale", scale.to_string()),
            ("--seed", seed.to_string()),
            ("--sample", sample.to_string()),
        ] {
            command.args([option, &value]);
        }
        if !self.no_touch {
            touch(entries::bytes(*scale) * 3 / 2);
        }
        let output = command.stdin(Stdio::null()).output().context("cannot start it")?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{}: {}", output.status, errors.trim());
        }
        let text = String::from_utf8(output.stdout).context("it printed no text")?;
        entries::parse(&text).with_context(|| format!("it printed: {text}"))
    }

    /// All steps with one holder, here.
    fn hold(&self, holder: &str) -> Result<Vec<Step>> {
        let Common { scale, seed, sample, .. } = self.common;
        let plan = Plan { scale, seed, sample };
        let rss = || process::rss_max(std::process::id()).unwrap_or(0);
        let usage = || Usage { cpu: process::own_cpu(), rss_bytes_max: rss() };
        match holder {
            BASE => entries::run(&plan, |_, _| Ok(Pooled::new(true)), &usage),
            "small-pages" => entries::run(&plan, |_, _| Ok(Pooled::new(false)), &usage),
            "hashmap" => entries::run(&plan, |_, _| Ok(Vectors::new(false)), &usage),
            "hashmap-reuse" => entries::run(&plan, |_, _| Ok(Vectors::new(true)), &usage),
            "memcpy" => entries::run(&plan, Copies::new, &usage),
            _ => bail!("--holder {holder}: there is no such holder"),
        }
    }
}

/// Takes free memory, touches all of it, and gives it back. A virtual machine may have returned its free
/// memory to the host, and the first to touch it would wait for the host: whoever runs first, and who takes
/// whole huge pages more than others.
fn touch(bytes: usize) {
    if let Some(mut memory) = headwater_buffers::map(bytes) {
        memory.fill(1);
    }
}
