//! Commands that name keys of several shards, as steps that single shards execute.
//!
//! They run while all shards hold, so that nothing comes between their steps, and give what one shard with all keys
//! would give. A step that fails is the last one: what can refuse comes before the first change, and what was
//! changed before a refusal all the same is taken back.

use super::front::Kind;
use headwater_base::{Placement, Shard};
use headwater_command::{
    Args, Command, Data, Flows, Joins, Keys, LcsAnswer, OwnedArgs, Strings, Tables,
};
use headwater_protocol::resp::{elements, integer, is_error, text};

/// What a shard is asked that no client can ask.
pub(crate) mod words {
    /// With a key, and whether it will be removed: what it holds, as value, expiry (or -1) and flags.
    pub(crate) const CARRY: &[u8] = b"shard:carry";
    /// With a key, those, and whether only where it holds nothing.
    pub(crate) const PUT: &[u8] = b"shard:put";
    /// With a key and the length of a value: whether it holds something.
    pub(crate) const TAKEN: &[u8] = b"shard:taken";
    /// Whether keys that are watched have changed; they are watched no longer.
    pub(crate) const CHANGED: &[u8] = b"shard:changed";
    /// With a request that declares something: whether it would be executed.
    pub(crate) const MAY: &[u8] = b"shard:may";
    /// With the name of what was to be declared: it will not be.
    pub(crate) const MAY_NOT: &[u8] = b"shard:maynot";
}

/// A command under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    /// RENAME, RENAMENX and COPY.
    Carry { from: Vec<u8>, to: Vec<u8>, if_absent: bool, leaves: bool, step: Carry },
    /// MSETNX.
    SetAbsent { pairs: Vec<(Vec<u8>, Vec<u8>)>, step: SetAbsent },
    /// LCS.
    Lcs { left: Vec<u8>, right: Vec<u8>, answer: LcsAnswer, asked: bool },
    /// JOIN.ADD, TABLE.SET, and what adds, drops or pauses a flow: by all shards or by none.
    Declare { request: Vec<Vec<u8>>, step: Declare },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carry {
    Begin,
    Read,
    Put,
    Removed,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SetAbsent {
    Begin,
    Looked,
    Set(Vec<Shard>),
    /// It is taken back, and answered so.
    Undone(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Declare {
    Begin,
    /// Whether all would.
    Asked,
    Done,
    /// Some would not, and it is answered so.
    Undone(Vec<u8>),
}

/// What a shard is asked.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) at: Shard,
    pub(crate) kind: Kind,
    pub(crate) request: OwnedArgs,
}

/// How a program goes on.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// These are asked.
    Ask(Vec<Step>),
    /// It is answered so.
    Answer(Vec<u8>),
    /// It is answered with what two values have in common.
    Lcs(Vec<u8>, Vec<u8>, LcsAnswer),
}

fn owned(words: &[&[u8]]) -> OwnedArgs {
    words.iter().copied().collect()
}

fn yes(text: bool) -> &'static [u8] {
    if text { b"1" } else { b"0" }
}

impl Program {
    /// The steps of a command; `None`: it has none.
    pub(crate) fn of(command: &Command<'_>, args: Args<'_>) -> Option<Self> {
        let (begin, bytes) = (Carry::Begin, <[u8]>::to_vec);
        Some(match *command {
            Command::Data(Data::Keys(Keys::Rename { from, to, if_absent })) => {
                let (from, to) = (bytes(from), bytes(to));
                Self::Carry { from, to, if_absent, leaves: true, step: begin }
            }
            Command::Data(Data::Keys(Keys::Copy { from, to, replace })) => {
                let (from, to) = (bytes(from), bytes(to));
                Self::Carry { from, to, if_absent: !replace, leaves: false, step: begin }
            }
            Command::Data(Data::Strings(Strings::MSetNx { pairs })) => {
                let pairs = pairs.pairs().map(|(key, value)| (bytes(key), bytes(value)));
                Self::SetAbsent { pairs: pairs.collect(), step: SetAbsent::Begin }
            }
            Command::Data(Data::Strings(Strings::Lcs { left, right, answer })) => {
                Self::Lcs { left: bytes(left), right: bytes(right), answer, asked: false }
            }
            Command::Data(
                Data::Joins(Joins::Add { .. })
                | Data::Tables(Tables::Set { .. })
                | Data::Flows(Flows::Add { .. } | Flows::Drop { .. } | Flows::Pause { .. }),
            ) => {
                let request = args.iter().map(bytes).collect();
                Self::Declare { request, step: Declare::Begin }
            }
            _ => return None,
        })
    }

    /// What comes next, where `replies` are those to what was asked last.
    pub(crate) fn next(&mut self, placement: &Placement, replies: &[Vec<u8>]) -> Next {
        let ask = |kind: Kind, key: &[u8], request: OwnedArgs| {
            Next::Ask(vec![Step { at: placement.home(key), kind, request }])
        };
        match self {
            Self::Carry { from, to, if_absent, leaves, step } => {
                let reply = replies.first().map_or(&b""[..], Vec::as_slice);
                if is_error(reply) {
                    return Next::Answer(reply.to_vec());
                }
                match step {
                    Carry::Begin => {
                        *step = Carry::Read;
                        ask(Kind::Derived, from, owned(&[words::CARRY, from, yes(*leaves)]))
                    }
                    Carry::Read => {
                        let fields = elements(reply).unwrap_or_default();
                        let [value, expires, flags] = fields[..] else {
                            let answer: &[u8] =
                                if *leaves { b"-ERR no such key\r\n" } else { b":0\r\n" };
                            return Next::Answer(answer.to_vec());
                        };
                        let number = |field| integer(field).unwrap_or(-1).to_string();
                        let (expires, flags) = (number(expires), number(flags));
                        let value = text(value).unwrap_or_default();
                        let absent = yes(*if_absent);
                        let numbers = (expires.as_bytes(), flags.as_bytes());
                        let put = [words::PUT, to, value, numbers.0, numbers.1, absent];
                        *step = Carry::Put;
                        ask(Kind::Write, to, owned(&put))
                    }
                    Carry::Put if integer(reply) == Some(0) => Next::Answer(b":0\r\n".to_vec()),
                    Carry::Put if *leaves => {
                        *step = Carry::Removed;
                        ask(Kind::Write, from, owned(&[b"DEL", from]))
                    }
                    // COPY and RENAMENX answer with a number.
                    Carry::Removed if !*if_absent => Next::Answer(b"+OK\r\n".to_vec()),
                    Carry::Put | Carry::Removed => Next::Answer(b":1\r\n".to_vec()),
                }
            }
            Self::SetAbsent { pairs, step } => match step {
                SetAbsent::Begin => {
                    *step = SetAbsent::Looked;
                    let look = |(key, value): &(Vec<u8>, Vec<u8>)| Step {
                        at: placement.home(key),
                        kind: Kind::Derived,
                        request: owned(&[words::TAKEN, key, value.len().to_string().as_bytes()]),
                    };
                    Next::Ask(pairs.iter().map(look).collect())
                }
                SetAbsent::Looked => {
                    if replies.iter().any(|reply| integer(reply) == Some(1)) {
                        return Next::Answer(b":0\r\n".to_vec());
                    }
                    if let Some(error) = replies.iter().find(|reply| is_error(reply)) {
                        return Next::Answer(error.clone());
                    }
                    let steps = divided(placement, b"MSET", pairs, true);
                    *step = SetAbsent::Set(steps.iter().map(|step| step.at).collect());
                    Next::Ask(steps)
                }
                SetAbsent::Set(shards) => {
                    let Some(error) = replies.iter().find(|reply| is_error(reply)) else {
                        return Next::Answer(b":1\r\n".to_vec());
                    };
                    let asked = shards.iter().zip(replies);
                    let done = asked.filter(|(_, reply)| !is_error(reply)).map(|(at, _)| *at);
                    let done: Vec<Shard> = done.collect();
                    let mut steps = divided(placement, b"DEL", pairs, false);
                    steps.retain(|step| done.contains(&step.at));
                    *step = SetAbsent::Undone(error.clone());
                    Next::Ask(steps)
                }
                SetAbsent::Undone(error) => Next::Answer(core::mem::take(error)),
            },
            Self::Declare { request, step } => step.next(placement.shards(), request, replies),
            Self::Lcs { left, right, answer, asked } => {
                if let Some(error) = replies.iter().find(|reply| is_error(reply)) {
                    return Next::Answer(error.clone());
                }
                if *asked {
                    let value = |at: usize| replies.get(at).and_then(|reply| text(reply));
                    let value = |at: usize| value(at).unwrap_or_default().to_vec();
                    return Next::Lcs(value(0), value(1), *answer);
                }
                *asked = true;
                let get = |key: &Vec<u8>| Step {
                    at: placement.home(key),
                    kind: Kind::Derived,
                    request: owned(&[b"GET", key]),
                };
                Next::Ask(vec![get(left), get(right)])
            }
        }
    }
}

impl Declare {
    fn next(&mut self, shards: u16, request: &[Vec<u8>], replies: &[Vec<u8>]) -> Next {
        let request = || request.iter().map(Vec::as_slice);
        let ask = |at: Shard, request: OwnedArgs| Step { at, kind: Kind::Both, request };
        let all = || (0..shards).map(Shard);
        match self {
            Self::Begin => {
                *self = Self::Asked;
                let may = || [words::MAY].into_iter().chain(request()).collect();
                Next::Ask(all().map(|at| ask(at, may())).collect())
            }
            Self::Asked => {
                let Some(refusal) = replies.iter().find(|reply| is_error(reply)) else {
                    *self = Self::Done;
                    return Next::Ask(all().map(|at| ask(at, request().collect())).collect());
                };
                *self = Self::Undone(refusal.clone());
                let agreed = all().zip(replies).filter(|(_, reply)| !is_error(reply));
                let may_not = || [words::MAY_NOT].into_iter().chain(request().skip(1).take(1));
                Next::Ask(agreed.map(|(at, _)| ask(at, may_not().collect())).collect())
            }
            Self::Done => {
                let refusal = replies.iter().find(|reply| is_error(reply));
                Next::Answer(refusal.or(replies.first()).cloned().unwrap_or_default())
            }
            Self::Undone(refusal) => Next::Answer(core::mem::take(refusal)),
        }
    }
}

/// A command with keys, and their values where it takes some, for the home of each.
fn divided(
    placement: &Placement,
    name: &[u8],
    pairs: &[(Vec<u8>, Vec<u8>)],
    with_values: bool,
) -> Vec<Step> {
    let mut homes: Vec<Shard> = pairs.iter().map(|(key, _)| placement.home(key)).collect();
    homes.sort_unstable();
    homes.dedup();
    let part = |at: Shard| {
        let here = pairs.iter().filter(|(key, _)| placement.home(key) == at);
        let values = |value| with_values.then_some(value);
        let words = here.flat_map(|(key, value)| [Some(key), values(value)]);
        let words = words.flatten().map(Vec::as_slice);
        Step { at, kind: Kind::Write, request: [name].into_iter().chain(words).collect() }
    };
    homes.into_iter().map(part).collect()
}

/// Whether the words of a request are such as only shards use among themselves.
pub(crate) fn is_between_shards(args: Args<'_>) -> bool {
    args.get(0).is_some_and(|word| word.starts_with(b"shard:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_protocol::resp::{decode, find};

    /// Keys that live on different shards of three.
    const KEYS: [&str; 2] = ["a", "c"];

    fn program(words: &[&str]) -> Program {
        let own: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        let spec = find(own.args()).ok().unwrap();
        Program::of(&decode(spec, own.args()).ok().unwrap(), own.args()).unwrap()
    }

    /// What is asked, as text, and the answer to it all.
    fn run(words: &[&str], replies: &[&[&str]]) -> (Vec<String>, String) {
        let placement = Placement::even(3);
        let (mut program, mut asked) = (program(words), Vec::new());
        let mut replies = replies.iter().map(|list| list.iter().map(|it| it.as_bytes().to_vec()));
        let mut last = Vec::new();
        loop {
            match program.next(&placement, &last) {
                Next::Ask(steps) => {
                    for Step { at, request, .. } in steps {
                        let words = request.args().iter().map(String::from_utf8_lossy);
                        let words: Vec<_> = words.collect();
                        assert_eq!(at, placement.home(words[1].as_bytes()));
                        asked.push(words.join(" "));
                    }
                    last = replies.next().unwrap().collect();
                }
                Next::Answer(answer) => return (asked, String::from_utf8(answer).unwrap()),
                Next::Lcs(left, right, _) => {
                    return (asked, String::from_utf8([left, right].join(&b'+')).unwrap());
                }
            }
        }
    }

    #[test]
    fn what_one_shard_refuses_none_declares() {
        let words = ["JOIN.ADD", "j", "a|<x> = count b|<x>|<y>"];
        let ask = |program: &mut Program, replies: &[&str]| {
            let replies: Vec<_> = replies.iter().map(|reply| reply.as_bytes().to_vec()).collect();
            match program.next(&Placement::even(3), &replies) {
                Next::Ask(steps) => {
                    let word = |args: Args<'_>, at| String::from_utf8_lossy(args.at(at)).into();
                    let shown = |Step { at, request, .. }: &Step| {
                        (at.0, word(request.args(), 0), word(request.args(), 1))
                    };
                    steps.iter().map(shown).collect::<Vec<(u16, String, String)>>()
                }
                Next::Answer(answer) => vec![(9, String::from_utf8(answer).unwrap(), "".into())],
                Next::Lcs(..) => unreachable!("it declares"),
            }
        };
        let all = |name: &str, next: &str| -> Vec<_> {
            (0..3).map(|at| (at, name.to_owned(), next.to_owned())).collect()
        };
        let mut agreed = program(&words);
        assert_eq!(ask(&mut agreed, &[]), all("shard:may", "JOIN.ADD"));
        assert_eq!(ask(&mut agreed, &["+OK\r\n"; 3]), all("JOIN.ADD", "j"));
        assert_eq!(ask(&mut agreed, &["*0\r\n"; 3]), [(9, "*0\r\n".into(), "".into())]);
        let mut refused = program(&words);
        ask(&mut refused, &[]);
        let undone = ask(&mut refused, &["+OK\r\n", "-ERR no\r\n", "+OK\r\n"]);
        let expected = [0, 2].map(|at| (at, "shard:maynot".to_owned(), "j".to_owned()));
        assert_eq!(undone, expected);
        assert_eq!(ask(&mut refused, &["+OK\r\n"; 2])[0].1, "-ERR no\r\n");
    }

    #[test]
    fn a_value_is_read_put_and_removed() {
        let [a, b] = KEYS;
        let item = "*3\r\n$1\r\nx\r\n:-1\r\n:7\r\n";
        let (asked, answer) = run(&["RENAME", a, b], &[&[item], &["+OK\r\n"], &[":1\r\n"]]);
        assert_eq!(asked, ["shard:carry a 1", "shard:put c x -1 7 0", "DEL a"]);
        assert_eq!(answer, "+OK\r\n");
        let (asked, answer) = run(&["COPY", a, b], &[&[item], &["+OK\r\n"]]);
        assert_eq!((asked.len(), answer.as_str()), (2, ":1\r\n"));
        assert_eq!(asked[1], "shard:put c x -1 7 1");
        assert_eq!(run(&["COPY", a, b], &[&["$-1\r\n"]]).1, ":0\r\n");
        assert_eq!(run(&["RENAME", a, b], &[&["_\r\n"]]).1, "-ERR no such key\r\n");
        // Where the key is there, or refused, the other one stays.
        let (asked, answer) = run(&["RENAMENX", a, b], &[&[item], &[":0\r\n"]]);
        assert_eq!((asked.len(), answer.as_str()), (2, ":0\r\n"));
        assert_eq!(run(&["RENAME", a, b], &[&[item], &["-OOM no\r\n"]]).1, "-OOM no\r\n");
    }

    #[test]
    fn several_keys_are_set_or_none() {
        let [a, b] = KEYS;
        let words = ["MSETNX", a, "1", b, "2", a, "3"];
        let free = [":0\r\n"; 3];
        let (mut asked, answer) = run(&words, &[&free, &["+OK\r\n"; 2]]);
        assert_eq!((asked.len(), answer.as_str()), (5, ":1\r\n"));
        asked[3..].sort();
        assert_eq!(asked[3..], ["MSET a 1 a 3", "MSET c 2"]);
        assert_eq!(asked[0], "shard:taken a 1");
        assert_eq!(run(&words, &[&["-ERR x\r\n", ":1\r\n", ":0\r\n"]]).1, ":0\r\n");
        assert_eq!(run(&words, &[&["-ERR x\r\n", ":0\r\n", "-ERR y\r\n"]]).1, "-ERR x\r\n");
        let replies: [&[&str]; 3] = [&free, &["+OK\r\n", "-OOM no\r\n"], &[":1\r\n"]];
        let (asked, answer) = run(&words, &replies);
        assert_eq!((asked.len(), answer.as_str()), (6, "-OOM no\r\n"));
        assert!(asked[5].starts_with("DEL ") && asked[3].contains(&asked[5][4..5]), "{asked:?}");
    }

    #[test]
    fn values_are_compared_where_the_client_is() {
        let [a, b] = KEYS;
        let (asked, answer) = run(&["LCS", a, b], &[&["$1\r\nx\r\n", "$-1\r\n"]]);
        assert_eq!((asked.join(";").as_str(), answer.as_str()), ("GET a;GET c", "x+"));
        assert_eq!(run(&["LCS", a, b], &[&["+", "-WRONGTYPE\r\n"]]).1, "-WRONGTYPE\r\n");
    }
}
