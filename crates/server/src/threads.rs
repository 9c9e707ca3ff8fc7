//! The threads of the shards but the first, which is the thread that runs the server.
//!
//! Each makes its own engine and loop, since neither can be handed from thread to thread, says how that
//! went, and begins to serve when it is told to.

use crate::abort_on_panic::AbortOnPanic;
use crate::keeping::SentModule;
use crate::reactor::Reactor;
use crate::resp::ShardService;
use crate::shards::{Shards, Transport};
use crate::wire_protocol::WireProtocol;
use headwater_base::Shard;
use headwater_config::{Config, ConfigError};
use mio::net::TcpListener;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Threads that are ready to serve, or serve.
#[derive(Default)]
pub(crate) struct Threads {
    all: Vec<(Sender<()>, JoinHandle<()>)>,
    /// The cores that the first one is kept to.
    pin: bool,
}

impl Threads {
    /// Starts the threads of all shards but the first; `sent`: the modules of functions that are in no file; `listeners`
    /// gives each the sockets that the first listens on.
    ///
    /// # Errors
    /// One of them cannot serve, for the reason given.
    pub(crate) fn start(
        config: &Config,
        sent: &[SentModule],
        transport: &Arc<Transport>,
        listeners: impl Fn() -> Result<Vec<(TcpListener, WireProtocol)>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let mut threads = Self { all: Vec::new(), pin: config.listen.pin };
        for at in 1..config.listen.shards.number() {
            let (config, transport) = (config.clone(), transport.clone());
            let (sent, listeners) = (sent.to_vec(), listeners()?);
            let (said, hears) = channel();
            let (start, started) = channel();
            let serve = move || {
                let _aborts = AbortOnPanic;
                if config.listen.pin {
                    pin(at);
                }
                let shards = Shards::of(Shard(at), &transport);
                let made = ShardService::new(config.clone(), Some(shards), Some(sent))
                    .and_then(|service| Reactor::beside(&config, service, listeners));
                let reactor = match made {
                    Ok(reactor) => reactor,
                    Err(error) => {
                        // Who does not listen any more has an error already.
                        let _ = said.send(Err(error));
                        return;
                    }
                };
                let _ = said.send(Ok(()));
                if started.recv().is_ok()
                    && let Err(error) = reactor.run()
                {
                    // The others cannot do without its keys.
                    panic!("shard {at}: {error}");
                }
            };
            let thread = std::thread::Builder::new().name(format!("shard-{at}")).spawn(serve);
            let thread = thread.map_err(|error| ConfigError(format!("shard {at}: {error}")))?;
            let ended = || ConfigError(format!("shard {at} ended before it began"));
            hears.recv().map_err(|_| ended())??;
            threads.all.push((start, thread));
        }
        Ok(threads)
    }

    /// Lets all of them serve; the calling thread is the first shard's.
    pub(crate) fn run(&self) {
        if self.pin {
            pin(0);
        }
        for (start, _) in &self.all {
            // It waits for this, or the process is ending.
            let _ = start.send(());
        }
    }

    /// Waits for their end.
    pub(crate) fn join(self) {
        for (start, thread) in self.all {
            drop(start);
            // A thread that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

/// Keeps the calling thread to the core of this number among those that the process may use.
fn pin(at: u16) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    if let Some(&core) = cores.get(usize::from(at) % cores.len().max(1)) {
        let mut one = CpuSet::new();
        one.set(core);
        // Where the system does not let it, the thread runs anywhere.
        let _ = sched_setaffinity(None, &one);
    }
}
