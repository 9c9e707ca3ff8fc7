//! The memory bound, from outside: the real server is filled several times over in many ways under a watcher of its
//! resident memory.
//!
//! The short version takes less than a minute; `HEADWATER_BOUND_ROUNDS=1` makes it three times longer, and 20 as many times that. With
//! `--nocapture` it prints the worst ratio of each phase. Where a memory-limited
//! control group can be made, the kernel watches, too.

use crate::support::{Server, Socket, number_from, program, request};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const BOUND: u64 = 64 << 20;

/// How many whole rounds are done, at least one.
pub(crate) fn rounds() -> u64 {
    number_from("HEADWATER_BOUND_ROUNDS", 1)
}

/// How much of a whole round's `count` is done: a third, if no whole rounds are asked for.
pub(crate) fn share(count: u64) -> u64 {
    let is_asked = std::env::var_os("HEADWATER_BOUND_ROUNDS").is_some();
    if is_asked { count } else { count / 3 }
}

/// SplitMix64.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}

/// The value of a key: any process can tell whether it is right.
pub(crate) fn value(key: &str, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 1024);
    while bytes.len() < len {
        // A part that is taken for another one shows, and most of it is copied.
        let piece = format!("{key}{}", bytes.len());
        bytes.extend_from_slice(piece.repeat(512 / piece.len() + 1).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A server with a watcher of its resident memory.
pub(crate) struct Watched {
    pub(crate) server: Server,
    most: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    pub(crate) draws: Draws,
}

impl Watched {
    pub(crate) fn start(shards: u16, arguments: &[&str]) -> Self {
        let shards = shards.to_string();
        let all = [&["--memory", "64mb", "--shards", &shards], arguments].concat();
        Self::watch(Server::start(&all))
    }

    pub(crate) fn watch(server: Server) -> Self {
        let (most, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let path = format!("/proc/{}/statm", server.id());
        let (seen, end) = (most.clone(), done.clone());
        std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let Ok(text) = std::fs::read_to_string(&path) else { return };
                let pages = text.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
                let bytes = pages.unwrap_or(0) * rustix::param::page_size() as u64;
                seen.fetch_max(bytes, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { server, most, done, draws: Draws(7) }
    }

    /// Ends a phase: says how much was resident at most, and checks it.
    #[track_caller]
    pub(crate) fn phase(&mut self, name: &str) {
        // What was taken at most is kept by the system, too, but for all phases together.
        let most = self.most.swap(0, Ordering::Relaxed);
        let ratio = most as f64 / BOUND as f64;
        let facts = self.info();
        let told = |name: &str| facts.get(name).cloned().unwrap_or_default();
        let mut table = std::io::stderr();
        writeln!(
            table,
            "| {name} | {ratio:.3} | {} | {} | {} | {} |",
            told("evicted_keys"),
            told("evicted_ranges"),
            told("evicted_clients"),
            told("mem_fragmentation_ratio"),
        )
        .unwrap();
        assert!(ratio <= 0.99, "{name}: {most} of {BOUND} bytes: {facts:?}");
    }

    pub(crate) fn info(&self) -> HashMap<String, String> {
        let mut client = self.server.client(2);
        let text: String = redis::cmd("INFO").query(&mut client).expect("it still answers");
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, told)| (name.to_owned(), told.to_owned()))
            .collect()
    }

    /// Sends requests in batches; how many were refused for want of memory.
    pub(crate) fn send(
        &mut self,
        count: u64,
        each: u64,
        mut make: impl FnMut(u64, &mut Draws) -> Vec<u8>,
    ) -> u64 {
        let mut socket = self.server.socket();
        let mut refused = 0;
        let mut at = 0;
        while at < count {
            let batch = each.min(count - at);
            let requests: Vec<_> = (at..at + batch).map(|at| make(at, &mut self.draws)).collect();
            socket.send(&requests.concat());
            for line in lines(&mut socket, batch) {
                match line.as_str() {
                    "+OK" => {}
                    line if line.starts_with("-OOM") => refused += 1,
                    line => panic!("{line}"),
                }
            }
            at += batch;
        }
        refused
    }

    /// Sets keys of one kind, and checks some of them as it goes.
    pub(crate) fn fill(&mut self, kind: &str, count: u64, lengths: core::ops::Range<u64>) -> u64 {
        let each = (200_000 / lengths.end).clamp(1, 500);
        let refused = self.send(count, each, |at, draws| {
            let key = format!("{kind}{at}");
            let len = lengths.start + draws.below(lengths.end - lengths.start);
            request(&[b"SET", key.as_bytes(), &value(&key, len as usize)])
        });
        let mut client = self.server.client(2);
        let mut found = 0;
        for _ in 0..300 {
            let key = format!("{kind}{}", self.draws.below(count));
            let got: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query(&mut client).unwrap();
            if let Some(got) = got {
                assert_eq!(got, value(&key, got.len()), "{key}");
                found += 1;
            }
        }
        assert!(found > 0, "nothing of {kind} is left");
        refused
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Reads so many lines.
pub(crate) fn lines(socket: &mut Socket, count: u64) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 64 << 10];
    while (lines.len() as u64) < count {
        let got = socket.stream().read(&mut buffer).expect("an answer");
        assert!(got > 0, "the connection ended");
        for &byte in &buffer[..got] {
            match byte {
                b'\n' => lines.push(String::from_utf8(core::mem::take(&mut rest)).unwrap()),
                b'\r' => {}
                byte => rest.push(byte),
            }
        }
    }
    lines
}

const HEAD: &str = "| phase | worst resident / bound | evicted keys | ranges | clients | resident / allocated |\n| --- | --- | --- | --- | --- | --- |";

#[test]
fn keys_of_all_sizes_stay_within_the_bound() {
    keys_of_all_sizes(1);
}

pub(crate) fn keys_of_all_sizes(shards: u16) {
    let mut watched = Watched::start(shards, &["--memory-policy", "allkeys-lru"]);
    let mut table = std::io::stderr();
    writeln!(table, "{HEAD}").unwrap();
    for round in 0..rounds() {
        let oom = watched.fill(&format!("small{round}|"), share(300_000), 8..4000);
        watched.phase("values of 8 B to 4 KB, up to ten times the bound");
        let oom = oom + watched.fill(&format!("large{round}|"), share(1500), 10_000..800_000);
        watched.phase("values of 10 KB to 800 KB, as many bytes");
        let oom = oom + watched.fill(&format!("tiny{round}|"), share(1_000_000), 1..3);
        watched.phase("up to 1 000 000 tiny keys after them");
        let oom = oom + watched.fill(&format!("huge{round}|"), share(300), 500_000..2_500_000);
        watched.phase("values of 0.5 to 2.5 MB after them");
        watched.send(1, 1, |_, _| request(&[b"TABLE.SET", b"g", b"BOUNDARY", b"1"]));
        let oom = oom
            + watched.send(share(500_000), 500, |at, _| {
                let key = format!("g|user{}|{at:07}", at / 3);
                request(&[b"SET", key.as_bytes(), b"a value of its own"])
            });
        watched.phase("up to 170 000 groups of three keys");
        assert_eq!(oom, 0, "everything could be evicted");
    }
    let evicted: u64 = watched.info()["evicted_keys"].parse().unwrap();
    assert!(evicted > share(500_000), "{evicted}");
}

#[test]
fn without_eviction_writes_are_refused_and_everything_else_goes_on() {
    no_eviction(1);
}

pub(crate) fn no_eviction(shards: u16) {
    let mut watched = Watched::start(shards, &[]);
    let refused = watched.fill("k|", 60_000, 500..4000);
    assert!(refused > 20_000, "{refused}");
    watched.phase("no eviction, twice the bound");
    let mut client = watched.server.client(2);
    // A shard that is not quite full takes some more, and so does one of which a client has gone. The last key's is full.
    let mut set = |number: u32| {
        let key = format!("{{a}}{number}");
        redis::cmd("SET").arg(key).arg("x".repeat(5000)).query::<()>(&mut client)
    };
    let refused = (0..10_000).find_map(|number| set(number).err());
    assert_eq!(
        refused.expect("there is room for all of them").to_string(),
        "\"OOM\": command not allowed when used memory > 'maxmemory'."
    );
    // Shards give one another what they do not need: there may be room again for some.
    let mut transact = |number: u32| {
        let key = format!("{{a}}m{number}");
        let () = redis::cmd("MULTI").query(&mut client).unwrap();
        let set = redis::cmd("SET").arg(key).arg("x".repeat(5000)).query::<()>(&mut client);
        (set, redis::cmd("EXEC").query::<redis::Value>(&mut client))
    };
    let why =
        "Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.";
    let at_its_end = (0..10_000).any(|number| match transact(number) {
        (Ok(()), Ok(_)) => false,
        (Ok(()), Err(refused)) => {
            assert_eq!((refused.code(), refused.detail()), (Some("EXECABORT"), Some(why)));
            true
        }
        // Not even its request found room: it is lost from then on.
        (Err(refused), end) => {
            assert!(refused.to_string().contains("OOM"), "{refused}");
            assert!(end.is_err_and(|end| end.code() == Some("EXECABORT")));
            false
        }
    });
    assert!(at_its_end, "no transaction was refused for what it stores");
    let many: redis::RedisResult<Vec<String>> = redis::cmd("KEYS").arg("*").query(&mut client);
    assert!(many.is_ok_and(|keys| keys.len() > 1000));
    let all = redis::cmd("RANGE").arg("k|").arg("k}").query::<redis::Value>(&mut client);
    if shards == 1 {
        // A reply of the whole data is sent in slices, which take little memory.
        assert!(matches!(all, Ok(redis::Value::Array(pairs)) if pairs.len() > 2 * 10_000));
    } else {
        assert!(all.unwrap_err().to_string().contains("the reply has too many bytes"));
    }
    // What a request itself takes is of the same bound; but what removes is let in.
    let keys: Vec<String> = (0..5000).map(|at| format!("long{at:0>200}")).collect();
    let watch = redis::cmd("WATCH").arg(&keys).query::<()>(&mut client);
    let refused = watch.unwrap_err().to_string();
    assert!(refused.contains("OOM"), "{refused}");
    let count: redis::RedisResult<u64> = redis::cmd("DEL").arg(&keys).query(&mut client);
    assert_eq!(count, Ok(0), "{:?}", watched.info());
    let count: u64 = redis::cmd("DEL").arg("k|0").arg("k|1").arg("k|2").query(&mut client).unwrap();
    assert_eq!(count, 3);
    watched.phase("refused writes, a reply of the whole data");
    let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
    assert_eq!(watched.fill("again|", 5000, 500..4000), 0);
    watched.phase("filled again");
}

#[test]
fn timelines_come_and_go_within_the_bound() {
    timelines(1);
}

pub(crate) fn timelines(shards: u16) {
    let mut watched = Watched::start(shards, &[]);
    let mut client = watched.server.client(2);
    let () = redis::cmd("TABLE.SET").arg("t").arg("BOUNDARY").arg(1).query(&mut client).unwrap();
    let text = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    let () = redis::cmd("JOIN.ADD").arg("timeline").arg(text).query(&mut client).unwrap();
    let (users, posters) = (20_000, 100);
    watched.send(posters * 50, 500, |at, _| {
        let key = format!("p|poster{:03}|{:04}", at % posters, at / posters);
        request(&[b"SET", key.as_bytes(), &value(&key, 100)])
    });
    watched.send(users * 10, 500, |at, _| {
        let key = format!("s|user{:05}|poster{:03}", at / 10, (at * 7 + at / 10) % posters);
        request(&[b"SET", key.as_bytes(), b"1"])
    });
    for round in 0..share(12_000 * rounds()) {
        let user = watched.draws.below(users);
        let (first, last) = (format!("t|user{user:05}|"), format!("t|user{user:05}}}"));
        let got: Vec<String> = redis::cmd("RANGE").arg(first).arg(last).query(&mut client).unwrap();
        // Each of ten posters has 50 posts, and what was posted since.
        let posted = round as usize / 20 + 1;
        assert!((1000..=1000 + 2 * posted).contains(&got.len()), "{}", got.len());
        let (key, text) = (&got[0], &got[1]);
        let (_, time) = key.split_once('|').and_then(|(_, rest)| rest.split_once('|')).unwrap();
        let (time, poster) = time.split_once('|').unwrap();
        let source = format!("p|{poster}|{time}");
        assert_eq!(text.as_bytes(), value(&source, text.len()), "{key}");
        if round % 20 == 0 {
            let key =
                format!("p|poster{:03}|{:04}", round / 20 % posters, 50 + round / 20 / posters);
            let () = redis::cmd("SET").arg(&key).arg(value(&key, 100)).query(&mut client).unwrap();
        }
    }
    watched.phase("20 000 timelines of 500 posts, read at random");
    let evicted: u64 = watched.info()["evicted_ranges"].parse().unwrap();
    assert!(evicted > 100, "{evicted}");
}

#[test]
fn clients_stay_within_their_share() {
    many_clients(1);
}

pub(crate) fn many_clients(shards: u16) {
    let mut watched = Watched::start(shards, &["--memory-policy", "allkeys-lru"]);
    // Some at each shard that ask for next to nothing: they are never those that take too much.
    let mut modest: Vec<_> = (0..6).map(|_| watched.server.client(2)).collect();
    let mut look = |watched: &mut Watched, phase: &str| {
        watched.phase(phase);
        for (number, client) in modest.iter_mut().enumerate() {
            let answer = redis::cmd("PING").query::<String>(client);
            assert_eq!(answer.as_deref(), Ok("PONG"), "client {number}, {phase}");
        }
    };
    watched.fill("k|", 40_000, 500..4000);
    look(&mut watched, "data before the clients");
    let connect = |watched: &Watched| {
        let stream = TcpStream::connect(("127.0.0.1", watched.server.port)).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        stream
    };
    let mut idle: Vec<TcpStream> = (0..500).map(|_| connect(&watched)).collect();
    for stream in &mut idle {
        stream.write_all(b"PING\r\n").unwrap();
    }
    look(&mut watched, "500 clients");
    // Pipelines whose replies nobody reads; the server stops reading, and ends the worst.
    let pipeline: Vec<u8> = (0..20_000)
        .flat_map(|at| request(&[b"GET", format!("k|{}", 20_000 + at).as_bytes()]))
        .collect();
    for stream in idle.iter_mut().take(100) {
        let _ = stream.write_all(&pipeline);
    }
    look(&mut watched, "100 pipelines without a reader");
    // Requests that never end.
    for stream in idle.iter_mut().skip(100).take(100) {
        let _ = stream.write_all(b"*2\r\n$3\r\nGET\r\n$3000000\r\n");
        let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    }
    look(&mut watched, "100 requests of which a third has come");
    for stream in idle.iter_mut().skip(200).take(100) {
        let _ = stream.write_all(b"MULTI\r\n");
        let set = request(&[b"SET", b"queued", &vec![b'q'; 10_000]]);
        let _ = stream.write_all(&set.repeat(100));
    }
    look(&mut watched, "100 transactions of 1 MB");
    for stream in idle.iter_mut().skip(300).take(100) {
        let _ = stream.write_all(b"SUBSCRIBE news\r\n");
    }
    let mut publisher = watched.server.client(2);
    for _ in 0..200 {
        let () = redis::cmd("PUBLISH")
            .arg("news")
            .arg(vec![b'n'; 50_000])
            .query(&mut publisher)
            .unwrap();
    }
    look(&mut watched, "200 messages of 50 KB to 100 listeners that do not read");
    let keys: Vec<String> = (0..5000).map(|at| format!("watched{at:0>200}")).collect();
    for stream in idle.iter_mut().skip(400) {
        let mut words: Vec<&[u8]> = vec![b"WATCH"];
        words.extend(keys.iter().map(String::as_bytes));
        let _ = stream.write_all(&request(&words));
    }
    look(&mut watched, "100 clients that watch 5000 keys each");
    assert_ne!(watched.info()["evicted_clients"], "0");
    assert_eq!(watched.fill("after|", 2000, 500..4000), 0);
    look(&mut watched, "writes after all that");
}

#[test]
fn the_parts_add_up_to_what_the_system_reports() {
    parts(1);
}

pub(crate) fn parts(shards: u16) {
    let mut watched = Watched::start(shards, &["--memory-policy", "allkeys-lru"]);
    for (kind, count, lengths) in [("a|", 60_000, 100..3000), ("b", 300_000, 1..5)] {
        watched.fill(kind, count, lengths);
        let mut client = watched.server.client(2);
        let facts: HashMap<String, redis::Value> =
            redis::cmd("MEMORY").arg("STATS").query(&mut client).unwrap();
        let part = |name: &str| match facts.get(name) {
            Some(redis::Value::Int(bytes)) => *bytes as f64,
            other => panic!("{name}: {other:?}"),
        };
        let parts = [
            "values.bytes",
            "values_spare.bytes",
            "keys.bytes",
            "index.bytes",
            "updaters.bytes",
            "status_ranges.bytes",
            "streams.bytes",
            "clients.bytes",
            "startup.bytes",
            "allocator.bytes",
            "unaccounted.bytes",
        ];
        let sum: f64 = parts.iter().map(|name| part(name)).sum();
        let resident = watched.server.memory_bytes("VmRSS:") as f64;
        assert!((sum / resident - 1.0).abs() < 0.05, "{kind}: {sum} of {resident}: {facts:?}");
        let unaccounted = part("unaccounted.bytes") / resident;
        assert!(unaccounted < 0.15, "{unaccounted} of {kind} is unaccounted for: {facts:?}");
    }
}

#[test]
fn a_bound_too_small_is_refused_with_the_least() {
    let output = program().args(["serve", "--port", "0", "--memory", "2mb"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && told.contains("maxmemory is 2097152 (allowed: 0, or at least")
    );
    let least: u64 =
        told.rsplit("least ").next().unwrap().trim_end_matches([')', '\n']).parse().unwrap();
    // Nine eighths of the 30 MiB that are enough here, where the program's pages are those of a debug build.
    assert!(least <= 36 << 20, "{told}");
    // With the least, the server works.
    let server = Server::start(&["--memory", &least.to_string(), "--memory-policy", "allkeys-lru"]);
    let mut watched = Watched::watch(server);
    assert_eq!(watched.fill("k|", 10_000, 500..4000), 0);
    let mut client = watched.server.client(2);
    let set = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb").query::<()>(&mut client);
    assert!(set.unwrap_err().to_string().contains("at least"));
    let () =
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("100mb").query(&mut client).unwrap();
    let get: Vec<String> =
        redis::cmd("CONFIG").arg("GET").arg("maxmemory").query(&mut client).unwrap();
    assert_eq!(get, ["maxmemory", "104857600"]);

    // A full server can be given less: what is too much goes.
    assert_eq!(watched.fill("k|", 30_000, 500..4000), 0);
    assert!(watched.server.memory_bytes("VmRSS:") > 60 << 20);
    let bound = 40 << 20;
    let () =
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bound).query(&mut client).unwrap();
    // Nobody has to write for that; others are served meanwhile.
    while watched.server.memory_bytes("VmRSS:") > bound / 100 * 105 {
        let () = redis::cmd("PING").query(&mut client).unwrap();
    }
    let () = redis::cmd("SET").arg("k|new").arg("value").query(&mut client).unwrap();
    let new: String = redis::cmd("GET").arg("k|new").query(&mut client).unwrap();
    assert_eq!(new, "value");
}

#[test]
fn what_can_never_be_stored_evicts_nothing() {
    for policy in ["allkeys-lru", "noeviction"] {
        let mut watched = Watched::start(1, &["--memory-policy", policy]);
        // Full, or nearly: whatever had room made for it would evict.
        watched.fill("k|", 60_000, 500..600);
        let mut client = watched.server.client(2);
        let join = "v|<id>|<k> = copy k|<k> check w|<id>";
        let () = redis::cmd("JOIN.ADD").arg("v").arg(join).query(&mut client).unwrap();
        let () = redis::cmd("SET").arg("w|1").arg("").query(&mut client).unwrap();
        let shown: Vec<String> =
            redis::cmd("PREFIX").arg("v|1|").arg("LIMIT").arg(10).query(&mut client).unwrap();
        assert_eq!(shown.len(), 20);
        let figures = |watched: &Watched| {
            let info = watched.info();
            ["evicted_keys", "evicted_ranges"].map(|name| info[name].clone())
        };
        let before = figures(&watched);
        let refused: [&[&[u8]]; 3] = [
            &[b"SETBIT", b"new", b"4294967295", b"1"],
            &[b"SETRANGE", b"new", b"60000000", b"x"],
            &[b"BITFIELD", b"new", b"SET", b"u8", b"2000000000", b"1"],
        ];
        for command in refused {
            let mut asked = redis::Cmd::new();
            command.iter().for_each(|word| _ = asked.arg(*word));
            let why = asked.query::<()>(&mut client).unwrap_err().to_string();
            let is_length = ["maximum allowed", "out of range", "bytes"];
            assert!(is_length.iter().any(|words| why.contains(words)), "{why}");
        }
        assert_eq!(figures(&watched), before, "{policy}");
    }
}

/// A control group with a limit, removed at the end; `None` where this process may not make one.
struct Group(std::path::PathBuf);

impl Group {
    fn make(bytes: u64) -> Option<Self> {
        let (root, file) =
            [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]
                .into_iter()
                .find(|(root, _)| std::path::Path::new(root).join("cgroup.procs").exists())?;
        let path =
            std::path::Path::new(root).join(format!("headwater-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Self(path);
        std::fs::write(group.0.join(file), bytes.to_string()).ok()?;
        let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_control_group_of_the_bound_never_kills_it() {
    // Sockets' buffers and page tables count in the group, but are not resident memory.
    let Some(group) = Group::make(BOUND + BOUND / 8) else {
        writeln!(std::io::stderr(), "skipped: no control group can be made here").unwrap();
        return;
    };
    {
        let mut watched = Watched::start(1, &["--memory-policy", "allkeys-lru"]);
        if std::fs::write(group.0.join("cgroup.procs"), watched.server.id().to_string()).is_err() {
            writeln!(std::io::stderr(), "skipped: the server cannot be put into a group").unwrap();
            return;
        }
        watched.fill("k|", 100_000, 500..4000);
        watched.phase("in a control group, three times the bound");
    }
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_bound_that_a_store_cannot_work_with_is_refused_with_the_least() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_str().unwrap();
    let words = ["serve", "--port", "0", "--shards", "3", "--memory", "40mb", "--data", path];
    let output = program().args(words).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("(allowed: 0, or at least"), "{told}");
    let least = told.rsplit("least ").next().unwrap().trim_end_matches([')', '\n']);
    assert!((60 << 20..110 << 20).contains(&least.parse().unwrap()), "{told}");
    let memory = least;
    let server = Server::start(&["--shards", "3", "--memory", memory, "--data", path]);
    let mut client = server.client(2);
    let mut draws = Draws(3);
    // Others write at the same time, so that the store is behind: nobody is refused for that.
    let others: Vec<_> = (0..2u64).map(|writer| (writer, server.client(2))).collect();
    let others = others.into_iter().map(|(writer, mut client)| {
        std::thread::spawn(move || {
            let mut draws = Draws(100 + writer);
            for at in 0..600 {
                let key = format!("w{writer}|{}", draws.below(300));
                let value = value(&key, 1 + draws.below(60_000) as usize);
                let written = redis::cmd("SET").arg(&key).arg(value).query::<()>(&mut client);
                written.unwrap_or_else(|why| panic!("write {at} of {writer}: {why}"));
            }
        })
    });
    let others: Vec<_> = others.collect();
    for at in 0..1800 {
        let key = format!("k|{at}");
        let value = value(&key, 1 + draws.below(100_000) as usize);
        let () = redis::cmd("SET").arg(&key).arg(value).query(&mut client).unwrap();
    }
    for _ in 0..1800 {
        let key = format!("k|{}", draws.below(1800));
        let got: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut client).unwrap();
        assert_eq!(got, value(&key, got.len()), "{key}");
    }
    others.into_iter().for_each(|other| other.join().unwrap());
}
