//! The memory bound with several shards: the phases of [`crate::bound`], and memory that goes from shard to shard.

use crate::bound::{self, BOUND, Draws, Watched, lines, rounds, share, value};
use crate::faults::Faults;
use crate::support::request;
use std::time::Instant;

const SHARDS: u16 = 3;

#[test]
fn keys_of_all_sizes_stay_within_the_bound() {
    bound::keys_of_all_sizes(SHARDS);
}

#[test]
fn without_eviction_writes_are_refused_and_everything_else_goes_on() {
    bound::no_eviction(SHARDS);
}

#[test]
fn timelines_and_the_replicas_they_are_made_of_come_and_go() {
    bound::timelines(SHARDS);
}

#[test]
fn clients_stay_within_their_share() {
    bound::many_clients(SHARDS);
}

#[test]
fn the_parts_add_up_to_what_the_system_reports() {
    bound::parts(SHARDS);
}

/// Plain keys that live together, by their tag.
fn key(tag: &str, at: u64) -> String {
    format!("{{{tag}}}{at}")
}

/// How many of so many keys are there.
fn count(watched: &Watched, tag: &str, keys: u64) -> u64 {
    let mut client = watched.server.client(2);
    let all: Vec<String> = (0..keys).map(|at| key(tag, at)).collect();
    // A request takes memory, too.
    let count = |keys| redis::cmd("EXISTS").arg(keys).query::<u64>(&mut client).unwrap();
    all.chunks(1000).map(count).sum()
}

#[test]
fn memory_goes_to_the_shard_that_is_written_to() {
    let mut watched = Watched::start(SHARDS, &["--memory-policy", "allkeys-lru"]);
    let bytes = 2000;
    // Each of the tags lives on one shard; with so many, every shard has some.
    let fill = |watched: &mut Watched, tag: &str, keys: u64| {
        watched.send(keys, 100, |at, _| {
            let key = key(tag, at);
            request(&[b"SET", key.as_bytes(), &value(&key, bytes)])
        })
    };
    let most = BOUND / bytes as u64;
    for tag in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(fill(&mut watched, tag, most / 4), 0, "everything could be evicted");
        watched.phase("keys of one tag, a quarter of the bound");
    }
    // One shard alone is written to: it gets more than it would if the bound were cut in three. How fast the others yield
    // depends on how often they have a turn, which a busy machine decides.
    let mut kept = 0;
    for round in 0..20 {
        assert_eq!(fill(&mut watched, "hot0", most * 2), 0, "{round}");
        watched.phase("keys of one shard, twice the bound");
        kept = count(&watched, "hot0", most * 2);
        if round >= 2 && kept > most / 3 {
            break;
        }
    }
    assert!(kept > most / 3, "{kept} of {most}: the others have not yielded");
    // And back, to whoever is written to next.
    assert_eq!(fill(&mut watched, "a", most), 0);
    assert_eq!(fill(&mut watched, "b", most), 0);
    watched.phase("keys of the others, as many as the bound has");
}

#[test]
fn a_value_that_fits_the_bound_is_taken_by_any_shard() {
    let mut watched = Watched::start(SHARDS, &["--memory-policy", "allkeys-lru"]);
    // Large values of everybody, so that no shard has as much as another lacks.
    for round in 0..share(40 * rounds()) {
        let refused = watched.send(6, 1, |at, _| {
            let key = format!("{{{at}}}{round}");
            request(&[b"SET", key.as_bytes(), &value(&key, 2_600_000)])
        });
        assert_eq!(refused, 0, "everything could be evicted");
    }
    watched.phase("values of 2.6 MB for every shard");
}

#[test]
fn who_has_nothing_to_evict_has_others_evict() {
    // What has no expiry stays; it is on one shard, and what may go on the others.
    let mut watched = Watched::start(SHARDS, &["--memory-policy", "volatile-lru"]);
    let bytes = 2000;
    let most = BOUND / bytes as u64;
    for tag in 0..9 {
        let refused = watched.send(most / 9, 100, |at, _| {
            let key = key(&format!("gone{tag}"), at);
            request(&[b"SET", key.as_bytes(), &value(&key, bytes), b"EX", b"1000"])
        });
        assert_eq!(refused, 0);
    }
    // Beside the program, which takes more of the bound where the machine is busy, there is room for more than these.
    let stay = most / 3;
    let refused = watched.send(stay, 100, |at, _| {
        let key = key("stays", at);
        request(&[b"SET", key.as_bytes(), &value(&key, bytes)])
    });
    let evicted: u64 = watched.info()["evicted_keys"].parse().unwrap();
    assert!(evicted < most / 9 * 9, "nothing was left that may go: {evicted}, {refused} refused");
    assert_eq!(refused, 0, "others had keys that may go");
    assert_eq!(count(&watched, "stays", stay), stay);
    watched.phase("keys that stay, beside others that go");
    // Until nothing else can go anywhere.
    let refused = watched.send(most, 100, |at, _| {
        let key = key("stays", at + stay);
        request(&[b"SET", key.as_bytes(), &value(&key, bytes)])
    });
    assert!(refused > most / 3, "{refused} of {most}");
    watched.phase("keys that stay, more than there is room for");
}

#[test]
fn clients_of_all_shards_write_at_the_same_time() {
    let mut watched = Watched::start(SHARDS, &["--memory-policy", "allkeys-lru"]);
    std::thread::scope(|scope| {
        for writer in 0..6u64 {
            let mut socket = watched.server.socket();
            scope.spawn(move || {
                let mut draws = Draws(writer);
                for round in 0..share(150 * rounds()) {
                    let len = if draws.below(10) == 0 { 400_000 } else { 4_000 };
                    let requests: Vec<u8> = (0..10)
                        .flat_map(|at| {
                            let key = format!("w{writer}|{round}|{at}");
                            request(&[b"SET", key.as_bytes(), &value(&key, len)])
                        })
                        .collect();
                    socket.send(&requests);
                    assert_eq!(lines(&mut socket, 10), vec!["+OK"; 10]);
                }
            });
        }
    });
    watched.phase("six writers at once");
}

/// Often no shard has anything to evict: all is on its way to disk, and comes back when it is there, however long that takes.
fn huge_values_go_to_disk(fault: Option<&str>, count: u64) {
    let (faults, folder) = (Faults::new(), tempfile::tempdir().unwrap());
    let path = folder.path().to_string_lossy().into_owned();
    let shards = SHARDS.to_string();
    let options = ["--memory", "96mb", "--memory-policy", "allkeys-lru", "--shards", &shards];
    let all = [&options[..], &["--data", &path]].concat();
    let server = faults.start(&all.iter().map(|word| String::from(*word)).collect::<Vec<_>>());
    let mut watched = Watched::watch(server);
    if let Some(fault) = fault {
        faults.set(fault);
    }
    for at in 0..count {
        let began = Instant::now();
        let refused = watched.send(1, 1, |_, draws| {
            let (key, len) = (format!("huge|{at}"), 500_000 + draws.below(2_000_000));
            request(&[b"SET", key.as_bytes(), &value(&key, len as usize)])
        });
        assert_eq!(refused, 0, "value {at}, after {:?}: {:?}", began.elapsed(), watched.info());
    }
    assert_eq!(watched.info()["evicted_clients"], "0");
}

#[test]
fn a_client_stays_while_what_it_has_written_goes_to_disk() {
    huge_values_go_to_disk(None, share(200 * rounds()));
}

#[test]
fn a_slow_disk_takes_its_time_and_refuses_nothing() {
    huge_values_go_to_disk(Some("slow"), share(40 * rounds()));
}

#[test]
fn joins_that_there_is_no_room_for_are_on_all_shards_or_on_none() {
    let watched = Watched::start(SHARDS, &[]);
    let mut client = watched.server.client(2);
    // Keys that stay take most of the bound.
    let mut filler = (0..).map(|at| format!("filler{at}"));
    let set = |key: &String, client: &mut redis::Connection| {
        redis::cmd("SET").arg(key).arg("x".repeat(20_000)).query::<()>(client).is_ok()
    };
    while set(&filler.next().expect("endless"), &mut client) {}
    let mut add = |at: u32| {
        let join = format!("out{at}|<user>|<id> = copy in|l{at}|<user>|<id>");
        redis::cmd("JOIN.ADD").arg(format!("j{at}")).arg(join).query::<redis::Value>(&mut client)
    };
    let refused: Vec<String> =
        (0..3000).filter_map(|at| add(at).err()).map(|why| why.to_string()).collect();
    // Each refusal is for want of memory, and not because an earlier join was left half installed.
    assert!(refused.iter().all(|why| why.contains("OOM")), "{:?}", refused.last());
    let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
    let all: Vec<redis::Value> = redis::cmd("JOIN.LIST").query(&mut client).unwrap();
    assert_eq!(all.len(), 3000 - refused.len());
    let join = "late|<a> = copy in|<a>";
    let () = redis::cmd("JOIN.ADD")
        .arg("late")
        .arg(join)
        .query::<redis::Value>(&mut client)
        .map(drop)
        .unwrap();
}
