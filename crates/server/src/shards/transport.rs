//! Messages between the threads of shards.
//!
//! A shard gathers what it has for another one during a turn of its loop, and hands it over at the
//! turn's end: one lock, and at most one wake-up, for all of it. Messages of one sender to one receiver arrive in
//! the order in which they were written.

use super::barrier::Barrier;
use super::lines::DirectLines;
use super::links::NewLine;
use super::message::{MessageBatch, ShardMessage};
use super::names::Heard;
use super::outgoing::{Outgoing, ToldBatch};
use super::recorded::Recorded;
use super::turns::Turns;
use crate::connection::ConnectionId;
use crate::inbox::LoopInbox;
use crate::memory::Common;
use crate::resp::{
    CommonBackup, CommonCounts, CommonEntrance, CommonMonitors, SlowCommands, Spreads,
};
use crate::service::DurableWrites;
use crate::sources;
use crate::users::UserRegistry;
use headwater_base::Shard;
use mio::{Registry, Waker};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Bytes that may wait for a shard, without a bound on memory.
const WAITING_MAX: usize = 16 << 20;
/// With one, what may wait for each shard: this part of it, and at least so much.
const WAITING_SHARE: usize = 256;
const WAITING_MIN: usize = 64 << 10;

/// What all shards share.
#[derive(Debug)]
pub(crate) struct Transport {
    boxes: Vec<ShardInbox>,
    barrier: Arc<Barrier>,
    turns: Turns,
    /// Names this run of the server.
    run: u64,
    /// The shards are in processes of their own, and each may end, or be cut off, without the others.
    apart: bool,
    memory: Common,
    /// The sources of all shards.
    sources: Arc<sources::Common>,
    /// What clients of any shard listen to.
    heard: Heard,
    /// The slow commands of all shards.
    slow: SlowCommands,
    /// Where clients monitor.
    monitors: CommonMonitors,
    /// The backup under way.
    backup: CommonBackup,
    /// How long the commands of all shards take.
    spreads: Spreads,
    /// What the shards have counted.
    counts: CommonCounts,
    /// Transactions of which stores keep records.
    recorded: Recorded,
    /// What is known of those who come in.
    entrance: CommonEntrance,
    /// Who may do what.
    users: Arc<UserRegistry>,
    /// Batches of shards in other processes that were none.
    refused: AtomicU64,
    /// The loop of this process carries connections to others.
    loop_carries: AtomicBool,
    /// The shard of this process ends, and has no more connections to others than it has.
    ends: AtomicBool,
}

#[derive(Debug, Default)]
struct ShardInbox {
    batches: LoopInbox<MessageBatch>,
    /// Where the shard is in another process: tells whoever carries messages there that there are some.
    news: OnceLock<Arc<Notify>>,
    /// The newest connection there that this process's loop is to carry, and does not yet.
    line: Mutex<Option<NewLine>>,
    /// Clients that this shard serves.
    clients: AtomicUsize,
    /// Clients that others have handed on to it, and that it has not looked at yet.
    coming: AtomicUsize,
    /// Bytes that nobody has taken yet.
    waiting: AtomicUsize,
    /// How often the shard has looked what has come.
    looked: AtomicU64,
}

/// One shard's side.
#[derive(Debug)]
pub(crate) struct Outbox {
    me: Shard,
    transport: Arc<Transport>,
    outgoing: Vec<Outgoing>,
    sent: SentCounts,
    /// How shards in processes of their own are connected; empty where all are in one.
    connected: Vec<Connected>,
    /// Connections that this shard's loop carries, by shard.
    pub(crate) lines: DirectLines,
    /// Bytes that may wait for a shard before no further ones are written to it.
    waiting_max: usize,
}

/// How a shard in a process of its own is connected.
#[derive(Clone, Copy, Debug, Default)]
struct Connected {
    /// It is.
    is: bool,
    /// Connections that were heard of.
    count: u64,
}

/// What a shard has sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SentCounts {
    /// Batches: what takes a lock, and at most one wake-up.
    pub(crate) batches: u64,
    pub(crate) messages: u64,
    /// Bytes of requests and replies.
    pub(crate) bytes: u64,
    /// Requests of clients here that others executed.
    pub(crate) requests: u64,
}

impl Transport {
    /// Inboxes for so many shards.
    pub(crate) fn new(shards: u16) -> Arc<Self> {
        Self::with_sources(shards, sources::Common::new(Shard(0), shards))
    }

    fn with_sources(shards: u16, sources: Arc<sources::Common>) -> Arc<Self> {
        let boxes = (0..shards).map(|_| ShardInbox::default()).collect();
        let run = RandomState::new().hash_one(0);
        let (barrier, memory) = (Arc::new(Barrier::new(shards)), Common::new(shards));
        let turns = Turns::default();
        let (heard, slow, recorded, entrance, users) = Default::default();
        Arc::new(Self {
            boxes,
            barrier,
            turns,
            memory,
            run,
            apart: false,
            sources,
            heard,
            slow,
            spreads: Spreads::default(),
            counts: CommonCounts::default(),
            monitors: CommonMonitors::default(),
            backup: CommonBackup::default(),
            recorded,
            entrance,
            users,
            refused: AtomicU64::new(0),
            loop_carries: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        })
    }

    /// The same for shards in processes of their own, of which this process has `me`. `run` is the same for all of them.
    pub(crate) fn apart(me: Shard, shards: u16, run: u64) -> Arc<Self> {
        let mut transport = Self::with_sources(shards, sources::Common::new(me, 1));
        if let Some(transport) = Arc::get_mut(&mut transport) {
            (transport.apart, transport.run) = (true, run);
            transport.memory = Common::apart(shards);
        }
        transport
    }

    /// What is known of those who come in.
    pub(crate) fn entrance(&self) -> &CommonEntrance {
        &self.entrance
    }

    /// What the shards tell of their memory.
    pub(crate) fn memory(&self) -> &Common {
        &self.memory
    }

    /// The sources of all shards.
    pub(crate) fn sources(&self) -> &Arc<sources::Common> {
        &self.sources
    }

    /// What clients of any shard listen to.
    pub(crate) fn heard(&self) -> &Heard {
        &self.heard
    }

    /// The users, and what they have defined.
    pub(crate) fn users(&self) -> &Arc<UserRegistry> {
        &self.users
    }

    /// Where clients monitor.
    pub(crate) fn monitors(&self) -> &CommonMonitors {
        &self.monitors
    }

    /// The backup under way.
    pub(crate) fn backup(&self) -> &CommonBackup {
        &self.backup
    }

    /// How long the commands of all shards take.
    pub(crate) fn spreads(&self) -> &Spreads {
        &self.spreads
    }

    /// What the shards have counted.
    pub(crate) fn counts(&self) -> &CommonCounts {
        &self.counts
    }

    /// The slow commands of all shards.
    pub(crate) fn slow(&self) -> &SlowCommands {
        &self.slow
    }

    /// What has come for a shard and was not taken: whoever simulates the threads gives it in the order in which it is to come.
    #[cfg(test)]
    pub(crate) fn batches_of(&self, shard: Shard) -> MutexGuard<'_, Vec<MessageBatch>> {
        self.of(shard).batches.all()
    }

    /// The barrier of all shards.
    #[cfg(test)]
    pub(crate) fn barrier(&self) -> &Barrier {
        &self.barrier
    }

    /// Transactions of which stores keep records.
    pub(crate) fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> u16 {
        self.boxes.len() as u16
    }

    /// What tells that there is something for a shard in another process.
    pub(crate) fn news_for(&self, shard: Shard) -> Arc<Notify> {
        self.of(shard).news.get_or_init(Arc::default).clone()
    }

    /// Takes what was written to a shard in another process.
    pub(crate) fn take_for(&self, shard: Shard) -> Vec<MessageBatch> {
        self.of(shard).take()
    }

    /// Whether the loop of this process carries connections to others, if it is given any.
    pub(crate) fn loop_carries(&self) -> bool {
        self.loop_carries.load(Ordering::Relaxed)
    }

    /// The shard of this process ends: nobody is to be connected with it from now on who is not.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// Whether it does.
    pub(crate) fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Gives the loop of this process a connection to a shard, which it has as soon as it is told of it.
    pub(crate) fn give_line(&self, to: Shard, line: NewLine) {
        *self.of(to).line() = Some(line);
    }

    /// Brings a shard of this process what one in another process has written.
    pub(crate) fn bring(&self, to: Shard, batch: MessageBatch) {
        self.of(to).put(core::iter::once(batch));
    }

    /// What has come from another process was no message of a shard.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How often a shard of this process has looked what has come: one that goes on does so in each turn, and when it is [rung](Self::ring).
    pub(crate) fn looked(&self, shard: Shard) -> u64 {
        self.of(shard).looked.load(Ordering::Relaxed)
    }

    /// Bytes that a shard has not taken yet.
    pub(crate) fn waiting_for(&self, shard: Shard) -> usize {
        self.of(shard).waiting.load(Ordering::Relaxed)
    }

    /// Tells a shard of this process that it has a connection to another one.
    pub(crate) fn tell_found(&self, to: Shard, other: Shard) {
        let messages = vec![ShardMessage::Found];
        self.bring(to, MessageBatch { from: other, messages, ..MessageBatch::default() });
    }

    /// Tells a shard of this process that it has none any more, over which nothing had been heard for `silent` milliseconds.
    pub(crate) fn tell_lost(&self, to: Shard, other: Shard, silent: u64) {
        // It may be a while before it takes that.
        let ago = (silent > 0).then(|| Duration::from_millis(silent));
        let heard = ago.and_then(|ago| Instant::now().checked_sub(ago));
        let messages = vec![ShardMessage::Lost { heard }];
        self.bring(to, MessageBatch { from: other, messages, ..MessageBatch::default() });
    }

    /// Has a shard come round.
    pub(crate) fn ring(&self, shard: Shard) {
        self.of(shard).ring();
    }

    fn of(&self, shard: Shard) -> &ShardInbox {
        &self.boxes[usize::from(shard.0)]
    }
}

impl ShardInbox {
    fn line(&self) -> MutexGuard<'_, Option<NewLine>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, batches: impl Iterator<Item = MessageBatch>) {
        let counted = batches.inspect(|batch| {
            self.waiting.fetch_add(batch.bytes.len(), Ordering::Relaxed);
        });
        self.batches.put(counted);
        self.tell_news();
    }

    #[inline]
    fn take(&self) -> Vec<MessageBatch> {
        let batches = self.batches.take();
        if !batches.is_empty() {
            let bytes = batches.iter().map(|batch| batch.bytes.len()).sum();
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        batches
    }

    fn ring(&self) {
        self.batches.ring();
        self.tell_news();
    }

    fn tell_news(&self) {
        if let Some(news) = self.news.get() {
            news.notify_one();
        }
    }
}

impl Outbox {
    pub(crate) fn new(me: Shard, transport: Arc<Transport>) -> Self {
        let outgoing = transport.boxes.iter().map(|_| Outgoing::new(me)).collect();
        let apart = if transport.apart { transport.boxes.len() } else { 0 };
        let connected = vec![Connected::default(); apart];
        let (sent, waiting_max) = (SentCounts::default(), WAITING_MAX);
        let lines = DirectLines::new(apart);
        Self { me, outgoing, transport, sent, connected, lines, waiting_max }
    }

    /// Whose it is.
    #[cfg(test)]
    pub(crate) fn me(&self) -> Shard {
        self.me
    }

    /// Whether the shards are in processes of their own.
    #[inline]
    pub(crate) fn are_apart(&self) -> bool {
        self.transport.apart
    }

    /// The shards of this process.
    pub(crate) fn of_process(&self) -> impl Iterator<Item = Shard> + use<> {
        let (me, apart) = (self.me, self.are_apart());
        (0..self.shards()).map(Shard).filter(move |shard| !apart || *shard == me)
    }

    /// All shards but this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = Shard> + use<> {
        let me = self.me;
        (0..self.shards()).map(Shard).filter(move |shard| *shard != me)
    }

    /// Whether nothing can be sent to a shard.
    #[inline]
    pub(crate) fn is_lost(&self, shard: Shard) -> bool {
        shard != self.me && self.connected.get(usize::from(shard.0)).is_some_and(|it| !it.is)
    }

    /// A shard in a process of its own to which there is no connection, if there is one.
    pub(crate) fn lost_shard(&self) -> Option<Shard> {
        (0..self.shards()).map(Shard).find(|shard| self.is_lost(*shard))
    }

    /// There is a connection to a shard from now on, or none; whether that is new.
    pub(crate) fn set_connected(&mut self, shard: Shard, is: bool) -> bool {
        let Some(connected) = self.connected.get_mut(usize::from(shard.0)) else { return false };
        connected.count += u64::from(is);
        let count = connected.count;
        let line = self.transport.of(shard).line().take_if(|it| is && it.count() == count);
        self.lines.replace(shard, (count, line));
        let connected = &mut self.connected[usize::from(shard.0)];
        // What was written for the one before is of no use for this one, and nobody is to wait until it is taken.
        self.outgoing[usize::from(shard.0)].clear();
        drop(self.transport.take_for(shard));
        core::mem::replace(&mut connected.is, is) != is || is
    }

    /// Has so much less wait that it goes with a bound on memory.
    pub(crate) fn set_waiting_max(&mut self, bound: Option<usize>) {
        let part = |bound: usize| (bound / WAITING_SHARE).clamp(WAITING_MIN, WAITING_MAX);
        self.waiting_max = bound.map_or(WAITING_MAX, part);
    }

    /// Whether so much waits for a shard, with `bytes` more, that what can wait should.
    #[inline]
    pub(crate) fn is_crowded(&self, shard: Shard, bytes: usize) -> bool {
        let own = self.outgoing[usize::from(shard.0)].bytes();
        own + bytes + self.transport.of(shard).waiting.load(Ordering::Relaxed) > self.waiting_max
    }

    /// Whether something was written to other shards that is not handed over yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.outgoing.iter().any(|to| to.bytes() > 0) || self.lines.has_unsent()
    }

    /// Sets what wakes this shard's loop.
    pub(crate) fn set_waker(&self, waker: Arc<Waker>) {
        self.transport.of(self.me).batches.set_waker(waker);
    }

    /// Has this shard's loop carry connections to shards in processes of their own: what it waits for, and the token of the first shard's.
    pub(crate) fn set_registry(&mut self, registry: Registry, first: usize) {
        self.lines.set_registry(registry, first);
        self.transport.loop_carries.store(true, Ordering::Relaxed);
    }

    /// The barrier of all shards.
    pub(crate) fn barrier(&self) -> &Arc<Barrier> {
        &self.transport.barrier
    }

    /// Who may have all others hold.
    pub(crate) fn turns(&self) -> &Turns {
        &self.transport.turns
    }

    /// What this run of the server is called.
    pub(crate) fn run(&self) -> u64 {
        self.transport.run
    }

    /// Where all shards' messages go.
    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> u16 {
        self.outgoing.len() as u16
    }

    /// The requests to a shard, and other messages that tell nothing of keys here, to add to.
    #[inline]
    pub(crate) fn to(&mut self, shard: Shard) -> &mut MessageBatch {
        &mut self.outgoing[usize::from(shard.0)].requests
    }

    /// The messages that tell a shard of keys here, to add to; they may show writes up to the number `write`.
    #[inline]
    pub(crate) fn tell(&mut self, shard: Shard, write: u64) -> ToldBatch<'_> {
        self.outgoing[usize::from(shard.0)].told(write)
    }

    /// A session of another shard is not to be told what waits to be told to it.
    #[cold]
    pub(crate) fn forget_answers(&mut self, (shard, session): (Shard, ConnectionId)) {
        self.outgoing[usize::from(shard.0)].forget_answers(session);
    }

    /// Hands over what was written and may go.
    #[inline]
    pub(crate) fn send(&mut self, writes: &DurableWrites) {
        for (at, lane) in self.outgoing.iter_mut().enumerate() {
            let connected = self.connected.get(at).copied();
            if connected.is_some_and(|it| !it.is) && at != usize::from(self.me.0) {
                // Whoever waits for an answer has been told.
                lane.clear();
                continue;
            }
            let mut batches = lane.take(writes);
            let mut any = false;
            for batch in batches.iter_mut().flatten() {
                any = true;
                self.sent.messages += batch.messages.len() as u64;
                self.sent.bytes += batch.bytes.len() as u64;
                batch.connection = connected.map_or(0, |it| it.count);
            }
            if any {
                self.sent.batches += 1;
                self.transport.boxes[at].put(batches.into_iter().flatten());
            }
        }
        self.lines.write(&self.transport);
    }

    /// Takes what has come.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<MessageBatch> {
        let mut batches = self.lines.read(&self.transport);
        let inbox = self.transport.of(self.me);
        // Nobody else writes it.
        inbox.looked.store(inbox.looked.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if batches.is_empty() {
            return inbox.take();
        }
        batches.append(&mut inbox.take());
        batches
    }

    /// Notes that a request goes to another shard.
    #[inline]
    pub(crate) fn count_request(&mut self) {
        self.sent.requests += 1;
    }

    /// What was sent so far.
    pub(crate) fn sent(&self) -> SentCounts {
        self.sent
    }

    /// Whether this shard's loop may wait for sockets: there are no messages. It is woken when some come.
    pub(crate) fn may_sleep(&self) -> bool {
        !self.lines.is_any_readable() && self.transport.of(self.me).batches.may_sleep()
    }

    /// The loop waits no longer.
    pub(crate) fn awoke(&self) {
        self.transport.of(self.me).batches.awoke();
    }

    /// Counts the clients of this shard.
    pub(crate) fn set_clients(&self, count: usize) {
        self.transport.of(self.me).clients.store(count, Ordering::Relaxed);
    }

    /// A client that was handed on to this shard is one of its clients now, or was refused.
    pub(crate) fn has_arrived(&self) {
        self.transport.of(self.me).coming.fetch_sub(1, Ordering::Relaxed);
    }

    /// The clients of a shard, with those that are on their way there.
    fn clients_of(&self, shard: Shard) -> usize {
        let inbox = self.transport.of(shard);
        inbox.clients.load(Ordering::Relaxed) + inbox.coming.load(Ordering::Relaxed)
    }

    /// The clients of all other shards.
    pub(crate) fn clients_elsewhere(&self) -> usize {
        let others = (0..self.shards()).map(Shard).filter(|shard| *shard != self.me);
        others.map(|shard| self.clients_of(shard)).sum()
    }

    /// The shard that is to serve a client who has come: the one with the fewest, this one where it has no more than others. At another one it counts
    /// as coming.
    pub(crate) fn least_busy(&self) -> Shard {
        let all = (0..self.shards()).map(Shard);
        let least = all.min_by_key(|shard| (self.clients_of(*shard), *shard != self.me));
        let least = least.unwrap_or(self.me);
        if least != self.me {
            self.transport.of(least).coming.fetch_add(1, Ordering::Relaxed);
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_arrives_in_order_and_clients_go_where_few_are() {
        let transport = Transport::new(2);
        let (mut one, mut two) =
            (Outbox::new(Shard(0), transport.clone()), Outbox::new(Shard(1), transport));
        assert!(two.take().is_empty());
        for turn in 0..3u64 {
            for message in 0..2 {
                let number = 2 * turn + message;
                let batch = one.to(Shard(1));
                batch.bytes.push(number as u8);
                let session = ConnectionId { slot: 0, number };
                batch.messages.push(ShardMessage::Answers { session, end: batch.bytes.len() });
            }
            one.send(&DurableWrites::default());
        }
        let batches = two.take();
        let bytes: Vec<u8> = batches.iter().flat_map(|batch| batch.bytes.clone()).collect();
        assert_eq!((batches.len(), bytes), (3, vec![0, 1, 2, 3, 4, 5]));
        assert!(batches.iter().all(|batch| batch.from == Shard(0)) && two.take().is_empty());
        assert!(two.may_sleep());
        one.to(Shard(1)).messages.push(ShardMessage::Stop);
        one.send(&DurableWrites::default());
        assert!(!two.may_sleep() && two.take().len() == 1 && two.may_sleep());
        two.awoke();
        assert_eq!(one.least_busy(), Shard(0));
        one.set_clients(1);
        assert_eq!((one.least_busy(), one.clients_elsewhere()), (Shard(1), 1));
        // It does not count the one on its way yet, and others do.
        two.set_clients(0);
        assert_eq!((one.clients_elsewhere(), one.least_busy()), (1, Shard(0)));
        two.set_clients(1);
        two.has_arrived();
        assert_eq!((one.clients_elsewhere(), two.clients_elsewhere()), (1, 1));
    }
}
