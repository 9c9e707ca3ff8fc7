//! Answers of other shards, in the form in which their client reads them.

use crate::memcached;
use crate::resp::session::Session;
use headwater_base::Shard;
use headwater_protocol::resp::{Encoder, Version};
use headwater_router::{Answer, Encode, Merge};

/// How a client of this shard reads its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientForm {
    version: Version,
    blob_errors: bool,
    memcached: bool,
}

impl ClientForm {
    /// That of a session.
    pub(crate) fn of(session: &Session) -> Self {
        let Session { version, blob_errors, .. } = *session;
        Self { version, blob_errors, memcached: session.memcached.is_some() }
    }
}

impl Encode for ClientForm {
    #[inline]
    fn answer(&mut self, answer: Answer<'_>, out: &mut Vec<u8>) {
        if self.memcached {
            memcached::write_answer(answer, out);
        } else {
            let mut encoder = Encoder::new(out, self.version).with_blob_errors(self.blob_errors);
            answer.replay(&mut encoder);
        }
    }

    fn merged(&mut self, merge: &Merge, parts: &[(Shard, Answer<'_>)], out: &mut Vec<u8>) {
        if self.memcached {
            memcached::write_merged(merge, parts, out);
        } else {
            let mut encoder = Encoder::new(out, self.version).with_blob_errors(self.blob_errors);
            merge.write(parts, &mut encoder);
        }
    }
}
