//! Items over memcached's protocol: what clients of both protocols share, and what only bare
//! sockets do.

use crate::support::{PATIENCE, Server, Socket, request};
use std::time::{Duration, Instant};

fn server() -> Server {
    Server::start(&["--memcached-port", "0"])
}

/// Sends and reads exactly this answer.
#[track_caller]
fn ask(socket: &mut Socket, request: &[u8], answer: &[u8]) {
    socket.send(request);
    socket.expect(answer);
}

#[test]
fn both_protocols_have_the_same_keys_and_values() {
    let server = server();
    let (mut resp, mut items) = (server.socket(), server.memcached());
    ask(&mut resp, b"SET k from-resp\r\n", b"+OK\r\n");
    ask(&mut items, b"get k\r\n", b"VALUE k 0 9\r\nfrom-resp\r\nEND\r\n");
    ask(&mut items, b"set k 7 100 5\r\nitems\r\n", b"STORED\r\n");
    ask(&mut resp, b"GET k\r\n", b"$5\r\nitems\r\n");
    ask(&mut resp, b"TTL k\r\n", b":100\r\n");
    // What changes a value in part keeps its flags, as it keeps the expiry.
    ask(&mut resp, b"APPEND k !\r\n", b":6\r\n");
    ask(&mut items, b"get k\r\n", b"VALUE k 7 6\r\nitems!\r\nEND\r\n");
    // They go with the value to another name.
    ask(&mut resp, b"RENAME k l\r\n", b"+OK\r\n");
    ask(&mut resp, b"COPY l m\r\n", b":1\r\n");
    ask(&mut items, b"get k l m\r\n", b"VALUE l 7 6\r\nitems!\r\nVALUE m 7 6\r\nitems!\r\nEND\r\n");
    // What replaces the value does not.
    ask(&mut resp, b"SET l again\r\n", b"+OK\r\n");
    ask(&mut items, b"get l\r\n", b"VALUE l 0 5\r\nagain\r\nEND\r\n");
    // A write over RESP is a change that `cas` sees.
    ask(&mut items, b"gets l\r\n", b"VALUE l 0 5 1\r\nagain\r\nEND\r\n");
    ask(&mut resp, b"INCR n\r\n", b":1\r\n");
    ask(
        &mut items,
        b"cas l 0 0 1 1\r\nx\r\ngets l\r\n",
        b"STORED\r\nVALUE l 0 1 2\r\nx\r\nEND\r\n",
    );
    ask(&mut resp, b"APPEND l y\r\n", b":2\r\n");
    ask(&mut items, b"cas l 0 0 1 2\r\nz\r\n", b"EXISTS\r\n");
    ask(&mut items, b"incr n 41\r\n", b"42\r\n");
    ask(&mut resp, b"INCR n\r\n", b":43\r\n");
    ask(&mut items, b"flush_all\r\n", b"OK\r\n");
    ask(&mut resp, b"DBSIZE\r\n", b":0\r\n");
}

#[test]
fn transactions_see_writes_of_items() {
    let server = server();
    let (mut resp, mut items) = (server.socket(), server.memcached());
    ask(&mut resp, b"WATCH k\r\nMULTI\r\nSET k x\r\n", b"+OK\r\n+OK\r\n+QUEUED\r\n");
    ask(&mut items, b"set k 0 0 1\r\ny\r\n", b"STORED\r\n");
    ask(&mut resp, b"EXEC\r\n", b"*-1\r\n");
}

#[test]
fn derived_keys_are_read_and_not_written() {
    let server = server();
    let (mut resp, mut items) = (server.socket(), server.memcached());
    let spec = b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    resp.send(&request(&[b"JOIN.ADD", b"timeline", spec]));
    resp.expect(b"*4\r\n");
    ask(
        &mut items,
        b"set s|ann|bob 0 0 1\r\n1\r\nset p|bob|0100 9 0 2\r\nHi\r\n",
        b"STORED\r\nSTORED\r\n",
    );
    ask(
        &mut items,
        b"get t|ann|0100|bob p|bob|0100\r\n",
        b"VALUE t|ann|0100|bob 0 2\r\nHi\r\nVALUE p|bob|0100 9 2\r\nHi\r\nEND\r\n",
    );
    let joined = b"SERVER_ERROR JOINED key is maintained by join 'timeline'\r\n";
    // What is there is read, whatever is to be done where nothing is.
    ask(&mut items, b"mg t|ann|0100|bob N30 v\r\n", b"VA 2\r\nHi\r\n");
    ask(&mut items, b"mg t|ann|0100|bob N30 R10 v t\r\n", b"VA 2 t-1\r\nHi\r\n");
    // Its version is that of its value.
    let mut version = || {
        items.send(b"gets t|ann|0100|bob\r\n");
        let head = items.until(b"\r\n");
        items.expect(b"Hi\r\nEND\r\n");
        head
    };
    assert_eq!(version(), version());
    let before = version();
    ask(&mut items, b"set p|bob|0100 9 0 2\r\nHo\r\n", b"STORED\r\n");
    ask(&mut items, b"mg t|ann|0100|bob v\r\n", b"VA 2\r\nHo\r\n");
    ask(&mut items, b"gets t|ann|0100|nobody\r\n", b"END\r\n");
    items.send(b"gets t|ann|0100|bob\r\n");
    assert_ne!(items.until(b"\r\n"), before);
    items.expect(b"Ho\r\nEND\r\n");
    for refused in [
        &b"set t|ann|0100|bob 0 0 1\r\nx\r\n"[..],
        b"add t|ann|0100|bob 0 0 1\r\nx\r\n",
        b"append t|ann|0100|bob 0 0 1\r\nx\r\n",
        b"prepend t|ann|0100|bob 0 0 1\r\nx\r\n",
        b"cas t|ann|0100|bob 0 0 1 1\r\nx\r\n",
        b"delete t|ann|0100|bob\r\n",
        b"incr t|ann|0100|bob 1\r\n",
        b"touch t|ann|0100|bob 1\r\n",
        b"gat 1 t|ann|0100|bob\r\n",
        b"ms t|ann|0100|bob 1\r\nx\r\n",
        b"md t|ann|0100|bob\r\n",
        b"ma t|ann|0100|bob N0\r\n",
        b"mg t|ann|0100|nobody N10 v\r\n",
    ] {
        ask(&mut items, refused, joined);
    }
    ask(&mut items, b"set t|ann|0100|bob 0 0 1 noreply\r\nx\r\nmn\r\n", b"MN\r\n");
    ask(&mut items, b"delete p|bob|0100\r\nget t|ann|0100|bob\r\n", b"DELETED\r\nEND\r\n");
}

#[test]
fn requests_may_be_cut_anywhere() {
    let server = server();
    let mut items = server.memcached();
    let long = [b'x'; 3000];
    let mut session = b"set a 5 0 3\r\na\nb\r\nget a\r\nms c 2 c F3\r\nxy\r\nmg c v f\r\n".to_vec();
    session.extend_from_slice(b"set l 0 0 3000\r\n");
    session.extend_from_slice(&long);
    session.extend_from_slice(b"\r\nget a l\r\n");
    let mut answer =
        b"STORED\r\nVALUE a 5 3\r\na\nb\r\nEND\r\nHD c1\r\nVA 2 f3\r\nxy\r\nSTORED\r\n".to_vec();
    answer.extend_from_slice(b"VALUE a 5 3\r\na\nb\r\nVALUE l 0 3000\r\n");
    answer.extend_from_slice(&long);
    answer.extend_from_slice(b"\r\nEND\r\n");
    for cut in (1..120).chain([1500, session.len() - 1]) {
        items.send(&session[..cut]);
        // The server has looked at the first part when it answers another client.
        let mut other = server.memcached();
        ask(&mut other, b"mn\r\n", b"MN\r\n");
        ask(&mut items, &session[cut..], &answer);
        ask(&mut items, b"flush_all\r\nset z 0 0 1\r\n1\r\n", b"OK\r\nSTORED\r\n");
        // The next version is another one.
        let next = format!("HD c{}\r\n", cut_version(&mut items));
        let at = answer.windows(4).position(|four| four == b"HD c").unwrap();
        let end = at + answer[at..].iter().position(|&byte| byte == b'\n').unwrap() + 1;
        answer.splice(at..end, next.bytes());
    }
}

/// The version that will be given out next.
fn cut_version(items: &mut Socket) -> u64 {
    items.send(b"ms z 0 c\r\n\r\n");
    let line = items.until(b"\n");
    String::from_utf8(line).unwrap().trim().strip_prefix("HD c").unwrap().parse::<u64>().unwrap()
        + 1
}

#[test]
fn long_values_are_skipped_and_take_what_they_replace_along() {
    let server =
        Server::with_config("[listen]\nmemcached-port = 0\n[limits]\nvalue-bytes-max = 100000\n");
    let mut items = server.memcached();
    let long = vec![b'x'; 100_001];
    let store = |head: &str| {
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend_from_slice(&long);
        bytes.extend_from_slice(b"\r\n");
        bytes
    };
    let error = b"SERVER_ERROR object too large for cache\r\n";
    ask(&mut items, b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    ask(&mut items, &store("add k 0 0 100001\r\n"), error);
    ask(&mut items, b"get k\r\n", b"VALUE k 0 1\r\n1\r\nEND\r\n");
    ask(&mut items, &store("set k 0 0 100001\r\n"), error);
    ask(&mut items, b"get k\r\n", b"END\r\n");
    ask(&mut items, b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    items.send(&store("set k 0 0 100001 noreply\r\n"));
    ask(&mut items, b"get k\r\n", b"END\r\n");
    ask(&mut items, &store("ms k 100001 q\r\n"), error);
    ask(&mut items, &store("ms k 100001 Z\r\n"), b"CLIENT_ERROR invalid flag\r\n");
    // Together too long: what is there stays.
    let half = format!("set k 0 0 60000\r\n{}\r\n", "y".repeat(60_000));
    ask(&mut items, half.as_bytes(), b"STORED\r\n");
    for verb in ["append", "prepend"] {
        let more = half.replacen("set", verb, 1);
        ask(&mut items, more.as_bytes(), b"NOT_STORED\r\n");
    }
    ask(&mut items, b"mg k s\r\n", b"HD s60000\r\n");
}

#[test]
fn long_values_come_back_whole() {
    let server = server();
    let mut items = server.memcached();
    let long: Vec<u8> = (0..1_000_003_u32).map(|at| (at % 251) as u8).collect();
    let mut store = format!("set k 3 0 {}\r\n", long.len()).into_bytes();
    store.extend_from_slice(&long);
    store.extend_from_slice(b"\r\n");
    ask(&mut items, &store, b"STORED\r\n");
    let mut value = format!("VALUE k 3 {}\r\n", long.len()).into_bytes();
    value.extend_from_slice(&long);
    value.extend_from_slice(b"\r\n");
    let both = [&value[..], &value, b"END\r\n"].concat();
    ask(&mut items, b"get k nope k\r\n", &both);
    let meta = [format!("VA {} f3\r\n", long.len()).as_bytes(), &long, b"\r\n"].concat();
    ask(&mut items, b"mg k v f\r\n", &meta);
}

#[test]
fn lines_have_an_end() {
    let server = server();
    for start in ["set ", "x", "mg "] {
        let mut items = server.memcached();
        items.send(format!("{start}{}", "y".repeat(3000)).as_bytes());
        items.expect_end(b"CLIENT_ERROR line too long\r\n");
    }
    let mut items = server.memcached();
    ask(&mut items, b"set k 1 0 1\r\nv\r\n", b"STORED\r\n");
    let keys = " k nope".repeat(50_000);
    items.send(b"get");
    items.send(keys.as_bytes());
    let answer = "VALUE k 1 1\r\nv\r\n".repeat(50_000) + "END\r\n";
    ask(&mut items, b"\r\n", answer.as_bytes());
}

#[test]
fn a_password_is_a_value_that_is_set() {
    let server = Server::start(&["--memcached-port", "0", "--requirepass", "secret word"]);
    let mut items = server.memcached();
    ask(&mut items, b"get k\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    ask(&mut items, b"mg k v\r\nmn\r\n", b"CLIENT_ERROR unauthenticated\r\n".repeat(2).as_slice());
    let wrong = b"CLIENT_ERROR authentication failure\r\n";
    ask(&mut items, b"set k 0 0 13\r\ndefault wrong\r\n", wrong);
    ask(&mut items, b"set k 0 0 6\r\nsecret\r\n", wrong);
    ask(&mut items, b"set k 0 0 19\r\ndefault secret word\r\n", b"STORED\r\n");
    ask(&mut items, b"get k\r\n", b"END\r\n");
}

#[test]
fn everything_goes_when_its_time_has_come() {
    let server = server();
    let mut items = server.memcached();
    ask(
        &mut items,
        b"set k 0 0 1\r\nv\r\nset e 0 1 1\r\nv\r\nflush_all 1\r\n",
        b"STORED\r\nSTORED\r\nOK\r\n",
    );
    let began = Instant::now();
    loop {
        items.send(b"mg k\r\n");
        let mut answer = [0; 4];
        std::io::Read::read_exact(items.stream(), &mut answer).unwrap();
        if &answer == b"EN\r\n" {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    ask(
        &mut items,
        b"get e\r\nset k 0 0 1\r\nv\r\nget k\r\n",
        b"END\r\nSTORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
    );
}

#[test]
fn what_is_not_memcached_is_told_so_or_left() {
    let server = server();
    for foreign in [&b"GET / HTTP/1.1\r\n"[..], b"quit\r\n", b"quit now\r\nget k\r\n"] {
        let mut items = server.memcached();
        items.send(foreign);
        items.expect_end(b"");
    }
    let mut items = server.memcached();
    ask(&mut items, &request(&[b"GET", b"k"]), b"ERROR\r\n".repeat(5).as_slice());
    // Bytes of the binary protocol are no line at all, or a bad one.
    items.send(b"\x80\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\r\n");
    items.expect(b"ERROR\r\n");
}

#[test]
fn clients_that_are_too_many_are_told() {
    let server = Server::start(&["--memcached-port", "0", "--maxclients", "1"]);
    let mut items = server.memcached();
    ask(&mut items, b"mn\r\n", b"MN\r\n");
    server.memcached().expect_end(b"ERROR Too many open connections\r\n");
}

#[test]
fn statistics_count_what_was_done() {
    let server = server();
    let mut items = server.memcached();
    ask(
        &mut items,
        b"set k 0 0 1\r\n1\r\nget k nope\r\nincr k 1\r\ndelete nope\r\n",
        b"STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n2\r\nNOT_FOUND\r\n",
    );
    let mut read = |request: &[u8]| {
        items.send(request);
        let text = items.until(b"END\r\n");
        String::from_utf8(text).unwrap()
    };
    let general = read(b"stats\r\n");
    for line in [
        "STAT version 1.6.18",
        "STAT cmd_get 2",
        "STAT get_hits 1",
        "STAT get_misses 1",
        "STAT cmd_set 1",
        "STAT incr_hits 1",
        "STAT delete_misses 1",
        "STAT curr_items 1",
        "STAT curr_connections 1",
    ] {
        assert!(general.contains(&format!("{line}\r\n")), "{line} is not in {general}");
    }
    assert!(read(b"stats settings\r\n").contains("STAT item_size_max 67108864\r\n"));
    assert!(read(b"stats items\r\n").starts_with("STAT items:1:number 1\r\n"));
    assert!(read(b"stats slabs\r\n").contains("STAT active_slabs 1\r\n"));
    let connections = read(b"stats conns\r\n");
    assert!(connections.contains(":addr tcp:127.0.0.1:"), "{connections}");
    assert!(connections.contains(":state conn_parse_cmd\r\n"), "{connections}");
    // What memcached tells, but for what is not known here.
    let names: Vec<&str> =
        general.lines().filter_map(|line| line.strip_prefix("STAT ")?.split(' ').next()).collect();
    let missing: Vec<&&str> = MEMCACHED_STATS.iter().filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in {general}");
    let number = |name: &str| -> u64 {
        let line = general.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap().parse().unwrap()
    };
    // What was there and is no number is neither found nor missed; reading with a new lifetime is a touch.
    let told = read(b"set t 0 0 1\r\nx\r\nincr t 1\r\ngat 0 t nope\r\n");
    assert!(told.contains("CLIENT_ERROR cannot increment"), "{told}");
    let told = read(b"stats\r\n");
    for line in [
        "incr_misses 0",
        "cmd_get 2",
        "get_hits 1",
        "cmd_touch 2",
        "touch_hits 1",
        "touch_misses 1",
    ] {
        assert!(told.contains(&format!("STAT {line}\r\n")), "{line} is not in {told}");
    }
    assert!(number("bytes_read") >= 50 && number("bytes_written") >= 40, "{general}");
}

/// What memcached 1.6 tells by `stats`, but for its library, its buffers, and what became of items that nobody had read.
const MEMCACHED_STATS: &[&str] = &[
    "pid",
    "uptime",
    "time",
    "version",
    "pointer_size",
    "rusage_user",
    "rusage_system",
    "max_connections",
    "curr_connections",
    "total_connections",
    "rejected_connections",
    "connection_structures",
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "cmd_meta",
    "get_hits",
    "get_misses",
    "get_expired",
    "get_flushed",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
    "cas_misses",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "touch_misses",
    "store_too_large",
    "store_no_memory",
    "auth_cmds",
    "auth_errors",
    "bytes_read",
    "bytes_written",
    "limit_maxbytes",
    "accepting_conns",
    "listen_disabled_num",
    "time_in_listen_disabled_us",
    "threads",
    "conn_yields",
    "hash_bytes",
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "lru_crawler_running",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "malloc_fails",
    "log_worker_dropped",
    "log_worker_written",
    "log_watcher_skipped",
    "log_watcher_sent",
    "log_watchers",
    "bytes",
    "curr_items",
    "total_items",
    "slab_global_page_pool",
    "evictions",
    "reclaimed",
    "crawler_reclaimed",
    "crawler_items_checked",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "lru_bumps_dropped",
];

#[test]
fn uses_are_counted_by_prefix_where_that_is_asked_for() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--memcached-port", "0", "--shards", shards]);
        let mut items = server.memcached();
        let mut ask = |request: &str, answer: &str| {
            items.send(request.as_bytes());
            items.expect(answer.as_bytes());
        };
        ask("set user:0 0 0 1\r\nv\r\nstats detail dump\r\n", "STORED\r\nEND\r\n");
        ask("stats detail on\r\n", "OK\r\n");
        ask("get user:0\r\n", "VALUE user:0 0 1\r\nv\r\nEND\r\n");
        for key in 1..9 {
            ask(&format!("set user:{key} 0 0 1\r\nv\r\n"), "STORED\r\n");
            ask(
                &format!("get user:{key} page|{key}\r\n"),
                &format!("VALUE user:{key} 0 1\r\nv\r\nEND\r\n"),
            );
            ask(&format!("mg user:{key} v\r\n"), "VA 1\r\nv\r\n");
        }
        ask("delete user:1\r\ndelete page|9\r\nget plain\r\n", "DELETED\r\nNOT_FOUND\r\nEND\r\n");
        let dump = "PREFIX page get 8 hit 0 set 0 del 1\r\nPREFIX user get 17 hit 17 set 8 del 1\r\nEND\r\n";
        ask("stats detail off\r\nget user:0\r\n", "OK\r\nVALUE user:0 0 1\r\nv\r\nEND\r\n");
        items.send(b"stats detail dump\r\n");
        let told = String::from_utf8(items.until(b"END\r\n")).unwrap();
        let mut lines: Vec<&str> = told.lines().collect();
        lines[..2].sort_unstable();
        assert_eq!(lines, dump.lines().collect::<Vec<_>>());
        items.send(b"stats reset\r\nstats detail dump\r\nstats detail often\r\n");
        items.expect(b"RESET\r\nEND\r\nCLIENT_ERROR usage: stats detail on|off|dump\r\n");
    }
}

#[test]
fn under_a_bound_what_has_no_room_is_refused_or_something_goes() {
    let server = Server::start(&["--memcached-port", "0", "--memory", "32mb"]);
    let mut items = server.memcached();
    let value = "v".repeat(50_000);
    let mut refused = false;
    for at in 0..1000 {
        items.send(format!("set k{at} 7 0 50000\r\n{value}\r\n").as_bytes());
        let line = items.until(b"\n");
        if line == b"SERVER_ERROR out of memory storing object\r\n" {
            refused = true;
            break;
        }
        assert_eq!(line, b"STORED\r\n");
    }
    assert!(refused, "32 MB are not 50 MB");
    let policy = ["--memory-policy", "allkeys-lru"];
    let server =
        Server::start(&[&["--memcached-port", "0", "--memory", "32mb"][..], &policy].concat());
    let mut items = server.memcached();
    for at in 0..1000 {
        ask(&mut items, format!("set k{at} 7 0 50000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    }
    assert!(server.memory_bytes("VmRSS:") <= 32 << 20);
    // Flags and versions count as well, and go with their keys.
    for at in 0..300_000 {
        items.send(format!("set f{at} 7 0 1 noreply\r\nv\r\n").as_bytes());
        if at % 1000 == 999 {
            items.send(format!("gets f{at}\r\nmn\r\n").as_bytes());
            items.until(b"MN\r\n");
            assert!(server.memory_bytes("VmRSS:") <= 32 << 20);
        }
    }
}
