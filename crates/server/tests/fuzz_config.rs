//! Mutated configuration files: a value, or an error that says where and what.
//!
//! Each round depends on its number alone: set `HEADWATER_FUZZ_FIRST` and `HEADWATER_FUZZ_ROUNDS` to run other or
//! more rounds.

use headwater_server::Config;

const EXAMPLE: &str = include_str!("../../../headwater.example.toml");

/// What the example has only in comments.
const LISTS: &str = r#"
[[source]]
name = "shop"
kind = "postgres"
url = "postgres://reader@127.0.0.1/shop"
[[function]]
name = "counter"
file = "counter.wasm"
export = "call"
[[table]]
name = "p"
boundary = 1
source = "shop"
table = "posts"
key = ["poster", "time"]
value = "tweet"
write-through = false
[[join]]
name = "timeline"
spec = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"
[[flow]]
name = "fan"
on = "p|<poster>|<time>"
publish = "channel"
operations = ["set", "del", "expire"]
workers = 4
backoff-milliseconds = [100, 60000]
"#;

/// What means something in a file of settings.
const WORDS: &[&str] = &[
    "\n",
    "\"",
    "'",
    "\"\"\"",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ",",
    ".",
    "#",
    "\\",
    "\\u",
    "\\U0010FFFF",
    "\\uD800",
    "\0",
    "-",
    "0x",
    "1e999",
    "-1",
    "9223372036854775808",
    "18446744073709551616",
    "nan",
    "inf",
    "true",
    "1979-05-27",
    "[listen]",
    "[[join]]",
    "[flows]",
    "port = 7379",
    "\"off\"",
    "\"auto\"",
    "\"64mb\"",
    "\"99999999999tb\"",
    "\"1.5gb\"",
    "\"200%\"",
    "log-level = ",
    "\"info,clients=debug\"",
    "bind = ",
    "[\"::1\"]",
    "é",
    "\u{feff}",
    "name = \"\"",
];

/// SplitMix64: small, and the same everywhere.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The settings of the example and the lists, without comments: they are what is to be mutated.
fn corpus() -> Vec<String> {
    let is_said = |line: &&str| !line.starts_with('#') && !line.is_empty();
    let example: Vec<&str> = EXAMPLE.lines().filter(is_said).collect();
    vec![example.join("\n") + "\n", LISTS.to_owned(), example.join("\n") + LISTS]
}

fn mutate(text: &mut Vec<char>, draws: &mut Draws) {
    let at = draws.below(text.len() + 1);
    let until = (at + draws.below(16)).min(text.len());
    let word = WORDS[draws.below(WORDS.len())];
    match draws.below(5) {
        0 => drop(text.drain(at..until)),
        1 => drop(text.splice(at..at, word.chars())),
        2 => drop(text.splice(at..until, word.chars())),
        3 => {
            // The value of a setting.
            let Some(equals) = text[at..].iter().position(|&c| c == '=') else { return };
            let first = at + equals + 1;
            let rest = text[first..].iter().position(|&c| c == '\n').unwrap_or(0);
            text.splice(first..first + rest, word.chars());
        }
        _ => {
            let copied = text[at..until].to_vec();
            text.splice(at..at, copied);
        }
    }
}

/// Whether the text is in order; where not, it must be said where.
fn check(text: &str) -> bool {
    match Config::parse(text) {
        Ok(config) => {
            // Settings that no single one of them can tell are wrong are named instead of a line.
            if let Err(error) = config.check() {
                let error = error.to_string();
                assert!(error.contains("(") || error.contains("bind"), "what is allowed? {error}");
                return false;
            }
            true
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("line "), "where? {error}");
            false
        }
    }
}

#[test]
fn mutated_files_give_settings_or_an_error_that_names_the_line() {
    let corpus = corpus();
    for text in &corpus {
        assert!(check(text), "the corpus is in order");
    }
    let first = setting("HEADWATER_FUZZ_FIRST", 0);
    let rounds = setting("HEADWATER_FUZZ_ROUNDS", 3000);
    let mut good = 0;
    for round in first..first + rounds {
        let mut draws = Draws(round);
        let mut text: Vec<char> = corpus[draws.below(corpus.len())].chars().collect();
        for _ in 0..1 + draws.below(3) {
            mutate(&mut text, &mut draws);
        }
        let text: String = text.into_iter().collect();
        let outcome = std::panic::catch_unwind(|| check(&text));
        assert!(outcome.is_ok(), "round {round}:\n{text}");
        good += u64::from(outcome.unwrap_or_default());
    }
    assert!(good > 0 && good < rounds, "some are in order, and some are not: {good} of {rounds}");
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headwater.toml");
    for bytes in [&b"[listen]\nport = 1\xff\n"[..], b"\xfe\xff\0[", &[0; 100]] {
        std::fs::write(&path, bytes).unwrap();
        let error = Config::read(&path).unwrap_err().to_string();
        assert!(error.contains("headwater.toml"), "{error}");
    }
}
