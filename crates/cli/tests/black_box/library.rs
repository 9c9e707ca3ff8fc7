//! The server through the client library redis-rs, in RESP2 and in RESP3.

use crate::support::{PATIENCE, Server};
use redis::{Commands, Connection, ErrorKind, RedisResult, ServerErrorKind, Value, cmd, pipe};
use std::time::{Duration, Instant};

/// Runs a test in both versions of the protocol, each on a server of its own.
fn in_both(test: impl Fn(&Server, &mut Connection, u8)) {
    for protocol in [2, 3] {
        let server = Server::start(&[]);
        let mut client = server.client(protocol);
        test(&server, &mut client, protocol);
    }
}

/// The text of an error reply, with its code word.
fn refusal<T: std::fmt::Debug>(result: RedisResult<T>) -> String {
    let error = result.unwrap_err();
    format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
}

fn get(client: &mut Connection, key: &str) -> Option<String> {
    client.get(key).unwrap()
}

#[test]
fn strings() {
    in_both(|_, client, _| {
        let _: () = client.set("k", "one").unwrap();
        assert_eq!(get(client, "k").as_deref(), Some("one"));
        assert_eq!(get(client, "none"), None);
        assert_eq!(client.append("k", " two"), Ok(7));
        assert_eq!(client.strlen("k"), Ok(7));
        assert_eq!(client.getrange("k", -3, -1), Ok(String::from("two")));
        assert_eq!(client.setrange("k", 0, "ONE"), Ok(7));
        assert_eq!(client.set_nx("k", "x"), Ok(false));
        assert_eq!(client.getset("k", "new"), Ok(String::from("ONE two")));
        assert_eq!(client.get_del("k"), Ok(String::from("new")));
        assert_eq!(client.exists("k"), Ok(false));
        let _: () = client.mset(&[("a", "1"), ("b", "2")]).unwrap();
        let values: Vec<Option<i64>> = client.mget(&["a", "none", "b"]).unwrap();
        assert_eq!(values, [Some(1), None, Some(2)]);
        assert_eq!(client.incr("a", 41), Ok(42));
        assert_eq!(client.decr("a", 2), Ok(40));
        assert_eq!(client.incr("a", 0.5), Ok(40.5));
        let wrong = "ERR value is not an integer or out of range";
        assert_eq!(refusal(client.incr::<_, _, i64>("a", 1)), wrong);
        assert_eq!(client.del(&["a", "b", "none"]), Ok(2));
        let bytes: Vec<u8> = (0..=255).collect();
        let _: () = client.set(&bytes, &bytes).unwrap();
        assert_eq!(client.get(&bytes), Ok(bytes));
    });
}

#[test]
fn refusals_have_the_texts_of_redis() {
    in_both(|_, client, _| {
        for (words, text) in [
            (&["GET"][..], "ERR wrong number of arguments for 'get' command"),
            (&["SET", "k", "v", "XX", "NX"], "ERR syntax error"),
            (&["SET", "k", "v", "EX", "0"], "ERR invalid expire time in 'set' command"),
            (
                &["LPUSH", "k", "v"],
                "ERR unknown command 'LPUSH', with args beginning with: 'k' 'v' ",
            ),
            (&["CONFIG", "X"], "ERR unknown subcommand 'X'. Try CONFIG HELP."),
            (&["SELECT", "1"], "ERR DB index is out of range"),
            (&["EXEC"], "ERR EXEC without MULTI"),
        ] {
            let result = cmd(words[0]).arg(&words[1..]).query::<Value>(client);
            assert_eq!(refusal(result), text);
        }
    });
}

#[test]
fn long_keys_and_values_name_the_limit() {
    let server = Server::with_config("[limits]\nvalue-bytes-max = 100\n");
    let client = &mut server.client(2);
    let text = refusal(client.set::<_, _, ()>("k".repeat(1025), "v"));
    assert!(text.contains("1025") && text.contains("1024 (key-bytes-max)"), "{text}");
    let text = refusal(client.set::<_, _, ()>("k", "v".repeat(101)));
    assert!(text.contains("101") && text.contains("100 (value-bytes-max)"), "{text}");
    let _: () = client.set("k".repeat(1024), "v".repeat(100)).unwrap();
}

#[test]
fn expiry() {
    in_both(|_, client, _| {
        let _: () = client.set_ex("k", "v", 100).unwrap();
        assert!((99..=100).contains(&client.ttl::<_, i64>("k").unwrap()));
        assert_eq!(client.persist("k"), Ok(true));
        assert_eq!(client.ttl("k"), Ok(-1));
        assert_eq!(client.ttl("none"), Ok(-2));
        assert_eq!(client.pexpire("k", 30), Ok(true));
        let began = Instant::now();
        while get(client, "k").is_some() {
            assert!(began.elapsed() < PATIENCE);
        }
        // A key goes when nobody asks for it, too.
        let _: () = client.pset_ex("k", "v", 20).unwrap();
        while cmd("DBSIZE").query::<u64>(client).unwrap() > 0 {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn ranges_and_prefixes() {
    in_both(|_, client, protocol| {
        for (key, value) in [("t|ann|1", "a"), ("t|ann|2", "b"), ("t|ann|3", ""), ("t|bob|1", "c")]
        {
            let _: () = client.set(key, value).unwrap();
        }
        let run = |client: &mut Connection, words: &[&str]| {
            cmd(words[0]).arg(&words[1..]).query::<Vec<(String, String)>>(client).unwrap()
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            run(client, &["PREFIX", "t|ann|"]),
            [pair("t|ann|1", "a"), pair("t|ann|2", "b"), pair("t|ann|3", "")]
        );
        assert_eq!(
            run(client, &["PREFIX", "t|", "REV", "LIMIT", "2"]),
            [pair("t|bob|1", "c"), pair("t|ann|3", "")]
        );
        assert_eq!(run(client, &["RANGE", "t|ann|2", "t|ann|3"]), [pair("t|ann|2", "b")]);
        assert_eq!(run(client, &["RANGE", "t|ann|3", ""]).len(), 2);
        let keys: Vec<String> = cmd("PREFIX").arg(&["t|ann|", "KEYS"]).query(client).unwrap();
        assert_eq!(keys, ["t|ann|1", "t|ann|2", "t|ann|3"]);
        let count: u64 = cmd("PREFIX").arg(&["t|", "COUNT"]).query(client).unwrap();
        assert_eq!(count, 4);
        let raw: Value = cmd("PREFIX").arg("t|bob|").query(client).unwrap();
        assert_eq!(matches!(raw, Value::Map(_)), protocol == 3, "{raw:?}");
        let removed: u64 = cmd("RANGE.DEL").arg(&["t|ann|", "t|ann|3"]).query(client).unwrap();
        assert_eq!(removed, 2);
        assert_eq!(run(client, &["PREFIX", "t|ann|"]), [pair("t|ann|3", "")]);
    });
}

#[test]
fn pipelines_are_answered_in_order() {
    in_both(|_, client, _| {
        let mut requests = pipe();
        for at in 0..5_000 {
            requests.set(format!("k{at}"), at).ignore().get(format!("k{}", at / 2));
        }
        let values: Vec<i64> = requests.query(client).unwrap();
        assert_eq!(values, (0..5_000).map(|at| at / 2).collect::<Vec<_>>());
        // Large replies amid small ones.
        let large = "v".repeat(300_000);
        let _: () = client.set("large", &large).unwrap();
        let mut requests = pipe();
        for _ in 0..40 {
            requests.get("large").get("k7");
        }
        let values: Vec<String> = requests.query(client).unwrap();
        assert!(values.chunks(2).all(|two| two[0] == large && two[1] == "7"));
    });
}

#[test]
fn transactions() {
    in_both(|server, client, _| {
        let (a, b): (i64, String) =
            pipe().atomic().incr("a", 5).set("b", "x").ignore().get("b").query(client).unwrap();
        assert_eq!((a, b.as_str()), (5, "x"));
        let raw = |client: &mut Connection, words: &[&str]| {
            cmd(words[0]).arg(&words[1..]).query::<Value>(client)
        };
        let queued = Ok(Value::SimpleString(String::from("QUEUED")));
        // A request that cannot be queued ends the transaction.
        raw(client, &["MULTI"]).unwrap();
        assert_eq!(raw(client, &["INCR", "a"]), queued);
        assert!(refusal(raw(client, &["INCR"])).contains("wrong number of arguments"));
        let aborted = raw(client, &["EXEC"]).unwrap_err();
        assert_eq!(aborted.kind(), ErrorKind::Server(ServerErrorKind::ExecAbort));
        assert_eq!(get(client, "a").as_deref(), Some("5"));
        // One that fails when executed does not.
        let mut socket = server.socket();
        socket.send(b"MULTI\r\nINCR b\r\nINCR a\r\nEXEC\r\n");
        socket.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n");
        socket.expect(b"-ERR value is not an integer or out of range\r\n:6\r\n");
        raw(client, &["MULTI"]).unwrap();
        raw(client, &["SET", "a", "0"]).unwrap();
        raw(client, &["DISCARD"]).unwrap();
        assert_eq!(get(client, "a").as_deref(), Some("6"));
        assert_eq!(refusal(raw(client, &["DISCARD"])), "ERR DISCARD without MULTI");
        // Nobody else sees the middle.
        let mut other = server.client(2);
        raw(client, &["MULTI"]).unwrap();
        raw(client, &["SET", "a", "9"]).unwrap();
        assert_eq!(get(&mut other, "a").as_deref(), Some("6"));
        raw(client, &["EXEC"]).unwrap();
        assert_eq!(get(&mut other, "a").as_deref(), Some("9"));
    });
}

#[test]
fn watched_keys() {
    in_both(|server, client, _| {
        let mut other = server.client(2);
        let raw = |client: &mut Connection, words: &[&str]| {
            cmd(words[0]).arg(&words[1..]).query::<Value>(client).unwrap()
        };
        let _: () = client.set("k", 1).unwrap();
        let try_it = |client: &mut Connection, meanwhile: &mut dyn FnMut()| {
            raw(client, &["WATCH", "k", "absent"]);
            meanwhile();
            raw(client, &["MULTI"]);
            raw(client, &["GET", "k"]);
            raw(client, &["EXEC"])
        };
        let one = Value::Array(vec![Value::BulkString(b"1".to_vec())]);
        assert_eq!(try_it(client, &mut || {}), one);
        let mut unrelated = || other.set::<_, _, ()>("unrelated", 1).unwrap();
        assert_eq!(try_it(client, &mut unrelated), one);
        for words in [&["SET", "k", "1"][..], &["SET", "absent", "1"], &["DEL", "absent"]] {
            assert_eq!(
                try_it(client, &mut || drop(raw(&mut other, words))),
                Value::Nil,
                "{words:?}"
            );
        }
        raw(client, &["WATCH", "k"]);
        raw(&mut other, &["SET", "k", "1"]);
        raw(client, &["UNWATCH"]);
        assert_eq!(try_it(client, &mut || {}), one);
        // A key that expires has changed.
        raw(&mut other, &["SET", "absent", "1", "PX", "20"]);
        let gone = || std::thread::sleep(Duration::from_millis(200));
        assert_eq!(try_it(client, &mut { gone }), Value::Nil);
    });
}

#[test]
fn channels() {
    let server = Server::start(&[]);
    let mut speaker = server.client(3);
    let mut listening = server.client(2);
    listening.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut channel = listening.as_pubsub();
    channel.subscribe(&["news", "sport"]).unwrap();
    channel.psubscribe("n*").unwrap();
    assert_eq!(speaker.publish("news", "rain"), Ok(2));
    assert_eq!(speaker.publish("sport", "won"), Ok(1));
    assert_eq!(speaker.publish("silence", "x"), Ok(0));
    let mut got: Vec<(String, String, Option<String>)> = (0..3)
        .map(|_| {
            let message = channel.get_message().unwrap();
            let name = message.get_channel_name().to_owned();
            (name, message.get_payload().unwrap(), message.get_pattern().unwrap())
        })
        .collect();
    got.sort();
    let triple = |channel: &str, text: &str, pattern: Option<&str>| {
        (channel.to_owned(), text.to_owned(), pattern.map(str::to_owned))
    };
    let expected = [
        triple("news", "rain", None),
        triple("news", "rain", Some("n*")),
        triple("sport", "won", None),
    ];
    assert_eq!(got, expected);
    let names: Vec<String> = cmd("PUBSUB").arg("CHANNELS").arg("s*").query(&mut speaker).unwrap();
    assert_eq!(names, ["sport"]);
    assert_eq!(cmd("PUBSUB").arg("NUMPAT").query(&mut speaker), Ok(1));
    channel.unsubscribe("news").unwrap();
    channel.punsubscribe("n*").unwrap();
    assert_eq!(speaker.publish("news", "rain"), Ok(0));
    drop(channel);
}

#[test]
fn pushes_come_between_replies_in_resp3() {
    for shards in ["1", "3"] {
        pushes_come_between_replies(&Server::start(&["--shards", shards]));
    }
}

fn pushes_come_between_replies(server: &Server) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut client = server.client(3);
    client.set_push_sender(sender);
    client.subscribe_resp3("news").unwrap();
    // A RESP3 client may go on asking while it listens, and hears itself.
    assert_eq!(client.publish("news", "mine"), Ok(1));
    assert_eq!(client.incr("k", 1), Ok(1));
    assert_eq!(server.client(2).publish("news", "other"), Ok(1));
    let mut heard = Vec::new();
    while heard.len() < 2 {
        let _: () = cmd("PING").query(&mut client).unwrap();
        heard.extend(receiver.try_iter().filter(|push| push.kind == redis::PushKind::Message));
    }
    let texts: Vec<String> =
        heard.iter().map(|push| redis::from_redis_value(push.data[1].clone()).unwrap()).collect();
    assert_eq!(texts, ["mine", "other"]);
}

#[test]
fn connections_can_be_named_listed_and_killed() {
    in_both(|server, client, _| {
        let mut other = server.client(2);
        let _: () = cmd("CLIENT").arg(&["SETNAME", "worker"]).query(&mut other).unwrap();
        let number: u64 = cmd("CLIENT").arg("ID").query(&mut other).unwrap();
        let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
        assert_eq!(list.lines().count(), 2);
        let line = list.lines().find(|line| line.contains(" name=worker ")).unwrap();
        assert!(line.starts_with(&format!("id={number} addr=127.0.0.1:")), "{line}");
        let killed: u64 = cmd("CLIENT").arg(&["KILL", "ID"]).arg(number).query(client).unwrap();
        assert_eq!(killed, 1);
        assert!(cmd("PING").query::<String>(&mut other).is_err());
        let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
        assert_eq!(list.lines().count(), 1);
    });
}

#[test]
fn info_has_what_clients_parse() {
    in_both(|_, client, _| {
        let _: () = client.set("k", "v").unwrap();
        let info: redis::InfoDict = cmd("INFO").query(client).unwrap();
        let field = |name: &str| info.get::<String>(name).unwrap_or_default();
        assert!(field("redis_version").starts_with("7."));
        assert_eq!(field("headwater_version"), env!("CARGO_PKG_VERSION"));
        for (name, value) in [
            ("redis_mode", "standalone"),
            ("loading", "0"),
            ("role", "master"),
            ("connected_clients", "1"),
            ("maxclients", "10000"),
        ] {
            assert_eq!(field(name), value, "{name}");
        }
        for words in [
            &["CLUSTER", "SLOTS"][..],
            &["CLUSTER", "KEYSLOT", "k"],
            &["CLUSTER", "COUNTKEYSINSLOT", "0"],
            &["CLUSTER", "GETKEYSINSLOT", "0", "1"],
            &["READONLY"],
        ] {
            let told = cmd(words[0]).arg(&words[1..]).query::<Value>(client).unwrap_err();
            assert!(told.to_string().contains("cluster support disabled"), "{told}");
        }
        assert!(info.get::<u64>("total_commands_processed").unwrap() > 0);
        assert!(info.get::<f64>("used_cpu_user").is_some());
        let only: String = cmd("INFO").arg("cpu").query(client).unwrap();
        assert!(only.starts_with("# CPU\r\n") && !only.contains("# Server"), "{only}");
    });
}

#[test]
fn slow_commands_are_remembered() {
    in_both(|_, client, _| {
        let set = |client: &mut Connection, name: &str, value: &str| {
            cmd("CONFIG").arg(&["SET", name, value]).query::<()>(client).unwrap();
        };
        // On a busy machine anything may be slow.
        set(client, "slowlog-log-slower-than", "-1");
        cmd("SLOWLOG").arg("RESET").query::<()>(client).unwrap();
        assert_eq!(cmd("SLOWLOG").arg("LEN").query(client), Ok(0));
        set(client, "slowlog-log-slower-than", "30000");
        set(client, "latency-monitor-threshold", "10");
        cmd("DEBUG").arg(&["SLEEP", "0.05"]).query::<()>(client).unwrap();
        let entries: Vec<(u64, u64, u64, Vec<String>, String, String)> =
            cmd("SLOWLOG").arg("GET").query(client).unwrap();
        let slept = entries.iter().find(|entry| entry.3 == ["DEBUG", "SLEEP", "0.05"]);
        assert!(slept.is_some_and(|entry| entry.2 >= 30_000), "{entries:?}");
        let latest: Vec<(String, u64, u64, u64)> =
            cmd("LATENCY").arg("LATEST").query(client).unwrap();
        assert_eq!(latest[0].0, "command");
        // The exact clock is used where short commands are asked for.
        set(client, "slowlog-log-slower-than", "0");
        let _ = get(client, "k");
        let entries: Vec<Value> = cmd("SLOWLOG").arg("GET").query(client).unwrap();
        assert!(entries.len() >= 3);
        cmd("SLOWLOG").arg("RESET").query::<()>(client).unwrap();
    });
}

#[test]
fn passwords() {
    let server = Server::start(&["--requirepass", "secret"]);
    let open = |url: String| redis::Client::open(url).unwrap().get_connection();
    let port = server.port;
    for query in ["", "?protocol=resp3"] {
        let mut client = open(format!("redis://:secret@127.0.0.1:{port}/{query}")).unwrap();
        assert_eq!(cmd("PING").query(&mut client), Ok(String::from("PONG")));
        let mut client = open(format!("redis://default:secret@127.0.0.1:{port}/{query}")).unwrap();
        assert_eq!(cmd("PING").query(&mut client), Ok(String::from("PONG")));
        assert!(open(format!("redis://:wrong@127.0.0.1:{port}/{query}")).is_err());
    }
    let mut client = open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let refused = refusal(cmd("GET").arg("k").query::<Value>(&mut client));
    assert_eq!(refused, "NOAUTH Authentication required.");
}

#[test]
fn replies_can_be_switched_off() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    socket.send(b"CLIENT REPLY OFF\r\nSET k 1\r\nGET k\r\nCLIENT REPLY ON\r\n");
    socket.expect(b"+OK\r\n");
    socket.send(b"CLIENT REPLY SKIP\r\nINCR k\r\nINCR k\r\n");
    socket.expect(b":3\r\n");
}
