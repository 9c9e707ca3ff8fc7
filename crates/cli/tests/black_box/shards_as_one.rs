//! What must be the same with several shards as with one, and was not: each test names one such thing.

use crate::shards::Pipe;
use crate::shards_told::eventually;
use crate::support::{PATIENCE, Server, name_shards, program};
use headwater_model::server::wire::{Frame, Wire, encoded};
use redis::{Connection, Value, cmd};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARDS: usize = 3;

fn several() -> Server {
    Server::start(&["--shards", "3"])
}

/// Connections; between them, each shard has two.
fn clients(server: &Server) -> Vec<Connection> {
    (0..2 * SHARDS).map(|_| server.client(3)).collect()
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|&word| word.to_owned()).collect()
}

fn join(client: &mut Connection, name: &str, spec: &str) -> redis::RedisResult<Value> {
    cmd("JOIN.ADD").arg(name).arg(spec).query(client)
}

fn stat(client: &mut Connection, name: &str) -> Option<u64> {
    let info: redis::InfoDict = cmd("INFO").query(client).unwrap();
    info.get(name)
}

/// As many of the keys of a table as there are groups, over all shards.
fn keys(table: &str) -> Vec<String> {
    (0..20).map(|number| format!("{table}|{number}|x")).collect()
}

const TRANSFERS: usize = 250;
const ACCOUNTS: usize = 5;

/// So many transfers between accounts of two to four shards, with reads between; how many were not executed.
fn transfers(client: &mut Connection, from: usize) -> usize {
    let account = |at: usize| format!("acct|{}", ["a", "b", "c", "d", "e"][at % ACCOUNTS]);
    let mut refused = 0;
    for round in 0..TRANSFERS {
        let mut all = redis::pipe();
        all.atomic();
        let targets = 1 + round % 3;
        all.cmd("DECRBY").arg(account(from + round)).arg(targets);
        for target in 1..=targets {
            all.cmd("INCRBY").arg(account(from + round + target)).arg(1);
        }
        refused += usize::from(all.query::<Vec<i64>>(client).is_err());
        if round % 5 == from % 5 {
            let all: Vec<i64> = cmd("MGET")
                .arg((0..ACCOUNTS).map(account).collect::<Vec<_>>())
                .query(client)
                .unwrap();
            assert_eq!(all.iter().sum::<i64>(), 0, "{all:?}");
            let _: Value = cmd("RANGE").arg("acct|").arg("acct}").query(client).unwrap();
            let _: Value = cmd("GET").arg(account(round)).query(client).unwrap();
        }
    }
    refused
}

#[test]
fn transfers_of_six_clients_over_four_shards_all_come_to_their_end() {
    let server = Server::start(&["--shards", "4"]);
    let mut client = server.client(2);
    let () = cmd("MSET")
        .arg(&["acct|a", "0", "acct|b", "0", "acct|c", "0", "acct|d", "0", "acct|e", "0"])
        .query(&mut client)
        .unwrap();
    let refused: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..6)
            .map(|from| {
                let server = &server;
                scope.spawn(move || transfers(&mut server.client(3), from))
            })
            .collect();
        all.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(refused, 0, "of {} transfers", 6 * TRANSFERS);
}

#[test]
fn a_copy_of_a_derived_key_shows_the_writes_before_it_in_its_pipeline() {
    let server = several();
    let _: Value =
        join(&mut server.client(3), "k", "k|<a>|<b> = first ab|<a> check q|<b>").unwrap();
    let mut pipe = Pipe::new(&server, 3);
    for round in 0..300 {
        let (a, b, to) = (format!("a{round}"), format!("b{round}"), format!("to{round}"));
        let (first, check, key) = (format!("ab|{a}"), format!("q|{b}"), format!("k|{a}|{b}"));
        let answers = pipe.run(&[
            words(&["SET", &first, "v"]),
            words(&["SET", &check, "1"]),
            words(&["COPY", &key, &to]),
            words(&["GET", &to]),
            words(&["DEL", &check]),
            words(&["COPY", &key, &to, "REPLACE"]),
            words(&["RENAMENX", &first, &key]),
        ]);
        let ok = || Value::Okay;
        let value = Value::BulkString(b"v".to_vec());
        let expected = [ok(), ok(), Value::Int(1), value, Value::Int(1), Value::Int(0)];
        assert_eq!(answers[..6], expected, "round {round}");
        assert!(matches!(answers[6], Value::ServerError(_)), "{:?}", answers[6]);
    }
}

#[test]
fn a_watched_derived_key_shows_what_its_client_wrote() {
    let server = several();
    let mut client = server.client(3);
    let _: Value = join(&mut client, "n", "n|<a> = count p|<b>|<a>").unwrap();
    let mut pipe = Pipe::new(&server, 3);
    for round in 0..300 {
        let (derived, base) = (format!("n|{round}"), format!("p|{round}x|{round}"));
        let (set, watch) = (words(&["SET", &base, "1"]), words(&["WATCH", &derived]));
        let rest = [words(&["MULTI"]), words(&["ECHO", "done"]), words(&["EXEC"])];
        let before = pipe.run(&[[set.clone(), watch.clone()].to_vec(), rest.to_vec()].concat());
        let done = Value::Array(vec![Value::BulkString(b"done".to_vec())]);
        assert_eq!(before[4], done, "round {round}: nothing was written since WATCH");
        let remove = words(&["DEL", &base]);
        let behind = pipe.run(&[[watch, remove].to_vec(), rest.to_vec()].concat());
        assert_eq!(behind[4], Value::Nil, "round {round}: the key is gone since WATCH");
    }
}

#[test]
fn a_refused_mset_or_del_leaves_everything_as_it_was() {
    let server = several();
    let mut client = server.client(3);
    let _: Value = join(&mut client, "n", "n|<a> = count p|<a>|<b>").unwrap();
    let mut set = cmd("MSET");
    keys("p").iter().for_each(|key| _ = set.arg(key).arg("old"));
    let () = set.query(&mut client).unwrap();
    let all = |client: &mut Connection| -> Vec<(String, String)> {
        cmd("RANGE").arg("").arg("").query(client).unwrap()
    };
    let before = all(&mut client);
    let long = "x".repeat(1025);
    for refused in ["n|1", "n|nobody", &long] {
        for name in ["MSET", "MSETNX", "DEL", "UNLINK"] {
            let (mut request, takes_values) = (cmd(name), name.starts_with("MSET"));
            for (at, key) in keys(if name == "MSETNX" { "new" } else { "p" }).iter().enumerate() {
                request.arg(key);
                request.arg(takes_values.then_some("new"));
                if at == 10 {
                    request.arg(refused);
                    request.arg(takes_values.then_some("new"));
                }
            }
            let answer = request.query::<Value>(&mut client);
            // A derived key that is there has MSETNX do nothing; otherwise the request is refused.
            if name != "MSETNX" || answer != Ok(Value::Int(0)) {
                answer.unwrap_err();
            }
            assert_eq!(all(&mut client), before, "{name} with {refused}");
        }
    }
}

#[test]
fn joins_are_listed_in_the_order_of_their_installation() {
    let server = several();
    let mut client = server.client(3);
    let names = ["m", "z", "a", "q", "b", "y"];
    for name in names {
        let _: Value = join(&mut client, name, &format!("{name}|<a> = count p|<a>|<b>")).unwrap();
    }
    let listed = |client: &mut Connection| -> Vec<String> {
        let joins: Vec<std::collections::BTreeMap<String, String>> =
            cmd("JOIN.LIST").query(client).unwrap();
        joins.into_iter().map(|join| join["name"].clone()).collect()
    };
    for client in &mut clients(&server) {
        assert_eq!(listed(client), names);
    }
}

#[test]
fn a_refused_join_names_the_keys_of_all_shards() {
    let server = several();
    let mut client = server.client(3);
    for key in keys("n") {
        let () = cmd("SET").arg(key).arg(1).query(&mut client).unwrap();
    }
    let refused = join(&mut client, "n", "n|<a>|<b> = copy p|<a>|<b>").unwrap_err().to_string();
    assert!(refused.contains("20 "), "{refused}");
}

#[test]
fn a_client_of_another_shard_is_killed_by_its_address() {
    let server = several();
    let mut killer = server.client(3);
    for _ in 0..2 * SHARDS {
        let mut victim = Wire::connect(address(&server), PATIENCE).unwrap();
        victim.ask(&["PING"]).unwrap();
        let from = victim.own_address();
        assert_eq!(cmd("CLIENT").arg("KILL").arg(&from).query(&mut killer), Ok(Value::Okay));
        victim.end().unwrap();
    }
    let nobody = cmd("CLIENT").arg("KILL").arg("127.0.0.1:1").query::<Value>(&mut killer);
    assert!(nobody.unwrap_err().to_string().contains("No such client"));
}

fn address(server: &Server) -> SocketAddr {
    ([127, 0, 0, 1], server.port).into()
}

#[test]
fn slow_commands_are_counted_and_kept_as_by_one_shard() {
    let server = several();
    let mut client = server.client(2);
    let mut set = |name: &str, value: i64| {
        let () = cmd("CONFIG").arg("SET").arg(name).arg(value).query(&mut client).unwrap();
    };
    set("slowlog-max-len", 5);
    set("slowlog-log-slower-than", 0);
    for number in 0..40 {
        let () = cmd("SET").arg(format!("k{number}")).arg(1).query(&mut client).unwrap();
    }
    let length: usize = cmd("SLOWLOG").arg("LEN").query(&mut client).unwrap();
    assert_eq!(length, 5);
    let three: Vec<Value> = cmd("SLOWLOG").arg("GET").arg(3).query(&mut client).unwrap();
    assert_eq!(three.len(), 3);
    let all: Vec<Value> = cmd("SLOWLOG").arg("GET").arg(-1).query(&mut client).unwrap();
    assert_eq!(all.len(), 5);
}

#[test]
fn channels_patterns_and_prefixes_are_counted_once() {
    let server = several();
    let mut listeners: Vec<_> = (0..2 * SHARDS).map(|_| Pipe::new(&server, 3)).collect();
    for listener in &mut listeners {
        listener.run(&[
            words(&["SUBSCRIBE", "news"]),
            words(&["PSUBSCRIBE", "n*"]),
            words(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "p|"]),
        ]);
    }
    listeners[0].run(&[words(&["PSUBSCRIBE", "m*"])]);
    let mut client = server.client(2);
    let patterns: u64 = cmd("PUBSUB").arg("NUMPAT").query(&mut client).unwrap();
    assert_eq!(patterns, 2);
    let heard: (String, usize) =
        cmd("PUBSUB").arg("NUMSUB").arg("news").query(&mut client).unwrap();
    assert_eq!(heard, ("news".to_owned(), 2 * SHARDS));
    let all: Vec<String> = cmd("PUBSUB").arg("CHANNELS").query(&mut client).unwrap();
    assert_eq!(all, ["news"]);
    for (name, count) in
        [("pubsub_channels", 1), ("pubsub_patterns", 2), ("tracking_total_prefixes", 1)]
    {
        assert_eq!(stat(&mut client, name), Some(count), "{name}");
    }
}

#[test]
fn a_scan_gives_something_at_once_while_there_are_keys() {
    let server = several();
    let mut client = server.client(2);
    for key in keys("p") {
        let () = cmd("SET").arg(&key).arg(1).query(&mut client).unwrap();
        let first: (u64, Vec<String>) =
            cmd("SCAN").arg(0).arg("COUNT").arg(5).query(&mut client).unwrap();
        assert_eq!(first, (0, vec![key.clone()]));
        let () = cmd("DEL").arg(&key).query(&mut client).unwrap();
    }
    let mut set = cmd("MSET");
    keys("p").iter().for_each(|key| _ = set.arg(key).arg(1));
    let () = set.query(&mut client).unwrap();
    let (next, some): (u64, Vec<String>) =
        cmd("SCAN").arg(0).arg("COUNT").arg(100).query(&mut client).unwrap();
    assert_eq!((next, some.len()), (0, 20));
    let (_, some): (u64, Vec<String>) =
        cmd("SCAN").arg(0).arg("COUNT").arg(15).query(&mut client).unwrap();
    assert!(some.len() >= 15, "{some:?}");
}

/// Sends requests and reads their replies, strictly; pushes between them are left out.
fn run(wire: &mut Wire, requests: &[Vec<String>]) -> Result<Vec<Frame>, String> {
    let mut bytes = Vec::new();
    for request in requests {
        let words: Vec<Vec<u8>> = request.iter().map(|word| word.clone().into_bytes()).collect();
        bytes.extend(encoded(&words));
    }
    wire.send(&bytes, &[])?;
    let mut replies = Vec::new();
    while replies.len() < requests.len() {
        match wire.frame()? {
            Frame::Push(_) => {}
            reply => replies.push(reply),
        }
    }
    Ok(replies)
}

#[test]
fn what_a_tracking_client_is_told_stands_between_replies() {
    let server = several();
    let keys = keys("p");
    let over = AtomicBool::new(false);
    let (over, server, keys) = (&over, &server, &keys);
    std::thread::scope(|scope| {
        for from in 0..2 {
            scope.spawn(move || {
                let mut client = server.client(2);
                for (at, key) in keys.iter().cycle().skip(10 * from).enumerate() {
                    let () = cmd("SET").arg(key).arg(1).query(&mut client).unwrap();
                    if at % 8 == from {
                        let () = cmd("FLUSHALL").query(&mut client).unwrap();
                    }
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let done = std::panic::catch_unwind(|| {
            let mut wire = Wire::connect(address(server), PATIENCE).unwrap();
            wire.protocol = 3;
            wire.ask(&["HELLO", "3"]).unwrap();
            wire.ask(&["CLIENT", "TRACKING", "ON"]).unwrap();
            for round in 0..300 {
                let reads = keys.iter().map(|key| words(&["GET", key]));
                let writes = keys.iter().take(4).map(|key| words(&["SET", key, "2"]));
                let mut all: Vec<_> = reads.clone().collect();
                all.push(words(&["MULTI"]));
                all.extend(reads.take(6).chain(writes));
                all.push(words(&["EXEC"]));
                let replies = run(&mut wire, &all).unwrap_or_else(|wrong| panic!("{wrong}"));
                let Some(Frame::Array(done)) = replies.last() else {
                    panic!("round {round}: {:?}", replies.last())
                };
                assert_eq!(done.len(), 10, "{done:?}");
            }
        });
        over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_message_that_a_client_sends_itself_within_exec_stands_behind_the_reply() {
    let server = Server::start(&[]);
    let mut wire = Wire::connect(address(&server), PATIENCE).unwrap();
    wire.protocol = 3;
    wire.ask(&["HELLO", "3"]).unwrap();
    wire.send(&encoded(&[b"SUBSCRIBE".to_vec(), b"news".to_vec()]), &[]).unwrap();
    assert!(matches!(wire.frame(), Ok(Frame::Push(_))));
    let all = [words(&["MULTI"]), words(&["PUBLISH", "news", "hello"]), words(&["EXEC"])];
    let replies = run(&mut wire, &all).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(replies[2], Frame::Array(vec![Frame::Integer(1)]));
}

#[test]
fn a_port_that_another_server_has_is_refused() {
    for shards in ["1", "2"] {
        let server = Server::start(&["--shards", shards]);
        let mut second = program();
        second.args(["serve", "--port", &server.port.to_string(), "--shards", "2"]);
        let mut second = second.stdout(std::process::Stdio::piped()).spawn().unwrap();
        // It either says that it is ready, or ends.
        let mut told = String::new();
        let output = second.stdout.take().unwrap();
        let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut told);
        let _ = second.kill();
        let _ = second.wait();
        assert_eq!(told, "", "beside a server of {shards} shards");
    }
    // Where nobody is, it starts.
    let mut alone = program();
    alone.args(["serve", "--port", "0"]);
    name_shards(&mut alone);
    Server::spawn(alone);
}

/// A message of a channel, as RESP3 has it.
fn message(channel: &str, text: &str) -> Frame {
    let word = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
    Frame::Push(vec![word("message"), word(channel), word(text)])
}

#[test]
fn what_a_client_publishes_to_itself_stands_behind_the_reply() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        // One of each shard's.
        for number in 0..SHARDS {
            let news = &*format!("news{number}");
            let mut wire = Wire::connect(address(&server), PATIENCE).unwrap();
            wire.protocol = 3;
            wire.ask(&["HELLO", "3"]).unwrap();
            wire.send(&encoded(&[b"SUBSCRIBE".to_vec(), news.as_bytes().to_vec()]), &[]).unwrap();
            assert!(matches!(wire.frame(), Ok(Frame::Push(_))));
            let all = [
                &["SET", "k", "v"][..],
                &["PUBLISH", news, "alone"],
                &["MULTI"],
                &["PUBLISH", news, "first"],
                &["SET", "p|1|x", "v"],
                &["SET", "p|2|x", "v"],
                &["PUBLISH", news, "second"],
                &["EXEC"],
                &["PING"],
            ];
            let words = |request: &[&str]| {
                encoded(&request.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
            };
            wire.send(&all.iter().flat_map(|request| words(request)).collect::<Vec<_>>(), &[])
                .unwrap();
            let (ok, queued) = (Frame::Simple("OK".to_owned()), Frame::Simple("QUEUED".to_owned()));
            let one = Frame::Integer(1);
            let mut expected = vec![ok.clone(), one.clone(), message(news, "alone"), ok.clone()];
            expected.extend((0..4).map(|_| queued.clone()));
            expected.push(Frame::Array(vec![one.clone(), ok.clone(), ok, one]));
            expected.extend([message(news, "first"), message(news, "second")]);
            expected.push(Frame::Simple("PONG".to_owned()));
            for (at, expected) in expected.iter().enumerate() {
                assert_eq!(wire.frame().as_ref(), Ok(expected), "{shards} shards, {at}");
            }
        }
    }
}

#[test]
fn latency_spikes_are_those_of_all_shards() {
    let server = several();
    let mut clients = clients(&server);
    let _: Value = cmd("CONFIG")
        .arg(&["SET", "latency-monitor-threshold", "10"])
        .query(&mut clients[0])
        .unwrap();
    for client in &mut clients {
        let () = cmd("DEBUG").arg("SLEEP").arg(0.02).query(client).unwrap();
    }
    let latest = |client: &mut Connection| -> Vec<(String, u64, u64, u64)> {
        cmd("LATENCY").arg("LATEST").query(client).unwrap()
    };
    let one = latest(&mut clients[0]);
    assert!(one.iter().any(|(event, ..)| event == "command"), "{one:?}");
    for client in &mut clients {
        assert_eq!(latest(client), one);
    }
    let reset: usize = cmd("LATENCY").arg("RESET").query(&mut clients[1]).unwrap();
    assert_eq!(reset, one.len());
    for client in &mut clients {
        assert_eq!(latest(client), []);
    }
}

#[test]
fn a_client_that_is_not_to_be_ended_stays_at_all_shards() {
    let server = several();
    let mut others = clients(&server);
    let mut client = server.client(3);
    let () = cmd("CLIENT").arg("NO-EVICT").arg("ON").query(&mut client).unwrap();
    let read = |client: &mut Connection| -> redis::RedisResult<Vec<Option<String>>> {
        cmd("MGET").arg(keys("p")).query(client)
    };
    assert_eq!(read(&mut client).unwrap().len(), 20);
    let () = cmd("CONFIG").arg(&["SET", "clients-bytes-max", "1"]).query(&mut client).unwrap();
    for _ in 0..3 {
        assert_eq!(read(&mut client).unwrap().len(), 20);
    }
    for other in &mut others {
        read(other).unwrap_err();
    }
}

/// A client's figure, for each whose name begins with `c`.
fn of_clients(client: &mut Connection, figure: &str) -> Vec<usize> {
    let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
    let named = list.lines().filter(|line| line.contains(" name=c"));
    let of = |line: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(figure)?.strip_prefix('='))?.parse().ok()
    };
    named.filter_map(of).collect()
}

#[test]
fn clients_of_all_shards_share_what_they_may_take() {
    clients_share_what_they_may_take(&several());
    // With a bound, shards know now and then alone what others' clients take.
    for _ in 0..8 {
        clients_share_what_they_may_take(&Server::start(&["--shards", "3", "--memory", "256mb"]));
    }
}

fn clients_share_what_they_may_take(server: &Server) {
    let (count, part) = (12, 250_000);
    let mut client = server.client(3);
    let () = cmd("CLIENT").arg("NO-EVICT").arg("ON").query(&mut client).unwrap();
    let mut wires = Vec::new();
    for number in 0..count {
        let mut wire = Wire::connect(address(server), PATIENCE).unwrap();
        wire.ask(&["CLIENT", "SETNAME", &format!("c{number}")]).unwrap();
        // A request of which the end is missing.
        let begun = [b"*2\r\n$300000\r\n".to_vec(), vec![b'v'; part]].concat();
        wire.send(&begun, &[]).unwrap();
        wires.push(wire);
    }
    while stat(&mut client, "total_net_input_bytes") < Some((count * part) as u64) {}
    let most = count * part * 2 / 3;
    let () =
        cmd("CONFIG").arg("SET").arg("clients-bytes-max").arg(most).query(&mut client).unwrap();
    // Nobody sends anything now, and no shard is asked about its clients.
    eventually("those who take most are ended", || {
        let ended = stat(&mut client, "evicted_clients");
        if ended >= Some(count as u64 / 3) { Ok(()) } else { Err(format!("{ended:?} are")) }
    });
    eventually("they take no more than they may", || {
        let left = of_clients(&mut client, "qbuf");
        if left.iter().sum::<usize>() <= most { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert!(!of_clients(&mut client, "qbuf").is_empty());
}

#[test]
fn who_takes_little_stays_where_one_that_is_not_to_be_ended_takes_much() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut large = Wire::connect(address(&server), PATIENCE).unwrap();
        large.ask(&["CLIENT", "NO-EVICT", "ON"]).unwrap();
        let begun = [b"*2\r\n$300000\r\n".to_vec(), vec![b'v'; 250_000]].concat();
        large.send(&begun, &[]).unwrap();
        let mut modest: Vec<Connection> = (0..12).map(|_| server.client(3)).collect();
        eventually("the request has come", || {
            let come = stat(&mut modest[0], "total_net_input_bytes");
            if come >= Some(250_000) { Ok(()) } else { Err(format!("{come:?}")) }
        });
        let set = ["SET", "clients-bytes-max", "200000"];
        let () = cmd("CONFIG").arg(&set).query(&mut modest[0]).unwrap();
        for _ in 0..3 {
            for client in &mut modest {
                assert_eq!(cmd("PING").query::<String>(client).as_deref(), Ok("PONG"));
            }
        }
        assert_eq!(stat(&mut modest[0], "evicted_clients"), Some(0));
    }
}

/// What comes of a transaction of these requests: the answer of EXEC, and so many messages behind it.
fn within(wire: &mut Wire, requests: &[&[&str]], messages: usize) -> Vec<Frame> {
    let exec = [&[&["MULTI"][..]], requests, &[&["EXEC"]]].concat();
    let word = |word: &&str| word.as_bytes().to_vec();
    let bytes = exec.iter().flat_map(|it| encoded(&it.iter().map(word).collect::<Vec<_>>()));
    wire.send(&bytes.collect::<Vec<_>>(), &[]).unwrap();
    let mut frames: Vec<_> = (0..exec.len() + messages).map(|_| wire.frame().unwrap()).collect();
    frames.split_off(exec.len() - 1)
}

#[test]
fn what_a_client_is_told_changes_within_exec_from_there_on() {
    let server = several();
    let mut wire = Wire::connect(address(&server), PATIENCE).unwrap();
    let news: [&[&str]; 4] = [
        &["SUBSCRIBE", "news"],
        &["PUBLISH", "news", "x"],
        &["UNSUBSCRIBE", "news"],
        &["PUBLISH", "news", "y"],
    ];
    let told = within(&mut wire, &news, 1);
    let Frame::Array(answers) = &told[0] else { panic!("{told:?}") };
    assert_eq!((&answers[1], &answers[3]), (&Frame::Integer(1), &Frame::Integer(0)));
    let Frame::Push(message) = message("news", "x") else { unreachable!() };
    assert_eq!(told[1], Frame::Array(message));

    wire.protocol = 3;
    wire.ask(&["HELLO", "3"]).unwrap();
    // Copies that it reads behind CLIENT TRACKING are told, whatever shard has them.
    let keys = keys("p");
    let track: &[&str] = &["CLIENT", "TRACKING", "ON"];
    let reads: Vec<[&str; 2]> = keys.iter().map(|key| ["GET", key]).collect();
    let reads: Vec<&[&str]> = reads.iter().map(|read| &read[..]).collect();
    let told = within(&mut wire, &[&[track], &reads[..]].concat(), 0);
    let Frame::Array(answers) = &told[0] else { panic!("{told:?}") };
    assert_eq!(answers.len(), 21);
    let mut writer = server.client(2);
    for key in &keys {
        let () = cmd("SET").arg(key).arg(1).query(&mut writer).unwrap();
        let Ok(Frame::Push(told)) = wire.frame() else { panic!("{key} is not told") };
        assert_eq!(told[1], Frame::Array(vec![Frame::Bulk(key.clone().into_bytes())]));
    }
}

#[test]
fn clients_that_want_no_replies_get_messages() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let mut wire = Wire::connect(address(&server), PATIENCE).unwrap();
        wire.protocol = 3;
        wire.ask(&["HELLO", "3"]).unwrap();
        let word = |word: &str| word.as_bytes().to_vec();
        for request in ["CLIENT REPLY OFF", "SUBSCRIBE news", "PUBLISH news x", "UNSUBSCRIBE news"]
        {
            wire.send(&encoded(&request.split(' ').map(word).collect::<Vec<_>>()), &[]).unwrap();
        }
        let counted = |kind, count| {
            let names = vec![Frame::Bulk(word(kind)), Frame::Bulk(word("news"))];
            Frame::Push([names, vec![Frame::Integer(count)]].concat())
        };
        for expected in [counted("subscribe", 1), message("news", "x"), counted("unsubscribe", 0)] {
            assert_eq!(wire.frame(), Ok(expected), "{shards} shards");
        }
    }
}
