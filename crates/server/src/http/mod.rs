//! The HTTP port: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever keeps the process alive.
//!
//! A thread of its own answers, with an async runtime of its own (tokio, hyper and axum), and is there only where there is a
//! port for it. What it tells it asks of the loop of the first shard by a queue, so that `/healthz` is an answer of the
//! threads that serve clients, or none.
//!
//! What is asked for below `/v1` is executed in a session of its own within the process, as any other client's request.
//!
//! - `listener`: connections, how many there may be, and how long each may take.
//! - `routes`: what is answered to what.
//! - `token`: what proves who may have figures.
//! - `api`: what programs and pages ask (`/v1`): `keys`, `ranges`, `watches`, `state`, `trials`; `origins` says whose pages may.
//! - `page`: the page at `/`.
//! - `standby`: what a node of a cluster answers while it stands by.
//! - `inner`: sessions within the process; `query`, `body`, `json`, `problem`: what goes in and comes out.
//! - `hosts`: the names by which the port may be asked.

mod api;
mod body;
mod hosts;
mod inner;
mod json;
mod keys;
mod listener;
mod metrics;
mod origins;
mod page;
mod problem;
mod query;
mod ranges;
mod routes;
mod standby;
mod state;
mod token;
mod trials;
mod watches;

pub(crate) use inner::{ForwardedClients, InnerClient};
pub(crate) use metrics::{Kind, Metric};
pub(crate) use standby::{StandbyListener, StandbyVitals};

use crate::tls::{Arrivals, Certificates};
use crate::users::UserRegistry;
use headwater_config::Http;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the loop may take to answer before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most who may wait for the loop: a stuck one is not asked for ever.
const WAITING_MAX: usize = 256;

/// How the process does.
#[derive(Clone, Debug)]
pub(crate) struct Vitals {
    /// Its figures.
    pub(crate) metrics: Vec<Metric>,
    /// Why clients should not be sent here now; `None`: they may be.
    pub(crate) unready: Option<String>,
}

/// Somebody asks how the server does.
pub(crate) struct Probe(oneshot::Sender<Vitals>);

impl Probe {
    /// Whether whoever asked still waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.0.is_closed()
    }

    /// Tells it.
    pub(crate) fn answer(self, vitals: Vitals) {
        // Who asked may have lost patience.
        let _ = self.0.send(vitals);
    }
}

/// The loop's side.
pub(crate) struct Probes {
    receiver: Receiver<Probe>,
    sender: SyncSender<Probe>,
}

impl Probes {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        Self { receiver, sender }
    }

    /// Everybody who waits for an answer.
    pub(crate) fn take(&self) -> Vec<Probe> {
        self.receiver.try_iter().collect()
    }

    /// Answers HTTP on `listener` until it `closes`, as [`listener::start`] says, over TLS with `certificates`. Sessions begin as `arrivals`; `ring` has the loop come round.
    ///
    /// # Errors
    /// The thread cannot be started, or the listener cannot be used.
    pub(crate) fn serve(
        &self,
        listener: TcpListener,
        settings: &Http,
        (certificates, users): (Option<Certificates>, Arc<UserRegistry>),
        (arrivals, ring): (Arrivals, impl Fn() + Send + Sync + 'static),
        closes: impl Future<Output = Option<impl Send + 'static>> + Send + 'static,
    ) -> Result<SocketAddr, String> {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let ring: Arc<dyn Fn() + Send + Sync> = Arc::new(ring);
        let asker = Asker::Loop { probes: self.sender.clone(), ring: ring.clone() };
        let connector = inner::InnerConnector::Here(arrivals, ring);
        let routes = routes::all(
            asker,
            api::Api::new(settings, connector),
            hosts::Hosts::new(&settings.http_hosts),
            token::Proofs { token: token::Token::new(&settings.http_token), users },
        );
        listener::start(listener, settings, certificates, routes, closes)
            .map_err(|error| error.to_string())?;
        Ok(address)
    }
}

/// Asks whoever can tell how the process does.
#[derive(Clone)]
enum Asker {
    /// The loop that serves clients.
    Loop { probes: SyncSender<Probe>, ring: Arc<dyn Fn() + Send + Sync> },
    /// What the thread that follows the log has told last.
    Standby(StandbyVitals),
}

impl Asker {
    /// How the process does, unless nobody says so.
    async fn vitals(&self) -> Option<Vitals> {
        match self {
            Self::Loop { probes, ring } => {
                let (sender, receiver) = oneshot::channel();
                probes.try_send(Probe(sender)).ok()?;
                ring();
                tokio::time::timeout(PATIENCE, receiver).await.ok()?.ok()
            }
            Self::Standby(vitals) => (vitals.0)(),
        }
    }
}
