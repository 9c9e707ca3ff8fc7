//! Loads to which something happens between two messages of their queries: connections that break, queries that others replace, tables
//! that are altered, and rows in an odd order.

use crate::model::{PATIENCE, Stand, connect};
use crate::proxy::{Fate, Line, Message, Proxy, Seen};
use crate::server::Server;
use headwater_base::KeyRange;
use headwater_base::source::Source;
use headwater_postgres::Postgres;
use std::sync::Arc;
use std::time::Instant;

/// What the statement contains that gives the rows of `items`.
const ITEMS: &str = "FROM public.items WHERE";
/// The same of the table beside it.
const OTHERS: &str = "FROM public.others WHERE";
/// A number of rows that come in several parts, and are by far not all of a table's.
const SOME: usize = 100;

/// A message of the server's log.
fn is_log(line: &Line, message: Message) -> bool {
    line.is_log && message.from_server && message.tag == b'd'
}

/// A row of `items`.
fn is_item(line: &Line, message: Message) -> bool {
    message.from_server && message.tag == b'D' && line.asked.contains(ITEMS)
}

/// A server with so many items of a thousand bytes, and with a table beside them.
fn server(items: usize) -> Option<Server> {
    let server = Server::start(&[])?;
    server.run(&format!(
        "CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE others (id int PRIMARY KEY, v text); \
         INSERT INTO items SELECT n, 'v1 ' || repeat('x', 1000) FROM generate_series(1, {items}) n; \
         INSERT INTO others VALUES (1, 'v1')",
    ));
    Some(server)
}

/// A source behind the server's proxy, with both tables.
fn source(server: &Server, proxy: &Proxy, connections: &str) -> (Postgres, Arc<Stand>) {
    // Nothing is to be given up because it was held back.
    let options = [("connections", connections), ("timeout-ms", "60000"), ("silence-ms", "60000")];
    let (mut source, stand) = connect(&proxy.url(), &options);
    stand.wait_up();
    for (prefix, table) in [(b"i|", "items"), (b"o|", "others")] {
        let words = [("table", table), ("key", "id"), ("value", "v")];
        stand.declare(&mut source, prefix, &words).unwrap();
    }
    // Loads begin again while transactions are under way that are older than a declaration.
    let mut connection = server.connect();
    let next = connection.value("SELECT pg_snapshot_xmax(pg_current_snapshot())").unwrap();
    let all_ended = format!("SELECT pg_snapshot_xmin(pg_current_snapshot()) >= '{next}'");
    let begun = Instant::now();
    while connection.value(&all_ended).as_deref() != Ok("t") {
        assert!(begun.elapsed() < PATIENCE, "a transaction does not end");
    }
    (source, stand)
}

fn items() -> KeyRange {
    KeyRange::prefix(b"i|")
}

/// The numbers of the items that are loaded.
fn numbers(stand: &Stand) -> Vec<usize> {
    let number = |key: Vec<u8>| std::str::from_utf8(&key[2..]).unwrap().parse().unwrap();
    stand.lock().of(&items()).into_keys().map(number).collect()
}

/// A load that waits for the log begins again, because its connection broke: what had come of it is not of the moment of the next query.
#[test]
fn rows_of_a_query_that_broke_off_are_not_those_of_the_next() {
    const HELD: usize = 1;
    const AGAIN: usize = 2;
    const FREE: usize = 3;
    let Some(server) = server(1000) else { return };
    let proxy = Proxy::start(&server, |seen: &Seen, line, message| match seen.step {
        HELD | AGAIN if is_log(line, message) => Fate::Wait,
        HELD if is_item(line, message) && line.rows == SOME => Fate::Cut,
        HELD if seen.cuts > 0 && !message.from_server && line.asked.contains(ITEMS) => Fate::Wait,
        _ => Fate::Pass,
    });
    // With one connection, what is asked for next says that what was asked for before has been taken in.
    let (mut source, stand) = source(&server, &proxy, "1");
    proxy.step(HELD);
    // The query sees more than the log has told.
    server.run("INSERT INTO items VALUES (2000, 'v1')");
    stand.ask(&mut source, &items()).unwrap();
    proxy.wait("the connection to be cut", |seen| seen.cuts == 1);
    server.run("DELETE FROM items WHERE id = 5");
    proxy.wait("the next query", |seen| seen.asked(ITEMS) == 2);
    proxy.step(AGAIN);
    stand.ask(&mut source, &KeyRange::prefix(b"o|")).unwrap();
    proxy.wait("the query after that", |seen| seen.asked(OTHERS) == 1);
    assert_eq!(stand.lock().parts_told, 0);
    proxy.step(FREE);
    stand.wait("the loads", |model| model.is_idle().then_some(()));
    assert_eq!(stand.lock().failed.len(), 0);
    let expected: Vec<_> = (1..=1000).filter(|&id| id != 5).chain([2000]).collect();
    assert_eq!(numbers(&stand), expected);
}

/// Where the connection breaks once parts have been told, they stay, and only the rest is asked for again.
#[test]
fn a_load_goes_on_behind_the_parts_that_were_told_before_its_connection_broke() {
    const CUT: usize = 1;
    let Some(server) = server(1000) else { return };
    let proxy = Proxy::start(&server, |seen: &Seen, line, message| {
        match seen.cuts == 0 && is_item(line, message) && line.rows == SOME {
            true if seen.step == CUT => Fate::Cut,
            true => Fate::Wait,
            false => Fate::Pass,
        }
    });
    let (mut source, stand) = source(&server, &proxy, "1");
    stand.ask(&mut source, &items()).unwrap();
    stand.wait("a part", |model| (model.parts_told > 0).then_some(()));
    // One row is in what was told, the other one is not.
    server.run("DELETE FROM items WHERE id IN (5, 900)");
    proxy.step(CUT);
    stand.wait("the load", |model| model.is_idle().then_some(()));
    assert_eq!(stand.lock().failed.len(), 0);
    stand.catch_up(&mut source);
    assert!(numbers(&stand).into_iter().eq((1..=1000).filter(|&id| id != 5 && id != 900)));
    let facts = source.facts();
    let loaded = facts.iter().find(|(name, _)| *name == "rows_loaded").unwrap();
    assert_eq!(loaded.1, "999", "each row is loaded once");
}

/// A load begins again, because the log was begun anew, while its query is under way: how that one ends is nothing to the load.
#[test]
fn a_query_that_another_has_replaced_fails_no_load() {
    const HELD: usize = 1;
    const CUT: usize = 2;
    const CANCELLED: usize = 3;
    const FREE: usize = 4;
    const ITEMS_MAX: usize = 4000;
    // More than lies between the server and the proxy: the server is at it until its query is cancelled.
    let Some(server) = server(ITEMS_MAX) else { return };
    let proxy = Proxy::start(&server, |seen: &Seen, line, message| match seen.step {
        HELD if is_log(line, message) => Fate::Wait,
        CUT if is_log(line, message) && seen.cuts == 0 => Fate::Cut,
        HELD | CUT if is_item(line, message) && line.rows >= SOME => Fate::Wait,
        // As if the server had heard of it before it sent them.
        CANCELLED if is_item(line, message) && line.rows >= SOME => Fate::LeaveOut,
        CUT | CANCELLED
            if !message.from_server && line.asked.contains(ITEMS) && line.rows < SOME =>
        {
            Fate::Wait
        }
        _ => Fate::Pass,
    });
    // The first query has one connection, and the second one the other.
    let (mut source, stand) = source(&server, &proxy, "2");
    proxy.step(HELD);
    server.run("INSERT INTO others VALUES (2, 'v1')");
    let fetch = stand.ask(&mut source, &items()).unwrap();
    // The log is marked once with each look at the slot, at most, and more often only where rows wait for it.
    proxy.wait("rows to wait for the log", |seen| {
        seen.asked("pg_logical_emit_message(true, 'headwater'") > seen.asked("SELECT restart_lsn")
    });
    proxy.step(CUT);
    proxy.wait("the next query", |seen| seen.asked(ITEMS) == 2);
    let cancelled = server.connect().value(
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity \
         WHERE state = 'active' AND query LIKE '%items%' AND pid <> pg_backend_pid()",
    );
    assert_eq!(cancelled.as_deref(), Ok("1"));
    proxy.step(CANCELLED);
    // The first one's connection is the only one that is free for it: once that has seen how its query ended.
    assert_eq!(stand.load(&mut source, &KeyRange::prefix(b"o|")).unwrap().len(), 2);
    assert_eq!(stand.lock().failed.get(&fetch), None);
    proxy.step(FREE);
    stand.wait("the load", |model| model.is_idle().then_some(()));
    assert_eq!(stand.lock().failed.get(&fetch), None);
    assert!(numbers(&stand).into_iter().eq(1..=ITEMS_MAX));
}

/// Statements are prepared in one step and executed in another, and the lock on the table is taken in the second.
#[test]
fn a_table_may_be_altered_between_the_two_steps_of_a_statement() {
    const FREE: usize = 1;
    let Some(server) = server(3) else { return };
    let proxy = Proxy::start(&server, |seen: &Seen, line, message| {
        let binds = !message.from_server && message.tag == b'B';
        match seen.step < FREE && binds && line.asked.contains(ITEMS) {
            true => Fate::Wait,
            false => Fate::Pass,
        }
    });
    let (mut source, stand) = source(&server, &proxy, "1");
    let fetch = stand.ask(&mut source, &items()).unwrap();
    proxy.wait("the first step", |seen| {
        seen.lines.iter().any(|line| line.client_waits && line.is_answered)
    });
    server.run("ALTER TABLE items ALTER v TYPE varchar(2000) USING 'altered ' || id");
    proxy.step(FREE);
    stand.wait("the load", |model| model.is_idle().then_some(()));
    assert_eq!(stand.lock().failed.get(&fetch), None);
    let values: Vec<_> = stand.lock().of(&items()).into_values().collect();
    assert_eq!(values, [b"altered 1", b"altered 2", b"altered 3"]);
}

/// A row lies in a partition that is not its own, as after careless work on the catalog: the database believes that all rows of the second
/// partition stand behind those of the first.
#[test]
fn a_row_that_belongs_before_the_parts_that_were_told_fails_the_load() {
    const FREE: usize = 1;
    // Rows are not sorted where partitions and their indexes have the order.
    let plans = ["enable_sort=off", "enable_seqscan=off", "enable_bitmapscan=off"];
    let Some(server) = Server::start(&plans) else { return };
    server.run(
        "CREATE TABLE items (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
         CREATE TABLE others (id int PRIMARY KEY, v text); \
         CREATE TABLE items_a PARTITION OF items FOR VALUES FROM (0) TO (1000); \
         INSERT INTO items SELECT n, 'v1 ' || repeat('x', 1000) FROM generate_series(4, 999) n; \
         CREATE TABLE items_b (id int PRIMARY KEY, v text); \
         INSERT INTO items_b VALUES (3, 'v1'), (1000, 'v1'), (1001, 'v1'); \
         ALTER TABLE items_b ADD CONSTRAINT b CHECK (id >= 1000 AND id < 2000) NOT VALID; \
         UPDATE pg_constraint SET convalidated = true WHERE conname = 'b'",
    );
    server.run("ALTER TABLE items ATTACH PARTITION items_b FOR VALUES FROM (1000) TO (2000)");
    let proxy = Proxy::start(&server, |seen: &Seen, line, message| {
        match seen.step < FREE && is_item(line, message) && line.rows >= SOME {
            true => Fate::Wait,
            false => Fate::Pass,
        }
    });
    let (mut source, stand) = source(&server, &proxy, "1");
    let fetch = stand.ask(&mut source, &items()).unwrap();
    stand.wait("a part", |model| (model.parts_told > 0).then_some(()));
    stand.lock().resets.clear();
    proxy.step(FREE);
    stand.wait("the load", |model| model.is_idle().then_some(()));
    let why = stand.lock().failed.remove(&fetch).expect("a row is not where it belongs");
    assert!(why.contains("in the order of their keys"), "{why}");
    // Nothing of it is kept.
    assert_eq!(stand.lock().resets, [items()]);
    assert_eq!(numbers(&stand), []);
    // The row is put where it belongs.
    server.run("DELETE FROM items_b WHERE id = 3; INSERT INTO items VALUES (3, 'v1')");
    stand.load(&mut source, &items()).unwrap();
    assert!(numbers(&stand).into_iter().eq(3..=1001));
}

/// A connection prepares so many statements and no more: those that it has are used on.
#[test]
fn a_connection_that_prepares_nothing_more_uses_what_it_has() {
    let Some(server) = server(3) else { return };
    let proxy = Proxy::start(&server, |_: &Seen, _, _| Fate::Pass);
    let (mut source, stand) = source(&server, &proxy, "1");
    let load = |source: &mut Postgres, stand: &Stand, at: usize| {
        let range = KeyRange::prefix(format!("x{at}|").as_bytes());
        assert_eq!(stand.load(source, &range).unwrap().len(), 3, "{at}");
    };
    // How many loads sent their statements as they are, how many statements others prepared, and how many of those were executed.
    let counts = || {
        let seen = proxy.lock();
        let is_load = |text: &str| text.starts_with("BEGIN ISOLATION") && text.contains(ITEMS);
        let sent = seen.sent.iter().filter(|(_, text)| is_load(text)).count();
        (sent, seen.prepared.len(), seen.executed)
    };
    // Each has another condition, and so a statement of its own.
    let mut at = 0;
    while counts().0 == 0 {
        assert!(at < 1000, "there is no end of what a connection prepares");
        let condition = format!("id <> -{at}");
        let words = [("table", "items"), ("key", "id"), ("value", "v"), ("where", &*condition)];
        stand.declare(&mut source, format!("x{at}|").as_bytes(), &words).unwrap();
        load(&mut source, &stand, at);
        at += 1;
    }
    let (sent, prepared, executed) = counts();
    assert!(at > 1 && prepared > 0, "nothing is prepared");
    stand.forget();
    // The last one that was prepared.
    load(&mut source, &stand, at - 2);
    let now = counts();
    assert!((now.0, now.1) == (sent, prepared) && now.2 > executed, "{now:?}");
}
