//! What a node that stands by says to an owner of its clients, who is let in there, and ports that stay open.

use crate::cluster::{Cluster, Links, NODES, Node, ask};
use crate::cluster_commands::status;
use crate::cluster_doors::settings;
use crate::cluster_planned::drain_owner;
use crate::http::get_at;
use crate::nats_servers::{SERVERS, free_ports};
use crate::support::{PATIENCE, Socket};
use crate::tls::{Authority, Dial, Encrypted, Identity, NEW};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const MEMCACHED: &str = "memcached's protocol over TLS on ";
const RESP: &str = "TLS on ";
const SHOP: &str = "[[user]]\nname = 'shop'\nrules = 'on >sold ~s* +@all'\n";

/// An authority, what it has issued, and a file with settings that name it.
struct Trust {
    authority: Authority,
    shop: Identity,
    words: &'static [&'static str],
    _folder: tempfile::TempDir,
}

impl Trust {
    fn new(tls: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let own = authority.issue("server");
        let shop = authority.issue_to("shop");
        let text = format!(
            "[listen]\nrequirepass = 'right'\n[tls]\n{tls}\n\
             tls-cert-file = '{}'\ntls-key-file = '{}'\ntls-ca-cert-file = '{}'\n\
             tls-auth-clients-user = 'CN'\n{more}\n\
             {SHOP}",
            own.certificate.display(),
            own.key.display(),
            authority.own.certificate.display()
        );
        let words = Vec::from(["--config", settings(folder.path(), &text)]);
        Self { authority, shop, words: words.leak(), _folder: folder }
    }

    /// A client over TLS, with the certificate that names the user.
    fn connect(&self, cluster: &Cluster, at: usize, what: &str) -> Encrypted {
        let address = cluster.nodes[at].as_ref().unwrap().address(what).parse().unwrap();
        let trusted = self.authority.own.certificate.clone();
        Dial { address, trusted, own: Some(self.shop.clone()), versions: NEW }.connect()
    }

    /// All that is answered to a client that ends then, or is ended.
    fn says(&self, cluster: &Cluster, at: usize, what: &str, sent: &str) -> String {
        let mut client = self.connect(cluster, at, what);
        // Who is refused may be told so before it has asked.
        let _sent = client.0.write_all(sent.as_bytes());
        let mut told = String::new();
        let _ended = client.0.read_to_string(&mut told);
        told
    }
}

/// Who listens between a node and others: what was sent on each connection to the node.
type Overheard = Arc<Mutex<Vec<Vec<u8>>>>;

/// A port that leads to another one; whoever has it hears what goes there.
fn overheard(to: u16, heard: &Overheard) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = heard.clone();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // A node that has ended refuses, which the client sees as an end.
            let Ok(node) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let at = {
                let mut heard = heard.lock().unwrap();
                heard.push(Vec::new());
                heard.len() - 1
            };
            let mut back = (node.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                let _ended = std::io::copy(&mut back.0, &mut back.1);
                let _told = back.1.shutdown(Shutdown::Write);
            });
            let (heard, mut client, mut node) = (heard.clone(), client, node);
            thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = client.read(&mut piece) {
                    heard.lock().unwrap()[at].extend_from_slice(&piece[..count]);
                    if node.write_all(&piece[..count]).is_err() {
                        break;
                    }
                }
                let _told = node.shutdown(Shutdown::Write);
            });
        }
    });
    port
}

#[test]
fn what_was_overheard_of_a_client_is_worth_nothing() {
    let trust = Trust::new("tls-port = 0\ntls-memcached-port = 0", "");
    let heard = Overheard::default();
    let cluster = Cluster::start_linked(trust.words, |nats, port| Links {
        nats: (0..SERVERS).map(|at| nats.port(at)).collect(),
        node: overheard(port, &heard),
        cut: Arc::default(),
    });
    let Some(cluster) = cluster else { return };
    let owner = cluster.owner();
    for at in (0..NODES).filter(|at| *at != owner) {
        let mut client = trust.connect(&cluster, at, RESP);
        assert_eq!(client.ask(&["SET", "s", "1"]).unwrap(), "+OK");
        let said = heard.lock().unwrap().iter().rev().find(|it| it.ends_with(b"1\r\n")).cloned();
        let said = said.expect("the request came this way");
        let cut = said.windows(3).rposition(|it| it == b"*3\r").unwrap();
        // All of it, and the same bytes when the owner has answered the first request, as who had passed the client on did.
        let first = b"*1\r\n$17\r\nHEADWATER.FORWARD\r\n";
        for waits in [false, true] {
            let mut again =
                Socket::new(TcpStream::connect(("127.0.0.1", cluster.ports[owner])).unwrap());
            let rest = said[..cut].strip_prefix(first).expect("it asks for a nonce first");
            if waits {
                again.send(first);
                again.until(b"\r\n");
                again.take(34);
                again.send(rest);
            } else {
                again.send(&said[..cut]);
            }
            again.send(b"SET s 2\r\nQUIT\r\n");
            let told = String::from_utf8_lossy(&again.rest()).into_owned();
            assert!(told.contains("-ERR it is no proof"), "{told:?}");
            assert!(told.contains("-NOAUTH"), "{told:?}");
        }
        let mut get = trust.connect(&cluster, at, RESP);
        assert_eq!(get.ask(&["INCRBY", "s", "0"]).unwrap(), ":1");
    }
}

#[test]
fn who_only_connects_over_tls_keeps_nobody_out_of_a_node_that_stands_by() {
    // More than are shaken hands with at once.
    const SILENT: u64 = 1100;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.current.unwrap_or(u64::MAX).max(SILENT + 1000);
    let wanted = wanted.min(limit.maximum.unwrap_or(u64::MAX));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).unwrap();
    if wanted < SILENT + 1000 {
        // Connections that cannot be opened keep nobody out.
        return;
    }
    let trust = Trust::new(
        "tls-port = 0\ntls-memcached-port = 0\ntls-handshake-milliseconds-max = 600000",
        "",
    );
    let Some(cluster) = Cluster::start_with(trust.words) else { return };
    let owner = cluster.owner();
    let at = (owner + 1) % NODES;
    let address = cluster.nodes[at].as_ref().unwrap().address(RESP);
    let silent: Vec<TcpStream> =
        (0..SILENT).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for what in [RESP, MEMCACHED] {
        let told = trust.says(&cluster, at, what, "get s\r\nquit\r\n");
        assert!(told.starts_with("$-1\r\n") || told.starts_with("END\r\n"), "{told:?}");
    }
    // The youngest of them may go on still, and the oldest not.
    let ended = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        !matches!(read, Err(why) if why.kind() == ErrorKind::WouldBlock)
    };
    assert!(ended(&silent[0]) && !ended(silent.last().unwrap()));
}

#[test]
fn who_has_a_certificate_reads_why_the_owner_refuses_it() {
    const CLIENTS: usize = 20;
    let ports = "tls-port = 0\ntls-memcached-port = 0\ntls-http-port = 0";
    let trust = Trust::new(ports, &format!("[clients]\nclients-max = {CLIENTS}\n"));
    let Some(cluster) = Cluster::start_with(trust.words) else { return };
    let owner = cluster.owner();
    let standbys: Vec<usize> = (0..NODES).filter(|at| *at != owner).collect();
    let get = "GET /v1/keys/s HTTP/1.0\r\n\r\n";
    // A user that is there no longer: the node that stands by may know so already, or not.
    for at in &standbys {
        assert_eq!(trust.connect(&cluster, *at, RESP).ask(&["SET", "s", "1"]).unwrap(), "+OK");
    }
    let mut admin = cluster.client(owner);
    ask(&mut admin, "AUTH right").unwrap();
    ask(&mut admin, "ACL SETUSER shop off").unwrap();
    for at in &standbys {
        let told = trust.connect(&cluster, *at, RESP).ask(&["GET", "s"]).unwrap();
        assert!(told.starts_with("-NOAUTH"), "{told}");
        let told = trust.says(&cluster, *at, MEMCACHED, "get s\r\nquit\r\n");
        assert!(told.starts_with("CLIENT_ERROR unauthenticated"), "{told}");
        let told = trust.says(&cluster, *at, "HTTPS on ", get);
        assert!(told.contains(" 401 "), "{told}");
    }
    ask(&mut admin, "ACL SETUSER shop on").unwrap();
    for at in &standbys {
        // It knows when its folder says so.
        let began = Instant::now();
        while trust.connect(&cluster, *at, RESP).ask(&["GET", "s"]).unwrap() != "$1" {
            assert!(began.elapsed() < PATIENCE, "the user is not known");
            sleep(Duration::from_millis(50));
        }
    }

    // An owner that has as many clients as it may.
    let mut full = Vec::new();
    let mut fill = || loop {
        let mut client =
            Socket::new(TcpStream::connect(("127.0.0.1", cluster.ports[owner])).unwrap());
        let _sent = client.try_send(b"PING\r\n");
        if client.until(b"\r\n").starts_with(b"-ERR max number of clients") {
            return;
        }
        full.push(client);
    };
    for at in &standbys {
        for (what, sent, begins, has) in [
            (RESP, "GET s\r\nQUIT\r\n", "-ERR max number of clients", ""),
            (MEMCACHED, "get s\r\nquit\r\n", "ERROR Too many open connections", ""),
            ("HTTPS on ", get, "HTTP/1.", "max number of clients"),
        ] {
            let began = Instant::now();
            loop {
                fill();
                let told = trust.says(&cluster, *at, what, sent);
                if told.starts_with(begins) && told.contains(has) {
                    break;
                }
                // One of before may have gone a moment ago.
                assert!(!told.contains("CLUSTERDOWN") && !told.contains("no owner"), "{told}");
                assert!(began.elapsed() < PATIENCE, "{told}");
            }
        }
    }
}

/// Connects to ports all the time, and counts how often it is refused.
struct Knocking {
    ends: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<(u64, u64)>>,
}

impl Knocking {
    fn start(ports: &[u16]) -> Self {
        let ends = Arc::<AtomicBool>::default();
        let knock = |port: u16, ends: Arc<AtomicBool>| {
            let (mut let_in, mut refused) = (0, 0);
            while !ends.load(Ordering::Relaxed) {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(_) => let_in += 1,
                    Err(why) => refused += u64::from(why.kind() == ErrorKind::ConnectionRefused),
                }
                sleep(Duration::from_millis(3));
            }
            (let_in, refused)
        };
        let start = |port: &u16| {
            let (port, ends) = (*port, ends.clone());
            thread::spawn(move || knock(port, ends))
        };
        let threads = ports.iter().map(start).collect();
        Self { ends, threads }
    }

    /// How often each port has let it in, and refused it.
    fn end(self) -> Vec<(u64, u64)> {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|it| it.join().unwrap()).collect()
    }
}

#[test]
fn every_port_stays_open_where_a_node_comes_to_own_its_shard_and_to_stand_by_again() {
    let ports = free_ports(5);
    let [memcached, http, tls, memcached_tls, https] = ports[..] else { panic!("five ports") };
    let trust = Trust::new(
        &format!("tls-port = {tls}\ntls-memcached-port = {memcached_tls}\ntls-http-port = {https}"),
        "",
    );
    let folder = tempfile::tempdir().unwrap();
    let others = settings(folder.path(), &format!("[listen]\nrequirepass = 'right'\n{SHOP}"));
    let words = Vec::from(["--cluster-snapshot-bytes", "0", "--config", others]);
    let Some(mut cluster) = Cluster::start_with(words.leak()) else { return };
    let owner = cluster.owner();
    let (at, third) = ((owner + 1) % NODES, (owner + 2) % NODES);
    cluster.end(third, Signal::TERM);
    cluster.end(at, Signal::TERM);
    cluster.arguments = &["--cluster-snapshot-bytes", "0"];
    let mut command = cluster.command(at);
    command.args(trust.words).args(["--http-port", &http.to_string()]);
    command.args(["--memcached-port", &memcached.to_string()]);
    cluster.nodes[at] = Some(Node::start(command));
    let both_heard = |found: &serde_json::Value, _| {
        let nodes = found["nodes"].as_array().into_iter().flatten();
        nodes.filter(|node| node["heard"] == true).count() == 2
    };
    status(&cluster, "both are there", both_heard);

    let knocking = Knocking::start(&ports);
    assert_eq!(drain_owner(&cluster), at);
    let key = |code: &str| {
        let line = "GET /v1/user HTTP/1.0\r\nAuthorization: Basic ZGVmYXVsdDpyaWdodA==\r\nX-Asked:";
        let told = get_at(&format!("127.0.0.1:{http}"), line).unwrap_or_default();
        told.contains(code)
    };
    assert!(key(" 200 "), "the owner answers");
    assert_eq!(drain_owner(&cluster), owner);
    // It has begun anew when it answers with what another one is asked for.
    let began = Instant::now();
    while cluster.nodes[at].as_ref().unwrap().owns() || !key(" 200 ") {
        assert!(began.elapsed() < PATIENCE, "it does not stand by");
        sleep(Duration::from_millis(20));
    }
    for (port, (let_in, refused)) in ports.iter().zip(knocking.end()) {
        assert!(let_in > 0 && refused == 0, "{port}: let in {let_in} times, refused {refused}");
    }
    assert_eq!(trust.connect(&cluster, at, RESP).ask(&["GET", "s"]).unwrap(), "$-1");
}
