//! Clients that write to a cluster of three nodes without a pause, and what must be there of what they were told.

use crate::cluster::{Cluster, ask, ask_all, connect, read, text};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::Duration;

/// What a client was told of its own keys: the last write of each that was acknowledged, and how often each counter was asked to go on.
#[derive(Default)]
pub(crate) struct Written {
    keys: HashMap<String, u64>,
    pub(crate) counted: u64,
    tried: u64,
    /// What was appended to a stream, line by line.
    pub(crate) appended: Vec<u64>,
}

/// Bytes of what is appended to a stream at once.
const LINE_BYTES: usize = 1000;

/// The numbers that were appended to a stream, in its order.
fn lines(mut read: impl FnMut(&str) -> redis::Value, stream: &str) -> Vec<u64> {
    let mut bytes = String::new();
    loop {
        let more = text(&read(&format!("STREAM.READ {stream} {} 100000000", bytes.len())));
        if more.is_empty() {
            break;
        }
        bytes.push_str(&more);
    }
    assert!(bytes.len().is_multiple_of(LINE_BYTES), "{stream} has {} bytes", bytes.len());
    bytes
        .as_bytes()
        .chunks(LINE_BYTES)
        .map(|line| std::str::from_utf8(line).unwrap().parse().unwrap())
        .collect()
}

/// Writes to keys of its own until it is told to end, through any node that is there.
fn write(me: usize, ports: &[u16], ends: &AtomicBool, written: &Mutex<Written>) {
    let (mut number, mut at) = (0, me);
    let mut connection = connect(ports[at % ports.len()]);
    while !ends.load(Ordering::Relaxed) {
        number += 1;
        let key = format!("p|w{me}|{}", number % 20);
        let wrote = ask(&mut connection, &format!("SET {key} {number}"));
        let counted = wrote.as_ref().ok().map(|_| {
            let mut written = written.lock().unwrap();
            written.keys.insert(key, number);
            written.tried += 1;
            drop(written);
            ask(&mut connection, &format!("INCR n|w{me}"))
        });
        let was_counted = counted.as_ref().is_some_and(Result::is_ok);
        written.lock().unwrap().counted += u64::from(was_counted);
        let line = format!("{number:0LINE_BYTES$}");
        let appended = ask(&mut connection, &format!("STREAM.APPEND l|w{me} {line}"));
        if appended.is_ok() {
            written.lock().unwrap().appended.push(number);
        }
        if !matches!(counted, Some(Ok(_))) || appended.is_err() {
            at += 1;
            sleep(Duration::from_millis(50));
            connection = connect(ports[at % ports.len()]);
        }
    }
}

/// Asks a node for all that was acknowledged; while it is not `quiet`, more is being written.
pub(crate) fn check(cluster: &Cluster, at: usize, all: &[Arc<Mutex<Written>>], quiet: bool) {
    let mut client = cluster.client(at);
    let mut read = |words: &str| read(cluster, at, &mut client, words);
    for (me, written) in all.iter().enumerate() {
        let written = written.lock().unwrap();
        for (key, &number) in &written.keys {
            let is: u64 = text(&read(&format!("GET {key}"))).parse().unwrap();
            assert!(is >= number, "{key}: {number} was acknowledged, and it is {is}");
            let derived = key.replacen("p|", "t|all|", 1);
            let derived = text(&read(&format!("GET {derived}")));
            let derived: u64 = derived.parse().unwrap();
            let follows = if quiet { derived == is } else { derived >= is };
            assert!(follows, "{key} is {is}, and {derived} is derived of it");
        }
        let count = text(&read(&format!("GET n|w{me}")));
        let count: u64 = count.parse().unwrap();
        let (least, most) = (written.counted, written.tried);
        assert!((least..=most).contains(&count), "{least} to {most} and not {count}");
        let lines = lines(&mut read, &format!("l|w{me}"));
        assert!(lines.is_sorted_by(|one, next| one < next), "each once, and in order");
        let is_there = |number| lines.binary_search(number).is_ok();
        let lost: Vec<&u64> = written.appended.iter().filter(|it| !is_there(it)).collect();
        assert!(lost.is_empty(), "{lost:?} of {} lines were acknowledged", written.appended.len());
    }
    // What differs from its recomputation is named.
    let verified = read("VERIFY t| t}");
    assert_eq!(verified, redis::Value::Array(Vec::new()));
}

/// Clients that write without a pause.
pub(crate) struct Writers {
    ends: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
    pub(crate) written: Vec<Arc<Mutex<Written>>>,
}

impl Writers {
    /// Four of them, and a join over what they write.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let mut client = cluster.client(0);
        let join = "t|<reader>|<w>|<k> = check s|<reader>|<w> copy p|<w>|<k>";
        let added = ask_all(&mut client, &["JOIN.ADD", "all", join]);
        assert!(added.is_ok(), "{added:?}");
        let (ends, mut threads, mut all) = (Arc::default(), Vec::new(), Vec::new());
        for me in 0..4 {
            ask(&mut client, &format!("SET s|all|w{me} 1")).unwrap();
            ask(&mut client, &format!("SET n|w{me} 0")).unwrap();
            ask(&mut client, &format!("STREAM.APPEND l|w{me} {:0LINE_BYTES$}", 0)).unwrap();
            let written = Arc::new(Mutex::new(Written::default()));
            all.push(written.clone());
            let (ports, ends) = (cluster.ports.clone(), Arc::clone(&ends));
            threads.push(thread::spawn(move || write(me, &ports, &ends, &written)));
        }
        Self { ends, threads, written: all }
    }

    /// How many writes were acknowledged, of whoever has the fewest.
    pub(crate) fn least(&self) -> u64 {
        let counted = self.written.iter().map(|written| written.lock().unwrap().counted);
        counted.min().unwrap_or_default()
    }

    /// Ends them; what each was told.
    pub(crate) fn end(self) -> Vec<Arc<Mutex<Written>>> {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|writer| writer.join().unwrap());
        self.written
    }
}
