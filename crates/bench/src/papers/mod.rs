//! `headwater bench papers`: the tables and figures of the four systems that Headwater grew from, measured again, on one page.
//!
//! Each figure is one of the other workloads, run by this program in a process of its own, with the options that the page
//! names: whoever doubts a figure runs that command alone.
//!
//! - `figures`: what there is. `shown`: its table and its picture. `page`: the text around them.

mod figures;
mod page;
mod shown;

use crate::args::{has_folder, headwater, within};
use crate::measure::pin::Pinning;
use crate::peer::{Launch, System, stop};
use crate::report::write;
use anyhow::{Context, Result, bail};
use core::time::Duration;
use figures::{Experiment, FIGURES, Figure};
use indicatif::ProgressBar;
use rustix::process::Signal;
use serde_json::Value;
use shown::Rendered;
use std::io::{Read, Write};
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
struct ExperimentResult {
    /// Where it is along the figure.
    place: String,
    /// The command.
    command: String,
    /// What it measured; null where it has only a printed table.
    report: Value,
    /// What it printed.
    printed: String,
    /// What it has drawn itself.
    picture: String,
}

/// A figure, and what came of it.
#[derive(Debug)]
struct PageEntry {
    figure: &'static Figure,
    /// Why systems could not be compared, or the whole figure could not be measured: a sentence for each.
    missing: Vec<String>,
    measured: Option<MeasuredFigure>,
}

/// A figure that was measured.
#[derive(Debug)]
struct MeasuredFigure {
    commands: Vec<String>,
    rendered: Rendered,
    /// The picture's file, beside the page.
    picture: String,
}

impl Papers {
    /// Runs everything and writes the page.
    ///
    /// # Errors
    /// An option is wrong, a run fails, a result is wrong, or a file cannot be written.
    pub fn run(&self) -> Result<()> {
        // Some of the workloads take no more.
        within("--scale", self.scale, 1e-4, 10.0)?;
        within("--pairs", self.pairs as f64, 1.0, 1000.0)?;
        for name in &self.only {
            if !FIGURES.iter().any(|figure| figure.name == *name) {
                let names: Vec<_> = FIGURES.iter().map(|figure| figure.name).collect();
                bail!("--only '{name}': there is no such figure (allowed: {})", names.join(", "));
            }
        }
        has_folder("--page", &self.page)?;
        let Some(stem) = self.page.file_stem().and_then(|stem| stem.to_str()) else {
            bail!("--page {}: that is no name of a file", self.page.display());
        };
        let launch = self.launch()?;
        launch.check(&[System::Headwater])?;
        stop::handle_signals()?;
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        let mut all = Vec::new();
        for figure in FIGURES.iter().filter(|figure| self.is_wanted(figure)) {
            let picture = format!("{stem}-{}.svg", figure.name);
            let told = self
                .tell(figure, &launch, picture, &bar)
                .with_context(|| format!("figure '{}'", figure.name));
            // Where we were interrupted, that is why it failed.
            stop::check()?;
            let told = told?;
            if let Some(measured) = &told.measured {
                write(&self.page.with_file_name(&measured.picture), &measured.rendered.picture)?;
            }
            all.push(told);
            // Hours of work are not lost where a later figure fails.
            write(&self.page, &page::text(&all, &self.command()))?;
        }
        bar.finish_and_clear();
        let told = format!("{} figures are in {}\n", all.len(), self.page.display());
        Ok(std::io::stdout().lock().write_all(told.as_bytes())?)
    }

    fn is_wanted(&self, figure: &Figure) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == figure.name)
    }

    /// The command that makes such a page.
    fn command(&self) -> String {
        let mut text =
            format!("headwater bench papers --scale {} --pairs {}", self.scale, self.pairs);
        if self.no_pin {
            text += " --no-pin";
        }
        if !self.only.is_empty() {
            text += " --only ";
            text += &self.only.join(",");
        }
        text
    }

    fn launch(&self) -> Result<Launch> {
        Ok(Launch {
            pinning: Pinning::Free,
            headwater: headwater(self.headwater.as_deref())?,
            null_bytes: 0,
            arguments: Vec::new(),
            within: Vec::new(),
        })
    }

    fn tell(
        &self,
        figure: &'static Figure,
        launch: &Launch,
        picture: String,
        bar: &ProgressBar,
    ) -> Result<PageEntry> {
        let (_, missing) = sort_out(launch, figure.needs);
        if !missing.is_empty() {
            return Ok(PageEntry { figure, missing, measured: None });
        }
        let (there, missing) = sort_out(launch, figure.peers);
        let mut outcomes = Vec::new();
        for experiment in (figure.experiments)(self.scale) {
            stop::check()?;
            outcomes.push(self.one(&experiment, &there, figure, launch, bar)?);
        }
        let commands = outcomes.iter().map(|outcome| outcome.command.clone()).collect();
        let rendered = shown::of(figure, &outcomes)?;
        let measured = Some(MeasuredFigure { commands, rendered, picture });
        Ok(PageEntry { figure, missing, measured })
    }

    /// Runs a workload in a process of its own.
    fn one(
        &self,
        experiment: &Experiment,
        peers: &[&str],
        figure: &Figure,
        launch: &Launch,
        bar: &ProgressBar,
    ) -> Result<ExperimentResult> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let file = |name: &str| folder.path().join(name);
        let mut words = experiment.words.clone();
        if !peers.is_empty() {
            words.extend([String::from("--against"), peers.join(",")]);
        }
        if !figure.is_run_once {
            words.extend([String::from("--pairs"), self.pairs.to_string()]);
            if self.no_pin {
                words.push(String::from("--no-pin"));
            }
        }
        let command = format!("headwater bench {}", words.join(" "));
        bar.set_message(command.clone());
        let mut process = Command::new(&launch.headwater);
        process.arg("bench").args(&words).arg("--svg").arg(file("picture.svg"));
        if figure.has_json() {
            process.arg("--json").arg(file("report.json"));
        }
        let errors = std::fs::File::create(file("errors"))?;
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut process = process.spawn().context("cannot start this program")?;
        stop::note(process.id(), Signal::TERM);
        let mut printed = String::new();
        let read = process.stdout.take().map_or(Ok(0), |mut out| out.read_to_string(&mut printed));
        stop::forget(process.id());
        let status = process.wait()?;
        read.with_context(|| command.clone())?;
        let text =
            |name: &str| std::fs::read_to_string(file(name)).with_context(|| command.clone());
        if !status.success() {
            bail!("{command}: {status}: {}", text("errors")?.trim());
        }
        let report = if figure.has_json() {
            serde_json::from_str(&text("report.json")?).with_context(|| command.clone())?
        } else {
            Value::Null
        };
        let (place, picture) = (experiment.place.clone(), text("picture.svg")?);
        Ok(ExperimentResult { place, command, report, printed, picture })
    }
}

/// Those that can be measured here, and why the others cannot.
fn sort_out(launch: &Launch, names: &[&'static str]) -> (Vec<&'static str>, Vec<String>) {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for &name in names {
        match is_there(launch, name) {
            Ok(()) => there.push(name),
            Err(why) => missing.push(why.to_string()),
        }
    }
    (there, missing)
}

/// Whether a system can be measured here; the error says why it cannot.
fn is_there(launch: &Launch, peer: &str) -> Result<()> {
    match peer {
        // What the pool is compared with needs nothing, but for this one.
        "hashmap" | "hashmap-reuse" | "memcpy" => Ok(()),
        "rocksdb" if Path::new(crate::pool::run::ROCKSDB).is_file() => Ok(()),
        "rocksdb" => bail!("rocksdb: `bench-rocksdb/build` has not built its program"),
        _ => match System::named(peer) {
            Some(system) => launch.check(&[system]),
            None => bail!("there is no system '{peer}'"),
        },
    }
}
