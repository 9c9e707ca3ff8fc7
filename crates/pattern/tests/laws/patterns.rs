//! Matching, binding, filling and collisions, against a plain reading of their definitions.

use crate::random::Random;
use headwater_pattern::{Bindings, Component, Pattern};

const WIDTHS: [Option<usize>; 4] = [None, None, Some(1), Some(2)];

/// A pattern of up to three components; equal slots have equal widths only if `regular`.
fn draw(random: &mut Random, regular: bool) -> Pattern {
    let component = |random: &mut Random| match random.below(3) {
        0 => Component::Literal(random.bytes(b"ab", 2)),
        _ => {
            let slot = random.below(3);
            let width = if regular { WIDTHS[slot] } else { WIDTHS[random.below(4)] };
            Component::Slot { slot, width }
        }
    };
    let count = random.below(4);
    let components = (0..count).map(|_| component(random)).collect();
    Pattern { table: random.bytes(b"tu", 1), components }
}

fn draw_key(random: &mut Random) -> Vec<u8> {
    let mut parts = vec![random.bytes(b"tu", 1)];
    for _ in 0..random.below(5) {
        parts.push(if random.one_in(12) { Vec::new() } else { random.bytes(b"ab", 3) });
    }
    parts.join(&b'|')
}

/// The values that `key` gives the three slots, with those `bound` before; by splitting it.
fn plainly(
    pattern: &Pattern,
    key: &[u8],
    bound: [Option<&[u8]>; 3],
) -> Option<Vec<Option<Vec<u8>>>> {
    let parts: Vec<&[u8]> = key.split(|&byte| byte == b'|').collect();
    if parts.len() != pattern.components.len() + 1 || parts[0] != pattern.table {
        return None;
    }
    let mut values: Vec<Option<Vec<u8>>> =
        bound.iter().map(|value| value.map(<[u8]>::to_vec)).collect();
    for (part, component) in parts[1..].iter().zip(&pattern.components) {
        match component {
            Component::Literal(literal) if literal == part => {}
            Component::Literal(_) => return None,
            Component::Slot { slot, width } => {
                let fits = !part.is_empty() && width.is_none_or(|width| width == part.len());
                if !fits || values[*slot].as_deref().is_some_and(|value| value != *part) {
                    return None;
                }
                values[*slot] = Some(part.to_vec());
            }
        }
    }
    Some(values)
}

fn values(bindings: &Bindings<'_>) -> Vec<Option<Vec<u8>>> {
    (0..3).map(|slot| bindings.get(slot).map(<[u8]>::to_vec)).collect()
}

#[test]
fn matching_and_binding_agree_with_splitting() {
    let mut random = Random::new(1);
    let mut matched = 0;
    for round in 0..60_000 {
        let pattern = draw(&mut random, false);
        let key = draw_key(&mut random);
        let shown = format!("round {round}: {pattern:?} {}", key.escape_ascii());
        let bound = random.one_in(2).then(|| random.bytes(b"ab", 2));
        let slot = random.below(3);
        let mut before = [None; 3];
        before[slot] = bound.as_deref();
        let mut bindings = Bindings::new();
        if let Some(value) = before[slot] {
            bindings.set(slot, value);
        }
        let unchanged = values(&bindings);
        assert_eq!(pattern.matches(&key), plainly(&pattern, &key, [None; 3]).is_some(), "{shown}");
        let expected = plainly(&pattern, &key, before);
        let found = pattern.bind(&key, &mut bindings);
        assert_eq!(found, expected.is_some(), "{shown} {before:?}");
        matched += usize::from(found);
        assert_eq!(values(&bindings), expected.unwrap_or(unchanged), "{shown} {before:?}");
    }
    assert!(matched > 2_000, "too few of the drawn keys match: {matched}");
}

#[test]
fn filling_appends_a_key_or_nothing() {
    let mut random = Random::new(2);
    for round in 0..30_000 {
        let pattern = draw(&mut random, false);
        let drawn: Vec<_> =
            (0..3).map(|_| (!random.one_in(4)).then(|| random.bytes(b"ab", 2))).collect();
        let mut bindings = Bindings::new();
        for (slot, value) in drawn.iter().enumerate() {
            if let Some(value) = value {
                bindings.set(slot, value);
            }
        }
        let mut parts = vec![pattern.table.clone()];
        for component in &pattern.components {
            match component {
                Component::Literal(literal) => parts.push(literal.clone()),
                Component::Slot { slot, width } => match &drawn[*slot] {
                    Some(value) if width.is_none_or(|width| width == value.len()) => {
                        parts.push(value.clone());
                    }
                    _ => break,
                },
            }
        }
        let covered = parts.len() - 1;
        let whole = covered == pattern.components.len();
        let mut expected = b"before ".to_vec();
        expected.extend(parts.join(&b'|'));
        let mut out = b"before ".to_vec();
        assert_eq!(pattern.fill(&bindings, &mut out), whole, "round {round}");
        assert_eq!(out, if whole { expected.clone() } else { b"before ".to_vec() });
        if !whole {
            expected.push(b'|');
        }
        out.truncate(b"before ".len());
        assert_eq!(pattern.bound_prefix(&bindings, &mut out), covered, "round {round}");
        assert_eq!(out, expected, "round {round}: {pattern:?} {bindings:?}");
    }
}

#[test]
fn an_empty_value_fills_nothing() {
    let component = Component::Slot { slot: 0, width: None };
    let pattern = Pattern { table: b"t".to_vec(), components: vec![component] };
    let mut bindings = Bindings::new();
    bindings.set(0, b"");
    let mut out = Vec::new();
    assert!(!pattern.fill(&bindings, &mut out) && out.is_empty());
    assert_eq!(pattern.bound_prefix(&bindings, &mut out), 0);
    assert_eq!(out, b"t|");
}

#[test]
fn patterns_collide_if_one_key_matches_both() {
    let mut components = vec![Vec::new()];
    for len in 1..=3_u32 {
        // `c` stands for every byte that no literal has.
        for number in 0..3_usize.pow(len) {
            components.push((0..len).map(|at| b"abc"[number / 3_usize.pow(at) % 3]).collect());
        }
    }
    let components = &components[1..];
    let mut random = Random::new(3);
    let mut collisions = 0;
    for round in 0..400 {
        let (one, two) = (draw(&mut random, true), draw(&mut random, false));
        let mut keys = vec![one.table.clone()];
        for _ in 0..one.components.len() {
            keys = keys
                .iter()
                .flat_map(|key| components.iter().map(|part| [key, part.as_slice()].join(&b'|')))
                .filter(|key| {
                    // Prune by the components so far, or there are too many.
                    let depth = key.iter().filter(|&&byte| byte == b'|').count();
                    let begun = one.components[..depth].to_vec();
                    Pattern { table: one.table.clone(), components: begun }.matches(key)
                })
                .collect();
        }
        let expected = keys.iter().any(|key| one.matches(key) && two.matches(key));
        collisions += usize::from(expected);
        assert_eq!(one.may_collide(&two), expected, "round {round}: {one:?} {two:?}");
        assert_eq!(two.may_collide(&one), expected, "round {round}: {one:?} {two:?}");
    }
    assert!(collisions > 20, "too few of the drawn patterns collide: {collisions}");
}
