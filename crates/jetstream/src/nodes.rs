//! Who is in the cluster: the nodes whose names are written to the bucket again and again; and all that are known, with what they have announced.

use crate::commands::ANSWER_TIMEOUT;
use crate::connection::is_connected;
use crate::direct::{Stored, direct_get};
use async_nats::jetstream::Context;
use headwater_log::{Announcement, KnownProcess, Owner};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// A node that has not written its name for so long is not there: it does so every second.
const GONE: Duration = Duration::from_secs(5);

/// What was seen last.
#[derive(Debug, Default)]
struct Seen {
    nodes: Vec<Owner>,
    known: Arc<[KnownProcess]>,
}

/// The nodes that are there, in the order of their names, and those that are known.
#[derive(Clone, Debug, Default)]
pub struct NodesSeen(Arc<Mutex<Seen>>);

/// A key of the bucket.
struct Key {
    name: String,
    revision: u64,
    value: Vec<u8>,
}

impl NodesSeen {
    /// What each has written of itself.
    #[must_use]
    pub fn all(&self) -> Vec<Owner> {
        self.lock().nodes.clone()
    }

    /// All processes whose names are in the bucket, also those that have ended, as they were seen last; none: they were not seen yet.
    #[must_use]
    pub fn known(&self) -> Arc<[KnownProcess]> {
        self.lock().known.clone()
    }

    /// What a look has found: the nodes that are there, and all that are known.
    pub fn set(&self, mut nodes: Vec<Owner>, known: Vec<KnownProcess>) {
        nodes.sort_by(|one, other| one.node.cmp(&other.node));
        *self.lock() = Seen { nodes, known: known.into() };
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks again and again.
    pub(crate) async fn look(self, context: Context, bucket: String) {
        let mut seen: HashMap<String, (u64, Instant, bool)> = HashMap::new();
        loop {
            // Between the two a process may begin anew: its announcement is of another life than its name then, and does not count yet.
            let read = async {
                let names = keys(&context, &bucket, "node.").await?;
                Some((names, keys(&context, &bucket, Announcement::KEYS).await?))
            };
            if is_connected(&context)
                && let Ok(Some((names, announced))) =
                    tokio::time::timeout(ANSWER_TIMEOUT, read).await
            {
                let announced: HashMap<String, Vec<u8>> =
                    announced.into_iter().map(|key| (key.name, key.value)).collect();
                let now = Instant::now();
                let (mut nodes, mut known) = (Vec::new(), Vec::new());
                for Key { name, revision, value } in names {
                    // What cannot be read is no node that is there.
                    let Ok(owner) = Owner::decode(&value) else { continue };
                    let (at, since, is_heard) =
                        seen.entry(name.clone()).or_insert((revision, now, false));
                    if *at != revision {
                        (*at, *since, *is_heard) = (revision, now, true);
                    }
                    let is_there = now.duration_since(*since) < GONE;
                    if is_there {
                        nodes.push(owner.clone());
                    }
                    let announced =
                        announced.get(&name).and_then(|value| Announcement::decode(value));
                    let is_heard = is_there && *is_heard;
                    known.push(KnownProcess { owner, announced, is_heard });
                }
                self.set(nodes, known);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The keys of the bucket that begin with a word, without that; `None`: they could not be read.
async fn keys(context: &Context, bucket: &str, word: &str) -> Option<Vec<Key>> {
    let prefix = format!("$KV.{bucket}.{word}");
    let asked = serde_json::json!({ "multi_last": [format!("{prefix}>")] });
    let batch = direct_get(context, &format!("KV_{bucket}"), asked).await?;
    let key = |one: Stored| {
        let name = one.headers.get("Nats-Subject")?.as_str().strip_prefix(&prefix)?.to_owned();
        Some(Key { name, revision: one.sequence, value: one.bytes })
    };
    Some(batch.messages.into_iter().filter_map(key).collect())
}
