//! How the process of a node ends by itself, or begins anew.

use crate::handover::Inherited;
use crate::handover::inherited::VARIABLE;
use crate::log::{self, event};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Ends the process, for a reason that whoever operates the cluster has to look at.
pub(super) fn stop_for_good(why: &str) -> ! {
    event!(error, "cluster", "stopped", why, "the node stops for good");
    #[cfg(test)]
    ProcessEnd::ForGood(String::from(why)).unwind();
    log::end();
    std::process::exit(1)
}

/// N2: the process begins anew, as the same program with the same arguments.
pub(super) fn begin_again(why: &str) -> ! {
    begin_again_with(why, &Inherited::default())
}

/// The same; the process that it becomes has these sockets.
pub(super) fn begin_again_with(why: &str, left: &Inherited) -> ! {
    event!(warn, "cluster", "begins_again", why, "the process begins anew from its folder");
    #[cfg(test)]
    ProcessEnd::Again(String::from(why)).unwind();
    log::end();
    let mut arguments = std::env::args_os();
    let mut program = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        program.arg0(name);
    }
    program.env_remove(VARIABLE);
    // Where they cannot be left, clients connect again.
    program.envs(left.leave());
    let error = program.args(arguments).exec();
    stop_for_good(&format!("it cannot begin anew: {error}"))
}

/// How a process ends in a simulation: its thread unwinds to whoever gave it its turn.
#[cfg(test)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ProcessEnd {
    /// It begins anew.
    Again(String),
    /// It does not.
    ForGood(String),
}

#[cfg(test)]
impl ProcessEnd {
    /// Does not come back; its type does not say so, or nothing could stand behind it.
    fn unwind(self) {
        std::panic::resume_unwind(Box::new(self))
    }
}
