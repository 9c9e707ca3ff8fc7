//! Requests whose keys live on other shards.
//!
//! What concerns one home goes there as what it means, and is executed there for the client; a
//! `get` of keys of several homes is cut into one for each, and the values come together in the order of the keys.

use super::items::TOO_LARGE;
use super::question::{AnswerWords, Crossing};
use super::stats::merge_of;
use super::{answer_unless, is_silent, writes};
use crate::resp::{
    Flow, Form, LockTurn, ShardService, Turn, Waiting, after_of, encoder, locked_for_long,
    pending_of,
};
use headwater_base::{Placement, Shard};
use headwater_command::items::ItemCommand;
use headwater_command::{GetExpiry, OwnedArgs, Reply};
use headwater_engine::Stop;
use headwater_protocol::memcached::{KEY_BYTES_MAX, Request};
use headwater_router::{Ask, AskHeader, Kind, LockSet, Merge, Scattered};

/// Who executes something about items.
enum To<'a> {
    /// The shard that the client is connected to.
    Here,
    /// The home of its keys.
    At(Shard),
    /// Each its part.
    Parts(Merge, Vec<(Shard, ItemCommand<'a>)>),
    /// Nobody: a key is too long.
    Refused,
}

/// Why something is not executed now.
enum ItemWait {
    /// It waits.
    Waits,
    /// It has waited for too long.
    Late,
}

fn route<'a>(placement: &Placement, shards: u16, command: &ItemCommand<'a>) -> To<'a> {
    let all =
        |merge| To::Parts(merge, (0..shards).map(|at| (Shard(at), command.clone())).collect());
    match command {
        ItemCommand::Get { keys, .. } if keys.iter().any(|key| key.len() > KEY_BYTES_MAX) => {
            To::Refused
        }
        ItemCommand::Get { keys, versions, expiry } => {
            let homes: Vec<Shard> = keys.iter().map(|key| placement.home(key)).collect();
            let mut of: Vec<Shard> = homes.clone();
            of.sort_unstable();
            of.dedup();
            match of[..] {
                [] => To::Here,
                [home] => To::At(home),
                _ => {
                    let part = |home: Shard| {
                        let own = keys.iter().zip(&homes).filter(|(_, at)| **at == home);
                        let keys = own.map(|(key, _)| *key).collect();
                        (home, ItemCommand::Get { keys, versions: *versions, expiry: *expiry })
                    };
                    let parts = of.into_iter().map(part).collect();
                    To::Parts(Merge::Values(homes), parts)
                }
            }
        }
        ItemCommand::Register { .. } | ItemCommand::Flush { .. } => all(Merge::Same),
        ItemCommand::Statistics(which) => all(merge_of(*which)),
        _ => command.keys().next().map_or(To::Here, |key| To::At(placement.home(key))),
    }
}

impl ShardService {
    /// Executes a request elsewhere, or at several shards, if that is where its keys live. `None`: it is to be executed here.
    pub(super) fn memcached_remote(
        &mut self,
        request: &Request<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let mut room = [0; KEY_BYTES_MAX];
        let Crossing { command, asked } = Crossing::of(request, &mut room)?;
        let shards = self.others.shards.as_ref()?;
        let (me, count) = (shards.me, shards.outbox.shards());
        let to = route(self.node.engine().placement()?, count, &command);
        let kind = match (writes(request), self.may_be_derived_item(&command)) {
            (true, true) => Kind::Both,
            (true, false) => Kind::Write,
            (false, true) => Kind::Derived,
            (false, false) => Kind::Plain,
        };
        let at = match &to {
            To::Here => return None,
            To::Refused => {
                self.touch_before_refusal(&command, work);
                self.figures.memcached_refused("CLIENT_ERROR bad command line format", work);
                return Some(Flow::Next);
            }
            To::At(at) => Some(*at),
            To::Parts(..) => None,
        };
        if let Some(pending) = work.connection.session.pending()
            && (pending.is_full() || pending.must_wait(kind, at))
        {
            pending.blocks = true;
            return Some(Flow::Parked);
        }
        let parts = if let To::Parts(_, parts) = &to { &parts[..] } else { &[] };
        let mut homes = at.into_iter().chain(parts.iter().map(|(at, _)| *at));
        if self.others.lets_others_read(&mut homes, work) {
            return Some(Flow::Parked);
        }
        match to {
            To::At(at) if at == me => {
                return match self.item_is_held(&command, work)? {
                    ItemWait::Waits => Some(Flow::Parked),
                    ItemWait::Late => {
                        self.figures.stats.errors += 1;
                        let line = format!("SERVER_ERROR {}", locked_for_long(me));
                        answer_unless(is_silent(request), &line, work);
                        Some(Flow::Next)
                    }
                };
            }
            To::At(at) => {
                self.count_meta(request);
                let kind =
                    if matches!(request, Request::TooLarge { .. }) { Kind::Write } else { kind };
                self.ask_item(at, command, (kind, asked), work);
                if let Request::TooLarge { noreply, .. } = *request {
                    // Its data is not here, and never will be.
                    self.memcached.counts.too_large += 1;
                    self.figures.stats.errors += 1;
                    answer_unless(noreply, TOO_LARGE, work);
                }
            }
            To::Parts(merge, parts) => self.ask_items(parts, merge, (kind, asked), work),
            To::Here | To::Refused => {}
        }
        Some(Flow::Next)
    }

    /// Meta commands are counted where their client is.
    fn count_meta(&mut self, request: &Request<'_>) {
        let is_meta = matches!(
            request,
            Request::MetaGet(_)
                | Request::MetaSet { .. }
                | Request::MetaDelete(_)
                | Request::MetaCount(_)
        );
        self.memcached.counts.metas += u64::from(is_meta);
    }

    /// `gat` gives the keys before one that is too long their new expiry, and is refused then.
    #[cold]
    fn touch_before_refusal(&mut self, command: &ItemCommand<'_>, work: &mut Turn<'_>) {
        let ItemCommand::Get { keys, expiry, versions } = command else { return };
        if *expiry == GetExpiry::Keep {
            return;
        }
        for key in keys.iter().take_while(|key| key.len() <= KEY_BYTES_MAX) {
            let (Some(shards), Some(placement)) =
                (&self.others.shards, self.node.engine().placement())
            else {
                return;
            };
            let (me, home) = (shards.me, placement.home(key));
            let (keys, expiry, versions) = (vec![*key], *expiry, *versions);
            let touch = ItemCommand::Get { keys, versions, expiry };
            if home == me {
                self.execute_item_part(&touch, work);
            } else {
                self.ask_item(home, touch, (Kind::Plain, None), work);
            }
        }
    }

    /// Has another shard do something about items; where nothing is asked, the client does not want to know what comes of it.
    fn ask_item(
        &mut self,
        at: Shard,
        command: ItemCommand<'_>,
        (kind, asked): (Kind, Option<AnswerWords<'_>>),
        work: &mut Turn<'_>,
    ) {
        self.make_room_to_pass(command.bytes());
        let ask = Ask::Item(command);
        let placement = self.placement_digest();
        let user = self.asker_for(&ask, work.connection.id);
        let Some(shards) = &mut self.others.shards else { return };
        let session = &mut work.connection.session;
        let after = if kind.reads() { after_of(session, shards) } else { Vec::new() };
        let pending = pending_of(session, shards);
        let id = match asked {
            Some(asked) => pending.expect_for(at, kind, asked.write()),
            None => pending.expect(at, kind, true),
        };
        let header = AskHeader { id, placement, after, user, ..AskHeader::default() };
        shards.ask(at, work.connection.id, &header, &ask);
    }

    /// Has several shards do their parts.
    fn ask_items(
        &mut self,
        parts: Vec<(Shard, ItemCommand<'_>)>,
        merge: Merge,
        (kind, asked): (Kind, Option<AnswerWords<'_>>),
        work: &mut Turn<'_>,
    ) {
        let Some(me) = self.others.shards.as_ref().map(|shards| shards.me) else { return };
        let placement = self.placement_digest();
        let mut own = None;
        if let Some((_, command)) = parts.iter().find(|(at, _)| *at == me) {
            own = self.execute_item_part(command, work);
        }
        let Some(shards) = &self.others.shards else { return };
        let session = &mut work.connection.session;
        let mut scattered = Scattered::new(merge, kind);
        scattered.silent = asked.is_none();
        scattered.question = asked.map(|asked| asked.write());
        pending_of(session, shards).expect_scattered(scattered);
        for (at, command) in parts {
            if at == me
                && let Some(answer) = own.take()
            {
                if let Some(pending) = work.connection.session.pending() {
                    pending.own_part(answer);
                }
                continue;
            }
            // This shard's own part comes by message where it has to wait.
            let ask = Ask::Item(command);
            let user = self.asker_for(&ask, work.connection.id);
            let Some(shards) = &mut self.others.shards else { continue };
            let session = &mut work.connection.session;
            let after = if kind.reads() { after_of(session, shards) } else { Vec::new() };
            let id = pending_of(session, shards).expect_part(at);
            let header = AskHeader { id, placement, after, user, ..AskHeader::default() };
            shards.ask(at, work.connection.id, &header, &ask);
        }
        self.collect_own(work);
    }

    /// Where the keys of something live that was sent here, if that is not here; `None` of those: at several shards.
    pub(crate) fn new_home_of_item(
        &self,
        placement: &Placement,
        command: &ItemCommand<'_>,
    ) -> Option<Option<Shard>> {
        let shards = self.others.shards.as_ref()?;
        match route(placement, shards.outbox.shards(), command) {
            To::At(home) if shards.me != home => Some(Some(home)),
            // In one process it was divided by the map of that moment.
            To::Parts(Merge::Values(_), _) if shards.outbox.are_apart() => Some(None),
            _ => None,
        }
    }

    /// Does something about items for a client of another shard, which came as this frame.
    pub(crate) fn execute_item(
        &mut self,
        command: &ItemCommand<'_>,
        frame: &[u8],
        work: &mut Turn<'_>,
    ) -> Flow {
        match self.item_is_held(command, work) {
            Some(ItemWait::Waits) => {
                // Whatever it waits for, it is executed anew then.
                work.connection.session.waiting = Some(Box::new(Waiting::Asked(frame.to_vec())));
                return Flow::Parked;
            }
            Some(ItemWait::Late) => {
                let why = locked_for_long(self.others.me());
                encoder(work).error("SERVER_ERROR", format_args!("{why}"));
                return Flow::Next;
            }
            None => {}
        }
        let done = self.carry_out_item(command, work).map_err(Stop::Wait);
        let flow = self.waits.step_done(done, frame, work);
        if flow != Flow::Parked
            && command.writes()
            && let Some(shards) = &mut self.others.shards
        {
            let position = shards.peers.stamp();
            work.connection.session.positions.reach(shards.me, position);
        }
        flow
    }

    /// Does this shard's part of something; its answer, unless it would have to wait.
    fn execute_item_part(
        &mut self,
        command: &ItemCommand<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Vec<u8>> {
        let out = core::mem::take(work.out);
        let form = core::mem::replace(&mut work.connection.session.form, Form::Typed);
        let queue = core::mem::replace(&mut self.waits.executing_queue, true);
        let is_held = self.item_is_held(command, work).is_some();
        let is_done = !is_held && self.carry_out_item(command, work).is_ok();
        self.waits.executing_queue = queue;
        work.connection.session.form = form;
        let answer = core::mem::replace(work.out, out);
        if !is_done {
            self.forget_waiting(work);
            return None;
        }
        Some(answer)
    }

    /// Whether something concerns keys that joins may give. Whether such a key is there may come before that it cannot be written.
    fn may_be_derived_item(&self, command: &ItemCommand<'_>) -> bool {
        let engine = self.node.engine();
        command.keys().any(|key| engine.may_derive(key))
    }

    /// Lets something wait where several shards are doing something with the partitions of its keys, or where it reads what is
    /// derived, until what is here shows the client's writes elsewhere. `None`: nothing is in its way.
    fn item_is_held(&mut self, command: &ItemCommand<'_>, work: &mut Turn<'_>) -> Option<ItemWait> {
        if let Some(held) = self.item_is_locked(command, work) {
            return Some(held);
        }
        if !self.may_be_derived_item(command) {
            return None;
        }
        let wait = self.await_positions(None, work)?;
        work.connection.session.waiting =
            Some(Box::new(Waiting::Shards(OwnedArgs::default(), wait, None)));
        Some(ItemWait::Waits)
    }

    fn item_is_locked(
        &mut self,
        command: &ItemCommand<'_>,
        work: &mut Turn<'_>,
    ) -> Option<ItemWait> {
        let placement = self.node.engine().placement()?;
        let shards = self.others.shards.as_ref()?;
        if shards.locks.is_empty() {
            return None;
        }
        let id = work.connection.id;
        match self.turn_of(id) {
            LockTurn::Waits => return Some(ItemWait::Waits),
            LockTurn::Granted => {
                self.forget_locked(id, work.peers);
                return None;
            }
            LockTurn::Late => {
                self.forget_locked(id, work.peers);
                return Some(ItemWait::Late);
            }
            LockTurn::None => {}
        }
        let mut keys = command.keys().map(|key| placement.partition(key)).peekable();
        let set = if keys.peek().is_some() { LockSet::of(keys) } else { LockSet::All };
        if !shards.locks.blocks(&set) {
            return None;
        }
        if !self.waits.executing_queue {
            // A part of a request comes by message instead, and waits there.
            self.block(id, set);
        }
        Some(ItemWait::Waits)
    }
}
