//! The door of a node that stands by, where TLS is spoken: the node shakes hands as an owner would, and passes on what it decrypts.
//!
//! What goes on to the owner is not encrypted. Where `cluster-link-tls` says that nothing goes so between nodes, an owner on another machine does not get it.

use super::forward::{ForwardContext, begin, of_std};
use crate::handover::{SessionRest, SessionState};
use crate::tls::{Certificates, HANDSHAKES_MAX, name_of};
use crate::users::UserRegistry;
use crate::wire_protocol::WireProtocol;
use headwater_config::Config;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, copy, split};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// How long saying goodbye to a client may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// How hands are shaken.
pub(super) struct TlsTermination {
    certificates: Certificates,
    users: Arc<UserRegistry>,
    patience: Duration,
    /// Handshakes that may begin still.
    room: Arc<Semaphore>,
}

impl TlsTermination {
    pub(super) fn new(
        config: &Config,
        certificates: Certificates,
        users: Arc<UserRegistry>,
    ) -> Self {
        let patience = Duration::from_millis(config.tls.tls_handshake_milliseconds_max);
        Self { certificates, users, patience, room: Arc::new(Semaphore::new(HANDSHAKES_MAX)) }
    }
}

/// Shakes hands with a client, and passes it on until one side has gone.
pub(super) async fn serve(
    client: TcpStream,
    (peer, speaks): (SocketAddr, WireProtocol),
    tls: Rc<TlsTermination>,
    door: ForwardContext,
) {
    let Ok(place) = tls.room.clone().try_acquire_owned() else { return };
    let Some(settings) = tls.certificates.current() else { return };
    let _fast = client.set_nodelay(true);
    let handshake = timeout(tls.patience, TlsAcceptor::from(settings).accept(client)).await;
    drop(place);
    // Who is no client of TLS, or takes too long, is told nothing.
    let Ok(Ok(client)) = handshake else { return };
    let shown = client.get_ref().1.peer_certificates().and_then(|all| all.first());
    let name = shown.and_then(|certificate| name_of(certificate));
    let sits = tls.users.named_by(name.as_deref()).map(SessionRest::of_user);
    let Ok((inside, theirs)) = UnixStream::pair() else { return };
    let theirs = theirs.into_std().and_then(|it| of_std(OwnedFd::from(it).into()));
    let Ok(theirs) = theirs else { return };
    begin(theirs, SessionState { peer, speaks, sits }, (true, true), &door);
    let (mut inside_reads, mut inside_writes) = inside.into_split();
    let (mut client_reads, mut client_writes) = split(client);
    let up = async {
        let _ended = copy(&mut client_reads, &mut inside_writes).await;
        // What was asked is answered yet.
        let _gone = inside_writes.shutdown().await;
        std::future::pending::<()>().await;
    };
    let down = async {
        let _ended = copy(&mut inside_reads, &mut client_writes).await;
        // A client that stays although nobody serves it any more is not waited for.
        let _gone = timeout(FAREWELL, client_writes.shutdown()).await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
