//! What several clients ask at random, of servers of 1, 2, 3 and 8 shards at once: every reply, message and byte against the oracle, and
//! against the server of one shard.
//!
//! A failure prints its seed and a short script. `HEADWATER_SERVER_SEED=7` runs that seed again, `HEADWATER_SERVER_ROUNDS=1000` more of
//! them, `HEADWATER_SERVER_SCRIPT=FILE` a script; `HEADWATER_SERVER_SHARDS=1,3` names the servers,
//! `HEADWATER_SERVER_WITHOUT=copies,busy` what is left out (`headwater_model::server::draw::SUBJECTS`).

use crate::support::{Server, TempFile, number_from, program};
use headwater_model::generate::{BITS_FROM, KEPT_FROM, TALLIED_FROM};
use headwater_model::server::{Script, check_script, check_seed, draw, run, run_at_once};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// No answer takes longer unless something is broken.
const PATIENCE: Duration = Duration::from_secs(15);

/// Servers of so many shards, or of as many as the environment says.
fn start(shards: &str) -> Vec<Server> {
    let named = std::env::var("HEADWATER_SERVER_SHARDS");
    let shards = named.unwrap_or_else(|_| shards.to_owned());
    shards.split(',').map(|shards| Server::start(&["--shards", shards])).collect()
}

/// Runs random scripts on servers of so many shards each.
fn every_reply_is_the_oracles(shards: &str, without: &str, first: u64, rounds: u64) {
    let mut running = start(shards);
    let mut servers = |failed: bool| -> Vec<SocketAddr> {
        if failed {
            running = start(shards);
        }
        running.iter().map(|server| ([127, 0, 0, 1], server.port).into()).collect()
    };
    if let Ok(path) = std::env::var("HEADWATER_SERVER_SCRIPT") {
        let script = Script::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let checked = check_script(&script, PATIENCE, &mut servers);
        return checked.unwrap_or_else(|found| panic!("{found}"));
    }
    let named = std::env::var("HEADWATER_SERVER_WITHOUT");
    let without = named.unwrap_or_else(|_| without.to_owned());
    let without: Vec<String> = without.split(',').map(str::to_owned).collect();
    let first = number_from("HEADWATER_SERVER_SEED", first);
    let rounds = if std::env::var("HEADWATER_SERVER_SEED").is_ok() { 1 } else { rounds };
    for seed in first..first + number_from("HEADWATER_SERVER_ROUNDS", rounds) {
        let checked = check_seed(seed, &without, PATIENCE, &mut servers);
        checked.unwrap_or_else(|found| panic!("HEADWATER_SERVER_SEED={seed}: {found}"));
    }
}

#[test]
fn every_reply_is_the_oracles_with_one_shard() {
    every_reply_is_the_oracles("1", "", 1, 60);
}

#[test]
fn every_reply_is_the_oracles_with_any_number_of_shards() {
    every_reply_is_the_oracles("1,2,3,8", "", 1, 40);
}

/// Views with conditions, with values in their keys, and with the best of each group.
#[test]
fn every_reply_is_the_oracles_where_joins_look_at_values() {
    every_reply_is_the_oracles("1,2,3", "", KEPT_FROM, 40);
}

/// Views that count values besides: how many different ones, the most frequent, percentiles.
#[test]
fn every_reply_is_the_oracles_where_joins_count_values() {
    every_reply_is_the_oracles("1,2,3", "", TALLIED_FROM, 40);
}

#[test]
fn every_reply_is_the_oracles_where_bits_are_asked_for() {
    every_reply_is_the_oracles("1,3", "", BITS_FROM, 40);
}

#[test]
fn every_byte_has_its_place_while_clients_ask_at_once() {
    let running = start("3");
    let address: SocketAddr = ([127, 0, 0, 1], running[0].port).into();
    let first = number_from("HEADWATER_SERVER_SEED", 1);
    for seed in first..first + number_from("HEADWATER_SERVER_ROUNDS", 40) {
        let script = draw::script(seed, &[]);
        let done = run_at_once(&script, address, PATIENCE);
        done.unwrap_or_else(|wrong| panic!("HEADWATER_SERVER_SEED={seed}: {wrong}"));
    }
}

/// Hands on what a client asks of a server, and changes what the server replies.
fn proxy(server: &Server, from: &'static [u8], to: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, port) = (listener.local_addr().unwrap(), server.port);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
            let (mut asks, mut hears) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asks, &mut hears);
                let _ = hears.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || change(server, client, from, to));
        }
    });
    address
}

fn change(mut server: TcpStream, mut client: TcpStream, from: &[u8], to: &[u8]) {
    let mut room = [0; 1 << 16];
    while let Ok(count @ 1..) = server.read(&mut room) {
        let mut bytes = room[..count].to_vec();
        if let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
            bytes.splice(at..at + from.len(), to.iter().copied());
        }
        if client.write_all(&bytes).is_err() {
            return;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// The script of the test below: what it asks is answered in ways that the proxies change.
const SCRIPT: &str = "clients 3 2 3
0
  CLIENT TRACKING ON
  JOIN.ADD count n|<a>\\s=\\scount\\sp|<a>|<b>
  SUBSCRIBE news
1
  MSET p|a|1 yes p|b|1 no
2
  MULTI
  GET p|a|1
  GET n|a
  EXEC
0
  GET p|a|1
1
  SET p|a|1 more
  PUBLISH news hello
";

#[test]
fn whatever_is_changed_in_replies_is_found() {
    let server = Server::start(&[]);
    let script = Script::parse(SCRIPT).unwrap();
    let run = |from, to| run(&script, &[proxy(&server, from, to)], Duration::from_secs(1));
    assert_eq!(run(b"no such bytes", b""), Ok(()));
    let changes: [(&[u8], &[u8], &str); 8] = [
        (b"$3\r\nyes\r\n", b"$2\r\nno\r\n", "but expected"),
        (b"*2\r\n$3\r\nyes", b"*2\r\n>2\r\n+invalidate\r\n_\r\n$3\r\nyes", "a push within a reply"),
        (b"*2\r\n$3\r\nyes", b"*1\r\n$3\r\nyes", "but expected"),
        (b"$3\r\nyes\r\n", b"$3\r\nyes\n", "no CRLF"),
        (b"+QUEUED\r\n", b"+QUEUED\r\n+QUEUED\r\n", "but expected"),
        (b">2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\np|a|1\r\n", b"", "the copy of p|a|1 stays yes"),
        (b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n", b"", "messages [], but expected"),
        (b"$5\r\nhello\r\n", b"$5\r\nhullo\r\n", "messages"),
    ];
    for (from, to, wrong) in changes {
        let found = run(from, to).expect_err(&from.escape_ascii().to_string());
        assert!(found.contains(wrong), "{}: {found}", from.escape_ascii());
        let emptied = check_script(&Script::parse("clients 2\n").unwrap(), PATIENCE, &mut |_| {
            vec![([127, 0, 0, 1], server.port).into()]
        });
        emptied.unwrap_or_else(|found| panic!("{found}"));
    }
}

#[test]
fn the_program_checks_a_server_that_is_empty_alone() {
    let server = Server::start(&[]);
    let place = format!("127.0.0.1:{}", server.port);
    let check = |arguments: &[&str]| {
        let mut check = program();
        check.args(["check", "--server", &place]).args(arguments).output().unwrap()
    };
    let done = check(&["--seeds", "3"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(done.stdout, b"3 scripts agree with the oracle\n");
    let shown = check(&["--seed", "5", "--show"]);
    let script = TempFile::new(&String::from_utf8(shown.stdout).unwrap());
    let done = check(&["--script", script.path.to_str().unwrap()]);
    assert_eq!(done.stdout, b"the script agrees with the oracle\n", "{done:?}");
    let () = redis::cmd("SET").arg("a").arg(1).query(&mut server.client(2)).unwrap();
    let refused = check(&["--seeds", "3"]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("has keys or joins"), "{why}");
    let kept: i64 = redis::cmd("GET").arg("a").query(&mut server.client(2)).unwrap();
    assert_eq!(kept, 1);
}
