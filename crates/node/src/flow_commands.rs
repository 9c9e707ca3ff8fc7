//! Execution of the commands about flows.

use crate::flows::{Backfill, backfill_state};
use crate::node::Node;
use crate::owners::Ownership;
use crate::remote::{place_of, position_at};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_base::text::{check_name, redact_words};
use headwater_base::{Limits, Millis};
use headwater_command::{
    Args, FlowAction, FlowFull, FlowOperations, FlowOptions, Flows as Asked, Reply,
};
use headwater_engine::{EngineError, Stop};
use headwater_flows::{Action, Backoff, Definition, Operation, Report, WhenFull};
use headwater_pattern::{Join, Operator, Pattern};

/// How long a post may take, if nothing else is said, in milliseconds.
const POST_MS: u64 = 10_000;

impl Node {
    pub(crate) fn run_flow_command(
        &mut self,
        command: &Asked<'_>,
        reply: &mut impl Reply,
    ) -> Result<(), Stop> {
        match *command {
            Asked::Add { name, on, action, options, words } => {
                let definition = definition_of(on, &action, &options, self.engine.limits())?;
                self.add_flow(name, definition, text_of(words), options.backfill)?;
                reply.map(1);
                reply.bulk(b"warnings");
                if self.working.durable {
                    reply.array(0);
                } else {
                    reply.array(1);
                    reply.bulk(
                        b"kept in memory alone: tasks that are not done end with the process",
                    );
                }
            }
            Asked::Drop { name } => {
                let Some((definition, _)) = self.working.flows.definition(name) else {
                    return Err(missing(name));
                };
                let on = definition.on.clone();
                self.working.flows.remove(name);
                self.working.backfills.retain(|backfill| backfill.flow != name);
                self.working.remote.forget(name);
                if self.working.closed.remove(name) {
                    self.engine.open_keys(&on);
                }
                self.note_tables();
                reply.ok();
            }
            Asked::List => self.list_flows(reply),
            Asked::Info { name } => {
                let reports = self.flow_reports();
                let Some(report) = reports.iter().find(|report| report.name == name) else {
                    return Err(missing(name));
                };
                let facts = facts(report, self.engine.now());
                reply.map(facts.len() + Ownership::FACTS);
                for (title, number) in facts {
                    reply.bulk(title.as_bytes());
                    reply.integer(number as i64);
                }
                self.ownership("flow", name).write(reply);
            }
            Asked::Pause { name, paused } => {
                if !self.working.flows.pause(name, paused) {
                    return Err(missing(name));
                }
                reply.ok();
            }
            Asked::Dead { name } => self.list_dead(name, reply)?,
            Asked::Retry { name, position, force } => {
                let now = self.engine.now();
                let taken = match self.dead_here(position)? {
                    None => self.working.flows.definition(name).map(|_| Ok(0)),
                    Some(place) => self.working.flows.retry(name, place, force, now),
                };
                let taken = taken.ok_or_else(|| missing(name))?;
                reply.integer(taken.map_err(|refusal| EngineError::Refused(refusal.0))? as i64);
            }
            Asked::Discard { name, position } => {
                let taken = match self.dead_here(position)? {
                    None => self.working.flows.definition(name).map(|_| 0),
                    Some(place) => self.working.flows.discard(name, place),
                };
                reply.integer(taken.ok_or_else(|| missing(name))? as i64);
            }
            Asked::Replay { name, position } => {
                if self.working.flows.definition(name).is_none() {
                    return Err(missing(name));
                }
                let Some(position) = self.place_here(position)? else {
                    reply.integer(0);
                    return Ok(());
                };
                self.working.remote.forget(name);
                let tasks = self.working.flows.replay(name, position, self.first_position());
                let tasks = tasks.map_err(|refusal| EngineError::Refused(refusal.0))?;
                reply.integer(tasks as i64);
                self.limit();
            }
        }
        Ok(())
    }

    /// The first position of this shard's journal there could be.
    fn first_position(&self) -> u64 {
        position_at(self.engine.shard(), 0)
    }

    /// The place in this shard's journal that a position names; `None`: it is another's.
    fn place_here(&self, position: u64) -> Result<Option<u64>, EngineError> {
        let (shard, place) = place_of(position);
        let shards = self.engine.placement().map_or(1, |placement| placement.shards());
        if shard >= u64::from(shards) {
            return Err(EngineError::Refused(format!(
                "no shard has a position {position}: they have those that FLOW.INFO and FLOW.DEAD tell"
            )));
        }
        Ok((shard == u64::from(self.engine.shard().0)).then_some(place))
    }

    /// Which dead tasks of this shard are meant: all, or the one at a place; `None`: one of another shard.
    fn dead_here(&self, position: Option<u64>) -> Result<Option<Option<u64>>, EngineError> {
        let Some(position) = position else { return Ok(Some(None)) };
        Ok(self.place_here(position)?.map(Some))
    }

    /// Whether a declaration of flows would be executed: what is refused here, every shard refuses.
    ///
    /// # Errors
    /// It would not.
    pub fn may_declare_flow(&self, command: &Asked<'_>) -> Result<(), EngineError> {
        match *command {
            Asked::Add { name, on, action, options, .. } => {
                check_name("flow", name).map_err(EngineError::Refused)?;
                let definition = definition_of(on, &action, &options, self.engine.limits())?;
                let may = self.working.flows.may_add(name, &definition);
                may.map_err(|refusal| EngineError::Refused(refusal.0))?;
                self.check_flow(&definition)
            }
            Asked::Drop { name } | Asked::Pause { name, .. } => {
                let known = self.working.flows.definition(name);
                known.map(drop).ok_or_else(|| missing_text(name))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a flow that nothing could ever come of.
    fn check_flow(&self, definition: &Definition) -> Result<(), EngineError> {
        self.check_not_sourced(&definition.on)?;
        if let Action::Call { function, .. } = &definition.action {
            self.engine.check_loaded(function)?;
        }
        if self.takes_kept_flows {
            return Ok(());
        }
        if let Some(join) = self.engine.giver_of(&definition.on) {
            return Err(EngineError::Refused(format!(
                "join '{join}' gives the keys that the flow is ON, and flows hear of what clients write: let the flow be on a \
                 source of the join"
            )));
        }
        written_by(&definition.action).iter().try_for_each(|put| match self.engine.giver_of(put) {
            None => Ok(()),
            Some(join) => Err(EngineError::Refused(format!(
                "the flow writes keys that join '{join}' gives, which nobody can write"
            ))),
        })
    }

    /// Refuses a join which gives keys that a flow is about, as [`Node::may_declare_flow`] refuses the flow where the join is there.
    ///
    /// # Errors
    /// A flow is on the keys that the join gives, or writes them. A text that is no join is left to who installs it.
    pub fn may_declare_join(&self, spec: &str) -> Result<(), EngineError> {
        let Ok(Join { output, .. }) = Join::parse(spec, self.engine.limits()) else {
            return Ok(());
        };
        for (flow, definition) in self.working.flows.definitions() {
            if output.covers(&definition.on) {
                return Err(EngineError::Refused(format!(
                    "flow '{flow}' is ON keys that the join gives, and flows hear of what clients write: drop the flow, or let it be \
                     on a source of the join"
                )));
            }
            if written_by(&definition.action).iter().any(|put| output.covers(put)) {
                return Err(EngineError::Refused(format!(
                    "flow '{flow}' writes keys that the join gives, which nobody can write then: drop the flow first"
                )));
            }
        }
        Ok(())
    }

    fn check_not_sourced(&self, on: &Pattern) -> Result<(), EngineError> {
        if !self.engine.is_sourced(&on.range_of_all().first) {
            return Ok(());
        }
        Err(EngineError::Refused(String::from(
            "the pattern is of a table that a source keeps: its writes are not done here",
        )))
    }

    fn list_flows(&mut self, reply: &mut impl Reply) {
        let reports = self.working.flows.reports();
        reply.array(reports.len());
        for report in reports {
            let text = self.working.flows.definition(&report.name).map(|(_, text)| text);
            reply.map(4);
            reply.bulk(b"name");
            reply.bulk(report.name.as_bytes());
            reply.bulk(b"spec");
            reply.bulk(redact_words(text.unwrap_or_default()).as_bytes());
            reply.bulk(b"paused");
            reply.integer(i64::from(report.paused));
            reply.bulk(b"backlog");
            reply.integer(report.backlog as i64);
        }
    }

    fn list_dead(&mut self, name: &str, reply: &mut impl Reply) -> Result<(), Stop> {
        let Some(dead) = self.working.flows.dead(name) else { return Err(missing(name)) };
        let shard = self.engine.shard();
        reply.array(dead.len());
        for (position, dead) in dead {
            reply.map(7);
            reply.bulk(b"position");
            reply.integer(position_at(shard, *position) as i64);
            reply.bulk(b"operation");
            reply.bulk(dead.record.operation.word().as_bytes());
            reply.bulk(b"key");
            reply.bulk(&dead.record.key);
            reply.bulk(b"attempts");
            reply.integer(i64::from(dead.attempts));
            reply.bulk(b"error");
            reply.bulk(dead.error.as_bytes());
            reply.bulk(b"at");
            reply.integer(dead.at.0 as i64);
            reply.bulk(b"overtaken");
            reply.integer(i64::from(dead.overtaken));
        }
        Ok(())
    }

    fn add_flow(
        &mut self,
        name: &str,
        definition: Definition,
        text: String,
        backfill: bool,
    ) -> Result<(), Stop> {
        if !self.takes_kept_names {
            check_name("flow", name).map_err(EngineError::Refused)?;
        }
        let may = self.working.flows.may_add(name, &definition);
        may.map_err(|refusal| EngineError::Refused(refusal.0))?;
        self.check_flow(&definition)?;
        let on = definition.on.clone();
        let flows = &mut self.working.flows;
        let goes_on =
            flows.add(name, definition, text).map_err(|refusal| EngineError::Refused(refusal.0))?;
        let (mut range, state) = (on.range_of_all(), backfill_state(name));
        let mut left = backfill && !goes_on;
        flows.journal_mut().states(&state, &mut |_, mark| {
            range.first = mark.to_vec();
            left = true;
        });
        if left {
            flows.journal_mut().put(&state, Some(&range.first));
            let written = BTreeSet::new();
            self.working.backfills.push(Backfill { flow: name.to_string(), on, range, written });
        }
        self.note_tables();
        Ok(())
    }
}

/// What FLOW.INFO and INFO tell of a flow.
#[must_use]
pub fn facts(report: &Report, now: Millis) -> Vec<(&'static str, u64)> {
    alloc::vec![
        ("paused", u64::from(report.paused)),
        ("backlog", report.backlog),
        ("lag", report.lag),
        ("cursor", report.cursor),
        ("running", report.running as u64),
        ("done", report.done),
        ("failures", report.failures),
        ("dropped", report.dropped),
        ("dead", report.dead as u64),
        ("oldest-pending-ms", report.oldest.map_or(0, |at| now.since(at))),
    ]
}

/// What a flow's action is declared to write. The key that it calls a function on may be read alone.
fn written_by(action: &Action) -> &[Pattern] {
    match action {
        Action::Fanout(join) => core::slice::from_ref(&join.output),
        Action::Call { writes, .. } => writes,
        Action::Post { .. } | Action::Publish { .. } => &[],
    }
}

fn missing_text(name: &str) -> EngineError {
    EngineError::Refused(format!("no flow is named '{name}'"))
}

fn missing(name: &str) -> Stop {
    missing_text(name).into()
}

fn text_of(words: Args<'_>) -> String {
    let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
    words.join(" ")
}

fn pattern(text: &str, limits: &Limits) -> Result<Pattern, EngineError> {
    named_pattern(text, limits).map(|(pattern, _)| pattern)
}

/// A pattern, and the names of its slots.
fn named_pattern(text: &str, limits: &Limits) -> Result<(Pattern, Vec<String>), EngineError> {
    // A join of the pattern with itself has the slots that it has.
    match Join::parse(&format!("{text} = copy {text}"), limits) {
        Ok(join) if join.sources.len() == 1 => Ok((join.output, join.slots)),
        found => {
            let why = found.err().filter(|error| error.column <= text.len());
            let why = why.map_or_else(String::new, |error| format!(" ({})", error.message));
            Err(EngineError::Refused(format!(
                "'{text}' is no pattern, such as p|<poster>|<time>{why}"
            )))
        }
    }
}

fn action_of(
    action: &FlowAction<'_>,
    on_text: &str,
    on: &Pattern,
    limits: &Limits,
) -> Result<Action, EngineError> {
    let refused = |text: String| Err(EngineError::Refused(text));
    Ok(match *action {
        FlowAction::Call { function, key, writes } => {
            let parse = |key| Join::parse(&format!("{key} = copy {on_text}"), limits);
            let join = key.map(parse).transpose();
            let join = join.map_err(|error| EngineError::Refused(error.to_string()))?;
            let writes = writes.split_ascii_whitespace().map(|text| pattern(text, limits));
            let writes = writes.collect::<Result<_, _>>()?;
            Action::Call { function: function.to_string(), join, writes }
        }
        FlowAction::Post { url, timeout_ms } => {
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
                return refused(String::from(
                    "the URL to post to begins with http:// or https:// and names a host",
                ));
            }
            Action::Post { url: url.to_string(), timeout_ms: timeout_ms.unwrap_or(POST_MS) }
        }
        FlowAction::Publish { channel } => Action::Publish { channel: channel.to_vec() },
        FlowAction::Fanout { join: text } => {
            let join = Join::parse(text, limits)
                .map_err(|error| EngineError::Refused(error.to_string()))?;
            if join.operator() != Operator::Copy {
                return refused(String::from(
                    "a flow copies: its join has check sources and one copy",
                ));
            }
            if join.sources.iter().any(|source| source.lens.is_some()) {
                return refused(String::from(
                    "a flow copies keys as they are: `as` and `where` are for cache joins",
                ));
            }
            if !join.sources[join.value_source()].pattern.may_collide(on) {
                return refused(String::from("what the flow copies is not what it is ON"));
            }
            Action::Fanout(join)
        }
    })
}

/// A flow as FLOW.ADD declares it.
pub(crate) fn definition_of(
    on: &str,
    action: &FlowAction<'_>,
    options: &FlowOptions,
    limits: &Limits,
) -> Result<Definition, EngineError> {
    let on_text = on;
    let (on, slots) = named_pattern(on, limits)?;
    let action = action_of(action, on_text, &on, limits)?;
    let mut definition = Definition { slots, ..Definition::new(on, action) };
    if let Some(FlowOperations { set, delete, expire }) = options.operations {
        definition.operations.retain(|operation| match operation {
            Operation::Set => set,
            Operation::Delete => delete,
            Operation::Expire => expire,
        });
    }
    if let Some(workers) = options.workers {
        definition.workers = usize::try_from(workers).unwrap_or(usize::MAX);
    }
    if let Some(attempts) = options.attempts_max {
        definition.attempts_max = u32::try_from(attempts).unwrap_or(u32::MAX);
    }
    if let Some((first_ms, most_ms)) = options.backoff {
        definition.backoff = Backoff { first_ms, most_ms };
    }
    if let Some((most, full)) = options.backlog {
        definition.backlog_max = most;
        definition.when_full = match full {
            FlowFull::Reject => WhenFull::Reject,
            FlowFull::Block => WhenFull::Block,
            FlowFull::DropOldest => WhenFull::DropOldest,
        };
    }
    Ok(definition)
}
