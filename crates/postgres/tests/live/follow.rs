//! Loads and changes, one kind after the other.

use crate::model::connect;
use crate::server::Server;
use headwater_base::KeyRange;
use headwater_base::source::Source;
use std::collections::BTreeMap;

const POSTS: [(&str, &str); 3] = [("table", "posts"), ("key", "poster, time"), ("value", "tweet")];

fn keys(pairs: &[(&str, &str)]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    pairs.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

#[test]
fn a_range_is_loaded_and_followed() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(
        "CREATE TABLE posts (poster text COLLATE \"C\", time int, tweet text, likes int, PRIMARY KEY (poster, time)); \
         ALTER TABLE posts ALTER tweet SET STORAGE EXTERNAL; \
         INSERT INTO posts VALUES ('bob', 100, 'Hi', 0), ('bob', -5, NULL, 0), ('a|b', 1, 'odd', 0)",
    );
    let (mut source, stand) = connect(&server.url(), &[]);
    assert_eq!(stand.declare(&mut source, b"p|", &POSTS), Ok(vec![]));
    let bob = KeyRange::prefix(b"p|bob|");
    // What was declared before the log was begun is reset then.
    stand.wait_up();
    stand.lock().resets.clear();
    let loaded = stand.load(&mut source, &bob).unwrap();
    assert_eq!(loaded, keys(&[("p|bob|-9999999994", ""), ("p|bob|0000000100", "Hi")]));
    let odd = stand.load(&mut source, &KeyRange::prefix(b"p|a{}b|")).unwrap();
    assert_eq!(odd, keys(&[("p|a{}b|0000000001", "odd")]));
    assert!(stand.load(&mut source, &KeyRange::point(b"p|cat|x")).unwrap().is_empty());

    let long = "x".repeat(100_000);
    let cases = [
        (
            "INSERT INTO posts VALUES ('bob', 200, 'There', 0), ('dan', 1, 'unseen', 0)",
            vec![("p|bob|0000000200", "There")],
        ),
        ("UPDATE posts SET tweet = 'Hello' WHERE time = 200", vec![("p|bob|0000000200", "Hello")]),
        ("DELETE FROM posts WHERE time = 200", vec![]),
        (
            "INSERT INTO posts VALUES ('bob', 300, repeat('x', 100000), 0)",
            vec![("p|bob|0000000300", &*long)],
        ),
        // The long value is not sent again.
        ("UPDATE posts SET likes = 1 WHERE time = 300", vec![("p|bob|0000000300", &*long)]),
        (
            "BEGIN; UPDATE posts SET tweet = 'a' WHERE time = 300; DELETE FROM posts WHERE time = 300; \
          INSERT INTO posts VALUES ('bob', 300, 'b', 0); COMMIT",
            vec![("p|bob|0000000300", "b")],
        ),
        ("UPDATE posts SET time = 400 WHERE time = 300", vec![("p|bob|0000000400", "b")]),
        ("UPDATE posts SET poster = 'eve' WHERE time = 400", vec![]),
        (
            "UPDATE posts SET poster = 'bob', time = 7 WHERE poster = 'eve'",
            vec![("p|bob|0000000007", "b")],
        ),
        (
            "BEGIN; INSERT INTO posts VALUES ('bob', 500, 'no', 0); ROLLBACK; DELETE FROM posts WHERE time = 7",
            vec![],
        ),
    ];
    let before = [("p|bob|-9999999994", ""), ("p|bob|0000000100", "Hi")];
    for (sql, more) in cases {
        server.run(sql);
        stand.catch_up(&mut source);
        let expected = keys(&[&before[..], &more].concat());
        assert_eq!(stand.lock().of(&bob), expected, "{sql}");
    }
    assert_eq!(stand.lock().resets, []);

    // A moved row with a long value that was not sent: that key is loaded again.
    server.run("INSERT INTO posts VALUES ('bob', 600, repeat('x', 100000), 0)");
    server.run("UPDATE posts SET time = 601 WHERE time = 600");
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().resets, [KeyRange::point(b"p|bob|0000000601")]);
    let loaded = stand.load(&mut source, &bob).unwrap();
    assert_eq!(loaded[&b"p|bob|0000000601"[..]], long.as_bytes());

    server.run("TRUNCATE posts; INSERT INTO posts VALUES ('bob', 1, 'new', 0)");
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().resets[1], KeyRange::prefix(b"p|"));
    assert_eq!(stand.load(&mut source, &bob).unwrap(), keys(&[("p|bob|0000000001", "new")]));
}

#[test]
fn writes_are_done_at_their_position() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(
        "CREATE TABLE posts (poster text, time int, tweet text, likes int DEFAULT 7, PRIMARY KEY (poster, time))",
    );
    let (mut source, stand) = connect(&server.url(), &[]);
    stand.declare(&mut source, b"p|", &POSTS).unwrap();
    let json =
        [("table", "posts"), ("key", "time:plain, poster"), ("value", "JSON (tweet, likes)")];
    stand.declare(&mut source, b"j|", &json).unwrap();
    let rows = [("p|it's|0000000001", Some("a\\'b")), ("p|it's|0000000002", Some("c"))];
    let first = stand.write(&mut source, &rows).unwrap();
    let all = KeyRange::prefix(b"p|");
    stand.wait_up();
    assert_eq!(stand.load(&mut source, &all).unwrap().len(), 2);
    let again = [("p|it's|0000000002", None), ("p|it's|0000000001", Some("d"))];
    let second = stand.write(&mut source, &again).unwrap();
    assert!(second > first);
    stand.wait("the change", |model| (model.position >= second).then_some(()));
    assert_eq!(stand.lock().of(&all), keys(&[("p|it's|0000000001", "d")]));
    let given = "{\"tweet\":\"e\",\"likes\":null}";
    stand.write(&mut source, &[("j|-3|bob", Some(given))]).unwrap();
    let loaded = stand.load(&mut source, &KeyRange::prefix(b"j|")).unwrap();
    assert_eq!(loaded, keys(&[("j|-3|bob", given), ("j|1|it's", "{\"tweet\":\"d\",\"likes\":7}")]));
    assert_eq!(stand.remove(&mut source, &["j|-3|bob", "j|5|bob"]), Ok(1));
    assert_eq!(stand.remove(&mut source, &["j|-3|bob"]), Ok(0));
    for (wrong, value) in [
        ("p|bob", "x"),
        ("p|bob|1", "x"),
        ("q|bob|0000000001", "x"),
        ("p|bob|0000000001", "\0"),
        ("j|1|bob", "no json"),
    ] {
        let both = [("p|ann|0000000001", Some("undone")), (wrong, Some(value))];
        assert!(stand.write(&mut source, &both).is_err(), "{wrong}");
    }
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().of(&all).len(), 1);
}

#[test]
fn ranges_that_no_index_serves_are_loaded_together() {
    let Some(server) = Server::start(&[]) else { return };
    let other = server.collation();
    server.run(&format!(
        "CREATE TABLE posts (poster text COLLATE {other}, time int, tweet text, PRIMARY KEY (poster, time)); \
         INSERT INTO posts SELECT chr(97 + n % 26) || n, n, 'x' || n FROM generate_series(0, 519) n",
    ));
    let (mut source, stand) = connect(&server.url(), &[("connections", "1")]);
    stand.declare(&mut source, b"p|", &POSTS).unwrap();
    stand.wait_up();
    // The one connection waits here, while loads gather.
    let mut blocking = server.connect();
    blocking.query("BEGIN; LOCK TABLE posts", |_, _| {}).unwrap();
    let ranges: Vec<_> = (b'a'..=b'z')
        .step_by(2)
        .map(|letter| KeyRange {
            first: vec![b'p', b'|', letter],
            last: vec![b'p', b'|', letter + 1],
        })
        .collect();
    let point = KeyRange::prefix(b"p|b1|");
    for range in ranges.iter().chain([&point]) {
        stand.ask(&mut source, range).expect("the range is not loaded");
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    blocking.query("COMMIT", |_, _| {}).unwrap();
    stand.wait("the loads", |model| model.is_idle().then_some(()));
    assert_eq!(stand.lock().failed.len(), 0);
    assert!(ranges.iter().all(|range| stand.lock().of(range).len() == 20));
    assert_eq!(stand.lock().of(&point).len(), 1);
    let together = source.facts().into_iter().find(|(name, _)| *name == "loads_together").unwrap();
    // The first one may have been asked for by itself, and an index serves the last.
    let together: usize = together.1.parse().unwrap();
    assert!((ranges.len() - 2..ranges.len()).contains(&together), "{together}");
    // All of them are followed.
    server.run("UPDATE posts SET tweet = 'new'");
    stand.catch_up(&mut source);
    assert!(stand.lock().keys.values().all(|value| value == b"new"));
}
