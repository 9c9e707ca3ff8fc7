//! CLIENT LIST, INFO and KILL.

use super::tracking::redirect_of;
use super::{Flow, Session, ShardService, Turn, Waiting, encoder};
use crate::connection::{Connection, Phase};
use crate::connections::bytes_of;
use crate::resp::parts::Admission;
use core::fmt::Write;
use headwater_command::{Args, ClientKind, KillFilter, Reply, number};
use headwater_protocol::resp::Version;

impl ShardService {
    /// CLIENT LIST: a line for each connection chosen.
    pub(super) fn client_list(&self, kind: Option<ClientKind>, ids: Args<'_>, work: &mut Turn<'_>) {
        let options = kind.map_or(0, |_| "type".len()) + ids.bytes();
        let words = "clientlist".len() + options;
        let numbers: Vec<u64> = ids.iter().filter_map(number::parse_u64).collect();
        let chosen = |connection: &&Connection<Session>| {
            is_client(connection)
                && kind.is_none_or(|kind| kind == kind_of(&connection.session))
                && (ids.is_empty() || numbers.contains(&connection.id.number))
        };
        let mut all: Vec<&Connection<Session>> = work.peers.iter().collect();
        all.push(work.connection);
        all.sort_unstable_by_key(|connection| connection.id.number);
        let mut text = String::new();
        for connection in all.into_iter().filter(chosen) {
            let asks = connection.id == work.connection.id;
            let request = asks.then_some(RequestBytes { input: work.input.len(), words });
            describe(connection, work.time.uptime, request, &mut text);
        }
        encoder(work).verbatim(*b"txt", text.as_bytes());
    }

    /// CLIENT INFO: the line of the connection that asks.
    pub(super) fn client_info(&self, work: &mut Turn<'_>) {
        let mut text = String::new();
        let request = RequestBytes { input: work.input.len(), words: "clientinfo".len() };
        describe(work.connection, work.time.uptime, Some(request), &mut text);
        encoder(work).verbatim(*b"txt", text.as_bytes());
    }
}

impl Admission {
    /// CLIENT KILL: ends the connections chosen; the one that asks gets its answer first.
    pub(super) fn client_kill(&self, filter: &KillFilter<'_>, work: &mut Turn<'_>) -> Flow {
        if let Some(user) =
            filter.user.filter(|user| self.registry.lock().users.get(user).is_none())
        {
            let user = String::from_utf8_lossy(user);
            encoder(work).error("ERR", format_args!("No such user '{user}'"));
            return Flow::Next;
        }
        let now = work.time.uptime;
        let chosen: Vec<_> = work
            .peers
            .iter()
            .filter(|connection| is_client(connection) && fits(filter, connection, now))
            .map(|connection| connection.id)
            .collect();
        chosen.iter().for_each(|&id| work.peers.kill(id));
        let oneself =
            !filter.skip_me && !work.connection.is_remote() && fits(filter, work.connection, now);
        let count = chosen.len() + usize::from(oneself);
        let mut out = encoder(work);
        match (filter.by_address_alone, count) {
            (true, 0) => out.error("ERR", format_args!("No such client")),
            (true, _) => out.ok(),
            (false, count) => out.integer(count as i64),
        }
        if oneself { Flow::Close } else { Flow::Next }
    }
}

/// Whether a connection is a client's of this shard; one that was killed is none any more, though it is there until the turn ends.
fn is_client(connection: &Connection<Session>) -> bool {
    !connection.is_remote() && connection.phase != Phase::Killed
}

fn kind_of(session: &Session) -> ClientKind {
    if session.is_subscriber() { ClientKind::PubSub } else { ClientKind::Normal }
}

fn fits(filter: &KillFilter<'_>, connection: &Connection<Session>, now: u64) -> bool {
    let same = |wanted: Option<&[u8]>, address: core::net::SocketAddr| {
        wanted.is_none_or(|wanted| wanted == address.to_string().as_bytes())
    };
    filter.id.is_none_or(|id| id == connection.id.number)
        && filter.kind.is_none_or(|kind| kind == kind_of(&connection.session))
        && filter
            .user
            .is_none_or(|user| connection.session.user.as_ref().is_some_and(|own| own.name == user))
        && filter.age.is_none_or(|age| (now - connection.since) / 1000 >= age)
        && same(filter.address, connection.peer)
        && same(filter.local_address, connection.local)
}

/// What a certificate calls a client, as a further word of its line.
fn named(name: &str) -> String {
    let shown = name.chars().map(|next| if next.is_ascii_graphic() { next } else { '?' });
    " cert=".chars().chain(shown).collect()
}

/// What of a client's request is in memory that all connections share, while it is executed.
#[derive(Clone, Copy)]
pub(super) struct RequestBytes {
    /// What it has sent with it.
    input: usize,
    /// The words of the request.
    words: usize,
}

/// One line, in the fields and order of Redis. `request`: of the client that asks, what it has sent.
pub(super) fn describe(
    connection: &Connection<Session>,
    now: u64,
    request: Option<RequestBytes>,
    out: &mut String,
) {
    let Connection { id, session, peer, local, since, heard, .. } = connection;
    let (input, output) = connection.reserved_bytes();
    let identity = session.identity.as_deref();
    let text = |bytes: Option<&Vec<u8>>| {
        bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    };
    let subscriptions = session.subscriptions.as_deref();
    let queued = session.queue.as_deref();
    let tracks = session.tracking.as_deref();
    // What lists clients is asked of all shards at once, and waits for nobody.
    let asks = request.is_some() || session.last_command == "client|list";
    let is_waiting = session.waiting.is_some() || session.expects() && !asks;
    let mut flags = String::from(match () {
        () if session.monitors => "O",
        () if session.is_subscriber() => "P",
        () if session.queue.is_some() => "x",
        () if is_waiting => "b",
        () if tracks.is_some() || session.no_evict || session.no_touch => "",
        () => "N",
    });
    for (is, flag) in [
        (tracks.is_some(), 't'),
        (tracks.is_some_and(|tracks| tracks.broken), 'R'),
        (tracks.is_some_and(|tracks| tracks.broadcast), 'B'),
        (session.no_evict, 'e'),
        (session.no_touch, 'T'),
    ] {
        flags.extend(is.then_some(flag));
    }
    let waits = session.waiting.as_deref().and_then(Waiting::request);
    let words = request.map_or(0, |it| it.words) + waits.map_or(0, |words| words.bytes());
    let shared = request.map_or(0, |it| it.input);
    let events = if connection.unsent() > 0 { "rw" } else { "r" };
    let memory = bytes_of(connection, session.bytes()) + shared;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "id={} addr={peer} laddr={local} fd={} name={} age={} idle={} flags={flags} db=0 sub={} \
         psub={} ssub={} multi={} watch={} qbuf={} qbuf-free={} argv-mem={words} multi-mem={} rbs={output} \
         rbp={output} obl=0 oll={} omem={} tot-mem={memory} events={events} cmd={} user={} redir={} resp={} \
         lib-name={} lib-ver={} io-thread={} tot-net-in={} tot-net-out={} tot-cmds={} range-watches={}{}",
        id.number,
        connection.descriptor(),
        text(identity.map(|identity| &identity.name)),
        (now - since) / 1000,
        (now - heard) / 1000,
        subscriptions.map_or(0, |subscriptions| subscriptions.channels.len()),
        subscriptions.map_or(0, |subscriptions| subscriptions.patterns.len()),
        subscriptions.map_or(0, |subscriptions| subscriptions.shard_channels.len()),
        queued.map_or(-1, |queue| queue.requests.len() as i64),
        session.watched_keys(),
        connection.input_filled + shared,
        input - connection.input_filled,
        queued.map_or(0, |queue| queue.bytes),
        usize::from(connection.unsent() > 0),
        connection.unsent(),
        if session.last_command.is_empty() { "NULL" } else { session.last_command },
        session.user.as_ref().map_or_else(|| String::from("(none)"), |user| user.shown()),
        redirect_of(tracks),
        if session.version == Version::Resp3 { 3 } else { 2 },
        text(identity.map(|identity| &identity.library)),
        text(identity.map(|identity| &identity.library_version)),
        connection.io_thread(),
        connection.received_bytes,
        connection.sent_bytes,
        session.commands,
        session.watches.len(),
        session.certificate.as_deref().map(named).unwrap_or_default(),
    );
}
