//! Answers of other shards, as clients of memcached's protocol read them: each is a byte string; several become one.

use headwater_base::Shard;
use headwater_protocol::Held;
use headwater_protocol::memcached::Encoder;
use headwater_router::{Answer, Merge, Token};
use std::collections::BTreeMap;

/// Numbers that are not added up: they are of the process, or no amounts.
const NOT_ADDED: &[&[u8]] = &[
    b"pid",
    b"uptime",
    b"time",
    b"version",
    b"headwater_version",
    b"pointer_size",
    b"chunk_size",
    b"chunks_per_page",
    b"rusage_user",
    b"rusage_system",
    b"max_connections",
    b"limit_maxbytes",
    b"accepting_conns",
    b"cmd_flush",
    b"active_slabs",
    b"total_malloced",
];

/// What lines of statistics begin with.
const TITLES: [&[u8]; 2] = [b"STAT ", b"PREFIX "];

const END: &[u8] = b"END\r\n";

/// Writes one answer of a shard.
pub(crate) fn write_answer(answer: Answer<'_>, out: &mut Vec<u8>) {
    match answer.token() {
        Token::Bulk(bytes) => out.extend_from_slice(bytes),
        Token::Error { code, text } => {
            let text = String::from_utf8_lossy(text);
            Encoder::new(out, &mut Held::default(), usize::MAX).failed(code, &text);
        }
        _ => {}
    }
}

/// Writes the answer that several shards' make up.
pub(crate) fn write_merged(merge: &Merge, parts: &[(Shard, Answer<'_>)], out: &mut Vec<u8>) {
    let texts: Vec<(Shard, Vec<u8>)> = parts
        .iter()
        .map(|(shard, answer)| {
            let mut text = Vec::new();
            write_answer(*answer, &mut text);
            (*shard, text)
        })
        .collect();
    let replies: Vec<&[u8]> = texts.iter().map(|(_, text)| &**text).collect();
    match merge {
        Merge::Items(keys) => write_items(&texts, keys, out),
        Merge::Stats => write_stats(&replies, out),
        _ => write_agreed(&replies, out),
    }
}

/// Key and length of the value (`VALUE <key> <flags> <bytes> …`) that comes next, with its header and its line end.
fn next_value(rest: &[u8]) -> Option<(&[u8], usize)> {
    let line = rest.strip_prefix(b"VALUE ")?;
    let end = line.iter().position(|&byte| byte == b'\n')?;
    let mut words = line[..end].trim_ascii_end().split(|&byte| byte == b' ');
    let (key, _flags, bytes) = (words.next()?, words.next()?, words.next()?);
    let bytes: usize = str::from_utf8(bytes).ok()?.parse().ok()?;
    Some((key, b"VALUE ".len() + end + 1 + bytes + b"\r\n".len()))
}

/// Values in the order of the keys that were asked for. Where a shard refused, its refusal is the answer.
fn write_items(parts: &[(Shard, Vec<u8>)], keys: &[(Shard, Vec<u8>)], out: &mut Vec<u8>) {
    let mut rests: BTreeMap<Shard, &[u8]> =
        parts.iter().map(|(shard, reply)| (*shard, &**reply)).collect();
    if let Some(refusal) = rests.values().find(|rest| !rest.ends_with(END)) {
        out.extend_from_slice(refusal);
        return;
    }
    for (shard, key) in keys {
        let Some(rest) = rests.get_mut(shard) else { continue };
        if let Some((found, len)) = next_value(rest)
            && found == key
        {
            out.extend_from_slice(&rest[..len]);
            *rest = &rest[len..];
        }
    }
    out.extend_from_slice(END);
}

/// Lines of statistics by name, in the order of the first reply that has them.
fn write_stats(replies: &[&[u8]], out: &mut Vec<u8>) {
    let mut all: Vec<(&[u8], Vec<u8>)> = Vec::new();
    for reply in replies.iter().copied() {
        if !reply.ends_with(END) {
            out.extend_from_slice(reply);
            return;
        }
        for line in reply.split(|&byte| byte == b'\n') {
            let line = line.trim_ascii_end();
            let known = TITLES.iter().find(|word| line.starts_with(word));
            let Some(word) = known else { continue };
            let rest = &line[word.len()..];
            let name_end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
            let at = word.len() + name_end;
            let (name, value) = (&line[..at], line[at..].trim_ascii_start());
            match all.iter_mut().find(|(other, _)| *other == name) {
                Some(_) if NOT_ADDED.contains(&&name[word.len()..]) => {}
                Some((_, sum)) => *sum = added(sum, value),
                None => all.push((name, value.to_vec())),
            }
        }
    }
    // Whoever has no items at all tells of no class of them.
    const NUMBER: (&[u8], &[u8]) = (b"STAT items:1:number", b"0");
    if all.iter().any(|(name, value)| (*name, &**value) == NUMBER) {
        all.retain(|(name, _)| !name.starts_with(b"STAT items:1:"));
    }
    for (name, value) in all {
        out.extend_from_slice(&[name, b" ", &value, b"\r\n"].concat());
    }
    out.extend_from_slice(END);
}

/// Numbers added up, word by word; other words as they are in the first.
fn added(one: &[u8], other: &[u8]) -> Vec<u8> {
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse::<u64>().ok();
    let words = one.split(|&byte| byte == b' ').zip(other.split(|&byte| byte == b' '));
    let sums = words.map(|(one, other)| match (number(one), number(other)) {
        (Some(one), Some(other)) => (one + other).to_string().into_bytes(),
        _ => one.to_vec(),
    });
    sums.collect::<Vec<_>>().join(&b' ')
}

/// The answer of all, unless one has something against it.
fn write_agreed(replies: &[&[u8]], out: &mut Vec<u8>) {
    let mut all = replies.iter().copied();
    let first = all.clone().next().unwrap_or_default();
    let is_error = |reply: &&[u8]| {
        let errors: [&[u8]; 3] = [b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"];
        errors.iter().any(|error| reply.starts_with(error))
    };
    out.extend_from_slice(all.find(is_error).unwrap_or(first));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    #[test]
    fn values_come_in_the_order_of_their_keys() {
        let one = bulk("VALUE a 0 5\r\nEND\r\n\r\nVALUE c 1 0 7\r\n\r\nEND\r\n");
        let parts = vec![(Shard(0), one), (Shard(2), bulk("VALUE b 0 1\r\nx\r\nEND\r\n"))];
        let keys = [(0, "a"), (2, "miss"), (2, "b"), (0, "no"), (0, "c")];
        let keys: Vec<_> =
            keys.map(|(at, key): (u16, &str)| (Shard(at), key.as_bytes().to_vec())).to_vec();
        let mut out = Vec::new();
        write_items(&parts, &keys, &mut out);
        let expected: &[u8] =
            b"VALUE a 0 5\r\nEND\r\n\r\nVALUE b 0 1\r\nx\r\nVALUE c 1 0 7\r\n\r\nEND\r\n";
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
        out.clear();
        let refused = [(Shard(0), bulk("END\r\n")), (Shard(2), bulk("SERVER_ERROR no\r\n"))];
        write_items(&refused, &keys, &mut out);
        assert_eq!(out, b"SERVER_ERROR no\r\n");
    }

    #[test]
    fn statistics_are_added_up() {
        let one = bulk("STAT pid 7\r\nSTAT cmd_get 2\r\nEND\r\n");
        let two = bulk("STAT pid 7\r\nSTAT cmd_get 3\r\nSTAT 5:addr tcp:x y\r\nEND\r\n");
        let mut out = Vec::new();
        write_stats(&[&one, &two], &mut out);
        assert_eq!(out, b"STAT pid 7\r\nSTAT cmd_get 5\r\nSTAT 5:addr tcp:x y\r\nEND\r\n");
        out.clear();
        let one = bulk("PREFIX a get 1 hit 0 set 2 del 0\r\nEND\r\n");
        let two =
            bulk("PREFIX a get 1 hit 1 set 0 del 3\r\nPREFIX b get 1 hit 0 set 0 del 0\r\nEND\r\n");
        write_stats(&[&one, &two], &mut out);
        let expected: &[u8] =
            b"PREFIX a get 2 hit 1 set 2 del 3\r\nPREFIX b get 1 hit 0 set 0 del 0\r\nEND\r\n";
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
        out.clear();
        write_agreed(&[&bulk("OK\r\n"), &bulk("SERVER_ERROR x\r\n")], &mut out);
        assert_eq!(out, b"SERVER_ERROR x\r\n");
        out.clear();
        write_agreed(&[&bulk(""), &bulk("")], &mut out);
        assert!(out.is_empty());
    }
}
