//! A shard that has no turn any more, in one process with others that have: who waits for what it would answer is told which one it is, and when it
//! goes on again nobody is answered twice.

use super::busy::request;
use super::pipe::Pipe;
use super::world::{PATIENCE, World};
use crate::alone::alone;
use headwater_base::{Placement, Shard};
use headwater_config::Config;

/// What is answered where nothing was executed, and where nobody knows.
const NOTHING: &str = "-BUSY shard 1 has not gone on for 60 s: nothing was executed ";
const UNKNOWN: &str =
    "-BUSY shard 1 has not gone on for 60 s: nobody knows whether this is executed there ";

/// What a client was told, without line ends.
fn told(pipe: &Pipe) -> String {
    let told: Vec<u8> = pipe.state().told.drain(..).collect();
    String::from_utf8(told).unwrap().replace("\r\n", " ")
}

/// A client of the first shard.
fn client_of_first(world: &mut World) -> Pipe {
    loop {
        let (pipe, _) = world.connect();
        if world.shard_of(&pipe) == 0 {
            return pipe;
        }
    }
}

fn wait_for(world: &mut World, pipe: &Pipe) -> String {
    let began = world.uptime;
    let mut all = String::new();
    while all.is_empty() {
        world.turn();
        all = told(pipe);
        assert!(world.uptime < began + 2 * PATIENCE, "nothing is answered");
    }
    all
}

/// Waits until so many answers have come that end with something.
fn wait_for_many(world: &mut World, pipe: &Pipe, (count, end): (usize, &str)) -> String {
    let mut all = String::new();
    while all.matches(end).count() < count {
        all += &wait_for(world, pipe);
    }
    all
}

/// Asks, and waits for the answer.
fn ask(world: &mut World, pipe: &Pipe, words: &[&str]) -> String {
    pipe.ask(&request(words));
    wait_for(world, pipe)
}

fn until_quiet(world: &mut World) {
    while !world.is_quiet() {
        world.turn();
    }
}

/// The shard that was stalled goes on, and the others know it.
fn go_on(world: &mut World) {
    world.stalled = None;
    let began = world.uptime;
    while world.uptime < began + 3000 {
        world.turn();
    }
}

/// Keys of so many shards with this prefix, one of each.
fn keys_of(shards: u16, prefix: &str) -> Vec<String> {
    let placement = Placement::even(shards);
    let key = |home| {
        let mut keys = (0..).map(|number: u32| format!("{prefix}{number}"));
        keys.find(|key| placement.home(key.as_bytes()) == Shard(home)).unwrap()
    };
    (0..shards).map(key).collect()
}

#[test]
fn who_waits_for_a_shard_that_does_not_go_on_is_told() {
    let world = &mut World::new(2, 3, &|_| {});
    let keys = keys_of(2, "key");
    let (own, other) = (&*keys[0], &*keys[1]);
    let (reads, watches, writes) =
        (client_of_first(world), client_of_first(world), client_of_first(world));
    assert_eq!(ask(world, &reads, &["SET", other, "1"]), "+OK ");
    until_quiet(world);
    world.stalled = Some(1);
    let began = world.uptime;
    for words in [&["GET", own][..], &["GET", other], &["INCR", other], &["MGET", own, other]] {
        reads.ask(&request(words));
    }
    watches.ask(&request(&["RANGE.WATCH", "a", "z"]));
    writes.ask(&request(&["MSET", own, "2", other, "2"]));
    let answers = wait_for_many(world, &reads, (3, "-BUSY"));
    assert_eq!(answers, format!("$-1 {UNKNOWN}{UNKNOWN}{NOTHING}"));
    let waited = world.uptime - began;
    assert!((59_000..70_000).contains(&waited), "{waited}");
    assert_eq!(wait_for(world, &watches), NOTHING);
    assert_eq!(wait_for(world, &writes), NOTHING);
    // Who asks now is told within a second or two.
    let began = world.uptime;
    assert_eq!(ask(world, &watches, &["GET", other]), UNKNOWN);
    assert!(world.uptime < began + 3000);
    world.stalled = None;
    // What it was asked for is executed now, each once, and nothing of what was given up before it began.
    for (asked, wanted) in [("GET", "$1 2 "), ("INCR", ":3 ")] {
        for pipe in [&reads, &watches, &writes] {
            assert_eq!(ask(world, pipe, &["EXISTS", own]), ":0 ");
        }
        assert_eq!(ask(world, &reads, &[asked, other]), wanted);
    }
}

/// What goes through the shards one after the other, what is read under locks, and what is computed of keys that are to be loaded from there.
#[test]
fn whatever_reads_is_given_up_wherever_it_stands() {
    let world = &mut World::new(2, 5, &|_| {});
    let keys = keys_of(2, "key");
    let (own, other) = (&*keys[0], &*keys[1]);
    let placed = keys_of(2, "p|");
    let (reader, second, third) =
        (client_of_first(world), client_of_first(world), client_of_first(world));
    for key in [own, other, &placed[0], &placed[1]] {
        assert_eq!(ask(world, &reader, &["SET", key, "1"]), "+OK ");
    }
    let output = keys_of(2, "d|")[0].clone();
    let group = output.strip_prefix("d|").unwrap();
    let join = format!("d|{group}|<n> = copy p|<n>");
    assert!(ask(world, &reader, &["JOIN.ADD", "d", &join]).contains("warnings"));
    until_quiet(world);
    world.stalled = Some(1);
    let scan = ["SCAN", "0", "COUNT", "100"];
    reader.ask(&request(&scan));
    let derived = format!("{output}|");
    second.ask(&request(&["PREFIX", &derived]));
    for words in [&["MULTI"][..], &["GET", own], &["GET", other], &["LCS", own, other], &["EXEC"]] {
        third.ask(&request(words));
    }
    assert_eq!(wait_for(world, &reader), NOTHING);
    assert_eq!(wait_for(world, &second), NOTHING);
    let queued = "+OK +QUEUED +QUEUED +QUEUED ";
    assert_eq!(wait_for_many(world, &third, (1, "-BUSY")), format!("{queued}{NOTHING}"));
    // Nothing is left of it.
    go_on(world);
    assert!(ask(world, &reader, &scan).contains(other));
    assert!(ask(world, &second, &["PREFIX", &derived]).starts_with("*4 "));
    assert_eq!(ask(world, &third, &["MSET", own, "7", other, "7"]), "+OK ");
    assert_eq!(ask(world, &second, &["MGET", own, other]), "*2 $1 7 $1 7 ");
}

/// Where a transaction is while its shard is stalled is drawn.
#[test]
fn what_several_shards_do_is_given_up_as_a_whole_or_done_as_a_whole() {
    let (mut given_up, mut done) = (0, 0);
    for seed in 0..60 {
        let world = &mut World::new(3, seed, &|_| {});
        let keys = keys_of(3, "key");
        let [a, b, c] = [0, 1, 2].map(|at| &*keys[at]);
        let (client, other) = (client_of_first(world), client_of_first(world));
        assert_eq!(ask(world, &client, &["MSET", a, "1", b, "1", c, "1"]), "+OK ");
        until_quiet(world);
        let reads = ["MULTI", "GET a", "BITOP OR dest a b", "GET c", "EXEC"];
        let renames = ["RENAME b c"];
        let sees = ["MGET a b c"];
        let all: [&[&str]; 3] = [&reads, &renames, &sees];
        let asked = all[seed as usize % 3];
        for line in asked {
            let named = |word: &&str| match *word {
                "a" | "dest" => a.to_owned(),
                "b" => b.to_owned(),
                "c" => c.to_owned(),
                word => word.to_owned(),
            };
            let words: Vec<String> =
                line.split(' ').collect::<Vec<_>>().iter().map(named).collect();
            client.ask(&request(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        for _ in 0..world.draws.below(60) {
            world.turn();
        }
        world.stalled = Some(1);
        let began = world.uptime;
        let mut answers = String::new();
        while world.uptime < began + 70_000 {
            world.turn();
            answers += &told(&client);
        }
        let is_given_up = answers.contains("-BUSY");
        if is_given_up {
            assert!(answers.ends_with(NOTHING), "{seed}: {answers}");
        }
        go_on(world);
        answers += &told(&client);
        let now = ask(world, &other, &["MGET", a, b, c]);
        if is_given_up || asked == sees {
            assert_eq!(now, "*3 $1 1 $1 1 $1 1 ", "{seed}: {answers}");
        } else {
            assert!(!answers.is_empty(), "{seed}");
            done += 1;
        }
        given_up += u64::from(is_given_up);
        // Nobody has locks.
        assert_eq!(ask(world, &other, &["MSET", a, "3", b, "3", c, "3"]), "+OK ");
        assert_eq!(ask(world, &client, &["MGET", a, b, c]), "*3 $1 3 $1 3 $1 3 ");
    }
    assert!(given_up > 5 && done > 5, "{given_up} given up, {done} done");
}

/// A definition that was given up is nowhere when the shard has gone on.
#[test]
fn a_definition_that_is_given_up_is_made_nowhere() {
    for seed in 0..20 {
        let world = &mut World::new(2, seed, &|_| {});
        let keys = keys_of(2, "d|");
        let (client, other) = (client_of_first(world), client_of_first(world));
        world.stalled = Some(1);
        client.ask(&request(&["JOIN.ADD", "d", "d|<n> = copy p|<n>"]));
        other.ask(&request(&["TABLE.SET", "t", "BOUNDARY", "2"]));
        let mut answers = [wait_for(world, &client), wait_for(world, &other)];
        answers.sort();
        assert!(answers.iter().all(|it| it.starts_with("-BUSY") || it.starts_with("-TRYAGAIN")));
        go_on(world);
        for key in &keys {
            assert_eq!(ask(world, &client, &["SET", key, "1"]), "+OK ", "{seed}");
        }
        assert_eq!(ask(world, &client, &["JOIN.LIST"]), "*0 ");
        assert!(!ask(world, &other, &["TABLE.LIST"]).contains("t"), "{seed}");
        assert_eq!(ask(world, &client, &["DEL", &keys[0], &keys[1]]), ":2 ");
        let added = ask(world, &other, &["JOIN.ADD", "d", "d|<n> = copy p|<n>"]);
        assert!(added.contains("warnings"), "{seed}: {added}");
    }
}

/// Little may wait for a shard.
fn narrow(config: &mut Config) {
    config.memory.max.0 = 120 << 20;
}

/// Who has written so much to a shard that it should read first is told, too; and who waits for another one waits for that alone.
#[test]
fn who_waits_until_a_shard_reads_is_told_and_holds_nobody_up() {
    // The bound counts what the process takes.
    let name = "who_waits_until_a_shard_reads_is_told_and_holds_nobody_up";
    alone(module_path!(), name, || {
        let world = &mut World::new(3, 7, &narrow);
        let keys = keys_of(3, "key");
        let (stalled, goes_on) = (&*keys[1], &*keys[2]);
        let (first, second) = (client_of_first(world), client_of_first(world));
        world.stalled = Some(1);
        let value = "x".repeat(50_000);
        let flood = |pipe: &Pipe, key: &str| {
            (0..40).for_each(|_| pipe.ask(&request(&["SET", key, &value])));
        };
        flood(&first, stalled);
        for _ in 0..300 {
            world.turn();
        }
        // It goes on as often as its shard has read.
        flood(&second, goes_on);
        let began = world.uptime;
        wait_for_many(world, &second, (40, "+OK"));
        assert!(world.uptime < began + 10_000, "{}", world.uptime - began);
        let answers = wait_for_many(world, &first, (40, "-BUSY"));
        assert!(answers.contains(NOTHING) && answers.contains(UNKNOWN), "{answers}");
        go_on(world);
        assert_eq!(ask(world, &first, &["STRLEN", stalled]), ":50000 ");
    });
}

/// A key gets another home while a request for it waits at the old one, which hands it on; and the new home does not go on.
#[test]
fn who_waits_for_what_was_handed_on_is_told() {
    let key = moving_key();
    let mut told_busy = 0;
    for seed in 0..200 {
        let world = &mut World::new(3, seed, &|_| {});
        let (defines, asks) = (client_of_first(world), client_of_first(world));
        defines.ask(&request(&["TABLE.SET", "t", "BOUNDARY", "2"]));
        for _ in 0..world.draws.below(30) {
            world.turn();
        }
        asks.ask(&request(&["GET", &key]));
        let mut answer = String::new();
        while !told(&defines).contains("+OK") {
            world.turn();
            answer += &told(&asks);
        }
        world.stalled = Some(1);
        if answer.is_empty() {
            answer = wait_for(world, &asks);
        }
        assert!(answer == "$-1 " || answer == UNKNOWN, "{seed}: {answer}");
        told_busy += u64::from(answer == UNKNOWN);
    }
    assert!(told_busy > 3, "{told_busy}");
}

/// A key of the table `t` that lives at the third shard by one component, and at the second one by two.
fn moving_key() -> String {
    let placement = &Placement::even(3);
    let mut wider = placement.clone();
    wider.set_boundary(b"t", 2);
    let home = |placement: &Placement, key: &str| placement.home(key.as_bytes());
    let mut keys = (0..).map(|number: u32| format!("t|{number}|{number}"));
    keys.find(|key| home(placement, key) == Shard(2) && home(&wider, key) == Shard(1)).unwrap()
}
