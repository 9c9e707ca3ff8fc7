//! Which shards execute a request.
//!
//! # Cost
//! For a request with one key: its hash, and a lookup in the map of partitions.

use super::gather::Merge;
use headwater_base::{KeyRange, Placement, Shard};
use headwater_command::{
    Args, Command, Data, Flows, Functions, Id, Joins, Keys, OwnedArgs, RangeAnswer, RangeRead,
    Ranges, Spec, Strings, Tables,
};

/// Who executes a request.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Route {
    /// The shard that the client is connected to, whichever it is.
    Here,
    /// This one.
    At(Shard),
    /// Several, each its part, and their replies make up the answer.
    Parts {
        /// How.
        merge: Merge,
        /// What each is asked.
        parts: Vec<(Shard, Request)>,
    },
    /// Several, while all hold: its keys live there, or it is done by all or by none.
    Several,
}

/// What a shard is asked.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Request {
    /// What the client asked.
    Same,
    /// Something else.
    Other(Vec<Vec<u8>>),
}

impl Request {
    /// Its arguments, where the client's were `args`.
    pub(crate) fn args(&self, args: Args<'_>) -> OwnedArgs {
        match self {
            Self::Same => OwnedArgs::of(args),
            Self::Other(words) => words.iter().map(Vec::as_slice).collect(),
        }
    }
}

/// Who executes `command`, which `args` ask for.
#[inline]
pub(crate) fn route(
    placement: &Placement,
    spec: &Spec,
    command: &Command<'_>,
    args: Args<'_>,
) -> Route {
    match command {
        Command::Data(Data::Strings(Strings::Get { key } | Strings::Set { key, .. })) => {
            Route::At(placement.home(key))
        }
        _ => by_command(placement, spec, command, args),
    }
}

fn by_command(placement: &Placement, spec: &Spec, command: &Command<'_>, args: Args<'_>) -> Route {
    let all = |merge| all_shards(placement, merge, &Request::Same);
    match command {
        Command::Data(Data::Strings(Strings::MGet { .. })) => {
            let order = args.from(1).iter().map(|key| placement.home(key)).collect();
            split(placement, args, 1, Merge::Values(order))
        }
        Command::Data(Data::Strings(Strings::MSet { .. })) => {
            split(placement, args, 2, Merge::Same)
        }
        Command::Data(Data::Keys(Keys::Del { .. } | Keys::Exists { .. } | Keys::Touch { .. })) => {
            split(placement, args, 1, Merge::Sum)
        }
        Command::Data(Data::Keys(Keys::Matching { .. })) => all(Merge::Concat),
        Command::Data(Data::Keys(Keys::RandomKey)) => all(Merge::Some),
        Command::Data(Data::Keys(Keys::DbSize)) => all(Merge::Sum),
        Command::Data(Data::Keys(Keys::Flush)) => all(Merge::Same),
        Command::Data(Data::Keys(Keys::MemoryStats)) => all(Merge::Figures),
        Command::Data(Data::Keys(Keys::Scan { cursor, .. })) => scan(placement, *cursor, args),
        // By all or by none.
        Command::Data(
            Data::Joins(Joins::Add { .. })
            | Data::Tables(Tables::Set { boundary: Some(_), source: None, .. })
            | Data::Flows(Flows::Add { .. } | Flows::Drop { .. } | Flows::Pause { .. }),
        ) => Route::Several,
        Command::Data(Data::Flows(flows)) => all(match flows {
            Flows::Info { .. } => Merge::FlowInfo,
            Flows::Dead { .. } => Merge::Concat,
            Flows::Retry { .. } | Flows::Discard { .. } | Flows::Replay { .. } => Merge::Sum,
            _ => Merge::Figures,
        }),
        Command::Data(Data::Ranges(ranges)) => by_range(placement, ranges),
        &Command::Data(Data::Functions(Functions::Range {
            first, last, reverse, limit, ..
        })) => one_or(placement, first, last, || all(Merge::Called { reverse, limit })),
        Command::Data(Data::Functions(Functions::Call { key, .. })) => {
            Route::At(placement.home(key))
        }
        _ => match spec.id {
            Id::JoinDrop
            | Id::TableSet
            | Id::FnLoad
            | Id::FnDrop
            | Id::ConfigSet
            | Id::ConfigResetStat
            | Id::SlowlogReset
            | Id::LatencyReset
            | Id::MemoryPurge => all(Merge::Same),
            Id::JoinList | Id::JoinInfo | Id::TableList | Id::TableInfo | Id::FnInfo => {
                all(Merge::Figures)
            }
            // It is made once, and kept where the others look when they begin.
            Id::SourceAdd | Id::SourceDrop => Route::At(Shard(0)),
            Id::SourceInfo => all(Merge::Source),
            Id::PubSubNumSub => all(Merge::Figures),
            Id::PubSubChannels => all(Merge::Union),
            Id::Publish | Id::PubSubNumPat | Id::SlowlogLen | Id::ClientKill => all(Merge::Sum),
            Id::SlowlogGet => all(Merge::Concat),
            Id::ClientList => all(Merge::Texts),
            Id::Info => all(Merge::Info),
            Id::Wait => all(Merge::Sum),
            Id::ShardList => all(Merge::Concat),
            _ => by_keys(placement, spec, args),
        },
    }
}

/// The shard of all of a request's keys.
fn by_keys(placement: &Placement, spec: &Spec, args: Args<'_>) -> Route {
    let mut homes = spec
        .keys
        .positions(args.len())
        .filter_map(|at| args.get(at))
        .map(|key| placement.home(key));
    match homes.next() {
        None => Route::Here,
        Some(home) if homes.all(|other| other == home) => Route::At(home),
        Some(_) => Route::Several,
    }
}

/// Every shard is asked, each for what it is home of.
fn all_shards(placement: &Placement, merge: Merge, request: &Request) -> Route {
    let parts = (0..placement.shards()).map(|at| (Shard(at), request.clone())).collect();
    Route::Parts { merge, parts }
}

/// The keys, `step` arguments each, go to their shards.
fn split(placement: &Placement, args: Args<'_>, step: usize, merge: Merge) -> Route {
    let rest = args.from(1);
    let home = |at: usize| placement.home(rest.at(at));
    let first = home(0);
    if (0..rest.len()).step_by(step).all(|at| home(at) == first) {
        return Route::At(first);
    }
    let mut parts: Vec<(Shard, Vec<Vec<u8>>)> = Vec::new();
    for at in (0..rest.len()).step_by(step) {
        let home = home(at);
        let words = rest.from(at).first(step);
        let words = words.iter().map(<[u8]>::to_vec);
        match parts.iter_mut().find(|(shard, _)| *shard == home) {
            Some((_, part)) => part.extend(words),
            None => parts.push((home, [args.at(0).to_vec()].into_iter().chain(words).collect())),
        }
    }
    let parts = parts.into_iter().map(|(shard, words)| (shard, Request::Other(words)));
    Route::Parts { merge, parts: parts.collect() }
}

fn one_or(
    placement: &Placement,
    first: &[u8],
    last: &[u8],
    otherwise: impl FnOnce() -> Route,
) -> Route {
    placement.home_of_range(&KeyRange::new(first, last)).map_or_else(otherwise, Route::At)
}

fn by_range(placement: &Placement, ranges: &Ranges<'_>) -> Route {
    let all = |merge| all_shards(placement, merge, &Request::Same);
    match ranges {
        Ranges::ExplainKey { key } => Route::At(placement.home(key)),
        Ranges::Range { first, last, read } => {
            one_or(placement, first, last, || read_all(placement, (first, last), read))
        }
        Ranges::Prefix { prefix, read } => {
            let KeyRange { first, last } = KeyRange::prefix(prefix);
            one_or(placement, &first, &last, || read_all(placement, (&first, &last), read))
        }
        Ranges::Remove { first, last } => one_or(placement, first, last, || all(Merge::Sum)),
        Ranges::Explain { first, last } | Ranges::Verify { first, last } => {
            one_or(placement, first, last, || all(Merge::Concat))
        }
    }
}

/// Each shard reads its part of a range; what is merged needs the keys.
fn read_all(placement: &Placement, (first, last): (&[u8], &[u8]), read: &RangeRead<'_>) -> Route {
    let RangeRead { reverse, limit, answer, at } = *read;
    let mut words = vec![b"RANGE".to_vec(), first.to_vec(), last.to_vec()];
    if reverse {
        words.push(b"REV".to_vec());
    }
    if let Some(limit) = limit {
        words.extend([b"LIMIT".to_vec(), limit.to_string().into_bytes()]);
    }
    match answer {
        RangeAnswer::Pairs | RangeAnswer::Values => {}
        RangeAnswer::Keys => words.push(b"KEYS".to_vec()),
        RangeAnswer::Count => words.push(b"COUNT".to_vec()),
    }
    words.extend(at.into_iter().flat_map(|at| [b"AT".to_vec(), at.to_vec()]));
    let merge = match answer {
        RangeAnswer::Count => Merge::SumUpTo(limit),
        _ => Merge::Range { reverse, limit, answer },
    };
    all_shards(placement, merge, &Request::Other(words))
}

/// SCAN goes through one shard after the other: its cursor tells which, and where within it.
fn scan(placement: &Placement, cursor: u64, args: Args<'_>) -> Route {
    let shards = placement.shards();
    let (inner, at) = (cursor / u64::from(shards), Shard((cursor % u64::from(shards)) as u16));
    let mut words: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
    words[1] = inner.to_string().into_bytes();
    Route::Parts { merge: Merge::Scan { at, shards }, parts: vec![(at, Request::Other(words))] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_protocol::resp::{decode, find};

    fn routed(placement: &Placement, words: &[&str]) -> Route {
        let own: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        let spec = find(own.args()).ok().unwrap();
        route(placement, spec, &decode(spec, own.args()).ok().unwrap(), own.args())
    }

    /// Keys that live on different shards of three.
    const KEYS: [&str; 2] = ["a", "c"];

    #[test]
    fn requests_go_where_their_keys_live() {
        let placement = Placement::even(3);
        let homes = KEYS.map(|key| placement.home(key.as_bytes()));
        assert_ne!(homes[0], homes[1]);
        let [a, b] = KEYS;
        for words in [&["GET", a][..], &["SET", a, "1"], &["INCR", a], &["OBJECT", "ENCODING", a]] {
            assert_eq!(routed(&placement, words), Route::At(homes[0]), "{words:?}");
        }
        assert_eq!(routed(&placement, &["MGET", a, a]), Route::At(homes[0]));
        assert_eq!(routed(&placement, &["RENAME", a, b]), Route::Several);
        assert_eq!(routed(&placement, &["PING"]), Route::Here);
        let Route::Parts { merge, parts } = routed(&placement, &["MSET", a, "1", b, "2", a, "3"])
        else {
            panic!("it has keys on two shards")
        };
        let words = |words: &[&str]| {
            Request::Other(words.iter().map(|word| word.as_bytes().to_vec()).collect())
        };
        assert_eq!(merge, Merge::Same);
        let expected =
            [(homes[0], words(&["MSET", a, "1", a, "3"])), (homes[1], words(&["MSET", b, "2"]))];
        assert_eq!(parts, expected);
    }

    #[test]
    fn a_range_of_one_group_has_one_home() {
        let placement = Placement::even(3);
        let home = placement.home(b"t|ann|1");
        assert_eq!(routed(&placement, &["PREFIX", "t|ann|"]), Route::At(home));
        assert_eq!(routed(&placement, &["EXPLAIN", "t|ann|1"]), Route::At(home));
        let Route::Parts { parts, .. } = routed(&placement, &["PREFIX", "t|", "REV", "VALUES"])
        else {
            panic!("it has several groups")
        };
        assert_eq!(parts.len(), 3);
        let words = ["RANGE", "t|", "t}", "REV"].map(|word| word.as_bytes().to_vec());
        assert_eq!(parts[2], (Shard(2), Request::Other(words.to_vec())));
    }
}
