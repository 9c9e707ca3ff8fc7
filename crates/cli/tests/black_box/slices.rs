//! Commands that take long are executed in slices: others are served in between, and whoever no longer wants
//! an answer ends the work.

use crate::support::{PATIENCE, Server, Socket, request};
use redis::Connection;
use rustix::process::Signal;
use std::time::Instant;

/// Keys of each of two tables, whose pairs a join makes.
const SIDE: usize = 1000;

/// A server with a join of which nothing is computed, that would give a million keys; slices are small.
fn server() -> (Server, Connection) {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    install(&mut client);
    configure(&mut client, "slice-rows", 100);
    (server, client)
}

/// Fills two tables and adds a join of all their pairs.
fn install(client: &mut Connection) {
    for table in ["a", "b"] {
        let mut set = redis::cmd("MSET");
        for number in 0..SIDE {
            set.arg(format!("{table}|{number:04}")).arg(number);
        }
        set.exec(client).unwrap();
    }
    let join = "c|<x>|<y> = check a|<x> copy b|<y>";
    redis::cmd("JOIN.ADD").arg("c").arg(join).exec(client).unwrap();
}

fn configure(client: &mut Connection, name: &str, value: u64) {
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(client).unwrap();
}

fn stored_keys(client: &mut Connection) -> usize {
    redis::cmd("DBSIZE").query(client).unwrap()
}

/// A client that asks for all that the join gives.
fn ask(server: &Server) -> Socket {
    let mut socket = server.socket();
    socket.send(b"CLIENT ID\r\n");
    socket.until(b"\r\n");
    socket.send(&request(&[b"PREFIX", b"c|", b"COUNT"]));
    socket
}

/// Waits until some of the outputs are there.
fn await_some(client: &mut Connection) {
    let began = Instant::now();
    while stored_keys(client) < 2 * SIDE + 500 {
        assert!(began.elapsed() < PATIENCE, "nothing is computed");
    }
}

/// That nothing is computed any more, and not all was.
fn assert_given_up(client: &mut Connection) {
    let began = Instant::now();
    let mut before = 0;
    loop {
        let now = stored_keys(client);
        if now == before {
            assert!(now < 2 * SIDE + SIDE * SIDE, "all was computed");
            return;
        }
        before = now;
        // Many turns of the loop, in each of which the work could go on.
        for _ in 0..50 {
            redis::cmd("PING").exec(client).unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "the work goes on");
    }
}

#[test]
fn others_are_served_while_much_is_computed() {
    let (server, mut client) = server();
    let mut asking = ask(&server);
    // Each of these is answered, and sees less than all: so they come in between.
    for number in 0..20 {
        redis::cmd("SET").arg(format!("a|more{number}")).arg(1).exec(&mut client).unwrap();
        assert!(stored_keys(&mut client) < SIDE * SIDE);
    }
    // What was written meanwhile is in the answer, which shows one moment.
    configure(&mut client, "slice-rows", 0);
    asking.expect(format!(":{}\r\n", (SIDE + 20) * SIDE).as_bytes());
}

/// A snapshot's parts are those of different moments then, none of them too old.
#[test]
fn others_are_served_while_a_snapshot_is_computed() {
    let (server, mut client) = server();
    let join = "d|<x>|<y> = snapshot 3600 check a|<x> copy b|<y>";
    redis::cmd("JOIN.ADD").arg("d").arg(join).exec(&mut client).unwrap();
    let mut asking = server.socket();
    asking.send(&request(&[b"PREFIX", b"d|", b"COUNT"]));
    await_some(&mut client);
    for number in 0..20 {
        redis::cmd("SET").arg(format!("other|{number}")).arg(1).exec(&mut client).unwrap();
        assert!(stored_keys(&mut client) < SIDE * SIDE);
    }
    configure(&mut client, "slice-rows", 0);
    asking.expect(format!(":{}\r\n", SIDE * SIDE).as_bytes());
}

/// Nothing of it is stored, and the answer shows one moment all the same.
#[test]
fn others_are_served_while_a_pull_join_is_read() {
    let (server, mut client) = server();
    let join = "d|<x>|<y> = pull check a|<x> copy b|<y>";
    redis::cmd("JOIN.ADD").arg("d").arg(join).exec(&mut client).unwrap();
    let mut asking = server.socket();
    asking.send(&request(&[b"PREFIX", b"d|", b"COUNT"]));
    // A read that was one step would have ended before these.
    redis::cmd("PING").exec(&mut client).unwrap();
    for number in 0..20 {
        redis::cmd("SET").arg(format!("a|more{number}")).arg(1).exec(&mut client).unwrap();
        redis::cmd("SET").arg(format!("b|{number:04}")).arg(7).exec(&mut client).unwrap();
    }
    configure(&mut client, "slice-rows", 0);
    asking.expect(format!(":{}\r\n", (SIDE + 20) * SIDE).as_bytes());
    assert_eq!(stored_keys(&mut client), 2 * SIDE + 20);
}

#[test]
fn a_verification_ends_its_slices_with_the_differences() {
    let (_server, mut client) = server();
    configure(&mut client, "slice-rows", 2000);
    let differences: Vec<redis::Value> =
        redis::cmd("VERIFY").arg("c|").arg("c}").query(&mut client).unwrap();
    assert_eq!(differences, []);
    assert_eq!(stored_keys(&mut client), 2 * SIDE + SIDE * SIDE, "VERIFY reads everything");
}

#[test]
fn the_work_ends_with_a_client_that_hangs_up() {
    let (server, mut client) = server();
    let asking = ask(&server);
    await_some(&mut client);
    drop(asking);
    assert_given_up(&mut client);
}

#[test]
fn the_work_ends_with_a_client_that_is_killed() {
    let (server, mut client) = server();
    let mut asking = ask(&server);
    await_some(&mut client);
    let killed: usize =
        redis::cmd("CLIENT").arg("KILL").arg("SKIPME").arg("yes").query(&mut client).unwrap();
    assert_eq!(killed, 1);
    asking.expect_end(b"");
    assert_given_up(&mut client);
}

#[test]
fn the_work_ends_when_it_takes_longer_than_it_may() {
    let (server, mut client) = server();
    configure(&mut client, "command-milliseconds-max", 1);
    let mut asking = ask(&server);
    asking.expect(b"-TIMEOUT the command took longer than 1 ms (command-milliseconds-max)\r\n");
    configure(&mut client, "command-milliseconds-max", 0);
    configure(&mut client, "slice-rows", 0);
    // What was computed is used.
    asking.send(b"PREFIX c| COUNT\r\n");
    asking.expect(format!(":{}\r\n", SIDE * SIDE).as_bytes());
}

#[test]
fn a_signal_ends_the_server_while_much_is_computed() {
    let (server, mut client) = server();
    let _asking = ask(&server);
    await_some(&mut client);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_transaction_is_not_divided() {
    let (server, _client) = server();
    let mut socket = server.socket();
    socket.send(b"MULTI\r\nSET a|more 1\r\nPREFIX c|more COUNT\r\nDEL a|more\r\nPREFIX c|more COUNT\r\nEXEC\r\n");
    socket.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n+OK\r\n");
    socket.expect(format!(":{SIDE}\r\n:1\r\n:0\r\n").as_bytes());
}

/// What is to be verified takes more memory than there is: it ends all the same.
#[test]
fn a_verification_ends_where_memory_is_short() {
    let server = Server::start(&["--memory", "32mb"]);
    let mut client = server.client(3);
    install(&mut client);
    // The join gives a million outputs, which would take too long in slices of a few rows.
    configure(&mut client, "slice-rows", 100);
    let differences: Vec<redis::Value> =
        redis::cmd("VERIFY").arg("c|").arg("c}").query(&mut client).unwrap();
    assert_eq!(differences, []);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn keys_are_listed_while_others_write() {
    let server = Server::start(&[]);
    let mut client = server.client(3);
    for first in (0..100_000).step_by(1000) {
        let mut set = redis::cmd("MSET");
        for number in first..first + 1000 {
            set.arg(format!("k|{number:06}")).arg(1);
        }
        set.exec(&mut client).unwrap();
    }
    configure(&mut client, "slice-rows", 10);
    let mut asking = server.socket();
    asking.send(&request(&[b"KEYS", b"k|*"]));
    // Behind all others, and listed if they are there before these are come to.
    for number in 0..20 {
        redis::cmd("SET").arg(format!("k|999999|{number:02}")).arg(1).exec(&mut client).unwrap();
    }
    let header = String::from_utf8(asking.until(b"\r\n")).unwrap();
    let count: usize = header[1..header.len() - 2].parse().unwrap();
    assert!((100_000..=100_020).contains(&count), "{header}");
    let bytes = 100_000 * "$8\r\nk|000000\r\n".len();
    let bytes = bytes + (count - 100_000) * "$12\r\nk|999999|00\r\n".len();
    let answer = String::from_utf8(asking.take(bytes)).unwrap();
    let mut keys: Vec<&str> = answer.lines().skip(1).step_by(2).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count, "each is there once");
    // A command in slices ends after so long.
    configure(&mut client, "slice-rows", 2);
    configure(&mut client, "command-milliseconds-max", 1);
    let refused: redis::RedisResult<Vec<String>> = redis::cmd("KEYS").arg("*").query(&mut client);
    let error = refused.unwrap_err();
    assert_eq!(error.code(), Some("TIMEOUT"), "{error}");
}
