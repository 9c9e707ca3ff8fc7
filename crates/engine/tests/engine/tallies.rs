//! What is told of joins that count values: how many are known, and what was left out.

use headwater_base::{KeyRange, Millis};
use headwater_engine::{Engine, Expiry, Settings};

fn engine(join: &str) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.advance(Millis(1));
    engine.join_add("j", join, false).expect("a join");
    engine
}

fn set(engine: &mut Engine, key: &str, value: &[u8]) {
    engine.set(key.as_bytes(), value, Expiry::Never).expect("a write");
}

fn get(engine: &mut Engine, key: &str) -> Option<String> {
    let mut found = None;
    let range = KeyRange::point(key.as_bytes());
    let options = headwater_engine::RangeOptions { reverse: false, limit: None };
    engine
        .range(&range.first, &range.last, options, &mut |_, value| {
            found = Some(String::from_utf8_lossy(&value.to_vec()).into_owned());
        })
        .expect("a read");
    found
}

/// What EXPLAIN says of the values of a key.
fn told(engine: &Engine, key: &str) -> String {
    let lines = engine.explain(&KeyRange::point(key.as_bytes()));
    let line = lines.into_iter().find(|line| line.title == "values");
    line.expect("a line about values").text
}

fn counted(engine: &Engine, name: &str) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(own, _)| *own == name).expect("a counter").1
}

fn values_known(engine: &Engine) -> u64 {
    let report = engine.join_report("j").expect("a join");
    report.counters.iter().find(|(name, _)| *name == "fold_values").expect("a counter").1
}

#[test]
fn an_explanation_says_how_many_values_are_known() {
    let mut engine = engine("d|<a> = distinct~ 2 x|<a>|<b>");
    for (key, value) in [("x|1|p", "tea"), ("x|1|q", "cup"), ("x|1|r", "cup")] {
        set(&mut engine, key, value.as_bytes());
    }
    assert_eq!(get(&mut engine, "d|1").as_deref(), Some("2"));
    assert!(told(&engine, "d|1").starts_with("2 different values are known"));
    assert_eq!(values_known(&engine), 2);
    set(&mut engine, "x|1|s", b"gift");
    assert_eq!(get(&mut engine, "d|1").as_deref(), Some("3"));
    assert!(told(&engine, "d|1").contains("an estimate"));
    assert_eq!(values_known(&engine), 0);
    // A value that stays elsewhere is taken out, too, by counting anew.
    engine.remove(b"x|1|r").expect("a removal");
    assert_eq!(get(&mut engine, "d|1").as_deref(), Some("3"));
    engine.remove(b"x|1|q").expect("a removal");
    assert_eq!(get(&mut engine, "d|1").as_deref(), Some("2"));
    assert!(told(&engine, "d|1").starts_with("2 different values are known"));
}

#[test]
fn what_cannot_be_counted_is_left_out_and_told() {
    let mut top = engine("d|<a> = topk 3 x|<a>|<b>");
    set(&mut top, "x|1|p", b"tea");
    set(&mut top, "x|1|q", b"\xff");
    set(&mut top, "x|1|r", &[b'a'; 1025]);
    set(&mut top, "x|1|s", &[b'b'; 1024]);
    let expected = format!("[[\"{}\",1],[\"tea\",1]]", "b".repeat(1024));
    assert_eq!(get(&mut top, "d|1"), Some(expected));
    assert_eq!(counted(&top, "values_unreadable"), 2);
    // Of what comes later as well; and an output all of whose values are left out is none.
    set(&mut top, "x|1|t", b"\xfe");
    assert_eq!(counted(&top, "values_unreadable"), 3);
    set(&mut top, "x|1|p", b"\xfe");
    set(&mut top, "x|1|s", b"\xfe");
    assert_eq!(get(&mut top, "d|1"), None);
    let mut share = engine("d|<a> = percentile 50 x|<a>|<b> as json(.n) <n> on <n>");
    set(&mut share, "x|1|p", br#"{"n": 1.50}"#);
    set(&mut share, "x|1|q", br#"{"n": "much"}"#);
    assert_eq!(get(&mut share, "d|1").as_deref(), Some("1.5"));
    assert_eq!(counted(&share, "values_not_numbers"), 1);
}

#[test]
fn an_explanation_names_values_that_are_left_out() {
    let long = vec![b'x'; 1025];
    let joins = [
        ("s|<a> = sum n|<a>|<b>", "sum", &["n|1|p", "n|1|r"][..]),
        ("s|<a> = max n|<a>|<b>", "max", &["n|1|p", "n|1|r"]),
        ("s|<a> = percentile 50 n|<a>|<b>", "percentile 50", &["n|1|p", "n|1|r"]),
        ("s|<a> = distinct n|<a>|<b>", "distinct", &["n|1|r"]),
        ("s|<a> = count n|<a>|<b>", "", &[]),
    ];
    for (join, operator, left_out) in joins {
        let mut engine = engine(join);
        for (key, value) in [("n|1|p", &b"abc"[..]), ("n|1|q", b"5"), ("n|1|r", &long)] {
            set(&mut engine, key, value);
        }
        let lines = engine.explain(&KeyRange::point(b"s|1"));
        let text = lines.into_iter().find(|line| line.title == "source").expect("a source").text;
        let told = text.split_once("of which ").map(|(_, told)| told);
        let expected = (!left_out.is_empty()).then(|| {
            let (counted, left_out) = (3 - left_out.len(), left_out.join(", "));
            format!("{counted} count; the value is nothing that {operator} takes at {left_out}")
        });
        match expected {
            Some(expected) => assert!(told.is_some_and(|it| it == expected), "{join}: {text}"),
            None => assert_eq!(told, None, "{join}: {text}"),
        }
    }
}

#[test]
fn what_very_many_values_were_known_of_goes_in_slices() {
    const VALUES: usize = 20_000;
    for operator in ["distinct", "topk 3", "percentile 50"] {
        let mut engine = Engine::new(Settings::default());
        engine.set_slice(Some(100));
        engine.join_add("j", &format!("d|<a> = {operator} v|<a>|<n>"), false).expect("a join");
        for number in 0..VALUES {
            let key = format!("v|x|{number:05}");
            engine
                .set(key.as_bytes(), number.to_string().as_bytes(), Expiry::Never)
                .expect("a base key");
        }
        assert!(engine.get(b"d|x").expect("no source").is_some());
        while engine.goes_on() {
            engine.go_on();
        }
        engine.begin_slice();
        engine.join_drop_ahead("j").expect("little is to be done ahead");
        engine.join_drop("j").expect("a join");
        engine.end_slice();
        let mut turns = 0;
        while engine.goes_on() {
            engine.go_on();
            turns += 1;
        }
        assert!(turns >= VALUES / 100, "{operator}: {turns} turns");
        engine.check_invariants();
    }
}
