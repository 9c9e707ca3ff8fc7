//! A leaderboard: reads of its first players, between changes of scores.
//!
//! Headwater keeps it by a join over the scores (`index … as <score>`), so that writing a score is all that a client does.
//! Elsewhere the client keeps a sorted set, or a table has an index. Each player's scores are written by one connection, in their order, so
//! that the board in the end is known; then all read it, and must see its scores.

pub mod board;

use crate::args::{Common, within};
use crate::drive::{Driver, Schedule, drive};
use crate::experiment::{Cost, Progress, take_turns};
use crate::measure::Run;
use crate::peer::{Launch, Server, System, stop};
use crate::report::{Case, Report};
use crate::wire::Connection;
use anyhow::{Context, Result};
use board::{Board, Indexed, Joined, SortedSet};
use headwater_workload::Rng;
use serde_json::{Map, Value, json};
use std::io::Write;

/// Scores are below this.
const SCORES: u64 = 1_000_000_000;

/// A leaderboard: reads of its first players, between changes of scores.
#[derive(Clone, Debug, clap::Args)]
pub struct Top {
    #[command(flatten)]
    common: Common,
    /// Players (times --scale).
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    players: u32,
    /// Reads and writes (times --scale).
    #[arg(long, default_value_t = 500_000, value_name = "N")]
    operations: u32,
    /// How many players a read shows.
    #[arg(long, default_value_t = 100, value_name = "N")]
    shown: u32,
    /// Percent of operations that change a score.
    #[arg(long, default_value_t = 10.0, value_name = "0..100")]
    changes: f64,
    /// Headwater's join keeps no more players than are shown.
    #[arg(long)]
    keep: bool,
    /// Operations in flight per connection.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pipeline: usize,
}

/// The peers of this workload.
const PEERS: [System; 3] = [System::Valkey, System::Redis, System::Postgres];

/// One operation.
#[derive(Clone, Copy, Debug)]
struct Op {
    /// Whose score changes; of a read, a number that says which connection asks.
    player: u32,
    /// The new score, if it is no read.
    score: Option<u32>,
}

/// What happens, the same for all systems.
struct Plan {
    players: u32,
    scores: Vec<u32>,
    schedule: Schedule<Op>,
}

impl Top {
    /// Runs all pairs and tells the result.
    ///
    /// # Errors
    /// An option is wrong, a peer is missing, a run fails, or a result is wrong.
    pub fn run(&self) -> Result<()> {
        self.common.check()?;
        within("--changes", self.changes, 0.0, 100.0)?;
        within("--shown", f64::from(self.shown), 1.0, 10_000.0)?;
        within("--pipeline", self.pipeline as f64, 1.0, 4096.0)?;
        let systems = self.common.systems("top", &PEERS)?;
        let launch = self.common.launch(0)?;
        launch.check(&systems)?;
        launch.pinning.enter_generator()?;
        stop::handle_signals()?;
        let plan = self.draw()?;
        let mut report = Report::new(
            "top",
            self.told(&plan),
            vec![Case { name: String::new(), params: Map::new(), runs: Vec::new() }],
        );
        report.cases[0].runs =
            take_turns(&systems, self.common.pairs, |system, pair, progress| {
                self.one(&plan, &launch, system, pair, progress)
            })?;
        self.common.tell(&report)
    }

    fn draw(&self) -> Result<Plan> {
        let scaled = |option: &str, number: u32, least: f64, most: f64| -> Result<u32> {
            let value = f64::from(number) * self.common.scale;
            within(option, value, least, most).map(|()| value as u32)
        };
        let players = scaled("--players (times --scale)", self.players, 1.0, 9e7)?;
        let operations = scaled("--operations (times --scale)", self.operations, 1.0, 1e9)?;
        let mut rng = Rng::new(self.common.seed);
        let scores = (0..players).map(|_| rng.below(SCORES) as u32).collect();
        let op = |_| {
            let player = rng.below(u64::from(players)) as u32;
            let changes = rng.unit() * 100.0 < self.changes;
            Op { player, score: changes.then(|| rng.below(SCORES) as u32) }
        };
        let ops: Vec<Op> = (0..operations).map(op).collect();
        let schedule = Schedule::deal(ops, self.common.connections, self.pipeline, |op| op.player);
        Ok(Plan { players, scores, schedule })
    }

    fn told(&self, plan: &Plan) -> Map<String, Value> {
        let value = json!({
            "players": plan.players,
            "operations": plan.schedule.operations(),
            "shown": self.shown,
            "changes_percent": self.changes,
            "keep": self.keep,
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
    ) -> Result<Run> {
        let server = Server::start(system, launch)?;
        let shown = self.shown;
        let mut board: Box<dyn Board> = match system {
            System::Valkey | System::Redis => Box::new(SortedSet { shown }),
            System::Postgres => Box::new(Indexed { shown }),
            _ => Box::new(Joined { shown, keeps: self.keep }),
        };
        let mut control = server.connect()?;
        progress.phase("loading", u64::from(plan.players));
        board
            .load(&plan.scores, &mut control)
            .with_context(|| format!("it printed: {}", server.log()))?;
        let mut connections = (0..self.common.connections)
            .map(|_| {
                let mut connection = server.connect()?;
                board.prepare(&mut connection)?;
                Ok(connection)
            })
            .collect::<Result<Vec<_>>>()?;
        board.prepare(&mut control)?;
        // The board is made by its first read.
        first_players(&mut *board, &mut control)?;
        progress.phase("running", plan.schedule.operations());
        let mut scores = plan.scores.clone();
        let mut driver = TopDriver { board: &mut *board, scores: &mut scores, players: Vec::new() };
        let (limit, bar) = (self.common.limit(), &progress.bar);
        let cost =
            Cost::of(&server, || drive(&mut driver, &mut connections, &plan.schedule, limit, bar))?;
        let players = first_players(&mut *board, &mut control)?;
        let mut wrong = None;
        let seen: Vec<Option<u32>> =
            players.iter().map(|&player| scores.get(player as usize).copied()).collect();
        let mut best = scores;
        best.sort_unstable_by(|a, b| b.cmp(a));
        best.truncate(shown as usize);
        let mut once = players.clone();
        once.sort_unstable();
        once.dedup();
        if once.len() < players.len() || !seen.iter().copied().eq(best.iter().copied().map(Some)) {
            wrong = Some(format!("the board shows players with {seen:?}, not with {best:?}"));
        }
        if let Some(wrong) = &wrong {
            writeln!(std::io::stderr(), "{wrong}")?;
        }
        Ok(cost.run(system, pair, wrong.is_none()))
    }
}

/// Reads the board outside the measured loop.
fn first_players(board: &mut dyn Board, control: &mut Connection) -> Result<Vec<u32>> {
    let mut players = Vec::new();
    board.read(&mut control.out);
    control.flush()?;
    board.got(&mut control.input, &mut players)?;
    Ok(players)
}

struct TopDriver<'a> {
    board: &'a mut dyn Board,
    scores: &'a mut Vec<u32>,
    players: Vec<u32>,
}

impl Driver for TopDriver<'_> {
    type Op = Op;

    fn send(&mut self, _lane: usize, batch: &[Op], out: &mut Vec<u8>) {
        for op in batch {
            match op.score {
                Some(score) => self.board.score(out, op.player, score),
                None => self.board.read(out),
            }
        }
    }

    fn receive(&mut self, _lane: usize, batch: &[Op], connection: &mut Connection) -> Result<bool> {
        for op in batch {
            match op.score {
                Some(score) => {
                    self.board.scored(&mut connection.input)?;
                    self.scores[op.player as usize] = score;
                }
                None => {
                    self.players.clear();
                    self.board.got(&mut connection.input, &mut self.players)?;
                }
            }
        }
        Ok(false)
    }
}
