//! Snapshots of snapshots are never too old; snapshots that are computed in slices come to an end.

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

fn read_one(engine: &mut Engine, key: &str) -> String {
    let value = engine.get(key.as_bytes()).unwrap().map(|value| value.to_vec());
    String::from_utf8(value.unwrap_or_default()).unwrap()
}

/// How old what is read of `top|x` is, at most, where base data changes every 10 ms and `below|x` is read as often.
fn oldest(joins: &[&str]) -> u64 {
    let mut engine = Engine::new(Settings::default());
    for (at, spec) in joins.iter().enumerate() {
        engine.join_add(&at.to_string(), spec, false).unwrap();
    }
    let mut oldest = 0;
    for now in (1000_u64..9000).step_by(10) {
        engine.advance(Millis(now));
        engine.set(b"base|x", now.to_string().as_bytes(), Expiry::Never).unwrap();
        read_one(&mut engine, "below|x");
        // Neither every moment, nor always the same one of a window.
        if now % 70 < 30 || now % 1300 < 300 {
            let seen: u64 = read_one(&mut engine, "top|x").parse().unwrap();
            oldest = oldest.max(now - seen);
        }
    }
    engine.check_invariants();
    oldest
}

#[test]
fn a_snapshot_of_a_snapshot_is_no_older_than_its_own_time() {
    for (top, below, least) in [(300, 300, 200), (300, 1000, 200), (1000, 300, 800)] {
        let [above, under] = [top, below].map(|millis| millis as f64 / 1000.0);
        let lower = format!("below|<k> = snapshot {under} copy base|<k>");
        let upper = format!("top|<k> = snapshot {above} copy below|<k>");
        let found = oldest(&[&lower, &upper]);
        assert!((least..=top).contains(&found), "{top} over {below}: {found}");
        // With a pull join between.
        let between = "between|<k> = pull copy below|<k>";
        let upper = format!("top|<k> = snapshot {above} copy between|<k>");
        let found = oldest(&[&lower, between, &upper]);
        assert!((least..=top).contains(&found), "{top} over {below} by pull: {found}");
    }
    let joins =
        ["below|<k> = snapshot 0.9 copy base|<k>", "middle|<k> = snapshot 0.5 copy below|<k>"];
    let found = oldest(&[joins[0], joins[1], "top|<k> = snapshot 0.2 copy middle|<k>"]);
    assert!((100..=200).contains(&found), "{found}");
}
