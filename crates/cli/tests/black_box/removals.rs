//! Removals of many keys: in slices, and one step to everybody else.

use crate::support::{Server, Socket, TempFile, request};
use redis::Connection;
use rustix::process::Signal;
use tempfile::TempDir;

/// Keys that are removed: with slices of two rows, in over a thousand turns of the loop.
const KEYS: usize = 3000;
/// How often a client looks at a range that is being removed, at most.
const LOOKS: usize = 1_000_000;

/// A server whose slices are very short.
fn server(arguments: &[&str]) -> Server {
    let config = TempFile::new("[clients]\nslice-rows = 2\n");
    let arguments = [arguments, &["--shards", "1", "--config", config.path.to_str().unwrap()]];
    Server::start(&arguments.concat())
}

fn key(number: usize) -> String {
    format!("d|{number:05}")
}

/// Fills the range `d|`, a join that counts its keys, and another table.
fn fill(client: &mut Connection) {
    let join = "n|all = count d|<number>";
    redis::cmd("JOIN.ADD").arg("n").arg(join).exec(client).unwrap();
    let mut set = redis::cmd("MSET");
    (0..KEYS).for_each(|number| _ = set.arg(key(number)).arg("a value of some length"));
    set.arg("other|1").arg("stays").exec(client).unwrap();
    assert_eq!(count(client, "d|"), KEYS);
    assert_eq!(counted(client), Some(KEYS));
}

fn count(client: &mut Connection, prefix: &str) -> usize {
    redis::cmd("PREFIX").arg(prefix).arg("COUNT").query(client).unwrap()
}

/// What the join says.
fn counted(client: &mut Connection) -> Option<usize> {
    redis::cmd("GET").arg("n|all").query(client).unwrap()
}

/// Keys that are stored, dead or not.
fn stored(client: &mut Connection) -> usize {
    let info: String = redis::cmd("INFO").arg("keyspace").query(client).unwrap();
    let keys = info.lines().find_map(|line| line.strip_prefix("db0:keys="));
    keys.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// A client that has the range removed; it has begun when the last key of it is gone.
fn remove(server: &Server, client: &mut Connection) -> Socket {
    let mut socket = server.socket();
    socket.send(&request(&[b"RANGE.DEL", b"d|", b"d}"]));
    for _ in 0..LOOKS {
        let last: Option<String> = redis::cmd("GET").arg(key(KEYS - 1)).query(client).unwrap();
        if last.is_none() {
            return socket;
        }
    }
    panic!("it does not begin");
}

#[test]
fn a_range_is_gone_for_everybody_from_the_first_slice_on() {
    let server = server(&[]);
    let mut client = server.client(3);
    fill(&mut client);
    let mut removing = remove(&server, &mut client);
    // Whatever is named is gone, in whichever order the slices come to it; so is what is derived.
    for number in [KEYS - 2, KEYS / 2, 1, KEYS - 3] {
        let gone: Option<String> = redis::cmd("GET").arg(key(number)).query(&mut client).unwrap();
        assert_eq!(gone, None);
    }
    redis::cmd("SET").arg(key(KEYS - 1)).arg("new").exec(&mut client).unwrap();
    let stays: String = redis::cmd("GET").arg("other|1").query(&mut client).unwrap();
    assert_eq!(stays, "stays");
    assert_eq!(counted(&mut client), Some(1));
    assert_eq!(count(&mut client, "d|"), 1);
    let stored: usize = redis::cmd("DBSIZE").query(&mut client).unwrap();
    assert_eq!(
        stored, 3,
        "a key that was written meanwhile, what is counted of it, and another table's"
    );
    // Those count that others named, and the new one does not.
    removing.expect(format!(":{KEYS}\r\n").as_bytes());
}

/// Commands of one connection wait for each other; those of another one come between the slices.
#[test]
fn others_are_served_while_a_range_goes() {
    others_are_served(false);
    others_are_served(true);
}

fn others_are_served(watched: bool) {
    let server = server(&[]);
    let mut client = server.client(3);
    fill(&mut client);
    let mut watching = server.socket();
    if watched {
        watch(&mut watching, ["d|", "d}"]);
        watch(&mut watching, ["n|", "n}"]);
    }
    // Both find their requests when the server goes on: so the second is answered in one of its next turns.
    let (mut removing, mut other) = (server.socket(), server.socket());
    for socket in [&mut removing, &mut other] {
        socket.send(b"PING\r\n");
        socket.expect(b"+PONG\r\n");
    }
    server.signal(Signal::STOP);
    removing.send(&request(&[b"RANGE.DEL", b"d|", b"d}"]));
    let look = request(&[b"GET", key(KEYS - 1).as_bytes()]);
    let info = request(&[b"INFO", b"keyspace"]);
    other.send(&[&look[..], &info].concat().repeat(2));
    server.signal(Signal::CONT);
    for _ in 0..2 {
        let seen = other.until(b"\r\n");
        if seen != b"$-1\r\n" {
            other.until(b"\r\n");
        }
        other.until(b"db0:keys=");
        let keys = String::from_utf8(other.until(b",")).unwrap();
        let keys: usize = keys.trim_end_matches(',').parse().unwrap();
        assert!(keys > KEYS / 2, "most keys are still stored, and not {keys}");
        other.until(b"\r\n\r\n");
    }
    removing.expect(format!(":{KEYS}\r\n").as_bytes());
    assert_eq!(stored(&mut client), 1);
}

/// Has a client told of what changes in a range.
fn watch(socket: &mut Socket, range: [&str; 2]) {
    socket.send(&request(&[b"RANGE.WATCH", range[0].as_bytes(), range[1].as_bytes()]));
    // The number of the watch, and where it begins.
    socket.until(b"\r\n$");
    socket.until(b"\r\n");
    socket.until(b"\r\n");
}

/// Of each key that goes, of outputs as they change, and of those that are computed anew when all keys are gone.
#[test]
fn who_watches_is_told_while_others_are_served() {
    let server = server(&[]);
    let mut client = server.client(3);
    fill(&mut client);
    let join = "f|all = first d|<number>";
    redis::cmd("JOIN.ADD").arg("f").arg(join).exec(&mut client).unwrap();
    let mut watching = server.socket();
    for range in [["d|", "d}"], ["n|", "n}"], ["f|", "f}"]] {
        watch(&mut watching, range);
    }
    let mut removing = remove(&server, &mut client);
    removing.expect(format!(":{KEYS}\r\n").as_bytes());
    watching.send(b"PING\r\n");
    let told = String::from_utf8(watching.until(b"pong\r\n")).unwrap();
    let messages: Vec<&str> = told.split("range-change\r\n").skip(1).collect();
    let about = |key: &str| messages.iter().filter(|it| it.contains(&format!("\r\n{key}"))).count();
    assert_eq!(about("d|"), KEYS, "each key is told once");
    assert_eq!(about("f|all"), 1, "what is computed anew is, once");
    assert!(about("n|all") > 0, "what is kept current is told");
    for key in ["n|all", "f|all"] {
        let last = messages.iter().rfind(|it| it.contains(key)).unwrap();
        assert!(last.contains("\r\ndel\r\n"), "{last}");
    }
}

#[test]
fn a_reader_sees_all_of_a_range_or_nothing() {
    let server = server(&[]);
    let mut client = server.client(3);
    for round in 0..4 {
        redis::cmd("FLUSHALL").exec(&mut client).unwrap();
        redis::cmd("JOIN.DROP").arg("n").query::<redis::Value>(&mut client).ok();
        fill(&mut client);
        let mut removing = server.socket();
        removing.send(&request(&[b"RANGE.DEL", b"d|", b"d}"]));
        for _ in 0..LOOKS {
            let seen = match round % 2 {
                0 => count(&mut client, "d|"),
                _ => counted(&mut client).unwrap_or(0),
            };
            assert!(seen == 0 || seen == KEYS, "{seen} of {KEYS}");
            if seen == 0 {
                break;
            }
        }
        removing.expect(format!(":{KEYS}\r\n").as_bytes());
    }
}

#[test]
fn a_removal_that_has_begun_is_completed_whatever_its_client_does() {
    let server = server(&[]);
    let mut client = server.client(3);
    fill(&mut client);
    drop(remove(&server, &mut client));
    assert_eq!(count(&mut client, "d|"), 0);
    redis::cmd("JOIN.DROP").arg("n").exec(&mut client).unwrap();
    fill(&mut client);
    // A removal that has begun is completed, and its answer says how many keys were removed.
    let limit = |client: &mut Connection, most: u64| {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg("command-milliseconds-max").arg(most).exec(client).unwrap();
    };
    let mut removing = remove(&server, &mut client);
    limit(&mut client, 1);
    removing.expect(format!(":{KEYS}\r\n").as_bytes());
    limit(&mut client, 0);
    // Two at a time.
    redis::cmd("JOIN.DROP").arg("n").exec(&mut client).unwrap();
    fill(&mut client);
    let mut first = remove(&server, &mut client);
    let all: usize = redis::cmd("RANGE.DEL").arg("").arg("").query(&mut client).unwrap();
    first.expect(format!(":{KEYS}\r\n").as_bytes());
    assert_eq!(all, 1, "the other table's key");
}

#[test]
fn transactions_complete_what_has_begun() {
    let server = server(&[]);
    let mut client = server.client(3);
    fill(&mut client);
    let mut watching = server.socket();
    watching.send(b"WATCH d|02000 n|all\r\nMULTI\r\nSET other|2 1\r\n");
    watching.expect(b"+OK\r\n+OK\r\n+QUEUED\r\n");
    let mut removing = remove(&server, &mut client);
    watching.send(b"EXEC\r\n");
    watching.expect(b"*-1\r\n");
    watching.send(b"MULTI\r\nPREFIX d| COUNT\r\nGET n|all\r\nEXEC\r\n");
    watching.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:0\r\n$-1\r\n");
    removing.expect(format!(":{KEYS}\r\n").as_bytes());
}

#[test]
fn all_keys_are_gone_at_once() {
    let server = server(&[]);
    let mut client = server.client(3);
    for round in 0..3 {
        fill(&mut client);
        let mut flushing = server.socket();
        flushing.send(&request(&[b"FLUSHALL", [&b"SYNC"[..], b"ASYNC"][round % 2]]));
        for _ in 0..LOOKS {
            let seen = count(&mut client, "d|");
            assert!(seen == 0 || seen == KEYS, "{seen} of {KEYS}");
            if seen == 0 {
                break;
            }
        }
        flushing.expect(b"+OK\r\n");
        assert_eq!(stored(&mut client), 0);
        assert_eq!(counted(&mut client), None);
        redis::cmd("SET").arg(key(1)).arg("new").exec(&mut client).unwrap();
        assert_eq!(counted(&mut client), Some(1));
        redis::cmd("JOIN.DROP").arg("n").exec(&mut client).unwrap();
    }
}

/// Each shard removes its own keys, and the answer says how many those were.
#[test]
fn keys_of_all_shards_go() {
    let config = TempFile::new("[clients]\nslice-rows = 2\n");
    let server = Server::start(&["--shards", "3", "--config", config.path.to_str().unwrap()]);
    let mut client = server.client(3);
    for _ in 0..2 {
        fill(&mut client);
        let removed: usize =
            redis::cmd("RANGE.DEL").arg("d|").arg("d}").query(&mut client).unwrap();
        assert_eq!((removed, count(&mut client, "")), (KEYS, 1));
        redis::cmd("JOIN.DROP").arg("n").exec(&mut client).unwrap();
        fill(&mut client);
        redis::cmd("FLUSHALL").exec(&mut client).unwrap();
        assert_eq!(count(&mut client, ""), 0);
        redis::cmd("JOIN.DROP").arg("n").exec(&mut client).unwrap();
    }
}

/// Kills a server with a store as soon as a removal has begun, or some time after it was asked for; what the next one has.
fn kept_after_kill(durability: &str, awaits: bool, rounds: usize) -> usize {
    let place = TempDir::new().unwrap();
    let data = place.path().join("data");
    let arguments = ["--data", data.to_str().unwrap(), "--durability", durability];
    let killed = server(&arguments);
    let mut client = killed.client(3);
    fill(&mut client);
    if awaits {
        drop(remove(&killed, &mut client));
    } else {
        killed.socket().send(&request(&[b"RANGE.DEL", b"d|", b"d}"]));
        (0..rounds).for_each(|_| redis::cmd("PING").exec(&mut client).unwrap());
    }
    killed.signal(Signal::KILL);
    killed.wait();
    let next = server(&arguments);
    let mut client = next.client(3);
    let kept = count(&mut client, "d|");
    assert_eq!(count(&mut client, "other|"), 1);
    kept
}

#[test]
fn a_kill_leaves_all_of_a_range_or_nothing() {
    for durability in ["none", "always"] {
        assert_eq!(kept_after_kill(durability, true, 0), 0, "somebody was told that it is gone");
        for rounds in [0, 2, 20] {
            let kept = kept_after_kill(durability, false, rounds);
            assert!(kept == 0 || kept == KEYS, "{kept} of {KEYS}");
        }
    }
}
