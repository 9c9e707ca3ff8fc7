//! What a store keeps of transactions over several shards, so that a crash leaves all of each or nothing.
//!
//! Where a store keeps data, and more than one shard writes what is kept, each part's batch has a record with what the others do
//! ([`headwater_router::Transaction::record_of`]). It takes no message and no sync of its own.

use super::redoing::end_unfinished;
use crate::resp::ShardService;
use headwater_command::{Args, Flags, Id};
use headwater_protocol::resp::find;
use headwater_router::{Answer, Plan, Token};

impl ShardService {
    /// Has the shards of a transaction keep records of it, where that is needed.
    pub(super) fn record_plan(&self, plan: &mut Plan) {
        let Some(placement) = self.node.engine().placement() else { return };
        if self.stores.keeping.is_some() && !self.others.are_apart() {
            plan.record(placement, self.time.wall, |request| self.may_keep(request));
        }
    }

    /// Whether a request may write what the store keeps.
    fn may_keep(&self, args: Args<'_>) -> bool {
        let Ok(spec) = find(args) else { return false };
        let writes = spec.flags.has(Flags::WRITE) && !spec.flags.has(Flags::ADMIN);
        if !writes || matches!(spec.id, Id::StreamAppend | Id::StreamTrim) {
            return false;
        }
        if matches!(spec.id, Id::FnCall | Id::FnRange) {
            // Functions write keys that they do not name.
            return true;
        }
        let mut keys = spec.keys.positions(args.len()).filter_map(|at| args.get(at)).peekable();
        // What names no keys writes any.
        keys.peek().is_none() || keys.any(|key| self.node.engine().may_keep(key))
    }

    /// Keeps the record of a transaction's part, which was answered so, unless the part has changed nothing.
    ///
    /// # Panics
    /// It is the rest of what a crash has cut off, and there is no room for it.
    pub(super) fn keep_record(
        &mut self,
        number: u64,
        record: &[u8],
        answer: &[u8],
        is_redone: bool,
    ) {
        let Some(answer) = Answer::whole(answer) else { return };
        if is_redone {
            let list = answer.list();
            let mut lacks = list.iter().chain([&answer]).filter_map(|part| match part.token() {
                Token::Error { code: code @ ("OOM" | "MISCONF"), text } => Some((code, text)),
                _ => None,
            });
            if let Some((code, text)) = lacks.next() {
                end_unfinished(&format!("{code} {}", text.escape_ascii()));
            }
        }
        if answer.is_error() || answer.token() == Token::Integer(0) {
            return;
        }
        if let (Some(keeping), Some(shards)) = (&mut self.stores.keeping, &self.others.shards) {
            keeping.keep_record(number, record, shards.outbox.transport().recorded());
        }
    }

    /// Lets records go that nobody needs any more.
    #[inline]
    pub(in crate::resp) fn look_at_records(&mut self) {
        if let (Some(keeping), Some(shards)) = (&mut self.stores.keeping, &self.others.shards) {
            keeping.look_at_records(shards.outbox.transport().recorded());
        }
    }

    /// Waits until all records are safe from a failure of the machine.
    pub(super) fn sync_records(&mut self) -> Result<(), String> {
        match (&mut self.stores.keeping, &self.others.shards) {
            (Some(keeping), Some(shards)) => {
                keeping.sync_records(shards.outbox.transport().recorded())
            }
            _ => Ok(()),
        }
    }
}
