//! What is written to the standard output.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Write};

/// Writes text. That nobody reads it any more (`headwater completions bash | head -1`) takes nothing from what was done.
///
/// # Errors
/// It cannot be written for another reason.
pub(crate) fn show(text: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Whether what has failed is that nobody reads the standard output any more, which ends a program quietly.
pub(crate) fn has_ended(error: &anyhow::Error) -> bool {
    let is_pipe = |cause: &(dyn std::error::Error + 'static)| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == ErrorKind::BrokenPipe)
    };
    // A connection that has ended says the same.
    error.chain().any(is_pipe) && is_closed()
}

fn is_closed() -> bool {
    let out = std::io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}
