//! The door of a node that stands by, where TLS is spoken: the node shakes hands as an owner would, and passes on what it decrypts.
//!
//! As at an owner, there is a bound on the handshakes under way, and the oldest makes room for another one: who only connects keeps nobody else out.
//!
//! What goes on to the owner is not encrypted. Where `cluster-link-tls` says that nothing goes so between nodes, an owner on another machine does not get it.

use super::forward::{FAREWELL, ForwardContext, begin, of_std};
use crate::handover::{SessionRest, SessionState};
use crate::tls::{Certificates, HANDSHAKES_MAX, LATE, TOO_MANY, name_of, say_refused};
use crate::users::UserRegistry;
use crate::wire_protocol::WireProtocol;
use headwater_config::Config;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, copy, split};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How hands are shaken.
pub(super) struct TlsTermination {
    certificates: Certificates,
    users: Arc<UserRegistry>,
    patience: Duration,
    shaking: RefCell<HandshakeRoom>,
}

/// Handshakes under way.
#[derive(Debug)]
struct HandshakeRoom {
    /// How many there may be.
    most: usize,
    next: u64,
    /// By their numbers, oldest first. One whose sender is dropped ends.
    all: BTreeMap<u64, oneshot::Sender<()>>,
}

impl HandshakeRoom {
    fn new(most: usize) -> Self {
        Self { most, next: 0, all: BTreeMap::new() }
    }

    /// Another one, for which the oldest makes room where there are too many: its number, and what ends when it is to.
    fn begin(&mut self) -> (u64, oneshot::Receiver<()>) {
        if self.all.len() >= self.most {
            self.all.pop_first();
        }
        let (held, ends) = oneshot::channel();
        self.next += 1;
        self.all.insert(self.next, held);
        (self.next, ends)
    }

    /// A handshake is over, however it has ended.
    fn end(&mut self, number: u64) {
        self.all.remove(&number);
    }
}

impl TlsTermination {
    pub(super) fn new(
        config: &Config,
        certificates: Certificates,
        users: Arc<UserRegistry>,
    ) -> Self {
        let patience = Duration::from_millis(config.tls.tls_handshake_milliseconds_max);
        let shaking = RefCell::new(HandshakeRoom::new(HANDSHAKES_MAX));
        Self { certificates, users, patience, shaking }
    }
}

/// Shakes hands with a client. `None`: it came to nothing, of which the client is told nothing.
async fn shake(
    client: TcpStream,
    peer: SocketAddr,
    tls: &TlsTermination,
) -> Option<TlsStream<TcpStream>> {
    let settings = tls.certificates.current()?;
    let _fast = client.set_nodelay(true);
    let (number, ends) = tls.shaking.borrow_mut().begin();
    let handshake = timeout(tls.patience, TlsAcceptor::from(settings).accept(client));
    let shaken = tokio::select! {
        shaken = handshake => shaken.map_err(|_| LATE.to_owned()).and_then(|it| it.map_err(|error| error.to_string())),
        _ends = ends => Err(TOO_MANY.to_owned()),
    };
    tls.shaking.borrow_mut().end(number);
    if let Err(reason) = &shaken {
        say_refused(peer, reason);
    }
    shaken.ok()
}

/// Shakes hands with a client, and passes it on until one side has gone.
pub(super) async fn serve(
    client: TcpStream,
    (peer, speaks): (SocketAddr, WireProtocol),
    tls: Rc<TlsTermination>,
    door: ForwardContext,
) {
    let Some(client) = shake(client, peer, &tls).await else { return };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_handshake_makes_room_for_another_one() {
        let mut shaking = HandshakeRoom::new(2);
        let (first, mut first_ends) = shaking.begin();
        let (second, mut second_ends) = shaking.begin();
        let is_over = |ends: &mut oneshot::Receiver<()>| {
            matches!(ends.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        assert!(!is_over(&mut first_ends));
        let (third, mut third_ends) = shaking.begin();
        assert!(is_over(&mut first_ends) && !is_over(&mut second_ends));
        // What is over makes room as well, and one that had to make it is over already.
        shaking.end(first);
        shaking.end(third);
        assert!(is_over(&mut third_ends));
        let _fourth = shaking.begin();
        assert!(!is_over(&mut second_ends));
        shaking.end(second);
        assert!(is_over(&mut second_ends));
    }
}
