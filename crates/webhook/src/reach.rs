//! Where posts go that clients have asked for: to addresses that rules admit, decided on the address that is then connected to.

use crate::lookup::HostLookup;
use headwater_base::connect::Allowed;
use std::io::{Error as IoError, ErrorKind};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Host and port of a URL of http or https, as a post to it takes them.
#[must_use]
pub fn place_of(url: &str) -> Option<(String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let usual = match uri.scheme_str()? {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    Some((uri.host()?.to_owned(), uri.port_u16().unwrap_or(usual)))
}

/// Finds the addresses of hosts, and leaves out what rules do not admit.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) allowed: Allowed,
}

impl Resolver for Reach {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let refused = || {
            let text = "connect-allow admits none of its addresses";
            ureq::Error::Io(IoError::new(ErrorKind::PermissionDenied, text))
        };
        let (host, port) = place_of(&uri.to_string()).ok_or_else(refused)?;
        if !self.allowed.names(&host, port) {
            return Err(refused());
        }
        let mut admitted = self.empty();
        for address in HostLookup.resolve(uri, config, timeout)?.iter() {
            if self.allowed.admits(&host, address.ip(), address.port()) {
                admitted.push(*address);
            }
        }
        if admitted.is_empty() { Err(refused()) } else { Ok(admitted) }
    }
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn places() {
        let place = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(place_of("http://a/b"), place("a", 80));
        assert_eq!(place_of("https://u:p@a:7/b@c"), place("a", 7));
        assert_eq!(place_of("https://[::1]/"), place("[::1]", 443));
        assert_eq!(place_of("http://a\\@b/"), None);
        assert_eq!(place_of("ftp://a/"), None);
    }
}
