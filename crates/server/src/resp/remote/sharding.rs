//! Commands about shards: where keys live, what has been applied, and partitions that move.

use super::wait_for_answers;
use crate::connection::ConnectionId;
use crate::resp::parts::OtherShards;
use crate::resp::session::Waiting;
use crate::resp::{Flow, ShardService, Turn, encoder};
use crate::shards::{position_of_text, text_of_position};
use headwater_base::Shard;
use headwater_base::placement::{PARTITIONS, Partition};
use headwater_command::{Args, Command, Data, OwnedArgs, Ranges, Reply, Sharding};
use headwater_node::{Positions, WaitId};

impl ShardService {
    /// Executes a command about shards; those that concern several have been divided among them.
    pub(in crate::resp) fn sharding(
        &mut self,
        command: &Sharding<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        match *command {
            // Whoever has to wait does not come here.
            Sharding::Wait { .. } => encoder(work).integer(1),
            Sharding::Position => {
                if work.connection.session.expects() {
                    return wait_for_answers(Some(args), work);
                }
                let positions = &work.connection.session.positions;
                let text = text_of_position(self.run, self.others.shard_count(), positions);
                encoder(work).bulk(text.as_bytes());
            }
            Sharding::List => self.list_shard(work),
            Sharding::Home { key } => {
                let placement = self.node.engine().placement();
                let (partition, home) = placement.map_or((0, 0), |placement| {
                    (placement.partition(key).0, placement.home(key).0)
                });
                let mut out = encoder(work);
                out.map(2);
                out.bulk(b"partition");
                out.integer(i64::from(partition));
                out.bulk(b"shard");
                out.integer(i64::from(home));
            }
            Sharding::Move { partition, shard } => {
                return self.move_partition(partition, shard, args, work);
            }
        }
        Flow::Next
    }

    /// This shard's row of SHARD.LIST.
    fn list_shard(&self, work: &mut Turn<'_>) {
        let engine = self.node.engine();
        let me = self.others.shards.as_ref().map_or(Shard(0), |shards| shards.me);
        let homes = |placement: &headwater_base::Placement| {
            let all = (0..PARTITIONS as u16).map(Partition);
            all.filter(|&partition| placement.home_of(partition) == me).count()
        };
        let partitions = engine.placement().map_or(PARTITIONS, homes);
        let outbox =
            self.others.shards.as_ref().map(|shards| shards.outbox.sent()).unwrap_or_default();
        let sent =
            self.others.shards.as_ref().map(|shards| shards.peers.sent()).unwrap_or_default();
        let remote = engine.remote();
        let figures = [
            ("shard", u64::from(me.0)),
            ("partitions", partitions as u64),
            ("keys", engine.key_count()),
            ("replicas", remote.replicas),
            ("replica-bytes", remote.replica_bytes),
            ("ranges-followed", remote.loaded),
            ("clients", work.peers.open() as u64),
            ("requests-forwarded", outbox.requests),
            ("messages-sent", outbox.messages),
            ("changes-sent", sent.changes),
        ];
        let mut out = encoder(work);
        out.array(1);
        out.map(figures.len());
        for (name, figure) in figures {
            out.bulk(name.as_bytes());
            out.integer(figure as i64);
        }
    }

    /// What a read with AT is to show besides what its session has seen, if that is a position of shards.
    pub(super) fn named_positions(&self, command: &Command<'_>) -> Option<Positions> {
        let Command::Data(Data::Ranges(Ranges::Range { read, .. } | Ranges::Prefix { read, .. })) =
            command
        else {
            return None;
        };
        position_of_text(self.run, self.others.shard_count(), read.at?)
    }

    /// Whether AT names a position of shards.
    pub(in crate::resp) fn is_of_shards(&self, at: &[u8]) -> bool {
        position_of_text(self.run, self.others.shard_count(), at).is_some()
    }

    /// Lets WAIT wait until what is here shows the session's writes. `None`: it does.
    pub(super) fn await_all(
        &mut self,
        millis: u64,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let resumed = self.waits.blocking.resumed.take();
        let shards = self.others.shards.as_mut()?;
        let session = &mut work.connection.session;
        let wait = shards.peers.wait(self.node.engine(), &session.positions)?;
        let id = work.connection.id;
        // The clock of a turn is up to a millisecond behind.
        let limit = (millis > 0).then(|| work.time.uptime.saturating_add(millis).saturating_add(1));
        let deadline = resumed.unwrap_or(limit);
        shards.waits.insert(wait, id, None);
        self.waits.blocking.add_deadline(deadline, id);
        session.waiting = Some(Box::new(Waiting::Shards(OwnedArgs::of(args), wait, deadline)));
        Some(Flow::Parked)
    }

    /// Goes on with a request that has waited for what other shards have.
    pub(in crate::resp) fn resume_shards(
        &mut self,
        (request, wait, deadline): (OwnedArgs, WaitId, Option<u64>),
        work: &mut Turn<'_>,
    ) -> Flow {
        let is_late = deadline.is_some_and(|at| at <= work.time.uptime);
        self.forget_wait(work.connection.id, wait, deadline);
        if is_late {
            encoder(work).integer(0);
            return Flow::Next;
        }
        self.waits.blocking.resumed = deadline.map(Some);
        let flow = self.run_again(&request, work);
        self.waits.blocking.resumed = None;
        flow
    }

    /// Ends the wait of a session.
    pub(in crate::resp) fn forget_wait(
        &mut self,
        id: ConnectionId,
        wait: WaitId,
        deadline: Option<u64>,
    ) {
        self.waits.blocking.drop_deadline(deadline, id);
        if let Some(shards) = &mut self.others.shards {
            shards.waits.remove(wait);
            shards.peers.forget(wait);
        }
    }
}

impl OtherShards {
    pub(in crate::resp) fn shard_count(&self) -> u16 {
        self.shards.as_ref().map_or(1, |shards| shards.outbox.shards())
    }
}
