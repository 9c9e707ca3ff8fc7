//! Batches of direct gets: messages of a stream as any of its replicas has them, which may be behind.

use async_nats::jetstream::Context;
use async_nats::{HeaderMap, Message, StatusCode};
use futures_util::StreamExt;
use serde_json::Value;

/// A message of a stream.
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

/// What a replica gave.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) messages: Vec<Stored>,
    /// How many more there are of what was asked for, where that was said; not where nothing was found.
    pub(crate) pending: Option<u64>,
}

/// A number in a header.
pub(crate) fn header(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.as_str().parse().ok()
}

/// Asks for a batch, in the words of NATS's direct get; `None`: it has failed.
pub(crate) async fn direct_get(context: &Context, stream: &str, asked: Value) -> Option<Batch> {
    let client = context.client();
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.ok()?;
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    client.publish_with_reply(subject, inbox, asked.to_string().into()).await.ok()?;
    let mut batch = Batch::default();
    while let Some(Message { headers, payload, status, .. }) = answers.next().await {
        match status {
            None | Some(StatusCode::OK) => {
                let headers = headers?;
                let sequence = header(&headers, "Nats-Sequence")?;
                batch.messages.push(Stored { sequence, headers, bytes: payload.to_vec() });
            }
            // The end of the batch.
            Some(status) if status.as_u16() == 204 => {
                batch.pending = headers.and_then(|headers| header(&headers, "Nats-Num-Pending"));
                return Some(batch);
            }
            Some(StatusCode::NOT_FOUND) => return Some(batch),
            Some(_) => return None,
        }
    }
    None
}
