//! Who may do what, for all shards: the users, who defined what, and what was refused lately.
//!
//! There is one registry in the process. A change of users is one step: under a lock, and then it has another *version*. Each shard
//! compares the version before each request, and renews the rights of all of its sessions where it differs; so a request
//! that comes after the answer to `ACL SETUSER` is judged by the new rights, at whichever shard.
//!
//! # Cost
//! One load of a number that hardly ever changes, for each request. The lock is taken where something is refused, where a client logs in, and
//! for definitions.

mod begin;
mod certified;
mod file;

pub(crate) use file::{read as read_file, write as write_file};

use crate::resp::Origin;
use headwater_acl::{
    AclEvent, AclJournal, Definition, DefinitionKind, Definitions, Reach, SetUserError,
    Suspensions, User, Users,
};
use headwater_command::Id;
use headwater_node::{DefinitionReach, Owners, Ownership};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all shards know of users.
#[derive(Debug, Default)]
pub(crate) struct UserRegistry {
    version: AtomicU64,
    state: Mutex<RegistryState>,
}

/// What is behind the lock.
#[derive(Debug, Default)]
pub(crate) struct RegistryState {
    pub(crate) users: Users,
    pub(crate) journal: AclJournal,
    pub(crate) definitions: Definitions,
    certified: certified::Certified,
    /// The definitions that are refused.
    suspended: Arc<Suspensions>,
    /// The users of clients that have asked for a definition, which other shards execute.
    definers: HashMap<Origin, Vec<u8>>,
}

/// What a shard knows of the users at one version.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenUsers {
    pub(crate) version: u64,
    /// The definitions that are refused.
    pub(crate) suspended: Arc<Suspensions>,
    /// Some of them were not, at the version before.
    pub(crate) are_new: bool,
}

impl RegistryState {
    /// The definitions that are refused.
    pub(crate) fn suspended(&self) -> &Suspensions {
        &self.suspended
    }
}

impl UserRegistry {
    /// The number of the last change.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// To read, and to note what changes no right.
    pub(crate) fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a shard has to know now.
    pub(crate) fn seen(&self) -> SeenUsers {
        let state = self.lock();
        SeenUsers { version: self.version(), suspended: state.suspended.clone(), are_new: false }
    }

    /// Changes users or definitions: nobody sees a part of it.
    pub(crate) fn change<T, E>(
        &self,
        change: impl FnOnce(&mut RegistryState) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.lock();
        let done = change(&mut state)?;
        state.suspended = Arc::new(state.definitions.suspended(&state.users));
        self.version.fetch_add(1, Ordering::Release);
        Ok(done)
    }

    /// Sets a definition, or removes it. Rights are renewed only where others are refused than before.
    fn redefine(&self, kind: DefinitionKind, name: &str, definition: Option<Definition>) {
        let mut state = self.lock();
        let state = &mut *state;
        let (users, refused) = (&state.users, &state.suspended);
        let same = Definitions::changes_nothing(kind, name, definition.as_ref(), users, refused);
        match definition {
            Some(definition) => state.definitions.set(kind, name, definition),
            None => state.definitions.remove(kind, name),
        }
        if same {
            return;
        }
        let suspended = state.definitions.suspended(&state.users);
        if *state.suspended != suspended {
            state.suspended = Arc::new(suspended);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Adds a user, or changes one.
    pub(crate) fn set_user<'r>(
        &self,
        name: &[u8],
        rules: impl Iterator<Item = &'r [u8]>,
    ) -> Result<Arc<User>, SetUserError> {
        self.change(|state| state.users.set(name, rules))
    }

    /// As [`UserRegistry::set_user`], of a user who was kept.
    fn keep_user<'r>(
        &self,
        name: &[u8],
        rules: impl Iterator<Item = &'r [u8]>,
    ) -> Result<Arc<User>, SetUserError> {
        self.change(|state| state.users.keep(name, rules))
    }

    /// Gives everybody who does not log in this password, or none.
    pub(crate) fn set_default_password(&self, password: &str) {
        let add = [b">", password.as_bytes()].concat();
        let rules: [&[u8]; 2] = [b"resetpass", if password.is_empty() { b"nopass" } else { &add }];
        // Both are rules.
        let _ = self.set_user(b"default", rules.into_iter());
    }

    /// Something was defined; what it reads and writes is known.
    pub(crate) fn defined(
        &self,
        kind: DefinitionKind,
        name: &str,
        owner: Option<Vec<u8>>,
        reach: Reach,
    ) {
        self.redefine(kind, name, Some(Definition { owner, reach }));
    }

    /// Something was dropped.
    pub(crate) fn dropped(&self, kind: DefinitionKind, name: &str) {
        self.redefine(kind, name, None);
    }

    /// A client asks for something that other shards execute, and note its user with.
    pub(crate) fn asks(&self, client: Origin, user: &[u8]) {
        self.lock().definers.insert(client, user.to_vec());
    }

    /// The user of a client that has asked for a definition.
    pub(crate) fn asker(&self, client: &Origin) -> Option<Vec<u8>> {
        self.lock().definers.get(client).cloned()
    }

    /// A client has gone.
    pub(crate) fn gone(&self, client: &Origin) {
        self.lock().definers.remove(client);
    }

    /// Notes what was refused; whether it is new.
    pub(crate) fn note(&self, event: AclEvent, entries_max: usize) -> bool {
        self.lock().journal.note(event, entries_max)
    }
}

/// Tells whose definitions are, as the registry knows it.
pub(crate) fn owners(registry: Arc<UserRegistry>) -> Box<Owners> {
    Box::new(move |kind, name| {
        let state = registry.lock();
        let kind = DefinitionKind::ALL.into_iter().find(|known| known.word() == kind);
        let found = kind.and_then(|kind| state.definitions.get(kind, name));
        let owner = found.and_then(|definition| definition.owner.clone());
        let refused = kind.and_then(|kind| state.suspended().get(kind, name));
        Ownership {
            owner: owner.unwrap_or_default(),
            refused: refused.map(|it| it.reason.clone()).unwrap_or_default(),
        }
    })
}

/// What a join or a flow needs of its owner.
pub(crate) fn reach_of(reach: DefinitionReach) -> Reach {
    let DefinitionReach { reads, writes, channel, posts, function } = reach;
    let commands = if posts { vec![Id::SourceAdd] } else { Vec::new() };
    let (channels, functions) = (channel.into_iter().collect(), function.into_iter().collect());
    Reach { reads, writes, channels, commands, functions }
}

/// What a module of functions needs of its owner.
pub(crate) fn reach_of_module() -> Reach {
    Reach { commands: vec![Id::FnLoad], ..Reach::default() }
}
