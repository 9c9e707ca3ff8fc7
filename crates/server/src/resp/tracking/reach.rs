//! Whom messages about copies reach, and the messages: those whose client is under way go behind its answer, others at once.

use super::message;
use super::note::Note;
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::resp::session::{Origin, Session};
use core::cell::OnceCell;
use headwater_base::Shard;
use headwater_command::{Args, Flags, Spec};
use headwater_protocol::resp::Version;

/// A message, encoded when somebody is to read it.
pub(super) struct Message<'k> {
    /// The keys; `None`: all.
    pub(super) keys: Option<Vec<&'k [u8]>>,
    encoded: [OnceCell<Vec<u8>>; 2],
}

impl<'k> Message<'k> {
    pub(super) fn of(keys: Vec<&'k [u8]>) -> Self {
        Self { keys: Some(keys), encoded: Default::default() }
    }

    pub(super) fn all() -> Self {
        Self { keys: None, encoded: Default::default() }
    }

    /// It, as a client of this version reads it.
    pub(super) fn bytes(&self, version: Version) -> &[u8] {
        self.encoded[usize::from(version == Version::Resp3)].get_or_init(|| match &self.keys {
            Some(keys) => message::changed(version, keys.iter().copied()),
            None => message::all(version),
        })
    }
}

/// All clients, one of which may be under way.
pub(super) struct Reach<'r> {
    pub(super) peers: &'r mut Connections<Session>,
    pub(super) current: Option<&'r mut Connection<Session>>,
    /// What may be unsent for one client, and for all.
    pub(super) most: (usize, usize),
    /// Where that has happened what is told; `None`: in several places.
    pub(super) home: Option<Shard>,
    /// Notes for other shards.
    pub(super) notes: Vec<(Shard, Note)>,
}

impl Reach<'_> {
    pub(super) fn session(&mut self, id: ConnectionId) -> Option<&mut Session> {
        match &mut self.current {
            Some(current) if current.id == id => Some(&mut current.session),
            _ => self.peers.get_mut(id).map(|connection| &mut connection.session),
        }
    }

    /// Writes to a client; to the one under way into `own`.
    pub(super) fn write(&mut self, id: ConnectionId, bytes: &[u8], own: &mut Vec<u8>) {
        if self.current.as_ref().is_some_and(|current| current.id == id) {
            own.extend_from_slice(bytes);
        } else {
            self.peers.tell(id, self.home, bytes, self.most);
        }
    }
}

/// A request that has changed keys: what it says that it writes is its client's own doing.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) origin: Origin,
    pub(super) spec: &'static Spec,
    pub(super) args: Args<'a>,
}

impl Writer<'_> {
    pub(super) fn wrote(&self, key: &[u8]) -> bool {
        let Self { spec, args, .. } = self;
        let mut positions = spec.keys.positions(args.len());
        spec.flags.has(Flags::WRITE) && positions.any(|at| args.get(at) == Some(key))
    }
}

/// Whether a client reads messages.
pub(super) fn hears(session: &Session) -> bool {
    let listens = || {
        let subscriptions = session.subscriptions.as_ref();
        subscriptions.is_some_and(|to| to.channels.contains(message::CHANNEL))
    };
    session.version == Version::Resp3 || listens()
}
