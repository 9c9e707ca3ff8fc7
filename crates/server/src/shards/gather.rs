//! One answer from several shards' replies.
//!
//! # Cost
//! A range read copies each pair once more; what is merged are the replies' bytes, no value is
//! decoded.

use super::front::Kind;
use headwater_base::Shard;
use headwater_command::{OwnedArgs, RangeAnswer, Reply};
use headwater_protocol::resp::{Encoder, Version, elements, integer, is_error, text};
use std::collections::BTreeMap;

/// How replies become one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Merge {
    /// All say the same: the first is given.
    Same,
    /// All agree: these bytes are given.
    Given(Vec<u8>),
    /// What is known of a source: facts of all, and amounts, which are added up.
    Source,
    /// Numbers are added up.
    Sum,
    /// Numbers are added up, to at most this one.
    SumUpTo(Option<u64>),
    /// Lists follow one another.
    Concat,
    /// Lists follow one another, and what is in several is there once.
    Union,
    /// Texts follow one another.
    Texts,
    /// The first that is something.
    Some,
    /// Replies of one shape, whose numbers are added up; lists of named things are merged by name.
    Figures,
    /// The text of INFO.
    Info,
    /// How a flow does.
    FlowInfo,
    /// Values in the order of the keys that were asked for, by the shard that has each.
    Values(Vec<Shard>),
    /// Pairs in the order of their keys.
    Range {
        /// Greatest key first.
        reverse: bool,
        /// At most so many.
        limit: Option<u64>,
        /// What to answer. The replies are pairs, or keys alone where keys are wanted.
        answer: RangeAnswer,
    },
    /// What a function has said of pairs, in the order of their keys. A fold is refused.
    Called {
        /// Greatest key first.
        reverse: bool,
        /// At most so many.
        limit: Option<u64>,
    },
    /// memcached's values in the order of the keys that were asked for, by the shard that has each.
    Items(Vec<(Shard, Vec<u8>)>),
    /// memcached's statistics, whose numbers are added up.
    Stats,
    /// memcached's answer that all give, or what one of them has against it.
    Agreed,
    /// SCAN's reply of one shard, with the cursor for the next part of all.
    Scan {
        /// Which shard's.
        at: Shard,
        /// How many there are.
        shards: u16,
    },
}

/// An answer that is being put together.
#[derive(Debug)]
pub(crate) struct Gather {
    merge: Merge,
    /// The replies by shard; empty: it has not come.
    parts: Vec<(Shard, Vec<u8>)>,
    /// What was asked.
    pub(crate) kind: Kind,
    /// The client does not want it.
    pub(crate) silent: bool,
    /// Takes it back where it was done, should another shard refuse it.
    pub(crate) undo: Option<OwnedArgs>,
}

impl Gather {
    pub(crate) fn new(merge: Merge, from: Vec<Shard>, kind: Kind) -> Self {
        let parts = from.into_iter().map(|shard| (shard, Vec::new())).collect();
        Self { merge, parts, kind, silent: false, undo: None }
    }

    /// The shards whose replies have not come.
    pub(crate) fn missing(&self) -> Vec<Shard> {
        self.parts.iter().filter(|(_, part)| part.is_empty()).map(|(shard, _)| *shard).collect()
    }

    /// Whether the reply of a shard has come; `None`: it is not asked.
    pub(crate) fn has_from(&self, from: Shard) -> Option<bool> {
        let part = self.parts.iter().find(|(shard, _)| *shard == from);
        part.map(|(_, part)| !part.is_empty())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.parts.iter().all(|(_, part)| !part.is_empty())
    }

    /// Takes the reply of a shard.
    pub(crate) fn take(&mut self, from: Shard, reply: &[u8]) {
        if let Some((_, part)) = self.parts.iter_mut().find(|(shard, _)| *shard == from) {
            *part = reply.to_vec();
        }
    }

    /// Whether a shard refused its part.
    pub(crate) fn is_refused(&self) -> bool {
        self.parts.iter().any(|(_, part)| is_error(part))
    }

    /// What is to be taken back, and where: a part was refused.
    pub(crate) fn to_undo(&self) -> Vec<(Shard, OwnedArgs)> {
        let Some(undo) = &self.undo else { return Vec::new() };
        let done = |(_, part): &&(Shard, Vec<u8>)| !is_error(part);
        if self.parts.iter().all(|part| done(&part)) {
            return Vec::new();
        }
        self.parts.iter().filter(done).map(|(shard, _)| (*shard, undo.clone())).collect()
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.parts.iter().map(|(_, part)| part.capacity() + 32).sum::<usize>()
    }

    /// Writes the answer. Where a shard refused, its refusal is the answer.
    pub(crate) fn write(&self, version: Version, out: &mut Vec<u8>) {
        let replies: Vec<&[u8]> = self.parts.iter().map(|(_, part)| &**part).collect();
        if let Some(error) = replies.iter().find(|reply| is_error(reply)) {
            out.extend_from_slice(error);
            return;
        }
        let lists = || replies.iter().filter_map(|reply| elements(reply));
        match &self.merge {
            Merge::Same => out.extend_from_slice(replies[0]),
            Merge::Given(bytes) => out.extend_from_slice(bytes),
            Merge::Source => write_source(&replies, version, out),
            Merge::Some => {
                let is_nothing = |reply: &&&[u8]| matches!(***reply, [b'_', ..] | [_, b'-', ..]);
                let found = replies.iter().find(|reply| !is_nothing(reply));
                out.extend_from_slice(found.unwrap_or(&replies[0]));
            }
            Merge::Sum => {
                let sum = replies.iter().filter_map(|reply| integer(reply)).sum();
                Encoder::new(out, version).integer(sum);
            }
            Merge::SumUpTo(most) => {
                let sum: i64 = replies.iter().filter_map(|reply| integer(reply)).sum();
                let most = most.and_then(|most| i64::try_from(most).ok()).unwrap_or(i64::MAX);
                Encoder::new(out, version).integer(sum.min(most));
            }
            Merge::Texts => {
                let texts = replies.iter().filter_map(|reply| text(reply));
                Encoder::new(out, version).verbatim(*b"txt", &texts.collect::<Vec<_>>().concat());
            }
            Merge::Concat => write_list(&lists().flatten().collect::<Vec<_>>(), version, out),
            Merge::Union => {
                let mut all: Vec<_> = lists().flatten().collect();
                all.sort_unstable();
                all.dedup();
                write_list(&all, version, out);
            }
            Merge::Figures => write_figures(&replies, version, out),
            Merge::Info => {
                let text = super::info::merged(&replies);
                Encoder::new(out, version).verbatim(*b"txt", text.as_bytes());
            }
            Merge::FlowInfo => super::flows::write_info(&self.parts, version, out),
            Merge::Values(order) => {
                let mut parts: BTreeMap<Shard, _> = self
                    .parts
                    .iter()
                    .map(|(shard, part)| (*shard, elements(part).unwrap_or_default().into_iter()))
                    .collect();
                Encoder::new(out, version).array(order.len());
                for shard in order {
                    let next = parts.get_mut(shard).and_then(Iterator::next);
                    out.extend_from_slice(next.unwrap_or(b"$-1\r\n"));
                }
            }
            Merge::Range { reverse, limit, answer } => {
                let lists = lists().collect();
                write_range(lists, *reverse, limit.unwrap_or(u64::MAX), *answer, version, out);
            }
            Merge::Called { reverse, limit } => {
                let Some(lists) = replies.iter().map(|reply| elements(reply)).collect() else {
                    Encoder::new(out, version).error("ERR", format_args!("{FOLD_REFUSED}"));
                    return;
                };
                let (limit, answer) = (limit.unwrap_or(u64::MAX), RangeAnswer::Pairs);
                write_range(lists, *reverse, limit, answer, version, out);
            }
            Merge::Items(keys) => super::items::write_items(&self.parts, keys, out),
            Merge::Stats => super::items::write_stats(&replies, out),
            Merge::Agreed => super::items::write_agreed(&replies, out),
            Merge::Scan { at, shards } => write_scan(replies[0], *at, *shards, version, out),
        }
    }
}

/// Folds of parts are not put together: how, only the function knows.
const FOLD_REFUSED: &str = "the function folds the range, whose keys live on several shards (allowed: a range within one group, as 'p|bob|' to 'p|bob}')";

fn write_list(elements: &[&[u8]], version: Version, out: &mut Vec<u8>) {
    Encoder::new(out, version).array(elements.len());
    elements.iter().for_each(|element| out.extend_from_slice(element));
}

/// Merges runs of keys, or of keys with values, that are in order.
fn write_range(
    lists: Vec<Vec<&[u8]>>,
    reverse: bool,
    limit: u64,
    answer: RangeAnswer,
    version: Version,
    out: &mut Vec<u8>,
) {
    // COUNT is a number, and not merged here.
    let step = if answer == RangeAnswer::Keys { 1 } else { 2 };
    let mut rows: Vec<&[&[u8]]> = lists.iter().flat_map(|list| list.chunks_exact(step)).collect();
    // The runs are in order: a stable sort merges them.
    rows.sort_by(|a, b| {
        let order = text(a[0]).cmp(&text(b[0]));
        if reverse { order.reverse() } else { order }
    });
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let mut encoder = Encoder::new(out, version);
    match answer {
        RangeAnswer::Pairs => encoder.map(rows.len()),
        _ => encoder.array(rows.len()),
    }
    for row in rows {
        match answer {
            RangeAnswer::Values => out.extend_from_slice(row[1]),
            _ => row.iter().for_each(|element| out.extend_from_slice(element)),
        }
    }
}

/// A shard's cursor 0 says that its part is over: the next one's begins.
fn write_scan(reply: &[u8], at: Shard, shards: u16, version: Version, out: &mut Vec<u8>) {
    let parts = elements(reply).unwrap_or_default();
    let cursor = parts.first().and_then(|cursor| text(cursor));
    let cursor = cursor.and_then(|text| core::str::from_utf8(text).ok()?.parse::<u64>().ok());
    let next = match cursor.unwrap_or(0) {
        0 if at.0 + 1 >= shards => 0,
        0 => u64::from(at.0 + 1),
        inner => inner.wrapping_mul(u64::from(shards)) + u64::from(at.0),
    };
    let mut encoder = Encoder::new(out, version);
    encoder.array(2);
    encoder.bulk(next.to_string().as_bytes());
    out.extend_from_slice(parts.get(1).unwrap_or(&&b"*0\r\n"[..]));
}

/// What of a source's facts each shard has its own amount of.
const AMOUNTS: [&[u8]; 3] = [b"ranges-loaded", b"ranges-loading", b"keys"];

/// Facts of a source, as names and texts, with the amounts of all shards added up.
fn write_source(replies: &[&[u8]], version: Version, out: &mut Vec<u8>) {
    let Some(first) = replies.first().and_then(|reply| elements(reply)) else { return };
    let amount = |reply: &&[u8], name: &[u8]| -> Option<u64> {
        let all = elements(reply)?;
        let at = all.iter().step_by(2).position(|title| text(title) == Some(name))?;
        core::str::from_utf8(text(all.get(2 * at + 1)?)?).ok()?.parse().ok()
    };
    let mut encoder = Encoder::new(out, version);
    encoder.map(first.len() / 2);
    for fact in first.chunks_exact(2) {
        out.extend_from_slice(fact[0]);
        match text(fact[0]).filter(|name| AMOUNTS.contains(name)) {
            Some(name) => {
                let sum: u64 = replies.iter().filter_map(|reply| amount(reply, name)).sum();
                Encoder::new(out, version).bulk(sum.to_string().as_bytes());
            }
            None => out.extend_from_slice(fact[1]),
        }
    }
}

/// Numbers with these names are the same everywhere.
const NO_AMOUNTS: [&[u8]; 3] = [b"boundary", b"paused", b"pure"];

/// Adds up the numbers of replies that have one shape. Lists whose elements are lists or maps with a
/// name in front are taken together by these names.
fn write_figures(replies: &[&[u8]], version: Version, out: &mut Vec<u8>) {
    let Some(first) = replies.first() else { return };
    if integer(first).is_some() {
        let sum = replies.iter().filter_map(|reply| integer(reply)).sum();
        Encoder::new(out, version).integer(sum);
        return;
    }
    let Some(lists) = replies.iter().map(|reply| elements(reply)).collect::<Option<Vec<_>>>()
    else {
        out.extend_from_slice(first);
        return;
    };
    let name = |element: &[u8]| -> Option<Vec<u8>> {
        let parts = elements(element)?;
        // `name x …`
        parts.get(1).map(|name| name.to_vec())
    };
    if lists.iter().flatten().next().is_some_and(|element| name(element).is_some()) {
        let mut named: BTreeMap<Option<Vec<u8>>, Vec<&[u8]>> = BTreeMap::new();
        for element in lists.iter().flatten() {
            named.entry(name(element)).or_default().push(element);
        }
        Encoder::new(out, version).array(named.len());
        named.values().for_each(|same| write_figures(same, version, out));
        return;
    }
    let count = lists[0].len();
    if lists.iter().any(|list| list.len() != count) {
        out.extend_from_slice(first);
        return;
    }
    let header = first.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    out.extend_from_slice(&first[..header]);
    for at in 0..count {
        let same: Vec<&[u8]> = lists.iter().map(|list| list[at]).collect();
        let name = at.checked_sub(1).and_then(|before| text(lists[0][before]));
        if name.is_some_and(|name| NO_AMOUNTS.contains(&name)) {
            out.extend_from_slice(same[0]);
        } else {
            write_figures(&same, version, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(merge: Merge, replies: &[&[u8]]) -> String {
        let from = (0..replies.len() as u16).map(Shard).collect();
        let mut gather = Gather::new(merge, from, Kind::Plain);
        for (at, reply) in replies.iter().enumerate() {
            assert!(!gather.is_complete());
            gather.take(Shard(at as u16), reply);
        }
        assert!(gather.is_complete());
        let mut out = Vec::new();
        gather.write(Version::Resp2, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies_become_one() {
        assert_eq!(merged(Merge::Sum, &[b":1\r\n", b":2\r\n"]), ":3\r\n");
        assert_eq!(merged(Merge::Sum, &[b":1\r\n", b"-ERR no\r\n"]), "-ERR no\r\n");
        assert_eq!(merged(Merge::Same, &[b"+OK\r\n", b"+OK\r\n"]), "+OK\r\n");
        assert_eq!(merged(Merge::Some, &[b"$-1\r\n", b"$1\r\na\r\n"]), "$1\r\na\r\n");
        assert_eq!(merged(Merge::Some, &[b"$-1\r\n", b"$-1\r\n"]), "$-1\r\n");
        assert_eq!(merged(Merge::Concat, &[b"*1\r\n:1\r\n", b"*0\r\n"]), "*1\r\n:1\r\n");
        assert_eq!(merged(Merge::Union, &[b"*1\r\n:1\r\n", b"*1\r\n:1\r\n"]), "*1\r\n:1\r\n");
        let values = Merge::Values(vec![Shard(1), Shard(0), Shard(1)]);
        let replies: [&[u8]; 2] = [b"*1\r\n$1\r\na\r\n", b"*2\r\n$1\r\nb\r\n$-1\r\n"];
        assert_eq!(merged(values, &replies), "*3\r\n$1\r\nb\r\n$1\r\na\r\n$-1\r\n");
    }

    #[test]
    fn ranges_are_merged_by_key() {
        let replies: [&[u8]; 2] = [
            b"*4\r\n$1\r\na\r\n$1\r\n1\r\n$2\r\nab\r\n$1\r\n2\r\n",
            b"*4\r\n$2\r\naa\r\n$1\r\n3\r\n$1\r\nb\r\n$1\r\n4\r\n",
        ];
        let range = |answer, limit| Merge::Range { reverse: false, limit, answer };
        assert_eq!(
            merged(range(RangeAnswer::Pairs, Some(2)), &replies),
            "*4\r\n$1\r\na\r\n$1\r\n1\r\n$2\r\naa\r\n$1\r\n3\r\n"
        );
        assert_eq!(
            merged(range(RangeAnswer::Values, None), &replies),
            "*4\r\n$1\r\n1\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n4\r\n"
        );
        let keys: [&[u8]; 2] = [b"*2\r\n$1\r\nc\r\n$1\r\na\r\n", b"*1\r\n$1\r\nb\r\n"];
        let merge = Merge::Range { reverse: true, limit: Some(2), answer: RangeAnswer::Keys };
        assert_eq!(merged(merge, &keys), "*2\r\n$1\r\nc\r\n$1\r\nb\r\n");
    }

    #[test]
    fn what_functions_say_is_merged_by_key_and_folds_are_refused() {
        let replies: [&[u8]; 2] =
            [b"*2\r\n$1\r\nb\r\n$1\r\n1\r\n", b"*2\r\n$1\r\na\r\n$1\r\n2\r\n"];
        let called = |limit| Merge::Called { reverse: false, limit };
        assert_eq!(
            merged(called(None), &replies),
            "*4\r\n$1\r\na\r\n$1\r\n2\r\n$1\r\nb\r\n$1\r\n1\r\n"
        );
        assert_eq!(merged(called(Some(1)), &replies), "*2\r\n$1\r\na\r\n$1\r\n2\r\n");
        let folds: [&[u8]; 2] = [b"$1\r\n1\r\n", b"$-1\r\n"];
        assert!(merged(called(None), &folds).contains("within one group"));
    }

    #[test]
    fn figures_are_added_up_by_name() {
        let replies: [&[u8]; 2] = [
            b"*1\r\n*4\r\n+name\r\n+t\r\n+keys\r\n:2\r\n",
            b"*2\r\n*4\r\n+name\r\n+s\r\n+keys\r\n:1\r\n*4\r\n+name\r\n+t\r\n+keys\r\n:3\r\n",
        ];
        let table: &[u8] = b"*4\r\n+keys\r\n:1\r\n+boundary\r\n:2\r\n";
        let both = "*4\r\n+keys\r\n:2\r\n+boundary\r\n:2\r\n";
        assert_eq!(merged(Merge::Figures, &[table, table]), both);
        let one = |name, keys| format!("*4\r\n+name\r\n+{name}\r\n+keys\r\n:{keys}\r\n");
        assert_eq!(
            merged(Merge::Figures, &replies),
            format!("*2\r\n{}{}", one("s", 1), one("t", 5))
        );
    }

    #[test]
    fn a_source_has_the_amounts_of_all_shards() {
        let of = |more: &str, keys: u64| {
            let keys = keys.to_string();
            format!(
                "*4\r\n$4\r\nname\r\n$2\r\ndb\r\n{more}$4\r\nkeys\r\n${}\r\n{keys}\r\n",
                keys.len()
            )
        };
        let (one, two) = (of("", 4), of("$3\r\nlag\r\n$1\r\n7\r\n", 8));
        let two = two.replace("*4", "*6");
        let both = of("", 12);
        assert_eq!(merged(Merge::Source, &[one.as_bytes(), two.as_bytes()]), both);
        assert_eq!(merged(Merge::Given(b"+OK\r\n".to_vec()), &[b":1\r\n", b":2\r\n"]), "+OK\r\n");
        let refused: &[u8] = b"-ERR no\r\n";
        assert_eq!(merged(Merge::Given(Vec::new()), &[b":1\r\n", refused]), "-ERR no\r\n");
    }

    #[test]
    fn a_scan_goes_from_shard_to_shard() {
        let of = |at, cursor: &str| {
            let reply = format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.len());
            merged(Merge::Scan { at: Shard(at), shards: 2 }, &[reply.as_bytes()])
        };
        assert_eq!(of(0, "0"), "*2\r\n$1\r\n1\r\n*0\r\n");
        assert_eq!(of(0, "7"), "*2\r\n$2\r\n14\r\n*0\r\n");
        assert_eq!(of(1, "7"), "*2\r\n$2\r\n15\r\n*0\r\n");
        assert_eq!(of(1, "0"), "*2\r\n$1\r\n0\r\n*0\r\n");
    }
}
