//! Functions inside joins: what `map:function` makes of a source's value.
//!
//! Such a function must be pure: it may not ask for the time, nor change anything, so that an output is
//! the same whenever it is computed. Where it fails or replies nothing, there is no output. While a
//! join uses a module, that stays as it is.
//!
//! One operation may give many outputs of one value. A function that has not looked at the output's key makes the
//! same of that value for each of them, so it is called once and they share what it made. Where it has, it is called for
//! each, and the slow calls of one operation have one time limit together.

use super::draft::Act;
use super::{no_host, refused};
use crate::catalog::Plan;
use crate::engine::Engine;
use crate::functions::Calls;
use crate::report::EngineError;
use crate::views::Views;
use alloc::format;
use alloc::string::String;
use core::cell::Cell;
use headwater_pattern::Join;
use headwater_pool::ValueRef;

/// What the calls of one operation share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// An operation is under way.
    on: bool,
    /// It has called a function.
    begun: bool,
    last: Option<Made>,
}

/// What a function made of a value without a look at the key.
#[derive(Debug)]
struct Made {
    function: String,
    /// One reference is held.
    of: ValueRef,
    /// One reference is held. `None`: it failed, or replied nothing.
    value: Option<ValueRef>,
}

impl Engine {
    /// An operation begins, whose calls of joins' functions share what they can; whether it is one by itself, which is to be
    /// ended with [`Engine::end_calls`], and no part of another.
    pub fn begin_calls(&mut self) -> bool {
        !core::mem::replace(&mut self.calls.shared.on, true)
    }

    /// Ends what [`Engine::begin_calls`] began.
    pub fn end_calls(&mut self) {
        let Shared { last, .. } = core::mem::take(&mut self.calls.shared);
        self.forget_made(last);
    }

    fn forget_made(&mut self, made: Option<Made>) {
        if let Some(Made { of, value, .. }) = made {
            [Some(of), value].into_iter().flatten().for_each(|it| self.store.pool.release(it));
        }
    }

    /// Refuses a function that is not loaded.
    ///
    /// # Errors
    /// It is not, or functions are not to be had here.
    pub fn check_loaded(&self, function: &str) -> Result<(), EngineError> {
        let host = self.calls.host.as_ref().ok_or_else(no_host)?;
        match host.is_pure(function.as_bytes()) {
            Some(_) => Ok(()),
            None => refused(format!("function '{function}' is not loaded: see FN.LOAD")),
        }
    }

    /// What the function of a join makes of a value, as a reference; nothing where it fails.
    pub(crate) fn mapped(&mut self, plan: &Plan, key: &[u8], value: ValueRef) -> Option<ValueRef> {
        let calls = &mut self.calls;
        let function = plan.join.function.as_ref()?;
        if let Some(made) = &calls.shared.last
            && made.of == value
            && made.function == *function
        {
            match made.value {
                Some(made) => self.store.pool.retain(made),
                None => self.counters.not_mapped += 1,
            }
            return made.value;
        }
        let host = calls.host.as_mut()?;
        let stored = self.store.pool.view(value);
        let draft = &mut calls.draft;
        draft.begin(Some(stored.len()));
        let mut act = Act {
            key,
            key_seen: Cell::new(false),
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
        let done = if calls.shared.on {
            if !core::mem::replace(&mut calls.shared.begun, true) {
                host.begin_shared();
            }
            host.call_shared(function.as_bytes(), &mut act)
        } else {
            host.call(function.as_bytes(), &mut act)
        };
        let same_for_all = calls.shared.on && !act.key_seen.get();
        let made = if done.is_err() || !draft.replied {
            self.counters.not_mapped += 1;
            None
        } else {
            Some(self.store.pool.insert(&draft.reply))
        };
        // What a cell holds may change.
        if same_for_all && !value.is_cell() {
            [Some(value), made].into_iter().flatten().for_each(|it| self.store.pool.retain(it));
            let new = Made { function: function.clone(), of: value, value: made };
            let before = self.calls.shared.last.replace(new);
            self.forget_made(before);
        }
        made
    }
}

impl Calls {
    /// Refuses a join whose function cannot be used.
    pub(crate) fn check_function(&mut self, join: &Join) -> Result<(), EngineError> {
        let Some(function) = &join.function else { return Ok(()) };
        if join.is_ambiguous() {
            return refused(String::from(
                "several tuples can give one output key, of which `map` takes none: the output \
                 needs every slot of the sources",
            ));
        }
        let host = self.host.as_ref().ok_or_else(no_host)?;
        match host.is_pure(function.as_bytes()) {
            Some(true) => Ok(()),
            Some(false) => refused(format!(
                "function '{function}' asks for the time, or for what flows' functions have: functions in joins must be pure"
            )),
            None => refused(format!("function '{function}' is not loaded: see FN.LOAD")),
        }
    }
}

impl Views {
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
        self.catalog.any_mapping()
    }
}
