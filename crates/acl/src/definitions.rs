//! Who defined what, and what is refused because its owner may no longer read or write what it reads and writes.
//!
//! A view is a grant: who may read the output of a join needs no right on its sources. So the join reads for everybody by the
//! rights of the user who defined it, and when these go, so does what it gives. What reads the output of a refused join is
//! refused as well, whoever defined it: its answers would be those of the refused one. What the configuration
//! declares has no owner, and is never refused.

use crate::demand::{Access, Demand, Denied};
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
    /// Whether it gives something that this reads or calls.
    fn stops(&self, reach: &Reach) -> bool {
        match self.kind {
            DefinitionKind::Join => {
                let reads = |range: &KeyRange| reach.reads.iter().any(|own| own.overlaps(range));
                self.writes.iter().any(reads)
            }
            DefinitionKind::Module => reach.functions.iter().any(|name| self.has_function(name)),
            // What a flow has written is there.
            DefinitionKind::Flow => false,
        }
    }

    /// Whether it is the module of a function: `module` or `module.export`.
    #[must_use]
    pub fn has_function(&self, name: &str) -> bool {
        let module = name.split('.').next().unwrap_or(name);
        self.kind == DefinitionKind::Module && self.name == module
    }

    /// Whether it is a join that gives keys of a range.
    #[must_use]
    pub fn gives(&self, range: &KeyRange) -> bool {
        let overlaps = |own: &KeyRange| own.overlaps(range);
        self.kind == DefinitionKind::Join && self.writes.iter().any(overlaps)
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
    pub fn suspended(&self, users: &Users) -> Vec<Suspended> {
        let mut refused: Vec<Suspended> = Vec::new();
        let entry = |kind, name: &str, definition: &Definition, reason| Suspended {
            kind,
            name: String::from(name),
            writes: definition.reach.writes.clone(),
            reason,
        };
        for (kind, name, definition) in self.iter() {
            if let Some(why) = lost(definition, users) {
                let reason = format!("the {} '{name}' is refused: {why}", kind.word());
                refused.push(entry(kind, name, definition, reason));
            }
        }
        // What reads what a refused one gives, and so on.
        loop {
            let mut more = Vec::new();
            for (kind, name, definition) in self.iter() {
                if refused.iter().any(|it| it.kind == kind && it.name == name) {
                    continue;
                }
                if let Some(cause) = refused.iter().find(|it| it.stops(&definition.reach)) {
                    let (word, cause) = (kind.word(), &cause.reason);
                    let reason = format!("the {word} '{name}' is refused: {cause}");
                    more.push(entry(kind, name, definition, reason));
                }
            }
            if more.is_empty() {
                return refused;
            }
            refused.append(&mut more);
        }
    }
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
