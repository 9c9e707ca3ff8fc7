//! Connections to the HTTP port: how many there may be, and how long each may take.
//!
//! Whoever can reach the port can hold connections open. So there is a bound on their number, on the bytes of a request's
//! head, and on the time in which it must have come; an answer must be taken in as long. Where all
//! connections are in use, the oldest of which none is being answered makes room for a new one: who only connects, or sends a
//! request's body byte by byte, keeps nobody else out.

use super::body::{Awaited, Busy};
use crate::log::event;
use crate::tls::{Certificates, name_of};
use axum::Router;
use headwater_config::Http;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

/// How long is waited where no connection can be accepted: no descriptor is free.
const REST: Duration = Duration::from_millis(100);

/// What a client's certificate calls it.
#[derive(Clone, Debug)]
pub(super) struct CertificateName(pub(super) String);

/// Where a client is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Tells that connections are to end; by default, nobody does.
#[derive(Clone, Default, Debug)]
pub(super) struct ConnectionsEnd(Option<watch::Receiver<bool>>);

impl ConnectionsEnd {
    /// Waits until they are to end with the answers that are under way. One that would never come to its end by itself is to end then.
    pub(super) async fn begins(&mut self) {
        if let Some(ends) = &mut self.0
            && ends.wait_for(|ends| *ends).await.is_ok()
        {
            return;
        }
        // Where nobody can tell any more, the thread ends, and whatever it serves with it.
        std::future::pending().await
    }
}

/// A connection.
struct Open {
    task: JoinHandle<()>,
    /// Whether a request of it is being answered.
    busy: Busy,
}

/// Serves `routes` on a thread of its own until `closes`. If that gives something, each connection goes on to the end of the answer that is under way on it, and
/// what was given is let go then; if not, all end at once.
///
/// # Errors
/// The thread or its runtime cannot be started, or the listener cannot be used.
pub(super) fn start(
    listener: std::net::TcpListener,
    settings: &Http,
    certificates: Option<Certificates>,
    routes: Router,
    closes: impl Future<Output = Option<impl Send + 'static>> + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = {
        let _inside = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let most = settings.http_clients_max;
    let patience = Duration::from_millis(settings.http_milliseconds_max);
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(settings.http_header_bytes_max);
    let (ends, ending) = watch::channel(false);
    let manner =
        Manner { patience, server, routes, certificates, ending: ConnectionsEnd(Some(ending)) };
    let serve = accept(listener, most, manner);
    let serve = async move {
        let held = tokio::select! {
            () = serve => None,
            held = closes => held,
        };
        if held.is_some() {
            ends.send_replace(true);
            ends.closed().await;
        }
    };
    // What has been spawned ends with the runtime.
    std::thread::Builder::new().name(String::from("http")).spawn(move || runtime.block_on(serve))
}

/// How connections are served.
#[derive(Clone)]
struct Manner {
    patience: Duration,
    server: http1::Builder,
    routes: Router,
    /// What encrypted connections begin with; `None`: they are not encrypted.
    certificates: Option<Certificates>,
    /// Whether connections are to end with the answer that is under way.
    ending: ConnectionsEnd,
}

async fn accept(listener: TcpListener, most: usize, manner: Manner) {
    // Oldest first.
    let mut all: VecDeque<Open> = VecDeque::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                event!(warn, "http", "http_accept_failed", error = %error.kind(), "no connection can be accepted");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        all.retain(|open| !open.task.is_finished());
        if all.len() >= most {
            let silent = all.iter().position(|open| !open.busy.is_set());
            let ended = if silent.is_some() { "a silent one" } else { "the new one" };
            event!(
                warn,
                "http",
                "http_clients_max",
                most,
                ended,
                "all connections are in use: one is ended"
            );
            match silent.and_then(|at| all.remove(at)) {
                Some(silent) => silent.task.abort(),
                None => continue,
            }
        }
        let busy = Busy::default();
        let serve = converse(stream, Peer(peer), manner.clone(), busy.clone());
        all.push_back(Open { task: tokio::spawn(serve), busy });
    }
}

/// Answers the requests of one connection.
async fn converse(stream: TcpStream, peer: Peer, manner: Manner, busy: Busy) {
    let Manner { patience, server, routes, certificates, ending } = manner;
    // An answer is written in one go.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(patience));
    let routes = TowerToHyperService::new(routes);
    let ends = ending.clone();
    let serve = hyper::service::service_fn(|request: hyper::Request<Incoming>| {
        let guard = busy.begin();
        let mut request = request.map(|body| Awaited::new(body, busy.clone()));
        let extensions = hyper::Request::extensions_mut(&mut request);
        extensions.insert(peer);
        extensions.insert(ends.clone());
        extensions.insert(busy.clone());
        let answer = hyper::service::Service::call(&routes, request);
        async move {
            let _guard = guard;
            answer.await
        }
    });
    let stream = Box::pin(stream);
    // Whatever ends it is the client's affair: it was too slow, said something that is no HTTP, or went.
    let Some(certificates) = certificates else {
        let connection = server.serve_connection(TokioIo::new(stream), serve);
        return serve_to_end(connection, ending, http1::Connection::graceful_shutdown).await;
    };
    let Some(settings) = certificates.current() else { return };
    let handshake = TlsAcceptor::from(settings).accept(stream);
    if let Ok(Ok(stream)) = tokio::time::timeout(patience, handshake).await {
        let shown = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
        let name = shown.and_then(|certificate| name_of(certificate)).map(CertificateName);
        let serve = hyper::service::service_fn(|mut request| {
            if let Some(name) = name.clone() {
                hyper::Request::extensions_mut(&mut request).insert(name);
            }
            hyper::service::Service::call(&serve, request)
        });
        let connection = server.serve_connection(TokioIo::new(stream), serve);
        serve_to_end(connection, ending, http1::Connection::graceful_shutdown).await;
    }
}

/// Serves a connection, which may be told to end with the answer that is under way.
async fn serve_to_end<C: Future>(
    connection: C,
    mut ending: ConnectionsEnd,
    end_soon: impl FnOnce(Pin<&mut C>),
) {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = ending.begins() => end_soon(connection.as_mut()),
    }
    connection.await;
}
