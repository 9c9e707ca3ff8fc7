//! Requests that other shards execute, and requests that are executed for clients of other shards.
//!
//! # Order
//! A client's requests to one shard are executed in their order. Requests to different shards may be
//! executed at the same time, with one rule: what is derived is read only when the client's writes at other
//! shards are done, so that a client sees what it wrote.

use super::session::{Afar, Answering, Origin, Session, Waiting};
use super::{Flow, Resp, Turn, encoder};
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::service::Door;
use crate::shards::{Front, Gather, Letter, Mail, Merge, Route, Voice, route};
use headwater_base::Shard;
use headwater_command::table::Group;
use headwater_command::{Args, Command, Data, Flags, Id, OwnedArgs, Ranges, Reply, Spec};
use headwater_protocol::resp::{decode, find};
use mio::net::TcpStream;
use std::net::SocketAddr;

const CROSS_SLOT: &str = "Keys in request don't hash to the same slot: they live on several shards \
     (keys of one group, or plain keys with one {tag}, live together)";

/// A client that another shard accepted.
pub(super) type Client = (TcpStream, SocketAddr, Door);

impl Resp {
    /// Executes a request elsewhere, or at several shards, if that is where its keys live. `None`: it
    /// is to be executed here.
    #[inline]
    pub(super) fn execute_afar(
        &mut self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        if self.executing_queue || matches!(work.connection.session.afar, Afar::Back(_)) {
            return None;
        }
        let shards = self.shards.as_ref()?;
        let me = shards.me;
        if matches!(command, Command::Transaction(_)) {
            return self.transact_afar(spec, command, args, work);
        }
        if matches!(spec.id, Id::JoinAdd | Id::RangeWatch)
            || matches!(spec.group, Group::Flow | Group::Source)
        {
            self.stats.errors += 1;
            let name = spec.full_name;
            let text = format_args!("'{name}' needs shards = 1: it does not work with several yet");
            encoder(work).error("ERR", text);
            return Some(Flow::Next);
        }
        let route = route(&shards.placement, spec, command, args);
        let derived = matches!(route, Route::At(_) | Route::Parts { .. })
            && !spec.flags.has(Flags::WRITE)
            && self.may_be_derived(command, args, spec);
        let at = match &route {
            Route::At(at) => Some(*at),
            _ => None,
        };
        if let Some(front) = work.connection.session.front()
            && (front.is_full() || (derived && front.writes_elsewhere(at)))
        {
            return Some(hold(Some(args), work));
        }
        match route {
            Route::Here => None,
            Route::At(at) if at == me => None,
            Route::At(at) => {
                self.ask(at, args, spec.flags.has(Flags::WRITE), false, work);
                Some(Flow::Next)
            }
            Route::Parts { merge, parts } => Some(self.ask_all(spec, merge, &parts, args, work)),
            Route::Several => {
                self.stats.errors += 1;
                encoder(work).error("CROSSSLOT", format_args!("{CROSS_SLOT}"));
                Some(Flow::Next)
            }
        }
    }

    /// Whether a reading command may concern keys that joins give.
    fn may_be_derived(&self, command: &Command<'_>, args: Args<'_>, spec: &Spec) -> bool {
        let engine = self.node.engine();
        match command {
            Command::Data(Data::Ranges(Ranges::Prefix { prefix, .. })) => engine.may_derive(prefix),
            Command::Data(Data::Ranges(_) | Data::Functions(_)) => true,
            _ => {
                let mut keys = spec.keys.positions(args.len()).filter_map(|at| args.get(at));
                keys.any(|key| engine.may_derive(key))
            }
        }
    }

    /// Has another shard execute a request.
    fn ask(&mut self, at: Shard, args: Args<'_>, write: bool, silent: bool, work: &mut Turn<'_>) {
        let Some(shards) = &mut self.shards else { return };
        let id = work.connection.id;
        let session = &mut work.connection.session;
        let voice = Voice { version: session.version, blob_errors: session.blob_errors };
        shards.request(at, id, voice, args);
        let silent = silent || session.answering != Answering::On;
        front_of(session, shards.post.shards()).expect(at, write, silent);
    }

    /// Has several shards execute parts of a request.
    fn ask_all(
        &mut self,
        spec: &'static Spec,
        merge: Merge,
        parts: &[(Shard, crate::shards::Request)],
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let Some(me) = self.shards.as_ref().map(|shards| shards.me) else { return Flow::Next };
        // Figures are of one moment if nothing else is under way; and what is declared is so
        // everywhere before anything else of this client is executed.
        let mut gather = Gather::new(
            merge,
            parts.iter().map(|(at, _)| *at).collect(),
            spec.flags.has(Flags::WRITE),
        );
        gather.silent = work.connection.session.answering != Answering::On;
        let mut own = None;
        for (at, request) in parts {
            let request = request.args(args);
            if *at == me {
                own = Some(request);
                continue;
            }
            let Some(shards) = &mut self.shards else { continue };
            let session = &work.connection.session;
            let voice = Voice { version: session.version, blob_errors: session.blob_errors };
            shards.request(*at, work.connection.id, voice, request.args());
        }
        let mut holds = spec.flags.has(Flags::ADMIN);
        let mut flow = Flow::Next;
        if let Some(request) = own {
            match self.execute_part(request.args(), work) {
                Ok((reply, ended)) => {
                    gather.take(me, &reply);
                    flow = ended;
                }
                Err(()) => {
                    // Its data is not here: it waits as a request by mail, and what follows waits
                    // for it.
                    let Some(shards) = &mut self.shards else { return Flow::Next };
                    let session = &work.connection.session;
                    let voice =
                        Voice { version: session.version, blob_errors: session.blob_errors };
                    shards.request(me, work.connection.id, voice, request.args());
                    holds = true;
                }
            }
        }
        let Some(shards) = &self.shards else { return Flow::Next };
        let version = work.connection.session.version;
        let front = front_of(&mut work.connection.session, shards.post.shards());
        front.expect_gather(gather);
        front.advance(version);
        if front.is_done() {
            front.collect(work.out);
            return flow;
        }
        if holds && flow == Flow::Next { hold(None, work) } else { flow }
    }

    /// Executes this shard's part of a request; its reply, unless it would have to wait.
    fn execute_part(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Result<(Vec<u8>, Flow), ()> {
        let Ok(spec) = find(args) else { return Err(()) };
        let out = core::mem::take(work.out);
        let before = core::mem::replace(&mut work.connection.session.whole_replies, true);
        let queue = core::mem::replace(&mut self.executing_queue, true);
        let flow = self.execute(spec, args, work);
        self.executing_queue = queue;
        work.connection.session.whole_replies = before;
        let reply = core::mem::replace(work.out, out);
        if flow == Flow::Parked {
            let id = work.connection.id;
            work.connection.session.waiting = None;
            self.hub.forget(id);
            self.tickets.retain(|_, waiting| *waiting != id);
            return Err(());
        }
        Ok((reply, flow))
    }

    /// MULTI, EXEC, DISCARD, WATCH and UNWATCH, where keys live elsewhere.
    fn transact_afar(
        &mut self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        use headwater_command::Transaction;
        let me = self.shards.as_ref()?.me;
        let session = &mut work.connection.session;
        let watches_at = session.front().and_then(|front| front.watches_at);
        match command {
            Command::Transaction(Transaction::Watch { keys }) => {
                if session.queue.is_some() {
                    return None;
                }
                let shards = self.shards.as_ref()?;
                let mut homes = keys.iter().map(|key| shards.placement.home(key));
                let at = homes.next()?;
                let here = (!session.watched.is_empty()).then_some(me);
                let before = watches_at.or(here);
                if homes.any(|other| other != at) || before.is_some_and(|before| before != at) {
                    self.stats.errors += 1;
                    encoder(work).error("CROSSSLOT", format_args!("{CROSS_SLOT}"));
                    return Some(Flow::Next);
                }
                if at == me {
                    return None;
                }
                self.ask(at, args, false, false, work);
                work.connection.session.front()?.watches_at = Some(at);
                Some(Flow::Next)
            }
            Command::Transaction(Transaction::Unwatch | Transaction::Discard) => {
                self.unwatch_afar(work);
                None
            }
            Command::Transaction(Transaction::Exec) => self.exec_afar(spec, args, watches_at, work),
            _ => None,
        }
    }

    /// Ends the watches that another shard keeps for a session.
    pub(super) fn unwatch_afar(&mut self, work: &mut Turn<'_>) {
        let front = work.connection.session.front();
        if let Some(at) = front.and_then(|front| front.watches_at.take()) {
            let unwatch: OwnedArgs = [&b"UNWATCH"[..]].into_iter().collect();
            self.ask(at, unwatch.args(), false, true, work);
        }
    }

    /// EXEC: at the shard of all of its keys.
    fn exec_afar(
        &mut self,
        _spec: &'static Spec,
        args: Args<'_>,
        watches_at: Option<Shard>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let shards = self.shards.as_ref()?;
        let me = shards.me;
        let session = &mut work.connection.session;
        let queue = session.queue.as_ref()?;
        if queue.broken {
            self.unwatch_afar(work);
            return None;
        }
        let here = (!session.watched.is_empty()).then_some(me);
        let mut at = watches_at.or(here);
        let mut refusal = None;
        for request in &queue.requests {
            let args = request.args();
            let Ok(spec) = find(args) else { continue };
            let Ok(command) = decode(spec, args) else { continue };
            match route(&shards.placement, spec, &command, args) {
                Route::Here => {}
                Route::At(home) if at.is_none_or(|at| at == home) => at = Some(home),
                Route::Parts { .. } if spec.id == Id::Publish => {}
                Route::At(_) | Route::Several => refusal = Some(spec),
                Route::Parts { .. } => refusal = Some(spec),
            }
        }
        if let Some(spec) = refusal {
            self.unwatch_afar(work);
            self.forget_watches(&mut work.connection.session);
            work.connection.session.queue = None;
            self.stats.errors += 1;
            let name = spec.full_name;
            encoder(work).error(
                "CROSSSLOT",
                format_args!(
                    "the keys of a transaction must live on one shard ('{name}' needs others)"
                ),
            );
            return Some(Flow::Next);
        }
        let at = at.unwrap_or(me);
        if work.connection.session.expects() {
            // What it wrote elsewhere may be read within.
            return Some(hold(Some(args), work));
        }
        if at == me {
            return None;
        }
        let queue = work.connection.session.queue.take()?;
        let words = |word: &'static [u8]| -> OwnedArgs { [word].into_iter().collect() };
        self.ask(at, words(b"MULTI").args(), false, true, work);
        for request in &queue.requests {
            self.ask(at, request.args(), false, true, work);
        }
        self.ask(at, words(b"EXEC").args(), true, false, work);
        if let Some(front) = work.connection.session.front() {
            front.watches_at = None;
        }
        Some(Flow::Next)
    }

    /// Keeps the order of answers: what was written behind `before` goes behind what others have yet to answer.
    #[inline]
    pub(super) fn keep_order(before: usize, work: &mut Turn<'_>) {
        if let Some(front) = work.connection.session.front()
            && !front.is_done()
            && work.out.len() > before
        {
            front.expect_own(&work.out[before..]);
            work.out.truncate(before);
        }
    }

    /// A message for the channels of all other shards, from within a transaction.
    pub(super) fn publish_afar(&mut self, channel: &[u8], message: &[u8]) {
        let Some(shards) = &mut self.shards else { return };
        let me = shards.me;
        for to in (0..shards.post.shards()).map(Shard).filter(|to| *to != me) {
            let mail = shards.post.to(to);
            mail.bytes.extend_from_slice(channel);
            mail.bytes.extend_from_slice(message);
            let end = mail.bytes.len();
            mail.letters.push(Letter::Publish { name: channel.len(), end });
        }
    }

    /// Takes the letters that have come.
    pub(super) fn take_mail_of_shards(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &self.shards else { return };
        let mails = shards.post.take();
        shards.post.set_clients(connections.open());
        for mail in mails {
            self.take_letters(mail, connections);
        }
    }

    fn take_letters(&mut self, mail: Mail, connections: &mut Connections<Session>) {
        let Mail { from, bytes, letters } = mail;
        let mut begin = 0;
        for letter in letters {
            match letter {
                Letter::Requests { session, voice, end } => {
                    let origin = Origin { shard: from, session };
                    self.take_requests(origin, voice, &bytes[begin..end], connections);
                    begin = end;
                }
                Letter::Replies { session, end } => {
                    take_replies(from, session, &bytes[begin..end], connections);
                    begin = end;
                }
                Letter::Gone { session } => {
                    let origin = Origin { shard: from, session };
                    let back = self.shards.as_mut().and_then(|shards| shards.backs.remove(&origin));
                    if let Some(back) = back {
                        connections.kill(back);
                    }
                }
                Letter::Broken { session } => connections.kill(session),
                Letter::Client { socket, peer, door } => {
                    self.new_clients.push((TcpStream::from_std(socket), peer, door));
                }
                Letter::Publish { name, end } => {
                    let (channel, message) = bytes[begin..end].split_at(name);
                    self.publish_from_flow(channel, message, connections);
                    begin = end;
                }
                Letter::Home { partition, home } => {
                    if let Some(shards) = &mut self.shards {
                        shards.placement.assign(partition, home);
                    }
                }
                Letter::Stop => self.stopping = true,
            }
        }
    }

    /// Gives requests to the connection that stands for their client.
    fn take_requests(
        &mut self,
        origin: Origin,
        voice: Voice,
        bytes: &[u8],
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &mut self.shards else { return };
        let known = shards.backs.get(&origin).copied();
        let id = known.filter(|&id| connections.get_mut(id).is_some()).unwrap_or_else(|| {
            let id = connections.next_id_by_mail();
            let session = Session {
                authenticated: true,
                afar: Afar::Back(origin),
                no_evict: true,
                ..Session::default()
            };
            let mut connection = Box::new(Connection::by_mail(id, session, self.time.uptime));
            connections.count(&mut connection, 0);
            connections.put(connection);
            shards.backs.insert(origin, id);
            id
        });
        if let Some(connection) = connections.get_mut(id) {
            connection.session.version = voice.version;
            connection.session.blob_errors = voice.blob_errors;
            connection.take_requests(bytes);
            connections.touch(id);
        }
    }

    /// Posts the replies that a connection by mail has for its client.
    pub(super) fn post_replies(&mut self, connection: &mut Connection<Session>) {
        let Afar::Back(origin) = connection.session.afar else { return };
        let Some(shards) = &mut self.shards else { return };
        let Some(replies) = connection.mail() else { return };
        if replies.is_empty() {
            return;
        }
        let mail = shards.post.to(origin.shard);
        mail.bytes.append(replies);
        replies.shrink_to(64 << 10);
        let end = mail.bytes.len();
        mail.letters.push(Letter::Replies { session: origin.session, end });
    }

    /// A session has ended: what stands for it elsewhere is to end, or who has its client is told.
    pub(super) fn part(&mut self, id: ConnectionId, session: &mut Session) {
        let Some(shards) = &mut self.shards else { return };
        match core::mem::take(&mut session.afar) {
            Afar::None => {}
            Afar::Front(front) => {
                for at in front.used() {
                    shards.post.to(at).letters.push(Letter::Gone { session: id });
                }
            }
            Afar::Back(origin) => {
                if shards.backs.get(&origin) == Some(&id) {
                    shards.backs.remove(&origin);
                    let letter = Letter::Broken { session: origin.session };
                    shards.post.to(origin.shard).letters.push(letter);
                }
            }
        }
    }

    /// Tells all shards that the process ends.
    pub(super) fn stop_all(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        for to in (0..shards.post.shards()).map(Shard) {
            shards.post.to(to).letters.push(Letter::Stop);
        }
        shards.post.send();
    }
}

/// Replies of another shard have come for a client of this one.
fn take_replies(
    from: Shard,
    session: ConnectionId,
    bytes: &[u8],
    connections: &mut Connections<Session>,
) {
    let Some(connection) = connections.get_mut(session) else { return };
    let version = connection.session.version;
    let Some(front) = connection.session.front() else { return };
    front.came(from, bytes);
    let is_ready = front.advance(version);
    let goes_on = front.holds && front.is_done();
    if goes_on {
        front.holds = false;
        connections.wake(session);
    }
    if is_ready {
        connections.touch(session);
    }
}

/// What other shards do for a session.
fn front_of(session: &mut Session, shards: u16) -> &mut Front {
    if !matches!(session.afar, Afar::Front(_)) {
        session.afar = Afar::Front(Box::new(Front::new(shards)));
    }
    match &mut session.afar {
        Afar::Front(front) => front,
        Afar::None | Afar::Back(_) => unreachable!("it was just put there"),
    }
}

/// Lets a session wait until everything is answered; then it goes on with this request.
fn hold(args: Option<Args<'_>>, work: &mut Turn<'_>) -> Flow {
    let session = &mut work.connection.session;
    if let Some(args) = args {
        session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
    }
    if let Some(front) = session.front() {
        front.holds = true;
    }
    Flow::Parked
}
