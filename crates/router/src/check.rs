//! Whether bytes that have come from another process are what a shard would write: looked at before anything of them is taken in.

use crate::answer::Answer;
use crate::ask::{Ask, AskHeader, Frames, Requests};
use crate::locks::TransactionId;
use headwater_base::Shard;
use headwater_command::ArgVec;
use headwater_command::table::spec_for;

/// Whether bytes are whole requests of clients of the shard `from`, one behind the other, which name none but the shards that there are, and are of
/// commands that there are, with as many arguments as they take.
#[must_use]
pub fn are_requests(bytes: &[u8], from: Shard, shards: u16) -> bool {
    let (mut frames, mut spans) = (Frames::of(bytes), ArgVec::new());
    while frames.left() > 0 {
        match frames.next_ask(&mut spans) {
            Some((header, ask)) if is_right(&header, &ask, from, shards) => {}
            _ => return false,
        }
    }
    true
}

/// Whether bytes are whole answers, one behind the other.
#[must_use]
pub fn are_answers(bytes: &[u8]) -> bool {
    let mut frames = Frames::of(bytes);
    while frames.left() > 0 {
        match frames.next_answer() {
            Some(frame) if Answer::whole(frame.answer).is_some() => {}
            _ => return false,
        }
    }
    true
}

fn is_right(header: &AskHeader, ask: &Ask<'_>, from: Shard, shards: u16) -> bool {
    let is_one = |shard: &Shard| shard.0 < shards;
    // The client's shard coordinates what it does: nobody has a say in the locks of others.
    let is_of = |transaction: &TransactionId| transaction.coordinator == from;
    let are_known = |requests: &Requests| requests.iter().all(|it| spec_for(it.args()).is_some());
    header.after.len() <= usize::from(shards)
        && match ask {
            Ask::Lock { transaction, prepare, .. } => is_of(transaction) && are_known(prepare),
            Ask::Release { transaction, prepared } => is_of(transaction) && are_known(prepared),
            Ask::Execute { transaction, shards, requests, .. } => {
                is_of(transaction) && shards.iter().all(is_one) && are_known(requests)
            }
            // Who waits and is executed anew is found by its name.
            Ask::Command(spec, args) => spec_for(*args).is_some_and(|named| named.id == spec.id),
            Ask::Exec(requests) => are_known(requests),
            Ask::Carry { .. } | Ask::Put(_) | Ask::Item(_) => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::answer_of;
    use crate::ask::{Budget, write_answer, write_ask};
    use crate::locks::LockSet;
    use alloc::vec::Vec;
    use headwater_command::{OwnedArgs, Reply, table};

    fn written(ask: &Ask<'_>, after: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let header = AskHeader { after: alloc::vec![0; after], ..AskHeader::default() };
        write_ask(&header, ask, &mut bytes);
        bytes
    }

    #[test]
    fn requests_are_whole_and_of_shards_that_there_are() {
        let of = |coordinator| TransactionId { coordinator: Shard(coordinator), number: 1 };
        let release = |at| Ask::Release { transaction: of(at), prepared: Vec::new() };
        let execute = |transaction, at| Ask::Execute {
            transaction,
            shards: alloc::vec![Shard(0), Shard(at)],
            last: true,
            requests: Vec::new(),
        };
        let from = Shard(2);
        let good = [written(&release(2), 3), written(&execute(of(2), 2), 0)].concat();
        assert!(are_requests(&good, from, 3) && are_requests(b"", from, 3));
        for end in 1..good.len() {
            let is_between = end == written(&release(2), 3).len();
            assert_eq!(are_requests(&good[..end], from, 3), is_between, "{end}");
        }
        for bad in [
            written(&release(3), 0),
            written(&release(2), 4),
            written(&execute(of(0), 0), 0),
            written(&execute(of(2), 3), 0),
        ] {
            assert!(!are_requests(&bad, from, 3));
            assert!(!are_requests(&[&good[..], &bad].concat(), from, 3));
        }
    }

    /// Whatever a request has within: each is of a command that there is, and has what it takes; one alone is the one that it says it is.
    #[test]
    fn requests_within_requests_are_of_commands_and_have_what_they_take() {
        let words =
            |words: &[&str]| -> OwnedArgs { words.iter().map(|it| it.as_bytes()).collect() };
        let transaction = TransactionId { coordinator: Shard(0), number: 1 };
        let within = |request: OwnedArgs| {
            let requests = alloc::vec![words(&["SET", "a", "b"]), request];
            [
                Ask::Exec(requests.clone()),
                Ask::Lock {
                    transaction,
                    set: LockSet::All,
                    watches: false,
                    wait: 5,
                    budget: Budget::default(),
                    prepare: requests.clone(),
                },
                Ask::Execute {
                    transaction,
                    shards: alloc::vec![Shard(0)],
                    last: true,
                    requests: requests.clone(),
                },
                Ask::Release { transaction, prepared: requests },
            ]
        };
        for right in [&["get", "a"][..], &["MSET", "a", "1", "b", "2"], &["OBJECT", "FREQ", "a"]] {
            for ask in within(words(right)) {
                assert!(are_requests(&written(&ask, 0), Shard(0), 3), "{ask:?}");
            }
        }
        for wrong in [&["GET"][..], &["GET", "a", "b"], &["nothing"], &["OBJECT", "x", "a"], &[]] {
            for ask in within(words(wrong)) {
                assert!(!are_requests(&written(&ask, 0), Shard(0), 3), "{ask:?}");
            }
        }
        let get = table::lookup(b"get").unwrap();
        for (words, is_right) in [(words(&["Get", "a"]), true), (words(&["DEL", "a"]), false)] {
            let ask = Ask::Command(get, words.args());
            assert_eq!(are_requests(&written(&ask, 0), Shard(0), 3), is_right, "{ask:?}");
        }
    }

    #[test]
    fn a_request_ends_where_its_frame_does() {
        let mut bytes = written(&Ask::Carry { key: b"k", leaves: true }, 0);
        assert!(are_requests(&bytes, Shard(0), 1));
        bytes.push(0);
        bytes[0] += 1;
        assert!(!are_requests(&bytes, Shard(0), 1), "{bytes:?}");
    }

    #[test]
    fn answers_are_whole() {
        let mut bytes = Vec::new();
        write_answer(1, 2, &[3], &answer_of(|out| out.ok()), &mut bytes);
        let one = bytes.len();
        write_answer(2, 2, &[], &answer_of(|out| out.array(0)), &mut bytes);
        for end in 0..=bytes.len() {
            assert_eq!(are_answers(&bytes[..end]), [0, one, bytes.len()].contains(&end), "{end}");
        }
        write_answer(3, 0, &[], b"\xff", &mut bytes);
        assert!(!are_answers(&bytes));
    }
}
