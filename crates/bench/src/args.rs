//! The options that all workloads share, and their checks.

use crate::measure::pin::Pinning;
use crate::peer::{Launch, System};
use crate::report::{self, Report};
use anyhow::{Context, Result, bail};
use core::time::Duration;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// PostgreSQL is started with room for a few more.
const POSTGRES_CONNECTIONS_MAX: f64 = 150.0;

/// Options of every workload.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// The peers to compare with, separated by commas.
    #[arg(long, default_value = "", value_name = "PEER,…")]
    pub against: String,
    /// How often each system runs; they take turns. Medians are reported.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub pairs: usize,
    /// Connections to the server.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub connections: usize,
    /// Seed of everything that is drawn by chance.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// End each measured run after so many seconds; ratios are then per operation done.
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// Do so many times the usual amount of work: 0.1 is a tenth.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub scale: f64,
    /// How many results each run compares with a recomputation.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub sample: usize,
    /// Write all runs, medians and ratios to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the medians into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The core that servers run on.
    #[arg(long, default_value_t = 0, value_name = "CORE")]
    pub server_core: usize,
    /// The core that the generator runs on.
    #[arg(long, default_value_t = 1, value_name = "CORE")]
    pub generator_core: usize,
    /// Leave the placement on cores to the kernel.
    #[arg(long)]
    pub no_pin: bool,
    /// Run the peers alone, to look at them; there are no ratios then.
    #[arg(long)]
    pub peers_only: bool,
    /// The program `headwater` to measure; this one if not given.
    #[arg(long, value_name = "FILE")]
    pub headwater: Option<PathBuf>,
}

impl Common {
    /// Checks the options that can be wrong.
    ///
    /// # Errors
    /// One is; the message says what is allowed.
    pub fn check(&self) -> Result<()> {
        within("--pairs", self.pairs as f64, 1.0, 1000.0)?;
        within("--connections", self.connections as f64, 1.0, 1000.0)?;
        within("--scale", self.scale, 1e-6, 1e3)?;
        within("--sample", self.sample as f64, 1.0, 1e6)?;
        if let Some(seconds) = self.duration {
            within("--duration", seconds, 0.01, 86_400.0)?;
        }
        for (option, path) in [("--json", &self.json), ("--svg", &self.svg)] {
            path.as_deref().map_or(Ok(()), |path| has_folder(option, path))?;
        }
        Ok(())
    }

    /// The limit of a measured run.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.duration.map(Duration::from_secs_f64)
    }

    /// How servers are to be started.
    ///
    /// # Errors
    /// Our own program cannot be found.
    pub fn launch(&self, null_bytes: usize) -> Result<Launch> {
        let headwater = headwater(self.headwater.as_deref())?;
        let pinning = if self.no_pin {
            Pinning::Free
        } else {
            Pinning::Cores { server: self.server_core, generator: self.generator_core }
        };
        Ok(Launch { pinning, headwater, null_bytes, arguments: Vec::new(), within: Vec::new() })
    }

    /// Headwater and the peers to compare it with, of those that `workload` knows.
    ///
    /// # Errors
    /// A peer is unknown.
    pub fn systems(&self, workload: &str, known: &[System]) -> Result<Vec<System>> {
        let peers = System::list(&self.against, workload, known)?;
        if peers.contains(&System::Postgres) {
            within("--connections", self.connections as f64, 1.0, POSTGRES_CONNECTIONS_MAX)?;
        }
        if self.peers_only {
            if peers.is_empty() {
                bail!("--peers-only: --against names no peer");
            }
            return Ok(peers);
        }
        let mut systems = vec![System::Headwater];
        systems.extend(peers);
        Ok(systems)
    }

    /// The shared settings, for the report.
    #[must_use]
    pub fn params(&self) -> Map<String, Value> {
        let value = json!({
            "pairs": self.pairs,
            "connections": self.connections,
            "seed": self.seed,
            "duration_s": self.duration,
            "scale": self.scale,
            "sample": self.sample,
            "pinned": !self.no_pin,
        });
        value.as_object().cloned().unwrap_or_default()
    }

    /// Prints the table and writes the files.
    ///
    /// # Errors
    /// A file cannot be written, or a run was not verified.
    pub fn tell(&self, report: &Report) -> Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(report::table::of(report).as_bytes())?;
        self.write(report)
    }

    /// Writes the files.
    ///
    /// # Errors
    /// As [`Common::tell`].
    pub fn write(&self, report: &Report) -> Result<()> {
        if let Some(path) = &self.json {
            report::write_json(path, &report::json::of(report))?;
        }
        if let Some(path) = &self.svg {
            report::write(path, &report::svg::of(report)?)?;
        }
        if !report.verified() {
            bail!("at least one run gave wrong results; its figures mean nothing");
        }
        Ok(())
    }
}

/// The program that was named, or this one.
///
/// # Errors
/// Our own program cannot be found.
pub(crate) fn headwater(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(path) => Ok(std::path::absolute(path)?),
        None => std::env::current_exe().context("cannot find this program's own file"),
    }
}

/// Checks that there is a folder for the file that an option names.
///
/// # Errors
/// There is none.
pub(crate) fn has_folder(option: &str, path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => bail!("{option}: there is no folder {}", folder.display()),
        None => Ok(()),
    }
}

/// Checks that an option lies within bounds.
///
/// # Errors
/// It does not; the message names the bounds.
pub fn within(option: &str, value: f64, least: f64, most: f64) -> Result<()> {
    if !(least..=most).contains(&value) {
        bail!("{option} {value}: out of bounds (allowed: {least} to {most})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_named() {
        let error = within("--active", 101.0, 1.0, 100.0).unwrap_err().to_string();
        assert_eq!(error, "--active 101: out of bounds (allowed: 1 to 100)");
        assert!(within("--scale", f64::NAN, 0.0, 1.0).is_err());
    }
}
