//! memcached's protocol and HTTP at every node: one that stands by has an owner answer.

use crate::cluster::{ALL, Cluster, NODES, ask, text, while_nodes_keep_leases};
use crate::cluster_commands::{all_heard, status};
use crate::cluster_planned::drain_owner;
use crate::doors::own_address;
use crate::http::get_at;
use crate::support::{PATIENCE, Socket};
use crate::tls::{Authority, Dial, Identity, NEW};
use rustix::process::Signal;
use std::fs;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

const MEMCACHED: &str = "memcached's protocol on ";
const PORTS: &[&str] = &["--memcached-port", "0", "--http-port", "0"];

impl Cluster {
    /// A client of memcached's protocol.
    fn memcached(&self, at: usize) -> Socket {
        let node = self.nodes[at].as_ref().expect("it runs");
        Socket::new(TcpStream::connect(node.address(MEMCACHED)).unwrap())
    }

    /// What a node answers to a request of HTTP with a body.
    fn http(&self, at: usize, line: &str, body: &str) -> String {
        let node = self.nodes[at].as_ref().expect("it runs");
        let mut client = Socket::new(TcpStream::connect(node.address("HTTP on ")).unwrap());
        let length = body.len();
        client
            .send(format!("{line} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes());
        String::from_utf8_lossy(&client.rest()).into_owned()
    }

    fn http_is(&self, at: usize, line: &str, body: &str, (code, end): (u16, &str)) {
        let answer = self.http(at, line, body);
        let is_so = answer.contains(&format!(" {code} ")) && answer.contains(end);
        assert!(is_so, "{line} at {at}: {answer}");
    }

    fn standbys(&self) -> Vec<usize> {
        let owner = self.owner();
        (0..NODES).filter(|at| *at != owner).collect()
    }
}

/// Tries until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// The version behind `gets` of a key.
fn version(client: &mut Socket, key: &str) -> String {
    client.send(format!("gets {key}\r\n").as_bytes());
    let told = String::from_utf8(client.until(b"END\r\n")).unwrap();
    told.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn memcached_is_spoken_at_every_node() {
    let Some(mut cluster) = Cluster::start_with(PORTS) else { return };
    let owner = cluster.owner();
    for at in 0..NODES {
        let mut client = cluster.memcached(at);
        let (m, n) = (format!("m|{at}"), format!("n|{at}"));
        client.send(
            format!(
                "set {m} 5 0 3\r\nabc\r\nget {m}\r\nappend {m} 0 0 2\r\nde\r\nset {n} 0 0 1\r\n7\r\n\
                 incr {n} 5\r\nget {m} none {n}\r\nadd {m} 0 0 1\r\nx\r\ndelete {n}\r\nget {n}\r\nmn\r\nnonsense\r\n"
            )
            .as_bytes(),
        );
        client.expect(
            format!(
                "STORED\r\nVALUE {m} 5 3\r\nabc\r\nEND\r\nSTORED\r\nSTORED\r\n\
                 12\r\nVALUE {m} 5 5\r\nabcde\r\nVALUE {n} 0 2\r\n12\r\nEND\r\nNOT_STORED\r\nDELETED\r\nEND\r\nMN\r\nERROR\r\n"
            )
            .as_bytes(),
        );
        let before = version(&mut client, &m);
        client.send(
            format!("cas {m} 0 0 1 {before}\r\nA\r\ncas {m} 0 0 1 {before}\r\nB\r\n").as_bytes(),
        );
        client.expect(b"STORED\r\nEXISTS\r\n");
        // One that comes in many parts, both ways.
        let long = "x".repeat(700_000);
        client.send(format!("set long 0 0 {}\r\n{long}\r\nget long\r\n", long.len()).as_bytes());
        client.expect(b"STORED\r\nVALUE long 0 700000\r\n");
        client.expect(format!("{long}\r\nEND\r\n").as_bytes());
        // The owner knows where the client is.
        let own = client.stream().local_addr().unwrap();
        let clients = text(&ask(&mut cluster.client(owner), "CLIENT LIST").unwrap());
        assert!(clients.contains(&format!("addr={own} ")), "{own} is not in {clients}");
        client.send(b"quit\r\n");
        client.expect_end(b"");
    }

    // Who is forwarded to an owner that is killed is told no more, and the next one answers.
    let at = cluster.standbys()[0];
    let mut client = cluster.memcached(at);
    client.send(b"set kept 0 0 2\r\nok\r\n");
    client.expect(b"STORED\r\n");
    let key_version = version(&mut client, "kept");
    cluster.end(owner, Signal::KILL);
    client.expect_end(b"");
    let read = |cluster: &Cluster, at: usize| {
        let mut client = cluster.memcached(at);
        client.send(b"get kept\r\n");
        client.until(b"\r\n") == b"VALUE kept 0 2\r\n"
    };
    for at in (0..NODES).filter(|at| *at != owner) {
        until("nobody answers again", || read(&cluster, at));
    }
    cluster.owner_after(owner);
    for at in (0..NODES).filter(|at| *at != owner) {
        let mut client = cluster.memcached(at);
        // A version of the owner before is none of this one's.
        client.send(format!("cas kept 0 0 1 {key_version}\r\nx\r\n").as_bytes());
        client.expect(b"EXISTS\r\n");
        client.send(b"prepend kept 0 0 1\r\n.\r\n");
        client.expect(b"STORED\r\n");
    }

    // Without the log nobody owns anything.
    (0..ALL.len()).for_each(|server| cluster.nats.kill(server));
    for at in (0..NODES).filter(|at| *at != owner) {
        until("somebody answers", || {
            let mut client = cluster.memcached(at);
            let _sent = client.try_send(b"get kept\r\nquit\r\n");
            client.rest().starts_with(b"SERVER_ERROR ")
        });
        until("somebody answers", || {
            let answer = cluster.http(at, "GET /v1/keys/kept", "");
            answer.contains(" 503 ") && answer.contains("CLUSTERDOWN")
        });
    }
}

#[test]
fn connections_in_memcacheds_protocol_go_on_while_the_shard_moves() {
    while_nodes_keep_leases(
        &["--memcached-port", "0", "--cluster-snapshot-bytes", "0"],
        move_while_memcached_is_spoken,
    );
}

fn move_while_memcached_is_spoken(cluster: &mut Cluster) {
    status(cluster, "all is well", |status, is_well| is_well && all_heard(status));
    let mut clients: Vec<_> = (0..NODES).map(|at| cluster.memcached(at)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(format!("set c|{at} 0 0 1\r\n0\r\n").as_bytes());
        client.expect(b"STORED\r\n");
    }
    for round in 1..=3 {
        for (at, client) in clients.iter_mut().enumerate() {
            // The other half of the last request comes when the shard has moved.
            client.send(format!("incr c|{at} 1\r\nset h|{at} 0 0 6\r\nab").as_bytes());
            client.expect(format!("{}\r\n", 2 * round - 1).as_bytes());
        }
        drain_owner(cluster);
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(format!("cdef\r\nincr c|{at} 1\r\nget h|{at}\r\n").as_bytes());
            let told = format!("STORED\r\n{}\r\nVALUE h|{at} 0 6\r\nabcdef\r\nEND\r\n", 2 * round);
            client.expect(told.as_bytes());
        }
    }
}

#[test]
fn http_is_answered_at_every_node() {
    let Some(mut cluster) = Cluster::start_with(PORTS) else { return };
    let owner = cluster.owner();
    for at in 0..NODES {
        let key = format!("/v1/keys/h%7C{at}");
        cluster.http_is(at, &format!("PUT {key}"), "hello", (204, ""));
        cluster.http_is(at, &format!("GET {key}"), "", (200, "\r\n\r\nhello"));
        cluster.http_is(at, "GET /v1/range?prefix=h%7C", "", (200, &format!("\"h|{at}\"")));
        cluster.http_is(at, "GET /v1/user", "", (200, "default"));
        cluster.http_is(at, "GET /v1/info?section=cluster", "", (200, "\"cluster_enabled\""));
        cluster.http_is(at, "GET /v1/nothing", "", (404, "openapi"));
        cluster.http_is(at, "GET /nothing", "", (404, "/metrics"));
        cluster.http_is(at, "GET /", "", (200, "<html"));
        // What is of the process stays its own.
        let figures = cluster.http(at, "GET /metrics", "");
        let owns = format!("headwater_cluster_owner{{shard=\"0\"}} {}.0", u8::from(at == owner));
        assert!(figures.contains(&owns), "{figures}");
        assert_eq!(figures.contains("\nheadwater_keys "), at == owner, "{figures}");
        cluster.http_is(at, &format!("DELETE {key}"), "", (204, ""));
        cluster.http_is(at, &format!("GET {key}"), "", (404, ""));
    }

    let at = cluster.standbys()[0];
    let node = cluster.nodes[at].as_ref().unwrap();
    let address = node.address("HTTP on ");
    let mut watcher = Socket::new(TcpStream::connect(&address).unwrap());
    watcher.send(b"GET /v1/watch?prefix=w%7C HTTP/1.1\r\nHost: localhost\r\n\r\n");
    watcher.until(b"event: live\n");
    cluster.http_is(at, "PUT /v1/keys/w%7Ca", "seen", (204, ""));
    let told = String::from_utf8(watcher.until(b"\"seen\"")).unwrap();
    assert!(told.contains("event: change\n"), "{told}");
    // One connection for all requests, as browsers and clients of metrics have it.
    let asks = b"GET /v1/keys/w%7Ca HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let keep = |at: usize| {
        let address = cluster.nodes[at].as_ref().unwrap().address("HTTP on ");
        let mut keeps = Socket::new(TcpStream::connect(address).unwrap());
        for _ in 0..2 {
            keeps.send(asks);
            keeps.until(b"\r\n\r\nseen");
        }
        (at, keeps)
    };
    let kept: Vec<_> = cluster.standbys().into_iter().map(keep).collect();

    cluster.end(owner, Signal::KILL);
    // The session behind it is gone, and whoever watches is told so.
    let told = String::from_utf8_lossy(&watcher.until(b"event: end\n")).into_owned();
    assert!(told.contains("event: end"), "{told}");
    for at in (0..NODES).filter(|at| *at != owner) {
        until("nobody answers again", || {
            cluster.http(at, "GET /v1/keys/w%7Ca", "").ends_with("\r\n\r\nseen")
        });
    }
    let next = cluster.owner_after(owner);
    for at in (0..NODES).filter(|at| *at != owner) {
        cluster.http_is(at, "PUT /v1/keys/w%7Cb", "again", (204, ""));
        let figures = cluster.http(at, "GET /metrics", "");
        assert_eq!(figures.contains("\nheadwater_keys "), at == next, "{figures}");
    }
    for (at, mut keeps) in kept {
        if at == next {
            // A connection of the time before would tell of a process that stands by.
            keeps.expect_end(b"");
        } else {
            keeps.send(asks);
            keeps.until(b"\r\n\r\nseen");
        }
    }
}

/// A file with settings.
/// A file of settings.
pub(crate) fn settings(folder: &std::path::Path, text: &str) -> &'static str {
    let file = folder.join("headwater.toml");
    fs::write(&file, text).unwrap();
    Box::leak(file.to_str().unwrap().to_owned().into_boxed_str())
}

#[test]
fn passwords_and_rights_are_the_owners_at_every_node() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[listen]\nmemcached-port = 0\nhttp-port = 0\nrequirepass = 'right'\n\
                [[user]]\nname = 'shop'\nrules = 'on >sold ~s* +@all'\n";
    let words = ["--config", settings(folder.path(), text)];
    let Some(cluster) = Cluster::start_with(Box::leak(Box::new(words))) else { return };
    for at in 0..NODES {
        let mut client = cluster.memcached(at);
        client.send(b"get a\r\nset k 0 0 13\r\ndefault wrong\r\n");
        client.expect(b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\n");
        client.send(b"set k 0 0 9\r\nshop sold\r\nset s 0 0 1\r\nx\r\nset t 0 0 1\r\nx\r\n");
        client.expect(b"STORED\r\nSTORED\r\nCLIENT_ERROR NOPERM");
        let ask = |user: &str, line: &str| {
            let node = cluster.nodes[at].as_ref().unwrap();
            let header = if user.is_empty() {
                String::new()
            } else {
                format!("Authorization: Basic {user}\r\n")
            };
            get_at(&node.address("HTTP on "), &format!("{line} HTTP/1.0\r\n{header}X-Asked:"))
                .unwrap()
        };
        for (user, key, code) in [
            ("", "s", 401),
            // shop:wrong, shop:sold, default:right
            ("c2hvcDp3cm9uZw==", "s", 401),
            ("c2hvcDpzb2xk", "s", 200),
            ("c2hvcDpzb2xk", "t", 403),
            ("ZGVmYXVsdDpyaWdodA==", "s", 200),
        ] {
            let told = ask(user, &format!("GET /v1/keys/{key}"));
            assert!(told.contains(&format!(" {code} ")), "{user} {key} at {at}: {told}");
        }
    }
}

#[test]
fn without_a_password_nobody_of_other_machines_is_passed_on() {
    let Some(own) = own_address() else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = "[listen]\nbind = ['0.0.0.0']\nmemcached-port = 0\n";
    let words = ["--config", settings(folder.path(), text)];
    let Some(cluster) = Cluster::start_with(Box::leak(Box::new(words))) else { return };
    for at in 0..NODES {
        let address = cluster.nodes[at].as_ref().unwrap().address(MEMCACHED);
        let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
        let told = Socket::new(TcpStream::connect((own, port)).unwrap()).rest();
        assert!(told.starts_with(b"SERVER_ERROR protected mode"), "{}", told.escape_ascii());
        let mut here = Socket::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
        here.send(b"mn\r\n");
        here.expect(b"MN\r\n");
    }
}

#[test]
fn clients_over_tls_are_passed_on_as_whom_their_certificates_name() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.issue("server");
    let (shop, nobody) = (authority.issue_to("shop"), authority.issue_to("nobody"));
    let text = format!(
        "[listen]\nrequirepass = 'right'\n\
         [tls]\ntls-http-port = 0\ntls-memcached-port = 0\ntls-port = 0\ntls-cert-file = '{}'\ntls-key-file = '{}'\n\
         tls-ca-cert-file = '{}'\ntls-auth-clients-user = 'CN'\n\
         [[user]]\nname = 'shop'\nrules = 'on ~s* +@all'\n",
        own.certificate.display(),
        own.key.display(),
        authority.own.certificate.display()
    );
    let words = ["--config", settings(folder.path(), &text)];
    let Some(mut cluster) = Cluster::start_with(Box::leak(Box::new(words))) else { return };
    let connect = |cluster: &Cluster, at: usize, what: &str, who: &Identity| {
        let address = cluster.nodes[at].as_ref().unwrap().address(what).parse().unwrap();
        let trusted = authority.own.certificate.clone();
        Dial { address, trusted, own: Some(who.clone()), versions: NEW }.connect()
    };
    let says = |cluster: &Cluster, at: usize, what: &str, who, sent: &str| {
        let mut client = connect(cluster, at, what, who);
        std::io::Write::write_all(&mut client.0, sent.as_bytes()).unwrap();
        client.line().unwrap()
    };
    let (memcached, resp) = ("memcached's protocol over TLS on ", "TLS on ");
    let all = |cluster: &Cluster, at: usize| {
        let set = "set s 0 0 1\r\nx\r\n";
        assert_eq!(says(cluster, at, memcached, &shop, set).trim_end(), "STORED");
        let refused = says(cluster, at, memcached, &shop, "set t 0 0 1\r\nx\r\n");
        assert!(refused.starts_with("CLIENT_ERROR NOPERM"), "{refused}");
        let refused = says(cluster, at, memcached, &nobody, "get s\r\n");
        assert!(refused.starts_with("CLIENT_ERROR unauthenticated"), "{refused}");
        assert_eq!(says(cluster, at, resp, &shop, "SET s 1\r\n").trim_end(), "+OK");
        assert!(says(cluster, at, resp, &nobody, "SET s 1\r\n").starts_with("-NOAUTH"));
        let ask = |who, key: &str| {
            let get = format!("GET /v1/keys/{key} HTTP/1.0\r\n\r\n");
            says(cluster, at, "HTTPS on ", who, &get)
        };
        assert!(ask(&shop, "s").contains(" 200 "));
        assert!(ask(&shop, "t").contains(" 403 "));
        assert!(ask(&nobody, "s").contains(" 401 "));
    };
    (0..NODES).for_each(|at| all(&cluster, at));
    // The ports stay what they are where a node becomes the owner.
    let (owner, at) = (cluster.owner(), cluster.standbys()[0]);
    let ports = |cluster: &Cluster, at: usize| {
        let node = cluster.nodes[at].as_ref().unwrap();
        [memcached, resp, "HTTPS on "].map(|what| node.address(what))
    };
    let before = ports(&cluster, at);
    cluster.end(owner, Signal::KILL);
    cluster.owner_after(owner);
    assert_eq!(ports(&cluster, at), before);
    until("nobody answers again", || {
        says(&cluster, at, memcached, &shop, "set s 0 0 1\r\nx\r\n").trim_end() == "STORED"
    });
    (0..NODES).filter(|at| *at != owner).for_each(|at| all(&cluster, at));
}

/// Where what goes between nodes is to be encrypted, what clients say over TLS leaves this machine in the clear to no owner; to one at any address of its own, it
/// need not leave it.
#[test]
fn what_came_encrypted_goes_to_no_other_machine_in_the_clear_where_links_are_encrypted() {
    let Some(own) = own_address() else { return };
    tell_where_links_are_encrypted(&own.to_string(), true);
    // An address of documentation, which no machine has: whoever connects to it waits in vain, and what is not to go there is refused before.
    tell_where_links_are_encrypted("192.0.2.1", false);
}

fn tell_where_links_are_encrypted(host: &str, is_here: bool) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.issue("server");
    let [certificate, key, ca] = [&own.certificate, &own.key, &authority.own.certificate]
        .map(|file| file.display().to_string());
    let text = format!(
        "[listen]\nbind = ['0.0.0.0']\nhttp-port = 0\n[doors]\nprotected-mode = false\n\
         [http]\nhttp-token = 's3cret'\n[tls]\ntls-http-port = 0\ntls-memcached-port = 0\ntls-auth-clients = 'no'\n\
         tls-cert-file = '{certificate}'\ntls-key-file = '{key}'\n\
         [cluster]\ncluster-link-tls = true\ncluster-ca-cert-file = '{ca}'\n\
         cluster-cert-file = '{certificate}'\ncluster-key-file = '{key}'\n"
    );
    let words = ["--config", settings(folder.path(), &text)];
    let Some(cluster) = Cluster::start_at(host, Box::leak(Box::new(words))) else { return };
    let owner = cluster.owner();
    for at in 0..NODES {
        let says = |what: &str, sent: &str| {
            let address = cluster.nodes[at].as_ref().unwrap().address(what);
            let address = address.replace("0.0.0.0", "127.0.0.1").parse().unwrap();
            let trusted = authority.own.certificate.clone();
            let mut client = Dial { address, trusted, own: None, versions: NEW }.connect();
            // Who is refused may be told so before it has asked.
            let _sent = std::io::Write::write_all(&mut client.0, sent.as_bytes());
            let mut told = String::new();
            let _ended = std::io::Read::read_to_string(&mut client.0, &mut told);
            told
        };
        let get = says("HTTPS on ", "GET /v1/user HTTP/1.0\r\n\r\n");
        let noop = says("memcached's protocol over TLS on ", "mn\r\nquit\r\n");
        if at == owner || is_here {
            assert!(get.contains(" 200 ") && noop == "MN\r\n", "{get}{noop}");
            cluster.http_is(at, "GET /v1/user", "", (200, "default"));
        } else {
            assert!(get.contains(" 503 ") && get.contains("cluster-link-tls"), "{get}");
            assert!(noop.starts_with("SERVER_ERROR cluster-link-tls is on"), "{noop}");
        }
    }
}
