//! What flows do besides copies: functions that read and write other keys, and posts to URLs.

use crate::flows::{ask, count, info, refusal, settle};
use crate::receiver::{Got, Manner, Receiver};
use crate::support::{PATIENCE, Server};
use redis::{Connection, Value, cmd, pipe};
use std::time::Instant;

/// For `p|<poster>|<time>`: puts the value at `last|<poster>`, and the number of followers (up to 9) at
/// `n|<poster>`, or removes both if the key is gone. It looks `stop|<poster>` up: where that is, it fails.
const LAST: &str = r#"(module
    (import "headwater" "slot_read" (func $slot_read (param i32 i32 i32 i32) (result i32)))
    (import "headwater" "value_len" (func $value_len (result i32)))
    (import "headwater" "value_read" (func $value_read (param i32 i32 i32) (result i32)))
    (import "headwater" "find" (func $find (param i32 i32) (result i32)))
    (import "headwater" "find_range" (func $find_range (param i32 i32 i32 i32 i32) (result i32)))
    (import "headwater" "put" (func $put (param i32 i32 i32 i32)))
    (import "headwater" "remove" (func $remove (param i32 i32)))
    (memory 1)
    (data (i32.const 0) "last|") (data (i32.const 100) "n|") (data (i32.const 200) "f|")
    (data (i32.const 400) "stop|")
    (func (export "call") (result i32) (local $len i32) (local $n i32)
        (local.set $len (call $slot_read (i32.const 0) (i32.const 0) (i32.const 5) (i32.const 50)))
        (drop (call $slot_read (i32.const 0) (i32.const 0) (i32.const 102) (i32.const 50)))
        (drop (call $slot_read (i32.const 0) (i32.const 0) (i32.const 202) (i32.const 50)))
        (drop (call $slot_read (i32.const 0) (i32.const 0) (i32.const 405) (i32.const 50)))
        (if (i32.ge_s (call $find (i32.const 400) (i32.add (local.get $len) (i32.const 5))) (i32.const 0))
            (then (return (i32.const 7))))
        (if (i32.lt_s (call $value_len) (i32.const 0)) (then
            (call $remove (i32.const 0) (i32.add (local.get $len) (i32.const 5)))
            (call $remove (i32.const 100) (i32.add (local.get $len) (i32.const 2)))
            (return (i32.const 0))))
        ;; f|poster| to f|poster}
        (i32.store8 (i32.add (i32.const 202) (local.get $len)) (i32.const 124))
        (memory.copy (i32.const 300) (i32.const 200) (i32.const 60))
        (i32.store8 (i32.add (i32.const 302) (local.get $len)) (i32.const 125))
        (local.set $n (call $find_range (i32.const 200) (i32.add (local.get $len) (i32.const 3))
            (i32.const 300) (i32.add (local.get $len) (i32.const 3)) (i32.const 9)))
        (i32.store8 (i32.const 500) (i32.add (local.get $n) (i32.const 48)))
        (call $put (i32.const 100) (i32.add (local.get $len) (i32.const 2)) (i32.const 500) (i32.const 1))
        (call $put (i32.const 0) (i32.add (local.get $len) (i32.const 5)) (i32.const 600)
            (call $value_read (i32.const 0) (i32.const 600) (i32.const 1000)))
        (i32.const 0)))"#;

fn load(client: &mut Connection) {
    let module = wat::parse_str(LAST).unwrap();
    let () = cmd("FN.LOAD").arg("last").arg(module).query(client).unwrap();
}

#[test]
fn functions_read_and_write_other_keys_and_cause_other_flows() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&["--data", data.to_str().unwrap()]);
    let mut client = server.client(3);
    load(&mut client);
    let on = "p|<poster>|<time>";
    let add = ["FLOW.ADD", "last", "ON", on, "CALL", "last", "WRITES", "last|<p> n|<p>"];
    let retried = ["MAX-ATTEMPTS", "2", "BACKOFF", "1", "1"];
    let _: Value = ask(&mut client, &[&add[..], &retried].concat()).unwrap();
    let copy = "shown|<p> = copy last|<p>";
    let _: Value = ask(&mut client, &["FLOW.ADD", "show", "ON", "last|<p>", "COPY", copy]).unwrap();
    // What would come back to where it began is refused.
    let back = ["FLOW.ADD", "back", "ON", "shown|<p>", "CALL", "last", "WRITES", on];
    let text = refusal(&mut client, &back);
    assert!(text.contains("back -> last -> show -> back"), "{text}");
    let mut batch = pipe();
    for user in 0..5 {
        batch.set(format!("f|bob|{user}"), "").ignore();
    }
    batch.set("f|bobby|1", "").set("p|bob|1", "hello").ignore();
    let () = batch.query(&mut client).unwrap();
    settle(&mut client, "last");
    settle(&mut client, "show");
    let get = |client: &mut Connection, key: &str| ask::<Option<String>>(client, &["GET", key]);
    for (key, value) in [("last|bob", "hello"), ("n|bob", "5"), ("shown|bob", "hello")] {
        assert_eq!(get(&mut client, key).unwrap().as_deref(), Some(value), "{key}");
    }
    let _: u64 = ask(&mut client, &["DEL", "p|bob|1"]).unwrap();
    settle(&mut client, "last");
    settle(&mut client, "show");
    for key in ["last|bob", "n|bob", "shown|bob"] {
        assert_eq!(get(&mut client, key).unwrap(), None, "{key}");
    }
    // One that fails has written nothing, and is dead.
    let _: () = ask(&mut client, &["SET", "stop|bob", ""]).unwrap();
    let _: () = ask(&mut client, &["SET", "p|bob|2", "again"]).unwrap();
    settle(&mut client, "last");
    assert_eq!((info(&mut client, "last")["dead"], count(&mut client, "n|")), (1, 0));
    // Outside of flows there are no other keys.
    let error = refusal(&mut client, &["FN.CALL", "last", "p|bob|2", ""]);
    assert!(error.contains("only functions that flows call"), "{error}");
    // What is not declared is not written.
    let words = ["FLOW.ADD", "less", "ON", "q|<poster>", "CALL", "last", "WRITES", "n|<p>"];
    let _: Value = ask(&mut client, &[&words[..], &retried].concat()).unwrap();
    let _: () = ask(&mut client, &["SET", "q|bob", "x"]).unwrap();
    let _: () = ask(&mut client, &["SET", "q|ann", "x"]).unwrap();
    settle(&mut client, "less");
    let dead: Vec<std::collections::BTreeMap<String, String>> =
        ask(&mut client, &["FLOW.DEAD", "less"]).unwrap();
    let undeclared = dead.iter().find(|dead| dead["key"] == "q|ann").unwrap();
    assert!(undeclared["error"].contains("WRITES does not declare"), "{dead:?}");
    assert_eq!(count(&mut client, "n|"), 0);
}

#[test]
fn a_flow_concerns_the_operations_that_it_names() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    let copy = "archive|<id> = copy item|<id>";
    let add = ["FLOW.ADD", "keep", "ON", "item|<id>", "COPY", copy, "OPERATIONS", "set|expire"];
    let _: Value = ask(&mut client, &add).unwrap();
    let _: () = pipe()
        .set("item|1", "a")
        .set("item|2", "b")
        .cmd("DEL")
        .arg("item|1")
        .cmd("PEXPIRE")
        .arg(&["item|2", "1"])
        .ignore()
        .query(&mut client)
        .map(|_: Value| ())
        .unwrap();
    let began = Instant::now();
    while ask::<u64>(&mut client, &["EXISTS", "archive|2"]).unwrap() > 0
        || info(&mut client, "keep")["done"] < 3
    {
        assert!(began.elapsed() < PATIENCE, "{:?}", info(&mut client, "keep"));
        std::thread::yield_now();
    }
    assert_eq!(ask(&mut client, &["GET", "archive|1"]), Ok(String::from("a")));
    let text = refusal(&mut client, &[&add[..6], &["OPERATIONS", "set|grow"]].concat());
    assert!(text.contains("set|del|expire"), "{text}");
}

#[test]
fn changes_are_posted_until_they_are_taken() {
    let receiver = Receiver::start();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let start = || Server::start(&["--data", data.to_str().unwrap(), "--durability", "always"]);
    let server = start();
    let mut client = server.client(3);
    let url = format!("http://{}/hook?a=b", receiver.address);
    let add = ["FLOW.ADD", "hook", "ON", "n|<id>", "HTTP", "POST", &url, "TIMEOUT", "300"];
    let options = ["BACKOFF", "5", "20", "MAX-ATTEMPTS", "4"];
    let _: Value = ask(&mut client, &[&add[..], &options].concat()).unwrap();
    // Another flow, to somebody who answers.
    let other = Receiver::start();
    let well = format!("http://{}/", other.address);
    let _: Value =
        ask(&mut client, &["FLOW.ADD", "well", "ON", "n|<id>", "HTTP", "POST", &well]).unwrap();
    let set = |client: &mut Connection, key: &str, value: &[u8]| {
        let () = cmd("SET").arg(key).arg(value).query(client).unwrap();
    };
    set(&mut client, "n|1", b"first");
    settle(&mut client, "hook");
    let got = receiver.got();
    assert_eq!(got.len(), 1);
    assert!(got[0].head.starts_with("post /hook?a=b http/1.1\r\n"), "{}", got[0].head);
    assert!(got[0].head.contains("\r\ncontent-type: application/json\r\n"), "{}", got[0].head);
    let body = &got[0].body;
    assert_eq!((&body["flow"], &body["operation"]), (&"hook".into(), &"set".into()));
    assert_eq!((&body["key"], &body["value"]), (&"n|1".into(), &"first".into()));
    assert_eq!(body["slots"]["id"], "1");
    let name = format!("idempotency-key: hook-{}-{}\r\n", body["position"], body["at"]);
    assert!(got[0].head.contains(&name), "{}", got[0].head);
    // It fails, and then it does not: the same change comes again, under the same name.
    receiver.behaves(Manner::Fails);
    set(&mut client, "n|2", b"\xff");
    receiver.wait_for(3);
    receiver.behaves(Manner::Takes);
    settle(&mut client, "hook");
    let got = receiver.got();
    let of_key = |got: &[Got], key: &str| -> Vec<Got> {
        got.iter().filter(|got| got.body["key"] == key).cloned().collect()
    };
    let second = of_key(&got, "n|2");
    assert!(second.len() >= 3 && second.iter().filter(|got| got.taken).count() == 1);
    assert!(second.iter().all(|got| got.body == second[0].body));
    assert_eq!(second[0].body["value"]["base64"], "/w==");
    // It hangs: the tries are failures after the time that was given, and the flow beside it goes on.
    receiver.behaves(Manner::Hangs);
    set(&mut client, "n|3", b"third");
    let _: u64 = ask(&mut client, &["DEL", "n|3"]).unwrap();
    settle(&mut client, "well");
    assert_eq!(info(&mut client, "hook")["backlog"], 2);
    settle(&mut client, "hook");
    let dead: Vec<std::collections::BTreeMap<String, String>> =
        ask(&mut client, &["FLOW.DEAD", "hook"]).unwrap();
    assert_eq!(dead.len(), 2);
    assert!(dead[0]["error"].contains("timeout"), "{dead:?}");
    // It has recovered; the server is killed meanwhile.
    drop(client);
    server.signal(rustix::process::Signal::KILL);
    drop(server);
    receiver.behaves(Manner::Takes);
    let server = start();
    let mut client = server.client(3);
    // What a client was told of the dead is safe.
    assert_eq!(ask(&mut client, &["FLOW.RETRY", "hook", "ALL"]), Ok(2));
    settle(&mut client, "hook");
    let third = of_key(&receiver.got(), "n|3");
    let taken: Vec<_> = third.iter().filter(|got| got.taken).collect();
    assert_eq!(taken.len(), 2, "{third:?}");
    // In the order of the writes, which their numbers tell.
    let sequence = |got: &Got| got.body["sequence"].as_u64().unwrap();
    assert!(sequence(taken[0]) < sequence(taken[1]), "{taken:?}");
    assert_eq!(taken[0].body["operation"], "set");
    for got in &third {
        let header = format!("headwater-sequence: {}\r\n", sequence(got));
        assert!(got.head.contains(&header), "{}", got.head);
        let first = third.iter().find(|it| it.body["operation"] == got.body["operation"]).unwrap();
        assert_eq!(sequence(got), sequence(first), "it is the same whenever it is posted");
    }
    let of = |operation: &str| taken.iter().find(|got| got.body["operation"] == operation);
    assert_eq!(of("set").unwrap().body["value"], "third");
    assert_eq!(of("delete").unwrap().body["value"], serde_json::Value::Null);
    assert!(of_key(&other.got(), "n|3").iter().all(|got| got.taken));
    let text = refusal(&mut client, &["FLOW.ADD", "x", "ON", "n|<id>", "HTTP", "POST", "ftp://h"]);
    assert!(text.contains("begins with http://"), "{text}");
}

#[test]
fn flows_of_the_configuration_file_are_there_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    let text = "[[flow]]\nname = 'keep'\non = 'item|<id>'\ncopy = 'archive|<id> = copy item|<id>'\n\
                operations = ['set']\nbackfill = true\n";
    std::fs::write(&file, text).unwrap();
    let data = folder.path().join("data");
    let words = ["--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()];
    for round in 0..2 {
        let server = Server::start(&words);
        let mut client = server.client(3);
        let _: () = ask(&mut client, &["SET", &format!("item|{round}"), "x"]).unwrap();
        settle(&mut client, "keep");
        assert_eq!(count(&mut client, "archive|"), round + 1);
        server.signal(rustix::process::Signal::TERM);
        server.wait();
    }
}
