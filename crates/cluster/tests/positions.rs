//! What a hub says of positions is what the engine beside it shows.

use headwater_base::source::{Change, FetchId};
use headwater_base::{KeyRange, Millis, Shard};
use headwater_cluster::{Event, Hub, Item, Positions};

const HOME: Shard = Shard(0);
const FOLLOWER: Shard = Shard(1);

/// Brings everything that `from` has to say to `to`, which does not look at it yet.
fn bring((from, me): (&mut Hub, Shard), to: &mut Hub) {
    from.take_packets().into_iter().for_each(|(_, packet)| to.receive(me, packet));
}

#[test]
fn changes_that_have_arrived_do_not_count_before_they_are_taken() {
    let mut home = Hub::new(HOME, 2, 1, Millis(0));
    let mut follower = Hub::new(FOLLOWER, 2, 1, Millis(0));
    follower.load(HOME, FetchId(0), KeyRange::all());
    bring((&mut follower, FOLLOWER), &mut home);
    for event in home.take_events() {
        if let Event::Load(asked) = event {
            home.loaded(&asked, Ok(Vec::new()));
        }
    }
    bring((&mut home, HOME), &mut follower);
    assert!(matches!(&*follower.take_events(), [Event::Loaded { .. }]));

    let change = Change { key: b"p|u".to_vec(), value: Some(b"1".to_vec()) };
    home.tell(FOLLOWER, Item::Change(change));
    let written = home.stamp();
    let mut after = Positions::default();
    after.reach(HOME, written);
    home.flush(true);
    bring((&mut home, HOME), &mut follower);
    assert!(follower.wait(&after, &[HOME]).is_some(), "the change is not applied");
    assert!(follower.positions().get(HOME) < written);

    assert!(matches!(&*follower.take_events(), [Event::Changed { .. }]));
    assert_eq!(follower.wait(&after, &[HOME]), None);
    assert_eq!(follower.positions().get(HOME), written);
}

#[test]
fn who_was_heard_is_not_given_up_before_it_is_listened_to() {
    let mut home = Hub::new(HOME, 2, 1, Millis(0));
    let mut follower = Hub::new(FOLLOWER, 2, 1, Millis(0));
    follower.load(HOME, FetchId(0), KeyRange::all());
    bring((&mut follower, FOLLOWER), &mut home);
    home.take_events();
    home.advance(Millis(1_000));
    bring((&mut home, HOME), &mut follower);
    follower.advance(Millis(100_000));
    assert!(follower.take_events().is_empty(), "the connection has not begun anew");
    follower.advance(Millis(200_000));
    assert!(follower.take_events().contains(&Event::Reset(HOME)));
}
