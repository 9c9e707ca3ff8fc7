//! The oracle: what every read must give, recomputed from the base keys by nested loops.
//!
//! Nothing is kept but base keys and joins. A view is computed join by join, each after the
//! joins whose output it reads; a join is one loop per source over the visible keys that match
//! that source alone and begin as it does with what is bound. There is no index, no containing range, no
//! maintenance: each line can be held against `semantics.md` by reading.

use crate::join::{Bindings, Join, Operator, Pattern};
use crate::number::Number;
use crate::tally;
use std::collections::BTreeMap;

/// Keys with their values.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// An installed join.
#[derive(Clone, Debug)]
pub struct Installed {
    /// Its name.
    pub name: String,
    /// What it says.
    pub join: Join,
    /// When it was installed: joins installed later have greater numbers.
    pub serial: u64,
}

/// What recomputing everything gives.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// What each join makes, by its serial, whether or not it is seen.
    pub made: BTreeMap<u64, Pairs>,
    /// Every key that a read sees.
    pub seen: Pairs,
}

/// What should happen to a join that is to be installed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is installed.
    Accept,
    /// It is refused; if the number is given, the refusal must name it.
    Refuse(Option<usize>),
    /// Patterns that repeat a slot seem to overlap; this oracle cannot tell whether they do.
    Unsure,
}

/// The base keys, the joins and the time.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// Base keys, with the moment when they expire.
    pub base: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    /// Joins, in the order of their installation.
    pub joins: Vec<Installed>,
    /// The time.
    pub now: u64,
    serials: u64,
}

/// One tuple of source keys: what it adds to an output key.
struct Contribution {
    value_key: Vec<u8>,
    value: Vec<u8>,
    /// The value, or what the slot stands for that is looked at in its place.
    item: Vec<u8>,
}

impl Oracle {
    /// Moves time: keys whose time has come go.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let now = self.now;
        self.base.retain(|_, (_, at)| at.is_none_or(|at| at > now));
    }

    /// The joins that forbid writing `key`.
    #[must_use]
    pub fn owners(&self, key: &[u8]) -> Vec<&str> {
        let owns = |installed: &&Installed| installed.join.output.matches(key);
        self.joins.iter().filter(owns).map(|installed| installed.name.as_str()).collect()
    }

    /// Whether `join` may be installed under `name`.
    #[must_use]
    pub fn verdict(&self, name: &str, join: &Join, replace: bool) -> Verdict {
        if !replace && self.joins.iter().any(|installed| installed.name == name) {
            return Verdict::Refuse(None);
        }
        let others = self.joins.iter().filter(|other| other.name != name);
        let mut all: Vec<&Join> = others.map(|other| &other.join).collect();
        all.push(join);
        let unsure = all.iter().any(|join| {
            join.output.repeats_a_slot() || join.sources.iter().any(|(_, s)| s.repeats_a_slot())
        });
        let push_over_lazy = all.iter().any(|upper| {
            let lazy = |lower: &&Join| !lower.mode.is_maintained() && upper.reads(&lower.output);
            upper.mode.is_maintained() && all.iter().copied().any(|lower| lazy(&lower))
        });
        if topological(&all).is_none() || push_over_lazy {
            return if unsure { Verdict::Unsure } else { Verdict::Refuse(None) };
        }
        match self.base.keys().filter(|key| join.output.matches(key)).count() {
            0 => Verdict::Accept,
            found => Verdict::Refuse(Some(found)),
        }
    }

    /// Installs a join in place of one of its name; it counts as installed now.
    pub fn install(&mut self, name: &str, join: Join) {
        self.uninstall(name);
        self.serials += 1;
        self.joins.push(Installed { name: name.to_string(), join, serial: self.serials });
    }

    /// Drops a join; whether there was one.
    pub fn uninstall(&mut self, name: &str) -> bool {
        let before = self.joins.len();
        self.joins.retain(|installed| installed.name != name);
        self.joins.len() < before
    }

    /// Recomputes everything.
    ///
    /// # Panics
    /// The joins read each other in a circle, which [`Oracle::verdict`] refuses.
    #[must_use]
    pub fn view(&self) -> View {
        self.view_with(&mut |_, made| made)
    }

    /// Recomputes everything, where `keep` may replace what a join makes before it is seen.
    ///
    /// # Panics
    /// As [`Oracle::view`].
    #[must_use]
    pub fn view_with(&self, keep: &mut dyn FnMut(&Installed, Pairs) -> Pairs) -> View {
        let joins: Vec<&Join> = self.joins.iter().map(|installed| &installed.join).collect();
        let order = topological(&joins).expect("installed joins form no circle");
        // Which join gave the value that is seen: where two make one key, the later one.
        let mut seen: BTreeMap<Vec<u8>, (Option<usize>, Vec<u8>)> = self
            .base
            .iter()
            .map(|(key, (value, _))| (key.clone(), (None, value.clone())))
            .collect();
        let mut view = View::default();
        for index in order {
            let made = keep(&self.joins[index], make(joins[index], &seen));
            for (key, value) in &made {
                if seen.get(key).is_none_or(|(other, _)| *other < Some(index)) {
                    seen.insert(key.clone(), (Some(index), value.clone()));
                }
            }
            view.made.insert(self.joins[index].serial, made);
        }
        view.seen = seen.into_iter().map(|(key, (_, value))| (key, value)).collect();
        view
    }
}

/// What `join` makes where a read sees `seen`.
#[must_use]
pub fn make_of(join: &Join, seen: &Pairs) -> Pairs {
    let seen = seen.iter().map(|(key, value)| (key.clone(), (None, value.clone())));
    make(join, &seen.collect())
}

/// An order in which every join comes after those whose output it reads; `None` for a circle.
fn topological(joins: &[&Join]) -> Option<Vec<usize>> {
    let mut order = Vec::new();
    while order.len() < joins.len() {
        let ready = (0..joins.len()).find(|&next| {
            let waits_for =
                |other: usize| !order.contains(&other) && joins[next].reads(&joins[other].output);
            !order.contains(&next) && !(0..joins.len()).any(waits_for)
        });
        order.push(ready?);
    }
    Some(order)
}

/// A key that a source reads, its value, and what that binds.
struct Row<'a> {
    key: &'a [u8],
    value: &'a [u8],
    binds: Vec<(String, Vec<u8>)>,
}

/// What `join` makes of the visible keys.
fn make(join: &Join, seen: &BTreeMap<Vec<u8>, (Option<usize>, Vec<u8>)>) -> Pairs {
    let candidates: Vec<Vec<Row<'_>>> =
        join.sources.iter().map(|(_, pattern)| matching(join, pattern, seen)).collect();
    let mut tuples: BTreeMap<Vec<u8>, Vec<Contribution>> = BTreeMap::new();
    nest(join, &candidates, 0, &Vec::new(), (&[], &[]), &mut tuples);
    let operator = join.value_source().0;
    let folded = tuples.into_iter().map(|(key, tuples)| {
        let value = fold(operator, &key, &tuples);
        (key, value)
    });
    let all = folded.filter_map(|(key, value)| Some((key, value?))).collect();
    best(join, all)
}

/// Of each group of keys those that the join makes.
fn best(join: &Join, all: Pairs) -> Pairs {
    let Some(keep) = &join.keep else { return all };
    let (parts, last) = join.group(keep);
    let group_of = |key: &[u8]| {
        key.split(|&byte| byte == b'|').take(1 + parts).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let is_kept = |key: &Vec<u8>| {
        let same = all.keys().filter(|other| group_of(other) == group_of(key));
        let better = same.filter(|other| if last { *other > key } else { *other < key });
        better.count() < keep.most
    };
    all.iter().filter(|(key, _)| is_kept(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn matching<'a>(
    join: &Join,
    pattern: &Pattern,
    seen: &'a BTreeMap<Vec<u8>, (Option<usize>, Vec<u8>)>,
) -> Vec<Row<'a>> {
    let rows = seen.iter().filter_map(|(key, (_, value))| {
        let mut bound = Vec::new();
        if !pattern.bind(key, &mut bound) {
            return None;
        }
        let binds = match &pattern.lens {
            Some(lens) => lens.look(value, &bound, &|slot| join.form_of(slot))?,
            None => Vec::new(),
        };
        Some(Row { key, value, binds })
    });
    rows.collect()
}

/// One loop of the nested loops: source number `depth`, inside the loops of those before it.
fn nest<'a>(
    join: &'a Join,
    candidates: &'a [Vec<Row<'a>>],
    depth: usize,
    bound: &Bindings<'a>,
    value: (&'a [u8], &'a [u8]),
    tuples: &mut BTreeMap<Vec<u8>, Vec<Contribution>>,
) {
    let Some((operator, pattern)) = join.sources.get(depth) else {
        let key = join.output.fill(bound);
        // No key is longer: such an output does not exist.
        if key.len() <= 1024 {
            let (value_key, value) = (value.0.to_vec(), value.1.to_vec());
            let slot = join.value_source().1.on();
            let bound = |name: &str| bound.iter().find(|(own, _)| *own == name);
            let item = slot.map(|name| bound(name).expect("a slot of the source").1.to_vec());
            let item = item.unwrap_or_else(|| value.clone());
            tuples.entry(key).or_default().push(Contribution { value_key, value, item });
        }
        return;
    };
    // What begins otherwise would not bind.
    let start = pattern.start(bound);
    let from = candidates[depth].partition_point(|row| *row.key < start[..]);
    let begin_so = candidates[depth][from..].iter().take_while(|row| row.key.starts_with(&start));
    for row in begin_so {
        let mut bound = bound.clone();
        if pattern.bind(row.key, &mut bound) && agree(&row.binds, &mut bound) {
            let value = if *operator == Operator::Check { value } else { (row.key, row.value) };
            nest(join, candidates, depth + 1, &bound, value, tuples);
        }
    }
}

/// Adds what a value binds; whether it agrees with what is bound.
fn agree<'a>(binds: &'a [(String, Vec<u8>)], bound: &mut Bindings<'a>) -> bool {
    binds.iter().all(|(name, component)| {
        match bound.iter().find(|(known, _)| *known == name.as_str()) {
            Some((_, value)) => *value == component.as_slice(),
            None => {
                bound.push((name, component));
                true
            }
        }
    })
}

/// The value of an output key, from all its tuples; `None` where there is no such key.
fn fold(operator: Operator, key: &[u8], tuples: &[Contribution]) -> Option<Vec<u8>> {
    let by_value_key = |tuple: &&Contribution| tuple.value_key.clone();
    let numbers: Vec<Number> =
        tuples.iter().filter_map(|tuple| Number::parse(&tuple.value)).collect();
    let sum = || numbers.iter().fold(Number::ZERO, |sum, number| sum.plus(number));
    let some = !numbers.is_empty();
    let items: Vec<&[u8]> = tuples.iter().map(|tuple| &tuple.item[..]).collect();
    match operator {
        Operator::Check => unreachable!("a check gives no value"),
        Operator::Index => (!tuples.is_empty()).then(Vec::new),
        Operator::Copy | Operator::Last => {
            tuples.iter().max_by_key(by_value_key).map(|tuple| tuple.value.clone())
        }
        // A join whose tuples share outputs is refused.
        Operator::Map(function) => tuples.first().and_then(|tuple| function.map(key, &tuple.value)),
        Operator::First => tuples.iter().min_by_key(by_value_key).map(|tuple| tuple.value.clone()),
        Operator::Count => Some(tuples.len().to_string().into_bytes()),
        Operator::Sum => some.then(|| sum().text()),
        Operator::Avg => some.then(|| sum().divided_by(numbers.len() as u64).text()),
        Operator::Min => numbers.into_iter().min_by(|a, b| a.order(b)).map(|n| n.text()),
        Operator::Distinct => tally::distinct(&items, usize::MAX),
        Operator::DistinctAbout(exact) => tally::distinct(&items, exact as usize),
        Operator::Top(most) => tally::top(&items, most as usize),
        Operator::Percentile(millionths) => tally::percentile(&items, millionths),
        Operator::Max => numbers.into_iter().max_by(|a, b| a.order(b)).map(|n| n.text()),
    }
}

/// Whether `key` lies in `[first, last)`; an empty `last` is no end.
#[must_use]
pub fn within(key: &[u8], first: &[u8], last: &[u8]) -> bool {
    first <= key && (last.is_empty() || key < last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oracle(joins: &[&str], keys: &[(&str, &str)]) -> Oracle {
        let mut oracle = Oracle::default();
        for (at, text) in joins.iter().enumerate() {
            oracle.install(&format!("j{at}"), Join::parse(text).expect(text));
        }
        for (key, value) in keys {
            oracle.base.insert(key.as_bytes().to_vec(), (value.as_bytes().to_vec(), None));
        }
        oracle
    }

    fn table(oracle: &Oracle, prefix: &str) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let seen = oracle.view().seen;
        let inside = seen.iter().filter(|(key, _)| key.starts_with(prefix.as_bytes()));
        inside.map(|(key, value)| format!("{}={}", text(key), text(value))).collect()
    }

    #[test]
    fn a_timeline() {
        let oracle = oracle(
            &["t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"],
            &[("s|ann|bob", "1"), ("s|ann|liz", "1"), ("p|bob|10", "x"), ("p|liz|9", "y")],
        );
        assert_eq!(table(&oracle, "t|"), ["t|ann|10|bob=x", "t|ann|9|liz=y"]);
    }

    #[test]
    fn aggregates_of_joins() {
        let oracle = oracle(
            &["k|<a> = count v|<a>|<i>|<w>", "top|<x> = max k|<a> check g|<a>|<x>"],
            &[("v|a|1|x", ""), ("v|a|1|y", ""), ("v|b|1|x", ""), ("g|a|q", ""), ("g|b|q", "")],
        );
        assert_eq!(table(&oracle, "k|"), ["k|a=2", "k|b=1"]);
        assert_eq!(table(&oracle, "top|"), ["top|q=2"]);
    }

    #[test]
    fn collisions_and_ambiguous_copies() {
        let mut oracle = oracle(
            &["o|<a> = copy x|<a>|<b>", "o|<a> = copy y|<a>"],
            &[("x|1|2", "two"), ("x|1|3", "three"), ("y|1", "y")],
        );
        assert_eq!(table(&oracle, "o|"), ["o|1=y"]);
        oracle.base.remove(&b"y|1"[..]);
        assert_eq!(table(&oracle, "o|"), ["o|1=three"]);
    }

    #[test]
    fn verdicts() {
        let oracle = oracle(&["b|<x> = copy a|<x>", "p|<x> = pull copy q|<x>"], &[("d|1", "")]);
        let verdict = |text| oracle.verdict("new", &Join::parse(text).expect(text), false);
        assert_eq!(verdict("a|<x> = copy b|<x>"), Verdict::Refuse(None));
        assert_eq!(verdict("c|<x> = copy c|<x>"), Verdict::Refuse(None));
        assert_eq!(verdict("c|<x> = copy p|<x>"), Verdict::Refuse(None));
        assert_eq!(verdict("c|<x> = pull copy p|<x>"), Verdict::Accept);
        assert_eq!(verdict("a|<x> = pull copy z|<x>"), Verdict::Refuse(None));
        assert_eq!(verdict("d|<x> = copy z|<x>"), Verdict::Refuse(Some(1)));
        assert_eq!(verdict("d|<x>|<y> = copy z|<x>|<y>"), Verdict::Accept);
    }
}
