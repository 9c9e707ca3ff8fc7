//! The thread that holds the connections, and the ends of it that shards have.

use crate::check::check_sync;
use crate::commands::{self, LogNames};
use crate::connect::{connect, context_of, refuse};
use crate::log_task::LogTask;
use crate::nodes::NodesSeen;
use crate::room::RoomSeen;
use crate::settings::{JetStreamError, JetStreamSettings};
use crate::snapshots::{self, JetStreamSnapshots, SnapshotCommand, SnapshotNames};
use crate::streams::{make_bucket, make_log};
use crate::waiting::{Failure, Waiting, until_there};
use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::Context;
use headwater_log::{Bucket, BucketAnswer, BucketRequest, Log, LogAnswer, LogRequest};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Bytes of a message beside what the log gives: its subject and headers.
const MESSAGE_EXTRA_BYTES: usize = 1024;
/// Longest message of a log, where the servers would take longer ones.
const MESSAGE_BYTES_MAX: usize = 512 << 10;

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
    Open(Arc<LogNames>, Answers<LogAnswer>, Sender<Result<Opened, JetStreamError>>),
    Bucket(BucketRequest, Answers<BucketAnswer>),
    Nodes(NodesSeen),
    Snapshot(Arc<SnapshotNames>, SnapshotCommand),
}

/// A log that can be asked.
pub(crate) struct Opened {
    requests: UnboundedSender<LogRequest>,
    client: Client,
    created: u64,
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
        let (queue, answers) = channel();
        let to = Answers { queue, wake };
        drop(self.commands.send(Command::Open(names.clone(), to, opened)));
        let opened = opens.recv().unwrap_or_else(|why| refuse(&names.stream, why))?;
        Ok(JetStreamLog { names, opened, answers, _thread: self.commands.clone() })
    }

    /// The nodes of the cluster, as far as they are known from now on.
    #[must_use]
    pub fn nodes(&self) -> NodesSeen {
        let seen = NodesSeen::default();
        drop(self.commands.send(Command::Nodes(seen.clone())));
        seen
    }

    /// Whether the servers have room, as they say it from now on.
    ///
    /// # Errors
    /// There can be no thread that looks.
    pub fn room(&self) -> Result<RoomSeen, JetStreamError> {
        RoomSeen::watch(&self.settings).or_else(|why| refuse("no thread for NATS", why))
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
    opened: Opened,
    answers: Receiver<LogAnswer>,
    /// The thread goes on while there is one of these.
    _thread: UnboundedSender<Command>,
}

impl fmt::Debug for JetStreamLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamLog").field("names", &self.names).finish_non_exhaustive()
    }
}

impl JetStreamLog {
    /// When its stream was made, in nanoseconds since 1970.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.opened.created
    }

    /// Whether a server can be reached for what is no append; appends may go to another one, which leads the log.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.opened.client.connection_state() == State::Connected
    }
}

impl Log for JetStreamLog {
    fn send(&mut self, request: LogRequest) {
        // Where the thread has ended nothing is answered, and outcomes are unknown.
        drop(self.opened.requests.send(request));
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

/// Connects, and makes the bucket.
async fn start(settings: &JetStreamSettings) -> Result<(Context, usize), Failure> {
    let client = connect(settings).await?;
    let most = client.server_info().max_payload.saturating_sub(MESSAGE_EXTRA_BYTES);
    let context = context_of(client);
    make_bucket(&context, settings).await?;
    Ok((context, most.min(MESSAGE_BYTES_MAX)))
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
            Command::Open(names, answers, opened) => {
                let waiting = Waiting::new(settings.start);
                let made = until_there(waiting, || make_log(context, settings, &names)).await;
                drop(opened.send(made.map(|created| {
                    let (requests, asked) = unbounded_channel();
                    let (main, settings) = (context.clone(), settings.clone());
                    let task = LogTask { main, settings, names, answers };
                    drop(tokio::task::spawn_local(task.run(asked)));
                    Opened { requests, client: context.client(), created }
                })));
            }
            // What waited for a connection would be sent long after its sender has given it up.
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
            Command::Bucket(request, answers) => {
                commands::bucket(context, &bucket, request, answers).await;
            }
        }
    }
}
