//! The HTTP port of a node of a cluster that stands by: signs of its own life, and figures of what it follows; all else an owner answers.
//!
//! It takes the same tokens, names and certificates as that of a server, which goes on with its socket.

use super::api::Api;
use super::inner::InnerConnector;
use super::token::{Proofs, Token};
use super::{Asker, ForwardedClients, Vitals, hosts, listener, routes};
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
    listener: TcpListener,
    close: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StandbyListener {
    /// Answers HTTP on `listener`, over TLS with `certificates`; what an owner is to answer goes through `door`.
    ///
    /// # Errors
    /// The thread cannot be started, or the listener cannot be used.
    pub(crate) fn open(
        listener: TcpListener,
        settings: &Http,
        (certificates, users): (Option<Certificates>, Arc<UserRegistry>),
        (vitals, door): (StandbyVitals, ForwardedClients),
    ) -> Result<Self, String> {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let again = listener.try_clone().map_err(|error| error.to_string())?;
        let is_encrypted = certificates.is_some();
        let connector = InnerConnector::PassedOn(door, users.clone(), is_encrypted);
        let api = Api::new(settings, connector);
        let proofs = Proofs { token: Token::new(&settings.http_token), users };
        let hosts = hosts::Hosts::new(&settings.http_hosts);
        let routes = routes::all(Asker::Standby(vitals), api, hosts, proofs);
        let (close, closes) = oneshot::channel::<()>();
        let closes = async move { closes.await.is_ok() };
        let thread = listener::start(again, settings, certificates, routes, closes);
        let thread = Some(thread.map_err(|error| error.to_string())?);
        Ok(Self { address, listener, close: Some(close), thread })
    }

    /// Its socket, for a server that listens there from now on. Answers that are under way come to their end; then their connections are closed.
    pub(crate) fn let_go(mut self) -> std::io::Result<TcpListener> {
        let _told = self.close.take().map(|close| close.send(()));
        // The thread ends with its connections, or with the process.
        drop(self.thread.take());
        self.listener.try_clone()
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
