//! One law: a store with any boundaries is one ordered map.

use super::*;
use alloc::string::{String, ToString};
use headwater_base::hash::Secret;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn key(&mut self) -> Vec<u8> {
        let alphabet = [b"|", b"|", b"|", b"a", b"b", b"}", b"{", b"~", b"\0", b"\xff", b"1"];
        (0..1 + self.below(6)).flat_map(|_| alphabet[self.below(alphabet.len())].to_vec()).collect()
    }
}

fn held(store: &Store<()>, first: &[u8], last: &[u8], reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut got = Vec::new();
    let _ = store.scan(first, last, reverse, &mut |key, value| {
        got.push((key.to_vec(), store.pool.view(value).to_vec()));
        ControlFlow::Continue(())
    });
    got
}

#[test]
fn groups_change_no_answer() {
    for seed in 0..400 {
        let mut draws = Draws(seed);
        let mut store = Store::<()>::new(Secret::fixed(seed));
        let mut model = Model::new();
        for step in 0..150 {
            let key = draws.key();
            match draws.below(14) {
                0..7 => {
                    let text = step.to_string().repeat(1 + draws.below(5));
                    let table = store.table_for(&key);
                    let value = store.pool.insert(text.as_bytes());
                    let old = store.insert(table, &key, value);
                    assert_eq!(old.is_some(), model.insert(key, text.into_bytes()).is_some());
                    if let Some(old) = old {
                        store.pool.release(old);
                    }
                }
                7..9 => {
                    let removed = store.table_of(&key).and_then(|id| store.remove(id, &key));
                    assert_eq!(removed.is_some(), model.remove(&key).is_some());
                    if let Some(value) = removed {
                        store.pool.release(value);
                    }
                }
                9 => {
                    if let Some(id) = store.table_of(&key)
                        && id != Store::<()>::UNNAMED
                    {
                        let (table, pool) = store.table_mut(id);
                        if table.boundary() > 0 || draws.below(2) == 0 {
                            table.set_boundary(pool, draws.below(4));
                        } else {
                            store.group_by(id, 1 + draws.below(3));
                        }
                    }
                }
                10 if draws.below(2) == 0 => store.regroup(1 + draws.below(6)),
                _ => {
                    let last = if draws.below(4) == 0 { Vec::new() } else { draws.key() };
                    let mut expected: Vec<_> = model
                        .iter()
                        .filter(|(k, _)| **k >= key && before_end(k, &last))
                        .map(|(k, v)| (k.clone(), v.clone()))
                        .collect();
                    assert_eq!(held(&store, &key, &last, false), expected, "seed {seed}");
                    expected.reverse();
                    assert_eq!(held(&store, &key, &last, true), expected, "seed {seed}");
                    let got = store.table_of(&key).and_then(|id| store.table(id).get(&key));
                    assert_eq!(got.is_some(), model.contains_key(&key));
                }
            }
        }
        let sizes = store.tables().map(|(_, table)| table.sizes().keys).sum::<usize>();
        assert_eq!(sizes, model.len());
        while store.is_regrouping() {
            store.regroup(3);
        }
        let all: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(held(&store, b"", b"", false), all);
        store.clear();
        assert_eq!(store.tables().count(), 1);
        assert!(held(&store, b"", b"", false).is_empty());
        // Memory goes back bit by bit, and what is written meanwhile stays.
        let kept = store.pool.insert(b"a value that is no part of its reference");
        assert!(store.insert(Store::<()>::UNNAMED, b"new", kept).is_none());
        let own = store.pool.footprint(kept);
        let (mut before, mut steps) = (store.pool.bytes(), 0);
        while store.has_discarded() {
            store.dissolve(7);
            assert!(store.pool.bytes() <= before);
            (before, steps) = (store.pool.bytes(), steps + 1);
        }
        assert!(steps >= model.len() / 200, "{steps} steps for {} keys", model.len());
        assert_eq!((store.pool.bytes(), store.table(Store::<()>::UNNAMED).sizes().keys), (own, 1));
    }
}

/// Keys that made a multiplication zero under any seed, when the constants were public ones.
fn flood(number: u32, prefix: &[u8]) -> Vec<u8> {
    let mut key = prefix.to_vec();
    key.extend_from_slice(&[0xdb, 0x28, 0xb4, 0xa0, 0xd1, 0x7e, 0x03, 0xe7]);
    key.extend_from_slice(number.to_string().as_bytes());
    key.resize(prefix.len() + 16, b'.');
    key
}

#[test]
fn keys_that_are_made_to_collide_are_found_as_quickly_as_others() {
    let mut store = Store::<()>::new(Secret::fixed(11));
    let grouped = store.table_for(b"users|");
    store.pin(grouped);
    store.table_mut(grouped).0.set_boundary(&Pool::new(), 1);
    let count = 20_000;
    for number in 0..count {
        let mut group = flood(number, b"users|");
        group.extend_from_slice(b"|name");
        for key in [flood(number, b""), group] {
            let value = store.pool.insert(b"v");
            let table = store.table_for(&key);
            assert!(store.insert(table, &key, value).is_none());
        }
    }
    let plain = store.table(Store::<()>::UNNAMED).probes()[1];
    let groups = store.table(grouped).probes()[0];
    for probes in [plain, groups] {
        let (read, entries) = probes.expect("a large table has an index of its keys");
        assert_eq!(entries, count as usize);
        // Linear probing at a load of at most three quarters: two and a half slots a find.
        assert!(read < 3 * entries, "{read} slots are read to find {entries} entries");
    }
}

#[test]
fn who_wants_a_few_keys_does_not_go_through_all_tables() {
    let mut store = Store::<()>::new(Secret::fixed(1));
    for number in 0..1000 {
        let key = alloc::format!("{number:03}|key");
        let (table, value) = (store.table_for(key.as_bytes()), store.pool.insert(b"v"));
        assert!(store.insert(table, key.as_bytes(), value).is_none());
    }
    for (reverse, keys) in [(false, ["000|key", "001|key"]), (true, ["999|key", "998|key"])] {
        store.visited.set(0);
        let mut found = Vec::new();
        let _ = store.scan(b"", b"", reverse, &mut |key, _| {
            found.push(String::from_utf8_lossy(key).into_owned());
            if found.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(found, keys);
        // One of the unnamed table before, between and behind the others.
        assert!(store.visited.get() <= 4, "{} parts were looked for", store.visited.get());
    }
    assert_eq!(store.parts(b"", b"").len(), 2001, "each lies between two of the unnamed table's");
    assert!(store.parts(b"500x|a", b"500x|b").is_empty(), "there is no such table");
}
