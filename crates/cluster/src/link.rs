//! The two directions between this shard and another: what comes in is whole and in order, or both begin anew.
//!
//! # Invariants
//! - K1. What a link lets through of one connection is a prefix of what the other said in it, each thing once.
//! - K2. A packet of an earlier connection, or of an earlier life of the sender or the receiver, is not let through: an answer to what was asked in that life
//!   could be taken for one to something else that is asked in this one.
//! - K3. Two shards that hear each other come to agree on a connection: the greater number wins, and a
//!   shard that has lost something, hears of a new life, or is taken for an earlier life of its own, goes beyond all that it knows.

use crate::message::{Message, Packet};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use headwater_base::source::{FetchId, Position, StorePlace};
use headwater_base::{KeyRange, Millis, Shard};

use crate::{Item, Positions};

/// The least time between two places of a home's log that a follower is told, in milliseconds.
const PLACE_EVERY: u64 = 100;

/// What became of a packet.
#[derive(Debug)]
pub(crate) enum Received {
    /// The next thing that the other says.
    Next(Message),
    /// The other has begun anew, and this is what it says first.
    Anew(Message),
    /// Something is lost: this side has to begin anew.
    Broken,
    /// Nothing new.
    Nothing,
}

/// The state of a link.
#[derive(Debug)]
pub(crate) struct Link {
    /// The other's life, once it was heard of.
    epoch: Option<u64>,
    pub(crate) connection: u64,
    sent: u64,
    received: u64,
    last_sent: Millis,
    last_heard: Millis,
    /// When the other was last heard before what was loaded of it ceased to be kept current; `None`: it is current.
    pub(crate) current_until: Option<Millis>,
    /// Since when there is no connection, where that is told.
    pub(crate) lost_at: Option<Millis>,
    /// Loads that were asked for here and not answered.
    pub(crate) loads: BTreeMap<FetchId, KeyRange>,
    /// Something was loaded from the other.
    pub(crate) follows: bool,
    /// The other has loaded something.
    pub(crate) followed: bool,
    /// What is to be told with the end of the turn.
    pub(crate) items: Vec<Item>,
    /// Who asks where this shard stands.
    pub(crate) asks: Vec<u64>,
    /// Where the other stands, as far as was applied here.
    pub(crate) applied: Position,
    /// What all that is here of the other reflects.
    pub(crate) reflects: Positions,
    /// The last place among the other's writes up to which all that was loaded of it shows everything.
    pub(crate) reached: Option<StorePlace>,
    /// Ranges are being resumed from there; what the other has told it has reached since.
    pub(crate) resumes: bool,
    pub(crate) reached_since: Option<StorePlace>,
    /// The last place of this shard's writes that the other was told, and when.
    pub(crate) told_place: Option<StorePlace>,
    pub(crate) told_place_at: Millis,
}

impl Link {
    pub(crate) fn new(now: Millis) -> Self {
        Self {
            epoch: None,
            connection: 0,
            sent: 0,
            received: 0,
            last_sent: now,
            last_heard: now,
            current_until: None,
            lost_at: None,
            loads: BTreeMap::new(),
            follows: false,
            followed: false,
            items: Vec::new(),
            asks: Vec::new(),
            applied: Position(0),
            reflects: Positions::default(),
            reached: None,
            resumes: false,
            reached_since: None,
            told_place: None,
            told_place_at: Millis(0),
        }
    }

    /// The next packet that says `message`.
    pub(crate) fn packet(&mut self, epoch: u64, now: Millis, message: Message) -> Packet {
        let number = self.sent;
        self.sent += 1;
        self.last_sent = now;
        Packet { epoch, to_epoch: self.epoch, connection: self.connection, number, message }
    }

    /// Some of what the other has was taken in, as of this position there at least.
    pub(crate) fn took(&mut self, from: Shard, position: Position) {
        self.applied = self.applied.max(position);
        // What is new here is as old as the home's own sources were.
        self.reflects = Positions::default();
        self.reflects.reach(from, self.applied);
    }

    /// Begins a connection anew; loads that are not answered stay to be asked for again.
    pub(crate) fn begin(&mut self, connection: u64, now: Millis) {
        let Self { epoch, loads, applied, lost_at, reached, current_until, last_heard, .. } =
            core::mem::replace(self, Self { connection, ..Self::new(now) });
        (self.epoch, self.loads, self.applied) = (epoch, loads, applied);
        self.current_until = current_until.or(Some(last_heard));
        (self.lost_at, self.reached) = (lost_at, reached);
    }

    /// The other was heard last at this moment, whenever what it has said was taken in.
    pub(crate) fn heard(&mut self, at: Millis) {
        self.last_heard = at;
    }

    /// Takes in a packet in this life of the shard.
    pub(crate) fn receive(&mut self, packet: Packet, epoch: u64, now: Millis) -> Received {
        let known = self.epoch.unwrap_or(packet.epoch);
        if packet.epoch < known {
            return Received::Nothing;
        }
        self.epoch = Some(packet.epoch);
        if packet.epoch > known {
            // Its memory of the connection is gone, and so is what it followed (K3).
            self.connection = self.connection.max(packet.connection);
            return Received::Broken;
        }
        if packet.connection < self.connection {
            return Received::Nothing;
        }
        match packet.to_epoch {
            // This is the earlier one.
            Some(meant) if meant > epoch => return Received::Nothing,
            // The other has not heard of this life, to which nothing of its connection belongs (K3).
            Some(meant) if meant < epoch => {
                self.connection = packet.connection;
                return Received::Broken;
            }
            _ => {}
        }
        let anew = packet.connection > self.connection;
        if anew {
            self.begin(packet.connection, now);
        }
        if packet.number < self.received {
            return Received::Nothing;
        }
        if packet.number > self.received {
            return Received::Broken;
        }
        // What comes twice, or behind something that is lost, does not say that all is here.
        self.last_heard = now;
        self.received += 1;
        if anew { Received::Anew(packet.message) } else { Received::Next(packet.message) }
    }

    /// Whether a loss on the link would be of consequence.
    fn is_used(&self) -> bool {
        self.follows || self.followed || !self.loads.is_empty()
    }

    /// Whether the other follows something, and has not been told for a while how far this shard's writes have come.
    pub(crate) fn is_place_due(&self, now: Millis) -> bool {
        self.followed && now.since(self.told_place_at) >= PLACE_EVERY
    }

    /// Whether it is time to say something.
    pub(crate) fn is_idle(&self, now: Millis, heartbeat: u64) -> bool {
        self.is_used() && now.since(self.last_sent) >= heartbeat
    }

    /// Whether the other should have been heard by now.
    pub(crate) fn is_silent(&self, now: Millis, timeout: u64) -> bool {
        self.is_used() && now.since(self.last_heard) >= timeout
    }
}
