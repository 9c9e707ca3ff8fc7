//! In what the same histories are tried: in slices, over sources, and over a store.

use headwater_model::check::{Kind, MakeSubject};
use headwater_model::equipped::Equipped;
use headwater_model::subject::Plain;

/// Has histories of a kind, one of so many, hold for a subject.
pub(crate) type Holds = fn(Kind, u64, MakeSubject);

pub(crate) fn in_slices(holds: Holds) {
    holds(Kind::Plain, 2, || Box::new(Equipped::default().sliced(2, true)));
    holds(Kind::Plain, 4, || Box::new(Equipped::default().sliced(9, true)));
    holds(Kind::Sources, 2, || Box::new(Equipped::default().sliced(2, false)));
    holds(Kind::Sources, 4, || Box::new(Equipped::default().sliced(7, false)));
}

pub(crate) fn over_sources_and_a_store(holds: Holds) {
    holds(Kind::Sources, 2, || Box::new(Plain::default()));
    holds(Kind::Plain, 4, || Box::new(Equipped::kept_in_a_map()));
    holds(Kind::Plain, 4, || Box::new(Equipped::kept_in_a_map().sliced(2, true)));
}
