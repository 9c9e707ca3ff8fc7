//! Who defined what, and what is refused because its owner may no longer read or write what it reads and writes.
//!
//! A view is a grant: who may read the output of a join needs no right on its sources. So the join reads for everybody by the
//! rights of the user who defined it, and when these go, so does what it gives. What reads the output of a refused join is
//! refused as well, whoever defined it: its answers would be those of the refused one. What the configuration
//! declares has no owner, and is never refused.

use crate::demand::{Access, Demand, Denied};
use crate::suspensions::Suspensions;
use crate::users::Users;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_command::Id;

/// What can be defined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DefinitionKind {
    /// A join.
    Join,
    /// A flow.
    Flow,
    /// A module of functions.
    Module,
}

impl DefinitionKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Join, Self::Flow, Self::Module];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Flow => "flow",
            Self::Module => "module",
        }
    }
}

/// What a definition reads and writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reach {
    /// Ranges that it reads.
    pub reads: Vec<KeyRange>,
    /// Ranges that it writes, or gives.
    pub writes: Vec<KeyRange>,
    /// Channels to which it publishes.
    pub channels: Vec<Vec<u8>>,
    /// The commands whose right it needs for as long as it is there.
    pub commands: Vec<Id>,
    /// The functions that it calls: `module` or `module.export`.
    pub functions: Vec<String>,
}

impl Reach {
    /// All that it needs.
    pub fn demands(&self) -> impl Iterator<Item = Demand<'_>> {
        let of = |ranges: &'_ [KeyRange], access| {
            let ranges: Vec<KeyRange> = ranges.to_vec();
            ranges.into_iter().map(move |range| Demand::Range { range, access })
        };
        of(&self.reads, Access::READ)
            .chain(of(&self.writes, Access::WRITE))
            .chain(self.channels.iter().map(|channel| Demand::Channel(channel)))
            .chain(self.commands.iter().map(|id| Demand::Command(*id)))
    }
}

/// What was defined, and by whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Definition {
    /// The user; `None`: the configuration, or somebody before there were users.
    pub owner: Option<Vec<u8>>,
    /// What it reads and writes.
    pub reach: Reach,
}

/// A definition that is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspended {
    /// What it is.
    pub kind: DefinitionKind,
    /// Its name.
    pub name: String,
    /// The ranges that it gives or writes.
    pub writes: Vec<KeyRange>,
    /// Why it is refused.
    pub reason: String,
}

impl Suspended {
    /// What tells it from others.
    pub(crate) fn id(&self) -> (DefinitionKind, &str) {
        (self.kind, &self.name)
    }
}

/// All definitions that read or write for others than their users.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    all: BTreeMap<(DefinitionKind, String), Definition>,
}

impl Definitions {
    /// Notes a definition, in place of one of that name.
    pub fn set(&mut self, kind: DefinitionKind, name: &str, definition: Definition) {
        self.all.insert((kind, String::from(name)), definition);
    }

    /// Forgets a definition.
    pub fn remove(&mut self, kind: DefinitionKind, name: &str) {
        self.all.remove(&(kind, String::from(name)));
    }

    /// The definition of this name.
    #[must_use]
    pub fn get(&self, kind: DefinitionKind, name: &str) -> Option<&Definition> {
        self.all.get(&(kind, String::from(name)))
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (DefinitionKind, &str, &Definition)> {
        self.all.iter().map(|((kind, name), definition)| (*kind, &**name, definition))
    }

    /// Which are refused as these users are.
    #[must_use]
    pub fn suspended(&self, users: &Users) -> Suspensions {
        let mut left = Vec::new();
        let mut found = Vec::new();
        for (kind, name, definition) in self.iter() {
            match lost(definition, users) {
                Some(why) => found.push(refused(kind, name, definition, &why)),
                None => left.push((kind, name, definition)),
            }
        }
        // What reads what a refused one gives, and so on.
        let mut all = Vec::new();
        while !found.is_empty() {
            let causes = Suspensions::new(core::mem::take(&mut found));
            left.retain(|&(kind, name, definition)| {
                let cause = causes.behind(&definition.reach);
                let new = cause.map(|cause| refused(kind, name, definition, &cause.reason));
                let stays = new.is_none();
                found.extend(new);
                stays
            });
            all.extend(causes.iter().cloned());
        }
        Suspensions::new(all)
    }

    /// Whether the refused definitions stay as they are when the one of this name becomes `definition`, or, with `None`, is removed.
    /// Where this says no, they may stay all the same.
    #[must_use]
    pub fn changes_nothing(
        kind: DefinitionKind,
        name: &str,
        definition: Option<&Definition>,
        users: &Users,
        refused: &Suspensions,
    ) -> bool {
        refused.get(kind, name).is_none()
            && definition
                .is_none_or(|it| refused.behind(&it.reach).is_none() && lost(it, users).is_none())
    }
}

fn refused(kind: DefinitionKind, name: &str, definition: &Definition, why: &str) -> Suspended {
    let reason = format!("the {} '{name}' is refused: {why}", kind.word());
    Suspended { kind, name: String::from(name), writes: definition.reach.writes.clone(), reason }
}

/// What the owner of a definition has lost of what it needs.
fn lost(definition: &Definition, users: &Users) -> Option<String> {
    let name = definition.owner.as_ref()?;
    let shown = String::from_utf8_lossy(name);
    let Some(user) = users.get(name) else {
        return Some(format!("its owner '{shown}' is no user any more"));
    };
    let denied = definition.reach.demands().find_map(|need| {
        let denied = user.meets(&need).err()?;
        let reads = matches!(need, Demand::Range { access: Access::READ, .. });
        Some((denied, reads))
    })?;
    let object = denied.0.object();
    Some(match denied.0 {
        Denied::Command(_) => format!("its owner '{shown}' may no longer run {object}"),
        Denied::Channel(_) => format!("its owner '{shown}' may no longer publish to {object}"),
        Denied::Key(_) | Denied::Range(_) if denied.1 => {
            format!("its owner '{shown}' may no longer read {object}")
        }
        Denied::Key(_) | Denied::Range(_) => {
            format!("its owner '{shown}' may no longer write {object}")
        }
    })
}
