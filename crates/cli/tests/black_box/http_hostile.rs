//! The HTTP port, asked by those who want it to stop answering, and web pages that speak HTTP to the other ports.

use crate::http::{address, get};
use crate::support::{Server, Socket, number_from, request};
use std::net::TcpStream;

/// A server whose HTTP port is patient for as long as a test may take, or for a moment. Nobody can watch:
/// such an answer has no end, and whoever has only half hung up may still read it.
fn server(milliseconds: u32) -> Server {
    Server::with_config(&format!(
        "[listen]\nhttp-port = 0\nshards = 1\n[http]\nhttp-milliseconds-max = {milliseconds}\n\
         http-watches-max = 0\n\
         http-hosts = [\"cache.example\"]\n"
    ))
}

const PATIENT: u32 = 3_600_000;
const MOMENT: u32 = 200;

fn connect(server: &Server) -> Socket {
    Socket::new(TcpStream::connect(address(server)).unwrap())
}

fn assert_alive(server: &Server) {
    let answer = get(server, "GET /healthz");
    assert!(answer.starts_with("HTTP/1.0 200 ") && answer.ends_with("ok\n"), "{answer}");
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_body_is_refused_before_it_comes() {
    let server = server(PATIENT);
    for announced in [
        "Content-Length: 1000000000000000",
        "Content-Length: 10",
        "Transfer-Encoding: chunked",
        "Content-Length: 10\r\nExpect: 100-continue",
    ] {
        let mut socket = connect(&server);
        socket.send(format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{announced}\r\n\r\n").as_bytes());
        assert!(text(socket.until(b"\r\n")).contains(" 421 "), "first of all it is the wrong host");
        let mut socket = connect(&server);
        let head = format!("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{announced}\r\n\r\n");
        socket.send(head.as_bytes());
        assert_alive(&server);
        let answer = text(socket.rest());
        assert!(
            answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("no body is taken here\n"),
            "{answer}"
        );
    }
    for nonsense in [
        "Content-Length: 18446744073709551615",
        "Content-Length: 18446744073709551616",
        "Content-Length: -1",
        "Content-Length: 1\r\nContent-Length: 2",
        "Transfer-Encoding: nonsense",
        "Content-Length: 5\r\nTransfer-Encoding: x",
    ] {
        let mut socket = connect(&server);
        socket
            .send(format!("GET /healthz HTTP/1.1\r\nHost: [::1]\r\n{nonsense}\r\n\r\n").as_bytes());
        let answer = text(socket.rest());
        assert!(answer.starts_with("HTTP/1.1 4"), "{nonsense}: {answer}");
    }
    assert_alive(&server);
}

#[test]
fn a_head_that_is_long_or_no_head_is_refused() {
    let server = server(PATIENT);
    let mut long = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    long.resize(1 << 20, b'x');
    let mut wide = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n".to_vec();
    (0..1000).for_each(|number| wide.extend_from_slice(format!("X{number}: y\r\n").as_bytes()));
    let path = format!("GET /{} HTTP/1.1\r\n", "x".repeat(1 << 20));
    for (bytes, status) in [
        (long, Some("431")),
        (wide, Some("431")),
        (path.into_bytes(), None),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), Some("400")),
        (b"GET /healthz HTTP/1.1\r\nHost: a\0b\r\n\r\n".to_vec(), Some("400")),
        (b"GET  /healthz\r\n\r\n".to_vec(), Some("400")),
        (b"*1\r\n$4\r\nPING\r\n".to_vec(), Some("400")),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), None),
        (vec![0xff; 100_000], Some("400")),
    ] {
        let mut socket = connect(&server);
        // It may be refused before all of it is sent, and the refusal lost with the connection.
        let sent = socket.try_send(&bytes);
        let answer = String::from_utf8_lossy(&socket.rest()).into_owned();
        let fits = status.is_none_or(|status| answer.starts_with(&format!("HTTP/1.1 {status} ")));
        let lost = bytes.len() > 8192 && answer.is_empty();
        assert!(fits || lost || sent.is_err(), "{}: {answer}", bytes[..20].escape_ascii());
        assert_alive(&server);
    }
}

#[test]
fn only_hosts_that_are_known_are_answered() {
    let server = server(PATIENT);
    for (host, status) in [
        ("127.0.0.1:7380", "200"),
        ("localhost", "200"),
        ("cache.example:80", "200"),
        ("evil.example", "421"),
        ("127.0.0.1.evil.example", "421"),
    ] {
        let mut socket = connect(&server);
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        socket.send(head.as_bytes());
        let answer = text(socket.rest());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
        assert_eq!(answer.contains("headwater_keys"), status == "200", "{host}");
    }
}

#[test]
fn who_is_slow_is_not_waited_for() {
    let server = server(MOMENT);
    for part in ["", "GET /heal", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "] {
        let mut socket = connect(&server);
        socket.send(part.as_bytes());
        let answer = text(socket.rest());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    // Somebody asks and asks, and takes no answer.
    let mut socket = connect(&server);
    while socket.try_send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").is_ok() {}
    assert_alive(&server);
}

#[test]
fn who_says_nothing_keeps_nobody_out() {
    let server = server(PATIENT);
    assert_alive(&server);
    let threads = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        status.lines().find(|line| line.starts_with("Threads:")).unwrap().to_owned()
    };
    let before = threads();
    let mut silent: Vec<Socket> = (0..200).map(|_| connect(&server)).collect();
    for socket in &mut silent {
        // Those that are ended already are not written to.
        let _ = socket.try_send(b"GET /healthz HTTP/1.1\r\n");
    }
    for _ in 0..3 {
        assert_alive(&server);
    }
    assert_eq!(threads(), before);
    for socket in &mut silent[..130] {
        assert_eq!(socket.rest(), b"", "the oldest were ended");
    }
    let mut last = silent.pop().unwrap();
    last.send(b"Host: localhost\r\nConnection: close\r\n\r\n");
    assert!(text(last.rest()).ends_with("ok\n"), "the last ones are there");
}

#[test]
fn who_sends_a_body_byte_by_byte_keeps_nobody_out() {
    let server = server(PATIENT);
    let mut slow: Vec<Socket> = (0..64)
        .map(|number| {
            let mut socket = connect(&server);
            let head = format!(
                "PUT /v1/keys/k{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
            );
            socket.send(head.as_bytes());
            // The body is waited for now.
            assert!(text(socket.until(b"\r\n\r\n")).starts_with("HTTP/1.1 100 "));
            socket.send(b"x");
            socket
        })
        .collect();
    for _ in 0..3 {
        assert_alive(&server);
    }
    assert_eq!(slow[0].rest(), b"", "the oldest was ended");
    let mut last = slow.pop().unwrap();
    last.send(&[b'x'; 99]);
    assert!(text(last.until(b"\r\n\r\n")).starts_with("HTTP/1.1 204 "), "the last ones are there");
}

#[test]
fn without_a_port_nothing_is_started() {
    let server = Server::start(&[]);
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap();
    let names = threads.map(|it| std::fs::read_to_string(it.unwrap().path().join("comm")).unwrap());
    assert!(names.into_iter().all(|name| name != "http\n"));
}

/// What a web page's request looks like to a port that speaks no HTTP: no line of it is executed.
#[test]
fn lines_of_http_are_no_commands() {
    let server = Server::start(&["--memcached-port", "0"]);
    let heads = [
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        "post /\r\nHost: 127.0.0.1\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        "PUT / HTTP/1.1\r\nOrigin: null\r\n",
        "OPTIONS /x HTTP/1.0\r\n",
    ];
    for head in heads {
        let mut socket = server.socket();
        socket.send(head.as_bytes());
        let _ = socket.try_send(b"\r\nSET k v\r\nMULTI\r\nSET k v\r\nEXEC\r\n");
        let answer = text(socket.rest());
        assert!(!answer.contains("OK") && !answer.contains("QUEUED"), "{head}: {answer}");
        let mut socket = server.memcached();
        socket.send(head.as_bytes());
        let _ = socket.try_send(b"\r\nset k 0 0 1\r\nv\r\nset k 0 0 1\r\nv\r\n");
        let answer = text(socket.rest());
        assert!(!answer.contains("STORED"), "{head}: {answer}");
    }
    // In the form of client libraries, and within a transaction.
    let mut socket = server.socket();
    socket.send(b"MULTI\r\nSET k v\r\n");
    socket.expect(b"+OK\r\n+QUEUED\r\n");
    socket.send(&request(&[b"Host:", b"x"]));
    let _ = socket.try_send(b"EXEC\r\n");
    socket.expect_end(b"");
    let mut socket = server.socket();
    socket.send(b"EXISTS k\r\nSET k POST\r\nGET k\r\nECHO HTTP/1.1\r\n");
    socket.expect(b":0\r\n+OK\r\n$4\r\nPOST\r\n$8\r\nHTTP/1.1\r\n");
}

/// SplitMix64: small, and the same everywhere.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

/// Requests, whole and broken.
const CORPUS: &[&[u8]] = &[
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1:7380\r\nAccept: */*\r\n\r\n",
    b"GET http://localhost/readyz?a=b%20c HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PUT /v1/keys/a%7Cb?ttl=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /v1/keys/a%7Cb HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YW55OnMzOmNyZXQ=\r\n\r\n",
    b"GET /v1/range?first=a&last=b&limit=10&rev=1 HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    b"GET /v1/watch?prefix=a HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 5d1b2c7e9f003a44-17\r\n\r\n",
    b"POST /v1/joins/try HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n{\"spec\":\"t|<a> = copy s|<a>\"}",
    b"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\nGET /readyz HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];
/// What means something to a parser of HTTP.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b" ",
    b":",
    b"%",
    b"%00",
    b"/",
    b"//",
    b"?",
    b"#",
    b"\xff",
    b"Content-Length: ",
    b"18446744073709551616",
    b"-1",
    b"chunked",
    b"Transfer-Encoding: ",
    b"HTTP/1.1",
    b"HTTP/9.9",
    b"Host: ",
    b"[",
    b"]",
    b"@",
    b"ffffffffffffffffff\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"\t",
    b"\x7f",
    b"GET ",
    b"\r",
];

#[test]
fn any_bytes_leave_it_answering() {
    let server = server(MOMENT);
    let first = number_from("HEADWATER_FUZZ_FIRST", 0);
    for round in first..first + number_from("HEADWATER_HTTP_ROUNDS", 500) {
        let mut draws = Draws(round);
        let mut bytes = CORPUS[draws.below(CORPUS.len())].to_vec();
        for _ in 0..draws.below(6) {
            let at = draws.below(bytes.len() + 1);
            let until = (at + draws.below(20)).min(bytes.len());
            match draws.below(5) {
                0 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
                1 => drop(bytes.drain(at..until)),
                2 => drop(bytes.splice(at..until, WORDS[draws.below(WORDS.len())].iter().copied())),
                3 => drop(bytes.splice(at..at, WORDS[draws.below(WORDS.len())].iter().copied())),
                _ => drop(bytes.splice(at..at, CORPUS[draws.below(CORPUS.len())].iter().copied())),
            }
        }
        let mut socket = connect(&server);
        let cut = draws.below(bytes.len() + 1);
        if socket.try_send(&bytes[..cut]).is_ok() && socket.try_send(&bytes[cut..]).is_ok() {
            // It may be gone already.
            let _ = socket.stream().shutdown(std::net::Shutdown::Write);
        }
        let answer = socket.rest();
        let shown = bytes.escape_ascii();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "round {round}: {shown}");
        if round % 50 == 0 {
            assert_alive(&server);
        }
    }
    assert_alive(&server);
}
