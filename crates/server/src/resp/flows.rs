//! The turns of flows between those of clients.

use super::Resp;
use super::session::Session;
use crate::config::ConfigError;
use crate::connections::Connections;
use headwater_command::{Command, OwnedArgs};
use headwater_node::{FlowOutcome, Node, Outcome, Step};
use headwater_protocol::resp::{Encoder, Version, decode, find};
use std::time::{Duration, Instant};

/// How long flows may work in one turn of the loop.
const TURN: Duration = Duration::from_micros(500);

/// Adds a flow that was there before the process: it goes on where it was.
pub(super) fn add_again(node: &mut Node, words: &[String]) -> Result<(), ConfigError> {
    let words = || std::iter::once("FLOW.ADD").chain(words.iter().map(String::as_str));
    let request: OwnedArgs = words().map(str::as_bytes).collect();
    let refused = |why: String| {
        let text = words().collect::<Vec<_>>().join(" ");
        ConfigError(format!("data-dir: the kept flow '{text}' is refused: {why}"))
    };
    let args = request.args();
    let command = find(args).and_then(|spec| decode(spec, args));
    let command = command.map_err(|refusal| refused(refusal.to_string()))?;
    let mut answer = Vec::new();
    if let Command::Data(data) = &command {
        let done = node.execute(data, &mut Encoder::new(&mut answer, Version::Resp2));
        if done != Outcome::Done || answer.starts_with(b"-") {
            return Err(refused(String::from_utf8_lossy(&answer).trim_end().to_owned()));
        }
    }
    Ok(())
}

impl Resp {
    /// Runs tasks of flows for a moment.
    pub(super) fn run_flows(&mut self, connections: &mut Connections<Session>) {
        self.node.record_writes();
        if !self.node.flows_may_step()
            && self.node.flows_deadline().is_none_or(|at| at > self.time.wall)
        {
            return;
        }
        let began = Instant::now();
        loop {
            match self.node.step_flows() {
                Step::Idle => break,
                Step::Done => {}
                Step::Publish { task, channel } => {
                    self.publish_from_flow(&channel, &task.record.value, connections);
                    self.node.finish_flow(&task, FlowOutcome::Done);
                }
            }
            if began.elapsed() >= TURN {
                break;
            }
        }
    }

    /// When flows want their next turn, in milliseconds of the server's life.
    pub(super) fn flows_deadline(&self) -> Option<u64> {
        if self.node.flows_may_step() {
            return Some(self.time.uptime);
        }
        let rest = self.node.flows_deadline()?.since(self.time.wall);
        // The clock of a turn is up to a millisecond behind.
        Some(self.time.uptime + rest + 1)
    }
}
