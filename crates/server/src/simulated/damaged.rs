//! Shards in processes of their own, of whose messages some are damaged.
//!
//! What is damaged on its way is noticed in any case, which ends the connection: everybody is answered, and nothing else has to happen for that. What
//! a shard itself writes wrongly is refused where it is no message, and taken where it is one still, of whichever meaning. Values may be wrong then;
//! but nothing panics, and when the connections have begun anew, everybody is answered.

use super::apart::define_them;
use super::busy::request;
use super::pipe::{Pipe, State};
use super::tests::{seeds, shards};
use super::world::{Draws, PATIENCE, World};
use headwater_protocol::resp::ReplyCutter;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What clients ask: words, of which `~` stands for a key.
const ASKED: [&str; 22] = [
    "GET ~",
    "SET ~ value",
    "SET ~ 5 PX 100",
    "INCR ~",
    "MGET ~ ~ ~",
    "DEL ~ ~",
    "EXISTS ~ ~",
    "APPEND ~ more",
    "EXPIRE ~ 10",
    "PREFIX d|all| LIMIT 5",
    "PREFIX ~count|",
    "RANGE g| g} VALUES",
    "GET e",
    "COPY ~ ~",
    "WATCH ~",
    "MULTI",
    "EXEC",
    "SCAN 0 COUNT 20",
    "CLIENT TRACKING ON",
    "CLIENT TRACKING OFF",
    "PUBLISH news something",
    "EXPLAIN d|all|1",
];

/// A client, and how many answers are missing.
struct Client {
    pipe: Pipe,
    told: Vec<u8>,
    missing: usize,
}

impl Client {
    fn ask(&mut self, draws: &mut Draws) {
        let words = ASKED[draws.below(ASKED.len())].split(' ');
        let words: Vec<String> = words
            .map(|word| match word {
                "~" => format!("~count|{}", draws.below(9)),
                word => word.to_owned(),
            })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.pipe.ask(&request(&words));
        self.missing += 1;
    }

    /// Takes what has come. Whose server has hung up comes again.
    fn look(&mut self, world: &mut World) {
        let ended = {
            let State { told, server_ended, .. } = &mut *self.pipe.state();
            self.told.extend(told.drain(..));
            *server_ended
        };
        while let Some(length) = ReplyCutter::default().cut(&self.told) {
            self.told.drain(..length);
            self.missing = self.missing.saturating_sub(1);
        }
        if ended {
            *self = Self { pipe: world.connect().0, told: Vec::new(), missing: 0 };
        }
    }
}

/// How many batches were refused, and how many taken for what they are not. `forged`: it is their sender who has written them so.
fn run(count: u16, seed: u64, forged: bool) -> Result<(u64, u64), String> {
    let world = &mut World::apart(count, seed, &|config| config.limits.value_bytes_max = 1 << 16);
    while !world.is_quiet() {
        world.turn();
    }
    define_them(world)?;
    let mut draws = Draws::new(seed ^ 0x77);
    let mut clients: Vec<Client> =
        (0..4).map(|_| Client { pipe: world.connect().0, told: Vec::new(), missing: 0 }).collect();
    (world.faults.damaged, world.faults.forged) = if forged { (0, 10) } else { (10, 0) };
    for _ in 0..3000 {
        let client = &mut clients[draws.below(4)];
        client.look(world);
        if client.missing < 4 {
            client.ask(&mut draws);
        }
        if draws.below(40) == 0 {
            world.connect_all();
        }
        world.turn();
    }
    (world.faults.damaged, world.faults.forged) = (0, 0);
    if forged {
        // Whoever waits for what was said in other words is told that nobody knows.
        world.cut_all();
    }
    world.connect_all();
    let began = world.uptime;
    while clients.iter().any(|client| client.missing > 0) {
        world.turn();
        clients.iter_mut().for_each(|client| client.look(world));
        if world.uptime > began + PATIENCE {
            let missing: Vec<usize> = clients.iter().map(|client| client.missing).collect();
            return Err(format!("answers are missing: {missing:?}"));
        }
    }
    Ok((world.faults.refused, world.faults.taken))
}

#[test]
fn what_is_written_wrongly_is_refused_or_taken_and_everybody_is_answered() {
    let (refused, taken) = run_all(true);
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    assert!(alone || refused > 100 && taken > 100, "{refused} refused, {taken} taken");
}

#[test]
fn what_is_damaged_on_its_way_is_refused_and_everybody_is_answered() {
    let (refused, taken) = run_all(false);
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    assert!(taken == 0 && (alone || refused > 100), "{refused} refused, {taken} taken");
}

/// All seeds: how many batches were refused, and how many taken.
fn run_all(forged: bool) -> (u64, u64) {
    let (mut refused, mut taken) = (0, 0);
    for count in shards("2,3") {
        for seed in seeds(12) {
            let name =
                format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
            let run = AssertUnwindSafe(|| run(count, seed, forged));
            let damaged = catch_unwind(run).unwrap_or(Err(String::from("it panics")));
            let damaged = damaged.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            (refused, taken) = (refused + damaged.0, taken + damaged.1);
        }
    }
    (refused, taken)
}
