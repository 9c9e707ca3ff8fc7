//! The thread that shakes hands.
//!
//! It listens where TLS is spoken, and goes on with each handshake as its client lets it. There is a bound on how many are under way and on
//! the time that each may take. Where there are too many, the oldest makes room: who only connects keeps nobody else
//! out.

use super::files::Certificates;
use super::stream::{ClientStream, TlsStream};
use crate::arrival::Arrival;
use crate::log::event;
use crate::wire_protocol::{WireProtocol, take_listener};
use headwater_config::{Config, ConfigError};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use rustls::ServerConnection;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why a handshake comes to nothing that takes too long, and one that makes room for another.
pub(crate) const LATE: &str = "it takes longer than tls-handshake-milliseconds-max";
pub(crate) const TOO_MANY: &str = "there are too many";

/// Says that a client's handshake has come to nothing.
pub(crate) fn say_refused(peer: SocketAddr, reason: &str) {
    event!(info, "clients", "tls_refused", %peer, reason, "a handshake came to nothing");
}

/// Handshakes under way at once.
pub(crate) const HANDSHAKES_MAX: usize = 1024;
/// Connections accepted in one turn.
const ACCEPTS: usize = 64;
/// Readiness reports taken at once.
const EVENTS: usize = 256;
/// The longest wait: handshakes that are late are looked for.
const TICK: Duration = Duration::from_millis(100);

/// Clients that are through and wait for a shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    waiting: Arc<Mutex<Vec<Arrival>>>,
    any: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
}

impl Arrivals {
    /// Takes all.
    #[inline]
    pub(crate) fn take(&self) -> Vec<Arrival> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *waiting)
    }

    /// No more clients are accepted: who connects waits for the next process.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn are_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Adds one; the shard is to be woken.
    pub(crate) fn put(&self, arrival: Arrival) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        self.any.store(true, Ordering::Release);
    }
}

/// Notes a socket that listens.
type NotesSocket<'n> = &'n dyn Fn(BorrowedFd<'_>);

/// Where TLS is spoken. When it is dropped, its thread ends.
pub(crate) struct Doorway {
    addresses: Vec<(SocketAddr, WireProtocol)>,
    ends: Arc<AtomicBool>,
}

impl Drop for Doorway {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// A handshake.
struct Shaking {
    stream: TlsStream,
    peer: SocketAddr,
    door: WireProtocol,
    since: Instant,
}

/// The thread's.
struct Hall {
    poll: Poll,
    listeners: Vec<(TcpListener, WireProtocol)>,
    /// By their tokens, oldest first.
    shaking: BTreeMap<usize, Shaking>,
    next: usize,
    /// There may be connections that were not accepted yet.
    accepting: bool,
    patience: Duration,
    certificates: Certificates,
    arrivals: Arrivals,
    ring: Box<dyn Fn() + Send>,
    ends: Arc<AtomicBool>,
}

impl Doorway {
    /// Listens where the settings say, with those of the `open` sockets that do so already, and begins to shake hands; `ring` tells that there are arrivals. Each
    /// socket that listens is `noted`.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub(crate) fn open(
        config: &Config,
        certificates: Certificates,
        arrivals: Arrivals,
        ring: impl Fn() + Send + 'static,
        (open, noted): (&mut Vec<std::net::TcpListener>, NotesSocket<'_>),
    ) -> Result<Self, ConfigError> {
        let io = |what: &str, error: io::Error| ConfigError(format!("{what}: {error}"));
        let poll = Poll::new().map_err(|error| io("poll", error))?;
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        let doors = [
            (WireProtocol::Resp, config.tls.tls_port),
            (WireProtocol::Memcached, config.tls.tls_memcached_port),
        ];
        for (door, port) in doors {
            let Some(mut port) = port.number() else { continue };
            for &address in &config.listen.bind {
                let address = SocketAddr::new(address, port);
                let what = format!("cannot listen on {address} for TLS");
                let listener = match take_listener(address, open) {
                    Some(listener) => {
                        listener.set_nonblocking(true).map(|()| TcpListener::from_std(listener))
                    }
                    None => TcpListener::bind(address),
                };
                let mut listener = listener.map_err(|error| io(&what, error))?;
                noted(listener.as_fd());
                let address = listener.local_addr().map_err(|error| io(&what, error))?;
                port = address.port();
                poll.registry()
                    .register(&mut listener, Token(listeners.len()), Interest::READABLE)
                    .map_err(|error| io(&what, error))?;
                listeners.push((listener, door));
                addresses.push((address, door));
            }
        }
        let ends = Arc::new(AtomicBool::new(false));
        let hall = Hall {
            poll,
            next: listeners.len(),
            listeners,
            accepting: true,
            shaking: BTreeMap::new(),
            patience: Duration::from_millis(config.tls.tls_handshake_milliseconds_max),
            certificates,
            arrivals,
            ring: Box::new(ring),
            ends: ends.clone(),
        };
        std::thread::Builder::new()
            .name(String::from("tls"))
            .spawn(move || hall.run())
            .map_err(|error| io("tls", error))?;
        Ok(Self { addresses, ends })
    }

    /// The addresses of a door.
    pub(crate) fn addresses(&self, door: WireProtocol) -> Vec<SocketAddr> {
        let here = self.addresses.iter().filter(|(_, other)| *other == door);
        here.map(|(address, _)| *address).collect()
    }
}

impl Hall {
    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        while !self.is_over() {
            let wait = if self.accepting { Duration::ZERO } else { TICK };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != ErrorKind::Interrupted
            {
                event!(error, "clients", "tls_ended", %error, "no further handshakes are made");
                return;
            }
            if self.is_over() {
                return;
            }
            for event in &events {
                match event.token().0 {
                    at if at < self.listeners.len() => self.accepting = true,
                    at => self.go_on(at),
                }
            }
            if self.accepting {
                self.accept();
            }
            self.end_late();
        }
    }

    fn is_over(&self) -> bool {
        self.ends.load(Ordering::Relaxed) || self.arrivals.are_closed()
    }

    fn accept(&mut self) {
        self.accepting = false;
        for at in 0..self.listeners.len() {
            for taken in 0.. {
                if taken == ACCEPTS {
                    // The rest comes when those that are here have had their turn.
                    self.accepting = true;
                    break;
                }
                let (listener, door) = &self.listeners[at];
                let door = *door;
                match listener.accept() {
                    Ok((socket, peer)) => self.begin(socket, peer, door),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        event!(warn, "clients", "accept_failed", error = %error.kind(), "no client can be accepted");
                        // No descriptor is free: those that are late give theirs back.
                        std::thread::sleep(TICK);
                        self.accepting = true;
                        break;
                    }
                }
            }
        }
    }

    fn begin(&mut self, mut socket: TcpStream, peer: SocketAddr, door: WireProtocol) {
        if self.shaking.len() >= HANDSHAKES_MAX
            && let Some((_, oldest)) = self.shaking.pop_first()
        {
            say_refused(oldest.peer, TOO_MANY);
        }
        let Some(settings) = self.certificates.current() else { return };
        // It fails where the settings cannot be used, which they were looked at for.
        let Ok(tls) = ServerConnection::new(settings) else { return };
        let _ = socket.set_nodelay(true);
        let both = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, Token(self.next), both).is_err() {
            return;
        }
        let stream = TlsStream::new(socket, tls);
        self.shaking.insert(self.next, Shaking { stream, peer, door, since: Instant::now() });
        self.next += 1;
    }

    fn go_on(&mut self, at: usize) {
        let Some(mut shaking) = self.shaking.remove(&at) else { return };
        match shaking.stream.shake() {
            Ok(false) => drop(self.shaking.insert(at, shaking)),
            Ok(true) => {
                if self.poll.registry().deregister(shaking.stream.socket()).is_ok() {
                    let stream = ClientStream::Encrypted(Box::new(shaking.stream));
                    self.arrivals.put(Arrival::new(stream, shaking.peer, shaking.door));
                    (self.ring)();
                }
            }
            Err(error) => say_refused(shaking.peer, &error.to_string()),
        }
    }

    fn end_late(&mut self) {
        while let Some((_, oldest)) = self.shaking.first_key_value()
            && oldest.since.elapsed() > self.patience
            && let Some((_, oldest)) = self.shaking.pop_first()
        {
            say_refused(oldest.peer, LATE);
        }
    }
}
