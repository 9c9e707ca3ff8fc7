//! What scaling costs: Twip on one shard and on many.
//!
//! Where there are fewer cores than shards, throughput says nothing about what more shards would bring on
//! more cores; the work does. So the figures are the CPU that an operation takes in all shards together,
//! what crosses between shards, and what is held twice. [`served`] measures a server with its protocol and the forwarding of
//! requests; [`within`] drives engines and their links alone, each by a thread that
//! executes the operations of the users who live there, as clients would that know where to ask.

pub mod served;
mod site;
pub mod tell;
pub mod within;

use crate::measure::Run;
use crate::peer::stop;
use crate::report::{Case, Report};
use crate::twip::run::Twip;
use crate::twip::world::World;
use crate::wire::Key;
use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use std::io::Write;

/// Most shards, as the server has it.
const SHARDS_MAX: u16 = 256;

/// Twip over growing numbers of shards: CPU per operation, messages, duplicated base data; Headwater alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Scale {
    #[command(flatten)]
    twip: Twip,
    /// Numbers of shards. The first is what the others are compared with.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,48", value_name = "N,…")]
    shards: Vec<u16>,
    /// What is measured.
    #[arg(long, value_enum, default_value = "server")]
    driver: Driver,
}

/// What executes the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Driver {
    /// A server, asked over connections by a generator that knows nothing of shards.
    Server,
    /// Engines in this process, each driven by a thread of its own: no protocol, nothing forwarded.
    Engines,
}

/// What crossed between shards in a run, and what is held more than once at its end.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Crossed {
    /// Requests that another shard than the client's executed.
    pub requests: u64,
    /// Hand-overs from one shard to another: each has all letters of a turn.
    pub batches: u64,
    /// Messages of engines to one another.
    pub packets: u64,
    /// Changes of keys among them, one for each shard that follows the key.
    pub changes: u64,
    /// Bytes of requests, replies, keys and values.
    pub bytes: u64,
    /// Bytes of keys and values that shards hold of others.
    pub replica_bytes: u64,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// On so many shards.
    pub shards: u16,
    /// What it cost.
    pub run: Run,
    /// What crossed.
    pub crossed: Crossed,
}

impl Scale {
    /// Runs all numbers of shards in turn and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        self.check()?;
        let common = self.twip.common();
        let launch = common.launch(0)?;
        launch.pinning.check()?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let plan = self.twip.plan()?;
        let mut params = self.twip.params(&plan);
        let driver = format!("{:?}", self.driver).to_lowercase();
        params.insert(String::from("driver"), json!(driver));
        let base_bytes = base_bytes(&World::new(&plan));
        params.insert(String::from("base_bytes_before"), json!(base_bytes));
        let mut all: Vec<Measured> = Vec::new();
        for pair in 1..=common.pairs {
            for &shards in &self.shards {
                stop::check()?;
                let measured = match self.driver {
                    Driver::Server => served::run(&self.twip, &plan, &launch, shards, pair)?,
                    Driver::Engines => within::run(&self.twip, &plan, &launch, shards, pair)?,
                };
                all.push(measured);
            }
        }
        let text = tell::table(&all, &self.shards, base_bytes);
        std::io::stdout().lock().write_all(text.as_bytes())?;
        let cases = self.shards.iter().map(|&shards| {
            let of = || all.iter().filter(|measured| measured.shards == shards);
            let crossed = of().next_back().map(|last| last.crossed).unwrap_or_default();
            let value = json!({
                "shards": shards,
                "requests_forwarded": crossed.requests,
                "batches": crossed.batches,
                "packets": crossed.packets,
                "changes": crossed.changes,
                "bytes": crossed.bytes,
                "replica_bytes": crossed.replica_bytes,
            });
            let params: Map<String, Value> = value.as_object().cloned().unwrap_or_default();
            let runs = of().map(|measured| measured.run.clone()).collect();
            Case { name: format!("{shards} shards"), params, runs }
        });
        common.write(&Report::new("scale", params, cases.collect()))
    }

    fn check(&self) -> Result<()> {
        self.twip.check()?;
        if !self.twip.common().against.is_empty() || self.twip.common().peers_only {
            bail!("--against: scale measures Headwater alone");
        }
        if !self.twip.is_plain_push() {
            bail!("--mode, --celebrities: scale measures the push join");
        }
        match self.shards.iter().find(|shards| !(1..=SHARDS_MAX).contains(shards)) {
            Some(shards) => bail!("--shards {shards}: allowed are 1 to {SHARDS_MAX}"),
            None if self.shards.is_empty() => bail!("--shards: at least one number"),
            None => Ok(()),
        }
    }
}

/// Bytes of the keys and values of all subscriptions and posts.
fn base_bytes(world: &World<'_>) -> u64 {
    let subscription = Key::new(b"s|").user(0).text(b"|").user(0).len() + 1;
    let post = Key::new(b"p|").user(0).text(b"|").time(0).len();
    let users = 0..world.plan.graph.users as u32;
    let of = |user: u32| {
        let texts = world.posts(user).iter().map(|&time| post + world.plan.text(time).len());
        world.follows(user).count() * subscription + texts.sum::<usize>()
    };
    users.map(|user| of(user) as u64).sum()
}
