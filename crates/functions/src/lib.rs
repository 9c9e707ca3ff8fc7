//! Functions beside the values: the host of WebAssembly modules.
//!
//! A module is a few functions without parameters that give a status; host calls (`imports`) let them
//! look at one value where it is stored, draft changes of it, and reply. Nothing else can be reached:
//! no files, no sockets, no clock but the server's, and no memory but a module's own. What a call
//! may take is bounded: its time by a clock beside it, its memory, its stack, and by the
//! [`Subject`] what it writes and replies.
//!
//! # Cost
//! A call of a short function takes some 200 ns more than what the function does: entering the
//! module, and putting its instance back.

mod budget;
mod call_time;
mod clock;
mod compiling;
mod files;
mod imports;
mod instance;
mod instrument;

use budget::Budget;
use clock::Clock;
use compiling::{Compiling, Progress};
use hashbrown::HashMap;
use headwater_base::functions::{
    CallError, FunctionLimits, FunctionReport, Functions, Loading, Run, Source, Subject,
};
use headwater_base::hash::{KeyHashBuilder, Secret};
use instance::{Compiled, Instance};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::{Config, Engine, OptLevel};

/// Stack of one call, in bytes.
const STACK_BYTES: usize = 256 << 10;
/// Longest name of a function, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// What a name alone stands for, if there are several.
const USUAL: &str = "call";
/// Calls whose time is taken each; of later ones, one in so many is.
const TIMED_FIRST: u64 = 256;
const TIMED_EVERY: u64 = 16;

/// A loaded module.
#[derive(Debug)]
struct Loaded {
    compiled: Arc<Compiled>,
    /// The export that the name alone stands for.
    usual: Option<usize>,
    module_bytes: usize,
    instance: Option<Instance>,
    calls: u64,
    errors: u64,
    timeouts: u64,
    nanoseconds: u64,
}

/// Where a name leads.
#[derive(Clone, Copy, Debug)]
struct Place {
    module: usize,
    export: usize,
}

/// The modules that are loaded, and what it takes to load and call them.
pub struct Host {
    limits: FunctionLimits,
    directory: Option<PathBuf>,
    clock: Clock,
    budget: Budget,
    compiling: Compiling,
    /// By number; a number that was dropped is vacant.
    modules: Vec<Option<Loaded>>,
    names: BTreeMap<String, usize>,
    places: HashMap<Box<[u8]>, Place, KeyHashBuilder>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The engine, with nothing that modules do not need.
fn engine() -> Result<Engine, wasmtime::Error> {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        // The same bits on every machine and in every call.
        .cranelift_nan_canonicalization(true)
        .epoch_interruption(true)
        .max_wasm_stack(STACK_BYTES)
        .wasm_backtrace(false)
        .generate_address_map(false)
        .wasm_simd(false)
        .wasm_relaxed_simd(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .wasm_extended_const(true);
    Engine::new(&config)
}

impl Host {
    /// A host without functions. Files are loaded from below `directory` alone; `secret` is for
    /// hashing names.
    ///
    /// # Errors
    /// The machine cannot run WebAssembly, or gives no thread.
    pub fn new(
        limits: &FunctionLimits,
        directory: Option<PathBuf>,
        secret: Secret,
    ) -> Result<Self, String> {
        let engine = engine().map_err(|error| format!("{error:#}"))?;
        let linker = imports::linker(&engine).map_err(|error| format!("{error:#}"))?;
        let clock = Clock::start(engine.clone()).map_err(|error| format!("no thread: {error}"))?;
        Ok(Self {
            limits: limits.clone(),
            directory,
            clock,
            budget: Budget::default(),
            compiling: Compiling::new(engine, linker),
            modules: Vec::new(),
            names: BTreeMap::new(),
            places: HashMap::with_hasher(KeyHashBuilder::new(secret)),
        })
    }

    /// As [`Functions::load`], waiting for it to be compiled.
    ///
    /// # Errors
    /// It cannot be loaded; the text says why.
    pub fn load_now(
        &mut self,
        name: &str,
        module: Source<'_>,
        export: Option<&str>,
        replace: bool,
    ) -> Result<(), String> {
        loop {
            match self.load(name, module, export, replace) {
                Loading::Done => return Ok(()),
                Loading::Failed(why) => return Err(why),
                Loading::Waiting => {
                    while !self.poll() {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            }
        }
    }

    fn try_load(
        &mut self,
        name: &str,
        module: Source<'_>,
        export: Option<&str>,
        replace: bool,
    ) -> Result<Loading, String> {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(letter) {
            return Err(format!(
                "the name of a module has 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or ':'"
            ));
        }
        let is_new = !self.names.contains_key(name);
        if !is_new && !replace {
            return Err(format!("'{name}' is loaded: REPLACE puts another one in its place"));
        }
        if is_new && self.names.len() >= self.limits.functions_max {
            return Err(format!(
                "there are {} modules (allowed: {}, functions-max)",
                self.names.len(),
                self.limits.functions_max
            ));
        }
        let most = self.limits.module_bytes_max;
        let read;
        let bytes = match (module, &self.directory) {
            (Source::Bytes(bytes), _) => bytes,
            (Source::File(file), Some(directory)) => {
                read = files::read(directory, file, most)?;
                &*read
            }
            (Source::File(_), None) => {
                return Err(String::from("files need a directory: see --functions"));
            }
        };
        if bytes.len() > most {
            let told = "a module has too many bytes";
            return Err(format!("{told} (allowed: {most}, function-module-bytes-max)"));
        }
        let compiled = match self.compiling.ask(bytes, &self.limits) {
            Progress::Waiting => return Ok(Loading::Waiting),
            Progress::Finished(outcome) => outcome?,
        };
        let usual = usual(&compiled, export)?;
        let instance = self.instantiate(&compiled).map_err(|error| format!("its start {error}"))?;
        let loaded = Loaded {
            compiled,
            usual,
            module_bytes: bytes.len(),
            instance: Some(instance),
            calls: 0,
            errors: 0,
            timeouts: 0,
            nanoseconds: 0,
        };
        self.install(name, loaded);
        Ok(Loading::Done)
    }

    fn install(&mut self, name: &str, loaded: Loaded) {
        self.remove(name);
        let vacant = self.modules.iter().position(Option::is_none);
        let module = vacant.unwrap_or_else(|| {
            self.modules.push(None);
            self.modules.len() - 1
        });
        if let Some(export) = loaded.usual {
            self.places.insert(name.as_bytes().into(), Place { module, export });
        }
        for (export, text) in loaded.compiled.exports.iter().enumerate() {
            let whole = format!("{name}.{text}").into_bytes();
            self.places.insert(whole.into(), Place { module, export });
        }
        self.modules[module] = Some(loaded);
        self.names.insert(name.to_owned(), module);
    }

    fn instantiate(&mut self, compiled: &Compiled) -> Result<Instance, CallError> {
        self.clock.begin();
        let made = Instance::new(compiled, &self.limits);
        self.clock.end();
        made
    }

    /// Does something with the instance of a function, and keeps it if that went well.
    fn enter(
        &mut self,
        name: &[u8],
        act: impl FnOnce(&mut Instance, &Compiled, usize, &FunctionLimits) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let Some(&Place { module, export }) = self.places.get(name) else {
            return Err(CallError::NoSuchFunction);
        };
        let Some(loaded) = self.modules[module].as_mut() else {
            return Err(CallError::NoSuchFunction);
        };
        let timed = loaded.calls < TIMED_FIRST || loaded.calls.is_multiple_of(TIMED_EVERY);
        let weight = if loaded.calls < TIMED_FIRST { 1 } else { TIMED_EVERY };
        loaded.calls += 1;
        let started = timed.then(Instant::now);
        self.clock.begin();
        let mut done = match &mut loaded.instance {
            Some(instance) => {
                instance.begin(&loaded.compiled, &self.limits);
                Ok(())
            }
            none => {
                Instance::new(&loaded.compiled, &self.limits).map(|instance| *none = Some(instance))
            }
        };
        if let Some(instance) = &mut loaded.instance {
            done = act(instance, &loaded.compiled, export, &self.limits);
            if done.is_err() || !instance.put_back() {
                loaded.instance = None;
            }
        }
        self.clock.end();
        if let Some(started) = started {
            loaded.nanoseconds += started.elapsed().as_nanos() as u64 * weight;
        }
        if let Err(error) = &done {
            loaded.errors += 1;
            loaded.timeouts += u64::from(matches!(error, CallError::TimeLimit(_)));
        }
        done
    }
}

/// The export that the name alone stands for.
fn usual(compiled: &Compiled, export: Option<&str>) -> Result<Option<usize>, String> {
    let find = |name: &str| compiled.exports.iter().position(|export| export == name);
    if let Some(wanted) = export {
        let told = || {
            let names = compiled.exports.join(", ");
            format!("it exports no function '{}' (there are: {names})", wanted.escape_debug())
        };
        return find(wanted).map(Some).ok_or_else(told);
    }
    let mut others =
        (0..compiled.exports.len()).filter(|&at| !compiled.is_end(&compiled.exports[at]));
    let first = others.next();
    let only = if others.next().is_none() { first } else { None };
    Ok(find(USUAL).or(only))
}

/// Calls under way on one instance.
struct Steps<'i> {
    instance: &'i mut Instance,
    limits: &'i FunctionLimits,
    export: usize,
    end: Option<usize>,
}

impl Run for Steps<'_> {
    fn step(&mut self, subject: &mut dyn Subject) -> Result<(), CallError> {
        self.instance.call(self.export, subject, self.limits)
    }

    fn has_end(&self) -> bool {
        self.end.is_some()
    }

    fn finish(&mut self, subject: &mut dyn Subject) -> Result<(), CallError> {
        self.end.map_or(Ok(()), |end| self.instance.call(end, subject, self.limits))
    }
}

impl Functions for Host {
    fn load(
        &mut self,
        name: &str,
        module: Source<'_>,
        export: Option<&str>,
        replace: bool,
    ) -> Loading {
        self.try_load(name, module, export, replace).unwrap_or_else(Loading::Failed)
    }

    fn is_loading(&self) -> bool {
        self.compiling.is_busy()
    }

    fn poll(&mut self) -> bool {
        self.compiling.poll()
    }

    fn remove(&mut self, name: &str) -> bool {
        let Some(number) = self.names.remove(name) else { return false };
        self.places.retain(|_, place| place.module != number);
        self.modules[number] = None;
        true
    }

    fn list(&self) -> Vec<FunctionReport> {
        let loaded = self.names.iter().filter_map(|(name, &number)| {
            self.modules[number].as_ref().map(|loaded| report(name, loaded))
        });
        loaded.collect()
    }

    fn is_pure(&self, name: &[u8]) -> Option<bool> {
        let place = self.places.get(name)?;
        self.modules[place.module].as_ref().map(|loaded| loaded.compiled.pure)
    }

    fn set_limits(&mut self, limits: &FunctionLimits) {
        if limits.memory_bytes_max != self.limits.memory_bytes_max {
            // Instances know theirs.
            self.modules.iter_mut().flatten().for_each(|loaded| loaded.instance = None);
        }
        self.limits = limits.clone();
    }

    #[inline]
    fn call(&mut self, name: &[u8], subject: &mut dyn Subject) -> Result<(), CallError> {
        self.enter(name, |instance, _, export, limits| instance.call(export, subject, limits))
    }

    fn begin_shared(&mut self) {
        self.budget = Budget::default();
    }

    fn call_shared(&mut self, name: &[u8], subject: &mut dyn Subject) -> Result<(), CallError> {
        let most = self.limits.milliseconds_max;
        if self.budget.is_spent(Duration::from_millis(most)) {
            return Err(CallError::TimeLimit(most));
        }
        let call = self.budget.begin();
        let done = self.call(name, subject);
        self.budget.end(call, matches!(done, Err(CallError::TimeLimit(_))));
        done
    }

    fn run(
        &mut self,
        name: &[u8],
        with: &mut dyn FnMut(&mut dyn Run) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        self.enter(name, |instance, compiled, export, limits| {
            let end = compiled.end_of(&compiled.exports[export]);
            with(&mut Steps { instance, limits, export, end })
        })
    }
}

fn report(name: &str, loaded: &Loaded) -> FunctionReport {
    let usual = loaded.usual.map(|_| name.to_owned());
    let exports = loaded.compiled.exports.iter().map(|export| format!("{name}.{export}"));
    FunctionReport {
        name: name.to_owned(),
        exports: usual.into_iter().chain(exports).collect(),
        pure: loaded.compiled.pure,
        module_bytes: loaded.module_bytes as u64,
        memory_bytes: loaded.instance.as_ref().map_or(0, |instance| instance.bytes() as u64),
        calls: loaded.calls,
        errors: loaded.errors,
        timeouts: loaded.timeouts,
        microseconds: loaded.nanoseconds / 1000,
    }
}
