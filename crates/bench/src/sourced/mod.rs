//! Base data that lives elsewhere: how soon a database's changes are seen, how fast they are kept up with, what a first
//! read costs, and what the reads behind it do, beside tables that clients write.
//!
//! PostgreSQL runs on the generator's core, so that Headwater has its own. *Seen* is the time from the answer to COMMIT until
//! a client that asks again and again finds the post in a timeline, beside other writers at a steady pace. *Kept up with* is
//! how fast Headwater takes what was written while it was stopped. *Cold* is a first read of a range beside `psql`'s own
//! timing of the same query. *PING* is what another client waits at most while the whole table is loaded. *Cached* are reads of what is loaded, in turns with the same reads of a plain table.

mod cached;
mod scene;

use crate::args::{Common, within};
use crate::experiment::{Progress, take_turns};
use crate::measure::stats::{Spread, spread};
use crate::peer::{Launch, System, stop};
use crate::report::table;
use anyhow::{Context, Result, bail};
use scene::Scene;
use serde_json::json;
use std::io::Write;

/// Headwater over PostgreSQL: changes seen and kept up with, cold and cached reads.
#[derive(Clone, Debug, clap::Args)]
pub struct Sourced {
    #[command(flatten)]
    common: Common,
    /// Writes a second beside those whose way to a timeline is measured.
    #[arg(long, default_value_t = 2000.0, value_name = "N")]
    pace: f64,
    /// Rows of a range, a poster's.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    rows: u32,
    /// Posters.
    #[arg(long, default_value_t = 300, value_name = "N")]
    posters: u32,
}

/// One figure: what it is, its unit, and what it should be.
struct Figure {
    name: &'static str,
    unit: &'static str,
    bar: &'static str,
    value: f64,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Size {
    posters: u32,
    rows: u32,
    pace: f64,
    /// Commits whose way is measured.
    commits: u32,
    /// Row changes to catch up with.
    changes: u32,
    /// Cached reads of a turn.
    reads: u32,
    seed: u64,
}

impl Sourced {
    /// Measures, prints a table, and writes the JSON that was asked for.
    ///
    /// # Errors
    /// An option is wrong, PostgreSQL is not installed, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        let common = &self.common;
        common.check()?;
        if !common.against.is_empty() || common.peers_only || common.svg.is_some() {
            bail!(
                "--against, --svg: postgres measures Headwater over PostgreSQL, and prints a table"
            );
        }
        within("--pace", self.pace, 1.0, 1e5)?;
        within("--rows", f64::from(self.rows), 1.0, 1e6)?;
        within("--posters", f64::from(self.posters), 2.0, 9999.0)?;
        let launch = common.launch(0)?;
        launch.check(&[System::Headwater, System::Postgres])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let scaled = |count: f64| ((count * common.scale) as u32).max(20);
        let size = Size {
            posters: self.posters,
            rows: self.rows,
            pace: self.pace,
            commits: scaled(1500.0),
            changes: scaled(400_000.0),
            reads: scaled(200_000.0),
            seed: common.seed,
        };
        let runs = take_turns(&[System::Headwater], common.pairs, |_, _, progress| {
            one(&launch, size, progress)
        })?;
        let Some(first) = runs.first() else { bail!("nothing was measured") };
        let figures: Vec<(&Figure, Spread)> = first
            .iter()
            .enumerate()
            .filter_map(|(at, figure)| {
                Some((figure, spread(runs.iter().map(|run| run[at].value))?))
            })
            .collect();
        std::io::stdout().lock().write_all(tell(&figures).as_bytes())?;
        if let Some(path) = &common.json {
            let all = figures.iter().map(|(figure, found)| {
                json!({
                    "name": figure.name, "unit": figure.unit, "bar": figure.bar,
                    "median": found.median, "range": [found.least, found.greatest],
                })
            });
            let report = json!({
                "workload": "postgres",
                "params": {"posters": size.posters, "rows": size.rows, "pace": size.pace,
                    "pairs": common.pairs, "scale": common.scale, "seed": size.seed},
                "figures": all.collect::<Vec<_>>(),
            });
            std::fs::write(path, format!("{report:#}\n"))
                .with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

/// All figures once, always the same ones in the same order.
fn one(launch: &Launch, size: Size, progress: &Progress) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut add = |name, unit, bar, value| figures.push(Figure { name, unit, bar, value });
    progress.phase("rows", 0);
    let mut scene = Scene::begin(launch, size)?;
    progress.phase("cold ranges", 0);
    let (psql, here) = scene.cold()?;
    add("cold range, psql", "ms", "", psql);
    add("cold range, Headwater", "ms", "", here);
    add("cold range, ratio", "", "≤ 1.5", here / psql);
    progress.phase("cached reads", 0);
    let (get, range) = scene.cached()?;
    add("cached GET, source's table / plain", "", "~ 1", get);
    add("cached range, source's table / plain", "", "~ 1", range);
    progress.phase("a load of the whole table", 0);
    add("longest PING beside a load of all rows", "ms", "≤ 20", scene.longest_ping()?);
    progress.phase("from COMMIT to a timeline", 0);
    let (pace, seen) = scene.seen()?;
    add("writes beside", "/s", "", pace);
    add("from COMMIT to a timeline, p50", "ms", "≤ 1 with none beside", at(&seen, 0.5));
    add("from COMMIT to a timeline, p99", "ms", "≤ 50 with 5000/s beside", at(&seen, 0.99));
    progress.phase("changes kept up with", 0);
    let (wall, cpu) = scene.kept_up()?;
    add("row changes taken", "/s", "", wall);
    add("row changes for a second of CPU", "/s", "≥ 250000", cpu);
    drop(scene);
    progress.phase("kept tables", 0);
    let (get, range) = cached::kept(launch, size)?;
    add("cached GET, kept table / plain", "", "~ 1", get);
    add("cached range, kept table / plain", "", "~ 1", range);
    Ok(figures)
}

/// The value below which a share of the ascending values lies.
fn at(ascending: &[f64], share: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    ascending.get((last as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

fn tell(figures: &[(&Figure, Spread)]) -> String {
    let mut rows = vec![["figure", "median", "range", "bar"].map(String::from).to_vec()];
    for (figure, found) in figures {
        let shown = |value: f64| match figure.unit {
            "/s" => format!("{value:.0}/s"),
            unit => format!("{value:.2} {unit}").trim_end().to_owned(),
        };
        let range = format!("{} – {}", shown(found.least), shown(found.greatest));
        rows.push(vec![figure.name.to_owned(), shown(found.median), range, figure.bar.to_owned()]);
    }
    let mut text = String::new();
    table::rows(&mut text, &rows);
    text
}

#[cfg(test)]
mod tests {
    use super::at;

    #[test]
    fn shares_of_values() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((at(&values, 0.5), at(&values, 0.99), at(&values, 1.0)), (50.0, 99.0, 100.0));
        assert!(at(&[], 0.5).is_nan());
    }
}
