//! Changes a second that a core delivers to clients that watch ranges.
//!
//! One client writes, in batches; many watch what it writes, each over a connection of its own, and are read until they have had
//! all of a batch. What counts is the server's CPU for each message that arrived. A base range is watched, and a range that a join
//! gives, where each write goes through the join first.

use crate::args::{Common, within};
use crate::experiment::{Cost, Progress, take_turns};
use crate::measure::Run;
use crate::peer::{Launch, Server, System, stop};
use crate::report::{Case, Report, table};
use crate::wire::{Connection, Key, resp};
use anyhow::{Context, Result, bail};
use serde_json::{Map, json};
use std::io::Write;

/// Writes in a batch.
const BATCH: usize = 100;
/// Keys that are written in turn.
const KEYS: usize = 1000;
/// Bytes of a value.
const VALUE_BYTES: usize = 64;

/// Changes that watching clients are told of: messages a second of server CPU; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    #[command(flatten)]
    common: Common,
    /// Clients that watch.
    #[arg(long, default_value_t = 100, value_name = "N")]
    watchers: usize,
    /// Shards of the server.
    #[arg(long, default_value_t = 1, value_name = "N")]
    shards: u16,
    /// Writes; each is told to every watcher.
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    writes: usize,
}

/// What is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WatchedKeys {
    Base,
    Derived,
}

impl WatchedKeys {
    const ALL: [Self; 2] = [Self::Base, Self::Derived];

    fn name(self) -> &'static str {
        match self {
            Self::Base => "base range",
            Self::Derived => "derived range",
        }
    }

    fn range(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Self::Base => (b"p|bob|", b"p|bob}"),
            Self::Derived => (b"t|ann|", b"t|ann}"),
        }
    }
}

impl Watch {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or a message is wrong.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: watch measures Headwater alone");
        }
        within("--watchers", self.watchers as f64, 1.0, 10_000.0)?;
        within("--writes", self.writes as f64, 1.0, 1e9)?;
        within("--shards", f64::from(self.shards), 1.0, 256.0)?;
        let mut launch = self.common.launch(0)?;
        launch.arguments = vec![String::from("--shards"), self.shards.to_string()];
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let mut params = self.common.params();
        params.insert(String::from("watchers"), json!(self.watchers));
        params.insert(String::from("shards"), json!(self.shards));
        let case = |what: WatchedKeys| Case {
            name: String::from(what.name()),
            params: Map::new(),
            runs: Vec::new(),
        };
        let mut report =
            Report::new("watch", params, WatchedKeys::ALL.map(case).into_iter().collect());
        let runs = take_turns(&[System::Headwater], self.common.pairs, |_, pair, progress| {
            WatchedKeys::ALL
                .into_iter()
                .map(|what| self.one(what, &launch, pair, progress))
                .collect::<Result<Vec<_>>>()
        })?;
        for runs in runs {
            for (case, run) in report.cases.iter_mut().zip(runs) {
                case.runs.push(run);
            }
        }
        std::io::stdout().lock().write_all(tell(&report).as_bytes())?;
        self.common.write(&report)
    }

    fn one(
        &self,
        what: WatchedKeys,
        launch: &Launch,
        pair: usize,
        progress: &Progress,
    ) -> Result<Run> {
        let server = Server::start(System::Headwater, launch)?;
        let mut control = server.connect()?;
        let join = b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
        resp::command(&mut control.out, &[b"JOIN.ADD", b"timeline", join]);
        resp::command(&mut control.out, &[b"SET", b"s|ann|bob", b"1"]);
        control.flush()?;
        resp::skip(&mut control.input)?;
        resp::skip(&mut control.input)?;
        let (first, last) = what.range();
        let mut watchers = Vec::new();
        for _ in 0..self.watchers {
            let mut watcher = server.connect()?;
            resp::command(&mut watcher.out, &[b"HELLO", b"3"]);
            resp::command(&mut watcher.out, &[b"RANGE.WATCH", first, last]);
            watcher.flush()?;
            resp::skip(&mut watcher.input)?;
            resp::skip(&mut watcher.input)?;
            watcher.hurry()?;
            watchers.push(watcher);
        }
        let writes = ((self.writes as f64 * self.common.scale) as usize).max(BATCH);
        progress.phase(what.name(), writes as u64);
        let mut verified = true;
        let cost = Cost::of(&server, || {
            let mut written = 0;
            while written < writes {
                stop::check()?;
                let batch = BATCH.min(writes - written);
                for number in written..written + batch {
                    resp::command(&mut control.out, &[b"SET", &key(number), &value(number)]);
                }
                control.flush()?;
                written += batch;
                for watcher in &mut watchers {
                    verified &= take(watcher, batch, written - 1)?;
                }
                for _ in 0..batch {
                    resp::skip(&mut control.input)?;
                }
                progress.bar.set_position(written as u64);
            }
            Ok((written * self.watchers) as u64)
        })?;
        Ok(cost.run(System::Headwater, pair, verified))
    }
}

fn key(number: usize) -> Key {
    Key::new(b"p|bob|").number((number % KEYS) as u64, 10)
}

fn value(number: usize) -> [u8; VALUE_BYTES] {
    let mut value = [b'.'; VALUE_BYTES];
    let text = Key::new(b"").number(number as u64, 12);
    value[..text.len()].copy_from_slice(&text);
    value
}

/// Takes so many messages; whether the last one tells of this write.
fn take(watcher: &mut Connection, messages: usize, last: usize) -> Result<bool> {
    for _ in 1..messages {
        resp::skip(&mut watcher.input)?;
    }
    let parts = resp::array(&mut watcher.input)?;
    let kind = resp::string(&mut watcher.input)?.to_vec();
    if parts != 6 || kind != b"range-change" {
        bail!("a watcher was told {} in {parts} parts", kind.escape_ascii());
    }
    resp::integer(&mut watcher.input)?;
    for _ in 0..3 {
        resp::skip(&mut watcher.input)?;
    }
    let told = resp::string(&mut watcher.input).context("the value of a change")?;
    Ok(told == value(last))
}

/// One row for each kind of range.
fn tell(report: &Report) -> String {
    let head = ["watched", "messages/s of CPU", "(range)", "µs of CPU", "messages/s", "verified"];
    let mut grid = vec![head.map(String::from).to_vec()];
    for case in &report.cases {
        let rates = case.runs.iter().map(|run| run.operations as f64 / run.server_cpu_s);
        let walls = case.runs.iter().map(|run| run.operations as f64 / run.wall_s);
        let (Some(rate), Some(wall)) =
            (crate::measure::stats::spread(rates), crate::measure::stats::spread(walls))
        else {
            continue;
        };
        let verified = case.runs.iter().all(|run| run.verified);
        grid.push(vec![
            case.name.clone(),
            format!("{:.0}", rate.median),
            format!("{:.0}–{:.0}", rate.least, rate.greatest),
            format!("{:.3}", 1e6 / rate.median),
            format!("{:.0}", wall.median),
            String::from(if verified { "yes" } else { "NO" }),
        ]);
    }
    let mut text = String::from("\nwatch: messages to watching clients\n");
    table::rows(&mut text, &grid);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn messages_are_told_by_the_cpu_that_they_take() {
        let case = Case {
            name: String::from("base range"),
            params: Map::new(),
            runs: vec![run("headwater", 1, 0.002)],
        };
        let text = tell(&Report::new("watch", Map::new(), vec![case]));
        let row = text.lines().find(|line| line.starts_with("base")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        let expected = ["base", "range", "500000", "500000–500000", "2.000", "250000", "yes"];
        assert_eq!(words, expected, "{text}");
    }
}
