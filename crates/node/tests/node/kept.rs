//! Every command that writes, over keys that a store on disk keeps, of which any may be in memory or not: it waits before
//! its first write or not at all, and what comes of it is what comes of it where everything is in memory.

use headwater_base::source::{Attributes, BaseStore, FetchId, Loaded, Pair, Position};
use headwater_base::stream_records::{
    StreamHead, is_stream_record, stream_block, stream_record, stream_record_offset, stream_records,
};
use headwater_base::{KeyRange, Millis};
use headwater_command::{Command, OwnedArgs};
use headwater_engine::{Policy, TableOptions};
use headwater_node::{Node, Outcome, Settings};
use headwater_protocol::resp::{Encoder, Version, decode, find};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const NOW: u64 = 1_000_000;

/// A store that is a map.
#[derive(Clone, Debug, Default)]
struct Disk {
    pairs: BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>,
    /// Operations that it was told of.
    position: u64,
    asked: Vec<(FetchId, KeyRange)>,
}

#[derive(Clone, Debug, Default)]
struct Store(Rc<RefCell<Disk>>);

impl Store {
    fn next(&self) -> Position {
        self.0.borrow_mut().position += 1;
        Position(self.0.borrow().position)
    }

    fn position(&self) -> u64 {
        self.0.borrow().position
    }

    fn pairs_in(&self, wanted: &dyn Fn(&[u8]) -> bool) -> Vec<Pair> {
        let disk = self.0.borrow();
        let inside = disk.pairs.iter().filter(|(key, _)| wanted(key));
        let pair = |(key, (value, attributes)): (&Vec<u8>, &(Vec<u8>, Attributes))| Pair {
            key: key.clone(),
            value: value.clone(),
            attributes: *attributes,
        };
        inside.map(pair).collect()
    }

    /// Answers what was asked.
    fn answer(&self, node: &mut Node) {
        let asked = std::mem::take(&mut self.0.borrow_mut().asked);
        assert!(!asked.is_empty(), "it waits for nothing");
        for (fetch, range) in asked {
            let position = Position(self.position());
            let pairs = self.pairs_in(&|key| range.contains(key));
            node.engine_mut().loaded(fetch, Ok(Loaded { position, pairs, known: None }));
        }
        node.engine_mut().take_effects();
    }
}

impl BaseStore for Store {
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position {
        let value = parts.collect::<Vec<_>>().concat();
        self.0.borrow_mut().pairs.insert(key.to_vec(), (value, attributes));
        self.next()
    }
    fn remove(&mut self, key: &[u8]) -> Position {
        self.0.borrow_mut().pairs.remove(key);
        self.next()
    }
    fn remove_range(&mut self, range: &KeyRange) -> Position {
        self.0.borrow_mut().pairs.retain(|key, _| !range.contains(key));
        self.next()
    }
    fn clear(&mut self) -> Position {
        self.0.borrow_mut().pairs.clear();
        self.next()
    }
    fn note_time(&mut self, _now: Millis) {}

    fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        !self.0.borrow().pairs.keys().any(|key| range.contains(key))
    }
    fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        self.0.borrow_mut().asked.push((fetch, range.clone()));
    }
    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        _bytes_max: u64,
    ) -> Result<Vec<Pair>, String> {
        Ok(self.pairs_in(wanted))
    }
    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// What is there before: a number, a text, one that expires, and one in another table.
const BEFORE: &[&[&str]] = &[
    &["SET", "a|g|1", "1"],
    &["SET", "a|g|2", "two"],
    &["SET", "a|h|3", "three", "PXAT", "2000000"],
    &["SET", "b|g|1", "other"],
    &["SET", "plain", "7"],
];
const KEYS: [&str; 5] = ["a|g|1", "a|g|2", "a|h|3", "b|g|1", "plain"];
const JOIN: &[&str] = &["JOIN.ADD", "j", "j|<g>|<n> = check b|<g>|<m> copy a|<g>|<n>"];

/// Commands that write, most of them of several keys.
const COMMANDS: &[&[&str]] = &[
    &["MSET", "a|g|1", "x", "a|h|3", "y", "a|new|1", "z"],
    &["MSETNX", "a|new|1", "x", "a|g|2", "y", "a|new|2", "z"],
    &["MSETNX", "a|new|1", "x", "b|new|1", "y", "c|new", "z"],
    &["DEL", "a|g|1", "b|g|1", "a|h|3", "nothing", "plain"],
    &["DEL", "a|g|1", "a|g|1", "b|g|1", "b|g|1"],
    &["DEL", "a|absent|1", "a|g|2", "a|absent|1"],
    &["UNLINK", "plain", "a|h|3", "a|g|2"],
    &["RANGE.DEL", "a|g|0", "a|g|9"],
    &["RANGE.DEL", "a|", "c"],
    &["RANGE.DEL", "", ""],
    &["RENAME", "a|g|1", "b|g|1"],
    &["RENAME", "a|h|3", "a|h|3"],
    &["RENAME", "a|h|3", "a|new|1"],
    &["RENAME", "a|absent|1", "a|g|1"],
    &["RENAMENX", "a|g|1", "b|g|1"],
    &["RENAMENX", "a|g|1", "b|g|2"],
    &["COPY", "a|g|1", "b|g|1"],
    &["COPY", "a|h|3", "b|g|7"],
    &["COPY", "a|g|2", "plain", "REPLACE"],
    &["GETDEL", "a|g|1"],
    &["GETSET", "a|g|2", "new"],
    &["GETEX", "a|g|2", "PX", "5000"],
    &["GETEX", "a|g|2", "PXAT", "1"],
    &["SET", "a|g|1", "new"],
    &["SET", "a|g|1", "new", "GET"],
    &["SET", "a|h|3", "new", "KEEPTTL"],
    &["SET", "a|g|1", "new", "PXAT", "1"],
    &["SET", "a|absent|1", "new", "PXAT", "1"],
    &["SET", "a|absent|1", "new", "NX"],
    &["SET", "a|absent|1", "new", "XX"],
    &["SETNX", "a|g|1", "new"],
    &["SETEX", "a|g|1", "100", "new"],
    &["INCR", "a|g|1"],
    &["INCR", "a|g|2"],
    &["INCRBYFLOAT", "plain", "0.5"],
    &["APPEND", "a|h|3", " and more"],
    &["SETRANGE", "a|g|2", "5", "x"],
    &["EXPIRE", "a|g|1", "100"],
    &["PEXPIREAT", "a|g|1", "1"],
    &["PERSIST", "a|h|3"],
    &["FLUSHALL"],
];

/// Runs a command until it is answered: its answer, and how often it waited. What waits has told the store nothing.
fn run(node: &mut Node, store: &Store, words: &[&str]) -> (String, usize) {
    let request: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
    let spec = find(request.args()).expect("a command");
    let Ok(Command::Data(data)) = decode(spec, request.args()) else { panic!("{words:?}") };
    for waits in 0.. {
        let (before, mut out) = (store.position(), Vec::new());
        match node.execute(&data, &mut Encoder::new(&mut out, Version::Resp2)) {
            Outcome::Done => return (String::from_utf8(out).expect("text"), waits),
            Outcome::Waiting(_) => {
                assert_eq!((store.position(), out.len()), (before, 0), "{words:?} waits too late");
                store.answer(node);
            }
            outcome => panic!("nothing here is sliced: {outcome:?}"),
        }
    }
    unreachable!()
}

/// Loads what a command needs.
fn preload(node: &mut Node, store: &Store, words: &[&str]) {
    let request: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
    let spec = find(request.args()).expect("a command");
    let Ok(Command::Data(data)) = decode(spec, request.args()) else { panic!("{words:?}") };
    let before = store.position();
    while node.preload(&data).is_some() {
        store.answer(node);
    }
    assert_eq!(store.position(), before, "{words:?} is not executed yet");
}

fn node_over(store: &Store) -> Node {
    let mut node = Node::new(Settings::default());
    // And what a store that holds streams names.
    let tables = [b"a".to_vec(), b"b".to_vec(), b"st".to_vec(), b"\0stream".to_vec()];
    let keeps = node.engine_mut().set_base_store(Box::new(store.clone()), &tables, true);
    keeps.expect("names of tables");
    node.advance(Millis(NOW));
    node
}

/// A store with what is there before.
fn filled() -> Store {
    let store = Store::default();
    let mut node = node_over(&store);
    for words in BEFORE {
        run(&mut node, &store, words);
    }
    store
}

/// A node that starts with the store, to which reads have brought the keys of `mask`; with a join whose range
/// is materialized, or not.
fn started(filled: &Store, mask: usize, joined: bool) -> (Node, Store) {
    let store = Store(Rc::new(RefCell::new(filled.0.borrow().clone())));
    let mut node = node_over(&store);
    for (at, key) in KEYS.iter().enumerate() {
        if mask & (1 << at) != 0 {
            run(&mut node, &store, &["GET", key]);
        }
    }
    if joined {
        run(&mut node, &store, JOIN);
        run(&mut node, &store, &["PREFIX", "j|g|"]);
        // What was loaded for the join is forgotten again, in part.
        for draw in 0..mask as u64 {
            node.engine_mut().evict_any(draw);
        }
    }
    (node, store)
}

/// What the store holds, with expiries.
fn held(store: &Store) -> BTreeMap<Vec<u8>, (Vec<u8>, Attributes)> {
    store.0.borrow().pairs.clone()
}

#[test]
fn commands_wait_before_their_first_write_or_not_at_all() {
    let filled = filled();
    let mut waited = 0;
    for words in COMMANDS {
        let (mut plain, all) = started(&filled, usize::MAX, false);
        let (answer, _) = run(&mut plain, &all, words);
        for mask in 0..1 << KEYS.len() {
            for joined in [false, true] {
                let (mut node, store) = started(&filled, mask, joined);
                let (given, waits) = run(&mut node, &store, words);
                assert_eq!(given, answer, "{words:?}, {mask:b}, {joined}");
                assert_eq!(held(&store), held(&all), "{words:?}, {mask:b}, {joined}");
                assert_eq!(run(&mut node, &store, &["VERIFY", "", ""]).0, "*0\r\n");
                waited += waits;
            }
        }
    }
    assert!(waited > 1000, "they have something to wait for: {waited}");
}

/// Commands about two streams, the first of which has two parts, and about a value beside them.
const STREAM_COMMANDS: &[&[&str]] = &[
    &["STREAM.APPEND", "st|1", "more"],
    &["STREAM.APPEND", "st|2", "more"],
    &["STREAM.APPEND", "st|3", "to a value"],
    &["STREAM.APPEND", "st|new", "first"],
    &["STREAM.READ", "st|1", "0", "10"],
    &["STREAM.READ", "st|1", "262140", "4"],
    &["STREAM.READ", "st|1", "262144", "1000"],
    &["STREAM.READ", "st|1", "400000", "1"],
    &["STREAM.READ", "st|absent", "0", "1"],
    &["STREAM.READ", "st|3", "0", "1"],
    &["STREAM.TRIM", "st|1", "10"],
    &["STREAM.TRIM", "st|1", "262144"],
    &["STREAM.TRIM", "st|1", "300000"],
    &["STREAM.LEN", "st|1"],
    &["TYPE", "st|1"],
    &["GET", "st|1"],
    &["GETDEL", "st|1"],
    &["STRLEN", "st|2"],
    &["APPEND", "st|1", "no stream's"],
    &["SET", "st|1", "a value"],
    &["SET", "st|2", "a value", "NX"],
    &["MSET", "st|1", "a value", "st|2", "another"],
    &["DEL", "st|1", "st|2", "st|3"],
    &["RANGE.DEL", "st|1", "st|2"],
    &["RANGE.DEL", "", ""],
    &["RENAME", "st|1", "st|2"],
    &["RENAME", "st|2", "st|1"],
    &["RENAME", "st|2", "st|3"],
    &["RENAME", "st|3", "st|1"],
    &["RENAME", "st|1", "plain-stream"],
    &["COPY", "st|1", "st|2", "REPLACE"],
    &["COPY", "st|2", "st|1", "REPLACE"],
    &["COPY", "st|3", "st|1", "REPLACE"],
    &["COPY", "st|1", "st|4"],
    &["EXPIRE", "st|1", "100"],
    &["PEXPIREAT", "st|1", "1"],
    &["PERSIST", "st|2"],
    &["FLUSHALL"],
    &["FLUSHDB"],
];

/// What brings the heads of streams, or parts of them, into memory.
const STREAM_READS: [&[&str]; 5] = [
    &["TYPE", "st|1"],
    &["STREAM.READ", "st|1", "0", "1"],
    &["STREAM.READ", "st|1", "262144", "1"],
    &["STREAM.READ", "st|2", "0", "1"],
    &["GET", "st|3"],
];

/// Takes the records out that are left of streams which were replaced unseen.
fn without_strays(store: &Store) -> BTreeMap<Vec<u8>, (Vec<u8>, Attributes)> {
    let mut all = held(store);
    let strays = check_heads(store, &|| String::from("of a stream that is there"));
    all.retain(|key, _| !strays.contains_key(key));
    all
}

/// No bytes of a stream are left that is not there, and none is missing.
fn check_records(store: &Store, what: &dyn Fn() -> String) {
    assert_eq!(check_heads(store, what).len(), 0, "{}: records of no stream", what());
}

/// Of no stream any bytes are missing; what is left of others.
fn check_heads(
    store: &Store,
    what: &dyn Fn() -> String,
) -> BTreeMap<Vec<u8>, (Vec<u8>, Attributes)> {
    let mut rest = held(store);
    rest.retain(|key, _| is_stream_record(key));
    for (key, (head, attributes)) in held(store) {
        if !attributes.is_stream {
            continue;
        }
        let StreamHead { start, end, .. } = StreamHead::decode(&head).expect("a head");
        let mut at = stream_block(start);
        for record in rest.keys().cloned().collect::<Vec<_>>() {
            if !stream_records(&key, 0, None).contains(&record) {
                continue;
            }
            let (bytes, _) = rest.remove(&record).expect("it is there");
            let offset = stream_record_offset(&record).expect("an offset");
            assert!(offset >= at && offset <= start.max(at), "{}: a gap at {at}", what());
            at = offset + bytes.len() as u64;
        }
        assert_eq!(at.max(start), end, "{}", what());
    }
    rest
}

#[test]
fn streams_on_disk_are_the_same_whatever_of_them_is_in_memory() {
    let filled = filled();
    let mut node = node_over(&filled);
    let long = "0123456789abcdef".repeat(300_000 / 16);
    let before: [&[&str]; 4] = [
        &["STREAM.APPEND", "st|1", &long],
        &["STREAM.APPEND", "st|2", "short"],
        &["PEXPIREAT", "st|2", "2000000"],
        &["SET", "st|3", "a value"],
    ];
    for words in before {
        run(&mut node, &filled, words);
    }
    let mut waited = 0;
    for words in STREAM_COMMANDS {
        let mut expected = None;
        for mask in (0..1 << STREAM_READS.len()).rev() {
            let (mut node, store) = started(&filled, 0, false);
            for (_, read) in STREAM_READS.iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0)
            {
                run(&mut node, &store, read);
            }
            let (answer, waits) = run(&mut node, &store, words);
            let what = || format!("{words:?}, {mask:b}");
            // A value takes the place of a stream without a look at what was there.
            if !matches!(words[0], "SET" | "MSET" | "RENAME" | "COPY") {
                check_records(&store, &what);
            }
            let given = (answer, without_strays(&store));
            // What is left of one is no part of another.
            run(&mut node, &store, &["DEL", "st|1", "st|2"]);
            for key in ["st|1", "st|2"] {
                run(&mut node, &store, &["STREAM.APPEND", key, "another"]);
            }
            check_records(&store, &what);
            assert_eq!(given, *expected.get_or_insert(given.clone()), "{}", what());
            waited += waits;
        }
    }
    assert!(waited > 500, "they have something to wait for: {waited}");
}

/// How many records there are, and the bytes of the stream that they are of.
fn records(store: &Store, key: &[u8]) -> (usize, Vec<u8>) {
    let range = stream_records(key, 0, None);
    let held = held(store);
    let of_stream = held.iter().filter(|(name, _)| range.contains(name));
    let values: Vec<&[u8]> = of_stream.map(|(_, (value, _))| &value[..]).collect();
    (values.len(), values.concat())
}

#[test]
fn many_short_appends_are_few_records() {
    let store = Store::default();
    let mut node = node_over(&store);
    let mut expected = Vec::new();
    for at in 0..300_000_usize {
        // Memory lets go of the stream now and then, and others are served.
        if at % 7001 == 7000 {
            node = node_over(&store);
        }
        let byte = [b'a' + (at % 23) as u8];
        expected.extend_from_slice(&byte);
        let text = std::str::from_utf8(&byte).expect("ASCII");
        run(&mut node, &store, &["STREAM.APPEND", "st|1", text]);
    }
    check_records(&store, &|| String::from("after all appends"));
    let (count, bytes) = records(&store, b"st|1");
    assert!(bytes == expected && (2..=3 * 1024).contains(&count), "{count} records");
    // A trim that moves into another block takes the records of those before.
    run(&mut node, &store, &["STREAM.TRIM", "st|1", "262143"]);
    assert_eq!(records(&store, b"st|1").1.len(), 300_000);
    run(&mut node, &store, &["STREAM.TRIM", "st|1", "262200"]);
    check_records(&store, &|| String::from("after the trim"));
    assert_eq!(records(&store, b"st|1").1, expected[262_144..]);
    let mut node = node_over(&store);
    let (read, waits) = run(&mut node, &store, &["STREAM.READ", "st|1", "262200", "10"]);
    assert!(
        waits == 2
            && read.ends_with(&format!(
                "{}\r\n",
                String::from_utf8_lossy(&expected[262_200..262_210])
            )),
        "{read}"
    );
}

#[test]
fn what_was_evicted_before_a_stream_was_kept_is_not_promised() {
    let store = filled();
    let mut node = node_over(&store);
    for words in [&["TABLE.SET", "u", "KEEP", "NO"][..], &["STREAM.APPEND", "u|1", "evicted"]] {
        run(&mut node, &store, words);
    }
    let engine = node.engine_mut();
    engine.set_eviction_policy(Policy::named("allkeys-lru").expect("a policy"));
    engine.set_memory_limit(Some(1));
    while node.engine_mut().evicted().keys == 0 {
        assert!(node.engine_mut().evict_one(), "streams may go");
    }
    node.engine_mut().set_memory_limit(None);
    run(&mut node, &store, &["TABLE.SET", "u", "KEEP", "YES"]);
    assert_eq!(run(&mut node, &store, &["STREAM.APPEND", "u|1", "kept"]).0, ":11\r\n");
    let mut node = node_over(&store);
    run(&mut node, &store, &["TABLE.SET", "u", "KEEP", "YES"]);
    let (read, _) = run(&mut node, &store, &["STREAM.READ", "u|1", "7", "9"]);
    assert_eq!(read, "$4\r\nkept\r\n");
    let (gone, _) = run(&mut node, &store, &["STREAM.READ", "u|1", "0", "9"]);
    assert!(gone.starts_with("-TRIMMED"), "{gone}");
}

#[test]
fn keys_of_records_are_not_for_clients() {
    let store = filled();
    let mut node = node_over(&store);
    run(&mut node, &store, &["STREAM.APPEND", "st|1", "bytes"]);
    let record = String::from_utf8(stream_record(b"st|1", 0)).expect("ASCII");
    let (read, _) = run(&mut node, &store, &["GET", &record]);
    assert_eq!(read, "$-1\r\n");
    for words in [
        &["SET", &record, "x"][..],
        &["MSET", "a|1", "x", &record, "x"],
        &["STREAM.APPEND", &record, "x"],
        &["COPY", "a|g|1", &record],
        &["TABLE.SET", "\0stream", "KEEP", "YES"],
    ] {
        let (answer, _) = run(&mut node, &store, words);
        assert!(answer.contains("kept on disk"), "{words:?}: {answer}");
    }
    assert_eq!(run(&mut node, &store, &["STREAM.READ", "st|1", "0", "9"]).0, "$5\r\nbytes\r\n");
    // Bytes that the disk has lost are no bytes.
    store.0.borrow_mut().pairs.remove(record.as_bytes());
    let mut node = node_over(&store);
    let request: OwnedArgs =
        ["STREAM.READ", "st|1", "0", "9"].iter().map(|word| word.as_bytes()).collect();
    let spec = find(request.args()).expect("a command");
    let Ok(Command::Data(data)) = decode(spec, request.args()) else { panic!("a read") };
    for _ in 0..2 {
        let mut out = Vec::new();
        let outcome = node.execute(&data, &mut Encoder::new(&mut out, Version::Resp2));
        assert!(matches!(outcome, Outcome::Waiting(_)), "{outcome:?}");
        let asked = std::mem::take(&mut store.0.borrow_mut().asked);
        for (fetch, range) in asked {
            let position = Position(store.position());
            let pairs = store.pairs_in(&|key| range.contains(key));
            node.engine_mut().loaded(fetch, Ok(Loaded { position, pairs, known: None }));
        }
    }
    let effects = format!("{:?}", node.engine_mut().take_effects());
    assert!(effects.contains("from 0 on are missing on disk"), "{effects}");
}

#[test]
fn a_range_that_is_refused_leaves_nothing_to_wait_for() {
    let (mut node, store) = started(&filled(), 0, false);
    let options = TableOptions { source: Some(String::from("db")), ..TableOptions::default() };
    node.engine_mut().table_set(b"s", &options).expect("the table has no keys");
    let (answer, waits) = run(&mut node, &store, &["RANGE.DEL", "a|", "t"]);
    assert!(answer.starts_with('-') && waits == 0, "{answer}");
    assert!(store.0.borrow().asked.is_empty(), "the next request that waits would wait for it");
}

#[test]
fn what_is_loaded_before_is_all_that_a_transaction_needs() {
    let filled = filled();
    for (at, first) in COMMANDS.iter().enumerate() {
        for behind in 0..COMMANDS.len() {
            let second = COMMANDS[(at + behind) % COMMANDS.len()];
            let mask = (at * 7 + behind) % (1 << KEYS.len());
            let (mut node, store) = started(&filled, mask, false);
            for words in [first, second] {
                preload(&mut node, &store, words);
            }
            node.engine_mut().begin_transaction();
            for words in [first, second] {
                let (_, waits) = run(&mut node, &store, words);
                assert_eq!(waits, 0, "{words:?} of {first:?}, {second:?}, {mask:b}");
            }
            node.engine_mut().end_transaction();
        }
    }
}
