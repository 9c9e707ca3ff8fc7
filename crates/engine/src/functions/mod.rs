//! Functions next to the data: calls, and what becomes of their changes.
//!
//! A call hands the function a draft over the stored value (`draft`). If it ends well, the draft is
//! applied as one write of the key: in place where nobody shares the bytes and no join reads the
//! table, so that it costs what was changed. If it does not, or if there is no room for what it
//! wrote, nothing has happened.

mod draft;
mod map;
mod others;

use crate::base::{NewValue, Put};
use crate::engine::Engine;
use crate::handles::Handle;
use crate::report::{EngineError, Expiry, RangeOptions, Stop, Ticket};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::ControlFlow;
use draft::{Act, Draft};
use headwater_base::functions::{
    CallError, FunctionLimits, FunctionReport, Functions, Loading, Run, Source,
};
use headwater_pool::{Value, ValueRef};
pub use others::FlowCall;

/// What the engine keeps of functions.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    host: Option<Box<dyn Functions>>,
    limits: FunctionLimits,
    draft: Draft,
    /// What the joins' functions have been called for in the operation under way.
    shared: map::Shared,
    /// Operations that wait for a module to be compiled.
    loading: BTreeSet<Ticket>,
    woken: Vec<Ticket>,
}

/// How a function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallOptions {
    /// It may change the value.
    pub update: bool,
    /// It is not called for a key that is absent.
    pub present_only: bool,
}

fn no_host() -> EngineError {
    EngineError::Refused(String::from("functions are not available here"))
}

fn refused<T>(text: String) -> Result<T, EngineError> {
    Err(EngineError::Refused(text))
}

fn failed(name: &[u8], error: CallError) -> EngineError {
    EngineError::Function { name: String::from_utf8_lossy(name).into_owned(), error }
}

impl Engine {
    /// Sets who runs functions.
    pub fn set_functions(&mut self, mut host: Box<dyn Functions>) {
        host.set_limits(&self.calls.limits);
        self.calls.host = Some(host);
    }

    /// Changes the bounds of calls and modules.
    pub fn set_function_limits(&mut self, limits: &FunctionLimits) {
        self.calls.limits = limits.clone();
        if let Some(host) = &mut self.calls.host {
            host.set_limits(limits);
        }
    }

    /// Loads a module under a name, in the place of one of that name if `replace`; `export` is what
    /// the name alone stands for.
    ///
    /// # Errors
    /// It cannot be loaded; [`Stop::Wait`] while it is being compiled.
    pub fn function_load(
        &mut self,
        name: &str,
        module: Source<'_>,
        export: Option<&str>,
        replace: bool,
    ) -> Result<(), Stop> {
        self.views.check_unused(name)?;
        match self.calls.host()?.load(name, module, export, replace) {
            Loading::Done => Ok(()),
            Loading::Failed(why) => {
                let text = alloc::format!("module '{}': {why}", name.escape_debug());
                Err(EngineError::Refused(text).into())
            }
            Loading::Waiting => {
                let ticket = self.next_ticket();
                self.calls.loading.insert(ticket);
                Err(Stop::Wait(ticket))
            }
        }
    }

    /// Forgets a module; whether there was one.
    ///
    /// # Errors
    /// There are no functions here.
    pub fn function_drop(&mut self, name: &str) -> Result<bool, EngineError> {
        self.views.check_unused(name)?;
        Ok(self.calls.host()?.remove(name))
    }

    /// The modules, in order of their names.
    #[must_use]
    pub fn functions(&self) -> Vec<FunctionReport> {
        self.calls.host.as_ref().map(|host| host.list()).unwrap_or_default()
    }

    /// Whether [`Engine::poll_functions`] has something to wait for.
    #[must_use]
    pub fn is_loading_functions(&self) -> bool {
        self.calls.host.as_ref().is_some_and(|host| host.is_loading())
    }

    /// Wakes the operations that waited for a module, if one has been compiled. To be called now
    /// and then while [`Engine::is_loading_functions`].
    pub fn poll_functions(&mut self) {
        if self.calls.host.as_mut().is_some_and(|host| host.poll()) {
            self.calls.woken.extend(core::mem::take(&mut self.calls.loading));
        }
    }

    /// Calls a function for one key and gives its reply, if it made one.
    ///
    /// # Errors
    /// What the function came to; or the key cannot be read, or not be written.
    pub fn function_call(
        &mut self,
        name: &[u8],
        key: &[u8],
        param: &[u8],
        options: CallOptions,
    ) -> Result<Option<&[u8]>, Stop> {
        if options.update {
            self.check_write(key, 0)?;
            self.know(key)?;
        }
        // What reads call functions for is read before one is called.
        let copy = if self.views.reads_call_functions() {
            Some(self.get(key)?.map(|value| value.to_vec()))
        } else {
            None
        };
        let here = if options.update { self.find_here(key)? } else { None };
        let mut host = self.calls.host.take().ok_or_else(no_host)?;
        let mut draft = core::mem::take(&mut self.calls.draft);
        let what = (name, key, param);
        let called = self.call_with(&mut *host, &mut draft, what, options, (here, copy.as_ref()));
        self.calls.host = Some(host);
        let applied = match called {
            Ok(true) if draft.changed => self.apply(key, here, &draft).map(|()| true),
            called => called,
        };
        self.calls.draft = draft;
        match applied {
            Ok(true) => Ok(self.calls.draft.replied.then_some(&*self.calls.draft.reply)),
            Ok(false) => Ok(None),
            Err(stop) => {
                self.calls.draft.trim();
                Err(stop)
            }
        }
    }

    /// Gives back memory that the last call has taken. To be called when its reply was taken.
    pub fn trim_functions(&mut self) {
        self.calls.draft.trim();
    }

    /// As [`Engine::function_call`], with what the engine lends for it: what the key holds, if it may be
    /// changed, and its value, if it was read before. Whether it was called.
    fn call_with(
        &mut self,
        host: &mut dyn Functions,
        draft: &mut Draft,
        (name, key, param): (&[u8], &[u8], &[u8]),
        options: CallOptions,
        (here, copy): (Option<ValueRef>, Option<&Option<Vec<u8>>>),
    ) -> Result<bool, Stop> {
        let (now, value_bytes_max) = (self.now, self.settings.limits.value_bytes_max);
        let FunctionLimits { reply_bytes_max, write_bytes_max, .. } = self.calls.limits;
        let stored = match copy {
            Some(copy) => copy.as_deref().map(Value::of),
            None if options.update => here.map(|value| self.store.pool.view(value)),
            None => self.get(key)?,
        };
        if stored.is_none() && options.present_only {
            return Ok(false);
        }
        draft.begin(stored.as_ref().map(Value::len));
        let mut act = Act {
            key,
            key_seen: Cell::new(false),
            param,
            now: Some(now),
            stored,
            draft,
            writes: options.update,
            reply_bytes_max,
            write_bytes_max,
            value_bytes_max,
            world: None,
        };
        host.call(name, &mut act).map_err(|error| failed(name, error))?;
        Ok(true)
    }

    /// What a key holds whose value is to be changed: in memory, also if it was put aside. The word lives
    /// until the next operation.
    #[inline]
    fn find_here(&mut self, key: &[u8]) -> Result<Option<ValueRef>, Stop> {
        match self.find(key)? {
            Some(word) if word.is_handle() => {
                match (Handle::spilled(word), self.store.table_of(key)) {
                    (Some(number), Some(table)) => Ok(self.bring_back(table, key, number)?),
                    _ => Err(EngineError::WrongType.into()),
                }
            }
            found => Ok(found),
        }
    }

    /// Makes a draft true, of a key that holds this.
    fn apply(&mut self, key: &[u8], here: Option<ValueRef>, draft: &Draft) -> Result<(), Stop> {
        if !draft.present {
            return self.remove(key).map(|_| ());
        }
        let table = self.store.table_for(key);
        // Before it is written in its place.
        self.save_pair(table, key);
        let value = here.map(|value| self.store.pool.content(value));
        let len = value.map_or(0, ValueRef::len);
        let first = draft.spans.iter().map(|span| span.at).min();
        let writes = first.filter(|_| draft.kept > 0);
        let kept = self.writes_kept(table);
        let in_place = writes.is_none()
            || !kept
                && !self.views.has_readers(table)
                && value.is_some_and(|value| self.store.pool.is_sole(value, writes.unwrap_or(0)));
        let needs = draft.needs(!in_place);
        if !self.has_room(needs) {
            self.memory.want(needs);
            return Err(EngineError::OutOfMemory.into());
        }
        let Some(value) = value.filter(|_| draft.kept > 0) else {
            return Ok(self.set(key, &draft.tail, Expiry::Keep)?);
        };
        if in_place {
            for &span in &draft.spans {
                let written = self.store.pool.write_at(value, span.at, draft.bytes_of(span));
                debug_assert!(written == value, "what nobody shares is written in its place");
            }
            if draft.kept == len && draft.tail.is_empty() {
                // Finding it has counted as a use.
                self.put(table, key, Put::rewritten(NewValue::InPlace(value)));
                return Ok(());
            }
        }
        // The old value must outlive the exchange: readers of the table are told of it.
        self.store.pool.retain(value);
        let mut new = self.store.pool.cut(value, draft.kept);
        if !in_place {
            for &span in &draft.spans {
                new = self.store.pool.write_at(new, span.at, draft.bytes_of(span));
            }
        }
        if !draft.tail.is_empty() {
            new = self.store.pool.append(new, &draft.tail, 0);
        }
        self.put(table, key, Put::rewritten(NewValue::Held(new)));
        Ok(())
    }

    /// Calls a function for the pairs of `[first, last)` (an empty `last`: to the end), one after the
    /// other: it keeps its memory from one to the next.
    ///
    /// If it has an end, that is called last, and all that was replied is one reply. If it has
    /// not, `each` is given the keys for which something was replied, with that; their number is the
    /// answer.
    ///
    /// # Errors
    /// As for [`Engine::range`], or what the function came to; `each` may have been called then.
    pub fn function_range(
        &mut self,
        name: &[u8],
        (first, last): (&[u8], &[u8]),
        options: RangeOptions,
        param: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Folded<'_>, Stop> {
        let limits = self.calls.limits.clone();
        let mut rows = None;
        if self.views.reads_call_functions() {
            let rows = rows.insert(Vec::new());
            self.range(first, last, options, &mut |key, value| {
                rows.push((Box::<[u8]>::from(key), value.to_vec()));
            })?;
        }
        let mut host = self.calls.host.take().ok_or_else(no_host)?;
        let mut draft = core::mem::take(&mut self.calls.draft);
        let range = (first, last);
        let mut scan =
            FoldScan { engine: self, range, rows, options, param, limits: &limits, each };
        let mut ended = Ok((0, false));
        let called = host.run(name, &mut |run| {
            match scan.run(run, &mut draft) {
                Ok(Ok(done)) => ended = Ok(done),
                Ok(Err(stop)) => ended = Err(stop),
                Err(error) => return Err(error),
            }
            Ok(())
        });
        self.calls.host = Some(host);
        self.calls.draft = draft;
        if let Err(error) = called {
            self.calls.draft.trim();
            return Err(failed(name, error).into());
        }
        let (count, whole) = ended?;
        let draft = &self.calls.draft;
        Ok(match whole {
            true => Folded::Whole(draft.replied.then_some(&*draft.reply)),
            false => Folded::Each(count),
        })
    }
}

impl Calls {
    fn host(&mut self) -> Result<&mut Box<dyn Functions>, EngineError> {
        self.host.as_mut().ok_or_else(no_host)
    }

    /// The tickets of operations whose module has been compiled.
    pub(crate) fn take_loaded(&mut self) -> Vec<Ticket> {
        core::mem::take(&mut self.woken)
    }
}

/// What a function made of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folded<'r> {
    /// One reply for all pairs, if there was one.
    Whole(Option<&'r [u8]>),
    /// A reply for each of so many pairs.
    Each(u64),
}

type Rows = Vec<(Box<[u8]>, Vec<u8>)>;

/// A range that a function is called over.
struct FoldScan<'a> {
    engine: &'a mut Engine,
    range: (&'a [u8], &'a [u8]),
    /// The pairs, where reading them has to be over before a function is called.
    rows: Option<Rows>,
    options: RangeOptions,
    param: &'a [u8],
    limits: &'a FunctionLimits,
    each: &'a mut dyn FnMut(&[u8], &[u8]),
}

impl FoldScan<'_> {
    /// How many replies there were, and whether they are one; or why the range cannot be read.
    fn run(
        &mut self,
        run: &mut dyn Run,
        draft: &mut Draft,
    ) -> Result<Result<(u64, bool), Stop>, CallError> {
        let Self { engine, range: (first, last), rows, options, param, limits, each } = self;
        let now = engine.now;
        let whole = run.has_end();
        let (mut count, mut bytes) = (0, 0);
        let mut failure = None;
        draft.begin(None);
        let mut step = |key: &[u8], value: Value<'_>| {
            let len = Some(value.len());
            if whole {
                draft.begin_next(len)
            } else {
                draft.begin(len)
            }
            let mut act = act(key, param, now, Some(value), draft, limits);
            act.reply_bytes_max -= bytes;
            if let Err(error) = run.step(&mut act) {
                failure = Some(error);
                return ControlFlow::Break(());
            }
            if !whole && draft.replied {
                // Keys count as well: many short replies are a long one.
                bytes = (bytes + key.len() + draft.reply.len()).min(limits.reply_bytes_max);
                count += 1;
                each(key, &draft.reply);
            }
            ControlFlow::Continue(())
        };
        let read = match rows {
            Some(rows) => {
                let _all_or_failed =
                    rows.iter().try_for_each(|(key, value)| step(key, Value::of(value)));
                Ok(0)
            }
            None => engine.range_until(first, last, *options, &mut step),
        };
        if let Some(error) = failure {
            return Err(error);
        }
        if let Err(stop) = read {
            return Ok(Err(stop));
        }
        if whole {
            draft.begin_next(None);
            run.finish(&mut act(&[], param, now, None, draft, limits))?;
        }
        Ok(Ok((count, whole)))
    }
}

fn act<'a>(
    key: &'a [u8],
    param: &'a [u8],
    now: headwater_base::Millis,
    stored: Option<Value<'a>>,
    draft: &'a mut Draft,
    limits: &FunctionLimits,
) -> Act<'a> {
    Act {
        key,
        key_seen: Cell::new(false),
        param,
        now: Some(now),
        stored,
        draft,
        writes: false,
        reply_bytes_max: limits.reply_bytes_max,
        write_bytes_max: 0,
        value_bytes_max: 0,
        world: None,
    }
}
