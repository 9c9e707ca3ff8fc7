//! Threads that end together with the process.

/// Ends the process when its thread panics: the others cannot do without what it has.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
