//! What a hub says of positions is what the engine beside it shows.

use headwater_base::source::{Change, FetchId};
use headwater_base::{KeyRange, Millis};
use headwater_cluster::{Event, Hub, Item, Positions};
use pair::{FOLLOWER, HOME, bring, tell};

mod pair;

#[test]
fn changes_that_have_arrived_do_not_count_before_they_are_taken() {
    let mut home = Hub::new(HOME, 2, 1, Millis(0));
    let mut follower = Hub::new(FOLLOWER, 2, 1, Millis(0));
    follower.load(HOME, FetchId(0), KeyRange::all());
    for event in tell((&mut follower, FOLLOWER), &mut home) {
        if let Event::Load(asked) = event {
            home.loaded(&asked, Ok(Vec::new()));
        }
    }
    assert!(matches!(&*tell((&mut home, HOME), &mut follower), [Event::Loaded { .. }]));

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

/// Has both hubs hear all that the other has said, until neither says more; what the follower is told.
fn talk(home: &mut Hub, follower: &mut Hub) -> Vec<Event> {
    let mut told = Vec::new();
    loop {
        let before = told.len();
        bring((follower, FOLLOWER), home);
        let asked = home.take_events();
        for event in &asked {
            if let Event::Load(asked) = event {
                home.loaded(asked, Ok(Vec::new()));
            }
        }
        home.flush(true);
        bring((home, HOME), follower);
        told.extend(follower.take_events());
        if asked.is_empty() && told.len() == before {
            return told;
        }
    }
}

#[test]
fn loads_wait_for_a_new_connection_and_fail_where_there_is_none_for_long() {
    let mut home = Hub::new(HOME, 2, 1, Millis(0));
    let mut follower = Hub::new(FOLLOWER, 2, 1, Millis(0));
    let (one, other) = (FetchId(0), FetchId(1));
    follower.load(HOME, one, KeyRange::all());
    assert_eq!(talk(&mut home, &mut follower).len(), 1);
    let written = home.stamp();
    home.flush(true);
    let mut after = Positions::default();
    after.reach(HOME, written);
    let wait = follower.wait(&after, &[HOME]).expect("it has not been told");
    follower.load(HOME, other, KeyRange::all());

    home.lost(FOLLOWER, Millis(10), 0);
    follower.lost(HOME, Millis(10), 0);
    let told = follower.take_events();
    assert!(told.contains(&Event::Reset(HOME)) && told.contains(&Event::Settled(wait)));
    assert_eq!(follower.wait(&after, &[HOME]), None, "nothing is here of it");
    assert!(home.take_events().contains(&Event::Left(FOLLOWER)));
    home.take_packets();
    follower.take_packets();
    // What is said meanwhile is said to nobody.
    follower.give_up_loads(Millis(3_009));
    follower.advance(Millis(3_009));
    assert!(follower.take_events().is_empty());

    home.found(FOLLOWER, Millis(3_009));
    follower.found(HOME, Millis(3_009));
    follower.give_up_loads(Millis(9_000));
    let told = talk(&mut home, &mut follower);
    let loaded = |fetch| Event::Loaded { home: HOME, fetch, answer: Ok(Vec::new()) };
    assert!(told.contains(&loaded(other)), "{told:?}");
    assert!(!told.contains(&loaded(one)), "it is not asked for any more");
    assert!(follower.positions().get(HOME) >= written);

    follower.lost(HOME, Millis(10_000), 0);
    follower.load(HOME, one, KeyRange::all());
    follower.take_events();
    follower.give_up_loads(Millis(13_000));
    let failed = follower.take_events();
    assert!(
        matches!(&failed[..], [Event::Loaded { fetch, answer: Err(why), .. }]
            if *fetch == one && (&*why.code, &*why.text) == ("CLUSTERDOWN", "shard 0 has no owner that can be reached")),
        "{failed:?}"
    );
}
