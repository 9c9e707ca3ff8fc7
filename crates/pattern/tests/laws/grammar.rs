//! The join grammar: what is accepted in which form, every refusal with its column and caret, and
//! that no text whatever is read wrongly.

use crate::random::Random;
use headwater_base::Limits;
use headwater_pattern::{Component, Join, Mode, Operator};

fn parse(text: &str) -> Join {
    Join::parse(text, &Limits::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn canonical(text: &str) -> String {
    parse(text).to_string()
}

fn refused(text: &str) -> String {
    match Join::parse(text, &Limits::default()) {
        Ok(join) => panic!("accepted: {join}"),
        Err(error) => error.to_string(),
    }
}

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

#[test]
fn both_spellings_give_one_join() {
    let bare = "t|user|time|poster = check s|user|poster copy p|poster|time";
    assert_eq!(parse(bare), parse(TIMELINE));
    assert_eq!(canonical(bare), TIMELINE);
    let paper = "t|user|time|poster =\n\tusing s|user|poster\r\n\tcopy p|poster|time\n";
    assert_eq!(canonical(paper), TIMELINE);
    assert_eq!(canonical("  karma|a=count vote|a|id|v  "), "karma|<a> = count vote|<a>|<id>|<v>");
    // A component of the output that no source binds is a literal.
    let rank = canonical("page|author|id|r = copy rank|author|id");
    assert_eq!(rank, "page|<author>|<id>|r = copy rank|<author>|<id>");
}

#[test]
fn what_a_join_holds() {
    let join =
        parse("page|<author>|<id:4>|r = snapshot 2.5 check live|<author> sum v|<id>|<author>|x");
    assert_eq!(join.slots, ["author", "id"]);
    assert_eq!(join.mode, Mode::Snapshot { millis: 2500 });
    assert_eq!(join.output.table, b"page");
    let author = Component::Slot { slot: 0, width: None };
    let id = Component::Slot { slot: 1, width: Some(4) };
    let literal = |text: &str| Component::Literal(text.into());
    assert_eq!(join.output.components, [author.clone(), id.clone(), literal("r")]);
    assert_eq!(join.sources[1].operator, Operator::Sum);
    // The width was given once; it counts everywhere.
    assert_eq!(join.sources[1].pattern.components, [id, author, literal("x")]);
    assert_eq!((join.value_source(), join.is_ambiguous()), (1, false));
}

#[test]
fn ambiguous_joins() {
    assert!(!parse(TIMELINE).is_ambiguous());
    assert!(parse("latest|<a> = copy p|<a>|<time>").is_ambiguous());
    assert!(parse("t|<a> = check s|<a>|<b> copy p|<a>").is_ambiguous());
    assert!(!parse("latest|<a> = last p|<a>|<time>").is_ambiguous());
}

#[test]
fn modes() {
    for (written, printed) in [
        ("", ""),
        ("push", ""),
        ("pull", " pull"),
        ("snapshot 5", " snapshot 5"),
        ("snapshot 5.000000", " snapshot 5"),
        ("snapshot 0.5", " snapshot 0.5"),
        ("snapshot 30.250", " snapshot 30.25"),
        ("snapshot 007.05", " snapshot 7.05"),
        ("snapshot 0.001", " snapshot 0.001"),
        ("snapshot 999999999999.999", " snapshot 999999999999.999"),
    ] {
        let expected = format!("a|<x> ={printed} copy b|<x>");
        assert_eq!(canonical(&format!("a|<x> = {written} copy b|<x>")), expected);
    }
    for wrong in
        ["0", "0.000", "-1", "+1", "1.", ".5", "0.0001", "1e3", "5s", "9999999999999", "copy"]
    {
        let error = refused(&format!("a|<x> = snapshot {wrong} copy b|<x>"));
        let message = format!(
            "column 18: `snapshot` needs a number of seconds, 0.001 or more, with at most 12 digits \
             before and 3 behind the point, found `{wrong}`"
        );
        assert_eq!(error.lines().next(), Some(message.as_str()));
    }
}

#[test]
fn an_error_shows_its_line_and_a_caret() {
    assert_eq!(
        refused("t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>"),
        "column 10: slot <time> at byte 10 is bound by no source\n\
         t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>\n         ^"
    );
    assert_eq!(
        refused("t|<user> =\n\tcheck s|<user>\n\tcopi p|<user>\n"),
        "column 29 of the text, line 3: unknown operator `copi`; operators are check (or using), copy, index, map:function, count, sum, min, \
         max, avg, first, last, distinct, distinct~ NUMBER, topk NUMBER, percentile PERCENT\n\tcopi p|<user>\n\t^"
    );
    assert_eq!(
        refused("t|<a> = check s|<a>\r\n\n\r\n copy <a").lines().next(),
        Some("column 31 of the text, line 4: a table name cannot be a slot")
    );
    // A byte counts for the column, a character for the caret.
    assert_eq!(
        refused("é|<ü> = copy p|<ü>|<"),
        "column 23: `<` without `>`\né|<ü> = copy p|<ü>|<\n                   ^"
    );
    // What is missing is missing behind the last word.
    assert_eq!(
        refused("t|<a> = copy  \n "),
        "column 13 of the text, line 1: expected a pattern after `copy`, found the end\nt|<a> = copy  \n            ^"
    );
}

/// Texts of one line of ASCII with one fault each, the line with its caret, and its message.
const REFUSALS: [(&str, &str, &str); 41] = [
    ("", "^", "expected an output pattern, then `=` and sources"),
    (" \n ", "^", "expected an output pattern, then `=` and sources"),
    ("= copy p|a", "^", "expected an output pattern, then `=` and sources"),
    ("t|<a>", "     ^", "expected `=` after the output, found the end"),
    ("t|<a> copy p|<a>", "      ^", "expected `=` after the output, found `copy`"),
    ("t | a = copy p|a", "  ^", "expected `=` after the output, found `|`"),
    ("t|<a> = copy p|<a> = copy q|<a>", "                   ^", "a join has only one `=`"),
    ("t|<a> = copy = p|<a>", "             ^", "expected a pattern after `copy`, found `=`"),
    (
        "t|<a> =",
        "       ^",
        "expected a source: an operator (check (or using), copy, index, map:function, count, sum, \
         min, max, avg, first, last, distinct, distinct~ NUMBER, topk NUMBER, percentile PERCENT), a pattern",
    ),
    (
        "t|<a> = check p|<a>",
        "                   ^",
        "no source gives the value: one source must \
         not be check, but one of copy, index, map:function, count, sum, min, max, avg, first, last, distinct, distinct~ NUMBER, topk NUMBER, percentile PERCENT",
    ),
    (
        "t|<a> = copy p|<a> min q|<a>",
        "                   ^",
        "two sources give the value: `copy` at \
         byte 9 and `min`; all but one must be check",
    ),
    (
        "t|<a> = pul copy p|<a>",
        "        ^",
        "`pul` is neither a mode nor an operator; modes are \
         push, auto, pull, snapshot SECONDS; operators are check (or using), copy, index, map:function, count, sum, min, max, \
         avg, first, last, distinct, distinct~ NUMBER, topk NUMBER, percentile PERCENT",
    ),
    ("t|<a> = push pull copy p|<a>", "             ^", "`pull` follows another mode"),
    (
        "t|<a> = copy p|<a> pull",
        "                   ^",
        "the mode `pull` belongs directly after \
         the `=`",
    ),
    (
        "t|<a> = copy p|<a> q|<a>",
        "                   ^",
        "expected an operator before `q|<a>`; \
         operators are check (or using), copy, index, map:function, count, sum, min, max, avg, first, last, distinct, distinct~ NUMBER, topk NUMBER, percentile PERCENT",
    ),
    (
        "t|<a> = copy p|<a>;",
        "                  ^",
        "a component is a literal or one <slot>, not \
         both",
    ),
    (
        "t|<a> = copy p|<a> ;",
        "                   ^",
        "unknown operator `;`; operators are check \
         (or using), copy, index, map:function, count, sum, min, max, avg, first, last, distinct, distinct~ NUMBER, topk NUMBER, percentile PERCENT",
    ),
    (
        "t|<a> = COPY p|<a>",
        "        ^",
        "`COPY` is neither a mode nor an operator; modes are push, \
         auto, pull, snapshot SECONDS; operators are check (or using), copy, index, map:function, count, sum, min, max, avg, \
         first, last, distinct, distinct~ NUMBER, topk NUMBER, percentile PERCENT",
    ),
    ("|<a> = copy p|<a>", "^", "the table name is empty"),
    ("t|<a> = copy |<a>", "             ^", "the table name is empty"),
    ("<t>|<a> = copy p|<a>", "^", "a table name cannot be a slot"),
    ("t||<a> = copy p|<a>", "  ^", "a component is empty"),
    ("t|<a>| = copy p|<a>", "      ^", "a component is empty"),
    ("t|<> = copy p|<a>", "  ^", "a slot needs a name"),
    ("t|<:3> = copy p|<a>", "  ^", "a slot needs a name"),
    ("t|<a = copy p|<a>", "  ^", "`<` without `>`"),
    ("t|<a|b> = copy p|<a>", "  ^", "`<` without `>`"),
    ("t|< a> = copy p|<a>", "  ^", "`<` without `>`"),
    ("t|a> = copy p|<a>", "   ^", "`>` without `<`"),
    ("t|a> = copy p|a", "   ^", "`>` without `<`"),
    ("t|<a<b>> = copy p|<a>", "    ^", "`<` within a slot"),
    ("t|x<a> = copy p|<a>", "   ^", "a component is a literal or one <slot>, not both"),
    ("t|<a><b> = copy p|<a>", "     ^", "a component is a literal or one <slot>, not both"),
    ("t|<a:0> = copy p|<a>", "     ^", "a slot's width is a number of bytes from 1, found `0`"),
    ("t|<a:> = copy p|<a>", "     ^", "a slot's width is a number of bytes from 1, found nothing"),
    ("t|<a:+3> = copy p|<a>", "     ^", "a slot's width is a number of bytes from 1, found `+3`"),
    ("t|<a:3:4> = copy p|<a>", "     ^", "a slot's width is a number of bytes from 1, found `3:4`"),
    ("t|<a:3> = copy p|<a:4>", "                 ^", "slot <a> has width 4 here and 3 at byte 3"),
    (
        "t|<a:2000> = copy p|<a>",
        "^",
        "a key of this pattern has at least 2002 bytes; keys have at \
         most 1024",
    ),
    (
        "t|<a> = copy p|<a>|<b:2000>",
        "             ^",
        "a key of this pattern has at least 2004 \
         bytes; keys have at most 1024",
    ),
    (
        "t|a = copy p|a:10",
        "              ^",
        "a slot's name has no `:`; write <name:width> for a \
         width",
    ),
];

#[test]
fn every_refusal_names_its_place() {
    for (text, caret, message) in REFUSALS {
        let error = refused(text);
        let mut lines = error.lines();
        let line = if text.contains('\n') { " of the text, line 1" } else { "" };
        let first = format!("column {}{line}: {message}", caret.len());
        assert_eq!(lines.next(), Some(first.as_str()));
        assert_eq!(lines.last(), Some(caret), "{error}");
    }
}

#[test]
fn limits() {
    let limits = Limits { slots_max: 3, sources_max: 2, ..Limits::default() };
    let message = |text: &str| {
        let error = Join::parse(text, &limits).unwrap_err();
        (error.column, error.message)
    };
    let slots = "a join has at most 3 slots".to_string();
    assert_eq!(message("t|<a> = copy p|<a>|<b>|<c>|<d>"), (28, slots.clone()));
    assert_eq!(message("t|a = copy p|a|b|c|d"), (20, slots));
    let sources = "a join has at most 2 sources".to_string();
    assert_eq!(message("t|<a> = check p|<a> check q|<a> copy r|<a>"), (33, sources));
    // No setting allows more slots than bindings hold.
    let many = |count: usize| {
        let slots: Vec<String> = (0..count).map(|at| format!("|<s{at}>")).collect();
        format!("t = count p{}", slots.concat())
    };
    let wide = Limits { slots_max: 1000, ..Limits::default() };
    assert!(Join::parse(&many(32), &wide).is_ok());
    let error = Join::parse(&many(33), &wide).unwrap_err();
    assert_eq!(error.message, "a join has at most 32 slots");
}

#[test]
fn an_error_is_short_though_the_text_is_long() {
    let text = format!("t|<a> = {} p|<a>", "x".repeat(1_000_000));
    assert!(refused(&text).len() < 600);
    let text = format!("t|<a> = copy p|<a>{}é|<", "|é".repeat(100_000));
    assert!(refused(&text).len() < 600);
}

const SEEDS: [&str; 6] = [
    TIMELINE,
    "t|user|time|poster = check s|user|poster copy p|poster|time",
    "karma|<author> = count vote|<author>|<id>|<voter>",
    "page|<author>|<id:8>|r = snapshot 0.5 copy rank|<author>|<id>",
    "a|<x:3>|lit = pull using b|<x> check c|lit|<x>|<y> sum d|<y:2>",
    "votes=count vote|a|b",
];

/// What was read, if it was, reads the same again; an error points into the text.
fn examine(text: &str) -> bool {
    match Join::parse(text, &Limits::default()) {
        Ok(join) => {
            let printed = join.to_string();
            let again = Join::parse(&printed, &Limits::default());
            assert_eq!(again.as_ref(), Ok(&join), "{text:?} printed as {printed:?}");
            assert_eq!(again.map(|join| join.to_string()), Ok(printed));
            let value = &join.sources[join.value_source()];
            assert_ne!(value.operator, Operator::Check);
            true
        }
        Err(error) => {
            assert!((1..=text.len() + 1).contains(&error.column), "{text:?}: {error}");
            assert!(text.is_char_boundary(error.column - 1), "{text:?}: {error}");
            let shown = error.to_string();
            let (above, caret) = shown.rsplit_once('\n').unwrap();
            let (_, line) = above.rsplit_once('\n').unwrap();
            let shown = line.chars().nth(caret.chars().count() - 1);
            let meant = text[error.column - 1..].chars().next();
            assert_eq!(shown, meant.filter(|meant| !"\n\r".contains(*meant)), "{text:?}: {error}");
            false
        }
    }
}

#[test]
fn changed_joins_are_read_rightly_or_refused() {
    const PIECES: [&str; 24] = [
        "|",
        "<",
        ">",
        "=",
        ":",
        " ",
        "\n",
        "\t",
        "<a>",
        "<a:2>",
        "check",
        "using",
        "copy",
        "count ",
        "pull ",
        "snapshot 1 ",
        "0",
        "x",
        "é",
        "\u{a0}",
        "\0",
        "|<user>",
        "|x",
        ".",
    ];
    let mut random = Random::new(9);
    let mut accepted = 0;
    for _ in 0..30_000 {
        let mut text: Vec<char> = SEEDS[random.below(SEEDS.len())].chars().collect();
        for _ in 0..1 + random.below(4) {
            let at = random.below(text.len() + 1);
            let to = (at + 1 + random.below(6)).min(text.len());
            let piece = PIECES[random.below(PIECES.len())].chars();
            match random.below(4) {
                0 => drop(text.drain(at..to)),
                1 => drop(text.splice(at..at, piece)),
                2 => drop(text.splice(at..to, piece)),
                _ => {
                    let copied = text[at..to].to_vec();
                    let place = random.below(text.len() + 1);
                    text.splice(place..place, copied);
                }
            }
        }
        accepted += usize::from(examine(&text.into_iter().collect::<String>()));
    }
    assert!((1_000..29_000).contains(&accepted), "the changes are too strong or weak: {accepted}");
}

#[test]
fn random_texts_are_refused_without_harm() {
    let mut random = Random::new(10);
    for _ in 0..20_000 {
        let len = random.below(60);
        let bytes: Vec<u8> = (0..len)
            .map(|_| match random.below(3) {
                0 => random.byte(b"|<>=: \nat3"),
                1 => random.below(128) as u8,
                _ => random.below(256) as u8,
            })
            .collect();
        examine(&String::from_utf8_lossy(&bytes));
    }
}
