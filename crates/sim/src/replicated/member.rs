//! One node: its clock, its disk, its machines, and an engine that keeps lists.

use super::cloud::{Answered, Asked, Cloud};
use super::history::{History, Operation};
use super::run::{LISTS, LogCut, LogFaults, name};
use headwater_log::{
    AppendWindow, DEFER_MILLIS, DrainLook, Heartbeat, LeaseTimes, LogAnswer, LogEntry, LogId,
    LogMessage, LogPosition, LogRequest, Monotonic, Owner, RECORD_FORMATS, RecordKind, Replica,
    ReplicaConfig, ReplicaEffect, ReplicaInput, ReplicaStop, SnapshotEffect, SnapshotMark,
    SnapshotTaken, Snapshots, StopReason, Turn,
};
use headwater_model::rng::Rng;
use std::collections::{BTreeMap, VecDeque};

/// The stream of the one shard.
const STREAM: &str = "HW_sim_0";

/// What a node has of the shard, and the record that it ends with.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    pub(super) position: LogPosition,
    pub(super) lists: [Vec<u32>; LISTS],
}

/// Why a process ends by itself, to begin anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemberEnd {
    /// An earlier life's writes arrive: it looks as if that lived.
    NameTaken,
    /// It needs a snapshot.
    Purged,
}

/// An answer that waits for what it shows to be acknowledged.
struct Reply {
    operation: usize,
    list: Vec<u32>,
    epoch: u64,
    turn: Turn,
}

/// Snapshots that are stored outside of the log, by their names.
pub(super) type Objects = BTreeMap<String, Disk>;

/// A snapshot that is being stored.
struct Storing {
    /// When that ends; `false`: it fails.
    ends: (u64, bool),
    mark: SnapshotMark,
    disk: Disk,
}

/// What is shared by everything in a simulation.
pub(super) struct Shared<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) faults: &'a LogFaults,
    pub(super) cloud: &'a mut Cloud,
    pub(super) history: &'a mut History,
    pub(super) objects: &'a mut Objects,
    pub(super) now: u64,
}

/// A node.
pub(super) struct Member {
    index: usize,
    life: u64,
    /// Speed of its clock in percent, and where that began.
    speed: u64,
    offset: u64,
    /// It does nothing until then.
    pub(super) paused: u64,
    heartbeat: Heartbeat,
    drain: DrainLook,
    replica: Replica,
    snapshots: Snapshots,
    storing: Option<Storing>,
    /// What it shows as an owner; elsewhere the same as on disk.
    live: [Vec<u32>; LISTS],
    pub(super) disk: Disk,
    /// A disk of before.
    older: Disk,
    /// Writes that are not acknowledged.
    unacknowledged: VecDeque<(Turn, usize, Vec<u32>)>,
    replies: VecDeque<Reply>,
    pub(super) inbox: Vec<usize>,
    /// Where it has come by taking everything for data ([`LogCut::Epochs`]), and parts of that.
    unfenced: (u64, Vec<u8>),
    /// It completes what is under way, and gives the shard up then.
    leaves: bool,
    /// It was cut off when it was looked at last; in some lives it is told of that.
    cut_off: bool,
    /// How many appends it has refused, since the servers do not answer; and how many reads it has answered meanwhile.
    pub(super) refused: u64,
    pub(super) read_in_silence: u64,
    /// How often it has given the shard up because it was drained.
    pub(super) left: u64,
    pub(super) ended: Option<MemberEnd>,
}

fn payload(list: usize, items: &[u32]) -> Vec<u8> {
    let numbers = std::iter::once(list as u32).chain(items.iter().copied());
    numbers.flat_map(u32::to_le_bytes).collect()
}

fn apply(lists: &mut [Vec<u32>; LISTS], payload: &[u8]) {
    let numbers = payload.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap()));
    let mut numbers = numbers.collect::<Vec<_>>().into_iter();
    let list = numbers.next().expect("a list") as usize;
    lists[list] = numbers.collect();
}

impl Member {
    /// A node's process begins, with this disk.
    pub(super) fn start(
        (index, life): (usize, u64),
        disk: Disk,
        bytes_min: u64,
        rng: &mut Rng,
        now: u64,
    ) -> Self {
        let incarnation = life * 10 + index as u64;
        let node = Owner {
            node: name(index),
            address: format!("n{index}:7379"),
            incarnation,
            epoch: headwater_log::Epoch(0),
            shard: 0,
            released: false,
        };
        let times = LeaseTimes::default();
        let window = AppendWindow {
            in_flight_bytes_max: 900,
            queued_bytes_max: 2000,
            message_bytes_max: 180,
            timeout_millis: 3000,
        };
        let config = ReplicaConfig {
            stream: STREAM.into(),
            key: "owner.0".into(),
            node: node.clone(),
            times,
            window,
            follow_millis: 100,
            made_anew: false,
            records: RECORD_FORMATS,
        };
        let mut member = Self {
            index,
            life,
            speed: 92 + rng.below(17) as u64,
            offset: rng.below(1_000_000) as u64,
            paused: now,
            drain: DrainLook::new(&node.node, times, (life << 32) + (1 << 30)),
            heartbeat: Heartbeat::new(node, times, life << 32),
            replica: Replica::new(config, disk.position, (life << 32) + (1 << 31)),
            snapshots: Snapshots::new(0, bytes_min, times.answer_millis, (life << 32) + (3 << 30)),
            storing: None,
            live: disk.lists.clone(),
            older: disk.clone(),
            unfenced: (disk.position.sequence.0, Vec::new()),
            disk,
            unacknowledged: VecDeque::new(),
            replies: VecDeque::new(),
            inbox: Vec::new(),
            leaves: false,
            cut_off: false,
            refused: 0,
            read_in_silence: 0,
            left: 0,
            ended: None,
        };
        // What it knows of the formats that others read: some write the older one.
        member.replica.set_newest_for_all([None, Some(1), Some(2)][(life % 3) as usize]);
        // The same process for good: its clock goes on where it is.
        member.offset += now;
        member
    }

    /// The disk with which its next life begins.
    pub(super) fn crash(&mut self, rng: &mut Rng) -> Disk {
        match rng.below(4) {
            0 => Disk::default(),
            1 => self.older.clone(),
            _ => self.disk.clone(),
        }
    }

    fn clock(&self, now: u64) -> Monotonic {
        Monotonic(self.offset + now * self.speed / 100)
    }

    /// The epoch in which it believes to own the shard.
    pub(super) fn serves(&self) -> bool {
        self.replica.serves().is_some()
    }

    /// Whether it may answer now.
    pub(super) fn may_answer(&self, now: u64) -> bool {
        self.replica.may_answer(self.clock(now))
    }

    fn asker(&self) -> (usize, u64) {
        (self.index, self.life)
    }

    /// One turn: what clients ask, what log and bucket answer, and time.
    pub(super) fn turn(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        let clock = self.clock(shared.now);
        let cut_off = shared.cloud.cut_off[self.index] > shared.now;
        if cut_off && !self.cut_off && self.life.is_multiple_of(2) {
            self.replica.disconnected(clock);
        }
        self.cut_off = cut_off;
        self.execute(shared, clock)?;
        let mut effects = Vec::new();
        while let Some(answer) = shared.cloud.arrived(shared.now, self.asker()) {
            let input = match answer {
                Answered::Bucket(answer) => {
                    if self.heartbeat.answered(&answer, clock).is_err() {
                        self.ended = Some(MemberEnd::NameTaken);
                    }
                    self.drain.answered(&answer, clock).expect("it was written whole");
                    let known = (shared.cloud.extent(0), self.replica.position());
                    let snapshots = self.snapshots.answered(&answer, known, clock);
                    snapshots.into_iter().for_each(|effect| self.snapshot(effect, shared));
                    ReplicaInput::Bucket(answer)
                }
                Answered::Log(answer) => {
                    self.believe(shared, &answer, clock)?;
                    ReplicaInput::Log(answer)
                }
            };
            self.replica.handle(input, clock, &mut effects);
        }
        for request in self.heartbeat.tick(clock).into_iter().chain(self.drain.tick(clock)) {
            let asked = Asked::Bucket(request);
            shared.cloud.send(shared.rng, shared.faults, shared.now, self.asker(), asked);
        }
        self.store(shared, clock);
        let writable_since = self.heartbeat.writable_since();
        let wants = self.drain.may_own() || shared.faults.cut == Some(LogCut::Drained);
        // Now one should take the shard, now another: by turns of some seconds.
        let defers = (clock.0 / 4096 + self.index as u64) % 2 == 1;
        let defer_millis = if defers { DEFER_MILLIS } else { 0 };
        let tick = ReplicaInput::Tick { wants, defer_millis, writable_since };
        self.replica.handle(tick, clock, &mut effects);
        self.follow(effects, shared, clock)
    }

    /// Executes what clients ask as one batch.
    fn execute(&mut self, shared: &mut Shared<'_>, clock: Monotonic) -> Result<(), String> {
        let asked = std::mem::take(&mut self.inbox);
        let Some(epoch) = self.replica.serves() else { return Ok(()) };
        let mut effects = Vec::new();
        if self.leaves {
            if self.unacknowledged.is_empty() {
                self.left += 1;
                self.replica.release(clock, &mut effects);
            }
            return self.follow(effects, shared, clock);
        }
        for operation in asked {
            if self.replica.is_full() {
                continue;
            }
            let asked = &shared.history.asked[operation];
            let (list, appends) = (asked.list, asked.operation == Operation::Append);
            if appends && self.replica.is_silent(clock) {
                // W4: it is not executed, and told so at once.
                shared.history.asked[operation].refused = true;
                self.refused += 1;
                continue;
            }
            if appends {
                self.live[list].push(operation as u32);
                let bytes = payload(list, &self.live[list]);
                let turn = self.replica.append(0, &bytes, clock, &mut effects).expect("serves");
                self.unacknowledged.push_back((turn, list, self.live[list].clone()));
            }
            let turn = self.replica.last_turn().expect("serves");
            let list = self.live[list].clone();
            self.replies.push_back(Reply { operation, list, epoch: epoch.0, turn });
        }
        self.follow(effects, shared, clock)?;
        self.reply(shared, clock)
    }

    /// W1, where nothing is left out.
    fn answers(&self, shared: &Shared<'_>, clock: Monotonic) -> bool {
        self.replica.may_answer(clock) || shared.faults.cut == Some(LogCut::Lease)
    }

    /// Answers that wait for nothing any more go out.
    fn reply(&mut self, shared: &mut Shared<'_>, clock: Monotonic) -> Result<(), String> {
        let first = self.unacknowledged.front().map(|(turn, ..)| *turn);
        let goes = |reply: &Reply| first.is_none_or(|first| reply.turn < first);
        while self.replies.front().is_some_and(goes)
            && let Some(reply) = self.replies.pop_front()
        {
            if self.answers(shared, clock) {
                self.read_in_silence += u64::from(self.replica.is_silent(clock));
                shared.history.end(reply.operation, reply.list, reply.epoch, shared.now)?;
            }
        }
        Ok(())
    }

    /// What is left out where answers of the log are taken as they come.
    fn believe(
        &mut self,
        shared: &mut Shared<'_>,
        answer: &LogAnswer,
        clock: Monotonic,
    ) -> Result<(), String> {
        match (shared.faults.cut, answer) {
            (Some(LogCut::Prefix), LogAnswer::Append { id, outcome }) => {
                // Every turn whose own last message is stored is answered.
                let stored = matches!(outcome, headwater_log::AppendOutcome::Stored(_));
                let place = |reply: &Reply| (reply.epoch, reply.turn.0) == (id.epoch.0, id.number);
                if stored
                    && let Some(at) = self.replies.iter().position(place)
                    && self.answers(shared, clock)
                {
                    let reply = self.replies.remove(at).expect("it is there");
                    shared.history.end(reply.operation, reply.list, reply.epoch, shared.now)?;
                }
            }
            (Some(LogCut::Epochs), LogAnswer::Read { batch: Some(batch), .. }) => {
                for (sequence, bytes) in &batch.messages {
                    if sequence.0 != self.unfenced.0 + 1 {
                        continue;
                    }
                    self.unfenced.0 += 1;
                    let message = LogMessage::decode(LogId::of(STREAM), RECORD_FORMATS, bytes)
                        .expect("no damage");
                    if message.header.kind == RecordKind::Claim {
                        continue;
                    }
                    self.unfenced.1.extend_from_slice(&message.payload);
                    if message.header.kind == RecordKind::Last {
                        let bytes = std::mem::take(&mut self.unfenced.1);
                        apply(&mut self.disk.lists, &bytes);
                        self.live = self.disk.lists.clone();
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn follow(
        &mut self,
        effects: Vec<ReplicaEffect>,
        shared: &mut Shared<'_>,
        clock: Monotonic,
    ) -> Result<(), String> {
        for effect in effects {
            match effect {
                ReplicaEffect::Log(request) => {
                    let (asker, asked) = (self.asker(), Asked::Log(request));
                    shared.cloud.send(shared.rng, shared.faults, shared.now, asker, asked);
                }
                ReplicaEffect::Bucket(request) => {
                    let (asker, asked) = (self.asker(), Asked::Bucket(request));
                    shared.cloud.send(shared.rng, shared.faults, shared.now, asker, asked);
                }
                ReplicaEffect::Apply(LogEntry::Claim { position, .. }) => {
                    self.disk.position = position;
                    self.unfenced.0 = self.unfenced.0.max(position.sequence.0);
                }
                ReplicaEffect::Apply(LogEntry::Data { position, payload, .. }) => {
                    self.disk.position = position;
                    if shared.faults.cut != Some(LogCut::Epochs) {
                        apply(&mut self.disk.lists, &payload);
                        self.live = self.disk.lists.clone();
                    }
                }
                ReplicaEffect::Serve(_) => assert_eq!(self.live, self.disk.lists),
                ReplicaEffect::Leave => self.leaves = true,
                ReplicaEffect::Acknowledged { turn, position } => {
                    self.acknowledged(turn, position, shared);
                    self.reply(shared, clock)?;
                }
                ReplicaEffect::Stop(position) => {
                    assert_eq!(position, self.disk.position, "the disk has what is acknowledged");
                    self.leaves = false;
                    self.unacknowledged.clear();
                    self.replies.clear();
                    self.live = self.disk.lists.clone();
                    self.unfenced = (position.sequence.0, Vec::new());
                }
                ReplicaEffect::Halt(ReplicaStop::Log(StopReason::Purged { .. })) => {
                    self.ended = Some(MemberEnd::Purged);
                }
                ReplicaEffect::Halt(stop) => return Err(format!("n{}: {stop}", self.index)),
            }
        }
        Ok(())
    }

    fn acknowledged(&mut self, turn: Turn, position: LogPosition, shared: &mut Shared<'_>) {
        while self.unacknowledged.front().is_some_and(|first| first.0 <= turn)
            && let Some((_, list, items)) = self.unacknowledged.pop_front()
        {
            self.disk.lists[list] = items;
        }
        self.disk.position = position;
        self.unfenced.0 = position.sequence.0;
        if shared.rng.below(1000) < shared.faults.older {
            self.older = self.disk.clone();
        }
    }

    /// Snapshots go on, also where the node has stopped owning and does not know of it, or does.
    fn store(&mut self, shared: &mut Shared<'_>, clock: Monotonic) {
        if let Some(storing) = self.storing.take_if(|storing| storing.ends.0 <= shared.now) {
            let taken = if storing.ends.1 {
                shared.objects.insert(storing.mark.object.clone(), storing.disk);
                SnapshotTaken::Stored(storing.mark)
            } else {
                SnapshotTaken::Failed
            };
            let effect = self.snapshots.taken(taken, clock);
            effect.into_iter().for_each(|effect| self.snapshot(effect, shared));
        }
        if self.replica.serves().is_some() {
            let effect = self.snapshots.tick(shared.cloud.extent(0), clock);
            effect.into_iter().for_each(|effect| self.snapshot(effect, shared));
        }
    }

    fn snapshot(&mut self, effect: SnapshotEffect, shared: &mut Shared<'_>) {
        let asked = match effect {
            SnapshotEffect::Bucket(request) => Asked::Bucket(request),
            SnapshotEffect::Purge { below } => Asked::Log(LogRequest::Purge { below }),
            SnapshotEffect::Sweep { below } => {
                let goes = |name: &String| {
                    SnapshotMark::sequence_of(name).is_some_and(|sequence| sequence < below)
                };
                shared.objects.retain(|name, _| !goes(name));
                return;
            }
            SnapshotEffect::Take { above } if self.disk.position.sequence <= above => {
                let effect = self.snapshots.taken(SnapshotTaken::Nothing, self.clock(shared.now));
                return effect.into_iter().for_each(|effect| self.snapshot(effect, shared));
            }
            SnapshotEffect::Take { .. } => {
                let (disk, taker) = (self.disk.clone(), self.life * 10 + self.index as u64);
                let position = disk.position;
                let object = SnapshotMark::object_of(position.sequence, taker);
                let mark = SnapshotMark { position, bytes: 100, object };
                let slow = if shared.rng.chance(30) { 8000 } else { 300 };
                let at = shared.now + shared.rng.below(slow) as u64;
                let ends = (at, shared.rng.below(1000) >= shared.faults.lost);
                self.storing = Some(Storing { ends, mark, disk });
                match shared.faults.cut {
                    Some(LogCut::Naming) => {
                        Asked::Log(LogRequest::Purge { below: position.sequence })
                    }
                    _ => return,
                }
            }
            SnapshotEffect::Unreadable(bad) => panic!("{bad}"),
            SnapshotEffect::UnreadableOrder(bad) => panic!("{bad}"),
        };
        shared.cloud.send(shared.rng, shared.faults, shared.now, self.asker(), asked);
    }
}
