//! Who is let in, how often that may be tried, and what is kept from those who are in.

use crate::http::address as http_address;
use crate::support::{PATIENCE, Server, Socket, TempFile, program, request};
use redis::{Value, cmd};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// An address of this machine that is not loopback, if it has one.
pub(crate) fn own_address() -> Option<IpAddr> {
    // Nothing is sent: the system says from where it would be.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

fn bare(text: &str) -> Server {
    let file = TempFile::new(text);
    let mut command = program();
    command.args(["serve", "--port", "0", "--config", file.path.to_str().unwrap()]);
    Server::spawn(command)
}

fn refusal(client: &mut redis::Connection, words: &[&str]) -> String {
    cmd(words[0]).arg(&words[1..]).query::<Value>(client).unwrap_err().to_string()
}

#[test]
fn guesses_are_not_looked_at_for_long_and_who_is_in_stays() {
    for shards in ["1", "3"] {
        let server = Server::with_config(&format!(
            "[listen]\nshards = {shards}\nmemcached-port = 0\nrequirepass = 'right'\n[doors]\nlogin-failure-milliseconds = 600000\n"
        ));
        let mut inside = server.socket();
        inside.send(&request(&[b"AUTH", b"right"]));
        inside.expect(b"+OK\r\n");
        let mut guesser = server.socket();
        let guesses = 2000;
        for number in 0..guesses {
            guesser.send(&request(&[b"AUTH", format!("guess{number}").as_bytes()]));
        }
        let (mut looked_at, mut refused) = (0, 0);
        for _ in 0..guesses {
            let line = guesser.until(b"\r\n");
            if line.starts_with(b"-WRONGPASS") {
                looked_at += 1;
            } else {
                assert!(
                    line.starts_with(b"-ERR too many wrong passwords"),
                    "{}",
                    line.escape_ascii()
                );
                refused += 1;
            }
        }
        assert_eq!((looked_at, refused), (10, guesses - 10));
        // Every way in is the same one, and a new connection is the same address.
        let mut other = server.socket();
        other.send(&request(&[b"HELLO", b"3", b"AUTH", b"default", b"right"]));
        assert!(other.until(b"\r\n").starts_with(b"-ERR too many wrong passwords"));
        let mut memcached = server.memcached();
        memcached.send(b"set k 0 0 13\r\ndefault right\r\n");
        memcached.expect(b"CLIENT_ERROR too many wrong passwords from this address\r\n");
        inside.send(b"PING\r\n");
        inside.expect(b"+PONG\r\n");
        inside.send(&request(&[b"CONFIG", b"SET", b"login-failures-max", b"0"]));
        inside.expect(b"+OK\r\n");
    }
}

#[test]
fn who_does_not_log_in_in_time_is_ended() {
    let server =
        Server::with_config("[listen]\nrequirepass = 'right'\n[doors]\nlogin-seconds-max = 1\n");
    let mut late = server.socket();
    let mut inside = server.socket();
    inside.send(&request(&[b"AUTH", b"right"]));
    inside.expect(b"+OK\r\n");
    late.expect_end(b"");
    // Who logs out has its time anew, however old its connection is.
    inside.send(&request(&[b"RESET"]));
    inside.expect(b"+RESET\r\n");
    inside.send(&request(&[b"AUTH", b"right"]));
    inside.expect(b"+OK\r\n");
}

#[test]
fn who_only_connects_makes_room_for_others() {
    for shards in ["1", "2"] {
        let server = Server::with_config(&format!(
            "[listen]\nrequirepass = 'right'\nshards = {shards}\n\
             [doors]\nlogin-seconds-max = 0\nclients-unauthenticated-max = 20\n"
        ));
        let mut inside = server.socket();
        inside.send(&request(&[b"AUTH", b"right"]));
        inside.expect(b"+OK\r\n");
        let address = ("127.0.0.1", server.port);
        let connect = |_| TcpStream::connect(address).unwrap();
        let mut strangers: Vec<TcpStream> = (0..100).map(connect).collect();
        // Who comes last is served, at whatever shard, and however late the others come to theirs.
        let mut newest = server.socket();
        newest.send(&request(&[b"AUTH", b"right"]));
        newest.expect(b"+OK\r\n");
        let mut last = Socket::new(strangers.pop().unwrap());
        last.send(b"PING\r\n");
        last.expect(b"-NOAUTH Authentication required.\r\n");
        // There are never more than may be: so many are ended, the oldest of each shard.
        let began = Instant::now();
        let is_ended = |mut stream: &TcpStream| match stream.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        strangers.iter().for_each(|it| it.set_nonblocking(true).unwrap());
        loop {
            let ended: Vec<bool> = strangers.iter().map(is_ended).collect();
            let count = ended.iter().filter(|it| **it).count();
            if count >= 80 {
                assert!(shards != "1" || ended[..80].iter().all(|it| *it), "{ended:?}");
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{count} of 100 are ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        inside.send(b"PING\r\n");
        inside.expect(b"+PONG\r\n");
    }
}

#[test]
fn without_a_password_other_machines_are_refused() {
    let Some(address) = own_address() else { return };
    let text = |more: &str| {
        format!("[listen]\nbind = ['0.0.0.0']\nmemcached-port = 0\nshards = 2\n{more}")
    };
    let server = bare(&text(""));
    let connect =
        |server: &Server| Socket::new(TcpStream::connect((address, server.port)).unwrap());
    let told = connect(&server).rest();
    assert!(
        told.starts_with(b"-DENIED Redis is running in protected mode"),
        "{}",
        told.escape_ascii()
    );
    let line = server.told().lines().find_map(|it| it.strip_prefix("memcached's protocol on "));
    let port: u16 = line.unwrap().rsplit(':').next().unwrap().parse().unwrap();
    let told = Socket::new(TcpStream::connect((address, port)).unwrap()).rest();
    assert!(told.starts_with(b"SERVER_ERROR protected mode"), "{}", told.escape_ascii());
    let mut own = server.client(3);
    let () = cmd("CONFIG").arg(&["SET", "protected-mode", "no"]).query(&mut own).unwrap();
    let mut other = connect(&server);
    other.send(b"PING\r\n");
    other.expect(b"+PONG\r\n");
    let with = bare(&text("requirepass = 'right'\n"));
    let mut other = connect(&with);
    other.send(b"PING\r\n");
    other.expect(b"-NOAUTH Authentication required.\r\n");
    // Some connections are kept for who is on the machine.
    let few = bare(&text(
        "requirepass = 'right'\n[clients]\nclients-max = 8\n[doors]\nclients-reserved = 3\n",
    ));
    let mut all: Vec<Socket> = (0..5).map(|_| connect(&few)).collect();
    for client in &mut all {
        client.send(b"PING\r\n");
        client.expect(b"-NOAUTH Authentication required.\r\n");
    }
    connect(&few).expect_end(b"-ERR max number of clients reached\r\n");
    let mut own = few.socket();
    own.send(b"PING\r\n");
    own.expect(b"-NOAUTH Authentication required.\r\n");
}

#[test]
fn debug_is_for_nobody_unless_it_is_said_and_no_client_can_say_it() {
    for shards in ["1", "2"] {
        let server = bare(&format!("[listen]\nshards = {shards}\n"));
        let mut client = server.client(3);
        let error = refusal(&mut client, &["DEBUG", "SLEEP", "0.01"]);
        assert!(error.contains("DEBUG command not allowed"), "{error}");
        let queued: redis::RedisResult<Value> =
            redis::pipe().atomic().cmd("DEBUG").arg(&["SLEEP", "0.01"]).query(&mut client);
        assert!(format!("{queued:?}").contains("DEBUG command not allowed"), "{queued:?}");
        // Nor is it for a user who may do everything, nor where the server connects to.
        let rules = ["SETUSER", "ops", "on", ">pw", "~*", "&*", "+@all"];
        let () = cmd("ACL").arg(&rules).query(&mut client).unwrap();
        let mut ops = server.client(3);
        let () = cmd("AUTH").arg(&["ops", "pw"]).query(&mut ops).unwrap();
        for (words, told) in [
            (&["DEBUG", "SLEEP", "0.01"][..], "DEBUG command not allowed"),
            (&["SOURCE.ADD", "s", "postgres", "postgres://a@127.0.0.1:1/b"], "connect-allow"),
            (
                &["FLOW.ADD", "f", "ON", "n|<id>", "HTTP", "POST", "http://127.0.0.1:1/"],
                "connect-allow",
            ),
        ] {
            let error = refusal(&mut ops, words);
            assert!(error.contains(told), "{words:?}: {error}");
        }
        for (name, value) in [
            ("enable-debug-command", "yes"),
            ("connect-allow", "*:*"),
            ("rename-command", "GET x"),
            ("source-clear-passwords", "yes"),
            ("requirepass-file", "/etc/passwd"),
            ("http-token-file", "/etc/passwd"),
        ] {
            let error = refusal(&mut client, &["CONFIG", "SET", name, value]);
            assert!(error.contains("immutable"), "{name}: {error}");
        }
    }
    let server = bare("[listen]\nshards = 1\n[doors]\nenable-debug-command = 'local'\n");
    let () = cmd("DEBUG").arg(&["SLEEP", "0.01"]).query(&mut server.client(3)).unwrap();
}

#[test]
fn commands_have_other_names_or_none() {
    for shards in ["1", "3"] {
        let server = Server::with_config(&format!(
            "[listen]\nshards = {shards}\nmemcached-port = 0\n[doors]\nrename-command = ['DBSIZE how-many', 'FLUSHALL', 'MGET many']\n"
        ));
        let mut client = server.client(3);
        for number in 0..9 {
            let () = cmd("SET").arg(format!("k{number}")).arg(number).query(&mut client).unwrap();
        }
        for gone in [&["DBSIZE"][..], &["FLUSHALL"], &["flushall", "SYNC"], &["MGET", "k1"]] {
            let error = refusal(&mut client, gone);
            assert!(error.contains("unknown command"), "{error}");
        }
        let count: i64 = cmd("How-Many").query(&mut client).unwrap();
        let found: Vec<i64> = cmd("many").arg(&["k1", "k2", "k8"]).query(&mut client).unwrap();
        assert_eq!((count, found), (9, vec![1, 2, 8]));
        let (count, found): (i64, Vec<i64>) = redis::pipe()
            .atomic()
            .cmd("HOW-MANY")
            .cmd("many")
            .arg(&["k3", "k4"])
            .query(&mut client)
            .unwrap();
        assert_eq!((count, found), (9, vec![3, 4]));
        // What does the same over memcached's protocol is as unknown there.
        let mut items = server.memcached();
        for (asked, told) in [
            ("flush_all\r\n", "ERROR\r\n"),
            (
                "flush_all noreply\r\nget k1 k2\r\n",
                "VALUE k1 0 1\r\n1\r\nVALUE k2 0 1\r\n2\r\nEND\r\n",
            ),
            ("delete k1\r\n", "DELETED\r\n"),
        ] {
            items.send(asked.as_bytes());
            items.expect(told.as_bytes());
        }
    }
}

#[test]
fn figures_need_the_token_and_signs_of_life_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let server = Server::with_config(&format!(
        "[listen]\nhttp-port = 0\n[http]\nhttp-token-file = '{}'\n",
        file.display()
    ));
    let ask = |path: &str, head: &str| {
        let mut stream = TcpStream::connect(http_address(&server)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n{head}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("/healthz", "").contains(" 200 "));
    for (head, status) in [
        ("", " 401 "),
        ("Authorization: Bearer wrong\r\n", " 401 "),
        ("Authorization: Bearer s3cret\r\n", " 200 "),
        ("Authorization: Basic YTpzM2NyZXQ=\r\n", " 200 "),
    ] {
        let answer = ask("/metrics", head);
        assert!(answer.contains(status), "{head}: {answer}");
        assert_eq!(answer.contains("headwater_keys"), status == " 200 ");
    }
    let shown: Vec<String> =
        cmd("CONFIG").arg(&["GET", "http-token"]).query(&mut server.client(2)).unwrap();
    assert_eq!(shown[1], "(hidden)");
}

#[test]
fn names_are_of_one_alphabet() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let forged = "x\r\nrole:slave\r\nmaster_host:evil";
    for name in [forged, "", "a b", "a\"b", "a,b=c", "\u{e9}"] {
        for words in [
            &["FLOW.ADD", name, "ON", "n|<id>", "PUBLISH", "c"][..],
            &["JOIN.ADD", name, "t|<a> = copy s|<a>"],
            &["SOURCE.ADD", name, "postgres", "postgres://a@127.0.0.1/b"],
            &["ACL", "SETUSER", name, "on"],
        ] {
            let error = refusal(&mut client, words);
            assert!(error.contains("name"), "{words:?}: {error}");
        }
    }
    let info: String = cmd("INFO").arg("everything").query(&mut client).unwrap();
    assert!(!info.contains("master_host:evil"), "{info}");
    let _: Value = cmd("FLOW.ADD")
        .arg(&["a-1.b:c_d", "ON", "n|<id>", "PUBLISH", "c"])
        .query(&mut client)
        .unwrap();
}

#[test]
fn passwords_come_from_files_and_the_environment_and_open_files_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let [password, log] = ["password", "log"].map(|name| folder.path().join(name));
    std::fs::write(&password, "from a file\n").unwrap();
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = program();
    command.args(["serve", "--port", "0", "--shards", "2", "--log-level", "warn"]);
    command.args(["--log-file", log.to_str().unwrap(), "--requirepass-file"]).arg(&password);
    let server = Server::spawn(command);
    let lets_in = |server: &Server, word: &str| {
        let mut socket = server.socket();
        socket.send(&request(&[b"AUTH", word.as_bytes()]));
        socket.until(b"\r\n") == b"+OK\r\n"
    };
    assert!(!lets_in(&server, "from a fil") && lets_in(&server, "from a file"));
    let began = Instant::now();
    // The log is written by a thread of its own.
    while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("file_readable")) {
        assert!(began.elapsed() < PATIENCE, "{}", std::fs::read_to_string(&log).unwrap());
    }
    assert!(!std::fs::read_to_string(&log).unwrap().contains("from a file"));
    let mut command = program();
    command.args(["serve", "--port", "0", "--shards", "1"]);
    command.env("HEADWATER_REQUIREPASS", "from around");
    let server = Server::spawn(command);
    assert!(!lets_in(&server, "x") && lets_in(&server, "from around"));
}

#[test]
fn keys_may_stay_until_somebody_looks_at_them() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(3);
        let () = cmd("DEBUG").arg(&["SET-ACTIVE-EXPIRE", "0"]).query(client).unwrap();
        let expired = |client: &mut redis::Connection| {
            let info: String = cmd("INFO").arg("stats").query(client).unwrap();
            let line = info.lines().find_map(|line| line.strip_prefix("expired_keys:"));
            line.unwrap().parse::<u64>().unwrap()
        };
        for key in ["a", "b", "c", "s|x"] {
            let () = cmd("SET").arg(&[key, "v", "PX", "1"]).query(client).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(expired(client), 0);
        let found: Option<String> = cmd("GET").arg("a").query(client).unwrap();
        assert_eq!((found, expired(client)), (None, 1));
        let keys: Vec<String> = cmd("RANGE").arg(&["b", "t", "KEYS"]).query(client).unwrap();
        assert_eq!((keys, expired(client)), (vec![], 4));
        let () = cmd("SET").arg(&["a", "v", "PX", "1"]).query(client).unwrap();
        let () = cmd("DEBUG").arg(&["SET-ACTIVE-EXPIRE", "1"]).query(client).unwrap();
        let began = Instant::now();
        while expired(client) < 5 {
            assert!(began.elapsed() < PATIENCE, "it should go by itself");
        }
        let error = refusal(client, &["DEBUG", "SET-ACTIVE-EXPIRE", "yes"]);
        assert!(error.contains("takes 0 or 1"), "{error}");
    }
}

#[test]
fn there_is_an_answer_of_each_kind() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    for (hello, answers) in [
        (
            "2",
            [
                ("string", "$11\r\nHello World\r\n"),
                ("double", "$5\r\n3.141\r\n"),
                ("bignum", "$37\r\n1234567999999999999999999999999999999\r\n"),
                ("null", "$-1\r\n"),
                ("set", "*3\r\n:0\r\n:1\r\n:2\r\n"),
                ("map", "*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n"),
                ("attrib", "$39\r\nSome real reply following the attribute\r\n"),
                ("push", "-ERR RESP2 is not supported by this command\r\n"),
                ("verbatim", "$25\r\nThis is a verbatim\nstring\r\n"),
                ("true", ":1\r\n"),
            ],
        ),
        (
            "3",
            [
                ("integer", ":12345\r\n"),
                ("double", ",3.141\r\n"),
                ("bignum", "(1234567999999999999999999999999999999\r\n"),
                ("null", "_\r\n"),
                ("set", "~3\r\n:0\r\n:1\r\n:2\r\n"),
                ("map", "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n"),
                (
                    "attrib",
                    "|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n\
                     $39\r\nSome real reply following the attribute\r\n",
                ),
                (
                    "push",
                    ">2\r\n$16\r\nserver-cpu-usage\r\n:42\r\n\
                     $40\r\nSome real reply following the push reply\r\n",
                ),
                ("verbatim", "=29\r\ntxt:This is a verbatim\nstring\r\n"),
                ("false", "#f\r\n"),
            ],
        ),
    ] {
        socket.send(format!("HELLO {hello}\r\nECHO ready\r\n").as_bytes());
        socket.until(b"ready\r\n");
        for (kind, answer) in answers {
            socket.send(format!("DEBUG PROTOCOL {kind}\r\n").as_bytes());
            socket.expect(answer.as_bytes());
        }
    }
    socket.send(b"DEBUG PROTOCOL list\r\n");
    assert!(socket.until(b"\r\n").starts_with(b"-ERR Wrong protocol type name."));
}
