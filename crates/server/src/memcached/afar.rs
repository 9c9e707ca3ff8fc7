//! Requests whose keys live on other shards.
//!
//! What concerns one home goes there as it was sent, and is executed there by a connection that stands for the client; a
//! `get` of keys of several homes is cut into one for each, and the values come together in the order of the keys.
//! Replies may be empty (`noreply`, quiet meta commands), and say nothing of their length: between shards each is
//! the bytes of a bulk string of RESP, so that what counts and orders replies is the same for both protocols.

use super::{answer_unless, writes};
use crate::resp::{Afar, Copies, Flow, Resp, Session, Turn, Waiting, front_of};
use crate::shards::{Gather, Kind, Merge, Voice};
use headwater_base::{Placement, Shard};
use headwater_command::{GetExpiry, OwnedArgs};
use headwater_protocol::memcached::{KEY_BYTES_MAX, Meta, Parsed, Request, Words, parse};
use std::io::Write;

/// How the client wants its answers.
const VOICE: Voice = Voice {
    version: headwater_protocol::resp::Version::Resp2,
    blob_errors: false,
    copies: Copies::None,
    memcached: true,
    in_transaction: false,
};

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

/// A reply as it goes between shards.
pub(super) fn wrap(reply: &[u8], out: &mut Vec<u8>) {
    // Writing into memory does not fail.
    let _ = write!(out, "${}\r\n", reply.len());
    out.extend_from_slice(reply);
    out.extend_from_slice(b"\r\n");
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
            Some(b"settings" | b"detail") => To::Here,
            Some(b"reset") => To::All(Merge::Agreed),
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

impl Resp {
    /// Executes a request elsewhere, or at several shards, if that is where its keys live; `bytes`: the request as it
    /// was sent. `None`: it is to be executed here.
    pub(super) fn memcached_afar(
        &mut self,
        request: &Request<'_>,
        bytes: &[u8],
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let me = self.shards.as_ref()?.me;
        if self.executing_queue || matches!(work.connection.session.afar, Afar::Back(_)) {
            return self.memcached_await_writes(request, work);
        }
        let to = route(self.node.engine().placement()?, request);
        let kind = if writes(request) {
            Kind::Write
        } else if self.may_be_derived_item(request) {
            Kind::Derived
        } else {
            Kind::Plain
        };
        let at = match &to {
            To::Here => return None,
            To::Refused => {
                self.touch_before_refusal(request, bytes, work);
                self.memcached_refused("CLIENT_ERROR bad command line format", work);
                return Some(Flow::Next);
            }
            To::At(at) => Some(*at),
            To::All(_) | To::Homes(_) => None,
        };
        if let Some(front) = work.connection.session.front()
            && (front.is_full() || front.must_wait(kind, at))
        {
            front.holds = true;
            return Some(Flow::Parked);
        }
        if self.lets_others_read(at, work) {
            return Some(Flow::Parked);
        }
        match to {
            To::At(at) if at == me => return self.memcached_await_writes(request, work),
            To::At(at) => {
                if let Request::TooLarge { key, noreply, .. } = *request {
                    // Its data is not here, and never will be.
                    self.memcached.counts.too_large += 1;
                    self.stats.errors += 1;
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
                let shards = self.shards.as_ref()?.post.shards();
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
            let (Some(shards), Some(placement)) = (&self.shards, self.node.engine().placement())
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
        if kind == Kind::Derived {
            self.ask_after(at, work);
        }
        let Some(shards) = &mut self.shards else { return };
        shards.request_bytes(at, work.connection.id, VOICE, bytes);
        front_of(&mut work.connection.session, shards).expect(at, kind, silent);
    }

    /// Has several shards execute parts of a request.
    fn ask_items(
        &mut self,
        parts: Vec<(Shard, Vec<u8>)>,
        merge: Merge,
        kind: Kind,
        work: &mut Turn<'_>,
    ) {
        let Some(shards) = &self.shards else { return };
        let me = shards.me;
        let mut gather = Gather::new(merge, parts.iter().map(|(at, _)| *at).collect(), kind);
        let mut own = None;
        for (at, bytes) in parts {
            if at == me {
                own = Some(bytes);
                continue;
            }
            if kind == Kind::Derived {
                self.ask_after(at, work);
            }
            let Some(shards) = &mut self.shards else { continue };
            shards.request_bytes(at, work.connection.id, VOICE, &bytes);
        }
        if let Some(bytes) = own {
            match self.memcached_part(&bytes, work) {
                Some(reply) => gather.take(me, &reply),
                None => {
                    // It waits as a request by mail.
                    let Some(shards) = &mut self.shards else { return };
                    shards.request_bytes(me, work.connection.id, VOICE, &bytes);
                }
            }
        }
        let version = work.connection.session.version;
        let Some(shards) = &self.shards else { return };
        let front = front_of(&mut work.connection.session, shards);
        front.expect_gather(gather);
        front.advance(version);
        if front.is_done() {
            front.collect(work.out);
        }
    }

    /// Executes this shard's part of a request; its reply, unless it would have to wait.
    fn memcached_part(&mut self, bytes: &[u8], work: &mut Turn<'_>) -> Option<Vec<u8>> {
        let limits = self.memcached.limits;
        let Parsed::Request { request, .. } = parse(bytes, 0, &limits) else { return None };
        let out = core::mem::take(work.out);
        let whole = work.held.set_whole(true);
        let queue = core::mem::replace(&mut self.executing_queue, true);
        let flow = self.memcached_request(&request, bytes, work);
        self.executing_queue = queue;
        work.held.set_whole(whole);
        let reply = core::mem::replace(work.out, out);
        if flow == Flow::Parked {
            self.forget_waiting(work);
            return None;
        }
        let mut wrapped = Vec::with_capacity(reply.len() + 16);
        wrap(&reply, &mut wrapped);
        Some(wrapped)
    }

    /// Whether a request reads keys that joins may give.
    fn may_be_derived_item(&self, request: &Request<'_>) -> bool {
        let engine = self.node.engine();
        match request {
            Request::Get { keys, .. } => keys.into_iter().any(|key| engine.may_derive(key)),
            Request::MetaGet(meta) | Request::MetaDebug(meta) => meta
                .key_flag()
                .is_ok_and(|flags| engine.may_derive(meta.key(&flags, &mut [0; KEY_BYTES_MAX]))),
            Request::Invoke { key, update: false, .. } => engine.may_derive(key),
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
        if !self.may_be_derived_item(request) {
            return None;
        }
        let shards = self.shards.as_mut()?;
        let session: &mut Session = &mut work.connection.session;
        let wait = shards.peers.wait(self.node.engine(), &session.positions)?;
        shards.waits.insert(wait, work.connection.id);
        session.waiting = Some(Box::new(Waiting::Shards(OwnedArgs::default(), wait, None)));
        Some(Flow::Parked)
    }
}
