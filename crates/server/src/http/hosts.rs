//! The names by which the HTTP port may be asked.
//!
//! A web page may have its own name point to 127.0.0.1 once it is loaded, and the browser then lets it read what this
//! port answers ("DNS rebinding"). Such requests carry the page's name in `Host`. So only those are
//! answered that carry an address, `localhost`, or a name from the settings.

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use std::net::IpAddr;

/// The word that lets every name through.
const ANY: &str = "*";

/// The names that are let through.
#[derive(Clone, Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// Addresses, `localhost`, and these; `*`: all.
    pub(super) fn new(names: &[String]) -> Self {
        Self(names.to_vec())
    }

    /// Whether a request may be answered. It names its host in its target, in the header, in both, or, before HTTP/1.1, nowhere.
    pub(super) fn admit(&self, target: &Uri, headers: &HeaderMap) -> bool {
        let in_target = target.authority().map(Authority::as_str);
        let in_headers = headers.get_all(header::HOST).iter();
        in_target.is_none_or(|text| self.knows(text))
            && in_headers
                .map(|value| value.to_str())
                .all(|text| text.is_ok_and(|it| self.knows(it)))
    }

    fn knows(&self, text: &str) -> bool {
        if self.0.iter().any(|name| name == ANY) {
            return true;
        }
        // A name with a user before it is nothing that a browser sends.
        let Ok(authority) = text.parse::<Authority>() else { return false };
        let host = authority.host();
        let address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        let host = host.strip_suffix('.').unwrap_or(host);
        !text.contains('@')
            && (address.parse::<IpAddr>().is_ok()
                || host.eq_ignore_ascii_case("localhost")
                || self.0.iter().any(|name| name.eq_ignore_ascii_case(host)))
    }
}

#[cfg(test)]
mod tests {
    use super::Hosts;
    use axum::http::{HeaderMap, HeaderValue, Uri, header};

    fn admits(hosts: &Hosts, target: &'static str, names: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        for name in names {
            headers.append(header::HOST, HeaderValue::from_static(name));
        }
        hosts.admit(&Uri::from_static(target), &headers)
    }

    #[test]
    fn names_of_others_are_refused() {
        let hosts = Hosts::new(&[String::from("cache.example")]);
        for good in [
            "127.0.0.1",
            "127.0.0.1:7380",
            "[::1]:7380",
            "[::1]",
            "10.1.2.3:1",
            "localhost",
            "LocalHost.:80",
            "cache.example:7380",
            "Cache.Example",
        ] {
            assert!(admits(&hosts, "/metrics", &[good]), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:7380",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.example@127.0.0.1",
            "x@localhost",
            "127.0.0.1 evil.example",
            "cache.example.evil",
            "\u{7f}",
        ] {
            let header = HeaderValue::from_bytes(bad.as_bytes());
            let Ok(header) = header else { continue };
            let headers = HeaderMap::from_iter([(header::HOST, header)]);
            assert!(!hosts.admit(&Uri::from_static("/"), &headers), "{bad}");
        }
        assert!(!admits(&hosts, "/", &["127.0.0.1", "evil.example"]), "the second one counts, too");
        assert!(!admits(&hosts, "http://evil.example/", &["127.0.0.1"]), "so does the target");
        assert!(admits(&hosts, "http://127.0.0.1:7380/", &[]));
        assert!(admits(&hosts, "/", &[]), "HTTP/1.0 has none");
        assert!(admits(&Hosts::new(&[String::from("*")]), "/", &["evil.example"]));
    }
}
