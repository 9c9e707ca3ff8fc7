//! What keys, joins and ranges a simulation is about: a small site, or anything.

use headwater_base::KeyRange;
use headwater_model::generate::{KEPT_FROM, LENSED_FROM, TALLIED_FROM, World as AnyWorld};
use headwater_model::join::{Join, Operator, Part, Pattern};
use headwater_model::oracle::Installed;
use headwater_model::rng::Rng;

/// Views over one group, over many, of other joins, of several layers.
const SITE: [&str; 16] = [
    "t|<u>|<c>|<p> = check s|<u>|<p> copy p|<p>|<c>",
    "t|<u>|<c>|<p> = copy m|<u>|<c>|<p>",
    "k|<p> = count p|<p>|<c>",
    "f|<p> = count s|<u>|<p>",
    "top|<u>|<p> = check s|<u>|<p> copy f|<p>",
    "w|<c> = sum p|<p>|<c>",
    "r|<p>|<u> = copy s|<u>|<p>",
    "g|all|<p> = copy k|<p>",
    "x|<u> = max p|<p>|<c> check s|<u>|<p>",
    "l|<p> = last p|<p>|<c>",
    "q|<u>|<c>|<p> = pull check s|<u>|<p> copy p|<p>|<c>",
    "total = count p|<p>|<c>",
    "y|<u>|<n> = check top|<u>|<p> copy g|all|<p> check r|<p>|<n>",
    "z|<c>|<p> = check t|<u>|<c>|<p> copy l|<p>",
    "h|<p> = snapshot 1.5 count s|<u>|<p>",
    "v|<u>|<c>|<p> = pull copy q|<u>|<c>|<p>",
];
/// Views that look at values, which are numbers that rise with each write.
const LENSED: [&str; 8] = [
    "b|<p>|<n:number:desc>|<c> = index p|<p>|<c> as <n>",
    "e|<p>|<c> = copy p|<p>|<c> where value prefix '1' or value prefix '2'",
    "i|<n>|<u> = check s|<u>|<p> as <n> copy p|<p>|<c>",
    "j|<p> = count p|<p>|<c> where not (value >= 100 and value < 200)",
    "n|<d:text>|<p>|<u> = index s|<u>|<p> as <d> where <u> != 'a'",
    "o|<m:number:desc>|<p> = index k|<p> as <m>",
    "ba|<u>|<c>|<p> = check s|<u>|<p> where value > 50 copy p|<p>|<c>",
    "bb|<u> = pull sum s|<u>|<p> where value prefix '3'",
];
/// Views that keep some outputs of each group, which seeds from [`KEPT_FROM`] on have besides.
const KEPT: [&str; 4] = [
    "ka|<u>|<c>|<p> = check s|<u>|<p> copy p|<p>|<c> keep 3",
    "kb|<p>|<n:number:desc>|<c> = index p|<p>|<c> as <n> keep 2 desc",
    "kc|<u>|<p> = pull sum s|<u>|<p> keep 1 asc",
    "kd|<p> = count ka|<u>|<c>|<p>",
];
/// Views that count values, which seeds from [`TALLIED_FROM`] on have besides.
const TALLIED: [&str; 5] = [
    "la|<p> = distinct p|<p>|<c>",
    "lb|<u> = check s|<u>|<p> topk 2 p|<p>|<c>",
    "lc|<p> = distinct~ 2 s|<u>|<p> on <u>",
    "ld|<p> = pull percentile 50 p|<p>|<c>",
    "le|<u> = percentile 90 la|<p> check s|<u>|<p>",
];
const COMPONENTS: [&[&str]; 3] =
    [&["a", "b", "ab", "a}", "~"], &["1", "10", "100", "2", "3"], &["x", "y", "x\u{0}", "{"]];

/// A pattern of keys.
fn pattern(text: &str) -> Pattern {
    let join = Join::parse(&format!("o = count {text}")).expect("known patterns are well formed");
    join.sources[0].1.clone()
}

/// What all keys of a pattern begin with.
fn prefix(pattern: &Pattern) -> String {
    let end = if pattern.parts.is_empty() { "" } else { "|" };
    format!("{}{end}", pattern.table)
}

/// Keys, joins and ranges.
pub(crate) struct Domain {
    /// Joins that may be installed, with their names.
    pub(crate) joins: Vec<(String, Join)>,
    components: Vec<String>,
    /// Patterns of keys that clients write.
    sources: Vec<Pattern>,
    /// Beginnings of ranges: all tables, and nothing.
    pub(crate) prefixes: Vec<String>,
}

impl Domain {
    /// What the simulation of a seed is about.
    pub(crate) fn new(seed: u64, rng: &mut Rng) -> Self {
        if rng.chance(60) { Self::site(seed, rng) } else { Self::any(seed, rng) }
    }

    fn site(seed: u64, rng: &mut Rng) -> Self {
        let more = if seed < LENSED_FROM { &[][..] } else { &LENSED };
        let kept = if seed < KEPT_FROM { &[][..] } else { &KEPT };
        let tallied = if seed < TALLIED_FROM { &[][..] } else { &TALLIED };
        let joins = SITE.iter().chain(more).chain(kept).chain(tallied).enumerate();
        let joins = joins.map(|(at, text)| {
            (format!("j{at}"), Join::parse(text).expect("known joins are well formed"))
        });
        let mut components: Vec<_> = (0..2 + rng.below(5)).map(|at| format!("u{at}")).collect();
        components.push(String::from("1"));
        let sources = ["s|<u>|<p>", "p|<p>|<c>", "p|<p>|<c>", "m|<u>|<c>|<p>"];
        let sources = sources.map(pattern);
        Self::of(joins.collect(), components, sources.to_vec())
    }

    fn any(seed: u64, rng: &mut Rng) -> Self {
        // What functions make is checked elsewhere.
        let plain = |join: &Join| {
            !join.sources.iter().any(|(operator, _)| matches!(operator, Operator::Map(_)))
        };
        let mut joins = AnyWorld::of(seed, rng).joins;
        joins.extend(AnyWorld::of(seed, rng).joins);
        joins.retain(|(_, join)| plain(join));
        let mut components: Vec<String> = Vec::new();
        for _ in 0..1 + rng.below(2) {
            components.extend(rng.pick(&COMPONENTS).iter().map(|text| (*text).to_string()));
        }
        rng.shuffle(&mut components);
        components.truncate(2 + rng.below(4));
        let mut sources: Vec<Pattern> = Vec::new();
        for (_, join) in &joins {
            sources.extend(join.sources.iter().map(|(_, pattern)| pattern.clone()));
        }
        sources.push(pattern("other|<a>|<b>"));
        Self::of(joins, components, sources)
    }

    fn of(joins: Vec<(String, Join)>, components: Vec<String>, sources: Vec<Pattern>) -> Self {
        let outputs = joins.iter().map(|(_, join)| &join.output);
        let mut prefixes: Vec<String> = Vec::new();
        prefixes.extend(outputs.chain(&sources).map(prefix));
        prefixes.push(String::new());
        prefixes.sort();
        prefixes.dedup();
        Self { joins, components, sources, prefixes }
    }

    /// A table.
    pub(crate) fn table(&self, rng: &mut Rng) -> String {
        rng.pick(&self.sources).table.clone()
    }

    /// Some of the tables that no join writes.
    pub(crate) fn tables_of_sources(&self, rng: &mut Rng) -> Vec<String> {
        let is_made = |table: &str| self.joins.iter().any(|(_, join)| join.output.table == table);
        let mut tables: Vec<String> =
            self.sources.iter().map(|source| source.table.clone()).collect();
        tables.retain(|table| !is_made(table));
        tables.sort();
        tables.dedup();
        tables.retain(|_| rng.chance(65));
        tables
    }

    /// A key that clients may write, if no join gives it: mostly one that an installed join reads.
    pub(crate) fn key(&self, rng: &mut Rng, installed: &[Installed]) -> Vec<u8> {
        let is_given = |it: &Pattern| self.joins.iter().any(|(_, join)| join.output.overlaps(it));
        let pattern = if !installed.is_empty() && rng.chance(50) {
            let (_, source) = rng.pick(&rng.clone().pick(installed).join.sources);
            if is_given(source) { rng.pick(&self.sources) } else { source }
        } else if !self.joins.is_empty() && rng.chance(10) {
            // It stands in the way of a join, or is refused.
            &rng.pick(&self.joins).1.output
        } else {
            rng.pick(&self.sources)
        };
        let mut bound: Vec<(String, String)> = Vec::new();
        let mut key = pattern.table.clone();
        for part in &pattern.parts {
            key.push('|');
            match part {
                Part::Literal(text) => key += text,
                Part::Slot { name, .. } => {
                    let known = bound.iter().find(|(other, _)| other == name);
                    let value = match known {
                        Some((_, value)) => value.clone(),
                        None => rng.pick(&self.components).clone(),
                    };
                    key += &value;
                    bound.push((name.clone(), value));
                }
            }
        }
        key.into_bytes()
    }

    /// A range to read: mostly of what an installed join gives.
    pub(crate) fn range(&self, rng: &mut Rng, installed: &[Installed]) -> KeyRange {
        let mut text = if !installed.is_empty() && rng.chance(60) {
            prefix(&rng.pick(installed).join.output)
        } else {
            rng.pick(&self.prefixes).clone()
        };
        if text.ends_with('|') && rng.chance(65) {
            text += rng.pick::<String>(&self.components);
            if rng.chance(80) {
                text.push('|');
                if rng.chance(50) {
                    text += rng.pick::<String>(&self.components);
                }
            }
        }
        let mut range = KeyRange::prefix(text.as_bytes());
        if rng.chance(20) {
            let (one, other) = (self.key(rng, installed), self.key(rng, installed));
            range = KeyRange::new(&one, &other);
        } else if rng.chance(15) {
            range.first.extend_from_slice(rng.pick(&self.components).as_bytes());
        }
        range
    }
}
