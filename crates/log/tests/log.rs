//! What an appender sends and acknowledges, and what a reader takes for data.

use headwater_log::{
    AppendOutcome, AppendWindow, Appender, BadRecord, Epoch, FolderFate, LogEntry, LogId,
    LogPosition, LogReader, LogRequest, MessageId, Monotonic, Progress, RecordHeader, RecordKind,
    Sequence, StopReason, Turn,
};

const STREAM: &str = "HW_test_0";
const NOW: Monotonic = Monotonic(0);

/// Writes messages of one epoch.
struct Writer {
    epoch: u64,
    number: u64,
    before: u64,
}

impl Writer {
    fn write(&mut self, kind: RecordKind, payload: &[u8]) -> Vec<u8> {
        let (epoch, number, before) = (Epoch(self.epoch), self.number, self.before);
        let header = RecordHeader { format: 1, kind, epoch, number, before, schema: 7 };
        let (bytes, checksum) = header.encode(LogId::of(STREAM), payload);
        (self.number, self.before) = (number + 1, checksum);
        bytes
    }

    fn claim(epoch: u64, before: u64) -> (Self, Vec<u8>) {
        let mut writer = Self { epoch, number: 0, before };
        let bytes = writer.write(RecordKind::Claim, b"me");
        (writer, bytes)
    }

    fn data(&mut self, payload: &[u8]) -> Vec<u8> {
        self.write(RecordKind::Last, payload)
    }
}

/// What a reader of all messages takes for data.
fn taken(messages: &[Vec<u8>]) -> Result<Vec<String>, StopReason> {
    let mut reader = LogReader::new(STREAM, LogPosition::default());
    let mut all = Vec::new();
    for (at, bytes) in messages.iter().enumerate() {
        match reader.read(Sequence(at as u64 + 1), bytes)? {
            Some(LogEntry::Data { payload, schema, .. }) => {
                assert_eq!(schema, 7);
                all.push(String::from_utf8(payload).unwrap());
            }
            Some(LogEntry::Claim { epoch, .. }) => all.push(format!("claim {}", epoch.0)),
            None => {}
        }
    }
    Ok(all)
}

#[test]
fn late_appends_of_an_older_epoch_are_passed_over() {
    let (mut old, claim) = Writer::claim(1, 0);
    let mut log = vec![claim, old.data(b"a")];
    let (mut new, claim) = Writer::claim(2, old.before);
    let late = [old.data(b"b"), old.data(b"c")];
    log.extend([claim, late[1].clone(), new.data(b"d"), late[0].clone(), new.data(b"e")]);
    assert_eq!(taken(&log).unwrap(), ["claim 1", "a", "claim 2", "d", "e"]);
}

#[test]
fn behind_a_missing_number_the_rest_of_an_epoch_is_void() {
    let (mut owner, claim) = Writer::claim(1, 0);
    let first = owner.data(b"a");
    let before = owner.before;
    let [_refused, second, third] = [owner.data(b"b"), owner.data(b"c"), owner.data(b"d")];
    let (mut again, reclaim) = Writer::claim(2, before);
    let log = [claim, first.clone(), second, first, third, reclaim, again.data(b"e")];
    assert_eq!(taken(&log).unwrap(), ["claim 1", "a", "claim 2", "e"]);
}

#[test]
fn parts_count_with_the_last_one() {
    let (mut owner, claim) = Writer::claim(1, 0);
    let parts = [owner.write(RecordKind::Part, b"lo"), owner.write(RecordKind::Part, b"n")];
    let before = owner.before;
    let last = owner.data(b"g");
    let whole = [&[claim.clone()][..], &parts, &[last]].concat();
    assert_eq!(taken(&whole).unwrap(), ["claim 1", "long"]);
    // Without it they are nothing, and do not become part of what comes next.
    let (mut next, reclaim) = Writer::claim(2, before);
    let cut = [&[claim][..], &parts, &[reclaim, next.data(b"x")]].concat();
    assert_eq!(taken(&cut).unwrap(), ["claim 1", "claim 2", "x"]);
}

#[test]
fn what_must_not_be_data_stops_the_reader_with_a_sentence() {
    let (mut owner, claim) = Writer::claim(1, 0);
    let data = owner.data(b"a");
    let stops = |messages: &[Vec<u8>], says: &str| {
        let text = taken(messages).unwrap_err().to_string();
        assert!(text.contains("message") && text.contains(STREAM) && text.contains(says), "{text}");
    };
    let damage = |at: usize| {
        let mut bytes = data.clone();
        bytes[at] ^= 1;
        bytes
    };
    stops(&[claim.clone(), damage(30)], "2 of stream HW_test_0 cannot be read: its checksum");
    stops(&[claim.clone(), damage(4)], "format 0");
    stops(&[claim.clone(), b"words".to_vec()], "no record of Headwater");
    stops(std::slice::from_ref(&data), "nobody has claimed");
    let (mut other, other_claim) = Writer::claim(2, 5);
    stops(&[claim.clone(), other_claim], "does not follow");
    stops(&[claim.clone(), other.data(b"b")], "epoch 2, which nobody has claimed");
    let mut forked = Writer { epoch: 1, number: 1, before: 99 };
    stops(&[claim.clone(), forked.data(b"b")], "does not follow");
    let mut reader = LogReader::new(STREAM, LogPosition::default());
    reader.read(Sequence(1), &claim).unwrap();
    let hole = reader.read(Sequence(3), &data).unwrap_err();
    let (sequence, found) = (Sequence(2), Sequence(3));
    assert_eq!(hole, StopReason::Hole { stream: STREAM.into(), sequence, found });
}

#[test]
fn a_reader_goes_on_behind_a_record_that_is_still_there() {
    let (mut owner, claim) = Writer::claim(1, 0);
    let (first, second) = (owner.data(b"a"), owner.data(b"b"));
    let mut all = LogReader::new(STREAM, LogPosition::default());
    all.read(Sequence(1), &claim).unwrap();
    all.read(Sequence(2), &first).unwrap();
    let from = all.position();
    let mut reader = LogReader::new(STREAM, from);
    assert_eq!((reader.wants(), reader.unconfirmed()), (Sequence(2), Some(from)));
    assert_eq!(reader.read(Sequence(2), &first), Ok(None));
    let entry = reader.read(Sequence(3), &second).unwrap();
    assert!(matches!(entry, Some(LogEntry::Data { payload, .. }) if payload == b"b"));
    // Another record in its place.
    let mut reader = LogReader::new(STREAM, from);
    let stop = reader.read(Sequence(2), &second).unwrap_err();
    assert_eq!(stop, StopReason::Other { stream: STREAM.into(), sequence: Sequence(2) });
    let bad = LogReader::new(STREAM, from).read(Sequence(2), b"").unwrap_err();
    assert!(matches!(bad, StopReason::Bad { bad: BadRecord::Unknown, .. }));
}

#[test]
fn a_folder_is_discarded_only_where_the_log_has_another_record_in_its_place() {
    let (mut owner, claim) = Writer::claim(1, 0);
    let (first, second) = (owner.data(b"a"), owner.data(b"b"));
    let from = LogPosition { sequence: Sequence(2), checksum: owner.before };
    let fate = |sequence: u64, bytes: &[u8]| {
        let stop = LogReader::new(STREAM, from).read(Sequence(sequence), bytes).unwrap_err();
        (stop.folder(), stop.to_string())
    };
    let other = "is another one than the record";
    let (mut parted, _) = Writer::claim(1, 0);
    for (record, is) in
        [(&first, "data"), (&claim, "a claim"), (&parted.write(RecordKind::Part, b"x"), "a part")]
    {
        let (is_so, text) = fate(2, record);
        assert_eq!(is_so, FolderFate::Discarded { sequence: Sequence(2) }, "{is}");
        assert!(text.contains(other), "{text}");
    }
    assert_eq!(LogReader::new(STREAM, from).read(Sequence(2), &second), Ok(None));

    // What is damaged, of a newer format, or of another stream.
    let mut damaged = first.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut newer = first.clone();
    newer[4] ^= 0x40;
    let header = RecordHeader {
        format: 1,
        kind: RecordKind::Last,
        epoch: Epoch(1),
        number: 1,
        before: 0,
        schema: 0,
    };
    let (foreign, _) = header.encode(LogId::of("HW_another_0"), b"a");
    for (bytes, says) in [(damaged, "checksum"), (newer, "format"), (foreign, "another")] {
        let (is_so, text) = fate(2, &bytes);
        assert_eq!(is_so, FolderFate::Stays, "{text}");
        assert!(text.contains(says) && !text.contains(other), "{text}");
    }
    // What is not there, and what is purged.
    assert_eq!(fate(3, &second).0, FolderFate::Stays);
    let purged = LogReader::new(STREAM, from).begins_at(Sequence(3)).unwrap_err();
    assert_eq!(purged.folder(), FolderFate::Reloads);
}

#[test]
fn who_has_found_that_an_acknowledged_record_is_lost_tells_all_readers() {
    let (mut owner, claim) = Writer::claim(1, 0);
    let first = owner.data(b"a");
    let position = |sequence, checksum| LogPosition { sequence: Sequence(sequence), checksum };
    let at_end = position(2, owner.before);
    // Message 4 was acknowledged, and the log ended with 2 when this claim was accepted.
    let (epoch, before) = (Epoch(2), 77);
    let header =
        RecordHeader { format: 1, kind: RecordKind::Claim, epoch, number: 4, before, schema: 0 };
    let (found, _) = header.encode(LogId::of(STREAM), b"b");
    let stream = || String::from(STREAM);
    let lost = StopReason::Missing { stream: stream(), sequence: Sequence(4), found: Sequence(3) };
    // From the beginning, behind a record that is there, and where a record is lost that is older than that.
    assert_eq!(taken(&[claim, first.clone(), found.clone()]), Err(lost.clone()));
    let mut follower = LogReader::new(STREAM, at_end);
    assert_eq!(follower.read(Sequence(2), &first), Ok(None));
    assert_eq!(follower.read(Sequence(3), &found), Err(lost.clone()));
    let mut loser = LogReader::new(STREAM, position(3, 5));
    assert_eq!(loser.read(Sequence(3), &found), Err(lost.clone()));
    assert_eq!(lost.folder(), FolderFate::Stays);
    // Its claimant, when it begins again and claims again, where the record was.
    let mut claimant = LogReader::new(STREAM, position(4, before));
    let stop = claimant.read(Sequence(4), &found).unwrap_err();
    assert_eq!(stop.folder(), FolderFate::Stays, "{stop}");
}

fn appender(in_flight_bytes_max: usize, message_bytes_max: usize) -> Appender {
    let window = AppendWindow { in_flight_bytes_max, message_bytes_max, ..AppendWindow::default() };
    let claim = LogPosition { sequence: Sequence(10), checksum: 5 };
    Appender::new(LogId::of(STREAM), Epoch(3), claim, window)
}

/// What is sent now: numbers and expected sequences.
fn sent(appender: &mut Appender) -> Vec<(u64, u64)> {
    let next = std::iter::from_fn(|| appender.next(NOW));
    let of = |request| match request {
        LogRequest::Append { id, expected, .. } => (id.number, expected.0),
        other => panic!("{other:?}"),
    };
    next.map(of).collect()
}

fn id(number: u64) -> MessageId {
    MessageId { epoch: Epoch(3), number }
}

#[test]
fn a_prefix_is_acknowledged() {
    let mut appender = appender(1000, 1000);
    let turns = [b"a", b"b", b"c"].map(|payload| appender.append(0, payload));
    assert_eq!(turns, [Turn(1), Turn(2), Turn(3)]);
    assert_eq!(sent(&mut appender), [(1, 10), (2, 11), (3, 12)]);
    let stored = |sequence| AppendOutcome::Stored(Sequence(sequence));
    assert_eq!(appender.answered(id(2), stored(12)), Progress::Nothing);
    assert_eq!(appender.answered(id(2), stored(12)), Progress::Nothing);
    let Progress::Acknowledged { turn, position } = appender.answered(id(1), stored(11)) else {
        panic!("two are acknowledged");
    };
    assert_eq!((turn, position.sequence), (Turn(2), Sequence(12)));
    let other = MessageId { epoch: Epoch(2), number: 3 };
    assert_eq!(appender.answered(other, AppendOutcome::Refused), Progress::Nothing);
    assert_eq!(appender.answered(id(3), AppendOutcome::Unknown), Progress::Void);
    appender.append(0, b"d");
    assert_eq!(sent(&mut appender), []);
}

#[test]
fn a_message_that_is_stored_elsewhere_is_another_one() {
    let mut appender = appender(1000, 1000);
    appender.append(0, b"a");
    assert_eq!(sent(&mut appender), [(1, 10)]);
    let elsewhere = AppendOutcome::Stored(Sequence(9));
    assert_eq!(appender.answered(id(1), elsewhere), Progress::Void);
}

#[test]
fn so_many_bytes_are_under_way() {
    // Messages of 70 bytes: two in 150, and one where not even one has room.
    let mut appender = appender(150, 1000);
    (0..3).for_each(|_| assert!(appender.append(0, &[0; 10]) > Turn(0)));
    assert_eq!(sent(&mut appender), [(1, 10), (2, 11)]);
    assert_eq!(appender.unacknowledged_bytes(), 210);
    appender.answered(id(1), AppendOutcome::Stored(Sequence(11)));
    assert_eq!(sent(&mut appender), [(3, 12)]);
    appender.append(0, &[0; 500]);
    appender.answered(id(2), AppendOutcome::Stored(Sequence(12)));
    assert_eq!(sent(&mut appender), []);
    appender.answered(id(3), AppendOutcome::Stored(Sequence(13)));
    assert_eq!(sent(&mut appender), [(4, 13)]);
    assert!(!appender.is_overdue(Monotonic(4999)));
    assert!(appender.is_overdue(Monotonic(5000)));
}

#[test]
fn a_turn_of_several_messages_is_acknowledged_with_its_last() {
    let mut appender = appender(10_000, 100);
    assert_eq!(appender.append(0, &[1; 100]), Turn(3));
    assert_eq!(sent(&mut appender), [(1, 10), (2, 11), (3, 12)]);
    for number in 1..3 {
        let stored = AppendOutcome::Stored(Sequence(10 + number));
        assert_eq!(appender.answered(id(number), stored), Progress::Nothing);
    }
    let last = appender.answered(id(3), AppendOutcome::Stored(Sequence(13)));
    assert!(matches!(last, Progress::Acknowledged { turn: Turn(3), .. }));
    assert_eq!(appender.append(0, b""), Turn(4));
}
