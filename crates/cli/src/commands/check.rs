//! `headwater check`: random histories of operations, run on the engine and on an oracle that
//! recomputes everything from the base data; a failing history is shrunk and printed as a
//! golden script. With `--server`, random scripts of several clients, asked of running servers over their sockets.

use anyhow::{Context, bail, ensure};
use headwater_model::check::{Kind, Plan, check};
use headwater_model::generate;
use headwater_model::server::{Found, Script, check_script, draw, is_in_use};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A running server that takes longer for an answer is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// Flags of `headwater check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Histories to run, each from a seed of its own [default: 20000; 1000 with --server; 1 with --seed]
    #[arg(long, value_name = "NUMBER")]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Threads to run them on [default: one per processor]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Histories in which sources keep tables and answer late, out of order, or with an error
    #[arg(long)]
    sources: bool,
    /// Long histories at a memory bound, with streams and a disk to spill to
    #[arg(long, conflicts_with = "sources")]
    long: bool,
    /// Histories over an embedded store, in which the process is killed and begins again
    #[arg(long, conflicts_with_all = ["sources", "long"])]
    crashes: bool,
    /// Check a running server instead, with random scripts of several clients. It must be empty, and nobody else may use it: all
    /// of its keys and joins are removed between the scripts. Given several times, the servers are compared with each other, too
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["sources", "long", "crashes", "threads"])]
    server: Vec<String>,
    /// Run the script in this file
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with_all = ["seed", "seeds"])]
    script: Option<PathBuf>,
    /// Leave something out of the scripts
    #[arg(long, value_name = "SUBJECT", requires = "server", value_delimiter = ',', value_parser = draw::SUBJECTS)]
    without: Vec<String>,
    /// Print the history of the seed instead of running it
    #[arg(long, requires = "seed")]
    show: bool,
    /// Stop after so many failures
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    most: usize,
}

impl Args {
    /// Runs the histories; the exit code says whether all agree.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !self.server.is_empty() {
            return self.check_servers();
        }
        let (kind, flag) = match (self.sources, self.long, self.crashes) {
            (true, ..) => (Kind::Sources, " --sources"),
            (_, true, _) => (Kind::Long, " --long"),
            (_, _, true) => (Kind::Crashes, " --crashes"),
            _ => (Kind::Plain, ""),
        };
        let out = &mut std::io::stdout();
        if let Some(seed) = self.seed.filter(|_| self.show) {
            write!(out, "{}", headwater_model::history::script(&kind.history(seed)))?;
            return Ok(ExitCode::SUCCESS);
        }
        ensure!(self.most > 0, "--most must be at least 1");
        let seeds = self.seeds.unwrap_or(if self.seed.is_some() { 1 } else { 20_000 });
        let threads = match self.threads {
            Some(threads) => threads,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} histories, {eta} left");
        let bar = ProgressBar::new(seeds).with_style(style?);
        let mut found = Vec::new();
        for (first, seeds) in self.parts(kind, seeds) {
            let before = bar.position();
            let plan = Plan::engine(kind, first, seeds, threads);
            let most = self.most - found.len();
            found.extend(check(&plan, most, &mut |done| bar.set_position(before + done)));
            if found.len() >= self.most {
                break;
            }
            bar.set_position(before + seeds);
        }
        bar.finish_and_clear();
        for failure in &found {
            writeln!(out, "{failure}")?;
        }
        if found.is_empty() {
            writeln!(out, "{seeds} histories agree with the oracle")?;
            return Ok(ExitCode::SUCCESS);
        }
        let first = found[0].seed;
        writeln!(out, "again: headwater check --seed {first}{flag}")?;
        Ok(ExitCode::FAILURE)
    }

    /// The first seeds of histories to run, and how many follow each: those from a given seed on, or some with each kind of joins.
    fn parts(&self, kind: Kind, seeds: u64) -> Vec<(u64, u64)> {
        let firsts = match (self.seed, kind) {
            (None, Kind::Plain | Kind::Sources) => &generate::FIRST_SEEDS[..],
            (seed, _) => return vec![(seed.unwrap_or(0), seeds)],
        };
        let (share, more) = (seeds / firsts.len() as u64, seeds % firsts.len() as u64);
        let parts = (0..).zip(firsts).map(|(at, &first)| (first, share + u64::from(at < more)));
        parts.filter(|&(_, seeds)| seeds > 0).collect()
    }

    /// Runs scripts on running servers.
    fn check_servers(self) -> anyhow::Result<ExitCode> {
        let out = &mut std::io::stdout();
        if let Some(seed) = self.seed.filter(|_| self.show) {
            write!(out, "{}", draw::script(seed, &self.without))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut servers = Vec::new();
        for name in &self.server {
            let mut addresses =
                name.to_socket_addrs().with_context(|| format!("'{name}' is no HOST:PORT"))?;
            let address = addresses.next().with_context(|| format!("'{name}' has no address"))?;
            match is_in_use(address, PATIENCE) {
                Ok(false) => servers.push(address),
                Ok(true) => bail!(
                    "{name} has keys or joins, which would be removed; give it an empty server"
                ),
                Err(wrong) => bail!("{name}: {wrong}"),
            }
        }
        let mut on = |_failed: bool| -> Vec<SocketAddr> { servers.clone() };
        if let Some(path) = &self.script {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?;
            let script = Script::parse(&text).map_err(anyhow::Error::msg)?;
            return Ok(match check_script(&script, PATIENCE, &mut on) {
                Ok(()) => {
                    writeln!(out, "the script agrees with the oracle")?;
                    ExitCode::SUCCESS
                }
                Err(found) => {
                    writeln!(out, "{found}")?;
                    ExitCode::FAILURE
                }
            });
        }
        let seeds = self.seeds.unwrap_or(if self.seed.is_some() { 1 } else { 1000 });
        let first = self.seed.unwrap_or(0);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} scripts, {eta} left");
        let bar = ProgressBar::new(seeds).with_style(style?);
        let mut all: Vec<(u64, Box<Found>)> = Vec::new();
        for seed in first..first.saturating_add(seeds) {
            let script = draw::script(seed, &self.without);
            if let Err(found) = check_script(&script, PATIENCE, &mut on) {
                all.push((seed, found));
                if all.len() >= self.most {
                    break;
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        for (seed, found) in &all {
            writeln!(out, "seed {seed}: {found}")?;
        }
        if all.is_empty() {
            writeln!(out, "{seeds} scripts agree with the oracle")?;
            return Ok(ExitCode::SUCCESS);
        }
        let servers: String = self.server.iter().map(|it| format!(" --server {it}")).collect();
        writeln!(out, "again: headwater check{servers} --seed {}", all[0].0)?;
        Ok(ExitCode::FAILURE)
    }
}
