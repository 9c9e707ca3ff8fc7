//! What hostile functions cost other clients.
//!
//! One client reads and writes, one request at a time, and its times are taken: without any functions under way, then beside
//! clients that call a function which never ends, takes all memory it can, recurses, leaves its memory, or replies without
//! end, and beside all of these. A call costs others its time limit at the most, per client that makes such calls.

use super::MODULE;
use crate::args::{Common, within};
use crate::honest::{KEYS, exchange, quantile};
use crate::peer::{Server, System, stop};
use crate::report::table;
use crate::wire::{Connection, Key, bad, resp};
use anyhow::{Result, bail};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io::{self, Write};
use std::time::Instant;

/// How long each phase lasts.
const PHASE: Duration = Duration::from_secs(10);
/// The functions, each of which ends in an error.
const FUNCTIONS: [&str; 5] = ["f.spin", "f.hog", "f.recurse", "f.outside", "f.flood"];

/// Times of other clients' requests while hostile functions are called; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Hostile {
    #[command(flatten)]
    common: Common,
    /// Clients that call hostile functions.
    #[arg(long, default_value_t = 1, value_name = "N")]
    callers: usize,
    /// Time limit of a call, in milliseconds.
    #[arg(long, default_value_t = 10, value_name = "N")]
    limit: u64,
}

/// What one phase gave.
struct Phase {
    name: String,
    /// Of the honest client's requests, sorted.
    times: Vec<Duration>,
    calls: u64,
    rss_bytes_max: u64,
}

impl Hostile {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or a value is not what was written.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: hostile measures Headwater alone");
        }
        if self.common.json.is_some() || self.common.svg.is_some() {
            bail!("--json, --svg: hostile prints a table alone");
        }
        within("--callers", self.callers as f64, 1.0, 100.0)?;
        within("--limit", self.limit as f64, 1.0, 1000.0)?;
        let mut launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let config = tempfile::NamedTempFile::new()?;
        write!(&config, "[functions]\nfunction-milliseconds-max = {}\n", self.limit)?;
        launch.arguments.extend([String::from("--config"), config.path().display().to_string()]);
        let server = Server::start(System::Headwater, &launch)?;
        let mut control = server.connect()?;
        resp::command(&mut control.out, &[b"FN.LOAD", b"f", MODULE]);
        control.flush()?;
        resp::skip(&mut control.input)?;
        let phases: Vec<(String, Vec<&str>)> = [(String::from("(none)"), Vec::new())]
            .into_iter()
            .chain(FUNCTIONS.map(|name| (name.to_owned(), vec![name])))
            .chain([(String::from("all of them"), FUNCTIONS.to_vec())])
            .collect();
        let mut measured = Vec::new();
        for (name, functions) in phases {
            stop::check()?;
            measured.push(self.phase(&server, &mut control, name, &functions)?);
        }
        io::stdout().lock().write_all(self.tell(&measured).as_bytes())?;
        Ok(())
    }

    fn phase(
        &self,
        server: &Server,
        honest: &mut Connection,
        name: String,
        functions: &[&str],
    ) -> Result<Phase> {
        let (done, time) = (AtomicBool::new(false), PHASE.mul_f64(self.common.scale));
        let callers = if functions.is_empty() { 0 } else { self.callers };
        let mut connections = (0..callers).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
        let (times, calls) = std::thread::scope(|scope| {
            let callers: Vec<_> = connections
                .iter_mut()
                .map(|connection| scope.spawn(|| call(connection, functions, &done)))
                .collect();
            let begun = Instant::now();
            let times = exchange(honest, || begun.elapsed() >= time);
            done.store(true, Ordering::Relaxed);
            let calls: io::Result<u64> = callers
                .into_iter()
                .map(|caller| caller.join().unwrap_or_else(|_| Err(bad("a caller panicked"))))
                .sum();
            Ok::<_, anyhow::Error>((times?, calls?))
        })?;
        Ok(Phase { name, times, calls, rss_bytes_max: server.rss_max()? })
    }

    fn tell(&self, phases: &[Phase]) -> String {
        let head = [
            "functions called",
            "calls",
            "requests",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "max ms",
            "memory MB",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        for Phase { name, times, calls, rss_bytes_max } in phases {
            let at = |part| quantile(times, part);
            rows.push(vec![
                name.clone(),
                calls.to_string(),
                times.len().to_string(),
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
                format!("{:.1}", *rss_bytes_max as f64 / 1e6),
            ]);
        }
        let (callers, limit) = (self.callers, self.limit);
        let mut text = format!(
            "\nhostile: requests of one client beside {callers} that call such functions, limit {limit} ms\n"
        );
        table::rows(&mut text, &rows);
        text
    }
}

/// Calls functions, each of which must fail, until it is over; how many calls there were.
fn call(connection: &mut Connection, functions: &[&str], over: &AtomicBool) -> io::Result<u64> {
    let mut calls = 0;
    for name in functions.iter().cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let key = Key::new(b"k:").number(calls % KEYS, 5);
        let words: [&[u8]; 5] = [b"FN.CALL", name.as_bytes(), &key, b"UPDATE", b""];
        resp::command(&mut connection.out, &words);
        connection.flush().map_err(io::Error::other)?;
        match resp::skip(&mut connection.input) {
            Err(error) if error.to_string().contains("FUNCTION") => calls += 1,
            Err(error) => return Err(error),
            Ok(()) => return Err(bad("a hostile function ended well")),
        }
    }
    Ok(calls)
}
