//! How cost grows with size: scans, stores, and followers of one user, each at three sizes.
//!
//! The cost that counts is the server's CPU per item: a pair that a scan brings, a GET or SET,
//! a follower that a post reaches, a subscription (with the read that follows). If a whole
//! grows no faster than n log n, the cost per item grows no faster than log n.

use crate::args::{Common, within};
use crate::drive::drive;
use crate::experiment::{Cost, Progress, take_turns};
use crate::measure::Run;
use crate::peer::{Launch, Server, System, stop};
use crate::raw::points::{self, Points, Protocol};
use crate::raw::{Filler, Operation};
use crate::report::{Case, Report, table};
use crate::wire::{Connection, Key, Loader, resp};
use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use std::io::Write;

/// Bytes of a value in scans and stores.
const VALUE_BYTES: usize = 64;
/// Bytes of a post.
const POST_BYTES: usize = 111;
/// Pairs that the scans of one size bring in all, at least.
const SCANNED: usize = 2_000_000;
/// Accesses of a store of one size.
const ACCESSES: u64 = 1_000_000;
/// Posts that are measured, at every size: as many, so that timelines are equally long.
const MORE_POSTS: usize = 50;
/// Subscriptions at one size.
const SUBSCRIPTIONS: u32 = 2_000;
/// Posts that a new follower finds.
const POSTS: u32 = 20;
/// The user with many followers.
const CELEBRITY: u32 = 9_999_999;

/// How the cost of scans, stores and fan-out grows with their size; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Growth {
    #[command(flatten)]
    common: Common,
    /// Keys of a scan.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000", value_name = "N,…")]
    scan: Vec<usize>,
    /// Keys of a store.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100000,1000000,10000000",
        value_name = "N,…"
    )]
    store: Vec<u32>,
    /// Followers of one user.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000", value_name = "N,…")]
    followers: Vec<u32>,
}

/// What grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GrowingPart {
    Scan,
    Get,
    Set,
    Post,
    Subscribe,
}

impl GrowingPart {
    fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan, per pair",
            Self::Get => "GET of a store",
            Self::Set => "SET of a store",
            Self::Post => "post, per follower",
            Self::Subscribe => "subscription and read",
        }
    }
}

struct Measured {
    what: GrowingPart,
    size: usize,
    run: Run,
}

impl Growth {
    /// Runs all sizes and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: growth measures Headwater alone");
        }
        for &size in &self.scan {
            within("--scan", size as f64, 100.0, 1e8)?;
        }
        for &size in self.store.iter() {
            within("--store", f64::from(size), 100.0, 1e8)?;
        }
        for &size in self.followers.iter() {
            within("--followers", f64::from(size), 100.0, 5e6)?;
        }
        let launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let runs = take_turns(&[System::Headwater], self.common.pairs, |_, pair, progress| {
            let mut measured = self.scans(&launch, pair, progress)?;
            for &size in &self.store {
                measured.extend(self.store(&launch, pair, progress, size)?);
            }
            for &size in &self.followers {
                measured.extend(self.fan_out(&launch, pair, progress, size)?);
            }
            Ok(measured)
        })?;
        let mut report = Report::new("growth", self.common.params(), Vec::new());
        for Measured { what, size, run } in runs.into_iter().flatten() {
            let name = format!("{}, {size}", what.name());
            match report.cases.iter_mut().find(|case| case.name == name) {
                Some(case) => case.runs.push(run),
                None => {
                    let value = json!({"what": what.name(), "size": size});
                    let params: Map<String, Value> = value.as_object().cloned().unwrap_or_default();
                    report.cases.push(Case { name, params, runs: vec![run] });
                }
            }
        }
        std::io::stdout().lock().write_all(growth_table(&report).as_bytes())?;
        self.common.tell(&report)
    }

    /// Scans a table, which grows from size to size.
    fn scans(&self, launch: &Launch, pair: usize, progress: &Progress) -> Result<Vec<Measured>> {
        let server = Server::start(System::Headwater, launch)?;
        let mut control = server.connect()?;
        let filler = Filler::new(VALUE_BYTES);
        let mut loaded = 0;
        let mut measured = Vec::new();
        for &size in &self.scan {
            progress.phase(&format!("scan of {size}"), size as u64);
            let mut loader = Loader::new(&mut control, resp::skip);
            let pairs = (loaded..size).map(|number| {
                let mut value = Vec::new();
                filler.write(&mut value, number as u32, 0, VALUE_BYTES);
                (Key::new(b"g|").number(number as u64, 10), value)
            });
            resp::set_all(&mut loader, pairs)?;
            loader.finish()?;
            loaded = loaded.max(size);
            let scans = (self.scaled(SCANNED) / size).max(1);
            let mut right = true;
            let cost = Cost::of(&server, || {
                for _ in 0..scans {
                    resp::command(&mut control.out, &[b"PREFIX", b"g|"]);
                    control.flush()?;
                    right &= resp::array(&mut control.input)? == 2 * loaded;
                    for number in 0..loaded {
                        let key = resp::string(&mut control.input)?;
                        right &= key == &*Key::new(b"g|").number(number as u64, 10);
                        resp::string(&mut control.input)?;
                    }
                    stop::check()?;
                }
                Ok((scans * loaded) as u64)
            })?;
            let run = cost.run(System::Headwater, pair, right);
            measured.push(Measured { what: GrowingPart::Scan, size, run });
        }
        Ok(measured)
    }

    /// Accesses keys of a store of `size`.
    fn store(
        &self,
        launch: &Launch,
        pair: usize,
        progress: &Progress,
        size: u32,
    ) -> Result<Vec<Measured>> {
        let server = Server::start(System::Headwater, launch)?;
        let mut control = server.connect()?;
        let mut connections = self.connections(&server)?;
        let mut points = Points::new(Protocol::Resp, size, VALUE_BYTES);
        progress.phase(&format!("store of {size}"), u64::from(size));
        points.load(&mut control)?;
        let mut measured = Vec::new();
        for (what, operation) in
            [(GrowingPart::Get, Operation::Get), (GrowingPart::Set, Operation::Set)]
        {
            let count = self.scaled(ACCESSES as usize) as u64;
            let lanes = connections.len();
            let schedule = points::draw(operation, size, count, lanes, 16, self.common.seed);
            let cost = Cost::of(&server, || {
                drive(&mut points, &mut connections, &schedule, None, &progress.bar)
            })?;
            let right = points.verify(&mut control, self.common.sample, self.common.seed)?;
            let run = cost.run(System::Headwater, pair, right);
            measured.push(Measured { what, size: size as usize, run });
        }
        Ok(measured)
    }

    /// Lets a user with `size` followers post, then others subscribe to him.
    fn fan_out(
        &self,
        launch: &Launch,
        pair: usize,
        progress: &Progress,
        size: u32,
    ) -> Result<Vec<Measured>> {
        let server = Server::start(System::Headwater, launch)?;
        let mut control = server.connect()?;
        progress.phase(&format!("{size} followers"), u64::from(size));
        load_followers(&mut control, size)?;
        let posts = self.scaled(MORE_POSTS) as u32;
        let cost = Cost::of(&server, || {
            for time in POSTS..POSTS + posts {
                write_post(&mut control.out, time);
                control.flush()?;
                resp::skip(&mut control.input)?;
                stop::check()?;
            }
            Ok(u64::from(posts) * u64::from(size))
        })?;
        let mut right = true;
        for user in (0..size).step_by((size as usize / self.common.sample).max(1)) {
            right &= timeline_length(&mut control, user)? == POSTS + posts;
        }
        let posted = cost.run(System::Headwater, pair, right);

        let mut right = true;
        let new = size..size + SUBSCRIPTIONS;
        let cost = Cost::of(&server, || {
            for user in new {
                subscribe(&mut control.out, user);
                control.flush()?;
                resp::skip(&mut control.input)?;
                right &= timeline_length(&mut control, user)? == POSTS + posts;
            }
            Ok(u64::from(SUBSCRIPTIONS))
        })?;
        let subscribed = cost.run(System::Headwater, pair, right);
        let size = size as usize;
        Ok(vec![
            Measured { what: GrowingPart::Post, size, run: posted },
            Measured { what: GrowingPart::Subscribe, size, run: subscribed },
        ])
    }

    fn connections(&self, server: &Server) -> Result<Vec<Connection>> {
        (0..self.common.connections).map(|_| server.connect()).collect()
    }

    fn scaled(&self, count: usize) -> usize {
        ((count as f64 * self.common.scale) as usize).max(1)
    }
}

/// Installs the timeline join, lets all follow, and materializes their timelines (and those
/// of the users who will follow).
fn load_followers(control: &mut Connection, size: u32) -> Result<()> {
    let timeline = b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    for table in [b"s", b"p", b"t"] {
        resp::command(&mut control.out, &[b"TABLE.SET", table, b"BOUNDARY", b"1"]);
    }
    resp::command(&mut control.out, &[b"JOIN.ADD", b"timeline", timeline]);
    let mut loader = Loader::new(control, resp::skip);
    loader.sent(4)?;
    for user in 0..size {
        subscribe(&mut loader.connection.out, user);
        loader.sent(1)?;
    }
    for time in 0..POSTS {
        write_post(&mut loader.connection.out, time);
        loader.sent(1)?;
    }
    for user in 0..size + SUBSCRIPTIONS {
        let prefix = Key::new(b"t|").user(user).text(b"|");
        resp::command(&mut loader.connection.out, &[b"PREFIX", &prefix, b"COUNT"]);
        loader.sent(1)?;
    }
    loader.finish()
}

fn subscribe(out: &mut Vec<u8>, user: u32) {
    let key = Key::new(b"s|").user(user).text(b"|").user(CELEBRITY);
    resp::command(out, &[b"SET", &key, b"1"]);
}

fn write_post(out: &mut Vec<u8>, time: u32) {
    let key = Key::new(b"p|").user(CELEBRITY).text(b"|").time(time);
    resp::command(out, &[b"SET", &key, &[b'x'; POST_BYTES]]);
}

fn timeline_length(control: &mut Connection, user: u32) -> Result<u32> {
    let prefix = Key::new(b"t|").user(user).text(b"|");
    resp::command(&mut control.out, &[b"PREFIX", &prefix]);
    control.flush()?;
    let count = resp::array(&mut control.input)?;
    for _ in 0..count {
        resp::string(&mut control.input)?;
    }
    Ok(count as u32 / 2)
}

/// Cost per item at each size, how it compares with the smallest size, and how it would if
/// it grew with the logarithm.
fn growth_table(report: &Report) -> String {
    let head = ["what", "size", "µs CPU per item", "÷ smallest", "log n ÷ smallest", "memory MB"];
    let mut grid = vec![head.map(String::from).to_vec()];
    let mut smallest: Option<(&str, f64, f64)> = None;
    let mut cases: Vec<&Case> = report.cases.iter().collect();
    let what = |case: &Case| {
        case.params.get("what").and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    cases.sort_by_key(|case| what(case));
    for case in cases {
        let (Some(figures), Some((name, size))) =
            (case.figures(crate::report::BASE), case.name.rsplit_once(", "))
        else {
            continue;
        };
        let per_item = figures.server_cpu_s.median / figures.operations.median * 1e6;
        let log = size.parse::<f64>().unwrap_or(1.0).log2();
        let (_, least, least_log) = match smallest {
            Some(it) if it.0 == name => it,
            _ => *smallest.insert((name, per_item, log)),
        };
        grid.push(vec![
            String::from(name),
            String::from(size),
            format!("{per_item:.3}"),
            format!("{:.2}", per_item / least),
            format!("{:.2}", log / least_log),
            format!("{:.1}", figures.rss_bytes_max.median / 1e6),
        ]);
    }
    let mut text = String::from("\ngrowth\n");
    table::rows(&mut text, &grid);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn growth_is_told_against_the_smallest_size() {
        let case = |name: &str, cpu: f64| Case {
            name: String::from(name),
            params: Map::from_iter([(
                String::from("what"),
                json!(name.rsplit_once(", ").unwrap().0),
            )]),
            runs: vec![run("headwater", 1, cpu)],
        };
        let cases = vec![case("GET of a store, 1024", 1.0), case("GET of a store, 1048576", 3.0)];
        let report = Report::new("growth", Map::new(), cases);
        let text = growth_table(&report);
        let row = text.lines().find(|line| line.contains("1048576")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[4..], ["1048576", "3000.000", "3.00", "2.00", "3.0"], "{text}");
    }
}
