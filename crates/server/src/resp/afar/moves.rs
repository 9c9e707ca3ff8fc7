//! Partitions that move to another shard while all serve.
//!
//! One shard leads. Where a store keeps data, the old home looks for the partition's keys on disk first, while requests go on. Then all
//! are asked to hold: new requests of clients wait, and what other shards execute
//! for them is done. When all hold, no request is on its way between shards, and all meet: the old home gives
//! the partition up, all learn the new home, and the new home takes it over, each in its own thread, while
//! the others stand still. So it is one step for everybody (`headwater_engine`, `shards/moves.rs`).
//!
//! # Invariants
//! - N1. While a shard holds, its clients' requests wait in `held`; connections by mail go on.
//! - N2. A shard says that it holds once, when nothing that it has asked of others can be executed under another
//!   placement: all is answered, but for reads that wait at the end of a stream, which does not move.
//!
//! # Cost
//! Nothing where no partition moves, but for a look at a flag in each turn. A move takes the time of a look at all keys of the old
//! home; nobody is served meanwhile.

use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::keeping::Way;
use crate::resp::session::{Afar, Session, Waiting};
use crate::resp::{Flow, Resp, Turn, encoder};
use crate::shards::{Letter, Moving};
use headwater_base::Shard;
use headwater_base::placement::{PARTITIONS, Partition};
use headwater_command::{Args, OwnedArgs, Reply};
use headwater_engine::EngineError;

/// How long all may take until they hold, in milliseconds: then the move is given up.
const HOLD_MAX: u64 = 1000;

impl Resp {
    /// SHARD.MOVE: the session waits until it is done, and looks again.
    pub(super) fn move_partition(
        &mut self,
        partition: u64,
        shard: u64,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        match self.begin_move(partition, shard, work.connection.id) {
            Ok(None) => encoder(work).ok(),
            Ok(Some(())) => {
                let request = Waiting::Request(OwnedArgs::of(args));
                work.connection.session.waiting = Some(Box::new(request));
                return Flow::Parked;
            }
            Err(text) => {
                self.stats.errors += 1;
                encoder(work).error("ERR", format_args!("{text}"));
            }
        }
        Flow::Next
    }

    /// `None`: there is nothing to do.
    fn begin_move(
        &mut self,
        partition: u64,
        shard: u64,
        client: ConnectionId,
    ) -> Result<Option<()>, String> {
        let count = self.shard_count();
        if partition >= PARTITIONS as u64 {
            return Err(format!("there is no partition {partition} (0 to {})", PARTITIONS - 1));
        }
        if shard >= u64::from(count) {
            return Err(format!("there is no shard {shard} (0 to {})", count - 1));
        }
        let (partition, to) = (Partition(partition as u16), Shard(shard as u16));
        let placement = self.node.engine().placement();
        let Some(from) = placement.map(|placement| placement.home_of(partition)) else {
            return Ok(None);
        };
        if from == to {
            return Ok(None);
        }
        let Some(shards) = &mut self.shards else { return Ok(None) };
        if shards.moving.is_some() || !shards.post.meeting().begin() {
            return Err(String::from("another partition is about to move: try again"));
        }
        let missing = (0..count).map(Shard).collect();
        // Finding keys on disk takes its time, in which requests go on.
        let deadline = u64::MAX;
        shards.moving = Some(Moving { client, partition, to, missing, deadline });
        if self.keeping.is_some() {
            shards.post.to(from).letters.push(Letter::Survey { partition });
        } else {
            self.surveyed();
        }
        Ok(Some(()))
    }

    /// The keys that are to move are found: all are asked to hold.
    pub(super) fn surveyed(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        let Some(moving) = &mut shards.moving else { return };
        moving.deadline = self.time.uptime + HOLD_MAX;
        for at in (0..shards.post.shards()).map(Shard) {
            shards.post.to(at).letters.push(Letter::Hold);
        }
    }

    /// Another shard asks this one to hold.
    pub(super) fn begin_to_hold(&mut self, leader: Shard) {
        self.holding = true;
        if let Some(shards) = &mut self.shards {
            shards.held_for = Some(leader);
        }
    }

    /// Says that this shard holds, if it does (N2), and gives up what takes too long.
    pub(in crate::resp) fn look_at_moves(&mut self, connections: &mut Connections<Session>) {
        self.tell_surveyed();
        let Some(shards) = &mut self.shards else { return };
        if let Some(leader) = shards.held_for {
            let is_drained = |session: &Session| match &session.afar {
                Afar::Front(front) => front.is_drained(),
                Afar::None | Afar::Back(_) => true,
            };
            if connections.iter().all(|connection| is_drained(&connection.session)) {
                shards.held_for = None;
                shards.post.to(leader).letters.push(Letter::Held);
            }
        }
        if let Some(moving) = &shards.moving
            && !moving.missing.is_empty()
            && moving.deadline <= self.time.uptime
        {
            for at in (0..shards.post.shards()).map(Shard) {
                shards.post.to(at).letters.push(Letter::Release);
            }
            let text = "requests to other shards are not answered yet: try again";
            self.end_move(Some(String::from(text)), connections);
        }
    }

    /// A shard holds.
    pub(super) fn holds(&mut self, shard: Shard) {
        let Some(shards) = &mut self.shards else { return };
        let Some(moving) = &mut shards.moving else { return };
        if !moving.missing.remove(&shard) || !moving.missing.is_empty() {
            return;
        }
        let (partition, to) = (moving.partition, moving.to);
        for at in (0..shards.post.shards()).map(Shard) {
            shards.post.to(at).letters.push(Letter::Meet { partition, to });
        }
    }

    /// Whether a connection's requests must wait: another one executes a transaction, or a partition is about to move (N1).
    #[cold]
    pub(in crate::resp) fn must_be_held(&self, connection: &Connection<Session>) -> bool {
        self.exclusive.is_some_and(|owner| owner != connection.id)
            || (self.holding && !connection.is_by_mail())
    }

    /// Requests of clients go on.
    pub(super) fn release_clients(&mut self) {
        self.holding = false;
        self.end_survey();
        if let Some(shards) = &mut self.shards {
            shards.held_for = None;
        }
    }

    /// Moves a partition together with all other shards.
    pub(super) fn meet(
        &mut self,
        partition: Partition,
        to: Shard,
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &self.shards else { return };
        let (me, meeting) = (shards.me, shards.post.meeting().clone());
        let placement = self.node.engine().placement();
        let from = placement.map_or(to, |placement| placement.home_of(partition));
        let way = Way { partition, from, to };
        // Writes of this turn are handed to the store whole, with what flows note of them.
        self.node.end_turn();
        if !meeting.wait() {
            return;
        }
        if me == from {
            meeting.give(self.offer_partition(way));
        }
        if !meeting.wait() {
            return;
        }
        if me == to
            && let Ok(pairs) = meeting.given()
            && let Err(text) = self.keep_partition(way, &pairs)
        {
            meeting.give(Err(text));
        }
        if !meeting.wait() {
            return;
        }
        let refusal = match meeting.given() {
            Ok(pairs) => {
                self.partition_moves(me, way, &pairs);
                None
            }
            Err(text) => Some(text),
        };
        if !meeting.wait() {
            return;
        }
        if refusal.is_none() {
            self.place_watches();
            // Who remembers which keys were read is another shard now.
            self.keys_redefined();
        }
        self.release_clients();
        self.end_move(refusal, connections);
    }

    /// Tells the client of this shard that wanted a move how it went.
    fn end_move(&mut self, refusal: Option<String>, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.shards else { return };
        let Some(moving) = shards.moving.take() else { return };
        shards.post.meeting().finish();
        if let Some(text) = refusal
            && connections.get_mut(moving.client).is_some()
        {
            self.failures.insert(moving.client, EngineError::Refused(text));
        }
        connections.wake(moving.client);
    }
}
