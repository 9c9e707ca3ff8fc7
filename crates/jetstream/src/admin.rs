//! What those who operate a cluster ask of its servers, from outside of any node: what bucket and streams have, and writes to the bucket.
//!
//! The calls wait for the servers. Nothing is made by connecting, so that a wrong name leaves nothing behind; [`JetStreamAdmin::create`] makes all.

use crate::check::{UNSAFE_SYNC, ask_servers};
use crate::commands::{ANSWER_TIMEOUT, LogNames, last_of, put};
use crate::connect::{connect, context_of};
use crate::settings::{JetStreamError, JetStreamSettings};
use crate::streams::{make, make_bucket, make_log};
use crate::waiting::{Failure, Waiting, until_there};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{Context, ErrorCode};
use futures_util::TryStreamExt;
use headwater_log::{PutOutcome, Revision, Sequence};
use std::fmt;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A server that has not been heard by a stream's leader for so long is away: it is heard every second.
const AWAY: Duration = Duration::from_secs(5);

/// Why something was not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminError {
    /// The servers do not have it.
    Missing(String),
    /// The servers do not say: they are away, or have no quorum.
    Unavailable(String),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "the NATS servers have no {what}"),
            Self::Unavailable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for AdminError {}

/// A key of the bucket of owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketEntry {
    /// The key.
    pub key: String,
    /// Its revision.
    pub revision: Revision,
    /// Its value.
    pub value: Vec<u8>,
}

/// A server that keeps a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamServer {
    /// Its name.
    pub name: String,
    /// Whether the stream's leader hears it; the leader itself does.
    pub heard: bool,
}

/// What a stream has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSummary {
    /// The first sequence that it has.
    pub first: Sequence,
    /// The last sequence that it has given.
    pub last: Sequence,
    /// How many messages it has.
    pub messages: u64,
    /// Their bytes, in one copy.
    pub bytes: u64,
    /// The server that leads it, if there is one.
    pub leader: Option<String>,
    /// The servers that keep it.
    pub servers: Vec<StreamServer>,
}

impl StreamSummary {
    /// Whether more than half of the servers that keep it hear its leader.
    #[must_use]
    pub fn has_quorum(&self) -> bool {
        let heard = self.servers.iter().filter(|server| server.heard).count();
        self.leader.is_some() && 2 * heard > self.servers.len()
    }
}

/// A connection of somebody who operates a cluster.
pub struct JetStreamAdmin {
    settings: JetStreamSettings,
    context: Context,
    runtime: Runtime,
}

impl fmt::Debug for JetStreamAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamAdmin").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn unavailable(why: impl fmt::Display) -> AdminError {
    AdminError::Unavailable(why.to_string())
}

impl JetStreamAdmin {
    /// Connects to one of the servers.
    ///
    /// # Errors
    /// None can be reached, within the time that the settings give a start, or it refuses.
    pub fn connect(settings: JetStreamSettings) -> Result<Self, JetStreamError> {
        settings.check()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|why| JetStreamError(format!("no thread for NATS: {why}")))?;
        let waiting = Waiting::quiet(settings.start);
        // What answers acknowledgements is a task of the runtime as well.
        let attempt = || async { connect(&settings).await.map(context_of) };
        let context = runtime.block_on(until_there(waiting, attempt))?;
        Ok(Self { settings, context, runtime })
    }

    /// How the servers are reached, and what the cluster's streams are called.
    #[must_use]
    pub fn settings(&self) -> &JetStreamSettings {
        &self.settings
    }

    /// Waits, while the connection goes on.
    pub fn pause(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    fn within<T>(
        &self,
        what: &str,
        answer: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        let answered =
            self.runtime.block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, answer).await });
        answered.unwrap_or_else(|_| {
            let seconds = ANSWER_TIMEOUT.as_secs();
            Err(unavailable(format_args!("{what}: no answer within {seconds} seconds")))
        })
    }

    /// All keys of the bucket, as its leader has them: a server that is behind would show nodes as silent that are not.
    ///
    /// # Errors
    /// There is no bucket, or no leader that says what it has.
    pub fn entries(&self) -> Result<Vec<BucketEntry>, AdminError> {
        let bucket = self.settings.bucket();
        let stream = format!("KV_{bucket}");
        let prefix = format!("$KV.{bucket}.");
        self.within(&format!("bucket {bucket}"), async {
            let failed =
                |why: &dyn fmt::Display| unavailable(format_args!("bucket {bucket}: {why}"));
            let found = self.found(&stream).await?;
            let subjects = found.info_with_subjects(format!("{prefix}>")).await;
            let subjects = subjects.map_err(|why| failed(&why))?.try_collect().await;
            let subjects: Vec<(String, usize)> = subjects.map_err(|why| failed(&why))?;
            let mut entries = Vec::new();
            for (subject, _) in subjects {
                let Some(key) = subject.strip_prefix(&prefix) else { continue };
                let last = last_of(&self.context, &stream, &subject).await;
                let (revision, value) =
                    last.ok_or_else(|| failed(&format_args!("key {key} cannot be read")))?;
                // It may have been removed meanwhile.
                if revision != Revision(0) {
                    entries.push(BucketEntry { key: key.to_owned(), revision, value });
                }
            }
            Ok(entries)
        })
    }

    /// A key of the bucket, as its leader has it; revision 0: there is no such key.
    ///
    /// # Errors
    /// The leader does not say.
    pub fn entry(&self, key: &str) -> Result<(Revision, Vec<u8>), AdminError> {
        let bucket = self.settings.bucket();
        let what = format!("key {key} of bucket {bucket}");
        self.within(&what, async {
            let (stream, subject) = (format!("KV_{bucket}"), format!("$KV.{bucket}.{key}"));
            let last = last_of(&self.context, &stream, &subject).await;
            last.ok_or_else(|| unavailable(format_args!("{what} cannot be read")))
        })
    }

    /// Writes a key of the bucket if it has this revision; 0: there must be none.
    #[must_use]
    pub fn put(&self, key: &str, revision: Revision, value: Vec<u8>) -> PutOutcome {
        let bucket = self.settings.bucket();
        let put = async { put(&self.context, &bucket, key, revision, value).await.await };
        self.runtime.block_on(put)
    }

    /// Removes a key of the bucket, but not what is written to it later than this revision.
    ///
    /// # Errors
    /// The servers do not say that it is gone.
    pub fn remove(&self, key: &str, revision: Revision) -> Result<(), AdminError> {
        let bucket = self.settings.bucket();
        let what = format!("key {key} of bucket {bucket}");
        self.within(&what, async {
            let failed = |why: &dyn fmt::Display| unavailable(format_args!("{what}: {why}"));
            let stream = self.context.get_stream_no_info(format!("KV_{bucket}")).await;
            let stream = stream.map_err(|why| failed(&why))?;
            let subject = format!("$KV.{bucket}.{key}");
            let purge = stream.purge().sequence(revision.0 + 1).filter(subject);
            purge.await.map(drop).map_err(|why| failed(&why))
        })
    }

    /// A stream, if there is one.
    async fn found(&self, stream: &str) -> Result<Stream, AdminError> {
        self.context.get_stream(stream).await.map_err(|why| match why.kind() {
            GetStreamErrorKind::JetStream(error)
                if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                AdminError::Missing(format!("stream {stream}"))
            }
            _ => unavailable(format_args!("stream {stream}: {why}")),
        })
    }

    async fn summary(&self, stream: &str) -> Result<StreamSummary, AdminError> {
        let found = self.found(stream).await?;
        let info = found.cached_info();
        let (mut leader, mut servers) = (None, Vec::new());
        if let Some(cluster) = &info.cluster {
            leader.clone_from(&cluster.leader);
            servers
                .extend(leader.iter().map(|name| StreamServer { name: name.clone(), heard: true }));
            servers.extend(cluster.replicas.iter().map(|replica| StreamServer {
                name: replica.name.clone(),
                heard: !replica.offline && replica.active < AWAY,
            }));
            servers.sort_by(|one, other| one.name.cmp(&other.name));
        }
        Ok(StreamSummary {
            first: Sequence(info.state.first_sequence),
            last: Sequence(info.state.last_sequence),
            messages: info.state.messages,
            bytes: info.state.bytes,
            leader,
            servers,
        })
    }

    /// What a stream has, as its leader says.
    ///
    /// # Errors
    /// There is no such stream, or no leader that says it.
    pub fn stream(&self, name: &str) -> Result<StreamSummary, AdminError> {
        self.within(&format!("stream {name}"), self.summary(name))
    }

    /// What the bucket's stream has.
    ///
    /// # Errors
    /// As for [`Self::stream`].
    pub fn bucket_stream(&self) -> Result<StreamSummary, AdminError> {
        self.stream(&format!("KV_{}", self.settings.bucket()))
    }

    /// Makes bucket and streams where there are none, for so many shards, and sees whether the servers sync; gives a sentence for everything that
    /// is wrong, and one for each server that could not be asked.
    #[must_use]
    pub fn create(&self, shards: u32) -> CreateReport {
        let mut report = CreateReport::default();
        if !self.settings.unsafe_sync {
            let sync = ask_servers(&self.settings);
            report.wrong.extend(sync.wrong.iter().map(|why| format!("{why}; {UNSAFE_SYNC}")));
            if sync.is_enough() {
                report.away = sync.away;
            } else {
                report.wrong.extend(sync.away);
            }
        }
        if !report.wrong.is_empty() {
            // Streams would be made with servers that no node takes.
            return report;
        }
        let settings = &self.settings;
        let mut note = |made: Result<(), JetStreamError>, name: String| match made {
            Ok(()) => report.there.push(name),
            Err(JetStreamError(why)) => report.wrong.push(why),
        };
        note(
            self.made(|| make_bucket(&self.context, settings)),
            format!("bucket {}", settings.bucket()),
        );
        for shard in 0..shards {
            let names =
                LogNames { stream: settings.stream(shard), subject: settings.subject(shard) };
            let made =
                self.made(|| async { make_log(&self.context, settings, &names).await.map(drop) });
            note(made, format!("stream {}", names.stream));
            let config = settings.snapshots(shard).config();
            let name = format!("stream {}", config.name);
            let made = self.made(|| async { make(&self.context, config.clone()).await.map(drop) });
            note(made, name);
        }
        report
    }

    fn made<F>(&self, attempt: impl Fn() -> F) -> Result<(), JetStreamError>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let waiting = Waiting::quiet(self.settings.start);
        self.runtime.block_on(until_there(waiting, attempt))
    }
}

/// What has come of making a cluster's streams.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CreateReport {
    /// What is there now.
    pub there: Vec<String>,
    /// What is wrong: a sentence for each. A node would not start.
    pub wrong: Vec<String>,
    /// Servers that could not be asked how they sync: a sentence for each.
    pub away: Vec<String>,
}
