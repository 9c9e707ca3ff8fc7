//! Ranges that cannot be divided, or not well, are computed piece by piece, while others write.

use headwater_engine::{Engine, Expiry, RangeOptions, Settings, Stop, Value};
use std::collections::BTreeMap;

/// Rows of a slice.
const ROWS: usize = 100;
/// Histories that are drawn.
const SEEDS: u64 = 300;
/// Keys that one output, or one group of outputs, comes from.
const KEYS: usize = 5000;

fn count(engine: &Engine, name: &str) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(counter, _)| *counter == name).expect("a counter").1
}

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a base key");
}

fn remove(engine: &mut Engine, key: &str) -> bool {
    engine.remove(key.as_bytes()).expect("a base key")
}

/// The pairs that begin with a prefix, read in slices with what is done `between` them; how many slices there were.
fn read(
    engine: &mut Engine,
    prefix: &str,
    between: &mut dyn FnMut(&mut Engine, usize),
) -> (BTreeMap<String, String>, usize) {
    let last = headwater_base::prefix_end(prefix.as_bytes());
    for slices in 1..10_000 {
        let mut pairs = BTreeMap::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let each = &mut |key: &[u8], value: Value<'_>| {
            pairs.insert(text(key), text(&value.to_vec()));
        };
        let before = count(engine, "rows_read");
        engine.begin_slice();
        let read = engine.range(prefix.as_bytes(), &last, RangeOptions::default(), each);
        engine.end_slice();
        let rows = count(engine, "rows_read") - before;
        match read {
            Ok(_) => return (pairs, slices),
            Err(Stop::Wait(ticket)) => {
                assert!(rows < 25 * ROWS as u64, "a slice visits {rows} rows");
                engine.forget_later(ticket);
                engine.go_on();
                engine.resume(ticket);
            }
            Err(Stop::Failed(error)) => panic!("{error}"),
        }
        engine.check_invariants();
        between(engine, slices);
    }
    panic!("it does not end");
}

fn engine(join: &str) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.set_slice(Some(ROWS));
    engine.join_add("j", join, false).expect("a join");
    engine
}

#[test]
fn one_output_of_very_many_keys_is_computed_in_slices() {
    for operator in ["count", "sum", "avg", "min", "max", "first", "last"] {
        let mut engine = engine(&format!("o|<a> = {operator} v|<a>|<n>"));
        let mut values: BTreeMap<usize, i64> = BTreeMap::new();
        for number in 0..KEYS {
            let value = (number * 7919 % 1000) as i64;
            set(&mut engine, &format!("v|x|{number:05}"), &value.to_string());
            values.insert(number, value);
        }
        // Behind the place where it goes on and ahead of it: some go, some change, and some come.
        let (pairs, slices) = read(&mut engine, "o|", &mut |engine, turn| {
            for number in [turn, KEYS - turn, KEYS / 2 + turn * 3, KEYS + turn] {
                if turn % 3 == 0 && values.remove(&number).is_some() {
                    assert!(remove(engine, &format!("v|x|{number:05}")));
                } else {
                    let value = (turn * number % 2000) as i64 - 500;
                    set(engine, &format!("v|x|{number:05}"), &value.to_string());
                    values.insert(number, value);
                }
            }
        });
        let (sum, len) = (values.values().sum::<i64>(), values.len() as i64);
        let expected = match operator {
            "count" => len,
            "sum" => sum,
            "min" => *values.values().min().expect("some"),
            "max" => *values.values().max().expect("some"),
            "first" => *values.values().next().expect("some"),
            "last" => *values.values().next_back().expect("some"),
            _ => {
                let average: f64 = pairs["o|x"].parse().expect("a number");
                assert!((average - sum as f64 / len as f64).abs() < 1e-9, "{average}");
                continue;
            }
        };
        assert_eq!(pairs, BTreeMap::from([("o|x".into(), expected.to_string())]), "{operator}");
        assert!(slices > KEYS / ROWS / 2, "{operator}: {slices} slices");
        assert!(count(&engine, "ranges_gathered") > 0, "{operator}");
        assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
    }
}

/// The value goes that was said, again and again, while the next best is looked for.
#[test]
fn what_is_said_is_looked_for_anew_in_slices_when_it_goes() {
    for operator in ["min", "max", "first", "last"] {
        let mut engine = engine(&format!("o|<a>|<b> = {operator} v|<a>|<b>|<n>"));
        let mut values: BTreeMap<usize, i64> = BTreeMap::new();
        for number in 0..KEYS {
            let value = (number * 7919 % 1000) as i64;
            set(&mut engine, &format!("v|x|y|{number:05}"), &value.to_string());
            values.insert(number, value);
        }
        let said = |values: &BTreeMap<usize, i64>| {
            match operator {
                "min" => values.iter().min_by_key(|(_, value)| **value),
                "max" => values.iter().max_by_key(|(_, value)| **value),
                "first" => values.iter().next(),
                _ => values.iter().next_back(),
            }
            .map(|(number, value)| (*number, *value))
        };
        let (mut pairs, _) = read(&mut engine, "o|", &mut |_, _| {});
        assert_eq!(pairs["o|x|y"], said(&values).expect("some").1.to_string(), "{operator}");
        for round in 0..3 {
            // As many have the least value, and the greatest, as there are multiples of a thousand.
            while let Some((number, value)) = said(&values)
                && pairs["o|x|y"] == value.to_string()
            {
                assert!(remove(&mut engine, &format!("v|x|y|{number:05}")));
                values.remove(&number);
            }
            let (found, slices) = read(&mut engine, "o|", &mut |engine, turn| {
                let (number, _) = said(&values).expect("some");
                if turn == 10 && values.remove(&number).is_some() {
                    assert!(remove(engine, &format!("v|x|y|{number:05}")));
                }
                let (number, value) = (KEYS / 2 + turn * 3, (turn * 7 % 900) as i64);
                set(engine, &format!("v|x|y|{number:05}"), &value.to_string());
                values.insert(number, value);
            });
            pairs = found;
            assert_eq!(pairs["o|x|y"], said(&values).expect("some").1.to_string(), "{operator}");
            // The first of the sources and the last are found at once.
            let is_ordered = matches!(operator, "first" | "last");
            let is_expected = if is_ordered { slices == 1 } else { slices > KEYS / ROWS / 2 };
            assert!(is_expected, "{operator}, {round}: {slices} slices");
            assert_eq!(count(&engine, "folds_gathered") == 0, is_ordered, "{operator}");
        }
        assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
    }
}

/// Each output has all keys of the source to look through: that is dearer, for all of them, than to compute the range anew.
#[test]
fn outputs_that_are_looked_for_anew_cost_no_more_than_their_range() {
    const OWNERS: usize = 100;
    let mut engine = engine("best|<owner> = max po|<post>|<owner>");
    let key = |post: usize, owner: usize| format!("po|{post:03}|{owner:04}");
    for at in 0..KEYS {
        let (post, owner) = (at / OWNERS, at % OWNERS);
        set(&mut engine, &key(post, owner), &post.to_string());
    }
    let begun = count(&engine, "rows_read");
    let (pairs, _) = read(&mut engine, "best|", &mut |_, _| {});
    let cold = count(&engine, "rows_read") - begun;
    let last = KEYS / OWNERS - 1;
    assert!(pairs.len() == OWNERS && pairs.values().all(|best| *best == last.to_string()));
    for owner in 0..OWNERS {
        assert!(remove(&mut engine, &key(last, owner)));
    }
    let begun = count(&engine, "rows_read");
    let (pairs, _) = read(&mut engine, "best|", &mut |_, _| {});
    let again = count(&engine, "rows_read") - begun;
    assert!(pairs.len() == OWNERS && pairs.values().all(|best| *best == (last - 1).to_string()));
    assert!(again < 2 * cold, "{again} rows, {cold} at first");
    assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
}

/// The best of very many, by what their values say: at the first read, and when one of them has gone.
#[test]
fn the_best_of_a_group_are_found_in_slices() {
    for keep in ["keep 10 desc", "keep 10 asc"] {
        let mut engine =
            engine(&format!("o|<a>|<score:number>|<n> = index v|<a>|<n> as <score> {keep}"));
        let mut values: BTreeMap<usize, i64> = BTreeMap::new();
        for number in 0..KEYS {
            let value = (number * 7919 % 10_007) as i64;
            set(&mut engine, &format!("v|x|{number:05}"), &value.to_string());
            values.insert(number, value);
        }
        let best = |values: &BTreeMap<usize, i64>| {
            let mut all: Vec<_> = values.iter().map(|(number, value)| (*value, *number)).collect();
            all.sort_unstable();
            if keep.ends_with("desc") {
                all.reverse();
            }
            all.truncate(10);
            all.sort_unstable();
            all
        };
        for round in 0..3 {
            let (pairs, slices) = read(&mut engine, "o|x|", &mut |engine, turn| {
                let (number, value) = (KEYS / 2 + turn * 3, (turn * 701 % 10_007) as i64);
                set(engine, &format!("v|x|{number:05}"), &value.to_string());
                values.insert(number, value);
                if turn == 10 {
                    let (_, number) = best(&values)[3];
                    assert!(remove(engine, &format!("v|x|{number:05}")));
                    values.remove(&number);
                }
            });
            let found: Vec<usize> =
                pairs.keys().map(|key| key[key.len() - 5..].parse().expect("a number")).collect();
            let expected: Vec<usize> =
                best(&values).into_iter().map(|(_, number)| number).collect();
            assert_eq!(found, expected, "{keep}, {round}");
            assert!(slices > KEYS / ROWS / 2, "{keep}, {round}: {slices} slices");
            for (_, number) in best(&values) {
                assert!(remove(&mut engine, &format!("v|x|{number:05}")));
                values.remove(&number);
            }
        }
        assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
    }
}

/// The subscriptions of one user, whose posts' times come first in the outputs: any part of them comes of all subscriptions.
#[test]
fn outputs_that_all_come_of_very_many_checks_are_computed_in_slices() {
    let join = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    let mut engine = engine(join);
    let mut expected = BTreeMap::new();
    let key = |time: usize, poster: usize| format!("t|ann|{time:05}|p{poster:05}");
    for poster in 0..KEYS {
        set(&mut engine, &format!("s|ann|p{poster:05}"), "1");
        for time in [poster * 31 % 1000, poster * 17 % 1000 + 1000] {
            set(&mut engine, &format!("p|p{poster:05}|{time:05}"), "post");
            expected.insert(key(time, poster), String::from("post"));
        }
    }
    let (pairs, slices) = read(&mut engine, "t|ann|", &mut |engine, turn| {
        // Subscriptions end and posts come on both sides of the place where it goes on.
        for poster in [turn, KEYS - 1 - turn] {
            if turn % 2 == 0 && remove(engine, &format!("s|ann|p{poster:05}")) {
                expected.retain(|key, _| !key.ends_with(&format!("p{poster:05}")));
            } else if turn % 2 == 1 {
                set(engine, &format!("p|p{poster:05}|{turn:05}"), "new");
                expected.insert(key(turn, poster), String::from("new"));
            }
        }
        set(engine, &format!("s|ann|q{turn:05}"), "1");
        set(engine, &format!("p|q{turn:05}|{turn:05}"), "late");
        expected.insert(format!("t|ann|{turn:05}|q{turn:05}"), String::from("late"));
    });
    assert!(pairs == expected, "{} pairs of {}", pairs.len(), expected.len());
    assert!(slices > KEYS / ROWS, "{slices} slices");
    assert!(count(&engine, "ranges_gathered") > 0);
    assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
}

/// A part of a timeline would look for its rows among the posts of every poster, as each other part does.
#[test]
fn a_timeline_of_many_posters_reads_each_of_them_once() {
    // Too few posters for their number to tell that the timeline is to be gathered, and more posts than a slice has.
    const POSTERS: usize = 3 * ROWS;
    const POSTS: usize = 3;
    let join = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    let mut engine = engine(join);
    for poster in 0..POSTERS {
        set(&mut engine, &format!("s|ann|p{poster:05}"), "1");
        for post in 0..POSTS {
            let time = poster * 31 % 1000 + post * 333;
            set(&mut engine, &format!("p|p{poster:05}|{time:05}"), "post");
        }
    }
    let before = count(&engine, "rows_read");
    let (pairs, _) = read(&mut engine, "t|ann|", &mut |_, _| {});
    assert_eq!(pairs.len(), POSTS * POSTERS);
    // A subscription, the look among its poster's posts, and these.
    let once = (2 + POSTS) * POSTERS;
    let rows = (count(&engine, "rows_read") - before) as usize;
    // What was found before it was known to be too much is looked at again.
    assert!(rows < 2 * once, "{rows} rows, where one look at each takes {once}");
    assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
}

/// Many posters have posted little, which is what a timeline is gathered for, and one of them very much.
#[test]
fn one_poster_of_very_many_posts_among_others_takes_no_slice_for_himself() {
    const POSTERS: usize = 3 * ROWS;
    let join = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    for much in [0, POSTERS / 2, POSTERS - 1] {
        let mut engine = engine(join);
        let mut expected = 0;
        for poster in 0..POSTERS {
            set(&mut engine, &format!("s|ann|p{poster:05}"), "1");
            for post in 0..if poster == much { KEYS } else { 1 } {
                set(
                    &mut engine,
                    &format!("p|p{poster:05}|{:05}", poster * 31 % 1000 + post),
                    "post",
                );
                expected += 1;
            }
        }
        let (pairs, slices) = read(&mut engine, "t|ann|", &mut |engine, turn| {
            set(engine, &format!("p|p{much:05}|{:05}", 20_000 + turn), "late");
            expected += 1;
        });
        assert_eq!(pairs.len(), expected);
        assert!(slices > KEYS / ROWS / 4, "{slices} slices");
        assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
    }
}

/// One key of the first source leads to very many of the second.
#[test]
fn outputs_of_very_many_keys_below_one_check_are_computed_in_slices() {
    let joins = [
        "o|<a> = check c|<a> count v|<a>|<n>",
        "o|<a> = check c|<a> check d|<a> max v|<a>|<n>",
        "o|<a> = check c|<a> check v|<a>|<n> count w|<n>",
        "o|<a>|<n> = check c|<a> copy v|<a>|<n> keep 5",
    ];
    for (number, join) in joins.into_iter().enumerate() {
        let mut engine = engine(join);
        for key in ["c|x", "d|x"] {
            set(&mut engine, key, "1");
        }
        for number in 0..KEYS {
            set(&mut engine, &format!("v|x|{number:05}"), &(number % 1000).to_string());
            set(&mut engine, &format!("w|{number:05}"), "1");
        }
        // The check goes, and comes again, while what it leads to is added.
        let (_, slices) = read(&mut engine, "o|x", &mut |engine, turn| match turn {
            10 => {
                assert!(remove(engine, "c|x"));
                set(engine, "c|x", "1");
            }
            _ => {
                set(engine, &format!("v|x|{:05}", KEYS / 2 + turn * 3), "1000");
                remove(engine, &format!("v|x|{:05}", KEYS / 2 - turn * 3));
            }
        });
        assert!(slices > KEYS / ROWS / 2, "{join}: {slices} slices");
        assert!(count(&engine, "ranges_gathered") > 0, "{join}");
        assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()), "{join}");
        if number == 1 {
            // Those that are said go: the next best is looked for in slices, too.
            for at in 0..KEYS {
                if matches!(engine.get(format!("v|x|{at:05}").as_bytes()),
                    Ok(Some(value)) if value.to_vec() == b"1000")
                {
                    assert!(remove(&mut engine, &format!("v|x|{at:05}")));
                }
            }
            let (pairs, slices) = read(&mut engine, "o|x", &mut |_, _| {});
            assert_eq!(pairs["o|x"], "999");
            assert!(slices > KEYS / ROWS / 2, "{join}: {slices} slices");
        }
        assert!(remove(&mut engine, "c|x"));
        assert!(read(&mut engine, "o|x", &mut |_, _| {}).0.is_empty(), "{join}");
        // It comes where nothing was: what it leads to is added in slices as well.
        set(&mut engine, "c|x", "1");
        let (pairs, slices) = read(&mut engine, "o|x", &mut |_, _| {});
        assert!(!pairs.is_empty() && slices > KEYS / ROWS / 2, "{join}: {slices} slices");
        assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()), "{join}");
    }
}

/// Each of several keys of the first source leads to very many of the second, which do not say where to divide the range.
#[test]
fn each_of_several_crowds_is_a_part_of_its_own() {
    const CROWDS: usize = 12;
    let mut engine = engine("o|<a>|<x> = check a|<a> check b|<a>|<z> copy c|<a>|<z>|<x>");
    for crowd in 0..CROWDS {
        set(&mut engine, &format!("a|{crowd:02}"), "1");
        for number in 0..KEYS / CROWDS * 2 {
            set(&mut engine, &format!("b|{crowd:02}|{number:05}"), "1");
            if number % 50 == 0 {
                set(&mut engine, &format!("c|{crowd:02}|{number:05}|{number}"), "value");
            }
        }
    }
    let (pairs, slices) = read(&mut engine, "o|", &mut |_, _| {});
    assert_eq!(pairs.len(), CROWDS * (KEYS / CROWDS * 2).div_ceil(50));
    assert!(slices > 2 * KEYS / ROWS / 2, "{slices} slices");
    assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
}

/// What is computed at each read from what other joins keep, which has to be computed first, while others write.
#[test]
fn what_is_pulled_from_other_joins_is_collected_in_slices() {
    let joins = ["o|<a>|<n> = pull copy m|<a>|<n>", "o|<a>|<n> = pull check a|<a> max m|<a>|<n>"];
    for join in joins {
        let mut engine = engine("m|<a>|<n> = copy v|<a>|<n>");
        engine.join_add("pulled", join, false).expect("a join");
        set(&mut engine, "a|x", "1");
        let mut expected = BTreeMap::new();
        let output = |number: usize| format!("o|x|{number:05}");
        for number in 0..KEYS {
            set(&mut engine, &format!("v|x|{number:05}"), "1");
            expected.insert(output(number), String::from("1"));
        }
        let before = count(&engine, "rows_read");
        let (pairs, slices) = read(&mut engine, "o|", &mut |engine, turn| {
            // What is written again and again is computed in one step in the end.
            if turn % 20 != 0 {
                return;
            }
            for number in [turn, KEYS - turn] {
                set(engine, &format!("v|x|{number:05}"), "2");
                expected.insert(output(number), String::from("2"));
            }
            let gone = KEYS / 2 + turn;
            if remove(engine, &format!("v|x|{gone:05}")) {
                expected.remove(&output(gone));
            }
        });
        assert!(pairs == expected, "{join}: {} pairs of {}", pairs.len(), expected.len());
        assert!(slices > KEYS / ROWS / 2, "{join}: {slices} slices");
        // Once to keep what the pulled ones are computed from, and a few times for these.
        let rows = count(&engine, "rows_read") - before;
        assert!(rows < 20 * KEYS as u64, "{join}: {rows} rows");
    }
}

/// A client that gave its read up leaves a part, with which others go on at once or in slices.
#[test]
fn what_was_begun_is_gone_on_with() {
    let mut engine = engine("o|<a> = count v|<a>|<n>");
    for number in 0..KEYS {
        set(&mut engine, &format!("v|x|{number:05}"), "1");
    }
    for turn in 0..20 {
        engine.begin_slice();
        let read = engine.get(b"o|x").map(drop);
        engine.end_slice();
        assert!(matches!(read, Err(Stop::Wait(_))));
        remove(&mut engine, &format!("v|x|{:05}", turn * 200));
        engine.check_invariants();
    }
    let value = engine.get(b"o|x").expect("no source").expect("an output").to_vec();
    assert_eq!(value, (KEYS - 20).to_string().into_bytes());
    assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 10), Ok(Vec::new()));
}

/// Joins of every form, some of them over others' outputs.
const JOINS: [&str; 25] = [
    "a|<x> = count s|<x>|<y>",
    "b|<x> = sum s|<x>|<y>",
    "c|<x> = max s|<x>|<y>",
    "d|<x> = last s|<x>|<y>",
    "e|<x>|<z>|<y> = check s|<x>|<y> copy p|<y>|<z>",
    "f|<x> = check s|<x>|<y> sum p|<y>|<z>",
    "g|<z>|<x> = check s|<x>|<y> count p|<y>|<z>",
    "h|<x>|<z> = check s|<x>|<y> check p|<y>|<z> min q|<z>|<w>",
    "i|<x> = check p|<y>|<z> first s|<x>|<y>",
    "k|all = count e|<x>|<z>|<y>",
    "l|<w> = check g|<z>|<x> sum q|<z>|<w>",
    "m|<x>|<y> = copy a|<x> check s|<x>|<y>",
    "n|<x>|<v:number>|<y> = index s|<x>|<y> as <v> keep 2",
    "o|<x>|<y> = copy s|<x>|<y> keep 2 asc",
    "r|<x>|<z> = check s|<x>|<y> sum p|<y>|<z> keep 2",
    "t|<x>|<z> = check s|<x>|<y> max p|<y>|<z> keep 2 asc",
    "u|<x> = distinct~ 2 s|<x>|<y>",
    "v|<x>|<z> = check s|<x>|<y> distinct~ 2 p|<y>|<z> keep 2",
    "w|<x> = check p|<x>|1 count s|<x>|<y>",
    "x|<x>|<z> = check q|<x>|2 check s|<x>|<y> max p|<y>|<z>",
    "y|<x>|<v:number> = check p|<x>|1 as <v> count s|<x>|<y>",
    "A|<x>|<y> = pull copy m|<x>|<y>",
    "B|<x> = pull count e|<x>|<z>|<y>",
    "C|<x>|<z> = pull check s|<x>|<y> max g|<z>|<y>",
    "D|<x>|<y> = pull copy A|<x>|<y>",
];

/// Numbers that look random.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn write(&mut self, engine: &mut Engine) {
        let table = ["s", "p", "q"][self.below(3) as usize];
        let key = format!("{table}|{}|{}", self.below(4), self.below(9));
        if self.below(3) == 0 {
            remove(engine, &key);
        } else {
            set(engine, &key, &self.below(50).to_string());
        }
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a range holds.
fn all_of(engine: &mut Engine, first: &[u8], last: &[u8]) -> (Result<u64, Stop>, Pairs) {
    let mut pairs = Vec::new();
    let each = &mut |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
    (engine.range(first, last, RangeOptions::default(), each), pairs)
}

/// Reads in slices of two rows, between which others write, read other ranges, and memory is taken away.
#[test]
fn what_is_gathered_is_what_a_recomputation_gives_whatever_comes_in_between() {
    let (mut gathered, mut folds, mut completed) = (0, 0, 0);
    let wanted = std::env::var("HEADWATER_HISTORIES").ok();
    let seeds = wanted.map_or(SEEDS, |number| number.parse().expect("a number"));
    for seed in 0..seeds {
        let mut draws = Draws(seed);
        let mut engine = Engine::new(Settings::default());
        engine.set_slice(Some(2));
        for (number, join) in JOINS.iter().enumerate() {
            if draws.below(2) == 0 {
                engine.join_add(&format!("j{number}"), join, false).expect("a join");
            }
        }
        (0..60).for_each(|_| draws.write(&mut engine));
        for _ in 0..30 {
            let table = b"abcdefghiklmnortuvwxyABCD"[draws.below(25) as usize];
            let prefix = match draws.below(3) {
                0 => vec![table, b'|'],
                _ => vec![table, b'|', b'0' + draws.below(4) as u8],
            };
            let last = headwater_base::prefix_end(&prefix);
            for _ in 0..draws.below(60) {
                engine.begin_slice();
                let (read, pairs) = all_of(&mut engine, &prefix, &last);
                engine.end_slice();
                engine.check_invariants();
                let Err(stop) = read else {
                    completed += 1;
                    // It shows the moment of its last slice.
                    let (whole, now) = all_of(&mut engine, &prefix, &last);
                    assert_eq!((whole, pairs), (Ok(now.len() as u64), now), "seed {seed}");
                    break;
                };
                let Stop::Wait(ticket) = stop else { panic!("{stop:?}") };
                engine.forget_later(ticket);
                engine.go_on();
                match draws.below(8) {
                    0..3 => draws.write(&mut engine),
                    3 => {
                        let key = [table, b'|', b'0' + draws.below(4) as u8];
                        engine.begin_slice();
                        drop(engine.get(&key).map(drop));
                        engine.end_slice();
                    }
                    4 if draws.below(9) == 0 => _ = engine.evict_any(draws.below(u64::MAX)),
                    _ => {}
                }
            }
            let differences = engine.verify(&headwater_base::KeyRange::prefix(&prefix), 10);
            assert_eq!(differences, Ok(Vec::new()), "seed {seed}");
        }
        let differences = engine.verify(&headwater_base::KeyRange::all(), 10);
        assert_eq!(differences, Ok(Vec::new()), "seed {seed}");
        engine.check_invariants();
        gathered += count(&engine, "ranges_gathered");
        folds += count(&engine, "folds_gathered");
    }
    assert!(gathered > seeds && completed > seeds, "{gathered} ranges, {completed} reads");
    assert!(folds > seeds / 10, "{folds} folds");
}
