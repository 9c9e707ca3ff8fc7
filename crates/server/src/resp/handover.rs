//! What is left of a session that goes on at another owner, and a session that begins with that.

use super::dispatch::take_back;
use super::is_refusal;
use super::session::{Across, Answering, Session};
use super::tracking::{Tracks, all_changed};
use super::{Flow, ShardService, Turn, encoder};
use crate::connection::Connection;
use crate::handover::greeting::{NO_PROOF, NO_USER, STATE_BYTES_MAX, TAKEN, new_nonce};
use crate::handover::{SessionRest, SessionState, greeting};
use crate::memcached;
use crate::replicated::ReplicaEnd;
use crate::service::Handover;
use crate::wire_protocol::WireProtocol;
use headwater_base::Shard;
use headwater_base::source::Position;
use headwater_command::{Args, OwnedArgs, Reply};
use headwater_protocol::resp::{Version, find};
use std::os::fd::BorrowedFd;
use tokio::sync::watch;

fn request(words: &[&[u8]]) -> OwnedArgs {
    words.iter().copied().collect()
}

/// The request that has a client told of changes as it is.
fn tracking(tracks: &Tracks) -> OwnedArgs {
    let mut words: Vec<&[u8]> = vec![b"CLIENT", b"TRACKING", b"ON"];
    for (is_so, word) in [
        (tracks.broadcast, &b"BCAST"[..]),
        (tracks.opt_in, b"OPTIN"),
        (tracks.opt_out, b"OPTOUT"),
        (tracks.no_loop, b"NOLOOP"),
    ] {
        words.extend(is_so.then_some(word));
    }
    // Without one, it is told of all keys.
    for prefix in tracks.prefixes.iter().filter(|prefix| !prefix.is_empty()) {
        words.extend([&b"PREFIX"[..], prefix]);
    }
    request(&words)
}

/// The requests that make a session what it is.
fn requests(session: &Session) -> Vec<OwnedArgs> {
    let mut requests = Vec::new();
    if session.version == Version::Resp3 {
        requests.push(request(&[b"HELLO", b"3"]));
    }
    if let Some(identity) = &session.identity {
        for (words, value) in [
            (&[&b"CLIENT"[..], b"SETNAME"][..], &identity.name),
            (&[b"CLIENT", b"SETINFO", b"LIB-NAME"], &identity.library),
            (&[b"CLIENT", b"SETINFO", b"LIB-VER"], &identity.library_version),
        ] {
            if !value.is_empty() {
                requests.push(words.iter().copied().chain([&value[..]]).collect());
            }
        }
    }
    for (is_so, words) in [
        (session.no_evict, [&b"CLIENT"[..], b"NO-EVICT", b"ON"]),
        (session.no_touch, [b"CLIENT", b"NO-TOUCH", b"ON"]),
        (session.blob_errors, [b"CLIENT", b"CAPA", b"blob-errors"]),
    ] {
        requests.extend(is_so.then(|| request(&words)));
    }
    requests.extend(session.tracking.as_deref().map(tracking));
    if let Some(subscriptions) = &session.subscriptions {
        for (word, names) in [
            (&b"SUBSCRIBE"[..], &subscriptions.channels),
            (b"PSUBSCRIBE", &subscriptions.patterns),
            (b"SSUBSCRIBE", &subscriptions.shard_channels),
        ] {
            if !names.is_empty() {
                requests.push([word].into_iter().chain(names.iter().map(Vec::as_slice)).collect());
            }
        }
    }
    requests.extend(session.monitors.then(|| request(&[b"MONITOR"])));
    if session.answering == Answering::Off {
        requests.push(request(&[b"CLIENT", b"REPLY", b"OFF"]));
    }
    requests
}

/// Whether all that a session is can be told. Of what is under way nothing can, nor what other connections or shards know it by.
fn can_be_told(session: &Session) -> bool {
    let elsewhere = match &session.across {
        Across::Nothing => false,
        Across::Client(pending) => !pending.is_done() || !pending.watched().is_empty(),
        Across::Remote(_) => true,
    };
    let tracks = |tracks: &Tracks| tracks.redirect.is_none() && !tracks.broken && !tracks.caching;
    !elsewhere
        && !session.is_waiting()
        && !session.reached
        && !session.backs_up
        && session.watches.is_empty()
        && session.memcached.as_deref().is_none_or(memcached::Session::can_be_told)
        && session.certificate.is_none()
        && session.behind_answer.is_empty()
        && matches!(session.answering, Answering::On | Answering::Off)
        && session.tracking.as_deref().is_none_or(tracks)
        && session.queue.as_ref().is_none_or(|queue| queue.refused.is_empty())
}

impl ShardService {
    /// This node's end of the log, where it is one of a cluster.
    pub(super) fn replica(&self) -> Option<&ReplicaEnd> {
        self.stores.keeping.as_ref()?.replica()
    }

    /// Has the next process of this node, if there is one, listen where this socket does.
    pub(super) fn leave_open(&self, listener: BorrowedFd<'_>) {
        if let Some(replica) = self.replica() {
            replica.leave_open(listener);
        }
    }

    /// Waits until no more clients of HTTP are to be accepted, since the next process of this node is about to do so; those who are being answered go on then,
    /// and that process begins when what is given here is let go, or a moment later.
    pub(super) fn closes(
        &self,
    ) -> impl Future<Output = Option<watch::Receiver<bool>>> + Send + 'static + use<> {
        let closing = self.replica().map(ReplicaEnd::closing);
        async move {
            match closing {
                Some(mut closing) => {
                    let closes = closing.wait_for(|closes| *closes).await.is_ok();
                    closes.then_some(closing)
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Clients who connect from here on wait for the next process of this node, if there is to be one.
    pub(super) fn close_doors(&self) {
        if let Some(replica) = self.replica()
            && replica.leaves()
        {
            self.admission.entrance.arrivals.close();
            replica.close();
        }
    }

    /// How a client goes on elsewhere; `None`: its connection ends.
    pub(super) fn state_of(&self, connection: &Connection<Session>) -> Option<Handover> {
        let replica = self.replica()?;
        let session = &connection.session;
        // The session may go on at the owner of another shard.
        let is_known =
            session.tracking.as_ref().is_some_and(|it| it.broadcast) || !session.watched.is_empty();
        let tells_elsewhere = is_known && self.others.shards.is_some();
        if !can_be_told(session)
            || tells_elsewhere
            || connection.is_encrypted()
            || connection.unsent() > 0
            // Nobody passes it on who has its socket, where the process ends.
            || (session.forwarded.is_none() && !replica.leaves())
        {
            return None;
        }
        let others = (0..self.others.shard_count()).filter(|at| Shard(*at) != self.others.me());
        let position = |at| match session.positions.get(Shard(at)) {
            Position(0) => None,
            Position(position) => Some((at, replica.epoch_of(at), position)),
        };
        let sits = SessionRest {
            user: session.user.as_ref().map(|user| user.name.clone()),
            requests: requests(session),
            queued: session.queue.as_ref().map(|queue| queue.requests.clone()),
            broken: session.queue.as_ref().is_some_and(|queue| queue.broken),
            watched: session.watched.keys().cloned().collect(),
            positions: others.filter_map(position).collect(),
        };
        let speaks = match session.memcached {
            None => WireProtocol::Resp,
            Some(_) => WireProtocol::Memcached,
        };
        let state = SessionState { peer: connection.peer, speaks, sits: Some(sits) }.encode();
        if state.len() > STATE_BYTES_MAX {
            return None;
        }
        Some(Handover { state, tag: session.forwarded.as_deref().copied() })
    }

    /// Takes over a client that a node of the cluster passes on. `None`: there is no cluster.
    #[cold]
    pub(super) fn take_over(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Option<Flow> {
        let replica = self.replica()?;
        let session = &mut work.connection.session;
        let is_new = session.commands == 0 && session.forwarded.is_none();
        if is_new && greeting::is_first(args) {
            let nonce = session.nonce.insert(Box::new(new_nonce())).to_vec();
            encoder(work).bulk(&nonce);
            return Some(Flow::Next);
        }
        // It serves once, whatever comes.
        let nonce = session.nonce.take();
        let read =
            nonce.and_then(|it| greeting::read(replica.secret(), &it, replica.owned(), args));
        let told = read.and_then(|(tag, bytes)| Some((tag, SessionState::decode(bytes)?)));
        let Some((tag, state)) = told.filter(|_| is_new) else {
            encoder(work).error("ERR", format_args!("{NO_PROOF}"));
            return Some(Flow::Next);
        };
        session.forwarded = Some(Box::new(tag));
        work.connection.peer = state.peer;
        if let Some(sits) = state.sits
            && let Err((code, why)) = self.resume_session(&sits, work)
        {
            encoder(work).error(code, format_args!("{why}"));
            return Some(Flow::Close);
        }
        work.out.extend_from_slice(TAKEN);
        if state.speaks == WireProtocol::Memcached {
            work.connection.session.memcached = Some(Box::default());
            // What follows is read in the next turn, as what it is.
            *work.requests_left = 0;
        }
        let session = &work.connection.session;
        if session.tracking.is_some() {
            // Nobody knows what has changed meanwhile.
            work.out.extend_from_slice(&all_changed(session.version));
        }
        Some(Flow::Next)
    }

    /// Makes a session what it was elsewhere.
    ///
    /// # Errors
    /// The code and the text of why it cannot be.
    fn resume_session(
        &mut self,
        sits: &SessionRest,
        work: &mut Turn<'_>,
    ) -> Result<(), (&'static str, &'static str)> {
        let failed = ("ERR", "the session cannot go on here");
        let before = work.out.len();
        match &sits.user {
            Some(name) => {
                let user = self.admission.registry.lock().users.get(name).cloned();
                let Some(user) = user.filter(|user| user.enabled) else {
                    return Err(("NOAUTH", NO_USER));
                };
                self.log_in(user, work.connection);
            }
            None => {
                let session = &mut work.connection.session;
                (session.authenticated, session.unrestricted, session.user) = (false, false, None);
            }
        }
        let begun = sits.requests.iter().all(|request| self.run_unanswered(request.args(), work));
        let watched: OwnedArgs =
            [&b"WATCH"[..]].into_iter().chain(sits.watched.iter().map(Vec::as_slice)).collect();
        let begun = begun && (sits.watched.is_empty() || self.run_unanswered(watched.args(), work));
        // Nobody knows what has changed meanwhile.
        let counts = work.connection.session.watched.values_mut();
        counts.for_each(|count| *count = count.wrapping_sub(1));
        if let Some(requests) = &sits.queued {
            work.connection.session.queue = Some(Box::default());
            for request in requests {
                let Ok(spec) = find(request.args()) else { return Err(failed) };
                self.enqueue(spec, request.args(), work);
            }
            let queue = work.connection.session.queue.as_mut();
            queue.into_iter().for_each(|queue| queue.broken |= sits.broken);
        }
        self.see_again(&sits.positions, work);
        take_all_back(work, before);
        if begun { Ok(()) } else { Err(failed) }
    }

    /// Executes a request without an answer. `false`: it has to wait.
    fn run_unanswered(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> bool {
        let before = work.out.len();
        let Ok(spec) = find(args) else { return false };
        // Its rights may be others meanwhile.
        let user = work.connection.session.user.clone();
        if user.is_some_and(|user| self.judge(&user, spec, args).is_err()) {
            return false;
        }
        let flow = self.execute(spec, args, work);
        let is_done = flow == Flow::Next && !is_refusal(before, work);
        take_all_back(work, before);
        is_done
    }

    /// Has the session see what it has written at other shards, whose owners are the same still.
    fn see_again(&self, positions: &[(u16, u64, u64)], work: &mut Turn<'_>) {
        let Some(replica) = self.replica() else { return };
        for &(shard, epoch, position) in positions {
            // Another owner has begun with all of it.
            if shard < self.others.shard_count() && replica.epoch_of(shard) == epoch {
                work.connection.session.positions.reach(Shard(shard), Position(position));
            }
        }
    }
}

/// Takes back what nobody reads: answers, and messages behind them.
fn take_all_back(work: &mut Turn<'_>, before: usize) {
    take_back(work, before);
    work.connection.session.behind_answer.clear();
}
