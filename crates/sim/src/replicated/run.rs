//! One simulation: what goes wrong in it, and what is checked when it is over.

use super::cloud::Cloud;
use super::history::{History, Operation};
use super::member::{Disk, Member, MemberEnd, Objects, Shared};
use headwater_log::{DrainedNodes, SnapshotMark, SnapshotOrder};
use headwater_model::rng::Rng;
use std::collections::BTreeMap;

/// How many nodes there are.
pub(super) const NODES: usize = 3;
/// How many lists there are.
pub(super) const LISTS: usize = 4;
/// How long a step is, in milliseconds.
const STEP: u64 = 10;
/// How long things go wrong, and how long it may take until all is well again.
const TROUBLE: u64 = 20_000;
const CALM: u64 = 40_000;

/// What may go wrong: how many in a thousand requests, answers or steps are struck; 0: none.
#[derive(Clone, Debug, Default)]
pub struct LogFaults {
    /// Requests and answers that are lost.
    pub lost: usize,
    /// Answers that come twice.
    pub twice: usize,
    /// Answers that come late, by seconds.
    pub late: usize,
    /// Appends that others overtake.
    pub early: usize,
    /// Appends that arrive right behind the next claim.
    pub traps: usize,
    /// Writes that are refused for no reason.
    pub refused: usize,
    /// Reads that a replica answers which is behind.
    pub stale: usize,
    /// Losses of the log's or the bucket's leader.
    pub leaders: usize,
    /// Nodes whose requests are kept back.
    pub stalls: usize,
    /// Nodes that are cut off.
    pub cuts: usize,
    /// Nodes that pause.
    pub pauses: usize,
    /// Nodes that restart.
    pub crashes: usize,
    /// Nodes that are drained, or may own again.
    pub drains: usize,
    /// Of so many bytes of the log a tenth part is enough for a snapshot; 0: none are taken.
    pub snapshots: usize,
    /// Snapshots that somebody wants at once.
    pub orders: usize,
    /// Acknowledged turns that a disk may go back to.
    pub older: usize,
    /// What is left out on purpose.
    pub cut: Option<LogCut>,
}

/// What may be left out, on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogCut {
    /// That records of an older epoch than the last claim's are no data.
    Epochs,
    /// That an append is acknowledged only with all before it.
    Prefix,
    /// That an owner asks for its lease before its answers go out.
    Lease,
    /// That the log is purged only when a complete snapshot is named.
    Naming,
    /// That a drained node owns nothing.
    Drained,
}

impl LogFaults {
    /// How many bytes of the log are enough for a snapshot; 0: none are taken.
    fn snapshot_bytes(&self) -> u64 {
        self.snapshots.div_ceil(10) as u64
    }

    /// Those of a seed: mostly some kinds, and in one case of ten none.
    #[must_use]
    pub fn of(rng: &mut Rng) -> Self {
        let mut faults = Self { older: 100, ..Self::default() };
        if rng.chance(10) {
            return faults;
        }
        let kinds = [
            (&mut faults.lost, 20),
            (&mut faults.twice, 40),
            (&mut faults.late, 60),
            (&mut faults.early, 30),
            (&mut faults.traps, 30),
            (&mut faults.refused, 10),
            (&mut faults.stale, 200),
            (&mut faults.leaders, 3),
            (&mut faults.stalls, 3),
            (&mut faults.cuts, 2),
            (&mut faults.pauses, 3),
            (&mut faults.crashes, 2),
            (&mut faults.drains, 4),
            (&mut faults.orders, 4),
            (&mut faults.snapshots, 20_000),
        ];
        for (kind, most) in kinds {
            if rng.chance(50) {
                *kind = 1 + rng.below(most);
            }
        }
        faults
    }
}

/// How often what has happened.
pub type LogSeen = BTreeMap<&'static str, u64>;

/// What a node is called.
pub(super) fn name(node: usize) -> String {
    format!("n{node}")
}

struct World {
    rng: Rng,
    faults: LogFaults,
    cloud: Cloud,
    history: History,
    /// Snapshots that are stored.
    objects: Objects,
    members: Vec<Member>,
    /// What the bucket says of who is drained.
    drained: DrainedNodes,
    /// How many snapshots were ordered.
    orders: u64,
    lives: u64,
    now: u64,
    /// How many of a hundred operations only read: where few append, an owner that is cut off has answers that wait for nothing.
    reads: usize,
    /// Whether clients ask, and until when.
    wave: (bool, u64),
    seen: LogSeen,
}

impl World {
    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn strikes(&mut self, of_thousand: usize) -> bool {
        self.rng.below(1000) < of_thousand
    }

    /// Faults of one step.
    fn trouble(&mut self) {
        let until = |rng: &mut Rng, now: u64, most: usize| now + 50 + rng.below(most) as u64;
        if self.strikes(self.faults.leaders) {
            self.count("log without a leader");
            self.cloud.log_leads = until(&mut self.rng, self.now, 6000);
        }
        if self.strikes(self.faults.leaders) {
            self.count("bucket without a leader");
            self.cloud.bucket_leads = until(&mut self.rng, self.now, 6000);
        }
        if self.strikes(self.faults.drains) {
            self.drain();
        }
        if self.strikes(self.faults.orders) {
            self.count("snapshots ordered");
            self.orders += 1;
            let wanted = SnapshotOrder::Wanted { id: self.orders };
            self.cloud.write(&SnapshotOrder::key(0), wanted.encode());
        }
        for node in 0..NODES {
            if self.strikes(self.faults.stalls) {
                self.count("requests kept back");
                self.cloud.stalled[node] = until(&mut self.rng, self.now, 7000);
            }
            if self.strikes(self.faults.cuts) {
                self.count("nodes cut off");
                self.cloud.cut_off[node] = until(&mut self.rng, self.now, 7000);
            }
            if self.strikes(self.faults.pauses) {
                self.count("pauses");
                self.members[node].paused = until(&mut self.rng, self.now, 7000);
            }
            if self.strikes(self.faults.crashes) {
                self.count("restarts");
                let disk = self.members[node].crash(&mut self.rng);
                self.start(node, disk);
            }
        }
    }

    /// Somebody drains a node, or ends that; one node at least is left that may own.
    fn drain(&mut self) {
        let nodes: Vec<String> = (0..NODES).map(name).collect();
        let node = &nodes[self.rng.below(NODES)];
        let drains = !self.drained.contains(node);
        if drains && self.drained.others(node, &nodes).is_empty() {
            return;
        }
        self.count(if drains { "nodes drained" } else { "drains undone" });
        self.drained.set(node, drains);
        self.cloud.write(DrainedNodes::KEY, self.drained.encode());
    }

    /// The node that serves though it is drained, if there is one.
    fn drained_owner(&self) -> Option<String> {
        let serves = |&at: &usize| self.members[at].serves();
        (0..NODES).filter(serves).map(name).find(|node| self.drained.contains(node))
    }

    /// Whether the last order of a snapshot is done, with one that is named or later.
    fn order_is_done(&self) -> Result<bool, String> {
        let Some(value) = self.cloud.value_of(&SnapshotOrder::key(0)) else { return Ok(true) };
        match SnapshotOrder::decode(value).expect("it was written whole") {
            SnapshotOrder::Wanted { .. } => Ok(false),
            SnapshotOrder::Done { id, sequence } => {
                let upto = self.named().map_or(0, |mark| mark.position.sequence.0);
                if id != self.orders || sequence.0 > upto {
                    return Err(format!(
                        "order {id} of a snapshot is done with {sequence:?}, and {upto} is named"
                    ));
                }
                Ok(true)
            }
        }
    }

    /// A node's next life.
    fn start(&mut self, node: usize, disk: Disk) {
        self.lives += 1;
        let bytes_min = self.faults.snapshot_bytes();
        let who = (node, self.lives);
        self.members[node] = Member::start(who, disk, bytes_min, &mut self.rng, self.now);
    }

    /// The snapshot that the bucket names, if there is one.
    fn named(&self) -> Option<SnapshotMark> {
        let value = self.cloud.value_of(&SnapshotMark::key(0))?;
        Some(SnapshotMark::decode(value).expect("it was written by a node"))
    }

    /// P1 and P3: what was purged is in the snapshot that is named, which is there.
    fn check_snapshots(&self) -> Result<(), String> {
        let (named, purged) = (self.named(), self.cloud.purged(0) as u64);
        let upto = named.as_ref().map_or(0, |mark| mark.position.sequence.0);
        if purged > 0 && purged >= upto {
            return Err(format!("P1: purged up to {purged}, and {named:?} is named"));
        }
        let is_there = |mark: SnapshotMark| {
            self.objects.get(&mark.object).is_some_and(|disk| disk.position == mark.position)
        };
        if !named.clone().is_none_or(is_there) {
            return Err(format!("P3: {named:?} is named, and is not there"));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += STEP;
        self.cloud.serve(&mut self.rng, &self.faults, self.now);
        for node in 0..NODES {
            if self.members[node].paused > self.now {
                continue;
            }
            let served = self.members[node].serves();
            let mut shared = Shared {
                rng: &mut self.rng,
                faults: &self.faults,
                cloud: &mut self.cloud,
                history: &mut self.history,
                objects: &mut self.objects,
                now: self.now,
            };
            self.members[node].turn(&mut shared)?;
            for _ in 0..std::mem::take(&mut self.members[node].left) {
                self.count("owners that give up, being drained");
            }
            let member = &mut self.members[node];
            for (what, count) in [
                ("appends refused in silence", &mut member.refused),
                ("reads answered in silence", &mut member.read_in_silence),
            ] {
                *self.seen.entry(what).or_default() += std::mem::take(count);
            }
            match (served, self.members[node].serves()) {
                (false, true) => self.count("owners"),
                (true, false) => self.count("owners that stop"),
                _ => {}
            }
            match self.members[node].ended {
                Some(MemberEnd::Purged) => {
                    self.count("snapshots loaded");
                    let named = self.named().ok_or("nothing is named, and the log is purged")?;
                    let disk = self.objects[&named.object].clone();
                    self.start(node, disk);
                }
                Some(MemberEnd::NameTaken) => {
                    self.count("names taken");
                    let disk = self.members[node].disk.clone();
                    self.start(node, disk);
                }
                None => {}
            }
            self.check_snapshots()?;
        }
        Ok(())
    }

    /// Clients ask whoever believes to own the shard.
    fn ask(&mut self, list: usize, operation: Operation) {
        let owners: Vec<usize> = (0..NODES).filter(|&at| self.members[at].serves()).collect();
        if owners.len() > 1 {
            self.count("steps with two who believe to own");
        }
        if owners.is_empty() {
            return;
        }
        let node = *self.rng.pick(&owners);
        let which = self.history.begin(list, operation, self.now);
        self.members[node].inbox.push(which);
    }

    /// Clients come and go in waves: what arrives late finds a log to which nobody else appends.
    fn draw(&mut self) {
        if self.now >= self.wave.1 {
            let most = if self.wave.0 { 2500 } else { 500 };
            self.wave = (!self.wave.0, self.now + 50 + self.rng.below(most) as u64);
        }
        for _ in 0..if self.wave.0 && self.rng.chance(16) { 1 + self.rng.below(6) } else { 0 } {
            let (list, reads) = (self.rng.below(LISTS), self.rng.chance(self.reads));
            if self.history.asked.len() < 400 {
                self.ask(list, if reads { Operation::Read } else { Operation::Append });
            }
        }
    }

    /// All faults are over: an owner must serve soon, and all nodes come to hold the same.
    fn calm(&mut self) -> Result<Disk, String> {
        let (cut, snapshots) = (self.faults.cut, self.faults.snapshots);
        self.faults = LogFaults { cut, snapshots, ..LogFaults::default() };
        self.cloud.log_leads = self.cloud.log_leads.min(self.now);
        self.cloud.bucket_leads = self.cloud.bucket_leads.min(self.now);
        for node in 0..NODES {
            self.cloud.stalled[node] = self.now;
            self.cloud.cut_off[node] = self.now;
            self.members[node].paused = self.now;
        }
        let until = self.now + CALM;
        while self.now < until {
            // What is appended now ends the log with a record that counts.
            let rest = until - self.now;
            if rest > CALM / 2 && rest.is_multiple_of(1000) {
                self.ask(0, Operation::Append);
            }
            self.step()?;
            let first = &self.members[0].disk;
            let same = self.members.iter().all(|member| member.disk == *first);
            let answers = self.members.iter().any(|member| member.may_answer(self.now));
            let whole = first.position.sequence.0 == self.cloud.last(0);
            let operated = self.drained_owner().is_none() && self.order_is_done()?;
            if rest < CALM / 2 && answers && same && whole && operated {
                return Ok(first.clone());
            }
        }
        if let Some(node) = self.drained_owner() {
            return Err(format!("D2: {node} is drained, and owns the shard all the same"));
        }
        if !self.order_is_done()? {
            return Err(String::from("a snapshot was ordered, and none was taken"));
        }
        let held: Vec<_> = self.members.iter().map(|member| &member.disk.position).collect();
        let serving: Vec<_> = self.members.iter().map(Member::serves).collect();
        Err(format!("nobody serves, or nodes differ: {held:?}, of whom serve {serving:?}"))
    }
}

/// Runs the simulation of a seed; `change` is told its faults first.
///
/// # Errors
/// What was promised was not kept.
pub fn run(seed: u64, change: impl FnOnce(&mut LogFaults)) -> Result<LogSeen, String> {
    let mut rng = Rng::new(seed);
    let mut faults = LogFaults::of(&mut rng);
    change(&mut faults);
    let reads = *rng.pick(&[40, 40, 95]);
    let bytes_min = faults.snapshot_bytes();
    let start = |node| Member::start((node, node as u64), Disk::default(), bytes_min, &mut rng, 0);
    let members = (0..NODES).map(start).collect();
    let mut world = World {
        rng,
        faults,
        cloud: Cloud::new(&[0; NODES]),
        history: History::default(),
        objects: Objects::new(),
        members,
        drained: DrainedNodes::default(),
        orders: 0,
        lives: NODES as u64,
        now: 0,
        reads,
        wave: (false, 0),
        seen: LogSeen::new(),
    };
    while world.now < TROUBLE {
        world.trouble();
        world.draw();
        world.step()?;
    }
    let last = world.calm()?;
    world.history.check(&last.lists)?;
    world.seen.insert("answers", world.history.answers);
    world.seen.insert("late appends behind a claim", world.cloud.trapped());
    world.seen.retain(|_, count| *count > 0);
    Ok(world.seen)
}
