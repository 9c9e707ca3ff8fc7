//! MULTI, EXEC, DISCARD, WATCH and UNWATCH of clients whose keys live elsewhere.
//!
//! What a client watches is watched by the sessions that it has at the homes of the keys. Where all keys of a
//! transaction, watched ones included, live on another shard, EXEC sends the whole queue there; where they live
//! on several, they do it as one step ([`super::coordinate`]).

use super::{DIVIDED, wait_for_answers};
use crate::resp::parts::OtherShards;
use crate::resp::{Flow, ShardService, Turn, encoder};
use headwater_base::Shard;
use headwater_command::{Args, Command, OwnedArgs, Reply, Spec, Transaction, table};
use headwater_router::{Ask, Kind, Merge, Request};
use std::collections::BTreeSet;

/// Each shard once.
fn distinct(homes: impl Iterator<Item = Shard>) -> Vec<Shard> {
    homes.collect::<BTreeSet<_>>().into_iter().collect()
}

impl ShardService {
    /// MULTI, EXEC, DISCARD, WATCH and UNWATCH, where keys live elsewhere.
    pub(super) fn transact_remote(
        &mut self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        match command {
            Command::Transaction(Transaction::Watch { keys }) => {
                self.watch_remote(spec, *keys, args, work)
            }
            Command::Transaction(Transaction::Unwatch) => {
                self.unwatch_remote(work);
                None
            }
            Command::Transaction(Transaction::Discard) => {
                if work.connection.session.queue.is_some() {
                    self.unwatch_remote(work);
                }
                None
            }
            Command::Transaction(Transaction::Exec) => self.exec_remote(args, work),
            _ => None,
        }
    }

    /// WATCH: each home watches its own keys.
    fn watch_remote(
        &mut self,
        spec: &'static Spec,
        keys: Args<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let me = self.others.shards.as_ref()?.me;
        if work.connection.session.queue.is_some() {
            return None;
        }
        // What is derived counts as it is when the client's writes before have come to it.
        let derived = keys.iter().any(|key| self.node.engine().may_derive(key));
        let kind = if derived { Kind::Derived } else { Kind::Plain };
        let placement = self.node.engine().placement()?;
        let homes = distinct(keys.iter().map(|key| placement.home(key)));
        let only = if let [home] = homes[..] { Some(home) } else { None };
        if let Some(pending) = work.connection.session.pending()
            && (pending.is_full() || pending.must_wait(kind, only))
        {
            return Some(wait_for_answers(Some(args), work));
        }
        let outbox = &self.others.shards.as_ref()?.outbox;
        let crowded = homes.iter().find(|home| **home != me && outbox.is_crowded(**home, 0));
        if let Some(&at) = crowded {
            return Some(self.others.wait_for_others_to_read(at, args, work));
        }
        if only == Some(me) {
            let watch = Command::Transaction(Transaction::Watch { keys });
            return self.await_writes(spec, &watch, args, work);
        }
        if self.refuses_to_watch(keys, work) {
            return Some(Flow::Next);
        }
        let part = |&at: &Shard| {
            let here = keys.iter().filter(|key| placement.home(key) == at).map(<[u8]>::to_vec);
            (at, Request::Other([b"WATCH".to_vec()].into_iter().chain(here).collect()))
        };
        let parts: Vec<_> = homes.iter().map(part).collect();
        let flow = if let [(at, _)] = parts[..] {
            self.ask(at, (spec, args), kind, false, work);
            Flow::Next
        } else {
            self.ask_all(spec, kind, Merge::Same, &parts, args, work)
        };
        let placement = self.node.engine().placement()?;
        let pending = work.connection.session.pending()?;
        // This shard, too, watches by message where it has to load keys first.
        let elsewhere = keys.iter().filter(|key| placement.home(key) != me);
        pending.watch(homes.into_iter(), elsewhere);
        Some(flow)
    }

    /// Ends the watches that other shards keep for a session.
    pub(in crate::resp) fn unwatch_remote(&mut self, work: &mut Turn<'_>) {
        let Some(pending) = work.connection.session.pending() else { return };
        let (watched_at, Some(spec)) = (pending.end_watches(), table::lookup(b"unwatch")) else {
            return;
        };
        for at in watched_at {
            let unwatch: OwnedArgs = [&b"UNWATCH"[..]].into_iter().collect();
            self.ask(at, (spec, unwatch.args()), Kind::Plain, true, work);
        }
    }

    /// EXEC: at the shard of all of its keys, or at several.
    fn exec_remote(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Option<Flow> {
        let me = self.others.shards.as_ref()?.me;
        let session = &mut work.connection.session;
        if session.queue.as_ref()?.broken {
            self.unwatch_remote(work);
            return None;
        }
        if session.expects() {
            // What it wrote elsewhere may be read within.
            return Some(wait_for_answers(Some(args), work));
        }
        let departures = &self.others.shards.as_ref()?.departures;
        if session.pending().is_some_and(|pending| {
            pending.has_lost_watches() || departures.is_any_leaving(pending.watches_at())
        }) {
            // Nobody knows whether they have changed.
            session.queue = None;
            self.unwatch_remote(work);
            self.forget_watches(&mut work.connection.session);
            encoder(work).null_array();
            return Some(Flow::Next);
        }
        let queue = session.queue.take()?;
        let mut plan = self.plan_of_queue(&queue)?;
        let session = &mut work.connection.session;
        let placement = self.node.engine().placement()?;
        let mut shards = BTreeSet::new();
        let own: Vec<Box<[u8]>> = session.watched.keys().map(|key| key[..].into()).collect();
        if !own.is_empty() {
            shards.insert(me);
        }
        let watches_here = shards.contains(&me);
        let mut watched = own;
        if let Some(pending) = session.pending() {
            shards.extend(pending.watches_at());
            watched.extend(pending.watched().iter().cloned());
        }
        let watches_elsewhere = shards.iter().any(|shard| *shard != me);
        plan.watch(placement, &shards, watched.iter());
        let only = plan.only_shard();
        let is_nowhere = plan.locks.as_ref().is_some_and(|locks| locks.is_empty());
        if is_nowhere || only == Some(me) && !self.others.watches_by_mail(work) {
            work.connection.session.queue = Some(queue);
            let exec = Command::Transaction(Transaction::Exec);
            return self.await_writes(table::lookup(b"exec")?, &exec, args, work);
        }
        if let Some(at) = only
            && at != me
            && !watches_here
            && (!watches_elsewhere || shards.len() == 1)
        {
            self.show_queue(&queue.requests, args, work);
            self.ask_exec(at, queue.requests, work);
            if let Some(pending) = work.connection.session.pending() {
                pending.end_watches();
            }
            return Some(Flow::Next);
        }
        if self.others.shards.as_ref()?.outbox.are_apart() {
            self.unwatch_remote(work);
            self.forget_watches(&mut work.connection.session);
            let before = work.out.len();
            encoder(work).error("CROSSSLOT", format_args!("{DIVIDED}"));
            self.figures.note_error(before, work);
            return Some(Flow::Next);
        }
        self.show_queue(&queue.requests, args, work);
        Some(self.coordinate_rest(plan, (queue.requests, queue.refused), true, work))
    }

    /// Has a shard execute a whole transaction.
    fn ask_exec(&mut self, at: Shard, requests: Vec<OwnedArgs>, work: &mut Turn<'_>) {
        self.ask_whole(at, &Ask::Exec(requests), (Kind::Both, false), work);
    }
}

impl OtherShards {
    /// Whether this shard watches keys for one of its own clients as it does for those of others.
    fn watches_by_mail(&self, work: &mut Turn<'_>) -> bool {
        let me = self.me();
        work.connection.session.pending().is_some_and(|pending| pending.watches_at().contains(&me))
    }
}
