//! What a crash has left by half is finished at the next start, before clients are served: the first shard has each transaction whose parts
//! are not all there done from where it is ([`Redo`]), one after the other in the order of their numbers.
//!
//! What is so done is kept with records as it was before. So a crash meanwhile does no harm: the next start finishes what is left.

use crate::connection::ConnectionId;
use crate::log::event;
use crate::resp::ShardService;
use crate::resp::parts::OtherShards;
use crate::shards::{FoundRecords, ShardMessage};
use headwater_base::Shard;
use headwater_config::ConfigError;
use headwater_router::{AskHeader, Frames, Inner, Redo, TransactionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The session that asks for it, which no client has.
pub(super) const REDO: ConnectionId = ConnectionId { slot: usize::MAX, number: u64::MAX };

/// How long a lock may be waited for, in milliseconds: nobody else has any.
const WAIT_MAX: u64 = 60_000;

/// Transactions that are being finished.
#[derive(Debug)]
pub(crate) struct Redoing {
    /// Those that are not, with their numbers.
    left: VecDeque<(u64, Redo)>,
    /// The first one is under way.
    begun: bool,
    /// The requests under way, with their answers.
    asked: Vec<(u64, Option<Inner>)>,
    last_id: u64,
    count: usize,
}

/// Ends the process: a transaction cannot be finished, and nobody may see a part of it. The next start tries again.
pub(super) fn end_unfinished(why: &str) -> ! {
    event!(
        error,
        "store",
        "transactions_unfinished",
        why,
        "a transaction that a crash had cut off cannot be finished"
    );
    panic!("data-dir: a transaction that a crash had cut off cannot be finished: {why}")
}

impl ShardService {
    /// Looks, when all shards have opened their stores, what a crash has left by half.
    ///
    /// # Errors
    /// A record is not what was written.
    pub(crate) fn find_unfinished(&mut self) -> Result<(), ConfigError> {
        let (Some(shards), Some(placement)) = (&self.others.shards, self.node.engine().placement())
        else {
            return Ok(());
        };
        let recorded = shards.outbox.transport().recorded();
        let mut found = recorded.take_found();
        let numbers = found.values().flat_map(|found| found.records.keys().copied());
        let numbers: BTreeSet<u64> = numbers.collect();
        let mut left = VecDeque::new();
        for number in numbers {
            let of_shard = |(shard, found): (&Shard, &mut FoundRecords)| {
                Some((*shard, found.records.remove(&number)?))
            };
            let records: BTreeMap<_, _> = found.iter_mut().filter_map(of_shard).collect();
            let over = found.iter().filter(|(_, found)| found.floor > number);
            let over: Vec<Shard> = over.map(|(shard, _)| *shard).collect();
            // No session has come so far.
            let id = TransactionId { coordinator: shards.me, number: u64::MAX - number };
            let redo = Redo::new(id, &records, over.into_iter(), placement, WAIT_MAX);
            let redo = redo.ok_or_else(|| {
                let text = format!("data-dir: the record of transaction {number} is damaged");
                ConfigError(text)
            })?;
            if !redo.is_done() {
                recorded.open(number);
                left.push_back((number, redo));
            }
        }
        if !left.is_empty() {
            let (count, asked) = (left.len(), Vec::new());
            let redoing = Redoing { left, begun: false, asked, last_id: 0, count };
            self.others.redoing = Some(Box::new(redoing));
        }
        Ok(())
    }

    /// Begins to finish it.
    #[inline]
    pub(in crate::resp) fn begin_redoing(&mut self) {
        if let Some(redoing) = &mut self.others.redoing
            && !redoing.begun
        {
            redoing.begun = true;
            self.go_on_redoing(Vec::new());
        }
    }

    /// A shard has answered.
    #[cold]
    pub(super) fn redo_answered(&mut self, from: Shard, bytes: &[u8]) {
        let Some(redoing) = &mut self.others.redoing else { return };
        let mut frames = Frames::of(bytes);
        while let Some(frame) = frames.next_answer() {
            let asked = redoing.asked.iter_mut().find(|(id, _)| *id == frame.id);
            if let Some((_, answer)) = asked {
                let (own, digests) = (frame.answer.to_vec(), Vec::new());
                *answer = Some(Inner { from, answer: own, digests });
            }
        }
        if redoing.asked.iter().all(|(_, answer)| answer.is_some()) {
            let answers = redoing.asked.drain(..).filter_map(|(_, answer)| answer).collect();
            self.go_on_redoing(answers);
        }
    }

    /// Takes the next step of the transaction that is being finished, or of the next one.
    ///
    /// # Panics
    /// A shard refuses its part.
    fn go_on_redoing(&mut self, mut answers: Vec<Inner>) {
        let placement = self.placement_digest();
        let Some(shards) = &mut self.others.shards else { return };
        let Some(redoing) = &mut self.others.redoing else { return };
        while let Some((number, redo)) = redoing.left.front_mut() {
            let steps = redo
                .next(core::mem::take(&mut answers))
                .unwrap_or_else(|error| end_unfinished(&error.escape_ascii().to_string()));
            if steps.is_empty() {
                shards.outbox.transport().recorded().close(*number);
                redoing.left.pop_front();
                continue;
            }
            for (step, record) in steps {
                redoing.last_id += 1;
                let (id, record) = (redoing.last_id, record.map(|record| (*number, record)));
                let header = AskHeader { id, placement, record, ..AskHeader::default() };
                redoing.asked.push((id, None));
                step.ask.borrow(|ask| shards.ask(step.at, REDO, &header, ask));
            }
            return;
        }
        let count = redoing.count;
        event!(
            info,
            "store",
            "transactions_finished",
            count,
            "transactions over several shards were finished that a crash had cut off"
        );
        self.others.redoing = None;
        let transport = shards.outbox.transport().clone();
        transport.recorded().finished();
        for to in (0..shards.outbox.shards()).map(Shard) {
            shards.outbox.to(to).messages.push(ShardMessage::Gone { session: REDO });
        }
    }
}

impl OtherShards {
    /// Whether what a crash has left by half is being finished.
    #[inline]
    pub(in crate::resp) fn is_redoing(&self) -> bool {
        self.shards.as_ref().is_some_and(|it| it.outbox.transport().recorded().is_finishing())
    }
}
