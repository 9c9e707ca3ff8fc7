//! What a transaction, or a command of several keys, writes is one batch of the store on disk, whatever must be loaded
//! for it, and whenever that turns out.

use super::Stage;
use crate::service::{Service, Stopped};
use headwater_config::Config;
use std::time::{Duration, Instant};

/// What is there before.
const BEFORE: &str = "FLUSHALL\r\n\
    MSET a|g|1 1 a|g|2 two a|h|3 three b|g|1 other d|k|1 shown d|k|2 too s|u|old 1 n|u 7\r\n\
    PEXPIRE a|h|3 100000000\r\n";
const JOIN: &str = "JOIN.ADD t \"t|<u>|<k>|<i> = check s|<u>|<k> copy d|<k>|<i>\"\r\n";

const FLOW: &str = "FLOW.ADD NAME ON \"s|<u>|<k>\" PUBLISH news\r\n";

/// Requests, with `;` between: each is a transaction.
const TRANSACTIONS: &[&str] = &[
    "INCR a|g|1;RANGE.DEL a|g|0 a|g|9;SET a|g|9 new",
    "SET a|g|7 x;GET a|g|1;DEL a|g|2 b|g|1 a|h|3;INCR a|g|1",
    "DEL n|u;INCR n|u;DEL n|u;SETNX n|u 5;INCR n|u",
    "MSET a|g|1 5 b|g|1 6;MSETNX a|g|1 7 b|g|7 8;MSETNX a|g|8 7 b|g|7 8",
    "RENAME a|g|1 b|g|1;COPY a|h|3 b|g|2;RENAMENX a|g|2 a|h|3;COPY b|g|1 a|g|2 REPLACE",
    "GETDEL a|g|1;GETSET a|g|2 new;GETEX a|h|3 PERSIST;SET b|g|1 x GET;SET b|g|9 x KEEPTTL",
    "APPEND a|g|2 more;SETRANGE b|g|1 3 x;EXPIRE a|g|1 100;PEXPIREAT a|g|1 1;GET a|g|1",
    // What these need depends on what they write.
    "INCR n|u;SET s|u|k 1;PREFIX t|u|;DEL s|u|old;INCR n|u;PREFIX t|u| COUNT",
    "SET s|u|k 1;GET t|u|k|1;RANGE.DEL d|k| d|l;PREFIX t|u|;SET d|k|3 more;GET t|u|k|3",
    "INCR n|u;FLUSHALL;SET a|g|1 only;GET b|g|1",
    "SET s|u|k 1;PREFIX t|;FLUSHALL;MSET a|g|1 x b|g|1 y;RANGE.DEL a| b|;PREFIX b|",
];
/// Requests by themselves.
const ALONE: &[&str] = &[
    "MSET a|g|1 5 b|g|1 6 c|new 7",
    "MSETNX a|g|8 7 b|g|7 8",
    "DEL a|g|1 b|g|1 a|h|3 nothing|1 n|u",
    "DEL a|g|1 a|g|1 b|g|1 b|g|1",
    "RANGE.DEL a|g|0 a|g|9",
    "RANGE.DEL a| c|",
    "RENAME a|h|3 b|g|1",
    "RENAMENX a|g|1 b|g|7",
    "COPY a|h|3 b|g|7",
    "FLUSHALL",
];

/// Waits for what other threads do.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{what:?} does not come");
        std::thread::yield_now();
    }
}

/// A request's answer, when all of it has come; in the loop's turns between, others' writes would be handed over.
fn answer(stage: &mut Stage, request: &str) -> String {
    let (mut out, mut stopped) = stage.serve(0, request);
    while stopped == Stopped::Parked {
        stage.service.end_turn();
        until(request, || stage.woken().contains(&0).then_some(()));
        let (more, then) = stage.serve(0, "");
        (out, stopped) = (out + &more, then);
    }
    stage.service.end_turn();
    out
}

/// How many batches the store has written, when it has written everything.
fn batches(stage: &Stage) -> u64 {
    until("what is safe", || {
        let (_, _, facts) = stage.service.stores.keeping.as_ref().unwrap().facts();
        (facts.durable == facts.position).then_some(facts.batches)
    })
}

/// Only what is on disk is left.
fn forget(stage: &mut Stage) {
    let engine = stage.service.node_mut().engine_mut();
    let _all = (0..1000).take_while(|draw| engine.evict_any(*draw)).count();
}

#[test]
fn a_transaction_is_one_batch_of_the_store() {
    let place = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.data.data_dir = place.path().join("data").to_str().unwrap().to_owned();
    config.data.durability = String::from("always");
    let (mut kept, mut plain) = (Stage::with(config), Stage::new());
    for stage in [&mut kept, &mut plain] {
        assert!(answer(stage, JOIN).starts_with('*'));
    }
    let transactions = TRANSACTIONS.iter().map(|words| {
        let requests = words.replace(';', "\r\n");
        format!("MULTI\r\n{requests}\r\nEXEC\r\n")
    });
    let alone = ALONE.iter().map(|words| format!("{words}\r\n"));
    for request in transactions.chain(alone) {
        // With everything in memory, with nothing, and with parts of it.
        for read in ["PREFIX t|\r\n", "", "MGET a|g|1 n|u s|u|old\r\n", "GET b|g|1\r\n"] {
            for stage in [&mut kept, &mut plain] {
                answer(stage, BEFORE);
            }
            batches(&kept);
            if !read.starts_with("PREFIX") {
                forget(&mut kept);
            }
            for stage in [&mut kept, &mut plain] {
                answer(stage, read);
            }
            let before = batches(&kept);
            let expected = answer(&mut plain, &request);
            assert_eq!(answer(&mut kept, &request), expected);
            assert_eq!(batches(&kept) - before, 1, "{request:?} behind {read:?}");
            let all = "RANGE a| w|\r\n";
            forget(&mut kept);
            assert_eq!(answer(&mut kept, all), answer(&mut plain, all), "{request:?}");
        }
    }
}

#[test]
fn what_has_begun_ends_without_its_client() {
    let place = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.data.data_dir = place.path().join("data").to_str().unwrap().to_owned();
    let mut stage = Stage::with(config);
    answer(&mut stage, JOIN);
    answer(&mut stage, BEFORE);
    stage.service.end_turn();
    forget(&mut stage);
    let request = "MULTI\r\nINCR n|u\r\nSET s|u|k 1\r\nPREFIX t|u|\r\nINCR n|u\r\nEXEC\r\n";
    let (mut out, mut stopped) = stage.serve(0, request);
    while !out.contains(":8") {
        assert_eq!(stopped, Stopped::Parked);
        stage.service.end_turn();
        until(request, || stage.woken().contains(&0).then_some(()));
        (out, stopped) = stage.serve(0, "");
    }
    assert_eq!(stopped, Stopped::Parked, "it waits for what it has made necessary itself");
    let client = stage.connections.take(stage.ids[0].slot).unwrap();
    assert!(<super::ShardService as Service>::outlives_client(&client.session));
    assert!(!<super::ShardService as Service>::may_end(&client.session));
    stage.connections.put(client);
}

/// Earlier versions took names that are refused today.
#[test]
fn names_that_are_kept_go_on_working() {
    let place = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.data.data_dir = place.path().join("data").to_str().unwrap().to_owned();
    let spec = "t|<u> = count s|<u>|<k>";
    let mut stage = Stage::with(config.clone());
    for request in [format!("JOIN.ADD größe \"{spec}\"\r\n"), FLOW.replace("NAME", "größe")] {
        let refused = answer(&mut stage, &request);
        assert!(refused.contains("letters of ASCII"), "{refused}");
    }
    answer(&mut stage, "SET s|u|1 x\r\n");
    let keeping = stage.service.stores.keeping.as_mut().unwrap();
    keeping.join_added("größe", spec);
    let words = ["größe", "ON", "s|<u>|<k>", "PUBLISH", "news"];
    keeping.flow_added("größe", words.map(str::to_owned).to_vec());
    answer(&mut stage, "SET s|u|2 x\r\n");
    batches(&stage);
    drop(stage);
    let mut stage = Stage::with(config);
    assert_eq!(answer(&mut stage, "GET t|u\r\n"), "$1 2 ");
    assert!(answer(&mut stage, "FLOW.LIST\r\n").contains("größe"));
    let replaced = answer(&mut stage, &format!("JOIN.ADD größe \"{spec}\" REPLACE\r\n"));
    assert!(replaced.starts_with('*'), "{replaced}");
    assert_eq!(answer(&mut stage, "JOIN.DROP größe\r\n"), "+OK ");
}
