//! The port through which pure rooms call functions that run beside a value.
//!
//! Whoever holds the values hands out a [`Subject`]: one key with its value, to look at and to change
//! in place. What a function changes is a draft until it has ended well, so a function that fails has
//! done nothing.

use crate::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Debug};

/// Why a host call was refused. The function under way is ended by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The call may only read.
    ReadOnly,
    /// A pure function asked for the time.
    NotPure,
    /// The reply would have more bytes than this.
    ReplyTooLong(usize),
    /// More bytes than this were to be written in one call.
    WritesTooLong(usize),
    /// There were more separate writes than this in one call.
    TooManyWrites(usize),
    /// The value would have more bytes than this.
    ValueTooLong(usize),
    /// Other keys were asked for by a call that no flow makes.
    NotInFlow,
    /// A key was to be written that no pattern of the flow declares.
    NotDeclared,
    /// What was asked for cannot be read or written now; whoever made the call knows why.
    Stopped,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly => f.write_str("changes the value, which needs UPDATE"),
            Self::NotPure => f.write_str("asks for the time, which a pure function may not"),
            Self::NotInFlow => f.write_str("asks for what only functions that flows call have"),
            Self::NotDeclared => f.write_str("writes a key that WRITES does not declare"),
            Self::Stopped => f.write_str("asks for what cannot be had now"),
            Self::ReplyTooLong(max) => {
                write!(f, "replies more than {max} bytes (function-reply-bytes-max)")
            }
            Self::WritesTooLong(max) => {
                write!(f, "writes more than {max} bytes (function-write-bytes-max)")
            }
            Self::TooManyWrites(max) => write!(f, "writes at more than {max} places"),
            Self::ValueTooLong(max) => {
                write!(f, "makes the value longer than {max} bytes (value-bytes-max)")
            }
        }
    }
}

impl core::error::Error for Refused {}

/// One key with its value, as a function sees it: with the changes it has made itself.
pub trait Subject {
    /// The key.
    fn key(&self) -> &[u8];

    /// What the caller gave the function.
    fn param(&self) -> &[u8];

    /// The time, as the engine was told it.
    ///
    /// # Errors
    /// The function must be pure.
    fn now(&self) -> Result<Millis, Refused>;

    /// Length of the value in bytes; `None` where the key is absent.
    fn len(&self) -> Option<usize>;

    /// Whether the key is absent, or its value has no bytes.
    fn is_empty(&self) -> bool {
        self.len().is_none_or(|len| len == 0)
    }

    /// Copies bytes of the value from `offset` on, as far as it has them; gives how many.
    fn read(&self, offset: usize, into: &mut [u8]) -> usize;

    /// Puts `bytes` into the place of those from `offset` on; a value that is shorter grows, with
    /// zeros between.
    ///
    /// # Errors
    /// The call may not change the value, or a limit is reached.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Refused>;

    /// Puts `bytes` behind the value.
    ///
    /// # Errors
    /// As for [`Subject::write`].
    fn append(&mut self, bytes: &[u8]) -> Result<(), Refused>;

    /// Cuts the value to its first `len` bytes, if it has more.
    ///
    /// # Errors
    /// As for [`Subject::write`].
    fn truncate(&mut self, len: usize) -> Result<(), Refused>;

    /// Gives the key the value `bytes`.
    ///
    /// # Errors
    /// As for [`Subject::write`].
    fn replace(&mut self, bytes: &[u8]) -> Result<(), Refused>;

    /// Removes the key.
    ///
    /// # Errors
    /// As for [`Subject::write`].
    fn delete(&mut self) -> Result<(), Refused>;

    /// Puts `bytes` behind what has been replied.
    ///
    /// # Errors
    /// The reply is too long.
    fn reply(&mut self, bytes: &[u8]) -> Result<(), Refused>;

    /// Replies bytes of the value from `offset` on, as far as it has them; gives how many.
    ///
    /// # Errors
    /// The reply is too long.
    fn reply_value(&mut self, offset: usize, len: usize) -> Result<usize, Refused>;

    /// What a flow's call has besides.
    ///
    /// # Errors
    /// No flow makes this call.
    fn world(&mut self) -> Result<&mut dyn World, Refused> {
        Err(Refused::NotInFlow)
    }
}

/// The other keys, for functions that flows call. What is put and removed here is seen by the call itself at once, by
/// everybody else when it has ended well.
pub trait World {
    /// The value of the numbered slot of the changed key, in the order of the flow's pattern.
    fn slot(&self, number: usize) -> Option<&[u8]>;

    /// Finds the value of a key; gives its length, if the key is there.
    ///
    /// # Errors
    /// It cannot be read.
    fn find(&mut self, key: &[u8]) -> Result<Option<usize>, Refused>;

    /// Finds the first pairs of `[first, last)` (an empty `last`: to the end), up to `most`, or fewer where they are
    /// long; gives their number, which is 0 only where there is none.
    ///
    /// # Errors
    /// They cannot be read.
    fn find_range(&mut self, first: &[u8], last: &[u8], most: usize) -> Result<usize, Refused>;

    /// Goes on to the next pair that was found; whether there is one.
    fn next_found(&mut self) -> bool;

    /// The pair that was found, its key and its value.
    fn found(&self) -> Option<(&[u8], &[u8])>;

    /// Gives a key a value.
    ///
    /// # Errors
    /// It may not be written, or a limit is reached.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refused>;

    /// Removes a key.
    ///
    /// # Errors
    /// As for [`World::put`].
    fn remove(&mut self, key: &[u8]) -> Result<(), Refused>;
}

/// Why a call came to nothing. Its `Display` text is complete but for the function's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallError {
    /// No function has this name.
    NoSuchFunction,
    /// The function ended itself with this status.
    Status(i32),
    /// The function did something that no function can; the text says what.
    Trap(String),
    /// It took longer than this many milliseconds.
    TimeLimit(u64),
    /// It wanted more than this many bytes of memory.
    MemoryLimit(usize),
    /// A host call was refused.
    Refused(Refused),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchFunction => f.write_str("is not loaded"),
            Self::Status(status) => write!(f, "ended with status {status}"),
            Self::Trap(text) => write!(f, "failed: {text}"),
            Self::TimeLimit(millis) => {
                write!(f, "took longer than {millis} ms (function-milliseconds-max)")
            }
            Self::MemoryLimit(bytes) => {
                write!(f, "wanted more than {bytes} bytes of memory (function-memory-bytes-max)")
            }
            Self::Refused(refused) => write!(f, "{refused}"),
        }
    }
}

/// What a function may take, and what a module may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionLimits {
    /// Longest time of one call, in milliseconds.
    pub milliseconds_max: u64,
    /// Memory of one function, in bytes.
    pub memory_bytes_max: usize,
    /// Longest reply of one call, in bytes.
    pub reply_bytes_max: usize,
    /// Bytes that one call may write.
    pub write_bytes_max: usize,
    /// Longest module, in bytes.
    pub module_bytes_max: usize,
    /// Modules that may be loaded at once.
    pub functions_max: usize,
}

impl Default for FunctionLimits {
    fn default() -> Self {
        Self {
            milliseconds_max: 10,
            memory_bytes_max: 16 << 20,
            reply_bytes_max: 1 << 20,
            write_bytes_max: 4 << 20,
            module_bytes_max: 1 << 20,
            functions_max: 256,
        }
    }
}

/// Where a module comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// A file of this name below the directory of functions.
    File(&'a str),
}

/// How loading a module went on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loading {
    /// It can be called.
    Done,
    /// It is being compiled: ask again, with the same module, when [`Functions::poll`] has told.
    Waiting,
    /// It cannot be loaded; the text says why.
    Failed(String),
}

/// One loaded module, with what became of its calls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FunctionReport {
    /// Its name.
    pub name: String,
    /// The exports that can be called, `name.export` each, but for the one that the name alone
    /// stands for, which comes first.
    pub exports: Vec<String>,
    /// Whether its answers depend on nothing but value, key and parameter.
    pub pure: bool,
    /// Bytes of the module.
    pub module_bytes: u64,
    /// Bytes of its memory now.
    pub memory_bytes: u64,
    /// Calls since it was loaded.
    pub calls: u64,
    /// Calls that came to nothing.
    pub errors: u64,
    /// Calls that took too long.
    pub timeouts: u64,
    /// Time of all calls, in microseconds, from a sample of them.
    pub microseconds: u64,
}

/// A call that is under way on several subjects, one after the other.
///
/// The function keeps its memory from one to the next, so that it can fold, and the time limit is
/// one for all of them.
pub trait Run {
    /// Calls the function for one more subject.
    ///
    /// # Errors
    /// The call came to nothing; the run is over.
    fn step(&mut self, subject: &mut dyn Subject) -> Result<(), CallError>;

    /// Whether the function has an end, which is to be called when all steps were made.
    fn has_end(&self) -> bool;

    /// Calls the function's end.
    ///
    /// # Errors
    /// As for [`Run::step`].
    fn finish(&mut self, subject: &mut dyn Subject) -> Result<(), CallError>;
}

/// Functions that can be called by name: `module`, or `module.export`.
///
/// Calls are made on the thread that answers clients, so each must take a bounded time. What is said of modules by default is for
/// functions that are there from the beginning: no module comes, goes, or is compiled.
pub trait Functions: Debug {
    /// Loads a module under `name`, in the place of one of that name if `replace`. `export` is what
    /// the name alone stands for; `None`: `call`, or the only one there is.
    fn load(
        &mut self,
        name: &str,
        module: Source<'_>,
        export: Option<&str>,
        replace: bool,
    ) -> Loading;

    /// Whether a module is being compiled.
    fn is_loading(&self) -> bool {
        false
    }

    /// Whether compiling has ended since this was last asked.
    fn poll(&mut self) -> bool {
        false
    }

    /// Forgets a module; whether there was one.
    fn remove(&mut self, _name: &str) -> bool {
        false
    }

    /// All modules, in order of their names.
    fn list(&self) -> Vec<FunctionReport> {
        Vec::new()
    }

    /// Whether `name` can be called, and whether it is pure.
    fn is_pure(&self, name: &[u8]) -> Option<bool>;

    /// Changes the bounds for calls and loads from now on.
    fn set_limits(&mut self, _limits: &FunctionLimits) {}

    /// Calls `name` for one subject.
    ///
    /// # Errors
    /// The call came to nothing.
    fn call(&mut self, name: &[u8], subject: &mut dyn Subject) -> Result<(), CallError>;

    /// One operation begins, which may call functions for many outputs.
    fn begin_shared(&mut self) {}

    /// As [`Functions::call`], for one of the outputs of an operation: what its calls take that are slow is one time for
    /// all of them, and when it is over they come to nothing at once.
    ///
    /// # Errors
    /// As for [`Functions::call`].
    fn call_shared(&mut self, name: &[u8], subject: &mut dyn Subject) -> Result<(), CallError> {
        self.call(name, subject)
    }

    /// Calls `name` for as many subjects as `with` has.
    ///
    /// # Errors
    /// The function is not there, or what `with` gave.
    fn run(
        &mut self,
        name: &[u8],
        with: &mut dyn FnMut(&mut dyn Run) -> Result<(), CallError>,
    ) -> Result<(), CallError>;
}
