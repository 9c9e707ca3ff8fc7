//! The log on real NATS servers: three processes on loopback, which are killed, stopped and restarted.
//!
//! Where there is no `nats-server` (`HEADWATER_NATS_SERVER`, the path, or `.ci/run`'s Python environment), a test says so and ends.
//! `HEADWATER_CLUSTER_ROUNDS` says how often servers are struck.

mod formats;
mod leader;
mod member;
#[path = "../../../../tests/nats_servers.rs"]
mod servers;

use headwater_jetstream::{JetStream, JetStreamLog, JetStreamSettings, Wake};
use headwater_log::{
    AppendOutcome, Epoch, Log, LogAnswer, LogBatch, LogEntry, LogId, LogPosition, LogReader,
    LogRequest, MessageId, RecordHeader, RecordKind, Sequence, SnapshotMark,
};
use member::Member;
use servers::{SERVERS, Servers};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

fn servers() -> Option<PathBuf> {
    let program = servers::program();
    if program.is_none() {
        let text = "skipped: there is no nats-server (HEADWATER_NATS_SERVER names one)";
        let mut out = std::io::stderr();
        writeln!(out, "{text}").unwrap();
    }
    program
}

/// How to reach these of the servers.
fn settings(servers: &Servers, which: &[usize]) -> JetStreamSettings {
    JetStreamSettings {
        servers: servers.urls(which),
        cluster: "test".into(),
        monitoring: servers.monitoring(),
        replicas: SERVERS,
        start: Some(Duration::from_secs(30)),
        ..JetStreamSettings::default()
    }
}

const ALL: [usize; SERVERS] = [0, 1, 2];

fn quiet() -> Wake {
    Arc::new(|| {})
}

/// The next answer of a log.
fn answer(log: &mut JetStreamLog) -> LogAnswer {
    let start = Instant::now();
    loop {
        if let Some(answer) = log.receive() {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no answer");
        sleep(Duration::from_millis(1));
    }
}

fn read(log: &mut JetStreamLog, from: u64) -> LogBatch {
    for tag in 0..200 {
        log.send(LogRequest::Read { tag, from: Sequence(from) });
        if let LogAnswer::Read { batch: Some(batch), .. } = answer(log) {
            return batch;
        }
        sleep(Duration::from_millis(200));
    }
    panic!("the log cannot be read");
}

/// The messages of a log up to one that is known to be there: a replica that is behind may answer first.
fn read_up_to(log: &mut JetStreamLog, last: u64) -> Vec<(Sequence, Vec<u8>)> {
    let mut messages = Vec::new();
    until("a replica has what is acknowledged", || {
        messages = read(log, 1).messages;
        messages.last().is_some_and(|(sequence, _)| *sequence >= Sequence(last))
    });
    messages
}

/// All data of a log, as a reader takes it that begins at the start, and how many messages it has passed over.
fn replay(log: &mut JetStreamLog, stream: &str) -> (Vec<Vec<u8>>, usize) {
    let mut reader = LogReader::new(stream, LogPosition::default());
    let (mut data, mut passed) = (Vec::new(), 0);
    loop {
        let batch = read(log, reader.wants().0);
        for (sequence, bytes) in &batch.messages {
            match reader.read(*sequence, bytes).unwrap() {
                Some(LogEntry::Data { payload, .. }) => data.push(payload),
                Some(LogEntry::Claim { .. }) => {}
                None => passed += 1,
            }
        }
        // A replica that is behind may have answered. Where it has nothing more, the leader has said where the end is.
        if batch.messages.is_empty() && reader.at() >= batch.last {
            return (data, passed);
        }
    }
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn servers_that_do_not_sync_are_refused() {
    let Some(program) = servers() else { return };
    let users = "authorization { user: hw, password: \"s@cret\" }";
    let servers = Servers::start_with(program, "2m", users);
    servers.wait();
    let mut settings = settings(&servers, &ALL);
    let refused = JetStream::connect(settings.clone()).unwrap_err().to_string();
    assert!(refused.contains("sync_interval: always"), "{refused}");
    settings.monitoring.clear();
    let refused = JetStream::connect(settings.clone()).unwrap_err().to_string();
    assert!(refused.contains("monitoring"), "{refused}");
    settings.unsafe_sync = true;
    let refused = JetStream::connect(settings.clone()).unwrap_err().to_string();
    assert!(refused.contains("cannot be reached"), "{refused}");
    settings.servers = settings.servers.replace("nats://", "nats://hw:s%40cret@");
    let nats = JetStream::connect(settings.clone()).unwrap();
    nats.log(0, quiet()).unwrap();
    // A stream that is there with other settings is no log.
    settings.replicas = 1;
    let refused = JetStream::connect(settings).unwrap_err().to_string();
    assert!(refused.contains("replicas 3 (must be 1)"), "{refused}");
}

/// Has openssl do something in a folder; `false`: there is none.
fn openssl(folder: &Path, arguments: &str) -> bool {
    let run = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
    run.is_ok_and(|run| run.status.success())
}

#[test]
fn servers_are_spoken_to_over_tls_with_certificates_both_ways() {
    let Some(program) = servers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let made = [
        format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"),
        format!("req {key} -keyout one.key -out one.csr -subj /CN=one"),
        "x509 -req -in one.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out one.pem -days 2 -extfile names"
            .into(),
    ];
    if !made.iter().all(|arguments| openssl(at, arguments)) {
        let mut out = std::io::stderr();
        writeln!(out, "skipped: there is no openssl that makes certificates").unwrap();
        return;
    }
    let file = |name: &str| at.join(name);
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        file("one.pem"),
        file("one.key"),
        file("ca.pem")
    );
    let servers = Servers::start_with(program, "always", &tls);
    servers.wait();
    let mut settings = settings(&servers, &ALL);
    settings.tls_ca = Some(file("ca.pem"));
    let refused = JetStream::connect(settings.clone()).unwrap_err().to_string();
    assert!(refused.contains("cannot be reached"), "{refused}");
    settings.tls_identity = Some((file("one.pem"), file("one.key")));
    settings.tls_required = true;
    let nats = JetStream::connect(settings).unwrap();
    nats.log(0, quiet()).unwrap();
}

/// Appends that were under way when another owner claimed.
struct Pipeline {
    stream: String,
    epoch: u64,
    before: u64,
    number: u64,
}

impl Pipeline {
    fn next(&mut self, kind: RecordKind, expected: u64, payload: &[u8]) -> LogRequest {
        let (epoch, before) = (Epoch(self.epoch), self.before);
        let header =
            RecordHeader { format: 1, kind, epoch, number: self.number, before, schema: 0 };
        let (bytes, checksum) = header.encode(LogId::of(&self.stream), payload);
        let id = MessageId { epoch, number: self.number };
        (self.before, self.number) = (checksum, self.number + 1);
        LogRequest::Append { id, expected: Sequence(expected), bytes }
    }
}

#[test]
fn a_start_needs_a_quorum_and_waits_for_it() {
    let Some(program) = servers() else { return };
    let mut servers = Servers::start(program, "always");
    servers.wait();
    let mut settings = settings(&servers, &ALL);
    // What is kept by three servers can only be made while no server is known to be gone.
    JetStream::connect(settings.clone()).unwrap().log(0, quiet()).unwrap();
    servers.kill(0);
    JetStream::connect(settings.clone()).unwrap().log(0, quiet()).unwrap();
    servers.kill(1);
    settings.start = Some(Duration::ZERO);
    let refused = JetStream::connect(settings.clone()).unwrap_err().to_string();
    assert!(refused.contains("cannot be read"), "{refused}");
    settings.unsafe_sync = true;
    let refused = JetStream::connect(settings.clone()).unwrap_err().to_string();
    assert!(refused.contains("bucket HW_test_owners"), "{refused}");
    settings.start = None;
    for unsafe_sync in [true, false] {
        settings.unsafe_sync = unsafe_sync;
        servers.kill(1);
        let settings = settings.clone();
        let starts = thread::spawn(|| JetStream::connect(settings)?.log(0, quiet()).map(drop));
        sleep(Duration::from_secs(1));
        assert!(!starts.is_finished(), "it begins without a quorum");
        servers.restart(1);
        starts.join().unwrap().unwrap();
    }
}

/// Appends, as often as it takes to hear what has become of it: a log whose leader has just been elected may not say so.
fn append(log: &mut JetStreamLog, request: LogRequest) -> AppendOutcome {
    for _ in 0..200 {
        log.send(request.clone());
        match answer(log) {
            LogAnswer::Append { outcome: AppendOutcome::Unknown, .. } => {
                sleep(Duration::from_millis(50));
            }
            LogAnswer::Append { outcome, .. } => return outcome,
            other => panic!("{other:?}"),
        }
    }
    panic!("nothing is said about {request:?}");
}

#[test]
fn late_appends_behind_a_claim_are_stored_and_are_no_data() {
    let Some(program) = servers() else { return };
    let servers = Servers::start(program, "always");
    servers.wait();
    let settings = settings(&servers, &ALL);
    let mut some = settings.clone();
    some.monitoring.pop();
    let refused = JetStream::connect(some).unwrap_err().to_string();
    assert!(refused.contains("of 3 NATS servers, 2 have a monitoring address"), "{refused}");
    let stream = settings.stream(0);
    let nats = JetStream::connect(settings).unwrap();
    let mut log = nats.log(0, quiet()).unwrap();
    let stored = |sequence| AppendOutcome::Stored(Sequence(sequence));
    let mut old = Pipeline { stream: stream.clone(), epoch: 1, before: 0, number: 0 };
    let claim = old.next(RecordKind::Claim, 0, b"old");
    assert_eq!(append(&mut log, claim), stored(1));
    let first = old.next(RecordKind::Last, 1, b"a");
    assert_eq!(append(&mut log, first.clone()), stored(2));
    // The same message again is not stored again.
    assert_eq!(append(&mut log, first), stored(2));
    let before = old.before;
    let late: Vec<_> = (2..6).map(|at| old.next(RecordKind::Last, at, &[at as u8])).collect();
    let mut new = Pipeline { stream: stream.clone(), epoch: 2, before, number: 0 };
    let claim = new.next(RecordKind::Claim, 2, b"new");
    assert_eq!(append(&mut log, claim), stored(3));
    let outcomes: Vec<_> = late.into_iter().map(|request| append(&mut log, request)).collect();
    assert_eq!(outcomes, [AppendOutcome::Refused, stored(4), stored(5), stored(6)]);
    // What the new owner appends now is refused; with its next claim it goes on.
    let lost = new.next(RecordKind::Last, 3, b"lost");
    assert_eq!(append(&mut log, lost), AppendOutcome::Refused);
    let before = new.before;
    let mut reader = LogReader::new(&stream, LogPosition::default());
    for (sequence, bytes) in read_up_to(&mut log, 6) {
        reader.read(sequence, &bytes).unwrap();
    }
    assert_ne!(reader.last_checksum(), before);
    let before = reader.last_checksum();
    let mut again = Pipeline { stream: stream.clone(), epoch: 3, before, number: 0 };
    let claim = again.next(RecordKind::Claim, 6, b"new");
    assert_eq!(append(&mut log, claim), stored(7));
    let part = again.next(RecordKind::Part, 7, b"par");
    assert_eq!(append(&mut log, part), stored(8));
    let last = again.next(RecordKind::Last, 8, b"ts");
    assert_eq!(append(&mut log, last), stored(9));
    let (data, passed) = replay(&mut log, &stream);
    assert_eq!((data, passed), (vec![b"a".to_vec(), b"parts".to_vec()], 4));
    // Below what a snapshot has, the log is purged; a reader that begins too early is told.
    let mut first = Sequence(0);
    until("the log is purged", || {
        log.send(LogRequest::Purge { below: Sequence(7) });
        first = read(&mut log, 1).first;
        first == Sequence(7)
    });
    let reader = LogReader::new(&stream, LogPosition::default());
    let stop = reader.begins_at(first).unwrap_err().to_string();
    assert!(stop.contains(&stream) && stop.contains("begins with 7"), "{stop}");
}

#[test]
fn a_paused_owner_with_appends_under_way_undoes_nothing() {
    let Some(program) = servers() else { return };
    // Whether a server passes on what waited in its sockets is up to it: it may have been given up by the others.
    let late = (0..5).any(|_| an_owner_is_paused(program.clone()));
    assert!(late, "no late append is ever stored behind the claim");
}

/// An owner is paused with appends under way while another takes over; whether such appends were stored behind its claim.
fn an_owner_is_paused(program: PathBuf) -> bool {
    let servers = Servers::start(program, "always");
    servers.wait();
    let stream = settings(&servers, &ALL).stream(0);
    let nats = JetStream::connect(settings(&servers, &ALL)).unwrap();
    nats.log(0, quiet()).unwrap();
    // The old owner is at a server that does not lead the log: what waits there is passed on later.
    let at = (servers.leader(&stream) + 1) % SERVERS;
    let others: Vec<usize> = ALL.into_iter().filter(|&other| other != at).collect();
    let old = Member::start("old", settings(&servers, &[at]), true);
    until("the first owner answers", || old.done().may_answer);
    let new = Member::start("new", settings(&servers, &others), true);
    (0..100).for_each(|number| old.append(number));
    until("its appends are acknowledged", || old.done().acknowledged.len() == 100);
    // It is paused, and what it has just appended waits in the sockets of a server that does not run.
    servers.stop(at);
    (100..130).for_each(|number| old.append(number));
    until("it has appended", || old.done().unacknowledged_bytes > 0);
    old.pause(true);
    until("another owner answers", || new.done().may_answer);
    servers.go_on(at);
    let mut log = nats.log(0, quiet()).unwrap();
    let start = Instant::now();
    let mut late = false;
    while !late && start.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(20));
        late = replay(&mut log, &stream).1 > 0;
    }
    old.pause(false);
    until("the old owner stops", || old.done().serves.is_none());
    (200..300).for_each(|number| new.append(number));
    until("one of the two owns for good", || {
        let owners = [&new, &old].map(|node| node.done());
        let quiet = owners.iter().all(|done| done.unacknowledged_bytes == 0);
        let same = owners[0].position == owners[1].position;
        owners.iter().filter(|done| done.may_answer).count() == 1 && quiet && same
    });
    let (old, new) = (old.done(), new.done());
    assert_eq!(old.list, new.list);
    assert_eq!(old.acknowledged, (0..100).collect::<Vec<_>>());
    check(&servers, &[old, new]);
    late
}

/// Whether the log has everything once that was acknowledged, and nodes have what the log has.
fn check(servers: &Servers, nodes: &[member::Done]) {
    let settings = settings(servers, &ALL);
    let stream = settings.stream(0);
    let nats = JetStream::connect(settings).unwrap();
    let (data, _) = replay(&mut nats.log(0, quiet()).unwrap(), &stream);
    let all: Vec<u32> =
        data.into_iter().map(|one| u32::from_le_bytes(one.try_into().unwrap())).collect();
    let once: BTreeSet<u32> = all.iter().copied().collect();
    assert_eq!(once.len(), all.len(), "something is there twice");
    for done in nodes {
        assert_eq!(done.halted, None);
        let lost: Vec<_> = done.acknowledged.iter().filter(|one| !once.contains(one)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?} of {}", all.len());
        let differs = all.iter().zip(&done.list).position(|(one, other)| one != other);
        let lengths = (all.len(), done.list.len());
        assert!(all.starts_with(&done.list), "{lengths:?} are there, which differ at {differs:?}");
    }
}

#[test]
fn snapshots_are_whole_or_none_and_older_ones_are_removed() {
    let Some(program) = servers() else { return };
    let servers = Servers::start(program, "always");
    servers.wait();
    let nats = JetStream::connect(settings(&servers, &ALL)).unwrap();
    let mut log = nats.log(0, quiet()).unwrap();
    let snapshots = nats.snapshots(0);
    let name = |sequence| SnapshotMark::object_of(Sequence(sequence), 7);
    // Longer than one message, and than what is read at a time; and empty.
    let bytes: Vec<u8> =
        (0..5_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let store = |sequence, bytes: &[u8]| {
        let mut upload = snapshots.store(&name(sequence));
        for piece in bytes.chunks(700_001) {
            upload.write(piece).unwrap();
        }
        assert_eq!(upload.finish(), Ok(bytes.len() as u64));
    };
    let fetch = |sequence| {
        let mut all = Vec::new();
        let read = snapshots.fetch(&name(sequence)).read_to_end(&mut all);
        read.map(|_| all).map_err(|why| why.to_string())
    };
    store(10, &bytes);
    store(20, b"");
    assert!(fetch(10).unwrap() == bytes, "other bytes are read than were stored");
    assert_eq!(fetch(20).unwrap(), b"");
    // Whose storing was given up is none.
    let mut upload = snapshots.store(&name(30));
    upload.write(&bytes[..1_000_000]).unwrap();
    drop(upload);
    let why = fetch(30).unwrap_err();
    assert!(why.contains("is not complete"), "{why}");

    store(40, b"the newest");
    snapshots.sweep(Sequence(40));
    let stream = "HW_test_0_snapshots";
    until("older ones are removed", || servers.subjects(stream) == Some(1));
    assert_eq!(fetch(40).unwrap(), b"the newest");
    // How long the log is, before and behind a purge.
    let bytes = vec![0; 1000];
    let mut expected = Sequence(0);
    for number in 0..20 {
        let id = MessageId { epoch: Epoch(1), number };
        let request = LogRequest::Append { id, expected, bytes: bytes.clone() };
        let AppendOutcome::Stored(sequence) = append(&mut log, request) else { panic!("{number}") };
        expected = sequence;
    }
    until("all of the log is seen", || snapshots.extent().bytes >= 20_000);
    log.send(LogRequest::Purge { below: Sequence(19) });
    until("the purge is seen", || {
        let extent = snapshots.extent();
        extent.first == Sequence(19) && (2000..4000).contains(&extent.bytes)
    });
}

#[test]
fn without_a_quorum_nothing_is_answered() {
    let Some(program) = servers() else { return };
    let mut servers = Servers::start(program, "always");
    servers.wait();
    let nodes = ["a", "b"].map(|name| Member::start(name, settings(&servers, &ALL), true));
    let owner = || nodes.iter().find(|node| node.done().may_answer);
    until("somebody owns", || owner().is_some());
    let first = owner().expect("just now there was one");
    (0..50).for_each(|number| first.append(number));
    until("its appends are acknowledged", || first.done().acknowledged.len() == 50);
    servers.kill(0);
    servers.kill(1);
    until("nobody answers", || owner().is_none());
    (50..60).for_each(|number| first.append(number));
    sleep(Duration::from_secs(3));
    assert!(owner().is_none(), "an owner answers without a quorum");
    let count = || nodes.iter().map(|node| node.done().acknowledged.len()).sum::<usize>();
    assert_eq!(count(), 50);
    servers.restart(0);
    servers.restart(1);
    until("somebody owns again", || owner().is_some());
    let next = owner().expect("just now there was one");
    (100..150).for_each(|number| next.append(number));
    until("appends are acknowledged again", || count() >= 100);
    until("all have the same", || nodes[0].done().position == nodes[1].done().position);
    check(&servers, &nodes.each_ref().map(|node| node.done()));
}

#[test]
fn killed_and_stopped_servers_lose_nothing() {
    let Some(program) = servers() else { return };
    let rounds = std::env::var("HEADWATER_CLUSTER_ROUNDS").ok();
    let rounds: usize = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    let mut servers = Servers::start(program, "always");
    servers.wait();
    let nodes = ["a", "b"].map(|name| Member::start(name, settings(&servers, &ALL), true));
    let mut number = 0;
    let mut work = |until: &mut dyn FnMut() -> bool| {
        let start = Instant::now();
        while !until() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody acknowledges anything");
            for node in &nodes {
                let done = node.done();
                if done.serves.is_some() && done.unacknowledged_bytes < 100_000 {
                    (number..number + 5).for_each(|number| node.append(number));
                    number += 5;
                }
            }
            sleep(Duration::from_millis(10));
        }
    };
    let count = || nodes.iter().map(|node| node.done().acknowledged.len()).sum::<usize>();
    let after = |millis| {
        let start = Instant::now();
        move || start.elapsed() >= Duration::from_millis(millis)
    };
    for round in 0..rounds {
        let before = count();
        work(&mut || count() >= before + 100);
        let struck = round % SERVERS;
        if round % 2 == 0 {
            servers.kill(struck);
            work(&mut after(2000));
            servers.restart(struck);
        } else {
            servers.stop(struck);
            work(&mut after(4000));
            servers.go_on(struck);
        }
        work(&mut after(500));
        servers.wait();
    }
    let before = count();
    work(&mut || count() >= before + 100);
    until("all is acknowledged", || {
        let done = nodes.each_ref().map(|node| node.done());
        done.iter().all(|one| one.unacknowledged_bytes == 0 && one.position == done[0].position)
    });
    let done = nodes.each_ref().map(|node| node.done());
    check(&servers, &done);
}

#[test]
fn a_stream_was_made_at_one_time_whoever_is_asked_and_whether_a_server_can_be_reached_is_known() {
    let Some(program) = servers() else { return };
    let mut servers = Servers::start(program, "always");
    servers.wait();
    let open = |servers: &Servers, which: usize, shard: u32| {
        let nats = JetStream::connect(settings(servers, &[which])).unwrap();
        let log = nats.log(shard, quiet()).unwrap();
        (nats, log)
    };
    let created =
        |servers: &Servers, which: usize, shard: u32| open(servers, which, shard).1.created();
    let first = created(&servers, 0, 0);
    assert!(first > 0);
    assert_eq!([1, 2].map(|which| created(&servers, which, 0)), [first; 2]);
    assert_ne!(created(&servers, 0, 1), first);
    let (_nats, log) = open(&servers, 0, 0);
    assert!(log.is_connected());
    ALL.iter().for_each(|&at| servers.kill(at));
    until("the connection is lost", || !log.is_connected());
    ALL.iter().for_each(|&at| servers.restart(at));
    servers.wait();
    until("it is there again", || log.is_connected());
    assert_eq!(ALL.map(|which| created(&servers, which, 0)), [first; 3]);
}
