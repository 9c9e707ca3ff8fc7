//! Connections over TCP between shards in processes of their own.
//!
//! One thread, with a runtime of one thread, makes the connections between this process's shard and the others. The shard's loop carries what goes over those
//! that are not encrypted ([`direct`]), and this thread what goes over the others ([`line`]). Of two shards the one
//! of the lesser number dials. Who owns a shard, and in which epoch, is told from outside; a connection to an owner that is none any more ends.
//!
//! # Invariants
//! - N1. Over a connection goes only what was written for it ([`MessageBatch::connection`]); the shard is told of a connection before it
//!   gets the first batch of it, and of its end behind the last one.
//! - N2. There is one connection to a shard at a time. A later one takes the place of the one before, unless it is of an earlier epoch.
//! - N3. Nobody who does not know the cluster's secret is listened to beyond his greeting.
//! - N4. Nobody waits for a shard that does not go on, or may not answer: after [`STUCK`] its connections end, and it has none until it does.
//!   This thread would say for ever that it is there.
//! - N5. What goes over a connection has the newest format that both sides read. Where there is none, there is no connection.
//!
//! # Cost
//! A batch is one frame, copied once on each side. A connection on which nothing is said costs a frame of four bytes twice a second.

mod direct;
mod handshake;
mod line;
mod secured;
#[cfg(test)]
mod tests;

pub(crate) use direct::{DirectLine, NewLine};
pub(crate) use handshake::{LINK_FORMATS, SECRET_BYTES, Secret, Side as ProofOf, is_proof, proof};
pub(crate) use secured::LinkSecurity;

use crate::log::event;
use crate::shards::{Sender, Transport};
use direct::GivenLine;
use handshake::{Answer, FRAME_BYTES_MAX, Greeting, NONCE_BYTES, Side};
use headwater_base::Shard;
use headwater_log::FormatRange;
use secured::LinkStream;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long it takes to connect, and to tell who one is, at most.
const GREETING: Duration = Duration::from_secs(2);
/// How soon a connection is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// How often it is looked whether the shard goes on, and may answer.
const PULSE: Duration = Duration::from_millis(500);
/// For how long it may not, until its connections end. Its lease is older than two seconds by then; if it is renewed, all goes on.
const STUCK: Duration = Duration::from_secs(2);
/// So many may be about to tell who they are.
const GREETINGS_MAX: usize = 64;

/// What links are made of.
#[derive(Clone, Debug)]
pub(crate) struct LinkSettings {
    /// The name of the cluster.
    pub(crate) cluster: String,
    /// What its shards prove to one another that they know.
    pub(crate) secret: Secret,
    /// The shard of this process.
    pub(crate) me: Shard,
    /// The epoch in which this process owns it.
    pub(crate) epoch: u64,
    /// The formats of messages that it reads.
    pub(crate) formats: FormatRange,
    /// Where it listens.
    pub(crate) bind: SocketAddr,
    /// The most bytes that a batch may have.
    pub(crate) batch_bytes_max: usize,
    /// Certificates, where connections are encrypted.
    pub(crate) security: Option<LinkSecurity>,
    /// Whether this process may answer.
    pub(crate) may_answer: MayAnswer,
}

/// Says whether a process may answer now.
#[derive(Clone)]
pub(crate) struct MayAnswer(pub(crate) Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for MayAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MayAnswer").field(&self.0()).finish()
    }
}

/// Where an owner of a shard is, and its epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LinkedOwner {
    /// Where it listens for other shards.
    pub(crate) address: String,
    /// Its epoch.
    pub(crate) epoch: u64,
}

/// The owners, by shard; `None`: a shard has none that is known.
pub(crate) type LinkedOwners = Vec<Option<LinkedOwner>>;

/// The thread; ended, with all connections, when dropped.
pub(crate) struct Links {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    close: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Links {
    /// Listens, and connects to the owners that are told.
    ///
    /// # Errors
    /// It cannot listen there, or there is no thread for it.
    pub(crate) fn start(
        settings: LinkSettings,
        transport: Arc<Transport>,
        owners: watch::Receiver<LinkedOwners>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(settings.bind))?;
        let address = listener.local_addr()?;
        let (close, closes) = oneshot::channel();
        let run = move || {
            let tasks = tokio::task::LocalSet::new();
            let shared = Rc::new(Shared::new(settings, transport, owners));
            tasks.spawn_local(accept(shared.clone(), listener));
            tasks.spawn_local(take_pulse(shared.clone()));
            for other in shared.others().filter(|other| *other > shared.settings.me) {
                tasks.spawn_local(dial(shared.clone(), other));
            }
            // The tasks end with the set, and with them their sockets.
            tasks.block_on(&runtime, async {
                let _closed = closes.await;
            });
            drop(tasks);
            shared.end_all();
        };
        let thread = std::thread::Builder::new().name(String::from("links")).spawn(run)?;
        Ok(Self { address, close: Some(close), thread: Some(thread) })
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(thread) = self.thread.take() {
            // The port is free when it has ended, however it did.
            let _ended = thread.join();
        }
    }
}

/// Who carries a connection.
enum Carrier {
    /// The shard's loop.
    ByLoop(GivenLine),
    /// This thread.
    Here(LinkStream),
}

/// What the tasks of the thread share.
struct Shared {
    settings: LinkSettings,
    transport: Arc<Transport>,
    owners: watch::Receiver<LinkedOwners>,
    /// By shard: the connections that there were.
    counts: Vec<Cell<u64>>,
    /// By shard: the greatest epoch that one was of.
    epochs: Vec<Cell<u64>>,
    /// By shard: ends the connection that there is.
    lines: Vec<RefCell<Option<Rc<Notify>>>>,
    /// By shard: when the last whole frame of it came.
    heard: Vec<Cell<Instant>>,
    /// N4: the shard goes on, and may answer.
    lives: Cell<bool>,
}

impl Shared {
    fn new(
        settings: LinkSettings,
        transport: Arc<Transport>,
        owners: watch::Receiver<LinkedOwners>,
    ) -> Self {
        let shards = usize::from(transport.shards());
        let numbers = || (0..shards).map(|_| Cell::new(0)).collect();
        let lines = (0..shards).map(|_| RefCell::new(None)).collect();
        let heard = vec![Cell::new(Instant::now()); shards];
        let (counts, epochs, lives) = (numbers(), numbers(), Cell::new(true));
        Self { settings, transport, owners, counts, epochs, lines, heard, lives }
    }

    /// Tells the shard that a connection has ended.
    fn tell_lost(&self, other: Shard) {
        let silent = self.heard[usize::from(other.0)].get().elapsed().as_millis();
        self.transport.tell_lost(self.settings.me, other, silent as u64);
    }

    /// Whether others may be connected with this shard.
    fn lives(&self) -> bool {
        self.lives.get() && !self.transport.ends()
    }

    fn others(&self) -> impl Iterator<Item = Shard> + use<> {
        let me = self.settings.me;
        (0..self.transport.shards()).map(Shard).filter(move |other| *other != me)
    }

    fn sender(&self, shard: Shard, epoch: u64, format: u16) -> Sender {
        Sender { shard, epoch, shards: self.transport.shards(), format }
    }

    fn owner(&self, other: Shard) -> Option<LinkedOwner> {
        self.owners.borrow().get(usize::from(other.0)).cloned().flatten()
    }

    /// Ends all connections, and has the shard know.
    fn end_all(&self) {
        for other in self.others() {
            if let Some(line) = self.lines[usize::from(other.0)].take() {
                line.notify_one();
                self.tell_lost(other);
            }
        }
    }

    /// Uses a connection to an owner until it ends (N2).
    async fn run_line(&self, sender: Sender, stream: LinkStream) {
        let Sender { shard: other, epoch, .. } = sender;
        let at = usize::from(other.0);
        if !self.lives() {
            return;
        }
        if epoch < self.epochs[at].get() {
            return refused(other, "it is of an earlier epoch than the one before");
        }
        let count = self.counts[at].get() + 1;
        let stream = match self.give_to_loop((sender, count), stream) {
            Ok(stream) => stream,
            Err(why) => return refused(other, &format!("its socket cannot be used: {why}")),
        };
        self.epochs[at].set(epoch);
        let ends = Rc::new(Notify::new());
        let before = self.lines[at].replace(Some(ends.clone()));
        if let Some(before) = before {
            before.notify_one();
            self.tell_lost(other);
        }
        self.counts[at].set(count);
        self.heard[at].set(Instant::now());
        self.transport.tell_found(self.settings.me, other);
        let carries = async {
            match stream {
                Carrier::ByLoop(given) => given.end().await,
                Carrier::Here(stream) => line::carry(self, (sender, count), stream).await,
            }
        };
        // Nothing is brought behind what has ended it (N1).
        let why = tokio::select! {
            biased;
            () = ends.notified() => return,
            why = carries => why,
            () = self.is_replaced(other, epoch) => String::from("another process owns the shard"),
        };
        let is_mine =
            |line: &Option<Rc<Notify>>| line.as_ref().is_some_and(|line| Rc::ptr_eq(line, &ends));
        if is_mine(&self.lines[at].borrow()) {
            self.lines[at].take();
            self.tell_lost(other);
            event!(
                warn,
                "shards",
                "link_ended",
                shard = other.0,
                why,
                "a connection to another shard has ended"
            );
        }
    }

    /// Has the shard's loop carry a connection, if it can.
    fn give_to_loop(
        &self,
        (sender, count): (Sender, u64),
        stream: LinkStream,
    ) -> io::Result<Carrier> {
        let stream = match stream {
            LinkStream::Bare(stream) if self.transport.loop_carries() => stream.into_std()?,
            stream => return Ok(Carrier::Here(stream)),
        };
        let (batch_bytes_max, other) = (self.settings.batch_bytes_max, sender.shard);
        let (line, given) = NewLine::new((sender, count), stream, batch_bytes_max)?;
        self.transport.give_line(other, line);
        Ok(Carrier::ByLoop(given))
    }

    /// Comes back when another process than that of this epoch owns a shard.
    async fn is_replaced(&self, other: Shard, epoch: u64) {
        let mut owners = self.owners.clone();
        let newer = |owners: &LinkedOwners| {
            let owner = owners.get(usize::from(other.0)).and_then(Option::as_ref);
            owner.is_some_and(|owner| owner.epoch > epoch)
        };
        if owners.wait_for(newer).await.is_err() {
            // Nobody tells of owners any more.
            std::future::pending::<()>().await;
        }
    }
}

/// N4: has all connections end while the shard does not go on, or may not answer.
async fn take_pulse(shared: Rc<Shared>) {
    let (transport, me) = (&shared.transport, shared.settings.me);
    let (mut looked, mut moved, mut answered) = (0, Instant::now(), Instant::now());
    loop {
        transport.ring(me);
        sleep(PULSE).await;
        let now = Instant::now();
        if transport.looked(me) != looked {
            (looked, moved) = (transport.looked(me), now);
        }
        if (shared.settings.may_answer.0)() {
            answered = now;
        }
        let why = if now.duration_since(moved) >= STUCK {
            Some("the shard has not gone on for two seconds")
        } else if now.duration_since(answered) >= STUCK {
            Some("the lease of the shard is too old: is there a quorum of the NATS servers?")
        } else {
            None
        };
        match why {
            Some(why) if shared.lives.replace(false) => {
                let shard = me.0;
                event!(warn, "shards", "cut_off", shard, why, "others do not wait for the shard");
                shared.end_all();
            }
            Some(_) => {}
            None => shared.lives.set(true),
        }
    }
}

fn refused(other: Shard, why: &str) {
    event!(
        warn,
        "shards",
        "link_refused",
        shard = other.0,
        why,
        "a connection to another shard was refused"
    );
}

/// Bytes that nobody can guess.
pub(crate) fn random<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut bytes).expect("the system has random numbers");
    bytes
}

async fn say(stream: &mut LinkStream, bytes: &[u8]) -> Result<(), String> {
    let frame = [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    stream.write_all(&frame).await.map_err(|why| why.to_string())?;
    stream.flush().await.map_err(|why| why.to_string())
}

async fn hear(stream: &mut LinkStream) -> Result<Vec<u8>, String> {
    let ended = |why: io::Error| why.to_string();
    let len = stream.read_u32_le().await.map_err(ended)? as usize;
    if len > FRAME_BYTES_MAX {
        return Err(String::from("it is no shard of a Headwater cluster"));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await.map_err(ended)?;
    Ok(bytes)
}

/// Connects to the owners of a shard, one after the other, for as long as there are any.
async fn dial(shared: Rc<Shared>, other: Shard) {
    let mut owners = shared.owners.clone();
    loop {
        match shared.owner(other) {
            _ if !shared.lives() => {}
            None => {
                if owners.changed().await.is_err() {
                    return;
                }
                continue;
            }
            Some(owner) => match timeout(GREETING, greet(&shared, other, &owner)).await {
                Ok(Ok((sender, stream))) => shared.run_line(sender, stream).await,
                Ok(Err(why)) => refused(other, &why),
                Err(_) => refused(other, "it does not answer"),
            },
        }
        sleep(RETRY).await;
    }
}

/// Connects, and tells and hears who each is.
async fn greet(
    shared: &Shared,
    other: Shard,
    owner: &LinkedOwner,
) -> Result<(Sender, LinkStream), String> {
    let LinkSettings { cluster, secret, me, epoch, formats, security, .. } = &shared.settings;
    let stream = TcpStream::connect(owner.address.as_str()).await.map_err(|why| why.to_string())?;
    let _slower = stream.set_nodelay(true);
    let secured = secured::dial(security.as_ref(), &owner.address, stream).await;
    let mut stream = secured.map_err(|why| why.to_string())?;
    let greeting = Greeting {
        cluster: cluster.clone(),
        from: *me,
        epoch: *epoch,
        to: other,
        nonce: random(),
        formats: *formats,
    };
    let greeting = greeting.encode();
    say(&mut stream, &greeting).await?;
    let answer = hear(&mut stream).await?;
    let theirs = handshake::read_answer(secret, &greeting, &answer)?;
    let format = handshake::agree(*formats, theirs.formats)?;
    let proof = proof(secret, Side::Dials, &[&greeting, &answer]);
    say(&mut stream, &proof).await?;
    Ok((shared.sender(other, theirs.epoch, format), stream))
}

/// Takes in those who connect.
async fn accept(shared: Rc<Shared>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(GREETINGS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(RETRY).await;
            continue;
        };
        if !shared.lives() {
            continue;
        }
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            let greeted = timeout(GREETING, be_greeted(&shared, stream)).await;
            drop(place);
            match greeted {
                Ok(Ok((sender, stream))) => shared.run_line(sender, stream).await,
                Ok(Err(why)) => {
                    event!(
                        warn,
                        "shards",
                        "link_refused",
                        why,
                        "a connection of another shard was refused"
                    );
                }
                // Who says nothing is not worth a line.
                Err(_) => {}
            }
        });
    }
}

/// Hears and tells who each is.
async fn be_greeted(shared: &Shared, stream: TcpStream) -> Result<(Sender, LinkStream), String> {
    let LinkSettings { cluster, secret, me, epoch, formats, security, .. } = &shared.settings;
    let _slower = stream.set_nodelay(true);
    let secured = secured::accept(security.as_ref(), stream).await;
    let mut stream = secured.map_err(|why| why.to_string())?;
    let said = hear(&mut stream).await?;
    let greeting = Greeting::decode(&said)?;
    if greeting.cluster != *cluster {
        let theirs: String =
            greeting.cluster.chars().take(64).flat_map(char::escape_default).collect();
        return Err(format!("it is of the cluster '{theirs}', and this one of '{cluster}'"));
    }
    if greeting.to != *me {
        return Err(format!("it wants shard {}, and this is shard {}", greeting.to.0, me.0));
    }
    if greeting.from >= *me || greeting.from.0 >= shared.transport.shards() {
        return Err(format!("shard {} does not dial shard {}", greeting.from.0, me.0));
    }
    let says = Answer { epoch: *epoch, formats: *formats };
    let answer = handshake::answer(secret, &said, says, &random::<NONCE_BYTES>());
    say(&mut stream, &answer).await?;
    // The other one has heard as much, and sees it as well.
    let format = handshake::agree(*formats, greeting.formats)?;
    let proof = hear(&mut stream).await?;
    match is_proof(secret, Side::Dials, &[&said, &answer], &proof) {
        true => Ok((shared.sender(greeting.from, greeting.epoch, format), stream)),
        false => Err(String::from("it does not know the secret of the cluster")),
    }
}
