//! `cargo run -p headwater-model --example check -- --seeds 20000 [--seed 1] [--threads 2] [--most 3] [--sources]`
//!
//! Runs the histories of these seeds on the engine; prints the first that fail, shrunk.

use headwater_model::check::{Kind, Plan, check};
use headwater_model::history::script;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, otherwise: u64| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let first = number("--seed", 1);
    let seeds = number("--seeds", if words.iter().any(|word| word == "--seed") { 1 } else { 1000 });
    let has = |name: &str| words.iter().any(|word| word == name);
    let kind = if has("--sources") { Kind::Sources } else { Kind::Plain };
    if has("--show") {
        let _ = write!(stdout(), "{}", script(&kind.history(first)));
        return ExitCode::SUCCESS;
    }
    let plan = Plan::engine(kind, first, seeds, number("--threads", 2) as usize);
    let found = check(&plan, number("--most", 1) as usize, &mut |done| {
        let _ = write!(stderr(), "\r{done} of {seeds} histories ");
    });
    let _ = writeln!(stderr());
    for found in &found {
        let _ = writeln!(stdout(), "{found}");
    }
    let _ = writeln!(stdout(), "{} of {seeds} histories failed", found.len());
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
