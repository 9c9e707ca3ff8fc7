//! A range is allowed only where every key of it is, and every key that a user is shown is one that it may read.

use headwater_acl::{Access, Demand, User, glob_prefix};
use headwater_base::KeyRange;
use headwater_command::glob;

/// A generator that is the same in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn bytes(&mut self, alphabet: &[u8], most: u64) -> Vec<u8> {
        let len = self.below(most + 1);
        (0..len).map(|_| alphabet[self.below(alphabet.len() as u64) as usize]).collect()
    }
}

/// Every key of at most three bytes of this alphabet, which has neighbours on both sides.
fn keys() -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    for at in 0.. {
        let Some(key) = all.get(at).cloned() else { break };
        if key.len() < 3 {
            all.extend(b"\0ab|\xff".iter().map(|&byte| [&key[..], &[byte]].concat()));
        }
    }
    all
}

#[test]
fn a_range_that_is_allowed_has_no_key_that_is_not() {
    let (mut draws, keys) = (Draws(0x9e37_79b9_7f4a_7c15), keys());
    let (mut allowed, mut refused) = (0, 0);
    for _ in 0..4000 {
        let mut user = User::new(b"a");
        for _ in 0..=draws.below(3) {
            let sign: &[u8] = [&b"~"[..], b"%R~", b"%W~"][draws.below(3) as usize];
            let text = draws.bytes(b"ab|**?[]\\^<user>", 5);
            // What is no pattern is refused.
            let _ = user.apply(&[sign, &text].concat());
        }
        let range = match draws.below(3) {
            0 => KeyRange::prefix(&draws.bytes(b"ab|\xff", 3)),
            1 => glob_prefix(&draws.bytes(b"ab|*?[]\\", 4)),
            _ => KeyRange::new(&draws.bytes(b"\0ab|\xff", 3), &draws.bytes(b"ab|\xff", 3)),
        };
        for access in [Access::READ, Access::WRITE, Access::ALL] {
            let may = |key: &[u8]| user.meets(&Demand::Key { key, access }).is_ok();
            if user.meets(&Demand::Range { range: range.clone(), access }).is_ok() {
                allowed += 1;
                for key in keys.iter().filter(|key| range.contains(key)) {
                    assert!(may(key), "{:?} of {range:?}: {key:?}", user.line().escape_ascii());
                }
            } else {
                refused += 1;
            }
        }
    }
    assert!(allowed > 500 && refused > 500, "{allowed} {refused}");
}

#[test]
fn whatever_a_glob_matches_lies_in_its_range() {
    let (mut draws, keys) = (Draws(7), keys());
    let mut matched = 0;
    for _ in 0..3000 {
        let pattern = draws.bytes(b"ab|*?[]\\^-", 6);
        let range = glob_prefix(&pattern);
        for key in keys.iter().filter(|key| glob::matches(&pattern, key)) {
            matched += 1;
            assert!(range.contains(key), "{:?} {key:?}", pattern.escape_ascii());
        }
    }
    assert!(matched > 1000, "{matched}");
}
