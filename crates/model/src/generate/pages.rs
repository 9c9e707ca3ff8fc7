//! Pages of a table that several joins give: limited reads beside everything that has a range kept, let go, or kept in part.
//!
//! Few tables and few groups, so that each group has a page or two; what changes a choice of an `auto` join (reads of one key, changes of
//! one key, again and again) comes in bursts.

use super::World;
use crate::history::{Op, Until};
use crate::join::{Join, Mode};
use crate::rng::Rng;

/// Seeds from here on have several joins that give one table, most of them `auto`, and read pages of it.
pub const PAGED_FROM: u64 = 1 << 45;

/// What gives the table `{t}`; of each output a component says which one made it, or the number of components does.
const GIVERS: [&str; 9] = [
    "{t}|<u>|<m>|a|<p> = check {a}|<u>|<p> copy {b}|<p>|<m>",
    "{t}|<u>|<m>|b = sum {c}|<u>|<m>",
    "{t}|<u>|<m>|c|<p> = check {b}|<u>|<p> copy {a}|<p>|<m>",
    "{t}|<u>|<p>|d|<m> = check {a}|<u>|<p> copy {b}|<p>|<m>",
    "{t}|<u>|<m> = copy {c}|<u>|<m>",
    "{t}|<u>|<m>|e|<p> = check {a}|<u>|<x> check {b}|<x>|<p> last {c}|<p>|<m>",
    "{t}|<m>|<u>|f = count {c}|<u>|<m>",
    "{t}|<u>|<m>|g|<p>|<x> = check {c}|<u>|<x> copy {l}|<x>|<m>|<p>",
    "{t}|<u>|<m>|h = max {l}|<u>|<p>|<m>",
];

/// One of them that there is more often.
const OFTEN: &str = GIVERS[1];

/// What gives the table `{l}`, which some of those read.
const BELOW: [&str; 2] = [
    "{l}|<u>|<m>|<p> = check {a}|<u>|<p> copy {b}|<p>|<m>",
    "{l}|<u>|<p>|<m> = copy {c}|<u>|<m>|<p>",
];

impl World {
    /// Has several joins give one table.
    pub(super) fn share_a_table(&mut self, rng: &mut Rng) {
        let tables = |at: usize| &self.tables[at % self.tables.len()];
        let [a, b, c] = [0, 1, 2].map(|at| tables(at).clone());
        let said = |template: &str| {
            let text = template.replace("{t}", "t}").replace("{l}", "below");
            let text = text.replace("{a}", &a).replace("{b}", &b).replace("{c}", &c);
            Join::parse(&text).expect("these joins are well formed")
        };
        let mut joins = Vec::new();
        let mut givers = GIVERS.to_vec();
        rng.shuffle(&mut givers);
        givers.truncate(1 + rng.weighted(&[15, 45, 30, 10]));
        if rng.chance(50) && !givers.contains(&OFTEN) {
            givers.push(OFTEN);
        }
        if givers.iter().any(|giver| giver.contains("{l}")) {
            joins.push(said(BELOW[rng.below(BELOW.len())]));
        }
        joins.extend(givers.into_iter().map(said));
        let named = joins.into_iter().enumerate().map(|(number, mut join)| {
            join.mode = match rng.weighted(&[55, 35, 5, 5]) {
                0 => Mode::Auto,
                1 => Mode::Push,
                2 => Mode::Pull,
                _ => Mode::Snapshot(500),
            };
            (format!("j{number}"), join)
        });
        self.joins = named.collect();
        // Rows that give no output: what is seen of the sources is a hint and no more.
        self.values.extend(["x", "no number"].map(|value| value.as_bytes().to_vec()));
        self.pages = true;
    }

    /// Something that happens to pages, or has them kept or let go.
    pub(super) fn with_pages(&self, rng: &mut Rng) -> Vec<Op> {
        match rng.weighted(&[45, 12, 14, 14, 15]) {
            0 => {
                let (first, last) = self.range(rng);
                let limit = Some(1 + rng.weighted(&[30, 25, 15, 10, 10, 10]) as u64);
                vec![Op::Range { first, last, reverse: rng.chance(50), limit }]
            }
            1 => {
                let key = self.near(rng);
                vec![Op::Get { key }; 1 + rng.below(4)]
            }
            2 => {
                let (first, last) = self.range(rng);
                let read = Op::Range { first, last, reverse: false, limit: None };
                vec![read; 1 + rng.below(3)]
            }
            3 => {
                let key = self.key(rng);
                let set = |rng: &mut Rng| Op::Set {
                    key: key.clone(),
                    value: self.value(rng),
                    until: Until::Ever,
                };
                let each = (0..1 + rng.below(6)).flat_map(|_| {
                    let removes = rng.chance(60);
                    [Some(set(rng)), removes.then(|| Op::Remove { key: key.clone() })]
                });
                each.flatten().collect()
            }
            _ => vec![self.op(rng)],
        }
    }
}
