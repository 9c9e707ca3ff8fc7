//! Definitions that a shard in a process of its own has missed, or that the first shard has: see [`DefinitionComparison`].
//!
//! [`DefinitionComparison`]: crate::shards::DefinitionComparison

use crate::keeping::{EmbeddedStore, digest_of, read_definitions};
use crate::log::event;
use crate::resp::ShardService;
use crate::shards::ShardMessage;
use headwater_base::Shard;

/// The shard whose definitions count.
const FIRST: Shard = Shard(0);

impl ShardService {
    /// The digest of the definitions here, where others are to be compared with them.
    fn digest_to_compare(&self) -> Option<u64> {
        if !self.others.are_apart() {
            return None;
        }
        self.stores.keeping.as_ref().and_then(EmbeddedStore::definitions_digest)
    }

    /// Tells the others what is defined here, or asks for what they have.
    #[inline]
    pub(in crate::resp) fn compare_definitions(&mut self) {
        let Some(mine) = self.digest_to_compare() else { return };
        let now = self.time.uptime;
        let Some(shards) = &mut self.others.shards else { return };
        if shards.me == FIRST {
            if shards.told_definitions != Some(mine) {
                shards.told_definitions = Some(mine);
                for to in (1..shards.outbox.shards()).map(Shard) {
                    shards.outbox.to(to).messages.push(ShardMessage::Defined { digest: mine });
                }
            }
        } else if shards.comparison.is_to_ask(mine, now) {
            shards.outbox.to(FIRST).messages.push(ShardMessage::AskDefinitions);
        }
    }

    /// There is a connection to a shard again: it is told what is defined here.
    pub(super) fn tell_definitions(&mut self, to: Shard) {
        let Some(digest) = self.digest_to_compare() else { return };
        let Some(shards) = &mut self.others.shards else { return };
        if shards.me == FIRST {
            shards.outbox.to(to).messages.push(ShardMessage::Defined { digest });
        }
    }

    /// A shard has told what is defined there.
    pub(super) fn hear_definitions(&mut self, from: Shard, digest: u64) {
        if from == FIRST
            && let Some(shards) = &mut self.others.shards
        {
            shards.comparison.tell(digest);
        }
    }

    /// A shard wants all that is defined here. It asks again if not all of it can be read yet.
    pub(super) fn send_definitions(&mut self, to: Shard) {
        let Some(all) = self.stores.keeping.as_ref().and_then(EmbeddedStore::definitions) else {
            return;
        };
        let Some(shards) = &mut self.others.shards else { return };
        let batch = shards.outbox.to(to);
        batch.bytes.extend_from_slice(&all);
        let end = batch.bytes.len();
        batch.messages.push(ShardMessage::Definitions { end });
    }

    /// What the first shard has defined has come.
    #[cold]
    pub(super) fn take_definitions(&mut self, from: Shard, bytes: &[u8]) {
        let (Some(mine), Some(all)) = (self.digest_to_compare(), read_definitions(bytes)) else {
            return;
        };
        let Some(shards) = &self.others.shards else { return };
        if from != FIRST || !shards.comparison.is_to_take(mine, digest_of(&all)) {
            return;
        }
        event!(
            warn,
            "shards",
            "definitions_differ",
            definitions = all.len(),
            "a definition was made or dropped while a shard had no owner: those of the first shard are taken over"
        );
        if let Some(keeping) = &mut self.stores.keeping {
            keeping.take_over_definitions(&all);
        }
    }
}
