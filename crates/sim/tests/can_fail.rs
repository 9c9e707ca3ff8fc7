//! The checks notice what nothing in the protocol can: a change that a packet does not say.

#[test]
fn changes_that_are_not_told_are_found() {
    let found = (0..40)
        .filter(|&seed| headwater_sim::run_with(seed, |faults| faults.cut = 200).is_err())
        .count();
    assert!(found >= 10, "only {found} of 40 seeds show it");
}
