//! What joins give while a home of their sources has no owner, and once the next one is there: it is never silently old, and nothing is loaded again that
//! the next owner can bring up to date.

use crate::cluster::{ask, connect, text};
use crate::cluster_shards::{Cluster, pairs};
use crate::support::PATIENCE;
use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
/// The owner that ends is of this shard.
const LOST: usize = 1;

/// The shard that is home of what a component places.
fn home(cluster: &Cluster, placing: &str) -> usize {
    let redis::Value::Int(slot) = cluster.ask(0, &format!("CLUSTER KEYSLOT {placing}")) else {
        panic!("no slot")
    };
    slot as usize / 5464
}

/// Names that begin with `letter`, so many of them at each shard.
pub(crate) fn names(cluster: &Cluster, letter: char, each: usize) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new(); 3];
    for number in 0.. {
        let name = format!("{letter}{number}");
        let of_home: &mut Vec<String> = &mut found[home(cluster, &name)];
        if of_home.len() < each {
            of_home.push(name);
        }
        if found.iter().all(|names| names.len() == each) {
            return found;
        }
    }
    unreachable!("there are names enough")
}

/// Timelines, and what they must hold.
struct Timelines {
    cluster: Cluster,
    users: Vec<Vec<String>>,
    posters: Vec<Vec<String>>,
    follows: BTreeSet<(String, String)>,
    posts: BTreeMap<(String, u32), String>,
}

impl Timelines {
    /// Users of each shard follow posters of all of them, but for the last user of each, who follows none of the shard that is lost.
    fn start() -> Option<Self> {
        let cluster = Cluster::start()?;
        cluster.define(0, &["JOIN.ADD", "timeline", TIMELINE]);
        let (users, posters) = (names(&cluster, 'u', 3), names(&cluster, 'a', 3));
        let (follows, posts) = (BTreeSet::new(), BTreeMap::new());
        let mut timelines = Self { cluster, users, posters, follows, posts };
        for user in timelines.users.concat() {
            let spares = timelines.users.iter().any(|names| names.last() == Some(&user));
            for (of, names) in timelines.posters.clone().into_iter().enumerate() {
                for poster in names.into_iter().filter(|_| !spares || of != LOST) {
                    let _set = timelines.cluster.ask(0, &format!("SET s|{user}|{poster} 1"));
                    timelines.follows.insert((user.clone(), poster));
                }
            }
        }
        (0..4).for_each(|time| timelines.post(2, time));
        Some(timelines)
    }

    /// Every poster posts, over the node.
    fn post(&mut self, at: usize, time: u32) {
        for poster in self.posters.concat() {
            let (key, words) = (format!("p|{poster}|{time:03}"), format!("{poster}-says-{time}"));
            let _set = self.cluster.ask(at, &format!("SET {key} {words}"));
            self.posts.insert((poster, time), words);
        }
    }

    /// What the timeline of a user must hold.
    fn of(&self, user: &str) -> BTreeMap<String, String> {
        let shown = |((poster, time), words): (&(String, u32), &String)| {
            let is_followed = self.follows.contains(&(user.to_owned(), poster.clone()));
            is_followed.then(|| (format!("t|{user}|{time:03}|{poster}"), words.clone()))
        };
        self.posts.iter().filter_map(shown).collect()
    }

    /// Reads all timelines over a node.
    fn check(&self, at: usize) {
        for user in self.users.concat() {
            let words = format!("PREFIX t|{user}|");
            self.cluster.expect((at, &words), pairs, &self.of(&user));
        }
    }

    /// A number in INFO of the node that owns a shard.
    fn figure(&self, at: usize, name: &str) -> u64 {
        let info = text(&self.cluster.ask(at, "INFO everything"));
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("{name} is in {info}")).trim().parse().unwrap()
    }
}

#[test]
fn warm_views_go_on_at_the_next_owner_without_loading_what_they_have() {
    let Some(mut timelines) = Timelines::start() else { return };
    timelines.check(0);
    // What was told behind the loads has come when this is shown.
    timelines.post(0, 4);
    timelines.check(0);
    let others = [0, 2];
    let loads = |timelines: &Timelines| others.map(|at| timelines.figure(at, "shards_loads_sent"));
    let before = loads(&timelines);
    assert!(before.iter().all(|loads| *loads > 0), "{before:?}");
    timelines.cluster.kill(LOST);
    timelines.cluster.await_owner(&[3]);
    timelines.post(2, 5);
    let gone = timelines.posters[LOST][0].clone();
    let _removed = timelines.cluster.ask(0, &format!("DEL p|{gone}|002"));
    timelines.posts.remove(&(gone, 2));
    for at in [0, 2, 3] {
        timelines.check(at);
        assert_eq!(timelines.cluster.ask(at, "VERIFY t| t}"), redis::Value::Array(Vec::new()));
    }
    assert_eq!(loads(&timelines), before, "nothing is loaded again");
    for at in others {
        let resumed = timelines.figure(at, "ranges_resumed");
        assert_eq!((resumed, timelines.figure(at, "ranges_not_resumed")), (3, 0), "node {at}");
    }
    // Changes of ranges that were resumed are told on as before.
    timelines.post(0, 6);
    timelines.check(2);
    assert_eq!(loads(&timelines), before);
}

#[test]
fn views_of_a_home_without_an_owner_name_it_and_the_others_go_on() {
    let Some(mut timelines) = Timelines::start() else { return };
    timelines.check(0);
    [3, LOST].into_iter().for_each(|at| timelines.cluster.kill(at));
    let (relies, spares) = (timelines.users[0][0].clone(), timelines.users[0][2].clone());
    let mut client = connect(timelines.cluster.ports[0]);
    let began = Instant::now();
    // Until the connection is known to be lost it may answer, with what it has.
    let why = loop {
        match ask(&mut client, &format!("PREFIX t|{relies}|")) {
            Err(why) => break why,
            Ok(given) => assert_eq!(pairs(&given), timelines.of(&relies)),
        }
        assert!(began.elapsed() < PATIENCE, "it goes on");
        sleep(Duration::from_millis(20));
    };
    assert_eq!(why.code(), Some("CLUSTERDOWN"), "{why}");
    assert!(why.to_string().contains("shard 1 has no owner"), "{why}");
    // Again and again, and at once from then on.
    for _ in 0..3 {
        let again = ask(&mut client, &format!("PREFIX t|{relies}|")).unwrap_err();
        assert_eq!(again.code(), Some("CLUSTERDOWN"), "{again}");
    }
    let post = format!("SET p|{}|009 new", timelines.posters[2][0]);
    ask(&mut client, &post).unwrap();
    timelines.posts.insert((timelines.posters[2][0].clone(), 9), String::from("new"));
    let given = ask(&mut client, &format!("PREFIX t|{spares}|")).unwrap();
    assert_eq!(pairs(&given), timelines.of(&spares));
    timelines.cluster.begin(LOST);
    timelines.cluster.await_owner(&[LOST]);
    for at in [0, LOST, 2] {
        timelines.check(at);
    }
}

#[test]
fn reads_that_accept_what_is_older_go_on_without_the_home() {
    let Some(mut timelines) = Timelines::start() else { return };
    timelines.check(0);
    timelines.post(0, 4);
    timelines.check(0);
    let relies = timelines.users[0][0].clone();
    let unread = names(&timelines.cluster, 'z', 1)[LOST][0].clone();
    // One has written at the home that is lost, and would see that, if it could.
    let mut client = connect(timelines.cluster.ports[0]);
    ask(&mut client, &format!("SET p|{unread}|000 unread")).unwrap();
    [3, LOST].into_iter().for_each(|at| timelines.cluster.kill(at));
    let prefix = format!("PREFIX t|{relies}|");
    let began = Instant::now();
    while ask(&mut client, &prefix).is_ok() {
        assert!(began.elapsed() < PATIENCE, "it goes on");
        sleep(Duration::from_millis(20));
    }
    let accepting = format!("{prefix} STALE 86400000");
    let refused = |client: &mut redis::Connection, words: &str| {
        let why = ask(client, words).unwrap_err();
        assert_eq!(why.code(), Some("CLUSTERDOWN"), "{words}: {why}");
        assert!(why.to_string().contains("shard 1 has no owner"), "{words}: {why}");
    };
    for at in [0, 2] {
        // One of the nodes passes it on.
        let mut client = connect(timelines.cluster.ports[at]);
        let given = ask(&mut client, &accepting).unwrap();
        assert_eq!(pairs(&given), timelines.of(&relies), "over node {at}");
        let count = ask(&mut client, &format!("{accepting} COUNT")).unwrap();
        assert_eq!(count, redis::Value::Int(timelines.of(&relies).len() as i64));
        for old in [String::new(), String::from(" STALE 0"), String::from(" STALE 1")] {
            refused(&mut client, &format!("{prefix}{old}"));
        }
    }
    // What others have done is in it, and others do not see it.
    let post = format!("SET p|{}|009 new", timelines.posters[2][0]);
    ask(&mut client, &post).unwrap();
    timelines.posts.insert((timelines.posters[2][0].clone(), 9), String::from("new"));
    assert_eq!(pairs(&ask(&mut client, &accepting).unwrap()), timelines.of(&relies));
    ask(&mut client, "MULTI").unwrap();
    ask(&mut client, &accepting).unwrap();
    let within = ask(&mut client, "EXEC").unwrap();
    let redis::Value::Array(within) = within else { panic!("{within:?}") };
    assert_eq!(pairs(&within[0]), timelines.of(&relies));
    refused(&mut client, &prefix);
    let explained = ask(&mut client, &format!("EXPLAIN.RANGE t|{relies}| t|{relies}}}")).unwrap();
    assert!(format!("{explained:?}").contains("waits for shard 1, last heard"), "{explained:?}");
    // What was not loaded is not here, and the keys of the shard itself are nowhere.
    ask(&mut client, &format!("SET s|{relies}|{unread} 1")).unwrap();
    refused(&mut client, &accepting);
    ask(&mut client, &format!("DEL s|{relies}|{unread}")).unwrap();
    assert_eq!(pairs(&ask(&mut client, &accepting).unwrap()), timelines.of(&relies));
    let whole = ask(&mut client, "PREFIX t| STALE 86400000").unwrap_err();
    assert_eq!(whole.code(), Some("CLUSTERDOWN"), "{whole}");
    timelines.cluster.begin(LOST);
    timelines.cluster.await_owner(&[LOST]);
    timelines.post(0, 7);
    for at in [0, LOST, 2] {
        timelines.check(at);
        let given = timelines.cluster.ask(at, &accepting);
        assert_eq!(pairs(&given), timelines.of(&relies), "it is as fresh as any");
        assert_eq!(timelines.cluster.ask(at, "VERIFY t| t}"), redis::Value::Array(Vec::new()));
    }
}
