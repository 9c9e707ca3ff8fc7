//! Twip on engines in this process, each driven by a thread of its own.
//!
//! A thread executes the operations of the users whose group lives on its shard, a batch in a
//! turn, and between them takes in what other shards have sent. All of a user's writes and reads live
//! on one shard, so nothing is forwarded: what remains is what the engines do and say to one another.
//!
//! # Invariants
//! - W1. `under_way` counts the packets that were sent and not dealt with, so that a phase ends when all have done
//!   their part, nobody waits, and nothing is on its way.

use super::{Crossed, Measured};
use crate::measure::Run;
use crate::measure::pin::Pinning;
use crate::peer::Launch;
use crate::twip::plan::{Kind, Op, Plan};
use crate::twip::run::Twip;
use crate::twip::world::World;
use crate::twip::{Entry, Seen};
use crate::wire::{Key, key};
use anyhow::{Result, anyhow, bail};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use headwater_base::{Placement, Shard};
use headwater_engine::{
    Effect, Engine, Expiry, RangeOptions, Settings, Stop, TableOptions, Ticket,
};
use headwater_node::{Packet, Peers};
use headwater_workload::Rng;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Instant;

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
/// How long a thread with nothing to do sleeps at most.
const NAP: Duration = Duration::from_millis(1);

/// What all threads share.
struct Shared<'p> {
    plan: &'p Plan,
    placement: Placement,
    boxes: Vec<Mailbox>,
    /// The moment of the newest post.
    now: AtomicU32,
    /// Packets that were sent and not dealt with (W1).
    under_way: AtomicI64,
    /// Threads that have come to the end of their part, over all phases.
    done: AtomicUsize,
    /// Threads that have left a phase, over all phases.
    left: AtomicUsize,
    /// A thread has failed: the others end.
    failed: AtomicBool,
    /// What the users have done, for the comparison.
    world: Mutex<World<'p>>,
}

#[derive(Default)]
struct Mailbox {
    packets: Mutex<Vec<(Shard, Packet)>>,
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
}

/// Ends all threads with one that does not end well.
struct Together<'s> {
    failed: &'s AtomicBool,
    ended_well: bool,
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        self.failed.fetch_or(!self.ended_well, Ordering::SeqCst);
    }
}

/// What a thread has to say at its end.
struct Part {
    cpu_s: f64,
    wall_s: f64,
    operations: u64,
    crossed: Crossed,
    verified: bool,
}

/// One shard.
struct Site<'s, 'p> {
    me: Shard,
    shared: &'s Shared<'p>,
    engine: Engine,
    peers: Peers,
    outgoing: Vec<Vec<(Shard, Packet)>>,
    waiting: HashMap<Ticket, Read>,
    /// The newest post that each user has seen.
    newest: Vec<u32>,
    mails: u64,
    phases: usize,
    /// Answers of the phase that looks at them, by user.
    answered: HashMap<u32, Vec<Entry>>,
}

#[derive(Clone, Copy)]
struct Read {
    user: u32,
    since: u32,
    keeps: bool,
}

/// One run.
///
/// # Errors
/// An engine refuses something.
pub fn run(
    twip: &Twip,
    plan: &Plan,
    launch: &Launch,
    shards: u16,
    pair: usize,
) -> Result<Measured> {
    let world = World::new(plan);
    let shared = Shared {
        plan,
        placement: Placement::even(shards),
        boxes: (0..shards).map(|_| Mailbox::default()).collect(),
        now: AtomicU32::new(world.now()),
        under_way: AtomicI64::new(0),
        done: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        world: Mutex::new(world),
    };
    let parts = std::thread::scope(|scope| {
        let spawn = |me: u16| {
            let shared = &shared;
            scope.spawn(move || {
                let mut together = Together { failed: &shared.failed, ended_well: false };
                pin(launch.pinning, me)?;
                let part = Site::new(Shard(me), shared)?.live(twip)?;
                together.ended_well = true;
                Ok(part)
            })
        };
        let threads: Vec<_> = (0..shards).map(spawn).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of a shard has panicked")))
        });
        joined.collect::<Result<Vec<Part>>>()
    })?;
    let sum = |figure: fn(&Part) -> f64| parts.iter().map(figure).sum::<f64>();
    let total = |figure: fn(&Crossed) -> u64| parts.iter().map(|part| figure(&part.crossed)).sum();
    let run = Run {
        system: "headwater",
        pair,
        server_cpu_s: sum(|part| part.cpu_s),
        generator_cpu_s: 0.0,
        wall_s: parts.iter().map(|part| part.wall_s).fold(0.0, f64::max),
        rss_bytes_max: crate::measure::process::rss_max(std::process::id())?,
        operations: parts.iter().map(|part| part.operations).sum(),
        verified: parts.iter().all(|part| part.verified),
    };
    let crossed = Crossed {
        requests: 0,
        mails: total(|crossed| crossed.mails),
        packets: total(|crossed| crossed.packets),
        changes: total(|crossed| crossed.changes),
        bytes: total(|crossed| crossed.bytes),
        replica_bytes: total(|crossed| crossed.replica_bytes),
    };
    Ok(Measured { shards, run, crossed })
}

/// Shards take the two cores in turn.
fn pin(pinning: Pinning, me: u16) -> Result<()> {
    if me.is_multiple_of(2) { pinning.enter_server() } else { pinning.enter_generator() }
}

fn subscription(user: u32, poster: u32) -> Key {
    Key::new(b"s|").user(user).text(b"|").user(poster)
}

fn post(poster: u32, time: u32) -> Key {
    Key::new(b"p|").user(poster).text(b"|").time(time)
}

impl<'s, 'p> Site<'s, 'p> {
    fn new(me: Shard, shared: &'s Shared<'p>) -> Result<Self> {
        let mut engine = Engine::new(Settings::default());
        engine.set_placement(me, shared.placement.clone());
        for table in [&b"s"[..], b"p", b"t"] {
            engine.table_set(table, &TableOptions { boundary: Some(1), ..Default::default() })?;
        }
        engine.join_add("timeline", TIMELINE, false)?;
        let shards = shared.placement.shards();
        // All of them live and end together.
        let peers = Peers::new(me, shards, 1, headwater_base::Millis(0));
        let _ = shared.boxes[usize::from(me.0)].thread.set(std::thread::current());
        Ok(Self {
            me,
            shared,
            engine,
            peers,
            outgoing: (0..shards).map(|_| Vec::new()).collect(),
            waiting: HashMap::new(),
            newest: vec![shared.now.load(Ordering::SeqCst); shared.plan.graph.users],
            mails: 0,
            phases: 0,
            answered: HashMap::new(),
        })
    }

    fn lives_here(&self, user: u32) -> bool {
        self.shared.placement.home(&subscription(user, user)) == self.me
    }

    fn live(mut self, twip: &Twip) -> Result<Part> {
        let plan = self.shared.plan;
        let batch = twip.pipeline();
        self.load()?;
        self.phase(0..0, batch, |_, _: u32| Ok(()))?;
        let warm: Vec<u32> = if twip.is_warm() {
            plan.active.iter().copied().filter(|&user| self.lives_here(user)).collect()
        } else {
            Vec::new()
        };
        let recent = self.recent();
        self.phase(warm, batch, |site, user| {
            site.read(Read { user, since: recent, keeps: false })
        })?;
        let ops: Vec<Op> =
            plan.schedule.all().copied().filter(|op| self.lives_here(op.user)).collect();
        let operations = ops.len() as u64;
        let (mut done, before) = (Vec::new(), self.crossed());
        let (cpu, wall) = (clock_gettime(ClockId::ThreadCPUTime), Instant::now());
        self.phase(ops, batch, |site, op| site.execute(op, &mut done))?;
        let wall_s = wall.elapsed().as_secs_f64();
        let cpu_s = seconds(clock_gettime(ClockId::ThreadCPUTime)) - seconds(cpu);
        let after = self.crossed();
        let crossed = Crossed {
            mails: after.mails - before.mails,
            packets: after.packets - before.packets,
            changes: after.changes - before.changes,
            bytes: after.bytes - before.bytes,
            ..after
        };
        let mut world = self.shared.world.lock().unwrap_or_else(PoisonError::into_inner);
        for (op, time) in done {
            match op.kind {
                Kind::Subscribe => world.subscribe(op.user, op.poster),
                _ => world.posted(op.user, time),
            }
        }
        drop(world);
        let verified = self.verify(twip, batch)?;
        Ok(Part { cpu_s, wall_s, operations, crossed, verified })
    }

    fn load(&mut self) -> Result<()> {
        let world = self.shared.world.lock().unwrap_or_else(PoisonError::into_inner);
        for user in 0..self.shared.plan.graph.users as u32 {
            if !self.lives_here(user) {
                continue;
            }
            for poster in world.follows(user) {
                self.engine.set(&subscription(user, poster), b"1", Expiry::Never)?;
            }
            for &time in world.posts(user) {
                let text = self.shared.plan.text(time);
                self.engine.set(&post(user, time), text, Expiry::Never)?;
            }
        }
        Ok(())
    }

    fn recent(&self) -> u32 {
        let now = self.shared.now.load(Ordering::SeqCst);
        now.saturating_sub(self.shared.plan.window)
    }

    fn crossed(&self) -> Crossed {
        let (sent, remote) = (self.peers.sent(), self.engine.remote());
        Crossed {
            requests: 0,
            mails: self.mails,
            packets: sent.packets,
            changes: sent.changes,
            bytes: sent.bytes,
            replica_bytes: remote.replica_bytes,
        }
    }

    fn execute(&mut self, op: Op, done: &mut Vec<(Op, u32)>) -> Result<()> {
        match op.kind {
            Kind::Login => {
                self.read(Read { user: op.user, since: self.recent(), keeps: false })?;
            }
            Kind::Check => {
                let since = self.newest[op.user as usize] + 1;
                self.read(Read { user: op.user, since, keeps: false })?;
            }
            Kind::Subscribe => {
                self.engine.set(&subscription(op.user, op.poster), b"1", Expiry::Never)?;
                self.peers.stamp();
                done.push((op, 0));
            }
            Kind::Post => {
                let time = self.shared.now.fetch_add(1, Ordering::SeqCst) + 1;
                let text = self.shared.plan.text(time);
                self.engine.set(&post(op.user, time), text, Expiry::Never)?;
                self.peers.stamp();
                done.push((op, time));
            }
        }
        Ok(())
    }

    fn read(&mut self, read: Read) -> Result<()> {
        let first = Key::new(b"t|").user(read.user).text(b"|").time(read.since);
        let last = Key::new(b"t|").user(read.user).text(b"}");
        let mut seen = Seen::default();
        let mut entries = Vec::new();
        let mut text = Vec::new();
        let options = RangeOptions::default();
        let answer = self.engine.range(&first, &last, options, &mut |key, value| {
            // As an answer would have it.
            text.clear();
            text.extend_from_slice(&value.to_vec());
            // The key is `t|u0000042|0000000007|u0000008`.
            let number = |first: usize, digits: usize| {
                key.get(first..first + digits).and_then(key::number_of).unwrap_or(0) as u32
            };
            seen.count += 1;
            seen.newest = number(11, key::TIME_DIGITS);
            if read.keeps {
                let poster = number(23, key::NAME_DIGITS);
                entries.push(Entry { time: seen.newest, poster, text: text.clone() });
            }
        });
        match answer {
            Ok(_) => {
                let newest = &mut self.newest[read.user as usize];
                *newest = (*newest).max(seen.newest);
                if read.keeps {
                    self.answered.insert(read.user, entries);
                }
                Ok(())
            }
            Err(Stop::Wait(ticket)) => {
                self.waiting.insert(ticket, read);
                Ok(())
            }
            Err(stop) => bail!("the timeline of u{}: {stop:?}", read.user),
        }
    }

    /// Does all `tasks`, and what others ask for meanwhile, until all shards have done theirs.
    fn phase<T>(
        &mut self,
        tasks: impl IntoIterator<Item = T>,
        batch: usize,
        mut execute: impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        let shards = usize::from(self.shared.placement.shards());
        self.phases += 1;
        let mut tasks = tasks.into_iter().fuse();
        let mut is_done = false;
        loop {
            let own = &self.shared.boxes[usize::from(self.me.0)];
            let arrived =
                core::mem::take(&mut *own.packets.lock().unwrap_or_else(PoisonError::into_inner));
            let dealt_with = arrived.len() as i64;
            for (from, packet) in arrived {
                self.peers.receive(from, packet);
            }
            let mut executed = 0;
            while executed < batch
                && let Some(task) = tasks.next()
            {
                execute(self, task)?;
                executed += 1;
            }
            self.turn()?;
            let sent = self.send();
            self.shared.under_way.fetch_sub(dealt_with, Ordering::SeqCst);
            if executed > 0 || dealt_with > 0 || sent {
                continue;
            }
            if !is_done && self.waiting.is_empty() {
                is_done = true;
                self.shared.done.fetch_add(1, Ordering::SeqCst);
            }
            if self.shared.failed.load(Ordering::SeqCst) {
                bail!("another shard has failed");
            }
            if self.shared.done.load(Ordering::SeqCst) >= self.phases * shards
                && self.shared.under_way.load(Ordering::SeqCst) == 0
            {
                break;
            }
            self.sleep();
        }
        // Nobody begins the next phase while another may still look at this one's end.
        self.shared.left.fetch_add(1, Ordering::SeqCst);
        while self.shared.left.load(Ordering::SeqCst) < self.phases * shards {
            if self.shared.failed.load(Ordering::SeqCst) {
                bail!("another shard has failed");
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn sleep(&self) {
        let own = &self.shared.boxes[usize::from(self.me.0)];
        own.sleeps.store(true, Ordering::SeqCst);
        if own.packets.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            std::thread::park_timeout(NAP);
        }
        own.sleeps.store(false, Ordering::SeqCst);
    }

    fn turn(&mut self) -> Result<()> {
        loop {
            let effects = self.peers.turn(&mut self.engine, &mut |_, _| {});
            if effects.is_empty() {
                return Ok(());
            }
            for effect in effects {
                match effect {
                    Effect::Wake(ticket) => {
                        if let Some(read) = self.waiting.remove(&ticket) {
                            self.read(read)?;
                        }
                    }
                    effect => bail!("unexpected: {effect:?}"),
                }
            }
        }
    }

    /// Hands over what was said; whether there was anything.
    fn send(&mut self) -> bool {
        for (to, packet) in self.peers.take_packets() {
            self.outgoing[usize::from(to.0)].push((self.me, packet));
        }
        let mut any = false;
        for (at, packets) in self.outgoing.iter_mut().enumerate() {
            if packets.is_empty() {
                continue;
            }
            any = true;
            self.mails += 1;
            self.shared.under_way.fetch_add(packets.len() as i64, Ordering::SeqCst);
            let to = &self.shared.boxes[at];
            to.packets.lock().unwrap_or_else(PoisonError::into_inner).append(packets);
            if to.sleeps.swap(false, Ordering::SeqCst)
                && let Some(thread) = to.thread.get()
            {
                thread.unpark();
            }
        }
        any
    }

    /// Compares sampled timelines with a recomputation; a difference is told on stderr.
    fn verify(&mut self, twip: &Twip, batch: usize) -> Result<bool> {
        let mut rng = Rng::new(twip.common().seed ^ 0x5a5a);
        let users = self.shared.plan.graph.users;
        let drawn = (0..twip.common().sample).map(|_| rng.index(users) as u32);
        let own: Vec<u32> = drawn.filter(|&user| self.lives_here(user)).collect();
        // All have told what they did when this is over.
        self.phase(0..0, batch, |_, _: u32| Ok(()))?;
        let since = self.recent();
        self.phase(own.clone(), batch, |site, user| site.read(Read { user, since, keeps: true }))?;
        let world = self.shared.world.lock().unwrap_or_else(PoisonError::into_inner);
        for user in own {
            let answered = self.answered.get(&user).map(Vec::as_slice).unwrap_or_default();
            if let Err(error) = world.verify(user, since, answered) {
                writeln!(std::io::stderr(), "{error}")?;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn seconds(time: rustix::time::Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
