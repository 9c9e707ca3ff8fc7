//! Requests whose keys live on other shards.
//!
//! What concerns one home goes there as it was sent, and is executed there for the client; a
//! `get` of keys of several homes is cut into one for each, and the values come together in the order of the keys.

use super::{answer_unless, writes};
use crate::resp::{
    Flow, LOCKED_FOR_LONG, LockTurn, Session, ShardService, Turn, Waiting, after_of, pending_of,
};
use headwater_base::{Placement, Shard};
use headwater_command::{GetExpiry, OwnedArgs, Reply};
use headwater_protocol::memcached::{KEY_BYTES_MAX, Meta, Parsed, Request, Words, parse};
use headwater_router::{Ask, AskHeader, Kind, LockSet, Merge, Scattered, answer_of};

/// Who executes a request.
enum To {
    /// The shard that the client is connected to.
    Here,
    /// The home of its keys.
    At(Shard),
    /// All shards.
    All(Merge),
    /// The homes of its keys, each its part.
    Homes(Vec<(Shard, Vec<u8>)>),
    /// Nobody: a key is too long.
    Refused,
}

fn home_of_meta(placement: &Placement, meta: &Meta<'_>) -> To {
    // What is wrong with it anybody can tell.
    let Ok(flags) = meta.key_flag() else { return To::Here };
    To::At(placement.home(meta.key(&flags, &mut [0; KEY_BYTES_MAX])))
}

fn route(placement: &Placement, request: &Request<'_>) -> To {
    match request {
        Request::Get { keys, .. } => {
            if keys.into_iter().any(|key| key.len() > KEY_BYTES_MAX) {
                return To::Refused;
            }
            let homes: Vec<_> =
                keys.into_iter().map(|key| (placement.home(key), key.to_vec())).collect();
            match homes.first() {
                None => To::Here,
                Some(&(first, _)) if homes.iter().all(|(home, _)| *home == first) => To::At(first),
                Some(_) => To::Homes(homes),
            }
        }
        Request::Store { key, .. }
        | Request::Count { key, .. }
        | Request::Delete { key, .. }
        | Request::Touch { key, .. }
        | Request::TooLarge { key, replaces: true, .. }
        | Request::Invoke { key, .. } => To::At(placement.home(key)),
        Request::MetaGet(meta)
        | Request::MetaSet { meta, .. }
        | Request::MetaDelete(meta)
        | Request::MetaCount(meta)
        | Request::MetaDebug(meta) => home_of_meta(placement, meta),
        Request::FlushAll { .. } | Request::Register { .. } => To::All(Merge::Agreed),
        Request::Stats { words } => match words.into_iter().next() {
            Some(b"settings") => To::Here,
            Some(b"detail") if words.into_iter().nth(1) == Some(b"dump") => To::All(Merge::Stats),
            Some(b"reset" | b"detail") => To::All(Merge::Agreed),
            _ => To::All(Merge::Stats),
        },
        _ => To::Here,
    }
}

/// The part of a `get` that goes to one home.
fn part(request: &[u8], home: Shard, keys: &[(Shard, Vec<u8>)]) -> Vec<u8> {
    let mut words = Words::of(request.trim_ascii_end());
    let name = words.next().unwrap_or_default();
    let mut line = name.to_vec();
    let lifetime = name.starts_with(b"gat").then(|| words.next()).flatten();
    let keys = keys.iter().filter(|(at, _)| *at == home).map(|(_, key)| &**key);
    for word in lifetime.into_iter().chain(keys) {
        line.push(b' ');
        line.extend_from_slice(word);
    }
    line.extend_from_slice(b"\r\n");
    line
}

impl ShardService {
    /// Executes a request elsewhere, or at several shards, if that is where its keys live; `bytes`: the request as it
    /// was sent. `None`: it is to be executed here.
    pub(super) fn memcached_remote(
        &mut self,
        request: &Request<'_>,
        bytes: &[u8],
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let me = self.others.shards.as_ref()?.me;
        if self.waits.executing_queue || work.connection.session.is_remote() {
            return self.memcached_await_writes(request, work);
        }
        let to = route(self.node.engine().placement()?, request);
        let kind = match (writes(request), self.may_be_derived_item(request)) {
            (true, true) => Kind::Both,
            (true, false) => Kind::Write,
            (false, true) => Kind::Derived,
            (false, false) => Kind::Plain,
        };
        let at = match &to {
            To::Here => return None,
            To::Refused => {
                self.touch_before_refusal(request, bytes, work);
                self.figures.memcached_refused("CLIENT_ERROR bad command line format", work);
                return Some(Flow::Next);
            }
            To::At(at) => Some(*at),
            To::All(_) | To::Homes(_) => None,
        };
        if let Some(pending) = work.connection.session.pending()
            && (pending.is_full() || pending.must_wait(kind, at))
        {
            pending.blocks = true;
            return Some(Flow::Parked);
        }
        if self.others.lets_others_read(at, work) {
            return Some(Flow::Parked);
        }
        match to {
            To::At(at) if at == me => return self.memcached_await_writes(request, work),
            To::At(at) => {
                if let Request::TooLarge { key, noreply, .. } = *request {
                    // Its data is not here, and never will be.
                    self.memcached.counts.too_large += 1;
                    self.figures.stats.errors += 1;
                    let forget = [&b"delete "[..], key, b" noreply\r\n"].concat();
                    self.ask_item(at, &forget, (Kind::Write, true), work);
                    answer_unless(noreply, "SERVER_ERROR object too large for cache", work);
                } else {
                    self.ask_item(at, bytes, (kind, false), work);
                }
            }
            To::Homes(keys) => {
                let mut homes: Vec<Shard> = keys.iter().map(|(home, _)| *home).collect();
                homes.sort_unstable();
                homes.dedup();
                let parts = homes.iter().map(|&home| (home, part(bytes, home, &keys))).collect();
                self.ask_items(parts, Merge::Items(keys), kind, work);
            }
            To::All(merge) => {
                let shards = self.others.shards.as_ref()?.outbox.shards();
                let parts = (0..shards).map(|at| (Shard(at), bytes.to_vec())).collect();
                self.ask_items(parts, merge, kind, work);
            }
            To::Here | To::Refused => {}
        }
        Some(Flow::Next)
    }

    /// `gat` gives the keys before one that is too long their new expiry, and is refused then.
    #[cold]
    fn touch_before_refusal(&mut self, request: &Request<'_>, bytes: &[u8], work: &mut Turn<'_>) {
        let Request::Get { keys, expiry, .. } = request else { return };
        if *expiry == GetExpiry::Keep {
            return;
        }
        for key in keys.into_iter().take_while(|key| key.len() <= KEY_BYTES_MAX) {
            let (Some(shards), Some(placement)) =
                (&self.others.shards, self.node.engine().placement())
            else {
                return;
            };
            let (me, home) = (shards.me, placement.home(key));
            let line = part(bytes, home, &[(home, key.to_vec())]);
            if home == me {
                self.memcached_part(&line, work);
            } else {
                self.ask_item(home, &line, (Kind::Plain, true), work);
            }
        }
    }

    /// Has another shard execute a request, whose reply the client may not want to know.
    fn ask_item(
        &mut self,
        at: Shard,
        bytes: &[u8],
        (kind, silent): (Kind, bool),
        work: &mut Turn<'_>,
    ) {
        self.make_room_to_pass(bytes.len());
        let placement = self.placement_digest();
        let user = self.asker_for(&Ask::Item(bytes), work.connection.id);
        let Some(shards) = &mut self.others.shards else { return };
        let session = &mut work.connection.session;
        let after = if kind.reads() { after_of(session, shards) } else { Vec::new() };
        let id = pending_of(session, shards).expect(at, kind, silent);
        let header = AskHeader { id, placement, after, user, ..AskHeader::default() };
        shards.ask(at, work.connection.id, &header, &Ask::Item(bytes));
    }

    /// Has several shards execute parts of a request.
    fn ask_items(
        &mut self,
        parts: Vec<(Shard, Vec<u8>)>,
        merge: Merge,
        kind: Kind,
        work: &mut Turn<'_>,
    ) {
        let Some(me) = self.others.shards.as_ref().map(|shards| shards.me) else { return };
        let placement = self.placement_digest();
        let mut own = None;
        if let Some((_, bytes)) = parts.iter().find(|(at, _)| *at == me) {
            own = self.memcached_part(bytes, work);
        }
        let Some(shards) = &self.others.shards else { return };
        let session = &mut work.connection.session;
        pending_of(session, shards).expect_scattered(Scattered::new(merge, kind));
        for (at, bytes) in parts {
            if at == me
                && let Some(answer) = own.take()
            {
                if let Some(pending) = work.connection.session.pending() {
                    pending.own_part(answer);
                }
                continue;
            }
            // This shard's own part comes by message where it has to wait.
            let user = self.asker_for(&Ask::Item(&bytes), work.connection.id);
            let Some(shards) = &mut self.others.shards else { continue };
            let session = &mut work.connection.session;
            let after = if kind.reads() { after_of(session, shards) } else { Vec::new() };
            let id = pending_of(session, shards).expect_part(at);
            let header = AskHeader { id, placement, after, user, ..AskHeader::default() };
            shards.ask(at, work.connection.id, &header, &Ask::Item(&bytes));
        }
        self.collect_own(work);
    }

    /// Where the key of a request lives, if that is not here.
    pub(crate) fn new_home_of_item(&self, placement: &Placement, bytes: &[u8]) -> Option<Shard> {
        let Parsed::Request { request, .. } = parse(bytes, 0, &self.memcached.limits) else {
            return None;
        };
        match route(placement, &request) {
            To::At(home) if self.others.shards.as_ref().is_some_and(|it| it.me != home) => {
                Some(home)
            }
            _ => None,
        }
    }

    /// Executes a request of a client of another shard, which came as this frame.
    pub(crate) fn execute_item(&mut self, bytes: &[u8], frame: &[u8], work: &mut Turn<'_>) -> Flow {
        let limits = self.memcached.limits;
        let Parsed::Request { request, .. } = parse(bytes, 0, &limits) else { return Flow::Next };
        let out = core::mem::take(work.out);
        let whole = work.held.set_whole(true);
        let flow = self.memcached_request(&request, bytes, work);
        work.held.set_whole(whole);
        let reply = core::mem::replace(work.out, out);
        if flow == Flow::Parked {
            // Whatever it waits for, it is executed anew then.
            work.connection.session.waiting = Some(Box::new(Waiting::Asked(frame.to_vec())));
            return flow;
        }
        if writes(&request)
            && let Some(shards) = &mut self.others.shards
        {
            let position = shards.peers.stamp();
            work.connection.session.positions.reach(shards.me, position);
        }
        work.out.extend_from_slice(&answer_of(|out| out.bulk(&reply)));
        flow
    }

    /// Executes this shard's part of a request; its reply, unless it would have to wait.
    fn memcached_part(&mut self, bytes: &[u8], work: &mut Turn<'_>) -> Option<Vec<u8>> {
        let limits = self.memcached.limits;
        let Parsed::Request { request, .. } = parse(bytes, 0, &limits) else { return None };
        let out = core::mem::take(work.out);
        let whole = work.held.set_whole(true);
        let queue = core::mem::replace(&mut self.waits.executing_queue, true);
        let flow = self.memcached_request(&request, bytes, work);
        self.waits.executing_queue = queue;
        work.held.set_whole(whole);
        let reply = core::mem::replace(work.out, out);
        if flow == Flow::Parked {
            self.forget_waiting(work);
            return None;
        }
        Some(answer_of(|out| out.bulk(&reply)))
    }

    /// Whether a request concerns keys that joins may give.
    fn may_be_derived_item(&self, request: &Request<'_>) -> bool {
        let engine = self.node.engine();
        match request {
            Request::Get { keys, .. } => keys.into_iter().any(|key| engine.may_derive(key)),
            Request::MetaGet(meta)
            | Request::MetaDebug(meta)
            | Request::MetaSet { meta, .. }
            | Request::MetaDelete(meta)
            | Request::MetaCount(meta) => meta
                .key_flag()
                .is_ok_and(|flags| engine.may_derive(meta.key(&flags, &mut [0; KEY_BYTES_MAX]))),
            // Whether a key is there may come before that it cannot be written.
            Request::Invoke { key, .. }
            | Request::Store { key, .. }
            | Request::Count { key, .. }
            | Request::Delete { key, .. }
            | Request::Touch { key, .. } => engine.may_derive(key),
            _ => false,
        }
    }

    /// Lets a request that reads what is derived wait until what is here shows the client's writes elsewhere. `None`: it
    /// does.
    fn memcached_await_writes(
        &mut self,
        request: &Request<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        if let Some(flow) = self.memcached_wait_for_locks(request, work) {
            return Some(flow);
        }
        if !self.may_be_derived_item(request) {
            return None;
        }
        let shards = self.others.shards.as_mut()?;
        let session: &mut Session = &mut work.connection.session;
        let wait = shards.peers.wait(self.node.engine(), &session.positions)?;
        shards.waits.insert(wait, work.connection.id);
        session.waiting = Some(Box::new(Waiting::Shards(OwnedArgs::default(), wait, None)));
        Some(Flow::Parked)
    }

    /// Lets a request wait where several shards are doing something with the partitions of its keys. `None`: none is.
    fn memcached_wait_for_locks(
        &mut self,
        request: &Request<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let placement = self.node.engine().placement()?;
        let shards = self.others.shards.as_ref()?;
        if shards.locks.is_empty() {
            return None;
        }
        let id = work.connection.id;
        match self.turn_of(id) {
            LockTurn::Waits => return Some(Flow::Parked),
            LockTurn::Granted => {
                self.forget_locked(id, work.peers);
                return None;
            }
            LockTurn::Late => {
                self.forget_locked(id, work.peers);
                self.figures.memcached_refused(&format!("SERVER_ERROR {LOCKED_FOR_LONG}"), work);
                return Some(Flow::Next);
            }
            LockTurn::None => {}
        }
        let set = match request {
            Request::Get { keys, .. } => {
                LockSet::of(keys.into_iter().map(|key| placement.partition(key)))
            }
            Request::Store { key, .. }
            | Request::Count { key, .. }
            | Request::Delete { key, .. }
            | Request::Touch { key, .. }
            | Request::Invoke { key, .. } => LockSet::of([placement.partition(key)].into_iter()),
            _ => LockSet::All,
        };
        if !shards.locks.blocks(&set) {
            return None;
        }
        if self.waits.executing_queue {
            // This part of a request comes by message instead, and waits there.
            return Some(Flow::Parked);
        }
        self.block(id, set);
        Some(Flow::Parked)
    }
}
