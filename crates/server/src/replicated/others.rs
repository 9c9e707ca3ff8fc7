//! What a node knows of the shards of its cluster: how many there are, who owns them, and the secret that owners prove to each other.
//!
//! The number and the secret are keys of the bucket that the first node writes, by compare-and-set, and nobody changes.

use crate::shards::links::{LinkedOwner, LinkedOwners, SECRET_BYTES, Secret, random};
use headwater_config::{Cluster, ConfigError, link_address};
use headwater_log::{
    Bucket, BucketAnswer, BucketRequest, LeaseTimes, Monotonic, Owner, Revision, ShardHolder,
    node_of,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The key that says how many shards the cluster has.
pub(crate) const SHARDS_KEY: &str = "shards";
/// The key of the secret.
const SECRET_KEY: &str = "links.secret";
/// How often the owners of the others are looked at, in milliseconds.
const LOOK_MILLIS: u64 = 250;
/// How soon a question that has no answer is asked again, at the start.
const RETRY: Duration = Duration::from_millis(100);
/// How long one is waited for, and how often it is looked whether it is there.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);

/// The key that names the owner of a shard.
pub(crate) fn owner_key(shard: u32) -> String {
    format!("owner.{shard}")
}

/// What a look at the key of a shard's owner has found, and since when that is so.
#[derive(Debug)]
struct SeenOwner {
    revision: Revision,
    owner: Option<Owner>,
    since: Monotonic,
    /// When it was found last.
    looked: Monotonic,
}

impl SeenOwner {
    /// Whether the shard has an owner that is heard.
    fn holds(&self, times: LeaseTimes) -> bool {
        // A renewal takes its time, and so does the look at it.
        let silent_after = times.renew_millis + times.answer_millis + LOOK_MILLIS;
        self.owner.as_ref().is_some_and(|owner| !owner.released)
            && self.looked.since(self.since) < silent_after
    }
}

/// The owners of the shards, as the bucket says.
#[derive(Debug)]
pub(super) struct OtherOwners {
    me: u16,
    shards: u16,
    /// The first tag of its requests.
    tags: u64,
    asked: u64,
    looked: Option<Monotonic>,
    told: watch::Sender<LinkedOwners>,
    known: KnownOwners,
    /// What was found of each shard, this process's own among them.
    seen: Vec<Option<SeenOwner>>,
}

/// The owners of the other shards, by shard, for whoever asks; `None`: there is none, or it is not known.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownOwners(Arc<Mutex<Vec<Option<Owner>>>>);

impl KnownOwners {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Owner>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch of a shard's owner; 0: none is known.
    pub(crate) fn epoch(&self, shard: u16) -> u64 {
        let all = self.lock();
        all.get(usize::from(shard)).and_then(Option::as_ref).map_or(0, |owner| owner.epoch.0)
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> u16 {
        self.lock().len() as u16
    }

    /// The name and the address of a shard's owner.
    pub(crate) fn of(&self, shard: u16) -> Option<(String, String)> {
        let all = self.lock();
        let owner = all.get(usize::from(shard))?.as_ref()?;
        Some((owner.node.clone(), owner.address.clone()))
    }
}

impl OtherOwners {
    /// Nobody is known yet.
    pub(super) fn new(me: u16, shards: u16, tags: u64) -> (Self, watch::Receiver<LinkedOwners>) {
        let (told, tells) = watch::channel(vec![None; usize::from(shards)]);
        let known = KnownOwners::default();
        *known.lock() = vec![None; usize::from(shards)];
        let seen = (0..shards).map(|_| None).collect();
        (Self { me, shards, tags, asked: 0, looked: None, told, known, seen }, tells)
    }

    /// What it knows, from now on.
    pub(super) fn known(&self) -> KnownOwners {
        self.known.clone()
    }

    /// What to ask now. The shard is the rest of a tag divided by their number.
    pub(super) fn tick(&mut self, now: Monotonic) -> Vec<BucketRequest> {
        if self.shards == 1 || self.looked.is_some_and(|at| now.since(at) < LOOK_MILLIS) {
            return Vec::new();
        }
        self.looked = Some(now);
        let round = self.tags + self.asked * u64::from(self.shards);
        self.asked += 1;
        let ask = |shard: u16| BucketRequest::Get {
            tag: round + u64::from(shard),
            key: owner_key(shard.into()),
        };
        (0..self.shards).map(ask).collect()
    }

    /// The owners of the other shards, as far as they are known and heard.
    pub(super) fn holding(&self, times: LeaseTimes) -> Vec<Owner> {
        let others = self.seen.iter().zip(0..).filter(|(_, shard)| *shard != self.me);
        let held = others.filter_map(|(seen, _)| seen.as_ref()).filter(|seen| seen.holds(times));
        held.filter_map(|seen| seen.owner.clone()).collect()
    }

    /// Whether another process of this process's node owns a shard of a lesser number: where the node is drained, it gives up one after the other, since those
    /// that give up at once cannot answer each other's clients.
    pub(super) fn is_to_wait(&self, me: &Owner) -> bool {
        let holding = self.holding(LeaseTimes::default());
        holding.iter().any(|it| it.shard < me.shard && node_of(&it.node) == node_of(&me.node))
    }

    /// Who owns the shards; `None`: it is not known of all yet.
    pub(super) fn holders(&self, times: LeaseTimes) -> Option<Vec<ShardHolder>> {
        let holder = |seen: &Option<SeenOwner>| {
            let seen = seen.as_ref()?;
            let Some(owner) = &seen.owner else { return Some(ShardHolder::default()) };
            Some(ShardHolder {
                process: Some(owner.node.clone()),
                epoch: owner.epoch,
                holds: seen.holds(times),
                released: owner.released,
            })
        };
        self.seen.iter().map(holder).collect()
    }

    /// Learns from an answer to one of these.
    pub(super) fn answered(&mut self, answer: &BucketAnswer, now: Monotonic) {
        let BucketAnswer::Get { tag, entry: Some((revision, value)) } = answer else { return };
        let mine = self.tags..self.tags + self.asked * u64::from(self.shards);
        if !mine.contains(tag) {
            return;
        }
        let shard = ((tag - self.tags) % u64::from(self.shards)) as usize;
        let found = (*revision != Revision(0)).then(|| Owner::decode(value).ok()).flatten();
        let seen = self.seen[shard].as_ref().filter(|seen| seen.revision == *revision);
        let (revision, since) = (*revision, seen.map_or(now, |seen| seen.since));
        let owner = found.clone();
        self.seen[shard] = Some(SeenOwner { revision, owner, since, looked: now });
        if shard == usize::from(self.me) {
            return;
        }
        let found = found.filter(|found| !found.released);
        let owner = found.as_ref().and_then(|found| {
            Some(LinkedOwner { address: link_address(&found.address)?, epoch: found.epoch.0 })
        });
        self.told.send_if_modified(|all| {
            let known = &mut all[shard];
            // An answer may come late.
            let is_older =
                |known: &LinkedOwner| owner.as_ref().is_some_and(|owner| owner.epoch < known.epoch);
            if *known == owner || known.as_ref().is_some_and(is_older) {
                return false;
            }
            known.clone_from(&owner);
            self.known.lock()[shard].clone_from(&found);
            true
        });
    }
}

/// The value of a key that whoever comes first writes: `first`, if it is this node.
fn agreed(
    bucket: &mut dyn Bucket,
    tags: &mut u64,
    (key, first): (&str, &[u8]),
    until: Instant,
) -> Result<Vec<u8>, ConfigError> {
    loop {
        let (tag, key) = (*tags, String::from(key));
        *tags += 2;
        send_get(bucket, tag, &key);
        match answer_to(bucket, tag) {
            Some(BucketAnswer::Get { entry: Some((Revision(0), _)), .. }) => {
                let (tag, revision, value) = (tag + 1, Revision(0), first.to_vec());
                bucket.send(BucketRequest::Put { tag, key, revision, value });
                // Whatever has become of it, what is there now counts.
                let _written = answer_to(bucket, tag);
            }
            Some(BucketAnswer::Get { entry: Some((_, value)), .. }) => return Ok(value),
            _ if Instant::now() > until => {
                let text = format!("cluster: the bucket does not say what its key {key} is");
                return Err(ConfigError(text));
            }
            _ => sleep(RETRY),
        }
    }
}

pub(super) fn send_get(bucket: &mut dyn Bucket, tag: u64, key: &str) {
    bucket.send(BucketRequest::Get { tag, key: key.to_owned() });
}

/// The answer with this tag; all others are dropped: nobody else uses the bucket yet.
pub(super) fn answer_to(bucket: &mut dyn Bucket, tag: u64) -> Option<BucketAnswer> {
    let began = Instant::now();
    while began.elapsed() < ANSWERED_WITHIN {
        match bucket.receive() {
            Some(answer) if answer.tag() == tag => return Some(answer),
            Some(_) => {}
            None => sleep(LOOK),
        }
    }
    None
}

/// Sees whether the cluster has as many shards as the settings say, and gives its secret. Requests have tags from `tags` on.
///
/// # Errors
/// It has another number of shards, or the bucket does not tell.
pub(super) fn agree(
    bucket: &mut dyn Bucket,
    mut tags: u64,
    (cluster, shards): (&Cluster, u16),
) -> Result<Secret, ConfigError> {
    let until = match cluster.cluster_start_seconds {
        0 => Instant::now() + Duration::from_secs(u64::from(u32::MAX)),
        seconds => Instant::now() + Duration::from_secs(seconds),
    };
    let number = shards.to_string();
    let known = agreed(bucket, &mut tags, (SHARDS_KEY, number.as_bytes()), until)?;
    if known != number.as_bytes() {
        let known = known.escape_ascii();
        return Err(ConfigError(format!(
            "the cluster has {known} shards, and shards is {shards} (allowed: --shards {known})"
        )));
    }
    let secret = agreed(bucket, &mut tags, (SECRET_KEY, &random::<SECRET_BYTES>()), until)?;
    let bytes = secret.len();
    secret.try_into().map_err(|_| {
        ConfigError(format!(
            "cluster: the bucket's key {SECRET_KEY} has {bytes} bytes, not {SECRET_BYTES}"
        ))
    })
}
