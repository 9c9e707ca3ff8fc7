//! Planned moves and ends of nodes, as clients see them that stay connected.

use crate::cluster::{
    ALL, Cluster, NODES, ask, connect, is_refused_by_log, text, while_nodes_keep_leases,
};
use crate::cluster_commands::{all_heard, name, operate, status};
use crate::support::PATIENCE;
use redis::Value;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// A client that counts over one connection, and checks that each of its requests was executed once.
pub(crate) struct Counting {
    counted: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Counting {
    /// Connected to this port; `pipelined` requests at once, for one key after the other.
    pub(crate) fn start(port: u16, pipelined: u64, keys: u64) -> Self {
        let (counted, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut client = connect(port);
        let (counts, ended) = (counted.clone(), ends.clone());
        let thread = thread::spawn(move || {
            let (mut round, mut counts_of) = (0, vec![0; keys as usize]);
            while !ended.load(Ordering::Relaxed) {
                let at = round % keys;
                let key = format!("n|{port}|{pipelined}|{at}");
                let mut pipeline = redis::pipe();
                pipeline.ignore_errors();
                (0..pipelined).for_each(|_| _ = pipeline.cmd("INCR").arg(&key));
                let answers: Vec<redis::RedisResult<u64>> = pipeline.query(&mut client).unwrap();
                let mut counted = false;
                for answer in answers {
                    let count = &mut counts_of[at as usize];
                    match answer {
                        Ok(answer) => {
                            *count += 1;
                            counted = true;
                            assert_eq!(answer, *count, "{key}");
                        }
                        Err(why) => assert!(is_refused_by_log(&why), "{key}: {why}"),
                    }
                }
                round += 1;
                counts.fetch_add(counted.into(), Ordering::Relaxed);
            }
        });
        Self { counted, ends, thread }
    }

    /// Waits until it has counted on.
    pub(crate) fn go_on(&self) {
        let (before, began) = (self.counted.load(Ordering::Relaxed), Instant::now());
        while self.counted.load(Ordering::Relaxed) < before + 20 {
            assert!(!self.thread.is_finished(), "it has ended");
            assert!(began.elapsed() < 2 * PATIENCE, "nothing is answered");
            sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// A client byte for byte.
struct Raw(TcpStream);

impl Raw {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until this has come, and nothing behind it.
    fn sees(&mut self, end: &str) {
        let (mut seen, mut byte) = (Vec::new(), [0]);
        while !seen.ends_with(end.as_bytes()) {
            let came = self.0.read(&mut byte);
            let shown = String::from_utf8_lossy(&seen);
            assert!(matches!(came, Ok(1)), "{came:?} instead of {end:?} behind {shown:?}");
            seen.push(byte[0]);
        }
    }
}

/// Drains the owner, and lets it own again.
pub(crate) fn drain_owner(cluster: &Cluster) -> usize {
    let owner = cluster.owner();
    let began = Instant::now();
    loop {
        let told = operate(cluster, &format!("drain {}", name(owner)));
        if told.is_well {
            break;
        }
        // The others may be loading a snapshot.
        assert!(told.errors.contains("is the last one that could own"), "{}", told.errors);
        assert!(began.elapsed() < 2 * PATIENCE, "{}", told.errors);
    }
    let told = operate(cluster, &format!("drain {} --undo", name(owner)));
    assert!(told.is_well, "{}", told.errors);
    cluster.owner_after(owner)
}

#[test]
fn connections_go_on_while_the_shard_moves_and_each_request_is_executed_once() {
    while_nodes_keep_leases(&["--cluster-snapshot-bytes", "0"], move_while_clients_count);
}

fn move_while_clients_count(cluster: &mut Cluster) {
    status(cluster, "all is well", |status, is_well| is_well && all_heard(status));
    cluster.owner();
    let ports = cluster.ports.iter();
    let counting: Vec<_> =
        ports.flat_map(|port| [1, 50].map(|many| Counting::start(*port, many, 1))).collect();
    for _ in 0..4 {
        counting.iter().for_each(Counting::go_on);
        drain_owner(cluster);
    }
    counting.iter().for_each(Counting::go_on);
    // Where the owner ends, those go on that were connected to other nodes.
    let owner = cluster.owner();
    let (ending, staying): (Vec<_>, Vec<_>) =
        counting.into_iter().enumerate().partition(|(at, _)| at / 2 == owner);
    ending.into_iter().for_each(|(_, counting)| counting.end());
    cluster.end(owner, Signal::TERM);
    staying.iter().for_each(|(_, counting)| counting.go_on());
    staying.into_iter().for_each(|(_, counting)| counting.end());
}

#[test]
fn sessions_are_what_they_were_when_the_shard_has_moved() {
    let Some(cluster) = Cluster::start_with(&["--cluster-snapshot-bytes", "0"]) else { return };
    status(&cluster, "all is well", |status, is_well| is_well && all_heard(status));
    let owner = cluster.owner();
    let set = |words: &str| ask(&mut cluster.client(owner), words).unwrap();
    set("ACL SETUSER ann on >secret +@all -flushall ~a|* &*");
    for at in 0..NODES {
        let said = |client: &mut redis::Connection, words: &str| {
            ask(client, words).unwrap_or_else(|why| panic!("node {at}: {words}: {why}"))
        };
        let mut ann = cluster.client(at);
        said(&mut ann, "AUTH ann secret");
        said(&mut ann, "CLIENT SETNAME ann1");
        let mut queues = cluster.client(at);
        said(&mut queues, "MULTI");
        said(&mut queues, &format!("SET q|{at} 1"));
        said(&mut queues, &format!("INCRBY q|{at} 2"));
        let mut watches = cluster.client(at);
        said(&mut watches, &format!("WATCH w|{at}"));
        let mut refused = cluster.client(at);
        said(&mut refused, "MULTI");
        assert!(ask(&mut refused, "NOTHING").is_err());
        let mut raw = Raw::connect(cluster.ports[at]);
        raw.send(&format!("HELLO 3\r\nCLIENT TRACKING ON\r\nGET t|{at}\r\nSUBSCRIBE news\r\n"));
        raw.sees(">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
        drain_owner(&cluster);
        // Who somebody is and may do stays.
        assert_eq!(text(&said(&mut ann, "ACL WHOAMI")), "ann");
        assert_eq!(text(&said(&mut ann, "CLIENT GETNAME")), "ann1");
        let refusal = ask(&mut ann, "SET b|1 x").unwrap_err();
        assert_eq!(refusal.code(), Some("NOPERM"), "{refusal}");
        said(&mut ann, "SET a|1 x");
        let info = text(&said(&mut ann, "CLIENT INFO"));
        let peer = info.split("addr=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert!(peer.starts_with("127.0.0.1:"), "{info}");
        // What was queued is executed, and what was watched counts as changed.
        let done = said(&mut queues, "EXEC");
        assert_eq!(done, Value::Array(vec![Value::Okay, Value::Int(3)]), "{at}");
        said(&mut watches, "MULTI");
        said(&mut watches, "PING");
        assert_eq!(said(&mut watches, "EXEC"), Value::Nil);
        said(&mut watches, "MULTI");
        said(&mut watches, "PING");
        assert_ne!(said(&mut watches, "EXEC"), Value::Nil);
        let refusal = ask(&mut refused, "EXEC").unwrap_err();
        assert_eq!(refusal.code(), Some("EXECABORT"), "{refusal}");
        // Copies count no longer, and what is listened to comes.
        raw.sees(">2\r\n$10\r\ninvalidate\r\n_\r\n");
        said(&mut queues, "PUBLISH news hello");
        raw.sees(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n");
        raw.send(&format!("GET t|{at}\r\n"));
        raw.sees("_\r\n");
        said(&mut queues, &format!("SET t|{at} 1"));
        raw.sees(&format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nt|{at}\r\n"));
        // Half a request, and the other half when the shard has moved.
        raw.send("*3\r\n$3\r\nSET\r\n$3\r\nh|1\r\n$5\r\nab");
        sleep(Duration::from_millis(20));
        drain_owner(&cluster);
        raw.send("cde\r\n*2\r\n$3\r\nGET\r\n$3\r\nh|1\r\n");
        raw.sees(">2\r\n$10\r\ninvalidate\r\n_\r\n");
        raw.sees("+OK\r\n$5\r\nabcde\r\n");
    }
}

#[test]
fn a_node_that_is_drained_and_told_to_end_at_the_same_time_ends() {
    while_nodes_keep_leases(
        &["--cluster-snapshot-bytes", "0", "--log-level", "info"],
        end_while_drained,
    );
}

fn end_while_drained(cluster: &mut Cluster) {
    let long = "x".repeat(4 << 20);
    ask(&mut cluster.client(0), &format!("SET long {long}")).unwrap();
    for shuts_down_first in [true, false] {
        status(cluster, "all is well", |status, is_well| is_well && all_heard(status));
        let owner = cluster.owner();
        let counting: Vec<_> = (0..NODES)
            .filter(|at| *at != owner)
            .map(|at| Counting::start(cluster.ports[at], 1 + u64::from(shuts_down_first), 1))
            .collect();
        counting.iter().for_each(Counting::go_on);
        // Who takes no answers is waited for at the end, which makes room for a drain meanwhile.
        let mut slow = Raw::connect(cluster.ports[owner]);
        (0..8).for_each(|_| slow.send("GET long\r\n"));
        let mut drain = crate::support::program();
        drain.args(["cluster", "drain", &name(owner), "--cluster", &cluster.nats.urls(&ALL)]);
        drain.stdout(Stdio::null()).stderr(Stdio::null());
        let mut drain = if shuts_down_first {
            let mut client = Raw::connect(cluster.ports[owner]);
            client.send("PING\r\n");
            client.sees("+PONG\r\n");
            // It takes some time to begin, and the end a second.
            let drain = drain.arg("--force").spawn().unwrap();
            client.send("SHUTDOWN\r\n");
            assert!(matches!(client.0.read(&mut [0]), Ok(0)), "it was answered");
            drain
        } else {
            let drain = drain.spawn().unwrap();
            // It knows that it is to give the shard up, and has yet to do so.
            let node = cluster.nodes[owner].as_ref().expect("it runs");
            node.await_logged("the node owns nothing from now on");
            cluster.signal(owner, Signal::TERM);
            drain
        };
        let mut node = cluster.nodes[owner].take().expect("it runs");
        let began = Instant::now();
        let ended = loop {
            match node.child.try_wait().unwrap() {
                Some(ended) => break ended,
                None => assert!(began.elapsed() < PATIENCE, "it does not end"),
            }
            sleep(Duration::from_millis(20));
        };
        assert!(ended.success() || ended.signal() == Some(Signal::TERM.as_raw()), "{ended}");
        drain.wait().unwrap();
        cluster.owner_after(owner);
        counting.iter().for_each(Counting::go_on);
        counting.into_iter().for_each(Counting::end);
        let told = operate(cluster, &format!("drain {} --undo", name(owner)));
        assert!(told.is_well, "{}", told.errors);
        cluster.begin(owner);
    }
}

#[test]
fn nobody_is_somebody_else_without_the_clusters_secret() {
    let Some(cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let mut raw = Raw::connect(cluster.ports[owner]);
    raw.send("*4\r\n$17\r\nHEADWATER.FORWARD\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n");
    raw.sees("-ERR it is no proof for the owner of this shard in this epoch\r\n");
    raw.send("PING\r\n");
    raw.sees("+PONG\r\n");
    // What it asks for is for who has just come.
    raw.send("*1\r\n$17\r\nHEADWATER.FORWARD\r\n");
    raw.sees("-ERR it is no proof for the owner of this shard in this epoch\r\n");
    raw.send("PING\r\n");
    raw.sees("+PONG\r\n");
}
