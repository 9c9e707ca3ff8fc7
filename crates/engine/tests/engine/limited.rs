//! Reads of a few keys of a large range compute little more than these.

use headwater_base::Millis;
use headwater_engine::{Engine, Expiry, RangeOptions, Settings, Stop, Ticket};

const FOLLOWEES: usize = 200;
const POSTS: usize = 250;

fn engine(joins: &[&str]) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.advance(Millis(1));
    for (at, text) in joins.iter().enumerate() {
        engine.join_add(&format!("j{at}"), text, false).expect("a join");
    }
    engine
}

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a write");
}

fn timeline(join: &str) -> Engine {
    let mut engine = engine(&[join]);
    for poster in 0..FOLLOWEES {
        set(&mut engine, &format!("s|ann|u{poster:03}"), "");
        for post in 0..POSTS {
            let time = post * 1000 + (poster * 7919) % 1000;
            set(&mut engine, &format!("p|u{poster:03}|{time:07}"), &format!("{}", post % 10));
        }
    }
    engine
}

fn page(engine: &mut Engine, first: &str, last: &str, limit: u64, reverse: bool) -> Vec<String> {
    let mut keys = Vec::new();
    let options = RangeOptions { reverse, limit: Some(limit) };
    engine
        .range(first.as_bytes(), last.as_bytes(), options, &mut |key, _| {
            keys.push(String::from_utf8_lossy(key).into_owned());
        })
        .expect("a read");
    keys
}

/// Rows of sources that were looked at.
fn rows_read(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(name, _)| *name == "rows_read").expect("a counter").1
}

/// Keys of the timelines that are stored.
fn materialized(engine: &Engine) -> u64 {
    let tables = engine.tables();
    tables.iter().find(|table| table.name == b"t").expect("a table").keys
}

/// Reads so many pages of Ann's, one after the other, from a table whose keys are otherwise those of `all`. Each computes little more
/// than it shows: at most so many keys of timelines are stored after the first, and after the others.
fn read_pages(
    engine: &mut Engine,
    table: &str,
    (all, reverse): (&[String], bool),
    pages: usize,
    (after_first, after_others): (u64, u64),
    rows_most: u64,
) {
    let (mut first, mut last) = (format!("{table}|ann|"), format!("{table}|ann}}"));
    for (number, expected) in (1..=pages).zip(all.chunks(20)) {
        let rows = rows_read(engine);
        let keys = page(engine, &first, &last, 20, reverse);
        let shown = keys.iter().map(|key| key.replacen(table, "t", 1));
        assert_eq!(shown.collect::<Vec<_>>(), expected, "page {number}");
        // A range that is read page by page grows by about what it holds.
        let most = if number == 1 { after_first } else { after_others };
        assert!(materialized(engine) <= most, "page {number}: {}", materialized(engine));
        let rows = rows_read(engine) - rows;
        assert!(rows < rows_most, "page {number} took {rows} rows");
        if reverse {
            last.clone_from(&keys[19]);
        } else {
            first = format!("{}\0", keys[19]);
        }
    }
}

#[test]
fn a_page_computes_a_page() {
    for reverse in [true, false] {
        let mut engine =
            timeline("t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>");
        let all = page(&mut timeline_all(), "t|ann|", "t|ann}", 1 << 20, reverse);
        read_pages(&mut engine, "t", (&all, reverse), 5, (200, 1000), 4000);
        // The first page again, and with a new post.
        set(&mut engine, if reverse { "p|u007|9999999" } else { "p|u007|-1" }, "new");
        let rows = rows_read(&engine);
        let keys = page(&mut engine, "t|ann|", "t|ann}", 20, reverse);
        assert!(keys[0].ends_with("|u007"), "{keys:?}");
        assert_eq!(rows_read(&engine), rows);
    }
}

fn timeline_all() -> Engine {
    timeline("t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>")
}

/// Joins over other joins' outputs, both for what is checked and for what is copied.
#[test]
fn a_page_of_what_comes_of_other_joins_computes_a_page() {
    const FOLLOWED: &str = "f|<user>|<poster> = copy s|<user>|<poster>";
    const PAGES: &str = "w|<user>|<time>|<poster> = copy t|<user>|<time>|<poster>";
    for (mode, reverse) in [("push", true), ("push", false), ("auto", true)] {
        let timeline_of_derived = format!(
            "t|<user>|<time>|<poster> = {mode} check f|<user>|<poster> copy p|<poster>|<time>"
        );
        let mut engine = timeline(FOLLOWED);
        for (name, text) in [("t", &*timeline_of_derived), ("w", PAGES)] {
            engine.join_add(name, text, false).expect("a join");
        }
        let all = page(&mut timeline_all(), "t|ann|", "t|ann}", 1 << 20, reverse);
        read_pages(&mut engine, "w", (&all, reverse), 3, (400, 2000), 4000);
        set(&mut engine, if reverse { "p|u007|9999999" } else { "p|u007|-1" }, "new");
        let keys = page(&mut engine, "w|ann|", "w|ann}", 20, reverse);
        assert!(keys[0].ends_with("|u007"), "{keys:?}");
        engine.check_invariants();
    }
}

/// The best of a timeline, at its first read and again when one of them has gone.
#[test]
fn what_is_kept_of_a_group_is_what_is_computed() {
    for (keep, reverse) in [("keep 20 desc", true), ("keep 20 asc", false)] {
        let mut engine = timeline(&format!(
            "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time> {keep}"
        ));
        let mut all = page(&mut timeline_all(), "t|ann|", "t|ann}", 1 << 20, reverse);
        let kept = |engine: &mut Engine| page(engine, "t|ann|", "t|ann}", 1 << 20, reverse);
        let rows = rows_read(&engine);
        assert_eq!(kept(&mut engine), all[..20]);
        let first = rows_read(&engine) - rows;
        assert!(first < 4000, "the first read took {first} rows");
        for at in [0, 19, 7] {
            let gone = all.remove(at);
            let (time, poster) =
                gone.strip_prefix("t|ann|").and_then(|rest| rest.split_once('|')).expect("a key");
            engine.remove(format!("p|{poster}|{time}").as_bytes()).expect("a removal");
            let rows = rows_read(&engine);
            assert_eq!(kept(&mut engine), all[..20]);
            let again = rows_read(&engine) - rows;
            assert!(again < 4000, "a read after a removal took {again} rows");
        }
        // What lies beyond is followed all the same: it may be among the best one day.
        let (end, begin) = if reverse { ("9999999", "-1") } else { ("-1", "9999999") };
        set(&mut engine, &format!("p|u000|{begin}"), "beyond");
        set(&mut engine, &format!("p|u000|{end}"), "best");
        let best = format!("t|ann|{end}|u000");
        assert_eq!(kept(&mut engine)[0], best);
        assert_eq!(kept(&mut engine)[1..], all[..19]);
        for poster in 1..FOLLOWEES {
            engine.remove(format!("s|ann|u{poster:03}").as_bytes()).expect("a removal");
        }
        for post in 0..POSTS - 1 {
            engine.remove(format!("p|u000|{:07}", post * 1000).as_bytes()).expect("a removal");
        }
        let left =
            [best, format!("t|ann|{:07}|u000", (POSTS - 1) * 1000), format!("t|ann|{begin}|u000")];
        assert_eq!(kept(&mut engine), left);
    }
}

#[test]
fn what_conditions_leave_out_is_looked_through() {
    let mut engine = timeline(
        "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time> where value = 7",
    );
    let keys = page(&mut engine, "t|ann|", "t|ann}", 20, true);
    assert_eq!(keys.len(), 20);
    assert!(materialized(&engine) <= 200, "{} keys", materialized(&engine));
    let all = page(&mut engine, "t|ann|", "t|ann}", 1 << 20, true);
    assert_eq!((all.len(), &all[..20]), (FOLLOWEES * POSTS / 10, &keys[..]));
}

/// Where hardly anything fulfils the conditions, all is looked through, in slices; the look at what to compute first is taken once.
#[test]
fn a_read_in_slices_goes_on_with_what_it_has_begun() {
    let mut engine = timeline(
        "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time> where value = 77",
    );
    let rows = rows_read(&engine);
    let SlicedPage { keys, slices, .. } = page_in_slices(&mut engine, "t|ann|", 20, false);
    assert_eq!(keys, [""; 0]);
    let rows = rows_read(&engine) - rows;
    assert!(slices > 50, "{slices} slices");
    let all = (FOLLOWEES * POSTS) as u64;
    assert!(rows < 6 * all, "{rows} rows in {slices} slices");
}

/// Outputs that many rows share, which a hint counts once for each that it saw.
#[test]
fn shared_outputs_are_found_in_parts() {
    let mut engine = engine(&["n|<b> = count v|<a>|<b>"]);
    for a in 0..50 {
        for b in 0..60 {
            set(&mut engine, &format!("v|{a:02}|{b:02}"), "");
        }
    }
    assert_eq!(page(&mut engine, "n|", "n}", 3, false), ["n|00", "n|01", "n|02"]);
    assert_eq!(page(&mut engine, "n|", "n}", 3, true), ["n|59", "n|58", "n|57"]);
    assert_eq!(page(&mut engine, "n|", "n}", 100, true).len(), 60);
}

/// A table that several joins give, whose keys lie one behind the other or between one another's.
#[test]
fn a_page_of_what_several_joins_give_computes_a_page() {
    const SIDE_BY_SIDE: [&str; 2] = ["t|<user>|a|<time>|<poster>", "t|<user>|b|<time>|<poster>"];
    const INTERLEAVED: [&str; 2] = ["t|<user>|<time>|<poster>|a", "t|<user>|<time>|<poster>|b"];
    for (outputs, mode) in [
        (SIDE_BY_SIDE, "push"),
        (INTERLEAVED, "push"),
        (INTERLEAVED, "auto"),
        (SIDE_BY_SIDE, "auto"),
    ] {
        let texts = outputs.map(|output| {
            format!("{output} = {mode} check s|<user>|<poster> copy p|<poster>|<time>")
        });
        let with_both = || {
            let mut engine = timeline(&texts[0]);
            engine.join_add("other", &texts[1], false).expect("a join");
            engine
        };
        for reverse in [false, true] {
            let all = page(&mut with_both(), "t|ann|", "t|ann}", 1 << 20, reverse);
            assert_eq!(all.len(), 2 * FOLLOWEES * POSTS);
            let mut engine = with_both();
            read_pages(&mut engine, "t", (&all, reverse), 5, (400, 2000), 16_000);
            engine.check_invariants();
            // What of one of them is there already is no reason to compute all of the other.
            let mut engine = timeline(&texts[0]);
            assert_eq!(
                page(&mut engine, "t|ann|", "t|ann}", 1 << 20, reverse).len(),
                FOLLOWEES * POSTS
            );
            engine.join_add("other", &texts[1], false).expect("a join");
            let rows = rows_read(&engine);
            assert_eq!(page(&mut engine, "t|ann|", "t|ann}", 20, reverse), all[..20]);
            let rows = rows_read(&engine) - rows;
            assert!(rows < 4000, "{texts:?}: a page took {rows} rows");
            engine.check_invariants();
        }
    }
}

/// One join of a table is computed for a read, the other kept: what is stored of the first, from when a key of it was read, is not what the read shows.
#[test]
fn a_page_beside_what_was_let_go_is_whole() {
    let mut engine = engine(&["t|<u>|<tm>|a|<p> = auto check s|<u>|<p> copy p|<p>|<tm>"]);
    for key in ["s|u|p1", "s|u|p2", "s|v|p1", "s|w|p1", "p|p1|01", "p|p2|02"] {
        set(&mut engine, key, "1");
    }
    let all = |engine: &mut Engine| page(engine, "t|u|", "t|u}", 1 << 20, false);
    for user in ["u", "v", "w", "v", "w", "u"] {
        page(&mut engine, &format!("t|{user}|"), &format!("t|{user}}}"), 1 << 20, false);
    }
    // So many changes that the range is let go; then one key of it is kept.
    for number in 0..400 {
        let key = format!("p|p2|5{number}");
        set(&mut engine, &key, "x");
        engine.remove(key.as_bytes()).expect("a removal");
    }
    for _ in 0..3 {
        engine.get(b"t|u|01|a|p1").expect("a read");
    }
    set(&mut engine, "q|u|01", "x");
    set(&mut engine, "q|u|09", "5");
    engine.join_add("other", "t|<u>|<tm>|b = sum q|<u>|<tm>", false).expect("a join");
    engine.remove(b"s|u|p1").expect("a removal");
    assert_eq!(page(&mut engine, "t|u|", "t|u}", 1, false), ["t|u|02|a|p2"]);
    assert_eq!(page(&mut engine, "t|u|", "t|u}", 1, true), ["t|u|09|b"]);
    assert_eq!(all(&mut engine), ["t|u|02|a|p2", "t|u|09|b"]);
    engine.check_invariants();
}

/// A page of a join over another one, of whose outputs many groups lack: each slice computes what fits into it, and looks no further.
#[test]
fn a_page_over_many_groups_of_another_join_goes_in_slices() {
    const USERS: usize = 300;
    const EACH: usize = 50;
    let mut engine = engine(&[
        "t|<u>|<tm>|<p> = check s|<u>|<p> copy p|<p>|<tm>",
        "o|<g>|<tm>|<p>|<u> = check m|<g>|<u> copy t|<u>|<tm>|<p>",
    ]);
    for user in 0..USERS {
        set(&mut engine, &format!("m|g|u{user:03}"), "");
        for poster in 0..EACH {
            set(&mut engine, &format!("s|u{user:03}|p{:03}", (user + poster) % USERS), "");
        }
    }
    for poster in 0..USERS {
        set(&mut engine, &format!("p|p{poster:03}|{:03}", poster * 7 % USERS), "");
    }
    let SlicedPage { keys, slices, most } = page_in_slices(&mut engine, "o|g|", 20, false);
    assert_eq!(keys.len(), 20);
    assert!(most < 4000, "{most} rows in one of {slices} slices");
}

/// How many rows of sources an operation may look at in one slice.
const SLICE: usize = 500;

/// A page that was read in slices.
struct SlicedPage {
    keys: Vec<String>,
    slices: u32,
    /// How many rows of sources one slice looked at, at most.
    most: u64,
}

/// The next slice of a read of all keys that begin with `prefix`: the keys, or the ticket under which the read goes on; and how many rows of
/// sources it looked at.
fn next_slice(
    engine: &mut Engine,
    ticket: Option<Ticket>,
    (prefix, options): (&str, RangeOptions),
) -> (Result<Vec<String>, Ticket>, u64) {
    if let Some(ticket) = ticket {
        engine.forget_later(ticket);
        engine.resume(ticket);
    }
    let (before, mut keys) = (rows_read(engine), Vec::new());
    let last = headwater_base::prefix_end(prefix.as_bytes());
    engine.begin_slice();
    let read = engine.range(prefix.as_bytes(), &last, options, &mut |key, _| {
        keys.push(String::from_utf8_lossy(key).into_owned());
    });
    engine.end_slice();
    let read = match read {
        Ok(_) => Ok(keys),
        Err(Stop::Wait(ticket)) => Err(ticket),
        Err(stop) => panic!("{stop:?}"),
    };
    (read, rows_read(engine) - before)
}

/// The first so many keys that begin with `prefix`, or the last ones, read in slices.
fn page_in_slices(engine: &mut Engine, prefix: &str, limit: u64, reverse: bool) -> SlicedPage {
    let options = RangeOptions { reverse, limit: Some(limit) };
    engine.set_slice(Some(SLICE));
    let (mut ticket, mut most) = (None, 0);
    for slices in 1..1000 {
        let (read, rows) = next_slice(engine, ticket.take(), (prefix, options));
        most = most.max(rows);
        match read {
            Ok(keys) => return SlicedPage { keys, slices, most },
            Err(waits) => ticket = Some(waits),
        }
        engine.go_on();
    }
    panic!("the read does not end");
}

/// The look for where a page ends takes no more of a slice than a computation does, however many rows it goes through.
#[test]
fn the_look_for_the_end_of_a_page_goes_in_slices() {
    // Of 250 posts of 200 posters one in ten is shown, the last of which are seen early, or are none.
    let cases = [
        ("t|<u>|<tm>|<p> = check s|<u>|<p> copy p|<p>|<tm>", 20, 20),
        ("t|<u>|<tm>|<p> = check s|<u>|<p> copy p|<p>|<tm> where value = 7", 20, 20),
        ("t|<u>|<tm>|<p> = check s|<u>|<p> copy p|<p>|<tm> where value = 11", 20, 0),
        ("t|<u>|<tm>|<p> = check s|<u>|<p> where value = '' copy p|<p>|<tm>", 20, 20),
        ("t|<u>|<p>|<tm> = check s|<u>|<p> copy p|<p>|<tm>", 20, 20),
        ("t|<u>|<x>|<tm>|<p> = check s|<u>|<p> copy p|<p>|<tm> as <x>", 20, 20),
    ];
    for (join, limit, shown) in cases {
        for reverse in [false, true] {
            let expected = page(&mut timeline(join), "t|ann|", "t|ann}", limit, reverse);
            let SlicedPage { keys, most, .. } =
                page_in_slices(&mut timeline(join), "t|ann|", limit, reverse);
            assert_eq!(keys, expected, "{join}");
            assert_eq!(keys.len(), shown, "{join}");
            // An execution that finds nothing tries further ranges.
            assert!(most <= 8 * SLICE as u64, "{most} rows in one slice of {join}");
        }
    }
}

/// Reads that look at the same time, each from where it ended: more of them than hints are remembered of one read.
#[test]
fn many_looks_go_on_beside_each_other() {
    let mut engine = engine(&["t|<u>|<tm>|<p> = check s|<u>|<p> copy p|<p>|<tm> where value = 11"]);
    for user in 0..100 {
        for poster in 0..40 {
            set(&mut engine, &format!("s|u{user:02}|p{poster:02}"), "");
        }
    }
    for poster in 0..40 {
        for time in 0..100 {
            set(&mut engine, &format!("p|p{poster:02}|{time:02}"), "1");
        }
    }
    engine.set_slice(Some(SLICE));
    let mut waiting: Vec<_> = (0..100).map(|user| (user, None)).collect();
    let options = RangeOptions { reverse: false, limit: Some(10) };
    let (mut rounds, mut most) = (0, 0);
    while !waiting.is_empty() {
        rounds += 1;
        assert!(rounds < 100, "reads that look beside each other come to an end");
        waiting.retain_mut(|(user, ticket)| {
            let prefix = format!("t|u{user:02}|");
            let (read, rows) = next_slice(&mut engine, ticket.take(), (&prefix, options));
            most = most.max(rows);
            match read {
                Ok(keys) => assert_eq!(keys, [""; 0]),
                Err(waits) => *ticket = Some(waits),
            }
            ticket.is_some()
        });
    }
    assert!(most <= 5 * SLICE as u64, "{most} rows in one slice");
}
