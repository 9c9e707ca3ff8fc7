//! The tables, the JSON and the picture.

use super::load::Answered;
use super::picture;
use crate::args::Common;
use crate::measure::stats::spread;
use crate::report::{self, table};
use anyhow::Result;
use core::fmt::Write as _;
use serde_json::{Map, Value, json};
use std::io::Write as _;

/// One load on one way.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Posts that were acknowledged.
    pub posts: usize,
    /// Timelines that they went to.
    pub deliveries: u64,
    /// Posts that were not.
    pub refused: usize,
    /// The acknowledgements.
    pub answered: Answered,
    /// Seconds until all effects were there.
    pub drained_s: f64,
    /// Posts whose effects were not there when the last one was acknowledged.
    pub backlog: u64,
    /// CPU of the store.
    pub store_cpu_s: f64,
    /// CPU of the queue.
    pub queue_cpu_s: f64,
    /// CPU of clients and workers.
    pub own_cpu_s: f64,
    /// Bytes over the sockets of clients and workers.
    pub bytes: u64,
}

/// What kills did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Killed {
    /// How often.
    pub rounds: usize,
    /// Posts that were acknowledged.
    pub acknowledged: usize,
    /// Posts and deliveries of those that were not there, or not right.
    pub missing: u64,
    /// The longest time until all was there again.
    pub recovered_s: f64,
}

/// One way in one pair.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The way.
    pub way: &'static str,
    /// The pair.
    pub pair: usize,
    /// The loads.
    pub phases: Vec<Phase>,
    /// Deliveries that were wrong after the saturating load.
    pub missing: u64,
    /// The kills.
    pub killed: Killed,
}

impl Phase {
    fn cpu(&self) -> f64 {
        self.store_cpu_s + self.queue_cpu_s + self.own_cpu_s
    }

    fn json(&self) -> Value {
        json!({
            "phase": self.name,
            "posts": self.posts,
            "deliveries": self.deliveries,
            "refused": self.refused,
            "acknowledged_ms": {
                "p50": self.answered.within(0.5),
                "p99": self.answered.within(0.99),
                "max": self.answered.within(1.0),
            },
            "load_s": self.answered.seconds,
            "drained_s": self.drained_s,
            "backlog": self.backlog,
            "store_cpu_s": self.store_cpu_s,
            "queue_cpu_s": self.queue_cpu_s,
            "clients_cpu_s": self.own_cpu_s,
            "socket_bytes": self.bytes,
        })
    }
}

/// All of them.
pub(super) struct All<'m>(pub(super) &'m [Measured]);

impl All<'_> {
    pub(super) fn ways(&self) -> Vec<&'static str> {
        let mut ways = Vec::new();
        for measured in self.0 {
            if !ways.contains(&measured.way) {
                ways.push(measured.way);
            }
        }
        ways
    }

    /// The median over the pairs of a figure of a way's load.
    pub(super) fn median(
        &self,
        way: &str,
        phase: &str,
        figure: impl Fn(&Phase) -> f64,
    ) -> Option<f64> {
        let phases = self.0.iter().filter(|measured| measured.way == way);
        let phases = phases.flat_map(|measured| &measured.phases);
        spread(phases.filter(|it| it.name == phase).map(figure)).map(|spread| spread.median)
    }

    /// The median of the ratios of two ways in each pair.
    fn ratio(
        &self,
        (over, under): (&str, &str),
        phase: &str,
        figure: impl Fn(&Phase) -> f64,
    ) -> Option<String> {
        let of = |way: &str, pair: usize| {
            let measured = self.0.iter().find(|it| it.way == way && it.pair == pair)?;
            measured.phases.iter().find(|it| it.name == phase).map(&figure)
        };
        let pairs = self.0.iter().filter(|measured| measured.way == under);
        let ratios = pairs.filter_map(|it| Some(of(over, it.pair)? / of(under, it.pair)?));
        spread(ratios).map(|it| it.shown(2, ""))
    }
}

/// Prints the tables and writes the files.
///
/// # Errors
/// A file cannot be written.
pub fn tell(common: &Common, mut params: Map<String, Value>, measured: &[Measured]) -> Result<()> {
    let text = text(measured);
    std::io::stdout().lock().write_all(text.as_bytes())?;
    if let Some(path) = &common.json {
        let runs: Vec<Value> = measured
            .iter()
            .map(|it| {
                json!({
                    "way": it.way,
                    "pair": it.pair,
                    "phases": it.phases.iter().map(Phase::json).collect::<Vec<_>>(),
                    "wrong": it.missing,
                    "kills": it.killed.rounds,
                    "kills_acknowledged": it.killed.acknowledged,
                    "kills_missing": it.killed.missing,
                    "kills_recovered_s": it.killed.recovered_s,
                })
            })
            .collect();
        params.insert(String::from("workload"), json!("flows"));
        params.insert(String::from("runs"), json!(runs));
        report::write_json(path, &Value::Object(params))?;
    }
    if let Some(path) = &common.svg {
        report::write(path, &picture::picture(measured)?)?;
    }
    Ok(())
}

fn text(measured: &[Measured]) -> String {
    let (all, mut text) = (All(measured), String::new());
    for (phase, title) in [
        ("saturated", "1. As fast as it goes"),
        ("80 %", "2. At 80 % of what the synchronous way can do"),
        ("burst", "3. Half of it, then a burst of twice as much"),
        ("beside many", "4. Beside one post to very many followers"),
        ("to many", "   That post itself (acknowledged; effects there after)"),
    ] {
        let head = [
            "way",
            "posts",
            "refused",
            "posts/s",
            "p50 ms",
            "p99 ms",
            "max ms",
            "backlog",
            "effects s",
            "CPU µs/post",
            "store",
            "queue",
            "clients",
            "bytes/post",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        for way in all.ways() {
            let figure = |digits: usize, figure: &dyn Fn(&Phase) -> f64| {
                all.median(way, phase, figure)
                    .map_or(String::from("-"), |figure| format!("{figure:.digits$}"))
            };
            let each = |what: fn(&Phase) -> f64| {
                move |phase: &Phase| what(phase) / phase.posts.max(1) as f64
            };
            rows.push(vec![
                way.to_owned(),
                figure(0, &|phase| phase.posts as f64),
                figure(0, &|phase| phase.refused as f64),
                figure(0, &|phase| phase.posts as f64 / phase.drained_s),
                figure(2, &|phase| phase.answered.within(0.5)),
                figure(2, &|phase| phase.answered.within(0.99)),
                figure(1, &|phase| phase.answered.within(1.0)),
                figure(0, &|phase| phase.backlog as f64),
                figure(2, &|phase| phase.drained_s),
                figure(0, &each(|phase| phase.cpu() * 1e6)),
                figure(0, &each(|phase| phase.store_cpu_s * 1e6)),
                figure(0, &each(|phase| phase.queue_cpu_s * 1e6)),
                figure(0, &each(|phase| phase.own_cpu_s * 1e6)),
                figure(0, &each(|phase| phase.bytes as f64)),
            ]);
        }
        let _ = writeln!(text, "\n{title}\n");
        table::rows(&mut text, &rows);
    }
    kills(&mut text, measured);
    let _ = writeln!(text, "\n6. Ratios, medians over pairs (range)\n");
    let mut rows = vec![["figure", "ratio"].map(String::from).to_vec()];
    let mut add = |title: String, ratio: Option<String>| {
        rows.extend(ratio.map(|ratio| vec![title, ratio]));
    };
    let both = ("synchronous", "flow");
    add(
        String::from("p99 to acknowledgement at 80 %, synchronous ÷ flow"),
        all.ratio(both, "80 %", |phase| phase.answered.within(0.99)),
    );
    add(
        String::from("saturating throughput, flow ÷ synchronous"),
        all.ratio(both, "saturated", |phase| phase.drained_s / phase.posts as f64),
    );
    for way in all.ways().into_iter().filter(|way| !["synchronous", "flow"].contains(way)) {
        for phase in ["saturated", "80 %"] {
            let cpu = all.ratio((way, "flow"), phase, |it| it.cpu() / it.posts as f64);
            add(format!("CPU of all processes, {way} ÷ flow, {phase}"), cpu);
            let bytes = all.ratio((way, "flow"), phase, |it| it.bytes as f64 / it.posts as f64);
            add(format!("bytes over sockets, {way} ÷ flow, {phase}"), bytes);
        }
    }
    table::rows(&mut text, &rows);
    over_load(&mut text, &all);
    text
}

/// Loads under which the time to acknowledgement is told: in percent of what the synchronous way can do, and by name.
pub const LOADS: [(u32, &str); 5] =
    [(20, "20 %"), (40, "40 %"), (60, "60 %"), (80, "80 %"), (95, "95 %")];

fn over_load(text: &mut String, all: &All<'_>) {
    let mut head = vec![String::from("way")];
    for (_, load) in LOADS {
        head.extend([format!("{load} p50 ms"), String::from("p99 ms")]);
    }
    let mut rows = vec![head];
    for way in all.ways() {
        let mut row = vec![way.to_owned()];
        for (_, load) in LOADS {
            for share in [0.5, 0.99] {
                let took = all.median(way, load, |phase| phase.answered.within(share));
                row.push(took.map_or(String::from("-"), |took| format!("{took:.2}")));
            }
        }
        rows.push(row);
    }
    let _ = writeln!(
        text,
        "\n7. Time to acknowledgement over load, as a share of what the synchronous way can do\n"
    );
    table::rows(text, &rows);
}

fn kills(text: &mut String, measured: &[Measured]) {
    let head = ["way", "kills", "acknowledged", "missing or wrong", "recovered s", "wrong before"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for way in All(measured).ways() {
        let of = || measured.iter().filter(|it| it.way == way);
        let longest = of().map(|it| it.killed.recovered_s).fold(0.0, f64::max);
        rows.push(vec![
            way.to_owned(),
            of().map(|it| it.killed.rounds).sum::<usize>().to_string(),
            of().map(|it| it.killed.acknowledged).sum::<usize>().to_string(),
            of().map(|it| it.killed.missing).sum::<u64>().to_string(),
            format!("{longest:.2}"),
            of().map(|it| it.missing).sum::<u64>().to_string(),
        ]);
    }
    let _ = writeln!(text, "\n5. Killed under load (durability always)\n");
    table::rows(text, &rows);
}
