//! Loads of the first keys of a range, or the last ones, and loads that come in parts.

use crate::model::{Stand, connect};
use crate::server::Server;
use headwater_base::KeyRange;
use headwater_base::source::{Portion, Source};
use headwater_postgres::Postgres;

fn first(rows: u64) -> Portion {
    Portion { rows: Some(rows), ..Portion::default() }
}

fn last(rows: u64) -> Portion {
    Portion { reverse: true, ..first(rows) }
}

/// What a load of some keys brings, and that what is known of the range is as much as that.
fn load(
    source: &mut Postgres,
    stand: &Stand,
    prefix: &str,
    portion: Portion,
) -> (Vec<String>, KeyRange) {
    let range = KeyRange::prefix(prefix.as_bytes());
    let keys = stand.load_portion(source, &range, portion).unwrap();
    let known = stand.known_of(&range);
    assert_eq!(known.len(), 1, "{known:?}");
    for known in &known {
        source.unfollow(known);
    }
    stand.forget();
    let text = |key: Vec<u8>| String::from_utf8(key).unwrap();
    (keys.into_keys().map(text).collect(), known[0].clone())
}

#[test]
fn a_limit_reaches_the_database() {
    let Some(server) = Server::start(&[]) else { return };
    let other = server.collation();
    server.run(&format!(
        "CREATE TABLE items (id int PRIMARY KEY, name text); \
         INSERT INTO items SELECT n, 'i' || n FROM generate_series(1, 5000) n; \
         CREATE TABLE posts (poster text COLLATE \"C\", time int, tweet text, PRIMARY KEY (poster, time)); \
         INSERT INTO posts SELECT p, n, 'x' FROM unnest(ARRAY['a', 'ab', 'ab!', 'b', 'z|']) p, generate_series(1, 20) n; \
         CREATE TABLE names (name text COLLATE {other} PRIMARY KEY, v text); \
         INSERT INTO names SELECT chr(65 + n % 2 * 32 + n / 2) || 'x', 'v' FROM generate_series(0, 49) n",
    ));
    let (mut source, stand) = connect(&server.url(), &[]);
    stand.wait_up();
    let mut declare = |prefix: &[u8], table: &str, key: &str, value: &str| {
        let words = [("table", table), ("key", key), ("value", value)];
        stand.declare(&mut source, prefix, &words).unwrap();
    };
    declare(b"i|", "items", "id", "name");
    declare(b"p|", "posts", "poster, time", "tweet");
    declare(b"n|", "names", "name", "v");
    let load = |source: &mut Postgres, prefix, portion| load(source, &stand, prefix, portion);

    let (keys, known) = load(&mut source, "i|", first(3));
    assert_eq!(keys, ["i|0000000001", "i|0000000002", "i|0000000003"]);
    assert_eq!(known, KeyRange::new(b"i|", b"i|0000000003\0"));
    let (keys, known) = load(&mut source, "i|", last(2));
    assert_eq!(keys, ["i|0000004999", "i|0000005000"]);
    assert_eq!(known, KeyRange::new(b"i|0000004999", b"i}"));
    let (keys, known) = load(&mut source, "i|00000049", first(1000));
    assert_eq!((keys.len(), known), (100, KeyRange::prefix(b"i|00000049")));

    let (keys, _) = load(&mut source, "p|ab|", last(2));
    assert_eq!(keys, ["p|ab|0000000019", "p|ab|0000000020"]);
    // `ab!|` stands before `ab|`, and that before `a|`.
    let (keys, _) = load(&mut source, "p|", first(2));
    assert_eq!(keys, ["p|ab!|0000000001", "p|ab!|0000000002"]);
    let (keys, _) = load(&mut source, "p|", last(2));
    assert_eq!(keys, ["p|z{}|0000000019", "p|z{}|0000000020"]);
    let (keys, known) = load(&mut source, "p|", first(70));
    assert!(keys.len() >= 60 && known.first == b"p|", "{} {known:?}", keys.len());
    let (keys, _) = load(&mut source, "p|b", first(3));
    assert_eq!(keys[..3], ["p|b|0000000001", "p|b|0000000002", "p|b|0000000003"]);
    assert!(keys.len() <= 4, "a row beside the range may be asked for");

    // Small letters stand behind all large ones in keys, whatever the collation says.
    let (keys, _) = load(&mut source, "n|", first(2));
    assert_eq!(keys, ["n|Ax", "n|Bx"]);
    let (keys, _) = load(&mut source, "n|", last(1));
    assert_eq!(keys, ["n|yx"]);
    let facts = source.facts();
    let rows = facts.iter().find(|(name, _)| *name == "rows_loaded").unwrap();
    assert!(rows.1.parse::<u64>().unwrap() < 300, "{rows:?}");
}

#[test]
fn a_long_load_comes_in_parts_that_fit() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(
        "CREATE TABLE items (id int PRIMARY KEY, v text); ALTER TABLE items ALTER v SET STORAGE PLAIN; \
         INSERT INTO items SELECT n, repeat('x', 4000) FROM generate_series(1, 4000) n",
    );
    let (mut source, stand) = connect(&server.url(), &[]);
    stand.wait_up();
    let words = [("table", "items"), ("key", "id"), ("value", "v")];
    stand.declare(&mut source, b"i|", &words).unwrap();
    // Loads of a range may bring two thirds of it, 40 MB; each answer is much smaller.
    source.set_memory_bound(Some(60_000_000));
    let (mut from, mut parts, mut rows) = (b"i|".to_vec(), 0, 0);
    let mut bytes_before = 0;
    while from != b"i}" {
        let range = KeyRange::new(&from, b"i}");
        let portion = Portion { bytes_before, ..Portion::default() };
        let keys = stand.load_portion(&mut source, &range, portion).unwrap();
        let known = stand.known_of(&range).pop().unwrap();
        assert!(keys.len() < 2000, "{}", keys.len());
        assert_eq!(known.first, from);
        bytes_before += 4012 * keys.len() as u64;
        (from, parts, rows) = (known.last, parts + 1, rows + keys.len());
    }
    assert!(parts > 2 && rows == 4000, "{parts} {rows}");
    // What is loaded is followed, wherever its parts end.
    server.run("UPDATE items SET v = 'new' WHERE id IN (1, 1500, 2000, 4000)");
    stand.catch_up(&mut source);
    let new = stand.lock().of(&KeyRange::prefix(b"i|")).into_values();
    assert_eq!(new.filter(|value| value == b"new").count(), 4);
    // One that goes on for too much is refused.
    stand.forget();
    let portion = Portion { bytes_before: 40_100_000, ..Portion::default() };
    let refused = stand.load_portion(&mut source, &KeyRange::prefix(b"i|"), portion).unwrap_err();
    assert!(refused.contains("maxmemory"), "{refused}");
}

#[test]
fn texts_of_any_collation_come_in_parts() {
    let Some(server) = Server::start(&[]) else { return };
    let other = server.collation();
    server.run(&format!(
        "CREATE TABLE names (name text COLLATE {other} PRIMARY KEY, v text); \
         INSERT INTO names SELECT chr(65 + n % 2 * 32) || n, repeat('x', 2000) FROM generate_series(1, 12000) n; \
         CREATE TABLE posts (poster text COLLATE {other}, time int, v text, PRIMARY KEY (poster, time)); \
         INSERT INTO posts SELECT p, n, repeat('x', 2000) FROM unnest(ARRAY['Ann', 'ann', 'anna', 'bob']) p, generate_series(1, 3000) n",
    ));
    let names = [("table", "names"), ("key", "name"), ("value", "v")];
    let posts = [("table", "posts"), ("key", "poster, time"), ("value", "v")];
    let indexes = "CREATE INDEX ON names (name COLLATE \"C\"); CREATE INDEX ON posts (poster COLLATE \"C\", time)";
    for index in ["", indexes] {
        server.run(index);
        for words in [names, posts] {
            let (mut source, stand) = connect(&server.url(), &[]);
            stand.wait_up();
            stand.declare(&mut source, b"t|", &words).unwrap();
            // Loads of a range may bring two thirds: less than the keys and values with what each takes, more than they are by themselves.
            source.set_memory_bound(Some(37_200_000));
            let (mut from, mut parts, mut rows, mut bytes_before) = (b"t|".to_vec(), 0, 0, 0);
            while from != b"t}" {
                let range = KeyRange::new(&from, b"t}");
                let portion = Portion { bytes_before, ..Portion::default() };
                let keys = stand.load_portion(&mut source, &range, portion);
                let keys = keys
                    .unwrap_or_else(|why| panic!("{words:?} {index} {range:?} {portion:?}: {why}"));
                let known = stand.known_of(&range).pop().unwrap();
                assert!(keys.len() < 6000, "{}", keys.len());
                assert_eq!(known.first, from);
                let bytes = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.len() + value.len()) as u64;
                bytes_before += keys.iter().map(bytes).sum::<u64>();
                (from, parts, rows) = (known.last, parts + 1, rows + keys.len());
            }
            assert!(parts > 4 && rows == 12_000, "{words:?} {index}: {parts} {rows}");
            // What is loaded is followed, wherever its parts end.
            let (table, key) = (words[0].1, words[1].1);
            server.run(&format!(
                "UPDATE {table} SET v = 'new' WHERE ({key}) IN (SELECT {key} FROM {table} TABLESAMPLE BERNOULLI (5)); \
                 INSERT INTO {table} ({key}) SELECT {fresh}",
                fresh = if table == "names" { "'zoe'" } else { "'zoe', 1" },
            ));
            stand.catch_up(&mut source);
            let there =
                server.connect().value(&format!("SELECT count(*) FROM {table} WHERE v = 'new'"));
            let all = stand.lock().of(&KeyRange::prefix(b"t|"));
            assert_eq!(all.len(), 12_001);
            let new = all.into_values().filter(|value| value == b"new").count();
            assert_eq!(Ok(new.to_string()), there.map_err(|error| error.message));
            server.run(&format!(
                "DELETE FROM {table} WHERE {} = 'zoe'; UPDATE {table} SET v = repeat('x', 2000)",
                key.split(',').next().unwrap()
            ));
        }
    }
}
