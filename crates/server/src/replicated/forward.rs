//! The door of a node that stands by: its clients' connections are passed on to an owner, byte for byte.
//!
//! A client is held for a while where nobody owns anything, and told so then. Where an owner parts with it ([`parting`](crate::handover::parting)), because
//! it gives its shard up or ends, it goes on at the next one. Where the owner is another one without that,
//! its connection ends, since a paused process keeps its sockets.
//!
//! The node that becomes the owner itself listens here no more, and goes on with the clients that it has.
//!
//! The owner's one port takes all of them: the greeting says what a client speaks, RESP or memcached's protocol. Clients of the node's HTTP port come here as sessions
//! in RESP, for which its thread speaks ([`InnerClient`]).

use super::driver::OwnerSeen;
use super::encrypted::{self, TlsTermination};
use super::reaching::{Attempted, OwnerAnswer, greet, is_final, places, refusal, unserved};
use super::upstream::{Passed, Upstream, pass};
use crate::handover::greeting::new_tag;
use crate::handover::{Inherited, InheritedClient, SessionRest, SessionState};
use crate::http::InnerClient;
use crate::log::event;
use crate::resp::protected;
use crate::shards::links::Secret;
use crate::wire_protocol::{WireProtocol, take_listener};
use headwater_config::{Config, ConfigError, OptionalPort};
use headwater_log::Epoch;
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long a client waits for an owner.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it takes to connect to one, at most.
const CONNECT: Duration = Duration::from_secs(1);
/// How long it takes to be taken there, at most, as long as it is the owner.
const GREETING: Duration = Duration::from_secs(10);
/// How long one waits that an owner has parted with. That another one owns its shard then takes a moment; it has given no error to anybody.
const PATIENCE_PARTED: Duration = Duration::from_secs(15);
/// How often that is tried again.
const RETRY: Duration = Duration::from_millis(50);
/// Where an owner has parted with a client, the next one is there soon.
const RETRY_SOON: Duration = Duration::from_millis(5);
/// A listener that fails rests so long.
const REST: Duration = Duration::from_millis(50);
/// How long those that are about to be left are waited for.
const COLLECTS: Duration = Duration::from_millis(200);
/// How long a client may take to go that is served no more, or not at all.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes that are passed on at once.
const PIECE: usize = 64 << 10;
/// Why a client that speaks TLS is not passed on, where nothing goes to other machines that is not encrypted.
const PRIVATE: &str = "cluster-link-tls is on, and what this node forwards to an owner on another machine is not encrypted: connect to the owner";

/// What the door is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ForwardStage {
    /// Clients come, and are passed on.
    Open,
    /// This process is the owner in this epoch, listens here: no more clients come, and the others are passed on to it.
    Owns(SocketAddr, Epoch),
    /// This process is about to give its shard up: clients that it parts with are kept.
    Keeps,
    /// They are left to the next process.
    Leaves,
}

/// Nobody is connected to an owner any more.
const ENDING: [ForwardStage; 2] = [ForwardStage::Keeps, ForwardStage::Leaves];

/// The door; closed when dropped.
pub(super) struct Forwarding {
    /// Where RESP and memcached's protocol are spoken, and where they are over TLS.
    pub(super) addresses: [Vec<SocketAddr>; 4],
    listeners: Vec<std::net::TcpListener>,
    stage: Arc<watch::Sender<ForwardStage>>,
    thread: Option<std::thread::JoinHandle<Vec<InheritedClient>>>,
}

/// Has a door keep the clients that its process parts with.
#[derive(Clone, Debug)]
pub(super) struct ClientKeeper(Arc<watch::Sender<ForwardStage>>);

impl ClientKeeper {
    /// That of a process without a door.
    #[cfg(test)]
    pub(super) fn nowhere() -> Self {
        Self(Arc::new(watch::channel(ForwardStage::Open).0))
    }

    /// From now on.
    pub(super) fn keep(&self) {
        self.0.send_replace(ForwardStage::Keeps);
    }
}

impl Forwarding {
    /// Listens where the server would, with the sockets and the clients that the process has inherited. Those of its HTTP port come from `inner`.
    ///
    /// # Errors
    /// That cannot be.
    pub(super) fn start(
        config: &Config,
        owners: watch::Receiver<Vec<OwnerSeen>>,
        secret: Secret,
        mut inherited: Inherited,
        (inner, tls): (UnboundedReceiver<InnerClient>, Option<TlsTermination>),
    ) -> Result<Self, ConfigError> {
        let refuse = |why: std::io::Error| ConfigError(format!("forwarding: {why}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refuse)?;
        let (mut listeners, mut again) = (Vec::new(), Vec::new());
        let mut listen = |door, port: OptionalPort, is_encrypted: bool| {
            let Some(mut port) = port.number() else { return Ok(Vec::new()) };
            let mut addresses = Vec::new();
            for &ip in &config.listen.bind {
                let address = SocketAddr::new(ip, port);
                let mut open = || {
                    let listener = match take_listener(address, &mut inherited.listeners) {
                        Some(listener) => listener,
                        None => runtime.block_on(TcpListener::bind(address))?.into_std()?,
                    };
                    again.push((listener.try_clone()?, door, is_encrypted));
                    let at = listener.local_addr()?;
                    listeners.push(listener);
                    std::io::Result::Ok(at)
                };
                let at = open().map_err(|why| ConfigError(format!("{address}: {why}")))?;
                port = at.port();
                addresses.push(at);
            }
            Ok(addresses)
        };
        let addresses = if can_greet(config) {
            [
                listen(WireProtocol::Resp, config.listen.port, false)?,
                listen(WireProtocol::Memcached, config.listen.memcached_port, false)?,
                listen(WireProtocol::Resp, config.tls.tls_port, true)?,
                listen(WireProtocol::Memcached, config.tls.tls_memcached_port, true)?,
            ]
        } else {
            // The owner decrypts what its clients say.
            let tls = listen(WireProtocol::Resp, config.tls.tls_port, false)?;
            [tls.clone(), Vec::new(), tls, Vec::new()]
        };
        let (stage, stages) = watch::channel(ForwardStage::Open);
        let (shard, protects) = (config.cluster.shard(), protects(config));
        let encrypts = config.cluster.cluster_link_tls;
        let room = Arc::new(Semaphore::new(config.clients.clients_max));
        let run = move || {
            let (kept, piece) = (Rc::default(), Rc::new(RefCell::new(vec![0; PIECE])));
            let door = ForwardContext {
                owners,
                stages,
                secret,
                shard,
                protects,
                encrypts,
                room,
                kept,
                piece,
            };
            let tls = tls.map(Rc::new);
            serve(&runtime, (again, tls), (inherited.clients, inner), &door)
        };
        let thread = std::thread::Builder::new().name(String::from("forward")).spawn(run);
        let thread = Some(thread.map_err(refuse)?);
        Ok(Self { addresses, listeners, stage: Arc::new(stage), thread })
    }

    /// The process owns its shard from now on: it listens here itself.
    pub(super) fn owns(&mut self, epoch: Epoch) -> Vec<std::net::TcpListener> {
        let own = self.addresses[0].first();
        let mut own = own.copied().unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
        if own.ip().is_unspecified() {
            let here = if own.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            };
            own.set_ip(here);
        }
        self.stage.send_replace(ForwardStage::Owns(own, epoch));
        core::mem::take(&mut self.listeners)
    }

    /// What has it keep the clients that its process parts with.
    pub(super) fn keeper(&self) -> ClientKeeper {
        ClientKeeper(self.stage.clone())
    }

    /// The clients that are kept: what else there is ends.
    pub(super) fn leave(mut self) -> Vec<InheritedClient> {
        self.stage.send_replace(ForwardStage::Leaves);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.stage.send_replace(ForwardStage::Leaves);
        if let Some(thread) = self.thread.take() {
            // The port is free when it has ended, however it did.
            let _ended = thread.join();
        }
    }
}

/// What all clients of the door have in common.
#[derive(Clone)]
pub(super) struct ForwardContext {
    pub(super) owners: watch::Receiver<Vec<OwnerSeen>>,
    pub(super) stages: watch::Receiver<ForwardStage>,
    pub(super) secret: Secret,
    /// The shard that this node stands by for.
    pub(super) shard: u16,
    /// None of other machines come in, where the owner would take them for some of its own.
    pub(super) protects: bool,
    /// What came encrypted goes to no other machine unless it is encrypted.
    pub(super) encrypts: bool,
    /// So many clients at once.
    pub(super) room: Arc<Semaphore>,
    /// Clients that are left to the next process, and how many are about to be.
    pub(super) kept: Rc<RefCell<(Vec<InheritedClient>, usize)>>,
    /// What is read into.
    pub(super) piece: Rc<RefCell<Vec<u8>>>,
}

/// Whether the settings let everybody in who can connect, and so nobody of other machines. What users the owner has is not known here.
fn protects(config: &Config) -> bool {
    let names_default = config.users.iter().any(|user| user.name == "default");
    let listen = &config.listen;
    let is_open = listen.requirepass.is_empty() && listen.aclfile.is_empty() && !names_default;
    config.doors.protected_mode && is_open
}

/// Whether owners can be told of clients; where they speak TLS alone, what comes is theirs as it is.
pub(super) fn can_greet(config: &Config) -> bool {
    config.listen.port.number().is_some()
}

/// Where clients come, what they speak, and whether over TLS.
type OpenPort = (std::net::TcpListener, WireProtocol, bool);

fn serve(
    runtime: &Runtime,
    (listeners, tls): (Vec<OpenPort>, Option<Rc<TlsTermination>>),
    (clients, inner): (Vec<InheritedClient>, UnboundedReceiver<InnerClient>),
    door: &ForwardContext,
) -> Vec<InheritedClient> {
    let tasks = tokio::task::LocalSet::new();
    // The tasks end with the set, and with them their sockets.
    tasks.block_on(runtime, async {
        for client in clients {
            let place = door.room.clone().try_acquire_owned().ok();
            tokio::task::spawn_local(inherit(client, door.clone(), place));
        }
        for (listener, speaks, is_encrypted) in listeners {
            if let Ok(listener) =
                listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener))
            {
                let tls = tls.clone().filter(|_| is_encrypted);
                tokio::task::spawn_local(accept(listener, (speaks, tls), door.clone()));
            }
        }
        tokio::task::spawn_local(accept_inner(inner, door.clone()));
        let mut stages = door.stages.clone();
        let _leaves = stages.wait_for(|stage| *stage == ForwardStage::Leaves).await;
        let begun = Instant::now();
        sleep(Duration::from_millis(1)).await;
        while door.kept.borrow().1 > 0 && begun.elapsed() < COLLECTS {
            sleep(Duration::from_millis(1)).await;
        }
    });
    core::mem::take(&mut door.kept.borrow_mut().0)
}

async fn accept(
    listener: TcpListener,
    (speaks, tls): (WireProtocol, Option<Rc<TlsTermination>>),
    door: ForwardContext,
) {
    let mut stages = door.stages.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            _closed = stages.wait_for(|stage| *stage != ForwardStage::Open) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((client, peer)) = accepted else {
            sleep(REST).await;
            continue;
        };
        match tls.clone() {
            None => begin(client, SessionState { peer, speaks, sits: None }, (false, false), &door),
            Some(tls) => {
                let shaken = encrypted::serve(client, (peer, speaks), tls, door.clone());
                drop(tokio::task::spawn_local(shaken));
            }
        }
    }
}

/// Takes in clients of the node's own HTTP port. Those that come while an answer is under way there do so as well where this process owns the shard.
async fn accept_inner(mut clients: UnboundedReceiver<InnerClient>, door: ForwardContext) {
    while let Some(InnerClient { stream, peer, user, is_encrypted }) = clients.recv().await {
        let sits = user.map(SessionRest::of_user);
        let state = SessionState { peer, speaks: WireProtocol::Resp, sits };
        if let Ok(client) = of_std(OwnedFd::from(stream).into()) {
            begin(client, state, (true, is_encrypted), &door);
        }
    }
}

/// Passes a client on that has just come, if there is room for it: whether its other end is in this process, and whether its client speaks TLS there.
pub(super) fn begin(
    client: TcpStream,
    state: SessionState,
    (is_inner, is_encrypted): (bool, bool),
    door: &ForwardContext,
) {
    let Ok(place) = door.room.clone().try_acquire_owned() else {
        let SessionState { peer, speaks, .. } = state;
        event!(warn, "clients", "client_refused", %peer, "a client was refused: there are clients-max of them");
        return drop(tokio::task::spawn_local(async move {
            let mut client = client;
            // Who has gone needs no reason.
            let _sent = client.write_all(speaks.too_many_clients()).await;
        }));
    };
    let client = Forwarded {
        client,
        speaks: state.speaks,
        is_foreign: door.protects && !state.peer.ip().to_canonical().is_loopback(),
        may_be_bare: state.speaks == WireProtocol::Resp && state.sits.is_none(),
        state: state.encode(),
        input: Vec::new(),
        is_new: true,
        is_inner,
        is_private: is_encrypted && door.encrypts,
        left: None,
    };
    let door = door.clone();
    tokio::task::spawn_local(async move {
        client.run(door, None).await;
        drop(place);
    });
}

async fn inherit(
    client: InheritedClient,
    door: ForwardContext,
    place: Option<OwnedSemaphorePermit>,
) {
    let InheritedClient { stream, state, input, upstream } = client;
    // One that an owner has had was let in.
    let is_unknown =
        |it: &SessionState| it.sits.is_none() && !it.peer.ip().to_canonical().is_loopback();
    let told = SessionState::decode(&state);
    let is_foreign = door.protects && told.as_ref().is_none_or(is_unknown);
    let speaks = told.map_or(WireProtocol::Resp, |it| it.speaks);
    if let Ok(client) = of_std(stream) {
        let upstream = upstream.and_then(Upstream::inherit);
        let client = Forwarded {
            client,
            speaks,
            state,
            input,
            is_new: false,
            may_be_bare: false,
            is_inner: false,
            is_private: false,
            is_foreign,
            left: None,
        };
        client.run(door, upstream).await;
    }
    drop(place);
}

/// A socket of the system's for use here; of which kind it is makes no difference.
pub(super) fn of_std(stream: std::net::TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

/// A client that is passed on.
struct Forwarded {
    client: TcpStream,
    speaks: WireProtocol,
    /// What the owner is told of it.
    state: Vec<u8>,
    /// What it has sent, and no owner has executed.
    input: Vec<u8>,
    /// It has just come.
    is_new: bool,
    /// An owner that does not know the greeting can have it, as long as it has just come.
    may_be_bare: bool,
    /// Its other end is in this process.
    is_inner: bool,
    /// What it says goes to no other machine.
    is_private: bool,
    /// It is of another machine, and must not seem to be of the owner's.
    is_foreign: bool,
    /// The owner that has parted with it.
    left: Option<OwnerSeen>,
}

impl Forwarded {
    /// Passes it on, until it or nobody else is there; first to this owner, if it has it already.
    async fn run(mut self, mut door: ForwardContext, mut upstream: Option<Upstream>) {
        let _fast = self.client.set_nodelay(true);
        loop {
            door.kept.borrow_mut().1 += 1;
            let connected = match upstream.take() {
                Some(upstream) => Connecting::To(upstream),
                None => self.connect(&mut door).await,
            };
            door.kept.borrow_mut().1 -= 1;
            let mut to = match connected {
                Connecting::To(upstream) => upstream,
                Connecting::Left => return self.leave(&door, None),
                Connecting::Nobody => return self.refuse(&door).await,
                Connecting::Refused(text) => return self.tell(&text).await,
            };
            if self.is_foreign && seems_local(&to.stream) {
                let why = protected(self.speaks);
                return self.tell(why).await;
            }
            let _fast = to.stream.set_nodelay(true);
            to.requests.bytes.append(&mut self.input);
            match pass(&mut self.client, &mut to, &door).await {
                Passed::Ended => return,
                Passed::Left => return self.leave(&door, Some(to)),
                Passed::Parted { state, input } => {
                    (self.state, self.input, self.is_new) = (state, input, false);
                    self.left = Some(to.owner);
                }
            }
        }
    }

    /// A connection to an owner that has taken the client.
    async fn connect(&self, door: &mut ForwardContext) -> Connecting {
        let begun = Instant::now();
        // What an owner has said last that may take it yet.
        let mut refused_now = None;
        while begun.elapsed() < self.patience() {
            let (mut was_asked, mut refused) = (false, None);
            let stage = door.stages.borrow_and_update().clone();
            let seen = match stage {
                ForwardStage::Leaves => return Connecting::Left,
                ForwardStage::Keeps => Vec::new(),
                ForwardStage::Open => door.owners.borrow().clone(),
                ForwardStage::Owns(at, epoch) => {
                    let (address, shard) = (at.to_string(), door.shard);
                    vec![OwnerSeen { address, shard, epoch }]
                }
            };
            for owner in seen.into_iter().filter(|owner| self.left.as_ref() != Some(owner)) {
                let (mut owners, mut stages) = (door.owners.clone(), door.stages.clone());
                let is_gone = |now: &Vec<OwnerSeen>| !now.contains(&owner);
                was_asked = true;
                // This process itself is not among them.
                let is_seen = owners.borrow().contains(&owner);
                let attempt = timeout(GREETING, self.attempt(&owner, door));
                let attempted = tokio::select! {
                    attempted = attempt => attempted.ok().flatten(),
                    _gone = owners.wait_for(is_gone), if is_seen => None,
                    _ends = stages.wait_for(|stage| ENDING.contains(stage)) => None,
                };
                match attempted {
                    Some(Attempted::Taken(upstream)) => return Connecting::To(upstream),
                    // Another one may take it.
                    Some(Attempted::Refused(text)) => refused = Some(text),
                    Some(Attempted::RefusedNow(text)) => refused_now = Some(text),
                    None => {}
                }
            }
            if let Some(text) = refused {
                return Connecting::Refused(text);
            }
            // Who was refused is not to ask again at once.
            let rests = if was_asked || self.left.is_none() { RETRY } else { RETRY_SOON };
            tokio::select! {
                _stage = door.stages.changed() => {}
                () = sleep(rests) => {}
            }
        }
        refused_now.map_or(Connecting::Nobody, Connecting::Refused)
    }

    /// Has an owner take the client. `None`: it cannot be asked, or is the owner no more.
    async fn attempt(&self, owner: &OwnerSeen, door: &ForwardContext) -> Option<Attempted> {
        // Before anything is said of it.
        let places = timeout(CONNECT, places(owner, self.is_private)).await.ok()??;
        if self.is_private && places.is_empty() {
            return Some(Attempted::Refused(unserved(PRIVATE, self.speaks)));
        }
        let mut stream = timeout(CONNECT, TcpStream::connect(&*places)).await.ok()?.ok()?;
        let tag = new_tag();
        match greet(&mut stream, &door.secret, owner, &tag, &self.state).await {
            OwnerAnswer::Takes => {
                Some(Attempted::Taken(Upstream::new(stream, owner.clone(), Some(tag))))
            }
            OwnerAnswer::Refuses(text) => {
                let told = refusal(&text, self.speaks);
                Some(match is_final(&text, self.is_new) {
                    true => Attempted::Refused(told),
                    false => Attempted::RefusedNow(told),
                })
            }
            OwnerAnswer::Unknown if self.is_new && self.may_be_bare => {
                let stream = TcpStream::connect(&*places).await.ok()?;
                Some(Attempted::Taken(Upstream::new(stream, owner.clone(), None)))
            }
            OwnerAnswer::Unknown => {
                let shard = owner.shard;
                let text = format!(
                    "the owner of shard {shard} runs a program of another version, to which the client cannot be forwarded"
                );
                Some(Attempted::RefusedNow(unserved(&text, self.speaks)))
            }
            OwnerAnswer::Disbelieves => None,
        }
    }

    /// How long it waits for an owner.
    fn patience(&self) -> Duration {
        if self.is_new { PATIENCE } else { PATIENCE_PARTED }
    }

    /// Leaves the client to the next process, and the owner that has it, if one does.
    fn leave(self, door: &ForwardContext, to: Option<Upstream>) {
        if self.is_inner {
            return;
        }
        let Ok(stream) = self.client.into_std() else { return };
        let upstream = match to.map(Upstream::leave) {
            Some(None) => return,
            Some(upstream) => upstream,
            None => None,
        };
        let client = InheritedClient { stream, state: self.state, input: self.input, upstream };
        door.kept.borrow_mut().0.push(client);
    }

    async fn refuse(self, door: &ForwardContext) {
        let text = format!(
            "no owner of a shard, of shard {} or another one, could be reached for {} seconds: are the nodes and a quorum of the NATS servers up?",
            door.shard,
            self.patience().as_secs()
        );
        let told = unserved(&text, self.speaks);
        self.tell(&told).await;
    }

    /// Says why nobody serves the client, and waits a moment until it goes: a reason may be lost where what the client has sent is not read.
    async fn tell(mut self, text: &[u8]) {
        let told = async {
            self.client.write_all(text).await?;
            self.client.shutdown().await?;
            let mut piece = [0; 512];
            while self.client.read(&mut piece).await? > 0 {}
            std::io::Result::Ok(())
        };
        // Who has gone needs no reason.
        let _told = timeout(FAREWELL, told).await;
    }
}

/// Whether an owner takes who comes this way for a client of its own machine: it looks at the address alone.
fn seems_local(stream: &TcpStream) -> bool {
    stream.peer_addr().is_ok_and(|owner| owner.ip().to_canonical().is_loopback())
}

/// What connecting has come to.
enum Connecting {
    /// An owner has taken the client.
    To(Upstream),
    /// The process begins anew.
    Left,
    /// There was nobody in time.
    Nobody,
    /// An owner has refused the client, which is to read this.
    Refused(Vec<u8>),
}
