//! MULTI, EXEC, DISCARD, WATCH and UNWATCH of clients whose keys live elsewhere.
//!
//! What a client watches is watched by the connections that stand for it at the homes of the keys. Where all keys of a
//! transaction, watched ones included, live on another shard, EXEC sends the whole queue there; where they live
//! on several, the client is led ([`super::lead`]).

use super::hold;
use super::lead::distinct;
use crate::resp::{Flow, Resp, Turn, encoder};
use crate::shards::{Kind, Merge, Request, Route, route};
use headwater_base::{Placement, Shard};
use headwater_command::{Args, Command, Id, OwnedArgs, Reply, Spec, Transaction};
use headwater_protocol::resp::{decode, find};

/// Where the requests of a transaction are executed.
enum Place {
    /// At one shard; `None`: at any.
    One(Option<Shard>),
    /// At several, step by step.
    Several,
}

/// Whether a request says nothing about the session that asks it, so that any shard's answer is the same.
fn is_of_any_session(spec: &Spec) -> bool {
    matches!(spec.id, Id::Ping | Id::Echo | Id::Time | Id::Unwatch)
}

/// Where `requests` are executed that a client of `me` has queued.
fn place_of(placement: &Placement, me: Shard, requests: &[OwnedArgs]) -> Place {
    let (mut at, mut stays) = (None, false);
    for request in requests {
        let args = request.args();
        let Ok(spec) = find(args) else { continue };
        let Ok(command) = decode(spec, args) else { continue };
        match route(placement, spec, &command, args) {
            Route::Here => stays |= !is_of_any_session(spec),
            Route::At(home) if at.is_none_or(|at| at == home) => at = Some(home),
            // A message goes to all from wherever it is published.
            Route::Parts { .. } if spec.id == Id::Publish => {}
            Route::At(_) | Route::Several | Route::Parts { .. } => return Place::Several,
        }
    }
    if stays && at.is_some_and(|at| at != me) { Place::Several } else { Place::One(at) }
}

impl Resp {
    /// MULTI, EXEC, DISCARD, WATCH and UNWATCH, where keys live elsewhere.
    pub(super) fn transact_afar(
        &mut self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        match command {
            Command::Transaction(Transaction::Watch { keys }) => {
                self.watch_afar(spec, *keys, args, work)
            }
            Command::Transaction(Transaction::Unwatch) => {
                self.unwatch_afar(work);
                None
            }
            Command::Transaction(Transaction::Discard) => {
                if work.connection.session.queue.is_some() {
                    self.unwatch_afar(work);
                }
                None
            }
            Command::Transaction(Transaction::Exec) => self.exec_afar(args, work),
            _ => None,
        }
    }

    /// WATCH: each home watches its own keys.
    fn watch_afar(
        &mut self,
        spec: &'static Spec,
        keys: Args<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let me = self.shards.as_ref()?.me;
        if work.connection.session.queue.is_some() {
            return None;
        }
        let placement = self.node.engine().placement()?;
        let homes = distinct(keys.iter().map(|key| placement.home(key)));
        if homes == [me] {
            return None;
        }
        if let Some(front) = work.connection.session.front()
            && front.is_full()
        {
            return Some(hold(Some(args), work));
        }
        let most = self.config.clients.watched_keys_max;
        let session = &mut work.connection.session;
        let afar = session.front().map_or(0, |front| front.watched());
        if session.watched.len() + afar + keys.len() > most {
            self.stats.errors += 1;
            let text = format_args!("more than {most} watched keys (watched-keys-max)");
            encoder(work).error("ERR", text);
            return Some(Flow::Next);
        }
        // Here, and twice at the home.
        self.make_room_to_pass(2 * args.bytes());
        let placement = self.node.engine().placement()?;
        let part = |&at: &Shard| {
            let here = keys.iter().filter(|key| placement.home(key) == at).map(<[u8]>::to_vec);
            (at, Request::Other([b"WATCH".to_vec()].into_iter().chain(here).collect()))
        };
        let parts: Vec<_> = homes.iter().map(part).collect();
        let flow = if let [(at, _)] = parts[..] {
            self.ask(at, args, Kind::Plain, false, work);
            Flow::Next
        } else {
            self.ask_all(spec, Kind::Plain, Merge::Same, &parts, args, work)
        };
        let placement = self.node.engine().placement()?;
        let front = work.connection.session.front()?;
        // This shard, too, watches by mail where it has to load keys first.
        let elsewhere = keys.iter().filter(|key| placement.home(key) != me);
        front.watch(homes.into_iter(), elsewhere);
        Some(flow)
    }

    /// Ends the watches that other shards keep for a session.
    pub(in crate::resp) fn unwatch_afar(&mut self, work: &mut Turn<'_>) {
        let Some(front) = work.connection.session.front() else { return };
        for at in front.end_watches() {
            let unwatch: OwnedArgs = [&b"UNWATCH"[..]].into_iter().collect();
            self.ask(at, unwatch.args(), Kind::Plain, true, work);
        }
    }

    /// EXEC: at the shard of all of its keys, or at several.
    fn exec_afar(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Option<Flow> {
        let me = self.shards.as_ref()?.me;
        let queue = work.connection.session.queue.as_ref()?;
        if queue.broken {
            self.unwatch_afar(work);
            return None;
        }
        let place = place_of(self.node.engine().placement()?, me, &queue.requests);
        if work.connection.session.expects() {
            // What it wrote elsewhere may be read within.
            return Some(hold(Some(args), work));
        }
        let session = &mut work.connection.session;
        let watches_here = !session.watched.is_empty();
        let mut watches_at = session.front().map(|front| front.watches_at().clone());
        let watches_at = watches_at.get_or_insert_default();
        // Where everything is executed, if that is one place.
        let at = match place {
            Place::Several => None,
            Place::One(at) if watches_at.is_empty() => match at.unwrap_or(me) {
                at if at == me || !watches_here => Some(at),
                _ => None,
            },
            Place::One(at) => {
                let watching = *watches_at.first()?;
                let is_one = watches_at.len() == 1 && watching != me && !watches_here;
                (is_one && at.is_none_or(|at| at == watching)).then_some(watching)
            }
        };
        if at == Some(me) {
            return None;
        }
        let queue = session.queue.take()?;
        let Some(at) = at else { return Some(self.lead(queue, true, work)) };
        let words = |word: &'static [u8]| -> OwnedArgs { [word].into_iter().collect() };
        self.ask_after(at, work);
        self.ask(at, words(b"MULTI").args(), Kind::Plain, true, work);
        for request in &queue.requests {
            self.ask(at, request.args(), Kind::Plain, true, work);
        }
        self.ask(at, words(b"EXEC").args(), Kind::Both, false, work);
        if let Some(front) = work.connection.session.front() {
            front.end_watches();
        }
        Some(Flow::Next)
    }
}
