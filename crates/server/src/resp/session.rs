//! What the server knows of one client.

use super::blocking::Blocked;
use super::remote::Coordinated;
use super::reply::Form;
use super::rights::NotAllowed;
use super::tracking::Tracks;
use crate::connection::ConnectionId;
use crate::handover::greeting::{Nonce, Tag};
use crate::memcached;
use crate::shards::Awaiting;
use headwater_acl::User;
use headwater_base::Shard;
use headwater_command::{Args, OwnedArgs};
use headwater_engine::Ticket;
use headwater_node::{Positions, WaitId};
use headwater_protocol::resp::{RequestParser, Version};
use headwater_router::{Copies, Pending, TransactionId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// What an entry of a table of names takes besides the name, about.
const ENTRY_BYTES: usize = 64;

/// Whether the client is answered, as CLIENT REPLY sets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Answering {
    /// Every request is answered.
    #[default]
    On,
    /// None is.
    Off,
    /// This request, which asked for it, and the next one are not.
    SkipNext,
    /// This request is not.
    Skip,
}

/// Requests that were queued by MULTI.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The requests, in order.
    pub(crate) requests: Vec<OwnedArgs>,
    /// Memory that they occupy.
    pub(crate) bytes: usize,
    /// One of them may need more memory.
    pub(crate) denies_oom: bool,
    /// One of them writes to the store, and not by removing alone.
    pub(crate) stores: bool,
    /// A request could not be queued: EXEC will refuse.
    pub(crate) broken: bool,
    /// Those that the user may not send any more, by their places: EXEC answers each with an error, and executes the rest.
    pub(crate) refused: BTreeMap<usize, NotAllowed>,
    /// When EXEC came, as [`super::times::now`] tells it.
    pub(crate) since: Option<u64>,
    /// How often EXEC has looked whether all is there that it needs.
    pub(crate) looks: u32,
}

/// What a parked session goes on with.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// This request, which has written nothing.
    Request(OwnedArgs),
    /// This request, which has written nothing: until its data is there, or its next slice comes.
    Data(Postponed),
    /// This request, whose answer is given in slices: until the client has taken what is there of it.
    Sending(Sending),
    /// EXEC, from this request of its queue on; the earlier ones have been answered.
    Exec {
        /// The whole queue.
        queue: Box<Queue>,
        /// The first request without an answer.
        next: usize,
    },
    /// This request, which waits for another client.
    Blocked(Blocked),
    /// This request, which is to show what was written at other shards.
    /// At most until this moment of the server's life, if there is one.
    Shards(OwnedArgs, WaitId, Option<u64>),
    /// This request, while others are at the partitions of its keys.
    Locked(OwnedArgs),
    /// What concerns several shards: in each of its steps.
    Coordinated(Box<Coordinated>),
    /// What another shard has asked for, which is no request of a client: its frame.
    Asked(Vec<u8>),
    /// RANGE.WATCH: until the watch of this number has begun at all homes of its range.
    Watch(u32),
}

impl Waiting {
    /// The request that waits, where it is one of a client.
    pub(crate) fn request(&self) -> Option<Args<'_>> {
        match self {
            Self::Request(request) | Self::Shards(request, ..) | Self::Locked(request) => {
                Some(request.args())
            }
            Self::Data(postponed) => Some(postponed.request.args()),
            Self::Sending(sending) => Some(sending.request.args()),
            Self::Exec { queue, next } => queue.requests.get(*next).map(OwnedArgs::args),
            Self::Blocked(_) | Self::Coordinated(_) | Self::Asked(_) | Self::Watch(_) => None,
        }
    }
}

/// A request that is run again when its data is there, or when it is its turn to go on.
#[derive(Debug)]
pub(crate) struct Postponed {
    /// The request.
    pub(crate) request: OwnedArgs,
    /// Who is woken.
    pub(crate) ticket: Ticket,
    /// The moment of the server's life at which it was run first, in milliseconds.
    pub(crate) since: u64,
    /// Nobody misses it when its client has gone, because it only reads.
    pub(crate) reads: bool,
}

/// A request that reads, whose answer was settled at one moment, and of which the next slice is given when it is run again.
#[derive(Debug)]
pub(crate) struct Sending {
    /// The request.
    pub(crate) request: OwnedArgs,
    /// Names what is left of the answer.
    pub(crate) ticket: Ticket,
    /// The moment of the server's life at which it was run first, in milliseconds.
    pub(crate) since: u64,
    /// The beginning of the answer is on its way.
    pub(crate) begun: bool,
}

/// The channels and patterns that a client listens to.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    /// Channels.
    pub(crate) channels: HashSet<Vec<u8>>,
    /// Glob patterns.
    pub(crate) patterns: HashSet<Vec<u8>>,
    /// Channels of SSUBSCRIBE.
    pub(crate) shard_channels: HashSet<Vec<u8>>,
    /// Bytes of all names.
    pub(crate) name_bytes: usize,
}

impl Subscriptions {
    /// Channels and patterns together, those of SSUBSCRIBE too.
    pub(crate) fn count(&self) -> usize {
        self.channels.len() + self.patterns.len() + self.shard_channels.len()
    }
}

/// What a client says about itself.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    /// CLIENT SETNAME.
    pub(crate) name: Vec<u8>,
    /// CLIENT SETINFO LIB-NAME.
    pub(crate) library: Vec<u8>,
    /// CLIENT SETINFO LIB-VER.
    pub(crate) library_version: Vec<u8>,
}

/// A session's part in what several shards do together.
#[derive(Debug, Default)]
pub(crate) enum Across {
    /// None: no other shard has done anything for it.
    #[default]
    Nothing,
    /// The client is here, and other shards have executed requests of it.
    Client(Box<Pending>),
    /// The client is at another shard, and some of its requests are executed here.
    Remote(Box<RemoteSession>),
}

/// What is executed here for a client of another shard.
#[derive(Debug)]
pub(crate) struct RemoteSession {
    /// Where the client is.
    pub(crate) origin: Origin,
    /// Names what is executed.
    pub(crate) id: u64,
    /// The request is a step of a command or a transaction that the client's shard coordinates. Its answer tells the digests of this shard's transactions.
    pub(crate) wants_digests: bool,
    /// The beginning of its answer, while it waits.
    pub(crate) partial: Vec<u8>,
    /// What is kept together with what it writes, and the number of its transaction.
    pub(crate) record: Option<(u64, Vec<u8>)>,
    /// A part of a transaction over several shards is executed.
    pub(crate) part: Option<TransactionPart>,
    /// When the lock that it waits for is given up.
    pub(crate) lock_deadline: Option<u64>,
    /// It has been asked to lock for a transaction, and not to give the lock back.
    pub(crate) is_in_transaction: bool,
    /// The key whose value RENAME has read to put it elsewhere.
    pub(crate) leaving: Option<Box<[u8]>>,
}

/// A part of a transaction over several shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TransactionPart {
    /// Which transaction.
    pub(crate) transaction: TransactionId,
    /// All shards that have a part in it.
    pub(crate) shards: Vec<Shard>,
    /// No further part comes.
    pub(crate) last: bool,
}

/// Where a client is whose requests are executed here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Origin {
    /// Its shard.
    pub(crate) shard: Shard,
    /// Its session there.
    pub(crate) session: ConnectionId,
}

/// One client. What few clients need is boxed: an idle session takes about 150 bytes.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// The protocol version it speaks.
    pub(crate) version: Version,
    /// It has given the password, or none was needed when it came.
    pub(crate) authenticated: bool,
    /// Nothing that it asks is refused for want of a right.
    pub(crate) unrestricted: bool,
    /// Whose rights it has; `None`: it has yet to log in, or its client is at another shard.
    pub(crate) user: Option<Arc<User>>,
    /// Whether it is answered.
    pub(crate) answering: Answering,
    /// It is shown what all clients ask.
    pub(crate) monitors: bool,
    /// It has begun a backup, which ends with it.
    pub(crate) backs_up: bool,
    /// Other shards of the process know its peer and its name.
    pub(crate) is_introduced: bool,
    /// They did, if by another name.
    pub(crate) was_introduced: bool,
    /// CLIENT NO-EVICT.
    pub(crate) no_evict: bool,
    /// CLIENT NO-TOUCH.
    pub(crate) no_touch: bool,
    /// CLIENT CAPA blob-errors.
    pub(crate) blob_errors: bool,
    /// The parser of a request that is incomplete.
    pub(crate) parser: Option<Box<RequestParser>>,
    /// The requests queued since MULTI.
    pub(crate) queue: Option<Box<Queue>>,
    /// Watched keys with their change counts.
    pub(crate) watched: BTreeMap<Vec<u8>, u64>,
    /// Bytes of the watched keys.
    pub(crate) watched_bytes: usize,
    /// What it listens to, if anything.
    pub(crate) subscriptions: Option<Box<Subscriptions>>,
    /// How it is told when what it has read changes, if it is.
    pub(crate) tracking: Option<Box<Tracks>>,
    /// How the client of another shard that it stands for keeps copies of what it reads.
    pub(crate) copies: Copies,
    /// Its watches of ranges.
    pub(crate) watches: Vec<u32>,
    /// Bytes of the watched ranges' ends.
    pub(crate) watch_bytes: usize,
    /// What it goes on with when it is woken.
    pub(crate) waiting: Option<Box<Waiting>>,
    /// Messages that go behind an answer of which only the beginning was given.
    pub(crate) behind_answer: Vec<u8>,
    /// What it says about itself.
    pub(crate) identity: Option<Box<Identity>>,
    /// What is known of a client of memcached's protocol; `None`: it speaks RESP.
    pub(crate) memcached: Option<Box<memcached::Session>>,
    /// Where shards stood after its last writes there.
    pub(crate) positions: Positions,
    /// Since when its request waits until what is here shows them, if it does.
    pub(crate) awaiting: Option<Awaiting>,
    /// The moment of the server's life from which on it had to log in anew, if it had.
    pub(crate) login_from: u64,
    /// What its connection is known by at the node that passes its client on, if one does.
    pub(crate) forwarded: Option<Box<Tag>>,
    /// What was given to who is about to pass a client on, and is to be covered by what comes next.
    pub(crate) nonce: Option<Box<Nonce>>,
    /// What the certificate calls it that its client has shown.
    pub(crate) certificate: Option<Box<str>>,
    /// In which form it is answered.
    pub(crate) form: Form,
    /// What other shards do for it, or for whom this shard does it.
    pub(crate) across: Across,
    /// All shards have come to the position of a source that its next request, which waits, names; or one has refused.
    pub(crate) reached: bool,
    /// Name of the command it sent last.
    pub(crate) last_command: &'static str,
    /// Commands that it has sent.
    pub(crate) commands: u64,
}

impl Session {
    /// What other shards do for it.
    #[inline]
    pub(crate) fn pending(&mut self) -> Option<&mut Pending> {
        match &mut self.across {
            Across::Client(pending) => Some(pending),
            Across::Nothing | Across::Remote(_) => None,
        }
    }

    /// The same, to look at.
    #[inline]
    pub(crate) fn pending_requests(&self) -> Option<&Pending> {
        match &self.across {
            Across::Client(pending) => Some(pending),
            Across::Nothing | Across::Remote(_) => None,
        }
    }

    /// Bytes of answers and messages that wait for answers of other shards.
    pub(crate) fn held_bytes(&self) -> usize {
        let behind = self.behind_answer.len();
        match &self.across {
            Across::Client(pending) => pending.held_bytes() + behind,
            Across::Nothing | Across::Remote(_) => behind,
        }
    }

    /// Puts a message behind an answer of which only the beginning is on its way: within it no client takes a message for one.
    /// `false`: there is no such answer.
    pub(crate) fn put_behind_answer(&mut self, parts: &[&[u8]]) -> bool {
        let is_begun =
            matches!(self.waiting.as_deref(), Some(Waiting::Exec { .. } | Waiting::Sending(_)));
        if is_begun {
            parts.iter().for_each(|part| self.behind_answer.extend_from_slice(part));
            return true;
        }
        self.pending().is_some_and(|pending| pending.is_in_answer() && pending.tell(None, parts))
    }

    /// Puts a message of which something at `home` (or somewhere) is the cause behind the answers that it goes behind.
    /// `false`: none is in its way.
    #[inline]
    pub(crate) fn put_behind(&mut self, home: Option<Shard>, parts: &[&[u8]]) -> bool {
        if self.put_behind_answer(parts) {
            return true;
        }
        self.pending().is_some_and(|pending| pending.tell(home, parts))
    }

    /// Whether answers of other shards are still to come.
    #[inline]
    pub(crate) fn expects(&self) -> bool {
        matches!(&self.across, Across::Client(pending) if !pending.is_done())
    }

    /// Whether only a few commands are allowed in RESP2, because messages may come at any time.
    pub(crate) fn is_subscriber(&self) -> bool {
        self.subscriptions.is_some() || !self.watches.is_empty()
    }

    /// What it says about itself, to change it.
    pub(crate) fn identity_mut(&mut self) -> &mut Identity {
        self.identity.get_or_insert_default()
    }

    /// Whether other shards do as one step what it has asked: that goes on to the end, whatever becomes of its client.
    #[inline]
    pub(crate) fn coordinates(&self) -> bool {
        matches!(self.waiting.as_deref(), Some(Waiting::Coordinated(_)))
    }

    /// Whether its request waits until others are done with the partitions of its keys.
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self.waiting.as_deref(), Some(Waiting::Locked(_)))
    }

    /// As [`Session::watched_keys`], with these besides.
    pub(crate) fn watched_keys_with(&self, keys: Args<'_>) -> usize {
        let elsewhere = self.pending_requests().map(Pending::watched);
        let is_new = |key: &&[u8]| {
            !self.watched.contains_key(*key) && elsewhere.is_none_or(|keys| !keys.contains(*key))
        };
        self.watched_keys() + keys.iter().filter(is_new).collect::<BTreeSet<_>>().len()
    }

    /// Keys that it watches for its next transaction, at whatever shard.
    pub(crate) fn watched_keys(&self) -> usize {
        let elsewhere = match &self.across {
            Across::Client(pending) => pending.watched().len(),
            Across::Nothing => 0,
            // Its client's session counts them.
            Across::Remote(_) => return 0,
        };
        self.watched.len() + elsewhere
    }

    /// What is executed here for a client of another shard.
    #[inline]
    pub(crate) fn remote(&mut self) -> Option<&mut RemoteSession> {
        match &mut self.across {
            Across::Remote(remote) => Some(remote),
            Across::Nothing | Across::Client(_) => None,
        }
    }

    /// The client at another shard for which something is executed here.
    pub(crate) fn remote_client(&self) -> Option<ConnectionId> {
        match &self.across {
            Across::Remote(remote) => Some(remote.origin.session),
            Across::Nothing | Across::Client(_) => None,
        }
    }

    /// Whether its client is at another shard.
    #[inline]
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.across, Across::Remote(_))
    }

    /// Whether what is executed for it is a step of what its client's shard coordinates, and answers.
    #[inline]
    pub(crate) fn is_step(&self) -> bool {
        matches!(&self.across, Across::Remote(remote) if remote.wants_digests)
    }

    /// Whether its request waits for another client, and has not done its work.
    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(self.waiting.as_deref(), Some(Waiting::Blocked(_)))
    }

    /// Whether a part of a transaction over several shards is executed for it.
    pub(crate) fn in_transaction(&self) -> bool {
        matches!(&self.across, Across::Remote(remote) if remote.part.is_some())
    }

    /// Whether it has executed a part of a transaction: the rest is executed as well, whatever becomes of its client.
    pub(crate) fn is_within_exec(&self) -> bool {
        matches!(self.waiting.as_deref(), Some(Waiting::Exec { .. }))
    }

    /// Whether its client may be ended where all clients together take too much.
    pub(crate) fn may_end(&self) -> bool {
        let is_in_transaction = match &self.across {
            Across::Remote(remote) => remote.is_in_transaction,
            Across::Nothing | Across::Client(_) => false,
        };
        !(self.no_evict || is_in_transaction || self.coordinates() || self.is_within_exec())
    }

    /// Whether an answer of it is given in slices.
    pub(crate) fn is_sending(&self) -> bool {
        matches!(self.waiting.as_deref(), Some(Waiting::Sending(_)))
    }

    /// Whether something is under way for it that comes to its end by itself.
    pub(crate) fn is_underway(&self) -> bool {
        let waits = !matches!(self.waiting.as_deref(), None | Some(Waiting::Blocked(_)));
        waits || self.expects() || self.memcached.as_ref().is_some_and(|client| client.parked)
    }

    /// Whether a command of it waits for data or for another client.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some() || self.memcached.as_ref().is_some_and(|client| client.parked)
    }

    /// Bytes that it takes besides itself: what it queues, watches, listens to and waits in.
    pub(crate) fn bytes(&self) -> usize {
        let queue = |queue: &Queue| queue.bytes;
        let waiting = |waiting: &Waiting| match waiting {
            Waiting::Request(request) | Waiting::Shards(request, ..) => request.reserved_bytes(),
            Waiting::Data(postponed) => postponed.request.reserved_bytes(),
            Waiting::Sending(sending) => sending.request.reserved_bytes(),
            Waiting::Exec { queue, .. } => queue.bytes,
            Waiting::Locked(request) => request.reserved_bytes(),
            Waiting::Coordinated(coordinated) => coordinated.bytes(),
            Waiting::Asked(frame) => frame.capacity(),
            Waiting::Blocked(_) | Waiting::Watch(_) => size_of::<Waiting>(),
        };
        // What is watched or listened to stands in a table of the session and in one of all.
        // What is watched for a client of another shard counts there.
        let watched = match &self.across {
            Across::Remote(_) => 0,
            _ => 2 * (self.watched_bytes + self.watched.len() * ENTRY_BYTES),
        };
        let listens = |to: &Subscriptions| 2 * (to.name_bytes + to.count() * ENTRY_BYTES);
        let across = |across: &Across| match across {
            Across::Client(pending) => pending.bytes(),
            Across::Nothing => 0,
            Across::Remote(remote) => size_of::<RemoteSession>() + remote.partial.capacity(),
        };
        let tracks = |tracks: &Tracks| {
            let names: usize = tracks.prefixes.iter().map(Vec::len).sum();
            size_of::<Tracks>() + 2 * (names + tracks.prefixes.len() * ENTRY_BYTES)
        };
        // So do the ends of ranges, with the engine and the history.
        let follows = 4 * self.watch_bytes + self.watches.len() * 4 * ENTRY_BYTES;
        watched
            + follows
            + self.behind_answer.capacity()
            + across(&self.across)
            + self.tracking.as_deref().map_or(0, tracks)
            + self.memcached.as_ref().map_or(0, |_| size_of::<memcached::Session>())
            + self.parser.as_ref().map_or(0, |parser| parser.reserved_bytes())
            + self.queue.as_deref().map_or(0, queue)
            + self.waiting.as_deref().map_or(0, waiting)
            + self.subscriptions.as_deref().map_or(0, listens)
    }

    /// Its name; empty if it has none.
    pub(crate) fn name(&self) -> &[u8] {
        self.identity.as_ref().map_or(&[], |identity| &identity.name)
    }
}
