//! The turns of flows between those of clients.

use super::Resp;
use super::session::Session;
use crate::connections::Connections;
use headwater_node::{FlowOutcome, Step};
use std::time::{Duration, Instant};

/// How long flows may work in one turn of the loop.
const TURN: Duration = Duration::from_micros(500);

impl Resp {
    /// Runs tasks of flows for a moment.
    pub(super) fn run_flows(&mut self, connections: &mut Connections<Session>) {
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
