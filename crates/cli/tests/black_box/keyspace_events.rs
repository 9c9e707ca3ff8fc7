//! Keyspace events, as whoever listens hears them, with one shard and with three.

use crate::support::{Server, Socket};
use redis::{Connection, PubSub, Value, cmd};
use std::collections::BTreeMap;

type Heard = BTreeMap<String, Vec<String>>;

fn ask(client: &mut Connection, words: &[&str]) -> Value {
    let mut command = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query(client).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn tell(client: &mut Connection, letters: &str) {
    ask(client, &["CONFIG", "SET", "notify-keyspace-events", letters]);
}

fn next(listener: &mut PubSub<'_>) -> (String, String) {
    let message = listener.get_message().unwrap();
    (message.get_channel_name().to_owned(), message.get_payload().unwrap())
}

/// So many events as they are told of keys, and as they are told of kinds: for each key, in their order.
fn hear(listener: &mut PubSub<'_>, count: usize) -> [Heard; 2] {
    let mut heard = [Heard::new(), Heard::new()];
    for _ in 0..2 * count {
        let (channel, payload) = next(listener);
        if let Some(key) = channel.strip_prefix("__keyspace@0__:") {
            heard[0].entry(key.to_owned()).or_default().push(payload);
        } else {
            let word = channel.strip_prefix("__keyevent@0__:").expect("one or the other");
            heard[1].entry(payload).or_default().push(word.to_owned());
        }
    }
    heard
}

/// What is done, and what is told of it: keys, each with its events.
const DONE: &[(&[&str], &str)] = &[
    (&["SET", "a", "1"], "a set"),
    (&["SET", "a", "2", "EX", "100"], "a set expire"),
    (&["PERSIST", "a"], "a persist"),
    (&["PERSIST", "a"], ""),
    (&["EXPIRE", "a", "100"], "a expire"),
    (&["GETEX", "a", "PERSIST"], "a persist"),
    (&["APPEND", "a", "x"], "a append"),
    (&["SETRANGE", "a", "0", "y"], "a setrange"),
    (&["RENAME", "a", "b"], "a rename_from b rename_to"),
    (&["COPY", "b", "c"], "c copy_to"),
    (&["COPY", "b", "c"], ""),
    (&["RENAMENX", "b", "c"], ""),
    (&["DEL", "b"], "b del"),
    (&["DEL", "b", "nothing"], ""),
    (&["INCR", "n"], "n incrby"),
    (&["INCRBYFLOAT", "n", "1.5"], "n incrbyfloat"),
    (&["SETBIT", "bits", "1", "1"], "bits setbit"),
    (&["BITOP", "OR", "d", "bits", "c"], "d set"),
    (&["BITOP", "OR", "d", "nothing"], "d del"),
    (&["GETDEL", "c"], "c del"),
    (&["MSET", "m|1", "1", "m|2", "2", "k", "3"], "m|1 set m|2 set k set"),
    (&["MSETNX", "m|3", "1", "e", "2"], "m|3 set e set"),
    (&["RANGE.DEL", "m|", "m}"], "m|1 del m|2 del m|3 del"),
    (&["SET", "k", "4", "PXAT", "1"], "k del"),
    (&["SET", "never", "4", "PXAT", "1"], ""),
    (&["DELIFEQ", "e", "2"], "e del"),
    (&["STREAM.APPEND", "stream", "x"], "stream stream.append"),
    (&["STREAM.TRIM", "stream", "1"], "stream stream.trim"),
    // What a join gives is written by nobody.
    (&["SET", "s|ann|bob", "1"], "s|ann|bob set"),
    (&["GET", "n|ann"], ""),
    (&["DEL", "s|ann|bob"], "s|ann|bob del"),
    (&["SET", "soon", "x", "PX", "1"], "soon set expire expired"),
];

#[test]
fn what_is_done_to_base_keys_is_told_as_redis_tells_it() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards, "--memcached-port", "0"]);
        let client = &mut server.client(2);
        ask(client, &["JOIN.ADD", "n", "n|<u> = count s|<u>|<p>"]);
        tell(client, "KEA");
        let told: Vec<String> =
            cmd("CONFIG").arg(&["GET", "notify-keyspace-events"]).query(client).unwrap();
        assert_eq!(told, ["notify-keyspace-events", "AKE"]);
        let mut listening = server.client(2);
        let mut listener = listening.as_pubsub();
        listener.psubscribe("__key*@0__:*").unwrap();
        let (mut expected, mut count) = (Heard::new(), 0);
        let mut expect = |events: &str| {
            let mut key = "";
            for word in events.split_whitespace() {
                // A word that names no event is a key.
                let is_event = word.len() > 2 && EVENTS.contains(&word);
                if is_event {
                    count += 1;
                    expected.entry(key.to_owned()).or_default().push(word.to_owned());
                } else {
                    key = word;
                }
            }
        };
        for (words, events) in DONE {
            ask(client, words);
            expect(events);
        }
        let _: Value = redis::pipe()
            .atomic()
            .cmd("SET")
            .arg(&["tx", "1"])
            .cmd("INCR")
            .arg("tx")
            .query(client)
            .unwrap();
        expect("tx set incrby");
        let mut items: Socket = server.memcached();
        items.send(b"set item 0 0 1\r\n1\r\nappend item 0 0 1\r\n2\r\nincr item 1\r\ntouch item 100\r\ndelete item\r\n");
        items.expect(b"STORED\r\nSTORED\r\n13\r\nTOUCHED\r\nDELETED\r\n");
        expect("item set append incrby expire del");
        let [by_key, by_event] = hear(&mut listener, count);
        assert_eq!(by_key, expected, "{shards} shards");
        assert_eq!(by_event, expected, "{shards} shards");
        // Everything that goes at once is not told; nor is what nobody asks for.
        ask(client, &["FLUSHALL"]);
        tell(client, "Eg$n");
        ask(client, &["SET", "last", "1"]);
        ask(client, &["SET", "last", "2"]);
        let heard = [next(&mut listener), next(&mut listener), next(&mut listener)];
        let expected =
            ["new", "set", "set"].map(|word| (format!("__keyevent@0__:{word}"), "last".into()));
        assert_eq!(heard, expected);
        tell(client, "");
        ask(client, &["SET", "last", "3"]);
        tell(client, "Eg");
        ask(client, &["SET", "last", "4"]);
        ask(client, &["DEL", "last"]);
        assert_eq!(next(&mut listener), ("__keyevent@0__:del".into(), "last".into()));
        for letters in ["KQ", "KEAm"] {
            let set =
                cmd("CONFIG").arg(&["SET", "notify-keyspace-events", letters]).query::<()>(client);
            assert!(set.unwrap_err().to_string().contains("notify-keyspace-events"), "{letters}");
        }
    }
}

const EVENTS: [&str; 18] = [
    "set",
    "expire",
    "persist",
    "append",
    "setrange",
    "rename_from",
    "rename_to",
    "copy_to",
    "del",
    "incrby",
    "incrbyfloat",
    "setbit",
    "stream.append",
    "stream.trim",
    "expired",
    "evicted",
    "restore",
    "new",
];

#[test]
fn keys_that_memory_has_no_room_for_are_told() {
    for (shards, memory) in [("1", "32mb"), ("3", "64mb")] {
        let words = ["--shards", shards, "--memory", memory];
        let server = Server::start(&words);
        let client = &mut server.client(2);
        ask(client, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        tell(client, "Ee");
        let mut listening = server.client(2);
        let mut listener = listening.as_pubsub();
        listener.subscribe("__keyevent@0__:evicted").unwrap();
        let value = "v".repeat(50_000);
        for number in 0..3000 {
            ask(client, &["SET", &format!("k|{number}"), &value]);
        }
        let (_, key) = next(&mut listener);
        assert!(key.starts_with("k|"), "{key}");
    }
}
