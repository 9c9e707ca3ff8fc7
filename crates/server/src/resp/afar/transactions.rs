//! Transactions whose keys live on another shard: all of it is executed there.
//!
//! What a client watches is watched by the connection that stands for it at the home of the keys, and EXEC
//! sends the whole queue there.

use super::{CROSS_SLOT, hold};
use crate::resp::{Flow, Resp, Turn, encoder};
use crate::shards::{Kind, Route, route};
use headwater_base::Shard;
use headwater_command::{Args, Command, Id, OwnedArgs, Reply, Transaction};
use headwater_protocol::resp::{decode, find};

impl Resp {
    /// MULTI, EXEC, DISCARD, WATCH and UNWATCH, where keys live elsewhere.
    pub(super) fn transact_afar(
        &mut self,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let me = self.shards.as_ref()?.me;
        let session = &mut work.connection.session;
        let watches_at = session.front().and_then(|front| front.watches_at);
        match command {
            Command::Transaction(Transaction::Watch { keys }) => {
                if session.queue.is_some() {
                    return None;
                }
                let placement = self.node.engine().placement()?;
                let mut homes = keys.iter().map(|key| placement.home(key));
                let at = homes.next()?;
                let here = (!session.watched.is_empty()).then_some(me);
                let before = watches_at.or(here);
                if homes.any(|other| other != at) || before.is_some_and(|before| before != at) {
                    self.stats.errors += 1;
                    encoder(work).error("CROSSSLOT", format_args!("{CROSS_SLOT}"));
                    return Some(Flow::Next);
                }
                if at == me {
                    return None;
                }
                self.ask(at, args, Kind::Plain, false, work);
                work.connection.session.front()?.watches_at = Some(at);
                Some(Flow::Next)
            }
            Command::Transaction(Transaction::Unwatch | Transaction::Discard) => {
                self.unwatch_afar(work);
                None
            }
            Command::Transaction(Transaction::Exec) => self.exec_afar(args, watches_at, work),
            _ => None,
        }
    }

    /// Ends the watches that another shard keeps for a session.
    pub(in crate::resp) fn unwatch_afar(&mut self, work: &mut Turn<'_>) {
        let front = work.connection.session.front();
        if let Some(at) = front.and_then(|front| front.watches_at.take()) {
            let unwatch: OwnedArgs = [&b"UNWATCH"[..]].into_iter().collect();
            self.ask(at, unwatch.args(), Kind::Plain, true, work);
        }
    }

    /// EXEC: at the shard of all of its keys.
    fn exec_afar(
        &mut self,
        args: Args<'_>,
        watches_at: Option<Shard>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let me = self.shards.as_ref()?.me;
        let placement = self.node.engine().placement()?;
        let session = &mut work.connection.session;
        let queue = session.queue.as_ref()?;
        if queue.broken {
            self.unwatch_afar(work);
            return None;
        }
        let here = (!session.watched.is_empty()).then_some(me);
        let mut at = watches_at.or(here);
        let mut refusal = None;
        for request in &queue.requests {
            let args = request.args();
            let Ok(spec) = find(args) else { continue };
            let Ok(command) = decode(spec, args) else { continue };
            match route(placement, spec, &command, args) {
                Route::Here => {}
                Route::At(home) if at.is_none_or(|at| at == home) => at = Some(home),
                Route::Parts { .. } if spec.id == Id::Publish => {}
                Route::At(_) | Route::Several => refusal = Some(spec),
                Route::Parts { .. } => refusal = Some(spec),
            }
        }
        if let Some(spec) = refusal {
            self.unwatch_afar(work);
            self.forget_watches(&mut work.connection.session);
            work.connection.session.queue = None;
            self.stats.errors += 1;
            let name = spec.full_name;
            encoder(work).error(
                "CROSSSLOT",
                format_args!(
                    "the keys of a transaction must live on one shard ('{name}' needs others)"
                ),
            );
            return Some(Flow::Next);
        }
        let at = at.unwrap_or(me);
        if work.connection.session.expects() {
            // What it wrote elsewhere may be read within.
            return Some(hold(Some(args), work));
        }
        if at == me {
            return None;
        }
        let queue = work.connection.session.queue.take()?;
        let words = |word: &'static [u8]| -> OwnedArgs { [word].into_iter().collect() };
        self.ask(at, words(b"MULTI").args(), Kind::Plain, true, work);
        for request in &queue.requests {
            self.ask(at, request.args(), Kind::Plain, true, work);
        }
        self.ask(at, words(b"EXEC").args(), Kind::Write, false, work);
        if let Some(front) = work.connection.session.front() {
            front.watches_at = None;
        }
        Some(Flow::Next)
    }
}
