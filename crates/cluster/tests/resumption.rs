//! What is lost with a connection is resumed from the last place that the home has told.

use headwater_base::source::{Change, FetchId, Position, StorePlace};
use headwater_base::{KeyRange, Millis};
use headwater_cluster::{Asked, Event, Hub, Item};
use pair::{FOLLOWER, HOME, bring, tell};

mod pair;

fn place(position: u64) -> StorePlace {
    StorePlace { position: Position(position), checksum: 7 * position }
}

fn hubs() -> (Hub, Hub) {
    (Hub::new(HOME, 2, 1, Millis(0)), Hub::new(FOLLOWER, 2, 1, Millis(0)))
}

/// Has the follower load everything, and be told a place.
fn follow(home: &mut Hub, follower: &mut Hub, reached: StorePlace) {
    follower.load(HOME, FetchId(0), KeyRange::all());
    let events = tell((follower, FOLLOWER), home);
    let [Event::Load(asked)] = &events[..] else { panic!("{events:?}") };
    home.loaded(asked, Ok(Vec::new()));
    home.advance(Millis(1_000));
    home.tell_place(reached);
    tell((home, HOME), follower);
}

/// The connection is lost and found; what the follower is told, and then the home, when everything is to be resumed.
fn reconnect(home: &mut Hub, follower: &mut Hub) -> Vec<Event> {
    for (hub, with) in [(&mut *home, FOLLOWER), (&mut *follower, HOME)] {
        hub.lost(with, Millis(2_000), 300);
        hub.take_packets();
    }
    home.take_events();
    let told = follower.take_events();
    let is_suspended = |it: &Event| matches!(it, Event::Suspended { home: HOME, .. });
    assert!(told.iter().any(is_suspended) && !told.contains(&Event::Found(HOME)));
    home.found(FOLLOWER, Millis(2_500));
    follower.found(HOME, Millis(2_500));
    tell((home, HOME), follower)
}

/// Has everything be asked for again; what the home hears.
fn resume(home: &mut Hub, follower: &mut Hub) -> Asked {
    follower.resume(HOME, KeyRange::all());
    let events = tell((follower, FOLLOWER), home);
    let asked = events.into_iter().find_map(|event| match event {
        Event::Load(asked) => Some(asked),
        _ => None,
    });
    asked.expect("a range is asked for")
}

#[test]
fn a_follower_names_the_last_place_until_all_is_resumed() {
    let (mut home, mut follower) = hubs();
    follow(&mut home, &mut follower, place(5));
    assert!(reconnect(&mut home, &mut follower).contains(&Event::Found(HOME)));
    let asked = resume(&mut home, &mut follower);
    assert_eq!(asked.since, Some(place(5)));
    let changes = Some(vec![Change { key: b"k".to_vec(), value: None }]);
    home.resumed(&asked, changes.clone());
    home.advance(Millis(3_000));
    assert!(home.is_place_due());
    home.tell_place(place(8));
    let told = tell((&mut home, HOME), &mut follower);
    let resumed = Event::Resumed { home: HOME, range: KeyRange::all(), changes };
    assert!(told.contains(&resumed), "{told:?}");
    // Another range was not resumed yet: it lacks what was written between the two places.
    reconnect(&mut home, &mut follower);
    assert_eq!(resume(&mut home, &mut follower).since, Some(place(5)));
    home.advance(Millis(4_000));
    home.tell_place(place(8));
    tell((&mut home, HOME), &mut follower);
    follower.end_resumption(HOME);
    reconnect(&mut home, &mut follower);
    assert_eq!(resume(&mut home, &mut follower).since, Some(place(8)));
}

#[test]
fn what_is_here_is_as_old_as_the_moment_when_the_home_was_last_heard() {
    let (mut home, mut follower) = hubs();
    follow(&mut home, &mut follower, place(5));
    let heard = |follower: &mut Hub| {
        let events = follower.take_events();
        let heard = events.into_iter().find_map(|event| match event {
            Event::Suspended { home: HOME, heard } => Some(heard),
            _ => None,
        });
        heard.expect("it is suspended")
    };
    follower.lost(HOME, Millis(2_000), 300);
    assert_eq!(heard(&mut follower), Millis(1_700));
    // That it is there again makes nothing younger before it was resumed.
    follower.found(HOME, Millis(2_500));
    assert_eq!(heard(&mut follower), Millis(1_700));
    follower.lost(HOME, Millis(3_000), 0);
    assert_eq!(heard(&mut follower), Millis(1_700));
    follower.found(HOME, Millis(3_500));
    follower.take_events();
    follower.end_resumption(HOME);
    follower.lost(HOME, Millis(9_000), 100);
    assert_eq!(heard(&mut follower), Millis(8_900));
}

/// What has come in the turn in which the connection is lost was heard: it is not less than what is here is said to be as old as.
#[test]
fn what_has_come_before_the_connection_was_lost_is_taken_in() {
    let (mut home, mut follower) = hubs();
    follow(&mut home, &mut follower, place(5));
    let change = Change { key: b"k".to_vec(), value: None };
    home.tell(FOLLOWER, Item::Change(change));
    home.flush(true);
    bring((&mut home, HOME), &mut follower);
    follower.lost(HOME, Millis(2_000), 0);
    let told = follower.take_events();
    let at = |is: &dyn Fn(&Event) -> bool| told.iter().position(is).expect("it is told");
    let changed = at(&|it| matches!(it, Event::Changed { home: HOME, .. }));
    let suspended = Event::Suspended { home: HOME, heard: Millis(2_000) };
    assert!(changed < at(&|it| *it == suspended), "{told:?}");
    // Behind the loss nothing is.
    home.tell(FOLLOWER, Item::Reset(KeyRange::all()));
    home.flush(true);
    bring((&mut home, HOME), &mut follower);
    follower.lost(HOME, Millis(2_100), 0);
    assert_eq!(follower.take_events(), []);
}

#[test]
fn what_comes_behind_something_that_is_lost_makes_nothing_younger() {
    let (mut home, mut follower) = hubs();
    follow(&mut home, &mut follower, place(5));
    home.advance(Millis(1_200));
    home.take_packets();
    home.tell_place(place(6));
    assert_eq!(home.take_packets().len(), 1, "it is lost");
    home.advance(Millis(1_800));
    follower.advance(Millis(1_800));
    let told = tell((&mut home, HOME), &mut follower);
    let suspended = Event::Suspended { home: HOME, heard: Millis(0) };
    assert!(told.contains(&suspended), "{told:?}");
}

#[test]
fn the_next_life_of_a_home_is_asked_from_the_same_place() {
    let (mut home, mut follower) = hubs();
    follow(&mut home, &mut follower, place(5));
    let mut next = Hub::new(HOME, 2, 2, Millis(2_000));
    next.found(FOLLOWER, Millis(2_000));
    reconnect(&mut next, &mut follower);
    assert_eq!(resume(&mut next, &mut follower).since, Some(place(5)));
}

#[test]
fn nothing_is_resumed_where_no_place_was_told_or_what_was_said_cannot_be() {
    let (mut home, mut follower) = hubs();
    follower.load(HOME, FetchId(0), KeyRange::all());
    tell((&mut follower, FOLLOWER), &mut home);
    follower.lost(HOME, Millis(10), 0);
    assert!(follower.take_events().contains(&Event::Reset(HOME)));
    let (mut home, mut follower) = hubs();
    follow(&mut home, &mut follower, place(5));
    follower.refuse(HOME);
    assert!(follower.take_events().contains(&Event::Reset(HOME)));
}

#[test]
fn followers_are_told_each_place_once_and_not_too_often() {
    let (mut home, mut follower) = hubs();
    assert!(!home.is_place_due(), "nobody follows anything");
    follow(&mut home, &mut follower, place(5));
    home.tell_place(place(6));
    assert_eq!(home.take_packets(), [], "a moment ago");
    home.advance(Millis(1_200));
    home.take_packets();
    home.tell_place(place(5));
    assert_eq!(home.take_packets(), [], "it was told");
    home.tell_place(place(6));
    assert_eq!(home.take_packets().len(), 1);
}
