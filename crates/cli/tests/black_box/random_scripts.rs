//! What several clients ask at random, of servers of 1, 2, 3 and 8 shards at once: every reply, message and byte against the oracle, and
//! against the server of one shard.
//!
//! A failure prints its seed and a short script. `HEADWATER_SERVER_SEED=7` runs that seed again, `HEADWATER_SERVER_ROUNDS=1000` more of
//! them, `HEADWATER_SERVER_SCRIPT=FILE` a script; `HEADWATER_SERVER_SHARDS=1,3` names the servers,
//! `HEADWATER_SERVER_WITHOUT=copies,busy` what is left out (`headwater_model::server::draw::SUBJECTS`).

use crate::support::Server;
use headwater_model::server::{Script, check_script, check_seed};
use std::net::SocketAddr;
use std::time::Duration;

/// No answer takes longer unless something is broken.
const PATIENCE: Duration = Duration::from_secs(15);

/// Servers of as many shards as tests are run with.
fn start() -> Vec<Server> {
    let named = std::env::var("HEADWATER_SERVER_SHARDS");
    let shards = named.unwrap_or_else(|_| String::from("1,2,3,8"));
    shards.split(',').map(|shards| Server::start(&["--shards", shards])).collect()
}

fn number_from(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn every_reply_is_the_oracles_with_any_number_of_shards() {
    let mut running = start();
    let mut servers = |failed: bool| -> Vec<SocketAddr> {
        if failed {
            running = start();
        }
        running.iter().map(|server| ([127, 0, 0, 1], server.port).into()).collect()
    };
    if let Ok(path) = std::env::var("HEADWATER_SERVER_SCRIPT") {
        let script = Script::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let checked = check_script(&script, PATIENCE, &mut servers);
        return checked.unwrap_or_else(|found| panic!("{found}"));
    }
    let without = std::env::var("HEADWATER_SERVER_WITHOUT").unwrap_or_default();
    let without: Vec<String> = without.split(',').map(str::to_owned).collect();
    let first = number_from("HEADWATER_SERVER_SEED", 1);
    let rounds = if std::env::var("HEADWATER_SERVER_SEED").is_ok() { 1 } else { 40 };
    for seed in first..first + number_from("HEADWATER_SERVER_ROUNDS", rounds) {
        let checked = check_seed(seed, &without, PATIENCE, &mut servers);
        checked.unwrap_or_else(|found| panic!("HEADWATER_SERVER_SEED={seed}: {found}"));
    }
}
