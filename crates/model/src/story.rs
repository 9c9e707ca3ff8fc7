//! The oracle as a target of golden scripts: it says what a story should print.
//!
//! So a script is checked by two implementations, and a shrunk failure is printed with the
//! answers that it should have had. What the oracle has no words for (the texts of refusals,
//! EXPLAIN, counters, what is materialized) it prints as `…`. A snapshot is kept from the first
//! read of anything after it ran out.

use crate::join::{Join, Mode};
use crate::oracle::{Oracle, Pairs, Verdict, View, within};
use headwater_script::bytes::escape;
use headwater_script::command::{Command, Ttl};
use headwater_script::{Reply, Target};
use std::collections::BTreeMap;

/// An oracle that stories can be told to.
#[derive(Default)]
pub struct StoryOracle {
    oracle: Oracle,
    joins: usize,
    kept: BTreeMap<u64, (u64, Pairs)>,
    /// Something happened that the oracle does not understand.
    lost: bool,
    watches: Vec<Watched>,
}

struct Watched {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    changed: bool,
}

impl Target for StoryOracle {
    fn execute(&mut self, command: &Command) -> Vec<String> {
        let lines = if self.lost { unsaid() } else { self.reply(command) }.lines();
        if !self.watches.is_empty() {
            let seen = self.view().seen;
            for watch in &mut self.watches {
                // A derived key counts by its value alone.
                let derived = !self.oracle.owners(&watch.key).is_empty();
                let differs = seen.get(&watch.key) != watch.value.as_ref();
                watch.changed = differs || (watch.changed && !derived);
            }
        }
        lines
    }
}

fn unsaid() -> Reply {
    Reply::Lines(vec![String::from("…")])
}

impl StoryOracle {
    fn view(&mut self) -> View {
        let (now, kept) = (self.oracle.now, &mut self.kept);
        let (oracle, mut fresh) = (&self.oracle, None::<View>);
        oracle.view_with(&mut |installed, made| {
            let Mode::Snapshot(millis) = installed.join.mode else { return made };
            match kept.get(&installed.serial) {
                Some((since, pairs)) if now < since + millis => pairs.clone(),
                _ => {
                    // It is computed through the snapshots below it.
                    let fresh = fresh.get_or_insert_with(|| oracle.view());
                    let made = fresh.made[&installed.serial].clone();
                    kept.insert(installed.serial, (now, made.clone()));
                    made
                }
            }
        })
    }

    fn joined(&self, key: &[u8]) -> Option<Reply> {
        let code = String::from("JOINED");
        let refuse = |join: &&str| Reply::Refused {
            code: code.clone(),
            text: format!("key is maintained by join '{join}'"),
        };
        self.oracle.owners(key).last().map(refuse)
    }

    fn reply(&mut self, command: &Command) -> Reply {
        match command {
            Command::Set { key, .. }
            | Command::Append { key, .. }
            | Command::Del { key }
            | Command::Expire { key, .. }
                if key.is_empty() =>
            {
                unsaid()
            }
            Command::Set { key, .. }
            | Command::Append { key, .. }
            | Command::Del { key }
            | Command::Expire { key, .. } => match self.joined(key) {
                Some(refusal) => refusal,
                None => self.write(command),
            },
            Command::Advance { .. } | Command::DelRange { .. } | Command::Flush => {
                self.write(command)
            }
            Command::Incr { .. }
            | Command::Copy { .. }
            | Command::SetAll { .. }
            | Command::DelAll { .. } => self.compound(command),
            Command::Multi { .. } => Reply::Done,
            Command::Join { name, text, replace } => {
                self.joins += 1;
                let name = name.clone().unwrap_or_else(|| format!("j{}", self.joins));
                let join = Join::parse(text).filter(|_| text.contains('<'));
                let Some(join) = join else {
                    self.lost = true;
                    return unsaid();
                };
                if self.oracle.verdict(&name, &join, *replace) != Verdict::Accept {
                    return unsaid();
                }
                self.oracle.install(&name, join);
                Reply::Done
            }
            Command::Drop { name } if self.oracle.uninstall(name) => Reply::Done,
            Command::Joins => {
                let joins = self.oracle.joins.iter();
                let lines = joins.map(|join| format!("{}: {}", join.name, join.join));
                Reply::Lines(lines.collect())
            }
            Command::Table { name, boundary, source: None }
                if name.contains(&b'|') || boundary.is_some_and(|boundary| boundary > 31) =>
            {
                unsaid()
            }
            Command::Table { source: None, .. } => Reply::Done,
            Command::Table { source: Some(_), .. } | Command::Limit { .. } => {
                self.lost = true;
                unsaid()
            }
            Command::Verify { .. } | Command::Follow { .. } | Command::Unfollow { .. } => {
                Reply::Done
            }
            _ => self.read(command),
        }
    }

    /// What reads and writes, or writes several keys; all of it is refused where one key is.
    fn compound(&mut self, command: &Command) -> Reply {
        let says = |text: String| Reply::Lines(vec![text]);
        match command {
            Command::Incr { key, by } => {
                let old = self.view().seen.get(key).cloned().unwrap_or_else(|| b"0".to_vec());
                let old = str::from_utf8(&old).ok().and_then(|text| {
                    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
                });
                let Some(new) = old.and_then(|old| old.checked_add(*by)) else {
                    return says(String::from("-"));
                };
                if let Some(refusal) = self.joined(key) {
                    return refusal;
                }
                let (value, _) = self.oracle.base.entry(key.clone()).or_default();
                *value = new.to_string().into_bytes();
                says(new.to_string())
            }
            Command::Copy { from, to, replace, renames } => {
                let seen = self.view().seen;
                let Some(value) = seen.get(from) else { return says(String::from("no")) };
                if *renames && let Some(refusal) = self.joined(from) {
                    return refusal;
                }
                if !replace && seen.contains_key(to) {
                    return says(String::from("no"));
                }
                if let Some(refusal) = self.joined(to) {
                    return refusal;
                }
                let at = self.oracle.base.get(from).and_then(|(_, at)| *at);
                self.oracle.base.insert(to.clone(), (value.clone(), at));
                if *renames && from != to {
                    self.oracle.base.remove(from);
                }
                says(String::from("yes"))
            }
            Command::SetAll { pairs } => {
                if let Some(refusal) = pairs.iter().find_map(|(key, _)| self.joined(key)) {
                    return refusal;
                }
                for (key, value) in pairs {
                    self.oracle.base.insert(key.clone(), (value.clone(), None));
                }
                Reply::Done
            }
            Command::DelAll { keys } => {
                if let Some(refusal) = keys.iter().find_map(|key| self.joined(key)) {
                    return refusal;
                }
                let gone = keys.iter().filter(|key| self.oracle.base.remove(*key).is_some());
                let removed = gone.count();
                says(format!("removed {removed}"))
            }
            _ => unsaid(),
        }
    }

    fn write(&mut self, command: &Command) -> Reply {
        let now = self.oracle.now;
        match command {
            Command::Set { key, value, ttl } => {
                let at = match ttl {
                    Ttl::Keep => self.oracle.base.get(key).and_then(|(_, at)| *at),
                    Ttl::Never => None,
                    Ttl::Millis(millis) => Some(now + millis),
                };
                self.oracle.base.insert(key.clone(), (value.clone(), at));
            }
            Command::Append { key, tail } => {
                let (value, _) = self.oracle.base.entry(key.clone()).or_default();
                value.extend_from_slice(tail);
                return Reply::Lines(vec![value.len().to_string()]);
            }
            Command::Del { key } => drop(self.oracle.base.remove(key)),
            Command::Expire { key, after } => {
                if let Some((_, at)) = self.oracle.base.get_mut(key) {
                    *at = after.map(|millis| now + millis);
                }
                self.oracle.advance(now);
            }
            Command::Advance { millis } => self.oracle.advance(now + millis),
            Command::DelRange { first, last } => {
                let before = self.oracle.base.len();
                self.oracle.base.retain(|key, _| !within(key, first, last));
                let removed = before - self.oracle.base.len();
                return Reply::Lines(vec![format!("removed {removed}")]);
            }
            _ => {
                self.oracle.base.clear();
                self.kept.clear();
            }
        }
        Reply::Done
    }

    fn read(&mut self, command: &Command) -> Reply {
        let seen = self.view().seen;
        match command {
            Command::Get { key } => {
                Reply::Value { key: key.clone(), value: seen.get(key).cloned() }
            }
            Command::TimeLeft { key } => {
                let text = match self.oracle.base.get(key) {
                    Some((_, Some(at))) => (at - self.oracle.now).to_string(),
                    _ if seen.contains_key(key) => String::from("never"),
                    _ => String::from("-"),
                };
                Reply::Lines(vec![text])
            }
            Command::Range { first, last, reverse, limit } => {
                let inside = seen.into_iter().filter(|(key, _)| within(key, first, last));
                let mut pairs: Vec<_> = inside.collect();
                if *reverse {
                    pairs.reverse();
                }
                pairs.truncate(limit.unwrap_or(u64::MAX) as usize);
                Reply::Pairs(pairs)
            }
            Command::Watch { key } => {
                let value = seen.get(key).cloned();
                self.watches.push(Watched { key: key.clone(), value, changed: false });
                Reply::Done
            }
            Command::Watched => {
                let line = |watch: &Watched| {
                    let word = if watch.changed { "changed" } else { "unchanged" };
                    format!("{} {word}", escape(&watch.key))
                };
                Reply::Lines(self.watches.iter().map(line).collect())
            }
            Command::Unwatch => {
                self.watches.clear();
                Reply::Done
            }
            _ => unsaid(),
        }
    }
}
