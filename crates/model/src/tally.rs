//! What the oracle makes of all values of an output that are counted by their kinds: how many different ones there are, which are the most
//! frequent, and percentiles.

use crate::number::Number;
use headwater_base::hash::Secret;
use std::collections::{BTreeMap, BTreeSet};

/// Longest value that is counted.
const LONGEST: usize = 1024;
/// How values are hashed: with `distinct` in ASCII.
const HASHED: Secret = Secret::fixed(0x6469_7374_696e_6374);

/// The values that count at all.
fn counted<'a>(items: &[&'a [u8]]) -> Vec<&'a [u8]> {
    items.iter().copied().filter(|item| item.len() <= LONGEST).collect()
}

/// How many different values there are, or about how many where there are more than `exact`.
pub(crate) fn distinct(items: &[&[u8]], exact: usize) -> Option<Vec<u8>> {
    let different: BTreeSet<&[u8]> = counted(items).into_iter().collect();
    let number = match different.len() {
        0 => return None,
        number if number <= exact => number as u64,
        _ => estimate(&different).max(exact as u64 + 1),
    };
    Some(number.to_string().into_bytes())
}

/// The estimate of a HyperLogLog of 2^14 registers (O. Ertl, New cardinality estimation algorithms for HyperLogLog sketches, 2017).
fn estimate(different: &BTreeSet<&[u8]>) -> u64 {
    let mut registers = vec![0u32; 1 << 14];
    for item in different {
        let hash = HASHED.hash(item);
        let register = &mut registers[(hash / (1 << 50)) as usize];
        let rest = hash % (1 << 50);
        // How many of 50 bits are zero before the first one, and one; no more than 50.
        let rank = (0..50).find(|at| rest & (1 << (49 - at)) != 0).map_or(50, |at| at + 1);
        *register = (*register).max(rank);
    }
    let with = |rank: u32| registers.iter().filter(|&&own| own == rank).count() as f64;
    let all = registers.len() as f64;
    let mut sum = 0.0;
    for rank in (1..=50).rev() {
        sum = (sum + with(rank)) * 0.5;
    }
    let (mut power, mut weight) = (with(0) / all, 1.0);
    let mut sigma = power;
    loop {
        power *= power;
        let before = sigma;
        sigma += power * weight;
        weight += weight;
        if sigma == before {
            break;
        }
    }
    sum += all * sigma;
    (0.721_347_520_444_481_7 * all * all / sum + 0.5) as u64
}

/// The most frequent values that are text, with how often each is there.
pub(crate) fn top(items: &[&[u8]], most: usize) -> Option<Vec<u8>> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for text in counted(items).into_iter().filter_map(|item| std::str::from_utf8(item).ok()) {
        *counts.entry(text).or_default() += 1;
    }
    let mut order: Vec<(&str, usize)> = counts.into_iter().collect();
    // Of those that are equally frequent the lesser text comes first, as it does already.
    order.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    order.truncate(most);
    if order.is_empty() {
        return None;
    }
    let quoted = |text: &str| {
        let escaped = text.chars().map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            '\0'..='\x1f' => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        });
        escaped.collect::<String>()
    };
    let pairs = order.iter().map(|(text, count)| format!("[\"{}\",{count}]", quoted(text)));
    Some(format!("[{}]", pairs.collect::<Vec<_>>().join(",")).into_bytes())
}

/// The least number that so many millionths of a percent of all numbers do not exceed.
pub(crate) fn percentile(items: &[&[u8]], millionths: u32) -> Option<Vec<u8>> {
    let mut numbers: Vec<Number> = items.iter().filter_map(|item| Number::parse(item)).collect();
    numbers.sort_by(|a, b| a.order(b));
    let rank = (numbers.len() as u128 * u128::from(millionths)).div_ceil(100_000_000).max(1);
    numbers.get(rank as usize - 1).map(Number::text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted() {
        let items: Vec<&[u8]> = vec![b"b", b"a", b"b", b"\xff", b"c\"", b"a", b"b"];
        let text = |found: Option<Vec<u8>>| String::from_utf8(found.unwrap()).unwrap();
        assert_eq!(text(distinct(&items, 10)), "4");
        assert_eq!(text(distinct(&items, 2)), "4");
        assert_eq!(text(top(&items, 2)), r#"[["b",3],["a",2]]"#);
        assert_eq!(text(top(&items[3..5], 2)), r#"[["c\"",1]]"#);
        assert_eq!(distinct(&[], 10), None);
    }

    #[test]
    fn estimates_are_near() {
        let items: Vec<Vec<u8>> = (0..30_000).map(|at| format!("user {at}").into_bytes()).collect();
        let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
        let about: u64 = String::from_utf8(distinct(&items, 10).unwrap()).unwrap().parse().unwrap();
        assert!((29_000..31_000).contains(&about), "{about}");
    }

    #[test]
    fn percentiles_are_of_what_is_there() {
        let items: Vec<&[u8]> = vec![b"3", b"1", b"x", b"2.50", b"10"];
        let of = |percent: u32| percentile(&items, percent * 1_000_000).unwrap();
        assert_eq!(
            [of(0), of(25), of(26), of(75), of(100)],
            [&b"1"[..], b"1", b"2.5", b"3", b"10"]
        );
        assert_eq!(percentile(&[b"x"], 50), None);
    }
}
