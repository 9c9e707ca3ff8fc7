//! What was refused lately, for `ACL LOG`.

use alloc::collections::VecDeque;
use alloc::string::String;

/// What is refused again within so many milliseconds is counted, not noted anew.
const GROUPED_MS: u64 = 60_000;

/// Why something was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclReason {
    /// A wrong password, or no such user.
    Auth,
    /// The command.
    Command,
    /// A key, or a range of keys.
    Key,
    /// A channel.
    Channel,
}

impl AclReason {
    /// Redis's word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Command => "command",
            Self::Key => "key",
            Self::Channel => "channel",
        }
    }
}

/// Something that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AclEvent {
    /// Names it among all.
    pub id: u64,
    /// How often, within a minute.
    pub count: u64,
    /// Why.
    pub reason: AclReason,
    /// Within MULTI and EXEC.
    pub in_transaction: bool,
    /// The command, key or channel; of a wrong password: the command.
    pub object: String,
    /// The user, or the name under which someone tried to log in.
    pub user: String,
    /// The client, as CLIENT INFO shows it.
    pub client: String,
    /// When it was refused first, in milliseconds since 1970.
    pub created: u64,
    /// When it was refused last.
    pub updated: u64,
}

/// The last events, the newest first.
#[derive(Debug, Default)]
pub struct AclJournal {
    entries: VecDeque<AclEvent>,
    next: u64,
}

impl AclJournal {
    /// Notes an event; `id` and `count` are given here. Whether it is new, and not counted with an earlier one.
    /// At most so many are kept.
    pub fn note(&mut self, mut event: AclEvent, entries_max: usize) -> bool {
        let same = self.entries.iter().position(|old| {
            old.reason == event.reason
                && old.in_transaction == event.in_transaction
                && old.object == event.object
                && old.user == event.user
                && event.updated.abs_diff(old.updated) < GROUPED_MS
        });
        if let Some(mut old) = same.and_then(|at| self.entries.remove(at)) {
            (old.count, old.updated, old.client) = (old.count + 1, event.updated, event.client);
            self.entries.push_front(old);
            self.entries.truncate(entries_max);
            return false;
        }
        (event.id, event.count) = (self.next, 1);
        self.next += 1;
        self.entries.push_front(event);
        self.entries.truncate(entries_max);
        true
    }

    /// The events, the newest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &AclEvent> {
        self.entries.iter()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    fn event(object: &str, at: u64) -> AclEvent {
        AclEvent {
            id: 0,
            count: 0,
            reason: AclReason::Key,
            in_transaction: false,
            object: object.to_string(),
            user: String::from("ann"),
            client: String::new(),
            created: at,
            updated: at,
        }
    }

    #[test]
    fn what_is_refused_again_is_counted_and_the_oldest_go() {
        let mut journal = AclJournal::default();
        assert!(journal.note(event("a", 0), 128) && journal.note(event("b", 1), 128));
        assert!(!journal.note(event("a", 59_999), 128));
        let first = journal.iter().next().unwrap();
        assert_eq!((&*first.object, first.count, first.updated, first.id), ("a", 2, 59_999, 0));
        assert!(journal.note(event("b", 60_001), 128), "a minute later it is another event");
        for at in 0..200 {
            journal.note(event(&format!("c{at}"), 70_000), 128);
        }
        assert_eq!((journal.iter().len(), journal.iter().next().unwrap().id), (128, 202));
        journal.clear();
        assert_eq!(journal.iter().len(), 0);
    }
}
