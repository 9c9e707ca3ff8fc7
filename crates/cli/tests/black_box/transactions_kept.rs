//! Transactions over data that is on disk, in a server that is killed while they go on: each of them is there as a whole, or
//! not at all.

use crate::support::{Server, request};
use redis::{Connection, cmd};
use rustix::process::Signal;
use std::io::Read;
use tempfile::TempDir;

/// Groups, each of which a transaction changes in several places.
const GROUPS: u64 = 120;
/// Groups of which some are in memory when the transactions begin.
const READ_FIRST: u64 = 3;

fn start(place: &TempDir) -> Server {
    let path = place.path().join("data");
    Server::start(&["--data", path.to_str().unwrap(), "--durability", "always", "--shards", "1"])
}

fn ask<T: redis::FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query(connection).unwrap()
}

fn words(words: &[&str]) -> Vec<u8> {
    request(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

/// The transaction that makes `round` of a group of what it was. What it reads of the join is known when it is under way:
/// it depends on what it writes.
fn transaction(group: u64, round: u64) -> Vec<u8> {
    let key = |last: &str| format!("a|{group}|{last}");
    let number = round.to_string();
    let requests: &[&[&str]] = &[
        &["MULTI"],
        &["INCR", &key("n")],
        &["SET", &format!("s|{group}|{round}"), &number],
        &["PREFIX", &format!("t|{group}|"), "COUNT"],
        &["RANGE.DEL", &key("0"), &key("9")],
        &["MSET", &key(&(round % 8).to_string()), &number, &key("9"), &number],
        &["DEL", &format!("s|{group}|{}", round.wrapping_sub(1)), &key("old"), &key("older")],
        &["RENAME", &key("new"), &key("old")],
        &["COPY", &key("old"), &key("new")],
        &["COPY", &key("9"), &key("older")],
        &["EXEC"],
    ];
    requests.iter().flat_map(|request| words(request)).collect()
}

/// Checks that a group is as some round has left it: which.
fn check(client: &mut Connection, group: u64) -> u64 {
    let found: Vec<(String, String)> = ask(client, &["PREFIX", &format!("a|{group}|")]);
    let number: u64 = ask(client, &["GET", &format!("a|{group}|n")]);
    let key = |last: &str| format!("a|{group}|{last}");
    let text = number.to_string();
    let mut expected = vec![
        (key(&(number % 8).to_string()), text.clone()),
        (key("9"), text.clone()),
        (key("n"), text.clone()),
        (key("new"), String::from("thing")),
    ];
    if number > 0 {
        expected.push((key("old"), String::from("thing")));
        expected.push((key("older"), text.clone()));
    }
    assert_eq!(found, expected, "group {group} is half of a transaction");
    let follows: Vec<(String, String)> = ask(client, &["PREFIX", &format!("s|{group}|")]);
    assert_eq!(follows, [(format!("s|{group}|{number}"), text)], "group {group}");
    number
}

#[test]
fn a_transaction_over_data_on_disk_is_there_as_a_whole_after_a_kill() {
    let kills: u64 = std::env::var("HEADWATER_TRANSACTION_KILLS")
        .map_or(6, |text| text.parse().expect("a number of kills"));
    let place = tempfile::tempdir().unwrap();
    let server = start(&place);
    let mut client = server.client(2);
    let spec = "t|<g>|<k>|<i> = check s|<g>|<k> copy x|<k>|<i>";
    let _: redis::Value = ask(&mut client, &["JOIN.ADD", "t", spec]);
    for table in ["a", "s", "x", "t"] {
        let _: () = ask(&mut client, &["TABLE.SET", table, "BOUNDARY", "1"]);
    }
    for group in 0..GROUPS {
        let key = |last: &str| format!("a|{group}|{last}");
        let (n, zero, nine, new) = (key("n"), key("0"), key("9"), key("new"));
        let follows = format!("s|{group}|0");
        let pairs = [&*n, "0", &zero, "0", &nine, "0", &new, "thing", &follows, "0"];
        let _: () = ask(&mut client, &[&["MSET"], &pairs[..]].concat());
        let _: () = ask(&mut client, &["SET", &format!("x|{group}|1"), "shown"]);
    }
    server.signal(Signal::KILL);
    server.wait();
    let mut rounds = vec![0; GROUPS as usize];
    let mut done = 0;
    for kill in 0..kills {
        let server = start(&place);
        let mut client = server.client(2);
        // Nothing is in memory, but for this.
        for group in (0..GROUPS).filter(|group| (group + kill) % READ_FIRST == 0) {
            let _: Option<String> = ask(&mut client, &["GET", &format!("a|{group}|n")]);
        }
        let mut socket = server.socket();
        let all = (0..GROUPS).flat_map(|group| transaction(group, rounds[group as usize] + 1));
        socket.send(&all.collect::<Vec<u8>>());
        // At a moment that no event marks, somewhere among the answers.
        let most = (kill * 7919 + 13) % 97 * GROUPS / 97 * 150;
        let mut answers = vec![0; most as usize + 1];
        let _cut = socket.stream().read_exact(&mut answers);
        server.signal(Signal::KILL);
        server.wait();
        let server = start(&place);
        let mut client = server.client(2);
        for group in 0..GROUPS {
            let found = check(&mut client, group);
            let before = rounds[group as usize];
            assert!(found == before || found == before + 1, "group {group}: {found}");
            done += found - before;
            rounds[group as usize] = found;
        }
        server.signal(Signal::KILL);
        server.wait();
    }
    assert!(done > 0 && done < GROUPS * kills, "{done} transactions were done before kills");
}
