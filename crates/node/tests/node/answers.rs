//! Headwater's own answers: ranges in both protocol versions, limits, scans, all-or-nothing.

use headwater_base::{Limits, Millis};
use headwater_command::{Command, OwnedArgs};
use headwater_node::{Node, Outcome, Settings};
use headwater_protocol::resp::{Encoder, Version, decode, find};

fn answer_in(node: &mut Node, version: Version, words: &[&str]) -> String {
    let request: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
    let mut out = Vec::new();
    let mut reply = Encoder::new(&mut out, version);
    match find(request.args()).and_then(|spec| decode(spec, request.args())) {
        Err(refusal) => refusal.write(&mut reply),
        Ok(Command::Data(data)) => assert_eq!(node.execute(&data, &mut reply), Outcome::Done),
        Ok(other) => panic!("{other:?} is not a node's"),
    }
    String::from_utf8(out).expect("text").replace("\r\n", " ")
}

fn answer(node: &mut Node, words: &[&str]) -> String {
    answer_in(node, Version::Resp2, words)
}

fn node_with(pairs: &[(&str, &str)]) -> Node {
    let mut node = Node::new(Settings::default());
    for (key, value) in pairs {
        assert_eq!(answer(&mut node, &["SET", key, value]), "+OK ");
    }
    node
}

#[test]
fn ranges_are_flat_arrays_or_maps() {
    let mut node = node_with(&[("t|a|1", "x"), ("t|a|2", ""), ("t|b|1", "z"), ("u", "w")]);
    let two = &mut |words: &[&str]| answer_in(&mut node, Version::Resp2, words);
    assert_eq!(two(&["RANGE", "t|a", "t|b"]), "*4 $5 t|a|1 $1 x $5 t|a|2 $0  ");
    assert_eq!(two(&["range", "t|a|2", ""]), "*6 $5 t|a|2 $0  $5 t|b|1 $1 z $1 u $1 w ");
    assert_eq!(two(&["PREFIX", "t|a|", "rev", "LIMIT", "1"]), "*2 $5 t|a|2 $0  ");
    assert_eq!(two(&["PREFIX", "t|a|", "KEYS"]), "*2 $5 t|a|1 $5 t|a|2 ");
    assert_eq!(two(&["PREFIX", "t|", "VALUES", "REV"]), "*3 $1 z $0  $1 x ");
    assert_eq!(two(&["PREFIX", "", "COUNT"]), ":4 ");
    assert_eq!(two(&["PREFIX", "t|", "COUNT", "LIMIT", "2"]), ":2 ");
    assert_eq!(two(&["RANGE", "b", "a"]), "*0 ");
    assert_eq!(two(&["RANGE", "a", "b", "LIMIT", "0"]), "*0 ");
    let three = &mut |words: &[&str]| answer_in(&mut node, Version::Resp3, words);
    assert_eq!(three(&["PREFIX", "t|a|"]), "%2 $5 t|a|1 $1 x $5 t|a|2 $0  ");
    assert_eq!(three(&["PREFIX", "t|a|", "KEYS"]), "*2 $5 t|a|1 $5 t|a|2 ");
    assert_eq!(three(&["PREFIX", "no"]), "%0 ");
    assert_eq!(three(&["RANGE.DEL", "t|", "t|b"]), ":2 ");
    assert_eq!(three(&["PREFIX", "", "COUNT"]), ":2 ");
}

#[test]
fn a_long_range_has_the_right_header() {
    let mut node = Node::new(Settings::default());
    for at in 0..1234 {
        let _ok = answer(&mut node, &["SET", &format!("k{at:05}"), "v"]);
    }
    for limit in [0, 1, 9, 49, 50, 99, 100, 500, 1234, 99_999] {
        let count = limit.min(1234);
        let limited = answer(&mut node, &["RANGE", "", "", "LIMIT", &limit.to_string()]);
        assert!(limited.starts_with(&format!("*{} ", 2 * count)), "{limit}");
        assert_eq!(limited.matches("$6 k0").count(), count);
    }
    let whole = answer(&mut node, &["PREFIX", "k", "KEYS"]);
    assert!(whole.starts_with("*1234 $6 k00000 $6 k00001"));
    for millis in ["0", "1", "86400000"] {
        assert_eq!(answer(&mut node, &["PREFIX", "k", "STALE", millis, "KEYS"]), whole);
    }
}

#[test]
fn refusals_say_what_is_allowed() {
    let mut node = Node::new(Settings::default());
    let not_millis = "-ERR STALE needs a whole number of milliseconds from 0 to 86400000, a day ";
    let cases: [(&[&str], &str); 12] = [
        (
            &["RANGE", "a", "b", "FOO"],
            "-ERR syntax error: unknown option 'FOO'; allowed are REV, LIMIT n, one of KEYS, VALUES, COUNT, and one of AT position, STALE ms ",
        ),
        (
            &["RANGE", "a", "b", "KEYS", "COUNT"],
            "-ERR syntax error: only one of KEYS, VALUES and COUNT is allowed ",
        ),
        (
            &["RANGE", "a", "b", "LIMIT", "-1"],
            "-ERR LIMIT needs a whole number that is not negative ",
        ),
        (&["RANGE", "a", "b", "STALE"], not_millis),
        (&["RANGE", "a", "b", "STALE", "-1"], not_millis),
        (&["PREFIX", "a", "STALE", "1.5"], not_millis),
        (&["PREFIX", "a", "STALE", "86400001"], not_millis),
        (
            &["PREFIX", "a", "STALE", "1", "AT", "7"],
            "-ERR syntax error: AT waits for what is new and STALE accepts what is old: one of them is allowed ",
        ),
        (&["RANGE", "a", "b", "AT"], "-ERR AT needs a position, as SOURCE.POSITION gives it "),
        (
            &["TABLE.SET", "t", "BOUNDARY", "x"],
            "-ERR BOUNDARY needs a whole number that is not negative ",
        ),
        (&["TABLE.INFO", "nowhere"], "-ERR no table is named 'nowhere' "),
        (&["JOIN.INFO", "nothing"], "-ERR no join is named 'nothing' "),
    ];
    for (words, expected) in cases {
        assert_eq!(answer(&mut node, words), expected);
    }
}

#[test]
fn several_keys_are_set_all_or_none() {
    let limits = Limits { key_bytes_max: 10, value_bytes_max: 5, ..Limits::default() };
    let mut node = Node::new(Settings { limits, ..Settings::default() });
    let long = "-ERR key of 11 bytes is longer than the limit of 10 (key-bytes-max) ";
    assert_eq!(answer(&mut node, &["MSET", "a", "1", "01234567890", "2"]), long);
    let large = "-ERR value of 6 bytes is longer than the limit of 5 (value-bytes-max) ";
    assert_eq!(answer(&mut node, &["MSET", "a", "1", "b", "123456"]), large);
    assert_eq!(answer(&mut node, &["MSETNX", "a", "1", "01234567890", "2"]), long);
    assert_eq!(answer(&mut node, &["DBSIZE"]), ":0 ");
    let beyond = "-ERR string exceeds maximum allowed size (proto-max-bulk-len) ";
    assert_eq!(answer(&mut node, &["SETRANGE", "a", "4294967295", "x"]), beyond);
    assert_eq!(answer(&mut node, &["SETRANGE", "a", "4", "x"]), ":5 ");
    assert_eq!(answer(&mut node, &["SETRANGE", "a", "5", "x"]), beyond);
}

#[test]
fn a_scan_ends_and_gives_stable_keys() {
    let mut node = Node::new(Settings::default());
    for at in 0..1000 {
        let _ok = answer(&mut node, &["SET", &format!("k{at:03}"), "v"]);
    }
    let mut seen = std::collections::BTreeSet::new();
    let (mut cursor, mut steps) = (String::from("0"), 0);
    loop {
        let page = answer(&mut node, &["SCAN", &cursor, "COUNT", "7", "MATCH", "k*"]);
        let words: Vec<&str> = page.split(' ').collect();
        seen.extend(words.iter().filter(|word| word.starts_with('k')).map(|&word| word.to_owned()));
        cursor = words[2].to_owned();
        steps += 1;
        assert!(steps <= 1000, "the scan goes on for ever");
        if cursor == "0" {
            break;
        }
        // Keys that come and go do not disturb it.
        let _ok = answer(&mut node, &["SET", &format!("j{steps}"), "v"]);
        let _removed = answer(&mut node, &["DEL", &format!("j{}", steps / 2)]);
    }
    assert_eq!(seen.len(), 1000);
    assert!(answer(&mut node, &["SCAN", "987654321"]).starts_with("-ERR invalid cursor"));
}

#[test]
fn forgotten_cursors_are_refused_and_their_memory_is_bounded() {
    let mut node = node_with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let first = answer(&mut node, &["SCAN", "0", "COUNT", "1"]);
    let first = first.split(' ').nth(2).unwrap().to_owned();
    assert!(answer(&mut node, &["SCAN", &first, "COUNT", "1"]).contains("$1 b"));
    assert!(answer(&mut node, &["SCAN", &first, "COUNT", "1"]).contains("$1 b"), "repeatable");
    for _ in 0..5000 {
        let _page = answer(&mut node, &["SCAN", "0", "COUNT", "1"]);
    }
    assert!(answer(&mut node, &["SCAN", &first]).starts_with("-ERR invalid cursor"));
}

#[test]
fn time_passes_only_when_told() {
    let mut node = Node::new(Settings::default());
    node.advance(Millis(1_000));
    let _ok = answer(&mut node, &["SET", "a", "1", "PX", "1500"]);
    assert_eq!(answer(&mut node, &["PTTL", "a"]), ":1500 ");
    assert_eq!(answer(&mut node, &["TTL", "a"]), ":2 ");
    assert_eq!(answer(&mut node, &["PEXPIRETIME", "a"]), ":2500 ");
    node.advance(Millis(2_499));
    assert_eq!(answer(&mut node, &["GET", "a"]), "$1 1 ");
    node.advance(Millis(2_500));
    assert_eq!(answer(&mut node, &["GET", "a"]), "$-1 ");
    assert_eq!(answer(&mut node, &["TTL", "a"]), ":-2 ");
}

#[test]
fn uses_are_counted_where_the_policy_goes_by_them() {
    let mut node = node_with(&[("k", "v"), ("cold", "v")]);
    assert!(
        answer(&mut node, &["OBJECT", "FREQ", "k"]).starts_with("-ERR An LFU maxmemory policy")
    );
    let policy = headwater_engine::Policy::named("allkeys-lfu").expect("a policy");
    node.engine_mut().set_eviction_policy(policy);
    for key in ["k", "cold"] {
        let _ok = answer(&mut node, &["SET", key, "v"]);
    }
    for _ in 0..5 {
        assert_eq!(answer(&mut node, &["GET", "k"]), "$1 v ");
    }
    let uses = |node: &mut Node, key: &str| -> i64 {
        let told = answer(node, &["OBJECT", "FREQ", key]);
        told.strip_prefix(':').expect("a number").trim().parse().unwrap()
    };
    let cold = uses(&mut node, "cold");
    assert!(uses(&mut node, "k") >= cold + 4, "{cold}");
    assert_eq!(answer(&mut node, &["OBJECT", "FREQ", "none"]), "$-1 ");
}
