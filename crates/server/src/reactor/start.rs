//! How a loop begins: what it listens on, what wakes it, and the threads beside it.

use super::accept::again;
use super::ending::{SIGHUP, SIGINT, SIGTERM};
use super::gated::GatedReplies;
use super::{
    FIRST_LISTENER, FIRST_OF_SERVICE, OUT_BYTES_FULL, READ_BYTES, Reactor, SIGNALS, WAKER,
};
use crate::connections::Connections;
use crate::io_threads::IoThreads;
use crate::service::{Service, Time};
use crate::wire_protocol::{WireProtocol, take_listener};
use headwater_config::{Config, ConfigError};
use headwater_protocol::Held;
use mio::net::TcpListener;
use mio::{Interest, Poll, Token, Waker};
use signal_hook_mio::v1_0::Signals;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

fn failed(what: &str, error: io::Error) -> ConfigError {
    ConfigError(format!("{what}: {error}"))
}

impl<S: Service> Reactor<S> {
    /// The first loop of the process: binds the addresses of `config`, and hears signals.
    pub(crate) fn bind(config: &Config, service: S) -> Result<Self, ConfigError> {
        Self::bind_with(config, service, &mut Vec::new())
    }

    /// The same, with sockets that listen already at some of the addresses, and are taken for these.
    pub(crate) fn bind_with(
        config: &Config,
        service: S,
        open: &mut Vec<std::net::TcpListener>,
    ) -> Result<Self, ConfigError> {
        let mut listeners = Vec::new();
        let doors = [
            (WireProtocol::Resp, config.listen.port.number()),
            (WireProtocol::Memcached, config.listen.memcached_port.number()),
        ];
        for (door, port) in doors {
            let Some(mut port) = port else { continue };
            for &address in &config.listen.bind {
                let address = SocketAddr::new(address, port);
                let bound = match take_listener(address, open) {
                    Some(listener) => {
                        listener.set_nonblocking(true).map(|()| TcpListener::from_std(listener))
                    }
                    None => TcpListener::bind(address),
                };
                let bound =
                    bound.and_then(|it| it.local_addr().map(|address| (it, address.port())));
                let listener;
                (listener, port) =
                    bound.map_err(|error| failed(&format!("cannot listen on {address}"), error))?;
                listeners.push((listener, door));
            }
        }
        let mut reactor = Self::beside(config, service, listeners)?;
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).and_then(|mut signals| {
            reactor.poll.registry().register(&mut signals, SIGNALS, Interest::READABLE)?;
            Ok(signals)
        });
        reactor.signals = Some(signals.map_err(|error| failed("signals", error))?);
        Ok(reactor)
    }

    /// Another loop of the process, which accepts from the same sockets: those that the first one gives it
    /// ([`Reactor::listeners_again`]).
    pub(crate) fn beside(
        config: &Config,
        mut service: S,
        mut listeners: Vec<(TcpListener, WireProtocol)>,
    ) -> Result<Self, ConfigError> {
        let poll = Poll::new().map_err(|error| failed("poll", error))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(|error| failed("waker", error))?;
        let waker = Arc::new(waker);
        service.set_waker(waker.clone());
        let registered = service.set_registry(poll.registry(), FIRST_OF_SERVICE);
        registered.map_err(|error| failed("poll", error))?;
        let has_bound = config.memory.max.0 > 0;
        let io = IoThreads::start(config.listen.io_threads.saturating_sub(1), waker, has_bound);
        let io = io.map_err(|error| failed("I/O threads", error))?;
        for (at, (listener, _)) in listeners.iter_mut().enumerate() {
            poll.registry()
                .register(listener, Token(FIRST_LISTENER + at), Interest::READABLE)
                .map_err(|error| failed("poll", error))?;
        }
        let mut connections = Connections::new();
        let (first, step) = service.numbers();
        connections.set_numbers(first, step);
        let mut reactor = Self {
            service,
            poll,
            signals: None,
            listeners,
            accepting: true,
            connections,
            io,
            queue: Vec::new(),
            executed: false,
            rests: false,
            gated_replies: GatedReplies::default(),
            strangers: VecDeque::new(),
            read: vec![0; READ_BYTES],
            out: Vec::with_capacity(OUT_BYTES_FULL),
            held: Held::default(),
            tcp_keepalive_seconds: config.listen.tcp_keepalive_seconds,
            started: Instant::now(),
            time: Time::default(),
            checked: 0,
        };
        reactor.tell_time();
        Ok(reactor)
    }

    /// The sockets that are listened on, for another loop.
    pub(crate) fn listeners_again(&self) -> Result<Vec<(TcpListener, WireProtocol)>, ConfigError> {
        again(&self.listeners).map_err(|error| failed("listeners", error))
    }

    /// The addresses of a door.
    pub(crate) fn addresses(&self, door: WireProtocol) -> Vec<SocketAddr> {
        let here = self.listeners.iter().filter(|(_, other)| *other == door);
        here.filter_map(|(listener, _)| listener.local_addr().ok()).collect()
    }
}
