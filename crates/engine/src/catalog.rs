//! The catalog: which joins are installed, what they read and write, and who reads them.
//!
//! # Invariants
//! - C1. No join reads its own output, directly or through others.
//! - C2. A push join reads base keys and outputs of push joins only.
//! - C3. A join's outputs live in its public table while no other join may produce one of its
//!   keys and it is not a pull join; otherwise in a layer of its own, and reads merge layers,
//!   the later-installed join first.
//! - C4. `upstream[i]` names every join that may produce keys of source i.
//! - C5. What joins do with tables (`Role`) follows from the installed joins: `relate.rs` keeps it so.
//! - C6. The depth of a join is one more than the greatest of those that it reads, or 1.

use crate::choose::Choices;
use crate::cover::Cover;
use crate::kept::KeptGroup;
use crate::noted::Busy;
use crate::report::JoinCounters;
use crate::slice::Frontier;
use crate::tally::Tally;
use crate::updaters::Reader;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use hashbrown::HashMap;
use headwater_base::Decimal;
use headwater_base::hash::KeyHashBuilder;
use headwater_pattern::{Component, Filed, Join, Mode, Operator, Pattern};
use headwater_store::TableId;

/// A join made ready for execution: its value source is last.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) join: Join,
    pub(crate) output_table: TableId,
    pub(crate) source_tables: Vec<TableId>,
    pub(crate) operator: Operator,
    /// The value comes from the one tuple with the least or greatest value-source key.
    pub(crate) picks: Option<Pick>,
    /// Outputs that share so many components are computed together, all or none: what follows is given by a value, or is kept in part.
    pub(crate) together_at: Option<usize>,
    /// By source and number of leading components: the slots these hold.
    prefix_slots: Vec<Vec<u32>>,
}

/// Which of several tuples with one output key gives the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    /// The one with the least value-source key.
    Least,
    /// The one with the greatest value-source key.
    Greatest,
}

impl Plan {
    pub(crate) fn new(mut join: Join, output_table: TableId, tables: &[TableId]) -> Self {
        let value = join.value_source();
        let mut source_tables = tables.to_vec();
        // The written order of sources never changes the answer; with the value source last
        // every change of a value finds all other slots bound.
        let source = join.sources.remove(value);
        join.sources.push(source);
        let table = source_tables.remove(value);
        source_tables.push(table);
        let operator = join.operator();
        let picks = match operator {
            Operator::First => Some(Pick::Least),
            Operator::Last => Some(Pick::Greatest),
            Operator::Copy | Operator::Index if join.is_ambiguous() => Some(Pick::Greatest),
            _ => None,
        };
        let valued_at = join.output.components.iter().position(|component| match component {
            Component::Slot { slot, .. } => join.is_value_slot(*slot),
            Component::Literal(_) => false,
        });
        let kept_at = join.keep.map(|keep| keep.components);
        let together_at = valued_at.into_iter().chain(kept_at).min();
        let prefix_slots = join
            .sources
            .iter()
            .map(|source| {
                let mut masks = alloc::vec![0];
                for component in &source.pattern.components {
                    let mut mask = masks[masks.len() - 1];
                    if let Component::Slot { slot, .. } = component {
                        mask |= 1 << slot;
                    }
                    masks.push(mask);
                }
                masks
            })
            .collect();
        Self { join, output_table, source_tables, operator, picks, together_at, prefix_slots }
    }

    /// The slots in the first `components` of a source, as bits.
    #[inline]
    pub(crate) fn prefix_slots(&self, source: usize, components: usize) -> u32 {
        self.prefix_slots[source][components]
    }

    pub(crate) fn value_source(&self) -> usize {
        self.join.sources.len() - 1
    }

    pub(crate) fn pattern(&self, source: usize) -> &Pattern {
        &self.join.sources[source].pattern
    }

    /// Whether each tuple is an output key, which shares its value, whatever that is.
    pub(crate) fn is_plain_copy(&self) -> bool {
        let is_copy = self.operator == Operator::Copy && self.picks.is_none();
        is_copy && !self.has_lens(self.value_source()) && self.join.keep.is_none()
    }

    /// All slots of a source, as bits.
    pub(crate) fn source_slots(&self, source: usize) -> u32 {
        let masks = &self.prefix_slots[source];
        masks[masks.len() - 1]
    }
}

/// What a fold remembers of an output key beside its value.
#[derive(Clone, Debug)]
pub(crate) enum Fold {
    /// `sum` and `avg`: the sum and how many numbers are in it.
    Sum { total: Decimal, count: u64 },
    /// `first`, `last` and ambiguous `copy`: the value-source key that gave the value.
    From(Box<[u8]>),
    /// `distinct`, `topk` and `percentile`: the values.
    Tally(Box<Tally>),
}

impl Fold {
    /// How many different values it knows.
    pub(crate) fn values(&self) -> u64 {
        match self {
            Self::Tally(tally) => tally.known().map_or(0, |known| known as u64),
            Self::Sum { .. } | Self::From(_) => 0,
        }
    }
}

/// An installed join.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) name: String,
    /// As the developer wrote it, in the `<slot>` form.
    pub(crate) canonical: String,
    pub(crate) plan: Rc<Plan>,
    pub(crate) warnings: Vec<String>,
    /// Tables whose boundary was inferred when it was installed.
    pub(crate) boundaries: Vec<(String, usize)>,
    /// The table that holds its outputs (C3).
    pub(crate) layer: TableId,
    /// Greater for joins installed later.
    pub(crate) installed: u64,
    pub(crate) cover: Cover,
    /// How far reads have come that are done in slices, the one that went on last behind the others.
    pub(crate) frontiers: Vec<Frontier>,
    /// Where parts of a snapshot end that are computed next, where more was too much for a slice: one for each read, the
    /// oldest first.
    pub(crate) part_ends: Vec<Box<[u8]>>,
    /// How many of its ranges were begun to be gathered since one was completed, or computed as a whole.
    pub(crate) gatherings: u32,
    /// How many slices have dropped what it has materialized, before it is dropped itself or all keys go.
    pub(crate) vacated: u32,
    pub(crate) folds: HashMap<Box<[u8]>, Fold, KeyHashBuilder>,
    /// By what the outputs of a group begin with, where the join keeps some of each: how many there are.
    pub(crate) kept: BTreeMap<Box<[u8]>, KeptGroup>,
    /// By source: bit k is set where updaters with k leading components may exist.
    pub(crate) depths: Vec<u32>,
    pub(crate) upstream: Vec<Vec<u32>>,
    /// How many other joins may produce one of its keys (C3).
    pub(crate) rivals: u32,
    /// How many joins read one another's outputs in a row, up to this one (C6).
    pub(crate) depth: u32,
    /// Which ranges it keeps, where its mode leaves that open.
    pub(crate) choices: Option<Box<Choices>>,
    pub(crate) counters: JoinCounters,
}

impl Installed {
    pub(crate) fn mode(&self) -> Mode {
        self.plan.join.mode
    }

    pub(crate) fn is_layered(&self) -> bool {
        self.layer != self.plan.output_table
    }
}

/// What joins do with a table.
#[derive(Debug, Default)]
pub(crate) struct Role {
    /// Joins whose outputs are keys of this table.
    pub(crate) writers: Vec<u32>,
    /// Sources that read this table.
    pub(crate) readers: Vec<Reader>,
    /// The writers, by their outputs.
    pub(crate) writing: Filed<u32>,
    /// The readers, by their patterns.
    pub(crate) reading: Filed<Reader>,
    /// Those readers alone that may have updaters.
    pub(crate) listening: Filed<Reader>,
    /// How many writers' outputs must be merged from layers, or computed (C3).
    pub(crate) merged: usize,
    /// It stays, keys or not: TABLE.SET was called for it, for example.
    pub(crate) declared: bool,
    /// TABLE.SET said what its boundary is (E1).
    pub(crate) boundary_set: bool,
    /// Whether the embedded store keeps it; `None`: if it has a name.
    pub(crate) keep: Option<bool>,
    /// How many writers choose which ranges they keep.
    pub(crate) autos: usize,
    /// How many changes its keys have had.
    pub(crate) changes: u64,
    /// Writes of its base keys are noted.
    pub(crate) noted: bool,
    /// Keys of it that take no writes for now.
    pub(crate) busy: Vec<Busy>,
    /// Whether its base keys may be evicted; `None`: if no join reads them.
    pub(crate) evict: Option<bool>,
}

/// All joins and the roles of tables.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    joins: Vec<Option<Installed>>,
    free: BTreeSet<u32>,
    names: BTreeMap<String, u32>,
    roles: Vec<Option<Box<Role>>>,
    pub(crate) installs: u64,
    /// How many joins map values by functions.
    mapping: usize,
    /// How many joins have each depth.
    pub(crate) depths: BTreeMap<u32, u32>,
    /// Joins that were looked at to find out which ones concern a join.
    pub(crate) compared: Cell<u64>,
    /// What is chosen changes with the first change or read that speaks for it.
    pub(crate) chooses_eagerly: bool,
    /// The join that is about to be installed, with its name.
    pub(crate) prepared: Option<(String, Join)>,
}

impl Catalog {
    #[inline]
    pub(crate) fn role(&self, table: TableId) -> Option<&Role> {
        self.roles.get(table.0 as usize)?.as_deref()
    }

    /// Notes that one writer more, or less, of a table has outputs that must be merged or computed.
    pub(crate) fn count_merged(&mut self, table: TableId, more: bool) {
        let count = |count: usize| if more { count + 1 } else { count - 1 };
        let role = self.role_for(table);
        role.merged = count(role.merged);
    }

    /// Whether writes of any table are noted.
    pub(crate) fn any_noted(&self) -> bool {
        self.roles.iter().flatten().any(|role| role.noted)
    }

    pub(crate) fn role_mut(&mut self, table: TableId) -> Option<&mut Role> {
        self.roles.get_mut(table.0 as usize)?.as_deref_mut()
    }

    /// The role of a table, made where it has none; the table must be pinned for it.
    pub(crate) fn role_for(&mut self, table: TableId) -> &mut Role {
        let at = table.0 as usize;
        if self.roles.len() <= at {
            self.roles.resize_with(at + 1, || None);
        }
        self.roles[at].get_or_insert_default()
    }

    #[inline]
    pub(crate) fn join(&self, id: u32) -> &Installed {
        self.joins[id as usize].as_ref().expect("a named join is installed")
    }

    #[inline]
    pub(crate) fn join_mut(&mut self, id: u32) -> &mut Installed {
        self.joins[id as usize].as_mut().expect("a named join is installed")
    }

    /// Counts that a read found what all writers of a table give there.
    #[inline]
    pub(crate) fn count_hits(&mut self, table: TableId) {
        let role = self.roles.get(table.0 as usize).and_then(Option::as_deref);
        for &join in role.into_iter().flat_map(|role| &role.writers) {
            if let Some(join) = &mut self.joins[join as usize] {
                join.counters.hits += 1;
            }
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Installed)> {
        let joins = self.joins.iter().enumerate();
        joins.filter_map(|(id, join)| Some((id as u32, join.as_ref()?)))
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// How many joins are installed.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether any join maps values by a function.
    pub(crate) fn any_mapping(&self) -> bool {
        self.mapping > 0
    }

    pub(crate) fn add(&mut self, join: Installed) -> u32 {
        let id = self.free.pop_first().unwrap_or(self.joins.len() as u32);
        self.names.insert(join.name.clone(), id);
        *self.depths.entry(join.depth).or_default() += 1;
        self.mapping += usize::from(join.plan.join.function.is_some());
        if self.joins.len() == id as usize {
            self.joins.push(None);
        }
        self.joins[id as usize] = Some(join);
        id
    }

    pub(crate) fn take(&mut self, id: u32) -> Installed {
        let join = self.joins[id as usize].take().expect("a join is dropped once");
        self.names.remove(&join.name);
        self.leave_depth(join.depth);
        self.mapping -= usize::from(join.plan.join.function.is_some());
        self.free.insert(id);
        join
    }
}
