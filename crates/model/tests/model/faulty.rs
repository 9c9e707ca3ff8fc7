//! That a subject which does something wrong on purpose is noticed, and one that does not passes.

use core::fmt::Debug;
use headwater_model::check::{Kind, MakeSubject, Plan, check};

fn plan(kind: Kind, seeds: u64, subject: MakeSubject) -> Plan {
    Plan { subject, ..Plan::engine(kind, 1, seeds, 2) }
}

/// A right subject passes so many seeds.
pub(crate) fn assert_passes(kind: Kind, seeds: u64, subject: MakeSubject) {
    let found = check(&plan(kind, seeds, subject), 1, &mut |_| {});
    assert!(found.is_empty(), "{}", found[0]);
}

/// A fault is noticed, and shown by a history of `most` operations or fewer.
pub(crate) fn assert_caught(kind: Kind, fault: impl Debug, most: usize, subject: MakeSubject) {
    let found = check(&plan(kind, 3000, subject), 1, &mut |_| {});
    assert!(!found.is_empty(), "{fault:?} is not noticed");
    assert!(!found[0].failure.message.contains("panics"), "{}", found[0]);
    let kept = found[0].ops.len();
    assert!(kept <= most, "{fault:?} is shown by {kept} operations:\n{}", found[0]);
}
