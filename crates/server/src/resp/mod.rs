//! The service: what all sessions share, and those in RESP: sessions, and every command that is not about stored data.
//!
//! A batch of pipelined requests is parsed, executed and answered in one go: [`serve`](crate::service::Service::serve)
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
mod checking;
mod client;
mod clock;
mod cluster;
mod configure;
mod connect;
mod deadline;
mod declared;
mod dispatch;
mod entrance;
mod errors;
mod flows;
mod handover;
mod info;
pub(crate) mod kept;
mod keyspace;
mod loads;
mod long_requests;
mod memory;
mod memory_share;
mod metrics;
mod monitor;
mod notices;
mod owners;
pub(crate) mod parts;
mod pause;
mod reload;
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
mod states;
mod stats;
mod times;
mod tracking;
mod transaction;
mod watching;

#[cfg(test)]
mod tests;

pub(crate) use backups::CommonBackup;
pub(crate) use checking::check_again;
pub use checking::check_config;
pub(crate) use dispatch::foreign;
pub(crate) use entrance::{CommonEntrance, protected};
pub(crate) use info::cpu_seconds;
#[cfg(test)]
pub(crate) use monitor::monitored_example;
pub(crate) use monitor::{CommonMonitors, is_monitored};
pub(crate) use remote::{LockTurn, LockWait, after_of, locked_for_long, pending_of};
pub(crate) use reply::Form;
pub(crate) use rights::NotAllowed;
pub(crate) use session::{Origin, Session, Waiting};
pub(crate) use slowlog::{SlowCommands, Told};
pub(crate) use states::CommonCounts;
pub(crate) use times::Spreads;
#[cfg(test)]
pub(crate) use tracking::copies_example;
pub(crate) use tracking::{Note as TrackingNote, are_copies};
#[cfg(test)]
pub(crate) use watching::changes_example;
pub(crate) use watching::{Note, are_changes};

use crate::handover::greeting::STATE_BYTES_MAX;
use crate::http::Probes;
use crate::keeping::{EmbeddedStore, SentModule};
use crate::log::event;
use crate::memcached::Memcached;
use crate::memory::{ClientShare, Gauge};
use crate::replicated::ReplicaEnd;
use crate::service::{Bounds, Served, Stopped, Time, Work};
use crate::shards::Shards;
use crate::sources::{Common, Hub};
use crate::users::{SeenUsers, UserRegistry};
use channels::Channels;
use clock::CommandClock;
use entrance::Entrance;
use errors::is_refusal;
use headwater_base::functions::Source;
use headwater_base::hash::Secret;
use headwater_base::text::redact_words;
use headwater_base::{Placement, Shard};
use headwater_command::Reply;
use headwater_config::{Config, ConfigError, EventChannels, Module};
use headwater_engine::{Settings, WARM_MAX};
use headwater_functions::Host;
use headwater_node::Node;
use headwater_protocol::resp::{Encoder, Limits, Parsed, RequestParser};
use headwater_router::AnswerWriter;
use headwater_spill::Directory;
use parts::{
    Admission, Figures, InForce, MemoryBound, OtherShards, Parsers, Pushes, Stores, Waits,
};
use reply::SessionReply;
use slowlog::Slowlog;
use stats::Stats;
use std::array;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
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

/// Serves the clients of a shard: it executes their requests, and answers them.
pub(crate) struct ShardService {
    pub(crate) settings: InForce,
    pub(crate) bound: MemoryBound,
    pub(crate) node: Node,
    pub(crate) parsers: Parsers,
    pub(crate) pushes: Pushes,
    pub(crate) figures: Figures,
    pub(crate) waits: Waits,
    pub(crate) admission: Admission,
    pub(crate) stores: Stores,
    /// What memcached's sessions share.
    pub(crate) memcached: Memcached,
    pub(crate) others: OtherShards,
    /// Names this run of the server.
    run: u64,
    stopping: bool,
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
        let Err(why) = flows::add(node, words) else { continue };
        let flow = redact_words(&words.join(" "));
        // One that a join stands in the way of is there, so that it can be dropped, or the join.
        node.set_takes_kept_flows(true);
        let taken = flows::add(node, words);
        node.set_takes_kept_flows(false);
        taken.map_err(|why| {
            ConfigError(format!("data-dir: the kept flow '{flow}' is refused: {why}"))
        })?;
        event!(warn, "flows", "flow_in_vain", flow, why, "drop the flow, or the join");
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
        None if shards.outbox.are_apart() => Placement::by_slots(count),
        None => Placement::even(count),
    };
    node.engine_mut().set_placement(me, placement);
    match keeping {
        Some(keeping) => keeping.find_records(me, shards.outbox.transport().recorded()),
        None => Ok(()),
    }
}

impl ShardService {
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
        // A simulation is the same each time.
        let draws = if cfg!(test) { 1 } else { random() };
        let mut node = Node::new(Settings { limits: config.limits.to_limits(), secret, draws });
        node.engine_mut().set_stopwatch((!cfg!(test)).then_some(times::now));
        gauge.set_on_its_way(crate::io_threads::on_its_way(
            config.listen.io_threads.saturating_sub(1),
        ));
        provide_disk(&config, shards.as_deref(), &gauge, &mut node)?;
        let me = shards.as_ref().map_or(Shard(0), |shards| shards.me);
        let common = shards.as_ref().map(|shards| shards.outbox.transport().sources().clone());
        let mut hub = Hub::new(me, common.unwrap_or_else(|| Common::new(me, 1)));
        gauge.set_sources(hub.inbox.memory());
        let mut keeping = EmbeddedStore::open(&mut config, &hub.inbox, me, replica)?;
        place(shards.as_deref(), keeping.as_mut(), &mut node)?;
        node.engine_mut().begin_versions(keeping.as_ref().map_or(0, EmbeddedStore::version_floor));
        let kept = keeping.as_mut().map(EmbeddedStore::take_modules).unwrap_or_default();
        let sent = sent.unwrap_or(kept);
        node.engine_mut().set_functions(Box::new(begin_functions(&config, &sent, secret)?));
        provide_store(&config, keeping.as_ref(), &gauge, &mut node)?;
        sourced::begin(&config, &mut hub, node.engine_mut())?;
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
        let entrance = Entrance::begin(&config, transport.map(|it| it.entrance()))?;
        let limits = || Limits::for_values(config.limits.value_bytes_max);
        let mut service = Self {
            settings: InForce {
                bounds: Bounds::of(&config.clients),
                limits: limits(),
                limits_before_authentication: limits(),
                limits_of_greeting: limits(),
                config: Config::default(),
                lowered: Config::default(),
                source: None,
            },
            bound: MemoryBound::new(gauge),
            node,
            parsers: Parsers::new(),
            pushes: Pushes {
                channels: Channels::new(secret, heard),
                event_channels: EventChannels::default(),
                tracking: Tracking::new(secret, me),
                watching: Watching::new(secret, run, shards.as_deref()),
                monitors: monitor::Monitors::of(transport),
                notices: notices::Notices::default(),
                serves_others: false,
            },
            figures: Figures {
                stats: Stats::new(random(), spreads),
                clock: CommandClock::new(&config.observe),
                slowlog: Slowlog::new(slow),
                probes: Probes::new(),
                probing: None,
                states: states::States::of(shards.as_deref()),
            },
            waits: Waits::new(secret),
            admission: Admission {
                registry,
                seen: SeenUsers::default(),
                entrance,
                new_clients: Vec::new(),
            },
            stores: Stores {
                hub,
                outside,
                keeping,
                backup: transport.map(|it| it.backup().clone()).unwrap_or_default(),
                sent: if shards.is_some() { sent } else { Vec::new() },
            },
            memcached: Memcached::default(),
            others: OtherShards::new(shards),
            run,
            stopping: false,
            time: Time::default(),
        };
        service.bound.gauge.set_program(service.bound.gauge.sample().files / PROGRAM_SHARE);
        service.bound.program.forget();
        service.bound.check_memory(&config)?;
        service.apply(config);
        service.see_users();
        service.bound.at_start = service.bound.memory_sample();
        service.bound.gauge.at_start(service.bound.at_start);
        Ok(service)
    }

    /// The node, to load data before the start.
    pub(crate) fn node_mut(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Puts settings into force.
    fn apply(&mut self, config: Config) {
        if self.settings.config.memory != config.memory {
            self.apply_memory(&config);
        }
        let lowered = ClientShare::of(&config).lower(&config);
        self.settings.bounds = Bounds::of(&lowered.clients);
        self.settings.limits = lowered.protocol_limits();
        let before = self.settings.limits.before_authentication();
        let greeting = Limits::for_values(STATE_BYTES_MAX).bulk_bytes_max;
        self.settings.limits_of_greeting =
            Limits { bulk_bytes_max: before.bulk_bytes_max.max(greeting), ..before };
        self.settings.limits_before_authentication = before;
        self.memcached.limits = lowered.memcached_limits();
        self.figures.clock = CommandClock::new(&config.observe);
        self.figures.stats.times.set_spreads(config.observe.latency_tracking);
        self.figures.slowlog.shrink(config.observe.slowlog_entries_max);
        self.node.engine_mut().set_function_limits(&lowered.functions.to_limits());
        self.node.set_callable(&lowered.functions.functions_callable);
        let slice = config.clients.slice_rows;
        self.node.engine_mut().set_long_read_bytes_max(lowered.clients.output_bytes_max);
        self.node.engine_mut().set_slice((slice > 0).then_some(slice));
        self.node.engine_mut().set_limits(lowered.limits.to_limits());
        self.settings.config = config;
        self.settings.lowered = lowered;
        self.apply_keyspace_events();
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
            let Parsed::Request { consumed } =
                self.parsers.scout.parse(rest, &self.settings.limits)
            else {
                // The look ahead ends within a request: the next one starts afresh.
                self.parsers.scout = RequestParser::new();
                seen = input.len();
                break;
            };
            let args = self.parsers.scout.args(rest);
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

    /// Parses and executes what is complete in `work.input`.
    #[inline]
    fn batch(&mut self, parser: &mut RequestParser, work: &mut Turn<'_>) -> Served {
        let input = work.input;
        let mut consumed = 0;
        let mut warm_until = if input.len() < WARM_BYTES_MIN { input.len() } else { 0 };
        let is_own = self.others.shards.is_none();
        self.figures.clock.begin();
        let stopped = loop {
            if *work.requests_left == 0 || work.out.len() + work.held.bytes() >= work.out_bytes_full
            {
                break Stopped::Paused;
            }
            if self.pushes.serves_others && self.has_news_behind_answers(work) {
                break Stopped::Paused;
            }
            if consumed >= warm_until && warm_until < input.len() {
                warm_until = consumed + self.warm(&input[consumed..], is_own);
            }
            let session = &work.connection.session;
            let limits = if session.authenticated {
                &self.settings.limits
            } else if session.commands == 0 && self.replica().is_some() {
                &self.settings.limits_of_greeting
            } else {
                &self.settings.limits_before_authentication
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
                    self.pushes.tell_own(work);
                    match flow {
                        Flow::Next => {}
                        Flow::Parked => break Self::parked(work),
                        Flow::Close => break Stopped::Closing,
                    }
                }
                Parsed::Error(error) => {
                    let before = work.out.len();
                    encoder(work).error("ERR", format_args!("{error}"));
                    self.figures.note_error(before, work);
                    Self::keep_order(before, work);
                    break Stopped::Closing;
                }
            }
        };
        Served { consumed, stopped }
    }
}

impl Stores {
    /// Takes the modules that clients sent before the start.
    pub(crate) fn take_sent(&mut self) -> Vec<SentModule> {
        core::mem::take(&mut self.sent)
    }
}

impl MemoryBound {
    /// Lets go of the pages of the program that will not be needed again soon.
    pub(crate) fn forget_program(&mut self) {
        self.program.forget();
    }
}

impl Admission {
    /// Whether clients must give a password.
    pub(crate) fn needs_password(&self) -> bool {
        let state = self.registry.lock();
        let user = state.users.default_user();
        !(user.nopass && user.enabled)
    }
}

impl Waits {
    /// Whether the request under way is one of a transaction's.
    fn in_transaction(&self, session: &Session) -> bool {
        self.executing_queue || session.in_transaction()
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
    gauge.set_store(&keeping.keeper(), keeping.bytes_taken());
    let (keeper, tables) = (Box::new(keeping.keeper()), keeping.tables());
    let kept = node.engine_mut().set_base_store(keeper, &tables, config.data.data_plain);
    kept.map_err(|error| ConfigError(format!("data-dir: {error}")))?;
    let time = keeping.time_before().map_err(|why| ConfigError(format!("data-dir: {why}")))?;
    node.advance(time);
    Ok(())
}

/// The users that all shards of a process share; its first shard has those of the settings.
fn begin_users(
    config: &Config,
    shards: Option<&Shards>,
    node: &Node,
) -> Result<Arc<UserRegistry>, ConfigError> {
    let registry = shards.map(|shards| shards.outbox.transport().users().clone());
    let registry = registry.unwrap_or_default();
    if shards.is_none_or(Shards::tells_of_process) {
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

/// A host of functions with the modules of the settings, and those that clients sent before.
fn begin_functions(
    config: &Config,
    sent: &[SentModule],
    secret: Secret,
) -> Result<Host, ConfigError> {
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
    Ok(host)
}

/// Where the answers to this connection go.
#[inline]
pub(crate) fn encoder<'w>(work: &'w mut Turn<'_>) -> SessionReply<'w> {
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
