//! Flows within one node: one key with very many followers among many small ones, as counts of slices; and what is refused between
//! flows and joins.

use headwater_command::{Command, OwnedArgs};
use headwater_node::{Node, Outcome, Settings, Step};
use headwater_protocol::resp::{Encoder, Version, decode, find};

/// Followers of the one; of each other.
const MANY: usize = 500_000;
const FEW: usize = 20;
/// Most outputs of one slice.
const SLICE: usize = 256;

fn ask(node: &mut Node, words: &[&str]) -> String {
    let request: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
    let mut out = Vec::new();
    let mut reply = Encoder::new(&mut out, Version::Resp2);
    match find(request.args()).and_then(|spec| decode(spec, request.args())) {
        Ok(Command::Data(data)) => assert_eq!(node.execute(&data, &mut reply), Outcome::Done),
        other => panic!("{other:?}"),
    }
    String::from_utf8(out).unwrap()
}

fn count(node: &mut Node, first: &str, last: &str) -> usize {
    let answer = ask(node, &["RANGE", first, last, "COUNT"]);
    answer[1..].trim_end().parse().unwrap()
}

#[test]
fn a_post_to_very_many_goes_on_in_slices_and_starves_nobody() {
    let mut node = Node::new(Settings::default());
    // Outputs by poster, so that they are counted at once.
    let join = "t|<poster>|<time>|<user> = check f|<poster>|<user> copy p|<poster>|<time>";
    ask(&mut node, &["FLOW.ADD", "fan", "ON", "p|<poster>|<time>", "FANOUT", join]);
    for user in 0..MANY {
        ask(&mut node, &["SET", &format!("f|many|{user:06}"), ""]);
    }
    for poster in 0..50 {
        for user in 0..FEW {
            ask(&mut node, &["SET", &format!("f|s{poster:02}|{user:02}"), ""]);
        }
    }
    ask(&mut node, &["SET", "p|many|1", "wide"]);
    let (mut slices, mut wide) = (0, 0);
    for round in 0..200 {
        // A write is answered at once, whatever is under way: no slice runs before its answer.
        let poster = format!("s{:02}", round % 50);
        let time = round / 50;
        let place = format!("{poster}|{time}");
        assert_eq!(ask(&mut node, &["SET", &format!("p|{place}"), "small"]), "+OK\r\n");
        // Its effects are there after its own slice and at most one of each other worker.
        let mut taken = 0;
        let range = (format!("t|{place}|"), format!("t|{place}}}"));
        while count(&mut node, &range.0, &range.1) < FEW {
            assert_eq!(node.step_flows(), Step::Done);
            taken += 1;
            assert!(taken <= 5, "round {round}: it waits for {taken} slices");
        }
        slices += taken;
        let now = count(&mut node, "t|many|1|", "t|many|1}");
        assert!(now >= wide && now - wide <= taken * SLICE, "round {round}: {wide} to {now}");
        wide = now;
    }
    // The wide one has had its share of the turns meanwhile.
    assert!((100 * SLICE..MANY).contains(&wide), "{wide} after {slices} slices");
    while node.step_flows() == Step::Done {
        slices += 1;
    }
    assert_eq!(count(&mut node, "t|many|1|", "t|many|1}"), MANY);
    assert!(slices <= MANY / SLICE + 2 * 200 + 2, "{slices} slices");
}

/// Whichever comes first, a flow and a join that gives what the flow is about are not both accepted.
#[test]
fn joins_that_give_what_flows_are_about_are_refused() {
    let flows: [(&[&str], &str); 3] = [
        (
            &["FLOW.ADD", "f", "ON", "p|<poster>|<time>", "PUBLISH", "c"],
            "p|<a>|<b> = copy x|<a>|<b>",
        ),
        (
            &[
                "FLOW.ADD",
                "f",
                "ON",
                "q|<poster>|<time>",
                "FANOUT",
                "p|<poster>|<time> = copy q|<poster>|<time>",
            ],
            "p|<a>|<b> = copy x|<a>|<b>",
        ),
        (&["FLOW.ADD", "f", "ON", "p|bob|<time>", "PUBLISH", "c"], "p|<a>|<b> = copy x|<a>|<b>"),
    ];
    for (flow, join) in flows {
        let add = ["JOIN.ADD", "j", join];
        let mut node = Node::new(Settings::default());
        assert!(ask(&mut node, flow).starts_with('*'), "{flow:?}");
        let refused = ask(&mut node, &add);
        assert!(refused.starts_with("-ERR join 'j': flow 'f' "), "{refused}");
        ask(&mut node, &["FLOW.DROP", "f"]);
        assert!(ask(&mut node, &add).starts_with('*'), "{join}");
        let refused = ask(&mut node, flow);
        assert!(refused.starts_with("-ERR ") && refused.contains("join 'j'"), "{refused}");
    }
    // What a join gives beside it is no matter.
    let mut node = Node::new(Settings::default());
    ask(&mut node, &["FLOW.ADD", "f", "ON", "p|<poster>|<time>", "PUBLISH", "c"]);
    assert!(ask(&mut node, &["JOIN.ADD", "j", "p|bob|<t> = copy x|<t>"]).starts_with('*'));
    // Errors of a text name the join, and have no caret where all is one line.
    let refused = ask(&mut node, &["JOIN.ADD", "k", "o|<a> = kopy x|<a>"]);
    assert!(refused.starts_with("-ERR join 'k': column 9: "), "{refused}");
    assert!(refused.ends_with(" o|<a> = kopy x|<a>\r\n"), "{refused}");
}
