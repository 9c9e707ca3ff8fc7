//! When a shard has to look again though nothing comes.

use super::ShardService;
use crate::memory::STORE_LOOK;
use crate::shards::DEFERRED_FOR;

impl ShardService {
    /// The moment, in milliseconds of the server's life; `None`: there is nothing that time alone brings about.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        // A thread compiles beside the loop, and has no way to wake it.
        let loading = self.node.engine().is_loading_functions().then(|| self.time.uptime + 1);
        let (blocking, sources) =
            (self.waits.blocking.next_deadline(), self.stores.hub.next_deadline());
        let flows = self.flows_deadline();
        let deferred = self.others.shards.as_ref().and_then(|shards| shards.deferred.front());
        let deferred = deferred.map(|(_, since)| since + DEFERRED_FOR);
        let awaited = self.others.shards.as_ref().and_then(|shards| shards.waits.next());
        let crowded = self.others.is_any_crowded().then_some(self.time.uptime + 1);
        let late_loads =
            (!self.waits.late_loads.is_empty()).then_some(self.time.uptime + STORE_LOOK);
        let engine = self.node.engine();
        let goes_on = engine.goes_on() || engine.has_keyspace_events() || self.bound.lowers;
        let goes_on = goes_on.then_some(self.time.uptime);
        let lapses = self.others.shards.as_ref().is_some_and(|shards| shards.locks.may_lapse());
        let lapses = lapses.then_some(self.time.uptime);
        let loading = goes_on.or(lapses).or(loading).or(crowded);
        blocking
            .into_iter()
            .chain(deferred)
            .chain(awaited)
            .chain(sources)
            .chain(flows)
            .chain(loading)
            .chain(late_loads)
            .min()
    }
}
