//! The part of its node's memory that a process may take, where a node has a process for each shard: put into force as it changes.

use super::ShardService;
use crate::keeping::EmbeddedStore;
use crate::log::event;
use headwater_config::Size;

impl ShardService {
    /// Puts what the node's processes share into force, where this one's part of it has changed.
    #[inline]
    pub(super) fn look_at_memory_share(&mut self) {
        let Some(replica) = self.stores.keeping.as_ref().and_then(EmbeddedStore::replica) else {
            return;
        };
        let share = replica.memory().bytes();
        if share != self.bound.share {
            self.bound.share = share;
            share.into_iter().for_each(|bytes| self.take_memory_share(bytes));
        }
    }

    fn take_memory_share(&mut self, bytes: u64) {
        let mut config = self.settings.config.clone();
        config.memory.max = Size(bytes);
        match self.bound.check_memory(&config) {
            Ok(()) => {
                event!(
                    info,
                    "memory",
                    "share_changed",
                    bytes,
                    "what the process may take of its node's memory is another part"
                );
                self.apply(config);
            }
            Err(why) => event!(
                warn,
                "memory",
                "share_too_small",
                why = %why,
                "the process's part of its node's memory is less than it needs: it keeps what it had"
            ),
        }
    }
}
