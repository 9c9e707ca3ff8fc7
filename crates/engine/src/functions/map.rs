//! Functions inside joins: what `map:function` makes of a source's value.
//!
//! Such a function must be pure: it may not ask for the time, nor change anything, so that an output is
//! the same whenever it is computed. Where it fails or replies nothing, there is no output. While a
//! join uses a module, that stays as it is.

use super::draft::Act;
use super::{no_host, refused};
use crate::catalog::Plan;
use crate::engine::Engine;
use crate::report::EngineError;
use alloc::format;
use alloc::string::String;
use headwater_pattern::Join;
use headwater_pool::ValueRef;

impl Engine {
    /// Refuses a join whose function cannot be used.
    pub(crate) fn check_function(&mut self, join: &Join) -> Result<(), EngineError> {
        let Some(function) = &join.function else { return Ok(()) };
        if join.is_ambiguous() {
            return refused(String::from(
                "several tuples can give one output key, of which `map` takes none: the output \
                 needs every slot of the sources",
            ));
        }
        let host = self.calls.host.as_ref().ok_or_else(no_host)?;
        match host.is_pure(function.as_bytes()) {
            Some(true) => Ok(()),
            Some(false) => refused(format!(
                "function '{function}' asks for the time, or for what flows' functions have: functions in joins must be pure"
            )),
            None => refused(format!("function '{function}' is not loaded: see FN.LOAD")),
        }
    }

    /// Refuses to change a module that a join uses.
    pub(crate) fn check_unused(&self, module: &str) -> Result<(), EngineError> {
        let uses = |function: &String| {
            function.split_once('.').map_or(function.as_str(), |(name, _)| name) == module
        };
        let mut joins = self.catalog.iter().map(|(_, join)| join);
        match joins.find(|join| join.plan.join.function.as_ref().is_some_and(uses)) {
            None => Ok(()),
            Some(join) => refused(format!(
                "join '{}' uses module '{module}': it stays as it is until the join is dropped",
                join.name
            )),
        }
    }

    /// Whether reading may call functions, which cannot be while one is being called.
    pub(crate) fn reads_call_functions(&self) -> bool {
        self.catalog.iter().any(|(_, join)| join.plan.join.function.is_some())
    }

    /// What the function of a join makes of a value, as a reference; nothing where it fails.
    pub(crate) fn mapped(&mut self, plan: &Plan, key: &[u8], value: ValueRef) -> Option<ValueRef> {
        let calls = &mut self.calls;
        let (host, function) = (calls.host.as_mut()?, plan.join.function.as_ref()?);
        let stored = self.store.pool.view(value);
        let draft = &mut calls.draft;
        draft.begin(Some(stored.len()));
        let mut act = Act {
            key,
            param: &[],
            now: None,
            world: None,
            stored: Some(stored),
            draft,
            writes: false,
            reply_bytes_max: calls.limits.reply_bytes_max.min(self.settings.limits.value_bytes_max),
            write_bytes_max: 0,
            value_bytes_max: 0,
        };
        let done = host.call(function.as_bytes(), &mut act);
        if done.is_err() || !draft.replied {
            self.counters.not_mapped += 1;
            return None;
        }
        Some(self.store.pool.insert(&draft.reply))
    }
}
