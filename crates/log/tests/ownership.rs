//! Who owns a shard: leases by compare-and-set, moment by moment, and what a replica does with them.

use headwater_log::{
    AppendOutcome, AppendWindow, BadValue, BucketAnswer, BucketRequest, Contest, DrainLook,
    DrainedNodes, Epoch, FolderFate, Heartbeat, HeartbeatError, LeaseTimes, LogAnswer, LogBatch,
    LogPosition, LogReader, LogRequest, Monotonic, Owner, Ownership, OwnershipEvent, PutOutcome,
    RECORD_FORMATS, RecordHeader, RecordKind, Replica, ReplicaConfig, ReplicaEffect, ReplicaInput,
    ReplicaStop, Revision, Sequence,
};

const STREAM: &str = "HW_test_0";

fn node(name: &str, epoch: u64) -> Owner {
    Owner {
        node: name.into(),
        address: format!("{name}:7379"),
        incarnation: 1,
        epoch: Epoch(epoch),
        shard: 0,
        released: false,
    }
}

fn contest(writable: Option<u64>, log_epoch: u64) -> Contest {
    let writable_since = writable.map(Monotonic);
    Contest { wants: true, defer_millis: 0, writable_since, log_epoch: Epoch(log_epoch) }
}

/// One node's part, and the requests that it has sent.
struct Claimant(Ownership);

impl Claimant {
    fn new() -> Self {
        let times = LeaseTimes::default();
        Self(Ownership::new(node("b", 0), "owner.0".into(), times, 0))
    }

    /// Looks at `at`, and sees this at once; what it sends next.
    fn sees(&mut self, at: u64, contest: &Contest, revision: u64, owner: &Owner) -> Option<u64> {
        let request = self.0.tick(contest, Monotonic(at)).expect("it looks");
        let BucketRequest::Get { tag, .. } = request else { panic!("{request:?}") };
        let entry = Some((Revision(revision), owner.encode()));
        let answer = BucketAnswer::Get { tag, entry };
        let (event, next) = self.0.answered(&answer, contest, Monotonic(at));
        assert_eq!(event, None);
        next.map(|next| self.put(&next, revision))
    }

    /// The epoch of a write with this revision.
    fn put(&self, request: &BucketRequest, expected: u64) -> u64 {
        let BucketRequest::Put { revision, value, .. } = request else { panic!("{request:?}") };
        assert_eq!(*revision, Revision(expected));
        Owner::decode(value).unwrap().epoch.0
    }
}

/// The header of a claim with which a log begins.
const CLAIM: RecordHeader = RecordHeader {
    format: RECORD_FORMATS.oldest,
    kind: RecordKind::Claim,
    epoch: Epoch(7),
    number: 0,
    before: 0,
    schema: 0,
};

#[test]
fn a_lease_is_taken_when_it_was_unchanged_for_three_seconds_of_own_writes() {
    let owner = node("a", 4);
    let writable = contest(Some(0), 2);
    let mut claimant = Claimant::new();
    assert_eq!(claimant.sees(1000, &writable, 7, &owner), None);
    assert_eq!(claimant.sees(3999, &writable, 7, &owner), None);
    // A renewal: three seconds begin anew.
    assert_eq!(claimant.sees(4200, &writable, 8, &owner), None);
    assert_eq!(claimant.sees(7199, &writable, 8, &owner), None);
    assert_eq!(claimant.sees(7400, &writable, 8, &owner), Some(5));
}

#[test]
fn nobody_claims_while_the_bucket_cannot_be_written_nor_soon_after() {
    let owner = node("a", 4);
    let mut claimant = Claimant::new();
    assert_eq!(claimant.sees(0, &contest(None, 0), 7, &owner), None);
    assert_eq!(claimant.sees(9000, &contest(None, 0), 7, &owner), None);
    assert_eq!(claimant.sees(12_000, &contest(Some(9500), 0), 7, &owner), None);
    assert_eq!(claimant.sees(12_500, &contest(Some(9500), 0), 7, &owner), Some(5));
}

#[test]
fn a_lease_that_was_given_up_is_taken_at_once_and_above_the_logs_epoch() {
    let owner = Owner { released: true, ..node("a", 4) };
    let mut claimant = Claimant::new();
    assert_eq!(claimant.sees(0, &contest(Some(0), 9), 7, &owner), Some(10));
}

#[test]
fn a_node_that_should_not_take_the_lease_waits_longer() {
    let defers = Contest { defer_millis: 1000, ..contest(Some(0), 9) };
    let (owner, released) = (node("a", 4), Owner { released: true, ..node("a", 4) });
    let mut claimant = Claimant::new();
    assert_eq!(claimant.sees(1000, &defers, 7, &owner), None);
    assert_eq!(claimant.sees(4999, &defers, 7, &owner), None);
    // Where the node comes to be the first one, it takes the lease at once.
    assert_eq!(claimant.sees(5199, &contest(Some(0), 9), 7, &owner), Some(10));
    let mut claimant = Claimant::new();
    assert_eq!(claimant.sees(1000, &defers, 7, &owner), None);
    assert_eq!(claimant.sees(5000, &defers, 7, &owner), Some(10));
    let mut claimant = Claimant::new();
    assert_eq!(claimant.sees(1000, &defers, 7, &released), None);
    assert_eq!(claimant.sees(1999, &defers, 7, &released), None);
    assert_eq!(claimant.sees(2200, &defers, 7, &released), Some(10));
}

/// An owner that has taken the lease at 5000 and was told so at 5100.
fn owner() -> Claimant {
    let mut claimant = Claimant::new();
    let writable = contest(Some(0), 0);
    assert_eq!(claimant.sees(1000, &writable, 7, &node("a", 4)), None);
    let taken = claimant.0.tick(&writable, Monotonic(5000)).unwrap();
    let BucketRequest::Get { tag, .. } = taken else { panic!("{taken:?}") };
    let entry = Some((Revision(7), node("a", 4).encode()));
    let get = BucketAnswer::Get { tag, entry };
    let (_, put) = claimant.0.answered(&get, &writable, Monotonic(5000));
    let Some(BucketRequest::Put { tag, .. }) = put else { panic!("{put:?}") };
    let written = BucketAnswer::Put { tag, outcome: PutOutcome::Written(Revision(8)) };
    let (event, _) = claimant.0.answered(&written, &writable, Monotonic(5100));
    assert_eq!(event, Some(OwnershipEvent::Taken(Epoch(5))));
    claimant
}

#[test]
fn an_owner_answers_for_two_seconds_from_sending_what_succeeded() {
    let mut owner = owner();
    let writable = contest(Some(0), 5);
    assert!(owner.0.may_answer(Monotonic(6999)));
    assert!(!owner.0.may_answer(Monotonic(7000)));
    assert_eq!(owner.0.tick(&writable, Monotonic(5999)), None);
    let renewal = owner.0.tick(&writable, Monotonic(6000)).unwrap();
    assert_eq!(owner.put(&renewal, 8), 5);
    let BucketRequest::Put { tag, .. } = renewal else { panic!("{renewal:?}") };
    // Its outcome is unknown: it is tried again with the same revision, and refused, since it was written.
    let unknown = BucketAnswer::Put { tag, outcome: PutOutcome::Unknown };
    assert_eq!(owner.0.answered(&unknown, &writable, Monotonic(6500)), (None, None));
    let again = owner.0.tick(&writable, Monotonic(6700)).unwrap();
    assert_eq!(owner.put(&again, 8), 5);
    let BucketRequest::Put { tag, .. } = again else { panic!("{again:?}") };
    let refused = BucketAnswer::Put { tag, outcome: PutOutcome::Refused };
    assert_eq!(owner.0.answered(&refused, &writable, Monotonic(6800)), (None, None));
    assert!(!owner.0.may_answer(Monotonic(7000)));
    // It sees its own write, renews that, and answers from then on.
    assert_eq!(owner.sees(7000, &writable, 9, &node("b", 5)), None);
    let renewal = owner.0.tick(&writable, Monotonic(7200)).unwrap();
    assert_eq!(owner.put(&renewal, 9), 5);
    let BucketRequest::Put { tag, .. } = renewal else { panic!("{renewal:?}") };
    let written = BucketAnswer::Put { tag, outcome: PutOutcome::Written(Revision(10)) };
    assert_eq!(owner.0.answered(&written, &writable, Monotonic(7300)), (None, None));
    assert!(owner.0.may_answer(Monotonic(9199)));
    assert!(!owner.0.may_answer(Monotonic(9200)));
}

#[test]
fn an_owner_that_sees_another_one_has_lost_the_shard() {
    let mut owner = owner();
    let writable = contest(Some(0), 5);
    let renewal = owner.0.tick(&writable, Monotonic(6000)).unwrap();
    let BucketRequest::Put { tag, .. } = renewal else { panic!("{renewal:?}") };
    let refused = BucketAnswer::Put { tag, outcome: PutOutcome::Refused };
    owner.0.answered(&refused, &writable, Monotonic(6100));
    let look = owner.0.tick(&writable, Monotonic(6100)).unwrap();
    let BucketRequest::Get { tag, .. } = look else { panic!("{look:?}") };
    let answer = BucketAnswer::Get { tag, entry: Some((Revision(9), node("c", 6).encode())) };
    let (event, _) = owner.0.answered(&answer, &writable, Monotonic(6200));
    assert_eq!(event, Some(OwnershipEvent::Lost));
    assert!(!owner.0.may_answer(Monotonic(6200)));
}

#[test]
fn two_processes_of_one_name_do_not_both_go_on() {
    let times = LeaseTimes::default();
    let other = Owner { incarnation: 2, ..node("a", 0) };
    let mut second = Heartbeat::new(node("a", 0), times, 0);
    let mut sees = |at: u64, revision: u64| {
        let request = second.tick(Monotonic(at)).expect("it looks");
        let BucketRequest::Get { tag, .. } = request else { panic!("{request:?}") };
        let entry = Some((Revision(revision), other.encode()));
        second.answered(&BucketAnswer::Get { tag, entry }, Monotonic(at))
    };
    assert_eq!(sees(0, 5), Ok(()));
    // One change may be a late write of a process that has ended.
    assert_eq!(sees(1000, 6), Ok(()));
    let taken = sees(2000, 7).unwrap_err();
    assert!(matches!(taken, HeartbeatError::NameTaken { .. }), "{taken}");
    assert!(taken.to_string().contains("'a'") && taken.to_string().contains("a:7379"), "{taken}");
}

/// A replica that has read up to `position` before, and is told answers by hand.
struct Told {
    replica: Replica,
    effects: Vec<ReplicaEffect>,
    now: u64,
    /// A key of the bucket that it waits for.
    looks: Option<u64>,
}

impl Told {
    fn new(position: LogPosition) -> Self {
        Self::of(position, false)
    }

    /// The same; `made_anew`: what it has read is of an earlier log.
    fn of(position: LogPosition, made_anew: bool) -> Self {
        let config = ReplicaConfig {
            stream: STREAM.into(),
            key: "owner.0".into(),
            node: node("b", 0),
            times: LeaseTimes::default(),
            window: AppendWindow::default(),
            follow_millis: 100,
            made_anew,
            records: RECORD_FORMATS,
        };
        Self {
            replica: Replica::new(config, position, 0),
            effects: Vec::new(),
            now: 0,
            looks: None,
        }
    }

    /// Runs until it appends its claim, to a log that ends with `last`, which has what `messages` says; the claim's request.
    fn claims(&mut self, messages: &[(Sequence, Vec<u8>)], last: u64) -> LogRequest {
        self.runs(messages, (1, last)).expect("it claims")
    }

    /// The same with a log that begins elsewhere; or why it stops.
    fn runs(
        &mut self,
        messages: &[(Sequence, Vec<u8>)],
        (first, last): (u64, u64),
    ) -> Result<LogRequest, ReplicaStop> {
        for _ in 0..100 {
            self.now += 100;
            let tick = ReplicaInput::Tick {
                wants: true,
                defer_millis: 0,
                writable_since: Some(Monotonic(0)),
            };
            self.replica.handle(tick, Monotonic(self.now), &mut self.effects);
            while !self.effects.is_empty() {
                let input = match self.effects.remove(0) {
                    ReplicaEffect::Log(LogRequest::Read { tag, from }) => {
                        let some = messages.iter().filter(|one| one.0 >= from).cloned();
                        let (first, last) = (Sequence(first), Sequence(last));
                        let batch = LogBatch { messages: some.collect(), first, last };
                        ReplicaInput::Log(LogAnswer::Read { tag, batch: Some(batch) })
                    }
                    ReplicaEffect::Log(request) => return Ok(request),
                    ReplicaEffect::Halt(stop) => return Err(stop),
                    ReplicaEffect::Bucket(BucketRequest::Get { tag, .. }) => {
                        let entry = Some((Revision(0), Vec::new()));
                        ReplicaInput::Bucket(BucketAnswer::Get { tag, entry })
                    }
                    ReplicaEffect::Bucket(BucketRequest::Put { tag, .. }) => {
                        let outcome = PutOutcome::Written(Revision(1));
                        ReplicaInput::Bucket(BucketAnswer::Put { tag, outcome })
                    }
                    _ => continue,
                };
                self.replica.handle(input, Monotonic(self.now), &mut self.effects);
            }
        }
        panic!("it does not claim");
    }

    fn answer(&mut self, request: &LogRequest, outcome: AppendOutcome) {
        let LogRequest::Append { id, .. } = request else { panic!("{request:?}") };
        let answer = ReplicaInput::Log(LogAnswer::Append { id: *id, outcome });
        self.replica.handle(answer, Monotonic(self.now), &mut self.effects);
    }
}

#[test]
fn a_log_is_claimed_behind_all_that_was_read() {
    let header = CLAIM;
    let (bytes, _) = header.encode(headwater_log::LogId::of(STREAM), b"a");
    let mut told = Told::new(LogPosition::default());
    let claim = told.claims(&[(Sequence(1), bytes)], 1);
    let LogRequest::Append { id, expected, .. } = &claim else { panic!("{claim:?}") };
    assert_eq!((id.epoch, id.number, *expected), (Epoch(8), 0, Sequence(1)));
    assert_eq!(told.replica.serves(), None);
    told.answer(&claim, AppendOutcome::Stored(Sequence(2)));
    assert_eq!(told.replica.serves(), Some(Epoch(8)));
    assert!(told.replica.may_answer(Monotonic(told.now)));
    assert!(!told.replica.may_answer(Monotonic(told.now + 2000)));
}

#[test]
fn a_log_is_followed_by_who_was_at_its_end_just_now() {
    let header = CLAIM;
    let (claim, before) = header.encode(headwater_log::LogId::of(STREAM), b"a");
    let node = node("b", 0);
    let config = ReplicaConfig {
        stream: STREAM.into(),
        key: "owner.0".into(),
        node,
        times: LeaseTimes::default(),
        window: AppendWindow::default(),
        follow_millis: 50,
        made_anew: false,
        records: RECORD_FORMATS,
    };
    let mut replica = Replica::new(config, LogPosition::default(), 0);
    let mut effects = Vec::new();
    let mut read = |now: u64, messages: Vec<(Sequence, Vec<u8>)>| {
        let tick = ReplicaInput::Tick { wants: false, defer_millis: 0, writable_since: None };
        replica.handle(tick, Monotonic(now), &mut effects);
        let tag = effects.drain(..).rev().find_map(|effect| match effect {
            ReplicaEffect::Log(LogRequest::Read { tag, .. }) => Some(tag),
            _ => None,
        });
        let batch = LogBatch { messages, first: Sequence(1), last: Sequence(2) };
        let answer = LogAnswer::Read { tag: tag.expect("it reads"), batch: Some(batch) };
        replica.handle(ReplicaInput::Log(answer), Monotonic(now), &mut effects);
        assert_eq!(replica.read_last(), Some(Monotonic(now)));
        let lag = (replica.lag_records(), replica.was_at_end());
        ([now, now + 1999, now + 2000].map(|at| replica.followed(Monotonic(at)).0), lag)
    };
    // The claim of an owner, behind which there is more.
    assert_eq!(read(1000, vec![(Sequence(1), claim)]), ([0, 0, 0], (1, None)));
    let header = RecordHeader { epoch: Epoch(9), before, ..header };
    let (claim, _) = header.encode(headwater_log::LogId::of(STREAM), b"c");
    assert_eq!(read(2000, vec![(Sequence(2), claim)]), ([9, 9, 0], (0, Some(Monotonic(2000)))));
}

#[test]
fn an_acknowledged_record_that_is_missing_stops_the_shard() {
    let position = LogPosition { sequence: Sequence(5), checksum: 1 };
    let mut told = Told::new(position);
    // The server that answers may only be behind: that the claim is accepted there shows that it is not.
    let claim = told.claims(&[], 3);
    let LogRequest::Append { expected, bytes, .. } = &claim else { panic!("{claim:?}") };
    assert_eq!(*expected, Sequence(3));
    let found = bytes.clone();
    told.answer(&claim, AppendOutcome::Stored(Sequence(4)));
    let Some(ReplicaEffect::Halt(stop)) = told.effects.last() else {
        panic!("{told:?}", told = told.effects)
    };
    let text = stop.to_string();
    assert!(text.contains("message 5 of stream HW_test_0 was acknowledged and is lost"), "{text}");
    assert_eq!(told.replica.serves(), None);
    let ReplicaStop::Log(stop) = stop else { panic!("{stop:?}") };
    assert_eq!(stop.folder(), FolderFate::Stays);
    // Another node, whose folder ends there, does not take the claim for another record in the place of its own.
    let position = LogPosition { sequence: Sequence(4), checksum: 2 };
    let other = LogReader::new(STREAM, position).read(Sequence(4), &found).unwrap_err();
    assert_eq!(other, *stop);
}

/// A look at whether node `b` is drained, with what it was answered.
fn look(drain: &mut DrainLook, at: u64, drained: &[&str]) {
    let request = drain.tick(Monotonic(at)).expect("it looks");
    let BucketRequest::Get { tag, key } = request else { panic!("{request:?}") };
    assert_eq!(key, DrainedNodes::KEY);
    let mut nodes = DrainedNodes::default();
    drained.iter().for_each(|node| assert!(nodes.set(node, true)));
    let entry = Some((Revision(at + 1), nodes.encode()));
    assert_eq!(drain.answered(&BucketAnswer::Get { tag, entry }, Monotonic(at)), Ok(()));
}

#[test]
fn a_node_may_own_once_it_has_read_that_it_is_not_drained() {
    let mut drain = DrainLook::new("b", LeaseTimes::default(), 0);
    assert!(!drain.may_own() && !drain.is_drained());
    let Some(BucketRequest::Get { tag, .. }) = drain.tick(Monotonic(0)) else { panic!("it looks") };
    let failed = BucketAnswer::Get { tag, entry: None };
    assert_eq!(drain.answered(&failed, Monotonic(10)), Ok(()));
    assert!(!drain.may_own());
    look(&mut drain, 210, &["a", "bb"]);
    assert!(drain.may_own());
    look(&mut drain, 1210, &["a", "b"]);
    assert!(drain.is_drained() && !drain.may_own());
    // What cannot be read changes nothing.
    let Some(BucketRequest::Get { tag, .. }) = drain.tick(Monotonic(2210)) else {
        panic!("it looks")
    };
    let entry = Some((Revision(9000), b"x".to_vec()));
    let bad = drain.answered(&BucketAnswer::Get { tag, entry }, Monotonic(2210));
    assert_eq!(bad, Err(BadValue::Damaged));
    assert!(drain.is_drained());
    look(&mut drain, 3210, &[]);
    assert!(drain.may_own());
}

#[test]
fn what_is_drained_is_no_other_whether_it_is_a_node_or_one_of_its_processes() {
    let drained = DrainedNodes::default();
    let heard = ["a/0", "b/0"].map(String::from);
    assert_eq!(drained.others("a", &heard), ["b/0"]);
    assert_eq!(drained.others("a/0", &heard), ["b/0"]);
    assert_eq!(drained.others("b/0", &heard[1..]), Vec::<&str>::new());
    let mut drained = drained;
    drained.set("a", true);
    assert!(drained.contains("a/0") && drained.contains("a") && !drained.contains("ab/0"));
    assert_eq!(drained.others("b", &heard), Vec::<&str>::new());
}

#[test]
fn whoever_is_left_to_own_is_heard_and_not_drained() {
    let heard = ["a", "b", "c"].map(String::from);
    let mut drained = DrainedNodes::default();
    assert_eq!(drained.others("a", &heard), ["b", "c"]);
    assert!(drained.set("b", true) && !drained.set("b", true));
    assert_eq!(drained.others("a", &heard), ["c"]);
    assert!(drained.others("a", &heard[..2]).is_empty());
    assert!(drained.set("b", false) && !drained.set("b", false));
    assert_eq!(drained.others("c", &heard), ["a", "b"]);
}

#[test]
fn a_claimant_that_is_drained_gives_its_lease_up_and_an_owner_is_asked_to_leave_once() {
    let mut told = Told::new(LogPosition::default());
    let claim = told.claims(&[], 0);
    let tick =
        ReplicaInput::Tick { wants: false, defer_millis: 0, writable_since: Some(Monotonic(0)) };
    told.replica.handle(tick.clone(), Monotonic(told.now), &mut told.effects);
    let gives_up = |effect: &ReplicaEffect| {
        let ReplicaEffect::Bucket(BucketRequest::Put { value, .. }) = effect else { return false };
        Owner::decode(value).is_ok_and(|owner| owner.released)
    };
    assert!(told.effects.iter().any(gives_up), "{:?}", told.effects);
    // The claim is accepted too late.
    told.answer(&claim, AppendOutcome::Stored(Sequence(1)));
    assert_eq!(told.replica.serves(), None);

    let mut told = Told::new(LogPosition::default());
    let claim = told.claims(&[], 0);
    told.answer(&claim, AppendOutcome::Stored(Sequence(1)));
    for _ in 0..2 {
        told.replica.handle(tick.clone(), Monotonic(told.now), &mut told.effects);
    }
    let leaves = told.effects.iter().filter(|effect| **effect == ReplicaEffect::Leave).count();
    assert_eq!(leaves, 1);
    // It answers meanwhile what is under way.
    assert!(told.replica.may_answer(Monotonic(told.now)));
    told.replica.release(Monotonic(told.now), &mut told.effects);
    assert!(!told.replica.may_answer(Monotonic(told.now)));
}

/// A replica that serves at 5000; its lease was renewed then.
fn serving() -> Told {
    let mut told = Told::new(LogPosition::default());
    told.now = 4900;
    let claim = told.claims(&[], 0);
    told.answer(&claim, AppendOutcome::Stored(Sequence(1)));
    told.effects.clear();
    assert!(told.replica.serves().is_some());
    told
}

impl Told {
    /// Time passes; the tag of a write to the bucket that it sends then, if it does.
    fn passes(&mut self, millis: u64) -> Option<u64> {
        self.now += millis;
        let tick =
            ReplicaInput::Tick { wants: true, defer_millis: 0, writable_since: Some(Monotonic(0)) };
        self.replica.handle(tick, Monotonic(self.now), &mut self.effects);
        self.put()
    }

    /// The tag of a write to the bucket among what it wants to be sent; what it looks at is answered by the next [`Told::looked`].
    fn put(&mut self) -> Option<u64> {
        let mut tag = None;
        for effect in self.effects.drain(..) {
            match effect {
                ReplicaEffect::Bucket(BucketRequest::Put { tag: put, .. }) => tag = Some(put),
                ReplicaEffect::Bucket(BucketRequest::Get { tag: get, .. }) => {
                    self.looks = Some(get)
                }
                _ => {}
            }
        }
        tag
    }

    /// What it looks at is there, and nobody's; whether it takes it.
    fn looked(&mut self) -> bool {
        let Some(tag) = self.looks.take() else { return false };
        let entry = Some((Revision(0), Vec::new()));
        let answer = ReplicaInput::Bucket(BucketAnswer::Get { tag, entry });
        self.replica.handle(answer, Monotonic(self.now), &mut self.effects);
        self.put().is_some()
    }

    fn written(&mut self, tag: u64, outcome: PutOutcome) {
        let answer = ReplicaInput::Bucket(BucketAnswer::Put { tag, outcome });
        self.replica.handle(answer, Monotonic(self.now), &mut self.effects);
    }

    /// Whether it takes writes, and answers reads.
    fn takes(&self) -> (bool, bool) {
        let now = Monotonic(self.now);
        (!self.replica.is_silent(now), self.replica.may_answer(now))
    }
}

#[test]
fn an_owner_whose_renewals_are_not_answered_takes_no_writes_while_it_answers_reads() {
    for outcome in [None, Some(PutOutcome::Unknown)] {
        let mut told = serving();
        assert_eq!((told.passes(999), told.takes()), (None, (true, true)));
        let tag = told.passes(1).expect("it renews its lease");
        outcome.iter().for_each(|outcome| told.written(tag, *outcome));
        told.passes(499);
        assert_eq!(told.takes(), (true, true));
        told.passes(1);
        assert_eq!(told.takes(), (false, true), "{outcome:?}");
        told.passes(500);
        assert_eq!(told.takes(), (false, false));
        // It is over with the first success.
        let tag = (0..20).find_map(|_| told.passes(100)).expect("it tries again");
        told.passes(100);
        assert_eq!(told.takes(), (false, false));
        told.written(tag, PutOutcome::Written(Revision(2)));
        assert_eq!(told.takes(), (true, true));
    }
}

#[test]
fn an_owner_whose_appends_are_not_answered_takes_no_more_of_them() {
    let mut told = serving();
    let append = |told: &mut Told| {
        let (now, effects) = (Monotonic(told.now), &mut told.effects);
        told.replica.append(0, b"x", now, effects).expect("it serves");
        let appended = effects.drain(..).find_map(|effect| match effect {
            ReplicaEffect::Log(request) => Some(request),
            _ => None,
        });
        appended.expect("there is room")
    };
    let first = append(&mut told);
    told.passes(400);
    let second = append(&mut told);
    told.passes(99);
    assert_eq!(told.takes(), (true, true));
    told.passes(1);
    assert_eq!(told.takes(), (false, true));
    // What is behind it has had its time from then on.
    told.answer(&first, AppendOutcome::Stored(Sequence(2)));
    assert_eq!(told.takes(), (true, true));
    told.passes(499);
    assert_eq!(told.takes(), (true, true));
    assert!(told.passes(1).is_some(), "its lease is due");
    assert_eq!(told.takes(), (false, true));
    told.answer(&second, AppendOutcome::Stored(Sequence(3)));
    assert_eq!(told.takes(), (true, true));
}

#[test]
fn an_owner_that_has_lost_its_connection_knows_it_at_once_until_it_has_renewed_its_lease() {
    let mut told = serving();
    told.passes(200);
    told.replica.disconnected(Monotonic(told.now));
    assert_eq!(told.takes(), (false, true));
    // Not only when the next renewal would be due.
    let tag = told.passes(200).expect("it tries to renew its lease");
    told.written(tag, PutOutcome::Unknown);
    assert_eq!(told.takes(), (false, true));
    let tag = told.passes(200).expect("it tries again");
    assert_eq!(told.takes(), (false, true));
    told.written(tag, PutOutcome::Written(Revision(2)));
    assert_eq!(told.takes(), (true, true));
}

#[test]
fn a_node_whose_folder_is_of_an_earlier_stream_owns_nothing_until_its_record_was_found() {
    let header = CLAIM;
    let log = headwater_log::LogId::of(STREAM);
    let ((found, checksum), (other, _)) = (header.encode(log, b"a"), header.encode(log, b"b"));
    let position = LogPosition { sequence: Sequence(5), checksum };
    let stops = |messages: &[(Sequence, Vec<u8>)], has| {
        let mut told = Told::of(position, true);
        let Err(ReplicaStop::Log(stop)) = told.runs(messages, has) else { panic!("it goes on") };
        assert!(!told.replica.has_confirmed());
        (stop.folder(), stop.to_string())
    };
    // Where the log ends before, nobody is told that a record is lost: it is of another one.
    for has in [(0, 0), (1, 4)] {
        let (fate, told) = stops(&[], has);
        assert_eq!(fate, FolderFate::Stays, "{told}");
        assert!(told.contains("an earlier stream HW_test_0, up to message 5"), "{told}");
    }
    let discarded = FolderFate::Discarded { sequence: Sequence(5) };
    assert_eq!(stops(&[], (6, 9)).0, discarded);
    assert_eq!(stops(&[(Sequence(5), other)], (1, 5)).0, discarded);
    // A stream that was brought back, and has another time since, is the same all the same.
    let mut told = Told::of(position, true);
    let LogRequest::Append { expected, .. } = told.claims(&[(Sequence(5), found)], 5) else {
        panic!("no claim")
    };
    assert_eq!(expected, Sequence(5));
    assert!(told.replica.has_confirmed());
}

#[test]
fn a_node_that_does_not_know_whether_its_folder_is_of_this_stream_takes_no_lease() {
    let takes = |made_anew| {
        let position = LogPosition { sequence: Sequence(5), checksum: 7 };
        let mut told = Told::of(position, made_anew);
        (0..100).any(|_| {
            // Its reads are not answered.
            let put = told.passes(100).is_some();
            put || told.looked()
        })
    };
    assert!(takes(false) && !takes(true));
}
