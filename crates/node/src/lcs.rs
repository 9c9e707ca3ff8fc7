//! Execution of LCS: the longest common subsequence of two values.
//!
//! # Cost
//! Time and memory are the product of the two lengths; memory is bounded by the longest value
//! that is allowed.

use crate::node::Lookups;
use alloc::vec::Vec;
use headwater_command::{Counted, LcsAnswer, Reply};
use headwater_engine::{Engine, Stop};

pub(crate) fn run(
    engine: &mut Engine,
    keys: [&[u8]; 2],
    answer: LcsAnswer,
    lookups: &mut Lookups,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let mut values = [Vec::new(), Vec::new()];
    for (key, value) in keys.into_iter().zip(&mut values) {
        let found = engine.get(key)?;
        lookups.note(found.is_some());
        *value = found.map(|value| value.to_vec()).unwrap_or_default();
    }
    of(engine, &values[0], &values[1], answer, reply);
    Ok(())
}

/// The answer for two values.
pub(crate) fn of(engine: &Engine, a: &[u8], b: &[u8], answer: LcsAnswer, reply: &mut impl Reply) {
    let max = engine.limits().value_bytes_max;
    let cells = (a.len() + 1).checked_mul(b.len() + 1);
    let Some(cells) = cells.filter(|cells| *cells <= max / size_of::<u32>()) else {
        let text = "transient memory for LCS exceeds the limit of";
        let text = format_args!("Insufficient memory, {text} {max} bytes (value-bytes-max)");
        reply.error("ERR", text);
        return;
    };
    let table = Table::fill(a, b, cells);
    match answer {
        LcsAnswer::Length => reply.integer(i64::from(table.len())),
        LcsAnswer::Text => reply.bulk(&table.text(a, b)),
        LcsAnswer::Matches { length_min, with_lengths } => {
            reply.map(2);
            reply.bulk(b"matches");
            let mark = reply.begin_counted(Counted::Array, 1);
            let mut count = 0;
            table.each_match(a, b, &mut |found| {
                if found.len >= length_min {
                    count += 1;
                    write_match(&found, with_lengths, reply);
                }
            });
            reply.end_counted(Counted::Array, mark, count);
            reply.bulk(b"len");
            reply.integer(i64::from(table.len()));
        }
    }
}

/// Equal bytes in both values.
struct Match {
    a_first: usize,
    b_first: usize,
    len: u64,
}

fn write_match(found: &Match, with_length: bool, reply: &mut impl Reply) {
    reply.array(2 + usize::from(with_length));
    for first in [found.a_first as i64, found.b_first as i64] {
        reply.array(2);
        reply.integer(first);
        reply.integer(first + found.len as i64 - 1);
    }
    if with_length {
        reply.integer(found.len as i64);
    }
}

/// For each pair of prefixes, the length of their longest common subsequence.
struct Table {
    cells: Vec<u32>,
    width: usize,
}

/// One step of the way from the ends of both values to their beginnings.
enum Step {
    Both,
    Left,
    Right,
}

impl Table {
    fn fill(a: &[u8], b: &[u8], cells: usize) -> Self {
        let width = b.len() + 1;
        let mut table = Self { cells: alloc::vec![0; cells], width };
        for (i, a_byte) in a.iter().enumerate() {
            for (j, b_byte) in b.iter().enumerate() {
                table.cells[(i + 1) * width + j + 1] = if a_byte == b_byte {
                    table.at(i, j) + 1
                } else {
                    table.at(i, j + 1).max(table.at(i + 1, j))
                };
            }
        }
        table
    }

    fn at(&self, i: usize, j: usize) -> u32 {
        self.cells[i * self.width + j]
    }

    fn len(&self) -> u32 {
        self.cells.last().copied().unwrap_or(0)
    }

    /// Walks from the ends; `each` is told the prefixes' lengths before each step.
    fn walk(&self, a: &[u8], b: &[u8], each: &mut dyn FnMut(usize, usize, &Step)) {
        let (mut i, mut j) = (a.len(), b.len());
        while i > 0 && j > 0 {
            let step = if a[i - 1] == b[j - 1] {
                Step::Both
            } else if self.at(i - 1, j) > self.at(i, j - 1) {
                Step::Left
            } else {
                Step::Right
            };
            each(i, j, &step);
            i -= usize::from(!matches!(step, Step::Right));
            j -= usize::from(!matches!(step, Step::Left));
        }
    }

    fn text(&self, a: &[u8], b: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.len() as usize);
        self.walk(a, b, &mut |i, _, step| {
            if let Step::Both = step {
                text.push(a[i - 1]);
            }
        });
        text.reverse();
        text
    }

    /// Calls `each` with the runs of equal bytes, the last one first.
    fn each_match(&self, a: &[u8], b: &[u8], each: &mut dyn FnMut(Match)) {
        let mut open: Option<Match> = None;
        self.walk(a, b, &mut |i, j, step| match (step, &mut open) {
            (Step::Both, Some(run)) => {
                run.a_first -= 1;
                run.b_first -= 1;
                run.len += 1;
            }
            (Step::Both, None) => open = Some(Match { a_first: i - 1, b_first: j - 1, len: 1 }),
            (_, _) => open.take().into_iter().for_each(&mut *each),
        });
        open.into_iter().for_each(each);
    }
}
