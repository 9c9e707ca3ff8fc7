//! The signals that ask a process to end, or to read its settings again.

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

/// What a signal asks a node of several processes for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeSignal {
    /// To end: SIGTERM, SIGINT.
    End,
    /// To open its log anew and read its settings again: SIGHUP.
    Reload,
}

/// The signals of a node of several processes, which do not end it any more once this listens to them.
pub struct NodeSignals(Signals);

impl std::fmt::Debug for NodeSignals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeSignals").finish_non_exhaustive()
    }
}

impl NodeSignals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system does not let it.
    pub fn new() -> Result<Self, ConfigError> {
        let signals = [Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw);
        let signals = Signals::new(signals);
        signals.map(Self).map_err(|why| ConfigError(format!("signals: {why}")))
    }

    /// What has come since this was asked last, an end before anything else.
    pub fn came(&mut self) -> Option<NodeSignal> {
        let of = |signal| match signal == Signal::HUP.as_raw() {
            true => NodeSignal::Reload,
            false => NodeSignal::End,
        };
        self.0.pending().map(of).min_by_key(|signal| *signal != NodeSignal::End)
    }
}
