//! One running instance of a module, which each call finds as the first one did.
//!
//! # Invariants
//! - I1. Between calls, memory, globals and tables are what they were when the instance was made: a
//!   call that ends well puts back what it has changed; after one that does not, or that has grown
//!   its memory, the instance is thrown away.
//!
//! # Cost
//! Making an instance takes some tens of microseconds, putting one back as much as copying the
//! chunks that were written: of a module with 64 KiB, 1 KiB each.

use crate::call_time::{CallTime, TimesTaken};
use crate::imports::{IMPURE, MODULE, MemoryDenied, SUBJECT, State};
use crate::instrument::{self, Instrumented, REACH};
use headwater_base::functions::{CallError, FunctionLimits, Refused, Subject};
use wasmtime::{
    Engine, Error, Global, InstancePre, Linker, Memory, Module, Store, Trap, TypedFunc,
    UpdateDeadline, Val,
};

/// The name of the export behind whose name this stands is called at the end of a run.
const END: &str = "_end";
/// What a reactor wants called first.
const INITIALIZE: &str = "_initialize";

/// A compiled module.
pub(crate) struct Compiled {
    pre: InstancePre<State>,
    shift: u32,
    globals: u32,
    once: bool,
    /// Names of the functions that can be called.
    pub(crate) exports: Vec<String>,
    pub(crate) pure: bool,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("exports", &self.exports).finish_non_exhaustive()
    }
}

/// Checks, rewrites and compiles a module.
///
/// # Errors
/// It is no module that can be called; the text says why.
pub(crate) fn compile(
    engine: &Engine,
    linker: &Linker<State>,
    bytes: &[u8],
    limits: &FunctionLimits,
) -> Result<Compiled, String> {
    let Instrumented { bytes, shift, globals, once } =
        instrument::instrument(bytes, limits.memory_bytes_max)?;
    let module = Module::new(engine, &bytes).map_err(|error| format!("{error:#}"))?;
    let pre = linker.instantiate_pre(&module).map_err(|error| {
        format!("{error:#} (functions of '{MODULE}' can be imported, and nothing else)")
    })?;
    let callable = module.exports().filter(|export| {
        export.ty().func().is_some_and(|of| {
            of.params().len() == 0
                && of.results().len() == 1
                && of.result(0).is_some_and(|result| result.is_i32())
        })
    });
    let exports: Vec<String> = callable.map(|export| export.name().to_owned()).collect();
    if exports.is_empty() {
        return Err(String::from(
            "it exports no function without parameters that gives one i32, its status",
        ));
    }
    let pure = !module.imports().any(|import| IMPURE.contains(&import.name()));
    Ok(Compiled { pre, shift, globals, once, exports, pure })
}

impl Compiled {
    /// Where the function is that `name` ends a run of.
    pub(crate) fn end_of(&self, name: &str) -> Option<usize> {
        self.exports.iter().position(|export| export.strip_suffix(END) == Some(name))
    }

    /// Whether an export is only the end of another one.
    pub(crate) fn is_end(&self, name: &str) -> bool {
        name.strip_suffix(END).is_some_and(|of| self.exports.iter().any(|export| export == of))
    }
}

/// An instance with what it takes to put it back.
pub(crate) struct Instance {
    store: Store<State>,
    functions: Vec<TypedFunc<(), i32>>,
    memory: Option<Memory>,
    /// The memory at the start, without the zeros at its end.
    image: Vec<u8>,
    memory_bytes: usize,
    marks: Global,
    globals: Vec<(Global, Val)>,
    shift: u32,
    once: bool,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("memory_bytes", &self.memory_bytes).finish_non_exhaustive()
    }
}

impl Instance {
    /// A new instance; its start and the first calls have the time of one call, together.
    ///
    /// # Errors
    /// The module's start failed.
    pub(crate) fn new(compiled: &Compiled, limits: &FunctionLimits) -> Result<Self, CallError> {
        let state = State {
            memory: None,
            memory_bytes_max: limits.memory_bytes_max,
            marks: 0,
            shift: compiled.shift,
            time: CallTime::new(limits.milliseconds_max, !compiled.pure),
        };
        let mut store = Store::new(compiled.pre.module().engine(), state);
        store.limiter(|state| state);
        store.epoch_deadline_callback(|mut store| {
            if store.data_mut().time.is_over(TimesTaken::now()) {
                return Err(Trap::Interrupt.into());
            }
            Ok(UpdateDeadline::Continue(CallTime::TICKS))
        });
        store.set_epoch_deadline(CallTime::TICKS);
        let told = |error: Error| told(&error, limits);
        let instance = compiled.pre.instantiate(&mut store).map_err(told)?;
        if let Ok(start) = instance.get_typed_func::<(), ()>(&mut store, INITIALIZE) {
            start.call(&mut store, ()).map_err(told)?;
        }
        let mut functions = Vec::new();
        for name in &compiled.exports {
            functions.push(instance.get_typed_func(&mut store, name).map_err(told)?);
        }
        let missing = || CallError::Trap(String::from("an export is missing"));
        let marks = instance.get_global(&mut store, instrument::MARKS).ok_or_else(missing)?;
        let mut globals = Vec::new();
        for at in 0..compiled.globals {
            let name = format!("{}{at}", instrument::GLOBAL);
            let global = instance.get_global(&mut store, &name).ok_or_else(missing)?;
            let value = global.get(&mut store);
            globals.push((global, value));
        }
        let memory = instance.get_memory(&mut store, instrument::MEMORY);
        let bytes = memory.map_or(&[][..], |memory| memory.data(&store));
        let memory_bytes = bytes.len();
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let image = bytes[..used].to_vec();
        store.data_mut().memory = memory;
        let mut instance = Self {
            store,
            functions,
            memory,
            image,
            memory_bytes,
            marks,
            globals,
            shift: compiled.shift,
            once: compiled.once,
        };
        instance.clear_marks().map_err(told)?;
        Ok(instance)
    }

    /// Bytes of its memory, with the copy of it.
    pub(crate) fn bytes(&self) -> usize {
        self.memory_bytes + self.image.len()
    }

    /// Gives the calls from now on the time of one, together.
    #[inline]
    pub(crate) fn begin(&mut self, compiled: &Compiled, limits: &FunctionLimits) {
        self.store.data_mut().time = CallTime::new(limits.milliseconds_max, !compiled.pure);
        self.store.set_epoch_deadline(CallTime::TICKS);
    }

    /// Calls a function for `subject`.
    ///
    /// # Errors
    /// What came of it; the instance is of no use any more.
    #[inline]
    pub(crate) fn call(
        &mut self,
        function: usize,
        subject: &mut dyn Subject,
        limits: &FunctionLimits,
    ) -> Result<(), CallError> {
        let Self { store, functions, .. } = self;
        let function = &functions[function];
        match SUBJECT.set(subject, || function.call(store, ())) {
            Ok(0) => Ok(()),
            Ok(status) => Err(CallError::Status(status)),
            Err(error) => Err(told(&error, limits)),
        }
    }

    fn clear_marks(&mut self) -> Result<(), Error> {
        self.store.data_mut().marks = 0;
        self.marks.set(&mut self.store, Val::I64(0))
    }

    /// Puts everything back after calls that ended well (I1); `false`: it is of no use any more.
    #[inline]
    pub(crate) fn put_back(&mut self) -> bool {
        if self.once {
            return false;
        }
        let mut marks = self.store.data().marks;
        if let Val::I64(word) = self.marks.get(&mut self.store) {
            marks |= word as u64;
        }
        if marks != 0 && (self.clear_marks().is_err() || !self.restore_memory(marks)) {
            return false;
        }
        for (global, value) in &self.globals {
            if !same(&global.get(&mut self.store), value)
                && global.set(&mut self.store, *value).is_err()
            {
                return false;
            }
        }
        true
    }

    /// Puts the marked chunks back.
    fn restore_memory(&mut self, mut marks: u64) -> bool {
        let Some(memory) = self.memory else { return true };
        let bytes = memory.data_mut(&mut self.store);
        if bytes.len() != self.memory_bytes {
            return false;
        }
        while marks != 0 {
            let first = marks.trailing_zeros();
            let count = (!(marks >> first)).trailing_zeros();
            marks &= if first + count == 64 { 0 } else { u64::MAX << (first + count) };
            let start = ((first as usize) << self.shift).min(bytes.len());
            let end = ((((first + count) as usize) << self.shift) + REACH - 1).min(bytes.len());
            let image = self.image.get(start..).unwrap_or(&[]);
            let image = &image[..image.len().min(end - start)];
            let (filled, empty) = bytes[start..end].split_at_mut(image.len());
            filled.copy_from_slice(image);
            empty.fill(0);
        }
        true
    }
}

fn same(one: &Val, other: &Val) -> bool {
    match (one, other) {
        (Val::I32(one), Val::I32(other)) => one == other,
        (Val::I64(one), Val::I64(other)) => one == other,
        (Val::F32(one), Val::F32(other)) => one == other,
        (Val::F64(one), Val::F64(other)) => one == other,
        _ => false,
    }
}

/// What an error of a call means.
fn told(error: &Error, limits: &FunctionLimits) -> CallError {
    if let Some(refused) = error.downcast_ref::<Refused>() {
        return CallError::Refused(*refused);
    }
    if error.is::<MemoryDenied>() {
        return CallError::MemoryLimit(limits.memory_bytes_max);
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => CallError::TimeLimit(limits.milliseconds_max),
        Some(trap) => {
            let text = trap.to_string();
            CallError::Trap(text.strip_prefix("wasm trap: ").unwrap_or(&text).to_owned())
        }
        None => CallError::Trap(format!("{error:#}")),
    }
}
