//! SIGHUP: the settings are read again, those of the file and those of the command line.

use crate::support::{PATIENCE, Server};
use redis::{Connection, Value, cmd};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What must be in no log.
const SECRET: &str = "S3cretBytes";

/// A server with a configuration file that changes, and its log.
struct Reloaded {
    folder: tempfile::TempDir,
    server: Server,
}

impl Reloaded {
    fn start(text: &str, shards: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, log) = (folder.path().join("headwater.toml"), folder.path().join("log"));
        std::fs::write(&file, text).unwrap();
        let server = Server::start(&[
            "--config",
            file.to_str().unwrap(),
            "--shards",
            shards,
            "--log-file",
            log.to_str().unwrap(),
            "--log-level",
            "info",
            "--maxclients",
            "900",
        ]);
        Self { folder, server }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Has the file be this, and the server read it; the lines of these events that are new, all of them.
    fn reload(&self, text: &str, events: &[&str]) -> String {
        self.after(|file| std::fs::write(file, text).unwrap(), events)
    }

    /// Has something be done with the file, and the server read it; the lines of these events that are new, all of them.
    fn after(&self, change: impl FnOnce(&Path), events: &[&str]) -> String {
        change(&self.folder.path().join("headwater.toml"));
        let before = std::fs::read_to_string(self.log()).unwrap().len();
        self.server.signal(Signal::HUP);
        let began = Instant::now();
        loop {
            let log = std::fs::read_to_string(self.log()).unwrap();
            let new = &log[before..];
            let lines = events
                .iter()
                .map(|event| new.lines().find(|line| line.contains(&format!("event=\"{event}\""))));
            if let Some(lines) = lines.collect::<Option<Vec<_>>>() {
                return lines.join("\n");
            }
            assert!(began.elapsed() < PATIENCE, "{events:?} are not in\n{new}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn ask(client: &mut Connection, words: &[&str]) -> redis::RedisResult<Value> {
    cmd(words[0]).arg(&words[1..]).query(client)
}

fn setting(client: &mut Connection, name: &str) -> String {
    let pairs: Vec<String> = cmd("CONFIG").arg("GET").arg(name).query(client).unwrap();
    pairs[1].clone()
}

/// Waits until each shard has a setting: a client of each is asked.
fn until_set(server: &Server, name: &str, value: &str) {
    let clients: Vec<Connection> = (0..8).map(|_| server.client(2)).collect();
    for mut client in clients {
        let began = Instant::now();
        while setting(&mut client, name) != value {
            assert!(began.elapsed() < PATIENCE, "{name} is {}", setting(&mut client, name));
        }
    }
}

#[test]
fn settings_of_the_file_are_put_into_force() {
    for shards in ["1", "3"] {
        let text = "[clients]\nidle-seconds-max = 300\nclients-max = 5\n[listen]\nport = 0\n";
        let place = Reloaded::start(text, shards);
        let client = &mut place.server.client(2);
        ask(client, &["CONFIG", "SET", "slowlog-max-len", "7"]).unwrap();
        // What the command line says goes before the file.
        assert_eq!(setting(client, "maxclients"), "900");

        let text = "[clients]\nidle-seconds-max = 299\nclients-max = 6\n[listen]\nport = 7\n\
            [observe]\nslowlog-microseconds-min = 5\n[[join]]\nname = \"j\"\nspec = \"a|<x> = copy b|<x>\"\n";
        let told = place.reload(text, &["settings_reloaded", "restart_needed"]);
        assert!(
            told.contains("changed=\"idle-seconds-max=299 slowlog-microseconds-min=5\""),
            "{told}"
        );
        assert!(told.contains("what=\"[[join]]\""), "{told}");
        until_set(&place.server, "timeout", "299");
        until_set(&place.server, "slowlog-log-slower-than", "5");
        // What a client has set stays, since the file says nothing new of it.
        until_set(&place.server, "slowlog-max-len", "7");
        assert_eq!(setting(client, "maxclients"), "900");

        // What leaves the file has its default again.
        let told = place.reload("", &["settings_reloaded"]);
        assert!(told.contains("idle-seconds-max=0 slowlog-microseconds-min=10000"), "{told}");
        until_set(&place.server, "timeout", "0");
    }
}

#[test]
fn joins_over_functions_do_not_keep_settings_from_being_read_again() {
    let module = "(module (memory (export \"memory\") 1) (func (export \"call\") (result i32) (i32.const 0)))";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.wasm"), wat::parse_str(module).unwrap()).unwrap();
    let text = format!(
        "[functions]\nfunctions-dir = '{}'\n[[function]]\nname = \"m\"\nfile = \"m.wasm\"\n\
         [[join]]\nname = \"j\"\nspec = \"a|<x> = map:m b|<x>\"\n",
        folder.path().display()
    );
    let place = Reloaded::start(&text, "1");
    let told =
        place.reload(&format!("[clients]\nidle-seconds-max = 300\n{text}"), &["settings_reloaded"]);
    assert!(told.contains("idle-seconds-max=300"), "{told}");
    // Clients may have loaded what a join of the next start needs.
    let text = format!("{text}[[join]]\nname = \"k\"\nspec = \"c|<x> = map:later b|<x>\"\n");
    let told = place.reload(&text, &["settings_reloaded", "restart_needed"]);
    assert!(told.contains("what=\"[[join]]\""), "{told}");
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing() {
    let place = Reloaded::start("[clients]\nidle-seconds-max = 300\n", "1");
    let user = |rules: &str| format!("[[user]]\nname = \"ann\"\nrules = \"{rules}\"\n");
    let good = "[clients]\nidle-seconds-max = 5\n";
    let cases = [
        ("[clients]\nidle-seconds-mx = 5\n", "idle-seconds-mx"),
        ("[clients]\nidle-seconds-max = 5\noutput-bytes-soft = 1\n", "output-bytes-soft"),
        ("not TOML", "line 1"),
        (&format!("{good}[[join]]\nname = \"j\"\nspec = \"a|<x> = copy\"\n"), "join 'j'"),
        (&format!("{good}{}", user("on +nothing")), "user 'ann'"),
        (&format!("{good}[memory]\nmax = 5\n"), "maxmemory"),
        (&format!("{good}[listen]\nrequirepass-file = \"/nowhere\"\n"), "requirepass-file"),
    ];
    let client = &mut place.server.client(2);
    for (text, why) in cases {
        let told = place.reload(text, &["settings_not_reloaded"]);
        assert!(told.contains(why) && told.contains("ERROR"), "{told}");
        assert_eq!(setting(client, "timeout"), "300", "{text}");
        assert!(ask(client, &["ACL", "GETUSER", "ann"]).unwrap() == Value::Nil);
    }
    let told = place.after(|file| std::fs::remove_file(file).unwrap(), &["settings_not_reloaded"]);
    assert!(told.contains("headwater.toml") && told.contains("ERROR"), "{told}");
    let told = place.reload("[clients]\nidle-seconds-max = 299\n", &["settings_reloaded"]);
    assert!(told.contains("idle-seconds-max=299"), "{told}");
}

#[test]
fn users_of_the_file_come_change_and_go() {
    for shards in ["1", "3"] {
        let users = |users: &[(&str, &str)]| -> String {
            let of = |(name, rules): &(&str, &str)| {
                format!("[[user]]\nname = \"{name}\"\nrules = \"on >{name}{SECRET} {rules}\"\n")
            };
            users.iter().map(of).collect()
        };
        let place = Reloaded::start(&users(&[("ann", "~a* +get"), ("bob", "~* +get")]), shards);
        let log_in = |name: &str| {
            let mut client = place.server.client(2);
            ask(&mut client, &["AUTH", name, &format!("{name}{SECRET}")]).map(|_| client)
        };
        let (mut ann, mut bob) = (log_in("ann").unwrap(), log_in("bob").unwrap());
        assert!(log_in("eve").is_err());
        ask(&mut ann, &["GET", "b"]).unwrap_err();
        // Whom a client has added stays.
        ask(&mut place.server.client(2), &["ACL", "SETUSER", "zoe", "on", "nopass"]).unwrap();

        let told = place
            .reload(&users(&[("ann", "~b* +get"), ("eve", "~* +get")]), &["settings_reloaded"]);
        assert!(told.contains("users=\"ann eve\"") && told.contains("removed=\"bob\""), "{told}");
        ask(&mut ann, &["GET", "b"]).unwrap();
        ask(&mut ann, &["GET", "a"]).unwrap_err();
        ask(&mut bob, &["GET", "b"]).unwrap_err();
        assert!(log_in("bob").is_err());
        log_in("eve").unwrap();
        let admin = &mut place.server.client(2);
        let names: Vec<String> = cmd("ACL").arg("USERS").query(admin).unwrap();
        assert_eq!(names, ["ann", "default", "eve", "zoe"]);

        // Everybody needs a password now.
        let text =
            format!("[listen]\nrequirepass = \"{SECRET}\"\n{}", users(&[("eve", "~* +get")]));
        place.reload(&text, &["settings_reloaded"]);
        let new = &mut place.server.client(2);
        let error = ask(new, &["GET", "b"]).unwrap_err().to_string();
        assert!(error.contains("NOAUTH"), "{error}");
        ask(new, &["AUTH", SECRET]).unwrap();
        ask(new, &["GET", "b"]).unwrap();
        let log = std::fs::read_to_string(place.log()).unwrap();
        assert!(!log.contains(SECRET), "{log}");
    }
}
