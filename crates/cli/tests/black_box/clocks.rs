//! Clocks that differ: that of whoever had the data, and that of whoever has it next.

use crate::faults::Faults;
use crate::support::{Socket, request};
use rustix::process::Signal;
use std::time::{SystemTime, UNIX_EPOCH};

/// Keys that expire at one moment: so many that most are only hidden when the first answer shows that they are gone.
const KEYS: usize = 200_000;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Sets the keys, to expire at this moment; whether it has not come yet.
fn load(socket: &mut Socket, over: u64) -> bool {
    let over_text = over.to_string();
    for keys in (0..KEYS).collect::<Vec<_>>().chunks(1000) {
        let set = |number: &usize| {
            let key = format!("p|{number:06}");
            request(&[b"SET", key.as_bytes(), b"v", b"PXAT", over_text.as_bytes()])
        };
        socket.send(&keys.iter().flat_map(set).collect::<Vec<u8>>());
        socket.expect(&b"+OK\r\n".repeat(keys.len()));
    }
    now() < over
}

#[test]
fn what_has_expired_stays_so_when_the_clock_goes_back() {
    let (faults, folder) = (Faults::new(), tempfile::tempdir().unwrap());
    let data = folder.path().join("data");
    let options = ["--data", data.to_str().unwrap()].map(String::from);
    let server = faults.start(&options);
    let mut client = server.client(2);
    let mut socket = server.socket();
    // A key whose time is over when it is set is never there, so the moment is put off until all are set before it.
    let mut seconds = 3;
    while !load(&mut socket, now() + seconds * 1000) {
        seconds *= 2;
    }
    let later = (now() + 100_000).to_string();
    socket.send(&request(&[b"SET", b"p|stays", b"v", b"PXAT", later.as_bytes()]));
    socket.expect(b"+OK\r\n");
    // The last one is among those that are removed last.
    let last = format!("p|{:06}", KEYS - 1);
    while redis::cmd("GET").arg(&last).query::<Option<String>>(&mut client).unwrap().is_some() {}
    server.signal(Signal::KILL);
    let _killed = server.wait();

    let server = faults.start_behind(&options, 30);
    let mut client = server.client(2);
    let keys: Vec<String> = redis::cmd("PREFIX").arg("p|").query(&mut client).unwrap();
    assert_eq!(keys, ["p|stays", "v"], "{} keys are there again", keys.len() / 2);
    let left: u64 = redis::cmd("PTTL").arg("p|stays").query(&mut client).unwrap();
    assert!((1..=100_000).contains(&left), "time has gone back: {left}");
}
