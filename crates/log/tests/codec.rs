//! Messages and owners as bytes: what was written is read again, and anything else is refused, whatever it is.

use headwater_log::{
    BadRecord, BadValue, DrainedNodes, Epoch, FormatRange, HEADER_BYTES, LogId, LogMessage,
    LogPosition, Owner, RECORD_FORMATS, RecordHeader, RecordKind, Revision, Sequence, SnapshotMark,
    SnapshotOrder,
};

/// Draws numbers from a seed.
struct Draws(u64);

impl Draws {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The seeds of this run: `HEADWATER_FUZZ_FIRST` and `HEADWATER_FUZZ_ROUNDS`.
fn seeds() -> std::ops::Range<u64> {
    let first = number("HEADWATER_FUZZ_FIRST", 0);
    first..first + number("HEADWATER_FUZZ_ROUNDS", 20_000)
}

fn drawn(draws: &mut Draws) -> (RecordHeader, Vec<u8>) {
    let kind = [RecordKind::Claim, RecordKind::Last, RecordKind::Part][draws.below(3)];
    let (epoch, number) = (Epoch(draws.bits()), draws.bits());
    let (format, before) = ([1, 2][draws.below(2)], draws.bits());
    let header = RecordHeader { format, kind, epoch, number, before, schema: draws.bits() };
    let mut payload: Vec<u8> = (0..draws.below(80)).map(|_| draws.bits() as u8).collect();
    if draws.below(4) == 0 {
        // Some are long enough to be compressed, and differ in how short they become.
        let words: Vec<_> = (0..1 + draws.below(300)).map(|_| draws.bits().to_le_bytes()).collect();
        payload.extend((0..draws.below(800)).flat_map(|_| words[draws.below(words.len())]));
    }
    (header, payload)
}

const STREAM: &str = "HW_test_0";

#[test]
fn records_are_read_as_they_were_written() {
    let log = LogId::of(STREAM);
    let mut compressed = 0;
    for seed in seeds() {
        let mut draws = Draws(seed);
        let (header, payload) = drawn(&mut draws);
        let (bytes, checksum) = header.encode(log, &payload);
        let plain = HEADER_BYTES + payload.len();
        match bytes[7] {
            0 => assert_eq!(bytes.len(), plain, "seed {seed}"),
            _ => assert!(header.format == 2 && bytes.len() <= plain - payload.len() / 8),
        }
        compressed += usize::from(bytes[7]);
        let message = LogMessage { header, checksum, payload: (&payload).into() };
        assert_eq!(LogMessage::decode(log, RECORD_FORMATS, &bytes), Ok(message), "seed {seed}");
        let other = LogId::of("HW_test_1");
        assert_eq!(
            LogMessage::decode(other, RECORD_FORMATS, &bytes),
            Err(BadRecord::Foreign),
            "seed {seed}"
        );
    }
    assert!(compressed > 0);
}

#[test]
fn damaged_records_are_refused() {
    let log = LogId::of(STREAM);
    for seed in seeds() {
        let mut draws = Draws(seed);
        let (header, payload) = drawn(&mut draws);
        let (bytes, _) = header.encode(log, &payload);
        let mut damaged = bytes.clone();
        match draws.below(4) {
            0 => damaged.truncate(draws.below(bytes.len())),
            1 => damaged.push(draws.bits() as u8),
            2 => {
                for _ in 0..1 + draws.below(8) {
                    let at = draws.below(damaged.len());
                    damaged[at] = draws.bits() as u8;
                }
            }
            _ => {
                let at = draws.below(damaged.len());
                damaged[at] ^= 1 << draws.below(8);
            }
        }
        if damaged != bytes {
            let read = LogMessage::decode(log, RECORD_FORMATS, &damaged);
            assert!(read.is_err(), "seed {seed}: {read:?}");
        }
        let any: Vec<u8> = (0..draws.below(100)).map(|_| draws.bits() as u8).collect();
        assert!(LogMessage::decode(log, RECORD_FORMATS, &any).is_err(), "seed {seed}");
    }
}

#[test]
fn another_format_is_named() {
    let (header, payload) = drawn(&mut Draws(1));
    let (mut bytes, _) = header.encode(LogId::of(STREAM), &payload);
    bytes[4] = 3;
    let bad = LogMessage::decode(LogId::of(STREAM), RECORD_FORMATS, &bytes).unwrap_err();
    assert_eq!(bad, BadRecord::Format { format: 3, reads: FormatRange { oldest: 1, newest: 2 } });
    let told = "it has format 3, and this version of Headwater reads formats 1 to 2";
    assert_eq!(bad.to_string(), told);
    let bad = LogMessage::decode(LogId::of(STREAM), RECORD_FORMATS, b"other words").unwrap_err();
    assert_eq!(bad, BadRecord::Unknown);
}

#[test]
fn owners_are_read_as_they_were_written_or_not_at_all() {
    for seed in seeds() {
        let mut draws = Draws(seed);
        let name = |draws: &mut Draws| "n".repeat(draws.below(20));
        let owner = Owner {
            node: name(&mut draws),
            address: name(&mut draws),
            incarnation: draws.bits(),
            epoch: Epoch(draws.bits()),
            shard: draws.below(3) as u16 * 300,
            released: draws.below(2) == 1,
        };
        let mut bytes = owner.encode();
        assert_eq!(Owner::decode(&bytes), Ok(owner), "seed {seed}");
        if draws.below(3) == 0 {
            bytes.truncate(draws.below(bytes.len()));
        } else {
            let at = draws.below(bytes.len());
            bytes[at] ^= 1 << draws.below(8);
        }
        assert!(Owner::decode(&bytes).is_err(), "seed {seed}");
    }
    let mut bytes = Owner {
        node: "a".into(),
        address: "a:1".into(),
        incarnation: 1,
        epoch: Epoch(1),
        shard: 0,
        released: false,
    }
    .encode();
    bytes[4] = 9;
    assert_eq!(Owner::decode(&bytes), Err(BadValue::Format(9)));
}

/// Shortens bytes, or flips one bit of them.
fn damage(bytes: &mut Vec<u8>, draws: &mut Draws) {
    if draws.below(3) == 0 {
        bytes.truncate(draws.below(bytes.len()));
    } else {
        let at = draws.below(bytes.len());
        bytes[at] ^= 1 << draws.below(8);
    }
}

#[test]
fn what_operators_ask_for_is_read_as_it_was_written_or_not_at_all() {
    for seed in seeds() {
        let mut draws = Draws(seed);
        let mut drained = DrainedNodes::default();
        for _ in 0..draws.below(4) {
            drained.set(&"n".repeat(draws.below(20)), true);
        }
        let mut bytes = drained.encode();
        assert_eq!(DrainedNodes::decode(Revision(1), &bytes), Ok(drained), "seed {seed}");
        damage(&mut bytes, &mut draws);
        assert!(DrainedNodes::decode(Revision(1), &bytes).is_err(), "seed {seed}");
        assert_eq!(DrainedNodes::decode(Revision(0), &bytes), Ok(DrainedNodes::default()));
        let (id, sequence) = (draws.bits(), Sequence(draws.bits()));
        let order = match draws.below(2) {
            0 => SnapshotOrder::Wanted { id },
            _ => SnapshotOrder::Done { id, sequence },
        };
        let mut bytes = order.encode();
        assert_eq!(SnapshotOrder::decode(&bytes), Ok(order), "seed {seed}");
        damage(&mut bytes, &mut draws);
        assert!(SnapshotOrder::decode(&bytes).is_err(), "seed {seed}");
    }
    let mut bytes = DrainedNodes::default().encode();
    bytes[4] = 7;
    let bad = DrainedNodes::decode(Revision(1), &bytes).unwrap_err();
    assert!(bad == BadValue::Format(7) && bad.to_string().contains("format 7"), "{bad}");
    let mut bytes = SnapshotOrder::Wanted { id: 1 }.encode();
    bytes[4] = 7;
    let bad = SnapshotOrder::decode(&bytes).unwrap_err();
    assert!(bad == BadValue::Format(7) && bad.to_string().contains("format 7"), "{bad}");
}

#[test]
fn snapshots_are_read_as_they_were_named_or_not_at_all() {
    for seed in seeds() {
        let mut draws = Draws(seed);
        let position = LogPosition { sequence: Sequence(draws.bits()), checksum: draws.bits() };
        let object = SnapshotMark::object_of(position.sequence, draws.bits());
        assert_eq!(SnapshotMark::sequence_of(&object), Some(position.sequence), "seed {seed}");
        let mark = SnapshotMark { position, bytes: draws.bits(), object };
        let mut bytes = mark.encode();
        assert_eq!(SnapshotMark::decode(&bytes), Ok(mark), "seed {seed}");
        if draws.below(3) == 0 {
            bytes.truncate(draws.below(bytes.len()));
        } else {
            let at = draws.below(bytes.len());
            bytes[at] ^= 1 << draws.below(8);
        }
        assert!(SnapshotMark::decode(&bytes).is_err(), "seed {seed}");
    }
    let position = LogPosition { sequence: Sequence(1), checksum: 2 };
    let mut bytes = SnapshotMark { position, bytes: 3, object: "1-a".into() }.encode();
    bytes[4] = 7;
    let bad = SnapshotMark::decode(&bytes).unwrap_err();
    assert_eq!(bad, BadValue::Format(7));
    assert!(bad.to_string().contains("format 7"), "{bad}");
    assert_eq!(SnapshotMark::sequence_of("a-b"), None);
    assert_eq!(SnapshotMark::sequence_of("12"), None);
}
