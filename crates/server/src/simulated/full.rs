//! Shards that lack memory while clients are busy: what is refused for that is done nowhere, and what joins give is computed anew when there is
//! room.

use super::busy::{Busy, COUNT, beginning};
use super::tests::{is_whole, number_at, read_all, seeds, shards, shown, told};
use super::world::World;
use headwater_config::Size;
use headwater_model::server::{ACCOUNTS, EACH, account};

/// A bound that no test comes to: how much is taken is simulated.
const BOUND: u64 = 8 << 30;

fn run(count: u16, seed: u64) -> Result<(u64, u64), String> {
    let world = &mut World::new(count, seed, &|config| config.memory.max = Size(BOUND));
    (0..world.shards()).for_each(|at| world.fill_memory(at, false));
    let (first, _) = world.connect();
    first.ask(&beginning());
    while first.state().told.is_empty() {
        world.turn();
    }
    for (name, join) in [("a", "d|<n> = copy ~account|<n>"), ("b", "e = sum ~account|<n>")] {
        let added = told(world, &["JOIN.ADD", name, join]);
        if added.starts_with('-') {
            return Err(added);
        }
    }
    let mut busy = Busy::new(2 + seed as usize % 5, seed, false);
    busy.moves_among = if seed.is_multiple_of(3) { count } else { 0 };
    busy.may_lack_memory = true;
    busy.begin(world);
    for _ in 0..5000 {
        if world.draws.below(60) == 0 {
            let at = world.draws.below(world.shards());
            let is_full = world.draws.below(2) == 0;
            world.fill_memory(at, is_full);
        }
        if world.draws.below(3) == 0 {
            busy.step(world);
        }
        world.turn();
    }
    (0..world.shards()).for_each(|at| world.fill_memory(at, false));
    busy.end(world)?;
    let all = read_all(world)?;
    if !is_whole(&all) || number_at(&all, COUNT) < Some(busy.counted()) {
        return Err(format!("there is {}", shown(&all)));
    }
    let sum = told(world, &["GET", "e"]);
    if sum != format!("$4\r\n{}\r\n", ACCOUNTS as i64 * EACH) {
        return Err(format!("the sum is {sum}"));
    }
    for at in 0..ACCOUNTS {
        let (name, key) = (account(at), format!("d|{at}"));
        let (there, copied) = (told(world, &["GET", &name]), told(world, &["GET", &key]));
        if there != copied {
            return Err(format!("{key} is {copied}, and {name} {there}"));
        }
    }
    Ok((busy.answers, busy.refused))
}

#[test]
fn what_is_refused_for_want_of_memory_is_done_nowhere() {
    let (mut answers, mut refused) = (0, 0);
    for count in shards("2,3,5") {
        for seed in seeds(8) {
            let name =
                format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
            let done = run(count, seed).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            (answers, refused) = (answers + done.0, refused + done.1);
        }
    }
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    assert!(
        alone || refused > 300 && answers > 2 * refused,
        "{answers} answers, {refused} refused"
    );
}
