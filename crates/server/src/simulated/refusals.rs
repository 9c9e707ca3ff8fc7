//! What is refused because of keys of several shards: the client is told what is against the first one that it has named, as one shard would.

use super::busy::request;
use super::tests::told;
use super::world::World;
use headwater_base::{Placement, Shard};
use headwater_protocol::resp::ReplyCutter;

/// A key with this beginning that lives there.
fn key_at(beginning: &str, home: u16) -> String {
    let placement = Placement::even(2);
    let mut keys = (0..).map(|number: u32| format!("{beginning}{number}"));
    keys.find(|key| placement.home(key.as_bytes()) == Shard(home)).unwrap()
}

/// Asks in one transaction, and gives its answer.
fn within_exec(world: &mut World, words: &[&str]) -> String {
    let (pipe, _) = world.connect();
    for words in [&["MULTI"], words, &["EXEC"]] {
        pipe.ask(&request(words));
    }
    loop {
        world.turn();
        let told: Vec<u8> = pipe.state().told.iter().copied().collect();
        let mut rest = &told[..];
        for _ in 0..2 {
            let cut = ReplyCutter::default().cut(rest).unwrap_or(rest.len());
            rest = &rest[cut..];
        }
        if ReplyCutter::default().cut(rest).is_some() {
            let text = String::from_utf8_lossy(rest).into_owned();
            return text.strip_prefix("*1\r\n").expect("it has one element").to_owned();
        }
    }
}

#[test]
fn what_is_against_the_first_key_is_told() {
    let world = &mut World::new(2, 1, &|_| {});
    told(world, &["JOIN.ADD", "d", "d|<n> = copy p|<n>"]);
    let long = "x".repeat(2000);
    for home in [0, 1] {
        let (derived, long) = (key_at("d|", home), key_at(&long, 1 - home));
        let (own, other) = (key_at("a", home), key_at("a", 1 - home));
        let joined = ("-JOINED", &*derived);
        let too_long = ("-ERR key of 2", &*long);
        for ((error, first), (_, second)) in [(joined, too_long), (too_long, joined)] {
            for words in [
                &["MSET", first, "1", second, "1"][..],
                &["MSET", &other, "1", &own, "1", first, "1", second, "1"],
                &["MSETNX", first, "1", second, "1"],
                &["DEL", &own, &other, first, second],
                &["UNLINK", first, &own, second],
            ] {
                let alone = told(world, words);
                assert!(alone.starts_with(error), "{:?}: {alone}", &words[..1]);
                let within = within_exec(world, words);
                assert!(within.starts_with(error), "{:?} in EXEC: {within}", &words[..1]);
            }
        }
        assert_eq!(told(world, &["EXISTS", &own, &other]), ":0\r\n");
    }
}
