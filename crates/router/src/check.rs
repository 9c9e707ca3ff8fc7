//! Whether bytes that have come from another process are what a shard would write: looked at before anything of them is taken in.

use crate::answer::Answer;
use crate::ask::{Ask, AskHeader, Frames};
use crate::locks::TransactionId;
use headwater_base::Shard;
use headwater_command::ArgVec;

/// Whether bytes are whole requests, one behind the other, which name none but the shards that there are.
#[must_use]
pub fn are_requests(bytes: &[u8], shards: u16) -> bool {
    let (mut frames, mut spans) = (Frames::of(bytes), ArgVec::new());
    while frames.left() > 0 {
        match frames.next_ask(&mut spans) {
            Some((header, ask)) if names_shards(&header, &ask, shards) => {}
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

fn names_shards(header: &AskHeader, ask: &Ask<'_>, shards: u16) -> bool {
    let is_one = |shard: &Shard| shard.0 < shards;
    let is_of = |transaction: &TransactionId| is_one(&transaction.coordinator);
    header.after.len() <= usize::from(shards)
        && match ask {
            Ask::Lock { transaction, .. } | Ask::Release { transaction, .. } => is_of(transaction),
            Ask::Execute { transaction, shards, .. } => {
                is_of(transaction) && shards.iter().all(is_one)
            }
            Ask::Command(..) | Ask::Exec(_) | Ask::Carry { .. } | Ask::Put(_) | Ask::Item(_) => {
                true
            }
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::answer_of;
    use crate::ask::{write_answer, write_ask};
    use alloc::vec::Vec;
    use headwater_command::Reply;

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
        let good = [written(&release(2), 3), written(&execute(of(0), 2), 0)].concat();
        assert!(are_requests(&good, 3) && are_requests(b"", 3));
        for end in 1..good.len() {
            let is_between = end == written(&release(2), 3).len();
            assert_eq!(are_requests(&good[..end], 3), is_between, "{end}");
        }
        for bad in [
            written(&release(3), 0),
            written(&release(0), 4),
            written(&execute(of(3), 0), 0),
            written(&execute(of(0), 3), 0),
        ] {
            assert!(!are_requests(&bad, 3));
            assert!(!are_requests(&[&good[..], &bad].concat(), 3));
        }
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
