//! How a client comes to an owner: a connection there, and what is said on it first.

use super::driver::OwnerSeen;
use super::upstream::Upstream;
use crate::handover::greeting::{
    CLIENTS_MAX, NO_PROOF, NO_USER, NONCE_BYTES, NONCE_FOLLOWS, TAKEN, Tag, first_request, request,
};
use crate::resp::protected;
use crate::shards::links::Secret;
use crate::wire_protocol::WireProtocol;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};

/// No refusal of an owner is longer.
const REFUSAL_BYTES_MAX: u64 = 1024;

/// What an owner says of a client.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum OwnerAnswer {
    /// The client is its own from now on.
    Takes,
    /// It does not know the question: an older program, or a port for TLS.
    Unknown,
    /// It does not believe that it is asked as the owner, or has gone.
    Disbelieves,
    /// It does not take the client: the text of an error, its code first.
    Refuses(String),
}

/// What asking an owner has come to.
pub(super) enum Attempted {
    /// It has taken the client.
    Taken(Upstream),
    /// It does not take the client, who is to read this.
    Refused(Vec<u8>),
    /// It does not take it now, and may a moment later.
    RefusedNow(Vec<u8>),
}

/// Where an owner is, for a client; those of its addresses that are on this machine alone, where what the client says `stays_here`. `None`: there is nothing
/// of that name.
pub(super) async fn places(owner: &OwnerSeen, stays_here: bool) -> Option<Vec<SocketAddr>> {
    let found = lookup_host(owner.address.as_str()).await.ok()?;
    Some(found.filter(|address| !stays_here || is_here(address.ip())).collect())
}

/// Whether an address is one of this machine's. What is sent there does not leave it.
fn is_here(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent: the system says from where it would be, which is from the same address where that is its own.
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    address.is_loopback() || from().is_ok_and(|from| from.ip() == address)
}

/// Has an owner take the client of this state.
pub(super) async fn greet(
    stream: &mut TcpStream,
    secret: &Secret,
    owner: &OwnerSeen,
    tag: &Tag,
    state: &[u8],
) -> OwnerAnswer {
    // Who lets nobody in says so before it is asked, and what it has said can be read where it hears nothing any more.
    let _sent = stream.write_all(&first_request()).await;
    let mut nonce = [0; NONCE_BYTES];
    match answer(stream, NONCE_FOLLOWS).await {
        Ok(()) => {
            let mut end = [0; 2];
            let read = async {
                stream.read_exact(&mut nonce).await?;
                stream.read_exact(&mut end).await
            };
            if read.await.is_err() {
                return OwnerAnswer::Disbelieves;
            }
        }
        Err(Some(text)) if lets_nobody_in(&text) => return OwnerAnswer::Refuses(text),
        Err(Some(_)) => return OwnerAnswer::Unknown,
        Err(None) => return OwnerAnswer::Disbelieves,
    }
    let to = (owner.shard, owner.epoch.0);
    let _sent = stream.write_all(&request(secret, &nonce, to, tag, state)).await;
    match answer(stream, TAKEN).await {
        Ok(()) => OwnerAnswer::Takes,
        Err(Some(text)) if !text.is_empty() && !text.ends_with(NO_PROOF) => {
            OwnerAnswer::Refuses(text)
        }
        Err(_) => OwnerAnswer::Disbelieves,
    }
}

/// Reads what an answer begins with; otherwise the text of the error that comes instead, which is empty where it is no error. `None`: the connection has ended.
async fn answer(stream: &mut TcpStream, expected: &[u8; 5]) -> Result<(), Option<String>> {
    let mut told = [0; 5];
    let read = stream.read_exact(&mut told).await;
    if read.is_ok() && told == *expected {
        return Ok(());
    }
    if read.is_err() {
        return Err(None);
    }
    if told[0] != b'-' {
        return Err(Some(String::new()));
    }
    let mut line = told[1..].to_vec();
    // No more comes behind an error, or nobody reads it.
    while line.len() < REFUSAL_BYTES_MAX as usize && !line.contains(&b'\n') {
        match stream.read_buf(&mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    let text = String::from_utf8_lossy(&line);
    Err(Some(text.lines().next().unwrap_or_default().to_owned()))
}

fn lets_nobody_in(text: &str) -> bool {
    text.starts_with("DENIED ") || is_full(text)
}

fn is_full(text: &str) -> bool {
    text.strip_prefix("ERR ").is_some_and(|why| why.starts_with(CLIENTS_MAX))
}

/// Whether an owner that refuses a client with this text is not to be asked again. One whose session goes on waits until there is room for it.
pub(super) fn is_final(text: &str, is_new: bool) -> bool {
    text.ends_with(NO_USER) || (is_new && lets_nobody_in(text))
}

/// What a client reads whom an owner refuses with this text, in what it speaks.
pub(super) fn refusal(text: &str, speaks: WireProtocol) -> Vec<u8> {
    let (code, why) = text.split_once(' ').unwrap_or(("ERR", text));
    match (speaks, code) {
        (speaks, "DENIED") => protected(speaks).to_vec(),
        (speaks @ WireProtocol::Memcached, _) if is_full(text) => {
            speaks.too_many_clients().to_vec()
        }
        (WireProtocol::Resp, _) => format!("-{text}\r\n").into_bytes(),
        (WireProtocol::Memcached, "NOAUTH") => {
            format!("CLIENT_ERROR unauthenticated: {why}\r\n").into_bytes()
        }
        (WireProtocol::Memcached, _) => format!("SERVER_ERROR {why}\r\n").into_bytes(),
    }
}

/// Why nobody serves a client, in what it speaks.
pub(super) fn unserved(why: &str, speaks: WireProtocol) -> Vec<u8> {
    let code = match speaks {
        WireProtocol::Resp => "-CLUSTERDOWN",
        WireProtocol::Memcached => "SERVER_ERROR",
    };
    format!("{code} {why}\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_log::Epoch;
    use tokio::net::TcpListener;

    const SECRET: Secret = [7; 32];
    const TAG: Tag = [9; 16];

    /// What a client hears of an owner that gives these answers, one to each request.
    fn greeted(answers: &'static [&'static [u8]]) -> OwnerAnswer {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let owns = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                for answer in answers {
                    let mut request = [0; 1024];
                    let _asked = stream.read(&mut request).await.unwrap();
                    stream.write_all(answer).await.unwrap();
                }
            };
            let asks = async {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let owner = OwnerSeen { address: address.to_string(), shard: 0, epoch: Epoch(1) };
                greet(&mut stream, &SECRET, &owner, &TAG, b"state").await
            };
            tokio::join!(owns, asks).1
        })
    }

    #[test]
    fn what_an_owner_says_of_a_client_is_understood() {
        const NONCE: &[u8] = b"$32\r\n0123456789abcdef0123456789abcdef\r\n";
        use OwnerAnswer::{Disbelieves, Refuses, Takes, Unknown};
        let refuses = |text: &str| Refuses(String::from(text));
        for (answers, expected) in [
            (&[NONCE, b"+OK\r\n"][..], Takes),
            (
                &[NONCE, b"-ERR it is no proof for the owner of this shard in this epoch\r\n"],
                Disbelieves,
            ),
            (&[NONCE, b""], Disbelieves),
            (&[b"$32\r\n0123"], Disbelieves),
            (&[NONCE, b"-NOAUTH gone\r\n"], refuses("NOAUTH gone")),
            (&[NONCE, b"-ERR cut"], refuses("ERR cut")),
            (&[b"-ERR unknown command 'HEADWATER.FORWARD'\r\n"], Unknown),
            // One that knows no nonces.
            (&[b"-ERR it is no proof for the owner of this shard in this epoch\r\n"], Unknown),
            (&[b"\x15\x03\x03\x00\x02\x02\x32"], Unknown),
            // An owner that is about to end, or to begin anew, says nothing.
            (&[], Disbelieves),
            (&[b"-DENIED protected\r\n"], refuses("DENIED protected")),
            (
                &[b"-ERR max number of clients reached\r\n"],
                refuses("ERR max number of clients reached"),
            ),
        ] {
            assert_eq!(greeted(answers), expected, "{answers:?}");
        }
    }

    #[test]
    fn a_client_reads_why_an_owner_refuses_it_in_what_it_speaks() {
        use WireProtocol::{Memcached, Resp};
        let said = |text: &str, speaks| String::from_utf8(refusal(text, speaks)).unwrap();
        let gone = format!("NOAUTH {NO_USER}");
        assert_eq!(said(&gone, Resp), format!("-{gone}\r\n"));
        assert_eq!(said(&gone, Memcached), format!("CLIENT_ERROR unauthenticated: {NO_USER}\r\n"));
        let full = "ERR max number of clients reached";
        for speaks in [Resp, Memcached] {
            assert_eq!(said(full, speaks).as_bytes(), speaks.too_many_clients());
            assert_eq!(said("DENIED x", speaks).as_bytes(), protected(speaks));
        }
        assert_eq!(said("ERR the session", Memcached), "SERVER_ERROR the session\r\n");
        // One whose session goes on waits until there is room for it.
        assert!(is_final(full, true) && is_final("DENIED x", true) && !is_final(full, false));
        assert!(is_final(&gone, false) && !is_final("ERR the session cannot go on here", true));
    }

    #[test]
    fn addresses_of_this_machine_are_known_as_such() {
        assert!(is_here(Ipv4Addr::LOCALHOST.into()) && is_here(Ipv6Addr::LOCALHOST.into()));
        assert!(is_here(Ipv4Addr::new(127, 3, 2, 1).into()));
        assert!(is_here(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()));
        // Nobody has those of documentation.
        assert!(!is_here(Ipv4Addr::new(192, 0, 2, 1).into()));
        assert!(!is_here("2001:db8::1".parse().unwrap()));
        let from = || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect("192.0.2.1:9")?;
            socket.local_addr()
        };
        if let Ok(own) = from() {
            assert!(is_here(own.ip()), "{own}");
        }
    }
}
