//! Flows with several shards: records on one, effects on others.

use crate::flows::{BALANCE, ask, count, follow, info, refusal, settle};
use crate::partitions::home;
use crate::shards::{Draws, seeds};
use crate::support::{PATIENCE, Server};
use redis::{Connection, Value, cmd, pipe};
use std::collections::BTreeMap;
use std::time::Instant;

const FLOWS: [&[&str]; 8] = [
    // To another home; and what that causes.
    &["copy", "ON", "item|<a>|<b>", "COPY", "by|<b>|<a> = copy item|<a>|<b>"],
    &["chain", "ON", "by|<b>|<a>", "COPY", "back|<a>|<b> = copy by|<b>|<a>"],
    // Along followers that live beside the posts.
    &[
        "fan",
        "ON",
        "p|<poster>|<time>",
        "FANOUT",
        "t|<user>|<time>|<poster> = check f|<poster>|<user> copy p|<poster>|<time>",
    ],
    // Along subscriptions that live everywhere.
    &[
        "wide",
        "ON",
        "p|<poster>|<time>",
        "FANOUT",
        "w|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>",
    ],
    // Along both followers, and what lives with each of them.
    &[
        "deep",
        "ON",
        "p|<poster>|<time>",
        "FANOUT",
        "m|<phone>|<poster>|<time> = check f|<poster>|<user> check d|<user>|<phone> \
         copy p|<poster>|<time>",
    ],
    &["votes", "ON", "vote|<voter>|<author>", "CALL", "balance", "KEY", "karma|<author>"],
    &["counted", "ON", "by|<b>|<a>", "CALL", "balance", "KEY", "sum|all"],
    &["news", "ON", "p|<poster>|<time>", "PUBLISH", "channel"],
];

/// Adds the flows, and the function that they call.
fn declare(client: &mut Connection) {
    let module = wat::parse_str(BALANCE).unwrap();
    let () = cmd("FN.LOAD").arg("balance").arg(module).query(client).unwrap();
    for flow in FLOWS {
        let _: Value = ask(client, &[&["FLOW.ADD"], flow].concat()).unwrap();
    }
}

fn settle_all(client: &mut Connection) {
    // What causes others first.
    FLOWS.iter().for_each(|flow| settle(client, flow[0]));
}

/// Writes of all kinds, without repetition within a batch.
fn work(client: &mut Connection) {
    follow(client, "bob", 700);
    follow(client, "ann", 3);
    let mut batch = pipe();
    for user in 0..700 {
        batch.set(format!("s|{user:06}|bob"), "").ignore();
        batch.set(format!("d|{user:06}|phone{}", user % 5), "").ignore();
        batch.set(format!("d|{user:06}|tablet{user}"), "").ignore();
    }
    let () = batch.query(client).unwrap();
    let mut batch = pipe();
    for number in 0..40 {
        batch.set(format!("item|{}|{}", number % 7, number), number).ignore();
        batch.set(format!("vote|v{number}|ann"), "").ignore();
        batch.set(format!("vote|v{number}|bob"), "").ignore();
    }
    for time in 0..4 {
        batch.set(format!("p|bob|{time}"), format!("text {time}")).ignore();
        batch.set(format!("p|ann|{time}"), "short").ignore();
    }
    // The last write of a key counts, wherever its effects are.
    for round in 0..20 {
        batch.set("item|again|1", round).ignore();
    }
    batch.cmd("DEL").arg(&["item|1|1", "item|2|2", "vote|v1|ann", "p|bob|2"]).ignore();
    let () = batch.query(client).unwrap();
    settle_all(client);
    let _: u64 = ask(client, &["DEL", "f|bob|000001"]).unwrap();
    let _: () = ask(client, &["SET", "p|bob|9", "without one"]).unwrap();
    settle_all(client);
}

fn all_keys(client: &mut Connection) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for table in ["item", "by", "back", "t", "w", "m", "karma", "sum"] {
        let pairs: Vec<(String, String)> = ask(client, &["PREFIX", &format!("{table}|")]).unwrap();
        all.extend(pairs);
    }
    all
}

#[test]
fn flows_do_with_three_shards_what_they_do_with_one() {
    let keys: Vec<_> = ["1", "3"]
        .iter()
        .map(|shards| {
            let server = Server::start(&["--shards", shards]);
            let mut client = server.client(3);
            declare(&mut client);
            work(&mut client);
            for flow in FLOWS {
                let facts = info(&mut client, flow[0]);
                assert_eq!((facts["dead"], facts["failures"]), (0, 0), "{flow:?}: {facts:?}");
                assert_eq!(facts["running"], 0);
            }
            all_keys(&mut client)
        })
        .collect();
    assert_eq!(keys[0].len(), keys[1].len());
    assert!(keys[0] == keys[1]);
    // It was about something.
    assert_eq!((&*keys[0]["karma|ann"], &*keys[0]["karma|bob"]), ("39", "40"));
    assert_eq!((&*keys[0]["back|again|1"], &*keys[0]["sum|all"]), ("19", "58"));
    let phones = keys[0].keys().filter(|key| key.starts_with("m|"));
    assert_eq!(phones.count(), (3 * 705 + 704) + 4 * 6);
}

/// Writes of some keys, twice within a batch as well; those of check keys apart, since their moment counts.
fn some_writes(draws: &mut Draws, checks: bool) -> Vec<Vec<String>> {
    let write = |_| {
        let (a, b) = (draws.below(6), draws.below(4));
        let key = match draws.below(if checks { 3 } else { 4 }) {
            0 if checks => format!("f|p{a}|{b}"),
            1 if checks => format!("s|{b}|p{a}"),
            _ if checks => format!("d|{b}|{a}"),
            0 => format!("vote|{a}|p{b}"),
            1 => format!("item|{a}|{b}"),
            _ => format!("p|p{a}|{b}"),
        };
        match draws.below(4) {
            0 => vec![String::from("DEL"), key],
            _ => vec![String::from("SET"), key, draws.below(100).to_string()],
        }
    };
    (0..40).map(write).collect()
}

/// `HEADWATER_SHARDS_ROUNDS=1000` compares more often; `HEADWATER_SHARDS_SEED=7` begins with another seed.
#[test]
fn any_writes_have_the_same_effects_with_three_shards_as_with_one() {
    for seed in seeds(6) {
        let servers = ["1", "3"].map(|shards| Server::start(&["--shards", shards]));
        let mut clients = servers.each_ref().map(|server| server.client(3));
        clients.iter_mut().for_each(declare);
        let mut draws = Draws(seed);
        for round in 0..12 {
            let writes = some_writes(&mut draws, round % 2 == 0);
            for client in &mut clients {
                let mut batch = pipe();
                for words in &writes {
                    batch.cmd(&words[0]).arg(&words[1..]).ignore();
                }
                let () = batch.query(client).unwrap();
                settle_all(client);
            }
            let [one, three] = clients.each_mut().map(all_keys);
            assert_eq!(one, three, "seed {seed}, round {round}: {writes:?}");
        }
    }
}

#[test]
fn what_is_published_reaches_subscribers_of_all_shards() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(3);
    let _: Value = ask(&mut client, &["FLOW.ADD", "news", "ON", "n|<id>", "PUBLISH", "c"]).unwrap();
    // Clients go to the shard that has the fewest.
    let mut listeners: Vec<_> = (0..6).map(|_| server.client(2)).collect();
    let mut channels: Vec<_> = listeners.iter_mut().map(Connection::as_pubsub).collect();
    channels.iter_mut().for_each(|channel| channel.subscribe("c").unwrap());
    for number in 0..6 {
        let _: () =
            ask(&mut client, &["SET", &format!("n|{number}"), &number.to_string()]).unwrap();
    }
    for channel in &mut channels {
        let mut got: Vec<String> =
            (0..6).map(|_| channel.get_message().unwrap().get_payload().unwrap()).collect();
        got.sort();
        assert_eq!(got, ["0", "1", "2", "3", "4", "5"]);
    }
}

type Dead = Vec<BTreeMap<String, String>>;

#[test]
fn answers_about_flows_are_of_all_shards() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(3);
    let copy = "out|<id> = copy in|<id>";
    let words = ["FLOW.ADD", "f", "ON", "in|<id>", "COPY", copy];
    let tries = ["MAX-ATTEMPTS", "2", "BACKOFF", "1", "1"];
    let _: Value = ask(&mut client, &[&words[..], &tries].concat()).unwrap();
    // What gives all that a flow writes is refused; these two together give the keys of this test.
    let all = ["JOIN.ADD", "owner", "out|<id> = copy base|<id>"];
    assert!(refusal(&mut client, &all).contains("flow 'f' writes keys that the join gives"));
    let owners =
        [("short", "out|<id:1> = copy base|<id:1>"), ("long", "out|<id:2> = copy base|<id:2>")];
    for (name, join) in owners {
        let _: Value = ask(&mut client, &["JOIN.ADD", name, join]).unwrap();
    }
    let text = refusal(&mut client, &words);
    assert!(text.contains("a flow is named 'f' already"), "{text}");
    let back = ["FLOW.ADD", "back", "ON", "out|<id>", "COPY", "in|<id> = copy out|<id>"];
    assert!(refusal(&mut client, &back).contains("back -> f -> back"));
    let () = ask(&mut client, &["FLOW.PAUSE", "f"]).unwrap();
    for number in 0..12 {
        let _: () = ask(&mut client, &["SET", &format!("in|{number}"), "x"]).unwrap();
    }
    let facts = info(&mut client, "f");
    assert_eq!((facts["backlog"], facts["paused"], facts["running"]), (12, 1, 0));
    assert!(facts.contains_key("cursor-0") && facts.contains_key("cursor-2"), "{facts:?}");
    let list: Vec<BTreeMap<String, String>> = ask(&mut client, &["FLOW.LIST"]).unwrap();
    assert_eq!((list.len(), &*list[0]["backlog"], &*list[0]["paused"]), (1, "12", "1"));
    let section: String = ask(&mut client, &["INFO", "flows"]).unwrap();
    assert!(section.contains("flow_f:paused=1,backlog=12,"), "{section}");
    let () = ask(&mut client, &["FLOW.RESUME", "f"]).unwrap();
    settle(&mut client, "f");
    assert_eq!(info(&mut client, "f")["dead"], 12);
    let dead: Dead = ask(&mut client, &["FLOW.DEAD", "f"]).unwrap();
    let mut positions: Vec<u64> = dead.iter().map(|it| it["position"].parse().unwrap()).collect();
    positions.sort_unstable();
    positions.dedup();
    assert_eq!((dead.len(), positions.len()), (12, 12));
    let shards: std::collections::BTreeSet<u64> = positions.iter().map(|at| at >> 48).collect();
    assert_eq!(shards.len(), 3, "keys of all shards");
    // One position is of one task.
    let last = positions[11].to_string();
    assert_eq!(ask(&mut client, &["FLOW.DISCARD", "f", &last]), Ok(1));
    assert_eq!(ask(&mut client, &["FLOW.DISCARD", "f", &last]), Ok(0));
    for (name, _) in owners {
        let _: String = ask(&mut client, &["JOIN.DROP", name]).unwrap();
    }
    let first = positions[0].to_string();
    assert_eq!(ask(&mut client, &["FLOW.RETRY", "f", &first]), Ok(1));
    settle(&mut client, "f");
    assert_eq!(count(&mut client, "out|"), 1);
    assert_eq!(ask(&mut client, &["FLOW.RETRY", "f", "ALL"]), Ok(10));
    settle(&mut client, "f");
    assert_eq!((count(&mut client, "out|"), info(&mut client, "f")["dead"]), (11, 0));
    let nowhere = (9_u64 << 48).to_string();
    assert!(refusal(&mut client, &["FLOW.REPLAY", "f", &nowhere]).contains("no shard"));
    for (command, name) in [("FLOW.DROP", "g"), ("FLOW.INFO", "g"), ("FLOW.PAUSE", "g")] {
        assert!(refusal(&mut client, &[command, name]).contains("no flow is named 'g'"));
    }
    let () = ask(&mut client, &["FLOW.DROP", "f"]).unwrap();
    let list: Vec<Value> = ask(&mut client, &["FLOW.LIST"]).unwrap();
    assert!(list.is_empty());
    let _: () = ask(&mut client, &["SET", "in|late", "x"]).unwrap();
    assert_eq!(ask(&mut client, &["EXISTS", "out|late"]), Ok(0));
}

/// A number for which `vote|<number>|…` lives on this shard.
fn voter_on(client: &mut Connection, shard: u64) -> u64 {
    (0..).find(|number| home(client, &format!("vote|{number}|x")).1 == shard).unwrap()
}

#[test]
fn a_replay_runs_again_what_was_done_on_other_shards() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let words = ["--shards", "3", "--data", data.to_str().unwrap()];
    let server = Server::start(&words);
    let mut client = server.client(3);
    declare(&mut client);
    // A flow that stands still keeps the records.
    let keep = ["FLOW.ADD", "keep", "ON", "vote|<voter>|<author>", "PUBLISH", "c"];
    let _: Value = ask(&mut client, &keep).unwrap();
    let _: () = ask(&mut client, &["FLOW.PAUSE", "keep"]).unwrap();
    let voters: Vec<u64> = (0..3).map(|shard| voter_on(&mut client, shard)).collect();
    for voter in &voters {
        let _: () = ask(&mut client, &["SET", &format!("vote|{voter}|ann"), ""]).unwrap();
    }
    settle(&mut client, "votes");
    let karma = |client: &mut Connection| ask::<String>(client, &["GET", "karma|ann"]).unwrap();
    assert_eq!(karma(&mut client), "3");
    for (shard, expected) in (0..3_u64).zip(["4", "5", "6"]) {
        let first = (shard << 48).to_string();
        let before = info(&mut client, "votes");
        assert!(before[&format!("cursor-{shard}")] > shard << 48, "{before:?}");
        assert_eq!(ask(&mut client, &["FLOW.REPLAY", "votes", &first]), Ok(1));
        settle(&mut client, "votes");
        assert_eq!(karma(&mut client), expected);
    }
    // Flows that clients have added are there again on all shards, and go on.
    server.signal(rustix::process::Signal::TERM);
    server.wait();
    let server = Server::start(&words);
    let mut client = server.client(3);
    for voter in &voters {
        let _: () = ask(&mut client, &["SET", &format!("vote|{voter}|bob"), ""]).unwrap();
    }
    settle(&mut client, "votes");
    assert_eq!(karma(&mut client), "6");
    assert_eq!(ask(&mut client, &["GET", "karma|bob"]), Ok(3));
}

/// Puts its parameter's key at `near|<a>`; its WRITES name `far|x` as well, which it puts if the value is long.
const PUTS: &str = r#"(module
    (import "headwater" "slot_read" (func $slot_read (param i32 i32 i32 i32) (result i32)))
    (import "headwater" "value_len" (func $value_len (result i32)))
    (import "headwater" "put" (func $put (param i32 i32 i32 i32)))
    (memory 1)
    (data (i32.const 0) "near|") (data (i32.const 100) "far|x")
    (func (export "call") (result i32) (local $len i32)
        (local.set $len (call $slot_read (i32.const 0) (i32.const 0) (i32.const 5) (i32.const 50)))
        (call $put (i32.const 0) (i32.add (local.get $len) (i32.const 5)) (i32.const 0) (i32.const 4))
        (if (i32.gt_s (call $value_len) (i32.const 3)) (then
            (call $put (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4))))
        (i32.const 0)))"#;

#[test]
fn a_function_reaches_the_keys_of_its_shard_alone() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(3);
    let module = wat::parse_str(PUTS).unwrap();
    let () = cmd("FN.LOAD").arg("puts").arg(module).query(&mut client).unwrap();
    let add = ["FLOW.ADD", "puts", "ON", "in|<a>", "CALL", "puts", "WRITES", "near|<a> far|<x>"];
    let tries = ["MAX-ATTEMPTS", "2", "BACKOFF", "1", "1"];
    let _: Value = ask(&mut client, &[&add[..], &tries].concat()).unwrap();
    let far = home(&mut client, "far|x").1;
    let name = |client: &mut Connection, is_far: bool| {
        let of = |number: &u64| (home(client, &format!("in|{number}")).1 == far) != is_far;
        (0..).find(of).unwrap()
    };
    let (beside, elsewhere) = (name(&mut client, false), name(&mut client, true));
    let set = |client: &mut Connection, number: u64, value: &str| {
        let () = ask(client, &["SET", &format!("in|{number}"), value]).unwrap();
        settle(client, "puts");
    };
    set(&mut client, elsewhere, "a");
    assert_eq!((count(&mut client, "near|"), count(&mut client, "far|")), (1, 0));
    // It has written nothing if it may not write all.
    let _: u64 = ask(&mut client, &["RANGE.DEL", "near|", "near}"]).unwrap();
    set(&mut client, elsewhere, "long");
    assert_eq!((count(&mut client, "near|"), count(&mut client, "far|")), (0, 0));
    let dead: Dead = ask(&mut client, &["FLOW.DEAD", "puts"]).unwrap();
    assert!(dead[0]["error"].contains("their shard alone"), "{dead:?}");
    assert!(dead[0]["error"].contains("far|x"), "{dead:?}");
    set(&mut client, beside, "long");
    assert_eq!((count(&mut client, "near|"), count(&mut client, "far|")), (1, 1));
}

#[test]
fn a_flow_without_room_holds_up_effects_of_other_shards() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(3);
    declare(&mut client);
    // What the copies cause has no room for more.
    let tight = ["FLOW.ADD", "tight", "ON", "by|<b>|<a>", "PUBLISH", "c", "BACKLOG", "1", "REJECT"];
    let _: Value = ask(&mut client, &tight).unwrap();
    let _: () = ask(&mut client, &["FLOW.PAUSE", "tight"]).unwrap();
    for number in 0..30 {
        let _: () = ask(&mut client, &["SET", &format!("item|{number}|x{number}"), "v"]).unwrap();
    }
    // Each shard has room for one.
    let began = Instant::now();
    while info(&mut client, "copy")["backlog"] > 27 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    assert_eq!((count(&mut client, "by|"), info(&mut client, "copy")["failures"]), (3, 0));
    let _: () = ask(&mut client, &["FLOW.RESUME", "tight"]).unwrap();
    settle_all(&mut client);
    assert_eq!((count(&mut client, "by|"), count(&mut client, "back|")), (30, 30));
}

#[test]
fn keys_that_were_there_before_are_filled_in_on_all_shards() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(3);
    let mut batch = pipe();
    for number in 0..3000 {
        batch.set(format!("in|{number}|{}", number % 10), number).ignore();
    }
    let () = batch.query(&mut client).unwrap();
    let copy = "out|<b>|<a> = copy in|<a>|<b>";
    let words = ["FLOW.ADD", "f", "ON", "in|<a>|<b>", "COPY", copy, "BACKFILL"];
    let _: Value = ask(&mut client, &words).unwrap();
    let began = Instant::now();
    while count(&mut client, "out|") != 3000 || info(&mut client, "f")["backlog"] > 0 {
        assert!(began.elapsed() < PATIENCE, "{} keys", count(&mut client, "out|"));
        std::thread::yield_now();
    }
    assert_eq!(info(&mut client, "f")["done"], 3000);
}

#[test]
fn flows_of_the_configuration_file_are_on_all_shards() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    let text = "[listen]\nshards = 3\n[[flow]]\nname = 'keep'\non = 'item|<a>|<b>'\n\
                copy = 'by|<b>|<a> = copy item|<a>|<b>'\n";
    std::fs::write(&file, text).unwrap();
    let server = Server::start(&["--config", file.to_str().unwrap()]);
    let mut client = server.client(3);
    for number in 0..20 {
        let _: () =
            ask(&mut client, &["SET", &format!("item|{number}|{}", number % 3), "x"]).unwrap();
    }
    settle(&mut client, "keep");
    assert_eq!(count(&mut client, "by|"), 20);
}

#[test]
fn partitions_move_beside_flows_and_nothing_is_lost_or_double() {
    for data in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let kept = ["--data", path.to_str().unwrap()];
        let words = [&["--shards", "3"], &kept[..if data { 2 } else { 0 }]].concat();
        let server = Server::start(&words);
        let mut client = server.client(3);
        declare(&mut client);
        follow(&mut client, "bob", 300);
        let keys = ["karma|ann", "karma|bob", "p|bob|1", "vote|3|ann", "sum|all", "t|000007|1|bob"];
        let stop = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let moved = std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let (mut client, mut moved, mut round) = (server.client(3), 0, 0);
                while !stop.load(relaxed) {
                    let key = keys[round % keys.len()];
                    round += 1;
                    let (partition, shard) = home(&mut client, key);
                    let to = (shard + 1) % 3;
                    let done =
                        cmd("SHARD.MOVE").arg(partition).arg(to).query::<String>(&mut client);
                    match done {
                        Ok(_) => moved += 1,
                        Err(error) => assert!(error.to_string().contains("try again"), "{error}"),
                    }
                }
                moved
            });
            for round in 0..60_u64 {
                let mut batch = pipe();
                for number in 0..20 {
                    batch.set(format!("vote|{}|ann", round * 20 + number), "").ignore();
                    batch.set(format!("vote|{number}|bob"), "").ignore();
                    batch.set(format!("item|{}|{number}", number % 5), round).ignore();
                }
                batch.set(format!("p|bob|{round:03}"), round).ignore();
                let () = batch.query(&mut client).unwrap();
                if round % 10 == 9 {
                    settle_all(&mut client);
                }
            }
            settle_all(&mut client);
            let began = Instant::now();
            // At the latest now that nothing is under way.
            while began.elapsed() < PATIENCE / 20 {
                std::thread::yield_now();
            }
            stop.store(true, relaxed);
            mover.join().unwrap()
        });
        assert!(moved > 0, "none has moved");
        assert_eq!(ask(&mut client, &["GET", "karma|ann"]), Ok(1200));
        assert_eq!(ask(&mut client, &["GET", "karma|bob"]), Ok(1200));
        assert_eq!(ask(&mut client, &["GET", "sum|all"]), Ok(1200));
        assert_eq!((count(&mut client, "by|"), count(&mut client, "back|")), (20, 20));
        let last: Vec<(String, u64)> = ask(&mut client, &["PREFIX", "back|"]).unwrap();
        assert!(last.iter().all(|(_, round)| *round == 59), "{last:?}");
        assert_eq!(count(&mut client, "t|"), 60 * 300);
        // A call that gets no processor for as long as it may take fails, and is made again.
        for flow in FLOWS {
            assert_eq!(info(&mut client, flow[0])["dead"], 0, "{flow:?}");
        }
    }
}
