//! Commands of several keys, and transactions, among what else happens in a history.

use crate::history::Op;
use crate::rng::Rng;

/// Adds commands that read and write keys of the history, or write several, and makes transactions of what follows one
/// another, in the histories of many seeds.
pub(crate) fn commanded(seed: u64, ops: Vec<Op>) -> Vec<Op> {
    let rng = &mut Rng::new(seed ^ 0x636f_6d6d_616e_6473);
    let percent = [0, 5, 20, 40][rng.below(4)];
    let transactions = [0, 5, 15][rng.below(3)];
    let (mut keys, mut values) = (vec![b"plain".to_vec()], vec![b"1".to_vec()]);
    let mut all = Vec::new();
    // How much of the transaction under way is left.
    let mut left = 0;
    for op in ops {
        match &op {
            Op::Set { key, value, .. } => {
                keys.push(key.clone());
                values.push(value.clone());
            }
            Op::Get { key } | Op::Remove { key } => keys.push(key.clone()),
            _ => {}
        }
        if left == 0 && rng.chance(transactions) {
            left = 2 + rng.below(5);
            all.push(Op::Multi);
        }
        all.push(op);
        if rng.chance(percent) {
            all.push(command(rng, &keys, &values));
        }
        if left > 0 {
            left -= 1;
            if left == 0 {
                all.push(Op::Exec);
            }
        }
    }
    all
}

fn command(rng: &mut Rng, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Op {
    let key = |rng: &mut Rng| rng.pick(keys).clone();
    match rng.weighted(&[25, 20, 15, 20, 20]) {
        0 => Op::Incr { key: key(rng), by: *rng.pick(&[1, 1, -1, 40, i64::MAX]) },
        1 => Op::Copy { from: key(rng), to: key(rng), replace: rng.chance(60) },
        2 => Op::Rename { from: key(rng), to: key(rng) },
        3 => {
            let count = 1 + rng.below(4);
            let pair = |rng: &mut Rng| (key(rng), rng.pick(values).clone());
            Op::SetAll { pairs: (0..count).map(|_| pair(rng)).collect() }
        }
        _ => {
            let count = 1 + rng.below(4);
            Op::RemoveAll { keys: (0..count).map(|_| key(rng)).collect() }
        }
    }
}
