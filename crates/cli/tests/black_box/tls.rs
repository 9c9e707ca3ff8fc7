//! Encrypted connections: who gets in, what they can do, and what others do not notice of it.

use crate::certificates::{self, Signed};
use crate::support::{PATIENCE, Server, Socket, request};
use rustix::process::Signal;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const NEW: &[&SupportedProtocolVersion] = &[&TLS13];
pub(crate) const OLD: &[&SupportedProtocolVersion] = &[&TLS12];
const BOTH: &[&SupportedProtocolVersion] = &[&TLS12, &TLS13];

/// A key and its certificate.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) key: PathBuf,
    pub(crate) certificate: PathBuf,
}

/// An authority, in a folder with what it has signed.
pub(crate) struct Authority {
    pub(crate) folder: TempDir,
    pub(crate) own: Identity,
}

pub(crate) fn run(command: &mut Command) {
    let made = command.stdin(Stdio::null()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = identity(folder.path(), "authority");
        certificates::make(
            Command::new("openssl"),
            Signed::AsAuthority,
            &own.key,
            &own.certificate,
        );
        Self { folder, own }
    }

    /// A certificate for `localhost`.
    pub(crate) fn issue(&self, name: &str) -> Identity {
        let made = identity(self.folder.path(), name);
        let signed = Signed::By(&self.own.key, &self.own.certificate);
        certificates::make(Command::new("openssl"), signed, &made.key, &made.certificate);
        made
    }

    /// A certificate that was good for a month of 2020.
    fn issue_expired(&self) -> Identity {
        let made = identity(self.folder.path(), "expired");
        let file = |name: &str| self.folder.path().join(name);
        let asked = file("expired.csr");
        run(Command::new("openssl")
            .args(["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=old", "-keyout"])
            .args([&made.key, Path::new("-out"), &asked]));
        std::fs::write(file("index"), "").unwrap();
        std::fs::write(file("serial"), "01").unwrap();
        let text = format!(
            "[ca]\ndefault_ca=d\n[d]\ndatabase={0}/index\nserial={0}/serial\nnew_certs_dir={0}\n\
             default_md=sha256\npolicy=p\nx509_extensions=e\n[p]\ncommonName=supplied\n\
             [e]\nbasicConstraints=CA:FALSE\n",
            self.folder.path().display()
        );
        std::fs::write(file("settings"), text).unwrap();
        run(Command::new("openssl")
            .args(["ca", "-batch", "-notext", "-startdate", "20200101000000Z", "-enddate"])
            .args(["20200201000000Z", "-config"])
            .args([&file("settings"), Path::new("-keyfile"), &self.own.key, Path::new("-cert")])
            .args([&self.own.certificate, Path::new("-in"), &asked, Path::new("-out")])
            .arg(&made.certificate));
        made
    }
}

pub(crate) fn identity(folder: &Path, name: &str) -> Identity {
    let [key, certificate] = ["key", "crt"].map(|end| folder.join(format!("{name}.{end}")));
    Identity { key, certificate }
}

/// Settings of a server with this certificate.
pub(crate) fn settings(own: &Identity, more: &str) -> String {
    let (certificate, key) = (own.certificate.display(), own.key.display());
    format!(
        "[tls]\ntls-port = 0\ntls-memcached-port = 0\ntls-http-port = 0\n\
         tls-cert-file = '{certificate}'\ntls-key-file = '{key}'\n{more}\n"
    )
}

/// What a client must know to talk to a server.
pub(crate) struct Dial {
    pub(crate) address: SocketAddr,
    pub(crate) trusted: PathBuf,
    pub(crate) own: Option<Identity>,
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
}

impl Dial {
    pub(crate) fn new(server: &Server, authority: &Authority) -> Self {
        let trusted = authority.own.certificate.clone();
        Self { address: address(server, "TLS on "), trusted, own: None, versions: BOTH }
    }

    pub(crate) fn with(self, own: &Identity) -> Self {
        Self { own: Some(own.clone()), ..self }
    }

    fn settings(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.trusted).unwrap()).unwrap();
        let settings = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let Some(own) = &self.own else { return settings.with_no_client_auth() };
        let chain = vec![CertificateDer::from_pem_file(&own.certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
        settings.with_client_auth_cert(chain, key).unwrap()
    }

    fn session(&self) -> ClientConnection {
        let name = ServerName::try_from("localhost").unwrap();
        ClientConnection::new(Arc::new(self.settings()), name).unwrap()
    }

    fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
    }

    pub(crate) fn connect(&self) -> Encrypted {
        Encrypted(StreamOwned::new(self.session(), self.socket()))
    }

    /// Whether the server talks to us.
    pub(crate) fn is_let_in(&self) -> bool {
        self.connect().ask(&["PING"]).is_ok_and(|answer| answer == "+PONG")
    }
}

pub(crate) fn address(server: &Server, what: &str) -> SocketAddr {
    let told = server.told().lines().find_map(|line| line.strip_prefix(what));
    told.expect("the line that says where").parse().unwrap()
}

/// An encrypted connection.
pub(crate) struct Encrypted(pub(crate) StreamOwned<ClientConnection, TcpStream>);

impl Encrypted {
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// The first line of the answer to a request.
    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.0.write_all(&request(&words))?;
        self.0.flush()?;
        self.line()
    }

    fn bulk(&mut self) -> Vec<u8> {
        let length = self.line().unwrap();
        let length = length.trim_start_matches(['$', '=']).parse::<usize>().unwrap();
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }
}

pub(crate) fn start(shards: &str, text: &str) -> Server {
    Server::with_config(&format!("[listen]\nshards = {shards}\n{text}"))
}

#[test]
fn what_is_long_or_much_goes_both_ways_and_messages_come() {
    let authority = Authority::new();
    let own = authority.issue("server");
    for (shards, versions) in [("1", NEW), ("3", OLD)] {
        let server = start(shards, &settings(&own, "tls-auth-clients = 'no'"));
        let dial = Dial { versions, ..Dial::new(&server, &authority) };
        let mut client = dial.connect();
        assert_eq!(client.ask(&["PING"]).unwrap(), "+PONG");
        // Many requests in one go, and their answers.
        let mut bytes = Vec::new();
        for number in 0..20_000 {
            let key = format!("k{number}");
            bytes.extend(request(&[b"SET", key.as_bytes(), key.as_bytes()]));
            bytes.extend(request(&[b"GET", key.as_bytes()]));
        }
        client.0.write_all(&bytes).unwrap();
        client.0.flush().unwrap();
        for number in 0..20_000 {
            assert_eq!(client.line().unwrap(), "+OK");
            assert_eq!(client.bulk(), format!("k{number}").as_bytes());
        }
        // Long values, more of them than sockets hold: the server waits until they are taken.
        let long: Vec<u8> = (0..6 << 20).map(|at: u32| (at / 7) as u8).collect();
        client.0.write_all(&request(&[b"SET", b"long", &long])).unwrap();
        assert_eq!(client.line().unwrap(), "+OK");
        for _ in 0..5 {
            client.0.write_all(&request(&[b"GET", b"long"])).unwrap();
        }
        client.0.flush().unwrap();
        // Others are served meanwhile.
        assert!(dial.is_let_in());
        let plain: String = redis::cmd("GET").arg("k7").query(&mut server.client(3)).unwrap();
        assert_eq!(plain, "k7");
        for _ in 0..5 {
            assert!(client.bulk() == long);
        }
        // Messages that nobody asked for now.
        let mut listener = dial.connect();
        assert_eq!(listener.ask(&["HELLO", "3"]).unwrap(), "%7");
        listener.0.write_all(&request(&[b"SUBSCRIBE", b"news"])).unwrap();
        while listener.line().unwrap() != ":1" {}
        let heard: i64 = redis::cmd("PUBLISH")
            .arg(&["news", "from a plain one"])
            .query(&mut server.client(3))
            .unwrap();
        assert_eq!(heard, 1);
        assert_eq!(client.ask(&["PUBLISH", "news", "from an encrypted one"]).unwrap(), ":1");
        for text in ["from a plain one", "from an encrypted one"] {
            while listener.line().unwrap() != text {}
        }
        assert_eq!(client.ask(&["QUIT"]).unwrap(), "+OK");
        assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0, "the end is told, not cut off");
    }
}

#[test]
fn a_client_that_takes_nothing_is_written_to_when_it_does() {
    let authority = Authority::new();
    let server = start(
        "1",
        &settings(
            &authority.issue("server"),
            "tls-auth-clients = 'no'\n[clients]\noutput-bytes-soft = 4096",
        ),
    );
    let dial = Dial::new(&server, &authority);
    let mut client = dial.connect();
    let value = vec![b'x'; 100_000];
    client.0.write_all(&request(&[b"SET", b"key", &value])).unwrap();
    assert_eq!(client.line().unwrap(), "+OK");
    for _ in 0..300 {
        client.0.write_all(&request(&[b"GET", b"key"])).unwrap();
    }
    client.0.flush().unwrap();
    // Until it takes them, its answers lie in the socket and here; so do those of its later requests.
    assert!(dial.is_let_in());
    for _ in 0..300 {
        assert!(client.bulk() == value);
    }
    assert_eq!(client.ask(&["PING"]).unwrap(), "+PONG");
}

#[test]
fn only_who_is_vouched_for_gets_in_where_certificates_are_asked_for() {
    let authority = Authority::new();
    let own = authority.issue("server");
    let [good, expired] = [authority.issue("client"), authority.issue_expired()];
    let stranger = Authority::new().issue_kept("client");
    let trusts = format!("tls-ca-cert-file = '{}'", authority.own.certificate.display());
    for (asks, versions) in [("yes", NEW), ("yes", OLD), ("optional", BOTH)] {
        let more = format!("{trusts}\ntls-auth-clients = '{asks}'");
        let server = start("2", &settings(&own, &more));
        let dial = || Dial { versions, ..Dial::new(&server, &authority) };
        assert_eq!(dial().is_let_in(), asks == "optional", "without a certificate");
        assert!(!dial().with(&stranger.1).is_let_in(), "vouched for by somebody else");
        assert!(!dial().with(&expired).is_let_in(), "it was good in 2020");
        let mut client = dial().with(&good).connect();
        assert!(client.ask(&["CLIENT", "INFO"]).is_ok());
        let line = client.line().unwrap();
        assert!(line.ends_with(" cert=localhost"), "{line}");
        // It keeps its name when all else is forgotten.
        assert_eq!(client.ask(&["RESET"]).unwrap(), "+RESET");
        assert!(client.ask(&["CLIENT", "INFO"]).is_ok());
        assert!(client.line().unwrap().ends_with(" cert=localhost"));
        // And whom the client does not trust it does not talk to.
        let wrong = Dial { trusted: stranger.0.own.certificate.clone(), ..dial() };
        assert!(!wrong.with(&good).is_let_in());
    }
}

impl Authority {
    /// An authority with one certificate of its.
    fn issue_kept(self, name: &str) -> (Self, Identity) {
        let made = self.issue(name);
        (self, made)
    }
}

#[test]
fn certificates_are_changed_while_the_server_runs_and_bad_ones_change_nothing() {
    let (first, second) = (Authority::new(), Authority::new());
    let (old, new) = (first.issue("server"), second.issue("server"));
    for shards in ["1", "2"] {
        let live = identity(first.folder.path(), &format!("live{shards}"));
        let copy = |from: &Identity| {
            std::fs::copy(&from.key, &live.key).unwrap();
            std::fs::copy(&from.certificate, &live.certificate).unwrap();
        };
        copy(&old);
        let server = start(shards, &settings(&live, "tls-auth-clients = 'no'"));
        let [by_first, by_second] = [&first, &second].map(|it| Dial::new(&server, it));
        let shows_first = || (by_first.is_let_in(), by_second.is_let_in());
        assert_eq!(shows_first(), (true, false));
        let mut kept = by_first.connect();
        assert_eq!(kept.ask(&["PING"]).unwrap(), "+PONG");
        let mut client = server.client(3);
        let mut set = |name: &str, value: &Path, other: &str, another: &Path| {
            redis::cmd("CONFIG")
                .arg(&["SET", name, value.to_str().unwrap(), other, another.to_str().unwrap()])
                .query::<()>(&mut client)
        };
        let (certificate, key) = ("tls-cert-file", "tls-key-file");
        for (wrong, other) in [
            (first.folder.path().join("none"), new.key.clone()),
            (new.certificate.clone(), old.key.clone()),
            (new.certificate.clone(), new.certificate.clone()),
            (new.key.clone(), new.key.clone()),
        ] {
            let error = set(certificate, &wrong, key, &other).unwrap_err().to_string();
            // Which of them is there is nothing for clients.
            let told = "Unable to update TLS configuration: the files cannot be used";
            assert!(error.contains(told) && !error.contains("/tmp"), "{error}");
            assert_eq!(shows_first(), (true, false), "{error}");
        }
        set(certificate, &new.certificate, key, &new.key).unwrap();
        assert_eq!(shows_first(), (false, true));
        assert_eq!(kept.ask(&["PING"]).unwrap(), "+PONG", "who is there stays");
        set(key, &live.key, certificate, &live.certificate).unwrap();
        assert_eq!(shows_first(), (true, false));
        // Files of the same names, and a signal: first one that is no key.
        std::fs::copy(&new.certificate, &live.certificate).unwrap();
        std::fs::write(&live.key, "-----BEGIN nothing").unwrap();
        server.signal(Signal::HUP);
        let mut probe = server.client(3);
        let () = redis::cmd("PING").query(&mut probe).unwrap();
        assert_eq!(shows_first(), (true, false));
        copy(&new);
        server.signal(Signal::HUP);
        let began = Instant::now();
        while shows_first() != (false, true) {
            assert!(began.elapsed() < PATIENCE, "the new certificate is not shown");
        }
        assert_eq!(kept.ask(&["PING"]).unwrap(), "+PONG");
    }
}

#[test]
fn slow_and_broken_handshakes_hold_up_nobody() {
    let authority = Authority::new();
    let more = "tls-auth-clients = 'no'\ntls-handshake-milliseconds-max = 1500";
    let server = start("1", &settings(&authority.issue("server"), more));
    let dial = Dial::new(&server, &authority);
    // More of them than there may be, which say nothing, half of a greeting, or something else.
    let mut hello = Vec::new();
    dial.session().write_tls(&mut hello).unwrap();
    let mut stuck: Vec<TcpStream> = (0..1200).map(|_| dial.socket()).collect();
    for (at, socket) in stuck.iter_mut().enumerate() {
        let bytes = match at % 4 {
            0 => &b""[..],
            1 => &hello[..hello.len() / 2],
            2 => &hello,
            _ => b"*1\r\n$4\r\nPING\r\n",
        };
        // Those that were there first may have been ended.
        let _ = socket.write_all(bytes);
    }
    assert!(dial.is_let_in());
    let () = redis::cmd("PING").query(&mut server.client(3)).unwrap();
    // A handshake byte by byte.
    let (mut session, mut socket) = (dial.session(), dial.socket());
    while session.is_handshaking() {
        let mut bytes = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut bytes).unwrap();
        }
        for byte in bytes {
            socket.write_all(&[byte]).unwrap();
        }
        if session.is_handshaking() {
            session.read_tls(&mut socket).unwrap();
            session.process_new_packets().unwrap();
        }
    }
    let mut slow = Encrypted(StreamOwned::new(session, socket));
    assert_eq!(slow.ask(&["PING"]).unwrap(), "+PONG");
    // They are ended in time, also the one that has said nothing.
    let mut rest = Vec::new();
    let mut last = stuck.remove(1196);
    match last.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
    // Who breaks off in the middle of a record, or says what is none, harms himself alone.
    let mut broken = dial.connect();
    assert_eq!(broken.ask(&["PING"]).unwrap(), "+PONG");
    broken.0.sock.write_all(&[0x17, 3, 3, 1, 0, 9, 9]).unwrap();
    drop(broken);
    let mut odd = dial.connect();
    assert_eq!(odd.ask(&["PING"]).unwrap(), "+PONG");
    odd.0.sock.write_all(&[0x17, 3, 3, 0, 3, 9, 9, 9]).unwrap();
    assert!(odd.line().is_err());
    // A plain port is none for TLS.
    let socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut lost = Encrypted(StreamOwned::new(dial.session(), socket));
    lost.0.sock.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(lost.ask(&["PING"]).is_err());
    assert_eq!(slow.ask(&["PING"]).unwrap(), "+PONG");
    assert!(dial.is_let_in());
}

#[test]
fn memcached_and_http_are_encrypted_too() {
    let authority = Authority::new();
    let own = authority.issue("server");
    let trusts = format!("tls-ca-cert-file = '{}'", authority.own.certificate.display());
    let server = start("2", &settings(&own, &trusts));
    let client = authority.issue("client");
    let dial = |what| Dial { address: address(&server, what), ..Dial::new(&server, &authority) };
    let memcached = dial("memcached's protocol over TLS on ");
    let mut connection = Dial { own: Some(client.clone()), ..memcached }.connect();
    connection.0.write_all(b"set k 0 0 3\r\nabc\r\nget k\r\n").unwrap();
    for line in ["STORED", "VALUE k 0 3", "abc", "END"] {
        assert_eq!(connection.line().unwrap(), line);
    }
    let http = dial("HTTPS on ").with(&client);
    let mut connection = http.connect();
    connection.0.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.0.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 ") && answer.ends_with("ok\n"), "{answer}");
    for what in ["memcached's protocol over TLS on ", "HTTPS on "] {
        let mut stranger = dial(what).connect();
        let said = stranger.0.write_all(b"GET /healthz HTTP/1.0\r\n\r\n");
        assert!(said.is_err() || stranger.line().is_err(), "{what}: without a certificate");
    }
}

#[test]
fn old_versions_are_refused_and_plain_ports_can_be_shut() {
    let authority = Authority::new();
    let own = authority.issue("server");
    let server = start("1", &settings(&own, "tls-auth-clients = 'no'"));
    let at = address(&server, "TLS on ").to_string();
    let speaks = |words: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &at, "-cipher", "ALL:@SECLEVEL=0"]).args(words);
        let told = command.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        told.contains("Cipher is ") && !told.contains("Cipher is (NONE)")
    };
    assert!(speaks(&["-tls1_2"]) && speaks(&["-tls1_3"]));
    assert!(!speaks(&["-tls1_1"]) && !speaks(&["-tls1"]));
    for weak in
        ["AES128-SHA", "AES256-GCM-SHA384", "ECDHE-RSA-AES128-SHA", "NULL-SHA", "AECDH-NULL-SHA"]
    {
        assert!(!speaks(&["-tls1_2", "-cipher", &format!("{weak}:@SECLEVEL=0")]), "{weak}");
    }
    drop(server);
    let new = "tls-auth-clients = 'no'\ntls-protocols = 'TLSv1.3'";
    let text = format!("[listen]\nport = 'off'\nshards = 1\n{}", settings(&own, new));
    let mut command = crate::support::program();
    let file = crate::support::TempFile::new(&text);
    command.args(["serve", "--config", file.path.to_str().unwrap()]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
    let line = lines.find_map(|line| line.unwrap().strip_prefix("TLS on ").map(str::to_owned));
    let address = line.unwrap();
    let ready =
        lines.find_map(|line| line.unwrap().split_once(" ready on ").map(|it| it.1.to_owned()));
    assert_eq!(ready.as_ref(), Some(&address));
    let dial = Dial {
        address: address.parse().unwrap(),
        trusted: authority.own.certificate.clone(),
        own: None,
        versions: NEW,
    };
    assert!(dial.is_let_in());
    assert!(!Dial { versions: OLD, ..dial }.is_let_in());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_cannot_be_is_refused_at_the_start() {
    let authority = Authority::new();
    let own = authority.issue("server");
    let other = authority.issue("other");
    let mixed = Identity { key: other.key.clone(), ..own.clone() };
    let none = Identity { key: authority.folder.path().join("none.key"), ..own.clone() };
    for (text, told) in [
        (settings(&own, ""), "tls-ca-cert-file"),
        (settings(&mixed, "tls-auth-clients = 'no'"), "tls-cert-file"),
        (settings(&none, "tls-auth-clients = 'no'"), "tls-key-file"),
        (settings(&own, "tls-auth-clients = 'no'\ntls-protocols = 'SSLv3'"), "tls-protocols"),
        (settings(&own, "tls-auth-clients = 'maybe'"), "maybe"),
        (String::from("[tls]\ntls-port = 0\n"), "tls-cert-file"),
        (String::from("[listen]\nport = 'off'\n"), "tls-port"),
    ] {
        let file = crate::support::TempFile::new(&text);
        let mut command = crate::support::program();
        command.args(["serve", "--config", file.path.to_str().unwrap()]);
        let told_by = command.stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8_lossy(&told_by.stderr).into_owned();
        assert!(!told_by.status.success() && error.contains(told), "{told}: {error}");
    }
}

#[test]
fn a_client_that_is_one_too_many_is_told_so_and_the_memory_of_all_is_given_back() {
    let authority = Authority::new();
    let more = "tls-auth-clients = 'no'\n[clients]\nclients-max = 3";
    let server = start("1", &settings(&authority.issue("server"), more));
    let dial = Dial::new(&server, &authority);
    let mut clients: Vec<Encrypted> = (0..3).map(|_| dial.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(&["PING"]).unwrap(), "+PONG");
    }
    let mut more = dial.connect();
    // The handshake is over before it is told.
    assert_eq!(more.line().unwrap(), "-ERR max number of clients reached");
    clients.pop();
    let began = Instant::now();
    while !dial.is_let_in() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut plain: Socket = server.socket();
    plain.send(b"PING\r\n");
    plain.expect(b"+PONG\r\n");
}
