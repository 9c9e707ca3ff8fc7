//! Twip on engines in this process, driven by a thread for each core.
//!
//! A thread gives its shards turns, one after the other: a shard takes in what others have sent, and executes a batch of
//! operations of the users whose group lives there. So many shards on few cores are as busy as they would be on many. All of a user's writes and reads live
//! on one shard, so nothing is forwarded: what remains is what the engines do and say to one another.
//!
//! # Invariants
//! - W1. `under_way` counts the packets that were sent and not dealt with, so that a phase ends when all have done
//!   their part, nobody waits, and nothing is on its way.

use super::site::{Nap, Read, Shared, Site};
use super::{Crossed, Measured};
use crate::measure::Run;
use crate::measure::pin::Pinning;
use crate::peer::Launch;
use crate::twip::plan::{Kind, Plan};
use crate::twip::run::Twip;
use crate::twip::world::World;
use anyhow::{Result, anyhow, bail};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use headwater_base::{Placement, Shard};
use headwater_workload::Rng;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// How long a thread with nothing to do sleeps at most.
const NAP: Duration = Duration::from_millis(1);

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

/// The shards of one thread.
struct ThreadShards<'s, 'p> {
    number: usize,
    shared: &'s Shared<'p>,
    sites: Vec<Site<'s, 'p>>,
    phases: usize,
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
    let crews = shards.min(2);
    let shared = Shared {
        plan,
        placement: Placement::even(shards),
        boxes: (0..shards).map(|_| Mutex::default()).collect(),
        crews: (0..crews).map(|_| Nap::default()).collect(),
        now: AtomicU32::new(world.now()),
        under_way: AtomicI64::new(0),
        done: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        world: Mutex::new(world),
    };
    let parts = std::thread::scope(|scope| {
        let spawn = |number: u16| {
            let shared = &shared;
            scope.spawn(move || {
                let mut together = Together { failed: &shared.failed, ended_well: false };
                pin(launch.pinning, number)?;
                let part = ThreadShards::new(number, shared)?.live(twip)?;
                together.ended_well = true;
                Ok(part)
            })
        };
        let threads: Vec<_> = (0..crews).map(spawn).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of shards has panicked")))
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
        batches: total(|crossed| crossed.batches),
        packets: total(|crossed| crossed.packets),
        changes: total(|crossed| crossed.changes),
        bytes: total(|crossed| crossed.bytes),
        replica_bytes: total(|crossed| crossed.replica_bytes),
    };
    Ok(Measured { shards, run, crossed })
}

/// The first thread has the servers' core, the second one the generator's.
fn pin(pinning: Pinning, number: u16) -> Result<()> {
    if number == 0 { pinning.enter_server() } else { pinning.enter_generator() }
}

impl<'s, 'p> ThreadShards<'s, 'p> {
    fn new(number: u16, shared: &'s Shared<'p>) -> Result<Self> {
        let crews = shared.crews.len();
        let own = (number..shared.placement.shards()).step_by(crews);
        let sites = own.map(|at| Site::new(Shard(at), shared)).collect::<Result<Vec<_>>>()?;
        let number = usize::from(number);
        // It is set once.
        let _ = shared.crews[number].thread.set(std::thread::current());
        Ok(Self { number, shared, sites, phases: 0 })
    }

    /// Deals tasks to the shards that the users live on.
    fn deal<T: Copy>(
        &self,
        tasks: impl Iterator<Item = T> + Clone,
        user: impl Fn(&T) -> u32,
    ) -> Vec<Vec<T>> {
        let of = |site: &Site<'_, '_>| {
            tasks.clone().filter(|task| site.lives_here(user(task))).collect()
        };
        self.sites.iter().map(of).collect()
    }

    fn crossed(&self) -> Crossed {
        let all: Vec<Crossed> = self.sites.iter().map(Site::crossed).collect();
        let sum = |figure: fn(&Crossed) -> u64| all.iter().map(figure).sum();
        Crossed {
            requests: 0,
            batches: sum(|crossed| crossed.batches),
            packets: sum(|crossed| crossed.packets),
            changes: sum(|crossed| crossed.changes),
            bytes: sum(|crossed| crossed.bytes),
            replica_bytes: sum(|crossed| crossed.replica_bytes),
        }
    }

    fn live(mut self, twip: &Twip) -> Result<Part> {
        let plan = self.shared.plan;
        let batch = twip.pipeline();
        self.sites.iter_mut().try_for_each(Site::load)?;
        let nothing = || vec![Vec::<u32>::new(); self.sites.len()];
        let (first, last) = (nothing(), nothing());
        self.phase(first, batch, |_, _| Ok(()))?;
        let active: &[u32] = if twip.is_warm() { &plan.active } else { &[] };
        let warm = self.deal(active.iter().copied(), |user| *user);
        self.phase(warm, batch, |site, user| {
            let since = site.recent();
            site.read(Read { user, since, keeps: false })
        })?;
        let ops = self.deal(plan.schedule.all().copied(), |op| op.user);
        let operations = ops.iter().map(|ops| ops.len() as u64).sum();
        let before = self.crossed();
        // All begin together.
        self.phase(last, batch, |_, _| Ok(()))?;
        let (cpu, wall) = (clock_gettime(ClockId::ThreadCPUTime), Instant::now());
        self.phase(ops, batch, Site::execute)?;
        let wall_s = wall.elapsed().as_secs_f64();
        let cpu_s = seconds(clock_gettime(ClockId::ThreadCPUTime)) - seconds(cpu);
        let after = self.crossed();
        let crossed = Crossed {
            batches: after.batches - before.batches,
            packets: after.packets - before.packets,
            changes: after.changes - before.changes,
            bytes: after.bytes - before.bytes,
            ..after
        };
        let mut world = self.shared.world.lock().unwrap_or_else(PoisonError::into_inner);
        for (op, time) in self.sites.iter_mut().flat_map(|site| core::mem::take(&mut site.done)) {
            match op.kind {
                Kind::Subscribe => world.subscribe(op.user, op.poster),
                _ => world.posted(op.user, time),
            }
        }
        drop(world);
        let verified = self.verify(twip, batch)?;
        Ok(Part { cpu_s, wall_s, operations, crossed, verified })
    }

    /// Does all tasks of each shard, and what others ask for meanwhile, until all threads have done theirs.
    fn phase<T>(
        &mut self,
        tasks: Vec<Vec<T>>,
        batch: usize,
        mut execute: impl FnMut(&mut Site<'s, 'p>, T) -> Result<()>,
    ) -> Result<()> {
        self.phases += 1;
        let all = self.phases * self.shared.crews.len();
        let mut tasks: Vec<_> = tasks.into_iter().map(Vec::into_iter).collect();
        let mut is_done = false;
        loop {
            let mut any = false;
            for (site, tasks) in self.sites.iter_mut().zip(&mut tasks) {
                any |= site.step(tasks, batch, &mut execute)?;
            }
            if any {
                continue;
            }
            if !is_done && self.sites.iter().all(|site| site.waiting.is_empty()) {
                is_done = true;
                self.shared.done.fetch_add(1, Ordering::SeqCst);
            }
            if self.shared.failed.load(Ordering::SeqCst) {
                bail!("other shards have failed");
            }
            if self.shared.done.load(Ordering::SeqCst) >= all
                && self.shared.under_way.load(Ordering::SeqCst) == 0
            {
                break;
            }
            self.sleep();
        }
        // Nobody begins the next phase while another may still look at this one's end.
        self.shared.left.fetch_add(1, Ordering::SeqCst);
        while self.shared.left.load(Ordering::SeqCst) < all {
            if self.shared.failed.load(Ordering::SeqCst) {
                bail!("other shards have failed");
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn sleep(&self) {
        let own = &self.shared.crews[self.number];
        own.sleeps.store(true, Ordering::SeqCst);
        let is_empty = |site: &Site<'_, '_>| {
            let mail = &self.shared.boxes[usize::from(site.me.0)];
            mail.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
        };
        if self.sites.iter().all(is_empty) {
            std::thread::park_timeout(NAP);
        }
        own.sleeps.store(false, Ordering::SeqCst);
    }

    /// Compares sampled timelines with a recomputation; a difference is told on stderr.
    fn verify(&mut self, twip: &Twip, batch: usize) -> Result<bool> {
        let mut rng = Rng::new(twip.common().seed ^ 0x5a5a);
        let users = self.shared.plan.graph.users;
        let drawn: Vec<u32> = (0..twip.common().sample).map(|_| rng.index(users) as u32).collect();
        let own = self.deal(drawn.into_iter(), |user| *user);
        // All have told what they did when this is over.
        let nothing = vec![Vec::<u32>::new(); self.sites.len()];
        self.phase(nothing, batch, |_, _| Ok(()))?;
        let since = self.sites.first().map_or(0, Site::recent);
        self.phase(own.clone(), batch, |site, user| site.read(Read { user, since, keeps: true }))?;
        let world = self.shared.world.lock().unwrap_or_else(PoisonError::into_inner);
        for (site, users) in self.sites.iter().zip(own) {
            for user in users {
                let answered = site.answered.get(&user).map(Vec::as_slice).unwrap_or_default();
                if let Err(error) = world.verify(user, since, answered) {
                    writeln!(std::io::stderr(), "{error}")?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn seconds(time: rustix::time::Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
