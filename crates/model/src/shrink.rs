//! Makes a failing history short, so that a person can read why it fails.
//!
//! Greedy: operations are left out in chunks that get smaller, then what remains is made
//! simpler one operation at a time, until nothing helps. Every candidate is run; one that
//! fails (in whatever way) is kept.

use crate::history::{Op, Until};
use crate::join::{Join, Mode, Operator, Part};
use crate::lens::Lens;

/// The shortest failing history found; `fails` runs one.
#[must_use]
pub fn shrink(ops: &[Op], fails: &mut dyn FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut best = ops.to_vec();
    loop {
        let before = best.clone();
        best = without_chunks(best, fails);
        for at in 0..best.len() {
            let mut tries = 0;
            while let Some(simpler) = first_failing(&best, at, fails) {
                best = simpler;
                tries += 1;
                if tries == 50 {
                    break;
                }
            }
        }
        if best == before {
            return best;
        }
    }
}

fn without_chunks(mut best: Vec<Op>, fails: &mut dyn FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut size = (best.len() / 2).max(1);
    loop {
        let mut at = 0;
        while at < best.len() {
            let end = (at + size).min(best.len());
            let candidate = [&best[..at], &best[end..]].concat();
            if fails(&candidate) {
                best = candidate;
            } else {
                at = end;
            }
        }
        if size == 1 {
            return best;
        }
        size = size.div_ceil(2).max(1);
    }
}

fn first_failing(best: &[Op], at: usize, fails: &mut dyn FnMut(&[Op]) -> bool) -> Option<Vec<Op>> {
    simpler(&best[at]).into_iter().find_map(|op| {
        let mut candidate = best.to_vec();
        if let (Op::JoinAdd { join: old, .. }, Op::JoinAdd { join: new, .. }) = (&best[at], &op) {
            // The same join may be installed several times.
            for other in &mut candidate {
                if let Op::JoinAdd { join, .. } = other
                    && join == old
                {
                    *join = new.clone();
                }
            }
        }
        candidate[at] = op;
        fails(&candidate).then_some(candidate)
    })
}

/// What is simpler than this operation, the simplest first.
fn simpler(op: &Op) -> Vec<Op> {
    let mut all = Vec::new();
    match op {
        Op::Set { key, value, until } => {
            if *until != Until::Ever {
                all.push(Op::Set { key: key.clone(), value: value.clone(), until: Until::Ever });
            }
            if value.len() > 32 {
                let value = value[..value.len() / 2].to_vec();
                all.push(Op::Set { key: key.clone(), value, until: *until });
            }
            if value != b"1" && value != b"2" {
                for value in [&b"1"[..], b"2"] {
                    all.push(Op::Set { key: key.clone(), value: value.to_vec(), until: *until });
                }
            }
        }
        Op::Incr { key, .. } => {
            all.push(Op::Set { key: key.clone(), value: b"1".to_vec(), until: Until::Keep });
            all.push(Op::Incr { key: key.clone(), by: 1 });
        }
        Op::Copy { from, to, replace } => {
            all.push(Op::Set { key: to.clone(), value: b"1".to_vec(), until: Until::Ever });
            if !replace {
                all.push(Op::Copy { from: from.clone(), to: to.clone(), replace: true });
            }
        }
        Op::Rename { from, to } => {
            all.push(Op::Remove { key: from.clone() });
            all.push(Op::Copy { from: from.clone(), to: to.clone(), replace: true });
        }
        Op::SetAll { pairs } => {
            if let [(key, value)] = &pairs[..] {
                let (key, value) = (key.clone(), value.clone());
                all.push(Op::Set { key, value, until: Until::Ever });
            }
            let fewer = (0..pairs.len()).filter(|_| pairs.len() > 1);
            all.extend(fewer.map(|at| Op::SetAll { pairs: without(pairs, at) }));
        }
        Op::RemoveAll { keys } => {
            if let [key] = &keys[..] {
                all.push(Op::Remove { key: key.clone() });
            }
            let fewer = (0..keys.len()).filter(|_| keys.len() > 1);
            all.extend(fewer.map(|at| Op::RemoveAll { keys: without(keys, at) }));
        }
        Op::StreamAppend { key, tail } if tail.len() > 1 => {
            all.push(Op::StreamAppend { key: key.clone(), tail: tail[..1].to_vec() });
            let tail = tail[..tail.len() / 2].to_vec();
            all.push(Op::StreamAppend { key: key.clone(), tail });
        }
        Op::StreamRead { key, at, count } if *at > 100 => {
            all.push(Op::StreamRead { key: key.clone(), at: at % 100, count: *count });
        }
        Op::Append { key, tail } => {
            all.push(Op::Set { key: key.clone(), value: tail.clone(), until: Until::Keep })
        }
        Op::JoinAdd { name, join, replace } => {
            all.extend(simpler_joins(join).into_iter().map(|join| Op::JoinAdd {
                name: name.clone(),
                join,
                replace: *replace,
            }));
            if *replace {
                all.push(Op::JoinAdd { name: name.clone(), join: join.clone(), replace: false });
            }
        }
        Op::Range { first, last, reverse, limit } => {
            let plain = |first: &[u8], last: &[u8]| Op::Range {
                first: first.to_vec(),
                last: last.to_vec(),
                reverse: false,
                limit: None,
            };
            if *reverse || limit.is_some() {
                all.push(plain(first, last));
            } else {
                all.extend(simpler_bounds(first, last).iter().map(|(a, b)| plain(a, b)));
            }
        }
        Op::RemoveRange { first, last } => {
            let bounds = simpler_bounds(first, last).into_iter();
            all.extend(bounds.map(|(first, last)| Op::RemoveRange { first, last }));
        }
        Op::Follow { by, first, last } => {
            let bounds = simpler_bounds(first, last).into_iter();
            all.extend(bounds.map(|(first, last)| Op::Follow { by: *by, first, last }));
        }
        Op::Verify { first, last } => {
            let bounds = simpler_bounds(first, last).into_iter();
            all.extend(bounds.map(|(first, last)| Op::Verify { first, last }));
        }
        _ => {}
    }
    all.retain(|simpler| simpler != op);
    all
}

fn without<T: Clone>(all: &[T], at: usize) -> Vec<T> {
    [&all[..at], &all[at + 1..]].concat()
}

fn simpler_bounds(first: &[u8], last: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    if !first.is_empty() || !last.is_empty() {
        all.push((Vec::new(), Vec::new()));
    }
    if !last.is_empty() {
        all.push((first.to_vec(), Vec::new()));
    }
    if let Some(shorter) = first.len().checked_sub(1) {
        let end = |at: usize| first[..at].iter().rposition(|&byte| byte == b'|');
        if let Some(separator) = end(shorter) {
            all.push((first[..=separator].to_vec(), last.to_vec()));
        }
        all.push((first[..shorter].to_vec(), last.to_vec()));
    }
    if last.len() > 1 {
        all.push((first.to_vec(), last[..last.len() - 1].to_vec()));
    }
    all
}

fn simpler_joins(join: &Join) -> Vec<Join> {
    let mut all = Vec::new();
    if join.mode != Mode::Push {
        all.push(Join { mode: Mode::Push, ..join.clone() });
    }
    let bound = |candidate: &Join| {
        let sources = candidate.sources.iter().map(|(_, source)| source);
        let slots: Vec<&str> = sources
            .flat_map(|source| source.slots().into_iter().chain(source.value_slots()))
            .collect();
        // Without any slot the text would be read in the bare style.
        !slots.is_empty() && candidate.output.slots().iter().all(|slot| slots.contains(slot))
    };
    for (at, (operator, _)) in join.sources.iter().enumerate() {
        if *operator == Operator::Check {
            let mut without = join.clone();
            without.sources.remove(at);
            if bound(&without) {
                all.push(without);
            }
        } else if *operator != Operator::Copy {
            let mut copy = join.clone();
            copy.sources[at].0 = Operator::Copy;
            if let Some(lens) = &mut copy.sources[at].1.lens {
                lens.on = None;
            }
            all.push(copy);
        }
    }
    for (at, (_, source)) in join.sources.iter().enumerate() {
        let Some(lens) = &source.lens else { continue };
        if lens.filter.is_some() {
            let mut without = join.clone();
            let left = Lens { filter: None, ..lens.clone() };
            without.sources[at].1.lens = Some(left).filter(|lens| *lens != Lens::default());
            all.push(without);
        }
        for bind in 0..lens.binds.len() {
            let mut without = join.clone();
            let (_, name) = lens.binds[bind].clone();
            let mut left = lens.clone();
            left.binds.remove(bind);
            left.on = left.on.filter(|on| *on != name);
            without.sources[at].1.lens = Some(left).filter(|lens| *lens != Lens::default());
            let is_same =
                |part: &Part| matches!(part, Part::Slot { name: own, .. } if *own == name);
            without.output.parts.retain(|part| !is_same(part));
            if bound(&without) {
                all.push(without);
            }
        }
    }
    if let Some(without) = without_widths(join) {
        all.push(without);
    }
    if join.keep.is_some() {
        all.push(Join { keep: None, ..join.clone() });
    }
    all.retain(|join| join.keep.as_ref().is_none_or(|keep| join.can_keep(keep)));
    all
}

fn without_widths(join: &Join) -> Option<Join> {
    let mut without = join.clone();
    let patterns = without.sources.iter_mut().map(|(_, source)| source);
    for pattern in patterns.chain([&mut without.output]) {
        for part in &mut pattern.parts {
            if let Part::Slot { width, .. } = part {
                *width = None;
            }
        }
    }
    (without != *join).then_some(without)
}
