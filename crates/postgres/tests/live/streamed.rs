//! Loads whose first rows are told of while the others come.

use crate::model::{Stops, connect};
use crate::server::Server;
use headwater_base::KeyRange;
use headwater_base::source::Source;
use headwater_postgres::Postgres;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const ROWS: usize = 20_000;

fn server() -> Option<Server> {
    let server = Server::start(&[])?;
    server.run(&format!(
        "CREATE TABLE items (owner text, id int, v text, PRIMARY KEY (owner, id)); \
         INSERT INTO items SELECT 'ann', n, 'v1 ' || repeat('x', 40) FROM generate_series(1, {ROWS}) n; \
         INSERT INTO items VALUES ('anna', 1, 'v1'), ('an', 1, 'v1')",
    ));
    Some(server)
}

const WORDS: [(&str, &str); 3] = [("table", "items"), ("key", "owner, id"), ("value", "v")];

#[test]
fn rows_are_told_of_before_the_last_has_come() {
    let Some(server) = server() else { return };
    let (mut source, stand) = connect(&server.url(), &[]);
    stand.wait_up();
    stand.declare(&mut source, b"i|", &WORDS).unwrap();
    let range = KeyRange::prefix(b"i|ann|");
    let mut from = range.first.clone();
    let mut rows = 0;
    // Pages, each of which comes in parts.
    while from != range.last {
        let rest = KeyRange::new(&from, &range.last);
        rows += stand.load_portion(&mut source, &rest, Default::default()).unwrap().len();
        from = stand.known_of(&rest).pop().unwrap().last;
    }
    assert_eq!(rows, ROWS);
    let told = stand.lock().parts_told;
    assert!(told > 3, "{told}");
    let facts = source.facts();
    let loaded = facts.iter().find(|(name, _)| *name == "rows_loaded").unwrap();
    assert_eq!(loaded.1, ROWS.to_string());
    // All of it is followed.
    server.run("UPDATE items SET v = 'v2' WHERE id % 1000 = 0");
    stand.catch_up(&mut source);
    let changed = stand.lock().of(&range).into_values().filter(|value| value == b"v2").count();
    assert_eq!(changed, ROWS / 1000);
    // Texts may be in another order than keys: what ends with one is told of when all of it has come, in one part and the last pair.
    stand.forget();
    source.unfollow(&range);
    let words = [("table", "items"), ("key", "id, owner"), ("value", "v")];
    stand.declare(&mut source, b"j|", &words).unwrap();
    let keys = stand.load_portion(&mut source, &KeyRange::prefix(b"j|"), Default::default());
    assert_eq!((keys.unwrap().len(), stand.lock().parts_told), (ROWS + 2, told + 1));
}

#[test]
fn parts_and_changes_make_one_history() {
    let Some(server) = server() else { return };
    let (mut source, stand) = connect(&server.url(), &[]);
    stand.wait_up();
    stand.declare(&mut source, b"i|", &WORDS).unwrap();
    let range = KeyRange::prefix(b"i|ann|");
    // So much may be written while a part is loaded: whoever wrote without end could write faster than changes can be followed.
    let (done, transactions_left) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = |source: &mut Postgres| {
        let mut from = range.first.clone();
        while from != range.last {
            let rest = KeyRange::new(&from, &range.last);
            transactions_left.store(100, Ordering::Relaxed);
            stand.load_portion(source, &rest, Default::default()).unwrap();
            from = stand.known_of(&rest).pop().unwrap().last;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connect();
            let mut random = fastrand::Rng::with_seed(3);
            let mut version = 1;
            while !done.load(Ordering::Relaxed) {
                if transactions_left.load(Ordering::Relaxed) == 0 {
                    std::thread::sleep(Duration::from_micros(100));
                    continue;
                }
                transactions_left.fetch_sub(1, Ordering::Relaxed);
                version += 1;
                let (some, other) = (random.usize(1..=ROWS), random.usize(1..=ROWS));
                let sql = format!(
                    "UPDATE items SET v = 'v{version} ' || repeat('y', 40) WHERE owner = 'ann' AND id BETWEEN {some} AND {some} + 20; \
                     DELETE FROM items WHERE owner = 'ann' AND id = {other}; \
                     INSERT INTO items VALUES ('ann', {other}, 'v{version}')"
                );
                connection.query(&format!("BEGIN; {sql}; COMMIT"), |_, _| {}).unwrap();
            }
        });
        let _stops = Stops(&done);
        // The stand panics where a version goes back.
        for _ in 0..8 {
            load(&mut source);
            stand.catch_up(&mut source);
            while !stand.lock().loaded.is_empty() {
                stand.unfollow(&mut source, 0);
            }
        }
        load(&mut source);
    });
    stand.catch_up(&mut source);
    assert!(stand.lock().parts_told > 20);
    let here = stand.lock().of(&range);
    let mut there = std::collections::BTreeMap::new();
    let sql = "SELECT id, v FROM items WHERE owner = 'ann'";
    server
        .connect()
        .query(sql, |_, columns| {
            let [Some(id), Some(v)] = columns else { panic!("{columns:?}") };
            let key = format!("i|ann|{:010}", id.parse::<u32>().unwrap());
            there.insert(key.into_bytes(), v.as_bytes().to_vec());
        })
        .unwrap();
    assert!(here == there, "{} keys here, {} there", here.len(), there.len());
}
