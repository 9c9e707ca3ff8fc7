//! Boundaries that joins suggest: what is told of them, what they leave alone, and that they come back after a restart.

use crate::support::Server;
use redis::{Connection, Value, cmd};
use std::collections::HashMap;
use tempfile::TempDir;

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
const USERS: usize = 200;

fn ask<T: redis::FromRedisValue>(client: &mut Connection, words: &[&str]) -> T {
    cmd(words[0]).arg(&words[1..]).query(client).unwrap()
}

/// A number that `TABLE.INFO` tells.
fn of_table(client: &mut Connection, table: &str, title: &str) -> u64 {
    let info: HashMap<String, Value> = ask(client, &["TABLE.INFO", table]);
    redis::from_redis_value(info[title].clone()).unwrap()
}

fn inferred(client: &mut Connection, join: &str) -> Vec<String> {
    let info: HashMap<String, Value> = ask(client, &["JOIN.INFO", join]);
    redis::from_redis_value(info["boundaries"].clone()).unwrap()
}

/// Every user follows the next ten, and each of them has posted ten times.
fn load(client: &mut Connection) {
    let name = |number: usize| format!("u{:03}", number % USERS);
    let mut words = vec![String::from("MSET")];
    for user in 0..USERS {
        for at in 0..10 {
            words.extend([format!("s|{}|{}", name(user), name(user + 1 + at)), String::from("1")]);
            words.extend([format!("p|{}|{:05}", name(user), at * 1000 + user), name(at)]);
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    ask::<()>(client, &words);
}

fn posts_of(client: &mut Connection, user: &str) -> u64 {
    ask(client, &["PREFIX", &format!("t|{user}|"), "COUNT"])
}

#[test]
fn joins_give_tables_with_keys_a_boundary_and_groups_come_by_and_by() {
    let server = Server::start(&["--shards", "1"]);
    let client = &mut server.client(2);
    ask::<()>(client, &["CONFIG", "SET", "slice-rows", "10"]);
    load(client);
    ask::<()>(client, &["TABLE.SET", "p", "BOUNDARY", "0"]);
    ask::<Value>(client, &["JOIN.ADD", "timeline", TIMELINE]);
    assert_eq!(inferred(client, "timeline"), ["s 1", "t 1"]);
    assert_eq!(of_table(client, "s", "boundary"), 1);
    // While keys are being grouped they are read, written and removed like any others.
    assert_eq!(posts_of(client, "u199"), 100);
    assert_eq!(ask::<u64>(client, &["DEL", "s|u199|u000", "s|u000|u001"]), 2);
    ask::<()>(client, &["MSET", "s|u199|u100", "1", "s|u000|u100", "1", "s|lone", "1"]);
    assert_eq!(ask::<u64>(client, &["PREFIX", "s|", "COUNT"]), 10 * USERS as u64 + 1);
    assert_eq!(ask::<u64>(client, &["PREFIX", "s|u000|", "COUNT"]), 10);
    while of_table(client, "s", "groups") < USERS as u64 {}
    assert_eq!(ask::<u64>(client, &["PREFIX", "s|", "COUNT"]), 10 * USERS as u64 + 1);
    assert_eq!(of_table(client, "s", "groups"), USERS as u64);
    assert_eq!((posts_of(client, "u199"), posts_of(client, "u000")), (100, 100));
    assert_eq!(ask::<Vec<Value>>(client, &["VERIFY", "t|", "t}"]), []);
    // What was set holds, also when it is none.
    assert_eq!((of_table(client, "p", "boundary"), of_table(client, "p", "groups")), (0, 0));
    let told: Vec<String> = ask(client, &["EXPLAIN", "s|u000|u100"]);
    let line = "  grouped by: 1 component, as a join reads them";
    assert!(told.iter().any(|told| told == line), "{told:?}");
    // What was inferred stays without the join, until another one is set.
    ask::<()>(client, &["JOIN.DROP", "timeline"]);
    assert_eq!(of_table(client, "s", "boundary"), 1);
    ask::<()>(client, &["TABLE.SET", "s", "BOUNDARY", "0"]);
    ask::<Value>(client, &["JOIN.ADD", "timeline", TIMELINE]);
    assert_eq!(of_table(client, "s", "groups"), 0);
    assert_eq!(posts_of(client, "u001"), 100);
}

#[test]
fn what_is_inferred_places_no_key_and_comes_back_after_a_restart() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("data");
    let start = || {
        let data = path.to_str().unwrap();
        Server::start(&["--data", data, "--durability", "always", "--shards", "2"])
    };
    let homes = |client: &mut Connection| -> Vec<Value> {
        let of = |user: usize| format!("n|new|u{user:03}|1");
        (0..20).map(|user| ask(client, &["SHARD.HOME", &of(user)])).collect()
    };
    let news = "n|new|<user>|<time> = copy a|<user>|<time>";
    let before = {
        let server = start();
        let client = &mut server.client(2);
        load(client);
        let before = homes(client);
        // Says nothing of the boundary.
        ask::<()>(client, &["TABLE.SET", "s", "EVICT", "NO"]);
        ask::<()>(client, &["TABLE.SET", "p", "BOUNDARY", "0"]);
        ask::<Value>(client, &["JOIN.ADD", "timeline", TIMELINE]);
        ask::<Value>(client, &["JOIN.ADD", "news", news]);
        assert_eq!(inferred(client, "news"), ["a 1", "n 2"]);
        ask::<()>(client, &["MSET", "a|u001|5", "x", "a|u002|6", "y"]);
        assert_eq!(ask::<u64>(client, &["PREFIX", "n|new|", "COUNT"]), 2);
        assert_eq!(posts_of(client, "u150"), 100);
        assert_eq!(homes(client), before);
        before
    };
    let server = start();
    let client = &mut server.client(2);
    for (table, boundary) in [("s", 1), ("p", 0), ("t", 1), ("n", 2), ("a", 1)] {
        assert_eq!(of_table(client, table, "boundary"), boundary, "{table}");
    }
    assert_eq!(homes(client), before);
    assert_eq!(posts_of(client, "u150"), 100);
    assert_eq!(ask::<u64>(client, &["PREFIX", "n|new|", "COUNT"]), 2);
    assert_eq!(ask::<Vec<Value>>(client, &["VERIFY", "t|", "t}"]), []);
}
