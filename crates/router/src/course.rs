//! What becomes of a client's request at its own shard: whether it goes on, and who executes it.
//!
//! # Order
//! A client's requests to one shard are executed in their order. Requests to different shards may be
//! executed at the same time, but for what is derived: it is read only when the client's earlier writes at other shards
//! are done, and a client's later writes wait until it was read ([`Pending::must_wait`]). So a client's pipeline gives the answers
//! that it would give request by request.

use crate::merge::Merge;
use crate::pending::{Kind, Pending};
use crate::program::Program;
use crate::route::{Request, Route, all_shards, parts_of_step, route};
use alloc::vec::Vec;
use headwater_base::{Placement, Shard};
use headwater_command::table::KeyArgs;
use headwater_command::{Args, Command, Data, Id, Keys, Spec};

/// What becomes of a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Course {
    /// The client's shard executes it at once.
    Here,
    /// The client's shard executes it, behind the client's writes at others where it reads what joins give.
    HereBehindWrites,
    /// It waits until what was asked before is answered.
    Blocked,
    /// It waits until this shard, to which it goes, has read more of what was sent there.
    Crowded(Shard),
    /// Another shard executes it.
    At(Shard, Kind),
    /// Several shards execute parts of it, whose answers are merged.
    Parts {
        /// How.
        merge: Merge,
        /// What each is asked.
        parts: Vec<(Shard, Request)>,
        /// What it does.
        kind: Kind,
    },
    /// Several shards read parts of it, which must show one moment.
    Read,
    /// Several shards execute it as one step.
    Step,
    /// Nobody: it would be one step of several shards, which are in processes of their own.
    Divided,
    /// Several shards execute it one after the other.
    Steps(Program),
}

/// What the decision depends on besides the request.
pub struct Situation<'a> {
    /// The client's shard.
    pub me: Shard,
    /// Which shard is the home of what.
    pub placement: &'a Placement,
    /// What the client waits for, if it has asked other shards for anything.
    pub pending: Option<&'a Pending>,
    /// Whether the shards are in processes of their own: what is done at several is no step then, and what is read at several shows
    /// each one's own moment.
    pub apart: bool,
    /// Whether so much waits for a shard that nothing should be added.
    pub is_crowded: &'a dyn Fn(Shard) -> bool,
    /// Whether the request may read what joins give.
    pub may_derive: &'a dyn Fn() -> bool,
}

/// What becomes of a request outside of transactions.
#[inline]
#[must_use]
pub fn course(
    situation: &Situation<'_>,
    spec: &Spec,
    command: &Command<'_>,
    args: Args<'_>,
) -> Course {
    let Situation { me, placement, pending, apart, is_crowded, may_derive } = *situation;
    let route = match spec.id {
        // Each process tells of itself, and is set by itself, as the nodes of Redis Cluster are.
        Id::Info
        | Id::ClientList
        | Id::ClientKill
        | Id::ClientPause
        | Id::ClientUnpause
        | Id::ClientUnblock
        | Id::ConfigSet
        | Id::ConfigResetStat
        | Id::DebugSetActiveExpire
        | Id::MemoryPurge
        | Id::MemoryStats
        | Id::SourceInfo
            if apart =>
        {
            Route::Here
        }
        // Each process has users and sources of its own.
        Id::AclSetUser | Id::AclDelUser | Id::SourceAdd | Id::SourceDrop if apart => {
            all_shards(placement, Merge::Same, &Request::Same)
        }
        _ => route(placement, spec, command, args),
    };
    let goes_elsewhere = !matches!(route, Route::Here | Route::Several);
    let kind = Kind::of(spec, command, goes_elsewhere && may_derive());
    let at = if let Route::At(at) = route { Some(at) } else { None };
    if pending.is_some_and(|pending| pending.is_full() || pending.must_wait(kind, at)) {
        return Course::Blocked;
    }
    let is_crowded = |at: &Shard| *at != me && is_crowded(*at);
    let crowded = match &route {
        Route::At(at) => Some(*at).filter(is_crowded),
        Route::Parts { parts, .. } | Route::Read { parts, .. } => {
            parts.iter().map(|(at, _)| *at).find(is_crowded)
        }
        Route::Here | Route::Several | Route::Steps(_) => None,
    };
    if let Some(at) = crowded {
        return Course::Crowded(at);
    }
    match route {
        Route::Here => Course::Here,
        Route::At(at) if at == me => Course::HereBehindWrites,
        Route::At(at) => Course::At(at, kind),
        Route::Parts { merge, parts } => Course::Parts { merge, parts, kind },
        Route::Read { merge, parts } if apart => Course::Parts { merge, parts, kind },
        Route::Read { .. } => Course::Read,
        Route::Steps(program) => Course::Steps(program),
        Route::Several if apart && spec.keys != KeyArgs::NONE => {
            match divided(placement, command, args) {
                Some((merge, parts)) => Course::Parts { merge, parts, kind },
                None => Course::Divided,
            }
        }
        Route::Several if pending.is_some_and(|pending| !pending.is_done()) => Course::Blocked,
        Route::Several => Course::Step,
    }
}

/// The parts of what several shards do, where these need not be one step.
fn divided(
    placement: &Placement,
    command: &Command<'_>,
    args: Args<'_>,
) -> Option<(Merge, Vec<(Shard, Request)>)> {
    let is_divided = matches!(command, Command::Data(Data::Keys(Keys::Del { .. })));
    is_divided.then(|| parts_of_step(placement, command, args)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{Answer, answer_of};
    use crate::pending::Encode;
    use headwater_command::{OwnedArgs, Reply};
    use headwater_protocol::resp::{decode, find};

    struct Nowhere;

    impl Encode for Nowhere {
        fn answer(&mut self, _: Option<&[u8]>, _: Answer<'_>, _: &mut Vec<u8>) {}
    }

    /// Keys of three shards, by their homes.
    fn keys(placement: &Placement) -> [&'static str; 3] {
        let key = |shard| {
            let mut all = ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter();
            all.find(|key| placement.home(key.as_bytes()) == Shard(shard)).unwrap()
        };
        [key(0), key(1), key(2)]
    }

    fn course_of(
        words: &[&str],
        pending: Option<&Pending>,
        (derives, crowded): (bool, Option<Shard>),
    ) -> Course {
        let placement = Placement::even(3);
        let situation = Situation {
            me: Shard(0),
            placement: &placement,
            pending,
            apart: false,
            is_crowded: &|at| Some(at) == crowded,
            may_derive: &|| derives,
        };
        course_in(&situation, words)
    }

    fn course_in(situation: &Situation<'_>, words: &[&str]) -> Course {
        let own: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        let spec = find(own.args()).ok().unwrap();
        course(situation, spec, &decode(spec, own.args()).ok().unwrap(), own.args())
    }

    #[test]
    fn shards_in_processes_of_their_own_have_the_same_users_and_each_its_own_figures() {
        let placement = Placement::even(3);
        let situation = Situation {
            me: Shard(1),
            placement: &placement,
            pending: None,
            apart: true,
            is_crowded: &|_| false,
            may_derive: &|| false,
        };
        for own in ["INFO", "CLIENT LIST", "CONFIG SET maxmemory 1", "CLIENT KILL ID 4"] {
            let words: Vec<&str> = own.split(' ').collect();
            assert_eq!(course_in(&situation, &words), Course::Here, "{own}");
        }
        for of_all in ["ACL SETUSER ada on", "ACL DELUSER ada", "PUBLISH news x", "DBSIZE"] {
            let words: Vec<&str> = of_all.split(' ').collect();
            let course = course_in(&situation, &words);
            assert!(matches!(&course, Course::Parts { parts, .. } if parts.len() == 3), "{of_all}");
        }
        let [here, there, elsewhere] = keys(&placement);
        assert_eq!(course_in(&situation, &["MSET", here, "1", there, "1"]), Course::Divided);
        let course = course_in(&situation, &["DEL", there, elsewhere]);
        assert!(matches!(course, Course::Parts { .. }));
    }

    #[test]
    fn requests_go_where_their_keys_live_unless_they_must_wait() {
        let [here, there, elsewhere] = keys(&Placement::even(3));
        let plain = (false, None);
        let of = |words: &[&str]| course_of(words, None, plain);
        assert_eq!(of(&["PING"]), Course::Here);
        assert_eq!(of(&["GET", here]), Course::HereBehindWrites);
        assert_eq!(of(&["GET", there]), Course::At(Shard(1), Kind::Plain));
        assert_eq!(of(&["SET", there, "1"]), Course::At(Shard(1), Kind::Write));
        assert_eq!(of(&["MGET", here, there]), Course::Read);
        assert_eq!(of(&["DEL", there, elsewhere]), Course::Step);
        assert!(matches!(of(&["DBSIZE"]), Course::Parts { kind: Kind::Plain, .. }));
        assert!(matches!(of(&["SCAN", "0"]), Course::Steps(_)));
        let crowded = (false, Some(Shard(1)));
        let waits = Course::Crowded(Shard(1));
        assert_eq!(course_of(&["GET", there], None, crowded), waits);
        assert_eq!(course_of(&["MGET", here, there], None, crowded), waits);
        assert_eq!(
            course_of(&["GET", elsewhere], None, crowded),
            Course::At(Shard(2), Kind::Plain)
        );
        // What waits for this shard is no matter.
        let here_crowded = (false, Some(Shard(0)));
        assert_eq!(course_of(&["GET", here], None, here_crowded), Course::HereBehindWrites);
    }

    #[test]
    fn what_is_derived_is_read_behind_writes_elsewhere() {
        let [here, there, elsewhere] = keys(&Placement::even(3));
        let (plain, derived) = ((false, None), (true, None));
        let mut pending = Pending::new(Shard(0), 3);
        let id = pending.expect(Shard(1), Kind::Write, false);
        let of = |words: &[&str], is| course_of(words, Some(&pending), is);
        assert_eq!(of(&["GET", elsewhere], plain), Course::At(Shard(2), Kind::Plain));
        assert_eq!(of(&["GET", elsewhere], derived), Course::Blocked);
        assert_eq!(of(&["GET", here], derived), Course::Blocked);
        // Where the write is, it comes first by itself.
        assert_eq!(of(&["GET", there], derived), Course::At(Shard(1), Kind::Derived));
        assert_eq!(of(&["DEL", there, elsewhere], plain), Course::Blocked);
        let answer = answer_of(|out| out.ok());
        assert!(pending.came((Shard(1), id), &answer, Vec::new(), &mut Nowhere));
        let of = |words: &[&str], is| course_of(words, Some(&pending), is);
        assert_eq!(of(&["GET", elsewhere], derived), Course::At(Shard(2), Kind::Derived));
        assert_eq!(of(&["DEL", there, elsewhere], plain), Course::Step);
    }
}
