//! Runs of Twip: the options, the loop's driver, and the verification.

use super::client::ClientManaged;
use super::headwater::{Joins, WithJoins};
use super::memcached::Strings;
use super::plan::{Kind, Op, Params, Plan, Preset};
use super::postgres::Triggers;
use super::redis::SortedSets;
use super::world::World;
use super::{Backend, Mode, Post};
use crate::args::{Common, within};
use crate::cluster::site::{MACHINES, Site};
use crate::drive::{Driver, drive};
use crate::experiment::{Cost, PhasedRun, Progress, phased, take_turns};
use crate::peer::{Launch, Measured, Server, System, stop};
use crate::wire::Connection;
use anyhow::{Result, bail};
use headwater_workload::{Graph, Rng};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Users beyond which keys would not sort: names have seven digits.
const USERS_MAX: usize = 10_000_000;
/// Mean followees in a generated graph.
const MEAN_FOLLOWEES: f64 = 40.0;
/// Users of Pequod's prototype, if no other number is asked for.
const PROTOTYPE_USERS: usize = 20_000;
/// Whom each of its users follows: from so many to so many others.
const PROTOTYPE_FOLLOWEES: (usize, usize) = (20, 200);

/// Timelines: logins, checks, subscriptions and posts over a follower graph.
#[derive(Clone, Debug, clap::Args)]
pub struct Twip {
    #[command(flatten)]
    common: Common,
    /// Do what the program of Pequod's prototype does: 20 000 users (or --users) who follow 20 to 200 others each (at most a
    /// quarter of all) and have no posts at the start, five bytes a post, 100 checks for each active user (or --checks), and for each post 10
    /// subscriptions, 5 logins, 100 checks.
    #[arg(long, conflicts_with_all = ["graph", "posting", "posts", "window"])]
    pequod: bool,
    /// A follower graph: two ids per line (a follows b), plain, .gz or .zst. The graph that
    /// is shipped, if neither this nor --users is given.
    #[arg(long, value_name = "FILE", conflicts_with = "users")]
    graph: Option<PathBuf>,
    /// Generate a power-law graph of so many users instead.
    #[arg(long, value_name = "N")]
    users: Option<usize>,
    /// Percent of users who are active.
    #[arg(long, default_value_t = 70.0, value_name = "1..100")]
    active: f64,
    /// Percent of the active users who come seldom.
    #[arg(long, default_value_t = 0.0, value_name = "0..100")]
    seldom: f64,
    /// How many times as often as these the others come.
    #[arg(long, default_value_t = 50.0, value_name = "N")]
    seldom_times: f64,
    /// Percent of the operations that are posts.
    ///
    /// [default: 1]
    #[arg(long, value_name = "0..50")]
    posting: Option<f64>,
    /// Incremental checks per active user; logins, subscriptions and posts follow from them.
    ///
    /// [default: 50]
    #[arg(long, value_name = "N")]
    checks: Option<f64>,
    /// Posts before the run; as many as users if not given.
    #[arg(long, value_name = "N")]
    posts: Option<usize>,
    /// How many posts back a login reads; as many as posts before the run if not given.
    #[arg(long, value_name = "N")]
    window: Option<u32>,
    /// How Headwater keeps timelines.
    #[arg(long, value_enum, default_value = "push")]
    mode: Mode,
    /// Keep the most-followed 0.1 % of posters in tables and a pull join of their own.
    #[arg(long)]
    celebrities: bool,
    /// End Headwater's reads of timelines at the newest post's moment (`RANGE t|u|last t|u|now`), as a client
    /// does that goes by time, not at the end of the timeline.
    #[arg(long)]
    bounded: bool,
    /// Read every active user's timeline once before the measurement.
    #[arg(long)]
    warm: bool,
    /// Users in flight per connection.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pipeline: usize,
}

/// How long an acknowledged post may take until all nodes show it.
const ARRIVES: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// The peers of this workload.
const PEERS: [System; 13] = [
    System::Valkey,
    System::Redis,
    System::Memcached,
    System::Postgres,
    System::Client,
    System::Push,
    System::PushAll,
    System::Pull,
    System::Auto,
    System::Celebrities,
    System::Boundary,
    System::Shards,
    System::Cluster,
];

/// Starts what is measured.
fn start(system: System, launch: &Launch) -> Result<Box<dyn Measured>> {
    if system != System::Cluster {
        return Ok(Box::new(Server::start(system, launch)?));
    }
    launch.pinning.enter_server()?;
    let site = Site::start_shards(launch.headwater.clone(), MACHINES);
    launch.pinning.enter_generator()?;
    let site = site?;
    site.await_links()?;
    Ok(Box::new(site))
}

impl Twip {
    /// Runs all pairs and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a peer is missing, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        self.check()?;
        let systems = self.common.systems("twip", &PEERS)?;
        let launch = self.common.launch(0)?;
        launch.check(&systems)?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let plan = self.plan()?;
        let turns = take_turns(&systems, self.common.pairs, |system, pair, progress| {
            self.one(&plan, &launch, system, pair, progress, &mut |_| Ok(()))
        })?;
        self.common.tell(&phased("twip", self.params(&plan), &turns))
    }

    /// The options that all workloads share.
    pub(crate) fn common(&self) -> &Common {
        &self.common
    }

    /// Whether each timeline is read once before the measurement.
    pub(crate) fn is_warm(&self) -> bool {
        self.warm
    }

    /// Operations in flight at once, for each connection.
    pub(crate) fn pipeline(&self) -> usize {
        self.pipeline
    }

    /// Whether timelines are kept by the push join, all alike.
    pub(crate) fn is_plain_push(&self) -> bool {
        self.mode == Mode::Push && !self.celebrities
    }

    /// Draws what happens.
    ///
    /// # Errors
    /// The graph cannot be read, or is of no use.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let graph = self.graph()?;
        let preset = self.preset();
        let posts = self.posts.or(preset.posts).unwrap_or(graph.users);
        let params = Params {
            active: self.active,
            seldom: self.seldom,
            seldom_times: self.seldom_times,
            mix: preset.mix,
            posting: self.posting(),
            text_bytes: preset.text_bytes,
            checks: self.checks() * self.common.scale,
            posts,
            window: self.window.or(preset.window).unwrap_or(posts as u32),
            seed: self.common.seed,
            connections: self.common.connections,
            pipeline: self.pipeline,
        };
        Ok(Plan::draw(graph, &params))
    }

    fn preset(&self) -> Preset {
        if self.pequod { Preset::PROTOTYPE } else { Preset::PAPER }
    }

    fn posting(&self) -> f64 {
        self.posting.unwrap_or_else(|| self.preset().mix.posting())
    }

    fn checks(&self) -> f64 {
        self.checks.unwrap_or(self.preset().checks)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// One is wrong; the message says what is allowed.
    pub(crate) fn check(&self) -> Result<()> {
        self.common.check()?;
        within("--active", self.active, 0.001, 100.0)?;
        within("--seldom", self.seldom, 0.0, 99.0)?;
        within("--seldom-times", self.seldom_times, 1.0, 1e6)?;
        within("--posting", self.posting(), 0.0, 50.0)?;
        within("--checks", self.checks(), 0.001, 1e6)?;
        within("--pipeline", self.pipeline as f64, 1.0, 4096.0)?;
        within("--posts", self.posts.unwrap_or(0) as f64, 0.0, 1e8)?;
        if let Some(users) = self.users {
            within("--users", users as f64, 10.0, USERS_MAX as f64)?;
        }
        if self.celebrities && self.mode != Mode::Push {
            bail!("--celebrities: only with --mode push, whose join it splits");
        }
        Ok(())
    }

    fn graph(&self) -> Result<Graph> {
        let graph = match (&self.graph, self.users) {
            (Some(path), _) => Graph::read(path)?,
            (None, users) if self.pequod => {
                let (least, most) = PROTOTYPE_FOLLOWEES;
                Graph::uniform(users.unwrap_or(PROTOTYPE_USERS), least, most, self.common.seed)
            }
            (None, Some(users)) => Graph::generate(users, MEAN_FOLLOWEES, self.common.seed),
            (None, None) => Graph::wiki_vote(),
        };
        if graph.users > USERS_MAX || graph.edges() == 0 {
            bail!(
                "the graph has {} users and {} edges (allowed: at most {USERS_MAX} users, at \
                 least one edge)",
                graph.users,
                graph.edges()
            );
        }
        Ok(graph)
    }

    /// The settings, for the report.
    pub(crate) fn params(&self, plan: &Plan) -> Map<String, Value> {
        let graph = match (&self.graph, self.users) {
            (Some(path), _) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            (None, _) if self.pequod => String::from("generated, uniform"),
            (None, Some(_)) => String::from("generated"),
            (None, None) => String::from("wiki-vote"),
        };
        let value = json!({
            "graph": graph,
            "users": plan.graph.users,
            "edges": plan.graph.edges(),
            "active_percent": self.active,
            "seldom_percent": self.seldom,
            "seldom_times": self.seldom_times,
            "pequod": self.pequod,
            "posting_percent": self.posting(),
            "checks_per_active_user": self.checks() * self.common.scale,
            "posts_before": plan.first_posters.len(),
            "window_posts": plan.window,
            "mode": format!("{:?}", self.mode).to_lowercase(),
            "celebrities": self.celebrities,
            "bounded": self.bounded,
            "warm": self.warm,
            "pipeline": self.pipeline,
            "operations": plan.schedule.operations(),
        });
        let mut params = self.common.params();
        params.extend(value.as_object().cloned().unwrap_or_default());
        params
    }

    fn backend(&self, system: System, world: &World<'_>) -> Box<dyn Backend> {
        let push = Joins {
            mode: "push",
            all: false,
            celebrities: false,
            boundary: false,
            bounded: self.bounded,
            apart: system == System::Cluster,
        };
        let joins = match (system, self.mode) {
            (System::Valkey | System::Redis, _) => return Box::new(SortedSets::default()),
            (System::Memcached, _) => return Box::new(Strings::default()),
            (System::Postgres, _) => return Box::new(Triggers),
            (System::Client, _) | (System::Headwater, Mode::Client) => {
                return Box::new(ClientManaged::default());
            }
            (System::PushAll, _) | (System::Headwater, Mode::PushAll) => {
                Joins { all: true, ..push }
            }
            (System::Pull, _) | (System::Headwater, Mode::Pull) => Joins { mode: "pull", ..push },
            (System::Auto, _) | (System::Headwater, Mode::Auto) => Joins { mode: "auto", ..push },
            (System::Boundary, _) => Joins { boundary: true, ..push },
            (System::Celebrities, _) => Joins { celebrities: true, ..push },
            (System::Headwater, Mode::Push) => Joins { celebrities: self.celebrities, ..push },
            _ => push,
        };
        Box::new(WithJoins::new(joins, world))
    }

    /// One run on a server of its own; `look` is called right before and after what is measured.
    ///
    /// # Errors
    /// The server does not start, refuses something, or answers what is no answer.
    pub(crate) fn one(
        &self,
        plan: &Plan,
        launch: &Launch,
        system: System,
        pair: usize,
        progress: &Progress,
        look: &mut dyn FnMut(&mut Connection) -> Result<()>,
    ) -> Result<PhasedRun> {
        let server = start(system, launch)?;
        let server = &*server;
        let mut world = World::new(plan);
        let mut backend = self.backend(system, &world);
        let mut control = server.connect_to(0)?;
        progress.phase("loading", plan.graph.edges() as u64);
        let loading = Cost::of(server, || {
            backend.load(&world, &mut control)?;
            Ok((plan.graph.edges() + plan.first_posters.len()) as u64)
        })?;
        let mut connections = (0..self.common.connections)
            .map(|number| {
                let mut connection = server.connect_to(number)?;
                backend.prepare(&mut connection)?;
                Ok(connection)
            })
            .collect::<Result<Vec<_>>>()?;
        backend.prepare(&mut control)?;
        let warming = self.warm.then(|| {
            progress.phase("warming", plan.active.len() as u64);
            Cost::of(server, || {
                for &user in &plan.active {
                    read_one(&mut *backend, &mut control, user, world.recent(), None)?;
                }
                Ok(plan.active.len() as u64)
            })
        });
        let warming = warming.transpose()?;
        look(&mut control)?;
        progress.phase("running", plan.schedule.operations());
        let lanes = (0..connections.len()).map(|_| Lane::default()).collect();
        let mut driver = TwipDriver { world: &mut world, backend: &mut *backend, lanes };
        let (schedule, limit, bar) = (&plan.schedule, self.common.limit(), &progress.bar);
        let cost = Cost::of(server, || drive(&mut driver, &mut connections, schedule, limit, bar))?;
        look(&mut control)?;
        progress.phase("verifying", self.common.sample as u64);
        let apart = system == System::Cluster;
        let verified = self.verify(&world, &mut *backend, &mut control, apart)?;
        Ok(PhasedRun::of(system, pair, verified, (loading, warming, cost)))
    }

    /// Compares sampled timelines with a recomputation; a difference is told on stderr.
    fn verify(
        &self,
        world: &World<'_>,
        backend: &mut dyn Backend,
        control: &mut Connection,
        apart: bool,
    ) -> Result<bool> {
        let mut rng = Rng::new(self.common.seed ^ 0x5a5a);
        let since = world.recent();
        let mut verified = true;
        for _ in 0..self.common.sample {
            let user = rng.index(world.plan.graph.users) as u32;
            let begun = Instant::now();
            let differs = loop {
                let mut answered = Vec::new();
                read_one(backend, control, user, since, Some(&mut answered))?;
                match world.verify(user, since, &answered) {
                    // What one node has acknowledged is on its way to the others.
                    Err(_) if apart && begun.elapsed() < ARRIVES => sleep(LOOK),
                    told => break told.err(),
                }
            };
            if let Some(error) = differs {
                writeln!(std::io::stderr(), "{error}")?;
                verified = false;
                break;
            }
        }
        Ok(verified)
    }
}

/// Reads one timeline outside the measured loop.
fn read_one(
    backend: &mut dyn Backend,
    control: &mut Connection,
    user: u32,
    since: u32,
    each: Option<&mut Vec<super::Entry>>,
) -> Result<()> {
    backend.begin_reads(&mut control.out);
    backend.read(&mut control.out, user, since);
    backend.end_reads(&mut control.out);
    control.flush()?;
    backend.seen(&mut control.input, since, each)?;
    backend.seen_all(&mut control.input)?;
    Ok(())
}

/// What a lane must remember between sending a batch and reading its replies.
#[derive(Clone, Debug, Default)]
struct Lane {
    /// Of each operation: the moment from which on it reads, or at which it posts.
    moments: Vec<u32>,
    /// Replies to the second half of posts and subscriptions that are under way.
    following: usize,
}

/// The operations of a batch in runs of reads and of others.
fn runs_of(batch: &[Op]) -> impl Iterator<Item = &[Op]> {
    batch.chunk_by(|one, other| one.kind.is_read() == other.kind.is_read())
}

struct TwipDriver<'a, 'p> {
    world: &'a mut World<'p>,
    backend: &'a mut dyn Backend,
    lanes: Vec<Lane>,
}

impl Driver for TwipDriver<'_, '_> {
    type Op = Op;

    fn send(&mut self, lane: usize, batch: &[Op], out: &mut Vec<u8>) {
        let Self { world, backend, lanes } = self;
        let moments = &mut lanes[lane].moments;
        moments.clear();
        for ops in runs_of(batch) {
            if ops[0].kind.is_read() {
                backend.begin_reads(out);
            }
            for op in ops {
                let moment = match op.kind {
                    Kind::Login | Kind::Subscribe => world.recent(),
                    Kind::Check => world.unseen(op.user),
                    Kind::Post => world.post(op.user),
                };
                moments.push(moment);
                match op.kind {
                    Kind::Login | Kind::Check => backend.read(out, op.user, moment),
                    Kind::Subscribe => {
                        world.subscribe(op.user, op.poster);
                        backend.subscribe(out, op.user, op.poster, moment);
                    }
                    Kind::Post => {
                        let text = world.plan.text(moment);
                        backend.post(out, Post { poster: op.user, time: moment, text });
                    }
                }
            }
            if ops[0].kind.is_read() {
                backend.end_reads(out);
            }
        }
    }

    fn receive(&mut self, lane: usize, batch: &[Op], connection: &mut Connection) -> Result<bool> {
        let Self { world, backend, lanes } = self;
        let lane = &mut lanes[lane];
        let Connection { input, out, .. } = connection;
        if lane.following > 0 {
            for _ in 0..core::mem::take(&mut lane.following) {
                backend.skip(input)?;
            }
            return Ok(false);
        }
        let mut moments = lane.moments.iter();
        for ops in runs_of(batch) {
            for (op, &moment) in ops.iter().zip(moments.by_ref()) {
                lane.following += match op.kind {
                    Kind::Login | Kind::Check => {
                        let seen = backend.seen(input, moment, None)?;
                        world.saw(op.user, seen);
                        0
                    }
                    Kind::Subscribe => backend.after_subscribe(input, out, op.user, moment)?,
                    Kind::Post => {
                        let text = world.plan.text(moment);
                        backend.after_post(
                            input,
                            out,
                            Post { poster: op.user, time: moment, text },
                        )?
                    }
                };
            }
            if ops[0].kind.is_read() {
                backend.seen_all(input)?;
            }
        }
        Ok(lane.following > 0)
    }
}
