//! What users may do, held against what their sessions ask, watch and listen to.
//!
//! A request is judged once, where its client is, before anything of it is executed: also what MULTI queues, and all of it again at EXEC,
//! which executes nothing if one of its requests is not allowed any more. What has waited is judged again when it goes on.
//!
//! When users change, each shard renews the rights of its sessions before it goes on (see [`crate::users`]). A watch of
//! a range that may not be read any more ends, and its client is told why; a client that listens to a channel, or tracks keys, for
//! which it has no right any more is ended, as Redis does for channels: it has to begin anew with what it may.

use super::client::describe;
use super::session::{Origin, Session, Waiting};
use super::{Resp, Turn, encoder};
use crate::connection::{Connection, ConnectionId};
use crate::connections::Connections;
use crate::log::event;
use crate::users::{SeenUsers, reach_of};
use headwater_acl::{
    Access, AclEvent, AclReason, DefinitionKind, Demand, Denied, Reach, User, Users, demands,
    key_demands,
};
use headwater_base::KeyRange;
use headwater_command::{
    Args, Command, Credentials, Data, Flags, Flows, Functions, Id, Joins, Ranges, Reply, Spec,
};
use headwater_protocol::resp::{decode, find};
use std::sync::Arc;

/// Why a request is not allowed.
#[derive(Debug)]
pub(crate) enum NotAllowed {
    /// Its user has no right to it.
    Denied(Denied),
    /// What it reads, or runs, is refused to everybody, because the rights behind it are gone.
    Suspended(String),
}

impl From<Denied> for NotAllowed {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

/// What becomes of a session whose user has changed.
enum Renewed {
    /// It goes on, without these watches, for the reasons given.
    GoesOn(Vec<(u32, String)>),
    /// It ends, for this reason.
    Ends(&'static str),
}

impl Resp {
    /// Goes by what the users are now.
    pub(super) fn see_users(&mut self) {
        let before = core::mem::replace(&mut self.seen, self.registry.seen());
        self.refuse_flows(&before);
    }

    /// Has flows rest that are refused now, and go on that were before.
    fn refuse_flows(&mut self, before: &SeenUsers) {
        let is_new = |it: &headwater_acl::Suspended| !before.suspended.contains(it);
        self.seen.are_new = self.seen.suspended.iter().any(is_new);
        let flows = |it: &&headwater_acl::Suspended| it.kind == DefinitionKind::Flow;
        for flow in before.suspended.iter().filter(flows) {
            self.node.refuse_flow(&flow.name, false);
        }
        for flow in self.seen.suspended.iter().filter(flows) {
            self.node.refuse_flow(&flow.name, true);
        }
    }

    /// Begins a session with the rights of `default`, if those need no password.
    pub(super) fn let_in(&self, session: &mut Session) {
        let state = self.registry.lock();
        let user = state.users.default_user();
        if user.nopass && user.enabled {
            session.authenticated = true;
            session.unrestricted = user.is_unrestricted() && state.suspended().is_empty();
            session.user = Some(user.clone());
        }
    }

    /// A client has given a user's name and password.
    pub(super) fn log_in(&mut self, user: Arc<User>, connection: &mut Connection<Session>) {
        event!(info, "audit", "logged_in", peer = %connection.peer, user = %user.shown(), "a client logged in");
        let session = &mut connection.session;
        session.authenticated = true;
        session.unrestricted = user.is_unrestricted() && self.seen.suspended.is_empty();
        let before = session.user.replace(user.clone());
        if before.is_some_and(|before| *before != *user) {
            // What it watches, hears and tracks is by the rights of the one it was.
            self.forget_subscriptions(connection.id, &mut connection.session);
            self.forget_monitor(connection.id, &mut connection.session);
            self.forget_range_watches(&mut connection.session);
            self.forget_tracking(connection.id, &mut connection.session);
        }
    }

    /// Notes a wrong password.
    pub(super) fn note_wrong_password(
        &mut self,
        credentials: &Credentials<'_>,
        connection: &Connection<Session>,
    ) {
        self.note_failure(connection);
        event!(warn, "clients", "auth_failed", peer = %connection.peer, "a client gave a wrong name or password");
        let name = String::from_utf8_lossy(credentials.user.unwrap_or(b"default")).into_owned();
        event!(warn, "audit", "refused", peer = %connection.peer, user = %name.escape_debug(), reason = "auth", "a client was refused");
        let command = connection.session.last_command;
        let object = if command == "hello" { "HELLO" } else { "AUTH" };
        self.note_refusal(AclReason::Auth, object, &name, connection);
    }

    fn note_refusal(
        &mut self,
        reason: AclReason,
        object: &str,
        user: &str,
        connection: &Connection<Session>,
    ) -> bool {
        let mut client = String::new();
        describe(connection, self.time.uptime, None, &mut client);
        let now = self.time.wall.0;
        self.stats.denied[match reason {
            AclReason::Auth => 0,
            AclReason::Command => 1,
            AclReason::Key => 2,
            AclReason::Channel => 3,
        }] += 1;
        let event = AclEvent {
            id: 0,
            count: 0,
            reason,
            in_transaction: connection.session.queue.is_some() || self.executing_queue,
            object: object.to_owned(),
            user: user.to_owned(),
            client: client.trim_end().to_owned(),
            created: now,
            updated: now,
        };
        self.registry.note(event, self.config.observe.acllog_entries_max)
    }

    /// Whether a request may be executed; if not, that is answered.
    #[cold]
    pub(super) fn is_allowed(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> bool {
        let Some(user) = work.connection.session.user.clone() else { return true };
        if let Err(why) = self.judge(&user, spec, args) {
            self.refuse(&why, spec.full_name, &user, work);
            if let Some(queue) = &mut work.connection.session.queue {
                queue.broken = true;
            }
            return false;
        }
        if spec.id == Id::Exec {
            self.judge_queue(&user, work);
        }
        true
    }

    /// Has EXEC refuse all of a transaction of which a request is not allowed any more.
    fn judge_queue(&mut self, user: &User, work: &mut Turn<'_>) {
        let Some(queue) = work.connection.session.queue.as_deref() else { return };
        let refused = queue.requests.iter().find_map(|request| {
            let spec = find(request.args()).ok()?;
            let why = self.judge(user, spec, request.args()).err()?;
            Some((spec.full_name, why))
        });
        let Some((name, why)) = refused else { return };
        let text = self.note_not_allowed(&why, name, user, work.connection);
        if let Some(queue) = &mut work.connection.session.queue {
            queue.broken = true;
            queue.why = Some(format!(
                "a change of rights: '{name}' is no longer allowed for the following reason: {text}"
            ));
        }
    }

    /// Whether a user may send a request.
    pub(super) fn judge(
        &self,
        user: &User,
        spec: &'static Spec,
        args: Args<'_>,
    ) -> Result<(), NotAllowed> {
        let first = args.get(1);
        let Ok(command) = decode(spec, args) else {
            // What is wrong with it is told to whoever may send it at all.
            let mut needs = Vec::new();
            key_demands(spec, args, &mut needs);
            return Ok(user.check(spec, first, &needs)?);
        };
        let mut needs = Vec::new();
        demands(spec, args, &command, &mut needs);
        let reaches = self.reaches(&command);
        needs.extend(reaches.iter().flat_map(Reach::demands));
        user.check(spec, first, &needs)?;
        self.look_at_suspended(user, spec, &command, &needs)
    }

    /// What the definitions read and write that a command adds, replaces, drops or drives.
    fn reaches(&self, command: &Command<'_>) -> Vec<Reach> {
        let (kind, name, new) = match command {
            Command::Data(Data::Joins(Joins::Add { name, spec, .. })) => {
                (DefinitionKind::Join, *name, self.node.reach_of_join(spec))
            }
            Command::Data(Data::Joins(Joins::Drop { name })) => (DefinitionKind::Join, *name, None),
            Command::Data(Data::Flows(flows)) => match flows {
                Flows::Add { name, .. } => {
                    (DefinitionKind::Flow, *name, self.node.reach_of_flow(flows))
                }
                Flows::Drop { name }
                | Flows::Pause { name, .. }
                | Flows::Dead { name }
                | Flows::Retry { name, .. }
                | Flows::Discard { name, .. }
                | Flows::Replay { name, .. } => (DefinitionKind::Flow, *name, None),
                Flows::List | Flows::Info { .. } => return Vec::new(),
            },
            Command::Data(Data::Ranges(Ranges::ExplainKey { key })) => {
                return vec![self.explained(KeyRange::point(key))];
            }
            Command::Data(Data::Ranges(Ranges::Explain { first, last })) => {
                return vec![self.explained(KeyRange::new(first, last))];
            }
            _ => return Vec::new(),
        };
        let state = self.registry.lock();
        let there = state.definitions.get(kind, name).map(|it| it.reach.clone());
        new.map(reach_of).into_iter().chain(there).collect()
    }

    /// What an explanation of a range shows: the sources of the joins that give it, and theirs.
    fn explained(&self, range: KeyRange) -> Reach {
        let state = self.registry.lock();
        let mut reads = vec![range];
        let mut at = 0;
        while let Some(range) = reads.get(at).cloned() {
            at += 1;
            let joins = state.definitions.iter().filter(|it| it.0 == DefinitionKind::Join);
            for (_, _, join) in joins {
                if join.reach.writes.iter().any(|writes| writes.overlaps(&range)) {
                    let new = join.reach.reads.iter().filter(|source| !reads.contains(source));
                    let new: Vec<KeyRange> = new.cloned().collect();
                    reads.extend(new);
                }
            }
        }
        Reach { reads, ..Reach::default() }
    }

    /// Whether what a request reads or runs is refused because the rights behind it are gone.
    fn look_at_suspended(
        &self,
        user: &User,
        spec: &Spec,
        command: &Command<'_>,
        needs: &[Demand<'_>],
    ) -> Result<(), NotAllowed> {
        let mut all = self.seen.suspended.iter();
        let why = match command {
            Command::Data(Data::Functions(
                Functions::Call { name, .. } | Functions::Range { name, .. },
            )) => self.suspended_function(name),
            Command::Data(Data::Flows(
                Flows::Pause { name, paused: false }
                | Flows::Retry { name, .. }
                | Flows::Replay { name, .. },
            )) => {
                let flow = all.find(|it| it.kind == DefinitionKind::Flow && it.name == *name);
                flow.map(|it| &*it.reason)
            }
            _ => None,
        };
        // Whoever may do everything sees which keys there are, and removes them and what gives them.
        let lists = matches!(
            spec.id,
            Id::Keys
                | Id::Scan
                | Id::RandomKey
                | Id::FlushAll
                | Id::FlushDb
                | Id::RangeDel
                | Id::JoinAdd
                | Id::JoinDrop
        );
        let is_free = lists && user.is_unrestricted();
        let why = why.or_else(|| if is_free { None } else { self.suspended_among(needs) });
        why.map_or(Ok(()), |why| Err(NotAllowed::Suspended(why.to_owned())))
    }

    /// Why a function is refused to everybody.
    pub(crate) fn suspended_function(&self, name: &[u8]) -> Option<&str> {
        let name = String::from_utf8_lossy(name);
        let module = self.seen.suspended.iter().find(|it| it.has_function(&name));
        module.map(|it| &*it.reason)
    }

    /// Why one of these keys or ranges is refused to everybody.
    pub(crate) fn suspended_among(&self, needs: &[Demand<'_>]) -> Option<&str> {
        let mut ranges = needs.iter().filter_map(|need| match need {
            Demand::Key { key, .. } => Some(KeyRange::point(key)),
            Demand::Range { range, .. } => Some(range.clone()),
            Demand::Channel(_) | Demand::ChannelPattern(_) | Demand::Command(_) => None,
        });
        ranges.find_map(|range| {
            let found = self.seen.suspended.iter().find(|it| it.gives(&range));
            found.map(|it| &*it.reason)
        })
    }

    /// Notes that a request is refused; the text behind `NOPERM`.
    pub(crate) fn note_not_allowed(
        &mut self,
        why: &NotAllowed,
        command: &str,
        user: &User,
        connection: &Connection<Session>,
    ) -> String {
        let name = user.shown();
        let (reason, object, text) = match why {
            NotAllowed::Denied(denied) => (denied.reason(), denied.object(), denied.refusal(&name)),
            NotAllowed::Suspended(reason) => (AclReason::Key, command.to_owned(), reason.clone()),
        };
        if self.note_refusal(reason, &object, &name, connection) {
            let reason = reason.word();
            event!(warn, "audit", "refused", peer = %connection.peer, user = %name.escape_debug(), reason, command, "a client was refused");
        }
        text
    }

    fn refuse(&mut self, why: &NotAllowed, command: &str, user: &User, work: &mut Turn<'_>) {
        let text = self.note_not_allowed(why, command, user, work.connection);
        encoder(work).error("NOPERM", format_args!("{text}"));
    }

    /// Notes for the shards that execute it whose definition is asked for.
    #[cold]
    pub(crate) fn note_asker(&mut self, work: &Turn<'_>) {
        let Some(user) = &work.connection.session.user else { return };
        let origin = Origin { shard: self.me(), session: work.connection.id };
        self.registry.asks(origin, &user.name);
    }

    /// A connection has ended.
    pub(super) fn forget_asker(&mut self, connection: &Connection<Session>) {
        if self.shards.is_some() && !connection.is_remote() {
            self.registry.gone(&Origin { shard: self.me(), session: connection.id });
        }
    }

    /// The user whose definition is executed.
    pub(super) fn asker(&self, session: &Session) -> Option<Vec<u8>> {
        match &session.across {
            super::session::Across::Remote(remote) => self.registry.asker(&remote.origin),
            _ => session.user.as_ref().map(|user| user.name.clone()),
        }
    }

    /// Notes who has defined or dropped something, which reads and writes for others from now on.
    pub(crate) fn note_definition(&mut self, spec: &Spec, command: &Command<'_>, work: &Turn<'_>) {
        let owner = self.asker(&work.connection.session);
        if self.me().0 == 0 && is_told(spec.id) {
            let user = owner.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let name = defined_name(command);
            event!(info, "audit", "defined", user = %user.escape_debug(), command = spec.full_name, name = %name.escape_debug(), "a definition, a setting or a user was changed");
        }
        // Nobody whom rights can be taken from is worth to be remembered.
        let (kind, name, reach) = match command {
            Command::Data(Data::Joins(Joins::Add { name, spec, .. })) => {
                let reach = self.node.reach_of_join(spec).map(reach_of);
                (DefinitionKind::Join, *name, reach)
            }
            Command::Data(Data::Joins(Joins::Drop { name })) => (DefinitionKind::Join, *name, None),
            Command::Data(Data::Flows(flows @ Flows::Add { name, .. })) => {
                let reach = self.node.reach_of_flow(flows).map(reach_of);
                (DefinitionKind::Flow, *name, reach)
            }
            Command::Data(Data::Flows(Flows::Drop { name })) => (DefinitionKind::Flow, *name, None),
            Command::Data(Data::Functions(Functions::Load { name, .. })) => {
                let reach = Some(crate::users::reach_of_module());
                (DefinitionKind::Module, *name, reach)
            }
            Command::Data(Data::Functions(Functions::Drop { name })) => {
                (DefinitionKind::Module, *name, None)
            }
            _ => return,
        };
        let kept = reach.as_ref().and(owner.as_deref());
        if let Some(keeping) = &mut self.keeping {
            keeping.owned(kind.word(), name, kept);
        }
        match reach {
            Some(reach) => self.registry.defined(kind, name, owner, reach),
            None => self.registry.dropped(kind, name),
        }
        // A flow that was added anew rests if the one of that name does.
        self.refuse_flows(&self.seen.clone());
    }

    /// Renews the rights of all sessions, if users have changed. `false`: the one being served is to end.
    #[inline]
    pub(crate) fn keeps_rights(&mut self, work: &mut Turn<'_>) -> bool {
        self.registry.version() == self.seen.version || self.renew_rights(work)
    }

    #[cold]
    fn renew_rights(&mut self, work: &mut Turn<'_>) -> bool {
        let users = self.renew_others(work.peers);
        if work.connection.is_remote() {
            return true;
        }
        match self.renew(&users, &mut work.connection.session) {
            Renewed::GoesOn(watches) => {
                for (watch, why) in watches {
                    self.end_own_watch(watch, &why, work);
                }
                true
            }
            Renewed::Ends(why) => {
                note_end(why, work.connection);
                let (id, session) = (work.connection.id, &mut work.connection.session);
                self.lock_out(id, session);
                // What it has begun with others goes on to its end.
                session.coordinates() || session.is_within_exec()
            }
        }
    }

    /// The same, where none is being served.
    pub(super) fn renew_rights_of_all(&mut self, connections: &mut Connections<Session>) {
        if self.registry.version() != self.seen.version {
            self.renew_others(connections);
        }
    }

    fn renew_others(&mut self, peers: &mut Connections<Session>) -> Users {
        self.see_users();
        let users = self.registry.lock().users.clone();
        let ids: Vec<ConnectionId> =
            peers.iter().filter(|peer| !peer.is_remote()).map(|peer| peer.id).collect();
        for id in ids {
            let Some(connection) = peers.get_mut(id) else { continue };
            match self.renew(&users, &mut connection.session) {
                Renewed::GoesOn(watches) => {
                    for (watch, why) in watches {
                        self.end_watch_of((id, watch), &why, peers);
                    }
                }
                Renewed::Ends(why) => {
                    note_end(why, connection);
                    self.lock_out(id, &mut connection.session);
                    peers.kill(id);
                }
            }
        }
        users
    }

    /// Has a session that is to end hear nothing more.
    fn lock_out(&mut self, id: ConnectionId, session: &mut Session) {
        session.user = None;
        (session.authenticated, session.unrestricted) = (false, false);
        self.forget_subscriptions(id, session);
        self.forget_monitor(id, session);
        self.forget_range_watches(session);
        self.forget_tracking(id, session);
    }

    /// Gives a session the rights that its user has now, and ends what these do not allow.
    fn renew(&self, users: &Users, session: &mut Session) -> Renewed {
        let Some(before) = session.user.clone() else { return Renewed::GoesOn(Vec::new()) };
        let Some(user) = users.get(&before.name) else {
            return Renewed::Ends("its user is no more");
        };
        session.unrestricted = user.is_unrestricted() && self.seen.suspended.is_empty();
        session.user = Some(user.clone());
        if session.unrestricted {
            return Renewed::GoesOn(Vec::new());
        }
        let has_lost = !user.covers(&before);
        // Whoever changes users may wait for the answer to just that.
        let changes_users = session.last_command.starts_with("acl|");
        if has_lost && session.expects() && !changes_users {
            // Other shards go by what was judged here when it was asked.
            return Renewed::Ends("its user has lost a right while it was asking other shards");
        }
        if has_lost && session.monitors {
            return Renewed::Ends("its user has lost a right while it was shown what others ask");
        }
        if let Some(subscriptions) = &session.subscriptions {
            let mut channels = subscriptions.channels.iter().map(|it| Demand::Channel(it));
            let mut patterns = subscriptions.patterns.iter().map(|it| Demand::ChannelPattern(it));
            if !channels.all(|it| user.meets(&it).is_ok())
                || !patterns.all(|it| user.meets(&it).is_ok())
            {
                return Renewed::Ends("its user may no longer hear a channel that it listens to");
            }
        }
        let may_read = |range: &KeyRange| {
            let need = [Demand::Range { range: range.clone(), access: Access::READ }];
            match user.meets(&need[0]) {
                Ok(()) => self.suspended_among(&need).map_or(Ok(()), |why| Err(why.to_owned())),
                Err(denied) => Err(denied.refusal(&user.shown())),
            }
        };
        if let Some(tracks) = &session.tracking {
            let may_track = if tracks.broadcast && !tracks.prefixes.is_empty() {
                tracks.prefixes.iter().all(|prefix| may_read(&KeyRange::prefix(prefix)).is_ok())
            } else if tracks.broadcast {
                may_read(&KeyRange::all()).is_ok()
            } else {
                // Which keys it has read is not asked: it reads again.
                !has_lost && !self.seen.are_new
            };
            if !may_track {
                return Renewed::Ends("its user may no longer read what it tracks");
            }
        }
        let ranges = session.watches.iter().filter_map(|&id| Some((id, self.watched_range(id)?)));
        let refused = ranges.filter_map(|(id, range)| Some((id, may_read(range).err()?)));
        let refused: Vec<(u32, String)> = refused.collect();
        let is_waiting = matches!(session.waiting.as_deref(), Some(Waiting::Watch(_)));
        if is_waiting && !refused.is_empty() {
            return Renewed::Ends("its user may no longer read what it began to watch");
        }
        Renewed::GoesOn(refused)
    }
}

/// Whether the audit log tells of a command that was executed.
fn is_told(id: Id) -> bool {
    matches!(
        id,
        Id::JoinAdd
            | Id::JoinDrop
            | Id::TableSet
            | Id::FlowAdd
            | Id::FlowDrop
            | Id::FlowPause
            | Id::FlowResume
            | Id::FlowRetry
            | Id::FlowDiscard
            | Id::FlowReplay
            | Id::SourceAdd
            | Id::SourceDrop
            | Id::FnLoad
            | Id::FnDrop
            | Id::ConfigSet
            | Id::AclSetUser
            | Id::AclDelUser
            | Id::AclLoad
            | Id::AclSave
            | Id::ShardMove
            | Id::ClientKill
            | Id::Shutdown
    )
}

/// The name of what a command defines, drops or changes.
fn defined_name(command: &Command<'_>) -> String {
    let name: &[u8] = match command {
        Command::Data(Data::Joins(Joins::Add { name, .. } | Joins::Drop { name }))
        | Command::Data(Data::Functions(Functions::Load { name, .. } | Functions::Drop { name }))
        | Command::Data(Data::Flows(Flows::Add { name, .. } | Flows::Drop { name })) => {
            name.as_bytes()
        }
        Command::Data(Data::Tables(headwater_command::Tables::Set { name, .. })) => name,
        Command::Sources(
            headwater_command::Sources::Add { name, .. }
            | headwater_command::Sources::Drop { name },
        ) => name.as_bytes(),
        Command::Acl(headwater_command::Acl::SetUser { name, .. }) => name,
        _ => b"",
    };
    String::from_utf8_lossy(name).into_owned()
}

fn note_end(why: &str, connection: &Connection<Session>) {
    let user = connection.session.user.as_ref().map(|user| user.shown()).unwrap_or_default();
    event!(info, "audit", "client_ended", peer = %connection.peer, user = %user.escape_debug(), why, "a client was ended because rights have changed");
}

/// Whether a command may define something, so that whoever executes it must know whose it is.
pub(super) fn may_define(spec: &Spec) -> bool {
    spec.flags.has(Flags::ADMIN) || spec.id == Id::Exec
}
