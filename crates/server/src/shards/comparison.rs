//! Whether this shard's definitions are those of the first shard, in processes of their own.
//!
//! Both change while a definition is executed, one behind the other, so a difference counts only once nothing has changed for longer than any
//! request is under way.

/// No request is under way for so long, in milliseconds: locks are waited for during 5 seconds, and a link that says nothing is given up after 3.
const SETTLED: u64 = 6000;
/// How soon what did not come is asked for again, in milliseconds.
const AGAIN: u64 = 1000;

/// What one shard knows of the first one's definitions.
#[derive(Clone, Debug, Default)]
pub(crate) struct DefinitionComparison {
    /// The digest of its own, and of the first shard's, as they were last.
    both: Option<(u64, u64)>,
    /// The digest that the first shard has told over this connection.
    theirs: Option<u64>,
    /// Since when both are what they are.
    since: u64,
    /// When the first shard was asked last.
    asked: Option<u64>,
}

impl DefinitionComparison {
    /// The first shard has told the digest of its definitions.
    pub(crate) fn tell(&mut self, theirs: u64) {
        self.theirs = Some(theirs);
    }

    /// There is no connection to it any more.
    pub(crate) fn lose(&mut self) {
        self.theirs = None;
    }

    /// Whether to ask for its definitions now, where this shard's have this digest.
    #[inline]
    pub(crate) fn is_to_ask(&mut self, mine: u64, now: u64) -> bool {
        self.theirs.is_some_and(|theirs| theirs != mine) && self.is_due(mine, now)
    }

    #[cold]
    fn is_due(&mut self, mine: u64, now: u64) -> bool {
        let both = self.theirs.map(|theirs| (mine, theirs));
        if self.both != both {
            (self.both, self.since, self.asked) = (both, now, None);
        }
        let is_due = now.saturating_sub(self.since) >= SETTLED
            && self.asked.is_none_or(|at| now.saturating_sub(at) >= AGAIN);
        if is_due {
            self.asked = Some(now);
        }
        is_due
    }

    /// Whether definitions of this digest, which have come, are to be taken over.
    pub(crate) fn is_to_take(&self, mine: u64, came: u64) -> bool {
        self.asked.is_some() && self.both == Some((mine, came)) && self.theirs == Some(came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_for_long_is_asked_for_and_taken_over() {
        let mut it = DefinitionComparison::default();
        assert!(!it.is_to_ask(1, 0));
        it.tell(1);
        assert!(!it.is_to_ask(1, 10_000));
        // The first shard has executed something that is on its way here.
        it.tell(2);
        assert!(!it.is_to_ask(1, 20_000));
        assert!(!it.is_to_ask(1, 20_000 + SETTLED - 1));
        assert!(!it.is_to_take(1, 2));
        assert!(it.is_to_ask(1, 20_000 + SETTLED));
        assert!(it.is_to_take(1, 2));
        // What comes is what was told, and instead of what is here.
        assert!(!it.is_to_take(1, 3) && !it.is_to_take(3, 2));
        assert!(!it.is_to_ask(1, 20_000 + SETTLED + AGAIN - 1));
        assert!(it.is_to_ask(1, 20_000 + SETTLED + AGAIN));
    }

    #[test]
    fn what_changes_meanwhile_is_waited_for_anew() {
        let mut it = DefinitionComparison::default();
        it.tell(2);
        assert!(!it.is_to_ask(1, 0));
        // Something was executed here.
        assert!(!it.is_to_ask(3, SETTLED));
        // Something was executed at the first shard.
        it.tell(4);
        assert!(!it.is_to_ask(3, 2 * SETTLED));
        assert!(it.is_to_ask(3, 3 * SETTLED));
        it.tell(3);
        assert!(!it.is_to_take(3, 4) && !it.is_to_ask(3, 9 * SETTLED));
        it.lose();
        assert!(!it.is_to_ask(1, 10 * SETTLED));
        it.tell(2);
        assert!(!it.is_to_ask(1, 10 * SETTLED));
    }
}
