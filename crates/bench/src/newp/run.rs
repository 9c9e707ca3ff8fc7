//! Runs of Newp: the options, the loop's driver, and the verification.

use super::headwater::Joined;
use super::postgres::Tables;
use super::redis::Counters;
use super::site::{Params, Plan, Session, Site};
use super::{Page, Pages};
use crate::args::{Common, within};
use crate::drive::{Driver, drive};
use crate::experiment::{Cost, PhasedRun, Progress, phased, take_turns};
use crate::peer::{Launch, Server, System, stop};
use crate::wire::Connection;
use anyhow::Result;
use headwater_workload::Rng;
use serde_json::{Map, Value, json};
use std::io::Write;

/// Pages of a news site: interleaved joins against separate ones and against other systems.
#[derive(Clone, Debug, clap::Args)]
pub struct Newp {
    #[command(flatten)]
    common: Common,
    /// Percent of sessions that vote.
    #[arg(long, default_value_t = 10.0, value_name = "0..100")]
    vote: f64,
    /// Articles (times --scale).
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    articles: u32,
    /// Users (times --scale).
    #[arg(long, default_value_t = 50_000, value_name = "N")]
    users: u32,
    /// Comments before the run (times --scale).
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    comments: u32,
    /// Votes before the run (times --scale).
    #[arg(long, default_value_t = 2_000_000, value_name = "N")]
    votes: u32,
    /// Sessions (times --scale).
    #[arg(long, default_value_t = 500_000, value_name = "N")]
    sessions: u32,
    /// Read every page once before the measurement.
    #[arg(long)]
    warm: bool,
    /// Sessions in flight per connection.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pipeline: usize,
}

/// The peers of this workload.
const PEERS: [System; 4] = [System::Separate, System::Valkey, System::Redis, System::Postgres];

impl Newp {
    /// Runs all pairs and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a peer is missing, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--vote", self.vote, 0.0, 100.0)?;
        within("--pipeline", self.pipeline as f64, 1.0, 4096.0)?;
        let systems = self.common.systems("newp", &PEERS)?;
        let launch = self.common.launch(0)?;
        launch.check(&systems)?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let params = self.params()?;
        let plan = Plan::draw(params);
        let turns = take_turns(&systems, self.common.pairs, |system, pair, progress| {
            self.one(&plan, &launch, system, pair, progress)
        })?;
        self.common.tell(&phased("newp", self.told(&params), &turns))
    }

    fn params(&self) -> Result<Params> {
        let scaled = |option: &str, number: u32, least: f64, most: f64| -> Result<u32> {
            let value = f64::from(number) * self.common.scale;
            within(option, value, least, most).map(|()| value as u32)
        };
        Ok(Params {
            articles: scaled("--articles (times --scale)", self.articles, 1.0, 9e6)?,
            users: scaled("--users (times --scale)", self.users, 2.0, 9e6)?,
            comments: scaled("--comments (times --scale)", self.comments, 0.0, 9e7)?,
            votes: scaled("--votes (times --scale)", self.votes, 0.0, 1e9)?,
            sessions: scaled("--sessions (times --scale)", self.sessions, 1.0, 1e9)?,
            vote_percent: self.vote,
            seed: self.common.seed,
            connections: self.common.connections,
            pipeline: self.pipeline,
        })
    }

    fn told(&self, params: &Params) -> Map<String, Value> {
        let value = json!({
            "articles": params.articles,
            "users": params.users,
            "comments": params.comments,
            "votes": params.votes,
            "sessions": params.sessions,
            "vote_percent": params.vote_percent,
            "warm": self.warm,
            "pipeline": self.pipeline,
        });
        let mut told = self.common.params();
        told.extend(value.as_object().cloned().unwrap_or_default());
        told
    }

    fn one(
        &self,
        plan: &Plan,
        launch: &Launch,
        system: System,
        pair: usize,
        progress: &Progress,
    ) -> Result<PhasedRun> {
        let server = Server::start(system, launch)?;
        let mut site = plan.site.clone();
        let mut pages: Box<dyn Pages> = match system {
            System::Valkey | System::Redis => Box::new(Counters::default()),
            System::Postgres => Box::new(Tables::default()),
            _ => Box::new(Joined::new(system != System::Separate)),
        };
        let mut control = server.connect()?;
        progress.phase("loading", u64::from(plan.params.votes));
        let loading = Cost::of(&server, || {
            pages.load(&site, &mut control)?;
            Ok(plan.params.items())
        })?;
        let mut connections = (0..self.common.connections)
            .map(|_| {
                let mut connection = server.connect()?;
                pages.prepare(&mut connection)?;
                Ok(connection)
            })
            .collect::<Result<Vec<_>>>()?;
        pages.prepare(&mut control)?;
        let warming = self.warm.then(|| {
            progress.phase("warming", u64::from(plan.params.articles));
            Cost::of(&server, || {
                for article in 0..plan.params.articles {
                    read_one(&mut *pages, &mut control, &site, article)?;
                }
                Ok(u64::from(plan.params.articles))
            })
        });
        let warming = warming.transpose()?;
        progress.phase("running", plan.schedule.operations());
        let lanes = (0..connections.len()).map(|_| Lane::default()).collect();
        let mut driver = NewpDriver { site: &mut site, pages: &mut *pages, lanes };
        let (schedule, limit, bar) = (&plan.schedule, self.common.limit(), &progress.bar);
        let cost =
            Cost::of(&server, || drive(&mut driver, &mut connections, schedule, limit, bar))?;
        let mut rng = Rng::new(self.common.seed ^ 0x5a5a);
        let mut verified = true;
        for _ in 0..self.common.sample {
            let article = rng.below(u64::from(plan.params.articles)) as u32;
            let page = read_one(&mut *pages, &mut control, &site, article)?;
            if let Err(error) = site.verify(article, page) {
                writeln!(std::io::stderr(), "{error}")?;
                verified = false;
                break;
            }
        }
        Ok(PhasedRun::of(system, pair, verified, (loading, warming, cost)))
    }
}

/// Reads one page outside the measured loop.
fn read_one(
    pages: &mut dyn Pages,
    control: &mut Connection,
    site: &Site,
    article: u32,
) -> Result<Page> {
    let mut page = Page::default();
    pages.read(&mut control.out, site, article);
    pages.end_reads(&mut control.out);
    control.flush()?;
    let more = pages.got(&mut control.input, &mut control.out, Some(&mut page))?;
    pages.got_all(&mut control.input)?;
    if more {
        control.flush()?;
        pages.got_more(&mut control.input, Some(&mut page))?;
    }
    Ok(page)
}

/// Which round trip of its batch a lane waits for.
#[derive(Clone, Copy, Debug, Default)]
enum Round {
    /// The pages.
    #[default]
    Read,
    /// So many look-ups, then the votes and comments.
    Write { look_ups: usize },
    /// So many replies to what new votes made necessary.
    Follow { replies: usize },
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    round: Round,
}

struct NewpDriver<'a> {
    site: &'a mut Site,
    pages: &'a mut dyn Pages,
    lanes: Vec<Lane>,
}

impl Driver for NewpDriver<'_> {
    type Op = Session;

    fn send(&mut self, lane: usize, batch: &[Session], out: &mut Vec<u8>) {
        self.lanes[lane].round = Round::Read;
        for session in batch {
            self.pages.read(out, self.site, session.article);
        }
        self.pages.end_reads(out);
    }

    fn receive(
        &mut self,
        lane: usize,
        batch: &[Session],
        connection: &mut Connection,
    ) -> Result<bool> {
        let Self { site, pages, lanes } = self;
        let Connection { input, out, .. } = connection;
        let round = &mut lanes[lane].round;
        match *round {
            Round::Read => {
                let mut look_ups = 0;
                for _ in batch {
                    look_ups += usize::from(pages.got(input, out, None)?);
                }
                pages.got_all(input)?;
                for session in batch {
                    if session.votes {
                        pages.vote(out, site, session.article, session.user);
                    }
                    if let Some(id) = session.comments {
                        pages.comment(out, site, session.article, id, session.user);
                    }
                }
                *round = Round::Write { look_ups };
            }
            Round::Write { look_ups } => {
                for _ in 0..look_ups {
                    pages.got_more(input, None)?;
                }
                let mut replies = 0;
                for session in batch {
                    if session.votes {
                        replies += usize::from(pages.voted(input, out, site, session.article)?);
                    }
                    if session.comments.is_some() {
                        pages.skip(input)?;
                    }
                }
                *round = Round::Follow { replies };
            }
            Round::Follow { replies } => {
                for _ in 0..replies {
                    pages.skip(input)?;
                }
            }
        }
        if !out.is_empty() {
            return Ok(true);
        }
        for session in batch {
            site.visited(session);
        }
        Ok(false)
    }
}
