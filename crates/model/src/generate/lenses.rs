//! Joins that look at values: conditions, and slots that values bind.

use super::{PAGED_FROM, World};
use crate::join::{Join, Keep, Operator, Part};
use crate::lens::{Field, Filter, Lens, Literal};
use crate::rng::Rng;
use headwater_base::{Kind, Ordered};

/// Seeds from here on have joins that look at values. What belongs to those before it is as it was before there were such joins.
pub const LENSED_FROM: u64 = 1 << 40;

/// Seeds from here on have joins that keep some outputs of each group, besides those that look at values.
pub const KEPT_FROM: u64 = 1 << 41;

/// Seeds from here on have joins that count values by their kinds, besides.
pub const TALLIED_FROM: u64 = 1 << 42;

/// Seeds of scripts from here on ask about bits, besides all that.
pub const BITS_FROM: u64 = 1 << 43;

const DOCUMENTS: [&str; 12] = [
    r#"{"n": 1, "c": "a", "ok": true}"#,
    r#"{"n": 2, "c": "b", "ok": false}"#,
    r#"{"n": -1.50, "c": "a", "in": {"c": "1", "n": 10}}"#,
    r#"{"n": 1e1, "c": "ab", "ok": true, "list": [1, "b", null]}"#,
    r#"{"n": "2", "c": null, "ok": "true"}"#,
    r#"{"c": "a|b", "n": 1.0, "n": 3}"#,
    r#"{"c": "", "in": []}"#,
    r#"{"c": "x}", "in": {"c": "2"}}"#,
    r#"{"n": 1"#,
    "2026-11-23T10:00:00Z",
    "true",
    "a|b",
];

const PATHS: [&[&str]; 7] =
    [&["n"], &["c"], &["ok"], &["in", "c"], &["in", "n"], &["list", "1"], &["missing"]];

impl World {
    /// The world of a history that belongs to a seed.
    pub fn of(seed: u64, rng: &mut Rng) -> Self {
        let mut world = Self::new(rng);
        if seed >= PAGED_FROM {
            world.share_a_table(rng);
            if rng.chance(25) {
                world.look(rng);
            }
            return world;
        }
        if seed >= LENSED_FROM {
            world.look(rng);
        }
        if seed >= KEPT_FROM {
            world.keep(rng);
        }
        if seed >= TALLIED_FROM {
            world.tally(rng);
        }
        world
    }

    /// Has most joins count values, or what a slot of the source stands for that the output lacks.
    fn tally(&mut self, rng: &mut Rng) {
        for (_, join) in &mut self.joins {
            if !rng.chance(75) {
                continue;
            }
            let output: Vec<String> = join.output.slots().into_iter().map(str::to_string).collect();
            let (operator, source) =
                join.sources.iter_mut().find(|(o, _)| *o != Operator::Check).expect("one");
            *operator = match rng.below(4) {
                0 => Operator::Distinct,
                1 => Operator::DistinctAbout(1 + rng.below(3) as u32),
                2 => Operator::Top(1 + rng.below(3) as u32),
                _ => Operator::Percentile(*rng.pick(&[
                    0,
                    33_333_333,
                    50_000_000,
                    50_000_000,
                    99_900_000,
                    100_000_000,
                ])),
            };
            let slots = source.slots().into_iter().chain(source.value_slots());
            let lacking: Vec<String> = slots
                .filter(|slot| output.iter().all(|shown| shown != slot))
                .map(str::to_string)
                .collect();
            if !lacking.is_empty() && rng.chance(60) {
                source.lens.get_or_insert_default().on = Some(rng.pick(&lacking).clone());
            }
        }
    }

    /// Has most joins keep a few outputs of each group.
    fn keep(&mut self, rng: &mut Rng) {
        for (_, join) in &mut self.joins {
            let slots = join.output.slots();
            let per =
                (!slots.is_empty() && rng.chance(30)).then(|| (*rng.pick(&slots)).to_string());
            let keep = Keep {
                most: 1 + rng.weighted(&[30, 30, 20, 10, 10]),
                greatest: rng.chance(60),
                per,
            };
            if rng.chance(75) && join.can_keep(&keep) {
                join.keep = Some(keep);
            }
        }
    }

    /// Gives lenses to most joins, and documents to the values.
    fn look(&mut self, rng: &mut Rng) {
        for _ in 0..2 + rng.below(5) {
            self.values.push(rng.pick(&DOCUMENTS).as_bytes().to_vec());
        }
        for component in &self.components {
            let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"{}~".contains(byte);
            if component.iter().all(is_plain) && component.len() < 20 {
                let text = String::from_utf8_lossy(component);
                self.values.push(text.as_bytes().to_vec());
                self.values.push(format!(r#"{{"c":"{text}"}}"#).into_bytes());
            }
        }
        let mut joins = std::mem::take(&mut self.joins);
        for (_, join) in &mut joins {
            if rng.chance(75) {
                let before = join.clone();
                self.give_lenses(rng, join);
                // What it was is well formed in any case.
                if join.output.parts.is_empty() || join.sources.is_empty() {
                    *join = before;
                }
            }
        }
        self.joins = joins;
    }

    fn give_lenses(&self, rng: &mut Rng, join: &mut Join) {
        let mut new = 0;
        for at in 0..join.sources.len() {
            if !rng.chance(if join.sources.len() == 1 { 95 } else { 60 }) {
                continue;
            }
            let mut lens = Lens::default();
            for _ in 0..rng.weighted(&[35, 50, 15]) {
                let own = join.sources[at].1.slots();
                let others = join.sources.iter().flat_map(|(_, source)| source.slots());
                let others: Vec<String> = others
                    .filter(|slot| !own.contains(slot))
                    .map(str::to_string)
                    .filter(|slot| lens.binds.iter().all(|(_, bound)| bound != slot))
                    .collect();
                let name = if !others.is_empty() && rng.chance(35) {
                    rng.pick(&others).clone()
                } else if new > 0 && rng.chance(15) && at > 0 {
                    // Bound by the values of two sources, which must agree.
                    format!("z{}", rng.below(new))
                } else {
                    new += 1;
                    let name = format!("z{}", new - 1);
                    self.show(rng, join, &name);
                    name
                };
                if lens.binds.iter().all(|(_, bound)| *bound != name) {
                    lens.binds.push((field(rng), name));
                }
            }
            if rng.chance(50) || (lens.binds.is_empty() && rng.chance(80)) {
                let slots: Vec<String> =
                    join.sources[at].1.slots().into_iter().map(str::to_string).collect();
                lens.filter = Some(self.filter(rng, &slots, 0));
            }
            join.sources[at].1.lens = Some(lens).filter(|lens| *lens != Lens::default());
        }
        let (operator, source) =
            join.sources.iter_mut().find(|(o, _)| *o != Operator::Check).expect("one");
        if source.lens.is_some() && *operator == Operator::Copy && rng.chance(40) {
            *operator = Operator::Index;
        }
    }

    /// Puts a slot that a value binds into the output, mostly.
    fn show(&self, rng: &mut Rng, join: &mut Join, name: &str) {
        if !rng.chance(85) {
            return;
        }
        let form = rng.chance(65).then(|| Ordered {
            kind: *rng.pick(&[Kind::Number, Kind::Number, Kind::Text, Kind::Time]),
            descending: rng.chance(50),
        });
        let part = Part::Slot { name: name.to_string(), width: None, form };
        let at = rng.below(join.output.parts.len() + 1);
        join.output.parts.insert(at, part);
    }

    fn filter(&self, rng: &mut Rng, slots: &[String], depth: usize) -> Filter {
        if depth < 2 && rng.chance(30) {
            let parts = (0..2 + rng.below(2)).map(|_| self.filter(rng, slots, depth + 1)).collect();
            return if rng.chance(50) { Filter::All(parts) } else { Filter::Any(parts) };
        }
        if depth < 3 && rng.chance(20) {
            return Filter::Not(Box::new(self.filter(rng, slots, depth + 1)));
        }
        let field = if !slots.is_empty() && rng.chance(25) {
            Field::Slot(rng.pick(slots).clone())
        } else {
            field(rng)
        };
        match rng.below(8) {
            0 => Filter::Exists(field),
            1 => Filter::Prefix(field, self.text(rng)),
            2 => {
                let literals = (0..1 + rng.below(3)).map(|_| self.literal_value(rng)).collect();
                Filter::In(field, literals)
            }
            _ => {
                let literal = self.literal_value(rng);
                let signs: &[&str] = match literal {
                    Literal::Bool(_) => &["=", "!="],
                    _ => &["=", "!=", "<", "<=", ">", ">="],
                };
                Filter::Compare(field, (*rng.pick(signs)).to_string(), literal)
            }
        }
    }

    fn text(&self, rng: &mut Rng) -> String {
        let plain = |bytes: &&Vec<u8>| bytes.iter().all(|byte| byte.is_ascii_alphanumeric());
        let plain: Vec<&Vec<u8>> = self.components.iter().filter(plain).collect();
        if plain.is_empty() || rng.chance(20) {
            return String::from(*rng.pick(&["", "a", "1"]));
        }
        String::from_utf8((*rng.pick(&plain)).clone()).expect("plain ASCII")
    }

    fn literal_value(&self, rng: &mut Rng) -> Literal {
        match rng.below(5) {
            0 => Literal::Bool(rng.chance(50)),
            1 | 2 => Literal::Text(self.text(rng)),
            _ => Literal::Number((*rng.pick(&["1", "2", "5", "10", "-1", "1.5"])).to_string()),
        }
    }
}

fn field(rng: &mut Rng) -> Field {
    if rng.chance(55) {
        return Field::Value;
    }
    Field::Json(rng.pick(&PATHS).iter().map(|step| (*step).to_string()).collect())
}
