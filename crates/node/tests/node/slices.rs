//! Commands that look at all keys, in slices, while other commands come in between.

use headwater_base::Millis;
use headwater_command::{Command, OwnedArgs};
use headwater_engine::Ticket;
use headwater_node::{Node, Outcome, Settings};
use headwater_protocol::resp::{Encoder, Version, decode, find};
use std::collections::BTreeSet;

/// Rows of a slice.
const ROWS: usize = 3;

fn node() -> Node {
    let mut node = Node::new(Settings::default());
    node.advance(Millis(1_000_000));
    node.engine_mut().set_slice(Some(ROWS));
    node
}

fn execute(node: &mut Node, words: &[&str], out: &mut Vec<u8>) -> Outcome {
    let args: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
    let args = args.args();
    let Ok(Command::Data(data)) = find(args).and_then(|spec| decode(spec, args)) else {
        panic!("{words:?} is a command about data");
    };
    node.execute(&data, &mut Encoder::new(out, Version::Resp2))
}

/// The answer of a command that is not divided.
fn run(node: &mut Node, line: &str) -> String {
    let mut out = Vec::new();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(execute(node, &words, &mut out), Outcome::Done, "{line}");
    String::from_utf8(out).expect("text")
}

/// The answer of a command in slices, with what is done `between` them; how many there were.
fn run_sliced(node: &mut Node, line: &str, between: &mut dyn FnMut(&mut Node)) -> (String, usize) {
    run_words(node, &line.split(' ').collect::<Vec<_>>(), between)
}

/// As [`run_sliced`], where the words have spaces.
fn run_words(
    node: &mut Node,
    words: &[&str],
    between: &mut dyn FnMut(&mut Node),
) -> (String, usize) {
    let mut out = Vec::new();
    let mut resumed: Option<Ticket> = None;
    for slices in 1..10_000 {
        if let Some(ticket) = resumed {
            node.engine_mut().forget_later(ticket);
            node.engine_mut().resume(ticket);
        }
        let before = out.len();
        match execute(node, words, &mut out) {
            Outcome::Done => return (String::from_utf8(out).expect("text"), slices),
            Outcome::Waiting(ticket) => {
                assert_eq!(out.len(), before, "what waits gives nothing");
                resumed = Some(ticket);
            }
            Outcome::Unfinished(ticket) => resumed = Some(ticket),
            Outcome::Broken => panic!("{words:?} is broken off"),
        }
        between(node);
    }
    panic!("{words:?} does not end");
}

/// The elements of a list of texts.
fn elements(answer: &str) -> Vec<&str> {
    let mut lines = answer.split("\r\n");
    let count = lines.next().expect("a header").strip_prefix('*').expect("a list");
    let texts: Vec<&str> = lines.skip(1).step_by(2).collect();
    assert_eq!(texts.len(), count.parse::<usize>().expect("a number"), "as many as it says");
    texts
}

#[test]
fn keys_are_listed_in_slices_and_those_that_stay_are_there_once() {
    let mut node = node();
    let key = |number: usize| format!("{}|{number:03}", ["a", "b", "plain"][number % 3]);
    for number in 0..200 {
        run(&mut node, &format!("SET {} v", key(number)));
    }
    let mut stayed: BTreeSet<String> = (0..200).map(key).collect();
    let mut turn = 0;
    let (answer, slices) = run_sliced(&mut node, "KEYS *|*", &mut |node| {
        turn += 1;
        let (gone, new) = (key(turn * 7 % 200), format!("a|{turn:03}|new"));
        run(node, &format!("DEL {gone}"));
        run(node, &format!("SET {new} v"));
        stayed.remove(&gone);
    });
    let listed = elements(&answer);
    let once: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(once.len(), listed.len(), "each is there once");
    assert!(stayed.len() > 50 && stayed.iter().all(|key| once.contains(&**key)), "{answer}");
    let known = |key: &&str| key.ends_with("|new") || key.len() == 5 || key.starts_with("plain|");
    assert!(once.iter().all(known), "{answer}");
    assert!(slices > 200 / ROWS / 4, "{slices}");
}

#[test]
fn an_answer_of_keys_is_bounded_and_given_up_with_its_ticket() {
    let mut node = node();
    for number in 0..100 {
        run(&mut node, &format!("SET key|{number:03} v"));
    }
    let before = node.engine().stats().index_bytes;
    let mut out = Vec::new();
    let Outcome::Waiting(ticket) = execute(&mut node, &["KEYS", "*"], &mut out) else {
        panic!("it is divided");
    };
    assert!(node.engine().stats().index_bytes > before, "what is listed counts");
    node.engine_mut().forget_ticket(ticket);
    assert_eq!(node.engine().stats().index_bytes, before);
    node.engine_mut().set_long_read_bytes_max(400);
    let (refused, _) = run_sliced(&mut node, "KEYS *", &mut |_| {});
    assert!(refused.starts_with("-ERR the keys take more than 400 bytes"), "{refused}");
    let (answer, _) = run_sliced(&mut node, "KEYS *9", &mut |_| {});
    assert_eq!(elements(&answer).len(), 10, "{answer}");
    assert_eq!(node.engine().stats().index_bytes, before);
    // What is executed as a whole lists keys as a whole.
    node.engine_mut().set_long_read_bytes_max(0);
    node.set_whole(true);
    assert_eq!(elements(&run(&mut node, "KEYS *")).len(), 100);
}

#[test]
fn a_scan_looks_at_no_more_keys_than_a_slice_has() {
    let mut node = node();
    for number in 0..100 {
        run(&mut node, &format!("SET key|{number:03} v"));
    }
    let (mut found, mut steps, mut cursor) = (BTreeSet::new(), 0, String::from("0"));
    loop {
        let answer = run(&mut node, &format!("SCAN {cursor} COUNT 1000000"));
        let lines: Vec<&str> = answer.split("\r\n").collect();
        cursor = lines[2].into();
        let given = elements(&answer[answer[1..].find('*').expect("a list") + 1..]).len();
        assert!(given <= 4 * ROWS, "{answer}");
        found.extend(
            lines.iter().filter(|line| line.starts_with("key|")).map(|key| key.to_string()),
        );
        steps += 1;
        if cursor == "0" {
            break;
        }
    }
    assert!(found.len() == 100 && steps > 8, "{found:?} in {steps} steps");
}

#[test]
fn random_keys_of_a_large_table_come_from_all_of_it() {
    let mut node = node();
    for number in 0..30_000 {
        run(&mut node, &format!("SET key|{number:05} v"));
    }
    let drawn: BTreeSet<String> = (0..200).map(|_| run(&mut node, "RANDOMKEY")).collect();
    assert!(drawn.len() > 150, "they differ");
    let (low, high) = ("$9\r\nkey|05000\r\n", "$9\r\nkey|25000\r\n");
    assert!(drawn.iter().any(|key| **key < *low) && drawn.iter().any(|key| **key > *high));
}

/// The answer of JOIN.ADD where many keys begin as the join's outputs do and are none, with what is done between its slices.
fn add_join(between: &mut dyn FnMut(&mut Node, usize)) -> (String, Node) {
    let mut node = node();
    for number in 0..100 {
        run(&mut node, &format!("SET out|{number:03}|more v"));
    }
    let (mut turn, words) = (0, ["JOIN.ADD", "j", "out|<x> = copy base|<x>"]);
    let (answer, slices) = run_words(&mut node, &words, &mut |node| {
        turn += 1;
        between(node, turn);
    });
    assert!(slices > 100 / ROWS / 4, "{slices}");
    (answer, node)
}

#[test]
fn a_join_is_added_in_slices_unless_keys_come_that_it_would_give() {
    let (installed, mut node) = add_join(&mut |node, turn| {
        // Others, and one that goes again.
        run(node, &format!("SET out|{turn:03}|other v"));
        run(node, "SET out|000 v");
        run(node, "DEL out|000");
    });
    assert!(installed.starts_with("*4\r\n$4\r\nspec"), "{installed}");
    run(&mut node, "SET base|7 seven");
    assert_eq!(run(&mut node, "GET out|7"), "$5\r\nseven\r\n");
    // Behind the look, and ahead of it.
    for key in ["out|000", "out|zzz"] {
        for late in [1, 5] {
            let (refused, mut node) = add_join(&mut |node, turn| {
                if turn == late {
                    run(node, &format!("SET {key} v"));
                } else if turn == late + 1 {
                    run(node, &format!("SET {key} again"));
                }
            });
            assert!(refused.starts_with("-ERR 1 existing key matches"), "{refused}");
            assert_eq!(run(&mut node, &format!("GET {key}")), "$5\r\nagain\r\n");
        }
    }
    // What is refused at once is refused after the look.
    let (refused, _) = add_join(&mut |node, turn| {
        if turn == 2 {
            let words = ["JOIN.ADD", "j", "other|<x> = copy base|<x>"];
            run_words(node, &words, &mut |_| {});
        }
    });
    assert!(refused.starts_with("-ERR join 'j' exists already"), "{refused}");
}

/// Pairs of a pull join are of one moment, though others write between its slices; and changes later than that are not seen
/// while they are given.
#[test]
fn what_is_computed_at_each_read_shows_one_moment() {
    const SIDE: usize = 12;
    let mut node = node();
    for number in 0..SIDE {
        run(&mut node, &format!("SET a|{number:03} 1"));
        run(&mut node, &format!("SET b|{number:03} old"));
    }
    let join = ["JOIN.ADD", "c", "c|<x>|<y> = pull check a|<x> copy b|<y>"];
    run_words(&mut node, &join, &mut |_| {});
    let mut turn = 0;
    let (answer, slices) = run_sliced(&mut node, "PREFIX c| VALUES", &mut |node| {
        turn += 1;
        // More often than a read may begin anew.
        run(node, &format!("SET b|{:03} new{turn:04}", turn % SIDE));
    });
    assert!(slices > 2 * SIDE * SIDE / ROWS / 2, "{slices}");
    let lines: Vec<&str> = answer.split("\r\n").skip(2).step_by(2).collect();
    assert_eq!(lines.len(), SIDE * SIDE);
    let (first, rest) = lines.split_at(SIDE);
    assert!(first.iter().any(|value| value.starts_with("new")), "{first:?}");
    assert!(rest.chunks(SIDE).all(|row| row == first), "{lines:?}");
    assert_eq!(node.engine().stats().index_bytes, {
        let (_, _) = run_sliced(&mut node, "PREFIX c| COUNT", &mut |_| {});
        node.engine().stats().index_bytes
    });
}

/// What a read has collected goes with it, and is bounded.
#[test]
fn what_is_computed_at_each_read_is_let_go_of() {
    let mut node = node();
    for number in 0..40 {
        run(&mut node, &format!("SET a|{number:03} value"));
    }
    let join = ["JOIN.ADD", "c", "c|<x> = pull copy a|<x>"];
    run_words(&mut node, &join, &mut |_| {});
    let before = node.engine().stats();
    let mut out = Vec::new();
    let Outcome::Waiting(ticket) = execute(&mut node, &["PREFIX", "c|"], &mut out) else {
        panic!("it is divided");
    };
    let resumed = |node: &mut Node, ticket, out: &mut Vec<u8>| {
        node.engine_mut().forget_later(ticket);
        node.engine_mut().resume(ticket);
        execute(node, &["PREFIX", "c|"], out)
    };
    let Outcome::Waiting(ticket) = resumed(&mut node, ticket, &mut out) else {
        panic!("it takes several slices");
    };
    assert!(node.engine().stats().index_bytes > before.index_bytes, "what is collected counts");
    node.engine_mut().forget_later(ticket);
    node.engine_mut().forget_ticket(ticket);
    assert_eq!(node.engine().stats().index_bytes, before.index_bytes);
    assert_eq!(node.engine().stats().value_bytes, before.value_bytes);
    node.engine_mut().set_long_read_bytes_max(400);
    let (refused, _) = run_sliced(&mut node, "PREFIX c|", &mut |_| {});
    assert!(refused.starts_with("-ERR the keys of the range take too many bytes"), "{refused}");
    let (few, _) = run_sliced(&mut node, "PREFIX c| LIMIT 5 KEYS", &mut |_| {});
    assert_eq!(elements(&few).len(), 5);
    node.engine().check_invariants();
    assert_eq!(node.engine().stats().index_bytes, before.index_bytes);
}
