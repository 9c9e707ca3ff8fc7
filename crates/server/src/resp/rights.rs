//! What users may do, held against what their sessions ask, watch and listen to.
//!
//! A request is judged once, where its client is, before anything of it is executed: also what MULTI queues, and all of it again at EXEC,
//! which answers what is not allowed any more with an error, and executes the rest. What has waited is judged again when it goes on.

use super::client::describe;
use super::session::Session;
use super::{ShardService, Turn, encoder};
use crate::connection::Connection;
use crate::log::event;
use crate::resp::parts::Admission;
use crate::users::reach_of;
use headwater_acl::{
    AclEvent, AclReason, DefinitionKind, Demand, Denied, Reach, User, demands, key_demands,
};
use headwater_base::KeyRange;
use headwater_command::{
    Args, Command, Credentials, Data, Flows, Functions, Id, Joins, Reply, Server, Spec,
};
use headwater_protocol::resp::{decode, find};
use std::net::SocketAddr;
use std::sync::Arc;

/// Why a request is not allowed.
#[derive(Debug)]
pub(crate) enum NotAllowed {
    /// Its user has no right to it.
    Denied(Denied),
    /// What it reads, or runs, is refused to everybody, because the rights behind it are gone.
    Suspended(String),
}

impl NotAllowed {
    /// What EXEC says of a request that was allowed when it was queued, in Redis's own words.
    fn lost(&self) -> &str {
        match self {
            Self::Suspended(reason) => reason,
            Self::Denied(denied) => match denied.reason() {
                AclReason::Key => "no permission to touch the specified keys",
                AclReason::Channel => {
                    "no permission to access one of the channels used as arguments to the command"
                }
                AclReason::Command | AclReason::Auth => {
                    "no permission to execute the command or subcommand"
                }
            },
        }
    }
}

impl From<Denied> for NotAllowed {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl ShardService {
    /// A client has given a user's name and password.
    pub(super) fn log_in(&mut self, user: Arc<User>, connection: &mut Connection<Session>) {
        event!(info, "audit", "logged_in", peer = %connection.peer, user = %user.shown().escape_debug(), "a client logged in");
        let session = &mut connection.session;
        session.authenticated = true;
        session.unrestricted = user.is_unrestricted() && self.admission.seen.suspended.is_empty();
        let before = session.user.replace(user.clone());
        if before.is_some_and(|before| *before != *user) {
            // What it watches, hears and tracks is by the rights of the one it was.
            self.pushes.forget_subscriptions(connection.id, &mut connection.session);
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
        self.figures.stats.denied[match reason {
            AclReason::Auth => 0,
            AclReason::Command => 1,
            AclReason::Key => 2,
            AclReason::Channel => 3,
        }] += 1;
        let event = AclEvent {
            id: 0,
            count: 0,
            reason,
            in_transaction: connection.session.queue.is_some() || self.waits.executing_queue,
            object: object.to_owned(),
            user: user.to_owned(),
            client: client.trim_end().to_owned(),
            created: now,
            updated: now,
        };
        self.admission.registry.note(event, self.settings.config.observe.acllog_entries_max)
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

    /// Notes which requests of a transaction are not allowed any more.
    fn judge_queue(&self, user: &User, work: &mut Turn<'_>) {
        let Some(queue) = &mut work.connection.session.queue else { return };
        let refused = queue.requests.iter().enumerate().filter_map(|(at, request)| {
            let spec = find(request.args()).ok()?;
            Some((at, self.judge(user, spec, request.args()).err()?))
        });
        queue.refused = refused.collect();
    }

    /// Answers a request of a transaction that was allowed when it was queued, and is no longer.
    pub(super) fn refuse_queued(&mut self, why: &NotAllowed, args: Args<'_>, work: &mut Turn<'_>) {
        if let (Some(user), Ok(spec)) = (work.connection.session.user.clone(), find(args)) {
            self.waits.executing_queue = true;
            self.note_not_allowed(why, spec.full_name, &user, work.connection);
            self.waits.executing_queue = false;
        }
        let text = "ACLs rules changed between the moment the transaction was accumulated and the \
            EXEC call. This command is no longer allowed for the following reason:";
        encoder(work).error("NOPERM", format_args!("{text} {}", why.lost()));
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
        self.admission.look_at_suspended(user, spec, &command, &needs)
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
            _ => return Vec::new(),
        };
        let state = self.admission.registry.lock();
        let there = state.definitions.get(kind, name).map(|it| it.reach.clone());
        new.map(reach_of).into_iter().chain(there).collect()
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
}

impl Admission {
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

    /// Logs in whom a certificate names.
    pub(super) fn log_in_certified(&self, session: &mut Session, peer: SocketAddr) {
        let Some(certificate) = &session.certificate else { return };
        match self.registry.user_of_certificate(certificate) {
            Ok(None) => {}
            Ok(Some(user)) => {
                event!(info, "audit", "logged_in", %peer, user = %user.shown().escape_debug(), certificate = %certificate.escape_debug(), "a certificate logged a client in");
                session.authenticated = true;
                session.unrestricted = user.is_unrestricted() && self.seen.suspended.is_empty();
                session.user = Some(user);
            }
            Err(name) => {
                let name = String::from_utf8_lossy(&name);
                event!(warn, "audit", "refused", %peer, user = %name.escape_debug(), reason = "certificate", "a certificate is of a user who may not log in");
            }
        }
    }

    /// Whether what a request reads or runs is refused because the rights behind it are gone.
    fn look_at_suspended(
        &self,
        user: &User,
        spec: &Spec,
        command: &Command<'_>,
        needs: &[Demand<'_>],
    ) -> Result<(), NotAllowed> {
        let why = match command {
            Command::Data(Data::Functions(
                Functions::Call { name, .. } | Functions::Range { name, .. },
            )) => self.suspended_function(name),
            Command::Data(Data::Flows(
                Flows::Pause { name, paused: false }
                | Flows::Retry { name, .. }
                | Flows::Replay { name, .. },
            )) => self.seen.suspended.get(DefinitionKind::Flow, name).map(|it| &*it.reason),
            // It shows what is asked, which is refused on its own.
            Command::Server(Server::Monitor) => return Ok(()),
            _ => None,
        };
        // Whoever may do everything sees which keys there are, and removes them and what gives them.
        let lists = matches!(
            spec.id,
            Id::Keys
                | Id::Scan
                | Id::RandomKey
                | Id::ClusterGetKeysInSlot
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
        self.seen.suspended.module_of(&name).map(|it| &*it.reason)
    }

    /// Why one of these keys or ranges is refused to everybody.
    pub(crate) fn suspended_among(&self, needs: &[Demand<'_>]) -> Option<&str> {
        let mut ranges = needs.iter().filter_map(|need| match need {
            Demand::Key { key, .. } => Some(KeyRange::point(key)),
            Demand::Range { range, .. } => Some(range.clone()),
            Demand::Channel(_) | Demand::ChannelPattern(_) | Demand::Command(_) => None,
        });
        ranges.find_map(|range| self.seen.suspended.giving(&range).map(|it| &*it.reason))
    }
}
