//! Base keys that have changed, for those who hold copies of them.

use headwater_base::Millis;
use headwater_engine::{ChangedKeys, Engine, Expiry, Settings};

fn taken(engine: &mut Engine) -> (bool, Vec<Vec<u8>>) {
    let mut changed = ChangedKeys::default();
    engine.take_changed(&mut changed);
    (changed.all(), changed.iter().map(<[u8]>::to_vec).collect())
}

#[test]
fn every_write_of_a_base_key_is_listed_once_somebody_asks() {
    let mut engine = Engine::new(Settings::default());
    engine.set(b"a", b"1", Expiry::Never).unwrap();
    assert_eq!(taken(&mut engine), (false, Vec::new()));
    engine.list_changes(true);
    engine.join_add("j", "t|<u> = count s|<u>|<p>", false).unwrap();
    engine.set(b"a", b"2", Expiry::At(Millis(10))).unwrap();
    engine.append(b"bc", b"x").unwrap();
    engine.set(b"s|ann|bob", b"", Expiry::Never).unwrap();
    assert!(engine.remove(b"bc").unwrap() && !engine.remove(b"bc").unwrap());
    let keys = [&b"a"[..], b"bc", b"s|ann|bob", b"bc"].map(<[u8]>::to_vec);
    assert!(engine.has_changed());
    assert_eq!(taken(&mut engine), (false, keys.to_vec()));
    // A read changes nothing, and neither does what a join derives from it.
    assert!(engine.get(b"t|ann").unwrap().is_some());
    assert!(!engine.has_changed());
    engine.advance(Millis(20));
    assert_eq!(taken(&mut engine), (false, vec![b"a".to_vec()]));
    engine.flush();
    assert_eq!(taken(&mut engine), (true, Vec::new()));
    engine.list_changes(false);
    engine.set(b"a", b"3", Expiry::Never).unwrap();
    assert!(!engine.has_changed());
}

#[test]
fn a_long_list_says_that_all_may_have_changed() {
    let mut engine = Engine::new(Settings::default());
    engine.list_changes(true);
    let key = [b'k'; 1000];
    // A mebibyte of keys is more than anybody wants to be told one by one.
    for _ in 0..=(1 << 20) / key.len() + 1 {
        engine.set(&key, b"", Expiry::Never).unwrap();
    }
    assert_eq!(taken(&mut engine), (true, Vec::new()));
    engine.set(&key, b"", Expiry::Never).unwrap();
    assert_eq!(taken(&mut engine), (false, vec![key.to_vec()]));
}
