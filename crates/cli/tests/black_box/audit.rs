//! What the log tells of who has changed what.

use crate::acl::ask;
use crate::support::{PATIENCE, Server, TempFile};
use redis::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// A server with these settings that logs into a file.
fn start(text: &str, log: &Path) -> Server {
    let file = TempFile::new(text);
    let file = file.path.to_str().unwrap();
    let words = ["--config", file, "--log-level", "info", "--log-file", log.to_str().unwrap()];
    Server::start(&words)
}

#[test]
fn whoever_changes_something_is_told_at_whichever_shard() {
    let folder = tempfile::tempdir().unwrap();
    let [log, data] = ["log", "data"].map(|name| folder.path().join(name));
    let users = TempFile::new("user default on nopass ~* &* +@all\n");
    for shards in ["1", "3"] {
        let text = format!(
            "[listen]\nshards = {shards}\naclfile = '{}'\n[log]\nlog-repeats-max = 1000\n[data]\ndata-dir = '{}{shards}'\n",
            users.path.display(),
            data.display()
        );
        let server = start(&text, &log);
        let mut admin = server.client(3);
        ask(&mut admin, &["ACL", "SETUSER", "ops@example", "on", ">pw", "~*", "&*", "+@all"])
            .unwrap();
        let mut expected = BTreeSet::new();
        // They come to all shards.
        for turn in 0..6 {
            let mut client = server.client(2);
            ask(&mut client, &["AUTH", "ops@example", "pw"]).unwrap();
            let (join, table) = (format!("join{turn}"), format!("table{turn}"));
            let spec = format!("out{turn}|<a> = copy in|<a>");
            for (words, name) in [
                (&["JOIN.ADD", &join, &spec][..], &*join),
                (&["JOIN.DROP", &join], &*join),
                (&["TABLE.SET", &table, "BOUNDARY", "1"], &*table),
                (&["ACL", "SETUSER", &join, "on"], &*join),
                (&["ACL", "SAVE"], ""),
                (&["ACL", "DELUSER", &join], &*join),
                (&["CONFIG", "SET", "timeout", "0", "maxclients", "500"], "timeout,maxclients"),
                (&["FLOW.ADD", &join, "ON", "in|<a>", "PUBLISH", "c"], &*join),
                (&["FLOW.PAUSE", &join], &*join),
                (&["CLIENT", "KILL", "ID", "999999"], ""),
                (&["BACKUP.BEGIN"], ""),
                (&["SHARD.MOVE", "7", if shards == "1" || turn % 2 == 0 { "0" } else { "1" }], ""),
            ] {
                let answer =
                    ask(&mut client, words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
                if let (&["BACKUP.BEGIN"], Value::Array(told)) = (words, answer) {
                    let number: String = redis::from_redis_value(told[1].clone()).unwrap();
                    ask(&mut client, &["BACKUP.END", &number]).unwrap();
                }
                let command = match *words {
                    [container @ ("ACL" | "CONFIG" | "CLIENT"), sub, ..] => {
                        format!("{container}|{sub}")
                    }
                    [command, ..] => command.to_owned(),
                    [] => String::new(),
                };
                let command = command.to_lowercase();
                let end = format!("command=\"{command}\" name={name}");
                expected.insert((turn, end.trim_end().to_owned()));
            }
        }
        ask(&mut admin, &["SHUTDOWN"]).unwrap_err();
        server.wait();
        let text = std::fs::read_to_string(&log).unwrap();
        for (turn, end) in expected {
            let is_told = |line: &&str| {
                line.contains("event=\"defined\" user=ops@example")
                    && line.trim_end().ends_with(&end)
            };
            let lines = text.lines().filter(is_told).count();
            // What names nothing of its turn is told once in each.
            let is_its_own = end.ends_with(&format!("{turn}"));
            let wanted = if is_its_own { 1 } else { 6 };
            assert_eq!(lines, wanted, "turn {turn} with {shards} shards: {end}\n{text}");
        }
        assert!(text.contains("event=\"defined\" user=default command=\"shutdown\""), "{text}");
        std::fs::remove_file(&log).unwrap();
    }
}

#[test]
fn a_name_cannot_write_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let server = start("[listen]\nshards = 1\n", &log);
    let mut client = server.client(2);
    let wrong = "\u{1b}[31mred\u{b}";
    ask(&mut client, &["AUTH", wrong, "pw"]).unwrap_err();
    let error = ask(&mut client, &["ACL", "SETUSER", wrong, "on"]).unwrap_err().to_string();
    assert!(error.contains("cannot be a user's name"), "{error}");
    let began = Instant::now();
    // The log is written by a thread of its own.
    loop {
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(!text.contains('\u{1b}') && !text.contains('\u{b}'), "{text}");
        if text.contains("red") {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
