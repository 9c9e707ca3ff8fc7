//! I/O threads: clients' sockets are read and written by threads of their own, beside the one that executes.
//!
//! At one request in a packet, four fifths of what a server does is the kernel's: `read`, `write` and what is below them. One thread has the
//! engine and executes everything; the others have sockets, and pass on bytes. So there is one order of all requests, as without them, and
//! nothing that several shards cost. The thread that executes serves sockets as well, the fewer the more others there are.
//!
//! A client's bytes cross in batches: one lock and at most one wake-up for all that a thread has read, or is to send, in a turn
//! ([`LoopInbox`]). A connection whose socket is elsewhere has a [`Relay`] where others have the socket, and nobody else knows of it.
//!
//! - `balance`: which thread has which sockets.
//! - `client`: one client's socket, as an I/O thread has it; `leaving`: those that are sent their last replies.
//! - `message`: what crosses.
//! - `relay`: one client's socket, as the loop sees it.
//! - `thread`: the loop of an I/O thread.
//!
//! # Invariants
//! - I1, I2: `relay`.
//! - I3. What an I/O thread has read and the loop has not taken from its inbox is at most about [`UNTAKEN_MAX`] bytes and what one client's
//!   window has: it reads on when the loop has taken it. So bytes that nobody counts with a client are few.
//!
//! # Cost
//! Each byte is copied three times more: into the batch, out of it, and into the buffer from which requests are parsed; answers once
//! more.

mod balance;
mod client;
mod leaving;
mod message;
mod relay;
mod thread;

use crate::abort_on_panic::AbortOnPanic;
use crate::connection_id::ConnectionId;
use crate::inbox::LoopInbox;
use crate::memory::share_first_heap;
use crate::tls::ClientStream;
pub(crate) use balance::Shift;
use balance::{LOOK_EVERY, ThreadLoad};
use leaving::LEAVING_MAX;
use message::{IoOrder, IoOrders};
pub(crate) use message::{IoReport, IoReports};
pub(crate) use relay::Relay;
use relay::RelayWriter;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use thread::IoThread;

/// Bytes of a client that may be on their way to the loop (I1).
pub(crate) const INPUT_WINDOW: usize = 64 << 10;
/// Bytes that may be on their way to a client (I2).
pub(crate) const OUTPUT_WINDOW: usize = 64 << 10;
/// Bytes that an I/O thread may have read and the loop not taken (I3).
const UNTAKEN_MAX: usize = 256 << 10;
/// Orders after which an I/O thread that is at work is given them, though the turn is not over.
const ORDERS_MAX: usize = 16;
/// A client of the loop's own counts as so many of another thread's: the loop executes for all.
const OWN_WEIGHT: usize = 2;

/// What may be on its way between the loop and an I/O thread, beside what counts with clients: while it grows there may be one and a half times as
/// much.
const ON_ITS_WAY: usize = UNTAKEN_MAX / 2 * 3 + INPUT_WINDOW;

/// Descriptors that are kept free for clients that are sent their last replies.
const LEAVING_RESERVED: usize = 256;

/// Descriptors that so many I/O threads need, beside those of clients: what they wait with and are woken by, and clients that are sent their last
/// replies.
pub(crate) fn descriptors(threads: usize) -> usize {
    2 * threads + (threads * LEAVING_MAX).min(LEAVING_RESERVED)
}

/// What may be on its way between the loop and so many I/O threads.
pub(crate) fn on_its_way(threads: usize) -> usize {
    threads * ON_ITS_WAY
}

/// What the loop and its I/O threads share.
#[derive(Debug)]
struct SharedInboxes {
    /// What each I/O thread is to do.
    orders: Vec<LoopInbox<IoOrders>>,
    /// What they tell the loop.
    reports: LoopInbox<IoReports>,
    /// Bytes in it, by thread.
    untaken: Vec<AtomicUsize>,
    /// A thread reads no more until these are taken.
    waits: Vec<AtomicBool>,
    /// How long each thread was at work.
    work: Vec<ThreadWork>,
}

/// How long a thread was at work so far.
#[derive(Debug, Default)]
struct ThreadWork {
    /// The loop wants to know.
    is_wanted: AtomicBool,
    micros: AtomicU64,
}

/// What is to be told to the I/O threads with the next batches.
#[derive(Debug, Default)]
pub(crate) struct IoOutbox {
    of_threads: Vec<IoOrders>,
}

/// The I/O threads of one loop.
#[derive(Debug, Default)]
pub(crate) struct IoThreads {
    shared: Option<Arc<SharedInboxes>>,
    threads: Vec<JoinHandle<()>>,
    outbox: IoOutbox,
    /// Clients whose sockets each of them has.
    clients: Vec<usize>,
    ends_soon: bool,
    /// Room for bytes that are taken at once.
    spare: Vec<u8>,
    /// When the threads were looked at last, and how long the loop and each of them was at work then.
    looked: u64,
    worked: Vec<u64>,
    /// Sockets go from thread to thread at random, drawn from this: for tests.
    restless: Option<u64>,
}

impl SharedInboxes {
    fn report(&self, reports: IoReports) {
        self.untaken[reports.thread].fetch_add(reports.bytes.len(), Ordering::Relaxed);
        self.reports.put(core::iter::once(reports));
    }

    /// Whether the loop has yet to take so much of a thread's, with `more` that it has not handed over, that it should read no more; it is woken when
    /// the loop has.
    fn is_behind(&self, thread: usize, more: usize) -> bool {
        if self.untaken[thread].load(Ordering::Relaxed) + more < UNTAKEN_MAX {
            return false;
        }
        self.waits[thread].store(true, Ordering::SeqCst);
        // It may have taken it meanwhile. What was not handed over yet it will take.
        self.untaken[thread].load(Ordering::SeqCst) + more >= UNTAKEN_MAX
    }
}

impl IoOutbox {
    /// What writes to a client.
    #[inline]
    pub(crate) fn writer<'w>(&'w mut self, relay: &'w mut Relay) -> RelayWriter<'w> {
        let orders = &mut self.of_threads[relay.thread()];
        RelayWriter::new(relay, orders)
    }
}

impl IoThreads {
    /// Starts so many, whose reports wake the loop by `waker`; `has_bound`: memory has a bound.
    ///
    /// # Errors
    /// The system gives no thread, or nothing to wait for sockets with.
    pub(crate) fn start(count: usize, waker: Arc<mio::Waker>, has_bound: bool) -> io::Result<Self> {
        if count == 0 {
            return Ok(Self::default());
        }
        let shared = Arc::new(SharedInboxes {
            orders: (0..count).map(|_| LoopInbox::default()).collect(),
            reports: LoopInbox::default(),
            untaken: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            waits: (0..count).map(|_| AtomicBool::new(false)).collect(),
            work: (0..count).map(|_| ThreadWork::default()).collect(),
        });
        shared.reports.set_waker(waker);
        let mut io = Self::default();
        io.outbox.of_threads = (0..count).map(|_| IoOrders::default()).collect();
        (io.clients, io.worked) = (vec![0; count], vec![0; count + 1]);
        io.shared = Some(shared.clone());
        for number in 0..count {
            let thread = IoThread::new(number, shared.clone())?;
            let run = move || {
                let _aborts = AbortOnPanic;
                share_first_heap(!has_bound);
                thread.run();
            };
            let name = format!("io-{}", number + 1);
            io.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(io)
    }

    /// Which of them is to have the socket of a client who has come, where there are `all` clients so far; `None`: the loop.
    pub(crate) fn choose(&self, all: usize) -> Option<usize> {
        let least = (0..self.clients.len()).min_by_key(|&at| self.clients[at])?;
        let own = all.saturating_sub(self.clients.iter().sum());
        (OWN_WEIGHT * own > self.clients[least]).then_some(least)
    }

    /// Has an I/O thread serve a socket from now on.
    pub(crate) fn hand_on(
        &mut self,
        thread: usize,
        client: ConnectionId,
        stream: ClientStream,
    ) -> Relay {
        let relay = Relay::new(client, thread, (stream.descriptor(), stream.is_encrypted()));
        self.clients[thread] += 1;
        self.outbox.of_threads[thread].all.push(IoOrder::Serve(client, stream));
        relay
    }

    /// Which sockets are to go to another thread, at this time in milliseconds, where there are `all` clients; seldom any.
    #[inline]
    pub(crate) fn balance(&mut self, now: u64, all: usize) -> Option<Shift> {
        if let Some(state) = &mut self.restless {
            return shift_at_random(state, self.clients.len());
        }
        let shared = self.shared.as_ref().filter(|_| now >= self.looked + LOOK_EVERY)?;
        let own = micros_of_thread();
        let micros = shared.work.iter().map(|work| work.micros.load(Ordering::Relaxed));
        let worked: Vec<u64> = core::iter::once(own).chain(micros).collect();
        let passed = (now - core::mem::replace(&mut self.looked, now)).max(1);
        // Microseconds in milliseconds are thousandths. Who has told nothing had nothing to do.
        let shares: Vec<u64> = worked
            .iter()
            .zip(&self.worked)
            .map(|(now, before)| now.saturating_sub(*before) / passed)
            .collect();
        self.worked = worked;
        shared.work.iter().for_each(|work| work.is_wanted.store(true, Ordering::Relaxed));
        let (own, of_threads) = shares.split_first()?;
        let clients = all.saturating_sub(self.clients.iter().sum());
        let own = ThreadLoad { share: *own, clients };
        let loads: Vec<ThreadLoad> = of_threads
            .iter()
            .zip(&self.clients)
            .map(|(&share, &clients)| ThreadLoad { share, clients })
            .collect();
        balance::shift(own, &loads)
    }

    /// Has sockets go from thread to thread at random, all the time.
    pub(crate) fn be_restless(&mut self, seed: u64) {
        self.restless = Some(seed | 1);
    }

    /// Has the I/O thread give back a client's socket; whether that was not asked before.
    pub(crate) fn ask_back(&mut self, relay: &mut Relay, thread: usize) -> bool {
        relay.thread() == thread && relay.ask_back(&mut self.outbox.of_threads[thread])
    }

    /// A client's socket was given back.
    pub(crate) fn has_come_back(&mut self, relay: &Relay) {
        self.clients[relay.thread()] -= 1;
    }

    /// What is to be told to them.
    #[inline]
    pub(crate) fn outbox(&mut self) -> &mut IoOutbox {
        &mut self.outbox
    }

    /// All of them are about to be stopped, and send until then what was written to clients, whose connections may end before.
    pub(crate) fn end_soon(&mut self) {
        self.ends_soon = true;
    }

    /// Ends a client's connection: at once, or when it was sent what was written to it.
    pub(crate) fn close(&mut self, relay: &Relay, at_once: bool) {
        let (client, thread) = (relay.client(), relay.thread());
        self.clients[thread] -= 1;
        if at_once || !self.ends_soon {
            self.outbox.of_threads[thread].all.push(IoOrder::Close { client, at_once });
        }
    }

    /// Gives a client's relay what was reported of it; `bytes`: what the client has sent. How many bytes it was sent.
    #[inline]
    pub(crate) fn hear(&mut self, relay: &mut Relay, report: &IoReport, bytes: &[u8]) -> usize {
        relay.hear(report, bytes, &mut self.spare)
    }

    /// Something was read from a client.
    #[inline]
    pub(crate) fn have_read(&mut self, relay: &mut Relay) {
        relay.give_room(&mut self.spare);
        relay.tell_taken(&mut self.outbox.of_threads[relay.thread()]);
    }

    /// Whether the loop may wait for sockets; it is woken when there are reports.
    #[inline]
    pub(crate) fn may_sleep(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.reports.may_sleep())
    }

    /// The loop waits no longer.
    #[inline]
    pub(crate) fn awoke(&self) {
        if let Some(shared) = &self.shared {
            shared.reports.awoke();
        }
    }

    /// Takes what they have reported, one batch after the other.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<IoReports> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let batches = shared.reports.take();
        for batch in &batches {
            let thread = batch.thread;
            shared.untaken[thread].fetch_sub(batch.bytes.len(), Ordering::SeqCst);
            if shared.waits[thread].swap(false, Ordering::SeqCst) {
                shared.orders[thread].ring();
            }
        }
        batches
    }

    /// Gives each of them what it is to do.
    #[inline]
    pub(crate) fn hand_over(&mut self) {
        let Some(shared) = &self.shared else { return };
        for (orders, inbox) in self.outbox.of_threads.iter_mut().zip(&shared.orders) {
            if !orders.all.is_empty() {
                inbox.put(core::iter::once(orders.take()));
            }
        }
    }

    /// Gives those something to do that are at work and to be told much: they need not wait for the turn's end.
    #[inline]
    pub(crate) fn hand_over_much(&mut self) {
        let Some(shared) = &self.shared else { return };
        for (orders, inbox) in self.outbox.of_threads.iter_mut().zip(&shared.orders) {
            if orders.all.len() >= ORDERS_MAX && !inbox.sleeps() {
                inbox.put(core::iter::once(orders.take()));
            }
        }
    }

    /// Ends all of them.
    pub(crate) fn stop(&mut self) {
        self.outbox.of_threads.iter_mut().for_each(|orders| orders.all.push(IoOrder::Stop));
        self.hand_over();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

#[cold]
fn shift_at_random(state: &mut u64, threads: usize) -> Option<Shift> {
    // Marsaglia's xorshift: one shift in four turns.
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let thread = (*state >> 8) as usize % threads.max(1);
    match *state % 8 {
        0 if threads > 0 => Some(Shift::Away { thread, clients: 1 }),
        1 if threads > 0 => Some(Shift::Back { thread, clients: 1 }),
        _ => None,
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop();
        }
    }
}

/// How long the calling thread was at work, in microseconds.
fn micros_of_thread() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1000).unwrap_or_default()
}
