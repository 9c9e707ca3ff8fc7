//! A server whose store fails on demand, and what its clients are told then.

use crate::support::{PATIENCE, Server, name_shards, program, request};
use crate::{http, support::Socket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

/// What `faults.c` does to the servers started here, by the word in a file.
pub(crate) struct Faults {
    folder: TempDir,
    library: PathBuf,
}

impl Faults {
    /// Nothing fails yet.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("faults.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/black_box/faults.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .args([source, "-ldl"])
            .status();
        assert!(built.unwrap().success(), "faults.c is compiled");
        Self { folder, library }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("now")
    }

    /// Starts a server without a fault.
    pub(crate) fn start(&self, arguments: &[String]) -> Server {
        self.start_behind(arguments, 0)
    }

    /// The same, whose clock is behind by so many seconds.
    pub(crate) fn start_behind(&self, arguments: &[String], seconds: u32) -> Server {
        let _none = std::fs::remove_file(self.file());
        let mut command = program();
        command.args(["serve", "--port", "0"]).args(arguments);
        if !arguments.iter().any(|word| word == "--shards") {
            name_shards(&mut command);
        }
        command.env("LD_PRELOAD", &self.library).env("FAULT_FILE", self.file());
        command.env("CLOCK_BEHIND", seconds.to_string());
        Server::spawn(command)
    }

    /// From now on its store has this fault.
    pub(crate) fn set(&self, fault: &str) {
        // At once: half a word would be no fault.
        let new = self.folder.path().join("next");
        std::fs::write(&new, fault).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }
}

/// Waits until the server has executed so many of these commands; it tells while replies are held back.
fn wait_for(server: &Server, command: &str, count: u64) {
    let line = format!("headwater_commands_total{{command=\"{command}\"}} {count}.0");
    let began = Instant::now();
    while !http::get(server, "GET /metrics").lines().any(|other| other == line) {
        assert!(began.elapsed() < PATIENCE, "{line} does not come");
    }
}

fn ask(socket: &mut Socket, words: &[&[u8]]) {
    socket.send(&request(words));
}

#[test]
fn a_store_that_fails_ends_the_clients_whose_writes_it_loses_and_no_others() {
    let (faults, folder) = (Faults::new(), tempfile::tempdir().unwrap());
    let data = folder.path().join("data");
    let options = ["--data", data.to_str().unwrap(), "--durability", "always", "--http-port", "0"];
    let server = faults.start(&options.map(String::from));
    let [mut writer, mut reader] = [server.socket(), server.socket()];
    ask(&mut reader, &[b"SET", b"p|old", b"safe"]);
    reader.expect(b"+OK\r\n");
    faults.set("hold");
    // Their replies wait from here on.
    ask(&mut writer, &[b"SET", b"p|new", b"unsafe"]);
    wait_for(&server, "set", 2);
    ask(&mut reader, &[b"GET", b"p|old"]);
    wait_for(&server, "get", 1);
    let mut newcomer = server.socket();
    ask(&mut newcomer, &[b"HELLO", b"2"]);
    wait_for(&server, "hello", 1);
    faults.set("sync");
    writer.expect_end(b"");
    reader.expect(b"$4\r\nsafe\r\n");
    ask(&mut reader, &[b"SET", b"p|late", b""]);
    assert!(reader.until(b"\r\n").starts_with(b"-MISCONF data can no longer be written"));
    let greeting = newcomer.until(b"modules\r\n*0\r\n");
    assert!(greeting.starts_with(b"*14\r\n$6\r\nserver"), "{}", greeting.escape_ascii());
    ask(&mut newcomer, &[b"GET", b"p|old"]);
    newcomer.expect(b"$4\r\nsafe\r\n");
}
