//! Large fan-outs: writes that more ranges show than a slice has rows.

use headwater_engine::{Engine, Expiry, Follower, NotifiedChange, RangeOptions, Settings, Stop};
use std::collections::BTreeMap;

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a base key");
}

fn remove(engine: &mut Engine, key: &str) {
    assert!(engine.remove(key.as_bytes()).expect("a base key"), "{key}");
}

fn add(engine: &mut Engine, name: &str, text: &str) {
    engine.join_add(name, text, false).expect("a join");
}

/// What begins with the table's name.
fn read(engine: &mut Engine, prefix: &str) -> Vec<(String, String)> {
    try_read(engine, prefix).expect("nothing is to be waited for")
}

fn try_read(engine: &mut Engine, prefix: &str) -> Result<Vec<(String, String)>, Stop> {
    let mut found = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let last = headwater_base::KeyRange::prefix(prefix.as_bytes()).last;
    engine.range(prefix.as_bytes(), &last, RangeOptions::default(), &mut |key, value| {
        found.push((text(key), text(&value.to_vec())));
    })?;
    Ok(found)
}

fn count(engine: &Engine, name: &str) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(known, _)| *known == name).expect("a counter").1
}

fn finish(engine: &mut Engine) {
    while engine.goes_on() {
        engine.go_on();
        engine.check_invariants();
    }
}

/// An engine in which `users` users follow bob, who has written 10, 20 and 30, with joins of the posts for each user.
fn followed(users: usize, joins: &[(&str, &str)]) -> Engine {
    let mut engine = Engine::new(Settings::default());
    for (name, text) in joins {
        add(&mut engine, name, text);
    }
    for number in [10, 20, 30] {
        set(&mut engine, &format!("p|bob|{number}"), &number.to_string());
    }
    for user in 0..users {
        set(&mut engine, &format!("s|u{user:05}|bob"), "");
        for (name, _) in joins {
            assert_eq!(read(&mut engine, &format!("{name}|u{user:05}")).len(), 1);
        }
    }
    engine.set_slice(Some(100));
    engine
}

/// Folds of what those whom a user follows have written.
const FOLDS: [(&str, &str); 8] = [
    ("count", "count|<user> = check s|<user>|<poster> count p|<poster>|<id>"),
    ("sum", "sum|<user> = check s|<user>|<poster> sum p|<poster>|<id>"),
    ("avg", "avg|<user> = check s|<user>|<poster> avg p|<poster>|<id>"),
    ("min", "min|<user> = check s|<user>|<poster> min p|<poster>|<id>"),
    ("max", "max|<user> = check s|<user>|<poster> max p|<poster>|<id>"),
    ("first", "first|<user> = check s|<user>|<poster> first p|<poster>|<id>"),
    ("last", "last|<user> = check s|<user>|<poster> last p|<poster>|<id>"),
    ("copy", "copy|<user> = check s|<user>|<poster> copy p|<poster>|<id>"),
];

/// What the folds give for numbers under the names that they had at first.
fn folds_of(numbers: &BTreeMap<&str, i64>) -> [String; 8] {
    let values: Vec<i64> = numbers.values().copied().collect();
    let (sum, count) = (values.iter().sum::<i64>(), values.len() as i64);
    let avg = if sum % count == 0 { (sum / count).to_string() } else { panic!("choose others") };
    let (min, max) = (values.iter().min(), values.iter().max());
    let [min, max] = [min, max].map(|it| it.expect("some").to_string());
    let (first, last) = (values[0].to_string(), values[values.len() - 1].to_string());
    [count.to_string(), sum.to_string(), avg, min, max, first, last.clone(), last]
}

#[test]
fn folds_of_many_ranges_change_in_slices_and_nobody_can_tell() {
    let users = 1000;
    let mut engine = followed(users, &FOLDS);
    let mut numbers = BTreeMap::from([("10", 10), ("20", 20), ("30", 30)]);
    let mut noted = 0;
    let steps: [(&str, Option<i64>); 8] = [
        ("40", Some(40)),
        ("40", None),
        ("30", None),
        ("20", Some(2)),
        ("05", Some(60)),
        ("10", Some(70)),
        ("05", None),
        ("99", Some(66)),
    ];
    for (at, (id, number)) in steps.into_iter().enumerate() {
        match number {
            Some(number) => {
                numbers.insert(id, number);
                set(&mut engine, &format!("p|bob|{id}"), &number.to_string());
            }
            None => {
                numbers.remove(id);
                remove(&mut engine, &format!("p|bob|{id}"));
            }
        }
        noted += FOLDS.len() as u64;
        assert_eq!(count(&engine, "fan_outs_noted"), noted, "step {at}");
        for _ in 0..3 {
            engine.go_on();
            engine.check_invariants();
        }
        let expected = folds_of(&numbers);
        for user in [at * 7, 500 + at * 11, 999 - at] {
            for ((name, _), expected) in FOLDS.iter().zip(&expected) {
                let found = read(&mut engine, &format!("{name}|u{user:05}"));
                let expected = (format!("{name}|u{user:05}"), expected.clone());
                assert_eq!(found, [expected], "step {at}, user {user}");
            }
        }
        if at == 4 {
            finish(&mut engine);
        }
    }
    finish(&mut engine);
    for ((name, _), expected) in FOLDS.iter().zip(&folds_of(&numbers)) {
        let found = read(&mut engine, &format!("{name}|"));
        assert_eq!(found.len(), users);
        assert!(found.iter().all(|(_, value)| value == expected), "{name}");
    }
}

#[test]
fn checks_of_many_ranges_are_noted_in_slices() {
    let text = "t|<user>|<id> = check s|<user>|<poster> check live|<poster> copy p|<poster>|<id>";
    let mut engine = Engine::new(Settings::default());
    add(&mut engine, "t", text);
    set(&mut engine, "p|bob|1", "post");
    set(&mut engine, "live|bob", "");
    for user in 0..1000 {
        set(&mut engine, &format!("s|u{user:05}|bob"), "");
        assert_eq!(read(&mut engine, &format!("t|u{user:05}")).len(), 1);
    }
    engine.set_slice(Some(100));
    let posts = |engine: &mut Engine, user: usize| read(engine, &format!("t|u{user:05}")).len();
    let logged = count(&engine, "checks_logged");
    remove(&mut engine, "live|bob");
    assert_eq!(count(&engine, "checks_logged"), logged);
    engine.go_on();
    engine.check_invariants();
    assert_eq!(count(&engine, "checks_logged"), logged + 100);
    assert_eq!((posts(&mut engine, 0), posts(&mut engine, 999)), (0, 0));
    set(&mut engine, "p|bob|2", "another");
    set(&mut engine, "live|bob", "again");
    for _ in 0..15 {
        engine.go_on();
        engine.check_invariants();
    }
    assert_eq!((posts(&mut engine, 1), posts(&mut engine, 998)), (2, 2));
    remove(&mut engine, "p|bob|1");
    finish(&mut engine);
    assert_eq!(read(&mut engine, "t|").len(), 1000);
}

/// What a read makes of other ranges on its way may concern its own range, with many others.
#[test]
fn a_read_shows_what_it_has_brought_about_for_many() {
    let mut engine = Engine::new(Settings::default());
    add(&mut engine, "wall", "w|<poster>|<id> = check on|<poster>|<id> copy p|<poster>|<id>");
    add(&mut engine, "t", "t|<user>|<id> = check s|<user>|<poster> copy w|<poster>|<id>");
    add(&mut engine, "n", "n|<user> = check s|<user>|<poster> count w|<poster>|<id>");
    for id in 0..9 {
        set(&mut engine, &format!("p|bob|{id}"), "post");
    }
    set(&mut engine, "on|bob|0", "");
    for user in 0..500 {
        set(&mut engine, &format!("s|u{user:05}|bob"), "");
        assert_eq!(read(&mut engine, &format!("t|u{user:05}")).len(), 1);
        assert_eq!(read(&mut engine, &format!("n|u{user:05}"))[0].1, "1");
    }
    engine.set_slice(Some(100));
    for id in 1..9 {
        // Whose turn it is to be read now, the post is brought to all of the others too.
        set(&mut engine, &format!("on|bob|{id}"), "");
        assert_eq!(read(&mut engine, &format!("t|u{id:05}")).len(), id + 1);
        assert_eq!(read(&mut engine, &format!("n|u{:05}", 499 - id))[0].1, (id + 1).to_string());
        engine.go_on();
        engine.check_invariants();
    }
    assert!(count(&engine, "fan_outs_noted") >= 16);
    finish(&mut engine);
    assert_eq!(read(&mut engine, "t|").len(), 9 * 500);
}

/// One range with so many outputs of each key `b|…`.
fn crossed(others: usize) -> Engine {
    let mut engine = Engine::new(Settings::default());
    add(&mut engine, "o", "o|<a>|<b> = check a|<b> copy b|<a>");
    add(&mut engine, "n", "n|<b> = check a|<b> count b|<a>");
    for other in 0..others {
        set(&mut engine, &format!("a|{other:05}"), "");
    }
    assert_eq!((read(&mut engine, "o|").len(), read(&mut engine, "n|").len()), (0, 0));
    engine.set_slice(Some(100));
    engine
}

#[test]
fn a_range_with_many_outputs_of_one_write_is_read_in_slices() {
    let mut engine = crossed(3000);
    set(&mut engine, "b|x", "1");
    set(&mut engine, "b|y", "2");
    remove(&mut engine, "b|x");
    // What concerns a range for which so much is noted is noted too, however little it is.
    remove(&mut engine, "a|00007");
    set(&mut engine, "b|z", "3");
    for prefix in ["o|", "n|"] {
        let mut slices = 0;
        let found = loop {
            slices += 1;
            assert!(slices < 1000, "a read ends");
            let updates = count(&engine, "updates_applied");
            engine.begin_slice();
            let found = try_read(&mut engine, prefix);
            engine.end_slice();
            engine.check_invariants();
            assert!(count(&engine, "updates_applied") - updates <= 200, "a slice is short");
            match found {
                Ok(found) => break found,
                Err(Stop::Wait(ticket)) => engine.forget_later(ticket),
                Err(error) => panic!("{error:?}"),
            }
        };
        let expected = if prefix == "o|" { 2 * 2999 } else { 2999 };
        assert_eq!(found.len(), expected);
        assert!(slices > 60, "{slices} slices");
        assert!(prefix == "o|" || found.iter().all(|(_, value)| value == "2"));
    }
}

/// Timelines, how many posts are in each, how many timelines have each number of them, and a view that is computed when it is read.
const CHAIN: [(&str, &str); 3] = [
    ("t", "t|<user>|<id> = check s|<user>|<poster> copy p|<poster>|<id>"),
    ("n", "n|<user> = count t|<user>|<id>"),
    ("all", "all|x = sum n|<user>"),
];

/// Reads in slices, with what goes on by itself in between; how many slices that took.
fn read_in_slices(engine: &mut Engine, prefix: &str) -> (Vec<(String, String)>, usize) {
    for slice in 1..1000 {
        engine.begin_slice();
        let found = try_read(engine, prefix);
        engine.end_slice();
        engine.check_invariants();
        match found {
            Ok(found) => return (found, slice),
            Err(Stop::Wait(ticket)) => engine.forget_later(ticket),
            Err(error) => panic!("{error:?}"),
        }
        engine.go_on();
    }
    panic!("a read ends");
}

#[test]
fn joins_of_joins_are_read_when_what_many_of_them_show_has_come() {
    let mut engine = Engine::new(Settings::default());
    CHAIN.iter().for_each(|(name, text)| add(&mut engine, name, text));
    add(&mut engine, "pull", "pull|<user> = pull copy n|<user>");
    set(&mut engine, "p|bob|1", "post");
    for user in 0..1000 {
        set(&mut engine, &format!("s|u{user:05}|bob"), "");
    }
    assert_eq!(read(&mut engine, "all|")[0].1, "1000");
    for user in 0..1000 {
        // Each is a range of its own.
        assert_eq!(read(&mut engine, &format!("t|u{user:05}|")).len(), 1);
    }
    engine.flush();
    set(&mut engine, "p|bob|1", "post");
    for user in 0..1000 {
        set(&mut engine, &format!("s|u{user:05}|bob"), "");
        assert_eq!(read(&mut engine, &format!("n|u{user:05}"))[0].1, "1");
    }
    engine.set_slice(Some(100));
    set(&mut engine, "p|bob|2", "another");
    set(&mut engine, "p|bob|3", "a third");
    remove(&mut engine, "p|bob|1");
    assert_eq!(count(&engine, "fan_outs_deep"), 3);
    engine.go_on();
    engine.check_invariants();
    // A timeline reads base keys alone, and nobody else's are waited for.
    assert_eq!(read_in_slices(&mut engine, "t|u00999|").1, 1);
    let (found, slices) = read_in_slices(&mut engine, "n|u00500");
    assert_eq!(found, [("n|u00500".into(), "2".into())]);
    assert!((20..40).contains(&slices), "{slices} slices");
    assert!(!engine.goes_on(), "all is done");
    // Where it cannot wait, all is done at once.
    set(&mut engine, "p|bob|4", "a fourth");
    assert_eq!(read(&mut engine, "pull|u00007")[0].1, "3");
    set(&mut engine, "p|bob|5", "a fifth");
    assert_eq!(read(&mut engine, "all|")[0].1, "4000");
    engine.check_invariants();
    // What depends on very many ranges of which each has changed.
    set(&mut engine, "p|bob|6", "a sixth");
    engine.go_on();
    assert_eq!(read_in_slices(&mut engine, "all|").0[0].1, "5000");
    finish(&mut engine);
    assert_eq!(read(&mut engine, "t|").len(), 5000);
}

#[test]
fn followers_are_told_slice_by_slice_and_in_order() {
    let mut engine = followed(1000, &[]);
    let text = "t|<user>|<id>|<poster> = check s|<user>|<poster> copy p|<poster>|<id>";
    add(&mut engine, "t", text);
    for user in 0..1000 {
        assert_eq!(read(&mut engine, &format!("t|u{user:05}|")).len(), 3);
    }
    let all = headwater_base::KeyRange::prefix(b"t|");
    engine.follow(&all, Follower(1)).expect("no source");
    let mut copy: BTreeMap<String, String> = read(&mut engine, "t|").into_iter().collect();
    let hear = |engine: &mut Engine, copy: &mut BTreeMap<String, String>| {
        engine.keep_followed();
        let told = engine.take_notifications();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        for told in &told {
            match &told.what {
                NotifiedChange::Set { key, value } => {
                    copy.insert(text(key), text(&engine.held(*value).to_vec()));
                    engine.release(*value);
                }
                NotifiedChange::Gone { key } => _ = copy.remove(&text(key)),
                NotifiedChange::Reset { range } => panic!("{range:?}"),
            }
        }
        told.len()
    };
    set(&mut engine, "p|bob|40", "forty");
    set(&mut engine, "p|bob|40", "changed");
    remove(&mut engine, "p|bob|10");
    assert_eq!((count(&engine, "fan_outs_deep"), hear(&mut engine, &mut copy)), (3, 0));
    assert!(!engine.is_followed_current());
    let mut heard = 0;
    while engine.goes_on() {
        engine.go_on();
        let told = hear(&mut engine, &mut copy);
        assert!(told <= 100, "a slice is short");
        heard += told;
        // A copy is never ahead of what a read shows.
        let now = copy.get("t|u00900|40|bob").cloned();
        assert!(matches!(now.as_deref(), None | Some("forty" | "changed")));
    }
    assert_eq!(heard, 3000);
    assert!(engine.is_followed_current());
    let read: BTreeMap<_, _> = read(&mut engine, "t|").into_iter().collect();
    assert!(copy == read, "{} and {} keys", copy.len(), read.len());
    assert_eq!(read.len(), 3000);
}

#[test]
fn writes_wait_where_too_much_is_noted() {
    let mut engine = followed(200, &FOLDS[..1]);
    let mut waited = 0;
    for number in 100..400 {
        engine.begin_slice();
        let admitted = engine.admit_write(Some(b"p|bob|1"));
        // What no join reads does not wait.
        assert_eq!(engine.admit_write(Some(b"plain")), Ok(()));
        engine.end_slice();
        if let Err(stop) = admitted {
            let Stop::Wait(ticket) = stop else { panic!("{stop:?}") };
            engine.forget_later(ticket);
            engine.go_on();
            waited += 1;
        } else {
            set(&mut engine, &format!("p|bob|{number}"), "1");
        }
        engine.check_invariants();
    }
    assert!((100..200).contains(&waited), "{waited} writes had to wait");
    // What cannot wait is done all the same.
    (400..600).for_each(|number| set(&mut engine, &format!("p|bob|{number}"), "1"));
    finish(&mut engine);
    assert_eq!(read(&mut engine, "count|u00000")[0].1, (303 - waited + 200).to_string());
}
