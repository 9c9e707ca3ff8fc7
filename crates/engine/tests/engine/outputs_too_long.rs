//! Ranges that are divided where outputs would be longer than any key.

use crate::documents_in_slices::read;
use headwater_base::KeyRange;
use headwater_engine::{Engine, Expiry, Settings};

/// Rows of a slice.
const ROWS: usize = 50;
/// Slots of each length.
const MANY: usize = 150;

#[test]
fn a_range_is_divided_within_what_no_key_can_begin_with() {
    let mut engine = Engine::new(Settings::default());
    engine.set_slice(Some(ROWS));
    let join = "t|<a>|<b>|<c> = check p|<g>|<a> check q|<g>|<b> copy r|<g>|<c>";
    engine.join_add("t", join, false).expect("a join");
    let mut set = |key: String| engine.set(key.as_bytes(), b"1", Expiry::Never).expect("a write");
    // A long one of both is too much for a key.
    for long in ["", &"x".repeat(1000)] {
        for number in 0..MANY {
            set(format!("q|g|{long}{number:03}"));
        }
        (0..3).for_each(|number| set(format!("p|g|{long}{number}")));
    }
    set(String::from("r|g|1"));
    for (first, last) in [(&b"t|"[..], &b"t}"[..]), (b"t|x", b"t|y"), (b"", b"")] {
        let (keys, _) = read(&mut engine, first, last);
        let expected = if first == b"t|x" { 3 * MANY } else { 9 * MANY };
        let derived = keys.iter().filter(|key| key.starts_with(b"t|")).count();
        assert_eq!(derived, expected);
        assert!(keys.is_sorted());
    }
    assert_eq!(engine.verify(&KeyRange::all(), 10), Ok(Vec::new()));
}
