//! The signals that ask a process to end.

use headwater_config::ConfigError;
use rustix::process::Signal;
use signal_hook_mio::v1_0::Signals;

/// SIGTERM and SIGINT, which do not end the process any more once this listens to them.
pub struct EndSignals(Signals);

impl std::fmt::Debug for EndSignals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndSignals").finish_non_exhaustive()
    }
}

impl EndSignals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system does not let it.
    pub fn new() -> Result<Self, ConfigError> {
        let signals = Signals::new([Signal::TERM.as_raw(), Signal::INT.as_raw()]);
        signals.map(Self).map_err(|why| ConfigError(format!("signals: {why}")))
    }

    /// Whether one has come since this was asked last.
    pub fn came(&mut self) -> bool {
        self.0.pending().next().is_some()
    }
}
