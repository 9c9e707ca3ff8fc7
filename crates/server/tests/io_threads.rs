//! A server whose clients' sockets go from one thread to another all the time.
//!
//! `HEADWATER_IO_SEED=7` runs the script of that seed again, `HEADWATER_IO_ROUNDS=1000` more of them.

use headwater_config::{Config, OptionalPort};
use headwater_model::server::check_seed;
use headwater_server::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// No answer takes longer unless something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

fn number_from(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A server of its own thread, which ends with the process, whose clients' sockets move.
fn start(threads: usize, seed: u64) -> SocketAddr {
    start_with(threads, Some(seed), Config::default())
}

/// The same with these settings; sockets move where there is a seed.
fn start_with(threads: usize, seed: Option<u64>, mut config: Config) -> SocketAddr {
    config.listen.port = OptionalPort::On(0);
    config.listen.io_threads = threads;
    config.clients.output_bytes_soft = 8 << 20;
    let (tells, hears) = channel();
    std::thread::spawn(move || {
        let mut server = Server::bind(config).unwrap();
        if let Some(seed) = seed {
            server.move_sockets_at_random(seed);
        }
        tells.send(server.addresses()[0]).unwrap();
        server.run()
    });
    hears.recv().unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Everything that several clients are told at random, by the oracle.
#[test]
fn every_reply_is_the_oracles_while_sockets_move() {
    let first = number_from("HEADWATER_IO_SEED", 1);
    let rounds = number_from("HEADWATER_IO_ROUNDS", 40);
    let rounds = if std::env::var("HEADWATER_IO_SEED").is_ok() { 1 } else { rounds };
    let mut address = start(3, first);
    for seed in first..first + rounds {
        let mut servers = |failed: bool| {
            if failed {
                address = start(3, seed);
            }
            vec![address]
        };
        let checked = check_seed(seed, &[], PATIENCE, &mut servers);
        checked.unwrap_or_else(|found| panic!("HEADWATER_IO_SEED={seed}: {found}"));
    }
}

/// Long values and long pipelines, read slowly, to the last byte: also by clients who say that they send no more.
#[test]
fn every_byte_arrives_while_sockets_move() {
    let address = start(4, 5);
    let clients: Vec<_> = (0..12u32)
        .map(|client| {
            std::thread::spawn(move || {
                for round in 0..6 {
                    exchange(address, client, round);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

fn exchange(address: SocketAddr, client: u32, round: u32) {
    let stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    let key = format!("k|{client}");
    let is_long = client.is_multiple_of(3);
    let bytes = if is_long { 300_000 } else { 100 * client as usize + 7 };
    let count = if is_long { 20 } else { 3000 };
    let value = vec![b'a' + (round % 26) as u8; bytes];
    let (name, sent) = (key.clone(), value.clone());
    let sender = std::thread::spawn(move || {
        let mut all = request(&[b"SET", name.as_bytes(), &sent]);
        all.extend(request(&[b"GET", name.as_bytes()]).repeat(count));
        all.extend(request(&[b"STRLEN", name.as_bytes()]));
        for piece in all.chunks(70_001) {
            writer.write_all(piece).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut reader = BufReader::with_capacity(4096, stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "+OK\r\n");
    let mut found = vec![0; bytes + 2];
    for at in 0..count {
        line.clear();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, format!("${bytes}\r\n"), "{key}, {at}");
        reader.read_exact(&mut found).unwrap();
        assert!(found.strip_suffix(b"\r\n") == Some(&value), "{key}, {at}");
        if at % 512 == 5 {
            // The server cannot send all of it meanwhile.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, format!(":{bytes}\r\n"), "and then the end");
    sender.join().unwrap();
}

/// A client that reads only when it has written everything is served: what it is sent meanwhile keeps nobody from reading what it sends.
#[test]
fn who_writes_everything_before_reading_is_served_while_sockets_move() {
    let address = start(3, 7);
    let clients: Vec<_> = (0..6)
        .map(|client| {
            std::thread::spawn(move || {
                let mut stream = connect(address);
                let key = format!("k{client}");
                stream.write_all(&request(&[b"SET", key.as_bytes(), &[b'v'; 4000]])).unwrap();
                // More replies than the system has room for, but not more than the server keeps, and more requests than it has room for.
                rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 16 << 10).unwrap();
                let asks = request(&[b"GET", key.as_bytes()]).repeat(1750);
                let ballast = request(&[b"EXISTS", &[b'x'; 900]]).repeat(14_000);
                stream.write_all(&asks).unwrap();
                stream.write_all(&ballast).unwrap();
                let reply = [&b"$4000\r\n"[..], &[b'v'; 4000], b"\r\n"].concat();
                let expected =
                    [b"+OK\r\n".to_vec(), reply.repeat(1750), b":0\r\n".repeat(14_000)].concat();
                let mut found = vec![0; expected.len()];
                stream.read_exact(&mut found).unwrap();
                assert!(found == expected);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

/// Nobody else waits for a client that never reads, whose socket an I/O thread has, and it is ended.
#[test]
fn who_never_reads_holds_nobody_up_and_is_ended() {
    let mut config = Config::default();
    config.clients.output_stuck_seconds_max = 2;
    let address = start_with(2, None, config);
    // The first one stays with the thread that executes.
    let mut others = vec![connect(address)];
    others[0].write_all(&request(&[b"ECHO", b"first"])).unwrap();
    others[0].read_exact(&mut [0; 11]).unwrap();
    let mut deaf = connect(address);
    deaf.write_all(&request(&[b"CLIENT", b"INFO"])).unwrap();
    let mut info = [0; 600];
    let count = deaf.read(&mut info).unwrap();
    assert!(String::from_utf8_lossy(&info[..count]).contains("io-thread=1 "));
    deaf.write_all(&request(&[b"SET", b"long", &vec![b'v'; 100_000]])).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let asks = request(&[b"GET", b"long"]).repeat(1000);
    // Until nothing is taken any more.
    while deaf.write_all(&asks).is_ok() {}
    others.extend((0..8).map(|_| connect(address)));
    for round in 0..200 {
        for other in &mut others {
            other.write_all(&request(&[b"ECHO", format!("{round:04}").as_bytes()])).unwrap();
        }
        for other in &mut others {
            let mut reply = [0; 10];
            other.read_exact(&mut reply).unwrap();
            assert_eq!(reply, *format!("$4\r\n{round:04}\r\n").as_bytes());
        }
    }
    deaf.set_write_timeout(Some(PATIENCE)).unwrap();
    let ended = deaf.write_all(&asks.repeat(100)).unwrap_err();
    assert_ne!(ended.kind(), std::io::ErrorKind::WouldBlock, "it is never ended");
}

/// Or the other tests would show nothing.
#[test]
fn sockets_do_move() {
    let mut client = BufReader::new(connect(start(3, 11)));
    let mut seen = [false; 3];
    let mut reply = String::new();
    for _ in 0..200_000 {
        client.get_mut().write_all(&request(&[b"CLIENT", b"INFO"])).unwrap();
        reply.clear();
        while !reply.contains("io-thread=") {
            client.read_line(&mut reply).unwrap();
        }
        let (_, rest) = reply.split_once("io-thread=").unwrap();
        seen[rest[..1].parse::<usize>().unwrap()] = true;
        // The end of the reply.
        while !reply.ends_with("\n\r\n") {
            client.read_line(&mut reply).unwrap();
        }
        if seen == [true; 3] {
            return;
        }
    }
    panic!("the socket has been at these threads alone: {seen:?}");
}

/// A client that waits for an element and hangs up is given none, whatever it has sent behind its request.
#[test]
fn who_hangs_up_behind_more_than_can_be_read_is_noticed() {
    let address = start_with(2, None, Config::default());
    let mut first = connect(address);
    let ask = |client: &mut TcpStream, words: &[&[u8]], length: usize| {
        client.write_all(&request(words)).unwrap();
        let mut reply = vec![0; length];
        client.read_exact(&mut reply).unwrap();
        reply
    };
    assert_eq!(ask(&mut first, &[b"PING"], 7), b"+PONG\r\n");
    let mut waits = connect(address);
    waits.write_all(&request(&[b"CLIENT", b"SETNAME", b"waits"])).unwrap();
    waits.read_exact(&mut [0; 5]).unwrap();
    waits.write_all(&request(&[b"STREAM.READ", b"s", b"0", b"10", b"BLOCK", b"0"])).unwrap();
    await_list(&mut first, |list| list.contains("flags=b "));
    // More than the window of it, and not so much that the system would keep its end behind it.
    waits.write_all(&request(&[b"PING"]).repeat(7400)).unwrap();
    // Mostly the window is full by then; if it is not, its end comes with what is read.
    std::thread::sleep(Duration::from_millis(100));
    drop(waits);
    await_list(&mut first, |list| !list.contains("name=waits"));
}

/// Waits until the list of clients is so.
fn await_list(client: &mut TcpStream, is_so: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    loop {
        client.write_all(&request(&[b"CLIENT", b"LIST"])).unwrap();
        let mut list = vec![0; 4096];
        let count = client.read(&mut list).unwrap();
        let list = String::from_utf8_lossy(&list[..count]);
        if is_so(&list) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody has noticed: {list}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
