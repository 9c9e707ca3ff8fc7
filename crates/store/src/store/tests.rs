//! One law: a store with any boundaries is one ordered map.

use super::*;
use alloc::string::ToString;

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
        let mut store = Store::<()>::new(seed);
        let mut model = Model::new();
        for step in 0..150 {
            let key = draws.key();
            match draws.below(12) {
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
                        table.set_boundary(pool, draws.below(4));
                    }
                }
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
        store.clear();
        assert_eq!((store.pool.bytes(), store.tables().count()), (0, 1));
    }
}
