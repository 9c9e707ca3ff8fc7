//! Programs of several versions in one cluster: what each announces, what is written because of that, and who stops.

use headwater_log::{
    Announcement, AppendOutcome, AppendWindow, BadRecord, BucketAnswer, BucketRequest,
    DrainedNodes, Epoch, FormatRange, Formats, KnownProcess, LeaseTimes, LogAnswer, LogBatch,
    LogEntry, LogId, LogMessage, LogPosition, LogRequest, Monotonic, Owner, PutOutcome,
    RECORD_FORMATS, RecordHeader, RecordKind, Replica, ReplicaConfig, ReplicaEffect, ReplicaInput,
    ReplicaStop, Revision, Sequence, SnapshotMark, SnapshotOrder, StopReason, format_to_write,
    newest_for_all, why_apart,
};

const OLD: FormatRange = FormatRange::one(1);
const BOTH: FormatRange = FormatRange { oldest: 1, newest: 2 };
const NEW: FormatRange = FormatRange::one(2);

fn formats(records: FormatRange) -> Formats {
    Formats { records, ..Formats::UNANNOUNCED }
}

fn node(name: &str) -> Owner {
    Owner {
        node: name.into(),
        address: format!("{name}:7379"),
        incarnation: 7,
        epoch: Epoch(0),
        shard: 0,
        released: false,
    }
}

fn announces(records: FormatRange) -> Option<Announcement> {
    Some(Announcement { program: "0.2.0".into(), incarnation: 7, formats: formats(records) })
}

fn known(name: &str, announced: Option<Announcement>) -> KnownProcess {
    KnownProcess { owner: node(name), announced, is_heard: true }
}

#[test]
fn two_programs_agree_on_the_newest_format_that_both_read() {
    let range = |oldest, newest| FormatRange { oldest, newest };
    for (one, other, agreed) in [
        (BOTH, OLD, Some(1)),
        (NEW, OLD, None),
        (BOTH, NEW, Some(2)),
        (BOTH, BOTH, Some(2)),
        (range(1, 4), range(3, 9), Some(4)),
        (range(1, 2), range(3, 9), None),
    ] {
        assert_eq!(one.agree(other), agreed, "{one}, {other}");
        assert_eq!(other.agree(one), agreed, "{other}, {one}");
    }
    assert_eq!(
        (OLD.to_string(), BOTH.to_string()),
        ("format 1 alone".into(), "formats 1 to 2".into())
    );
}

#[test]
fn an_announcement_is_read_whatever_later_programs_add_to_it() {
    let mut announcement = announces(BOTH).unwrap();
    announcement.formats.links = FormatRange { oldest: 3, newest: 5 };
    let text = announcement.encode();
    assert_eq!(Announcement::decode(text.as_bytes()), Some(announcement.clone()));
    let more = format!("webs 1 4\n{text}colour green and blue\n\nword\n");
    assert_eq!(Announcement::decode(more.as_bytes()), Some(announcement));
    for at in 0..text.len() - 1 {
        let cut = Announcement::decode(&text.as_bytes()[..at]);
        assert!(cut.is_none_or(|it| it.formats == formats(OLD)), "{at}");
    }
    for (from, to) in [("1 2", "2 1"), ("1 2", "1"), ("life 7", "life x"), ("records", "record")] {
        let wrong = text.replacen(from, to, 1);
        assert_eq!(Announcement::decode(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(Announcement::decode(&[0xff]), None);
}

#[test]
fn a_newer_format_is_written_when_all_that_are_known_read_it() {
    let writes = |known: &[KnownProcess]| {
        format_to_write(BOTH, newest_for_all(known, |formats| formats.records), 0)
    };
    let new = || known("a", announces(BOTH));
    assert_eq!(writes(&[]), 1, "nobody knows");
    assert_eq!(writes(&[new()]), 2);
    assert_eq!(writes(&[new(), known("b", announces(NEW))]), 2);
    assert_eq!(writes(&[new(), known("b", announces(OLD))]), 1);
    assert_eq!(writes(&[new(), known("b", None)]), 1, "a program before announcements");
    let silent = KnownProcess { is_heard: false, ..known("b", announces(OLD)) };
    assert_eq!(writes(&[new(), silent]), 1, "it comes back unless it is removed");
    // The node went back to a program that announces nothing: what is there was told by another life.
    let mut before = known("b", announces(BOTH));
    before.owner.incarnation += 1;
    assert_eq!(writes(&[new(), before]), 1);
    // A program that does not know the newest one never writes it.
    assert_eq!(format_to_write(OLD, Some(2), 0), 1);
    assert_eq!(format_to_write(NEW, Some(1), 0), 2);
    // What the log has already stops whoever does not read it, so that there is no way back.
    assert_eq!(format_to_write(BOTH, Some(1), 2), 2);
    assert_eq!(format_to_write(BOTH, None, 2), 2);
}

#[test]
fn a_process_that_has_nothing_in_common_with_one_that_is_heard_is_refused() {
    let new = [known("a", announces(NEW)), known("b", announces(OLD))];
    let why = why_apart("c", &formats(OLD), &new).unwrap();
    assert_eq!(
        why,
        "this program reads format 1 alone of the cluster's records, and node 'a' (0.2.0) reads format 2 alone: upgrade by way of a version that reads both"
    );
    assert_eq!(why_apart("c", &formats(BOTH), &new), None);
    assert_eq!(why_apart("a", &formats(OLD), &new), None, "it is this process itself");
    let why = why_apart("c", &formats(NEW), &[known("b", None)]).unwrap();
    assert!(why.contains("node 'b' (an earlier version) reads format 1 alone"), "{why}");
    let silent = KnownProcess { is_heard: false, ..known("a", announces(NEW)) };
    assert_eq!(why_apart("c", &formats(OLD), &[silent]), None);
    let mut begins = known("a", announces(NEW));
    begins.owner.incarnation += 1;
    assert_eq!(why_apart("c", &formats(NEW), &[begins]), None, "what it reads is not known");
    let links = Formats { links: FormatRange::one(4), ..formats(OLD) };
    let why = why_apart("c", &links, &[known("b", None)]).unwrap();
    assert!(why.contains("format 4 alone of the cluster's links"), "{why}");
}

/// Fields behind those that are known, as a later program may append them.
#[test]
fn values_of_the_bucket_may_have_more_fields() {
    let owner = Owner { shard: 3, ..node("a") };
    let position = LogPosition { sequence: Sequence(4), checksum: 5 };
    let mark = SnapshotMark { position, bytes: 6, object: "4-a".into() };
    let order = SnapshotOrder::Wanted { id: 8 };
    let mut drained = DrainedNodes::default();
    drained.set("a", true);
    let longer = |bytes: Vec<u8>, (seed, has_state): (u64, bool)| {
        let mut bytes = [bytes, b"more".to_vec()].concat();
        let hash = headwater_base::hash::stable_hash;
        let head = if has_state { hash(seed, &bytes[..8]) } else { 0 };
        let checksum = hash(seed ^ head, &bytes[16..]);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    };
    let bytes = longer(owner.encode(), (0x6c6f_6720_6f77_6e31, true));
    assert_eq!(Owner::decode(&bytes), Ok(owner));
    let bytes = longer(mark.encode(), (0x6c6f_6720_736e_6170, false));
    assert_eq!(SnapshotMark::decode(&bytes), Ok(mark));
    let bytes = longer(order.encode(), (0x6c6f_6720_6f72_6431, true));
    assert_eq!(SnapshotOrder::decode(&bytes), Ok(order));
    let bytes = longer(drained.encode(), (0x6c6f_6720_6472_6e31, false));
    assert_eq!(DrainedNodes::decode(Revision(1), &bytes), Ok(drained));
}

/// Programs that read the same format understand each other, so its bytes stay what they are. Where this fails, records have changed: make that another
/// format (`RECORD_FORMATS`), and go on writing and reading the ones before.
#[test]
fn the_bytes_of_a_format_stay_what_they_are() {
    let (format, kind) = (1, RecordKind::Last);
    let header = RecordHeader { format, kind, epoch: Epoch(2), number: 3, before: 4, schema: 5 };
    let (bytes, checksum) = header.encode(LogId::of(STREAM), b"payload");
    assert_eq!((bytes.len(), checksum), (67, 15_783_595_733_238_551_820));
    // What a compressed payload becomes is the library's to choose; what it is read as is not.
    let (bytes, checksum) = (COMPRESSED.as_slice(), number(&COMPRESSED[8..16]));
    let read = LogMessage::decode(LogId::of(STREAM), RECORD_FORMATS, bytes).unwrap();
    let header = RecordHeader { format: 2, ..header };
    assert_eq!(read, LogMessage { header, checksum, payload: b"payload ".repeat(200).into() });
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// A message of format 2, whose payload is compressed.
const COMPRESSED: [u8; 89] = *b"HWLR\x02\x00\x01\x01\x02<\x18\x7f\x17\x07\x87;\x8d\xea\x1c2\xdeD\xfeJ\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x1d\x00\x00\x00@\x06\x00\x00\x8fpayload \x08\x00\xff\xff\xff\xff\xff\xff%`yload ";

const STREAM: &str = "HW_test_0";

/// A log, and one node of a program that reads these formats of its records.
struct Member {
    replica: Replica,
    now: u64,
    taken: Vec<Vec<u8>>,
    halted: Option<ReplicaStop>,
}

impl Member {
    fn new(name: &str, records: FormatRange) -> Self {
        let config = ReplicaConfig {
            stream: STREAM.into(),
            key: "owner.0".into(),
            node: node(name),
            times: LeaseTimes::default(),
            window: AppendWindow::default(),
            follow_millis: 50,
            made_anew: false,
            records,
        };
        let replica = Replica::new(config, LogPosition::default(), 0);
        Self { replica, now: 0, taken: Vec::new(), halted: None }
    }

    /// Goes on for five seconds; whoever wants the lease has it. All that it asks is answered at once.
    fn go_on(&mut self, wants: bool, log: &mut Vec<Vec<u8>>) {
        for _ in 0..50 {
            self.now += 100;
            let tick =
                ReplicaInput::Tick { wants, defer_millis: 0, writable_since: Some(Monotonic(0)) };
            let mut effects = Vec::new();
            self.replica.handle(tick, Monotonic(self.now), &mut effects);
            self.follow(effects, log);
        }
    }

    fn follow(&mut self, mut effects: Vec<ReplicaEffect>, log: &mut Vec<Vec<u8>>) {
        while !effects.is_empty() {
            let input = match effects.remove(0) {
                ReplicaEffect::Log(LogRequest::Read { tag, from }) => {
                    let all = log.iter().zip(1..).map(|(bytes, at)| (Sequence(at), bytes.clone()));
                    let messages = all.filter(|(at, _)| *at >= from).collect();
                    let (first, last) = (Sequence(1), Sequence(log.len() as u64));
                    let batch = Some(LogBatch { messages, first, last });
                    ReplicaInput::Log(LogAnswer::Read { tag, batch })
                }
                ReplicaEffect::Log(LogRequest::Append { id, expected, bytes }) => {
                    assert_eq!(expected, Sequence(log.len() as u64));
                    log.push(bytes);
                    let outcome = AppendOutcome::Stored(expected.next());
                    ReplicaInput::Log(LogAnswer::Append { id, outcome })
                }
                ReplicaEffect::Bucket(BucketRequest::Get { tag, .. }) => {
                    let entry = Some((Revision(0), Vec::new()));
                    ReplicaInput::Bucket(BucketAnswer::Get { tag, entry })
                }
                ReplicaEffect::Bucket(BucketRequest::Put { tag, .. }) => {
                    let outcome = PutOutcome::Written(Revision(1));
                    ReplicaInput::Bucket(BucketAnswer::Put { tag, outcome })
                }
                ReplicaEffect::Apply(LogEntry::Data { payload, .. }) => {
                    self.taken.push(payload);
                    continue;
                }
                ReplicaEffect::Halt(stop) => {
                    self.halted = Some(stop);
                    continue;
                }
                _ => continue,
            };
            self.replica.handle(input, Monotonic(self.now), &mut effects);
        }
    }

    fn append(&mut self, payload: &[u8], log: &mut Vec<Vec<u8>>) {
        let mut effects = Vec::new();
        self.replica.append(0, payload, Monotonic(self.now), &mut effects).expect("it owns");
        self.follow(effects, log);
    }
}

fn format_of(message: &[u8]) -> u16 {
    u16::from_le_bytes([message[4], message[5]])
}

/// An upgrade: the owner is new, and one node after the other becomes so.
#[test]
fn an_owner_writes_what_all_read_and_who_comes_with_less_stops_with_a_sentence() {
    let mut log = Vec::new();
    let (mut owner, mut old) = (Member::new("a", BOTH), Member::new("b", OLD));
    owner.go_on(true, &mut log);
    assert!(owner.replica.serves().is_some());
    owner.append(b"one", &mut log);
    let read_by = |members: &[KnownProcess]| newest_for_all(members, |formats| formats.records);
    owner.replica.set_newest_for_all(read_by(&[known("a", announces(BOTH)), known("b", None)]));
    owner.append(b"two", &mut log);
    assert!(log.iter().all(|message| format_of(message) == 1));
    old.go_on(false, &mut log);
    assert_eq!((&old.taken[..], &old.halted), (&[b"one".to_vec(), b"two".to_vec()][..], &None));

    let all = [known("a", announces(BOTH)), known("b", announces(BOTH))];
    owner.replica.set_newest_for_all(read_by(&all));
    owner.append(b"three", &mut log);
    assert_eq!(format_of(log.last().unwrap()), 2);
    // A node that comes later with the old program changes nothing any more.
    owner.replica.set_newest_for_all(read_by(&[known("a", announces(BOTH)), known("c", None)]));
    owner.append(b"four", &mut log);
    assert_eq!(format_of(log.last().unwrap()), 2);
    old.go_on(false, &mut log);
    let stop = old.halted.expect("it stops");
    assert_eq!(
        stop.to_string(),
        "message 4 of stream HW_test_0 cannot be read: it has format 2, and this version of Headwater reads format 1 alone"
    );
    let bad = BadRecord::Format { format: 2, reads: OLD };
    let (stream, sequence) = (STREAM.into(), Sequence(4));
    assert_eq!(stop, ReplicaStop::Log(StopReason::Bad { stream, sequence, bad }));
    assert_eq!(old.taken.len(), 2);

    // The next owner has read what the log has, so that it goes on with that: its claim is the first.
    let mut next = Member::new("b", BOTH);
    next.go_on(true, &mut log);
    assert!(next.replica.serves().is_some());
    assert_eq!(next.taken, [&b"one"[..], b"two", b"three", b"four"]);
    assert_eq!(format_of(log.last().unwrap()), 2);
    let mut late = Member::new("c", OLD);
    late.go_on(true, &mut log);
    assert!(late.halted.is_some() && late.replica.serves().is_none());
}
