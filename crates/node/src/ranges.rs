//! Execution of the commands about ranges of keys.

use crate::node::{Node, Outcome};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::{KeyParts, KeyRange};
use headwater_command::{Counted, RangeAnswer, RangeRead, Ranges, Reply};
use headwater_engine::{AtOnce, Engine, EngineError, RangeOptions, ReadProgress, Stop, Value};

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
        Ranges::Range { first, last, read } => range(node, first, last, read, reply),
        Ranges::Prefix { prefix, read } => {
            let mut end = core::mem::take(&mut node.scratch);
            write_prefix_end(prefix, &mut end);
            let done = range(node, prefix, &end, read, reply);
            node.scratch = end;
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
            explain(node, &KeyRange::point(key), reply);
            Ok(())
        }
        Ranges::Explain { first, last } => {
            node.engine.settle_dead()?;
            explain(node, &KeyRange::new(first, last), reply);
            Ok(())
        }
        Ranges::Verify { first, last } => {
            verify(&mut node.engine, &KeyRange::new(first, last), reply)
        }
    }
}

#[inline]
fn range(
    node: &mut Node,
    first: &[u8],
    last: &[u8],
    read: RangeRead<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    node.engine.accept_age(read.stale);
    let done = read_range(node, first, last, read, reply);
    // What others wait for, and keeping what is followed current, accept nothing.
    node.engine.accept_age(0);
    done
}

#[inline]
fn read_range(
    node: &mut Node,
    first: &[u8],
    last: &[u8],
    read: RangeRead<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    if !node.engine.goes_on_reading() {
        let at_once = node.engine.at_once();
        let mut room = FirstSlice::of(at_once);
        let mark = reply.mark();
        answer(&mut node.engine, first, last, read, &mut room, reply)?;
        if !room.is_used_up {
            return Ok(());
        }
        reply.rewind(mark);
        let options = RangeOptions { reverse: read.reverse, limit: read.limit };
        node.engine.begin_long_read(first, last, options);
    }
    go_on_reading(node, read.answer, reply)
}

/// What of an answer may yet be given at once.
struct FirstSlice {
    pairs: u64,
    bytes: usize,
    /// More was there than there was room for.
    is_used_up: bool,
}

impl FirstSlice {
    /// FirstSlice for all of an answer, or for as much of it as may be given at once.
    #[inline]
    fn of(at_once: Option<AtOnce>) -> Self {
        let (pairs, bytes) =
            at_once.map_or((u64::MAX, usize::MAX), |most| (most.pairs, most.bytes));
        Self { pairs, bytes, is_used_up: false }
    }

    /// Lets a pair in; breaks off where there was no room for it.
    #[inline]
    fn lets_in(&mut self, bytes: usize) -> ControlFlow<()> {
        if self.pairs == 0 || self.bytes == 0 {
            self.is_used_up = true;
            return ControlFlow::Break(());
        }
        self.pairs -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        ControlFlow::Continue(())
    }
}

/// Gives the pairs of a range, as many as there is room for.
#[inline]
fn answer(
    engine: &mut Engine,
    first: &[u8],
    last: &[u8],
    read: RangeRead<'_>,
    room: &mut FirstSlice,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let options = RangeOptions { reverse: read.reverse, limit: read.limit };
    let expected = read.limit.unwrap_or(UNLIMITED_GUESS);
    if read.answer == RangeAnswer::Count {
        let mut each = |_: KeyParts<'_>, _: Value<'_>| room.lets_in(0);
        let count = engine.range_parts_until(first, last, options, &mut each)?;
        reply.integer(count as i64);
        return Ok(());
    }
    let form = form_of(read.answer);
    let mark = reply.begin_counted(form, expected);
    let count = engine.range_parts_until(first, last, options, &mut |key, value| {
        let flow = room.lets_in(key.len() + value.len());
        give(read.answer, key, &value, reply);
        flow
    })?;
    reply.end_counted(form, mark, count);
    Ok(())
}

fn form_of(answer: RangeAnswer) -> Counted {
    if answer == RangeAnswer::Pairs { Counted::Map } else { Counted::Array }
}

/// Writes what an answer has of a pair.
#[inline]
fn give(answer: RangeAnswer, key: KeyParts<'_>, value: &Value<'_>, reply: &mut impl Reply) {
    match answer {
        RangeAnswer::Pairs => reply.pair(key.stem, key.rest, value),
        RangeAnswer::Keys => reply.joined(key.stem, key.rest),
        RangeAnswer::Values => reply.value(value),
        RangeAnswer::Count => {}
    }
}

/// The next slice of an answer that has more pairs than one: first they are counted, as their number comes first.
#[cold]
fn go_on_reading(node: &mut Node, answer: RangeAnswer, reply: &mut impl Reply) -> Result<(), Stop> {
    let progress = node.engine.go_on_reading(&mut |key, value| {
        give(answer, KeyParts::whole(key), &value, reply);
    });
    node.unfinished = match progress {
        ReadProgress::Done => None,
        ReadProgress::Counted(count, ticket) if answer == RangeAnswer::Count => {
            node.engine.forget_ticket(ticket);
            reply.integer(count as i64);
            None
        }
        ReadProgress::Counted(count, ticket) => {
            match form_of(answer) {
                Counted::Map => reply.map(count as usize),
                Counted::Array => reply.array(count as usize),
            }
            Some(Outcome::Unfinished(ticket))
        }
        ReadProgress::Counting(ticket) | ReadProgress::Given(ticket) => {
            Some(Outcome::Unfinished(ticket))
        }
        ReadProgress::GivenUp { begun: true } => Some(Outcome::Broken),
        ReadProgress::GivenUp { begun: false } => return Err(EngineError::Overtaken.into()),
    };
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
fn explain(node: &Node, range: &KeyRange, reply: &mut impl Reply) {
    let lines = match &node.may_read {
        Some(may_read) => node.engine.explain_to(range, may_read),
        None => node.engine.explain(range),
    };
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
