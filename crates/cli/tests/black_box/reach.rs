//! Where the server connects to at clients' word, and what goes with it.

use crate::flows::{ask, settle};
use crate::receiver::Receiver;
use crate::support::{PATIENCE, Server, TempFile, program};
use redis::{Value, cmd};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver as Channel, channel};

fn bare(text: &str) -> Server {
    let file = TempFile::new(text);
    let mut command = program();
    command.args(["serve", "--port", "0", "--config", file.path.to_str().unwrap()]);
    command.env("PGPASSWORD", "ProductionDbPw");
    Server::spawn(command)
}

fn refusal(client: &mut redis::Connection, words: &[&str]) -> String {
    cmd(words[0]).arg(&words[1..]).query::<Value>(client).unwrap_err().to_string()
}

/// Something that answers as PostgreSQL does, asks for the password in the clear, and tells what comes.
fn greedy_database() -> (u16, Channel<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tells, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tells = tells.clone();
            std::thread::spawn(move || {
                let said = converse(stream).unwrap_or_default();
                // Nobody may listen any more.
                let _ = tells.send(said);
            });
        }
    });
    (port, told)
}

fn converse(mut stream: TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut word = [0; 4];
    loop {
        stream.read_exact(&mut word)?;
        let mut body = vec![0; u32::from_be_bytes(word) as usize - 4];
        stream.read_exact(&mut body)?;
        if body != [0x04, 0xD2, 0x16, 0x2F] {
            break;
        }
        // No encryption.
        stream.write_all(b"N")?;
    }
    stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 3])?;
    let mut said = Vec::new();
    let mut byte = [0; 256];
    while let Ok(count) = stream.read(&mut byte) {
        said.extend_from_slice(&byte[..count]);
        if count == 0 || said.ends_with(&[0]) {
            break;
        }
    }
    Ok(said)
}

#[test]
fn a_password_of_the_environment_goes_nowhere_that_a_client_has_named() {
    for (more, sends) in [("", false), ("source-clear-passwords = true\n", true)] {
        let (port, told) = greedy_database();
        let server = bare(&format!(
            "[listen]\nshards = 1\n[connect]\nconnect-allow = ['127.0.0.1:{port}']\n{more}"
        ));
        let mut client = server.client(3);
        let url = format!("postgres://ann@127.0.0.1:{port}/shop");
        let () = ask(&mut client, &["SOURCE.ADD", "theirs", "postgres", &url]).unwrap();
        let said = told.recv_timeout(PATIENCE).unwrap();
        assert!(!said.windows(10).any(|part| part == b"Production"), "{}", said.escape_ascii());
        // Its own password is sent in the clear only where the administrator has said so.
        let url = format!("postgres://ann:mine@127.0.0.1:{port}/shop");
        let () = ask(&mut client, &["SOURCE.ADD", "own", "postgres", &url]).unwrap();
        let began = std::time::Instant::now();
        let mut seen = false;
        while let Ok(said) = told.recv_timeout(std::time::Duration::from_millis(500)) {
            seen |= said.windows(4).any(|part| part == b"mine");
            if seen || began.elapsed() > std::time::Duration::from_secs(5) {
                break;
            }
        }
        assert_eq!(seen, sends);
        let info: BTreeMap<String, String> = ask(&mut client, &["SOURCE.INFO", "own"]).unwrap();
        assert!(!format!("{info:?}").contains("mine"), "{info:?}");
        assert!(sends || info["reason"].contains("in the clear"), "{info:?}");
    }
    // The administrator's own goes with it.
    let (port, told) = greedy_database();
    let server = bare(&format!(
        "[connect]\nsource-clear-passwords = true\n[[source]]\nname = 'ours'\nkind = 'postgres'\nurl = 'postgres://ann@127.0.0.1:{port}/shop'\n"
    ));
    let said = told.recv_timeout(PATIENCE).unwrap();
    assert!(said.windows(14).any(|part| part == b"ProductionDbPw"), "{}", said.escape_ascii());
    drop(server);
}

#[test]
fn a_source_of_a_client_is_that_of_a_client_after_a_restart() {
    for shards in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let (port, told) = greedy_database();
        let text = |rule: &str| {
            format!(
                "[listen]\nshards = {shards}\n[data]\ndata-dir = '{}/data'\n\
                 [connect]\nsource-clear-passwords = true\nconnect-allow = ['{rule}']\n",
                folder.path().display()
            )
        };
        let server = bare(&text(&format!("127.0.0.1:{port}")));
        let url = format!("postgres://ann@127.0.0.1:{port}/shop");
        let () = ask(&mut server.client(3), &["SOURCE.ADD", "s", "postgres", &url]).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), b"p\0\0\0\x05\0");
        server.signal(rustix::process::Signal::TERM);
        server.wait();
        while told.try_recv().is_ok() {}
        let server = bare(&text(&format!("127.0.0.1:{port}")));
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), b"p\0\0\0\x05\0");
        server.signal(rustix::process::Signal::TERM);
        server.wait();
        let file = TempFile::new(&text("db:1"));
        let mut command = program();
        command.args(["serve", "--port", "0", "--config", file.path.to_str().unwrap()]);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("connect-allow"), "{error}");
    }
}

#[test]
fn what_rules_do_not_name_is_refused_without_a_word_about_what_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    for shards in ["1", "2"] {
        let server = bare(&format!(
            "[listen]\nshards = {shards}\n[connect]\nconnect-allow = ['db:5432', '*.internal:443', '*:8443']\n"
        ));
        let mut client = server.client(3);
        let there = format!("127.0.0.1:{open}");
        let mut told = Vec::new();
        for place in [&*there, "127.0.0.1:1", "169.254.169.254:80", "localhost:1", "[::1]:8443"] {
            let url = format!("postgres://ann@{place}/shop");
            let error = refusal(&mut client, &["SOURCE.ADD", "s", "postgres", &url]);
            assert!(error.contains("connect-allow does not name"), "{error}");
            assert!(error.contains(&format!(" {place}")), "{error}");
            told.push(error.replace(place, ""));
            let url = format!("http://{place}/hook");
            let words = ["FLOW.ADD", "f", "ON", "n|<id>", "HTTP", "POST", &url];
            let error = refusal(&mut client, &words);
            assert!(error.contains("connect-allow does not name"), "{error}");
            let queued: redis::RedisResult<Value> =
                redis::pipe().atomic().cmd("FLOW.ADD").arg(&words[1..]).query(&mut client);
            assert!(format!("{queued:?}").contains("connect-allow"), "{queued:?}");
        }
        assert_eq!(told[0], told[1], "an open port and a closed one look alike");
        for (url, word) in [
            ("postgres://ann@db/x?passfile=/etc/passwd", "passfile"),
            ("postgres://ann@db/x?sslmode=verify-full&sslrootcert=/etc/none", "sslrootcert"),
            ("postgres://ann@db/x?sslkey=/etc/none", "sslkey"),
            ("postgres://ann@db/x?service=prod", "service"),
            ("postgres://ann@db/x?host=/run/postgresql", "connect-allow"),
        ] {
            let error = refusal(&mut client, &["SOURCE.ADD", "s", "postgres", url]);
            assert!(error.contains(word) && !error.contains("No such file"), "{url}: {error}");
        }
        for (url, told) in [
            ("http://u:hunter2@", "names no host"),
            ("http://u:hunter2@[::1", "not closed"),
            ("http://u:hunt er2@x.internal:443/", "no space"),
            ("http://u:hunter2@x.internal:99999/", "no number from 0 to 65535"),
            ("u:hunter2@x.internal:443", "begins with http://"),
            ("http://u:hunter2@x.inter\\nal:443", "is none"),
        ] {
            let error =
                refusal(&mut client, &["FLOW.ADD", "f", "ON", "n|<id>", "HTTP", "POST", url]);
            assert!(error.contains(told) && !error.contains("hunt"), "{url}: {error}");
        }
        let none: Vec<Value> = ask(&mut client, &["SOURCE.LIST"]).unwrap();
        let flows: Vec<Value> = ask(&mut client, &["FLOW.LIST"]).unwrap();
        assert!(none.is_empty() && flows.is_empty());
    }
    assert!(listener.accept().is_err(), "nobody has come");
}

#[test]
fn where_a_name_leads_is_looked_at_when_it_is_connected_to() {
    let receiver = Receiver::start();
    let port = receiver.address.port();
    // Any host of this port may be named; one that is this machine under another name may not be reached.
    let server = bare(&format!("[listen]\nshards = 2\n[connect]\nconnect-allow = ['*:{port}']\n"));
    let mut client = server.client(3);
    for (name, host) in
        [("a", "localhost"), ("b", "0x7f000001"), ("c", "127.1"), ("d", "2130706433")]
    {
        let url = format!("http://{host}:{port}/hook");
        let add = ["FLOW.ADD", name, "ON", "n|<id>", "HTTP", "POST", &url, "MAX-ATTEMPTS", "1"];
        let _: Value = ask(&mut client, &add).unwrap();
    }
    let () = ask(&mut client, &["SET", "n|1", "secret"]).unwrap();
    for name in ["a", "b", "c", "d"] {
        settle(&mut client, name);
        let dead: Vec<BTreeMap<String, String>> = ask(&mut client, &["FLOW.DEAD", name]).unwrap();
        assert_eq!(dead.len(), 1, "{dead:?}");
    }
    let dead: Vec<BTreeMap<String, String>> = ask(&mut client, &["FLOW.DEAD", "a"]).unwrap();
    assert!(dead[0]["error"].contains("connect-allow"), "{dead:?}");
    assert_eq!(receiver.got().len(), 0);
    // By its address it may.
    let server =
        bare(&format!("[connect]\nconnect-allow = ['localhost:{port}', '127.0.0.1:{port}']\n"));
    let mut client = server.client(3);
    let url = format!("http://ann:hunter2@localhost:{port}/hook?api_token=hunter3");
    let _: Value =
        ask(&mut client, &["FLOW.ADD", "f", "ON", "n|<id>", "HTTP", "POST", &url]).unwrap();
    let () = ask(&mut client, &["SET", "n|1", "x"]).unwrap();
    receiver.wait_for(1);
    // What proves who posts is not shown.
    let () = ask(&mut client, &["CONFIG", "SET", "slowlog-log-slower-than", "0"]).unwrap();
    let again = ["FLOW.ADD", "g", "ON", "n|<id>", "HTTP", "POST", &url];
    let _: Value = ask(&mut client, &again).unwrap();
    let shown: Vec<Value> = ask(&mut client, &["FLOW.LIST"]).unwrap();
    let slow: Value = ask(&mut client, &["SLOWLOG", "GET"]).unwrap();
    let text = format!("{shown:?} {slow:?}");
    assert!(text.contains("(redacted)") && text.contains("/hook"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("hunter3"), "{text}");
}

#[test]
fn what_the_configuration_declares_goes_where_it_says() {
    let receiver = Receiver::start();
    let url = format!("http://{}/hook", receiver.address);
    let server = bare(&format!("[[flow]]\nname = 'ours'\non = 'n|<id>'\npost = '{url}'\n"));
    let mut client = server.client(3);
    let () = ask(&mut client, &["SET", "n|1", "x"]).unwrap();
    receiver.wait_for(1);
    // A client cannot have one of the same name go elsewhere.
    let _: Value = ask(&mut client, &["FLOW.DROP", "ours"]).unwrap();
    let error = refusal(
        &mut client,
        &["FLOW.ADD", "ours", "ON", "n|<id>", "HTTP", "POST", "http://127.0.0.1:1/"],
    );
    assert!(error.contains("connect-allow"), "{error}");
}
