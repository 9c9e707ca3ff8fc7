//! What is written to the standard output.

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
