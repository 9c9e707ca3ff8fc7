//! The connections between owners of different shards, as `crate::shards::links` makes and ends them, without sockets: frames come in their order, after a while, until
//! a connection ends with all that is on its way.

use super::process::Process;
use crate::shards::links::LINK_FORMATS;
use crate::shards::{FrameArrival, FrameSequence, MessageBatch, Sender, Transport};
use headwater_base::Shard;
use headwater_model::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How soon one is tried again, and for how long a process may be silent, or may not answer, until its connections end.
const RETRY: u64 = 100;
const STUCK: u64 = 2000;

/// A process's end of its connections.
#[derive(Default)]
struct Side {
    life: u64,
    /// By shard: the connections that there were, and the greatest epoch that one was of.
    counts: BTreeMap<u16, u64>,
    epochs: BTreeMap<u16, u64>,
    /// When it might answer last, and when it had a turn last.
    answered: u64,
    moved: u64,
}

/// A connection.
struct Line {
    /// The processes, of which the first one has dialled, and their lives, shards and epochs.
    ends: [usize; 2],
    lives: [u64; 2],
    shards: [u16; 2],
    epochs: [u64; 2],
    /// The number of the connection at each end.
    counts: [u64; 2],
    /// From each end: what numbers frames, what looks at their numbers, and what is on its way.
    stamps: [FrameSequence; 2],
    arrivals: [FrameSequence; 2],
    on_way: [VecDeque<(u64, Vec<u8>)>; 2],
}

/// All of them.
#[derive(Default)]
pub(super) struct Links {
    sides: BTreeMap<usize, Side>,
    lines: Vec<Line>,
    /// When a process connects to another one.
    dials: BTreeMap<(usize, usize), u64>,
    /// Until when two processes cannot reach each other.
    pub(super) apart: BTreeMap<(usize, usize), u64>,
    /// Connections that there were.
    pub(super) made: u64,
}

fn transport_of(processes: &mut [Option<Process>], at: usize, life: u64) -> Option<Arc<Transport>> {
    let process = processes[at].as_mut().filter(|it| it.life == life)?;
    process.server()?.transport.clone()
}

impl Links {
    /// Connections end and begin, and what is on its way comes.
    pub(super) fn step(&mut self, processes: &mut [Option<Process>], rng: &mut Rng, now: u64) {
        for process in processes.iter_mut().flatten() {
            let side = self.sides.entry(process.index).or_default();
            if side.life != process.life {
                *side = Side { life: process.life, answered: now, moved: now, ..Side::default() };
            }
            if process.paused <= now {
                side.moved = now;
                if process.may_answer(now) {
                    side.answered = now;
                }
            }
        }
        let ended: Vec<usize> = (0..self.lines.len())
            .filter(|at| self.is_over(&self.lines[*at], processes, now))
            .collect();
        for at in ended.into_iter().rev() {
            let line = self.lines.remove(at);
            tell(&line, processes, false);
        }
        for from in 0..processes.len() {
            for to in 0..processes.len() {
                self.dial(from, to, processes, rng, now);
            }
        }
        let mut broken = Vec::new();
        for (at, line) in self.lines.iter_mut().enumerate() {
            if !line.carry(processes, rng, now) {
                broken.push(at);
            }
        }
        for at in broken.into_iter().rev() {
            let line = self.lines.remove(at);
            tell(&line, processes, false);
        }
    }

    fn lives(&self, at: usize, now: u64) -> bool {
        let side = &self.sides[&at];
        now - side.answered < STUCK && now - side.moved < STUCK
    }

    fn is_over(&self, line: &Line, processes: &mut [Option<Process>], now: u64) -> bool {
        let is_apart = |one: usize, other: usize| {
            self.apart.get(&(one.min(other), one.max(other))).is_some_and(|until| *until > now)
        };
        if is_apart(line.ends[0], line.ends[1]) {
            return true;
        }
        (0..2).any(|end| {
            let (at, life) = (line.ends[end], line.lives[end]);
            if transport_of(processes, at, life).is_none() || !self.lives(at, now) {
                return true;
            }
            let process = processes[at].as_ref().expect("it has a server");
            let known = process.linked_owner(line.shards[1 - end]);
            process.paused <= now && known.is_some_and(|known| known.epoch > line.epochs[1 - end])
        })
    }

    /// The owner of the lesser shard connects to whom it takes for the owner of the other.
    fn dial(
        &mut self,
        from: usize,
        to: usize,
        processes: &mut [Option<Process>],
        rng: &mut Rng,
        now: u64,
    ) {
        let (Some(dials), Some(listens)) = (&processes[from], &processes[to]) else { return };
        let (lives, shards) = ([dials.life, listens.life], [dials.shard, listens.shard]);
        let epochs = [dials.end.epoch(), listens.end.epoch()];
        let knows = dials.linked_owner(shards[1]).is_some_and(|owner| owner.address == link(to));
        let goes_on = dials.paused <= now && listens.paused <= now;
        if shards[0] >= shards[1]
            || !knows
            || !goes_on
            || !self.lives(from, now)
            || !self.lives(to, now)
            || self.lines.iter().any(|line| line.ends[0] == from && line.shards[1] == shards[1])
            || self.apart.get(&(from.min(to), from.max(to))).is_some_and(|until| *until > now)
            || transport_of(processes, from, lives[0]).is_none()
            || transport_of(processes, to, lives[1]).is_none()
        {
            self.dials.remove(&(from, to));
            return;
        }
        let at = *self.dials.entry((from, to)).or_insert(now + RETRY + rng.below(200) as u64);
        if at > now {
            return;
        }
        self.dials.remove(&(from, to));
        let is_of_earlier = |here: usize, end: usize| {
            self.sides[&here].epochs.get(&shards[end]).is_some_and(|epoch| epochs[end] < *epoch)
        };
        if is_of_earlier(from, 1) || is_of_earlier(to, 0) {
            return;
        }
        // A later one takes the place of the one before.
        while let Some(before) =
            self.lines.iter().position(|line| line.ends[1] == to && line.shards[0] == shards[0])
        {
            let line = self.lines.remove(before);
            tell(&line, processes, false);
        }
        let mut counts = [0; 2];
        for (end, at) in [from, to].into_iter().enumerate() {
            let side = self.sides.get_mut(&at).expect("it is there");
            side.epochs.insert(shards[1 - end], epochs[1 - end]);
            let count = side.counts.entry(shards[1 - end]).or_default();
            *count += 1;
            counts[end] = *count;
        }
        let line = Line {
            ends: [from, to],
            lives,
            shards,
            epochs,
            counts,
            stamps: Default::default(),
            arrivals: Default::default(),
            on_way: Default::default(),
        };
        tell(&line, processes, true);
        self.lines.push(line);
        self.made += 1;
    }
}

/// Where a process listens for other shards.
fn link(at: usize) -> String {
    format!("n{at}:17379")
}

/// Tells both shards that they are connected, or not.
fn tell(line: &Line, processes: &mut [Option<Process>], is: bool) {
    for end in 0..2 {
        if let Some(transport) = transport_of(processes, line.ends[end], line.lives[end]) {
            let (me, other) = (Shard(line.shards[end]), Shard(line.shards[1 - end]));
            transport.tell_connected(me, other, is);
        }
    }
}

impl Line {
    /// Takes what was written, and brings what has come; `false`: something that came was no message.
    fn carry(&mut self, processes: &mut [Option<Process>], rng: &mut Rng, now: u64) -> bool {
        for end in 0..2 {
            let Some(from) = transport_of(processes, self.ends[end], self.lives[end]) else {
                return true;
            };
            let to = Shard(self.shards[1 - end]);
            for batch in from.take_for(to) {
                if batch.connection != self.counts[end] {
                    continue;
                }
                let mut frame = Vec::new();
                let stamp = self.stamps[end].stamp();
                batch.write((LINK_FORMATS.newest, stamp), &mut frame).expect("it has a form");
                let last = self.on_way[end].back().map_or(0, |(at, _)| *at);
                let slow = if rng.chance(5) { 400 } else { 20 };
                self.on_way[end].push_back((last.max(now + rng.below(slow) as u64), frame));
            }
            let receiver = &processes[self.ends[1 - end]];
            if receiver.as_ref().is_none_or(|receiver| receiver.paused > now) {
                continue;
            }
            let Some(at) = transport_of(processes, self.ends[1 - end], self.lives[1 - end]) else {
                return true;
            };
            let sender = Sender {
                shard: Shard(self.shards[end]),
                epoch: self.epochs[end],
                shards: at.shards(),
                format: LINK_FORMATS.newest,
            };
            while self.on_way[end].front().is_some_and(|(at, _)| *at <= now)
                && let Some((_, frame)) = self.on_way[end].pop_front()
            {
                let Ok((number, batch)) = MessageBatch::read(&frame, &sender) else { return false };
                if self.arrivals[end].arrives(number) != FrameArrival::Next {
                    return false;
                }
                at.bring(to, MessageBatch { connection: self.counts[1 - end], ..batch });
            }
        }
        true
    }
}
