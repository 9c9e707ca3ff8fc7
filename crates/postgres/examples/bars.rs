//! How fast a database's changes are seen, kept up with and loaded, through a running Headwater:
//!
//!     cargo build --release && cargo run --release -p headwater-postgres --example bars -- target/release/headwater
//!
//! It starts a PostgreSQL and a Headwater of its own. *Seen* is the time from the answer to COMMIT until a client that asks again and
//! again finds the post in a timeline, beside other writers at a steady pace. *Kept up with* is how fast Headwater takes
//! what was written while it was stopped. *Loaded* is a first read of a range beside `psql`'s own timing of the same query.
#![expect(clippy::print_stdout, reason = "it reports")]
#![expect(clippy::print_stderr, reason = "the server says when it is missing")]

#[path = "../tests/live/server.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod server;

use server::Server;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Writes a second beside those whose way is measured.
const PACE: u32 = 2000;
/// Posters, each with so many posts.
const POSTERS: usize = 300;
const POSTS: usize = 1000;
/// Row changes to catch up with, and how many are one transaction.
const CHANGES: usize = 400_000;
const TOGETHER: usize = 10;

/// A client of Headwater.
struct Client(BufReader<TcpStream>);

impl Client {
    fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::with_capacity(1 << 20, stream))
    }

    /// Sends a command; how many bytes of bulk strings the answer holds, or what went wrong.
    fn ask(&mut self, words: &[&str]) -> Result<usize, String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            let _ = write!(request, "${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Result<usize, String> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "-" => Err(rest.to_owned()),
            "$" => {
                let Ok(length) = rest.parse::<usize>() else { return Ok(0) };
                let mut body = vec![0; length + 2];
                self.0.read_exact(&mut body).unwrap();
                Ok(length)
            }
            "*" | "%" => {
                let each = if kind == "%" { 2 } else { 1 };
                let count = rest.parse::<usize>().unwrap_or(0) * each;
                (0..count).try_fold(0, |sum, _| Ok(sum + self.answer()?))
            }
            _ => Ok(0),
        }
    }
}

struct Headwater(Child, u16);

impl Headwater {
    fn start(program: &str) -> Self {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("the program headwater starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        Self(child, port.unwrap_or_else(|| panic!("no port in {line}")))
    }

    fn signal(&self, name: &str) {
        Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status().unwrap();
    }

    /// Seconds of CPU that it has used.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let rest = stat.rsplit_once(')').unwrap().1;
        let ticks = rest.split_whitespace().skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }
}

impl Drop for Headwater {
    fn drop(&mut self) {
        self.signal("TERM");
        let _ = self.0.wait();
    }
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let count = times.len();
    println!(
        "{what}: p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms ({count} times)",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn main() {
    let program = std::env::args().nth(1).expect("the path of the program headwater");
    let Some(server) = Server::start(&["max_slot_wal_keep_size=4GB", "shared_buffers=512MB"])
    else {
        return;
    };
    server.run(&format!(
        "CREATE TABLE posts (poster text COLLATE \"C\", time int, tweet text, PRIMARY KEY (poster, time)); \
         CREATE TABLE subs (who text, poster text, PRIMARY KEY (who, poster)); \
         INSERT INTO subs SELECT 'ann', 'u' || n FROM generate_series(0, 9) n; \
         INSERT INTO subs VALUES ('ann', 'sample'); \
         INSERT INTO posts SELECT 'u' || n % {POSTERS}, n / {POSTERS}, 'a post of some length: ' || md5(n::text) \
         FROM generate_series(0, {}) n",
        POSTERS * POSTS - 1
    ).replace("", ""));
    server.run("VACUUM ANALYZE posts");
    let headwater = Headwater::start(&program);
    let mut client = Client::open(headwater.1);
    let url = server.url();
    let posts = [
        "TABLE.SET",
        "p",
        "BOUNDARY",
        "1",
        "SOURCE",
        "shop",
        "TABLE",
        "posts",
        "KEY",
        "(poster, time)",
        "VALUE",
        "tweet",
    ];
    let subs = [
        "TABLE.SET",
        "s",
        "BOUNDARY",
        "1",
        "SOURCE",
        "shop",
        "TABLE",
        "subs",
        "KEY",
        "(who, poster)",
        "VALUE",
        "EMPTY",
    ];
    let join = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    for words in [
        &["SOURCE.ADD", "shop", "postgres", &url][..],
        &posts,
        &subs,
        &["JOIN.ADD", "timeline", join],
    ] {
        client.ask(words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
    }
    loads(&server, &mut client);
    seen(&server, &mut client);
    kept_up(&server, &mut client, &headwater);
}

/// First reads of ranges, beside `psql`.
fn loads(server: &Server, client: &mut Client) {
    let mut script = "\\o /dev/null\n\\timing on\n".to_owned();
    for poster in 10..POSTERS {
        let _ =
            writeln!(script, "SELECT poster, time, tweet FROM posts WHERE poster = 'u{poster}';");
    }
    let mut psql = Vec::new();
    // The second time the database's caches are warm.
    for _ in 0..2 {
        let mut child = Command::new("psql")
            .args(["-X", "-q", &server.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql starts");
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let times = text.lines().filter_map(|line| line.strip_prefix("Time: ")?.split(' ').next());
        psql =
            times.map(|time| Duration::from_secs_f64(time.parse::<f64>().unwrap() / 1e3)).collect();
    }
    let mut here = Vec::new();
    for poster in 10..POSTERS {
        let range = format!("p|u{poster}|");
        let begun = Instant::now();
        let bytes = client.ask(&["PREFIX", &range]).unwrap();
        here.push(begun.elapsed());
        assert!(bytes > POSTS * 50, "{bytes}");
    }
    show(&format!("loading a cold range of {POSTS} rows, psql"), psql);
    show(&format!("loading a cold range of {POSTS} rows, Headwater"), here);
}

/// From COMMIT to a timeline.
fn seen(server: &Server, client: &mut Client) {
    assert!(client.ask(&["PREFIX", "t|ann|"]).unwrap() > 0);
    let done = AtomicBool::new(false);
    let mut times = Vec::new();
    let mut written = 0;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (server, done) = (&server, &done);
                scope.spawn(move || {
                    let mut connection = server.connect();
                    let (begun, mut count) = (Instant::now(), 0_u32);
                    while !done.load(Ordering::Relaxed) {
                        let due = begun.elapsed().as_secs_f64() * f64::from(PACE / 2);
                        if f64::from(count) > due {
                            std::thread::sleep(Duration::from_micros(100));
                            continue;
                        }
                        let (poster, time) =
                            (count % POSTERS as u32, 10_000_000 + count * 2 + writer);
                        let sql = format!(
                            "INSERT INTO posts VALUES ('u{poster}', {time}, 'a post {count}')"
                        );
                        connection.query(&sql, |_, _| {}).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut connection = server.connect();
        for time in 0..1500 {
            let sql = format!("INSERT INTO posts VALUES ('sample', {time}, 'x')");
            connection.query(&sql, |_, _| {}).unwrap();
            let committed = Instant::now();
            let key = format!("t|ann|{time:010}|sample");
            while client.ask(&["GET", &key]).unwrap() == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
            times.push(committed.elapsed());
            std::thread::sleep(Duration::from_millis(3));
        }
        done.store(true, Ordering::Relaxed);
        written = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    });
    let pace = f64::from(written) / begun.elapsed().as_secs_f64();
    show(&format!("from COMMIT to a timeline, beside {pace:.0} writes/s"), times);
}

/// How fast a backlog is taken.
fn kept_up(server: &Server, client: &mut Client, headwater: &Headwater) {
    // All of the table is followed.
    assert!(client.ask(&["PREFIX", "p|"]).unwrap() > 0);
    headwater.signal("STOP");
    let mut connection = server.connect();
    for first in (0..CHANGES).step_by(TOGETHER * 100) {
        let mut sql = String::new();
        for first in (first..first + TOGETHER * 100).step_by(TOGETHER) {
            let _ = write!(
                sql,
                "BEGIN; INSERT INTO posts SELECT 'u' || n % {POSTERS}, 50000000 + n, 'a post of some length: ' || \
                 md5(n::text) FROM generate_series({first}, {}) n; COMMIT;",
                first + TOGETHER - 1
            );
        }
        connection.query(&sql, |_, _| {}).unwrap();
    }
    let (poster, time) = ((CHANGES - 1) % POSTERS, 50_000_000 + CHANGES - 1);
    let key = format!("p|u{poster}|{time:010}");
    let (begun, cpu) = (Instant::now(), headwater.cpu());
    headwater.signal("CONT");
    while client.ask(&["GET", &key]).unwrap() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), headwater.cpu() - cpu);
    let pace = CHANGES as f64 / seconds;
    println!(
        "kept up with: {pace:.0} row changes/s ({CHANGES} in {seconds:.2} s, of which Headwater's CPU {cpu:.2} s: {:.0}/s of one core)",
        CHANGES as f64 / cpu
    );
}
