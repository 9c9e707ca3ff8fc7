//! Containing ranges and fixed slots of named examples, byte for byte.

use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Bindings, Join, containing_range, fixed_slots};

fn timeline() -> Join {
    let text = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    Join::parse(text, &Limits::default()).unwrap()
}

/// The containing range of source `source` with `bound` (name, value) pairs; "none" for none.
fn containing(join: &Join, source: usize, range: [&str; 2], bound: &[(&str, &str)]) -> String {
    let mut bindings = Bindings::new();
    for (name, value) in bound {
        let slot = join.slots.iter().position(|slot| slot == name).unwrap();
        bindings.set(slot, value.as_bytes());
    }
    let range = KeyRange::new(range[0].as_bytes(), range[1].as_bytes());
    let source = &join.sources[source].pattern;
    match containing_range(&join.output, &range, source, &bindings) {
        Some(KeyRange { first, last }) => {
            format!("[{}, {})", first.escape_ascii(), last.escape_ascii())
        }
        None => "none".into(),
    }
}

#[test]
fn a_whole_timeline() {
    let join = timeline();
    let ann = ["t|ann|", "t|ann}"];
    assert_eq!(containing(&join, 0, ann, &[]), "[s|ann|, s|ann})");
    assert_eq!(containing(&join, 0, ann, &[("user", "ann")]), "[s|ann|, s|ann})");
    let both = [("user", "ann"), ("poster", "bob")];
    assert_eq!(containing(&join, 1, ann, &both), "[p|bob|, p|bob})");
    assert_eq!(containing(&join, 0, ann, &[("user", "bea")]), "none");
    assert_eq!(containing(&join, 1, ["", ""], &[]), "[p|, p})");
    assert_eq!(containing(&join, 1, ["t|", "t}"], &[("poster", "bob")]), "[p|bob|, p|bob})");
    assert_eq!(containing(&join, 1, ["u", "v"], &[]), "none");
}

#[test]
fn a_value_that_ends_where_the_range_goes_on() {
    let join = timeline();
    let both = [("user", "ann"), ("poster", "bob")];
    // `t|ann|1|bob` and `t|ann|10|bob` lie beyond `t|ann|100`.
    assert_eq!(containing(&join, 1, ["t|ann|100", "t|ann}"], &both), "[p|bob|1, p|bob})");
    assert_eq!(containing(&join, 1, ["t|ann|100", "t|ann|200"], &both), "[p|bob|1, p|bob|200)");
    assert_eq!(containing(&join, 1, ["t|ann|100", "t|bob|200"], &both), "[p|bob|1, p|bob})");
    // The checks of both users, and of any in between; ann's time may be any from `1`.
    assert_eq!(containing(&join, 0, ["t|ann|100", "t|bob|200"], &[]), "[s|ann|, s|bob})");
    // A user `a` has `t|a|…`, beyond `t|a`; the user `b` is not before `t|b`.
    assert_eq!(containing(&join, 0, ["t|a", "t|b"], &[]), "[s|a, s|b)");
    // Users beyond `ann` in the range have times of any kind: `ann}`, and `an`, since `|` > `n`.
    assert_eq!(containing(&join, 1, ["t|ann|100", ""], &[("poster", "bob")]), "[p|bob|, p|bob})");
    assert_eq!(containing(&join, 0, ["t|ann|100", ""], &[]), "[s|ann|, s})");
}

#[test]
fn the_range_of_one_key() {
    let join = timeline();
    let range = KeyRange::point(b"t|ann|100|bob");
    let fixed = fixed_slots(&join.output, &range).unwrap();
    for (source, expected) in
        [(0, KeyRange::point(b"s|ann|bob")), (1, KeyRange::point(b"p|bob|100"))]
    {
        let source = &join.sources[source].pattern;
        let found = containing_range(&join.output, &range, source, &Bindings::new());
        assert_eq!(found, Some(expected.clone()));
        assert_eq!(containing_range(&join.output, &range, source, &fixed), Some(expected));
    }
    assert_eq!(fixed_slots(&join.output, &KeyRange::point(b"t|ann|100")), None);
}

#[test]
fn fixed_widths_leave_no_slack() {
    let text = "t|<user>|<time:10>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    let join = Join::parse(text, &Limits::default()).unwrap();
    let both = [("user", "ann"), ("poster", "bob")];
    let range = ["t|ann|0000000100", "t|ann|0000000200"];
    assert_eq!(containing(&join, 1, range, &both), "[p|bob|0000000100, p|bob|0000000200)");
    let range = ["t|ann|0000000100", "t|ann}"];
    assert_eq!(containing(&join, 1, range, &both), "[p|bob|0000000100, p|bob})");
    // A shorter end is no time, but still a bound.
    assert_eq!(containing(&join, 1, ["t|ann|00", "t|ann|01"], &both), "[p|bob|00, p|bob|01)");
    // With the poster in the range as well, the last time counts for the posters before it only.
    let range = ["t|ann|0000000100|bob", "t|ann|0000000200|bob"];
    assert_eq!(containing(&join, 1, range, &both), "[p|bob|0000000100, p|bob|0000000200)");
    let range = ["t|ann|0000000100|bob", "t|ann|0000000200|bob\0"];
    assert_eq!(containing(&join, 1, range, &both), "[p|bob|0000000100, p|bob|0000000200\\x00)");
    assert_eq!(containing(&join, 1, ["t|ann|00000001001", "t|ann|00000001002"], &both), "none");
}

#[test]
fn literals_and_parallel_components() {
    let limits = Limits::default();
    let text = "page|<author>|<id>|r = copy rank|<author>|<id>";
    let join = Join::parse(text, &limits).unwrap();
    assert_eq!(containing(&join, 0, ["page|ann|", "page|ann}"], &[]), "[rank|ann|, rank|ann})");
    let range = ["page|ann|7|", "page|ann|7}"];
    assert_eq!(containing(&join, 0, range, &[]), "[rank|ann|7, rank|ann|7\\x00)");
    assert_eq!(
        containing(&join, 0, ["page|ann|7|r", "page|ann|7|s"], &[]),
        "[rank|ann|7, rank|ann|7\\x00)"
    );
    // Only the votes and comments of the page: nothing with `r`.
    assert_eq!(containing(&join, 0, ["page|ann|7|s", "page|ann|7}"], &[]), "none");
    assert_eq!(containing(&join, 0, ["page|ann|7|c", "page|ann|7|r"], &[]), "none");
    // From page 7's `c` to page 9's: page 9 does not count, but `90` and `9{`, which sort before
    // `9|`, do.
    let range = ["page|ann|7|c", "page|ann|9|c"];
    assert_eq!(containing(&join, 0, range, &[]), "[rank|ann|7, rank|ann|9|)");
}

#[test]
fn a_pattern_without_components() {
    let join = Join::parse("votes = count vote|<author>|<voter>", &Limits::default()).unwrap();
    assert_eq!(containing(&join, 0, ["votes", "votes\0"], &[]), "[vote|, vote})");
    assert_eq!(containing(&join, 0, ["a", "z"], &[]), "[vote|, vote})");
    assert_eq!(containing(&join, 0, ["votes\0", "z"], &[]), "none");
    assert_eq!(containing(&join, 0, ["votes|", "votes}"], &[]), "none");
}

#[test]
fn slots_that_a_range_fixes() {
    let join = timeline();
    let fixed = |first: &str, last: &str| {
        let range = KeyRange::new(first.as_bytes(), last.as_bytes());
        fixed_slots(&join.output, &range).map(|fixed| {
            let shown = fixed
                .iter()
                .map(|(slot, value)| format!("{}={}", join.slots[slot], value.escape_ascii()));
            shown.collect::<Vec<_>>().join(" ")
        })
    };
    assert_eq!(fixed("t|ann|", "t|ann}").as_deref(), Some("user=ann"));
    assert_eq!(fixed("t|ann|1", "t|ann|2").as_deref(), Some("user=ann"));
    assert_eq!(fixed("t|ann|1|", "t|ann|1}").as_deref(), Some("user=ann time=1"));
    assert_eq!(fixed("t|ann", "t|ano").as_deref(), Some(""));
    assert_eq!(fixed("t|", "t}").as_deref(), Some(""));
    assert_eq!(fixed("", "").as_deref(), Some(""));
    assert_eq!(fixed("t|ann||", "t|ann|}"), None);
    assert_eq!(fixed("s", "t"), None);
    assert_eq!(fixed("t|b", "t|a"), None);
}
