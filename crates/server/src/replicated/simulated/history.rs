//! What clients have asked and been told, and whether that can be explained.
//!
//! - Lists grow by texts that are all different, counters by one, so what a client is told of them is a *version*: there is one order of all operations
//!   that explains the versions, and agrees with the times at which operations began and ended. So nothing that was acknowledged is lost, nothing that was
//!   seen is undone, nothing counts twice, and no two owners answer at one time.
//! - Registers are set to values that are all different, and removed: the same is decided by the times for which each value must have been there
//!   (Gibbons and Korach, *Testing shared memories*).
//! - The values of places may go by themselves, when their time has come (`expiring`).
//! - What changes by compare-and-set alone has one order of values (`chains`).
//! - A counter and a list that change in one transaction are always seen together.
//! - What was refused is not done.
//! - Each post has its effects once (`effects`).
//! - What a join shows of a list is a version of it: with one shard the last one, with several a session's own at least, and none that it had
//!   seen later.

mod chains;
mod effects;
mod expiring;
mod registers;

pub(super) use effects::{Effect, Shown};

use headwater_sim::replicated::check_order;
use registers::SingleValue;
use std::collections::BTreeMap;

/// How many lists, counters and registers there are.
pub(super) const LISTS: usize = 3;
pub(super) const COUNTERS: usize = 3;
pub(super) const REGISTERS: usize = 2;
/// How many keys change by compare-and-set alone.
pub(super) const CHAINS: usize = 2;
/// How many keys have values that may go by themselves.
pub(super) const PLACES: usize = 2;
/// Behind the lists and the counters: those that change in one transaction.
pub(super) const PAIR_LIST: usize = LISTS;
pub(super) const PAIR_COUNTER: usize = COUNTERS;
/// Behind those: lists that are plain streams.
pub(super) const STREAM: usize = PAIR_LIST + 1;
/// How long a text is that a list grows by.
pub(super) const TEXT: usize = 6;
/// One value of this many is large.
const LARGE_IN: usize = 5;
/// Most bytes of a large value.
const LARGE: usize = 900;

/// What a client asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// A list grows by this operation's own text.
    Append(usize),
    ReadList(usize),
    /// The same, as a join has it.
    ReadJoin(usize),
    /// A counter goes on by one.
    Count(usize),
    ReadCounter(usize),
    /// A register has this operation's own value.
    Set(usize),
    Remove(usize),
    ReadRegister(usize),
    /// The counter and the list of the pair grow in one transaction.
    Both,
    ReadBoth,
    /// A place has this operation's own value, for this many milliseconds; `None`: for ever.
    Lend(usize, Option<u64>),
    /// What a place has goes when this many milliseconds are over; `None`: never.
    Limit(usize, Option<u64>),
    ReadPlace(usize),
    /// What a chain has is read, to be replaced.
    Hold(usize),
    /// A chain has this operation's own value, if it still had whose value that was; with its version, where the protocol has one.
    Swap(usize, Option<usize>, u64),
    ReadChain(usize),
    /// A key of this operation's own, which flows follow.
    Post,
    /// All of those are shown.
    ReadPosts,
    /// What a flow has made of a post is taken away.
    Take(Effect, usize),
}

/// What it was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// It was not executed.
    Refused,
    /// How long a list is.
    Length(usize),
    /// What a list has.
    Text(String),
    Number(u64),
    /// What a register or a place has: whose value.
    Value(Option<usize>),
    /// What a chain has, and its version.
    Held(Option<usize>, u64),
    /// Nothing but that it was done.
    Done,
    /// Counter and length of the pair.
    Both(u64, usize),
    /// Counter and list of the pair.
    BothRead(u64, String),
    /// Which posts there are.
    Posts(Vec<usize>),
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) operation: Operation,
    pub(super) client: usize,
    pub(super) began: u64,
    /// When it was answered, and what.
    pub(super) answer: Option<(u64, Told)>,
}

/// All operations; each is named by its place.
#[derive(Default)]
pub(super) struct History {
    pub(super) asked: Vec<Asked>,
    /// How far the clocks of two owners are apart, at most, in milliseconds.
    clocks_apart: u64,
}

pub(super) fn text_of(which: usize) -> String {
    format!("{which:05},")
}

/// The value that an operation sets: some are so large that the log has them in parts.
pub(super) fn value_of(which: usize) -> String {
    let length = if which.is_multiple_of(LARGE_IN) { which * 37 % LARGE } else { 0 };
    let rest = char::from(b'a' + (which % 26) as u8).to_string().repeat(length);
    format!("{which}:{rest}")
}

/// Whose value it is, whole.
pub(super) fn whose_value(value: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(value).ok()?;
    let which = text.split(':').next()?.parse().ok()?;
    (text == value_of(which) || text == which.to_string()).then_some(which)
}

/// The operations whose texts a list has.
fn texts(list: &str) -> Result<Vec<usize>, String> {
    let (pieces, rest) = list.as_bytes().as_chunks::<TEXT>();
    let number = |piece: &[u8; TEXT]| std::str::from_utf8(&piece[..TEXT - 1]).ok()?.parse().ok();
    let all: Option<Vec<usize>> = pieces.iter().map(number).collect();
    all.filter(|_| rest.is_empty()).ok_or_else(|| format!("'{list}' is no list"))
}

impl History {
    /// The history of a cluster whose owners have clocks that are `clocks_apart` milliseconds apart at most.
    pub(super) fn new(clocks_apart: u64) -> Self {
        Self { asked: Vec::new(), clocks_apart }
    }

    /// An operation begins.
    pub(super) fn begin(&mut self, operation: Operation, client: usize, now: u64) -> usize {
        self.asked.push(Asked { operation, client, began: now, answer: None });
        self.asked.len() - 1
    }

    /// How many were answered by something else than a refusal.
    pub(super) fn answers(&self) -> u64 {
        self.all().filter(|(_, asked)| asked.end().is_some()).count() as u64
    }

    /// How many were refused.
    pub(super) fn refusals(&self) -> u64 {
        self.all().filter(|(_, asked)| asked.is_refused()).count() as u64
    }

    fn all(&self) -> impl Iterator<Item = (usize, &Asked)> {
        self.asked.iter().enumerate()
    }

    /// Whether everything can be explained. The last operations have read everything, with nothing under way.
    pub(super) fn check(&self, joins_are_current: bool) -> Result<(), String> {
        (0..=STREAM).try_for_each(|list| self.check_list(list, joins_are_current))?;
        (0..=PAIR_COUNTER).try_for_each(|counter| self.check_counter(counter))?;
        (0..REGISTERS)
            .try_for_each(|register| self.check_register(SingleValue::Register(register)))?;
        (0..PLACES).try_for_each(|place| {
            self.check_register(SingleValue::Place(place))?;
            self.check_lent(place)
        })?;
        (0..CHAINS).try_for_each(|chain| self.check_chain(chain))?;
        self.check_posts()
    }

    /// What the last read of a list has seen.
    pub(super) fn last_text(&self, list: usize) -> String {
        let text = |asked: &Asked| match (&asked.operation, &asked.answer) {
            (Operation::ReadList(at), Some((_, Told::Text(text)))) if *at == list => {
                Some(text.clone())
            }
            (Operation::ReadBoth, Some((_, Told::BothRead(_, text)))) if list == PAIR_LIST => {
                Some(text.clone())
            }
            _ => None,
        };
        self.asked.iter().rev().find_map(text).unwrap_or_default()
    }

    fn check_list(&self, list: usize, joins_are_current: bool) -> Result<(), String> {
        let last = self.last_text(list);
        let appends = |asked: &Asked| match asked.operation {
            Operation::Append(at) => at == list,
            Operation::Both => list == PAIR_LIST,
            _ => false,
        };
        let mut places = BTreeMap::new();
        for (place, which) in texts(&last)?.into_iter().enumerate() {
            let asked = self.asked.get(which).filter(|asked| appends(asked));
            let asked = asked.ok_or_else(|| format!("list {list} has {which}, of nobody"))?;
            if asked.is_refused() {
                return Err(format!("append {which} to list {list} was refused, and is there"));
            }
            if places.insert(which, place).is_some() {
                return Err(format!("list {list} has {which} twice"));
            }
        }
        let (mut order, mut seen_of) = (Vec::new(), BTreeMap::<usize, (u64, usize)>::new());
        for (which, asked) in self.all() {
            let shown = |text: &str| match last.starts_with(text) {
                true => Ok((text.len() / TEXT) as u64),
                false => Err(format!(
                    "operation {which} saw '{text}' in list {list}, which is '{last}' in the end"
                )),
            };
            match (&asked.operation, &asked.answer) {
                (_, Some((end, told @ (Told::Length(length) | Told::Both(_, length)))))
                    if appends(asked) =>
                {
                    if places.get(&which).is_none_or(|place| *length != (place + 1) * TEXT) {
                        return Err(format!(
                            "append {which} to list {list} was acknowledged ({told:?}) and is lost, or elsewhere: '{last}'"
                        ));
                    }
                    let version = (length / TEXT) as u64;
                    order.push((version, false, asked.began, *end, which));
                    let before = seen_of.entry(asked.client).or_default();
                    *before = (*before).max((version, which));
                }
                _ if appends(asked) => {
                    if let Some(place) = places.get(&which) {
                        order.push((*place as u64 + 1, false, asked.began, u64::MAX, which));
                    }
                }
                (Operation::ReadList(at), Some((end, Told::Text(text)))) if *at == list => {
                    order.push((shown(text)?, true, asked.began, *end, which));
                }
                (Operation::ReadBoth, Some((end, Told::BothRead(_, text))))
                    if list == PAIR_LIST =>
                {
                    order.push((shown(text)?, true, asked.began, *end, which));
                }
                (Operation::ReadJoin(at), Some((end, Told::Text(text)))) if *at == list => {
                    let version = shown(text)?;
                    if joins_are_current {
                        order.push((version, true, asked.began, *end, which));
                    }
                    let before = seen_of.entry(asked.client).or_default();
                    if version < before.0 {
                        return Err(format!(
                            "operation {which} saw version {version} of list {list} by a join; operation {} of the same session had seen {}, or written it",
                            before.1, before.0
                        ));
                    }
                    *before = (version, which);
                }
                _ => {}
            }
        }
        check_order(&format!("list {list}"), order)
    }

    fn check_counter(&self, counter: usize) -> Result<(), String> {
        let counts = |asked: &Asked| match asked.operation {
            Operation::Count(at) => at == counter,
            Operation::Both => counter == PAIR_COUNTER,
            _ => false,
        };
        let (mut order, mut told, mut unknown) = (Vec::new(), BTreeMap::new(), 0);
        let mut last = 0;
        for (which, asked) in self.all() {
            match (&asked.operation, &asked.answer) {
                (_, Some((end, Told::Number(number) | Told::Both(number, _)))) if counts(asked) => {
                    if let Some(other) = told.insert(*number, which) {
                        return Err(format!(
                            "counter {counter} came to {number} by operations {other} and {which}"
                        ));
                    }
                    order.push((*number, false, asked.began, *end, which));
                }
                (_, None) if counts(asked) => unknown += 1,
                (Operation::ReadCounter(at), Some((end, Told::Number(number))))
                    if *at == counter =>
                {
                    last = *number;
                    order.push((*number, true, asked.began, *end, which));
                }
                (Operation::ReadBoth, Some((end, Told::BothRead(number, text))))
                    if counter == PAIR_COUNTER =>
                {
                    if text.len() != *number as usize * TEXT {
                        return Err(format!("operation {which} saw half a transaction: {asked:?}"));
                    }
                    last = *number;
                    order.push((*number, true, asked.began, *end, which));
                }
                _ => {}
            }
            if let Some((_, Told::Both(number, length))) = asked.answer
                && length != number as usize * TEXT
            {
                return Err(format!("operation {which} is half a transaction: {asked:?}"));
            }
        }
        let done = told.len() as u64;
        if last < done || last > done + unknown || told.keys().any(|number| *number > last) {
            return Err(format!(
                "counter {counter} is {last} in the end: {done} additions were acknowledged, up to {:?}, and of {unknown} nobody knows",
                told.keys().last()
            ));
        }
        check_order(&format!("counter {counter}"), order)
    }
}

impl Asked {
    fn is_refused(&self) -> bool {
        matches!(self.answer, Some((_, Told::Refused)))
    }

    /// When it was answered, by something else than a refusal.
    fn end(&self) -> Option<u64> {
        self.answer.as_ref().filter(|(_, told)| *told != Told::Refused).map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation, when it began, and when it was told what.
    type Timed = (Operation, u64, Option<(u64, Told)>);

    /// A history of these.
    fn history(all: &[Timed]) -> History {
        let mut history = History::default();
        for (operation, began, answer) in all {
            let which = history.begin(*operation, 0, *began);
            history.asked[which].answer.clone_from(answer);
        }
        history
    }

    /// Histories, and what is said of each.
    fn check(cases: &[(Vec<Timed>, Option<&str>)]) {
        for (all, wrong) in cases {
            let found = history(all).check(true).err();
            match (&found, wrong) {
                (None, None) => {}
                (Some(found), Some(wrong)) if found.contains(wrong) => {}
                _ => panic!("{all:?}: {found:?}, and not {wrong:?}"),
            }
        }
    }

    fn at(end: u64, told: Told) -> Option<(u64, Told)> {
        Some((end, told))
    }

    #[test]
    fn what_cannot_be_explained_is_noticed() {
        use Operation::{Append, Count, ReadCounter, ReadList, ReadRegister, Remove, Set};
        let value = |end, which| at(end, Told::Value(which));
        let cases = [
            (vec![(Count(0), 1, at(2, Told::Number(1)))], Some("is 0 in the end")),
            (
                vec![
                    (Count(0), 1, at(2, Told::Number(1))),
                    (Count(0), 3, at(4, Told::Number(1))),
                    (ReadCounter(0), 5, at(6, Told::Number(2))),
                ],
                Some("came to 1 by"),
            ),
            (
                vec![
                    (Count(0), 1, None),
                    (Count(0), 1, at(9, Told::Number(2))),
                    (ReadCounter(0), 10, at(11, Told::Number(2))),
                ],
                None,
            ),
            (
                vec![
                    (Append(0), 1, at(2, Told::Length(TEXT))),
                    (ReadList(0), 3, at(4, Told::Text(String::new()))),
                ],
                Some("is lost"),
            ),
            (
                vec![
                    (Append(0), 1, at(2, Told::Refused)),
                    (ReadList(0), 3, at(4, Told::Text(text_of(0)))),
                ],
                Some("was refused, and is there"),
            ),
            (
                vec![
                    (Append(0), 1, at(9, Told::Length(TEXT))),
                    (ReadList(0), 2, at(3, Told::Text(text_of(0)))),
                    (ReadList(0), 4, at(5, Told::Text(String::new()))),
                    (ReadList(0), 10, at(11, Told::Text(text_of(0)))),
                ],
                Some("saw more"),
            ),
            (
                vec![
                    (Set(0), 1, at(2, Told::Done)),
                    (Set(0), 3, at(4, Told::Done)),
                    (ReadRegister(0), 5, value(6, Some(0))),
                ],
                Some("without a gap"),
            ),
            (
                vec![
                    (Set(0), 1, at(2, Told::Done)),
                    (Remove(0), 3, at(4, Told::Number(1))),
                    (ReadRegister(0), 5, value(6, Some(0))),
                ],
                Some("was removed"),
            ),
            (
                vec![(Set(0), 1, at(2, Told::Done)), (ReadRegister(0), 5, value(6, None))],
                Some("that is lost"),
            ),
            (
                vec![
                    (Set(0), 1, at(2, Told::Done)),
                    (Remove(0), 1, None),
                    (ReadRegister(0), 5, value(6, None)),
                    (ReadRegister(0), 7, value(8, Some(0))),
                ],
                Some("which it had before and behind"),
            ),
            (
                vec![
                    (Set(0), 1, at(9, Told::Done)),
                    (Remove(0), 1, None),
                    (ReadRegister(0), 2, value(3, None)),
                    (ReadRegister(0), 4, value(5, Some(0))),
                    (ReadRegister(0), 20, value(21, None)),
                ],
                None,
            ),
        ];
        check(&cases);
    }

    #[test]
    fn what_goes_by_itself_or_is_replaced_cannot_be_anything_else() {
        use Operation::{Hold, Lend, Limit, ReadChain, ReadPlace, Swap};
        const LEND: Operation = Lend(0, Some(1000));
        const SOON: Option<&str> = Some("whose time had not come");
        let value = |end, which| at(end, Told::Value(which));
        let cases = [
            (vec![(LEND, 1, at(2, Told::Done)), (ReadPlace(0), 3, value(4, None))], SOON),
            (vec![(LEND, 1, at(2, Told::Done)), (ReadPlace(0), 990, value(1010, None))], None),
            (
                vec![
                    (LEND, 1, at(2, Told::Done)),
                    (Limit(0, None), 3, at(4, Told::Number(1))),
                    (ReadPlace(0), 2000, value(2010, None)),
                ],
                SOON,
            ),
            (
                vec![
                    (LEND, 1, at(2, Told::Done)),
                    (Limit(0, None), 3, at(4, Told::Number(0))),
                    (ReadPlace(0), 2000, value(2010, None)),
                ],
                None,
            ),
            (
                vec![
                    (LEND, 1, at(2, Told::Done)),
                    (Lend(0, None), 3, at(4, Told::Done)),
                    (ReadPlace(0), 2000, value(2010, None)),
                ],
                SOON,
            ),
            (
                vec![
                    (LEND, 1, at(2, Told::Done)),
                    (ReadPlace(0), 2000, value(2010, None)),
                    (ReadPlace(0), 2020, value(2030, Some(0))),
                ],
                Some("which it had before and behind"),
            ),
            (
                vec![(LEND, 1, at(2, Told::Done)), (ReadPlace(0), 5000, value(5010, Some(0)))],
                Some("whose time had come"),
            ),
            (
                vec![
                    (Swap(0, None, 0), 1, at(2, Told::Done)),
                    (Hold(0), 3, at(4, Told::Held(Some(0), 0))),
                    (Swap(0, Some(0), 0), 5, at(6, Told::Done)),
                    (Swap(0, Some(0), 0), 5, at(6, Told::Number(0))),
                    (ReadChain(0), 7, value(8, Some(2))),
                ],
                None,
            ),
            (
                vec![
                    (Swap(0, None, 0), 1, at(2, Told::Done)),
                    (Swap(0, None, 0), 3, at(4, Told::Done)),
                ],
                Some("have both replaced"),
            ),
            (
                vec![(Swap(0, None, 0), 1, at(2, Told::Done)), (ReadChain(0), 7, value(8, None))],
                Some("saw more"),
            ),
            (vec![(Swap(0, Some(7), 0), 1, at(2, Told::Done))], Some("lacks what")),
        ];
        check(&cases);
    }
}
