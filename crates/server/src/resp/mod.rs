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

mod acl;
mod backups;
mod blocking;
pub(crate) mod bound;
mod channels;
mod client;
mod clock;
mod cluster;
mod configure;
mod connect;
mod declared;
mod dispatch;
mod entrance;
mod errors;
mod flows;
mod info;
mod kept;
mod keyspace;
mod memory;
mod metrics;
mod monitor;
mod notices;
mod owners;
mod pause;
mod remote;
mod renewal;
mod reply;
mod rights;
mod sending;
mod server;
mod service;
mod session;
mod slowlog;
mod sourced;
mod stats;
mod times;
mod tracking;
mod transaction;
mod watching;

#[cfg(test)]
mod tests;

pub(crate) use backups::CommonBackup;
pub(crate) use dispatch::foreign;
pub(crate) use entrance::{CommonEntrance, PROTECTED};
pub(crate) use info::cpu_seconds;
pub(crate) use monitor::CommonMonitors;
pub(crate) use remote::{LOCKED_FOR_LONG, LockTurn, LockWait, after_of, pending_of};
pub(crate) use reply::Form;
pub(crate) use rights::NotAllowed;
pub(crate) use session::{Origin, Session, Waiting};
pub(crate) use slowlog::{SlowCommands, Told};
pub(crate) use times::Spreads;
pub(crate) use tracking::Note as TrackingNote;
pub(crate) use watching::Note;

use crate::arrival::Arrival;
use crate::config::{Config, ConfigError, EventChannels, Module};
use crate::connection::ConnectionId;
use crate::http::Probes;
use crate::keeping::{EmbeddedStore, SentModule};
use crate::memcached::Memcached;
use crate::memory::{ClientShare, Gauge, ProgramPages, Sample};
use crate::replicated::ReplicaEnd;
use crate::service::{Bounds, Served, Stopped, Time, Work};
use crate::shards::Shards;
use crate::sources::{Common, Hub};
use crate::users::{SeenUsers, UserRegistry};
use blocking::Blocking;
use channels::Channels;
use clock::CommandClock;
use entrance::Entrance;
use errors::is_refusal;
use hashbrown::HashMap;
use headwater_base::functions::Source;
use headwater_base::hash::{KeyHashBuilder, Secret};
use headwater_base::text::redact_words;
use headwater_base::{Placement, Shard};
use headwater_command::Reply;
use headwater_engine::{EngineError, Settings, Ticket, WARM_MAX};
use headwater_functions::Host;
use headwater_node::Node;
use headwater_protocol::resp::{Encoder, Limits, Parsed, RequestParser};
use headwater_router::AnswerWriter;
use headwater_spill::Directory;
use reply::SessionReply;
use slowlog::Slowlog;
use stats::Stats;
use std::array;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
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
    /// Where what is done to keys is told.
    event_channels: EventChannels,
    tracking: Tracking,
    watching: Watching,
    monitors: monitor::Monitors,
    /// The backup under way, of all shards.
    backup: CommonBackup,
    pub(crate) stats: Stats,
    pub(crate) clock: CommandClock,
    slowlog: Slowlog,
    pub(crate) tickets: HashMap<Ticket, ConnectionId, KeyHashBuilder>,
    /// Why what a session waits for cannot be had.
    pub(crate) failures: HashMap<ConnectionId, EngineError, KeyHashBuilder>,
    exclusive: Option<ConnectionId>,
    /// All shards quiesce: requests of clients wait.
    quiesces: bool,
    /// The request under way has waited for others' locks.
    passes_locks: bool,
    /// Names this run of the server.
    run: u64,
    /// When the request under way was run first, if it has been before.
    running_since: Option<u64>,
    /// The command under way is one of EXEC's.
    pub(crate) executing_queue: bool,
    blocking: Blocking,
    pause: pause::Pause,
    /// What was loaded and waits for room.
    late_loads: VecDeque<sourced::LateLoad>,
    hub: Hub,
    /// The users of all shards.
    pub(crate) registry: Arc<UserRegistry>,
    /// What of them this shard goes by.
    pub(crate) seen: SeenUsers,
    /// Tasks of flows that are done elsewhere.
    outside: flows::ExternalEffects,
    probes: Probes,
    /// Who asked last, while other shards have not told their figures.
    probing: Option<metrics::Probing>,
    notices: notices::Notices,
    /// The embedded store; it ends after the hub, which its threads tell.
    keeping: Option<EmbeddedStore>,
    /// The modules that clients sent before the start, until the other shards have them, too.
    sent: Vec<SentModule>,
    /// Sessions that wait for the end of `exclusive`, or of `quiesces`.
    blocked_sessions: Vec<ConnectionId>,
    /// What memcached's sessions share.
    pub(crate) memcached: Memcached,
    stopping: bool,
    /// Clients of other shards watch or track what is here.
    serves_others: bool,
    /// The other shards, where there are several.
    pub(crate) shards: Option<Box<Shards>>,
    /// What a crash has left by half, while it is finished; at the first shard.
    redoing: Option<Box<remote::Redoing>>,
    /// What this shard does in a move, where somebody else has shards wait for one another.
    #[cfg(test)]
    pub(crate) move_part: Option<remote::MovePart>,
    /// Clients that others accepted, to be served here.
    new_clients: Vec<Arrival>,
    /// Who comes in.
    entrance: Entrance,
    pub(crate) time: Time,
}

/// Adds the flows that the settings name, and those that clients added before the start, over the journal that is kept.
fn begin_flows(
    config: &Config,
    keeping: Option<&mut EmbeddedStore>,
    node: &mut Node,
) -> Result<(), ConfigError> {
    if let Some(keeping) = keeping {
        node.set_journal(Box::new(keeping.journal()?));
    }
    for flow in &config.flows {
        flows::add(node, &flow.words()?)
            .map_err(|why| ConfigError(format!("flow '{}': {why}", flow.name)))?;
    }
    for words in &config.kept_flows {
        flows::add(node, words).map_err(|why| {
            let text = redact_words(&words.join(" "));
            ConfigError(format!("data-dir: the kept flow '{text}' is refused: {why}"))
        })?;
    }
    Ok(())
}

/// Says of which keys a shard is the home, and finds what its store has noted of steps with other shards.
fn place(
    shards: Option<&Shards>,
    mut keeping: Option<&mut EmbeddedStore>,
    node: &mut Node,
) -> Result<(), ConfigError> {
    let Some(shards) = shards else { return Ok(()) };
    let (me, count) = (shards.me, shards.outbox.shards());
    let placement = match &mut keeping {
        Some(keeping) => keeping.placement(me, count)?,
        None => Placement::even(count),
    };
    node.engine_mut().set_placement(me, placement);
    match keeping {
        Some(keeping) => keeping.find_records(me, shards.outbox.transport().recorded()),
        None => Ok(()),
    }
}

impl Resp {
    /// A service with the tables and joins that `config` declares, and with the modules that clients sent earlier: those
    /// that the first shard knows, where this is another one.
    pub(crate) fn new(
        config: Config,
        shards: Option<Box<Shards>>,
        sent: Option<Vec<SentModule>>,
    ) -> Result<Self, ConfigError> {
        Self::behind(config, shards, sent, None)
    }

    /// The same, where `replica` is the log that writes go to first.
    pub(crate) fn behind(
        mut config: Config,
        shards: Option<Box<Shards>>,
        sent: Option<Vec<SentModule>>,
        replica: Option<ReplicaEnd>,
    ) -> Result<Self, ConfigError> {
        let (secret, random) = (draw_secret(), || RandomState::new().hash_one(1));
        let run = shards.as_ref().map_or_else(random, |shards| shards.outbox.run());
        let common = shards.as_ref().map(|shards| shards.common_memory());
        let gauge = Gauge::new(common).map_err(|error| ConfigError(format!("memory: {error}")))?;
        let mut node =
            Node::new(Settings { limits: config.limits.to_limits(), secret, draws: random() });
        provide_disk(&config, shards.as_deref(), &gauge, &mut node)?;
        let me = shards.as_ref().map_or(Shard(0), |shards| shards.me);
        let common = shards.as_ref().map(|shards| shards.outbox.transport().sources().clone());
        let mut hub = Hub::new(me, common.unwrap_or_else(|| Common::new(1)));
        let mut keeping = EmbeddedStore::open(&mut config, &hub.inbox, me, replica)?;
        place(shards.as_deref(), keeping.as_mut(), &mut node)?;
        node.engine_mut().begin_versions(keeping.as_ref().map_or(0, EmbeddedStore::version_floor));
        let kept = keeping.as_mut().map(EmbeddedStore::take_modules).unwrap_or_default();
        let sent = sent.unwrap_or(kept);
        provide_functions(&config, &sent, secret, &mut node)?;
        provide_store(&config, keeping.as_ref(), &gauge, &mut node)?;
        sourced::begin(&config, &mut hub, node.engine_mut(), me)?;
        for join in &config.joins {
            node.engine_mut()
                .join_add(&join.name, &join.spec, false)
                .map_err(|error| ConfigError(format!("join '{}': {error}", join.name)))?;
        }
        begin_flows(&config, keeping.as_mut(), &mut node)?;
        let registry = begin_users(&config, shards.as_deref(), &node)?;
        node.set_owners(crate::users::owners(registry.clone()));
        let outside = flows::ExternalEffects::new(&config, hub.inbox.bell())?;
        let transport = shards.as_ref().map(|shards| shards.outbox.transport());
        let heard = transport.map(|transport| transport.heard().clone()).unwrap_or_default();
        let slow = transport.map(|transport| transport.slow().clone()).unwrap_or_default();
        let spreads = transport.map(|transport| transport.spreads().clone()).unwrap_or_default();
        let mut service = Self {
            entrance: Entrance::begin(&config, transport.map(|it| it.entrance()))?,
            bounds: Bounds::of(&config.clients),
            limits: Limits::for_values(config.limits.value_bytes_max),
            limits_before_authentication: Limits::for_values(config.limits.value_bytes_max),
            node,
            parser: RequestParser::new(),
            scout: RequestParser::new(),
            channels: Channels::new(secret, heard),
            event_channels: EventChannels::default(),
            tracking: Tracking::new(secret, shards.as_ref().map_or(Shard(0), |it| it.me)),
            monitors: monitor::Monitors::of(transport),
            backup: transport.map(|it| it.backup().clone()).unwrap_or_default(),
            watching: Watching::new(secret, run, shards.as_deref()),
            stats: Stats::new(random(), spreads),
            clock: CommandClock::new(&config.observe),
            slowlog: Slowlog::new(slow),
            tickets: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            failures: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            exclusive: None,
            quiesces: false,
            passes_locks: false,
            run,
            running_since: None,
            executing_queue: false,
            blocking: Blocking::default(),
            pause: pause::Pause::default(),
            late_loads: VecDeque::new(),
            hub,
            registry,
            seen: SeenUsers::default(),
            outside,
            probes: Probes::new(),
            probing: None,
            notices: notices::Notices::default(),
            keeping,
            sent: if shards.is_some() { sent } else { Vec::new() },
            blocked_sessions: Vec::new(),
            memcached: Memcached::default(),
            stopping: false,
            serves_others: false,
            shards,
            redoing: None,
            #[cfg(test)]
            move_part: None,
            new_clients: Vec::new(),
            time: Time::default(),
            config: Config::default(),
            lowered: Config::default(),
            gauge: Rc::new(gauge),
            clients_share: usize::MAX,
            clients_bytes_max: usize::MAX,
            at_start: Sample::default(),
            looked_at: 0,
            program: ProgramPages::of_server(),
        };
        service.gauge.set_program(service.gauge.sample().files / PROGRAM_SHARE);
        service.program.forget();
        service.check_memory(&config)?;
        service.apply(config);
        service.see_users();
        service.at_start = service.memory_sample();
        service.gauge.at_start(service.at_start.resident);
        Ok(service)
    }

    /// Takes the modules that clients sent before the start.
    pub(crate) fn take_sent(&mut self) -> Vec<SentModule> {
        core::mem::take(&mut self.sent)
    }

    /// Lets go of the pages of the program that will not be needed again soon.
    pub(crate) fn forget_program(&mut self) {
        self.program.forget();
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
        self.stats.times.set_spreads(config.observe.latency_tracking);
        self.slowlog.shrink(config.observe.slowlog_entries_max);
        self.node.engine_mut().set_function_limits(&lowered.functions.to_limits());
        self.node.set_callable(&lowered.functions.functions_callable);
        let slice = config.clients.slice_rows;
        self.node.engine_mut().set_long_read_bytes_max(lowered.clients.output_bytes_max);
        self.node.engine_mut().set_slice((slice > 0).then_some(slice));
        self.node.engine_mut().set_limits(lowered.limits.to_limits());
        self.config = config;
        self.lowered = lowered;
        self.apply_keyspace_events();
    }

    /// Whether clients must give a password.
    pub(crate) fn needs_password(&self) -> bool {
        let state = self.registry.lock();
        let user = state.users.default_user();
        !(user.nopass && user.enabled)
    }

    /// Looks ahead at the next requests and fetches what they will touch here; gives how many bytes
    /// they take. `is_own`: no other shard is the home of their keys.
    fn warm(&mut self, input: &[u8], is_own: bool) -> usize {
        let mut keys: [&[u8]; WARM_MAX] = [&[]; WARM_MAX];
        let mut seen = 0;
        let mut count = 0;
        let mut looked_at = 0;
        while looked_at < WARM_MAX {
            looked_at += 1;
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
                if let Some(key) = input.get(start..start.wrapping_add(key.len()))
                    && (is_own || self.node.engine().owns(key))
                {
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

    /// Whether the request under way is one of a transaction's.
    fn in_transaction(&self, session: &Session) -> bool {
        self.executing_queue || session.in_transaction()
    }

    /// Parses and executes what is complete in `work.input`.
    #[inline]
    fn batch(&mut self, parser: &mut RequestParser, work: &mut Turn<'_>) -> Served {
        let input = work.input;
        let mut consumed = 0;
        let mut warm_until = if input.len() < WARM_BYTES_MIN { input.len() } else { 0 };
        let is_own = self.shards.is_none();
        self.clock.begin();
        let stopped = loop {
            if *work.requests_left == 0 || work.out.len() + work.held.bytes() >= work.out_bytes_full
            {
                break Stopped::Paused;
            }
            if self.serves_others && self.has_news_behind_answers(work) {
                break Stopped::Paused;
            }
            if consumed >= warm_until && warm_until < input.len() {
                warm_until = consumed + self.warm(&input[consumed..], is_own);
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
                        Flow::Parked => break Self::parked(work),
                        Flow::Close => break Stopped::Closing,
                    }
                }
                Parsed::Error(error) => {
                    let before = work.out.len();
                    encoder(work).error("ERR", format_args!("{error}"));
                    self.note_error(before, work);
                    Self::keep_order(before, work);
                    break Stopped::Closing;
                }
            }
        };
        Served { consumed, stopped }
    }
}

/// Gives the node the embedded store, if there is one.
fn provide_store(
    config: &Config,
    keeping: Option<&EmbeddedStore>,
    gauge: &Gauge,
    node: &mut Node,
) -> Result<(), ConfigError> {
    let Some(keeping) = keeping else { return Ok(()) };
    gauge.set_store(keeping.keeper(), keeping.bytes_taken());
    let (keeper, tables) = (Box::new(keeping.keeper()), keeping.tables());
    let kept = node.engine_mut().set_base_store(keeper, &tables, config.data.data_plain);
    kept.map_err(|error| ConfigError(format!("data-dir: {error}")))
}

/// The users that all shards share; the first shard has those of the settings.
fn begin_users(
    config: &Config,
    shards: Option<&Shards>,
    node: &Node,
) -> Result<Arc<UserRegistry>, ConfigError> {
    let registry = shards.map(|shards| shards.outbox.transport().users().clone());
    let registry = registry.unwrap_or_default();
    if shards.is_none_or(|shards| shards.me == Shard(0)) {
        registry.begin(config)?;
        registry.begin_definitions(config, node);
    }
    Ok(registry)
}

/// Gives the node its part of the spill directory, if there is one.
fn provide_disk(
    config: &Config,
    shards: Option<&Shards>,
    gauge: &Gauge,
    node: &mut Node,
) -> Result<(), ConfigError> {
    if config.spill.spill_dir.is_empty() {
        return Ok(());
    }
    let path = place_of(&config.spill.spill_dir, shards);
    let size = config.spill.spill_bytes_max.0 / gauge.shards() as u64;
    let directory = Directory::open_one_of(&path, size, gauge.shards())
        .map_err(|error| ConfigError(format!("spill-dir '{}': {error}", path.display())))?;
    node.engine_mut().set_spill(Box::new(directory), config.spill.spill_value_bytes_min);
    gauge.set_apart(headwater_spill::MEMORY_BYTES as usize / 2);
    Ok(())
}

/// Where a shard has its files below `folder`.
fn place_of(folder: &str, shards: Option<&Shards>) -> PathBuf {
    let folder = PathBuf::from(folder);
    match shards {
        None => folder,
        Some(shards) => folder.join(format!("shard-{}", shards.me.0)),
    }
}

/// A secret that no client can know: the state's keys are from the system's randomness. What is drawn for other uses, and
/// may come to light by them, is from another state.
fn draw_secret() -> Secret {
    if cfg!(test) {
        // A simulation is the same each time.
        return Secret::fixed(1);
    }
    let drawn = RandomState::new();
    Secret::new(array::from_fn(|number| drawn.hash_one(number)))
}

/// Gives the node its host of functions, with the modules of the settings, and those that clients sent before.
fn provide_functions(
    config: &Config,
    sent: &[SentModule],
    secret: Secret,
    node: &mut Node,
) -> Result<(), ConfigError> {
    let (settings, limits) = (&config.functions, config.functions.to_limits());
    let directory =
        (!settings.functions_dir.is_empty()).then(|| settings.functions_dir.clone().into());
    let mut host = Host::new(&limits, directory, secret)
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
fn encoder<'w>(work: &'w mut Turn<'_>) -> SessionReply<'w> {
    let session = &work.connection.session;
    if session.form == Form::Typed {
        return SessionReply::Typed(AnswerWriter::new(work.out));
    }
    let encoder = if session.expects() {
        // What goes behind others' answers is moved about as bytes.
        Encoder::new(work.out, session.version)
    } else {
        Encoder::holding(work.out, work.held, session.version)
    };
    SessionReply::Client(encoder.with_blob_errors(session.blob_errors))
}
