//! What the service of a shard is made of: each part has one subject, and its methods touch nothing else.

use super::CommonBackup;
use super::blocking::Blocking;
use super::channels::Channels;
use super::clock::CommandClock;
use super::entrance::Entrance;
use super::flows::ExternalEffects;
use super::loads::LateLoad;
use super::metrics::Probing;
use super::monitor::Monitors;
use super::notices::Notices;
use super::pause::Pause;
use super::remote::Redoing;
use super::slowlog::Slowlog;
use super::states::States;
use super::stats::Stats;
use super::tracking::Tracking;
use super::watching::Watching;
use crate::arrival::Arrival;
use crate::connection::ConnectionId;
use crate::http::Probes;
use crate::keeping::{EmbeddedStore, SentModule};
use crate::memory::{Gauge, ProgramPages, Sample};
use crate::reload::SettingsSource;
use crate::service::Bounds;
use crate::shards::Shards;
use crate::sources::Hub;
use crate::users::{SeenUsers, UserRegistry};
use hashbrown::HashMap;
use headwater_base::Shard;
use headwater_base::hash::{KeyHashBuilder, Secret};
use headwater_config::{Config, EventChannels};
use headwater_engine::{EngineError, Ticket};
use headwater_protocol::resp::{Limits, RequestParser};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// The settings, and what follows from them.
pub(crate) struct InForce {
    /// The settings as they were given.
    pub(crate) config: Config,
    /// The settings in force: those, as far as the memory bound allows.
    pub(crate) lowered: Config,
    pub(crate) bounds: Bounds,
    pub(crate) limits: Limits,
    /// The narrower bounds for a client that has yet to give the password.
    pub(crate) limits_before_authentication: Limits,
    /// For the first request of one, which may be another node's, in a cluster.
    pub(crate) limits_of_greeting: Limits,
    /// Where SIGHUP reads the settings; the first shard alone has it.
    pub(super) source: Option<Box<SettingsSource>>,
}

/// What is known of the process's memory, and what clients may take of it.
pub(crate) struct MemoryBound {
    pub(crate) gauge: Rc<Gauge>,
    /// What clients may take together.
    pub(crate) clients_share: usize,
    /// What is executed is of a transaction that was agreed to: what that needs was left free for it.
    pub(crate) is_agreed: bool,
    /// What they may take now: less, where nothing else can go.
    pub(crate) clients_bytes_max: usize,
    /// What was known of memory when the server was ready.
    pub(crate) at_start: Sample,
    /// When memory was looked at last.
    pub(crate) looked_at: u64,
    /// The bound was lowered, and what is too much by it goes bit by bit.
    pub(crate) lowers: bool,
    /// The part of its node's memory that the process may take, as it was told last.
    pub(crate) share: Option<u64>,
    /// Since when there is too little, and nothing else can go: in milliseconds of the server's life.
    pub(crate) lacks_since: Cell<Option<u64>>,
    pub(crate) program: ProgramPages,
}

impl MemoryBound {
    pub(crate) fn new(gauge: Gauge) -> Self {
        Self {
            gauge: Rc::new(gauge),
            clients_share: usize::MAX,
            is_agreed: false,
            clients_bytes_max: usize::MAX,
            at_start: Sample::default(),
            looked_at: 0,
            lowers: false,
            share: None,
            lacks_since: Cell::new(None),
            program: ProgramPages::of_server(),
        }
    }
}

/// What cuts requests out of the input.
pub(crate) struct Parsers {
    /// The parser that all connections share as long as their requests are complete.
    pub(crate) parser: RequestParser,
    /// Parses requests ahead of their execution.
    pub(crate) scout: RequestParser,
}

impl Parsers {
    pub(crate) fn new() -> Self {
        Self { parser: RequestParser::new(), scout: RequestParser::new() }
    }
}

/// What clients are told without asking each time.
pub(crate) struct Pushes {
    pub(super) channels: Channels,
    /// Where what is done to keys is told.
    pub(crate) event_channels: EventChannels,
    pub(super) tracking: Tracking,
    pub(super) watching: Watching,
    pub(super) monitors: Monitors,
    pub(super) notices: Notices,
    /// Clients of other shards watch or track what is here.
    pub(crate) serves_others: bool,
}

/// What INFO, SLOWLOG, LATENCY and `/metrics` show.
pub(crate) struct Figures {
    pub(crate) stats: Stats,
    pub(crate) clock: CommandClock,
    pub(super) slowlog: Slowlog,
    pub(crate) probes: Probes,
    /// Who asked last, while other shards have not told their figures.
    pub(super) probing: Option<Probing>,
    /// What lasts and is told to those who run the server.
    pub(super) states: States,
}

/// What sessions wait for, and what is under way for one of them.
pub(crate) struct Waits {
    pub(crate) tickets: HashMap<Ticket, ConnectionId, KeyHashBuilder>,
    /// Why what a session waits for cannot be had.
    pub(crate) failures: HashMap<ConnectionId, EngineError, KeyHashBuilder>,
    pub(crate) exclusive: Option<ConnectionId>,
    /// All shards quiesce: requests of clients wait.
    pub(crate) quiesces: bool,
    /// The request under way has waited for others' locks.
    pub(crate) passes_locks: bool,
    /// When the request under way was run first, if it has been before.
    pub(crate) running_since: Option<u64>,
    /// The command under way is one of EXEC's.
    pub(crate) executing_queue: bool,
    /// A command of the EXEC under way has waited for other shards for too long.
    pub(super) queue_was_late: bool,
    /// When the transaction under way was begun, as [`super::times::now`] tells it.
    pub(super) transaction_since: Option<u64>,
    pub(super) blocking: Blocking,
    pub(super) pause: Pause,
    /// What was loaded and waits for room.
    pub(super) late_loads: VecDeque<LateLoad>,
    /// Before then they are not tried again.
    pub(super) late_loads_at: u64,
    /// Sessions that wait for the end of `exclusive`, or of `quiesces`.
    pub(crate) blocked_sessions: Vec<ConnectionId>,
}

impl Waits {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            tickets: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            failures: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            exclusive: None,
            quiesces: false,
            passes_locks: false,
            running_since: None,
            executing_queue: false,
            queue_was_late: false,
            transaction_since: None,
            blocking: Blocking::default(),
            pause: Pause::default(),
            late_loads: VecDeque::new(),
            late_loads_at: 0,
            blocked_sessions: Vec::new(),
        }
    }
}

/// Who comes in, and what they may do.
pub(crate) struct Admission {
    /// The users of all shards.
    pub(crate) registry: Arc<UserRegistry>,
    /// What of them this shard goes by.
    pub(crate) seen: SeenUsers,
    pub(super) entrance: Entrance,
    /// Clients that others accepted, to be served here.
    pub(crate) new_clients: Vec<Arrival>,
}

/// Where data is beside memory: sources, the embedded store, backups, what flows do outside.
pub(crate) struct Stores {
    pub(crate) hub: Hub,
    /// Tasks of flows that are done elsewhere.
    pub(super) outside: ExternalEffects,
    /// The embedded store; it ends after the hub, which its threads tell.
    pub(crate) keeping: Option<EmbeddedStore>,
    /// The backup under way, of all shards.
    pub(crate) backup: CommonBackup,
    /// The modules that clients sent before the start, until the other shards have them, too.
    pub(crate) sent: Vec<SentModule>,
}

/// The other shards.
pub(crate) struct OtherShards {
    /// Where there are several.
    pub(crate) shards: Option<Box<Shards>>,
    /// What a crash has left by half, while it is finished; at the first shard.
    pub(crate) redoing: Option<Box<Redoing>>,
    /// What this shard does in a move, where somebody else has shards wait for one another.
    #[cfg(test)]
    pub(crate) move_part: Option<super::remote::MovePart>,
}

impl OtherShards {
    pub(crate) fn new(shards: Option<Box<Shards>>) -> Self {
        Self {
            shards,
            redoing: None,
            #[cfg(test)]
            move_part: None,
        }
    }

    /// All shards but this one.
    pub(super) fn all(&self) -> impl Iterator<Item = Shard> + use<> {
        let shards = self.shards.as_deref();
        let (me, count) = shards.map_or((Shard(0), 0), |it| (it.me, it.outbox.shards()));
        (0..count).map(Shard).filter(move |shard| *shard != me)
    }
}
