//! One simulation: what goes wrong in it, and what is checked when it is over.

use super::cloud::Cloud;
use super::history::{History, Operation};
use super::member::{Disk, Member, MemberEnd, Shared};
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
    /// Acknowledged turns behind which the owner takes a snapshot and purges the log.
    pub snapshots: usize,
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
}

impl LogFaults {
    /// Those of a seed: mostly some kinds, and in one case of ten none.
    fn of(rng: &mut Rng) -> Self {
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
            (&mut faults.snapshots, 100),
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

struct World {
    rng: Rng,
    faults: LogFaults,
    cloud: Cloud,
    history: History,
    snapshot: Option<Disk>,
    members: Vec<Member>,
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

    /// A node's next life; where the log begins too late for its disk, with a snapshot.
    fn start(&mut self, node: usize, disk: Disk) {
        self.lives += 1;
        let purged = self.cloud.purged() as u64;
        let disk = match &self.snapshot {
            Some(snapshot) if disk.position.sequence.0 <= purged => snapshot.clone(),
            _ => disk,
        };
        self.members[node] = Member::start(node, self.lives, disk, &mut self.rng, self.now);
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
                snapshot: &mut self.snapshot,
                now: self.now,
            };
            self.members[node].turn(&mut shared)?;
            match (served, self.members[node].serves()) {
                (false, true) => self.count("owners"),
                (true, false) => self.count("owners that stop"),
                _ => {}
            }
            match self.members[node].ended {
                Some(MemberEnd::Purged) => {
                    self.count("snapshots loaded");
                    self.start(node, Disk::default());
                }
                Some(MemberEnd::NameTaken) => {
                    self.count("names taken");
                    let disk = self.members[node].disk.clone();
                    self.start(node, disk);
                }
                None => {}
            }
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
        self.faults = LogFaults { cut: self.faults.cut, ..LogFaults::default() };
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
            let whole = first.position.sequence.0 == self.cloud.last();
            if rest < CALM / 2 && answers && same && whole {
                return Ok(first.clone());
            }
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
    let members = (0..NODES)
        .map(|node| Member::start(node, node as u64, Disk::default(), &mut rng, 0))
        .collect();
    let mut world = World {
        rng,
        faults,
        cloud: Cloud::default(),
        history: History::default(),
        snapshot: None,
        members,
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
    world.seen.insert("late appends behind a claim", world.cloud.trapped);
    world.seen.retain(|_, count| *count > 0);
    Ok(world.seen)
}
