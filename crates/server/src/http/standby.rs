//! The HTTP port of a node of a cluster that stands by: signs of life, and figures of what it follows.
//!
//! It takes the same tokens, names and certificates as that of a server, and is closed before a server listens there.

use super::token::{Proofs, Token};
use super::{Asker, Vitals, hosts, listener, routes};
use crate::tls::Certificates;
use crate::users::UserRegistry;
use headwater_config::Http;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Says how a node that stands by does; nothing: its thread does not go on.
#[derive(Clone)]
pub(crate) struct StandbyVitals(pub(crate) Arc<dyn Fn() -> Option<Vitals> + Send + Sync>);

impl fmt::Debug for StandbyVitals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StandbyVitals").finish_non_exhaustive()
    }
}

/// A listener, with its connections; closed when dropped.
#[derive(Debug)]
pub(crate) struct StandbyListener {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    close: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StandbyListener {
    /// Answers HTTP on `listener`, over TLS with `certificates`.
    ///
    /// # Errors
    /// The thread cannot be started, or the listener cannot be used.
    pub(crate) fn open(
        listener: TcpListener,
        settings: &Http,
        (certificates, users): (Option<Certificates>, Arc<UserRegistry>),
        vitals: StandbyVitals,
    ) -> Result<Self, String> {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let proofs = Proofs { token: Token::new(&settings.http_token), users };
        let hosts = hosts::Hosts::new(&settings.http_hosts);
        let routes = routes::of_standby(Asker::Standby(vitals), hosts, proofs);
        let (close, closes) = oneshot::channel::<()>();
        let closes = async move {
            let _closed = closes.await;
        };
        let thread = listener::start(listener, settings, certificates, routes, closes);
        let thread = Some(thread.map_err(|error| error.to_string())?);
        Ok(Self { address, close: Some(close), thread })
    }
}

impl Drop for StandbyListener {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(thread) = self.thread.take() {
            // The port is free when it has ended, however it did.
            let _ended = thread.join();
        }
    }
}
