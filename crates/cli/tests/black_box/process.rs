//! The program as a process: its ready line, its end, its settings and its refusals.

use crate::support::{Server, TempFile, program, request};
use rustix::process::Signal;
use std::process::Output;

/// Runs the program with arguments that it should refuse.
fn refused(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = program().args(arguments).output().unwrap();
    assert!(!status.success(), "{arguments:?} was accepted");
    assert_eq!(String::from_utf8_lossy(&stdout), "");
    String::from_utf8(stderr).unwrap()
}

#[test]
fn signals_end_it_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(&[]);
        let mut socket = server.socket();
        socket.send(b"PING\r\n");
        socket.expect(b"+PONG\r\n");
        server.signal(signal);
        socket.expect_end(b"");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn pending_replies_are_sent_before_the_end() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    let value = vec![b'v'; 8 << 20];
    socket.send(&request(&[b"SET", b"k", &value]));
    socket.expect(b"+OK\r\n");
    socket.send(b"GET k\r\n");
    socket.expect(b"$8388608\r\n");
    server.signal(Signal::TERM);
    socket.expect_end(&[&value[..], b"\r\n"].concat());
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn shutdown_ends_it_without_an_answer() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    socket.send(b"SHUTDOWN ABORT\r\n");
    socket.expect(b"-ERR No shutdown in progress.\r\n");
    socket.send(b"SHUTDOWN NOSAVE\r\n");
    socket.expect_end(b"");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_password_is_asked_for_on_any_address() {
    let server = Server::start(&["--bind", "0.0.0.0", "--requirepass", "secret"]);
    let mut socket = server.socket();
    socket.send(b"GET k\r\nAUTH wrong\r\nAUTH secret\r\nGET k\r\n");
    socket.expect(b"-NOAUTH Authentication required.\r\n");
    socket.expect(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    socket.expect(b"+OK\r\n$-1\r\n");
}

#[test]
fn a_used_port_is_named() {
    // Threads share a port, but not with another process.
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        for more in ["1", "3"] {
            let port = server.port.to_string();
            let error = refused(&["serve", "--shards", more, "--port", &port]);
            assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
        }
    }
}

#[test]
fn errors_in_the_file_name_the_field_and_what_is_allowed() {
    for (text, told) in [
        ("[clients]\nclients-mx = 1\n", ["`clients-mx`", "`clients-max`"]),
        ("[client]\n", ["`client`", "`clients`"]),
        ("[clients]\nclients-max = \"x\"\n", ["clients-max", "expected a whole number from 0 on"]),
        ("[clients]\nclients-max = 0\n", ["clients-max is 0", "allowed: 1 to"]),
        ("[limits]\nkey-bytes-max = 5000\n", ["key-bytes-max is 5000", "1024"]),
        ("[listen]\nbind = [\"here\"]\n", ["bind", "invalid IP address"]),
        ("[[table]]\nnam = \"t\"\n", ["`nam`", "`name`"]),
        ("no toml", ["line 1", "no toml"]),
    ] {
        let file = TempFile::new(text);
        let path = file.path.to_str().unwrap();
        let error = refused(&["serve", "--port", "0", "--config", path]);
        for part in told.iter().chain(&[path]) {
            // Bounds are checked after the file was read, and are no fault of its form.
            assert!(error.contains(part) || error.contains("allowed:"), "{part}: {error}");
        }
    }
    let error = refused(&["serve", "--config", "/nowhere/headwater.toml"]);
    assert!(error.contains("/nowhere/headwater.toml"), "{error}");
}

#[test]
fn flags_go_before_the_file_and_the_file_before_defaults() {
    let file = TempFile::new("[clients]\nclients-max = 7\nidle-seconds-max = 500\n");
    let path = file.path.to_str().unwrap();
    let server = Server::start(&["--config", path, "--maxclients", "9"]);
    let mut socket = server.socket();
    for (name, value) in [("maxclients", "9"), ("timeout", "500"), ("slowlog-max-len", "128")] {
        socket.send(format!("CONFIG GET {name}\r\n").as_bytes());
        let (names, values) = (name.len(), value.len());
        socket.expect(format!("*2\r\n${names}\r\n{name}\r\n${values}\r\n{value}\r\n").as_bytes());
    }
}

#[test]
fn the_null_server_answers_everything_alike() {
    let server = Server::start(&["--null", "5"]);
    let mut socket = server.socket();
    socket.send(b"GET k\r\nanything at all\r\n");
    socket.send(&request(&[b"SET", b"k", b"v"]));
    socket.expect(&b"$5\r\nxxxxx\r\n".repeat(3));
}

#[test]
fn the_client_prints_replies() {
    let server = Server::start(&[]);
    let port = server.port.to_string();
    let run = |arguments: &[&str]| {
        let output = program().args(["cli", "-p", &port]).args(arguments).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    };
    assert_eq!(run(&["SET", "k", "a\"b"]), (String::from("OK\n"), true));
    assert_eq!(run(&["--no-raw", "GET", "k"]), (String::from("\"a\\\"b\"\n"), true));
    assert_eq!(run(&["--no-raw", "MGET", "k", "x"]).0, "1) \"a\\\"b\"\n2) (nil)\n");
    assert_eq!(run(&["GET", "k"]).0, "a\"b\n");
    assert!(!run(&["NOSUCH"]).1);
    let mut command = program();
    command.args(["cli", "--no-raw", "-p", &port]);
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut { input }, b"STRLEN k\n\nGET 'k'\nquit\nGET k\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "(integer) 3\n\"a\\\"b\"\n");
}

#[test]
fn io_threads_are_told_of_and_bounded() {
    let server = Server::start(&["--shards", "1", "--io-threads", "3"]);
    let mut clients: Vec<_> = (0..9).map(|_| server.client(2)).collect();
    let info = |client: &mut redis::Connection| -> String {
        redis::cmd("CLIENT").arg("INFO").query(client).unwrap()
    };
    for thread in 0..3 {
        // Nobody is short of time, and nobody has none.
        let has = |all: &String| all.contains(&format!(" io-thread={thread} "));
        let all: Vec<String> = clients.iter_mut().map(info).collect();
        assert!(all.iter().any(has), "{thread}: {all:?}");
    }
    let asked = redis::cmd("CONFIG").arg("GET").arg("io-threads").query(&mut clients[0]);
    assert_eq!(asked, Ok((String::from("io-threads"), 3)));
    let told: String = redis::cmd("INFO").arg("server").query(&mut clients[1]).unwrap();
    assert!(told.contains("io_threads_active:1\r\n"), "{told}");
    for (arguments, why) in [
        (["--io-threads", "0"], "io-threads is 0 (allowed: 1 to 64)"),
        (["--io-threads", "65"], "io-threads is 65 (allowed: 1 to 64)"),
        (["--io-threads", "2"], "io-threads is 2, and there are 3 shards"),
    ] {
        let shards = if arguments[1] == "2" { "3" } else { "1" };
        let error =
            refused(&[&["serve", "--port", "0", "--shards", shards][..], &arguments].concat());
        assert!(error.contains(why), "{error}");
    }
}
