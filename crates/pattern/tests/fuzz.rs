//! Random and mutated texts through the reader of joins.
//!
//! What must hold for any text: no panic; a join that is read prints a canonical text, which reads
//! as an equal join; a refusal names a byte within the text, shows a caret, and is not much longer than its
//! message, whatever the text.
//!
//! The corpus in `tests/corpus/` is tried as it is, then mutated. Each round depends on its number
//! alone: set `HEADWATER_FUZZ_FIRST` and `HEADWATER_FUZZ_ROUNDS` to run other or more rounds. Texts
//! that once failed belong into the corpus.

use headwater_base::Limits;
use headwater_pattern::Join;

/// Longest refusal of any text: a message, a line cut around its mistake, and a caret.
const REFUSAL_BYTES_MAX: usize = 1000;

/// SplitMix64: small, and the same everywhere.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }

    fn one<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}

fn corpus() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let entries = std::fs::read_dir(folder).expect("the corpus folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).expect("a corpus file")).collect()
}

/// Words and signs that the language gives a meaning to.
const PIECES: &[&str] = &[
    "=",
    "|",
    "<",
    ">",
    ":",
    " ",
    "\n",
    "<a>",
    "<b:3>",
    "|<a>|",
    "check ",
    "using ",
    "copy ",
    "count ",
    "sum ",
    "min ",
    "max ",
    "avg ",
    "first ",
    "last ",
    "pull ",
    "push ",
    "snapshot 0.5 ",
    "ü",
];

/// Changes `text` at some places: pieces put in, characters left out, parts of others spliced in.
fn mutate(text: &mut String, corpus: &[String], draws: &mut Draws) {
    for _ in 0..1 + draws.below(2) {
        let mut chars: Vec<char> = text.chars().collect();
        let at = draws.below(chars.len() + 1);
        match draws.below(4) {
            0 => {
                let piece = draws.one(PIECES);
                chars.splice(at..at, piece.chars());
            }
            1 => {
                let end = (at + 1 + draws.below(5)).min(chars.len());
                chars.drain(at..end);
            }
            2 => {
                let drawn = char::from_u32(draws.below(0x300) as u32).unwrap_or(' ');
                chars.insert(at, drawn);
            }
            _ => {
                let other: Vec<char> = draws.one(corpus).chars().collect();
                chars.truncate(at);
                chars.extend(&other[draws.below(other.len() + 1)..]);
            }
        }
        *text = chars.into_iter().collect();
    }
}

/// Checks all laws for one text; whether it is a join.
fn check(text: &str) -> bool {
    match Join::parse(text, &Limits::default()) {
        Ok(join) => {
            let canonical = join.to_string();
            let again = Join::parse(&canonical, &Limits::default());
            assert_eq!(again.as_ref(), Ok(&join), "canonical: {canonical}");
            assert_eq!(again.map(|join| join.to_string()).as_ref(), Ok(&canonical));
            true
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.len() <= REFUSAL_BYTES_MAX, "{} bytes: {shown}", shown.len());
            assert!((1..=text.len() + 1).contains(&error.column), "{shown}");
            assert!(shown.ends_with('^'), "no caret: {shown}");
            false
        }
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn the_corpus_breaks_no_law() {
    let texts = corpus();
    let read = texts.iter().filter(|text| check(text)).count();
    assert!(read >= 10 && texts.len() - read >= 8, "{read} of {} are joins", texts.len());
}

#[test]
fn mutated_texts_break_no_law() {
    let corpus = corpus();
    let first = setting("HEADWATER_FUZZ_FIRST", 0);
    let rounds = setting("HEADWATER_FUZZ_ROUNDS", 20_000);
    let mut read = 0;
    for round in first..first + rounds {
        let mut draws = Draws(round);
        let mut text = draws.one(&corpus).clone();
        mutate(&mut text, &corpus, &mut draws);
        match std::panic::catch_unwind(|| check(&text)) {
            Ok(is_join) => read += u64::from(is_join),
            Err(_) => panic!("round {round}: {text:?}"),
        }
    }
    assert!((rounds / 20..rounds).contains(&read), "{read} of {rounds} texts are joins");
}
