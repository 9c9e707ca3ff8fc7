//! Partitions that move to another shard while all serve.
//!
//! Where a store keeps data, the old home looks for the partition's keys on disk first, while requests go on.
//! When all shards are quiescent ([`super::quiesce`]), they go through the phases of the move in step: the old home gives
//! the partition up, all learn the new home, and the new home takes it over, each in its own thread, while
//! the others stand still at a barrier. So it is one step for everybody (`headwater_engine`, `shards/moves.rs`).
//!
//! # Cost
//! A move takes the time of a look at all keys of the old home; nobody is served meanwhile.

use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::keeping::Way;
use crate::resp::session::{Session, Waiting};
use crate::resp::{Flow, ShardService, Turn, encoder};
use crate::shards::{CommonStep, MoveRefusal, ShardMessage, WantedStep};
use headwater_base::Shard;
use headwater_base::placement::{PARTITIONS, Partition};
use headwater_command::{Args, OwnedArgs, Reply};

/// What all shards do in step while they stand still: nobody begins a phase before all have ended the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MovePhase {
    /// Everybody's writes so far become durable, with their records.
    Record,
    /// Everybody says whether the partition may move.
    Agree,
    /// Its old home hands its keys over.
    Offer,
    /// Its new home keeps them.
    Keep,
    /// Everybody learns its new home.
    Move,
}

/// A shard's part in a move.
#[derive(Debug)]
pub(crate) struct MovePart {
    coordinator: Shard,
    way: Way,
    /// What it does next.
    phase: MovePhase,
    /// Why the partition stays.
    refusal: Option<MoveRefusal>,
}

impl ShardService {
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
        if self.others.are_apart() {
            return Err(String::from("partitions of a cluster stay at their shards"));
        }
        let count = self.others.shard_count();
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
        self.want_step(WantedStep { client, step: CommonStep::Move { partition, to } });
        Ok(Some(()))
    }

    /// All shards are quiescent: they move a partition in step, unless it has moved there meanwhile.
    pub(super) fn move_in_step(
        &mut self,
        wanted: WantedStep,
        partition: Partition,
        to: Shard,
        connections: &mut Connections<Session>,
    ) {
        if self.node.engine().placement().is_none_or(|it| it.home_of(partition) == to) {
            self.end_step(wanted, None, connections);
            self.resume_all();
            return;
        }
        let Some(shards) = &mut self.others.shards else { return };
        for at in (0..shards.outbox.shards()).map(Shard) {
            shards.outbox.to(at).messages.push(ShardMessage::Move { partition, to });
        }
    }

    /// Moves a partition together with all other shards, as `coordinator` wants it.
    pub(super) fn move_with_all(
        &mut self,
        coordinator: Shard,
        partition: Partition,
        to: Shard,
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &self.others.shards else { return };
        let barrier = shards.outbox.barrier().clone();
        let placement = self.node.engine().placement();
        let from = placement.map_or(to, |placement| placement.home_of(partition));
        let way = Way { partition, from, to };
        let mut part = MovePart { coordinator, way, phase: MovePhase::Record, refusal: None };
        #[cfg(test)]
        if barrier.is_simulated() {
            self.others.move_part = Some(part);
            return;
        }
        loop {
            let goes_on = self.take_move_phase(&mut part);
            if !barrier.wait() {
                return;
            }
            if !goes_on {
                return self.leave_barrier(part, connections);
            }
        }
    }

    /// Does what a shard does in one phase of a move; whether there is another phase.
    pub(crate) fn take_move_phase(&mut self, part: &mut MovePart) -> bool {
        let Some(shards) = &self.others.shards else { return false };
        let (me, barrier, way) = (shards.me, shards.outbox.barrier().clone(), part.way);
        part.phase = match part.phase {
            MovePhase::Record => {
                // Writes of this turn are handed to the store whole, with what flows note of them.
                self.node.record_writes();
                self.node.end_turn();
                // What was done while its partitions lived where they do is never to be done again.
                part.refusal = self.sync_records().err().map(MoveRefusal::For);
                MovePhase::Agree
            }
            MovePhase::Agree => {
                if let Some(why) = part.refusal.take() {
                    barrier.give(Err(why));
                }
                if let Err(busy) = self.flows_may_move(way) {
                    barrier.give(Err(busy));
                }
                MovePhase::Offer
            }
            MovePhase::Offer => {
                if me == way.from && !barrier.is_refused() {
                    barrier.give(self.offer_partition(way).map_err(MoveRefusal::For));
                }
                MovePhase::Keep
            }
            MovePhase::Keep => {
                if me == way.to
                    && let Ok(pairs) = barrier.given()
                    && let Err(text) = self.keep_partition(way, &pairs)
                {
                    barrier.give(Err(text.into()));
                }
                MovePhase::Move
            }
            MovePhase::Move => {
                match barrier.given() {
                    Ok(pairs) => self.partition_moves(me, way, &pairs),
                    Err(why) => part.refusal = Some(why),
                }
                return false;
            }
        };
        true
    }

    /// All have moved the partition, or it stays: requests go on.
    pub(crate) fn leave_barrier(&mut self, part: MovePart, connections: &mut Connections<Session>) {
        let MovePart { coordinator, refusal, .. } = part;
        if refusal.is_none() {
            self.place_watches();
            // Who remembers which keys were read is another shard now.
            self.pushes.keys_redefined();
        }
        self.end_quiescing(coordinator);
        let Some(shards) = &self.others.shards else { return };
        let (me, barrier) = (shards.me, shards.outbox.barrier().clone());
        let wanted = shards.quiescing.round.as_ref().map(|round| round.wanted);
        if let Some(wanted) = wanted.filter(|_| coordinator == me) {
            barrier.finish();
            self.end_step(wanted, refusal, connections);
            self.end_round();
        }
    }
}
