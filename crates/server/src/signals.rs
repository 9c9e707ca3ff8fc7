//! The signals that ask a process to end, or to read its settings again.

use headwater_config::ConfigError;
use rustix::process::Signal;
use signal_hook_mio::v1_0::Signals;

/// Listens to these signals from now on: they do nothing else any more.
///
/// # Errors
/// The system does not let it.
pub(crate) fn listen(signals: &[Signal]) -> Result<Signals, ConfigError> {
    let signals = Signals::new(signals.iter().map(|signal| signal.as_raw()));
    signals.map_err(|why| ConfigError(format!("signals: {why}")))
}

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
        listen(&[Signal::TERM, Signal::INT]).map(Self)
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
        listen(&[Signal::TERM, Signal::INT, Signal::HUP]).map(Self)
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
