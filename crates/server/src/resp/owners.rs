//! Who defined what: noted where a definition is executed, told by the audit log, shown beside what is defined.

use super::session::{Across, Origin, Session};
use super::{ShardService, Turn};
use crate::connection::{Connection, ConnectionId};
use crate::log::event;
use crate::resp::parts::Admission;
use crate::users::reach_of;
use headwater_acl::{Access, DefinitionKind, Demand};
use headwater_command::{
    Acl, Args, Command, Data, Flags, Flows, Functions, Id, Joins, Server, Sources, Spec, Tables,
};
use headwater_router::Ask;

impl ShardService {
    /// Notes for the shards that execute it whose definition is asked for.
    #[cold]
    pub(crate) fn note_asker(&mut self, work: &Turn<'_>) {
        let Some(user) = &work.connection.session.user else { return };
        let origin = Origin { shard: self.others.me(), session: work.connection.id };
        self.admission.registry.asks(origin, &user.name);
    }

    /// The user of a client, where a shard in another process is asked for something whose user it has to know.
    #[inline]
    pub(crate) fn asker_for(&self, ask: &Ask<'_>, client: ConnectionId) -> Option<Vec<u8>> {
        if !self.others.are_apart() {
            return None;
        }
        let is_for_user = match ask {
            Ask::Command(spec, _) => is_for_user(spec),
            Ask::Exec(_) | Ask::Execute { .. } | Ask::Item(_) => true,
            _ => false,
        };
        let origin = Origin { shard: self.others.me(), session: client };
        is_for_user.then(|| self.admission.registry.asker(&origin)).flatten()
    }

    /// A connection has ended.
    pub(super) fn forget_asker(&mut self, connection: &Connection<Session>) {
        if self.others.shards.is_none() {
            return;
        }
        let here = Origin { shard: self.others.me(), session: connection.id };
        match &connection.session.across {
            Across::Remote(remote) if self.others.are_apart() => {
                self.admission.registry.gone(&remote.origin);
            }
            Across::Remote(_) => {}
            _ => self.admission.registry.gone(&here),
        }
    }

    /// Has the explanation that is executed next tell of what its user may read.
    #[cold]
    pub(super) fn explain_to_user(&mut self, spec: &'static Spec, session: &Session) {
        if session.unrestricted && !session.is_remote() {
            return self.node.explain_to(None);
        }
        let name = self.admission.asker(session);
        let user = name.and_then(|name| self.admission.registry.lock().users.get(&name).cloned());
        self.node.explain_to(Some(Box::new(move |range| {
            let need = Demand::Range { range: range.clone(), access: Access::READ };
            user.as_ref().is_some_and(|user| user.check(spec, None, &[need]).is_ok())
        })));
    }

    /// Notes who has defined or dropped something, which reads and writes for others from now on.
    pub(crate) fn note_definition(&mut self, spec: &Spec, command: &Command<'_>, work: &Turn<'_>) {
        let owner = self.admission.asker(&work.connection.session);
        if is_told(spec.id) && (self.others.tells_of_process() || is_of_one_shard(spec.id)) {
            tell_definition(owner.as_deref(), spec.full_name, &defined_name(command));
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
        if let Some(keeping) = &mut self.stores.keeping {
            keeping.owned(kind.word(), name, kept);
        }
        match reach {
            Some(reach) => self.admission.registry.defined(kind, name, owner, reach),
            None => self.admission.registry.dropped(kind, name),
        }
        // A flow that was added anew rests if the one of that name does.
        self.refuse_flows(&self.admission.seen.clone());
    }
}

impl Admission {
    /// The user whose definition is executed.
    pub(super) fn asker(&self, session: &Session) -> Option<Vec<u8>> {
        match &session.across {
            Across::Remote(remote) => self.registry.asker(&remote.origin),
            _ => session.user.as_ref().map(|user| user.name.clone()),
        }
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
            | Id::BackupBegin
            | Id::ShardMove
            | Id::ClientKill
    )
}

/// Whether a command is executed by one shard, the client's own; of others the first shard tells, which executes them with the rest or alone.
fn is_of_one_shard(id: Id) -> bool {
    matches!(id, Id::AclSave | Id::BackupBegin | Id::ShardMove)
}

/// Tells the audit log who has changed what.
pub(super) fn tell_definition(user: Option<&[u8]>, command: &str, name: &str) {
    let user = user.map(String::from_utf8_lossy).unwrap_or_default();
    event!(info, "audit", "defined", user = %user.escape_debug(), command, name = %name.escape_debug(), "a definition, a setting or a user was changed");
}

/// The name of what a command defines, drops or changes; several have commas between.
fn defined_name(command: &Command<'_>) -> String {
    let several = |names: Args<'_>, step: usize| {
        let names: Vec<_> = names.iter().step_by(step).map(String::from_utf8_lossy).collect();
        names.join(",")
    };
    let name: &[u8] = match command {
        Command::Data(Data::Joins(Joins::Add { name, .. } | Joins::Drop { name }))
        | Command::Data(Data::Functions(Functions::Load { name, .. } | Functions::Drop { name }))
        | Command::Data(Data::Flows(
            Flows::Add { name, .. }
            | Flows::Drop { name }
            | Flows::Pause { name, .. }
            | Flows::Retry { name, .. }
            | Flows::Discard { name, .. }
            | Flows::Replay { name, .. },
        )) => name.as_bytes(),
        Command::Data(Data::Tables(Tables::Set { name, .. })) => name,
        Command::Sources(Sources::Add { name, .. } | Sources::Drop { name }) => name.as_bytes(),
        Command::Acl(Acl::SetUser { name, .. }) => name,
        Command::Acl(Acl::DelUser { names }) => return several(*names, 1),
        Command::Server(Server::ConfigSet { pairs }) => return several(*pairs, 2),
        _ => b"",
    };
    String::from_utf8_lossy(name).into_owned()
}

/// Whether whoever executes a command must know whose it is: since it may define something, or shows what its user may read.
pub(super) fn is_for_user(spec: &Spec) -> bool {
    spec.flags.has(Flags::ADMIN) || spec.id == Id::Exec || is_explanation(spec.id)
}

/// Whether a command explains how answers come about.
pub(super) fn is_explanation(id: Id) -> bool {
    matches!(id, Id::Explain | Id::ExplainRange)
}
