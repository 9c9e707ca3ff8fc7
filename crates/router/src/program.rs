//! Commands over several shards that one shard after the other carries out, as steps.
//!
//! A step that fails is the last one: what can refuse comes before the first change.

use crate::answer::{Answer, Token, answer_of};
use crate::ask::{Ask, PutValue};
use crate::merge::Merge;
use crate::objections::objection;
use crate::pending::Kind;
use crate::purpose::PutPurpose;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use headwater_base::{Millis, Placement, Shard};
use headwater_command::bits::BitOperation;
use headwater_command::{
    Args, Bits, Command, Data, Keys, LcsAnswer, OwnedArgs, Reply, Spec, Strings, table,
};

/// A command under way.
#[derive(Clone, PartialEq, Debug)]
pub enum Program {
    /// RENAME, RENAMENX and COPY.
    Carry {
        /// The key that is read.
        from: Vec<u8>,
        /// The key that is written.
        to: Vec<u8>,
        /// Only where it holds nothing.
        if_absent: bool,
        /// The first key is removed.
        leaves: bool,
        /// What comes next.
        step: Carry,
    },
    /// LCS.
    Lcs {
        /// One key.
        left: Vec<u8>,
        /// The other.
        right: Vec<u8>,
        /// What is wanted of it.
        answer: LcsAnswer,
        /// Their values were asked for.
        asked: bool,
    },
    /// BITOP.
    Combine {
        /// How.
        operation: BitOperation,
        /// The key that is written.
        to: Vec<u8>,
        /// The keys that are read.
        from: Vec<Vec<u8>>,
        /// What comes next.
        step: Combine,
    },
    /// What is written in parts, within a transaction: all shards agree first.
    Checked {
        /// The parts.
        parts: Vec<(Shard, OwnedArgs)>,
        /// How their answers become one.
        merge: Merge,
        /// The name by which each is looked at first.
        name: Vec<u8>,
        /// The homes of its keys, in its order.
        order: Vec<Shard>,
        /// What comes next.
        step: Checked,
    },
    /// SCAN, which goes on at the next shard where one has too few keys.
    Scan {
        /// The request.
        request: OwnedArgs,
        /// The shard that is asked next.
        at: Shard,
        /// Where it continues there; 0: at its beginning.
        cursor: u64,
        /// Names the map of homes by which it began.
        map: u64,
        /// About so many keys are still wanted.
        wanted: u64,
        /// The keys that were found, as answers.
        found: Vec<Vec<u8>>,
        /// It was asked.
        asked: bool,
    },
}

/// What comes next where a value goes to another key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carry {
    /// The value is to be read.
    Read,
    /// It is to be put.
    Put,
    /// It is to be removed where it was, if it was put.
    Remove,
    /// All is done.
    End,
}

/// What comes next where values are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combine {
    /// The values are to be read.
    Read,
    /// What they make is to be put.
    Put,
    /// It was put, and has so many bytes.
    End(usize),
}

/// What comes next where something is written in parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// All are asked whether they would do theirs.
    Ask,
    /// They do it, if all would.
    Do,
    /// All is done.
    End,
}

/// A request by another name, which takes the same arguments.
pub(crate) fn renamed(request: &OwnedArgs, name: &[u8]) -> OwnedArgs {
    let rest = request.args().from(1);
    [name].into_iter().chain(rest.iter()).collect()
}

/// What a shard is asked, whoever owns the bytes.
#[derive(Clone, PartialEq, Debug)]
pub enum StepAsk {
    /// [`Ask::Command`].
    Command(&'static Spec, OwnedArgs),
    /// [`Ask::Lock`], which the transaction has already: whether this would be done.
    Prepare(OwnedArgs),
    /// [`Ask::Carry`].
    Carry {
        /// The key.
        key: Vec<u8>,
        /// It will be removed.
        leaves: bool,
    },
    /// [`Ask::Put`].
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// When it expires.
        expires: Option<Millis>,
        /// The flags beside it.
        flags: u32,
        /// Only where the key holds nothing.
        if_absent: bool,
        /// What for.
        purpose: PutPurpose,
    },
    /// Anything that owns its content.
    Whole(Ask<'static>),
}

impl StepAsk {
    /// Gives a key a value, as SET does.
    fn set(key: &[u8], value: Vec<u8>) -> Self {
        Self::Put {
            key: key.to_vec(),
            value,
            expires: None,
            flags: 0,
            if_absent: false,
            purpose: PutPurpose::Set,
        }
    }

    /// Gives it to `with`.
    pub fn borrow<T>(&self, with: impl FnOnce(&Ask<'_>) -> T) -> T {
        match self {
            Self::Command(spec, args) => with(&Ask::Command(spec, args.args())),
            Self::Carry { key, leaves } => with(&Ask::Carry { key, leaves: *leaves }),
            Self::Put { key, value, expires, flags, if_absent, purpose } => {
                let (expires, flags) = (*expires, *flags);
                let (if_absent, purpose) = (*if_absent, *purpose);
                with(&Ask::Put(PutValue { key, value, expires, flags, if_absent, purpose }))
            }
            Self::Whole(ask) => with(ask),
            // Its transaction has made a whole of it.
            Self::Prepare(request) => with(&Ask::Exec([request.clone()].into())),
        }
    }

    /// Bytes of what is asked, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Command(_, args) | Self::Prepare(args) => args.args().bytes(),
            Self::Carry { key, .. } => key.len(),
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Whole(Ask::Execute { requests, .. } | Ask::Exec(requests)) => {
                requests.iter().map(|request| request.args().bytes()).sum()
            }
            Self::Whole(_) => size_of::<Self>(),
        }
    }
}

/// What a shard is asked.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Which shard.
    pub at: Shard,
    /// What the request does.
    pub kind: Kind,
    /// What.
    pub ask: StepAsk,
}

/// How a program goes on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Goes {
    /// These are asked.
    Ask(Vec<Step>),
    /// It is answered so.
    Answer(Vec<u8>),
    /// It is answered with what two values have in common.
    Lcs(Vec<u8>, Vec<u8>, LcsAnswer),
}

fn integer(number: i64) -> Goes {
    Goes::Answer(answer_of(|out| out.integer(number)))
}

/// Bits of a cursor that name a map of homes.
const MAP_BITS: u32 = 16;
const MAP_MASK: u64 = (1 << MAP_BITS) - 1;

/// Names a map of homes in a cursor, which is never 0 by that.
fn map_of(placement: &Placement) -> u64 {
    placement.version() % MAP_MASK + 1
}

/// Whether SCAN wants keys of some kind alone.
fn is_filtered(args: Args<'_>) -> bool {
    let names: [&[u8]; 2] = [b"match", b"type"];
    let mut options = args.from(2).pairs().map(|(name, _)| name);
    options.any(|name| names.iter().any(|it| it.eq_ignore_ascii_case(name)))
}

impl Program {
    /// The steps of a command; `None`: it has none.
    #[must_use]
    pub fn of(command: &Command<'_>) -> Option<Self> {
        let bytes = <[u8]>::to_vec;
        Some(match *command {
            Command::Data(Data::Keys(Keys::Rename { from, to, if_absent })) => {
                let (from, to) = (bytes(from), bytes(to));
                Self::Carry { from, to, if_absent, leaves: true, step: Carry::Read }
            }
            Command::Data(Data::Keys(Keys::Copy { from, to, replace })) => {
                let (from, to) = (bytes(from), bytes(to));
                Self::Carry { from, to, if_absent: !replace, leaves: false, step: Carry::Read }
            }
            Command::Data(Data::Strings(Strings::Lcs { left, right, answer })) => {
                Self::Lcs { left: bytes(left), right: bytes(right), answer, asked: false }
            }
            Command::Data(Data::Bits(Bits::Combine { operation, to, from })) => {
                let (to, from) = (bytes(to), from.iter().map(bytes).collect());
                Self::Combine { operation, to, from, step: Combine::Read }
            }
            _ => return None,
        })
    }

    /// SCAN from a cursor on: it tells a shard, where within it, and by which map of homes. Where partitions have moved since, keys may
    /// have come to shards that were asked before: it begins anew.
    pub(crate) fn scan(placement: &Placement, cursor: u64, count: u64, args: Args<'_>) -> Self {
        let (shards, map) = (u64::from(placement.shards()), map_of(placement));
        let cursor = if cursor & MAP_MASK == map { cursor >> MAP_BITS } else { 0 };
        let (inner, at) = (cursor / shards, Shard((cursor % shards) as u16));
        let (request, found) = (OwnedArgs::of(args), Vec::new());
        Self::Scan { request, at, cursor: inner, map, wanted: count, found, asked: false }
    }

    /// What comes next, where `answers` are those to what was asked last.
    pub(crate) fn next(&mut self, placement: &Placement, answers: &[Answer<'_>]) -> Goes {
        if !matches!(self, Self::Checked { .. })
            && let Some(error) = answers.iter().find(|answer| answer.is_error())
        {
            return Goes::Answer(error.bytes().to_vec());
        }
        let first = answers.first().copied();
        match self {
            Self::Carry { from, to, if_absent, leaves, step } => {
                let (if_absent, leaves) = (*if_absent, *leaves);
                match *step {
                    Carry::Read => {
                        *step = Carry::Put;
                        let ask = StepAsk::Carry { key: from.clone(), leaves };
                        Goes::Ask(vec![Step { at: placement.home(from), kind: Kind::Derived, ask }])
                    }
                    Carry::Put => {
                        let fields = first.map(Answer::list).unwrap_or_default();
                        let [value, expires, flags] = fields[..] else {
                            let missing = |out: &mut crate::AnswerWriter<'_>| {
                                out.error("ERR", format_args!("no such key"));
                            };
                            return if leaves {
                                Goes::Answer(answer_of(missing))
                            } else {
                                integer(0)
                            };
                        };
                        *step = if leaves { Carry::Remove } else { Carry::End };
                        let expires = expires.integer().and_then(|at| u64::try_from(at).ok());
                        let ask = StepAsk::Put {
                            key: to.clone(),
                            value: value.text().unwrap_or_default().to_vec(),
                            expires: expires.map(Millis),
                            flags: flags.integer().unwrap_or(0) as u32,
                            if_absent,
                            purpose: if leaves { PutPurpose::Rename } else { PutPurpose::Copy },
                        };
                        Goes::Ask(vec![Step { at: placement.home(to), kind: Kind::Write, ask }])
                    }
                    _ if first.and_then(Answer::integer) == Some(0) && *step == Carry::Remove => {
                        integer(0)
                    }
                    Carry::Remove => {
                        let Some(spec) = table::lookup(b"del") else { return integer(0) };
                        *step = Carry::End;
                        let del: OwnedArgs = [&b"DEL"[..], from].into_iter().collect();
                        let ask = StepAsk::Command(spec, del);
                        Goes::Ask(vec![Step { at: placement.home(from), kind: Kind::Write, ask }])
                    }
                    // RENAME alone answers with no number.
                    Carry::End if leaves && !if_absent => Goes::Answer(answer_of(|out| out.ok())),
                    Carry::End => integer(i64::from(first.and_then(Answer::integer) != Some(0))),
                }
            }
            Self::Lcs { left, right, answer, asked } => {
                if *asked {
                    let value = |at: usize| answers.get(at).and_then(|answer| answer.text());
                    let value = |at: usize| value(at).unwrap_or_default().to_vec();
                    return Goes::Lcs(value(0), value(1), *answer);
                }
                *asked = true;
                let Some(spec) = table::lookup(b"get") else { return integer(0) };
                let get = |key: &Vec<u8>| Step {
                    at: placement.home(key),
                    kind: Kind::Derived,
                    ask: StepAsk::Command(spec, [&b"GET"[..], key].into_iter().collect()),
                };
                Goes::Ask(vec![get(left), get(right)])
            }
            Self::Combine { operation, to, from, step } => match *step {
                Combine::Read => {
                    *step = Combine::Put;
                    let Some(spec) = table::lookup(b"get") else { return integer(0) };
                    let get = |key: &Vec<u8>| Step {
                        at: placement.home(key),
                        kind: Kind::Derived,
                        ask: StepAsk::Command(spec, [&b"GET"[..], key].into_iter().collect()),
                    };
                    Goes::Ask(from.iter().map(get).collect())
                }
                Combine::Put => {
                    let value = |answer: &Answer<'_>| answer.text().unwrap_or_default().to_vec();
                    let values: Vec<_> = answers.iter().map(value).collect();
                    let value = operation.of(&values);
                    *step = Combine::End(value.len());
                    let ask = if value.is_empty() {
                        let Some(spec) = table::lookup(b"del") else { return integer(0) };
                        StepAsk::Command(spec, [&b"DEL"[..], to].into_iter().collect())
                    } else {
                        StepAsk::set(to, value)
                    };
                    Goes::Ask(vec![Step { at: placement.home(to), kind: Kind::Write, ask }])
                }
                Combine::End(len) => integer(len as i64),
            },
            Self::Scan { .. } => self.scan_on(placement, first),
            Self::Checked { .. } => self.check_on(answers),
        }
    }

    fn check_on(&mut self, answers: &[Answer<'_>]) -> Goes {
        let Self::Checked { parts, merge, name, order, step } = self else { return integer(0) };
        match step {
            Checked::Ask => {
                *step = Checked::Do;
                let look = |(at, request): &(Shard, OwnedArgs)| {
                    let ask = StepAsk::Prepare(renamed(request, name));
                    Step { at: *at, kind: Kind::Plain, ask }
                };
                Goes::Ask(parts.iter().map(look).collect())
            }
            Checked::Do => {
                if answers.iter().any(|answer| answer.token() == Token::Boolean(true)) {
                    return integer(0);
                }
                let all = parts.iter().zip(answers);
                let objections = all.filter_map(|((at, _), it)| objection(*it, *at, order));
                if let Some((_, error)) = objections.min_by_key(|(rank, _)| *rank) {
                    return Goes::Answer(error.bytes().to_vec());
                }
                *step = Checked::End;
                let done = parts.iter().filter_map(|(at, request)| {
                    let spec = table::lookup(request.args().get(0)?)?;
                    let ask = StepAsk::Command(spec, request.clone());
                    Some(Step { at: *at, kind: Kind::Write, ask })
                });
                Goes::Ask(done.collect())
            }
            Checked::End => {
                let answers = parts.iter().zip(answers).map(|((at, _), answer)| (*at, *answer));
                let answers: Vec<_> = answers.collect();
                Goes::Answer(answer_of(|out| merge.write(&answers, out)))
            }
        }
    }

    fn scan_on(&mut self, placement: &Placement, answer: Option<Answer<'_>>) -> Goes {
        let Self::Scan { request, at, cursor, map, wanted, found, asked } = self else {
            return integer(0);
        };
        let shards = u64::from(placement.shards());
        if core::mem::replace(asked, true) {
            let parts = answer.map(Answer::list).unwrap_or_default();
            let inner = parts.first().and_then(|cursor| cursor.text());
            let inner = inner.and_then(|text| core::str::from_utf8(text).ok()?.parse().ok());
            let keys = parts.get(1).map(|keys| keys.list()).unwrap_or_default();
            *wanted = wanted.saturating_sub(keys.len() as u64);
            found.extend(keys.iter().map(|key| key.bytes().to_vec()));
            // A shard's cursor 0 says that its part is over: the next one's begins.
            (*cursor, *at) = match inner.unwrap_or(0) {
                0 => (0, Shard(at.0 + 1)),
                inner => (inner, *at),
            };
            let is_over = u64::from(at.0) >= shards;
            // One that wants keys of some kind alone has looked at as many as it should.
            let has_looked = !found.is_empty() || is_filtered(request.args());
            if is_over || *cursor != 0 && has_looked || *wanted == 0 {
                let place = if is_over { 0 } else { cursor.wrapping_mul(shards) + u64::from(at.0) };
                // With the older map it begins anew, even where this was the end.
                let ends = is_over && *map == map_of(placement);
                let next = if ends { 0 } else { place << MAP_BITS | *map };
                return Goes::Answer(answer_of(|out| {
                    out.array(2);
                    out.bulk(next.to_string().as_bytes());
                    out.array(found.len());
                    found.iter().filter_map(|key| Answer::whole(key)).for_each(|it| it.replay(out));
                }));
            }
        }
        let Some(spec) = table::lookup(b"scan") else { return integer(0) };
        let cursor = cursor.to_string();
        let words = request.args();
        let words = words.iter().enumerate();
        let words = words.map(|(place, word)| if place == 1 { cursor.as_bytes() } else { word });
        let ask = StepAsk::Command(spec, words.collect());
        Goes::Ask(vec![Step { at: *at, kind: Kind::Plain, ask }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use headwater_base::placement::Partition;
    use headwater_protocol::resp::{decode, find};

    /// Keys that live on different shards of three.
    const KEYS: [&str; 2] = ["a", "c"];

    fn request(words: &[&str]) -> OwnedArgs {
        words.iter().map(|word| word.as_bytes()).collect()
    }

    fn shown(step: &Step) -> String {
        match &step.ask {
            StepAsk::Command(_, args) => {
                let words = args.args().iter().map(String::from_utf8_lossy);
                words.collect::<Vec<_>>().join(" ")
            }
            StepAsk::Carry { key, leaves } => format!("carry {} {leaves}", key.escape_ascii()),
            StepAsk::Put { key, value, expires, flags, if_absent, .. } => {
                let (key, value) = (key.escape_ascii(), value.escape_ascii());
                format!("put {key} {value} {expires:?} {flags} {if_absent}")
            }
            StepAsk::Whole(ask) => format!("{ask:?}"),
            StepAsk::Prepare(request) => format!("prepare {request:?}"),
        }
    }

    /// What is asked, as text, and the answer to it all.
    fn run(mut program: Program, replies: &[&[&Vec<u8>]]) -> (Vec<String>, Goes) {
        let placement = Placement::even(3);
        let (mut asked, mut replies, mut last) = (Vec::new(), replies.iter(), &[][..]);
        loop {
            let answers: Vec<_> =
                last.iter().map(|it: &&Vec<u8>| Answer::whole(it).unwrap()).collect();
            match program.next(&placement, &answers) {
                Goes::Ask(steps) => {
                    asked.extend(steps.iter().map(shown));
                    last = replies.next().unwrap();
                }
                goes => return (asked, goes),
            }
        }
    }

    fn of(words: &[&str]) -> Program {
        let own = request(words);
        Program::of(&decode(find(own.args()).ok().unwrap(), own.args()).ok().unwrap()).unwrap()
    }

    #[test]
    fn a_value_is_read_put_and_removed() {
        let [a, b] = KEYS;
        let item = answer_of(|out| {
            out.array(3);
            out.bulk(b"x");
            out.integer(-1);
            out.integer(7);
        });
        let (ok, one, zero) = (
            answer_of(|out| out.ok()),
            answer_of(|out| out.integer(1)),
            answer_of(|out| out.integer(0)),
        );
        let null = answer_of(|out| out.null());
        let oom = answer_of(|out| out.error("OOM", format_args!("no")));
        let replies: [&[&Vec<u8>]; 3] = [&[&item], &[&ok], &[&one]];
        let (asked, answer) = run(of(&["RENAME", a, b]), &replies);
        assert_eq!(asked, ["carry a true", "put c x None 7 false", "DEL a"]);
        assert_eq!(answer, Goes::Answer(ok.clone()));
        let (asked, answer) = run(of(&["COPY", a, b]), &[&[&item], &[&ok]]);
        assert_eq!((asked[1].as_str(), answer), ("put c x None 7 true", Goes::Answer(one.clone())));
        let (_, answer) = run(of(&["COPY", a, b]), &[&[&item], &[&zero]]);
        assert_eq!(answer, Goes::Answer(zero.clone()));
        assert_eq!(run(of(&["COPY", a, b]), &[&[&null]]).1, Goes::Answer(zero.clone()));
        let (_, answer) = run(of(&["RENAME", a, b]), &[&[&null]]);
        assert!(matches!(answer, Goes::Answer(error) if Answer::whole(&error).unwrap().is_error()));
        // Where the key is there, or refused, the other one stays.
        let (asked, answer) = run(of(&["RENAMENX", a, b]), &[&[&item], &[&zero]]);
        assert_eq!((asked.len(), answer), (2, Goes::Answer(zero)));
        let (asked, answer) = run(of(&["RENAMENX", a, b]), &[&[&item], &[&ok], &[&one]]);
        assert_eq!((asked.len(), answer), (3, Goes::Answer(one)));
        let (_, answer) = run(of(&["RENAME", a, b]), &[&[&item], &[&oom]]);
        assert_eq!(answer, Goes::Answer(oom));
    }

    #[test]
    fn a_scan_goes_on_until_it_has_enough() {
        let placement = Placement::even(3);
        let own = request(&["SCAN", "0", "COUNT", "3"]);
        let part = |cursor: &str, keys: &[&str]| {
            answer_of(|out| {
                out.array(2);
                out.bulk(cursor.as_bytes());
                out.array(keys.len());
                keys.iter().for_each(|key| out.bulk(key.as_bytes()));
            })
        };
        let with_map = |place: u64| place << MAP_BITS | map_of(&placement);
        let scan = |place| Program::scan(&placement, with_map(place), 3, own.args());
        let text = |place| with_map(place).to_string();
        let replies: [&[&Vec<u8>]; 3] =
            [&[&part("0", &[])], &[&part("0", &["a"])], &[&part("9", &["b", "c"])]];
        let (asked, answer) = run(scan(0), &replies);
        assert_eq!(asked, ["SCAN 0 COUNT 3"; 3]);
        assert_eq!(answer, Goes::Answer(part(&text(29), &["a", "b", "c"])));
        let (asked, answer) = run(scan(29), &[&[&part("0", &["d"])]]);
        assert_eq!(
            (asked[0].as_str(), answer),
            ("SCAN 9 COUNT 3", Goes::Answer(part("0", &["d"])))
        );
        let (_, answer) = run(scan(1), &[&[&part("4", &["d"])]]);
        assert_eq!(answer, Goes::Answer(part(&text(13), &["d"])));
        let (_, answer) = run(scan(1), &[&[&part("0", &["a", "b", "c"])]]);
        assert_eq!(answer, Goes::Answer(part(&text(2), &["a", "b", "c"])));
    }

    #[test]
    fn a_scan_begins_anew_where_partitions_have_moved() {
        let (mut placement, own) = (Placement::even(3), request(&["SCAN", "0", "COUNT", "3"]));
        let begun = 29 << MAP_BITS | map_of(&placement);
        let scan = |placement: &Placement| {
            let mut scan = Program::scan(placement, begun, 3, own.args());
            let Goes::Ask(steps) = scan.next(placement, &[]) else { panic!("it asks") };
            (steps[0].at, shown(&steps[0]), scan)
        };
        let (at, asked, mut scan_under_way) = scan(&placement);
        assert_eq!((at, &*asked), (Shard(2), "SCAN 9 COUNT 3"));
        placement.assign(Partition(7), Shard(0));
        let (at, asked, _) = scan(&placement);
        assert_eq!((at, &*asked), (Shard(0), "SCAN 0 COUNT 3"));
        // The last shard's last keys: one may have moved meanwhile to a shard that was asked before.
        let last = answer_of(|out| {
            out.array(2);
            out.bulk(b"0");
            out.array(0);
        });
        let Goes::Answer(answer) =
            scan_under_way.next(&placement, &[Answer::whole(&last).unwrap()])
        else {
            panic!("it is over")
        };
        let parts = Answer::whole(&answer).unwrap().list();
        let cursor: u64 = str::from_utf8(parts[0].text().unwrap()).unwrap().parse().unwrap();
        assert!(cursor != 0);
        let mut anew = Program::scan(&placement, cursor, 3, own.args());
        let Goes::Ask(steps) = anew.next(&placement, &[]) else { panic!("it asks") };
        assert_eq!((steps[0].at, &*shown(&steps[0])), (Shard(0), "SCAN 0 COUNT 3"));
    }
}
