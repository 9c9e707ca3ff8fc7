//! Who tracks, watches and transacts at a node while the keys belong to owners at other nodes: changes arrive, and with an owner that is killed nothing
//! stays stale.

use crate::cluster::{ask, connect, text};
use crate::cluster_shards::{Cluster, OF};
use crate::cluster_views::names;
use crate::rest::Events;
use crate::support::PATIENCE;
use crate::tracking::Client;
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The owner that is killed is of this shard, and this node is the next one.
const LOST: usize = 1;
const NEXT: usize = 3;
const LOOK: Duration = Duration::from_millis(20);

type Pairs = BTreeMap<String, String>;

/// Waits until something is so.
fn until<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> Result<(), T>) {
    let began = Instant::now();
    while let Err(found) = look() {
        assert!(began.elapsed() < PATIENCE, "{what}: {found:?}");
        sleep(LOOK);
    }
}

/// The words of an answer or message.
fn words(message: &str) -> Vec<String> {
    let lines = message.split_terminator("\r\n");
    lines.filter(|line| !line.starts_with('$')).map(str::to_owned).collect()
}

/// A client that keeps what it reads, until it is told that it has changed.
struct Keeps {
    client: Client,
    kept: BTreeSet<String>,
}

impl Keeps {
    fn start(port: u16, how: &str) -> Self {
        let mut client = Client::connect(port, "3");
        assert_eq!(client.ask(&format!("CLIENT TRACKING ON{how}")), ["+OK\r\n"]);
        Self { client, kept: BTreeSet::new() }
    }

    /// It has read these keys, as far as it is told of them all the same.
    fn keep(&mut self, keys: &BTreeSet<String>) {
        self.kept.extend(keys.iter().cloned());
    }

    fn read(&mut self, keys: &BTreeSet<String>) {
        for key in keys {
            until(key, || {
                let mut is_read = false;
                let told = self.client.ask(&format!("GET {key}"));
                for message in &told {
                    if message.starts_with('>') {
                        self.hear(message);
                    } else if message.starts_with('$') {
                        self.kept.insert(key.clone());
                        is_read = true;
                    }
                }
                if is_read { Ok(()) } else { Err(told) }
            });
        }
    }

    fn hear(&mut self, message: &str) {
        let words = words(message);
        assert_eq!(words.get(1).map(String::as_str), Some("invalidate"), "{message}");
        // Without keys it is all of them.
        let is_all = words[2] == "_";
        self.kept.retain(|key| !is_all && !words.contains(key));
    }

    /// Waits until it keeps none of these any more.
    fn loses(&mut self, keys: &BTreeSet<String>) {
        until("it goes on to keep them", || {
            let told = self.client.come();
            told.iter().for_each(|message| self.hear(message));
            let left: Vec<String> = self.kept.intersection(keys).cloned().collect();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }
}

/// A client that has a copy of the range `w|`, and reads it again when it is told to.
struct Copies {
    client: Client,
    copy: Pairs,
    is_stale: bool,
}

impl Copies {
    fn start(port: u16) -> Self {
        let mut client = Client::connect(port, "3");
        until("it does not watch", || {
            let told = client.ask("RANGE.WATCH w| w}");
            if told[0].starts_with("*2") { Ok(()) } else { Err(told) }
        });
        Self { client, copy: Pairs::new(), is_stale: true }
    }

    fn apply(&mut self, message: &str) {
        let words = words(message);
        let pairs = |words: &[String]| -> Pairs {
            words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        };
        match words.get(1).map(String::as_str) {
            _ if message.starts_with('%') => {
                (self.copy, self.is_stale) = (pairs(&words[1..]), false);
            }
            Some("range-resync") => self.is_stale = true,
            Some("range-change") if words[4] == "set" => {
                self.copy.insert(words[5].clone(), words[6].clone());
            }
            Some("range-change") => _ = self.copy.remove(&words[5]),
            // A shard that has no owner.
            _ => assert!(message.starts_with("-CLUSTERDOWN"), "{message}"),
        }
    }

    fn becomes(&mut self, expected: &Pairs) {
        until("the copy is another", || {
            let told =
                if self.is_stale { self.client.ask("PREFIX w|") } else { self.client.come() };
            told.iter().for_each(|message| self.apply(message));
            let is_so = !self.is_stale && self.copy == *expected;
            if is_so { Ok(()) } else { Err((self.is_stale, self.copy.clone())) }
        });
    }
}

/// The same over HTTP.
struct Page {
    events: Events,
    copy: Pairs,
}

impl Page {
    fn start(cluster: &Cluster, at: usize) -> Self {
        let events = Events::begin_at(&cluster.said(at, "HTTP on "), "prefix=w%7C", &[]);
        Self { events, copy: Pairs::new() }
    }

    /// An event comes, or the test ends.
    fn becomes(&mut self, expected: &Pairs) {
        while self.copy != *expected {
            let event = self.events.next().unwrap_or_else(|| panic!("it ends: {:?}", self.copy));
            let string = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            let mut set = |pair: &serde_json::Value| {
                self.copy.insert(string(&pair["key"]), string(&pair["value"]));
            };
            match &*event.name {
                "snapshot" => event.data["entries"].as_array().unwrap().iter().for_each(set),
                "change" if event.data["op"] == "set" => set(&event.data),
                "change" => _ = self.copy.remove(event.data["key"].as_str().unwrap()),
                "resync" => self.copy.clear(),
                "live" => {}
                other => panic!("{other}: {:?}", event.data),
            }
        }
    }
}

/// Sets keys through a node, and what everybody's copy is to become.
fn set(cluster: &Cluster, at: usize, all: &mut Pairs, keys: &BTreeSet<String>, value: &str) {
    for key in keys {
        let _set = cluster.ask(at, &format!("SET {key} {value}"));
        all.insert(key.clone(), value.to_owned());
    }
}

/// A transaction that has read a key, and will write it.
fn begun(port: u16, key: &str) -> redis::Connection {
    let mut client = connect(port);
    until("it does not begin", || {
        let told = ask(&mut client, &format!("WATCH {key}"));
        let told = told.and_then(|_| ask(&mut client, &format!("GET {key}")));
        told.map(drop).map_err(|why| why.to_string())
    });
    ask(&mut client, "MULTI").unwrap();
    ask(&mut client, &format!("SET {key} mine")).unwrap();
    client
}

#[test]
fn changes_at_other_owners_are_told_and_nothing_is_stale_when_one_of_them_is_killed() {
    let Some(mut cluster) = Cluster::start_with(&OF, &["--http-port", "0"]) else { return };
    let of_shards: Vec<BTreeSet<String>> = names(&cluster, 'k', 3)
        .into_iter()
        .map(|names| names.into_iter().map(|name| format!("w|{name}|1")).collect())
        .collect();
    let keys: BTreeSet<String> = of_shards.iter().flatten().cloned().collect();
    let mut all = Pairs::new();
    set(&cluster, 2, &mut all, &keys, "old");
    let ports = [cluster.ports[0], cluster.ports[2]];
    let mut keep: Vec<_> = ports.map(|port| Keeps::start(port, "")).into();
    let mut hear: Vec<_> = ports.map(|port| Keeps::start(port, " BCAST PREFIX w|")).into();
    let mut copies: Vec<_> = ports.map(Copies::start).into();
    let mut pages: Vec<_> = [0, 2].map(|at| Page::start(&cluster, at)).into();
    let check_copies = |copies: &mut Vec<Copies>, pages: &mut Vec<Page>, all: &Pairs| {
        copies.iter_mut().for_each(|copy| copy.becomes(all));
        pages.iter_mut().for_each(|page| page.becomes(all));
    };
    keep.iter_mut().for_each(|client| client.read(&keys));
    check_copies(&mut copies, &mut pages, &all);

    hear.iter_mut().for_each(|client| client.keep(&keys));
    set(&cluster, 2, &mut all, &keys, "new");
    keep.iter_mut().chain(&mut hear).for_each(|client| client.loses(&keys));
    check_copies(&mut copies, &mut pages, &all);

    // Transactions of keys of another owner, before which somebody else writes.
    for of_shard in &of_shards {
        let key = of_shard.first().unwrap();
        let mut transaction = begun(ports[0], key);
        set(&cluster, 2, &mut all, &[key.clone()].into(), "between");
        assert_eq!(ask(&mut transaction, "EXEC").unwrap(), Value::Nil, "{key} was written");
        assert_eq!(text(&cluster.ask(0, &format!("GET {key}"))), "between");
    }
    keep.iter_mut().for_each(|client| client.read(&keys));
    hear.iter_mut().for_each(|client| client.keep(&keys));

    // An owner is killed, and its keys are written at once by way of the next one.
    let mut transactions: Vec<_> =
        of_shards[LOST].iter().map(|key| (key, begun(ports[0], key))).collect();
    cluster.kill(LOST);
    assert_eq!(cluster.await_owner(&[NEXT]), NEXT);
    let (written, unwritten) = (&of_shards[LOST], &of_shards[2]);
    set(&cluster, NEXT, &mut all, written, "late");
    keep.iter_mut().chain(&mut hear).for_each(|client| client.loses(written));
    check_copies(&mut copies, &mut pages, &all);
    for (key, transaction) in &mut transactions {
        let told = ask(transaction, "EXEC");
        assert!(matches!(told, Ok(Value::Nil) | Err(_)), "{key} was written: {told:?}");
        assert_eq!(text(&cluster.ask(0, &format!("GET {key}"))), "late");
    }
    // It goes on with the next owner, and went on with the others.
    keep.iter_mut().for_each(|client| client.read(&keys));
    hear.iter_mut().for_each(|client| client.keep(&keys));
    set(&cluster, 0, &mut all, written, "later");
    set(&cluster, 0, &mut all, unwritten, "later");
    let later = written | unwritten;
    keep.iter_mut().chain(&mut hear).for_each(|client| client.loses(&later));
    check_copies(&mut copies, &mut pages, &all);
    let mut transaction = begun(ports[0], written.first().unwrap());
    assert!(ask(&mut transaction, "EXEC").is_ok_and(|told| told != Value::Nil));
}
