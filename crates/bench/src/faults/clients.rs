//! Clients that post until they are acknowledged, whoever fails, and workers that deliver what is in a queue.

use crate::flows::nats;
use crate::flows::site::deliver;
use crate::flows::world::{Post, World};
use crate::peer::stop;
use crate::wire::{Connection, resp};
use anyhow::{Context, Result};
use core::time::Duration;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Workers behind the queue.
const WORKERS: usize = 4;
/// How long somebody rests before another node is asked.
const REST: Duration = Duration::from_millis(20);
/// How long one post is tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who writes timelines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// The client, before the post counts as done.
    Synchronous,
    /// Workers behind a queue.
    Queue,
    /// A flow of the cluster.
    Flow,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Synchronous, Self::Queue, Self::Flow];

    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::Queue => "queue",
            Self::Flow => "flow",
        }
    }
}

/// The acknowledgement of a post, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    /// Since the first post was due.
    pub(super) at: f64,
    /// Since the post was due.
    pub(super) took: f64,
}

/// The place of a post among those of its poster: each has one of its own.
pub(super) fn time_of(post: &Post) -> String {
    format!("{:010}", post.number)
}

/// One load.
pub(super) struct Run<'w> {
    way: Way,
    world: &'w World,
    /// Where the nodes are, and a NATS server.
    nodes: Vec<u16>,
    nats: u16,
}

/// Connections to whoever answers.
struct Reach {
    node: usize,
    store: Option<Connection>,
    queue: Option<Connection>,
    inbox: String,
}

impl<'w> Run<'w> {
    pub(super) fn new(way: Way, world: &'w World, nodes: Vec<u16>, nats: u16) -> Self {
        Self { way, world, nodes, nats }
    }

    /// Posts at `rate` over so many connections while `conduct` does what it does, which can wait until all is acknowledged; workers go on until it
    /// has ended. What was acknowledged, and what it gives.
    pub(super) fn act<R>(
        &self,
        (posts, rate, begun): (&[Post], f64, Instant),
        connections: usize,
        conduct: impl FnOnce(&mut dyn FnMut()) -> Result<R>,
    ) -> Result<(Vec<Acknowledged>, R)> {
        let (next, over, all) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::default());
        let ended = std::thread::scope(|scope| {
            if self.way == Way::Queue {
                for number in 0..WORKERS {
                    let over = &over;
                    scope.spawn(move || self.work(number, over));
                }
            }
            let mut clients: Vec<_> = (0..connections)
                .map(|number| {
                    let (next, over, all) = (&next, &over, &all);
                    let load = (posts, rate, begun);
                    scope.spawn(move || self.post_all(number, load, (next, over), all))
                })
                .collect();
            let ended = conduct(&mut || clients.drain(..).for_each(|client| _ = client.join()));
            over.store(true, Ordering::Relaxed);
            ended
        });
        stop::check()?;
        let all: Vec<Acknowledged> = all.into_inner().ok().context("a client has failed")?;
        Ok((all, ended?))
    }

    fn post_all(
        &self,
        number: usize,
        (posts, rate, begun): (&[Post], f64, Instant),
        (next, over): (&AtomicUsize, &AtomicBool),
        all: &Mutex<Vec<Acknowledged>>,
    ) {
        let mut reach = self.reach(number, "c");
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(post) = posts.get(at) else { return };
            let due = begun + Duration::from_secs_f64(at as f64 / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            while self.post(&mut reach, post).is_err() {
                if due.elapsed() > PATIENCE
                    || over.load(Ordering::Relaxed)
                    || stop::check().is_err()
                {
                    return;
                }
                reach.turn_away(self.nodes.len());
            }
            let took = due.elapsed().as_secs_f64();
            let acknowledged = Acknowledged { at: begun.elapsed().as_secs_f64(), took };
            all.lock().unwrap_or_else(|broken| broken.into_inner()).push(acknowledged);
        }
    }

    fn reach(&self, number: usize, kind: &str) -> Reach {
        let inbox = format!("_INBOX.{kind}{number}");
        Reach { node: number % self.nodes.len(), store: None, queue: None, inbox }
    }

    fn post(&self, reach: &mut Reach, post: &Post) -> io::Result<()> {
        let place = format!("{}|{}", self.world.name(post.poster), time_of(post));
        let text = post.text();
        match self.way {
            Way::Synchronous => deliver(reach.store(&self.nodes)?, &place, &text),
            Way::Flow => {
                let store = reach.store(&self.nodes)?;
                resp::command(&mut store.out, &[b"SET", format!("p|{place}").as_bytes(), &text]);
                store.flush()?;
                resp::skip(&mut store.input)
            }
            Way::Queue => {
                let payload = [place.as_bytes(), b" ", &text].concat();
                let inbox = reach.inbox.clone();
                nats::put(reach.queue(self.nats)?, &inbox, &payload)
            }
        }
    }

    /// Takes posts from the queue and writes them to the timelines, until all is over.
    fn work(&self, number: usize, over: &AtomicBool) {
        let mut reach = self.reach(number, "w");
        while !over.load(Ordering::Relaxed) && stop::check().is_ok() {
            if self.take(&mut reach, over).is_err() {
                reach.turn_away(self.nodes.len());
            }
        }
    }

    fn take(&self, reach: &mut Reach, over: &AtomicBool) -> io::Result<()> {
        let inbox = reach.inbox.clone();
        nats::ask(reach.queue(self.nats)?, &inbox)?;
        for _ in 0..nats::BATCH {
            let message = nats::message(reach.queue(self.nats)?)?;
            let (Some(reply), Some(payload)) = (message.reply, message.payload) else { break };
            let split = payload.iter().position(|&byte| byte == b' ').unwrap_or(payload.len());
            let place = String::from_utf8_lossy(&payload[..split]).into_owned();
            let text = payload.get(split + 1..).unwrap_or_default();
            // A message that was taken is worked off, through whichever node answers.
            while let Err(error) =
                reach.store(&self.nodes).and_then(|store| deliver(store, &place, text))
            {
                if over.load(Ordering::Relaxed) || stop::check().is_err() {
                    return Err(error);
                }
                reach.store = None;
                reach.node = (reach.node + 1) % self.nodes.len();
                std::thread::sleep(REST);
            }
            let queue = reach.queue(self.nats)?;
            nats::receipt(&mut queue.out, &reply);
            queue.flush()?;
        }
        Ok(())
    }
}

impl Reach {
    /// The connection to a node.
    fn store(&mut self, nodes: &[u16]) -> io::Result<&mut Connection> {
        if self.store.is_none() {
            let store = Connection::open(nodes[self.node])?;
            store.hurry()?;
            self.store = Some(store);
        }
        self.store.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The connection to the queue.
    fn queue(&mut self, port: u16) -> io::Result<&mut Connection> {
        if self.queue.is_none() {
            let mut queue = Connection::open(port)?;
            queue.hurry()?;
            nats::begin(&mut queue, &self.inbox)?;
            self.queue = Some(queue);
        }
        self.queue.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Turns to another node, over new connections.
    fn turn_away(&mut self, nodes: usize) {
        (self.store, self.queue) = (None, None);
        self.node = (self.node + 1) % nodes;
        std::thread::sleep(REST);
    }
}
