//! The rights of sessions, once users have changed.
//!
//! When users change, each shard renews the rights of its sessions before it goes on (see [`crate::users`]). A watch of
//! a range that may not be read any more ends, and its client is told why; a client that listens to a channel, or tracks keys, for
//! which it has no right any more is ended, as Redis does for channels: it has to begin anew with what it may.

use super::session::{Session, Waiting};
use super::{ShardService, Turn};
use crate::connection::{Connection, ConnectionId, Phase};
use crate::connections::Connections;
use crate::log::event;
use crate::users::SeenUsers;
use headwater_acl::{Access, DefinitionKind, Demand, User, Users};
use headwater_base::KeyRange;
use std::sync::Arc;

/// What becomes of a session whose user has changed.
enum Renewed {
    /// It goes on, without these watches, for the reasons given.
    GoesOn(Vec<(u32, String)>),
    /// It ends, for this reason.
    Ends(&'static str),
}

impl ShardService {
    /// Goes by what the users are now.
    pub(super) fn see_users(&mut self) {
        let before = core::mem::replace(&mut self.admission.seen, self.admission.registry.seen());
        self.refuse_flows(&before);
    }

    /// Has flows rest that are refused now, and go on that were before.
    pub(super) fn refuse_flows(&mut self, before: &SeenUsers) {
        let is_new =
            |it: &headwater_acl::Suspended| before.suspended.get(it.kind, &it.name) != Some(it);
        self.admission.seen.are_new = self.admission.seen.suspended.iter().any(is_new);
        let flows = |it: &&headwater_acl::Suspended| it.kind == DefinitionKind::Flow;
        for flow in before.suspended.iter().filter(flows) {
            self.node.refuse_flow(&flow.name, false);
        }
        for flow in self.admission.seen.suspended.iter().filter(flows) {
            self.node.refuse_flow(&flow.name, true);
        }
    }

    /// Renews the rights of all sessions, if users have changed. `false`: the one being served is to end.
    #[inline]
    pub(crate) fn keeps_rights(&mut self, work: &mut Turn<'_>) -> bool {
        self.admission.registry.version() == self.admission.seen.version || self.renew_rights(work)
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
                self.lock_out_told(why, work.connection);
                let session = &work.connection.session;
                // What it has begun with others goes on to its end.
                session.coordinates() || session.is_within_exec()
            }
        }
    }

    /// The same, where none is being served.
    pub(super) fn renew_rights_of_all(&mut self, connections: &mut Connections<Session>) {
        if self.admission.registry.version() != self.admission.seen.version {
            self.renew_others(connections);
        }
    }

    fn renew_others(&mut self, peers: &mut Connections<Session>) -> Users {
        self.see_users();
        let users = self.admission.registry.lock().users.clone();
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
                    if self.lock_out_told(why, connection) {
                        connection.phase = Phase::Closing;
                        peers.touch(id);
                    } else {
                        peers.kill(id);
                    }
                }
            }
        }
        users
    }

    /// Has a session that is to end hear nothing more.
    fn lock_out(&mut self, id: ConnectionId, session: &mut Session) {
        session.user = None;
        (session.authenticated, session.unrestricted) = (false, false);
        self.pushes.forget_subscriptions(id, session);
        self.forget_monitor(id, session);
        self.forget_range_watches(session);
        self.forget_tracking(id, session);
    }

    /// Has a session that is to end hear nothing more, but the answers that it waits for where it has changed users, its own among them:
    /// whether it waits for those.
    fn lock_out_told(&mut self, why: &str, connection: &mut Connection<Session>) -> bool {
        note_end(why, connection);
        let (id, session) = (connection.id, &mut connection.session);
        let changes_users = changes_users(session.last_command);
        let before = session.user.clone();
        self.lock_out(id, session);
        if changes_users {
            // Answers are waited for where somebody has logged in: here one who may do nothing.
            session.authenticated = true;
            session.user = before.map(|user| Arc::new(User::new(&user.name)));
        }
        changes_users
    }

    /// Gives a session the rights that its user has now, and ends what these do not allow.
    fn renew(&self, users: &Users, session: &mut Session) -> Renewed {
        let Some(before) = session.user.clone() else { return Renewed::GoesOn(Vec::new()) };
        let Some(user) = users.get(&before.name) else {
            return Renewed::Ends("its user is no more");
        };
        session.unrestricted = user.is_unrestricted() && self.admission.seen.suspended.is_empty();
        session.user = Some(user.clone());
        if session.unrestricted {
            return Renewed::GoesOn(Vec::new());
        }
        let has_lost = !user.covers(&before);
        // Whoever changes users may wait for the answer to just that.
        if has_lost && session.expects() && !changes_users(session.last_command) {
            // Other shards go by what was judged here when it was asked.
            return Renewed::Ends("its user has lost a right while it was asking other shards");
        }
        if has_lost && session.monitors {
            return Renewed::Ends("its user has lost a right while it was shown what others ask");
        }
        if let Some(subscriptions) = &session.subscriptions {
            let channels = subscriptions.channels.iter().chain(&subscriptions.shard_channels);
            let mut channels = channels.map(|it| Demand::Channel(it));
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
                Ok(()) => {
                    self.admission.suspended_among(&need).map_or(Ok(()), |why| Err(why.to_owned()))
                }
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
                !has_lost && !self.admission.seen.are_new
            };
            if !may_track {
                return Renewed::Ends("its user may no longer read what it tracks");
            }
        }
        let ranges =
            session.watches.iter().filter_map(|&id| Some((id, self.pushes.watched_range(id)?)));
        let refused = ranges.filter_map(|(id, range)| Some((id, may_read(range).err()?)));
        let refused: Vec<(u32, String)> = refused.collect();
        let is_waiting = matches!(session.waiting.as_deref(), Some(Waiting::Watch(_)));
        if is_waiting && !refused.is_empty() {
            return Renewed::Ends("its user may no longer read what it began to watch");
        }
        Renewed::GoesOn(refused)
    }
}

/// Whether a command changes users, of which one may be the client's own.
fn changes_users(command: &str) -> bool {
    matches!(command, "acl|setuser" | "acl|deluser" | "acl|load")
}

fn note_end(why: &str, connection: &Connection<Session>) {
    let user = connection.session.user.as_ref().map(|user| user.shown()).unwrap_or_default();
    event!(info, "audit", "client_ended", peer = %connection.peer, user = %user.escape_debug(), why, "a client was ended because rights have changed");
}
