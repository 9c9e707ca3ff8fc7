//! Posts that go to all followers' timelines: written by the client before the acknowledgement, by workers behind a queue, by
//! a flow.
//!
//! Each way has servers of its own, started for each pair. What is done, one after the other: as fast as it goes; at 80 % of
//! what the synchronous way can do, and at other shares of that; half of it with a burst of twice as much; a post to very many followers among the
//! others; and `kill -9` under load, after which what was acknowledged is looked for.
//!
//! - [`world`]: who follows whom. [`site`]: the ways. [`nats`]: NATS' protocol. [`load`]: the clients. [`tell`]: tables.
//!   `picture`: the picture.

pub mod load;
pub mod nats;
mod picture;
pub mod site;
pub mod tell;
pub mod world;

use crate::args::{Common, within};
use crate::experiment::{Progress, take_turns};
use crate::measure::process;
use crate::peer::{Launch, System, stop};
use crate::wire::connection::moved_bytes;
use crate::wire::{Connection, resp};
use anyhow::{Context, Result};
use core::time::Duration;
use load::{Answered, moments};
use rustix::process::Signal;
use site::{Site, Way};
use std::time::Instant;
use tell::{Killed, LOADS, Measured, Phase};
use world::{Post, World};

/// Posts of the saturating load.
const POSTS: f64 = 30_000.0;
/// Seconds at 80 %, at other shares, and before a burst.
const STEADY: f64 = 10.0;
const SHARE: f64 = 4.0;
/// Posts of a load, at least.
const LEAST: f64 = 20.0;
const BEFORE: f64 = 5.0;
/// Seconds of a burst.
const BURST: f64 = 30.0;
/// Followers of the one poster whom very many follow.
const MANY: f64 = 500_000.0;
/// Seconds of load before a kill, at most.
const KILL_AFTER: f64 = 2.0;

/// Posts to followers' timelines: by the client, by workers behind redis or nats, by a flow.
#[derive(Clone, Debug, clap::Args)]
pub struct Flows {
    #[command(flatten)]
    common: Common,
    /// Users of the follower graph.
    #[arg(long, default_value_t = 5000, value_name = "N")]
    users: usize,
    /// Whom a user follows, on average.
    #[arg(long, default_value_t = 40.0, value_name = "N")]
    follows: f64,
    /// How often each way's store is killed under load.
    #[arg(long, default_value_t = 2, value_name = "N")]
    kills: usize,
}

/// What a way has cost so far.
#[derive(Clone, Copy, Debug)]
struct Spent {
    store: Duration,
    queue: Duration,
    own: Duration,
    bytes: u64,
}

impl Spent {
    fn by(site: &Site<'_>) -> Result<Self> {
        let queue = site.queue.as_ref().map_or(Ok(Duration::ZERO), |queue| queue.cpu())?;
        let (own, bytes) = (process::own_cpu(), moved_bytes());
        Ok(Self { store: site.store.cpu()?, queue, own, bytes })
    }
}

impl Flows {
    /// Measures, prints tables, and writes the files that were asked for.
    ///
    /// # Errors
    /// An option is wrong, a peer is not installed, or a run fails.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--users", self.users as f64, 10.0, 1e6)?;
        within("--follows", self.follows, 1.0, 1000.0)?;
        within("--kills", self.kills as f64, 0.0, 1000.0)?;
        let known = [System::Redis, System::Nats];
        let queues = System::list(&self.common.against, "flows", &known)?;
        let launch = self.common.launch(0)?;
        launch.check(&queues)?;
        launch.check(&[System::Headwater])?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        // The synchronous way comes first: the others are given its load.
        let mut ways = vec![Way::Synchronous, Way::Flow];
        ways.extend(queues.iter().map(|queue| match queue {
            System::Nats => Way::Nats,
            _ => Way::Streams,
        }));
        let pairs = take_turns(&[System::Headwater], self.common.pairs, |_, pair, progress| {
            let mut rate = 0.0;
            let mut measured = Vec::new();
            for &way in &ways {
                measured.push(self.measure(way, pair, &launch, &mut rate, progress)?);
            }
            Ok(measured)
        })?;
        let measured: Vec<Measured> = pairs.into_iter().flatten().collect();
        tell::tell(&self.common, self.common.params(), &measured)
    }

    fn count(&self, usual: f64) -> usize {
        ((usual * self.common.scale) as usize).max(10)
    }

    fn measure(
        &self,
        way: Way,
        pair: usize,
        launch: &Launch,
        rate: &mut f64,
        progress: &Progress,
    ) -> Result<Measured> {
        let mut world = World::new(self.users, self.follows, self.common.seed);
        let saturating = world.posts(self.count(POSTS));
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let kept = |name: &str, durability: &str| -> Vec<String> {
            let path = folder.path().join(name).display().to_string();
            ["--data", &path, "--durability", durability].map(String::from).to_vec()
        };
        let what = |phase: &str| progress.phase(&format!("{} {phase}", way.name()), 1);
        let mut phases = Vec::new();
        what("saturated");
        let site = Site::start(way, &world, launch, &kept("first", "interval"))?;
        site.load()?;
        let phase = self.phase("saturated", &site, &saturating, None)?;
        if way == Way::Synchronous {
            *rate = saturating.len() as f64 / phase.drained_s;
        }
        phases.push(phase);
        let missing = site.missing(&saturating)?;
        drop(site);
        // A new world goes on with the posts.
        let scale = self.common.scale;
        let loads = LOADS.map(|(percent, load)| {
            let share = f64::from(percent) / 100.0 * *rate;
            let seconds = if load == "80 %" { STEADY } else { SHARE };
            let mut due = Vec::new();
            moments(&mut due, 0.0, (seconds * scale).max(LEAST / share), share);
            let posts = world.posts(due.len());
            (load, due, posts)
        });
        let mut burst_due = Vec::new();
        moments(&mut burst_due, 0.0, BEFORE * scale, 0.5 * *rate);
        moments(&mut burst_due, BEFORE * scale, BURST * scale, 2.0 * *rate);
        let burst = world.posts(burst_due.len());
        let many_posts = world.posts((0.5 * *rate * 60.0) as usize);
        let site = Site::start(way, &world, launch, &kept("second", "interval"))?;
        site.load()?;
        for (load, due, posts) in &loads {
            what(load);
            phases.push(self.phase(load, &site, posts, Some(due))?);
        }
        what("burst");
        phases.push(self.phase("burst", &site, &burst, Some(&burst_due))?);
        what("one to many");
        let many = self.many(&site, &many_posts, *rate)?;
        phases.extend(many);
        drop(site);
        let mut killed = Killed::default();
        for round in 0..self.kills {
            what(&format!("kill {}", round + 1));
            let posts = world.posts(self.count(1e6));
            let arguments = kept(&format!("kill-{round}"), "always");
            self.kill(way, &world, launch, &arguments, &posts, &mut killed)?;
        }
        Ok(Measured { way: way.name(), pair, phases, missing, killed })
    }

    fn phase(
        &self,
        name: &'static str,
        site: &Site<'_>,
        posts: &[Post],
        due: Option<&[Duration]>,
    ) -> Result<Phase> {
        let before = Spent::by(site)?;
        let begun = Instant::now();
        let delivered = site.delivered.load(std::sync::atomic::Ordering::Relaxed);
        let mut backlog = 0;
        let answered = site.with_workers(|| {
            let answered = load::run(site, posts, due, self.common.connections)?;
            let posted = delivered + answered.answers.len() as u64;
            backlog = site.backlog(&mut site.store.connect()?, posted)?;
            site.drain(posted)?;
            Ok(answered)
        })?;
        let drained_s = begun.elapsed().as_secs_f64();
        let spent = Spent::by(site)?;
        Ok(Phase {
            name,
            posts: answered.answers.len(),
            deliveries: site.world.deliveries(posts),
            refused: answered.refused + answered.broken,
            answered,
            drained_s,
            backlog,
            store_cpu_s: (spent.store - before.store).as_secs_f64(),
            queue_cpu_s: (spent.queue.saturating_sub(before.queue)).as_secs_f64(),
            own_cpu_s: (spent.own - before.own).as_secs_f64(),
            bytes: spent.bytes - before.bytes,
        })
    }

    /// A post to very many followers, and small ones beside it.
    fn many(&self, site: &Site<'_>, posts: &[Post], rate: f64) -> Result<Vec<Phase>> {
        let followers = self.count(MANY);
        let mut control = site.store.connect()?;
        load_many(&mut control, followers)?;
        let mut due = Vec::new();
        moments(&mut due, 0.0, 60.0, 0.5 * rate);
        let delivered = site.delivered.load(std::sync::atomic::Ordering::Relaxed);
        let mut wide = Answered::default();
        let answered = site.with_workers(|| {
            // It is under way while the small ones are posted, as long as it takes, or a second more.
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut client = site.client(9999)?;
            std::thread::scope(|scope| {
                let poster = scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(500));
                    let begun = Instant::now();
                    let done = client.post_as("many|0001", &[b'x'; 200]);
                    let acknowledged = begun.elapsed();
                    done.map(|()| (acknowledged, begun))
                });
                let watch = scope.spawn(move || -> Result<(f64, f64)> {
                    let (acknowledged, begun) =
                        poster.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
                    let wanted = format!("t|u{:07}|0001|many", followers - 1);
                    while !is_there(&mut control, &wanted)? {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    let took = begun.elapsed().as_secs_f64();
                    // Nobody listens if it took longer than the load.
                    let _ = sender.send(());
                    Ok((acknowledged.as_secs_f64() * 1e3, took))
                });
                let chunk = (rate * 0.5).max(10.0) as usize;
                let mut all = Answered::default();
                for (posts, due) in posts.chunks(chunk).zip(due.chunks(chunk)) {
                    let first = due.first().copied().unwrap_or_default();
                    let due: Vec<Duration> = due.iter().map(|&due| due - first).collect();
                    let done = load::run(site, posts, Some(&due), self.common.connections)?;
                    all.seconds += done.seconds;
                    all.refused += done.refused + done.broken;
                    all.answers.extend(done.answers);
                    if receiver.try_recv().is_ok() {
                        break;
                    }
                }
                let (acknowledged, took) =
                    watch.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
                wide.answers.push(load::Answer { post: 0, due: 0.0, took: acknowledged });
                wide.seconds = took;
                site.drain(delivered + all.answers.len() as u64 + 1)?;
                Ok(all)
            })
        })?;
        let phase = |name, answered: Answered, drained_s, deliveries| Phase {
            name,
            posts: answered.answers.len(),
            deliveries,
            refused: answered.refused,
            answered,
            drained_s,
            backlog: 0,
            store_cpu_s: 0.0,
            queue_cpu_s: 0.0,
            own_cpu_s: 0.0,
            bytes: 0,
        };
        let (seconds, took) = (answered.seconds, wide.seconds);
        let deliveries = site.world.deliveries(&posts[..answered.answers.len().min(posts.len())]);
        Ok(vec![
            phase("beside many", answered, seconds, deliveries),
            phase("to many", wide, took, followers as u64),
        ])
    }

    /// Kills the store under load and looks for what was acknowledged.
    fn kill(
        &self,
        way: Way,
        world: &World,
        launch: &Launch,
        arguments: &[String],
        posts: &[Post],
        killed: &mut Killed,
    ) -> Result<()> {
        if way.queue().is_some() {
            // What is in another system's queue is that system's affair.
            return Ok(());
        }
        let site = Site::start(way, world, launch, arguments)?;
        site.load()?;
        let after = KILL_AFTER * (0.3 + 0.7 * (killed.rounds as f64 * 0.37).fract());
        let answered = std::thread::scope(|scope| {
            let load = scope.spawn(|| load::run(&site, posts, None, self.common.connections));
            std::thread::sleep(Duration::from_secs_f64(after));
            site.store.signal(Signal::KILL);
            load.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })?;
        drop(site);
        let begun = Instant::now();
        let site = Site::start(way, world, launch, arguments)?;
        site.drain(0)?;
        let mut acknowledged: Vec<usize> = answered.answers.iter().map(|a| a.post).collect();
        acknowledged.sort_unstable();
        let acknowledged: Vec<Post> = acknowledged.into_iter().map(|at| posts[at]).collect();
        killed.rounds += 1;
        killed.recovered_s = killed.recovered_s.max(begun.elapsed().as_secs_f64());
        killed.acknowledged += acknowledged.len();
        killed.missing += site.missing(&acknowledged)?;
        Ok(())
    }
}

/// The followers of the one whom very many follow.
fn load_many(control: &mut Connection, followers: usize) -> Result<()> {
    let mut loader = crate::wire::Loader::new(control, resp::skip);
    let keys = (0..followers).map(|user| (format!("f|many|u{user:07}"), []));
    resp::set_all(&mut loader, keys)?;
    loader.finish()
}

fn is_there(control: &mut Connection, key: &str) -> Result<bool> {
    resp::command(&mut control.out, &[b"EXISTS", key.as_bytes()]);
    control.flush()?;
    Ok(resp::integer(&mut control.input)? > 0)
}
