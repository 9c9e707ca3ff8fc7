//! Streams through the protocol: answers, refusals, and what other commands make of them.

use headwater_base::Millis;
use headwater_command::{Command, OwnedArgs};
use headwater_node::{Effect, Node, Outcome, Settings};
use headwater_protocol::resp::{Encoder, Version, decode, find};

/// The answer, or the outcome where the command waits.
fn run(node: &mut Node, words: &[&str]) -> Result<String, Outcome> {
    let request: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
    let mut out = Vec::new();
    let mut reply = Encoder::new(&mut out, Version::Resp2);
    match find(request.args()).and_then(|spec| decode(spec, request.args())) {
        Err(refusal) => refusal.write(&mut reply),
        Ok(Command::Data(data)) => match node.execute(&data, &mut reply) {
            Outcome::Done => {}
            waiting => {
                assert!(out.is_empty(), "N1");
                return Err(waiting);
            }
        },
        Ok(other) => panic!("{other:?} is not a node's"),
    }
    Ok(String::from_utf8(out).expect("text").replace("\r\n", " "))
}

#[track_caller]
fn tell(node: &mut Node, story: &[(&str, &str)]) {
    for (line, expected) in story {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(run(node, &words).as_deref(), Ok(*expected), "{line}");
    }
}

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value ";

#[test]
fn bytes_go_in_at_the_end_and_come_out_anywhere() {
    let mut node = Node::new(Settings::default());
    tell(
        &mut node,
        &[
            ("STREAM.LEN s", ":0 "),
            ("STREAM.READ s 0 10", "$-1 "),
            ("STREAM.TRIM s 0", ":0 "),
            ("STREAM.INFO s", "-ERR no such key "),
            ("STREAM.APPEND s hello", ":5 "),
            ("STREAM.APPEND s , LEN 1000", ":6 "),
            ("stream.append s world len 0", ":11 "),
            ("STREAM.READ s 0 100", "$11 hello,world "),
            ("STREAM.READ s 3 4", "$4 lo,w "),
            ("STREAM.READ s 11 4", "$0  "),
            ("STREAM.READ s 0 0", "$0  "),
            ("STREAM.READ s 12 4", "-ERR offset 12 is beyond the end of the stream, 11 "),
            ("STREAM.TRIM s 4", ":4 "),
            ("STREAM.TRIM s 2", ":4 "),
            ("STREAM.TRIM s 99", "-ERR offset 99 is beyond the end of the stream, 11 "),
            ("STREAM.READ s 4 2", "$2 o, "),
            ("STREAM.READ s 3 2", "-TRIMMED the stream was trimmed: its first offset is 4 "),
            ("STREAM.LEN s", ":11 "),
            ("STREAM.TRIM s 11", ":11 "),
            ("STREAM.READ s 11 9", "$0  "),
            ("EXISTS s", ":1 "),
            ("STREAM.APPEND s !", ":12 "),
            ("STREAM.READ s 11 9", "$1 ! "),
        ],
    );
    let info = run(&mut node, &["STREAM.INFO", "s"]).unwrap();
    assert!(info.starts_with("*12 $5 start :11 $5 first :11 $3 end :12 $6 chunks :1 "), "{info}");
}

#[test]
fn refusals_say_what_is_wrong() {
    let mut node = Node::new(Settings::default());
    let (offset, count) = (
        "-ERR an offset is a whole number of bytes that is not negative ",
        "-ERR a count is a whole number of bytes that is not negative ",
    );
    let arity = |name| format!("-ERR wrong number of arguments for '{name}' command ");
    tell(
        &mut node,
        &[
            ("STREAM.APPEND s", &arity("stream.append")),
            ("STREAM.READ s 0", &arity("stream.read")),
            ("STREAM.TRIM s", &arity("stream.trim")),
            ("STREAM.LEN", &arity("stream.len")),
            ("STREAM.INFO s x", &arity("stream.info")),
            ("STREAM.APPEND s x LEN", "-ERR LEN needs a whole number that is not negative "),
            ("STREAM.APPEND s x LEN -1", "-ERR LEN needs a whole number that is not negative "),
            ("STREAM.APPEND s x LENGTH 1", "-ERR syntax error "),
            ("STREAM.APPEND s x LEN 1 2", "-ERR syntax error "),
            ("STREAM.READ s -1 1", offset),
            ("STREAM.READ s 0 x", count),
            (
                "STREAM.READ s 0 1 BLOCK x",
                "-ERR BLOCK needs milliseconds, a whole number that is not negative ",
            ),
            ("STREAM.READ s 0 1 COUNT 1", "-ERR syntax error "),
            ("EXISTS s", ":0 "),
            ("SET v 1", "+OK "),
            ("STREAM.APPEND v x", WRONG),
            ("STREAM.READ v 0 1", WRONG),
            ("STREAM.READ v 0 1 BLOCK 0", WRONG),
            ("STREAM.TRIM v 0", WRONG),
            ("STREAM.LEN v", WRONG),
            ("STREAM.INFO v", WRONG),
            ("GET v", "$1 1 "),
        ],
    );
}

#[test]
fn commands_about_values_are_not_for_streams() {
    let mut node = Node::new(Settings::default());
    tell(&mut node, &[("STREAM.APPEND s 12", ":2 "), ("SET v 5", "+OK ")]);
    for line in [
        "GET s",
        "GETSET s x",
        "SET s x GET",
        "GETDEL s",
        "GETEX s",
        "APPEND s x",
        "STRLEN s",
        "INCR s",
        "GETRANGE s 0 1",
        "SETRANGE s 0 x",
        "DECRBY s 2",
        "INCRBYFLOAT s 1.5",
        "LCS s v",
        "LCS v s",
    ] {
        tell(&mut node, &[(line, WRONG)]);
    }
    tell(
        &mut node,
        &[
            ("STREAM.READ s 0 9", "$2 12 "),
            ("MGET s v", "*2 $-1 $1 5 "),
            ("SETNX s x", ":0 "),
            ("MSETNX s x y z", ":0 "),
            ("SET s x NX", "$-1 "),
            ("RANGE a z", "*2 $1 v $1 5 "),
            ("PREFIX s COUNT", ":0 "),
            ("SET s plain", "+OK "),
            ("GET s", "$5 plain "),
            ("STREAM.READ s 0 9", WRONG),
        ],
    );
}

#[test]
fn commands_about_keys_are_for_streams_too() {
    let mut node = Node::new(Settings::default());
    node.advance(Millis(1_000));
    tell(
        &mut node,
        &[
            ("STREAM.APPEND s abc", ":3 "),
            ("SET v 5", "+OK "),
            ("TYPE s", "+stream "),
            ("OBJECT ENCODING s", "$6 chunks "),
            ("OBJECT REFCOUNT s", ":1 "),
            ("TOUCH s v", ":2 "),
            ("DBSIZE", ":2 "),
            ("KEYS *", "*2 $1 s $1 v "),
            ("SCAN 0 TYPE stream", "*2 $1 0 *1 $1 s "),
            ("SCAN 0 TYPE string", "*2 $1 0 *1 $1 v "),
            ("SCAN 0 TYPE hash", "*2 $1 0 *0 "),
            ("PEXPIRE s 500", ":1 "),
            ("STREAM.APPEND s d", ":4 "),
            ("PTTL s", ":500 "),
            ("COPY s t", ":1 "),
            ("PTTL t", ":500 "),
            ("PERSIST t", ":1 "),
            ("COPY s v", ":0 "),
            ("STREAM.TRIM s 2", ":2 "),
            ("RENAME s r", "+OK "),
            ("EXISTS s", ":0 "),
            ("PTTL r", ":500 "),
            ("STREAM.READ r 2 9", "$2 cd "),
            ("RENAMENX r v", ":0 "),
            ("RENAME r r", "+OK "),
            ("STREAM.READ t 0 9", "$4 abcd "),
            ("RENAME v t", "+OK "),
            ("GET t", "$1 5 "),
            ("COPY r t REPLACE", ":1 "),
            // Offsets that 't' had before mean what they meant.
            ("STREAM.LEN t", ":6 "),
            ("STREAM.READ t 3 9", "-TRIMMED the stream was trimmed: its first offset is 4 "),
            ("STREAM.READ t 4 9", "$2 cd "),
        ],
    );
    node.advance(Millis(1_500));
    tell(
        &mut node,
        &[
            ("EXISTS r t", ":0 "),
            ("STREAM.READ r 2 9", "$-1 "),
            ("STREAM.APPEND r new", ":7 "),
            ("STREAM.READ r 2 9", "-TRIMMED the stream was trimmed: its first offset is 4 "),
            ("STREAM.READ r 4 9", "$3 new "),
            ("UNLINK r", ":1 "),
            ("STREAM.APPEND a|b|c x", ":1 "),
            ("RANGE.DEL a| a}", ":1 "),
            ("STREAM.APPEND r new", ":10 "),
            ("RANDOMKEY", "$1 r "),
            ("FLUSHALL", "+OK "),
            ("DBSIZE", ":0 "),
            ("STREAM.APPEND r again", ":15 "),
            ("STREAM.APPEND fresh again", ":5 "),
        ],
    );
    let usage = run(&mut node, &["MEMORY", "USAGE", "r"]).unwrap();
    assert!(usage.starts_with(':') && usage != ":0 ", "{usage}");
}

#[test]
fn a_read_at_the_end_waits_for_the_next_change_of_its_key() {
    let mut node = Node::new(Settings::default());
    let read = ["STREAM.READ", "s", "0", "9", "BLOCK", "0"];
    let woken = |node: &mut Node| node.engine_mut().take_effects();
    let Err(Outcome::Waiting(ticket)) = run(&mut node, &read) else { panic!("no key, no wait") };
    tell(&mut node, &[("STREAM.APPEND other x", ":1 ")]);
    assert_eq!(woken(&mut node), []);
    tell(&mut node, &[("STREAM.APPEND s x", ":1 ")]);
    assert_eq!(woken(&mut node), [Effect::Wake(ticket)]);
    assert_eq!(run(&mut node, &read).as_deref(), Ok("$1 x "));
    tell(&mut node, &[("STREAM.APPEND s y", ":2 ")]);
    assert_eq!(woken(&mut node), [], "once");
    for (offset, write, answer) in [("2", "DEL s", ":1 "), ("0", "SET s x", "+OK ")] {
        let read = ["STREAM.READ", "s", offset, "9", "BLOCK", "0"];
        let Err(Outcome::Waiting(ticket)) = run(&mut node, &read) else { panic!("{write}") };
        tell(&mut node, &[(write, answer)]);
        assert_eq!(woken(&mut node), [Effect::Wake(ticket)], "{write}");
    }
    tell(&mut node, &[("FLUSHALL", "+OK ")]);
    // Who no longer waits is not woken.
    let Err(Outcome::Waiting(ticket)) = run(&mut node, &read) else { panic!("waits") };
    node.engine_mut().forget_tail(b"s", ticket);
    tell(&mut node, &[("STREAM.APPEND s x", ":3 ")]);
    assert_eq!(woken(&mut node), []);
}
