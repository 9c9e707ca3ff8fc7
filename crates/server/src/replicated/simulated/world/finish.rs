//! The end of a simulation: all faults are over, and what was promised is looked at.

use super::{Breadth, CALM, STEP, Servers, World};
use crate::replicated::simulated::clients::{POSTS, posts_of, reads};
use crate::replicated::simulated::history::{
    Asked, COUNTERS, Effect, LISTS, Operation, Shown, Told,
};
use crate::replicated::simulated::process::Process;
use crate::simulated::{Come, request};
use crate::wire_protocol::WireProtocol;
use headwater_model::server::wire::{Frame, Wire};
use headwater_protocol::resp::ReplyCutter;
use headwater_sim::replicated::LogFaults;
use std::collections::{BTreeMap, BTreeSet};

/// How long it may take until what was asked of another shard is done there, in milliseconds.
const DONE_WITHIN: u64 = 1000;

impl World {
    /// What a client of its own is answered at some server; `None`: it could not be asked, or its server has ended.
    fn answer(&mut self, words: &[&str]) -> Result<Option<String>, String> {
        Ok(self.answered_bytes(words)?.map(|told| told.escape_ascii().to_string()))
    }

    /// The same, as bytes.
    fn answered_bytes(&mut self, words: &[&str]) -> Result<Option<Vec<u8>>, String> {
        let Some(pipe) = self.cluster.connect(WireProtocol::Resp, &mut self.rng) else {
            return Ok(None);
        };
        pipe.ask(&request(words));
        let until = self.cluster.now + CALM;
        loop {
            self.step()?;
            let told: Vec<u8> = pipe.state().told.iter().copied().collect();
            if ReplyCutter::default().cut(&told).is_some() {
                pipe.end();
                return Ok(Some(told));
            }
            if pipe.state().server_ended {
                return Ok(None);
            }
            if self.cluster.now > until {
                return Err(format!("{words:?} is not answered"));
            }
        }
    }

    /// Asks until what is answered is right.
    fn await_answer(
        &mut self,
        words: &[&str],
        is_right: &dyn Fn(&str) -> bool,
    ) -> Result<(), String> {
        let until = self.cluster.now + CALM;
        let mut last = None;
        while self.cluster.now < until {
            match self.answer(words)? {
                Some(answer) if is_right(&answer) => return Ok(()),
                Some(answer) => last = Some(answer),
                None => {}
            }
            for _ in 0..5 {
                self.step()?;
            }
        }
        Err(format!("{words:?} is answered {last:?} in the end"))
    }

    /// A client defines what is derived.
    pub(super) fn define(&mut self) -> Result<(), String> {
        let is_done = |answer: &str| !answer.starts_with('-') || answer.contains("already");
        self.await_answer(&["JOIN.ADD", "d", "d|all|<n> = copy l|<n>"], &is_done)?;
        self.await_answer(&["JOIN.ADD", "e", "e = sum c|<n>"], &is_done)?;
        self.await_answer(
            &["FLOW.ADD", "g", "ON", "l|<n>", "COPY", "g|all|<n> = copy l|<n>"],
            &is_done,
        )?;
        if self.breadth == Breadth::Wide {
            self.await_answer(&["JOIN.ADD", "y", "y|all|<n> = copy x|<n>"], &is_done)?;
            let effects = [
                ("near", "t|<n>", "u|<n> = copy t|<n>"),
                ("far", "t|<n>", "v|all|<n> = copy t|<n>"),
                ("chained", "v|all|<n>", "w|<n> = copy v|all|<n>"),
            ];
            for (name, on, join) in effects {
                let add = ["FLOW.ADD", name, "ON", on, "COPY", join, "OPERATIONS", "set"];
                self.await_answer(&add, &is_done)?;
            }
        }
        Ok(())
    }

    /// All faults are over: an owner must serve soon, everybody is answered, and all nodes come to have the same.
    fn calm(&mut self) -> Result<(), String> {
        {
            let common = &mut *self.shared.lock();
            let (now, snapshots) = (common.now, common.faults.snapshots);
            common.faults = LogFaults { snapshots, ..LogFaults::default() };
            let cloud = &mut common.cloud;
            cloud.log_leads = cloud.log_leads.min(now);
            cloud.bucket_leads = cloud.bucket_leads.min(now);
            cloud.stalled.fill(now);
            cloud.cut_off.fill(now);
        }
        let now = self.cluster.now;
        self.cluster.processes.iter_mut().flatten().for_each(|process| process.paused = now);
        self.links.apart.clear();
        let until = now + CALM;
        while !self.clients.are_answered() {
            self.step()?;
            if self.cluster.now > until {
                return Err(format!("{} clients are not answered", self.clients.waiting()));
            }
        }
        self.await_orphans()?;
        self.read_everything()?;
        self.check_derived()?;
        self.await_same()
    }

    /// What clients have asked for who have hung up may wait for the owner of another shard, and is done when there is one: the last reads come behind that.
    fn await_orphans(&mut self) -> Result<(), String> {
        let until = self.cluster.now + CALM;
        let mut since = self.cluster.now;
        while self.cluster.now < since + DONE_WITHIN {
            self.step()?;
            if self.cluster.processes.iter_mut().flatten().any(Process::awaits_owners) {
                since = self.cluster.now;
            }
            if self.cluster.now > until {
                return Err(String::from("what waits for an owner waits on"));
            }
        }
        Ok(())
    }

    /// Whether everything is as it was promised, at these owners and at the next ones.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        let joins_are_current = self.shards == 1;
        self.calm()?;
        self.history.check(joins_are_current)?;
        // What the others have is the same: the next owners show it.
        self.kill_owners()?;
        self.read_everything()?;
        self.check_derived()?;
        self.history.check(joins_are_current)
    }

    /// What is wrong; where one seed runs alone, with all that clients have asked and been told.
    pub(super) fn with_history(&self, wrong: String) -> String {
        let lines = self.history.asked.iter().enumerate();
        let lines = lines.map(|(which, asked)| format!("\n{which}: {asked:?}"));
        let shows = std::env::var("HEADWATER_NODES_SEED").is_ok();
        std::iter::once(wrong).chain(lines.filter(|_| shows)).collect()
    }

    /// All owners are killed, and begin anew.
    fn kill_owners(&mut self) -> Result<(), String> {
        for at in 0..self.cluster.processes.len() {
            if self.cluster.processes[at].as_ref().is_some_and(Process::serves) {
                let folder = self.end(at);
                self.start(at, folder)?;
            }
        }
        Ok(())
    }

    /// A client reads all there is.
    fn read_everything(&mut self) -> Result<(), String> {
        let until = self.cluster.now + CALM;
        for operation in reads(self.breadth) {
            loop {
                let now = self.cluster.now;
                if now > until {
                    return Err(format!("{operation:?} is not answered in the end"));
                }
                let to = (&mut self.cluster as &mut dyn Servers, &mut self.history, now);
                if !self.clients.ask_this(0, operation, &mut self.rng, to) {
                    self.step()?;
                    continue;
                }
                while !self.clients.are_answered() {
                    self.step()?;
                }
                let answer = self.history.asked.last().and_then(|asked| asked.answer.as_ref());
                if answer.is_some_and(|(_, told)| *told != Told::Refused) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What joins and the flow give is right.
    fn check_derived(&mut self) -> Result<(), String> {
        for list in 0..LISTS {
            let text = self.history.last_text(list);
            let is_it = |answer: &str| {
                answer.contains(&text) && (!text.is_empty() || answer.starts_with("$-1"))
            };
            self.await_answer(&["GET", &format!("g|all|{list}")], &is_it)
                .map_err(|wrong| format!("a flow: {wrong}, and the list is '{text}'"))?;
        }
        let last = |operation: Operation| {
            let of = |asked: &Asked| match &asked.answer {
                Some((_, Told::Number(number))) if asked.operation == operation => Some(*number),
                _ => None,
            };
            self.history.asked.iter().rev().find_map(of).unwrap_or(0)
        };
        let sum: u64 = (0..COUNTERS).map(|at| last(Operation::ReadCounter(at))).sum();
        let text = sum.to_string();
        let is_sum = |answer: &str| {
            answer.contains(&format!("\\n{text}\\r")) || (sum == 0 && answer.starts_with("$-1"))
        };
        self.await_answer(&["GET", "e"], &is_sum)
            .map_err(|wrong| format!("a sum: {wrong}, and is {sum}"))?;
        let more = (self.breadth == Breadth::Wide).then_some(["y|", "y}"]);
        for range in [["d|", "d}"], ["e", "f"]].into_iter().chain(more) {
            self.await_answer(&["VERIFY", range[0], range[1]], &|answer| answer == "*0\\r\\n")?;
        }
        if self.breadth == Breadth::Wide { self.check_effects() } else { Ok(()) }
    }

    /// Each post has its effects, and none of them comes again a while later.
    fn check_effects(&mut self) -> Result<(), String> {
        let until = self.cluster.now + CALM;
        loop {
            let shown = self.shown()?;
            if self.history.check_effects(&shown)? {
                break;
            }
            if self.cluster.now > until {
                return Err(format!("an effect is lost: {shown:?}"));
            }
        }
        for _ in 0..DONE_WITHIN / STEP {
            self.step()?;
        }
        let shown = self.shown()?;
        match self.history.check_effects(&shown)? {
            true => Ok(()),
            false => Err(format!("an effect is gone: {shown:?}")),
        }
    }

    /// The posts and effects that there are.
    fn shown(&mut self) -> Result<Shown, String> {
        let posts = self.shown_with(POSTS)?;
        let mut effects = BTreeMap::new();
        for effect in Effect::ALL {
            effects.insert(effect, self.shown_with(effect.prefix())?);
        }
        Ok(Shown { posts, effects })
    }

    fn shown_with(&mut self, prefix: &str) -> Result<BTreeSet<usize>, String> {
        let until = self.cluster.now + CALM;
        loop {
            if let Some(bytes) = self.answered_bytes(&["PREFIX", prefix])? {
                let frame = Wire::over(Box::new(Come(bytes.into()))).frame()?;
                if !matches!(frame, Frame::Error(_)) {
                    let posts = posts_of(prefix, &frame);
                    return posts
                        .map(|posts| posts.into_iter().collect())
                        .ok_or_else(|| format!("{prefix} shows {frame:?}"));
                }
            }
            self.step()?;
            if self.cluster.now > until {
                return Err(format!("{prefix} is not shown in the end"));
            }
        }
    }

    /// All nodes of a shard come to have the same.
    fn await_same(&mut self) -> Result<(), String> {
        let until = self.cluster.now + CALM;
        loop {
            let marks: Vec<_> = self
                .cluster
                .processes
                .iter()
                .flatten()
                .map(|it| (it.shard, it.followed()))
                .collect();
            let same = |shard| {
                let mut of = marks.iter().filter(|mark| mark.0 == shard);
                of.next().is_none_or(|first| of.all(|mark| mark == first))
            };
            if (0..self.shards).all(same) {
                return Ok(());
            }
            if self.cluster.now > until {
                return Err(format!("nodes differ in the end: {marks:?}"));
            }
            self.step()?;
        }
    }
}
