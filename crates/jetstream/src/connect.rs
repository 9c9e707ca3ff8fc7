//! A connection to the servers of a cluster, as its settings say, and whether what has failed would fail again.

use crate::commands::ANSWER_TIMEOUT;
use crate::settings::{JetStreamError, JetStreamSettings};
use crate::waiting::Failure;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// A server that has not answered three of these is left for another one.
const PING: Duration = Duration::from_secs(1);
/// How long it takes at most from one attempt to connect to the next, and by how much each is longer than the one before.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(1);
const RECONNECT_STEP: Duration = Duration::from_millis(50);

/// What a connection is called that appends alone go through, where NATS shows it.
const APPENDS: &str = "headwater-appends";

pub(crate) fn refuse<T>(what: &str, why: impl fmt::Display) -> Result<T, JetStreamError> {
    Err(JetStreamError(format!("{what}: {why}")))
}

pub(crate) fn refused<T>(what: &str, why: impl fmt::Display) -> Result<T, Failure> {
    refuse(what, why).map_err(Failure::Refused)
}

pub(crate) fn not_yet<T>(what: &str, why: impl fmt::Display) -> Result<T, Failure> {
    refuse(what, why).map_err(Failure::NotYet)
}

/// An error and what has led to it.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The servers that the settings name.
pub(crate) fn servers_of(settings: &JetStreamSettings) -> Result<Vec<ServerAddr>, Failure> {
    let servers = settings.servers.split(',').map(|one| one.trim().parse());
    servers.collect::<Result<_, _>>().or_else(|why| refused("the URLs of the NATS servers", why))
}

/// Connects to one of the servers, and to another one where that is lost.
pub(crate) async fn connect(settings: &JetStreamSettings) -> Result<Client, Failure> {
    connect_to_one_of(servers_of(settings)?, options_of(settings).await?).await
}

/// Connects to the server that is named in this place, and to no other one. Where the connection is lost and not to be had again at once, it ends, so that what was sent
/// counts as lost: nothing waits to be sent later, and nobody tries for ever.
pub(crate) async fn connect_to(settings: &JetStreamSettings, at: usize) -> Result<Client, Failure> {
    let server = servers_of(settings)?.swap_remove(at);
    let options =
        options_of(settings).await?.name(APPENDS).max_reconnects(1).ignore_discovered_servers();
    connect_to_one_of(vec![server], options).await
}

/// What all connections have in common.
async fn options_of(settings: &JetStreamSettings) -> Result<ConnectOptions, Failure> {
    let mut options = ConnectOptions::new()
        .name("headwater")
        .require_tls(settings.tls_required)
        .ping_interval(PING)
        .reconnect_delay_callback(|attempts| {
            RECONNECT_DELAY_MAX.min(RECONNECT_STEP * attempts as u32)
        });
    if let Some(path) = &settings.credentials {
        let with = options.credentials_file(path).await;
        options = with.or_else(|why| refused(&path.display().to_string(), why))?;
    }
    if let Some(path) = &settings.tls_ca {
        options = options.add_root_certificates(path.clone());
    }
    if let Some((certificate, key)) = &settings.tls_identity {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    if let Some(server) = servers_of(settings)?.iter().find(|server| server.has_user_pass()) {
        let user = percent_decoded(server.username().unwrap_or_default());
        options = match server.password() {
            Some(password) => options.user_and_password(user, percent_decoded(password)),
            // What stands alone before the host is a token.
            None => options.token(user),
        };
    }
    Ok(options)
}

async fn connect_to_one_of(
    servers: Vec<ServerAddr>,
    options: ConnectOptions,
) -> Result<Client, Failure> {
    options.connect(servers).await.or_else(|why| {
        use ConnectErrorKind::{Authentication, AuthorizationViolation, ServerParse, Tls};
        let last =
            matches!(why.kind(), Authentication | AuthorizationViolation | ServerParse | Tls);
        // With TLS 1.3 a certificate is refused behind the handshake, when something is read.
        let of_tls = |cause: &(dyn Error + 'static)| {
            let inner = cause.downcast_ref::<std::io::Error>().and_then(|why| why.get_ref());
            inner.is_some_and(|why| why.is::<rustls::Error>())
        };
        let last = last || causes(&why).any(of_tls);
        let what = "NATS cannot be reached";
        if last { refused(what, why) } else { not_yet(what, why) }
    })
}

/// What requests to JetStream go through.
pub(crate) fn context_of(client: Client) -> Context {
    ContextBuilder::new()
        .timeout(ANSWER_TIMEOUT)
        .ack_timeout(ANSWER_TIMEOUT)
        .max_ack_inflight(1 << 20)
        .build(client)
}

/// What a part of a URL stands for: `%40` is `@`.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| first == b'%');
        let number = digits.and_then(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok());
        bytes.push(number.unwrap_or(first));
        rest = if number.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::percent_decoded;

    #[test]
    fn parts_of_urls_are_decoded() {
        for (text, is) in [("a%40b", "a@b"), ("%", "%"), ("%4", "%4"), ("100%zz", "100%zz")] {
            assert_eq!(percent_decoded(text), is);
        }
    }
}
