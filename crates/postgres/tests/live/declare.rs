//! What is refused, what is warned of, and what happens when tables are altered.

use crate::certificates::{self, Signed};
use crate::model::{Stand, connect};
use crate::server::Server;
use headwater_base::KeyRange;
use headwater_base::source::{Health, Source};
use headwater_postgres::Postgres;
use std::time::Duration;

const SCHEMA: &str = "CREATE TABLE posts (poster text COLLATE \"C\", time int, tweet text, PRIMARY KEY (poster, time)); \
    CREATE TABLE loose (poster text, time int); \
    CREATE TABLE numbered (id int PRIMARY KEY, poster text COLLATE \"C\" NOT NULL, time int NOT NULL, odd interval, \
     twice int GENERATED ALWAYS AS (id * 2) STORED); \
    CREATE UNIQUE INDEX by_post ON numbered (poster, time); \
    CREATE TABLE swapped (id int PRIMARY KEY, a text COLLATE \"C\", b int UNIQUE); ALTER TABLE swapped REPLICA IDENTITY FULL; \
    CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent); \
    CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY); CREATE VIEW seen AS SELECT * FROM posts; \
    CREATE TABLE guarded (id int PRIMARY KEY); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; \
    ALTER TABLE guarded FORCE ROW LEVEL SECURITY; \
    CREATE TABLE parts (id int, place text COLLATE \"C\", PRIMARY KEY (place, id)) PARTITION BY LIST (place); \
    CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a'); \
    CREATE TABLE part_b PARTITION OF parts FOR VALUES IN ('b'); \
    CREATE TABLE hollow (place text COLLATE \"C\", id int, PRIMARY KEY (place, id)) PARTITION BY LIST (place); \
    CREATE TABLE beside (id int PRIMARY KEY, poster text COLLATE \"C\" NOT NULL, time int NOT NULL, UNIQUE (poster, time)); \
    CREATE INDEX ON beside (poster); ALTER TABLE beside REPLICA IDENTITY FULL";

fn mapped<'a>(table: &'a str, key: &'a str, value: &'a str) -> [(&'a str, &'a str); 3] {
    [("table", table), ("key", key), ("value", value)]
}

#[test]
fn refusals_and_warnings_say_what_mends_them() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(SCHEMA);
    let (mut source, stand) = connect(&server.url(), &[]);
    stand.wait_up();
    let refused = [
        (mapped("nowhere", "id", ""), "there is no table nowhere"),
        (mapped("posts", "poster, colour", ""), "has no column colour"),
        (mapped("posts", "poster, time", "colour"), "has no column colour"),
        (
            mapped("posts", "poster", ""),
            "CREATE UNIQUE INDEX CONCURRENTLY ON public.posts (poster)",
        ),
        (mapped("loose", "poster, time", ""), "CREATE UNIQUE INDEX"),
        (mapped("numbered", "poster, time", ""), "REPLICA IDENTITY FULL"),
        (mapped("numbered", "id, odd", ""), "interval"),
        (mapped("numbered", "id", "twice"), "generated"),
        (mapped("parent", "id", ""), "inherit"),
        (mapped("fleeting", "id", ""), "unlogged"),
        (mapped("seen", "poster, time", ""), "view"),
        (mapped("posts", "poster:4, time", ""), "for integers"),
    ];
    for (mapping, why) in refused {
        let answer = stand.declare(&mut source, b"x|", &mapping).unwrap_err();
        assert!(answer.contains(why), "{mapping:?}: {answer}");
    }
    // An application's updates must not begin to fail because a table was published that cannot be.
    server.run("INSERT INTO loose VALUES ('a', 1); UPDATE loose SET time = 2");
    let load = stand.load(&mut source, &KeyRange::prefix(b"x|")).unwrap_err();
    assert!(load.contains("no table"), "{load}");

    let accepted = [
        (mapped("posts", "poster, time", "tweet"), ""),
        (mapped("Public.Posts", "poster, time", "JSON (tweet)"), ""),
        (mapped("swapped", "b", "a"), ""),
        (mapped("swapped", "a, id", ""), "CREATE INDEX CONCURRENTLY ON public.swapped (a, id)"),
        (mapped("parts", "place, id", ""), ""),
        (mapped("hollow", "place, id", ""), ""),
        (mapped("beside", "poster, time", ""), ""),
    ];
    for (mapping, warning) in accepted {
        let answer = stand.declare(&mut source, b"x|", &mapping).unwrap();
        assert_eq!(answer.is_empty(), warning.is_empty(), "{mapping:?}: {answer:?}");
        assert!(answer.iter().all(|answer| answer.contains(warning)), "{answer:?}");
    }
    server.run("ALTER TABLE numbered REPLICA IDENTITY USING INDEX by_post");
    assert_eq!(
        stand.declare(&mut source, b"y|", &mapped("numbered", "poster, time", "")),
        Ok(vec![])
    );
}

#[test]
fn texts_that_no_index_has_in_the_order_of_bytes_are_warned_of() {
    let Some(server) = Server::start(&[]) else { return };
    let other = server.collation();
    server.run(&format!(
        "CREATE TABLE posts (poster text COLLATE {other}, time int, PRIMARY KEY (poster, time)); \
         CREATE TABLE names (name text COLLATE {other} PRIMARY KEY); \
         CREATE INDEX ON names (name text_pattern_ops); \
         CREATE TABLE rooms (room int, who text COLLATE {other}, PRIMARY KEY (room, who)); \
         CREATE TABLE loose (id int PRIMARY KEY, who text COLLATE {other}); ALTER TABLE loose REPLICA IDENTITY FULL; \
         CREATE INDEX ON loose (who COLLATE \"C\", id)",
    ));
    let (mut source, stand) = connect(&server.url(), &[]);
    stand.wait_up();
    let cases = [
        ("posts", "poster, time", "public.posts (poster COLLATE \"C\", time)"),
        ("names", "name", "public.names (name COLLATE \"C\")"),
        ("rooms", "room, who", "public.rooms (room, who COLLATE \"C\")"),
    ];
    for (table, key, index) in cases {
        let mapping = mapped(table, key, "");
        let statement = format!("CREATE INDEX CONCURRENTLY ON {index}");
        let warned = stand.declare(&mut source, b"x|", &mapping).unwrap();
        let [warning] = &warned[..] else { panic!("{mapping:?}: {warned:?}") };
        assert!(warning.ends_with(&statement), "{warning}");
        // It tells the statement that makes it right.
        server.run(&statement);
        assert_eq!(stand.declare(&mut source, b"x|", &mapping), Ok(vec![]), "{statement}");
    }
    // One of bytes alone does not find who is equal to something.
    let warned = stand.declare(&mut source, b"x|", &mapped("loose", "who, id", "")).unwrap();
    let [warning] = &warned[..] else { panic!("{warned:?}") };
    assert!(warning.ends_with("CREATE INDEX CONCURRENTLY ON public.loose (who, id)"), "{warning}");
}

/// Loads a range as soon as it can be.
fn reload(source: &mut Postgres, stand: &Stand, range: &KeyRange) -> Result<usize, String> {
    stand.wait("the reset", |model| {
        model.loaded.iter().all(|loaded| !loaded.overlaps(range)).then_some(())
    });
    stand.load(source, range).map(|pairs| pairs.len())
}

#[test]
fn altered_tables_are_loaded_again_or_refused() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(SCHEMA);
    server.run(
        "DROP VIEW seen; INSERT INTO posts VALUES ('bob', 1, 'a'); INSERT INTO parts VALUES (1, 'a'), (2, 'b')",
    );
    let (mut source, stand) = connect(&server.url(), &[("timeout-ms", "3000")]);
    stand.wait_up();
    stand.declare(&mut source, b"p|", &mapped("posts", "poster, time", "tweet")).unwrap();
    stand.declare(&mut source, b"q|", &mapped("parts", "place, id", "")).unwrap();
    let (posts, parts) = (KeyRange::prefix(b"p|"), KeyRange::prefix(b"q|"));
    assert_eq!(stand.load(&mut source, &posts).unwrap().len(), 1);
    assert_eq!(stand.load(&mut source, &parts).unwrap().len(), 2);

    // Harmless: a column more, and one less that is not mapped.
    server
        .run("ALTER TABLE posts ADD COLUMN extra int; INSERT INTO posts VALUES ('bob', 2, 'b', 7)");
    server.run("ALTER TABLE posts DROP COLUMN extra; INSERT INTO posts VALUES ('bob', 3, 'c')");
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().of(&posts).len(), 3);
    stand.lock().resets.clear();

    // All values change without a word in the log.
    server.run("ALTER TABLE posts ALTER tweet TYPE text USING upper(tweet)");
    assert_eq!(reload(&mut source, &stand, &posts), Ok(3));
    assert_eq!(stand.lock().keys[&b"p|bob|0000000001"[..]], b"A");

    // A column is gone: first noticed by a change, then by looking.
    server.run("ALTER TABLE posts RENAME tweet TO words; UPDATE posts SET words = 'd'");
    let why = reload(&mut source, &stand, &posts).unwrap_err();
    assert!(why.contains("tweet"), "{why}");
    assert_eq!(stand.lock().health, Some(Health::Up));
    server.run("ALTER TABLE posts RENAME words TO tweet");
    let mended = || stand.load(&mut source, &posts);
    let mut mended = mended;
    stand_by(|| mended().is_ok_and(|pairs| pairs.len() == 3));

    // The table is another one.
    server.run(
        "BEGIN; DROP TABLE posts CASCADE; CREATE TABLE posts (poster text, time int, tweet text, \
        PRIMARY KEY (poster, time)); INSERT INTO posts VALUES ('new', 1, 'x'); COMMIT",
    );
    stand.wait("the reset", |model| model.of(&posts).is_empty().then_some(()));
    stand_by(|| stand.load(&mut source, &posts).is_ok_and(|pairs| pairs.len() == 1));
    server.run("INSERT INTO posts VALUES ('new', 2, 'y')");
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().of(&posts).len(), 2);

    // Somebody takes it out of the publication.
    server.run("ALTER PUBLICATION headwater_test DROP TABLE posts; INSERT INTO posts VALUES ('new', 3, 'z')");
    assert_eq!(reload(&mut source, &stand, &posts), Ok(3));
    server.run("INSERT INTO posts VALUES ('new', 4, 'z')");
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().of(&posts).len(), 4);

    // Partitions come, go, and are emptied.
    server.run("INSERT INTO parts VALUES (3, 'b')");
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().of(&parts).len(), 3);
    server.run("TRUNCATE part_b");
    assert_eq!(reload(&mut source, &stand, &parts), Ok(1));
}

fn stand_by(mut holds: impl FnMut() -> bool) {
    for _ in 0..300 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("waited in vain");
}

#[test]
fn a_slot_that_holds_back_too_much_is_dropped() {
    let Some(server) = Server::start(&["max_slot_wal_keep_size=1GB"]) else { return };
    server.run(
        "CREATE TABLE posts (poster text, time int, tweet text, PRIMARY KEY (poster, time)); \
        CREATE TABLE bulk (id int, pad text)",
    );
    let (mut source, stand) = connect(&server.url(), &[("lag-bytes-max", "2000000")]);
    stand.wait_up();
    stand.declare(&mut source, b"p|", &mapped("posts", "poster, time", "tweet")).unwrap();
    let all = KeyRange::prefix(b"p|");
    stand.load(&mut source, &all).unwrap();
    // A transaction under way holds the slot where it began.
    let mut slow = server.connect();
    slow.query("BEGIN; INSERT INTO posts VALUES ('slow', 1, 'a')", |_, _| {}).unwrap();
    server.run("INSERT INTO bulk SELECT n, repeat('x', 1000) FROM generate_series(1, 5000) n");
    stand.wait("the slot to be dropped", |model| {
        matches!(&model.health, Some(Health::Down(why)) if why.contains("lag-bytes-max"))
            .then_some(())
    });
    slow.query("COMMIT", |_, _| {}).unwrap();
    stand.wait_up();
    let loaded = reload(&mut source, &stand, &all);
    assert_eq!(loaded, Ok(1));
    assert_eq!(server.connect().value("SELECT count(*) FROM pg_replication_slots").unwrap(), "1");
    // A source that ends leaves no slot behind.
    drop(source);
    stand_by(|| {
        server.connect().value("SELECT count(*) FROM pg_replication_slots").unwrap() == "0"
    });
}

#[test]
fn what_the_database_lacks_is_said() {
    let Some(server) = Server::start(&["wal_level=replica"]) else { return };
    server.run("CREATE TABLE posts (poster text, time int, PRIMARY KEY (poster, time))");
    let (mut source, stand) = connect(&server.url(), &[("timeout-ms", "500"), ("follow", "log")]);
    let down = stand.wait("a reason", |model| match &model.health {
        Some(Health::Down(why)) if !why.contains("not connected") => Some(why.clone()),
        _ => None,
    });
    assert!(down.contains("wal_level = logical"), "{down}");
    drop(source);

    let nobody = server.url().replace("port=5432", "port=1");
    (source, _) = connect(&nobody, &[]);
    drop(source);
    let (mut source, stand) = connect(&nobody, &[("timeout-ms", "300")]);
    let warnings = stand.declare(&mut source, b"p|", &mapped("posts", "poster, time", "")).unwrap();
    assert!(warnings[0].contains("cannot connect"), "{warnings:?}");
    let why = stand.load(&mut source, &KeyRange::prefix(b"p|")).unwrap_err();
    assert!(why.contains("cannot connect"), "{why}");
}

#[test]
fn a_user_with_few_rights_is_enough_where_the_tables_are_published() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(
        "CREATE TABLE posts (poster text, time int, tweet text, PRIMARY KEY (poster, time)); \
         CREATE ROLE reader LOGIN REPLICATION; GRANT SELECT ON posts TO reader; \
         CREATE PUBLICATION headwater_test FOR TABLE posts; INSERT INTO posts VALUES ('bob', 1, 'Hi')",
    );
    let url = server.url().replace("postgres://postgres@", "postgres://reader@");
    let (mut source, stand) = connect(&url, &[("slot", "kept")]);
    stand.wait_up();
    stand.declare(&mut source, b"p|", &mapped("posts", "poster, time", "tweet")).unwrap();
    let all = KeyRange::prefix(b"p|");
    assert_eq!(stand.load(&mut source, &all).unwrap().len(), 1);
    server.run("INSERT INTO posts VALUES ('bob', 2, 'There')");
    stand.catch_up(&mut source);
    assert_eq!(stand.lock().of(&all).len(), 2);
    let (mut poor, other) = connect(&url, &[("publication", "other"), ("slot-name", "other")]);
    let down = other.wait("a reason", |model| match &model.health {
        Some(Health::Down(why)) if !why.contains("not connected") => Some(why.clone()),
        _ => None,
    });
    assert!(down.contains("CREATE PUBLICATION"), "{down}");
    Source::withdraw(&mut poor, b"p|");
}

#[test]
fn triggers_tell_of_changes_where_the_log_cannot_be_read() {
    let Some(server) = Server::start(&["wal_level=replica"]) else { return };
    server.run(
        "CREATE ROLE plain LOGIN; CREATE ROLE writer LOGIN; GRANT CREATE ON DATABASE postgres TO plain; \
         CREATE TABLE posts (poster text COLLATE \"C\", time timestamptz, tweet text, hot bool, PRIMARY KEY (poster, time)); \
         ALTER TABLE posts OWNER TO plain; GRANT INSERT, UPDATE, DELETE, SELECT, TRUNCATE ON posts TO writer; \
         INSERT INTO posts VALUES ('bob', '2026-01-01 00:00Z', 'Hi', true)",
    );
    let url = server.url().replace("postgres://postgres@", "postgres://plain@");
    let (mut source, stand) = connect(&url, &[]);
    stand.wait_up();
    let json = mapped("posts", "poster, time", "JSON (tweet, hot)");
    assert_eq!(stand.declare(&mut source, b"p|", &json), Ok(vec![]));
    assert!(source.facts().contains(&("follow", "triggers".to_owned())));
    let all = KeyRange::prefix(b"p|");
    let told = |pairs: std::collections::BTreeMap<Vec<u8>, Vec<u8>>| -> Vec<String> {
        let show = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        pairs.into_iter().map(|(key, value)| format!("{} {}", show(key), show(value))).collect()
    };
    let first = "p|bob|2026-01-01T00:00:00.000000Z {\"tweet\":\"Hi\",\"hot\":true}";
    assert_eq!(told(stand.load(&mut source, &all).unwrap()), [first]);
    // As somebody else, with other settings, who may not read what is noted.
    let writer = server.url().replace("postgres://postgres@", "postgres://writer@");
    let mut writer = headwater_postgres::wire::Connection::open(
        &headwater_postgres::url::Target::parse(&writer).unwrap(),
        false,
    )
    .unwrap();
    writer
        .query(
            "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; \
             INSERT INTO posts VALUES ('cleo', '2026-01-02 09:00+09', 'a \"b\", {c}', NULL); \
             UPDATE posts SET poster = 'dan' WHERE poster = 'bob'",
            |_, _| {},
        )
        .unwrap();
    stand.catch_up(&mut source);
    let cleo = "p|cleo|2026-01-02T00:00:00.000000Z {\"tweet\":\"a \\\"b\\\", {c}\",\"hot\":null}";
    let dan = "p|dan|2026-01-01T00:00:00.000000Z {\"tweet\":\"Hi\",\"hot\":true}";
    assert_eq!(told(stand.lock().of(&all)), [cleo, dan]);
    // A column that is gone keeps nobody from writing.
    server.run("ALTER TABLE posts DROP COLUMN hot");
    writer
        .query(
            "DELETE FROM posts WHERE poster = 'dan'; INSERT INTO posts VALUES ('eve', now(), 'x')",
            |_, _| {},
        )
        .unwrap();
    let why = reload(&mut source, &stand, &all).unwrap_err();
    assert!(why.contains("hot"), "{why}");
    assert_eq!(
        stand.declare(&mut source, b"p|", &mapped("posts", "poster, time", "tweet")),
        Ok(vec![])
    );
    assert_eq!(stand.load(&mut source, &all).unwrap().len(), 2);
    writer.query("TRUNCATE posts", |_, _| {}).unwrap();
    assert_eq!(reload(&mut source, &stand, &all), Ok(0));
    // Nothing is noted where nobody reads.
    drop(source);
    std::thread::sleep(Duration::from_millis(500));
    server.run("DELETE FROM headwater_test.changes");
    writer.query("INSERT INTO posts VALUES ('fay', now(), 'x')", |_, _| {}).unwrap();
    let left = server.connect().value("SELECT count(*) FROM headwater_test.changes").unwrap();
    assert_eq!(left, "0");
}

#[test]
fn connections_are_encrypted_and_prove_who_they_are() {
    let Some(mut server) = Server::start(&[]) else { return };
    if !server.can_encrypt() {
        eprintln!("skipped: this PostgreSQL was built without encryption");
        return;
    }
    server.run("CREATE ROLE reader LOGIN PASSWORD 'p@ss/word'");
    let roots = server.open_port();
    let other = roots.with_file_name("other.crt");
    let port = server.port;
    let open = |host: &str, password: &str, rest: &str| {
        let url = format!("postgres://reader:{password}@{host}:{port}/postgres?sslmode={rest}");
        let target = headwater_postgres::url::Target::parse(&url).unwrap();
        let mut connection = headwater_postgres::wire::Connection::open(&target, false)?;
        connection.value("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    };
    let (password, roots) = ("p%40ss%2Fword", format!("sslrootcert={}", roots.display()));
    for (rest, encrypted) in [("disable", "f"), ("prefer", "t"), ("require", "t")] {
        assert_eq!(open("127.0.0.1", password, rest).as_deref(), Ok(encrypted), "{rest}");
    }
    assert_eq!(open("localhost", password, &format!("verify-full&{roots}")).as_deref(), Ok("t"));
    assert_eq!(open("127.0.0.1", password, &format!("verify-ca&{roots}")).as_deref(), Ok("t"));
    assert!(open("127.0.0.1", password, &format!("verify-full&{roots}")).is_err());
    let wrong = open("127.0.0.1", "nonsense", "require").unwrap_err();
    assert!(wrong.message.contains("password"), "{wrong}");
    // Signed by nobody whom we trust.
    let openssl = std::process::Command::new("openssl");
    certificates::make(openssl, Signed::ByItself, std::path::Path::new("/dev/null"), &other);
    let stranger = format!("verify-full&sslrootcert={}", other.display());
    assert!(open("localhost", password, &stranger).is_err());
    drop(server);

    // Its own authority, and for nobody's name.
    let Some(mut server) = Server::start(&[]) else { return };
    server.run("CREATE ROLE reader LOGIN PASSWORD 'p@ss/word'");
    let roots = server.open_port_as(Signed::AsAuthority);
    let port = server.port;
    let open = |mode: &str, roots: &std::path::Path| {
        let url = format!(
            "postgres://reader:{password}@localhost:{port}/postgres?sslmode={mode}&sslrootcert={}",
            roots.display()
        );
        let target = headwater_postgres::url::Target::parse(&url).unwrap();
        headwater_postgres::wire::Connection::open(&target, false).map(drop)
    };
    assert_eq!(open("verify-ca", &roots), Ok(()));
    let wrong = open("verify-full", &roots).unwrap_err();
    assert!(wrong.message.contains("not valid for name"), "{wrong}");
    assert!(open("verify-ca", &other).is_err());
    let endless = open("verify-ca", std::path::Path::new("/dev/zero")).unwrap_err();
    assert!(endless.message.contains("sslrootcert /dev/zero"), "{endless}");
}
