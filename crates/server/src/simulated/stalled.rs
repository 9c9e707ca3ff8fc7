//! A shard that has no turn any more, in one process with others that have: who waits for what it would answer is told which one it is, and when it
//! goes on again nobody is answered twice.

use super::busy::request;
use super::pipe::Pipe;
use super::world::{PATIENCE, World};
use headwater_base::{Placement, Shard};

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

#[test]
fn who_waits_for_a_shard_that_does_not_go_on_is_told() {
    let world = &mut World::new(2, 3, &|_| {});
    let placement = Placement::even(2);
    let key_of = |home: u16| {
        let mut keys = (0..).map(|number: u32| format!("key{number}"));
        keys.find(|key| placement.home(key.as_bytes()) == Shard(home)).unwrap()
    };
    let (own, other) = (key_of(0), key_of(1));
    let (reads, watches, writes) =
        (client_of_first(world), client_of_first(world), client_of_first(world));
    reads.ask(&request(&["SET", &other, "1"]));
    assert_eq!(wait_for(world, &reads), "+OK ");
    while !world.is_quiet() {
        world.turn();
    }
    world.stalled = Some(1);
    let began = world.uptime;
    for words in [&["GET", &own][..], &["GET", &other], &["INCR", &other], &["MGET", &own, &other]]
    {
        reads.ask(&request(words));
    }
    watches.ask(&request(&["RANGE.WATCH", "a", "z"]));
    writes.ask(&request(&["MSET", &own, "2", &other, "2"]));
    let mut answers = wait_for(world, &reads);
    while answers.matches("-BUSY").count() < 3 {
        answers += &wait_for(world, &reads);
    }
    let busy =
        "-BUSY shard 1 has not gone on for 60 s: nobody knows whether this is executed there ";
    let nothing = "-BUSY shard 1 has not gone on for 60 s: nothing was executed ";
    assert_eq!(answers, format!("$-1 {busy}{busy}{nothing}"));
    let waited = world.uptime - began;
    assert!((59_000..70_000).contains(&waited), "{waited}");
    assert_eq!(wait_for(world, &watches), nothing);
    assert_eq!(wait_for(world, &writes), nothing);
    // Who asks now is told within a second or two.
    let began = world.uptime;
    watches.ask(&request(&["GET", &other]));
    assert_eq!(wait_for(world, &watches), busy);
    assert!(world.uptime < began + 3000);
    world.stalled = None;
    // What it was asked for is executed now, each once, and nothing of what was given up before it began.
    for (asked, wanted) in [("GET", "$1 2 "), ("INCR", ":3 ")] {
        for pipe in [&reads, &watches, &writes] {
            pipe.ask(&request(&["EXISTS", &own]));
            assert_eq!(wait_for(world, pipe), ":0 ");
        }
        reads.ask(&request(&[asked, &other]));
        assert_eq!(wait_for(world, &reads), wanted);
    }
}
