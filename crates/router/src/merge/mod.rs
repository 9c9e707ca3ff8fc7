//! One answer from those of several shards.
//!
//! # Cost
//! A range read copies each pair once more. Values are not looked at.

mod figures;
mod flows;
mod info;

use crate::answer::{Answer, Token};
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_command::{RangeAnswer, Reply};

/// How answers become one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Merge {
    /// All say the same: the first is given.
    Same,
    /// All agree: this answer is given.
    Given(Vec<u8>),
    /// The first that is no error, where there is one.
    AnyDone,
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
    /// Lines of texts, in the order of the numbers that they begin with (`id=7 …`).
    Lines,
    /// The first that is something.
    Some,
    /// Answers of one shape, whose numbers are added up; lists of named things are merged by name.
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
        /// What to answer. The parts are pairs, or keys alone where keys are wanted.
        answer: RangeAnswer,
    },
    /// What a function has said of pairs, in the order of their keys. A fold is refused.
    Called {
        /// Greatest key first.
        reverse: bool,
        /// At most so many.
        limit: Option<u64>,
    },
}

/// Folds of parts are not put together: how, only the function knows.
const FOLD_REFUSED: &str = "the function folds the range, whose keys live on several shards (allowed: a range within one group, as 'p|bob|' to 'p|bob}')";

/// What of a source's facts each shard has its own amount of.
const AMOUNTS: [&[u8]; 3] = [b"ranges-loaded", b"ranges-loading", b"keys"];

impl Merge {
    /// Whether a shard's refusal may be passed over.
    fn takes_refusals(&self) -> bool {
        matches!(self, Self::AnyDone)
    }

    /// Writes the answer that `parts` make up, of which there is one at least. Where a shard refused, its refusal is the answer.
    pub fn write(&self, parts: &[(Shard, Answer<'_>)], out: &mut impl Reply) {
        let answers: Vec<Answer<'_>> = parts.iter().map(|(_, answer)| *answer).collect();
        let Some(&first) = answers.first() else { return out.null() };
        if !self.takes_refusals()
            && let Some(error) = answers.iter().find(|answer| answer.is_error())
        {
            return error.replay(out);
        }
        let lists = || answers.iter().map(|answer| answer.list());
        let sum = || answers.iter().filter_map(|answer| answer.integer()).sum::<i64>();
        match self {
            Self::Same => first.replay(out),
            Self::Given(bytes) => Answer::whole(bytes).into_iter().for_each(|it| it.replay(out)),
            Self::AnyDone => {
                answers.iter().find(|answer| !answer.is_error()).unwrap_or(&first).replay(out);
            }
            Self::Source => write_source(&answers, out),
            Self::Some => {
                answers.iter().find(|answer| !answer.is_nothing()).unwrap_or(&first).replay(out);
            }
            Self::Sum => out.integer(sum()),
            Self::SumUpTo(most) => {
                let most = most.and_then(|most| i64::try_from(most).ok()).unwrap_or(i64::MAX);
                out.integer(sum().min(most));
            }
            Self::Lines => {
                let texts = answers.iter().filter_map(|answer| answer.text());
                let mut lines: Vec<&[u8]> =
                    texts.flat_map(|text| text.split_inclusive(|byte| *byte == b'\n')).collect();
                lines.sort_by_key(|line| first_number(line));
                out.verbatim(*b"txt", &lines.concat());
            }
            Self::Concat => write_list(&lists().flatten().collect::<Vec<_>>(), out),
            Self::Union => {
                let mut all: Vec<_> = lists().flatten().collect();
                all.sort_unstable_by_key(|answer| answer.bytes());
                all.dedup();
                write_list(&all, out);
            }
            Self::Figures => figures::write(&answers, out),
            Self::Info => {
                out.verbatim(*b"txt", info::merged(&answers).as_bytes());
            }
            Self::FlowInfo => flows::write_info(parts, out),
            Self::Values(order) => {
                let mut lists: BTreeMap<Shard, _> =
                    parts.iter().map(|(shard, part)| (*shard, part.list().into_iter())).collect();
                out.array(order.len());
                for shard in order {
                    match lists.get_mut(shard).and_then(Iterator::next) {
                        Some(value) => value.replay(out),
                        None => out.null(),
                    }
                }
            }
            Self::Range { reverse, limit, answer } => {
                let lists = lists().collect();
                write_range(lists, *reverse, limit.unwrap_or(u64::MAX), *answer, out);
            }
            Self::Called { reverse, limit } => {
                if answers.iter().any(|answer| answer.elements().is_none()) {
                    return out.error("ERR", format_args!("{FOLD_REFUSED}"));
                }
                let (limit, answer) = (limit.unwrap_or(u64::MAX), RangeAnswer::Pairs);
                write_range(lists().collect(), *reverse, limit, answer, out);
            }
        }
    }
}

/// The first number in a line.
fn first_number(line: &[u8]) -> u64 {
    let digits = line.iter().skip_while(|byte| !byte.is_ascii_digit());
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    })
}

fn write_list(elements: &[Answer<'_>], out: &mut impl Reply) {
    out.array(elements.len());
    elements.iter().for_each(|element| element.replay(out));
}

/// Merges runs of keys, or of keys with values, that are in order.
fn write_range(
    lists: Vec<Vec<Answer<'_>>>,
    reverse: bool,
    limit: u64,
    answer: RangeAnswer,
    out: &mut impl Reply,
) {
    // COUNT is a number, and not merged here.
    let step = if answer == RangeAnswer::Keys { 1 } else { 2 };
    let mut rows: Vec<&[Answer<'_>]> =
        lists.iter().flat_map(|list| list.chunks_exact(step)).collect();
    // The runs are in order: a stable sort merges them.
    rows.sort_by(|a, b| {
        let order = a[0].text().cmp(&b[0].text());
        if reverse { order.reverse() } else { order }
    });
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    match answer {
        RangeAnswer::Pairs => out.map(rows.len()),
        _ => out.array(rows.len()),
    }
    for row in rows {
        match answer {
            RangeAnswer::Values => row[1].replay(out),
            _ => row.iter().for_each(|element| element.replay(out)),
        }
    }
}

/// Facts of a source, as names and texts, with the amounts of all shards added up.
fn write_source(answers: &[Answer<'_>], out: &mut impl Reply) {
    let lists: Vec<Vec<Answer<'_>>> = answers.iter().map(|answer| answer.list()).collect();
    let Some(first) = lists.first() else { return };
    let amount = |list: &Vec<Answer<'_>>, name: &[u8]| -> Option<u64> {
        let fact = list.chunks_exact(2).find(|fact| fact[0].text() == Some(name))?;
        core::str::from_utf8(fact[1].text()?).ok()?.parse().ok()
    };
    out.map(first.len() / 2);
    for fact in first.chunks_exact(2) {
        fact[0].replay(out);
        match fact[0].text().filter(|name| AMOUNTS.contains(name)) {
            Some(name) => {
                let sum: u64 = lists.iter().filter_map(|list| amount(list, name)).sum();
                out.bulk(sum.to_string().as_bytes());
            }
            None => fact[1].replay(out),
        }
    }
}

/// Whether an answer is an aggregate of this shape.
fn is_aggregate(answer: Answer<'_>) -> bool {
    matches!(answer.token(), Token::Aggregate(..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{AnswerWriter, answer_of};
    use alloc::string::String;
    use headwater_protocol::resp::{Encoder, Version};

    type Written<'w> = &'w dyn Fn(&mut AnswerWriter<'_>);

    fn merged(merge: &Merge, parts: &[Written<'_>]) -> String {
        let parts: Vec<_> = parts.iter().map(|part| answer_of(|out| part(out))).collect();
        let parts: Vec<_> = parts.iter().map(|part| Answer::whole(part).unwrap()).collect();
        let parts: Vec<_> =
            parts.into_iter().enumerate().map(|(at, part)| (Shard(at as u16), part)).collect();
        let typed = answer_of(|out| merge.write(&parts, out));
        let mut text = Vec::new();
        Answer::whole(&typed).unwrap().replay(&mut Encoder::new(&mut text, Version::Resp2));
        String::from_utf8(text).unwrap()
    }

    fn list(of: &'static [&'static str]) -> impl Fn(&mut AnswerWriter<'_>) {
        move |out| {
            out.array(of.len());
            of.iter().for_each(|text| out.bulk(text.as_bytes()));
        }
    }

    #[test]
    fn answers_become_one() {
        let number = |number: i64| move |out: &mut AnswerWriter<'_>| out.integer(number);
        let no = |out: &mut AnswerWriter<'_>| out.error("ERR", format_args!("no"));
        let null = |out: &mut AnswerWriter<'_>| out.null();
        let ok = |out: &mut AnswerWriter<'_>| out.ok();
        assert_eq!(merged(&Merge::Sum, &[&number(1), &number(2)]), ":3\r\n");
        assert_eq!(merged(&Merge::SumUpTo(Some(2)), &[&number(1), &number(2)]), ":2\r\n");
        assert_eq!(merged(&Merge::Sum, &[&number(1), &no]), "-ERR no\r\n");
        assert_eq!(merged(&Merge::AnyDone, &[&no, &ok]), "+OK\r\n");
        assert_eq!(merged(&Merge::AnyDone, &[&no, &no]), "-ERR no\r\n");
        assert_eq!(merged(&Merge::Same, &[&ok, &ok]), "+OK\r\n");
        assert_eq!(merged(&Merge::Some, &[&null, &ok]), "+OK\r\n");
        assert_eq!(merged(&Merge::Some, &[&null, &null]), "$-1\r\n");
        assert_eq!(merged(&Merge::Concat, &[&list(&["a"]), &list(&[])]), "*1\r\n$1\r\na\r\n");
        let text = |text: &'static str| {
            move |out: &mut AnswerWriter<'_>| out.verbatim(*b"txt", text.as_bytes())
        };
        let (one, two) = (text("id=2 a\nid=10 b\n"), text("id=3 c\n"));
        let lines = merged(&Merge::Lines, &[&one, &two]);
        assert_eq!(lines, "$22\r\nid=2 a\nid=3 c\nid=10 b\n\r\n");
        let union = merged(&Merge::Union, &[&list(&["b", "a"]), &list(&["b"])]);
        assert_eq!(union, "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    }

    #[test]
    fn ranges_are_merged_by_key() {
        let pairs = |of: &'static [&'static str]| {
            move |out: &mut AnswerWriter<'_>| {
                out.map(of.len() / 2);
                of.iter().for_each(|text| out.bulk(text.as_bytes()));
            }
        };
        let merge = |reverse, limit, answer| Merge::Range { reverse, limit, answer };
        let parts: [Written<'_>; 2] = [&pairs(&["a", "1", "d", "4"]), &pairs(&["b", "2"])];
        let shown = |merge: &Merge| merged(merge, &parts).replace("\r\n", " ");
        let ascending = shown(&merge(false, None, RangeAnswer::Pairs));
        assert_eq!(ascending, "*6 $1 a $1 1 $1 b $1 2 $1 d $1 4 ");
        let values = merge(false, Some(2), RangeAnswer::Values);
        assert_eq!(shown(&values), "*2 $1 1 $1 2 ");
        let parts: [Written<'_>; 2] = [&list(&["d", "a"]), &list(&["b"])];
        let keys = merged(&merge(true, Some(2), RangeAnswer::Keys), &parts);
        assert_eq!(keys.replace("\r\n", " "), "*2 $1 d $1 b ");
        let called = Merge::Called { reverse: false, limit: None };
        let fold = |out: &mut AnswerWriter<'_>| out.bulk(b"fold");
        assert!(merged(&called, &[&fold, &fold]).starts_with("-ERR the function folds"));
    }

    #[test]
    fn values_come_in_the_order_of_their_keys() {
        let order = [1, 0, 1].map(Shard).to_vec();
        let values = merged(&Merge::Values(order), &[&list(&["x"]), &list(&["y", "z"])]);
        assert_eq!(values, "*3\r\n$1\r\ny\r\n$1\r\nx\r\n$1\r\nz\r\n");
    }
}
