//! `cargo run --release -p headwater-engine --example pages -- [--articles 20000] [--sessions 100000] [--seed 7]`
//!
//! Where the bytes of a Newp go (pages of a news site, made by four interleaved joins; `headwater bench newp`): bytes of each
//! part for each article, on one engine, without a server around it: as the site is loaded, as all pages have been read, and
//! as visitors have voted and commented.

use core::fmt::Arguments;
use core::fmt::Write as _;
use headwater_engine::{Engine, Expiry, RangeOptions, Settings, Stats, TableOptions};
use headwater_workload::newp::{BOUNDARIES, INTERLEAVED, KARMA};
use headwater_workload::{Rng, TweetLengths};
use std::io::{Write as _, stdout};

/// An engine, its site, and room for the keys of the next operation.
struct MeasuredSite {
    engine: Engine,
    authors: Vec<u64>,
    comments: u64,
    first: String,
    last: String,
}

impl MeasuredSite {
    fn new(articles: usize, rng: &mut Rng) -> Self {
        let mut engine = Engine::new(Settings::default());
        for (table, boundary) in BOUNDARIES {
            let options = TableOptions { boundary: Some(boundary), ..TableOptions::default() };
            engine.table_set(table.as_bytes(), &options).expect("a table");
        }
        for [name, text] in core::iter::once(KARMA).chain(INTERLEAVED) {
            engine.join_add(name, text, false).expect("a join");
        }
        let authors = (0..articles).map(|_| rng.below(articles as u64 / 2)).collect();
        Self { engine, authors, comments: 0, first: String::new(), last: String::new() }
    }

    fn set(&mut self, key: Arguments<'_>, value: &[u8]) {
        self.first.clear();
        let _ = self.first.write_fmt(key);
        self.engine.set(self.first.as_bytes(), value, Expiry::Never).expect("a base key");
    }

    /// A user, of whom there are half as many as articles.
    fn user(&self, rng: &mut Rng) -> u64 {
        rng.below(self.authors.len() as u64 / 2)
    }

    fn vote(&mut self, article: usize, rng: &mut Rng) {
        let (author, voter) = (self.authors[article], self.user(rng));
        self.set(format_args!("vote|u{author:07}|{article:08}|u{voter:07}"), b"1");
    }

    fn comment(&mut self, article: usize, text: &[u8], rng: &mut Rng) {
        let (author, by, number) = (self.authors[article], self.user(rng), self.comments);
        self.comments += 1;
        self.set(format_args!("comment|u{author:07}|{article:08}|{number:08}|u{by:07}"), text);
    }

    /// How many keys a page has.
    fn page(&mut self, article: usize) -> u64 {
        self.first.clear();
        self.last.clear();
        let author = self.authors[article];
        let _ = write!(self.first, "page|u{author:07}|{article:08}|");
        let _ = write!(self.last, "page|u{author:07}|{article:08}}}");
        let (first, last) = (self.first.as_bytes(), self.last.as_bytes());
        self.engine.range(first, last, RangeOptions::default(), &mut |_, _| {}).expect("no source")
    }

    /// Prints how many bytes each part has for an article.
    fn report(&self, when: &str) {
        let Stats {
            value_bytes,
            key_bytes,
            index_bytes,
            updater_bytes,
            status_range_bytes,
            keys,
            groups,
            updaters,
            updater_targets,
            status_ranges,
            ..
        } = self.engine.stats();
        let parts = [
            ("values", value_bytes),
            ("index, with key bytes", index_bytes),
            ("of which key bytes", key_bytes),
            ("updaters", updater_bytes),
            ("status ranges", status_range_bytes),
            ("resident, all", resident()),
        ];
        let count = self.authors.len() as f64;
        let mut out = stdout();
        let _ = writeln!(
            out,
            "{when}: {keys} keys in {groups} groups, {status_ranges} status ranges, \
             {updaters} updaters with {updater_targets} targets; bytes for each article:"
        );
        for (part, bytes) in parts {
            let _ = writeln!(out, "  {part:<24} {:>8.0}", bytes as f64 / count);
        }
    }
}

/// Bytes that the system has given to this process.
fn resident() -> u64 {
    let told = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    told.split(' ').nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: u64| pages * 4096)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, otherwise: u64| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let articles = number("--articles", 20_000) as usize;
    let sessions = number("--sessions", 100_000);
    let mut rng = Rng::new(number("--seed", 7));
    let lengths = TweetLengths::real();
    let texts: Vec<String> = (0..256).map(|_| lengths.text(&mut rng)).collect();
    let mut site = MeasuredSite::new(articles, &mut rng);
    for article in 0..articles {
        let author = site.authors[article];
        site.set(format_args!("article|u{author:07}|{article:08}"), &[b'x'; 512]);
    }
    for _ in 0..20 * articles {
        site.vote(rng.index(articles), &mut rng);
    }
    for number in 0..10 * articles {
        let text = texts[number % texts.len()].as_bytes();
        site.comment(rng.index(articles), text, &mut rng);
    }
    site.report("loaded");
    let shown: u64 = (0..articles).map(|article| site.page(article)).sum();
    assert!(shown > 20 * articles as u64, "pages show comments and karma");
    site.report("read");
    for _ in 0..sessions {
        let article = rng.index(articles);
        site.page(article);
        if rng.below(100) < 10 {
            site.vote(article, &mut rng);
        }
        if rng.below(100) < 1 {
            site.comment(article, b"a comment of some length", &mut rng);
        }
    }
    site.report("visited");
}
