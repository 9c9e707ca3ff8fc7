//! A PostgreSQL with posts and subscriptions, a Headwater over it, and what is measured of the two.

use super::cached::{self, ask, group, key};
use super::{Size, cached::text};
use crate::peer::server::POSTGRES_USER;
use crate::peer::{Launch, Server, System, program};
use crate::wire::{Connection, Key, postgres, resp};
use anyhow::{Context, Result, bail, ensure};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rustix::process::Signal;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Connections that write beside.
const WRITERS: u32 = 2;
/// Rows of one transaction, where a backlog is written.
const TOGETHER: u32 = 10;
/// How often a client looks for what was committed.
const LOOK: Duration = Duration::from_micros(50);
/// How long anything that was committed may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The first posts of what is measured, apart from those that are there.
const BESIDE: u32 = 10_000_000;
const BACKLOG: u32 = 500_000_000;

/// What a publication and a slot need, and no more syncing than the peers do.
const SETTINGS: [&str; 4] = [
    "wal_level=logical",
    "max_wal_senders=4",
    "max_slot_wal_keep_size=4GB",
    // Replication is sent what was flushed, and that should not wait.
    "synchronous_commit=on",
];

const JOIN: &[u8] = b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

const POSTS: &str = "TABLE.SET p BOUNDARY 1 SOURCE db TABLE posts KEY (poster,time) VALUE tweet";

pub(super) struct Scene {
    size: Size,
    database: Server,
    headwater: Server,
    client: Connection,
}

fn words(text: &str) -> Vec<&[u8]> {
    text.split(' ').map(str::as_bytes).collect()
}

impl Scene {
    /// Starts both, with the rows there and nothing read.
    pub(super) fn begin(launch: &Launch, size: Size) -> Result<Self> {
        let mut aside = launch.clone();
        aside.pinning = launch.pinning.aside();
        for setting in SETTINGS {
            aside.arguments.extend(["-c".to_owned(), setting.to_owned()]);
        }
        let database = Server::start(System::Postgres, &aside)?;
        let mut connection = database.connect()?;
        postgres::run(
            &mut connection,
            "CREATE TABLE posts (poster text, time int, tweet text, PRIMARY KEY (poster, time)); \
             CREATE TABLE subs (who text, poster text, PRIMARY KEY (who, poster)); \
             INSERT INTO subs SELECT 'ann', 'u000' || n FROM generate_series(0, 9) n; \
             INSERT INTO subs VALUES ('ann', 'sample')",
        )?;
        let lines = (0..size.posters).flat_map(|poster| {
            let line = move |time| format!("u{poster:04}\t{time}\t{}", text(poster, time));
            (0..size.rows).map(move |time| line(time).into_bytes())
        });
        postgres::copy(&mut connection, "posts", lines)?;
        postgres::run(&mut connection, "VACUUM ANALYZE posts")?;
        let mut reaching = launch.clone();
        reaching.arguments.extend(["--connect-allow", "127.0.0.1:*"].map(String::from));
        let headwater = Server::start(System::Headwater, &reaching)?;
        let mut client = headwater.connect()?;
        let url = format!("postgres://{POSTGRES_USER}@127.0.0.1:{}/postgres", database.port);
        let subs = "TABLE.SET s BOUNDARY 1 SOURCE db TABLE subs KEY (who,poster) VALUE EMPTY";
        ask(&mut client, &words(&format!("SOURCE.ADD db postgres {url}")))?;
        ask(&mut client, &words(subs))?;
        ask(&mut client, &words(POSTS))?;
        ask(&mut client, &[b"JOIN.ADD", b"timeline", JOIN])?;
        ask(&mut client, &words("TABLE.SET q BOUNDARY 1"))?;
        // It is connected when it can tell where it stands.
        let begun = Instant::now();
        while let Err(error) = ask(&mut client, &words("SOURCE.POSITION db")) {
            ensure!(begun.elapsed() < PATIENCE, error);
        }
        Ok(Self { size, database, headwater, client })
    }

    /// Milliseconds of a first read of a range: `psql`'s own timing, and Headwater's; medians.
    pub(super) fn cold(&mut self) -> Result<(f64, f64)> {
        let mut script = String::from("\\o /dev/null\n\\timing on\n");
        for poster in 0..self.size.posters {
            let _ = writeln!(
                script,
                "SELECT poster, time, tweet FROM posts WHERE poster = 'u{poster:04}';"
            );
        }
        let psql = program::postgres()?.join("psql");
        let mut times = Vec::new();
        // The second time the database's caches are warm.
        for _ in 0..2 {
            let port = self.database.port.to_string();
            let mut child = Command::new(&psql)
                .args(["-X", "-q", "-h", "127.0.0.1", "-p", &port, "-U", POSTGRES_USER, "postgres"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("{} does not start", psql.display()))?;
            child.stdin.take().context("no input")?.write_all(script.as_bytes())?;
            let output = child.wait_with_output()?;
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            let told =
                told.lines().filter_map(|line| line.strip_prefix("Time: ")?.split(' ').next());
            times = told.filter_map(|time| time.parse::<f64>().ok()).collect();
        }
        ensure!(times.len() == self.size.posters as usize, "psql tells no times");
        let mut here = Vec::new();
        for poster in 0..self.size.posters {
            let begun = Instant::now();
            resp::command(&mut self.client.out, &[b"PREFIX", &group(b'p', poster)]);
            self.client.flush()?;
            let count = resp::array(&mut self.client.input)?;
            for _ in 0..count {
                resp::string(&mut self.client.input)?;
            }
            here.push(begun.elapsed().as_secs_f64() * 1e3);
            ensure!(count as u32 == 2 * self.size.rows, "a range of {count} texts");
        }
        let middle = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            super::at(&times, 0.5)
        };
        Ok((middle(times), middle(here)))
    }

    /// Reads of what was loaded, as a part of the cost of the same reads of a plain table.
    pub(super) fn cached(&mut self) -> Result<(f64, f64)> {
        cached::fill(&mut self.client, b'q', self.size)?;
        cached::ratios(&self.headwater, b'p', b'q', self.size)
    }

    /// Milliseconds that another client's `PING` takes at most while all posts are loaded by one query.
    pub(super) fn longest_ping(&mut self) -> Result<f64> {
        ask(&mut self.client, &[b"TABLE.SET", b"p", b"SOURCE", b""])?;
        ask(&mut self.client, &words(POSTS))?;
        let (mut other, done) = (self.headwater.connect()?, AtomicBool::new(false));
        let client = &mut self.client;
        std::thread::scope(|scope| {
            let pings = scope.spawn(|| -> Result<Duration> {
                let mut longest = Duration::ZERO;
                while !done.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    ask(&mut other, &[b"PING"])?;
                    longest = longest.max(begun.elapsed());
                    std::thread::sleep(LOOK);
                }
                Ok(longest)
            });
            let loaded = ask(client, &words("PREFIX p| COUNT"));
            done.store(true, Ordering::Relaxed);
            let longest = pings.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
            loaded.map(|()| longest.as_secs_f64() * 1e3)
        })
    }

    /// The pace of the writers beside, and milliseconds from COMMIT to a timeline, ascending.
    pub(super) fn seen(&mut self) -> Result<(f64, Vec<f64>)> {
        ask(&mut self.client, &words("PREFIX t|ann| COUNT"))?;
        let (done, begun) = (AtomicBool::new(false), Instant::now());
        let mut times = Vec::new();
        let (database, size, client) = (&self.database, self.size, &mut self.client);
        let written = std::thread::scope(|scope| -> Result<u32> {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    scope.spawn({
                        let done = &done;
                        move || write(database, size, writer, done)
                    })
                })
                .collect();
            let told = commits(database, client, size, &mut times);
            done.store(true, Ordering::Relaxed);
            let mut written = 0;
            for writer in writers {
                written += writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            }
            told.map(|()| written)
        })?;
        let pace = f64::from(written) / begun.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        Ok((pace, times))
    }

    /// Row changes a second of a backlog, by the clock and by Headwater's CPU.
    pub(super) fn kept_up(&mut self) -> Result<(f64, f64)> {
        // All of the table is followed.
        ask(&mut self.client, &words("PREFIX p| COUNT"))?;
        self.headwater.signal(Signal::STOP);
        let written = self.backlog();
        let cpu = self.headwater.cpu()?;
        let begun = Instant::now();
        self.headwater.signal(Signal::CONT);
        let last = written?;
        let key = key(b'p', last % self.size.posters, BACKLOG + last);
        await_key(&mut self.client, &key, Duration::from_millis(1))?;
        let (wall, cpu) = (begun.elapsed(), self.headwater.cpu()? - cpu);
        let changes = f64::from(last + 1);
        Ok((changes / wall.as_secs_f64(), changes / cpu.as_secs_f64()))
    }

    /// Writes the backlog in small transactions; the number of its last row.
    fn backlog(&self) -> Result<u32> {
        let mut connection = self.database.connect()?;
        let count = self.size.changes.div_ceil(TOGETHER) * TOGETHER;
        let posters = self.size.posters;
        for first in (0..count).step_by(TOGETHER as usize) {
            let last = first + TOGETHER - 1;
            postgres::run(
                &mut connection,
                &format!(
                    "INSERT INTO posts SELECT 'u' || lpad((n % {posters})::text, 4, '0'), {BACKLOG} + n, \
                     'a post of some length: ' || md5(n::text) FROM generate_series({first}, {last}) n"
                ),
            )?;
        }
        Ok(count - 1)
    }
}

/// Commits one post after the other, and waits for each in the timeline.
fn commits(
    database: &Server,
    client: &mut Connection,
    size: Size,
    times: &mut Vec<f64>,
) -> Result<()> {
    let mut connection = database.connect()?;
    postgres::prepare(&mut connection, "post", "INSERT INTO posts VALUES ('sample', $1, 'x')")?;
    for time in 0..size.commits {
        postgres::execute(&mut connection.out, "post", &[&time.to_be_bytes()]);
        postgres::sync(&mut connection.out);
        connection.flush()?;
        postgres::ready(&mut connection.input)?;
        let committed = Instant::now();
        await_key(client, &Key::new(b"t|ann|").time(time).text(b"|sample"), LOOK)?;
        times.push(committed.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(3));
    }
    Ok(())
}

/// Asks for a key until it is there.
fn await_key(client: &mut Connection, key: &[u8], look: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        resp::command(&mut client.out, &[b"GET", key]);
        client.flush()?;
        if resp::bulk(&mut client.input)?.is_some() {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("{} does not come", String::from_utf8_lossy(key));
        }
        std::thread::sleep(look);
    }
}

/// Writes posts at its share of the pace until it is told to end; how many.
fn write(database: &Server, size: Size, writer: u32, done: &AtomicBool) -> Result<u32> {
    let mut connection = database.connect()?;
    postgres::prepare(&mut connection, "post", "INSERT INTO posts VALUES ($1, $2, 'a post')")?;
    let (begun, mut count) = (Instant::now(), 0);
    while !done.load(Ordering::Relaxed) {
        if f64::from(count) > begun.elapsed().as_secs_f64() * size.pace / f64::from(WRITERS) {
            std::thread::sleep(Duration::from_micros(100));
            continue;
        }
        let poster = Key::new(b"u").number(u64::from(count % size.posters), 4);
        let time = BESIDE + count * WRITERS + writer;
        postgres::execute(&mut connection.out, "post", &[&poster, &time.to_be_bytes()]);
        postgres::sync(&mut connection.out);
        connection.flush()?;
        postgres::ready(&mut connection.input)?;
        count += 1;
    }
    Ok(count)
}
