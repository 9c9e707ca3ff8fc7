//! What scripts run against: anything that answers the commands; first of all the engine.

use crate::bytes::escape;
use crate::command::{Command, Ttl};
use crate::compound;
use crate::reply::Reply;
use crate::source::ScriptedSource;
use headwater_base::{KeyRange, Millis};
use headwater_engine::{
    Effect, Engine, EngineError, Expiry, Follower, Notification, NotifiedChange, RangeOptions,
    Settings, Stop, TableOptions, Ticket,
};
use std::collections::BTreeMap;

/// Something that stories can be told to.
pub trait Target {
    /// Does what the command says, and gives what it prints.
    fn execute(&mut self, command: &Command) -> Vec<String>;
}

/// The engine, with scripted sources and a clock that stands until it is advanced.
///
/// A read that must wait prints `#1 waits`; when it is woken, its answer follows the line `#1:`.
pub struct EngineTarget {
    engine: Engine,
    now: u64,
    joins: usize,
    sources: BTreeMap<String, ScriptedSource>,
    waits: usize,
    waiting: Vec<(Ticket, usize, Command)>,
    watches: Vec<(Vec<u8>, u64)>,
}

impl Default for EngineTarget {
    fn default() -> Self {
        let mut engine = Engine::new(Settings::default());
        engine.advance(Millis(1_000_000));
        Self {
            engine,
            now: 1_000_000,
            joins: 0,
            sources: BTreeMap::new(),
            waits: 0,
            waiting: Vec::new(),
            watches: Vec::new(),
        }
    }
}

impl Target for EngineTarget {
    fn execute(&mut self, command: &Command) -> Vec<String> {
        let mut lines = match self.attempt(command) {
            Ok(reply) => reply.lines(),
            Err(Stop::Failed(error)) => refused(&error).lines(),
            Err(Stop::Wait(ticket)) => {
                self.waits += 1;
                self.waiting.push((ticket, self.waits, command.clone()));
                vec![format!("#{} waits", self.waits)]
            }
        };
        self.settle(&mut lines);
        lines
    }
}

fn refused(error: &EngineError) -> Reply {
    Reply::Refused { code: error.code().to_string(), text: error.to_string() }
}

impl EngineTarget {
    /// Takes the engine's effects until there are none: loads are opened, woken reads run again.
    fn settle(&mut self, lines: &mut Vec<String>) {
        loop {
            let effects = self.engine.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Load { fetch, source, range, portion } => {
                        self.sources.entry(source).or_default().ask(fetch, range, portion);
                    }
                    Effect::Unfollow { source, range } => {
                        self.sources.entry(source).or_default().unfollow(&range);
                    }
                    Effect::LoadFrom { .. }
                    | Effect::ResumeFrom { .. }
                    | Effect::UnfollowAt { .. } => {} // There is one shard.
                    Effect::Wake(ticket) => self.wake(ticket, lines),
                    Effect::Fail { ticket, error } => self.fail(ticket, &error, lines),
                }
            }
        }
    }

    fn fail(&mut self, ticket: Ticket, error: &EngineError, lines: &mut Vec<String>) {
        let Some(at) = self.waiting.iter().position(|(waiting, _, _)| *waiting == ticket) else {
            lines.push(format!("nobody waits for ticket {}", ticket.0));
            return;
        };
        let (_, number, _) = self.waiting.remove(at);
        lines.push(format!("#{number}:"));
        lines.extend(refused(error).lines());
    }

    fn wake(&mut self, ticket: Ticket, lines: &mut Vec<String>) {
        let Some(at) = self.waiting.iter().position(|(waiting, _, _)| *waiting == ticket) else {
            lines.push(format!("nobody waits for ticket {}", ticket.0));
            return;
        };
        let (_, number, command) = self.waiting.remove(at);
        match self.attempt(&command) {
            Err(Stop::Wait(again)) => self.waiting.push((again, number, command)),
            done => {
                lines.push(format!("#{number}:"));
                let reply = match done {
                    Ok(reply) => reply,
                    Err(Stop::Failed(error)) => refused(&error),
                    Err(Stop::Wait(_)) => unreachable!("matched above"),
                };
                lines.extend(reply.lines());
            }
        }
    }

    fn attempt(&mut self, command: &Command) -> Result<Reply, Stop> {
        match command {
            Command::Set { .. }
            | Command::Append { .. }
            | Command::Del { .. }
            | Command::Expire { .. }
            | Command::Advance { .. }
            | Command::DelRange { .. }
            | Command::Evict { .. }
            | Command::Compact { .. }
            | Command::Flush => self.write(command),
            Command::Incr { .. }
            | Command::Copy { .. }
            | Command::SetAll { .. }
            | Command::DelAll { .. }
            | Command::Multi { .. } => compound::run(&mut self.engine, command),
            Command::Join { .. }
            | Command::Drop { .. }
            | Command::Joins
            | Command::Limit { .. }
            | Command::Table { .. } => self.define(command),
            Command::Get { .. }
            | Command::TimeLeft { .. }
            | Command::Range { .. }
            | Command::Verify { .. }
            | Command::Scan
            | Command::Explain { .. }
            | Command::Stat { .. }
            | Command::Watch { .. }
            | Command::Watched
            | Command::Unwatch => self.read(command),
            Command::Follow { .. } | Command::Unfollow { .. } | Command::Told => {
                self.follow(command)
            }
            Command::AtSource { .. }
            | Command::Deliver { .. }
            | Command::Lose { .. }
            | Command::Answer { .. }
            | Command::Fail { .. }
            | Command::Loads => Ok(self.at_source(command)),
        }
    }

    fn write(&mut self, command: &Command) -> Result<Reply, Stop> {
        match command {
            Command::Set { key, value, ttl } => {
                let expiry = match ttl {
                    Ttl::Keep => Expiry::Keep,
                    Ttl::Never => Expiry::Never,
                    Ttl::Millis(millis) => Expiry::At(Millis(self.now + millis)),
                };
                self.engine.set(key, value, expiry)?;
            }
            Command::Append { key, tail } => {
                let length = self.engine.append(key, tail)?;
                return Ok(Reply::Lines(vec![length.to_string()]));
            }
            Command::Del { key } => {
                self.engine.remove(key)?;
            }
            Command::Expire { key, after } => {
                let at = after.map(|millis| Millis(self.now + millis));
                self.engine.set_expiry(key, at)?;
            }
            Command::Advance { millis } => {
                self.now += millis;
                self.engine.advance(Millis(self.now));
            }
            Command::DelRange { first, last } => {
                let removed = self.engine.remove_range(first, last)?;
                return Ok(Reply::Lines(vec![format!("removed {removed}")]));
            }
            Command::Compact { keys } => self.engine.compact_any(*keys),
            Command::Evict { count, draw } => {
                let draws = (0..*count).map(|step| draw + step);
                let gone = draws.take_while(|&draw| self.engine.evict_any(draw)).count();
                return Ok(Reply::Lines(vec![format!("evicted {gone}")]));
            }
            _ => self.engine.flush(),
        }
        Ok(Reply::Done)
    }

    fn define(&mut self, command: &Command) -> Result<Reply, Stop> {
        match command {
            Command::Join { name, text, replace } => {
                self.joins += 1;
                let name = name.clone().unwrap_or_else(|| format!("j{}", self.joins));
                let installed = self.engine.join_add(&name, text, *replace)?;
                let warnings = installed.warnings.iter().map(|text| format!("warning: {text}"));
                return Ok(Reply::Lines(warnings.collect()));
            }
            Command::Drop { name } => self.engine.join_drop(name)?,
            Command::Limit { what, most } => {
                let mut limits = self.engine.limits().clone();
                match what.as_str() {
                    "key" => limits.key_bytes_max = *most,
                    "value" => limits.value_bytes_max = *most,
                    "joins" => limits.joins_max = *most,
                    "depth" => limits.join_depth_max = *most as u32,
                    "sources" => limits.sources_max = *most,
                    "slots" => limits.slots_max = *most,
                    _ => return Ok(Reply::Lines(vec![format!("`{what}` has no limit")])),
                }
                self.engine.set_limits(limits);
            }
            Command::Table { name, boundary, source } => {
                let options = TableOptions {
                    boundary: *boundary,
                    source: source.clone(),
                    ..TableOptions::default()
                };
                self.engine.table_set(name, &options)?;
            }
            _ => {
                let joins = self.engine.joins();
                let lines = joins.iter().map(|join| format!("{}: {}", join.name, join.canonical));
                return Ok(Reply::Lines(lines.collect()));
            }
        }
        Ok(Reply::Done)
    }

    fn read(&mut self, command: &Command) -> Result<Reply, Stop> {
        Ok(match command {
            Command::Get { key } => {
                let value = self.engine.get(key)?.map(|value| value.to_vec());
                Reply::Value { key: key.clone(), value }
            }
            Command::TimeLeft { key } => Reply::Lines(vec![match self.engine.expiry(key)? {
                None => String::from("-"),
                Some(None) => String::from("never"),
                Some(Some(at)) => at.since(Millis(self.now)).to_string(),
            }]),
            Command::Range { first, last, reverse, limit } => {
                let options = RangeOptions { reverse: *reverse, limit: *limit };
                let mut pairs = Vec::new();
                self.engine.range(first, last, options, &mut |key, value| {
                    pairs.push((key.to_vec(), value.to_vec()));
                })?;
                Reply::Pairs(pairs)
            }
            Command::Verify { first, last } => {
                let found = self.engine.verify(&KeyRange::new(first, last), usize::MAX)?;
                let show = |value: &Option<Vec<u8>>| {
                    value.as_deref().map_or_else(|| String::from("nothing"), escape)
                };
                let lines = found.iter().map(|difference| {
                    let (stored, right) = (&difference.stored, &difference.recomputed);
                    let key = escape(&difference.key);
                    format!("{key} is {}, should be {}", show(stored), show(right))
                });
                Reply::Lines(lines.collect())
            }
            Command::Scan => {
                let mut keys = Vec::new();
                let mut cursor = Vec::new();
                loop {
                    cursor = self.engine.scan(&cursor, 10, &mut |key| keys.push(escape(key)));
                    if cursor.is_empty() {
                        break;
                    }
                }
                // The order of a scan means nothing.
                keys.sort();
                Reply::Lines(keys)
            }
            Command::Explain { first, last } => {
                let lines = self.engine.explain(&KeyRange::new(first, last));
                let lines = lines.iter().map(|line| {
                    format!("{}{}: {}", "  ".repeat(line.depth), line.title, line.text)
                });
                Reply::Lines(lines.collect())
            }
            Command::Stat { name } => Reply::Lines(vec![self.stat(name)]),
            Command::Watch { key } => {
                let count = self.engine.watch(key)?;
                self.watches.push((key.clone(), count));
                Reply::Done
            }
            Command::Unwatch => {
                for (key, _) in self.watches.drain(..) {
                    self.engine.unwatch(&key);
                }
                Reply::Done
            }
            _ => {
                let mut lines = Vec::new();
                for (key, count) in &self.watches {
                    let changed = self.engine.watched(key)? != *count;
                    let word = if changed { "changed" } else { "unchanged" };
                    lines.push(format!("{} {word}", escape(key)));
                }
                Reply::Lines(lines)
            }
        })
    }

    fn follow(&mut self, command: &Command) -> Result<Reply, Stop> {
        match command {
            Command::Follow { by, first, last } => {
                self.engine.follow(&KeyRange::new(first, last), Follower(*by))?;
            }
            Command::Unfollow { by, first, last } => {
                self.engine.unfollow(&KeyRange::new(first, last), Follower(*by));
            }
            _ => return Ok(Reply::Lines(self.told())),
        }
        Ok(Reply::Done)
    }

    fn told(&mut self) -> Vec<String> {
        self.engine.keep_followed();
        let mut lines = Vec::new();
        for Notification { followers, what } in self.engine.take_notifications() {
            let followers: Vec<String> = followers.iter().map(|by| by.0.to_string()).collect();
            let what = match what {
                NotifiedChange::Set { key, value } => {
                    let bytes = self.engine.held(value).to_vec();
                    self.engine.release(value);
                    format!("{} = {}", escape(&key), escape(&bytes))
                }
                NotifiedChange::Gone { key } => format!("{} -", escape(&key)),
                NotifiedChange::Reset { range } => {
                    format!("reset [{}, {})", escape(&range.first), escape(&range.last))
                }
            };
            lines.push(format!("{} {what}", followers.join(",")));
        }
        lines
    }

    fn stat(&self, name: &str) -> String {
        let stats = self.engine.stats();
        let named = [
            ("keys", stats.keys),
            ("keys_with_expiry", stats.keys_with_expiry),
            ("expired", stats.expired),
            ("groups", stats.groups),
            ("updaters", stats.updaters),
            ("updater_targets", stats.updater_targets),
            ("status_ranges", stats.status_ranges),
        ];
        let found = named.iter().chain(&stats.counters).find(|(known, _)| *known == name);
        found.map_or_else(
            || format!("{name} is unknown"),
            |(_, number)| format!("{name} = {number}"),
        )
    }

    fn at_source(&mut self, command: &Command) -> Reply {
        match command {
            Command::AtSource { source, key, value } => {
                self.sources.entry(source.clone()).or_default().change(key, value.clone());
            }
            Command::Deliver { source, most } => {
                for (position, change) in
                    self.sources.entry(source.clone()).or_default().tell(*most)
                {
                    self.engine.changed(source, position, &[change]);
                }
            }
            Command::Lose { source } => {
                self.sources.entry(source.clone()).or_default().lose();
                self.engine.source_reset(source, &KeyRange::all());
            }
            Command::Answer { source, load, .. } | Command::Fail { source, load, .. } => {
                let state = self.sources.entry(source.clone()).or_default();
                let Some(load) = state.take(*load) else {
                    return Reply::Lines(vec![format!("{source} has no open load")]);
                };
                let answer = match command {
                    Command::Answer { as_of, .. } => {
                        Ok(state.answer(&load, state.moment(&load, *as_of)))
                    }
                    Command::Fail { message, .. } => Err(message.clone()),
                    _ => unreachable!("matched above"),
                };
                self.engine.loaded(load.fetch, answer);
            }
            _ => {
                let show = |name: &String, range: &KeyRange| {
                    format!("{name}: [{}, {})", escape(&range.first), escape(&range.last))
                };
                let lines = self.sources.iter().flat_map(|(name, source)| {
                    source.open.iter().map(move |load| show(name, &load.range))
                });
                return Reply::Lines(lines.collect());
            }
        }
        Reply::Done
    }
}
