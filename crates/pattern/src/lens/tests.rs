//! What lenses make of values, and how their texts are read.

use crate::lens::Look;
use crate::{Bindings, Join};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_base::Limits;

fn join(text: &str) -> Join {
    Join::parse(text, &Limits::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(text: &str) -> String {
    match Join::parse(text, &Limits::default()) {
        Ok(join) => panic!("{join} is taken"),
        Err(error) => format!("{}: {}", error.column, error.message),
    }
}

/// What the first source of a join gives: the output key, or nothing.
fn output(join: &Join, key: &str, value: &str) -> Option<String> {
    let source = &join.sources[0];
    let mut row = b"before".to_vec();
    if source.look(key.as_bytes(), value.as_bytes(), &mut row) != Look::Row {
        assert_eq!(row, b"before");
        return None;
    }
    assert_eq!(source.key_of(&row[6..]), key.as_bytes());
    let (mut bindings, mut out) = (Bindings::new(), Vec::new());
    assert!(source.bind(&row[6..], &mut bindings) && join.output.fill(&bindings, &mut out));
    Some(String::from_utf8_lossy(&out).into_owned())
}

#[test]
fn texts_come_back() {
    for text in [
        "top|<board>|<score:number:desc>|<id> = index score|<board>|<id> as <score>",
        "city|<city>|<user> = copy user|<user> as json(.address.city) <city>",
        "x|<a:text>|<b:time:desc>|<k> = pull check u|<k> as json(.a[0].\"x y\") <a> copy v|<k> as <b>",
        "unread|<user> = count inbox|<user>|<id> where json(.read) = false",
        "n|<u> = sum v|<u>|<i> where not (value < 10 or <i> in ('a', 'it''s', 7)) and json(.) exists",
        "n|<u> = snapshot 1 sum v|<u>|<i> where not value prefix 'a' and (value >= -1.5 or value != 'x')",
        "n|<u> = count v|<u>|<i> as json(.k) <w> where value <= 5 check z|<w>",
        "first|<c:2>|<u> = first user|<u> as <c>",
    ] {
        let read = join(text);
        assert_eq!(read.to_string(), text);
        assert_eq!(join(&read.to_string()), read);
    }
    let long = "t|<x>=index s|<x> where value='a'and(json( .a [2] )exists or value>5)";
    let canonical = "t|<x> = index s|<x> where value = 'a' and (json(.a[2]) exists or value > 5)";
    assert_eq!(join(long).to_string(), canonical);
    let asc = join("t|<v:number:asc>|<x> = copy s|<x> as <v> where value = \"a \"\"b\"\"\"");
    assert_eq!(asc.to_string(), "t|<v:number>|<x> = copy s|<x> as <v> where value = 'a \"b\"'");
}

#[test]
fn errors_name_what_is_wrong() {
    let mut wrong = Vec::new();
    for (text, error) in [
        ("t|x = copy s|x as v", "16: `as` needs the style in which slots are written <slot>"),
        ("t|<v>|<x> = copy s|<x> as v", "27: expected a <slot> for what the value binds"),
        ("t|<v>|<x> = copy s|<x> as <v:number>", "29: a slot's type and width stand in the output"),
        ("t|<v:num>|<x> = copy s|<x> as <v>", "6: behind a slot's name stands its width"),
        ("t|<v:number:down>|<x> = copy s|<x> as <v>", "13: an order is asc or desc"),
        ("t|<v>|<x:number> = copy s|<x> as <v>", "7: <x> is a part of a source's key"),
        ("t|<x> = copy s|<x:number>", "16: a slot's kind and order stand in the output"),
        ("t|<x> = copy s|<x> as <x>", "23: <x> is bound by this source already"),
        ("t|<x>|<v> = copy s|<x>", "7: slot <v> at byte 7 is bound by no source"),
        ("t:<x> = copy s|<x>", "2: components of a key are separated by `|`, not by `:`"),
        ("t|<x>:<y> = copy s|<x>|<y>", "6: components of a key are separated by `|`"),
        ("t:user = copy s:user", "2: components of a key are separated by `|`"),
        (
            "t|<poser> = copy s|<poster>",
            "3: slot <poser> at byte 3 is bound by no source; did you mean <poster>?",
        ),
        ("t|<x> = copy s|<x> where", "25: a condition begins with `value`"),
        ("t|<x> = copy s|<x> where value", "31: expected a comparison"),
        ("t|<x> = copy s|<x> where value = abc", "34: expected a text in quotes, a number"),
        ("t|<x> = copy s|<x> where value = 'abc", "34: the text that begins here has no end"),
        ("t|<x> = copy s|<x> where value > true", "38: true and false have no order"),
        ("t|<x> = copy s|<x> where (value = 1", "36: expected `and`, `or`, or the `)`"),
        ("t|<x> = copy s|<x> where value in (1, 2", "40: expected a `,` and another value"),
        ("t|<x> = copy s|<x> where value in 1", "35: `in` needs values in parentheses"),
        ("t|<x> = copy s|<x> where json(a) = 1", "31: a path into JSON is .name"),
        ("t|<x> = copy s|<x> where json(.) = 1 as <v>", "38: `as` stands before `where`"),
        ("t|<x> = check y|<y> copy s|<x> where <y> = 1", "38: <y> is no slot of this source's"),
        ("t|<x> = copy s|<x> where value = 1 where value = 2", "36: a source has one `where`"),
        ("t|<x> = copy s|<x> where value = 1 or", "38: a condition begins with"),
        ("t|<x> = copy s|<x> where value = 12ab", "34: expected a text in quotes, a number"),
    ] {
        let refusal = refusal(text);
        if !refusal.starts_with(error) {
            wrong.push(format!("{text}\n{refusal}\n{error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let nested = format!("t|<x> = copy s|<x> where {}value = 1", "not ".repeat(40));
    assert!(refusal(&nested).contains("more than 32 deep"));
    let many = format!("t|<x> = copy s|<x> where value in (1{})", ", 1".repeat(300));
    assert!(refusal(&many).contains("at most 256 conditions"));
}

#[test]
fn values_bind_slots() {
    let top = join("top|<v:number:desc>|<x> = index s|<x> as <v>");
    assert_eq!(output(&top, "s|bob", "42").as_deref(), Some("top|-T57~|bob"));
    assert_eq!(output(&top, "s|bob", "x"), None);
    let city = join("city|<c>|<x> = copy s|<x> as json(.a.city) <c>");
    let of = |value: &str| output(&city, "s|bob", value);
    assert_eq!(of(r#"{"a": {"city": "New Yörk"}, "z": 1}"#).as_deref(), Some("city|New Yörk|bob"));
    assert_eq!(of(r#"{"a": {"city": 1.50}}"#).as_deref(), Some("city|1.5|bob"));
    assert_eq!(of(r#"{"a": {"city": 2e2}}"#).as_deref(), Some("city|200|bob"));
    assert_eq!(of(r#"{"a": {"city": true}}"#).as_deref(), Some("city|true|bob"));
    for none in [
        r#"{"a": {"city": null}}"#,
        r#"{"a": {"city": []}}"#,
        r#"{"a": {"city": ""}}"#,
        r#"{"a": {"city": "a|b"}}"#,
        r#"{"a": "city"}"#,
        r#"{"a": {"city": "x"}"#,
        r#"{"a": {"city": "x"}} y"#,
        r#"{"a": {"city": 1e99999}}"#,
        "",
        "\u{0}",
    ] {
        assert_eq!(of(none), None, "{none}");
    }
    assert_eq!(of(&format!(r#"{{"a":{{"city":"{}"}}}}"#, "x".repeat(1025))), None);
    let element = join("e|<c:3>|<x> = copy s|<x> as json([1].k) <c>");
    let of = |value| output(&element, "s|b", value);
    assert_eq!(of(r#"[0,{"k":"abc"},2]"#).as_deref(), Some("e|abc|b"));
    assert_eq!((of(r#"[0,{"k":"ab"},2]"#), of("[0]"), of("7")), (None, None, None));
}

#[test]
fn conditions_have_three_values() {
    let value =
        r#"{"paid": true, "n": 10, "text": "abc", "digits": "10", "none": null, "list": [1, "x"]}"#;
    for (condition, counts) in [
        ("json(.paid) = true", true),
        ("json(.paid) != true", false),
        ("json(.n) >= 10", true),
        ("json(.n) < 10", false),
        ("json(.n) = '10'", false),
        ("not json(.n) = '10'", false),
        ("json(.digits) = 10", false),
        ("json(.digits) = '10'", true),
        ("json(.text) > 'abb' and json(.text) prefix 'ab'", true),
        ("json(.missing) = 1", false),
        ("not json(.missing) = 1", false),
        ("json(.missing) = 1 or json(.n) = 10", true),
        ("json(.missing) = 1 and json(.n) = 10", false),
        ("not (json(.missing) = 1 and json(.n) = 11)", true),
        ("json(.missing) exists", false),
        ("not json(.missing) exists", true),
        ("json(.none) exists", false),
        ("json(.list) exists", true),
        ("json(.list) = 1", false),
        ("json(.list[1]) = 'x'", true),
        ("json(.n) in (1, 'x', 10)", true),
        ("json(.n) in (1, 2)", false),
        ("not json(.n) in (1, 2)", true),
        ("not json(.n) in (1, 'x')", false),
        ("<x> = 'bob' and <x> prefix 'b'", true),
        ("<x> > 'bob'", false),
        ("<i> >= 7 and <i> < 7.5", true),
        ("<i> = '7'", false),
        ("value prefix '{'", true),
        ("value = 5", false),
        ("not value = 5", false),
    ] {
        let counted = join(&format!("t|<x> = count s|<x>|<i> where {condition}"));
        assert_eq!(output(&counted, "s|bob|07", value).is_some(), counts, "{condition}");
    }
    let number = join("t|<x> = count s|<x> where value >= 100");
    for (value, counts) in [("100", true), ("99.9", false), ("abc", false), ("", false)] {
        assert_eq!(output(&number, "s|x", value).is_some(), counts, "{value}");
    }
}

#[test]
fn rows_are_bound_with_what_is_known() {
    let join = join("t|<v>|<x> = copy s|<x> as <v>");
    let source = &join.sources[0];
    let mut row = Vec::new();
    assert_eq!(source.look(b"s|bob", b"paris", &mut row), Look::Row);
    assert_eq!(source.look(b"s|bob", b"", &mut Vec::new()), Look::Unreadable);
    for (known, binds) in [(&b"paris"[..], true), (b"pari", false), (b"rome", false)] {
        let mut bindings = Bindings::new();
        let slot = join.slots.iter().position(|name| name == "v").expect("a slot");
        bindings.set(slot, known);
        assert_eq!(source.bind(&row, &mut bindings), binds);
        assert_eq!(bindings.iter().count(), if binds { 2 } else { 1 });
    }
}

#[test]
fn names_that_occur_once_and_resemble_others_are_told() {
    let misspelt = |text: &str| -> Vec<String> {
        join(text).likely_misspelt().iter().map(|(one, other)| format!("{one} {other}")).collect()
    };
    let timeline = "t|<user>|<time>|<poster> = check s|<user>|<poser> copy p|<poster>|<time>";
    assert_eq!(misspelt(timeline), ["poser poster"]);
    assert_eq!(misspelt("t|<user>|<id> = check s|<user>|<sued> copy p|<id>|<uesr>"), ["uesr user"]);
    assert!(misspelt("n|<a> = count s|<a>|<b>|<c1>|<c2>").is_empty());
    for text in
        ["total:posts = count p|author|id", "app:users|x = copy app:raw|x", "k:1 = copy k|2"]
    {
        join(text);
    }
}

#[test]
fn what_nothing_can_fulfil_is_found() {
    let is_in_vain = |conditions: &str| {
        let join = join(&format!("x|<u> = copy y|<u>|<w:3> where {conditions}"));
        let source = &join.sources[0];
        let filter = source.lens.as_ref().and_then(|lens| lens.filter.as_ref());
        filter.expect("a filter").is_contradiction(&source.pattern)
    };
    for conditions in [
        "<u> = 'a' and <u> = 'b'",
        "<u> = ''",
        "<u> = 'a|b'",
        "<u> in ('a|b', '')",
        "<u> prefix 'a|'",
        "<u> = 'b' and <u> prefix 'a'",
        "<u> prefix 'ab' and <u> prefix 'ba'",
        "value > 5 and value < 3",
        "value > 5 and value <= 5",
        "value = 5 and value != 5.0",
        "value in (1, 2) and value in (3, 4)",
        "value = '5' and value > 7",
        "value = true and value = false",
        "json(.a) = 'x' and json(.a) > 5",
        "json(.a) prefix 'x' and json(.a) != 5",
        "json(.a) = 1 and (json(.b) > 'b' and json(.b) < 'a')",
        "(value > 5 and value < 3) or <u> = ''",
        "value > 1 and (<u> = '' or (value > 5 and value < 3))",
        "value = 5 and value = 'abc'",
        "value in ('abc', 'x') and value = 5",
        "<w> = 'four'",
        "<w> in ('four', 'fiver', 'a')",
        "<w> prefix 'four'",
        "not value exists",
        "not <u> exists",
        "json(.a) exists and not json(.a) exists",
        "json(.a) = 5 and not json(.a) exists",
        "json(.a.b) exists and not json(.a) exists",
        "json(.a) = 5 and json(.a.b) = 1",
        "json(.a[0]) prefix 'x' and json(.a[0].b) exists",
        "json() = 5 and json(.a) exists",
        "json(.a.b) exists and json(.a[0]) exists",
    ] {
        assert!(is_in_vain(conditions), "{conditions}");
    }
    for conditions in [
        "<u> = 'a' or <u> = 'b'",
        "<u> = 'ab' and <u> prefix 'a'",
        "<u> prefix 'a' and <u> prefix 'ab'",
        "value > 5 and value < 6",
        "value >= 5 and value <= 5",
        "value = 5 and value = '5.0'",
        "value = 5 and value prefix '5'",
        "value > '5' and value < 3",
        "value in (1, 2) and value in (2, 3)",
        "json(.a) = 1 and json(.b) = 'x'",
        "json(.a) exists and json(.a) > 5",
        "not (value > 5 and value < 3)",
        "value = ''",
        "value = 'a|b' or value prefix 'a|'",
        "<u> in ('a|b', 'a')",
        "<u> != 'a|b'",
        "(value > 5 and value < 3) or <u> = 'a'",
        "value = 5 and value in ('5', 'abc')",
        "<w> in ('four', 'fou')",
        "<w> = 4 and <w> prefix 'fou'",
        "value exists and <u> exists",
        "not json(.a) exists and not json(.b) exists",
        "not json(.a.b) exists and json(.a) exists",
        "not json(.a.b) exists and json(.a) = 5",
        "not (not json(.a) exists) and json(.a) exists",
        "json(.a) exists and json(.a.b) = 1",
        "json(.a.b) = 5 and json(.a.c) = 1",
        "json(.a[0]) = 5 and json(.a[1]) = 1",
        "json(.a) = 5 and json(.ab.c) = 1",
    ] {
        assert!(!is_in_vain(conditions), "{conditions}");
    }
}
