//! The addresses of hosts, within the time that a post has.
//!
//! The system's lookup takes as long as it likes, so each runs on a thread of its own that can be left behind. ureq's own resolver
//! does the same for addresses too, and panics where the system gives no thread.

use std::io::Error as IoError;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Addresses of one host that are tried: as many as ureq takes.
const ADDRESSES_MAX: usize = 16;

/// Finds the addresses of a host, whichever they are.
#[derive(Debug)]
pub(crate) struct HostLookup;

impl Resolver for HostLookup {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let unknown = || ureq::Error::HostNotFound;
        let (host, port) = crate::place_of(&uri.to_string()).ok_or_else(unknown)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => look_up(host, port, timeout)?,
        };
        let mut addresses = self.empty();
        let family = config.ip_family();
        let wanted = family.keep_wanted(found.into_iter()).take(ADDRESSES_MAX);
        wanted.for_each(|address| addresses.push(address));
        if addresses.is_empty() { Err(unknown()) } else { Ok(addresses) }
    }
}

fn look_up(host: String, port: u16, timeout: NextTimeout) -> Result<Vec<SocketAddr>, ureq::Error> {
    let (sender, found) = sync_channel(1);
    let lookup = move || {
        let answer = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // Nobody waits for it any more.
        let _ = sender.send(answer);
    };
    std::thread::Builder::new().name(String::from("webhook-name")).spawn(lookup)?;
    match found.recv_timeout(*timeout.after) {
        Ok(answer) => Ok(answer?),
        Err(RecvTimeoutError::Timeout) => Err(ureq::Error::Timeout(timeout.reason)),
        Err(RecvTimeoutError::Disconnected) => {
            Err(IoError::other("the lookup of the name ended").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_they_are_and_names_looked_up() {
        let resolve = |url: &str| {
            let uri = url.parse().unwrap();
            let timeout = NextTimeout {
                after: std::time::Duration::from_secs(60).into(),
                reason: ureq::Timeout::Global,
                ..NextTimeout::default()
            };
            let found = HostLookup.resolve(&uri, &Config::default(), timeout);
            found.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(resolve("http://127.0.0.1/").unwrap(), ["127.0.0.1:80"]);
        assert_eq!(resolve("https://[::1]:7/").unwrap(), ["[::1]:7"]);
        let local = resolve("http://localhost:7/").unwrap();
        assert!(local.contains(&"127.0.0.1:7".to_owned()), "{local:?}");
        assert!(resolve("http://no-such-host.invalid/").is_err());
        assert!(resolve("ftp://127.0.0.1/").is_err());
    }
}
