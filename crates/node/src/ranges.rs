//! Execution of the commands about ranges of keys.

use crate::node::Node;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_command::{Counted, RangeAnswer, RangeRead, Ranges, Reply};
use headwater_engine::{Engine, RangeOptions, Stop};

/// Guess of how many pairs an unlimited read gives; it decides only how its header is patched.
const UNLIMITED_GUESS: u64 = 50;
/// Most differences that VERIFY tells.
const DIFFERENCES_MAX: usize = 100;

pub(crate) fn run(
    node: &mut Node,
    command: &Ranges<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    match *command {
        Ranges::Range { first, last, read } => range(&mut node.engine, first, last, read, reply),
        Ranges::Prefix { prefix, read } => {
            let Node { engine, scratch, .. } = node;
            write_prefix_end(prefix, scratch);
            let done = range(engine, prefix, scratch, read, reply);
            node.trim_scratch();
            done
        }
        Ranges::Remove { first, last } => {
            let removed = node.engine.remove_range(first, last)?;
            reply.integer(removed as i64);
            Ok(())
        }
        Ranges::ExplainKey { key } => {
            node.engine.settle_dead()?;
            explain(&node.engine, &KeyRange::point(key), reply);
            Ok(())
        }
        Ranges::Explain { first, last } => {
            node.engine.settle_dead()?;
            explain(&node.engine, &KeyRange::new(first, last), reply);
            Ok(())
        }
        Ranges::Verify { first, last } => {
            verify(&mut node.engine, &KeyRange::new(first, last), reply)
        }
    }
}

#[inline]
fn range(
    engine: &mut Engine,
    first: &[u8],
    last: &[u8],
    read: RangeRead<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let options = RangeOptions { reverse: read.reverse, limit: read.limit };
    let expected = read.limit.unwrap_or(UNLIMITED_GUESS);
    match read.answer {
        RangeAnswer::Pairs => {
            let mark = reply.begin_counted(Counted::Map, expected);
            let count = engine.range(first, last, options, &mut |key, value| {
                reply.bulk(key);
                reply.value(&value);
            })?;
            reply.end_counted(Counted::Map, mark, count);
        }
        RangeAnswer::Keys => {
            let mark = reply.begin_counted(Counted::Array, expected);
            let count = engine.range(first, last, options, &mut |key, _| reply.bulk(key))?;
            reply.end_counted(Counted::Array, mark, count);
        }
        RangeAnswer::Values => {
            let mark = reply.begin_counted(Counted::Array, expected);
            let count = engine.range(first, last, options, &mut |_, value| reply.value(&value))?;
            reply.end_counted(Counted::Array, mark, count);
        }
        RangeAnswer::Count => {
            let count = engine.range(first, last, options, &mut |_, _| {})?;
            reply.integer(count as i64);
        }
    }
    Ok(())
}

/// As [`headwater_base::prefix_end`], into memory that is there.
fn write_prefix_end(prefix: &[u8], end: &mut Vec<u8>) {
    end.clear();
    if let Some(at) = prefix.iter().rposition(|&byte| byte != 0xFF) {
        end.extend_from_slice(&prefix[..=at]);
        end[at] += 1;
    }
}

/// A line each, indented by two spaces under what it explains.
fn explain(engine: &Engine, range: &KeyRange, reply: &mut impl Reply) {
    let lines = engine.explain(range);
    reply.array(lines.len());
    for line in lines {
        let indent = line.depth * 2;
        let text = alloc::format!("{:indent$}{}: {}", "", line.title, line.text);
        reply.bulk(text.as_bytes());
    }
}

/// The differences, a map each; nothing stands for a key that is absent.
fn verify(engine: &mut Engine, range: &KeyRange, reply: &mut impl Reply) -> Result<(), Stop> {
    let differences = engine.verify(range, DIFFERENCES_MAX)?;
    reply.array(differences.len());
    for difference in &differences {
        reply.map(3);
        reply.bulk(b"key");
        reply.bulk(&difference.key);
        let values = [("stored", &difference.stored), ("recomputed", &difference.recomputed)];
        for (title, value) in values {
            reply.bulk(title.as_bytes());
            match value {
                Some(value) => reply.bulk(value),
                None => reply.null(),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::write_prefix_end;
    use alloc::vec::Vec;

    #[test]
    fn prefix_ends_are_those_of_base() {
        for prefix in [&b""[..], b"t|ann|", b"a\xff\xff", b"\xff", b"\xff\xffa", b"\xfe"] {
            let mut end = Vec::from(*b"old");
            write_prefix_end(prefix, &mut end);
            assert_eq!(end, headwater_base::prefix_end(prefix));
        }
    }
}
