//! `headwater bench papers`: the tables and figures of the four systems that Headwater grew from, measured again, on one page.
//!
//! Each figure is one of the other workloads, run by this program in a process of its own, with the options that the page
//! names: whoever doubts a figure runs that command alone.
//!
//! - [`figures`]: what there is. [`shown`]: its table and its picture. [`page`]: the text around them.

pub(crate) mod figures;
pub(crate) mod page;
pub(crate) mod shown;

use crate::args::within;
use crate::measure::pin::Pinning;
use crate::peer::{Launch, System, stop};
use anyhow::{Context, Result, bail};
use figures::{Experiment, FIGURES, Figure};
use serde_json::Value;
use shown::Shown;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The figures of the four papers, measured again: a page with tables and plots.
#[derive(Clone, Debug, clap::Args)]
pub struct Papers {
    /// Write the page to this file; its pictures go beside it.
    #[arg(long, default_value = "papers.md", value_name = "FILE")]
    page: PathBuf,
    /// Do so many times the usual amount of work; at 1 all of it takes hours.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// How often each system runs; they take turns. Medians are reported.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pairs: usize,
    /// Only these figures, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "FIGURE,…")]
    only: Vec<String>,
    /// Leave the placement on cores to the kernel.
    #[arg(long)]
    no_pin: bool,
    /// The program `headwater` to measure; this one if not given.
    #[arg(long, value_name = "FILE")]
    headwater: Option<PathBuf>,
}

/// What one run of a workload gave.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Where it is along the figure.
    pub(crate) place: String,
    /// The command.
    pub(crate) command: String,
    /// What it measured; null where it has only a printed table.
    pub(crate) report: Value,
    /// What it printed.
    pub(crate) printed: String,
    /// What it has drawn itself.
    pub(crate) picture: String,
}

/// A figure that was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) figure: &'static Figure,
    pub(crate) commands: Vec<String>,
    pub(crate) shown: Shown,
    /// Systems that are not installed.
    pub(crate) missing: Vec<&'static str>,
    /// The picture's file, beside the page.
    pub(crate) picture: String,
}

impl Papers {
    /// Runs everything and writes the page.
    ///
    /// # Errors
    /// An option is wrong, a run fails, a result is wrong, or a file cannot be written.
    pub fn run(&self) -> Result<()> {
        within("--scale", self.scale, 1e-4, 100.0)?;
        within("--pairs", self.pairs as f64, 1.0, 1000.0)?;
        for name in &self.only {
            if !FIGURES.iter().any(|figure| figure.name == *name) {
                let names: Vec<_> = FIGURES.iter().map(|figure| figure.name).collect();
                bail!("--only '{name}': there is no such figure (allowed: {})", names.join(", "));
            }
        }
        let (folder, stem) = place_of(&self.page)?;
        stop::handle_signals()?;
        let launch = self.launch()?;
        let wanted =
            |figure: &&Figure| self.only.is_empty() || self.only.iter().any(|it| it == figure.name);
        let mut all = Vec::new();
        let mut told = String::new();
        for figure in FIGURES.iter().filter(wanted) {
            if let Some(needed) = figure.needs.iter().find(|needed| !is_there(&launch, needed)) {
                told += &format!("skipped: {} ({needed} is not installed)\n", figure.name);
                continue;
            }
            let picture = format!("{stem}-{}.svg", figure.name);
            let measured = self
                .measure(figure, &launch, picture)
                .with_context(|| format!("figure '{}'", figure.name))?;
            write(&folder.join(&measured.picture), &measured.shown.picture)?;
            all.push(measured);
            // Hours of work are not lost where a later figure fails.
            write(&self.page, &page::text(&all, self.scale, self.pairs))?;
        }
        told += &format!("{} figures are in {}\n", all.len(), self.page.display());
        Ok(std::io::stdout().lock().write_all(told.as_bytes())?)
    }

    fn launch(&self) -> Result<Launch> {
        let headwater = match &self.headwater {
            Some(path) => std::path::absolute(path)?,
            None => std::env::current_exe().context("cannot find this program's own file")?,
        };
        let pinning = Pinning::Free;
        Ok(Launch { pinning, headwater, null_bytes: 0, arguments: Vec::new(), within: Vec::new() })
    }

    fn measure(
        &self,
        figure: &'static Figure,
        launch: &Launch,
        picture: String,
    ) -> Result<Measured> {
        let (there, missing): (Vec<&str>, Vec<&str>) =
            figure.peers.iter().partition(|peer| is_there(launch, peer));
        let mut outcomes = Vec::new();
        for experiment in (figure.experiments)(self.scale) {
            stop::check()?;
            outcomes.push(self.one(&experiment, &there, figure, launch)?);
        }
        let commands = outcomes.iter().map(|outcome| outcome.command.clone()).collect();
        let shown = shown::of(figure, &outcomes)?;
        Ok(Measured { figure, commands, shown, missing, picture })
    }

    /// Runs a workload in a process of its own.
    fn one(
        &self,
        experiment: &Experiment,
        peers: &[&str],
        figure: &Figure,
        launch: &Launch,
    ) -> Result<Outcome> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let [json, svg] = ["report.json", "picture.svg"].map(|name| folder.path().join(name));
        let mut words = experiment.words.clone();
        if !peers.is_empty() {
            words.extend([String::from("--against"), peers.join(",")]);
        }
        words.extend([String::from("--pairs"), self.pairs.to_string()]);
        if self.no_pin {
            words.push(String::from("--no-pin"));
        }
        let command = format!("headwater bench {}", words.join(" "));
        let mut process = Command::new(&launch.headwater);
        process.arg("bench").args(&words).arg("--svg").arg(&svg);
        if figure.has_json() {
            process.arg("--json").arg(&json);
        }
        let output = process.stdin(Stdio::null()).output().context("cannot start this program")?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{command}: {}: {}", output.status, errors.trim());
        }
        let report = if figure.has_json() {
            let text = std::fs::read_to_string(&json).with_context(|| command.clone())?;
            serde_json::from_str(&text).with_context(|| command.clone())?
        } else {
            Value::Null
        };
        Ok(Outcome {
            place: experiment.place.clone(),
            command,
            report,
            printed: String::from_utf8_lossy(&output.stdout).into_owned(),
            picture: std::fs::read_to_string(&svg).unwrap_or_default(),
        })
    }
}

/// Whether a system can be measured here.
fn is_there(launch: &Launch, peer: &str) -> bool {
    match peer {
        // What the pool is compared with needs nothing, but for this one.
        "hashmap" | "hashmap-reuse" | "memcpy" => true,
        "rocksdb" => Path::new(crate::pool::run::ROCKSDB).is_file(),
        _ => System::named(peer).is_some_and(|system| launch.check(&[system]).is_ok()),
    }
}

/// The folder of the page, and its name without the ending.
fn place_of(page: &Path) -> Result<(PathBuf, String)> {
    let folder = page.parent().map(Path::to_path_buf).unwrap_or_default();
    if !folder.as_os_str().is_empty() && !folder.is_dir() {
        bail!("--page: there is no folder {}", folder.display());
    }
    match page.file_stem().and_then(|stem| stem.to_str()) {
        Some(stem) => Ok((folder, stem.to_owned())),
        None => bail!("--page {}: that is no name of a file", page.display()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
