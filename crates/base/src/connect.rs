//! Where the server connects to at the word of others: rules that say which places these may name.
//!
//! A rule is `host:port`. The host is a name, `*.` and the end of names, an address, a network (`10.0.0.0/8`), the folder of a
//! socket, or `*`; the port is a number or `*`. A place is looked at twice: as it was named, and by the address
//! that is connected to. Addresses of the machine itself, of its link and of what a cloud tells its machines are admitted only by a rule
//! that names them: a name that belongs to somebody else may lead there.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The rules, of which one must fit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allowed(Vec<Rule>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    host: Host,
    /// `None`: any.
    port: Option<u16>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Host {
    Any,
    Name(String),
    /// Names that end in a dot and this.
    Below(String),
    /// The addresses whose first bits are these.
    Net(IpAddr, u8),
    /// A folder with a socket.
    Folder(String),
}

impl Allowed {
    /// Reads rules.
    ///
    /// # Errors
    /// A sentence that names what is none.
    pub fn parse<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        rules.into_iter().map(Rule::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a place may be named: whatever it may turn out to be, somebody who is trusted has named it.
    #[must_use]
    pub fn names(&self, host: &str, port: u16) -> bool {
        match address_of(host) {
            Some(address) => self.admits(host, address, port),
            None => self.0.iter().any(|rule| rule.has(port) && rule.is_for(host)),
        }
    }

    /// Whether a place that was named so may be connected to at this address.
    #[must_use]
    pub fn admits(&self, host: &str, address: IpAddr, port: u16) -> bool {
        let address = plain(address);
        let mut rules = self.0.iter().filter(|rule| rule.has(port));
        if rules.clone().any(|rule| rule.contains(address)) {
            return true;
        }
        if is_special(address) {
            // This name means nothing else.
            return address.is_loopback()
                && rules.any(|rule| rule.host == Host::Name("localhost".to_owned()))
                && normal(host) == "localhost";
        }
        match address_of(host) {
            Some(_) => rules.any(|rule| rule.host == Host::Any),
            None => rules.any(|rule| rule.is_for(host)),
        }
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no place (allowed: host:port, with a name, *.name, an address, a network such as 10.0.0.0/8, a \
                 socket's folder, or * before the colon, and a number or * behind it)"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = match port {
            "*" => None,
            number => Some(number.parse().map_err(|_| wrong())?),
        };
        let host = Host::parse(host).ok_or_else(wrong)?;
        Ok(Self { host, port })
    }

    fn has(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    /// Whether it is for a host of this name, which is no address.
    fn is_for(&self, host: &str) -> bool {
        let name = normal(host);
        match &self.host {
            Host::Any => !name.starts_with('/'),
            Host::Name(own) => *own == name,
            Host::Below(end) => name
                .strip_suffix(end.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            Host::Net(..) => false,
            Host::Folder(own) => own == host,
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let Host::Net(net, bits) = self.host else { return false };
        let same = |a: u128, b: u128, width: u32| {
            let rest = width - u32::from(bits);
            a.checked_shr(rest).unwrap_or(0) == b.checked_shr(rest).unwrap_or(0)
        };
        match (net, address) {
            (IpAddr::V4(net), IpAddr::V4(it)) => {
                same(u32::from(net).into(), u32::from(it).into(), 32)
            }
            (IpAddr::V6(net), IpAddr::V6(it)) => same(net.into(), it.into(), 128),
            _ => false,
        }
    }
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        if text.starts_with('/') {
            return Some(Self::Folder(text.to_owned()));
        }
        if let Some((net, bits)) = text.split_once('/') {
            let (net, bits) = (address_of(net)?, bits.parse().ok()?);
            let most = if net.is_ipv4() { 32 } else { 128 };
            return (bits <= most).then_some(Self::Net(net, bits));
        }
        if let Some(address) = address_of(text) {
            return Some(Self::Net(address, if address.is_ipv4() { 32 } else { 128 }));
        }
        let (name, below) = match text.strip_prefix("*.") {
            Some(name) => (normal(name), true),
            None => (normal(text), false),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || !name.bytes().all(plain) {
            return None;
        }
        Some(if below { Self::Below(name) } else { Self::Name(name) })
    }
}

/// A name in the form in which names are compared.
fn normal(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// The address that a host is written as, with or without brackets.
fn address_of(host: &str) -> Option<IpAddr> {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    inner.parse().ok().map(plain)
}

/// An address of the old family where it is written as, or translated to, one of the new.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(new) = address else { return address };
    let [a, b, c, d, e, f, high, low] = new.segments();
    let translated = [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0];
    // `::1` and `::` are of the new one.
    let compatible = [a, b, c, d, e, f] == [0; 6] && high > 0;
    let old = match new.to_ipv4_mapped() {
        Some(old) => Some(old),
        None if translated || compatible => {
            Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
        }
        None => None,
    };
    old.map_or(address, IpAddr::V4)
}

/// Whether an address is of the machine itself, of its link, of many at once, or of what tells machines of a cloud who they are.
fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(old) => {
            let [first, second, third, _] = old.octets();
            old.is_loopback()
                || first == 0
                || first >= 224
                || old.is_link_local()
                || [first, second, third] == [192, 0, 0]
                || old == Ipv4Addr::new(100, 100, 100, 200)
                || old == Ipv4Addr::new(168, 63, 129, 16)
        }
        IpAddr::V6(new) => {
            let first = new.segments()[0];
            new.is_loopback()
                || new == Ipv6Addr::UNSPECIFIED
                || first & 0xffc0 == 0xfe80
                || first & 0xff00 == 0xff00
                || new.segments()[..2] == [0xfd00, 0xec2]
                || new.segments()[..2] == [0xfd20, 0xce]
        }
    }
}

/// A place as a rule names it.
#[must_use]
pub fn shown_place(host: &str, port: u16) -> String {
    let bare = host.contains(':') && !host.starts_with('[');
    if bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Checks a URL that changes are to be posted to.
///
/// # Errors
/// A sentence that says what is wrong, and shows nothing of the URL: it may have a password.
pub fn check_http_url(url: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("the URL to post to {why}"));
    let Some((_, rest)) = url.split_once("://").filter(|(it, _)| ["http", "https"].contains(it))
    else {
        return wrong("begins with http:// or https://");
    };
    if url.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return wrong("can have no space or line in it: write %20 for a space");
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let place = rest[..end].rsplit('@').next().unwrap_or_default();
    let (host, port) = match place.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((address, port)) => (address, port),
            None => return wrong("has an address whose bracket is not closed"),
        },
        None => place.split_at(place.find(':').unwrap_or(place.len())),
    };
    if host.is_empty() {
        return wrong("names no host");
    }
    let port = port.strip_prefix(':').or(port.is_empty().then_some("0"));
    if port.is_none_or(|port| port.parse::<u16>().is_err()) {
        return wrong("has a port that is no number from 0 to 65535");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Allowed, check_http_url, shown_place};

    #[test]
    fn urls_that_lead_nowhere_are_told_apart_without_what_they_hide() {
        for good in ["http://a", "https://u:p@a:7/b@c?d#e", "http://[::1]:80/", "http://\u{e9}/"] {
            check_http_url(good).unwrap();
        }
        for (bad, told) in [
            ("ftp://u:hunter2@a", "begins with http://"),
            ("u:hunter2@a:443", "begins with http://"),
            ("HTTP://a", "begins with http://"),
            ("http://u:hunt er2@a/", "no space"),
            ("http://u:hunter2\n@a/", "no space"),
            ("http://", "names no host"),
            ("http://u:hunter2@", "names no host"),
            ("http://u:hunter2@:80/", "names no host"),
            ("http:///path", "names no host"),
            ("http://[::1", "not closed"),
            ("http://a:99999/", "no number from 0"),
            ("http://a:/", "no number from 0"),
            ("http://[::1]x/", "no number from 0"),
        ] {
            let error = check_http_url(bad).unwrap_err();
            assert!(error.contains(told) && !error.contains("hunt"), "{bad}: {error}");
        }
        assert_eq!(shown_place("::1", 7), "[::1]:7");
        assert_eq!(shown_place("[::1]", 7), "[::1]:7");
        assert_eq!(shown_place("a", 7), "a:7");
    }

    fn allowed(rules: &[&str]) -> Allowed {
        Allowed::parse(rules.iter().copied()).unwrap()
    }

    fn admits(rules: &[&str], host: &str, address: &str, port: u16) -> bool {
        allowed(rules).admits(host, address.parse().unwrap(), port)
    }

    #[test]
    fn places_are_named_by_rules() {
        let rules = allowed(&["db:5432", "*.internal:443", "10.0.0.0/8:*", "/run/pg:5432"]);
        for (host, port) in [
            ("db", 5432),
            ("DB.", 5432),
            ("a.b.internal", 443),
            ("10.200.0.1", 7),
            ("/run/pg", 5432),
            ("::ffff:10.0.0.1", 7),
        ] {
            assert!(rules.names(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("db", 5433),
            ("xdb", 5432),
            ("internal", 443),
            (".internal", 443),
            ("evilinternal", 443),
            ("internal.evil", 443),
            ("11.0.0.1", 7),
            ("/run/pg2", 5432),
            ("/run", 5432),
            ("localhost", 5432),
            ("", 443),
        ] {
            assert!(!rules.names(host, port), "{host}:{port}");
        }
        assert!(!Allowed::default().names("db", 5432));
        assert!(!allowed(&["*:*"]).names("/run/pg", 5432), "a socket is a file");
    }

    #[test]
    fn what_a_name_leads_to_is_looked_at() {
        let special = [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
        ];
        for address in special {
            for rules in [&["*:*"][..], &["*.internal:*"], &["a.internal:80", "localhost:80"]] {
                assert!(!admits(rules, "a.internal", address, 80), "{rules:?} {address}");
                assert!(!allowed(rules).names(address, 80), "{rules:?} {address}");
            }
        }
        for (rules, host, address) in [
            (&["*:*"][..], "a.internal", "10.1.2.3"),
            (&["*:*"], "10.1.2.3", "10.1.2.3"),
            (&["a.internal:80"], "a.internal", "2001:db8::1"),
            (&["127.0.0.0/8:80"], "a", "127.0.0.1"),
            (&["localhost:80"], "localhost", "127.0.0.1"),
            (&["localhost:80"], "LOCALHOST.", "::1"),
            (&["[::1]:80"], "a", "::1"),
            (&["169.254.169.254:80"], "169.254.169.254", "169.254.169.254"),
        ] {
            assert!(admits(rules, host, address, 80), "{rules:?} {host} {address}");
            assert!(!admits(rules, host, address, 81) || rules == ["*:*"], "{rules:?}");
        }
        assert!(!admits(&["localhost:80"], "localhost", "169.254.0.1", 80));
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for wrong in
            ["", "db", "db:", "db:x", ":80", "10.0.0.0/33:1", "x/8:1", "a b:1", "*.:1", "a:65536"]
        {
            let error = Allowed::parse([wrong]).unwrap_err();
            assert!(error.contains(&alloc::format!("'{wrong}'")), "{error}");
        }
    }
}
