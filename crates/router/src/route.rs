//! Which shards execute a request.
//!
//! # Cost
//! For a request with one key: its hash, and a lookup in the map of partitions.

use crate::answer::answer_of;
use crate::merge::Merge;
use crate::program::Program;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use headwater_base::{KeyRange, Placement, Shard};
use headwater_command::{
    Args, Command, Connection, Data, Flows, Functions, Id, Joins, Keys, OwnedArgs, RangeAnswer,
    RangeRead, Ranges, Reply, Spec, Strings, Tables,
};

/// Who executes a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Route {
    /// The shard that the client is connected to, whichever it is.
    Here,
    /// This one.
    At(Shard),
    /// Several, each its part, and their answers make up one.
    Parts {
        /// How.
        merge: Merge,
        /// What each is asked.
        parts: Vec<(Shard, Request)>,
    },
    /// The same, where the parts must show one moment: no transaction by half.
    Read {
        /// How the answers make up one.
        merge: Merge,
        /// What each is asked.
        parts: Vec<(Shard, Request)>,
    },
    /// Several, as one step: a transaction of this alone.
    Several,
    /// Several, one after the other, while others go on.
    Steps(Program),
}

/// What a shard is asked to execute.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// What the client asked.
    Same,
    /// Something else.
    Other(Vec<Vec<u8>>),
}

impl Request {
    /// Its arguments, where the client's were `args`.
    #[must_use]
    pub fn args(&self, args: Args<'_>) -> OwnedArgs {
        match self {
            Self::Same => OwnedArgs::of(args),
            Self::Other(words) => words.iter().map(Vec::as_slice).collect(),
        }
    }
}

/// Who executes `command`, which `args` ask for.
#[inline]
#[must_use]
pub fn route(placement: &Placement, spec: &Spec, command: &Command<'_>, args: Args<'_>) -> Route {
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
            as_read(split(placement, args, 1, Merge::Values(order)))
        }
        // All of it or nothing, and nobody sees a part.
        Command::Data(Data::Strings(Strings::MSet { .. })) => {
            as_step(split(placement, args, 2, Merge::Same))
        }
        Command::Data(Data::Keys(Keys::Del { .. })) => {
            as_step(split(placement, args, 1, Merge::Sum))
        }
        Command::Data(Data::Keys(Keys::Exists { .. })) => {
            as_read(split(placement, args, 1, Merge::Sum))
        }
        Command::Data(Data::Keys(Keys::Touch { .. })) => split(placement, args, 1, Merge::Sum),
        Command::Data(Data::Keys(Keys::Matching { .. })) => all(Merge::Concat),
        Command::Data(Data::Keys(Keys::RandomKey)) => all(Merge::Some),
        Command::Data(Data::Keys(Keys::DbSize)) => all(Merge::Sum),
        Command::Data(Data::Keys(Keys::Flush)) => all(Merge::Same),
        Command::Data(Data::Keys(Keys::MemoryStats)) => all(Merge::Figures),
        Command::Data(Data::Keys(Keys::Scan { cursor, count, .. })) => {
            Route::Steps(Program::scan(placement, *cursor, *count, args))
        }
        // By all or by none.
        Command::Data(
            Data::Joins(Joins::Add { .. } | Joins::Drop { .. })
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
        })) => one_or(placement, first, last, || as_read(all(Merge::Called { reverse, limit }))),
        Command::Data(Data::Functions(Functions::Call { key, .. })) => {
            Route::At(placement.home(key))
        }
        _ => match spec.id {
            Id::TableSet
            | Id::FnLoad
            | Id::FnDrop
            | Id::ConfigSet
            | Id::ConfigResetStat
            | Id::DebugSetActiveExpire
            | Id::MemoryPurge => all(Merge::Same),
            Id::JoinList | Id::JoinInfo | Id::TableList | Id::TableInfo | Id::FnInfo => {
                all(Merge::Figures)
            }
            // It is made once, and kept where the others look when they begin.
            Id::SourceAdd | Id::SourceDrop => Route::At(Shard(0)),
            // All share the users; what is kept of them is kept there.
            Id::AclSetUser | Id::AclDelUser | Id::AclLoad => Route::At(Shard(0)),
            Id::SourceInfo => all(Merge::Source),
            Id::PubSubNumSub | Id::PubSubShardNumSub => all(Merge::Figures),
            Id::PubSubChannels | Id::PubSubShardChannels => all(Merge::Union),
            Id::ClientKill => match command {
                Command::Connection(Connection::ClientKill(filter)) if filter.by_address_alone => {
                    all(Merge::AnyDone)
                }
                _ => all(Merge::Sum),
            },
            Id::ClientPause | Id::ClientUnpause => all(Merge::Same),
            Id::ClientUnblock => all(Merge::Sum),
            Id::Publish | Id::SPublish => all(Merge::Sum),
            Id::ClientList => all(Merge::Lines),
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
pub(crate) fn all_shards(placement: &Placement, merge: Merge, request: &Request) -> Route {
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

/// What is read in parts shows one moment.
fn as_read(route: Route) -> Route {
    match route {
        Route::Parts { merge, parts } => Route::Read { merge, parts },
        route => route,
    }
}

/// What is written in parts is one step.
fn as_step(route: Route) -> Route {
    match route {
        Route::Parts { .. } => Route::Several,
        route => route,
    }
}

/// The parts of a command that is written in parts, and how their answers make up one; `None`: it has none.
pub(crate) fn parts_of_step(
    placement: &Placement,
    command: &Command<'_>,
    args: Args<'_>,
) -> Option<(Merge, Vec<(Shard, Request)>)> {
    let route = match command {
        Command::Data(Data::Strings(Strings::MSet { .. })) => {
            split(placement, args, 2, Merge::Same)
        }
        Command::Data(Data::Strings(Strings::MSetNx { .. })) => {
            let mset: OwnedArgs = [&b"MSET"[..]].into_iter().chain(args.from(1).iter()).collect();
            let one = answer_of(|out| out.integer(1));
            match split(placement, mset.args(), 2, Merge::Given(one)) {
                // A transaction may have all of its keys at one shard.
                Route::At(home) => return Some((Merge::Same, vec![(home, Request::Same)])),
                route => route,
            }
        }
        Command::Data(Data::Keys(Keys::Del { .. })) => split(placement, args, 1, Merge::Sum),
        Command::Data(
            Data::Joins(Joins::Add { .. } | Joins::Drop { .. })
            | Data::Tables(Tables::Set { .. })
            | Data::Flows(_),
        ) => all_shards(placement, Merge::Same, &Request::Same),
        _ => return None,
    };
    match route {
        Route::At(home) => Some((Merge::Same, vec![(home, Request::Same)])),
        Route::Parts { merge, parts } => Some((merge, parts)),
        _ => None,
    }
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
            let all = || as_read(read_all(placement, (first, last), read));
            one_or(placement, first, last, all)
        }
        Ranges::Prefix { prefix, read } => {
            let KeyRange { first, last } = KeyRange::prefix(prefix);
            let all = || as_read(read_all(placement, (&first, &last), read));
            one_or(placement, &first, &last, all)
        }
        Ranges::Remove { first, last } => one_or(placement, first, last, || all(Merge::Sum)),
        Ranges::Explain { first, last } | Ranges::Verify { first, last } => {
            one_or(placement, first, last, || all(Merge::Concat))
        }
    }
}

/// Each shard reads its part of a range; what is merged needs the keys.
fn read_all(placement: &Placement, (first, last): (&[u8], &[u8]), read: &RangeRead<'_>) -> Route {
    let RangeRead { reverse, limit, answer, at, stale } = *read;
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
    if stale > 0 {
        words.extend([b"STALE".to_vec(), stale.to_string().into_bytes()]);
    }
    let merge = match answer {
        RangeAnswer::Count => Merge::SumUpTo(limit),
        _ => Merge::Range { reverse, limit, answer },
    };
    all_shards(placement, merge, &Request::Other(words))
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
        let words = ["MSET", a, "1", b, "2", a, "3"];
        assert_eq!(routed(&placement, &words), Route::Several);
        let own: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        let command = decode(find(own.args()).ok().unwrap(), own.args()).ok().unwrap();
        let (merge, parts) = parts_of_step(&placement, &command, own.args()).unwrap();
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
        let Route::Read { parts, .. } = routed(&placement, &["PREFIX", "t|", "REV", "VALUES"])
        else {
            panic!("it has several groups")
        };
        assert_eq!(parts.len(), 3);
        let words = ["RANGE", "t|", "t}", "REV"].map(|word| word.as_bytes().to_vec());
        assert_eq!(parts[2], (Shard(2), Request::Other(words.to_vec())));
        let words = ["RANGE", "t|", "t}", "COUNT", "STALE", "500"];
        let Route::Read { parts, .. } = routed(&placement, &words) else { panic!("the same") };
        let words = words.map(|word| word.as_bytes().to_vec());
        assert_eq!(parts[1], (Shard(1), Request::Other(words.to_vec())), "each accepts as much");
    }
}
