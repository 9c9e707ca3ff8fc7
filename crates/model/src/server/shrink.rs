//! Makes a failing script short, so that a person can read why it fails.

use super::commands::upper;
use super::script::Script;

/// The shortest failing script found; `fails` runs one.
#[must_use]
pub(super) fn shrink(script: &Script, fails: &mut dyn FnMut(&Script) -> bool) -> Script {
    let mut best = script.clone();
    if best.busy {
        attempt(&mut best, fails, |script| script.busy = false);
    }
    loop {
        let before = best.clone();
        chunks(
            &mut best,
            fails,
            |script| script.steps.len(),
            |script, from, to| {
                script.steps.drain(from..to);
            },
        );
        for at in (0..best.steps.len()).rev() {
            attempt(&mut best, fails, |script| script.steps[at].cuts.clear());
            let requests = |script: &Script| script.steps[at].requests.len();
            chunks(&mut best, fails, requests, |script, from, to| {
                script.steps[at].requests.drain(from..to);
            });
        }
        best.steps.retain(|step| !step.requests.is_empty());
        words(&mut best, fails);
        if best == before {
            return best;
        }
    }
}

fn attempt(
    best: &mut Script,
    fails: &mut dyn FnMut(&Script) -> bool,
    change: impl Fn(&mut Script),
) -> bool {
    let mut candidate = best.clone();
    change(&mut candidate);
    let shorter = candidate != *best && fails(&candidate);
    if shorter {
        *best = candidate;
    }
    shorter
}

/// Leaves out parts that get smaller.
fn chunks(
    best: &mut Script,
    fails: &mut dyn FnMut(&Script) -> bool,
    length: impl Fn(&Script) -> usize,
    leave_out: impl Fn(&mut Script, usize, usize),
) {
    let mut size = (length(best) / 2).max(1);
    loop {
        let mut at = 0;
        while at < length(best) {
            let end = (at + size).min(length(best));
            if !attempt(best, fails, |script| leave_out(script, at, end)) {
                at = end;
            }
        }
        if size == 1 {
            return;
        }
        size = size.div_ceil(2);
    }
}

/// Requests that may name fewer keys, and how many words each takes.
fn words_of_a_key(name: &str) -> Option<usize> {
    match name {
        "DEL" | "UNLINK" | "EXISTS" | "MGET" | "WATCH" => Some(1),
        "MSET" | "MSETNX" => Some(2),
        _ => None,
    }
}

/// Leaves out keys of requests that name several.
fn words(best: &mut Script, fails: &mut dyn FnMut(&Script) -> bool) {
    for step in 0..best.steps.len() {
        for request in 0..best.steps[step].requests.len() {
            let name = upper(&best.steps[step].requests[request][0]);
            let Some(count) = words_of_a_key(&name) else { continue };
            let mut at = 1;
            while at + count <= best.steps[step].requests[request].len() {
                let leave_out = |script: &mut Script| {
                    script.steps[step].requests[request].drain(at..at + count);
                };
                let is_last = best.steps[step].requests[request].len() <= 1 + count;
                if is_last || !attempt(best, fails, leave_out) {
                    at += count;
                }
            }
        }
    }
}
