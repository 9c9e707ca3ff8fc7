//! Finding each server's limit, and the measured runs.

use super::replay::{Found, Replay};
use super::tell::{CacheReport, Entry, Level};
use super::{POLICIES, knows, limit, memory};
use crate::args::{Common, within};
use crate::experiment::{Progress, take_turns};
use crate::measure::Clock;
use crate::peer::{Launch, Server, System, stop};
use anyhow::{Context, Result, bail};
use headwater_workload::Trace;
use serde_json::json;
use std::cell::RefCell;
use std::io::Write;
use std::process::{Command, Stdio};

/// Resident memory may differ from what was asked for by this share.
const TOLERANCE: f64 = 0.02;
/// The limit is good enough when a trial is so near; a measured run may be somewhat off.
const NEAR: f64 = 0.012;
/// How often a limit is tried.
const TRIALS: usize = 6;

/// Hit ratios at equal resident memory, on a trace.
#[derive(Clone, Debug, clap::Args)]
pub struct Cache {
    #[command(flatten)]
    common: Common,
    /// A trace by its name, or a file with one (docs/bench.md tells names and formats).
    #[arg(long, default_value = "cluster52", value_name = "NAME|FILE")]
    trace: String,
    /// Requests: the first so many of a file, or as many as are generated.
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    requests: usize,
    /// Resident memory that each server is to have in the end.
    #[arg(long, value_delimiter = ',', default_value = "16mb,24mb", value_name = "SIZE,…")]
    memory: Vec<String>,
    /// Policies of eviction; each server runs with those that it knows.
    #[arg(long, value_delimiter = ',', default_value = POLICIES, value_name = "NAME,…")]
    policy: Vec<String>,
    /// Requests that go at once.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pipeline: usize,
    /// Replay so many times as fast as recorded; as fast as possible if not given. Clocks of
    /// seconds and minutes, which Redis and Valkey use, mean nothing to a trace in fast motion.
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f64>,
}

/// One server with its limit.
#[derive(Clone, Copy, Debug)]
struct Setting<'p> {
    system: System,
    policy: &'p str,
    limit_bytes: u64,
    level: Level,
}

impl Cache {
    /// Runs all and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a peer is missing, a run fails, or a value is wrong.
    pub fn run(&self) -> Result<()> {
        let targets = self.check()?;
        let mut systems = self.common.systems("cache", &[System::Valkey, System::Redis])?;
        let launch = self.common.launch(0)?;
        launch.check(&systems)?;
        if systems.contains(&System::Headwater) && !limits_memory(&launch)? {
            let mut out = std::io::stderr().lock();
            let _ = writeln!(
                out,
                "headwater is left out: this build's `serve` has no option --memory or --memory-policy"
            );
            systems.retain(|system| *system != System::Headwater);
            if systems.is_empty() {
                bail!("--against names no peer, and Headwater is left out");
            }
        }
        let requests = ((self.requests as f64 * self.common.scale) as usize).max(100);
        let trace = Trace::open(&self.trace, requests, self.common.seed)?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let mut params = self.common.params();
        for unused in ["connections", "duration_s", "sample", "scale"] {
            params.remove(unused);
        }
        params.extend([
            (String::from("trace"), json!(trace.name)),
            (String::from("requests"), json!(trace.requests.len())),
            (String::from("objects"), json!(trace.objects)),
            (String::from("footprint_bytes"), json!(trace.footprint_bytes())),
            (String::from("pipeline"), json!(self.pipeline)),
            (String::from("speed"), json!(self.speed)),
        ]);
        let mut told = CacheReport { params, cases: Vec::new() };
        let replay = RefCell::new(Replay::new(&trace, self.pipeline));
        for &target in &targets {
            let mut settings = Vec::new();
            for &system in &systems {
                for policy in self.policy.iter().filter(|policy| knows(system, policy)) {
                    let bar = Progress::new(system, 0, self.common.pairs);
                    let found = find(system, policy, target, &launch, &replay, &bar);
                    bar.bar.finish_and_clear();
                    let named = || format!("{} with {policy}", system.name());
                    settings.push(found.with_context(named)?);
                }
            }
            // Each policy is a system of its own here, and they take turns.
            let mut entries: Vec<Entry> = Vec::new();
            for pair in 1..=self.common.pairs {
                for setting in &settings {
                    let one = take_turns(&[setting.system], 1, |system, _, bar| {
                        let launch = Launch {
                            arguments: limit(system, setting.limit_bytes, setting.policy),
                            ..launch.clone()
                        };
                        let mut replay = replay.borrow_mut();
                        measure(system, &launch, &mut replay, self.speed, bar)
                    })?;
                    entries.extend(one.into_iter().map(|entry| Entry {
                        policy: String::from(setting.policy),
                        pair,
                        limit_bytes: setting.limit_bytes,
                        level: setting.level.after(entry.rss_bytes_max, target, TOLERANCE),
                        ..entry
                    }));
                }
            }
            told.cases.push((target, entries));
        }
        told.tell(self.common.json.as_deref())
    }

    fn check(&self) -> Result<Vec<u64>> {
        self.common.check()?;
        within("--requests", self.requests as f64, 1.0, 1e9)?;
        within("--pipeline", self.pipeline as f64, 1.0, 4096.0)?;
        if let Some(speed) = self.speed {
            within("--speed", speed, 1e-3, 1e6)?;
        }
        if self.common.svg.is_some() || self.common.duration.is_some() {
            bail!("cache has neither --svg nor --duration");
        }
        self.memory.iter().map(|text| memory(text)).collect()
    }
}

/// Whether this build of Headwater has a bound and evicts.
fn limits_memory(launch: &Launch) -> Result<bool> {
    let output = Command::new(&launch.headwater)
        .args(["serve", "--help"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} does not start", launch.headwater.display()))?;
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(help.contains("--memory") && help.contains("--memory-policy"))
}

/// Finds the limit with which a server's peak resident memory is `target` in the end.
fn find<'p>(
    system: System,
    policy: &'p str,
    target: u64,
    launch: &Launch,
    replay: &RefCell<Replay<'_>>,
    bar: &Progress,
) -> Result<Setting<'p>> {
    let empty = Server::start(system, launch)?.rss_max()?;
    if target <= empty {
        bail!("--memory {target}: an empty server takes {empty} bytes already");
    }
    let hits_max = replay.borrow().hits_max();
    let mut limit_bytes = target - empty / 4;
    let mut best: Option<(u64, u64)> = None;
    for _ in 0..TRIALS {
        bar.phase(&format!("{policy}: a limit of {limit_bytes} B"), 0);
        let arguments = limit(system, limit_bytes, policy);
        let launch = Launch { arguments, ..launch.clone() };
        let entry = measure(system, &launch, &mut replay.borrow_mut(), None, bar)?;
        let rss = entry.rss_bytes_max;
        if entry.found.hits == hits_max && rss <= target {
            return Ok(Setting { system, policy, limit_bytes, level: Level::Fits });
        }
        let off = rss.abs_diff(target);
        if best.is_none_or(|(least, _)| off < least) {
            best = Some((off, limit_bytes));
        }
        if off as f64 <= NEAR * target as f64 {
            break;
        }
        // What is resident besides the empty server grows with the limit nearly in proportion.
        let grown = rss.saturating_sub(empty).max(1) as f64;
        let step = (target as f64 - rss as f64) * (limit_bytes as f64 / grown).clamp(0.3, 1.5);
        limit_bytes = (limit_bytes as f64 + step).max(65_536.0) as u64;
    }
    let limit_bytes = best.map_or(limit_bytes, |(_, limit_bytes)| limit_bytes);
    Ok(Setting { system, policy, limit_bytes, level: Level::Equal })
}

/// Replays the trace to a fresh server.
fn measure(
    system: System,
    launch: &Launch,
    replay: &mut Replay<'_>,
    speed: Option<f64>,
    bar: &Progress,
) -> Result<Entry> {
    let server = Server::start(system, launch)?;
    let mut connection = server.connect()?;
    connection.hurry()?;
    let start = Clock::now(server.cpu()?);
    let found: Found = replay
        .run(&mut connection, speed, &bar.bar)
        .with_context(|| format!("the server printed: {}", server.log()))?;
    let (server_cpu_s, generator_cpu_s, wall_s) = Clock::now(server.cpu()?).since(&start);
    Ok(Entry {
        system: system.name(),
        policy: String::new(),
        pair: 0,
        limit_bytes: 0,
        rss_bytes_max: server.rss_max()?,
        level: Level::Equal,
        found,
        server_cpu_s,
        generator_cpu_s,
        wall_s,
    })
}
