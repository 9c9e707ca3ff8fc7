//! Conditions on long documents: what is read of these counts towards a slice.

use headwater_base::KeyRange;
use headwater_engine::{Engine, Expiry, RangeOptions, Settings, Stop};

/// Rows of a slice.
const ROWS: usize = 100;
const DOCUMENTS: usize = 100;
/// Bytes of a document, as many as 48 rows.
const BYTES: usize = 48 << 10;

fn engine(join: &str) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.set_slice(Some(ROWS));
    engine.join_add("j", join, false).expect("a join");
    let text = "x".repeat(BYTES);
    for number in 0..DOCUMENTS {
        let document = format!("{{\"a\":{number},\"b\":{},\"text\":\"{text}\"}}", number % 2);
        engine
            .set(format!("s|{number:03}").as_bytes(), document.as_bytes(), Expiry::Never)
            .expect("a write");
    }
    engine
}

/// Reads the keys of a range in slices; how many slices there were.
pub(crate) fn read(engine: &mut Engine, first: &[u8], last: &[u8]) -> (Vec<Vec<u8>>, usize) {
    for slices in 1..10_000 {
        let mut keys = Vec::new();
        engine.begin_slice();
        let read = engine.range(first, last, RangeOptions::default(), &mut |key, _| {
            keys.push(key.to_vec());
        });
        engine.end_slice();
        match read {
            Ok(_) => return (keys, slices),
            Err(Stop::Wait(ticket)) => {
                engine.forget_later(ticket);
                engine.go_on();
                engine.resume(ticket);
            }
            Err(Stop::Failed(error)) => panic!("{error}"),
        }
        engine.check_invariants();
    }
    panic!("it does not end");
}

#[test]
fn documents_count_by_their_bytes() {
    for (join, outputs) in [
        // Divided at a key; in steps, as there is one output; and where nothing comes of most keys.
        ("o|<n> = copy s|<n> where json(.a) >= 0 and json(.b) exists", DOCUMENTS),
        ("o|all = count s|<n> where json(.a) >= 0 and json(.b) = 1", 1),
        ("o|<n> = copy s|<n> where json(.a) = 7 or json(.a) = 8", 2),
        ("o|<a>|<n> = index s|<n> as json(.a) <a>", DOCUMENTS),
        ("o|<n> = check s|<n> where json(.a) >= 0 copy s|<n>", DOCUMENTS),
    ] {
        let mut engine = engine(join);
        let (keys, slices) = read(&mut engine, b"o|", b"o}");
        assert_eq!(keys.len(), outputs, "{join}");
        // All of them take as long as 4800 rows, and one of them half a slice.
        assert!(slices >= 10, "{join}: {slices} slices");
        assert_eq!(engine.verify(&KeyRange::all(), 10), Ok(Vec::new()));
    }
}
