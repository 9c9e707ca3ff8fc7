//! Appends go straight to the server that leads the log, and in order while that changes.

use crate::servers::{SERVERS, Servers};
use crate::{ALL, Pipeline, answer, append, quiet, servers, settings, until};
use headwater_jetstream::{JetStream, JetStreamLog};
use headwater_log::{AppendOutcome, Log, LogAnswer, RecordKind, Sequence};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::ops::Range;

/// Logs, of which hardly all are led by the server that a node is connected to.
const LOGS: u32 = 4;
/// How many appends are under way at a time.
const WINDOW: u64 = 16;

/// Whether a server has a client of this name.
fn has_client(servers: &Servers, at: usize, name: &str) -> bool {
    let page = servers.page(at, "connz");
    page["connections"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name))
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
        append_many(log, pipeline, end..end + 4 * WINDOW);
        end += 4 * WINDOW;
        holds()
    });
    end
}

#[test]
fn appends_go_straight_to_the_leader_and_stay_in_order() {
    let Some(program) = servers() else { return };
    // Only the first URL says who connects.
    let users = "authorization { user: hw, password: secret }";
    let servers = Servers::start_with(program, "always", users);
    servers.wait();
    let mut settings = settings(&servers, &ALL);
    settings.servers = settings.servers.replacen("nats://", "nats://hw:secret@", 1);
    let nats = JetStream::connect(settings.clone()).unwrap();
    let main = |at: usize| has_client(&servers, at, "headwater");
    let direct = |at: usize| has_client(&servers, at, "headwater-appends");
    let is_reached = |at: usize| main(at) || direct(at);
    for shard in 0..LOGS {
        let stream = settings.stream(shard);
        let mut log = nats.log(shard, quiet()).unwrap();
        let mut pipeline = Pipeline { stream: stream.clone(), epoch: 1, before: 0, number: 0 };
        let claim = pipeline.next(RecordKind::Claim, 0, b"owner");
        assert_eq!(append(&mut log, claim), AppendOutcome::Stored(Sequence(1)));
        let leader = servers.leader(&stream);
        let mut end = append_until(&mut log, &mut pipeline, 1, || is_reached(leader));
        // The leader is where nobody was connected before, whoever that is now.
        for _ in 0..SERVERS {
            let before = servers.leader(&stream);
            move_leader(&servers, &stream);
            until("another server leads", || servers.leader(&stream) != before);
            let leader = servers.leader(&stream);
            // A leader that has just been elected may not say what has become of the first one.
            let first = pipeline.next(RecordKind::Last, end, b"first");
            assert_eq!(append(&mut log, first), AppendOutcome::Stored(Sequence(end + 1)));
            end = append_until(&mut log, &mut pipeline, end + 1, || is_reached(leader));
        }
    }
    // Once it is known that another one leads than the one that everything else goes through, there is a connection to it alone.
    assert!((0..SERVERS).filter(|at| main(*at)).count() == 1, "one connection for the rest");
}
