//! Encrypted connections, as the service deals with them: certificates that are loaded anew, and the thread that shakes hands.

use super::Resp;
use crate::config::{Config, ConfigError};
use crate::log::event;
use crate::settings;
use crate::tls::{Arrivals, Certificates, Doorway};
use std::net::{SocketAddr, TcpListener};

/// What a shard has of encrypted connections.
#[derive(Debug)]
pub(super) struct Tls {
    certificates: Certificates,
    /// Who is through; at the first shard.
    pub(super) arrivals: Arrivals,
}

impl Tls {
    /// Loads certificates where TLS is spoken, if no shard before has done so.
    pub(super) fn begin(
        config: &Config,
        shared: Option<&Certificates>,
    ) -> Result<Self, ConfigError> {
        let certificates = shared.cloned().unwrap_or_default();
        if config.tls.is_on() && certificates.current().is_none() {
            certificates.load(&config.tls).map_err(ConfigError)?;
        }
        Ok(Self { certificates, arrivals: Arrivals::default() })
    }
}

impl Resp {
    /// Listens where TLS is spoken; the first shard takes who comes.
    pub(crate) fn open_doorway(&self) -> Result<Option<Doorway>, ConfigError> {
        let tls = &self.config.tls;
        if tls.tls_port.number().is_none() && tls.tls_memcached_port.number().is_none() {
            return Ok(None);
        }
        let (certificates, arrivals) = (self.tls.certificates.clone(), self.tls.arrivals.clone());
        Doorway::open(&self.config, certificates, arrivals, self.hub.inbox.bell()).map(Some)
    }

    /// Speaks HTTP over TLS where the settings say so.
    pub(crate) fn serve_https(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let Some(mut port) = self.config.tls.tls_http_port.number() else {
            return Ok(Vec::new());
        };
        let mut addresses = Vec::new();
        for &address in &self.config.listen.bind {
            let listener = TcpListener::bind((address, port)).map_err(|error| error.to_string());
            let certificates = Some(self.tls.certificates.clone());
            let served = listener.and_then(|it| {
                self.probes.serve(it, &self.config.http, certificates, self.hub.inbox.bell())
            });
            let served =
                served.map_err(|error| ConfigError(format!("tls-http-port {port}: {error}")))?;
            port = served.port();
            addresses.push(served);
        }
        Ok(addresses)
    }

    /// Loads the files anew where `CONFIG SET` has named one of them, even by the name that it had.
    pub(super) fn change_certificates(
        &self,
        config: &Config,
        pairs: &[(String, String)],
    ) -> Result<(), String> {
        let named = pairs.iter().filter_map(|(name, _)| settings::find(name));
        let any = named.into_iter().any(|setting| setting.name.starts_with("tls-"));
        if !any || !config.tls.is_on() {
            return Ok(());
        }
        let loaded = self.tls.certificates.load(&config.tls);
        loaded
            .map_err(|why| format!("CONFIG SET failed - Unable to update TLS configuration: {why}"))
    }

    /// Loads the files anew: SIGHUP. What cannot be read leaves what was there.
    pub(super) fn reload_certificates(&self) {
        if !self.config.tls.is_on() {
            return;
        }
        match self.tls.certificates.load(&self.config.tls) {
            Ok(()) => {
                event!(info, "server", "tls_reloaded", "SIGHUP: certificates were loaded anew")
            }
            Err(why) => {
                event!(
                    error,
                    "server",
                    "tls_reload_failed",
                    why,
                    "SIGHUP: the certificates that were there stay"
                );
            }
        }
    }
}
