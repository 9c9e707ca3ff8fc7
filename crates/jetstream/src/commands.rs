//! Requests on the connection's thread.

use crate::connection::Answers;
use crate::direct::{Batch, direct_get};
use async_nats::jetstream::Context;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use headwater_log::{
    BucketAnswer, BucketRequest, LogAnswer, LogBatch, MessageId, PutOutcome, Revision, Sequence,
};
use std::sync::Arc;
use std::time::Duration;

/// How long an answer of the servers is awaited; behind that an outcome is unknown.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request that cannot be sent takes to fail.
const FAIL_DELAY: Duration = Duration::from_millis(50);
/// How much one read gives, at most.
const READ_MESSAGES: usize = 512;
const READ_BYTES: usize = 1 << 20;

/// The names of a log.
#[derive(Debug)]
pub(crate) struct LogNames {
    pub(crate) stream: String,
    pub(crate) subject: String,
}

/// Answers a request to the bucket that cannot be sent.
pub(crate) fn fail_bucket(request: &BucketRequest, answers: &Answers<BucketAnswer>) {
    let answer = match request {
        BucketRequest::Get { tag, .. } => BucketAnswer::Get { tag: *tag, entry: None },
        BucketRequest::Put { tag, .. } => {
            BucketAnswer::Put { tag: *tag, outcome: PutOutcome::Unknown }
        }
    };
    fail(answer, answers);
}

/// Gives the answer to a request that cannot be sent; after a while, so that whoever asks again at once does not spin.
pub(crate) fn fail<T: 'static>(answer: T, answers: &Answers<T>)
where
    Answers<T>: Clone,
{
    let answers = answers.clone();
    tokio::task::spawn_local(async move {
        tokio::time::sleep(FAIL_DELAY).await;
        answers.send(answer);
    });
}

/// Publishes a message of a log; what is given back waits for what becomes of it.
pub(crate) async fn append(
    context: &Context,
    names: &LogNames,
    id: MessageId,
    expected: Sequence,
    bytes: Vec<u8>,
) -> impl Future<Output = Published> + use<> {
    let message = PublishMessage::build()
        .payload(bytes.into())
        .message_id(id.to_string())
        .expected_stream(&names.stream)
        .expected_last_sequence(expected.0);
    published(context.send_publish(names.subject.clone(), message).await)
}

/// Reads a log from a sequence on, and answers.
pub(crate) fn read_log(
    context: &Context,
    names: &Arc<LogNames>,
    (tag, from): (u64, Sequence),
    answers: &Answers<LogAnswer>,
) {
    let (context, names, answers) = (context.clone(), names.clone(), answers.clone());
    tokio::task::spawn_local(async move {
        let read = read(&context, &names.stream, from);
        let batch = tokio::time::timeout(ANSWER_TIMEOUT, read).await.ok().flatten();
        answers.send(LogAnswer::Read { tag, batch });
    });
}

/// Removes what a log has below a sequence.
pub(crate) fn purge(context: &Context, names: &Arc<LogNames>, below: Sequence) {
    let (context, names) = (context.clone(), names.clone());
    tokio::task::spawn_local(async move {
        // Whether it has worked is seen by nobody: the next one purges as much and more.
        if let Ok(stream) = context.get_stream_no_info(&names.stream).await {
            drop(stream.purge().sequence(below.0).await);
        }
    });
}

/// What has become of a message that was published.
pub(crate) enum Published {
    Stored(u64),
    Refused,
    Unknown,
}

async fn published(sent: Result<PublishAckFuture, PublishError>) -> Published {
    let answer = match sent {
        Ok(sent) => sent.await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(stored) => Published::Stored(stored.sequence),
        Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Published::Refused,
        Err(_) => Published::Unknown,
    }
}

/// Reads messages from a sequence on, as one replica has them; `None`: it has failed.
async fn read(context: &Context, stream: &str, from: Sequence) -> Option<LogBatch> {
    let asked = serde_json::json!({
        "seq": from.0, "batch": READ_MESSAGES, "max_bytes": READ_BYTES,
    });
    let Batch { messages, pending } = direct_get(context, stream, asked).await?;
    let messages: Vec<_> =
        messages.into_iter().map(|one| (Sequence(one.sequence), one.bytes)).collect();
    let ends = messages.first().zip(messages.last()).zip(pending);
    if let Some(((first, last), pending)) = ends
        && first.0 == from
    {
        let last = Sequence(last.0.0 + pending);
        return Some(LogBatch { messages, first: from, last });
    }
    bounds(context, stream, messages).await
}

/// What was read, with where the stream begins and ends as its leader knows it.
async fn bounds(
    context: &Context,
    stream: &str,
    messages: Vec<(Sequence, Vec<u8>)>,
) -> Option<LogBatch> {
    let state = context.get_stream(stream).await.ok()?.cached_info().state.clone();
    // One that was purged meanwhile has not what was read: it is looked at once more.
    let (first, last) = (Sequence(state.first_sequence), Sequence(state.last_sequence));
    Some(LogBatch { messages, first, last })
}

/// Carries out a request to the bucket; returns once it is sent.
pub(crate) async fn bucket(
    context: &Context,
    bucket: &str,
    request: BucketRequest,
    answers: Answers<BucketAnswer>,
) {
    match request {
        BucketRequest::Get { tag, key } => {
            let (context, stream) = (context.clone(), format!("KV_{bucket}"));
            let subject = format!("$KV.{bucket}.{key}");
            tokio::task::spawn_local(async move {
                let get = last_of(&context, &stream, &subject);
                let entry = tokio::time::timeout(ANSWER_TIMEOUT, get).await.ok().flatten();
                answers.send(BucketAnswer::Get { tag, entry });
            });
        }
        BucketRequest::Put { tag, key, revision, value } => {
            let outcome = put(context, bucket, &key, revision, value).await;
            tokio::task::spawn_local(async move {
                let outcome = outcome.await;
                answers.send(BucketAnswer::Put { tag, outcome });
            });
        }
    }
}

/// Sends a write to a key of the bucket, which must have this revision; what is given back waits for what becomes of it.
pub(crate) async fn put(
    context: &Context,
    bucket: &str,
    key: &str,
    revision: Revision,
    value: Vec<u8>,
) -> impl Future<Output = PutOutcome> + use<> {
    let message =
        PublishMessage::build().payload(value.into()).expected_last_subject_sequence(revision.0);
    let sent = context.send_publish(format!("$KV.{bucket}.{key}"), message).await;
    async move {
        match published(sent).await {
            Published::Stored(revision) => PutOutcome::Written(Revision(revision)),
            Published::Refused => PutOutcome::Refused,
            Published::Unknown => PutOutcome::Unknown,
        }
    }
}

/// The last message of a subject, as the stream's leader has it; revision 0: there is none. `None`: it has failed.
pub(crate) async fn last_of(
    context: &Context,
    stream: &str,
    subject: &str,
) -> Option<(Revision, Vec<u8>)> {
    use async_nats::jetstream::stream::LastRawMessageErrorKind;
    let stream = context.get_stream_no_info(stream).await.ok()?;
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Some((Revision(message.sequence), message.payload.to_vec())),
        Err(error) => match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => Some((Revision(0), Vec::new())),
            _ => None,
        },
    }
}
