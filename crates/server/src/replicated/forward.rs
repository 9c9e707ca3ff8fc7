//! The door of a node that stands by: its clients' connections are passed on to an owner, byte for byte.
//!
//! A client is held for a while where nobody owns anything, and told so then. Where the one that it was passed on to is no owner any more,
//! its connection ends, since a paused process keeps its sockets.

use super::driver::OwnerSeen;
use crate::resp::PROTECTED;
use headwater_config::{Config, ConfigError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long a client waits for an owner.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it takes to connect to one, at most.
const CONNECT: Duration = Duration::from_secs(1);
/// How often that is tried again.
const RETRY: Duration = Duration::from_millis(50);
/// A listener that fails rests so long.
const REST: Duration = Duration::from_millis(50);

/// The door; closed when dropped.
pub(super) struct Forwarding {
    pub(super) addresses: Vec<SocketAddr>,
    close: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forwarding {
    /// Listens where the server would.
    ///
    /// # Errors
    /// That cannot be.
    pub(super) fn start(
        config: &Config,
        owners: watch::Receiver<Vec<OwnerSeen>>,
    ) -> Result<Self, ConfigError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| ConfigError(format!("forwarding: {why}")))?;
        let port = config.listen.port.number().unwrap_or_default();
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for &ip in &config.listen.bind {
            let address = SocketAddr::new(ip, port);
            let listener = runtime
                .block_on(TcpListener::bind(address))
                .map_err(|why| ConfigError(format!("{address}: {why}")))?;
            listeners.push(listener);
            addresses.push(address);
        }
        let (close, closes) = oneshot::channel();
        let limits = Limits {
            clients: config.clients.clients_max,
            protects: protects(config),
            shard: config.cluster.shard(),
        };
        let run = move || serve(&runtime, listeners, &owners, limits, closes);
        let thread = std::thread::Builder::new().name(String::from("forward")).spawn(run);
        let thread = thread.map_err(|why| ConfigError(format!("forwarding: {why}")))?;
        Ok(Self { addresses, close: Some(close), thread: Some(thread) })
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(thread) = self.thread.take() {
            // The port is free when it has ended, however it did.
            let _ended = thread.join();
        }
    }
}

/// Who may come.
#[derive(Clone, Copy)]
struct Limits {
    /// So many clients at once.
    clients: usize,
    /// None of other machines, where the owner would take them for some of its own.
    protects: bool,
    /// The shard that this node stands by for.
    shard: u16,
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
    listeners: Vec<TcpListener>,
    owners: &watch::Receiver<Vec<OwnerSeen>>,
    limits: Limits,
    closes: oneshot::Receiver<()>,
) {
    let tasks = tokio::task::LocalSet::new();
    let room = Arc::new(Semaphore::new(limits.clients));
    for listener in listeners {
        tasks.spawn_local(accept(listener, owners.clone(), room.clone(), limits));
    }
    // The tasks end with the set, and with them their sockets.
    tasks.block_on(runtime, async {
        let _closed = closes.await;
    });
}

async fn accept(
    listener: TcpListener,
    owners: watch::Receiver<Vec<OwnerSeen>>,
    room: Arc<Semaphore>,
    limits: Limits,
) {
    loop {
        let Ok((client, peer)) = listener.accept().await else {
            sleep(REST).await;
            continue;
        };
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let owners = owners.clone();
        tokio::task::spawn_local(async move {
            let is_foreign = limits.protects && !peer.ip().to_canonical().is_loopback();
            forward(client, owners, (limits.shard, is_foreign)).await;
            drop(place);
        });
    }
}

/// A connection to an owner, and who that is; `None`: there was none in time.
async fn connect(owners: &watch::Receiver<Vec<OwnerSeen>>) -> Option<(TcpStream, OwnerSeen)> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let seen = owners.borrow().clone();
        for owner in seen {
            let stream = TcpStream::connect(owner.address.as_str());
            if let Ok(Ok(stream)) = timeout(CONNECT, stream).await {
                return Some((stream, owner));
            }
        }
        sleep(RETRY).await;
    }
    None
}

/// Passes a client on; `is_foreign`: it is of another machine, and must not seem to be of the owner's.
async fn forward(
    mut client: TcpStream,
    mut owners: watch::Receiver<Vec<OwnerSeen>>,
    (shard, is_foreign): (u16, bool),
) {
    let Some((mut stream, owner)) = connect(&owners).await else {
        let text = format!(
            "-CLUSTERDOWN no owner of a shard, of shard {shard} or another one, could be reached for {} seconds: are the nodes and a quorum of the NATS servers up?\r\n",
            PATIENCE.as_secs()
        );
        // Who has gone needs no reason.
        let _sent = client.write_all(text.as_bytes()).await;
        return;
    };
    let seems_local = stream.peer_addr().is_ok_and(|owner| owner.ip().to_canonical().is_loopback());
    if is_foreign && seems_local {
        let _sent = client.write_all(PROTECTED).await;
        return;
    }
    let _slower = (client.set_nodelay(true), stream.set_nodelay(true));
    let another =
        |now: &Vec<OwnerSeen>| now.iter().any(|it| it.shard == owner.shard && *it != owner);
    tokio::select! {
        // However it ends, both sides are closed.
        _ended = copy_bidirectional(&mut client, &mut stream) => {}
        _changed = owners.wait_for(another) => {}
    }
}
