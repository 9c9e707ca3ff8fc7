//! Seeds, many of them: `HEADWATER_SIM_SEEDS=5000` runs more, `HEADWATER_SIM_SEED=12` that one alone.

use std::panic::catch_unwind;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn shards_answer_as_one() {
    let seeds = match number("HEADWATER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADWATER_SIM_SEEDS").unwrap_or(300),
    };
    let mut failed = Vec::new();
    for seed in seeds {
        match catch_unwind(|| headwater_sim::run(seed)) {
            Ok(Ok(answers)) => assert!(answers > 0, "seed {seed} asks for nothing"),
            Ok(Err(text)) => failed.push(format!("HEADWATER_SIM_SEED={seed}: {text}")),
            Err(_) => failed.push(format!("HEADWATER_SIM_SEED={seed}: panics")),
        }
        if failed.len() >= 5 {
            break;
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
