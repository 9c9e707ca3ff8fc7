//! The formats that this program reads and writes, as it announces them to the other nodes of its cluster ([`headwater_log::Formats`] says why).

use super::ending::stop_for_good;
use super::others::{answer_to, send_get};
use crate::shards::links::LINK_FORMATS;
use headwater_keep::BACKUP_FORMAT;
use headwater_log::{
    Announcement, Bucket, BucketAnswer, BucketRequest, FormatRange, Formats, KnownProcess,
    Monotonic, Owner, RECORD_FORMATS, why_apart,
};

/// What this program reads.
pub(crate) const FORMATS: Formats = Formats {
    records: RECORD_FORMATS,
    links: LINK_FORMATS,
    snapshots: FormatRange::one(BACKUP_FORMAT),
};

/// How soon what others do not see is announced again, in milliseconds.
const AGAIN_MILLIS: u64 = 2000;

/// What one process announces.
#[derive(Debug)]
pub(super) struct Announcing {
    node: Owner,
    key: String,
    value: Vec<u8>,
    tag: u64,
    /// It was seen to be heard itself, and so were those that are there beside it: it has begun.
    has_begun: bool,
    due: Monotonic,
}

impl Announcing {
    /// Announces what this process reads, which begins now. Where it cannot be written, the others take it for an earlier program until it can: they write
    /// nothing then that it does not read.
    pub(super) fn begin(bucket: &mut dyn Bucket, tag: u64, node: &Owner) -> Self {
        let announcement = Announcement {
            program: String::from(env!("CARGO_PKG_VERSION")),
            incarnation: node.incarnation,
            formats: FORMATS,
        };
        let key = format!("{}{}", Announcement::KEYS, node.node);
        let value = announcement.encode().into_bytes();
        write(bucket, tag, key.clone(), value.clone());
        Self { node: node.clone(), key, value, tag: tag + 2, has_begun: false, due: Monotonic(0) }
    }

    /// What to ask now, by what is known of all processes: another one that has tried to begin with this one's name may have written the key.
    pub(super) fn tick(&mut self, known: &[KnownProcess], now: Monotonic) -> Option<BucketRequest> {
        if !self.has_begun {
            if let Some(why) = why_apart(&self.node.node, &FORMATS, known) {
                stop_for_good(&why);
            }
            self.has_begun = known.iter().any(|it| it.is_heard && it.owner.is_same(&self.node));
        }
        let is_unseen =
            |it: &KnownProcess| it.owner.is_same(&self.node) && it.announcement().is_none();
        if now < self.due || !known.iter().any(is_unseen) {
            return None;
        }
        self.due = Monotonic(now.0 + AGAIN_MILLIS);
        self.tag += 2;
        Some(BucketRequest::Get { tag: self.tag, key: self.key.clone() })
    }

    /// What to ask because of an answer.
    pub(super) fn answered(&self, answer: &BucketAnswer) -> Option<BucketRequest> {
        let BucketAnswer::Get { tag, entry: Some((revision, there)) } = answer else { return None };
        (*tag == self.tag && *there != self.value).then(|| BucketRequest::Put {
            tag: self.tag + 1,
            key: self.key.clone(),
            revision: *revision,
            value: self.value.clone(),
        })
    }
}

/// Writes a key that is this process's own, where it has another value.
pub(super) fn write(bucket: &mut dyn Bucket, tag: u64, key: String, value: Vec<u8>) {
    send_get(bucket, tag, &key);
    if let Some(BucketAnswer::Get { entry: Some((revision, there)), .. }) = answer_to(bucket, tag)
        && there != value
    {
        bucket.send(BucketRequest::Put { tag: tag + 1, key, revision, value });
        let _written = answer_to(bucket, tag + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_log::{Epoch, Revision};

    #[test]
    fn what_others_do_not_see_is_announced_again() {
        let node = Owner {
            node: "a".into(),
            address: "a:1".into(),
            shard: 0,
            incarnation: 5,
            epoch: Epoch(0),
            released: false,
        };
        let (key, value, due) = (String::from("formats.a"), b"mine".to_vec(), Monotonic(0));
        let mut it = Announcing { node: node.clone(), key, value, tag: 10, has_begun: false, due };
        let announced = |incarnation| {
            let program = String::from("1");
            Some(Announcement { program, incarnation, formats: FORMATS })
        };
        let known = |incarnation, announced| {
            let owner = Owner { incarnation, ..node.clone() };
            [KnownProcess { owner, announced, is_heard: true }]
        };
        let now = Monotonic(1);
        assert_eq!(it.tick(&[], now), None);
        assert_eq!(it.tick(&known(5, announced(5)), now), None);
        assert_eq!(it.tick(&known(4, None), now), None, "the name is not its own yet");
        let asked = it.tick(&known(5, announced(6)), now);
        let Some(BucketRequest::Get { tag, .. }) = asked else { panic!("{asked:?}") };
        assert_eq!(it.tick(&known(5, None), now), None, "it has just asked");
        let answer = |tag, value: &[u8]| {
            let entry = Some((Revision(7), value.to_vec()));
            BucketAnswer::Get { tag, entry }
        };
        assert_eq!(it.answered(&answer(tag + 1, b"other")), None);
        assert_eq!(it.answered(&answer(tag, b"mine")), None);
        let written = it.answered(&answer(tag, b"other"));
        let Some(BucketRequest::Put { key, revision, value, .. }) = written else {
            panic!("{written:?}")
        };
        assert_eq!((&*key, revision, &*value), ("formats.a", Revision(7), &b"mine"[..]));
        assert!(it.tick(&known(5, None), Monotonic(now.0 + AGAIN_MILLIS)).is_some());
    }
}
