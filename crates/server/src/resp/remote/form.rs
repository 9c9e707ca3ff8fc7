//! Answers of other shards, in the form in which their client reads them.

use crate::memcached;
use crate::resp::session::Session;
use headwater_base::Shard;
use headwater_protocol::resp::{Encoder, Version};
use headwater_router::{Answer, Encode, Merge, answer_of};

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

impl ClientForm {
    #[inline]
    fn encoder(self, out: &mut Vec<u8>) -> Encoder<'_> {
        Encoder::new(out, self.version).with_blob_errors(self.blob_errors)
    }
}

impl Encode for ClientForm {
    #[inline]
    fn answer(&mut self, question: Option<&[u8]>, answer: Answer<'_>, out: &mut Vec<u8>) {
        if self.memcached {
            memcached::write_answer(question, answer, out);
        } else {
            answer.replay(&mut self.encoder(out));
        }
    }

    fn merged(
        &mut self,
        question: Option<&[u8]>,
        merge: &Merge,
        parts: &[(Shard, Answer<'_>)],
        out: &mut Vec<u8>,
    ) {
        if self.memcached {
            let merged = answer_of(|typed| merge.write(parts, typed));
            if let Some(merged) = Answer::whole(&merged) {
                memcached::write_answer(question, merged, out);
            }
        } else {
            merge.write(parts, &mut self.encoder(out));
        }
    }
}
