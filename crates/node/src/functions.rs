//! Execution of the commands about functions.

use crate::node::Node;
use crate::owners::Ownership;
use alloc::vec::Vec;
use headwater_base::functions::{FunctionReport, Source};
use headwater_command::{Counted, Functions, Reply, glob};
use headwater_engine::{CallOptions, Folded, RangeOptions, Stop};

/// Guess of how many pairs a function replies for; it decides only how the header is patched.
const REPLIES_GUESS: u64 = 50;

pub(crate) fn run(
    node: &mut Node,
    command: &Functions<'_>,
    reply: &mut impl Reply,
) -> Result<(), Stop> {
    let engine = &mut node.engine;
    match *command {
        Functions::Call { name, key, flags, param } => {
            if !node.callable.allows(name) {
                refuse(name, reply);
                return Ok(());
            }
            let options = CallOptions { update: flags.update, present_only: flags.no_reply };
            let answer = engine.function_call(name, key, param, options)?;
            match answer {
                _ if flags.no_reply => reply.ok(),
                Some(bytes) => reply.bulk(bytes),
                None => reply.null(),
            }
            engine.trim_functions();
        }
        Functions::Range { name, first, last, reverse, limit, param } => {
            if !node.callable.allows(name) {
                refuse(name, reply);
                return Ok(());
            }
            let options = RangeOptions { reverse, limit };
            let before = reply.mark();
            let mark = reply.begin_counted(Counted::Map, REPLIES_GUESS);
            let folded = engine.function_range(
                name,
                (first, last),
                options,
                param,
                &mut |key, answer| {
                    reply.bulk(key);
                    reply.bulk(answer);
                },
            )?;
            match folded {
                Folded::Each(count) => reply.end_counted(Counted::Map, mark, count),
                Folded::Whole(answer) => {
                    reply.rewind(before);
                    match answer {
                        Some(bytes) => reply.bulk(bytes),
                        None => reply.null(),
                    }
                }
            }
            engine.trim_functions();
        }
        Functions::Load { name, module, file, export, replace } => {
            let source = match (file, core::str::from_utf8(module)) {
                (false, _) => Source::Bytes(module),
                (true, Ok(file)) => Source::File(file),
                (true, Err(_)) => {
                    reply.error("ERR", format_args!("the name of a file must be UTF-8 text"));
                    return Ok(());
                }
            };
            engine.function_load(name, source, export, replace)?;
            reply.ok();
        }
        Functions::Drop { name } => match engine.function_drop(name)? {
            true => reply.ok(),
            false => no_module(name, reply),
        },
        Functions::List => {
            let reports = engine.functions();
            reply.array(reports.len());
            for report in &reports {
                reply.map(2);
                write_names(report, reply);
            }
        }
        Functions::Info { name } => {
            match engine.functions().iter().find(|report| report.name == name) {
                Some(report) => {
                    write_report(report, &node.ownership("module", name), reply);
                }
                None => no_module(name, reply),
            }
        }
    }
    Ok(())
}

impl Node {
    /// Whether clients may call a function.
    #[must_use]
    pub fn may_call(&self, name: &[u8]) -> bool {
        self.callable.allows(name)
    }

    /// Calls a function for one key and gives `answer` what it replied, if it did.
    ///
    /// # Errors
    /// What the function came to; or data must be loaded first, or clients may not change the key.
    pub fn invoke(
        &mut self,
        name: &[u8],
        key: &[u8],
        param: &[u8],
        options: CallOptions,
        answer: impl FnOnce(Option<&[u8]>),
    ) -> Result<(), Stop> {
        let mut answer = Some(answer);
        self.with_room(|node| {
            let replied = node.engine.function_call(name, key, param, options)?;
            if let Some(answer) = answer.take() {
                answer(replied);
            }
            node.engine.trim_functions();
            Ok(())
        })
    }

    /// Loads a module from a file, in the place of one of that name.
    ///
    /// # Errors
    /// It cannot be loaded; or it is being compiled first.
    pub fn register(&mut self, name: &str, file: &str, export: &str) -> Result<(), Stop> {
        self.engine.function_load(name, Source::File(file), Some(export), true)
    }
}

/// Which functions clients may call.
#[derive(Debug, Default)]
pub(crate) struct Callable {
    /// Glob patterns; `None`: all.
    patterns: Option<Vec<Vec<u8>>>,
}

impl Callable {
    /// Those whose names match one of the `patterns`, which spaces separate.
    pub(crate) fn matching(patterns: &str) -> Self {
        let each = || patterns.split_ascii_whitespace();
        if each().any(|pattern| pattern == "*") {
            return Self { patterns: None };
        }
        Self { patterns: Some(each().map(|pattern| pattern.as_bytes().to_vec()).collect()) }
    }

    #[inline]
    fn allows(&self, name: &[u8]) -> bool {
        let Some(patterns) = &self.patterns else { return true };
        patterns.iter().any(|pattern| glob::matches(pattern, name))
    }
}

#[cold]
fn refuse(name: &[u8], reply: &mut impl Reply) {
    let name = name.escape_ascii();
    reply.error(
        "NOPERM",
        format_args!(
            "function '{name}' is not among those that may be called (functions-callable)"
        ),
    );
}

fn no_module(name: &str, reply: &mut impl Reply) {
    reply.error("ERR", format_args!("no module is named '{}'", name.escape_debug()));
}

fn write_names(report: &FunctionReport, reply: &mut impl Reply) {
    reply.bulk(b"name");
    reply.bulk(report.name.as_bytes());
    reply.bulk(b"functions");
    reply.array(report.exports.len());
    for export in &report.exports {
        reply.bulk(export.as_bytes());
    }
}

/// The numbers that are told of a module.
pub(crate) fn numbers(report: &FunctionReport) -> [(&'static str, u64); 6] {
    [
        ("module-bytes", report.module_bytes),
        ("memory-bytes", report.memory_bytes),
        ("calls", report.calls),
        ("errors", report.errors),
        ("timeouts", report.timeouts),
        ("microseconds", report.microseconds),
    ]
}

fn write_report(report: &FunctionReport, ownership: &Ownership, reply: &mut impl Reply) {
    let numbers = numbers(report);
    reply.map(3 + Ownership::FACTS + numbers.len());
    write_names(report, reply);
    reply.bulk(b"pure");
    reply.integer(i64::from(report.pure));
    ownership.write(reply);
    for (title, number) in numbers {
        reply.bulk(title.as_bytes());
        reply.integer(number as i64);
    }
}
