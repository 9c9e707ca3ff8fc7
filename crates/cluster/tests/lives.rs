//! A shard that has begun a new life is told nothing that was meant for the one before.

use headwater_base::source::{Attributes, FetchId, Pair};
use headwater_base::{KeyRange, Millis};
use headwater_cluster::{Event, Hub};
use pair::{FOLLOWER, HOME, tell};

mod pair;

fn range(prefix: &str) -> KeyRange {
    KeyRange::prefix(prefix.as_bytes())
}

#[test]
fn an_answer_to_what_was_asked_in_an_earlier_life_is_none_to_what_is_asked_in_this_one() {
    let mut home = Hub::new(HOME, 2, 1, Millis(0));
    let mut earlier = Hub::new(FOLLOWER, 2, 1, Millis(0));
    earlier.load(HOME, FetchId(0), range("p|"));
    let events = tell((&mut earlier, FOLLOWER), &mut home);
    let [Event::Load(asked)] = &events[..] else { panic!("{events:?}") };

    // The next life asks for something else under the same number, which is lost on its way; then the answer comes, over the same connection as far as both know.
    let mut follower = Hub::new(FOLLOWER, 2, 2, Millis(0));
    follower.load(HOME, FetchId(0), range("s|"));
    follower.take_packets();
    home.loaded(asked, Ok(Vec::new()));
    let told = tell((&mut home, HOME), &mut follower);
    assert!(!told.iter().any(|it| matches!(it, Event::Loaded { .. })), "{told:?}");

    // Both begin anew, and what is asked for now is answered.
    let key =
        Pair { key: b"s|u|p".to_vec(), value: b"1".to_vec(), attributes: Attributes::default() };
    let mut given = Vec::new();
    for _ in 0..4 {
        for event in tell((&mut follower, FOLLOWER), &mut home) {
            if let Event::Load(asked) = event {
                assert_eq!(asked.range, range("s|"));
                home.loaded(&asked, Ok(vec![key.clone()]));
            }
        }
        for event in tell((&mut home, HOME), &mut follower) {
            if let Event::Loaded { answer, .. } = event {
                given.push(answer.expect("it is answered"));
            }
        }
    }
    assert_eq!(given, [vec![key]]);
}
