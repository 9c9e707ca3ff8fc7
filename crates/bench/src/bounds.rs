//! What a server under a memory bound has resident at most, whatever it is filled with.
//!
//! Each fill has a server of its own, for each number of shards and each place where data may go. The system's own mark of the most
//! that was ever resident is compared with the bound; writes that were refused for want of memory are counted, and the
//! longest time until a batch of requests was answered is taken.

use crate::args::{Common, within};
use crate::peer::{Server, System, stop};
use crate::report::table;
use crate::wire::{Connection, resp};
use anyhow::{Context, Result, bail};
use core::time::Duration;
use headwater_workload::Rng;
use indicatif::ProgressBar;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Bytes of requests that are sent before their replies are read.
const BATCH_BYTES: usize = 128 << 10;
/// The same beside hostile clients: of all clients those that take most are ended, and this one is to stay.
const SMALL_BATCH_BYTES: usize = 8 << 10;
/// Bytes that values are cut from.
const NOISE_BYTES: usize = 4 << 20;

/// The most memory resident, of a bound, in hostile fills; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Bounds {
    #[command(flatten)]
    common: Common,
    /// The bound, in MiB; three shards with a store do not start with 64.
    #[arg(long, default_value_t = 96, value_name = "MIB")]
    memory: u64,
    /// Numbers of shards.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3", value_name = "N,…")]
    shards: Vec<u16>,
    /// Where data may go.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "memory,data,spill")]
    places: Vec<Place>,
    /// The fills; all, if none is named.
    #[arg(long, value_delimiter = ',', value_enum)]
    fills: Vec<Fill>,
    /// Fail where more than this part of the bound was resident.
    #[arg(long, value_name = "RATIO")]
    most: Option<f64>,
}

/// Where data may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Place {
    /// Nowhere else.
    Memory,
    /// An embedded store keeps it.
    Data,
    /// Values that would be evicted go to disk.
    Spill,
}

/// What a server is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Fill {
    /// Values of 8 B to 4 KB.
    Small,
    /// Values of 10 KB to 800 KB.
    Large,
    /// Keys with a value of one byte.
    Tiny,
    /// Values of 0.5 to 2.5 MB.
    Huge,
    /// Groups of three keys.
    Groups,
    /// Keys of 1000 bytes.
    LongKeys,
    /// Keys that expire soon.
    Expiring,
    /// A hundred keys a request.
    Many,
    /// Values that grow.
    Append,
    /// Streams.
    Streams,
    /// Keys of one size, most of them removed, then larger ones, then tiny ones.
    Churn,
    /// Timelines of which more are read than fit.
    Timelines,
    /// Posts that go to many timelines.
    Fanout,
    /// Sums and greatest values.
    Folds,
    /// Thousands of joins.
    Joins,
    /// Clients with requests that never end, replies that nobody reads, transactions and watched keys.
    Clients,
    /// Clients that each send several requests of 1 MB at once.
    Pipelines,
}

/// What one fill gave.
struct Measured {
    shards: u16,
    place: Place,
    fill: Fill,
    ratio: f64,
    refused: u64,
    longest: Duration,
    took: Duration,
}

impl Bounds {
    /// Measures, and prints a table.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or more was resident than `--most` allows.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--memory", self.memory as f64, 24.0, 65_536.0)?;
        if !self.common.against.is_empty() || self.common.peers_only {
            bail!("--against: bounds measures Headwater alone");
        }
        if self.common.json.is_some() || self.common.svg.is_some() {
            bail!("--json, --svg: bounds prints a table alone");
        }
        stop::handle_signals()?;
        let all: Vec<Fill> = clap::ValueEnum::value_variants().to_vec();
        let fills = if self.fills.is_empty() { &all } else { &self.fills };
        let (mut results, mut failed) = (Vec::new(), Vec::new());
        let servers = self.shards.len() * self.places.len() * fills.len();
        let bar = ProgressBar::new(servers as u64);
        for &shards in &self.shards {
            within("--shards", f64::from(shards), 1.0, 256.0)?;
            for &place in &self.places {
                for &fill in fills {
                    match self.measure(shards, place, fill) {
                        Ok(measured) => {
                            bar.println(row(&measured).join(" "));
                            results.push(measured);
                        }
                        // The others are worth having all the same.
                        Err(why) => failed.push(why),
                    }
                    stop::check()?;
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        io::stdout().lock().write_all(tell(&results).as_bytes())?;
        if !failed.is_empty() {
            let all: Vec<_> = failed.iter().map(|why| format!("{why:#}")).collect();
            bail!("{} fills failed: {}", all.len(), all.join("; "));
        }
        let worst = results.iter().map(|measured| measured.ratio).fold(0.0, f64::max);
        match self.most {
            Some(most) if worst > most => {
                bail!("{worst:.3} of the bound was resident (--most {most})")
            }
            _ => Ok(()),
        }
    }

    fn measure(&self, shards: u16, place: Place, fill: Fill) -> Result<Measured> {
        let mut launch = self.common.launch(0)?;
        launch.check(&[System::Headwater])?;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("place").to_string_lossy().into_owned();
        let bytes = self.memory << 20;
        let words = [
            "--shards",
            &shards.to_string(),
            "--memory",
            &bytes.to_string(),
            "--memory-policy",
            "allkeys-lru",
        ];
        launch.arguments = words.map(String::from).to_vec();
        match place {
            Place::Memory => {}
            Place::Data => launch.arguments.extend([String::from("--data"), path]),
            Place::Spill => {
                let size = (8 * bytes).to_string();
                let words = [String::from("--spill"), path, String::from("--spill-size"), size];
                launch.arguments.extend(words);
            }
        }
        let server = Server::start(System::Headwater, &launch)?;
        let mut filling = Filling::new(&server, self.common.seed)?;
        let begun = Instant::now();
        let scale = self.common.scale * self.memory as f64 / 64.0;
        let filled = filling.fill(fill, scale);
        let what = || format!("{fill:?}, {shards} shards, {place:?}: {}", server.log());
        filled.with_context(what)?;
        let (refused, longest, took) = (filling.refused, filling.longest, begun.elapsed());
        let ratio = server.rss_max()? as f64 / bytes as f64;
        Ok(Measured { shards, place, fill, ratio, refused, longest, took })
    }
}

/// A server that is being filled.
struct Filling<'a> {
    server: &'a Server,
    connection: Connection,
    rng: Rng,
    noise: Vec<u8>,
    pending: usize,
    batch_bytes: usize,
    refused: u64,
    longest: Duration,
}

impl<'a> Filling<'a> {
    fn new(server: &'a Server, seed: u64) -> Result<Self> {
        let mut rng = Rng::new(seed);
        let noise = (0..NOISE_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        let connection = server.connect()?;
        Ok(Self {
            server,
            connection,
            rng,
            noise,
            pending: 0,
            batch_bytes: BATCH_BYTES,
            refused: 0,
            longest: Duration::ZERO,
        })
    }

    /// Appends a value of some length.
    fn value(&mut self, least: u64, most: u64) -> Vec<u8> {
        let bytes = (least + self.rng.below(most - least)) as usize;
        let from = self.rng.below((NOISE_BYTES - bytes) as u64) as usize;
        self.noise[from..from + bytes].to_vec()
    }

    /// Sends a command some time.
    fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        resp::command(&mut self.connection.out, words);
        self.pending += 1;
        if self.connection.out.len() >= self.batch_bytes { self.finish() } else { Ok(()) }
    }

    /// Waits for the replies of all commands.
    fn finish(&mut self) -> Result<()> {
        stop::check()?;
        let begun = Instant::now();
        self.connection.flush()?;
        for _ in 0..core::mem::take(&mut self.pending) {
            match resp::skip(&mut self.connection.input) {
                Ok(()) => {}
                Err(error) if error.to_string().contains("answers: OOM") => self.refused += 1,
                Err(error) => return Err(error.into()),
            }
        }
        self.longest = self.longest.max(begun.elapsed());
        Ok(())
    }

    fn set(&mut self, key: &str, least: u64, most: u64) -> Result<()> {
        let value = self.value(least, most);
        self.send(&[b"SET", key.as_bytes(), &value])
    }

    fn sets(&mut self, kind: &str, count: u64, least: u64, most: u64) -> Result<()> {
        (0..count).try_for_each(|at| self.set(&format!("{kind}{at}"), least, most))
    }

    fn fill(&mut self, fill: Fill, scale: f64) -> Result<()> {
        let scaled = |count: f64| (count * scale).max(2.0) as u64;
        match fill {
            Fill::Small => self.sets("small|", scaled(120e3), 8, 4000)?,
            Fill::Large => self.sets("large|", scaled(600.0), 10_000, 800_000)?,
            Fill::Tiny => self.sets("t", scaled(1.5e6), 1, 2)?,
            Fill::Huge => self.sets("huge|", scaled(150.0), 500_000, 2_500_000)?,
            Fill::Groups => {
                self.send(&[b"TABLE.SET", b"g", b"BOUNDARY", b"1"])?;
                for at in 0..scaled(600e3) {
                    self.set(&format!("g|user{}|{at:07}", at / 3), 18, 19)?;
                }
            }
            Fill::LongKeys => {
                for at in 0..scaled(150e3) {
                    self.set(&format!("long|{at:0>990}"), 1, 20)?;
                }
            }
            Fill::Expiring => {
                for at in 0..scaled(700e3) {
                    let (value, time) = (self.value(1, 40), 100 + self.rng.below(10_000));
                    let (key, time) = (format!("e{at}"), time.to_string());
                    self.send(&[b"SET", key.as_bytes(), &value, b"PX", time.as_bytes()])?;
                }
            }
            Fill::Many => self.many(scaled(1500.0))?,
            Fill::Append => {
                for at in 0..scaled(15e3) {
                    let value = self.value(1000, 20_000);
                    self.send(&[b"APPEND", format!("a{}", at % 200).as_bytes(), &value])?;
                }
            }
            Fill::Streams => {
                for at in 0..scaled(12e3) {
                    let value = self.value(100, 30_000);
                    self.send(&[b"STREAM.APPEND", format!("s{}", at % 50).as_bytes(), &value])?;
                }
            }
            Fill::Churn => self.churn(&scaled)?,
            Fill::Timelines => self.timelines(scaled(15e3), 10)?,
            Fill::Fanout => self.timelines(scaled(80e3), 1)?,
            Fill::Folds => self.folds(scaled(200e3))?,
            Fill::Joins => self.joins(scaled(2500.0), scaled(60e3))?,
            Fill::Clients => self.clients(scaled(30e3))?,
            Fill::Pipelines => self.pipelines()?,
        }
        self.finish()
    }

    fn many(&mut self, count: u64) -> Result<()> {
        for at in 0..count {
            let mut words = vec![b"MSET".to_vec()];
            for key in 0..100 {
                words.extend([format!("m{at}-{key}").into_bytes(), self.value(10, 2000)]);
            }
            self.send(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn churn(&mut self, scaled: &dyn Fn(f64) -> u64) -> Result<()> {
        let keys = scaled(60e3);
        self.sets("c", keys, 50, 1500)?;
        for at in (0..keys).filter(|at| at % 8 > 0) {
            self.send(&[b"DEL", format!("c{at}").as_bytes()])?;
        }
        self.sets("d", scaled(20e3), 3000, 3100)?;
        self.sets("f", scaled(600e3), 1, 2)?;
        self.sets("h", scaled(60.0), 1 << 20, 2 << 20)
    }

    /// Timelines that follow so many of a hundred posters each, or all one.
    fn timelines(&mut self, users: u64, followed: u64) -> Result<()> {
        let posters = if followed > 1 { 100 } else { 1 };
        let join = b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
        self.send(&[b"TABLE.SET", b"t", b"BOUNDARY", b"1"])?;
        self.send(&[b"JOIN.ADD", b"t", join])?;
        for at in 0..users * followed {
            let poster = (at * 7 + at / followed) % posters;
            self.set(&format!("s|u{:06}|p{poster:02}", at / followed), 1, 2)?;
        }
        let posts = if followed > 1 { 50 } else { 1 };
        for at in 0..posts * posters {
            self.set(&format!("p|p{:02}|{:04}", at % posters, at / posters), 90, 110)?;
        }
        for at in 0..users {
            let user = if followed > 1 { self.rng.below(users) } else { at };
            self.send(&[b"PREFIX", format!("t|u{user:06}|").as_bytes(), b"COUNT"])?;
            if followed > 1 && at % 20 == 0 {
                self.set(&format!("p|p{:02}|{:04}", at % posters, 1000 + at), 90, 110)?;
            }
        }
        (0..6).try_for_each(|at| self.set(&format!("p|p00|{:04}", 9000 + at), 10, 2000))
    }

    fn folds(&mut self, rows: u64) -> Result<()> {
        self.send(&[b"JOIN.ADD", b"f", b"best|<owner> = max po|<owner>|<post>"])?;
        self.send(&[b"JOIN.ADD", b"g", b"sum|<owner> = sum po|<owner>|<post>"])?;
        for at in 0..rows {
            let (key, value) = (format!("po|o{:06}|{:05}", at / 50, at % 50), at.to_string());
            self.send(&[b"SET", key.as_bytes(), value.as_bytes()])?;
        }
        for round in 0..3 {
            // A store loads ranges as a whole, so that all owners at once would be too much for it.
            for hundred in 0..=rows / 5000 {
                for fold in ["best", "sum"] {
                    let prefix = format!("{fold}|o{hundred:04}");
                    self.send(&[b"PREFIX", prefix.as_bytes(), b"COUNT"])?;
                }
            }
            for owner in 0..rows / 100 {
                let key = format!("po|o{owner:06}|{:05}", 49 - round);
                self.send(&[b"DEL", key.as_bytes()])?;
            }
        }
        Ok(())
    }

    fn joins(&mut self, joins: u64, keys: u64) -> Result<()> {
        for at in 0..joins {
            let spec = format!("o{at:05}|<u>|<t> = copy p|k{at:05}|<u>|<t>");
            self.send(&[b"JOIN.ADD", format!("j{at}").as_bytes(), spec.as_bytes()])?;
        }
        for at in 0..keys {
            self.set(&format!("p|k{:05}|u|{at}", at % joins), 10, 1000)?;
        }
        (0..joins)
            .try_for_each(|at| self.send(&[b"PREFIX", format!("o{at:05}|").as_bytes(), b"COUNT"]))
    }

    /// Opens so many connections that send these bytes and read nothing.
    fn strangers(&self, count: usize, bytes: &[u8]) -> Result<Vec<TcpStream>> {
        let open = || -> io::Result<TcpStream> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.server.port))?;
            stream.set_write_timeout(Some(Duration::from_millis(200)))?;
            // It may be hung up on, or the server may stop reading: that is what is tried.
            let _ = stream.write_all(bytes);
            Ok(stream)
        };
        (0..count).map(|_| open().context("cannot connect")).collect()
    }

    fn clients(&mut self, keys: u64) -> Result<()> {
        self.sets("k", keys, 500, 4000)?;
        self.finish()?;
        self.batch_bytes = SMALL_BATCH_BYTES;
        let mut open = self.strangers(400, b"PING\r\n")?;
        let mut gets = Vec::new();
        for at in keys - keys.min(5000)..keys {
            resp::command(&mut gets, &[b"GET", format!("k{at}").as_bytes()]);
        }
        open.extend(self.strangers(100, &gets)?);
        let half = [&b"*2\r\n$3\r\nGET\r\n$3000000\r\n"[..], &self.noise[..1 << 20]].concat();
        open.extend(self.strangers(100, &half)?);
        let mut queued = b"MULTI\r\n".to_vec();
        for _ in 0..100 {
            resp::command(&mut queued, &[b"SET", b"queued", &self.noise[..10_000]]);
        }
        open.extend(self.strangers(100, &queued)?);
        open.extend(self.strangers(100, b"SUBSCRIBE news\r\n")?);
        for _ in 0..1000 {
            let news = self.noise[..5_000].to_vec();
            self.send(&[b"PUBLISH", b"news", &news])?;
        }
        let watched: Vec<Vec<u8>> =
            (0..5000).map(|at| format!("watched{at:0>200}").into_bytes()).collect();
        let words: Vec<&[u8]> =
            core::iter::once(&b"WATCH"[..]).chain(watched.iter().map(Vec::as_slice)).collect();
        let mut watch = Vec::new();
        resp::command(&mut watch, &words);
        open.extend(self.strangers(100, &watch)?);
        self.sets("z", keys / 8, 500, 4000)?;
        self.finish()
    }

    fn pipelines(&mut self) -> Result<()> {
        self.sets("k", 20_000, 500, 4000)?;
        self.finish()?;
        for round in 0..3 {
            let mut requests = Vec::new();
            for at in 0..4 {
                let key = format!("pipe{round}-{at}");
                resp::command(&mut requests, &[b"SET", key.as_bytes(), &self.noise[..1_000_000]]);
            }
            std::thread::scope(|scope| {
                let senders: Vec<_> =
                    (0..10).map(|_| scope.spawn(|| self.strangers(4, &requests))).collect();
                senders.into_iter().try_for_each(|sender| {
                    let sent = sender.join().map_err(|_| anyhow::anyhow!("a sender panicked"))?;
                    sent.map(drop)
                })
            })?;
        }
        Ok(())
    }
}

fn row(measured: &Measured) -> Vec<String> {
    let Measured { shards, place, fill, ratio, refused, longest, took } = measured;
    vec![
        format!("{fill:?}"),
        shards.to_string(),
        format!("{place:?}"),
        format!("{ratio:.3}"),
        refused.to_string(),
        format!("{:.0}", longest.as_secs_f64() * 1e3),
        format!("{:.1}", took.as_secs_f64()),
    ]
}

fn tell(results: &[Measured]) -> String {
    let head = ["fill", "shards", "place", "resident / bound", "refused", "longest ms", "took s"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(results.iter().map(row));
    let mut text = String::from("\nbounds: the most memory that was resident, of the bound\n");
    table::rows(&mut text, &rows);
    text
}
