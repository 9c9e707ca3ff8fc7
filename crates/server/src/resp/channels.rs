//! Channels: who listens to what, and the delivery of messages.
//!
//! A message is appended to the pending output of each listener, encoded once per protocol
//! version; it is sent at the end of the turn, with everything else for that client.
//!
//! # Cost
//! Publishing is O(listeners + patterns); listening and leaving are O(log listeners).

use super::reply::SessionReply;
use super::session::{Answering, Subscriptions};
use super::{Flow, Session, ShardService, Turn, encoder};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::resp::parts::Pushes;
use crate::shards::{Heard, Names};
use hashbrown::HashMap;
use headwater_base::hash::{KeyHashBuilder, Secret};
use headwater_command::glob;
use headwater_command::{Args, PubSub, Reply};
use headwater_protocol::resp::{Encoder, Version};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Bytes of messages after which a publisher's turn ends, so that listeners are served.
const PUBLISHED_BYTES_MAX: usize = 1 << 20;

/// Who listens to names of one kind, with what all shards know of them.
struct Listeners {
    by_name: HashMap<Vec<u8>, BTreeSet<ConnectionId>, KeyHashBuilder>,
    names: Arc<Names>,
}

impl Listeners {
    fn new(secret: Secret, names: Arc<Names>) -> Self {
        Self { by_name: HashMap::with_hasher(KeyHashBuilder::new(secret)), names }
    }

    fn join(&mut self, name: &[u8], id: ConnectionId) {
        let ids = self.by_name.entry_ref(name).or_default();
        if ids.is_empty() {
            self.names.add(name);
        }
        ids.insert(id);
    }

    fn leave(&mut self, name: &[u8], id: ConnectionId) {
        if let Some(ids) = self.by_name.get_mut(name) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_name.remove(name);
                self.names.remove(name);
            }
        }
    }
}

/// Who listens to what.
pub(super) struct Channels {
    by_channel: Listeners,
    by_pattern: Listeners,
    by_shard_channel: Listeners,
}

impl Channels {
    /// Nobody listens yet.
    pub(super) fn new(secret: Secret, heard: Heard) -> Self {
        let Heard { channels, patterns, shard_channels } = heard;
        let of = |names| Listeners::new(secret, names);
        Self {
            by_channel: of(channels),
            by_pattern: of(patterns),
            by_shard_channel: of(shard_channels),
        }
    }

    fn of(&mut self, kind: Kind) -> &mut Listeners {
        match kind {
            Kind::Channel => &mut self.by_channel,
            Kind::Pattern => &mut self.by_pattern,
            Kind::Sharded => &mut self.by_shard_channel,
        }
    }

    /// Channels of SSUBSCRIBE that someone listens to, at whatever shard.
    pub(super) fn shard_channels(&self) -> usize {
        self.by_shard_channel.names.count()
    }

    /// Channels and patterns that someone listens to, at whatever shard.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.by_channel.names.count(), self.by_pattern.names.count())
    }
}

/// What is listened to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Channel,
    Pattern,
    /// A channel that clusters of Redis have at one of their nodes. It has names of its own; any shard serves it.
    Sharded,
}

impl Kind {
    /// The words that tell a client that it listens, or listens no more.
    fn words(self) -> [&'static str; 2] {
        match self {
            Self::Channel => ["subscribe", "unsubscribe"],
            Self::Pattern => ["psubscribe", "punsubscribe"],
            Self::Sharded => ["ssubscribe", "sunsubscribe"],
        }
    }

    fn names(self, all: &mut Subscriptions) -> &mut HashSet<Vec<u8>> {
        match self {
            Self::Channel => &mut all.channels,
            Self::Pattern => &mut all.patterns,
            Self::Sharded => &mut all.shard_channels,
        }
    }

    /// How many a client is told that it listens to.
    fn count(self, session: &Session) -> usize {
        let all = session.subscriptions.as_deref();
        match self {
            Self::Sharded => all.map_or(0, |all| all.shard_channels.len()),
            _ => all.map_or(0, |all| all.channels.len() + all.patterns.len()),
        }
    }
}

impl ShardService {
    /// Executes a command about channels.
    pub(super) fn pub_sub(&mut self, command: &PubSub<'_>, work: &mut Turn<'_>) -> Flow {
        match command {
            PubSub::Subscribe { channels } => self.subscribe(Kind::Channel, *channels, work),
            PubSub::PSubscribe { patterns } => self.subscribe(Kind::Pattern, *patterns, work),
            PubSub::Unsubscribe { channels } => {
                self.pushes.unsubscribe(Kind::Channel, *channels, work)
            }
            PubSub::PUnsubscribe { patterns } => {
                self.pushes.unsubscribe(Kind::Pattern, *patterns, work)
            }
            PubSub::SSubscribe { channels } => self.subscribe(Kind::Sharded, *channels, work),
            PubSub::SUnsubscribe { channels } => {
                self.pushes.unsubscribe(Kind::Sharded, *channels, work)
            }
            PubSub::Publish { channel, message } => {
                let receivers = self.publish(channel, message, work);
                encoder(work).integer(receivers as i64);
            }
            PubSub::SPublish { channel, message } => {
                let bounds = self.settings.lowered.clients.pubsub_output_bytes_max;
                let most = (bounds, self.bound.clients_bytes_max);
                let heard = self.pushes.channels.hearing_at_shard(channel, message);
                let receivers = heard.map_or(0, |(encoded, ids)| encoded.deliver(ids, most, work));
                encoder(work).integer(receivers as i64);
            }
            PubSub::Channels { pattern, sharded } => {
                let fits = |name: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name));
                let all = self.pushes.channels.of(kind_of_channels(*sharded));
                let names: Vec<_> = all.by_name.keys().filter(|name| fits(name)).collect();
                let mut out = encoder(work);
                out.array(names.len());
                names.iter().for_each(|name| out.bulk(name));
            }
            PubSub::NumSub { channels, sharded } => {
                let all = self.pushes.channels.of(kind_of_channels(*sharded));
                let mut out = encoder(work);
                out.array(2 * channels.len());
                for name in channels.iter() {
                    out.bulk(name);
                    let listeners = all.by_name.get(name);
                    out.integer(listeners.map_or(0, BTreeSet::len) as i64);
                }
            }
            PubSub::NumPat => encoder(work).integer(self.pushes.channels.counts().1 as i64),
        }
        Flow::Next
    }

    fn subscribe(&mut self, kind: Kind, names: Args<'_>, work: &mut Turn<'_>) {
        let id = work.connection.id;
        let most = self.settings.lowered.clients.subscriptions_max;
        for name in names.iter() {
            let session = &mut work.connection.session;
            let subscriptions = session.subscriptions.get_or_insert_default();
            if subscriptions.count() >= most {
                let text = format!("more than {most} subscriptions (subscriptions-max)");
                encoder(work).error("ERR", format_args!("{text}"));
                continue;
            }
            if kind.names(subscriptions).insert(name.to_vec()) {
                subscriptions.name_bytes += name.len();
            }
            self.pushes.channels.of(kind).join(name, id);
            let count = kind.count(&work.connection.session);
            confirm(work, kind.words()[0], Some(name), count);
        }
    }

    /// Delivers a message that no client sends.
    pub(super) fn publish_from_flow(
        &mut self,
        channel: &[u8],
        message: &[u8],
        connections: &mut Connections<Session>,
    ) {
        let most =
            (self.settings.lowered.clients.pubsub_output_bytes_max, self.bound.clients_bytes_max);
        for (encoded, ids) in self.pushes.channels.hearing(channel, message) {
            for &id in ids {
                encoded.deliver_to(id, most, connections);
            }
        }
    }

    /// Delivers a message; how many times it was received.
    fn publish(&mut self, channel: &[u8], message: &[u8], work: &mut Turn<'_>) -> usize {
        let bounds = self.settings.lowered.clients.pubsub_output_bytes_max;
        let most = (bounds, self.bound.clients_bytes_max);
        let hearing = self.pushes.channels.hearing(channel, message);
        hearing.map(|(encoded, ids)| encoded.deliver(ids, most, work)).sum()
    }
}

impl Pushes {
    fn unsubscribe(&mut self, kind: Kind, names: Args<'_>, work: &mut Turn<'_>) {
        let id = work.connection.id;
        let word = kind.words()[1];
        let mut names: Vec<Vec<u8>> = names.iter().map(<[u8]>::to_vec).collect();
        if names.is_empty() {
            if let Some(subscriptions) = &mut work.connection.session.subscriptions {
                names = kind.names(subscriptions).iter().cloned().collect();
            }
            if names.is_empty() {
                let count = kind.count(&work.connection.session);
                confirm(work, word, None, count);
            }
        }
        for name in names {
            let session = &mut work.connection.session;
            if let Some(subscriptions) = &mut session.subscriptions {
                if kind.names(subscriptions).remove(&name) {
                    subscriptions.name_bytes -= name.len();
                    self.channels.of(kind).leave(&name, id);
                }
                if subscriptions.count() == 0 {
                    session.subscriptions = None;
                }
            }
            let count = kind.count(session);
            confirm(work, word, Some(&name), count);
        }
    }

    /// Ends all subscriptions of a session, without telling it.
    pub(super) fn forget_subscriptions(&mut self, id: ConnectionId, session: &mut Session) {
        let Some(subscriptions) = session.subscriptions.take() else {
            return;
        };
        for name in &subscriptions.channels {
            self.channels.by_channel.leave(name, id);
        }
        for name in &subscriptions.patterns {
            self.channels.by_pattern.leave(name, id);
        }
        for name in &subscriptions.shard_channels {
            self.channels.by_shard_channel.leave(name, id);
        }
    }
}

/// Channels of SSUBSCRIBE, or of SUBSCRIBE.
fn kind_of_channels(sharded: bool) -> Kind {
    if sharded { Kind::Sharded } else { Kind::Channel }
}

impl Channels {
    /// A message of SPUBLISH as those who listen to its channel read it.
    fn hearing_at_shard(
        &self,
        channel: &[u8],
        message: &[u8],
    ) -> Option<(Encoded, &BTreeSet<ConnectionId>)> {
        let ids = self.by_shard_channel.by_name.get(channel)?;
        let encoded = Encoded::new(|out| {
            out.push(3);
            out.bulk(b"smessage");
            out.bulk(channel);
            out.bulk(message);
        });
        Some((encoded, ids))
    }

    /// A message as those who listen to its channel, and those who listen to a pattern that it matches, read it.
    fn hearing<'a>(
        &'a self,
        channel: &'a [u8],
        message: &'a [u8],
    ) -> impl Iterator<Item = (Encoded, &'a BTreeSet<ConnectionId>)> {
        let exactly = self.by_channel.by_name.get(channel).map(|ids| {
            let encoded = Encoded::new(|out| {
                out.push(3);
                out.bulk(b"message");
                out.bulk(channel);
                out.bulk(message);
            });
            (encoded, ids)
        });
        let matching =
            self.by_pattern.by_name.iter().filter(|(pattern, _)| glob::matches(pattern, channel));
        let matching = matching.map(|(pattern, ids)| {
            let encoded = Encoded::new(|out| {
                out.push(4);
                out.bulk(b"pmessage");
                out.bulk(pattern);
                out.bulk(channel);
                out.bulk(message);
            });
            (encoded, ids)
        });
        exactly.into_iter().chain(matching)
    }
}

/// A message in both versions of the protocol.
struct Encoded {
    resp2: Vec<u8>,
    resp3: Vec<u8>,
}

impl Encoded {
    fn new(write: impl Fn(&mut Encoder<'_>)) -> Self {
        let encode = |version| {
            let mut bytes = Vec::new();
            write(&mut Encoder::new(&mut bytes, version));
            bytes
        };
        Self { resp2: encode(Version::Resp2), resp3: encode(Version::Resp3) }
    }

    fn bytes(&self, version: Version) -> &[u8] {
        match version {
            Version::Resp2 => &self.resp2,
            Version::Resp3 => &self.resp3,
        }
    }

    /// Writes it to the listeners. One whose output exceeds the first of `most` is ended, and so is
    /// one with which all clients take more than the second. What the publisher itself hears goes behind its answer.
    fn deliver(
        &self,
        ids: &BTreeSet<ConnectionId>,
        most: (usize, usize),
        work: &mut Turn<'_>,
    ) -> usize {
        for &id in ids {
            if id == work.connection.id {
                let session = &mut work.connection.session;
                let bytes = self.bytes(session.version);
                session.behind_answer.extend_from_slice(bytes);
                continue;
            }
            work.published_bytes += self.deliver_to(id, most, work.peers);
        }
        if work.published_bytes > PUBLISHED_BYTES_MAX {
            *work.requests_left = 0;
        }
        ids.len()
    }
}

impl Encoded {
    /// Writes it to one listener that is not being served; how many bytes.
    fn deliver_to(
        &self,
        id: ConnectionId,
        most: (usize, usize),
        peers: &mut Connections<Session>,
    ) -> usize {
        let Some(listener) = peers.get(id) else { return 0 };
        let bytes = self.bytes(listener.session.version);
        peers.deliver(id, bytes, most)
    }
}

/// Tells a client what it listens to now.
fn confirm(work: &mut Turn<'_>, word: &str, name: Option<&[u8]>, count: usize) {
    let session = &mut work.connection.session;
    // It is a message, which CLIENT REPLY does not keep back.
    let mut out = match session.answering {
        Answering::On => encoder(work),
        _ => {
            let out = Encoder::new(&mut session.behind_answer, session.version);
            SessionReply::Client(out)
        }
    };
    out.push(3);
    out.bulk(word.as_bytes());
    match name {
        Some(name) => out.bulk(name),
        None => out.null(),
    }
    out.integer(count as i64);
}
