//! Histories in which most writes concern more ranges than a slice has rows: folds, joins of joins, followers and evictions,
//! with all that happens between the slices.

use headwater_model::check::wanted_histories;
use headwater_model::equipped::Equipped;
use headwater_model::history::Op;
use headwater_model::join::{Join, Mode, Operator, Part};
use headwater_model::subject::Subject;
use headwater_model::{drive, generate};

/// Histories that every test run checks, at `HEADWATER_HISTORIES` of the others that many in so many.
const SHARE: u64 = 10;
const HISTORIES: u64 = 1_000;

/// What histories' keys consist of, mostly.
const COMPONENTS: [&[u8]; 14] =
    [b"a", b"b", b"ab", b"1", b"10", b"100", b"2", b"a}", b"~", b"x", b"y", b"01", b"z", b"\xff"];

/// Reads of many ranges, each by itself.
fn reads(tables: &[String], at: usize, ops: &mut Vec<Op>) {
    for (number, table) in tables.iter().enumerate() {
        for (place, component) in COMPONENTS.iter().enumerate() {
            if !(at + number + place).is_multiple_of(3) {
                continue;
            }
            let first = [table.as_bytes(), b"|", component].concat();
            if place.is_multiple_of(2) {
                ops.push(Op::Get { key: first });
                continue;
            }
            let [first, last] = [b"|", b"}"].map(|end| [&first[..], end].concat());
            ops.push(Op::Range { first, last, reverse: false, limit: None });
        }
    }
}

/// A history whose outputs joins read, and that reads many ranges all the time.
fn with_many_ranges(seed: u64) -> Vec<Op> {
    let (mut ops, mut tables) = (Vec::new(), Vec::new());
    for (at, op) in generate::history(seed).into_iter().enumerate() {
        if let Op::JoinAdd { name, join, replace } = &op {
            let (name, join, replace) = (name.clone(), join.clone(), *replace);
            ops.push(op);
            tables.push(join.output.table.clone());
            let slot = join.output.parts.iter().find(|part| matches!(part, Part::Slot { .. }));
            if let Some(slot) = slot.filter(|_| !seed.is_multiple_of(3)) {
                let mut copied = join.output.clone();
                copied.table = String::from("zz1");
                let mut folded = copied.clone();
                folded.table = String::from("zz2");
                folded.parts = vec![slot.clone()];
                let operators =
                    [Operator::Count, Operator::Max, Operator::Sum, Operator::Last, Operator::Min];
                let operator = operators[seed as usize / 3 % operators.len()];
                let mode = if seed.is_multiple_of(7) { Mode::Pull } else { Mode::Push };
                let copy = (Operator::Copy, join.output.clone());
                let fold = (operator, copied.clone());
                for (part, output, mode, source) in
                    [("copied", copied, Mode::Push, copy), ("folded", folded, mode, fold)]
                {
                    tables.push(output.table.clone());
                    let join = Join { output, mode, sources: vec![source], keep: None };
                    ops.push(Op::JoinAdd { name: format!("{name}-{part}"), join, replace });
                }
            }
        } else {
            ops.push(op);
        }
        tables.sort();
        tables.dedup();
        if at.is_multiple_of(4) {
            reads(&tables, at / 4, &mut ops);
        }
        if seed.is_multiple_of(5) && at == 12 {
            ops.push(Op::Follow { by: 7, first: b"zz".to_vec(), last: b"zz~".to_vec() });
        }
    }
    ops
}

fn counter(subject: &mut dyn Subject, name: &str) -> u64 {
    let counters = subject.engine().stats().counters;
    counters.iter().find(|(known, _)| *known == name).expect("a counter").1
}

/// Checks histories of one kind; enough of the fan-outs in them are noted, and deep.
fn check(first: u64, subject: fn() -> Equipped) {
    let histories = (wanted_histories(HISTORIES) / SHARE).max(100);
    let mut noted = [0, 0];
    for seed in first..first + histories {
        let ops = with_many_ranges(seed);
        let mut subject = subject();
        if let Err(failure) = drive::run(&mut subject, &ops) {
            let count = failure.ops.min(ops.len());
            let told: Vec<String> =
                ops[..count].iter().map(headwater_model::history::line).collect();
            panic!("seed {seed}: {}\nafter\n{}", failure.message, told.join("\n"));
        }
        for (noted, name) in noted.iter_mut().zip(["fan_outs_noted", "fan_outs_deep"]) {
            *noted += counter(&mut subject, name);
        }
    }
    let [noted, deep] = noted;
    assert!(
        noted > histories / 3 && deep > histories / 5,
        "{noted} were noted, {deep} of them deep"
    );
}

#[test]
fn reads_equal_recomputation_where_writes_concern_many_ranges() {
    check(0, || Equipped::default().sliced(2, true));
    check(100_000, || Equipped::default().sliced(3, true));
}

#[test]
fn what_many_ranges_show_may_go_at_any_time() {
    check(200_000, || Equipped::pressed(30).sliced(2, true));
}
