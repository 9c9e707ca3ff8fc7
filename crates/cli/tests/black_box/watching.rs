//! RANGE.WATCH through bare sockets, over both versions of the protocol, with one shard and with several.

use crate::support::{PATIENCE, Server, Socket, request};
use redis::{Commands, cmd};
use std::time::Instant;

/// Runs a test with one shard, and with several, with these further settings.
fn with_shards(config: &str, test: impl Fn(&Server)) {
    let file = crate::support::TempFile::new(config);
    for shards in ["1", "3"] {
        let path = file.path.to_str().unwrap();
        test(&Server::start(&["--config", path, "--shards", shards]));
    }
}

/// A connection that speaks this version.
fn speaking(server: &Server, version: u8) -> Socket {
    let mut socket = server.socket();
    if version == 3 {
        socket.send(&request(&[b"HELLO", b"3"]));
        socket.until(b"modules\r\n*0\r\n");
    }
    socket
}

/// Sends a RANGE.WATCH, and gives its id and position.
fn watch(socket: &mut Socket, words: &[&[u8]]) -> (String, String) {
    let mut all: Vec<&[u8]> = vec![b"RANGE.WATCH"];
    all.extend(words);
    socket.send(&request(&all));
    socket.expect(b"*2\r\n:");
    let mut line = || {
        let mut line = socket.until(b"\r\n");
        line.truncate(line.len() - 2);
        String::from_utf8(line).unwrap()
    };
    let id = line();
    let _length = line();
    (id, line())
}

/// A message: its words. Nothing is `-`.
fn message(socket: &mut Socket, version: u8) -> Vec<String> {
    let mut line = || {
        let line = socket.until(b"\r\n");
        String::from_utf8(line[..line.len() - 2].to_vec()).unwrap()
    };
    let head = line();
    let kind = if version == 3 { '>' } else { '*' };
    let count: usize = head.strip_prefix(kind).expect("a message").parse().unwrap();
    (0..count)
        .map(|_| {
            let head = line();
            match head.as_bytes()[0] {
                b'$' if head != "$-1" => line(),
                b':' => head[1..].to_owned(),
                _ => String::from("-"),
            }
        })
        .collect()
}

/// The next message is a change of this watch: its position. Several shards may have it read again before, each for its part.
#[track_caller]
fn changed(socket: &mut Socket, version: u8, id: &str, what: [&str; 3]) -> String {
    let mut words = message(socket, version);
    while words == ["range-resync", id] {
        words = message(socket, version);
    }
    let position = words.get(2).cloned().unwrap_or_default();
    assert_eq!(words, ["range-change", id, &position, what[0], what[1], what[2]]);
    position
}

/// The next messages are these changes, in an order that is open between keys of different shards.
#[track_caller]
fn all_changed(socket: &mut Socket, version: u8, wanted: &[(&str, [&str; 3])]) {
    let mut all: Vec<Vec<String>> = wanted.iter().map(|_| message(socket, version)).collect();
    all.iter_mut().for_each(|words| _ = words.remove(2));
    all.sort();
    let with_head = |(id, what): &(&str, [&str; 3])| -> Vec<String> {
        ["range-change", id].iter().chain(what).map(|&word| word.to_owned()).collect()
    };
    let mut wanted: Vec<_> = wanted.iter().map(with_head).collect();
    wanted.sort();
    assert_eq!(all, wanted);
}

#[track_caller]
fn resynced(socket: &mut Socket, version: u8, id: &str) {
    assert_eq!(message(socket, version), ["range-resync", id]);
}

fn counter(client: &mut redis::Connection, name: &str) -> u64 {
    let info: redis::InfoDict = cmd("INFO").arg("stats").query(client).unwrap();
    info.get(name).unwrap()
}

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

#[test]
fn changes_of_base_and_derived_keys_are_told() {
    with_shards("", |server| {
        let client = &mut server.client(2);
        let () = cmd("JOIN.ADD")
            .arg("timeline")
            .arg(TIMELINE)
            .query(client)
            .map(|_: redis::Value| ())
            .unwrap();
        for version in [2, 3] {
            let _: () = cmd("FLUSHALL").query(client).unwrap();
            let _: () = client.set("s|ann|bob", 1).unwrap();
            let _: () = client.set("p|bob|1", "one").unwrap();
            let mut socket = speaking(server, version);
            let (line, _) = watch(&mut socket, &[b"t|ann|", b"t|ann}"]);
            let (posts, _) = watch(&mut socket, &[b"p|", b"p}"]);
            assert_ne!(line, posts);
            let _: () = client.set("p|bob|2", "two").unwrap();
            let post = ["set", "p|bob|2", "two"];
            let told = [(&*posts, post), (&*line, ["set", "t|ann|2|bob", "two"])];
            all_changed(&mut socket, version, &told);
            // A subscription is applied by the next read, or for who watches.
            let _: () = client.set("p|cid|3", "three").unwrap();
            changed(&mut socket, version, &posts, ["set", "p|cid|3", "three"]);
            let _: () = client.set("s|ann|cid", 1).unwrap();
            changed(&mut socket, version, &line, ["set", "t|ann|3|cid", "three"]);
            let _: () = client.del("s|ann|bob").unwrap();
            let gone = [message(&mut socket, version), message(&mut socket, version)];
            assert!(gone.iter().all(|words| words[3] == "del" && words[5] == "-"), "{gone:?}");
            socket.send(&request(&[b"RANGE.UNWATCH", posts.as_bytes()]));
            socket.expect(b"+OK\r\n");
            let _: () = client.set("p|cid|4", "four").unwrap();
            changed(&mut socket, version, &line, ["set", "t|ann|4|cid", "four"]);
            // Not before: of two changes that come together only the last need be told.
            let _: () = client.pexpire("p|cid|4", 1).unwrap();
            changed(&mut socket, version, &line, ["del", "t|ann|4|cid", "-"]);
            let _: () = cmd("FLUSHALL").query(client).unwrap();
            resynced(&mut socket, version, &line);
            let _: () = client.mset(&[("s|ann|dan", "1"), ("p|dan|5", "five")]).unwrap();
            // Another shard that was flushed later may have it read once more instead.
            let mut words = message(&mut socket, version);
            if words[0] == "range-resync" {
                let read = || -> Vec<(String, String)> {
                    cmd("RANGE").arg("t|ann|").arg("t|ann}").query(&mut server.client(2)).unwrap()
                };
                assert_eq!(words, ["range-resync", &line]);
                if read() == [(String::from("t|ann|5|dan"), String::from("five"))] {
                    continue;
                }
                words = message(&mut socket, version);
            }
            assert_eq!(&words[3..], ["set", "t|ann|5|dan", "five"]);
        }
    });
}

#[test]
fn a_connection_that_watches_hears_of_its_own_writes_in_order() {
    with_shards("", |server| {
        let mut socket = speaking(server, 3);
        let (id, _) = watch(&mut socket, &[b"a", b"b"]);
        let requests =
            [request(&[b"SET", b"a1", b"x"]), request(&[b"GET", b"a1"]), request(&[b"DEL", b"a1"])];
        socket.send(&requests.concat());
        socket.expect(b"+OK\r\n");
        changed(&mut socket, 3, &id, ["set", "a1", "x"]);
        socket.expect(b"$1\r\nx\r\n:1\r\n");
        changed(&mut socket, 3, &id, ["del", "a1", "-"]);
        socket.send(&request(&[b"RESET"]));
        socket.expect(b"+RESET\r\n");
        let client = &mut server.client(2);
        let _: () = client.set("a2", 1).unwrap();
        assert_eq!(counter(client, "range_watches"), 0);
        socket.send(&request(&[b"PING"]));
        socket.expect(b"+PONG\r\n");
    });
}

#[test]
fn a_resp2_connection_that_watches_is_for_that_alone() {
    with_shards("", |server| {
        let mut socket = server.socket();
        let (id, _) = watch(&mut socket, &[b"", b""]);
        socket.send(&request(&[b"GET", b"a"]));
        let refusal = socket.until(b"\r\n");
        assert!(
            refusal.starts_with(b"-ERR Can't execute 'get': only RANGE.WATCH / RANGE.UNWATCH / ")
        );
        socket.send(&request(&[b"PING"]));
        socket.expect(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n");
        let client = &mut server.client(3);
        let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
        assert!(
            list.lines().any(|line| line.contains("flags=P") && line.ends_with("range-watches=1"))
        );
        socket.send(&request(&[b"RANGE.UNWATCH", b"1"]));
        socket.expect(b"-ERR this connection has no watch 1\r\n");
        socket.send(&request(&[b"RANGE.UNWATCH", id.as_bytes()]));
        socket.expect(b"+OK\r\n");
        socket.send(&request(&[b"GET", b"a"]));
        socket.expect(b"$-1\r\n");
    });
}

#[test]
fn what_cannot_be_watched_is_refused() {
    with_shards("", |server| {
        let client = &mut server.client(2);
        let _: redis::Value =
            cmd("JOIN.ADD").arg("o").arg("o|<a> = pull copy x|<a>").query(client).unwrap();
        let error = |words: &[&str], client: &mut redis::Connection| {
            let mut command = cmd("RANGE.WATCH");
            words.iter().for_each(|word| _ = command.arg(word));
            command.query::<redis::Value>(client).unwrap_err().to_string()
        };
        assert!(error(&["o|", "o}"], client).contains("pull join 'o'"));
        assert!(error(&["b", "a"], client).contains("the range is empty"));
        assert!(error(&["a", "b", "FROM"], client).contains("allowed is FROM position"));
        assert!(error(&["a", "b", "SINCE", "x"], client).contains("'SINCE'"));
        assert_eq!(counter(client, "range_watches"), 0);
    });
}

#[test]
fn a_client_that_comes_back_is_told_what_it_has_missed() {
    with_shards("", |server| {
        let client = &mut server.client(2);
        for version in [2, 3] {
            let mut socket = speaking(server, version);
            let (id, begin) = watch(&mut socket, &[b"a", b"c"]);
            let _: () = client.set("a1", "one").unwrap();
            let position = changed(&mut socket, version, &id, ["set", "a1", "one"]);
            assert_ne!(begin, position);
            drop(socket);
            let _: () = client.set("a2", "two").unwrap();
            let _: () = client.set("d", "elsewhere").unwrap();
            let _: () = client.del("a1").unwrap();
            let mut socket = speaking(server, version);
            let (id, _) = watch(&mut socket, &[b"a", b"c", b"FROM", position.as_bytes()]);
            changed(&mut socket, version, &id, ["set", "a2", "two"]);
            changed(&mut socket, version, &id, ["del", "a1", "-"]);
            let _: () = client.set("b", "more").unwrap();
            changed(&mut socket, version, &id, ["set", "b", "more"]);
            // A part of the range is known, too; more than the range is not.
            let (part, _) = watch(&mut socket, &[b"b", b"c", b"FROM", begin.as_bytes()]);
            changed(&mut socket, version, &part, ["set", "b", "more"]);
            let last: &[u8] = if version == 2 { b"e" } else { b"f" };
            let (wide, _) = watch(&mut socket, &[b"a", last, b"FROM", begin.as_bytes()]);
            resynced(&mut socket, version, &wide);
            let (other, _) = watch(&mut socket, &[b"a", b"c", b"FROM", b"another-1"]);
            resynced(&mut socket, version, &other);
            let _: () = client.del("b").unwrap();
        }
    });
}

#[test]
fn history_is_bounded() {
    with_shards("[clients]\nwatch-history-bytes-max = 2000\n", |server| {
        let client = &mut server.client(2);
        let mut socket = server.socket();
        let (id, begin) = watch(&mut socket, &[b"a", b"b"]);
        for at in 0..100 {
            let _: () = client.set("a", at).unwrap();
            changed(&mut socket, 2, &id, ["set", "a", &at.to_string()]);
        }
        assert!(counter(client, "range_history_bytes") <= 2000);
        let (again, _) = watch(&mut socket, &[b"a", b"b", b"FROM", begin.as_bytes()]);
        resynced(&mut socket, 2, &again);
    });
}

#[test]
fn a_client_that_does_not_keep_up_is_told_to_read_again_once() {
    with_shards("[clients]\nwatch-output-bytes-max = 200000\n", |server| {
        let client = &mut server.client(2);
        let mut slow = speaking(server, 3);
        let (id, _) = watch(&mut slow, &[b"a", b"b"]);
        let value = vec![b'x'; 50_000];
        let mut writes = 0;
        while writes < 400 {
            let _: () = client.set("a", &value).unwrap();
            writes += 1;
        }
        // What it was sent comes, then the notice, then changes again; on a busy machine more than once.
        let (mut seen, mut resyncs, mut was_resync) = (0, 0, true);
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE);
            let words = message(&mut slow, 3);
            assert_eq!(words[1], id);
            if words[0] == "range-resync" {
                assert!(!was_resync, "one notice tells it all");
                resyncs += 1;
                let _: () = client.set("a", format!("after {resyncs}")).unwrap();
            } else if words[5] == format!("after {resyncs}") {
                break;
            } else {
                seen += 1;
            }
            was_resync = words[0] == "range-resync";
        }
        assert!(seen < writes, "{seen} of {writes} changes were sent");
        assert_eq!(counter(client, "range_resyncs_sent"), resyncs);
    });
}

#[test]
fn many_watchers_hear_of_one_change() {
    with_shards("", |server| {
        let client = &mut server.client(2);
        let mut sockets: Vec<(Socket, u8, String)> = (0..20)
            .map(|at| {
                let version = 2 + at % 2;
                let mut socket = speaking(server, version);
                let (id, _) = watch(&mut socket, &[b"a", b"b"]);
                (socket, version, id)
            })
            .collect();
        let _: () = client.set("a", "x").unwrap();
        for (socket, version, id) in &mut sockets {
            changed(socket, *version, id, ["set", "a", "x"]);
        }
        assert_eq!(counter(client, "range_changes_sent"), 20);
        drop(sockets);
        let began = Instant::now();
        while counter(client, "range_watches") > 0 {
            assert!(began.elapsed() < PATIENCE);
        }
    });
}
