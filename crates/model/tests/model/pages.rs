//! Pages of tables that several joins give, most of them `auto`: reads equal recomputation after any history, whatever of a range is kept
//! when a part of it is read. Seeds as in `histories`.

use crate::setups;
use headwater_engine::{Engine, EngineError};
use headwater_model::check::{Kind, MakeSubject, assert_holds, wanted_histories};
use headwater_model::drive;
use headwater_model::equipped::Equipped;
use headwater_model::generate::{self, PAGED_FROM};
use headwater_model::history::Op;
use headwater_model::subject::{Plain, Subject};

/// Histories that every test run checks; `HEADWATER_HISTORIES` asks for more (or fewer).
const HISTORIES: u64 = 500;

fn holds(kind: Kind, share: u64, subject: MakeSubject) {
    assert_holds(kind, PAGED_FROM, wanted_histories(HISTORIES) / share, subject);
}

#[test]
fn pages_equal_recomputation() {
    holds(Kind::Plain, 1, || Box::new(Plain::default()));
}

#[test]
fn so_they_do_in_slices() {
    setups::in_slices(holds);
}

#[test]
fn so_they_do_over_sources_and_a_store() {
    setups::over_sources_and_a_store(holds);
}

#[test]
fn so_they_do_where_room_is_made_at_any_time() {
    holds(Kind::Plain, 4, || Box::new(Equipped::pressed(30)));
    holds(Kind::Plain, 8, || Box::new(Equipped::default().growing(0)));
}

/// How often joins that were dropped have chosen.
#[derive(Default)]
struct Chosen {
    engine: Plain,
    let_go: u64,
    kept_again: u64,
    computed: u64,
}

impl Subject for Chosen {
    fn engine(&mut self) -> &mut Engine {
        self.engine.engine()
    }

    fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        if let Some(join) = self.engine().join_report(name) {
            let count = |name| join.counters.iter().find(|known| known.0 == name).expect("it").1;
            self.let_go += count("ranges_let_go");
            self.kept_again += count("ranges_kept_again");
            self.computed += count("reads_computed");
        }
        self.engine.join_drop(name)
    }
}

/// What such histories come to is what they are for.
#[test]
fn these_histories_have_ranges_kept_and_let_go_and_read_pages_of_them() {
    let (mut chosen, mut pages) = (Chosen::default(), 0);
    for seed in PAGED_FROM..PAGED_FROM + 300 {
        let ops = generate::history(seed);
        pages += ops.iter().filter(|op| matches!(op, Op::Range { limit: Some(1..), .. })).count();
        chosen.engine = Plain::default();
        drive::run(&mut chosen, &ops).expect("the law holds");
    }
    let Chosen { let_go, kept_again, computed, .. } = chosen;
    let told =
        format!("{let_go} let go, {kept_again} kept again, {computed} computed, {pages} pages");
    assert!(let_go > 200 && kept_again > 50 && computed > 100 && pages > 2000, "{told}");
}
