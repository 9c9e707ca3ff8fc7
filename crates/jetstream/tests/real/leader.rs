//! Appends go straight to the server that leads the log, and in order while that changes.

use crate::servers::{SERVERS, Servers};
use crate::{ALL, Pipeline, answer, append, quiet, read, servers, settings, until};
use headwater_jetstream::{JetStream, JetStreamLog};
use headwater_log::{AppendOutcome, Log, LogAnswer, RecordKind, Sequence};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::ops::Range;

/// Logs, of which hardly all are led by the server that a node is connected to.
const LOGS: u32 = 4;
/// How many appends are under way at a time.
const WINDOW: u64 = 16;
/// How many are appended until it is looked where they go.
const BATCH: u64 = 4 * WINDOW;

/// What a connection is called that appends alone go over.
const APPENDS: &str = "headwater-appends";

/// Messages that a server has had from clients of this name; `None`: there is none.
fn messages(servers: &Servers, at: usize, name: &str) -> Option<u64> {
    let page = servers.page(at, "connz");
    let all = page["connections"].as_array()?.iter().filter(|one| one["name"] == name);
    all.filter_map(|one| one["in_msgs"].as_u64()).reduce(|a, b| a + b)
}

/// Has the stream be led by another server.
fn move_leader(servers: &Servers, stream: &str) {
    let connection = TcpStream::connect(("127.0.0.1", servers.port(0))).unwrap();
    let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}");
    let asked = format!(
        "CONNECT {{\"user\":\"hw\",\"pass\":\"secret\",\"verbose\":false}}\r\nSUB answers 1\r\nPUB {subject} answers 0\r\n\r\n"
    );
    (&connection).write_all(asked.as_bytes()).unwrap();
    let lines = BufReader::new(&connection).lines();
    let answer = lines.map(Result::unwrap).find(|line| line.contains("stepdown")).unwrap();
    assert!(answer.contains("\"success\":true"), "{answer}");
}

/// Appends what stands behind so many messages, pipelined; all of it must be stored, in order.
fn append_many(log: &mut JetStreamLog, pipeline: &mut Pipeline, behind: Range<u64>) {
    let (mut sent, mut stored) = (behind.start, behind.start);
    while stored < behind.end {
        while sent < behind.end && sent < stored + WINDOW {
            log.send(pipeline.next(RecordKind::Last, sent, b"data"));
            sent += 1;
        }
        let LogAnswer::Append { outcome, .. } = answer(log) else { panic!("nothing was read") };
        stored += 1;
        assert_eq!(outcome, AppendOutcome::Stored(Sequence(stored)));
    }
}

/// Appends until something holds; gives how many messages there are then.
fn append_until(
    log: &mut JetStreamLog,
    pipeline: &mut Pipeline,
    mut end: u64,
    mut holds: impl FnMut() -> bool,
) -> u64 {
    until("appends go to the leader", || {
        append_many(log, pipeline, end..end + BATCH);
        end += BATCH;
        holds()
    });
    end
}

#[test]
fn appends_go_straight_to_the_leader_and_stay_in_order() {
    let Some(program) = servers() else { return };
    // The first URL alone says who connects, for the connection to the leader as well.
    let users = "authorization { user: hw, password: secret }";
    let servers = Servers::start_with(program, "always", users);
    servers.wait();
    let mut settings = settings(&servers, &ALL);
    settings.servers = settings.servers.replacen("nats://", "nats://hw:secret@", 1);
    let nats = JetStream::connect(settings.clone()).unwrap();
    // Appends come to the leader from the node itself: over the connection for all else, if that leads there, or over one of their own.
    let reaches = |at: usize| {
        let mut before = 0;
        let servers = &servers;
        move || {
            let direct = messages(servers, at, APPENDS).unwrap_or(0);
            let more = direct.saturating_sub(before);
            before = direct;
            messages(servers, at, "headwater").is_some() || more >= BATCH
        }
    };
    for shard in 0..LOGS {
        let stream = settings.stream(shard);
        let mut log = nats.log(shard, quiet()).unwrap();
        let mut pipeline = Pipeline { stream: stream.clone(), epoch: 1, before: 0, number: 0 };
        let claim = pipeline.next(RecordKind::Claim, 0, b"owner");
        assert_eq!(append(&mut log, claim), AppendOutcome::Stored(Sequence(1)));
        let leader = servers.leader(&stream);
        let mut end = append_until(&mut log, &mut pipeline, 1, reaches(leader));
        // The leader is where nobody was connected before, whoever that is now.
        for _ in 0..SERVERS {
            let before = servers.leader(&stream);
            move_leader(&servers, &stream);
            until("another server leads", || servers.leader(&stream) != before);
            let leader = servers.leader(&stream);
            // A leader that has just been elected may not say what has become of the first one.
            let first = pipeline.next(RecordKind::Last, end, b"first");
            assert_eq!(append(&mut log, first), AppendOutcome::Stored(Sequence(end + 1)));
            end = append_until(&mut log, &mut pipeline, end + 1, reaches(leader));
        }
    }
    // Nothing is left of logs that nobody appends to any more.
    until("connections for appends end", || {
        (0..SERVERS).all(|at| messages(&servers, at, APPENDS).is_none())
    });
}

#[test]
fn appends_go_on_when_the_leader_and_the_connection_to_it_are_gone() {
    let Some(program) = servers() else { return };
    let mut servers = Servers::start(program, "always");
    servers.wait();
    let settings = settings(&servers, &ALL);
    let stream = settings.stream(0);
    let nats = JetStream::connect(settings.clone()).unwrap();
    let mut log = nats.log(0, quiet()).unwrap();
    let mut pipeline = Pipeline { stream: stream.clone(), epoch: 1, before: 0, number: 0 };
    let claim = pipeline.next(RecordKind::Claim, 0, b"owner");
    assert_eq!(append(&mut log, claim), AppendOutcome::Stored(Sequence(1)));
    let mut end = 1;
    for _ in 0..SERVERS {
        let leader = servers.leader(&stream);
        until("the leader is known", || {
            append_many(&mut log, &mut pipeline, end..end + BATCH);
            end += BATCH;
            (0..SERVERS).any(|at| {
                at == leader && messages(&servers, at, "headwater").is_some()
                    || messages(&servers, at, APPENDS).is_some()
            })
        });
        for expected in end..end + WINDOW {
            log.send(pipeline.next(RecordKind::Last, expected, b"lost"));
        }
        servers.kill(leader);
        // Each of them is answered, whatever has become of it.
        (0..WINDOW).for_each(|_| assert!(matches!(answer(&mut log), LogAnswer::Append { .. })));
        servers.restart(leader);
        servers.wait();
        end = read_end(&mut log);
        pipeline.before = 0;
        let again = pipeline.next(RecordKind::Claim, end, b"owner");
        let AppendOutcome::Stored(Sequence(claimed)) = append(&mut log, again) else {
            panic!("a claim at the end of the log is refused");
        };
        end = claimed;
    }
}

/// The last message of a log, when nothing more comes.
fn read_end(log: &mut JetStreamLog) -> u64 {
    let mut last = 0;
    until("the log stands still", || {
        let before = std::mem::replace(&mut last, read(log, u64::MAX >> 1).last.0);
        std::thread::sleep(std::time::Duration::from_millis(500));
        before == last && last > 0
    });
    last
}
