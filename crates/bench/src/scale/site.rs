//! One shard that is driven in this process: an engine, its links, and the users who live there.

use super::Crossed;
use crate::twip::plan::{Kind, Op, Plan};
use crate::twip::world::World;
use crate::twip::{Entry, Seen};
use crate::wire::{Key, key};
use anyhow::{Result, bail};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use headwater_base::{Millis, Placement, Shard};
use headwater_engine::{
    Effect, Engine, Expiry, RangeOptions, Settings, Stop, TableOptions, Ticket,
};
use headwater_node::{Packet, Peers};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
/// What all threads share.
pub(super) struct Shared<'p> {
    pub(super) plan: &'p Plan,
    pub(super) placement: Placement,
    pub(super) boxes: Vec<Mutex<Vec<(Shard, Packet)>>>,
    pub(super) crews: Vec<Nap>,
    /// The moment of the newest post.
    pub(super) now: AtomicU32,
    /// Packets that were sent and not dealt with (W1).
    pub(super) under_way: AtomicI64,
    /// Threads that have come to the end of their part, over all phases.
    pub(super) done: AtomicUsize,
    /// Threads that have left a phase, over all phases.
    pub(super) left: AtomicUsize,
    /// A thread has failed: the others end.
    pub(super) failed: AtomicBool,
    /// What the users have done, for the comparison.
    pub(super) world: Mutex<World<'p>>,
}

/// What wakes a thread with nothing to do.
#[derive(Default)]
pub(super) struct Nap {
    pub(super) thread: OnceLock<Thread>,
    pub(super) sleeps: AtomicBool,
}

/// One shard.
pub(super) struct Site<'s, 'p> {
    pub(super) me: Shard,
    pub(super) shared: &'s Shared<'p>,
    pub(super) engine: Engine,
    pub(super) peers: Peers,
    pub(super) outgoing: Vec<Vec<(Shard, Packet)>>,
    pub(super) waiting: HashMap<Ticket, Read>,
    /// The newest post that each user has seen.
    pub(super) newest: Vec<u32>,
    pub(super) batches: u64,
    /// What was done in the measured phase, with the moments of posts.
    pub(super) done: Vec<(Op, u32)>,
    /// Answers of the phase that looks at them, by user.
    pub(super) answered: HashMap<u32, Vec<Entry>>,
}

#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) user: u32,
    pub(super) since: u32,
    pub(super) keeps: bool,
}

fn subscription(user: u32, poster: u32) -> Key {
    Key::new(b"s|").user(user).text(b"|").user(poster)
}

fn post(poster: u32, time: u32) -> Key {
    Key::new(b"p|").user(poster).text(b"|").time(time)
}

impl<'s, 'p> Site<'s, 'p> {
    pub(super) fn new(me: Shard, shared: &'s Shared<'p>) -> Result<Self> {
        let mut engine = Engine::new(Settings::default());
        engine.set_placement(me, shared.placement.clone());
        for table in [&b"s"[..], b"p", b"t"] {
            engine.table_set(table, &TableOptions { boundary: Some(1), ..Default::default() })?;
        }
        engine.join_add("timeline", TIMELINE, false)?;
        let shards = shared.placement.shards();
        // All of them live and end together.
        let peers = Peers::new(me, shards, 1, Millis(0));
        Ok(Self {
            me,
            shared,
            engine,
            peers,
            outgoing: (0..shards).map(|_| Vec::new()).collect(),
            waiting: HashMap::new(),
            newest: vec![shared.now.load(Ordering::SeqCst); shared.plan.graph.users],
            batches: 0,
            done: Vec::new(),
            answered: HashMap::new(),
        })
    }

    pub(super) fn lives_here(&self, user: u32) -> bool {
        self.shared.placement.home(&subscription(user, user)) == self.me
    }

    pub(super) fn load(&mut self) -> Result<()> {
        let world = self.shared.world.lock().unwrap_or_else(PoisonError::into_inner);
        for user in 0..self.shared.plan.graph.users as u32 {
            if !self.lives_here(user) {
                continue;
            }
            for poster in world.follows(user) {
                self.engine.set(&subscription(user, poster), b"1", Expiry::Never)?;
            }
            for &time in world.posts(user) {
                let text = self.shared.plan.text(time);
                self.engine.set(&post(user, time), text, Expiry::Never)?;
            }
        }
        Ok(())
    }

    pub(super) fn recent(&self) -> u32 {
        let now = self.shared.now.load(Ordering::SeqCst);
        now.saturating_sub(self.shared.plan.window)
    }

    pub(super) fn crossed(&self) -> Crossed {
        let (sent, remote) = (self.peers.sent(), self.engine.remote());
        Crossed {
            requests: 0,
            batches: self.batches,
            packets: sent.packets,
            changes: sent.changes,
            bytes: sent.bytes,
            replica_bytes: remote.replica_bytes,
        }
    }

    pub(super) fn execute(&mut self, op: Op) -> Result<()> {
        match op.kind {
            Kind::Login => {
                self.read(Read { user: op.user, since: self.recent(), keeps: false })?;
            }
            Kind::Check => {
                let since = self.newest[op.user as usize] + 1;
                self.read(Read { user: op.user, since, keeps: false })?;
            }
            Kind::Subscribe => {
                self.engine.set(&subscription(op.user, op.poster), b"1", Expiry::Never)?;
                self.peers.stamp();
                self.done.push((op, 0));
            }
            Kind::Post => {
                let time = self.shared.now.fetch_add(1, Ordering::SeqCst) + 1;
                let text = self.shared.plan.text(time);
                self.engine.set(&post(op.user, time), text, Expiry::Never)?;
                self.peers.stamp();
                self.done.push((op, time));
            }
        }
        Ok(())
    }

    pub(super) fn read(&mut self, read: Read) -> Result<()> {
        let first = Key::new(b"t|").user(read.user).text(b"|").time(read.since);
        let last = Key::new(b"t|").user(read.user).text(b"}");
        let mut seen = Seen::default();
        let mut entries = Vec::new();
        let mut text = Vec::new();
        let options = RangeOptions::default();
        let answer = self.engine.range(&first, &last, options, &mut |key, value| {
            // As an answer would have it.
            text.clear();
            text.extend_from_slice(&value.to_vec());
            // The key is `t|u0000042|0000000007|u0000008`.
            let number = |first: usize, digits: usize| {
                key.get(first..first + digits).and_then(key::number_of).unwrap_or(0) as u32
            };
            seen.count += 1;
            seen.newest = number(11, key::TIME_DIGITS);
            if read.keeps {
                let poster = number(23, key::NAME_DIGITS);
                entries.push(Entry { time: seen.newest, poster, text: text.clone() });
            }
        });
        match answer {
            Ok(_) => {
                let newest = &mut self.newest[read.user as usize];
                *newest = (*newest).max(seen.newest);
                if read.keeps {
                    self.answered.insert(read.user, entries);
                }
                Ok(())
            }
            Err(Stop::Wait(ticket)) => {
                self.waiting.insert(ticket, read);
                Ok(())
            }
            Err(stop) => bail!("the timeline of u{}: {stop:?}", read.user),
        }
    }

    /// Takes in what others have sent, does a batch of tasks, and sends what is to be said; whether there was
    /// anything.
    pub(super) fn step<T>(
        &mut self,
        tasks: &mut impl Iterator<Item = T>,
        batch: usize,
        execute: &mut impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<bool> {
        let own = &self.shared.boxes[usize::from(self.me.0)];
        let arrived = core::mem::take(&mut *own.lock().unwrap_or_else(PoisonError::into_inner));
        let dealt_with = arrived.len() as i64;
        for (from, packet) in arrived {
            self.peers.receive(from, packet);
        }
        let mut executed = 0;
        while executed < batch
            && let Some(task) = tasks.next()
        {
            execute(self, task)?;
            executed += 1;
        }
        self.turn()?;
        let sent = self.send();
        self.shared.under_way.fetch_sub(dealt_with, Ordering::SeqCst);
        Ok(executed > 0 || dealt_with > 0 || sent)
    }

    pub(super) fn turn(&mut self) -> Result<()> {
        loop {
            let effects = self.peers.turn(&mut self.engine, &mut |_, _| {});
            if effects.is_empty() {
                return Ok(());
            }
            for effect in effects {
                match effect {
                    Effect::Wake(ticket) => {
                        if let Some(read) = self.waiting.remove(&ticket) {
                            self.read(read)?;
                        }
                    }
                    effect => bail!("unexpected: {effect:?}"),
                }
            }
        }
    }

    /// Hands over what was said; whether there was anything.
    pub(super) fn send(&mut self) -> bool {
        for (to, packet) in self.peers.take_packets() {
            self.outgoing[usize::from(to.0)].push((self.me, packet));
        }
        let mut any = false;
        for (at, packets) in self.outgoing.iter_mut().enumerate() {
            if packets.is_empty() {
                continue;
            }
            any = true;
            self.batches += 1;
            self.shared.under_way.fetch_add(packets.len() as i64, Ordering::SeqCst);
            let to = &self.shared.boxes[at];
            to.lock().unwrap_or_else(PoisonError::into_inner).append(packets);
            let crew = &self.shared.crews[at % self.shared.crews.len()];
            if crew.sleeps.load(Ordering::SeqCst)
                && crew.sleeps.swap(false, Ordering::SeqCst)
                && let Some(thread) = crew.thread.get()
            {
                thread.unpark();
            }
        }
        any
    }
}
