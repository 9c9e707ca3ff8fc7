//! One of several shards: whose keys are whose, and what is here of the others'.
//!
//! Each key has a home (`headwater_base::placement`). Clients' commands about a key are executed there, and
//! so are joins, group by group: this engine computes the outputs whose home it is, and no others. Where
//! an execution needs source keys of another home, it asks for them ([`Effect::LoadFrom`]), which
//! that home answers and follows up in one step: the answer and the changes after it come in the home's
//! order, through [`Engine::loaded_from`] and [`Engine::changed_at`]. What has come so is a *replica*. Base keys
//! and outputs of joins are the same here: a replica of an output is current because its home keeps
//! it so, and is not computed here.
//!
//! A range within one group has one home. A range over several is read of each home: every home gives the
//! keys that it is home of, so the parts are disjoint and make up the whole.
//!
//! # Invariants
//! - D1. A stored key whose home is another shard is a replica, and lies in a range that is loaded from that home. There
//!   are none in layers.
//! - D2. Ranges that are loaded from a home are as L1 says (`loads`): they hold exactly the keys that the home has there and
//!   is home of, as of the last thing the home said. So what a home says must be given to the engine in
//!   the order in which it was said. For a home of which nothing is heard, see D5 (`suspended`).
//! - D3. A valid status range has read no span that is not loaded from each home that may have keys of it, but
//!   for spans of *aligned* sources: those whose placing components are the output's, so that only own keys give
//!   own outputs.
//! - D4. Clients see own keys alone: replicas are no keys of theirs, and are not counted.
//!
//! # Cost
//! Without a placement, a test of an option where an execution reads a span. With one, each span
//! that is not aligned costs the hash of its group and a search among the ranges of its home; one over
//! several groups, such a search for each home.

mod boundary;
mod give;
mod moves;
mod remote;
mod replicas;
mod suspended;

pub use remote::RemoteReport;
pub(crate) use replicas::Elsewhere;
pub(crate) use suspended::{Acceptance, Suspension};

use crate::base_data::BaseData;
use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::{Execution, Missing};
use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::placement::{Placement, Shard};
use headwater_pattern::{Bindings, Component, Pattern};
use headwater_store::TableId;

/// Whose keys are whose.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) me: Shard,
    pub(crate) placement: Placement,
}

impl Placed {
    /// Whether a source that `bindings` or a range place in a group places the outputs there too: the
    /// components that place its keys are those that place the output's.
    pub(crate) fn is_aligned(&self, output: &Pattern, source: &Pattern) -> bool {
        let placing = self.placement.boundary(&output.table);
        let same = |(one, other): (&Component, &Component)| match (one, other) {
            (Component::Literal(one), Component::Literal(other)) => one == other,
            (Component::Slot { slot: one, .. }, Component::Slot { slot: other, .. }) => {
                one == other
            }
            _ => false,
        };
        placing == self.placement.boundary(&source.table)
            && output.components.len() >= placing
            && source.components.len() >= placing
            && output.components.iter().zip(&source.components).take(placing).all(same)
    }

    #[inline]
    pub(crate) fn owns(&self, key: &[u8]) -> bool {
        self.placement.home(key) == self.me
    }

    /// Whether own keys may lie in `range`.
    pub(crate) fn may_own(&self, range: &KeyRange) -> bool {
        self.placement.home_of_range(range).is_none_or(|home| home == self.me)
    }

    /// All shards but this one.
    fn others(&self) -> impl Iterator<Item = Shard> + use<> {
        let me = self.me;
        (0..self.placement.shards()).map(Shard).filter(move |&shard| shard != me)
    }
}

impl Engine {
    /// Makes this engine shard `me` of those that `placement` knows. To be called before anything else; with one
    /// shard it changes nothing.
    pub fn set_placement(&mut self, me: Shard, placement: Placement) {
        if placement.shards() > 1 {
            self.notifications.marks.set_shard(me.0, placement.shards());
            self.base.placed = Some(Box::new(Placed { me, placement }));
        }
    }

    /// Where every key lives; `None`: all live here.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.base.placed.as_ref().map(|placed| &placed.placement)
    }

    /// Which shard this is.
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.base.placed.as_ref().map_or(Shard(0), |placed| placed.me)
    }

    /// Whether this shard is the home of `key`.
    #[inline]
    #[must_use]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.base.placed.as_ref().is_none_or(|placed| placed.owns(key))
    }

    /// Makes the keys of a source span that others are home of current; whether own ones may lie in it.
    pub(crate) fn need_parts(
        &mut self,
        execution: &Execution<'_>,
        level: usize,
        span: &KeyRange,
    ) -> Result<bool, Missing> {
        let Some(placed) = &self.base.placed else { return Ok(true) };
        if placed.is_aligned(&execution.plan.join.output, execution.plan.pattern(level)) {
            return Ok(true);
        }
        self.need_elsewhere(execution.plan.source_tables[level], span)
    }

    /// Asks for those keys of `span` that are not here and have another home; whether own keys may lie in it.
    pub(crate) fn need_elsewhere(
        &mut self,
        table: TableId,
        span: &KeyRange,
    ) -> Result<bool, Missing> {
        let Some(placed) = &self.base.placed else { return Ok(true) };
        match placed.placement.home_of_range(span) {
            Some(home) if home == placed.me => Ok(true),
            Some(home) => self.need_from(home, table, span).map(|()| false),
            None => {
                let mut missing = Ok(true);
                for home in placed.others() {
                    if self.need_from(home, table, span).is_err() {
                        missing = Err(Missing);
                    }
                }
                missing
            }
        }
    }
}

impl BaseData {
    /// Whether all keys of `range` have their home elsewhere.
    pub(crate) fn is_elsewhere(&self, range: &KeyRange) -> bool {
        self.placed.as_ref().is_some_and(|placed| !placed.may_own(range))
    }

    /// Whether keys of other homes may lie in `range`.
    pub(crate) fn spans_homes(&self, range: &KeyRange) -> bool {
        let Some(placed) = &self.placed else { return false };
        placed.placement.home_of_range(range) != Some(placed.me)
    }

    /// Whether an execution with these bindings may give outputs of which this is the home.
    pub(crate) fn may_own(&self, plan: &Plan, bindings: &Bindings<'_>) -> bool {
        let Some(placed) = &self.placed else { return true };
        let output = &plan.join.output;
        let mut prefix = Vec::new();
        let bound = output.bound_prefix(bindings, &mut prefix);
        let placing = placed.placement.boundary(&output.table);
        bound < placing.min(output.components.len()) || placed.owns(&prefix)
    }

    /// Whether a source of a join concerns own outputs through own keys alone (D3).
    pub(crate) fn is_aligned(&self, plan: &Plan, source: usize) -> bool {
        let Some(placed) = &self.placed else { return true };
        placed.is_aligned(&plan.join.output, plan.pattern(source))
    }
}
