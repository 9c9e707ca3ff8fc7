//! Servers that are not there yet: a start waits for them.

use crate::settings::JetStreamError;
use std::time::{Duration, Instant};

/// How often servers are asked that were not there yet, and how often it is said that they are not.
const RETRY: Duration = Duration::from_millis(200);
const SAY: Duration = Duration::from_secs(10);

/// Why an attempt has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// It would fail again: what is there is not what it has to be.
    Refused(JetStreamError),
    /// Servers do not answer, or have not found one another yet.
    NotYet(JetStreamError),
}

/// How long is waited.
pub(crate) struct Waiting {
    /// `None`: without end.
    until: Option<Instant>,
    said: Option<Instant>,
    /// Whether the log has that it waits.
    says: bool,
}

impl Waiting {
    /// Waits so long at most; `None`: without end.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { until, said: None, says: true }
    }

    /// The same, for somebody who is told in the end alone.
    pub(crate) fn quiet(limit: Option<Duration>) -> Self {
        Self { says: false, ..Self::new(limit) }
    }

    /// How long to wait before the next attempt.
    ///
    /// # Errors
    /// There is none: it is refused, or time is over.
    pub(crate) fn before_next(&mut self, failure: Failure) -> Result<Duration, JetStreamError> {
        let why = match failure {
            Failure::Refused(why) => return Err(why),
            Failure::NotYet(why) => why,
        };
        let now = Instant::now();
        if self.until.is_some_and(|until| now >= until) {
            return Err(why);
        }
        if self.says && self.said.is_none_or(|said| now - said >= SAY) {
            self.said = Some(now);
            tracing::warn!(
                name: "waits",
                target: "cluster",
                event = "waits",
                %why,
                "the node waits for its NATS servers"
            );
        }
        Ok(RETRY)
    }
}

/// Tries until it succeeds, or is refused, or has waited long enough.
pub(crate) async fn until_there<T, F>(
    mut waiting: Waiting,
    attempt: impl Fn() -> F,
) -> Result<T, JetStreamError>
where
    F: Future<Output = Result<T, Failure>>,
{
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(failure) => tokio::time::sleep(waiting.before_next(failure)?).await,
        }
    }
}
