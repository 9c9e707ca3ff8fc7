//! What is told to those who run the server of states that last and that an alert names: many requests fail, few keys are found, a
//! flow is late. `deploy/alerts.yml` asks for the same figures over the same times.
//!
//! A request fails at one shard, and its share is of those of all. So each shard notes its counts once a second where the first one
//! sees them, and that one looks how they have grown.

use super::ShardService;
use crate::log::event;
use crate::shards::Shards;
use headwater_node::FlowReport;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// How often counts are noted and looked at, in milliseconds.
const COUNT_EVERY: u64 = 1000;
/// Over which time many errors are looked for, and few hits; in milliseconds.
const ERRORS_WITHIN: u64 = 5 * 60_000;
const HITS_WITHIN: u64 = 15 * 60_000;
/// Fewer errors than this, or lookups, are no state of the server.
const ERRORS_MIN: u64 = 100;
const LOOKUPS_MIN: u64 = 1000;
/// One request in so many may fail.
const ERRORS_SHARE: u64 = 20;
/// How many samples a window has.
const SAMPLES: u64 = 15;

/// What is counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    commands: u64,
    /// By the word that an error begins with.
    errors: BTreeMap<String, u64>,
    hits: u64,
    misses: u64,
    evicted: u64,
    expired: u64,
}

impl Counted {
    fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
        self.hits += other.hits;
        self.misses += other.misses;
        self.evicted += other.evicted;
        self.expired += other.expired;
    }

    /// By how much it has grown; `None`: it was counted from 0 again.
    fn since(&self, before: &Self) -> Option<Self> {
        let errors = self.errors.iter().map(|(code, count)| {
            let before = before.errors.get(code).copied().unwrap_or(0);
            count.checked_sub(before).map(|count| (code.clone(), count))
        });
        Some(Self {
            commands: self.commands.checked_sub(before.commands)?,
            errors: errors.collect::<Option<_>>()?,
            hits: self.hits.checked_sub(before.hits)?,
            misses: self.misses.checked_sub(before.misses)?,
            evicted: self.evicted.checked_sub(before.evicted)?,
            expired: self.expired.checked_sub(before.expired)?,
        })
    }

    fn errors(&self) -> u64 {
        self.errors.values().sum()
    }

    fn has_many_errors(&self) -> bool {
        let errors = self.errors();
        errors > ERRORS_MIN && errors * ERRORS_SHARE > self.commands
    }

    fn has_few_hits(&self) -> bool {
        self.hits + self.misses > LOOKUPS_MIN && self.hits < self.misses
    }
}

/// What the shards have counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommonCounts(Arc<Mutex<BTreeMap<u16, Counted>>>);

impl CommonCounts {
    fn note(&self, shard: u16, counted: Counted) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(shard, counted);
    }

    fn sum(&self) -> Counted {
        let mut sum = Counted::default();
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().for_each(|counted| sum.add(counted));
        sum
    }
}

/// How counts have grown within the last minutes.
#[derive(Debug)]
struct Window {
    millis: u64,
    /// When they were so; oldest first.
    samples: VecDeque<(u64, Counted)>,
    /// Whether what is looked for was so when it was looked last.
    is_on: bool,
}

impl Window {
    fn new(millis: u64) -> Self {
        Self { millis, samples: VecDeque::from([(0, Counted::default())]), is_on: false }
    }

    /// By how much counts have grown.
    fn growth(&mut self, now: u64, counted: &Counted) -> Counted {
        // The oldest is as old as the window, or as what there is.
        while self.samples.get(1).is_some_and(|(at, _)| *at + self.millis <= now) {
            self.samples.pop_front();
        }
        let growth = self.samples.front().and_then(|(_, before)| counted.since(before));
        if growth.is_none() {
            self.samples.clear();
        }
        let is_due = |last: &(u64, Counted)| now >= last.0 + self.millis / SAMPLES;
        if self.samples.back().is_none_or(is_due) {
            self.samples.push_back((now, counted.clone()));
        }
        growth.unwrap_or_default()
    }

    /// Whether a state begins or ends.
    fn turns(&mut self, is_on: bool) -> bool {
        core::mem::replace(&mut self.is_on, is_on) != is_on
    }
}

/// The states of a shard; the first looks after those of all.
#[derive(Debug)]
pub(super) struct States {
    counts: CommonCounts,
    counted_at: u64,
    errors: Window,
    hits: Window,
    /// The flows that are late.
    late: BTreeSet<String>,
}

impl States {
    pub(super) fn of(shards: Option<&Shards>) -> Self {
        let counts = shards.map(|it| it.outbox.transport().counts().clone()).unwrap_or_default();
        Self {
            counts,
            counted_at: 0,
            errors: Window::new(ERRORS_WITHIN),
            hits: Window::new(HITS_WITHIN),
            late: BTreeSet::new(),
        }
    }

    fn notice_errors(&mut self, now: u64, counted: &Counted) {
        let grown = self.errors.growth(now, counted);
        let is_on = grown.has_many_errors();
        if !self.errors.turns(is_on) {
            return;
        }
        let (errors, commands) = (grown.errors(), grown.commands);
        if is_on {
            let most = grown.errors.iter().max_by_key(|(_, count)| **count);
            let (code, count) = most.map_or(("", 0), |(code, count)| (code.as_str(), *count));
            event!(
                warn,
                "server",
                "many_errors",
                errors,
                commands,
                code,
                count,
                "more than one request in twenty failed within five minutes, most of them with this code: INFO errorstats and commandstats say more"
            );
        } else {
            event!(info, "server", "few_errors", errors, commands, "few requests fail any more");
        }
    }

    fn notice_hits(&mut self, now: u64, counted: &Counted) {
        let grown = self.hits.growth(now, counted);
        let is_on = grown.has_few_hits();
        if !self.hits.turns(is_on) {
            return;
        }
        let Counted { hits, misses, evicted, expired, .. } = grown;
        if is_on {
            event!(
                warn,
                "memory",
                "few_hits",
                hits,
                misses,
                evicted,
                expired,
                "fewer than half of the keys that were looked up within fifteen minutes were there; how many were evicted meanwhile, and how many have expired"
            );
        } else {
            event!(
                info,
                "memory",
                "enough_hits",
                hits,
                misses,
                "most of the keys that are looked up are there"
            );
        }
    }
}

/// Why tasks of a flow wait.
fn why_late(report: &FlowReport) -> &'static str {
    if report.paused {
        "it is paused (FLOW.RESUME)"
    } else if report.running > 0 {
        "its tasks take long"
    } else if report.failures > 0 {
        "attempts fail, and rest before they are made again"
    } else {
        "its tasks wait: for data, for another flow, or because writes are paused"
    }
}

impl ShardService {
    /// Tells what states have begun or ended. To be called now and then.
    pub(super) fn notice_states(&mut self) {
        let now = self.time.uptime;
        if now < self.figures.states.counted_at + COUNT_EVERY {
            return;
        }
        self.figures.states.counted_at = now;
        let shard = self.others.me().0;
        let counted = self.counted();
        self.figures.states.counts.note(shard, counted);
        if shard == 0 {
            let sum = self.figures.states.counts.sum();
            self.figures.states.notice_errors(now, &sum);
            self.figures.states.notice_hits(now, &sum);
        }
        self.notice_late_flows(shard);
    }

    fn counted(&self) -> Counted {
        let lookups = self.node.lookups();
        let (hits, misses) = self.memcached.counts.lookups();
        let errors = self.figures.stats.errors_by_code();
        Counted {
            commands: self.figures.stats.commands(),
            errors: errors.map(|(code, count)| (code.to_owned(), count)).collect(),
            hits: lookups.hits + hits,
            misses: lookups.misses + misses,
            evicted: self.node.engine().evicted().keys,
            expired: self.node.engine().expired_count(),
        }
    }

    fn notice_late_flows(&mut self, shard: u16) {
        let (now, most) =
            (self.node.engine().now(), self.settings.config.flow_settings.flow_late_milliseconds);
        let reports = self.node.flow_reports();
        let age = |report: &FlowReport| report.oldest.map_or(0, |at| now.since(at));
        let late: BTreeSet<String> = reports
            .iter()
            .filter(|report| age(report) > most)
            .map(|report| report.name.clone())
            .collect();
        for report in &reports {
            let (flow, oldest_ms) = (report.name.as_str(), age(report));
            match (self.figures.states.late.contains(flow), late.contains(flow)) {
                (false, true) => {
                    let (backlog, failures) = (report.backlog, report.failures);
                    event!(
                        warn,
                        "flows",
                        "flow_late",
                        shard,
                        flow,
                        oldest_ms,
                        backlog,
                        failures,
                        why = why_late(report),
                        "the oldest task of a flow is not done"
                    );
                }
                (true, false) => {
                    event!(info, "flows", "flow_in_time", shard, flow, "a flow is late no more");
                }
                _ => {}
            }
        }
        self.figures.states.late = late;
    }
}

#[cfg(test)]
mod tests {
    use super::{Counted, ERRORS_WITHIN, SAMPLES, Window};

    fn counted(commands: u64, errors: u64) -> Counted {
        let errors = [(String::from("ERR"), errors)].into();
        Counted { commands, errors, ..Counted::default() }
    }

    #[test]
    fn a_window_sees_what_has_grown_within_it() {
        let mut window = Window::new(ERRORS_WITHIN);
        assert_eq!(window.growth(1000, &counted(200, 150)), counted(200, 150));
        assert!(counted(200, 150).has_many_errors());
        let step = ERRORS_WITHIN / SAMPLES;
        let at = |sample: u64| 1000 + sample * step;
        for sample in 1..=SAMPLES {
            window.growth(at(sample), &counted(200 + sample, 150));
        }
        // The first sample is as old as the window now: what was counted up to it is out of it.
        let all = counted(201 + SAMPLES, 150);
        assert_eq!(window.growth(at(SAMPLES + 1), &all), counted(SAMPLES, 0));
        // CONFIG RESETSTAT.
        assert_eq!(window.growth(at(SAMPLES + 2), &counted(1, 0)), Counted::default());
        assert_eq!(window.growth(at(SAMPLES + 3), &counted(5, 3)), counted(4, 3));
    }

    #[test]
    fn few_requests_and_a_small_share_are_no_state() {
        assert!(!counted(100, 100).has_many_errors());
        assert!(!counted(2020, 101).has_many_errors());
        assert!(counted(2019, 101).has_many_errors());
        let of = |hits, misses| Counted { hits, misses, ..Counted::default() }.has_few_hits();
        assert!(of(500, 501) && !of(500, 500) && !of(0, 1000) && !of(600, 500));
    }
}
