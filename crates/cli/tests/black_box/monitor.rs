//! MONITOR: what all clients ask, at whatever shard, without secrets.

use crate::support::{Server, Socket, request};
use redis::{Connection, Value, cmd};

fn ask(client: &mut Connection, words: &[&str]) -> redis::RedisResult<Value> {
    let mut all = cmd(words[0]);
    words[1..].iter().for_each(|word| {
        all.arg(word);
    });
    all.query(client)
}

fn monitor(server: &Server) -> Socket {
    let mut socket = server.socket();
    socket.send(&request(&[b"MONITOR"]));
    socket.expect(b"+OK\r\n");
    socket
}

/// The words of the next line, behind its time and client.
fn shown(monitor: &mut Socket) -> String {
    let line = String::from_utf8(monitor.until(b"\r\n")).unwrap();
    assert!(line.starts_with('+') && line.contains(" [0 127.0.0.1:"), "{line}");
    line.split_once("] ").unwrap().1.trim_end().to_owned()
}

#[test]
fn requests_of_all_shards_are_shown_once() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut clients: Vec<_> = (0..6).map(|_| server.client(3)).collect();
        let mut monitors = [monitor(&server), monitor(&server)];
        let mut expected = Vec::new();
        for (at, client) in clients.iter_mut().enumerate() {
            for key in 0..6 {
                ask(client, &["SET", &format!("k|{key}|{at}"), "a b"]).unwrap();
                expected.push(format!("\"SET\" \"k|{key}|{at}\" \"a b\""));
            }
            // Several shards have parts of these.
            ask(client, &["MGET", "k|0|0", "k|1|0", "k|2|0", "k|3|0"]).unwrap();
            expected.push(String::from("\"MGET\" \"k|0|0\" \"k|1|0\" \"k|2|0\" \"k|3|0\""));
            ask(client, &["DEL", "k|0|0", "k|1|0", "k|2|0", "k|3|0"]).unwrap();
            expected.push(String::from("\"DEL\" \"k|0|0\" \"k|1|0\" \"k|2|0\" \"k|3|0\""));
        }
        for monitor in &mut monitors {
            let mut lines: Vec<String> = expected.iter().map(|_| shown(monitor)).collect();
            // Those of different shards may come in another order.
            lines.sort_unstable();
            expected.sort_unstable();
            assert_eq!(lines, expected);
        }
    }
}

#[test]
fn transactions_are_shown_when_they_are_executed() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(3);
        for keys in [&["a|1|x"][..], &["a|1|x", "b|2|x", "c|3|x", "d|4|x", "e|5|x"]] {
            let mut monitor = monitor(&server);
            let mut pipe = redis::pipe();
            pipe.atomic();
            for key in keys {
                pipe.cmd("INCR").arg(key);
            }
            let _: Value = pipe.query(client).unwrap();
            ask(client, &["GET", "end"]).unwrap();
            let mut lines = vec![shown(&mut monitor)];
            while lines.last().unwrap() != "\"GET\" \"end\"" {
                lines.push(shown(&mut monitor));
            }
            let mut expected = vec![String::from("\"MULTI\"")];
            expected.extend(keys.iter().map(|key| format!("\"INCR\" \"{key}\"")));
            // As in Redis, it is shown when it is done.
            expected.push(String::from("\"EXEC\""));
            expected.push(String::from("\"GET\" \"end\""));
            assert_eq!(lines, expected);
        }
    }
}

#[test]
fn requests_whose_arguments_are_wrong_are_shown_and_what_is_no_request_is_not() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(3);
        let mut monitor = monitor(&server);
        let wrong: [&[&str]; 5] = [
            &["SET", "a", "b", "FOO"],
            &["SET", "k", "v", "EX", "0"],
            &["SELECT", "99"],
            &["HELLO", "9", "AUTH", "ann", "hunter2"],
            &["GETEX", "k", "EX", "many"],
        ];
        for words in [&["GET"][..], &["NOSUCH", "a"], &["OBJECT", "NOSUCH", "a"]] {
            ask(client, words).unwrap_err();
        }
        for words in wrong {
            ask(client, words).unwrap_err();
            let quoted = |(at, word): (usize, &&str)| match words[0] {
                "HELLO" if at > 2 => String::from("\"(redacted)\""),
                _ => format!("\"{word}\""),
            };
            let expected: Vec<String> = words.iter().enumerate().map(quoted).collect();
            assert_eq!(shown(&mut monitor), expected.join(" "));
        }
    }
}

#[test]
fn secrets_and_administration_are_not_shown() {
    let server = Server::start(&["--shards", "3"]);
    let client = &mut server.client(3);
    let rules = ["SETUSER", "ann", "on", ">hunter2", "~a*", "+get", "+monitor", "+auth", "+reset"];
    let _: Value = cmd("ACL").arg(&rules).query(client).unwrap();
    let mut monitor = monitor(&server);
    ask(client, &["CONFIG", "SET", "requirepass", "hunter2"]).unwrap();
    let mut ann = server.socket();
    ann.send(&request(&[b"AUTH", b"ann", b"hunter2"]));
    ann.expect(b"+OK\r\n");
    ask(client, &["SET", "url", "http://me:hunter2@there"]).unwrap();
    // Those of different shards may come in another order.
    let mut lines = [shown(&mut monitor), shown(&mut monitor)];
    lines.sort_unstable();
    assert_eq!(lines[0], "\"AUTH\" \"(redacted)\" \"(redacted)\"");
    assert_eq!(lines[1], "\"SET\" \"url\" \"http://me:(redacted)@there\"");
    // Whoever may not read all keys is shown none.
    ann.send(&request(&[b"MONITOR"]));
    ann.expect(b"-NOPERM No permissions to access all keys of a range\r\n");
    ask(client, &["ACL", "SETUSER", "ann", "allkeys"]).unwrap();
    ann.send(&request(&[b"MONITOR"]));
    ann.expect(b"-NOPERM No permissions to access a channel\r\n");
    // As what it would be told says, and what is noted.
    let told: String = cmd("ACL").arg(&["DRYRUN", "ann", "MONITOR"]).query(client).unwrap();
    assert!(told.contains("no permissions to access the '*' channel"), "{told}");
    let log = format!("{:?}", ask(client, &["ACL", "LOG"]).unwrap());
    assert!(log.contains("channel") && log.contains("[, end)"), "{log}");
}

#[test]
fn who_monitors_no_more_is_shown_nothing() {
    let server = Server::start(&["--shards", "3"]);
    let client = &mut server.client(3);
    let mut reset = monitor(&server);
    let list =
        |client: &mut Connection| -> String { cmd("CLIENT").arg("LIST").query(client).unwrap() };
    assert!(list(client).contains(" flags=O "));
    reset.send(&request(&[b"RESET"]));
    reset.expect(b"+RESET\r\n");
    assert!(!list(client).contains(" flags=O "));
    ask(client, &["SET", "k", "v"]).unwrap();
    reset.send(&request(&[b"PING"]));
    reset.expect(b"+PONG\r\n");
    // One that has lost its right is ended.
    let rules = ["SETUSER", "ann", "on", "nopass", "allkeys", "allchannels", "+@all"];
    let _: Value = cmd("ACL").arg(&rules).query(client).unwrap();
    let mut ann = server.socket();
    ann.send(&request(&[b"AUTH", b"ann", b"x"]));
    ann.expect(b"+OK\r\n");
    ann.send(&request(&[b"MONITOR"]));
    ann.expect(b"+OK\r\n");
    let _: Value = cmd("ACL").arg(&["SETUSER", "ann", "-monitor"]).query(client).unwrap();
    ask(client, &["SET", "k", "v"]).unwrap();
    ann.expect_end(b"");
}
