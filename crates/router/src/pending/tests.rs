//! Tests of the order of answers.

use super::*;
use crate::answer::answer_of;
use alloc::string::String;
use alloc::vec;
use headwater_command::Reply;

/// Shows texts as they are, and numbers as digits.
struct Plain;

impl Encode for Plain {
    fn answer(&mut self, question: Option<&[u8]>, answer: Answer<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(question.unwrap_or_default());
        match answer.integer() {
            Some(number) => out.extend_from_slice(alloc::format!("{number} ").as_bytes()),
            None => out.extend_from_slice(answer.text().unwrap_or_default()),
        }
    }
}

fn text(text: &str) -> Vec<u8> {
    answer_of(|out| out.bulk(text.as_bytes()))
}

fn came(pending: &mut Pending, from: u16, id: u64, answer: &[u8]) -> bool {
    pending.came((Shard(from), id), answer, Vec::new(), &mut Plain)
}

fn collected(pending: &mut Pending) -> String {
    pending.advance(&mut Plain);
    let mut out = Vec::new();
    pending.collect(&mut out);
    assert!(out.is_empty() || !pending.defers());
    String::from_utf8(out).unwrap()
}

fn sum(pending: &mut Pending, at: &[u16]) -> Vec<u64> {
    pending.expect_scattered(Scattered::new(Merge::Sum, Kind::Plain));
    at.iter().map(|&at| pending.expect_part(Shard(at))).collect()
}

fn number(number: i64) -> Vec<u8> {
    answer_of(|out| out.integer(number))
}

#[test]
fn answers_are_in_the_order_of_the_requests() {
    let mut pending = Pending::new(Shard(0), 3);
    let first = pending.expect(Shard(1), Kind::Write, false);
    pending.expect_own(b"own ");
    let silent = pending.expect(Shard(2), Kind::Derived, true);
    let parts = sum(&mut pending, &[1, 2]);
    pending.expect_own(b"last ");
    let waits = |pending: &Pending, kind, at: u16| pending.must_wait(kind, Some(Shard(at)));
    assert!(pending.must_wait(Kind::Derived, None) && !pending.must_wait(Kind::Plain, None));
    assert!(!waits(&pending, Kind::Derived, 1) && waits(&pending, Kind::Derived, 2));
    assert!(waits(&pending, Kind::Write, 1) && !waits(&pending, Kind::Write, 2));
    // In any order, and each once.
    assert!(came(&mut pending, 2, parts[1], &number(3)));
    assert!(!came(&mut pending, 2, parts[1], &number(3)) && !came(&mut pending, 2, silent, b"x"));
    assert!(came(&mut pending, 2, silent, &text("silent")));
    assert_eq!(collected(&mut pending), "");
    assert!(came(&mut pending, 1, first, &text("first ")));
    assert!(pending.defers() && !pending.is_done() && !pending.must_wait(Kind::Derived, None));
    assert!(came(&mut pending, 1, parts[0], &number(4)));
    assert_eq!(collected(&mut pending), "first own 7 last ");
    assert!(pending.is_done());
    assert_eq!(pending.used().collect::<Vec<_>>(), [Shard(1), Shard(2)]);
}

#[test]
fn what_is_under_way_is_known() {
    let mut pending = Pending::new(Shard(0), 2);
    let one = pending.expect(Shard(0), Kind::Plain, false);
    let two = pending.expect(Shard(1), Kind::Plain, false);
    pending.expect(Shard(1), Kind::Stream, false);
    assert!(!pending.is_drained());
    came(&mut pending, 0, one, &text("a"));
    came(&mut pending, 1, two, &text("b"));
    assert!(pending.is_drained() && !pending.is_done());
    let parts = sum(&mut pending, &[0]);
    assert!(!pending.is_drained());
    came(&mut pending, 0, parts[0], &number(1));
    assert!(pending.is_drained());
}

#[test]
fn answers_wait_for_those_behind_them_neither_long_nor_in_masses() {
    let mut pending = Pending::new(Shard(0), 2);
    let mut out = b"own ".to_vec();
    let late = pending.expect(Shard(1), Kind::Plain, false);
    pending.defer(&mut out);
    assert!(out.is_empty() && pending.defers());
    pending.overdue = true;
    assert_eq!(collected(&mut pending), "own ");
    let mut much = [b'x'; DEFERRED_MAX + 1].to_vec();
    pending.defer(&mut much);
    assert!(!much.is_empty() && !pending.defers());
    came(&mut pending, 1, late, &text("late"));
    assert_eq!(collected(&mut pending), "late");
}

#[test]
fn an_answer_of_several_parts_is_whole() {
    let mut pending = Pending::new(Shard(0), 2);
    pending.begin_answer();
    let inner = pending.expect_inner(Shard(1), Kind::Write);
    assert!(pending.tell(Some(Shard(1)), &[b"message"]) && !pending.defers());
    assert!(pending.came((Shard(1), inner), &number(7), [5].into(), &mut Plain));
    assert!(pending.is_done());
    let expected = Inner { from: Shard(1), answer: number(7), digests: [5].into() };
    assert_eq!(pending.take_inner(), [expected]);
    let mut out = b"answer ".to_vec();
    pending.end_answer(&mut out);
    assert_eq!(out, b"answer message");
    assert_eq!((pending.held_bytes(), pending.answer_bytes), (0, 0));
}

#[test]
fn a_message_goes_behind_what_its_home_has_answered_before() {
    let mut pending = Pending::new(Shard(0), 3);
    let tell = |pending: &mut Pending, home: u16, text: &str| {
        pending.tell(Some(Shard(home)), &[text.as_bytes(), b" "])
    };
    assert!(!tell(&mut pending, 1, "nothing is in its way"));
    let first = pending.expect(Shard(1), Kind::Plain, false);
    let second = pending.expect(Shard(2), Kind::Plain, false);
    let parts = sum(&mut pending, &[1, 2]);
    pending.expect(Shard(2), Kind::Plain, false);
    // The home has answered nothing yet: what it tells is older than its answers.
    assert!(!tell(&mut pending, 2, "early"));
    came(&mut pending, 2, second, &text("second "));
    came(&mut pending, 2, parts[1], &number(3));
    // One answer, and a part of another one, are older than this.
    assert!(tell(&mut pending, 2, "two") && tell(&mut pending, 2, "three"));
    // It comes behind the other, though nothing of this home is in its way.
    assert!(tell(&mut pending, 1, "one"));
    assert_eq!(collected(&mut pending), "");
    assert_eq!(pending.held_bytes(), 14);
    came(&mut pending, 1, first, &text("first "));
    came(&mut pending, 1, parts[0], &number(4));
    // They wait for nothing more where something is to be told.
    assert!(pending.defers() && tell(&mut pending, 2, "four") && !pending.defers());
    assert_eq!(collected(&mut pending), "first second 7 two three one four ");
    // This shard's own answers are older than its messages, too.
    let mut pending = Pending::new(Shard(0), 3);
    let one = pending.expect(Shard(1), Kind::Plain, false);
    pending.expect_own(b"own ");
    assert!(tell(&mut pending, 0, "mine") && tell(&mut pending, 2, "six"));
    let two = pending.expect(Shard(1), Kind::Plain, false);
    assert!(pending.tell(None, &[b"seven "]));
    came(&mut pending, 1, one, &text("last "));
    came(&mut pending, 1, two, &number(1));
    assert_eq!(collected(&mut pending), "last own mine six 1 seven ");
    assert_eq!((pending.held_bytes(), pending.messages, pending.is_done()), (0, 0, true));
}

#[test]
fn a_lost_shard_has_answered_everything_once() {
    let mut pending = Pending::new(Shard(0), 3);
    let first = pending.expect(Shard(1), Kind::Write, false);
    let other = pending.expect(Shard(2), Kind::Plain, false);
    let silent = pending.expect(Shard(1), Kind::Write, true);
    let parts = sum(&mut pending, &[1, 2]);
    let inner = pending.expect_inner(Shard(1), Kind::Plain);
    pending.watch([Shard(1)].into_iter(), [&b"key"[..]].into_iter());
    pending.lost(Shard(1), &text("lost "), |_| false, &mut Plain);
    // It waits for those behind it, as answers do.
    assert_eq!(collected(&mut pending), "");
    pending.overdue = true;
    assert_eq!(collected(&mut pending), "lost ");
    for id in [first, silent, parts[0], inner] {
        assert!(!came(&mut pending, 1, id, &text("late ")), "{id}");
    }
    assert!(!pending.must_wait(Kind::Derived, Some(Shard(2))), "no write is under way");
    assert!(came(&mut pending, 2, other, &text("other ")));
    assert!(came(&mut pending, 2, parts[1], &number(1)));
    assert!(collected(&mut pending).starts_with("other "));
    assert_eq!(pending.take_inner().len(), 1);
    assert!(pending.is_done() && pending.has_lost_watches());
    assert_eq!(pending.end_watches(), BTreeSet::from([Shard(1)]));
    assert!(!pending.has_lost_watches());
    pending.lost(Shard(1), &text("lost "), |_| false, &mut Plain);
    assert!(!pending.has_lost_watches() && collected(&mut pending).is_empty());
}

#[test]
fn an_answer_is_written_by_what_was_asked() {
    let mut pending = Pending::new(Shard(0), 3);
    let empty = pending.bytes();
    let one = pending.expect_for(Shard(1), Kind::Plain, (*b"q1:").into());
    let two = pending.expect_for(Shard(2), Kind::Plain, (*b"q2:").into());
    let mut many = Scattered::new(Merge::Same, Kind::Plain);
    many.question = Some((*b"q3:").into());
    pending.expect_scattered(many);
    pending.own_part(text("c"));
    assert!(came(&mut pending, 2, two, &text("b")));
    assert!(came(&mut pending, 1, one, &text("a")));
    let mut out = Vec::new();
    pending.collect(&mut out);
    assert_eq!(out, b"q1:aq2:bq3:c");
    assert_eq!(pending.answer_bytes, 0);
    assert!(pending.bytes() >= empty);
}

#[test]
fn where_nobody_hands_on_only_who_was_asked_answers() {
    for strict in [false, true] {
        let mut pending = Pending::new(Shard(0), 3);
        pending.strict = strict;
        let first = pending.expect(Shard(1), Kind::Plain, false);
        let second = pending.expect(Shard(1), Kind::Plain, false);
        let parts = sum(&mut pending, &[1, 2]);
        for id in [parts[0], second, first] {
            assert_eq!(came(&mut pending, 2, id, &number(1)), !strict, "{id}");
            assert_eq!(came(&mut pending, 1, id, &number(1)), strict, "{id}");
        }
        assert!(came(&mut pending, 2, parts[1], &number(2)));
        assert_eq!(collected(&mut pending), "1 1 3 ");
    }
}

#[test]
fn what_a_shard_does_not_answer_is_given_up_and_what_it_answers_later_is_dropped() {
    for inner in [None, Some(text("inner"))] {
        let mut pending = Pending::new(Shard(0), 3);
        let first = pending.expect(Shard(1), Kind::Write, false);
        let step = pending.expect_inner(Shard(1), Kind::Both);
        let parts = sum(&mut pending, &[1, 2]);
        pending.give_up(Shard(1), &number(7), inner.as_deref(), &mut Plain);
        assert!(came(&mut pending, 2, parts[1], &number(1)));
        assert!(!came(&mut pending, 1, first, &number(5)), "it is dropped");
        assert!(!came(&mut pending, 1, parts[0], &number(5)));
        assert_eq!(came(&mut pending, 1, step, &text("late")), inner.is_none());
        assert_eq!(pending.take_inner()[0].answer, inner.unwrap_or_else(|| text("late")));
        assert_eq!(collected(&mut pending), "7 8 ");
        assert!(!pending.must_wait(Kind::Derived, None));
    }
}

#[test]
fn what_a_shard_may_do_later_is_taken_back_there_too() {
    let undo: OwnedArgs = [&b"TABLE.SET"[..], b"t", b"SOURCE", b""].into_iter().collect();
    let busy = answer_of(|out| out.error("BUSY", format_args!("it does not go on")));
    let refused = answer_of(|out| out.error("ERR", format_args!("no")));
    for (of_second, undone) in [(number(1), vec![0, 1, 2]), (refused, vec![0, 2])] {
        let mut pending = Pending::new(Shard(0), 3);
        let mut scattered = Scattered::new(Merge::Same, Kind::Plain);
        scattered.undo = Some(undo.clone());
        pending.expect_scattered(scattered);
        let ids: Vec<u64> = (0..3).map(|at| pending.expect_part(Shard(at))).collect();
        assert!(came(&mut pending, 0, ids[0], &number(1)));
        assert!(came(&mut pending, 1, ids[1], &of_second));
        assert!(!pending.give_up(Shard(2), &busy, None, &mut Plain));
        let at: Vec<u16> = pending.take_undo().iter().map(|(at, _)| at.0).collect();
        assert_eq!(at, undone);
        assert!(!came(&mut pending, 2, ids[2], &number(1)), "it comes too late");
    }
}

#[test]
fn what_was_handed_on_is_waited_for_where_it_is() {
    let mut pending = Pending::new(Shard(0), 3);
    let busy = text("busy ");
    let id = pending.expect(Shard(1), Kind::Write, false);
    let parts = sum(&mut pending, &[1, 2]);
    pending.handed_on(id, Shard(2));
    pending.handed_on(parts[0], Shard(2));
    assert!(pending.must_wait(Kind::Derived, Some(Shard(1))), "it is written there");
    assert!(!pending.must_wait(Kind::Derived, Some(Shard(2))));
    pending.give_up(Shard(1), &busy, None, &mut Plain);
    assert!(!pending.is_done() && collected(&mut pending).is_empty());
    assert!(came(&mut pending, 2, parts[0], &number(4)));
    pending.give_up(Shard(2), &busy, None, &mut Plain);
    assert!(pending.is_done() && !pending.must_wait(Kind::Derived, None));
    assert!(collected(&mut pending).starts_with("busy "));
    // Whoever hands on what is answered comes too late.
    pending.handed_on(id, Shard(1));
    assert_eq!(pending.used().collect::<Vec<_>>(), [Shard(1), Shard(2)]);
}
