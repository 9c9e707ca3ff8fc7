//! A cluster of three nodes on three NATS servers: what its log costs, and how long clients wait when something ends.
//!
//! All processes share one machine, and its cores with the generator: ratios are between rates of the same machine, and
//! times are those of elections and leases, which do not depend on it. NATS's own rate is measured on the very servers that keep the
//! log: messages of 100 writes of 100 bytes, of which 16 are under way, as the design of the log assumes. The values are parts of posts, generated words with the
//! lengths of real ones; since the log's records are compressed, those of bytes that cannot be are measured beside them.

mod failures;
mod growth;
mod rates;
pub(crate) mod site;

use crate::args::{Common, within};
use crate::peer::{System, stop};
use crate::report::table;
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use site::Site;
use std::io::Write;

/// What a cluster costs, and how long clients wait when nodes and NATS servers end; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Cluster {
    #[command(flatten)]
    common: Common,
    /// How often each kind of failure is brought about.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Leave out the failures.
    #[arg(long)]
    no_failures: bool,
    /// Measure clusters of so many nodes and shards each, and nothing else: 1,2,3,4.
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    nodes: Vec<usize>,
}

/// A figure, and what it is to be.
struct Figure {
    name: &'static str,
    value: String,
    bar: &'static str,
    goal: &'static str,
}

impl Cluster {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, a program is missing, or what a client reads is wrong.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--rounds", self.rounds as f64, 1.0, 1000.0)?;
        for &count in &self.nodes {
            within("--nodes", count as f64, 1.0, 16.0)?;
        }
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: cluster measures Headwater alone");
        }
        if self.common.json.is_some() || self.common.svg.is_some() {
            bail!("--json, --svg: cluster prints a table alone");
        }
        let launch = self.common.launch(0)?;
        launch.check(&[System::Headwater, System::Nats])?;
        stop::handle_signals()?;
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(core::time::Duration::from_millis(200));
        if !self.nodes.is_empty() {
            let lines = growth::by_nodes(&launch.headwater, &self.common, &self.nodes, &bar)?;
            bar.finish_and_clear();
            let head = ["nodes", "requests/s", "CPU of all nodes a request, µs"];
            let grid: Vec<_> = [head.map(String::from).to_vec()].into_iter().chain(lines).collect();
            return print("cluster: posts and timelines through all nodes, a shard each", &grid);
        }
        bar.set_message("three NATS servers and three nodes start");
        let mut site = Site::start(launch.headwater.clone())?;
        let mut figures = rates::measure(&site, &self.common, &bar)?;
        if !self.no_failures {
            figures.extend(failures::measure(&mut site, self.rounds, &bar)?);
        }
        drop(site);
        figures.push(growth::measure(&launch.headwater, &self.common, &bar)?);
        bar.finish_and_clear();
        let head = ["figure", "measured", "bar", "goal"];
        let mut grid = vec![head.map(String::from).to_vec()];
        grid.extend(
            figures.into_iter().map(|it| {
                vec![it.name.to_owned(), it.value, it.bar.to_owned(), it.goal.to_owned()]
            }),
        );
        print(
            "cluster: three nodes, and 12 in the last row, three NATS servers that sync always, one machine",
            &grid,
        )
    }
}

fn print(title: &str, grid: &[Vec<String>]) -> Result<()> {
    let mut text = format!("\n{title}\n");
    table::rows(&mut text, grid);
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
