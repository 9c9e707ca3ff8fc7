//! What locks and limits of rates ask: comparisons with one write behind them.

use headwater_base::Millis;
use headwater_command::{Command, OwnedArgs};
use headwater_node::{Node, Outcome, Settings};
use headwater_protocol::resp::{Encoder, Version, decode, find};

const RELEASE: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
const EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
const REACQUIRE: &str = "1cac51482acf5858da00f6d685d68f886cd6b6b2";

fn answer(node: &mut Node, line: &str) -> String {
    let request: OwnedArgs = line.split(' ').map(str::as_bytes).collect();
    let mut out = Vec::new();
    let mut reply = Encoder::new(&mut out, Version::Resp2);
    match find(request.args()).and_then(|spec| decode(spec, request.args())) {
        Err(refusal) => refusal.write(&mut reply),
        Ok(Command::Data(data)) => assert_eq!(node.execute(&data, &mut reply), Outcome::Done),
        Ok(other) => panic!("{other:?} is not a node's"),
    }
    String::from_utf8(out).expect("text").replace("\r\n", " ").trim_end().to_owned()
}

fn node() -> Node {
    let mut node = Node::new(Settings::default());
    node.advance(Millis(1_000_000));
    node
}

#[test]
fn a_lock_is_released_by_its_holder_alone() {
    let node = &mut node();
    for release in ["DELIFEQ lock ann", &format!("EVALSHA {RELEASE} 1 lock ann")] {
        assert_eq!(answer(node, release), ":0");
        assert_eq!(answer(node, "SET lock bob NX PX 1000"), "+OK");
        assert_eq!(answer(node, release), ":0");
        assert_eq!(answer(node, "SET lock annette"), "+OK");
        assert_eq!(answer(node, release), ":0");
        assert_eq!(answer(node, "SET lock ann"), "+OK");
        assert_eq!(answer(node, release), ":1");
        assert_eq!(answer(node, "EXISTS lock"), ":0");
    }
    assert_eq!(answer(node, "STREAM.APPEND log x"), ":1");
    assert!(answer(node, "DELIFEQ log x").starts_with("-WRONGTYPE"));
}

#[test]
fn more_time_is_for_the_holder() {
    let node = &mut node();
    assert_eq!(answer(node, "PEXPIREIFEQ lock ann 5000"), ":0");
    assert_eq!(answer(node, "SET lock ann"), "+OK");
    // It does not expire: there is nothing to extend.
    for line in ["PEXPIREIFEQ lock ann 5000 XX", "PEXPIREIFEQ lock ann 5000 ADD"] {
        assert_eq!(answer(node, line), ":0");
    }
    assert_eq!(answer(node, &format!("EVALSHA {EXTEND} 1 lock ann 5000 1")), ":0");
    assert_eq!(answer(node, &format!("EVALSHA {REACQUIRE} 1 lock ann 5000")), ":1");
    assert_eq!(answer(node, "PTTL lock"), ":5000");
    assert_eq!(answer(node, &format!("EVALSHA {EXTEND} 1 lock ann 100 0")), ":1");
    assert_eq!(answer(node, "PTTL lock"), ":5100");
    assert_eq!(answer(node, "PEXPIREIFEQ lock ann 100 add"), ":1");
    assert_eq!(answer(node, "PTTL lock"), ":5200");
    assert_eq!(answer(node, &format!("EVALSHA {EXTEND} 1 lock ann 700 1")), ":1");
    assert_eq!(answer(node, "PTTL lock"), ":700");
    assert_eq!(answer(node, "PEXPIREIFEQ lock bob 9000"), ":0");
    assert_eq!(answer(node, "PTTL lock"), ":700");
    assert_eq!(answer(node, "PEXPIREIFEQ lock ann 9000"), ":1");
    assert_eq!(answer(node, "PTTL lock"), ":9000");
    assert_eq!(answer(node, "PEXPIREIFEQ lock ann -1"), ":1");
    assert_eq!(answer(node, "EXISTS lock"), ":0");
    assert_eq!(answer(node, "PEXPIREIFEQ lock ann 1 SOON"), "-ERR syntax error");
}

#[test]
fn other_scripts_say_what_to_use_instead() {
    let node = &mut node();
    let refusal = answer(node, "EVAL return 0");
    assert!(refusal.contains("DELIFEQ") && refusal.contains("CL.THROTTLE"), "{refusal}");
    assert!(answer(node, "SCRIPT LOAD return").contains("DELIFEQ"));
    let unknown = "0000000000000000000000000000000000000000";
    assert!(answer(node, &format!("EVALSHA {unknown} 0")).starts_with("-NOSCRIPT "));
    for line in [format!("EVALSHA {RELEASE} 0 lock ann"), format!("EVALSHA {RELEASE} 1 lock")] {
        assert!(answer(node, &line).starts_with("-ERR this script takes one key"), "{line}");
    }
}

#[test]
fn a_limit_allows_a_burst_and_then_its_rate() {
    let node = &mut node();
    // One each half second, and two at once beyond one.
    let ask = "CL.THROTTLE ann 2 4 2";
    let told = |numbers: [i64; 5]| {
        let numbers = numbers.map(|number| format!(":{number}"));
        format!("*5 {}", numbers.join(" "))
    };
    assert_eq!(answer(node, &format!("{ask} 0")), told([0, 3, 3, -1, 0]));
    assert_eq!(answer(node, "EXISTS ann"), ":0", "to ask is no use");
    assert_eq!(answer(node, ask), told([0, 3, 2, -1, 1]));
    assert_eq!(answer(node, ask), told([0, 3, 1, -1, 1]));
    assert_eq!(answer(node, ask), told([0, 3, 0, -1, 2]));
    assert_eq!(answer(node, ask), told([1, 3, 0, 1, 2]));
    node.advance(Millis(1_000_499));
    assert_eq!(answer(node, ask), told([1, 3, 0, 1, 2]));
    node.advance(Millis(1_000_500));
    assert_eq!(answer(node, ask), told([0, 3, 0, -1, 2]));
    // More at once than there ever is.
    assert_eq!(answer(node, &format!("{ask} 4")), told([1, 3, 0, -1, 2]));
    node.advance(Millis(1_002_000));
    assert_eq!(answer(node, "EXISTS ann"), ":0", "it is as new");
    assert_eq!(answer(node, &format!("{ask} 3")), told([0, 3, 0, -1, 2]));
    assert_eq!(answer(node, "SET text x"), "+OK");
    assert_eq!(answer(node, "CL.THROTTLE text 2 4 2"), "-ERR the key holds no rate limit");
    for line in ["CL.THROTTLE ann 2 0 2", "CL.THROTTLE ann -1 1 1", "CL.THROTTLE ann 1 1 0"] {
        assert!(answer(node, line).starts_with("-ERR max_burst"), "{line}");
    }
    let largest = "4294967295";
    let line = format!("CL.THROTTLE bob {largest} 1 {largest}");
    assert_eq!(answer(node, &line), "-ERR the rate limit is out of range");
}
