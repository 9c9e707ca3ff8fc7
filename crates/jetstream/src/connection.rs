//! The thread that holds the connection, and the ends of it that shards have.

use crate::check::check_sync;
use crate::commands::{self, ANSWER_TIMEOUT, LogNames};
use crate::nodes::NodesSeen;
use crate::settings::{JetStreamError, JetStreamSettings};
use crate::snapshots::{self, JetStreamSnapshots, SnapshotCommand, SnapshotNames};
use crate::waiting::{Failure, Waiting};
use async_nats::connection::State;
use async_nats::jetstream::context::{ContextBuilder, CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context, ErrorCode, kv};
use async_nats::{ConnectErrorKind, ConnectOptions};
use headwater_log::{Bucket, BucketAnswer, BucketRequest, Log, LogAnswer, LogRequest};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Bytes of a message beside what the log gives: its subject and headers.
const MESSAGE_EXTRA_BYTES: usize = 1024;
/// Longest message of a log, where the servers would take longer ones.
const MESSAGE_BYTES_MAX: usize = 512 << 10;

/// A server that has not answered three of these is left for another one.
const PING: Duration = Duration::from_secs(1);
/// How long it takes at most from one attempt to connect to the next, and by how much each is longer than the one before.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(1);
const RECONNECT_STEP: Duration = Duration::from_millis(50);

/// Called when an answer is there.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Where answers go.
#[derive(Clone)]
pub(crate) struct Answers<T> {
    queue: Sender<T>,
    wake: Wake,
}

impl<T> Answers<T> {
    /// Answers; where nobody waits any more, in vain.
    pub(crate) fn send(&self, answer: T) {
        if self.queue.send(answer).is_ok() {
            (self.wake)();
        }
    }
}

/// What the thread is told to do.
pub(crate) enum Command {
    Open(Arc<LogNames>, Sender<Result<(), JetStreamError>>),
    Log(Arc<LogNames>, LogRequest, Answers<LogAnswer>),
    Bucket(BucketRequest, Answers<BucketAnswer>),
    Nodes(NodesSeen),
    Snapshot(Arc<SnapshotNames>, SnapshotCommand),
}

/// A connection to the servers of a cluster; it ends with the last of its logs and buckets.
pub struct JetStream {
    settings: JetStreamSettings,
    commands: UnboundedSender<Command>,
    message_bytes_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for JetStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStream").field("cluster", &self.settings.cluster).finish_non_exhaustive()
    }
}

fn refuse<T>(what: &str, why: impl fmt::Display) -> Result<T, JetStreamError> {
    Err(JetStreamError(format!("{what}: {why}")))
}

impl JetStream {
    /// Connects, sees that the servers sync, and makes the bucket where there is none.
    ///
    /// # Errors
    /// That fails; the text says why.
    pub fn connect(settings: JetStreamSettings) -> Result<Self, JetStreamError> {
        settings.check()?;
        let mut waiting = Waiting::new(settings.start);
        while let Err(failure) = check_sync(&settings) {
            thread::sleep(waiting.before_next(failure)?);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.or_else(|why| refuse("no thread for NATS", why))?;
        let (commands, receiver) = unbounded_channel();
        let (started, starts) = channel();
        let own = settings.clone();
        let run = move || {
            let tasks = tokio::task::LocalSet::new();
            tasks.block_on(&runtime, async move {
                match until_there(waiting, || start(&own)).await {
                    Ok((context, message_bytes_max)) => {
                        if started.send(Ok(message_bytes_max)).is_ok() {
                            serve(&context, &own, receiver).await;
                        }
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        };
        let thread = thread::Builder::new().name("nats".into()).spawn(run);
        let thread = thread.or_else(|why| refuse("no thread for NATS", why))?;
        let message_bytes_max =
            starts.recv().unwrap_or_else(|_| refuse("NATS", "its thread has ended"))?;
        Ok(Self { settings, commands, message_bytes_max, thread: Some(thread) })
    }

    /// The longest message that a log should be given.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// The log of a shard, whose stream is made where there is none.
    ///
    /// # Errors
    /// It cannot be made, or is another one than it should be.
    pub fn log(&self, shard: u32, wake: Wake) -> Result<JetStreamLog, JetStreamError> {
        let (stream, subject) = (self.settings.stream(shard), self.settings.subject(shard));
        let names = Arc::new(LogNames { stream, subject });
        let (opened, opens) = channel();
        drop(self.commands.send(Command::Open(names.clone(), opened)));
        opens.recv().unwrap_or_else(|why| refuse(&names.stream, why))?;
        let (queue, answers) = channel();
        let to = Answers { queue, wake };
        Ok(JetStreamLog { names, commands: self.commands.clone(), to, answers })
    }

    /// The nodes of the cluster, as far as they are known from now on.
    #[must_use]
    pub fn nodes(&self) -> NodesSeen {
        let seen = NodesSeen::default();
        drop(self.commands.send(Command::Nodes(seen.clone())));
        seen
    }

    /// The snapshots of a shard; from now on it is looked how long its log is.
    #[must_use]
    pub fn snapshots(&self, shard: u32) -> JetStreamSnapshots {
        let names = Arc::new(self.settings.snapshots(shard));
        let (commands, extent) = (self.commands.clone(), Arc::default());
        let look = SnapshotCommand::Look(Arc::clone(&extent));
        drop(commands.send(Command::Snapshot(names.clone(), look)));
        let message_bytes_max = self.message_bytes_max;
        JetStreamSnapshots { names, commands, extent, message_bytes_max }
    }

    /// The bucket of nodes and owners.
    #[must_use]
    pub fn bucket(&self, wake: Wake) -> JetStreamBucket {
        let (queue, answers) = channel();
        let to = Answers { queue, wake };
        JetStreamBucket { commands: self.commands.clone(), to, answers }
    }
}

impl Drop for JetStream {
    fn drop(&mut self) {
        // The thread ends with the last sender; whoever still has one goes on with it.
        self.commands = unbounded_channel().0;
        drop(self.thread.take());
    }
}

/// A shard's log.
pub struct JetStreamLog {
    names: Arc<LogNames>,
    commands: UnboundedSender<Command>,
    to: Answers<LogAnswer>,
    answers: Receiver<LogAnswer>,
}

impl fmt::Debug for JetStreamLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamLog").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Log for JetStreamLog {
    fn send(&mut self, request: LogRequest) {
        // Where the thread has ended nothing is answered, and outcomes are unknown.
        drop(self.commands.send(Command::Log(self.names.clone(), request, self.to.clone())));
    }

    fn receive(&mut self) -> Option<LogAnswer> {
        self.answers.try_recv().ok()
    }
}

/// The bucket of nodes and owners.
pub struct JetStreamBucket {
    commands: UnboundedSender<Command>,
    to: Answers<BucketAnswer>,
    answers: Receiver<BucketAnswer>,
}

impl fmt::Debug for JetStreamBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamBucket").finish_non_exhaustive()
    }
}

impl Bucket for JetStreamBucket {
    fn send(&mut self, request: BucketRequest) {
        drop(self.commands.send(Command::Bucket(request, self.to.clone())));
    }

    fn receive(&mut self) -> Option<BucketAnswer> {
        self.answers.try_recv().ok()
    }
}

/// Tries until it succeeds, or is refused, or has waited long enough.
async fn until_there<T, F>(
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

/// An error and what has led to it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Servers have not made a stream: whether they never will, as far as that can be known.
fn not_made<T>(what: &str, why: impl Error + 'static) -> Result<T, Failure> {
    const FINAL: [ErrorCode; 5] = [
        ErrorCode::STREAM_NAME_EXIST,
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
        ErrorCode::MAXIMUM_STREAMS_LIMIT,
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
    ];
    let code = |error: &(dyn Error + 'static)| match error.downcast_ref::<CreateStreamError>() {
        Some(error) => match error.kind() {
            CreateStreamErrorKind::JetStream(error) => Some(error.error_code()),
            _ => None,
        },
        None => Some(error.downcast_ref::<jetstream::Error>()?.error_code()),
    };
    if causes(&why).any(|cause| code(cause).is_some_and(|code| FINAL.contains(&code))) {
        refused(what, why)
    } else {
        not_yet(what, why)
    }
}

fn refused<T>(what: &str, why: impl fmt::Display) -> Result<T, Failure> {
    refuse(what, why).map_err(Failure::Refused)
}

fn not_yet<T>(what: &str, why: impl fmt::Display) -> Result<T, Failure> {
    refuse(what, why).map_err(Failure::NotYet)
}

/// Connects, and makes the bucket.
async fn start(settings: &JetStreamSettings) -> Result<(Context, usize), Failure> {
    let mut options = ConnectOptions::new()
        .name("headwater")
        .require_tls(settings.tls_required)
        .ping_interval(PING)
        .reconnect_delay_callback(|attempts| {
            RECONNECT_DELAY_MAX.min(RECONNECT_STEP * attempts as u32)
        });
    if let Some(path) = &settings.credentials {
        let with = options.credentials_file(path).await;
        options = with.or_else(|why| refused(&path.display().to_string(), why))?;
    }
    if let Some(path) = &settings.tls_ca {
        options = options.add_root_certificates(path.clone());
    }
    if let Some((certificate, key)) = &settings.tls_identity {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    let servers = settings.servers.split(',').map(|one| one.trim().parse());
    let servers: Result<Vec<async_nats::ServerAddr>, _> = servers.collect();
    let servers = servers.or_else(|why| refused("the URLs of the NATS servers", why))?;
    if let Some(server) = servers.iter().find(|server| server.has_user_pass()) {
        let user = percent_decoded(server.username().unwrap_or_default());
        options = match server.password() {
            Some(password) => options.user_and_password(user, percent_decoded(password)),
            // What stands alone before the host is a token.
            None => options.token(user),
        };
    }
    let client = match options.connect(servers).await {
        Ok(client) => client,
        Err(why) => {
            use ConnectErrorKind::{Authentication, AuthorizationViolation, ServerParse, Tls};
            let last =
                matches!(why.kind(), Authentication | AuthorizationViolation | ServerParse | Tls);
            // With TLS 1.3 a certificate is refused behind the handshake, when something is read.
            let of_tls = |cause: &(dyn Error + 'static)| {
                let inner = cause.downcast_ref::<std::io::Error>().and_then(|why| why.get_ref());
                inner.is_some_and(|why| why.is::<rustls::Error>())
            };
            let last = last || causes(&why).any(of_tls);
            let what = "NATS cannot be reached";
            return if last { refused(what, why) } else { not_yet(what, why) };
        }
    };
    let most = client.server_info().max_payload.saturating_sub(MESSAGE_EXTRA_BYTES);
    let context = ContextBuilder::new()
        .timeout(ANSWER_TIMEOUT)
        .ack_timeout(ANSWER_TIMEOUT)
        .max_ack_inflight(1 << 20)
        .build(client);
    let config = kv::Config {
        bucket: settings.bucket(),
        history: 1,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        ..kv::Config::default()
    };
    let made = context.create_key_value(config).await;
    let made = made.or_else(|why| not_made(&format!("bucket {}", settings.bucket()), why))?;
    let stream = made.stream.cached_info().config.clone();
    if stream.num_replicas != settings.replicas || stream.storage != StorageType::File {
        let why = format!(
            "it has {} replicas, on {:?}, and should have {}, on files",
            stream.num_replicas, stream.storage, settings.replicas
        );
        return refused(&format!("bucket {}", settings.bucket()), why);
    }
    Ok((context, most.min(MESSAGE_BYTES_MAX)))
}

/// What a part of a URL stands for: `%40` is `@`.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| first == b'%');
        let number = digits.and_then(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok());
        bytes.push(number.unwrap_or(first));
        rest = if number.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The stream of a log; nothing in it is removed but by purging.
fn stream(settings: &JetStreamSettings, names: &LogNames) -> Config {
    Config {
        name: names.stream.clone(),
        subjects: vec![names.subject.clone()],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        max_messages: -1,
        max_bytes: -1,
        deny_delete: true,
        allow_direct: true,
        description: Some("a shard of Headwater".into()),
        ..Config::default()
    }
}

async fn open(
    context: &Context,
    settings: &JetStreamSettings,
    names: &LogNames,
) -> Result<(), Failure> {
    let wanted = stream(settings, names);
    let what = format!("stream {}", names.stream);
    let made = context.get_or_create_stream(wanted.clone()).await;
    let made = made.or_else(|why| not_made(&what, why))?;
    let found = &made.cached_info().config;
    let keeps = |one: &Config| {
        let limits = (one.max_messages > 0, one.max_bytes > 0, one.max_age, one.sealed);
        let ways = (one.storage, one.num_replicas, one.deny_delete, one.allow_direct);
        (one.subjects.clone(), one.retention, limits, ways, one.mirror.is_some())
    };
    if keeps(found) != keeps(&wanted) {
        return refused(&what, "it is there with other settings than a log must have");
    }
    Ok(())
}

pub(crate) fn is_connected(context: &Context) -> bool {
    context.client().connection_state() == State::Connected
}

async fn serve(
    context: &Context,
    settings: &JetStreamSettings,
    mut commands: UnboundedReceiver<Command>,
) {
    let bucket = settings.bucket();
    while let Some(command) = commands.recv().await {
        match command {
            Command::Open(names, opened) => {
                let waiting = Waiting::new(settings.start);
                drop(opened.send(until_there(waiting, || open(context, settings, &names)).await));
            }
            // What waited for a connection would be sent long after its sender has given it up.
            Command::Log(_, request, answers) if !is_connected(context) => {
                commands::fail_log(&request, &answers);
            }
            Command::Bucket(request, answers) if !is_connected(context) => {
                commands::fail_bucket(&request, &answers);
            }
            Command::Nodes(seen) => {
                let looking = seen.look(context.clone(), bucket.clone());
                drop(tokio::task::spawn_local(looking));
            }
            Command::Snapshot(names, command) => {
                drop(tokio::task::spawn_local(snapshots::run(context.clone(), names, command)));
            }
            Command::Log(names, request, answers) => {
                commands::log(context, names, request, answers).await;
            }
            Command::Bucket(request, answers) => {
                commands::bucket(context, &bucket, request, answers).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::percent_decoded;

    #[test]
    fn parts_of_urls_are_decoded() {
        for (text, is) in [("a%40b", "a@b"), ("%", "%"), ("%4", "%4"), ("100%zz", "100%zz")] {
            assert_eq!(percent_decoded(text), is);
        }
    }
}
