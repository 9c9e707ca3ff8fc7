//! The law of the engine, for joins that look at values: conditions, and slots that values bind.

use crate::setups;
use headwater_model::check::{Kind, MakeSubject, assert_holds, wanted_histories};
use headwater_model::equipped::Equipped;
use headwater_model::generate::{KEPT_FROM, LENSED_FROM, TALLIED_FROM};
use headwater_model::subject::Plain;

/// Histories that every test run checks; `HEADWATER_HISTORIES` asks for more (or fewer).
const HISTORIES: u64 = 500;

fn holds(kind: Kind, share: u64, subject: MakeSubject) {
    holds_from(LENSED_FROM, kind, share, subject);
}

fn holds_from(first: u64, kind: Kind, share: u64, subject: MakeSubject) {
    assert_holds(kind, first, wanted_histories(HISTORIES) / share, subject);
}

#[test]
fn reads_equal_recomputation_where_joins_look_at_values() {
    holds(Kind::Plain, 1, || Box::new(Plain::default()));
}

#[test]
fn so_they_do_where_joins_keep_some_outputs_of_each_group() {
    let kept = |kind, share, subject| holds_from(KEPT_FROM, kind, share, subject);
    kept(Kind::Plain, 1, || Box::new(Plain::default()));
    kept(Kind::Plain, 2, || Box::new(Equipped::default().sliced(2, true)));
    kept(Kind::Sources, 2, || Box::new(Plain::default()));
    kept(Kind::Sources, 4, || Box::new(Equipped::default().sliced(7, false)));
    kept(Kind::Plain, 4, || Box::new(Equipped::kept_in_a_map().sliced(2, true)));
    kept(Kind::Plain, 4, || Box::new(Equipped::pressed(30)));
    kept(Kind::Plain, 8, || Box::new(Equipped::default().growing(0)));
}

#[test]
fn so_they_do_where_joins_count_values() {
    let tallied = |kind, share, subject| holds_from(TALLIED_FROM, kind, share, subject);
    tallied(Kind::Plain, 1, || Box::new(Plain::default()));
    tallied(Kind::Plain, 2, || Box::new(Equipped::default().sliced(2, true)));
    tallied(Kind::Sources, 4, || Box::new(Plain::default()));
    tallied(Kind::Sources, 8, || Box::new(Equipped::default().sliced(7, false)));
    tallied(Kind::Plain, 8, || Box::new(Equipped::kept_in_a_map().sliced(2, true)));
    tallied(Kind::Plain, 8, || Box::new(Equipped::pressed(30)));
    tallied(Kind::Plain, 8, || Box::new(Equipped::default().growing(0)));
}

#[test]
fn so_they_do_in_slices() {
    setups::in_slices(holds);
}

#[test]
fn so_they_do_over_sources_and_a_store() {
    setups::over_sources_and_a_store(holds);
    holds(Kind::Crashes, 8, || Box::new(Equipped::kept_in_a_map()));
}

#[test]
fn so_they_do_where_room_is_made_at_any_time() {
    holds(Kind::Plain, 4, || Box::new(Equipped::pressed(30)));
    holds(Kind::Plain, 8, || Box::new(Equipped::default().growing(0)));
    holds(Kind::Plain, 8, || Box::new(Equipped::spilling(false)));
}
