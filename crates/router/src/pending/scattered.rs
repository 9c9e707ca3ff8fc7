//! An answer that is put together from several shards'.

use super::{Kind, Question};
use crate::answer::Answer;
use crate::merge::Merge;
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_command::OwnedArgs;

/// An answer that is put together from several shards'.
#[derive(Clone, PartialEq, Debug)]
pub struct Scattered {
    /// How.
    pub merge: Merge,
    /// What the request does.
    pub kind: Kind,
    /// What was asked, where the form of the answer depends on that.
    pub question: Option<Question>,
    /// The client does not want it.
    pub silent: bool,
    /// Takes it back where it was done, should another shard refuse it.
    pub undo: Option<OwnedArgs>,
    /// The shards, with the ids of what they were asked, and their answers as far as these have come.
    pub(super) parts: Vec<(Shard, u64, Option<Vec<u8>>)>,
    /// Shards that have not answered, and may do their parts later.
    given_up: Vec<Shard>,
}

impl Scattered {
    /// One to which no shard has a part yet.
    #[must_use]
    pub fn new(merge: Merge, kind: Kind) -> Self {
        let (parts, given_up) = (Vec::new(), Vec::new());
        Self { merge, kind, question: None, silent: false, undo: None, parts, given_up }
    }

    /// A shard's answer is waited for no longer, if it is missing.
    pub(super) fn give_up(&mut self, at: Shard) {
        if self.parts.iter().any(|(shard, _, answer)| *shard == at && answer.is_none()) {
            self.given_up.push(at);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.parts.iter().all(|(.., answer)| answer.is_some())
    }

    /// The answers that have come; those that are none were refused when they came.
    pub(super) fn answers(&self) -> Vec<(Shard, Answer<'_>)> {
        let parts = self.parts.iter();
        parts.filter_map(|(shard, _, it)| Some((*shard, Answer::whole(it.as_deref()?)?))).collect()
    }

    /// What is to be taken back, and where: a part was refused. Whoever was given up does it, if at all, before it takes it back.
    pub(super) fn to_undo(&self) -> Vec<(Shard, OwnedArgs)> {
        let Some(undo) = &self.undo else { return Vec::new() };
        let answers = self.answers();
        if answers.iter().all(|(_, answer)| !answer.is_error()) {
            return Vec::new();
        }
        let done =
            answers.iter().filter(|(at, answer)| !answer.is_error() || self.given_up.contains(at));
        done.map(|(shard, _)| (*shard, undo.clone())).collect()
    }
}
