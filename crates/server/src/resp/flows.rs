//! The turns of flows between those of clients, and what their tasks do outside: posts, and writes of sources.

use super::session::Session;
use super::{Flow, ShardService};
use crate::connections::Connections;
use crate::keeping::{EmbeddedStore, Way};
use crate::resp::parts::Stores;
use crate::shards::{MoveRefusal, ShardMessage};
use headwater_base::source::Change;
use headwater_command::{Command, OwnedArgs};
use headwater_config::{Config, ConfigError};
use headwater_node::{FlowOutcome, Node, Outcome, Outside, Step, Task};
use headwater_protocol::resp::{Encoder, Version, decode, find};
use headwater_webhook::{Message, Post, Poster};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long flows may work in one turn of the loop.
const TURN: Duration = Duration::from_micros(250);

/// How often as long as others flows wait for a source that has got their writes. A source answers each write, late or not; one that was given up while it is
/// under way could be done behind a later write of the same key.
const FLOW_PATIENCES: u64 = 12;

/// Tasks that are done elsewhere.
pub(super) struct ExternalEffects {
    poster: Poster,
    posts: HashMap<u64, Task>,
    next_post: u64,
    /// Tasks for the world outside that wait until the log has an operation.
    waiting: VecDeque<(u64, Task, Outside)>,
    /// Writes that a source was asked for, by request, with the mark that the task goes on from.
    writes: HashMap<u64, (Task, Option<Vec<u8>>)>,
}

impl ExternalEffects {
    pub(super) fn new(
        config: &Config,
        bell: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        let certificates = config.flow_settings.webhook_certificates.as_ref();
        Ok(Self {
            poster: Poster::new(certificates, config.connect.allowed()?, bell),
            posts: HashMap::new(),
            waiting: VecDeque::new(),
            next_post: 0,
            writes: HashMap::new(),
        })
    }
}

/// Adds a flow by the words of FLOW.ADD, from its name on: one that was there before goes on where it was, whatever its name.
pub(super) fn add(node: &mut Node, words: &[String]) -> Result<(), String> {
    let words = std::iter::once("FLOW.ADD").chain(words.iter().map(String::as_str));
    let request: OwnedArgs = words.map(str::as_bytes).collect();
    let args = request.args();
    let command = find(args).and_then(|spec| decode(spec, args));
    let command = command.map_err(|refusal| refusal.to_string())?;
    let mut answer = Vec::new();
    if let Command::Data(data) = &command {
        node.set_takes_kept_names(true);
        let done = node.execute(data, &mut Encoder::new(&mut answer, Version::Resp2));
        node.set_takes_kept_names(false);
        if done != Outcome::Done || answer.starts_with(b"-") {
            return Err(String::from_utf8_lossy(&answer).trim_end().to_owned());
        }
    }
    Ok(())
}

impl ShardService {
    /// What a command has shown or changed of flows is kept before it is answered for, like a write.
    pub(super) fn flows_answered(&mut self) -> Flow {
        if let Some(keeping) = &self.stores.keeping {
            self.node.end_turn();
            keeping.count_notes();
        }
        Flow::Next
    }

    /// Runs tasks of flows for a moment.
    pub(super) fn run_flows(&mut self, connections: &mut Connections<Session>) {
        self.step_flows(connections);
        self.notice_dead_tasks();
    }

    fn step_flows(&mut self, connections: &mut Connections<Session>) {
        self.node.record_writes();
        if !self.stores.log_is_silent() {
            self.take_posts();
        }
        self.do_acknowledged(connections);
        let remote = self.node.remote_effects();
        if !remote.has_requests()
            && !remote.is_waiting()
            && !self.node.flows_may_step()
            && self.node.flows_deadline().is_none_or(|at| at > self.time.wall)
        {
            return;
        }
        if self.flows_rest() {
            return;
        }
        let began = Instant::now();
        // Others' tasks and own ones share the time.
        self.node.remote_effects_mut().retry();
        // A simulation is the same each time.
        let is_over = |most: Duration| !cfg!(test) && began.elapsed() >= most;
        while self.node.serve_remote() && !is_over(TURN / 2) {}
        loop {
            match self.node.step_flows() {
                Step::Idle => break,
                Step::Done => {}
                Step::Outside { task, work } => {
                    let awaited =
                        self.stores.keeping.as_ref().and_then(EmbeddedStore::awaited_operation);
                    match awaited {
                        Some(operation) => {
                            self.stores.outside.waiting.push_back((operation, task, work));
                        }
                        None => self.do_outside(task, work, connections),
                    }
                }
            }
            if is_over(TURN) {
                break;
            }
        }
        self.send_remote();
    }

    /// Does what a task does outside of the data.
    fn do_outside(&mut self, task: Task, work: Outside, connections: &mut Connections<Session>) {
        match work {
            Outside::Publish(channel) => {
                self.publish_from_flow(&channel, &task.record.value, connections);
                self.others.publish_elsewhere(&channel, &task.record.value);
                self.node.finish_flow(&task, FlowOutcome::Done);
            }
            Outside::Post { url, timeout_ms, slots, width } => {
                let timeout = Duration::from_millis(timeout_ms);
                self.post(task, url, timeout, &slots, width);
            }
            Outside::Write { changes, mark } => self.write_for_flow(task, &changes, mark),
        }
    }

    /// Does what has waited for the log.
    fn do_acknowledged(&mut self, connections: &mut Connections<Session>) {
        let survives = self.stores.keeping.as_ref().map_or(0, EmbeddedStore::survives);
        while self
            .stores
            .outside
            .waiting
            .front()
            .is_some_and(|(operation, ..)| *operation <= survives)
            && let Some((_, task, work)) = self.stores.outside.waiting.pop_front()
        {
            self.do_outside(task, work, connections);
        }
    }

    /// Sends what tasks ask of other shards, and what these are answered.
    fn send_remote(&mut self) {
        if let Some(shards) = &mut self.others.shards {
            for (to, message) in self.node.remote_effects_mut().take_messages() {
                if shards.outbox.is_lost(to) {
                    let unsent = message.unsent();
                    unsent.into_iter().for_each(|answer| self.node.receive_remote(to, answer));
                    continue;
                }
                shards.outbox.to(to).messages.push(ShardMessage::Flow(Box::new(message)));
            }
        }
    }

    /// The turn's operations end with this one: what has waited for the store is sent.
    pub(super) fn end_flow_batch(&mut self, told: u64) {
        if self.others.shards.is_none()
            || !self.node.has_flows() && !self.node.remote_effects().is_waiting()
        {
            return;
        }
        let durable = self.stores.keeping.as_ref().map_or(0, EmbeddedStore::survives);
        self.node.end_flow_batch(told, durable);
        self.send_remote();
    }

    /// Whether flows let a partition go; all shards stand still.
    pub(super) fn flows_may_move(&mut self, way: Way) -> Result<(), MoveRefusal> {
        if !self.node.has_flows() {
            return Ok(());
        }
        let me = self.others.me();
        if self.node.flows_keep_partition(way.partition, me == way.from, me == way.to) {
            let text = format!("flows have tasks that concern partition {}", way.partition.0);
            return Err(MoveRefusal::Busy(text + ": try again when they are done"));
        }
        // What is done is not to be done again at the new home, whatever moment a crash comes at.
        self.node.engine_mut().settle_kept().map_err(|error| MoveRefusal::For(error.to_string()))
    }

    /// Whether flows wait: clients' writes do (CLIENT PAUSE), or the store takes no writes, or has so much to write that clients' writes would wait.
    fn flows_rest(&self) -> bool {
        self.waits.pause.is_on(self.time.uptime)
            || self.stores.write_refusal().is_some()
            || self.stores.keeping.as_ref().is_some_and(EmbeddedStore::is_behind)
    }

    /// Posts a change to a URL.
    fn post(
        &mut self,
        task: Task,
        url: String,
        timeout: Duration,
        slots: &[(String, Vec<u8>)],
        width: usize,
    ) {
        let record = &task.record;
        let message = Message {
            flow: &task.flow,
            position: self.node.flow_position(&task),
            sequence: record.sequence,
            at: record.at.0,
            operation: record.operation.word(),
            key: &record.key,
            value: record.has_value().then_some(&record.value),
            slots,
        };
        let id = self.stores.outside.next_post;
        self.stores.outside.next_post += 1;
        let (idempotency_key, body) = (message.idempotency_key(), message.body());
        let sequence = record.sequence;
        let by_client = self.settings.is_posted_for_client(&task.flow, &url);
        let post = Post { id, url, timeout, idempotency_key, sequence, body, by_client };
        match self.stores.outside.poster.post(&task.flow, width, post) {
            Ok(()) => drop(self.stores.outside.posts.insert(id, task)),
            Err(why) => self.node.finish_flow(&task, FlowOutcome::Failed(why)),
        }
    }

    /// Says what came of posts.
    fn take_posts(&mut self) {
        if self.stores.outside.posts.is_empty() {
            return;
        }
        for (id, done) in self.stores.outside.poster.take() {
            if let Some(task) = self.stores.outside.posts.remove(&id) {
                let outcome = done.map_or_else(FlowOutcome::Failed, |()| FlowOutcome::Done);
                self.node.finish_flow(&task, outcome);
            }
        }
    }

    /// Has a source do writes.
    fn write_for_flow(&mut self, task: Task, changes: &[Change], mark: Option<Vec<u8>>) {
        let key = changes.first().map(|change| change.key.as_slice()).unwrap_or_default();
        let asked = match self.stores.hub.through(key).map(str::to_owned) {
            Some(source) => {
                let until = self.time.uptime + FLOW_PATIENCES * self.source_patience();
                self.stores.hub.write_for_flow(&source, until, changes)
            }
            None => Err(String::from("a source has the table, and no WRITE THROUGH to it")),
        };
        match asked {
            Ok(request) => drop(self.stores.outside.writes.insert(request, (task, mark))),
            Err(why) => self.node.finish_flow(&task, FlowOutcome::Failed(why)),
        }
    }

    /// Says what came of a write that a source was asked for; whether it was a flow's.
    pub(super) fn flow_wrote(&mut self, request: u64, answer: Result<(), String>) -> bool {
        if self.stores.outside.writes.is_empty() {
            return false;
        }
        let Some((task, mark)) = self.stores.outside.writes.remove(&request) else { return false };
        let outcome = match (answer, mark) {
            (Err(why), _) => FlowOutcome::Failed(why),
            (Ok(()), Some(mark)) => FlowOutcome::Further(mark),
            (Ok(()), None) => FlowOutcome::Done,
        };
        self.node.finish_flow(&task, outcome);
        true
    }

    /// When flows want their next turn, in milliseconds of the server's life.
    pub(super) fn flows_deadline(&self) -> Option<u64> {
        if let Some(until) = self.waits.pause.end(self.time.uptime) {
            return Some(until);
        }
        let remote = self.node.remote_effects();
        if self.node.flows_may_step() || remote.has_requests() {
            return Some(self.time.uptime + u64::from(self.flows_rest()));
        }
        let rest = self.node.flows_deadline().map(|at| at.since(self.time.wall));
        // The clock of a turn is up to a millisecond behind.
        let rested = rest.map(|rest| self.time.uptime + rest + 1);
        rested.into_iter().chain(remote.is_waiting().then_some(self.time.uptime + 1)).min()
    }
}

impl Stores {
    /// A flow has gone: nothing waits for its posts any more.
    pub(super) fn forget_flow(&mut self, name: &str) {
        self.outside.poster.forget(name);
        self.outside.posts.retain(|_, task| task.flow != name);
        self.outside.waiting.retain(|(_, task, _)| task.flow != name);
    }
}
