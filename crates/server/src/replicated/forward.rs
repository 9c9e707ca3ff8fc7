//! The door of a node that stands by: its clients' connections are passed on to an owner, byte for byte.
//!
//! A client is held for a while where nobody owns anything, and told so then. Where an owner parts with it ([`parting`](crate::handover::parting)), because
//! it gives its shard up or ends, it goes on at the next one. Where the owner is another one without that,
//! its connection ends, since a paused process keeps its sockets.
//!
//! The node that becomes the owner itself listens here no more, and goes on with the clients that it has.

use super::driver::OwnerSeen;
use super::upstream::{Passed, Upstream, pass};
use crate::handover::greeting::{TAKEN, Tag, new_tag, request};
use crate::handover::{Inherited, InheritedClient, SessionState};
use crate::resp::PROTECTED;
use crate::shards::links::Secret;
use headwater_config::{Config, ConfigError};
use headwater_log::Epoch;
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
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
/// Bytes that are passed on at once.
const PIECE: usize = 64 << 10;

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
    pub(super) addresses: Vec<SocketAddr>,
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
    /// Listens where the server would, with the sockets and the clients that the process has inherited.
    ///
    /// # Errors
    /// That cannot be.
    pub(super) fn start(
        config: &Config,
        owners: watch::Receiver<Vec<OwnerSeen>>,
        secret: Secret,
        inherited: Inherited,
    ) -> Result<Self, ConfigError> {
        let refuse = |why: std::io::Error| ConfigError(format!("forwarding: {why}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refuse)?;
        let port = config.listen.port.number().unwrap_or_default();
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for &ip in &config.listen.bind {
            let address = SocketAddr::new(ip, port);
            let is_here =
                |it: &&std::net::TcpListener| it.local_addr().is_ok_and(|at| at == address);
            let listener = match inherited.listeners.iter().find(is_here) {
                Some(listener) => listener.try_clone(),
                None => {
                    runtime.block_on(TcpListener::bind(address)).and_then(TcpListener::into_std)
                }
            };
            listeners.push(listener.map_err(|why| ConfigError(format!("{address}: {why}")))?);
            addresses.push(address);
        }
        let again: Result<_, _> = listeners.iter().map(std::net::TcpListener::try_clone).collect();
        let again: Vec<_> = again.map_err(refuse)?;
        let (stage, stages) = watch::channel(ForwardStage::Open);
        let (shard, protects) = (config.cluster.shard(), protects(config));
        let room = Arc::new(Semaphore::new(config.clients.clients_max));
        let run = move || {
            let (kept, piece) = (Rc::default(), Rc::new(RefCell::new(vec![0; PIECE])));
            let door =
                ForwardContext { owners, stages, secret, shard, protects, room, kept, piece };
            serve(&runtime, again, inherited.clients, &door)
        };
        let thread = std::thread::Builder::new().name(String::from("forward")).spawn(run);
        let thread = Some(thread.map_err(refuse)?);
        Ok(Self { addresses, listeners, stage: Arc::new(stage), thread })
    }

    /// The process owns its shard from now on: it listens here itself.
    pub(super) fn owns(&mut self, epoch: Epoch) -> Vec<std::net::TcpListener> {
        let mut own = self.addresses.first().copied().unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
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

fn serve(
    runtime: &Runtime,
    listeners: Vec<std::net::TcpListener>,
    clients: Vec<InheritedClient>,
    door: &ForwardContext,
) -> Vec<InheritedClient> {
    let tasks = tokio::task::LocalSet::new();
    // The tasks end with the set, and with them their sockets.
    tasks.block_on(runtime, async {
        for client in clients {
            let place = door.room.clone().try_acquire_owned().ok();
            tokio::task::spawn_local(inherit(client, door.clone(), place));
        }
        for listener in listeners {
            if let Ok(listener) =
                listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener))
            {
                tokio::task::spawn_local(accept(listener, door.clone()));
            }
        }
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

async fn accept(listener: TcpListener, door: ForwardContext) {
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
        let Ok(place) = door.room.clone().try_acquire_owned() else { continue };
        let door = door.clone();
        tokio::task::spawn_local(async move {
            let is_foreign = door.protects && !peer.ip().to_canonical().is_loopback();
            let state = SessionState { peer, sits: None }.encode();
            let client = Forwarded {
                client,
                state,
                input: Vec::new(),
                is_new: true,
                is_foreign,
                left: None,
            };
            client.run(door, None).await;
            drop(place);
        });
    }
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
    let is_foreign = door.protects && SessionState::decode(&state).is_none_or(|it| is_unknown(&it));
    let is_new = false;
    if let Ok(client) = of_std(stream) {
        let upstream = upstream.and_then(Upstream::inherit);
        Forwarded { client, state, input, is_new, is_foreign, left: None }
            .run(door, upstream)
            .await;
    }
    drop(place);
}

pub(super) fn of_std(stream: std::net::TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

/// A client that is passed on.
struct Forwarded {
    client: TcpStream,
    /// What the owner is told of it.
    state: Vec<u8>,
    /// What it has sent, and no owner has executed.
    input: Vec<u8>,
    /// It has just come: an owner that does not know the greeting can have it.
    is_new: bool,
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
            };
            let seems_local =
                to.stream.peer_addr().is_ok_and(|owner| owner.ip().to_canonical().is_loopback());
            if self.is_foreign && seems_local {
                let _sent = self.client.write_all(PROTECTED).await;
                return;
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
        let patience = if self.is_new { PATIENCE } else { PATIENCE_PARTED };
        while begun.elapsed() < patience {
            let mut was_asked = false;
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
                let taken = tokio::select! {
                    taken = attempt => taken.ok().flatten(),
                    _gone = owners.wait_for(is_gone), if is_seen => None,
                    _ends = stages.wait_for(|stage| ENDING.contains(stage)) => None,
                };
                if let Some((stream, tag)) = taken {
                    return Connecting::To(Upstream::new(stream, owner, tag));
                }
            }
            // Who was refused is not to ask again at once.
            let rests = if was_asked || self.left.is_none() { RETRY } else { RETRY_SOON };
            tokio::select! {
                _stage = door.stages.changed() => {}
                () = sleep(rests) => {}
            }
        }
        Connecting::Nobody
    }

    async fn attempt(
        &self,
        owner: &OwnerSeen,
        door: &ForwardContext,
    ) -> Option<(TcpStream, Option<Tag>)> {
        let stream = TcpStream::connect(owner.address.as_str());
        let mut stream = timeout(CONNECT, stream).await.ok()?.ok()?;
        let tag = new_tag();
        let to = (owner.shard, owner.epoch.0);
        stream.write_all(&request(&door.secret, to, &tag, &self.state)).await.ok()?;
        let mut answer = [0; TAKEN.len()];
        let read = stream.read_exact(&mut answer).await;
        if read.is_ok() && answer == TAKEN {
            return Some((stream, Some(tag)));
        }
        // An older program does not know the greeting, and where the address is that of a port for TLS, nobody does.
        if !self.is_new {
            return None;
        }
        let stream = TcpStream::connect(owner.address.as_str()).await.ok()?;
        Some((stream, None))
    }

    /// Leaves the client to the next process, and the owner that has it, if one does.
    fn leave(self, door: &ForwardContext, to: Option<Upstream>) {
        let Ok(stream) = self.client.into_std() else { return };
        let upstream = match to.map(Upstream::leave) {
            Some(None) => return,
            Some(upstream) => upstream,
            None => None,
        };
        let client = InheritedClient { stream, state: self.state, input: self.input, upstream };
        door.kept.borrow_mut().0.push(client);
    }

    async fn refuse(mut self, door: &ForwardContext) {
        let text = format!(
            "-CLUSTERDOWN no owner of a shard, of shard {} or another one, could be reached for {} seconds: are the nodes and a quorum of the NATS servers up?\r\n",
            door.shard,
            PATIENCE.as_secs()
        );
        // Who has gone needs no reason.
        let _sent = self.client.write_all(text.as_bytes()).await;
    }
}

/// What connecting has come to.
enum Connecting {
    /// An owner has taken the client.
    To(Upstream),
    /// The process begins anew.
    Left,
    /// There was nobody in time.
    Nobody,
}
