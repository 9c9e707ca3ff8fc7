//! Who is in the cluster: the nodes whose names are written to the bucket again and again.

use crate::commands::ANSWER_TIMEOUT;
use crate::connection::is_connected;
use crate::direct::{Stored, direct_get};
use async_nats::jetstream::Context;
use headwater_log::Owner;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// A node that has not written its name for so long is not there: it does so every second.
const GONE: Duration = Duration::from_secs(5);

/// The nodes that are there, in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct NodesSeen(Arc<Mutex<Vec<Owner>>>);

impl NodesSeen {
    /// What each has written of itself.
    #[must_use]
    pub fn all(&self) -> Vec<Owner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks again and again.
    pub(crate) async fn look(self, context: Context, bucket: String) {
        let mut known: HashMap<String, (u64, Instant)> = HashMap::new();
        loop {
            let read = names(&context, &bucket);
            if is_connected(&context)
                && let Ok(Some(found)) = tokio::time::timeout(ANSWER_TIMEOUT, read).await
            {
                let now = Instant::now();
                let mut nodes = Vec::new();
                for (revision, node) in found {
                    let seen = known.entry(node.node.clone()).or_insert((revision, now));
                    if seen.0 != revision {
                        *seen = (revision, now);
                    }
                    if now.duration_since(seen.1) < GONE {
                        nodes.push(node);
                    }
                }
                nodes.sort_by(|one, other| one.node.cmp(&other.node));
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The last that each node has written, with its revision; `None`: that failed.
async fn names(context: &Context, bucket: &str) -> Option<Vec<(u64, Owner)>> {
    let asked = serde_json::json!({ "multi_last": [format!("$KV.{bucket}.node.>")] });
    let batch = direct_get(context, &format!("KV_{bucket}"), asked).await?;
    // What cannot be read is no node that is there.
    let node = |one: Stored| Some((one.sequence, Owner::decode(&one.bytes).ok()?));
    Some(batch.messages.into_iter().filter_map(node).collect())
}
