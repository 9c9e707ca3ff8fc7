//! Sessions in the protocol of memcached, on the same keys and values as those in RESP.
//!
//! Requests are parsed ahead, up to [`WARM_MAX`] of them, so that what they will touch is on its
//! way from memory when they are executed, one after the other. All answers of a batch go out in one write.
//!
//! A request that must wait for data parks its session: nothing of it stays in the output, its
//! bytes stay in the input, and it is parsed and executed anew when the engine wakes its ticket.
//!
//! What memcached has for its own memory (`slabs`, `lru`, `lru_crawler`, `cache_memlimit`, `watch`) answers
//! `ERROR`, as commands do that nobody knows.
//!
//! # Cost
//! Besides what the node does: a line is searched twice, an answer written once; nothing is
//! allocated.

mod details;
mod functions;
mod items;
mod meta;
mod question;
mod remote;
mod rights;
mod stats;
mod typed;

use crate::resp::parts::Figures;
use crate::resp::parts::Waits;
use details::{Details, ItemUse};
use items::{Undone, failure_line};
pub(crate) use question::write_answer;
pub(crate) use stats::Counts;

use crate::resp::bound::KEY_BYTES;
use crate::resp::kept::note_refusal;
use crate::resp::{Flow, ShardService, Told, Turn, foreign};
use crate::service::{Served, Stopped};
use headwater_base::Millis;
use headwater_command::Credentials;
use headwater_engine::{EngineError, Stop, Ticket, WARM_MAX};
use headwater_protocol::memcached::{Encoder, Limits, Parsed, Request, Words, parse};

/// Before the password was given, there is one line with a short block of data to be taken.
const LIMITS_BEFORE_AUTHENTICATION: Limits = Limits { line_bytes_max: 2048, value_bytes_max: 1024 };

/// What is known of one client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Session {
    /// Bytes of the incomplete request in which there is no line end.
    searched: usize,
    /// Bytes of a refused value that are still to come.
    skip: usize,
    /// Its first request waits for data.
    pub(crate) parked: bool,
}

impl Session {
    /// Whether another owner can go on with it, from its input: nothing of a request is done already.
    pub(crate) fn can_be_told(&self) -> bool {
        self.skip == 0 && !self.parked
    }
}

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Memcached {
    /// Bounds on requests.
    pub(crate) limits: Limits,
    /// What is counted for `stats`.
    pub(crate) counts: Counts,
    /// What is counted by prefix for `stats detail`.
    details: Details,
    /// When everything is to be removed, by a client's word.
    flush_at: Option<Millis>,
}

impl Default for Memcached {
    fn default() -> Self {
        let limits = LIMITS_BEFORE_AUTHENTICATION;
        let details = Details::default();
        Self { limits, counts: Counts::default(), details, flush_at: None }
    }
}

/// Where the answers to this connection go.
#[inline]
fn encoder<'w>(work: &'w mut Turn<'_>) -> Encoder<'w> {
    Encoder::new(work.out, work.held, usize::MAX)
}

/// Takes back what was answered behind the first `before` bytes.
fn take_back(work: &mut Turn<'_>, before: usize) {
    work.out.truncate(before);
    work.held.cut(before);
}

/// Whether a request changes anything.
fn writes(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Store { .. }
            | Request::Count { .. }
            | Request::Delete { .. }
            | Request::Touch { .. }
            | Request::MetaSet { .. }
            | Request::MetaDelete(_)
            | Request::MetaCount(_)
            | Request::FlushAll { .. }
            | Request::Invoke { update: true, .. }
    )
}

/// Whether a request writes by removing alone.
fn removes(request: &Request<'_>) -> bool {
    matches!(request, Request::Delete { .. } | Request::MetaDelete(_) | Request::FlushAll { .. })
}

/// Whether nothing of what comes of a request is told, not even that it has failed: its client does not read an answer.
fn is_silent(request: &Request<'_>) -> bool {
    match *request {
        Request::Store { noreply, .. }
        | Request::TooLarge { noreply, .. }
        | Request::Count { noreply, .. }
        | Request::Delete { noreply, .. }
        | Request::Touch { noreply, .. }
        | Request::FlushAll { noreply, .. } => noreply,
        Request::Invoke { reply, .. } => !reply,
        _ => false,
    }
}

/// The key that a request touches first.
#[inline]
fn first_key<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match *request {
        Request::Get { mut keys, .. } => keys.next(),
        Request::Store { key, .. }
        | Request::Count { key, .. }
        | Request::Delete { key, .. }
        | Request::Touch { key, .. }
        | Request::Invoke { key, .. } => Some(key),
        Request::MetaGet(meta)
        | Request::MetaSet { meta, .. }
        | Request::MetaDelete(meta)
        | Request::MetaCount(meta) => Some(meta.sent_key()),
        _ => None,
    }
}

/// What comes behind the requests that were parsed ahead.
enum Behind {
    /// More, maybe.
    More,
    /// Nothing that is complete.
    Rest { searched: usize },
    /// Data to be skipped.
    Skip(usize),
    /// A line without end.
    LongLine,
}

impl ShardService {
    /// Parses and executes what is complete in `work.input`.
    pub(crate) fn serve_memcached(&mut self, mut work: Turn<'_>) -> Served {
        let mut client = work.connection.session.memcached.as_deref().copied().unwrap_or_default();
        let mut failure = None;
        if core::mem::take(&mut client.parked) {
            failure = self.waits.failures.remove(&work.connection.id);
        }
        if self.others.shards.is_some() {
            // It has come to pass, or the session would sleep.
            work.connection.session.waiting = None;
        }
        let served = self.memcached_batch(&mut client, failure, &mut work);
        work.held.set_whole(false);
        if let Some(kept) = work.connection.session.memcached.as_deref_mut() {
            *kept = client;
        }
        served
    }

    fn memcached_batch(
        &mut self,
        client: &mut Session,
        mut failure: Option<EngineError>,
        work: &mut Turn<'_>,
    ) -> Served {
        let input = work.input;
        let mut consumed = 0;
        let mut searched = core::mem::take(&mut client.searched);
        self.figures.clock.begin();
        loop {
            let skipped = client.skip.min(input.len() - consumed);
            consumed += skipped;
            client.skip -= skipped;
            let limits = if work.connection.session.authenticated {
                self.memcached.limits
            } else {
                LIMITS_BEFORE_AUTHENTICATION
            };
            // Requests, each with the place behind it.
            let mut ahead: [Option<(Request<'_>, usize)>; WARM_MAX] = [None; WARM_MAX];
            let (mut count, mut at, mut behind) = (0, consumed, Behind::More);
            while count < WARM_MAX {
                match parse(&input[at..], searched, &limits) {
                    Parsed::Request { request, consumed: bytes, skip } => {
                        at += bytes;
                        ahead[count] = Some((request, at));
                        count += 1;
                        if skip > 0 {
                            behind = Behind::Skip(skip);
                            break;
                        }
                    }
                    Parsed::Incomplete { searched } => {
                        behind = Behind::Rest { searched };
                        break;
                    }
                    Parsed::LineTooLong => {
                        behind = Behind::LongLine;
                        break;
                    }
                }
                searched = 0;
            }
            if count > 1 {
                self.warm_for(ahead[..count].iter().flatten().map(|(request, _)| request));
            }
            for (request, end) in ahead[..count].iter().flatten() {
                let full = work.out.len() + work.held.bytes() >= work.out_bytes_full;
                if *work.requests_left == 0 || full {
                    self.memcached.counts.yields += 1;
                    return Served { consumed, stopped: Stopped::Paused };
                }
                *work.requests_left -= 1;
                let flow = match failure.take() {
                    None if self.others.shards.is_none() => self.memcached_request(request, work),
                    failure => self.memcached_among_shards(failure, request, work),
                };
                if let Some(micros) = self.figures.clock.lap() {
                    self.memcached_slow(micros, &input[consumed..*end], work);
                }
                match flow {
                    Flow::Next => consumed = *end,
                    Flow::Parked => {
                        client.parked = true;
                        return Served { consumed, stopped: Stopped::Parked };
                    }
                    Flow::Close => {
                        return Served { consumed: *end, stopped: Stopped::Closing };
                    }
                }
            }
            match behind {
                Behind::More => {}
                Behind::Skip(bytes) => client.skip = bytes,
                Behind::Rest { searched } => {
                    client.searched = searched;
                    return Served { consumed, stopped: Stopped::Incomplete };
                }
                Behind::LongLine => {
                    encoder(work).line("CLIENT_ERROR line too long");
                    return Served { consumed, stopped: Stopped::Closing };
                }
            }
        }
    }

    /// Remembers a request that took long, by the words of its line.
    #[cold]
    fn memcached_slow(&mut self, micros: u64, request: &[u8], work: &Turn<'_>) {
        let line = request.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let words: Vec<&[u8]> = Words::of(line.trim_ascii_end()).collect();
        let name = words.first().copied().unwrap_or_default();
        // A request names its keys between its own name and whatever follows them: those of `get` count, others have one.
        let reads = matches!(name, b"get" | b"gets");
        let keys = if reads { words.len() - 1 } else { words.len().min(2) - 1 };
        let told = Told { name: &name.escape_ascii().to_string(), keys };
        self.note_slow_words(micros, true, &told, Some(&words), work);
    }

    /// Fetches what requests will touch.
    fn warm_for<'r>(&self, requests: impl Iterator<Item = &'r Request<'r>>) {
        let mut keys: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
        let mut count = 0;
        for key in requests.filter_map(first_key) {
            keys[count] = key;
            count += 1;
        }
        self.node.engine().warm(&keys[..count]);
    }

    /// Executes one request where there may be several shards, or tells why it failed.
    fn memcached_among_shards(
        &mut self,
        failure: Option<EngineError>,
        request: &Request<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        work.held.set_whole(work.connection.session.expects());
        let before = work.out.len();
        let flow = match failure {
            Some(error) => self.figures.memcached_failed(&error, is_silent(request), work),
            None => self.memcached_request(request, work),
        };
        if let Some(shards) = &mut self.others.shards
            && writes(request)
        {
            let position = shards.peers.stamp();
            work.connection.session.positions.reach(shards.me, position);
        }
        Self::keep_order(before, work);
        flow
    }

    /// Executes one request.
    #[inline]
    fn memcached_request(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        if !self.keeps_rights(work) {
            return Flow::Close;
        }
        if !work.connection.session.authenticated {
            return self.memcached_password(request, work);
        }
        if self.admission.has_renames() && self.admission.is_taken_away(request) {
            return self.figures.refuse_unknown(request, work);
        }
        if !work.connection.session.unrestricted
            && let Err(flow) = self.memcached_is_allowed(request, work)
        {
            return flow;
        }
        if self.item_waits_for_pause(writes(request), work) {
            return Flow::Parked;
        }
        if self.others.shards.is_some() && matches!(request, Request::Register { .. }) {
            self.note_asker(work);
        }
        if self.others.shards.is_some()
            && let Some(flow) = self.memcached_remote(request, work)
        {
            return flow;
        }
        self.look_if_due(work.peers.bytes());
        self.bound.gauge.begin_command();
        self.memcached.counts.requests += 1;
        if let Some(why) = self.stores.write_refusal()
            && writes(request)
            && !(removes(request) && self.stores.takes_removals())
        {
            let before = work.out.len();
            self.figures.stats.errors += 1;
            answer_unless(is_silent(request), &format!("SERVER_ERROR {why}"), work);
            note_refusal(before, work);
            return Flow::Next;
        }
        // What functions call is not divided.
        if matches!(request, Request::Invoke { .. }) {
            return self.memcached_invoke(request, work);
        }
        self.node.engine_mut().begin_slice();
        let flow = self.memcached_slice(request, work);
        self.node.engine_mut().end_slice();
        flow
    }

    #[inline]
    fn memcached_slice(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        match *request {
            Request::Get { keys, versions, expiry } => {
                self.memcached_get(keys, versions, expiry, work)
            }
            Request::Store { .. } => self.memcached_store(request, work),
            Request::Count { key, by, down, noreply } => {
                self.memcached_count((key, by, down), noreply, work)
            }
            Request::Delete { key, noreply } => self.memcached_delete(key, noreply, work),
            Request::Touch { key, expiry, noreply } => {
                self.memcached_touch(key, expiry, noreply, work)
            }
            Request::MetaGet(meta) => self.meta_get(&meta, work),
            Request::MetaSet { meta, value } => self.meta_set(&meta, value, work),
            Request::MetaDelete(meta) => self.meta_delete(&meta, work),
            Request::MetaCount(meta) => self.meta_count(&meta, work),
            Request::MetaDebug(meta) => self.meta_debug(&meta, work),
            _ => self.memcached_rare(request, work),
        }
    }

    fn memcached_rare(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        match *request {
            Request::MetaNoop => encoder(work).line("MN"),
            Request::Refused { line } => self.figures.memcached_refused(line, work),
            Request::TooLarge { key, replaces, noreply } => {
                return self.memcached_too_large(key, replaces, noreply, work);
            }
            Request::FlushAll { when, noreply } => {
                self.memcached_flush_all(when);
                answer_unless(noreply, "OK", work);
            }
            Request::Verbosity { noreply } => answer_unless(noreply, "OK", work),
            Request::Version => {
                let version = headwater_protocol::memcached::VERSION;
                encoder(work).line(&format!("VERSION {version}"));
            }
            Request::Register { name, file, export } => {
                return self.memcached_register((name, file, export), work);
            }
            Request::Stats { words } => self.memcached_stats(words, work),
            Request::Foreign => return foreign(work),
            Request::Quit => return Flow::Close,
            // All others are executed elsewhere.
            _ => {}
        }
        Flow::Next
    }

    /// Before the password is given: as in memcached, by a `set` of any key whose data is the
    /// user's name and the password.
    #[cold]
    fn memcached_password(&mut self, request: &Request<'_>, work: &mut Turn<'_>) -> Flow {
        let line = match *request {
            Request::Store { value: Some(_), .. } if self.login_wait(work.connection).is_some() => {
                "CLIENT_ERROR too many wrong passwords from this address"
            }
            Request::Store { value: Some(data), .. } => {
                let mut words = data.splitn(2, |&byte| byte == b' ');
                let (user, password) = (words.next(), words.next());
                let credentials = Credentials { user, password: password.unwrap_or_default() };
                let right = password.is_some() && self.authenticate(&credentials, work.connection);
                self.memcached.counts.logins += 1;
                self.memcached.counts.login_errors += u64::from(!right);
                if right { "STORED" } else { "CLIENT_ERROR authentication failure" }
            }
            Request::Foreign => return foreign(work),
            Request::Quit => return Flow::Close,
            _ => "CLIENT_ERROR unauthenticated",
        };
        self.figures.stats.errors += u64::from(line != "STORED");
        encoder(work).line(line);
        Flow::Next
    }

    /// Lets the session wait, or tells why its request failed; what was answered behind the
    /// first `before` bytes is taken back.
    #[cold]
    fn memcached_stopped(
        &mut self,
        stop: Stop,
        noreply: bool,
        before: usize,
        work: &mut Turn<'_>,
    ) -> Flow {
        take_back(work, before);
        match stop {
            Stop::Wait(ticket) => self.waits.memcached_park(ticket, work),
            Stop::Failed(error) => self.figures.memcached_failed(&error, noreply, work),
        }
    }

    /// Tells why something was not done, or lets it wait; nothing was answered yet.
    #[cold]
    fn memcached_undone(&mut self, undone: Undone, noreply: bool, work: &mut Turn<'_>) -> Flow {
        match undone {
            Undone::Refused(line) => {
                answer_unless(noreply, &line, work);
                Flow::Next
            }
            Undone::Stopped(stop) => self.memcached_unanswered(stop, noreply, work),
        }
    }

    /// As [`ShardService::memcached_stopped`], where nothing was answered yet.
    #[cold]
    fn memcached_unanswered(&mut self, stop: Stop, noreply: bool, work: &mut Turn<'_>) -> Flow {
        let before = work.out.len();
        self.memcached_stopped(stop, noreply, before, work)
    }

    /// Whether there is room for a key with a value of so many bytes.
    #[inline]
    fn has_room_for_item(&mut self, key: &[u8], value_bytes: usize) -> bool {
        self.has_room_to_write(key.len() + KEY_BYTES, value_bytes)
    }
}

impl Figures {
    /// Refuses a request with a line.
    fn memcached_refused(&mut self, line: &str, work: &mut Turn<'_>) {
        self.stats.errors += 1;
        encoder(work).line(line);
    }

    /// Tells why a request failed.
    #[cold]
    fn memcached_failed(
        &mut self,
        error: &EngineError,
        noreply: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        self.stats.errors += 1;
        let mut out = encoder(work);
        match failure_line(error) {
            _ if noreply => {}
            Some(line) => out.line(line),
            None => out.failed(error.code(), error),
        }
        Flow::Next
    }
}

impl Waits {
    fn memcached_park(&mut self, ticket: Ticket, work: &Turn<'_>) -> Flow {
        self.tickets.insert(ticket, work.connection.id);
        Flow::Parked
    }
}

fn answer_unless(noreply: bool, line: &str, work: &mut Turn<'_>) {
    if !noreply {
        encoder(work).line(line);
    }
}
