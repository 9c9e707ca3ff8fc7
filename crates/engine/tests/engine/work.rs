//! How much work operations are, in rows and steps that the engine counts: not in time, which depends on the machine.

use headwater_base::{Placement, Shard};
use headwater_engine::{Engine, Expiry, RangeOptions, Settings};

fn count(engine: &Engine, name: &str) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(counter, _)| *counter == name).expect("a counter").1
}

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a base key");
}

/// The pairs of a table, and the rows that were read for them.
fn read(engine: &mut Engine, table: &str) -> (Vec<(String, String)>, u64) {
    let before = count(engine, "rows_read");
    let mut pairs = Vec::new();
    let (first, last) = (format!("{table}|"), format!("{table}}}"));
    let each = &mut |key: &[u8], value: headwater_engine::Value<'_>| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs.push((text(key), text(&value.to_vec())));
    };
    engine
        .range(first.as_bytes(), last.as_bytes(), RangeOptions::default(), each)
        .expect("no source");
    (pairs, count(engine, "rows_read") - before)
}

/// 2 000 rows of 200 owners, which a join folds to one output each; a row's value is that of its number.
fn folded(operator: &str) -> Engine {
    let mut engine = Engine::new(Settings::default());
    let text = format!("best|<owner> = {operator} po|<post>|<owner>");
    engine.join_add("best", &text, false).expect("a join");
    for post in 0..2000 {
        set(&mut engine, &format!("po|{post:04}|o{:03}", post % 200), &post.to_string());
    }
    engine
}

#[test]
fn removals_of_what_folds_showed_cost_the_next_read_about_one_recomputation() {
    for (operator, newest) in
        [("max", true), ("min", false), ("last", true), ("first", false), ("copy", true)]
    {
        let mut engine = folded(operator);
        let (pairs, cold) = read(&mut engine, "best");
        assert_eq!((pairs.len(), cold >= 2000), (200, true), "{operator}");
        // What gives the value of each of 150 owners.
        let gone = |owner: i32| if newest { 1800 + owner } else { owner };
        for owner in 0..150 {
            let key = format!("po|{:04}|o{owner:03}", gone(owner));
            assert!(engine.remove(key.as_bytes()).expect("a base key"));
        }
        let (pairs, rows) = read(&mut engine, "best");
        let shown = |owner: i32| if newest { 1600 + owner } else { owner + 200 };
        for (owner, (key, value)) in pairs.iter().enumerate().take(150) {
            let expected = (format!("best|o{owner:03}"), shown(owner as i32).to_string());
            assert_eq!((key.clone(), value.clone()), expected, "{operator}");
        }
        assert!(rows <= 3 * cold, "{operator}: {rows} rows are read, {cold} where all is computed");
        assert_eq!(read(&mut engine, "best").1, 0, "{operator}: nothing is left to do");
    }
}

#[test]
fn reading_stale_folds_one_by_one_costs_about_one_recomputation_in_all() {
    let mut engine = folded("max");
    let (_, cold) = read(&mut engine, "best");
    for post in 1800..2000 {
        engine.remove(format!("po|{post:04}|o{:03}", post % 200).as_bytes()).expect("a base key");
    }
    let before = count(&engine, "rows_read");
    for owner in 0..200 {
        let key = format!("best|o{owner:03}");
        let value = engine.get(key.as_bytes()).expect("no source").expect("there").to_vec();
        assert_eq!(value, (1600 + owner).to_string().into_bytes());
    }
    let rows = count(&engine, "rows_read") - before;
    assert!(rows <= 3 * cold, "{rows} rows are read, {cold} where all is computed");
}

#[test]
fn few_stale_folds_of_narrow_spans_are_recomputed_by_themselves() {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("best", "best|<owner> = max po|<owner>|<post>", false).expect("a join");
    for post in 0..2000 {
        set(&mut engine, &format!("po|o{:03}|{post:04}", post % 200), &post.to_string());
    }
    read(&mut engine, "best");
    for owner in 0..20 {
        engine.remove(format!("po|o{owner:03}|{}", 1800 + owner).as_bytes()).expect("a base key");
    }
    let (pairs, rows) = read(&mut engine, "best");
    assert_eq!(pairs[7], (String::from("best|o007"), String::from("1607")));
    assert!(rows <= 20 * 11, "{rows} rows are read for twenty folds of nine");
}

#[test]
fn check_keys_that_went_cost_a_fold_no_more_than_what_they_leave() {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("n", "n|<y> = check a|<x> count b|<y>", false).expect("a join");
    for number in 0..100 {
        set(&mut engine, &format!("a|{number:03}"), "1");
        set(&mut engine, &format!("b|{number:03}"), "1");
    }
    let (pairs, cold) = read(&mut engine, "n");
    assert_eq!((pairs.len(), &*pairs[0].1, cold > 10_000), (100, "100", true));
    for number in 1..100 {
        engine.remove(format!("a|{number:03}").as_bytes()).expect("a base key");
    }
    let (pairs, rows) = read(&mut engine, "n");
    assert_eq!((pairs.len(), &*pairs[0].1), (100, "1"));
    // One row of a, with a hundred of b; what the first that went took out comes on top of it.
    assert!(rows < cold / 20, "{rows} rows are read, {cold} where all is computed");
}

/// An engine with so many joins between two tables, each of a literal of its own, of which all outputs have been read.
fn many_joins(count: usize) -> Engine {
    let mut settings = Settings::default();
    settings.limits.joins_max = count;
    let mut engine = Engine::new(settings);
    for join in 0..count {
        let text =
            format!("out|l{join}|<user>|<id> = check in|l{join}|<user> copy value|l{join}|<id>");
        engine.join_add(&format!("j{join}"), &text, false).expect("a join");
        set(&mut engine, &format!("in|l{join}|u"), "1");
        set(&mut engine, &format!("value|l{join}|7"), "seven");
        assert!(engine.get(format!("out|l{join}|u|7").as_bytes()).expect("no source").is_some());
    }
    engine
}

#[test]
fn joins_that_differ_in_a_literal_cost_one_another_nothing() {
    let mut engine = many_joins(2000);
    let compared = count(&engine, "joins_compared");
    assert!(compared < 40 * 2000, "{compared} joins are looked at to install two thousand");

    let told = count(&engine, "readers_told");
    set(&mut engine, "value|l77|8", "eight");
    set(&mut engine, "value|l78|7", "other");
    engine.remove(b"in|l79|u").expect("a base key");
    assert_eq!(count(&engine, "readers_told") - told, 3, "one for each write");
    assert_eq!(read(&mut engine, "out|l77").0.len(), 2);
    assert_eq!(read(&mut engine, "out|l78").0[0].1, "other");
    assert_eq!(read(&mut engine, "out|l79").0.len(), 0);
    assert_eq!(read(&mut engine, "out").0.len(), 2000);
    assert!(engine.set(b"out|l5|x|y", b"v", Expiry::Never).is_err(), "a join's output");
    assert!(engine.set(b"out|l5|x", b"v", Expiry::Never).is_ok(), "no join gives it");

    let compared = count(&engine, "joins_compared");
    for join in (0..2000).step_by(2) {
        engine.join_drop(&format!("j{join}")).expect("is installed");
    }
    let compared = count(&engine, "joins_compared") - compared;
    assert!(compared < 40 * 1000, "{compared} joins are looked at to drop a thousand");
    // With the key that no join gives.
    assert_eq!(read(&mut engine, "out").0.len(), 1000 + 1);
    assert!(engine.set(b"out|l4|x|y", b"v", Expiry::Never).is_ok(), "its join is gone");
}

#[test]
fn joins_that_nobody_has_read_cost_writes_of_their_table_nothing() {
    let mut settings = Settings::default();
    settings.limits.joins_max = 500;
    let mut engine = Engine::new(settings);
    for join in 0..500 {
        let text = format!("out{join}|<user>|<id> = copy value|<user>|<id>");
        engine.join_add(&format!("j{join}"), &text, false).expect("a join");
    }
    assert_eq!(read(&mut engine, "out7").0.len(), 0);
    let told = count(&engine, "readers_told");
    set(&mut engine, "value|ann|1", "v");
    assert_eq!(count(&engine, "readers_told") - told, 1);
    assert_eq!(read(&mut engine, "out7").0.len(), 1);
    assert_eq!(read(&mut engine, "out8").0.len(), 1);
}

#[test]
fn joins_over_several_shards_cost_one_another_nothing() {
    let mut settings = Settings::default();
    settings.limits.joins_max = 2001;
    let mut engine = Engine::new(settings);
    engine.set_placement(Shard(0), Placement::even(2));
    for join in 0..1000 {
        // What it checks lives with its outputs, what it copies elsewhere.
        let text =
            format!("out{join}|<user>|<id> = check in|<user>|l{join}|<by> copy value|<by>|<id>");
        engine.join_add(&format!("j{join}"), &text, false).expect("a join");
    }
    for join in 0..1000 {
        let text = format!("sum|l{join}|<user> = sum out{join}|<user>|<id>");
        engine.join_add(&format!("s{join}"), &text, false).expect("a join");
    }
    assert_eq!(engine.join_depth(), 2);
    let compared = count(&engine, "joins_compared");
    assert!(compared < 40 * 2000, "{compared} joins are looked at to install two thousand");
    // Its keys are none that the others read, but they lie in a table that is read elsewhere as a whole.
    let circle = engine.join_add("c", "value|far|<by>|<id> = max sum|<id>|<by>", false);
    let told = circle.expect_err("a circle").to_string();
    assert!(told.contains("cannot read it of other shards"), "{told}");

    let compared = count(&engine, "joins_compared");
    for join in 0..1000 {
        engine.join_drop(&format!("j{join}")).expect("is installed");
    }
    assert_eq!(engine.join_depth(), 1);
    let compared = count(&engine, "joins_compared") - compared;
    assert!(compared < 40 * 1000, "{compared} joins are looked at to drop a thousand");
}

#[test]
fn a_flush_looks_at_each_join_once() {
    let mut settings = Settings::default();
    settings.limits.joins_max = 2000;
    let mut engine = Engine::new(settings);
    for wide in 0..30 {
        for deep in 0..60 {
            let text = format!("t{}|{wide}|<key> = copy t{deep}|{wide}|<key>", deep + 1);
            engine.join_add(&format!("j{wide}-{deep}"), &text, false).expect("a join");
        }
        set(&mut engine, &format!("t0|{wide}|x"), "v");
        assert_eq!(read(&mut engine, &format!("t60|{wide}")).0.len(), 1);
    }
    assert_eq!(engine.join_depth(), 60);
    let compared = count(&engine, "joins_compared");
    engine.flush();
    assert_eq!(count(&engine, "joins_compared") - compared, 0, "nothing is to be found out");
    engine.check_invariants();
    assert_eq!(read(&mut engine, "t60|7").0.len(), 0);
}

#[test]
fn joins_of_the_same_keys_cost_one_another_a_look() {
    let mut engine = Engine::new(Settings::default());
    let joins = 300;
    for join in 0..joins {
        let text = format!("out|<user>|<id> = copy value{join}|<user>|<id>");
        let installed = engine.join_add(&format!("j{join}"), &text, false).expect("a join");
        assert!(installed.warnings.len() < 12, "not one for each");
    }
    engine.check_invariants();
    // The pairs, looked at a few times each.
    let compared = count(&engine, "joins_compared");
    assert!(compared < 6 * joins * joins / 2, "{compared} joins are looked at to install {joins}");
    set(&mut engine, "value7|u|1", "seven");
    set(&mut engine, "value9|u|1", "nine");
    assert_eq!(read(&mut engine, "out").0, [(String::from("out|u|1"), String::from("nine"))]);
    for join in 9..joins {
        engine.join_drop(&format!("j{join}")).expect("is installed");
    }
    assert_eq!(read(&mut engine, "out").0, [(String::from("out|u|1"), String::from("seven"))]);
    engine.check_invariants();
}

/// Timelines of so many users who follow one, all computed, and reads that have slices of 100 rows.
fn followed(users: usize) -> Engine {
    let mut engine = Engine::new(Settings::default());
    let text = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    engine.join_add("timeline", text, false).expect("a join");
    set(&mut engine, "p|ann|001", "first");
    for user in 0..users {
        set(&mut engine, &format!("s|u{user:05}|ann"), "");
        assert_eq!(read(&mut engine, &format!("t|u{user:05}")).0.len(), 1);
    }
    engine.set_slice(Some(100));
    engine
}

#[test]
fn a_write_that_many_ranges_show_is_applied_in_slices_and_nobody_can_tell() {
    let mut engine = followed(2000);
    let posts = |engine: &mut Engine, user: usize| {
        let (pairs, _) = read(engine, &format!("t|u{user:05}"));
        pairs.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
    };
    let applied = count(&engine, "updates_applied");
    let updates = |engine: &Engine| count(engine, "updates_applied") - applied;
    set(&mut engine, "p|ann|002", "second");
    set(&mut engine, "p|ann|002", "changed");
    set(&mut engine, "p|ann|003", "third");
    assert!(engine.remove(b"p|ann|001").expect("a base key"));
    assert_eq!((updates(&engine), count(&engine, "fan_outs_noted")), (0, 4));
    assert_eq!(posts(&mut engine, 1500), ["changed", "third"]);
    assert_eq!(updates(&engine), 4, "a read applies what concerns it");
    for slice in 1..=10 {
        engine.go_on();
        assert!(updates(&engine) <= 4 + slice * 100);
        engine.check_invariants();
    }
    // Some have the first of the changes, most have none.
    assert!(engine.remove(b"s|u00300|ann").expect("a base key"));
    assert!(engine.remove(b"s|u01700|ann").expect("a base key"));
    for (user, expected) in [(10, 2), (300, 0), (1700, 0), (1999, 2)] {
        assert_eq!(posts(&mut engine, user).len(), expected, "user {user}");
    }
    while engine.goes_on() {
        engine.go_on();
    }
    engine.check_invariants();
    assert_eq!(updates(&engine), 4 * 2000, "each range is told once of each change");
    let all = read(&mut engine, "t").0;
    assert_eq!(all.len(), 1998 * 2);
    assert!(all.iter().all(|(_, value)| value == "changed" || value == "third"));
}

#[test]
fn large_fan_outs_end_before_joins_or_followers_see_their_outputs() {
    for follows in [false, true] {
        let mut engine = followed(500);
        set(&mut engine, "p|ann|002", "second");
        assert!(engine.goes_on());
        if follows {
            let all = headwater_base::KeyRange::prefix(b"t|");
            engine.follow(&all, headwater_engine::Follower(1)).expect("no source");
        } else {
            engine
                .join_add("size", "n|<user> = count t|<user>|<time>|<poster>", false)
                .expect("a join");
        }
        // What is followed is current; a join that is added finds all of it so.
        assert!(follows || !engine.goes_on());
        engine.check_invariants();
        assert_eq!(engine.take_notifications().len(), 0);
        assert_eq!(read(&mut engine, "t").0.len(), 1000);
    }
}

#[test]
fn ranges_that_go_are_forgotten_by_fan_outs() {
    let mut engine = followed(500);
    set(&mut engine, "p|ann|002", "second");
    engine
        .join_add(
            "timeline",
            "t|<user>|<time> = check s|<user>|<poster> copy p|<poster>|<time>",
            true,
        )
        .expect("a join");
    assert!(!engine.goes_on());
    assert_eq!(read(&mut engine, "t").0.len(), 1000);
    for user in 0..500 {
        read(&mut engine, &format!("t|u{user:05}"));
    }
    set(&mut engine, "p|ann|003", "third");
    engine.flush();
    assert_eq!(read(&mut engine, "t").0, []);
    // What is left is memory to be given back.
    while engine.goes_on() {
        engine.go_on();
    }
    assert_eq!(engine.stats().value_bytes, 0);
    engine.check_invariants();
    assert_eq!(read(&mut engine, "t").0, []);
}

#[test]
fn a_join_with_much_materialized_is_dropped_in_slices() {
    let mut engine = followed(2000);
    let mut slices = 0;
    loop {
        engine.begin_slice();
        let done = engine.join_drop_ahead("timeline");
        engine.end_slice();
        let Err(stop) = done else { break };
        let headwater_engine::Stop::Wait(ticket) = stop else { panic!("{stop:?}") };
        engine.forget_later(ticket);
        slices += 1;
        // The join is there until all is done, and what is read of it meanwhile is right.
        let (pairs, _) = read(&mut engine, &format!("t|u{:05}", slices * 7));
        assert_eq!(pairs.len(), 1);
        engine.check_invariants();
    }
    assert!((20..200).contains(&slices), "{slices} slices");
    assert!(engine.stats().status_ranges <= 100, "little is left for the last step");
    engine.join_drop("timeline").expect("a join");
    assert_eq!(read(&mut engine, "t").0, []);
}

#[test]
fn keys_that_expire_together_go_in_slices_and_nobody_sees_them() {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("sum", "sum|<a> = count v|<a>|<b>", false).expect("a join");
    let at = headwater_base::Millis(1000);
    let keep = Expiry::At(headwater_base::Millis(5000));
    for key in 0..5000 {
        let (plain, base) = (format!("k{key:04}"), format!("v|a|{key:04}"));
        let expiry = if key % 10 == 3 { keep } else { Expiry::At(at) };
        engine.set(plain.as_bytes(), b"x", expiry).expect("a base key");
        engine.set(base.as_bytes(), b"x", expiry).expect("a base key");
    }
    assert_eq!(read(&mut engine, "sum").0, [("sum|a".into(), "5000".into())]);
    engine.set_slice(Some(100));
    engine.advance(at);
    let expired = |engine: &Engine| engine.stats().expired;
    assert_eq!(expired(&engine), 100);
    assert!(engine.goes_on());
    // Who names a key does not see it; nor does who gives it a value keep anything of it.
    assert!(engine.get(b"k4990").expect("no source").is_none());
    assert!(!engine.remove(b"k4991").expect("a base key"));
    assert!(!engine.set_expiry(b"k4992", None).expect("a base key"));
    assert_eq!(engine.append(b"k4994", b"y").expect("a base key"), 1);
    engine.set(b"k4995", b"new", Expiry::Keep).expect("a base key");
    assert_eq!(engine.expiry(b"k4995").expect("no source"), Some(None));
    assert!(engine.get(b"k4993").expect("no source").is_some(), "its time has not come");
    assert_eq!(expired(&engine), 105);
    // What reads ranges, or what joins give, goes on when all are gone; others come in between.
    for by_range in [true, false] {
        let mut slices = 0;
        loop {
            engine.begin_slice();
            let done = if by_range {
                engine.range(b"k", b"l", RangeOptions::default(), &mut |_, _| {})
            } else {
                let found = engine.get(b"sum|a").map(|value| value.map(|value| value.to_vec()));
                found.map(|found| u64::from(found == Some(b"500".to_vec())))
            };
            engine.end_slice();
            match done {
                Ok(answer) => {
                    assert_eq!(answer, if by_range { 502 } else { 1 });
                    assert_eq!(expired(&engine), 9000);
                    assert_eq!(slices > 80, by_range);
                    break;
                }
                Err(headwater_engine::Stop::Wait(ticket)) => {
                    engine.forget_later(ticket);
                    engine.go_on();
                }
                Err(stop) => panic!("{stop:?}"),
            }
            slices += 1;
        }
    }
    engine.check_invariants();
    assert!(!engine.goes_on());
}

/// Begins to remove a range; the ticket under which the answer comes.
fn begin_removal(engine: &mut Engine, first: &[u8], last: &[u8]) -> headwater_engine::Ticket {
    engine.begin_slice();
    let begun = engine.remove_range(first, last);
    engine.end_slice();
    let Err(headwater_engine::Stop::Wait(ticket)) = begun else { panic!("{begun:?}") };
    assert!(engine.is_removing(ticket));
    ticket
}

/// The answer, once there is one; and how often it was asked for.
fn end_removal(engine: &mut Engine, mut ticket: headwater_engine::Ticket) -> (u64, usize) {
    for asked in 1.. {
        engine.go_on();
        engine.resume(ticket);
        engine.begin_slice();
        let ended = engine.remove_range(b"", b"");
        engine.end_slice();
        match ended {
            Ok(removed) => return (removed, asked),
            Err(headwater_engine::Stop::Wait(again)) => ticket = again,
            Err(stop) => panic!("{stop:?}"),
        }
    }
    unreachable!("it ends")
}

/// Plain keys and as many that a join counts, in slices of a hundred rows.
fn removable() -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("sum", "sum|<a> = count v|<a>|<b>", false).expect("a join");
    for key in 0..2000 {
        for text in [format!("k{key:04}"), format!("v|a|{key:04}")] {
            engine.set(text.as_bytes(), b"x", Expiry::Never).expect("a base key");
        }
    }
    assert_eq!(read(&mut engine, "sum").0, [("sum|a".into(), "2000".into())]);
    engine.set_slice(Some(100));
    engine
}

#[test]
fn a_range_goes_in_slices_and_nobody_sees_a_part_of_it() {
    let mut engine = removable();
    let before = engine.stats().keys;
    let ticket = begin_removal(&mut engine, b"k", b"l");
    assert_eq!(engine.stats().keys, before - 100);
    // Who names a key does not see it; what is written stays, and nothing of what was there.
    assert!(engine.get(b"k1990").expect("no source").is_none());
    assert!(!engine.remove(b"k1991").expect("a base key"));
    assert!(!engine.set_expiry(b"k1992", None).expect("a base key"));
    assert_eq!(engine.append(b"k1994", b"y").expect("a base key"), 1);
    engine.set(b"k1995", b"new", Expiry::Keep).expect("a base key");
    engine.set(b"k0001", b"new", Expiry::Never).expect("a base key");
    // Reads of joins and ranges that the removal does not concern do not wait for it.
    engine.begin_slice();
    assert!(engine.get(b"sum|a").expect("nothing to wait for").is_some());
    let other = engine.range(b"sum|", b"sum}", RangeOptions::default(), &mut |_, _| {});
    assert!(other.is_ok());
    let concerned = engine.range(b"k1", b"k2", RangeOptions::default(), &mut |_, _| {});
    assert!(concerned.is_err());
    engine.end_slice();
    let (removed, asked) = end_removal(&mut engine, ticket);
    assert_eq!(removed, 2000, "each key counts once");
    assert!((15..25).contains(&asked), "asked {asked} times");
    let mut left = Vec::new();
    let mut each = |key: &[u8], _: headwater_engine::Value<'_>| left.push(key.to_vec());
    engine.range(b"k", b"l", RangeOptions::default(), &mut each).expect("no source");
    assert_eq!(left, [b"k0001", b"k1994", b"k1995"]);
    engine.check_invariants();
}

#[test]
fn what_joins_derive_from_a_range_is_seen_when_all_of_it_is_gone() {
    let mut engine = removable();
    let ticket = begin_removal(&mut engine, b"v|", b"v}");
    let mut waits = 0;
    loop {
        engine.begin_slice();
        let seen = engine.get(b"sum|a").map(|value| value.map(|value| value.to_vec()));
        engine.end_slice();
        let Err(stop) = seen else {
            assert_eq!(seen, Ok(None));
            break;
        };
        let headwater_engine::Stop::Wait(ticket) = stop else { panic!("{stop:?}") };
        engine.forget_later(ticket);
        engine.go_on();
        waits += 1;
    }
    assert!(waits > 10, "it waited {waits} times");
    assert_eq!(end_removal(&mut engine, ticket).0, 2000);
    assert_eq!(engine.verify(&headwater_base::KeyRange::all(), 1).expect("no source"), []);
}

#[test]
fn a_removal_is_completed_though_nobody_waits_for_it() {
    let mut engine = removable();
    let ticket = begin_removal(&mut engine, b"k", b"l");
    engine.forget_ticket(ticket);
    assert!(!engine.is_removing(ticket));
    // Another one waits for it, and counts its own keys alone.
    engine.set(b"k1995", b"new", Expiry::Never).expect("a base key");
    engine.begin_slice();
    assert!(engine.remove_range(b"", b"l").is_err());
    engine.end_slice();
    while engine.goes_on() {
        engine.go_on();
    }
    assert_eq!(engine.remove_range(b"k", b"l"), Ok(1));
    engine.check_invariants();
}

#[test]
fn what_is_not_divided_completes_what_was_begun() {
    let mut engine = removable();
    engine.list_changes(true);
    let ticket = begin_removal(&mut engine, b"k", b"v|a|1000");
    // Who keeps copies of keys hears of all of them at once.
    let mut changed = headwater_engine::ChangedKeys::default();
    engine.take_changed(&mut changed);
    let keys: std::collections::BTreeSet<&[u8]> = changed.iter().collect();
    assert!(keys.len() >= 3000, "{} keys are told of", keys.len());
    // As within a transaction.
    assert_eq!(
        engine.get(b"sum|a").expect("no source").map(|it| it.to_vec()),
        Some(b"1000".to_vec())
    );
    assert_eq!(end_removal(&mut engine, ticket), (3000, 1));
    // Who follows outputs hears of them slice by slice, and of the last one before the answer.
    let followed = headwater_base::KeyRange::prefix(b"sum|");
    engine.follow(&followed, headwater_engine::Follower(1)).expect("no source");
    let ticket = begin_removal(&mut engine, b"v|", b"v|a|1900");
    engine.keep_followed();
    assert!(!engine.take_notifications().is_empty() && !engine.is_followed_current());
    assert_eq!(end_removal(&mut engine, ticket).0, 900);
    engine.keep_followed();
    assert!(!engine.take_notifications().is_empty() && engine.is_followed_current());
    // What flows look at goes at once.
    (0..1900).for_each(|key| set(&mut engine, &format!("v|a|{key:04}"), "x"));
    engine.note_table(b"v|", true);
    engine.begin_slice();
    assert_eq!(engine.remove_range(b"v|", b"v}"), Ok(2000));
    engine.end_slice();
}

#[test]
fn keys_stay_while_expiries_are_held_and_go_afterwards() {
    use headwater_base::Millis;
    let mut engine = Engine::new(Settings::default());
    engine.join_add("sum", "sum|<a> = count v|<a>|<b>", false).expect("a join");
    engine.join_add("old", "old|<b> = snapshot 1 copy v|a|<b>", false).expect("a join");
    engine.set(b"v|a|1", b"x", Expiry::At(Millis(1000))).expect("a base key");
    engine.set(b"v|a|2", b"x", Expiry::Never).expect("a base key");
    let sum = |engine: &mut Engine| read(engine, "sum").0[0].1.clone();
    let copies = |engine: &mut Engine| read(engine, "old").0.len();
    engine.advance(Millis(500));
    assert_eq!((&*sum(&mut engine), copies(&mut engine)), ("2", 2));
    engine.hold_expiries(true);
    assert_eq!(engine.next_deadline(), Some(Millis(1500)), "of the snapshot alone");
    engine.set(b"v|a|3", b"x", Expiry::Never).expect("a base key");
    engine.advance(Millis(2000));
    engine.go_on();
    assert_eq!((&*sum(&mut engine), engine.stats().expired), ("3", 0));
    assert_eq!(engine.expiry(b"v|a|1").expect("no source"), Some(Some(Millis(1000))));
    // Snapshots go on to be no older than they may be.
    assert_eq!(copies(&mut engine), 3);
    engine.hold_expiries(false);
    engine.advance(Millis(2001));
    assert_eq!((&*sum(&mut engine), engine.stats().expired), ("2", 1));
    assert!(engine.get(b"v|a|1").expect("no source").is_none());
    // Those whose time has come already are gone first: nobody sees them again.
    engine.set_slice(Some(10));
    for key in 0..100 {
        engine.set(format!("k{key:02}").as_bytes(), b"x", Expiry::At(Millis(3000))).expect("a key");
    }
    engine.advance(Millis(3000));
    engine.hold_expiries(true);
    assert!(engine.get(b"k99").expect("no source").is_none());
    engine.check_invariants();
}
