//! What many installed joins cost: installing them, writes and reads beside them, what tells of them, a start, dropping them.
//!
//! Each figure is of one phase of one server. Joins differ in a literal of what they read (`literals`), in their tables
//! (`tables`), or only in what they write (`wide`: every key of one table concerns each of them).

use crate::args::{Common, within};
use crate::honest::quantile;
use crate::peer::{Server, System, stop};
use crate::report::table;
use crate::wire::{Connection, Key, Loader, resp};
use anyhow::{Result, bail};
use core::time::Duration;
use std::io::{self, Write};
use std::time::Instant;

/// Requests whose times are taken one by one.
const ASKED: u64 = 2000;
/// Joins whose outputs are read.
const READ: u64 = 1000;

/// What many installed joins cost; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Joins {
    #[command(flatten)]
    common: Common,
    /// How many joins there are.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    count: u64,
    /// In what they differ.
    #[arg(long, value_enum, default_value_t = Kind::Literals)]
    kind: Kind,
    /// Shards of the server.
    #[arg(long, default_value_t = 1, value_name = "N")]
    shards: u16,
    /// Keep data and joins on disk, and start again from there.
    #[arg(long)]
    data: bool,
}

/// In what joins differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// In a literal of what they read.
    Literals,
    /// In the tables that they read.
    Tables,
    /// In what they write: each reads all keys of one table.
    Wide,
}

struct Phase {
    name: String,
    took: Duration,
    cpu: Duration,
    resident: u64,
    /// Times of single requests, in ascending order.
    times: Vec<Duration>,
}

struct Run {
    server: Server,
    connection: Connection,
    phases: Vec<Phase>,
}

impl Joins {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, or a run fails.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--shards", f64::from(self.shards), 1.0, 256.0)?;
        within("--count", self.count as f64, 10.0, 16_384.0)?;
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: joins measures Headwater alone");
        }
        if self.common.json.is_some() || self.common.svg.is_some() {
            bail!("--json, --svg: joins prints a table alone");
        }
        let mut launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let folder = tempfile::tempdir()?;
        launch.arguments = vec![String::from("--shards"), self.shards.to_string()];
        if self.data {
            let path = folder.path().join("data").to_string_lossy().into_owned();
            launch.arguments.extend([String::from("--data"), path]);
        }
        let server = Server::start(System::Headwater, &launch)?;
        let mut run = Run { connection: server.connect()?, server, phases: Vec::new() };
        self.measure(&mut run)?;
        if self.data {
            let Run { server, phases, .. } = run;
            // The server is killed here: what it acknowledged was safe before.
            drop(server);
            let begun = Instant::now();
            let server = Server::start(System::Headwater, &launch)?;
            let took = begun.elapsed();
            run = Run { connection: server.connect()?, server, phases };
            run.note(
                "start with the joins on disk, after a kill",
                took,
                Duration::ZERO,
                Vec::new(),
            )?;
        }
        for part in 0..2 {
            let half = self.count / 2 * part..self.count / 2 * (part + 1);
            let name = if part == 0 { "JOIN.DROP, first half" } else { "JOIN.DROP, second half" };
            run.phase(name, half.map(|at| words(&[b"JOIN.DROP", &name_of(at)])))?;
        }
        io::stdout().lock().write_all(tell(&run.phases).as_bytes())?;
        Ok(())
    }

    fn measure(&self, run: &mut Run) -> Result<()> {
        let fifth = self.count / 5;
        for part in 0..5 {
            let joins = fifth * part..fifth * (part + 1);
            let name = format!("JOIN.ADD, to {}", fifth * (part + 1));
            let add = |at| words(&[b"JOIN.ADD", &name_of(at), self.spec(at).as_bytes()]);
            run.phase(&name, joins.map(add))?;
        }
        self.asked(run, "SET and GET, one by one")?;
        let read = (0..READ).map(|at| {
            let join = at * 7 % self.count;
            words(&[b"PREFIX", &Key::new(b"o").number(join, 6).text(b"|")])
        });
        run.each(&format!("PREFIX of {READ} joins, one by one"), read)?;
        self.asked(run, "SET and GET beside what was read")?;
        for name in ["JOIN.LIST", "TABLE.LIST", "INFO"] {
            run.phase(name, core::iter::once(words(&[name.as_bytes()])))?;
        }
        run.each(
            "JOIN.INFO",
            (0..READ).map(|at| words(&[b"JOIN.INFO", &name_of(at % self.count)])),
        )?;
        let key = |at: u64| Key::new(b"o").number(at % self.count, 6).text(b"|user|1");
        run.each("EXPLAIN", (0..READ).map(|at| words(&[b"EXPLAIN", &key(at)])))?;
        run.phase("FLUSHALL", core::iter::once(words(&[b"FLUSHALL"])))
    }

    fn spec(&self, at: u64) -> String {
        let source = match self.kind {
            Kind::Literals => format!("p|k{at:06}|<user>|<id>"),
            Kind::Tables => format!("p{at:06}|<user>|<id>"),
            Kind::Wide => String::from("p|<user>|<id>"),
        };
        format!("o{at:06}|<user>|<id> = copy {source}")
    }

    fn asked(&self, run: &mut Run, name: &str) -> Result<()> {
        let requests = (0..2 * ASKED).map(|at| {
            let join = (at / 2) * 7 % self.count;
            let key = match self.kind {
                Kind::Literals => Key::new(b"p|k").number(join, 6).text(b"|user|"),
                Kind::Tables => Key::new(b"p").number(join, 6).text(b"|user|"),
                Kind::Wide => Key::new(b"p|user|"),
            };
            let key = key.number(at / 2, 6);
            if at % 2 == 0 { words(&[b"SET", &key, b"value"]) } else { words(&[b"GET", &key]) }
        });
        run.each(name, requests)
    }
}

type Words = Vec<Vec<u8>>;

fn words(words: &[&[u8]]) -> Words {
    words.iter().map(|word| word.to_vec()).collect()
}

fn name_of(at: u64) -> Key {
    Key::new(b"j").number(at, 6)
}

impl Run {
    fn ask(&mut self, command: &[&[u8]]) -> Result<()> {
        resp::command(&mut self.connection.out, command);
        self.connection.flush()?;
        Ok(resp::skip(&mut self.connection.input)?)
    }

    /// Commands that are pipelined.
    fn phase(&mut self, name: &str, commands: impl Iterator<Item = Words>) -> Result<()> {
        stop::check()?;
        let (begun, cpu) = (Instant::now(), self.server.cpu()?);
        let mut loader = Loader::new(&mut self.connection, resp::skip);
        for command in commands {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            resp::command(&mut loader.connection.out, &words);
            loader.sent(1)?;
        }
        loader.finish()?;
        self.note(name, begun.elapsed(), cpu, Vec::new())
    }

    /// Commands that each await the reply of the one before.
    fn each(&mut self, name: &str, commands: impl Iterator<Item = Words>) -> Result<()> {
        stop::check()?;
        let (begun, cpu) = (Instant::now(), self.server.cpu()?);
        let mut times = Vec::new();
        for command in commands {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            let asked = Instant::now();
            self.ask(&words)?;
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        self.note(name, begun.elapsed(), cpu, times)
    }

    fn note(
        &mut self,
        name: &str,
        took: Duration,
        cpu: Duration,
        times: Vec<Duration>,
    ) -> Result<()> {
        let cpu = self.server.cpu()?.saturating_sub(cpu);
        let resident = self.server.rss_max()?;
        self.phases.push(Phase { name: name.to_owned(), took, cpu, resident, times });
        Ok(())
    }
}

fn tell(phases: &[Phase]) -> String {
    let head = ["phase", "took s", "CPU s", "resident at most, MB", "p50 ms", "p99 ms", "max ms"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for Phase { name, took, cpu, resident, times } in phases {
        let at = |part| if times.is_empty() { String::new() } else { quantile(times, part) };
        rows.push(vec![
            name.clone(),
            format!("{:.3}", took.as_secs_f64()),
            format!("{:.2}", cpu.as_secs_f64()),
            format!("{:.1}", *resident as f64 / 1e6),
            at(0.5),
            at(0.99),
            at(1.0),
        ]);
    }
    let mut text = String::from("\njoins: what many installed joins cost\n");
    table::rows(&mut text, &rows);
    text
}
