//! The service: what all sessions share, and those in RESP: sessions, and every command that is not about stored data.
//!
//! A batch of pipelined requests is parsed, executed and answered in one go: [`Resp::serve`]
//! cuts requests out of the shared input, the node executes those about data, this module the
//! others, and all write into the shared output.
//!
//! A command that must wait for data parks its session: the request is copied, nothing of it
//! stays in the output, and it is run again from the start when the engine wakes its ticket.
//! EXEC goes on with the request that waited; until it is done no other session executes
//! anything, so that a transaction stays one step for everybody else.
//!
//! # Invariants
//! - S1. `session.subscriptions` is there only while it has a channel or pattern, and
//!   `channels` lists the connection under exactly those.
//! - S2. Each entry of `session.watched` is one watch in the engine.
//! - S3. While `exclusive` is set, that session is parked within EXEC.

mod afar;
mod blocking;
pub(crate) mod bound;
mod channels;
mod client;
mod clock;
mod configure;
mod connect;
mod dispatch;
mod flows;
mod info;
mod kept;
mod memory;
mod metrics;
mod server;
mod session;
mod slowlog;
mod sourced;
mod stats;
mod tracking;
mod transaction;
mod watching;

#[cfg(test)]
mod tests;

pub(crate) use info::cpu_seconds;
use session::Waiting;
pub(crate) use session::{Origin, Session};

use crate::config::{Config, ConfigError, Module};
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::http::Probes;
use crate::keeping::{Keeping, SentModule};
use crate::memcached::{self, Memcached};
use crate::memory::{ClientShare, Gauge, ProgramPages, Sample};
use crate::service::{Bounds, Door, Safety, Served, Service, Stopped, Time, Work};
use crate::shards::{Letter, Shards};
use crate::sources::Hub;
use blocking::Blocking;
use channels::Channels;
use clock::CommandClock;
use hashbrown::HashMap;
use headwater_base::functions::Source;
use headwater_base::hash::KeyHashBuilder;
use headwater_command::Reply;
use headwater_engine::{Effect, EngineError, Settings, Ticket, Value, ValueRef, WARM_MAX};
use headwater_functions::Host;
use headwater_node::Node;
use headwater_protocol::resp::{Encoder, Limits, Parsed, RequestParser};
use headwater_spill::Directory;
use mio::net::TcpStream;
use slowlog::Slowlog;
use stats::Stats;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tracking::Tracking;
use watching::Watching;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// It is answered; the next one may run.
    Next,
    /// It waits for data.
    Parked,
    /// The connection is to end after the answer.
    Close,
}

/// Input shorter than this is taken for a lone request, which gains nothing from looking ahead.
const WARM_BYTES_MIN: usize = 64;

/// The work of one turn, as this service sees it.
pub(crate) type Turn<'a> = Work<'a, Session>;

/// The share of the pages that the start needed for which room is left.
const PROGRAM_SHARE: usize = 2;

/// Answers requests in RESP.
pub(crate) struct Resp {
    /// The settings as they were given.
    pub(crate) config: Config,
    /// The settings in force: those, as far as the memory bound allows.
    pub(crate) lowered: Config,
    pub(crate) gauge: Rc<Gauge>,
    /// What clients may take together.
    pub(crate) clients_share: usize,
    /// What they may take now: less, where nothing else can go.
    clients_bytes_max: usize,
    /// What was known of memory when the server was ready.
    at_start: Sample,
    /// When memory was looked at last.
    looked_at: u64,
    program: ProgramPages,
    pub(crate) bounds: Bounds,
    limits: Limits,
    /// The narrower bounds for a client that has yet to give the password.
    limits_before_authentication: Limits,
    pub(crate) node: Node,
    /// The parser that all connections share as long as their requests are complete.
    parser: RequestParser,
    /// Parses requests ahead of their execution.
    scout: RequestParser,
    channels: Channels,
    tracking: Tracking,
    watching: Watching,
    pub(crate) stats: Stats,
    pub(crate) clock: CommandClock,
    slowlog: Slowlog,
    pub(crate) tickets: HashMap<Ticket, ConnectionId, KeyHashBuilder>,
    /// Why what a session waits for cannot be had.
    pub(crate) failures: HashMap<ConnectionId, EngineError, KeyHashBuilder>,
    exclusive: Option<ConnectionId>,
    /// The command under way is one of EXEC's.
    executing_queue: bool,
    blocking: Blocking,
    hub: Hub,
    /// Tasks of flows that are done elsewhere.
    outside: flows::Outsiders,
    probes: Probes,
    /// The embedded store; it ends after the hub, which its threads tell.
    keeping: Option<Keeping>,
    /// Sessions that wait for the end of `exclusive`.
    held: Vec<ConnectionId>,
    /// What memcached's sessions share.
    pub(crate) memcached: Memcached,
    stopping: bool,
    /// The other shards, where there are several.
    shards: Option<Box<Shards>>,
    /// Clients that others accepted, to be served here.
    new_clients: Vec<afar::Client>,
    pub(crate) time: Time,
}

impl Resp {
    /// A service with the tables and joins that `config` declares.
    pub(crate) fn new(
        mut config: Config,
        shards: Option<Box<Shards>>,
    ) -> Result<Self, ConfigError> {
        // A seed that no client can know: see headwater_base::hash.
        let hash_seed = RandomState::new().hash_one(0);
        let gauge = Gauge::new().map_err(|error| ConfigError(format!("memory: {error}")))?;
        let mut node = Node::new(Settings { limits: config.limits.to_limits(), hash_seed });
        if !config.spill.spill_dir.is_empty() {
            let (path, size) = (&config.spill.spill_dir, config.spill.spill_bytes_max.0);
            let directory = Directory::open(path.as_ref(), size)
                .map_err(|error| ConfigError(format!("spill-dir '{path}': {error}")))?;
            let value_bytes_min = config.spill.spill_value_bytes_min;
            node.engine_mut().set_spill(Box::new(directory), value_bytes_min);
            gauge.set_apart(headwater_spill::MEMORY_BYTES as usize / 2);
        }
        let mut hub = Hub::new();
        let mut keeping = Keeping::open(&mut config, &hub.inbox)?;
        let sent = keeping.as_mut().map(Keeping::take_modules).unwrap_or_default();
        provide_functions(&config, &sent, hash_seed, &mut node)?;
        if let Some(keeping) = &keeping {
            let keeper = Box::new(keeping.keeper());
            node.engine_mut()
                .set_keep(keeper, &keeping.tables(), true, config.data.data_plain)
                .map_err(|error| ConfigError(format!("data-dir: {error}")))?;
        }
        sourced::begin(&config, &mut hub, node.engine_mut())?;
        for join in &config.joins {
            node.engine_mut()
                .join_add(&join.name, &join.spec, false)
                .map_err(|error| ConfigError(format!("join '{}': {error}", join.name)))?;
        }
        if let Some(keeping) = &mut keeping {
            node.set_journal(Box::new(keeping.journal()?));
        }
        for flow in &config.flows {
            flows::add(&mut node, &flow.words()?)
                .map_err(|why| ConfigError(format!("flow '{}': {why}", flow.name)))?;
        }
        for words in keeping.as_mut().map(Keeping::take_flows).unwrap_or_default() {
            flows::add(&mut node, &words).map_err(|why| {
                let text = words.join(" ");
                ConfigError(format!("data-dir: the kept flow '{text}' is refused: {why}"))
            })?;
        }
        let certificates = &config.flow_settings.webhook_certificates;
        let outside = flows::Outsiders::new(certificates.as_ref(), hub.inbox.bell());
        let stats = Stats::new(hash_seed);
        let mut service = Self {
            bounds: Bounds::of(&config.clients),
            limits: Limits::for_values(config.limits.value_bytes_max),
            limits_before_authentication: Limits::for_values(config.limits.value_bytes_max),
            node,
            parser: RequestParser::new(),
            scout: RequestParser::new(),
            channels: Channels::new(hash_seed),
            tracking: Tracking::new(hash_seed),
            watching: Watching::new(hash_seed, &stats.run_id),
            stats,
            clock: CommandClock::new(&config.observe),
            slowlog: Slowlog::default(),
            tickets: HashMap::with_hasher(KeyHashBuilder::new(hash_seed)),
            failures: HashMap::with_hasher(KeyHashBuilder::new(hash_seed)),
            exclusive: None,
            executing_queue: false,
            blocking: Blocking::default(),
            hub,
            outside,
            probes: Probes::new(),
            keeping,
            held: Vec::new(),
            memcached: Memcached::default(),
            stopping: false,
            shards,
            new_clients: Vec::new(),
            time: Time::default(),
            config: Config::default(),
            lowered: Config::default(),
            gauge: Rc::new(gauge),
            clients_share: usize::MAX,
            clients_bytes_max: usize::MAX,
            at_start: Sample::default(),
            looked_at: 0,
            program: ProgramPages::of_this_process(),
        };
        service.gauge.set_program(service.gauge.sample().files / PROGRAM_SHARE);
        service.program.forget();
        service.check_memory(&config)?;
        service.apply(config);
        service.at_start = service.memory_sample();
        Ok(service)
    }

    /// The node, to load data before the start.
    pub(crate) fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Puts settings into force.
    fn apply(&mut self, config: Config) {
        if self.config.memory != config.memory {
            self.apply_memory(&config);
        }
        let lowered = ClientShare::of(&config).lower(&config);
        self.bounds = Bounds::of(&lowered.clients);
        self.limits = lowered.protocol_limits();
        self.limits_before_authentication = self.limits.before_authentication();
        self.memcached.limits = lowered.memcached_limits();
        self.clock = CommandClock::new(&config.observe);
        self.slowlog.shrink(config.observe.slowlog_entries_max);
        self.node.engine_mut().set_function_limits(&lowered.functions.to_limits());
        self.node.set_callable(&lowered.functions.functions_callable);
        self.node.engine_mut().set_limits(lowered.limits.to_limits());
        self.config = config;
        self.lowered = lowered;
    }

    /// Whether clients must give a password.
    pub(crate) fn needs_password(&self) -> bool {
        !self.config.listen.requirepass.is_empty()
    }

    /// Looks ahead at the next requests and fetches what they will touch; gives how many bytes
    /// they take.
    fn warm(&mut self, input: &[u8]) -> usize {
        let mut keys: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
        let mut seen = 0;
        let mut count = 0;
        while count < WARM_MAX {
            let rest = &input[seen..];
            let Parsed::Request { consumed } = self.scout.parse(rest, &self.limits) else {
                // The look ahead ends within a request: the next one starts afresh.
                self.scout = RequestParser::new();
                seen = input.len();
                break;
            };
            let args = self.scout.args(rest);
            // The commands that are asked for often have their key in the same place, but for one.
            let is_call = args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"fn.call"));
            if let Some(key) = args.get(if is_call { 2 } else { 1 }) {
                // The arguments of inline commands lie elsewhere, and are few.
                let start = (key.as_ptr() as usize).wrapping_sub(input.as_ptr() as usize);
                if let Some(key) = input.get(start..start.wrapping_add(key.len())) {
                    keys[count] = key;
                    count += 1;
                }
            }
            seen += consumed;
        }
        if count > 1 {
            self.node.engine().warm(&keys[..count]);
        }
        seen.max(1)
    }

    /// Parses and executes what is complete in `work.input`.
    #[inline]
    fn batch(&mut self, parser: &mut RequestParser, work: &mut Turn<'_>) -> Served {
        let input = work.input;
        let mut consumed = 0;
        let mut warm_until = if input.len() < WARM_BYTES_MIN { input.len() } else { 0 };
        self.clock.begin();
        let stopped = loop {
            if *work.requests_left == 0 || work.out.len() + work.held.bytes() >= work.out_bytes_full
            {
                break Stopped::Paused;
            }
            if consumed >= warm_until && warm_until < input.len() {
                warm_until = consumed + self.warm(&input[consumed..]);
            }
            let limits = if work.connection.session.authenticated {
                &self.limits
            } else {
                &self.limits_before_authentication
            };
            let rest = &input[consumed..];
            match parser.parse(rest, limits) {
                Parsed::Incomplete => break Stopped::Incomplete,
                Parsed::Nothing { consumed: bytes } => consumed += bytes,
                Parsed::Request { consumed: bytes } => {
                    consumed += bytes;
                    *work.requests_left -= 1;
                    let before = work.out.len();
                    let flow = self.request(parser.args(rest), work);
                    Self::keep_order(before, work);
                    self.tell_own(work);
                    match flow {
                        Flow::Next => {}
                        Flow::Parked => break Stopped::Parked,
                        Flow::Close => break Stopped::Closing,
                    }
                }
                Parsed::Error(error) => {
                    let before = work.out.len();
                    encoder(work).error("ERR", format_args!("{error}"));
                    Self::keep_order(before, work);
                    self.stats.errors += 1;
                    break Stopped::Closing;
                }
            }
        };
        Served { consumed, stopped }
    }
}

/// Gives the node its host of functions, with the modules of the settings, and those that clients sent before.
fn provide_functions(
    config: &Config,
    sent: &[SentModule],
    seed: u64,
    node: &mut Node,
) -> Result<(), ConfigError> {
    let (settings, limits) = (&config.functions, config.functions.to_limits());
    let directory =
        (!settings.functions_dir.is_empty()).then(|| settings.functions_dir.clone().into());
    let mut host = Host::new(&limits, directory, seed)
        .map_err(|error| ConfigError(format!("functions: {error}")))?;
    for Module { name, file, export } in &config.modules {
        host.load_now(name, Source::File(file), export.as_deref(), false)
            .map_err(|error| ConfigError(format!("function '{name}': {error}")))?;
    }
    for SentModule { name, export, bytes } in sent {
        host.load_now(name, Source::Bytes(bytes), export.as_deref(), false)
            .map_err(|error| ConfigError(format!("function '{name}': {error}")))?;
    }
    node.engine_mut().set_functions(Box::new(host));
    Ok(())
}

/// Where the answers to this connection go.
#[inline]
fn encoder<'w>(work: &'w mut Turn<'_>) -> Encoder<'w> {
    let session = &work.connection.session;
    if session.whole_replies || session.expects() {
        // What goes behind others' answers is moved about as bytes.
        return Encoder::new(work.out, session.version).with_blob_errors(session.blob_errors);
    }
    Encoder::holding(work.out, work.held, session.version).with_blob_errors(session.blob_errors)
}

impl Service for Resp {
    type Session = Session;

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn opened(&mut self, _id: ConnectionId, door: Door) -> Session {
        self.stats.connections += 1;
        let memcached = match door {
            Door::Resp => None,
            Door::Memcached => Some(Box::default()),
        };
        Session { authenticated: !self.needs_password(), memcached, ..Session::default() }
    }

    fn turn(&mut self, time: Time, clients_bytes: usize) {
        self.time = time;
        self.look_in_time(clients_bytes);
        self.stats.sample(time.uptime);
        self.node.advance(time.wall);
        if let Some(keeping) = &mut self.keeping {
            keeping.look_for_failure();
        }
        self.flush_in_time();
    }

    #[inline]
    fn moved(&mut self, clients_bytes: usize) {
        self.look_if_due(clients_bytes);
    }

    fn serve(&mut self, mut work: Turn<'_>) -> Served {
        if let Some(owner) = self.exclusive
            && owner != work.connection.id
        {
            self.held.push(work.connection.id);
            return Served { consumed: 0, stopped: Stopped::Parked };
        }
        self.before_request(&mut work);
        if work.connection.session.memcached.is_some() {
            return self.serve_memcached(work);
        }
        if let Some(waiting) = work.connection.session.waiting.take() {
            let before = work.out.len();
            let flow = self.resume(*waiting, &mut work);
            Self::keep_order(before, &mut work);
            self.tell_own(&mut work);
            match flow {
                Flow::Next => {}
                Flow::Parked => return Served { consumed: 0, stopped: Stopped::Parked },
                Flow::Close => return Served { consumed: 0, stopped: Stopped::Closing },
            }
        }
        let mut parser = match work.connection.session.parser.take() {
            Some(parser) => *parser,
            None => core::mem::take(&mut self.parser),
        };
        let served = self.batch(&mut parser, &mut work);
        self.tell_watchers(&mut work);
        if served.stopped == Stopped::Incomplete && served.consumed < work.input.len() {
            work.connection.session.parser = Some(Box::new(parser));
        } else {
            self.parser = parser;
        }
        served
    }

    fn set_waker(&mut self, waker: Arc<mio::Waker>) {
        if let Some(shards) = &self.shards {
            shards.post.set_waker(waker.clone());
        }
        self.hub.inbox.set_waker(waker);
    }

    fn numbers(&self) -> (u64, u64) {
        let of = |shards: &Shards| (u64::from(shards.me.0) + 1, u64::from(shards.post.shards()));
        self.shards.as_deref().map_or((1, 1), of)
    }

    fn hand_on(&mut self, socket: TcpStream, peer: SocketAddr, door: Door) -> Option<TcpStream> {
        let Some(shards) = &mut self.shards else { return Some(socket) };
        let to = shards.post.least_busy();
        if to == shards.me {
            return Some(socket);
        }
        let letter = Letter::Client { socket: socket.into(), peer, door };
        shards.post.to(to).letters.push(letter);
        None
    }

    fn take_clients(&mut self) -> Vec<afar::Client> {
        core::mem::take(&mut self.new_clients)
    }

    #[inline]
    fn collect(&mut self, connection: &mut Connection<Session>, out: &mut Vec<u8>) {
        if let Some(front) = connection.session.front() {
            front.collect(out);
        }
    }

    #[inline]
    fn expects(&self, session: &Session) -> bool {
        session.expects()
    }

    fn take_mail(&mut self, connection: &mut Connection<Session>) {
        self.post_replies(connection);
    }

    fn wake(&mut self, connections: &mut Connections<Session>) {
        self.take_mail_of_shards(connections);
        self.wake_late(connections);
        self.take_news(connections);
        self.run_flows(connections);
        self.node.engine_mut().poll_functions();
        self.answer_probes(connections);
        self.tell_all_watchers(connections);
        loop {
            let effects = self.node.engine_mut().take_effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    Effect::Wake(ticket) => {
                        if let Some(id) = self.tickets.remove(&ticket) {
                            connections.wake(id);
                        }
                    }
                    Effect::Fail { ticket, error } => {
                        if let Some(id) = self.tickets.remove(&ticket) {
                            self.failures.insert(id, error);
                            connections.wake(id);
                        }
                    }
                    Effect::Load { fetch, source, range } => {
                        self.ask_load(fetch, &source, &range);
                    }
                    Effect::Unfollow { source, range } => self.hub.unfollow(&source, &range),
                    // Nothing lives elsewhere without a placement.
                    Effect::LoadFrom { .. } | Effect::UnfollowAt { .. } => {}
                }
            }
        }
        self.tell_trackers(connections);
        if self.exclusive.is_none() {
            for id in self.held.drain(..) {
                connections.wake(id);
            }
        }
    }

    #[inline]
    fn safety(&self) -> Safety {
        self.keeping.as_ref().map_or_else(Safety::default, Keeping::safety)
    }

    #[inline]
    fn end_turn(&mut self) {
        if let Some(keeping) = &self.keeping {
            self.node.end_turn();
            keeping.end_turn();
        }
        if let Some(shards) = &mut self.shards {
            shards.post.send();
        }
    }

    fn settle(&mut self) {
        if let Some(keeping) = &self.keeping {
            keeping.settle();
        }
    }

    fn is_idle(&self, connection: &Connection<Session>, now: u64) -> bool {
        let most = self.config.clients.idle_seconds_max.saturating_mul(1000);
        let session = &connection.session;
        let may_be_silent =
            session.is_subscriber() || session.is_waiting() || connection.is_by_mail();
        most > 0 && !may_be_silent && now > connection.heard + most
    }

    fn output_bytes_max(&self, session: &Session) -> usize {
        if session.subscriptions.is_some() {
            self.lowered.clients.pubsub_output_bytes_max
        } else {
            self.lowered.clients.output_bytes_max
        }
    }

    fn session_bytes(session: &Session) -> usize {
        session.bytes()
    }

    fn clients_bytes_max(&self) -> usize {
        self.clients_bytes_max
    }

    fn may_end(session: &Session) -> bool {
        !session.no_evict
    }

    fn evicted_client(&mut self) {
        self.stats.clients_evicted += 1;
    }

    fn refusal(&mut self, door: Door) -> &'static [u8] {
        self.stats.connections_refused += 1;
        match door {
            Door::Resp => b"-ERR max number of clients reached\r\n",
            Door::Memcached => memcached::REFUSAL,
        }
    }

    fn value(&self, value: ValueRef) -> Value<'_> {
        self.node.engine().held(value)
    }

    fn release(&mut self, value: ValueRef) {
        self.node.engine_mut().release(value);
    }

    fn closed(&mut self, connection: &mut Connection<Session>) {
        let id = connection.id;
        self.forget_subscriptions(id, &mut connection.session);
        self.forget_range_watches(&mut connection.session);
        self.forget_watches(&mut connection.session);
        self.forget_tracking(id, &mut connection.session);
        if let Some(Waiting::Blocked(blocked)) = connection.session.waiting.as_deref() {
            self.forget_blocked(id, blocked);
        } else if connection.session.is_waiting() {
            self.hub.forget(id);
            self.tickets.retain(|_, waiting| *waiting != id);
            self.failures.remove(&id);
        }
        if self.exclusive == Some(id) {
            self.exclusive = None;
        }
        self.part(id, &mut connection.session);
    }

    fn is_over(&self, session: &Session) -> bool {
        matches!(session.waiting.as_deref(), Some(Waiting::Blocked(_)))
    }

    fn deadline(&self) -> Option<u64> {
        // A thread compiles beside the loop, and has no way to wake it.
        let loading = self.node.engine().is_loading_functions().then(|| self.time.uptime + 1);
        let (blocking, sources) = (self.blocking.next_deadline(), self.hub.next_deadline());
        let flows = self.flows_deadline();
        blocking.into_iter().chain(sources).chain(flows).chain(loading).min()
    }

    fn stopping(&self) -> bool {
        self.stopping
    }

    fn stopped(&mut self) {
        self.stop_all();
    }
}
