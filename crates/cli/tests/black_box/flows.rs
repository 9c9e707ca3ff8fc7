//! Flows, through the client library.

use crate::support::{PATIENCE, Server};
use redis::{Connection, FromRedisValue, RedisResult, Value, cmd, from_redis_value, pipe};
use std::collections::BTreeMap;
use std::time::Instant;

const FAN: &str = "t|<user>|<time>|<poster> = check f|<poster>|<user> copy p|<poster>|<time>";

pub(crate) fn ask<T: FromRedisValue>(client: &mut Connection, words: &[&str]) -> RedisResult<T> {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    command.query(client)
}

pub(crate) fn refusal(client: &mut Connection, words: &[&str]) -> String {
    let error = ask::<Value>(client, words).unwrap_err();
    format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())
}

pub(crate) fn info(client: &mut Connection, flow: &str) -> BTreeMap<String, u64> {
    let facts: BTreeMap<String, Value> = ask(client, &["FLOW.INFO", flow]).unwrap();
    let number = |value| from_redis_value(value).ok();
    facts.into_iter().filter_map(|(name, value)| Some((name, number(value)?))).collect()
}

/// Waits until a flow has nothing to do.
pub(crate) fn settle(client: &mut Connection, flow: &str) {
    let began = Instant::now();
    while info(client, flow)["backlog"] > 0 {
        assert!(began.elapsed() < PATIENCE, "the flow does not end: {:?}", info(client, flow));
        std::thread::yield_now();
    }
}

pub(crate) fn count(client: &mut Connection, prefix: &str) -> u64 {
    ask(client, &["PREFIX", prefix, "COUNT"]).unwrap()
}

/// Keys `f|<poster>|<number>`.
pub(crate) fn follow(client: &mut Connection, poster: &str, followers: u32) {
    let mut batch = pipe();
    for number in 0..followers {
        batch.set(format!("f|{poster}|{number:06}"), "").ignore();
    }
    let () = batch.query(client).unwrap();
}

#[test]
fn a_post_is_acknowledged_before_it_is_in_all_timelines() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let added: BTreeMap<String, Vec<String>> =
        ask(&mut client, &["FLOW.ADD", "fan", "ON", "p|<poster>|<time>", "FANOUT", FAN]).unwrap();
    assert!(added["warnings"][0].contains("in memory"), "{added:?}");
    follow(&mut client, "bob", 20_000);
    // One batch: the flow has had no turn when its backlog is asked for.
    let (set, facts): (String, BTreeMap<String, Value>) =
        pipe().set("p|bob|0001", "hello").cmd("FLOW.INFO").arg("fan").query(&mut client).unwrap();
    assert_eq!((set.as_str(), &facts["backlog"]), ("OK", &Value::Int(1)));
    settle(&mut client, "fan");
    assert_eq!(count(&mut client, "t|"), 20_000);
    let text: String = ask(&mut client, &["GET", "t|000077|0001|bob"]).unwrap();
    assert_eq!(text, "hello");
    let _: u64 = ask(&mut client, &["DEL", "p|bob|0001"]).unwrap();
    settle(&mut client, "fan");
    assert_eq!(count(&mut client, "t|"), 0);
    assert_eq!(info(&mut client, "fan")["done"], 2);
}

#[test]
fn what_expires_is_followed_up_as_well() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let copy = "archive|<id> = copy item|<id>";
    let _: Value =
        ask(&mut client, &["FLOW.ADD", "copy", "ON", "item|<id>", "COPY", copy]).unwrap();
    let _: String = ask(&mut client, &["SET", "item|1", "one", "PX", "300"]).unwrap();
    let _: String = ask(&mut client, &["SET", "item|2", "two"]).unwrap();
    settle(&mut client, "copy");
    let began = Instant::now();
    while count(&mut client, "archive|") > 1 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let left: String = ask(&mut client, &["GET", "archive|2"]).unwrap();
    assert_eq!(left, "two");
}

#[test]
fn writes_are_refused_or_wait_where_a_flow_has_no_room() {
    // With several, each has room of its own.
    let server = Server::start(&["--shards", "1"]);
    let mut client = server.client(3);
    for (name, on, full) in [("a", "a|<id>", "REJECT"), ("b", "b|<id>", "BLOCK")] {
        let copy = format!("z{name}|<id> = copy {on}");
        let words = ["FLOW.ADD", name, "ON", on, "COPY", &copy, "BACKLOG", "2", full];
        let _: Value = ask(&mut client, &words).unwrap();
        let _: String = ask(&mut client, &["FLOW.PAUSE", name]).unwrap();
    }
    for key in ["a|1", "a|2", "b|1", "b|2"] {
        let _: String = ask(&mut client, &["SET", key, "x"]).unwrap();
    }
    let text = refusal(&mut client, &["SET", "a|3", "x"]);
    assert_eq!(text, "BUSY flow 'a' has 2 tasks waiting (BACKLOG)");
    assert_eq!(ask(&mut client, &["EXISTS", "a|3"]), Ok(0));
    let _: String = ask(&mut client, &["SET", "other", "x"]).unwrap();
    let mut waiting = server.socket();
    waiting.send(b"SET b|3 x\r\n");
    // Its order is known: the other client's commands are answered while it waits.
    while !ask::<String>(&mut client, &["INFO", "clients"]).unwrap().contains("blocked_clients:1") {
        std::thread::yield_now();
    }
    assert_eq!(ask(&mut client, &["EXISTS", "b|3"]), Ok(0));
    for name in ["a", "b"] {
        let _: String = ask(&mut client, &["FLOW.RESUME", name]).unwrap();
    }
    waiting.expect(b"+OK\r\n");
    settle(&mut client, "a");
    settle(&mut client, "b");
    assert_eq!((count(&mut client, "za|"), count(&mut client, "zb|")), (2, 3));
    let _: String = ask(&mut client, &["SET", "a|3", "x"]).unwrap();
}

/// A whole number as text: one more for each set, one less for each removal.
pub(crate) const BALANCE: &str = r#"(module
    (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
    (import "headwater" "param_read" (func $param_read (param i32 i32 i32) (result i32)))
    (import "headwater" "value_replace" (func $value_replace (param i32 i32)))
    (memory 1)
    (func (export "call") (result i32) (local $n i64) (local $len i32) (local $at i32)
        (local.set $len (call $value_read (i32.const 0) (i32.const 0) (i32.const 20)))
        (block (loop
            (br_if 1 (i32.ge_u (local.get $at) (local.get $len)))
            (local.set $n (i64.add (i64.mul (local.get $n) (i64.const 10))
                (i64.sub (i64.load8_u (local.get $at)) (i64.const 48))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br 0)))
        (drop (call $param_read (i32.const 0) (i32.const 32) (i32.const 1)))
        (local.set $n (i64.add (local.get $n) (select (i64.const 1) (i64.const -1)
            (i32.eq (i32.load8_u (i32.const 32)) (i32.const 115)))))
        (local.set $at (i32.const 64))
        (loop
            (local.set $at (i32.sub (local.get $at) (i32.const 1)))
            (i64.store8 (local.get $at) (i64.add (i64.const 48) (i64.rem_u (local.get $n) (i64.const 10))))
            (br_if 0 (i64.ne (i64.const 0) (local.tee $n (i64.div_u (local.get $n) (i64.const 10))))))
        (call $value_replace (local.get $at) (i32.sub (i32.const 64) (local.get $at)))
        (i32.const 0)))"#;

#[test]
fn functions_are_called_for_other_keys() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let module = wat::parse_str(BALANCE).unwrap();
    let () = cmd("FN.LOAD").arg("balance").arg(module).query(&mut client).unwrap();
    let words = [
        "FLOW.ADD",
        "votes",
        "ON",
        "vote|<author>|<voter>",
        "CALL",
        "balance",
        "KEY",
        "karma|<author>",
    ];
    let _: Value = ask(&mut client, &words).unwrap();
    let mut batch = pipe();
    for voter in 0..500 {
        batch.set(format!("vote|ann|{voter}"), "").ignore();
        batch.set(format!("vote|bob|{voter}"), "").ignore();
    }
    let () = batch.query(&mut client).unwrap();
    assert_eq!(ask(&mut client, &["DEL", "vote|ann|1", "vote|ann|2"]), Ok(2));
    settle(&mut client, "votes");
    let karma = |client: &mut Connection, author: &str| -> String {
        ask(client, &["GET", &format!("karma|{author}")]).unwrap()
    };
    assert_eq!(
        (karma(&mut client, "ann"), karma(&mut client, "bob")),
        ("498".into(), "500".into())
    );
    // A function that has gone is a failure, and works again when it is back.
    let text =
        refusal(&mut client, &["FLOW.ADD", "self", "ON", "a|<x>", "CALL", "f", "KEY", "a|<x>"]);
    assert!(text.contains("self -> self"), "{text}");
}

#[test]
fn values_are_published() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let words = ["FLOW.ADD", "news", "ON", "n|<id>", "PUBLISH", "channel"];
    let _: Value = ask(&mut client, &words).unwrap();
    let mut listener = server.client(2);
    let mut channel = listener.as_pubsub();
    channel.subscribe("channel").unwrap();
    let _: String = ask(&mut client, &["SET", "n|1", "first"]).unwrap();
    let _: String = ask(&mut client, &["SET", "n|2", "second"]).unwrap();
    for text in ["first", "second"] {
        assert_eq!(channel.get_message().unwrap().get_payload::<String>().unwrap(), text);
    }
}

#[test]
fn what_fails_too_often_is_dead_until_it_is_tried_again() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let copy = "out|<id> = copy in|<id>";
    let words =
        ["FLOW.ADD", "f", "ON", "in|<id>", "COPY", copy, "MAX-ATTEMPTS", "2", "BACKOFF", "1", "1"];
    let _: Value = ask(&mut client, &words).unwrap();
    // What the flow writes is a join's from now on: it cannot. (One that gave all that it may write would be refused.)
    let join = "out|<id:1> = copy base|<id:1>";
    let _: Value = ask(&mut client, &["JOIN.ADD", "owner", join]).unwrap();
    let _: String = ask(&mut client, &["SET", "in|1", "x"]).unwrap();
    settle(&mut client, "f");
    let facts = info(&mut client, "f");
    assert_eq!((facts["dead"], facts["failures"], facts["done"]), (1, 2, 0));
    let dead: Vec<BTreeMap<String, String>> = ask(&mut client, &["FLOW.DEAD", "f"]).unwrap();
    assert_eq!((dead[0]["key"].as_str(), dead[0]["attempts"].as_str()), ("in|1", "2"));
    assert_eq!(dead[0]["error"], "JOINED key is maintained by join 'owner'");
    let _: String = ask(&mut client, &["JOIN.DROP", "owner"]).unwrap();
    assert_eq!(ask(&mut client, &["FLOW.RETRY", "f", "ALL"]), Ok(1));
    settle(&mut client, "f");
    let value: String = ask(&mut client, &["GET", "out|1"]).unwrap();
    assert_eq!((value.as_str(), info(&mut client, "f")["dead"]), ("x", 0));
}

#[test]
fn keys_that_were_there_before_are_filled_in() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let mut batch = pipe();
    for number in 0..3000 {
        batch.set(format!("in|{number}"), number).ignore();
    }
    let () = batch.query(&mut client).unwrap();
    let copy = "out|<id> = copy in|<id>";
    let words = ["FLOW.ADD", "f", "ON", "in|<id>", "COPY", copy, "BACKFILL"];
    let _: Value = ask(&mut client, &words).unwrap();
    // Some change meanwhile, and one goes.
    let _: String = ask(&mut client, &["SET", "in|2999", "new"]).unwrap();
    let _: u64 = ask(&mut client, &["DEL", "in|10"]).unwrap();
    let began = Instant::now();
    while count(&mut client, "out|") != 2999 || info(&mut client, "f")["backlog"] > 0 {
        assert!(began.elapsed() < PATIENCE, "{} keys", count(&mut client, "out|"));
        std::thread::yield_now();
    }
    assert_eq!(ask(&mut client, &["GET", "out|2999"]), Ok(String::from("new")));
    assert_eq!(ask(&mut client, &["GET", "out|2998"]), Ok(String::from("2998")));
    // Each was a task once; the two that were written meanwhile perhaps once before.
    assert!((3000..=3002).contains(&info(&mut client, "f")["done"]));
}

#[test]
fn flows_that_make_no_sense_are_refused() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let add = |copy: &str, name: &str, on: &str| -> Vec<String> {
        ["FLOW.ADD", name, "ON", on, "COPY", copy].map(String::from).to_vec()
    };
    let mut refuse = |words: &[String], text: &str| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = refusal(&mut client, &words);
        assert!(said.contains(text), "{said}");
    };
    refuse(&add("a|<x> = copy a|<x>", "loop", "a|<x>"), "loop -> loop");
    refuse(&add("b|<x> = count a|<x>", "fold", "a|<x>"), "a flow copies");
    refuse(&add("b|<x> = copy c|<x>", "other", "a|<x>"), "is not what it is ON");
    refuse(&add("b|<x> = copy a|<x>", "", "a|<x>"), "a flow's name");
    refuse(&add("b|<x> = copy a|<x>", "f", "no pattern"), "is no pattern");
    let words = ["FLOW.INFO", "none"].map(String::from);
    refuse(&words, "no flow is named 'none'");
}

/// Kills the server at random moments under load: what was acknowledged has its effects, once.
#[test]
fn tasks_survive_the_end_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let start = || Server::start(&["--data", data.to_str().unwrap(), "--durability", "always"]);
    let mut server = start();
    let mut client = server.client(3);
    let module = wat::parse_str(BALANCE).unwrap();
    let () = cmd("FN.LOAD").arg("balance").arg(module).query(&mut client).unwrap();
    let words = ["FLOW.ADD", "votes", "ON", "vote|<a>|<b>", "CALL", "balance", "KEY", "karma|<a>"];
    let added: BTreeMap<String, Vec<String>> = ask(&mut client, &words).unwrap();
    assert!(added["warnings"].is_empty(), "{added:?}");
    let words = ["FLOW.ADD", "fan", "ON", "p|<poster>|<time>", "FANOUT", FAN];
    let _: Value = ask(&mut client, &words).unwrap();
    follow(&mut client, "bob", 3000);
    let mut votes = 0;
    for round in 0..8 {
        let _: String = ask(&mut client, &["SET", &format!("p|bob|{round}"), "text"]).unwrap();
        for _ in 0..20 * (round + 1) {
            let mut batch = pipe();
            for n in 0..10 {
                batch.set(format!("vote|ann|{}", votes + n), "").ignore();
            }
            let () = batch.query(&mut client).unwrap();
            votes += 10;
        }
        drop(client);
        server.signal(rustix::process::Signal::KILL);
        drop(server);
        server = start();
        client = server.client(3);
    }
    settle(&mut client, "votes");
    settle(&mut client, "fan");
    let karma: String = ask(&mut client, &["GET", "karma|ann"]).unwrap();
    assert_eq!(karma, votes.to_string());
    for round in 0..8 {
        let copies: Vec<Option<String>> = cmd("MGET")
            .arg((0..3000).map(|user| format!("t|{user:06}|{round}|bob")).collect::<Vec<_>>())
            .query(&mut client)
            .unwrap();
        assert!(copies.iter().all(|copy| copy.as_deref() == Some("text")), "post {round}");
    }
    let flows: Vec<BTreeMap<String, Value>> = ask(&mut client, &["FLOW.LIST"]).unwrap();
    assert_eq!(flows.len(), 2);
    let _: String = ask(&mut client, &["FLOW.DROP", "fan"]).unwrap();
    drop(client);
    server.signal(rustix::process::Signal::KILL);
    drop(server);
    let server = start();
    let flows: Vec<BTreeMap<String, Value>> = ask(&mut server.client(3), &["FLOW.LIST"]).unwrap();
    assert_eq!(flows.len(), 1);
}

/// A flow that was there before a join gives what it is on: the server starts, so that one of them can be dropped.
#[test]
fn a_kept_flow_that_a_join_stands_in_the_way_of_can_be_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let kept = format!("[data]\ndata-dir = '{}'\n", data.display());
    let server = Server::with_config(&kept);
    let add = ["FLOW.ADD", "f", "ON", "item|<id>", "PUBLISH", "c"];
    let _: Value = ask(&mut server.client(3), &add).unwrap();
    drop(server);
    let join = "[[join]]\nname = 'j'\nspec = 'item|<id> = copy src|<id>'\n";
    let server = Server::with_config(&format!("{kept}{join}"));
    let mut client = server.client(3);
    let list: Vec<BTreeMap<String, String>> = ask(&mut client, &["FLOW.LIST"]).unwrap();
    assert_eq!(list[0]["name"], "f");
    let _: String = ask(&mut client, &["FLOW.DROP", "f"]).unwrap();
    assert!(refusal(&mut client, &add).contains("join 'j' gives the keys"));
}
