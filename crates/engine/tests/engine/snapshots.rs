//! Snapshots that are computed in slices, for reads that go on by turns.

use headwater_base::Millis;
use headwater_engine::{Effect, Engine, Expiry, RangeOptions, Settings, Stop, Ticket};
use std::collections::BTreeMap;

/// How many keys each owner has.
const KEYS: usize = 100;
/// Slices within which reads end, if each of them makes progress: many times as many as they need.
const SLICES_MAX: usize = 2000;

/// Keys of some owners, which a snapshot copies, in slices of ten rows.
fn copied(owners: &[&str]) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("v", "v|<a>|<b> = snapshot 0.5 copy s|<a>|<b>", false).expect("a join");
    for owner in owners {
        for key in 0..KEYS {
            let key = format!("s|{owner}|{key:03}");
            engine.set(key.as_bytes(), b"x", Expiry::Never).expect("a base key");
        }
    }
    engine.set_slice(Some(10));
    engine
}

/// Reads the copies of an owner, or has a slice of it.
fn read(engine: &mut Engine, owner: &str) -> Result<(), Ticket> {
    let (first, last) = (format!("v|{owner}|"), format!("v|{owner}}}"));
    let mut found = 0;
    let each = &mut |_: &[u8], _: headwater_engine::Value<'_>| found += 1;
    engine.begin_slice();
    let done = engine.range(first.as_bytes(), last.as_bytes(), RangeOptions::default(), each);
    engine.end_slice();
    match done {
        Ok(_) => assert_eq!(found, KEYS),
        Err(Stop::Wait(ticket)) => return Err(ticket),
        Err(stop) => panic!("{stop:?}"),
    }
    Ok(())
}

/// Reads the copies of all owners by turns, while so much time passes with each slice.
fn read_by_turns(owners: &[&str], millis: u64) {
    let mut engine = copied(owners);
    let mut waiting = BTreeMap::new();
    for &owner in owners {
        waiting.extend(read(&mut engine, owner).err().map(|ticket| (ticket, owner)));
    }
    assert_eq!(waiting.len(), owners.len(), "each takes more than a slice");
    let mut now = 0;
    for _ in 0..SLICES_MAX {
        now += millis;
        engine.advance(Millis(now));
        engine.go_on();
        for effect in engine.take_effects() {
            let Effect::Wake(ticket) = effect else { panic!("{effect:?}") };
            let owner = waiting.remove(&ticket).expect("somebody waits");
            engine.resume(ticket);
            waiting.extend(read(&mut engine, owner).err().map(|ticket| (ticket, owner)));
        }
        if waiting.is_empty() {
            return engine.check_invariants();
        }
    }
    panic!("after {SLICES_MAX} slices there wait for ever {waiting:?}");
}

#[test]
fn each_of_two_reads_remembers_how_much_fits_into_a_slice() {
    read_by_turns(&["a", "b"], 0);
}

#[test]
fn reads_end_whose_snapshots_go_before_they_have_come_to_their_end() {
    read_by_turns(&["a"], 200);
    read_by_turns(&["a", "b", "c"], 200);
}
