//! The shards, their time, and what is on its way.

use super::busy::Busy;
use super::faults::NetworkFaults;
use super::pipe::{Pipe, ServerEnd};
use crate::connection::ConnectionId;
use crate::reactor::Reactor;
use crate::resp::ShardService;
use crate::service::Time;
use crate::shards::links::LINK_FORMATS;
use crate::shards::{
    FrameArrival, FrameSequence, MessageBatch, Sender, ShardMessage, Shards, Transport,
};
use headwater_base::{Millis, Shard};
use headwater_config::{Config, ShardCount};
use headwater_model::server::place::{Place, Stream};
use headwater_router::Frames;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What takes longer, in milliseconds of the simulated time, never ends.
pub(super) const PATIENCE: u64 = 60_000;
/// Turns in which nothing has come of anything before time passes faster.
const QUIET: u32 = 400;
/// The time of day at which it begins.
const BEGIN: u64 = 1_800_000_000_000;

/// The uptime at which it begins: later than what the true clock said while it was made.
const BEGIN_UPTIME: u64 = 600_000;

/// Draws numbers from a seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

struct Client {
    shard: usize,
    id: ConnectionId,
    pipe: Pipe,
}

/// A server.
pub(super) struct World {
    /// That of each shard: one for all, or one for each process.
    transports: Vec<Arc<Transport>>,
    reactors: Vec<Reactor<ShardService>>,
    clients: Vec<Client>,
    pub(super) draws: Draws,
    /// Milliseconds since it began.
    pub(super) uptime: u64,
    /// Turns in which nothing has come from anywhere.
    quiet: u32,
    connected: u16,
    /// Clients that are busy meanwhile.
    pub(super) busy: Option<Busy>,
    /// Shards that stand still until all others do.
    meets: BTreeSet<usize>,
    /// A shard that has no turn.
    pub(super) stalled: Option<usize>,
    /// Partitions that have moved, or were to.
    pub(super) moves: u64,
    /// Between shards that are in processes of their own, from one to another: the connections that the first one has been told of, and whether
    /// the last one is there.
    links: BTreeMap<(usize, usize), (u64, bool)>,
    /// What each shard begins with.
    config: Config,
    /// The lives that shards have had.
    epoch: u64,
    /// The life that each shard is in.
    lives: Vec<u64>,
    /// Between the same, of one connection: the numbers of what was sent, and of what has come.
    lines: BTreeMap<(usize, usize), (u64, FrameSequence, FrameSequence)>,
    /// What the network does to frames.
    pub(super) faults: NetworkFaults,
    /// Shards, and who has refused what they have said: they are cut off from one another when the turn is over.
    refused: Vec<(usize, usize)>,
}

impl World {
    /// A server of so many shards, two or more.
    pub(super) fn new(shards: u16, seed: u64, change: &dyn Fn(&mut Config)) -> Self {
        let transport = Transport::new(shards);
        Self::over(vec![transport; usize::from(shards)], seed, change)
    }

    /// So many shards, each as if in a process of its own, all connected.
    pub(super) fn apart(shards: u16, seed: u64, change: &dyn Fn(&mut Config)) -> Self {
        let transports = (0..shards).map(|at| Transport::apart(Shard(at), shards, seed)).collect();
        let mut world = Self::over(transports, seed, change);
        world.connect_all();
        world
    }

    /// Connects all shards that are not.
    pub(super) fn connect_all(&mut self) {
        for one in 0..self.shards() {
            for other in one + 1..self.shards() {
                if !self.are_connected(one, other) {
                    self.connect_shards(one, other);
                }
            }
        }
    }

    /// Has a shard's process end between two of its turns, and begin anew with what it has kept.
    pub(super) fn restart(&mut self, at: usize) {
        for other in (0..self.shards()).filter(|other| *other != at) {
            if self.are_connected(at, other) {
                self.cut(at, other);
            }
            self.links.remove(&(at, other));
        }
        self.lines.retain(|(from, to), _| *from != at && *to != at);
        // Its connections end with it, and what had come for it is gone.
        drop(self.reactors.remove(at));
        self.clients.retain(|client| client.shard != at);
        let me = Shard(at as u16);
        self.transports[at] = Transport::apart(me, self.transports.len() as u16, 1);
        self.epoch += 1;
        self.lives[at] = self.epoch;
        let shards = Shards::of_epoch(me, &self.transports[at], self.epoch);
        let service = ShardService::new(self.config.clone(), Some(shards), None).unwrap();
        let reactor = Reactor::beside(&self.config, service, Vec::new()).unwrap();
        self.reactors.insert(at, reactor);
        if at == 0 {
            self.reactors[0].service.find_unfinished().unwrap();
        }
    }

    fn over(transports: Vec<Arc<Transport>>, seed: u64, change: &dyn Fn(&mut Config)) -> Self {
        let shards = transports.len() as u16;
        let mut config = Config::default();
        config.listen.shards = ShardCount::Number(shards);
        config.listen.bind = Vec::new();
        change(&mut config);
        transports.iter().for_each(|transport| transport.barrier().simulate());
        let reactor = |at| {
            let shards = Shards::of(Shard(at), &transports[usize::from(at)]);
            let service = ShardService::new(config.clone(), Some(shards), None).unwrap();
            Reactor::beside(&config, service, Vec::new()).unwrap()
        };
        let mut reactors: Vec<_> = (0..shards).map(reactor).collect();
        reactors[0].service.find_unfinished().unwrap();
        let (clients, draws) = (Vec::new(), Draws::new(seed));
        let mut world = Self {
            transports,
            reactors,
            clients,
            draws,
            uptime: BEGIN_UPTIME,
            quiet: 0,
            connected: 0,
            busy: None,
            meets: BTreeSet::new(),
            stalled: None,
            moves: 0,
            links: BTreeMap::new(),
            config,
            epoch: 1,
            lives: vec![1; usize::from(shards)],
            lines: BTreeMap::new(),
            faults: NetworkFaults::default(),
            refused: Vec::new(),
        };
        while !world.reactors.iter().all(Reactor::is_open) {
            world.turn();
        }
        world
    }

    /// From now on memory is full where a shard is, or there is room.
    pub(super) fn fill_memory(&mut self, at: usize, is_full: bool) {
        self.reactors[at].service.simulate_memory(is_full);
    }

    /// What the shards have said to one another about data.
    pub(super) fn packets_sent(&self) -> u64 {
        self.reactors.iter().map(|reactor| reactor.service.packets_sent()).sum()
    }

    /// Asks a shard for a client of another one, which does not know of that; so many answers are wanted.
    pub(super) fn exchange(
        &mut self,
        (from, at): (usize, usize),
        asks: Vec<u8>,
        answers: usize,
    ) -> Vec<u8> {
        let (from, at) = (Shard(from as u16), Shard(at as u16));
        let session = ConnectionId { slot: 1, number: 1 << 40 };
        let messages = vec![ShardMessage::Asks { session, end: asks.len() }];
        let batch = MessageBatch { from, bytes: asks, messages, connection: 1 };
        let transport = self.transports[usize::from(at.0)].clone();
        transport.bring(at, batch);
        let (mut told, mut came) = (Vec::new(), 0);
        let began = self.uptime;
        while came < answers && self.uptime < began + PATIENCE {
            self.turn();
            for batch in transport.take_for(from) {
                let mut begin = 0;
                for message in &batch.messages {
                    let end = message.end().unwrap_or(begin);
                    if matches!(message, ShardMessage::Answers { .. }) {
                        told.extend_from_slice(&batch.bytes[begin..end]);
                    }
                    begin = end;
                }
            }
            let mut frames = Frames::of(&told);
            came = core::iter::from_fn(|| frames.next_answer()).count();
        }
        told
    }

    /// What a shard has refused of what others have said.
    pub(super) fn messages_refused(&self, at: usize) -> u64 {
        self.transports[at].refused()
    }

    /// How many shards there are.
    pub(super) fn shards(&self) -> usize {
        self.reactors.len()
    }

    /// Whether two shards are connected.
    pub(super) fn are_connected(&self, one: usize, other: usize) -> bool {
        self.links.get(&(one, other)).is_some_and(|(_, is)| *is)
    }

    /// Connects two shards that are not.
    pub(super) fn connect_shards(&mut self, one: usize, other: usize) {
        for pair in [(one, other), (other, one)] {
            let link = self.links.entry(pair).or_default();
            *link = (link.0 + 1, true);
            let (to, other) = (pair.0, Shard(pair.1 as u16));
            self.transports[to].tell_found(Shard(to as u16), other);
        }
    }

    /// Cuts two shards off from one another: what is on its way between them is lost.
    pub(super) fn cut(&mut self, one: usize, other: usize) {
        for pair in [(one, other), (other, one)] {
            self.links.entry(pair).or_default().1 = false;
            let (to, other) = (pair.0, Shard(pair.1 as u16));
            self.transports[to].tell_lost(Shard(to as u16), other, 0);
        }
    }

    /// Cuts all off from one another.
    pub(super) fn cut_all(&mut self) {
        for one in 0..self.shards() {
            for other in one + 1..self.shards() {
                if self.are_connected(one, other) {
                    self.cut(one, other);
                }
            }
        }
    }

    /// Brings a shard what those in other processes have written to it, as far as the network lets it.
    fn carry_to(&mut self, at: usize) {
        let to = Shard(at as u16);
        for from in (0..self.transports.len()).filter(|from| *from != at) {
            if Arc::ptr_eq(&self.transports[from], &self.transports[at]) {
                continue;
            }
            let written = self.transports[from].take_for(to);
            let Some(&(count, is)) = self.links.get(&(from, at)) else { continue };
            let lines = self.lines.entry((from, at)).or_default();
            if lines.0 != count {
                *lines = (count, FrameSequence::default(), FrameSequence::default());
            }
            let mut frames = VecDeque::new();
            for batch in written.into_iter().filter(|batch| is && batch.connection == count) {
                let mut frame = Vec::new();
                batch
                    .write((LINK_FORMATS.newest, lines.1.stamp()), &mut frame)
                    .expect("it has a form");
                frames.push_back(frame);
            }
            let written = frames.clone();
            self.faults.suffer(&mut frames, &mut self.draws);
            let sender = self.sender(Shard(from as u16));
            for frame in frames {
                let read = MessageBatch::read(&frame, &sender);
                let lines = self.lines.entry((from, at)).or_default();
                let is_blind = self.faults.are_unnoticed;
                let mut arrival = |number| match lines.2.arrives(number) {
                    _ if is_blind => FrameArrival::Next,
                    arrival => arrival,
                };
                match read.map(|(number, batch)| (arrival(number), batch)) {
                    Ok((FrameArrival::Next, batch)) => {
                        self.faults.taken += u64::from(!written.contains(&frame));
                        let batch = MessageBatch { connection: count, ..batch };
                        self.transports[at].bring(to, batch);
                    }
                    Ok((FrameArrival::Again, _)) => self.faults.dropped += 1,
                    Ok((FrameArrival::BehindMissing, _)) | Err(_) => {
                        self.faults.refused += 1;
                        self.refused.push((from, at));
                        break;
                    }
                }
            }
        }
    }

    /// Whether what a shard has written can arrive: it was for the connection that there is.
    fn arrives(&self, at: usize, batch: &MessageBatch) -> bool {
        let from = usize::from(batch.from.0);
        let told_here =
            matches!(batch.messages[..], [ShardMessage::Lost { .. }] | [ShardMessage::Found]);
        let passes = |(count, is): &(u64, bool)| *is && batch.connection == *count;
        let link = self.links.get(&(from, at));
        at == from || told_here || self.links.is_empty() || link.is_some_and(passes)
    }

    /// Whose messages those of a shard are.
    fn sender(&self, shard: Shard) -> Sender {
        let epoch = self.lives[usize::from(shard.0)];
        let format = LINK_FORMATS.newest;
        Sender { shard, epoch, shards: self.reactors.len() as u16, format }
    }

    /// Takes messages out of the inbox of a shard that is to come later: all that some senders have sent behind a point, and all that
    /// lies behind a message that has the shard wait for all others; whether there is one.
    fn set_aside(&mut self, at: usize) -> (Vec<MessageBatch>, bool) {
        let late: BTreeSet<u16> =
            (0..self.reactors.len() as u16).filter(|_| self.draws.below(3) == 0).collect();
        self.carry_to(at);
        let transport = self.transports[at].clone();
        let mut batches = transport.batches_of(Shard(at as u16));
        let (mut now, mut later, mut held) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut meets = false;
        for mut batch in batches.drain(..) {
            if !self.arrives(at, &batch) {
                continue;
            }
            let from = batch.from.0;
            if meets || held.contains(&from) || (late.contains(&from) && self.draws.below(2) == 0) {
                held.insert(from);
                later.push(batch);
            } else {
                let behind = batch.split_at_move();
                now.push(if self.links.is_empty() { over_link(batch) } else { batch });
                meets = behind.is_some();
                later.extend(behind.filter(|batch| !batch.messages.is_empty()));
            }
        }
        *batches = now;
        (later, meets)
    }

    /// All stand still: they do their parts in step.
    fn meet(&mut self) {
        self.moves += 1;
        let mut order: Vec<usize> = core::mem::take(&mut self.meets).into_iter().collect();
        let mut goes_on = true;
        while goes_on {
            let places = order.len();
            order.rotate_left(self.draws.below(places));
            for at in &order {
                goes_on = self.reactors[*at].simulate_move_phase();
            }
        }
        order.iter().for_each(|at| self.reactors[*at].simulate_end_of_move());
        self.quiet = 0;
    }

    /// Whether nothing has happened for long.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet > QUIET
    }

    /// A connection to some shard.
    pub(super) fn connect(&mut self) -> (Pipe, SocketAddr) {
        let pipe = Pipe::default();
        self.connected = self.connected.wrapping_add(1).max(1024);
        let peer = SocketAddr::from(([10, 0, 0, 1], self.connected));
        let shard = self.draws.below(self.reactors.len());
        let id = self.reactors[shard].simulate_client(ServerEnd(pipe.clone()), peer);
        self.clients.push(Client { shard, id, pipe: pipe.clone() });
        (pipe, peer)
    }

    /// The shard of a client.
    pub(super) fn shard_of(&self, pipe: &Pipe) -> usize {
        let is_its = |client: &&Client| client.pipe.is_same(pipe);
        self.clients.iter().find(is_its).map_or(usize::MAX, |client| client.shard)
    }

    /// Has something happen.
    pub(super) fn step(&mut self) {
        if let Some(mut busy) = self.busy.take() {
            if self.draws.below(3) == 0 {
                busy.step(self);
            }
            self.busy = Some(busy);
        }
        self.turn();
    }

    /// Gives some shard a turn.
    pub(super) fn turn(&mut self) {
        if self.meets.len() == self.reactors.len() {
            return self.meet();
        }
        let at = self.draws.below(self.reactors.len());
        if self.quiet > QUIET {
            self.uptime += 20;
        } else if self.draws.below(8) == 0 {
            self.uptime += 1;
        }
        if self.meets.contains(&at) || self.stalled == Some(at) {
            return;
        }
        let (later, meets) = self.set_aside(at);
        let has_mail = !self.transports[at].batches_of(Shard(at as u16)).is_empty();
        let mut news = Vec::new();
        for client in self.clients.iter().filter(|client| client.shard == at) {
            let mut state = client.pipe.state();
            if core::mem::take(&mut state.news) {
                news.push((client.id, state.client_ended));
            }
        }
        let time = Time { wall: Millis(BEGIN + self.uptime), uptime: self.uptime };
        let told = |world: &Self| -> usize {
            world.clients.iter().map(|client| client.pipe.state().told.len()).sum()
        };
        let before = told(self);
        if meets {
            self.reactors[at].simulate_call(time, &news);
            self.meets.insert(at);
        } else {
            self.reactors[at].simulate_turn(time, &news);
        }
        let is_quiet =
            news.is_empty() && !has_mail && told(self) == before && !self.reactors[at].is_busy();
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        if !later.is_empty() {
            let mut batches = self.transports[at].batches_of(Shard(at as u16));
            let come = core::mem::replace(&mut *batches, later);
            batches.extend(come);
            drop(batches);
            self.transports[at].ring(Shard(at as u16));
        }
        // What had come before, and is late, comes before that.
        for (from, at) in core::mem::take(&mut self.refused) {
            if self.are_connected(from, at) {
                self.cut(from, at);
            }
        }
        self.clients.retain(|client| {
            let state = client.pipe.state();
            state.news || !(state.server_ended || state.client_ended)
        });
    }
}

/// What one shard has written to another, as it would come from one process to another: what has a form there is read from its bytes.
fn over_link(batch: MessageBatch) -> MessageBatch {
    let mut frame = Vec::new();
    let format = LINK_FORMATS.newest;
    let sender = Sender { shard: batch.from, epoch: 1, shards: u16::MAX, format };
    match batch.write((format, 0), &mut frame) {
        Ok(()) => MessageBatch::read(&frame, &sender).expect("what was written is read").1,
        Err(_) => batch,
    }
}

/// A server that clients reach by giving it turns.
#[derive(Clone)]
pub(super) struct Simulated(pub(super) Rc<RefCell<World>>);

impl Place for Simulated {
    fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let (pipe, peer) = self.0.borrow_mut().connect();
        Ok(Box::new(ClientEnd { world: self.clone(), pipe, peer }))
    }

    fn name(&self) -> String {
        String::from("simulated")
    }

    fn wait(&self, began: Duration) -> bool {
        (0..10).for_each(|_| self.0.borrow_mut().step());
        self.now() < began + Duration::from_millis(PATIENCE)
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.0.borrow().uptime)
    }

    fn disturb(&self, may_move: bool) {
        let world = &mut *self.0.borrow_mut();
        let mut busy = Busy::new(2, world.draws.below(usize::MAX) as u64, true);
        let moves = may_move && world.draws.below(2) == 0;
        busy.moves_among = if moves { world.reactors.len() as u16 } else { 0 };
        busy.begin(world);
        world.busy = Some(busy);
    }

    fn moves(&self) -> bool {
        self.0.borrow().busy.as_ref().is_some_and(|busy| busy.moves_among > 0)
    }

    fn calm(&self) -> Result<(), String> {
        let world = &mut *self.0.borrow_mut();
        world.busy.take().map_or(Ok(()), |mut busy| busy.end(world))
    }
}

/// A client's end of a connection.
pub(super) struct ClientEnd {
    world: Simulated,
    pub(super) pipe: Pipe,
    peer: SocketAddr,
}

impl Read for ClientEnd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let began = self.world.0.borrow().uptime;
        loop {
            {
                let mut state = self.pipe.state();
                if !state.told.is_empty() {
                    return state.told.read(into);
                }
                if state.server_ended {
                    return Ok(0);
                }
            }
            let mut world = self.world.0.borrow_mut();
            if world.uptime > began + PATIENCE {
                return Err(ErrorKind::TimedOut.into());
            }
            world.step();
        }
    }
}

impl Write for ClientEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pipe.state().server_ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.pipe.ask(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for ClientEnd {
    fn own_address(&self) -> String {
        self.peer.to_string()
    }

    fn pause(&self) {
        let steps = self.world.0.borrow_mut().draws.below(12);
        (0..steps).for_each(|_| self.world.0.borrow_mut().step());
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.pipe.end();
    }
}
